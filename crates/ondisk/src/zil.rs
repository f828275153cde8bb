//! The intent log on disk: header, chain blocks and the common part of records (format page 07).
//! Chain blocks are only read here; crate `zil` builds them.
//!
//! An object set's header names the first block of a chain. Each block carries a `zil_chain` of 184
//! bytes with the pointer of the next block and a count of the bytes in use; in *slim* blocks
//! (checksum zilog2) it stands first, in *fat* ones (zilog, pools before version 23) last. The
//! checksum words of a log block's pointer are an identity `{guid, guid, object set, sequence}`
//! from which the embedded checksum starts.

use base::{Error, Result, Txg, align_up};

use crate::blkptr::{BLKPTR_SIZE, Blkptr};
use crate::bytes::{le64, put_le64};

/// Bytes of the header inside an object set.
pub const ZIL_HEADER_SIZE: usize = 192;
/// Bytes of the chain part of a log block.
pub const ZIL_CHAIN_SIZE: usize = 184;
/// Magic of every embedded checksum (format pages 01 and 02).
pub const ECK_MAGIC: u64 = 0x0210_da7a_b10c_7a11;
/// Bytes of the part that all records share.
pub const RECORD_HEADER_SIZE: usize = 32;
/// Header flag: records wait to be replayed.
pub const ZIL_REPLAY_NEEDED: u64 = 1;
/// Header flag: `claim_lr_seq` counts.
pub const ZIL_CLAIM_LR_SEQ_VALID: u64 = 2;
/// Raw checksum number of fat log blocks.
pub const CHECKSUM_ZILOG: u8 = 5;
/// Raw checksum number of slim log blocks.
pub const CHECKSUM_ZILOG2: u8 = 9;

/// The log header of an object set; all zero without a log.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct ZilHeader {
    /// Txg of the import that claimed the chain, 0 while running.
    pub claim_txg: Txg,
    /// Highest record sequence already replayed.
    pub replay_seq: u64,
    /// The first block; a hole without a log.
    pub log: Blkptr,
    /// Highest block sequence claimed.
    pub claim_blk_seq: u64,
    /// `ZIL_*` bits.
    pub flags: u64,
    /// Highest record sequence claimed.
    pub claim_lr_seq: u64,
}

impl ZilHeader {
    /// The header in the first 192 bytes of `b`.
    pub fn parse(b: &[u8]) -> Result<ZilHeader> {
        if b.len() < ZIL_HEADER_SIZE {
            return Err(Error::corrupt(format!(
                "intent log header needs {ZIL_HEADER_SIZE} bytes, {} are there",
                b.len()
            )));
        }
        Ok(ZilHeader {
            claim_txg: Txg(le64(b, 0)),
            replay_seq: le64(b, 8),
            log: Blkptr::parse(&b[16..])?,
            claim_blk_seq: le64(b, 144),
            flags: le64(b, 152),
            claim_lr_seq: le64(b, 160),
        })
    }
    /// Stores the header in the first 192 bytes of `out`.
    pub fn write_to(&self, out: &mut [u8]) {
        let out = &mut out[..ZIL_HEADER_SIZE];
        out.fill(0);
        put_le64(out, 0, self.claim_txg.0);
        put_le64(out, 8, self.replay_seq);
        self.log.write_to(&mut out[16..]);
        put_le64(out, 144, self.claim_blk_seq);
        put_le64(out, 152, self.flags);
        put_le64(out, 160, self.claim_lr_seq);
    }
    /// Whether there is no log at all.
    pub fn is_empty(&self) -> bool {
        *self == ZilHeader::default()
    }
}

/// A log block's chain part and where its records are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ZilChain {
    /// Pointer of the next block.
    pub next: Blkptr,
    /// Bytes in use as stored (slim blocks count the chain part).
    pub nused: u64,
    /// Checksum words stored in the block.
    pub cksum: [u64; 4],
    /// Where the records begin and end in the block.
    pub records: (usize, usize),
    /// How many bytes of the block are written and under its checksum.
    pub verified: usize,
    /// Where the four checksum words are in the block: to preset them from the pointer before
    /// computing.
    pub cksum_at: usize,
}

