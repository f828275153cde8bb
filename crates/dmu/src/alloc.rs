//! Object numbers: finding a free slot in the meta-dnode.
//!
//! Numbers are allocated in rising order, from one block of dnodes at a time: its free slots are
//! found once and kept as a bit map. Blocks that are (nearly) full are skipped by the fill counts
//! of the committed tree, without reading them. After [`RESCAN_FREED`] freed objects the search
//! begins again at the start. A freed number is not allocated before the txg that freed it has
//! synced: until then its dnode stays in the cache, and a cached number counts as taken.

use base::{Error, ErrorKind, ObjectId, Result};
use ondisk::blkptr::BLKPTR_SIZE;
use ondisk::dnode::{DNODE_SIZE, DNODES_PER_BLOCK, DnodePhys, MAX_OBJECT, Slot, slots};
use ondisk::object_type::ObjectType;

use crate::dnode::{Dnode, DnodeInner};
use crate::objset::Objset;
use crate::tx::Tx;

/// Objects freed after which a search begins again at the start.
const RESCAN_FREED: u64 = 256;

/// The parameters of a new object.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ObjSpec {
    /// Type of its data.
    pub otype: ObjectType,
    /// Data block size in bytes, a multiple of 512; 0 means 512.
    pub blksz: u32,
    /// log2 of the indirect block size; 0 means 17.
    pub indblkshift: u8,
    /// Type of its bonus.
    pub bonustype: ObjectType,
    /// Bytes of its bonus, zero at first.
    pub bonuslen: u16,
    /// Bytes of its dnode, a multiple of 512; 0 means 512.
    pub dnodesize: u32,
    /// Compression number of its data, 0 inherits.
    pub compress: u8,
    /// Checksum number of its data, 0 inherits.
    pub checksum: u8,
    /// Beside the bonus is room for the pointer of a spill block.
    pub spills: bool,
}

impl ObjSpec {
    /// An object of `otype` with blocks of `blksz` bytes and no bonus.
    pub fn new(otype: ObjectType, blksz: u32) -> ObjSpec {
        ObjSpec {
            otype,
            blksz,
            indblkshift: 0,
            bonustype: ObjectType::NONE,
            bonuslen: 0,
            dnodesize: 0,
            compress: 0,
            checksum: 0,
            spills: false,
        }
    }
    /// With room for the pointer of a spill block, whatever its bonus takes.
    pub fn spills(self) -> ObjSpec {
        ObjSpec { spills: true, ..self }
    }
    /// With a bonus.
    pub fn bonus(self, bonustype: ObjectType, bonuslen: u16) -> ObjSpec {
        ObjSpec { bonustype, bonuslen, ..self }
    }
    /// With indirect blocks of `1 << shift` bytes.
    pub fn indblkshift(self, shift: u8) -> ObjSpec {
        ObjSpec { indblkshift: shift, ..self }
    }
    /// With a dnode of `bytes` bytes.
    pub fn dnodesize(self, bytes: u32) -> ObjSpec {
        ObjSpec { dnodesize: bytes, ..self }
    }

    fn slots(&self) -> usize {
        (self.dnodesize.max(512) as usize) / DNODE_SIZE
    }
    fn phys(&self) -> Result<DnodePhys> {
        let blksz = self.blksz.max(512);
        let shift = if self.indblkshift == 0 { 17 } else { self.indblkshift };
        let slots = self.slots();
        let bad = |what: String| Err(Error::invalid(format!("new object of type {}: {what}", self.otype)));
        if self.otype == ObjectType::NONE || !self.otype.is_valid() {
            return bad("no such type".into());
        }
        if !blksz.is_multiple_of(512) || u64::from(blksz) > base::MAX_BLOCK {
            return bad(format!("block size {blksz}"));
        }
        if !(12..=17).contains(&shift) {
            return bad(format!("indirect block shift {shift}"));
        }
        if slots > DNODES_PER_BLOCK || !self.dnodesize.is_multiple_of(512) {
            return bad(format!("dnode of {} bytes", self.dnodesize));
        }
        let spill = if self.spills { BLKPTR_SIZE as u16 } else { 0 };
        if usize::from(self.bonuslen) > slots * DNODE_SIZE - 64 - 128 - usize::from(spill) {
            return bad(format!("bonus of {} bytes", self.bonuslen));
        }
        let mut phys = DnodePhys::new(self.otype, blksz, shift, self.bonustype, self.bonuslen + spill, slots as u8);
        phys.bonuslen = self.bonuslen;
        (phys.compress, phys.checksum) = (self.compress, self.checksum);
        Ok(phys)
    }
}

/// The search's state.
#[derive(Default)]
pub(crate) struct AllocState {
    /// Block of the meta-dnode that numbers are taken from.
    blkid: u64,
    /// Its taken slots, if they are known.
    taken: Option<u32>,
    /// Objects whose freeing has synced since the search began.
    pub freed: u64,
    /// Counts moves, so that two searches at once notice each other.
    moves: u64,
}

fn mask(pos: usize, n: usize) -> u32 {
    ((((1u64 << n) - 1) << pos) & 0xffff_ffff) as u32
}

/// First run of `n` free slots.
fn find(taken: u32, n: usize) -> Option<usize> {
    (0..=DNODES_PER_BLOCK - n).find(|&pos| taken & mask(pos, n) == 0)
}

