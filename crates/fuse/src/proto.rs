//! The protocol: requests, their encoding, and the layout of replies.
//!
//! Version 7 of the FUSE protocol, as `linux/fuse.h` (7.45) describes it; everything used here has
//! been there since 7.31, apart from `TMPFILE` (7.37) and `STATX` (7.39). A request is a header of
//! 40 bytes and arguments; a reply a header of 16 bytes and a body. Fields are in the byte order of
//! the machine. Unused fields of requests are skipped by length.

use crate::errno::{Errno, INVALID};
use crate::handler::{Attr, Caller, Entry, Opened, SetAttr, SetTime, StatFs, Time};
use crate::wire::{Fields, Put};

/// Major version of the protocol.
pub const MAJOR: u32 = 7;
/// The oldest minor version that is supported (Linux 5.4).
pub const MINOR_MIN: u32 = 31;
/// The newest one that is known.
pub const MINOR_MAX: u32 = 45;
/// That of Linux 6.3; 6.2 has the one before.
pub const MINOR_6_3: u32 = 38;
/// Bytes of a request's header.
pub const IN_HEADER: usize = 40;
/// Bytes of a reply's header.
pub const OUT_HEADER: usize = 16;
/// Bytes of the arguments of `WRITE`, behind which the data begin.
pub const WRITE_ARGS: usize = 40;
/// Node id of the root.
pub const ROOT_NODE: u64 = 1;

/// Operation codes of requests.
#[allow(missing_docs)] // The names are those of the protocol.
pub mod opcode {
    pub const LOOKUP: u32 = 1;
    pub const FORGET: u32 = 2;
    pub const GETATTR: u32 = 3;
    pub const SETATTR: u32 = 4;
    pub const READLINK: u32 = 5;
    pub const SYMLINK: u32 = 6;
    pub const MKNOD: u32 = 8;
    pub const MKDIR: u32 = 9;
    pub const UNLINK: u32 = 10;
    pub const RMDIR: u32 = 11;
    pub const RENAME: u32 = 12;
    pub const LINK: u32 = 13;
    pub const OPEN: u32 = 14;
    pub const READ: u32 = 15;
    pub const WRITE: u32 = 16;
    pub const STATFS: u32 = 17;
    pub const RELEASE: u32 = 18;
    pub const FSYNC: u32 = 20;
    pub const SETXATTR: u32 = 21;
    pub const GETXATTR: u32 = 22;
    pub const LISTXATTR: u32 = 23;
    pub const REMOVEXATTR: u32 = 24;
    pub const FLUSH: u32 = 25;
    pub const INIT: u32 = 26;
    pub const OPENDIR: u32 = 27;
    pub const READDIR: u32 = 28;
    pub const RELEASEDIR: u32 = 29;
    pub const FSYNCDIR: u32 = 30;
    pub const CREATE: u32 = 35;
    pub const INTERRUPT: u32 = 36;
    pub const DESTROY: u32 = 38;
    pub const IOCTL: u32 = 39;
    pub const BATCH_FORGET: u32 = 42;
    pub const FALLOCATE: u32 = 43;
    pub const READDIRPLUS: u32 = 44;
    pub const RENAME2: u32 = 45;
    pub const LSEEK: u32 = 46;
    pub const SYNCFS: u32 = 50;
    pub const TMPFILE: u32 = 51;
    pub const STATX: u32 = 52;
}

/// Flags of `INIT`: abilities of kernel and file system. The upper half travels in a field of its
/// own.
#[allow(missing_docs)] // The names are those of the protocol.
pub mod init {
    pub const ASYNC_READ: u64 = 1 << 0;
    pub const ATOMIC_O_TRUNC: u64 = 1 << 3;
    pub const EXPORT_SUPPORT: u64 = 1 << 4;
    pub const BIG_WRITES: u64 = 1 << 5;
    pub const DONT_MASK: u64 = 1 << 6;
    pub const DO_READDIRPLUS: u64 = 1 << 13;
    pub const READDIRPLUS_AUTO: u64 = 1 << 14;
    pub const ASYNC_DIO: u64 = 1 << 15;
    pub const WRITEBACK_CACHE: u64 = 1 << 16;
    pub const PARALLEL_DIROPS: u64 = 1 << 18;
    pub const POSIX_ACL: u64 = 1 << 20;
    pub const ABORT_ERROR: u64 = 1 << 21;
    pub const MAX_PAGES: u64 = 1 << 22;
    pub const CACHE_SYMLINKS: u64 = 1 << 23;
    pub const EXPLICIT_INVAL_DATA: u64 = 1 << 25;
    pub const HANDLE_KILLPRIV_V2: u64 = 1 << 28;
    pub const SETXATTR_EXT: u64 = 1 << 29;
    pub const INIT_EXT: u64 = 1 << 30;
    pub const DIRECT_IO_ALLOW_MMAP: u64 = 1 << 36;
}

