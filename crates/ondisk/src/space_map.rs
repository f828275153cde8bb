//! Space maps: the log of allocations and frees from which a device's free space follows (format
//! page 06 section 2).
//!
//! A space map is an object whose data is a stream of entries, each one or two u64 words, in units
//! of `1 << shift` bytes, and whose bonus holds the valid length of the stream, the allocated
//! bytes, and (with feature spacemap_histogram) a histogram of the free segments. Read in order
//! from an all-free state, an ALLOC entry adds a range that was free and a FREE entry removes one
//! that was allocated; anything else is damage, which the reader of the map must detect.
//!
//! Entries come in groups headed by an informational debug entry. Runs longer than 32768 units,
//! offsets beyond 47 bits and everything in log space maps use the two-word form (feature
//! spacemap_v2), which never straddles a block of the object: the [`Encoder`] pads with an all-zero
//! debug entry.

use base::{Error, Result, VdevId};

use crate::bytes::{le64, put_le64};

/// Bytes of the bonus without a histogram.
pub const SPACE_MAP_SIZE_V0: usize = 24;
/// Bytes of the bonus with a histogram.
pub const SPACE_MAP_SIZE: usize = 320;
/// Buckets of the histogram.
pub const HISTOGRAM_BUCKETS: usize = 32;
/// Indirect block shift of space map objects (format page 06).
pub const SPACE_MAP_INDBLKSHIFT: u8 = 14;
/// Longest run of a one-word entry, in units.
pub const ONE_WORD_MAX_RUN: u64 = 32768;
/// Offsets of one-word entries are below this, in units.
pub const ONE_WORD_MAX_OFFSET: u64 = 1 << 47;
/// Longest run of a two-word entry, in units.
pub const TWO_WORD_MAX_RUN: u64 = 1 << 36;
/// The entry that fills the last word of a block.
pub const PAD_ENTRY: u64 = 2 << 62;

/// Whether a range was taken or given back.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum MapType {
    /// Taken.
    Alloc,
    /// Given back.
    Free,
}

impl MapType {
    fn from_bit(v: u64) -> MapType {
        if v == 0 { MapType::Alloc } else { MapType::Free }
    }
    fn bit(self) -> u64 {
        u64::from(self == MapType::Free)
    }
}

/// One entry of a space map.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Entry {
    /// Header of a group of entries, informational.
    Debug {
        /// ALLOC or FREE.
        kind: MapType,
        /// Sync pass that wrote it.
        pass: u16,
        /// Txg that wrote it.
        txg: u64,
    },
    /// Nothing: fills a block.
    Pad,
    /// A range.
    Run {
        /// ALLOC or FREE.
        kind: MapType,
        /// The top-level vdev; 0 in the maps of metaslabs.
        vdev: VdevId,
        /// Start in bytes.
        offset: u64,
        /// Length in bytes.
        size: u64,
    },
}

/// The entries of `data`, in order. Words beyond the last whole one are an error, as is a two-word
/// entry cut by the end of `data`.
pub fn entries(data: &[u8], shift: u32) -> Entries<'_> {
    Entries { rest: data, shift, at: 0 }
}

/// See [`entries`].
#[derive(Clone, Debug)]
pub struct Entries<'a> {
    rest: &'a [u8],
    shift: u32,
    at: u64,
}

impl Entries<'_> {
    fn fail(&mut self, what: String) -> Option<Result<Entry>> {
        self.rest = &[];
        Some(Err(Error::corrupt(format!("space map entry at byte {}: {what}", self.at))))
    }
    fn word(&mut self) -> Option<u64> {
        if self.rest.len() < 8 {
            return None;
        }
        let w = le64(self.rest, 0);
        self.rest = &self.rest[8..];
        Some(w)
    }
    fn run(&mut self, kind: MapType, vdev: VdevId, offset: u64, run: u64) -> Option<Result<Entry>> {
        let bytes = |v: u64| 1u64.checked_shl(self.shift).and_then(|unit| v.checked_mul(unit));
        match (bytes(offset), bytes(run)) {
            (Some(offset), Some(size)) if offset.checked_add(size).is_some() => {
                Some(Ok(Entry::Run { kind, vdev, offset, size }))
            }
            _ => self.fail(format!("{run} units from {offset} end beyond 2^64 bytes")),
        }
    }
}

