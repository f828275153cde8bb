//! Speed of a scrub beside the raw sequential read of the same devices: `cargo run --release -p
//! openweir-zpl --example scrub_speed -- FILE... [key=value ...]`.
//!
//! The files become a pool (*nothing* of them stays; those that do not exist are made, every byte
//! of them written: reading a hole costs no device anything) with large files in it. Then, in turn,
//! all that is allocated is read by a scrub, and as many bytes of every device one after the other,
//! 1 MiB at a time and 8 at once, past the engine. The last line has the medians and their ratio.
//! Keys: `mib` of data (2048), `rounds` (5), `layout` (`stripe`, `mirror`, `raidz1`, `raidz2`),
//! `each` MiB of a file that is made (4096), `record` in KiB (128).

use std::cell::Cell;
use std::collections::BTreeMap;
use std::io::Write;
use std::rc::Rc;
use std::time::Instant;

use base::{Result, WallTime};
use bdev::{BlockDev, Buf};
use dsl::props::PropValue;
use host::{Engine, EngineConfig, HostDev, OpenOpts};
use rt::Rt;
use rt::join::join_all;
use spa::{Bias, DevSpec, EngineOpts, Group, GroupKind, ImportOpts, Layout, Pool, PoolSpec, scan};
use zpl::{Cred, FsCreateProps, InitOwner, MountOpts, Zfs, init_fs};

const MIB: usize = 1 << 20;
/// Reads at once of the raw measurement.
const DEPTH: usize = 8;
/// Where pools begin to allocate.
const FRONT: u64 = 4 << 20;

fn opts() -> EngineOpts {
    let mut opts = EngineOpts::for_memory(4 << 30);
    opts.arc_max = 256 << 20;
    opts
}

fn devices(rt: &Rt, files: &[String]) -> Result<Vec<Rc<dyn BlockDev>>> {
    files.iter().map(|f| HostDev::open(rt, f, OpenOpts { write: true, ..OpenOpts::default() })).collect()
}

fn layout(kind: &str, devices: Vec<Rc<dyn BlockDev>>) -> Layout {
    let devices: Vec<DevSpec> = devices.into_iter().map(|dev| DevSpec { dev, is_disk: false }).collect();
    let kind = match kind {
        "mirror" => GroupKind::Mirror,
        "raidz1" => GroupKind::Raidz(1),
        "raidz2" => GroupKind::Raidz(2),
        _ => return devices.into(),
    };
    Layout { groups: vec![Group { kind, bias: Bias::Normal, devices }], ..Layout::default() }
}

/// 1 MiB that does not compress.
fn noise(x: &mut u64) -> Buf {
    let mut b = Buf::for_overwrite(MIB);
    for c in b.chunks_exact_mut(8) {
        *x = x.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        c.copy_from_slice(&(*x ^ *x >> 29).to_le_bytes());
    }
    b
}

/// Writes every byte of a file of `mib` MiB.
fn make(file: &str, mib: u64) -> std::io::Result<()> {
    let (mut f, mut x) = (std::fs::File::create(file)?, 1);
    for _ in 0..mib {
        f.write_all(&noise(&mut x))?;
    }
    f.sync_all()
}

async fn fill(pool: &Rc<Pool>, mib: u64) -> Result<()> {
    let fs = Zfs::open(&pool.dsl().find("bench")?, MountOpts::default()).await?;
    let cred = Cred::default();
    let mut x = 0x9e37_79b9_7f4a_7c15u64;
    let per_file = 512;
    for n in 0..mib.div_ceil(per_file) {
        let obj = fs.create(fs.root(), format!("f{n}").as_bytes(), 0o644, &cred, true).await?.obj;
        for i in 0..per_file.min(mib - n * per_file) {
            fs.write(obj, i * MIB as u64, vec![noise(&mut x).freeze()], false).await?;
        }
    }
    fs.unmount().await
}

