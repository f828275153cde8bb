//! The leaf of the storage stack: block devices that take owned buffers by submission.
//!
//! Vocabulary. A [`Buf`] is memory with one owner who may change it: reads and callers fill it. A
//! [`Bytes`] is frozen memory with many readers: writes take it, caches and CPU jobs share it. A
//! [`BlockDev`] is a file, a disk or a model of one; its contract stands on the trait, and
//! [`conformance`] checks it on any implementation.
//!
//! The normal path: a caller fills a `Buf`, freezes it, submits [`Op::Write`] with a list of
//! `Bytes`; the device calls the completion once, later, from the engine's loop. The helpers
//! [`read`], [`write()`], [`writev`], [`flush`] wrap submission in futures; dropping such a future
//! abandons the result, never the memory that the device still uses.
#![allow(unsafe_code)]

mod arena;
mod buf;
mod bytes;
pub mod conformance;
mod dev;
mod held;
mod mem;
mod pool;

pub use arena::{ArenaStats, CHUNK, ChunkSource, arena_stats, set_chunk_source};
pub use buf::{Buf, PAGE};
pub use bytes::Bytes;
pub use dev::{BlockDev, Completion, DevInfo, Done, MAX_SEGMENTS, Op, discard, flush, read, readv, run, write, writev};
pub use held::HeldDev;
pub use mem::MemDev;
pub use pool::{set_thread_limit, thread_pooled};
