//! Dnodes in memory: the committed state of one object and its changes in open txgs.
//!
//! There is no cache of blocks here: clean blocks are in the ARC. A cached dnode ([`DnodeInner`],
//! in its object set's map) holds the *committed* dnode, and for each of up to four unsynced txgs a
//! [`DirtyTxg`]: data blocks written (module `dirty`), ranges of blocks freed, a new bonus, spill
//! block, block size or type. A read searches from the newest txg to the oldest, then the committed
//! block tree (`tree`). The newest values of the small fields are in [`State`] directly.
//!
//! Order within a txg: ranges are freed first, then blocks are written; so writing a block after
//! freeing it only adds it, and freeing a range drops the blocks written in it.
//!
//! Normally no transaction of an older txg changes an object that a newer txg has changed already:
//! `TxPlan::assign` makes it wait. Where an object was not named in the plan, the change is made in
//! its own txg and in every newer one that has its own version, so that the newest state always
//! follows call order.

use std::any::{Any, TypeId};
use std::cell::{Cell, RefCell};
use std::rc::Rc;

use base::{Error, ErrorKind, ObjectId, Result, TXG_SIZE, Txg};
use bdev::Bytes;
use ondisk::blkptr::BLKPTR_SIZE;
use ondisk::dnode::{DnodePhys, bonus_area};
use ondisk::object_type::ObjectType;
use rt::sync::Notify;
use zio::{ClassKind, Packed};

use crate::dirty::{DirtyBlocks, fit};
use crate::objset::{Objset, ObjsetInner};
use crate::ranges::RangeSet;
use crate::raw::Shape;
use crate::tx::Tx;

/// The changes of an object in one txg.
pub(crate) struct DirtyTxg {
    pub txg: Txg,
    /// Counts changes, so that a sync can assert that there were none meanwhile.
    pub mods: u64,
    /// Blocks written; all of the block size that this txg sees.
    pub blocks: DirtyBlocks,
    /// Blocks freed before those were written.
    pub freed: RangeSet,
    /// The object was truncated: its highest block id is at most this, apart from blocks written.
    pub cap: Option<u64>,
    pub blksz: Option<u32>,
    pub otype: Option<ObjectType>,
    /// New numbers of compression and checksum.
    pub own: Option<(u8, u8)>,
    pub bonus: Option<(ObjectType, Rc<[u8]>)>,
    /// New spill block, or none any more.
    pub spill: Option<Option<Bytes>>,
    /// How it is stored, if that is settled.
    pub spill_packed: Option<Rc<Packed>>,
    /// The whole shape, of an object that is received raw.
    pub shape: Option<Box<Shape>>,
    /// The object is allocated in this txg.
    pub alloc: bool,
    /// The object is freed in this txg.
    pub free: bool,
}

/// The newest spill block.
#[derive(Clone)]
pub(crate) enum Spill {
    None,
    Committed,
    Memory(Bytes),
}

/// A read in progress for a partial write.
struct Rmw {
    id: u64,
    blkid: u64,
    /// The block changed meanwhile: the result of the read is outdated.
    stale: bool,
}

/// The mutable part of a cached dnode.
pub(crate) struct State {
    /// As last synced. For an object that has not synced yet: its fields without blocks.
    pub phys: DnodePhys,
    /// Whether `phys` is in the object set on disk.
    pub on_disk: bool,
    // The state in the newest txg:
    pub exists: bool,
    pub otype: ObjectType,
    /// Numbers of compression and checksum.
    pub own: (u8, u8),
    pub blksz: u32,
    pub maxblkid: u64,
    pub bonustype: ObjectType,
    pub bonus: Rc<[u8]>,
    pub spill: Spill,
    /// Changes by `Txg::slot`.
    pub dirty: [Option<Box<DirtyTxg>>; TXG_SIZE],
    rmw: Vec<Rmw>,
    rmw_next: u64,
}

