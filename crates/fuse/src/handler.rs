//! The interface of a file system to a session.

use std::time::Duration;

use bdev::Bytes;
use rt::sync::Pass;

use crate::dir::DirOut;
use crate::errno::{Errno, NO_SYS, NOT_TTY};
use crate::session::Kernel;

/// Bytes that one request copies or clones from file to file at most: programs ask again for the
/// rest.
pub(crate) const COPY_MAX: u64 = 1 << 30;

/// The process that made a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Caller {
    /// User id for file access.
    pub uid: u32,
    /// Group id for file access.
    pub gid: u32,
    /// Process, 0 for the kernel itself.
    pub pid: u32,
    /// Permission bits that new objects do not get, unless a default ACL sets them. Only set in
    /// requests that create.
    pub umask: u32,
}

/// A time of a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Time {
    /// Seconds since 1970.
    pub secs: i64,
    /// Nanoseconds, below a billion.
    pub nanos: u32,
}

/// Attributes of a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Attr {
    /// Inode number as users see it.
    pub ino: u64,
    /// Size in bytes.
    pub size: u64,
    /// Space taken, in units of 512 bytes.
    pub blocks: u64,
    /// Access time.
    pub atime: Time,
    /// Modification time.
    pub mtime: Time,
    /// Change time.
    pub ctime: Time,
    /// Creation time.
    pub crtime: Time,
    /// Type and permissions.
    pub mode: u32,
    /// Number of links.
    pub nlink: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Major and minor number of a device.
    pub rdev: (u32, u32),
    /// Preferred size of transfers.
    pub blksize: u32,
    /// How long the kernel may cache them.
    pub ttl: Duration,
}

/// The result of a lookup.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Entry {
    /// Node id; 0 means that there is nothing, and that the kernel may cache that for `ttl`.
    pub node: u64,
    /// Distinguishes successive objects with the same node id.
    pub generation: u64,
    /// How long the kernel may cache the name.
    pub ttl: Duration,
    /// Attributes.
    pub attr: Attr,
}

/// An open file.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Opened {
    /// The handle for later requests.
    pub fh: u64,
    /// `FOPEN_` flags of [`crate::proto`].
    pub flags: u32,
}

/// A time to be set.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SetTime {
    /// The present.
    Now,
    /// That.
    At(Time),
}

/// Attributes to be changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SetAttr {
    /// Permissions.
    pub mode: Option<u32>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Size in bytes.
    pub size: Option<u64>,
    /// Access time.
    pub atime: Option<SetTime>,
    /// Modification time.
    pub mtime: Option<SetTime>,
    /// Set-user-id and set-group-id bits, and capabilities, go.
    pub kill_suidgid: bool,
    /// The open file that it was asked for.
    pub fh: Option<u64>,
}

/// Space of a file system.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct StatFs {
    /// Blocks of `frsize` in all.
    pub blocks: u64,
    /// Free ones.
    pub bfree: u64,
    /// Free ones for ordinary users.
    pub bavail: u64,
    /// Objects in all.
    pub files: u64,
    /// Free ones.
    pub ffree: u64,
    /// Preferred size of transfers.
    pub bsize: u32,
    /// Longest name.
    pub namelen: u32,
    /// Unit of `blocks`.
    pub frsize: u32,
}

/// How data are written.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct WriteHow {
    /// Set-uid and set-gid bits go.
    pub kill_suidgid: bool,
    /// Pages of a shared mapping that the kernel writes back in its own time: the writing process
    /// is unknown.
    pub from_cache: bool,
    /// The data is durable when the request ends (`O_SYNC`, `O_DSYNC`).
    pub sync: bool,
    /// The file is open with `O_DIRECT`.
    pub direct: bool,
}

