//! What tables of references cost as they grow: import, memory, and the freeing of a block, with so
//! many cloned or deduplicated blocks: `cargo run --release -p openweir-zpl --example table_growth
//! -- cloned|dedup FOLDER ENTRIES...`.
//!
//! For each number a pool is made on a simulated device: a file of so many records of 512 bytes,
//! and a clone of it, so that every block has an entry with two references. Its image goes to a
//! file in the folder (about 130 bytes an entry, 400 with `dedup`), which a process of its own
//! imports. Then single blocks at random places of the clone are freed, and then its first million.
//!
//! Times are those of the device (100 us an operation, 1 GB/s) and of the work as it is charged, in
//! virtual time: they are the same in every run. `cpu` is that of this machine's processor. Memory
//! is what is allocated beyond the simulated device: with the pool imported, and the most that
//! there is after a txg. Each figure is one of a cold cache.

use std::path::Path;
use std::process::Command;
use std::rc::Rc;
use std::time::{Duration, Instant};

use base::{Nanos, Result};
use bdev::Buf;
use dsl::props::PropValue;
use sim::{DiskConfig, DiskImage, Model, Rng, Sim, SimConfig, SimDisk};
use spa::{DevSpec, EngineOpts, ImportOpts, Pool, PoolSpec, WorkCommand, WorkKind};
use zpl::{CloneFrom, Cred, Fallocate, FsCreateProps, InitOwner, MountOpts, Zfs, init_fs};

#[global_allocator]
static ALLOCATOR: cap::Cap<mimalloc::MiMalloc> = cap::Cap::new(mimalloc::MiMalloc, usize::MAX);

/// Bytes of a record: the smallest there is.
const RECORD: u64 = 512;
/// Bytes of a write when the pool is made.
const WRITE: u64 = 1 << 20;
/// Single blocks that are freed.
const SINGLES: u64 = 1000;
/// Blocks one after the other that are freed at once.
const MANY: u64 = 1_000_000;
/// Limit of the cache.
const ARC: u64 = 256 << 20;
/// Limit of the cache while the file of a dedup table is written and cloned. The logs may have a
/// share of it, and this one is for all entries: they move to the table in its order, at the end.
/// With less each txg would write all blocks of the table, and its image be several times as large.
const ARC_MAKE: u64 = 256 << 30;
/// Txgs in which both logs of a table are emptied when the limit becomes a small one.
const FLUSHES: usize = 4;
/// Bytes that are written before the free space is discarded: of a table whose places are random
/// each txg writes other blocks, and the simulated device keeps what was ever written.
const TRIM_AFTER: u64 = 512 << 20;

fn opts(arc_max: u64) -> EngineOpts {
    let mut opts = EngineOpts::for_memory(1 << 30);
    opts.arc_max = arc_max;
    opts.txg.dirty_data_max = 128 << 20;
    opts.txg.wrlog_data_max = 256 << 20;
    // What a table frees are its blocks, one by one: all of it is discarded.
    opts.works.trim_bytes_min = RECORD;
    opts
}

fn world(image: DiskImage) -> (Sim, SimDisk) {
    let sim = Sim::new(SimConfig::seeded(1));
    let model = Model::Fixed { latency: Nanos::from_us(100), bandwidth: 1_000_000_000 };
    let mut config = DiskConfig::new(image, model, 1);
    config.name = "disk.img".into();
    // Else the simulated device keeps what is written until it is flushed: gigabytes of a table.
    config.volatile = false;
    let disk = SimDisk::with(&sim.handle(), config);
    (sim, disk)
}

/// Discards the free space if much was written since the last time.
async fn trim(pool: &Pool, disk: &SimDisk, next: &mut u64) -> Result<()> {
    let written = disk.counters().write_bytes;
    if written < *next {
        return Ok(());
    }
    pool.devices().works().change(WorkKind::Trim, WorkCommand::Start(None), &[]).await?;
    pool.devices().works().wait(WorkKind::Trim).await?;
    *next = written + TRIM_AFTER;
    let (own, device) = (memory(disk) >> 20, disk.image().footprint() >> 20);
    eprint!("\r{} MiB written, {own} MiB of memory and {device} of the device \r", written >> 20);
    Ok(())
}

