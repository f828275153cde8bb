//! What of a vdev is still to be copied, and what a free of it means meanwhile (format page 23
//! section 3).
//!
//! What is live is, ascending by offset: mapped; in the *window* of a txg that is not synced yet,
//! which has the chunks of that txg; in *todo*, the rest of the metaslab that the task is at; or
//! beyond. Each byte counts as done once: with the txg that maps it, or with the one that frees it
//! before that.

use std::collections::BTreeMap;

use base::{Result, Txg};
use metaslab::{RangeTree, Run};

use super::plan::{Chunk, next_chunk};

/// The chunks of a txg that is not synced yet.
#[derive(Default)]
struct Window {
    /// Where the last one ends.
    end: u64,
    /// Ranges of them that were freed.
    frees: Vec<Run>,
}

/// See the module.
pub(super) struct Ledger {
    todo: RangeTree,
    next: u64,
    windows: BTreeMap<Txg, Window>,
    /// Bytes that count as done from a txg on.
    done: BTreeMap<Txg, u64>,
}

impl Ledger {
    /// Of a vdev of which everything below `next` is mapped.
    pub fn new(next: u64, ashift: u8) -> Ledger {
        let todo = RangeTree::new(0, 1 << ashift, ashift);
        Ledger { todo, next, windows: BTreeMap::new(), done: BTreeMap::new() }
    }

    /// Where the last chunk ends.
    pub fn next(&self) -> u64 {
        self.next
    }

    /// The metaslab `run` is next, of which `live` is live.
    pub fn visit(&mut self, run: Run, live: &[Run], ashift: u8) -> Result<()> {
        let mut todo = RangeTree::new(run.start, run.size, ashift);
        live.iter().try_for_each(|r| todo.add(r.start, r.size))?;
        let done = self.next.clamp(run.start, run.end());
        if done > run.start {
            todo.clear_range(run.start, done - run.start)?;
        }
        self.todo = todo;
        Ok(())
    }

    /// The next chunk of the metaslab, as [`next_chunk`] says.
    pub fn chunk(&self, max: u64, span: u64) -> Option<Chunk> {
        next_chunk(self.todo.iter(), max, span)
    }

    /// `txg` copies the next chunk.
    pub fn take(&mut self, chunk: &Chunk, txg: Txg) -> Result<()> {
        self.todo.clear_range(chunk.start, chunk.len)?;
        self.next = chunk.end();
        self.windows.entry(txg).or_default().end = chunk.end();
        self.count(txg, chunk.used());
        Ok(())
    }

    /// A range was freed in `txg`, which is being synced; everything live below `mapped` is mapped.
    /// Returns the part of it that is.
    pub fn freed(&mut self, run: Run, mapped: u64, txg: Txg) -> Result<Option<Run>> {
        let (mut at, end) = (run.start, run.end());
        let below = end.min(mapped);
        let part = (at < below).then(|| Run { start: at, size: below - at });
        at = at.max(below);
        for (of, window) in &mut self.windows {
            let upto = end.min(window.end);
            if at < upto {
                window.frees.push(Run { start: at, size: upto - at });
                // A cut before that txg leaves the range free: from now on it counts as done.
                if let Some(n) = self.done.get_mut(of) {
                    *n = n.saturating_sub(upto - at);
                }
                *self.done.entry(txg).or_default() += upto - at;
                at = upto;
            }
        }
        if at < end {
            let area = self.todo.area();
            let (from, to) = (at.max(area.start), end.min(area.end()));
            if from < to {
                self.todo.clear_range(from, to - from)?;
            }
            self.count(txg, end - at);
        }
        Ok(part)
    }

    /// The chunks of `txg` are mapped, or given up. Returns what of them was freed before.
    pub fn close_window(&mut self, txg: Txg) -> Vec<Run> {
        self.windows.remove(&txg).map(|w| w.frees).unwrap_or_default()
    }

    fn count(&mut self, txg: Txg, bytes: u64) {
        *self.done.entry(txg).or_default() += bytes;
    }

    /// Bytes that count as done with `txg` and were not taken yet.
    pub fn done_with(&self, txg: Txg) -> u64 {
        self.done.get(&txg).copied().unwrap_or(0)
    }

    /// Takes them.
    pub fn take_done(&mut self, txg: Txg) -> u64 {
        self.done.remove(&txg).unwrap_or(0)
    }

    /// Takes those of all txgs.
    pub fn take_all_done(&mut self) -> u64 {
        std::mem::take(&mut self.done).into_values().sum()
    }
}

#[cfg(test)]
mod tests {
    use sim::Rng;

    use super::*;

    const UNIT: u64 = 512;
    const METASLAB: usize = 64;
    const METASLABS: usize = 4;

    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    enum Place {
        Beyond,
        In(Txg),
        Mapped,
    }

    /// Every unit of a vdev by itself.
    struct World {
        rng: Rng,
        ledger: Ledger,
        live: Vec<bool>,
        place: Vec<Place>,
        /// Units that were freed in the window of a txg.
        freed: BTreeMap<Txg, Vec<u64>>,
        metaslab: usize,
        visited: bool,
        open: Txg,
        mapped: u64,
    }

