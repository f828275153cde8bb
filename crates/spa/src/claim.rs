//! Intent logs at import (format page 07 section 3).
//!
//! In the first txg, before anything else allocates, every log that a crash left is claimed; its
//! records are replayed when the dataset is opened. Logs that hold nothing (an exported pool keeps
//! the first, unwritten block of the log of each dataset that was in use) are given up at once. In
//! a pool that goes back to an older state logs are given up unread: what they say happened later.
//! In a pool that goes on without a log device they are given up from the first block on that only
//! this device has.

use std::rc::Rc;

use base::{Result, ResultExt, Txg};
use dsl::{Dataset, DslPool};
use ondisk::blkptr::Blkptr;
use ondisk::zil::ZilHeader;
use zil::claim::{claim, needs_claim, shorten};
use zil::replay::{blocks_of, blocks_to_drop, is_needed};

use crate::pool::Pool;

/// What is to be done once the pool runs.
pub(crate) struct Claims {
    /// Nothing on disk may be younger than the pool.
    newest: Txg,
    /// Blocks of logs that are given up.
    frees: Vec<Blkptr>,
    /// Their datasets.
    emptied: Vec<Rc<Dataset>>,
    /// Names of datasets of whose logs something is lost, with a log device that is not in use.
    cut: Vec<String>,
    sealed: Vec<Rc<Dataset>>,
}

/// Claims every log in `first`, the first txg of the pool, which does not run yet.
pub(crate) async fn claim_logs(pool: &Pool, first: Txg) -> Result<Claims> {
    let mut out =
        Claims { newest: Txg(0), frees: Vec::new(), emptied: Vec::new(), cut: Vec::new(), sealed: Vec::new() };
    let synced = pool.uberblock().txg;
    let rewound = first != synced.next();
    let without_log = pool.tree.tops.borrow().iter().any(|t| t.is_log && t.is_concrete() && !t.is_usable());
    for ds in pool.dsl().all() {
        let place = || format!("intent log of '{}'", ds.name());
        let mut header = ds.zil_header().await.at(place)?;
        if header.is_empty() {
            continue;
        }
        if rewound && needs_claim(&header) {
            out.frees.extend(blocks_to_drop(pool.zio(), &header, synced).await.at(place)?);
            out.emptied.push(ds);
            continue;
        }
        // What is allocated of a block that is given up: what an import claimed, and what was born
        // in a txg that is on disk.
        let was_claimed = !needs_claim(&header);
        let found = match was_claimed {
            false => Some(claim(pool.zio(), &header, first).await.at(place)?),
            true if without_log => shorten(pool.zio(), &header).await.at(place)?,
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
            // Claimed by an import that a crash ended.
            let blocks = blocks_of(pool.zio(), &header).await.at(place)?;
            out.newest = blocks.iter().map(Blkptr::birth).fold(out.newest, Txg::max);
        }
        let os = ds.opened().filter(|os| !os.is_sealed());
        match os {
            None => out.sealed.push(ds),
            Some(_) if !is_needed(&header) => {
                out.frees.extend(blocks_of(pool.zio(), &header).await.at(place)?);
                out.emptied.push(ds);
            }
            Some(_) => {}
        }
    }
    Ok(out)
}

impl Claims {
    /// Makes the claims permanent, gives up what is to be given up, and syncs until nothing on disk
    /// is from the future.
    pub(crate) async fn finish(self, pool: &Pool) -> Result<()> {
        pool.txg.wait_synced(Txg(0)).await?;
        for ds in &self.sealed {
            ds.close_sealed();
        }
        if !self.cut.is_empty() {
            let why = format!(
                "the pool goes on without a log device: synchronous writes of its last seconds to {} may be lost",
                self.cut.join(", ")
            );
            pool.notices.borrow_mut().push(why);
        }
        if !self.emptied.is_empty() || !self.frees.is_empty() {
            let zio = pool.zio().clone();
            let (frees, emptied) = (self.frees, self.emptied);
            let task = move |_: Rc<DslPool>, tx: Rc<dmu::Tx>| -> dmu::LocalBoxFuture<'static, Result<()>> {
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
            pool.dsl().sync_task(task).await?;
        }
        if self.newest > pool.uberblock().txg {
            // Txgs without changes leave no uberblock: only the last one must.
            pool.txg.wait_synced(self.newest).await?;
            pool.dirty_config();
            pool.txg.wait_synced(Txg(0)).await?;
        }
        Ok(())
    }
}
