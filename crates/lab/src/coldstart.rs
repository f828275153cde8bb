//! `weir lab coldstart`: many programs start at once and read the same input, cold.
//!
//! It repeats what Jörg Möllenkamp describes in "Losing my fear of ZFS" (2009): 63 and 255 copies
//! of a program whose input of 267 MB compresses 13 to 1, on UFS and on ZFS with gzip. Two forms:
//!
//! * *one*: all read one file. Readers of the same record share one read of it.
//! * *each*: every reader has a copy, as published. The copies are 1/32 of the size here, with the
//!   same records side by side, and times are multiplied by 32; where the disk is the limit that
//!   changes only begin and end.
//!
//! A layout is filled once and exported; every run imports the pool anew with other seeds for disks
//! and readers. Content that does not compress is zeros that are stored uncompressed; the other is
//! lines of a linear program of which gzip leaves a thirteenth.
//!
//! Disks are nearline ones of today, and a processor decompresses ten times faster than in 2009, so
//! what was published in minutes is judged by its shape.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};

use base::{Error, Nanos, ObjectId, Result};
use bdev::{Buf, Bytes};
use sim::{Counters, DiskImage, Model, Rng, Sim, SimDisk, SimHandle};
use spa::{EngineOpts, GroupKind, ImportOpts, Layout, Pool};
use zpl::Zfs;

use crate::device::{self, Device};
use crate::stage;
use crate::study::plot::{Axis, Body, Curve};
use crate::study::{Cell, Plot, Results, Row, Rule, Seen, Study};

/// Bytes of the input.
const INPUT: u64 = 267 << 20;
/// Copies are smaller by this factor.
const PART: u64 = 32;
/// Bytes of one read of a program.
const READ: u64 = 64 << 10;
/// Bytes of a disk.
const DISK: u64 = 300 << 30;
/// Memory of the machine.
const MEM: u64 = 8 << 30;
/// Limit of the cache: the input and its indexes.
const CACHE: u64 = 400 << 20;
/// Programs start within this time.
const START: Nanos = Nanos(100_000_000);
/// Bins of the curves with one file, and with a copy for each.
const BINS: [Nanos; 2] = [Nanos(250_000_000), Nanos(20_000_000)];
/// Seed of the world in which a layout is filled.
const FILLED: u64 = 1;

/// The parameters.
#[derive(Clone, PartialEq, Debug)]
pub struct Params {
    /// Numbers of programs.
    pub readers: Vec<u32>,
    /// Virtual cores.
    pub cores: u32,
    /// Bytes of the input.
    pub input: u64,
    /// In place of nearline disks.
    pub device: Option<Device>,
}

impl Default for Params {
    fn default() -> Params {
        Params { readers: vec![63, 255], cores: 8, input: INPUT, device: None }
    }
}

/// Disks of a pool.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Disks {
    /// One.
    One,
    /// RAID-Z of ten.
    Raidz,
    /// Mirrors: how many, of how many disks.
    Mirrors(u32, u32),
}

impl Disks {
    fn name(self) -> String {
        match self {
            Disks::One => "disk".into(),
            Disks::Raidz => "raidz-10".into(),
            Disks::Mirrors(n, of) => format!("mirrors-{n}x{of}"),
        }
    }
    fn count(self) -> u32 {
        match self {
            Disks::One => 1,
            Disks::Raidz => 10,
            Disks::Mirrors(n, of) => n * of,
        }
    }
    fn layout(self, disks: &[SimDisk]) -> Layout {
        let (kind, width) = match self {
            Disks::One => (GroupKind::Single, 1),
            Disks::Raidz => (GroupKind::Raidz(1), 10),
            Disks::Mirrors(_, of) => (GroupKind::Mirror, of as usize),
        };
        Layout { groups: stage::groups(disks, kind, width), ..Layout::default() }
    }
}

/// What is on the pool.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Content {
    disks: Disks,
    compression: &'static str,
    /// Copies, one for each reader; 1: all read the same file.
    copies: u32,
    /// Bytes of a copy.
    bytes: u64,
}

/// A line of a linear program in the fixed columns of MPS: names of columns and rows that go up,
/// coefficients of which few are usual. `n`: its number; `drawn`: what is left to chance.
fn line(n: u64, drawn: u64) -> String {
    const USUAL: [&str; 4] = ["1.0", "-1.0", "0.5", "100.0"];
    let column = n / 12;
    let row = column % 97 * 8 + n % 12;
    let value = USUAL[if drawn % 16 < 13 { 0 } else { (drawn % 4) as usize }];
    format!("    C{column:07}  R{row:07}  {value:>12}   R{:07}  {value:>12}\n", row + 400)
}

