//! Worlds, disks and pools for a seed.

use std::cell::RefCell;
use std::rc::Rc;

use base::{Nanos, Result};
use dsl::props::PropValue;
use ondisk::feature::FeatureId;
use sim::{DiskConfig, DiskImage, Model, Rng, Sim, SimConfig, SimDisk};
use spa::{Bias, DevSpec, EngineOpts, Group, GroupKind, ImportOpts, Pool, PoolCandidate, PoolSpec};
use zpl::{FsCreateProps, InitOwner, init_fs};

use crate::Check;

/// The name of every pool here.
pub const POOL: &str = "lab";

/// How devices stand together.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// Its name.
    pub name: &'static str,
    /// Top-level vdevs: kind, purpose, devices. None: all devices are striped.
    pub groups: &'static [(GroupKind, Bias, usize)],
    /// Hot spares.
    pub spares: usize,
    /// Cache devices.
    pub caches: usize,
}

impl Shape {
    /// Whether weir's checker reads pools of that shape: it does not read draid.
    pub(crate) fn is_read_by_checker(&self) -> bool {
        !self.groups.iter().any(|g| matches!(g.0, GroupKind::Draid { .. }))
    }
}

pub(crate) const fn shape(name: &'static str, groups: &'static [(GroupKind, Bias, usize)]) -> Shape {
    Shape { name, groups, spares: 0, caches: 0 }
}

/// Every shape that pools are made in.
pub const SHAPES: &[Shape] = &[
    shape("stripe", &[]),
    shape("mirror", &[(GroupKind::Mirror, Bias::Normal, 2)]),
    shape("mirrors", &[(GroupKind::Mirror, Bias::Normal, 2), (GroupKind::Mirror, Bias::Normal, 3)]),
    shape("raidz1", &[(GroupKind::Raidz(1), Bias::Normal, 3)]),
    shape("raidz2", &[(GroupKind::Raidz(2), Bias::Normal, 5)]),
    shape("raidz3", &[(GroupKind::Raidz(3), Bias::Normal, 5)]),
    shape("raidz-two", &[(GroupKind::Raidz(1), Bias::Normal, 4), (GroupKind::Raidz(2), Bias::Normal, 4)]),
    shape("draid", &[(GroupKind::Draid { parity: 1, data: Some(2), spares: 1 }, Bias::Normal, 5)]),
    shape("draid2", &[(GroupKind::Draid { parity: 2, data: Some(4), spares: 1 }, Bias::Normal, 9)]),
    shape("log", &[(GroupKind::Single, Bias::Normal, 1), (GroupKind::Mirror, Bias::Log, 2)]),
    shape(
        "special",
        &[
            (GroupKind::Raidz(1), Bias::Normal, 3),
            (GroupKind::Mirror, Bias::Special, 2),
            (GroupKind::Single, Bias::Dedup, 1),
        ],
    ),
    Shape { name: "beside", groups: &[(GroupKind::Mirror, Bias::Normal, 2)], spares: 1, caches: 1 },
];

/// The shape of a seed, if none is named.
pub fn shape_of(seed: u64) -> &'static Shape {
    &SHAPES[seed as usize % SHAPES.len()]
}

/// Every feature that weir writes.
pub fn all_features() -> Vec<FeatureId> {
    ondisk::feature::FEATURES.iter().filter(|f| f.may_be_enabled()).map(|f| f.id).collect()
}

/// The devices and limits of a pool.
#[derive(Clone, Debug)]
pub struct Layout {
    /// Bytes of each device.
    pub devices: Vec<u64>,
    /// How they stand together.
    pub shape: &'static Shape,
    /// log2 of the allocation unit.
    pub ashift: u8,
    /// Features to enable.
    pub features: Vec<FeatureId>,
    /// A version from before feature flags.
    pub version: Option<u64>,
    /// `zfs_dirty_data_max`.
    pub dirty_max: u64,
    /// `zfs_arc_max`.
    pub arc_max: u64,
    /// `zfs_txg_timeout`.
    pub txg_timeout: Nanos,
    /// The mappings of removed vdevs are condensed although they are short, with that wait after
    /// each entry.
    pub condenses: Option<Nanos>,
}

