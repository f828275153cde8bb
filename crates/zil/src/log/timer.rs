//! When a block that is not full is issued: after a share of the time that the last one took, and
//! not before the devices have made room for it ([`policy::in_flight_max`]).

use std::rc::Rc;

use base::Nanos;
use rt::join::select2;

use super::Inner;
use crate::lwb::Lwb;
use crate::policy;

impl Inner {
    /// Closes a block that commits wait for when it has been open for `share`, and the devices have
    /// time for it.
    pub(super) async fn close_on_timeout(self: Rc<Self>, lwb: Rc<Lwb>, share: Nanos) {
        let rt = self.os.ctx().rt();
        select2(lwb.changed.notified(), rt.sleep_until(rt.now() + share)).await;
        while lwb.is_open()
            && let Some(other) = self.oldest_blocking_lwb()
        {
            // It may be full before that.
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
                // Who waits learns of it there.
                let _ = self.stall().await;
            }
        }
    }

    /// The block that has to be over before one that is not full is issued.
    fn oldest_blocking_lwb(&self) -> Option<Rc<Lwb>> {
        let most = policy::in_flight_max(self.tun.get().policy, self.tops())?;
        self.chain.borrow().live().filter(|l| !l.is_open()).nth(most - 1).cloned()
    }

    /// Top-level vdevs over which blocks are spread.
    fn tops(&self) -> usize {
        let tops = self.os.ctx().zio().tree().tops.borrow();
        let count = |log: bool| tops.iter().filter(|t| t.is_log == log && t.is_usable()).count();
        match count(true) {
            0 => count(false),
            logs => logs,
        }
    }
}
