//! Several futures in one task.
//!
//! Futures joined here run concurrently inside the awaiting task: no spawn, no `'static`, and
//! dropping the join drops them all. Each has its own record of held locks (see [`crate::rank`]). A
//! large group polls only the members that were woken.

use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};

use crate::rank::{Branch, TaskLocks};

/// Up to this many futures are all polled at each wake-up, which is cheaper than tracking which was
/// woken.
const POLL_ALL_MAX: usize = 8;

/// Runs `futs` concurrently until all have ended; results in the order of the futures.
pub async fn join_all<F: Future>(futs: Vec<F>) -> Vec<F::Output> {
    if futs.len() <= POLL_ALL_MAX {
        let mut futs: Vec<_> = futs.into_iter().map(|fut| Some(Branch::new(Box::pin(fut)))).collect();
        let mut results: Vec<Option<F::Output>> = futs.iter().map(|_| None).collect();
        poll_fn(|cx| {
            let mut pending = false;
            for (fut, result) in futs.iter_mut().zip(&mut results) {
                let Some(running) = fut else { continue };
                match Pin::new(running).poll(cx) {
                    Poll::Ready(value) => {
                        *result = Some(value);
                        *fut = None;
                    }
                    Poll::Pending => pending = true,
                }
            }
            if pending { Poll::Pending } else { Poll::Ready(()) }
        })
        .await;
        return results.into_iter().map(|r| r.expect("every future has ended")).collect();
    }
    let mut pipeline = Pipeline::new(futs.len());
    let mut results = Vec::with_capacity(futs.len());
    for fut in futs {
        pipeline.add(fut);
    }
    while let Some(value) = pipeline.next().await {
        results.push(value);
    }
    results
}

/// The result of the first of two futures to end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Either<A, B> {
    /// The result of the first future.
    First(A),
    /// The result of the second future.
    Second(B),
}

/// Runs both until one has ended, and drops the other. The first wins a tie.
pub async fn select2<A: Future, B: Future>(a: A, b: B) -> Either<A::Output, B::Output> {
    let mut a = pin!(a);
    let mut b = pin!(b);
    let (a_locks, b_locks) = (TaskLocks::branch(), TaskLocks::branch());
    poll_fn(|cx| {
        {
            let _scope = a_locks.as_ref().map(TaskLocks::enter);
            if let Poll::Ready(value) = a.as_mut().poll(cx) {
                return Poll::Ready(Either::First(value));
            }
        }
        let _scope = b_locks.as_ref().map(TaskLocks::enter);
        b.as_mut().poll(cx).map(Either::Second)
    })
    .await
}