impl Objset {
    /// Makes an object with a free number.
    pub async fn alloc(&self, spec: ObjSpec, tx: &Tx) -> Result<Dnode> {
        self.ctx().rt().spend(rt::cost::DMU_ALLOC).await;
        self.check_writable()?;
        let phys = spec.phys()?;
        let n = spec.slots();
        loop {
            let (start, moves) = {
                let mut a = self.0.alloc.borrow_mut();
                if let Some(taken) = a.taken {
                    if let Some(pos) = find(taken, n) {
                        a.taken = Some(taken | mask(pos, n));
                        let obj = a.blkid * DNODES_PER_BLOCK as u64 + pos as u64;
                        drop(a);
                        return Ok(self.insert_new(ObjectId(obj), phys, tx));
                    }
                    a.taken = None;
                    a.blkid += 1;
                    if a.freed >= RESCAN_FREED {
                        (a.blkid, a.freed) = (0, 0);
                    }
                    a.moves += 1;
                }
                (a.blkid, a.moves)
            };
            // Boxed: it is rare, and would enlarge the future of every creation.
            let blkid = Box::pin(self.meta().next_with_room(start)).await?;
            if blkid >= MAX_OBJECT / DNODES_PER_BLOCK as u64 {
                return Err(Error::new(
                    ErrorKind::NoSpace,
                    format!("object set {} has no object numbers left", self.0.id),
                ));
            }
            let taken = self.taken_slots(blkid).await?;
            let mut a = self.0.alloc.borrow_mut();
            if a.moves == moves && a.taken.is_none() {
                (a.blkid, a.taken) = (blkid, Some(taken));
                a.moves += 1;
            }
        }
    }

    /// Makes object `obj`. `Exists` if it is taken, `Busy` if it was freed in a txg that has not
    /// synced.
    pub async fn alloc_at(&self, obj: ObjectId, spec: ObjSpec, tx: &Tx) -> Result<Dnode> {
        self.alloc_phys(obj, spec.phys()?, tx).await
    }

    /// As [`Objset::alloc_at`], with the new dnode.
    pub(crate) async fn alloc_phys(&self, obj: ObjectId, phys: DnodePhys, tx: &Tx) -> Result<Dnode> {
        self.check_writable()?;
        let n = phys.num_slots();
        let (blkid, pos) = (obj.0 / DNODES_PER_BLOCK as u64, (obj.0 % DNODES_PER_BLOCK as u64) as usize);
        if obj.0 == 0 || obj.0 >= MAX_OBJECT || pos + n > DNODES_PER_BLOCK {
            return Err(Error::invalid(format!("object number {obj} for a dnode of {n} slots")));
        }
        let taken = self.taken_slots(blkid).await?;
        if taken & mask(pos, n) != 0 {
            let leaving = self.0.map.borrow().get(&obj.0).is_some_and(|d| !d.st.borrow().exists);
            let kind = if leaving { ErrorKind::Busy } else { ErrorKind::Exists };
            return Err(Error::new(kind, format!("object {obj} of object set {} is taken", self.0.id)));
        }
        {
            let mut a = self.0.alloc.borrow_mut();
            if a.blkid == blkid {
                a.taken = a.taken.map(|t| t | mask(pos, n));
            }
            // A search that has read the block already must read it again.
            a.moves += 1;
        }
        Ok(self.insert_new(obj, phys, tx))
    }

    /// Frees an object. Its handles stay valid, but the object does not exist any more.
    pub async fn free(&self, obj: ObjectId, tx: &Tx) -> Result<()> {
        let dn = self.hold(obj).await?;
        dn.check_tx()?;
        let mut st = dn.n.st.borrow_mut();
        let st = &mut *st;
        self.0.will_kill(tx.txg(), st.maxblkid.saturating_add(1));
        st.exists = false;
        st.invalidate_rmw(0, u64::MAX);
        dn.slot(st, tx.txg()).free = true;
        // Changes of newer txgs are dropped; changes of older ones are still written.
        for i in st.newer_than(tx.txg()) {
            if let Some(mut d) = st.dirty[i].take() {
                self.0.dirty[i].borrow_mut().remove(&obj.0);
                dn.release(d.txg, d.blocks.free(0, u64::MAX));
                // That txg does not sync this object, so its early writes and clones are given
                // up here.
                self.0.free_given_up(&d.blocks.take_given_up(), d.txg)?;
            }
        }
        let slot = st.dirty[tx.txg().slot()].as_mut().expect("just used");
        let gone = slot.blocks.free(0, u64::MAX);
        dn.release(tx.txg(), gone);
        Ok(())
    }

    /// Taken slots of a block of dnodes: on disk, dirty, or freed but not synced.
    async fn taken_slots(&self, blkid: u64) -> Result<u32> {
        loop {
            let evictions = self.0.evictions.get();
            let mut taken = if blkid == 0 { 1 } else { 0 };
            if let Some(block) = self.meta().block(blkid).await? {
                for (i, s) in slots(&block)?.into_iter().enumerate().take(DNODES_PER_BLOCK) {
                    if s != Slot::Free {
                        taken |= mask(i, 1);
                    }
                }
            }
            if self.0.evictions.get() != evictions {
                continue;
            }
            let first = blkid * DNODES_PER_BLOCK as u64;
            for (&obj, dn) in self.0.map.borrow().range(first..first + DNODES_PER_BLOCK as u64) {
                taken |= mask((obj - first) as usize, dn.st.borrow().phys.num_slots());
            }
            return Ok(taken);
        }
    }

    fn insert_new(&self, obj: ObjectId, phys: DnodePhys, tx: &Tx) -> Dnode {
        let n = DnodeInner::new(obj, phys, false);
        let old = self.0.map.borrow_mut().insert(obj.0, n.clone());
        assert!(old.is_none(), "object {obj} was given out twice");
        self.0.note_cached();
        let dn = Dnode { os: self.0.clone(), n };
        dn.slot(&mut dn.n.st.borrow_mut(), tx.txg()).alloc = true;
        dn
    }
}
