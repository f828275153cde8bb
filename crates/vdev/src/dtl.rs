//! Health and dirty time log of a leaf.
//!
//! The *dirty time log* (DTL) of a leaf is the set of txgs of which it may miss writes. A block
//! born in one of them is read from other devices first. `spa` keeps the sets on disk, as space
//! maps of txgs; this file has the part that reading and writing need.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;

use base::{Nanos, TXG_INITIAL, Txg};

use crate::inject::Faults;

/// A set of txgs, kept as ranges.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct TxgSet {
    /// Ranges `start..end`, ascending, apart.
    runs: Vec<(u64, u64)>,
}

impl TxgSet {
    /// The empty set.
    pub const fn new() -> TxgSet {
        TxgSet { runs: Vec::new() }
    }
    /// The set of all txgs.
    pub fn all() -> TxgSet {
        TxgSet { runs: vec![(0, u64::MAX)] }
    }
    /// The txgs that are in more than `count` of `sets`.
    pub fn in_more_than(sets: &[TxgSet], count: usize) -> TxgSet {
        let mut edges: Vec<(u64, i64)> = Vec::new();
        for (start, end) in sets.iter().flat_map(|s| s.runs.iter().copied()) {
            edges.extend([(start, 1), (end, -1)]);
        }
        // A range that begins where another ends is adjacent: sort beginnings first.
        edges.sort_unstable_by_key(|(at, step)| (*at, -step));
        let (mut out, mut depth, mut since) = (TxgSet::new(), 0i64, None);
        for (at, step) in edges {
            depth += step;
            let deep = depth > count as i64;
            match (deep, since) {
                (true, None) => since = Some(at),
                (false, Some(start)) => {
                    out.add(start, at);
                    since = None;
                }
                _ => {}
            }
        }
        out
    }
    /// Whether the set is empty.
    pub fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }
    /// Whether `txg` is in it.
    pub fn contains(&self, txg: Txg) -> bool {
        let i = self.runs.partition_point(|&(_, end)| end <= txg.0);
        self.runs.get(i).is_some_and(|&(start, _)| start <= txg.0)
    }
    /// Adds `start..end`.
    pub fn add(&mut self, start: u64, end: u64) {
        if start >= end {
            return;
        }
        let first = self.runs.partition_point(|&(_, e)| e < start);
        let last = self.runs.partition_point(|&(s, _)| s <= end);
        let (mut start, mut end) = (start, end);
        if first < last {
            start = start.min(self.runs[first].0);
            end = end.max(self.runs[last - 1].1);
        }
        self.runs.splice(first..last, [(start, end)]);
    }
    /// Removes `start..end`.
    pub fn remove(&mut self, start: u64, end: u64) {
        if start >= end {
            return;
        }
        let mut out = Vec::with_capacity(self.runs.len() + 1);
        for &(s, e) in &self.runs {
            if s < start.min(e) {
                out.push((s, e.min(start)));
            }
            if e > end.max(s) {
                out.push((s.max(end), e));
            }
        }
        self.runs = out;
    }
    /// The ranges `(start, end)`, ascending.
    pub fn runs(&self) -> &[(u64, u64)] {
        &self.runs
    }
    /// The smallest and the largest txg in it.
    pub fn bounds(&self) -> Option<(Txg, Txg)> {
        Some((Txg(self.runs.first()?.0), Txg(self.runs.last()?.1 - 1)))
    }
}

/// State of a vdev, from good to bad, in the terms of `zpool status`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Debug)]
pub enum Health {
    /// In use.
    #[default]
    Online,
    /// In use, but it or a descendant is impaired.
    Degraded,
    /// Taken out of use because of errors.
    Faulted,
    /// Taken out of use by the administrator.
    Offline,
    /// The device was removed physically.
    Removed,
    /// Not found, or too few of its children are.
    Unavail,
}

impl Health {
    /// The name that `zpool status` prints.
    pub fn name(self) -> &'static str {
        match self {
            Health::Online => "ONLINE",
            Health::Degraded => "DEGRADED",
            Health::Faulted => "FAULTED",
            Health::Offline => "OFFLINE",
            Health::Removed => "REMOVED",
            Health::Unavail => "UNAVAIL",
        }
    }
    /// Whether it takes part in reading and writing.
    pub fn is_open(self) -> bool {
        matches!(self, Health::Online | Health::Degraded)
    }
}

/// Errors of one kind within this span count together, as zed counts them (`io_t`, `checksum_t`: 10
/// minutes).
pub const ERROR_SPAN: Nanos = Nanos::from_secs(600);
/// This many errors within the span make a fault (`io_n`, `checksum_n`).
pub const ERRORS_MAX: usize = 10;

