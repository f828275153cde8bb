//! `weir lab arc`: hit rates of the cache, and whether its limit holds to the byte.
//!
//! A small cache on one device, so that a run takes a second. Blocks are zeros that are stored
//! uncompressed: they need memory in the cache, not on the modelled device.
//!
//! * *Working sets*: one reader draws blocks of a file evenly. No policy can have more hits than
//!   the share of the file that the cache holds, and none that keeps the cache full has fewer.
//! * *Loops*: the same file from begin to end, again and again. Past the limit LRU has no hit at
//!   all.
//! * *Scans*: a hot file that fits, and beside each read of it some of a file that is read once. An
//!   LRU loses the hot blocks to the scan ([`lru_beside_a_scan`]); the ARC moves its target and
//!   keeps them (Megiddo and Modha, "ARC: a self-tuning, low overhead replacement cache", FAST
//!   2003).
//! * *Files*: many files, all together far larger than the cache, with random writes of 4 KiB that
//!   read their record first: dnodes and indexes count under the limit as well.
//!
//! A hit is a read that took less than half of the device's latency. The limit is compared after
//! every operation: with one engine thread nothing can be in between but parts of that operation.

use std::cell::{Cell as Slot, RefCell};
use std::rc::Rc;

use base::{Error, Nanos, ObjectId, Result};
use bdev::Buf;
use sim::{DiskImage, Model, Rng, Sim, SimDisk};
use spa::{EngineOpts, Pool};
use zpl::Zfs;

use crate::stage;
use crate::study::plot::{Axis, Body, Curve};
use crate::study::{Cell, Plot, Results, Row, Rule, Seen, Study};

/// Record size of everything but the many files.
const RECORD: u64 = 16 << 10;
/// Record size of the many files: the default.
const LARGE: u64 = 128 << 10;
/// Bytes of a random write to the many files.
const SMALL: u64 = 4 << 10;
/// The device.
const DEVICE: Model = Model::Fixed { latency: Nanos(1_000_000), bandwidth: 1 << 30 };
/// Bytes of the device.
const DISK: u64 = 64 << 30;
/// A read below this was a hit.
const HIT: Nanos = Nanos(500_000);
/// Pause after a read. A block that is read again within 62 ms does not count as used again
/// (`ARC_MINTIME` of OpenZFS), so readers must not be faster than any program.
const THINK: Nanos = Nanos(1_000_000);
/// Memory of the machine; the cache has its own limit.
const MEM: u64 = 2 << 30;
/// Bytes of one of the many files.
const FILE: u64 = 1 << 20;

/// The parameters.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Params {
    /// The limit of the cache in bytes (`zfs_arc_max`).
    pub limit: u64,
    /// How many files of 1 MiB get random writes; 0 leaves that out.
    pub files: u32,
    /// Random writes to them.
    pub writes: u32,
}

impl Default for Params {
    fn default() -> Params {
        Params { limit: 64 << 20, files: 10_000, writes: 20_000 }
    }
}

/// What a run reads.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Load {
    /// Blocks of a file of so many percent of the limit, evenly.
    Even(u64),
    /// The same in order.
    Loop(u64),
    /// A hot file of so many percent of the limit, and so many blocks of a scan beside each read.
    Scan(u64, u64),
    /// Random writes to many files.
    Files,
}

impl Load {
    fn name(self) -> String {
        match self {
            Load::Even(percent) => format!("even-{percent}"),
            Load::Loop(percent) => format!("loop-{percent}"),
            Load::Scan(percent, beside) => format!("scan-{percent}-{beside}"),
            Load::Files => "files".into(),
        }
    }
}

/// Sizes of working sets, in percent of the limit.
const SETS: [u64; 9] = [25, 50, 75, 90, 110, 150, 200, 300, 400];
/// Sizes of loops.
const LOOPS: [u64; 4] = [50, 90, 110, 200];
/// Blocks of a scan for each read of the hot set.
const SCANS: [u64; 4] = [1, 4, 16, 64];
/// Size of the hot set beside a scan.
const HOT: u64 = 25;

