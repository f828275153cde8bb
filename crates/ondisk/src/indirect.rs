//! Removed devices: where the space of an indirect vdev went (format page 14 section 5). Reading
//! only.
//!
//! When a top-level vdev is removed its allocated ranges are copied elsewhere, and a *mapping*
//! object records where each went: entries sorted by source offset. A *births* object records the
//! txg of the copies up to an offset. A destination may be on a vdev that was removed later itself.

use base::{Error, Result, Txg};

use crate::blkptr::Dva;
use crate::bytes::le64;

/// Bytes of the mapping's bonus without a counts object.
pub const MAPPING_SIZE_V0: usize = 24;
/// Bytes of the mapping's bonus.
pub const MAPPING_SIZE: usize = 32;
/// Bytes of one mapping entry.
pub const MAPPING_ENTRY_SIZE: usize = 24;
/// Bytes of one births entry.
pub const BIRTHS_ENTRY_SIZE: usize = 16;

/// The bonus of a mapping object.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MappingPhys {
    /// Highest source offset mapped, in bytes.
    pub max_offset: u64,
    /// Bytes mapped in all.
    pub bytes_mapped: u64,
    /// Entries.
    pub num_entries: u64,
    /// Object with a u32 per entry: bytes that were obsolete when the mapping was written. `None`
    /// without feature obsolete_counts.
    pub counts_object: Option<u64>,
}

impl MappingPhys {
    /// The header in bonus `b`.
    pub fn parse(b: &[u8]) -> Result<MappingPhys> {
        if b.len() < MAPPING_SIZE_V0 {
            return Err(Error::corrupt(format!("mapping of a removed device with a header of {} bytes", b.len())));
        }
        let num_entries = le64(b, 16);
        if num_entries > u64::MAX / MAPPING_ENTRY_SIZE as u64 {
            return Err(Error::corrupt(format!("mapping of a removed device with {num_entries} entries")));
        }
        let counts_object = (b.len() >= MAPPING_SIZE).then(|| le64(b, 24));
        Ok(MappingPhys { max_offset: le64(b, 0), bytes_mapped: le64(b, 8), num_entries, counts_object })
    }
}

/// One range and where it went.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MappingEntry {
    /// Source offset in bytes.
    pub src: u64,
    /// Destination; its asize is the length.
    pub dst: Dva,
}

impl MappingEntry {
    /// Length in bytes.
    pub fn len(&self) -> u64 {
        self.dst.asize()
    }
    /// Whether it maps nothing: damage.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// All entries of a mapping's data, checked to be in order and not to overlap.
pub fn parse_mapping(data: &[u8]) -> Result<Vec<MappingEntry>> {
    let mut out: Vec<MappingEntry> = Vec::with_capacity(data.len() / MAPPING_ENTRY_SIZE);
    let mut end = 0u64;
    for (i, b) in data.chunks_exact(MAPPING_ENTRY_SIZE).enumerate() {
        let e = MappingEntry { src: le64(b, 0) << 1 >> 1 << 9, dst: Dva { w0: le64(b, 8), w1: le64(b, 16) } };
        let bad = |what: &str| Error::corrupt(format!("mapping entry {i} of a removed device {what}"));
        if le64(b, 0) << 1 >> 1 >= 1 << 55 || e.is_empty() {
            return Err(bad("is out of range"));
        }
        if e.src < end {
            return Err(bad("overlaps the one before it"));
        }
        end = e.src.checked_add(e.len()).ok_or_else(|| bad("is out of range"))?;
        out.push(e);
    }
    Ok(out)
}

/// The pieces of `size` bytes at `offset` by a mapping: offset within the range, destination
/// offset's DVA part, as (start, vdev, offset, length). A range that is not wholly mapped is an
/// error.
pub fn remap(mapping: &[MappingEntry], offset: u64, size: u64) -> Result<Vec<(u64, base::VdevId, u64, u64)>> {
    let mut out = Vec::new();
    let unmapped = || Error::corrupt(format!("{size:#x} bytes at {offset:#x} of a removed device are not mapped"));
    let end = offset.checked_add(size).ok_or_else(unmapped)?;
    let mut at = offset;
    let mut i = mapping.partition_point(|e| e.src + e.len() <= offset);
    while at < end {
        let e = mapping.get(i).filter(|e| e.src <= at).ok_or_else(unmapped)?;
        let within = at - e.src;
        let len = (e.len() - within).min(end - at);
        out.push((at - offset, e.dst.vdev(), e.dst.offset().checked_add(within).ok_or_else(unmapped)?, len));
        at += len;
        i += 1;
    }
    Ok(out)
}

/// The entries of a births object: everything below the offset, from the entry before, was copied
/// in the txg.
pub fn parse_births(data: &[u8]) -> Vec<(u64, Txg)> {
    data.chunks_exact(BIRTHS_ENTRY_SIZE).map(|b| (le64(b, 0), Txg(le64(b, 8)))).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use base::VdevId;
    use proptest::prelude::*;

    fn entry(src: u64, vdev: u32, dst: u64, len: u64) -> [u8; 24] {
        let d = Dva::new(VdevId(vdev), dst, len, false);
        let mut b = [0; 24];
        crate::bytes::put_le64_words(&mut b, &[src >> 9, d.w0, d.w1]);
        b
    }

    #[test]
    fn remaps_across_entries() {
        let data =
            [entry(0x1000, 1, 0x8000, 0x1000), entry(0x2000, 0, 0x200, 0x400), entry(0x3000, 2, 0, 0x1000)].concat();
        let m = parse_mapping(&data).unwrap();
        assert_eq!(
            remap(&m, 0x1800, 0xa00).unwrap(),
            [(0, VdevId(1), 0x8800, 0x800), (0x800, VdevId(0), 0x200, 0x200)]
        );
        assert!(remap(&m, 0x2200, 0x400).is_err());
        assert!(remap(&m, 0, 0x200).is_err());
        assert!(remap(&m, u64::MAX - 5, 0x200).is_err());
        let overlap = [entry(0x1000, 1, 0x8000, 0x1000), entry(0x1e00, 0, 0x200, 0x400)].concat();
        assert!(parse_mapping(&overlap).is_err());
    }

    proptest! {
        #[test]
        fn hostile_bytes_never_panic(b in proptest::collection::vec(any::<u8>(), 0..300), offset: u64, size in 0u64..1 << 30) {
            let _ = (MappingPhys::parse(&b), parse_births(&b));
            if let Ok(m) = parse_mapping(&b) {
                let _ = remap(&m, offset, size);
            }
        }
    }
}
