//! Pools on modelled disks, for the tests of this crate and of `dsl` and `zil`.
#![allow(dead_code, clippy::unwrap_used)]

use std::rc::Rc;

use base::{Nanos, Result};
use dsl::Init;
use sim::{DiskConfig, DiskImage, Model, Sim, SimConfig, SimDisk};
use spa::{DevSpec, EngineOpts, ImportOpts, Layout, Pool, PoolCandidate, PoolSpec};
use zpl::{FsCreateProps, InitOwner, init_fs};

/// The name of the pool.
pub const POOL: &str = "tank";

/// A world with disks.
pub struct World {
    pub sim: Sim,
    pub disks: Vec<SimDisk>,
}

impl World {
    /// A world with `count` empty disks of 64 MiB.
    pub fn new(seed: u64, count: usize) -> World {
        World::with_sizes(seed, &vec![64 << 20; count])
    }

    /// The same with disks of these sizes.
    pub fn with_sizes(seed: u64, sizes: &[u64]) -> World {
        World::over(seed, sizes.iter().map(|n| DiskImage::zeroed(*n)).collect())
    }

    /// A world with disks of these contents.
    pub fn over(seed: u64, images: Vec<DiskImage>) -> World {
        let sim = Sim::new(SimConfig::seeded(seed));
        let disks = (0u64..).zip(images).map(|(n, image)| {
            let mut config = DiskConfig::new(image, Model::random(), seed.wrapping_mul(31).wrapping_add(n));
            config.name = format!("disk{n}.img");
            SimDisk::with(&sim.handle(), config)
        });
        World { disks: disks.collect(), sim }
    }

    /// The same disks after a restart of the machine.
    pub fn reborn(&self, seed: u64) -> World {
        World::over(seed, self.disks.iter().map(SimDisk::image).collect())
    }

    /// The disk `n` as a device of a new pool.
    pub fn dev(&self, n: usize) -> DevSpec {
        DevSpec { dev: self.disks[n].dev(), is_disk: false }
    }

    /// The content of a new file system.
    pub fn new_fs(&self) -> Init {
        let time = self.sim.rt().wall_clock();
        init_fs(InitOwner { uid: 0, gid: 0, mode: 0o755, time }, FsCreateProps::default())
    }

    /// A pool of that layout with the default features.
    pub async fn create_as(&self, devices: Layout) -> Result<Rc<Pool>> {
        let spec = PoolSpec {
            version: None,
            name: POOL.into(),
            devices,
            ashift: Some(12),
            features: ondisk::feature::features_of_2_1(),
            comment: None,
            fs_props: Vec::new(),
            init: self.new_fs(),
        };
        Pool::create(self.sim.rt(), spec, opts()).await
    }

    /// A pool striped over all disks.
    pub async fn create(&self) -> Rc<Pool> {
        let devices: Vec<DevSpec> = (0..self.disks.len()).map(|n| self.dev(n)).collect();
        self.create_as(devices.into()).await.unwrap()
    }

    /// The pool on those of the disks.
    pub async fn find(&self, disks: &[usize]) -> PoolCandidate {
        let mut found = spa::scan(disks.iter().map(|n| self.disks[*n].dev()).collect()).await;
        assert_eq!(found.len(), 1, "a pool is on the disks");
        found.remove(0)
    }

    /// Imports the pool from all disks.
    pub async fn import(&self, how: ImportOpts) -> Result<Rc<Pool>> {
        let all: Vec<usize> = (0..self.disks.len()).collect();
        Pool::import(self.sim.rt(), self.find(&all).await, how, opts()).await
    }
}

/// Limits of a small pool whose txgs are written on demand only.
pub fn opts() -> EngineOpts {
    let mut opts = EngineOpts::for_memory(1 << 30);
    opts.arc_max = 16 << 20;
    opts.txg.txg_timeout = Nanos::from_secs(3600);
    opts
}
