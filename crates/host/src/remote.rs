//! The way into an engine from another thread.
//!
//! A caller sends a closure; the engine thread runs it with its `Rt` and makes a task of the future
//! that it gives. The result comes back through a small cell that the caller may block on or await.
//! Only the closure and the result cross threads; the future itself lives and dies with the engine.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use base::{Error, ErrorKind, Result};
use rt::Rt;

use crate::shared::{Msg, Shared};

/// Runs closures on an engine's thread. Cheap to clone and free to send around; it does not keep
/// the engine alive.
#[derive(Clone)]
pub struct RemoteSpawner {
    shared: Arc<Shared>,
}

struct Cell<T> {
    state: Mutex<State<T>>,
    changed: Condvar,
}

struct State<T> {
    result: Option<Result<T>>,
    waker: Option<Waker>,
}

/// The future result of a remote call: [`RemoteCall::wait`] for it, or await it (in any executor).
/// Dropping it leaves the call to run.
#[must_use = "the result of a remote call, or `drop` it to let the call run alone"]
pub struct RemoteCall<T>(Arc<Cell<T>>);

/// Fills the cell; with an error if it is dropped before.
struct Fill<T>(Option<Arc<Cell<T>>>);

impl<T> Cell<T> {
    fn lock(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
    fn fill(&self, result: Result<T>) {
        let waker = {
            let mut s = self.lock();
            s.result = Some(result);
            s.waker.take()
        };
        self.changed.notify_all();
        if let Some(w) = waker {
            w.wake();
        }
    }
}

impl<T> Drop for Fill<T> {
    fn drop(&mut self) {
        if let Some(cell) = self.0.take() {
            cell.fill(Err(Error::new(ErrorKind::Interrupted, "the engine ended before it answered")));
        }
    }
}

impl RemoteSpawner {
    pub(crate) fn new(shared: Arc<Shared>) -> RemoteSpawner {
        RemoteSpawner { shared }
    }

    /// Runs `f` on the engine's thread and the future that it gives as a task there. The call
    /// starts even without a waiter for its result. [`ErrorKind::Interrupted`] if the engine ends
    /// first.
    pub fn call<T, F, Fut>(&self, f: F) -> RemoteCall<T>
    where
        T: Send + 'static,
        F: FnOnce(&Rt) -> Fut + Send + 'static,
        Fut: Future<Output = T> + 'static,
    {
        let cell = Arc::new(Cell { state: Mutex::new(State { result: None, waker: None }), changed: Condvar::new() });
        let fill = Fill(Some(cell.clone()));
        let call = Box::new(move |rt: &Rt| {
            let fut = f(rt);
            let task = async move {
                let mut fill = fill;
                let value = fut.await;
                if let Some(cell) = fill.0.take() {
                    cell.fill(Ok(value));
                }
            };
            rt.world().spawn("remote call", Box::pin(task));
        });
        // An engine that has ended drops the closure, and with it the filler.
        let _ = self.shared.post(Msg::Call(call));
        RemoteCall(cell)
    }
}

impl<T> RemoteCall<T> {
    /// Blocks this thread until the call has ended. Never call it on the engine's own thread: it
    /// would wait for itself.
    pub fn wait(self) -> Result<T> {
        let mut s = self.0.lock();
        loop {
            if let Some(r) = s.result.take() {
                return r;
            }
            s = self.0.changed.wait(s).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// As [`RemoteCall::wait`], but at most for `span`: gives itself back if the call has not ended
    /// by then.
    pub fn wait_for(self, span: Duration) -> Result<Result<T>, RemoteCall<T>> {
        let end = Instant::now() + span;
        let mut s = self.0.lock();
        loop {
            if let Some(r) = s.result.take() {
                return Ok(r);
            }
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                drop(s);
                return Err(self);
            }
            s = self.0.changed.wait_timeout(s, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

impl<T> Future for RemoteCall<T> {
    type Output = Result<T>;
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<T>> {
        let mut s = self.0.lock();
        match s.result.take() {
            Some(r) => Poll::Ready(r),
            None => {
                s.waker = Some(cx.waker().clone());
                Poll::Pending
            }
        }
    }
}
