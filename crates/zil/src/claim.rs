//! Claiming: the first import after a crash allocates the blocks of a log in the space maps (format
//! page 07 section 3).
//!
//! Blocks born in txgs that are on disk are in the maps already; those born later (every log has
//! some) are not, and would be allocated again. All claims are made in the first txg of the import,
//! before any allocation. They need no keys. The header then records the last claimed block and
//! record: a later block that happens to verify does not count.
//!
//! A record of cloned blocks gets a reference for each of them, so that they stay while no file has
//! them (format page 18 section 6): the log frees these when it is destroyed. A record of a txg
//! that is on disk is not replayed, and may name a block that this txg freed (the clone and its
//! origin were overwritten in it). Such a block is allocated again, for the log alone: a reference
//! would outlive it, and what is allocated in its place later would not be freed as it was
//! allocated. The space is free still: it is allocated again three txgs after it was freed at
//! least, and records of a block are of three txgs at most, of which one at least is not on disk.
//!
//! An import without a log device (`-m`) ends the chain before the first block on that device. The
//! rest of the chain is lost, and so is a log that begins there.

use std::collections::BTreeSet;

use base::{Error, Result, ResultExt, Txg};
use ondisk::blkptr::{Blkptr, Dva};
use ondisk::zil::{ZIL_CLAIM_LR_SEQ_VALID, ZIL_REPLAY_NEEDED, ZilHeader, records};
use ondisk::zil_record::{ClonedBlocks, WRITE_SIZE, tx};
use zio::{Prio, Zio};

use crate::chain::{Walk, seq_of};

/// Most txgs between the last one on disk and the birth of a log block.
const AHEAD_MAX: u64 = 1 << 20;

/// The result of a claim.
#[derive(Clone, Copy, Debug)]
pub struct Claimed {
    /// The header to store.
    pub header: ZilHeader,
    /// The highest birth txg of the claimed blocks: the pool must sync that far before it is used.
    pub newest: Txg,
    /// Blocks of the chain.
    pub blocks: u64,
    /// Records in it.
    pub records: u64,
    /// The block at which the chain was cut, if it is on a log device that is not in use.
    pub cut: Option<Blkptr>,
}

/// Whether a log block is on a log device that is not in use: in an import that may do without log
/// devices, and in a pool that is being split off, which has holes in their places, or nothing
/// behind its last vdev.
pub fn is_lost(zio: &Zio, bp: &Blkptr) -> Result<bool> {
    let top = match zio.tree().top(bp.dva(0).vdev()) {
        Err(_) if zio.tree().is_split_off.get() => return Ok(true),
        found => found?,
    };
    Ok(top.is_hole() || top.is_log && !top.kind().health().is_open())
}

/// Whether an import must claim the log.
pub fn needs_claim(header: &ZilHeader) -> bool {
    !header.log.is_hole() && header.claim_txg.0 == 0
}

