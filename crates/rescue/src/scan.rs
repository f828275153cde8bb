//! The search for lost roots: devices are read from end to end for blocks that are object sets or
//! dnodes.
//!
//! Such a block has no checksum of its own: the pointer that led to it is what is lost. But its
//! form is narrow. It decompresses to exactly the size of an object set or of a block of dnodes,
//! every dnode in it is possible, and so is every pointer. What it points to is verified as always,
//! by the checksums in those pointers. So a wrong guess costs time and yields nothing.
//!
//! A place is any sector of a top-level vdev's space ([`Vdevs::plain`] reads through RAID-Z). The
//! first sector says whether it may begin such a block, and how long it would be: the stream of LZ4
//! begins with its length, LZJB makes the first bytes of a dnode, and a block that is stored as it
//! is begins with one. Only then the rest is read.
//!
//! The search can be interrupted: it tells the caller how far it is ([`Event::At`]), and goes on
//! from there.

use std::collections::BTreeSet;
use std::rc::Rc;

use base::{Result, Txg};
use codec::CompressAlgo;
use ondisk::blkptr::{Blkptr, BpLimits};
use ondisk::dnode::{DNODE_BLOCK_SIZE, DNODE_SIZE, DnodePhys, MAX_INDBLKSHIFT, MIN_INDBLKSHIFT, Slot, slots};
use ondisk::object_type::ObjectType;
use ondisk::objset::{OBJSET_SIZE_V1, OBJSET_SIZE_V2, OBJSET_SIZE_V3, ObjsetPhys, ObjsetType};

use crate::vdevs::{Top, Vdevs};

/// Most sectors that are guessed at where the device with the first one is gone.
const GUESSED_MAX: usize = 8;
/// Most hits that are kept.
const HITS_MAX: usize = 4 << 20;
/// Bytes of a vdev between two reports of how far it is.
const REPORT: u64 = 16 << 20;

/// A block that was found.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Hit {
    /// Top-level vdev.
    pub top: u32,
    /// Offset there.
    pub off: u64,
    /// Stored bytes.
    pub size: u32,
    /// Number of the compression.
    pub algo: u8,
    /// Bytes of its content.
    pub lsize: u32,
}

/// What the search has to say.
pub enum Event {
    /// A block.
    Hit(Hit),
    /// All before this offset of a vdev is searched; the total is bytes of all vdevs.
    At {
        /// Top-level vdev.
        top: u32,
        /// Offset there.
        off: u64,
        /// Bytes done, of all vdevs.
        done: u64,
        /// Bytes of all vdevs.
        total: u64,
    },
}

/// The content of a block that was found.
pub enum Content {
    /// An object set.
    Objset(Box<ObjsetPhys>),
    /// Dnodes.
    Dnodes(Rc<[u8]>),
}

/// Searches all vdevs from (vdev, offset) on; `lzjb`: the pool may compress metadata with LZJB.
pub fn scan(vdevs: &Vdevs, from: (u32, u64), lzjb: bool, event: &mut dyn FnMut(Event) -> Result<()>) -> Result<()> {
    vdevs.streaming.set(true);
    let done = Search { vdevs, lzjb, seen: BTreeSet::new(), hits: 0 }.run(from, event);
    vdevs.streaming.set(false);
    done
}

/// Reads a hit again.
pub fn content(vdevs: &Vdevs, hit: &Hit) -> Option<Content> {
    let algo = CompressAlgo::from_u8(hit.algo)?;
    let stored = vdevs.plain(hit.top, hit.off, hit.size as usize, Txg(u64::MAX));
    stored.iter().find_map(|raw| parse(raw, algo, hit.lsize as usize))
}

struct Search<'a> {
    vdevs: &'a Vdevs,
    lzjb: bool,
    /// Sums of contents, to keep one copy of each.
    seen: BTreeSet<[u64; 2]>,
    hits: usize,
}