impl State {
    pub fn new(phys: DnodePhys, on_disk: bool) -> State {
        State {
            on_disk,
            exists: true,
            otype: phys.otype,
            own: (phys.compress, phys.checksum),
            blksz: phys.datablksz(),
            maxblkid: phys.maxblkid,
            bonustype: phys.bonustype,
            bonus: Rc::from(phys.bonus()),
            spill: if phys.spill.is_some() { Spill::Committed } else { Spill::None },
            phys,
            dirty: [const { None }; TXG_SIZE],
            rmw: Vec::new(),
            rmw_next: 0,
        }
    }
    pub fn is_dirty(&self) -> bool {
        self.dirty.iter().any(Option::is_some)
    }
    /// Slots in use, newest txg first.
    pub fn newest_first(&self) -> impl Iterator<Item = &DirtyTxg> {
        let mut order: [Option<&DirtyTxg>; TXG_SIZE] = [const { None }; TXG_SIZE];
        for (o, d) in order.iter_mut().zip(&self.dirty) {
            *o = d.as_deref();
        }
        order.sort_unstable_by_key(|d| std::cmp::Reverse(d.map(|d| d.txg)));
        order.into_iter().flatten()
    }
    /// Whether `txg` or a later one has a clone as block `blkid`.
    pub fn is_cloned_from(&self, blkid: u64, txg: Txg) -> bool {
        self.dirty.iter().flatten().any(|d| d.txg >= txg && d.blocks.cloned(blkid).is_some())
    }
    /// Indexes of slots of txgs after `txg`, newest first.
    pub fn newer_than(&self, txg: Txg) -> impl Iterator<Item = usize> + use<> {
        let mut order: [(Txg, usize); TXG_SIZE] = [(Txg(0), 0); TXG_SIZE];
        let mut n = 0;
        for (i, d) in self.dirty.iter().enumerate() {
            if let Some(d) = d
                && d.txg > txg
            {
                order[n] = (d.txg, i);
                n += 1;
            }
        }
        order[..n].sort_unstable();
        order.into_iter().take(n).rev().map(|(_, i)| i)
    }
    /// Marks reads for partial writes of these blocks as outdated.
    pub fn invalidate_rmw(&mut self, first: u64, end: u64) {
        for r in &mut self.rmw {
            if (first..end).contains(&r.blkid) {
                r.stale = true;
            }
        }
    }
    /// Registers a read for a partial write.
    pub fn rmw_begin(&mut self, blkid: u64) -> u64 {
        let id = self.rmw_next;
        self.rmw_next += 1;
        self.rmw.push(Rmw { id, blkid, stale: false });
        id
    }
    /// Ends the read; whether its result is still valid.
    pub fn rmw_end(&mut self, id: u64) -> bool {
        match self.rmw.iter().position(|r| r.id == id) {
            Some(i) => !self.rmw.swap_remove(i).stale,
            None => false,
        }
    }
    /// The txg's dirty state; whether it was just made.
    fn slot_entry(&mut self, txg: Txg) -> (bool, &mut DirtyTxg) {
        let newer_blksz = self.newer_than(txg).any(|i| self.dirty[i].as_ref().is_some_and(|d| d.blksz.is_some()));
        let blksz = self.blksz;
        let entry = &mut self.dirty[txg.slot()];
        let fresh = entry.is_none();
        let slot = entry.get_or_insert_with(|| {
            Box::new(DirtyTxg {
                txg,
                mods: 0,
                blocks: DirtyBlocks::default(),
                freed: RangeSet::default(),
                cap: None,
                blksz: None,
                otype: None,
                own: None,
                bonus: None,
                spill: None,
                spill_packed: None,
                shape: None,
                alloc: false,
                free: false,
            })
        });
        assert!(slot.txg == txg, "object is dirty in txg {} when txg {txg} changes it", slot.txg);
        slot.mods += 1;
        if newer_blksz && slot.blksz != Some(blksz) {
            slot.blksz = Some(blksz);
            slot.blocks.resize(0, blksz as usize, &mut Vec::new());
        }
        (fresh, slot)
    }
}

/// Read-ahead state: recognises sequential readers by the start of the next read.
#[derive(Clone, Copy, Default)]
pub(crate) struct ReadAhead {
    /// First block of the next read of a sequence.
    pub next: u64,
    /// First block that has not been read ahead.
    pub ahead: u64,
    /// Reads of the sequence so far.
    pub run: u32,
}

