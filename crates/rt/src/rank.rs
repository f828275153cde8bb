//! Lock ranks: the declared order in which a task may take locks, asserted at run time.
//!
//! Every lock of [`crate::sync`] that may be held across an await carries a [`Rank`]. A task may
//! wait for a lock only if its rank is above those of all locks that the task holds; then no cycle
//! of waiting tasks can form. Locks of one rank may be nested only through calls for that purpose
//! (`lock_same_rank` and the like), whose callers order them by another key, such as an object
//! number.
//!
//! A lock has no reference to its world, so the record of held locks is found through a
//! thread-local that the executor sets around each poll ([`TaskLocks::enter`]). An executor that
//! does not enter (a release build of `host`) disables the check, at the cost of one thread-local
//! read. Futures joined inside one task ([`crate::join`]) count as separate tasks: each has its own
//! record, which includes the locks of its parent.
//!
//! A guard may be dropped by another task than the one that took it; it is removed from the record
//! that it was entered in.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

/// A lock's place in the order, and its name. Low ranks are taken first.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rank(pub u16, pub &'static str);

impl fmt::Display for Rank {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (rank {})", self.1, self.0)
    }
}

struct Record {
    /// (token, rank) of each lock held, in the order taken.
    held: RefCell<Vec<(u64, Rank)>>,
    next_token: Cell<u64>,
    parent: Option<Rc<Record>>,
}

impl Record {
    fn highest(&self) -> Option<Rank> {
        let own = self.held.borrow().iter().map(|(_, rank)| *rank).max_by_key(|rank| rank.0);
        let above = self.parent.as_ref().and_then(|parent| parent.highest());
        match (own, above) {
            (Some(a), Some(b)) => Some(if a.0 >= b.0 { a } else { b }),
            (a, b) => a.or(b),
        }
    }
}

thread_local! {
    static CURRENT: RefCell<Option<Rc<Record>>> = const { RefCell::new(None) };
}

/// The record of the locks that one task holds. An executor makes one for each task and enters it
/// around each poll.
#[derive(Clone)]
pub struct TaskLocks(Rc<Record>);

impl Default for TaskLocks {
    fn default() -> TaskLocks {
        TaskLocks::new()
    }
}

impl TaskLocks {
    /// The record of a new task.
    pub fn new() -> TaskLocks {
        TaskLocks(Rc::new(Record { held: RefCell::default(), next_token: Cell::new(0), parent: None }))
    }
    /// A child of the current record, for a future joined with others in one task. `None` without a
    /// current record: then nothing is checked.
    pub fn branch() -> Option<TaskLocks> {
        let parent = CURRENT.with_borrow(Clone::clone)?;
        Some(TaskLocks(Rc::new(Record { held: RefCell::default(), next_token: Cell::new(0), parent: Some(parent) })))
    }
    /// Makes this the current record until the scope is dropped.
    pub fn enter(&self) -> TaskLocksScope {
        TaskLocksScope { before: CURRENT.with_borrow_mut(|current| current.replace(self.0.clone())) }
    }
    /// The names of the locks held, in the order taken: for reports.
    pub fn held(&self) -> Vec<Rank> {
        self.0.held.borrow().iter().map(|(_, rank)| *rank).collect()
    }
}

/// Keeps one [`TaskLocks`] current until it is dropped.
pub struct TaskLocksScope {
    before: Option<Rc<Record>>,
}

impl Drop for TaskLocksScope {
    fn drop(&mut self) {
        let before = self.before.take();
        // Taken out first: a record must not be dropped under the borrow.
        let _mine = CURRENT.with_borrow_mut(|current| std::mem::replace(current, before));
    }
}

/// Whether a lock of the same rank may already be held.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Order {
    Strict,
    SameRankAllowed,
}

/// Asserts that the current task may wait for a lock of `rank`.
pub(crate) fn check(rank: Rank, order: Order) {
    let held = CURRENT.with_borrow(|current| current.as_ref().and_then(|record| record.highest()));
    let Some(held) = held else { return };
    let allowed = if order == Order::Strict { rank.0 > held.0 } else { rank.0 >= held.0 };
    assert!(allowed, "lock order: {rank} is waited for while {held} is held");
}

/// An entry in the record of held locks; removed when dropped.
pub(crate) struct Held(Option<(Rc<Record>, u64)>);

impl Held {
    /// Adds `rank` to the current record.
    pub(crate) fn enter(rank: Rank) -> Held {
        Held(CURRENT.with_borrow(|current| {
            current.as_ref().map(|record| {
                let token = record.next_token.get();
                record.next_token.set(token + 1);
                record.held.borrow_mut().push((token, rank));
                (record.clone(), token)
            })
        }))
    }
    /// An entry in no record.
    pub(crate) fn none() -> Held {
        Held(None)
    }
    /// Removes it now: the lock was handed to another task.
    pub(crate) fn strike(&mut self) {
        if let Some((record, token)) = self.0.take() {
            let mut held = record.held.borrow_mut();
            if let Some(at) = held.iter().rposition(|(t, _)| *t == token) {
                held.remove(at);
            }
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.strike();
    }
}

/// A future with its own record, a child of the one current at its creation.
pub(crate) struct Branch<F> {
    pub(crate) locks: Option<TaskLocks>,
    pub(crate) fut: F,
}

impl<F: Future + Unpin> Branch<F> {
    pub(crate) fn new(fut: F) -> Branch<F> {
        Branch { locks: TaskLocks::branch(), fut }
    }
}

impl<F: Future + Unpin> Future for Branch<F> {
    type Output = F::Output;
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let _scope = self.locks.as_ref().map(TaskLocks::enter);
        Pin::new(&mut self.fut).poll(cx)
    }
}
