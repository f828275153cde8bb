//! Jobs of the file-system benchmark on the engine itself, without FUSE:
//! `fs_speed IMAGE JOB ARGS...` (see `cargo xtask bench-fs`).
//!
//! Every job imports the pool on the image, does its work through `zpl::Zfs` as the FUSE front end
//! would, and prints one line of JSON: seconds, with the sync of the pool for jobs that write,
//! bytes, operations, latencies in microseconds, and the process's peak memory.
//!
//! Jobs: `init` (a new pool; *nothing* of the image stays), `fill BYTES`, `seq-write BYTES`,
//! `seq-read BYTES`, `rand-read BYTES`, `overwrite BYTES SECS MIN_BYTES`,
//! `sync-write WRITERS SECS`, `create N`, `stat N`, `remove N`, `tree DIR`, `rm NAME`.

use std::cell::{Cell, RefCell};
use std::path::Path;
use std::rc::Rc;
use std::time::Instant;

use base::{Error, ObjectId, Result, WallTime};
use bdev::{Buf, Bytes};
use dsl::props::PropValue;
use host::{Engine, EngineConfig, HostDev, OpenOpts};
use rt::Rt;
use spa::{DevSpec, EngineOpts, ImportOpts, Pool, PoolSpec, scan};
use zpl::{Cred, FsCreateProps, InitOwner, MountOpts, Zfs, init_fs};

/// As the program has it.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const POOL: &str = "bench";
const MIB: usize = 1 << 20;
const REC: usize = 8 << 10;
const THREADS: u64 = 8;
const PER_DIR: u64 = 1000;

fn opts() -> EngineOpts {
    let mut opts = EngineOpts::for_memory(4 << 30);
    opts.arc_max = 512 << 20;
    opts.txg.dirty_data_max = 256 << 20;
    if let Ok(name) = std::env::var("FS_SPEED_THROTTLE") {
        opts.txg.policy = txg::ThrottlePolicy::parse(&name).expect("FS_SPEED_THROTTLE names a throttle");
    }
    opts
}

fn owner() -> InitOwner {
    InitOwner { uid: 0, gid: 0, mode: 0o755, time: WallTime { secs: 1_700_000_000, nanos: 0 } }
}

fn init() -> dsl::Init {
    init_fs(owner(), FsCreateProps::default())
}

fn device(rt: &Rt, image: &str) -> Result<Rc<dyn bdev::BlockDev>> {
    HostDev::open(rt, image, OpenOpts { write: true, ..OpenOpts::default() })
}

/// CPU seconds of this process so far, in ticks of 10 ms.
fn cpu_secs() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let after_name = stat.rsplit(')').next().unwrap_or_default();
    let ticks = after_name.split_whitespace().skip(11).take(2).filter_map(|t| t.parse::<u64>().ok()).sum::<u64>();
    ticks as f64 / 100.0
}

/// The result: latencies and bytes.
#[derive(Default)]
struct Laps {
    ns: RefCell<Vec<u64>>,
    bytes: Cell<u64>,
    /// Seconds that count, of a job that prepares something first.
    secs: Cell<Option<f64>>,
}

impl Laps {
    fn lap(&self, start: Instant, bytes: u64) {
        self.ns.borrow_mut().push(start.elapsed().as_nanos() as u64);
        self.bytes.set(self.bytes.get() + bytes);
    }

    fn print(&self, secs: f64) {
        let secs = self.secs.get().unwrap_or(secs);
        let mut ns = self.ns.take();
        ns.sort_unstable();
        let at = |part: f64| {
            let i = ((ns.len() as f64 * part) as usize).min(ns.len().saturating_sub(1));
            ns.get(i).map_or(0.0, |&n| n as f64 / 1000.0)
        };
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        let kib =
            status.lines().find_map(|l| l.strip_prefix("VmHWM:")).map_or("0", |l| l.trim().trim_end_matches(" kB"));
        println!(
            "{{\"secs\":{secs},\"bytes\":{},\"ops\":{},\"p50\":{},\"p99\":{},\"p999\":{},\"max\":{},\"vmhwm\":{}}}",
            self.bytes.get(),
            ns.len(),
            at(0.5),
            at(0.99),
            at(0.999),
            at(1.0),
            kib.parse::<u64>().unwrap_or(0) << 10
        );
    }
}