/// Hits in percent of an LRU of `cache` blocks on even reads of `hot` blocks with `beside` blocks
/// of a scan beside each. A hot block stays for the `m` reads of the hot set after which `cache`
/// different blocks were used: `m * beside + hot * (1 - exp(-m / hot)) = cache`; the next read of
/// it comes within `m` reads with probability `1 - exp(-m / hot)`.
pub fn lru_beside_a_scan(cache: f64, hot: f64, beside: f64) -> f64 {
    let used = |m: f64| m * beside + hot * (1.0 - (-m / hot).exp());
    let (mut low, mut high) = (0.0, cache / beside.max(1e-9));
    for _ in 0..100 {
        let middle = (low + high) / 2.0;
        if used(middle) < cache { low = middle } else { high = middle }
    }
    (1.0 - (-low / hot).exp()) * 100.0
}

/// The study with these parameters.
pub fn study(params: Params) -> Result<Study> {
    if !(8 << 20..=1 << 30).contains(&params.limit) {
        return Err(Error::invalid("a study of the cache needs a limit of 8M to 1G"));
    }
    if params.files > 100_000 || params.writes > 10_000_000 {
        return Err(Error::invalid("a study of the cache needs at most 100000 files and 10000000 writes"));
    }
    let mut loads: Vec<Load> = SETS.map(Load::Even).to_vec();
    loads.extend(LOOPS.map(Load::Loop));
    loads.extend(SCANS.map(|beside| Load::Scan(HOT, beside)));
    if params.files > 0 {
        loads.push(Load::Files);
    }
    let mib = params.limit >> 20;
    Ok(Study {
        name: "arc",
        title: "The cache: hit rates and the limit",
        about: format!(
            "A cache of {mib} MiB on a device of 1 ms. Even reads, loops and scans in records of 16 KiB; {} random writes of 4 KiB to {} files of 1 MiB. \
             Published here means computed: the share of the set that fits, and what an LRU would have beside a scan.",
            params.writes, params.files
        ),
        rows: rows(&loads, params),
        headings: crate::study::PUBLISHED,
        cells: loads.iter().map(|&load| cell(params, load)).collect(),
        draw: Box::new(draw),
    })
}

fn cell(params: Params, load: Load) -> Cell {
    let (detail, weight) = match load {
        Load::Files => (
            format!(" files={} writes={}", params.files, params.writes),
            u64::from(params.files / 100 + params.writes / 200),
        ),
        Load::Even(percent) | Load::Loop(percent) => (String::new(), percent / 10 + 5),
        Load::Scan(_, beside) => (String::new(), beside + 5),
    };
    Cell {
        name: load.name(),
        params: format!("limit={}{detail}", params.limit),
        memory: params.limit * 3 + (64 << 20) + u64::from(params.files) * 4096,
        weight: weight.max(1),
        run: Box::new(move |seed| World::new(params, load, seed)?.run()),
    }
}

fn rows(loads: &[Load], params: Params) -> Vec<Row> {
    let mut rows = Vec::new();
    let inf = f64::INFINITY;
    for &load in loads {
        let name = load.name();
        let row = match load {
            Load::Even(percent) => {
                let fits = (10_000.0 / percent as f64).min(100.0);
                Row::of(format!("even reads, set of {percent} % of the limit: hits"), name, "hit_percent", "%")
                    .published(fits, "the share that fits", Rule::Within(5.0))
            }
            Load::Loop(percent) => {
                let row = Row::of(format!("loop over {percent} % of the limit: hits"), name, "hit_percent", "%");
                if percent < 100 { row.published(100.0, "all fits", Rule::Within(5.0)) } else { row }
            }
            Load::Scan(percent, beside) => {
                let blocks = (params.limit / RECORD) as f64;
                let lru = lru_beside_a_scan(blocks, blocks * percent as f64 / 100.0, beside as f64);
                let words =
                    format!("hot set of {percent} % beside {beside} scanned blocks a read (LRU: {lru:.0} %): hits");
                Row::of(words, name, "hit_percent", "%").shape("Megiddo and Modha: scans leave the hot set", 90.0, inf)
            }
            Load::Files => {
                let fits = params.limit as f64 * 100.0 / (f64::from(params.files) * FILE as f64);
                let words = format!("random writes to {} files: hits of records", params.files);
                Row::of(words, name, "hit_percent", "%").published(
                    fits.min(100.0),
                    "the share that fits",
                    Rule::Within(5.0),
                )
            }
        };
        rows.push(row);
    }
    let names: Vec<String> = loads.iter().map(|l| l.name()).collect();
    let over =
        move |look: crate::study::Lookup| names.iter().filter_map(|n| look(n, "over_limit_max_bytes")).reduce(f64::max);
    rows.push(Row {
        name: "most bytes above the limit, after any operation of any run".into(),
        unit: "bytes",
        digits: 0,
        published: None,
        source: "the limit holds to the byte".into(),
        rule: Rule::Shape { least: f64::NEG_INFINITY, most: 0.0 },
        measure: Box::new(over),
    });
    rows
}

