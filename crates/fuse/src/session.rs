//! A session: reads requests, hands them to the handler, writes replies.
//!
//! Some tasks, the *workers*, take turns. One of them is the *leader*: it alone reads the device,
//! in one operation of the engine's ring, and at once begins to serve the request. Most requests
//! need no wait: the leader answers and reads the next one, all in its own poll, without a task or
//! an allocation per request. If the request must wait (for a disk, a transaction, a lock), the
//! leader first makes another worker the leader, and then waits as long as it takes. Having
//! answered it becomes leader if there is none, else waits to be made leader, or ends if enough
//! others wait.
//!
//! Invariants: there is one leader, unless as many workers as may exist all serve requests (then
//! the next one to be done leads) or the session is over. A reply is one system call, made at once.
//! A request is answered exactly once, except `FORGET`, `BATCH_FORGET`, which have no reply.
//!
//! A request is read into a buffer of 80 bytes (header and arguments of `WRITE`) and eight of 128
//! KiB: the data of a large aligned write lie where the engine keeps them. Read replies go out from
//! the engine's own buffers, too.
//!
//! A session without a request for a second or two becomes *cool*: its leader takes the read back
//! (if a request came first, it serves that), and waits for the device without buffers, so that
//! thousands of idle mounts cost little memory. The next request makes it warm again. So it is
//! right after the mount, too.
//!
//! This file has the workers, `request` the buffers and the read, `dispatch` the operations,
//! `reply` the replies.

mod dispatch;
mod ops;
mod reply;
mod request;
#[cfg(test)]
mod tests;

use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::io::{self, IoSlice};
use std::os::fd::AsFd;
use std::pin::pin;
use std::rc::{Rc, Weak};
use std::task::{Poll, Waker};

use base::Nanos;
use host::{Fd, FdIo, write_now};
use rt::Rt;
use rt::sync::oneshot::{Receiver, Sender, oneshot};

use crate::errno::Errno;
use crate::handler::Handler;
use crate::proto::{self, IN_HEADER, WRITE_ARGS, init};
use crate::snapdir::{node_in, object_of};
use crate::wire::Small;
use request::Request;

/// Most bytes of one write or read: the default limit of kernels (256 pages).
pub(crate) const IO_MAX: usize = 1 << 20;
/// Bytes of one data buffer: the usual record size.
const DATA_BUF: usize = 128 << 10;
/// Bytes of the data buffer of the first request: what kernels want at least
/// (`FUSE_MIN_READ_BUFFER`).
const FIRST_BUF: usize = 8 << 10;
/// Bytes before the data of a write.
const HEAD: usize = IN_HEADER + WRITE_ARGS;
/// Most workers, and so requests under way.
const WORKERS_MAX: usize = 256;
/// Workers that wait to be made leader; more of them end.
const IDLE_MAX: usize = 16;
/// Most slices of one reply (the kernel takes 1024); a reply of more is copied together.
const SLICES_MAX: usize = 512;
/// Successive transient failures of the device after which the session ends.
const READ_ERRORS_MAX: u32 = 16;
/// Time without a request after which a session gives its buffers back. At most twice as long.
const IDLE_AFTER: Nanos = Nanos::from_secs(1);
/// Requests of the background under way at most.
const MAX_BACKGROUND: u16 = 128;
/// Most bytes of output of a control operation or an extended attribute.
const SMALL_OUTPUT_MAX: u32 = 64 << 10;

/// The kernel abilities in use. Not `ATOMIC_O_TRUNC`: with it, Linux has us truncate before it
/// finds that the file is a running program, and must not be written to.
const WANTED: u64 = init::ASYNC_READ
    | init::EXPORT_SUPPORT
    | init::BIG_WRITES
    | init::DO_READDIRPLUS
    | init::READDIRPLUS_AUTO
    | init::ASYNC_DIO
    | init::PARALLEL_DIROPS
    | init::ABORT_ERROR
    | init::MAX_PAGES
    | init::CACHE_SYMLINKS
    | init::EXPLICIT_INVAL_DATA
    | init::HANDLE_KILLPRIV_V2
    | init::SETXATTR_EXT
    | init::INIT_EXT
    | init::DIRECT_IO_ALLOW_MMAP;

/// Counters of a session, from its beginning.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SessionStats {
    /// Requests read.
    pub requests: u64,
    /// Of them, those that had to wait before they could be answered.
    pub waited: u64,
    /// Requests that made no sense.
    pub refused: u64,
}

