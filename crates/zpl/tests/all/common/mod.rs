//! A pool in memory with one file system.
#![allow(dead_code, clippy::unwrap_used)]

pub mod model;
pub mod rng;
pub mod workload;

use std::future::Future;
use std::rc::Rc;

use base::{ObjectId, WallTime};
use bdev::{BlockDev, Bytes, MemDev};
use dsl::props::PropValue;
use ondisk::feature::features_of_2_1;
use sim::{Sim, SimConfig};
use spa::{DevSpec, EngineOpts, ImportOpts, Pool, PoolSpec};
use zpl::{Cred, FsCreateProps, InitOwner, MountOpts, XattrMode, Zfs, init_fs};

pub const ROOT_CRED: Cred = Cred { uid: 0, gid: 0, groups: Vec::new(), umask: 0, fsetid: false };

/// The parameters of a test pool.
pub struct Setup {
    pub size: u64,
    pub props: Vec<(&'static str, u64)>,
    pub fs: FsCreateProps,
    pub opts: EngineOpts,
}

impl Default for Setup {
    fn default() -> Setup {
        Setup {
            size: 512 << 20,
            props: vec![("xattr", 2), ("compression", 15)],
            fs: FsCreateProps::default(),
            opts: opts(),
        }
    }
}

/// A pool and its simulated world.
pub struct World {
    pub rt: rt::Rt,
    pub dev: Rc<MemDev>,
    pub pool: Rc<Pool>,
    pub fs: Rc<Zfs>,
}

pub fn opts() -> EngineOpts {
    let mut opts = EngineOpts::for_memory(1 << 30);
    opts.arc_max = 64 << 20;
    opts
}

pub fn owner() -> InitOwner {
    InitOwner { uid: 0, gid: 0, mode: 0o755, time: WallTime { secs: 1_700_000_000, nanos: 5 } }
}

impl World {
    pub async fn new(rt: rt::Rt, setup: Setup) -> World {
        let dev = Rc::new(MemDev::new(&rt, setup.size));
        let spec = PoolSpec {
            version: None,
            name: "tank".into(),
            devices: vec![DevSpec { dev: dev.clone() as Rc<dyn BlockDev>, is_disk: false }].into(),
            ashift: Some(12),
            features: features_of_2_1(),
            comment: None,
            fs_props: setup.props.iter().map(|(k, v)| (k.to_string(), PropValue::Num(*v))).collect(),
            init: init_fs(owner(), setup.fs),
        };
        let pool = Pool::create(rt.clone(), spec, setup.opts).await.unwrap();
        let fs = mount(&pool).await;
        World { rt, dev, pool, fs }
    }

    /// Exports and imports the pool.
    pub async fn reimport(&mut self) {
        self.fs.unmount().await.unwrap();
        self.pool.export().await.unwrap();
        self.import().await;
    }

    pub async fn import(&mut self) {
        let mut found = spa::scan(vec![self.dev.clone() as Rc<dyn BlockDev>]).await;
        let import = ImportOpts { force: true, ..ImportOpts::default() };
        self.pool = Pool::import(self.rt.clone(), found.remove(0), import, opts()).await.unwrap();
        self.fs = mount(&self.pool).await;
    }

    /// Closes the file system and opens it again, in the same pool.
    pub async fn remount(&mut self) {
        self.fs.unmount().await.unwrap();
        self.fs = mount(&self.pool).await;
    }

    pub async fn file(&self, name: &str) -> ObjectId {
        self.fs.create(self.fs.root(), name.as_bytes(), 0o644, &ROOT_CRED, true).await.unwrap().obj
    }
    pub async fn dir(&self, parent: ObjectId, name: &str) -> ObjectId {
        self.fs.mkdir(parent, name.as_bytes(), 0o755, &ROOT_CRED).await.unwrap().obj
    }
    pub async fn write(&self, obj: ObjectId, off: u64, data: &[u8]) {
        let (n, _) = self.fs.write(obj, off, vec![Bytes::copy_from(data)], false).await.unwrap();
        assert_eq!(n, data.len() as u64);
    }
    pub async fn read(&self, obj: ObjectId, off: u64, len: u64) -> Vec<u8> {
        self.fs.read(obj, off, len).await.unwrap().iter().flat_map(|b| b.to_vec()).collect()
    }
    pub async fn set_xattr_mode(&self, xattr: XattrMode) {
        self.fs.set_opts(MountOpts { xattr, ..self.fs.opts() });
    }
}

pub async fn mount(pool: &Rc<Pool>) -> Rc<Zfs> {
    let ds = pool.dsl().find("tank").unwrap();
    let opts = MountOpts::from_props(&ds);
    Zfs::open(&ds, opts).await.unwrap()
}

/// Runs a test in virtual time.
pub fn run<F: Future<Output = ()>>(seed: u64, test: impl FnOnce(rt::Rt) -> F) {
    // How long a sync keeps the engine is not the matter here.
    let sim = Sim::new(SimConfig::seeded(seed));
    let rt = sim.rt();
    sim.block_on(test(rt));
}

/// Runs a test on a pool.
pub fn with_pool<F: Future<Output = ()>>(setup: Setup, test: impl FnOnce(World) -> F) {
    run(1, |rt| async move { test(World::new(rt, setup).await).await });
}
