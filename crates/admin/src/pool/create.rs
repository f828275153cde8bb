//! `zpool create`: all checks come before the first label is written, and a failure removes
//! everything that was made.
//!
//! In order: names, properties and features; the mount point (made now); the devices (missing files
//! made now, if a size is given); then on the new engine thread every device is opened exclusively
//! and its labels are read; only then the pool is written. A pool whose root cannot be mounted is
//! destroyed again.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;

use base::{Error, ErrorKind, Result};
use bdev::{BlockDev, HeldDev};
use dsl::props::{DatasetKind, PropValue};
use host::{Direct, HostDev, Lock, OpenOpts};
use ondisk::feature::FeatureId;
use ondisk::version;
use rt::Rt;
use spa::{DEVICE_SIZE_MIN, DevSpec, EngineOpts, Group, Layout, Pool, PoolSpec, check_pool_name};
use vdev::labels::clear_labels;

use crate::engine::{EngineThread, PoolEngine, set_current};
use crate::fs::files::{self, OnceProps};
use crate::fs::keys::take_crypt;
use crate::fs::mounts::{self, Force, MountPoint, make_dirs, remove_dirs};
use crate::fs::ops::parse_props;
use crate::fs::owners::{NewLimit, check_no_defaults, take_limits};
use crate::fs::places::check_real_place;
use crate::fs::temp_props::TempProps;
use crate::keeper::{Keeper, KnownPool};
use crate::pool::labels::InUse;
use crate::pool::props::{self, Wanted, When};
use crate::pool::vdev_spec::{GroupPaths, LeafInfo, VdevSpec};
use crate::pool_set::{PoolSet, Running};
use crate::request::PoolCreate;
use crate::view::Created;

/// Files and folders made for a new pool; removed when dropped without [`Made::keep`].
#[derive(Default)]
struct Made {
    files: Vec<PathBuf>,
    dirs: Vec<PathBuf>,
}

impl Made {
    fn keep(mut self) {
        self.files.clear();
        self.dirs.clear();
    }
}

impl Drop for Made {
    fn drop(&mut self) {
        for file in &self.files {
            let _ = std::fs::remove_file(file);
        }
        remove_dirs(&self.dirs);
    }
}

/// A checked request, ready for the engine thread.
struct Plan {
    request: PoolCreate,
    vdevs: VdevSpec,
    wanted: Wanted,
    features: Vec<FeatureId>,
    fs_props: Vec<(String, PropValue)>,
    limits: Vec<NewLimit>,
    /// Those that encrypt the root file system.
    crypt_props: Vec<(String, String)>,
    once: OnceProps,
    altroot: Option<String>,
    mount_at: Option<PathBuf>,
    /// The tunable `vdev_file_physical_ashift`, if it is set.
    file_ashift: Option<u8>,
}

