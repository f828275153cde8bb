//! Reading blocks: from a block pointer to verified, decompressed bytes in this machine's order.
//!
//! Walkers use [`BlockReader::read`]: it tries every copy on every side until one has the right
//! checksum, and keeps metadata in a small cache. The checker uses [`BlockReader::read_every`]: it
//! reads all copies on all sides and reports each that is wrong.
//!
//! Every pointer is validated before anything is computed from it, so sizes are bounded by the
//! format's largest block and places by the devices.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;

use base::{Error, ErrorKind, MAX_BLOCK, Result, ResultExt, Txg};
use codec::{ChecksumAlgo, CompressAlgo};
use ondisk::blkptr::{Blkptr, BpLimits, Dva};
use ondisk::byteswap::swap_block;
use ondisk::gang::{self, GANG_HEADER_SIZE, GANG_MAX_DEPTH};
use ondisk::object_type::ObjectType;
use ondisk::vdev_config::VdevKind;

use crate::vdev::{Vdev, top};

/// Bytes of one of the cache's two generations.
const CACHE_HALF: usize = 32 << 20;

/// Reads blocks of one pool.
pub struct BlockReader {
    /// Top-level vdevs by id; `None` where there is none.
    pub tops: Vec<Option<Vdev>>,
    /// Allocatable bytes of each, for validation.
    sizes: Vec<u64>,
    /// No block is younger than this.
    pub txg: Txg,
    /// Whether space is charged by the deflate ratio (the directory entry `deflate`).
    pub deflate: Cell<bool>,
    /// Blocks whose checksum algorithm is not computed here.
    pub unverified: Cell<u64>,
    /// Alters the content of blocks after verification, for tests that no content can do harm.
    pub tamper: RefCell<Option<Box<Tamper>>>,
    cache: RefCell<Cache>,
}

/// Changes the content of a block; see [`BlockReader::tamper`].
pub type Tamper = dyn Fn(&Blkptr, &mut [u8]);

/// Two generations of blocks: a used block moves to the young one; when that is full, it replaces
/// the old one.
#[derive(Default)]
struct Cache {
    young: HashMap<[u64; 3], Rc<[u8]>>,
    old: HashMap<[u64; 3], Rc<[u8]>>,
    young_bytes: usize,
}

impl Cache {
    fn get(&mut self, key: &[u64; 3]) -> Option<Rc<[u8]>> {
        if let Some(b) = self.young.get(key) {
            return Some(b.clone());
        }
        let b = self.old.remove(key)?;
        self.put(*key, b.clone());
        Some(b)
    }
    fn put(&mut self, key: [u64; 3], b: Rc<[u8]>) {
        if self.young_bytes + b.len() > CACHE_HALF {
            self.old = std::mem::take(&mut self.young);
            self.young_bytes = 0;
        }
        self.young_bytes += b.len();
        self.young.insert(key, b);
    }
}

impl BlockReader {
    /// A reader over these vdevs as of `txg`.
    pub fn new(tops: Vec<Option<Vdev>>, txg: Txg) -> BlockReader {
        let sizes = tops.iter().map(|t| t.as_ref().map_or(0, |t| t.asize)).collect();
        BlockReader {
            tops,
            sizes,
            txg,
            deflate: Cell::new(true),
            unverified: Cell::new(0),
            tamper: RefCell::default(),
            cache: RefCell::default(),
        }
    }

    /// Validates a pointer without reading its block.
    pub fn validate(&self, bp: &Blkptr) -> Result<()> {
        bp.validate(&BpLimits { max_block: MAX_BLOCK, vdev_sizes: &self.sizes, max_birth: self.txg })
    }
    /// As [`BlockReader::validate`] for a block of the intent log, which may be younger than the
    /// pool's txg.
    pub fn validate_log(&self, bp: &Blkptr) -> Result<()> {
        bp.validate(&BpLimits { max_block: MAX_BLOCK, vdev_sizes: &self.sizes, max_birth: Txg(u64::MAX) })
    }

    /// Space that a copy is charged as.
    pub fn dsize_dva(&self, dva: Dva) -> u64 {
        let ratio = match top(&self.tops, dva.vdev().0) {
            Ok(t) if self.deflate.get() => t.deflate_ratio(),
            _ => return dva.asize(),
        };
        (dva.asize() >> 9) * ratio
    }
    /// Space that a block is charged as: dsize, psize, ucsize (format page 05 section 5).
    pub fn charge(&self, bp: &Blkptr) -> [u64; 3] {
        if bp.is_hole() {
            return [0; 3];
        }
        [bp.dvas().map(|d| self.dsize_dva(d)).sum(), bp.psize(), bp.ucsize()]
    }

