//! The timer of a block that is not full: it is issued after a share of the time that the last
//! block took, and not before fewer than [`policy::in_flight_max`] blocks are in flight.

use std::rc::Rc;

use base::Nanos;
use rt::join::select2;

use super::Inner;
use crate::lwb::Lwb;
use crate::policy;

impl Inner {
    /// Closes a block that commits wait for when it has been open for `share`, and few enough
    /// blocks are in flight.
    pub(super) async fn close_on_timeout(self: Rc<Self>, lwb: Rc<Lwb>, share: Nanos) {
        let rt = self.os.ctx().rt();
        select2(lwb.changed.notified(), rt.sleep_until(rt.now() + share)).await;
        while lwb.is_open()
            && let Some(other) = self.oldest_blocking_lwb()
        {
            // The block may become full before that.
            select2(lwb.changed.notified(), other.changed.notified()).await;
        }
        if !lwb.is_open() {
            return;
        }
        let _issuer = self.issuer.lock().await;
        if lwb.is_open() && self.open_block().is_some_and(|l| Rc::ptr_eq(&l, &lwb)) {
            self.burst_done();
            self.count(|s| s.timeouts += 1);
            if self.close_block(&lwb, 0).await.is_err() {
                // The waiters get the result of the stall.
                let _ = self.stall().await;
            }
        }
    }

    /// The block that must be FLUSH_DONE before a block that is not full is issued.
    fn oldest_blocking_lwb(&self) -> Option<Rc<Lwb>> {
        let most = policy::in_flight_max(self.tunables().policy, self.tops())?;
        self.chain.borrow().live().filter(|l| !l.is_open()).nth(most - 1).cloned()
    }

    /// Number of top-level vdevs that log blocks are allocated from.
    fn tops(&self) -> usize {
        let tops = self.os.ctx().zio().tree().tops.borrow();
        let count = |log: bool| tops.iter().filter(|t| t.is_log == log && t.is_usable()).count();
        match count(true) {
            0 => count(false),
            logs => logs,
        }
    }
}
