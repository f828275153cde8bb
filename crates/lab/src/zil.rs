//! `weir lab zil`: synchronous writers on pools of disks, under the commit policies of the intent
//! log.
//!
//! It repeats the measurements of Prakash Surya for illumos 8585 (OpenZFS pull request 447,
//! September 2017; [`crate::published`]): a stripe of disks with one file system, `threads` writers
//! with a file each, 8 KiB at a time, one after the other, each durable before the next. They write
//! as fast as they can, or 64 times a second each with the gaps of a Poisson process. Disks and
//! machine are modelled; file system, intent log, allocator, leaf queues and txg syncs are the
//! engine's.
//!
//! A [`Cell`] is one run in a world of its own; cells are independent and may run in parallel. A
//! [`Report`] puts cells side by side and averages as the publication does.

use std::cell::{Cell as Slot, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use ::zil::{CommitPolicy, ZilStats, ZilTunables};
use base::{Error, Nanos, ObjectId, Result};
use bdev::Bytes;
use rt::trace::{Event, Groups, LogPhase};
use serde::Serialize;
use sim::{DiskConfig, DiskImage, HddModel, HostCpu, HostLatency, Model, Pick, Rng, Sim, SimConfig, SimDisk, SsdModel};
use spa::{Bias, EngineOpts, Group, GroupKind, Layout, Pool};
use vdev::Prio;
use zpl::Zfs;

use crate::device::Device;
use crate::{hist, published, stage};

/// Bytes of a write, and the record size.
pub const BLOCK: u64 = 8 << 10;
/// Counted writes after which a cell ends: enough for a mean within a few percent.
const WRITES_WANTED: usize = 20_000;
/// Interval at which a cell checks whether it may end.
const STEP: Nanos = Nanos(100_000_000);
/// Interval over which the mean of dirty data is taken, at the settling of a cell.
const LOOK: Nanos = Nanos(1_000_000_000);
/// Dirty data are steady when their mean grows by less than this share of their limit.
const STEADY: f64 = 0.02;
/// Default limit of a cell's virtual time in seconds: a cell ends earlier after
/// `WRITES_WANTED` writes.
pub const SECONDS: u64 = 40;
/// Writers start within this time, as processes started one after the other.
const START: Nanos = Nanos(50_000_000);

/// The kind of the disks.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Medium {
    /// Spinning.
    Hdd,
    /// Flash.
    Ssd,
}

impl Medium {
    /// By its name.
    pub fn parse(name: &str) -> Result<Medium> {
        match name {
            "hdd" => Ok(Medium::Hdd),
            "ssd" => Ok(Medium::Ssd),
            _ => Err(Error::invalid(format!("'{name}' is not a medium: there are hdd and ssd"))),
        }
    }
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Medium::Hdd => "hdd",
            Medium::Ssd => "ssd",
        }
    }
    /// The disk of that seed. Spinning ones have their write cache on: illumos turns it on for
    /// disks that a pool has as a whole, and flushes after log blocks.
    fn device(self, seed: u64) -> Device {
        let model = match self {
            Medium::Hdd => Model::Hdd(HddModel::enterprise_10k().one_of(seed)),
            Medium::Ssd => Model::Ssd(SsdModel::enterprise_sas()),
        };
        Device { name: self.name().into(), model, host: GUEST.latency }
    }
    fn size(self) -> u64 {
        match self {
            Medium::Hdd => 600 << 30,
            Medium::Ssd => 400 << 30,
        }
    }
    /// The machine.
    fn host(self) -> Host {
        match self {
            Medium::Hdd => Host { cores: 8, mem: 128 << 30, ..GUEST },
            Medium::Ssd => Host { cores: 32, mem: 512 << 30, ..GUEST },
        }
    }
    /// The shortest time before the measured one: the first txgs must have been written, since log
    /// blocks share the disks with them.
    fn settle_min(self) -> Nanos {
        match self {
            Medium::Hdd => Nanos::from_secs(8),
            Medium::Ssd => Nanos::from_secs(2),
        }
    }
    /// The shortest measured time: some txgs, some hundred rotations of a disk.
    fn counted_min(self) -> Nanos {
        match self {
            Medium::Hdd => Nanos::from_secs(6),
            Medium::Ssd => Nanos::from_ms(800),
        }
    }
}

