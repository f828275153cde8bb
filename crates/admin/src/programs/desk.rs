//! Where the thread of a program and the engine meet: one call at a time, and its answer.

use std::future::poll_fn;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};
use std::time::{Duration, Instant};

use program::{Answer, Call, Host};

/// Time between two looks whether the client is there.
const LOOK_PERIOD: Duration = Duration::from_millis(100);

/// What the program asks.
pub(crate) enum Asked {
    /// A call.
    Call(Call),
    /// Whether something is there still.
    Exists(String),
}

#[derive(Default)]
struct State {
    asked: Option<Asked>,
    /// The engine has taken the call and answers it.
    under_way: bool,
    answer: Option<Answer>,
    /// The engine, which waits for a call.
    waker: Option<Waker>,
    /// The program has ended.
    ended: bool,
    /// The engine takes no more calls.
    closed: bool,
}

#[derive(Default)]
struct Between {
    state: Mutex<State>,
    answered: Condvar,
}

impl Between {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The program's side: a [`Host`] that has the engine do the calls. Dropping it ends the service.
pub(crate) struct Guest<'a> {
    between: Arc<Between>,
    /// Whether the client has gone away.
    is_gone: &'a dyn Fn() -> bool,
    looked: Instant,
    gone: bool,
}

/// The engine's side.
pub(crate) struct Counter(Arc<Between>);

/// A desk with its two sides. A program whose client has gone away is ended at its next call.
pub(crate) fn desk(is_gone: &dyn Fn() -> bool) -> (Guest<'_>, Counter) {
    let between: Arc<Between> = Arc::default();
    (Guest { between: between.clone(), is_gone, looked: Instant::now(), gone: false }, Counter(between))
}

impl Guest<'_> {
    fn ask(&mut self, asked: Asked) -> Answer {
        if self.looked.elapsed() >= LOOK_PERIOD {
            self.looked = Instant::now();
            self.gone = self.gone || (self.is_gone)();
        }
        if self.gone {
            return Answer::Error("Channel program was canceled.".to_string());
        }
        let mut state = self.between.lock();
        if !state.closed {
            state.asked = Some(asked);
            state.waker.take().into_iter().for_each(Waker::wake);
            let idle = |s: &mut State| s.answer.is_none() && (s.under_way || !s.closed);
            state = self.between.answered.wait_while(state, idle).unwrap_or_else(PoisonError::into_inner);
        }
        let late = || Answer::Error("Channel program was canceled: it took too long.".to_string());
        state.answer.take().unwrap_or_else(late)
    }
}

impl Host for Guest<'_> {
    fn call(&mut self, call: Call) -> Answer {
        self.ask(Asked::Call(call))
    }
    fn exists(&mut self, name: &str) -> bool {
        matches!(self.ask(Asked::Exists(name.to_string())), Answer::Values(_))
    }
}

impl Drop for Guest<'_> {
    fn drop(&mut self) {
        let mut state = self.between.lock();
        state.ended = true;
        state.waker.take().into_iter().for_each(Waker::wake);
    }
}

impl Counter {
    /// The next call; none when the program has ended, or after [`Counter::close`].
    pub(crate) async fn next(&self) -> Option<Asked> {
        poll_fn(|cx| {
            let mut state = self.0.lock();
            if state.closed {
                return Poll::Ready(None);
            }
            match state.asked.take() {
                Some(asked) => {
                    state.under_way = true;
                    Poll::Ready(Some(asked))
                }
                None if state.ended => Poll::Ready(None),
                None => {
                    state.waker = Some(cx.waker().clone());
                    Poll::Pending
                }
            }
        })
        .await
    }

    /// Answers it.
    pub(crate) fn answer(&self, answer: Answer) {
        let mut state = self.0.lock();
        state.under_way = false;
        state.answer = Some(answer);
        self.0.answered.notify_one();
    }

    /// Takes no more calls: a program that waits with one hears that it is canceled. That which
    /// is under way is still answered.
    pub(crate) fn close(&self) {
        let mut state = self.0.lock();
        state.closed = true;
        state.waker.take().into_iter().for_each(Waker::wake);
        self.0.answered.notify_one();
    }
}

impl Drop for Counter {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.under_way = false;
        state.closed = true;
        self.0.answered.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::EngineThread;

    #[test]
    fn calls_are_answered_until_the_engine_closes() {
        let thread = EngineThread::start(None).unwrap();
        let (mut guest, counter) = desk(&|| false);
        let served = thread.call(|_| async move {
            let mut n = 0;
            while let Some(asked) = counter.next().await {
                n += 1;
                // The call that is under way is answered all the same.
                if n == 3 {
                    counter.close();
                }
                let there = matches!(&asked, Asked::Exists(name) if name == "a");
                counter.answer(if there { Answer::Values(Vec::new()) } else { Answer::Done(n, None) });
            }
            n
        });
        assert!(guest.exists("a"));
        assert!(!guest.exists("b"));
        assert_eq!(guest.call(Call::Exists("c".into())), Answer::Done(3, None));
        assert!(matches!(guest.call(Call::Exists("d".into())), Answer::Error(_)));
        assert_eq!(served.wait().unwrap(), 3);
        // A call that waits while the engine closes is not done: its program hears an error.
        let (guest, counter) = desk(&|| false);
        counter.0.lock().asked = Some(Asked::Exists("a".into()));
        counter.close();
        let served = thread.call(|_| async move { counter.next().await.is_none() });
        assert!(served.wait().unwrap());
        drop(guest);
        // The end of the program is that of the service.
        let (guest, counter) = desk(&|| false);
        let served = thread.call(|_| async move { counter.next().await.is_none() });
        drop(guest);
        assert!(served.wait().unwrap());
        // A client that has gone away ends it as well.
        let (mut guest, counter) = desk(&|| true);
        let served = thread.call(|_| async move { counter.next().await.is_none() });
        guest.looked = Instant::now() - LOOK_PERIOD;
        assert_eq!(guest.call(Call::Exists("a".into())), Answer::Error("Channel program was canceled.".into()));
        drop(guest);
        assert!(served.wait().unwrap());
    }
}
