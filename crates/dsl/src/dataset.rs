//! Datasets: an object set with its place in the tree, its space figures and its features.
//!
//! A *head* is written to; a *snapshot* never. The object set is opened on first use. While a txg
//! syncs, the object set reports every block that is born or killed to [`Account`], which keeps the
//! figures of the dataset and of its directory and frees blocks without other references (format
//! page 05 section 5).

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::{Rc, Weak};

use base::{Error, ErrorKind, ObjectId, Result, Txg};
use codec::{ChecksumAlgo, Compression};
use dmu::zap::{self, ZapValue};
use dmu::{
    BlockAccounting, DmuCtx, FeatureUse, Objset, ObjsetHooks, ObjsetProps, Prefetch, PrimaryCache, RedundantMetadata,
    Reservation, SpaceGate, Tx, TxSpace,
};
use ondisk::blkptr::Blkptr;
use ondisk::dsl::{DS_FLAG_DEFER_DESTROY, DS_FLAG_INCONSISTENT, DslDatasetPhys};
use ondisk::feature::FeatureId;
use ondisk::object_type::ObjectType;
use ondisk::objset::ObjsetType;
use zio::DedupMode;

use crate::core::{Core, Space, change};
use crate::dir::{Dir, Used};
use crate::free::deadlist::Deadlist;
use crate::free::livelist::Changes;
use crate::receive::Progress;
use crate::snap::bookmark::FreedMark;

/// A head or snapshot.
pub struct Dataset {
    /// Its object in the MOS.
    pub object: ObjectId,
    account: Rc<Account>,
    snapshot: bool,
    /// The last part of a snapshot's name, if known.
    snapname: RefCell<Option<String>>,
    mos: Objset,
    ctx: DmuCtx,
    objset: RefCell<Option<Objset>>,
    deadlist: RefCell<Option<Deadlist>>,
    writable: bool,
    opening: rt::sync::Semaphore,
    users: Cell<u32>,
    /// How many [`CloneSource`] there are.
    cloning: Cell<u32>,
    gone: Cell<bool>,
    /// The type of the object set, if it was read alone.
    os_type: Cell<Option<ObjsetType>>,
    /// How far a receive that can be resumed came in each txg.
    progress: [Cell<Option<Progress>>; base::TXG_SIZE],
}

/// A dataset that is in use as long as this lives.
pub(crate) struct Use(Rc<Dataset>);

impl Use {
    /// Begins a use.
    pub(crate) fn of(ds: &Rc<Dataset>) -> Use {
        ds.begin_use();
        Use(ds.clone())
    }
    /// The dataset.
    pub(crate) fn dataset(&self) -> &Rc<Dataset> {
        &self.0
    }
}

/// A snapshot whose blocks are being cloned. It is not destroyed as long as this lives: the
/// destruction waits.
pub struct CloneSource(Rc<Dataset>);

impl CloneSource {
    /// Begins to clone out of a snapshot; None if it is destroyed, or is to be.
    pub fn of(ds: &Rc<Dataset>) -> Option<CloneSource> {
        if ds.is_gone() || ds.phys().flags & DS_FLAG_DEFER_DESTROY != 0 {
            return None;
        }
        ds.cloning.set(ds.cloning.get() + 1);
        Some(CloneSource(ds.clone()))
    }
}

impl Drop for CloneSource {
    fn drop(&mut self) {
        self.0.cloning.set(self.0.cloning.get() - 1);
    }
}

impl std::ops::Deref for Use {
    type Target = Dataset;
    fn deref(&self) -> &Dataset {
        &self.0
    }
}

impl Drop for Use {
    fn drop(&mut self) {
        self.0.end_use();
    }
}