/// Bytes that do not compress, different for every block.
struct Source {
    noise: Vec<u8>,
}

impl Source {
    fn new() -> Source {
        let mut x = 0x9e37_79b9_7f4a_7c15u64;
        let mut noise = vec![0u8; MIB + 4096];
        for c in noise.chunks_exact_mut(8) {
            x = x.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            c.copy_from_slice(&(x ^ x >> 29).to_le_bytes());
        }
        Source { noise }
    }

    fn block(&self, len: usize, n: u64) -> Bytes {
        let mut b = Buf::for_overwrite(len);
        let at = (n % 512) as usize * 8;
        b.copy_from_slice(&self.noise[at..at + len]);
        b[..8].copy_from_slice(&n.to_le_bytes());
        b.freeze()
    }
}

struct Job {
    rt: Rt,
    pool: Rc<Pool>,
    args: Vec<String>,
    laps: Rc<Laps>,
    source: Rc<Source>,
    cred: Cred,
}

impl Job {
    fn num(&self, i: usize) -> Result<u64> {
        let arg = self.args.get(i).ok_or_else(|| Error::invalid("a number is missing"))?;
        arg.parse().map_err(|_| Error::invalid(format!("'{arg}' is not a number")))
    }

    async fn fs(&self, name: &str) -> Result<Rc<Zfs>> {
        Zfs::open(&self.pool.dsl().find(name)?, MountOpts::default()).await
    }

    async fn create(&self, fs: &Zfs, dir: ObjectId, name: &str) -> Result<ObjectId> {
        Ok(fs.create(dir, name.as_bytes(), 0o644, &self.cred, true).await?.obj)
    }

    async fn write_file(&self, fs: &Zfs, name: &str) -> Result<()> {
        let obj = self.create(fs, fs.root(), name).await?;
        for i in 0..self.num(0)? / MIB as u64 {
            let start = Instant::now();
            let data = self.source.block(MIB, i);
            fs.write(obj, i * MIB as u64, vec![data], false).await?;
            self.laps.lap(start, MIB as u64);
        }
        Ok(())
    }

    async fn seq_read(&self) -> Result<()> {
        let fs = self.fs(POOL).await?;
        let obj = fs.lookup(fs.root(), b"seq").await?.obj;
        let mut sum = 0u64;
        for i in 0..self.num(0)? / MIB as u64 {
            let start = Instant::now();
            let parts = fs.read(obj, i * MIB as u64, MIB as u64).await?;
            let len: usize = parts.iter().map(|p| p.len()).sum();
            assert_eq!(len, MIB);
            sum += u64::from(parts[0][0]);
            self.laps.lap(start, len as u64);
        }
        std::hint::black_box(sum);
        fs.unmount().await
    }

    /// Eight tasks, each with its own part of the file and each block once in random order.
    async fn rand_read(&self) -> Result<()> {
        let fs = self.fs("bench/db").await?;
        let obj = fs.lookup(fs.root(), b"db").await?.obj;
        let each = self.num(0)? / THREADS / REC as u64;
        let tasks = (0..THREADS).map(|t| {
            let (fs, laps, rt) = (fs.clone(), self.laps.clone(), self.rt.clone());
            let task = async move {
                let mut order: Vec<u64> = (t * each..(t + 1) * each).collect();
                for i in (1..order.len()).rev() {
                    order.swap(i, rt.rng_below(i as u64 + 1) as usize);
                }
                for block in order {
                    let start = Instant::now();
                    let parts = fs.read(obj, block * REC as u64, REC as u64).await?;
                    assert_eq!(parts.iter().map(|p| p.len()).sum::<usize>(), REC);
                    laps.lap(start, REC as u64);
                    rt.yield_now().await;
                }
                Ok(())
            };
            self.rt.spawn("reader", task)
        });
        for done in rt::join::join_all(tasks.collect()).await {
            let done: Result<()> = done;
            done?;
        }
        fs.unmount().await
    }