impl Plan {
    fn of(request: PoolCreate) -> Result<Plan> {
        check_pool_name(&request.name)?;
        if let Some(name) = &request.on_disk_name {
            check_pool_name(name)?;
        }
        let wanted = Wanted::parse(&request.props, When::Create)?;
        let features = wanted.feature_set(request.no_features)?;
        let mut given = request.fs_props.clone();
        if let Some(path) = &request.mountpoint {
            given.retain(|(n, _)| n != "mountpoint");
            given.push(("mountpoint".to_string(), path.clone()));
        }
        let mut rest = given.clone();
        let crypt = take_crypt(&mut rest, request.key.clone())?;
        crypt.check_of_root(&request.name)?;
        if crypt.is_on() && !features.contains(&FeatureId::Encryption) {
            let why = "encryption needs a feature that is not enabled: give -o feature@encryption=enabled";
            return Err(Error::unsupported(why));
        }
        let crypt_props = given.iter().filter(|p| !rest.contains(p)).cloned().collect();
        given = rest;
        check_no_defaults(&given)?;
        let limits = take_limits(&mut given, DatasetKind::Filesystem)?;
        let mut fs_props = parse_props(&given, DatasetKind::Filesystem, true)?;
        let once = OnceProps::take(&mut fs_props)?;
        once.check(wanted.version.unwrap_or(version::FEATURES))?;
        let altroot = request.altroot.clone().or(wanted.altroot.clone());
        if altroot.as_ref().is_some_and(|r| !r.starts_with('/')) {
            return Err(Error::invalid("the alternate root must be an absolute path"));
        }
        let own = |name: &str| fs_props.iter().find(|(n, _)| n == name).map(|(_, v)| v.clone());
        let value = own("mountpoint").map_or_else(|| format!("/{}", request.name), |v| v.text().to_string());
        let mountable = own("canmount").is_none_or(|v| v.num() == 1);
        let mount_at = match mounts::mount_point(&value, altroot.as_deref()) {
            MountPoint::Path(path) if mountable => Some(path),
            _ => None,
        };
        if request.devices.is_empty() {
            return Err(Error::invalid("no device is named: give files or block devices"));
        }
        let vdevs = VdevSpec::parse(&request.devices)?;
        if !vdevs.groups.iter().any(|g| g.bias == spa::Bias::Normal) {
            return Err(Error::invalid("invalid vdev specification: at least one toplevel vdev must be specified"));
        }
        for id in vdevs.features() {
            if !features.contains(&id) {
                let why =
                    format!("its vdevs need the feature '{id}', which is not enabled: give -o feature@{id}=enabled");
                return Err(Error::unsupported(why));
            }
        }
        Ok(Plan {
            request,
            vdevs,
            wanted,
            features,
            fs_props,
            limits,
            crypt_props,
            once,
            altroot,
            mount_at,
            file_ashift: None,
        })
    }

    /// Checks and makes the mount point.
    fn mount_point(&self, keeper: &dyn Keeper, made: &mut Made) -> Result<()> {
        let Some(path) = &self.mount_at else { return Ok(()) };
        keeper.front_end().usable()?;
        check_real_place(path)?;
        if path.exists() && !mounts::is_empty(path) {
            let why = format!("mount point '{}' exists and is not empty: choose another one with -m", path.display());
            return Err(Error::new(ErrorKind::NotEmpty, why));
        }
        made.dirs = make_dirs(path)?;
        let writable = std::fs::metadata(path).map(|m| {
            let uid = host::effective_uid();
            uid == 0 || m.uid() == uid
        });
        match writable {
            Ok(true) => Ok(()),
            _ => {
                let why =
                    format!("mount point '{}' belongs to another user: choose another one with -m", path.display());
                Err(Error::new(ErrorKind::Denied, why))
            }
        }
    }

    /// Checks that the devices are distinct files or block devices; makes files that are missing,
    /// if a size is given.
    fn devices(&self, made: &mut Made) -> Result<()> {
        let mut seen: Vec<(u64, u64, u64)> = Vec::new();
        let size = self.request.size;
        if size.is_some_and(|s| s < DEVICE_SIZE_MIN) {
            return Err(Error::new(ErrorKind::Range, "--size is too small: a pool needs at least 64M on each device"));
        }
        // Existing devices are checked before the first file is made.
        for path in self.vdevs.paths() {
            match std::fs::metadata(path) {
                Ok(meta) => {
                    let kind = meta.file_type();
                    if !kind.is_file() && !kind.is_block_device() {
                        return Err(Error::invalid(format!("'{path}' is neither a file nor a block device")));
                    }
                    let id =
                        if kind.is_block_device() { (0, 0, meta.rdev()) } else { (meta.dev(), meta.ino(), u64::MAX) };
                    if seen.contains(&id) {
                        return Err(Error::invalid(format!("'{path}' is named twice")));
                    }
                    seen.push(id);
                }
                Err(e) if e.kind() == std::io::ErrorKind::NotFound && size.is_some() => {}
                Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
                    let why = format!("'{path}' does not exist: give --size to have files made");
                    return Err(Error::not_found(why));
                }
                Err(e) => return Err(Error::new(ErrorKind::Denied, format!("'{path}' cannot be used: {e}"))),
            }
        }
        if self.request.dry_run {
            return Ok(());
        }
        for path in self.vdevs.paths() {
            if let Some(size) = size
                && !Path::new(path).exists()
            {
                host::create_sparse(path, size)?;
                made.files.push(PathBuf::from(path));
            }
        }
        for file in &made.files {
            let twice = self.vdevs.paths().filter(|d| same_file(Path::new(d), file)).count();
            if twice != 1 {
                return Err(Error::invalid(format!("'{}' is named twice", file.display())));
            }
        }
        Ok(())
    }
}

