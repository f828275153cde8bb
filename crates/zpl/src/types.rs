//! Arguments and results of file system operations.

use base::{ObjectId, WallTime};
use dsl::Dataset;
use ondisk::zpl::{S_IFBLK, S_IFCHR, S_IFDIR, S_IFIFO, S_IFLNK, S_IFMT, S_IFREG, S_IFSOCK, pflags};
use zil::SyncMode;

/// Credentials of the caller, who owns the objects that the call makes.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Cred {
    /// User id.
    pub uid: u32,
    /// Group id.
    pub gid: u32,
    /// Supplementary groups.
    pub groups: Vec<u32>,
    /// Permission bits that new objects do not get, unless the directory has a default ACL.
    pub umask: u32,
    /// May set the set-group-id bit for a group that it is not a member of (`CAP_FSETID`); user 0
    /// always may.
    pub fsetid: bool,
}

impl Cred {
    /// A user with one group.
    pub fn new(uid: u32, gid: u32) -> Cred {
        Cred { uid, gid, groups: Vec::new(), umask: 0, fsetid: false }
    }
    pub(crate) fn is_member(&self, gid: u64) -> bool {
        u64::from(self.gid) == gid || self.groups.iter().any(|&g| u64::from(g) == gid)
    }
}

/// The type of an object. The discriminants are those of directory entries (format page 08 section
/// 5), which are also those of `d_type`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(u8)]
pub enum FileKind {
    /// FIFO.
    Fifo = 1,
    /// Character device.
    CharDev = 2,
    /// Directory.
    Dir = 4,
    /// Block device.
    BlockDev = 6,
    /// Regular file.
    File = 8,
    /// Symbolic link.
    Symlink = 10,
    /// Socket.
    Socket = 12,
}

impl FileKind {
    /// From the type bits of a mode.
    pub fn from_mode(mode: u64) -> Option<FileKind> {
        Some(match mode & S_IFMT {
            S_IFIFO => FileKind::Fifo,
            S_IFCHR => FileKind::CharDev,
            S_IFDIR => FileKind::Dir,
            S_IFBLK => FileKind::BlockDev,
            S_IFREG => FileKind::File,
            S_IFLNK => FileKind::Symlink,
            S_IFSOCK => FileKind::Socket,
            _ => return None,
        })
    }
    pub(crate) fn from_dtype(dtype: u8) -> Option<FileKind> {
        FileKind::from_mode(u64::from(dtype) << 12)
    }
    /// The type bits of a mode.
    pub fn mode_bits(self) -> u64 {
        u64::from(self as u8) << 12
    }
}

/// Attributes of an object.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Attr {
    /// Object number.
    pub obj: ObjectId,
    /// The txg that created it: distinguishes objects that had the same number one after the other.
    pub generation: u64,
    /// Type.
    pub kind: FileKind,
    /// Mode with type bits.
    pub mode: u32,
    /// Owner; ids that do not fit POSIX are 65534.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Links; of a directory 2 + its subdirectories.
    pub nlink: u32,
    /// Bytes; of a directory its entries + 2; of a symbolic link the length of its target.
    pub size: u64,
    /// Space it takes, in units of 512 bytes, as of the last sync.
    pub blocks: u64,
    /// Block size in bytes.
    pub blksize: u32,
    /// Device number as Linux keeps it in its kernel: major << 20 | minor. 0 for all but devices.
    pub rdev: u64,
    /// Access time.
    pub atime: WallTime,
    /// Modification time.
    pub mtime: WallTime,
    /// Change time.
    pub ctime: WallTime,
    /// Creation time.
    pub crtime: WallTime,
    /// Flags as stored (`ondisk::zpl::pflags`).
    pub flags: u64,
    /// Project.
    pub projid: u32,
}

/// The flags of `FS_IOC_GETFLAGS` and `FS_IOC_SETFLAGS` of Linux (format page 16 section 5).
pub mod ioc_flags {
    /// The object is immutable.
    pub const IMMUTABLE: u32 = 0x10;
    /// Only appending is allowed.
    pub const APPEND: u32 = 0x20;
    /// Not to be dumped.
    pub const NODUMP: u32 = 0x40;
    /// New children take the project.
    pub const PROJINHERIT: u32 = 0x2000_0000;
    /// All of them.
    pub const ALL: u32 = IMMUTABLE | APPEND | NODUMP | PROJINHERIT;
}

