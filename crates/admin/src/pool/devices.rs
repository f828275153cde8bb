//! `zpool add`, `attach`, `replace`, `detach`, `remove`, `online`: devices of running pools.
//!
//! Paths are checked here and opened on the pool's engine thread; [`spa`] changes the pool. The
//! keeper's list of devices is updated afterwards.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::os::unix::fs::FileTypeExt;
use std::path::PathBuf;
use std::rc::Rc;

use base::{Error, ErrorKind, Result};
use bdev::BlockDev;
use ondisk::vdev_config::{VdevConfig, VdevKind as ConfigKind};
use rt::{LocalBoxFuture, Rt};
use spa::{DevSpec, DeviceDoor, Group, Layout, NewDevice, Pool};

use crate::engine::PoolEngine;
use crate::pool::create::{check_foreign, leaf_info, open_device, same_file};
use crate::pool::labels::InUse;
use crate::pool::vdev_spec::{GroupPaths, Replication, VdevSpec};
use crate::pool_set::{PoolSet, Running};
use crate::request::{PoolAdd, PoolAttach};
use crate::view::Created;

/// Opens devices by path for a pool that needs one back. It also holds open the spares and caches
/// that the pool does not have open itself, so that other programs cannot take them.
pub(crate) struct HostDoor {
    rt: Rt,
    kept: RefCell<BTreeMap<String, Rc<dyn BlockDev>>>,
}

impl HostDoor {
    /// Holds no devices yet.
    pub(crate) fn new(rt: Rt) -> Rc<HostDoor> {
        Rc::new(HostDoor { rt, kept: RefCell::default() })
    }

    /// Holds the devices at `paths` and no others. One that cannot be opened (it is missing, or the
    /// pool uses it now) is tried again the next time.
    fn keep(&self, paths: &[String], write: bool) {
        let mut kept = self.kept.borrow_mut();
        kept.retain(|path, _| paths.contains(path));
        for path in paths {
            if !kept.contains_key(path)
                && let Ok((dev, _)) = open_device(&self.rt, path, write)
            {
                kept.insert(path.clone(), dev);
            }
        }
    }
}

impl DeviceDoor for HostDoor {
    fn open<'a>(&'a self, path: &'a str) -> LocalBoxFuture<'a, Result<Rc<dyn BlockDev>>> {
        Box::pin(async move {
            // Our claim would conflict with that of the pool.
            let kept = self.kept.borrow_mut().remove(path);
            drop(kept);
            Ok(open_device(&self.rt, path, true)?.0)
        })
    }
}

impl PoolEngine {
    /// Holds the spares and caches of the pool open.
    pub(crate) fn hold_aux(&self) {
        let aux = self.pool.devices().aux();
        let all = aux.spares.into_iter().chain(aux.caches).filter(|c| c.kind != ConfigKind::Dspare);
        let paths: Vec<String> = all.filter_map(|c| c.path).collect();
        self.door.keep(&paths, !self.pool.is_readonly());
        self.pool.devices().use_caches();
    }

    /// Updates the held spares and caches, and returns the paths of all devices.
    pub(crate) fn refresh_devices(&self) -> Vec<String> {
        self.hold_aux();
        paths_of(&self.pool)
    }
}

/// The paths of all devices of a pool.
fn paths_of(pool: &Pool) -> Vec<String> {
    let config = pool.mos_config();
    let aux = pool.devices().aux();
    let leaves = config.vdev_tree.leaves().cloned().collect::<Vec<VdevConfig>>();
    let all = leaves.into_iter().chain(aux.spares).chain(aux.caches);
    let files = all.filter(|c| c.kind != ConfigKind::Dspare);
    let mut paths: Vec<String> = files.filter_map(|c| c.path).filter(|p| !p.ends_with("/old")).collect();
    paths.sort();
    paths.dedup();
    paths
}

/// The pool's name for a device: an unknown path is compared with the paths of its devices by
/// device and inode.
pub(crate) fn pool_device_name(pool: &Pool, name: &str) -> String {
    let paths = paths_of(pool);
    if !name.starts_with('/') || paths.iter().any(|p| p == name) {
        return name.to_string();
    }
    let same = paths.into_iter().find(|p| same_file(std::path::Path::new(p), std::path::Path::new(name)));
    same.unwrap_or_else(|| name.to_string())
}

/// New files that are not part of the pool yet; removed when dropped.
#[derive(Default)]
struct MadeFiles(Vec<PathBuf>);

impl Drop for MadeFiles {
    fn drop(&mut self) {
        for file in &self.0 {
            let _ = std::fs::remove_file(file);
        }
    }
}

