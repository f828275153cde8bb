//! Opening files and disks: access, locks, sizes, alignment of direct I/O.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

use base::{Error, ErrorKind, Result};
use bdev::DevInfo;
use rustix::fs::{AtFlags, FallocateFlags, OFlags, StatxFlags, fallocate, fcntl_setfl, statx};

/// Whether transfers bypass the page cache.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Direct {
    /// Where the medium allows it.
    #[default]
    Auto,
    /// Never.
    Off,
    /// Always; an error where the medium does not allow it.
    On,
}

/// Sharing of an open device. Only programs that lock too are kept out.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Lock {
    /// Exclusive if it is opened for writing, else shared with other readers.
    #[default]
    Auto,
    /// No other opener.
    Exclusive,
    /// Others that share.
    Shared,
    /// No lock: for reading labels.
    None,
}

/// How to open a device.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct OpenOpts {
    /// For writing as well as reading.
    pub write: bool,
    /// Whether to bypass the page cache.
    pub direct: Direct,
    /// Sharing with other openers.
    pub lock: Lock,
}

/// Alignment of addresses and lengths that always suffices for direct I/O where the kernel reports
/// none, in bytes.
const SAFE_ALIGN: u32 = 512;
/// Physical sector reported for files: default ashift 12.
const FILE_PHYSICAL: u32 = 4096;
/// Logical sector of files.
const FILE_LOGICAL: u32 = 512;

/// `linux/fs.h`: `_IO(0x12, 104)`, `_IO(0x12, 123)`, `_IOR(0x12, 114, size_t)`, `_IO(0x12, 94)`.
const BLKSSZGET: libc::Ioctl = 0x1268;
const BLKPBSZGET: libc::Ioctl = 0x127b;
const BLKGETSIZE64: libc::Ioctl = 0x8008_1272;
const BLKROGET: libc::Ioctl = 0x125e;

/// An open device and its properties.
pub(crate) struct Opened {
    /// Direct if `direct` is set.
    pub(crate) file: File,
    /// The same through the page cache, for transfers that direct I/O does not take. Only beside a
    /// direct `file`.
    pub(crate) buffered: Option<File>,
    pub(crate) direct: Option<DirectAlign>,
    pub(crate) info: DevInfo,
    pub(crate) block_device: bool,
}

/// Alignment for direct I/O, in bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DirectAlign {
    pub(crate) memory: u32,
    /// Of offset and every length.
    pub(crate) offset: u32,
}

pub(crate) fn os_error(path: &str, what: &str, e: &io::Error) -> Error {
    let kind = match e.kind() {
        io::ErrorKind::NotFound => ErrorKind::NotFound,
        io::ErrorKind::PermissionDenied => ErrorKind::Denied,
        io::ErrorKind::ReadOnlyFilesystem => ErrorKind::ReadOnly,
        io::ErrorKind::AlreadyExists => ErrorKind::Exists,
        io::ErrorKind::StorageFull => ErrorKind::NoSpace,
        io::ErrorKind::ResourceBusy => ErrorKind::Busy,
        io::ErrorKind::IsADirectory => ErrorKind::IsDir,
        _ => ErrorKind::Io,
    };
    Error::new(kind, format!("{path}: {what}: {e}"))
}

fn in_use(path: &str) -> Error {
    match crate::holder::holder(Path::new(path)) {
        Some(why) => Error::new(ErrorKind::Busy, format!("{path} is in use: {why}")),
        None => Error::new(ErrorKind::Busy, format!("{path} is in use by another process")),
    }
}

/// The path of a device that is being opened.
struct Opener<'a> {
    path: &'a Path,
    /// The path in messages.
    name: &'a str,
    opts: OpenOpts,
    block_device: bool,
    /// The number of the disk, for block devices.
    rdev: u64,
}

