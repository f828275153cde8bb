//! Requests: the header, the arguments of each operation, and their parser. A malformed request is
//! `EINVAL`; data of `WRITE` lie outside of its arguments.

use super::{MAJOR, init, opcode};
use crate::errno::{Errno, INVALID};
use crate::handler::{Caller, SetAttr, SetTime, Time};
use crate::wire::Fields;

pub(super) const FATTR_MODE: u32 = 1 << 0;
const FATTR_UID: u32 = 1 << 1;
const FATTR_GID: u32 = 1 << 2;
pub(super) const FATTR_SIZE: u32 = 1 << 3;
pub(super) const FATTR_ATIME: u32 = 1 << 4;
const FATTR_MTIME: u32 = 1 << 5;
pub(super) const FATTR_FH: u32 = 1 << 6;
const FATTR_ATIME_NOW: u32 = 1 << 7;
pub(super) const FATTR_MTIME_NOW: u32 = 1 << 8;
const FATTR_KILL_SUIDGID: u32 = 1 << 11;
const GETATTR_FH: u32 = 1 << 0;
const WRITE_CACHE: u32 = 1 << 0;
pub(super) const WRITE_KILL_SUIDGID: u32 = 1 << 2;
/// Flag of an open file that stands in each of its writes: they are durable when they end. Part of
/// `O_SYNC`.
const O_DSYNC: u32 = libc::O_DSYNC as u32;
pub(super) const O_DIRECT: u32 = libc::O_DIRECT as u32;
pub(super) const OPEN_KILL_SUIDGID: u32 = 1 << 0;
const FSYNC_DATASYNC: u32 = 1 << 0;
const SETXATTR_ACL_KILL_SGID: u32 = 1 << 0;

/// Header of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct InHeader {
    /// Bytes of the whole request.
    pub len: u32,
    /// The operation, see [`opcode`].
    pub opcode: u32,
    /// Names the request in its reply.
    pub unique: u64,
    /// The object that it is about.
    pub node: u64,
    /// The calling process.
    pub caller: Caller,
    /// Bytes of extensions at the end of the arguments.
    pub ext: usize,
}

impl InHeader {
    /// From the first 40 bytes.
    pub fn parse(bytes: &[u8]) -> Result<InHeader, Errno> {
        let mut f = Fields::new(bytes);
        let (len, opcode, unique, node) = (f.u32()?, f.u32()?, f.u64()?, f.u64()?);
        let caller = Caller { uid: f.u32()?, gid: f.u32()?, pid: f.u32()?, umask: 0 };
        let ext = usize::from(f.u16()?) * 8;
        f.skip(2)?;
        Ok(InHeader { len, opcode, unique, node, caller, ext })
    }
}

