//! A pool that the engine wrote and aged, in the simulator: the plan finds the file in pieces and
//! says how fast it is read, and after the engine rewrote it it has fewer runs and is read faster.
#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::rc::Rc;

use base::{Nanos, ObjectId};
use bdev::Buf;
use defrag::{Goal, Opts};
use serde_json::Value;
use sim::{DiskConfig, DiskImage, Model, Pick, Rng, Sim, SimConfig, SimDisk};
use spa::{Bias, DevSpec, EngineOpts, Group, GroupKind, Layout, Pool, PoolSpec};
use zdb::device::{Device, Labeled, ReadAt};
use zdb::{OpenOpts, PoolReader};
use zpl::{Cred, FsCreateProps, InitOwner, MountOpts, Zfs, init_fs};

/// Bytes of the disk.
const SIZE: u64 = 768 << 20;
/// Bytes of a record.
const RECORD: u64 = 16 << 10;
/// Memory that is too little to cache the file.
const CACHE: u64 = 32 << 20;

/// A modelled disk as `zdb` reads it.
struct Image(DiskImage);

impl ReadAt for Image {
    fn read_at(&self, off: u64, buf: &mut [u8]) -> std::io::Result<()> {
        self.0.read(off, buf);
        Ok(())
    }
}

struct World {
    _pool: Rc<Pool>,
    fs: Rc<Zfs>,
    disk: SimDisk,
    sim: Sim,
}

impl World {
    fn new() -> World {
        let config =
            SimConfig { physmem: 2 << 30, pick: Pick::Fifo, polls_per_instant_max: u64::MAX, ..SimConfig::seeded(1) };
        let sim = Sim::new(config);
        let disk = DiskConfig { volatile: false, ..DiskConfig::new(DiskImage::zeroed(SIZE), Model::hdd(), 1) };
        let disk = SimDisk::with(&sim.handle(), disk);
        let mut opts = EngineOpts::for_memory(2 << 30);
        opts.arc_max = CACHE;
        opts.txg.dirty_data_max = 16 << 20;
        let devices = vec![DevSpec { dev: disk.dev(), is_disk: false }];
        let groups = vec![Group { kind: GroupKind::Single, bias: Bias::Normal, devices }];
        let prop =
            |(name, value): (&str, &str)| (name.to_owned(), dsl::props::find(name).unwrap().parse(value).unwrap());
        let init = InitOwner { uid: 0, gid: 0, mode: 0o755, time: sim.rt().wall_clock() };
        let spec = PoolSpec {
            name: "lab".into(),
            devices: Layout { groups, ..Layout::default() },
            ashift: Some(12),
            features: ondisk::feature::default_features(),
            comment: None,
            fs_props: [("compression", "off"), ("atime", "off"), ("recordsize", "16k")].map(prop).into(),
            init: init_fs(init, FsCreateProps::default()),
        };
        let (pool, fs) = sim.block_on(async {
            let pool = Pool::create(sim.rt(), spec, opts).await.unwrap();
            let ds = pool.dsl().find("lab").unwrap();
            let fs = Zfs::open(&ds, MountOpts::from_props(&ds)).await.unwrap();
            (pool, fs)
        });
        World { _pool: pool, fs, disk, sim }
    }

    /// A file of so many records, each of which was overwritten once or twice in random order.
    fn aged(&self, name: &str, records: u64) -> ObjectId {
        self.sim.block_on(async {
            let file =
                self.fs.create(self.fs.root(), name.as_bytes(), 0o644, &Cred::new(0, 0), true).await.unwrap().obj;
            let mut rng = Rng::stream(3, 0);
            let data = || vec![Buf::zeroed(RECORD as usize).freeze()];
            for n in 0..records {
                self.fs.write(file, n * RECORD, data(), false).await.unwrap();
            }
            for _ in 0..records {
                self.fs.write(file, rng.below(records) * RECORD, data(), false).await.unwrap();
            }
            self.fs.sync_all().await.unwrap();
            file
        })
    }

    /// The plan for the pool as it is on disk.
    fn plan(&self, opts: &Opts) -> Value {
        let image = self.disk.image();
        let device = Device::over(Path::new("disk"), image.size(), Box::new(Image(image)));
        let pool = PoolReader::from_devices(vec![Labeled::scan(Rc::new(device))], &OpenOpts::default()).unwrap();
        defrag::plan(&pool, opts, &mut |_| {}).unwrap().json()
    }

    /// The time in which the file is read from begin to end.
    fn read(&self, file: ObjectId, records: u64) -> Nanos {
        let begin = self.sim.now();
        self.sim.block_on(async {
            for n in 0..records * RECORD / (128 << 10) {
                self.fs.read(file, n * (128 << 10), 128 << 10).await.unwrap();
            }
        });
        self.sim.now().since(begin)
    }
}

#[test]
fn a_rewritten_file_has_fewer_runs() {
    let world = World::new();
    // About half of the pool: the rest is what aging and rewriting go to.
    let records = (SIZE / 2) / RECORD;
    let file = world.aged("file", records);
    let before = world.plan(&Opts::default());
    let row = &before["files"][0];
    assert_eq!((row["object"].as_u64(), row["path"].as_str()), (Some(file.0), Some("/file")), "{before:#}");
    let [runs, after] = ["runs", "runs_after"].map(|k| row[k].as_u64().unwrap());
    assert!(runs > records / 4 && after * 4 < runs, "{runs} runs, {after} after");
    assert_eq!(before["held_bytes"].as_u64(), Some(0));
    let measured_before = world.read(file, records);

    world.sim.block_on(async {
        world.fs.rewrite(file, 0, records * RECORD).await.unwrap();
        world.fs.sync_all().await.unwrap();
    });
    let measured_after = world.read(file, records);
    let then = world.plan(&Opts { min_gain: 0, ..Opts::default() });
    let total = then["pool_files"]["runs"].as_u64().unwrap();
    assert!(total < runs / 2, "{total} runs of {runs} are left");
    // Virtual time, the same on every machine.
    let predicted = ["now_ns", "after_ns"].map(|k| before["read"][k].as_u64().unwrap() as f64);
    let share = predicted[0] / measured_before.0 as f64;
    let after_share = predicted[1] / measured_after.0 as f64;
    let planned = row["runs_after"].as_u64().unwrap();
    eprintln!(
        "read: {share:.2} of what is measured, {after_share:.2} after; runs: {runs}, {planned} planned, {total} after"
    );
    assert!((0.75..1.25).contains(&share), "predicted {share:.2} of the time that was measured");
    assert!(measured_after.0 * 4 < measured_before.0 && predicted[1] * 4.0 < predicted[0]);
}

#[test]
fn the_goal_of_space_and_limits() {
    let world = World::new();
    let records = (SIZE / 4) / RECORD;
    world.aged("file", records);
    let none = world.plan(&Opts { bytes: 1 << 20, disk: None, ..Opts::default() });
    assert_eq!((none["files"].as_array().unwrap().len(), none["left_out"]["beyond_limit"].as_u64()), (0, Some(1)));
    assert!(none["read"].is_null());
    let space = world.plan(&Opts { goal: Goal::Space, min_gain: 0, ..Opts::default() });
    assert_eq!(space["goal"].as_str(), Some("space"));
}
