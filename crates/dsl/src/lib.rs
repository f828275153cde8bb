//! The DSL: directories and datasets, their names, properties and space accounting, and the sync
//! tasks that change them.
//!
//! Reading order: [`props`] and [`space`] (policy), [`core`] (freed blocks), [`dir`], [`dataset`],
//! [`features`], [`pool`] (the tree), `sync` (the sync of a txg); then the tasks: `create`,
//! [`volume`] and `change`; `snap` (snapshots, bookmarks, clones and rollback, promotion); `free`
//! (deadlists, destruction, the blocks of destroyed datasets; [`walk`]: walks of block trees);
//! [`send`] and [`receive`] (streams), [`diff`] (what changed since a snapshot); [`crypto`] (keys).

mod change;
pub mod core;
mod create;
pub mod crypto;
pub mod dataset;
pub mod diff;
pub mod dir;
pub mod features;
mod free;
pub mod iolimit;
pub mod pool;
pub mod props;
pub mod receive;
mod registry;
pub mod send;
mod snap;
pub mod space;
mod sync;
#[cfg(test)]
mod tests;
pub mod volume;
pub mod walk;

pub use create::{Init, check_name};
pub use dataset::Dataset;
pub use dir::Dir;
pub use free::deadlist;
pub use pool::{DslPool, DslSetup};
pub use snap::bookmark::Bookmark;
pub use snap::snapshot::Hold;