/// Flags of the answer to `OPEN`: `FOPEN_DIRECT_IO`, reads and writes go past the kernel's cache.
pub const FOPEN_DIRECT_IO: u32 = 1 << 0;
/// `FOPEN_KEEP_CACHE`, cached data stay valid.
pub const FOPEN_KEEP_CACHE: u32 = 1 << 1;
/// `FOPEN_CACHE_DIR`: the kernel may cache the listing.
pub const FOPEN_CACHE_DIR: u32 = 1 << 3;
/// `FOPEN_NOFLUSH`: closing needs no `FLUSH`.
pub const FOPEN_NOFLUSH: u32 = 1 << 5;
/// `FOPEN_PARALLEL_DIRECT_WRITES`: direct writes of one file may run side by side.
pub const FOPEN_PARALLEL_DIRECT_WRITES: u32 = 1 << 6;

/// `_IOW('f', 2, long)` of `linux/fs.h`: sets the flags of a file.
pub const FS_IOC_SETFLAGS: u32 = 0x4008_6602;
/// `_IOW('X', 32, struct fsxattr)`: sets the flags and the project of a file.
pub const FS_IOC_FSSETXATTR: u32 = 0x401c_5820;

const FATTR_MODE: u32 = 1 << 0;
const FATTR_UID: u32 = 1 << 1;
const FATTR_GID: u32 = 1 << 2;
const FATTR_SIZE: u32 = 1 << 3;
const FATTR_ATIME: u32 = 1 << 4;
const FATTR_MTIME: u32 = 1 << 5;
const FATTR_FH: u32 = 1 << 6;
const FATTR_ATIME_NOW: u32 = 1 << 7;
const FATTR_MTIME_NOW: u32 = 1 << 8;
const FATTR_KILL_SUIDGID: u32 = 1 << 11;
const GETATTR_FH: u32 = 1 << 0;
const WRITE_CACHE: u32 = 1 << 0;
const WRITE_KILL_SUIDGID: u32 = 1 << 2;
/// Flag of an open file that stands in each of its writes: they are durable when they end. Part of
/// `O_SYNC`.
const O_DSYNC: u32 = libc::O_DSYNC as u32;
const O_DIRECT: u32 = libc::O_DIRECT as u32;
const OPEN_KILL_SUIDGID: u32 = 1 << 0;
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
            opcode::READ => Op::Read { fh: f.u64()?, offset: f.u64()?, size: f.u32()? },
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
                f.skip(12)?;
                let cmd = f.u32()?;
                f.skip(8)?;
                let (in_size, out_size) = (f.u32()?, f.u32()?);
                Op::Ioctl { cmd, input: f.bytes(in_size as usize)?, out_size }
            }
            opcode::FALLOCATE => Op::Fallocate { fh: f.u64()?, offset: f.u64()?, len: f.u64()?, mode: f.u32()? },
            opcode::LSEEK => Op::Lseek { fh: f.u64()?, offset: f.u64()?, whence: f.u32()? },
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

/// The reply to INIT.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct InitReply {
    /// Minor version that is spoken.
    pub minor: u32,
    /// Most bytes to read ahead.
    pub max_readahead: u32,
    /// The abilities in use, see [`init`].
    pub flags: u64,
    /// Requests of the background (readahead, direct I/O) that may be under way.
    pub max_background: u16,
    /// From how many on the kernel holds back.
    pub congestion: u16,
    /// Most bytes of a write.
    pub max_write: u32,
    /// Most pages of a request.
    pub max_pages: u16,
}

