//! Intent logs at import (format page 07 section 3).
//!
//! In the first txg, before any other allocation, every log that a crash left is claimed; its
//! records are replayed when the dataset is opened. Empty logs (an exported pool keeps the first,
//! unwritten block of the log of each dataset that was in use) are freed at once. In a rewound pool
//! logs are freed unread: their records are newer than the state. In a pool imported without a log
//! device a log is freed from the first block on that only this device has.

use std::rc::Rc;

use base::{Result, ResultExt, Txg, VdevId};
use dsl::{Dataset, DslPool};
use ondisk::blkptr::Blkptr;
use ondisk::zil::ZilHeader;
use zil::claim::{claim, needs_claim, shorten};
use zil::replay::{blocks_of, blocks_to_drop, is_needed};

use crate::pool::Pool;

/// Work for the running pool.
pub(crate) struct Claims {
    /// The newest birth of a block on disk: the pool's txg must not stay below it.
    newest: Txg,
    /// Blocks of logs to free.
    frees: Vec<Blkptr>,
    /// Their datasets.
    emptied: Vec<Rc<Dataset>>,
    /// Names of datasets that lose log blocks with a missing log device.
    cut: Vec<String>,
    sealed: Vec<Rc<Dataset>>,
}

/// What becomes of the logs of a pool.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum LogRule {
    /// They are claimed, to be replayed.
    Claim,
    /// The pool was split off: its state has all that was written before the split. Logs that no
    /// import claimed are given up, and of others what is on log devices.
    GiveUp,
}

/// Claims every log in `first`, the first txg of the pool, before the sync loop runs.
pub(crate) async fn claim_logs(pool: &Pool, first: Txg, rule: LogRule) -> Result<Claims> {
    let mut out =
        Claims { newest: Txg(0), frees: Vec::new(), emptied: Vec::new(), cut: Vec::new(), sealed: Vec::new() };
    let synced = pool.uberblock().txg;
    let gives_up = rule == LogRule::GiveUp;
    let rewound = gives_up || first != synced.next();
    let without_log =
        gives_up || pool.stack.tree.tops.borrow().iter().any(|t| t.is_log && t.is_concrete() && !t.is_usable());
    for ds in pool.stack.dsl().all() {
        let place = || format!("intent log of '{}'", ds.name());
        let mut header = ds.zil_header().await.at(place)?;
        if header.is_empty() {
            continue;
        }
        if rewound && needs_claim(&header) {
            out.frees.extend(blocks_to_drop(pool.stack.zio(), &header, synced).await.at(place)?);
            out.emptied.push(ds);
            continue;
        }
        // A log block to free is allocated only if an import claimed it, or if it was born in a txg
        // that is on disk.
        let was_claimed = !needs_claim(&header);
        let found = match was_claimed {
            false => Some(claim(pool.stack.zio(), &header, first).await.at(place)?),
            true if without_log => shorten(pool.stack.zio(), &header).await.at(place)?,
            true => None,
        };
        if let Some(claimed) = found {
            header = claimed.header;
            out.newest = out.newest.max(claimed.newest);
            ds.set_zil_header(header, first).await.at(place)?;
            if let Some(bp) = claimed.cut {
                out.frees.extend((was_claimed || bp.birth() <= synced).then_some(bp));
                out.cut.push(ds.name());
            }
        } else if !rewound {
            // An earlier import claimed it before a crash.
            let blocks = blocks_of(pool.stack.zio(), &header).await.at(place)?;
            out.newest = blocks.iter().map(Blkptr::birth).fold(out.newest, Txg::max);
        }
        let os = ds.opened().filter(|os| !os.is_sealed());
        match os {
            None => out.sealed.push(ds),
            Some(_) if !is_needed(&header) => {
                out.frees.extend(blocks_of(pool.stack.zio(), &header).await.at(place)?);
                out.emptied.push(ds);
            }
            Some(_) => {}
        }
    }
    if gives_up {
        // What is on log devices is on no device of this pool.
        let tops = pool.stack.tree.tops.borrow();
        let is_there = |id: VdevId| tops.get(id.0 as usize).is_some_and(|top| top.is_concrete());
        out.frees.retain(|bp| bp.dvas().all(|dva| is_there(dva.vdev())));
    }
    Ok(out)
}

impl Claims {
    /// Takes the blocks to free, and the datasets that have no log then, for a sync of the
    /// caller's.
    pub(crate) fn take_frees(&mut self) -> (Vec<Blkptr>, Vec<Rc<Dataset>>) {
        (std::mem::take(&mut self.frees), std::mem::take(&mut self.emptied))
    }

    /// Syncs the claims, frees the logs to free, and syncs until the pool's txg is not older than
    /// any block on disk.
    pub(crate) async fn finish(self, pool: &Pool) -> Result<()> {
        pool.stack.txg.wait_synced(Txg(0)).await?;
        for ds in &self.sealed {
            ds.close_sealed();
        }
        if !self.cut.is_empty() {
            let why = format!(
                "the pool goes on without a log device: synchronous writes of its last seconds to {} may be lost",
                self.cut.join(", ")
            );
            pool.notices.push(why);
        }
        if !self.emptied.is_empty() || !self.frees.is_empty() {
            let zio = pool.stack.zio().clone();
            let (frees, emptied) = (self.frees, self.emptied);
            let task = move |_: Rc<DslPool>, tx: Rc<dmu::Tx>| -> rt::LocalBoxFuture<'static, Result<()>> {
                Box::pin(async move {
                    for bp in &frees {
                        zio.free_gang(bp, tx.txg()).await?;
                    }
                    for ds in emptied {
                        ds.set_zil_header(ZilHeader::default(), tx.txg()).await?;
                    }
                    Ok(())
                })
            };
            pool.stack.dsl().sync_task(task).await?;
        }
        if self.newest > pool.uberblock().txg {
            // Txgs without changes write no uberblock; the last one must write it.
            pool.stack.txg.wait_synced(self.newest).await?;
            pool.config.mark_dirty();
            pool.stack.txg.wait_synced(Txg(0)).await?;
        }
        Ok(())
    }
}