    async fn overwrite(&self) -> Result<()> {
        let fs = self.fs("bench/db").await?;
        let obj = fs.lookup(fs.root(), b"db").await?.obj;
        let each = self.num(0)? / THREADS / REC as u64;
        let (secs, least) = (self.num(1)?, self.num(2)?);
        let begin = Instant::now();
        // With FS_SPEED_TRACE set, prints slow writes and the txgs.
        let trace = std::env::var_os("FS_SPEED_TRACE").is_some();
        let tasks = (0..THREADS).map(|t| {
            let (fs, laps, rt, source) = (fs.clone(), self.laps.clone(), self.rt.clone(), self.source.clone());
            let txg = self.pool.txg().clone();
            let task = async move {
                let mut n = 0;
                while begin.elapsed().as_secs() < secs || laps.bytes.get() < least {
                    let block = t * each + rt.rng_below(each);
                    let start = Instant::now();
                    let data = source.block(REC, n);
                    let before = (trace && txg.dirty() > 0).then(|| txg.stats());
                    fs.write(obj, block * REC as u64, vec![data], false).await?;
                    if let Some(before) = before.filter(|_| start.elapsed().as_millis() >= 50) {
                        eprintln!(
                            "{} ms: write {t} took {} ms, dirty {} -> {} MiB, blocked {} -> {}",
                            rt.now().0 / 1_000_000,
                            start.elapsed().as_millis(),
                            before.dirty >> 20,
                            txg.dirty() >> 20,
                            before.blocked,
                            txg.stats().blocked
                        );
                    }
                    laps.lap(start, REC as u64);
                    n += 1;
                    rt.yield_now().await;
                }
                Ok(())
            };
            self.rt.spawn("writer", task)
        });
        for done in rt::join::join_all(tasks.collect()).await {
            let done: Result<()> = done;
            done?;
        }
        for r in self.pool.txg().history().iter().filter(|_| trace) {
            let ms = |n: base::Nanos| n.0 / 1_000_000;
            eprintln!(
                "txg {}: {} MiB, opened {} closed {} quiesced {} sync {} synced {}, delayed {} by {} ms",
                r.txg.0,
                r.dirty >> 20,
                ms(r.opened),
                ms(r.closed),
                ms(r.quiesced),
                ms(r.sync_start),
                ms(r.synced),
                r.delayed,
                ms(r.delayed_time)
            );
        }
        fs.unmount().await
    }

    /// 8 KiB writes, each durable before the next, by several writers in files of their own.
    async fn sync_write(&self) -> Result<()> {
        let fs = self.fs("bench/db").await?;
        let (writers, secs) = (self.num(0)?, self.num(1)?);
        const FILE: u64 = 8 << 20;
        let mut objs = Vec::new();
        for t in 0..writers {
            let name = format!("sync-{t}");
            let obj = match fs.lookup(fs.root(), name.as_bytes()).await {
                Ok(a) => a.obj,
                Err(_) => self.create(&fs, fs.root(), &name).await?,
            };
            for at in (0..FILE).step_by(MIB) {
                fs.write(obj, at, vec![self.source.block(MIB, at)], false).await?;
            }
            objs.push(obj);
        }
        fs.fsync(fs.root()).await?;
        self.pool.sync().await?;
        // The data are made beforehand, as in fio.
        let blocks: Rc<Vec<Bytes>> = Rc::new((0..512).map(|n| self.source.block(REC, n)).collect());
        let cpu = cpu_secs();
        let begin = Instant::now();
        let tasks = objs.into_iter().map(|obj| {
            let (fs, laps, rt, blocks) = (fs.clone(), self.laps.clone(), self.rt.clone(), blocks.clone());
            let task = async move {
                let mut n = 0;
                while begin.elapsed().as_secs() < secs {
                    let start = Instant::now();
                    let at = n * REC as u64 % FILE;
                    fs.write_sync(obj, at, vec![blocks[n as usize % blocks.len()].clone()], false).await?;
                    laps.lap(start, REC as u64);
                    n += 1;
                    rt.yield_now().await;
                }
                Ok(())
            };
            self.rt.spawn("sync writer", task)
        });
        for done in rt::join::join_all(tasks.collect()).await {
            let done: Result<()> = done;
            done?;
        }
        let took = begin.elapsed().as_secs_f64();
        self.laps.secs.set(Some(took));
        if let Some(log) = fs.log() {
            let writes = self.laps.ns.borrow().len() as f64;
            let cpu_us = (cpu_secs() - cpu) * 1e6 / writes;
            eprintln!("{:.0} writes per second, {cpu_us:.1} us of CPU each; {:?}", writes / took, log.stats());
        }
        fs.unmount().await
    }