/// A handler's channel for notifications to the kernel.
#[derive(Clone, Default)]
pub struct Kernel {
    core: Weak<Core>,
    /// The upper bits of the kernel's node ids of live files, above the object numbers.
    slot: u64,
}

impl Kernel {
    /// The same for a file system that has this slot in the session's node ids.
    pub(crate) fn for_slot(&self, slot: u64) -> Kernel {
        Kernel { slot, ..self.clone() }
    }

    /// A node of a live file as the kernel has it.
    fn outer(&self, node: u64) -> u64 {
        node_in(self.slot, object_of(node))
    }

    /// Has the kernel drop a name of a directory and its cached nodes below it. Both as the kernel
    /// has them.
    pub(crate) async fn drop_name(&self, dir: u64, name: &[u8]) {
        let Some(core) = self.core.upgrade() else { return };
        core.drop_name(dir, name).await;
    }

    /// Has the kernel drop a node's cached attributes. Called before the reply to the request that
    /// changed them, so that the waiter for that reply sees the new ones.
    pub fn attrs_changed(&self, node: u64) {
        let Some(core) = self.core.upgrade() else { return };
        let mut message = Small::new();
        proto::put_attrs_stale(&mut message, self.outer(node));
        // The only errors mean that the kernel caches nothing of the node, or is gone.
        let _ = core.send(&[IoSlice::new(message.as_slice())]);
    }

    /// Has the kernel write back stores to mappings of these bytes of a node, and waits for that.
    /// Pages of them leave its cache. The caller must not hold up the answer to any other request
    /// meanwhile.
    pub async fn write_back(&self, node: u64, bytes: std::ops::Range<u64>) {
        let Some(core) = self.core.upgrade() else { return };
        core.drop_pages_in(self.outer(node), bytes.start, bytes.end - bytes.start).await;
    }

    /// Has the kernel write back and drop all that it has of these nodes, and waits for that.
    pub(crate) async fn drop_all(&self, nodes: &[u64]) {
        let Some(core) = self.core.upgrade() else { return };
        let message = |node: &u64| {
            let mut message = Vec::new();
            proto::put_drop_pages(&mut message, self.outer(*node), 0, 0);
            message
        };
        core.send_all(nodes.iter().map(message).collect()).await;
    }

    /// Has the kernel look these names of a directory up again before it uses them, and waits for
    /// that.
    pub(crate) async fn expire_names(&self, dir: u64, names: impl IntoIterator<Item = Vec<u8>>) {
        let Some(core) = self.core.upgrade() else { return };
        let message = |name: Vec<u8>| {
            let mut message = Vec::new();
            proto::put_expire_name(&mut message, self.outer(dir), &name);
            message
        };
        core.send_all(names.into_iter().map(message).collect()).await;
    }

    /// It can expire names.
    pub(crate) fn expires_names(&self) -> bool {
        self.core.upgrade().is_some_and(|core| core.minor.get() >= proto::MINOR_6_3 && !core.writeback)
    }

    /// The kernel is new enough to handle two things (both since Linux 6.2; the protocol's minor
    /// version changed with 6.3): it sends an empty `SETATTR` when set-id bits must go before
    /// `FALLOCATE`, and it takes the set-group-id bit from the mode of a new file whose maker may
    /// not set it.
    pub fn handles_set_ids(&self) -> bool {
        self.core.upgrade().is_some_and(|core| core.minor.get() >= proto::MINOR_6_3)
    }
}

/// The part of a session that does not depend on the handler.
pub(crate) struct Core {
    fd: RefCell<Option<Fd>>,
    /// Workers that wait to be made leader.
    idle: RefCell<Vec<Sender<()>>>,
    workers: Cell<usize>,
    /// Requests that go on without a worker.
    detached: Cell<usize>,
    has_leader: Cell<bool>,
    /// No more requests are to be read.
    stopping: Cell<bool>,
    /// Wakes the leader while it waits for a request.
    leader: RefCell<Option<Waker>>,
    /// The leader waits without buffers.
    is_cool: Cell<bool>,
    /// The leader is to give its buffers back.
    to_cool: Cell<bool>,
    /// A task looks whether requests come.
    is_watched: Cell<bool>,
    /// The device is gone.
    over: Cell<bool>,
    /// All workers have ended, too.
    ended: Cell<bool>,
    ended_waiters: RefCell<Vec<Sender<()>>>,
    initialized: Cell<bool>,
    /// Files and directories that the kernel has open.
    open: Cell<u64>,
    closed_waiters: RefCell<Vec<Sender<()>>>,
    setxattr_ext: Cell<bool>,
    /// Minor version of the protocol in use.
    minor: Cell<u32>,
    /// The kernel drops cached pages of a write past its cache (Linux 6.6, detected by its offer of
    /// shared mappings of such files).
    direct_is_coherent: Cell<bool>,
    writeback: bool,
    /// The kernel is asked to evaluate ACLs, and not to apply umasks.
    posix_acl: bool,
    stats: Cell<SessionStats>,
}

