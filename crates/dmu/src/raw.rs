//! Object sets that receive raw: encrypted ones that are written without their key (format page 12
//! section 11).
//!
//! A raw stream has the encrypted blocks as they lie in the sender's pool, with their marks (salt,
//! IV and MAC), and the shape of every dnode. What is written here must give the same MACs:
//!
//! * blocks of data are stored as they come ([`Dnode::write_packed`]);
//! * a dnode gets exactly the shape that the stream says ([`Shape`]), its bonus area as it is,
//!   encrypted; so the sync puts together blocks of dnodes with the bytes of the sender, and stores
//!   them with the marks of [`Objset::mark_dnodes`];
//! * indirect blocks need no key;
//! * the object set has the portable MAC of the sender, and no accounting of owners.
//!
//! Between the txgs of a receive the MACs do not fit; nobody may look at the dataset with its key
//! before it is complete. Blocks are read without the key and not cached, since the cache keeps
//! what is decrypted.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use base::{Error, ObjectId, Result, ResultExt, Txg};
use bdev::Bytes;
use ondisk::blkptr::{BLKPTR_SIZE, Blkptr};
use ondisk::dnode::{DNODES_PER_BLOCK, DnodePhys, MAX_INDBLKSHIFT, MIN_INDBLKSHIFT, bonus_area, nblkptr_for, reach};
use ondisk::object_type::ObjectType;
use ondisk::objset::{ObjsetPhys, ObjsetType};
use zio::{CompressAlgo, Packed, SealMark, WriteReq};

use crate::ctx::{DmuCtx, ObjsetProps};
use crate::dnode::{Dnode, Spill};
use crate::objset::{Objset, ObjsetHooks};
use crate::tx::Tx;

/// The meta-dnode of the sender, and the MAC of its object set.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RawMeta {
    /// The MAC that the object set gets.
    pub portable_mac: [u8; 32],
    /// Levels of the meta-dnode.
    pub levels: u8,
    /// Its last block.
    pub max_blkid: u64,
    /// Its numbers of compression and checksum.
    pub own: (u8, u8),
}

/// The state of an object set that receives raw.
#[derive(Default)]
pub(crate) struct Raw {
    pub portable_mac: Cell<[u8; 32]>,
    /// The marks of blocks of dnodes that were not written with them yet, and their txg.
    marks: RefCell<BTreeMap<u64, (Txg, SealMark)>>,
}

/// The shape of a dnode in a raw stream.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Shape {
    /// Type of its data.
    pub otype: ObjectType,
    /// Type of its bonus.
    pub bonustype: ObjectType,
    /// Length of its bonus.
    pub bonuslen: u16,
    /// The whole bonus area up to the spill pointer; empty without a bonus.
    pub bonus: Vec<u8>,
    /// Block size in bytes.
    pub blksz: u32,
    /// log2 of the size of its indirect blocks.
    pub indblkshift: u8,
    /// Levels of its tree.
    pub levels: u8,
    /// Its last block.
    pub max_blkid: u64,
    /// Numbers of compression and checksum.
    pub own: (u8, u8),
    /// Slots.
    pub slots: u8,
    /// Whether it has a spill block.
    pub has_spill: bool,
}

impl Shape {
    /// Checks the fields that sizes follow from. Error: `Corrupt`.
    pub fn check(&self) -> Result<()> {
        let bad = |what: String| Err(Error::corrupt(format!("dnode of a raw stream: {what}")));
        if !self.otype.is_valid() || self.otype == ObjectType::NONE || !self.bonustype.is_valid() {
            return bad(format!("types {} and {}", self.otype.0, self.bonustype.0));
        }
        if self.blksz == 0 || !self.blksz.is_multiple_of(512) || u64::from(self.blksz) > base::MAX_BLOCK {
            return bad(format!("blocks of {} bytes", self.blksz));
        }
        if !(MIN_INDBLKSHIFT..=MAX_INDBLKSHIFT).contains(&self.indblkshift) {
            return bad(format!("indirect blocks of 2^{} bytes", self.indblkshift));
        }
        let slots = usize::from(self.slots);
        if slots == 0 || slots > DNODES_PER_BLOCK {
            return bad(format!("{slots} slots"));
        }
        let spill = if self.has_spill { BLKPTR_SIZE } else { 0 };
        let Some(area) = bonus_area(slots, self.block_pointers()).checked_sub(spill) else {
            return bad("a spill pointer without room for it".into());
        };
        if !self.bonus.is_empty() && self.bonus.len() != area || usize::from(self.bonuslen) > area {
            return bad(format!("a bonus of {} of {} bytes in an area of {area}", self.bonuslen, self.bonus.len()));
        }
        if self.bonus.is_empty() != (self.bonuslen == 0) {
            return bad(format!("a bonus of {} bytes without its area", self.bonuslen));
        }
        if self.levels == 0
            || self.levels > ondisk::blkptr::MAX_LEVELS
            || self.max_blkid >= reach(self.levels, self.block_pointers(), self.indblkshift)
            || (self.max_blkid + 1).checked_mul(u64::from(self.blksz)).is_none_or(|end| end > i64::MAX as u64)
        {
            return bad(format!("block {} with {} levels", self.max_blkid, self.levels));
        }
        Ok(())
    }

