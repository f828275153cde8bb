//! OpenZFS pools as a library: create, import, read and write pools in the real OpenZFS on-disk
//! format from your own program, on files, block devices and memory. There is no kernel module, no
//! daemon and no mount; OpenZFS opens the pools that this crate writes, and the reverse.
//!
//! ```
//! use openweir::{CreateOptions, Device, ImportOptions, OpenOptions, Pool};
//!
//! fn main() -> openweir::Result<()> {
//!     let image = std::env::temp_dir().join(format!("openweir-doc-{}.img", std::process::id()));
//!
//!     // A pool on a file that is made for it, with a file system in it.
//!     let options = CreateOptions::default().property("compression", "lz4");
//!     let pool = Pool::create("tank", Device::new_file(&image, 256 << 20), options).wait()?;
//!     pool.create_filesystem("tank/notes", &[("recordsize", "16K")]).wait()?;
//!
//!     // Files by path. A call begins at once and is waited for, or awaited.
//!     let fs = pool.filesystem("tank/notes").wait()?;
//!     fs.mkdir_all("2024/may").wait()?;
//!     let file = fs.open("2024/may/1.txt", OpenOptions::new().create(0o644)).wait()?;
//!     file.append("It rains.").wait()?;
//!     file.sync().wait()?;
//!
//!     // A snapshot is a file system that stays as it is.
//!     pool.snapshot(&["tank/notes@rain"], false).wait()?;
//!     file.set_len(0).wait()?;
//!     file.append("The sun is out.").wait()?;
//!     let before = pool.filesystem("tank/notes@rain").wait()?;
//!     assert_eq!(before.read("2024/may/1.txt").wait()?, b"It rains.");
//!
//!     // Closing in order; then weir or OpenZFS may open it.
//!     pool.export().wait()?;
//!     let again = Pool::import(vec![Device::path(&image)], ImportOptions::readonly()).wait()?;
//!     let fs = again.filesystem("tank/notes").wait()?;
//!     assert_eq!(fs.read("2024/may/1.txt").wait()?, b"The sun is out.");
//!     again.export().wait()?;
//! #   std::fs::remove_file(&image).ok();
//!     Ok(())
//! }
//! ```
//!
//! # Words
//!
//! A **device** ([`Device`]) is a file, a block device, a piece of memory or a simulated disk. A
//! **pool** ([`Pool`]) is made on one or more of them, arranged by a [`Layout`] (each by itself,
//! mirrors, RAID-Z), and holds **datasets**: file systems in a tree of names (`tank/notes`) and
//! their **snapshots** (`tank/notes@rain`). A **clone** is a file system that begins as a snapshot.
//! **Properties** (compression, quota ...) belong to datasets and are inherited down the tree.
//!
//! An open [`FileSystem`] has **files** ([`File`]), and beside them **objects** and **ZAPs**
//! ([`Objects`]): arrays of bytes and maps by number, without names, changed by transactions
//! ([`Batch`]).
//!
//! A **txg** (transaction group) is a set of changes that reach the disk together. They are
//! numbered; one is open for changes while the one before is written. A power cut takes a pool back
//! to the last txg that is on disk, plus the records of the **intent log** for files that were
//! synced.
//!
//! An **engine** ([`Engine`]) is a thread that pools live on.
//!
//! # Two faces
//!
//! *The handles* ([`Engine`], [`Pool`], [`FileSystem`], [`File`], [`Objects`], [`Events`]) are
//! `Send`, go to any thread, and are cheap to clone. Each call becomes a job on the engine's thread
//! and returns through a [`Call`], which is a future for any executor (there is no runtime inside)
//! and has [`Call::wait`] for plain threads. [`block_on`] is there for programs with async
//! functions and no executor. No type of the engine's inside shows in their signatures: bytes are
//! `Vec<u8>`, names are strings and paths, everything else is a struct of this crate.
//!
//! *The inside* ([`local`]) is for code that lives on the engine's thread: it has the engine's own
//! types, which are not `Send`, and no promise that they stay as they are.
//!
//! # The normal path
//!
//! 1. [`Pool::create`] or [`Pool::import`] start an engine with one pool on it. For several pools
//!    on one thread, devices in memory, and looking for pools ([`Engine::find_pools`]) begin with
//!    [`Engine::start`].
//! 2. [`Pool::filesystem`] opens file systems and snapshots; the methods of [`Pool`] make, rename,
//!    snapshot, roll back and destroy them.
//! 3. [`FileSystem`] takes paths, [`File`] offsets; [`File::sync`] makes durable. Or
//!    [`FileSystem::objects`] and batches.
//! 4. [`Pool::events`], [`Pool::status`] and [`Pool::scrub`] watch over it.
//! 5. [`Pool::export`] closes it.
//!
//! For tests of programs that use this crate, [`sim`] has pools in virtual time whose power can be
//! cut.
//!
//! # What holds
//!
//! * **A call begins when it is made**, in the order of the calls of one thread, and runs to its
//!   end with or without a waiter. Calls that are under way at once run side by side: to have one
//!   after the other wait for the first. Dropping a call (cancelling a future) loses its result,
//!   never half of its work.
//! * **Visible, then durable.** When a call that changes files or objects has ended every reader
//!   sees the change. It is durable after [`File::sync`], [`FileSystem::sync`], [`Pool::sync`] or
//!   [`Objects::commit_durable`], and by itself a few seconds later. Calls that change datasets
//!   (create, snapshot, set, destroy ...) end when they are durable.
//! * **Order.** After a power cut no change is there without all earlier ones in the same file
//!   system, synced files excepted: those are as they were synced, independent of other changes.
//! * **Dropping the last handle** closes the pool as [`Pool::export`] does, and waits for it,
//!   [`DROP_WAIT`] at most; on the engine's own thread it does not wait. If the devices do not
//!   answer the pool is given up, and is as after a power cut: nothing that was acknowledged as
//!   durable is lost.
//! * **A panic in the engine** ends that engine: nothing is written any more, all calls give
//!   [`ErrorKind::EngineGone`] with its message, the process goes on. The devices can be imported
//!   again.
//! * **One user.** While a pool is open its files and block devices are locked against other
//!   programs that use weir (and block devices against exclusive opens). Image files are not
//!   protected against programs that take no lock.
//! * **Permissions** are kept and not checked: the handle permits everything.
//!
//! # Units
//!
//! Offsets, lengths and sizes are bytes. Times of files are [`std::time::SystemTime`] with
//! nanoseconds; times of datasets and scans are seconds since 1970. Names of datasets have up to
//! 255 bytes, names of files up to 255 bytes each (1023 with `longname=on`), names in ZAPs up to
//! [`NAME_MAX`] and values up to [`VALUE_MAX`]. Memory of a pool is [`MEMORY`] unless set by
//! [`CreateOptions::memory`], of which half is cache.
//!
//! # Errors
//!
//! There is one type, [`Error`]: a kind to branch on ([`ErrorKind`], which may grow), a sentence,
//! and the object that it is about. Errors of arguments and of the objects' state leave everything
//! as it was. [`ErrorKind::Suspended`] means that devices do not answer: the pool waits for them,
//! and calls that must write wait too; [`Pool::abandon`] gives it up. Damage on disk is
//! [`ErrorKind::Corrupt`] or [`ErrorKind::Checksum`], never a panic.
//!
//! # Not here
//!
//! Mounts (FUSE is the program weir's), writing volumes, send and receive, making encrypted file
//! systems (those that are there are read and written with [`Pool::load_key`]), and changing the
//! devices of a pool, for which there is [`local`].
#![forbid(unsafe_code)]
#![deny(missing_docs)]

mod call;
mod dataset;
mod device;
mod engine;
mod error;
mod events;
mod file;
mod fs;
mod inside;
pub mod local;
mod objects;
mod pool;
pub mod sim;

pub use call::{Call, block_on};
pub use dataset::{DatasetInfo, DatasetKind, Property, Source};
pub use device::{DEVICE_SIZE_MIN, Device, Layout, Vdev};
pub use engine::{DROP_WAIT, Engine};
pub use error::{Error, ErrorKind, Result};
pub use events::{Event, Events, FieldValue, QUEUE_MAX, Zevent};
pub use file::File;
pub use fs::{Change, DirEntry, FileKind, FileSystem, OpenOptions, Space, Stat};
pub use objects::{
    BATCH_BYTES_MAX, BATCH_CHANGES_MAX, Batch, Committed, Entry, NAME_MAX, Object, ObjectInfo, Objects, VALUE_MAX,
    Value,
};
pub use pool::{
    CreateOptions, DeviceStatus, FoundPool, Health, ImportOptions, MEMORY, Pool, PoolStatus, ScanPhase, ScanStatus,
};
