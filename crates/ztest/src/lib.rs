//! Tests of the whole engine against a model, in the simulated world, with the judges of other
//! people's making.
//!
//! Everything follows from a seed. [`lab`] makes worlds, disks and pools; [`model`] is what a pool
//! must contain; [`workload`] draws operations and does them to both; [`tree`] compares the two;
//! [`judge`] asks zdb ([`zdb_run`]) and the judges about the images. On top of these: [`campaign`]
//! (workloads), [`cuts`] (power cuts), [`zilcuts`] (power cuts under synchronous load) and
//! [`mutate`] (damaged images, with [`surgery`] for damage that no checksum shows); [`losses`]
//! (devices lost at any moment); [`snaps`] (snapshots and what hangs on them) also on the pools of
//! others ([`mod@reference`]).

pub mod campaign;
pub mod cuts;
pub mod devices;
pub mod fill;
pub mod foreign;
pub mod judge;
mod judge_known;
pub mod lab;
pub mod losses;
pub mod model;
pub mod mutate;
pub mod mutate_write;
pub mod reference;
pub mod scan;
pub mod snaps;
pub mod surgery;
pub mod tree;
pub mod workload;
pub mod zdb_run;
pub mod zilcuts;
mod zilload;
mod zilseen;
pub mod ziltrouble;

/// What went wrong, in a sentence.
pub type Fault = String;
/// The result of a check: `Err` is a finding.
pub type Check<T = ()> = Result<T, Fault>;