fn draw(results: &Results) -> Vec<Plot> {
    let curve = |name: &str, cells: Vec<(f64, String)>| {
        let points = cells.iter().filter_map(|(x, cell)| Some((*x, results.spread(cell, "hit_percent")?.mean)));
        Curve { name: name.into(), points: points.collect(), dots: false }
    };
    let of = |sets: &[u64], load: fn(u64) -> Load| sets.iter().map(|&p| (p as f64, load(p).name())).collect::<Vec<_>>();
    let fits = (5..=80).map(|i| f64::from(i) * 5.0).map(|p| (p, (10_000.0 / p).min(100.0))).collect();
    let sets = vec![
        curve("even reads", of(&SETS, Load::Even)),
        curve("loop", of(&LOOPS, Load::Loop)),
        Curve { name: "the share that fits".into(), points: fits, dots: false },
    ];
    let blocks = 4096.0;
    let lru = |beside: u64| lru_beside_a_scan(blocks, blocks * HOT as f64 / 100.0, beside as f64);
    let scans = vec![
        curve("ARC", of(&SCANS, |beside| Load::Scan(HOT, beside))),
        Curve {
            name: "LRU, computed".into(),
            points: SCANS.iter().map(|&b| (b as f64, lru(b))).collect(),
            dots: false,
        },
    ];
    let plot = |title: &str, x: Axis, curves| Plot {
        title: title.into(),
        x,
        y: Axis::linear("hits, %"),
        body: Body::Curves(curves),
    };
    vec![
        plot("Working sets around the limit", Axis::linear("set, % of the limit"), sets),
        plot("A hot set beside a scan", Axis::log("scanned blocks for each read"), scans),
    ]
}

/// A run. The world is dropped last.
struct World {
    params: Params,
    load: Load,
    rng: RefCell<Rng>,
    over: Slot<i64>,
    size_max: Slot<u64>,
    fs: Rc<Zfs>,
    pool: Rc<Pool>,
    disk: SimDisk,
    sim: Sim,
}

impl World {
    fn new(params: Params, load: Load, seed: u64) -> Result<World> {
        let sim = stage::world(seed, MEM, 2);
        let disk = stage::disk(&sim.handle(), DiskImage::zeroed(DISK), DEVICE, seed);
        let mut opts = EngineOpts::for_memory(MEM);
        opts.arc_max = params.limit;
        let recordsize = if load == Load::Files { LARGE } else { RECORD }.to_string();
        let props = [("compression", "off"), ("atime", "off"), ("recordsize", &*recordsize)];
        let disks = std::slice::from_ref(&disk);
        let (pool, fs) = sim.block_on(stage::new_fs(&sim.handle(), disks, opts, 12, &props))?;
        Ok(World {
            params,
            load,
            rng: RefCell::new(Rng::stream(seed, 1)),
            over: Slot::new(i64::MIN),
            size_max: Slot::new(0),
            fs,
            pool,
            disk,
            sim,
        })
    }

    fn run(self) -> Result<Seen> {
        let hits = self.sim.block_on(async {
            match self.load {
                Load::Even(percent) => self.reads(percent, false).await,
                Load::Loop(percent) => self.reads(percent, true).await,
                Load::Scan(percent, beside) => self.scan(percent, beside).await,
                Load::Files => self.files().await,
            }
        })?;
        let stats = self.pool.arc().stats();
        let mut seen = Seen::default();
        seen.set("hit_percent", hits);
        seen.set("over_limit_max_bytes", self.over.get() as f64);
        seen.set("size_max_bytes", self.size_max.get() as f64);
        seen.set("block_memory_bytes", stats.block_memory as f64);
        seen.set("header_memory_bytes", stats.header_memory as f64);
        seen.set("charged_bytes", stats.charged as f64);
        seen.set("virtual_seconds", self.sim.now().0 as f64 / 1e9);
        stage::end(&self.sim, std::slice::from_ref(&self.disk));
        Ok(seen)
    }

    /// Compares size and limit.
    fn check(&self) {
        let (size, limit) = (self.pool.arc().size(), self.pool.arc().limit());
        self.over.set(self.over.get().max(size as i64 - limit as i64));
        self.size_max.set(self.size_max.get().max(size));
    }