async fn make(sim: &Sim, disk: &SimDisk, dedup: bool, entries: u64) -> Result<()> {
    let time = sim.rt().wall_clock();
    let owner = InitOwner { uid: 0, gid: 0, mode: 0o755, time };
    let sha256 = codec::ChecksumAlgo::Sha256 as u64;
    let mut props = vec![("recordsize", RECORD), ("compression", codec::CompressAlgo::Off as u64), ("atime", 0)];
    if dedup {
        props.extend([("checksum", sha256), ("dedup", 1), ("redundant_metadata", 3), ("primarycache", 0)]);
    }
    let spec = PoolSpec {
        version: None,
        name: "tank".into(),
        devices: vec![DevSpec { dev: disk.dev(), is_disk: false }].into(),
        ashift: Some(9),
        features: ondisk::feature::FEATURES.iter().filter(|f| f.may_be_enabled()).map(|f| f.id).collect(),
        comment: None,
        fs_props: props.into_iter().map(|(name, n)| (name.to_string(), PropValue::Num(n))).collect(),
        init: init_fs(owner, FsCreateProps::default()),
    };
    let pool = Pool::create(sim.rt(), spec, opts(if dedup { ARC_MAKE } else { ARC })).await?;
    let ds = pool.dsl().find("tank")?;
    let fs = Zfs::open(&ds, MountOpts::from_props(&ds)).await?;
    let cred = Cred::new(0, 0);
    let file = fs.create(fs.root(), b"file", 0o644, &cred, false).await?.obj;
    let copy = fs.create(fs.root(), b"copy", 0o644, &cred, false).await?.obj;
    let len = entries * RECORD;
    let mut next = TRIM_AFTER;
    let mut at = 0;
    while at < len {
        let some = WRITE.min(len - at);
        let mut data = Buf::zeroed(some as usize);
        if dedup {
            for (n, block) in (at / RECORD..).zip(data.chunks_mut(RECORD as usize)) {
                block[..8].copy_from_slice(&(n + 1).to_le_bytes());
            }
        }
        fs.write(file, at, vec![data.freeze()], false).await?;
        at += some;
        trim(&pool, disk, &mut next).await?;
    }
    pool.sync().await?;
    let mut at = 0;
    while at < len {
        at += fs.clone_range(CloneFrom { fs: &fs, obj: file, off: at }, copy, at, len - at).await?.0;
        trim(&pool, disk, &mut next).await?;
    }
    fs.unmount().await?;
    pool.arc().set_limit(ARC);
    for _ in 0..FLUSHES {
        pool.sync().await?;
        trim(&pool, disk, &mut next).await?;
    }
    pool.export().await
}

/// Time that this thread had a processor.
fn cpu() -> Duration {
    let text = std::fs::read_to_string("/proc/self/schedstat").unwrap_or_default();
    Duration::from_nanos(text.split_whitespace().next().and_then(|n| n.parse().ok()).unwrap_or(0))
}

/// Figures of a part of the run.
struct Part {
    virtual_time: Nanos,
    cpu: Duration,
    read: u64,
    written: u64,
}

async fn measure(sim: &Sim, disk: &SimDisk, work: impl AsyncFnOnce() -> Result<()>) -> Result<Part> {
    let (start, busy, before) = (sim.rt().now(), cpu(), disk.counters());
    work().await?;
    let after = disk.counters();
    Ok(Part {
        virtual_time: sim.rt().now().since(start),
        cpu: cpu().saturating_sub(busy),
        read: after.read_bytes - before.read_bytes,
        written: after.write_bytes - before.write_bytes,
    })
}

/// Bytes of memory, but for those of the device.
fn memory(disk: &SimDisk) -> u64 {
    let device = disk.image().footprint();
    (ALLOCATOR.allocated() as u64).saturating_sub(device)
}

impl Part {
    fn add(&mut self, more: &Part) {
        self.virtual_time = self.virtual_time + more.virtual_time;
        self.cpu += more.cpu;
        self.read += more.read;
        self.written += more.written;
    }
}

/// Waits until what was freed is gone from the tables; the most memory after a txg. Its part of the
/// run comes to `part`.
async fn settle(sim: &Sim, pool: &Pool, disk: &SimDisk, part: &mut Part) -> Result<u64> {
    let mut most = 0;
    for _ in 0..FLUSHES {
        part.add(&measure(sim, disk, async || pool.sync().await).await?);
        most = most.max(memory(disk));
    }
    Ok(most)
}