/// The part of a dataset that its object set calls.
pub struct Account {
    core: Rc<Core>,
    owner: Weak<Dataset>,
    dir: RefCell<Rc<Dir>>,
    phys: RefCell<DslDatasetPhys>,
    /// Feature entries of the dataset's ZAP; `None` before they are read.
    features: RefCell<Option<BTreeMap<String, ZapValue>>>,
    new_features: RefCell<BTreeSet<&'static str>>,
    /// Features that it uses no more, to be removed by the sync.
    old_features: RefCell<BTreeSet<&'static str>>,
    /// Killed blocks that an older snapshot still holds.
    deadlisted: RefCell<Vec<Blkptr>>,
    /// What the livelist of a clone does not have yet.
    live: RefCell<Changes>,
    /// Bookmarks that count the space freed after them.
    marks: RefCell<Vec<FreedMark>>,
    marks_loaded: Cell<bool>,
    refquota: Cell<u64>,
    refreservation: Cell<u64>,
    in_flight: [Cell<u64>; base::TXG_SIZE],
    /// The txgs in whose lists of changed heads it is.
    listed: [Cell<Txg>; base::TXG_SIZE],
}

impl Account {
    fn change<R>(&self, f: impl FnOnce(&mut DslDatasetPhys) -> R) -> R {
        if let Some(owner) = self.owner.upgrade() {
            self.core.registry.dataset_dirty(owner);
        }
        f(&mut self.phys.borrow_mut())
    }

    /// Sets the unique space and adjusts the unused refreservation (format page 05 section 5).
    fn set_unique(&self, unique: u64) {
        let old = self.change(|p| std::mem::replace(&mut p.unique_bytes, unique));
        let reserved = self.refreservation.get();
        let delta = change(reserved.saturating_sub(old), reserved.saturating_sub(unique));
        if delta != 0 {
            self.dir.borrow().did_use(Used::RefRsrv, Space { used: delta, ..Space::default() });
        }
    }
    fn add_unique(&self, used: i64) {
        let unique = self.phys.borrow().unique_bytes;
        self.set_unique(unique.saturating_add_signed(used));
    }
}

fn add_space(p: &mut DslDatasetPhys, s: Space) {
    p.referenced_bytes = p.referenced_bytes.saturating_add_signed(s.used);
    p.compressed_bytes = p.compressed_bytes.saturating_add_signed(s.compressed);
    p.uncompressed_bytes = p.uncompressed_bytes.saturating_add_signed(s.uncompressed);
}

impl Account {
    /// Whether blocks of the head may belong to a snapshot.
    fn has_snapshot(&self) -> bool {
        // Every head has the empty snapshot of the pool's first txg before it.
        self.phys.borrow().prev_snap_txg > 1
    }

    /// The unused refreservation.
    fn unused_refreservation(&self) -> u64 {
        self.refreservation.get().saturating_sub(self.phys.borrow().unique_bytes)
    }

    /// The object set has changes in `txg`, or will have some: the sync visits it.
    fn list(&self, txg: Txg) {
        let listed = &self.listed[txg.slot()];
        if listed.get() != txg
            && let Some(owner) = self.owner.upgrade()
        {
            listed.set(txg);
            self.core.registry.changed(owner, txg);
        }
    }

    fn all_in_flight(&self) -> u64 {
        self.in_flight.iter().map(Cell::get).fold(0, u64::saturating_add)
    }

    /// Whether changes in flight take of the refreservation.
    fn refreservation_in_flight(&self) -> bool {
        self.unused_refreservation() > 0 && self.all_in_flight() > 0
    }

    /// The part of a charge of `bytes` beyond the unused refreservation.
    fn beyond_refreservation(&self, bytes: u64) -> u64 {
        bytes.saturating_add(self.all_in_flight()).saturating_sub(self.unused_refreservation()).min(bytes)
    }
}

/// Whether the livelist of a clone in `dir` must name a block (format page 15 section 3).
fn is_live_listed(dir: &Dir, bp: &Blkptr) -> bool {
    dir.livelist().is_some() && bp.birth().0 > dir.origin_txg() && !bp.is_hole() && !bp.is_embedded()
}

