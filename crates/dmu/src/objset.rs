//! Object sets: an array of objects under one block.
//!
//! In memory an object set is the header part of its block, the meta-dnode (whose data are the
//! dnodes of all objects), the three accounting dnodes, and a map of cached dnodes. The map holds
//! every dnode that has a handle or unsynced changes, and clean ones without a handle up to a
//! limit. Changes are recorded per txg (`dirty`); [`Objset::sync`] (module `sync`) writes them.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::rc::{Rc, Weak};

use arc::Keep;
use base::{Error, ErrorKind, ObjectId, Result, ResultExt, TXG_SIZE, Txg};
use ondisk::blkptr::Blkptr;
use ondisk::dnode::{DNODE_SIZE, DNODES_PER_BLOCK, DnodePhys, MAX_OBJECT, Slot, slots};
use ondisk::object_type::ObjectType;
use ondisk::objset::{OBJSET_SIZE_V1, ObjsetPhys, ObjsetType};
use ondisk::version;
use ondisk::zil::ZilHeader;
use rt::LocalBoxFuture;
use rt::TaskId;
use rt::sync::Notify;

use crate::alloc::AllocState;
use crate::count::Counting;
use crate::ctx::{BlockAccounting, DmuCtx, FeatureUse, ObjsetProps, SpaceGate};
use crate::dnode::{Dnode, DnodeInner};
use crate::raw::Raw;
use crate::tx::Tx;

/// Estimated memory of a cached dnode, in bytes.
const DNODE_MEMORY: i64 = 1536;
/// Levels of a new meta-dnode outside of the MOS (format page 03 section 3).
const META_LEVELS: u8 = 6;

/// Changes of the header part in one txg.
#[derive(Clone, Copy, Default)]
pub(crate) struct HeaderChange {
    pub zil: Option<ZilHeader>,
    pub flags: Option<u64>,
    /// The block is written even without another change.
    pub touch: bool,
    /// Sums by owner of these kinds are dropped, since counting begins.
    pub recount: u64,
    /// All objects below are counted by owner.
    pub counted_upto: Option<u64>,
}

