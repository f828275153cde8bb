//! Streams of requests: more bytes than a message takes, or bytes that come as time passes.
//!
//! **Words.** A request whose [`Request::STREAM`] names a [`Direction`] has
//! a *stream*: a socket of the client's, whose other end came beside the message as a descriptor. A
//! [`Report`] is a request whose stream has *items*, each a line of JSON; other streams are bytes
//! with a format of their own (send streams). The *outlet* is the
//! engine's half of a stream, the [`Stream`] that of the request's thread.
//!
//! **Normal path.** The client makes a pair of sockets and sends one with the message of the
//! request (the daemon's `proto` has the frame). The server gives it to [`Stream::take`], which
//! refuses a descriptor that the request does not want, none, and one that is no stream socket. A
//! client whose bytes are for a file or a pipe, or come from one, may send that too: then the bytes
//! do not pass through the client, and the socket only tells that the client is there. The
//! work writes to the stream of its [`Cx`](super::Cx), on its own thread ([`Stream::item`]) or from
//! the engine ([`Cx::report_on_pool`](super::Cx::report_on_pool)): there the task writes to an
//! [`Outlet`], and the thread of the request carries its bytes to the socket. The stream is closed
//! when the work has ended; then the ordinary answer is sent, and says whether all of it came.
//!
//! **Back pressure.** A client that does not read stops the thread at the socket, and the engine's
//! task at its outlet, where at most [`OUTLET_MAX`] bytes and one item wait while as many again are
//! on their way: a report is never in memory as a whole. The task holds its pool meanwhile as any
//! request does: an export ends it.
//!
//! **Ends.** An error before the first byte is an ordinary answer with an empty stream. A client
//! that goes away closes its end: the next write fails ([`gone`]), which ends the work; work that
//! waits without writing asks [`Stream::is_closed`] from time to time, and the thread asks for an
//! engine that does not write. A daemon that goes away closes both the stream and the connection,
//! and a stream without an answer is an error for the client. In a stream from the client (`inlet`)
//! the end is no sign of completeness, so what comes must say itself where it ends (a send stream
//! does).
//!
//! **Hostile clients** share the flags of the descriptor that they passed, so no call relies on
//! them (`host::PassedStream`). One that never reads holds one of the threads of
//! [`Lane::Stream`](super::Lane::Stream), which serve nothing else. No request that every user may
//! make has a stream; those of users with permissions have threads of their own.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::ops::Deref;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};
use std::time::Duration;

use base::{Error, ErrorKind, Result};
use bdev::Bytes;
use host::{Access, PassedFile, PassedStream};
use rt::Rt;
use rt::cost::COPY;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::Request;
use crate::waits::{Wait, waiting};

/// Bytes that an engine's task may be ahead of the request's thread.
const OUTLET_MAX: usize = 256 << 10;
/// Interval at which a thread whose engine writes nothing looks whether its client is there.
const GONE_CHECK: Duration = Duration::from_secs(1);

/// Where the bytes of a stream go.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Direction {
    /// From the work to the client.
    ToClient,
    /// From the client to the work.
    FromClient,
}

/// A request whose answer is its items; the reply after them is empty.
pub trait Report: Request<Reply = ()> {
    /// An item.
    type Item: Serialize + DeserializeOwned;
}

/// The stream of a request.
#[derive(Debug)]
pub struct Stream(PassedStream);

/// The client is not there any more.
fn gone() -> Error {
    Error::new(ErrorKind::Interrupted, "the command that asked for this has ended")
}

/// An item as a line.
fn line<T: Serialize>(item: &T) -> Result<Vec<u8>> {
    let bad = |e| Error::invalid(format!("an item of the answer cannot be written: {e}"));
    let mut line = serde_json::to_vec(item).map_err(bad)?;
    line.push(b'\n');
    Ok(line)
}

