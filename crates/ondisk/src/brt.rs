//! The block reference table (BRT): references beyond the first to cloned blocks (format page 18).
//!
//! A cloned block is an ordinary pointer in a second place with the same DVAs. Each top-level vdev
//! with such blocks has a *vdev object* in the MOS, which the directory names
//! `com.fudosecurity:brt:vdev:ID`. Its bonus is a [`BrtPhys`], its data an array of counters: how
//! many entries there are in each region of [`RANGE_SIZE`] bytes of the vdev. The *entries table*
//! is a ZAP from the offset of the first DVA to the number of references beyond the first.

use base::{Error, Result};

use crate::bytes::{le64, put_le64};
use crate::zap::ZapValue;

/// Names of the vdev objects in the directory of the MOS; the id of the vdev follows in decimal.
pub const DIRECTORY_PREFIX: &str = "com.fudosecurity:brt:vdev:";
/// Bytes of the bonus of a vdev object.
pub const BRT_SIZE: usize = 56;
/// Block size of a vdev object (`BRT_BLOCKSIZE` of OpenZFS).
pub const BRT_BLKSZ: u32 = 32 << 10;
/// log2 of the block size of the entries table and of its indirect blocks (2.4; 12 before).
pub const ENTRIES_SHIFT: u32 = 13;
/// Bytes of a vdev that a counter is for (`BRT_RANGESIZE`).
pub const RANGE_SIZE: u64 = 16 << 20;

/// The bonus of a vdev object.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct BrtPhys {
    /// Object of the entries table.
    pub entries: u64,
    /// Number of counters.
    pub size: u64,
    /// Whether the counters are big-endian.
    pub big_endian: bool,
    /// Number of entries.
    pub total_count: u64,
    /// Bytes of the vdev for each counter.
    pub range_size: u64,
    /// Sum of the allocated bytes of blocks with an entry, deflated.
    pub used_space: u64,
    /// Sum of the same times the references beyond the first.
    pub saved_space: u64,
}

impl BrtPhys {
    /// Parses a bonus.
    pub fn parse(b: &[u8]) -> Result<BrtPhys> {
        if b.len() < BRT_SIZE {
            return Err(Error::corrupt(format!("block reference table with a bonus of {} bytes", b.len())));
        }
        let word = |i: usize| le64(b, i * 8);
        let phys = BrtPhys {
            entries: word(0),
            size: word(1),
            big_endian: word(2) != 0,
            total_count: word(3),
            range_size: word(4),
            used_space: word(5),
            saved_space: word(6),
        };
        if phys.range_size != RANGE_SIZE {
            let why = format!("block reference table with counters for {} bytes each", phys.range_size);
            return Err(Error::unsupported(why));
        }
        Ok(phys)
    }

    /// The bonus.
    pub fn to_bytes(&self) -> [u8; BRT_SIZE] {
        let mut b = [0; BRT_SIZE];
        let big = u64::from(self.big_endian);
        let words =
            [self.entries, self.size, big, self.total_count, self.range_size, self.used_space, self.saved_space];
        words.into_iter().enumerate().for_each(|(i, w)| put_le64(&mut b, i * 8, w));
        b
    }

    /// Bytes of the counters in the vdev object, without the zeros that fill its last block.
    pub fn counter_bytes(&self) -> u64 {
        self.size.saturating_mul(2)
    }

    /// The counters in the bytes that [`BrtPhys::counter_bytes`] counts.
    pub fn counters(&self, bytes: &[u8]) -> Vec<u16> {
        let of = |b: &[u8; 2]| if self.big_endian { u16::from_be_bytes(*b) } else { u16::from_le_bytes(*b) };
        bytes.as_chunks::<2>().0.iter().map(of).collect()
    }

    /// The references beyond the first that an entry's value counts: a u64, or the 8 bytes of one
    /// in the order of the writer.
    pub fn entry_count(&self, value: &ZapValue) -> Result<u64> {
        let bad = || Error::corrupt("entry of a block reference table that is no number");
        if let Some(count) = value.as_u64() {
            return Ok(count);
        }
        let bytes = value.as_bytes().and_then(|b| <[u8; 8]>::try_from(b).ok()).ok_or_else(bad)?;
        Ok(if self.big_endian { u64::from_be_bytes(bytes) } else { u64::from_le_bytes(bytes) })
    }
}

/// The counters as a little-endian writer stores them: whole blocks, filled with zeros.
pub fn counters_to_bytes(counters: &[u16]) -> Vec<u8> {
    let mut out: Vec<u8> = counters.iter().flat_map(|c| c.to_le_bytes()).collect();
    out.resize(out.len().next_multiple_of(BRT_BLKSZ as usize), 0);
    out
}

/// The value of an entry: a u64 if the feature `block_cloning_endian` is active, else its bytes.
pub fn entry_value(count: u64, as_word: bool) -> ZapValue {
    if as_word { ZapValue::from_u64(count) } else { ZapValue::from_bytes(&count.to_le_bytes()) }
}

/// The counter that a block at `offset` of its vdev counts in.
pub fn region_of(offset: u64) -> usize {
    (offset / RANGE_SIZE) as usize
}

/// How many counters a vdev of `asize` bytes in whole metaslabs has.
pub fn regions_in(asize: u64) -> u64 {
    asize.div_ceil(RANGE_SIZE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_and_values_keep_what_they_say() {
        let phys = BrtPhys {
            entries: 77,
            size: 3,
            big_endian: false,
            total_count: 2,
            range_size: RANGE_SIZE,
            used_space: 4096,
            saved_space: 1 << 40,
        };
        assert_eq!(BrtPhys::parse(&phys.to_bytes()).expect("own bytes"), phys);
        assert!(BrtPhys::parse(&[0; 48]).is_err());
        assert!(BrtPhys::parse(&[0; BRT_SIZE]).is_err());
        let bytes = counters_to_bytes(&[1, 0x102, 3]);
        assert_eq!(bytes.len(), BRT_BLKSZ as usize);
        assert_eq!(phys.counters(&bytes[..phys.counter_bytes() as usize]), [1, 0x102, 3]);
        for form in [false, true] {
            assert_eq!(phys.entry_count(&entry_value(0x1234, form)).expect("own value"), 0x1234);
        }
        let big = BrtPhys { big_endian: true, ..phys };
        assert_eq!(big.counters(&[1, 2]), [0x102]);
        assert_eq!(big.entry_count(&ZapValue::from_bytes(&5u64.to_be_bytes())).expect("a number"), 5);
        for bad in [ZapValue::from_bytes(&[1; 7]), ZapValue::from_u64s(&[1, 2]), ZapValue::default()] {
            assert!(phys.entry_count(&bad).is_err());
        }
    }

    #[test]
    fn regions_are_of_16_mib() {
        assert_eq!((region_of(0), region_of((16 << 20) - 512), region_of(16 << 20)), (0, 0, 1));
        assert_eq!((regions_in(0), regions_in(1), regions_in(16 << 20), regions_in((16 << 20) + 1)), (0, 1, 1, 2));
    }
}
