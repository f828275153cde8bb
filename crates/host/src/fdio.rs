//! Reads and writes of descriptors that become ready: FUSE, pipes, sockets.
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
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use base::Result;
use bdev::{Buf, Bytes, MAX_SEGMENTS};
use rt::Rt;

use crate::driver::{Owner, Raw, Request, STREAM};
use crate::engine::{Handle, Inner};

/// A descriptor that operations in flight share with its owner.
pub type Fd = Rc<OwnedFd>;

/// Operations on descriptors through an engine.
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
    #[allow(dead_code)] // only kept
    data: Vec<Bytes>,
}

struct State {
    result: Option<(i32, Memory)>,
    waker: Option<Waker>,
}

struct FdOp {
    fd: Fd,
    iov: Vec<libc::iovec>,
    what: What,
    memory: Memory,
    state: Rc<RefCell<State>>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum What {
    Read,
    /// A read of a descriptor that does not block.
    HotRead,
    Write,
    Accept,
    Poll(i16),
}

impl FdOp {
    fn request(&self, wait_first: bool) -> Request {
        let fd = self.fd.as_raw_fd();
        let (iov, n) = (self.iov.as_ptr(), self.iov.len() as u32);
        let raw = match self.what {
            What::Read | What::HotRead => Raw::Read { fd, iov, n, offset: STREAM },
            What::Write => Raw::Write { fd, iov, n, offset: STREAM, durable: false },
            What::Accept => Raw::Accept { fd },
            What::Poll(events) => Raw::Poll { fd, events },
        };
        let poll_first = match self.what {
            What::Read | What::HotRead | What::Accept => Some(libc::POLLIN),
            What::Write if wait_first => Some(libc::POLLOUT),
            What::Write | What::Poll(_) => None,
        };
        Request { raw, poll_first, hot: self.what == What::HotRead }
    }
}

impl Owner for FdOp {
    fn complete(mut self: Box<Self>, _: &Rc<Inner>, res: i32) -> Option<(Request, Box<dyn Owner>)> {
        // The future is gone, so the result is not needed.
        let alone = Rc::strong_count(&self.state) == 1;
        if !alone && (res == -libc::EAGAIN || res == -libc::EINTR) {
            return Some((self.request(true), self));
        }
        if alone && self.what == What::Accept && res >= 0 {
            // SAFETY: a descriptor that the kernel has just made for this operation.
            drop(unsafe { OwnedFd::from_raw_fd(res) });
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

/// One operation in flight.
struct FdFuture {
    engine: Handle,
    token: u64,
    state: Rc<RefCell<State>>,
    over: bool,
    what: What,
}

impl Future for FdFuture {
    type Output = (io::Result<usize>, Memory);
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let result = {
            let mut s = self.state.borrow_mut();
            let result = s.result.take();
            if result.is_none() {
                s.waker = Some(cx.waker().clone());
            }
            result
        };
        let Some((res, memory)) = result else { return Poll::Pending };
        self.over = true;
        let result = match usize::try_from(res) {
            Ok(n) => Ok(n),
            Err(_) => Err(io::Error::from_raw_os_error(-res)),
        };
        Poll::Ready((result, memory))
    }
}

impl Drop for FdFuture {
    fn drop(&mut self) {
        if self.over {
            return;
        }
        let finished = self.state.borrow_mut().result.take();
        match finished {
            Some((fd, _)) if self.what == What::Accept && fd >= 0 => {
                // SAFETY: a descriptor that the kernel made for this operation and that has no
                // other owner.
                drop(unsafe { OwnedFd::from_raw_fd(fd) });
            }
            Some(_) => {}
            None => {
                // The operation keeps its own handle on an empty state.
                let token = self.token;
                self.state = Rc::new(RefCell::new(State { result: None, waker: None }));
                self.engine.0.cancel(token);
            }
        }
    }
}

impl FdIo {
    /// Operations through the engine that `rt` belongs to.
    pub fn new(rt: &Rt) -> Result<FdIo> {
        Ok(FdIo { engine: Handle::need(rt)? })
    }

    fn start(&self, fd: &Fd, what: What, mut memory: Memory) -> FdFuture {
        let mut iov = Vec::new();
        match what {
            What::Read | What::HotRead => {
                if !memory.header.is_empty() {
                    iov.push(part(memory.header.as_raw_mut(), memory.header.len()));
                }
                iov.extend(memory.payload.iter_mut().map(|b| part(b.as_raw_mut(), b.len())));
            }
            What::Write => iov.extend(memory.data.iter().map(|b| part(b.as_ptr().cast_mut(), b.len()))),
            What::Accept | What::Poll(_) => {}
        }
        assert!(iov.len() <= MAX_SEGMENTS, "more segments than an operation takes");
        let state = Rc::new(RefCell::new(State { result: None, waker: None }));
        let op = Box::new(FdOp { fd: fd.clone(), iov, what, memory, state: state.clone() });
        let request = op.request(false);
        // SAFETY: the request points into buffers and a list that `op` owns on the heap until
        // `complete`.
        let token = unsafe { self.engine.0.start(request, op) };
        FdFuture { engine: self.engine.clone(), token, state, over: false, what }
    }

    /// Reads once, as much as there is, into `header` and then into `payload`: for FUSE, so that
    /// the data of a write is read into its final place. At most [`MAX_SEGMENTS`] buffers.
    pub async fn readv_fd(&self, fd: &Fd, header: Buf, payload: Vec<Buf>) -> ReadDone {
        let (result, m) = self.start(fd, What::Read, Memory { header, payload, ..Memory::default() }).await;
        ReadDone { result, header: m.header, payload: m.payload }
    }

    /// As [`FdIo::readv_fd`] for a descriptor that does not block ([`set_nonblocking`]) and from
    /// which more is likely to come at once: as long as the engine looks for completions it tries
    /// the read itself, which saves the kernel the detour over a wake-up of the ring.
    pub async fn readv_hot(&self, fd: &Fd, header: Buf, payload: Vec<Buf>) -> ReadDone {
        let (result, m) = self.start(fd, What::HotRead, Memory { header, payload, ..Memory::default() }).await;
        ReadDone { result, header: m.header, payload: m.payload }
    }

    /// Writes once; the count may be less than all.
    pub async fn writev_fd(&self, fd: &Fd, data: Vec<Bytes>) -> io::Result<usize> {
        self.start(fd, What::Write, Memory { data, ..Memory::default() }).await.0
    }

    /// Waits until a read would not block, or the other end is gone.
    pub async fn readable(&self, fd: &Fd) -> io::Result<()> {
        self.start(fd, What::Poll(libc::POLLIN), Memory::default()).await.0.map(drop)
    }

    /// Waits until a write would not block, or the other end is gone.
    pub async fn writable(&self, fd: &Fd) -> io::Result<()> {
        self.start(fd, What::Poll(libc::POLLOUT), Memory::default()).await.0.map(drop)
    }

    /// Takes a connection from a listening socket.
    pub(crate) async fn accept(&self, fd: &Fd) -> io::Result<OwnedFd> {
        let raw = self.start(fd, What::Accept, Memory::default()).await.0?;
        // SAFETY: a descriptor that the kernel has just made for us.
        Ok(unsafe { OwnedFd::from_raw_fd(raw as i32) })
    }
}

fn part(ptr: *mut u8, len: usize) -> libc::iovec {
    libc::iovec { iov_base: ptr.cast(), iov_len: len }
}

fn count(n: isize) -> io::Result<usize> {
    usize::try_from(n).map_err(|_| io::Error::last_os_error())
}

/// Writes at once by a system call; never through the ring. On a non-blocking descriptor it does
/// not wait.
pub fn write_now(fd: BorrowedFd<'_>, data: &[IoSlice<'_>]) -> io::Result<usize> {
    let n = i32::try_from(data.len()).map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))?;
    loop {
        // SAFETY: an `IoSlice` has the layout of an iovec, and the slices live across the call.
        match count(unsafe { libc::writev(fd.as_raw_fd(), data.as_ptr().cast(), n) }) {
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            r => return r,
        }
    }
}

/// Reads at once by a system call; `WouldBlock` if nothing is there on a non-blocking descriptor.
pub fn read_now(fd: BorrowedFd<'_>, bufs: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
    let n = i32::try_from(bufs.len()).map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))?;
    loop {
        // SAFETY: an `IoSliceMut` has the layout of an iovec, and the slices live across the call.
        match count(unsafe { libc::readv(fd.as_raw_fd(), bufs.as_ptr().cast(), n) }) {
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            r => return r,
        }
    }
}

/// Makes a descriptor fail with `WouldBlock` where it would wait.
pub fn set_nonblocking(fd: BorrowedFd<'_>, on: bool) -> io::Result<()> {
    // SAFETY: plain fcntl calls on a borrowed descriptor.
    unsafe {
        let flags = libc::fcntl(fd.as_raw_fd(), libc::F_GETFL);
        if flags < 0 {
            return Err(io::Error::last_os_error());
        }
        let flags = if on { flags | libc::O_NONBLOCK } else { flags & !libc::O_NONBLOCK };
        if libc::fcntl(fd.as_raw_fd(), libc::F_SETFL, flags) < 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}