impl Stream {
    /// The stream of a request with that direction, of the descriptors that came with it.
    ///
    /// # Errors
    /// The request has no stream and one came, or has one and none came, or one that is no stream,
    /// or beside it what is no file. All descriptors are closed.
    pub fn take(direction: Option<Direction>, came: Vec<OwnedFd>) -> Result<Option<Stream>> {
        let bad = |why: &str| Err(Error::invalid(format!("the request cannot be served: {why}")));
        let mut came = came.into_iter();
        let (direction, fd) = match (direction, came.next()) {
            (None, None) => return Ok(None),
            (None, Some(_)) => return bad("a descriptor came with it, and it has no stream"),
            (Some(_), None) => return bad("no descriptor of its stream came with it"),
            (Some(direction), Some(fd)) => (direction, fd),
        };
        let stream = match PassedStream::new(fd) {
            Ok(stream) => stream,
            Err(e) => return bad(&format!("the descriptor that came with it is not its stream: {e}")),
        };
        let access = match direction {
            Direction::ToClient => Access::Write,
            Direction::FromClient => Access::Read,
        };
        match (came.next().map(|fd| PassedFile::new(fd, access)), came.next()) {
            (None, _) => Ok(Some(Stream(stream))),
            (Some(Ok(file)), None) => Ok(Some(Stream(stream.with_file(file)))),
            (Some(Err(e)), None) => bad(&format!("of the second descriptor that came with it: {e}")),
            (Some(_), Some(_)) => bad("several descriptors came with it"),
        }
    }

    /// Tells the client that the work has begun: an empty line, which is no item.
    pub(crate) fn begin(&self) -> Result<()> {
        self.write_all(b"\n")
    }

    /// Writes an item, and waits until the client has taken what was before it.
    pub(crate) fn item<T: Serialize>(&self, item: &T) -> Result<()> {
        self.write_all(&line(item)?)
    }

    /// Fills `buf` with the next bytes from the client, from its beginning, and returns how many:
    /// `None` if none came within `span`, 0 at the end.
    pub(super) fn read_within(&self, buf: &mut [u8], span: Duration) -> Result<Option<usize>> {
        waiting(Wait::Client, || self.0.read_within(buf, span).map_err(|_| gone()))
    }

    /// Whether the client has gone away.
    pub(crate) fn is_closed(&self) -> bool {
        self.0.is_closed()
    }

    fn write_all(&self, mut bytes: &[u8]) -> Result<()> {
        waiting(Wait::Client, || {
            while !bytes.is_empty() {
                let failed = |e: std::io::Error| match self.0.has_file() && !self.is_closed() {
                    true => Error::new(ErrorKind::Io, format!("cannot write the stream: {e}")),
                    false => gone(),
                };
                let taken = self.0.write(bytes).map_err(failed)?;
                bytes = &bytes[taken..];
            }
            Ok(())
        })
    }

    /// Carries what an engine's task writes to its outlet, until the task has dropped that.
    ///
    /// # Errors
    /// The client has gone away, or the bytes cannot be written. Then the task's next write fails.
    pub(crate) fn carry(&self, from: Source) -> Result<()> {
        while let Some(chunks) = from.0.next(GONE_CHECK) {
            chunks.iter().try_for_each(|chunk| self.write_all(chunk))?;
            if chunks.is_empty() && self.is_closed() {
                return Err(gone());
            }
        }
        Ok(())
    }
}

/// What is between an engine's task and the request's thread.
#[derive(Default)]
struct Between {
    state: Mutex<State>,
    changed: Condvar,
}

/// Bytes on their way.
pub(crate) enum Chunk {
    /// Made for the stream.
    Own(Vec<u8>),
    /// A buffer of the engine's, not copied.
    Shared(Bytes),
}

impl Deref for Chunk {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Chunk::Own(bytes) => bytes,
            Chunk::Shared(bytes) => bytes,
        }
    }
}

#[derive(Default)]
struct State {
    chunks: VecDeque<Chunk>,
    bytes: usize,
    /// The task has dropped its outlet.
    ended: bool,
    /// The thread takes no more.
    gone: bool,
    /// The task, which waits for room.
    waker: Option<Waker>,
}

