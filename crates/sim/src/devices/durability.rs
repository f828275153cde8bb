//! Which writes a power cut may lose.
//!
//! A disk's writes pass three states. *In flight*: submitted; a cut leaves the old bytes, the new
//! ones, or a mixture by sector. *Pending*: completed, but no flush submitted later has completed;
//! a cut does the same to them. *Stable*: covered by a completed flush that was submitted after
//! they completed; they stay. Nothing else moves a write on. A durable write that completed is
//! pending like others, since it settles nothing but itself, and every cut keeps it.
//!
//! The state changes by [`Moment`]s only. A live disk feeds them as they happen, a recorded log
//! feeds them again later, so both give the same images for the same cut.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use bdev::Bytes;

use super::image::DiskImage;
use crate::Rng;

/// The change of the medium by an operation.
#[derive(Clone, Debug)]
pub(crate) enum Change {
    Write { offset: u64, data: Arc<[Bytes]> },
    Discard { offset: u64, len: u64 },
}

impl Change {
    pub(crate) fn range(&self) -> (u64, u64) {
        match self {
            Change::Write { offset, data } => (*offset, data.iter().map(|part| part.len() as u64).sum()),
            Change::Discard { offset, len } => (*offset, *len),
        }
    }
    pub(crate) fn apply(&self, to: &mut DiskImage) {
        match self {
            Change::Write { offset, data } => {
                let mut at = *offset;
                for part in data.iter() {
                    to.write(at, part);
                    at += part.len() as u64;
                }
            }
            Change::Discard { offset, len } => to.zero(*offset, *len),
        }
    }
    /// Applies those sectors for which `keep` is true.
    pub(crate) fn apply_torn(&self, to: &mut DiskImage, sector: u64, mut keep: impl FnMut() -> bool) {
        let (offset, len) = self.range();
        let mut whole = DiskImage::zeroed(to.size());
        // The result of the whole write; sectors are copied from it.
        whole.share(to, offset, len);
        self.apply(&mut whole);
        let mut at = offset;
        while at < offset + len {
            let end = (at / sector + 1) * sector;
            let part = end.min(offset + len) - at;
            if keep() {
                to.write(at, &whole.read_vec(at, part as usize));
            }
            at += part;
        }
    }
}

/// A change in the state of one operation, named by the disk's own numbering.
#[derive(Clone, Debug)]
pub(crate) enum Moment {
    /// A write or discard was submitted.
    Submitted { op: u64, change: Change },
    /// It completed. With an error, some sectors may have been written: `torn` seeds which. `kept`:
    /// every cut from now on keeps it.
    Completed { op: u64, torn: Option<u64>, kept: bool },
    /// A flush was submitted.
    FlushSubmitted { op: u64 },
    /// It completed; `honest` if it did flush.
    FlushCompleted { op: u64, honest: bool },
}

/// The effect of a power cut on writes that are not stable.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CutStyle {
    /// One of the others, drawn from the seed, or a fate for each write: kept, dropped or torn.
    Seeded,
    /// Every completed write is kept, every one in flight dropped.
    KeepCompleted,
    /// Only stable writes, and durable ones, are kept.
    KeepStable,
    /// Completed writes are kept up to one in the order of completion, which may be torn.
    Prefix,
    /// Each write, completed or in flight, is kept, dropped or torn.
    Scatter,
}

/// A completed write or discard that no flush has covered.
struct Pending {
    /// The serial number of its completion.
    serial: u64,
    change: Change,
    /// The seed of its tear.
    torn: Option<u64>,
    /// Whether a cut keeps it in any case.
    kept: bool,
}

pub(crate) struct Durability {
    stable: DiskImage,
    pending: VecDeque<Pending>,
    in_flight: BTreeMap<u64, Change>,
    /// For each flush in flight, the serial number of the first completion that it does not cover.
    flushes: BTreeMap<u64, u64>,
    completions: u64,
    /// Whether completed writes wait for a flush.
    volatile: bool,
    /// Bytes that a cut does not tear apart.
    sector: u64,
}

