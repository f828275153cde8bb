//! How long sequential reads take, by the disk models of the simulator.
//!
//! A *stream* is the places of consecutive blocks of one file. [`read_times`] reads streams one
//! after the other in virtual time, as the engine reads a file from begin to end: [`AHEAD`] bytes,
//! or [`WANTED`] blocks, are wanted at a time, in file order; each leaf has [`ACTIVE`] operations
//! in flight at most; waiting operations that are near each other become one. A block of RAID-Z is
//! read by its data columns, one of a mirror from the side that has least to do.
//!
//! The same read of the places after a rewrite gives the time after it. What both leave out (other
//! load, the cost of the engine and of the mount, the cache) is the same before and after.
//!
//! [`costs`] makes two numbers of a model, the time of a byte and the time of a run, by which the
//! policy compares files without a simulation of each.
//!
//! Invariants: the same streams and model give the same times; every place lies within its disk or
//! is left out.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use base::{Error, Nanos, Result};
use bdev::{BlockDev, Buf, Op};
use ondisk::label::DATA_START;
use ondisk::vdev_config::VdevKind;
use sim::{DiskConfig, DiskImage, HostLatency, Model, Rng, Sim, SimConfig, SimDisk};
use zdb::PoolReader;
use zdb::raidz::{self, Shape};

use crate::extents::Place;

/// Bytes that are read ahead of a sequential reader: 32 times its reads of 128 KiB (`dmu`).
const AHEAD: u64 = 4 << 20;
/// Blocks that it waits for at a time: four tasks read ahead, each with a window of 32 (`dmu`).
const WANTED: usize = 128;
/// Reads in flight at a leaf (`zfs_vdev_sync_read_max_active`).
const ACTIVE: usize = 10;
/// Longest operation at a leaf in bytes (`zfs_vdev_aggregation_limit`).
const AGGREGATE: u64 = 1 << 20;
/// Bytes between two reads that become one (`zfs_vdev_read_gap_limit`).
const GAP: u64 = 32 << 10;
/// Bytes of a disk beyond what its vdev allocates.
const BEYOND: u64 = 8 << 20;
/// Most bytes of a vdev: sums with offsets in it are numbers.
const SIZE_MAX: u64 = 1 << 56;
/// The seed of all that is left to chance.
const SEED: u64 = 1;
/// Blocks of a stream by which a model is measured, and their bytes.
const PROBE: (u64, u64) = (512, 128 << 10);

/// The model of the disks.
#[derive(Clone, PartialEq, Debug)]
pub struct Disk {
    /// Its name in reports.
    pub name: String,
    /// How long operations take.
    pub model: Model,
    /// What the host adds.
    pub host: HostLatency,
}

impl Default for Disk {
    fn default() -> Disk {
        Disk { name: "hdd".into(), model: Model::hdd(), host: HostLatency::default() }
    }
}

/// How a top-level vdev is made of disks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    /// The same bytes on so many disks.
    Mirror(usize),
    /// So many columns, with parity, in sectors of 2 to the power of the last number.
    Raidz(u64, u64, u32),
    /// Its data were moved to other vdevs.
    Removed,
}

/// A top-level vdev.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct TopShape {
    kind: Kind,
    /// Its first disk.
    first: usize,
    /// Bytes that it allocates from.
    size: u64,
}

/// The disks of a pool.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Shapes {
    tops: Vec<Option<TopShape>>,
    /// Bytes of each disk.
    disks: Vec<u64>,
}

impl Shapes {
    /// Of an open pool.
    ///
    /// # Errors
    /// `Unsupported` if a vdev is of a kind that is not modelled.
    pub(crate) fn of(pool: &PoolReader) -> Result<Shapes> {
        let mut shapes = Shapes::default();
        for (id, top) in pool.io.tops.iter().enumerate() {
            let Some(top) = top else {
                shapes.tops.push(None);
                continue;
            };
            let width = top.children.len().max(1);
            let kind = match &top.kind {
                VdevKind::Raidz => Kind::Raidz(width as u64, top.nparity, top.ashift),
                VdevKind::Indirect => Kind::Removed,
                kind if top.children.is_empty()
                    || matches!(kind, VdevKind::Mirror | VdevKind::Replacing | VdevKind::Spare) =>
                {
                    Kind::Mirror(width)
                }
                kind => {
                    let name = kind.name();
                    return Err(Error::unsupported(format!(
                        "vdev {id}: reads from a {name} are not modelled, so there is no prediction: use --no-predict"
                    )));
                }
            };
            shapes.add(kind, top.asize);
        }
        Ok(shapes)
    }