impl Between {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// All chunks there are, as soon as there is one, or none after `span`; `None` at the end.
    fn next(&self, span: Duration) -> Option<VecDeque<Chunk>> {
        let idle = |s: &mut State| s.chunks.is_empty() && !s.ended;
        let waited = self.changed.wait_timeout_while(self.lock(), span, idle);
        let mut state = waited.unwrap_or_else(PoisonError::into_inner).0;
        if state.chunks.is_empty() && state.ended {
            return None;
        }
        let (chunks, waker) = (std::mem::take(&mut state.chunks), state.waker.take());
        state.bytes = 0;
        drop(state);
        waker.into_iter().for_each(Waker::wake);
        Some(chunks)
    }
}

/// The engine's half of a stream to the client. Dropping it is the end of the stream.
pub(crate) struct Outlet(Arc<Between>);

/// The thread's half of an [`Outlet`]; dropping it makes the writes of that fail.
pub(crate) struct Source(Arc<Between>);

/// An outlet, and where its bytes come out.
pub(crate) fn outlet() -> (Outlet, Source) {
    let between: Arc<Between> = Arc::default();
    (Outlet(between.clone()), Source(between))
}

impl Outlet {
    /// Writes an item when there is room for it, and charges the turn with it: an outlet whose
    /// thread takes items as fast never makes the task wait.
    ///
    /// # Errors
    /// The client has gone away.
    pub(crate) async fn item<T: Serialize>(&self, rt: &Rt, item: &T) -> Result<()> {
        let line = line(item)?;
        rt.spend(COPY.cost(line.len() as u64)).await;
        self.chunks([Chunk::Own(line)]).await
    }

    /// Writes bytes that belong together as they are, when there is room for them.
    ///
    /// # Errors
    /// The client has gone away.
    pub(crate) async fn chunks<const N: usize>(&self, chunks: [Chunk; N]) -> Result<()> {
        let mut chunks = Some(chunks);
        poll_fn(|cx| {
            let mut state = self.0.lock();
            if state.gone {
                return Poll::Ready(Err(gone()));
            }
            if state.bytes >= OUTLET_MAX {
                state.waker = Some(cx.waker().clone());
                return Poll::Pending;
            }
            for chunk in chunks.take().into_iter().flatten().filter(|chunk| !chunk.is_empty()) {
                state.bytes += chunk.len();
                state.chunks.push_back(chunk);
            }
            self.0.changed.notify_one();
            Poll::Ready(Ok(()))
        })
        .await
    }
}

impl Drop for Outlet {
    fn drop(&mut self) {
        self.0.lock().ended = true;
        self.0.changed.notify_one();
    }
}

impl Drop for Source {
    fn drop(&mut self) {
        let waker = {
            let mut state = self.0.lock();
            state.gone = true;
            state.chunks.clear();
            state.waker.take()
        };
        waker.into_iter().for_each(Waker::wake);
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader, Read};
    use std::os::unix::net::UnixStream;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;
    use crate::engine::EngineThread;

