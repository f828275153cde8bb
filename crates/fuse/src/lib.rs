//! Mounts through FUSE, on a transport of our own.
//!
//! The kernel turns system calls on a mounted file system into *requests* that it hands out one by
//! one through `/dev/fuse`; a *reply* is written back to it. The thread that reads a request also
//! answers it, in the same turn of the engine's loop whenever the answer needs no disk: handing it
//! to another thread would cost several times the request itself.
//!
//! From the bottom up: [`wire`] decodes and encodes bytes, [`proto`] has the requests and replies
//! of the protocol (version 7, minor 31 and later), `session` reads, dispatches and answers,
//! [`Handler`] is the interface of a file system, `zfs` is the handler that serves a [`zpl::Zfs`],
//! `suspend` has it changed below its users, and [`mount`] puts it at its place; `volumes` serves
//! volumes as files ([`mount_volumes`]), `texts` what is made when it is opened ([`mount_texts`]).
//!
//! The *node id* of a request names an object: it is the object's number, but for the root, which
//! FUSE calls 1 (object 1 of a file system is its master node, so the number is free). Nothing else
//! changes the file system, so the kernel may cache names and attributes for long; it tracks its
//! own changes. A plain user's file systems within each other share a session: see [`graft()`] and
//! `tree`.
//!
//! Requests come from the kernel, which checks much, but not everything (a file descriptor of the
//! device may be passed around): a request that does not parse gets an error and changes nothing.
//!
//! Never touch a path below a mount point of ours from the engine thread: the kernel would send a
//! request to the engine, which waits. [`host::blocking`] is for that.

mod dir;
pub mod errno;
mod graft;
mod groups;
mod handler;
mod mounted;
mod notify;
pub mod proto;
mod session;
mod snapdir;
mod suspend;
mod texts;
mod tree;
mod tree_handler;
mod volumes;
pub mod wire;
mod xattr_names;
mod zfs;

pub use dir::DirOut;
pub use errno::Errno;
pub use graft::{Grafted, graft};
pub use handler::{Attr, Caller, Entry, Handler, Opened, SetAttr, SetTime, StatFs, Time, WriteHow};
pub use mounted::{MountOpts, Mounted, SessionStats, mount_handler};
pub use session::Kernel;
pub use snapdir::{SnapChange, SnapSource, SnapUser, Snapdir};
pub use suspend::Suspended;
pub use texts::{TextNode, TextSource, mount_texts};
pub use volumes::{VolumeNode, VolumeSource, VolumeUse, mount_volumes};
pub use zfs::mount;