impl MadeFiles {
    /// Makes the file at `path` if it is missing and a size is given.
    fn make(&mut self, path: &str, size: Option<u64>) -> Result<()> {
        if std::path::Path::new(path).exists() {
            return Ok(());
        }
        let Some(size) = size else {
            return Err(Error::not_found(format!("cannot open '{path}': no such device or file (--size makes files)")));
        };
        host::create_sparse(path, size)?;
        self.0.push(PathBuf::from(path));
        Ok(())
    }
}

/// The value of `ashift`; other properties are errors.
fn ashift_of(props: &[(String, String)]) -> Result<Option<u8>> {
    let mut out = None;
    for (name, value) in props {
        let number = value.parse::<u8>().ok().filter(|n| *n == 0 || (9..=16).contains(n));
        match (name.as_str(), number) {
            ("ashift", Some(0)) => {}
            ("ashift", Some(n)) => out = Some(n),
            ("ashift", None) => {
                return Err(Error::invalid(format!("ashift '{value}' is out of range: it must be 9 to 16")));
            }
            _ => return Err(Error::invalid(format!("property '{name}' cannot be set here: only ashift can"))),
        }
    }
    Ok(out)
}

/// The replication of a pool's vdevs, without logs.
fn replication(pool: &Pool) -> Vec<Replication> {
    let config = pool.mos_config();
    let tops = config.vdev_tree.children.iter().filter(|c| {
        c.is_log != Some(1) && !matches!(c.kind, ConfigKind::Hole | ConfigKind::Missing | ConfigKind::Indirect)
    });
    let one = |top: &VdevConfig| {
        let parity = top.nparity.unwrap_or(0) as u8;
        let (word, parity, children) = match top.kind {
            ConfigKind::Mirror => ("mirror", 0, top.children.len()),
            ConfigKind::Raidz => ("raidz", parity, top.children.len()),
            ConfigKind::Draid => ("draid", parity, top.children.len()),
            ConfigKind::File => ("file", 0, 1),
            _ => ("disk", 0, 1),
        };
        Replication { word, parity, children }
    };
    tops.map(one).collect()
}

impl PoolSet {
    /// Updates the keeper's list of a pool's devices.
    pub(crate) fn remember_devices(&self, running: &Running) -> Result<()> {
        let devices = running.thread.with_pool(|e| async move { Ok(e.refresh_devices()) })?;
        self.update_cache_file(running, None);
        self.keeper.set_devices(running.guid(), devices)
    }

    /// Checks of a new device before it is opened.
    fn check_path(&self, path: &str, force: bool) -> Result<()> {
        for running in self.all_running() {
            let devices = running.thread.with_pool(|e| async move { Ok(paths_of(&e.pool)) }).unwrap_or_default();
            if devices.iter().any(|d| same_file(std::path::Path::new(d), std::path::Path::new(path))) {
                let why = format!("'{path}' is part of active pool '{}'", running.name);
                return Err(Error::new(ErrorKind::Busy, why));
            }
        }
        if std::fs::metadata(path).is_ok_and(|m| m.file_type().is_block_device()) {
            check_foreign(path, force)?;
        }
        Ok(())
    }

    /// `zpool add`.
    pub(crate) fn pool_add(&self, request: PoolAdd) -> Result<Created> {
        let pool = request.pool.clone();
        self.need_running(&pool)?;
        self.pool_add_inner(request).map_err(|e| e.at(format!("cannot add to '{pool}'")))
    }

    fn pool_add_inner(&self, request: PoolAdd) -> Result<Created> {
        let running = self.need_running(&request.pool)?;
        let ashift = ashift_of(&request.props)?;
        let vdevs = VdevSpec::parse(&request.devices)?;
        let _namespace = self.namespace();
        for path in vdevs.paths() {
            self.check_path(path, request.force)?;
            if vdevs.paths().filter(|p| *p == path || same_file(path.as_ref(), p.as_ref())).count() != 1 {
                return Err(Error::invalid(format!("'{path}' is named twice")));
            }
        }
        let created = Created { devices: request.devices.clone(), ..Created::default() };
        let mut made = MadeFiles::default();
        if !request.dry_run {
            vdevs.paths().try_for_each(|p| made.make(p, request.size))?;
        }
        let in_use = self.in_use();
        let file_ashift = self.file_ashift(&request.pool);
        let devices = running.thread.with_pool(move |e| async move {
            let rt = e.pool.rt().clone();
            let mut devices: BTreeMap<String, DevSpec> = BTreeMap::new();
            for path in vdevs.paths() {
                if request.dry_run && request.size.is_some() && !std::path::Path::new(path).exists() {
                    continue;
                }
                devices.insert(path.clone(), open_new(&rt, path, !request.dry_run, request.force, &in_use).await?);
            }
            if !request.force {
                vdevs.check_replication(&|path| devices.get(path).map(leaf_info), &replication(&e.pool))?;
            }
            if request.dry_run {
                return Ok(e.refresh_devices());
            }
            let of = |paths: &[String]| paths.iter().map(|p| devices[p].clone()).collect();
            let group = |g: &GroupPaths| Group { kind: g.kind, bias: g.bias, devices: of(&g.paths) };
            let layout = Layout {
                groups: vdevs.groups.iter().map(group).collect(),
                spares: of(&vdevs.spares),
                caches: of(&vdevs.caches),
            };
            let of_files = file_ashift.filter(|_| devices.values().all(|d| !d.is_disk));
            e.pool.devices().add(layout, ashift.or(e.default_ashift()).or(of_files)).await?;
            e.pool.post("vdev_add");
            Ok(e.refresh_devices())
        })?;
        made.0.clear();
        self.keeper.set_devices(running.guid(), devices)?;
        Ok(created)
    }

