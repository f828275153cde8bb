//! Commits one batch at a time, as before illumos 8585 ([`crate::CommitPolicy::Batched`]).
//!
//! Whoever has the issuer's lock packs what is there, issues its blocks and keeps the lock until
//! all of them are written and flushed; then everybody who waited for one of them is woken. Commits
//! that come meanwhile wait for the lock, and are the next batch.

use std::rc::Rc;

use super::Inner;
use crate::lwb::Lwb;

impl Inner {
    /// The blocks of the batch under way that are issued. It is one batch: the issuer's lock is
    /// held from its first block to its end.
    fn batch(&self) -> Vec<Rc<Lwb>> {
        let chain = self.chain.borrow();
        let mut batch: Vec<Rc<Lwb>> = chain.live().filter(|l| !l.is_open() && l.in_batch.get()).cloned().collect();
        batch.reverse();
        batch
    }

    /// The end of a batch: waits for its writes, flushes once, wakes everybody. Nothing happens
    /// where the policy makes no batches.
    pub(super) async fn end_batch(&self) {
        let batch = self.batch();
        if batch.is_empty() {
            return;
        }
        // A block that failed may be of the batch before: a replay ends there.
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

    /// The batch under way ends here, unflushed: who waits for it waits for the txg. Its blocks
    /// hold txgs, so this comes before every wait for one.
    pub(super) async fn give_up_batch(&self) {
        for lwb in self.batch() {
            lwb.wait_write_done().await;
            lwb.finish(false);
        }
    }
}
