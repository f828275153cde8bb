//! Pools that the engine wrote and aged, in the simulator: the plan finds the files in pieces and
//! says how fast they are read now and when they are rewritten, and so they are.
#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::rc::Rc;

use base::ObjectId;
use bdev::Buf;
use defrag::{Goal, Opts};
use serde_json::Value;
use sim::{DiskConfig, DiskImage, Model, Pick, Rng, Sim, SimConfig, SimDisk};
use spa::{Bias, DevSpec, EngineOpts, Group, GroupKind, Layout, Pool, PoolSpec};
use zdb::device::{Device, Labeled, ReadAt};
use zdb::{OpenOpts, PoolReader};
use zpl::{Cred, FsCreateProps, InitOwner, MountOpts, Zfs, init_fs};

/// Memory that is too little to cache the file.
const CACHE: u64 = 32 << 20;
/// Most bytes of changes in memory.
const DIRTY: u64 = 16 << 20;
/// Bytes of a read of a program.
const READ: u64 = 128 << 10;

/// What to plan for the engine of these tests.
fn opts() -> Opts {
    Opts { dirty: DIRTY, ..Opts::default() }
}

/// A modelled disk as `zdb` reads it.
struct Image(DiskImage);

impl ReadAt for Image {
    fn read_at(&self, off: u64, buf: &mut [u8]) -> std::io::Result<()> {
        self.0.read(off, buf);
        Ok(())
    }
}

/// A pool to age.
#[derive(Clone, Copy, Debug)]
struct Case {
    /// Of all that is left to chance.
    seed: u64,
    /// Bytes of the disk.
    size: u64,
    /// How much of it the files take.
    percent: u64,
    /// Files.
    files: u64,
    /// Bytes of a record.
    record: u64,
}

impl Case {
    /// Records of a file.
    fn records(&self) -> u64 {
        self.size * self.percent / 100 / self.record / self.files
    }
}

struct World {
    case: Case,
    _pool: Rc<Pool>,
    fs: Rc<Zfs>,
    disk: SimDisk,
    sim: Sim,
}

impl World {
    fn new(case: Case) -> World {
        let seed = case.seed;
        let config = SimConfig {
            physmem: 2 << 30,
            pick: Pick::Fifo,
            polls_per_instant_max: u64::MAX,
            ..SimConfig::seeded(seed)
        };
        let sim = Sim::new(config);
        let disk = DiskConfig { volatile: false, ..DiskConfig::new(DiskImage::zeroed(case.size), Model::hdd(), seed) };
        let disk = SimDisk::with(&sim.handle(), disk);
        let mut opts = EngineOpts::for_memory(2 << 30);
        opts.arc_max = CACHE;
        opts.txg.dirty_data_max = DIRTY;
        let devices = vec![DevSpec { dev: disk.dev(), is_disk: false }];
        let groups = vec![Group { kind: GroupKind::Single, bias: Bias::Normal, devices }];
        let prop =
            |(name, value): (&str, &str)| (name.to_owned(), dsl::props::find(name).unwrap().parse(value).unwrap());
        let init = InitOwner { uid: 0, gid: 0, mode: 0o755, time: sim.rt().wall_clock() };
        let recordsize = case.record.to_string();
        let spec = PoolSpec {
            version: None,
            name: "lab".into(),
            devices: Layout { groups, ..Layout::default() },
            ashift: Some(12),
            features: ondisk::feature::default_features(),
            comment: None,
            fs_props: [("compression", "off"), ("atime", "off"), ("recordsize", &recordsize)].map(prop).into(),
            init: init_fs(init, FsCreateProps::default()),
        };
        let (pool, fs) = sim.block_on(async {
            let pool = Pool::create(sim.rt(), spec, opts).await.unwrap();
            let ds = pool.dsl().find("lab").unwrap();
            let fs = Zfs::open(&ds, MountOpts::from_props(&ds)).await.unwrap();
            (pool, fs)
        });
        World { case, _pool: pool, fs, disk, sim }
    }

    /// Files whose records were overwritten in random order, as many times as there are records.
    fn aged(&self) -> Vec<ObjectId> {
        let Case { seed, files, record, .. } = self.case;
        let records = self.case.records();
        self.sim.block_on(async {
            let mut all = Vec::new();
            let data = || vec![Buf::zeroed(record as usize).freeze()];
            for n in 0..files {
                let name = format!("file{n}");
                let made = self.fs.create(self.fs.root(), name.as_bytes(), 0o644, &Cred::new(0, 0), true).await;
                let file = made.unwrap().obj;
                for n in 0..records {
                    self.fs.write(file, n * record, data(), false).await.unwrap();
                }
                all.push(file);
            }
            let mut rng = Rng::stream(seed, 0);
            for _ in 0..files * records {
                let file = all[rng.below(files) as usize];
                self.fs.write(file, rng.below(records) * record, data(), false).await.unwrap();
            }
            self.fs.sync_all().await.unwrap();
            all
        })
    }