pub(crate) struct ObjsetInner {
    pub ctx: DmuCtx,
    pub id: u64,
    pub writable: bool,
    /// It is encrypted and opened without its key: only its header can be changed, unless it
    /// receives raw.
    pub sealed: bool,
    /// It receives raw.
    pub raw: RefCell<Option<Raw>>,
    /// Header as last synced; the dnodes in it are not kept up to date.
    pub phys: RefCell<ObjsetPhys>,
    pub root: Cell<Blkptr>,
    pub header: [Cell<Option<HeaderChange>>; TXG_SIZE],
    pub meta: Rc<DnodeInner>,
    /// Objects -1, -2, -3; made when first needed.
    pub accounting: RefCell<[Option<Rc<DnodeInner>>; 3]>,
    pub map: RefCell<BTreeMap<u64, Rc<DnodeInner>>>,
    /// Object at which the eviction sweep continues.
    sweep: Cell<u64>,
    /// Counts evictions: a block read before one may be older than the dnodes written meanwhile.
    pub evictions: Cell<u64>,
    pub dirty: [RefCell<BTreeMap<u64, Rc<DnodeInner>>>; TXG_SIZE],
    /// The txg that each slot of `dirty` and `header` belongs to.
    dirty_txg: [Cell<Txg>; TXG_SIZE],
    pub props: Cell<ObjsetProps>,
    pub acct: Rc<dyn BlockAccounting>,
    pub gate: Option<Rc<dyn SpaceGate>>,
    pub feat: Option<Rc<dyn FeatureUse>>,
    pub alloc: RefCell<AllocState>,
    /// The task that syncs this object set.
    pub sync_task: Cell<Option<TaskId>>,
    /// Whether that sync may overwrite blocks in place.
    pub sync_in_place: Cell<bool>,
    /// A sync of one object, or of the whole object set, has ended.
    pub synced: Notify,
    /// Features that changes of a txg need, for its sync to note.
    pub needs: [RefCell<BTreeSet<&'static str>>; TXG_SIZE],
    /// The sync of this txg noted the feature of the log's newer records with the dataset.
    pub log_feature: Cell<Option<Txg>>,
    /// Its intent log, while it is in use.
    pub log: RefCell<Option<Weak<dyn IntentLog>>>,
    /// Counting by owner of what is there already, while it is under way.
    pub counting: RefCell<Option<Counting>>,
}

/// The intent log of an object set, as its sync sees it; implemented in `zil`.
pub trait IntentLog {
    /// `txg` syncs: frees the log blocks that are not needed when it is on disk, and returns the
    /// new header; `None` if it does not change. Called once for each txg in which the object set
    /// is written. Must not wait.
    fn sync(&self, txg: Txg) -> Result<Option<ZilHeader>>;
    /// Makes sure that the header on disk names a block that records can go to.
    fn begin_chain(self: Rc<Self>) -> LocalBoxFuture<'static, Result<()>>;
    /// Waits until all logged operations are durable with their txg, and frees all blocks of the
    /// log; later records get new blocks.
    fn end_chain(self: Rc<Self>) -> LocalBoxFuture<'static, Result<()>>;
}

/// An object set. Cheap to clone.
#[derive(Clone)]
pub struct Objset(pub(crate) Rc<ObjsetInner>);

/// The traits of the layers above, for one object set.
pub struct ObjsetHooks {
    /// Accounts for its blocks.
    pub acct: Rc<dyn BlockAccounting>,
    /// Grants space to its transactions; none: unlimited.
    pub gate: Option<Rc<dyn SpaceGate>>,
    /// Notes the first use of features.
    pub feat: Option<Rc<dyn FeatureUse>>,
}

/// Dnodes that one insertion into a full cache looks at. More than one, since some are in use; each
/// costs some 80 ns, also where all are dirty and none can go.
const EVICT_LOOKS: usize = 16;

impl ObjsetInner {
    /// Whether its blocks of metadata, or of data, stay in the cache.
    pub(crate) fn keep(&self, metadata: bool) -> Keep {
        let props = self.props.get();
        props.primary_cache.keep(props.secondary_cache, metadata)
    }

