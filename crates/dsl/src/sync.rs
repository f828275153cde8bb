//! The sync of the DSL in a txg, and sync tasks.
//!
//! Each pass of a txg (format page 06 section 9): dirty object sets are written, the change of the
//! MOS's space in the pass before is charged to `$MOS`, sync tasks run and background frees
//! continue (in the first pass), and changed records of directories and datasets are written to
//! their bonuses. Then `spa` writes the MOS and the space maps, and calls again until nothing is
//! dirty.
//!
//! Only the sync loop changes the MOS. All other changes are *sync tasks* ([`DslPool::sync_task`]),
//! whose callers wait for the txg.

use std::rc::Rc;

use base::{Error, ErrorKind, ObjectId, Result, Txg};
use dmu::{Dnode, Tx, zap};
use ondisk::feature::FeatureId;
use ondisk::object_type::ObjectType;
use rt::LocalBoxFuture;
use rt::sync::oneshot;
use zio::WriteDone;

use crate::core::Space;
use crate::dataset::Dataset;
use crate::dir::Used;
use crate::free::deadlist::EmptyRefs;
use crate::pool::DslPool;
use crate::space::{self, Admission, SpaceCheck};

/// Txgs in which a task may fail with `Restart` before it gives up.
const RESTARTS_MAX: u32 = 100;

