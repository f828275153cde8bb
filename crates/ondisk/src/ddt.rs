//! Fast dedup tables (format page 20): the directory of a table, flat entries, the two logs.
//!
//! A table with logs has a directory of its own, which the directory of the MOS names
//! `DDT-CHECKSUM`. A *flat entry* has one slot for all writers of a block. A *log* is an object
//! whose bonus is a [`LogHeader`] and whose data are blocks of records, each the newest state of an
//! entry. Of the two logs one is *flushing*: its entries move to the ZAPs in the order of their
//! keys, and its checkpoint is the last key that moved.

use base::{Error, Result};
use codec::{CompressAlgo, Compression};

use crate::blkptr::Dva;
use crate::bytes::{le64, put_le64};
use crate::zap::ZapValue;

/// Name of the version in the directory of a table.
pub const DIR_VERSION: &str = "version";
/// Name of the flags in the directory of a table.
pub const DIR_FLAGS: &str = "flags";
/// The version of tables with a directory (`DDT_VERSION_FDT`).
pub const VERSION: u64 = 1;
/// Their flags: flat entries, logs.
pub const FLAGS: u64 = 3;
/// log2 of the block size of the ZAPs, and of their indirect blocks (since 2.2; 12 before).
pub const ZAP_SHIFT: u32 = 15;
/// Block size of a log.
pub const LOG_BLOCK: usize = 128 << 10;
/// Bytes of the bonus of a log.
pub const LOG_HEADER_SIZE: usize = 64;
/// Bytes of a record.
pub const RECORD_SIZE: usize = 120;
/// Records that fit a block.
pub const RECORDS_MAX: usize = LOG_BLOCK / RECORD_SIZE;
/// Words of a key: the checksum, then sizes and compression.
pub const KEY_WORDS: usize = 5;
/// Words of a flat entry.
pub const FLAT_WORDS: usize = 9;

const LOG_VERSION: u64 = 1;
const LOG_FLUSHING: u64 = 1 << 8;
const LOG_CHECKPOINT: u64 = 2 << 8;
const RECORD_ENTRY: u64 = 1;
/// Storage type and class of an entry that is in no ZAP.
const NOWHERE: (u64, u64) = (1, 3);
const LITTLE_ENDIAN: u8 = 0x80;

/// A key; keys are ordered as numbers, word by word.
pub type Key = [u64; KEY_WORDS];

/// The slot of a flat entry.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Flat {
    /// The copies; of an encrypted block the third is salt and IV.
    pub dvas: [Dva; 3],
    /// Pointers to the block.
    pub refs: u64,
    /// Txg in which the block was written; 0: the slot is empty.
    pub birth: u64,
    /// When the entry changed last, in seconds since 1970.
    pub class_start: u64,
}

impl Flat {
    /// Its words, in the order of the disk.
    pub fn to_words(&self) -> [u64; FLAT_WORDS] {
        let [a, b, c] = self.dvas;
        [a.w0, a.w1, b.w0, b.w1, c.w0, c.w1, self.refs, self.birth, self.class_start]
    }

    /// From its words.
    pub fn from_words(w: &[u64; FLAT_WORDS]) -> Flat {
        let dva = |i: usize| Dva { w0: w[i], w1: w[i + 1] };
        Flat { dvas: [dva(0), dva(2), dva(4)], refs: w[6], birth: w[7], class_start: w[8] }
    }
}

/// The words of an entry's value, which has a byte for version and compression in front (format
/// page 13 section 2). Error: `Corrupt` if there are not `N`.
pub fn unpack<const N: usize>(value: &ZapValue) -> Result<[u64; N]> {
    let bad = || Error::corrupt("dedup table entry that is none");
    let (version, body) = value.as_bytes().and_then(|b| b.split_first()).ok_or_else(bad)?;
    let mut raw = vec![0u8; N * 8];
    match CompressAlgo::from_u8(version & !LITTLE_ENDIAN) {
        Some(CompressAlgo::Off) if body.len() == raw.len() => raw.copy_from_slice(body),
        Some(CompressAlgo::Zle) => codec::decompress(CompressAlgo::Zle, body, &mut raw)?,
        _ => return Err(bad()),
    }
    if version & LITTLE_ENDIAN == 0 {
        raw.as_chunks_mut::<8>().0.iter_mut().for_each(|w| w.reverse());
    }
    Ok(std::array::from_fn(|i| le64(&raw, i * 8)))
}