/// The machine that the writers run on. Cores and memory are those of the publication. The other
/// times are fitted to the published rates on 8 SSDs: one and two writers with one batch at a time
/// (5,169 and 5,696 a second), and very many without batches (88,000).
#[derive(Clone, Copy, Debug)]
struct Host {
    /// Cores for writers.
    cores: usize,
    /// Bytes of memory.
    mem: u64,
    /// Time of a core for one write before it reaches the intent log: system call, copy,
    /// transaction.
    write: Nanos,
    /// Time to copy the record of one write into a log block, under a lock of the log: one at a
    /// time.
    pack: Nanos,
    /// From a disk's completion to the engine.
    latency: HostLatency,
}

/// A guest of ESXi 6.0, as in the publication. Of the time of one writer on 8 SSDs (193 us for a
/// write and its flush) the data sheet of the SSD leaves 50 us to interrupts, the hypervisor and
/// the waking of threads, twice; the form of their distribution is assumed.
const GUEST: Host = Host {
    cores: 8,
    mem: 128 << 30,
    write: Nanos(20_000),
    pack: Nanos(10_000),
    latency: HostLatency {
        cpu: HostCpu { read: Nanos(0), read_rate: 0, write: Nanos(0), write_rate: 0, flush: Nanos(0) },
        wake: Nanos(20_000),
        jitter: Nanos(30_000),
        rare_per_million: 0,
        rare: Nanos(0),
    },
};

/// How fast writers write.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Rate {
    /// The next write begins when the last is durable.
    Max,
    /// Writes a second by each writer on average, with the gaps of a Poisson process; late writes
    /// follow at once.
    PerSecond(u32),
}

impl Rate {
    /// `max`, or a number of writes a second.
    pub fn parse(text: &str) -> Result<Rate> {
        match text.parse::<u32>() {
            _ if text == "max" => Ok(Rate::Max),
            Ok(n) if (1..=100_000).contains(&n) => Ok(Rate::PerSecond(n)),
            _ => Err(Error::invalid(format!(
                "'{text}' is not a rate: max, or 1 to 100000 writes a second by each thread"
            ))),
        }
    }
    /// Its name.
    pub fn name(self) -> String {
        match self {
            Rate::Max => "max".into(),
            Rate::PerSecond(n) => n.to_string(),
        }
    }
}

/// One run.
#[derive(Clone, PartialEq, Debug)]
pub struct Cell {
    /// The disks.
    pub medium: Medium,
    /// How many.
    pub disks: u32,
    /// Writers.
    pub threads: u32,
    /// The policy of the intent log.
    pub policy: CommitPolicy,
    /// How fast they write.
    pub rate: Rate,
    /// Virtual seconds at most; up to the first half does not count.
    pub seconds: u64,
    /// Seed of the world.
    pub seed: u64,
    /// `zfs_commit_timeout_pct`; none: the policy's default.
    pub timeout_pct: Option<u64>,
    /// Whether the log is on a device of its own, which is flash.
    pub log_device: bool,
    /// A device in place of the medium's own.
    pub device: Option<Device>,
}

/// The result of a run.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Outcome {
    /// The disks.
    pub medium: Medium,
    /// How many.
    pub disks: u32,
    /// Writers.
    pub threads: u32,
    /// The policy of the intent log.
    pub policy: &'static str,
    /// `max`, or writes a second by each.
    pub rate: String,
    /// Virtual seconds that counted.
    pub seconds: f64,
    /// Writes that counted.
    pub writes: u64,
    /// Durable writes a second, of all writers.
    pub iops: f64,
    /// Mean latency, from the call to its return.
    pub latency_mean_us: f64,
    /// Median latency.
    pub latency_p50_us: f64,
    /// 99th percentile.
    pub latency_p99_us: f64,
    /// Log blocks a second.
    pub blocks_per_s: f64,
    /// Commits that a log block served, on average.
    pub waiters_per_block: f64,
    /// Percentage of the written bytes of log blocks that are records.
    pub fill_percent: f64,
    /// Flushes a second, of all disks.
    pub flushes_per_s: f64,
    /// Txgs that were synced.
    pub txgs: u64,
    /// Operations at all disks, from the beginning of the pool.
    pub device_ops: u64,
    /// Virtual seconds of all of it.
    pub virtual_seconds: f64,
    /// Identifies the run: equal for equal cells.
    pub digest: String,
}