    pub(crate) fn note_dirty(&self, txg: Txg, n: &Rc<DnodeInner>) {
        self.claim_slot(txg);
        let mut dirty = self.dirty[txg.slot()].borrow_mut();
        let per_block = DNODES_PER_BLOCK as u64;
        let first = n.obj.0 - n.obj.0 % per_block;
        let first_of_block = dirty.range(first..=first + (per_block - 1)).next().is_none();
        dirty.insert(n.obj.0, n.clone());
        drop(dirty);
        if first_of_block {
            self.will_use(txg, |c| c.dnode_block());
        }
    }
    /// Claims the slot for `txg`; the txg that had it must have synced.
    fn claim_slot(&self, txg: Txg) {
        let slot = txg.slot();
        if self.dirty_txg[slot].get() != txg {
            let left = self.dirty[slot].borrow().len();
            assert!(left == 0 && self.header[slot].get().is_none(), "txg {} never synced", self.dirty_txg[slot].get());
            self.dirty_txg[slot].set(txg);
            self.will_use(txg, |c| c.objset());
        }
    }
    /// Whether a task other than this one syncs the object set and may overwrite blocks in place
    /// under readers: not in the first pass of a txg.
    pub(crate) fn is_syncing(&self) -> bool {
        self.sync_in_place.get() && self.sync_task.get().is_some_and(|t| t != self.ctx.rt().current_task())
    }
    /// Waits until a running sync has finished its current object.
    pub(crate) async fn wait_sync_step(&self) {
        if self.is_syncing() {
            self.synced.notified().await;
        }
    }
    pub(crate) fn change_header(&self, txg: Txg, f: impl FnOnce(&mut HeaderChange)) {
        self.claim_slot(txg);
        let mut h = self.header[txg.slot()].get().unwrap_or_default();
        f(&mut h);
        self.header[txg.slot()].set(Some(h));
    }
    /// The newest value among the header changes.
    fn newest<T>(&self, get: impl Fn(&HeaderChange) -> Option<T>) -> Option<T> {
        let mut best: Option<(Txg, T)> = None;
        for (h, txg) in self.header.iter().zip(&self.dirty_txg) {
            if let Some(v) = h.get().as_ref().and_then(&get)
                && best.as_ref().is_none_or(|(t, _)| *t < txg.get())
            {
                best = Some((txg.get(), v));
            }
        }
        best.map(|(_, v)| v)
    }
    /// Evicts clean dnodes without handles down to the limit; looks at a bounded number of them.
    fn evict(&self) {
        let max = self.ctx.tunables().dnodes_max;
        let mut map = self.map.borrow_mut();
        let mut gone = Vec::new();
        for _ in 0..EVICT_LOOKS {
            if map.len() <= max {
                break;
            }
            let Some((&obj, n)) = map.range((Bound::Excluded(self.sweep.get()), Bound::Unbounded)).next() else {
                self.sweep.set(0);
                continue;
            };
            self.sweep.set(obj);
            if !n.recent.replace(false) && n.is_evictable() {
                gone.extend(map.remove(&obj));
            }
        }
        drop(map);
        self.note_evicted(gone.len());
        drop(gone);
    }
    /// Accounts for `n` evicted dnodes.
    pub(crate) fn note_evicted(&self, n: usize) {
        if n > 0 {
            self.evictions.set(self.evictions.get() + 1);
            self.ctx.arc().charge(arc::MemKind::Dnode, -(n as i64) * DNODE_MEMORY);
        }
    }
    pub(crate) fn note_cached(&self) {
        self.ctx.arc().charge(arc::MemKind::Dnode, DNODE_MEMORY);
    }
}

impl Drop for ObjsetInner {
    fn drop(&mut self) {
        let n = self.map.get_mut().len();
        self.note_evicted(n);
    }
}

impl Objset {
    #[allow(clippy::too_many_arguments, reason = "everything that an object set is")]
    pub(crate) fn build(
        ctx: DmuCtx,
        id: u64,
        phys: ObjsetPhys,
        root: Blkptr,
        props: ObjsetProps,
        hooks: ObjsetHooks,
        writable: bool,
        sealed: bool,
    ) -> Objset {
        let on_disk = !root.is_hole();
        let special = |obj, p: &Option<DnodePhys>| p.clone().map(|p| DnodeInner::new(obj, p, true));
        Objset(Rc::new(ObjsetInner {
            id,
            writable,
            sealed,
            raw: RefCell::default(),
            meta: DnodeInner::new(ObjectId::META, phys.meta_dnode.clone(), on_disk),
            accounting: RefCell::new([
                special(ObjectId::USERUSED, &phys.userused),
                special(ObjectId::GROUPUSED, &phys.groupused),
                special(ObjectId::PROJECTUSED, &phys.projectused),
            ]),
            phys: RefCell::new(phys),
            root: Cell::new(root),
            header: Default::default(),
            map: RefCell::default(),
            sweep: Cell::new(0),
            evictions: Cell::new(0),
            dirty: Default::default(),
            dirty_txg: Default::default(),
            props: Cell::new(props),
            acct: hooks.acct,
            gate: hooks.gate,
            feat: hooks.feat,
            alloc: RefCell::default(),
            sync_task: Cell::new(None),
            sync_in_place: Cell::new(false),
            synced: Notify::default(),
            needs: Default::default(),
            log_feature: Cell::new(None),
            log: RefCell::default(),
            counting: RefCell::default(),
            ctx,
        }))
    }

