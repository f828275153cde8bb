//! I/O limits of a dataset and its descendants: bytes a second (`iolimit_bw_*`) and operations a
//! second (`iolimit_op_*`).
//!
//! Every directory of the DSL has a [`Limiter`]: for each limit the time up to which its rate is
//! used up. An operation may start when all its limits, its own dataset's and those of the
//! directories above, have at most [`BURST`] of debt; it then adds its own cost to each. So a
//! single large operation is never split, and later ones wait for it; operations start in the order
//! in which they come; and descendants share a parent's limit first come, first served.
//!
//! Invariants: without limits no operation waits or is counted; changed limits apply to waiting
//! operations within [`RECHECK`].

use std::cell::Cell;
use std::rc::Rc;

use base::Nanos;
use rt::Rt;

use crate::dir::Dir;

/// Time that a dataset may be ahead of its rate.
const BURST: Nanos = Nanos(100_000_000);
/// Interval at which a waiting operation checks for changed limits.
const RECHECK: Nanos = Nanos(100_000_000);

/// The properties, in the order of [`Limiter`]'s fields.
pub const PROPS: [&str; 6] = [
    "iolimit_bw_read",
    "iolimit_bw_write",
    "iolimit_bw_total",
    "iolimit_op_read",
    "iolimit_op_write",
    "iolimit_op_total",
];

/// The limits of one directory and the time up to which each is used up.
#[derive(Default, Debug)]
pub(crate) struct Limiter {
    /// By [`PROPS`]; 0: none.
    limits: [Cell<u64>; 6],
    used_until: [Cell<Nanos>; 6],
    any: Cell<bool>,
    /// Number of changes of limits.
    changes: Cell<u64>,
}

/// The limits that apply to a read or a write.
fn limits_of(write: bool) -> [usize; 4] {
    if write { [1, 2, 4, 5] } else { [0, 2, 3, 5] }
}

/// The time that an operation of `bytes` uses of a limit.
fn cost(which: usize, limit: u64, bytes: u64) -> Nanos {
    let amount = if which < 3 { bytes } else { 1 };
    Nanos(u64::try_from(u128::from(amount) * 1_000_000_000 / u128::from(limit.max(1))).unwrap_or(u64::MAX / 4))
}

impl Limiter {
    /// Sets a limit by its property; false if it is no such property.
    pub(crate) fn set(&self, name: &str, value: u64) -> bool {
        let Some(i) = PROPS.iter().position(|p| *p == name) else { return false };
        self.limits[i].set(value);
        self.used_until[i].set(Nanos(0));
        self.any.set(self.limits.iter().any(|l| l.get() > 0));
        self.changes.set(self.changes.get() + 1);
        true
    }

    /// The earliest start of an operation that comes now.
    fn start(&self, now: Nanos, write: bool) -> Nanos {
        let mut at = now;
        for i in limits_of(write).into_iter().filter(|&i| self.limits[i].get() > 0) {
            at = at.max(Nanos(self.used_until[i].get().0.saturating_sub(BURST.0)));
        }
        at
    }

    /// Counts an operation that starts at `at`.
    fn take(&self, at: Nanos, write: bool, bytes: u64) {
        for i in limits_of(write).into_iter().filter(|&i| self.limits[i].get() > 0) {
            let from = self.used_until[i].get().max(at);
            self.used_until[i].set(Nanos(from.0.saturating_add(cost(i, self.limits[i].get(), bytes).0)));
        }
    }
}

impl Dir {
    /// This directory and those above it, if any of them has a limit; else empty.
    fn limited(self: &Rc<Self>) -> Vec<Rc<Dir>> {
        let (mut out, mut at) = (Vec::new(), Some(self.clone()));
        while let Some(dir) = at {
            at = dir.parent();
            if dir.limiter().any.get() {
                out.push(dir);
            }
        }
        out
    }

    /// Whether an operation here may have to wait.
    pub fn has_io_limit(self: &Rc<Self>) -> bool {
        !self.limited().is_empty()
    }

    /// Waits until the limits of this dataset and its ancestors allow an operation of `bytes`.
    pub async fn io_limit(self: &Rc<Self>, rt: &Rt, write: bool, bytes: u64) {
        let changes = |dirs: &[Rc<Dir>]| dirs.iter().fold(0u64, |n, d| n.wrapping_add(d.limiter().changes.get()));
        loop {
            let dirs = self.limited();
            if dirs.is_empty() {
                return;
            }
            let now = rt.now();
            let start = dirs.iter().fold(now, |at, d| at.max(d.limiter().start(now, write)));
            dirs.iter().for_each(|d| d.limiter().take(start, write, bytes));
            let seen = changes(&dirs);
            loop {
                let now = rt.now();
                if now >= start {
                    return;
                }
                rt.sleep_until(start.min(now + RECHECK)).await;
                // Starts again with the new limits; a change of limits resets the counts.
                if changes(&dirs) != seen {
                    break;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operations_start_at_the_rate_after_a_burst() {
        let ms = Nanos::from_ms;
        let l = Limiter::default();
        assert!(!l.set("quota", 1) && !l.any.get());
        assert_eq!((l.start(ms(5), true), l.start(ms(5), false)), (ms(5), ms(5)));
        // 1 MB/s of writes: a write of 100 kB takes 100 ms.
        assert!(l.set("iolimit_bw_write", 1_000_000));
        let mut at = Vec::new();
        for _ in 0..5 {
            let start = l.start(ms(0), true);
            l.take(start, true, 100_000);
            at.push(start.0 / 1_000_000);
        }
        assert_eq!(at, [0, 0, 100, 200, 300]);
        assert_eq!(l.start(ms(1), false), ms(1), "reads do not count");
        // Ten operations a second of either kind, besides.
        l.set("iolimit_op_total", 10);
        let mut at = Vec::new();
        for n in 0..4 {
            let start = l.start(ms(1000), n % 2 == 0);
            l.take(start, n % 2 == 0, 1);
            at.push(start.0 / 1_000_000);
        }
        assert_eq!(at, [1000, 1000, 1100, 1200]);
        l.set("iolimit_op_total", 0);
        l.set("iolimit_bw_write", 0);
        assert!(!l.any.get());
        // The least limit and the most bytes: no overflow.
        l.set("iolimit_bw_total", 1);
        for _ in 0..9 {
            l.take(ms(0), true, u64::MAX);
        }
        assert!(l.start(ms(0), false) > Nanos::from_secs(1 << 20));
    }
}
