//! Worlds, disks and pools for a seed.

use std::rc::Rc;

use base::{Nanos, Result};
use dsl::props::PropValue;
use ondisk::feature::FeatureId;
use sim::{DiskConfig, DiskImage, Model, Rng, Sim, SimConfig, SimDisk};
use spa::{DevSpec, EngineOpts, ImportOpts, Pool, PoolSpec};
use zpl::{FsCreateProps, InitOwner, init_fs};

/// The name of every pool here.
pub const POOL: &str = "lab";

/// What the devices and limits of a pool are like.
#[derive(Clone, Debug)]
pub struct Layout {
    /// Bytes of each top-level device.
    pub devices: Vec<u64>,
    /// log2 of the allocation unit.
    pub ashift: u8,
    /// Features to enable.
    pub features: Vec<FeatureId>,
    /// `zfs_dirty_data_max`.
    pub dirty_max: u64,
    /// `zfs_arc_max`.
    pub arc_max: u64,
    /// `zfs_txg_timeout`.
    pub txg_timeout: Nanos,
}

impl Layout {
    /// A layout drawn from the seed; the devices have `size` bytes together, or the least that there can be.
    pub fn draw(rng: &mut Rng, size: u64) -> Layout {
        const MIN: u64 = 64 << 20;
        let count = match rng.below(6) {
            0 => 3,
            1 | 2 => 2,
            _ => 1,
        };
        let each = (size / count).max(MIN);
        let devices = (0..count).map(|_| (each + rng.below(1 << 22)) & !4095).collect();
        let mut features = ondisk::feature::default_features();
        if rng.percent(15) {
            // A pool with a few of them, as `-d -o feature@x=enabled` makes it.
            features.retain(|_| rng.percent(50));
        }
        Layout {
            devices,
            ashift: if rng.percent(50) { 9 } else { 12 },
            features,
            dirty_max: [2 << 20, 8 << 20, 64 << 20][rng.below(3) as usize],
            arc_max: [1 << 20, 16 << 20, 256 << 20][rng.below(3) as usize],
            txg_timeout: Nanos::from_secs(5),
        }
    }
    /// The limits as the engine takes them.
    pub fn opts(&self) -> EngineOpts {
        let mut opts = EngineOpts::for_memory(1 << 30);
        opts.arc_max = self.arc_max;
        opts.txg.dirty_data_max = self.dirty_max;
        opts.txg.wrlog_data_max = self.dirty_max * 2;
        opts.txg.txg_timeout = self.txg_timeout;
        opts
    }
}

/// A world with disks.
pub struct Lab {
    /// The world.
    pub sim: Sim,
    /// Its disks.
    pub disks: Vec<SimDisk>,
}

fn world(seed: u64) -> Sim {
    // Work that is not divided fine enough is a matter of speed, not of correctness.
    Sim::new(SimConfig { poll_charge_max: None, ..SimConfig::seeded(seed) })
}

impl Lab {
    /// A world with empty disks.
    pub fn new(seed: u64, layout: &Layout) -> Lab {
        Lab::with_images(seed, layout.devices.iter().map(|size| DiskImage::zeroed(*size)).collect(), true)
    }
    /// A world with these disks.
    pub fn with_images(seed: u64, images: Vec<DiskImage>, writable: bool) -> Lab {
        let sim = world(seed);
        let disks = images
            .into_iter()
            .enumerate()
            .map(|(n, image)| {
                let mut config = DiskConfig::new(image, Model::random(), seed.wrapping_mul(31).wrapping_add(n as u64));
                config.name = format!("disk{n}.img");
                config.writable = writable;
                // Two writes of one place at a time, or a read beside a write, are always a mistake of the engine.
                config.panic_on_overlap = true;
                SimDisk::with(&sim.handle(), config)
            })
            .collect();
        Lab { sim, disks }
    }
    /// The same disks in a new world.
    pub fn reborn(&self, seed: u64) -> Lab {
        Lab::with_images(seed, self.images(), true)
    }
    /// What is on the disks.
    pub fn images(&self) -> Vec<DiskImage> {
        self.disks.iter().map(SimDisk::image).collect()
    }
    /// Makes a pool on the disks.
    pub async fn create(&self, layout: &Layout, fs_props: Vec<(String, PropValue)>) -> Result<Rc<Pool>> {
        let spec = PoolSpec {
            name: POOL.into(),
            devices: self.disks.iter().map(|d| DevSpec { dev: d.dev(), is_disk: false }).collect(),
            ashift: Some(layout.ashift),
            features: layout.features.clone(),
            comment: None,
            fs_props,
            init: new_fs(&self.sim),
        };
        Pool::create(self.sim.rt(), spec, layout.opts()).await
    }
    /// Imports the pool that is on the disks.
    pub async fn import(&self, readonly: bool, opts: EngineOpts) -> Result<Rc<Pool>> {
        let devices = self.disks.iter().map(SimDisk::dev).collect();
        let mut found = spa::scan(devices).await;
        if found.is_empty() {
            return Err(base::Error::not_found("no pool is on the disks"));
        }
        let import = ImportOpts { readonly, ..ImportOpts::default() };
        Pool::import(self.sim.rt(), found.remove(0), import, opts).await
    }
}

/// What fills a new file system here: a root directory of mode 755 that belongs to root.
pub fn new_fs(sim: &sim::SimHandle) -> dsl::Init {
    let time = sim.rt().wall_clock();
    init_fs(InitOwner { uid: 0, gid: 0, mode: 0o755, time }, FsCreateProps::default())
}