    /// Opens the object set whose block is at `root`. `id` is its dataset object, 0 for the MOS.
    pub async fn open(
        ctx: DmuCtx,
        id: u64,
        root: Blkptr,
        props: ObjsetProps,
        hooks: ObjsetHooks,
        mut writable: bool,
    ) -> Result<Objset> {
        if root.is_hole() {
            return Err(Error::corrupt(format!("object set {id} has no block")));
        }
        let place = || format!("object set {id}");
        let block = ctx.read(&root).await.at(place)?;
        let phys = ObjsetPhys::parse(&block).at(place)?;
        if phys.meta_dnode.datablksz() as usize != DNODES_PER_BLOCK * DNODE_SIZE {
            return Err(Error::corrupt(format!(
                "object set {id}: its dnodes come in blocks of {} bytes",
                phys.meta_dnode.datablksz()
            )));
        }
        match (root.encrypted(), ctx.key()) {
            (true, Some(key)) => {
                key.check_objset(&phys).at(place)?;
                // With a key of the first format it is only read.
                writable &= key.is_writable();
            }
            (true, None) if writable => {
                return Err(Error::unsupported(format!("object set {id} is encrypted, and its key is not here")));
            }
            (false, Some(_)) => {
                return Err(Error::corrupt(format!("object set {id} is not encrypted, though its dataset is")));
            }
            _ => {}
        }
        Ok(Objset::build(ctx, id, phys, root, props, hooks, writable, false))
    }

    /// Opens an encrypted object set without its key, only to change the header of its intent log,
    /// which is not authenticated.
    pub async fn open_sealed(
        ctx: DmuCtx,
        id: u64,
        root: Blkptr,
        props: ObjsetProps,
        hooks: ObjsetHooks,
    ) -> Result<Objset> {
        let place = || format!("object set {id}");
        let phys = ObjsetPhys::parse(&ctx.read(&root).await.at(place)?).at(place)?;
        assert!(root.encrypted() && ctx.key().is_none(), "only encrypted object sets are opened sealed");
        Ok(Objset::build(ctx, id, phys, root, props, hooks, true, true))
    }
    /// Opens an object set to look at its trees of blocks, encrypted or not: no key is needed, and
    /// encrypted blocks and bonuses are read as they are stored.
    pub async fn open_keyless(
        ctx: DmuCtx,
        id: u64,
        root: Blkptr,
        props: ObjsetProps,
        hooks: ObjsetHooks,
    ) -> Result<Objset> {
        let (ctx, place) = (ctx.sealed(), || format!("object set {id}"));
        let phys = ObjsetPhys::parse(&ctx.read(&root).await.at(place)?).at(place)?;
        Ok(Objset::build(ctx, id, phys, root, props, hooks, false, true))
    }
    /// Whether it was opened without its key.
    pub fn is_sealed(&self) -> bool {
        self.0.sealed
    }

    /// A new, empty object set, which the sync of `txg` writes.
    pub fn create(
        ctx: DmuCtx,
        id: u64,
        os_type: ObjsetType,
        props: ObjsetProps,
        hooks: ObjsetHooks,
        txg: Txg,
    ) -> Objset {
        let levels = if os_type == ObjsetType::Meta { 1 } else { META_LEVELS };
        let mut phys = ObjsetPhys::new(os_type, levels);
        if ctx.features().pool_version < version::USERSPACE {
            phys.size = OBJSET_SIZE_V1;
        }
        let os = Objset::build(ctx, id, phys, Blkptr::hole(), props, hooks, true, false);
        os.0.change_header(txg, |h| h.touch = true);
        os
    }