/// Seconds that reading `bytes` of every device takes.
async fn raw(devices: &[Rc<dyn BlockDev>], bytes: u64) -> Result<f64> {
    let start = Instant::now();
    let lanes = devices.iter().flat_map(|dev| {
        let next = Rc::new(Cell::new(0u64));
        (0..DEPTH).map(move |_| {
            let (dev, next) = (dev.clone(), next.clone());
            async move {
                loop {
                    let at = next.get();
                    if at >= bytes || FRONT + at + MIB as u64 > dev.size() {
                        return Ok(());
                    }
                    next.set(at + MIB as u64);
                    bdev::readv(&*dev, FRONT + at, vec![Buf::for_overwrite(MIB)]).await?;
                }
            }
        })
    });
    join_all(lanes.collect::<Vec<_>>()).await.into_iter().collect::<Result<()>>()?;
    Ok(start.elapsed().as_secs_f64())
}

fn read_bytes(pool: &Pool) -> u64 {
    pool.tree().leaves().iter().map(|l| l.stats().read_bytes).sum()
}

fn median(mut v: Vec<f64>) -> f64 {
    v.sort_by(f64::total_cmp);
    v[v.len() / 2]
}

async fn work(rt: Rt, files: Vec<String>, keys: BTreeMap<String, String>) -> Result<()> {
    let num = |key: &str, default: u64| keys.get(key).and_then(|v| v.parse().ok()).unwrap_or(default);
    let kind = keys.get("layout").cloned().unwrap_or_else(|| "stripe".into());
    for f in files.iter().filter(|f| !std::path::Path::new(f).exists()) {
        make(f, num("each", 4096)).expect("the file can be written");
    }
    let owner = InitOwner { uid: 0, gid: 0, mode: 0o755, time: WallTime { secs: 1_700_000_000, nanos: 0 } };
    let spec = PoolSpec {
        version: None,
        name: "bench".into(),
        devices: layout(&kind, devices(&rt, &files)?),
        ashift: Some(12),
        features: ondisk::feature::features_of_2_1(),
        comment: None,
        fs_props: vec![("recordsize".into(), PropValue::Num(num("record", 128) << 10))],
        init: init_fs(owner, FsCreateProps::default()),
    };
    let pool = Pool::create(rt.clone(), spec, opts()).await?;
    fill(&pool, num("mib", 2048)).await?;
    pool.export().await?;
    drop(pool);
    let (mut scrubs, mut raws) = (Vec::new(), Vec::new());
    for round in 0..num("rounds", 5).max(1) {
        let found = scan(devices(&rt, &files)?).await.swap_remove(0);
        let pool = Pool::import(rt.clone(), found, ImportOpts::default(), opts()).await?;
        let (start, before) = (Instant::now(), read_bytes(&pool));
        pool.scan().start_scrub().await?;
        pool.scan().wait().await?;
        let (secs, bytes) = (start.elapsed().as_secs_f64(), read_bytes(&pool) - before);
        let s = pool.scan().status().phys;
        assert!(s.errors == 0 && s.processed == 0, "the scrub found something: {s:?}");
        pool.export().await?;
        drop(pool);
        let each = bytes / files.len() as u64;
        let raw_secs = raw(&devices(&rt, &files)?, each).await?;
        let (a, b) = (bytes as f64 / secs / 1e6, (each * files.len() as u64) as f64 / raw_secs / 1e6);
        println!("round {round}: scrub {a:.0} MB/s ({bytes} bytes of devices in {secs:.2} s), raw {b:.0} MB/s");
        scrubs.push(a);
        raws.push(b);
    }
    let (a, b) = (median(scrubs), median(raws));
    println!("{kind} of {}: scrub {a:.0} MB/s, raw {b:.0} MB/s, ratio {:.2}", files.len(), a / b);
    Ok(())
}

fn main() {
    let mut files = Vec::new();
    let mut keys = BTreeMap::new();
    for arg in std::env::args().skip(1) {
        match arg.split_once('=') {
            Some((k, v)) => drop(keys.insert(k.to_string(), v.to_string())),
            None => files.push(arg),
        }
    }
    assert!(!files.is_empty(), "usage: scrub_speed FILE... [key=value ...]");
    let engine = Engine::new(EngineConfig::default()).expect("an engine");
    let rt = engine.rt();
    engine.block_on(work(rt, files, keys)).expect("the benchmark runs");
}