impl Search<'_> {
    fn run(&mut self, from: (u32, u64), event: &mut dyn FnMut(Event) -> Result<()>) -> Result<()> {
        let all =
            || (0u32..).zip(&self.vdevs.tops).filter_map(|(n, t)| Some((n, t.as_ref().filter(|t| t.is_concrete())?)));
        let total: u64 = all().map(|(_, t)| t.asize).sum();
        let tops: Vec<(u32, u64, u64)> = all().map(|(n, t)| (n, t.asize, t.step())).collect();
        let mut before = 0;
        for (top, asize, step) in tops {
            if top < from.0 {
                before += asize;
                continue;
            }
            let start = if top == from.0 { from.1 / step * step } else { 0 };
            let (mut off, mut reported) = (start, start);
            while off < asize {
                if off - reported >= REPORT {
                    reported = off;
                    event(Event::At { top, off, done: before + off, total })?;
                }
                self.look(top, off, event)?;
                off += step;
            }
            before += asize;
            event(Event::At { top: top + 1, off: 0, done: before, total })?;
        }
        Ok(())
    }

    fn look(&mut self, top: u32, off: u64, event: &mut dyn FnMut(Event) -> Result<()>) -> Result<()> {
        let Some(sector) = self.vdevs.top(top).map(Top::sector) else { return Ok(()) };
        if self.vdevs.lacks_first(top, off) {
            for n in 1..=GUESSED_MAX {
                for raw in self.vdevs.plain(top, off, n * sector, Txg(u64::MAX)) {
                    for (algo, size, lsize) in guesses(&raw, sector, self.lzjb) {
                        if size == n * sector {
                            self.take(
                                &raw,
                                Hit { top, off, size: size as u32, algo: algo as u8, lsize: lsize as u32 },
                                event,
                            )?;
                        }
                    }
                }
            }
            return Ok(());
        }
        for first in self.vdevs.plain(top, off, sector, Txg(u64::MAX)) {
            for (algo, size, lsize) in guesses(&first, sector, self.lzjb) {
                let hit = Hit { top, off, size: size as u32, algo: algo as u8, lsize: lsize as u32 };
                self.read(hit, event)?;
                // The first slot of a block of dnodes may be free: zeros, which say nothing.
                if algo == CompressAlgo::Off
                    && lsize == DNODE_BLOCK_SIZE
                    && sector == DNODE_SIZE
                    && off >= sector as u64
                {
                    self.read(Hit { off: off - sector as u64, ..hit }, event)?;
                }
            }
        }
        Ok(())
    }

    fn read(&mut self, hit: Hit, event: &mut dyn FnMut(Event) -> Result<()>) -> Result<()> {
        for raw in self.vdevs.plain(hit.top, hit.off, hit.size as usize, Txg(u64::MAX)) {
            self.take(&raw, hit, event)?;
        }
        Ok(())
    }

    fn take(&mut self, raw: &[u8], hit: Hit, event: &mut dyn FnMut(Event) -> Result<()>) -> Result<()> {
        let Some(algo) = CompressAlgo::from_u8(hit.algo) else { return Ok(()) };
        if self.hits >= HITS_MAX || parse(raw, algo, hit.lsize as usize).is_none() {
            return Ok(());
        }
        let sum = codec::fletcher4(raw).0;
        if !self.seen.insert([sum[0] ^ sum[2], sum[1] ^ sum[3]]) {
            return Ok(());
        }
        self.hits += 1;
        event(Event::Hit(hit))
    }
}

/// What a block that begins with this sector may be: compression, stored bytes, bytes of content.
fn guesses(first: &[u8], sector: usize, lzjb: bool) -> Vec<(CompressAlgo, usize, usize)> {
    const SIZES: [usize; 4] = [DNODE_BLOCK_SIZE, OBJSET_SIZE_V3, OBJSET_SIZE_V2, OBJSET_SIZE_V1];
    let mut out = Vec::new();
    let Some(len) = first.first_chunk::<4>().map(|b| u32::from_be_bytes(*b) as usize) else { return out };
    let stored = (len + 4).next_multiple_of(sector);
    // A block is stored compressed only if that saves an eighth.
    out.extend(SIZES.iter().filter(|&&s| len > 8 && len + 4 <= s - s / 8).map(|&s| (CompressAlgo::Lz4, stored, s)));
    if is_dnode(first) {
        out.push((CompressAlgo::Off, DNODE_BLOCK_SIZE, DNODE_BLOCK_SIZE));
        if first[0] == ObjectType::DNODE.0 {
            out.extend(SIZES[1..].iter().map(|&s| (CompressAlgo::Off, s, s)));
        }
    } else if first.len() > DNODE_SIZE && codec::is_zero(&first[..DNODE_SIZE]) && is_dnode(&first[DNODE_SIZE..]) {
        out.push((CompressAlgo::Off, DNODE_BLOCK_SIZE, DNODE_BLOCK_SIZE));
    }
    if lzjb {
        let mut head = [0u8; 16];
        if codec::decompress(CompressAlgo::Lzjb, first, &mut head).is_ok()
            && (head == [0; 16] && first[..4] != [0; 4] || has_dnode_head(&head))
        {
            // How long the stream is shows when it is read: as much as it may have.
            out.extend(SIZES.iter().map(|&s| (CompressAlgo::Lzjb, (s - s / 8).next_multiple_of(sector), s)));
        }
    }
    out
}