    /// The pool's context.
    pub fn ctx(&self) -> &DmuCtx {
        &self.0.ctx
    }
    /// Its dataset object, 0 for the MOS.
    pub fn id(&self) -> u64 {
        self.0.id
    }
    /// Its type.
    pub fn os_type(&self) -> ObjsetType {
        self.0.phys.borrow().os_type
    }
    /// `OBJSET_*` flags: which accounting is complete.
    pub fn flags(&self) -> u64 {
        self.0.newest(|h| h.flags).unwrap_or(self.0.phys.borrow().flags)
    }
    /// Changes the flags.
    pub fn set_flags(&self, flags: u64, tx: &Tx) {
        self.0.change_header(tx.txg(), |h| h.flags = Some(flags));
    }
    /// The header of its intent log.
    pub fn zil_header(&self) -> ZilHeader {
        self.0.newest(|h| h.zil).unwrap_or(self.0.phys.borrow().zil_header)
    }
    /// Changes the header of its intent log in `txg`, open or syncing.
    pub fn set_zil_header(&self, header: ZilHeader, txg: Txg) {
        self.0.change_header(txg, |h| h.zil = Some(header));
    }
    /// Sets or removes the intent log that the sync calls.
    pub fn set_log(&self, log: Option<Weak<dyn IntentLog>>) {
        *self.0.log.borrow_mut() = log;
    }
    /// Gives the intent log, if one is in use, its first block ([`IntentLog::begin_chain`]).
    pub async fn begin_log_chain(&self) -> Result<()> {
        let log = self.0.log.borrow().as_ref().and_then(Weak::upgrade);
        match log {
            Some(log) => log.begin_chain().await,
            None => Ok(()),
        }
    }
    /// Makes the intent log, if one is in use, free all of its blocks ([`IntentLog::end_chain`]).
    pub async fn end_log_chain(&self) -> Result<()> {
        let log = self.0.log.borrow().as_ref().and_then(Weak::upgrade);
        match log {
            Some(log) => log.end_chain().await,
            None => Ok(()),
        }
    }
    /// Whether it is that of a dataset, which may have features of its own.
    pub(crate) fn is_dataset(&self) -> bool {
        self.0.feat.is_some()
    }
    /// A change in `txg`, which is open, makes the dataset need this feature.
    pub(crate) fn need_feature(&self, guid: &'static str, txg: Txg) {
        self.0.needs[txg.slot()].borrow_mut().insert(guid);
    }
    /// Whether the dataset has, on disk, the feature that the records of OpenZFS 2.2 need in its
    /// log (`zilsaxattr`). It has it for as long as there is a log.
    pub fn has_log_feature(&self) -> bool {
        self.0.log_feature.get().is_some_and(|txg| txg <= self.0.ctx.txg().last_synced())
    }
    /// Whether an intent log is in use.
    pub fn has_log(&self) -> bool {
        self.0.log.borrow().as_ref().is_some_and(|log| log.strong_count() > 0)
    }
    /// Makes `txg` write the object set's block even without another change.
    pub fn touch(&self, txg: Txg) {
        self.0.change_header(txg, |h| h.touch = true);
    }
    /// The pointer of its block as of the last sync; a hole before the first.
    pub fn root_bp(&self) -> Blkptr {
        self.0.root.get()
    }
    /// Number of objects as of the last sync.
    pub fn used_objects(&self) -> u64 {
        self.0.meta.st.borrow().phys.fill()
    }
    /// Whether it can be changed.
    pub fn is_writable(&self) -> bool {
        self.0.writable
    }
    pub(crate) fn check_writable(&self) -> Result<()> {
        if self.0.writable && (!self.0.sealed || self.is_raw()) {
            Ok(())
        } else {
            Err(Error::new(ErrorKind::ReadOnly, format!("object set {} is read-only", self.0.id)))
        }
    }
    /// Its properties.
    pub fn props(&self) -> ObjsetProps {
        self.0.props.get()
    }
    /// Changes its properties, for blocks written from now on.
    pub fn set_props(&self, props: ObjsetProps) {
        self.0.props.set(props);
    }
    /// Whether `txg` has changes to write.
    pub fn is_dirty(&self, txg: Txg) -> bool {
        let slot = txg.slot();
        self.0.dirty_txg[slot].get() == txg
            && (self.0.header[slot].get().is_some() || !self.0.dirty[slot].borrow().is_empty())
    }
    /// The newest txg that it was changed in; 0 if it was not since it was opened.
    pub fn last_dirty(&self) -> Txg {
        self.0.dirty_txg.iter().map(Cell::get).max().unwrap_or(Txg(0))
    }
    /// Number of cached dnodes.
    pub fn cached(&self) -> usize {
        self.0.map.borrow().len()
    }

    /// The meta-dnode: its data are the dnodes.
    pub fn meta(&self) -> Dnode {
        Dnode { os: self.0.clone(), n: self.0.meta.clone() }
    }
    /// An accounting object by its number (-1 to -3), if it exists.
    pub fn accounting(&self, obj: ObjectId) -> Option<Dnode> {
        let index = (u64::MAX - obj.0) as usize;
        let n = self.0.accounting.borrow().get(index)?.clone()?;
        Some(Dnode { os: self.0.clone(), n })
    }

