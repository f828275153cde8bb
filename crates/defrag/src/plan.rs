//! The policy: which files to rewrite, in which order.
//!
//! Files are compared by what rewriting them gains for each byte that it writes. Of the goal *read*
//! the gain is the time of a sequential read: the runs that the file would lose, each worth the way
//! to it. Of the goal *space* it is the bytes that leave fragmented metaslabs. [`choose`] takes
//! files in this order while each of them gains enough by itself, within a limit of bytes, and as
//! long as there is room: bytes that snapshots hold stay allocated, so the pool grows by them.
//!
//! Invariants: what is chosen writes no more than the limit and grows the pool by no more than its
//! room, counting the file under way, of which both copies are there; the same files give the same
//! plan in whatever order they come.

use crate::extents::Runs;
use crate::predict::Costs;
use crate::space::{BUCKETS, segments_for};

/// Least and greatest bytes that no plan uses, unless half the pool is less (`spa_slop_shift` 5).
const SLOP: (u64, u64) = (128 << 20, 128 << 30);

/// What a plan is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Goal {
    /// Files that are read from begin to end.
    #[default]
    Read,
    /// Long free segments.
    Space,
}

impl Goal {
    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            Goal::Read => "read",
            Goal::Space => "space",
        }
    }
}

/// A file, and what rewriting it would do.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct Candidate {
    /// Its dataset's object.
    pub(crate) dataset: u64,
    /// Its object.
    pub(crate) object: u64,
    /// Its blocks.
    pub(crate) runs: Runs,
    /// Runs that it would have at best.
    pub(crate) runs_after: u64,
}

/// The limits of a plan.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct Limits {
    /// The goal.
    pub(crate) goal: Goal,
    /// Bytes to write at most.
    pub(crate) bytes: u64,
    /// Bytes by which the pool may grow, the slop left alone.
    pub(crate) room: u64,
    /// Bytes of a file under way that are there twice: what is freed is not at once free again.
    pub(crate) transit: u64,
    /// Share of itself, 0 to 1, that a file gains at least: of its time of reading, or of its
    /// bytes.
    pub(crate) min_gain: f64,
}

/// The files of a plan in their order, and what became of the others.
#[derive(Clone, PartialEq, Debug, Default)]
pub(crate) struct Choice {
    /// Indices into the candidates.
    pub(crate) files: Vec<usize>,
    /// Bytes that they take, written anew.
    pub(crate) bytes: u64,
    /// Bytes that stay allocated.
    pub(crate) held: u64,
    /// Files that gain too little.
    pub(crate) little: u64,
    /// Files beyond the limit of bytes.
    pub(crate) beyond: u64,
    /// Files for which there is no room.
    pub(crate) no_room: u64,
}

/// Bytes of a pool of `size` that no plan uses.
pub(crate) fn slop(size: u64) -> u64 {
    (size >> 5).clamp(SLOP.0.min(size / 2), SLOP.1)
}

impl Candidate {
    /// A file with these blocks in a pool with these free segments.
    pub(crate) fn new((dataset, object): (u64, u64), runs: Runs, segments: &[u64; BUCKETS]) -> Candidate {
        let best = segments_for(runs.bytes, segments).max(1).saturating_add(runs.fixed_runs);
        Candidate { dataset, object, runs, runs_after: best.min(runs.runs) }
    }

    /// What rewriting gains: nanoseconds of reading, or bytes.
    fn gain(&self, goal: Goal, costs: &Costs) -> f64 {
        match goal {
            Goal::Read => costs.time(0, self.runs.runs - self.runs_after),
            Goal::Space => self.runs.fragmented.saturating_sub(self.runs.held) as f64,
        }
    }
    /// The gain as a share of the whole, 0 to 1.
    pub(crate) fn share(&self, goal: Goal, costs: &Costs) -> f64 {
        let whole = match goal {
            Goal::Read => costs.time(self.runs.stored, self.runs.runs),
            Goal::Space => self.runs.bytes as f64,
        };
        if whole > 0.0 { self.gain(goal, costs) / whole } else { 0.0 }
    }
    /// The gain for each byte that is written.
    pub(crate) fn worth(&self, goal: Goal, costs: &Costs) -> f64 {
        self.gain(goal, costs) / self.runs.bytes.max(1) as f64
    }
}

/// The files to rewrite.
pub(crate) fn choose(all: &[Candidate], costs: &Costs, limits: &Limits) -> Choice {
    let mut order: Vec<usize> = (0..all.len()).collect();
    let key = |i: &usize| (all[*i].worth(limits.goal, costs), all[*i].dataset, all[*i].object);
    order.sort_by(|a, b| {
        let ((worth_a, da, oa), (worth_b, db, ob)) = (key(a), key(b));
        worth_b.total_cmp(&worth_a).then((da, oa).cmp(&(db, ob)))
    });
    let mut choice = Choice::default();
    for i in order {
        let c = &all[i];
        let gain = c.share(limits.goal, costs);
        let transit = c.runs.bytes.saturating_sub(c.runs.held).min(limits.transit);
        let grows = choice.held.saturating_add(c.runs.held);
        let writes = choice.bytes.saturating_add(c.runs.bytes);
        if gain <= 0.0 || gain < limits.min_gain {
            choice.little += 1;
        } else if writes > limits.bytes {
            choice.beyond += 1;
        } else if grows.saturating_add(transit) > limits.room {
            choice.no_room += 1;
        } else {
            choice.files.push(i);
            (choice.bytes, choice.held) = (writes, grows);
        }
    }
    choice
}