/// Samples of the writers.
#[derive(Default)]
struct Samples {
    on: Slot<bool>,
    latencies: RefCell<Vec<u64>>,
    failed: RefCell<Option<Error>>,
}

/// The cores of the machine: when each is free.
struct Cores(RefCell<Vec<Nanos>>);

impl Cores {
    /// The end time of a job of `cost` that starts at `now`.
    fn take(&self, now: Nanos, cost: Nanos) -> Nanos {
        let mut cores = self.0.borrow_mut();
        match cores.iter_mut().min() {
            Some(core) => {
                *core = (*core).max(now) + cost;
                *core
            }
            None => now + cost,
        }
    }
}

/// The gap before the next event of a Poisson process of `rate` a second, from a uniform random
/// number.
pub fn poisson_gap(rate: impl Into<f64>, drawn: u64) -> Nanos {
    // 53 bits, never 0: its logarithm is finite.
    let even = ((drawn >> 11) as f64 + 0.5) / (1u64 << 53) as f64;
    Nanos((-even.ln() * 1e9 / rate.into()) as u64)
}

impl Cell {
    /// Fails if a parameter is out of range.
    pub fn check(&self) -> Result<()> {
        let bad = |what: &str| Err(Error::invalid(format!("a study of the intent log needs {what}")));
        match () {
            () if !(1..=64).contains(&self.disks) => bad("1 to 64 disks"),
            () if !(1..=16_384).contains(&self.threads) => bad("1 to 16384 threads"),
            () if !(1..=3600).contains(&self.seconds) => bad("1 to 3600 seconds"),
            () => Ok(()),
        }
    }

    fn opts(&self) -> EngineOpts {
        let mut opts = EngineOpts::for_memory(self.medium.host().mem);
        // Written data is not read again: a cache would only cost time.
        opts.arc_max = 256 << 20;
        // As in 2017: a txg closes at 64 MiB of dirty data (`zfs_dirty_data_sync`); 2 % of the
        // limit is closest.
        opts.txg.dirty_data_sync_percent = 2;
        // illumos begins with one async write at a time at each disk
        // (`zfs_vdev_async_write_min_active`; 2 on Linux since 0.7).
        opts.queue.classes[Prio::AsyncWrite.index()].min_active = 1;
        // As in 2017: no aggregated operation is longer than 128 KiB
        // (`zfs_vdev_aggregation_limit`).
        opts.queue.aggregation_limit = 128 << 10;
        opts.queue.aggregation_limit_non_rotating = 128 << 10;
        opts.zil = self.log();
        opts
    }

    /// Settings of the log as of 2017, whatever the policy.
    fn log(&self) -> ZilTunables {
        let default = if self.policy == CommitPolicy::Modern { 10 } else { 5 };
        ZilTunables {
            policy: self.policy,
            commit_timeout_pct: self.timeout_pct.unwrap_or(default),
            ..ZilTunables::default()
        }
    }

