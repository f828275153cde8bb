//! Replay: applies the records of a claimed log (format page 07 section 4), and frees logs.
//!
//! Records are applied in the order of the chain. The number of each applied record goes into the
//! header in the same transaction ([`mark`]), so that after a crash the replay continues there and
//! applies no record twice. At the end the log is freed: its blocks, and the blocks that its writes
//! name.

use std::collections::BTreeSet;

use base::{Error, ErrorKind, Result, ResultExt, Txg};
use dmu::{Objset, Tx};
use ondisk::blkptr::{Blkptr, Dva};
use ondisk::zil::{Record, ZIL_CLAIM_LR_SEQ_VALID, ZIL_REPLAY_NEEDED, ZilHeader, records};
use ondisk::zil_record::{ClonedBlocks, Op, WRITE_SIZE, tx};
use rt::LocalBoxFuture;

use crate::block;
use crate::chain::{Walk, seq_of};
use crate::claim::is_counted;

/// Blocks freed in one transaction.
const FREES_PER_TX: usize = 4096;

/// Applies records: a file system or a volume.
pub trait Replay {
    /// Applies `op` and calls [`mark`] with `record.seq` in the transaction that completes it.
    /// `NotFound` if the record needs an object that does not exist.
    fn apply<'a>(&'a self, record: &'a Record<'a>, op: &'a Op<'a>) -> LocalBoxFuture<'a, Result<()>>;
}

/// The result of a replay.
#[derive(Clone, Debug, Default)]
pub struct Replayed {
    /// Records applied.
    pub applied: u64,
    /// Records whose txg was on disk already, or that were applied by an earlier attempt.
    pub skipped: u64,
    /// Records of objects that do not exist any more.
    pub void: u64,
    /// The error that stopped it before the end; the log is kept then.
    pub failed: Option<Error>,
}

/// Records in `tx` that the records up to `seq` are replayed.
pub fn mark(os: &Objset, seq: u64, tx: &Tx) {
    let mut header = os.zil_header();
    header.replay_seq = seq;
    os.set_zil_header(header, tx.txg());
}

/// Whether there are records to replay, by the header.
pub fn is_needed(header: &ZilHeader) -> bool {
    !header.log.is_hole() && header.claim_txg.0 != 0 && header.flags & ZIL_REPLAY_NEEDED != 0
}

/// Replays the log of `os` and frees it. Does nothing without a log. A record that fails twice in a
/// row stops the replay ([`Replayed::failed`]).
pub async fn replay(os: &Objset, target: &dyn Replay) -> Result<Replayed> {
    let header = os.zil_header();
    let mut out = Replayed::default();
    if is_needed(&header) {
        walk(os, &header, target, &mut out).await?;
        if out.failed.is_some() {
            return Ok(out);
        }
    }
    destroy(os).await?;
    Ok(out)
}

async fn walk(os: &Objset, header: &ZilHeader, target: &dyn Replay, out: &mut Replayed) -> Result<()> {
    let zio = os.ctx().zio().clone();
    let key = os.ctx().key().cloned();
    let last = if header.flags & ZIL_CLAIM_LR_SEQ_VALID != 0 { header.claim_lr_seq } else { u64::MAX };
    let mut walk = Walk::new(header.log);
    while walk.peek().is_some_and(|bp| seq_of(&bp) <= header.claim_blk_seq) {
        let Some(step) = walk.step(&zio).await? else { break };
        let Some(mut block) = step.block else { break };
        if planted!(ReplayStopsEarly) && seq_of(&step.bp) != seq_of(&header.log) {
            break;
        }
        block::open(&mut block, &step.bp, key.as_deref())?;
        for record in records(&block.bytes, block.chain.records) {
            let record = record?;
            if record.seq > last {
                return Ok(());
            }
            let done = record.txg < header.claim_txg && !planted!(OldReplayed);
            if record.seq <= header.replay_seq || done {
                out.skipped += 1;
                continue;
            }
            if let Err(e) = apply(os, target, &record, out).await {
                out.failed = Some(e.at(format!("intent log record {} of type {}", record.seq, record.txtype)));
                return Ok(());
            }
        }
    }
    Ok(())
}

