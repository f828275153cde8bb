//! `weir lab throttle`: endless writers against a device of fixed bandwidth.
//!
//! The pool has one device: one pipe of `bandwidth` with a small latency. `threads` clients write
//! blocks one after the other, each to a file of its own, as fast as the throttle admits them, and
//! all together no faster than `offered`, the speed of their machine. The latency of each write
//! shows the throttle; bins of 100 ms show how even the flow is. In the first quarter the pool
//! settles; it does not count.
//!
//! Blocks contain zeros that are neither compressed nor stored as holes, so that minutes of writing
//! need no memory for the device's contents.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use base::{Error, Nanos, ObjectId, Result};
use bdev::Bytes;
use rt::trace::{Event, Groups};
use serde::Serialize;
use sim::{DiskImage, Model, Pick, Sim, SimConfig, SimDisk};
use spa::{EngineOpts, Pool};
use txg::ThrottlePolicy;
use vdev::QueueTunables;
use zpl::Zfs;

use crate::hist::{self, Bucket};
use crate::stage;

/// A bin of the timeline.
const BIN: Nanos = Nanos(100_000_000);
/// Interval at which dirty bytes and queues are sampled.
const SAMPLE: Nanos = Nanos(5_000_000);
/// Latency that the device adds to every operation.
const LATENCY: Nanos = Nanos(50_000);

/// The parameters of a study.
#[derive(Clone, Debug)]
pub struct Study {
    /// The throttle.
    pub policy: ThrottlePolicy,
    /// Bytes a second of the device.
    pub bandwidth: u64,
    /// Clients.
    pub threads: u32,
    /// Bytes of a write; also the record size.
    pub block: u64,
    /// Copies of each block on the device (property `copies`), 1 to 3.
    pub copies: u64,
    /// Virtual seconds.
    pub seconds: u64,
    /// Seed of the world.
    pub seed: u64,
    /// Memory of the machine in bytes.
    pub mem: u64,
    /// Bytes a second that all clients together would write without a throttle.
    pub offered: u64,
    /// Settings of the throttle besides the policy; none: the defaults of the policy's release on a
    /// machine with `mem`.
    pub txg: Option<txg::TxgTunables>,
    /// Settings of the leaf queue.
    pub queue: QueueTunables,
}

impl Default for Study {
    fn default() -> Study {
        Study {
            policy: ThrottlePolicy::OpenZfs,
            bandwidth: 100 << 20,
            threads: 10,
            block: 8 << 10,
            copies: 1,
            seconds: 60,
            seed: 0,
            mem: 8 << 30,
            offered: 1 << 30,
            txg: None,
            queue: QueueTunables::default(),
        }
    }
}

/// A bin of 100 ms.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize)]
pub struct Bin {
    /// Bytes of completed writes of clients.
    pub admitted_bytes: u64,
    /// Bytes that the device completed.
    pub device_bytes: u64,
    /// Operations at the device, on average.
    pub queue_depth: f64,
    /// Operations in its queue, on average.
    pub waiting: f64,
}

/// The result of a study.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Report {
    /// The throttle.
    pub policy: &'static str,
    /// Seed of the world.
    pub seed: u64,
    /// Virtual seconds that count.
    pub measured_seconds: u64,
    /// The dirty limit in bytes.
    pub dirty_data_max: u64,
    /// Dirty share of the limit, mean over the second half, in percent.
    pub dirty_percent_steady: f64,
    /// Bytes that clients wrote.
    pub throughput_bytes_per_s: f64,
    /// Bytes that the device wrote.
    pub device_bytes_per_s: f64,
    /// Writes that counted.
    pub writes: u64,
    /// Writes that waited in the throttle.
    pub delayed_percent: f64,
    /// Median latency of a write.
    pub latency_p50_us: f64,
    /// 99th percentile.
    pub latency_p99_us: f64,
    /// 99.9th percentile.
    pub latency_p999_us: f64,
    /// The longest.
    pub latency_max_us: f64,
    /// The mean.
    pub latency_mean_us: f64,
    /// The longest wait in the throttle alone.
    pub throttle_wait_max_us: f64,
    /// Writes by latency.
    pub latency_histogram: Vec<Bucket>,
    /// Its modes.
    pub latency_modes: usize,
    /// Txgs that were synced while it counted.
    pub txgs: u64,
    /// Writes per txg that took less than 5 ms, 5 to 100 ms, 100 ms to 1 s, and longer.
    pub per_txg: [f64; 4],
    /// Variation (standard deviation over mean) of the bytes that clients wrote, per 100 ms.
    pub cv_admitted: f64,
    /// The same of the device's bytes.
    pub cv_device: f64,
    /// The same of the queue's depth.
    pub cv_queue: f64,
    /// The bins that counted.
    pub timeline: Vec<Bin>,
    /// Identifies the run: equal for equal studies.
    pub digest: String,
}

