//! The start and the end of every study: a pool with one file system on simulated devices.

use std::rc::Rc;

use base::{Error, ObjectId, Result};
use rt::Rt;
use sim::{DiskConfig, DiskImage, Pick, Sim, SimConfig, SimDisk, SimHandle};
use spa::{Bias, DevSpec, EngineOpts, Group, GroupKind, Layout, Pool, PoolSpec};
use zpl::{Cred, FsCreateProps, InitOwner, MountOpts, Zfs, init_fs};

use crate::device::Device;

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
pub fn disk(sim: &SimHandle, image: DiskImage, device: impl Into<Device>, seed: u64) -> SimDisk {
    let device = device.into();
    let mut config = DiskConfig::new(image, device.model, seed);
    config.volatile = false;
    config.host = device.host;
    SimDisk::with(sim, config)
}

/// Ends a world. Remains of a pool that was not exported may hold its disks, so their contents are
/// freed.
pub fn end(sim: &Sim, disks: &[SimDisk]) {
    sim.crash();
    disks.iter().for_each(|d| d.restore(&DiskImage::zeroed(d.dev().size())));
}

/// Top-level vdevs of one kind, each of `width` of the disks.
pub fn groups(disks: &[SimDisk], kind: GroupKind, width: usize) -> Vec<Group> {
    let group = |part: &[SimDisk]| Group { kind, bias: Bias::Normal, devices: part.iter().map(device).collect() };
    disks.chunks(width).map(group).collect()
}

/// A disk as a device of a pool.
pub fn device(disk: &SimDisk) -> DevSpec {
    DevSpec { dev: disk.dev(), is_disk: false }
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
    let devices: Vec<DevSpec> = disks.iter().map(device).collect();
    new_fs_on(&sim.rt(), devices.into(), opts, ashift, props).await
}

/// As [`new_fs`] with these devices.
pub async fn new_fs_on(
    rt: &Rt,
    devices: Layout,
    opts: EngineOpts,
    ashift: u8,
    props: &[(&str, &str)],
) -> Result<(Rc<Pool>, Rc<Zfs>)> {
    let time = rt.wall_clock();
    let prop = |&(name, value): &(&str, &str)| {
        let known = dsl::props::find(name).ok_or_else(|| Error::invalid(format!("there is no property '{name}'")))?;
        Ok::<_, Error>((name.to_string(), known.parse(value)?))
    };
    let spec = PoolSpec {
        version: None,
        name: "lab".into(),
        devices,
        ashift: Some(ashift),
        features: ondisk::feature::features_of_2_1(),
        comment: None,
        fs_props: props.iter().map(prop).collect::<Result<_>>()?,
        init: init_fs(InitOwner { uid: 0, gid: 0, mode: 0o755, time }, FsCreateProps::default()),
    };
    let pool = Pool::create(rt.clone(), spec, opts).await?;
    let fs = open(&pool).await?;
    Ok((pool, fs))
}

/// Opens the file system of the pool `lab`.
pub async fn open(pool: &Pool) -> Result<Rc<Zfs>> {
    let ds = pool.dsl().find("lab")?;
    Zfs::open(&ds, MountOpts::from_props(&ds)).await
}

/// Makes an empty file in the root directory.
pub async fn new_file(fs: &Zfs, name: &str) -> Result<ObjectId> {
    Ok(fs.create(fs.root(), name.as_bytes(), 0o644, &Cred::new(0, 0), true).await?.obj)
}