pub(crate) fn same_file(a: &Path, b: &Path) -> bool {
    match (std::fs::metadata(a), std::fs::metadata(b)) {
        (Ok(a), Ok(b)) => (a.dev(), a.ino()) == (b.dev(), b.ino()),
        _ => false,
    }
}

/// Refuses block devices with swap areas or file systems, unless `force`.
pub(crate) fn check_foreign(path: &str, force: bool) -> Result<()> {
    use std::os::unix::fs::FileExt;
    if force {
        return Ok(());
    }
    // (offset, bytes, name)
    const MAGIC: &[(u64, &[u8], &str)] = &[
        (0x438, &[0x53, 0xef], "an ext2/3/4 file system"),
        (0, b"XFSB", "an XFS file system"),
        (0x1_0040, b"_BHRfS_M", "a btrfs file system"),
        (4086, b"SWAPSPACE2", "a swap area"),
        (0, b"LUKS\xba\xbe", "a LUKS container"),
    ];
    let Ok(file) = File::open(path) else { return Ok(()) };
    for (at, magic, what) in MAGIC {
        let mut buf = [0; 16];
        let buf = &mut buf[..magic.len()];
        if file.read_exact_at(buf, *at).is_ok() && buf == *magic {
            return Err(Error::new(ErrorKind::Busy, format!("'{path}' has {what}: use -f to overwrite it")));
        }
    }
    Ok(())
}

/// The variable for tests that kill the daemon: with 1, devices lose unflushed writes when it dies.
pub const HOLD_WRITES: &str = "WEIR_HOLD_WRITES";

/// Opens a device, exclusively if `write`; also returns whether it is a block device.
pub fn open_device(rt: &Rt, path: &str, write: bool) -> Result<(Rc<dyn BlockDev>, bool)> {
    let lock = if write { Lock::Exclusive } else { Lock::Shared };
    let dev = HostDev::open_dev(rt, path, OpenOpts { write, direct: Direct::Auto, lock })?;
    let is_disk = dev.is_block_device();
    if write && std::env::var_os(HOLD_WRITES).is_some_and(|v| v == "1") {
        return Ok((Rc::new(HeldDev::new(rt, dev)), is_disk));
    }
    Ok((dev, is_disk))
}

/// The properties of a device for the check of redundancy.
pub(crate) fn leaf_info(spec: &DevSpec) -> LeafInfo {
    LeafInfo { is_disk: spec.is_disk, size: spec.dev.info().size_bytes }
}

