//! The protocol: requests, their encoding, and the layout of replies.
//!
//! Version 7 of the FUSE protocol, as `linux/fuse.h` (7.45) describes it; everything used here has
//! been there since 7.31, apart from `TMPFILE` (7.37) and `STATX` (7.39). A request is a header of
//! 40 bytes and arguments; a reply a header of 16 bytes and a body. Fields are in the byte order of
//! the machine. Unused fields of requests are skipped by length.
//!
//! This file has the constants, `request` parses requests, `reply` lays out replies and
//! notifications.

mod reply;
mod request;
#[cfg(test)]
mod tests;

pub use reply::{
    InitReply, put_attr, put_attr_reply, put_attrs_stale, put_drop_name, put_drop_pages, put_entry, put_expire_name,
    put_header, put_init, put_open, put_statfs, put_statx_reply,
};
pub use request::{InHeader, Init, Op, forgets, rdev_from_wire, rdev_to_wire};

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
    pub const COPY_FILE_RANGE: u32 = 47;
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
