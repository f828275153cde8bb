//! Do heavy compressions starve readers? `cpu_isolation IMAGE SECONDS [WRITERS] [BATCH_THREADS]
//! [PAIRS]` (a fresh pool on IMAGE: *nothing* of it stays).
//!
//! Random readers first have the machine for themselves, then beside writers whose blocks are
//! compressed with gzip-9, in turn, nine times. Readers have a file of 8 KiB records that are not
//! compressed and one of 128 KiB records under gzip-1, whose decompression goes to the CPU pools as
//! well; the cache is too small for either. One line of JSON per phase: throughput of readers and
//! writers, latencies in microseconds, and the CPU seconds of the engine, of urgent jobs and of
//! bulk jobs. The last line has the median of the ratios of the 99th percentiles of a pair: a disk
//! with other users changes its speed between phases.
//!
//! Beside each pair runs one without the engine, `bare`: as many threads read the image itself past
//! the page cache, alone and beside one `gzip -9` with the nice level of the engine's bulk jobs.
//! Its ratio shows the effect of a busy core on this machine.

use std::cell::{Cell, RefCell};
use std::fs::File;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::rc::Rc;
use std::time::{Duration, Instant};

use base::{Error, Nanos, ObjectId, Result, WallTime};
use bdev::{Buf, Bytes};
use dsl::props::PropValue;
use host::{Engine, EngineConfig, HostDev, OpenOpts};
use rt::Rt;
use spa::{DevSpec, EngineOpts, Pool, PoolSpec};
use zpl::{Cred, FsCreateProps, InitOwner, MountOpts, Zfs, init_fs};

/// As the program has it.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const MIB: u64 = 1 << 20;
const FILE: u64 = 256 * MIB;
const READERS: u64 = 2;
/// `O_DIRECT` of Linux on x86-64.
const O_DIRECT: i32 = 0o40000;
/// Different blocks that writers write.
const TEXTS: u64 = 64;

/// Text of made-up words: gzip-9 has work with it.
fn text(len: usize, seed: u64) -> Bytes {
    let mut x = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut b = Buf::for_overwrite(len);
    let mut word = 0u64;
    for (i, c) in b.iter_mut().enumerate() {
        if i % 6 == 0 {
            x = x.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            word = x >> 52;
        }
        *c = if i % 6 == 5 { b' ' } else { b'a' + ((word >> (i % 6 * 2)) & 15) as u8 };
    }
    b.freeze()
}

/// CPU seconds of this process's threads: the engine's, those of urgent jobs, those of bulk jobs.
fn cpu() -> [f64; 3] {
    let mut out = [0.0; 3];
    for task in std::fs::read_dir("/proc/self/task").into_iter().flatten().flatten() {
        let stat = std::fs::read_to_string(task.path().join("stat")).unwrap_or_default();
        let Some((head, rest)) = stat.rsplit_once(')') else { continue };
        let f: Vec<&str> = rest.split_whitespace().collect();
        let ticks: f64 = [11, 12].iter().filter_map(|&i| f.get(i).and_then(|s| s.parse::<f64>().ok())).sum();
        let kind = if head.ends_with("weir-cpu-now") { 1 } else { usize::from(head.ends_with("weir-cpu")) * 2 };
        out[kind] += ticks / 100.0;
    }
    out
}

struct Bench {
    rt: Rt,
    pool: Rc<Pool>,
    plain: (Rc<Zfs>, ObjectId),
    packed: (Rc<Zfs>, ObjectId),
    writes: (Rc<Zfs>, Vec<ObjectId>),
    /// The data to write, made beforehand: real clients make theirs on other threads.
    texts: Vec<Bytes>,
}

#[derive(Default)]
struct Seen {
    stop: Cell<bool>,
    ns: [RefCell<Vec<u64>>; 2],
    written: Cell<u64>,
}

