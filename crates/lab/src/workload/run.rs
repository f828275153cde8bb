//! A workload on the engine: one cell, a row for each figure of each job.
//!
//! Files are written and synced first. Then all threads start; operations count when the warm-up is
//! over. With a rate, an operation's latency is from the moment when it was due, so that a queue of
//! late operations shows.

use std::cell::{Cell as Slot, RefCell};
use std::rc::Rc;

use base::{Error, Nanos, ObjectId, Result};
use bdev::{Buf, Bytes};
use sim::{DiskImage, Rng, Sim, SimDisk};
use spa::{EngineOpts, Pool};
use zpl::Zfs;

use super::{Job, Pattern, PoolOf, Rate, Sync, Workload};
use crate::device::Device;
use crate::replay::Latency;
use crate::study::plot::{Axis, Body, Curve};
use crate::study::{Cell, Plot, Row, Seen, Study};
use crate::zil::poisson_gap;
use crate::{hist, stage};

/// Bytes of a write that fills a file.
const CHUNK: u64 = 1 << 20;
/// Bins of the curves.
const BIN: Nanos = Nanos(500_000_000);
/// Limit of the cache, whatever the machine has: its memory is real.
const CACHE_MAX: u64 = 512 << 20;
/// Threads start within this time.
const START: Nanos = Nanos(50_000_000);

/// The study of a workload; `name` is its file.
pub fn study(name: &str, workload: Workload) -> Study {
    let mut rows = Vec::new();
    for job in &workload.jobs {
        let mut row = |what: &str, value: String, unit: &'static str, digits| {
            let measure = move |look: crate::study::Lookup| look("workload", &value);
            let row = Row::of(format!("{}: {what}", job.name), "workload", "", unit).digits(digits);
            rows.push(Row { measure: Box::new(measure), ..row });
        };
        row("operations a second", format!("{}.iops", job.name), "", 0);
        row("throughput", format!("{}.mib_per_s", job.name), "MiB/s", 1);
        for kind in ["read", "write"] {
            if kind == "read" && job.read == 0 || kind == "write" && job.read == 100 {
                continue;
            }
            for p in ["p50", "p99", "p999", "max"] {
                row(&format!("{kind} latency, {p}"), format!("{}.{kind}_{p}_us", job.name), "us", 0);
            }
        }
    }
    let jobs: Vec<String> = workload.jobs.iter().map(|j| j.name.clone()).collect();
    let threads: u64 = workload.jobs.iter().map(|j| u64::from(j.threads)).sum();
    let cell = Cell {
        name: "workload".into(),
        params: format!("{workload:?}"),
        memory: memory(&workload),
        weight: threads,
        run: Box::new(move |seed| once(&workload, seed, EngineOpts::for_memory(workload.pool.memory), &[])),
    };
    Study {
        name: "run",
        title: "A workload in virtual time",
        about: format!("The workload of {name} on the engine with modelled devices."),
        cells: vec![cell],
        rows,
        draw: Box::new(move |results| {
            let over = |series: &str| {
                let curve = |job: &String| {
                    let points = results.series("workload", &format!("{job}.{series}"));
                    Curve { name: job.clone(), points, dots: false }
                };
                Body::Curves(jobs.iter().map(curve).collect())
            };
            let plot = |title: &str, x: Axis, y: Axis, body| Plot { title: title.into(), x, y, body };
            vec![
                plot("Throughput", Axis::linear("s"), Axis::linear("MiB/s"), over("mib_per_s")),
                plot("Latencies", Axis::log("us"), Axis::log("operations"), over("histogram")),
            ]
        }),
    }
}

/// What the threads of a job saw.
#[derive(Default)]
struct Samples {
    on: Slot<bool>,
    bytes: Slot<u64>,
    reads: RefCell<Vec<u64>>,
    writes: RefCell<Vec<u64>>,
    bins: RefCell<Vec<u64>>,
    failed: RefCell<Option<Error>>,
}

/// Bytes of memory that a run needs, estimated.
pub(crate) fn memory(workload: &Workload) -> u64 {
    workload.content() + (workload.pool.memory / 2).min(CACHE_MAX) + (256 << 20)
}

