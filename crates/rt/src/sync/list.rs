//! The queue of waiters that the primitives share.
//!
//! A waiter is an entry with an increasing id; granting removes the entry, so a future whose id is
//! not in the queue was granted. Waiting does not allocate: the queue's memory is reused.

use std::collections::VecDeque;
use std::task::Waker;

pub(crate) struct Entry<P> {
    pub(crate) id: u64,
    pub(crate) waker: Option<Waker>,
    pub(crate) wants: P,
}

pub(crate) struct WaitList<P> {
    entries: VecDeque<Entry<P>>,
    next_id: u64,
}

impl<P> WaitList<P> {
    pub(crate) const fn new() -> WaitList<P> {
        WaitList { entries: VecDeque::new(), next_id: 0 }
    }
    pub(crate) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }
    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }
    /// Joins the end of the queue.
    pub(crate) fn push(&mut self, wants: P, waker: Option<Waker>) -> u64 {
        let id = self.next_id;
        self.next_id += 1;
        self.entries.push_back(Entry { id, waker, wants });
        id
    }
    /// The first in the queue.
    pub(crate) fn front(&self) -> Option<&P> {
        self.entries.front().map(|entry| &entry.wants)
    }
    /// Removes the first: it is granted.
    pub(crate) fn pop(&mut self) -> Option<Entry<P>> {
        self.entries.pop_front()
    }
    fn position(&self, id: u64) -> Option<usize> {
        self.entries.binary_search_by_key(&id, |entry| entry.id).ok()
    }
    /// Sets the waker of `id`; false if it was granted.
    pub(crate) fn set_waker(&mut self, id: u64, waker: &Waker) -> bool {
        let Some(at) = self.position(id) else { return false };
        match &mut self.entries[at].waker {
            Some(old) => old.clone_from(waker),
            none => *none = Some(waker.clone()),
        }
        true
    }
    /// Removes `id`; `None` if it was granted.
    pub(crate) fn remove(&mut self, id: u64) -> Option<Entry<P>> {
        let at = self.position(id)?;
        self.entries.remove(at)
    }
}