impl Bench {
    async fn new(rt: Rt, image: String, writers: u64) -> Result<Bench> {
        let owner = || InitOwner { uid: 0, gid: 0, mode: 0o755, time: WallTime { secs: 1_700_000_000, nanos: 0 } };
        let init = || init_fs(owner(), FsCreateProps::default());
        let prop = |name: &str, value: &str| -> Result<(String, PropValue)> {
            let known = dsl::props::find(name).ok_or_else(|| Error::invalid(name.to_string()))?;
            Ok((name.to_string(), known.parse(value)?))
        };
        let mut opts = EngineOpts::for_memory(4 << 30);
        opts.arc_max = 32 * MIB;
        opts.txg.dirty_data_max = 128 * MIB;
        let dev = HostDev::open(&rt, &image, OpenOpts { write: true, ..OpenOpts::default() })?;
        let spec = PoolSpec {
            version: None,
            name: "bench".into(),
            devices: vec![DevSpec { dev, is_disk: false }].into(),
            ashift: Some(12),
            features: ondisk::feature::features_of_2_1(),
            comment: None,
            fs_props: vec![prop("atime", "off")?],
            init: init(),
        };
        let pool = Pool::create(rt.clone(), spec, opts).await?;
        let mut fs = Vec::new();
        for (name, compression, record) in
            [("plain", "off", "8K"), ("packed", "gzip-1", "128K"), ("writes", "gzip-9", "128K")]
        {
            let name = format!("bench/{name}");
            let props = vec![prop("compression", compression)?, prop("recordsize", record)?];
            let ds = pool.dsl().create_fs(&name, props, init()).await?;
            fs.push(Zfs::open(&ds, MountOpts::from_props(&ds)).await?);
        }
        let cred = Cred::new(0, 0);
        let file = async |fs: &Rc<Zfs>, name: &str, size: u64| -> Result<ObjectId> {
            let obj = fs.create(fs.root(), name.as_bytes(), 0o644, &cred, true).await?.obj;
            for at in (0..size).step_by(MIB as usize) {
                fs.write(obj, at, vec![text(MIB as usize, at)], false).await?;
            }
            Ok(obj)
        };
        let plain = file(&fs[0], "data", FILE).await?;
        let packed = file(&fs[1], "data", FILE).await?;
        let mut written = Vec::new();
        for n in 0..writers {
            written.push(file(&fs[2], &format!("w{n}"), 0).await?);
        }
        pool.sync().await?;
        Ok(Bench {
            rt,
            pool,
            plain: (fs[0].clone(), plain),
            packed: (fs[1].clone(), packed),
            writes: (fs[2].clone(), written),
            texts: (0..TEXTS).map(|n| text(128 << 10, n)).collect(),
        })
    }

    async fn phase(&self, name: &str, seconds: u64, write: bool) -> Result<Vec<f64>> {
        let seen: Rc<Seen> = Rc::default();
        let mut tasks = Vec::new();
        for r in 0..2 * READERS {
            let (fs, obj) = if r < READERS { &self.plain } else { &self.packed };
            let (fs, obj, rt, seen, kind) = (fs.clone(), *obj, self.rt.clone(), seen.clone(), (r / READERS) as usize);
            tasks.push(self.rt.spawn("reader", async move {
                while !seen.stop.get() {
                    let at = rt.rng_below(FILE / 8192) * 8192;
                    let start = Instant::now();
                    fs.read(obj, at, 8192).await?;
                    seen.ns[kind].borrow_mut().push(start.elapsed().as_nanos() as u64);
                    // A reader with pauses: the figure is latency, not throughput.
                    rt.sleep(Nanos::from_ms(2)).await;
                }
                Ok::<(), Error>(())
            }));
        }
        for obj in self.writes.1.iter().filter(|_| write) {
            let (fs, obj, seen, rt) = (self.writes.0.clone(), *obj, seen.clone(), self.rt.clone());
            let texts = self.texts.clone();
            tasks.push(self.rt.spawn("writer", async move {
                for n in 0u64.. {
                    if seen.stop.get() {
                        break;
                    }
                    fs.write(obj, n % 256 * 128 * 1024, vec![texts[(n % TEXTS) as usize].clone()], false).await?;
                    seen.written.set(seen.written.get() + (128 << 10));
                    rt.yield_now().await;
                }
                Ok::<(), Error>(())
            }));
        }
        let (before, begin) = (cpu(), Instant::now());
        self.rt.sleep(Nanos::from_secs(seconds)).await;
        let (after, span) = (cpu(), begin.elapsed().as_secs_f64());
        seen.stop.set(true);
        for task in tasks {
            task.await?;
        }
        self.pool.sync().await?;
        let (mut parts, mut p99) = (Vec::new(), Vec::new());
        for (kind, ns) in ["plain", "packed"].iter().zip(&seen.ns) {
            let mut ns = ns.borrow_mut();
            ns.sort_unstable();
            let at = |permille: usize| ns.get((ns.len() * permille / 1000).min(ns.len() - 1)).map_or(0, |n| n / 1000);
            p99.push(at(990).max(1) as f64);
            parts.push(format!(
                "\"{kind}\":{{\"reads\":{},\"p50\":{},\"p99\":{},\"p999\":{},\"max\":{}}}",
                ns.len(),
                at(500),
                at(990),
                at(999),
                at(1000)
            ));
        }
        let [engine, urgent, bulk] = [0, 1, 2].map(|i| after[i] - before[i]);
        println!(
            "{{\"phase\":\"{name}\",\"secs\":{span:.1},{},\"written_mib_per_s\":{:.1},\"cpu_engine\":{engine:.2},\"cpu_urgent\":{urgent:.2},\"cpu_bulk\":{bulk:.2}}}",
            parts.join(","),
            seen.written.get() as f64 / MIB as f64 / span
        );
        Ok(p99)
    }
}