    /// The block's content: verified, decompressed, little-endian. A hole is zeros; a redacted
    /// block is an error.
    pub fn read(&self, bp: &Blkptr) -> Result<Rc<[u8]>> {
        self.validate(bp)?;
        if bp.is_hole() {
            return Ok(vec![0; bp.lsize() as usize].into());
        }
        if bp.is_embedded() {
            return Ok(self.logical(bp, &[])?.into());
        }
        let key = [bp.0[0], bp.0[1], bp.0[10]];
        if let Some(b) = self.cache.borrow_mut().get(&key)
            && b.len() as u64 == bp.lsize()
        {
            return Ok(b);
        }
        let raw = self.read_raw(bp, 0)?;
        let b: Rc<[u8]> = self.logical(bp, &raw)?.into();
        self.keep(bp, &b);
        Ok(b)
    }
    /// Puts a block that was just read into the cache, if it is metadata.
    pub fn keep(&self, bp: &Blkptr, content: &Rc<[u8]>) {
        if !bp.is_embedded() && (bp.level() > 0 || bp.otype().is_metadata()) {
            self.cache.borrow_mut().put([bp.0[0], bp.0[1], bp.0[10]], content.clone());
        }
    }

    /// From stored bytes to content.
    pub fn logical(&self, bp: &Blkptr, raw: &[u8]) -> Result<Vec<u8>> {
        if bp.is_redacted() {
            return Err(Error::new(ErrorKind::Io, format!("block {bp} was redacted")));
        }
        let (payload, n) = bp.payload();
        let src = if bp.is_embedded() { &payload[..n] } else { raw };
        let mut out = vec![0u8; bp.lsize() as usize];
        match bp.compress() {
            Some(CompressAlgo::Empty | CompressAlgo::Off) => codec::decompress(CompressAlgo::Off, src, &mut out),
            Some(c) => codec::decompress(c, src, &mut out),
            None => Err(Error::corrupt("unknown compression")),
        }
        .at(|| format!("block {bp}"))?;
        if bp.needs_swap() {
            swap_block(bp.otype(), bp.level(), &mut out);
        }
        if let Some(tamper) = &*self.tamper.borrow() {
            tamper(bp, &mut out);
        }
        Ok(out)
    }

    /// The stored bytes of a block, from the first copy whose checksum is right.
    pub fn read_raw(&self, bp: &Blkptr, depth: u32) -> Result<Vec<u8>> {
        let mut last = None;
        let data = self.each_side(bp, depth, &mut |r, _| match r {
            Ok(b) => Some(b),
            Err(e) => {
                last = Some(e);
                None
            }
        });
        match (data, last) {
            (Some(b), _) => Ok(b),
            (None, Some(e)) => Err(e),
            (None, None) => Err(Error::corrupt(format!("block {bp} has no copies"))),
        }
    }

    /// The stored bytes of a block, after reading every copy of it on every side. `bad` gets each
    /// that is wrong, and whether by the configuration the device may miss it. Of a gang block the
    /// headers are read everywhere and the pieces once: each piece is a block that is read like
    /// this by itself ([`BlockReader::gang_children`]).
    pub fn read_every(&self, bp: &Blkptr, copies: &mut u64, bad: &mut dyn FnMut(Error, bool)) -> Option<Vec<u8>> {
        let mut good = None;
        for dva in bp.dvas() {
            let t = top(&self.tops, dva.vdev().0).ok().filter(|t| t.kind == VdevKind::Raidz);
            let Some(t) = t else {
                self.each_side_of(bp, dva, 0, &mut |r, doubtful| {
                    *copies += 1;
                    match r {
                        Ok(b) => {
                            good.get_or_insert(b);
                        }
                        Err(e) => bad(e, doubtful),
                    }
                    None
                });
                continue;
            };
            // Sides of RAID-Z are not copies: one of them must do, and then every column is
            // compared.
            let mut first = None;
            let found = self.each_side_of(bp, dva, 0, &mut |r, _| match r {
                Ok(b) => Some(b),
                Err(e) => {
                    first.get_or_insert(e);
                    None
                }
            });
            match (found, first) {
                (Some(b), _) => {
                    if !dva.gang() {
                        *copies +=
                            t.audit_raidz(&self.tops, (dva.offset(), bp.phys_birth()), &b, &mut |e, doubtful| {
                                bad(e.at(format_args!("block {bp}")), doubtful);
                            });
                    }
                    good.get_or_insert(b);
                }
                (None, Some(e)) => bad(e, false),
                (None, None) => {}
            }
        }
        good
    }

