//! A server over disks in memory, made of the library alone: against a small client of our own,
//! against damaged sessions, and against the clients that the machine has.
#![allow(clippy::unwrap_used)]

mod client;
mod disk;
mod judges;
mod mutated;
mod random;
mod rng;
mod server;