impl BlockAccounting for Account {
    fn born(&self, bp: &Blkptr, _txg: Txg) {
        let space = Space::of(bp, &self.core.zio);
        self.change(|p| add_space(p, space));
        let dir = self.dir.borrow();
        dir.did_use(Used::Head, space);
        if is_live_listed(&dir, bp) {
            self.live.borrow_mut().born.push(*bp);
        }
        drop(dir);
        self.add_unique(space.used);
    }

    fn kill(&self, bp: &Blkptr, txg: Txg) {
        let space = Space::of(bp, &self.core.zio);
        // Nothing was counted for what redaction removed.
        if bp.is_hole() || bp.is_redacted() {
            return;
        }
        let (birth, last_snap) = (bp.birth().0, self.phys.borrow().prev_snap_txg);
        self.change(|p| add_space(p, space.negated()));
        for mark in &mut *self.marks.borrow_mut() {
            mark.killed(birth, last_snap, space);
        }
        let dir = self.dir.borrow();
        if is_live_listed(&dir, bp) && !planted!(KillUnlisted) {
            self.live.borrow_mut().killed.push(*bp);
        }
        if birth > last_snap {
            dir.did_use(Used::Head, space.negated());
            self.add_unique(-space.used);
            self.core.free(bp, txg);
        } else {
            if birth > dir.origin_txg() {
                dir.transfer(space.used, Used::Head, Used::Snap);
            }
            self.deadlisted.borrow_mut().push(*bp);
        }
    }
}

impl SpaceGate for Account {
    fn reserve(&self, bytes: u64, kind: TxSpace, txg: Txg) -> Result<Reservation> {
        let refquota = self.refquota.get();
        let dir = self.dir.borrow();
        if refquota != 0 && kind == TxSpace::Normal {
            let referenced = self.phys.borrow().referenced_bytes;
            let in_flight = self.all_in_flight();
            // Changes in flight may free space: wait for them.
            if referenced >= refquota && in_flight > 0 {
                return Err(ErrorKind::Restart.into());
            }
            if referenced >= refquota {
                return Err(Error::new(ErrorKind::Quota, format!("the refquota of '{}' is used up", dir.full_name())));
            }
            if referenced.saturating_add(in_flight) >= refquota.saturating_add(refquota >> 5) {
                return Err(ErrorKind::Restart.into());
            }
        }
        // This dataset may use its unused refreservation.
        let beyond = self.beyond_refreservation(bytes);
        let mut charges = Vec::new();
        if beyond > 0 || self.unused_refreservation() == 0 {
            match dir.reserve(beyond, kind, txg, &mut charges) {
                // What is in flight is charged with its worst case, which the refreservation
                // covers: when it is on disk there will be more left of that.
                Err(e) if e.kind() == ErrorKind::NoSpace && self.refreservation_in_flight() => {
                    return Err(ErrorKind::Restart.into());
                }
                reserved => reserved?,
            }
        }
        self.list(txg);
        let slot = &self.in_flight[txg.slot()];
        slot.set(slot.get().saturating_add(bytes));
        let owner = self.owner.clone();
        Ok(Reservation(Some(Box::new(move || {
            for (dir, bytes) in charges {
                dir.unreserve(bytes, txg);
            }
            if let Some(owner) = owner.upgrade() {
                let slot = &owner.account.in_flight[txg.slot()];
                slot.set(slot.get().saturating_sub(bytes));
            }
        }))))
    }

    fn will_use(&self, bytes: u64, txg: Txg) {
        // The first change of an object set in a txg is charged.
        self.list(txg);
        let beyond = self.beyond_refreservation(bytes);
        let slot = &self.in_flight[txg.slot()];
        slot.set(slot.get().saturating_add(bytes));
        self.dir.borrow().will_use(beyond, txg);
    }

    fn will_kill(&self, bytes: u64, txg: Txg) {
        if self.has_snapshot() {
            self.will_use(bytes, txg);
        }
    }

    fn take_log_block(&self, bytes: u64, txg: Txg) -> bool {
        let mut root = self.dir.borrow().clone();
        while let Some(parent) = root.parent() {
            root = parent;
        }
        root.take_log_block(bytes, txg)
    }
}