impl Iterator for Entries<'_> {
    type Item = Result<Entry>;

    fn next(&mut self) -> Option<Result<Entry>> {
        if self.rest.is_empty() {
            return None;
        }
        let Some(w) = self.word() else {
            return self.fail("less than a word is left".into());
        };
        let e = if w >> 63 == 0 {
            self.run(MapType::from_bit(w >> 15 & 1), VdevId(0), w >> 16 & (ONE_WORD_MAX_OFFSET - 1), (w & 0x7fff) + 1)
        } else if w >> 62 == 2 {
            if w == PAD_ENTRY {
                Some(Ok(Entry::Pad))
            } else {
                match w >> 60 & 3 {
                    k @ (0 | 1) => Some(Ok(Entry::Debug {
                        kind: MapType::from_bit(k),
                        pass: (w >> 50 & 0x3ff) as u16,
                        txg: w & ((1 << 50) - 1),
                    })),
                    k => self.fail(format!("debug entry with action {k}")),
                }
            }
        } else {
            match self.word() {
                None => self.fail("its second word is missing".into()),
                Some(w1) => self.run(
                    MapType::from_bit(w1 >> 63),
                    VdevId((w & 0xff_ffff) as u32),
                    w1 & (u64::MAX >> 1),
                    (w >> 24 & (TWO_WORD_MAX_RUN - 1)) + 1,
                ),
            }
        };
        self.at += if w >> 62 == 3 { 16 } else { 8 };
        e
    }
}

/// Writes entries to be appended to a space map.
#[derive(Clone, Debug)]
pub struct Encoder {
    shift: u32,
    block_size: u64,
    two_words: bool,
    vdev: Option<VdevId>,
    start: u64,
    out: Vec<u8>,
}

impl Encoder {
    /// Entries for the map of a metaslab or DTL: units of `1 << shift` bytes, to be appended after
    /// `length` bytes of an object with blocks of `block_size`. `spacemap_v2` allows two-word
    /// entries where one word does not do.
    pub fn new(shift: u32, block_size: u64, length: u64, spacemap_v2: bool) -> Encoder {
        assert!(shift < 32 && block_size.is_multiple_of(512) && block_size > 0 && length.is_multiple_of(8));
        Encoder { shift, block_size, two_words: spacemap_v2, vdev: None, start: length, out: Vec::new() }
    }
    /// Entries for a log space map: two words always, units of 512 bytes, ranges of any vdev
    /// ([`Encoder::set_vdev`]).
    pub fn new_log(block_size: u64, length: u64) -> Encoder {
        Encoder { vdev: Some(VdevId(0)), ..Encoder::new(9, block_size, length, true) }
    }
    /// The vdev of the ranges that follow in a log space map.
    pub fn set_vdev(&mut self, vdev: VdevId) {
        assert!(self.vdev.is_some() && vdev.0 < 1 << 24);
        self.vdev = Some(vdev);
    }
    /// Starts a group.
    pub fn group(&mut self, kind: MapType, pass: u32, txg: u64) {
        let pass = u64::from(pass.min(0x3ff));
        self.push(2 << 62 | kind.bit() << 60 | pass << 50 | txg & ((1 << 50) - 1));
    }
    /// Appends a range: `offset` and `size` in bytes, multiples of the unit, relative to the
    /// metaslab (absolute in a log space map).
    pub fn run(&mut self, kind: MapType, offset: u64, size: u64) {
        let unit = 1u64 << self.shift;
        assert!(
            size > 0 && offset.is_multiple_of(unit) && size.is_multiple_of(unit),
            "range {offset:x}+{size:x} in units of {unit}"
        );
        let (mut offset, mut left) = (offset >> self.shift, size >> self.shift);
        let wide =
            self.vdev.is_some() || self.two_words && (left > ONE_WORD_MAX_RUN || offset + left > ONE_WORD_MAX_OFFSET);
        assert!(wide || offset + left <= ONE_WORD_MAX_OFFSET, "offset {offset:x} does not fit a one-word entry");
        while left > 0 {
            let run = left.min(if wide { TWO_WORD_MAX_RUN } else { ONE_WORD_MAX_RUN });
            if wide {
                if (self.length() + 8).is_multiple_of(self.block_size) {
                    self.push(PAD_ENTRY);
                }
                self.push(3 << 62 | (run - 1) << 24 | u64::from(self.vdev.map_or(0, |v| v.0)));
                self.push(kind.bit() << 63 | offset);
            } else {
                self.push(offset << 16 | kind.bit() << 15 | (run - 1));
            }
            offset += run;
            left -= run;
        }
    }
    fn push(&mut self, word: u64) {
        self.out.extend_from_slice(&word.to_le_bytes());
    }
    /// Length of the map with the entries encoded so far.
    pub fn length(&self) -> u64 {
        self.start + self.out.len() as u64
    }
    /// The bytes to append.
    pub fn bytes(&self) -> &[u8] {
        &self.out
    }
    /// The bytes to append.
    pub fn finish(self) -> Vec<u8> {
        self.out
    }
}

