//! [`Call`]: the future result of an operation of the engine.
//!
//! A call begins when the function that gives it is called, not when it is awaited: several may be
//! under way at once, and one that is dropped goes on to its end alone. The caller and the engine
//! share a small cell; the second to come finds the first one's result or waker there. If the
//! engine ends first, its end of the cell is dropped and fills it with an error.

use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

use crate::error::{Error, ErrorKind, Result};

/// Why an engine ended, once it has.
#[derive(Default)]
pub(crate) struct Fate(Mutex<Option<String>>);

impl Fate {
    /// The first cause counts.
    pub(crate) fn seal(&self, why: impl Into<String>) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert_with(|| why.into());
    }
    pub(crate) fn error(&self) -> Error {
        let why = self.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
        Error::new(ErrorKind::EngineGone, why.unwrap_or_else(|| "the engine has ended".into()))
    }
    pub(crate) fn is_sealed(&self) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).is_some()
    }
}

struct Cell<T> {
    state: Mutex<State<T>>,
    changed: Condvar,
}

struct State<T> {
    result: Option<Result<T>>,
    waker: Option<Waker>,
}

impl<T> Cell<T> {
    fn lock(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The future result of an operation: await it in any executor, or [`Call::wait`] for it on a
/// thread of your own.
///
/// The operation has begun already. Dropping the call gives up the result, never the operation: it
/// runs to its end as if there were a waiter, so nothing is left half done.
#[must_use = "the operation runs, but whether it worked is not known"]
pub struct Call<T> {
    cell: Arc<Cell<T>>,
}

impl<T> std::fmt::Debug for Call<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Call({})", if self.cell.lock().result.is_some() { "ended" } else { "under way" })
    }
}

/// The engine's end of a call.
pub(crate) struct Reply<T> {
    cell: Option<Arc<Cell<T>>>,
    fate: Arc<Fate>,
}

impl<T> Reply<T> {
    pub(crate) fn send(mut self, result: Result<T>) {
        self.fill(result);
    }
    fn fill(&mut self, result: Result<T>) {
        let Some(cell) = self.cell.take() else { return };
        let waker = {
            let mut state = cell.lock();
            state.result = Some(result);
            state.waker.take()
        };
        cell.changed.notify_all();
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

impl<T> Drop for Reply<T> {
    fn drop(&mut self) {
        if self.cell.is_some() {
            let e = self.fate.error();
            self.fill(Err(e));
        }
    }
}

impl<T> Call<T> {
    pub(crate) fn new(fate: &Arc<Fate>) -> (Call<T>, Reply<T>) {
        let cell = Arc::new(Cell { state: Mutex::new(State { result: None, waker: None }), changed: Condvar::new() });
        (Call { cell: cell.clone() }, Reply { cell: Some(cell), fate: fate.clone() })
    }
    /// A call whose result is there already.
    pub(crate) fn ready(result: Result<T>) -> Call<T> {
        let state = Mutex::new(State { result: Some(result), waker: None });
        Call { cell: Arc::new(Cell { state, changed: Condvar::new() }) }
    }

    /// Blocks this thread until the operation has ended. On the engine's own thread (see
    /// [`crate::local`]) that would be for ever, so there it is an error ([`ErrorKind::Invalid`])
    /// unless the result is there already.
    pub fn wait(self) -> Result<T> {
        let mut state = self.cell.lock();
        loop {
            if let Some(result) = state.result.take() {
                return result;
            }
            if crate::engine::on_engine_thread() {
                return Err(Error::invalid("waiting on an engine's own thread would never end: await instead"));
            }
            state = self.cell.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// As [`Call::wait`], but at most for `span`: gives itself back if the operation has not ended
    /// by then.
    pub fn wait_for(self, span: Duration) -> Result<Result<T>, Call<T>> {
        let end = Instant::now() + span;
        {
            let mut state = self.cell.lock();
            loop {
                if let Some(result) = state.result.take() {
                    return Ok(result);
                }
                let left = end.saturating_duration_since(Instant::now());
                if left.is_zero() || crate::engine::on_engine_thread() {
                    break;
                }
                state = self.cell.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
            }
        }
        Err(self)
    }
}

impl<T> Future for Call<T> {
    type Output = Result<T>;
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<T>> {
        let mut state = self.cell.lock();
        match state.result.take() {
            Some(result) => Poll::Ready(result),
            None => {
                state.waker = Some(cx.waker().clone());
                Poll::Pending
            }
        }
    }
}

struct Unpark(std::thread::Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Runs a future on this thread until it is ready: for programs without an executor. Works with any
/// future, not only with those of this crate. Not for the engine's own thread.
///
/// # Panics
/// On the engine's own thread, which would wait for itself.
pub fn block_on<T>(fut: impl Future<Output = T>) -> T {
    assert!(!crate::engine::on_engine_thread(), "block_on on an engine's own thread would never end");
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut cx = Context::from_waker(&waker);
    let mut fut = pin!(fut);
    loop {
        if let Poll::Ready(value) = fut.as_mut().poll(&mut cx) {
            return value;
        }
        std::thread::park();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_is_awaited_or_waited_for() {
        let fate: Arc<Fate> = Arc::default();
        let (call, reply) = Call::<u32>::new(&fate);
        let call = call.wait_for(Duration::from_millis(1)).expect_err("nothing is there yet");
        let t = std::thread::spawn(move || reply.send(Ok(7)));
        assert_eq!(block_on(call), Ok(7));
        t.join().unwrap();
        let (call, reply) = Call::<u32>::new(&fate);
        fate.seal("the engine panicked: test");
        fate.seal("later");
        drop(reply);
        let e = call.wait().unwrap_err();
        assert_eq!((e.kind(), e.message()), (ErrorKind::EngineGone, "the engine panicked: test"));
        assert_eq!(Call::ready(Ok(1)).wait(), Ok(1));
    }
}