/// A cached dnode.
pub(crate) struct DnodeInner {
    pub obj: ObjectId,
    pub st: RefCell<State>,
    /// Counts syncs of this object: a failed read is tried again if the tree has changed.
    pub tree_gen: Cell<u64>,
    /// Used since the last eviction sweep.
    pub recent: Cell<bool>,
    pub read_ahead: Cell<ReadAhead>,
    /// Transactions that named this object in their plan: their txg and number.
    pub tx_holds: Cell<(Txg, u32)>,
    pub tx_released: Notify,
    /// Where its blocks go, if not where its type says.
    pub class: Cell<Option<ClassKind>>,
    attached: RefCell<Vec<(TypeId, Rc<dyn Any>)>>,
}

impl DnodeInner {
    pub fn new(obj: ObjectId, phys: DnodePhys, on_disk: bool) -> Rc<DnodeInner> {
        Rc::new(DnodeInner {
            obj,
            st: RefCell::new(State::new(phys, on_disk)),
            tree_gen: Cell::new(0),
            recent: Cell::new(true),
            read_ahead: Cell::new(ReadAhead::default()),
            tx_holds: Cell::new((Txg(0), 0)),
            tx_released: Notify::default(),
            class: Cell::default(),
            attached: RefCell::new(Vec::new()),
        })
    }
    /// Whether it can be evicted: no handle, no changes, no attached state in use.
    pub fn is_evictable(self: &Rc<Self>) -> bool {
        Rc::strong_count(self) == 1
            && !self.st.borrow().is_dirty()
            && self.attached.borrow().iter().all(|(_, a)| Rc::strong_count(a) == 1)
    }
    /// Drops attached state (of a freed object).
    pub fn detach_all(&self) {
        let gone = std::mem::take(&mut *self.attached.borrow_mut());
        drop(gone);
    }
}

/// A handle on one object. Cheap to clone; the object stays cached while one exists.
#[derive(Clone)]
pub struct Dnode {
    pub(crate) os: Rc<ObjsetInner>,
    pub(crate) n: Rc<DnodeInner>,
}

impl std::fmt::Debug for Dnode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Dnode({}/{})", self.os.id, self.n.obj)
    }
}

impl Dnode {
    /// The object set that it belongs to.
    pub fn objset(&self) -> Objset {
        Objset(self.os.clone())
    }
    /// Its number.
    pub fn object(&self) -> ObjectId {
        self.n.obj
    }
    /// Whether the object still exists for new transactions.
    pub fn exists(&self) -> bool {
        self.n.st.borrow().exists
    }
    /// Type of its data.
    pub fn otype(&self) -> ObjectType {
        self.n.st.borrow().otype
    }
    /// Bytes of a data block.
    pub fn block_size(&self) -> u32 {
        self.n.st.borrow().blksz
    }
    /// Highest block id ever written, lowered by truncation; 0 also if no block was written.
    pub fn max_blkid(&self) -> u64 {
        self.n.st.borrow().maxblkid
    }
    /// log2 of the size of indirect blocks.
    pub fn indblkshift(&self) -> u8 {
        self.n.st.borrow().phys.indblkshift
    }
    /// Height of the block tree as of the last sync.
    pub fn levels(&self) -> u8 {
        self.n.st.borrow().phys.nlevels
    }
    /// Bytes charged, as of the last sync.
    pub fn used(&self) -> u64 {
        self.n.st.borrow().phys.used_bytes()
    }
    /// The dnode as of the last sync (for debuggers and checkers).
    pub fn committed(&self) -> DnodePhys {
        self.n.st.borrow().phys.clone()
    }
    /// Type of the bonus.
    pub fn bonus_type(&self) -> ObjectType {
        self.n.st.borrow().bonustype
    }
    /// Bytes of the dnode: 512 or a multiple.
    pub fn dnode_size(&self) -> u32 {
        self.n.st.borrow().phys.size() as u32
    }
    /// Block pointers of the dnode.
    pub fn block_pointers(&self) -> u8 {
        self.n.st.borrow().phys.nblkptr
    }
    /// Most bytes that the bonus can hold with or without a spill pointer.
    pub fn bonus_capacity(&self, spill: bool) -> usize {
        let st = self.n.st.borrow();
        bonus_area(st.phys.num_slots(), st.phys.nblkptr).saturating_sub(if spill { BLKPTR_SIZE } else { 0 })
    }
    /// Sends its blocks, data and pointers, to devices of a class, whatever its type says. This is
    /// not on disk: it holds while the object stays cached.
    pub fn set_class(&self, class: ClassKind) {
        self.n.class.set(Some(class));
    }
    /// Whether it has changes that have not synced.
    pub fn is_dirty(&self) -> bool {
        self.n.st.borrow().is_dirty()
    }