/// Adds the answer to `INIT` (64 bytes).
pub fn put_init(out: &mut impl Put, r: &InitReply) {
    out.u32(MAJOR);
    out.u32(r.minor);
    out.u32(r.max_readahead);
    out.u32(r.flags as u32);
    out.u16(r.max_background);
    out.u16(r.congestion);
    out.u32(r.max_write);
    // Times are exact to one nanosecond.
    out.u32(1);
    out.u16(r.max_pages);
    out.u16(0);
    out.u32((r.flags >> 32) as u32);
    out.zeros(28);
}

/// Adds the header of a reply with a body of `body` bytes.
pub fn put_header(out: &mut impl Put, unique: u64, error: Option<Errno>, body: usize) {
    out.u32(u32::try_from(OUT_HEADER + body).expect("replies are at most a few MiB"));
    out.u32(error.map_or(0, |e| (-e.0) as u32));
    out.u64(unique);
}

/// Adds a notification: the kernel must drop a node's cached attributes and ACLs. Cached data stay
/// (`FUSE_NOTIFY_INVAL_INODE` with a negative offset).
pub fn put_attrs_stale(out: &mut impl Put, node: u64) {
    put_inval_inode(out, node, -1, 0);
}

/// Adds a notification: the kernel must drop pages of a node, `len` bytes from `offset`, or all
/// from there on if `len` is 0 (`FUSE_NOTIFY_INVAL_INODE`).
pub fn put_drop_pages(out: &mut impl Put, node: u64, offset: u64, len: u64) {
    // Files end below 2^63.
    put_inval_inode(out, node, offset.cast_signed(), len.cast_signed());
}

/// Adds a notification: the kernel must drop a name of a directory, and its cached nodes below it
/// (`FUSE_NOTIFY_INVAL_ENTRY`).
pub fn put_drop_name(out: &mut impl Put, dir: u64, name: &[u8]) {
    const NOTIFY_INVAL_ENTRY: u32 = 3;
    const BODY: usize = 16;
    out.u32((OUT_HEADER + BODY + name.len() + 1) as u32);
    out.u32(NOTIFY_INVAL_ENTRY);
    out.u64(0);
    out.u64(dir);
    out.u32(name.len() as u32);
    out.u32(0);
    out.raw(name);
    out.raw(&[0]);
}

/// A negative offset means no data, a length of 0 all to the end.
fn put_inval_inode(out: &mut impl Put, node: u64, offset: i64, len: i64) {
    const NOTIFY_INVAL_INODE: u32 = 2;
    const BODY: usize = 24;
    out.u32((OUT_HEADER + BODY) as u32);
    out.u32(NOTIFY_INVAL_INODE);
    out.u64(0);
    out.u64(node);
    out.i64(offset);
    out.i64(len);
}

/// Adds attributes (88 bytes).
pub fn put_attr(out: &mut impl Put, a: &Attr) {
    for v in [a.ino, a.size, a.blocks, a.atime.secs as u64, a.mtime.secs as u64, a.ctime.secs as u64] {
        out.u64(v);
    }
    let ids = [a.mode, a.nlink, a.uid, a.gid, rdev_to_wire(a.rdev), a.blksize, 0];
    for v in [a.atime.nanos, a.mtime.nanos, a.ctime.nanos].into_iter().chain(ids) {
        out.u32(v);
    }
}

/// Adds the entry of a name (128 bytes).
pub fn put_entry(out: &mut impl Put, e: &Entry) {
    out.u64(e.node);
    out.u64(e.generation);
    out.u64(e.ttl.as_secs());
    out.u64(e.attr.ttl.as_secs());
    out.u32(e.ttl.subsec_nanos());
    out.u32(e.attr.ttl.subsec_nanos());
    put_attr(out, &e.attr);
}

/// Adds the answer to `GETATTR` and `SETATTR` (104 bytes).
pub fn put_attr_reply(out: &mut impl Put, a: &Attr) {
    out.u64(a.ttl.as_secs());
    out.u32(a.ttl.subsec_nanos());
    out.u32(0);
    put_attr(out, a);
}

