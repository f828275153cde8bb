//! Where transactions wait: the shell around the throttle's decisions.
//!
//! [`TxgPool::throttle_for`] is called by a transaction that holds no txg yet. By the pool's policy
//! it blocks at the dirty limit, sleeps the delay of the curve, sleeps a tick or waits for the next
//! txg; then the transaction joins with [`TxgPool::hold_for`]. The limit itself holds under every
//! policy but that of 2008, whose write limit bounds each of the three txgs that there may be.

use base::{Nanos, Result};
use rt::join::{Either, select2};
use rt::trace::{Event, Groups};

use crate::legacy::{self, Admission};
use crate::policy;
use crate::pool::{Inner, TxgHold, TxgPool};
use crate::throttle::{self, Load, ThrottlePolicy};

/// Counts a blocked transaction for as long as it is one.
struct Blocked<'a>(&'a Inner);

impl<'a> Blocked<'a> {
    fn new(p: &'a Inner) -> Blocked<'a> {
        p.count(|s| (s.blocked, s.blocked_now) = (s.blocked + 1, s.blocked_now + 1));
        Blocked(p)
    }
}

impl Drop for Blocked<'_> {
    fn drop(&mut self) {
        self.0.count(|s| s.blocked_now -= 1);
    }
}

impl TxgPool {
    /// As [`TxgPool::throttle_for`] for a transaction that writes next to nothing.
    pub async fn throttle(&self, start: Nanos) -> Result<()> {
        self.throttle_for(start, 0).await
    }

    /// Where a transaction that began at `start` and may write `bytes` waits, before it joins a txg
    /// and holding none. The error is that of a pool that has ended.
    pub async fn throttle_for(&self, start: Nanos, bytes: u64) -> Result<()> {
        let p = &*self.0;
        if let Some(e) = p.ended() {
            return Err(e);
        }
        let t = p.tunables.get();
        let legacy = t.policy == ThrottlePolicy::Legacy2008;
        if !legacy
            && p.dirty.get() <= t.delay_min().min(t.dirty_data_max.saturating_sub(1))
            && p.wrlog.get() == 0
            && p.above_at.get().is_none()
        {
            let (txg, none) = (p.open.get().0, Nanos(0));
            p.rt.trace_at(start, Groups::DELAY, || Event::Admitted { txg, waited: none, delay: none });
            return Ok(());
        }
        let came = p.rt.now();
        let (mut delay, mut held) = (Nanos(0), false);
        if legacy {
            held |= self.write_limit_gate(bytes).await?;
        } else {
            held |= self.dirty_limit_gate().await?;
            let (length, slept) = self.delay(start).await;
            (delay, held) = (length, held || slept);
        }
        // The checks take time as well, which is not a delay.
        let waited = if held { p.rt.now().since(came) } else { Nanos(0) };
        if waited > Nanos(0) {
            p.count(|s| (s.delayed, s.delayed_time) = (s.delayed + 1, s.delayed_time + waited));
            if let Some(r) = p.history.borrow_mut().last() {
                (r.delayed, r.delayed_time) = (r.delayed + 1, r.delayed_time + waited);
            }
        }
        p.rt.trace_at(came + waited, Groups::DELAY, || Event::Admitted { txg: p.open.get().0, waited, delay });
        p.ended().map_or(Ok(()), Err)
    }

    /// Joins the open txg with a transaction that may write `bytes`.
    pub fn hold_for(&self, bytes: u64) -> TxgHold {
        self.0.assigned.set(self.0.assigned.get() + 1);
        let mut hold = self.hold();
        hold.reserve(bytes);
        hold
    }

    /// Blocks at the dirty limit until some bytes are written (`dmu_tx_wait`): whether it had to.
    async fn dirty_limit_gate(&self) -> Result<bool> {
        let p = &*self.0;
        if !policy::at_limit(p.dirty.get(), &p.tunables.get()) {
            return Ok(false);
        }
        let _blocked = Blocked::new(p);
        // Asked anew each time: the settings may have changed.
        while policy::at_limit(p.dirty.get(), &p.tunables.get()) {
            // Nothing dirty, yet at the limit: the limit is 0. One goes on, else none ever would.
            if p.dirty.get() == 0 {
                break;
            }
            // Nothing is written unless a txg syncs: the open one may hold all that is dirty.
            p.request_close(p.open.get());
            p.space.notified().await;
            if let Some(e) = p.ended() {
                return Err(e);
            }
        }
        Ok(true)
    }

    /// Sleeps the delay of the curve, after the sleepers before it (steps 1 to 5). Returns the
    /// delay, and whether any of it remained to sleep.
    async fn delay(&self, start: Nanos) -> (Nanos, bool) {
        let p = &*self.0;
        let mut slept = false;
        loop {
            let now = p.rt.now();
            let t = p.tunables.get();
            let load = Load { dirty: p.dirty.get(), wrlog: p.wrlog.get(), above: p.above_at.get(), now };
            let delay = throttle::delay(&load, &t);
            if load.above.is_some_and(|at| now >= at + t.write_smoothing) {
                p.above_at.set(None);
            }
            let Some(at) = policy::wakeup(now, start, p.last_wakeup.get(), delay) else {
                return (delay, slept);
            };
            p.last_wakeup.set(at);
            slept = true;
            match select2(p.rt.sleep_until(at), p.tunables_changed.notified()).await {
                Either::First(()) => return (delay, slept),
                Either::Second(()) if p.ended().is_some() => return (delay, slept),
                Either::Second(()) => {}
            }
        }
    }

    /// The write limit of 2008: a tick in the last eighth of a txg, or the wait for the next one.
    /// Whether it had to wait.
    async fn write_limit_gate(&self, bytes: u64) -> Result<bool> {
        let p = &*self.0;
        let mut held = false;
        loop {
            let t = p.tunables.get();
            if t.policy != ThrottlePolicy::Legacy2008 {
                return Ok(self.dirty_limit_gate().await? || held);
            }
            let open = p.open.get();
            let moment = legacy::AdmitState {
                open,
                syncing: p.syncing.get().unwrap_or(p.synced.get()),
                towrite: p.towrite_of[open.slot()].get(),
                tempreserved: p.reserved_of[open.slot()].get().saturating_add(bytes),
            };
            // A txg without writes yet takes a write of any size.
            let fresh = moment.towrite == 0 && p.reserved_of[open.slot()].get() == 0;
            match legacy::admit(&moment, p.write_limit.get().effective(&t)) {
                _ if fresh => return Ok(held),
                Admission::Go => return Ok(held),
                Admission::Tick => {
                    p.rt.sleep(t.throttle_delay).await;
                    return Ok(true);
                }
                Admission::NextTxg => {
                    held = true;
                    let _blocked = Blocked::new(p);
                    self.wait_open(open.next()).await?;
                }
            }
        }
    }
}
