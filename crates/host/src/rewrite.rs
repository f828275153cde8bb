//! The request of OpenZFS that writes blocks of a file anew (`zfs rewrite`).

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// `ZFS_IOC_REWRITE` of OpenZFS 2.3.4 (`include/sys/fs/zfs.h`):
/// `_IOW(0x83, 3, zfs_rewrite_args_t)`, which is offset, length, flags and a reserved word of 64
/// bits each.
pub const ZFS_IOC_REWRITE: u32 = 0x4020_8303;

/// `ZFS_REWRITE_PHYSICAL` of OpenZFS 2.4, a flag of [`ZFS_IOC_REWRITE`]: blocks keep their logical
/// births.
pub const ZFS_REWRITE_PHYSICAL: u64 = 1;

/// Opens a regular file for [`rewrite_file`]. It waits for nothing and follows no link, since a
/// name may have become a link or a pipe since it was looked at.
pub fn open_to_rewrite(path: &Path) -> io::Result<File> {
    OpenOptions::new().write(true).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK).open(path)
}

/// Asks the file system of `file`, which is open for writing, to write the blocks of `len` bytes
/// from `off` anew (0: up to the end of the file).
///
/// Errors: `Unsupported` if the file system knows no such request, and what it answers.
pub fn rewrite_file(file: &File, off: u64, len: u64) -> io::Result<()> {
    ask(file, [off, len, 0, 0])
}

/// As [`rewrite_file`], but the blocks keep their logical births. Errors: also that of the system
/// for what is not supported (`EOPNOTSUPP`), if the pool does not have the feature for it.
pub fn rewrite_file_physically(file: &File, off: u64, len: u64) -> io::Result<()> {
    ask(file, [off, len, ZFS_REWRITE_PHYSICAL, 0])
}

fn ask(file: &File, args: [u64; 4]) -> io::Result<()> {
    // SAFETY: the request reads four words of 64 bits, which `args` has.
    if unsafe { libc::ioctl(file.as_raw_fd(), ZFS_IOC_REWRITE as libc::Ioctl, args.as_ptr()) } != 0 {
        let e = io::Error::last_os_error();
        let unknown = e.raw_os_error() == Some(libc::ENOTTY);
        return Err(if unknown { io::ErrorKind::Unsupported.into() } else { e });
    }
    Ok(())
}
