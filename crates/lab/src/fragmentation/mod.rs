//! `weir lab fragmentation`: random writes to a file in a pool that is more or less full.
//!
//! It repeats the first part of "ZFS fragmentation" (behaviour of an empty, a half full and a full
//! pool): one file is written from begin to end until a share of the pool is used, then 8 writers
//! overwrite records of 8 KiB at random until the throughput is steady ([`steady`]). *Occupancy* is
//! the share of the space that file systems may use. Maps of the metaslabs before and after come
//! from the checker (`zdb`), which reads the modelled disks.
//!
//! Cells: the `dynamic` allocator on one disk at every occupancy; there and at the highest one also
//! the other allocators, four disks, and synchronous writes with the log in the pool and on a
//! device of its own; with [`Params::all`] everything with everything. The published pool had 32
//! GB, 30 minutes of writes and another disk, and its curve is an image, so shapes are judged.

mod show;
pub mod steady;

use std::cell::{Cell as Slot, RefCell};
use std::path::Path;
use std::rc::Rc;

use base::{Error, ErrorKind, Nanos, ObjectId, Result};
use bdev::Buf;
use metaslab::Method;
use rt::trace::{Event, Groups};
use sim::{DiskImage, Model, Rng, Sim, SimDisk};
use spa::{Bias, EngineOpts, Group, GroupKind, Layout, Pool};
use vdev::Prio;
use zdb::device::{Device, Labeled, ReadAt};
use zdb::heatmap::Row;
use zpl::Zfs;

use crate::device;
use crate::stage;
use crate::study::{Cell, Seen, Study};

/// Bytes of a write and of a record, as published.
const RECORD: u64 = 8 << 10;
/// Writers, as published.
const WRITERS: u64 = 8;
/// Records of one write while the file is made.
const FILL: u64 = 16;
/// Memory of the machine.
const MEM: u64 = 2 << 30;
/// Bytes of a log device.
const LOG: u64 = 4 << 30;
/// Time of a sample of the throughput.
const SAMPLE: Nanos = Nanos(2_000_000_000);
/// Pause of a writer that finds no room until frees are committed.
const PAUSE: Nanos = Nanos(200_000_000);
/// Parts of a metaslab in the maps.
const COLUMNS: usize = 16;
/// Share of a metaslab that makes it used: less is metadata that went elsewhere.
const USED: f64 = 0.02;

/// What a study does.
#[derive(Clone, PartialEq, Debug)]
pub struct Params {
    /// Bytes of all disks of the pool together.
    pub size: u64,
    /// Occupancies in percent, ascending.
    pub fills: Vec<u32>,
    /// Most virtual seconds of random writes.
    pub seconds: u64,
    /// Every allocator with every number of disks and every log at every occupancy.
    pub all: bool,
    /// In place of nearline disks.
    pub device: Option<device::Device>,
}

impl Default for Params {
    fn default() -> Params {
        Params { size: 1 << 30, fills: vec![10, 25, 50, 75, 90], seconds: 120, all: false, device: None }
    }
}

/// Where writers wait, and for what.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Log {
    /// Writes are asynchronous.
    None,
    /// Each is durable before the next, by the log in the pool.
    Pool,
    /// The same by a log device.
    Device,
}

/// One configuration.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Config {
    method: Method,
    disks: u64,
    log: Log,
    fill: u32,
}

impl Config {
    fn variant(self) -> String {
        let disks = if self.disks == 1 { String::new() } else { format!(", {} disks", self.disks) };
        let log = match self.log {
            Log::None => "",
            Log::Pool => ", sync",
            Log::Device => ", sync, log device",
        };
        format!("{}{disks}{log}", self.method.name())
    }
    fn name(self) -> String {
        format!("{}, {} %", self.variant(), self.fill)
    }
}

/// The plain one.
fn plain(fill: u32) -> Config {
    Config { method: Method::Dynamic, disks: 1, log: Log::None, fill }
}

/// All configurations, the plain ones first.
fn configs(params: &Params) -> Vec<Config> {
    let mut out: Vec<Config> = params.fills.iter().map(|&fill| plain(fill)).collect();
    let mut add = |config| {
        if !out.contains(&config) {
            out.push(config);
        }
    };
    if params.all {
        for method in Method::ALL {
            for disks in [1, 4] {
                for log in [Log::None, Log::Pool, Log::Device] {
                    params.fills.iter().for_each(|&fill| add(Config { method, disks, log, fill }));
                }
            }
        }
    } else {
        let [middle, last] = [params.fills[params.fills.len() / 2], params.fills[params.fills.len() - 1]];
        for fill in [middle, last] {
            let p = plain(fill);
            [Method::Cursor, Method::NewDynamic].into_iter().for_each(|method| add(Config { method, ..p }));
            add(Config { disks: 4, ..p });
            [Log::Pool, Log::Device].into_iter().for_each(|log| add(Config { log, ..p }));
        }
    }
    out
}