    /// The bonus.
    pub fn bonus(&self) -> Rc<[u8]> {
        self.n.st.borrow().bonus.clone()
    }
    /// Calls `f` with the bonus.
    pub fn with_bonus<R>(&self, f: impl FnOnce(&[u8]) -> R) -> R {
        let b = self.bonus();
        f(&b)
    }
    /// Replaces the bonus and its length. `Invalid` if the dnode has no room for it.
    pub fn set_bonus(&self, bytes: &[u8], tx: &Tx) -> Result<()> {
        self.set_bonus_typed(self.bonus_type(), bytes, tx)
    }
    /// Replaces the bonus and its type.
    pub fn set_bonus_typed(&self, bonustype: ObjectType, bytes: &[u8], tx: &Tx) -> Result<()> {
        self.check_tx()?;
        let capacity = self.bonus_capacity(self.has_spill());
        if bytes.len() > capacity {
            return Err(Error::invalid(format!(
                "object {}: bonus of {} bytes, room for {capacity}",
                self.n.obj,
                bytes.len()
            )));
        }
        let value: Rc<[u8]> = Rc::from(bytes);
        let mut st = self.n.st.borrow_mut();
        self.slot(&mut st, tx.txg()).bonus = Some((bonustype, value.clone()));
        for i in st.newer_than(tx.txg()) {
            let d = st.dirty[i].as_mut().expect("newer_than gives slots in use");
            if d.bonus.is_some() {
                d.bonus = Some((bonustype, value.clone()));
            }
        }
        (st.bonustype, st.bonus) = (bonustype, value);
        Ok(())
    }
    /// Whether there is a spill block.
    pub fn has_spill(&self) -> bool {
        !matches!(self.n.st.borrow().spill, Spill::None)
    }
    /// The spill block.
    pub async fn spill(&self) -> Result<Option<Bytes>> {
        let mut seen = None;
        loop {
            let (bp, generation) = {
                let st = self.n.st.borrow();
                match &st.spill {
                    Spill::None => return Ok(None),
                    Spill::Memory(b) => return Ok(Some(b.clone())),
                    Spill::Committed => (st.phys.spill, self.n.tree_gen.get()),
                }
            };
            let Some(bp) = bp else { return Ok(None) };
            match self.os.ctx.read(&bp).await {
                Ok(b) => return Ok(Some(b)),
                Err(e) if seen == Some(generation) => {
                    return Err(e.at(format_args!("spill block of object {}", self.n.obj)));
                }
                Err(_) => {
                    self.os.wait_sync_step().await;
                    seen = Some(self.n.tree_gen.get());
                }
            }
        }
    }
    /// Replaces the spill block, or removes it. The content is padded with zeros to a multiple
    /// of 512. A spill pointer takes 128 bytes from the bonus: shrink the bonus before adding one,
    /// grow it after removing one.
    pub fn set_spill(&self, spill: Option<Bytes>, tx: &Tx) -> Result<()> {
        self.check_tx()?;
        let spill = spill.map(|b| {
            let len = ondisk::dnode::spill_blksz(b.len()) as usize;
            fit(b, len)
        });
        if let Some(b) = &spill {
            if b.len() > 128 << 10 {
                return Err(Error::new(
                    ErrorKind::TooBig,
                    format!("object {}: spill block of {} bytes", self.n.obj, b.len()),
                ));
            }
            let (have, room) = (self.n.st.borrow().bonus.len(), self.bonus_capacity(true));
            if have > room || self.bonus_capacity(false) < BLKPTR_SIZE {
                return Err(Error::invalid(format!(
                    "object {}: bonus of {have} bytes leaves no room for a spill pointer",
                    self.n.obj
                )));
            }
        }
        let mut st = self.n.st.borrow_mut();
        let len = spill.as_ref().map_or(0, |b| b.len() as u64);
        if self.slot(&mut st, tx.txg()).spill.replace(spill.clone()).is_none() {
            self.os.will_use(tx.txg(), |c| c.metadata(len));
        }
        for i in st.newer_than(tx.txg()) {
            let d = st.dirty[i].as_mut().expect("newer_than gives slots in use");
            if d.spill.is_some() {
                d.spill = Some(spill.clone());
            }
        }
        st.spill = match spill {
            None => Spill::None,
            Some(b) => Spill::Memory(b),
        };
        Ok(())
    }
    /// Changes the object's type (zapify).
    pub fn set_type(&self, otype: ObjectType, tx: &Tx) -> Result<()> {
        self.check_tx()?;
        let mut st = self.n.st.borrow_mut();
        self.slot(&mut st, tx.txg()).otype = Some(otype);
        for i in st.newer_than(tx.txg()) {
            let d = st.dirty[i].as_mut().expect("newer_than gives slots in use");
            if d.otype.is_some() {
                d.otype = Some(otype);
            }
        }
        st.otype = otype;
        Ok(())
    }
    /// Changes the numbers of compression and checksum of its data; 0 inherits.
    pub fn set_own(&self, compress: u8, checksum: u8, tx: &Tx) -> Result<()> {
        self.check_tx()?;
        let mut st = self.n.st.borrow_mut();
        let st = &mut *st;
        if st.own == (compress, checksum) {
            return Ok(());
        }
        st.own = (compress, checksum);
        self.slot(st, tx.txg()).own = Some((compress, checksum));
        for i in st.newer_than(tx.txg()) {
            let d = st.dirty[i].as_mut().expect("newer_than gives slots in use");
            if d.own.is_some() {
                d.own = Some((compress, checksum));
            }
        }
        Ok(())
    }
    /// Makes the object dirty without a change: its dnode is written in this txg.
    pub fn touch(&self, tx: &Tx) -> Result<()> {
        self.check_tx()?;
        let mut st = self.n.st.borrow_mut();
        self.slot(&mut st, tx.txg());
        Ok(())
    }

