//! The plan of a pool: from its maps and block trees to files in their order and a prediction.
//!
//! In order: the space maps; the costs of the disk model; the survey of all files; the choice; then
//! each chosen file once more, block by block: the allocator's policy gives each block its new
//! place and the old one comes free, if nothing holds it. Of the places before and after a sample
//! is read in the simulator. The sample is windows of [`WINDOW`] bytes of files, so that what is
//! read in one go stays in one go, drawn with a fixed seed.
//!
//! Nothing is written. The pool may be in use: what is read is the state of one txg, and a file
//! whose blocks were overwritten meanwhile is left out and counted.

use base::{ErrorKind, Nanos, Result};
use sim::Rng;
use zdb::PoolReader;
use zdb::dsl::Dsl;
use zdb::heatmap::fragmentation;

use crate::extents::{Place, Runs, total};
use crate::plan::{Candidate, Choice, Goal, Limits, choose, slop};
use crate::predict::{Costs, Disk, costs, read_times};
use crate::space::{self, BUCKETS, SlabFigures};
use crate::survey::{Paths, Scale, Survey, each_place, heads, snapshot_of};
use crate::tops::Layout;

/// Bytes of a part of a file that is read in the simulator.
const WINDOW: u64 = 64 << 20;
/// A txg has what is written in so many seconds (`zfs_txg_timeout`), or a fifth of what may be
/// changed in memory (`zfs_dirty_data_sync_percent`), whichever is less.
const TXG_SECS: f64 = 5.0;
const TXG_PART: u64 = 5;
/// The seed of the choice of windows.
const SEED: u64 = 7;
/// Times of a nearline disk, where no model is measured.
const NEARLINE: Costs = Costs { byte: 5.0, run: 4e6 };
/// Entries of the MOS directory of a pool with cloned blocks begin so.
const CLONES: &str = "com.fudosecurity:brt:";

/// What to plan.
#[derive(Clone, PartialEq, Debug)]
pub struct Opts {
    /// The goal.
    pub goal: Goal,
    /// Bytes to write at most.
    pub bytes: u64,
    /// Percent that a file gains at least.
    pub min_gain: u32,
    /// The model of the disks; none: no prediction of times.
    pub disk: Option<Disk>,
    /// Blocks that are read in the simulator at most, before and after each.
    pub sample: u64,
    /// Most bytes of changes that the engine has in memory (`zfs_dirty_data_max`).
    pub dirty: u64,
}

impl Default for Opts {
    fn default() -> Opts {
        Opts {
            goal: Goal::Read,
            bytes: u64::MAX,
            min_gain: 10,
            disk: Some(Disk::default()),
            sample: 32_768,
            dirty: 1 << 30,
        }
    }
}

/// A file to rewrite.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct PlannedFile {
    /// The name of its dataset.
    pub(crate) dataset: String,
    /// Its path there, if it is known.
    pub(crate) path: Option<String>,
    /// How it lies, and could at best.
    pub(crate) file: Candidate,
    /// How it will lie.
    pub(crate) after: Runs,
}

/// Free space before or after.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct FreeSpace {
    /// Free segments by powers of two of their bytes.
    pub(crate) segments: [u64; BUCKETS],
    /// Metaslabs.
    pub(crate) slabs: Vec<SlabFigures>,
}

impl FreeSpace {
    /// Of all metaslabs for data.
    pub(crate) fn of(space: &space::Space) -> FreeSpace {
        FreeSpace { segments: space.segments(), slabs: space.figures() }
    }
    /// Percent, as `zpool list` counts; none without free space.
    pub(crate) fn fragmentation(&self) -> Option<u64> {
        fragmentation(&self.segments)
    }
    /// Bytes.
    pub(crate) fn free(&self) -> u64 {
        total(self.slabs.iter().map(|s| s.free))
    }
    /// Segments.
    pub(crate) fn count(&self) -> u64 {
        self.segments.iter().sum()
    }
}

/// Times of reading a sample.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Prediction {
    /// The name of the model.
    pub(crate) model: String,
    /// Blocks of the sample.
    pub(crate) blocks: u64,
    /// Bytes of their content.
    pub(crate) bytes: u64,
    /// The time as files lie.
    pub(crate) now: Nanos,
    /// The time as they will lie.
    pub(crate) after: Nanos,
}