    /// Runs it.
    pub fn run(&self) -> Result<Outcome> {
        self.check()?;
        let host = self.medium.host();
        let sim = Sim::new(SimConfig {
            physmem: host.mem,
            cores: host.cores,
            pick: Pick::Fifo,
            engine_cores: host.cores as u64,
            polls_per_instant_max: u64::MAX,
            ..SimConfig::seeded(self.seed)
        });
        let disks: Vec<SimDisk> = (0..self.disks + u32::from(self.log_device)).map(|n| self.disk(&sim, n)).collect();
        let (pool, fs, files) = sim.block_on(self.start(&sim, &disks))?;
        let samples: Rc<Samples> = Rc::default();
        self.writers(&sim, &fs, &files, &samples);
        // The modelled machine spends its packing time under the log's lock, before the block is
        // written; the cores share the cost that weir's engine charges.
        let world = sim.handle();
        let packing = sim.rt().tracer().listen(Groups::LOG, move |_, e| {
            if let Event::Log { phase: LogPhase::Issued, bytes, .. } = e {
                world.stall(Nanos(host.pack.0 * bytes / BLOCK));
            }
        });
        let begin = sim.now();
        let total = Nanos::from_secs(self.seconds);
        let seen = |least: Nanos, most: Nanos, enough: usize| {
            let from = sim.now();
            while sim.now().since(from) < most {
                sim.run_for(STEP);
                let count = samples.latencies.borrow().len();
                if sim.now().since(from) >= least && count >= enough || samples.failed.borrow().is_some() {
                    break;
                }
            }
        };
        // Time to settle: until dirty data do not grow any more, half of the time at most. While
        // they grow, writers are faster than the disks.
        let limit = pool.txg().tunables().dirty_data_max as f64;
        let dirty = |time: Nanos| {
            let (from, mut sum, mut count) = (sim.now(), 0.0, 0.0);
            while sim.now().since(from) < time && samples.failed.borrow().is_none() {
                sim.run_for(STEP);
                (sum, count) = (sum + pool.txg().dirty() as f64 / limit, count + 1.0);
            }
            sum / f64::max(count, 1.0)
        };
        sim.run_for(self.medium.settle_min().min(Nanos(total.0 / 2)));
        let mut last = dirty(LOOK.min(Nanos(total.0 / 8)));
        while sim.now().since(begin).0 < total.0 / 2 {
            let mean = dirty(LOOK);
            if mean < last + STEADY {
                break;
            }
            last = mean;
        }
        samples.on.set(true);
        samples.latencies.take();
        let before = (sim.now(), pool.txg().last_synced().0, self.log_stats(&fs)?);
        seen(self.medium.counted_min(), begin + total - sim.now(), WRITES_WANTED);
        samples.on.set(false);
        drop(packing);
        if let Some(e) = samples.failed.take().or(pool.txg().ended()) {
            return Err(e);
        }
        let txgs = pool.txg().last_synced().0 - before.1;
        let seen =
            self.outcome(&samples, sim.now().since(before.0), txgs, (before.2, self.log_stats(&fs)?), sim.digest());
        let ops = |disk: &SimDisk| {
            let seen = disk.counters();
            seen.reads + seen.writes + seen.flushes + seen.discards
        };
        let device_ops = disks.iter().map(ops).sum();
        stage::end(&sim, &disks);
        Ok(Outcome { device_ops, virtual_seconds: sim.now().as_secs_f64(), ..seen })
    }

    /// Disk `n` of the pool; the log device comes after the others.
    fn disk(&self, sim: &Sim, n: u32) -> SimDisk {
        let medium = if n == self.disks { Medium::Ssd } else { self.medium };
        let seed = self.seed * 64 + u64::from(n);
        let own = self.device.as_ref().filter(|_| n < self.disks).map(|device| device.one_of(seed));
        let device = own.unwrap_or_else(|| medium.device(seed));
        let flash = !device.model.rotational();
        let mut config = DiskConfig::new(DiskImage::zeroed(medium.size()), device.model, seed);
        // No power cuts, so no undo data. Writes to a cache of volatile memory need a flush.
        config.volatile = false;
        config.writes_durably = flash;
        config.host = device.host;
        SimDisk::with(&sim.handle(), config)
    }

    fn log_stats(&self, fs: &Zfs) -> Result<ZilStats> {
        let log = fs.log().ok_or_else(|| Error::invalid("the file system has no intent log"))?;
        Ok(log.stats())
    }

    async fn start(&self, sim: &Sim, disks: &[SimDisk]) -> Result<(Rc<Pool>, Rc<Zfs>, Vec<ObjectId>)> {
        let recordsize = BLOCK.to_string();
        let props =
            [("compression", "off"), ("atime", "off"), ("recordsize", &*recordsize), ("redundant_metadata", "most")];
        let (normal, log) = disks.split_at(self.disks as usize);
        let mut layout = Layout { groups: stage::groups(normal, GroupKind::Single, 1), ..Layout::default() };
        let log = stage::groups(log, GroupKind::Single, 1);
        layout.groups.extend(log.into_iter().map(|g| Group { bias: Bias::Log, ..g }));
        let (pool, fs) = stage::new_fs_on(&sim.rt(), layout, self.opts(), 12, &props).await?;
        let mut files = Vec::new();
        for n in 0..self.threads {
            let name = format!("job{n}");
            files.push(stage::new_file(&fs, &name).await?);
        }
        fs.sync_all().await?;
        Ok((pool, fs, files))
    }

