//! Operations on descriptors, as the engine gives them to a driver.
//!
//! A [`Raw`] operation names memory by pointer; its [`Owner`] keeps that memory (and the
//! descriptor) alive in the engine's table until the operation is over, even if its waiters are
//! dropped. A [`Driver`] carries operations out and is the one place where the engine thread waits:
//! [`crate::ring`] or, without io_uring, [`crate::poller`].

use std::os::fd::RawFd;
use std::rc::Rc;
use std::time::Duration;

use crate::awake::KeepAwake;
use crate::engine::Inner;

/// Bit of a token that marks the poll which precedes an operation.
pub(crate) const POLL_BIT: u64 = 1 << 63;
/// Token of completions without a waiter.
pub(crate) const NOBODY: u64 = u64::MAX;
/// Token of the bell.
pub(crate) const BELL: u64 = u64::MAX - 1;

/// Offset that means "a stream: no offset".
pub(crate) const STREAM: u64 = u64::MAX;

/// One system operation. Results are counts or negative errnos.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Raw {
    Read {
        fd: RawFd,
        iov: *const libc::iovec,
        n: u32,
        offset: u64,
    },
    /// `durable`: its bytes are on the medium when it is over.
    Write {
        fd: RawFd,
        iov: *const libc::iovec,
        n: u32,
        offset: u64,
        durable: bool,
    },
    DataSync {
        fd: RawFd,
    },
    PunchHole {
        fd: RawFd,
        offset: u64,
        len: u64,
    },
    BlockDiscard {
        fd: RawFd,
        offset: u64,
        len: u64,
    },
    /// Nothing but the wait until a stream takes bytes, or never will.
    Writable {
        fd: RawFd,
    },
    /// Nothing but the wait until a stream has bytes, or never will.
    Readable {
        fd: RawFd,
    },
}

/// An operation and the readiness to wait for first, if any.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Request {
    pub(crate) raw: Raw,
    pub(crate) poll_first: Option<i16>,
    /// The descriptor does not block and is likely to be ready soon: the driver may try the
    /// operation by system calls while it looks.
    pub(crate) hot: bool,
}

impl Raw {
    pub(crate) fn now(self) -> Request {
        Request { raw: self, poll_first: None, hot: false }
    }

    /// The descriptor, if it is one that becomes ready (not a file or disk), and what to poll for.
    pub(crate) fn stream_fd(&self) -> Option<(RawFd, i16)> {
        match *self {
            Raw::Read { fd, offset: STREAM, .. } => Some((fd, libc::POLLIN)),
            Raw::Writable { fd } => Some((fd, libc::POLLOUT)),
            Raw::Readable { fd } => Some((fd, libc::POLLIN)),
            _ => None,
        }
    }

    /// Carries it out by a system call on this thread, which may block.
    ///
    /// # Safety
    /// The memory that it names is valid for the operation, for writes in the case of a read.
    pub(crate) unsafe fn call(self) -> i32 {
        // SAFETY: the caller vouches for the memory; descriptors are checked by the kernel.
        let r = unsafe {
            match self {
                Raw::Read { fd, iov, n, offset: STREAM } => libc::readv(fd, iov, n as i32),
                Raw::Read { fd, iov, n, offset } => libc::preadv(fd, iov, n as i32, offset as i64),
                Raw::Write { fd, iov, n, offset, durable: false } => libc::pwritev(fd, iov, n as i32, offset as i64),
                Raw::Write { fd, iov, n, offset, durable: true } => {
                    libc::pwritev2(fd, iov, n as i32, offset as i64, libc::RWF_DSYNC)
                }
                Raw::DataSync { fd } => libc::fdatasync(fd) as isize,
                Raw::PunchHole { fd, offset, len } => {
                    libc::fallocate(fd, PUNCH_HOLE, offset as i64, len as i64) as isize
                }
                Raw::BlockDiscard { fd, offset, len } => {
                    let range = [offset, len];
                    libc::ioctl(fd, BLKDISCARD, range.as_ptr()) as isize
                }
                // The wait is the driver's.
                Raw::Writable { .. } | Raw::Readable { .. } => 0,
            }
        };
        if r < 0 {
            return -std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO);
        }
        i32::try_from(r).unwrap_or(i32::MAX)
    }
}

/// `fallocate` mode that frees a range and leaves the length.
pub(crate) const PUNCH_HOLE: i32 = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
/// `BLKDISCARD` of `linux/fs.h`: `_IO(0x12, 119)`.
const BLKDISCARD: libc::Ioctl = 0x1277;

/// The owner of an operation's memory, which gets its result.
pub(crate) trait Owner {
    /// The operation is over with `res`. Gives back itself and another operation to go on with (a
    /// short transfer), or nothing when done. Runs without any borrow of the engine held.
    fn complete(self: Box<Self>, engine: &Rc<Inner>, res: i32) -> Option<(Request, Box<dyn Owner>)>;
}

/// Carries operations out. Methods never call back into the engine.
pub(crate) trait Driver {
    /// Takes an operation; it may not start before the next [`Driver::turn`].
    ///
    /// # Safety
    /// The memory that it names stays valid until its completion was reported.
    unsafe fn submit(&mut self, token: u64, req: Request);
    /// Starts submitted operations before the next [`Driver::turn`], if the driver can.
    fn start(&mut self) {}
    /// Asks for the end of an operation. It completes all the same, perhaps with `-ECANCELED`.
    fn cancel(&mut self, token: u64);
    /// Starts submitted operations and reports completed ones into `done`; waits for a completion
    /// as `wait` says.
    fn turn(&mut self, wait: Wait, done: &mut Vec<(u64, i32)>);
    /// Asks for the end of all operations.
    fn cancel_all(&mut self);
    /// The driver's name in reports.
    fn name(&self) -> &'static str;
    /// System calls made by [`Driver::turn`] so far.
    fn enters(&self) -> u64;
    /// How long it kept the thread busy so far with nothing but looking for completions.
    fn looked(&self) -> Duration {
        Duration::ZERO
    }
    /// Whether idle cores may be kept awake from now on; drivers that never do ignore it.
    fn set_keep_awake(&mut self, _mode: KeepAwake) {}
}

/// Whether a turn may wait.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Wait {
    No,
    For(Duration),
    Forever,
}
