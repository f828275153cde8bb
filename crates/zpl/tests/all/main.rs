//! What POSIX and OpenZFS promise of files, on pools in the simulator.
#![allow(clippy::unwrap_used)]

mod acl;
mod common;
mod diff;
mod direct;
mod golden;
mod linux;
mod log_records;
mod long_names;
mod model;
mod owners;
mod posix;
mod tmpfile_crash;
