//! A pool in memory that is mounted for a test.
#![allow(clippy::unwrap_used)]
#![allow(dead_code)] // Each test uses some of it.

use std::fs::{self, OpenOptions};
use std::path::{Path, PathBuf};
use std::rc::Rc;

use bdev::{BlockDev, MemDev};
use dsl::props::PropValue;
use fuse::{MountOpts, Mounted};
use host::{BackendChoice, Engine, EngineConfig, TempDir};
use ondisk::feature::FeatureId;
use spa::{DevSpec, EngineOpts, Pool, PoolSpec};
use zpl::{FsCreateProps, InitOwner, Zfs, init_fs};

/// Whether mounts can be made here: only root can without a helper.
pub fn can_mount() -> bool {
    let device = OpenOptions::new().read(true).write(true).open("/dev/fuse");
    let can = device.is_ok() && host::effective_uid() == 0;
    if !can {
        eprintln!("SKIPPED: no /dev/fuse that root may use: nothing was mounted, nothing was tested");
    }
    can
}

/// The mounted file system, and its options.
pub struct Setup {
    pub backend: BackendChoice,
    pub fs: FsCreateProps,
    pub mount: MountOpts,
    /// Properties of the pool's file system beside the usual ones, as numbers.
    pub props: &'static [(&'static str, u64)],
    /// Features of the pool beside the usual ones.
    pub features: &'static [FeatureId],
}

impl Default for Setup {
    fn default() -> Setup {
        Setup {
            backend: BackendChoice::Auto,
            fs: FsCreateProps::default(),
            mount: MountOpts::default(),
            props: &[],
            features: &[],
        }
    }
}

pub async fn mounted(rt: &rt::Rt, dir: &Path, setup: Setup) -> (Rc<Pool>, Rc<Zfs>, Rc<Mounted>) {
    let dev = Rc::new(MemDev::new(rt, 512 << 20));
    let mut props = vec![("xattr", 2), ("compression", 15), ("atime", 1), ("relatime", 1)];
    props.retain(|(k, _)| setup.props.iter().all(|(other, _)| k != other));
    props.extend(setup.props);
    let spec = PoolSpec {
        version: None,
        name: "tank".into(),
        devices: vec![DevSpec { dev: dev as Rc<dyn BlockDev>, is_disk: false }].into(),
        ashift: Some(12),
        features: ondisk::feature::features_of_2_1().into_iter().chain(setup.features.iter().copied()).collect(),
        comment: None,
        fs_props: props.iter().map(|(k, v)| (k.to_string(), PropValue::Num(*v))).collect(),
        init: init_fs(InitOwner { uid: 0, gid: 0, mode: 0o755, time: rt.wall_clock() }, setup.fs),
    };
    let mut opts = EngineOpts::for_memory(1 << 30);
    opts.arc_max = 64 << 20;
    let pool = Pool::create(rt.clone(), spec, opts).await.unwrap();
    let ds = pool.dsl().find("tank").unwrap();
    let zfs = Zfs::open(&ds, zpl::MountOpts::from_props(&ds)).await.unwrap();
    // Not the name of a pool: a daemon looks whether mounts of that name are dead, and they are
    // busy while it looks.
    let opts = MountOpts { fsname: "fuse-tests".into(), ..setup.mount };
    let m = fuse::mount(rt, zfs.clone(), dir, opts, None).await.unwrap();
    (pool, zfs, m)
}

/// Runs `client` on a thread of its own beside an engine that serves the mount it is given.
pub fn with_mount(setup: Setup, client: impl FnOnce(PathBuf) + Send + 'static) {
    with_mount_of(setup, client, |_| ());
}

/// The same, and `after` sees the pool once the file system is unmounted.
pub fn with_mount_of(setup: Setup, client: impl FnOnce(PathBuf) + Send + 'static, after: impl FnOnce(&Pool)) {
    if !can_mount() {
        return;
    }
    let dir = TempDir::new("fuse").unwrap();
    let engine = Engine::new(EngineConfig { backend: setup.backend, ..EngineConfig::default() }).unwrap();
    let rt = engine.rt();
    engine.block_on(async {
        let path = fs::canonicalize(dir.path()).unwrap();
        let (pool, zfs, m) = mounted(&rt, &path, setup).await;
        let theirs = path.clone();
        let result = host::blocking(move || std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| client(theirs))));
        let result = result.await.unwrap();
        let busy = m.unmount(false, false).await;
        if let Err(panic) = result {
            let _ = m.unmount(true, true).await;
            std::panic::resume_unwind(panic);
        }
        busy.unwrap();
        assert!(!m.is_alive());
        m.ended().await;
        m.unmount(false, false).await.unwrap();
        assert_eq!(m.stats().refused, 0);
        assert_eq!(zfs.open_objects(), 0, "what was opened was released");
        zfs.unmount().await.unwrap();
        after(&pool);
        pool.export().await.unwrap();
    });
}
