//! Which blocks a scrub reads: all of them, those born since the last scrub, or those of a span of
//! time (`zpool scrub -C`, `-S`, `-E`; format page 17 section 8).
//!
//! A scrub of some txgs neither forgets the damage of blocks that it has not read nor says of a
//! device that it has what it misses from other txgs.
//!
//! The entry `last_scrubbed_txg` of the MOS directory means: all blocks born before that txg were
//! read by some scrub. OpenZFS writes it after a scrub of any span, so that `-C` there leaves out
//! what was before the span; here it only moves on from blocks that are known to be read.

use std::rc::Rc;

use base::{Result, Txg};
use dmu::{Dnode, Tx, zap};
use ondisk::scan::{ScanFunc, ScanPhys};

use super::Scan;
use super::errlog::{Damage, LAST};
use crate::commit::time_log::{Bound, txg_at};

/// Entry of the MOS directory: blocks born before it were scrubbed (OpenZFS 2.3).
const LAST_SCRUBBED: &[u8] = b"last_scrubbed_txg";

/// The blocks that a scrub reads.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum ScrubRange {
    /// All.
    #[default]
    All,
    /// Those that no scrub has read since they were written; all, if there was no scrub.
    SinceLast,
    /// Those written between two times, in seconds since 1970, and some more at both ends: as near
    /// as the log of times knows. What it does not reach is read as well.
    Between {
        /// The begin; none: that of the pool.
        from: Option<u64>,
        /// The end; none: now.
        until: Option<u64>,
    },
}

/// Where the last scrubbed txg moves to after a scrub that read the blocks born after `min` and
/// before `max`.
fn moved(last: Txg, min: Txg, max: Txg) -> Txg {
    let joins = min.0 == 0 || min < last;
    if joins { last.max(max) } else { last }
}

/// Whether a scan reads blocks of this birth. If it is not known (0), what is above the block
/// cannot be read, which a scan that leaves out no old blocks meets again.
fn is_read(phys: &ScanPhys, birth: Txg) -> bool {
    match birth.0 {
        0 => phys.min_txg.0 == 0,
        _ => birth > phys.min_txg && birth < phys.max_txg,
    }
}

/// Reads the last scrubbed txg from the directory of the MOS.
pub(super) async fn stored(directory: &Dnode) -> Result<Txg> {
    let value = zap::lookup(directory, LAST_SCRUBBED).await?;
    Ok(Txg(value.and_then(|v| v.as_u64()).unwrap_or(0)))
}

impl Scan {
    /// Begins a scrub of everything, or resumes a paused one. `Busy` while a scan runs.
    pub async fn start_scrub(self: &Rc<Self>) -> Result<()> {
        self.start_scrub_of(ScrubRange::All).await
    }

    /// Begins a scrub of everything if no scan runs (syncing context).
    pub(crate) async fn scrub_if_idle(&self, tx: &Tx) -> Result<()> {
        if self.check_idle().is_err() || self.is_resilver_due() {
            return Ok(());
        }
        self.begin(ScanFunc::Scrub, Txg(0), tx.txg(), tx).await
    }

    /// Begins a scrub of the blocks in the range, or resumes a paused one, which keeps its own.
    /// `Busy` while a scan runs.
    pub async fn start_scrub_of(self: &Rc<Self>, range: ScrubRange) -> Result<()> {
        self.sync_task(move |scan, tx| {
            Box::pin(async move {
                if scan.is_paused() && scan.func() == ScanFunc::Scrub {
                    scan.set_paused(false);
                    scan.events.post("scrub_resume");
                    return Ok(());
                }
                scan.check_idle()?;
                let (min, max) = scan.txgs_of(range, tx.txg()).await?;
                scan.begin(ScanFunc::Scrub, min, max, &tx).await
            })
        })
        .await
    }

    /// The last txg before the first that is read, and the first after the last.
    async fn txgs_of(&self, range: ScrubRange, now: Txg) -> Result<(Txg, Txg)> {
        match range {
            ScrubRange::All => Ok((Txg(0), now)),
            // The scrub that ended there left out the blocks of the txg itself.
            ScrubRange::SinceLast => Ok((Txg(self.last_scrubbed().0.saturating_sub(1)), now)),
            ScrubRange::Between { from, until } => {
                let at = async |time: Option<u64>, bound| match time {
                    Some(time) => txg_at(&self.stack.directory, time, bound).await,
                    None => Ok(None),
                };
                let min = at(from, Bound::Begin).await?.unwrap_or_default();
                let max = at(until, Bound::End).await?.unwrap_or(now);
                Ok((min, max.min(now)))
            }
        }
    }

    /// The txg before which all blocks were read by some scrub, 0 if there was none.
    pub fn last_scrubbed(&self) -> Txg {
        self.last_scrubbed.get()
    }

    /// Notes what a scrub has read (syncing context).
    pub(super) async fn move_last_scrubbed(&self, phys: &ScanPhys, tx: &Tx) -> Result<()> {
        let last = moved(self.last_scrubbed(), phys.min_txg, phys.max_txg);
        self.last_scrubbed.set(last);
        zap::update_u64(&self.stack.directory, LAST_SCRUBBED, last.0, tx).await
    }

    /// The errors of earlier scans in blocks that this scrub has not read.
    pub(super) async fn unread_errors(&self) -> Result<Vec<Damage>> {
        let phys = self.now.borrow().phys;
        let mut unread = Vec::new();
        if phys.func != ScanFunc::Scrub {
            return Ok(unread);
        }
        // A damaged log has nothing that could be kept.
        for d in self.log(LAST).list().await.unwrap_or_default() {
            let birth = match d.birth.0 {
                // One that is not there any more is forgotten.
                0 => match self.stack.dsl().block_birth(&d.at).await {
                    Ok(None) => continue,
                    Ok(Some(birth)) => birth,
                    Err(_) => Txg(0),
                },
                _ => d.birth,
            };
            if !is_read(&phys, birth) {
                unread.push(d);
            }
        }
        Ok(unread)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_scrubbed_txg_moves_without_gaps() {
        for (last, min, max, want) in [
            (0, 0, 100, 100),
            (100, 0, 200, 200),
            // As -C does.
            (100, 99, 200, 200),
            // The blocks of txg 100 were not read.
            (100, 100, 200, 100),
            // Old blocks, read again.
            (100, 0, 50, 100),
            (100, 20, 50, 100),
            (0, 20, 50, 0),
        ] {
            assert_eq!(moved(Txg(last), Txg(min), Txg(max)), Txg(want), "{last} {min} {max}");
        }
    }
}