/// The study.
///
/// # Errors
/// `Invalid` if the parameters make no sense.
pub fn study(params: &Params) -> Result<Study> {
    if !(512 << 20..=64 << 30).contains(&params.size) {
        return Err(Error::invalid("a pool of this study has 512M to 64G"));
    }
    if params.fills.is_empty() || !params.fills.iter().all(|f| (1..=95).contains(f)) || !params.fills.is_sorted() {
        return Err(Error::invalid("a study of fragmentation needs occupancies of 1 to 95 percent, ascending"));
    }
    if !(1..=36_000).contains(&params.seconds) {
        return Err(Error::invalid("a study of fragmentation needs 1 to 36000 seconds"));
    }
    let configs = configs(params);
    let (size, seconds) = (params.size, params.seconds);
    let cell = |&c: &Config| Cell {
        name: c.name(),
        params: format!("{c:?} size={size} seconds={seconds} device={:?}", params.device),
        // Data are zeros that take no memory on the disks; the cache and dirty data do.
        memory: (512 << 20) + size / 16,
        weight: 4 + u64::from(c.fill) / 10,
        run: {
            let device = params.device.clone();
            Box::new(move |seed| World::new(c, size, seed, device.as_ref())?.run(seconds))
        },
    };
    Ok(Study {
        name: "fragmentation",
        title: "Random writes to a fuller and fuller pool",
        about: format!(
            "A file fills a pool of {} MiB to some percent of what file systems may use, then {WRITERS} writers overwrite records of {} KiB at random until three windows of {} s agree within {:.0} % on the throughput and each record was overwritten once on average, or for {seconds} s.",
            size >> 20,
            RECORD >> 10,
            steady::WINDOW as u64 * SAMPLE.0 / 1_000_000_000,
            steady::TOLERANCE * 100.0,
        ),
        cells: configs.iter().map(cell).collect(),
        rows: show::rows(&configs),
        headings: crate::study::PUBLISHED,
        draw: Box::new(move |results| show::draw(results, &configs)),
    })
}

/// What is going on.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    Other,
    Fill,
    Random,
}

/// What is measured.
struct Samples {
    phase: Slot<Phase>,
    written: Slot<u64>,
    /// Writes of txgs at the disks by powers of two of their bytes: while the file is made, then.
    sizes: RefCell<[[u64; 64]; 2]>,
    /// Their bytes.
    bytes: Slot<[u64; 2]>,
    failed: RefCell<Option<Error>>,
}

/// A run. The world is dropped last.
struct World {
    config: Config,
    seed: u64,
    pool: Rc<Pool>,
    fs: Rc<Zfs>,
    file: ObjectId,
    disks: Vec<SimDisk>,
    sim: Sim,
}

/// A modelled disk as the checker reads it.
struct Image(DiskImage);

impl ReadAt for Image {
    fn read_at(&self, off: u64, buf: &mut [u8]) -> std::io::Result<()> {
        self.0.read(off, buf);
        Ok(())
    }
}

impl World {
    fn new(config: Config, size: u64, seed: u64, device: Option<&device::Device>) -> Result<World> {
        let sim = stage::world(seed, MEM, 4);
        let disk =
            |n: u64, size: u64, device| stage::disk(&sim.handle(), DiskImage::zeroed(size), device, seed * 256 + n);
        let of = |n| device::disk(device, seed * 256 + n);
        let mut disks: Vec<SimDisk> = (0..config.disks).map(|n| disk(n, size / config.disks, of(n))).collect();
        let mut layout = Layout { groups: stage::groups(&disks, GroupKind::Single, 1), ..Layout::default() };
        if config.log == Log::Device {
            disks.push(disk(config.disks, LOG, Model::nvme().into()));
            let log = stage::groups(&disks[config.disks as usize..], GroupKind::Single, 1);
            layout.groups.extend(log.into_iter().map(|g| Group { bias: Bias::Log, ..g }));
        }
        let mut opts = EngineOpts::for_memory(MEM);
        opts.arc_max = 128 << 20;
        // A txg that is a large part of the pool would leave no room for the next one.
        opts.txg.dirty_data_max = opts.txg.dirty_data_max.min(size / 32);
        opts.alloc.method = config.method;
        let (pool, fs, file) = sim.block_on(async {
            let props = [("compression", "off"), ("atime", "off"), ("recordsize", "8k")];
            let (pool, fs) = stage::new_fs_on(&sim.rt(), layout, opts, 12, &props).await?;
            let file = stage::new_file(&fs, "file").await?;
            // The first commit of a file system waits for a txg.
            fs.sync_all().await?;
            Ok::<_, Error>((pool, fs, file))
        })?;
        Ok(World { config, seed, pool, fs, file, disks, sim })
    }