/// Why a leaf with too many errors is faulted or degraded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FaultCause {
    /// Reads, writes or flushes fail.
    Io,
    /// It returns data with wrong checksums.
    Checksum,
}

/// Times of the last errors of one kind.
#[derive(Default, Debug)]
struct Window(VecDeque<Nanos>);

impl Window {
    /// Counts an error; true if there were too many within the span.
    fn count(&mut self, now: Nanos) -> bool {
        self.0.push_back(now);
        if self.0.len() > ERRORS_MAX {
            self.0.pop_front();
        }
        self.0.len() == ERRORS_MAX && self.0.front().is_some_and(|first| now.since(*first) <= ERROR_SPAN)
    }
}

/// The mutable state of a leaf, present or absent.
#[derive(Default, Debug)]
pub struct Condition {
    health: Cell<Health>,
    /// It has been in use before, in this import.
    was_open: Cell<bool>,
    missing: RefCell<TxgSet>,
    /// Births of blocks whose repair failed since the running scan began.
    unrepaired: RefCell<TxgSet>,
    /// Bytes that the last scan rewrote.
    scan_repaired: Cell<u64>,
    /// It was in use all the time since the running scan began.
    in_scan: Cell<bool>,
    /// It lacks copies of a removal that is under way.
    misses_copies: Cell<bool>,
    dirty: Cell<bool>,
    failed_write: Cell<bool>,
    io_errors: RefCell<Window>,
    checksum_errors: RefCell<Window>,
    fault: Cell<Option<FaultCause>>,
    probe_wanted: Cell<bool>,
    /// Faults on purpose.
    pub faults: Faults,
}

