//! Reads of descriptors that become ready, by an engine, and calls that read or write at once:
//! FUSE, pipes, sockets.
//!
//! Writes to a socket are calls on the engine's thread ([`send_now`]), which the kernel answers by
//! a copy into the socket's buffer; when that is full the writer waits ([`FdIo::writable`]).
//!
//! Buffers are owned by the operation while it is in flight and come back with its result. Dropping
//! a future asks the kernel to end the operation and abandons its result: bytes already read are
//! lost.
//!
//! A read first waits for readiness and then reads, both in one submission, so that it works the
//! same for descriptors that block and for those that do not. `/dev/fuse` should be made
//! non-blocking ([`set_nonblocking`]): then the engine thread itself carries the read out as soon
//! as a request is there, without a thread of the kernel in between.

use std::cell::RefCell;
use std::future::Future;
use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use base::Result;
use bdev::{Buf, MAX_SEGMENTS};
use rt::Rt;
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::Errno;
use rustix::net::{SendAncillaryBuffer, SendFlags, Shutdown, sendmsg, shutdown};

use crate::driver::{Owner, Raw, Request, STREAM};
use crate::engine::{Handle, Inner};

/// A descriptor that operations in flight share with its owner.
pub type Fd = Rc<OwnedFd>;

/// Reads of descriptors through an engine.
#[derive(Clone)]
pub struct FdIo {
    engine: Handle,
}

/// The result of a read: the number of bytes, and the buffers passed in.
#[derive(Debug)]
pub struct ReadDone {
    /// Bytes read, over the buffers in their order; 0 at the end of a stream.
    pub result: io::Result<usize>,
    /// The first buffer.
    pub header: Buf,
    /// The others.
    pub payload: Vec<Buf>,
}

#[derive(Default)]
struct Memory {
    header: Buf,
    payload: Vec<Buf>,
}

struct State {
    result: Option<(i32, Memory)>,
    waker: Option<Waker>,
}

/// What an operation does.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Read,
    /// A read that the driver may try by system calls.
    HotRead,
    Writable,
    Readable,
}

struct FdOp {
    fd: Fd,
    iov: Vec<libc::iovec>,
    kind: Kind,
    memory: Memory,
    state: Rc<RefCell<State>>,
}

impl FdOp {
    fn request(&self) -> Request {
        match self.kind {
            Kind::Writable => return Raw::Writable { fd: self.fd.as_raw_fd() }.now(),
            Kind::Readable => return Raw::Readable { fd: self.fd.as_raw_fd() }.now(),
            Kind::Read | Kind::HotRead => {}
        }
        let (iov, n) = (self.iov.as_ptr(), self.iov.len() as u32);
        let raw = Raw::Read { fd: self.fd.as_raw_fd(), iov, n, offset: STREAM };
        Request { raw, poll_first: Some(libc::POLLIN), hot: self.kind == Kind::HotRead }
    }
}

impl Owner for FdOp {
    fn complete(mut self: Box<Self>, _: &Rc<Inner>, res: i32) -> Option<(Request, Box<dyn Owner>)> {
        // The future is gone, so the result is not needed.
        let alone = Rc::strong_count(&self.state) == 1;
        if !alone && (res == -libc::EAGAIN || res == -libc::EINTR) {
            return Some((self.request(), self));
        }
        let memory = std::mem::take(&mut self.memory);
        let waker = {
            let mut s = self.state.borrow_mut();
            s.result = Some((res, memory));
            s.waker.take()
        };
        if let Some(w) = waker {
            w.wake();
        }
        None
    }
}

/// A read in flight, or a wait: a future of its result.
pub struct FdFuture {
    engine: Handle,
    token: u64,
    state: Rc<RefCell<State>>,
    over: bool,
}

impl FdFuture {
    /// Asks the kernel to end the operation. Its result comes all the same: `ECANCELED`, or, if
    /// bytes came first, what was read, and then nothing is lost.
    pub fn cancel(&self) {
        if !self.over && self.state.borrow().result.is_none() {
            self.engine.0.cancel(self.token);
        }
    }
}

impl Future for FdFuture {
    type Output = ReadDone;
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<ReadDone> {
        let result = {
            let mut s = self.state.borrow_mut();
            let result = s.result.take();
            if result.is_none() {
                s.waker = Some(cx.waker().clone());
            }
            result
        };
        let Some((res, Memory { header, payload })) = result else { return Poll::Pending };
        self.over = true;
        let result = usize::try_from(res).map_err(|_| io::Error::from_raw_os_error(-res));
        Poll::Ready(ReadDone { result, header, payload })
    }
}

impl Drop for FdFuture {
    fn drop(&mut self) {
        if self.over || self.state.borrow_mut().result.take().is_some() {
            return;
        }
        // The operation keeps its own handle on an empty state.
        self.state = Rc::new(RefCell::new(State { result: None, waker: None }));
        self.engine.0.cancel(self.token);
    }
}

