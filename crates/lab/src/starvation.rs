//! `weir lab starvation`: a writer that compresses with gzip-9 beside a random reader.
//!
//! It repeats the measurement of a blog post on FreeBSD: with gzip-9 the reader starves, and
//! `zfs_vdev_async_write_max_active` of 3 instead of 10 was said to help. Two causes are told
//! apart:
//!
//! * *CPU*: compression takes the cores that a read needs for its checksum and decompression. Cells
//!   without compression, and with fewer cores for it (`zio_taskq_batch_pct`), show how much.
//! * *The queue*: writes of a txg at the disk, in front of which a read waits. Cells with 10 and 3
//!   show how much.
//!
//! Times are those of operations at the disk, as the post measured them, except of reads, which are
//! also measured as the reader sees them. The post's samples had 4 to 21 flushes each and no
//! repetition, so only the direction of its claim is judged: the flush.

use std::cell::{Cell as Slot, RefCell};
use std::rc::Rc;

use base::{Error, Nanos, ObjectId, Result};
use bdev::Buf;
use rt::trace::{Event, Groups};
use sim::{DiskImage, Rng, Sim, SimDisk};
use spa::{EngineOpts, Pool};
use vdev::Prio;
use zpl::Zfs;

use crate::device::{self, Device};
use crate::study::plot::{Axis, Body, Curve};
use crate::study::{Cell, Plot, Results, Row, Rule, Seen, Study};
use crate::{hist, stage};

/// Cores of the machine.
const CORES: u64 = 8;
/// Memory of the machine.
const MEM: u64 = 4 << 30;
/// Bytes of the disk.
const DISK: u64 = 500 << 30;
/// Bytes of a write, the record size.
const RECORD: u64 = 128 << 10;
/// Bytes of the file that is read, far more than the cache.
const READ: u64 = 2 << 30;
/// Limit of the cache.
const CACHE: u64 = 64 << 20;
/// Bytes that the writer offers a second: with 128 KiB each some 300 writes a second, as printed.
const OFFERED: u64 = 40 << 20;
/// Before it counts.
const WARMUP: Nanos = Nanos(6_000_000_000);

/// One configuration.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Config {
    /// gzip-9, or nothing.
    gzip: bool,
    /// `zfs_vdev_async_write_max_active`.
    active: u32,
    /// `zio_taskq_batch_pct`: share of the cores for compression.
    batch_pct: u64,
    /// Whether anything is written.
    writes: bool,
}

impl Config {
    fn name(self) -> String {
        if !self.writes {
            return "reader-alone".into();
        }
        let what = if self.gzip { "gzip-9" } else { "off" };
        let pct = if self.batch_pct == 80 { String::new() } else { format!("-{}pct", self.batch_pct) };
        format!("{what}-{}{pct}", self.active)
    }
}

const fn config(gzip: bool, active: u32, batch_pct: u64) -> Config {
    Config { gzip, active, batch_pct, writes: true }
}

/// All of them; 10 and 80 % are the defaults.
const CONFIGS: [Config; 6] = [
    Config { gzip: false, active: 10, batch_pct: 80, writes: false },
    config(false, 10, 80),
    config(false, 3, 80),
    config(true, 10, 80),
    config(true, 3, 80),
    config(true, 10, 25),
];

/// The study: `seconds` of virtual time count in each run; `device` in place of a nearline disk.
pub fn study(seconds: u64, device: Option<&Device>) -> Result<Study> {
    if !(5..=600).contains(&seconds) {
        return Err(Error::invalid("a study of starvation needs 5 to 600 seconds"));
    }
    let cell = |c: Config| Cell {
        name: c.name(),
        params: format!("{c:?} seconds={seconds} device={device:?}"),
        memory: 512 << 20,
        weight: if c.gzip { 8 } else { 1 + u64::from(c.writes) },
        run: {
            let device = device.cloned();
            Box::new(move |seed| World::new(c, seed, device.as_ref())?.run(seconds))
        },
    };
    Ok(Study {
        name: "starvation",
        title: "gzip-9 writes beside random reads",
        about: format!(
            "One thread writes 128 KiB at a time, {} MiB a second, one reads 128 KiB at random places; one disk, {CORES} cores, {seconds} s. \
             Published on FreeBSD with 10 and 3 writes at the disk: write 1,892 and 1,521 us, flush 42.7 and 25.1 ms, read 7.7 and 14.3 ms.",
            OFFERED >> 20
        ),
        cells: CONFIGS.map(cell).into(),
        rows: rows(),
        headings: crate::study::PUBLISHED,
        draw: Box::new(draw),
    })
}