impl FeatureUse for Account {
    fn activate(&self, feature_guid: &'static str, _txg: Txg) {
        if self.features.borrow().as_ref().is_none_or(|f| !f.contains_key(feature_guid)) {
            self.new_features.borrow_mut().insert(feature_guid);
        }
        self.old_features.borrow_mut().remove(feature_guid);
    }
    fn deactivate(&self, feature_guid: &'static str, _txg: Txg) {
        self.new_features.borrow_mut().remove(feature_guid);
        self.old_features.borrow_mut().insert(feature_guid);
    }
}

/// The relations of a new handle.
pub(crate) struct Place<'a> {
    pub dir: Rc<Dir>,
    pub mos: &'a Objset,
    pub core: &'a Rc<Core>,
    pub ctx: &'a DmuCtx,
    pub writable: bool,
}

/// What a value of `primarycache` or `secondarycache` lets in.
fn cache_of(value: u64) -> PrimaryCache {
    match value {
        0 => PrimaryCache::None,
        1 => PrimaryCache::Metadata,
        _ => PrimaryCache::All,
    }
}

impl Dataset {
    pub(crate) fn new(
        object: ObjectId,
        phys: DslDatasetPhys,
        features: Option<BTreeMap<String, ZapValue>>,
        place: Place<'_>,
    ) -> Rc<Dataset> {
        let snapshot = phys.is_snapshot();
        let ds = Rc::new_cyclic(|owner| Dataset {
            object,
            account: Rc::new(Account {
                core: place.core.clone(),
                owner: owner.clone(),
                dir: RefCell::new(place.dir),
                phys: RefCell::new(phys),
                features: RefCell::new(features),
                new_features: RefCell::default(),
                old_features: RefCell::default(),
                deadlisted: RefCell::default(),
                live: RefCell::default(),
                marks: RefCell::default(),
                marks_loaded: Cell::new(false),
                refquota: Cell::new(0),
                refreservation: Cell::new(0),
                in_flight: Default::default(),
                listed: Default::default(),
            }),
            snapshot,
            snapname: RefCell::default(),
            writable: place.writable && !snapshot,
            mos: place.mos.clone(),
            ctx: place.ctx.clone(),
            objset: RefCell::default(),
            deadlist: RefCell::default(),
            opening: rt::sync::Semaphore::new(1),
            users: Cell::new(0),
            cloning: Cell::new(0),
            gone: Cell::new(false),
            os_type: Cell::new(None),
            progress: Default::default(),
        });
        if !snapshot {
            ds.load_limits();
        }
        ds
    }

    /// Takes refquota and refreservation from the properties.
    pub(crate) fn load_limits(&self) {
        let dir = self.dir();
        self.account.refquota.set(dir.local_number("refquota"));
        self.account.refreservation.set(dir.local_number("refreservation"));
    }

    /// Its directory.
    pub fn dir(&self) -> Rc<Dir> {
        self.account.dir.borrow().clone()
    }
    pub(crate) fn set_dir(&self, dir: Rc<Dir>) {
        *self.account.dir.borrow_mut() = dir;
    }

    /// Adds an event to the pool's history.
    pub fn note(&self, event: &'static str, text: String, tx: &Tx) {
        self.account.core.log_internal_ds(event, (self.name(), self.object), text, tx);
    }

    /// `pool/fs` or `pool/fs@snapshot`.
    pub fn name(&self) -> String {
        match (&*self.snapname.borrow(), self.snapshot) {
            (Some(snap), _) => format!("{}@{snap}", self.dir().full_name()),
            (None, true) => format!("{}@ (object {})", self.dir().full_name(), self.object),
            (None, false) => self.dir().full_name(),
        }
    }
    pub(crate) fn set_snapname(&self, name: &str) {
        *self.snapname.borrow_mut() = Some(name.to_string());
    }
    /// The part of a snapshot's name behind the `@`; empty for a head.
    pub fn snapname(&self) -> String {
        self.snapname.borrow().clone().unwrap_or_default()
    }

