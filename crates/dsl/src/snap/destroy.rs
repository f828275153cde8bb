//! Destroying snapshots (format page 05 section 8).
//!
//! Destroying snapshot S frees the blocks that only S references: those on the deadlist of the next
//! dataset that were born after the snapshot before S. They move to the pool's free list as whole
//! lists and are freed in the background. The rest of S's own deadlist is merged into that of the
//! next dataset.

use std::collections::BTreeSet;
use std::rc::Rc;

use base::{Error, ErrorKind, ObjectId, Result};
use dmu::{Tx, zap};
use ondisk::dsl::DS_FLAG_DEFER_DESTROY;
use ondisk::feature::FeatureId;
use ondisk::object_type::ObjectType;
use rt::LocalBoxFuture;
use rt::cost::{DMU_OBJECT, FREE};

use crate::core::Space;
use crate::dataset::Dataset;
use crate::dir::{Dir, Used};
use crate::free::deadlist::Deadlist;
use crate::limits::Counted;
use crate::pool::DslPool;
use crate::space::SpaceCheck;

/// Fails with `Restart` while the blocks of one of these snapshots are being cloned. The caller
/// then marks what it removes as gone without a wait in between.
pub(crate) fn check_no_clone_source<'a>(snaps: impl IntoIterator<Item = &'a Rc<Dataset>>) -> Result<()> {
    match snaps.into_iter().any(|s| s.is_clone_source()) {
        true => Err(ErrorKind::Restart.into()),
        false => Ok(()),
    }
}

