//! Mounts the root file system of a pool in a file until it is unmounted:
//! `cargo run -p openweir-fuse --example mount_fs -- create|import FILE DIR [MIB]`.

use std::path::Path;

use base::{Error, ErrorKind};
use dsl::props::PropValue;
use fuse::MountOpts;
use host::{Engine, EngineConfig, HostDev, OpenOpts};
use spa::{DevSpec, EngineOpts, ImportOpts, Pool, PoolSpec};
use zpl::{FsCreateProps, InitOwner, Zfs, init_fs};

fn main() -> base::Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [how, file, dir, rest @ ..] = &args[..] else {
        return Err(Error::invalid("usage: mount_fs create|import FILE DIR [MIB]"));
    };
    let mib: u64 = rest.first().and_then(|s| s.parse().ok()).unwrap_or(1024);
    let engine = Engine::new(EngineConfig::default())?;
    let rt = engine.rt();
    engine.block_on(async {
        if how == "create" {
            let f = std::fs::File::create(file).and_then(|f| f.set_len(mib << 20));
            f.map_err(|e| Error::new(ErrorKind::Io, format!("{file}: {e}")))?;
        }
        let dev = HostDev::open(&rt, file, OpenOpts { write: true, ..OpenOpts::default() })?;
        let opts = EngineOpts::for_memory(2 << 30);
        let pool = if how == "create" {
            let props = [("compression", 15), ("xattr", 2), ("atime", 1), ("relatime", 1)];
            let (uid, gid) = (host::effective_uid(), host::effective_gid());
            let owner = InitOwner { uid, gid, mode: 0o755, time: rt.wall_clock() };
            let spec = PoolSpec {
                version: None,
                name: "tank".into(),
                devices: vec![DevSpec { dev, is_disk: false }].into(),
                ashift: Some(12),
                features: ondisk::feature::features_of_2_1(),
                comment: None,
                fs_props: props.iter().map(|(k, v)| (k.to_string(), PropValue::Num(*v))).collect(),
                init: init_fs(owner, FsCreateProps::default()),
            };
            Pool::create(rt.clone(), spec, opts).await?
        } else {
            let mut found = spa::scan(vec![dev]).await;
            if found.is_empty() {
                return Err(Error::not_found(format!("{file} holds no pool")));
            }
            Pool::import(rt.clone(), found.remove(0), ImportOpts { force: true, ..ImportOpts::default() }, opts).await?
        };
        let name = pool.name();
        let ds = pool.dsl().find(&name)?;
        let zfs = Zfs::open(&ds, zpl::MountOpts::from_props(&ds)).await?;
        let opts = MountOpts { fsname: name, ..MountOpts::default() };
        let mounted = fuse::mount(&rt, zfs.clone(), Path::new(dir), opts, None).await?;
        println!("mounted at {}", mounted.mountpoint().display());
        mounted.ended().await;
        println!("ended: {:?}", mounted.stats());
        zfs.unmount().await?;
        pool.export().await
    })
}