    async fn create_files(&self) -> Result<()> {
        let fs = self.fs(POOL).await?;
        let mut dir = fs.root();
        for i in 0..self.num(0)? {
            if i % PER_DIR == 0 {
                dir = fs.mkdir(fs.root(), format!("d{:03}", i / PER_DIR).as_bytes(), 0o755, &self.cred).await?.obj;
            }
            let start = Instant::now();
            let obj = self.create(&fs, dir, &format!("file-{i:06}")).await?;
            fs.open_file(obj).await?;
            fs.write(obj, 0, vec![self.source.block(1024, i)], false).await?;
            fs.release(obj).await;
            self.laps.lap(start, 1024);
            self.rt.yield_now().await;
        }
        fs.unmount().await
    }

    async fn stat_files(&self) -> Result<()> {
        let fs = self.fs(POOL).await?;
        for d in 0..self.num(0)?.div_ceil(PER_DIR) {
            let dir = fs.lookup(fs.root(), format!("d{d:03}").as_bytes()).await?.obj;
            let mut cookie = 0;
            loop {
                let entries = fs.readdir(dir, cookie, 256).await?;
                let Some(last) = entries.last() else { break };
                cookie = last.next_cookie;
                for e in entries.iter().filter(|e| e.name != b"." && e.name != b"..") {
                    let start = Instant::now();
                    fs.getattr(fs.lookup(dir, &e.name).await?.obj).await?;
                    self.laps.lap(start, 0);
                }
            }
        }
        fs.unmount().await
    }

    async fn remove_files(&self) -> Result<()> {
        let fs = self.fs(POOL).await?;
        let count = self.num(0)?;
        let mut dir = fs.root();
        for i in 0..count {
            let dir_name = format!("d{:03}", i / PER_DIR);
            if i % PER_DIR == 0 {
                dir = fs.lookup(fs.root(), dir_name.as_bytes()).await?.obj;
            }
            let start = Instant::now();
            fs.unlink(dir, format!("file-{i:06}").as_bytes()).await?;
            self.laps.lap(start, 0);
            if i % PER_DIR == PER_DIR - 1 || i + 1 == count {
                fs.rmdir(fs.root(), dir_name.as_bytes()).await?;
            }
            self.rt.yield_now().await;
        }
        fs.unmount().await
    }