impl Layout {
    /// A layout drawn from the seed; the devices have `size` bytes together, or the least that
    /// there can be.
    pub fn draw(rng: &mut Rng, size: u64) -> Layout {
        const MIN: u64 = 64 << 20;
        let count = match rng.below(6) {
            0 => 3,
            1 | 2 => 2,
            _ => 1,
        };
        let each = (size / count).max(MIN);
        let devices = (0..count).map(|_| (each + rng.below(1 << 22)) & !4095).collect();
        let mut features = ondisk::feature::features_of_2_1();
        if rng.percent(15) {
            // A pool with a few of them, as `-d -o feature@x=enabled` makes it.
            features.retain(|_| rng.percent(50));
        }
        Layout {
            devices,
            shape: &SHAPES[0],
            ashift: if rng.percent(50) { 9 } else { 12 },
            features,
            version: None,
            dirty_max: [2 << 20, 8 << 20, 64 << 20][rng.below(3) as usize],
            arc_max: [1 << 20, 16 << 20, 256 << 20][rng.below(3) as usize],
            txg_timeout: Nanos::from_secs(5),
            condenses: None,
        }
    }
    /// The same with devices that stand together in that shape.
    pub fn shaped(mut self, shape: &'static Shape, rng: &mut Rng) -> Layout {
        if shape.groups.is_empty() {
            return self;
        }
        let count = shape.groups.iter().map(|g| g.2).sum::<usize>() + shape.spares + shape.caches;
        // A draid keeps some rows of its devices back.
        let draid = shape.groups.iter().any(|g| matches!(g.0, GroupKind::Draid { .. }));
        let least: u64 = if draid { 100 << 20 } else { 64 << 20 };
        self.devices = (0..count).map(|_| (least + rng.below(1 << 24)) & !4095).collect();
        self.shape = shape;
        self
    }
    /// The limits as the engine takes them.
    pub fn opts(&self) -> EngineOpts {
        let mut opts = EngineOpts::for_memory(1 << 30);
        opts.arc_max = self.arc_max;
        opts.txg.dirty_data_max = self.dirty_max;
        opts.txg.wrlog_data_max = self.dirty_max * 2;
        opts.txg.txg_timeout = self.txg_timeout;
        // Many chunks and copies, and scrubs when a test begins them.
        opts.removal.max_segment = 128 << 10;
        opts.removal.max_copy_bytes = 64 << 10;
        if let Some(entry_delay) = self.condenses {
            (opts.condense.obsolete_pct, opts.condense.min_mapping_bytes) = (2, 1);
            opts.condense.entry_delay = entry_delay;
        }
        opts.expand.max_copy_bytes = self.dirty_max >> 4;
        opts.expand.scrub_after = false;
        opts.rebuild.scrub_after = false;
        opts.rebuild.max_segment = 64 << 10;
        // Every range that is freed is trimmed, soon.
        opts.works.trim_bytes_min = 0;
        opts.works.trim_txg_batch = 2;
        // Caches of this size keep what they have over an import, and get it soon.
        opts.l2.rebuild_min_size = 0;
        opts.l2.feed_interval = Nanos::from_ms(20);
        if self.features.contains(&FeatureId::LargeMicrozap) {
            opts.dmu.zap_micro_max = ondisk::zap::MICRO_MAX_LARGE as u32;
        }
        opts
    }
}

/// A world with disks.
pub struct Lab {
    /// The world.
    pub sim: Sim,
    /// Its disks.
    pub disks: Vec<SimDisk>,
    /// Disks that imports do not find.
    pub away: RefCell<Vec<usize>>,
    /// Whether its pools have the property `autotrim`.
    pub autotrim: bool,
}

/// These properties, and that what is written takes its space and every reading changes the access
/// time, unless they say otherwise.
pub fn plain(mut props: Vec<(String, PropValue)>) -> Vec<(String, PropValue)> {
    for (name, value) in [("compression", codec::CompressAlgo::Off as u64), ("relatime", 0)] {
        if props.iter().all(|(other, _)| other != name) {
            props.push((name.into(), PropValue::Num(value)));
        }
    }
    props
}

fn world(seed: u64) -> Sim {
    Sim::new(SimConfig::seeded(seed))
}

