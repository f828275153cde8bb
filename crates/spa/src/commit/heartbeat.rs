//! The heartbeat of a pool with the property `multihost` (MMP): uberblocks that say that the pool
//! is in use, for hosts that could import it meanwhile (format pages 01 section 6 and 17 section
//! 4).
//!
//! Between two txgs the uberblock of the last one is written again and again, to the last slot of a
//! ring that no txg uses, with a newer time or a higher sequence; each write goes to another
//! device, so that each of them has a new one about once in an interval. An importing host that
//! sees a change keeps off ([`crate::open::multihost`]). A host whose heartbeat did not reach the
//! devices for so long that another one may have taken the pool over must not write any more: the
//! txg that is to be committed then fails, and the pool is suspended for good.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use base::{Error, ErrorKind, Nanos, Result};
use ondisk::label::LABELS;
use ondisk::uberblock::Uberblock;
use rt::Rt;
use rt::sync::Notify;
use txg::TxgPool;
use vdev::labels::write_heartbeat;
use vdev::{Leaf, VdevTree};

/// Settings of `multihost`, with OpenZFS's names and defaults.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MultihostTunables {
    /// `zfs_multihost_interval`: time in which each device gets a heartbeat, 100 ms or more.
    pub interval: Nanos,
    /// `zfs_multihost_fail_intervals`: the pool is suspended after so many without any heartbeat;
    /// 0: never.
    pub fail_intervals: u64,
    /// `zfs_multihost_import_intervals`: an import watches a pool for so many, if the pool itself
    /// does not say how long.
    pub import_intervals: u64,
}

impl Default for MultihostTunables {
    fn default() -> MultihostTunables {
        MultihostTunables { interval: Nanos::from_secs(1), fail_intervals: 10, import_intervals: 20 }
    }
}

/// Shortest interval (`MMP_MIN_INTERVAL`).
const INTERVAL_MIN: Nanos = Nanos::from_ms(100);

impl MultihostTunables {
    /// Milliseconds of an interval, as uberblocks have them.
    pub(crate) fn interval_ms(&self) -> u64 {
        self.interval.max(INTERVAL_MIN).0 / 1_000_000
    }

    /// How long the pool may go without a heartbeat; None: for ever.
    fn limit(&self) -> Option<Nanos> {
        (self.fail_intervals > 0).then(|| Nanos(self.interval_ms() * 1_000_000 * self.fail_intervals))
    }
}

/// The heartbeat of one pool.
pub(crate) struct Heartbeat {
    rt: Rt,
    tree: Rc<VdevTree>,
    txg: TxgPool,
    tunables: Cell<MultihostTunables>,
    on: Cell<bool>,
    closed: Cell<bool>,
    running: Cell<bool>,
    changed: Notify,
    /// The uberblock of the last txg, with the time and sequence of the last heartbeat.
    last: RefCell<Option<Uberblock>>,
    seq: Cell<u64>,
    /// When a heartbeat last reached a device.
    good: Cell<Nanos>,
    /// Nanoseconds from one heartbeat to the next, averaged.
    delay: Cell<u64>,
    /// Counts heartbeats, to take the devices in turn.
    turn: Cell<usize>,
}

impl Heartbeat {
    pub(crate) fn new(rt: &Rt, tree: &Rc<VdevTree>, txg: &TxgPool, tunables: MultihostTunables, on: bool) -> Rc<Self> {
        Rc::new(Heartbeat {
            rt: rt.clone(),
            tree: tree.clone(),
            txg: txg.clone(),
            tunables: Cell::new(tunables),
            on: Cell::new(on),
            closed: Cell::new(false),
            running: Cell::new(false),
            changed: Notify::new(),
            last: RefCell::default(),
            seq: Cell::new(0),
            good: Cell::new(rt.now()),
            delay: Cell::new(tunables.interval.0),
            turn: Cell::new(0),
        })
    }

    /// Whether the property is on.
    pub(crate) fn is_on(&self) -> bool {
        self.on.get()
    }

    /// Sets the property in a running pool; the uberblock of the next txg says so.
    pub(crate) fn set(self: &Rc<Self>, on: bool) {
        if on && !self.on.get() {
            self.good.set(self.rt.now());
        }
        self.on.set(on);
        self.changed.notify_all();
        self.begin();
    }

    /// Begins the heartbeat of a pool that runs, if the property is on.
    pub(crate) fn begin(self: &Rc<Self>) {
        if self.on.get() && !self.closed.get() && !self.running.replace(true) {
            // It ends with the property, or when the pool is closed.
            self.rt.spawn("heartbeat", self.clone().run());
        }
    }

