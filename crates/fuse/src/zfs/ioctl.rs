//! Control operations on files: their flags and projects, as `linux/fs.h` has them, and the rewrite
//! of their blocks, as OpenZFS has it.

use base::ObjectId;
use host::{ZFS_IOC_REWRITE, ZFS_REWRITE_PHYSICAL};
use zpl::{Zfs, ioc_flags};

use crate::errno::{BAD_HANDLE, Errno, INVALID, NOT_SUPPORTED, NOT_TTY};
use crate::proto::{FS_IOC_FSSETXATTR, FS_IOC_SETFLAGS};
use crate::snapdir::read_only;
use crate::wire::{Fields, Put};

/// `_IOR('f', 1, long)` of `linux/fs.h`.
const FS_IOC_GETFLAGS: u32 = 0x8008_6601;
/// `_IOR('X', 31, struct fsxattr)`.
const FS_IOC_FSGETXATTR: u32 = 0x801c_581f;
/// Flags of `struct fsxattr` and the same as flags of `FS_IOC_GETFLAGS`.
const XFLAGS: [(u32, u32); 4] = [
    (0x8, ioc_flags::IMMUTABLE),
    (0x10, ioc_flags::APPEND),
    (0x80, ioc_flags::NODUMP),
    (0x200, ioc_flags::PROJINHERIT),
];

fn to_xflags(flags: u32) -> u32 {
    XFLAGS.iter().filter(|(_, f)| flags & f != 0).map(|(x, _)| x).sum()
}

fn from_xflags(xflags: u32) -> Option<u32> {
    let known: u32 = XFLAGS.iter().map(|(x, _)| x).sum();
    (xflags & !known == 0).then(|| XFLAGS.iter().filter(|(x, _)| xflags & x != 0).map(|(_, f)| f).sum())
}

/// How the file is open.
#[derive(Clone, Copy, Debug)]
pub(super) struct How {
    /// It is one of a snapshot.
    pub(super) in_snapshot: bool,
    /// It is open for writing.
    pub(super) writable: bool,
}

/// Serves a control operation on an object; the output.
pub(super) async fn ioctl(zfs: &Zfs, obj: ObjectId, how: How, cmd: u32, input: &[u8]) -> Result<Vec<u8>, Errno> {
    let mut f = Fields::new(input);
    let mut out = Vec::new();
    match cmd {
        FS_IOC_GETFLAGS => out.u32(zfs.get_flags(obj).await?),
        FS_IOC_SETFLAGS | FS_IOC_FSSETXATTR | ZFS_IOC_REWRITE if how.in_snapshot => return Err(read_only()),
        FS_IOC_SETFLAGS => zfs.set_flags(obj, f.u32()?).await?,
        FS_IOC_FSGETXATTR => {
            let a = zfs.getattr(obj).await?;
            out.u32(to_xflags(a.ioc_flags()));
            out.zeros(8);
            out.u32(a.projid);
            out.zeros(12);
        }
        FS_IOC_FSSETXATTR => {
            let xflags = f.u32()?;
            f.skip(8)?;
            let projid = f.u32()?;
            let a = zfs.getattr(obj).await?;
            if projid != a.projid {
                zfs.set_project(obj, projid).await?;
            }
            let flags = from_xflags(xflags).ok_or(NOT_SUPPORTED)?;
            if flags != a.ioc_flags() {
                zfs.set_flags(obj, flags).await?;
            }
        }
        ZFS_IOC_REWRITE => {
            let (off, len, flags, reserved) = (f.u64()?, f.u64()?, f.u64()?, f.u64()?);
            match flags {
                _ if !how.writable => return Err(BAD_HANDLE),
                _ if reserved != 0 => return Err(INVALID),
                0 => zfs.rewrite(obj, off, len).await.map(drop)?,
                ZFS_REWRITE_PHYSICAL => zfs.rewrite_physically(obj, off, len).await.map(drop)?,
                _ => return Err(INVALID),
            }
        }
        _ => return Err(NOT_TTY),
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags() {
        assert_eq!(to_xflags(0x30), 0x18);
        assert_eq!(from_xflags(0x208), Some(0x2000_0010));
        assert_eq!(from_xflags(0x1), None);
    }
}
