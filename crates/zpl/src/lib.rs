//! The ZPL: POSIX files and directories in an object set (format pages 08 and 16).
//!
//! A file system is an object set whose object 1, the *master node*, names everything else: the
//! root directory, the *unlinked set* (also called the delete queue), the tables of system
//! attributes. A file, directory, symbolic link or device is one object, a *znode*: its attributes
//! are in the bonus, a file's data are its blocks, a directory is a ZAP from name to (type,
//! object). Extended attributes are either one attribute of the znode that holds a name-value list
//! (`xattr=sa`) or files in a hidden directory (`xattr=on`).
//!
//! Every change takes the same path: check the arguments, take the locks, read the current state,
//! check that the change is legal, declare it in a `TxPlan`, `assign`, apply it, drop the
//! transaction. All checks come before the first modification.
//!
//! Locks, in the order in which a task takes them (`ranks`):
//!
//! 1. the rename lock of the file system, for renames between directories: while a task holds it no
//!    directory gets another parent;
//! 2. the *names* lock of a directory, for changes of its entries, and of a file, for changes of
//!    its number of links: a directory before its children, an ancestor before a descendant, else
//!    by number. Lookup and readdir take none of these locks;
//! 3. the *data* lock of a file, by range: for reads, writes and truncation;
//! 4. the *xattrs* lock of an object, for changes of its extended attributes;
//! 5. the *attrs* lock of an object, around reading, changing and writing back its attributes. It
//!    is taken inside a transaction, all others before one.
//!
//! An unlinked file lives on while it is open ([`Zfs::open_file`], [`Zfs::release`]); it is then in
//! the unlinked set, so that a crash does not leak it. Freeing a large file is divided over txgs
//! (`reap`).
//!
//! Reading order: `types`, `fs` (a mounted file system), `node` (an object and its locks), `init`
//! (a new one), `data` (reads, writes, truncation), `names` (changes of directories), `attr`,
//! `xattr`, `acl`, `log` (intent-log records and their replay), `reap` (unlinked files), `quota`,
//! `owners` (what users, groups and projects use, and their limits), `reopen` (a rollback below its
//! users),
//! [`diff`] (what changed between snapshots).
//!
//! Permissions are not checked here: the front end (with FUSE the kernel) does that, and asks
//! [`Zfs::may_delete`] about NFSv4 ACLs. This crate
//! enforces the rules of the file system itself: object types, immutable and append-only flags,
//! quotas, projects, names.

mod acl;
mod attr;
mod data;
pub mod diff;
mod fs;
mod init;
mod log;
mod names;
mod node;
mod owners;
mod quota;
mod ranks;
mod reap;
mod reopen;
mod types;
mod upgrade;
mod xattr;

pub use acl::{Acl, AclEntry, AclKind, AclTag};
pub use data::clone::{CloneFrom, is_no_clone};
pub use fs::Zfs;
pub use init::{FsCreateProps, InitOwner, init_fs};
pub use owners::{OwnerKind, OwnerUse, check_limit, owner_use, owner_uses};
pub use reopen::Held;
pub use types::{
    Atime, Attr, Case, Cred, DirEntry, DirEntryPlus, DirectMode, Fallocate, FileKind, MountOpts, ReadHow, RenameFlags,
    SetAttr, SetTime, SetXattr, StatFs, WriteHow, XattrMode, ioc_flags,
};
pub use zil::SyncMode;
