//! The driver without io_uring: files and disks on a pool of worker threads, streams by readiness.
//!
//! The engine waits in `ppoll` over the bell and every stream that an operation waits for. Worker
//! threads report through the engine's message queue and its bell.

use std::sync::Arc;

use crate::driver::{Driver, Raw, Request, Wait};
use crate::shared::{Msg, Shared};
use crate::workers::Workers;

/// Worker threads for blocking I/O at most.
const IO_THREADS: usize = 16;

pub(crate) struct Poller {
    shared: Arc<Shared>,
    workers: Workers,
    /// Operations that wait for a stream, oldest first.
    waiting: Vec<(u64, Raw)>,
    cancelled: Vec<u64>,
    fds: Vec<libc::pollfd>,
    enters: u64,
}

impl Poller {
    pub(crate) fn new(shared: Arc<Shared>) -> Poller {
        Poller {
            shared,
            workers: Workers::new("weir-io", IO_THREADS, 0),
            waiting: Vec::new(),
            cancelled: Vec::new(),
            fds: Vec::new(),
            enters: 0,
        }
    }
}

struct SendRaw(Raw);
// SAFETY: `Driver::submit`'s contract keeps the memory that the operation names until its
// completion was reported, and until then it is not touched elsewhere: it may be used from another
// thread.
unsafe impl Send for SendRaw {}

impl Driver for Poller {
    unsafe fn submit(&mut self, token: u64, req: Request) {
        if req.raw.stream_fd().is_some() {
            self.waiting.push((token, req.raw));
            return;
        }
        let (shared, raw) = (self.shared.clone(), SendRaw(req.raw));
        self.workers.run(Box::new(move || {
            let raw = raw;
            // SAFETY: the contract of `submit`.
            let res = unsafe { raw.0.call() };
            let _ = shared.post(Msg::Io { token, res });
        }));
    }

    fn cancel(&mut self, token: u64) {
        if let Some(at) = self.waiting.iter().position(|(t, _)| *t == token) {
            self.waiting.remove(at);
            self.cancelled.push(token);
        }
    }

    fn turn(&mut self, wait: Wait, done: &mut Vec<(u64, i32)>) {
        let cancelled = !self.cancelled.is_empty();
        done.extend(self.cancelled.drain(..).map(|t| (t, -libc::ECANCELED)));
        let wait = if cancelled { Wait::No } else { wait };
        if wait == Wait::No && self.waiting.is_empty() {
            return;
        }
        self.fds.clear();
        self.fds.push(libc::pollfd { fd: self.shared.bell_fd(), events: libc::POLLIN, revents: 0 });
        for (_, raw) in &self.waiting {
            let (fd, events) = raw.stream_fd().expect("only streams wait here");
            self.fds.push(libc::pollfd { fd, events, revents: 0 });
        }
        let span = match wait {
            Wait::No => Some(std::time::Duration::ZERO),
            Wait::For(d) => Some(d),
            Wait::Forever => None,
        };
        let ts = span.map(|d| libc::timespec {
            tv_sec: d.as_secs().min(1 << 30) as libc::time_t,
            tv_nsec: d.subsec_nanos() as libc::c_long,
        });
        let ts_ptr = ts.as_ref().map_or(std::ptr::null(), |t| t as *const libc::timespec);
        self.enters += 1;
        // SAFETY: `fds` and `ts` live across the call; no signal mask is given.
        let n = unsafe { libc::ppoll(self.fds.as_mut_ptr(), self.fds.len() as libc::nfds_t, ts_ptr, std::ptr::null()) };
        if n <= 0 {
            if n < 0 {
                let e = std::io::Error::last_os_error();
                let passing = [std::io::ErrorKind::Interrupted, std::io::ErrorKind::WouldBlock];
                assert!(passing.contains(&e.kind()), "ppoll fails: {e}");
            }
            return;
        }
        if self.fds[0].revents != 0 {
            self.shared.clear_bell();
        }
        let fds = &self.fds;
        let mut i = 0;
        self.waiting.retain(|&(token, raw)| {
            i += 1;
            let revents = fds[i].revents;
            if revents == 0 {
                return true;
            }
            // SAFETY: the contract of `submit`.
            let res = unsafe { raw.call() };
            if res == -libc::EAGAIN || res == -libc::EINTR {
                return true;
            }
            done.push((token, res));
            false
        });
    }

    fn cancel_all(&mut self) {
        self.cancelled.extend(self.waiting.drain(..).map(|(t, _)| t));
    }

    fn name(&self) -> &'static str {
        "threads"
    }

    fn enters(&self) -> u64 {
        self.enters
    }
}