#[cfg(test)]
mod tests {
    use super::*;

    const M: u64 = 1 << 20;
    const COSTS: Costs = Costs { byte: 5.0, run: 5e6 };

    fn file(object: u64, bytes: u64, runs: u64, held: u64) -> Candidate {
        let runs = Runs { blocks: bytes >> 17, bytes, stored: bytes, runs, held, ..Runs::default() };
        Candidate { dataset: 1, object, runs, runs_after: 1.min(runs.runs) }
    }
    fn limits() -> Limits {
        Limits { goal: Goal::Read, bytes: u64::MAX, room: u64::MAX, transit: 1 << 30, min_gain: 0.1 }
    }
    fn chosen(all: &[Candidate], l: &Limits) -> Vec<u64> {
        choose(all, &COSTS, l).files.iter().map(|&i| all[i].object).collect()
    }

    #[test]
    fn files_go_by_gain_for_each_byte() {
        let all =
            [file(1, 100 * M, 1, 0), file(2, 100 * M, 500, 0), file(3, 10 * M, 80, 0), file(4, 1000 * M, 9000, 0)];
        assert_eq!(chosen(&all, &limits()), [4, 3, 2]);
        assert_eq!(choose(&all, &COSTS, &limits()).little, 1, "a file in one run gains nothing");
        let mut turned = all;
        turned.reverse();
        assert_eq!(chosen(&turned, &limits()), [4, 3, 2]);
        let twins = [file(9, M, 8, 0), file(5, M, 8, 0)];
        assert_eq!(chosen(&twins, &limits()), [5, 9]);
    }

    #[test]
    fn limits_are_kept() {
        let all = [file(2, 100 * M, 500, 0), file(3, 10 * M, 80, 0), file(4, 1000 * M, 9000, 0)];
        let few = choose(&all, &COSTS, &Limits { bytes: 120 * M, ..limits() });
        assert_eq!((few.files.len(), few.bytes, few.beyond), (2, 110 * M, 1), "smaller ones still fit");
        // 100 MiB read in 0.52 s; 2 runs more are 10 ms.
        let near = [file(1, 100 * M, 3, 0)];
        assert!(chosen(&near, &limits()).is_empty());
        assert_eq!(chosen(&near, &Limits { min_gain: 0.01, ..limits() }), [1]);
        assert!(chosen(&[file(1, 0, 0, 0)], &Limits { min_gain: 0.0, ..limits() }).is_empty());
    }

    #[test]
    fn the_pool_does_not_grow_beyond_its_room() {
        let all = [file(1, 100 * M, 900, 100 * M), file(2, 100 * M, 800, 60 * M), file(3, 50 * M, 300, 0)];
        let c = choose(&all, &COSTS, &Limits { room: 150 * M, ..limits() });
        let files: Vec<u64> = c.files.iter().map(|&i| all[i].object).collect();
        assert_eq!((files, c.held, c.no_room), (vec![1, 3], 100 * M, 1));
        let none = choose(&all, &COSTS, &Limits { room: 0, ..limits() });
        assert_eq!((none.files.len(), none.no_room), (0, 3));
        // Of a large file only a part is there twice.
        let large = [file(1, 1 << 40, 1 << 23, 0)];
        assert_eq!(chosen(&large, &Limits { room: 1 << 30, ..limits() }), [1]);
    }

    #[test]
    fn the_goal_of_space_empties_fragmented_metaslabs() {
        let with = |object, fragmented, held| {
            let c = file(object, 100 * M, 1, held);
            Candidate { runs: Runs { fragmented, ..c.runs }, ..c }
        };
        let all = [with(1, 0, 0), with(2, 90 * M, 0), with(3, 100 * M, 0), with(4, 100 * M, 100 * M)];
        assert_eq!(chosen(&all, &Limits { goal: Goal::Space, ..limits() }), [3, 2]);
    }

    #[test]
    fn candidates_know_what_they_can_become() {
        let mut segments = [0; BUCKETS];
        segments[30] = 4;
        let runs = Runs { bytes: 100 * M, runs: 500, fixed_runs: 7, ..Runs::default() };
        assert_eq!(Candidate::new((1, 2), runs, &segments).runs_after, 8);
        let runs = Runs { runs: 3, fixed_runs: 3, ..runs };
        assert_eq!(Candidate::new((1, 2), runs, &segments).runs_after, 3, "never worse than now");
        assert_eq!([slop(64 * M), slop(1 << 30), slop(64 << 30), slop(1 << 50)], [32 * M, 128 * M, 2 << 30, 128 << 30]);
    }
}
