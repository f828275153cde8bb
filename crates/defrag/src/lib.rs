//! Plans defragmentation and does it: which files of a pool to rewrite, in which order, what that
//! writes, and how fast files are read and how long free segments are before and after.
//!
//! A pool that is nearly full and much changed has its files in many short runs. `zfs rewrite`
//! writes a file anew, and the allocator puts it where there is room now; that costs writes, and
//! space where snapshots hold the old blocks. This crate says for which files it pays. It reads a
//! pool as the checker does (`zdb`), in use or not, changes nothing, and predicts with the engine's
//! own allocator (`metaslab`) on the pool's maps, and its own vdevs (`vdev`) on the disks of the
//! simulator (`sim`).
//!
//! In the order of a plan:
//! * `tops`: the vdevs;
//! * `space`: free segments from the space maps, and where new blocks will go;
//! * `extents`, `survey`: how each file lies, in runs;
//! * `predict`: sequential reads in virtual time;
//! * `plan`: the policy, pure;
//! * `pool_plan`: all of these for one pool;
//! * `report`, `cli`: text, JSON, the command `weir defrag`.
//!
//! Of a run, which asks the mounted file systems: `journal` (how far it is), `run` (the files one
//! by one), `measure` (the new maps).
//!
//! Everything read is hostile: errors name the place, memory is bounded, nothing panics.

#![cfg_attr(test, allow(clippy::unwrap_used))]

mod cli;
mod extents;
mod journal;
mod measure;
mod plan;
mod pool_plan;
mod predict;
mod report;
mod run;
mod space;
mod survey;
mod tops;

pub use cli::{Around, main};
pub use plan::Goal;
pub use pool_plan::{Opts, PoolPlan, plan};
pub use predict::Disk;
pub use run::Mounts;
