//! Files and disks as block devices.
//!
//! An operation becomes one [`Raw`] transfer over a list of the caller's own buffers. Where the
//! transfer is direct and a segment is unsuitable (its address or length is not aligned for the
//! medium), the whole operation goes through one aligned buffer instead. Short transfers go on
//! where they stopped.

use std::cell::Cell;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::rc::Rc;

use base::{Error, ErrorKind, Result};
use bdev::{BlockDev, Buf, Bytes, Completion, DevInfo, Done, Op};
use rt::Rt;

use crate::driver::{Owner, Raw, Request};
use crate::engine::{Handle, Inner};
use crate::open::{DirectAlign, OpenOpts, Opened, device_size, open, os_error};
use crate::truncation::{Found, Truncation};

/// How often an operation that the kernel puts off (`EAGAIN`, `EINTR`) is tried again.
const RETRIES: u32 = 1000;

/// A file or disk of this machine.
pub struct HostDev {
    engine: Handle,
    shared: Rc<DevShared>,
}

struct DevShared {
    opened: Opened,
    size: Cell<u64>,
    truncation: Truncation,
}

impl DevShared {
    /// The reason not to try an operation: the file was truncated.
    fn truncated(&self, op: &Op) -> Option<Found> {
        match op {
            Op::Write { offset, .. } if !self.opened.block_device && self.truncation.found().is_none() => {
                self.truncation.look_before_write(&self.opened.file, self.size.get(), *offset, op.len())
            }
            Op::Discard { .. } => {
                // A hole of our own making.
                self.truncation.resized();
                self.truncation.found()
            }
            _ => self.truncation.found(),
        }
    }
}

impl HostDev {
    /// Opens the file or disk at `path`. `rt` must belong to an [`crate::Engine`] of this thread.
    /// The open itself, with its lock, is done on the spot. "X is in use by another process"
    /// ([`ErrorKind::Busy`]) if it is locked.
    pub fn open(rt: &Rt, path: impl AsRef<Path>, opts: OpenOpts) -> Result<Rc<dyn BlockDev>> {
        Ok(HostDev::open_dev(rt, path, opts)?)
    }

    /// As [`HostDev::open`], but with the type, which offers more than `BlockDev`.
    pub fn open_dev(rt: &Rt, path: impl AsRef<Path>, opts: OpenOpts) -> Result<Rc<HostDev>> {
        let engine = Handle::need(rt)?;
        let opened = open(path.as_ref(), opts)?;
        let size = Cell::new(opened.info.size_bytes);
        Ok(Rc::new(HostDev { engine, shared: Rc::new(DevShared { opened, size, truncation: Truncation::default() }) }))
    }

    /// Whether transfers bypass the page cache.
    pub fn is_direct(&self) -> bool {
        self.shared.opened.direct.is_some()
    }

    /// Whether it is a disk (or part of one) rather than a file.
    pub fn is_block_device(&self) -> bool {
        self.shared.opened.block_device
    }
}

impl BlockDev for HostDev {
    fn info(&self) -> &DevInfo {
        &self.shared.opened.info
    }

    fn submit(&self, op: Op, done: Completion) {
        if let Err(e) = op.check(self.info(), self.size()) {
            self.engine.0.defer(Box::new(move || done(Err(e))));
            return;
        }
        let truncated = self.shared.truncated(&op);
        let op = Box::new(DevOp::new(self.shared.clone(), op, done));
        if let Some(why) = truncated {
            self.engine.0.defer(Box::new(move || op.fail(ErrorKind::Corrupt, why)));
            return;
        }
        let request = op.request();
        // SAFETY: the request points into buffers and the iovec list that `op` owns on the heap;
        // they neither move nor change until `complete`.
        unsafe { self.engine.0.start(request, op) };
    }

    fn size(&self) -> u64 {
        self.shared.size.get()
    }

    fn refresh_size(&self) -> Result<u64> {
        let o = &self.shared.opened;
        let bytes =
            device_size(&o.file, o.block_device).map_err(|e| os_error(&o.info.path, "its size is not known", &e))?;
        let bytes = bytes & !(u64::from(o.info.logical_sector) - 1);
        if self.shared.size.replace(bytes) != bytes {
            self.shared.truncation.resized();
        }
        Ok(self.size())
    }
}

