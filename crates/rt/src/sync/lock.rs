//! [`Mutex`] and [`RwLock`]: exclusive and shared use of a value across awaits, first come first
//! served, with a rank.
//!
//! A reader that arrives after a waiting writer waits behind it, so writers are not starved. Guards
//! borrow the lock; the guards of `_owned` calls keep an `Rc` of it instead, and reach the value
//! through `borrow` calls.

use std::cell::{Ref, RefCell, RefMut};
use std::future::Future;
use std::ops::{Deref, DerefMut};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use super::list::WaitList;
use crate::rank::{self, Held, Order, Rank};

#[derive(Clone, Copy, PartialEq, Eq)]
enum Mode {
    Shared,
    Exclusive,
}

struct State {
    readers: usize,
    writer: bool,
    waiting: WaitList<Mode>,
}

/// Holders and waiters of a lock; the value is stored beside it.
struct Core {
    rank: Rank,
    state: RefCell<State>,
}

impl State {
    fn fits(&self, mode: Mode) -> bool {
        !self.writer && (mode == Mode::Shared || self.readers == 0)
    }
    fn take(&mut self, mode: Mode) {
        match mode {
            Mode::Shared => self.readers += 1,
            Mode::Exclusive => self.writer = true,
        }
    }
    fn give(&mut self, mode: Mode) {
        match mode {
            Mode::Shared => self.readers -= 1,
            Mode::Exclusive => self.writer = false,
        }
    }
}

impl Core {
    const fn new(rank: Rank) -> Core {
        Core { rank, state: RefCell::new(State { readers: 0, writer: false, waiting: WaitList::new() }) }
    }
    fn acquire(&self, mode: Mode, order: Order) -> Acquire<'_> {
        Acquire { core: self, mode, order, place: Place::New }
    }
    fn try_acquire(&self, mode: Mode) -> Option<Hold<'_>> {
        let mut state = self.state.borrow_mut();
        if !state.waiting.is_empty() || !state.fits(mode) {
            return None;
        }
        state.take(mode);
        Some(Hold { core: Some(self), mode, held: Held::enter(self.rank) })
    }
    fn release(&self, mode: Mode) {
        self.state.borrow_mut().give(mode);
        self.grant();
    }
    fn grant(&self) {
        loop {
            let entry = {
                let mut state = self.state.borrow_mut();
                match state.waiting.front() {
                    Some(&mode) if state.fits(mode) => {
                        state.take(mode);
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

enum Place {
    New,
    Queued(u64),
    Done,
}

struct Acquire<'a> {
    core: &'a Core,
    mode: Mode,
    order: Order,
    place: Place,
}

impl<'a> Future for Acquire<'a> {
    type Output = Hold<'a>;
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Hold<'a>> {
        let (core, mode) = (self.core, self.mode);
        match self.place {
            Place::New => {
                rank::check(core.rank, self.order);
                let mut state = core.state.borrow_mut();
                if !(state.waiting.is_empty() && state.fits(mode)) {
                    self.place = Place::Queued(state.waiting.push(mode, Some(cx.waker().clone())));
                    return Poll::Pending;
                }
                state.take(mode);
            }
            Place::Queued(id) => {
                if core.state.borrow_mut().waiting.set_waker(id, cx.waker()) {
                    return Poll::Pending;
                }
            }
            Place::Done => panic!("a lock's wait is polled after it ended"),
        }
        self.place = Place::Done;
        Poll::Ready(Hold { core: Some(core), mode, held: Held::enter(core.rank) })
    }
}

impl Drop for Acquire<'_> {
    fn drop(&mut self) {
        let Place::Queued(id) = self.place else { return };
        let entry = self.core.state.borrow_mut().waiting.remove(id);
        if entry.is_some() {
            // The waiter behind it may be grantable now.
            self.core.grant();
        } else {
            // Granted, but not polled since.
            self.core.release(self.mode);
        }
    }
}

/// A lock held; released when dropped.
struct Hold<'a> {
    core: Option<&'a Core>,
    mode: Mode,
    held: Held,
}

impl Hold<'_> {
    /// Leaves the lock held: the owner of the returned record must release it.
    fn into_held(mut self) -> Held {
        self.core = None;
        std::mem::replace(&mut self.held, Held::none())
    }
}

