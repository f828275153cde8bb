//! Wake-ups without a value: "something changed, look again".
//!
//! A [`Notified`] is in the queue from the moment it is *made*, so the pattern "make it, look at
//! the condition, await it" loses no wake-up.

use std::cell::RefCell;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use super::list::WaitList;

struct State {
    waiting: WaitList<()>,
    /// Woken one by one, not yet polled: if such a future is dropped, its wake-up passes on.
    singled_out: Vec<u64>,
    /// A `notify_one` that met nobody.
    kept: bool,
}

/// A place to wait for changes.
pub struct Notify(RefCell<State>);

impl Default for Notify {
    fn default() -> Notify {
        Notify::new()
    }
}

impl Notify {
    /// A place where nobody waits.
    pub const fn new() -> Notify {
        Notify(RefCell::new(State { waiting: WaitList::new(), singled_out: Vec::new(), kept: false }))
    }
    /// Wakes everybody who waits now. Nothing is kept for those who come later.
    pub fn notify_all(&self) {
        // Only those who wait now: a waker must not make this loop longer.
        let count = self.0.borrow().waiting.len();
        for _ in 0..count {
            let entry = self.0.borrow_mut().waiting.pop();
            let Some(entry) = entry else { break };
            if let Some(waker) = entry.waker {
                waker.wake();
            }
        }
    }
    /// Wakes whoever has waited longest. If nobody waits, the next to come does not wait; one such
    /// wake-up is kept.
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
    /// Waits for a notification given after this call.
    pub fn notified(&self) -> Notified<'_> {
        let mut state = self.0.borrow_mut();
        let place =
            if std::mem::take(&mut state.kept) { Place::Kept } else { Place::Queued(state.waiting.push((), None)) };
        Notified { notify: self, place }
    }
    /// How many wait.
    pub fn waiters(&self) -> usize {
        self.0.borrow().waiting.len()
    }
}

enum Place {
    /// It took the wake-up that was kept.
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