    /// The plan for the pool as it is on disk.
    fn plan(&self, opts: &Opts) -> Value {
        let image = self.disk.image();
        let device = Device::over(Path::new("disk"), image.size(), Box::new(Image(image)));
        let pool = PoolReader::from_devices(vec![Labeled::scan(Rc::new(device))], &OpenOpts::default()).unwrap();
        defrag::plan(&pool, opts, &mut |_| {}).unwrap().json()
    }

    /// Bytes a second of files that are read from begin to end, one after the other.
    fn read(&self, files: &[ObjectId]) -> f64 {
        let (begin, length) = (self.sim.now(), self.case.records() * self.case.record);
        self.sim.block_on(async {
            for &file in files {
                for n in 0..length / READ {
                    self.fs.read(file, n * READ, READ).await.unwrap();
                }
            }
        });
        (length * files.len() as u64) as f64 / self.sim.now().since(begin).as_secs_f64()
    }
}

/// Ages a pool, plans, rewrites the files of the plan in its order as `weir defrag run` does, and
/// compares what was predicted with what is measured in virtual time, the same on every machine.
fn aged_planned_and_rewritten(case: Case) {
    let world = World::new(case);
    let files = world.aged();
    // All files, whatever they are expected to gain: the prediction is tested, not the choice.
    let before = world.plan(&Opts { min_gain: 0, ..opts() });
    let rows = before["files"].as_array().unwrap();
    let planned: Vec<ObjectId> = rows.iter().map(|r| ObjectId(r["object"].as_u64().unwrap())).collect();
    assert_eq!(planned.len(), files.len(), "left out: {}", before["left_out"]);
    assert!(rows[0]["path"].as_str().unwrap().starts_with("/file"), "{before:#}");
    assert_eq!(before["held_bytes"].as_u64(), Some(0));
    let sum = |k: &str| rows.iter().map(|r| r[k].as_u64().unwrap()).sum::<u64>();
    let [runs, planned_runs] = ["runs", "runs_after"].map(sum);
    let rate = |k: &str| before["read"][k].as_u64().unwrap() as f64;

    let slow = world.read(&planned);
    world.sim.block_on(async {
        for &file in &planned {
            world.fs.rewrite(file, 0, 0).await.unwrap();
        }
        world.fs.sync_all().await.unwrap();
    });
    let fast = world.read(&planned);
    let after = world.plan(&Opts { min_gain: 0, disk: None, ..opts() });
    let left = after["pool_files"]["runs"].as_u64().unwrap();
    let shares = [rate("now_bytes_per_s") / slow, rate("after_bytes_per_s") / fast, planned_runs as f64 / left as f64];
    eprintln!(
        "{case:?}: {:.1} and {:.1} MB/s, {runs} and {left} runs; predicted over measured {shares:.2?}",
        slow / 1e6,
        fast / 1e6
    );
    let [now, then, _] = shares;
    assert!((0.75..1.25).contains(&now), "{now:.2} of the rate that was measured, {case:?}");
    assert!((0.75..1.25).contains(&then), "{then:.2} of the rate that was measured after it, {case:?}");
    assert!(left < runs * 3 / 4 && fast > 2.0 * slow, "{left} runs of {runs} are left");
}

/// Half of the pool, in small records.
#[test]
fn half_a_pool() {
    for seed in 1..=2 {
        aged_planned_and_rewritten(Case { seed, size: 768 << 20, percent: 50, files: seed, record: 16 << 10 });
    }
}

/// Four fifths of the pool.
#[test]
fn four_fifths_of_a_pool() {
    for seed in 3..=4 {
        aged_planned_and_rewritten(Case { seed, size: 2 << 30, percent: 80, files: 4, record: 32 << 10 });
    }
}

#[test]
fn the_goal_of_space_and_limits() {
    let world = World::new(Case { seed: 1, size: 768 << 20, percent: 25, files: 1, record: 16 << 10 });
    world.aged();
    let none = world.plan(&Opts { bytes: 1 << 20, disk: None, ..opts() });
    assert_eq!((none["files"].as_array().unwrap().len(), none["left_out"]["beyond_limit"].as_u64()), (0, Some(1)));
    assert!(none["read"].is_null());
    let space = world.plan(&Opts { goal: Goal::Space, min_gain: 0, ..opts() });
    assert_eq!(space["goal"].as_str(), Some("space"));
}
