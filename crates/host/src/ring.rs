//! The driver over io_uring: operations start inline, by the engine thread, in one system call per
//! turn, and another in the midst of a long round.
//!
//! The ring is made for one issuing thread with deferred completion work, so that completions are
//! processed only when the engine enters the kernel, never by interrupting it. A flag in shared
//! memory is set while such work waits; a turn with nothing to submit and no such work costs no
//! system call. Reads that are likely to succeed at once are tried by plain system calls for as
//! long as the engine looks, and go to the ring when it stops. The bell is read by an operation
//! that is always in flight. Discards of block devices have no ring operation on older kernels and
//! go to a worker thread.

use std::collections::VecDeque;
use std::io;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use io_uring::{IoUring, cqueue, opcode, squeue, types};

use crate::awake::{Awake, KeepAwake};
use crate::driver::{BELL, Driver, NOBODY, POLL_BIT, PUNCH_HOLE, Raw, Request, STREAM, Wait};
use crate::shared::{Msg, Shared};
use crate::spin::{STOLEN, Spin};
use crate::workers::Workers;

/// Entries of the submission queue: more are submitted in two steps.
const SQ_ENTRIES: u32 = 256;
/// Entries of the completion queue; the kernel keeps the overflow.
const CQ_ENTRIES: u32 = 4096;

pub(crate) struct Ring {
    ring: IoUring,
    shared: Arc<Shared>,
    /// Requests that found the submission queue full.
    backlog: VecDeque<(u64, Request)>,
    /// Where the bell's reading goes.
    bell_count: Box<u64>,
    bell_armed: bool,
    workers: Option<Workers>,
    enters: u64,
    spin: Spin,
    looked: Duration,
    awake: Awake,
    /// Operations to be tried by system calls before they go to the ring.
    hot: Vec<(u64, Request)>,
}

impl Ring {
    pub(crate) fn new(shared: Arc<Shared>, keep_awake: KeepAwake) -> io::Result<Ring> {
        let ring = IoUring::builder()
            .setup_cqsize(CQ_ENTRIES)
            .setup_submit_all()
            .setup_single_issuer()
            .setup_coop_taskrun()
            .setup_taskrun_flag()
            .setup_defer_taskrun()
            .dontfork()
            .build(SQ_ENTRIES)
            .or_else(|_| IoUring::builder().setup_cqsize(CQ_ENTRIES).dontfork().build(SQ_ENTRIES))?;
        let p = ring.params();
        if !(p.is_feature_ext_arg()
            && p.is_feature_nodrop()
            && p.is_feature_submit_stable()
            && p.is_feature_fast_poll())
        {
            return Err(io::Error::from(io::ErrorKind::Unsupported));
        }
        let mut probe = io_uring::Probe::new();
        ring.submitter().register_probe(&mut probe)?;
        for code in [
            opcode::Read::CODE,
            opcode::Write::CODE,
            opcode::Readv::CODE,
            opcode::Writev::CODE,
            opcode::Fsync::CODE,
            opcode::Fallocate::CODE,
            opcode::PollAdd::CODE,
            opcode::AsyncCancel::CODE,
        ] {
            if !probe.is_supported(code) {
                return Err(io::Error::from(io::ErrorKind::Unsupported));
            }
        }
        let backlog = VecDeque::new();
        Ok(Ring {
            ring,
            shared,
            backlog,
            bell_count: Box::new(0),
            bell_armed: false,
            workers: None,
            enters: 0,
            spin: Spin::default(),
            looked: Duration::ZERO,
            awake: Awake::new(keep_awake),
            hot: Vec::new(),
        })
    }

    fn entry(&self, token: u64, raw: Raw) -> squeue::Entry {
        let entry = match raw {
            Raw::Read { fd, iov, n: 1, offset } => {
                // SAFETY: the submitter vouches for one iovec at `iov`.
                let one = unsafe { *iov };
                opcode::Read::new(types::Fd(fd), one.iov_base.cast(), clip(one.iov_len)).offset(offset).build()
            }
            Raw::Write { fd, iov, n: 1, offset, durable } => {
                // SAFETY: as above.
                let one = unsafe { *iov };
                opcode::Write::new(types::Fd(fd), one.iov_base.cast::<u8>().cast_const(), clip(one.iov_len))
                    .offset(offset)
                    .rw_flags(flags(durable))
                    .build()
            }
            Raw::Read { fd, iov, n, offset } => opcode::Readv::new(types::Fd(fd), iov, n).offset(offset).build(),
            Raw::Write { fd, iov, n, offset, durable } => {
                opcode::Writev::new(types::Fd(fd), iov, n).offset(offset).rw_flags(flags(durable)).build()
            }
            Raw::DataSync { fd } => opcode::Fsync::new(types::Fd(fd)).flags(types::FsyncFlags::DATASYNC).build(),
            Raw::PunchHole { fd, offset, len } => {
                opcode::Fallocate::new(types::Fd(fd), len).offset(offset).mode(PUNCH_HOLE).build()
            }
            Raw::Writable { fd } => poll_entry(fd, libc::POLLOUT),
            Raw::Readable { fd } => poll_entry(fd, libc::POLLIN),
            Raw::BlockDiscard { .. } => unreachable!("goes to a worker thread"),
        };
        entry.user_data(token)
    }

