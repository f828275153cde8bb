//! A counted resource: bytes in flight, operations at a time.

use std::cell::RefCell;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use super::list::WaitList;

struct State {
    /// Units left; negative after a [`Semaphore::take_away`] of units that are in use.
    free: i64,
    /// Waiters, each with its number of units.
    waiting: WaitList<u64>,
}

/// A number of units that tasks acquire and release. A clone is the same semaphore.
///
/// First come, first served: small requests do not overtake a large one at the head of the queue.
#[derive(Clone)]
pub struct Semaphore(Rc<RefCell<State>>);

impl Semaphore {
    /// A semaphore of `units`.
    pub fn new(units: u64) -> Semaphore {
        let free = i64::try_from(units).unwrap_or(i64::MAX);
        Semaphore(Rc::new(RefCell::new(State { free, waiting: WaitList::new() })))
    }
    /// Waits for `n` units, forever if there are never that many.
    pub async fn acquire(&self, n: u64) -> Permit {
        Acquire { semaphore: self.clone(), n, place: Place::New }.await
    }
    /// `n` units if they are free and there are no waiters.
    pub fn try_acquire(&self, n: u64) -> Option<Permit> {
        let mut state = self.0.borrow_mut();
        if !state.waiting.is_empty() || !state.fits(n) {
            return None;
        }
        state.free -= n as i64;
        Some(Permit { semaphore: self.clone(), n })
    }
    /// Free units, 0 if the balance is negative.
    pub fn available(&self) -> u64 {
        self.0.borrow().free.max(0) as u64
    }
    /// Number of waiters.
    pub fn waiters(&self) -> usize {
        self.0.borrow().waiting.len()
    }
    /// Adds `n` units.
    pub fn add(&self, n: u64) {
        {
            let mut state = self.0.borrow_mut();
            state.free = state.free.saturating_add(i64::try_from(n).unwrap_or(i64::MAX));
        }
        self.grant();
    }
    /// Removes `n` units, at once if they are free, else as they are released.
    pub fn take_away(&self, n: u64) {
        let mut state = self.0.borrow_mut();
        state.free = state.free.saturating_sub(i64::try_from(n).unwrap_or(i64::MAX));
    }
    fn grant(&self) {
        loop {
            let entry = {
                let mut state = self.0.borrow_mut();
                match state.waiting.front() {
                    Some(&n) if state.fits(n) => {
                        state.free -= n as i64;
                        state.waiting.pop()
                    }
                    _ => None,
                }
            };
            let Some(entry) = entry else { break };
            if let Some(waker) = entry.waker {
                waker.wake();
            }
        }
    }
}

impl State {
    fn fits(&self, n: u64) -> bool {
        i64::try_from(n).is_ok_and(|n| n <= self.free) || n == 0
    }
}

#[derive(Clone, Copy)]
enum Place {
    New,
    Queued(u64),
    Done,
}

/// Waits for units.
struct Acquire {
    semaphore: Semaphore,
    n: u64,
    place: Place,
}

impl Future for Acquire {
    type Output = Permit;
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Permit> {
        let n = self.n;
        let semaphore = self.semaphore.clone();
        let mut state = semaphore.0.borrow_mut();
        match self.place {
            Place::New => {
                if !(state.waiting.is_empty() && state.fits(n)) {
                    self.place = Place::Queued(state.waiting.push(n, Some(cx.waker().clone())));
                    return Poll::Pending;
                }
                state.free -= n as i64;
            }
            Place::Queued(id) => {
                if state.waiting.set_waker(id, cx.waker()) {
                    return Poll::Pending;
                }
            }
            Place::Done => panic!("a semaphore's wait is polled after it ended"),
        }
        self.place = Place::Done;
        drop(state);
        Poll::Ready(Permit { semaphore, n })
    }
}

impl Drop for Acquire {
    fn drop(&mut self) {
        let Place::Queued(id) = self.place else { return };
        let entry = {
            let mut state = self.semaphore.0.borrow_mut();
            let entry = state.waiting.remove(id);
            if entry.is_none() {
                // Granted, but not polled since: release it.
                state.free += self.n as i64;
            }
            entry
        };
        drop(entry);
        // The waiter behind it may be grantable now.
        self.semaphore.grant();
    }
}

/// Units of a [`Semaphore`], released when dropped.
#[must_use = "units are given back at once if the permit is dropped"]
pub struct Permit {
    semaphore: Semaphore,
    n: u64,
}

impl Permit {
    /// Number of units.
    pub fn units(&self) -> u64 {
        self.n
    }
    /// Releases `n` of the units early (all if it holds fewer).
    pub fn release(&mut self, n: u64) {
        let n = n.min(self.n);
        self.n -= n;
        self.semaphore.add(n);
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        if self.n > 0 {
            self.semaphore.add(self.n);
        }
    }
}
