//! A bounded queue with a bounded number of threads that empty it.
//!
//! Threads begin when there is work and no idle one, and end after a while without work.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

/// Time after which an idle thread ends.
const IDLE_TIMEOUT: Duration = Duration::from_secs(5);

/// A piece of work.
pub type Job = Box<dyn FnOnce() + Send>;

struct State {
    queue: VecDeque<Job>,
    threads: usize,
    idle: usize,
}

/// The queue.
pub struct Queue {
    name: &'static str,
    threads_max: usize,
    queue_max: usize,
    state: Mutex<State>,
    more: Condvar,
}

impl Queue {
    /// A queue with at most `threads_max` threads and `queue_max` waiting jobs.
    pub fn new(name: &'static str, threads_max: usize, queue_max: usize) -> Arc<Queue> {
        let state = Mutex::new(State { queue: VecDeque::new(), threads: 0, idle: 0 });
        Arc::new(Queue { name, threads_max, queue_max, state, more: Condvar::new() })
    }

    /// Puts a job in; false if the queue is full.
    pub fn push(self: &Arc<Self>, job: Job) -> bool {
        let mut s = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let spawn = s.idle <= s.queue.len() && s.threads < self.threads_max;
        if !spawn && s.queue.len() >= self.queue_max {
            return false;
        }
        if spawn {
            let queue = self.clone();
            let started = std::thread::Builder::new().name(self.name.into()).spawn(move || queue.run());
            match started {
                Ok(_) => s.threads += 1,
                Err(_) if s.threads == 0 => return false,
                Err(_) => {}
            }
        }
        s.queue.push_back(job);
        self.more.notify_one();
        true
    }

    fn run(&self) {
        let mut s = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if let Some(job) = s.queue.pop_front() {
                drop(s);
                // The panic hook reports the panic of a job; the thread goes on with the next job.
                let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(job));
                s = self.state.lock().unwrap_or_else(PoisonError::into_inner);
                continue;
            }
            s.idle += 1;
            let (back, waited) = self.more.wait_timeout(s, IDLE_TIMEOUT).unwrap_or_else(PoisonError::into_inner);
            s = back;
            s.idle -= 1;
            if waited.timed_out() && s.queue.is_empty() {
                s.threads -= 1;
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[test]
    fn what_does_not_fit_is_refused() {
        let q = Queue::new("test", 2, 3);
        let (tx, rx) = mpsc::channel();
        let gate: Arc<(Mutex<bool>, Condvar)> = Arc::default();
        let job = |n: usize| -> Job {
            let (tx, gate) = (tx.clone(), gate.clone());
            Box::new(move || {
                let open = gate.0.lock().unwrap();
                drop(gate.1.wait_while(open, |open| !*open).unwrap());
                tx.send(n).unwrap();
            })
        };
        // Two jobs run, three wait; a job may still be in the queue while its thread starts.
        let taken = (0..50).take_while(|n| q.push(job(*n))).count();
        assert!((3..=5).contains(&taken), "{taken}");
        *gate.0.lock().unwrap() = true;
        gate.1.notify_all();
        let mut done: Vec<usize> = (0..taken).map(|_| rx.recv().unwrap()).collect();
        done.sort_unstable();
        assert_eq!(done, (0..taken).collect::<Vec<_>>());
    }

    #[test]
    fn a_job_that_panics_costs_no_thread() {
        let q = Queue::new("test", 1, 8);
        let (tx, rx) = mpsc::channel();
        assert!(q.push(Box::new(|| std::panic::panic_any(()))));
        assert!(q.push(Box::new(move || tx.send(1).unwrap())));
        assert_eq!(rx.recv().unwrap(), 1);
    }
}