impl Drop for Hold<'_> {
    fn drop(&mut self) {
        if let Some(core) = self.core {
            self.held.strike();
            core.release(self.mode);
        }
    }
}

/// A value that one task uses at a time.
pub struct Mutex<T> {
    core: Core,
    value: RefCell<T>,
}

impl<T> Mutex<T> {
    /// A free mutex of `rank` around `value`.
    pub const fn new(rank: Rank, value: T) -> Mutex<T> {
        Mutex { core: Core::new(rank), value: RefCell::new(value) }
    }
    /// Waits for the value. The task may hold only locks of lower ranks.
    pub async fn lock(&self) -> MutexGuard<'_, T> {
        self.guard(self.core.acquire(Mode::Exclusive, Order::Strict).await)
    }
    /// Like [`Mutex::lock`], but the task may hold locks of the same rank too: the caller orders
    /// them otherwise.
    pub async fn lock_same_rank(&self) -> MutexGuard<'_, T> {
        self.guard(self.core.acquire(Mode::Exclusive, Order::SameRankAllowed).await)
    }
    /// Locks if the mutex is free and has no waiters. Never waits, so its rank is not checked.
    pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        self.core.try_acquire(Mode::Exclusive).map(|hold| self.guard(hold))
    }
    /// Like [`Mutex::lock`], with a guard that keeps the mutex alive.
    pub async fn lock_owned(self: &Rc<Self>) -> OwnedMutexGuard<T> {
        let held = self.core.acquire(Mode::Exclusive, Order::Strict).await.into_held();
        OwnedMutexGuard { lock: self.clone(), held }
    }
    /// Like [`Mutex::lock_same_rank`], with a guard that keeps the mutex alive.
    pub async fn lock_same_rank_owned(self: &Rc<Self>) -> OwnedMutexGuard<T> {
        let held = self.core.acquire(Mode::Exclusive, Order::SameRankAllowed).await.into_held();
        OwnedMutexGuard { lock: self.clone(), held }
    }
    /// Whether it is locked.
    pub fn is_locked(&self) -> bool {
        self.core.state.borrow().writer
    }
    /// Number of waiters.
    pub fn waiters(&self) -> usize {
        self.core.state.borrow().waiting.len()
    }
    /// The value, through exclusive access to the mutex itself.
    pub fn get_mut(&mut self) -> &mut T {
        self.value.get_mut()
    }
    /// Consumes the mutex and returns the value.
    pub fn into_inner(self) -> T {
        self.value.into_inner()
    }
    fn guard<'a>(&'a self, hold: Hold<'a>) -> MutexGuard<'a, T> {
        MutexGuard { value: self.value.borrow_mut(), hold }
    }
}

/// The value of a locked [`Mutex`].
#[must_use = "the lock is released at once if its guard is dropped"]
pub struct MutexGuard<'a, T> {
    // Dropped before the hold, so that the value is free for the next holder.
    value: RefMut<'a, T>,
    hold: Hold<'a>,
}

/// A locked [`Mutex`] kept alive by its guard.
#[must_use = "the lock is released at once if its guard is dropped"]
pub struct OwnedMutexGuard<T> {
    lock: Rc<Mutex<T>>,
    held: Held,
}

impl<T> OwnedMutexGuard<T> {
    /// Borrows the value; must not be kept across an await.
    pub fn borrow(&self) -> Ref<'_, T> {
        self.lock.value.borrow()
    }
    /// Borrows the value mutably; must not be kept across an await.
    pub fn borrow_mut(&mut self) -> RefMut<'_, T> {
        self.lock.value.borrow_mut()
    }
}

impl<T> Drop for OwnedMutexGuard<T> {
    fn drop(&mut self) {
        self.held.strike();
        self.lock.core.release(Mode::Exclusive);
    }
}

/// A value that many tasks read, or one task changes, at a time.
pub struct RwLock<T> {
    core: Core,
    value: RefCell<T>,
}

