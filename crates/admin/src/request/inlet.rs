//! Streams from the client to an engine's task ([`Direction::FromClient`](super::Direction)).
//!
//! The thread of the request reads the socket and fills an *inlet* ([`Stream::fill`]), of which the
//! engine's task takes bytes. At most [`INLET_MAX`] bytes and one piece wait between them: a task
//! that does not take stops the thread, and that the client. The thread ends when the client has
//! closed its end, or when the task has dropped the inlet: then what else comes is not read, and
//! the client learns it from the answer.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};
use std::time::Duration;

use super::Stream;

/// Bytes that the thread may be ahead of the engine's task.
const INLET_MAX: usize = 1 << 20;
/// Bytes that are read at once.
const PIECE: usize = 128 << 10;
/// Interval at which a thread whose client sends nothing looks whether the task is there.
const GONE_CHECK: Duration = Duration::from_millis(200);

#[derive(Default)]
struct State {
    pieces: VecDeque<Vec<u8>>,
    bytes: usize,
    /// The thread gives no more.
    ended: bool,
    /// The task has dropped its half.
    gone: bool,
    /// The task, which waits for bytes.
    waker: Option<Waker>,
}

#[derive(Default)]
struct Between {
    state: Mutex<State>,
    changed: Condvar,
}

impl Between {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The task's half; dropping it ends the stream.
pub(crate) struct Inlet(Arc<Between>);

/// The thread's half; dropping it is the end of the stream.
pub(crate) struct Feeder(Arc<Between>);

/// An inlet, and where its bytes go in.
pub(crate) fn inlet() -> (Inlet, Feeder) {
    let between: Arc<Between> = Arc::default();
    (Inlet(between.clone()), Feeder(between))
}

impl Inlet {
    /// The next bytes, as many as came at once; none at the end.
    pub(crate) async fn next(&mut self) -> Option<Vec<u8>> {
        poll_fn(|cx| {
            let mut state = self.0.lock();
            if let Some(piece) = state.pieces.pop_front() {
                state.bytes -= piece.len();
                self.0.changed.notify_one();
                return Poll::Ready(Some(piece));
            }
            if state.ended {
                return Poll::Ready(None);
            }
            state.waker = Some(cx.waker().clone());
            Poll::Pending
        })
        .await
    }
}

impl Feeder {
    /// Gives a piece when there is room for it. False if the task takes no more.
    fn give(&self, piece: Vec<u8>) -> bool {
        let full = |s: &mut State| s.bytes >= INLET_MAX && !s.gone;
        let waited = self.0.changed.wait_while(self.0.lock(), full);
        let mut state = waited.unwrap_or_else(PoisonError::into_inner);
        if state.gone {
            return false;
        }
        state.bytes += piece.len();
        state.pieces.push_back(piece);
        let waker = state.waker.take();
        drop(state);
        waker.into_iter().for_each(Waker::wake);
        true
    }

    fn is_gone(&self) -> bool {
        self.0.lock().gone
    }
}

impl Drop for Inlet {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.gone = true;
        state.pieces.clear();
        self.0.changed.notify_one();
    }
}

impl Drop for Feeder {
    fn drop(&mut self) {
        let waker = {
            let mut state = self.0.lock();
            state.ended = true;
            state.waker.take()
        };
        waker.into_iter().for_each(Waker::wake);
    }
}

impl Stream {
    /// Carries what the client sends to an engine's task, until one of them has ended it.
    pub(crate) fn fill(&self, to: Feeder) {
        while !to.is_gone() {
            let mut piece = Vec::with_capacity(PIECE);
            match self.read_within(&mut piece, GONE_CHECK) {
                Ok(None) => {}
                Ok(Some(0)) | Err(_) => return,
                Ok(Some(_)) => {
                    // What waits is counted by its bytes: a small piece must not keep its room.
                    piece.shrink_to_fit();
                    if !to.give(piece) {
                        return;
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::unix::net::UnixStream;

    use super::super::Direction;
    use super::*;
    use crate::engine::EngineThread;

    fn stream() -> (Stream, UnixStream) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        (Stream::take(Some(Direction::FromClient), vec![theirs.into()]).unwrap().unwrap(), ours)
    }

    #[test]
    fn a_task_gets_what_a_client_sends() {
        let thread = EngineThread::start(None).unwrap();
        let (mut inlet, feeder) = inlet();
        let call = thread.call(move |_| async move {
            let mut sum = 0u64;
            while let Some(piece) = inlet.next().await {
                sum += piece.iter().map(|b| u64::from(*b)).sum::<u64>();
            }
            sum
        });
        let (stream, mut ours) = stream();
        let carrier = std::thread::spawn(move || stream.fill(feeder));
        let bytes: Vec<u8> = (0..5_000_000u32).map(|n| (n % 251) as u8).collect();
        ours.write_all(&bytes).unwrap();
        drop(ours);
        assert_eq!(call.wait().unwrap(), bytes.iter().map(|b| u64::from(*b)).sum::<u64>());
        carrier.join().unwrap();
    }

    #[test]
    fn small_pieces_take_little_memory() {
        let thread = EngineThread::start(None).unwrap();
        let (mut inlet, feeder) = inlet();
        let call = thread.call(move |_| async move { inlet.next().await.map(|p| (p.len(), p.capacity())) });
        let (stream, mut ours) = stream();
        let carrier = std::thread::spawn(move || stream.fill(feeder));
        ours.write_all(b"1").unwrap();
        let (len, capacity) = call.wait().unwrap().unwrap();
        assert!(len == 1 && capacity < 64, "{capacity} bytes for {len}");
        carrier.join().unwrap();
    }

    #[test]
    fn a_task_that_ends_ends_the_stream() {
        let thread = EngineThread::start(None).unwrap();
        for sends in [false, true] {
            let (mut inlet, feeder) = inlet();
            let call = thread.call(move |_| async move { inlet.next().await.map(|p| p.len()) });
            let (stream, mut ours) = stream();
            let carrier = std::thread::spawn(move || stream.fill(feeder));
            ours.write_all(b"first").unwrap();
            assert_eq!(call.wait().unwrap(), Some(5));
            // The client may send on, or wait: the carrier ends in both cases.
            while sends && ours.write_all(&[7; 65536]).is_ok() {}
            carrier.join().unwrap();
        }
    }

    #[test]
    fn a_task_that_does_not_take_stops_the_client() {
        let (inlet, feeder) = inlet();
        let (stream, ours) = stream();
        let carrier = std::thread::spawn(move || stream.fill(feeder));
        ours.set_write_timeout(Some(Duration::from_millis(300))).unwrap();
        let mut sent = 0;
        while let Ok(n) = (&ours).write(&[1; 65536]) {
            sent += n;
        }
        assert!((INLET_MAX..INLET_MAX + (2 << 20)).contains(&sent), "{sent} bytes were taken");
        drop(inlet);
        carrier.join().unwrap();
    }
}
