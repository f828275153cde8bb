//! `weir lab calibrate`: what a device does under simple loads, and a model that does the same.
//!
//! The [`LOADS`] run on any block device: a real one with the real clock, or a model in virtual
//! time; it is the same code. [`fit`] begins with what the figures say directly, then changes one
//! field of the model at a time while that brings its figures closer to the measured ones. The
//! [`Report`] puts both side by side and judges each figure by [`LIMITS`]: what does not fit is
//! said, too.
//!
//! A device is taken for a spinning one if a lone reader waits longer than [`SPINS`].

use std::cell::{Cell, RefCell};
use std::fmt::Write as _;

use base::{Error, Nanos, Result};
use bdev::{BlockDev, Buf, Bytes, Op};
use rt::Rt;
use serde::Serialize;
use sim::{DiskImage, HddModel, HostCpu, HostLatency, Model, Rng, SsdModel};

use crate::device::{Device, RATE_MAX};
use crate::{hist, stage};

/// A figure of a model fits within so many percent: operations a second, median; and within this
/// factor: the 99th percentile (issue 20 of this project).
pub const LIMITS: (f64, f64, f64) = (15.0, 25.0, 2.0);
/// Median of a lone reader of 8 KiB from which on a device spins: flash takes a tenth of it.
const SPINS: f64 = 2_000.0;
/// Operations of a load in virtual time.
const MODEL_OPS: usize = 1_200;
/// The longest run of a load in virtual time.
const MODEL_SPAN: Nanos = Nanos(60_000_000_000);
/// Seed of loads and models.
const SEED: u64 = 1;
/// Factors by which fields are changed, in rounds.
const FACTORS: [f64; 7] = [4.0, 2.0, 1.4, 1.2, 1.1, 1.05, 1.03];
/// Numbers of clients: one, what a class has at a device beside others, and most that each of the
/// interactive classes has there (`zfs_vdev_*_max_active`).
const CLIENTS: [usize; 3] = [1, 4, 10];
/// Bytes of the drive behind a calibrated device, which may be a file or a share of it: so many
/// that what a run writes does not wear it out.
const DRIVE: u64 = 256 << 30;

/// Fields that a fit leaves as they are.
const UNSEEN: [&str; 19] = [
    "read_cpu",
    "read_cpu_rate",
    "write_cpu",
    "write_cpu_rate",
    "flush_cpu",
    "capacity",
    "patience",
    "read_ahead",
    "page",
    "planes",
    "block_pages",
    "channel_rate",
    "erase",
    "suspend",
    "suspend_erase",
    "spare",
    "slow_per_million",
    "slow_read",
    "slow_write",
];

/// What the clients of a load do.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// Read 8 KiB at random places.
    RandomRead,
    /// Read 128 KiB at random places.
    LargeRead,
    /// Write 8 KiB at random places.
    RandomWrite,
    /// Write 128 KiB, one after the other.
    SequentialWrite,
    /// Write 8 KiB at random places, each made durable by a flush.
    SyncWrite,
}

/// A load.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct Load {
    /// What its clients do.
    pub kind: Kind,
    /// How many there are.
    pub clients: usize,
}

/// All loads: each kind with each number of [`CLIENTS`].
pub const LOADS: [Load; 15] = {
    use Kind::{LargeRead, RandomRead, RandomWrite, SequentialWrite, SyncWrite};
    let kinds = [RandomRead, LargeRead, RandomWrite, SequentialWrite, SyncWrite];
    let mut all = [Load { kind: RandomRead, clients: 1 }; 15];
    let mut n = 0;
    while n < all.len() {
        all[n] = Load { kind: kinds[n / CLIENTS.len()], clients: CLIENTS[n % CLIENTS.len()] };
        n += 1;
    }
    all
};

impl Kind {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Kind::RandomRead => "random read",
            Kind::LargeRead => "large read",
            Kind::RandomWrite => "random write",
            Kind::SequentialWrite => "sequential write",
            Kind::SyncWrite => "sync write",
        }
    }
    /// Bytes of an operation.
    pub fn block(self) -> u64 {
        match self {
            Kind::LargeRead | Kind::SequentialWrite => 128 << 10,
            Kind::RandomRead | Kind::RandomWrite | Kind::SyncWrite => 8 << 10,
        }
    }
}

/// What was measured.
#[derive(Clone, PartialEq, Debug)]
pub struct Measured {
    /// The figures of each of [`LOADS`].
    pub points: Vec<Point>,
    /// What its operations took of the engine's thread, each on average.
    pub cpu: Vec<Nanos>,
}

