//! Speed of the engine below the file layer, beside the raw device: `cargo run --release -p
//! openweir-spa --example bench_dmu -- FILE [key=value ...]`.
//!
//! `FILE` becomes a pool. It and `raw=FILE2`, on which `fio` does the same jobs in turn with the
//! engine, must have been written before (never-written blocks are slower). Keys: `mib` of a file
//! (1024), `rounds` (3), `secs` of the overwrites (60), `rows` (`seqw,seqr,randr,over`), `arc` and
//! `dirty` in MiB (512, 256), `compression` (the property's value in a pool; lz4 is tried on data
//! that does not compress, as it would be by default), `turns=1` to find the longest turn of the
//! engine thread (a ticker then keeps it busy, so that the other figures do not count).
//!
//! Every figure is one of the engine thread at the public interface of the DMU; times of writes
//! include `zpool sync`, reads are cold: the pool is imported anew.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::process::Command;
use std::rc::Rc;
use std::time::{Duration, Instant};

use base::{ObjectId, Result};
use bdev::Buf;
use dmu::{Dnode, ObjSpec, Objset, TxPlan};
use dsl::props::PropValue;
use host::{Engine, EngineConfig, HostDev, OpenOpts};
use ondisk::object_type::ObjectType;
use rt::Rt;
use spa::{DevSpec, EngineOpts, ImportOpts, Pool, PoolSpec, scan};

const BIG: u64 = 128 << 10;
const SMALL: u64 = 8 << 10;
const TASKS: usize = 8;

/// The measurement of one row in one round.
#[derive(Clone, Default)]
struct Row {
    /// MB/s, or operations a second.
    rate: f64,
    /// Of the engine thread, in us an operation.
    cpu: f64,
    /// Share of the time that the thread waited for a core, in percent.
    stolen: f64,
    /// In us.
    lat: Vec<u32>,
}

/// (ns on a core, ns waiting for one) of this thread.
fn sched() -> (u64, u64) {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let mut n = text.split_whitespace().map(|w| w.parse().unwrap_or(0));
    (n.next().unwrap_or(0), n.next().unwrap_or(0))
}

/// A line of `/proc/self/status`, in MiB.
fn status(key: &str) -> u64 {
    let text = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = text.lines().find_map(|l| l.strip_prefix(key)?.split_whitespace().nth(1)?.parse::<u64>().ok());
    line.unwrap_or(0) >> 10
}

struct Clock {
    start: Instant,
    sched: (u64, u64),
}

impl Clock {
    fn start() -> Clock {
        Clock { start: Instant::now(), sched: sched() }
    }
    fn row(&self, ops: u64, bytes: Option<u64>) -> Row {
        let (t, (cpu, wait)) = (self.start.elapsed(), sched());
        let rate = bytes.map_or(ops as f64, |b| (b * ops) as f64 / 1e6) / t.as_secs_f64();
        let cpu = (cpu - self.sched.0) as f64 / 1e3 / ops.max(1) as f64;
        Row { rate, cpu, stolen: (wait - self.sched.1) as f64 / t.as_nanos() as f64 * 100.0, lat: Vec::new() }
    }
}

/// MB/s (or operations a second) of fio, and its worst completion in us.
fn fio(file: &str, job: &str, secs: u64, mib: u64, ops: bool) -> (f64, f64) {
    let mut args: Vec<String> = job.split(' ').map(|a| format!("--{a}")).collect();
    args.extend(["--name=raw", "--ioengine=io_uring", "--direct=1", "--output-format=terse"].map(String::from));
    args.extend([format!("--filename={file}"), format!("--size={mib}m")]);
    if secs > 0 {
        args.extend(["--time_based".into(), format!("--runtime={secs}")]);
    }
    let out = Command::new("fio").args(&args).output().expect("fio runs");
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    let f: Vec<f64> = text.trim().split(';').map(|w| w.trim_end_matches('%').parse().unwrap_or(0.0)).collect();
    let at = if job.contains("write") { 41 } else { 0 };
    let get = |i: usize| f.get(i + at).copied().unwrap_or(0.0);
    (if ops { get(7) } else { get(6) * 1024.0 / 1e6 }, get(14))
}

