//! Chains of intent log blocks, as far as they can be followed.
//!
//! The end of a chain is where a block cannot be read, does not verify, or has not the next
//! sequence number: that is normal. The last good block points to a block that is allocated and was
//! never written; it belongs to the chain.

use std::collections::HashSet;

use base::Result;
use codec::{ChecksumAlgo, compute};
use ondisk::blkptr::Blkptr;
use ondisk::bytes::put_le64_words;
use ondisk::zil::{CHECKSUM_ZILOG2, ZilChain, ZilHeader};

use crate::blocks::BlockReader;
use crate::vdev::top;

/// A block of a chain.
pub struct LogBlock {
    /// Its pointer.
    pub bp: Blkptr,
    /// Content and chain part; `None` for the tail that was not written.
    pub data: Option<(Vec<u8>, ZilChain)>,
}

/// The blocks of the chain under `header`, the unwritten tail included.
pub fn chain(io: &BlockReader, header: &ZilHeader) -> Vec<LogBlock> {
    let mut out = Vec::new();
    let mut seen = HashSet::new();
    let mut bp = header.log;
    while !bp.is_hole() && io.validate_log(&bp).is_ok() && seen.insert((bp.0[0], bp.0[1])) {
        let data = read(io, &bp).ok().flatten();
        let next = data.as_ref().map(|(_, zc)| zc.next);
        out.push(LogBlock { bp, data });
        let Some(next) = next else { break };
        let (a, b) = (bp.checksum_words(), next.checksum_words());
        if next.is_hole() || a[..3] != b[..3] || b[3] != a[3].wrapping_add(1) {
            break;
        }
        bp = next;
    }
    out
}

/// A log block, if it verifies.
fn read(io: &BlockReader, bp: &Blkptr) -> Result<Option<(Vec<u8>, ZilChain)>> {
    for dva in bp.dvas() {
        let t = top(&io.tops, dva.vdev().0)?;
        for side in 0..t.sides(&io.tops) {
            let block = if dva.gang() {
                io.read_raw(bp, 0)?
            } else {
                match t.read(&io.tops, side, dva.offset(), bp.psize() as usize, bp.phys_birth()) {
                    Ok(b) => b,
                    Err(_) => continue,
                }
            };
            let Ok(zc) = ZilChain::parse(&block, bp) else { continue };
            let mut check = block[..zc.verified].to_vec();
            put_le64_words(&mut check[zc.cksum_at..], &bp.checksum_words());
            let algo = if bp.checksum_raw() == CHECKSUM_ZILOG2 { ChecksumAlgo::Zilog2 } else { ChecksumAlgo::Zilog };
            let sum = compute(algo, &check, false, None)?.0;
            let right =
                if bp.encrypted() { [sum[0] ^ sum[2], sum[1] ^ sum[3]] == zc.cksum[..2] } else { sum == zc.cksum };
            if right {
                return Ok(Some((block, zc)));
            }
        }
    }
    Ok(None)
}

/// The name of a record type.
pub fn record_name(txtype: u64) -> &'static str {
    const NAMES: [&str; 25] = [
        "TX_COMMIT",
        "TX_CREATE",
        "TX_MKDIR",
        "TX_MKXATTR",
        "TX_SYMLINK",
        "TX_REMOVE",
        "TX_RMDIR",
        "TX_LINK",
        "TX_RENAME",
        "TX_WRITE",
        "TX_TRUNCATE",
        "TX_SETATTR",
        "TX_ACL_V0",
        "TX_ACL_ACL",
        "TX_CREATE_ACL",
        "TX_CREATE_ATTR",
        "TX_CREATE_ACL_ATTR",
        "TX_MKDIR_ACL",
        "TX_MKDIR_ATTR",
        "TX_MKDIR_ACL_ATTR",
        "TX_WRITE2",
        "TX_SETSAXATTR",
        "TX_RENAME_EXCHANGE",
        "TX_RENAME_WHITEOUT",
        "TX_CLONE_RANGE",
    ];
    NAMES.get(txtype as usize).copied().unwrap_or("UNKNOWN")
}