fn rows() -> Vec<Row> {
    let mut rows = Vec::new();
    let published = [("gzip-9-10", [1.892, 42.7, 7.7]), ("gzip-9-3", [1.521, 25.1, 14.3])];
    for c in CONFIGS {
        let name = c.name();
        let known = published.iter().find(|(n, _)| *n == name).map(|(_, ms)| ms);
        let mut row = |what: &str, value: &'static str, unit, at: Option<usize>| {
            let row = Row::of(format!("{name}: {what}"), name.clone(), value, unit).digits(2);
            let figure = at.and_then(|i| known.map(|k| k[i]));
            rows.push(match figure {
                Some(ms) => row.published(ms, "as printed, on another disk", Rule::None),
                None => row,
            });
        };
        if c.writes {
            row("write at the disk", "write_ms", "ms", Some(0));
            row("flush", "flush_ms", "ms", Some(1));
        }
        row("read at the disk", "read_ms", "ms", Some(2));
        row("read, as the reader sees it", "reader_ms", "ms", None);
        row("read, as the reader sees it, p99", "reader_p99_ms", "ms", None);
        if c.writes {
            row("written by the program", "written_mib_per_s", "MiB/s", None);
        }
    }
    let change = |title: &str, a: &'static str, b: &'static str, value: &'static str| Row {
        name: title.into(),
        unit: "%",
        digits: 1,
        published: None,
        source: String::new(),
        rule: Rule::None,
        measure: Box::new(move |look| Some((look(b, value)? / look(a, value)? - 1.0) * 100.0)),
    };
    rows.push(change("10 to 3 writes at the disk: flush", "gzip-9-10", "gzip-9-3", "flush_ms").shape(
        "the post's claim: 42.7 to 25.1 ms",
        f64::NEG_INFINITY,
        -10.0,
    ));
    rows.push(change("10 to 3 writes at the disk: the reader's time", "gzip-9-10", "gzip-9-3", "reader_ms"));
    rows.push(change("the same without compression: the queue alone", "off-10", "off-3", "reader_ms"));
    rows.push(change(
        "no compression to gzip-9, 10 writes: CPU and smaller writes",
        "off-10",
        "gzip-9-10",
        "reader_ms",
    ));
    rows.push(change("80 to 25 % of the cores for compression", "gzip-9-10", "gzip-9-10-25pct", "reader_ms"));
    rows
}

fn draw(results: &Results) -> Vec<Plot> {
    let plot = |title: &str, series: &str, cells: &[&str]| Plot {
        title: title.into(),
        x: Axis::log("us"),
        y: Axis::log("operations"),
        body: Body::Curves(
            cells
                .iter()
                .map(|c| Curve { name: c.to_string(), points: results.series(c, series), dots: false })
                .collect(),
        ),
    };
    let all = ["reader-alone", "off-10", "off-3", "gzip-9-10", "gzip-9-3", "gzip-9-10-25pct"];
    vec![
        plot("Reads, as the reader sees them", "reader", &all),
        plot("Reads at the disk", "read", &all),
        plot("Writes at the disk", "write", &all[1..]),
        plot("Flushes", "flush", &all[1..]),
    ]
}

/// What is measured; times in ns.
#[derive(Default)]
struct Samples {
    on: Slot<bool>,
    written: Slot<u64>,
    reader: RefCell<Vec<u64>>,
    read: RefCell<Vec<u64>>,
    write: RefCell<Vec<u64>>,
    flush: RefCell<Vec<u64>>,
    failed: RefCell<Option<Error>>,
}

/// A run. The world is dropped last.
struct World {
    seed: u64,
    config: Config,
    pool: Rc<Pool>,
    fs: Rc<Zfs>,
    /// The file that is read.
    file: ObjectId,
    disk: SimDisk,
    sim: Sim,
}

impl World {
    fn new(config: Config, seed: u64, device: Option<&Device>) -> Result<World> {
        // The engine has a core of its own; compression has a share of the others.
        let cores = (CORES * config.batch_pct / 100).max(1);
        let sim = stage::world(seed, MEM, cores as usize);
        let disk = stage::disk(&sim.handle(), DiskImage::zeroed(DISK), device::disk(device, seed), seed);
        let mut opts = EngineOpts::for_memory(MEM);
        opts.arc_max = CACHE;
        opts.queue.classes[Prio::AsyncWrite.index()].max_active = config.active;
        let props = [("compression", "off"), ("atime", "off"), ("recordsize", "128k")];
        let disks = std::slice::from_ref(&disk);
        let (pool, fs, file) = sim.block_on(async {
            let (pool, fs) = stage::new_fs(&sim.handle(), disks, opts, 12, &props).await?;
            // The file that is read is not compressed: reads need the disk and a checksum.
            let file = stage::new_file(&fs, "read").await?;
            for at in (0..READ).step_by(RECORD as usize) {
                // Memory of its own: what records share counts once in the cache.
                fs.write(file, at, vec![Buf::zeroed(RECORD as usize).freeze()], false).await?;
            }
            fs.sync_all().await?;
            Ok::<_, Error>((pool, fs, file))
        })?;
        Ok(World { seed, config, pool, fs, file, disk, sim })
    }

