//! CPU cost of the engine's own paths on one core, for `rt::cost`: `cargo run --release -p
//! openweir-zpl --example op_cost`.
//!
//! The engine runs on a simulated disk, so nothing waits and the process does nothing else; each
//! figure is the best of several rounds, in nanoseconds of the thread's CPU time
//! for each operation, object, block or record. It includes the simulated disk's own work on a
//! block. The constants are these figures, rounded.

use std::rc::Rc;

use base::{ObjectId, Result};
use bdev::Bytes;
use sim::{DiskConfig, DiskImage, Model, Pick, Sim, SimConfig, SimDisk};
use spa::{DevSpec, EngineOpts, Pool, PoolSpec};
use zpl::{Cred, FsCreateProps, InitOwner, MountOpts, Zfs, init_fs};

#[global_allocator]
static ALLOC: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Files of a round.
const FILES: u64 = 4000;
/// Entries of the largest micro ZAP (format page 04).
const MICRO_ENTRIES: u64 = 2047;
/// Rounds of which the best counts.
const ROUNDS: usize = 5;

async fn start(sim: &Sim, disk: &SimDisk) -> Result<(Rc<Pool>, Rc<Zfs>)> {
    let mut opts = EngineOpts::for_memory(8 << 30);
    // Only the bench starts syncs of txgs.
    opts.txg.txg_timeout = base::Nanos::from_secs(100_000);
    let time = sim.rt().wall_clock();
    let props = [("compression", "off"), ("atime", "off"), ("recordsize", "8K")];
    let mut fs_props = Vec::new();
    for (name, value) in props {
        let known = dsl::props::find(name).ok_or_else(|| base::Error::invalid("no such property"))?;
        fs_props.push((name.to_string(), known.parse(value)?));
    }
    let spec = PoolSpec {
        version: None,
        name: "cost".into(),
        devices: vec![DevSpec { dev: disk.dev(), is_disk: false }].into(),
        ashift: Some(12),
        features: ondisk::feature::features_of_2_1(),
        comment: None,
        fs_props,
        init: init_fs(InitOwner { uid: 0, gid: 0, mode: 0o755, time }, FsCreateProps::default()),
    };
    let pool = Pool::create(sim.rt(), spec, opts).await?;
    let ds = pool.dsl().find("cost")?;
    let fs = Zfs::open(&ds, MountOpts::from_props(&ds)).await?;
    Ok((pool, fs))
}

