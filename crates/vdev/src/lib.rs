//! The vdev tree: maps the pool's address space to devices.
//!
//! Vocabulary. A *leaf* is one device with its I/O scheduler. A *top-level vdev* is an address
//! space of its own that block pointers name by number; it is a leaf or a tree of nodes over leaves
//! ([`VdevKind`]: mirror, RAID-Z, dRAID, replacing, spare). The *tree* is all of them under the
//! pool's guid. A *stripe* is a block with its parity as laid out over the children ([`geometry`]);
//! on RAID-Z it depends on the block's birth ([`width`]).
//!
//! The normal path of a write: [`Top::write`] pads the block to whole sectors and gives it to the
//! [`Leaf`]'s queue, which never waits. The queue holds it by class and offset; [`policy`] says, as
//! a pure function, which class may issue next; operations adjacent to the chosen one are
//! aggregated with it into one device operation. The completion resolves every [`WriteDone`],
//! counts, and issues the next operations. A read takes the same path and resolves to the bytes.
//!
//! Redundancy. A read takes as few devices as possible ([`Top::read_first`]): one side of a mirror,
//! the data columns of RAID-Z; devices that were offline when the block was written ([`Condition`],
//! the dirty time log) come last. The caller verifies the checksum, and if it is wrong calls
//! [`VdevTree::arbitrate`], which reads every replica and parity column, reconstructs the block and
//! repairs the bad replicas. A plain leaf pays nothing for any of this.
//!
//! I/O that fails beyond redundancy waits at the [`FailGate`] of the tree, and the pool is
//! suspended until `zpool clear`.
//!
//! [`labels`] reads and writes the parts of a device outside the address space: labels and
//! uberblocks. `spa` decides the order.
//!
//! Invariants:
//! * code here waits only for devices and takes no lock, but for ranges of a RAID-Z that is being
//!   expanded ([`reflow`]);
//! * an operation that overlaps a queued or in-flight write is held until that write completes:
//!   block devices do not define the result of overlapping operations, and a block may be rewritten
//!   in place within one txg;
//! * an error of an aggregated operation is never reported for its members: they are retried one by
//!   one, so that a bad sector fails only the blocks on it.

mod arbitrate;
pub mod cost;
mod done;
mod draid_seeds;
mod dtl;
pub mod evacuate;
mod gate;
pub mod geometry;
mod inject;
pub mod labels;
mod leaf;
mod node;
pub mod policy;
mod queue;
pub mod reflow;
pub mod reshape;
mod sharing;
mod stats;
mod striped;
mod tree;
pub mod width;

pub use arbitrate::{Repair, Verdict, Verify};
pub use done::{Completer, ReadDone, WriteDone};
pub use dtl::{Condition, ERROR_SPAN, ERRORS_MAX, FaultCause, Health, TxgSet};
pub use gate::{FailGate, FailMode};
pub use inject::{ALWAYS, DeviceFault, Faults, FaultyOps, LANES_MAX, LabelPart, Odds, Trouble};
pub use leaf::{Leaf, WriteAs};
pub use node::{Absent, DraidNode, Dspare, Indirect, IndirectMap, Mirror, MirrorRole, Raidz, VdevKind};
pub use policy::{CLASSES, ClassLimits, DirtyGauge, Prio, QueueTunables, Scheduler};
pub use stats::{ClassSums, IoErrors, LATENCY_BUCKETS, LeafStats, QueueDepth, SIZE_BUCKETS};
pub use tree::{BlockPlace, FirstRead, Place, Top, TopSpec, VdevTree, leaf_asize};
