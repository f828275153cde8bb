//! The vdev tree: where the pool's address space meets devices.
//!
//! Vocabulary. A *leaf* is one device with its I/O scheduler. A *top-level vdev* is an address
//! space of its own that block pointers name by number; it is a leaf or a tree of nodes over leaves
//! ([`VdevKind`]: mirror, RAID-Z, dRAID and what stands in for a device). The *tree* is all of them
//! under the pool's guid. A *stripe* is a block with its parity as it lies on the children
//! ([`geometry`]).
//!
//! The normal path of a write: [`Top::write`] pads the block to whole sectors and gives it to the
//! [`Leaf`]'s queue, which never waits. The queue holds it by class and offset; [`policy`] says, as
//! a pure function, which class may issue next; what lies next to the chosen operation leaves with
//! it as one gathered device operation. The completion resolves every [`WriteDone`], counts, and
//! issues what may go next. A read takes the same way and resolves to the bytes.
//!
//! Redundancy. A read takes the shortest way that promises the block ([`Top::read_first`]): one
//! side of a mirror, the data columns of RAID-Z; devices that were away when the block was written
//! ([`Condition`], the dirty time log) come last. Who reads verifies, and if the checksum is wrong
//! asks for [`VdevTree::arbitrate`], which reads everything, finds the block and rewrites what was
//! wrong. A plain leaf pays nothing for any of this.
//!
//! What redundancy does not cover waits at the [`FailGate`] of the tree until somebody has looked
//! after the devices: the pool is suspended.
//!
//! [`labels`] reads and writes the places of a device that are not part of the address space:
//! labels and uberblocks. In which order is `spa`'s business.
//!
//! Invariants:
//! * nothing here waits for anything but devices: no task is spawned, no lock is taken;
//! * an operation that overlaps a write which is queued or in flight is held until that write is
//!   over: block devices leave the result of overlapping operations open, and a block may be
//!   rewritten in place within one txg;
//! * an error of a gathered operation is never taken for an error of its members: they are tried
//!   again one by one, so that a bad sector costs only the blocks that lie on it.

mod arbitrate;
pub mod cost;
mod done;
mod draid_seeds;
mod dtl;
mod gate;
pub mod geometry;
pub mod labels;
mod leaf;
mod node;
pub mod policy;
mod queue;
pub mod reshape;
mod stats;
mod striped;
mod tree;

pub use arbitrate::{Repair, Verdict, Verify};
pub use done::{Completer, ReadDone, WriteDone};
pub use dtl::{Condition, ERROR_SPAN, ERRORS_MAX, FaultCause, Health, TxgSet};
pub use gate::{FailGate, FailMode};
pub use leaf::{Leaf, WriteAs};
pub use node::{Absent, DraidNode, Dspare, Indirect, IndirectMap, Mirror, MirrorRole, Raidz, VdevKind};
pub use policy::{CLASSES, ClassLimits, DirtyGauge, Prio, QueueTunables, Scheduler};
pub use stats::{ClassSums, IoErrors, LATENCY_BUCKETS, LeafStats, QueueDepth, SIZE_BUCKETS};
pub use tree::{BlockPlace, FirstRead, Place, Top, TopSpec, VdevTree, leaf_asize};