    /// True for snapshots.
    pub fn is_snapshot(&self) -> bool {
        self.snapshot
    }

    /// True if it may be written to at all (a head in a pool imported read-write).
    pub fn is_writable(&self) -> bool {
        self.writable
    }

    /// The current record.
    pub fn phys(&self) -> DslDatasetPhys {
        *self.account.phys.borrow()
    }

    /// Changes the record (syncing context) and marks it for writing.
    pub(crate) fn change<R>(&self, f: impl FnOnce(&mut DslDatasetPhys) -> R) -> R {
        self.account.change(f)
    }

    pub(crate) fn account(&self) -> &Rc<Account> {
        &self.account
    }
    /// Sets the unique space and adjusts the unused refreservation.
    pub(crate) fn set_unique(&self, unique: u64) {
        self.account.set_unique(unique);
    }
    pub(crate) fn add_unique(&self, used: i64) {
        self.account.add_unique(used);
    }
    /// Changes the refreservation in force and its unused part.
    pub(crate) fn set_refreservation(&self, reserved: u64) {
        let unique = self.phys().unique_bytes;
        let old = self.account.refreservation.replace(reserved);
        let delta = change(old.saturating_sub(unique), reserved.saturating_sub(unique));
        if delta != 0 {
            self.dir().did_use(Used::RefRsrv, Space { used: delta, ..Space::default() });
        }
    }
    pub(crate) fn set_refquota(&self, quota: u64) {
        self.account.refquota.set(quota);
    }
    /// The refquota in force.
    pub(crate) fn refquota(&self) -> u64 {
        self.account.refquota.get()
    }
    pub(crate) fn refreservation(&self) -> u64 {
        self.account.refreservation.get()
    }
    pub(crate) fn with_marks<R>(&self, f: impl FnOnce(&mut Vec<FreedMark>) -> R) -> R {
        f(&mut self.account.marks.borrow_mut())
    }

    pub(crate) fn marks_loaded(&self) -> bool {
        self.account.marks_loaded.get()
    }
    pub(crate) fn set_marks(&self, marks: Vec<FreedMark>) {
        self.account.marks_loaded.set(true);
        *self.account.marks.borrow_mut() = marks;
    }

    /// Takes the deadlist, opened on first use; [`Dataset::put_deadlist`] returns it. Only for the
    /// sync loop, one at a time.
    pub(crate) async fn take_deadlist(&self) -> Result<Deadlist> {
        let kept = self.deadlist.take().filter(|d| d.object.0 == self.phys().deadlist_obj);
        match kept {
            Some(list) => Ok(list),
            None => {
                let object = ObjectId(self.phys().deadlist_obj);
                Deadlist::open(&self.mos, object).await.map_err(|e| e.at(format!("dataset '{}'", self.name())))
            }
        }
    }
    /// Returns the deadlist. That of a head stays open.
    pub(crate) fn put_deadlist(&self, list: Deadlist) {
        if !self.snapshot {
            *self.deadlist.borrow_mut() = Some(list);
        }
    }

