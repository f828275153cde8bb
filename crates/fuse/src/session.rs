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

use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::io::{self, IoSlice};
use std::os::fd::AsFd;
use std::pin::pin;
use std::rc::{Rc, Weak};
use std::task::{Poll, Waker};

use bdev::{Buf, Bytes};
use host::{Fd, FdIo, write_now};
use rt::Rt;
use rt::sync::oneshot::{Receiver, Sender, oneshot};

use crate::dir::DirOut;
use crate::errno::{DENIED, Errno, INVALID, IO, NO_SYS, RANGE};
use crate::handler::{Caller, Entry, Handler, Opened, WriteHow};
use crate::proto::{
    self, FOPEN_DIRECT_IO, FS_IOC_FSSETXATTR, FS_IOC_SETFLAGS, IN_HEADER, InHeader, Init, InitReply, OUT_HEADER, Op,
    WRITE_ARGS, init, opcode,
};
use crate::snapdir::{node_in, object_of};
use crate::wire::{Put, Small};

/// Most bytes of one write or read: the default limit of kernels (256 pages).
pub(crate) const IO_MAX: usize = 1 << 20;
/// Bytes of one data buffer: the usual record size.
const DATA_BUF: usize = 128 << 10;
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
    fn send(&self, parts: &[IoSlice<'_>]) -> io::Result<()> {
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

    fn reply(&self, unique: u64, reply: Reply) {
        let mut head = Small::new();
        let sent = match reply {
            Reply::Nothing => return,
            Reply::Empty => {
                proto::put_header(&mut head, unique, None, 0);
                self.send(&[IoSlice::new(head.as_slice())])
            }
            Reply::Small(body) => {
                let body = body.as_slice();
                proto::put_header(&mut head, unique, None, body.len());
                head.raw(body);
                self.send(&[IoSlice::new(head.as_slice())])
            }
            Reply::Bytes(body) => {
                proto::put_header(&mut head, unique, None, body.len());
                self.send(&[IoSlice::new(head.as_slice()), IoSlice::new(&body)])
            }
            Reply::Listing(mut whole) => {
                proto::put_header(&mut head, unique, None, whole.len() - OUT_HEADER);
                whole[..OUT_HEADER].copy_from_slice(head.as_slice());
                self.send(&[IoSlice::new(&whole)])
            }
            Reply::Data(parts) => {
                proto::put_header(&mut head, unique, None, parts.iter().map(|p| p.len()).sum());
                if parts.len() < SLICES_MAX {
                    let mut slices = Vec::with_capacity(parts.len() + 1);
                    slices.push(IoSlice::new(head.as_slice()));
                    slices.extend(parts.iter().map(|p| IoSlice::new(p)));
                    self.send(&slices)
                } else {
                    let mut whole = Vec::with_capacity(parts.iter().map(|p| p.len()).sum());
                    parts.iter().for_each(|p| whole.raw(p));
                    self.send(&[IoSlice::new(head.as_slice()), IoSlice::new(&whole)])
                }
            }
        };
        if sent.is_err() {
            self.send_error(unique, IO);
        }
    }
}

/// Bodies of replies.
#[expect(clippy::large_enum_variant, reason = "short lived, and a small body needs no allocation")]
enum Reply {
    /// There is no reply at all.
    Nothing,
    /// A header alone.
    Empty,
    Small(Small),
    Bytes(Vec<u8>),
    /// With room for the header in front.
    Listing(Vec<u8>),
    Data(Vec<Bytes>),
}

impl Reply {
    fn small(put: impl FnOnce(&mut Small)) -> Reply {
        let mut s = Small::new();
        put(&mut s);
        Reply::Small(s)
    }
    fn entry(e: &Entry) -> Reply {
        Reply::small(|s| proto::put_entry(s, e))
    }
}

/// The buffers that a request is read into.
struct Request {
    head: Buf,
    data: Vec<Buf>,
    len: usize,
}

impl Request {
    fn new() -> Request {
        Request { head: Buf::zeroed(HEAD), data: Vec::new(), len: 0 }
    }

    /// The arguments behind the header, copied together where they lie in two buffers.
    fn args<'a>(&'a self, h: &InHeader, copy: &'a mut Vec<u8>) -> Result<&'a [u8], Errno> {
        let end = self.len.checked_sub(h.ext).filter(|end| *end >= IN_HEADER).ok_or(INVALID)?;
        if end <= HEAD || h.opcode == opcode::WRITE {
            return Ok(&self.head[IN_HEADER..end.min(HEAD)]);
        }
        copy.reserve_exact(end - IN_HEADER);
        copy.extend_from_slice(&self.head[IN_HEADER..]);
        for part in &self.data {
            let n = part.len().min(end - IN_HEADER - copy.len());
            copy.extend_from_slice(&part[..n]);
        }
        Ok(copy)
    }
}

/// Takes the first `size` bytes of the data out. A buffer that is at least half full goes as it is
/// and leaves an empty one; the data of any other is copied, so that few bytes do not hold much
/// memory.
fn take_data(bufs: &mut [Buf], size: usize) -> Vec<Bytes> {
    let mut left = size;
    let mut out = Vec::with_capacity(size.div_ceil(DATA_BUF));
    for buf in bufs {
        let n = left.min(buf.len());
        if n == 0 {
            break;
        }
        if n * 2 >= DATA_BUF {
            let mut full = std::mem::take(buf);
            full.truncate(n);
            out.push(full.freeze());
        } else {
            out.push(Bytes::copy_from(&buf[..n]));
        }
        left -= n;
    }
    out
}

/// A session with its handler.
pub(crate) struct Session<H> {
    core: Rc<Core>,
    rt: Rt,
    io: FdIo,
    handler: H,
    spare: RefCell<Option<Request>>,
}

impl<H: Handler> Session<H> {
    /// Begins to serve the device.
    pub(crate) fn start(rt: &Rt, fd: Fd, handler: H, writeback: bool, posix_acl: bool) -> base::Result<Rc<Core>> {
        let core = Rc::new(Core {
            fd: RefCell::new(Some(fd)),
            idle: RefCell::default(),
            workers: Cell::new(0),
            detached: Cell::new(0),
            has_leader: Cell::new(true),
            stopping: Cell::new(false),
            leader: RefCell::default(),
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
        let session = Session { core: core.clone(), rt: rt.clone(), io, handler, spare: RefCell::default() };
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
        let mut request = self.spare.take().unwrap_or_else(Request::new);
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
            request = self.spare.take().unwrap_or_else(Request::new);
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

    /// Reads a request. False: there will be no more.
    async fn read(&self, request: &mut Request) -> bool {
        let Some(fd) = self.core.fd.borrow().clone() else { return false };
        let mut errors = 0;
        loop {
            // Buffers that went with a write are replaced.
            request.data.resize_with(IO_MAX / DATA_BUF, Buf::default);
            for buf in request.data.iter_mut().filter(|b| b.len() != DATA_BUF) {
                *buf = Buf::for_overwrite(DATA_BUF);
            }
            let head = std::mem::take(&mut request.head);
            let data = std::mem::take(&mut request.data);
            let mut reading = pin!(self.io.readv_hot(&fd, head, data));
            let done = poll_fn(|cx| {
                if self.core.stopping.get() {
                    return Poll::Ready(None);
                }
                let done = reading.as_mut().poll(cx).map(Some);
                if done.is_pending() {
                    self.core.leader.replace(Some(cx.waker().clone()));
                }
                done
            });
            let Some(done) = done.await else { return false };
            (request.head, request.data) = (done.header, done.payload);
            match done.result {
                Ok(n) if n >= IN_HEADER => {
                    request.len = n;
                    return true;
                }
                Ok(_) => errors += 1,
                Err(e) => match e.raw_os_error() {
                    // The request went away before it was read.
                    Some(libc::ENOENT | libc::EINTR | libc::EAGAIN) => {}
                    // Unmounted, or aborted.
                    Some(libc::ENODEV | libc::ECONNABORTED) => return false,
                    _ => errors += 1,
                },
            }
            if errors > READ_ERRORS_MAX || request.head.len() != HEAD {
                return false;
            }
        }
    }

    /// Serves one request, reply included.
    async fn serve(self: &Rc<Self>, request: &mut Request) {
        let core = &self.core;
        core.count(|s| s.requests += 1);
        let Ok(h) = InHeader::parse(&request.head) else { return };
        let no_reply = matches!(h.opcode, opcode::FORGET | opcode::BATCH_FORGET);
        let result = self.answer(request, &h).await;
        match result {
            Ok(reply) => core.reply(h.unique, reply),
            Err(_) if no_reply => {}
            Err(e) => core.send_error(h.unique, e),
        }
    }

    async fn answer(self: &Rc<Self>, request: &mut Request, h: &InHeader) -> Result<Reply, Errno> {
        let mut copy = Vec::new();
        if h.len as usize != request.len {
            self.core.count(|s| s.refused += 1);
            return Err(INVALID);
        }
        if h.opcode == opcode::WRITE {
            // Parsed first: taking the data needs the buffers that the arguments lie beside.
            let op = request.args(h, &mut copy).and_then(|args| Op::parse(h.opcode, args, true));
            let size_here = request.len.checked_sub(HEAD + h.ext);
            let Ok(Op::Write { fh, offset, size, kill_suidgid, from_cache, sync, direct }) = op else {
                self.core.count(|s| s.refused += 1);
                return Err(INVALID);
            };
            if size_here != Some(size as usize) || !self.core.initialized.get() {
                self.core.count(|s| s.refused += 1);
                return Err(INVALID);
            }
            let data = take_data(&mut request.data, size as usize);
            let how = WriteHow { kill_suidgid, from_cache, sync };
            let done = self.handler.write(h.caller, h.node, fh, offset, data, how).await;
            if done == Err(DENIED) && from_cache {
                // The file has become immutable: a forbidden store to a shared mapping must not be
                // visible.
                let (core, node) = (self.core.clone(), h.node);
                self.rt.spawn("fuse drop pages", async move { core.drop_pages(node).await });
            }
            let n = done?;
            let reply = Reply::small(|s| {
                s.u32(n);
                s.u32(0);
            });
            let past_cache = direct && !from_cache && self.core.direct_is_coherent.get();
            if past_cache && n > 0 && self.handler.may_be_cached(h.node, fh) {
                let (core, node, unique) = (self.core.clone(), h.node, h.unique);
                self.detach("fuse direct write", async move {
                    core.drop_pages_in(node, offset, n.into()).await;
                    core.reply(unique, reply);
                });
                return Ok(Reply::Nothing);
            }
            return Ok(reply);
        }
        let parsed = request.args(h, &mut copy).and_then(|a| Op::parse(h.opcode, a, self.core.setxattr_ext.get()));
        let op = parsed.inspect_err(|_| self.core.count(|s| s.refused += 1))?;
        self.dispatch(h, op).await
    }

    async fn dispatch(self: &Rc<Self>, h: &InHeader, op: Op<'_>) -> Result<Reply, Errno> {
        let (who, node, fs) = (h.caller, h.node, &self.handler);
        if let Op::Init(i) = op {
            return self.negotiate(&i);
        }
        if !self.core.initialized.get() {
            return Err(IO);
        }
        Ok(match op {
            Op::Lookup { name } => Reply::entry(&fs.lookup(who, node, name).await?),
            Op::Forget { count } => {
                fs.forget(node, count);
                Reply::Nothing
            }
            Op::BatchForget { list } => {
                proto::forgets(list).for_each(|(node, count)| fs.forget(node, count));
                Reply::Nothing
            }
            Op::GetAttr { fh } => {
                let a = fs.getattr(node, fh).await?;
                Reply::small(|s| proto::put_attr_reply(s, &a))
            }
            Op::Statx { fh } => {
                let a = fs.getattr(node, fh).await?;
                Reply::small(|s| proto::put_statx_reply(s, &a))
            }
            Op::SetAttr(set) => {
                let a = fs.setattr(who, node, set).await?;
                Reply::small(|s| proto::put_attr_reply(s, &a))
            }
            Op::ReadLink => Reply::Bytes(fs.readlink(node).await?),
            Op::Symlink { name, target } => Reply::entry(&fs.symlink(who, node, name, target).await?),
            Op::MkNod { name, mode, rdev, umask } => {
                Reply::entry(&fs.mknod(Caller { umask, ..who }, node, name, mode, rdev).await?)
            }
            Op::MkDir { name, mode, umask } => {
                Reply::entry(&fs.mkdir(Caller { umask, ..who }, node, name, mode).await?)
            }
            Op::Unlink { name } => empty(fs.unlink(who, node, name).await)?,
            Op::RmDir { name } => empty(fs.rmdir(who, node, name).await)?,
            Op::Rename { name, new_dir, new_name, flags } => {
                empty(fs.rename(who, (node, name), (new_dir, new_name), flags).await)?
            }
            Op::Link { node: from, name } => Reply::entry(&fs.link(who, from, node, name).await?),
            Op::Open { flags, kill_suidgid } => {
                let o = self.opened(fs.open(who, node, flags, kill_suidgid).await?);
                self.core.count_open(true);
                Reply::small(|s| proto::put_open(s, &o))
            }
            Op::Create { name, mode, umask, flags, kill_suidgid } => {
                let (e, o) = fs.create(Caller { umask, ..who }, node, name, mode, flags, kill_suidgid).await?;
                let o = self.opened(o);
                self.core.count_open(true);
                Reply::small(|s| {
                    proto::put_entry(s, &e);
                    proto::put_open(s, &o);
                })
            }
            Op::TmpFile { mode, umask, flags, kill_suidgid } => {
                let (e, o) = fs.tmpfile(Caller { umask, ..who }, node, mode, flags, kill_suidgid).await?;
                let o = self.opened(o);
                self.core.count_open(true);
                Reply::small(|s| {
                    proto::put_entry(s, &e);
                    proto::put_open(s, &o);
                })
            }
            Op::Read { fh, offset, size } => Reply::Data(fs.read(node, fh, offset, size.min(IO_MAX as u32)).await?),
            Op::Write { .. } => return Err(INVALID),
            Op::StatFs => {
                let st = fs.statfs(node).await?;
                Reply::small(|s| proto::put_statfs(s, &st))
            }
            Op::Release { fh } => {
                let released = fs.release(node, fh).await;
                self.core.count_open(false);
                empty(released)?
            }
            Op::Fsync { fh, datasync } | Op::FsyncDir { fh, datasync } => empty(fs.fsync(node, fh, datasync).await)?,
            Op::SetXattr { name, value, flags, kill_sgid } => {
                empty(fs.setxattr(node, name, value, flags, kill_sgid).await)?
            }
            Op::GetXattr { name, size } => sized(fs.getxattr(node, name).await?, size)?,
            Op::ListXattr { size } => sized(fs.listxattr(who, node).await?, size)?,
            Op::RemoveXattr { name } => empty(fs.removexattr(node, name).await)?,
            Op::OpenDir => {
                let o = fs.opendir(node).await?;
                self.core.count_open(true);
                Reply::small(|s| proto::put_open(s, &o))
            }
            Op::ReadDir { fh, offset, size, plus } => {
                let mut out = DirOut::new((size as usize).min(IO_MAX), plus);
                fs.readdir(node, fh, offset, &mut out).await?;
                Reply::Listing(out.into_reply())
            }
            Op::ReleaseDir { fh } => {
                let released = fs.releasedir(node, fh).await;
                self.core.count_open(false);
                empty(released)?
            }
            Op::Destroy => Reply::Empty,
            Op::Ioctl { cmd, input, out_size } => {
                if matches!(cmd, FS_IOC_SETFLAGS | FS_IOC_FSSETXATTR) {
                    // Stores to shared mappings from before the change of flags may still be
                    // written.
                    self.core.drop_pages(node).await;
                }
                let out_size = out_size.min(SMALL_OUTPUT_MAX);
                let out = fs.ioctl(node, cmd, input, out_size).await?;
                if out.len() > out_size as usize {
                    return Err(RANGE);
                }
                let mut body = vec![0; 16];
                body.extend(out);
                Reply::Bytes(body)
            }
            Op::Fallocate { fh, offset, len, mode } => empty(fs.fallocate(who, node, fh, offset, len, mode).await)?,
            Op::Lseek { fh, offset, whence } if fs.may_be_mapped(node) => {
                let (session, unique) = (self.clone(), h.unique);
                self.detach("fuse lseek", async move {
                    match session.handler.lseek(node, fh, offset, whence).await {
                        Ok(at) => session.core.reply(unique, Reply::small(|s| s.u64(at))),
                        Err(e) => session.core.send_error(unique, e),
                    }
                });
                Reply::Nothing
            }
            Op::Lseek { fh, offset, whence } => {
                let at = fs.lseek(node, fh, offset, whence).await?;
                Reply::small(|s| s.u64(at))
            }
            Op::SyncFs => empty(fs.syncfs().await)?,
            // Every request ends by itself; after this error the kernel sends no more of these.
            Op::Interrupt { .. } | Op::Init(_) | Op::Other => return Err(NO_SYS),
        })
    }

    /// The handler's flags of an open file, less those that the kernel handles wrongly.
    fn opened(&self, o: Opened) -> Opened {
        let without = if self.core.direct_is_coherent.get() { 0 } else { FOPEN_DIRECT_IO };
        Opened { flags: o.flags & !without, ..o }
    }

    /// The first request: negotiates abilities.
    fn negotiate(&self, i: &Init) -> Result<Reply, Errno> {
        let mut r = InitReply {
            minor: proto::MINOR_MAX.min(i.minor),
            max_readahead: i.max_readahead.max(IO_MAX as u32),
            flags: 0,
            max_background: MAX_BACKGROUND,
            congestion: MAX_BACKGROUND / 4 * 3,
            max_write: IO_MAX as u32,
            max_pages: (IO_MAX / 4096) as u16,
        };
        if i.major > proto::MAJOR {
            // The kernel sends INIT again with our version.
            return Ok(Reply::small(|s| proto::put_init(s, &r)));
        }
        if i.major < proto::MAJOR || i.minor < proto::MINOR_MIN || i.flags & init::MAX_PAGES == 0 {
            return Err(Errno(libc::EPROTO));
        }
        if self.core.initialized.replace(true) {
            return Err(INVALID);
        }
        let mut wanted = WANTED | if self.core.writeback { init::WRITEBACK_CACHE } else { 0 };
        if self.core.posix_acl {
            // Which bits a new file gets is known only here, where the default ACL is.
            wanted |= init::POSIX_ACL | init::DONT_MASK;
        }
        r.flags = i.flags & wanted;
        self.core.minor.set(r.minor);
        self.core.setxattr_ext.set(r.flags & init::SETXATTR_EXT != 0);
        self.core.direct_is_coherent.set(r.flags & init::DIRECT_IO_ALLOW_MMAP != 0);
        Ok(Reply::small(|s| proto::put_init(s, &r)))
    }
}

fn empty(r: Result<(), Errno>) -> Result<Reply, Errno> {
    r.map(|()| Reply::Empty)
}

/// The answer to a caller with a buffer of `size` bytes; 0 is a query of the length only.
fn sized(value: Vec<u8>, size: u32) -> Result<Reply, Errno> {
    let len = u32::try_from(value.len()).map_err(|_| RANGE)?;
    match size {
        0 => Ok(Reply::small(|s| {
            s.u32(len);
            s.u32(0);
        })),
        _ if len > size => Err(RANGE),
        _ => Ok(Reply::Bytes(value)),
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::OwnedFd;
    use std::os::unix::net::UnixDatagram;

    use host::{Engine, EngineConfig};
    use rt::sync::Notify;

    use super::*;
    use crate::handler::{Attr, WriteHow};

    /// Has one name; a lookup of `slow` waits for the lookup of another name.
    struct Fs {
        other: Notify,
        looked: Cell<bool>,
        written: Rc<Cell<u64>>,
    }

    impl Handler for Fs {
        async fn lookup(&self, _: Caller, parent: u64, name: &[u8]) -> Result<Entry, Errno> {
            match name {
                b"slow" => {
                    while !self.looked.get() {
                        self.other.notified().await;
                    }
                }
                _ => {
                    self.looked.set(true);
                    self.other.notify_all();
                }
            }
            Ok(Entry { node: parent + 1, ..Entry::default() })
        }
        async fn getattr(&self, node: u64, _: Option<u64>) -> Result<Attr, Errno> {
            Ok(Attr { ino: node, ..Attr::default() })
        }
        async fn read(&self, _: u64, _: u64, offset: u64, size: u32) -> Result<Vec<Bytes>, Errno> {
            // Small slices: of a large read more than one system call takes.
            let bytes = Bytes::copy_from(&(0..512).map(|i| i as u8).collect::<Vec<u8>>());
            let (mut out, mut at, end) = (Vec::new(), offset, offset.saturating_add(size.into()));
            while at < end {
                let (from, n) = ((at % 256) as usize, (end - at).min(100));
                out.push(bytes.slice(from..from + n as usize));
                at += n;
            }
            Ok(out)
        }
        async fn write(
            &self,
            _: Caller,
            _: u64,
            _: u64,
            offset: u64,
            data: Vec<Bytes>,
            _: WriteHow,
        ) -> Result<u32, Errno> {
            let mut n = 0;
            for b in data {
                assert!(b.iter().enumerate().all(|(i, &v)| v == (offset + u64::from(n) + i as u64) as u8));
                n += b.len() as u32;
            }
            self.written.set(self.written.get() + u64::from(n));
            Ok(n)
        }
    }

    fn request(opcode: u32, unique: u64, node: u64, args: &[u8]) -> Vec<u8> {
        let mut r = Vec::new();
        r.u32((IN_HEADER + args.len()) as u32);
        r.u32(opcode);
        r.u64(unique);
        r.u64(node);
        r.zeros(16);
        r.raw(args);
        r
    }

    fn init_args() -> Vec<u8> {
        let mut args = Vec::new();
        for v in [7, 45, 131_072, 0xffff_ffff, 0xffff] {
            args.u32(v);
        }
        args.zeros(44);
        args
    }

    /// The kernel's side of a session: messages of a socket have ends, as requests have.
    struct Kernel(UnixDatagram);

    impl Kernel {
        fn send(&self, message: &[u8]) {
            self.0.send(message).expect("send");
        }
        /// The next reply: its request, its error, its body.
        fn reply(&self) -> (u64, i32, Vec<u8>) {
            let mut buf = vec![0; 200_000];
            let n = self.0.recv(&mut buf).expect("a reply");
            assert_eq!(u32::from_ne_bytes(buf[..4].try_into().expect("four")) as usize, n);
            let error = i32::from_ne_bytes(buf[4..8].try_into().expect("four"));
            let unique = u64::from_ne_bytes(buf[8..16].try_into().expect("eight"));
            (unique, error, buf[16..n].to_vec())
        }
        fn ask(&self, opcode: u32, unique: u64, args: &[u8]) -> (i32, Vec<u8>) {
            self.send(&request(opcode, unique, 1, args));
            let (answered, error, body) = self.reply();
            assert_eq!(answered, unique);
            (error, body)
        }
    }

    /// Runs `kernel` on a thread against a session; its counters and bytes written then.
    fn with_session(kernel: impl FnOnce(Kernel) + Send + 'static) -> (SessionStats, u64) {
        let engine = Engine::new(EngineConfig::default()).expect("an engine");
        let rt = engine.rt();
        let (ours, theirs) = UnixDatagram::pair().expect("pair");
        ours.set_nonblocking(true).expect("fcntl");
        let written = Rc::new(Cell::new(0));
        let fs = Fs { other: Notify::new(), looked: Cell::new(false), written: written.clone() };
        let core = Session::start(&rt, Rc::new(OwnedFd::from(ours)), fs, false, false).expect("a session");
        engine.block_on(host::blocking(move || kernel(Kernel(theirs)))).expect("the kernel does not panic");
        assert!(!core.is_over());
        (core.stats(), written.get())
    }

    #[test]
    fn requests_are_answered_side_by_side() {
        let (stats, written) = with_session(|k| {
            assert_eq!(k.ask(opcode::GETATTR, 1, &[0; 16]).0, -libc::EIO, "before the beginning");
            let (error, body) = k.ask(opcode::INIT, 2, &init_args());
            assert_eq!((error, body.len()), (0, 64));
            assert_eq!(k.ask(opcode::INIT, 3, &init_args()).0, -libc::EINVAL, "twice");
            // Two that wait, and one that makes them go on.
            for unique in [4, 5] {
                k.send(&request(opcode::LOOKUP, unique, 1, b"slow\0"));
            }
            k.send(&request(opcode::FORGET, 6, 1, &[0; 8]));
            assert_eq!(k.ask(opcode::GETATTR, 7, &[0; 16]).1[16..24], 1u64.to_ne_bytes());
            k.send(&request(opcode::LOOKUP, 8, 9, b"quick\0"));
            let mut answered: Vec<_> = (0..3).map(|_| k.reply()).map(|(u, e, body)| (u, e, body[0])).collect();
            answered.sort_unstable();
            assert_eq!(answered, [(4, 0, 2), (5, 0, 2), (8, 0, 10)]);
            // Data, in both directions.
            for size in [0usize, 1, 4096, 70_000, 131_072] {
                let mut args = Vec::new();
                args.u64(0);
                args.u64(77);
                args.u32(size as u32);
                args.zeros(20);
                let (error, body) = k.ask(opcode::READ, 10, &args);
                assert_eq!(error, 0);
                let want: Vec<u8> = (0..size).map(|i| (77 + i) as u8).collect();
                assert!(body == want);
                args.extend(&want);
                let (error, body) = k.ask(opcode::WRITE, 11, &args);
                assert_eq!((error, &body[..4]), (0, &(size as u32).to_ne_bytes()[..]));
                // A size that differs from the data sent.
                args.pop();
                assert_eq!(k.ask(opcode::WRITE, 12, &args).0, -libc::EINVAL);
            }
        });
        assert_eq!(written, 1 + 4096 + 70_000 + 131_072);
        assert_eq!((stats.waited, stats.refused), (2, 5));
    }

    #[test]
    fn nonsense_is_answered_once() {
        let (stats, _) = with_session(|k| {
            k.send(b"short");
            let mut wrong = request(opcode::GETATTR, 1, 1, &[0; 16]);
            wrong[0] += 1;
            k.send(&wrong);
            assert_eq!(k.reply(), (1, -libc::EINVAL, vec![]));
            assert_eq!(k.ask(opcode::INIT, 2, &init_args()).0, 0);
            let mut z = 5u64;
            let mut next = || {
                z = z.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                z >> 33
            };
            for unique in 3..3000 {
                let op = (next() % 56) as u32;
                let fill = next();
                let args: Vec<u8> = (0..next() % 130).map(|_| if fill & 1 == 0 { next() as u8 } else { 0 }).collect();
                let mut message = request(op, unique, next(), &args);
                if fill & 6 == 0 {
                    // Extensions that may be longer than everything.
                    message[36] = next() as u8 & 0x1f;
                }
                if matches!(op, opcode::FORGET | opcode::BATCH_FORGET) || op == opcode::WRITE && args.len() > 40 {
                    continue;
                }
                k.send(&message);
                assert_eq!(k.reply().0, unique);
            }
            assert_eq!(k.ask(opcode::GETATTR, 3000, &[0; 16]).0, 0);
        });
        assert!(stats.refused > 100);
    }
}