/// A pool on a modelled device in virtual time. Fields drop in this order: the world last.
pub struct Stage {
    /// Its root file system.
    pub fs: Rc<Zfs>,
    /// The pool.
    pub pool: Rc<Pool>,
    /// Its device.
    pub disk: SimDisk,
    /// The world.
    pub sim: Sim,
}

impl Stage {
    /// Makes `count` empty files and syncs them.
    pub async fn files(&self, count: u32) -> Result<Vec<ObjectId>> {
        let mut files = Vec::new();
        for n in 0..count {
            let name = format!("file{n}");
            files.push(stage::new_file(&self.fs, &name).await?);
            // In small txgs: from a large one of compressible metadata alone the throttle of 2008
            // would estimate a wrong throughput.
            if n % 50 == 49 {
                self.fs.sync_all().await?;
            }
        }
        self.fs.sync_all().await?;
        Ok(files)
    }
}

/// Samples of the clients and the sampler.
#[derive(Default)]
struct Samples {
    on: Cell<bool>,
    /// Latency of each write in ns.
    writes: RefCell<Vec<u64>>,
    admitted: Cell<u64>,
    wait_max: Cell<u64>,
    waited: Cell<u64>,
    /// Dirty bytes, in order of time.
    dirty: RefCell<Vec<u64>>,
    bins: RefCell<Vec<Bin>>,
    failed: RefCell<Option<Error>>,
}

impl Study {
    /// Fails if a parameter is out of range.
    pub(crate) fn check(&self) -> Result<()> {
        let bad = |what: &str| Err(Error::invalid(format!("a study of the throttle needs {what}")));
        match () {
            () if self.bandwidth < 1 << 16 => bad("a bandwidth of at least 64K a second"),
            () if self.offered < 1 << 16 => bad("clients that offer at least 64K a second"),
            () if !(1..=100_000).contains(&self.threads) => bad("1 to 100000 threads"),
            () if !(512..=1 << 20).contains(&self.block) || !self.block.is_power_of_two() => {
                bad("blocks of 512 bytes to 1M, a power of two")
            }
            () if !(1..=3).contains(&self.copies) => bad("1 to 3 copies"),
            () if !(1..=3600).contains(&self.seconds) => bad("1 to 3600 seconds"),
            () if !(256 << 20..=1 << 40).contains(&self.mem) => bad("256M to 1T of memory"),
            () => Ok(()),
        }
    }

    /// Settings of the throttle: those given, or the defaults.
    pub(crate) fn settings(&self) -> txg::TxgTunables {
        self.opts().txg
    }

    fn opts(&self) -> EngineOpts {
        let mut opts = EngineOpts::for_memory(self.mem);
        // Written data is not read again: a cache would only cost time.
        opts.arc_max = 64 << 20;
        if let Some(t) = self.txg {
            opts.txg = t;
        } else if self.policy == ThrottlePolicy::Legacy2008 {
            // The defaults of that release.
            opts.txg.txg_timeout = Nanos::from_secs(30);
        }
        opts.txg.policy = self.policy;
        opts.queue = self.queue.clone();
        opts
    }