/// The operation of a request, `WRITE` without its data.
// Requests and fields have the names of the protocol; `Handler` documents them.
#[allow(missing_docs)]
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Op<'a> {
    Lookup {
        name: &'a [u8],
    },
    Forget {
        count: u64,
    },
    BatchForget {
        list: &'a [u8],
    },
    GetAttr {
        fh: Option<u64>,
    },
    SetAttr(SetAttr),
    ReadLink,
    Symlink {
        name: &'a [u8],
        target: &'a [u8],
    },
    MkNod {
        name: &'a [u8],
        mode: u32,
        rdev: (u32, u32),
        umask: u32,
    },
    MkDir {
        name: &'a [u8],
        mode: u32,
        umask: u32,
    },
    Unlink {
        name: &'a [u8],
    },
    RmDir {
        name: &'a [u8],
    },
    Rename {
        name: &'a [u8],
        new_dir: u64,
        new_name: &'a [u8],
        flags: u32,
    },
    Link {
        node: u64,
        name: &'a [u8],
    },
    Open {
        flags: u32,
        kill_suidgid: bool,
    },
    Create {
        name: &'a [u8],
        mode: u32,
        umask: u32,
        flags: u32,
        kill_suidgid: bool,
    },
    Read {
        fh: u64,
        offset: u64,
        size: u32,
        /// The file is open with `O_DIRECT`.
        direct: bool,
    },
    Write {
        fh: u64,
        offset: u64,
        size: u32,
        kill_suidgid: bool,
        from_cache: bool,
        /// The file was opened so that writes are durable when they end.
        sync: bool,
        /// The file is open with `O_DIRECT`.
        direct: bool,
    },
    StatFs,
    Release {
        fh: u64,
    },
    Fsync {
        fh: u64,
        datasync: bool,
    },
    FsyncDir {
        fh: u64,
        datasync: bool,
    },
    SetXattr {
        name: &'a [u8],
        value: &'a [u8],
        flags: u32,
        kill_sgid: bool,
    },
    GetXattr {
        name: &'a [u8],
        size: u32,
    },
    ListXattr {
        size: u32,
    },
    RemoveXattr {
        name: &'a [u8],
    },
    Init(Init),
    OpenDir,
    ReadDir {
        fh: u64,
        offset: u64,
        size: u32,
        plus: bool,
    },
    ReleaseDir {
        fh: u64,
    },
    Interrupt {
        unique: u64,
    },
    Destroy,
    Ioctl {
        fh: u64,
        cmd: u32,
        input: &'a [u8],
        out_size: u32,
    },
    Fallocate {
        fh: u64,
        offset: u64,
        len: u64,
        mode: u32,
    },
    Lseek {
        fh: u64,
        offset: u64,
        whence: u32,
    },
    CopyFileRange {
        offset: u64,
        to: u64,
        to_offset: u64,
        len: u64,
    },
    SyncFs,
    TmpFile {
        mode: u32,
        umask: u32,
        flags: u32,
        kill_suidgid: bool,
    },
    Statx {
        fh: Option<u64>,
    },
    /// Something that is not done here.
    Other,
}

/// The kernel's INIT request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Init {
    /// Major version.
    pub major: u32,
    /// Minor version.
    pub minor: u32,
    /// Most bytes that it reads ahead.
    pub max_readahead: u32,
    /// Its abilities, see [`init`].
    pub flags: u64,
}

/// A device number as FUSE writes it: 12 bits of major number above 8 of the minor one, its other
/// 12 at the top.
pub fn rdev_from_wire(v: u32) -> (u32, u32) {
    ((v >> 8) & 0xfff, (v & 0xff) | ((v >> 12) & 0xf_ff00))
}

/// The opposite; bits that do not fit are lost.
pub fn rdev_to_wire((major, minor): (u32, u32)) -> u32 {
    (minor & 0xff) | ((major & 0xfff) << 8) | ((minor & 0xf_ff00) << 12)
}