/// The figures of a load.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct Point {
    /// Operations a second.
    pub iops: f64,
    /// Median latency.
    pub p50_us: f64,
    /// 99th percentile.
    pub p99_us: f64,
}

/// How long a load runs: until so many operations have ended, but this long at most.
#[derive(Clone, Copy, Debug)]
pub struct Span {
    /// Time at most.
    pub time: Nanos,
    /// Operations.
    pub ops: usize,
}

/// Runs a load on the first `size` bytes of a device; writes have the bytes of `data`, at least 128
/// KiB.
///
/// # Errors
/// The device's, and `Invalid` if nothing ended.
pub async fn measure(rt: &Rt, dev: &dyn BlockDev, size: u64, load: Load, span: Span, data: &Bytes) -> Result<Point> {
    let block = load.kind.block();
    let places = size / block;
    if places == 0 {
        return Err(Error::invalid("the device is too small for a load"));
    }
    let data = data.slice(..block as usize);
    let begin = rt.now();
    let (times, next) = (RefCell::new(Vec::new()), Cell::new(0));
    let client = |n: usize| {
        let (data, times, next) = (data.clone(), &times, &next);
        let mut rng = Rng::stream(SEED, n as u64);
        async move {
            while rt.now().since(begin) < span.time && times.borrow().len() < span.ops {
                let place = match load.kind {
                    Kind::SequentialWrite => next.replace(next.get() + 1) % places,
                    _ => rng.below(places),
                };
                let offset = place * block;
                let from = rt.now();
                match load.kind {
                    Kind::RandomRead | Kind::LargeRead => {
                        bdev::run(dev, Op::Read { offset, bufs: vec![Buf::for_overwrite(block as usize)] }).await?;
                    }
                    _ => bdev::write(dev, offset, data.clone()).await?,
                }
                if load.kind == Kind::SyncWrite {
                    bdev::flush(dev).await?;
                }
                times.borrow_mut().push(rt.now().since(from).0);
            }
            Ok::<_, Error>(())
        }
    };
    let ended = rt::join::join_all((0..load.clients).map(client).collect()).await;
    let seconds = rt.now().since(begin).as_secs_f64();
    ended.into_iter().collect::<Result<Vec<()>>>()?;
    let mut times = times.take();
    times.sort_unstable();
    if times.is_empty() || seconds == 0.0 {
        return Err(Error::invalid("no operation of a load has ended"));
    }
    let us = |permille| hist::percentile(&times, permille) as f64 / 1000.0;
    Ok(Point { iops: times.len() as f64 / seconds, p50_us: us(500), p99_us: us(990) })
}

/// Writes random bytes to the first `size` bytes of a device, so that reads find data; then the
/// figures of all loads, each for `time`. `busy` tells how long the engine's thread has worked;
/// `progress` is told the share that is done.
///
/// # Errors
/// Those of [`measure`].
pub async fn measure_all(
    rt: &Rt,
    dev: &dyn BlockDev,
    size: u64,
    time: Nanos,
    busy: &dyn Fn() -> Nanos,
    progress: &mut dyn FnMut(f64),
) -> Result<Measured> {
    let mut data = Buf::zeroed(1 << 20);
    Rng::new(SEED).fill(&mut data);
    let data = data.freeze();
    for at in (0..size).step_by(data.len()) {
        progress(at as f64 / size as f64 / (LOADS.len() + 1) as f64);
        let len = (size - at).min(data.len() as u64) as usize;
        bdev::write(dev, at, data.slice(..len)).await?;
    }
    bdev::flush(dev).await?;
    let (mut points, mut cpu) = (Vec::new(), Vec::new());
    for (n, load) in LOADS.into_iter().enumerate() {
        progress((n + 1) as f64 / (LOADS.len() + 1) as f64);
        let (began, worked) = (rt.now(), busy());
        let point = measure(rt, dev, size, load, Span { time, ops: usize::MAX }, &data).await?;
        let ops = point.iops * rt.now().since(began).as_secs_f64();
        cpu.push(Nanos((busy().since(worked).0 as f64 / ops) as u64));
        points.push(point);
        // What a load leaves behind is not the next one's.
        bdev::flush(dev).await?;
    }
    Ok(Measured { points, cpu })
}

