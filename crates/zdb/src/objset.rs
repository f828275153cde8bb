//! Object sets and objects, as far as reading needs them: dnodes by number, blocks by id, and walks
//! over block trees.
//!
//! Walks follow pointers from the disk, so they carry their own bounds: a tree has at most twelve
//! levels, an indirect block is entered once for each object, and a block id beyond the dnode's
//! highest is an error rather than a place to go to.

use std::collections::HashSet;
use std::rc::Rc;

use base::{Error, Result, ResultExt};
use ondisk::blkptr::{BLKPTR_SIZE, Blkptr};
use ondisk::dnode::{DNODE_SIZE, DnodePhys, Slot, slots};
use ondisk::object_type::ObjectType;
use ondisk::objset::ObjsetPhys;

use crate::blocks::BlockReader;

/// An object set.
#[derive(Clone)]
pub struct Objset {
    /// Where its blocks are read.
    pub io: Rc<BlockReader>,
    /// Name of the dataset, `mos` for the MOS.
    pub name: Rc<str>,
    /// Dataset object; 0 for the MOS.
    pub dsobj: u64,
    /// Pointer to its root block.
    pub bp: Blkptr,
    /// The root block.
    pub phys: ObjsetPhys,
}

/// An object.
#[derive(Clone)]
pub struct Object {
    /// Where its blocks are read.
    pub io: Rc<BlockReader>,
    /// Name of the object set.
    pub set: Rc<str>,
    /// Its number; accounting objects are -1 to -3.
    pub num: u64,
    /// Its dnode.
    pub dn: DnodePhys,
}

impl Objset {
    /// Reads the root block.
    pub fn open(io: &Rc<BlockReader>, bp: &Blkptr, name: &str, dsobj: u64) -> Result<Objset> {
        if bp.is_hole() {
            return Err(Error::corrupt(format!("{name}: there is no object set")));
        }
        if bp.otype() != ObjectType::OBJSET || bp.level() != 0 {
            return Err(Error::corrupt(format!("{name}: the root points to a block of type {}", bp.otype())));
        }
        let phys = io.read(bp).and_then(|b| ObjsetPhys::parse(&b)).at(|| format!("{name}: object set"))?;
        Ok(Objset { io: io.clone(), name: name.into(), dsobj, bp: *bp, phys })
    }
    fn wrap(&self, num: u64, dn: DnodePhys) -> Object {
        Object { io: self.io.clone(), set: self.name.clone(), num, dn }
    }
    /// The meta-dnode.
    pub fn meta(&self) -> Object {
        self.wrap(0, self.phys.meta_dnode.clone())
    }
    /// The accounting objects that are there: users, groups, projects.
    pub fn accounting(&self) -> [Option<Object>; 3] {
        let p = &self.phys;
        let one = |dn: &Option<DnodePhys>, n: u64| dn.clone().map(|dn| self.wrap(n, dn));
        [one(&p.userused, u64::MAX), one(&p.groupused, u64::MAX - 1), one(&p.projectused, u64::MAX - 2)]
    }
    fn dnode_block(&self, num: u64) -> Result<Option<(Rc<[u8]>, usize)>> {
        let meta = self.meta();
        let per = u64::from(meta.dn.datablksz()) / DNODE_SIZE as u64;
        let (blk, slot) = (num / per, (num % per) as usize);
        if blk > meta.dn.maxblkid {
            return Ok(None);
        }
        let bp = meta.bp(blk)?;
        if bp.is_hole() {
            return Ok(None);
        }
        Ok(Some((meta.content(&bp)?, slot)))
    }
    /// Object `num`, `None` when there is none.
    pub fn find(&self, num: u64) -> Result<Option<Object>> {
        if num == 0 {
            return Ok(Some(self.meta()));
        }
        let place = || format!("{} object {num}", self.name);
        match self.dnode_block(num).at(place)? {
            None => Ok(None),
            Some((block, slot)) => Ok(DnodePhys::parse_slot(&block, slot).at(place)?.map(|dn| self.wrap(num, dn))),
        }
    }
    /// Object `num`; that it is not there is an error.
    pub fn object(&self, num: u64) -> Result<Object> {
        self.find(num)?.ok_or_else(|| Error::not_found(format!("{}: there is no object {num}", self.name)))
    }
    /// All objects in order. A block of dnodes that cannot be read is passed to `f` as an error and
    /// skipped.
    pub fn for_each_object(&self, f: &mut dyn FnMut(Result<Object>)) {
        let meta = self.meta();
        let per = u64::from(meta.dn.datablksz()) / DNODE_SIZE as u64;
        let walked = meta.for_each_data(&mut |blk, bp| {
            let block = match meta.content(bp) {
                Ok(b) => b,
                Err(e) => {
                    f(Err(e.at(format_args!("{} dnodes {}..", self.name, blk * per))));
                    return Ok(());
                }
            };
            let kinds = match slots(&block) {
                Ok(k) => k,
                Err(e) => {
                    f(Err(e.at(format_args!("{} dnodes {}..", self.name, blk * per))));
                    return Ok(());
                }
            };
            for (slot, kind) in kinds.iter().enumerate() {
                let num = blk * per + slot as u64;
                if matches!(kind, Slot::Dnode(_)) && num != 0 {
                    let dn = DnodePhys::parse(&block[slot * DNODE_SIZE..]);
                    match dn.at(|| format!("{} object {num}", self.name)) {
                        Ok(Some(dn)) => f(Ok(self.wrap(num, dn))),
                        Ok(None) => {}
                        Err(e) => f(Err(e)),
                    }
                }
            }
            Ok(())
        });
        if let Err(e) = walked {
            f(Err(e));
        }
    }
}

