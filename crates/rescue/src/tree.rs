//! Object sets, objects and ZAPs of which parts are lost.
//!
//! The walkers of a checker stop at the first block that cannot be read; these say what is lost and
//! go on. A dnode is *there*, *free* (its block can be read, and the slot is empty) or *lost*, and
//! only a lost one may be looked for in older states. Of a ZAP every leaf that can be read gives
//! its entries, whether or not the table that leads to it is there.
//!
//! Trees are hostile: an indirect block is entered once for each object, and so is a block of
//! dnodes, which no pool shares. So a walk is never longer than the devices have blocks.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use base::{Error, Result, ResultExt, Txg};
use ondisk::blkptr::{BLKPTR_SIZE, Blkptr};
use ondisk::dnode::{DNODE_SIZE, DnodePhys, Slot, slots};
use ondisk::object_type::ObjectType;
use ondisk::objset::ObjsetPhys;
use ondisk::zap::{Header, KeyKind, Leaf, MicroZap, ZapKind, ZapValue, kind};
use zio::DataKey;

use crate::blocks::Blocks;

/// An object set as of some txg.
#[derive(Clone)]
pub struct Objset {
    /// Where its blocks are read.
    pub io: Rc<Blocks>,
    /// Its root block.
    pub phys: Rc<ObjsetPhys>,
    /// The txg of its newest block.
    pub txg: Txg,
    /// Opens its blocks if they are encrypted.
    pub key: Option<Rc<DataKey>>,
}

/// An object.
#[derive(Clone)]
pub struct Object {
    /// Where its blocks are read.
    pub io: Rc<Blocks>,
    /// Its number.
    pub num: u64,
    /// Its dnode.
    pub dn: DnodePhys,
    key: Option<Rc<DataKey>>,
}

/// What is known of an object number.
pub enum Lookup {
    /// The object.
    There(Box<Object>),
    /// There is none.
    Free,
    /// It cannot be known.
    Lost(Error),
}

/// A part of an object's data, in order.
pub enum Part {
    /// A block that its pointer is there for.
    Block(u64, Blkptr),
    /// Blocks whose pointers are lost: the first, and how many.
    Lost(u64, u64, Error),
}

/// What is left of a ZAP.
#[derive(Default)]
pub struct Entries {
    /// Entries by name.
    pub map: BTreeMap<Vec<u8>, ZapValue>,
    /// Why some may be missing.
    pub lost: Vec<String>,
}

/// The newest birth among some pointers.
fn newest<'a>(bps: impl IntoIterator<Item = &'a Blkptr>) -> Txg {
    bps.into_iter().filter(|b| !b.is_hole()).map(Blkptr::birth).max().unwrap_or_default()
}

impl Objset {
    /// The object set that a pointer leads to.
    pub fn open(io: &Rc<Blocks>, bp: &Blkptr) -> Result<Objset> {
        if bp.is_hole() {
            return Err(Error::corrupt("there is no object set"));
        }
        if bp.otype() != ObjectType::OBJSET || bp.level() != 0 {
            return Err(Error::corrupt(format!("the root points to a block of type {}", bp.otype())));
        }
        let phys = io.read(bp, None).and_then(|b| ObjsetPhys::parse(&b)).at(|| "object set")?;
        Ok(Objset { io: io.clone(), phys: Rc::new(phys), txg: bp.birth(), key: None })
    }
    /// An object set whose block was found.
    pub fn found(io: &Rc<Blocks>, phys: ObjsetPhys) -> Objset {
        let txg = newest(phys.meta_dnode.bps());
        Objset { io: io.clone(), phys: Rc::new(phys), txg, key: None }
    }
    /// The same with a key.
    pub fn with_key(mut self, key: Option<Rc<DataKey>>) -> Objset {
        self.key = key;
        self
    }
    /// Whether both have the same blocks.
    pub fn same_as(&self, other: &Objset) -> bool {
        self.phys.meta_dnode.blkptr == other.phys.meta_dnode.blkptr
    }
    fn wrap(&self, num: u64, dn: DnodePhys) -> Object {
        Object { io: self.io.clone(), num, dn, key: self.key.clone() }
    }
    /// The meta-dnode.
    pub fn meta(&self) -> Object {
        self.wrap(0, self.phys.meta_dnode.clone())
    }
    /// Objects in a block of dnodes.
    pub fn per_block(&self) -> u64 {
        (u64::from(self.phys.meta_dnode.datablksz()) / DNODE_SIZE as u64).max(1)
    }
    /// Object `num`.
    pub fn find(&self, num: u64) -> Lookup {
        let look = || -> Result<Option<DnodePhys>> {
            let (per, meta) = (self.per_block(), self.meta());
            if num / per > meta.dn.maxblkid {
                return Ok(None);
            }
            let bp = meta.bp(num / per)?;
            if bp.is_hole() {
                return Ok(None);
            }
            let block = meta.content(&bp)?;
            DnodePhys::parse_slot(&block, (num % per) as usize)
        };
        match look() {
            Ok(Some(dn)) => Lookup::There(Box::new(self.wrap(num, dn))),
            Ok(None) => Lookup::Free,
            Err(e) => Lookup::Lost(e.at(format_args!("object {num}"))),
        }
    }
    /// The object of a dnode in a block that was found for block `blk` of this object set.
    pub fn adopt(&self, num: u64, block: &[u8]) -> Lookup {
        match DnodePhys::parse_slot(block, (num % self.per_block()) as usize) {
            Ok(Some(dn)) => Lookup::There(Box::new(self.wrap(num, dn))),
            Ok(None) => Lookup::Free,
            Err(e) => Lookup::Lost(e),
        }
    }
    /// Every object. Ranges of numbers whose dnodes are lost are passed as errors with the first
    /// number and the count.
    pub fn for_each(&self, f: &mut dyn FnMut(Result<Object, (u64, u64, Error)>)) {
        let (per, meta) = (self.per_block(), self.meta());
        let mut seen = BTreeSet::new();
        meta.for_each(&mut |part| {
            let (blk, bp) = match part {
                Part::Block(blk, bp) => (blk, bp),
                Part::Lost(blk, count, e) => {
                    f(Err((blk.saturating_mul(per), count.saturating_mul(per), e)));
                    return Ok(());
                }
            };
            let first = blk.saturating_mul(per);
            if !seen.insert((bp.0[0], bp.0[1])) {
                f(Err((first, per, Error::corrupt("a block of dnodes is there twice"))));
                return Ok(());
            }
            match meta.content(&bp).and_then(|b| slots(&b).map(|kinds| (b, kinds))) {
                Ok((block, kinds)) => {
                    for (slot, _) in kinds.iter().enumerate().filter(|(_, k)| matches!(k, Slot::Dnode(_))) {
                        let num = first + slot as u64;
                        match DnodePhys::parse(&block[slot * DNODE_SIZE..]) {
                            Ok(Some(dn)) if num != 0 => f(Ok(self.wrap(num, dn))),
                            Ok(_) => {}
                            Err(e) => f(Err((num, 1, e))),
                        }
                    }
                }
                Err(e) => f(Err((first, per, e))),
            }
            Ok(())
        })
        .unwrap_or_default();
    }
}

