//! The part of an engine that is shared with other threads: its queue of wake-ups and messages, and
//! the bell that ends its sleep.
//!
//! Everything goes into one queue under a mutex. A thread that adds to it rings the bell (an
//! eventfd that the engine's one wait includes) only if the flag `sleeping` is set. The engine sets
//! it *before* its last check of the queue, so that an addition is either seen by that check or
//! finds the flag and rings.

use std::any::Any;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Wake;

use rt::Rt;
use rustix::event::{EventfdFlags, eventfd};

/// A message to the engine.
pub(crate) enum Msg {
    /// Run this on the engine thread.
    Call(Box<dyn FnOnce(&Rt) + Send>),
    /// A worker thread finished the I/O operation `token`: a count, or a negative errno.
    Io { token: u64, res: i32 },
    /// A CPU job ended; with its panic, if it did panic.
    CpuDone { id: usize, panic: Option<Box<dyn Any + Send>> },
}

#[derive(Default)]
pub(crate) struct Incoming {
    pub(crate) ready: Vec<Arc<TaskHeader>>,
    pub(crate) msgs: Vec<Msg>,
    pub(crate) closed: bool,
}

pub(crate) struct Shared {
    queue: Mutex<Incoming>,
    sleeping: AtomicBool,
    bell: OwnedFd,
}

impl Shared {
    pub(crate) fn new() -> io::Result<Shared> {
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Shared { queue: Mutex::default(), sleeping: AtomicBool::new(false), bell })
    }

    fn lock(&self) -> MutexGuard<'_, Incoming> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a message; gives it back if the engine has ended.
    pub(crate) fn post(&self, msg: Msg) -> Result<(), Msg> {
        {
            let mut q = self.lock();
            if q.closed && !matches!(msg, Msg::Io { .. }) {
                return Err(msg);
            }
            q.msgs.push(msg);
        }
        self.ring();
        Ok(())
    }

    fn ready(&self, task: Arc<TaskHeader>) {
        {
            let mut q = self.lock();
            if q.closed {
                return;
            }
            q.ready.push(task);
        }
        self.ring();
    }

    fn ring(&self) {
        if self.sleeping.load(Ordering::SeqCst) && self.sleeping.swap(false, Ordering::SeqCst) {
            // It can only fail if the counter is full, and then the bell rings already.
            let _ = rustix::io::write(&self.bell, &1u64.to_ne_bytes());
        }
    }

    /// Moves queued entries into `ready` and `msgs`, which are empty.
    pub(crate) fn take(&self, ready: &mut Vec<Arc<TaskHeader>>, msgs: &mut Vec<Msg>) {
        let mut q = self.lock();
        std::mem::swap(&mut q.ready, ready);
        std::mem::swap(&mut q.msgs, msgs);
    }

    /// Marks the engine as about to sleep; returns whether it may (the queue is empty).
    pub(crate) fn fall_asleep(&self) -> bool {
        self.sleeping.store(true, Ordering::SeqCst);
        let q = self.lock();
        let idle = q.ready.is_empty() && q.msgs.is_empty();
        drop(q);
        if !idle {
            self.sleeping.store(false, Ordering::SeqCst);
        }
        idle
    }

    pub(crate) fn awake(&self) {
        self.sleeping.store(false, Ordering::SeqCst);
    }

    /// Closes the queue and returns its content, except results of I/O.
    pub(crate) fn close(&self) -> Incoming {
        let mut q = self.lock();
        q.closed = true;
        let (io, msgs) = std::mem::take(&mut q.msgs).into_iter().partition(|m| matches!(m, Msg::Io { .. }));
        q.msgs = io;
        Incoming { ready: std::mem::take(&mut q.ready), msgs, closed: true }
    }

    /// Results of worker threads after the queue was closed, which are still needed: only then is
    /// their memory free.
    pub(crate) fn take_io(&self) -> Vec<(u64, i32)> {
        let msgs = std::mem::take(&mut self.lock().msgs);
        msgs.into_iter()
            .filter_map(|m| if let Msg::Io { token, res } = m { Some((token, res)) } else { None })
            .collect()
    }

    pub(crate) fn bell_fd(&self) -> RawFd {
        self.bell.as_raw_fd()
    }

    /// Makes the bell silent again.
    pub(crate) fn clear_bell(&self) {
        // The descriptor does not block.
        let _ = rustix::io::read(&self.bell, &mut [0u8; 8]);
    }
}

/// The part of a task that its wakers share.
pub(crate) struct TaskHeader {
    pub(crate) id: u64,
    pub(crate) slot: usize,
    queued: AtomicBool,
    /// Its last turn ended because its budget was used.
    behind: AtomicBool,
    shared: Arc<Shared>,
}

impl TaskHeader {
    /// A header that counts as queued: its creator puts it into the ready queue.
    pub(crate) fn new(id: u64, slot: usize, shared: Arc<Shared>) -> TaskHeader {
        TaskHeader { id, slot, queued: AtomicBool::new(true), behind: AtomicBool::new(false), shared }
    }
    /// The task is about to be polled: wake-ups from now on count again.
    pub(crate) fn begin_poll(&self) {
        self.queued.store(false, Ordering::SeqCst);
    }
    /// The poll is over, and the task is not; `is_spent`: it has used the budget of its turn.
    pub(crate) fn end_poll(&self, is_spent: bool) {
        self.behind.store(is_spent, Ordering::Relaxed);
    }
    /// Whether it has used the budget of its last turn.
    pub(crate) fn is_behind(&self) -> bool {
        self.behind.load(Ordering::Relaxed)
    }
}

impl Wake for TaskHeader {
    fn wake(self: Arc<Self>) {
        if !self.queued.swap(true, Ordering::SeqCst) {
            let shared = self.shared.clone();
            shared.ready(self);
        }
    }
    fn wake_by_ref(self: &Arc<Self>) {
        if !self.queued.swap(true, Ordering::SeqCst) {
            self.shared.ready(self.clone());
        }
    }
}
