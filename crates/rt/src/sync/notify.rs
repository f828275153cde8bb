//! Wake-ups without a value: a waiter checks its condition again.
//!
//! A [`Notified`] is in the queue from the moment it is *made*, so making it, checking the
//! condition and then awaiting it loses no wake-up.

use std::cell::RefCell;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use super::list::WaitList;

struct State {
    waiting: WaitList<()>,
    /// Woken by `notify_one`, not yet polled: if such a future is dropped, its wake-up passes to
    /// the next.
    singled_out: Vec<u64>,
    /// A `notify_one` without a waiter, kept for the next.
    kept: bool,
}

/// A queue of tasks that wait for a notification.
pub struct Notify(RefCell<State>);

impl Default for Notify {
    fn default() -> Notify {
        Notify::new()
    }
}

impl Notify {
    /// A queue without waiters.
    pub const fn new() -> Notify {
        Notify(RefCell::new(State { waiting: WaitList::new(), singled_out: Vec::new(), kept: false }))
    }
    /// Wakes all current waiters. Nothing is kept for later ones.
    pub fn notify_all(&self) {
        // Only current waiters: new waiters that a waker adds must not extend this loop.
        let count = self.0.borrow().waiting.len();
        for _ in 0..count {
            let entry = self.0.borrow_mut().waiting.pop();
            let Some(entry) = entry else { break };
            if let Some(waker) = entry.waker {
                waker.wake();
            }
        }
    }
    /// Wakes the longest waiter. Without a waiter the next one does not wait; one such wake-up is
    /// kept.
    pub fn notify_one(&self) {
        let waker = {
            let mut state = self.0.borrow_mut();
            match state.waiting.pop() {
                Some(entry) => {
                    state.singled_out.push(entry.id);
                    entry.waker
                }
                None => {
                    state.kept = true;
                    None
                }
            }
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }
    /// Waits for a notification after this call.
    pub fn notified(&self) -> Notified<'_> {
        let mut state = self.0.borrow_mut();
        let place =
            if std::mem::take(&mut state.kept) { Place::Kept } else { Place::Queued(state.waiting.push((), None)) };
        Notified { notify: self, place }
    }
    /// Number of waiters.
    pub fn waiters(&self) -> usize {
        self.0.borrow().waiting.len()
    }
}

enum Place {
    /// It took the kept wake-up.
    Kept,
    Queued(u64),
    Done,
}

/// Waits for a notification. See [`Notify::notified`].
#[must_use = "a wait happens only when awaited"]
pub struct Notified<'a> {
    notify: &'a Notify,
    place: Place,
}

impl Future for Notified<'_> {
    type Output = ();
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        if let Place::Queued(id) = self.place {
            let mut state = self.notify.0.borrow_mut();
            if state.waiting.set_waker(id, cx.waker()) {
                return Poll::Pending;
            }
            state.singled_out.retain(|one| *one != id);
        }
        self.place = Place::Done;
        Poll::Ready(())
    }
}

impl Drop for Notified<'_> {
    fn drop(&mut self) {
        let pass_on = match self.place {
            Place::Done => false,
            Place::Kept => true,
            Place::Queued(id) => {
                let mut state = self.notify.0.borrow_mut();
                let waiting = state.waiting.remove(id);
                let one = state.singled_out.iter().position(|one| *one == id);
                if let Some(at) = one {
                    state.singled_out.remove(at);
                }
                drop(state);
                waiting.is_none() && one.is_some()
            }
        };
        if pass_on {
            self.notify.notify_one();
        }
    }
}