impl Object {
    /// The pointer of data block `blkid`; a hole beyond the reach of the tree.
    pub fn bp(&self, blkid: u64) -> Result<Blkptr> {
        let dn = &self.dn;
        let top = dn.nlevels - 1;
        let index = dn.blkid_at_level(blkid, top);
        if index >= u64::from(dn.nblkptr) {
            return Ok(Blkptr::hole());
        }
        let mut bp = dn.blkptr[index as usize];
        for level in (0..top).rev() {
            if bp.is_hole() {
                return Ok(Blkptr::hole());
            }
            let block = self.indirect(&bp, level + 1)?;
            let within = dn.blkid_at_level(blkid, level) & ((1 << dn.epb_shift()) - 1);
            bp = Blkptr::at(&block, within as usize).unwrap_or(Blkptr::hole());
        }
        Ok(bp)
    }
    fn indirect(&self, bp: &Blkptr, level: u8) -> Result<Rc<[u8]>> {
        if bp.level() != level || bp.otype() != self.dn.otype || bp.lsize() != u64::from(self.dn.indblksz()) {
            return Err(Error::corrupt(format!("indirect block {bp} is of another object")));
        }
        self.io.read(bp, self.key.as_deref())
    }
    /// The content of a data block.
    pub fn content(&self, bp: &Blkptr) -> Result<Rc<[u8]>> {
        if bp.is_hole() {
            return Ok(vec![0; self.dn.datablksz() as usize].into());
        }
        if bp.level() != 0 || bp.lsize() != u64::from(self.dn.datablksz()) {
            return Err(Error::corrupt(format!("block {bp} has {} bytes, not {}", bp.lsize(), self.dn.datablksz())));
        }
        self.io.read(bp, self.key.as_deref())
    }
    /// The content of the spill block, if there is one.
    pub fn spill(&self) -> Result<Option<Rc<[u8]>>> {
        match self.dn.spill.filter(|bp| !bp.is_hole()) {
            Some(bp) => self.io.read(&bp, self.key.as_deref()).map(Some).at(|| "spill block"),
            None => Ok(None),
        }
    }
    /// `len` bytes from the start, zeros beyond the last block. The caller bounds `len`.
    pub fn read(&self, len: usize) -> Result<Vec<u8>> {
        let bs = self.dn.datablksz() as usize;
        let mut out = Vec::with_capacity(len);
        while out.len() < len {
            let blk = (out.len() / bs) as u64;
            if blk > self.dn.maxblkid {
                out.resize(len, 0);
                break;
            }
            let content = self.content(&self.bp(blk)?)?;
            out.extend_from_slice(&content[..bs.min(len - out.len())]);
        }
        Ok(out)
    }
    /// Every part of the data that is no hole, in order; stops at an error of `f`.
    pub fn for_each(&self, f: &mut dyn FnMut(Part) -> Result<()>) -> Result<()> {
        let mut seen = BTreeSet::new();
        for (i, bp) in self.dn.bps().iter().enumerate() {
            self.walk(bp, self.dn.nlevels - 1, i as u64, &mut seen, f)?;
        }
        Ok(())
    }
    fn walk(
        &self,
        bp: &Blkptr,
        level: u8,
        blkid: u64,
        seen: &mut BTreeSet<[u64; 2]>,
        f: &mut dyn FnMut(Part) -> Result<()>,
    ) -> Result<()> {
        // What lies beyond the highest block is not part of the object.
        if bp.is_hole() || blkid > self.dn.blkid_at_level(self.dn.maxblkid, level) {
            return Ok(());
        }
        if level == 0 {
            return f(Part::Block(blkid, *bp));
        }
        let shift = u32::from(level) * self.dn.epb_shift();
        let lost = |e: Error| {
            let first = blkid.checked_shl(shift).unwrap_or(0);
            let count = (self.dn.maxblkid - first).saturating_add(1).min(1u64.checked_shl(shift).unwrap_or(u64::MAX));
            Part::Lost(first, count, e)
        };
        let block = match self.indirect(bp, level) {
            Ok(_) if !seen.insert([bp.0[0], bp.0[1]]) => {
                return f(lost(Error::corrupt(format!("indirect block {bp} is there twice"))));
            }
            Ok(block) => block,
            Err(e) => return f(lost(e)),
        };
        for i in 0..block.len() / BLKPTR_SIZE {
            let child = Blkptr::at(&block, i).unwrap_or(Blkptr::hole());
            self.walk(&child, level - 1, (blkid << self.dn.epb_shift()) + i as u64, seen, f)?;
        }
        Ok(())
    }
    /// Whether every block can be read.
    pub fn is_complete(&self) -> bool {
        let mut good = true;
        let _ = self.for_each(&mut |part| {
            good = matches!(&part, Part::Block(_, bp) if self.io.is_readable(bp));
            if good { Ok(()) } else { Err(Error::corrupt("a block is lost")) }
        });
        good
    }

