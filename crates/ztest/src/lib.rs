//! Tests of the whole engine against a model, in the simulated world, with independent judges
//! (other implementations).
//!
//! Everything follows from a seed. [`lab`] makes worlds, disks and pools; [`model`] is the expected
//! content of a pool; [`workload`] draws operations and does them to both; [`tree`] compares the
//! two; [`judge`] runs zdb ([`zdb_run`]) and the judges on the images. On top of these:
//! [`campaign`] (workloads), [`cuts`] (power cuts), [`zilcuts`] (power cuts under synchronous
//! load), [`zilfrozen`] (what logs alone keep) and [`mutate`] (damaged images, with [`surgery`] for
//! damage that no checksum shows); [`losses`] (devices lost at any moment); [`snaps`] (snapshots,
//! clones, holds, bookmarks) also on foreign pools ([`mod@reference`]); [`sends`] and [`receives`]
//! (send streams); [`volumes`] and [`volcuts`] (volumes, and power cuts under their load);
//! [`rescues`] (ruined pools); [`caches`] (cache devices); [`owners`] (space by owner, in cuts).

pub mod bugs;
pub mod caches;
pub mod campaign;
pub mod cuts;
mod cutting;
pub mod devices;
pub mod expandcuts;
pub mod fill;
pub mod foreign;
pub mod judge;
mod judge_known;
pub mod lab;
pub mod losses;
pub mod model;
pub mod mutate;
pub mod mutate_stream;
pub mod mutate_write;
pub mod owners;
pub mod receives;
pub mod reference;
pub mod removecuts;
pub mod rescues;
pub mod scan;
pub mod sends;
pub mod snaps;
pub mod splitcuts;
pub mod surgery;
pub mod tree;
pub mod volcuts;
pub mod volumes;
pub mod workload;
pub mod zdb_run;
pub mod zilcuts;
pub mod zilfrozen;
mod zilload;
mod zilseen;
pub mod ziltrouble;

/// A finding, in a sentence.
pub type Fault = String;
/// The result of a check: `Err` is a finding.
pub type Check<T = ()> = Result<T, Fault>;
