//! Reads pools from image files and devices without the engine: dumps, manifests, and an
//! independent checker.
//!
//! A user without OpenZFS must be able to check a pool, and the engine must not check itself. This
//! crate shares only `base`, `ondisk` and `codec` with it: the format, but not the code that works
//! on a pool. It is synchronous and reads with positioned reads.
//!
//! * [`device`], [`vdev`], [`blocks`]: from files to verified blocks;
//! * [`objset`], [`zap`], [`dsl`], [`zpl`], [`zil`]: walkers over the content of blocks;
//! * [`pool`]: opens a pool the way an import does, read-only;
//! * [`check`](mod@check): recomputes everything that the format keeps twice and compares;
//! * [`manifest`]: the content of every file system as text;
//! * [`heatmap`]: pictures of how full the metaslabs are;
//! * [`cli`]: the command `weir zdb`.
//!
//! Everything read is hostile: errors name the place, memory and depth are bounded, nothing panics.

#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod blocks;
pub mod bpobj;
pub mod check;
pub mod cli;
mod dedup;
pub mod device;
pub mod dsl;
pub mod dump;
pub mod heatmap;
pub mod manifest;
pub mod objset;
pub mod pool;
pub mod raidz;
pub mod text;
pub mod vdev;
pub mod zap;
pub mod zil;
pub mod zpl;

pub use check::{CheckOpts, CheckReport, Finding, check};
pub use cli::main;
pub use heatmap::HeatMap;
pub use manifest::{ManifestOpts, tree_manifest};
pub use pool::{OpenOpts, PoolReader};
