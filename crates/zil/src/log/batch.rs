//! Commits one batch at a time, as before illumos 8585 ([`crate::CommitPolicy::Batched`]).
//!
//! The holder of the issuer's lock packs the sync list, issues its blocks and keeps the lock until
//! all of them are written and flushed; then all their waiters are woken. Commits that come
//! meanwhile wait for the lock, and are the next batch.

use std::rc::Rc;

use super::Inner;
use crate::lwb::Lwb;

impl Inner {
    /// The issued blocks of the current batch. There is one batch at a time: the issuer's lock is
    /// held from its first block to its end.
    fn batch(&self) -> Vec<Rc<Lwb>> {
        let chain = self.chain.borrow();
        let mut batch: Vec<Rc<Lwb>> = chain.live().filter(|l| !l.is_open() && l.in_batch.get()).cloned().collect();
        batch.reverse();
        batch
    }

    /// Ends a batch: waits for its writes, flushes once, wakes all waiters. Does nothing with a
    /// policy without batches.
    pub(super) async fn end_batch(&self) {
        let batch = self.batch();
        if batch.is_empty() {
            return;
        }
        // A block of the batch before may have failed: a replay ends there.
        let mut good = !self.broken.get();
        let mut vdevs = Vec::new();
        for lwb in &batch {
            lwb.wait_write_done().await;
            good &= !lwb.failed.get();
            vdevs.extend(lwb.vdevs.borrow().iter().copied());
        }
        vdevs.sort_unstable();
        vdevs.dedup();
        let began = self.os.ctx().rt().now();
        good &= self.flush(&vdevs).await;
        let flush = self.os.ctx().rt().now().since(began);
        for lwb in &batch {
            if !good {
                self.note_failure(lwb);
            }
            self.lwb_flush_done(lwb, flush, good);
        }
    }

    /// Ends the current batch without a flush: its waiters wait for the txg. Its blocks hold txgs,
    /// so this comes before every wait for a txg.
    pub(super) async fn give_up_batch(&self) {
        for lwb in self.batch() {
            lwb.wait_write_done().await;
            lwb.finish(false);
        }
    }
}
