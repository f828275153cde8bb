//! Space allocation: free space of the top-level vdevs, the choice of the next block's place, and
//! the changes to the space maps.
//!
//! Vocabulary. A top-level vdev is cut into *metaslabs* of equal size, each with a space map on
//! disk (format page 06). A *class* is the purpose of space (normal, log, special, dedup); the
//! metaslabs that one vdev gives to one class are a *group*. A metaslab is *loaded* when its free
//! space is in memory.
//!
//! The normal path. [`Allocator::alloc`] takes the next group by the class's rotor, in it the
//! metaslab that is active for the copy at hand, and there the next free segment from a cursor on,
//! so that blocks written together lie together. When the active metaslab cannot serve, the one
//! with the best [`weight::Weight`] follows, after its space map was read through
//! [`SpaceMapStore`]. [`Allocator::free`] notes a range; the metaslab need not be loaded. While a
//! txg syncs, `spa` asks for [`Allocator::dirty_metaslabs`] and, as often as there are passes, for
//! [`Allocator::take_changes`], and writes them. After the uberblock is on disk,
//! [`Allocator::sync_done`] moves on: space freed two txgs ago can be allocated again.
//!
//! Where a range is, in the order of its life: `allocating` (by txg, until taken), in the map as
//! allocated (no tree), `freeing` (by txg, until taken), `freed` (until the txg is committed),
//! `defer` (two txgs), `free`. A block that was born and freed within one txg skips `defer`: no
//! committed state has ever referred to it; it comes back when the txg is committed, not earlier,
//! because its write may still be in flight and caches key blocks by place and birth.
//!
//! Invariants: the trees of a metaslab are disjoint; replaying all results of `take_changes` yields
//! exactly the space in use; space that a committed state refers to is never allocated.
//!
//! Memory: a loaded metaslab costs about 30 bytes a free segment. Those that are neither active nor
//! changing are unloaded after [`AllocTunables::unload_delay`] txgs, at once when all together take
//! more than [`AllocTunables::memory_limit`].

mod allocator;
mod metaslab;
mod range_tree;
mod store;
mod tunables;
pub mod weight;

pub use allocator::{Allocator, ClassKind, ClassSpace, MsSummary, TopSpace};
pub use metaslab::MsChanges;
pub use range_tree::{RangeError, RangeTree, Run};
pub use store::{LBF, LoadedMap, Replay, SpaceMapStore};
pub use tunables::AllocTunables;