/// A plan.
#[derive(Clone, PartialEq, Debug)]
pub struct PoolPlan {
    pub(crate) pool: String,
    pub(crate) guid: u64,
    pub(crate) txg: u64,
    pub(crate) goal: Goal,
    /// Files in the order in which they are to be rewritten.
    pub(crate) files: Vec<PlannedFile>,
    /// Sums, and what became of the other files.
    pub(crate) choice: Choice,
    pub(crate) before: FreeSpace,
    pub(crate) after: FreeSpace,
    pub(crate) prediction: Option<Prediction>,
    /// Files, bytes and runs of the pool.
    pub(crate) all: (u64, u64, u64),
    pub(crate) volumes: u64,
    pub(crate) unreadable: u64,
    /// What a reader should know, a sentence each.
    pub(crate) notes: Vec<String>,
}

/// Parts of files, as they lie and as they will.
#[derive(Default)]
pub(crate) struct Sample {
    /// As they lie.
    pub(crate) now: Vec<Vec<Place>>,
    /// As they will lie.
    pub(crate) after: Vec<Vec<Place>>,
    /// Blocks of each.
    pub(crate) blocks: u64,
}

/// The choice of windows of one file.
pub(crate) struct Windows {
    rng: Rng,
    /// Blocks to sample and blocks in all.
    share: (u64, u64),
    /// Bytes of this window that are gone by.
    gone: u64,
    taken: bool,
}

impl Windows {
    /// Of the file with this number in a plan.
    pub(crate) fn new(file: u64, share: (u64, u64)) -> Windows {
        Windows { rng: Rng::stream(SEED, file), share, gone: WINDOW, taken: false }
    }
    /// Takes the next block.
    pub(crate) fn push(&mut self, sample: &mut Sample, now: Place, after: Place) {
        let (wanted, all) = self.share;
        if self.gone >= WINDOW {
            self.gone = 0;
            let before = self.taken;
            self.taken = sample.blocks < wanted && (all <= wanted || self.rng.below(all) < wanted);
            // Windows that follow each other are one.
            if self.taken && !before {
                sample.now.push(Vec::new());
                sample.after.push(Vec::new());
            }
        }
        self.gone = self.gone.saturating_add(now.asize);
        if self.taken
            && sample.blocks < wanted
            && let (Some(a), Some(b)) = (sample.now.last_mut(), sample.after.last_mut())
        {
            a.push(now);
            b.push(after);
            sample.blocks += 1;
        }
    }
}