/// The value of an entry with these words.
pub fn pack(words: &[u64]) -> ZapValue {
    let raw: Vec<u8> = words.iter().flat_map(|w| w.to_le_bytes()).collect();
    let mut packed = vec![0u8; raw.len()];
    let zle = Compression { algo: CompressAlgo::Zle, level: 0 };
    let mut out = Vec::with_capacity(raw.len() + 1);
    match codec::compress(zle, &raw, &mut packed, raw.len() - 1) {
        Some(n) => {
            out.push(LITTLE_ENDIAN | CompressAlgo::Zle as u8);
            out.extend_from_slice(&packed[..n]);
        }
        None => {
            out.push(LITTLE_ENDIAN | CompressAlgo::Off as u8);
            out.extend_from_slice(&raw);
        }
    }
    ZapValue::from_bytes(&out)
}

/// The bonus of a log.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct LogHeader {
    /// Its entries move to the ZAPs; the other log gets new ones.
    pub flushing: bool,
    /// Bytes in use, whole blocks.
    pub length: u64,
    /// Txg in which it became the one that gets new entries.
    pub first_txg: u64,
    /// The last key that moved; only of a flushing log.
    pub checkpoint: Option<Key>,
}

impl LogHeader {
    /// Parses a bonus. Errors: `Unsupported` for another version, `Corrupt` if it cannot be one.
    pub fn parse(b: &[u8]) -> Result<LogHeader> {
        if b.len() < LOG_HEADER_SIZE {
            return Err(Error::corrupt(format!("log of a dedup table with a bonus of {} bytes", b.len())));
        }
        let word = |i: usize| le64(b, i * 8);
        let info = word(0);
        if info & 0xff != LOG_VERSION {
            return Err(Error::unsupported(format!("log of a dedup table of version {}", info & 0xff)));
        }
        let flushing = info & LOG_FLUSHING != 0;
        let checkpoint = (info & LOG_CHECKPOINT != 0).then(|| std::array::from_fn(|i| word(3 + i)));
        let length = word(1);
        if !length.is_multiple_of(LOG_BLOCK as u64) || (checkpoint.is_some() && !flushing) {
            return Err(Error::corrupt(format!("log of a dedup table with {length} bytes, flags {:#x}", info >> 8)));
        }
        Ok(LogHeader { flushing, length, first_txg: word(2), checkpoint })
    }

    /// The bonus.
    pub fn to_bytes(&self) -> [u8; LOG_HEADER_SIZE] {
        let mut b = [0; LOG_HEADER_SIZE];
        let flushing = if self.flushing { LOG_FLUSHING } else { 0 };
        let checkpoint = if self.checkpoint.is_some() { LOG_CHECKPOINT } else { 0 };
        put_le64(&mut b, 0, LOG_VERSION | flushing | checkpoint);
        put_le64(&mut b, 8, self.length);
        put_le64(&mut b, 16, self.first_txg);
        let key = self.checkpoint.unwrap_or_default();
        key.into_iter().enumerate().for_each(|(i, w)| put_le64(&mut b, 24 + i * 8, w));
        b
    }
}

/// A record of a log: the state of an entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LogRecord {
    /// Its key.
    pub key: Key,
    /// The class of the ZAP that has an older state of it; none if no ZAP has.
    pub class: Option<u8>,
    /// The state. Without references the block is still allocated; an empty slot was pruned.
    pub flat: Flat,
}

impl LogRecord {
    /// Appends the record to `out`.
    fn write(&self, out: &mut Vec<u8>) {
        let (kind, class) = self.class.map_or(NOWHERE, |class| (0, u64::from(class)));
        let head = RECORD_ENTRY | (RECORD_SIZE as u64) << 8 | kind << 48 | class << 56;
        let words = [head].into_iter().chain(self.key).chain(self.flat.to_words());
        words.for_each(|w| out.extend_from_slice(&w.to_le_bytes()));
    }

    fn parse(b: &[u8]) -> Result<LogRecord> {
        let head = le64(b, 0);
        let class = match (head >> 48 & 0xff, head >> 56) {
            NOWHERE => None,
            (0, class @ 0..=2) => Some(class as u8),
            (kind, class) => {
                return Err(Error::corrupt(format!("log record of a dedup table for storage {kind}, class {class}")));
            }
        };
        let key = std::array::from_fn(|i| le64(b, 8 + i * 8));
        let words = std::array::from_fn(|i| le64(b, 48 + i * 8));
        Ok(LogRecord { key, class, flat: Flat::from_words(&words) })
    }
}

