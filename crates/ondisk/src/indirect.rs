//! Removed devices: where the space of an indirect vdev went (format page 14 section 5), and the
//! records of the removal that is under way or was the last, and of a mapping that is condensed.
//!
//! When a top-level vdev is removed its allocated ranges are copied elsewhere, and a *mapping*
//! object records where each went: entries sorted by source offset. A *births* object records the
//! txg of the copies up to an offset. A destination may be on a vdev that was removed later itself.
//!
//! A range without a block pointer is *obsolete*. Counts beside the mapping say how much of each
//! entry was when it was written, an obsolete map lists what was since. A mapping is *condensed*
//! when it is written anew without the entries that are obsolete as a whole ([`add_obsolete`],
//! [`is_kept`], [`first_after`]).

use base::{Error, ObjectId, Result, Txg, VdevId};

use crate::blkptr::Dva;
use crate::bytes::{le64, put_le64_words};

/// Bytes of the mapping's bonus without a counts object.
pub const MAPPING_SIZE_V0: usize = 24;
/// Bytes of the mapping's bonus.
pub const MAPPING_SIZE: usize = 32;
/// Bytes of one mapping entry.
pub const MAPPING_ENTRY_SIZE: usize = 24;
/// Bytes of one births entry.
pub const BIRTHS_ENTRY_SIZE: usize = 16;
/// Bytes of the births' bonus: the number of entries.
pub const BIRTHS_SIZE: usize = 8;
/// Block size of mappings, counts and births (format page 14 section 5).
pub const MAPPING_BLKSZ: u32 = 128 << 10;
/// Entry of the MOS directory: the [`Removing`].
pub const REMOVING_KEY: &[u8] = b"com.delphix:removing";
/// Entry of the MOS directory: the [`Condensing`].
pub const CONDENSING_KEY: &[u8] = b"com.delphix:condensing_indirect";

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

    /// The bonus.
    pub fn to_bytes(&self) -> Vec<u8> {
        let words = [self.max_offset, self.bytes_mapped, self.num_entries, self.counts_object.unwrap_or(0)];
        let mut bytes = vec![0; MAPPING_SIZE];
        put_le64_words(&mut bytes, &words);
        bytes.truncate(if self.counts_object.is_some() { MAPPING_SIZE } else { MAPPING_SIZE_V0 });
        bytes
    }
}

/// What became of a removal, as scans have it (format page 15).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RemovalState {
    /// There was none.
    None,
    /// The vdev is being evacuated.
    Active,
    /// It is indirect.
    Finished,
    /// It stays.
    Cancelled,
}

/// The record of the removal that is under way, or of the last one. It stays for ever.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Removing {
    /// Its state.
    pub state: RemovalState,
    /// The vdev.
    pub vdev: VdevId,
    /// The vdev that was removed before; of a finished removal, the vdev itself.
    pub prev: Option<VdevId>,
    /// When it began, in seconds since 1970.
    pub start: u64,
    /// When it ended; 0 while it is under way.
    pub end: u64,
    /// Bytes to copy in all.
    pub to_copy: u64,
    /// Bytes that were copied, or freed meanwhile.
    pub copied: u64,
}

impl Removing {
    /// The record of these words of the MOS directory's entry. Error: `Corrupt` if they are none.
    pub fn parse(words: &[u64]) -> Result<Removing> {
        let bad = || Error::corrupt("the record of the removal of a device is malformed");
        let &[state, vdev, prev, start, end, to_copy, copied] = words else { return Err(bad()) };
        let state = match state {
            0 => RemovalState::None,
            1 => RemovalState::Active,
            2 => RemovalState::Finished,
            3 => RemovalState::Cancelled,
            _ => return Err(bad()),
        };
        let id = |n: u64| u32::try_from(n).map(VdevId).map_err(|_| bad());
        let prev = if prev == u64::MAX { None } else { Some(id(prev)?) };
        // Without a removal the vdev is all ones.
        let vdev = if state == RemovalState::None { VdevId(u32::MAX) } else { id(vdev)? };
        Ok(Removing { state, vdev, prev, start, end, to_copy, copied })
    }

    /// The words of the entry.
    pub fn to_words(&self) -> [u64; 7] {
        let prev = self.prev.map_or(u64::MAX, |v| u64::from(v.0));
        let vdev = u64::from(self.vdev.0);
        [self.state as u64, vdev, prev, self.start, self.end, self.to_copy, self.copied]
    }
}

/// The record of a mapping that is condensed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Condensing {
    /// The vdev.
    pub vdev: VdevId,
    /// Its obsolete map from before, which does not change any more.
    pub old_map: ObjectId,
    /// The new mapping, which grows.
    pub mapping: ObjectId,
}