    /// All entries that are left of a ZAP.
    pub fn entries(&self) -> Entries {
        let mut out = Entries::default();
        let mut keys = KeyKind::String;
        let _ = self.for_each(&mut |part| {
            let (blkid, block) = match part {
                Part::Block(blkid, bp) => (blkid, self.content(&bp)),
                Part::Lost(blkid, count, e) => {
                    out.lost.push(format!("blocks {blkid} to {}: {e}", blkid.saturating_add(count - 1)));
                    return Ok(());
                }
            };
            let block = match block {
                Ok(b) => b,
                Err(e) => {
                    out.lost.push(format!("block {blkid}: {e}"));
                    return Ok(());
                }
            };
            if let Err(e) = take_block(&block, blkid, &mut keys, &mut out) {
                out.lost.push(format!("block {blkid}: {e}"));
            }
            Ok(())
        });
        out
    }
    /// The packed list in an object whose bonus holds its length.
    pub fn packed_nvlist(&self) -> Result<ondisk::nvlist::NvList> {
        let len = ondisk::bytes::try_le64(self.dn.bonus(), 0).unwrap_or(0);
        if len > 16 << 20 || len > self.dn.data_len() {
            return Err(Error::corrupt(format!("packed list of {len} bytes")));
        }
        ondisk::nvlist::NvList::decode(&self.read(len as usize)?)
    }
}

/// The entries in one block of a ZAP: a leaf, or all there is of a small one.
fn take_block(block: &[u8], blkid: u64, keys: &mut KeyKind, out: &mut Entries) -> Result<()> {
    if blkid == 0 {
        if kind(block)? == ZapKind::Micro {
            for e in MicroZap::open(block)?.entries() {
                match e {
                    Ok(e) => {
                        out.map.entry(e.name.to_vec()).or_insert(ZapValue::from_u64(e.value));
                    }
                    Err(e) => out.lost.push(e.to_string()),
                }
            }
        } else {
            *keys = Header::parse(block)?.params.key_kind();
        }
        return Ok(());
    }
    // The other blocks are of the table.
    if block.len() < 8 || ondisk::bytes::le64(block, 0) != ondisk::zap::BLOCK_LEAF {
        return Ok(());
    }
    let leaf = Leaf::open(block, *keys)?;
    for e in leaf.entries()? {
        let (key, value) = (leaf.key(&e)?, leaf.value(&e)?);
        out.map.entry(key).or_insert(value);
    }
    Ok(())
}

impl Entries {
    /// The value of `name` if it is one number.
    pub fn u64(&self, name: &str) -> Option<u64> {
        self.map.get(name.as_bytes()).and_then(ZapValue::as_u64)
    }
    /// The bytes of `name` if there are `N`.
    pub fn bytes<const N: usize>(&self, name: &str) -> Option<[u8; N]> {
        let v = self.map.get(name.as_bytes())?;
        let bytes: Vec<u8> = v.ints().map(|b| b as u8).collect();
        bytes.try_into().ok()
    }
    /// Names and numbers.
    pub fn numbers(&self) -> impl Iterator<Item = (&[u8], u64)> {
        self.map.iter().filter_map(|(k, v)| Some((&k[..], v.as_u64()?)))
    }
}