/// Whole blocks with these records; none without any.
pub fn log_blocks(records: &[LogRecord]) -> Vec<u8> {
    let blocks = records.chunks(RECORDS_MAX);
    let mut out = Vec::with_capacity(blocks.len() * LOG_BLOCK);
    for block in blocks {
        block.iter().for_each(|r| r.write(&mut out));
        out.resize(out.len().next_multiple_of(LOG_BLOCK), 0);
    }
    out
}

/// The records of a block. Error: `Corrupt` if one has another type or size.
pub fn log_records(block: &[u8]) -> Result<Vec<LogRecord>> {
    let mut out = Vec::new();
    for record in block.chunks_exact(RECORD_SIZE) {
        let head = le64(record, 0);
        if head & 0xff == 0 {
            break;
        }
        if head & 0xff != RECORD_ENTRY || head >> 8 & 0xffff != RECORD_SIZE as u64 {
            return Err(Error::corrupt(format!("log record of a dedup table with the head {head:#x}")));
        }
        out.push(LogRecord::parse(record)?);
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flat(n: u64) -> Flat {
        let dva = |n: u64| Dva { w0: n << 32 | 16, w1: n << 10 };
        Flat { dvas: [dva(n), dva(n + 1), Dva::default()], refs: n % 5, birth: 77 + n, class_start: 1_700_000_000 + n }
    }

    #[test]
    fn headers_keep_what_they_say() {
        let plain = LogHeader { flushing: false, length: 3 << 17, first_txg: 99, checkpoint: None };
        let flushing = LogHeader { flushing: true, checkpoint: Some([1, 2, 3, 4, 5]), ..plain };
        for h in [plain, flushing, LogHeader { checkpoint: None, ..flushing }] {
            assert_eq!(LogHeader::parse(&h.to_bytes()).expect("own bytes"), h);
        }
        assert!(LogHeader::parse(&LogHeader { length: 4096, ..plain }.to_bytes()).is_err());
        assert!(LogHeader::parse(&LogHeader { checkpoint: Some([0; 5]), ..plain }.to_bytes()).is_err());
        assert!(LogHeader::parse(&[0; LOG_HEADER_SIZE]).is_err());
        assert!(LogHeader::parse(&[1; 32]).is_err());
    }

    #[test]
    fn records_fill_blocks_and_come_back() {
        for n in [0, 1, RECORDS_MAX, RECORDS_MAX + 1, 3000] {
            let class = |i: usize| [None, Some(1), Some(2)][i % 3];
            let records: Vec<LogRecord> = (0..n)
                .map(|i| LogRecord { key: [i as u64; KEY_WORDS], class: class(i), flat: flat(i as u64) })
                .collect();
            let bytes = log_blocks(&records);
            assert_eq!(bytes.len(), n.div_ceil(RECORDS_MAX) * LOG_BLOCK);
            let back: Vec<LogRecord> =
                bytes.chunks(LOG_BLOCK).flat_map(|b| log_records(b).expect("own bytes")).collect();
            assert_eq!(back, records);
        }
        let mut block = log_blocks(&[LogRecord { key: [1; 5], class: None, flat: flat(1) }]);
        block[7] = 9;
        assert!(log_records(&block).is_err(), "a class that there is not");
        block[0] = 2;
        assert!(log_records(&block).is_err(), "a type that there is not");
    }

    #[test]
    fn entries_keep_what_they_say() {
        for words in [flat(3).to_words(), [u64::MAX / 3; FLAT_WORDS], [0; FLAT_WORDS]] {
            let value = pack(&words);
            assert_eq!(unpack::<FLAT_WORDS>(&value).expect("own bytes"), words);
            assert_eq!(Flat::from_words(&words).to_words(), words);
            assert!(value.bytes.len() <= 73);
            assert!(unpack::<32>(&value).is_err() || value.bytes[0] == 0x8e);
        }
        assert_eq!(pack(&[u64::MAX / 3; FLAT_WORDS]).bytes[0], 0x82);
        for bad in [&[][..], &[0x8e], &[0x82, 1, 2, 3], &[0xff; 73]] {
            assert!(unpack::<FLAT_WORDS>(&ZapValue::from_bytes(bad)).is_err());
        }
        // A big-endian writer's, not compressed.
        let words: [u64; FLAT_WORDS] = flat(8).to_words();
        let raw: Vec<u8> = [2].into_iter().chain(words.iter().flat_map(|w| w.to_be_bytes())).collect();
        assert_eq!(unpack::<FLAT_WORDS>(&ZapValue::from_bytes(&raw)).expect("sane"), words);
    }
}