impl DslPool {
    /// Runs `task` in the syncing context of the next txg and waits until that txg is on disk. The
    /// task must make all checks before its first change: an error must leave the MOS unchanged.
    pub async fn sync_task<T: 'static>(
        self: &Rc<Self>,
        task: impl FnOnce(Rc<DslPool>, Rc<Tx>) -> LocalBoxFuture<'static, Result<T>> + 'static,
    ) -> Result<T> {
        if !self.is_writable() {
            return Err(Error::new(
                ErrorKind::ReadOnly,
                format!("pool '{}' is imported read-only", self.root().name()),
            ));
        }
        let asked = self.txg().now();
        let (sender, receiver) = oneshot::<Result<T>>();
        let hold = self.txg().hold_open().await;
        let txg = hold.txg;
        self.tasks[txg.slot()].borrow_mut().push_back(Box::new(move |pool, tx| {
            Box::pin(async move {
                let result = task(pool, tx).await;
                // The caller may have been dropped; the change stays.
                let _ = sender.send(result);
            })
        }));
        drop(hold);
        if !planted!(ToldEarly) {
            self.txg().wait_synced(txg).await?;
        }
        self.txg().admin_done(txg, asked);
        receiver
            .await
            .unwrap_or_else(|| Err(Error::new(ErrorKind::Interrupted, "the pool stopped before the change was made")))
    }

    /// As [`DslPool::sync_task`]; a task that fails with `Restart` runs again in the next txg.
    pub(crate) async fn sync_task_again<T: 'static>(
        self: &Rc<Self>,
        task: impl Fn(Rc<DslPool>, Rc<Tx>) -> LocalBoxFuture<'static, Result<T>> + Clone + 'static,
    ) -> Result<T> {
        let mut tries = 0;
        loop {
            let once = task.clone();
            match self.sync_task(move |pool, tx| once(pool, tx)).await {
                Err(e) if e.kind() == ErrorKind::Restart && tries < RESTARTS_MAX => tries += 1,
                Err(e) if e.kind() == ErrorKind::Restart => {
                    return Err(Error::new(ErrorKind::Busy, "the pool is changed all the time: try again later"));
                }
                other => return other,
            }
        }
    }

    /// After the first change of a task an error must fail the whole txg, so that the state on disk
    /// stays consistent.
    pub(crate) fn fail_txg_on_error<T>(&self, result: Result<T>) -> Result<T> {
        if let Err(e) = &result {
            self.core().fail(e.clone());
        }
        result
    }

    /// Fails with `NoSpace` if a task that changes `blocks` blocks has no room (page 14 section 2),
    /// and with `Restart` if deferred frees will make room.
    pub(crate) fn check_space(&self, check: SpaceCheck, blocks: u64) -> Result<()> {
        match space::admit_task(self.space(), self.root().phys().used_bytes, check, blocks) {
            Admission::Admit => Ok(()),
            Admission::Restart => Err(ErrorKind::Restart.into()),
            Admission::Refuse(kind) => {
                let why = format!("out of space: pool '{}' has no room for this change", self.root().name());
                Err(Error::new(kind, why))
            }
        }
    }

    /// True if the DSL has unwritten changes in `txg`.
    pub fn is_dirty(&self, txg: Txg) -> bool {
        !self.tasks[txg.slot()].borrow().is_empty()
            || self.core().has_mos_delta()
            || self.registry().is_dirty()
            || self.registry().any_changed(txg, |ds| ds.opened().is_some_and(|os| os.is_dirty(txg)))
    }

    /// Writes all changes of `txg`; returns the device writes in flight.
    pub async fn sync(self: &Rc<Self>, txg: Txg, pass: u32) -> Result<Vec<WriteDone>> {
        let tx = Rc::new(Tx::syncing(txg));
        self.core().pass.set(pass);
        let mut done = Vec::new();
        self.sync_datasets(txg, pass, &tx, &mut done).await?;
        let delta = self.core().take_mos_delta();
        if delta != Space::default()
            && let Some(mos_dir) = self.root().child("$MOS")
        {
            mos_dir.did_use(Used::Head, delta);
        }
        if pass == 1 {
            loop {
                let next = self.tasks[txg.slot()].borrow_mut().pop_front();
                let Some(task) = next else { break };
                task(self.clone(), tx.clone()).await;
            }
            self.condense_livelists(&tx).await?;
            self.process_async_destroys(&tx).await?;
        }
        self.write_records(&tx).await?;
        Ok(done)
    }

    async fn sync_datasets(&self, txg: Txg, pass: u32, tx: &Tx, done: &mut Vec<WriteDone>) -> Result<()> {
        for ds in self.registry().changed_in(txg) {
            let Some(os) = ds.opened() else { continue };
            if !os.is_dirty(txg) {
                continue;
            }
            let place = || format!("dataset '{}'", ds.name());
            self.load_marks(&ds).await.map_err(|e| e.at(place()))?;
            if let Some(root) = os.sync(txg, pass).await.map_err(|e| e.at(place()))? {
                ds.change(|p| p.bp = root.bp);
                done.extend(root.done);
            }
            self.activate_features(&ds, tx).await?;
            self.write_progress(&ds, txg, tx).await.map_err(|e| e.at(place()))?;
            self.write_deadlisted(&ds, tx).await.map_err(|e| e.at(place()))?;
            self.write_livelist(&ds, tx).await.map_err(|e| e.at(place()))?;
            self.write_marks(&ds, tx).await.map_err(|e| e.at(place()))?;
        }
        Ok(())
    }

    /// Writes the blocks that a head killed and its last snapshot still references to its deadlist
    /// (format page 05 section 5).
    async fn write_deadlisted(&self, ds: &Rc<Dataset>, tx: &Tx) -> Result<()> {
        let dead = ds.take_deadlisted();
        if dead.is_empty() {
            return Ok(());
        }
        let prev = self.hold_dataset(ObjectId(ds.phys().prev_snap_obj)).await?;
        let phys = prev.phys();
        if phys.next_snap_obj == ds.object.0 {
            let newer = dead.iter().filter(|bp| bp.birth().0 > phys.prev_snap_txg);
            prev.add_unique(newer.map(|bp| Space::of(bp, &self.core().zio).used).sum());
        }
        let mut list = ds.take_deadlist().await?;
        let result = list.insert(self, &dead, tx).await;
        ds.put_deadlist(list);
        result
    }

    /// Stores and counts the features that a dataset began or ceased to use in this txg.
    pub(crate) async fn activate_features(&self, ds: &Dataset, tx: &Tx) -> Result<()> {
        for guid in ds.take_new_features() {
            let Some(id) = FeatureId::by_guid(guid) else { continue };
            let dn = self.zapify(ds.object, tx).await?;
            if zap::lookup_u64(&dn, guid.as_bytes()).await?.is_none() {
                zap::add_u64(&dn, guid.as_bytes(), 0, tx).await?;
                self.features().add(id, 1, tx).await?;
            }
            ds.note_feature(guid);
        }
        for guid in ds.take_old_features() {
            let Some(id) = FeatureId::by_guid(guid) else { continue };
            let dn = self.mos().hold(ds.object).await?;
            if dn.otype() == ObjectType::OTN_ZAP_METADATA && zap::lookup_u64(&dn, guid.as_bytes()).await?.is_some() {
                zap::remove(&dn, guid.as_bytes(), tx).await?;
                self.features().add(id, -1, tx).await?;
            }
            ds.set_feature(guid, None);
        }
        Ok(())
    }

    /// Marks a dataset as redacted by the snapshots with these guids, or as not redacted (syncing
    /// context).
    pub(crate) async fn set_redaction(&self, ds: &Dataset, snaps: Option<&[u64]>, tx: &Tx) -> Result<()> {
        let id = FeatureId::RedactedDatasets;
        let guid = id.get().guid;
        let had = ds.load_features().await?.contains_key(guid);
        let value = snaps.map(zap::ZapValue::from_u64s);
        match &value {
            Some(value) => zap::update(&self.zapify(ds.object, tx).await?, guid.as_bytes(), value, tx).await?,
            None if had => zap::remove(&self.mos().hold(ds.object).await?, guid.as_bytes(), tx).await?,
            None => return Ok(()),
        }
        if had != value.is_some() {
            self.features().add(id, if had { -1 } else { 1 }, tx).await?;
        }
        ds.set_feature(guid, value);
        Ok(())
    }

    /// Gives a directory or dataset object a ZAP for named values (format page 03 section 7).
    pub(crate) async fn zapify(&self, object: ObjectId, tx: &Tx) -> Result<Dnode> {
        let dn = self.mos().hold(object).await?;
        if dn.otype() != ObjectType::OTN_ZAP_METADATA {
            dn.set_type(ObjectType::OTN_ZAP_METADATA, tx)?;
            zap::init(&dn, 0, tx).await?;
            self.features().add(FeatureId::ExtensibleDataset, 1, tx).await?;
        }
        Ok(dn)
    }

    /// Writes the changed records.
    pub(crate) async fn write_records(&self, tx: &Tx) -> Result<()> {
        for dir in self.registry().take_dirs() {
            self.mos().hold(dir.object).await?.set_bonus(&dir.phys().to_bytes(), tx)?;
        }
        for ds in self.registry().take_datasets() {
            self.mos().hold(ds.object).await?.set_bonus(&ds.phys().to_bytes(), tx)?;
        }
        Ok(())
    }

    /// The txg is on disk: ends the charges of its transactions.
    pub fn synced(&self, txg: Txg) {
        for dir in self.registry().take_charged(txg) {
            dir.synced(txg);
        }
        for ds in self.registry().take_changed(txg) {
            ds.synced(txg);
        }
        if self.has_freeing() {
            self.txg().kick();
        }
    }

    /// The shared empty list, made on first use without counting a reference; `None` if the feature
    /// is off (format page 15 section 1).
    pub(crate) async fn shared_empty(&self, tx: &Tx) -> Result<Option<ObjectId>> {
        if !self.features().is_enabled(FeatureId::EmptyBpobj) {
            return Ok(None);
        }
        if self.empty_bpobj.get().is_none() {
            let object = dmu::bpobj::create(self.mos(), ondisk::bpobj::BPOBJ_BLKSZ, tx).await?;
            zap::add_u64(self.directory(), b"empty_bpobj", object.0, tx).await?;
            self.empty_bpobj.set(Some(object));
        }
        Ok(self.empty_bpobj.get())
    }

    /// True for the shared empty list.
    pub(crate) fn is_shared_empty(&self, list: ObjectId) -> bool {
        self.empty_bpobj.get() == Some(list)
    }

    /// Begins to count references to the shared empty list.
    pub(crate) fn empty_refs(&self) -> EmptyRefs {
        EmptyRefs::default()
    }

    /// Adds `delta` to the references of the shared empty list; frees it at 0.
    pub(crate) async fn count_empty(&self, delta: i64, tx: &Tx) -> Result<()> {
        if delta != 0 {
            self.features().add(FeatureId::EmptyBpobj, delta, tx).await?;
        }
        if let Some(object) = self.empty_bpobj.get()
            && !self.features().is_active(FeatureId::EmptyBpobj)
        {
            zap::remove(self.directory(), b"empty_bpobj", tx).await?;
            self.empty_bpobj.set(None);
            dmu::bpobj::free(self.mos(), object, tx).await?;
        }
        Ok(())
    }

    /// An empty list: a reference to the shared one, or a private list.
    pub(crate) async fn empty_list(&self, tx: &Tx) -> Result<ObjectId> {
        let mut refs = self.empty_refs();
        let list = refs.add_ref(self, tx).await?;
        refs.write_count(self, tx).await?;
        Ok(list)
    }

    /// Drops an empty list: a reference to the shared one, or the object itself.
    pub(crate) async fn drop_empty_list(&self, object: ObjectId, tx: &Tx) -> Result<()> {
        if self.is_shared_empty(object) {
            self.count_empty(-1, tx).await
        } else {
            dmu::bpobj::free(self.mos(), object, tx).await
        }
    }
}
