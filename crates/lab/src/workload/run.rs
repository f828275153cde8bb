//! A workload on the engine: one cell, a row for each figure of each job.
//!
//! Files are written and synced first. Then all threads start; operations count when the warm-up is
//! over. With a rate, an operation's latency is from the moment when it was due, so that a queue of
//! late operations shows.

use std::cell::{Cell as Slot, RefCell};
use std::rc::Rc;

use base::{Nanos, ObjectId, Result};
use bdev::{Buf, Bytes};
use rt::Rt;
use sim::{DiskImage, Rng, Sim, SimDisk};
use spa::{DevSpec, EngineOpts, Pool};
use zpl::Zfs;

use super::{Job, Pattern, PoolOf, Rate, Sync, Workload};
use crate::calibrate::LIMITS;
use crate::device::Device;
use crate::parts::Watch;
use crate::replay::Latency;
use crate::study::plot::{Axis, Body, Curve};
use crate::study::{Cell, PUBLISHED, Plot, Row, Rule, Seen, Spread, Study};
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

/// A figure of a job.
struct Figure {
    what: String,
    /// Its name in [`Seen`].
    value: String,
    unit: &'static str,
    digits: usize,
    /// How near a model has to be.
    rule: Rule,
}

fn figures(job: &Job) -> Vec<Figure> {
    let (percent, median, factor) = LIMITS;
    let figure = |what: String, value: &str, unit, digits, rule| Figure {
        what: format!("{}: {what}", job.name),
        value: format!("{}.{value}", job.name),
        unit,
        digits,
        rule,
    };
    let mut all = vec![
        figure("operations a second".into(), "iops", "", 0, Rule::WithinPercent(percent)),
        figure("throughput".into(), "mib_per_s", "MiB/s", 1, Rule::None),
    ];
    let kinds = [("read", job.read > 0), ("write", job.read < 100)];
    for (kind, _) in kinds.into_iter().filter(|(_, is_there)| *is_there) {
        for (p, rule) in [
            ("p50", Rule::WithinPercent(median)),
            ("p99", Rule::WithinFactor(factor)),
            ("p999", Rule::None),
            ("max", Rule::None),
        ] {
            all.push(figure(format!("{kind} latency, {p}"), &format!("{kind}_{p}_us"), "us", 0, rule));
        }
    }
    all
}

/// The study of a workload; `name` is its file. With `real` runs of it ([`on_devices`]) the table
/// compares the model with them.
pub fn study(name: &str, workload: Workload, real: Option<&[Seen]>) -> Study {
    let row = |figure: Figure| {
        let of_real = |runs: &[Seen]| {
            Spread::of(&runs.iter().filter_map(|seen| seen.values.get(&figure.value).copied()).collect::<Vec<_>>())
        };
        let row = Row::of(figure.what, "workload", "", figure.unit).digits(figure.digits);
        let row = match real.map(of_real) {
            Some(Some(spread)) => row.published(spread.mean, "the devices", figure.rule),
            _ => row,
        };
        let value = figure.value;
        Row { measure: Box::new(move |look| look("workload", &value)), ..row }
    };
    let rows = workload.jobs.iter().flat_map(figures).map(row).collect();
    let headings = if real.is_some() { ["devices", "model"] } else { PUBLISHED };
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
        headings,
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
    let seen = sim.block_on(async {
        let devices = disks.iter().map(stage::device).collect();
        let (_pool, fs) = start(&sim.rt(), workload, devices, opts, props).await?;
        let content = if pool_of.compression == "off" { Content::Zeros } else { Content::Random };
        measure(&sim.rt(), &fs, workload, seed, content).await
    })?;
    stage::end(&sim, &disks);
    Ok(seen)
}

/// Runs it once on real devices, as many as [`Workload::devices`] says, in their order. What is on
/// them is lost; at the end they hold a destroyed pool. The machine's memory and processors are
/// those of the engine of `rt`, the cache that of the workload.
///
/// # Errors
/// Those of creating the pool, and of the operations.
pub async fn on_devices(rt: &Rt, devices: Vec<DevSpec>, workload: &Workload, seed: u64) -> Result<Seen> {
    let opts = EngineOpts::for_memory(workload.pool.memory);
    let (pool, fs) = start(rt, workload, devices, opts, &[]).await?;
    let seen = measure(rt, &fs, workload, seed, Content::Random).await?;
    fs.unmount().await?;
    pool.destroy().await?;
    Ok(seen)
}

