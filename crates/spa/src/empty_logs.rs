//! Intent logs that hold nothing (format page 07): a pool that was exported keeps the first, unwritten block of the log of each dataset that was in use. Such logs are
//! given up by the first txg, blocks and all; one with records to replay makes the pool read-only.
//!
//! A chain ends where a block does not verify; that block is allocated all the same and belongs to the chain. Blocks born after the state that is imported were never
//! brought to a space map, unless somebody claimed the chain.

use std::collections::BTreeSet;

use base::{Error, Result, Txg};
use codec::{ChecksumAlgo, compute};
use ondisk::blkptr::Blkptr;
use ondisk::bytes::put_le64_words;
use ondisk::zil::{CHECKSUM_ZILOG2, ZilChain, ZilHeader, records};
use zio::{Prio, Zio};

/// Blocks followed at most: far more than a log has between two txgs.
const CHAIN_MAX: usize = 1 << 20;

/// The blocks of the chain under `header` that are allocated in the state of txg `synced`, or an error if there are records to be replayed.
pub(crate) async fn blocks(zio: &Zio, header: &ZilHeader, synced: Txg) -> Result<Vec<Blkptr>> {
    let mut out = Vec::new();
    let mut seen = BTreeSet::new();
    let mut bp = header.log;
    while !bp.is_hole() && !bp.is_embedded() && seen.insert(bp.dva(0)) && seen.len() < CHAIN_MAX {
        if bp.birth() <= synced || header.claim_txg.0 != 0 {
            out.push(bp);
        }
        let Some((block, chain)) = read(zio, &bp).await else { break };
        if records(&block, chain.records).any(|r| r.map_or(true, |r| r.seq > header.replay_seq)) {
            return Err(Error::unsupported("it has an intent log that must be replayed, which weir cannot do yet"));
        }
        let (a, b) = (bp.checksum_words(), chain.next.checksum_words());
        if a[..3] != b[..3] || b[3] != a[3].wrapping_add(1) {
            break;
        }
        bp = chain.next;
    }
    Ok(out)
}

/// A log block, if it was written.
async fn read(zio: &Zio, bp: &Blkptr) -> Option<(Vec<u8>, ZilChain)> {
    for dva in bp.dvas().filter(|d| !d.gang()) {
        let Ok(block) = zio.read_raw(dva, bp.psize(), Prio::SyncRead).await else { continue };
        let Ok(chain) = ZilChain::parse(&block, bp) else { continue };
        let mut check = block[..chain.verified].to_vec();
        put_le64_words(&mut check[chain.cksum_at..], &bp.checksum_words());
        let algo = if bp.checksum_raw() == CHECKSUM_ZILOG2 { ChecksumAlgo::Zilog2 } else { ChecksumAlgo::Zilog };
        let Ok(sum) = compute(algo, &check, bp.needs_swap(), None) else { continue };
        let sum = sum.0;
        let right =
            if bp.encrypted() { [sum[0] ^ sum[2], sum[1] ^ sum[3]] == chain.cksum[..2] } else { sum == chain.cksum };
        if right {
            return Some((block.to_vec(), chain));
        }
    }
    None
}
