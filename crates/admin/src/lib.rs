//! The meaning of `zpool` and `zfs`: all operations of commands on pools, below the sockets for
//! commands and the mounts for programs.
//!
//! Vocabulary: a *running pool* is a pool with an engine thread of its own ([`engine`]); the
//! [`pool_set`] are those of the process; a *view* is a pool or dataset as plain data, which the
//! commands print ([`view`]); the *keeper* is the process ([`keeper`]); the *front end* makes a
//! file system visible to other programs ([`fs::front_end`]).
//!
//! The normal path of a command: the process receives a [`request::Call`] and performs it; the
//! request ([`request`]) sends a closure to the engine thread of its pool, which does the work
//! ([`pool`], [`fs`]) or makes a view, and returns the reply.
//!
//! Invariants: the set of running pools changes only under the namespace lock; within a pool,
//! changes of mounts and names run one at a time; a request that fails has undone its changes.

pub mod engine;
pub mod fs;
pub mod keeper;
pub mod kstat;
pub mod pool;
pub mod pool_set;
mod programs;
pub mod request;
pub mod tunables;
pub mod view;
pub mod waits;