    fn writers(&self, sim: &Sim, fs: &Rc<Zfs>, files: &[ObjectId], samples: &Rc<Samples>) {
        let host = self.medium.host();
        let cores = Rc::new(Cores(RefCell::new(vec![sim.now(); host.cores])));
        let block = Bytes::zeroed(BLOCK as usize);
        let rt = sim.rt();
        for (n, &file) in files.iter().enumerate() {
            let (rt2, fs, samples, cores, block) =
                (rt.clone(), fs.clone(), samples.clone(), cores.clone(), block.clone());
            let mut rng = Rng::stream(self.seed, 1000 + n as u64);
            let rate = self.rate;
            drop(rt.spawn("writer", async move {
                let mut due = rt2.now() + Nanos(rng.below(START.0));
                let mut offset = 0;
                loop {
                    rt2.sleep_until(due).await;
                    let begin = rt2.now();
                    // Half to one and a half times the mean, for the jitter of real calls.
                    let cost = Nanos(rng.between(host.write.0 / 2, host.write.0 * 3 / 2));
                    rt2.sleep_until(cores.take(begin, cost)).await;
                    if let Err(e) = fs.write_sync(file, offset, vec![block.clone()], false).await {
                        samples.failed.borrow_mut().get_or_insert(e);
                        return;
                    }
                    offset += BLOCK;
                    if samples.on.get() {
                        samples.latencies.borrow_mut().push(rt2.now().since(begin).0);
                    }
                    due = match rate {
                        Rate::Max => rt2.now(),
                        Rate::PerSecond(rate) => due + poisson_gap(rate, rng.next_u64()),
                    };
                }
            }));
        }
    }

    fn outcome(&self, samples: &Samples, span: Nanos, txgs: u64, (a, b): (ZilStats, ZilStats), digest: u64) -> Outcome {
        let mut all = samples.latencies.take();
        all.sort_unstable();
        let n = all.len() as u64;
        let seconds = span.0 as f64 / 1e9;
        let us = |ns: u64| ns as f64 / 1000.0;
        let per = |a: u64, b: u64| a as f64 / b.max(1) as f64;
        let blocks = b.blocks - a.blocks;
        Outcome {
            medium: self.medium,
            disks: self.disks,
            threads: self.threads,
            policy: self.policy.name(),
            rate: self.rate.name(),
            seconds,
            writes: n,
            iops: n as f64 / seconds,
            latency_mean_us: per(all.iter().sum::<u64>(), n) / 1000.0,
            latency_p50_us: us(hist::percentile(&all, 500)),
            latency_p99_us: us(hist::percentile(&all, 990)),
            blocks_per_s: blocks as f64 / seconds,
            waiters_per_block: per(b.waiters - a.waiters, blocks),
            fill_percent: per(b.bytes - a.bytes, b.block_bytes - a.block_bytes) * 100.0,
            flushes_per_s: (b.flushes - a.flushes) as f64 / seconds,
            txgs,
            device_ops: 0,
            virtual_seconds: 0.0,
            digest: format!("{digest:016x}"),
        }
    }
}

/// Before and after side by side.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Row {
    /// The disks.
    pub medium: Medium,
    /// How many.
    pub disks: u32,
    /// `max`, or writes a second by each.
    pub rate: String,
    /// Writers.
    pub threads: u32,
    /// `iops` at the highest rate, `latency_mean_us` at a fixed one.
    pub measure: &'static str,
    /// With `batched`.
    pub batched: f64,
    /// With `batchless-2017`.
    pub batchless: f64,
    /// The change in percent.
    pub change_percent: f64,
    /// Published, before.
    pub published_batched: Option<f64>,
    /// Published, after.
    pub published_batchless: Option<f64>,
    /// Published change.
    pub published_change_percent: Option<f64>,
}

/// The change from `before` to `after` in percent of `before`.
pub fn change_percent(before: f64, after: f64) -> f64 {
    if before == 0.0 { 0.0 } else { (after - before) / before * 100.0 }
}

/// The mean of the changes as in the publication: each number of threads has the same weight; one
/// thread is left out, and so are latencies of spinning disks with more than 64 threads, where the
/// disks do not sustain the rate and both policies write different amounts. `None` if no change is
/// left. `changes`: by threads.
pub fn average_as_published(medium: Medium, rate: Rate, changes: &[(u32, f64)]) -> Option<f64> {
    let most = if medium == Medium::Hdd && rate != Rate::Max { 64 } else { 1024 };
    let of: Vec<f64> = changes.iter().filter(|(t, _)| (2..=most).contains(t)).map(|&(_, c)| c).collect();
    (!of.is_empty()).then(|| of.iter().sum::<f64>() / of.len() as f64)
}

