//! The ZPL: POSIX files and directories in an object set (format pages 08 and 16).
//!
//! A file system is an object set whose object 1, the *master node*, names everything else: the
//! root directory, the *delete queue* (the unlinked set), the tables of system attributes. A file,
//! directory, symbolic link or device is one object, a *znode*: its attributes are in the bonus, a
//! file's data are its blocks, a directory is a ZAP from name to (type, object). Extended
//! attributes are either one attribute of the znode that holds a name-value list (`xattr=sa`) or
//! files in a hidden directory (`xattr=on`).
//!
//! The normal path of a change, the same everywhere: check the arguments, take the locks, look,
//! decide whether it can be done, say in a `TxPlan` what is going to change, `assign`, change
//! everything, drop the transaction. Nothing is changed before everything that can be checked has
//! been.
//!
//! Locks, in the order in which a task takes them (`ranks`):
//!
//! 1. the rename lock of the file system, for renames between directories: as long as one task
//!    holds it no directory gets another parent;
//! 2. the *names* lock of a directory, for changes of its entries, and of a file, for changes of
//!    its number of links: a directory before what is in it, an ancestor before a descendant, else
//!    by number. Looking up and listing take no lock of ours;
//! 3. the *data* lock of a file, by range: to its reader, writer or truncater;
//! 4. the *xattrs* lock of an object, for changes of its extended attributes;
//! 5. the *attrs* lock of an object, around reading, changing and writing back its attributes. It
//!    is taken inside a transaction, all others before one.
//!
//! A file without a name lives on while it is open ([`Zfs::open_file`], [`Zfs::release`]); it is
//! then in the delete queue, so that a crash does not leak it. Freeing what is large is divided
//! over txgs (`reap`).
//!
//! Permission is not checked here: that is the front end's (with FUSE the kernel's) work. What is
//! checked is what a file system itself must keep: the types of things, immutable and append-only
//! flags, quotas, projects, names.

mod acl;
mod acl_ops;
mod attr;
mod create;
mod data;
mod fs;
mod init;
mod log;
mod names;
mod node;
mod path;
mod privileges;
mod quota;
mod ranks;
mod readdir;
mod reap;
mod remove;
mod rename;
mod replay;
mod tmpfile;
mod truncate;
mod types;
mod xattr;
mod xattr_dir;

pub use acl::{Acl, AclEntry, AclKind, AclTag};
pub use fs::Zfs;
pub use init::{FsCreateProps, InitOwner, init_fs};
pub use types::{
    Atime, Attr, Case, Cred, DirEntry, DirEntryPlus, Fallocate, FileKind, MountOpts, RenameFlags, SetAttr, SetTime,
    SetXattr, StatFs, SyncMode, XattrMode, ioc_flags,
};