    /// Puts the operation into the submission queue if it has room.
    fn push(&mut self, token: u64, req: Request) -> bool {
        let entry = self.entry(token, req.raw);
        let poll = match (req.poll_first, req.raw.stream_fd()) {
            (Some(events), Some((fd, _))) => {
                Some(poll_entry(fd, events).user_data(token | POLL_BIT).flags(squeue::Flags::IO_LINK))
            }
            _ => None,
        };
        let mut sq = self.ring.submission();
        // SAFETY: `submit`'s caller keeps the memory of the operation until its completion.
        unsafe {
            match poll {
                Some(poll) => sq.push_multiple(&[poll, entry]).is_ok(),
                None => sq.push(&entry).is_ok(),
            }
        }
    }

    fn push_backlog(&mut self) {
        while let Some(&(token, req)) = self.backlog.front() {
            if !self.push(token, req) {
                return;
            }
            self.backlog.pop_front();
        }
    }

    fn arm_bell(&mut self) {
        if self.bell_armed {
            return;
        }
        // Polled before it is read: a plain read of a descriptor that does not block would fail at
        // once.
        let fd = self.shared.bell_fd();
        let place = (&raw mut *self.bell_count).cast::<u8>();
        let poll = poll_entry(fd, libc::POLLIN).user_data(NOBODY).flags(squeue::Flags::IO_LINK);
        let read = opcode::Read::new(types::Fd(fd), place, 8).offset(STREAM).build().user_data(BELL);
        // SAFETY: `bell_count` is boxed and lives as long as the ring, which is closed first.
        self.bell_armed = unsafe { self.ring.submission().push_multiple(&[poll, read]).is_ok() };
    }

    fn enter(&mut self, wait: Wait) {
        let result = match wait {
            Wait::No => {
                let sq = self.ring.submission();
                if sq.is_empty() && !sq.taskrun() && !sq.cq_overflow() {
                    return;
                }
                drop(sq);
                self.enters += 1;
                self.ring.submit()
            }
            Wait::Forever => {
                self.enters += 1;
                self.ring.submit_and_wait(1)
            }
            Wait::For(d) => {
                self.enters += 1;
                let ts = types::Timespec::from(d);
                let args = types::SubmitArgs::new().timespec(&ts);
                self.ring.submitter().submit_with_args(1, &args)
            }
        };
        if let Err(e) = result {
            let code = e.raw_os_error().unwrap_or(0);
            // The timeout; a signal; a kernel that is short of memory or completion space: the next
            // turn tries again.
            let passing = [libc::ETIME, libc::EINTR, libc::EAGAIN, libc::EBUSY];
            assert!(passing.contains(&code), "io_uring_enter fails: {e}");
        }
    }

    /// Tries the hot operations once; whether one is over.
    fn try_hot(&mut self, done: &mut Vec<(u64, i32)>) -> bool {
        let before = done.len();
        self.hot.retain(|&(token, req)| {
            // SAFETY: `submit`'s caller keeps the memory of the operation until its completion.
            let res = unsafe { req.raw.call() };
            let later = res == -libc::EAGAIN || res == -libc::EINTR;
            if !later {
                done.push((token, res));
            }
            later
        });
        done.len() > before
    }

    /// Gives the hot operations to the ring.
    fn cool(&mut self) {
        self.backlog.extend(self.hot.drain(..));
        self.push_backlog();
    }

    /// Submits and looks for completions for a moment, if that is worth while; whether there are
    /// some or `wait` is over.
    fn look(&mut self, wait: Wait, done: &mut Vec<(u64, i32)>) -> bool {
        let Some(limit) = self.spin.before_wait() else { return false };
        let (limit, whole) = match wait {
            Wait::For(d) if d <= limit => (d, true),
            _ => (limit, false),
        };
        self.enter(Wait::No);
        let begin = Instant::now();
        let mut last = begin;
        let mut alone = true;
        let found = loop {
            let due = self.ring.submission().taskrun();
            if due {
                self.enter(Wait::No);
            }
            // Both: a device that completes within the call that starts its operation must not keep
            // the hot operations out.
            if self.try_hot(done) || !self.ring.completion().is_empty() {
                break true;
            }
            let now = Instant::now();
            alone &= due || now - last < STOLEN;
            last = now;
            if now - begin >= limit {
                break false;
            }
            std::hint::spin_loop();
        };
        self.spin.looked(found, alone);
        self.looked += last - begin;
        found || whole
    }