    fn run(self, seconds: u64) -> Result<Seen> {
        let samples = Rc::new(Samples {
            phase: Slot::new(Phase::Other),
            written: Slot::new(0),
            sizes: RefCell::new([[0; 64]; 2]),
            bytes: Slot::new([0; 2]),
            failed: RefCell::new(None),
        });
        let listening = self.listen(&samples);
        let mut seen = Seen::default();
        let records = self.fill(&samples, &mut seen)?;
        let used_before = self.map("before", &mut seen)?;
        samples.phase.set(Phase::Random);
        self.write(&samples, records);
        let mib = f64::from(1 << 20);
        let per_second = SAMPLE.0 as f64 / 1e9;
        let (mut rates, mut before, mut found) = (Vec::new(), 0, None);
        while (rates.len() as f64) * per_second < seconds as f64 {
            self.sim.run_for(SAMPLE);
            if let Some(e) = samples.failed.take() {
                return Err(e);
            }
            let written = samples.written.get();
            rates.push((written - before) as f64 / mib / per_second);
            before = written;
            found = steady::steady(&rates).filter(|_| written >= records * RECORD);
            if found.is_some() {
                break;
            }
        }
        samples.phase.set(Phase::Other);
        drop(listening);
        // Where it is not steady in time, the same samples stand for it, and a figure says so.
        let last = &rates[rates.len().saturating_sub(steady::WINDOW * steady::WINDOWS)..];
        seen.set("steady_mib_per_s", found.unwrap_or(last.iter().sum::<f64>() / last.len() as f64));
        seen.set("is_steady", f64::from(u8::from(found.is_some())));
        seen.set("steady_after_s", rates.len() as f64 * per_second);
        seen.set("overwritten", samples.written.get() as f64 / (records * RECORD) as f64);
        let point = |(n, rate): (usize, &f64)| ((n + 1) as f64 * per_second, *rate);
        seen.series.insert("mib_per_s".into(), rates.iter().enumerate().map(point).collect());
        note_sizes(&mut seen, &samples);
        self.sim.block_on(self.fs.sync_all())?;
        let used_after = self.map("after", &mut seen)?;
        seen.set("metaslabs_growth", used_after as f64 / used_before.max(1) as f64);
        stage::end(&self.sim, &self.disks);
        Ok(seen)
    }

    /// Counts writes of txgs at the disks.
    fn listen(&self, samples: &Rc<Samples>) -> impl Drop + use<> {
        let n = samples.clone();
        self.sim.rt().tracer().listen(Groups::QUEUE, move |_, e| {
            // As issued: neighbours are one operation.
            let &Event::Issued { write: true, class, len, .. } = e else { return };
            let phase = match n.phase.get() {
                Phase::Other => return,
                Phase::Fill => 0,
                Phase::Random => 1,
            };
            if usize::from(class) == Prio::AsyncWrite.index() && len > 0 {
                n.sizes.borrow_mut()[phase][len.ilog2() as usize] += 1;
                let mut bytes = n.bytes.get();
                bytes[phase] += len;
                n.bytes.set(bytes);
            }
        })
    }

    /// Makes the file; its records.
    fn fill(&self, samples: &Samples, seen: &mut Seen) -> Result<u64> {
        let room = self.pool.dsl().find("lab")?.available();
        let records = room / 100 * u64::from(self.config.fill) / RECORD / FILL * FILL;
        let begin = self.sim.now();
        samples.phase.set(Phase::Fill);
        self.sim.block_on(async {
            for first in (0..records).step_by(FILL as usize) {
                // Memory of their own: what records share counts once in the cache.
                let data = (0..FILL).map(|_| Buf::zeroed(RECORD as usize).freeze()).collect();
                self.fs.write(self.file, first * RECORD, data, false).await?;
            }
            self.fs.sync_all().await
        })?;
        samples.phase.set(Phase::Other);
        let time = self.sim.now().since(begin).0 as f64 / 1e9;
        seen.set("fill_mib_per_s", (records * RECORD) as f64 / f64::from(1 << 20) / time);
        Ok(records)
    }