impl Object {
    /// The object's name in messages.
    pub fn place(&self) -> String {
        match self.num {
            n if n > u64::MAX - 3 => format!("{} object -{}", self.set, u64::MAX - n + 1),
            n => format!("{} object {n}", self.set),
        }
    }
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
    /// An indirect block, checked to be of the expected shape.
    pub fn indirect(&self, bp: &Blkptr, level: u8) -> Result<Rc<[u8]>> {
        if bp.level() != level || bp.otype() != self.dn.otype || bp.lsize() != u64::from(self.dn.indblksz()) {
            return Err(Error::corrupt(format!(
                "{}: indirect block {bp} has level {}, type {}, {} bytes",
                self.place(),
                bp.level(),
                bp.otype(),
                bp.lsize()
            )));
        }
        self.io.read(bp).at(|| self.place())
    }
    /// The content of a data block of this object.
    pub fn content(&self, bp: &Blkptr) -> Result<Rc<[u8]>> {
        if bp.is_hole() {
            return Ok(vec![0; self.dn.datablksz() as usize].into());
        }
        if bp.level() != 0 || bp.lsize() != u64::from(self.dn.datablksz()) {
            return Err(Error::corrupt(format!(
                "{}: block {bp} has level {} and {} bytes instead of {}",
                self.place(),
                bp.level(),
                bp.lsize(),
                self.dn.datablksz()
            )));
        }
        self.io.read(bp).at(|| self.place())
    }
    /// Data block `blkid`, zeros for a hole.
    pub fn block(&self, blkid: u64) -> Result<Rc<[u8]>> {
        self.content(&self.bp(blkid)?)
    }
    /// `len` bytes from `off`; zeros beyond the last block. The caller bounds `len`.
    pub fn read(&self, off: u64, len: usize) -> Result<Vec<u8>> {
        let bs = u64::from(self.dn.datablksz());
        let mut out = Vec::with_capacity(len);
        let mut at = off;
        while out.len() < len {
            let within = (at % bs) as usize;
            let take = (bs as usize - within).min(len - out.len());
            if at / bs > self.dn.maxblkid {
                out.resize(len, 0);
                break;
            }
            let bp = self.bp(at / bs)?;
            if bp.is_hole() {
                out.resize(out.len() + take, 0);
            } else {
                out.extend_from_slice(&self.content(&bp)?[within..within + take]);
            }
            at += take as u64;
        }
        Ok(out)
    }
    /// Whether the object has no blocks at all.
    pub fn is_empty(&self) -> bool {
        self.dn.bps().iter().all(Blkptr::is_hole)
    }
    /// Every data block that is not a hole, in order. Stops at the first error, its own or of `f`.
    pub fn for_each_data(&self, f: &mut dyn FnMut(u64, &Blkptr) -> Result<()>) -> Result<()> {
        let mut seen = HashSet::new();
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
        seen: &mut HashSet<(u64, u64)>,
        f: &mut dyn FnMut(u64, &Blkptr) -> Result<()>,
    ) -> Result<()> {
        if bp.is_hole() {
            return Ok(());
        }
        if blkid > self.dn.blkid_at_level(self.dn.maxblkid, level) {
            return Err(Error::corrupt(format!(
                "{}: level {level} block {blkid} lies beyond the highest block {}",
                self.place(),
                self.dn.maxblkid
            )));
        }
        if level == 0 {
            return f(blkid, bp);
        }
        if !seen.insert((bp.0[0], bp.0[1])) {
            return Err(Error::corrupt(format!("{}: indirect block {bp} is there twice", self.place())));
        }
        let block = self.indirect(bp, level)?;
        for i in 0..block.len() / BLKPTR_SIZE {
            let child = Blkptr::at(&block, i).unwrap_or(Blkptr::hole());
            self.walk(&child, level - 1, (blkid << self.dn.epb_shift()) + i as u64, seen, f)?;
        }
        Ok(())
    }
}

/// The packed list in an object whose bonus holds its length.
pub fn packed_nvlist(obj: &Object) -> Result<ondisk::nvlist::NvList> {
    let len = ondisk::bytes::try_le64(obj.dn.bonus(), 0).unwrap_or(0);
    if len > 16 << 20 || len > obj.dn.data_len() {
        return Err(Error::corrupt(format!("{}: packed list of {len} bytes", obj.place())));
    }
    obj.read(0, len as usize).and_then(|b| ondisk::nvlist::NvList::decode(&b)).at(|| obj.place())
}
