//! Redaction lists: which blocks of a snapshot a redacted stream leaves out (format page 15
//! section 5).
//!
//! A list is an object of the MOS. Its header lies in the bonus, or, where that has not enough room
//! (feature `redaction_list_spill`), in the spill block: how far the list is made, the number of
//! its entries, and the guids of the snapshots that decide what is left out. The data of the object
//! are the entries: ranges of blocks of one object each, in ascending order.

use base::{Error, ObjectId, Result};

use crate::bytes::{put_le64_words, try_le64};

/// Bytes of the header before the guids.
pub const REDACTION_HEADER: usize = 32;
/// Bytes of an entry.
pub const REDACTED_RANGE_SIZE: usize = 32;
/// Bytes of the blocks of a list (`SPA_OLD_MAXBLOCKSIZE`).
pub const REDACTION_BLOCK: u32 = 128 << 10;
/// Guids that fit the bonus of an ordinary dnode (`DN_OLD_MAX_BONUSLEN`, 320 bytes).
pub const REDACTION_SNAPS_MAX: usize = (320 - REDACTION_HEADER) / 8;
/// Guids that fit a spill block of 128 KiB, with the feature `redaction_list_spill`. OpenZFS allows
/// as many as fit the largest block of the pool.
pub const REDACTION_SNAPS_MAX_SPILL: usize = (128 * 1024 - REDACTION_HEADER) / 8;
/// Blocks that one entry has room for (`REDACT_BLOCK_MAX_COUNT`).
pub const REDACTED_COUNT_MAX: u64 = 1 << 48;

/// The header of a list.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct RedactionHeader {
    /// Object and block from which on the list is not made yet; all ones: it is complete.
    pub last: (u64, u64),
    /// Entries.
    pub entries: u64,
    /// Guids of the redaction snapshots.
    pub snaps: Vec<u64>,
}

/// The place of a complete list.
const COMPLETE: (u64, u64) = (u64::MAX, u64::MAX);

impl RedactionHeader {
    /// Whether the list has all that is redacted.
    pub fn is_complete(&self) -> bool {
        self.last == COMPLETE
    }

    /// Marks the list as complete.
    pub fn complete(&mut self) {
        self.last = COMPLETE;
    }

    /// Parses a bonus or a spill block. Error: `Corrupt` if it is too short for its guids.
    pub fn parse(bytes: &[u8]) -> Result<RedactionHeader> {
        let word = |i: usize| try_le64(bytes, i * 8).ok_or_else(|| Error::corrupt("a redaction list is cut off"));
        let count = word(3)?;
        let room = bytes.len().saturating_sub(REDACTION_HEADER) as u64 / 8;
        if count > room {
            return Err(Error::corrupt(format!("a redaction list names {count} snapshots and has room for {room}")));
        }
        let snaps = (0..count as usize).map(|i| word(4 + i)).collect::<Result<Vec<u64>>>()?;
        Ok(RedactionHeader { last: (word(0)?, word(1)?), entries: word(2)?, snaps })
    }

    /// Its bytes.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut words = vec![self.last.0, self.last.1, self.entries, self.snaps.len() as u64];
        words.extend(&self.snaps);
        let mut out = vec![0; words.len() * 8];
        put_le64_words(&mut out, &words);
        out
    }
}

/// An entry: neighbouring blocks of an object.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RedactedRange {
    /// The object.
    pub object: ObjectId,
    /// The first block.
    pub blkid: u64,
    /// Blocks, 1 to [`REDACTED_COUNT_MAX`].
    pub count: u64,
    /// Bytes of a block: a multiple of 512, below 32 MiB.
    pub block_size: u32,
}

impl RedactedRange {
    /// The block after the last.
    pub fn end(&self) -> u64 {
        self.blkid.saturating_add(self.count)
    }

    /// Parses [`REDACTED_RANGE_SIZE`] bytes; `None` if there are fewer.
    pub fn parse(bytes: &[u8]) -> Option<RedactedRange> {
        let size_count = try_le64(bytes, 16)?;
        Some(RedactedRange {
            object: ObjectId(try_le64(bytes, 0)?),
            blkid: try_le64(bytes, 8)?,
            count: (size_count & (REDACTED_COUNT_MAX - 1)) + 1,
            block_size: ((size_count >> 48) as u32) << 9,
        })
    }

    /// Its bytes.
    pub fn to_bytes(&self) -> [u8; REDACTED_RANGE_SIZE] {
        let size_count = u64::from(self.block_size >> 9) << 48 | (self.count - 1) & (REDACTED_COUNT_MAX - 1);
        let mut out = [0; REDACTED_RANGE_SIZE];
        put_le64_words(&mut out, &[self.object.0, self.blkid, size_count, 0]);
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_there_and_back() {
        let mut header = RedactionHeader { last: (7, 9), entries: 3, snaps: vec![1, u64::MAX] };
        let bytes = header.to_bytes();
        assert_eq!(bytes.len(), REDACTION_HEADER + 16);
        assert_eq!(RedactionHeader::parse(&bytes).unwrap(), header);
        assert!(!header.is_complete());
        header.complete();
        assert!(RedactionHeader::parse(&header.to_bytes()).unwrap().is_complete());
        // A spill block is longer; a bonus that is too short is damage.
        let mut spill = bytes.clone();
        spill.resize(512, 0);
        assert_eq!(RedactionHeader::parse(&spill).unwrap().snaps.len(), 2);
        for len in 0..bytes.len() {
            assert!(RedactionHeader::parse(&bytes[..len]).is_err(), "{len}");
        }
    }

    #[test]
    fn entries_count_from_one() {
        let range = RedactedRange { object: ObjectId(5), blkid: 8, count: 1, block_size: 131_072 };
        let bytes = range.to_bytes();
        assert_eq!(bytes[16..24], [0, 0, 0, 0, 0, 0, 0, 1]);
        assert_eq!(RedactedRange::parse(&bytes), Some(range));
        assert_eq!(range.end(), 9);
        let most = RedactedRange { count: REDACTED_COUNT_MAX, blkid: u64::MAX, block_size: 16 << 20, ..range };
        assert_eq!(RedactedRange::parse(&most.to_bytes()), Some(most));
        assert_eq!(most.end(), u64::MAX);
        assert_eq!(RedactedRange::parse(&bytes[..31]), Some(range));
        assert_eq!(RedactedRange::parse(&bytes[..20]), None);
    }
}
