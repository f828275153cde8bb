//! How long sequential reads take, on the disks of the simulator.
//!
//! A *stream* is the places of consecutive blocks of one file. [`read_times`] reads streams one
//! after the other in virtual time as the engine reads a file from begin to end: a program asks for
//! [`READ`] bytes at a time, and after a few reads in order [`AHEAD`] reads of them are ahead of
//! it, by tasks that read [`WINDOW`] blocks at once each (`dmu`). The blocks are read by the
//! engine's own vdevs: the queues of the leaves, the sides of mirrors, the columns of RAID-Z and
//! dRAID; only the disks are modelled.
//!
//! The same read of the places after a rewrite gives the time after it. What both leave out (other
//! load, the cost of the mount, the cache, blocks of pointers) is the same before and after.
//!
//! [`costs`] makes two numbers of a model, the time of a byte and the time of a run, by which the
//! policy compares files without a simulation of each.
//!
//! Invariant: the same streams and model give the same times. A place that is not on its vdev takes
//! no time.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use base::{Guid, Nanos, Result};
use ondisk::vdev_config::VdevKind as ConfigKind;
use rt::Rt;
use rt::join::Pipeline;
use rt::sync::Notify;
use sim::{DiskConfig, DiskImage, HostLatency, Model, Pick, Rng, Sim, SimConfig, SimDisk};
use vdev::{BlockPlace, DirtyGauge, Leaf, Prio, QueueTunables, Top, VdevKind};

use crate::extents::{Place, at};
use crate::tops::Layout;

/// Bytes of a read of a program.
const READ: u64 = 128 << 10;
/// Most bytes ahead of it (`dmu`).
const AHEAD_MAX: u64 = 8 << 20;
/// Log2 of the reads ahead of it (`dmu`).
const AHEAD: u32 = 5;
/// Reads in order before anything is read ahead (`dmu`).
const AHEAD_MIN_RUN: u32 = 2;
/// Blocks that one task reads at once (`dmu`).
const WINDOW: usize = 32;
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

/// A block of a stream.
#[derive(Clone)]
enum Block {
    Away,
    Coming(Rc<Notify>),
    There,
}

/// A stream that is read.
struct Reader {
    rt: Rt,
    tops: Rc<Vec<Rc<Top>>>,
    stream: Rc<Vec<Place>>,
    blocks: RefCell<Vec<Block>>,
    /// Reads in order so far.
    run: Cell<u32>,
    /// The first block that is not read ahead.
    ahead: Cell<usize>,
}

impl Reader {
    /// Waits until a block is there.
    async fn block(self: Rc<Reader>, n: usize) {
        let state = self.blocks.borrow()[n].clone();
        match state {
            Block::There => {}
            Block::Coming(over) => over.notified().await,
            Block::Away => {
                let over = Rc::new(Notify::new());
                self.blocks.borrow_mut()[n] = Block::Coming(over.clone());
                self.rt.spend(rt::cost::DMU_BLOCK).await;
                let place = &self.stream[n];
                if let Some(top) = self.tops.get(place.vdev as usize) {
                    let (psize, birth) = (place.psize, place.birth);
                    let block = BlockPlace { vdev: top.id, offset: place.offset, psize, birth, written: birth };
                    // Damage is not the matter here.
                    let _ = top.read_first(block, Prio::SyncRead).await;
                }
                self.blocks.borrow_mut()[n] = Block::There;
                over.notify_all();
            }
        }
    }

    /// Waits for the blocks from `first` to `last`, several at once.
    async fn range(self: Rc<Reader>, first: usize, last: usize) {
        let mut window = Pipeline::new(WINDOW);
        for n in first..=last {
            window.push(self.clone().block(n)).await;
        }
        while window.next().await.is_some() {}
    }