struct Bench {
    rt: Rt,
    file: String,
    raw: Option<String>,
    args: BTreeMap<String, String>,
    pattern: Buf,
}

impl Bench {
    fn num(&self, key: &str, default: u64) -> u64 {
        self.args.get(key).and_then(|v| v.parse().ok()).unwrap_or(default)
    }
    fn opts(&self) -> EngineOpts {
        let mut opts = EngineOpts::for_memory(4 << 30);
        opts.arc_max = self.num("arc", 512) << 20;
        opts.txg.dirty_data_max = self.num("dirty", 256) << 20;
        opts
    }
    fn dev(&self) -> Result<Rc<dyn bdev::BlockDev>> {
        HostDev::open(&self.rt, &self.file, OpenOpts { write: true, ..OpenOpts::default() })
    }
    async fn create(&self) -> Result<Rc<Pool>> {
        let compression = self.args.get("compression").and_then(|v| v.parse().ok());
        let spec = PoolSpec {
            version: None,
            name: "bench".into(),
            devices: vec![DevSpec { dev: self.dev()?, is_disk: false }].into(),
            ashift: Some(12),
            features: ondisk::feature::features_of_2_1(),
            comment: None,
            fs_props: compression.map(|v: u64| ("compression".to_string(), PropValue::Num(v))).into_iter().collect(),
            init: Box::new(|_, _| Box::pin(async { Ok(()) })),
        };
        Pool::create(self.rt.clone(), spec, self.opts()).await
    }
    /// Exports and imports the pool, so that nothing is cached.
    async fn again(&self, pool: Rc<Pool>) -> Result<Rc<Pool>> {
        pool.export().await?;
        drop(pool);
        let found = scan(vec![self.dev()?]).await.swap_remove(0);
        Pool::import(self.rt.clone(), found, ImportOpts::default(), self.opts()).await
    }
    async fn make(&self, os: &Objset, blksz: u64) -> Result<Dnode> {
        let tx = TxPlan::new(os).create(1).assign().await?;
        os.alloc(ObjSpec::new(ObjectType::PLAIN_FILE, blksz as u32), &tx).await
    }
    /// Writes `n` blocks in order. The one copy is that of the client's data into the engine's
    /// memory.
    async fn fill(&self, os: &Objset, dn: &Dnode, n: u64, size: u64) -> Result<()> {
        for i in 0..n {
            let mut b = Buf::for_overwrite(size as usize);
            let from = (i % 61 * 64) as usize;
            b.copy_from_slice(&self.pattern[from..from + size as usize]);
            b[..8].copy_from_slice(&i.to_le_bytes());
            let tx = TxPlan::new(os).write(dn, i * size, size).assign().await?;
            dn.write_bytes(i * size, b.freeze(), &tx).await?;
            drop(tx);
            self.rt.yield_now().await;
        }
        Ok(())
    }
    async fn seq_write(&self, pool: &Pool, old: &mut Option<ObjectId>) -> Result<Row> {
        let os = pool.dsl().find("bench")?.objset().await?;
        if let Some(obj) = old.take() {
            let dn = os.hold(obj).await?;
            let tx = TxPlan::new(&os).free(&dn).assign().await?;
            os.free(obj, &tx).await?;
            drop((tx, dn));
        }
        let dn = self.make(&os, BIG).await?;
        for _ in 0..4 {
            pool.sync().await?;
        }
        *old = Some(dn.object());
        let n = self.num("mib", 1024) << 20 >> 17;
        let clock = Clock::start();
        self.fill(&os, &dn, n, BIG).await?;
        pool.sync().await?;
        Ok(clock.row(n, Some(BIG)))
    }
    async fn seq_read(&self, pool: &Pool, obj: ObjectId) -> Result<Row> {
        let os = pool.dsl().find("bench")?.objset().await?;
        let dn = os.hold(obj).await?;
        let n = dn.max_blkid() + 1;
        let clock = Clock::start();
        for i in 0..n {
            let parts = dn.read_range(i * BIG, BIG).await?;
            assert!(parts[0][..8] == i.to_le_bytes(), "block {i} has the content of another");
        }
        Ok(clock.row(n, Some(BIG)))
    }
    /// `TASKS` tasks do `op` on blocks until `secs` or `max` operations are over.
    async fn tasks<F: Future<Output = Result<()>> + 'static>(
        &self,
        secs: u64,
        max: u64,
        op: impl Fn(u64) -> F + Clone + 'static,
    ) -> Result<(u64, Vec<u32>)> {
        let (lat, next) = (Rc::new(RefCell::new(Vec::new())), Rc::new(Cell::new(0u64)));
        let end = Instant::now() + Duration::from_secs(secs);
        let mut tasks = Vec::new();
        for _ in 0..TASKS {
            let (op, lat, next, rt) = (op.clone(), lat.clone(), next.clone(), self.rt.clone());
            tasks.push(self.rt.spawn("bench", async move {
                loop {
                    let i = next.get();
                    let start = Instant::now();
                    if i >= max || start > end {
                        return Ok(());
                    }
                    next.set(i + 1);
                    op(i).await?;
                    lat.borrow_mut().push(start.elapsed().as_micros() as u32);
                    rt.yield_now().await;
                }
            }));
        }
        for t in tasks {
            let r: Result<()> = t.await;
            r?;
        }
        let mut lat = lat.take();
        lat.sort_unstable();
        Ok((lat.len() as u64, lat))
    }
    async fn rand_read(&self, pool: &Pool, obj: ObjectId) -> Result<Row> {
        let os = pool.dsl().find("bench")?.objset().await?;
        let dn = os.hold(obj).await?;
        let n = dn.max_blkid() + 1;
        let clock = Clock::start();
        // Every block at most once, in an order that jumps.
        let (_, lat) = self
            .tasks(self.num("readsecs", 4), n, move |i| {
                let dn = dn.clone();
                async move {
                    let at = i * 48271 % n;
                    let parts = dn.read_range(at * SMALL, SMALL).await?;
                    assert!(parts[0].len() == SMALL as usize);
                    Ok(())
                }
            })
            .await?;
        let row = clock.row(lat.len() as u64, None);
        Ok(Row { lat, ..row })
    }
    async fn overwrite(&self, pool: &Pool, obj: ObjectId) -> Result<Row> {
        let os = pool.dsl().find("bench")?.objset().await?;
        let dn = os.hold(obj).await?;
        let n = dn.max_blkid() + 1;
        let (rt, pattern) = (self.rt.clone(), Rc::new(self.pattern.clone()));
        let clock = Clock::start();
        let (_, lat) = self
            .tasks(self.num("secs", 60), u64::MAX, move |_| {
                let (dn, os, at, pattern) = (dn.clone(), os.clone(), rt.rng_below(n), pattern.clone());
                async move {
                    let from = (at % 1021 * 8) as usize;
                    let tx = TxPlan::new(&os).write(&dn, at * SMALL, SMALL).assign().await?;
                    dn.write(at * SMALL, &pattern[from..from + SMALL as usize], &tx).await
                }
            })
            .await?;
        pool.sync().await?;
        let row = clock.row(lat.len() as u64, None);
        Ok(Row { lat, ..row })
    }
    async fn run(&self) -> Result<()> {
        let mib = self.num("mib", 1024);
        let rows = self.args.get("rows").cloned().unwrap_or("seqw,seqr,randr,over".into());
        let mut pool = self.create().await?;
        // The file of small records is larger than the cache.
        let os = pool.dsl().find("bench")?.objset().await?;
        let dn = self.make(&os, SMALL).await?;
        let blocks = mib.max(1024) << 20 >> 13;
        self.fill(&os, &dn, blocks, SMALL).await?;
        pool.sync().await?;
        let small = dn.object();
        // The device can be imported again only after all references to this pool are dropped.
        drop((dn, os));
        let mut big = None;
        if rows.contains("seqr") && !rows.contains("seqw") {
            self.seq_write(&pool, &mut big).await?;
        }
        let mut ratios: BTreeMap<&str, Vec<f64>> = BTreeMap::new();
        for round in 0..self.num("rounds", 3) {
            for name in ["seqw", "seqr", "randr", "over"] {
                if !rows.contains(name) {
                    continue;
                }
                pool = self.again(pool).await?;
                let (job, secs, ops) = match name {
                    "seqw" => ("rw=write bs=128k iodepth=8 end_fsync=1", 0, false),
                    "seqr" => ("rw=read bs=128k iodepth=8", 0, false),
                    "randr" => ("rw=randread bs=8k iodepth=8 norandommap", self.num("readsecs", 4), true),
                    _ => ("rw=randwrite bs=8k iodepth=8 norandommap", self.num("secs", 60), true),
                };
                let raw = self.raw.as_ref().map(|f| fio(f, job, secs, mib, ops));
                let row = match name {
                    "seqw" => self.seq_write(&pool, &mut big).await?,
                    "seqr" => self.seq_read(&pool, big.expect("it was written")).await?,
                    "randr" => self.rand_read(&pool, small).await?,
                    _ => self.overwrite(&pool, small).await?,
                };
                let unit = if ops { "/s" } else { " MB/s" };
                print!("{round} {name:5} {:7.0}{unit} cpu {:5.1} us", row.rate, row.cpu);
                print!(" an operation, {:2.0} % without a core", row.stolen);
                if let Some((raw, worst)) = raw {
                    print!("; raw {raw:7.0}{unit} (worst {:.1} ms); ratio {:.2}", worst / 1e3, row.rate / raw);
                    ratios.entry(name).or_default().push(row.rate / raw);
                }
                if let Some(&max) = row.lat.last() {
                    let p = |q: f64| row.lat[((row.lat.len() - 1) as f64 * q) as usize];
                    print!("; us p50 {} p99 {} p99.9 {} p99.99 {} max {max}", p(0.5), p(0.99), p(0.999), p(0.9999));
                }
                if name == "over" {
                    let (s, ms) = (pool.txg().stats(), |n: u64| n / 1_000_000);
                    print!(
                        "; delayed {} for {} ms, blocked {}, txgs {}",
                        s.delayed,
                        ms(s.delayed_time.0),
                        s.blocked,
                        s.synced
                    );
                }
                let (mib, arena) = (|n: usize| n >> 20, bdev::arena_stats());
                println!(
                    "; MiB arc {} live {} used {} reserve {} rss {} peak {}",
                    pool.arc().stats().size >> 20,
                    mib(arena.live),
                    mib(arena.used),
                    mib(arena.reserve),
                    status("VmRSS"),
                    status("VmHWM")
                );
            }
        }
        for (name, mut r) in ratios {
            r.sort_unstable_by(f64::total_cmp);
            println!("median ratio {name}: {:.2} of {r:.2?}", r[r.len() / 2]);
        }
        pool.export().await
    }
}

fn main() -> Result<()> {
    let mut args = std::env::args().skip(1);
    let file = args.next().expect("a file");
    let args: BTreeMap<String, String> =
        args.filter_map(|a| a.split_once('=').map(|(k, v)| (k.to_string(), v.to_string()))).collect();
    let engine = Engine::new(EngineConfig::default())?;
    let rt = engine.rt();
    // Does not compress.
    let mut pattern = Buf::zeroed(256 << 10);
    let mut x = 1u64;
    for c in pattern.chunks_exact_mut(8) {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        c.copy_from_slice(&x.wrapping_mul(0x2545_f491_4f6c_dd1d).to_le_bytes());
    }
    let gap = Rc::new(Cell::new(0u128));
    if args.contains_key("turns") {
        let (gap, rt) = (gap.clone(), rt.clone());
        rt.clone().spawn("ticker", async move {
            loop {
                let start = Instant::now();
                rt.yield_now().await;
                gap.set(gap.get().max(start.elapsed().as_micros()));
            }
        });
    }
    let bench = Bench { rt, file, raw: args.get("raw").cloned(), args, pattern };
    let r = engine.block_on(bench.run());
    if gap.get() > 0 {
        println!("longest round of turns: {} us", gap.get());
    }
    r
}