/// On the engine thread: checks the devices, writes the pool and mounts its root.
async fn create_here(rt: Rt, plan: Plan, opts: EngineOpts, in_use: InUse) -> Result<(u64, Vec<String>)> {
    let mut devices: BTreeMap<String, DevSpec> = BTreeMap::new();
    for path in plan.vdevs.paths() {
        // With -n the files to be made do not exist.
        if plan.request.dry_run && !Path::new(path).exists() {
            continue;
        }
        let (dev, is_disk) = open_device(&rt, path, !plan.request.dry_run)?;
        in_use.check(&*dev, plan.request.force).await?;
        let info = dev.info();
        if info.size_bytes < DEVICE_SIZE_MIN {
            let why = format!("device '{path}' is too small: a pool needs at least 64M on each device");
            return Err(Error::new(ErrorKind::Range, why));
        }
        if let Some(ashift) = plan.wanted.ashift
            && u64::from(info.logical_sector) > 1 << ashift
        {
            let why = format!(
                "device '{path}' has sectors of {} bytes, larger than ashift={ashift} allows",
                info.logical_sector
            );
            return Err(Error::invalid(why));
        }
        devices.insert(path.clone(), DevSpec { dev, is_disk });
    }
    if !plan.request.force {
        plan.vdevs.check_replication(&|path| devices.get(path).map(leaf_info), &[])?;
    }
    if plan.request.dry_run {
        return Ok((0, Vec::new()));
    }
    let devs: Vec<Rc<dyn BlockDev>> = devices.values().map(|d| d.dev.clone()).collect();
    let of = |paths: &[String]| paths.iter().map(|p| devices[p].clone()).collect();
    let group = |g: &GroupPaths| Group { kind: g.kind, bias: g.bias, devices: of(&g.paths) };
    let layout = Layout {
        groups: plan.vdevs.groups.iter().map(group).collect(),
        spares: of(&plan.vdevs.spares),
        caches: of(&plan.vdevs.caches),
    };
    let are_files = devices.values().all(|d| !d.is_disk);
    let spec = PoolSpec {
        name: plan.request.name.clone(),
        version: plan.wanted.version,
        devices: layout,
        ashift: plan.wanted.ashift.or(plan.file_ashift.filter(|_| are_files)),
        features: plan.features,
        comment: plan.wanted.comment.clone().filter(|c| !c.is_empty()),
        fs_props: plan.fs_props,
        init: files::init_root(&rt, plan.once, None),
    };
    let unlabel = async || {
        for dev in &devs {
            let _ = clear_labels(&**dev).await;
        }
    };
    // Made anew here: keys do not leave their thread.
    let crypt = take_crypt(&mut plan.crypt_props.clone(), plan.request.key.clone())?;
    let on_disk_name = plan.request.on_disk_name.clone();
    let pool = match Pool::create_as(rt.clone(), spec, on_disk_name, crypt, opts).await {
        Ok(pool) => pool,
        Err(e) => {
            unlabel().await;
            return Err(e);
        }
    };
    let engine = PoolEngine::new(pool.clone(), plan.altroot, props::Stored::default());
    let stored = Wanted {
        stored: plan.wanted.stored.clone(),
        user: plan.wanted.user.clone(),
        compatibility: plan.wanted.compatibility.clone(),
        cache_file: plan.wanted.cache_file.clone(),
        ..Wanted::default()
    };
    let mut result = engine.set_pool_props(stored).await;
    if result.is_ok() && plan.mount_at.is_some() {
        result = match pool.dsl().find(&pool.name()) {
            Ok(ds) => engine.mount(&ds, TempProps::default()).await,
            Err(e) => Err(e),
        };
    }
    if result.is_ok() && !plan.limits.is_empty() {
        result = match pool.dsl().find(&pool.name()) {
            Ok(ds) => engine.set_limits(&ds, &plan.limits).await,
            Err(e) => Err(e),
        };
    }
    if let Err(e) = result {
        let _ = engine.unmount_all(Force::Full).await;
        let _ = pool.destroy().await;
        unlabel().await;
        return Err(e);
    }
    let notices = engine.mounts.take_notices();
    set_current(engine);
    Ok((pool.guid().0, notices))
}

impl PoolSet {
    /// `zpool create`.
    pub(crate) fn pool_create(&self, request: PoolCreate) -> Result<Created> {
        let name = request.name.clone();
        self.pool_create_inner(request).map_err(|e| e.at(format!("cannot create '{name}'")))
    }