impl FdIo {
    /// Reads through the engine that `rt` belongs to.
    pub fn new(rt: &Rt) -> Result<FdIo> {
        Ok(FdIo { engine: Handle::need(rt)? })
    }

    /// `skip`: so many bytes at the front of the memory stay as they are.
    fn start(&self, fd: &Fd, mut memory: Memory, mut skip: usize, kind: Kind) -> FdFuture {
        let mut iov = Vec::new();
        let Memory { header, payload } = &mut memory;
        for buf in std::iter::once(header).chain(payload.iter_mut()) {
            let kept = skip.min(buf.len());
            skip -= kept;
            if kept < buf.len() {
                iov.push(part(buf.as_raw_mut().wrapping_add(kept), buf.len() - kept));
            }
        }
        assert!(iov.len() <= MAX_SEGMENTS, "more segments than an operation takes");
        let state = Rc::new(RefCell::new(State { result: None, waker: None }));
        let op = Box::new(FdOp { fd: fd.clone(), iov, kind, memory, state: state.clone() });
        let request = op.request();
        // SAFETY: the request points into buffers and a list that `op` owns on the heap until
        // `complete`.
        let token = unsafe { self.engine.0.start(request, op) };
        FdFuture { engine: self.engine.clone(), token, state, over: false }
    }

    /// Reads once, as much as there is, into `header` and then into `payload`: for FUSE, so that
    /// the data of a write is read into its final place. At most [`MAX_SEGMENTS`] buffers.
    pub async fn readv_fd(&self, fd: &Fd, header: Buf, payload: Vec<Buf>) -> ReadDone {
        self.start(fd, Memory { header, payload }, 0, Kind::Read).await
    }

    /// As [`FdIo::readv_fd`] for a descriptor that does not block ([`set_nonblocking`]) and from
    /// which more is likely to come at once: as long as the engine looks for completions it tries
    /// the read itself, which saves the kernel the detour over a wake-up of the ring.
    pub fn readv_hot(&self, fd: &Fd, header: Buf, payload: Vec<Buf>) -> FdFuture {
        self.start(fd, Memory { header, payload }, 0, Kind::HotRead)
    }

    /// As [`FdIo::readv_hot`], behind the first `skip` bytes of the buffers, which earlier reads
    /// filled. There must be room behind them.
    pub async fn read_behind(&self, fd: &Fd, payload: Vec<Buf>, skip: usize) -> ReadDone {
        self.start(fd, Memory { header: Buf::default(), payload }, skip, Kind::HotRead).await
    }

    /// Waits until there is something to read, or the end: a reader that may wait long needs no
    /// memory meanwhile.
    pub async fn readable(&self, fd: &Fd) -> io::Result<()> {
        self.start(fd, Memory::default(), 0, Kind::Readable).await.result.map(drop)
    }

    /// Waits until the descriptor takes bytes, or its other end is closed.
    pub async fn writable(&self, fd: &Fd) -> io::Result<()> {
        self.start(fd, Memory::default(), 0, Kind::Writable).await.result.map(drop)
    }
}

fn part(ptr: *mut u8, len: usize) -> libc::iovec {
    libc::iovec { iov_base: ptr.cast(), iov_len: len }
}

/// Writes at once by a system call; never through the ring. On a non-blocking descriptor it does
/// not wait.
pub fn write_now(fd: BorrowedFd<'_>, data: &[IoSlice<'_>]) -> io::Result<usize> {
    loop {
        match rustix::io::writev(fd, data) {
            Err(Errno::INTR) => {}
            r => return Ok(r?),
        }
    }
}

/// Sends to a socket at once by a system call, as much as its buffer takes; never waits, whatever
/// the flags of the descriptor, and raises no signal.
///
/// # Errors
/// `WouldBlock` if the buffer is full, `BrokenPipe` if the other end is closed.
pub fn send_now(fd: BorrowedFd<'_>, data: &[IoSlice<'_>]) -> io::Result<usize> {
    loop {
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        match sendmsg(fd, data, &mut SendAncillaryBuffer::default(), flags) {
            Err(Errno::INTR) => {}
            r => return Ok(r?),
        }
    }
}

/// Ends a connection from this side, both ways: reads under way find its end.
pub fn end_connection(fd: &Fd) {
    // The only error that a socket gives means that it has ended already.
    let _ = shutdown(fd.as_fd(), Shutdown::Both);
}

/// Reads at once by a system call; `WouldBlock` if nothing is there on a non-blocking descriptor.
pub fn read_now(fd: BorrowedFd<'_>, bufs: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
    loop {
        match rustix::io::readv(fd, bufs) {
            Err(Errno::INTR) => {}
            r => return Ok(r?),
        }
    }
}

/// Makes a descriptor fail with `WouldBlock` where it would wait.
pub fn set_nonblocking(fd: BorrowedFd<'_>, on: bool) -> io::Result<()> {
    let mut flags = fcntl_getfl(fd)?;
    flags.set(OFlags::NONBLOCK, on);
    Ok(fcntl_setfl(fd, flags)?)
}
