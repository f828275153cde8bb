//! Runs the cells of a study on threads.
//!
//! Runs wait in one list, the longest first, so that the last ones to end are short. A thread takes
//! the first run whose memory fits beside that of the runs in progress; one that is too large alone
//! runs when no other does. Results are put in order afterwards, so neither threads nor their
//! number show in them. The calling thread shows the progress.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use base::{Error, Result};
use codec::sha256;

use super::{Cell, Results, Seen, State, Study};

/// Memory that runs may use together, by their estimates. The limit for a study is 4 GiB; the rest
/// is for the program, free lists of buffers and results.
pub const MEMORY_MAX: u64 = 3 << 30;
/// Pause between two reports of progress.
const TICK: Duration = Duration::from_millis(200);

/// How to run a study.
pub struct RunOpts<'a> {
    /// The seeds.
    pub seeds: std::ops::Range<u64>,
    /// Threads, at least one.
    pub jobs: usize,
    /// Bytes that runs may use together.
    pub memory: u64,
    /// Identifies the program; part of the key of a run.
    pub engine: &'a str,
    /// Where finished runs are kept.
    pub state: Option<&'a mut State>,
}

/// How far a study is.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Progress {
    /// Finished runs.
    pub done: u64,
    /// All runs.
    pub total: u64,
    /// Share of the work that is done, 0 to 1.
    pub share: f64,
    /// Time that the rest will take, as far as it can be told.
    pub left: Option<Duration>,
}

/// A run: its cell and its seed, by their numbers.
#[derive(Clone, Copy)]
struct Job {
    cell: usize,
    seed: usize,
}

/// What the threads share.
struct Shared<'a> {
    waiting: Vec<Job>,
    running: usize,
    memory: u64,
    done: Vec<Vec<Option<Seen>>>,
    finished: u64,
    weight: u64,
    failed: Option<Error>,
    state: Option<&'a mut State>,
}

/// Gives the memory of a run back, also when it panics.
struct Slot<'a, 'b> {
    all: &'b All<'a>,
    memory: u64,
}

struct All<'a> {
    shared: Mutex<Shared<'a>>,
    changed: Condvar,
}

impl<'a> All<'a> {
    fn lock(&self) -> MutexGuard<'_, Shared<'a>> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Slot<'_, '_> {
    fn drop(&mut self) {
        let mut shared = self.all.lock();
        shared.running -= 1;
        shared.memory -= self.memory;
        if std::thread::panicking() {
            shared.waiting.clear();
        }
        drop(shared);
        self.all.changed.notify_all();
    }
}

/// The first waiting run that fits beside the `used` bytes, or any if nothing runs.
fn pick(waiting: &[Job], cells: &[Cell], used: u64, running: usize, most: u64) -> Option<usize> {
    if running == 0 {
        return (!waiting.is_empty()).then_some(0);
    }
    waiting.iter().position(|job| used.saturating_add(cells[job.cell].memory) <= most)
}

impl Study {
    /// What identifies a run of `cell`: the hash of everything that its result depends on.
    pub fn key(&self, cell: &Cell, seed: u64, engine: &str) -> String {
        let text = format!("{}\0{}\0{}\0{seed}\0{engine}", self.name, cell.name, cell.params);
        sha256(text.as_bytes()).0.iter().map(|word| format!("{word:016x}")).collect()
    }