/// Runs both until both have ended.
pub async fn join2<A: Future, B: Future>(a: A, b: B) -> (A::Output, B::Output) {
    let mut a = pin!(a);
    let mut b = pin!(b);
    let (a_locks, b_locks) = (TaskLocks::branch(), TaskLocks::branch());
    let (mut a_value, mut b_value) = (None, None);
    poll_fn(|cx| {
        if a_value.is_none() {
            let _scope = a_locks.as_ref().map(TaskLocks::enter);
            if let Poll::Ready(value) = a.as_mut().poll(cx) {
                a_value = Some(value);
            }
        }
        if b_value.is_none() {
            let _scope = b_locks.as_ref().map(TaskLocks::enter);
            if let Poll::Ready(value) = b.as_mut().poll(cx) {
                b_value = Some(value);
            }
        }
        if a_value.is_some() && b_value.is_some() { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
    (a_value.expect("the first has ended"), b_value.expect("the second has ended"))
}

/// State shared by a pipeline and the wakers of its members. `Waker` must be `Send`, hence the
/// mutex, which is never contended.
struct Woken(Mutex<WokenState>);

struct WokenState {
    /// Members to poll, in the order woken.
    members: Vec<u64>,
    /// The task that awaits the pipeline.
    parent: Option<Waker>,
}

impl Woken {
    fn lock(&self) -> MutexGuard<'_, WokenState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

struct MemberWaker {
    member: u64,
    /// Whether it is in the list of members to poll.
    queued: AtomicBool,
    woken: Arc<Woken>,
}

impl Wake for MemberWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }
    fn wake_by_ref(self: &Arc<Self>) {
        let parent = {
            if self.queued.swap(true, Ordering::AcqRel) {
                return;
            }
            let mut woken = self.woken.lock();
            woken.members.push(self.member);
            woken.parent.take()
        };
        if let Some(parent) = parent {
            parent.wake();
        }
    }
}

enum Slot<F: Future> {
    Running(Branch<Pin<Box<F>>>, Arc<MemberWaker>),
    Ended(F::Output),
}

/// A window of futures that run concurrently; results come in the order of the futures.
///
/// ```ignore
/// let mut window = Pipeline::new(8);
/// for block in blocks {
///     if let Some(result) = window.push(write(block)).await { use(result?); }
/// }
/// while let Some(result) = window.next().await { use(result?); }
/// ```
///
/// The futures make progress only while the pipeline is awaited. Dropping it drops them.
pub struct Pipeline<F: Future> {
    limit: usize,
    slots: VecDeque<Slot<F>>,
    /// The number of the member in the first slot.
    first: u64,
    woken: Arc<Woken>,
}

impl<F: Future> Pipeline<F> {
    /// A window of at most `limit` (at least 1) futures.
    pub fn new(limit: usize) -> Pipeline<F> {
        assert!(limit > 0, "a pipeline needs room for one future");
        Pipeline {
            limit,
            slots: VecDeque::new(),
            first: 0,
            woken: Arc::new(Woken(Mutex::new(WokenState { members: Vec::new(), parent: None }))),
        }
    }
    /// Futures in the window, including ended ones whose result was not taken.
    pub fn len(&self) -> usize {
        self.slots.len()
    }
    /// Whether the window is empty.
    pub fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }
    /// Whether the window is full.
    pub fn is_full(&self) -> bool {
        self.slots.len() >= self.limit
    }
    /// Adds a future without waiting and without polling it. The window must not be full.
    pub fn add(&mut self, fut: F) {
        assert!(!self.is_full(), "a future was added to a full pipeline");
        let member = self.first + self.slots.len() as u64;
        let waker = Arc::new(MemberWaker { member, queued: AtomicBool::new(true), woken: self.woken.clone() });
        self.slots.push_back(Slot::Running(Branch::new(Box::pin(fut)), waker));
        self.woken.lock().members.push(member);
    }
    /// Adds a future and starts it. If the window is full, first waits for the oldest and returns
    /// its result.
    pub async fn push(&mut self, fut: F) -> Option<F::Output> {
        let result = if self.is_full() { self.next().await } else { None };
        self.add(fut);
        poll_fn(|cx| {
            self.poll_woken(cx);
            Poll::Ready(())
        })
        .await;
        result
    }
    /// Waits for the oldest and returns its result: `None` if the window is empty.
    pub async fn next(&mut self) -> Option<F::Output> {
        poll_fn(|cx| {
            self.poll_woken(cx);
            match self.slots.pop_front() {
                None => Poll::Ready(None),
                Some(Slot::Ended(value)) => {
                    self.first += 1;
                    Poll::Ready(Some(value))
                }
                Some(running) => {
                    self.slots.push_front(running);
                    Poll::Pending
                }
            }
        })
        .await
    }
    /// Runs `other`; the futures of the window make progress meanwhile.
    pub async fn beside<T>(&mut self, other: impl Future<Output = T>) -> T {
        let mut other = pin!(other);
        let locks = TaskLocks::branch();
        poll_fn(|cx| {
            self.poll_woken(cx);
            let _scope = locks.as_ref().map(TaskLocks::enter);
            other.as_mut().poll(cx)
        })
        .await
    }
    fn poll_woken(&mut self, cx: &mut Context<'_>) {
        let members = {
            let mut woken = self.woken.lock();
            match &mut woken.parent {
                Some(old) => old.clone_from(cx.waker()),
                none => *none = Some(cx.waker().clone()),
            }
            std::mem::take(&mut woken.members)
        };
        for member in &members {
            // A waker may outlive its member.
            let Some(slot) = member.checked_sub(self.first).and_then(|at| self.slots.get_mut(at as usize)) else {
                continue;
            };
            let Slot::Running(fut, waker) = slot else { continue };
            // Cleared before the poll: a wake-up from now on needs another poll.
            waker.queued.store(false, Ordering::Release);
            let waker = Waker::from(waker.clone());
            if let Poll::Ready(value) = Pin::new(fut).poll(&mut Context::from_waker(&waker)) {
                *slot = Slot::Ended(value);
            }
        }
        // Reuse the memory if no member was woken meanwhile.
        let mut members = members;
        members.clear();
        let mut woken = self.woken.lock();
        if woken.members.is_empty() {
            woken.members = members;
        }
    }
}