/// The figures of all loads on a model, on `size` bytes of it.
///
/// # Errors
/// Those of [`measure`].
pub fn simulate(device: &Device, size: u64) -> Result<Vec<Point>> {
    let data = Bytes::zeroed(Kind::SequentialWrite.block() as usize);
    let one = |load: &Load| {
        let sim = stage::world(SEED, 1 << 30, 1);
        let disk = stage::disk(&sim.handle(), DiskImage::zeroed(size), device.clone(), SEED);
        let rt = sim.rt();
        let span = Span { time: MODEL_SPAN, ops: MODEL_OPS.max(load.clients * 8) };
        sim.block_on(measure(&rt, &disk, size, *load, span, &data))
    };
    LOADS.iter().map(one).collect()
}

/// How far a model's figures are from the measured ones: 0 for the same. Logarithms of ratios;
/// rates count more than medians, and those more than tails.
fn distance(measured: &[Point], model: &[Point]) -> f64 {
    let off = |a: f64, b: f64| (a.max(1e-3) / b.max(1e-3)).ln().abs();
    let one =
        |(a, b): (&Point, &Point)| off(a.iops, b.iops) + 0.6 * off(a.p50_us, b.p50_us) + 0.25 * off(a.p99_us, b.p99_us);
    measured.iter().zip(model).map(one).sum()
}

/// Where this load is in [`LOADS`], which have each kind with each number of clients.
fn place(kind: Kind, clients: usize) -> usize {
    let at = LOADS.iter().position(|l| *l == Load { kind, clients });
    at.expect("a load for each kind and number of clients")
}

/// What operations take of the engine's thread, by that of each of [`LOADS`]: those with most
/// clients, as the engine has many at a device.
fn cpu_of(cpu: &[Nanos]) -> HostCpu {
    let most = CLIENTS[CLIENTS.len() - 1];
    let of = |kind| cpu.get(place(kind, most)).map_or(0.0, |n| n.0 as f64);
    // Of two sizes: what an operation takes, and what its bytes take.
    let line = |small: Kind, large: Kind| {
        let (a, b) = (of(small), of(large).max(of(small)));
        let each = (b - a) / (large.block() - small.block()) as f64;
        let rate = if each > 0.0 { (1e9 / each) as u64 } else { 0 };
        (Nanos((a - each * small.block() as f64).max(0.0) as u64), rate.min(RATE_MAX))
    };
    let (read, read_rate) = line(Kind::RandomRead, Kind::LargeRead);
    let (write, write_rate) = line(Kind::RandomWrite, Kind::SequentialWrite);
    let flush = Nanos((of(Kind::SyncWrite) - of(Kind::RandomWrite)).max(0.0) as u64);
    HostCpu { read, read_rate, write, write_rate, flush }
}

/// Where a fit begins: what the figures say directly.
fn begin(measured: &[Point], cpu: HostCpu) -> Device {
    let of = |kind, clients| measured[place(kind, clients)];
    let us = |us: f64| Nanos((us.max(0.1) * 1000.0) as u64);
    let (read, write, sync) = (of(Kind::RandomRead, 1), of(Kind::RandomWrite, 1), of(Kind::SyncWrite, 1));
    let fastest = |kind: Kind| CLIENTS.map(|n| of(kind, n).iops).into_iter().fold(1.0, f64::max);
    let rate = |kind: Kind| fastest(kind) * kind.block() as f64;
    let stream = rate(Kind::SequentialWrite);
    let host = HostLatency {
        cpu,
        wake: us(2.0),
        jitter: us(write.p50_us / 10.0),
        rare_per_million: 15_000,
        rare: us(write.p99_us - write.p50_us),
    };
    let model = if read.p50_us > SPINS {
        let rate = (stream as u64).clamp(1 << 20, 1 << 32);
        let hdd = HddModel { outer_rate: rate, inner_rate: rate / 2, link: rate * 2, ..HddModel::nearline_7200() };
        let cached = write.p50_us < read.p50_us / 4.0;
        Model::Hdd(if cached { hdd } else { hdd.without_write_cache() })
    } else {
        let ssd = SsdModel::nvme();
        let bytes = (ssd.dies as u64 * ssd.planes * ssd.page) as f64;
        Model::Ssd(SsdModel {
            read: us(read.p50_us * 0.7),
            command: us(write.p50_us.min(read.p50_us) * 0.3),
            program: us(bytes / stream * 0.7 * 1e6),
            link: rate(Kind::LargeRead).max(stream) as u64,
            write_path: stream as u64,
            read_path: rate(Kind::LargeRead) as u64,
            read_each: us(1e6 / fastest(Kind::RandomRead)),
            write_each: us(1e6 / fastest(Kind::RandomWrite)),
            capacity: DRIVE,
            flush: us(sync.p50_us - write.p50_us),
            protected: true,
            // The host's tail, which is measured, has the disk's in it.
            slow_per_million: 0,
            ..ssd
        })
    };
    Device { name: "calibrated".into(), model, host }
}