    /// Runs every cell with every seed; `progress` is called now and then.
    pub fn run(&self, opts: RunOpts, progress: &mut dyn FnMut(Progress)) -> Result<Results> {
        let seeds: Vec<u64> = opts.seeds.collect();
        let mut done: Vec<Vec<Option<Seen>>> = self.cells.iter().map(|_| vec![None; seeds.len()]).collect();
        let mut waiting = Vec::new();
        for (c, cell) in self.cells.iter().enumerate() {
            for (s, &seed) in seeds.iter().enumerate() {
                let kept = opts.state.as_ref().and_then(|state| state.get(&self.key(cell, seed, opts.engine)));
                match kept {
                    Some(seen) => done[c][s] = Some(seen.clone()),
                    None => waiting.push(Job { cell: c, seed: s }),
                }
            }
        }
        waiting.sort_by_key(|job| std::cmp::Reverse(self.cells[job.cell].weight));
        let total = (self.cells.len() * seeds.len()) as u64;
        let to_do: u64 = waiting.iter().map(|job| self.cells[job.cell].weight).sum();
        let (before, count) = (total - waiting.len() as u64, waiting.len());
        let all = All {
            shared: Mutex::new(Shared {
                waiting,
                running: 0,
                memory: 0,
                done,
                finished: 0,
                weight: 0,
                failed: None,
                state: opts.state,
            }),
            changed: Condvar::new(),
        };
        let started = Instant::now();
        std::thread::scope(|scope| {
            for _ in 0..opts.jobs.max(1).min(count) {
                scope.spawn(|| self.work(&all, &seeds, opts.memory, opts.engine));
            }
            let mut shared = all.lock();
            while shared.running > 0 || !shared.waiting.is_empty() {
                progress(Progress {
                    done: before + shared.finished,
                    total,
                    share: if to_do == 0 { 1.0 } else { shared.weight as f64 / to_do as f64 },
                    left: left(started.elapsed(), shared.weight, to_do),
                });
                shared = all.changed.wait_timeout(shared, TICK).unwrap_or_else(PoisonError::into_inner).0;
            }
        });
        let shared = all.shared.into_inner().unwrap_or_else(PoisonError::into_inner);
        if let Some(e) = shared.failed {
            return Err(e);
        }
        let runs = |runs: Vec<Option<Seen>>| runs.into_iter().flatten().collect();
        let cells = self.cells.iter().zip(shared.done).map(|(cell, seen)| (cell.name.clone(), runs(seen))).collect();
        Ok(Results { seeds, cells })
    }

    /// One thread.
    fn work(&self, all: &All, seeds: &[u64], most: u64, engine: &str) {
        loop {
            let mut shared = all.lock();
            let job = loop {
                if shared.waiting.is_empty() {
                    return;
                }
                let found = pick(&shared.waiting, &self.cells, shared.memory, shared.running, most);
                match found {
                    Some(at) => break shared.waiting.remove(at),
                    None => shared = all.changed.wait(shared).unwrap_or_else(PoisonError::into_inner),
                }
            };
            let cell = &self.cells[job.cell];
            shared.running += 1;
            shared.memory += cell.memory;
            drop(shared);
            let slot = Slot { all, memory: cell.memory };
            let seen = (cell.run)(seeds[job.seed]);
            let mut shared = all.lock();
            let kept = match (&seen, &mut shared.state) {
                (Ok(seen), Some(state)) => state.put(&self.key(cell, seeds[job.seed], engine), seen),
                _ => Ok(()),
            };
            shared.finished += 1;
            shared.weight += cell.weight;
            match (seen, kept) {
                (Ok(seen), Ok(())) => shared.done[job.cell][job.seed] = Some(seen),
                (Err(e), _) | (_, Err(e)) => {
                    shared.failed.get_or_insert(e);
                    shared.waiting.clear();
                }
            }
            drop(shared);
            drop(slot);
        }
    }
}

/// The time that the rest takes if it goes on as it went.
fn left(elapsed: Duration, done: u64, to_do: u64) -> Option<Duration> {
    let rest = to_do.checked_sub(done)?;
    (done > 0).then(|| elapsed.mul_f64(rest as f64 / done as f64))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cell(memory: u64) -> Cell {
        let run = Box::new(|_| Ok(Seen::default()));
        Cell { name: String::new(), params: String::new(), memory, weight: 1, run }
    }

    #[test]
    fn runs_that_fit_go_first_and_large_ones_alone() {
        let cells = [cell(8), cell(2)];
        let waiting = [0, 1].map(|cell| Job { cell, seed: 0 });
        for (used, running, most, want) in
            [(0, 0, 4, Some(0)), (2, 1, 4, Some(1)), (2, 1, 10, Some(0)), (3, 1, 4, None), (u64::MAX, 1, 4, None)]
        {
            assert_eq!(pick(&waiting, &cells, used, running, most), want, "{used} {running} {most}");
        }
        assert_eq!(pick(&[], &cells, 0, 0, 4), None);
    }

    #[test]
    fn the_rest_is_estimated_from_the_weight() {
        assert_eq!(left(Duration::from_secs(5), 0, 10), None);
        assert_eq!(left(Duration::from_secs(5), 2, 10), Some(Duration::from_secs(20)));
        assert_eq!(left(Duration::from_secs(5), 10, 10), Some(Duration::ZERO));
    }
}