    /// Starts the writers.
    fn write(&self, samples: &Rc<Samples>, records: u64) {
        for writer in 0..WRITERS {
            let (rt, fs, samples, file) = (self.sim.rt(), self.fs.clone(), samples.clone(), self.file);
            let (mut rng, sync) = (Rng::stream(self.seed, writer + 1), self.config.log != Log::None);
            drop(self.sim.rt().spawn("writer", async move {
                while samples.phase.get() == Phase::Random {
                    let (at, data) = (rng.below(records) * RECORD, vec![Buf::zeroed(RECORD as usize).freeze()]);
                    let done = match sync {
                        true => fs.write_sync(file, at, data, false).await,
                        false => fs.write(file, at, data, false).await,
                    };
                    match done {
                        Ok(_) => samples.written.set(samples.written.get() + RECORD),
                        Err(e) if e.kind() == ErrorKind::NoSpace => rt.sleep(PAUSE).await,
                        Err(e) => {
                            samples.failed.borrow_mut().get_or_insert(e);
                            return;
                        }
                    }
                }
            }));
        }
    }

    /// Notes the metaslabs of the disks that hold data as they are on disk; how many are used.
    fn map(&self, when: &str, seen: &mut Seen) -> Result<usize> {
        let labeled = |(n, disk): (usize, &SimDisk)| {
            let image = disk.image();
            let name = format!("disk{n}");
            Labeled::scan(Rc::new(Device::over(Path::new(&name), image.size(), Box::new(Image(image)))))
        };
        let disks = self.disks.iter().enumerate().map(labeled).collect();
        let map = zdb::HeatMap::of(&zdb::PoolReader::from_devices(disks, &zdb::OpenOpts::default())?);
        let rows: Vec<&Row> = map.vdevs.iter().take(self.config.disks as usize).flat_map(|v| &v.rows).collect();
        let mut segments = [0u64; 64];
        rows.iter().for_each(|r| (0..64).for_each(|b| segments[b] += r.segments[b]));
        let used = rows.iter().filter(|r| r.full() > USED).count();
        let (size, free) = rows.iter().fold((0, 0), |(s, f), r| (s + r.size, f + r.free));
        let count: u64 = segments.iter().sum();
        seen.set(&format!("full_{when}_percent"), 100.0 - 100.0 * free as f64 / (size as f64).max(1.0));
        seen.set(&format!("metaslabs_{when}"), used as f64);
        seen.set(&format!("free_segment_{when}_kib"), free as f64 / 1024.0 / (count as f64).max(1.0));
        let fragmented = zdb::heatmap::fragmentation(&segments).unwrap_or(0);
        seen.set(&format!("fragmentation_{when}_percent"), fragmented as f64);
        seen.series.insert(format!("free_{when}"), points(&segments));
        let cells = rows.iter().flat_map(|r| r.cells.chunks(r.cells.len() / COLUMNS));
        let points = cells.enumerate().map(|(n, part)| (n as f64, part.iter().sum::<f64>() / part.len() as f64));
        seen.series.insert(format!("map_{when}"), points.collect());
        Ok(used)
    }
}

/// What a histogram by powers of two counts: size and number, where there are some.
fn points(histogram: &[u64; 64]) -> Vec<(f64, f64)> {
    let some = histogram.iter().enumerate().filter(|(_, n)| **n > 0);
    some.map(|(power, &n)| (2f64.powi(power as i32), n as f64)).collect()
}

fn note_sizes(seen: &mut Seen, samples: &Samples) {
    for (phase, name) in ["fill", "random"].into_iter().enumerate() {
        let sizes = samples.sizes.borrow()[phase];
        let count: u64 = sizes.iter().sum();
        let kib = samples.bytes.get()[phase] as f64 / 1024.0 / (count as f64).max(1.0);
        seen.set(&format!("{name}_io_kib"), kib);
        seen.series.insert(format!("{name}_io"), points(&sizes));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_configuration_is_there_once() {
        let names = |params: &Params| configs(params).iter().map(|c| c.name()).collect::<Vec<_>>();
        let short = names(&Params::default());
        assert_eq!(short.len(), 5 + 2 * 5);
        assert!(short.contains(&"dynamic, sync, log device, 90 %".to_string()), "{short:?}");
        let one = names(&Params { fills: vec![40], ..Params::default() });
        assert_eq!(one.len(), 6);
        let mut all = names(&Params { all: true, ..Params::default() });
        assert_eq!(all.len(), 3 * 2 * 3 * 5);
        all.sort();
        all.dedup();
        assert_eq!(all.len(), 3 * 2 * 3 * 5);
    }
}
