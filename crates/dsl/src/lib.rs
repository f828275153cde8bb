//! The DSL: directories and datasets, their names, properties and space accounting, and the sync
//! tasks that change them.
//!
//! Reading order: [`props`] and [`space`] (policy), [`core`] (freed blocks), [`dir`], [`dataset`],
//! [`features`], [`pool`] (the tree), `sync` (the sync of a txg); then the tasks: `create`,
//! [`volume`] and `change`; `snap` (snapshots, bookmarks, clones and rollback, promotion); `free`
//! (deadlists, destruction, the blocks of destroyed datasets; [`walk`]: walks of block trees);
//! [`send`] and [`receive`] (streams), `redact` (what they leave out), [`diff`] (what changed since
//! a snapshot); [`crypto`] (keys),
//! [`deleg`] (permissions of users).

/// Whether a bug is planted: only in builds with the feature `planted-bugs`.
#[cfg(feature = "planted-bugs")]
macro_rules! planted {
    ($bug:ident) => {
        $crate::bugs::planted($crate::bugs::Bug::$bug)
    };
}
/// Whether a bug is planted: only in builds with the feature `planted-bugs`.
#[cfg(not(feature = "planted-bugs"))]
macro_rules! planted {
    ($bug:ident) => {
        false
    };
}

#[cfg(feature = "planted-bugs")]
pub mod bugs;
mod change;
pub mod core;
mod create;
pub mod crypto;
mod damage;
pub mod dataset;
pub mod deleg;
pub mod diff;
pub mod dir;
pub mod features;
mod free;
pub mod iolimit;
pub mod limits;
pub mod pool;
pub mod props;
pub mod receive;
mod redact;
mod registry;
pub mod send;
mod snap;
pub mod space;
mod sync;
#[cfg(test)]
mod tests;
pub mod upgrade;
pub mod volume;
pub mod walk;

pub use create::{Init, NewHead, check_name};
pub use damage::BlockRange;
pub use dataset::{CloneSource, Dataset};
pub use dir::Dir;
pub use free::deadlist;
pub use free::livelist::{LIVELIST_ENTRIES, LIVELIST_SHARED};
pub use pool::{DslPool, DslSetup, NESTING_MAX, NESTING_MOST};
pub use redact::Redaction;
pub use snap::bookmark::Bookmark;
pub use snap::snapshot::Hold;