impl Opener<'_> {
    fn open_with(&self, flags: i32) -> io::Result<File> {
        let opts = self.opts;
        // The kernel's own claim on a disk (O_EXCL): refused while the disk is mounted or part of
        // another device; later claims (mkfs, mount, swapon, md) are refused. Opens without a claim
        // stay possible.
        let claim = if self.block_device && (opts.write || opts.lock != Lock::None) { libc::O_EXCL } else { 0 };
        OpenOptions::new().read(true).write(opts.write).custom_flags(libc::O_CLOEXEC | claim | flags).open(self.path)
    }

    fn error(&self, e: io::Error) -> Error {
        let name = self.name;
        match e.kind() {
            io::ErrorKind::ResourceBusy => in_use(name),
            io::ErrorKind::ReadOnlyFilesystem => Error::new(ErrorKind::ReadOnly, format!("{name} is read only")),
            // A read-only disk gives the same error as one without permission.
            io::ErrorKind::PermissionDenied if self.block_device && self.opts.write && is_readonly_disk(self.rdev) => {
                Error::new(ErrorKind::ReadOnly, format!("{name} is read only"))
            }
            _ => os_error(name, "cannot be opened", &e),
        }
    }

    /// Opens the device; true if the file bypasses the page cache.
    fn open(&self) -> Result<(File, bool)> {
        match self.opts.direct {
            Direct::Off => Ok((self.open_with(0).map_err(|e| self.error(e))?, false)),
            Direct::On => Ok((self.open_with(libc::O_DIRECT).map_err(|e| self.error(e))?, true)),
            Direct::Auto => match self.open_with(libc::O_DIRECT) {
                Ok(f) => Ok((f, true)),
                Err(e) if e.raw_os_error() == Some(libc::EINVAL) => {
                    Ok((self.open_with(0).map_err(|e| self.error(e))?, false))
                }
                Err(e) => Err(self.error(e)),
            },
        }
    }
}

pub(crate) fn open(path: &Path, opts: OpenOpts) -> Result<Opened> {
    let name = path.display().to_string();
    let meta = std::fs::metadata(path).map_err(|e| os_error(&name, "cannot be opened", &e))?;
    let kind = meta.file_type();
    if !kind.is_file() && !kind.is_block_device() {
        return Err(Error::invalid(format!("{name} is neither a file nor a block device")));
    }
    let block_device = kind.is_block_device();
    let opener = Opener { path, name: &name, opts, block_device, rdev: meta.rdev() };
    let (mut file, mut direct) = opener.open()?;
    lock(&file, &name, opts)?;
    let fd = file.as_raw_fd();
    // Some disks can be opened for writing and then refuse every write.
    if block_device && opts.write && ioctl_u32(fd, BLKROGET).is_ok_and(|readonly| readonly != 0) {
        return Err(Error::new(ErrorKind::ReadOnly, format!("{name} is read only")));
    }
    let (size, logical, physical) = geometry(&file, &name, block_device)?;
    let mut align = None;
    if direct {
        align = direct_align(&file, size, logical);
        if align.is_none() {
            if opts.direct == Direct::On {
                return Err(Error::new(ErrorKind::Unsupported, format!("{name} does not allow direct I/O")));
            }
            // Same file, lock and all: only the flag goes.
            let cleared = fcntl_setfl(&file, OFlags::empty()).is_ok();
            if !cleared {
                let again = opener.open_with(0).map_err(|e| opener.error(e))?;
                drop(std::mem::replace(&mut file, again));
                lock(&file, &name, opts)?;
            }
            direct = false;
        }
    }
    let buffered = match align {
        Some(a) if a.offset > logical => {
            // Not exclusive again: the first open holds the claim.
            let f = OpenOptions::new().read(true).write(opts.write).custom_flags(libc::O_CLOEXEC).open(path);
            Some(f.map_err(|e| os_error(&name, "cannot be opened", &e))?)
        }
        _ => None,
    };
    debug_assert_eq!(direct, align.is_some());
    let dev = if block_device { meta.rdev() } else { meta.dev() };
    let info = DevInfo {
        path: name,
        size_bytes: size & !(u64::from(logical) - 1),
        logical_sector: logical,
        physical_sector: physical,
        rotational: queue_attribute(dev, "rotational") == Some(1),
        writable: opts.write,
        writes_durably: true,
        supports_discard: opts.write
            && if block_device {
                queue_attribute(dev, "discard_max_bytes").is_some_and(|n| n > 0)
            } else {
                // Punching behind the end loses no data: it only tests whether the file system can.
                fallocate(&file, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, size, 4096).is_ok()
            },
    };
    Ok(Opened { file, buffered, direct: align, info, block_device })
}