async fn apply(os: &Objset, target: &dyn Replay, record: &Record<'_>, out: &mut Replayed) -> Result<()> {
    let op = Op::parse(record)?;
    let mut tries = 0;
    loop {
        match target.apply(record, &op).await {
            Ok(()) => {
                out.applied += 1;
                return Ok(());
            }
            Err(e) if e.kind() == ErrorKind::NotFound && op.void_without().is_some() => {
                out.void += 1;
                return Ok(());
            }
            Err(e) if tries > 0 || e.kind() == ErrorKind::Interrupted => return Err(e),
            Err(_) => {
                // The record may need space that earlier ones freed.
                os.ctx().txg().wait_synced(Txg(0)).await?;
                tries += 1;
            }
        }
    }
}

/// The blocks that belong to a log: those of its chain, and of a claimed log also those that its
/// writes name, each once, and those that it clones, once for each reference that the claim added.
pub async fn blocks_of(zio: &zio::Zio, header: &ZilHeader) -> Result<Vec<Blkptr>> {
    let mut out = Vec::new();
    let mut seen: BTreeSet<Dva> = BTreeSet::new();
    let claimed = header.claim_txg.0 != 0;
    let last = if header.flags & ZIL_CLAIM_LR_SEQ_VALID != 0 { header.claim_lr_seq } else { u64::MAX };
    let mut walk = Walk::new(header.log);
    while let Some(bp) = walk.peek() {
        if claimed && seq_of(&bp) > header.claim_blk_seq {
            break;
        }
        let step = walk.step(zio).await.at(|| "intent log")?;
        if seen.insert(bp.dva(0)) {
            out.push(bp);
        }
        let Some(block) = step.and_then(|s| s.block).filter(|_| claimed) else { continue };
        for record in records(&block.bytes, block.chain.records) {
            let Ok(record) = record else { break };
            if record.seq > last {
                break;
            }
            if let Some(blocks) = ClonedBlocks::of(&record)?.filter(|_| !planted!(CloneNotFreed)) {
                out.extend(blocks.iter().filter(is_counted));
            }
            if record.txtype != tx::WRITE || record.bytes.len() < WRITE_SIZE {
                continue;
            }
            let data = Blkptr::parse(&record.bytes[64..WRITE_SIZE])?;
            let is_ours = !data.is_hole() && !data.is_embedded() && data.birth() >= header.claim_txg;
            if is_ours && seen.insert(data.dva(0)) {
                out.push(data);
            }
        }
    }
    Ok(out)
}

/// The blocks of a log that is dropped without replay: those in the space maps of txg `synced`.
pub async fn blocks_to_drop(zio: &zio::Zio, header: &ZilHeader, synced: Txg) -> Result<Vec<Blkptr>> {
    let mut out = Vec::new();
    let mut walk = Walk::new(header.log);
    while let Some(bp) = walk.peek() {
        if bp.birth() > synced {
            break;
        }
        out.push(bp);
        if crate::claim::is_lost(zio, &bp)? {
            break;
        }
        walk.step(zio).await?;
    }
    Ok(out)
}

/// Frees the log of `os`, whose object set is writable, with all its blocks, and waits until that
/// is on disk. A log that was not claimed must be one of this run.
pub async fn destroy(os: &Objset) -> Result<()> {
    let header = os.zil_header();
    if header == ZilHeader::default() {
        return Ok(());
    }
    let blocks = blocks_of(os.ctx().zio(), &header).await?;
    assert!(blocks.len() <= FREES_PER_TX << 10, "the walk of a chain has an end");
    let hold = os.ctx().txg().hold_open().await;
    let txg = hold.txg;
    for bp in &blocks {
        os.ctx().zio().free_gang(bp, txg).await?;
    }
    os.set_zil_header(ZilHeader::default(), txg);
    drop(hold);
    os.ctx().txg().wait_synced(txg).await
}
