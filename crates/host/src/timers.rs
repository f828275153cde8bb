//! The timers of one engine: ordered by time, then by age.

use std::collections::{BTreeMap, HashMap};
use std::task::Waker;

use base::Nanos;
use rt::TimerId;

/// Armed timers. Arming and cancelling cost a tree operation; nothing is left behind by a cancelled
/// one.
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::task::Wake;

    struct Note(u64, Arc<AtomicU64>);
    impl Wake for Note {
        fn wake(self: Arc<Self>) {
            let before = self.1.load(Ordering::Relaxed);
            self.1.store(before * 10 + self.0, Ordering::Relaxed);
        }
    }

    #[test]
    fn due_in_order_of_time_then_age() {
        let log = Arc::new(AtomicU64::new(0));
        let waker = |n| Waker::from(Arc::new(Note(n, log.clone())));
        let mut t = Timers::default();
        t.arm(Nanos(50), waker(4));
        t.arm(Nanos(10), waker(1));
        let gone = t.arm(Nanos(10), waker(9));
        t.arm(Nanos(10), waker(2));
        t.arm(Nanos(20), waker(3));
        assert!(t.cancel(gone).is_some());
        assert!(t.cancel(gone).is_none());
        assert_eq!(t.next(), Some(Nanos(10)));
        assert!(t.pop_due(Nanos(9)).is_none());
        while let Some(w) = t.pop_due(Nanos(20)) {
            w.wake();
        }
        assert_eq!(log.load(Ordering::Relaxed), 123);
        assert_eq!(t.next(), Some(Nanos(50)));
        assert_eq!(t.take_all().len(), 1);
        assert!(t.next().is_none() && t.due.is_empty());
    }
}