    /// Cached state of upper layers, one value per type `T`: made on first use, dropped together
    /// with the cached dnode.
    pub fn attach<T: 'static>(&self, make: impl FnOnce() -> T) -> Rc<T> {
        if let Some(t) = self.attached() {
            return t;
        }
        let made = Rc::new(make());
        self.n.attached.borrow_mut().push((TypeId::of::<T>(), made.clone()));
        made
    }
    /// The attached value of type `T`, if there is one.
    pub fn attached<T: 'static>(&self) -> Option<Rc<T>> {
        let list = self.n.attached.borrow();
        let (_, any) = list.iter().find(|(id, _)| *id == TypeId::of::<T>())?;
        any.clone().downcast().ok()
    }
    /// Forgets the attached value of type `T`.
    pub fn detach<T: 'static>(&self) {
        let mut list = self.n.attached.borrow_mut();
        let gone = list.iter().position(|(id, _)| *id == TypeId::of::<T>()).map(|i| list.swap_remove(i));
        drop(list);
        drop(gone);
    }

    /// Whether the object can be changed at all.
    pub(crate) fn check_tx(&self) -> Result<()> {
        if !self.os.writable {
            return Err(Error::new(ErrorKind::ReadOnly, format!("object set {} is read-only", self.os.id)));
        }
        if !self.exists() {
            return Err(Error::not_found(format!("object {} of object set {} is free", self.n.obj, self.os.id)));
        }
        Ok(())
    }
    /// The txg's dirty state of this object.
    pub(crate) fn slot<'a>(&self, st: &'a mut State, txg: Txg) -> &'a mut DirtyTxg {
        let (fresh, slot) = st.slot_entry(txg);
        if fresh {
            self.os.note_dirty(txg, &self.n);
        }
        slot
    }
}