impl Lab {
    /// A world with empty disks.
    pub fn new(seed: u64, layout: &Layout) -> Lab {
        Lab::with_images(seed, layout.devices.iter().map(|size| DiskImage::zeroed(*size)).collect(), true)
    }
    /// A world with these disks.
    pub fn with_images(seed: u64, images: Vec<DiskImage>, writable: bool) -> Lab {
        Lab::with_disks(seed, images, writable, true)
    }
    /// The same for a pool whose space maps may be wrong, so that two writes to one place may be in
    /// flight.
    pub fn with_hostile_images(seed: u64, images: Vec<DiskImage>) -> Lab {
        Lab::with_disks(seed, images, true, false)
    }
    fn with_disks(seed: u64, images: Vec<DiskImage>, writable: bool, panic_on_overlap: bool) -> Lab {
        let sim = world(seed);
        // Both ways of making log blocks durable: all disks do so with single writes, none does,
        // some do.
        let mut durably = Rng::stream(seed, 0xd5);
        let some = durably.below(3);
        let disks = images
            .into_iter()
            .enumerate()
            .map(|(n, image)| {
                let mut config = DiskConfig::new(image, Model::random(), seed.wrapping_mul(31).wrapping_add(n as u64));
                config.name = format!("disk{n}.img");
                config.writable = writable;
                // Two writes of one place at a time, or a read beside a write, are always a mistake
                // of the engine.
                config.panic_on_overlap = panic_on_overlap;
                config.writes_durably = some == 0 || some == 1 && durably.percent(50);
                SimDisk::with(&sim.handle(), config)
            })
            .collect();
        // Both, since what was trimmed too early is found by the next reading only.
        Lab {
            sim,
            disks,
            away: RefCell::default(),
            autotrim: seed.is_multiple_of(2) && std::env::var_os("NOTRIM").is_none(),
        }
    }
    /// The same disks in a new world.
    pub fn reborn(&self, seed: u64) -> Lab {
        Lab::with_images(seed, self.images(), true)
    }
    /// The content of the disks.
    pub fn images(&self) -> Vec<DiskImage> {
        self.disks.iter().map(SimDisk::image).collect()
    }
    /// Makes a pool on the disks, with the properties of [`plain`].
    pub async fn create(&self, layout: &Layout, fs_props: Vec<(String, PropValue)>) -> Result<Rc<Pool>> {
        let fs_props = plain(fs_props);
        let mut devices = self.disks.iter().map(|d| DevSpec { dev: d.dev(), is_disk: false });
        let mut take = |n: usize| devices.by_ref().take(n).collect::<Vec<DevSpec>>();
        let devices = match layout.shape.groups {
            [] => take(usize::MAX).into(),
            groups => spa::Layout {
                groups: groups.iter().map(|&(kind, bias, n)| Group { kind, bias, devices: take(n) }).collect(),
                spares: take(layout.shape.spares),
                caches: take(layout.shape.caches),
            },
        };
        let spec = PoolSpec {
            version: layout.version,
            name: POOL.into(),
            devices,
            ashift: Some(layout.ashift),
            features: layout.features.clone(),
            comment: None,
            fs_props,
            init: new_fs(&self.sim),
        };
        let pool = Pool::create(self.sim.rt(), spec, layout.opts()).await?;
        pool.set_autotrim(self.autotrim);
        Ok(pool)
    }
    /// Imports the pool that is on the disks.
    pub async fn import(&self, readonly: bool, opts: EngineOpts) -> Result<Rc<Pool>> {
        self.import_as(ImportOpts { readonly, ..ImportOpts::default() }, opts).await
    }
    /// The same in a particular way.
    pub async fn import_as(&self, how: ImportOpts, opts: EngineOpts) -> Result<Rc<Pool>> {
        let pool = Pool::import(self.sim.rt(), self.find().await?, how, opts).await?;
        pool.set_autotrim(self.autotrim);
        Ok(pool)
    }
    /// Starts the logs of all disks, of a pool that has written everything and does nothing.
    pub async fn start_logs(&self, pool: &Pool) -> Check {
        pool.set_autotrim(false);
        pool.devices().works().autotrim_ends().await;
        // A txg may begin to sync by itself at any time.
        loop {
            pool.sync().await.map_err(|e| format!("sync: {e:?}"))?;
            for disk in &self.disks {
                bdev::flush(disk).await.map_err(|e| format!("flush: {e:?}"))?;
            }
            if self.disks.iter().all(SimDisk::is_settled) {
                break;
            }
        }
        self.disks.iter().for_each(SimDisk::start_log);
        pool.set_autotrim(self.autotrim);
        Ok(())
    }
    /// The pool that is on the disks.
    pub async fn find(&self) -> Result<PoolCandidate> {
        let away = self.away.borrow().clone();
        let there = (0..).zip(&self.disks).filter(|(i, _)| !away.contains(i));
        let devices = there.map(|(_, d)| d.dev()).collect();
        let mut found = spa::scan(devices).await;
        if found.is_empty() {
            return Err(base::Error::not_found("no pool is on the disks"));
        }
        Ok(found.remove(0))
    }
}

/// The initial content of a new file system here: a root directory of mode 755 that belongs to
/// root.
pub fn new_fs(sim: &sim::SimHandle) -> dsl::Init {
    let time = sim.rt().wall_clock();
    init_fs(InitOwner { uid: 0, gid: 0, mode: 0o755, time }, FsCreateProps::default())
}
