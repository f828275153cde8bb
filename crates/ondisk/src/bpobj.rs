//! Lists of block pointers on disk: bpobjs, deadlists and the queue of trees to be freed (format
//! pages 05 section 4 and 15 sections 1 to 4).
//!
//! A *bpobj* is an object whose data is packed block pointers and whose bonus has their number and
//! sizes; it may also own other bpobjs, by number, in an object of their own. A *deadlist* is a ZAP
//! from txg to bpobj whose bonus has the totals. The *bptree* is a queue of whole object sets being
//! destroyed.

use base::{Error, Result, Txg};

use crate::blkptr::{BLKPTR_SIZE, Blkptr};
use crate::bytes::{le64, put_le64};

/// Header bytes before pool version 3.
pub const BPOBJ_SIZE_V0: usize = 16;
/// Header bytes before pool version 26.
pub const BPOBJ_SIZE_V1: usize = 32;
/// Header bytes with sub-objects.
pub const BPOBJ_SIZE_V2: usize = 48;
/// Header bytes with a count of frees (feature livelist).
pub const BPOBJ_SIZE_V3: usize = 56;
/// Block size of bpobjs and their sub-object arrays.
pub const BPOBJ_BLKSZ: u32 = 128 << 10;
/// Block size of the deferred-free list.
pub const SYNC_BPLIST_BLKSZ: u32 = 16 << 10;

/// The bonus of a bpobj. Fields that a short form lacks are 0.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BpobjPhys {
    /// Bytes of the bonus: one of the `BPOBJ_SIZE_*`.
    pub size: usize,
    /// Pointers in this object itself.
    pub num_blkptrs: u64,
    /// Space of all pointers, sub-objects' included (dsize).
    pub bytes: u64,
    /// Sum of stored sizes.
    pub comp: u64,
    /// Sum of uncompressed sizes.
    pub uncomp: u64,
    /// Object with the numbers of sub-objects, or 0.
    pub subobjs: u64,
    /// How many those are.
    pub num_subobjs: u64,
    /// Pointers of this object that are frees (livelists).
    pub num_freed: u64,
}

/// Bytes of the header of a list in a pool of this version: sums of sizes since 3, sub-objects
/// since 26 (format page 05 section 4).
pub fn header_size(version: u64) -> usize {
    match version {
        0..3 => BPOBJ_SIZE_V0,
        3..26 => BPOBJ_SIZE_V1,
        _ => BPOBJ_SIZE_V2,
    }
}

impl BpobjPhys {
    /// An empty list with a header of `size` bytes.
    pub fn new(size: usize) -> BpobjPhys {
        assert!(matches!(size, BPOBJ_SIZE_V0 | BPOBJ_SIZE_V1 | BPOBJ_SIZE_V2 | BPOBJ_SIZE_V3));
        BpobjPhys { size, num_blkptrs: 0, bytes: 0, comp: 0, uncomp: 0, subobjs: 0, num_subobjs: 0, num_freed: 0 }
    }
    /// The header in bonus `b`, in the form that its length implies.
    pub fn parse(b: &[u8]) -> Result<BpobjPhys> {
        let size = match b.len() {
            0..16 => return Err(Error::corrupt(format!("block pointer list with a header of {} bytes", b.len()))),
            16..32 => BPOBJ_SIZE_V0,
            32..48 => BPOBJ_SIZE_V1,
            48..56 => BPOBJ_SIZE_V2,
            _ => BPOBJ_SIZE_V3,
        };
        let w = |i: usize| if 8 * i < size { le64(b, 8 * i) } else { 0 };
        let h = BpobjPhys {
            size,
            num_blkptrs: w(0),
            bytes: w(1),
            comp: w(2),
            uncomp: w(3),
            subobjs: w(4),
            num_subobjs: w(5),
            num_freed: w(6),
        };
        if h.num_blkptrs > u64::MAX / BLKPTR_SIZE as u64 || h.num_subobjs > u64::MAX / 8 {
            return Err(Error::corrupt(format!(
                "block pointer list of {} pointers and {} lists",
                h.num_blkptrs, h.num_subobjs
            )));
        }
        Ok(h)
    }
    /// Stores the header in the first [`BpobjPhys::size`] bytes of `out`.
    pub fn write_to(&self, out: &mut [u8]) {
        let words =
            [self.num_blkptrs, self.bytes, self.comp, self.uncomp, self.subobjs, self.num_subobjs, self.num_freed];
        for (i, w) in words.iter().enumerate().take(self.size / 8) {
            put_le64(out, 8 * i, *w);
        }
    }
    /// Whether it holds nothing, directly or below.
    pub fn is_empty(&self) -> bool {
        self.num_blkptrs == 0 && self.num_subobjs == 0
    }
    /// Whether the form has sub-objects.
    pub fn has_subobjs(&self) -> bool {
        self.size >= BPOBJ_SIZE_V2
    }
}

/// Bytes of a deadlist's bonus.
pub const DEADLIST_SIZE: usize = 320;

/// The bonus of a deadlist: totals over all its lists.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct DeadlistPhys {
    /// Space (dsize).
    pub used: u64,
    /// Sum of stored sizes.
    pub comp: u64,
    /// Sum of uncompressed sizes.
    pub uncomp: u64,
}

