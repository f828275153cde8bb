//! The timers of one engine: ordered by time, then by age.

use std::collections::{BTreeMap, HashMap};
use std::task::Waker;

use base::Nanos;
use rt::TimerId;

/// Armed timers. Arming and cancelling cost a tree operation; nothing is left behind by a cancelled one.
#[derive(Default)]
pub(crate) struct Timers {
    queue: BTreeMap<(Nanos, u64), Waker>,
    due: HashMap<u64, Nanos>,
    last: u64,
}

impl Timers {
    pub(crate) fn arm(&mut self, at: Nanos, waker: Waker) -> TimerId {
        self.last += 1;
        self.queue.insert((at, self.last), waker);
        self.due.insert(self.last, at);
        TimerId(self.last)
    }
    /// Disarms; gives the waker back so that it is dropped outside of the table's borrow.
    pub(crate) fn cancel(&mut self, id: TimerId) -> Option<Waker> {
        let at = self.due.remove(&id.0)?;
        self.queue.remove(&(at, id.0))
    }
    pub(crate) fn next(&self) -> Option<Nanos> {
        self.queue.first_key_value().map(|((at, _), _)| *at)
    }
    /// Takes the earliest timer if it is due.
    pub(crate) fn pop_due(&mut self, now: Nanos) -> Option<Waker> {
        let first = self.queue.first_entry()?;
        if first.key().0 > now {
            return None;
        }
        let ((_, id), waker) = first.remove_entry();
        self.due.remove(&id);
        Some(waker)
    }
    pub(crate) fn take_all(&mut self) -> Vec<Waker> {
        self.due.clear();
        std::mem::take(&mut self.queue).into_values().collect()
    }
}
