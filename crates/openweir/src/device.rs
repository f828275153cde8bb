//! [`Device`]: the storage of a pool, and [`Layout`]: the redundancy of devices.

use std::path::{Path, PathBuf};
use std::rc::Rc;

use base::ErrorKind as BaseKind;
use bdev::BlockDev;
use host::{HostDev, OpenOpts};
use rt::Rt;
use spa::{Bias, DevSpec, Group, GroupKind};

use crate::error::{Error, ErrorKind, Result};
use crate::inside::Inside;

/// The least that a device of a new pool must have, in bytes: 64 MiB.
pub const DEVICE_SIZE_MIN: u64 = spa::DEVICE_SIZE_MIN;

/// A device by name. Nothing is opened before a pool is created, found or imported on it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Device(pub(crate) Kind);

#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    /// A path; the size of a file to be made; whether it may be passed over if it cannot be opened.
    Path { path: PathBuf, create: Option<u64>, optional: bool },
    /// A device of one engine, by the engine's identity and its number there.
    Inner { engine: u64, id: u64 },
}

impl Device {
    /// A file or a block device that exists. While a pool has it, other programs that use weir are
    /// refused.
    pub fn path(path: impl AsRef<Path>) -> Device {
        Device(Kind::Path { path: path.as_ref().to_path_buf(), create: None, optional: false })
    }
    /// A sparse file of `bytes` bytes (at least [`DEVICE_SIZE_MIN`]), readable by its owner only,
    /// that is made when a pool is created on it. It must not exist then; if the creation fails it
    /// is removed again.
    pub fn new_file(path: impl AsRef<Path>, bytes: u64) -> Device {
        Device(Kind::Path { path: path.as_ref().to_path_buf(), create: Some(bytes), optional: false })
    }
    /// All regular files and block devices in a folder, in order of name: for looking for pools.
    /// Those that cannot be opened are passed over.
    ///
    /// # Errors
    /// Those of reading the folder.
    pub fn in_folder(folder: impl AsRef<Path>) -> Result<Vec<Device>> {
        use std::os::unix::fs::FileTypeExt;
        let folder = folder.as_ref();
        let fail = |e: std::io::Error| {
            let kind = match e.kind() {
                std::io::ErrorKind::NotFound => ErrorKind::NotFound,
                std::io::ErrorKind::PermissionDenied => ErrorKind::Denied,
                std::io::ErrorKind::NotADirectory => ErrorKind::NotDir,
                _ => ErrorKind::Io,
            };
            Error::new(kind, e.to_string()).about(folder.display().to_string())
        };
        let mut paths = Vec::new();
        for entry in std::fs::read_dir(folder).map_err(fail)? {
            let path = entry.map_err(fail)?.path();
            let kind = std::fs::metadata(&path).map(|m| m.file_type());
            if kind.is_ok_and(|k| k.is_file() || k.is_block_device()) {
                paths.push(path);
            }
        }
        paths.sort();
        let device = |path| Device(Kind::Path { path, create: None, optional: true });
        Ok(paths.into_iter().map(device).collect())
    }

    /// Opens it; None if it may be passed over and cannot be opened. Whether it is a disk.
    pub(crate) fn open(&self, inside: &Inside, write: bool) -> Result<Option<(Rc<dyn BlockDev>, bool)>> {
        match &self.0 {
            Kind::Inner { engine, id } => Ok(Some((inside.device(*engine, *id)?, false))),
            Kind::Path { path, optional, .. } => match open_path(inside.rt(), path, write) {
                Ok(dev) => Ok(Some(dev)),
                Err(_) if *optional => Ok(None),
                Err(e) => Err(Error::from(e).about(path.display().to_string())),
            },
        }
    }
    pub(crate) fn inner_id(&self) -> Option<u64> {
        if let Kind::Inner { id, .. } = self.0 { Some(id) } else { None }
    }
}

fn open_path(rt: &Rt, path: &Path, write: bool) -> base::Result<(Rc<dyn BlockDev>, bool)> {
    if host::Handle::of(rt).is_none() {
        return Err(base::Error::new(BaseKind::Unsupported, "a simulated engine has no files: use its own disks"));
    }
    let dev = HostDev::open_dev(rt, path, OpenOpts { write, ..OpenOpts::default() })?;
    let is_disk = dev.is_block_device();
    Ok((dev, is_disk))
}