/// Serves the requests of a session. Methods run side by side; all are named after the requests of
/// FUSE. Node ids come from the kernel and may be anything.
#[allow(async_fn_in_trait)] // Everything lives on one thread: no future needs to be Send.
#[allow(unused_variables)]
pub trait Handler: 'static {
    /// The kernel forgets `count` of the references that replies with an [`Entry`] gave to it.
    fn forget(&self, node: u64, count: u64) {}
    /// The session begins; `kernel` sends notifications to the kernel.
    fn begin(&self, kernel: Kernel) {}
    /// The dataset and the object of a node, by number, for trace events; `None` if operations on
    /// it are not traced.
    fn traced(&self, node: u64) -> Option<(u64, u64)> {
        None
    }
    /// Waits while the file system of a node is suspended ([`crate::Suspended`]): it is not while
    /// the result lives. With `check` it fails for a node that has gone.
    async fn enter(&self, node: u64, check: bool) -> Result<Option<Pass>, Errno> {
        Ok(None)
    }
    /// The session is over: nothing else will come.
    async fn end(&self) {}
    /// Looks up `name` in a directory.
    async fn lookup(&self, caller: Caller, parent: u64, name: &[u8]) -> Result<Entry, Errno> {
        Err(NO_SYS)
    }
    /// Attributes.
    async fn getattr(&self, node: u64, fh: Option<u64>) -> Result<Attr, Errno> {
        Err(NO_SYS)
    }
    /// Changes attributes.
    async fn setattr(&self, caller: Caller, node: u64, set: SetAttr) -> Result<Attr, Errno> {
        Err(NO_SYS)
    }
    /// The target of a symbolic link.
    async fn readlink(&self, node: u64) -> Result<Vec<u8>, Errno> {
        Err(NO_SYS)
    }
    /// Makes a symbolic link.
    async fn symlink(&self, caller: Caller, parent: u64, name: &[u8], target: &[u8]) -> Result<Entry, Errno> {
        Err(NO_SYS)
    }
    /// Makes a file, device, FIFO or socket; `rdev` is major and minor number.
    async fn mknod(
        &self,
        caller: Caller,
        parent: u64,
        name: &[u8],
        mode: u32,
        rdev: (u32, u32),
    ) -> Result<Entry, Errno> {
        Err(NO_SYS)
    }
    /// Makes a directory.
    async fn mkdir(&self, caller: Caller, parent: u64, name: &[u8], mode: u32) -> Result<Entry, Errno> {
        Err(NO_SYS)
    }
    /// Removes a name that is no directory.
    async fn unlink(&self, caller: Caller, parent: u64, name: &[u8]) -> Result<(), Errno> {
        Err(NO_SYS)
    }
    /// Removes an empty directory.
    async fn rmdir(&self, caller: Caller, parent: u64, name: &[u8]) -> Result<(), Errno> {
        Err(NO_SYS)
    }
    /// Renames; `flags` are those of `renameat2`.
    async fn rename(&self, caller: Caller, from: (u64, &[u8]), to: (u64, &[u8]), flags: u32) -> Result<(), Errno> {
        Err(NO_SYS)
    }
    /// Gives a node another name.
    async fn link(&self, caller: Caller, node: u64, parent: u64, name: &[u8]) -> Result<Entry, Errno> {
        Err(NO_SYS)
    }
    /// Opens a file; `flags` are those of `open`. `kill_suidgid`: as in [`SetAttr`], if it is
    /// truncated.
    async fn open(&self, caller: Caller, node: u64, flags: u32, kill_suidgid: bool) -> Result<Opened, Errno> {
        Ok(Opened::default())
    }
    /// Makes and opens a file.
    async fn create(
        &self,
        caller: Caller,
        parent: u64,
        name: &[u8],
        mode: u32,
        flags: u32,
        kill_suidgid: bool,
    ) -> Result<(Entry, Opened), Errno> {
        Err(NO_SYS)
    }
    /// Makes a regular file without a name in the file system of `parent`, and opens it.
    async fn tmpfile(
        &self,
        caller: Caller,
        parent: u64,
        mode: u32,
        flags: u32,
        kill_suidgid: bool,
    ) -> Result<(Entry, Opened), Errno> {
        Err(NO_SYS)
    }
    /// Reads; less than `size` bytes only at the end of the file. `direct`: the file is open with
    /// `O_DIRECT`.
    async fn read(&self, node: u64, fh: u64, offset: u64, size: u32, direct: bool) -> Result<Vec<Bytes>, Errno> {
        Err(NO_SYS)
    }
    /// Writes all of `data`; bytes written. When a file is open for appending the kernel has made
    /// `offset` its end.
    #[allow(clippy::too_many_arguments)] // Those of the request.
    async fn write(
        &self,
        caller: Caller,
        node: u64,
        fh: u64,
        offset: u64,
        data: Vec<Bytes>,
        how: WriteHow,
    ) -> Result<u32, Errno> {
        Err(NO_SYS)
    }
    /// Whether pages of `node` may come into the kernel's cache while a write to the handle `fh` is
    /// under way. Asked after a write with `O_DIRECT`; true only if `fh` was opened past the cache.
    fn may_be_cached(&self, node: u64, fh: u64) -> bool {
        false
    }
    /// Whether a shared mapping of `node` may have stores that the kernel has not written back.
    /// `lseek` may then wait for the kernel.
    fn may_be_mapped(&self, node: u64) -> bool {
        false
    }
    /// Space.
    async fn statfs(&self, node: u64) -> Result<StatFs, Errno> {
        Err(NO_SYS)
    }
    /// The last close of an open file.
    async fn release(&self, node: u64, fh: u64) -> Result<(), Errno> {
        Ok(())
    }
    /// Makes a file or directory durable; `datasync`: only as far as needed to read its data.
    async fn fsync(&self, node: u64, fh: u64, datasync: bool) -> Result<(), Errno> {
        Err(NO_SYS)
    }
    /// Opens a directory.
    async fn opendir(&self, node: u64) -> Result<Opened, Errno> {
        Ok(Opened::default())
    }
    /// Lists a directory from `offset` (0, or one given by an entry) until it ends or `out` is
    /// full.
    async fn readdir(&self, node: u64, fh: u64, offset: u64, out: &mut DirOut) -> Result<(), Errno> {
        Err(NO_SYS)
    }
    /// The last close of a directory.
    async fn releasedir(&self, node: u64, fh: u64) -> Result<(), Errno> {
        Ok(())
    }
    /// Sets an extended attribute; `flags` are those of `setxattr`. `kill_sgid`: the set-group-id
    /// bit goes.
    async fn setxattr(&self, node: u64, name: &[u8], value: &[u8], flags: u32, kill_sgid: bool) -> Result<(), Errno> {
        Err(NO_SYS)
    }
    /// The value of an extended attribute.
    async fn getxattr(&self, node: u64, name: &[u8]) -> Result<Vec<u8>, Errno> {
        Err(NO_SYS)
    }
    /// Names of extended attributes that the caller may see, each with a NUL behind it.
    async fn listxattr(&self, caller: Caller, node: u64) -> Result<Vec<u8>, Errno> {
        Err(NO_SYS)
    }
    /// Removes an extended attribute.
    async fn removexattr(&self, node: u64, name: &[u8]) -> Result<(), Errno> {
        Err(NO_SYS)
    }
    /// Allocates or frees a range; `mode` is that of `fallocate`.
    #[allow(clippy::too_many_arguments)] // Those of the request.
    async fn fallocate(
        &self,
        caller: Caller,
        node: u64,
        fh: u64,
        offset: u64,
        len: u64,
        mode: u32,
    ) -> Result<(), Errno> {
        Err(NO_SYS)
    }
    /// Finds data or a hole; `whence` is that of `lseek`.
    async fn lseek(&self, node: u64, fh: u64, offset: u64, whence: u32) -> Result<u64, Errno> {
        Err(NO_SYS)
    }
    /// Makes a range of a file what a range of another one is, without a copy: from node and
    /// offset to node and offset. Returns the bytes done. After `NOT_SUPPORTED` or `EXDEV` the
    /// kernel copies the range.
    async fn copy_file_range(&self, caller: Caller, from: (u64, u64), to: (u64, u64), len: u64) -> Result<u64, Errno> {
        Err(NO_SYS)
    }
    /// Makes everything durable.
    async fn syncfs(&self) -> Result<(), Errno> {
        Err(NO_SYS)
    }
    /// A control operation on a node and handle with `input`; its output.
    async fn ioctl(&self, caller: Caller, at: (u64, u64), cmd: u32, input: &[u8]) -> Result<Vec<u8>, Errno> {
        Err(NOT_TTY)
    }
}