impl Durability {
    pub(crate) fn new(stable: DiskImage, volatile: bool, sector: u64) -> Durability {
        Durability {
            stable,
            pending: VecDeque::new(),
            in_flight: BTreeMap::new(),
            flushes: BTreeMap::new(),
            completions: 0,
            volatile,
            sector,
        }
    }
    pub(crate) fn stable_mut(&mut self) -> &mut DiskImage {
        &mut self.stable
    }
    pub(crate) fn pending_len(&self) -> usize {
        self.pending.len()
    }
    /// Whether a write or discard in flight touches the range.
    pub(crate) fn overlaps_in_flight(&self, offset: u64, len: u64) -> bool {
        self.in_flight.values().any(|change| {
            let (start, length) = change.range();
            start < offset + len && offset < start + length
        })
    }
    /// Takes `moment` in. `current` is the medium as reads see it, with every completed write; it
    /// is updated too.
    pub(crate) fn apply(&mut self, moment: &Moment, current: &mut DiskImage) {
        match moment {
            Moment::Submitted { op, change } => {
                self.in_flight.insert(*op, change.clone());
            }
            Moment::Completed { op, torn, kept } => {
                let change = self.in_flight.remove(op).expect("what completes was submitted");
                self.apply_one(&change, *torn, current);
                if self.volatile {
                    self.pending.push_back(Pending { serial: self.completions, change, torn: *torn, kept: *kept });
                } else {
                    let (offset, len) = change.range();
                    self.stable.share(current, offset, len);
                }
                self.completions += 1;
            }
            Moment::FlushSubmitted { op } => {
                self.flushes.insert(*op, self.completions);
            }
            Moment::FlushCompleted { op, honest } => {
                let covered = self.flushes.remove(op).expect("a flush that completes was submitted");
                if *honest {
                    self.settle(covered, current);
                }
            }
        }
    }
    fn apply_one(&self, change: &Change, torn: Option<u64>, to: &mut DiskImage) {
        match torn {
            None => change.apply(to),
            Some(seed) => {
                let mut rng = Rng::new(seed);
                change.apply_torn(to, self.sector, || rng.percent(50));
            }
        }
    }
    /// Makes completions below `covered` stable.
    fn settle(&mut self, covered: u64, current: &DiskImage) {
        let count = self.pending.partition_point(|p| p.serial < covered);
        let settled: Vec<_> = self.pending.drain(..count).collect();
        // Chunks that no later completion touches hold just the stable bytes on the medium: share
        // their memory.
        let newer: BTreeSet<u64> = self
            .pending
            .iter()
            .flat_map(|p| {
                let (offset, len) = p.change.range();
                DiskImage::chunk_numbers(offset, len)
            })
            .collect();
        for Pending { change, torn, .. } in settled {
            let (offset, len) = change.range();
            let numbers = DiskImage::chunk_numbers(offset, len);
            if newer.range(numbers).next().is_none() {
                self.stable.share(current, offset, len);
            } else {
                let mut stable = std::mem::take(&mut self.stable);
                self.apply_one(&change, torn, &mut stable);
                self.stable = stable;
            }
        }
    }
    /// A medium as a power cut at this moment may leave it.
    pub(crate) fn cut(&self, style: CutStyle, seed: u64) -> DiskImage {
        let mut rng = Rng::new(seed);
        let style = match style {
            CutStyle::Seeded => match rng.below(8) {
                0 => CutStyle::KeepCompleted,
                1 => CutStyle::KeepStable,
                2 | 3 => CutStyle::Prefix,
                _ => CutStyle::Scatter,
            },
            style => style,
        };
        let mut image = self.stable.clone();
        match style {
            CutStyle::KeepStable => {
                for p in self.pending.iter().filter(|p| p.kept) {
                    self.apply_one(&p.change, p.torn, &mut image);
                }
            }
            CutStyle::KeepCompleted => {
                for p in &self.pending {
                    self.apply_one(&p.change, p.torn, &mut image);
                }
            }
            CutStyle::Prefix => {
                let keep = rng.below(self.pending.len() as u64 + 1) as usize;
                for (n, p) in self.pending.iter().enumerate() {
                    if n < keep || p.kept {
                        self.apply_one(&p.change, p.torn, &mut image);
                    } else if n == keep {
                        p.change.apply_torn(&mut image, self.sector, || rng.percent(50));
                    }
                }
            }
            CutStyle::Scatter | CutStyle::Seeded => {
                // Swarm: each cut draws how much it keeps and how much it tears.
                let (keep, tear) = (rng.below(101), rng.below(60));
                for p in &self.pending {
                    if p.kept {
                        self.apply_one(&p.change, p.torn, &mut image);
                    } else {
                        self.fate(&p.change, p.torn, keep, tear, &mut rng, &mut image);
                    }
                }
                let keep = rng.below(101);
                for change in self.in_flight.values() {
                    self.fate(change, None, keep, tear, &mut rng, &mut image);
                }
            }
        }
        image
    }
    fn fate(&self, change: &Change, torn: Option<u64>, keep: u64, tear: u64, rng: &mut Rng, image: &mut DiskImage) {
        if rng.percent(tear) {
            if rng.percent(50) {
                // A prefix, as a head that lost power in mid-track leaves it.
                let (_, len) = change.range();
                let mut left = rng.below(len.div_ceil(self.sector) + 1);
                change.apply_torn(image, self.sector, || {
                    let here = left > 0;
                    left = left.saturating_sub(1);
                    here
                });
            } else {
                let each = rng.below(101);
                change.apply_torn(image, self.sector, || rng.percent(each));
            }
        } else if rng.percent(keep) {
            self.apply_one(change, torn, image);
        }
    }
}