/// The bonus of a space map object.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct SpaceMapPhys {
    /// The object's own number, written for old readers.
    pub object: u64,
    /// Bytes of entries that count.
    pub length: u64,
    /// Bytes allocated: the sum of ALLOC entries less that of FREE entries.
    pub alloc: i64,
    /// Free segments by size; `None` in the short form.
    pub histogram: Option<[u64; HISTOGRAM_BUCKETS]>,
}

impl SpaceMapPhys {
    /// The header in bonus `b`, in the form that its length implies.
    pub fn parse(b: &[u8]) -> Result<SpaceMapPhys> {
        if b.len() < SPACE_MAP_SIZE_V0 {
            return Err(Error::corrupt(format!("space map header of {} bytes", b.len())));
        }
        let length = le64(b, 8);
        if !length.is_multiple_of(8) {
            return Err(Error::corrupt(format!("space map of {length} bytes, not a multiple of 8")));
        }
        let histogram = (b.len() >= SPACE_MAP_SIZE).then(|| crate::bytes::le64_words(&b[64..]));
        Ok(SpaceMapPhys { object: le64(b, 0), length, alloc: le64(b, 16) as i64, histogram })
    }
    /// Bytes that the header takes.
    pub fn size(&self) -> usize {
        if self.histogram.is_some() { SPACE_MAP_SIZE } else { SPACE_MAP_SIZE_V0 }
    }
    /// Stores the header in the first [`SpaceMapPhys::size`] bytes of `out`.
    pub fn write_to(&self, out: &mut [u8]) {
        let out = &mut out[..self.size()];
        out.fill(0);
        put_le64(out, 0, self.object);
        put_le64(out, 8, self.length);
        put_le64(out, 16, self.alloc as u64);
        if let Some(h) = &self.histogram {
            crate::bytes::put_le64_words(&mut out[64..], h);
        }
    }
}