/// Devices that stand together and form one part of a pool (a *top-level vdev*). Data is striped
/// over all parts.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Vdev {
    pub(crate) kind: GroupKind,
    pub(crate) bias: Bias,
    pub(crate) devices: Vec<Device>,
}

impl Vdev {
    fn new(kind: GroupKind, devices: Vec<Device>) -> Vdev {
        Vdev { kind, bias: Bias::Normal, devices }
    }
    /// One device by itself.
    pub fn single(device: Device) -> Vdev {
        Vdev::new(GroupKind::Single, vec![device])
    }
    /// Each device, of two or more, holds everything.
    pub fn mirror(devices: Vec<Device>) -> Vdev {
        Vdev::new(GroupKind::Mirror, devices)
    }
    /// RAID-Z: data with `parity` columns of parity, 1 to 3, over more devices than that.
    pub fn raidz(parity: u8, devices: Vec<Device>) -> Vdev {
        Vdev::new(GroupKind::Raidz(parity), devices)
    }
    /// The same for the intent log only: the log writes of [`crate::File::sync`] go there.
    #[must_use]
    pub fn for_log(self) -> Vdev {
        Vdev { bias: Bias::Log, ..self }
    }
    /// The same for metadata and small blocks (feature `allocation_classes`).
    #[must_use]
    pub fn for_metadata(self) -> Vdev {
        Vdev { bias: Bias::Special, ..self }
    }
}

/// The devices of a pool to be.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct Layout {
    pub(crate) vdevs: Vec<Vdev>,
    pub(crate) spares: Vec<Device>,
}

impl Layout {
    /// Nothing yet.
    pub fn new() -> Layout {
        Layout::default()
    }
    /// With another part.
    #[must_use]
    pub fn vdev(mut self, vdev: Vdev) -> Layout {
        self.vdevs.push(vdev);
        self
    }
    /// With a hot spare.
    #[must_use]
    pub fn spare(mut self, device: Device) -> Layout {
        self.spares.push(device);
        self
    }
    pub(crate) fn devices(&self) -> impl Iterator<Item = &Device> {
        self.vdevs.iter().flat_map(|v| &v.devices).chain(&self.spares)
    }
    /// Opens everything for a pool to be.
    pub(crate) fn open(&self, inside: &Inside) -> Result<spa::Layout> {
        let one = |d: &Device| -> Result<DevSpec> {
            let (dev, is_disk) =
                d.open(inside, true)?.ok_or_else(|| Error::new(ErrorKind::NotFound, "a device cannot be opened"))?;
            Ok(DevSpec { dev, is_disk })
        };
        let mut out = spa::Layout::default();
        for vdev in &self.vdevs {
            let devices = vdev.devices.iter().map(one).collect::<Result<_>>()?;
            out.groups.push(Group { kind: vdev.kind, bias: vdev.bias, devices });
        }
        out.spares = self.spares.iter().map(one).collect::<Result<_>>()?;
        Ok(out)
    }
}

impl From<Device> for Layout {
    fn from(device: Device) -> Layout {
        Layout::new().vdev(Vdev::single(device))
    }
}

impl From<Vdev> for Layout {
    fn from(vdev: Vdev) -> Layout {
        Layout::new().vdev(vdev)
    }
}

/// Striped, each by itself.
impl From<Vec<Device>> for Layout {
    fn from(devices: Vec<Device>) -> Layout {
        Layout { vdevs: devices.into_iter().map(Vdev::single).collect(), spares: Vec::new() }
    }
}

/// The files that were made for a pool; removed again unless they are kept.
#[derive(Default)]
pub(crate) struct MadeFiles(Vec<PathBuf>);

impl MadeFiles {
    pub(crate) fn make(layout: &Layout) -> Result<MadeFiles> {
        let mut made = MadeFiles::default();
        for device in layout.devices() {
            if let Kind::Path { path, create: Some(bytes), .. } = &device.0 {
                host::create_sparse(path, *bytes).map_err(|e| Error::from(e).about(path.display().to_string()))?;
                made.0.push(path.clone());
            }
        }
        Ok(made)
    }
    pub(crate) fn keep(mut self) {
        self.0.clear();
    }
}

impl Drop for MadeFiles {
    fn drop(&mut self) {
        for path in &self.0 {
            let _ = std::fs::remove_file(path);
        }
    }
}
