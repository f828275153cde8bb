//! Claiming: the first import after a crash takes the blocks of a log into the space maps (format
//! page 07 section 3).
//!
//! Blocks born in txgs that are on disk are in the maps already; those born later (every log has
//! some) are not, and would be given to somebody else. All claims are made in the first txg of the
//! import, before anything allocates. Nothing of that needs keys. After it the header says what of
//! the chain belongs to the log: whatever is written to its end by accident does not count.
//!
//! An import that goes on without a log device (`-m`) ends the chain before the first block that
//! only this device has. What comes after it is given up, and so is a log that begins there.

use std::collections::BTreeSet;

use base::{Error, Result, ResultExt, Txg};
use ondisk::blkptr::{Blkptr, Dva};
use ondisk::zil::{ZIL_CLAIM_LR_SEQ_VALID, ZIL_REPLAY_NEEDED, ZilHeader, records};
use ondisk::zil_record::{WRITE_SIZE, tx};
use zio::{Prio, Zio};

use crate::chain::{Walk, seq_of};

/// A log block cannot be born so many txgs after the last one on disk.
const AHEAD_MAX: u64 = 1 << 20;

/// What a claim came to.
#[derive(Clone, Copy, Debug)]
pub struct Claimed {
    /// The header to be stored.
    pub header: ZilHeader,
    /// The highest txg that something claimed was born in: the pool must sync that far before it is
    /// used.
    pub newest: Txg,
    /// Blocks of the chain.
    pub blocks: u64,
    /// Records in it.
    pub records: u64,
    /// Where the chain was cut short, because that block is on a log device that is not in use.
    pub cut: Option<Blkptr>,
}

/// Whether a log block is on a log device that is not in use; an import has such devices only if it
/// was told to do without them.
pub fn is_lost(zio: &Zio, bp: &Blkptr) -> Result<bool> {
    let top = zio.tree().top(bp.dva(0).vdev())?;
    Ok(top.is_log && !top.kind().health().is_open())
}

/// Whether an import must claim the log.
pub fn needs_claim(header: &ZilHeader) -> bool {
    !header.log.is_hole() && header.claim_txg.0 == 0
}

/// Claims the chain of `header` in `first`, the txg after the last one on disk; the header that
/// comes of it is empty if the first block is lost. An error if a device could not be read, or what
/// is to be claimed is in use.
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
                    // Its commit was never acknowledged if it is not there.
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

/// As [`claim`] for a log that an import has claimed before, and that a crash left without replay:
/// nothing if all its blocks are on devices that are in use, or else what is left of it.
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
