//! Destroying a file system (format page 05 section 8).
//!
//! One txg removes its name, dataset and directory. Its tree of blocks goes to the bptree, which is
//! freed in the background, or its livelist to those of destroyed clones; without the feature
//! `async_destroy` its blocks are freed in the same txg.

use std::rc::Rc;

use base::{Error, ErrorKind, ObjectId, Result};
use dmu::{Tx, zap};
use ondisk::feature::FeatureId;
use ondisk::object_type::ObjectType;
use rt::LocalBoxFuture;

use crate::core::Space;
use crate::dataset::Dataset;
use crate::dir::{Dir, Used};
use crate::pool::DslPool;
use crate::space::SpaceCheck;

impl DslPool {
    /// Destroys a file system without children, snapshots or users.
    pub async fn destroy_fs(self: &Rc<Self>, name: &str) -> Result<()> {
        let name = name.to_string();
        self.free_log(&*self.find(&name)?).await?;
        self.sync_task_again(move |pool, tx| -> LocalBoxFuture<'static, Result<()>> {
            let name = name.clone();
            Box::pin(async move { pool.destroy_fs_in(&name, false, &tx).await })
        })
        .await
    }

    /// As [`DslPool::destroy_fs`], in a task that is running. With `trial` it only makes the
    /// checks.
    pub async fn destroy_fs_in(self: &Rc<Self>, name: &str, trial: bool, tx: &Rc<Tx>) -> Result<()> {
        let (pool, tx) = (self.clone(), tx.clone());
        let ds = pool.find(name)?;
        pool.check_destroy(&ds, &tx).await?;
        if trial {
            return Ok(());
        }
        let removed = pool.remove_head(&ds, &tx).await;
        pool.fail_txg_on_error(removed)
    }

    async fn check_destroy(&self, ds: &Rc<Dataset>, tx: &Tx) -> Result<()> {
        let (name, dir) = (ds.name(), ds.dir());
        if dir.parent().is_none() {
            return Err(Error::invalid(format!("'{name}' is a pool: use 'zpool destroy {name}'")));
        }
        self.check_idle(ds, tx)?;
        if let Some(child) = dir.children().first() {
            let why = format!(
                "dataset '{name}' has children such as '{}': use -r to destroy them as well",
                child.full_name()
            );
            return Err(Error::new(ErrorKind::NotEmpty, why));
        }
        if self.has_snapshots(ds).await? {
            let why = format!("dataset '{name}' has snapshots: use -r to destroy them as well");
            return Err(Error::new(ErrorKind::NotEmpty, why));
        }
        self.check_lists_idle(ds).await?;
        if !ds.phys().bp.is_hole() && !ds.zil_header().await?.log.is_hole() {
            return Err(Error::unsupported(format!(
                "dataset '{name}' has an intent log that was not replayed: load its key first"
            )));
        }
        self.check_space(SpaceCheck::ExtraReserved, 0)
    }

    /// Frees the intent log of a head that a crash left and no mount replayed: its records are not
    /// needed any more. The log of an encrypted head stays if the key is not loaded.
    pub(crate) async fn free_log(&self, ds: &Dataset) -> Result<()> {
        if !self.is_writable() || ds.is_used() || ds.phys().bp.is_hole() || ds.zil_header().await?.log.is_hole() {
            return Ok(());
        }
        match ds.objset().await {
            Ok(os) => zil::replay::destroy(&os).await,
            Err(_) => Ok(()),
        }
    }

    /// Checks that a head is not in use (`Busy`) and has no changes that are not on disk
    /// (`Restart`).
    pub(crate) fn check_idle(&self, ds: &Dataset, tx: &Tx) -> Result<()> {
        if ds.is_used() {
            return Err(Error::new(
                ErrorKind::Busy,
                format!("dataset is busy: '{}' is in use, unmount it first", ds.name()),
            ));
        }
        let txg = tx.txg();
        let dirty = |os: dmu::Objset| (0..3).any(|n| os.is_dirty(base::Txg(txg.0 + n)));
        if ds.phys().bp.birth() >= txg || ds.opened().is_some_and(dirty) {
            return Err(ErrorKind::Restart.into());
        }
        Ok(())
    }

    /// Frees the blocks that only the head references: in the background, or now. `space` is their
    /// space.
    pub(crate) async fn free_head_blocks(&self, ds: &Dataset, space: Space, tx: &Tx) -> Result<()> {
        let (phys, dir) = (ds.phys(), ds.dir());
        dir.did_use(Used::Head, space.negated());
        if phys.bp.is_hole() || phys.bp.birth().0 <= phys.prev_snap_txg {
            return Ok(());
        }
        if self.features().is_enabled(FeatureId::AsyncDestroy) {
            self.add_tree(phys.bp, phys.prev_snap_txg, space, tx).await
        } else {
            self.free_tree_now(phys.bp, phys.prev_snap_txg, tx).await
        }
    }

    pub(crate) async fn remove_head(self: &Rc<Self>, ds: &Rc<Dataset>, tx: &Tx) -> Result<()> {
        let dir = ds.dir();
        let parent = dir.parent().expect("check_destroy refuses the root");
        self.core().log_internal_ds("destroy", (ds.name(), ds.object), String::new(), tx);
        ds.set_refreservation(0);
        if dir.phys().reserved != 0 {
            dir.set_reservation(0);
        }
        self.core().notify_watch(|w| w.destroyed(ds.object, None));
        self.drop_bookmarks(ds, tx).await?;
        if !self.free_by_livelist(&dir, tx).await? {
            self.free_head_blocks(ds, Space::used_by(&dir.phys()), tx).await?;
        }

        let phys = ds.phys();
        // Before pool version 11 only clones have one.
        let origin = match phys.prev_snap_obj {
            0 => None,
            object => Some(self.hold_dataset(ObjectId(object)).await?),
        };
        if let Some(origin) = &origin {
            origin.change(|p| p.num_children = p.num_children.saturating_sub(1));
            remove_listed(self, origin.phys().next_clones_obj, ds.object, tx).await?;
            remove_listed(self, origin.dir().phys().clones, ds.object, tx).await?;
        }
        ds.take_deadlist().await?.free(self, tx).await?;
        self.drop_remaps(ds, tx).await?;
        ds.set_objset(None);
        self.free_dataset(ds, tx).await?;
        self.remove_dir(&dir, &parent, tx).await?;
        match &origin {
            Some(origin) => self.destroy_if_deferred(origin, tx).await,
            None => Ok(()),
        }
    }

    async fn remove_dir(&self, dir: &Rc<Dir>, parent: &Rc<Dir>, tx: &Tx) -> Result<()> {
        let mos = self.mos();
        let p = dir.phys();
        self.count_dir(&dir.name(), parent, -1, tx).await?;
        self.drop_crypt(dir, tx).await?;
        self.drop_grants(dir, tx).await?;
        if mos.hold(dir.object).await?.otype() == ObjectType::OTN_ZAP_METADATA {
            self.features().add(FeatureId::ExtensibleDataset, -1, tx).await?;
        }
        for object in [p.child_dir_zapobj, p.props_zapobj, p.clones] {
            if object != 0 {
                mos.free(ObjectId(object), tx).await?;
            }
        }
        zap::remove(&mos.hold(ObjectId(parent.phys().child_dir_zapobj)).await?, dir.name().as_bytes(), tx).await?;
        mos.free(dir.object, tx).await?;
        dir.set_head(None);
        dir.detach();
        self.forget_dir(dir);
        Ok(())
    }
}

/// Removes a number from a ZAP of numbers, if the ZAP exists and contains it.
pub(crate) async fn remove_listed(pool: &DslPool, list: u64, object: ObjectId, tx: &Tx) -> Result<()> {
    if list == 0 {
        return Ok(());
    }
    match zap::remove_int(&pool.mos().hold(ObjectId(list)).await?, object.0, tx).await {
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(()),
        other => other,
    }
}
