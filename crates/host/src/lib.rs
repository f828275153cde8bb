//! The production world: real time, real devices, one engine thread that waits in one place.
//!
//! An [`Engine`] belongs to the thread that made it. It implements `rt::World`, so the engine
//! crates run on its [`Engine::rt`] and are independent of the layers below. The thread polls tasks
//! while any is ready; when none is, it enters the kernel once, in its io_uring, and the next event
//! (a device completion, a readable descriptor, a timer, a message from another thread) ends that
//! one wait. Where io_uring is not available the same operations run on a small thread pool and the
//! wait is a `ppoll`; the layers above see no difference.
//!
//! Interfaces of the edges beyond `rt`: [`HostDev`] (files and disks as `bdev::BlockDev`), [`FdIo`]
//! (reads of descriptors with owned buffers, for FUSE and sockets), and [`RemoteSpawner`], the only
//! way into an engine from another thread.
//!
//! System calls are `rustix`'s. `libc` is left where that has nothing safe: operations in flight,
//! which name memory and descriptors by number, some requests of disks and files, signals, local
//! time, names of users.
#![allow(unsafe_code)]

mod accounts;
mod awake;
mod clone;
mod dev;
mod driver;
mod engine;
mod fdio;
mod fusedev;
mod fusefd;
mod holder;
mod ident;
mod memory;
mod mounttable;
mod open;
mod passed_file;
mod passing;
mod poller;
mod process;
mod remote;
mod rewrite;
mod ring;
mod runqueue;
mod secret;
mod shared;
mod spin;
mod tempdir;
mod terminal;
mod timers;
mod truncation;
pub mod usdt;
mod waitfds;
mod workers;

pub use accounts::{Project, group_id, group_name, project_of, set_project, user_id, user_name};
pub use awake::KeepAwake;
pub use clone::{
    CLONE_TOKEN_LEN, WEIR_IOC_CLONE, WEIR_IOC_CLONE_SOURCE, WEIR_IOC_SHARE_EQUAL, clone_range, clone_source,
    is_unequal, share_equal,
};
pub use dev::HostDev;
pub use engine::{BackendChoice, Engine, EngineConfig, EngineStats, Handle, SlowTask, thread_cpu_time};
pub use fdio::{Fd, FdFuture, FdIo, ReadDone, end_connection, read_now, send_now, set_nonblocking, write_now};
pub use fusefd::{
    FuseMount, FusePlace, HeldMount, MountedBy, Probe, blocking, fuse_bind, fuse_detach, fuse_detach_dead, fuse_mount,
    fuse_set_readahead, fuse_unmount, is_way_dead,
};
pub use holder::holder;
pub use ident::{entropy, host_identity, physmem_bytes, uptime};
pub use mounttable::{DevNumber, MountEntry, MountTable, MountWatch};
pub use open::{Direct, Lock, Medium, OpenOpts, create_sparse, medium, open_untrusted};
pub use passed_file::{Access, PassedFile, passable};
pub use passing::{PASSED_MAX, PassedStream, Received, receive_with, send_with};
pub use process::{
    LocalTime, PeerCred, Signals, effective_gid, effective_uid, forbid_dumps, forbid_huge_pages, forbid_new_privileges,
    inherit_null, local_seconds, local_time, lock_memory, new_session, peer_cred, peer_groups, raise_open_files,
    redirect_output, release_signals, set_process_name, shed_inheritance, terminal_width, terminate_self,
};
pub use remote::{RemoteCall, RemoteSpawner};
pub use rewrite::{ZFS_IOC_REWRITE, ZFS_REWRITE_PHYSICAL, open_to_rewrite, rewrite_file, rewrite_file_physically};
pub use secret::{SecretBytes, raise_locked_memory};
pub use tempdir::TempDir;
pub use terminal::{Screen, Woken, terminal_size};
pub use waitfds::wait_readable;