/// `bytes` of such lines.
fn input(bytes: u64) -> Vec<u8> {
    let mut rng = Rng::stream(FILLED, 7);
    let mut text = Vec::with_capacity(bytes as usize + 80);
    for n in 0.. {
        if text.len() as u64 >= bytes {
            break;
        }
        text.extend_from_slice(line(n, rng.next_u64()).as_bytes());
    }
    text.truncate(bytes as usize);
    text
}

/// Layouts and compressions of every form.
const POOLS: [(Disks, &str); 10] = [
    (Disks::One, "off"),
    (Disks::One, "lzjb"),
    (Disks::One, "lz4"),
    (Disks::One, "gzip"),
    (Disks::One, "zstd"),
    (Disks::Raidz, "gzip"),
    (Disks::Mirrors(6, 2), "off"),
    (Disks::Mirrors(6, 2), "gzip"),
    (Disks::Mirrors(8, 3), "off"),
    (Disks::Mirrors(8, 3), "gzip"),
];

/// The study.
pub fn study(params: &Params) -> Result<Study> {
    if params.readers.is_empty() || params.readers.iter().any(|n| !(2..=4096).contains(n)) {
        return Err(Error::invalid("a study of cold starts needs 2 to 4096 readers"));
    }
    if !(1..=1024).contains(&params.cores) {
        return Err(Error::invalid("a study of cold starts needs 1 to 1024 cores"));
    }
    if !(1 << 20..=INPUT).contains(&params.input) {
        return Err(Error::invalid("a study of cold starts needs an input of 1M to 267M"));
    }
    let mut cells = Vec::new();
    let shelf: Arc<Shelf> = Arc::default();
    for &readers in &params.readers {
        for (disks, compression) in POOLS {
            let bytes = (params.input / PART).next_multiple_of(128 << 10);
            for (copies, bytes) in [(1, params.input), (readers, bytes)] {
                cells.push(cell(params, Content { disks, compression, copies, bytes }, shelf.clone(), readers));
            }
        }
    }
    Ok(Study {
        name: "coldstart",
        title: "Cold start: many readers of one input",
        about: format!(
            "{} readers of an input of {} MiB that gzip makes 13 times smaller, nothing of it in memory, {} cores. \
             'One': all read the same file. 'Each': a copy for each reader, scaled to {PART} times smaller copies and back.",
            params.readers.iter().map(u32::to_string).collect::<Vec<_>>().join(" and "),
            params.input >> 20,
            params.cores
        ),
        rows: rows(params),
        headings: crate::study::PUBLISHED,
        cells,
        draw: draw(params.clone()),
    })
}

fn name(disks: Disks, compression: &str, form: &str, readers: u32) -> String {
    format!("{}-{compression}-{form}-{readers}", disks.name())
}

fn cell(params: &Params, content: Content, shelf: Arc<Shelf>, readers: u32) -> Cell {
    let form = if content.copies == 1 { "one" } else { "each" };
    let (cores, device) = (params.cores, params.device.clone());
    let stored = content.bytes * u64::from(content.copies) * u64::from(content.disks.count().min(3));
    let kept = if content.compression == "off" { 0 } else { stored / 4 };
    Cell {
        name: name(content.disks, content.compression, form, readers),
        params: format!("bytes={} cores={cores} device={device:?}", content.bytes),
        memory: kept + CACHE.min(content.bytes * u64::from(content.copies)) + (128 << 20),
        weight: 1 + u64::from(readers * content.disks.count().min(10)) * (content.bytes >> 20) / 64,
        run: Box::new(move |seed| run(&content, &shelf.take(content), readers, cores, device.as_ref(), seed)),
    }
}