    fn run_of(start: usize, end: usize) -> Run {
        Run { start: start as u64 * UNIT, size: (end - start) as u64 * UNIT }
    }

    fn units(runs: &[Run]) -> Vec<u64> {
        runs.iter().flat_map(|r| r.start / UNIT..r.end() / UNIT).collect()
    }

    impl World {
        fn new(seed: u64) -> World {
            let mut rng = Rng::stream(seed, 1);
            let fill = [20, 50, 95][rng.below(3) as usize];
            let live = (0..METASLAB * METASLABS).map(|_| rng.percent(fill)).collect::<Vec<_>>();
            World {
                ledger: Ledger::new(0, 9),
                place: vec![Place::Beyond; live.len()],
                live,
                freed: BTreeMap::new(),
                metaslab: 0,
                visited: false,
                open: Txg(10),
                mapped: 0,
                rng,
            }
        }

        /// A step of the task.
        fn copy(&mut self) {
            if self.metaslab == METASLABS {
                return;
            }
            let (first, end) = (self.metaslab * METASLAB, (self.metaslab + 1) * METASLAB);
            if !self.visited {
                let live: Vec<Run> = (first..end).filter(|u| self.live[*u]).map(|u| run_of(u, u + 1)).collect();
                self.ledger.visit(run_of(first, end), &live, 9).expect("within the metaslab");
                self.visited = true;
            }
            let (max, span) = (UNIT * self.rng.between(1, 20), UNIT * self.rng.below(4));
            let Some(chunk) = self.ledger.chunk(max, span) else {
                assert!((0..end).all(|u| !self.live[u] || self.place[u] != Place::Beyond), "nothing is left behind");
                (self.metaslab, self.visited) = (self.metaslab + 1, false);
                return;
            };
            for u in units(&chunk.ranges()) {
                assert!(self.live[u as usize] && self.place[u as usize] == Place::Beyond, "unit {u} is copied once");
            }
            assert!(units(&chunk.gaps).into_iter().all(|u| !self.live[u as usize]), "gaps are free");
            self.ledger.take(&chunk, self.open).expect("it is there");
            (chunk.start / UNIT..chunk.end() / UNIT).for_each(|u| self.place[u as usize] = Place::In(self.open));
        }

        /// Frees a run of live units in `txg`.
        fn free(&mut self, txg: Txg) {
            let first = self.rng.below(self.live.len() as u64) as usize;
            let long = self.rng.between(1, 12) as usize;
            let end = (first..self.live.len()).take(long).find(|u| !self.live[*u]);
            let end = end.unwrap_or((first + long).min(self.live.len())).min((first / METASLAB + 1) * METASLAB);
            if end <= first {
                return;
            }
            let mapped = (first..end).take_while(|u| self.place[*u] == Place::Mapped).count();
            let want = (mapped > 0).then(|| run_of(first, first + mapped));
            assert_eq!(self.ledger.freed(run_of(first, end), self.mapped, txg).expect("within the vdev"), want);
            for u in first..end {
                self.live[u] = false;
                if let Place::In(of) = self.place[u] {
                    self.freed.entry(of).or_default().push(u as u64);
                }
            }
        }
    }

    /// Chunks and frees in any order: each part of a free is told as what it is, and each byte
    /// counts once, in the txg from which on it is done.
    #[test]
    fn frees_are_told_apart_and_bytes_count_once() {
        for seed in 0..400 {
            let mut w = World::new(seed);
            let total = w.live.iter().filter(|l| **l).count() as u64;
            let (mut done, mut told) = (0, 0);
            while w.metaslab < METASLABS || w.place.iter().any(|p| matches!(p, Place::In(_))) {
                (0..w.rng.below(5)).for_each(|_| w.copy());
                let txg = w.open;
                w.open = txg.next();
                (0..w.rng.below(3)).for_each(|_| w.copy());
                let mut frees = units(&w.ledger.close_window(txg));
                let mut want = w.freed.remove(&txg).unwrap_or_default();
                frees.sort_unstable();
                want.sort_unstable();
                assert_eq!(frees, want, "seed {seed}");
                told += frees.len();
                for u in 0..w.place.len() {
                    if w.place[u] == Place::In(txg) {
                        (w.place[u], w.mapped) = (Place::Mapped, (u as u64 + 1) * UNIT);
                    }
                }
                for _ in 0..w.rng.below(4) {
                    w.free(txg);
                    w.copy();
                }
                done += w.ledger.take_done(txg);
                let left = (0..w.live.len()).filter(|u| w.live[*u] && w.place[*u] != Place::Mapped).count() as u64;
                assert_eq!(done, (total - left) * UNIT, "seed {seed}, txg {txg}");
            }
            assert_eq!((done, w.ledger.take_all_done()), (total * UNIT, 0), "seed {seed}, {told} in windows");
        }
    }
}