/// Size of the medium, logical and physical sector, in bytes.
fn geometry(file: &File, name: &str, block_device: bool) -> Result<(u64, u32, u32)> {
    let fd = file.as_raw_fd();
    let (size, logical, physical) = if block_device {
        let logical = ioctl_u32(fd, BLKSSZGET).map_err(|e| os_error(name, "its sector size is not known", &e))?;
        let physical = ioctl_u32(fd, BLKPBSZGET).unwrap_or(logical).max(logical);
        if !logical.is_power_of_two() || !physical.is_power_of_two() || !(512..=65536).contains(&logical) {
            return Err(Error::new(
                ErrorKind::Unsupported,
                format!("{name} has sectors of {logical} and {physical} bytes, which weir does not do"),
            ));
        }
        (device_size(file, true), logical, physical)
    } else {
        (device_size(file, false), FILE_LOGICAL, FILE_PHYSICAL)
    };
    let size = size.map_err(|e| os_error(name, "its size is not known", &e))?;
    Ok((size, logical, physical))
}

fn lock(file: &File, name: &str, opts: OpenOpts) -> Result<()> {
    let result = match (opts.lock, opts.write) {
        (Lock::None, _) => return Ok(()),
        (Lock::Exclusive, _) | (Lock::Auto, true) => file.try_lock(),
        (Lock::Shared, _) | (Lock::Auto, false) => file.try_lock_shared(),
    };
    match result {
        Ok(()) => Ok(()),
        Err(std::fs::TryLockError::WouldBlock) => Err(in_use(name)),
        Err(std::fs::TryLockError::Error(e)) => Err(os_error(name, "cannot be locked", &e)),
    }
}

/// Bytes of the medium now.
pub(crate) fn device_size(file: &File, block_device: bool) -> io::Result<u64> {
    if !block_device {
        return Ok(file.metadata()?.len());
    }
    let mut bytes = 0u64;
    // SAFETY: BLKGETSIZE64 writes a u64.
    if unsafe { libc::ioctl(file.as_raw_fd(), BLKGETSIZE64, &raw mut bytes) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(bytes)
}

fn ioctl_u32(fd: RawFd, request: libc::Ioctl) -> io::Result<u32> {
    let mut value: libc::c_int = 0;
    // SAFETY: the requests used here write a C int.
    if unsafe { libc::ioctl(fd, request, &raw mut value) } != 0 {
        return Err(io::Error::last_os_error());
    }
    u32::try_from(value).map_err(|_| io::Error::from(io::ErrorKind::InvalidData))
}

/// Alignment of direct I/O on `file`; None if it does not work at all.
fn direct_align(file: &File, size: u64, logical: u32) -> Option<DirectAlign> {
    let st = statx(file, c"", AtFlags::EMPTY_PATH, StatxFlags::DIOALIGN);
    let sane = |n: u32| n.is_power_of_two() && n <= 65536;
    if let Ok(st) = st
        && st.stx_mask & StatxFlags::DIOALIGN.bits() != 0
    {
        let (memory, offset) = (st.stx_dio_mem_align, st.stx_dio_offset_align);
        // Both 0: the file system has no direct I/O.
        return (sane(memory) && sane(offset)).then_some(DirectAlign { memory, offset: offset.max(logical) });
    }
    // An older kernel: try.
    for offset in [logical.max(SAFE_ALIGN), 4096] {
        if size < u64::from(offset) {
            return Some(DirectAlign { memory: 4096, offset: 4096 });
        }
        let mut probe = bdev::Buf::zeroed(offset as usize);
        if rustix::io::pread(file, &mut probe[..], 0).is_ok() {
            return Some(DirectAlign { memory: SAFE_ALIGN.max(offset), offset });
        }
    }
    None
}

/// A number that the kernel shows of the queue of the disk (or of the disk that a partition is on)
/// numbered `dev`.
fn queue_attribute(dev: u64, name: &str) -> Option<u64> {
    let base = format!("/sys/dev/block/{}:{}", libc::major(dev), libc::minor(dev));
    [format!("{base}/queue/{name}"), format!("{base}/../queue/{name}")]
        .iter()
        .find_map(|p| std::fs::read_to_string(p).ok())
        .and_then(|s| s.trim().parse().ok())
}

/// What the kernel says that a device is made of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Medium {
    /// A spinning disk.
    Spinning,
    /// Flash behind SATA, SAS or the like.
    Flash,
    /// Flash behind NVMe.
    Nvme,
    /// No block device, or a virtual one, which mostly says that it spins whatever it is.
    Unknown,
}