impl Core {
    pub(crate) fn is_over(&self) -> bool {
        self.over.get()
    }
    pub(crate) fn stats(&self) -> SessionStats {
        self.stats.get()
    }
    /// The device, while there is one.
    pub(crate) fn device(&self) -> Option<Fd> {
        self.fd.borrow().clone()
    }
    /// Waits until the session is over and every request was dealt with.
    pub(crate) async fn ended(&self) {
        if self.ended.get() {
            return;
        }
        let (tx, rx) = oneshot();
        self.ended_waiters.borrow_mut().push(tx);
        rx.await;
    }

    /// Waits until the kernel has nothing open, or the session is over.
    pub(crate) async fn closed(&self) {
        while self.open.get() > 0 && !self.over.get() {
            let (tx, rx) = oneshot();
            self.closed_waiters.borrow_mut().push(tx);
            rx.await;
        }
    }

    /// Whether the kernel has something open.
    pub(crate) fn has_open(&self) -> bool {
        self.open.get() > 0
    }

    fn count_open(&self, opened: bool) {
        self.open.set(if opened { self.open.get() + 1 } else { self.open.get().saturating_sub(1) });
        if self.open.get() == 0 {
            // Each that waits looks for itself.
            drop(self.closed_waiters.take());
        }
    }

    /// Reads no more requests: those under way are answered, then the device is closed, and with it
    /// the connection ends wherever it is mounted.
    pub(crate) fn stop_reading(&self) {
        self.stopping.set(true);
        self.wake_leader();
    }

    fn wake_leader(&self) {
        if let Some(waker) = self.leader.take() {
            waker.wake();
        }
    }

    /// No more requests come: workers that wait to lead end.
    fn set_over(&self) {
        self.over.set(true);
        self.has_leader.set(false);
        let idle = std::mem::take(&mut *self.idle.borrow_mut());
        drop(idle);
        drop(self.closed_waiters.take());
    }

    fn count(&self, f: impl FnOnce(&mut SessionStats)) {
        let mut s = self.stats.get();
        f(&mut s);
        self.stats.set(s);
    }

    /// Writes a reply. Errors mean that its waiter is gone, except for malformed replies.
    pub(crate) fn send(&self, parts: &[IoSlice<'_>]) -> io::Result<()> {
        let Some(fd) = self.fd.borrow().clone() else { return Ok(()) };
        match write_now(fd.as_fd(), parts) {
            Ok(_) => Ok(()),
            Err(e) => match e.raw_os_error() {
                // Interrupted; or the file system was unmounted or aborted.
                Some(libc::ENOENT | libc::ENODEV | libc::ECONNABORTED | libc::EPERM) => Ok(()),
                _ => Err(e),
            },
        }
    }

    fn send_error(&self, unique: u64, e: Errno) {
        let mut head = Small::new();
        proto::put_header(&mut head, unique, Some(e), 0);
        // Nothing is left to try when even this is refused.
        let _ = self.send(&[IoSlice::new(head.as_slice())]);
    }
}

/// A session with its handler.
pub(crate) struct Session<H> {
    core: Rc<Core>,
    rt: Rt,
    io: FdIo,
    handler: H,
    spare: RefCell<Option<Request>>,
    idle_after: Nanos,
}

impl<H: Handler> Session<H> {
    /// Begins to serve the device.
    pub(crate) fn start(rt: &Rt, fd: Fd, handler: H, writeback: bool, posix_acl: bool) -> base::Result<Rc<Core>> {
        Session::start_with(rt, fd, handler, writeback, posix_acl, IDLE_AFTER)
    }