    fn stream() -> (Stream, UnixStream) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        (Stream::take(Some(Direction::ToClient), vec![theirs.into()]).unwrap().unwrap(), ours)
    }

    /// An engine's task that writes `items` items of about 1 KiB, and counts them; its result is
    /// that of the last write.
    fn writer(thread: &EngineThread, items: usize) -> (host::RemoteCall<Result<()>>, Source, Arc<AtomicUsize>) {
        let (outlet, source) = outlet();
        let written: Arc<AtomicUsize> = Arc::default();
        let count = written.clone();
        let call = thread.call(move |rt| {
            let rt = rt.clone();
            async move {
                let item = "x".repeat(1024);
                for _ in 0..items {
                    outlet.item(&rt, &item).await?;
                    count.fetch_add(1, Ordering::Relaxed);
                }
                Ok(())
            }
        });
        (call, source, written)
    }

    #[test]
    fn descriptors_are_what_the_request_wants() {
        let fd = || OwnedFd::from(UnixStream::pair().unwrap().0);
        let file = || OwnedFd::from(std::fs::File::open("/dev/null").unwrap());
        let null = || OwnedFd::from(std::fs::File::create("/dev/null").unwrap());
        let some = Some(Direction::ToClient);
        assert!(Stream::take(None, vec![]).unwrap().is_none());
        assert!(Stream::take(some, vec![fd(), null()]).unwrap().is_some());
        assert!(Stream::take(some, vec![fd()]).unwrap().is_some());
        for (direction, came, why) in [
            (None, vec![fd()], "has no stream"),
            (some, vec![], "no descriptor"),
            (some, vec![fd(), fd()], "no file or pipe"),
            (some, vec![fd(), file()], "no file or pipe"),
            (some, vec![fd(), null(), null()], "several"),
            (some, vec![file()], "not its stream"),
        ] {
            let e = Stream::take(direction, came).unwrap_err();
            assert!(e.kind() == ErrorKind::Invalid && e.to_string().contains(why), "{e}");
        }
    }

    #[test]
    fn an_engine_waits_for_a_slow_reader() {
        let thread = EngineThread::start(None).unwrap();
        let items = 20_000;
        let (call, source, written) = writer(&thread, items);
        let (stream, ours) = stream();
        let carrier = std::thread::spawn(move || stream.carry(source));
        let mut read = 0;
        for line in BufReader::with_capacity(4096, ours).lines() {
            assert_eq!(line.unwrap().len(), 1026);
            read += 1;
            // What is under way: the outlet, what the thread has taken, the socket. The task counts
            // an item after it has handed it over, so that the reader can be ahead of the count.
            let ahead = written.load(Ordering::Relaxed).saturating_sub(read) * 1027;
            assert!(ahead < 2 * OUTLET_MAX + (1 << 20), "{ahead} bytes after {read} items");
            if read == 1 {
                // Until nothing moves any more.
                let mut last = usize::MAX;
                while std::mem::replace(&mut last, written.load(Ordering::Relaxed)) != last {
                    std::thread::sleep(Duration::from_millis(20));
                }
            }
        }
        assert_eq!(read, items);
        call.wait().unwrap().unwrap();
        carrier.join().unwrap().unwrap();
    }

    #[test]
    fn a_reader_that_leaves_ends_the_work() {
        let thread = EngineThread::start(None).unwrap();
        let (call, source, written) = writer(&thread, usize::MAX);
        let (stream, mut ours) = stream();
        let carrier = std::thread::spawn(move || stream.carry(source));
        ours.read_exact(&mut [0; 4096]).unwrap();
        drop(ours);
        assert_eq!(call.wait().unwrap().unwrap_err().kind(), ErrorKind::Interrupted);
        assert_eq!(carrier.join().unwrap().unwrap_err().kind(), ErrorKind::Interrupted);
        assert!(written.load(Ordering::Relaxed) > 0);
        // Also if nothing is written.
        let (quiet, source) = outlet();
        let (stream, ours) = self::stream();
        drop(ours);
        assert_eq!(stream.carry(source).unwrap_err().kind(), ErrorKind::Interrupted);
        let call = thread.call(move |rt| {
            let rt = rt.clone();
            async move { quiet.item(&rt, &1).await }
        });
        assert!(call.wait().unwrap().is_err());
    }

    #[test]
    fn an_engine_that_ends_ends_the_stream() {
        let thread = EngineThread::start(None).unwrap();
        let (call, source, _) = writer(&thread, usize::MAX);
        let (stream, mut ours) = stream();
        let carrier = std::thread::spawn(move || stream.carry(source));
        ours.read_exact(&mut [0; 4096]).unwrap();
        let reader = std::thread::spawn(move || std::io::copy(&mut ours, &mut std::io::sink()));
        thread.stop();
        carrier.join().unwrap().unwrap();
        reader.join().unwrap().unwrap();
        assert!(call.wait().is_err());
    }
}