    fn draw(&self, below: u64) -> u64 {
        self.rng.borrow_mut().below(below)
    }

    /// A file of so many bytes of zeros.
    async fn file(&self, name: &str, bytes: u64) -> Result<ObjectId> {
        let file = stage::new_file(&self.fs, name).await?;
        let record = if self.load == Load::Files { LARGE } else { RECORD };
        for at in (0..bytes).step_by(record as usize) {
            // Each record has memory of its own: shared memory counts once.
            self.fs.write(file, at, vec![Buf::zeroed(record as usize).freeze()], false).await?;
            self.check();
        }
        Ok(file)
    }

    /// Reads a block and thinks; whether it was in memory.
    async fn read(&self, file: ObjectId, block: u64) -> Result<bool> {
        let begin = self.sim.now();
        self.fs.read(file, block * RECORD, RECORD).await?;
        self.check();
        let hit = self.sim.now().since(begin) < HIT;
        self.sim.rt().sleep(THINK).await;
        Ok(hit)
    }

    /// Even reads or loops: three times the set to warm up, four times that count.
    async fn reads(&self, percent: u64, in_order: bool) -> Result<f64> {
        let blocks = self.params.limit * percent / 100 / RECORD;
        let file = self.file("set", blocks * RECORD).await?;
        self.fs.sync_all().await?;
        let (mut hits, mut before) = (0u64, 0);
        for n in 0..blocks * 7 {
            if n == blocks * 3 {
                (hits, before) = (0, self.disk.counters().read_bytes);
            }
            let block = if in_order { n % blocks } else { self.draw(blocks) };
            hits += u64::from(self.read(file, block).await?);
        }
        if in_order {
            // Blocks read ahead arrive in time and are no hits.
            let read = (self.disk.counters().read_bytes - before) as f64 / RECORD as f64;
            return Ok((100.0 - read * 100.0 / (blocks * 4) as f64).max(0.0));
        }
        Ok(hits as f64 * 100.0 / (blocks * 4) as f64)
    }

    /// Even reads of a hot file, beside a scan of a large one.
    async fn scan(&self, percent: u64, beside: u64) -> Result<f64> {
        let blocks = self.params.limit * percent / 100 / RECORD;
        let hot = self.file("hot", blocks * RECORD).await?;
        // Large enough that no block of it comes twice within four times the limit.
        let long = self.params.limit * 4 / RECORD;
        let scanned = self.file("scanned", long * RECORD).await?;
        self.fs.sync_all().await?;
        for _ in 0..blocks * 8 {
            self.read(hot, self.draw(blocks)).await?;
        }
        let (mut hits, mut at) = (0u64, 0);
        let reads = (long / beside * 2).clamp(blocks, blocks * 4);
        for _ in 0..reads {
            hits += u64::from(self.read(hot, self.draw(blocks)).await?);
            for _ in 0..beside {
                self.read(scanned, at % long).await?;
                at += 1;
            }
        }
        Ok(hits as f64 * 100.0 / reads as f64)
    }

    /// Random writes to many files; hits of the records that they read first.
    async fn files(&self) -> Result<f64> {
        let mut files = Vec::new();
        for n in 0..self.params.files {
            files.push(self.file(&format!("file{n}"), FILE).await?);
        }
        self.fs.sync_all().await?;
        let mut hits = 0u64;
        for _ in 0..self.params.writes {
            let file = files[self.draw(files.len() as u64) as usize];
            let at = self.draw(FILE / SMALL) * SMALL;
            let before = self.disk.counters().reads;
            self.fs.write(file, at, vec![Buf::zeroed(SMALL as usize).freeze()], false).await?;
            hits += u64::from(self.disk.counters().reads == before);
            self.check();
        }
        self.fs.sync_all().await?;
        self.check();
        Ok(hits as f64 * 100.0 / f64::from(self.params.writes.max(1)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_lru_loses_its_hot_set_to_a_scan() {
        let at = |beside| lru_beside_a_scan(4096.0, 1024.0, beside);
        assert!(at(1e-6) > 99.9 && at(64.0) < 10.0, "{} {}", at(1e-6), at(64.0));
        // Without reuse of hot blocks in between, 4096 blocks of the scan are 1024 reads.
        assert!(at(4.0) > 50.0 && at(4.0) < 64.0, "{}", at(4.0));
        assert!(at(1.0) > at(4.0) && at(4.0) > at(16.0));
    }
}