    fn add(&mut self, kind: Kind, size: u64) {
        let size = size.min(SIZE_MAX);
        let (disks, each) = match kind {
            Kind::Mirror(n) => (n, size),
            Kind::Raidz(n, ..) => (n as usize, size.div_ceil(n)),
            Kind::Removed => (0, 0),
        };
        self.tops.push(Some(TopShape { kind, first: self.disks.len(), size }));
        let each = (each + DATA_START + BEYOND) & !4095;
        self.disks.extend(std::iter::repeat_n(each, disks));
    }

    /// What a reader of the block at `place` reads: ranges of disks. Those of a mirror name its
    /// first disk.
    fn parts(&self, place: &Place) -> Vec<Part> {
        let Some(Some(top)) = self.tops.get(place.vdev as usize) else { return Vec::new() };
        if place.offset.checked_add(place.asize).is_none_or(|end| end > top.size) || place.asize > AGGREGATE * 64 {
            return Vec::new();
        }
        match top.kind {
            Kind::Mirror(sides) => {
                vec![Part { disk: top.first, sides, offset: place.offset + DATA_START, len: place.asize, block: 0 }]
            }
            Kind::Raidz(columns, parity, ashift) => {
                let shape = Shape { logical: columns, physical: columns, moved: None, parity, ashift };
                let all = raidz::columns(shape, place.offset, place.psize);
                let data = all.iter().skip(parity as usize).flat_map(|c| &c.parts).filter(|p| p.size > 0);
                let part = |p: &raidz::Part| Part {
                    disk: top.first + p.child,
                    sides: 1,
                    offset: p.offset + DATA_START,
                    len: p.size,
                    block: 0,
                };
                data.map(part).collect()
            }
            Kind::Removed => Vec::new(),
        }
    }
}

/// A range of a disk that is to be read for a block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Part {
    disk: usize,
    /// Disks from that one on that have the same bytes.
    sides: usize,
    offset: u64,
    len: u64,
    /// The number of the block in its stream.
    block: usize,
}

/// A disk and what waits for it.
struct Leaf {
    disk: SimDisk,
    waiting: VecDeque<Part>,
    active: usize,
    /// Where the last operation ended.
    last: u64,
}

/// A reader at work.
struct Reader<'a> {
    shapes: &'a Shapes,
    leaves: Vec<Leaf>,
    /// Parts that are still to come of each block of the stream, from `oldest` on, and the bytes of
    /// its content.
    left: VecDeque<(usize, u64)>,
    /// The sum of those bytes.
    ahead: u64,
    oldest: usize,
    next: usize,
}

impl Reader<'_> {
    /// Wants the next blocks of a stream, as many as may be wanted at a time.
    fn want(&mut self, stream: &[Place]) {
        while self.next < stream.len() && (self.left.is_empty() || self.left.len() < WANTED && self.ahead < AHEAD) {
            let parts = self.shapes.parts(&stream[self.next]);
            let bytes = stream[self.next].lsize;
            self.left.push_back((parts.len(), bytes));
            self.ahead = self.ahead.saturating_add(bytes);
            for part in parts {
                let leaf = self.side(&part);
                self.leaves[leaf].waiting.push_back(Part { block: self.next, ..part });
            }
            self.next += 1;
            self.retire();
        }
    }

    /// The disk that a part is read from: the one with the least to do, then the nearest.
    fn side(&self, part: &Part) -> usize {
        let key = |n: &usize| {
            let leaf = &self.leaves[*n];
            (leaf.active + leaf.waiting.len(), leaf.last.abs_diff(part.offset), *n)
        };
        (part.disk..part.disk + part.sides).min_by_key(key).unwrap_or(part.disk)
    }

    /// Forgets the oldest blocks as far as they are complete: a reader takes blocks in order.
    fn retire(&mut self) {
        while let Some(&(0, bytes)) = self.left.front() {
            self.left.pop_front();
            self.ahead = self.ahead.saturating_sub(bytes);
            self.oldest += 1;
        }
    }

    /// Parts of `blocks` are there.
    fn done(&mut self, leaf: usize, blocks: &[usize]) {
        self.leaves[leaf].active -= 1;
        for block in blocks {
            if let Some((left, _)) = block.checked_sub(self.oldest).and_then(|at| self.left.get_mut(at)) {
                *left = left.saturating_sub(1);
            }
        }
        self.retire();
    }
}

/// The next operation of a leaf: its range and the blocks that it is for.
fn aggregate(waiting: &mut VecDeque<Part>) -> Option<(u64, u64, Vec<usize>)> {
    let lead = waiting.pop_front()?;
    let (mut start, mut end, mut blocks) = (lead.offset, lead.offset + lead.len, vec![lead.block]);
    loop {
        let joins = |p: &Part| {
            let to = p.offset + p.len;
            let near = p.offset <= end.saturating_add(GAP) && start <= to.saturating_add(GAP);
            near && end.max(to) - start.min(p.offset) <= AGGREGATE
        };
        let Some(at) = waiting.iter().position(joins) else { return Some((start, end - start, blocks)) };
        let Some(part) = waiting.remove(at) else { return Some((start, end - start, blocks)) };
        (start, end) = (start.min(part.offset), end.max(part.offset + part.len));
        blocks.push(part.block);
    }
}