    /// The running pool with this file or device.
    fn pool_using(&self, path: &str) -> Option<String> {
        let running = self.all_running();
        let known = self.keeper.remembered().into_iter().filter(|k| running.iter().any(|r| r.guid() == k.guid));
        known.into_iter().find(|k| k.devices.iter().any(|d| same_file(Path::new(d), Path::new(path)))).map(|k| k.name)
    }

    fn pool_create_inner(&self, request: PoolCreate) -> Result<Created> {
        let mut plan = Plan::of(request)?;
        let name = plan.request.name.clone();
        plan.file_ashift = self.file_ashift(&name);
        let _namespace = self.namespace();
        if self.running(&name).is_some() {
            return Err(Error::new(ErrorKind::Exists, "pool already exists"));
        }
        let mut made = Made::default();
        for path in plan.vdevs.paths() {
            if let Some(pool) = self.pool_using(path) {
                return Err(Error::new(ErrorKind::Busy, format!("'{path}' is part of active pool '{pool}'")));
            }
            if std::fs::metadata(path).is_ok_and(|m| m.file_type().is_block_device()) {
                check_foreign(path, plan.request.force)?;
            }
        }
        plan.devices(&mut made)?;
        plan.mount_point(&*self.keeper, &mut made)?;
        let mut created = Created { devices: plan.request.devices.clone(), notices: Vec::new() };
        let dry_run = plan.request.dry_run;
        let in_use = self.in_use();
        let devices: Vec<String> = plan.vdevs.paths().cloned().collect();
        let altroot = plan.altroot.clone();
        let opts = self.engine_opts(&plan.request.name, 1);
        let thread = EngineThread::start(Some(self.keeper.clone()))?;
        let (guid, notices) = thread
            .call(move |rt| {
                let rt = rt.clone();
                async move { create_here(rt, plan, opts, in_use).await }
            })
            .wait()??;
        created.notices = notices;
        if dry_run {
            return Ok(created);
        }
        made.keep();
        let known = KnownPool { name: name.clone(), guid, devices, imported: true, altroot, readonly: false };
        self.add_running(Arc::new(Running::new(name, guid, thread)), known, "pool_create")?;
        Ok(created)
    }
}

/// Reads the values stored in the MOS of an imported pool.
pub async fn stored_props(pool: &Pool) -> Result<props::Stored> {
    props::load(pool.dsl()).await
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(change: impl FnOnce(&mut PoolCreate)) -> Result<Plan> {
        let mut request = PoolCreate { name: "tank".into(), devices: vec!["/tmp/a".into()], ..PoolCreate::default() };
        change(&mut request);
        Plan::of(request)
    }

    #[test]
    fn requests_are_checked() {
        assert_eq!(plan(|_| {}).unwrap().mount_at, Some("/tank".into()));
        assert_eq!(plan(|r| r.altroot = Some("/mnt".into())).unwrap().mount_at, Some("/mnt/tank".into()));
        assert_eq!(plan(|r| r.mountpoint = Some("none".into())).unwrap().mount_at, None);
        assert_eq!(plan(|r| r.fs_props = vec![("canmount".into(), "off".into())]).unwrap().mount_at, None);
        assert!(plan(|r| r.name = "mirror1".into()).is_err());
        assert!(plan(|r| r.devices.clear()).is_err());
        let few = plan(|r| r.devices = vec!["mirror".into(), "/a".into()]).err().unwrap();
        assert!(few.to_string().contains("at least 2"), "{few}");
        assert!(plan(|r| r.altroot = Some("mnt".into())).is_err());
        assert!(plan(|r| r.mountpoint = Some("x".into())).is_err());
    }

    #[test]
    fn files_made_are_removed_again() {
        let dir = host::TempDir::new("create").unwrap();
        let path = dir.join("new.img");
        let mut made = Made::default();
        let p = plan(|r| {
            r.devices = vec![path.display().to_string(), dir.join("./new.img").display().to_string()];
            r.size = Some(1 << 30);
        })
        .unwrap();
        assert!(p.devices(&mut made).is_err());
        drop(made);
        assert!(!path.exists());
    }
}
