//! Space allocation: free space of the top-level vdevs, the choice of a place for each block, and
//! the changes to the space maps.
//!
//! Vocabulary. A top-level vdev is cut into *metaslabs* of equal size, each with a space map on
//! disk (format page 06). A *class* is the purpose of space (normal, log, special, dedup); the
//! metaslabs that one vdev gives to one class are a *group*. A metaslab is *loaded* when its free
//! space is in memory.
//!
//! The normal path. [`Allocator::alloc`] takes the next group by the class's rotor, in it the
//! metaslab that is active for that copy of the block, and there the next free segment from a
//! cursor on, so that blocks written together are adjacent. If the active metaslab has no room, the
//! one with the best [`weight::Weight`] follows, after its space map was read through
//! [`SpaceMapStore`]. [`Allocator::free`] notes a range; the metaslab need not be loaded. While a
//! txg syncs, `spa` calls [`Allocator::dirty_metaslabs`] and [`Allocator::take_changes`] in every
//! pass, and writes the changes. After the uberblock is on disk, [`Allocator::sync_done`] makes
//! space freed two txgs ago allocatable.
//!
//! The trees that a range passes through: `allocating` (by txg, until taken), in the map as
//! allocated (no tree), `freeing` (by txg, until taken), `freed` (until the txg is committed),
//! `defer` (two txgs), `free`. A block that was born and freed within one txg skips `defer`: no
//! committed txg refers to it. It becomes free when the txg is committed, not earlier, because its
//! write may still be in flight, and caches identify blocks by place and birth.
//!
//! Invariants: the trees of a metaslab are disjoint; replaying all results of `take_changes` yields
//! exactly the space in use; space of the last committed txg is never allocated.
//!
//! Memory: a loaded metaslab takes about 30 bytes a free segment. Metaslabs that are neither active
//! nor changing are unloaded after [`AllocTunables::unload_delay`] txgs, at once while all loaded
//! ones together exceed [`AllocTunables::memory_limit`].

mod allocator;
mod metaslab;
mod pick;
mod range_tree;
mod store;
mod tunables;
pub mod weight;

pub use allocator::{Allocator, ClassKind, ClassSpace, MsSummary, TopSpace};
pub use metaslab::MsChanges;
pub use pick::Method;
pub use range_tree::{RangeError, RangeTree, Run};
pub use store::{LoadedMap, Replay, SpaceMapStore};
pub use tunables::AllocTunables;
