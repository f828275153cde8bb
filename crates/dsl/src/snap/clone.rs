//! Clones: file systems that start with the content of a snapshot; and rollback (format page 05
//! section 7).

use std::rc::Rc;

use base::{Error, ErrorKind, ObjectId, Result};
use dmu::Tx;
use ondisk::zil::ZilHeader;
use rt::LocalBoxFuture;

use crate::core::Space;
use crate::create::{ROOT, check_name, check_reservation};
use crate::dataset::Dataset;
use crate::dir::Used;
use crate::free::deadlist::Deadlist;
use crate::pool::DslPool;
use crate::props::{self, PropValue};
use crate::space::SpaceCheck;

impl DslPool {
    /// Makes the file system or volume `name` from a snapshot of the same pool.
    pub async fn clone_snapshot(
        self: &Rc<Self>,
        origin: &str,
        name: &str,
        props: Vec<(String, PropValue)>,
    ) -> Result<Rc<Dataset>> {
        self.clone_snapshot_by(ROOT, origin, name, props).await
    }

    /// As [`DslPool::clone_snapshot`], by the user `creator`, who gets what is granted to creators.
    pub async fn clone_snapshot_by(
        self: &Rc<Self>,
        creator: u32,
        origin: &str,
        name: &str,
        props: Vec<(String, PropValue)>,
    ) -> Result<Rc<Dataset>> {
        check_name(name)?;
        for (prop, _) in &props {
            if !props::find(prop).is_some_and(|p| p.settable()) && !props::is_user_prop(prop) {
                return Err(Error::invalid(format!("'{prop}' is not a property that can be set")));
            }
        }
        let (origin, name) = (origin.to_string(), name.to_string());
        self.sync_task_again(move |pool, tx| -> LocalBoxFuture<'static, Result<Rc<Dataset>>> {
            let (origin, name, props) = (origin.clone(), name.clone(), props.clone());
            Box::pin(async move {
                let made = pool.clone_in(creator, &origin, &name, &props, false, &tx).await?;
                made.ok_or_else(|| Error::invalid("only a trial makes no clone"))
            })
        })
        .await
    }

    /// As [`DslPool::clone_snapshot`], in a task that is running. With `trial` it only makes the
    /// checks.
    pub async fn clone_snapshot_in(
        self: &Rc<Self>,
        origin: &str,
        name: &str,
        props: &[(String, PropValue)],
        trial: bool,
        tx: &Rc<Tx>,
    ) -> Result<Option<Rc<Dataset>>> {
        self.clone_in(ROOT, origin, name, props, trial, tx).await
    }

    async fn clone_in(
        self: &Rc<Self>,
        creator: u32,
        origin: &str,
        name: &str,
        props: &[(String, PropValue)],
        trial: bool,
        tx: &Rc<Tx>,
    ) -> Result<Option<Rc<Dataset>>> {
        let (pool, tx) = (self.clone(), tx.clone());
        let snap = pool.find_snapshot(origin).await?;
        pool.check_new_name(name)?;
        let (parent, last) = pool.parent_for_new(name)?;
        pool.check_parent(&parent).await?;
        for (prop, value) in props {
            pool.check_value(prop, value)?;
        }
        snap.check_received()?;
        // Its block may not be on disk yet, and this txg still changes its deadlist.
        if snap.phys().creation_txg >= tx.txg().0 {
            return Err(ErrorKind::Restart.into());
        }
        // Opened before any change, so that a damaged or locked one is refused.
        snap.objset().await?;
        pool.check_space(SpaceCheck::Normal, 20)?;
        check_reservation(&parent, props)?;
        let grants = pool.grants_at_creation(&parent, creator).await?;
        if trial {
            return Ok(None);
        }
        let made = async {
            let dir = pool.make_dir(Some(&parent), &last, &tx).await?;
            pool.share_crypt(&dir, &snap.dir(), &tx).await?;
            pool.give_grants(&dir, grants, &tx).await?;
            let head = pool.make_head(&dir, Some(&snap), &tx).await?;
            pool.make_livelist(&dir, &tx).await?;
            for (prop, value) in props {
                pool.write_prop(&dir, prop, Some(value), &tx).await?;
            }
            pool.clear_log(&head, &tx).await?;
            let text = format!("origin={origin} ({})", snap.object);
            pool.core().log_internal_ds("clone", (name.to_string(), head.object), text, &tx);
            Ok(Some(head))
        };
        pool.fail_txg_on_error(made.await)
    }

    /// A root block taken from a snapshot may name the log of its head at that time, which does not
    /// belong to this dataset: writes the block without it.
    pub(crate) async fn clear_log(&self, head: &Dataset, tx: &Tx) -> Result<()> {
        let os = head.objset().await?;
        if os.zil_header() != ZilHeader::default() {
            os.set_zil_header(ZilHeader::default(), tx.txg());
        }
        Ok(())
    }

    /// Rolls a file system back to its most recent snapshot, whose full name is given. It must not
    /// be in use, and have no later bookmarks.
    pub async fn rollback(self: &Rc<Self>, snapshot: &str) -> Result<()> {
        let name = snapshot.to_string();
        if let Some((head, _)) = name.split_once('@')
            && let Ok(head) = self.find(head)
        {
            self.free_log(&head).await?;
        }
        self.sync_task_again(move |pool, tx| -> LocalBoxFuture<'static, Result<()>> {
            let name = name.clone();
            Box::pin(async move { pool.rollback_in(&name, false, &tx).await })
        })
        .await
    }

    /// As [`DslPool::rollback`], in a task that is running. With `trial` it only makes the checks.
    pub async fn rollback_in(self: &Rc<Self>, name: &str, trial: bool, tx: &Rc<Tx>) -> Result<()> {
        let (pool, tx) = (self.clone(), tx.clone());
        let snap = pool.find_snapshot(name).await?;
        let head = snap.dir().head().ok_or_else(|| Error::not_found(format!("'{name}' has no head")))?;
        if head.phys().prev_snap_obj != snap.object.0 {
            return Err(Error::new(ErrorKind::Exists, "more recent snapshots or bookmarks exist"));
        }
        let at = snap.phys().creation_txg;
        if pool.bookmarks(&head).await?.iter().any(|m| m.creation_txg() > at) {
            return Err(Error::new(ErrorKind::Exists, "more recent snapshots or bookmarks exist"));
        }
        pool.check_idle(&head, &tx)?;
        if at >= tx.txg().0 {
            return Err(ErrorKind::Restart.into());
        }
        // The snapshot must be readable before the head's blocks are freed.
        snap.objset().await?;
        if !head.objset().await?.zil_header().log.is_hole() {
            return Err(Error::unsupported(format!(
                "dataset '{}' has an intent log that was not replayed: load its key first",
                head.name()
            )));
        }
        // The reservation will be unused again.
        let needed = head.refreservation().min(head.phys().unique_bytes);
        if needed > head.dir().available() {
            return Err(Error::new(ErrorKind::NoSpace, "out of space: there is no room to keep the refreservation"));
        }
        let refquota = head.refquota();
        if refquota != 0 && snap.phys().referenced_bytes > refquota {
            let why = format!(
                "it refers to more than the refquota of '{}' allows: raise or remove the refquota",
                head.name()
            );
            return Err(Error::new(ErrorKind::Quota, why));
        }
        pool.check_space(SpaceCheck::Reserved, 1)?;
        if trial {
            return Ok(());
        }
        let done = pool.roll_back(&head, &snap, &tx).await;
        pool.fail_txg_on_error(done)
    }

    async fn roll_back(&self, head: &Rc<Dataset>, snap: &Rc<Dataset>, tx: &Tx) -> Result<()> {
        let (dir, h, s) = (head.dir(), head.phys(), snap.phys());
        let text = format!("parent={}", dir.name());
        self.core().log_internal_ds("clone swap", (head.name(), head.object), text, tx);
        self.drop_livelist(&dir, tx).await?;
        self.load_marks(head).await?;
        self.drop_remaps(head, tx).await?;
        let old = head.take_deadlist().await?;
        // Space of the head that it does not share with the snapshot.
        let mut own = Space::referenced(&h);
        own.add(Space::referenced(&s).negated());
        own.add(old.space().await?);
        // Blocks on its deadlist belong to it again.
        let back = old.space_range(self, dir.origin_txg(), u64::MAX).await?;
        let keys = if old.is_flat() {
            self.chain_keys(snap.object).await?.into_iter().filter(|k| *k < s.creation_txg).collect()
        } else {
            old.keys().collect::<Vec<u64>>()
        };
        head.set_objset(None);
        self.free_head_blocks(head, own, tx).await?;
        dir.transfer(back.used, Used::Snap, Used::Head);
        let new = Deadlist::create(self, keys, tx).await?;
        old.free(self, tx).await?;
        head.change(|p| {
            p.deadlist_obj = new.object.0;
            p.bp = s.bp;
            p.referenced_bytes = s.referenced_bytes;
            p.compressed_bytes = s.compressed_bytes;
            p.uncompressed_bytes = s.uncompressed_bytes;
        });
        head.put_deadlist(new);
        head.set_unique(0);
        snap.change(|p| p.unique_bytes = 0);
        self.reset_marks(head, s.creation_txg, tx).await?;
        snap.load_features().await?;
        self.set_redaction(head, snap.redaction().as_deref(), tx).await?;
        self.clear_log(head, tx).await
    }

    /// Names of the clones of a snapshot, in order.
    pub async fn clones_of(&self, snap: &Dataset) -> Result<Vec<Rc<Dataset>>> {
        let p = snap.phys();
        if p.num_children <= 1 {
            return Ok(Vec::new());
        }
        let mut out: Vec<Rc<Dataset>> =
            self.all().into_iter().filter(|d| d.dir().phys().origin_obj == snap.object.0).collect();
        out.sort_by_key(|d| d.name());
        Ok(out)
    }

    /// The snapshot that a head was cloned from; none for an ordinary file system.
    pub async fn origin_of(&self, head: &Dataset) -> Result<Option<Rc<Dataset>>> {
        let object = ObjectId(head.dir().phys().origin_obj);
        if object.0 == 0 || object == self.origin_snap() || head.is_snapshot() {
            return Ok(None);
        }
        let snap = self.hold_dataset(object).await?;
        if snap.snapname().is_empty()
            && let Some(of) = snap.dir().head()
        {
            snap.set_snapname(&self.name_of_snapshot(&of, object).await?);
        }
        Ok(Some(snap))
    }
}
