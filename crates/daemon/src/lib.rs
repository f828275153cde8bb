//! The daemon: one process that owns imported pools and their mounts, and does what commands ask
//! for.
//!
//! Vocabulary: a *running pool* is a pool with an engine thread of its own ([`engine`]); a *view*
//! is a picture of a pool or dataset as plain data, which the commands lay out; the *front end* is
//! what makes a file system visible to other programs ([`mounts`]).
//!
//! The normal path of a command: [`client`] finds the socket, or starts a daemon and waits for its
//! socket; it sends one request ([`proto`]). A door ([`front`]) reads it and says who sent it;
//! [`request`] says whether they may and what it means; a thread of one of the lanes ([`lanes`])
//! has it done, which sends closures to the engine thread of the pool that it is about, and
//! answers.
//!
//! Invariants: at most one daemon holds a runtime folder and at most one a state folder
//! ([`paths`]); only the owner of the daemon, or root, is served, but for requests that anyone may
//! make of root's; connections, threads and waiting requests are bounded, and what does not fit is
//! refused in words; the set of running pools changes only under the namespace lock; within a pool
//! whatever changes mounts or names runs one at a time; a request that fails has undone what it
//! began.

mod acl_notice;
pub mod client;
mod create;
mod crypt_ops;
mod device_ops;
pub use vdev_spec::{VdevSpec, vdev_word};
mod dependents;
pub mod engine;
pub mod files;
mod front;
mod fs_ops;
pub use fs_ops::parse_fs_props;
mod history;
mod import;
mod label_ops;
mod lanes;
mod log;
pub mod metrics;
pub mod mounts;
pub mod nice;
pub mod paths;
pub mod places;
pub mod pool_props;
pub mod proto;
mod proto_flow;
mod proto_secret;
pub mod request;
mod requests;
mod scan_ops;
mod serve;
pub mod server;
pub mod snap_ops;
pub mod state;
mod temp_props;
pub use temp_props::{MountHow, TempProps};
pub mod trace;
mod tunable_table;
pub mod tunables;
mod vdev_spec;
pub mod view_flow;
pub mod view_fs;
pub mod view_io;
mod view_pool;
pub mod zevents;

pub use client::Client;
pub use paths::Paths;
