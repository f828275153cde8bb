//! Turns: bounds on the time that one task keeps the engine's thread.
//!
//! One thread serves a pool. While it polls a task everything else waits: requests of the kernel,
//! completions of devices, timers. So work is split into pieces of known cost, and pieces that are
//! too large go to the threads of the CPU pool. Vocabulary:
//!
//! * the *cost* of a piece of work is its estimated CPU time ([`crate::cost`] has the figures);
//! * a *turn* is one poll of one task, including all futures joined in it;
//! * the *budget* of a turn is the cost after which the task yields; the *bound* is the cost that
//!   no turn may exceed, which `sim` asserts.
//!
//! The normal path: before each piece of work a task awaits [`crate::Rt::spend`] with its cost. If
//! the budget has room, the cost is charged to the world and the work follows at once; else the
//! task yields, and the work is the first of its next turn. Code that cannot wait (a device write
//! is queued without waiting) charges its work with [`crate::Rt::charge`], which leaves less room
//! for the next piece of that turn. Work that costs at least as much as a hand-over to another
//! thread ([`place_of`]) goes to the CPU pool through [`crate::Rt::cpu`].
//!
//! Costs are estimates. Where they are too low the clock corrects them: after some charged work the
//! turn reads the clock, and the larger of charged and elapsed time counts. In `sim` time advances
//! by the charged costs, so both are the same.
//!
//! Invariants. The first piece of a turn is always admitted, at any cost, so every task makes
//! progress. A turn belongs to the world, not to one place in the code: pieces of different layers,
//! and those of futures joined in one task, share its budget. A turn thus costs at most the budget
//! or one piece, plus work charged without waiting; [`BOUND`] has room for both.

use std::cell::Cell;

use base::Nanos;

/// The cost of a turn after which its task yields. Ten times the cost of an iteration of `host`'s
/// loop with its poll of the devices (`cargo run --release -p openweir-host --example loop_speed`),
/// so that yielding takes a small share; half of [`BOUND`].
pub const BUDGET: Nanos = Nanos::from_us(100);

/// The cost that no turn may exceed: the longest wait of a new request for its own turn to begin.
/// `sim` asserts it.
pub const BOUND: Nanos = Nanos::from_us(200);

/// Work of at least this cost goes to the CPU pool: a hand-over to another core and back takes
/// about as long (`cargo run --release -p openweir-host --example loop_speed`).
pub const POOL_MIN: Nanos = Nanos::from_us(50);

/// After this much charged work the turn reads the clock again, which takes some 30 ns.
const CLOCK_STEP: Nanos = Nanos::from_us(5);

/// The place of CPU work.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Place {
    /// On the engine's thread.
    Here,
    /// On a thread of the CPU pool.
    Pool,
}

/// The place of work of that cost.
pub fn place_of(cost: Nanos) -> Place {
    if cost < POOL_MIN { Place::Here } else { Place::Pool }
}

/// Whether a turn that has taken `used` must end before work of that `cost`.
pub fn is_over(used: Nanos, cost: Nanos) -> bool {
    used.0 > 0 && used.0.saturating_add(cost.0) > BUDGET.0
}

/// The current turn of the engine's thread: one object for each world, which begins a turn with
/// each poll.
#[derive(Debug, Default)]
pub struct Turn {
    began: Cell<Nanos>,
    used: Cell<Nanos>,
    /// `used` when the clock was last read.
    looked: Cell<Nanos>,
    /// Work waits for the next turn.
    spent: Cell<bool>,
}

impl Turn {
    /// A poll begins, at `now` by the world's clock. Only worlds call this.
    pub fn begin(&self, now: Nanos) {
        self.began.set(now);
        self.used.set(Nanos(0));
        self.looked.set(Nanos(0));
        self.spent.set(false);
    }

    /// Whether work had no room in this turn, and waits for the next.
    pub fn is_spent(&self) -> bool {
        self.spent.get()
    }

    /// The cost of the turn so far.
    pub fn used(&self) -> Nanos {
        self.used.get()
    }

    /// Adds work of that cost to this turn.
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
        let over = is_over(self.used.get(), cost);
        self.spent.set(self.spent.get() || over);
        !over
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
            // Work charged without waiting may have exceeded it.
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
        // Less time elapsed than charged: the estimate stays.
        assert!(turn.admits(us(30), || us(1_021)));
        assert_eq!(turn.used(), us(70));
        turn.add(us(5));
        assert!(!turn.is_spent());
        assert!(!turn.admits(us(1), || us(1_120)));
        assert!(turn.is_spent());
        turn.begin(us(1_120));
        assert!(turn.admits(us(500), || panic!("nothing was done yet")));
        assert!(!turn.is_spent());
    }

    #[test]
    fn a_turn_with_a_piece_on_top_stays_within_the_bound() {
        const { assert!(BUDGET.0 + POOL_MIN.0 <= BOUND.0) };
    }
}