impl Condition {
    /// A leaf in `health` with an empty dirty time log.
    pub fn new(health: Health) -> Condition {
        Condition { health: Cell::new(health), ..Condition::default() }
    }
    /// Its health.
    pub fn health(&self) -> Health {
        self.health.get()
    }
    /// Changes its health.
    pub fn set_health(&self, health: Health) {
        let before = self.health.replace(health);
        self.was_open.set(self.was_open.get() || before.is_open());
        if !health.is_open() {
            self.in_scan.set(false);
        }
    }
    /// Whether it is in use, or has been since the import.
    pub fn has_been_open(&self) -> bool {
        self.was_open.get() || self.health.get().is_open()
    }
    /// Whether it may miss a block born in `txg`; txg 0 stands for any txg.
    pub fn misses(&self, txg: Txg) -> bool {
        let missing = self.missing.borrow();
        !missing.is_empty() && (txg.0 == 0 || missing.contains(txg))
    }
    /// The dirty time log.
    pub fn missing(&self) -> TxgSet {
        self.missing.borrow().clone()
    }
    /// Replaces the dirty time log with the one read from disk.
    pub fn set_missing(&self, set: TxgSet) {
        *self.missing.borrow_mut() = set;
    }
    /// Adds `start..end` to the dirty time log.
    pub fn miss(&self, start: u64, end: u64) {
        let mut missing = self.missing.borrow_mut();
        let before = missing.clone();
        missing.add(start, end);
        if *missing != before {
            self.dirty.set(true);
        }
    }
    /// Copies that a removal of a vdev made in `txg` are not on it. They are of blocks of any
    /// birth, and no scan visits them before the removal has ended: until
    /// [`Condition::copies_are_data`] the leaf stays incomplete.
    pub fn miss_copies(&self, txg: Txg) {
        self.misses_copies.set(true);
        self.miss(TXG_INITIAL.0, txg.0 + 1);
    }
    /// Whether it lacks copies of a removal that is under way.
    pub fn misses_copies(&self) -> bool {
        self.misses_copies.get()
    }
    /// The removal has ended: a scan that begins now visits its copies, one that runs has passed
    /// some over. Whether some were missed.
    pub fn copies_are_data(&self) -> bool {
        let missed = self.misses_copies.replace(false);
        self.in_scan.set(self.in_scan.get() && !missed);
        missed
    }
    /// Removes all txgs before `upto` from the dirty time log: they were resilvered.
    pub fn caught_up(&self, upto: u64) {
        let mut missing = self.missing.borrow_mut();
        if !missing.is_empty() {
            missing.remove(0, upto);
            self.dirty.set(true);
        }
    }
    /// A scan up to txg `upto` (excluded) has ended: it repaired all blocks but those whose repair
    /// failed.
    pub fn scanned(&self, upto: u64) {
        self.caught_up(upto);
        for &(start, end) in self.unrepaired.take().runs() {
            self.miss(start, end);
        }
    }
    /// A scan begins: births of failed repairs are collected until its end.
    pub fn scan_begins(&self) {
        *self.unrepaired.borrow_mut() = TxgSet::new();
        self.scan_repaired.set(0);
        self.in_scan.set(self.health.get().is_open());
    }
    /// Whether it was in use all the time since the running scan began.
    pub fn is_in_scan(&self) -> bool {
        self.in_scan.get()
    }
    /// The same for a scan that goes on after an import.
    pub fn set_in_scan(&self, is: bool) {
        self.in_scan.set(is);
    }
    /// Counts bytes that a scan rewrites.
    pub(crate) fn note_scan_repair(&self, bytes: u64) {
        self.scan_repaired.set(self.scan_repaired.get().saturating_add(bytes));
    }
    /// Bytes that the running or last scan since the import has rewritten.
    pub fn scan_repaired(&self) -> u64 {
        self.scan_repaired.get()
    }
    pub(crate) fn note_failed_repair(&self, birth: Txg) {
        if birth.0 != 0 {
            self.unrepaired.borrow_mut().add(birth.0, birth.0 + 1);
            self.miss(birth.0, birth.0 + 1);
        }
    }
    /// Whether the dirty time log changed since the last call and must be written.
    pub fn take_dirty(&self) -> bool {
        self.dirty.replace(false)
    }
    /// Marks the dirty time log for writing.
    pub fn set_dirty(&self) {
        self.dirty.set(true);
    }
    /// An operation failed.
    pub(crate) fn note_io_error(&self, now: Nanos) {
        self.probe_wanted.set(true);
        if self.io_errors.borrow_mut().count(now) {
            self.fault.set(Some(FaultCause::Io));
        }
    }
    /// A block read from it had a wrong checksum.
    pub(crate) fn note_checksum_error(&self, now: Nanos) {
        if self.checksum_errors.borrow_mut().count(now) && self.fault.get().is_none() {
            self.fault.set(Some(FaultCause::Checksum));
        }
    }
    /// The cause of a fault, once.
    pub fn take_fault(&self) -> Option<FaultCause> {
        self.fault.take()
    }
    /// Whether an operation failed since the last call, so that the device should be probed
    /// (`vdev_probe_wanted` of OpenZFS).
    pub fn take_probe_wanted(&self) -> bool {
        self.probe_wanted.replace(false)
    }
    /// Clears all errors.
    pub fn clear_errors(&self) {
        self.io_errors.borrow_mut().0.clear();
        self.checksum_errors.borrow_mut().0.clear();
        self.fault.set(None);
        self.probe_wanted.set(false);
    }
    pub(crate) fn note_failed_write(&self) {
        self.failed_write.set(true);
    }
    /// Whether a write failed since [`Condition::take_failed_write`].
    pub fn has_failed_write(&self) -> bool {
        self.failed_write.get()
    }
    /// Whether a write failed since the last call.
    pub fn take_failed_write(&self) -> bool {
        self.failed_write.replace(false)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn too_many_errors_in_too_short_a_time() {
        let c = Condition::default();
        for i in 0..40 {
            c.note_io_error(Nanos::from_secs(i * 100));
        }
        assert_eq!(c.take_fault(), None, "ten in fifteen minutes are bearable");
        for i in 0..9 {
            c.note_checksum_error(Nanos::from_secs(10_000 + i));
        }
        assert_eq!(c.take_fault(), None);
        c.note_checksum_error(Nanos::from_secs(10_100));
        assert_eq!((c.take_fault(), c.take_fault()), (Some(FaultCause::Checksum), None));
        (0..10).for_each(|i| c.note_io_error(Nanos::from_secs(20_000 + i)));
        assert_eq!(c.take_fault(), Some(FaultCause::Io));
    }

    #[test]
    fn sets_of_txgs_are_sets() {
        let mut set = TxgSet::new();
        let mut model = [false; 64];
        let mut x = 12345u64;
        for _ in 0..2000 {
            x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let (a, b) = ((x >> 33) % 64, (x >> 43) % 64);
            let (start, end) = (a.min(b), a.max(b));
            let add = (x >> 60) & 1 == 0;
            if add {
                set.add(start, end);
            } else {
                set.remove(start, end);
            }
            model[start as usize..end as usize].fill(add);
            for (i, m) in model.iter().enumerate() {
                assert_eq!(set.contains(Txg(i as u64)), *m, "{i} in {set:?}");
            }
            assert!(set.runs().windows(2).all(|w| w[0].1 < w[1].0));
        }
    }
}
