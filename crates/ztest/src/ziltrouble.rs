//! Trouble below an intent log while a load runs: log devices that fail to write or to flush, that
//! disappear, a pool that is full, a flush of the pool that fails.
//!
//! A log device that fails costs time, never data and never an error: commits go to the pool then.
//! A pool that is full, or that cannot flush, gives errors; acknowledged changes stay safe all the
//! same, and failed ones were not acknowledged.

use std::cell::Cell;

use sim::{Fault, OpKind, Rng, SimDisk};
use spa::Bias;

use crate::lab::Shape;

/// A kind of trouble.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Trouble {
    /// None.
    #[default]
    None,
    /// Log devices fail some writes for a while.
    LogWrites,
    /// Log devices fail some flushes for a while.
    LogFlushes,
    /// Log devices disappear for good.
    LogGone,
    /// There is hardly any space left.
    Full,
    /// One flush of a device of the pool fails.
    PoolFlush,
    /// One write to a device of the pool fails.
    PoolWrite,
}

impl Trouble {
    /// All kinds, with the names that commands use.
    pub const NAMES: [(&'static str, Trouble); 7] = [
        ("none", Trouble::None),
        ("log-writes", Trouble::LogWrites),
        ("log-flushes", Trouble::LogFlushes),
        ("log-gone", Trouble::LogGone),
        ("full", Trouble::Full),
        ("pool-flush", Trouble::PoolFlush),
        ("pool-write", Trouble::PoolWrite),
    ];

    /// Its name.
    pub fn name(self) -> &'static str {
        Trouble::NAMES.iter().find(|(_, t)| *t == self).map_or("none", |(n, _)| n)
    }

    /// Whether it is about log devices.
    pub fn needs_log(self) -> bool {
        matches!(self, Trouble::LogWrites | Trouble::LogFlushes | Trouble::LogGone)
    }

    /// Whether operations may fail under it.
    pub fn excuses_errors(self) -> bool {
        matches!(self, Trouble::Full | Trouble::PoolFlush | Trouble::PoolWrite)
    }
}

/// The numbers of the disks of a shape that are log devices.
pub(crate) fn log_disks(shape: &Shape) -> Vec<usize> {
    let mut at = 0;
    let mut out = Vec::new();
    for &(_, bias, n) in shape.groups {
        if matches!(bias, Bias::Log) {
            out.extend(at..at + n);
        }
        at += n;
    }
    out
}

/// Trouble that comes and goes with the steps of the load.
pub(crate) struct Schedule {
    trouble: Trouble,
    /// The disks that have it.
    disks: Vec<SimDisk>,
    steps: Cell<u64>,
    begin: u64,
    end: u64,
    skip: u64,
    per_mille: u64,
}

impl Schedule {
    /// Draws when trouble comes within a load of so many steps.
    pub(crate) fn draw(trouble: Trouble, shape: &Shape, disks: &[SimDisk], steps: u64, rng: &mut Rng) -> Schedule {
        let logs = log_disks(shape);
        let on_log = trouble.needs_log();
        let mut with: Vec<SimDisk> =
            disks.iter().enumerate().filter(|(n, _)| logs.contains(n) == on_log).map(|(_, d)| d.clone()).collect();
        if !on_log {
            with = with.into_iter().take(1).collect();
        }
        let begin = rng.below(steps / 2 + 1);
        let end = begin + 1 + rng.below(steps / 2 + 1);
        let per_mille = 200 + rng.below(800);
        Schedule { trouble, disks: with, steps: Cell::new(0), begin, end, skip: rng.below(4), per_mille }
    }

    /// One more step of the load is done.
    pub(crate) fn step(&self) {
        let n = self.steps.get();
        self.steps.set(n + 1);
        if n == self.begin
            && let Some(fault) = self.fault()
        {
            self.disks.iter().for_each(|d| {
                d.fault(fault.clone());
            });
        }
        if n == self.end && self.trouble != Trouble::LogGone {
            self.disks.iter().for_each(SimDisk::clear_faults);
        }
    }

    fn fault(&self) -> Option<Fault> {
        let some = |kind| Some(Fault::FailSome { kind: Some(kind), per_mille: self.per_mille });
        let one = |kind| Some(Fault::FailOne { kind: Some(kind), skip: self.skip });
        match self.trouble {
            Trouble::None | Trouble::Full => None,
            Trouble::LogWrites => some(OpKind::Write),
            Trouble::LogFlushes => some(OpKind::Flush),
            Trouble::LogGone => Some(Fault::Offline),
            Trouble::PoolFlush => one(OpKind::Flush),
            Trouble::PoolWrite => one(OpKind::Write),
        }
    }
}