    /// Changes the settings.
    pub(crate) fn set_tunables(&self, tunables: MultihostTunables) {
        self.tunables.set(tunables);
        self.changed.notify_all();
    }

    /// No more heartbeats: the pool is being closed.
    pub(crate) fn close(&self) {
        self.closed.set(true);
        self.changed.notify_all();
    }

    fn mark(&self, ub: &mut Uberblock, seq: u64) {
        let t = self.tunables.get();
        ub.set_multihost(self.delay.get().max(1), t.interval_ms(), seq, t.fail_intervals);
    }

    /// Marks the uberblock of a txg. Error: `Suspended` if there was no heartbeat for so long that
    /// another host may have the pool by now.
    pub(crate) fn stamp(&self, ub: &mut Uberblock) -> Result<()> {
        if self.on.get() {
            self.check()?;
            self.mark(ub, 0);
        }
        Ok(())
    }

    /// A txg was committed with this uberblock.
    pub(crate) fn committed(&self, ub: &Uberblock) {
        let before = self.last.replace(Some(ub.clone()));
        self.seq.set(0);
        self.good.set(self.rt.now());
        if before.is_none() {
            self.changed.notify_all();
        }
    }

    fn check(&self) -> Result<()> {
        let since = self.rt.now().since(self.good.get());
        match self.tunables.get().limit() {
            Some(limit) if since > limit => Err(Error::new(
                ErrorKind::Suspended,
                format!(
                    "no heartbeat of this host reached the devices for {} seconds, so another host may use the pool: export it here with -f, and import it again",
                    since.0 / 1_000_000_000
                ),
            )),
            _ => Ok(()),
        }
    }

    /// The uberblock of the next heartbeat.
    fn next(&self) -> Option<Uberblock> {
        let mut last = self.last.borrow_mut();
        let ub = last.as_mut()?;
        let now = self.rt.wall_clock().secs.max(0) as u64;
        if now > ub.timestamp {
            ub.timestamp = now;
            self.seq.set(0);
        }
        // 16 bits; the next second starts again.
        self.seq.set((self.seq.get() + 1).min(0xffff));
        self.mark(ub, self.seq.get());
        Some(ub.clone())
    }

    fn leaves(&self) -> Vec<(u8, Rc<Leaf>)> {
        let tops = self.tree.tops.borrow();
        tops.iter().flat_map(|t| t.open_leaves().into_iter().map(|l| (t.ashift, l))).collect()
    }

    /// Writes heartbeats until the property is off or the pool is closed.
    async fn run(self: Rc<Self>) {
        while self.on.get() && !self.closed.get() {
            let changed = self.changed.notified();
            if self.last.borrow().is_none() {
                changed.await;
                continue;
            }
            let leaves = self.leaves();
            let interval = self.tunables.get().interval_ms() * 1_000_000;
            let _ = self.rt.timeout(Nanos(interval / leaves.len().max(1) as u64), changed).await;
            if self.closed.get() || !self.on.get() {
                break;
            }
            if let Err(e) = self.check() {
                self.txg.suspend(e);
                break;
            }
            let turn = self.turn.get();
            self.turn.set(turn.wrapping_add(1));
            let Some((ashift, leaf)) = leaves.get(turn % leaves.len().max(1)) else { continue };
            let Some(ub) = self.next() else { continue };
            let label = self.rt.rng_below(LABELS as u64) as usize;
            if write_heartbeat(leaf, *ashift, label, &ub).await.is_ok() {
                let took = self.rt.now().since(self.good.replace(self.rt.now())).0;
                self.delay.set(averaged(self.delay.get(), took));
            }
        }
        self.running.set(false);
    }
}

/// The delay after a heartbeat that came `took` after the one before: longer ones count at once,
/// shorter ones slowly, as in OpenZFS.
fn averaged(delay: u64, took: u64) -> u64 {
    if took > delay { took } else { (delay / 128 * 127 + took / 128).max(1) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_follow_the_settings() {
        let t = MultihostTunables::default();
        assert_eq!((t.interval_ms(), t.limit()), (1000, Some(Nanos::from_secs(10))));
        assert_eq!(MultihostTunables { fail_intervals: 0, ..t }.limit(), None);
        assert_eq!(MultihostTunables { interval: Nanos(5), ..t }.interval_ms(), 100);
    }

    #[test]
    fn delays_grow_at_once_and_shrink_slowly() {
        assert_eq!(averaged(1000, 5000), 5000);
        assert!((9_900..10_000).contains(&averaged(10_000, 100)));
        assert_eq!(averaged(1, 0), 1);
    }
}
