//! The tasks that are to be polled, in their order.
//!
//! A task is *behind* if its last turn ended because its budget was used (`rt::turn`): it has work
//! left that takes time. All others are *in front*: they are new, or what they waited for has come,
//! and most of them have little to do before they wait again.
//!
//! A *round* is what the engine polls between two looks at its devices: those in front as they
//! came, then those behind, at least one. Rounds are bounded in time. So a request of a program,
//! and the end of an operation, wait for about one turn of bulk work, however many tasks do such
//! work; and bulk work advances by a turn a round, however many requests come.

use std::collections::VecDeque;

use base::Nanos;

/// Tasks in front that one round polls at most.
const FRONT_MAX: usize = 128;
/// Time after which a round polls no more tasks in front: the bound of one poll.
const FRONT_TIME: Nanos = rt::turn::BOUND;
/// Time after which a round polls no second task behind: the budget of one turn. What a poll
/// submitted is started only at the end of the round, and a program may wait for it.
const BEHIND_TIME: Nanos = rt::turn::BUDGET;

/// The queue.
#[derive(Debug)]
pub(crate) struct RunQueue<T> {
    front: VecDeque<T>,
    behind: VecDeque<T>,
}

/// What a round has polled.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Round {
    front: usize,
    /// It has come to those behind.
    behind: bool,
}

impl<T> Default for RunQueue<T> {
    fn default() -> RunQueue<T> {
        RunQueue { front: VecDeque::new(), behind: VecDeque::new() }
    }
}

impl<T> RunQueue<T> {
    /// Adds a task at the end of those like it.
    pub(crate) fn push(&mut self, task: T, is_behind: bool) {
        let queue = if is_behind { &mut self.behind } else { &mut self.front };
        queue.push_back(task);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.front.is_empty() && self.behind.is_empty()
    }

    /// The next task of a round that has taken `elapsed` so far; none at its end.
    pub(crate) fn next(&mut self, round: &mut Round, elapsed: Nanos) -> Option<T> {
        if !round.behind && round.front < FRONT_MAX && elapsed < FRONT_TIME {
            round.front += 1;
            if let Some(task) = self.front.pop_front() {
                return Some(task);
            }
        }
        if round.behind && elapsed >= BEHIND_TIME {
            return None;
        }
        round.behind = true;
        self.behind.pop_front()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a round polls of a queue if each poll takes `each`.
    fn round(queue: &mut RunQueue<u32>, each: Nanos) -> Vec<u32> {
        let (mut round, mut elapsed, mut out) = (Round::default(), Nanos(0), Vec::new());
        while let Some(task) = queue.next(&mut round, elapsed) {
            elapsed = elapsed + each;
            out.push(task);
        }
        out
    }

    fn queue(front: std::ops::Range<u32>, behind: std::ops::Range<u32>) -> RunQueue<u32> {
        let mut queue = RunQueue::default();
        behind.for_each(|n| queue.push(n, true));
        front.for_each(|n| queue.push(n, false));
        queue
    }

    #[test]
    fn what_came_goes_before_what_has_work_left() {
        let mut q = queue(0..3, 10..13);
        assert_eq!(round(&mut q, Nanos::from_us(1)), [0, 1, 2, 10, 11, 12]);
        assert!(q.is_empty());
        assert_eq!(round(&mut q, Nanos::from_us(1)), []);
    }

    #[test]
    fn rounds_are_bounded_and_all_advance() {
        // Bulk work alone: a turn a round.
        let mut q = queue(0..0, 10..13);
        for n in 10..13 {
            assert_eq!(round(&mut q, Nanos::from_us(100)), [n]);
        }
        // Requests that never end leave a turn to it.
        let mut q = queue(0..10, 10..12);
        assert_eq!(round(&mut q, Nanos::from_us(100)), [0, 1, 10]);
        assert_eq!(round(&mut q, Nanos::from_us(100)), [2, 3, 11]);
        assert_eq!(round(&mut q, Nanos::from_us(100)), [4, 5]);
        // Polls that take no time are counted.
        let mut q = queue(0..200, 200..202);
        assert_eq!(round(&mut q, Nanos(0)).len(), FRONT_MAX + 2);
        assert_eq!(round(&mut q, Nanos(0)).len(), 200 - FRONT_MAX);
        assert!(q.is_empty());
    }
}
