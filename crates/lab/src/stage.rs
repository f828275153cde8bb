//! The start of every study: a pool with one file system on simulated devices.

use std::rc::Rc;

use base::{Error, Result};
use sim::{SimDisk, SimHandle};
use spa::{DevSpec, EngineOpts, Pool, PoolSpec};
use zpl::{FsCreateProps, InitOwner, MountOpts, Zfs, init_fs};

/// Creates the pool `lab` as a stripe over `disks`, with these properties of its root file system,
/// and opens that.
pub async fn new_fs(
    sim: &SimHandle,
    disks: &[SimDisk],
    opts: EngineOpts,
    ashift: u8,
    props: &[(&str, &str)],
) -> Result<(Rc<Pool>, Rc<Zfs>)> {
    let time = sim.rt().wall_clock();
    let prop = |&(name, value): &(&str, &str)| {
        let known = dsl::props::find(name).ok_or_else(|| Error::invalid(format!("there is no property '{name}'")))?;
        Ok::<_, Error>((name.to_string(), known.parse(value)?))
    };
    let devices: Vec<DevSpec> = disks.iter().map(|d| DevSpec { dev: d.dev(), is_disk: false }).collect();
    let spec = PoolSpec {
        name: "lab".into(),
        devices: devices.into(),
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