    /// Its block pointers.
    pub fn block_pointers(&self) -> u8 {
        nblkptr_for(usize::from(self.slots), self.bonustype, usize::from(self.bonuslen))
    }

    /// A dnode of this shape without blocks.
    fn phys(&self) -> DnodePhys {
        let Shape { otype, bonustype, bonuslen, .. } = *self;
        let mut phys = DnodePhys::new(otype, self.blksz, self.indblkshift, bonustype, bonuslen, self.slots);
        self.apply(&mut phys);
        phys.nlevels = self.levels;
        phys
    }

    /// Gives `phys` everything but the levels.
    pub(crate) fn apply(&self, phys: &mut DnodePhys) {
        (phys.otype, phys.bonustype, phys.bonuslen) = (self.otype, self.bonustype, self.bonuslen);
        (phys.compress, phys.checksum) = self.own;
        phys.set_datablksz(self.blksz);
        phys.indblkshift = self.indblkshift;
        phys.maxblkid = self.max_blkid;
        let kept = phys.bonus_area.len() - if phys.spill.is_some() { BLKPTR_SIZE } else { 0 };
        phys.bonus_area[..kept].fill(0);
        phys.bonus_area[..self.bonus.len()].copy_from_slice(&self.bonus);
    }
}

impl Objset {
    /// A new, empty encrypted object set without its key, which receives raw.
    pub fn create_raw(
        ctx: DmuCtx,
        id: u64,
        os_type: ObjsetType,
        props: ObjsetProps,
        hooks: ObjsetHooks,
        txg: Txg,
        meta: &RawMeta,
    ) -> Result<Objset> {
        let mut phys = ObjsetPhys::new(os_type, meta.levels);
        check_meta(&phys.meta_dnode, meta)?;
        phys.meta_dnode.maxblkid = meta.max_blkid;
        (phys.meta_dnode.compress, phys.meta_dnode.checksum) = meta.own;
        let os = Objset::build(ctx.sealed(), id, phys, Blkptr::hole(), props, hooks, true, true);
        os.begin_raw(meta);
        os.0.change_header(txg, |h| h.touch = true);
        Ok(os)
    }

    /// Opens an encrypted object set without its key, to receive raw.
    pub async fn open_raw(
        ctx: DmuCtx,
        id: u64,
        root: Blkptr,
        props: ObjsetProps,
        hooks: ObjsetHooks,
        meta: &RawMeta,
    ) -> Result<Objset> {
        let place = || format!("object set {id}");
        let ctx = ctx.sealed();
        let mut phys = ObjsetPhys::parse(&ctx.read(&root).await.at(place)?).at(place)?;
        if !root.encrypted() {
            return Err(Error::invalid(format!("object set {id} is not encrypted")));
        }
        let own = (phys.meta_dnode.compress, phys.meta_dnode.checksum);
        if phys.meta_dnode.nlevels != meta.levels || own != meta.own {
            return Err(Error::invalid(format!("object set {id} has not the shape of that which was sent")));
        }
        check_meta(&phys.meta_dnode, meta)?;
        phys.meta_dnode.maxblkid = phys.meta_dnode.maxblkid.max(meta.max_blkid);
        // The accounting of owners is not complete until it is done again with the key.
        phys.flags = 0;
        let os = Objset::build(ctx, id, phys, root, props, hooks, true, true);
        os.begin_raw(meta);
        Ok(os)
    }

    fn begin_raw(&self, meta: &RawMeta) {
        let raw = Raw::default();
        raw.portable_mac.set(meta.portable_mac);
        *self.0.raw.borrow_mut() = Some(raw);
    }

    /// Whether it receives raw.
    pub fn is_raw(&self) -> bool {
        self.0.raw.borrow().is_some()
    }

