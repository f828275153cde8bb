//! The vdev tree: where the pool's address space meets devices.
//!
//! Vocabulary. A *leaf* is one device with its I/O scheduler. A *top-level vdev* is an address space of its own that block pointers name by number; today it
//! is a leaf, later mirrors and RAID-Z over leaves. The *tree* is all of them under the pool's guid.
//!
//! The normal path of a write: [`Top::write`] pads the block to whole sectors and gives it to the [`Leaf`]'s queue, which never waits. The queue holds it by
//! class and offset; [`policy`] says, as a pure function, which class may issue next; what lies next to the chosen operation leaves with it as one gathered
//! device operation. The completion resolves every [`WriteDone`], counts, and issues what may go next. A read takes the same way and resolves to the bytes.
//!
//! [`labels`] reads and writes the places of a device that are not part of the address space: labels and uberblocks. In which order is `spa`'s business.
//!
//! Invariants:
//! * nothing here waits for anything but devices: no task is spawned, no lock is taken;
//! * an operation that overlaps a write which is queued or in flight is held until that write is over: block devices leave the result of overlapping
//!   operations open, and a block may be rewritten in place within one txg;
//! * an error of a gathered operation is never taken for an error of its members: they are tried again one by one, so that a bad sector costs only the
//!   blocks that lie on it.

mod done;
pub mod labels;
mod leaf;
pub mod policy;
mod queue;
mod stats;
mod tree;

pub use done::{Completer, ReadDone, WriteDone};
pub use leaf::Leaf;
pub use policy::{CLASSES, ClassLimits, DirtyGauge, Prio, QueueTunables};
pub use stats::{IoErrors, LATENCY_BUCKETS, LeafStats, QueueDepth};
pub use tree::{Top, TopSpec, VdevKind, VdevTree, leaf_asize};