/// Fills the files, lets all threads go, and waits until the time is over.
async fn measure(rt: &Rt, fs: &Rc<Zfs>, workload: &Workload, seed: u64, content: Content) -> Result<Seen> {
    let mut jobs: Vec<(Rc<Samples>, Vec<ObjectId>)> = Vec::new();
    for job in &workload.jobs {
        let files = fill(fs, job, content, seed).await?;
        jobs.push((Rc::default(), files));
    }
    fs.sync_all().await?;
    let begin = rt.now();
    let counts = begin + Nanos::from_secs(workload.warmup);
    let mut stream = 1000;
    let mut threads = Vec::new();
    for (job, (samples, files)) in workload.jobs.iter().zip(&jobs) {
        for &file in files.iter().cycle().take(job.threads as usize) {
            stream += 1;
            let thread = Thread {
                job: job.clone(),
                file,
                fs: fs.clone(),
                samples: samples.clone(),
                data: data(job, content, seed ^ stream),
                rng: Rng::stream(seed, stream),
                end: counts + Nanos::from_secs(workload.seconds),
            };
            let at = rt.clone();
            threads.push(rt.spawn("job", thread.go(at)));
        }
    }
    rt.sleep_until(counts).await;
    jobs.iter().for_each(|(samples, _)| samples.on.set(true));
    let watch = Watch::begin(rt);
    for n in 1..=workload.seconds * 1_000_000_000 / BIN.0 {
        rt.sleep_until(counts + Nanos(BIN.0 * n)).await;
        jobs.iter().for_each(|(samples, _)| samples.bins.borrow_mut().push(samples.bytes.get()));
    }
    jobs.iter().for_each(|(samples, _)| samples.on.set(false));
    let mut seen = Seen::default();
    totals(&mut seen, &jobs, workload.seconds as f64, watch);
    for (job, (samples, _)) in workload.jobs.iter().zip(&jobs) {
        note(&mut seen, job, samples, workload.seconds as f64);
    }
    for ended in threads {
        ended.await?;
    }
    Ok(seen)
}

/// The figures of all jobs together.
fn totals(seen: &mut Seen, jobs: &[(Rc<Samples>, Vec<ObjectId>)], seconds: f64, watch: Watch) {
    let (mut reads, mut writes) = (Vec::new(), Vec::new());
    for (samples, _) in jobs {
        reads.extend_from_slice(&samples.reads.borrow());
        writes.extend_from_slice(&samples.writes.borrow());
    }
    let bytes: u64 = jobs.iter().map(|(samples, _)| samples.bytes.get()).sum();
    seen.set("ops_per_s", (reads.len() + writes.len()) as f64 / seconds);
    seen.set("bytes_per_s", bytes as f64 / seconds);
    let all = [reads.as_slice(), &writes].concat();
    seen.values.extend(watch.end(seconds, all.len() as u64, bytes as f64).values);
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

/// Bytes of a device: room for everything on each, many times, if the workload does not say.
fn disk_size(workload: &Workload) -> u64 {
    let ample = || workload.files().saturating_mul(4).next_multiple_of(1 << 30).clamp(64 << 30, 1 << 44);
    workload.pool.size.unwrap_or_else(ample)
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

/// Makes the pool on these devices.
async fn start(
    rt: &Rt,
    workload: &Workload,
    devices: Vec<DevSpec>,
    mut opts: EngineOpts,
    own: &[(String, String)],
) -> Result<(Rc<Pool>, Rc<Zfs>)> {
    let pool = &workload.pool;
    opts.arc_max = opts.arc_max.min(CACHE_MAX);
    let recordsize = pool.recordsize.to_string();
    let mut props = vec![("compression", &*pool.compression), ("atime", "off"), ("recordsize", &*recordsize)];
    props.retain(|(name, _)| own.iter().all(|(other, _)| other != name));
    props.extend(own.iter().map(|(name, value)| (name.as_str(), value.as_str())));
    stage::new_fs_on(rt, pool.whole_layout().on(devices), opts, 12, &props).await
}

/// What is written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Content {
    /// Zeros, which need no memory on a modelled device.
    Zeros,
    /// A part at random and the rest zeros, in each 4 KiB, by the job's `compressible`.
    Random,
}

/// Data of `CHUNK` bytes or of a block, whichever is longer.
fn data(job: &Job, content: Content, seed: u64) -> Bytes {
    let len = job.block.max(CHUNK) as usize;
    let mut buf = Buf::zeroed(len);
    if content == Content::Random {
        let mut rng = Rng::stream(seed, 1);
        for part in buf.chunks_mut(4096) {
            let random = (part.len() as f64 / job.compressible).ceil() as usize;
            rng.fill(&mut part[..random]);
        }
    }
    buf.freeze()
}

/// The files of a job: one for all threads, or one for each.
async fn fill(fs: &Zfs, job: &Job, content: Content, seed: u64) -> Result<Vec<ObjectId>> {
    let data = data(job, content, seed);
    let mut files = Vec::new();
    for n in 0..job.files() {
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
    /// No operation begins from then on.
    end: Nanos,
}

impl Thread {
    async fn go(mut self, rt: Rt) -> Result<()> {
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
            rt.sleep_until(due.min(self.end)).await;
            if rt.now() >= self.end {
                break;
            }
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