/// Runs it once, with these settings and further properties. Figures of all jobs together have the
/// names of [`crate::advise::goal`].
pub(crate) fn once(workload: &Workload, seed: u64, opts: EngineOpts, props: &[(String, String)]) -> Result<Seen> {
    let pool_of = &workload.pool;
    let sim = stage::world(seed, pool_of.memory, pool_of.cores as usize);
    let disks = disks(pool_of, workload, &sim, seed);
    let (_pool, fs) = sim.block_on(start(pool_of, &sim, &disks, opts, props))?;
    let mut jobs: Vec<(Rc<Samples>, Vec<ObjectId>)> = Vec::new();
    for job in &workload.jobs {
        let files = sim.block_on(fill(&fs, job, &pool_of.compression, seed))?;
        jobs.push((Rc::default(), files));
    }
    sim.block_on(fs.sync_all())?;
    let begin = sim.now();
    let mut stream = 1000;
    for (job, (samples, files)) in workload.jobs.iter().zip(&jobs) {
        for &file in files {
            stream += 1;
            let rng = Rng::stream(seed, stream);
            let thread = Thread {
                job: job.clone(),
                file,
                fs: fs.clone(),
                samples: samples.clone(),
                data: data(job, &pool_of.compression, seed ^ stream),
                rng,
            };
            let rt = sim.rt();
            drop(sim.rt().spawn("job", async move {
                let samples = thread.samples.clone();
                if let Err(e) = thread.go(rt).await {
                    samples.failed.borrow_mut().get_or_insert(e);
                }
            }));
        }
    }
    sim.run_until(begin + Nanos::from_secs(workload.warmup));
    jobs.iter().for_each(|(samples, _)| samples.on.set(true));
    let bins = workload.seconds * 1_000_000_000 / BIN.0;
    for n in 1..=bins {
        sim.run_until(begin + Nanos::from_secs(workload.warmup) + Nanos(BIN.0 * n));
        jobs.iter().for_each(|(samples, _)| samples.bins.borrow_mut().push(samples.bytes.get()));
    }
    let mut seen = Seen::default();
    totals(&mut seen, &jobs, workload.seconds as f64);
    for (job, (samples, _)) in workload.jobs.iter().zip(&jobs) {
        if let Some(e) = samples.failed.take() {
            return Err(e);
        }
        note(&mut seen, job, samples, workload.seconds as f64);
    }
    stage::end(&sim, &disks);
    Ok(seen)
}

/// The figures of all jobs together.
fn totals(seen: &mut Seen, jobs: &[(Rc<Samples>, Vec<ObjectId>)], seconds: f64) {
    let (mut reads, mut writes) = (Vec::new(), Vec::new());
    for (samples, _) in jobs {
        reads.extend_from_slice(&samples.reads.borrow());
        writes.extend_from_slice(&samples.writes.borrow());
    }
    let bytes: u64 = jobs.iter().map(|(samples, _)| samples.bytes.get()).sum();
    seen.set("ops_per_s", (reads.len() + writes.len()) as f64 / seconds);
    seen.set("bytes_per_s", bytes as f64 / seconds);
    let all = [reads.as_slice(), &writes].concat();
    for (prefix, list) in [("read_", reads), ("write_", writes), ("", all)] {
        if !list.is_empty() {
            Latency::of(list).put(seen, prefix);
        }
    }
}

fn note(seen: &mut Seen, job: &Job, samples: &Samples, seconds: f64) {
    let mib = f64::from(1 << 20);
    let mut all = Vec::new();
    for (kind, list) in [("read", &samples.reads), ("write", &samples.writes)] {
        let mut list = list.take();
        list.sort_unstable();
        let mut set = |what: &str, ns: u64| seen.set(&format!("{}.{kind}_{what}_us", job.name), ns as f64 / 1000.0);
        if let Some(&last) = list.last() {
            set("p50", hist::percentile(&list, 500));
            set("p99", hist::percentile(&list, 990));
            set("p999", hist::percentile(&list, 999));
            set("max", last);
        }
        all.extend(list);
    }
    seen.set(&format!("{}.iops", job.name), all.len() as f64 / seconds);
    seen.set(&format!("{}.mib_per_s", job.name), samples.bytes.get() as f64 / mib / seconds);
    seen.series.insert(format!("{}.histogram", job.name), hist::points(&all));
    let bins = samples.bins.borrow();
    let bin = BIN.0 as f64 / 1e9;
    let before = std::iter::once(0).chain(bins.iter().copied());
    let rate = |(n, (old, new)): (usize, (u64, &u64))| ((n + 1) as f64 * bin, (new - old) as f64 / mib / bin);
    let points = before.zip(bins.iter()).enumerate().map(rate).collect();
    seen.series.insert(format!("{}.mib_per_s", job.name), points);
}

/// Bytes of a device: room for everything on each, many times.
fn disk_size(workload: &Workload) -> u64 {
    workload.files().saturating_mul(4).next_multiple_of(1 << 30).clamp(64 << 30, 1 << 44)
}

/// The devices, the log device last.
fn disks(pool: &PoolOf, workload: &Workload, sim: &Sim, seed: u64) -> Vec<SimDisk> {
    let count = pool.layout.devices() as u32;
    let size = disk_size(workload);
    let log = |n: u32| pool.log.as_ref().filter(|_| pool.layout.is_log(n as usize));
    let model = |n| match n == count {
        // The log device that a layout without one gets.
        true => pool.log.as_ref().filter(|_| !pool.layout.has_log()),
        false => Some(log(n).unwrap_or(&pool.device)),
    };
    let disk = |(n, device): (u32, &Device)| {
        stage::disk(&sim.handle(), DiskImage::zeroed(size), device.clone(), seed * 256 + u64::from(n))
    };
    (0..=count).filter_map(|n| Some((n, model(n)?))).map(disk).collect()
}

