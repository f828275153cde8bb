//! Promotion: a clone and the file system of its origin change roles (format page 15 section 7).
//!
//! The snapshots from the clone's origin back move to the clone, with their space, and the other
//! file system becomes a clone of the last of them. Chains of snapshots do not change; only the
//! "next" dataset of the origin becomes one of the clone's chain.

use std::rc::Rc;

use base::{Error, ErrorKind, ObjectId, Result, Txg};
use dmu::{Tx, zap};
use ondisk::dsl::DS_FLAG_NOPROMOTE;
use rt::LocalBoxFuture;

use crate::core::{Space, signed};
use crate::dataset::Dataset;
use crate::dir::{Dir, Used};
use crate::free::deadlist::Deadlist;
use crate::free::destroy::remove_listed;
use crate::limits::Counted;
use crate::pool::DslPool;
use crate::space::SpaceCheck;

/// The checked plan of a promotion, made before any change.
struct Plan {
    clone: Rc<Dir>,
    clone_head: Rc<Dataset>,
    old: Rc<Dir>,
    old_head: Rc<Dataset>,
    origin: Rc<Dataset>,
    /// Snapshots that move, from the origin back, each with its name.
    moving: Vec<(Rc<Dataset>, String)>,
    /// Datasets of the clone, from its head back.
    clone_chain: Vec<Rc<Dataset>>,
    /// The origin of the other file system: a snapshot, or `$ORIGIN`'s.
    origin_origin: Option<Rc<Dataset>>,
    /// Space that moves.
    space: Space,
    clone_snap: i64,
    old_snap: i64,
    unique: i64,
}