    /// The same with another time until it is idle.
    fn start_with(
        rt: &Rt,
        fd: Fd,
        handler: H,
        writeback: bool,
        posix_acl: bool,
        idle_after: Nanos,
    ) -> base::Result<Rc<Core>> {
        let core = Rc::new(Core {
            fd: RefCell::new(Some(fd)),
            idle: RefCell::default(),
            workers: Cell::new(0),
            detached: Cell::new(0),
            has_leader: Cell::new(true),
            stopping: Cell::new(false),
            leader: RefCell::default(),
            is_cool: Cell::new(true),
            to_cool: Cell::new(false),
            is_watched: Cell::new(false),
            over: Cell::new(false),
            ended: Cell::new(false),
            ended_waiters: RefCell::default(),
            initialized: Cell::new(false),
            open: Cell::new(0),
            closed_waiters: RefCell::default(),
            setxattr_ext: Cell::new(false),
            minor: Cell::new(0),
            direct_is_coherent: Cell::new(false),
            writeback,
            posix_acl,
            stats: Cell::default(),
        });
        let io = FdIo::new(rt)?;
        let session =
            Session { core: core.clone(), rt: rt.clone(), io, handler, spare: RefCell::default(), idle_after };
        session.handler.begin(Kernel { core: Rc::downgrade(&core), slot: 0 });
        Rc::new(session).spawn_leader();
        Ok(core)
    }

    fn spawn_leader(self: Rc<Self>) {
        self.core.workers.set(self.core.workers.get() + 1);
        let rt = self.rt.clone();
        rt.spawn("fuse", async move {
            self.run_worker().await;
            self.core.workers.set(self.core.workers.get() - 1);
            self.end_if_last().await;
        });
    }

    /// Lets the leader have buffers, and takes them back when no requests come any more.
    fn warm_up(self: &Rc<Self>) {
        self.core.is_cool.set(false);
        self.core.to_cool.set(false);
        if self.core.is_watched.replace(true) {
            return;
        }
        let (session, rt, idle_after) = (Rc::downgrade(self), self.rt.clone(), self.idle_after);
        self.rt.spawn("fuse_cool", async move {
            let mut seen = None;
            loop {
                rt.sleep(idle_after).await;
                let Some(session) = session.upgrade() else { return };
                let core = &session.core;
                if core.is_over() || core.is_cool.get() {
                    core.is_watched.set(false);
                    return;
                }
                let requests = Some(core.stats().requests);
                if std::mem::replace(&mut seen, requests) == requests {
                    core.to_cool.set(true);
                    core.wake_leader();
                }
            }
        });
    }

    /// The last one ends the session when it is over.
    async fn end_if_last(&self) {
        let core = &self.core;
        if core.workers.get() == 0 && core.detached.get() == 0 && core.over.get() {
            self.handler.end().await;
            core.fd.replace(None);
            core.ended.set(true);
            for waiter in core.ended_waiters.take() {
                // The waiter may be gone.
                let _ = waiter.send(());
            }
        }
    }

    /// Goes on with a request that waits for the kernel, which may wait for the answer to another
    /// request: no worker is held for it. Their number is limited by the kernel's requests under
    /// way.
    fn detach(self: &Rc<Self>, name: &'static str, request: impl Future<Output = ()> + 'static) {
        self.core.detached.set(self.core.detached.get() + 1);
        let session = self.clone();
        self.rt.spawn(name, async move {
            request.await;
            session.core.detached.set(session.core.detached.get() - 1);
            session.end_if_last().await;
        });
    }

    /// The life of a worker; it begins as the leader.
    async fn run_worker(self: &Rc<Self>) {
        let core = &self.core;
        let mut request = self.spare.take().unwrap_or_default();
        loop {
            if !self.read(&mut request).await {
                core.set_over();
                return;
            }
            {
                let mut serving = pin!(self.serve(&mut request));
                let done = poll_fn(|cx| Poll::Ready(serving.as_mut().poll(cx).is_ready())).await;
                if done {
                    continue;
                }
                core.count(|s| s.waited += 1);
                self.promote_next();
                serving.await;
            }
            if core.over.get() {
                return;
            }
            if !core.has_leader.replace(true) {
                continue;
            }
            if core.idle.borrow().len() >= IDLE_MAX {
                return;
            }
            // The next leader takes over the buffers.
            self.spare.replace(Some(request));
            let (tx, rx): (Sender<()>, Receiver<()>) = oneshot();
            core.idle.borrow_mut().push(tx);
            if rx.await.is_none() {
                return;
            }
            request = self.spare.take().unwrap_or_default();
        }
    }

    /// Makes another worker the leader, if there may be one.
    fn promote_next(self: &Rc<Self>) {
        let core = &self.core;
        loop {
            let next = core.idle.borrow_mut().pop();
            match next {
                Some(tx) => {
                    if tx.send(()).is_ok() {
                        return;
                    }
                }
                None if core.workers.get() < WORKERS_MAX => return self.clone().spawn_leader(),
                None => return core.has_leader.set(false),
            }
        }
    }
}