/// Plans.
///
/// # Errors
/// `Corrupt` if the space maps or the tree of datasets cannot be read, `Unsupported` if the disks
/// of a vdev are not modelled.
pub fn plan(pool: &PoolReader, opts: &Opts, progress: &mut dyn FnMut(&str)) -> Result<PoolPlan> {
    progress("space maps");
    let layout = Layout::of(pool);
    let mut space = space::load(pool, &layout)?;
    let costs = match &opts.disk {
        Some(disk) => costs(&layout, disk)?,
        None => NEARLINE,
    };
    let dsl = Dsl::load(pool)?;
    let before = FreeSpace::of(&space);
    let min_gain = f64::from(opts.min_gain) / 100.0;
    let scale = Scale { segments: before.segments, costs: &costs, goal: opts.goal, min_gain };
    let survey = Survey::of(pool, &dsl, &space, &scale, progress);
    // A rewrite reads and writes.
    let (busy, bytes) = (2.0 * costs.time(survey.bytes, survey.runs) / 1e9, survey.bytes as f64);
    let in_time = if busy > 0.0 { (bytes / busy * TXG_SECS) as u64 } else { u64::MAX };
    space.set_txg_bytes(in_time.min(opts.dirty / TXG_PART));
    let (size, free) = space.room();
    let room = free.saturating_sub(slop(size));
    let limits = Limits { goal: opts.goal, bytes: opts.bytes, room, transit: space.lag(), min_gain };
    let mut choice = choose(&survey.candidates, &costs, &limits);
    choice.little += survey.little + survey.forgotten;

    progress("new places");
    let mut notes = Vec::new();
    let chosen: Vec<Candidate> = choice.files.iter().map(|&i| survey.candidates[i]).collect();
    let blocks = total(chosen.iter().map(|c| c.runs.blocks));
    let (mut sample, mut files, mut unreadable) = (Sample::default(), Vec::new(), survey.unreadable);
    for (n, file) in chosen.iter().enumerate() {
        let share = if opts.disk.is_some() { (opts.sample, blocks) } else { (0, 1) };
        let mut windows = Windows::new(n as u64, share);
        let mut after = Runs::default();
        let head = heads(&dsl).into_iter().find(|d| d.obj == file.dataset);
        let Some(head) = head else { continue };
        let moved = pool.open_dataset(&head.name, head.obj, &head.phys.bp).and_then(|os| {
            let obj = os.object(file.object)?;
            space.begin_file(1 << obj.dn.epb_shift());
            each_place(pool, &obj, snapshot_of(head), &mut |now| {
                let new = if now.fixed { now } else { space.allocate(&now)? };
                after.push(new, space.is_fragmented(new.vdev, new.offset));
                windows.push(&mut sample, now, new);
                if !now.held && !now.fixed {
                    space.free(&now);
                }
                Ok(())
            })
        });
        match moved {
            Ok(()) => files.push(PlannedFile { dataset: head.name.clone(), path: None, file: *file, after }),
            Err(e) if e.kind() == ErrorKind::NoSpace => {
                choice.no_room += (chosen.len() - n) as u64;
                notes.push(format!("The plan ends at file {n}: {e}."));
                break;
            }
            Err(_) => unreadable += 1,
        }
    }
    choice.bytes = total(files.iter().map(|f| f.file.runs.bytes));
    choice.held = total(files.iter().map(|f| f.file.runs.held));
    choice.files.clear();
    space.settle();
    name(pool, &dsl, &mut files);

    let prediction = match &opts.disk {
        Some(disk) if sample.blocks > 0 => {
            progress("simulated reads");
            let sum = |streams: &[Vec<Place>]| -> Result<Nanos> {
                Ok(Nanos(read_times(&layout, disk, streams)?.iter().map(|t| t.0).sum()))
            };
            let bytes = total(sample.now.iter().flatten().map(|p| p.lsize));
            let (now, after) = (sum(&sample.now)?, sum(&sample.after)?);
            Some(Prediction { model: disk.name.clone(), blocks: sample.blocks, bytes, now, after })
        }
        _ => None,
    };
    if pool.directory.keys().any(|k| k.starts_with(CLONES)) {
        notes.push("The pool has cloned blocks: of files that others were cloned from, more stays allocated.".into());
    }
    if let Some(e) = &survey.error {
        notes.push(format!("{unreadable} files could not be read and are left out; the first: {e}."));
    }
    notes.extend(dsl.errors.iter().take(3).map(|e| format!("A dataset is left out: {e}.")));
    Ok(PoolPlan {
        pool: pool.name().to_owned(),
        guid: pool.devices.iter().find_map(|d| d.pool_guid()).map_or(0, |g| g.0),
        txg: pool.txg().0,
        goal: opts.goal,
        files,
        choice,
        before,
        after: FreeSpace::of(&space),
        prediction,
        all: (survey.files, survey.bytes, survey.runs),
        volumes: survey.volumes,
        unreadable,
        notes,
    })
}

/// Finds the paths of files.
fn name(pool: &PoolReader, dsl: &Dsl, files: &mut [PlannedFile]) {
    for head in heads(dsl) {
        if !files.iter().any(|f| f.file.dataset == head.obj) {
            continue;
        }
        let Ok(os) = pool.open_dataset(&head.name, head.obj, &head.phys.bp) else { continue };
        let mut paths = Paths::of(&os);
        files.iter_mut().filter(|f| f.file.dataset == head.obj).for_each(|f| f.path = paths.path(f.file.object));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::extents::at;

    #[test]
    fn a_sample_is_whole_windows_within_its_limit() {
        let m = 1 << 20;
        let run = |n: u64, share| {
            let (mut sample, mut w) = (Sample::default(), Windows::new(1, share));
            (0..n).for_each(|i| w.push(&mut sample, at(0, i * m, m), at(0, i * m, m)));
            sample
        };
        let all = run(1000, (1000, 1000));
        assert_eq!((all.blocks, all.now.len()), (1000, 1), "windows that follow each other are one");
        let some = run(10_000, (1000, 10_000));
        assert!((500..=1000).contains(&some.blocks), "{}", some.blocks);
        assert!(some.now.len() > 4 && some.now.iter().all(|w| !w.is_empty()));
        assert_eq!(run(100, (0, 1)).blocks, 0);
        assert_eq!(run(10_000, (1000, 10_000)).now, some.now, "the same again");
    }
}