const IOC_TO_PFLAGS: [(u32, u64); 4] = [
    (ioc_flags::IMMUTABLE, pflags::IMMUTABLE),
    (ioc_flags::APPEND, pflags::APPENDONLY),
    (ioc_flags::NODUMP, pflags::NODUMP),
    (ioc_flags::PROJINHERIT, pflags::PROJINHERIT),
];

/// Converts stored flags to those of `FS_IOC_GETFLAGS`.
pub(crate) fn to_ioc(flags: u64) -> u32 {
    IOC_TO_PFLAGS.iter().filter(|(_, p)| flags & p != 0).map(|(i, _)| i).sum()
}
/// Returns the stored flags after `FS_IOC_SETFLAGS`.
pub(crate) fn from_ioc(flags: u64, ioc: u32) -> u64 {
    IOC_TO_PFLAGS.iter().fold(flags, |f, (i, p)| if ioc & i != 0 { f | p } else { f & !p })
}

impl Attr {
    /// The flags as `FS_IOC_GETFLAGS` returns them.
    pub fn ioc_flags(&self) -> u32 {
        to_ioc(self.flags)
    }
}

/// A time to be set.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SetTime {
    /// The present.
    Now,
    /// The given time.
    At(WallTime),
}

/// Attributes to be changed; the change time becomes the present.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SetAttr {
    /// Permission bits (07777); type bits are ignored.
    pub mode: Option<u32>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Size of a regular file in bytes.
    pub size: Option<u64>,
    /// Access time.
    pub atime: Option<SetTime>,
    /// Modification time.
    pub mtime: Option<SetTime>,
}

/// How [`crate::Zfs::rename`] treats an object that has the new name already.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct RenameFlags {
    /// It is an error (`RENAME_NOREPLACE`).
    pub noreplace: bool,
    /// The two objects exchange their names (`RENAME_EXCHANGE`).
    pub exchange: bool,
}

/// How [`crate::Zfs::setxattr`] treats an existing attribute.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum SetXattr {
    /// Creates or replaces it.
    #[default]
    Any,
    /// An existing attribute is an error (`XATTR_CREATE`).
    Create,
    /// A missing attribute is an error (`XATTR_REPLACE`).
    Replace,
}

/// The operation of [`crate::Zfs::fallocate`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fallocate {
    /// Checks that there is space, and extends the file unless `keep_size`. Copy on write cannot
    /// reserve the space.
    Allocate {
        /// The size stays.
        keep_size: bool,
    },
    /// Frees the range; the size stays.
    PunchHole,
    /// Makes the range read as zeros.
    ZeroRange {
        /// The size stays even if the range goes beyond it.
        keep_size: bool,
    },
}

/// An entry of a directory.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DirEntry {
    /// Its name.
    pub name: Vec<u8>,
    /// The object.
    pub obj: ObjectId,
    /// Type.
    pub kind: FileKind,
    /// Resumes the listing behind this entry.
    pub next_cookie: u64,
}

/// An entry of a directory with the object's attributes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DirEntryPlus {
    /// The entry.
    pub entry: DirEntry,
    /// Attributes; none for `.` and `..`, and when the object cannot be read.
    pub attr: Option<Attr>,
}

/// Space of a file system.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StatFs {
    /// Preferred size of transfers in bytes: the record size.
    pub bsize: u32,
    /// The unit of the next three, in bytes.
    pub frsize: u32,
    /// Referenced and available space.
    pub blocks: u64,
    /// Available space.
    pub free: u64,
    /// The same: there is no reserved share.
    pub avail: u64,
    /// Objects in use and free ones.
    pub files: u64,
    /// Objects that can still be created.
    pub ffree: u64,
    /// Longest name in bytes.
    pub namelen: u32,
    /// Identifies the file system.
    pub fsid: u64,
}

/// How names are compared (property `casesensitivity`, numbers of format page 08).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Case {
    /// Case counts.
    #[default]
    Sensitive,
    /// Case does not count.
    Insensitive,
    /// Case counts unless the caller asks otherwise, which no caller here does.
    Mixed,
}

