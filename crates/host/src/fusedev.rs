//! The block device of a mount, without which the kernel does not pass on `sync` and `syncfs`.
//!
//! Linux has a FUSE server make everything durable (`FUSE_SYNCFS`) only if the mount is one of type
//! `fuseblk`, which stands on a block device, and only since 6.18 ("fuse: enable FUSE_SYNCFS for
//! all fuseblk servers"). For mounts of type `fuse` both calls return at once. weir's devices are
//! not suitable: a file system is not on one device, and they are in use. So such a mount gets a
//! device of its own that holds nothing: a loop device over 4 KiB of memory. The kernel opens it
//! exclusively and looks at its number only; it goes with the mount (`LO_FLAGS_AUTOCLEAR`), also if
//! the process is killed.
//!
//! The list of mounts shows the path of the device as source. That should be the dataset, so the
//! thread that mounts works in a folder of its own where a symbolic link of that name leads to the
//! device.

use std::fs::{File, OpenOptions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, FileType, MemfdFlags, Mode};

use crate::tempdir::TempDir;

/// `linux/loop.h`.
const LOOP_CONFIGURE: libc::Ioctl = 0x4C0A;
const LOOP_CTL_GET_FREE: libc::Ioctl = 0x4C82;
/// `linux/major.h`.
const LOOP_MAJOR: u32 = 7;
const LO_FLAGS_AUTOCLEAR: u32 = 4;
/// Bytes of `struct loop_config`, and where `info.lo_flags` is in it: after `fd`, `block_size` and
/// 52 bytes of `struct loop_info64`.
const LOOP_CONFIG_BYTES: usize = 304;
const LOOP_CONFIG_FLAGS: usize = 8 + 52;
/// Bytes of the device: a block of the largest size that a mount uses by default.
const DEVICE_BYTES: u64 = 4096;
/// Tries to get a free device, which another process may take first.
const TRIES: u32 = 16;
/// The first kernel that passes `sync` on.
const KERNEL: (u32, u32) = (6, 18);

/// A device that is free for one mount. Dropped before that it goes; dropped after it, it stays as
/// long as the mount.
pub(crate) struct SyncDevice {
    _device: File,
    /// Where the link is; the thread works there. The last field: the folder goes when nothing in
    /// it is needed.
    _folder: TempDir,
    source: String,
}

impl SyncDevice {
    /// A device that a mount by this thread finds under the name `source`; it changes the working
    /// directory of the thread. None where there are no such devices or where they are of no use.
    pub(crate) fn new(source: &str) -> Option<SyncDevice> {
        if kernel() < KERNEL || source.starts_with('/') || source.split('/').any(|part| matches!(part, "" | "." | ".."))
        {
            return None;
        }
        let folder = TempDir::new("mount").ok()?;
        let (device, path) = loop_device(folder.path())?;
        let link = folder.join(source);
        std::fs::create_dir_all(link.parent()?).ok()?;
        std::os::unix::fs::symlink(path, &link).ok()?;
        go_to(folder.path())?;
        Some(SyncDevice { _device: device, _folder: folder, source: source.to_owned() })
    }

    /// The source of the mount.
    pub(crate) fn source(&self) -> &str {
        &self.source
    }
}

impl Drop for SyncDevice {
    fn drop(&mut self) {
        // The thread ends soon; the folder is not to be its working directory until then.
        let _ = go_to(Path::new("/"));
    }
}

/// Version and sublevel of the kernel.
fn kernel() -> (u32, u32) {
    let text = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let mut parts = text.split(|c: char| !c.is_ascii_digit()).map(|p| p.parse().unwrap_or(0));
    (parts.next().unwrap_or(0), parts.next().unwrap_or(0))
}

/// Makes `folder` the working directory of this thread alone.
fn go_to(folder: &Path) -> Option<()> {
    // SAFETY: no preconditions; the other threads keep their working directory.
    if unsafe { libc::unshare(libc::CLONE_FS) } != 0 {
        return None;
    }
    std::env::set_current_dir(folder).ok()
}

/// A loop device over memory, open, and its path. It ends with the last descriptor and mount. A
/// container's /dev may lack its node, which is made in `folder` then.
fn loop_device(folder: &Path) -> Option<(File, PathBuf)> {
    let open = |path: &Path| OpenOptions::new().read(true).write(true).custom_flags(libc::O_CLOEXEC).open(path).ok();
    let memory = File::from(rustix::fs::memfd_create(c"weir", MemfdFlags::CLOEXEC).ok()?);
    memory.set_len(DEVICE_BYTES).ok()?;
    let control = open(Path::new("/dev/loop-control"))?;
    let mut config = [0u64; LOOP_CONFIG_BYTES / 8];
    config[0] = u64::from_ne_bytes({
        let mut first = [0; 8];
        first[..4].copy_from_slice(&(memory.as_raw_fd() as u32).to_ne_bytes());
        first
    });
    // The flags are the second half of their word.
    config[LOOP_CONFIG_FLAGS / 8] = u64::from_ne_bytes({
        let mut word = [0; 8];
        word[LOOP_CONFIG_FLAGS % 8..][..4].copy_from_slice(&LO_FLAGS_AUTOCLEAR.to_ne_bytes());
        word
    });
    for _ in 0..TRIES {
        // SAFETY: takes no argument.
        let n = unsafe { libc::ioctl(control.as_raw_fd(), LOOP_CTL_GET_FREE) };
        if n < 0 {
            return None;
        }
        let mut path = PathBuf::from(format!("/dev/loop{n}"));
        if !path.exists() {
            path = folder.join(format!("loop{n}"));
            let device = rustix::fs::makedev(LOOP_MAJOR, n.unsigned_abs());
            let mode = Mode::RUSR | Mode::WUSR;
            // Of an earlier try it may be there.
            let _ = rustix::fs::mknodat(CWD, &path, FileType::BlockDevice, mode, device);
        }
        let device = open(&path)?;
        // SAFETY: the kernel reads a `struct loop_config`, which is as long as `config`.
        if unsafe { libc::ioctl(device.as_raw_fd(), LOOP_CONFIGURE, config.as_ptr()) } == 0 {
            return Some((device, path));
        }
        if std::io::Error::last_os_error().raw_os_error() != Some(libc::EBUSY) {
            return None;
        }
    }
    None
}