fn rows(params: &Params) -> Vec<Row> {
    let mut rows = Vec::new();
    // Claims are about the numbers of programs that were published; other numbers are shown.
    let ratio = |n: u32, of: u32, title: &str, a: String, b: String, source: &str, least: f64| Row {
        name: format!("{n} readers, each: {title}"),
        unit: "times",
        digits: 1,
        published: None,
        source: source.into(),
        rule: if n == of { Rule::Shape { least, most: f64::INFINITY } } else { Rule::None },
        measure: Box::new(move |look| Some(look(&a, "seconds")? / look(&b, "seconds")?)),
    };
    for &n in &params.readers {
        for form in ["one", "each"] {
            for (disks, compression) in POOLS {
                let title = format!("{n} readers, {form}: {}, {compression}", disks.name());
                rows.push(Row::of(title, name(disks, compression, form, n), "seconds", "s"));
            }
        }
        let each = |disks, compression: &str| name(disks, compression, "each", n);
        rows.push(ratio(
            n,
            63,
            "uncompressed takes longer than gzip on one disk",
            each(Disks::One, "off"),
            each(Disks::One, "gzip"),
            "one disk: 18 minutes of waiting at 16 MB/s on UFS, gone with gzip",
            4.0,
        ));
        rows.push(ratio(
            n,
            255,
            "RAID-Z of 10 with gzip takes longer than 8 mirrors of 3 with gzip",
            each(Disks::Raidz, "gzip"),
            each(Disks::Mirrors(8, 3), "gzip"),
            "about 15 minutes, 3 to 4 minutes",
            2.0,
        ));
        rows.push(ratio(
            n,
            255,
            "6 mirrors without gzip take longer than RAID-Z of 10 with gzip",
            each(Disks::Mirrors(6, 2), "off"),
            each(Disks::Raidz, "gzip"),
            "mirrors without gzip were slower with 12 disks",
            1.0,
        ));
        let words = format!("{n} readers, each: RAID-Z of 10 with gzip, size of a disk read");
        let raidz = Row::of(words, each(Disks::Raidz, "gzip"), "disk_read_kib", "KiB");
        rows.push(if n == 255 {
            raidz.shape("4,362 reads and 18.3 MB a second: 4.2 KB each", 1.0, 16.0)
        } else {
            raidz
        });
        let one = name(Disks::One, "gzip", "one", n);
        rows.push(
            Row::of(
                format!("{n} readers of one file: bytes from disk for each stored byte"),
                one,
                "reads_of_stored",
                "",
            )
            .digits(2)
            .shape("readers of the same record share its read", 0.0, 1.1),
        );
    }
    rows
}

fn draw(params: Params) -> crate::study::Draw {
    Box::new(move |results: &Results| {
        let mut plots = Vec::new();
        for &n in &params.readers {
            for form in ["one", "each"] {
                let of = |disks: Disks, compression: &str, series: &str| Curve {
                    name: format!("{}, {compression}", disks.name()),
                    points: results.series(&name(disks, compression, form, n), series),
                    dots: false,
                };
                let some = [
                    (Disks::One, "off"),
                    (Disks::One, "gzip"),
                    (Disks::Raidz, "gzip"),
                    (Disks::Mirrors(6, 2), "off"),
                    (Disks::Mirrors(8, 3), "gzip"),
                ];
                for (series, label) in [("disk_mib_per_s", "from disk, MiB/s"), ("cpu_percent", "CPU, % of all cores")]
                {
                    plots.push(Plot {
                        title: format!("{n} readers, {form}: {label}"),
                        x: Axis::linear("s"),
                        y: Axis::linear(label),
                        body: Body::Curves(some.map(|(disks, compression)| of(disks, compression, series)).to_vec()),
                    });
                }
                let groups = ["off", "lzjb", "lz4", "gzip", "zstd"];
                let bar = |c: &&str| results.spread(&name(Disks::One, c, form, n), "seconds");
                plots.push(Plot {
                    title: format!("{n} readers, {form}: time on one disk"),
                    x: Axis::linear("compression"),
                    y: Axis::linear("s"),
                    body: Body::Bars {
                        groups: groups.map(str::to_string).to_vec(),
                        series: vec![("seconds".into(), groups.iter().map(bar).collect())],
                    },
                });
            }
        }
        plots
    })
}

/// The pools that were used last, to be used again by the next seeds: filling one takes longer than
/// a run, and keeping all would take several GiB.
#[derive(Default)]
struct Shelf(Mutex<Vec<Arc<Filled>>>);

/// Pools on the shelf.
const SHELF: usize = 2;

impl Shelf {
    /// The pool with this content, which its first user fills.
    fn take(&self, content: Content) -> Arc<Filled> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let found = all.iter().position(|f| f.content == content).map(|at| all.remove(at));
        let filled = found.unwrap_or_else(|| Arc::new(Filled { content, images: Mutex::new(None) }));
        all.insert(0, filled.clone());
        all.truncate(SHELF);
        filled
    }
}

