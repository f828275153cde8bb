//! What `zpool` and `zfs` mean: everything that commands do with pools, below the sockets that
//! commands come over and the mounts that programs see.
//!
//! Vocabulary: a *running pool* is a pool with an engine thread of its own ([`engine`]); the
//! [`pool_set`] are those of the process; a *view* is a picture of a pool or dataset as plain data,
//! which the commands lay out ([`view`]); the *keeper* is the process ([`keeper`]); the *front end*
//! is what makes a file system visible to other programs ([`fs::front_end`]).
//!
//! The normal path of a command: the process receives a [`request::Call`] and has it performed; the
//! request ([`request`]) sends a closure to the engine thread of the pool that it is about, which
//! does the work ([`pool`], [`fs`]) or makes a view, and gives the answer.
//!
//! Invariants: the set of running pools changes only under the namespace lock; within a pool
//! whatever changes mounts or names runs one at a time; a request that fails has undone what it
//! began.

pub mod engine;
pub mod fs;
pub mod keeper;
pub mod pool;
pub mod pool_set;
pub mod request;
pub mod tunables;
pub mod view;
pub mod waits;