/// Operations that have ended: the leaf and the blocks of each.
#[derive(Default)]
struct Finished {
    list: RefCell<Vec<(usize, Vec<usize>)>>,
    waker: Cell<Option<Waker>>,
}

impl Finished {
    fn post(&self, leaf: usize, blocks: Vec<usize>) {
        self.list.borrow_mut().push((leaf, blocks));
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }

    fn poll(&self, cx: &Context<'_>) -> Poll<Vec<(usize, Vec<usize>)>> {
        let some = self.list.take();
        if some.is_empty() {
            self.waker.set(Some(cx.waker().clone()));
            return Poll::Pending;
        }
        Poll::Ready(some)
    }
}

/// The virtual time that each of the streams takes, one after the other, on disks like `disk`.
pub(crate) fn read_times(shapes: &Shapes, disk: &Disk, streams: &[Vec<Place>]) -> Vec<Nanos> {
    let sim = Sim::new(SimConfig::seeded(SEED));
    let leaf = |(n, &size): (usize, &u64)| {
        let seed = SEED * 256 + n as u64;
        // Spindles are not in step.
        let model = match &disk.model {
            Model::Hdd(hdd) => Model::Hdd(hdd.clone().one_of(seed)),
            other => other.clone(),
        };
        let config =
            DiskConfig { volatile: false, host: disk.host, ..DiskConfig::new(DiskImage::zeroed(size), model, seed) };
        Leaf { disk: SimDisk::with(&sim.handle(), config), waiting: VecDeque::new(), active: 0, last: 0 }
    };
    let leaves = shapes.disks.iter().enumerate().map(leaf).collect();
    let mut reader = Reader { shapes, leaves, left: VecDeque::new(), ahead: 0, oldest: 0, next: 0 };
    let finished: Rc<Finished> = Rc::default();
    let mut times = Vec::new();
    for stream in streams {
        let begin = sim.now();
        (reader.next, reader.oldest) = (0, 0);
        loop {
            reader.want(stream);
            for n in 0..reader.leaves.len() {
                while reader.leaves[n].active < ACTIVE
                    && let Some((offset, len, blocks)) = aggregate(&mut reader.leaves[n].waiting)
                {
                    let (leaf, finished) = (&mut reader.leaves[n], finished.clone());
                    leaf.active += 1;
                    leaf.last = offset + len;
                    let op = Op::Read { offset, bufs: vec![Buf::for_overwrite(len as usize)] };
                    leaf.disk.submit(op, Box::new(move |_| finished.post(n, blocks)));
                }
            }
            if reader.leaves.iter().all(|l| l.active == 0) {
                break;
            }
            let some = sim.block_on(poll_fn(|cx| finished.poll(cx)));
            some.iter().for_each(|(leaf, blocks)| reader.done(*leaf, blocks));
        }
        times.push(sim.now().since(begin));
    }
    sim.crash();
    times
}

/// The time of a byte and of the way to a run, in nanoseconds.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct Costs {
    /// Nanoseconds of a stored byte within a run.
    pub(crate) byte: f64,
    /// Nanoseconds of the way to a run.
    pub(crate) run: f64,
}

impl Costs {
    /// Nanoseconds that reading so many bytes in so many runs takes.
    pub(crate) fn time(&self, bytes: u64, runs: u64) -> f64 {
        self.byte * bytes as f64 + self.run * runs as f64
    }
}