    /// Feature entries of the dataset's ZAP: guids and their values.
    pub(crate) async fn load_features(&self) -> Result<BTreeMap<String, ZapValue>> {
        if let Some(known) = &*self.account.features.borrow() {
            return Ok(known.clone());
        }
        let dn = self.mos.hold(self.object).await?;
        let mut features = BTreeMap::new();
        if dn.otype() == ObjectType::OTN_ZAP_METADATA {
            for entry in zap::list(&dn).await.map_err(|e| e.at(format!("dataset '{}'", self.name())))? {
                let name = String::from_utf8_lossy(&entry.name).into_owned();
                if FeatureId::by_guid(&name).is_some_and(|f| f.get().per_dataset) {
                    features.insert(name, entry.value);
                }
            }
        }
        *self.account.features.borrow_mut() = Some(features.clone());
        Ok(features)
    }
    pub(crate) fn take_new_features(&self) -> BTreeSet<&'static str> {
        self.account.new_features.take()
    }
    pub(crate) fn take_old_features(&self) -> BTreeSet<&'static str> {
        self.account.old_features.take()
    }
    pub(crate) fn take_live_changes(&self) -> Changes {
        self.account.live.take()
    }
    pub(crate) fn take_deadlisted(&self) -> Vec<Blkptr> {
        self.account.deadlisted.take()
    }
    pub(crate) fn note_feature(&self, guid: &str) {
        self.set_feature(guid, Some(ZapValue::from_u64(0)));
    }
    /// What the dataset's ZAP has for a feature now.
    pub(crate) fn set_feature(&self, guid: &str, value: Option<ZapValue>) {
        if let Some(known) = &mut *self.account.features.borrow_mut() {
            match value {
                Some(value) => drop(known.insert(guid.to_string(), value)),
                None => drop(known.remove(guid)),
            }
        }
    }
    pub(crate) fn synced(&self, txg: Txg) {
        self.account.in_flight[txg.slot()].set(0);
    }

    /// Feature guids that this dataset uses, as far as read.
    pub fn features(&self) -> BTreeSet<String> {
        self.account.features.borrow().iter().flat_map(|f| f.keys().cloned()).collect()
    }
    fn has_feature(&self, guid: &str) -> bool {
        self.account.features.borrow().as_ref().is_some_and(|f| f.contains_key(guid))
    }

    /// Whether it was received in part only.
    pub fn is_partial(&self) -> bool {
        self.phys().flags & DS_FLAG_INCONSISTENT != 0
    }

    /// Fails with `Busy` if only a part of the dataset was received.
    pub fn check_received(&self) -> Result<()> {
        if self.is_partial() {
            return Err(Error::new(
                ErrorKind::Busy,
                format!("dataset '{}' was received in part only: finish the receive or destroy it", self.name()),
            ));
        }
        Ok(())
    }

    /// Fails if the dataset's content is incomplete and must not be shown: a receive was
    /// interrupted, or the stream was redacted.
    pub fn check_complete(&self) -> Result<()> {
        self.check_received()?;
        match self.redaction() {
            None => Ok(()),
            Some(_) => {
                let text = "is not complete, was created by receiving a redacted zfs send stream";
                Err(Error::new(ErrorKind::Busy, format!("dataset '{}' {text}", self.name())))
            }
        }
    }

    /// The guids of the snapshots that a dataset is redacted by: it has holes where blocks were
    /// left out. `None` if it is not redacted, or its features were not read yet.
    pub fn redaction(&self) -> Option<Vec<u64>> {
        let features = self.account.features.borrow();
        let value = features.as_ref()?.get(FeatureId::RedactedDatasets.get().guid)?;
        Some(value.as_u64s().unwrap_or_default())
    }

    /// A receive came as far as that in `txg`, which is open.
    pub(crate) fn note_progress(&self, progress: Progress, txg: Txg) {
        self.progress[txg.slot()].set(Some(progress));
    }
    /// Takes what was noted of `txg`.
    pub(crate) fn take_progress(&self, txg: Txg) -> Option<Progress> {
        self.progress[txg.slot()].take()
    }

    /// A use of the file system begins (a mount): the dataset is busy.
    pub fn begin_use(&self) {
        self.users.set(self.users.get() + 1);
    }
    /// A use ends.
    pub fn end_use(&self) {
        self.users.set(self.users.get().saturating_sub(1));
    }
    /// True if it has been destroyed: remaining handles must not read from it.
    pub fn is_gone(&self) -> bool {
        self.gone.get()
    }
    pub(crate) fn set_gone(&self) {
        self.gone.set(true);
    }
    /// True while its blocks are being cloned.
    pub(crate) fn is_clone_source(&self) -> bool {
        self.cloning.get() > 0
    }
    /// True while it is in use.
    pub fn is_used(&self) -> bool {
        self.users.get() > 0
    }

    /// The object set if it is open.
    pub fn opened(&self) -> Option<Objset> {
        self.objset.borrow().clone()
    }

    pub(crate) fn set_objset(&self, os: Option<Objset>) {
        if let Some(changed) = os.as_ref().map(Objset::last_dirty).filter(|txg| txg.0 != 0 && self.writable) {
            self.account.list(changed);
        }
        *self.objset.borrow_mut() = os;
    }
    /// The hooks of the object set.
    pub(crate) fn hooks(&self) -> ObjsetHooks {
        ObjsetHooks { acct: self.account.clone(), gate: Some(self.account.clone()), feat: Some(self.account.clone()) }
    }

    /// The object set, opened on first use.
    pub async fn objset(&self) -> Result<Objset> {
        if let Some(os) = self.opened() {
            return Ok(os);
        }
        let _one = self.opening.acquire(1).await;
        if let Some(os) = self.opened() {
            return Ok(os);
        }
        let bp = self.phys().bp;
        if bp.is_hole() {
            return Err(Error::corrupt(format!("dataset '{}' has no object set", self.name())));
        }
        self.load_features().await?;
        let ctx = self.keyed_ctx()?;
        let os = Objset::open(ctx, self.object.0, bp, self.objset_props(), self.hooks(), self.writable)
            .await
            .map_err(|e| e.at(format!("dataset '{}'", self.name())))?;
        self.set_objset(Some(os.clone()));
        Ok(os)
    }

    /// The pool's DMU without a key.
    pub(crate) fn sealed_ctx(&self) -> DmuCtx {
        self.ctx.clone()
    }

    /// The pool's DMU with the dataset's key if it is encrypted. Error: `Denied` if that key is not
    /// loaded.
    pub(crate) fn keyed_ctx(&self) -> Result<DmuCtx> {
        match self.dir().crypt() {
            Some(crypt) => match crypt.data_key() {
                Some(key) => Ok(self.ctx.with_key(key)),
                None => Err(crate::crypto::key_missing(&self.name(), &self.dir().full_name())),
            },
            None if self.has_feature("com.datto:encryption") => {
                Err(Error::corrupt(format!("dataset '{}' is encrypted, but has no key object", self.name())))
            }
            None => Ok(self.ctx.clone()),
        }
    }

    /// Whether files without a link stay where they are for now (`zfs_unlink_suspend_progress`).
    pub fn is_unlinking_suspended(&self) -> bool {
        self.account.core.unlink_suspended.get()
    }

    /// What the intent logs of its pool share.
    pub fn intent_logs(&self) -> &Rc<zil::PoolLogs> {
        &self.account.core.zil
    }

    /// The header of its intent log, which is never encrypted.
    pub async fn zil_header(&self) -> Result<ondisk::zil::ZilHeader> {
        if let Some(os) = self.opened() {
            return Ok(os.zil_header());
        }
        if !self.dir().is_encrypted() {
            return Ok(self.objset().await?.zil_header());
        }
        let block = self.ctx.read(&self.phys().bp).await.map_err(|e| e.at(format!("dataset '{}'", self.name())))?;
        Ok(ondisk::objset::ObjsetPhys::parse(&block)?.zil_header)
    }

    /// Changes the header of its intent log in `txg`, with or without the dataset's key.
    pub async fn set_zil_header(&self, header: ondisk::zil::ZilHeader, txg: Txg) -> Result<()> {
        let os = match self.opened() {
            Some(os) => os,
            None if self.dir().is_encrypted() && self.keyed_ctx().is_err() => {
                let bp = self.phys().bp;
                let os =
                    Objset::open_sealed(self.ctx.clone(), self.object.0, bp, self.objset_props(), self.hooks()).await;
                let os = os.map_err(|e| e.at(format!("dataset '{}'", self.name())))?;
                self.load_features().await?;
                self.set_objset(Some(os.clone()));
                os
            }
            None => self.objset().await?,
        };
        os.set_zil_header(header, txg);
        Ok(())
    }

    /// Closes the object set if it was opened without the key. Changes by
    /// [`Dataset::set_zil_header`] must be on disk.
    pub fn close_sealed(&self) {
        if self.opened().is_some_and(|os| os.is_sealed()) {
            self.set_objset(None);
        }
    }

    /// The type of its object set, which is never encrypted.
    pub async fn os_type(&self) -> Result<ObjsetType> {
        if let Some(os) = self.opened() {
            return Ok(os.os_type());
        }
        if let Some(known) = self.os_type.get() {
            return Ok(known);
        }
        let bp = self.phys().bp;
        if bp.is_hole() {
            return Err(Error::corrupt(format!("dataset '{}' has no object set", self.name())));
        }
        let block = self.ctx.read(&bp).await.map_err(|e| e.at(format!("dataset '{}'", self.name())))?;
        let os_type = ondisk::objset::ObjsetPhys::parse(&block)?.os_type;
        self.os_type.set(Some(os_type));
        Ok(os_type)
    }

    /// The properties for the object set.
    pub fn objset_props(&self) -> ObjsetProps {
        let dir = self.dir();
        let num = |name: &str| dir.prop(name).0.num();
        let compression = match Compression::from_prop(num("compression")) {
            // The meaning of `on` depends on the pool.
            Some(c) => c,
            None => Compression::OFF,
        };
        let checksum = match ChecksumAlgo::from_u8((num("checksum") & 0xff) as u8) {
            Some(ChecksumAlgo::On) | Some(ChecksumAlgo::Inherit) | None => ChecksumAlgo::Fletcher4,
            Some(c) => c,
        };
        ObjsetProps {
            compression,
            checksum,
            copies: num("copies").clamp(1, 3) as u8,
            recordsize: num("recordsize").clamp(base::SECTOR, base::MAX_BLOCK) as u32,
            redundant_metadata: match num("redundant_metadata") {
                1 => RedundantMetadata::Most,
                2 => RedundantMetadata::Some,
                3 => RedundantMetadata::None,
                _ => RedundantMetadata::All,
            },
            dnodesize: match num("dnodesize") {
                0 => 512,
                1 => 1024,
                n => n.clamp(512, 16384) as u32,
            },
            dedup: dedup_of(num("dedup")),
            special_small: num("special_small_blocks").min(base::MAX_BLOCK) as u32,
            prefetch: match num("prefetch") {
                0 => Prefetch::None,
                1 => Prefetch::Metadata,
                _ => Prefetch::All,
            },
            primary_cache: cache_of(num("primarycache")),
            secondary_cache: cache_of(num("secondarycache")),
        }
    }

    /// Pushes changed properties to the open object set.
    pub(crate) fn push_props(&self) {
        if let Some(os) = self.opened() {
            os.set_props(self.objset_props());
        }
    }

    /// Bytes that may still be written, quotas and reservations counted.
    pub fn available(&self) -> u64 {
        let phys = self.phys();
        // Its unused refreservation counts as used, except for the dataset itself.
        let held = self.account.refreservation.get().saturating_sub(phys.unique_bytes);
        let available = self.dir().available().saturating_add(held);
        let refquota = self.account.refquota.get();
        if refquota == 0 { available } else { available.min(refquota.saturating_sub(phys.referenced_bytes)) }
    }
}

/// Bit of the property `dedup`: compare bytes (`verify`).
const DEDUP_VERIFY: u64 = 0x100;

/// The property `dedup` by its number: a checksum, `on` for sha256, and a bit for `verify` (format
/// page 13 section 3).
fn dedup_of(value: u64) -> Option<(ChecksumAlgo, DedupMode)> {
    let algo = match ChecksumAlgo::from_u8((value & 0xff) as u8)? {
        ChecksumAlgo::Inherit | ChecksumAlgo::Off => return None,
        ChecksumAlgo::On => ChecksumAlgo::Sha256,
        algo => algo,
    };
    // Without a comparison only a collision-resistant hash is safe.
    let verify = value & DEDUP_VERIFY != 0 || !algo.is_dedup_strong();
    Some((algo, if verify { DedupMode::Verify } else { DedupMode::Checksum }))
}