/// Averages by medium (`hdd`, `ssd`).
pub type ByMedium = BTreeMap<&'static str, f64>;

/// All cells, and their averages.
#[derive(Clone, PartialEq, Debug, Serialize, Default)]
pub struct Report {
    /// Average gain of writes a second at the highest rate, on the largest number of disks (the
    /// publication's headline has 8).
    pub gain_percent: ByMedium,
    /// Average change of the mean latency at the fixed rate, on the largest number of disks.
    pub latency_change_percent: ByMedium,
    /// `gain_percent` for each number of disks.
    pub gain_percent_by_disks: BTreeMap<&'static str, BTreeMap<u32, f64>>,
    /// `latency_change_percent` for each number of disks.
    pub latency_change_percent_by_disks: BTreeMap<&'static str, BTreeMap<u32, f64>>,
    /// The published gains, averaged over the same numbers of threads.
    pub published_gain_percent_by_disks: BTreeMap<&'static str, BTreeMap<u32, f64>>,
    /// The published latency changes.
    pub published_latency_change_percent_by_disks: BTreeMap<&'static str, BTreeMap<u32, f64>>,
    /// Before and after.
    pub rows: Vec<Row>,
    /// Every run.
    pub cells: Vec<Outcome>,
}

impl Report {
    /// Compares runs.
    pub fn of(cells: Vec<(Cell, Outcome)>) -> Report {
        let mut report = Report::default();
        // Another device has nothing to do with what was published.
        let own = cells.iter().all(|(cell, _)| cell.device.is_none());
        let mut pairs: BTreeMap<(Medium, Rate, u32, u32), [Option<f64>; 2]> = BTreeMap::new();
        for (cell, seen) in &cells {
            let value = if cell.rate == Rate::Max { seen.iops } else { seen.latency_mean_us };
            let side = match cell.policy {
                CommitPolicy::Batched => 0,
                CommitPolicy::Batchless2017 => 1,
                CommitPolicy::Modern => continue,
            };
            pairs.entry((cell.medium, cell.rate, cell.disks, cell.threads)).or_default()[side] = Some(value);
        }
        let mut measured: BTreeMap<(Medium, Rate, u32), Vec<(u32, f64)>> = BTreeMap::new();
        let mut known: BTreeMap<(Medium, Rate, u32), Vec<(u32, f64)>> = BTreeMap::new();
        for (&(medium, rate, disks, threads), pair) in &pairs {
            let &[Some(batched), Some(batchless)] = pair else { continue };
            let published = published::value(medium, rate, disks, threads).filter(|_| own);
            let change = change_percent(batched, batchless);
            let published_change = published.map(|(a, b)| change_percent(a, b));
            measured.entry((medium, rate, disks)).or_default().push((threads, change));
            if let Some(c) = published_change {
                known.entry((medium, rate, disks)).or_default().push((threads, c));
            }
            report.rows.push(Row {
                medium,
                disks,
                rate: rate.name(),
                threads,
                measure: if rate == Rate::Max { "iops" } else { "latency_mean_us" },
                batched,
                batchless,
                change_percent: change,
                published_batched: published.map(|p| p.0),
                published_batchless: published.map(|p| p.1),
                published_change_percent: published_change,
            });
        }
        for (&(medium, rate, disks), changes) in &measured {
            let Some(mean) = average_as_published(medium, rate, changes) else { continue };
            let (all, by_disks) = match rate {
                Rate::Max => (&mut report.gain_percent, &mut report.gain_percent_by_disks),
                Rate::PerSecond(_) => (&mut report.latency_change_percent, &mut report.latency_change_percent_by_disks),
            };
            // Disks are in ascending order: the largest number stays.
            all.insert(medium.name(), mean);
            by_disks.entry(medium.name()).or_default().insert(disks, mean);
        }
        for (&(medium, rate, disks), changes) in &known {
            let Some(mean) = average_as_published(medium, rate, changes) else { continue };
            let by_disks = match rate {
                Rate::Max => &mut report.published_gain_percent_by_disks,
                Rate::PerSecond(_) => &mut report.published_latency_change_percent_by_disks,
            };
            by_disks.entry(medium.name()).or_default().insert(disks, mean);
        }
        report.cells = cells.into_iter().map(|(_, seen)| seen).collect();
        report
    }
}