/// A pool that was filled and exported, made when it is first needed.
struct Filled {
    content: Content,
    images: Mutex<Option<Images>>,
}

/// Contents of disks and files.
#[derive(Clone)]
struct Images {
    disks: Vec<DiskImage>,
    files: Vec<ObjectId>,
    /// Bytes of data blocks on the disks, redundancy left out.
    stored: u64,
}

impl Filled {
    /// The images; the first caller makes them, others wait for it.
    fn images(&self) -> Result<Images> {
        let mut images = self.images.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(images) = &*images {
            return Ok(images.clone());
        }
        let made = self.fill()?;
        *images = Some(made.clone());
        Ok(made)
    }

    fn fill(&self) -> Result<Images> {
        let c = self.content;
        let sim = stage::world(FILLED, MEM, 8);
        let model = Model::Fixed { latency: Nanos::from_us(50), bandwidth: 4 << 30 };
        let images = (0..c.disks.count()).map(|_| DiskImage::zeroed(DISK)).collect();
        let disks = disks(&sim, images, |_| model.clone().into(), FILLED);
        let text = if c.compression == "off" { None } else { Some(Bytes::copy_from(&input(c.bytes))) };
        let (files, stored) = sim.block_on(async {
            let mut opts = EngineOpts::for_memory(MEM);
            opts.arc_max = 64 << 20;
            let props = [("compression", c.compression), ("atime", "off"), ("recordsize", "128k")];
            let (pool, fs) = stage::new_fs_on(&sim.rt(), c.disks.layout(&disks), opts, 12, &props).await?;
            let mut files = Vec::new();
            for n in 0..c.copies {
                files.push(stage::new_file(&fs, &format!("input{n}")).await?);
            }
            fs.sync_all().await?;
            let before = pool.space().alloc;
            // Side by side, as programs copied at once do.
            for at in (0..c.bytes).step_by(1 << 20) {
                let len = (1 << 20).min(c.bytes - at);
                for &file in &files {
                    let data = match &text {
                        Some(text) => text.slice(at as usize..(at + len) as usize),
                        None => Buf::zeroed(len as usize).freeze(),
                    };
                    fs.write(file, at, vec![data], false).await?;
                }
            }
            fs.sync_all().await?;
            let stored = pool.space().alloc - before;
            drop(fs);
            pool.export().await?;
            Ok::<_, Error>((files, stored))
        })?;
        let images = disks.iter().map(SimDisk::image).collect();
        sim.crash();
        Ok(Images { disks: images, files, stored })
    }
}

fn disks(sim: &Sim, images: Vec<DiskImage>, of: impl Fn(u64) -> Device, seed: u64) -> Vec<SimDisk> {
    let disk = |(n, image)| stage::disk(&sim.handle(), image, of(seed * 64 + n), seed * 64 + n);
    (0..).zip(images).map(disk).collect()
}