impl DeadlistPhys {
    /// The totals in bonus `b`.
    pub fn parse(b: &[u8]) -> Result<DeadlistPhys> {
        if b.len() < 24 {
            return Err(Error::corrupt(format!("deadlist with a header of {} bytes", b.len())));
        }
        Ok(DeadlistPhys { used: le64(b, 0), comp: le64(b, 8), uncomp: le64(b, 16) })
    }
    /// Stores the totals in the first [`DEADLIST_SIZE`] bytes of `out`.
    pub fn write_to(&self, out: &mut [u8]) {
        let out = &mut out[..DEADLIST_SIZE];
        out.fill(0);
        put_le64(out, 0, self.used);
        put_le64(out, 8, self.comp);
        put_le64(out, 16, self.uncomp);
    }
}

/// Bytes of the bptree's bonus.
pub const BPTREE_SIZE: usize = 40;
/// Bytes of one entry of the bptree; entries straddle blocks.
pub const BPTREE_ENTRY_SIZE: usize = 168;

/// The bonus of the bptree.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct BptreePhys {
    /// First entry not finished.
    pub begin: u64,
    /// One past the last entry.
    pub end: u64,
    /// Space still to be freed (dsize).
    pub bytes: u64,
    /// Sum of stored sizes.
    pub comp: u64,
    /// Sum of uncompressed sizes.
    pub uncomp: u64,
}

impl BptreePhys {
    /// The header in bonus `b`.
    pub fn parse(b: &[u8]) -> Result<BptreePhys> {
        if b.len() < BPTREE_SIZE {
            return Err(Error::corrupt(format!("bptree with a header of {} bytes", b.len())));
        }
        let h = BptreePhys {
            begin: le64(b, 0),
            end: le64(b, 8),
            bytes: le64(b, 16),
            comp: le64(b, 24),
            uncomp: le64(b, 32),
        };
        if h.begin > h.end || h.end > u64::MAX / BPTREE_ENTRY_SIZE as u64 {
            return Err(Error::corrupt(format!("bptree with entries {} to {}", h.begin, h.end)));
        }
        Ok(h)
    }
    /// Stores the header in the first [`BPTREE_SIZE`] bytes of `out`.
    pub fn write_to(&self, out: &mut [u8]) {
        crate::bytes::put_le64_words(out, &[self.begin, self.end, self.bytes, self.comp, self.uncomp]);
    }
}

/// A place in a pool: object set, object, level and block.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Bookmark {
    /// Dataset object of the object set; 0 for the MOS.
    pub objset: u64,
    /// Object.
    pub object: u64,
    /// Level, -1 for a ZIL block or the like.
    pub level: i64,
    /// Block id in that level.
    pub blkid: u64,
}

/// An object set in the bptree.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BptreeEntry {
    /// Its root.
    pub bp: Blkptr,
    /// Only blocks born after this are freed.
    pub birth_txg: Txg,
    /// How far freeing has come.
    pub bookmark: Bookmark,
}

impl BptreeEntry {
    /// The entry at the start of `b`.
    pub fn parse(b: &[u8]) -> Result<BptreeEntry> {
        if b.len() < BPTREE_ENTRY_SIZE {
            return Err(Error::corrupt(format!("bptree entry of {} bytes", b.len())));
        }
        let bookmark =
            Bookmark { objset: le64(b, 136), object: le64(b, 144), level: le64(b, 152) as i64, blkid: le64(b, 160) };
        Ok(BptreeEntry { bp: Blkptr::parse(b)?, birth_txg: Txg(le64(b, 128)), bookmark })
    }
    /// Stores the entry in the first [`BPTREE_ENTRY_SIZE`] bytes of `out`.
    pub fn write_to(&self, out: &mut [u8]) {
        self.bp.write_to(out);
        let m = &self.bookmark;
        crate::bytes::put_le64_words(&mut out[128..], &[self.birth_txg.0, m.objset, m.object, m.level as u64, m.blkid]);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn bpobj_round_trip(w in any::<[u32; 7]>(), form in 0usize..4) {
            let size = [16, 32, 48, 56][form];
            let mut h = BpobjPhys::new(size);
            let fields: [&mut u64; 7] = [&mut h.num_blkptrs, &mut h.bytes, &mut h.comp, &mut h.uncomp, &mut h.subobjs, &mut h.num_subobjs, &mut h.num_freed];
            for (f, w) in fields.into_iter().zip(w).take(size / 8) { *f = u64::from(w); }
            let mut b = vec![0u8; size];
            h.write_to(&mut b);
            prop_assert_eq!(BpobjPhys::parse(&b).unwrap(), h);
        }

        #[test]
        fn hostile_bytes_never_panic(b in proptest::collection::vec(any::<u8>(), 0..400)) {
            let _ = (BpobjPhys::parse(&b), DeadlistPhys::parse(&b), BptreePhys::parse(&b));
            if let Ok(e) = BptreeEntry::parse(&b) {
                let mut out = [0u8; BPTREE_ENTRY_SIZE];
                e.write_to(&mut out);
                prop_assert_eq!(&out[..], &b[..BPTREE_ENTRY_SIZE]);
            }
        }
    }
}