/// What the device at a path is made of.
pub fn medium(path: &Path) -> Medium {
    let Ok(meta) = std::fs::metadata(path) else { return Medium::Unknown };
    if !meta.file_type().is_block_device() {
        return Medium::Unknown;
    }
    let dev = meta.rdev();
    let sysfs = format!("/sys/dev/block/{}:{}", libc::major(dev), libc::minor(dev));
    let real = std::fs::canonicalize(sysfs).unwrap_or_default();
    medium_by(&real.to_string_lossy(), queue_attribute(dev, "rotational"))
}

/// What a device is made of, by its place in sysfs and whether it says that it spins.
fn medium_by(sysfs: &str, rotational: Option<u64>) -> Medium {
    let is_virtual =
        ["/virtio", "/vbd-", "/vmbus", "/devices/virtual/block/loop"].iter().any(|bus| sysfs.contains(bus));
    match rotational {
        Some(0) if sysfs.contains("/nvme") => Medium::Nvme,
        Some(0) => Medium::Flash,
        Some(1) if !is_virtual => Medium::Spinning,
        _ => Medium::Unknown,
    }
}

/// Opens a file for reading in a folder of another user: no link is followed, and nothing there can
/// make the call wait.
pub fn open_untrusted(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).custom_flags(libc::O_CLOEXEC | libc::O_NOFOLLOW | libc::O_NONBLOCK).open(path)
}

/// Whether the disk or partition numbered `dev` is read-only by sysfs.
fn is_readonly_disk(dev: u64) -> bool {
    let path = format!("/sys/dev/block/{}:{}/ro", libc::major(dev), libc::minor(dev));
    std::fs::read_to_string(path).is_ok_and(|s| s.trim() == "1")
}

/// Makes a file of `size` bytes, for its owner alone (mode 0600), that takes no space yet.
/// [`ErrorKind::Exists`] if there is one already.
pub fn create_sparse(path: impl AsRef<Path>, size: u64) -> Result<()> {
    let path = path.as_ref();
    let name = path.display().to_string();
    let file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)
        .map_err(|e| os_error(&name, "cannot be created", &e))?;
    if let Err(e) = file.set_len(size) {
        let _ = std::fs::remove_file(path);
        return Err(os_error(&name, "cannot be made that long", &e));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn media_are_known_by_their_place_in_sysfs() {
        for (sysfs, rotational, want) in [
            ("/sys/devices/pci0000:00/0000:00:1d.0/nvme/nvme0/nvme0n1/nvme0n1p1", Some(0), Medium::Nvme),
            ("/sys/devices/pci0000:00/0000:00:17.0/ata1/host0/target0:0:0/0:0:0:0/block/sda", Some(0), Medium::Flash),
            (
                "/sys/devices/pci0000:00/0000:00:17.0/ata1/host0/target0:0:0/0:0:0:0/block/sda",
                Some(1),
                Medium::Spinning,
            ),
            ("/sys/devices/virtual/block/dm-0", Some(1), Medium::Spinning),
            ("/sys/devices/pci0000:00/0000:00:02.0/virtio1/block/vda", Some(1), Medium::Unknown),
            ("/sys/devices/pci0000:00/0000:00:02.0/virtio1/block/vda", Some(0), Medium::Flash),
            ("/sys/devices/virtual/block/loop0", Some(1), Medium::Unknown),
            ("", None, Medium::Unknown),
        ] {
            assert_eq!(medium_by(sysfs, rotational), want, "{sysfs} {rotational:?}");
        }
        assert_eq!(medium(Path::new("/dev/null")), Medium::Unknown);
    }
}