    /// `zpool attach` and `replace`.
    pub(crate) fn pool_attach(&self, request: PoolAttach) -> Result<()> {
        let running = self.need_running(&request.pool)?;
        let ashift = ashift_of(&request.props)?;
        let PoolAttach { target, device, replace, sequential, force, size, .. } = request;
        let verb = if replace { "replace" } else { "attach" };
        let place = match &device {
            Some(device) if replace => format!("cannot replace {target} with {device}"),
            Some(device) => format!("cannot attach {device} to {target}"),
            None => format!("cannot {verb} {target}"),
        };
        let named = target.clone();
        let target = running.thread.with_pool(move |e| async move { Ok(pool_device_name(&e.pool, &named)) })?;
        let known = target.clone();
        // In place: the new device is at the path of the old one.
        let path = running
            .thread
            .with_pool(move |e| async move { e.pool.devices().path_of(&known) })
            .map_err(|e| e.at(&place))?;
        let same = replace && device.as_ref().is_none_or(|d| Some(d) == path.as_ref());
        let device = match device.or(path) {
            Some(device) => device,
            None => return Err(Error::invalid("the device has no path: name the new one").at(place)),
        };
        let named = device.clone();
        let is_spare =
            replace && running.thread.with_pool(move |e| async move { Ok(e.pool.devices().has_spare(&named)) })?;
        let _namespace = self.namespace();
        let mut made = MadeFiles::default();
        if !is_spare {
            if !same {
                self.check_path(&device, force).map_err(|e| e.at(&place))?;
            }
            made.make(&device, size).map_err(|e| e.at(&place))?;
        }
        let in_use = self.in_use();
        running.thread.with_pool(move |e| async move {
            let rt = e.pool.rt().clone();
            let ashift = ashift.or(e.default_ashift());
            if is_spare {
                return e.pool.devices().replace(&target, NewDevice::Spare(device), ashift, sequential).await;
            }
            if same {
                let replaced = async {
                    let spec = e.pool.devices().release_for_replacement(&target, &*e.door).await?;
                    in_use.check(&*spec.dev, force).await?;
                    e.pool.devices().replace(&target, NewDevice::Device(spec), ashift, sequential).await
                };
                let replaced = replaced.await;
                if replaced.is_err() {
                    // Bring the old device back, if possible.
                    let _ = e.pool.devices().bring_online(&target, false).await;
                }
                return replaced.map_err(|e| if e.to_string().starts_with("cannot") { e } else { e.at(&place) });
            }
            let spec = open_new(&rt, &device, true, force, &in_use).await.map_err(|e| e.at(&place))?;
            match replace {
                true => e.pool.devices().replace(&target, NewDevice::Device(spec), ashift, sequential).await,
                false => e.pool.devices().attach(&target, spec, ashift, sequential).await,
            }
        })?;
        made.0.clear();
        self.remember_devices(&running)
    }
}

/// Opens a new device of a pool, and checks that it is free.
async fn open_new(rt: &Rt, path: &str, write: bool, force: bool, in_use: &InUse) -> Result<DevSpec> {
    let (dev, is_disk) = open_device(rt, path, write)?;
    in_use.check(&*dev, force).await?;
    Ok(DevSpec { dev, is_disk })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_ashift_is_a_property_here() {
        let pairs =
            |text: &str| text.split_once('=').map(|(n, v)| vec![(n.to_string(), v.to_string())]).unwrap_or_default();
        assert_eq!(ashift_of(&pairs("ashift=12")).unwrap(), Some(12));
        assert_eq!(ashift_of(&pairs("ashift=0")).unwrap(), None);
        assert_eq!(ashift_of(&[]).unwrap(), None);
        for bad in ["ashift=8", "ashift=17", "ashift=x", "comment=x"] {
            assert!(ashift_of(&pairs(bad)).is_err(), "{bad}");
        }
    }
}