/// The model whose figures are closest to the measured ones of [`LOADS`], with its own figures;
/// `progress` is told the share that is done. `size`: bytes of the device that were used.
///
/// # Errors
/// Those of [`simulate`].
pub fn fit(measured: &Measured, size: u64, progress: &mut dyn FnMut(f64)) -> Result<(Device, Vec<Point>)> {
    fit_by(&FACTORS, measured, size, progress)
}

/// As [`fit`] with a round for each of `factors`.
fn fit_by(
    factors: &[f64],
    Measured { points: measured, cpu }: &Measured,
    size: u64,
    progress: &mut dyn FnMut(f64),
) -> Result<(Device, Vec<Point>)> {
    let mut best = begin(measured, cpu_of(cpu));
    let mut figures = simulate(&best, size)?;
    let mut off = distance(measured, &figures);
    let mut fields = best.scalable();
    // They change nothing in these loads, or the same as a field that is kept.
    fields.retain(|name| !UNSEEN.contains(name));
    for (round, &factor) in factors.iter().enumerate() {
        for (n, name) in fields.iter().enumerate() {
            progress((round as f64 + n as f64 / fields.len() as f64) / factors.len() as f64);
            for factor in [factor, 1.0 / factor] {
                let other = best.scaled(name, factor);
                // Two fields that depend on one another may end a change.
                let sound = match &other.model {
                    Model::Hdd(m) => m.inner_rate <= m.outer_rate && m.seek_min <= m.seek_max,
                    _ => true,
                };
                if other == best || !sound {
                    continue;
                }
                let seen = simulate(&other, size)?;
                let distance = distance(measured, &seen);
                if distance < off {
                    (best, figures, off) = (other, seen, distance);
                    break;
                }
            }
        }
    }
    progress(1.0);
    Ok((best, figures))
}

/// Bytes of a device that can be used: whole MiB, `asked` of them at most.
pub fn usable(dev: &dyn BlockDev, asked: u64) -> u64 {
    asked.min(dev.size()) >> 20 << 20
}

/// A load, measured and modelled.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct Line {
    /// The load.
    #[serde(flatten)]
    pub load: Load,
    /// On the device.
    pub measured: Point,
    /// On the model.
    pub model: Point,
    /// Whether operations a second, median and 99th percentile are within [`LIMITS`].
    pub fits: [bool; 3],
}

/// A device and its model.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Report {
    /// The device.
    pub device: String,
    /// Bytes of it that were used.
    pub size: u64,
    /// Every load.
    pub loads: Vec<Line>,
    /// How many of the figures fit.
    pub fitting: usize,
}

impl Report {
    /// Puts figures side by side.
    pub fn of(device: &str, size: u64, measured: &[Point], model: &[Point]) -> Report {
        let line = |((load, &a), &b): ((&Load, &Point), &Point)| {
            let percent = |a: f64, b: f64| (b / a.max(1e-9) - 1.0).abs() * 100.0;
            let factor = (b.p99_us / a.p99_us.max(1e-9)).max(a.p99_us / b.p99_us.max(1e-9));
            let fits =
                [percent(a.iops, b.iops) <= LIMITS.0, percent(a.p50_us, b.p50_us) <= LIMITS.1, factor <= LIMITS.2];
            Line { load: *load, measured: a, model: b, fits }
        };
        let loads: Vec<Line> = LOADS.iter().zip(measured).zip(model).map(line).collect();
        let fitting = loads.iter().flat_map(|l| l.fits).filter(|f| *f).count();
        Report { device: device.into(), size, loads, fitting }
    }