    async fn tree(&self) -> Result<()> {
        let from = self.args.first().ok_or_else(|| Error::invalid("a directory is missing"))?;
        let fs = self.fs(POOL).await?;
        let top = fs.mkdir(fs.root(), b"tree", 0o755, &self.cred).await?.obj;
        let fail = |e: std::io::Error| Error::invalid(format!("{from}: {e}"));
        let mut todo = vec![(Path::new(from).to_path_buf(), top)];
        while let Some((path, dir)) = todo.pop() {
            for entry in std::fs::read_dir(&path).map_err(fail)? {
                let entry = entry.map_err(fail)?;
                let (path, name) = (entry.path(), entry.file_name());
                let (meta, name) = (entry.metadata().map_err(fail)?, name.as_encoded_bytes());
                let start = Instant::now();
                let mut bytes = 0;
                if meta.is_dir() {
                    todo.push((path, fs.mkdir(dir, name, 0o755, &self.cred).await?.obj));
                } else if meta.is_symlink() {
                    let target = std::fs::read_link(&path).map_err(fail)?;
                    fs.symlink(dir, name, target.as_os_str().as_encoded_bytes(), &self.cred).await?;
                } else if meta.is_file() {
                    let obj = fs.create(dir, name, 0o644, &self.cred, true).await?.obj;
                    fs.open_file(obj).await?;
                    let data = std::fs::read(&path).map_err(fail)?;
                    for (i, part) in data.chunks(MIB).enumerate() {
                        fs.write(obj, (i * MIB) as u64, vec![Buf::copy_from(part).freeze()], false).await?;
                    }
                    fs.release(obj).await;
                    bytes = data.len() as u64;
                }
                self.laps.lap(start, bytes);
                self.rt.yield_now().await;
            }
        }
        fs.unmount().await
    }

    async fn run(&self, what: &str) -> Result<()> {
        match what {
            "fill" => self.write_file(&*self.fs("bench/db").await?, "db").await,
            "seq-write" => self.write_file(&*self.fs(POOL).await?, "seq").await,
            "seq-read" => self.seq_read().await,
            "rm" => {
                let fs = self.fs(POOL).await?;
                let name = self.args.first().ok_or_else(|| Error::invalid("a name is missing"))?;
                fs.unlink(fs.root(), name.as_bytes()).await?;
                fs.unmount().await
            }
            "rand-read" => self.rand_read().await,
            "overwrite" => self.overwrite().await,
            "sync-write" => self.sync_write().await,
            "create" => self.create_files().await,
            "stat" => self.stat_files().await,
            "remove" => self.remove_files().await,
            "tree" => self.tree().await,
            other => Err(Error::invalid(format!("there is no job '{other}'"))),
        }
    }
}

async fn make(rt: &Rt, image: &str) -> Result<()> {
    // 2 is "off" (format page 03).
    let off = PropValue::Num(2);
    let spec = PoolSpec {
        version: None,
        name: POOL.into(),
        devices: vec![DevSpec { dev: device(rt, image)?, is_disk: false }].into(),
        ashift: None,
        features: ondisk::feature::features_of_2_1(),
        comment: None,
        fs_props: vec![("compression".into(), off)],
        init: init(),
    };
    let pool = Pool::create(rt.clone(), spec, opts()).await?;
    pool.dsl().create_fs("bench/db", vec![("recordsize".into(), PropValue::Num(REC as u64))], init()).await?;
    pool.export().await
}

fn main() -> Result<()> {
    let mut args = std::env::args().skip(1);
    let (Some(image), Some(what)) = (args.next(), args.next()) else {
        return Err(Error::invalid("usage: fs_speed IMAGE JOB ARGS..."));
    };
    let engine = Engine::new(EngineConfig::default())?;
    let rt = engine.rt();
    engine.block_on(async {
        if what == "init" {
            return make(&rt, &image).await;
        }
        let mut found = scan(vec![device(&rt, &image)?]).await;
        if found.is_empty() {
            return Err(Error::not_found(format!("no pool on {image}: run init first")));
        }
        let pool = Pool::import(rt.clone(), found.remove(0), ImportOpts::default(), opts()).await?;
        let job = Job {
            rt: rt.clone(),
            pool: pool.clone(),
            args: args.collect(),
            laps: Rc::default(),
            source: Rc::new(Source::new()),
            cred: Cred::new(0, 0),
        };
        let start = Instant::now();
        job.run(&what).await?;
        if !matches!(what.as_str(), "seq-read" | "rand-read" | "stat") {
            pool.sync().await?;
        }
        let secs = start.elapsed().as_secs_f64();
        pool.export().await?;
        job.laps.print(secs);
        Ok(())
    })
}