impl ZilChain {
    /// The chain part of a log block that `bp` names. Does not verify the checksum.
    pub fn parse(block: &[u8], bp: &Blkptr) -> Result<ZilChain> {
        let slim = match bp.checksum_raw() {
            CHECKSUM_ZILOG2 => true,
            CHECKSUM_ZILOG => false,
            c => return Err(Error::corrupt(format!("intent log block with checksum number {c}"))),
        };
        if block.len() < ZIL_CHAIN_SIZE {
            return Err(Error::corrupt(format!("intent log block of {} bytes", block.len())));
        }
        let at = if slim { 0 } else { block.len() - ZIL_CHAIN_SIZE };
        let zc = &block[at..at + ZIL_CHAIN_SIZE];
        let nused = le64(zc, 136);
        let (low, high) = if slim { (ZIL_CHAIN_SIZE, block.len()) } else { (0, block.len() - ZIL_CHAIN_SIZE) };
        if nused < low as u64 || nused > high as u64 {
            return Err(Error::corrupt(format!(
                "intent log block of {} bytes says that {nused} are in use",
                block.len()
            )));
        }
        if le64(zc, 144) != ECK_MAGIC {
            return Err(Error::corrupt("intent log block without the checksum magic"));
        }
        let nused_bytes = nused as usize;
        Ok(ZilChain {
            next: Blkptr::parse(&zc[8..8 + BLKPTR_SIZE])?,
            nused,
            cksum: [le64(zc, 152), le64(zc, 160), le64(zc, 168), le64(zc, 176)],
            records: (low, nused_bytes),
            verified: if slim { (align_up(nused, 4096) as usize).min(block.len()) } else { block.len() },
            cksum_at: at + 152,
        })
    }
}

/// A record: its common part and all its bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Record<'a> {
    /// Type without the case-insensitive bit.
    pub txtype: u64,
    /// Whether names in it match case-insensitively (bit 63 of the stored type).
    pub case_insensitive: bool,
    /// Txg that the operation was in.
    pub txg: Txg,
    /// Sequence number, rising by one along the chain.
    pub seq: u64,
    /// The whole record, common part included.
    pub bytes: &'a [u8],
}

/// The records of a log block in order; ends after the first malformed one.
pub fn records(block: &[u8], range: (usize, usize)) -> Records<'_> {
    Records { rest: block.get(range.0..range.1).unwrap_or(&[]), failed: false }
}

/// See [`records`].
#[derive(Clone, Debug)]
pub struct Records<'a> {
    rest: &'a [u8],
    failed: bool,
}

impl<'a> Iterator for Records<'a> {
    type Item = Result<Record<'a>>;
    fn next(&mut self) -> Option<Self::Item> {
        if self.failed || self.rest.is_empty() {
            return None;
        }
        let left = self.rest.len();
        let len = if left < RECORD_HEADER_SIZE { 0 } else { le64(self.rest, 8) };
        if len < RECORD_HEADER_SIZE as u64 || len > left as u64 || !len.is_multiple_of(8) {
            self.failed = true;
            return Some(Err(Error::corrupt(format!(
                "intent log record says it has {len} bytes where {left} are left"
            ))));
        }
        let (bytes, rest) = self.rest.split_at(len as usize);
        self.rest = rest;
        let t = le64(bytes, 0);
        Some(Ok(Record {
            txtype: t & !(1 << 63),
            case_insensitive: t >> 63 != 0,
            txg: Txg(le64(bytes, 16)),
            seq: le64(bytes, 24),
            bytes,
        }))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use proptest::prelude::*;

    fn slim_bp() -> Blkptr {
        let mut bp = Blkptr::hole();
        bp.set_checksum(CHECKSUM_ZILOG2);
        bp
    }

    #[test]
    fn header_round_trip() {
        let h =
            ZilHeader { claim_txg: Txg(4), replay_seq: 5, log: slim_bp(), claim_blk_seq: 6, flags: 3, claim_lr_seq: 7 };
        let mut b = [0xffu8; ZIL_HEADER_SIZE];
        h.write_to(&mut b);
        assert_eq!(ZilHeader::parse(&b).unwrap(), h);
        assert!(ZilHeader::parse(&[0; ZIL_HEADER_SIZE]).unwrap().is_empty());
    }

    #[test]
    fn walks_records() {
        let mut b = vec![0u8; 4096];
        put_le64(&mut b, 144, ECK_MAGIC);
        put_le64(&mut b, 136, 184 + 40 + 32);
        put_le64(&mut b, 184, 1 << 63 | 10);
        put_le64(&mut b, 192, 40);
        put_le64(&mut b, 224, 5);
        put_le64(&mut b, 232, 32);
        put_le64(&mut b, 248, 2);
        let zc = ZilChain::parse(&b, &slim_bp()).unwrap();
        assert_eq!(zc.verified, 4096);
        let r: Vec<_> = records(&b, zc.records)
            .map(|r| r.map(|r| (r.txtype, r.case_insensitive, r.seq, r.bytes.len())))
            .collect::<Result<_>>()
            .unwrap();
        assert_eq!(r, [(10, true, 0, 40), (5, false, 2, 32)]);
    }

    proptest! {
        #[test]
        fn hostile_bytes_never_panic(mut b in proptest::collection::vec(any::<u8>(), 0..1024), nused in 0u64..1100) {
            let _ = ZilHeader::parse(&b);
            if b.len() >= 184 {
                put_le64(&mut b, 144, ECK_MAGIC);
                put_le64(&mut b, 136, nused);
            }
            if let Ok(zc) = ZilChain::parse(&b, &slim_bp()) {
                prop_assert!(records(&b, zc.records).count() <= b.len());
            }
        }
    }
}