/// Runs `f` and notes nanoseconds for each of `count`, if that is the best so far.
fn note(best: &mut Vec<(&'static str, f64)>, name: &'static str, count: u64, f: impl FnOnce()) {
    let begin = host::thread_cpu_time();
    f();
    let each = host::thread_cpu_time().since(begin).0 as f64 / count as f64;
    match best.iter_mut().find(|(n, _)| *n == name) {
        Some((_, old)) => *old = old.min(each),
        None => best.push((name, each)),
    }
}

fn round(best: &mut Vec<(&'static str, f64)>, seed: u64) {
    let config =
        SimConfig { pick: Pick::Fifo, physmem: 8 << 30, polls_per_instant_max: u64::MAX, ..SimConfig::seeded(seed) };
    let sim = Sim::new(config);
    let mut disk = DiskConfig::new(DiskImage::zeroed(64 << 30), Model::nvme(), seed);
    disk.volatile = false;
    let disk = SimDisk::with(&sim.handle(), disk);
    let (pool, fs) = sim.block_on(start(&sim, &disk)).expect("a pool");
    let cred = Cred::new(0, 0);
    let root = fs.root();
    let block = Bytes::copy_from(&[7; 8192]);
    let sync = || sim.block_on(fs.sync_all()).expect("a sync");

    let mut files: Vec<ObjectId> = Vec::new();
    note(best, "create (two objects)", FILES, || {
        for n in 0..FILES {
            let name = format!("file{n}");
            let made = sim.block_on(fs.create(root, name.as_bytes(), 0o644, &cred, true));
            files.push(made.expect("a file").obj);
        }
    });
    note(best, "getattr", FILES, || {
        files.iter().for_each(|f| assert!(sim.block_on(fs.getattr(*f)).is_ok()));
    });
    note(best, "write of 8 KiB", FILES, || {
        for f in &files {
            sim.block_on(fs.write(*f, 0, vec![block.clone()], false)).expect("written");
        }
    });
    note(best, "read of 8 KiB that is cached", FILES, || {
        files.iter().for_each(|f| drop(sim.block_on(fs.read(*f, 0, 8192)).expect("read")));
    });
    note(best, "list an entry", FILES, || {
        sim.block_on(fs.readdir(root, 0, usize::MAX)).expect("entries");
    });
    note(best, "sync a new object of one block", FILES, sync);

    // Attributes only: an object without blocks of its own.
    for f in &files {
        sim.block_on(fs.touch_ctime(*f)).expect("touched");
    }
    note(best, "sync an object without blocks (DMU_OBJECT)", FILES, sync);

    // One object, many blocks; incompressible or not, they are not compressed.
    let big = sim.block_on(fs.create(root, b"big", 0o644, &cred, true)).expect("a file").obj;
    for n in 0..4 * FILES {
        sim.block_on(fs.write(big, n * 8192, vec![block.clone()], false)).expect("written");
    }
    note(best, "sync a block of 8 KiB (DMU_BLOCK)", 4 * FILES, sync);

    let limit = pool.arc().limit();
    pool.arc().set_limit(0);
    pool.arc().set_limit(limit);
    note(best, "read of 8 KiB that is not cached (ZIO_READ)", 4 * FILES, || {
        for n in 0..4 * FILES {
            drop(sim.block_on(fs.read(big, n * 8192, 8192)).expect("read"));
        }
    });

    // Records of the intent log: all files' writes in one commit each.
    let before = fs.log().map(|log| log.stats()).unwrap_or_default();
    note(best, "write of 8 KiB and its commit", FILES, || {
        for f in &files {
            sim.block_on(fs.write_sync(*f, 0, vec![block.clone()], false)).expect("written");
        }
    });
    let after = fs.log().map(|log| log.stats()).unwrap_or_default();
    eprintln!("round {seed}: {} blocks of the log, {} fallbacks", after.blocks - before.blocks, after.fallbacks);
    sync();
    for f in &files {
        for n in 0..4 {
            sim.block_on(fs.write(*f, n * 512, vec![block.slice(..64)], false)).expect("written");
        }
    }
    note(best, "pack a record of 64 bytes (ZIL_RECORD)", 4 * FILES, || {
        files.iter().for_each(|f| fs.log().into_iter().for_each(|log| log.async_to_sync(*f)));
        sim.block_on(fs.fsync(files[0])).expect("durable");
    });
    sync();

    // The disk answers at once: the cost is that of the engine and the checksums.
    note(best, "scrub a copy of 8 KiB (SCAN_VISIT and SCAN_ISSUE)", 5 * FILES, || {
        sim.block_on(async {
            pool.scan().start_scrub().await.expect("a scrub");
            pool.scan().wait().await.expect("its end");
        });
    });
    note(best, "free a block (FREE)", 4 * FILES, || {
        sim.block_on(fs.truncate(big, 0)).expect("cut");
        sync();
    });
    // A directory of one more name than a micro ZAP holds.
    let dir = sim.block_on(fs.mkdir(root, b"dir", 0o755, &cred)).expect("a folder").obj;
    for n in 0..MICRO_ENTRIES {
        let name = format!("file{n}");
        sim.block_on(fs.link(files[n as usize], dir, name.as_bytes())).expect("a link");
    }
    note(best, "move an entry of a micro ZAP (ZAP_MOVE)", MICRO_ENTRIES, || {
        sim.block_on(fs.link(files[0], dir, b"one more")).expect("a link");
    });
    note(best, "unlink", FILES, || {
        for n in 0..FILES {
            sim.block_on(fs.unlink(root, format!("file{n}").as_bytes())).expect("unlinked");
        }
    });
    drop(pool);
}

fn main() {
    let mut best = Vec::new();
    (0..ROUNDS).for_each(|n| round(&mut best, n as u64));
    for (name, each) in best {
        println!("{name:44} {each:>9.0} ns");
    }
}
