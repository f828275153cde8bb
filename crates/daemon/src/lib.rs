//! The daemon: one process that owns imported pools and their mounts, and takes what commands ask
//! for. What that means to pools is [`admin`]'s.
//!
//! The normal path of a command: [`client`] finds the socket, or starts a daemon and waits for its
//! socket; it sends one request ([`proto`]). A door ([`listener`]) reads it and says who sent it;
//! [`serve`] looks whether they may, has it done on a thread of one of the lanes ([`lanes`]) by
//! [`admin::request`], and answers. The daemon is also the keeper of the pools ([`keeper`]): it logs
//! ([`log`]), mounts ([`fuse_front`]) and remembers ([`state`]).
//!
//! Invariants: at most one daemon holds a runtime folder and at most one a state folder
//! ([`paths`]); only the owner of the daemon, or root, is served, but for requests that anyone may
//! make of root's; connections, threads and waiting requests are bounded, and what does not fit is
//! refused in words.

pub mod client;
pub mod fuse_front;
mod keeper;
mod lanes;
mod listener;
mod log;
pub mod metrics;
pub mod paths;
pub mod proto;
mod serve;
pub mod server;
pub mod state;

pub use client::Client;
pub use paths::Paths;