/// Counts a free segment of `size` bytes in a histogram of a map with units of `1 << shift` bytes.
pub fn histogram_add(histogram: &mut [u64; HISTOGRAM_BUCKETS], size: u64, shift: u32) {
    if size == 0 {
        return;
    }
    let bucket = size.ilog2().saturating_sub(shift) as usize;
    if bucket < HISTOGRAM_BUCKETS {
        histogram[bucket] += 1;
    } else {
        histogram[HISTOGRAM_BUCKETS - 1] += size >> (shift + HISTOGRAM_BUCKETS as u32 - 1);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use proptest::prelude::*;

    fn runs(data: &[u8], shift: u32) -> Vec<(MapType, u32, u64, u64)> {
        entries(data, shift)
            .filter_map(|e| match e.unwrap() {
                Entry::Run { kind, vdev, offset, size } => Some((kind, vdev.0, offset, size)),
                _ => None,
            })
            .collect()
    }

    #[test]
    fn pads_before_a_block_ends() {
        let mut e = Encoder::new(9, 512, 504, true);
        e.run(MapType::Alloc, 0, 512 * 40000);
        assert_eq!(e.bytes().len(), 24);
        assert_eq!(le64(e.bytes(), 0), PAD_ENTRY);
        assert_eq!(runs(e.bytes(), 9), [(MapType::Alloc, 0, 0, 512 * 40000)]);
        let mut old = Encoder::new(9, 512, 504, false);
        old.run(MapType::Free, 512, 512 * 40000);
        assert_eq!(
            runs(old.bytes(), 9),
            [(MapType::Free, 0, 512, 512 * 32768), (MapType::Free, 0, 512 * 32769, 512 * 7232)]
        );
    }

    #[test]
    fn bad_words() {
        for data in [&[1u8, 2, 3][..], &(3u64 << 62).to_le_bytes()[..], &(2u64 << 62 | 3 << 60).to_le_bytes()[..]] {
            let got: Vec<_> = entries(data, 9).collect();
            assert_eq!(got.len(), 1);
            assert!(got[0].is_err());
        }
    }

    #[test]
    fn histogram_buckets() {
        let mut h = [0; HISTOGRAM_BUCKETS];
        for s in [512u64, 1023, 1024, 1 << 40, 1 << 42] {
            histogram_add(&mut h, s, 9);
        }
        assert_eq!((h[0], h[1], h[31]), (2, 1, 1 + 4));
    }

    proptest! {
        #[test]
        fn round_trip(
            list in proptest::collection::vec((any::<bool>(), 0u64..1 << 40, 1u64..100_000, 0u32..1 << 24, any::<bool>()), 1..80),
            v2: bool, log: bool, start in 0u64..1000,
        ) {
            let mut e = if log { Encoder::new_log(4096, start * 8) } else { Encoder::new(12, 4096, start * 8, v2) };
            let shift = if log { 9 } else { 12 };
            let mut want: Vec<(MapType, u32, u64, u64)> = Vec::new();
            for (free, offset, len, vdev, group) in list {
                let kind = if free { MapType::Free } else { MapType::Alloc };
                if group { e.group(kind, 3, 77); }
                if log { e.set_vdev(VdevId(vdev)); }
                e.run(kind, offset << shift, len << shift);
                want.push((kind, if log { vdev } else { 0 }, offset << shift, len << shift));
            }
            let mut joined: Vec<(MapType, u32, u64, u64)> = Vec::new();
            let mut want_joined: Vec<(MapType, u32, u64, u64)> = Vec::new();
            for (list, out) in [(runs(e.bytes(), shift), &mut joined), (want, &mut want_joined)] {
                for r in list {
                    match out.last_mut() {
                        Some(l) if l.0 == r.0 && l.1 == r.1 && l.2 + l.3 == r.2 => l.3 += r.3,
                        _ => out.push(r),
                    }
                }
            }
            prop_assert_eq!(joined, want_joined);
            // Two-word entries never straddle a block.
            let mut pos = start * 8;
            let mut words = e.bytes().chunks(8).map(|w| le64(w, 0));
            while let Some(w) = words.next() {
                if w >> 62 == 3 {
                    prop_assert_ne!((pos + 8) % 4096, 0);
                    words.next();
                    pos += 8;
                }
                pos += 8;
            }
        }

        #[test]
        fn header_round_trip(object: u64, length in 0u64..1 << 60, alloc: i64, histogram: Option<[u64; 32]>) {
            let h = SpaceMapPhys { object, length: length * 8, alloc, histogram };
            let mut b = vec![0xff; h.size()];
            h.write_to(&mut b);
            prop_assert_eq!(SpaceMapPhys::parse(&b).unwrap(), h);
        }

        #[test]
        fn hostile_bytes_never_panic(b in proptest::collection::vec(any::<u8>(), 0..600), shift in 0u32..80) {
            prop_assert!(entries(&b, shift).count() <= b.len());
            let _ = SpaceMapPhys::parse(&b);
        }
    }
}
