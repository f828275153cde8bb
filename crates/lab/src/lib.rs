//! The laboratory: what the engine does under a load, in virtual time, on devices that are
//! modelled.
//!
//! A study makes a pool on simulated devices, lets clients write or read, and reports what they
//! saw. It is the same engine as in production, so what is tuned here keeps its name and its
//! meaning there; and the same seed gives the same report.
//!
//! [`throttle`]: endless writers against a device of fixed bandwidth, under each of the write
//! throttles. [`zil`]: synchronous writers on stripes of disks, under the commit policies of the
//! intent log, beside what was [`published`] of them. [`sync_bytes`]: bytes that a device writes
//! for each byte of synchronous writes.

pub mod hist;
pub mod published;
mod stage;
pub mod sync_bytes;
pub mod throttle;
pub mod zil;