    fn run(self, seconds: u64) -> Result<Seen> {
        let samples: Rc<Samples> = Rc::default();
        let n = samples.clone();
        let listening = self.sim.rt().tracer().listen(Groups::IO, move |_, e| {
            if !n.on.get() {
                return;
            }
            match e {
                Event::Done { write: true, disk, .. } => n.write.borrow_mut().push(disk.0),
                Event::Done { write: false, disk, .. } => n.read.borrow_mut().push(disk.0),
                Event::Flushed { total, .. } => n.flush.borrow_mut().push(total.0),
                _ => {}
            }
        });
        self.reader(&samples);
        if self.config.writes {
            self.writer(&samples)?;
        }
        self.sim.run_for(WARMUP);
        samples.on.set(true);
        self.sim.run_for(Nanos::from_secs(seconds));
        samples.on.set(false);
        drop(listening);
        if let Some(e) = samples.failed.take() {
            return Err(e);
        }
        let mut seen = Seen::default();
        let lists = [
            ("reader", &samples.reader),
            ("read", &samples.read),
            ("write", &samples.write),
            ("flush", &samples.flush),
        ];
        for (name, list) in lists {
            let mut list = list.take();
            list.sort_unstable();
            let Some(&max) = list.last() else { continue };
            let ms = |ns: u64| ns as f64 / 1e6;
            seen.set(&format!("{name}_ms"), list.iter().sum::<u64>() as f64 / list.len() as f64 / 1e6);
            seen.set(&format!("{name}_p99_ms"), ms(hist::percentile(&list, 990)));
            seen.set(&format!("{name}_max_ms"), ms(max));
            seen.set(&format!("{name}_per_s"), list.len() as f64 / seconds as f64);
            seen.series.insert(name.into(), hist::points(&list));
        }
        seen.set("written_mib_per_s", samples.written.get() as f64 / f64::from(1 << 20) / seconds as f64);
        stage::end(&self.sim, std::slice::from_ref(&self.disk));
        Ok(seen)
    }

    fn reader(&self, samples: &Rc<Samples>) {
        let (rt, fs, samples, file) = (self.sim.rt(), self.fs.clone(), samples.clone(), self.file);
        let mut rng = Rng::stream(self.seed, 1);
        drop(self.sim.rt().spawn("reader", async move {
            loop {
                let begin = rt.now();
                if let Err(e) = fs.read_noatime(file, rng.below(READ / RECORD) * RECORD, RECORD).await {
                    samples.failed.borrow_mut().get_or_insert(e);
                    return;
                }
                if samples.on.get() {
                    samples.reader.borrow_mut().push(rt.now().since(begin).0);
                }
            }
        }));
    }

    fn writer(&self, samples: &Rc<Samples>) -> Result<()> {
        let (rt, fs, samples) = (self.sim.rt(), self.fs.clone(), samples.clone());
        if self.config.gzip {
            let known = dsl::props::find("compression").ok_or_else(|| Error::invalid("there is no compression"))?;
            let value = known.parse("gzip-9")?;
            self.sim.block_on(self.pool.dsl().set_props("lab", vec![("compression".into(), value)]))?;
        }
        let file = self.sim.block_on(stage::new_file(&fs, "written"))?;
        let gzip = self.config.gzip;
        let mut rng = Rng::stream(self.seed, 2);
        let begin = rt.now();
        drop(self.sim.rt().spawn("writer", async move {
            for n in 0u64.. {
                rt.sleep_until(
                    begin + Nanos((n as u128 * u128::from(RECORD) * 1_000_000_000 / u128::from(OFFERED)) as u64),
                )
                .await;
                // Half of a record compresses; without compression zeros, which the device stores
                // in no memory.
                let mut buf = Buf::zeroed(RECORD as usize);
                if gzip {
                    rng.fill(&mut buf[..RECORD as usize / 2]);
                }
                // Round and round in a GiB, as a log file would.
                if let Err(e) = fs.write(file, n % 8192 * RECORD, vec![buf.freeze()], false).await {
                    samples.failed.borrow_mut().get_or_insert(e);
                    return;
                }
                if samples.on.get() {
                    samples.written.set(samples.written.get() + RECORD);
                }
            }
        }));
        Ok(())
    }
}