/// Imports the image and prints a row of the table.
async fn look(sim: &Sim, disk: &SimDisk, dedup: bool, entries: u64) -> Result<()> {
    let before = memory(disk);
    let mut peak = before;
    let mut pool = None;
    let import = measure(sim, disk, async || {
        let found = spa::scan(vec![disk.dev()]).await.remove(0);
        pool = Some(Pool::import(sim.rt(), found, ImportOpts::default(), opts(ARC)).await?);
        Ok(())
    });
    let import = import.await?;
    let pool: Rc<Pool> = pool.expect("imported");
    let imported = memory(disk).saturating_sub(before);
    let figures = |pool: &Pool| if dedup { pool.dedup_sizes() } else { pool.cloned() };
    let known = figures(&pool);
    assert!(known.1 >= entries * RECORD, "{known:?}: every block has two references");
    let ds = pool.dsl().find("tank")?;
    let fs = Zfs::open(&ds, MountOpts::from_props(&ds)).await?;
    let copy = fs.lookup(fs.root(), b"copy").await?.obj;
    let mut rng = Rng::new(1);
    let singles = SINGLES.min(entries / 10);
    let single = measure(sim, disk, async || {
        for _ in 0..singles {
            fs.fallocate(copy, Fallocate::PunchHole, rng.below(entries) * RECORD, RECORD).await?;
        }
        Ok(())
    });
    let mut single = single.await?;
    peak = peak.max(settle(sim, &pool, disk, &mut single).await?);
    let many = MANY.min(entries);
    let mut range =
        measure(sim, disk, async || fs.fallocate(copy, Fallocate::PunchHole, 0, many * RECORD).await).await?;
    peak = peak.max(settle(sim, &pool, disk, &mut range).await?);
    fs.unmount().await?;
    peak -= before;
    let each = |part: &Part, n: u64| {
        format!(
            "{:.1} | {:.1} | {:.2} | {:.2}",
            part.virtual_time.0 as f64 / 1e3 / n as f64,
            part.cpu.as_secs_f64() * 1e6 / n as f64,
            part.read as f64 / 1024.0 / n as f64,
            part.written as f64 / 1024.0 / n as f64,
        )
    };
    println!(
        "| {} | {entries} | {:.1} | {:.1} | {:.1} | {:.1} | {:.1} | {} | {} |",
        if dedup { "dedup" } else { "cloned" },
        import.virtual_time.0 as f64 / 1e6,
        import.cpu.as_secs_f64() * 1e3,
        import.read as f64 / f64::from(1 << 20),
        imported as f64 / f64::from(1 << 20),
        peak as f64 / f64::from(1 << 20),
        each(&single, singles),
        each(&range, many),
    );
    pool.export().await
}

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let usage = "usage: table_growth cloned|dedup FOLDER ENTRIES...";
    let bad = || base::Error::invalid(usage);
    let [kind, folder, numbers @ ..] = args.as_slice() else { return Err(bad()) };
    let dedup = match kind.as_str() {
        "cloned" => false,
        "dedup" => true,
        _ => return Err(bad()),
    };
    if let Some(image) = std::env::var_os("TABLE_GROWTH_IMAGE") {
        let entries = numbers.first().and_then(|n| n.parse().ok()).ok_or_else(bad)?;
        let image = DiskImage::load(image).map_err(|e| base::Error::invalid(e.to_string()))?;
        let (sim, disk) = world(image);
        return sim.block_on(look(&sim, &disk, dedup, entries));
    }
    println!(
        "| table | entries | import ms | cpu ms | read MiB | memory MiB | peak MiB | single us | cpu us | read KiB | \
         written KiB | of many us | cpu us | read KiB | written KiB |"
    );
    println!("|{}", "---|".repeat(15));
    for number in numbers {
        let entries: u64 = number.parse().map_err(|_| bad())?;
        let start = Instant::now();
        let (sim, disk) = world(DiskImage::zeroed((entries * 4 * RECORD + (1 << 30)) & !0xfffff));
        sim.block_on(make(&sim, &disk, dedup, entries))?;
        let path = Path::new(folder).join(format!("{kind}{entries}.img"));
        disk.image().save(&path).map_err(|e| base::Error::invalid(format!("{}: {e}", path.display())))?;
        let (secs, image) = (start.elapsed().as_secs(), disk.image().footprint() >> 20);
        eprintln!("{kind} {entries}: made in {secs} s, {image} MiB of the device in memory");
        drop((sim, disk));
        let own = std::env::current_exe().map_err(|e| base::Error::invalid(e.to_string()))?;
        let child = Command::new(own).args([kind, folder, number]).env("TABLE_GROWTH_IMAGE", &path).status();
        let _ = std::fs::remove_file(&path);
        if !child.is_ok_and(|status| status.success()) {
            return Err(base::Error::invalid(format!("{kind} {entries}: the import failed")));
        }
    }
    Ok(())
}