impl DslPool {
    /// Promotes a clone.
    pub async fn promote(self: &Rc<Self>, name: &str) -> Result<()> {
        let name = name.to_string();
        self.sync_task_again(move |pool, tx| -> LocalBoxFuture<'static, Result<()>> {
            let name = name.clone();
            Box::pin(async move { pool.promote_in(&name, false, &tx).await })
        })
        .await
    }

    /// As [`DslPool::promote`], in a task that is running ([`DslPool::sync_task`]). With `trial` it
    /// only makes the checks.
    pub async fn promote_in(self: &Rc<Self>, name: &str, trial: bool, tx: &Rc<Tx>) -> Result<()> {
        let (pool, tx) = (self.clone(), tx.clone());
        let plan = pool.plan_promotion(name, &tx).await?;
        pool.check_space(SpaceCheck::Reserved, 2 + plan.moving.len() as u64)?;
        if trial {
            return Ok(());
        }
        let done = pool.promote_now(&plan, &tx).await;
        pool.fail_txg_on_error(done)?;
        let of = (name.to_string(), pool.find(name)?.object);
        pool.core().log_internal_ds("promote", of, String::new(), &tx);
        Ok(())
    }

    /// A dataset and those before it, as long as they are in `dir`.
    async fn chain(&self, from: ObjectId, dir: &Rc<Dir>) -> Result<Vec<Rc<Dataset>>> {
        let mut out: Vec<Rc<Dataset>> = Vec::new();
        let mut at = from;
        while at.0 != 0 {
            let ds = self.hold_dataset(at).await?;
            if !Rc::ptr_eq(&ds.dir(), dir) {
                break;
            }
            if out.iter().any(|d| d.object == at) {
                return Err(Error::corrupt(format!("the snapshots of '{}' go in a circle", dir.full_name())));
            }
            at = ObjectId(ds.phys().prev_snap_obj);
            out.push(ds);
        }
        Ok(out)
    }

    async fn deadlist_of(&self, ds: &Dataset) -> Result<Deadlist> {
        Deadlist::open(self.mos(), ObjectId(ds.phys().deadlist_obj)).await
    }

    /// Space on the deadlists of datasets, of blocks born after `txg`.
    async fn dead_space_after(&self, chain: impl Iterator<Item = &Rc<Dataset>>, txg: u64) -> Result<i64> {
        let mut sum = Space::default();
        for ds in chain {
            sum.add(self.deadlist_of(ds).await?.space_range(self, txg, u64::MAX).await?);
        }
        Ok(sum.used)
    }

    async fn plan_promotion(&self, name: &str, tx: &Tx) -> Result<Plan> {
        let clone_head = self.find(name)?;
        let clone = clone_head.dir();
        let Some(origin) = self.origin_of(&clone_head).await? else {
            return Err(Error::invalid(format!("cannot promote '{name}': not a cloned filesystem")));
        };
        self.check_promotion_keys(&clone, &origin.dir())?;
        if clone_head.phys().flags & DS_FLAG_NOPROMOTE != 0 {
            return Err(Error::new(ErrorKind::Denied, format!("cannot promote '{name}': it was received in parts")));
        }
        // Blocks freed in this txg must be on the deadlists first.
        let settled = |ds: &Dataset| !ds.opened().is_some_and(|os| os.is_dirty(tx.txg()));
        let old = origin.dir();
        let old_head = old.head().ok_or_else(|| Error::corrupt(format!("'{}' has no head", old.full_name())))?;
        if !settled(&clone_head) || !settled(&old_head) {
            return Err(ErrorKind::Restart.into());
        }
        let shared = self.chain(origin.object, &old).await?;
        let clone_chain = self.chain(clone_head.object, &clone).await?;
        let mut old_chain = self.chain(old_head.object, &old).await?;
        old_chain.retain(|d| !shared.iter().any(|s| s.object == d.object));
        let origin_origin = match ObjectId(old.phys().origin_obj) {
            ObjectId(0) => None,
            object => Some(self.hold_dataset(object).await?),
        };
        let o = origin.phys();
        let mut space = Space::referenced(&o);
        let mut moving = Vec::new();
        for snap in &shared {
            if snap.phys().prev_snap_obj != 0 {
                space.add(self.deadlist_of(snap).await?.space().await?);
            }
            let snapname = match snap.snapname() {
                known if !known.is_empty() => known,
                _ => self.name_of_snapshot(&old_head, snap.object).await?,
            };
            if self.snapshot_of(&clone_head, &snapname).await?.is_some() {
                let why = format!(
                    "cannot promote '{name}': conflicting snapshot '{snapname}' from its origin: rename one of the two"
                );
                return Err(Error::new(ErrorKind::Exists, why));
            }
            moving.push((snap.clone(), snapname));
        }
        if let Some(origin_origin) = &origin_origin {
            space.add(Space::referenced(&origin_origin.phys()).negated());
        }
        let mut at = Some(clone.clone());
        while let Some(dir) = at {
            let p = dir.phys();
            if dir.is_above(&old) {
                break;
            }
            if p.quota != 0 && p.used_bytes.saturating_add_signed(space.used) > p.quota {
                let why =
                    format!("cannot promote '{name}': out of space: the quota of '{}' is too small", dir.full_name());
                return Err(Error::new(ErrorKind::Quota, why));
            }
            at = dir.parent();
        }
        let first = clone_chain.last().ok_or_else(|| Error::corrupt(format!("'{name}' has no datasets")))?;
        let unique = self.deadlist_of(first).await?.space_range(self, o.prev_snap_txg, u64::MAX).await?.used;
        let new_origin_txg = old.origin_txg();
        let clone_snap = self.dead_space_after(shared.iter().chain(&clone_chain), new_origin_txg).await?;
        let old_snap = self.dead_space_after(old_chain.iter(), o.creation_txg).await?;
        Ok(Plan {
            clone,
            clone_head,
            old,
            old_head,
            origin,
            moving,
            clone_chain,
            origin_origin,
            space,
            clone_snap,
            old_snap,
            unique,
        })
    }

    async fn promote_now(&self, p: &Plan, tx: &Tx) -> Result<()> {
        let mos = self.mos();
        self.drop_livelist(&p.clone, tx).await?;
        self.drop_livelist(&p.old, tx).await?;
        // The origin's next dataset is now of the clone's chain.
        let first = p.clone_chain.last().expect("planned").object;
        let old_next = ObjectId(p.origin.phys().next_snap_obj);
        p.origin.change(|s| s.next_snap_obj = first.0);
        self.replace_clone(&p.origin, first, old_next, tx).await?;

        let origin_origin = p.old.phys().origin_obj;
        p.clone.change(|d| d.origin_obj = origin_origin);
        p.clone.set_origin_txg(p.old.origin_txg());
        p.old.change(|d| d.origin_obj = p.origin.object.0);
        p.old.set_origin_txg(p.origin.phys().creation_txg);

        remove_listed(self, p.old.phys().clones, p.clone_head.object, tx).await?;
        if let Some(origin_origin) = &p.origin_origin {
            let list = origin_origin.dir();
            remove_listed(self, list.phys().clones, p.old_head.object, tx).await?;
            self.add_clone(&list, p.clone_head.object, tx).await?;
        }
        self.add_clone(&p.clone, p.old_head.object, tx).await?;

        let from = mos.hold(ObjectId(p.old_head.phys().snapnames_zapobj)).await?;
        let to = mos.hold(ObjectId(p.clone_head.phys().snapnames_zapobj)).await?;
        for (snap, name) in &p.moving {
            zap::remove(&from, name.as_bytes(), tx).await?;
            zap::add_u64(&to, name.as_bytes(), snap.object.0, tx).await?;
            snap.change(|s| s.dir_obj = p.clone.object.0);
            snap.set_dir(p.clone.clone());
            snap.set_snapname(name);
            let clones = snap.phys().next_clones_obj;
            if clones == 0 {
                continue;
            }
            for entry in zap::list(&mos.hold(ObjectId(clones)).await?).await? {
                let object = ObjectId(entry.value.as_u64().unwrap_or(0));
                if object == old_next {
                    continue;
                }
                let dir = self.hold_dataset(object).await?.dir();
                let head = ObjectId(dir.phys().head_dataset_obj);
                remove_listed(self, p.old.phys().clones, head, tx).await?;
                self.add_clone(&p.clone, head, tx).await?;
            }
        }
        let moved = p.moving.len() as i64;
        self.count(Counted::Snapshots, &p.old, -moved, tx).await?;
        self.count(Counted::Snapshots, &p.clone, moved, tx).await?;
        self.move_bookmarks(&p.old_head, &p.clone_head, p.origin.phys().creation_txg, tx).await?;
        if self.is_encryption_root(&p.old) {
            self.move_encryption_root(&p.old, &p.clone, tx).await?;
        }

        let snap_share = |dir: &Dir| signed(dir.phys().used_breakdown[Used::Snap as usize]);
        let only = |used: i64| Space { used, ..Space::default() };
        // First the growing figures, then the shrinking ones: no ancestor's figure goes below 0 in
        // between.
        let delta = p.clone_snap.saturating_sub(snap_share(&p.clone));
        p.clone.did_use(Used::Head, Space { used: p.space.used.saturating_sub(delta), ..p.space });
        p.clone.did_use(Used::Snap, only(delta));
        let delta = p.old_snap.saturating_sub(snap_share(&p.old));
        p.old.did_use(Used::Snap, only(delta));
        let back = p.space.negated();
        p.old.did_use(Used::Head, Space { used: back.used.saturating_sub(delta), ..back });
        p.origin.change(|s| s.unique_bytes = p.unique.max(0) as u64);
        let youngest = Txg(p.origin.phys().creation_txg);
        self.core().notify_watch(|w| w.promoted(p.old_head.object, p.clone_head.object, youngest));
        Ok(())
    }
}
