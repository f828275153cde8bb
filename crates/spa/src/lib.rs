//! Pools: create, import, export, and the loop that syncs txgs. Assembles the layers of the engine.
//!
//! A [`Pool`] is made of objects, each with its own state, which no other one can reach:
//!
//! | object | owns |
//! |---|---|
//! | `stack::Stack` | nothing that changes: the handles of the layers (tree, allocator, cache, txgs, MOS, DSL), shared by all |
//! | `commit::config::Config` | the configuration without the tree, and whether the next txg writes it |
//! | `notices::Notices` | sentences for the administrator |
//! | `devices::aux::Aux` | the lists of spares and caches |
//! | `zevent::Events` | the sink of events, the last states of leaves, faults that wait to be reported |
//! | `commit::checkpoint::Checkpoint` | the checkpoint, its space maps, a request for one |
//! | [`Scan`] | scrub and resilver: progress, queues, damage |
//! | [`Devices`] | the door that opens devices, settings of new leaves; with `changes::Changes` (queued changes, labels to write after a commit), `dtl::Dtls` (dirty time logs on disk), [`LeafWorks`] (trim, initialize) |
//! | `commit::history::History` | commands that wait for a txg |
//! | `commit::ddt::Ddt` | dedup tables and their entries in memory |
//! | `commit::brt::Brt` | the block reference table: pending references, counters, entries in memory |
//! | `commit::Commit` | the uberblock, deferred frees, log space maps to flush |
//! | [`Pool`] | the objects, and the task of the sync loop |
//!
//! An object calls only those above it in the table, so there are no circles: `Commit` calls all in
//! the order of a txg, `Devices` asks `Scan` for resilvers, and several mark `Config` dirty or post
//! to `Events`. [`Pool::assemble`] makes them, for a new pool as for an imported one. A program
//! uses the methods of `Pool`, and [`Pool::devices`] and [`Pool::scan`].
//!
//! Reading order: `stack`; [`pool`]; `commit` (the sync of a txg, and the objects of the MOS);
//! `open` (create, import, rewind, claimed intent logs); `devices`; `scan`; `zevent`.

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
mod commit;
mod devices;
mod notices;
mod open;
mod pool;
mod scan;
mod stack;
#[cfg(test)]
mod tests;
mod upgrade;
mod zevent;

pub use commit::ddt::{DedupFigures, PruneBy, QUOTA_AUTO as DEDUP_QUOTA_AUTO, QUOTA_NONE as DEDUP_QUOTA_NONE};
pub use commit::heartbeat::{Beat, BeatEnd, MultihostTunables};
pub use devices::attach::NewDevice;
pub use devices::aux::AuxDevices;
pub use devices::condense::{CondenseTunables, Condenser};
pub use devices::evacuate::{Evacuator, RemovalEstimate, RemovalStatus, RemovalTunables};
pub use devices::layout::{AutoAshift, Bias, DEVICE_SIZE_MIN, DevSpec, Group, GroupKind, Layout};
pub use devices::leaf_work::{LeafWork, LeafWorks, WorkCommand, WorkKind, WorkState, WorkTunables};
pub use devices::raidz_expand::RaidzExpand;
pub use devices::rebuild::{RebuildTunables, Rebuilds};
pub use devices::reflow::{ExpandTunables, Expander};
pub use devices::split::SplitLeaf;
pub use devices::{DeviceDoor, Devices};
pub use ondisk::label::PoolState;
pub use open::create::{PoolSpec, check_pool_name};
pub use open::explain::explain;
pub use open::import::{FoundDevice, ImportOpts, PoolCandidate, is_candidate, scan};
pub use open::rewind::{Rewind, States};
pub use open::unsupported::{Unsupported, UnsupportedFeature};
pub use pool::{EngineOpts, Pool};
pub use scan::{Scan, ScanStatus, ScanTunables, ScrubRange};
pub use zevent::{EventSink, EventTunables};