    fn reap(&mut self, done: &mut Vec<(u64, i32)>) {
        let mut bell = false;
        for cqe in self.ring.completion() {
            let cqe: cqueue::Entry = cqe;
            match cqe.user_data() {
                NOBODY => {}
                BELL => bell = true,
                // The poll ahead of an operation; the operation itself reports.
                token if token & POLL_BIT != 0 => {}
                token => done.push((token, cqe.result())),
            }
        }
        if bell {
            self.bell_armed = false;
        }
    }
}

impl Driver for Ring {
    unsafe fn submit(&mut self, token: u64, req: Request) {
        if let Raw::BlockDiscard { .. } = req.raw {
            let workers = self.workers.get_or_insert_with(|| Workers::new("weir-io", 1, 0));
            let (shared, raw) = (self.shared.clone(), SendRaw(req.raw));
            workers.run(Box::new(move || {
                let raw = raw;
                // SAFETY: a discard names no memory.
                let res = unsafe { raw.0.call() };
                let _ = shared.post(Msg::Io { token, res });
            }));
            return;
        }
        if req.hot {
            self.hot.push((token, req));
        } else if !self.backlog.is_empty() || !self.push(token, req) {
            self.backlog.push_back((token, req));
        }
    }

    fn start(&mut self) {
        self.push_backlog();
        if !self.ring.submission().is_empty() {
            self.enter(Wait::No);
        }
    }

    fn cancel(&mut self, token: u64) {
        self.cool();
        // Still in the backlog: it must be reported, so let it go to the kernel and be cancelled
        // there.
        while !self.backlog.is_empty() {
            self.push_backlog();
            self.enter(Wait::No);
        }
        for target in [token | POLL_BIT, token] {
            let entry = opcode::AsyncCancel::new(target).build().user_data(NOBODY);
            // SAFETY: names no memory.
            while unsafe { self.ring.submission().push(&entry) }.is_err() {
                self.enter(Wait::No);
            }
        }
    }

    fn turn(&mut self, wait: Wait, done: &mut Vec<(u64, i32)>) {
        self.arm_bell();
        self.push_backlog();
        let waiting = if self.backlog.is_empty() && self.bell_armed { wait } else { Wait::No };
        if waiting == Wait::No || !self.ring.completion().is_empty() {
            self.try_hot(done);
            self.cool();
            self.enter(Wait::No);
        } else {
            let begin = Instant::now();
            if self.look(waiting, done) {
                self.enter(Wait::No);
            } else {
                self.cool();
                self.enter(if self.backlog.is_empty() { shorter(waiting, self.awake.limit()) } else { Wait::No });
            }
            self.awake.waited(begin.elapsed());
        }
        self.reap(done);
    }

    fn cancel_all(&mut self) {
        self.cool();
        let entry = opcode::AsyncCancel2::new(types::CancelBuilder::any()).build().user_data(NOBODY);
        // SAFETY: names no memory.
        while unsafe { self.ring.submission().push(&entry) }.is_err() {
            self.enter(Wait::No);
        }
    }

    fn name(&self) -> &'static str {
        "io_uring"
    }

    fn enters(&self) -> u64 {
        self.enters
    }
    fn looked(&self) -> Duration {
        self.looked
    }

    fn set_keep_awake(&mut self, mode: KeepAwake) {
        self.awake.set(mode);
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // The bell's read may still be in flight into `bell_count`: end it before the memory goes.
        if self.bell_armed {
            let one = 1u64;
            let mut done = Vec::new();
            for _ in 0..100 {
                // SAFETY: writes 8 bytes of `one` to the bell.
                unsafe { libc::write(self.shared.bell_fd(), (&raw const one).cast(), 8) };
                self.enter(Wait::For(Duration::from_millis(10)));
                self.reap(&mut done);
                if !self.bell_armed {
                    return;
                }
            }
            std::mem::forget(std::mem::take(&mut self.bell_count));
        }
    }
}

fn shorter(wait: Wait, limit: Option<Duration>) -> Wait {
    match (wait, limit) {
        (Wait::Forever, Some(limit)) => Wait::For(limit),
        (Wait::For(d), Some(limit)) => Wait::For(d.min(limit)),
        (wait, _) => wait,
    }
}

struct SendRaw(Raw);
// SAFETY: only operations without memory are wrapped here.
unsafe impl Send for SendRaw {}

fn poll_entry(fd: RawFd, events: i16) -> squeue::Entry {
    opcode::PollAdd::new(types::Fd(fd), events as u16 as u32).build()
}

/// Flags of a write.
fn flags(durable: bool) -> i32 {
    if durable { libc::RWF_DSYNC } else { 0 }
}

/// A length as the ring takes it; a longer transfer is continued like any short one.
fn clip(len: usize) -> u32 {
    u32::try_from(len).unwrap_or(0x7fff_f000).min(0x7fff_f000)
}