    /// Hands each side of each copy to `f` until it keeps one.
    fn each_side(
        &self,
        bp: &Blkptr,
        depth: u32,
        f: &mut dyn FnMut(Result<Vec<u8>>, bool) -> Option<Vec<u8>>,
    ) -> Option<Vec<u8>> {
        bp.dvas().find_map(|dva| self.each_side_of(bp, dva, depth, f))
    }
    /// Hands each side of one copy to `f` until it keeps one.
    fn each_side_of(
        &self,
        bp: &Blkptr,
        dva: Dva,
        depth: u32,
        f: &mut dyn FnMut(Result<Vec<u8>>, bool) -> Option<Vec<u8>>,
    ) -> Option<Vec<u8>> {
        let t = match top(&self.tops, dva.vdev().0) {
            Ok(t) => t,
            Err(e) => return f(Err(e.at(format_args!("block {bp}"))), false),
        };
        (0..t.sides(&self.tops)).find_map(|side| {
            let r = if dva.gang() {
                self.read_gang(t, side, bp, dva, depth)
            } else {
                t.read(&self.tops, side, dva.offset(), bp.psize() as usize, bp.phys_birth())
            };
            let r = r
                .and_then(|b| self.verify(bp, &b).map(|()| b))
                .at(|| format!("copy at {}:{:#x} on {} of block {bp}", dva.vdev(), dva.offset(), t.side_name(side)));
            f(r, t.side_doubtful(side))
        })
    }

    fn read_gang(&self, t: &Vdev, side: usize, bp: &Blkptr, dva: Dva, depth: u32) -> Result<Vec<u8>> {
        if depth >= GANG_MAX_DEPTH {
            return Err(Error::corrupt("gang blocks are nested too deeply"));
        }
        let header = t.read(&self.tops, side, dva.offset(), self.gang_header(bp), bp.phys_birth())?;
        let children = gang::parse(&header, bp)?;
        let mut out = Vec::with_capacity(bp.psize() as usize);
        for c in children.iter().filter(|c| !c.is_hole()) {
            self.validate_gang_child(c)?;
            out.extend_from_slice(&self.read_raw(c, depth + 1)?);
        }
        Ok(out)
    }
    /// Bytes of the header of a gang block: the smallest unit among its copies, which may have a
    /// header of 512 bytes at its beginning.
    fn gang_header(&self, bp: &Blkptr) -> usize {
        let units = bp.dvas().filter_map(|d| top(&self.tops, d.vdev().0).ok()).map(Vdev::gang_header);
        units.min().unwrap_or(GANG_HEADER_SIZE)
    }
    fn validate_gang_child(&self, c: &Blkptr) -> Result<()> {
        self.validate(c)?;
        if c.is_embedded() { Err(Error::corrupt("a gang block's piece is an embedded pointer")) } else { Ok(()) }
    }
    /// The pieces of a gang block, from the first good header.
    pub fn gang_children(&self, bp: &Blkptr) -> Result<Vec<Blkptr>> {
        let mut last = Error::corrupt(format!("gang block {bp} has no copies"));
        for dva in bp.dvas().filter(|d| d.gang()) {
            let t = top(&self.tops, dva.vdev().0)?;
            for side in 0..t.sides(&self.tops) {
                let header = t.read(&self.tops, side, dva.offset(), self.gang_header(bp), bp.phys_birth());
                match header.and_then(|h| gang::parse(&h, bp)) {
                    Ok(c) => {
                        let pieces: Vec<Blkptr> = c.into_iter().filter(|c| !c.is_hole()).collect();
                        pieces.iter().try_for_each(|c| self.validate_gang_child(c))?;
                        return Ok(pieces);
                    }
                    Err(e) => last = e,
                }
            }
        }
        Err(last)
    }

    /// Compares stored bytes with the pointer's checksum.
    fn verify(&self, bp: &Blkptr, data: &[u8]) -> Result<()> {
        let algo = bp.checksum_algo().ok_or_else(|| Error::corrupt("unknown checksum"))?;
        match algo {
            ChecksumAlgo::Off | ChecksumAlgo::NoParity => return Ok(()),
            ChecksumAlgo::Skein | ChecksumAlgo::Edonr | ChecksumAlgo::Blake3 => {
                self.unverified.set(self.unverified.get() + 1);
                return Ok(());
            }
            _ => {}
        }
        let sum = codec::compute(algo, data, !bp.is_little_endian(), None)?.0;
        let want = bp.checksum_words();
        let right = if bp.encrypted() && bp.otype() != ObjectType::OBJSET {
            // Half of the words hold a MAC; weak sums are folded into the other half.
            match algo {
                ChecksumAlgo::Fletcher2 | ChecksumAlgo::Fletcher4 => [sum[0] ^ sum[2], sum[1] ^ sum[3]] == want[..2],
                _ => sum[..2] == want[..2],
            }
        } else {
            sum == want
        };
        if right {
            Ok(())
        } else {
            Err(Error::new(
                ErrorKind::Checksum,
                format!("checksum {:x}:{:x}:{:x}:{:x}", sum[0], sum[1], sum[2], sum[3]),
            ))
        }
    }
}