/// Measures a model on these disks: blocks one behind the other, and at random places.
pub(crate) fn costs(shapes: &Shapes, disk: &Disk) -> Costs {
    let (count, size) = PROBE;
    let top = shapes.tops.iter().enumerate().find_map(|(id, t)| Some((id as u32, (*t)?)));
    let Some((vdev, top)) = top.filter(|(_, t)| t.size >= 2 * count * size) else {
        // So small a pool has no ways between its runs worth measuring.
        return Costs { byte: 1.0, run: size as f64 };
    };
    let mut rng = Rng::stream(SEED, 3);
    let room = top.size / size - 2;
    let place =
        |offset| Place { vdev, offset, asize: size, psize: size, lsize: size, gang: false, held: false, fixed: false };
    let behind: Vec<Place> = (0..count).map(|n| place(n * size)).collect();
    let apart: Vec<Place> = (0..count).map(|_| place(rng.below(room) * size)).collect();
    let times = read_times(shapes, disk, &[behind, apart]);
    let [one, other] = [times[0].0 as f64, times[1].0 as f64];
    let byte = (one / (count * size) as f64).max(0.001);
    Costs { byte, run: (other - one).max(0.0) / count as f64 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::extents::at;

    const K: u64 = 1 << 10;
    const M: u64 = 1 << 20;
    const G: u64 = 1 << 30;

    fn shapes(kinds: &[Kind]) -> Shapes {
        let mut s = Shapes::default();
        kinds.iter().for_each(|&k| s.add(k, 64 * G));
        s
    }
    fn apart(n: u64) -> Vec<Place> {
        (0..n).map(|i| at(0, i * 7919 % n * 256 * M, 128 * K)).collect()
    }
    fn behind(n: u64) -> Vec<Place> {
        (0..n).map(|i| at(0, i * 128 * K, 128 * K)).collect()
    }
    fn rate(bytes: u64, t: Nanos) -> f64 {
        bytes as f64 / 1e6 / t.as_secs_f64()
    }

    #[test]
    fn a_disk_reads_at_its_rate_behind_and_seeks_apart() {
        let times = read_times(&shapes(&[Kind::Mirror(1)]), &Disk::default(), &[behind(200), apart(200)]);
        let [one, other] = [rate(200 * 128 * K, times[0]), rate(200 * 128 * K, times[1])];
        assert!((150.0..225.0).contains(&one), "{one} MB/s");
        assert!((5.0..40.0).contains(&other), "{other} MB/s");
        assert_eq!(times, read_times(&shapes(&[Kind::Mirror(1)]), &Disk::default(), &[behind(200), apart(200)]));
    }

    #[test]
    fn several_disks_are_faster() {
        let time =
            |kind, stream: &Vec<Place>| read_times(&shapes(&[kind]), &Disk::default(), std::slice::from_ref(stream))[0];
        let (one, two) = (time(Kind::Mirror(1), &apart(200)), time(Kind::Mirror(2), &apart(200)));
        assert!(two.0 * 3 < one.0 * 2, "{two:?} of a mirror, {one:?} of a disk");
        let wide: Vec<Place> = (0..200).map(|i| Place { psize: 128 * K, ..at(0, i * 160 * K, 160 * K) }).collect();
        let raidz = time(Kind::Raidz(5, 1, 12), &wide);
        assert!(raidz < time(Kind::Mirror(1), &behind(200)), "{raidz:?}");
    }

    #[test]
    fn parts_are_within_disks() {
        let s = shapes(&[Kind::Mirror(2), Kind::Raidz(5, 1, 12)]);
        assert_eq!(s.disks.len(), 7);
        assert!(s.parts(&at(2, 0, K)).is_empty() && s.parts(&at(0, 64 * G, K)).is_empty());
        let parts = s.parts(&Place { psize: 128 * K, ..at(1, 0, 160 * K) });
        assert_eq!((parts.len(), parts.iter().map(|p| p.len).sum::<u64>()), (4, 128 * K));
        assert!(parts.iter().all(|p| (2..7).contains(&p.disk)));
        let far = s.parts(&at(u32::MAX, u64::MAX, 512));
        assert!(far.is_empty());
        let times = read_times(&s, &Disk::default(), &[vec![at(9, 0, K)], vec![], vec![at(0, 0, 4 * K)]]);
        assert!(times[0].0 == 0 && times[1].0 == 0 && times[2].0 > 0, "{times:?}");
    }

    #[test]
    fn neighbours_become_one_operation() {
        let part = |offset, block| Part { disk: 0, sides: 1, offset, len: 128 * K, block };
        let mut w: VecDeque<Part> = [part(M, 0), part(9 * M, 1), part(M + 128 * K, 2), part(M - 150 * K, 3)].into();
        assert_eq!(aggregate(&mut w), Some((M - 150 * K, 406 * K, vec![0, 2, 3])));
        assert_eq!(aggregate(&mut w), Some((9 * M, 128 * K, vec![1])));
        assert_eq!(aggregate(&mut w), None);
        let mut long: VecDeque<Part> = (0..20).map(|i| part(i * 128 * K, i as usize)).collect();
        assert_eq!(aggregate(&mut long).map(|a| a.1), Some(M));
    }

    #[test]
    fn models_have_costs() {
        let c = costs(&shapes(&[Kind::Mirror(1)]), &Disk::default());
        assert!((3.0..10.0).contains(&c.byte), "{c:?}");
        assert!((1e6..20e6).contains(&c.run), "{c:?}");
        let nvme = Disk { model: Model::nvme(), ..Disk::default() };
        assert!(costs(&shapes(&[Kind::Mirror(1)]), &nvme).run < 1e5);
        assert_eq!(costs(&Shapes::default(), &Disk::default()).byte, 1.0);
        assert!((c.time(1 << 20, 2) - (c.byte * 1048576.0 + 2.0 * c.run)).abs() < 1.0);
    }
}