impl<T> RwLock<T> {
    /// A free lock of `rank` around `value`.
    pub const fn new(rank: Rank, value: T) -> RwLock<T> {
        RwLock { core: Core::new(rank), value: RefCell::new(value) }
    }
    /// Waits to read. The task may hold only locks of lower ranks.
    pub async fn read(&self) -> RwLockReadGuard<'_, T> {
        self.read_guard(self.core.acquire(Mode::Shared, Order::Strict).await)
    }
    /// Like [`RwLock::read`], but the task may hold locks of the same rank too: the caller orders
    /// them otherwise.
    pub async fn read_same_rank(&self) -> RwLockReadGuard<'_, T> {
        self.read_guard(self.core.acquire(Mode::Shared, Order::SameRankAllowed).await)
    }
    /// Waits to change. The task may hold only locks of lower ranks.
    pub async fn write(&self) -> RwLockWriteGuard<'_, T> {
        self.write_guard(self.core.acquire(Mode::Exclusive, Order::Strict).await)
    }
    /// Like [`RwLock::write`], but the task may hold locks of the same rank too: the caller orders
    /// them otherwise.
    pub async fn write_same_rank(&self) -> RwLockWriteGuard<'_, T> {
        self.write_guard(self.core.acquire(Mode::Exclusive, Order::SameRankAllowed).await)
    }
    /// Locks for reading if there is no writer and no waiter. Never waits, so its rank is not
    /// checked.
    pub fn try_read(&self) -> Option<RwLockReadGuard<'_, T>> {
        self.core.try_acquire(Mode::Shared).map(|hold| self.read_guard(hold))
    }
    /// Whether it is locked, for reading or writing.
    pub fn is_locked(&self) -> bool {
        let state = self.core.state.borrow();
        state.writer || state.readers > 0
    }
    /// Number of waiters.
    pub fn waiters(&self) -> usize {
        self.core.state.borrow().waiting.len()
    }
    /// The value, through exclusive access to the lock itself.
    pub fn get_mut(&mut self) -> &mut T {
        self.value.get_mut()
    }
    /// Consumes the lock and returns the value.
    pub fn into_inner(self) -> T {
        self.value.into_inner()
    }
    fn read_guard<'a>(&'a self, hold: Hold<'a>) -> RwLockReadGuard<'a, T> {
        RwLockReadGuard { value: self.value.borrow(), hold }
    }
    fn write_guard<'a>(&'a self, hold: Hold<'a>) -> RwLockWriteGuard<'a, T> {
        RwLockWriteGuard { value: self.value.borrow_mut(), hold }
    }
}

/// The value of a [`RwLock`] locked for reading.
#[must_use = "the lock is released at once if its guard is dropped"]
pub struct RwLockReadGuard<'a, T> {
    value: Ref<'a, T>,
    hold: Hold<'a>,
}

/// The value of a [`RwLock`] locked for changing.
#[must_use = "the lock is released at once if its guard is dropped"]
pub struct RwLockWriteGuard<'a, T> {
    value: RefMut<'a, T>,
    hold: Hold<'a>,
}

impl<T> Deref for MutexGuard<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.value
    }
}
impl<T> DerefMut for MutexGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.value
    }
}
impl<T> Deref for RwLockReadGuard<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.value
    }
}
impl<T> Deref for RwLockWriteGuard<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.value
    }
}
impl<T> DerefMut for RwLockWriteGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.value
    }
}

macro_rules! hand_over {
    ($($guard:ty => $($field:ident).+;)*) => {$(
        impl<T> $guard {
            /// Removes the lock from its task's record before it is handed to another task: it no
            /// longer counts in the lock order of the task that took it.
            pub fn hand_over(&mut self) {
                self.$($field).+.strike();
            }
        }
    )*};
}
hand_over! {
    MutexGuard<'_, T> => hold.held;
    RwLockReadGuard<'_, T> => hold.held;
    RwLockWriteGuard<'_, T> => hold.held;
    OwnedMutexGuard<T> => held;
}