impl DslPool {
    /// Destroys snapshots, all in one txg or none. With `defer` those with holds or clones are
    /// destroyed when the last hold or clone is gone.
    pub async fn destroy_snapshots(self: &Rc<Self>, names: Vec<String>, defer: bool) -> Result<()> {
        self.sync_task_again(move |pool, tx| -> LocalBoxFuture<'static, Result<()>> {
            let names = names.clone();
            Box::pin(async move { pool.destroy_snapshots_in(&names, defer, false, false, &tx).await })
        })
        .await
    }

    /// As [`DslPool::destroy_snapshots`], in a task that is running. With `trial` it only makes the
    /// checks. With `fresh` also what that same task made.
    pub async fn destroy_snapshots_in(
        self: &Rc<Self>,
        names: &[String],
        defer: bool,
        fresh: bool,
        trial: bool,
        tx: &Rc<Tx>,
    ) -> Result<()> {
        let (pool, tx) = (self.clone(), tx.clone());
        let mut snaps = Vec::new();
        let mut later = Vec::new();
        for name in names {
            let snap = pool.find_snapshot(name).await?;
            match pool.check_destroy_snapshot(&snap, &tx).await {
                Ok(()) => snaps.push(snap),
                Err(e) if fresh && e.kind() == ErrorKind::Restart => snaps.push(snap),
                Err(e) if defer && e.kind() == ErrorKind::Busy && !snap.is_used() => later.push(snap),
                Err(e) => return Err(e),
            }
        }
        pool.check_space(SpaceCheck::ExtraReserved, 0)?;
        if trial {
            return Ok(());
        }
        check_no_clone_source(snaps.iter().chain(&later))?;
        // Nothing begins to clone out of them from here on.
        snaps.iter().for_each(|s| s.set_gone());
        for snap in later {
            snap.change(|p| p.flags |= DS_FLAG_DEFER_DESTROY);
            let of = (snap.name(), snap.object);
            pool.core().log_internal_ds("defer_destroy", of, String::new(), &tx);
        }
        for snap in snaps {
            pool.ctx().rt().spend(DMU_OBJECT).await;
            let removed = pool.remove_snapshot(&snap, &tx).await;
            pool.fail_txg_on_error(removed.map_err(|e| e.at(snap.name())))?;
        }
        Ok(())
    }

    pub(crate) async fn check_destroy_snapshot(&self, snap: &Rc<Dataset>, tx: &Tx) -> Result<()> {
        let busy =
            |why: String| Err(Error::new(ErrorKind::Busy, format!("cannot destroy snapshot {}: {why}", snap.name())));
        if snap.is_used() {
            return busy("dataset is busy: something uses it".into());
        }
        if snap.phys().num_children > 1 {
            let why =
                "snapshot is cloned: use -R to destroy the clones as well, or -d to destroy it when they are gone";
            return busy(why.into());
        }
        if self.hold_count(snap).await? > 0 {
            let name = snap.name();
            return busy(format!("dataset is busy: it's being held, run 'zfs holds -r {name}' to see holders"));
        }
        // The txg of its creation must be on disk.
        if snap.phys().creation_txg >= tx.txg().0 {
            return Err(ErrorKind::Restart.into());
        }
        Ok(())
    }

    /// Removes a snapshot without holds or clones (syncing context).
    pub(crate) async fn remove_snapshot(&self, snap: &Rc<Dataset>, tx: &Tx) -> Result<()> {
        let mos = self.mos();
        let (s, dir) = (snap.phys(), snap.dir());
        let head = dir.head().ok_or_else(|| Error::corrupt(format!("'{}' has no head", dir.full_name())))?;
        let next = self.hold_dataset(ObjectId(s.next_snap_obj)).await?;
        self.core().notify_watch(|w| w.destroyed(snap.object, Some(next.object)));
        let prev = match s.prev_snap_obj {
            0 => None,
            object => Some(self.hold_dataset(ObjectId(object)).await?),
        };
        self.load_marks(&head).await?;
        let mut list = next.take_deadlist().await?;

        let mut freed_upto = Vec::new();
        for txg in DslPool::mark_txgs(&head, s.prev_snap_txg.saturating_sub(1)) {
            if txg < s.creation_txg {
                freed_upto.push((txg, list.space_range(self, 0, txg).await?));
            }
        }
        let key_stays = self.marks_snapshot_gone(&head, s.prev_snap_txg, s.creation_txg, &freed_upto, tx).await?;

        let follows = prev.as_ref().is_some_and(|p| p.phys().next_snap_obj == snap.object.0);
        if let Some(prev) = &prev {
            if follows {
                prev.change(|p| p.next_snap_obj = next.object.0);
            } else {
                self.replace_clone(prev, snap.object, next.object, tx).await?;
            }
        }
        next.change(|p| {
            p.prev_snap_obj = s.prev_snap_obj;
            p.prev_snap_txg = s.prev_snap_txg;
        });
        if list.is_flat() {
            list = self.split_flat(snap, prev.as_ref().filter(|_| follows), list, &next, tx).await?;
        } else {
            if let Some(prev) = prev.as_ref().filter(|_| follows) {
                let more = list.space_range(self, prev.phys().prev_snap_txg, s.prev_snap_txg).await?;
                prev.add_unique(more.used);
            }
            let gone = match self.free_list().await? {
                Some(free) => {
                    let gone = list.move_to(self, &free, s.prev_snap_txg, tx).await?;
                    self.charge_freeing(gone);
                    gone
                }
                None => return Err(Error::corrupt("the pool has keyed deadlists but no list of blocks to be freed")),
            };
            dir.did_use(Used::Snap, gone.negated());
            let own = Deadlist::open(mos, ObjectId(s.deadlist_obj)).await?;
            list.merge(self, own, tx).await?;
        }
        let dead = list.space().await?;
        next.put_deadlist(list);
        self.remap_snapshot_destroyed(snap, &next, s.prev_snap_txg, tx).await?;

        if next.is_snapshot() {
            // Blocks that only S and the next snapshot shared, freed between that and the one after
            // it.
            let after = self.hold_dataset(ObjectId(next.phys().next_snap_obj)).await?;
            let list = after.take_deadlist().await?;
            let more = list.space_range(self, s.prev_snap_txg, s.creation_txg).await;
            after.put_deadlist(list);
            next.add_unique(more?.used);
            if !key_stays {
                let mut list = head.take_deadlist().await?;
                let removed = list.remove_key(self, s.creation_txg, tx).await;
                head.put_deadlist(list);
                removed?;
                self.remap_remove_key(&head, s.creation_txg, tx).await?;
            }
        } else {
            let n = next.phys();
            let before = prev.as_ref().map_or(0, |p| p.phys().referenced_bytes);
            next.set_unique(n.referenced_bytes.saturating_sub(before.saturating_sub(dead.used.max(0) as u64)));
        }
        if !key_stays {
            self.remove_key_of_clones(&dir, s.creation_txg, tx).await?;
        }

        let names = mos.hold(ObjectId(head.phys().snapnames_zapobj)).await?;
        let name = match snap.snapname() {
            name if name.is_empty() => self.name_of_snapshot(&head, snap.object).await?,
            name => name,
        };
        let of = (format!("{}@{name}", dir.full_name()), snap.object);
        self.core().log_internal_ds("destroy", of, String::new(), tx);
        zap::remove(&names, name.as_bytes(), tx).await?;
        self.count(Counted::Snapshots, &dir, -1, tx).await?;
        self.snapshots_change(&dir, tx).await?;
        self.free_dataset(snap, tx).await
    }

    /// Frees a dataset's object and the objects that it names, and decrements its feature counts.
    pub(crate) async fn free_dataset(&self, ds: &Rc<Dataset>, tx: &Tx) -> Result<()> {
        let mos = self.mos();
        let p = ds.phys();
        for guid in ds.load_features().await?.into_keys() {
            if let Some(id) = FeatureId::by_guid(&guid) {
                self.features().add(id, -1, tx).await?;
            }
        }
        for object in [p.next_clones_obj, p.props_obj, p.userrefs_obj, p.snapnames_zapobj] {
            if object != 0 {
                mos.free(ObjectId(object), tx).await?;
            }
        }
        self.forget_dataset(ds);
        if mos.hold(ds.object).await?.otype() == ObjectType::OTN_ZAP_METADATA {
            self.features().add(FeatureId::ExtensibleDataset, -1, tx).await?;
        }
        mos.free(ds.object, tx).await
    }

    /// The last part of a snapshot's name, found by its object.
    pub(crate) async fn name_of_snapshot(&self, head: &Dataset, object: ObjectId) -> Result<String> {
        let names = self.mos().hold(ObjectId(head.phys().snapnames_zapobj)).await?;
        let found = zap::list(&names).await?.into_iter().find(|e| e.value.as_u64() == Some(object.0));
        let found = found.ok_or_else(|| {
            Error::corrupt(format!("the snapshot in object {object} of '{}' has no name", head.name()))
        })?;
        Ok(String::from_utf8_lossy(&found.name).into_owned())
    }

    /// A deadlist without keys must be scanned: blocks that only S references are freed, the rest
    /// moves to S's own list, which the next dataset takes over.
    async fn split_flat(
        &self,
        snap: &Rc<Dataset>,
        prev: Option<&Rc<Dataset>>,
        list: Deadlist,
        next: &Rc<Dataset>,
        tx: &Tx,
    ) -> Result<Deadlist> {
        let s = snap.phys();
        let zio = self.core().zio.clone();
        let mut own = Deadlist::open(self.mos(), ObjectId(s.deadlist_obj)).await?;
        let mut gone = Space::default();
        let mut shared_with_prev = 0;
        let mut keep = Vec::new();
        for bp in list.all_pointers(self).await?.into_iter().flatten() {
            self.ctx().rt().spend(FREE).await;
            let space = Space::of(&bp, &zio);
            if bp.birth().0 > s.prev_snap_txg {
                gone.add(space);
                self.core().free(&bp, tx.txg());
            } else {
                if prev.is_some_and(|p| bp.birth().0 > p.phys().prev_snap_txg) {
                    shared_with_prev += space.used;
                }
                keep.push(bp);
            }
        }
        own.insert(self, &keep, tx).await?;
        if let Some(prev) = prev {
            prev.add_unique(shared_with_prev);
        }
        snap.dir().did_use(Used::Snap, gone.negated());
        list.free(self, tx).await?;
        next.change(|p| p.deadlist_obj = own.object.0);
        Ok(own)
    }

    /// Removes the key of a txg from the deadlists of the heads cloned later from snapshots of a
    /// directory, and of their clones.
    pub(crate) async fn remove_key_of_clones(&self, dir: &Rc<Dir>, key: u64, tx: &Tx) -> Result<()> {
        let mut todo = vec![dir.clone()];
        let mut seen = BTreeSet::new();
        while let Some(dir) = todo.pop() {
            let clones = dir.phys().clones;
            if clones == 0 || !seen.insert(dir.object) {
                continue;
            }
            for entry in zap::list(&self.mos().hold(ObjectId(clones)).await?).await? {
                let head = self.hold_dataset(ObjectId(entry.value.as_u64().unwrap_or(0))).await?;
                let clone = head.dir();
                if clone.origin_txg() > key {
                    let mut list = head.take_deadlist().await?;
                    let removed = list.remove_key(self, key, tx).await;
                    head.put_deadlist(list);
                    removed?;
                    self.remap_remove_key(&head, key, tx).await?;
                    todo.push(clone);
                }
            }
        }
        Ok(())
    }

    /// Bytes that destroying these snapshots together would free; they are neighbours of one file
    /// system, oldest first.
    pub async fn space_of_snapshots(&self, first: &Dataset, last: &Dataset) -> Result<u64> {
        let (from, upto) = (first.phys(), last.phys());
        let mut sum = Space::default();
        let mut at = ObjectId(from.next_snap_obj);
        let mut seen = BTreeSet::new();
        loop {
            let ds = self.hold_dataset(at).await?;
            let list = Deadlist::open(self.mos(), ObjectId(ds.phys().deadlist_obj)).await?;
            sum.add(list.space_range(self, from.prev_snap_txg, u64::MAX).await?);
            if at.0 == upto.next_snap_obj || !seen.insert(at) || ds.phys().next_snap_obj == 0 {
                return Ok(sum.used.max(0) as u64);
            }
            at = ObjectId(ds.phys().next_snap_obj);
        }
    }

    /// Bytes written to `ds` since the older snapshot `since` (`written@...`).
    pub async fn written_since(&self, ds: &Dataset, since: &Dataset) -> Result<u64> {
        Ok(self.space_since(ds, since).await?.used.max(0) as u64)
    }

    /// Space written to `ds` since the older snapshot `since`: the growth of the referenced space
    /// plus the space freed between.
    pub(crate) async fn space_since(&self, ds: &Dataset, since: &Dataset) -> Result<Space> {
        let mut sum = Space::referenced(&ds.phys());
        sum.add(Space::referenced(&since.phys()).negated());
        let mut at = ds.phys();
        let mut seen = BTreeSet::new();
        loop {
            let list = Deadlist::open(self.mos(), ObjectId(at.deadlist_obj)).await?;
            sum.add(list.space().await?);
            if at.prev_snap_obj == since.object.0 {
                return Ok(sum);
            }
            if at.prev_snap_obj == 0 || !seen.insert(at.prev_snap_obj) {
                return Err(Error::invalid(format!(
                    "'{}' is not an earlier snapshot of '{}'",
                    since.name(),
                    ds.name()
                )));
            }
            at = self.hold_dataset(ObjectId(at.prev_snap_obj)).await?.phys();
        }
    }
}