/// Claims the chain of `header` in `first`, the txg after the last one on disk; the new header is
/// empty if the first block is lost. An error if a device could not be read, or a block to claim is
/// allocated already.
pub async fn claim(zio: &Zio, header: &ZilHeader, first: Txg) -> Result<Claimed> {
    let mut out = Claimed { header: *header, newest: Txg(0), blocks: 0, records: 0, cut: None };
    let mut taken: BTreeSet<Dva> = BTreeSet::new();
    let mut walk = Walk::new(header.log);
    let (mut blk_seq, mut lr_seq) = (0, 0);
    while let Some(bp) = walk.peek() {
        crate::block::check_pointer(&bp)?;
        if is_lost(zio, &bp)? {
            out.cut = Some(bp);
            break;
        }
        if bp.birth() >= first && taken.insert(bp.dva(0)) {
            check_birth(bp.birth(), first)?;
            if !planted!(NoClaim) {
                zio.claim(&bp, first).await.at(|| "intent log block")?;
            }
            out.newest = out.newest.max(bp.birth());
        }
        let Some(step) = walk.step(zio).await? else { break };
        blk_seq = seq_of(&bp);
        out.blocks += 1;
        let Some(block) = step.block else { break };
        let mut complete = true;
        for record in records(&block.bytes, block.chain.records) {
            let Ok(record) = record else {
                complete = false;
                break;
            };
            if record.txtype == tx::WRITE && record.bytes.len() >= WRITE_SIZE {
                let data = Blkptr::parse(&record.bytes[64..WRITE_SIZE])?;
                if !data.is_hole() && !data.is_embedded() && data.birth() >= first {
                    // If the block is not there, its commit was never acknowledged.
                    if !zio.verify(&data, Prio::SyncRead).await? {
                        complete = false;
                        break;
                    }
                    check_birth(data.birth(), first)?;
                    if taken.insert(data.dva(0)) && !planted!(NoClaim) {
                        zio.claim(&data, first).await.at(|| "block that an intent log names")?;
                        out.newest = out.newest.max(data.birth());
                    }
                }
            }
            if let Some(blocks) = ClonedBlocks::of(&record)? {
                // A clone of what no txg on disk has was never acknowledged.
                if blocks.iter().any(|bp| is_counted(&bp) && bp.phys_birth() >= first) {
                    complete = false;
                    break;
                }
                for bp in blocks.iter().filter(is_counted) {
                    let times = if planted!(CloneClaimedTwice) { 2 } else { 1 };
                    for _ in 0..if planted!(CloneNotClaimed) { 0 } else { times } {
                        zio.claim_clone(&bp, first).await.at(|| "block that an intent log clones")?;
                    }
                }
            }
            lr_seq = record.seq;
            out.records += 1;
        }
        if !complete {
            walk.stop();
        }
    }
    if out.cut.is_some() && out.blocks == 0 {
        out.header = ZilHeader::default();
        return Ok(out);
    }
    let h = &mut out.header;
    h.claim_txg = first;
    (h.claim_blk_seq, h.claim_lr_seq) = (blk_seq, lr_seq);
    h.flags |= ZIL_CLAIM_LR_SEQ_VALID;
    if out.records > 0 || out.blocks > 1 {
        h.flags |= ZIL_REPLAY_NEEDED;
    }
    Ok(out)
}

/// Whether a block that a record names is allocated: no hole, not within its pointer.
pub(crate) fn is_counted(bp: &Blkptr) -> bool {
    !bp.is_hole() && !bp.is_embedded()
}

/// As [`claim`] for a log that an earlier import claimed and did not replay: `None` if all its
/// blocks are on devices in use, else the shortened log.
pub async fn shorten(zio: &Zio, header: &ZilHeader) -> Result<Option<Claimed>> {
    let mut out = Claimed { header: *header, newest: Txg(0), blocks: 0, records: 0, cut: None };
    let mut walk = Walk::new(header.log);
    let (mut blk_seq, mut lr_seq) = (0, 0);
    while let Some(bp) = walk.peek().filter(|bp| seq_of(bp) <= header.claim_blk_seq) {
        crate::block::check_pointer(&bp)?;
        if is_lost(zio, &bp)? {
            out.cut = Some(bp);
            break;
        }
        let Some(step) = walk.step(zio).await? else { break };
        blk_seq = seq_of(&bp);
        out.newest = out.newest.max(bp.birth());
        out.blocks += 1;
        let Some(block) = step.block else { break };
        for record in records(&block.bytes, block.chain.records) {
            let Ok(record) = record else { break };
            lr_seq = record.seq;
            out.records += 1;
        }
    }
    if out.cut.is_none() {
        return Ok(None);
    }
    if out.blocks == 0 {
        out.header = ZilHeader::default();
        return Ok(Some(out));
    }
    out.header.claim_blk_seq = blk_seq;
    out.header.claim_lr_seq = lr_seq.min(header.claim_lr_seq);
    Ok(Some(out))
}

fn check_birth(birth: Txg, first: Txg) -> Result<()> {
    if birth.0 - first.0 > AHEAD_MAX {
        return Err(Error::corrupt(format!("an intent log has a block of txg {birth}, the pool is at txg {first}")));
    }
    Ok(())
}
