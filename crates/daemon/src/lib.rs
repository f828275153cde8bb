//! The daemon: one process that owns imported pools and their mounts, and serves the requests of
//! commands. [`admin`] does the work on pools.
//!
//! The normal path of a command: [`socket::client`] finds the socket, or starts a daemon and waits
//! for its socket; it sends one request ([`socket::proto`]). A [`socket::listener`] reads it with
//! the sender's credentials; [`socket::serve`] checks the rights, runs the request
//! ([`admin::request`]) on a thread of one of the lanes ([`socket::lanes`]), and replies. The
//! daemon is also the keeper of the pools ([`keeper`]): it logs ([`log`]), mounts ([`fuse_front`])
//! and keeps the list of pools ([`state`]). It serves volumes over NBD
//! (`nbd`) and shows kstats as files (`kstat_front`), where it is told to.
//!
//! Invariants: at most one daemon holds a runtime folder and at most one a state folder
//! ([`paths`]); a daemon serves its owner and root, and root's daemon serves public requests of
//! every user; connections, threads and waiting requests are bounded, and a request beyond a bound
//! gets an error that says so.

pub mod fuse_front;
mod keeper;
mod kstat_front;
mod log;
pub mod metrics;
mod nbd;
pub mod paths;
pub mod server;
pub mod socket;
pub mod state;

pub use paths::Paths;
pub use socket::client::Client;