enum Kind {
    /// With the aligned buffer in between, if there is one.
    Read(Vec<Buf>, Option<Buf>),
    /// The buffers are only kept. With a copy in between, the originals are gone already.
    Write(#[allow(dead_code)] Vec<Bytes>, #[allow(dead_code)] Option<Buf>),
    Flush,
    Discard,
}

struct DevOp {
    dev: Rc<DevShared>,
    kind: Kind,
    /// The rest of the transfer, from `first` on.
    iov: Vec<libc::iovec>,
    first: usize,
    /// Where the rest goes.
    offset: u64,
    /// Bytes of the rest.
    left: u64,
    /// Of the operation as submitted, for messages.
    whole: (u64, u64),
    /// Whether the transfer is direct.
    direct: bool,
    /// Of a write.
    durable: bool,
    retries: u32,
    done: Completion,
}

fn iovec(ptr: *const u8, len: usize) -> libc::iovec {
    libc::iovec { iov_base: ptr.cast_mut().cast(), iov_len: len }
}

fn suits(a: DirectAlign, ptr: *const u8, len: usize) -> bool {
    ptr.addr() & (a.memory as usize - 1) == 0 && len & (a.offset as usize - 1) == 0
}

impl DevOp {
    fn new(dev: Rc<DevShared>, op: Op, done: Completion) -> DevOp {
        let whole = (op.offset(), op.len());
        let whole_units = |a: DirectAlign| (whole.0 | whole.1) & (u64::from(a.offset) - 1) == 0;
        // Without a second descriptor the alignment is the sector's, which `check` has seen to.
        let direct = dev.opened.direct.filter(|a| dev.opened.buffered.is_none() || whole_units(*a));
        let mut iov = Vec::new();
        let mut durable = false;
        let kind = match op {
            Op::Read { mut bufs, .. } => {
                let fits = direct.is_none_or(|a| bufs.iter().all(|b| suits(a, b.as_ptr(), b.len())));
                if fits {
                    iov.extend(bufs.iter_mut().map(|b| iovec(b.as_raw_mut(), b.len())));
                    Kind::Read(bufs, None)
                } else {
                    let mut between = Buf::for_overwrite(whole.1 as usize);
                    iov.push(iovec(between.as_raw_mut(), between.len()));
                    Kind::Read(bufs, Some(between))
                }
            }
            Op::Write { bufs, durable: d, .. } => {
                durable = d;
                let fits = direct.is_none_or(|a| bufs.iter().all(|b| suits(a, b.as_ptr(), b.len())));
                if fits {
                    iov.extend(bufs.iter().map(|b| iovec(b.as_ptr(), b.len())));
                    Kind::Write(bufs, None)
                } else {
                    let mut between = Buf::for_overwrite(whole.1 as usize);
                    let mut at = 0;
                    for b in &bufs {
                        between[at..at + b.len()].copy_from_slice(b);
                        at += b.len();
                    }
                    iov.push(iovec(between.as_ptr(), between.len()));
                    drop(bufs);
                    Kind::Write(Vec::new(), Some(between))
                }
            }
            Op::Flush => Kind::Flush,
            Op::Discard { .. } => Kind::Discard,
        };
        let (offset, left) = whole;
        DevOp { dev, kind, iov, first: 0, offset, left, whole, direct: direct.is_some(), durable, retries: 0, done }
    }

    fn request(&self) -> Request {
        let o = &self.dev.opened;
        let file = match &o.buffered {
            Some(b) if !self.direct => b,
            _ => &o.file,
        };
        let (fd, offset) = (file.as_raw_fd(), self.offset);
        let rest = &self.iov[self.first..];
        let (iov, n) = (rest.as_ptr(), rest.len() as u32);
        let raw = match self.kind {
            Kind::Read(..) => Raw::Read { fd, iov, n, offset },
            Kind::Write(..) => Raw::Write { fd, iov, n, offset, durable: self.durable },
            Kind::Flush => Raw::DataSync { fd },
            Kind::Discard if o.block_device => Raw::BlockDiscard { fd, offset, len: self.left },
            Kind::Discard => Raw::PunchHole { fd, offset, len: self.left },
        };
        raw.now()
    }

    fn verb(&self) -> &'static str {
        match self.kind {
            Kind::Read(..) => "read",
            Kind::Write(..) => "write",
            Kind::Flush => "flush",
            Kind::Discard => "discard",
        }
    }

    fn fail(self, kind: ErrorKind, why: impl std::fmt::Display) {
        let (path, verb) = (&self.dev.opened.info.path, self.verb());
        let e = match self.kind {
            Kind::Flush => Error::new(kind, format!("{path}: {verb}: {why}")),
            _ => Error::new(kind, format!("{path}: {verb} of {} bytes at {}: {why}", self.whole.1, self.whole.0)),
        };
        (self.done)(Err(e));
    }

    /// Moves on by `n` transferred bytes.
    fn advance(&mut self, n: u64) {
        self.offset += n;
        self.left -= n;
        let mut n = n as usize;
        while n > 0 {
            let v = &mut self.iov[self.first];
            if n < v.iov_len {
                v.iov_base = v.iov_base.cast::<u8>().wrapping_add(n).cast();
                v.iov_len -= n;
                return;
            }
            n -= v.iov_len;
            self.first += 1;
        }
    }

    fn succeed(self) {
        let bufs = match self.kind {
            Kind::Read(mut bufs, between) => {
                if let Some(between) = between {
                    let mut at = 0;
                    for b in &mut bufs {
                        let len = b.len();
                        b.copy_from_slice(&between[at..at + len]);
                        at += len;
                    }
                }
                bufs
            }
            _ => Vec::new(),
        };
        (self.done)(Ok(Done { bufs }));
    }
}

impl Owner for DevOp {
    fn complete(mut self: Box<Self>, _: &Rc<Inner>, res: i32) -> Option<(Request, Box<dyn Owner>)> {
        if res < 0 {
            let errno = -res;
            if (errno == libc::EAGAIN || errno == libc::EINTR) && self.retries < RETRIES {
                self.retries += 1;
                return Some((self.request(), self));
            }
            let unsupported = matches!(self.kind, Kind::Discard) && errno == libc::EOPNOTSUPP;
            let kind = if unsupported { ErrorKind::Unsupported } else { ErrorKind::Io };
            self.fail(kind, std::io::Error::from_raw_os_error(errno));
            return None;
        }
        if matches!(self.kind, Kind::Read(..) | Kind::Write(..)) {
            let n = res as u64;
            if n == 0 {
                let dev = self.dev.clone();
                let found = match dev.opened.block_device {
                    true => None,
                    false => dev.truncation.look_after_short_read(&dev.opened.file, dev.size.get()),
                };
                match found {
                    Some(why) => self.fail(ErrorKind::Corrupt, why),
                    None => self.fail(ErrorKind::Io, "the medium ended early"),
                }
                return None;
            }
            assert!(n <= self.left, "a transfer is not longer than what was asked for");
            self.advance(n);
            if self.left > 0 {
                self.retries = 0;
                return Some((self.request(), self));
            }
        }
        self.succeed();
        None
    }
}