/// Whether the first bytes of a dnode are possible.
fn has_dnode_head(b: &[u8]) -> bool {
    b[0] != 0
        && ObjectType(b[0]).is_valid()
        && (MIN_INDBLKSHIFT..=MAX_INDBLKSHIFT).contains(&b[1])
        && (1..=12).contains(&b[2])
        && (1..=3).contains(&b[3])
        && ObjectType(b[4]).is_valid()
        && b[13..16] == [0; 3]
}
fn is_dnode(b: &[u8]) -> bool {
    b.len() >= 16 && has_dnode_head(b)
}

/// Whether the pointers of a dnode are possible.
fn is_sound(dn: &DnodePhys) -> bool {
    dn.bps().iter().chain(&dn.spill).all(is_possible)
}
fn is_possible(bp: &Blkptr) -> bool {
    bp.validate(&BpLimits::FORMAT).is_ok()
}

/// The content of stored bytes, if it is what is looked for.
fn parse(raw: &[u8], algo: CompressAlgo, lsize: usize) -> Option<Content> {
    let mut out = vec![0u8; lsize];
    codec::decompress(algo, raw, &mut out).ok()?;
    if lsize != DNODE_BLOCK_SIZE {
        let os = ObjsetPhys::parse(&out).ok()?;
        let good = os.os_type != ObjsetType::None
            && is_sound(&os.meta_dnode)
            && os.meta_dnode.bps().iter().any(|bp| !bp.is_hole());
        return good.then(|| Content::Objset(Box::new(os)));
    }
    let mut any = false;
    for (n, kind) in slots(&out).ok()?.iter().enumerate() {
        if matches!(kind, Slot::Dnode(_)) {
            let dn = DnodePhys::parse(&out[n * DNODE_SIZE..]).ok()??;
            if !is_sound(&dn) {
                return None;
            }
            any = true;
        }
    }
    any.then(|| Content::Dnodes(out.into()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::VdevId;
    use codec::Compression;
    use ondisk::blkptr::Dva;

    fn dnodes() -> Vec<u8> {
        let mut block = vec![0u8; DNODE_BLOCK_SIZE];
        let mut dn = DnodePhys::new(ObjectType::PLAIN_FILE, 4096, 17, ObjectType::SA, 168, 1);
        let mut bp = Blkptr::hole();
        bp.set_dva(0, Dva::new(VdevId(0), 4096, 4096, false));
        bp.set_lsize(4096);
        bp.set_psize(4096);
        bp.set_compress(2);
        bp.set_checksum(7);
        bp.set_otype(ObjectType::PLAIN_FILE);
        bp.set_birth(Txg(5), Txg(5));
        dn.blkptr[0] = bp;
        dn.write_to(&mut block[DNODE_SIZE..]);
        block
    }

    #[test]
    fn blocks_are_known_by_their_first_sector() {
        let block = dnodes();
        for (algo, name) in [(CompressAlgo::Lz4, "lz4"), (CompressAlgo::Lzjb, "lzjb"), (CompressAlgo::Off, "off")] {
            let mut stored = vec![0u8; block.len()];
            if algo == CompressAlgo::Off {
                stored.copy_from_slice(&block);
            } else {
                let how = Compression::parse(name).unwrap();
                codec::compress(how, &block, &mut stored, DNODE_BLOCK_SIZE).unwrap();
            }
            for sector in [1024, 4096] {
                let all = guesses(&stored[..sector], sector, true);
                let found = all.iter().any(|&(a, size, lsize)| {
                    a == algo && matches!(parse(&stored[..size], a, lsize), Some(Content::Dnodes(_)))
                });
                assert!(found, "{name} {sector}: {all:?}");
            }
        }
    }

    #[test]
    fn nothing_else_is_taken_for_one() {
        assert!(guesses(&[0; 512], 512, true).is_empty());
        let mut block = dnodes();
        // A pointer that cannot be.
        block[DNODE_SIZE + 64 + 48 + 6] = 100;
        assert!(parse(&block, CompressAlgo::Off, DNODE_BLOCK_SIZE).is_none());
        assert!(parse(&[0; DNODE_BLOCK_SIZE], CompressAlgo::Off, DNODE_BLOCK_SIZE).is_none());
    }
}