/// When reading changes the access time (properties `atime` and `relatime`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Atime {
    /// Never.
    Off,
    /// Always.
    #[default]
    On,
    /// When it is older than the last change or than a day.
    Relative,
}

/// Where extended attributes are stored (property `xattr`). Reads look in both places.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum XattrMode {
    /// Extended attributes are disabled.
    Off,
    /// In a hidden directory.
    #[default]
    Dir,
    /// With the other attributes, if they are small enough.
    Sa,
}

/// `acltype=posix` as a number (format page 05, `ZFS_ACLTYPE_POSIX`).
const ACLTYPE_POSIX: u64 = 1;

/// What requests around the cache do (property `direct`, OpenZFS 2.3).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum DirectMode {
    /// They are written by the sync of their txg, as all others.
    Disabled,
    /// Their whole blocks are written at once.
    #[default]
    Standard,
    /// All requests whose place and length are multiples of a page are such.
    Always,
}

/// Requests around the cache have places and lengths that are multiples of this.
const PAGE: u64 = 4096;

impl DirectMode {
    /// Whether a request of `len` bytes at `off` leaves nothing in the cache; `asked`: by
    /// `O_DIRECT`.
    pub(crate) fn is_uncached(self, asked: bool, off: u64, len: u64) -> bool {
        asked || self == DirectMode::Always && off.is_multiple_of(PAGE) && len.is_multiple_of(PAGE)
    }
    /// Whether whole blocks of such a write are written at once.
    pub(crate) fn is_direct(self, asked: bool, off: u64, len: u64) -> bool {
        let fits = off.is_multiple_of(PAGE) && len.is_multiple_of(PAGE);
        fits && (asked && self == DirectMode::Standard || self == DirectMode::Always)
    }
}

/// How data of a file are read.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ReadHow {
    /// The access time stays (`O_NOATIME`).
    pub noatime: bool,
    /// Around the cache (`O_DIRECT`).
    pub direct: bool,
}

/// How data of a file are written.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct WriteHow {
    /// At the end of the file, wherever that is.
    pub append: bool,
    /// Durable when the write ends (`O_SYNC`, `O_DSYNC`).
    pub sync: bool,
    /// Around the cache (`O_DIRECT`).
    pub direct: bool,
}

/// How a file system is used.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct MountOpts {
    /// Read-only.
    pub readonly: bool,
    /// Access times.
    pub atime: Atime,
    /// Extended attributes.
    pub xattr: XattrMode,
    /// Durability.
    pub sync: SyncMode,
    /// `logbias=throughput`: synchronous writes go to their final blocks, not into the log.
    pub throughput: bool,
    /// `acltype=posix`: POSIX ACLs can be set, are inherited, and follow the mode. Fixed when the
    /// file system is opened.
    pub posix_acl: bool,
    /// `longname=on`: new names may have up to 1023 bytes, if the pool has the feature.
    pub longname: bool,
    /// What requests around the cache do.
    pub direct: DirectMode,
    /// Open it also if it was received redacted: blocks that were left out read as zeros.
    pub redacted: bool,
}

impl MountOpts {
    /// Reads the options from the dataset's properties.
    pub fn from_props(ds: &Dataset) -> MountOpts {
        MountOpts::from_numbers(|name| ds.dir().prop(name).0.num())
    }

    /// The same from the numeric values of properties.
    pub fn from_numbers(num: impl Fn(&str) -> u64) -> MountOpts {
        MountOpts {
            readonly: num("readonly") != 0,
            atime: match (num("atime"), num("relatime")) {
                (0, _) => Atime::Off,
                (_, 0) => Atime::On,
                _ => Atime::Relative,
            },
            xattr: match num("xattr") {
                0 => XattrMode::Off,
                1 => XattrMode::Dir,
                _ => XattrMode::Sa,
            },
            sync: SyncMode::from_number(num("sync")),
            throughput: num("logbias") == 1,
            // ACLs are stored as extended attributes, so `xattr=off` disables them.
            posix_acl: num("acltype") == ACLTYPE_POSIX && num("xattr") != 0,
            longname: num("longname") != 0,
            direct: match num("direct") {
                0 => DirectMode::Disabled,
                1 => DirectMode::Standard,
                _ => DirectMode::Always,
            },
            redacted: false,
        }
    }
}