impl Condensing {
    /// The record of these words of the MOS directory's entry. Error: `Corrupt` if they are none.
    pub fn parse(words: &[u64]) -> Result<Condensing> {
        let bad = || Error::corrupt("the record of a mapping that is condensed is malformed");
        let &[vdev, old_map, mapping] = words else { return Err(bad()) };
        if old_map == 0 || mapping == 0 {
            return Err(bad());
        }
        let vdev = u32::try_from(vdev).map(VdevId).map_err(|_| bad())?;
        Ok(Condensing { vdev, old_map: ObjectId(old_map), mapping: ObjectId(mapping) })
    }

    /// The words of the entry.
    pub fn to_words(&self) -> [u64; 3] {
        [u64::from(self.vdev.0), self.old_map.0, self.mapping.0]
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
    /// Where the source ends.
    pub fn end(&self) -> u64 {
        self.src + self.len()
    }
    /// Its bytes in the mapping.
    pub fn to_bytes(&self) -> [u8; MAPPING_ENTRY_SIZE] {
        let mut bytes = [0; MAPPING_ENTRY_SIZE];
        put_le64_words(&mut bytes, &[self.src >> 9, self.dst.w0, self.dst.w1]);
        bytes
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

/// Adds `size` bytes at `offset` that became obsolete to the counts of the entries they are in.
/// Error: `Corrupt` if part of them is not mapped, or more of an entry is obsolete than it has.
pub fn add_obsolete(mapping: &[MappingEntry], counts: &mut [u32], offset: u64, size: u64) -> Result<()> {
    let wrong =
        |what: &str| Error::corrupt(format!("{size:#x} obsolete bytes at {offset:#x} of a removed device {what}"));
    let end = offset.checked_add(size).ok_or_else(|| wrong("are out of range"))?;
    let mut at = offset;
    let mut i = mapping.partition_point(|e| e.end() <= offset);
    while at < end {
        let e = mapping.get(i).filter(|e| e.src <= at).ok_or_else(|| wrong("are not mapped"))?;
        let part = e.end().min(end) - at;
        let sum = counts.get(i).map(|c| u64::from(*c) + part).filter(|sum| *sum <= e.len());
        let sum = sum.and_then(|sum| u32::try_from(sum).ok()).ok_or_else(|| wrong("were obsolete before"))?;
        counts[i] = sum;
        (at, i) = (at + part, i + 1);
    }
    Ok(())
}

/// Whether a condensed mapping has the entry, of which `obsolete` bytes are obsolete.
pub fn is_kept(entry: &MappingEntry, obsolete: u32) -> bool {
    u64::from(obsolete) < entry.len()
}

/// The first entry that a condensed mapping does not tell of yet, which ends at `max_offset`.
pub fn first_after(mapping: &[MappingEntry], max_offset: u64) -> usize {
    mapping.partition_point(|e| e.end() <= max_offset)
}

/// The entries of a births object: everything below the offset, from the entry before, was copied
/// in the txg.
pub fn parse_births(data: &[u8]) -> Vec<(u64, Txg)> {
    data.chunks_exact(BIRTHS_ENTRY_SIZE).map(|b| (le64(b, 0), Txg(le64(b, 8)))).collect()
}

/// An entry of a births object.
pub fn births_entry(offset: u64, txg: Txg) -> [u8; BIRTHS_ENTRY_SIZE] {
    let mut bytes = [0; BIRTHS_ENTRY_SIZE];
    put_le64_words(&mut bytes, &[offset, txg.0]);
    bytes
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

    #[test]
    fn what_is_written_is_what_is_read() {
        for counts_object in [None, Some(77)] {
            let phys = MappingPhys { max_offset: 1 << 30, bytes_mapped: 5 << 20, num_entries: 9, counts_object };
            assert_eq!(MappingPhys::parse(&phys.to_bytes()).unwrap(), phys);
            assert_eq!(phys.to_bytes().len(), if counts_object.is_some() { 32 } else { 24 });
        }
        let e = MappingEntry { src: 0x4000, dst: Dva::new(VdevId(3), 0x1000, 0x600, false) };
        assert_eq!(parse_mapping(&e.to_bytes()).unwrap(), [e]);
        assert_eq!(e.end(), 0x4600);
        assert_eq!(parse_births(&births_entry(0x5000, Txg(17))), [(0x5000, Txg(17))]);
        let states = [RemovalState::Active, RemovalState::Finished, RemovalState::Cancelled];
        for (state, prev) in states.into_iter().zip([None, Some(VdevId(1)), Some(VdevId(0))]) {
            let r = Removing { state, vdev: VdevId(1), prev, start: 5, end: 6, to_copy: 70, copied: 60 };
            assert_eq!(Removing::parse(&r.to_words()).unwrap(), r);
        }
        assert!(Removing::parse(&[1, 2, 3]).is_err());
        let c = Condensing { vdev: VdevId(2), old_map: ObjectId(70), mapping: ObjectId(71) };
        assert_eq!(Condensing::parse(&c.to_words()).unwrap(), c);
        for words in [&[1, 2][..], &[1, 0, 3], &[1, 2, 0], &[1 << 32, 2, 3], &[1, 2, 3, 4]] {
            assert!(Condensing::parse(words).is_err(), "{words:?}");
        }
        assert!(Removing::parse(&[4, 0, 0, 0, 0, 0, 0]).is_err());
        assert!(Removing::parse(&[1, 1 << 32, 0, 0, 0, 0, 0]).is_err());
    }

    #[test]
    fn obsolete_ranges_are_counted_by_entry() {
        let data = [entry(0x1000, 1, 0, 0x1000), entry(0x2000, 1, 0x4000, 0x400), entry(0x3000, 1, 0x9000, 0x200)];
        let m = parse_mapping(&data.concat()).unwrap();
        let mut counts = vec![0x200, 0, 0];
        add_obsolete(&m, &mut counts, 0x1400, 0x1000).unwrap();
        assert_eq!(counts, [0xe00, 0x400, 0]);
        assert!(is_kept(&m[0], counts[0]) && !is_kept(&m[1], counts[1]) && is_kept(&m[2], 0));
        for (offset, size) in [(0x2000, 0x200), (0x1000, 0x400), (0x2f00, 0x200), (0x3100, 0x200), (u64::MAX, 2)] {
            assert!(add_obsolete(&m, &mut counts.clone(), offset, size).is_err(), "{offset:#x}");
        }
        assert_eq!([0, 0x1000, 0x2000, 0x2400, 0x3200].map(|end| first_after(&m, end)), [0, 0, 1, 2, 3]);
    }

    /// Entries of some length at some distance, by sectors, and what of each is live.
    fn mappings() -> impl Strategy<Value = Vec<(u64, Vec<bool>)>> {
        let lives =
            prop_oneof![proptest::collection::vec(any::<bool>(), 1..9), proptest::collection::vec(Just(false), 1..9),];
        proptest::collection::vec((0u64..3, lives), 0..20)
    }

    proptest! {
        /// A condensed mapping, written at once or in pieces, says of everything that lives what
        /// the old one said, has no entry without something live, and counts the rest.
        #[test]
        fn condensing_keeps_what_lives(list in mappings(), stop: prop::sample::Index, shift in 0u32..2) {
            let (mut at, mut to, mut old) = (0u64, 1u64 << 40, Vec::new());
            let (mut live, mut dead) = (Vec::new(), Vec::new());
            for (gap, sectors) in &list {
                at += gap * 512;
                let len = sectors.len() as u64 * 512;
                old.push(MappingEntry { src: at, dst: Dva::new(VdevId(1), to, len, false) });
                for lives in sectors {
                    if *lives { live.push(at) } else { dead.push(at) }
                    at += 512;
                }
                to += len << shift;
            }
            let mut counts = vec![0; old.len()];
            // Obsolete ranges may cross entries that touch.
            let mut i = 0;
            while i < dead.len() {
                let n = 1 + (1..3).take_while(|k| dead.get(i + k) == Some(&(dead[i] + *k as u64 * 512))).count();
                add_obsolete(&old, &mut counts, dead[i], n as u64 * 512).unwrap();
                i += n;
            }
            let kept = |from: usize| {
                let rest = old.iter().zip(&counts).skip(from);
                rest.filter(|(e, count)| is_kept(e, **count)).map(|(e, _)| *e).collect::<Vec<_>>()
            };
            let new = kept(0);
            for at in live {
                prop_assert_eq!(remap(&new, at, 512).unwrap(), remap(&old, at, 512).unwrap());
            }
            for e in &new {
                prop_assert!(old.contains(e) && dead.iter().filter(|at| (e.src..e.end()).contains(*at)).count() as u64 * 512 < e.len());
            }
            let total: u64 = counts.iter().map(|c| u64::from(*c)).sum();
            prop_assert_eq!(total, dead.len() as u64 * 512);
            // An import goes on where the new mapping ends.
            let some = stop.index(new.len() + 1);
            let end = new[..some].last().map_or(0, MappingEntry::end);
            let mut resumed = new[..some].to_vec();
            resumed.extend(kept(first_after(&old, end)));
            prop_assert_eq!(resumed, new);
        }

        #[test]
        fn hostile_bytes_never_panic(b in proptest::collection::vec(any::<u8>(), 0..300), offset: u64, size in 0u64..1 << 30) {
            let _ = (MappingPhys::parse(&b), parse_births(&b));
            if let Ok(m) = parse_mapping(&b) {
                let _ = remap(&m, offset, size);
            }
        }
    }
}