    /// Reads ahead after a read from `first` to `last`, of blocks of `size` bytes.
    fn read_ahead(self: &Rc<Reader>, first: usize, last: usize, size: u64) {
        let run = self.run.get() + 1;
        self.run.set(run);
        if run < AHEAD_MIN_RUN {
            return;
        }
        let most = usize::try_from(AHEAD_MAX / size).unwrap_or(usize::MAX).max(1);
        let span = ((last - first + 1) << run.min(AHEAD)).min(most);
        let max = self.stream.len() - 1;
        let (from, to) = (self.ahead.get().max(last + 1), (last + span).min(max));
        if from <= to && (to - from >= span / 4 || to == max) {
            self.ahead.set(to + 1);
            self.rt.spawn("read ahead", self.clone().range(from, to));
        }
    }

    async fn all(self: Rc<Reader>) {
        let mut first = 0;
        while first < self.stream.len() {
            let size = self.stream[first].lsize.max(512);
            let count = usize::try_from(READ / size).unwrap_or(usize::MAX).max(1);
            let last = (first + count - 1).min(self.stream.len() - 1);
            self.read_ahead(first, last, size);
            self.clone().range(first, last).await;
            first = last + 1;
        }
    }
}

/// The virtual time that each of the streams takes, one after the other, on disks like `disk`.
///
/// # Errors
/// `Corrupt` if the vdevs make no sense.
pub(crate) fn read_times(layout: &Layout, disk: &Disk, streams: &[Vec<Place>]) -> Result<Vec<Nanos>> {
    let world = SimConfig { pick: Pick::Fifo, polls_per_instant_max: u64::MAX, ..SimConfig::seeded(SEED) };
    let sim = Sim::new(world);
    let rt = sim.rt();
    let mut count = 0;
    let tops = Rc::new(layout.tops(&mut |size| {
        count += 1;
        let seed = SEED * 256 + count;
        // Spindles are not in step.
        let model = match &disk.model {
            Model::Hdd(hdd) => Model::Hdd(hdd.clone().one_of(seed)),
            other => other.clone(),
        };
        let config =
            DiskConfig { volatile: false, host: disk.host, ..DiskConfig::new(DiskImage::zeroed(size), model, seed) };
        let dev = SimDisk::with(&sim.handle(), config).dev();
        let (gauge, tunables) = (DirtyGauge::default(), QueueTunables::default());
        VdevKind::Leaf(Leaf::new(&rt, Guid(seed), format!("disk {count}"), dev, gauge, tunables))
    })?);
    let mut times = Vec::new();
    for stream in streams {
        let begin = sim.now();
        let reader = Reader {
            rt: rt.clone(),
            tops: tops.clone(),
            stream: Rc::new(stream.clone()),
            blocks: RefCell::new(vec![Block::Away; stream.len()]),
            run: Cell::default(),
            ahead: Cell::default(),
        };
        sim.block_on(Rc::new(reader).all());
        times.push(sim.now().since(begin));
    }
    sim.crash();
    Ok(times)
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

/// Measures a model on these vdevs: blocks one behind the other, and at random places.
///
/// # Errors
/// As [`read_times`].
pub(crate) fn costs(layout: &Layout, disk: &Disk) -> Result<Costs> {
    let (count, size) = PROBE;
    let away = [ConfigKind::Hole, ConfigKind::Missing, ConfigKind::Indirect];
    let tops = layout.configs.iter().filter(|c| !away.contains(&c.kind));
    // A quarter of it is parity at most, and some more padding.
    let room = |asize: u64| (asize / (4 * size)).saturating_sub(2);
    let Some((vdev, room)) = tops.map(|c| (c.id as u32, room(c.asize.unwrap_or(0)))).find(|t| t.1 >= count) else {
        // So small a pool has no ways between its runs worth measuring.
        return Ok(Costs { byte: 1.0, run: size as f64 });
    };
    let mut rng = Rng::stream(SEED, 3);
    let unit = layout.tops(&mut |_| VdevKind::Missing)?[vdev as usize].asize_of(size, base::Txg(u64::MAX));
    let behind: Vec<Place> =
        (0..count).map(|n| Place { psize: size, lsize: size, ..at(vdev, n * unit, unit) }).collect();
    let apart = behind.iter().map(|p| Place { offset: rng.below(room) * unit, ..*p }).collect();
    let times = read_times(layout, disk, &[behind, apart])?;
    let [one, other] = [times[0].0 as f64, times[1].0 as f64];
    let byte = (one / (count * size) as f64).max(0.001);
    Ok(Costs { byte, run: (other - one).max(0.0) / count as f64 })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tops::tests::config;

    const K: u64 = 1 << 10;
    const G: u64 = 1 << 30;

    fn layout(kind: ConfigKind, children: u64) -> Layout {
        Layout { configs: vec![config(kind, 0, children, 64 * G)], moved: 0 }
    }
    fn time(layout: &Layout, stream: Vec<Place>) -> Nanos {
        read_times(layout, &Disk::default(), &[stream]).unwrap()[0]
    }
    fn apart(n: u64) -> Vec<Place> {
        (0..n).map(|i| at(0, i * 7919 % n * 256 * K * K, 128 * K)).collect()
    }
    fn behind(n: u64) -> Vec<Place> {
        (0..n).map(|i| at(0, i * 128 * K, 128 * K)).collect()
    }
    fn rate(bytes: u64, t: Nanos) -> f64 {
        bytes as f64 / 1e6 / t.as_secs_f64()
    }

    #[test]
    fn a_disk_reads_at_its_rate_behind_and_seeks_apart() {
        let one = layout(ConfigKind::Disk, 0);
        let times = [time(&one, behind(200)), time(&one, apart(200))];
        let rates = times.map(|t| rate(200 * 128 * K, t));
        assert!((120.0..225.0).contains(&rates[0]), "{rates:?} MB/s");
        assert!((5.0..40.0).contains(&rates[1]), "{rates:?} MB/s");
        assert_eq!(times[0], time(&one, behind(200)));
    }

    #[test]
    fn several_disks_are_faster() {
        let (disk, mirror, raidz) =
            (layout(ConfigKind::Disk, 0), layout(ConfigKind::Mirror, 2), layout(ConfigKind::Raidz, 5));
        let (one, two) = (time(&disk, apart(200)), time(&mirror, apart(200)));
        assert!(two.0 * 3 < one.0 * 2, "{two:?} of a mirror, {one:?} of a disk");
        let wide: Vec<Place> = (0..200).map(|i| Place { psize: 128 * K, ..at(0, i * 160 * K, 160 * K) }).collect();
        let striped = time(&raidz, wide);
        assert!(striped < time(&disk, behind(200)), "{striped:?}");
    }

    #[test]
    fn places_that_are_not_there_take_no_time() {
        let one = layout(ConfigKind::Disk, 0);
        for bad in [at(9, 0, K), at(0, 64 * G, 4 * K), at(u32::MAX, u64::MAX, 512)] {
            assert!(time(&one, vec![bad]).0 < 100_000, "{bad:?}");
        }
        assert!(time(&one, vec![]).0 == 0 && time(&one, vec![at(0, 0, 4 * K)]).0 > 0);
        assert!(time(&one, vec![at(9, 0, K), at(0, 0, 4 * K), at(0, 8 * K, 4 * K)]).0 > 0);
    }

    #[test]
    fn models_have_costs() {
        let c = costs(&layout(ConfigKind::Disk, 0), &Disk::default()).unwrap();
        assert!((3.0..10.0).contains(&c.byte), "{c:?}");
        assert!((1e6..20e6).contains(&c.run), "{c:?}");
        let nvme = Disk { model: Model::nvme(), ..Disk::default() };
        assert!(costs(&layout(ConfigKind::Raidz, 5), &nvme).unwrap().run < 1e5);
        assert_eq!(costs(&Layout::default(), &Disk::default()).unwrap().byte, 1.0);
        assert!((c.time(1 << 20, 2) - (c.byte * 1048576.0 + 2.0 * c.run)).abs() < 1.0);
    }
}