    /// The table; figures with a star do not fit.
    pub fn text(&self) -> String {
        let mut out = format!(
            "{:<17}{:>8}  {:>19}  {:>19}  {:>19}\n{:<27}{:>19}  {:>19}  {:>19}\n",
            "",
            "clients",
            "operations a second",
            "median, us",
            "99 %, us",
            "",
            "measured, model",
            "measured, model",
            "measured, model"
        );
        for line in &self.loads {
            let (a, b) = (line.measured, line.model);
            let _ = write!(out, "{:<17}{:>8}", line.load.kind.name(), line.load.clients);
            for ((a, b), fits) in
                [(a.iops, b.iops), (a.p50_us, b.p50_us), (a.p99_us, b.p99_us)].into_iter().zip(line.fits)
            {
                let _ = write!(out, "  {a:>9.0}{b:>9.0}{}", if fits { ' ' } else { '*' });
            }
            out.push('\n');
        }
        let _ = writeln!(
            out,
            "\n{} of {} figures fit: operations a second within {} %, medians within {} %, 99th percentiles within a factor of {}",
            self.fitting,
            self.loads.len() * 3,
            LIMITS.0,
            LIMITS.1,
            LIMITS.2
        );
        out
    }

    /// The model file: the model, and how well it fits.
    ///
    /// # Errors
    /// Those of [`Device::text`].
    pub fn file(&self, model: &Device) -> Result<String> {
        let mut out = format!("# {} ({} MiB of it), by weir lab calibrate.\n", self.device, self.size >> 20);
        out.push_str("# What does not fit has a star:\n");
        self.text().lines().for_each(|line| {
            let _ = writeln!(out, "{}", format!("#   {line}").trim_end());
        });
        let _ = write!(out, "\n{}", model.text()?);
        let _ = writeln!(out, "[fit]\nfigures = {}\nfitting = {}", self.loads.len() * 3, self.fitting);
        for line in &self.loads {
            let name = line.load.kind.name().replace(' ', "-");
            let _ = writeln!(out, "\n[fit.{name}-{}]", line.load.clients);
            for (key, a, b) in [
                ("iops", line.measured.iops, line.model.iops),
                ("p50_us", line.measured.p50_us, line.model.p50_us),
                ("p99_us", line.measured.p99_us, line.model.p99_us),
            ] {
                let _ = writeln!(out, "{key} = [{a:.1}, {b:.1}]");
            }
        }
        Ok(out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_model_is_found_again_from_its_figures() {
        let size = 1 << 30;
        for name in ["nvme", "hdd"] {
            let device = Device::of(name).unwrap();
            let measured = simulate(&device, size).unwrap();
            assert_eq!(measured, simulate(&device, size).unwrap(), "the same seed is the same run");
            // Two rounds are enough for what a model has measured.
            let of = Measured { points: measured.clone(), cpu: Vec::new() };
            let (found, figures) = fit_by(&FACTORS[1..4], &of, size, &mut |_| {}).unwrap();
            assert_eq!(found.model.rotational(), device.model.rotational(), "{name}");
            assert_eq!(simulate(&found, size).unwrap(), figures);
            let report = Report::of(name, size, &measured, &figures);
            eprintln!("{name}\n{}", report.text());
            assert!(report.fitting >= 40, "{name}: {}", report.fitting);
            let again = Device::parse(name, &report.file(&found).unwrap()).unwrap();
            assert_eq!((again.model, again.host), (found.model, found.host));
        }
    }

    #[test]
    fn what_an_operation_takes_of_the_thread_is_a_line_over_its_bytes() {
        let of = |load: &Load| match load.kind {
            Kind::RandomRead => 5_000 + 8 * 10,
            Kind::LargeRead => 5_000 + 128 * 10,
            Kind::RandomWrite | Kind::SequentialWrite => 7_000,
            Kind::SyncWrite => 9_000,
        };
        let cpu = cpu_of(&LOADS.iter().map(|l| Nanos(of(l))).collect::<Vec<_>>());
        assert_eq!((cpu.read, cpu.write, cpu.write_rate, cpu.flush), (Nanos(5_000), Nanos(7_000), 0, Nanos(2_000)));
        assert!((cpu.read_rate as f64 / (1024.0 * 1e8) - 1.0).abs() < 0.01, "{cpu:?}");
        assert_eq!(cpu_of(&[]), HostCpu::default());
    }

    #[test]
    fn figures_are_judged_by_the_limits() {
        let p = |iops, p50_us, p99_us| Point { iops, p50_us, p99_us };
        let measured = vec![p(100.0, 100.0, 100.0); LOADS.len()];
        let model = vec![p(114.0, 126.0, 51.0); LOADS.len()];
        let report = Report::of("x", 1 << 30, &measured, &model);
        assert_eq!((report.loads[0].fits, report.fitting), ([true, false, true], 30));
        assert!(report.text().contains("126*") && report.text().contains("30 of 45 figures fit"));
        assert_eq!(distance(&measured, &measured), 0.0);
        assert!(distance(&measured, &model) > 0.0);
    }
}