/// Adds the answer to `STATX` (288 bytes).
pub fn put_statx_reply(out: &mut impl Put, a: &Attr) {
    /// `STATX_BASIC_STATS | STATX_BTIME`.
    const MASK: u32 = 0xfff;
    out.u64(a.ttl.as_secs());
    out.u32(a.ttl.subsec_nanos());
    out.zeros(4 + 16);
    out.u32(MASK);
    out.u32(a.blksize);
    out.u64(0);
    out.u32(a.nlink);
    out.u32(a.uid);
    out.u32(a.gid);
    out.u16(a.mode as u16);
    out.u16(0);
    out.u64(a.ino);
    out.u64(a.size);
    out.u64(a.blocks);
    out.u64(0);
    for t in [a.atime, a.crtime, a.ctime, a.mtime] {
        out.i64(t.secs);
        out.u32(t.nanos);
        out.u32(0);
    }
    out.u32(a.rdev.0);
    out.u32(a.rdev.1);
    out.zeros(8 + 112);
}

/// Adds the answer to `OPEN` (16 bytes).
pub fn put_open(out: &mut impl Put, o: &Opened) {
    out.u64(o.fh);
    out.u32(o.flags);
    out.u32(0);
}

/// Adds the answer to `STATFS` (80 bytes).
pub fn put_statfs(out: &mut impl Put, s: &StatFs) {
    for v in [s.blocks, s.bfree, s.bavail, s.files, s.ffree] {
        out.u64(v);
    }
    out.u32(s.bsize);
    out.u32(s.namelen);
    out.u32(s.frsize);
    out.zeros(28);
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::wire::Small;

    fn words(list: &[u64]) -> Vec<u8> {
        list.iter().flat_map(|v| v.to_ne_bytes()).collect()
    }
    fn halves(list: &[u32]) -> Vec<u8> {
        list.iter().flat_map(|v| v.to_ne_bytes()).collect()
    }
    fn body(put: impl FnOnce(&mut Small)) -> Vec<u8> {
        let mut s = Small::new();
        put(&mut s);
        s.as_slice().to_vec()
    }

    #[test]
    fn headers() {
        let mut bytes = halves(&[56, 3]);
        bytes.extend(words(&[0x1122, 34]));
        bytes.extend(halves(&[1000, 100, 4242]));
        bytes.extend([2u16.to_ne_bytes(), 0u16.to_ne_bytes()].concat());
        assert_eq!(bytes.len(), IN_HEADER);
        let h = InHeader::parse(&bytes).expect("a header");
        let caller = Caller { uid: 1000, gid: 100, pid: 4242, umask: 0 };
        assert_eq!(h, InHeader { len: 56, opcode: 3, unique: 0x1122, node: 34, caller, ext: 16 });
        assert_eq!(InHeader::parse(&bytes[..39]), Err(INVALID));
        let out = body(|s| put_header(s, 7, Some(Errno(2)), 0));
        assert_eq!(out, [halves(&[16, -2i32 as u32]), words(&[7])].concat());
        assert_eq!(body(|s| put_header(s, 9, None, 128))[..8], halves(&[144, 0]));
    }

    #[test]
    fn names() {
        let p = |code, args: &'static [u8]| Op::parse(code, args, true);
        assert_eq!(p(opcode::LOOKUP, b"abc\0"), Ok(Op::Lookup { name: b"abc" }));
        assert_eq!(p(opcode::LOOKUP, b"abc"), Err(INVALID));
        assert_eq!(p(opcode::LOOKUP, b"\0"), Err(INVALID));
        assert_eq!(p(opcode::LOOKUP, b"a/b\0"), Err(INVALID));
        assert_eq!(p(opcode::SYMLINK, b"a\0/x/y\0"), Ok(Op::Symlink { name: b"a", target: b"/x/y" }));
        let mut rename = words(&[77]);
        rename.extend(halves(&[1, 0]));
        rename.extend(b"old\0new\0");
        let want = Op::Rename { name: b"old", new_dir: 77, new_name: b"new", flags: 1 };
        assert_eq!(Op::parse(opcode::RENAME2, &rename, true), Ok(want));
        assert_eq!(Op::parse(opcode::RENAME2, &rename[..rename.len() - 1], true), Err(INVALID));
    }

    #[test]
    fn files_without_a_name() {
        let mut args = halves(&[libc::O_RDWR as u32, 0o600, 0o22, OPEN_KILL_SUIDGID]);
        let want = Op::TmpFile { mode: 0o600, umask: 0o22, flags: libc::O_RDWR as u32, kill_suidgid: true };
        assert_eq!(Op::parse(opcode::TMPFILE, &args, true), Ok(want.clone()));
        // Linux sends the name of the root, which no file can have.
        args.extend(b"/\0");
        assert_eq!(Op::parse(opcode::TMPFILE, &args, true), Ok(want));
        assert_eq!(Op::parse(opcode::TMPFILE, &args[..12], true), Err(INVALID));
    }

    #[test]
    fn set_attributes() {
        let mut args = halves(&[FATTR_MODE | FATTR_SIZE | FATTR_ATIME | FATTR_MTIME_NOW | FATTR_FH, 0]);
        args.extend(words(&[5, 4096, 0, -1i64 as u64, 2, 3]));
        args.extend(halves(&[10, 11, 12, 0o644, 0, 1, 2, 0]));
        assert_eq!(args.len(), 88);
        let want = SetAttr {
            mode: Some(0o644),
            size: Some(4096),
            atime: Some(SetTime::At(Time { secs: -1, nanos: 10 })),
            mtime: Some(SetTime::Now),
            fh: Some(5),
            ..SetAttr::default()
        };
        assert_eq!(Op::parse(opcode::SETATTR, &args, true), Ok(Op::SetAttr(want)));
        args[56..60].copy_from_slice(&1_000_000_000u32.to_ne_bytes());
        assert_eq!(Op::parse(opcode::SETATTR, &args, true), Err(INVALID));
    }

    #[test]
    fn data_and_attributes() {
        let mut args = words(&[3, 1 << 40]);
        args.extend(halves(&[4096, WRITE_KILL_SUIDGID, 0, 0, 0, 0]));
        assert_eq!(args.len(), WRITE_ARGS);
        for direct in [false, true] {
            let flags = if direct { O_DIRECT } else { 0 };
            args[32..36].copy_from_slice(&flags.to_ne_bytes());
            let (fh, offset, size, kill_suidgid) = (3, 1 << 40, 4096, true);
            let want = Op::Write { fh, offset, size, kill_suidgid, from_cache: false, sync: false, direct };
            assert_eq!(Op::parse(opcode::WRITE, &args, true), Ok(want));
        }
        let mut args = halves(&[3, 1, 1, 0]);
        args.extend(b"user.x\0abc");
        let set = |kill_sgid| Op::SetXattr { name: b"user.x", value: b"abc", flags: 1, kill_sgid };
        assert_eq!(Op::parse(opcode::SETXATTR, &args, true), Ok(set(true)));
        assert_eq!(Op::parse(opcode::SETXATTR, &args[..args.len() - 1], true), Err(INVALID));
        let old = [&args[..8], &args[16..]].concat();
        assert_eq!(Op::parse(opcode::SETXATTR, &old, false), Ok(set(false)));
        // A size beyond the data sent.
        args[..4].copy_from_slice(&u32::MAX.to_ne_bytes());
        assert_eq!(Op::parse(opcode::SETXATTR, &args, true), Err(INVALID));
    }

    #[test]
    fn forgetting() {
        let mut args = halves(&[2, 0]);
        args.extend(words(&[5, 1, 6, 2]));
        let Ok(Op::BatchForget { list }) = Op::parse(opcode::BATCH_FORGET, &args, true) else { panic!("two nodes") };
        assert_eq!(forgets(list).collect::<Vec<_>>(), [(5, 1), (6, 2)]);
        args[..4].copy_from_slice(&3u32.to_ne_bytes());
        assert_eq!(Op::parse(opcode::BATCH_FORGET, &args, true), Err(INVALID));
        args[..4].copy_from_slice(&u32::MAX.to_ne_bytes());
        assert_eq!(Op::parse(opcode::BATCH_FORGET, &args, true), Err(INVALID));
    }

    #[test]
    fn beginnings() {
        let mut args = halves(&[7, 45, 131_072, init::INIT_EXT as u32 | 1, 0x10]);
        args.resize(64, 0);
        let want = Init { major: 7, minor: 45, max_readahead: 131_072, flags: init::INIT_EXT | 1 | 0x10 << 32 };
        assert_eq!(Op::parse(opcode::INIT, &args, true), Ok(Op::Init(want)));
        assert_eq!(Op::parse(opcode::INIT, &args[..12], true), Err(INVALID));
        assert!(matches!(Op::parse(opcode::INIT, &halves(&[8, 0]), true), Ok(Op::Init(Init { major: 8, .. }))));
        let r = InitReply {
            minor: 39,
            max_readahead: 1,
            flags: 2 | 3 << 32,
            max_background: 4,
            congestion: 5,
            max_write: 6,
            max_pages: 256,
        };
        let out = body(|s| put_init(s, &r));
        assert_eq!(out.len(), 64);
        assert_eq!(out[..16], halves(&[7, 39, 1, 2]));
        assert_eq!(out[16..20], [4u16.to_ne_bytes(), 5u16.to_ne_bytes()].concat());
        assert_eq!(out[20..28], halves(&[6, 1]));
        assert_eq!(out[28..32], [256u16.to_ne_bytes(), 0u16.to_ne_bytes()].concat());
        assert_eq!(out[32..36], halves(&[3]));
    }

    #[test]
    fn dropping_pages() {
        let out = body(|s| put_drop_pages(s, 77, 0, 0));
        assert_eq!(out, [halves(&[40, 2]), words(&[0, 77, 0, 0])].concat());
        let out = body(|s| put_drop_pages(s, 77, 4096, 100));
        assert_eq!(out[24..], words(&[4096, 100]));
        let mut out = Vec::new();
        put_drop_name(&mut out, 77, b"abc");
        assert_eq!(out, [halves(&[36, 3]), words(&[0, 77]), halves(&[3, 0]), b"abc\0".to_vec()].concat());
    }

    #[test]
    fn attributes_and_entries() {
        let t = |n: i64| Time { secs: n, nanos: n as u32 + 100 };
        let a = Attr {
            ino: 34,
            size: 1 << 33,
            blocks: 9,
            atime: t(1),
            mtime: t(2),
            ctime: t(3),
            crtime: t(4),
            mode: 0o100644,
            nlink: 2,
            uid: 1000,
            gid: 100,
            rdev: (0x123, 0x45678),
            blksize: 131_072,
            ttl: Duration::new(5, 6),
        };
        let out = body(|s| put_attr(s, &a));
        assert_eq!(out.len(), 88);
        let rdev = 0x78 | 0x123 << 8 | 0x45600 << 12;
        let want =
            [words(&[34, 1 << 33, 9, 1, 2, 3]), halves(&[101, 102, 103, 0o100644, 2, 1000, 100, rdev, 131_072, 0])];
        assert_eq!(out, want.concat());
        assert_eq!(rdev_from_wire(rdev), (0x123, 0x45678));
        let e = Entry { node: 34, generation: 8, ttl: Duration::from_millis(1500), attr: a };
        let out = body(|s| put_entry(s, &e));
        assert_eq!(out.len(), 128);
        assert_eq!(out[..40], [words(&[34, 8, 1, 5]), halves(&[500_000_000, 6])].concat());
        assert_eq!(body(|s| put_attr_reply(s, &a)).len(), 104);
        assert_eq!(body(|s| put_open(s, &Opened { fh: 1, flags: 2 })), [words(&[1]), halves(&[2, 0])].concat());
        assert_eq!(body(|s| put_statfs(s, &StatFs::default())).len(), 80);
        let out = body(|s| put_statx_reply(s, &a));
        assert_eq!(out.len(), 288);
        assert_eq!(out[32..40], halves(&[0xfff, 131_072]));
        // The creation time is the second of the four.
        assert_eq!(out[32 + 64 + 16..][..12], [words(&[4]), halves(&[104])].concat());
        assert_eq!(out[32 + 128..][..8], halves(&[0x123, 0x45678]));
    }

    /// The parser refuses malformed requests and never panics.
    #[test]
    fn hostile_arguments() {
        let mut z = 1u64;
        let mut next = || {
            z = z.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            z >> 33
        };
        for round in 0..20_000 {
            let len = (next() % 120) as usize;
            let fill = next();
            let args: Vec<u8> = (0..len).map(|_| if fill & 1 == 0 { next() as u8 } else { 0xff }).collect();
            let code = if round % 8 == 0 { next() as u32 } else { (next() % 56) as u32 };
            if let Ok(Op::BatchForget { list }) = Op::parse(code, &args, round & 1 == 0) {
                forgets(list).for_each(drop);
            }
            let _ = InHeader::parse(&args);
        }
        // Every request cut short at every place.
        let full = [0x41u8; 200];
        for code in 0..60 {
            for n in 0..full.len() {
                let mut args = full[..n].to_vec();
                if let Some(last) = args.last_mut() {
                    *last = 0;
                }
                let _ = Op::parse(code, &args, true);
            }
        }
    }
}
