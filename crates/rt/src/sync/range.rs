//! [`RangeLock`]: readers and writers of byte ranges of one object, first come first served.
//!
//! A request waits behind every earlier request, granted or not, that it conflicts with (overlaps,
//! and one of them writes), and no others. The list of requests is scanned: its length is the
//! number of operations in flight on the object.

use std::cell::RefCell;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use crate::rank::{self, Held, Order, Rank};

struct Request {
    id: u64,
    start: u64,
    /// Exclusive.
    end: u64,
    write: bool,
    granted: bool,
    waker: Option<Waker>,
}

impl Request {
    fn conflicts(&self, other: &Request) -> bool {
        (self.write || other.write) && self.start < other.end && other.start < self.end
    }
}

struct State {
    rank: Rank,
    /// In order of arrival, that is of id.
    requests: Vec<Request>,
    next_id: u64,
}

impl State {
    fn position(&self, id: u64) -> usize {
        self.requests
            .binary_search_by_key(&id, |r| r.id)
            .expect("a range request stays listed until its future or guard goes")
    }
    /// Grants the first waiter that overlaps `start..end` and has no conflicting request before it.
    fn grant_one(&mut self, start: u64, end: u64) -> Option<Waker> {
        for at in 0..self.requests.len() {
            let request = &self.requests[at];
            if request.granted || request.start >= end || start >= request.end {
                continue;
            }
            if self.requests[..at].iter().any(|earlier| earlier.conflicts(request)) {
                continue;
            }
            self.requests[at].granted = true;
            if let Some(waker) = self.requests[at].waker.take() {
                return Some(waker);
            }
        }
        None
    }
}

/// Locks on byte ranges. A clone is the same lock.
#[derive(Clone)]
pub struct RangeLock(Rc<RefCell<State>>);

impl RangeLock {
    /// A lock of `rank`, with no range locked.
    pub fn new(rank: Rank) -> RangeLock {
        RangeLock(Rc::new(RefCell::new(State { rank, requests: Vec::new(), next_id: 0 })))
    }
    /// Waits to read `len` bytes from `start` (to `u64::MAX` on overflow). An empty range locks
    /// nothing.
    pub async fn read(&self, start: u64, len: u64) -> RangeGuard {
        self.acquire(start, len, false, Order::Strict).await
    }
    /// Waits to write `len` bytes from `start`.
    pub async fn write(&self, start: u64, len: u64) -> RangeGuard {
        self.acquire(start, len, true, Order::Strict).await
    }
    /// Like [`RangeLock::read`], while locks of the same rank are held; the caller orders them
    /// otherwise.
    pub async fn read_same_rank(&self, start: u64, len: u64) -> RangeGuard {
        self.acquire(start, len, false, Order::SameRankAllowed).await
    }
    /// Like [`RangeLock::write`], while locks of the same rank are held; the caller orders them
    /// otherwise.
    pub async fn write_same_rank(&self, start: u64, len: u64) -> RangeGuard {
        self.acquire(start, len, true, Order::SameRankAllowed).await
    }
    /// Locks if that is possible without waiting.
    pub fn try_lock(&self, start: u64, len: u64, write: bool) -> Option<RangeGuard> {
        let mut state = self.0.borrow_mut();
        let request =
            Request { id: state.next_id, start, end: start.saturating_add(len), write, granted: true, waker: None };
        if state.requests.iter().any(|earlier| earlier.conflicts(&request)) {
            return None;
        }
        state.next_id += 1;
        let (id, rank) = (request.id, state.rank);
        state.requests.push(request);
        Some(RangeGuard { lock: self.clone(), id, held: Held::enter(rank) })
    }
    /// Number of granted and waiting requests.
    pub fn requests(&self) -> usize {
        self.0.borrow().requests.len()
    }
    fn acquire(&self, start: u64, len: u64, write: bool, order: Order) -> Acquire {
        Acquire { lock: self.clone(), start, end: start.saturating_add(len), write, order, place: Place::New }
    }
    fn grant(&self, start: u64, end: u64) {
        loop {
            let waker = self.0.borrow_mut().grant_one(start, end);
            let Some(waker) = waker else { break };
            waker.wake();
        }
    }
    fn remove(&self, id: u64) {
        let request = {
            let mut state = self.0.borrow_mut();
            let at = state.position(id);
            state.requests.remove(at)
        };
        self.grant(request.start, request.end);
    }
}

enum Place {
    New,
    Listed(u64),
    Done,
}

struct Acquire {
    lock: RangeLock,
    start: u64,
    end: u64,
    write: bool,
    order: Order,
    place: Place,
}

impl Future for Acquire {
    type Output = RangeGuard;
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<RangeGuard> {
        let lock = self.lock.clone();
        let mut state = lock.0.borrow_mut();
        let id = match self.place {
            Place::New => {
                rank::check(state.rank, self.order);
                let id = state.next_id;
                state.next_id += 1;
                let mut request =
                    Request { id, start: self.start, end: self.end, write: self.write, granted: false, waker: None };
                request.granted = !state.requests.iter().any(|earlier| earlier.conflicts(&request));
                let granted = request.granted;
                if !granted {
                    request.waker = Some(cx.waker().clone());
                    self.place = Place::Listed(id);
                }
                state.requests.push(request);
                if !granted {
                    return Poll::Pending;
                }
                id
            }
            Place::Listed(id) => {
                let at = state.position(id);
                let request = &mut state.requests[at];
                if !request.granted {
                    request.waker = Some(cx.waker().clone());
                    return Poll::Pending;
                }
                id
            }
            Place::Done => panic!("a range lock's wait is polled after it ended"),
        };
        self.place = Place::Done;
        let held = Held::enter(state.rank);
        drop(state);
        Poll::Ready(RangeGuard { lock, id, held })
    }
}

impl Drop for Acquire {
    fn drop(&mut self) {
        if let Place::Listed(id) = self.place {
            self.lock.remove(id);
        }
    }
}

/// A locked range.
#[must_use = "the range is released at once if its guard is dropped"]
pub struct RangeGuard {
    lock: RangeLock,
    id: u64,
    held: Held,
}

impl RangeGuard {
    /// The range: first byte and length.
    pub fn range(&self) -> (u64, u64) {
        let state = self.lock.0.borrow();
        let request = &state.requests[state.position(self.id)];
        (request.start, request.end - request.start)
    }
    /// Releases all but `len` bytes from `start`, which must be within the range: an append locks
    /// everything until it knows the end of the file, then only the range that it writes.
    pub fn shrink(&mut self, start: u64, len: u64) {
        let (old_start, old_end) = {
            let mut state = self.lock.0.borrow_mut();
            let at = state.position(self.id);
            let request = &mut state.requests[at];
            let old = (request.start, request.end);
            let end = start.saturating_add(len);
            assert!(start >= old.0 && end <= old.1, "a range lock can only shrink");
            (request.start, request.end) = (start, end);
            old
        };
        self.lock.grant(old_start, old_end);
    }
    /// Removes the lock from its task's record before it is handed to another task.
    pub fn hand_over(&mut self) {
        self.held.strike();
    }
}

impl Drop for RangeGuard {
    fn drop(&mut self) {
        self.lock.remove(self.id);
    }
}
