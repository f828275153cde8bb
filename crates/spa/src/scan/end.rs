//! The end of a scan: its result, and the update of the dirty time logs.

use base::{Guid, ObjectId, Result, Txg};
use dmu::Tx;
use ondisk::bpobj::Bookmark;
use ondisk::scan::{PAUSED, ScanFunc, ScanState, VISIT_AGAIN};
use vdev::Top;

use super::resilver::is_deferred;
use super::{FUTURE, Phase, Scan, secs};

impl Scan {
    /// Ends the scan (syncing context): `complete` if everything was issued, else it was stopped.
    pub(super) async fn end(&self, complete: bool, tx: &Tx) -> Result<()> {
        self.work.clear();
        self.generation.set(self.generation.get() + 1);
        self.phase.set(Phase::Idle);
        // Before the scan has ended for those who wait for it: they look at the log.
        if complete && self.func() == ScanFunc::Scrub {
            let phys = self.now.borrow().phys;
            self.move_last_scrubbed(&phys, tx).await?;
        }
        self.rotate_errors(complete, tx).await?;
        let phys = {
            let mut now = self.now.borrow_mut();
            let phys = &mut now.phys;
            phys.state = if complete { ScanState::Finished } else { ScanState::Canceled };
            phys.end_time = secs(&self.stack.rt);
            phys.flags &= !(PAUSED | VISIT_AGAIN);
            phys.bookmark = Bookmark::default();
            let phys = *phys;
            now.phys.queue_obj = ObjectId(0);
            now.queue.clear();
            phys
        };
        if phys.queue_obj.0 != 0 {
            self.stack.mos.free(phys.queue_obj, tx).await?;
        }
        self.stored.borrow_mut().clear();
        *self.on_disk.borrow_mut() = self.now.borrow().clone();
        self.on_disk_dirty.set(true);
        let event = if complete { "scan done" } else { "scan cancelled" };
        self.stack.core.log_internal(event, format!("errors={}", phys.errors), tx.txg());
        self.events.post(match (phys.func, complete) {
            (ScanFunc::Resilver, _) => "resilver_finish",
            (_, true) => "scrub_finish",
            (_, false) => "scrub_abort",
        });
        // If the scan began before the import, its failed repairs are unknown, so a resilver with
        // errors proves nothing.
        if complete && (self.since_import.get() || phys.errors == 0) {
            self.excise(phys.min_txg, phys.max_txg, tx.txg());
        }
        self.changed.notify_all();
        self.stack.txg.kick();
        Ok(())
    }

    /// Removes the txgs after `min` and before `upto` from the dirty time logs: the scan has
    /// resilvered them. A device that misses something later came back during the scan, and one
    /// that misses something earlier is not done with a scrub of newer blocks: they are left for
    /// the next one, and so are those of which that is known, and those that lack copies of a
    /// removal. The next txg writes the logs.
    fn excise(&self, min: Txg, upto: Txg, now: Txg) {
        let tops = self.stack.tree.tops.borrow().clone();
        tops.iter().for_each(|top| self.excise_of(top, (min, upto, now), |guid| !is_deferred(top, guid)));
    }

    /// The same after a sequential rebuild of a top-level vdev.
    pub(crate) fn excise_rebuilt(&self, top: &Top, upto: Txg, now: Txg) {
        self.excise_of(top, (Txg(0), upto, now), |_| true);
    }

    fn excise_of(&self, top: &Top, (min, upto, now): (Txg, Txg, Txg), takes_part: impl Fn(Guid) -> bool) {
        for (guid, condition) in top.kind().conditions().into_iter().filter(|(guid, _)| takes_part(*guid)) {
            let Some((first, last)) = condition.missing().bounds() else { continue };
            let later = last >= upto && last.0 <= now.0 + FUTURE;
            let earlier = min.0 != 0 && first <= min;
            if !condition.health().is_open() || later || earlier || condition.misses_copies() {
                continue;
            }
            // An unreadable log has no end.
            condition.scanned(if last >= upto { u64::MAX } else { upto.0 });
            if condition.missing().is_empty() {
                top.update_config(|c| {
                    if let Some(leaf) = c.find_mut(guid) {
                        leaf.resilver_txg = None;
                    }
                });
            }
            self.config.mark_dirty();
        }
    }
}