impl<'a> Op<'a> {
    /// From the operation code and the arguments. `setxattr_ext` as agreed at the beginning.
    pub fn parse(code: u32, args: &'a [u8], setxattr_ext: bool) -> Result<Op<'a>, Errno> {
        let mut f = Fields::new(args);
        Ok(match code {
            opcode::LOOKUP => Op::Lookup { name: f.name()? },
            opcode::FORGET => Op::Forget { count: f.u64()? },
            opcode::BATCH_FORGET => {
                let count = f.u32()? as usize;
                f.skip(4)?;
                Op::BatchForget { list: f.bytes(count.checked_mul(16).ok_or(INVALID)?)? }
            }
            opcode::GETATTR => Op::GetAttr { fh: optional_fh(&mut f)? },
            opcode::SETATTR => Op::SetAttr(parse_setattr(&mut f)?),
            opcode::READLINK => Op::ReadLink,
            opcode::SYMLINK => Op::Symlink { name: f.name()?, target: f.string()? },
            opcode::MKNOD => {
                let (mode, rdev, umask) = (f.u32()?, rdev_from_wire(f.u32()?), f.u32()?);
                f.skip(4)?;
                Op::MkNod { name: f.name()?, mode, rdev, umask }
            }
            opcode::MKDIR => {
                let (mode, umask) = (f.u32()?, f.u32()?);
                Op::MkDir { name: f.name()?, mode, umask }
            }
            opcode::UNLINK => Op::Unlink { name: f.name()? },
            opcode::RMDIR => Op::RmDir { name: f.name()? },
            opcode::RENAME => {
                let new_dir = f.u64()?;
                Op::Rename { name: f.name()?, new_dir, new_name: f.name()?, flags: 0 }
            }
            opcode::RENAME2 => {
                let (new_dir, flags) = (f.u64()?, f.u32()?);
                f.skip(4)?;
                Op::Rename { name: f.name()?, new_dir, new_name: f.name()?, flags }
            }
            opcode::LINK => Op::Link { node: f.u64()?, name: f.name()? },
            opcode::OPEN => Op::Open { flags: f.u32()?, kill_suidgid: f.u32()? & OPEN_KILL_SUIDGID != 0 },
            opcode::CREATE => {
                let (flags, mode, umask) = (f.u32()?, f.u32()?, f.u32()?);
                let kill_suidgid = f.u32()? & OPEN_KILL_SUIDGID != 0;
                Op::Create { name: f.name()?, mode, umask, flags, kill_suidgid }
            }
            opcode::READ => {
                let (fh, offset, size) = (f.u64()?, f.u64()?, f.u32()?);
                f.skip(12)?;
                Op::Read { fh, offset, size, direct: f.u32()? & O_DIRECT != 0 }
            }
            opcode::WRITE => {
                let (fh, offset, size, write_flags) = (f.u64()?, f.u64()?, f.u32()?, f.u32()?);
                f.skip(8)?;
                let flags = f.u32()?;
                f.skip(4)?;
                let kill_suidgid = write_flags & WRITE_KILL_SUIDGID != 0;
                let from_cache = write_flags & WRITE_CACHE != 0;
                let (sync, direct) = (flags & O_DSYNC != 0, flags & O_DIRECT != 0);
                Op::Write { fh, offset, size, kill_suidgid, from_cache, sync, direct }
            }
            opcode::STATFS => Op::StatFs,
            opcode::RELEASE => Op::Release { fh: f.u64()? },
            opcode::RELEASEDIR => Op::ReleaseDir { fh: f.u64()? },
            opcode::FSYNC => Op::Fsync { fh: f.u64()?, datasync: f.u32()? & FSYNC_DATASYNC != 0 },
            opcode::FSYNCDIR => Op::FsyncDir { fh: f.u64()?, datasync: f.u32()? & FSYNC_DATASYNC != 0 },
            opcode::SETXATTR => {
                let (size, flags) = (f.u32()?, f.u32()?);
                let mut kill_sgid = false;
                if setxattr_ext {
                    kill_sgid = f.u32()? & SETXATTR_ACL_KILL_SGID != 0;
                    f.skip(4)?;
                }
                Op::SetXattr { name: f.string()?, value: f.bytes(size as usize)?, flags, kill_sgid }
            }
            opcode::GETXATTR => {
                let size = f.u32()?;
                f.skip(4)?;
                Op::GetXattr { name: f.string()?, size }
            }
            opcode::LISTXATTR => Op::ListXattr { size: f.u32()? },
            opcode::REMOVEXATTR => Op::RemoveXattr { name: f.string()? },
            opcode::INIT => Op::Init(parse_init(&mut f)?),
            opcode::OPENDIR => Op::OpenDir,
            opcode::READDIR | opcode::READDIRPLUS => {
                let plus = code == opcode::READDIRPLUS;
                Op::ReadDir { fh: f.u64()?, offset: f.u64()?, size: f.u32()?, plus }
            }
            opcode::INTERRUPT => Op::Interrupt { unique: f.u64()? },
            opcode::DESTROY => Op::Destroy,
            opcode::IOCTL => {
                let fh = f.u64()?;
                f.skip(4)?;
                let cmd = f.u32()?;
                f.skip(8)?;
                let (in_size, out_size) = (f.u32()?, f.u32()?);
                Op::Ioctl { fh, cmd, input: f.bytes(in_size as usize)?, out_size }
            }
            opcode::FALLOCATE => Op::Fallocate { fh: f.u64()?, offset: f.u64()?, len: f.u64()?, mode: f.u32()? },
            opcode::LSEEK => Op::Lseek { fh: f.u64()?, offset: f.u64()?, whence: f.u32()? },
            opcode::COPY_FILE_RANGE => {
                f.skip(8)?;
                let (offset, to) = (f.u64()?, f.u64()?);
                f.skip(8)?;
                Op::CopyFileRange { offset, to, to_offset: f.u64()?, len: f.u64()? }
            }
            opcode::SYNCFS => Op::SyncFs,
            opcode::TMPFILE => {
                let (flags, mode, umask) = (f.u32()?, f.u32()?, f.u32()?);
                // A name follows that means nothing.
                Op::TmpFile { mode, umask, flags, kill_suidgid: f.u32()? & OPEN_KILL_SUIDGID != 0 }
            }
            opcode::STATX => Op::Statx { fh: optional_fh(&mut f)? },
            _ => Op::Other,
        })
    }
}

fn optional_fh(f: &mut Fields<'_>) -> Result<Option<u64>, Errno> {
    let flags = f.u32()?;
    f.skip(4)?;
    let fh = f.u64()?;
    Ok((flags & GETATTR_FH != 0).then_some(fh))
}

fn parse_init(f: &mut Fields<'_>) -> Result<Init, Errno> {
    let (major, minor) = (f.u32()?, f.u32()?);
    // The rest of the request of another major version is unknown.
    if major != MAJOR {
        return Ok(Init { major, minor, max_readahead: 0, flags: 0 });
    }
    let (max_readahead, low) = (f.u32()?, u64::from(f.u32()?));
    let high = if low & init::INIT_EXT != 0 { u64::from(f.u32()?) } else { 0 };
    Ok(Init { major, minor, max_readahead, flags: low | high << 32 })
}

fn parse_setattr(f: &mut Fields<'_>) -> Result<SetAttr, Errno> {
    let valid = f.u32()?;
    f.skip(4)?;
    let (fh, size) = (f.u64()?, f.u64()?);
    f.skip(8)?;
    let (atime, mtime, _ctime) = (f.i64()?, f.i64()?, f.i64()?);
    let (atime_nanos, mtime_nanos, _ctime_nanos) = (f.u32()?, f.u32()?, f.u32()?);
    let mode = f.u32()?;
    f.skip(4)?;
    let (uid, gid) = (f.u32()?, f.u32()?);
    f.skip(4)?;
    let has = |bit: u32| valid & bit != 0;
    let time = |set: u32, now: u32, secs: i64, nanos: u32| match (has(set), has(now)) {
        (false, false) => Ok(None),
        (_, true) => Ok(Some(SetTime::Now)),
        (true, false) if nanos < 1_000_000_000 => Ok(Some(SetTime::At(Time { secs, nanos }))),
        _ => Err(INVALID),
    };
    Ok(SetAttr {
        mode: has(FATTR_MODE).then_some(mode),
        uid: has(FATTR_UID).then_some(uid),
        gid: has(FATTR_GID).then_some(gid),
        size: has(FATTR_SIZE).then_some(size),
        atime: time(FATTR_ATIME, FATTR_ATIME_NOW, atime, atime_nanos)?,
        mtime: time(FATTR_MTIME, FATTR_MTIME_NOW, mtime, mtime_nanos)?,
        kill_suidgid: has(FATTR_KILL_SUIDGID),
        fh: has(FATTR_FH).then_some(fh),
    })
}

/// The pairs of node id and count of `BATCH_FORGET`.
pub fn forgets(list: &[u8]) -> impl Iterator<Item = (u64, u64)> {
    let mut f = Fields::new(list);
    std::iter::from_fn(move || Some((f.u64().ok()?, f.u64().ok()?)))
}
