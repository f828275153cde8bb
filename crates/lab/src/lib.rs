//! The laboratory: the engine under load, in virtual time, on modelled devices.
//!
//! A study makes a pool on simulated devices, lets clients write or read, and reports latencies and
//! rates. The engine is that of production, so tunables have the same names and meanings; the same
//! seed gives the same report.
//!
//! [`throttle`]: endless writers against a device of fixed bandwidth, under each of the write
//! throttles. [`zil`]: synchronous writers on stripes of disks, under the commit policies of the
//! intent log, beside the [`published`] measurements. [`sync_bytes`]: bytes that a device writes
//! for each byte of synchronous writes. [`arc`]: hit rates of the cache, and that its limit holds.
//! [`coldstart`]: many readers of one input at once. [`workload`]: workloads from files.
//! [`fragmentation`]: random writes to a pool that is more or less full.
//! [`starvation`]: a writer with gzip-9 beside a reader. [`throttle_sweep`]: throttles over seeds.
//! [`randwrite`]: random writes to a file of a real file system. [`replay`]: recorded operations of
//! users on any layout. [`advise`]: settings that serve a goal better. [`zil_study`]: the intent
//! log over seeds. [`device`]: models from files; [`calibrate`]: those of real devices. [`parts`]:
//! where the time of a run goes.
//!
//! [`study`] is what studies are made of: cells that run on all processors, the table of published
//! and measured figures, the page with plots, runs that go on after an interruption.

pub mod advise;
pub mod arc;
pub mod calibrate;
pub mod coldstart;
pub mod device;
pub mod fragmentation;
pub mod hist;
pub mod layout;
pub mod parts;
pub mod published;
pub mod randwrite;
pub mod replay;
mod stage;
pub mod starvation;
pub mod study;
pub mod sync_bytes;
pub mod throttle;
pub mod throttle_sweep;
pub mod workload;
pub mod zil;
pub mod zil_study;