/// The image read without the engine, alone or beside a compression: the 99th percentile.
fn bare(image: &str, texts: &std::path::Path, seconds: u64, busy: bool) -> Result<f64> {
    let told = |what: &str, e: std::io::Error| Error::invalid(format!("{what}: {e}"));
    let endless = format!("while :; do gzip -9 -c {} > /dev/null; done", texts.display());
    let mut gzip = Command::new("nice");
    // In a process group of its own, to end the shell and its children.
    gzip.args(["-n", "5", "sh", "-c", &endless]).process_group(0);
    let gzip = busy.then(|| gzip.spawn()).transpose().map_err(|e| told("gzip", e))?;
    let end = Instant::now() + Duration::from_secs(seconds);
    let read = |n: u64| -> std::io::Result<Vec<u64>> {
        let file = File::options().read(true).custom_flags(O_DIRECT).open(image)?;
        let (mut buf, mut ns) = (Buf::for_overwrite(8192), Vec::new());
        let mut x = n;
        while Instant::now() < end {
            x = x.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            let start = Instant::now();
            file.read_exact_at(&mut buf, (x >> 33) % (FILE / 8192) * 8192 + 64 * MIB)?;
            ns.push(start.elapsed().as_nanos() as u64);
            std::thread::sleep(Duration::from_millis(2));
        }
        Ok(ns)
    };
    let all: std::io::Result<Vec<Vec<u64>>> = std::thread::scope(|s| {
        let threads: Vec<_> = (0..2 * READERS).map(|n| s.spawn(move || read(n))).collect();
        threads.into_iter().map(|t| t.join().expect("a reader does not panic")).collect()
    });
    if let Some(mut gzip) = gzip {
        let group = format!("-{}", gzip.id());
        let _ = Command::new("kill").args(["--", &group]).status();
        let _ = gzip.wait();
    }
    let mut ns: Vec<u64> = all.map_err(|e| told(image, e))?.into_iter().flatten().collect();
    ns.sort_unstable();
    let at = |permille: usize| ns.get(ns.len() * permille / 1000).map_or(0, |n| n / 1000);
    println!(
        "{{\"phase\":\"bare\",\"busy\":{busy},\"reads\":{},\"p50\":{},\"p99\":{},\"p999\":{}}}",
        ns.len(),
        at(500),
        at(990),
        at(999)
    );
    Ok(at(990).max(1) as f64)
}

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let num = |i: usize, default: u64| args.get(i).and_then(|a| a.parse().ok()).unwrap_or(default);
    let image = args.first().cloned().ok_or_else(|| Error::invalid("which image?"))?;
    let (seconds, writers) = (num(1, 10), num(2, 4));
    host::create_sparse(std::path::Path::new(&image), 4 << 30).or_else(|e| {
        // It may be there from the last time.
        if std::fs::metadata(&image).is_ok() { Ok(()) } else { Err(e) }
    })?;
    let engine = Engine::new(EngineConfig { cpu_threads: num(3, 1) as usize, ..EngineConfig::default() })?;
    let rt = engine.rt();
    engine.block_on(async {
        let bench = Bench::new(rt, image.clone(), writers).await?;
        let texts = std::env::temp_dir().join(format!("cpu-isolation-{}", std::process::id()));
        let all: Vec<u8> = bench.texts.iter().flat_map(|t| t.iter().copied()).collect();
        std::fs::write(&texts, all).map_err(|e| Error::invalid(format!("{}: {e}", texts.display())))?;
        let mut ratios = [const { Vec::new() }; 3];
        for _ in 0..num(4, 9) {
            let mut alone = bench.phase("readers", seconds, false).await?;
            let mut beside = bench.phase("readers and writers", seconds, true).await?;
            // Nothing of the engine's is to be done meanwhile, so its thread may wait here.
            alone.push(bare(&image, &texts, seconds, false)?);
            beside.push(bare(&image, &texts, seconds, true)?);
            ratios.iter_mut().zip(alone.iter().zip(&beside)).for_each(|(r, (a, b))| r.push(b / a));
        }
        let _ = std::fs::remove_file(&texts);
        ratios.iter_mut().for_each(|r| r.sort_by(f64::total_cmp));
        let [plain, packed, bare] = ratios.map(|r| r.get(r.len() / 2).copied().unwrap_or(0.0));
        println!("{{\"p99_ratio\":{{\"plain\":{plain:.2},\"packed\":{packed:.2},\"bare\":{bare:.2}}}}}");
        Ok(())
    })
}
