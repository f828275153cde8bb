//! Turns: how long one task keeps the engine's thread.
//!
//! One thread serves a pool. While it polls a task everything else waits: requests of the kernel,
//! completions of devices, timers. So work is done in pieces that are known beforehand, and what is
//! too large for a piece is done by the threads of the CPU pool. The words:
//!
//! * the *cost* of a piece of work is the CPU time that it is estimated to take ([`crate::cost`]
//!   has the figures);
//! * a *turn* is one poll of one task, everything that the task has joined included;
//! * the *budget* of a turn is what work may cost in one go before the task yields; the *bound* is
//!   what no turn may cost, which `sim` asserts.
//!
//! The normal path: before each piece of work a task awaits [`crate::Rt::spend`] with its cost. If
//! the budget has room for it the cost is charged to the world and the work follows at once; else
//! the task yields, and the work is the first of its next turn. Code that cannot wait (a device
//! write is queued without waiting) says what it did with [`crate::Rt::charge`], and the next piece
//! of that turn finds so much less room. Work that costs as much as a hand-over to another thread
//! or more ([`place_of`]) goes to the CPU pool through [`crate::Rt::cpu`].
//!
//! Costs are estimates. Where they are too low the clock tells: each time some work has been
//! charged the turn looks how long it has really taken, and the longer one of the two counts. In
//! `sim` time passes by what is charged, so both are the same.
//!
//! Invariants. The first piece of a turn is always admitted: every task gets on, whatever the cost.
//! A turn belongs to the world, not to one place in the code: pieces of different layers, and those
//! of futures that were joined in one task, share its budget. A turn thus costs at most the budget
//! or one piece, and what is charged without waiting comes on top; [`BOUND`] has room for both.

use std::cell::Cell;

use base::Nanos;

/// What a turn may cost before its task yields. Ten times the cost of a turn of the loop in `host`
/// with its look at the devices (`cargo run --release -p host --example loop_speed`), so that
/// yielding takes a small share; half of [`BOUND`].
pub const BUDGET: Nanos = Nanos::from_us(100);

/// What no turn may cost: a request that comes meanwhile waits so long at most for its own turn to
/// begin. `sim` asserts it.
pub const BOUND: Nanos = Nanos::from_us(200);

/// Work that costs so much or more goes to the CPU pool: a hand-over to another core and back takes
/// about as long (`cargo run --release -p host --example loop_speed`).
pub const POOL_MIN: Nanos = Nanos::from_us(50);

/// After so much work has been charged the turn looks at the clock again. Looking takes some 30 ns.
const CLOCK_STEP: Nanos = Nanos::from_us(5);

/// Where work is done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Place {
    /// On the engine's thread.
    Here,
    /// On a thread of the CPU pool.
    Pool,
}

/// Where work of that cost is done.
pub fn place_of(cost: Nanos) -> Place {
    if cost < POOL_MIN { Place::Here } else { Place::Pool }
}

/// Whether a turn that has taken `used` must end before work of that `cost`.
pub fn is_over(used: Nanos, cost: Nanos) -> bool {
    used.0 > 0 && used.0.saturating_add(cost.0) > BUDGET.0
}

/// The turn that the engine's thread is in: one for each world, which begins it with each poll.
#[derive(Debug, Default)]
pub struct Turn {
    began: Cell<Nanos>,
    used: Cell<Nanos>,
    /// How much was used when the clock was looked at last.
    looked: Cell<Nanos>,
}

impl Turn {
    /// A poll begins, at `now` by the world's clock. Only worlds call this.
    pub fn begin(&self, now: Nanos) {
        self.began.set(now);
        self.used.set(Nanos(0));
        self.looked.set(Nanos(0));
    }

    /// What the turn has taken so far.
    pub fn used(&self) -> Nanos {
        self.used.get()
    }

    /// Work of that cost is done in this turn.
    pub(crate) fn add(&self, cost: Nanos) {
        self.used.set(self.used.get() + cost);
    }

    /// Whether work of that cost may be done in this turn.
    pub(crate) fn admits(&self, cost: Nanos, clock: impl FnOnce() -> Nanos) -> bool {
        let used = self.used.get();
        if used.since(self.looked.get()) >= CLOCK_STEP {
            let used = used.max(clock().since(self.began.get()));
            self.used.set(used);
            self.looked.set(used);
        }
        !is_over(self.used.get(), cost)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn us(n: u64) -> Nanos {
        Nanos::from_us(n)
    }

    #[test]
    fn small_work_is_done_here_and_large_work_in_the_pool() {
        for (cost, place) in [
            (Nanos(0), Place::Here),
            (us(1), Place::Here),
            (Nanos(49_999), Place::Here),
            (us(50), Place::Pool),
            (us(5_000), Place::Pool),
            (Nanos(u64::MAX), Place::Pool),
        ] {
            assert_eq!(place_of(cost), place, "{cost:?}");
        }
    }

    #[test]
    fn a_turn_ends_before_the_work_that_exceeds_its_budget() {
        for (used, cost, over) in [
            // The first piece is done whatever it costs.
            (us(0), us(0), false),
            (us(0), us(100), false),
            (us(0), us(10_000), false),
            // Up to the budget, and not beyond it.
            (us(1), us(99), false),
            (us(1), us(100), true),
            (us(99), us(1), false),
            (us(100), us(0), false),
            (us(100), Nanos(1), true),
            // What was charged without waiting may have exceeded it.
            (us(101), us(0), true),
            (us(1), Nanos(u64::MAX), true),
        ] {
            assert_eq!(is_over(used, cost), over, "{used:?} used, {cost:?} to come");
        }
    }

    #[test]
    fn the_clock_counts_where_it_says_more_than_the_estimates() {
        let turn = Turn::default();
        turn.begin(us(1_000));
        turn.add(us(4));
        let admitted = turn.admits(us(1), || panic!("too early for a look at the clock"));
        assert!(admitted);
        turn.add(us(1));
        assert!(turn.admits(us(50), || us(1_020)));
        assert_eq!(turn.used(), us(20));
        turn.add(us(50));
        // Slower than the clock says: the estimate stays.
        assert!(turn.admits(us(30), || us(1_021)));
        assert_eq!(turn.used(), us(70));
        turn.add(us(5));
        assert!(!turn.admits(us(1), || us(1_120)));
        turn.begin(us(1_120));
        assert!(turn.admits(us(500), || panic!("nothing was done yet")));
    }

    #[test]
    fn a_turn_with_a_piece_on_top_stays_within_the_bound() {
        const { assert!(BUDGET.0 + POOL_MIN.0 <= BOUND.0) };
    }
}
