//! The DSL: directories and datasets, their names, properties and space accounting, and the sync
//! tasks that change them.
//!
//! Reading order: [`props`] and [`space`] (policy), [`core`] (freed blocks), [`dir`], [`dataset`],
//! [`deadlist`], [`features`], [`pool`] (the tree), `sync` (the sync of a txg); then the tasks:
//! `create`, `change`, `snapshot`, `bookmark`, `clone` (and rollback), `promote`, `destroy`,
//! `snap_destroy`, [`crypto`] (keys), and `freeing`, which frees the blocks of destroyed datasets
//! ([`walk`]: walks of block trees).

pub mod bookmark;
mod change;
mod clone;
pub mod core;
mod create;
pub mod crypto;
pub mod dataset;
pub mod deadlist;
mod destroy;
pub mod dir;
pub mod features;
mod freeing;
pub mod iolimit;
mod livelist;
pub mod pool;
mod promote;
pub mod props;
mod registry;
mod remap;
mod salt;
mod snap_destroy;
mod snapshot;
pub mod space;
mod sync;
pub mod walk;

pub use bookmark::Bookmark;
pub use create::{Init, check_name};
pub use dataset::Dataset;
pub use dir::Dir;
pub use pool::{DslPool, DslSetup};
pub use snapshot::Hold;