fn run(
    content: &Content,
    filled: &Filled,
    readers: u32,
    cores: u32,
    device: Option<&Device>,
    seed: u64,
) -> Result<Seen> {
    let images = filled.images()?;
    let sim = stage::world(seed, MEM, cores as usize);
    let disks = disks(&sim, images.disks, |seed| device::disk(device, seed), seed);
    let mut opts = EngineOpts::for_memory(MEM);
    opts.arc_max = CACHE;
    let (pool, fs) = sim.block_on(import(&sim, &disks, opts))?;
    let scale = if content.copies == 1 { 1.0 } else { PART as f64 };
    let bin = BINS[usize::from(content.copies > 1)];
    let begin = sim.now();
    let mut rng = Rng::stream(seed, 1);
    let rt = sim.rt();
    let bins: Rc<RefCell<Vec<Totals>>> = Rc::default();
    let sampler = {
        let (rt, world, disks, bins) = (rt.clone(), sim.handle(), disks.clone(), bins.clone());
        async move {
            for n in 0.. {
                rt.sleep_until(begin + Nanos(bin.0 * n)).await;
                bins.borrow_mut().push(Totals::of(&world, &disks));
            }
        }
    };
    drop(rt.spawn("sampler", sampler));
    let mut tasks = Vec::new();
    for n in 0..readers as usize {
        let (rt2, fs, file) = (rt.clone(), fs.clone(), images.files[n % images.files.len()]);
        let (start, bytes) = (begin + Nanos(rng.below((START.0 as f64 / scale) as u64)), content.bytes);
        tasks.push(rt.spawn("reader", async move {
            rt2.sleep_until(start).await;
            for at in (0..bytes).step_by(READ as usize) {
                fs.read_noatime(file, at, READ).await?;
            }
            Ok::<_, Error>(rt2.now())
        }));
    }
    let ends = sim.block_on(async {
        let mut ends = Vec::new();
        for task in tasks {
            ends.push(task.await?.since(begin).0);
        }
        Ok::<_, Error>(ends)
    })?;
    let all = Totals::of(&sim.handle(), &disks);
    let last = ends.iter().copied().max().unwrap_or(0);
    let mean = ends.iter().sum::<u64>() as f64 / ends.len().max(1) as f64;
    let start = bins.borrow().first().copied().unwrap_or_default();
    let (reads, bytes) = (all.reads - start.reads, all.bytes - start.bytes);
    let mut out = Seen::default();
    out.set("seconds", last as f64 / 1e9 * scale);
    out.set("mean_seconds", mean / 1e9 * scale);
    out.set("disk_read_kib", bytes as f64 / 1024.0 / reads.max(1) as f64);
    out.set("disk_reads_per_s", reads as f64 * 1e9 / last.max(1) as f64);
    out.set("disk_mib_per_s", bytes as f64 / f64::from(1 << 20) * 1e9 / last.max(1) as f64);
    out.set("reads_of_stored", bytes as f64 / images.stored.max(1) as f64);
    out.set("stored_mib", images.stored as f64 / f64::from(1 << 20));
    out.set("cpu_seconds", (all.cpu - start.cpu) as f64 / 1e9 * scale);
    let seconds = bin.0 as f64 / 1e9;
    let mut curve = |name: &str, of: &dyn Fn(&Totals) -> u64, unit: f64| {
        let bins = bins.borrow();
        let rate = |w: &[Totals]| (of(&w[1]) - of(&w[0])) as f64 / unit / seconds;
        let points = (1..).zip(bins.windows(2)).map(|(n, w)| (f64::from(n) * seconds * scale, rate(w)));
        out.series.insert(name.into(), points.collect());
    };
    curve("disk_mib_per_s", &|t| t.bytes, f64::from(1 << 20));
    // One more core is the engine's own.
    curve("cpu_percent", &|t| t.cpu, 1e7 * f64::from(cores + 1));
    drop((fs, pool));
    stage::end(&sim, &disks);
    Ok(out)
}

/// Counters since the world began.
#[derive(Clone, Copy, Default)]
struct Totals {
    reads: u64,
    bytes: u64,
    /// Busy time of cores in ns: decompression and checksums, and the engine.
    cpu: u64,
}

impl Totals {
    fn of(world: &SimHandle, disks: &[SimDisk]) -> Totals {
        let sum = |f: fn(&Counters) -> u64| disks.iter().map(|d| f(&d.counters())).sum();
        let cpu = world.cpu_busy().0 + world.engine_busy().0;
        Totals { reads: sum(|c| c.reads), bytes: sum(|c| c.read_bytes), cpu }
    }
}

async fn import(sim: &Sim, disks: &[SimDisk], opts: EngineOpts) -> Result<(Rc<Pool>, Rc<Zfs>)> {
    let mut found = spa::scan(disks.iter().map(|d| d.dev()).collect()).await;
    let candidate = found.pop().ok_or_else(|| Error::invalid("the filled disks hold no pool"))?;
    let pool = Pool::import(sim.rt(), candidate, ImportOpts::default(), opts).await?;
    let fs = stage::open(&pool).await?;
    Ok((pool, fs))
}

#[cfg(test)]
mod tests {
    use super::*;
    use codec::{CompressAlgo, Compression};

    #[test]
    fn the_input_compresses_as_published() {
        let text = input(4 << 20);
        let times = |algo| {
            let pack = |record: &[u8]| {
                let mut out = vec![0; record.len()];
                codec::compress(Compression { algo, level: 0 }, record, &mut out, record.len()).unwrap_or(record.len())
            };
            text.len() as f64 / text.chunks(128 << 10).map(pack).sum::<usize>() as f64
        };
        let gzip = times(CompressAlgo::Gzip6);
        assert!((11.0..15.0).contains(&gzip), "{gzip}");
    }
}