    /// The world of the study with an empty pool in it.
    pub fn stage(&self) -> Result<Stage> {
        self.check()?;
        let opts = self.opts();
        let config = SimConfig {
            physmem: self.mem,
            pick: Pick::Fifo,
            polls_per_instant_max: u64::MAX,
            ..SimConfig::seeded(self.seed)
        };
        let sim = Sim::new(config);
        let written = self.bandwidth.saturating_mul(self.seconds);
        let size = (written * 3 + (opts.txg.dirty_data_max * 4) + (8 << 30)).next_multiple_of(1 << 30);
        let model = Model::Fixed { latency: LATENCY, bandwidth: self.bandwidth };
        let disk = stage::disk(&sim.handle(), DiskImage::zeroed(size), model, self.seed);
        let (pool, fs) = sim.block_on(self.start(&sim, &disk, opts))?;
        Ok(Stage { fs, pool, disk, sim })
    }

    /// Runs it.
    pub fn run(&self) -> Result<Report> {
        let stage = self.stage()?;
        let Stage { sim, disk, pool, .. } = &stage;
        let samples: Rc<Samples> = Rc::default();
        self.clients(&stage, &samples)?;
        self.sampler(sim, disk, pool.clone(), &samples);
        let n = samples.clone();
        let listening = sim.rt().tracer().listen(Groups::DELAY, move |_, e| {
            if let Event::Admitted { waited, .. } = e
                && n.on.get()
            {
                n.wait_max.set(n.wait_max.get().max(waited.0));
                n.waited.set(n.waited.get() + u64::from(waited.0 > 0));
            }
        });
        let begin = sim.now();
        let total = Nanos::from_secs(self.seconds);
        let settle = Nanos(total.0 / 4 / BIN.0 * BIN.0);
        sim.run_until(begin + settle);
        samples.on.set(true);
        let (txg0, device0) = (pool.txg().last_synced().0, disk.counters().write_bytes);
        sim.run_until(begin + total);
        samples.on.set(false);
        drop(listening);
        if let Some(e) = samples.failed.take().or(pool.txg().ended()) {
            return Err(e);
        }
        let span = total.0 - settle.0;
        let txgs = pool.txg().last_synced().0 - txg0;
        let device = disk.counters().write_bytes - device0;
        Ok(self.report(&samples, span, txgs, device, pool, sim.digest()))
    }

    async fn start(&self, sim: &Sim, disk: &SimDisk, opts: EngineOpts) -> Result<(Rc<Pool>, Rc<Zfs>)> {
        let ashift = if self.block < 4096 { 9 } else { 12 };
        let recordsize = self.block.to_string();
        let copies = self.copies.to_string();
        let props = [("compression", "off"), ("atime", "off"), ("recordsize", &*recordsize), ("copies", &*copies)];
        stage::new_fs(&sim.handle(), std::slice::from_ref(disk), opts, ashift, &props).await
    }

    /// Makes a file for each client and starts them.
    fn clients(&self, stage: &Stage, samples: &Rc<Samples>) -> Result<()> {
        let (rt, fs) = (stage.sim.rt(), &stage.fs);
        let files = stage.sim.block_on(stage.files(self.threads))?;
        let block = Bytes::zeroed(self.block as usize);
        let turn = Rc::new(Cell::new(rt.now()));
        // In 1024ths of a nanosecond, for a precise rate.
        let pace = u128::from(self.block) * 1_000_000_000 * 1024 / u128::from(self.offered);
        let part = Rc::new(Cell::new(0u64));
        for ino in files {
            let (rt2, fs, samples, turn, part, block) =
                (rt.clone(), fs.clone(), samples.clone(), turn.clone(), part.clone(), block.clone());
            let size = self.block;
            drop(rt.spawn("writer", async move {
                let mut off = 0;
                loop {
                    let at = turn.get().max(rt2.now());
                    let fine = u128::from(part.get()) + pace;
                    part.set((fine % 1024) as u64);
                    turn.set(at + Nanos((fine / 1024) as u64));
                    rt2.sleep_until(at).await;
                    let start = rt2.now();
                    if let Err(e) = fs.write(ino, off, vec![block.clone()], false).await {
                        samples.failed.borrow_mut().get_or_insert(e);
                        return;
                    }
                    off += size;
                    samples.admitted.set(samples.admitted.get() + size);
                    if samples.on.get() {
                        samples.writes.borrow_mut().push(rt2.now().since(start).0);
                    }
                }
            }));
        }
        Ok(())
    }