    /// The object. `NotFound` if the number is free.
    pub async fn hold(&self, obj: ObjectId) -> Result<Dnode> {
        let free = || Err(Error::not_found(format!("object {obj} of object set {} is free", self.0.id)));
        if obj.0 == 0 || obj.0 >= MAX_OBJECT {
            return match self.accounting(obj) {
                Some(dn) => Ok(dn),
                None if obj == ObjectId::META => Ok(self.meta()),
                None => free(),
            };
        }
        loop {
            let cached = self.0.map.borrow().get(&obj.0).cloned();
            if let Some(n) = cached {
                if !n.st.borrow().exists {
                    return free();
                }
                n.recent.set(true);
                return Ok(Dnode { os: self.0.clone(), n });
            }
            let evictions = self.0.evictions.get();
            let (blkid, slot) = (obj.0 / DNODES_PER_BLOCK as u64, (obj.0 % DNODES_PER_BLOCK as u64) as usize);
            let block = match self.meta().peek_block(blkid) {
                Some(b) => Some(b),
                None => self.meta().block(blkid).await?,
            };
            let Some(block) = block else { return free() };
            if self.0.evictions.get() != evictions || self.0.map.borrow().contains_key(&obj.0) {
                continue;
            }
            let place = || format!("object {obj} of object set {}", self.0.id);
            let phys = match slots(&block).at(place)?.get(slot) {
                Some(Slot::Dnode(_)) => DnodePhys::parse(&block[slot * DNODE_SIZE..]).at(place)?,
                _ => None,
            };
            let Some(phys) = phys else { return free() };
            let n = DnodeInner::new(obj, phys, true);
            self.0.map.borrow_mut().insert(obj.0, n.clone());
            self.0.note_cached();
            self.0.evict();
            return Ok(Dnode { os: self.0.clone(), n });
        }
    }

    /// The first object in use at or after `from`, in the newest txg.
    pub async fn objects(&self, from: ObjectId) -> Result<Option<ObjectId>> {
        let mut from = from.0.max(1);
        loop {
            let disk = self.next_on_disk(from).await?;
            let map = self.0.map.borrow();
            let upto = disk.map_or(Bound::Unbounded, Bound::Excluded);
            // Objects in the cache that are not on disk yet.
            if let Some((&obj, _)) = map.range((Bound::Included(from), upto)).find(|(_, n)| n.st.borrow().exists) {
                return Ok(Some(ObjectId(obj)));
            }
            match disk {
                Some(obj) if map.get(&obj).is_some_and(|n| !n.st.borrow().exists) => from = obj + 1,
                other => return Ok(other.map(ObjectId)),
            }
        }
    }

    /// The first dnode at or after `from` in the blocks of the meta-dnode.
    async fn next_on_disk(&self, from: u64) -> Result<Option<u64>> {
        let per = DNODES_PER_BLOCK as u64;
        let meta = self.meta();
        let mut from = from;
        while let Some(blkid) = meta.next_data_block(from / per).await? {
            if let Some(block) = meta.block(blkid).await? {
                let first = if blkid == from / per { (from % per) as usize } else { 0 };
                let found =
                    slots(&block)?.into_iter().enumerate().skip(first).find(|(_, s)| matches!(s, Slot::Dnode(_)));
                if let Some((i, _)) = found {
                    return Ok(Some(blkid * per + i as u64));
                }
            }
            from = (blkid + 1) * per;
        }
        Ok(None)
    }

    /// Object -1, -2 or -3 for a change in syncing context; true if it was made.
    pub(crate) fn accounting_for(&self, obj: ObjectId, tx: &Tx) -> (Dnode, bool) {
        if let Some(dn) = self.accounting(obj) {
            return (dn, false);
        }
        let phys = DnodePhys::new(ObjectType::USERGROUP_USED, 512, 17, ObjectType::NONE, 0, 1);
        let n = DnodeInner::new(obj, phys, false);
        self.0.accounting.borrow_mut()[(u64::MAX - obj.0) as usize] = Some(n.clone());
        let dn = Dnode { os: self.0.clone(), n };
        dn.slot(&mut dn.n.st.borrow_mut(), tx.txg()).alloc = true;
        (dn, true)
    }
}