async fn start(
    pool: &PoolOf,
    sim: &Sim,
    disks: &[SimDisk],
    mut opts: EngineOpts,
    own: &[(String, String)],
) -> Result<(Rc<Pool>, Rc<Zfs>)> {
    let layout = match pool.log {
        Some(_) if !pool.layout.has_log() => pool.layout.clone().with_log(),
        _ => pool.layout.clone(),
    };
    opts.arc_max = opts.arc_max.min(CACHE_MAX);
    let recordsize = pool.recordsize.to_string();
    let mut props = vec![("compression", &*pool.compression), ("atime", "off"), ("recordsize", &*recordsize)];
    props.retain(|(name, _)| own.iter().all(|(other, _)| other != name));
    props.extend(own.iter().map(|(name, value)| (name.as_str(), value.as_str())));
    stage::new_fs_on(&sim.handle(), layout.on(disks), opts, 12, &props).await
}

/// Data of `CHUNK` bytes or of a block, whichever is longer. Without compression zeros, which need
/// no memory on the device; else a part of it at random and the rest zeros, in each 4 KiB.
fn data(job: &Job, compression: &str, seed: u64) -> Bytes {
    let len = job.block.max(CHUNK) as usize;
    let mut buf = Buf::zeroed(len);
    if compression != "off" {
        let mut rng = Rng::stream(seed, 1);
        for part in buf.chunks_mut(4096) {
            let random = (part.len() as f64 / job.compressible).ceil() as usize;
            rng.fill(&mut part[..random]);
        }
    }
    buf.freeze()
}

/// The files of a job.
async fn fill(fs: &Zfs, job: &Job, compression: &str, seed: u64) -> Result<Vec<ObjectId>> {
    let data = data(job, compression, seed);
    let mut files = Vec::new();
    for n in 0..job.threads {
        let name = format!("{}.{n}", job.name.replace('/', "_"));
        let file = stage::new_file(fs, &name).await?;
        for at in (0..job.size).step_by(CHUNK as usize) {
            let len = CHUNK.min(job.size - at) as usize;
            fs.write(file, at, vec![Bytes::copy_from(&data[..len])], false).await?;
        }
        files.push(file);
    }
    Ok(files)
}

/// A thread of a job.
struct Thread {
    job: Job,
    file: ObjectId,
    fs: Rc<Zfs>,
    samples: Rc<Samples>,
    data: Bytes,
    rng: Rng,
}

impl Thread {
    async fn go(mut self, rt: rt::Rt) -> Result<()> {
        let job = self.job.clone();
        let blocks = (job.size / job.block).max(1);
        let begin = rt.now() + Nanos(self.rng.below(START.0));
        let mut due = begin;
        let (mut at, mut written) = (0, 0);
        for n in 0u64.. {
            due = match job.rate {
                Rate::Max => rt.now().max(begin),
                Rate::Fixed(rate) => begin + Nanos((n as f64 * 1e9 / rate) as u64),
                Rate::Poisson(rate) => due + poisson_gap(rate, self.rng.next_u64()),
                Rate::Bursts { count, every } => begin + Nanos(every.0.saturating_mul(n / count)),
            };
            rt.sleep_until(due).await;
            let block = if job.pattern == Pattern::Random { self.rng.below(blocks) } else { at % blocks };
            at += 1;
            let offset = block * job.block;
            let is_read = job.read > 0 && self.rng.below(100) < job.read.into();
            if is_read {
                self.fs.read_noatime(self.file, offset, job.block).await?;
            } else {
                written += 1;
                self.write(offset, written).await?;
            }
            if self.samples.on.get() {
                let list = if is_read { &self.samples.reads } else { &self.samples.writes };
                list.borrow_mut().push(rt.now().since(due).0);
                self.samples.bytes.set(self.samples.bytes.get() + job.block);
            }
        }
        Ok(())
    }

    async fn write(&self, offset: u64, written: u64) -> Result<()> {
        // Memory of its own, as a program's: what blocks share counts once in the cache.
        let data = vec![Bytes::copy_from(&self.data[..self.job.block as usize])];
        match self.job.sync {
            Sync::Each => self.fs.write_sync(self.file, offset, data, false).await?,
            _ => self.fs.write(self.file, offset, data, false).await?,
        };
        match self.job.sync {
            Sync::After(n) if written.is_multiple_of(n) => self.fs.fsync(self.file).await,
            _ => Ok(()),
        }
    }
}
