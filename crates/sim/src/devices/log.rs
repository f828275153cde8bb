//! [`DiskLog`]: the operations of one disk, from which power cuts are made afterwards.
//!
//! One run with a recorder gives as many crash images as one likes: at any moment, with any seed,
//! on all disks of a world at the same moment ([`crate::SimHandle::io_seq`] numbers the moments of
//! all disks together).

use base::Nanos;

use super::durability::{CutStyle, Durability, Moment};
use super::image::DiskImage;

#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub(crate) seq: u64,
    pub(crate) at: Nanos,
    pub(crate) moment: Moment,
}

/// The moments of one disk, in order.
#[derive(Clone, Debug)]
pub struct DiskLog {
    pub(crate) base: DiskImage,
    pub(crate) volatile: bool,
    pub(crate) sector: u64,
    pub(crate) entries: Vec<Entry>,
}

impl DiskLog {
    /// Moments recorded: submissions and completions.
    pub fn len(&self) -> usize {
        self.entries.len()
    }
    /// Whether nothing was recorded.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }
    /// Writes, discards and flushes that completed: the cut points of [`DiskLog::cut_after`] are 0
    /// to this.
    pub fn completed_ops(&self) -> u64 {
        self.entries.iter().filter(|entry| entry.is_completion()).count() as u64
    }
    /// The world's numbers of the moments at which something completed, in order.
    pub fn completions(&self) -> impl Iterator<Item = u64> + '_ {
        self.entries.iter().filter(|entry| entry.is_completion()).map(|entry| entry.seq)
    }
    /// The world's numbers of the first and last moment.
    pub fn seq_range(&self) -> Option<(u64, u64)> {
        Some((self.entries.first()?.seq, self.entries.last()?.seq))
    }
    /// When the moment numbered `seq` (or the last before it) happened.
    pub fn time_of(&self, seq: u64) -> Option<Nanos> {
        let after = self.entries.partition_point(|entry| entry.seq <= seq);
        after.checked_sub(1).map(|at| self.entries[at].at)
    }
    /// The disk as a power cut right after the `ops`th completion may leave it.
    pub fn cut_after(&self, ops: u64, seed: u64) -> DiskImage {
        let mut replay = self.replay();
        replay.to_completed(ops);
        replay.cut(CutStyle::Seeded, seed)
    }
    /// The disk as a power cut right after the world's moment `seq` may leave it.
    pub fn cut_at(&self, seq: u64, seed: u64) -> DiskImage {
        let mut replay = self.replay();
        replay.to_seq(seq);
        replay.cut(CutStyle::Seeded, seed)
    }
    /// Walks through the log: many cuts in one pass.
    pub fn replay(&self) -> Replay<'_> {
        Replay {
            log: self,
            next: 0,
            completed: 0,
            current: self.base.clone(),
            state: Durability::new(self.base.clone(), self.volatile, self.sector),
        }
    }
}

impl Entry {
    fn is_completion(&self) -> bool {
        matches!(self.moment, Moment::Completed { .. } | Moment::FlushCompleted { .. })
    }
}

/// A walk through a [`DiskLog`].
pub struct Replay<'a> {
    log: &'a DiskLog,
    next: usize,
    completed: u64,
    current: DiskImage,
    state: Durability,
}

impl Replay<'_> {
    /// Takes one moment in: its number, or `None` at the end.
    pub fn step(&mut self) -> Option<u64> {
        let entry = self.log.entries.get(self.next)?;
        self.state.apply(&entry.moment, &mut self.current);
        self.next += 1;
        self.completed += u64::from(entry.is_completion());
        Some(entry.seq)
    }
    /// Goes on to the world's moment `seq` (never back).
    pub fn to_seq(&mut self, seq: u64) {
        while self.log.entries.get(self.next).is_some_and(|entry| entry.seq <= seq) {
            self.step();
        }
    }
    /// Goes on until `ops` operations have completed (never back).
    pub fn to_completed(&mut self, ops: u64) {
        while self.completed < ops && self.step().is_some() {}
    }
    /// The disk as a power cut now may leave it.
    pub fn cut(&self, style: CutStyle, seed: u64) -> DiskImage {
        self.state.cut(style, seed)
    }
    /// The disk as reads see it now.
    pub fn image(&self) -> DiskImage {
        self.current.clone()
    }
}