    /// The block of dnodes with `object` is encrypted so from the txg of `tx` on.
    pub fn mark_dnodes(&self, object: ObjectId, mark: SealMark, tx: &Tx) {
        if let Some(raw) = &*self.0.raw.borrow() {
            raw.marks.borrow_mut().insert(object.0 / DNODES_PER_BLOCK as u64, (tx.txg(), mark));
        }
    }

    /// Makes object `object` in that shape. Errors as [`Objset::alloc_at`].
    pub async fn alloc_shaped(&self, object: ObjectId, shape: &Shape, tx: &Tx) -> Result<Dnode> {
        shape.check()?;
        self.alloc_phys(object, shape.phys(), tx).await
    }
}

/// Checks that the meta-dnode of the sender can be made here.
fn check_meta(phys: &DnodePhys, meta: &RawMeta) -> Result<()> {
    let can = meta.levels > 0
        && meta.levels <= ondisk::blkptr::MAX_LEVELS
        && meta.max_blkid < reach(meta.levels, phys.nblkptr, phys.indblkshift).min(1 << 43);
    if can { Ok(()) } else { Err(Error::corrupt("the meta-dnode in the stream has an impossible shape")) }
}

impl Raw {
    /// Makes the request for a block of dnodes one that stores it with its mark, or that of the
    /// block it replaces.
    pub fn seal_dnodes(&self, req: &mut WriteReq, blkid: u64, old: &Blkptr) {
        let mut marks = self.marks.borrow_mut();
        let due = marks.get(&blkid).filter(|(txg, _)| *txg <= req.txg).map(|(_, mark)| *mark);
        let mark = match due {
            Some(mark) => {
                marks.remove(&blkid);
                mark
            }
            None if old.is_encrypted_data() => SealMark { salt_iv: Some(old.salt_iv()), mac: old.mac() },
            None => SealMark { salt_iv: Some(([0; 8], [0; 12])), mac: [0; 16] },
        };
        req.packed = Some(Rc::new(Packed { data: req.data.clone(), compress: CompressAlgo::Off, mark: Some(mark) }));
    }
}

impl Dnode {
    /// Gives the object, whose slots and pointers are the same, that shape. Its blocks beyond the
    /// last one must be free; all of them, if the size of blocks, or that of indirect blocks with
    /// several levels, differs. Error: `Corrupt` for an impossible shape.
    pub fn set_shape(&self, shape: &Shape, tx: &Tx) -> Result<()> {
        shape.check()?;
        self.check_tx()?;
        let mut st = self.n.st.borrow_mut();
        let st = &mut *st;
        let fits = st.phys.num_slots() == usize::from(shape.slots) && st.phys.nblkptr == shape.block_pointers();
        assert!(fits && st.phys.nlevels <= shape.levels, "object {} cannot get that shape", self.n.obj);
        (st.otype, st.own, st.blksz, st.maxblkid) = (shape.otype, shape.own, shape.blksz, shape.max_blkid);
        (st.bonustype, st.bonus) = (shape.bonustype, Rc::from(&shape.bonus[..usize::from(shape.bonuslen)]));
        st.invalidate_rmw(0, u64::MAX);
        if !shape.has_spill {
            st.spill = Spill::None;
        }
        let drops_spill = !shape.has_spill;
        let slot = self.slot(st, tx.txg());
        slot.shape = Some(Box::new(shape.clone()));
        if drops_spill {
            slot.spill = Some(None);
            slot.spill_packed = None;
        }
        Ok(())
    }

    /// The spill block as it is stored.
    pub fn set_spill_packed(&self, len: usize, packed: Packed, tx: &Tx) -> Result<()> {
        self.set_spill(Some(Bytes::zeroed(len)), tx)?;
        let mut st = self.n.st.borrow_mut();
        self.slot(&mut st, tx.txg()).spill_packed = Some(Rc::new(packed));
        Ok(())
    }

    /// Makes holes of whole blocks, `len` bytes from `off`; the number of the last block stays.
    /// Error: `Invalid` if those are not whole blocks.
    pub fn punch_blocks(&self, off: u64, len: u64, tx: &Tx) -> Result<()> {
        self.check_tx()?;
        let size = u64::from(self.block_size());
        let end = off.saturating_add(len);
        if !off.is_multiple_of(size) || (!end.is_multiple_of(size) && end != u64::MAX) {
            return Err(Error::invalid(format!("object {}: {len} bytes at {off} are not whole blocks", self.n.obj)));
        }
        let last = (end / size).min(self.max_blkid().saturating_add(1));
        if off / size < last {
            self.free_blocks(off / size, last, None, tx);
        }
        Ok(())
    }
}