    /// Samples dirty bytes, queue and device.
    fn sampler(&self, sim: &Sim, disk: &SimDisk, pool: Rc<Pool>, samples: &Rc<Samples>) {
        let (rt, disk, samples) = (sim.rt(), disk.clone(), samples.clone());
        let leaves: Vec<_> = pool.tree().tops.borrow().iter().flat_map(|t| t.open_leaves()).collect();
        let rt2 = rt.clone();
        drop(rt.spawn("sampler", async move {
            let (mut admitted, mut device) = (samples.admitted.get(), disk.counters().write_bytes);
            let per_bin = BIN.0 / SAMPLE.0;
            let mut next = rt2.now();
            loop {
                let (mut depth, mut waiting) = (0u64, 0u64);
                for _ in 0..per_bin {
                    next = next + SAMPLE;
                    rt2.sleep_until(next).await;
                    for leaf in &leaves {
                        let d = leaf.depth();
                        depth += d.active.iter().map(|&n| u64::from(n)).sum::<u64>();
                        waiting += d.queued.iter().map(|&n| u64::from(n)).sum::<u64>();
                    }
                    samples.dirty.borrow_mut().push(pool.txg().dirty());
                }
                let now = (samples.admitted.get(), disk.counters().write_bytes);
                let bin = Bin {
                    admitted_bytes: now.0 - admitted,
                    device_bytes: now.1 - device,
                    queue_depth: depth as f64 / per_bin as f64,
                    waiting: waiting as f64 / per_bin as f64,
                };
                (admitted, device) = now;
                samples.bins.borrow_mut().push(bin);
            }
        }));
    }

    fn report(&self, samples: &Samples, span: u64, txgs: u64, device: u64, pool: &Pool, digest: u64) -> Report {
        let mut writes = samples.writes.borrow().clone();
        writes.sort_unstable();
        let us = |ns: u64| ns as f64 / 1000.0;
        let seconds = span as f64 / 1e9;
        let n = writes.len() as u64;
        let dirty = samples.dirty.borrow();
        let half = &dirty[dirty.len() / 2..];
        let max = pool.txg().tunables().dirty_data_max;
        let steady = half.iter().map(|&d| d as f64).sum::<f64>() / half.len().max(1) as f64 / max as f64 * 100.0;
        let bins = samples.bins.borrow();
        let timeline: Vec<Bin> = bins[bins.len().saturating_sub((span / BIN.0) as usize)..].to_vec();
        let cv = |f: fn(&Bin) -> f64| hist::variation(&timeline.iter().map(f).collect::<Vec<_>>());
        let histogram = hist::buckets(&writes);
        let ms = 1_000_000;
        let per_txg = [(0, 5), (5, 100), (100, 1000), (1000, u64::MAX / ms)].map(|(lo, hi)| {
            let count = writes.partition_point(|&w| w < hi * ms) - writes.partition_point(|&w| w < lo * ms);
            count as f64 / txgs.max(1) as f64
        });
        Report {
            policy: self.policy.name(),
            seed: self.seed,
            measured_seconds: span / 1_000_000_000,
            dirty_data_max: max,
            dirty_percent_steady: steady,
            throughput_bytes_per_s: (n * self.block) as f64 / seconds,
            device_bytes_per_s: device as f64 / seconds,
            writes: n,
            delayed_percent: samples.waited.get() as f64 * 100.0 / n.max(1) as f64,
            latency_p50_us: us(hist::percentile(&writes, 500)),
            latency_p99_us: us(hist::percentile(&writes, 990)),
            latency_p999_us: us(hist::percentile(&writes, 999)),
            latency_max_us: us(writes.last().copied().unwrap_or(0)),
            latency_mean_us: us(writes.iter().sum::<u64>() / n.max(1)),
            throttle_wait_max_us: us(samples.wait_max.get()),
            latency_modes: hist::modes(&histogram),
            latency_histogram: histogram,
            txgs,
            per_txg,
            cv_admitted: cv(|b| b.admitted_bytes as f64),
            cv_device: cv(|b| b.device_bytes as f64),
            cv_queue: cv(|b| b.queue_depth),
            timeline,
            digest: format!("{digest:016x}"),
        }
    }
}
