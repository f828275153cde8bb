//! The intent log (ZIL): makes synchronous writes durable before their txg syncs (format page 07,
//! OpenZFS `zil.c`).
//!
//! A txg takes seconds to reach the disk, too long for `fsync`. So every operation on an object set
//! is also noted in memory, in lists of records (`itx`). A commit writes the records that it needs
//! into *log blocks* on disk, each of which names the next. When the txg of a record is on disk the
//! record is dropped; log blocks are read only after a crash.
//!
//! Words. A *record* describes one operation. A *log block* (lwb) holds records and the pointer of
//! its successor; the *chain* begins in the header of the object set. A *commit* makes all earlier
//! operations on one object, or on all, durable. To *claim* is to allocate the blocks of a chain in
//! the space maps at import; to *replay* is to apply the records.
//!
//! Reading order: [`policy`] (decisions and tunables), [`block`] and [`chain`] (blocks on disk),
//! [`log`] (commits), `lwb` (the states of a block), [`claim`], [`replay`].

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

pub mod block;
#[cfg(feature = "planted-bugs")]
pub mod bugs;
pub mod chain;
pub mod claim;
mod itx;
pub mod log;
mod lwb;
pub mod policy;
pub mod replay;
mod stats;
#[cfg(test)]
mod tests;

pub use log::{GetData, StoredBlock, Zilog};
pub use policy::{CommitPolicy, SyncMode, ZilTunables};
pub use stats::{PoolLogs, ZilStats};
