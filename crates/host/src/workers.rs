//! Bounded pools of operating system threads: one for CPU jobs at low priority, one for blocking
//! system calls.

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

type Job = Box<dyn FnOnce() + Send>;

#[derive(Default)]
struct Queue {
    jobs: VecDeque<Job>,
    idle: usize,
    threads: usize,
    /// The most threads; a thread that finds more ends.
    max: usize,
    stop: bool,
}

struct Core {
    queue: Mutex<Queue>,
    wake: Condvar,
}

impl Core {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// At most `max` threads, started when work finds none idle. Jobs start in the order given. Jobs
/// must not panic.
pub(crate) struct Workers {
    core: Arc<Core>,
    name: &'static str,
    nice: i32,
    handles: Mutex<Vec<JoinHandle<()>>>,
}

impl Workers {
    /// A pool whose threads run at `nice` (0: as the process does).
    pub(crate) fn new(name: &'static str, max: usize, nice: i32) -> Workers {
        let queue = Queue { max: max.max(1), ..Queue::default() };
        let core = Core { queue: Mutex::new(queue), wake: Condvar::new() };
        Workers { core: Arc::new(core), name, nice, handles: Mutex::default() }
    }

    /// Changes how many threads there may be, at least one. Running jobs go on to their end.
    pub(crate) fn set_max(&self, max: usize) {
        self.core.lock().max = max.max(1);
        self.core.wake.notify_all();
    }

    pub(crate) fn run(&self, job: Job) {
        let mut q = self.core.lock();
        q.jobs.push_back(job);
        // An idle thread counts until it has taken a job, so compare with the jobs that wait.
        let start = q.idle < q.jobs.len() && q.threads < q.max;
        if start {
            q.threads += 1;
        }
        drop(q);
        self.core.wake.notify_one();
        if start && let Err(e) = self.start() {
            let mut q = self.core.lock();
            q.threads -= 1;
            assert!(q.threads > 0, "no worker thread can be started: {e}");
        }
    }

    fn start(&self) -> io::Result<()> {
        let (core, nice) = (self.core.clone(), self.nice);
        let handle = std::thread::Builder::new().name(self.name.into()).spawn(move || {
            if nice != 0 {
                // None names the calling thread; a refusal only costs the lower priority.
                let _ = rustix::process::setpriority_process(None, nice);
            }
            work(&core);
        })?;
        self.handles.lock().unwrap_or_else(PoisonError::into_inner).push(handle);
        Ok(())
    }

    /// Drops jobs that have not begun and waits for those that have.
    pub(crate) fn stop(&self) {
        let dropped = {
            let mut q = self.core.lock();
            q.stop = true;
            std::mem::take(&mut q.jobs)
        };
        self.core.wake.notify_all();
        drop(dropped);
        for h in std::mem::take(&mut *self.handles.lock().unwrap_or_else(PoisonError::into_inner)) {
            let _ = h.join();
        }
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        self.stop();
    }
}

fn work(core: &Core) {
    let mut q = core.lock();
    loop {
        if q.stop {
            return;
        }
        if q.threads > q.max {
            q.threads -= 1;
            // The call that woke it may have been for a job.
            core.wake.notify_one();
            return;
        }
        if let Some(job) = q.jobs.pop_front() {
            drop(q);
            job();
            q = core.lock();
            continue;
        }
        q.idle += 1;
        q = core.wake.wait(q).unwrap_or_else(PoisonError::into_inner);
        q.idle -= 1;
    }
}
