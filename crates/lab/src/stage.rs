//! The start of every study: a pool with one file system on simulated devices.

use std::rc::Rc;

use base::{Error, Result};
use sim::{DiskConfig, DiskImage, Model, Pick, Sim, SimConfig, SimDisk, SimHandle};
use spa::{DevSpec, EngineOpts, Layout, Pool, PoolSpec};
use zpl::{FsCreateProps, InitOwner, MountOpts, Zfs, init_fs};

/// A world for a study: a machine with `mem` bytes of memory and `cores` cores for CPU jobs.
pub fn world(seed: u64, mem: u64, cores: usize) -> Sim {
    Sim::new(SimConfig {
        physmem: mem,
        cores,
        pick: Pick::Fifo,
        polls_per_instant_max: u64::MAX,
        ..SimConfig::seeded(seed)
    })
}

/// A disk of a study: no power cuts, so it needs no undo data.
pub fn disk(sim: &SimHandle, image: DiskImage, model: Model, seed: u64) -> SimDisk {
    let mut config = DiskConfig::new(image, model, seed);
    config.volatile = false;
    SimDisk::with(sim, config)
}

/// Creates the pool `lab` as a stripe over `disks`, with these properties of its root file system,
/// and opens that.
pub async fn new_fs(
    sim: &SimHandle,
    disks: &[SimDisk],
    opts: EngineOpts,
    ashift: u8,
    props: &[(&str, &str)],
) -> Result<(Rc<Pool>, Rc<Zfs>)> {
    let devices: Vec<DevSpec> = disks.iter().map(|d| DevSpec { dev: d.dev(), is_disk: false }).collect();
    new_fs_on(sim, devices.into(), opts, ashift, props).await
}

/// As [`new_fs`] with these devices.
pub async fn new_fs_on(
    sim: &SimHandle,
    devices: Layout,
    opts: EngineOpts,
    ashift: u8,
    props: &[(&str, &str)],
) -> Result<(Rc<Pool>, Rc<Zfs>)> {
    let time = sim.rt().wall_clock();
    let prop = |&(name, value): &(&str, &str)| {
        let known = dsl::props::find(name).ok_or_else(|| Error::invalid(format!("there is no property '{name}'")))?;
        Ok::<_, Error>((name.to_string(), known.parse(value)?))
    };
    let spec = PoolSpec {
        name: "lab".into(),
        devices,
        ashift: Some(ashift),
        features: ondisk::feature::default_features(),
        comment: None,
        fs_props: props.iter().map(prop).collect::<Result<_>>()?,
        init: init_fs(InitOwner { uid: 0, gid: 0, mode: 0o755, time }, FsCreateProps::default()),
    };
    let pool = Pool::create(sim.rt(), spec, opts).await?;
    let ds = pool.dsl().find("lab")?;
    let fs = Zfs::open(&ds, MountOpts::from_props(&ds)).await?;
    Ok((pool, fs))
}
