//! The nodes of a top-level vdev: a tree, each node an address space of its own.
//!
//! A node is cheap to clone and its children never change: attaching, detaching or reopening a
//! device makes new nodes up to the top, and operations in flight keep the old ones. Leaves are
//! shared, so queue, counters and dirty time logs stay.
//!
//! Offsets here are those of the node's own address space; a leaf adds the size of its front
//! labels.

use std::cell::{Cell, Ref, RefCell};
use std::rc::Rc;

use base::{Error, ErrorKind, Guid, Result, Txg, VdevId, align_up};
use bdev::Bytes;
use ondisk::indirect::MappingEntry;
use ondisk::label::DATA_START;
use rt::{LocalBoxFuture, Rt};

use crate::done::WriteDone;
use crate::dtl::{Condition, Health};
use crate::geometry::{Column, Draid, Row, Stripe};
use crate::leaf::{Leaf, WriteAs};
use crate::policy::Prio;
use crate::reflow::Reflow;
use crate::stats::IoErrors;
use crate::width::{Expansions, Widths};

/// log2 of the bytes after which a mirror whose children are equally busy prefers the next child,
/// as in OpenZFS (`vdev_mirror` shift).
const MIRROR_TURN: u32 = 21;

/// The type of a vdev, with its children.
#[derive(Clone)]
pub enum VdevKind {
    /// One device.
    Leaf(Rc<Leaf>),
    /// Every child holds all the data: a mirror, a replacing or a spare vdev.
    Mirror(Rc<Mirror>),
    /// Data with parity over all children.
    Raidz(Rc<Raidz>),
    /// Data with parity over changing groups of children, with spares distributed over all.
    Draid(Rc<DraidNode>),
    /// A distributed spare of a dRAID.
    Dspare(Rc<Dspare>),
    /// A leaf without a device.
    Absent(Rc<Absent>),
    /// A removed top-level vdev, whose blocks were copied to others.
    Indirect(Rc<Indirect>),
    /// A top-level vdev with unknown configuration.
    Missing,
    /// The place of a removed log vdev.
    Hole,
}

/// The role of a mirror.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MirrorRole {
    /// A mirror proper.
    Mirror,
    /// Old and new device, until the new one is resilvered.
    Replacing,
    /// A device and its hot spare.
    Spare,
}

/// A node whose children hold the same data.
pub struct Mirror {
    /// Its guid.
    pub guid: Guid,
    /// Its role.
    pub role: MirrorRole,
    /// Its children.
    pub children: Vec<VdevKind>,
    /// Blocks of which every child had a bad copy.
    pub errors: Cell<IoErrors>,
}

/// RAID-Z.
pub struct Raidz {
    /// Its guid.
    pub guid: Guid,
    /// Parity columns, 1 to 3.
    pub parity: u64,
    /// Its children.
    pub children: Vec<VdevKind>,
    /// Its expansions (format page 19).
    pub expansions: Expansions,
    /// Blocks that could not be reconstructed.
    pub errors: Cell<IoErrors>,
}

impl Raidz {
    /// The widths of its blocks.
    pub fn widths(&self) -> Widths<'_> {
        self.expansions.widths(self.children.len() as u64, self.parity)
    }
}

/// dRAID.
pub struct DraidNode {
    /// Its guid.
    pub guid: Guid,
    /// Its layout.
    pub layout: Draid,
    /// Its children.
    pub children: Vec<VdevKind>,
    /// Blocks that could not be reconstructed.
    pub errors: Cell<IoErrors>,
}

/// A distributed spare of its parent dRAID.
pub struct Dspare {
    /// Its guid.
    pub guid: Guid,
    /// Its name in messages.
    pub path: String,
    /// Index among the spares.
    pub spare: u64,
    /// Its health and dirty time log.
    pub condition: Rc<Condition>,
}

/// A leaf without a device.
pub struct Absent {
    /// Its guid.
    pub guid: Guid,
    /// Last known path.
    pub path: String,
    /// Its health and dirty time log.
    pub condition: Rc<Condition>,
}

/// The mapping of a removed vdev to the new places of its blocks.
pub trait IndirectMap {
    /// Maps `size` bytes at `offset` to pieces: start within the range, vdev, offset there, length.
    /// `Corrupt` if part of the range is not mapped.
    fn remap(&self, offset: u64, size: u64) -> Result<Vec<(u64, VdevId, u64, u64)>>;
    /// Its ranges, ascending.
    fn entries(&self) -> Ref<'_, [MappingEntry]>;
}

/// A removed vdev.
#[derive(Default)]
pub struct Indirect(RefCell<Option<Rc<dyn IndirectMap>>>);

impl Indirect {
    /// Its mapping, once it is loaded.
    pub fn map(&self) -> Option<Rc<dyn IndirectMap>> {
        self.0.borrow().clone()
    }

    /// Sets the mapping, or replaces it by one that says the same of everything in use.
    pub fn set_map(&self, map: Rc<dyn IndirectMap>) {
        *self.0.borrow_mut() = Some(map);
    }
}

/// Whether a replica has a block, best first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum ReplicaState {
    /// The block is on it.
    Current,
    /// The dirty time log has the txg of the block: the replica may miss it.
    Stale,
    /// The device is not open.
    Offline,
}

/// Context of an operation below a top-level vdev.
#[derive(Clone, Copy)]
pub(crate) struct Io<'a> {
    /// The top-level vdev, through which distributed spares find their data.
    pub root: &'a VdevKind,
    /// The txg in which the block was written, for the dirty time logs; 0: unknown.
    pub written: Txg,
    /// Class of the operation.
    pub prio: Prio,
}

impl Leaf {
    fn replica_state(&self, written: Txg) -> ReplicaState {
        if !self.condition.health().is_open() {
            ReplicaState::Offline
        } else if self.condition.misses(written) {
            ReplicaState::Stale
        } else {
            ReplicaState::Current
        }
    }
}

impl VdevKind {
    /// Its children.
    pub fn children(&self) -> &[VdevKind] {
        match self {
            VdevKind::Mirror(m) => &m.children,
            VdevKind::Raidz(r) => &r.children,
            VdevKind::Draid(d) => &d.children,
            _ => &[],
        }
    }

    /// Its guid; none for types without one in the tree.
    pub fn guid(&self) -> Option<Guid> {
        match self {
            VdevKind::Leaf(l) => Some(l.guid()),
            VdevKind::Mirror(m) => Some(m.guid),
            VdevKind::Raidz(r) => Some(r.guid),
            VdevKind::Draid(d) => Some(d.guid),
            VdevKind::Dspare(d) => Some(d.guid),
            VdevKind::Absent(a) => Some(a.guid),
            VdevKind::Indirect(_) | VdevKind::Missing | VdevKind::Hole => None,
        }
    }

    /// The node `guid` in it.
    pub fn find(&self, guid: Guid) -> Option<VdevKind> {
        if self.guid() == Some(guid) {
            return Some(self.clone());
        }
        self.children().iter().find_map(|c| c.find(guid))
    }

    /// A copy with the node `guid` replaced by `f` of it; unchanged parts are shared. An unchanged
    /// copy if there is no such node.
    pub fn replace(&self, guid: Guid, f: &dyn Fn(&VdevKind) -> VdevKind) -> VdevKind {
        if self.guid() == Some(guid) {
            return f(self);
        }
        let children = || self.children().iter().map(|c| c.replace(guid, f)).collect();
        if self.find(guid).is_none() {
            return self.clone();
        }
        self.with_children(children())
    }

    /// Every present device, in order.
    pub fn leaves(&self) -> Vec<Rc<Leaf>> {
        match self {
            VdevKind::Leaf(l) => vec![l.clone()],
            _ => self.children().iter().flat_map(VdevKind::leaves).collect(),
        }
    }

    /// The condition of every leaf, present or absent, with its guid.
    pub fn conditions(&self) -> Vec<(Guid, Rc<Condition>)> {
        match self {
            VdevKind::Leaf(l) => vec![(l.guid(), l.condition.clone())],
            VdevKind::Absent(a) => vec![(a.guid, a.condition.clone())],
            VdevKind::Dspare(d) => vec![(d.guid, d.condition.clone())],
            _ => self.children().iter().flat_map(VdevKind::conditions).collect(),
        }
    }

    /// Its health, derived from its children.
    pub fn health(&self) -> Health {
        let below = |tolerates: usize| {
            let children: Vec<Health> = self.children().iter().map(VdevKind::health).collect();
            let lost = children.iter().filter(|h| !h.is_open()).count();
            if lost > tolerates {
                Health::Unavail
            } else if children.iter().any(|h| *h != Health::Online) {
                Health::Degraded
            } else {
                Health::Online
            }
        };
        match self {
            VdevKind::Leaf(l) => l.condition.health(),
            VdevKind::Absent(a) => match a.condition.health() {
                Health::Online | Health::Degraded => Health::Unavail,
                other => other,
            },
            VdevKind::Dspare(d) => d.condition.health(),
            VdevKind::Mirror(m) => below(m.children.len().saturating_sub(1)),
            VdevKind::Raidz(r) => below(r.parity as usize),
            VdevKind::Draid(d) => below(d.layout.parity as usize),
            VdevKind::Indirect(_) | VdevKind::Hole => Health::Online,
            VdevKind::Missing => Health::Unavail,
        }
    }

    /// Its own errors: of a leaf those of the device, of other nodes blocks that its children could
    /// not deliver.
    pub fn errors(&self) -> IoErrors {
        match self {
            VdevKind::Leaf(l) => l.errors(),
            VdevKind::Mirror(m) => m.errors.get(),
            VdevKind::Raidz(r) => r.errors.get(),
            VdevKind::Draid(d) => d.errors.get(),
            _ => IoErrors::default(),
        }
    }

    /// Clears its errors and those of all descendants.
    pub fn clear_errors(&self) {
        match self {
            VdevKind::Leaf(l) => l.clear_errors(),
            VdevKind::Mirror(m) => m.errors.set(IoErrors::default()),
            VdevKind::Raidz(r) => r.errors.set(IoErrors::default()),
            VdevKind::Draid(d) => d.errors.set(IoErrors::default()),
            _ => {}
        }
        self.children().iter().for_each(VdevKind::clear_errors);
    }

    pub(crate) fn count_own_error(&self, checksum: bool) {
        let errors = match self {
            VdevKind::Mirror(m) => &m.errors,
            VdevKind::Raidz(r) => &r.errors,
            VdevKind::Draid(d) => &d.errors,
            VdevKind::Leaf(l) if checksum => return l.count_checksum_error(0, 0),
            _ => return,
        };
        let mut n = errors.get();
        if checksum {
            n.cksum += 1
        } else {
            n.read += 1
        }
        errors.set(n);
    }

    /// The best state of any replica of the bytes at `offset`. Only for nodes below a stripe.
    pub(crate) fn replica_state(&self, io: Io<'_>, offset: u64) -> ReplicaState {
        match self {
            VdevKind::Leaf(l) => l.replica_state(io.written),
            VdevKind::Mirror(m) => {
                m.children.iter().map(|c| c.replica_state(io, offset)).min().unwrap_or(ReplicaState::Offline)
            }
            VdevKind::Dspare(d) => {
                let below =
                    self.dspare_child(io.root, offset).map_or(ReplicaState::Offline, |c| c.replica_state(io, offset));
                if d.condition.misses(io.written) { below.max(ReplicaState::Stale) } else { below }
            }
            _ => ReplicaState::Offline,
        }
    }

    /// The child of the dRAID that holds the data of a distributed spare at `offset`.
    fn dspare_child<'a>(&self, root: &'a VdevKind, offset: u64) -> Option<&'a VdevKind> {
        let (VdevKind::Dspare(spare), VdevKind::Draid(draid)) = (self, root) else { return None };
        draid.children.get(draid.layout.spare_child(spare.spare, offset)?)
    }

    /// Appends every leaf that holds the bytes at `offset`, with its state, but no better than
    /// `above`. Only for nodes below a stripe.
    pub(crate) fn replicas<'a>(
        &'a self,
        io: Io<'a>,
        offset: u64,
        above: ReplicaState,
        out: &mut Vec<(&'a Rc<Leaf>, ReplicaState)>,
        depth: u32,
    ) {
        // Spares may replace spares, so a bad configuration can be a cycle: bound the depth.
        if depth > 8 {
            return;
        }
        match self {
            VdevKind::Leaf(l) => out.push((l, l.replica_state(io.written).max(above))),
            VdevKind::Mirror(m) => m.children.iter().for_each(|c| c.replicas(io, offset, above, out, depth + 1)),
            VdevKind::Dspare(d) => {
                let above = if d.condition.misses(io.written) { above.max(ReplicaState::Stale) } else { above };
                if let Some(child) = self.dspare_child(io.root, offset) {
                    child.replicas(io, offset, above, out, depth + 1);
                }
            }
            _ => {}
        }
    }

    /// Reads `len` bytes at `offset` from the best leaf, and on errors from the next best. The
    /// flag: a leaf failed.
    pub(crate) fn read_at<'a>(
        &'a self,
        io: Io<'a>,
        offset: u64,
        len: u64,
    ) -> LocalBoxFuture<'a, Result<(Bytes, bool)>> {
        if let VdevKind::Leaf(l) = self {
            // Queue now, not at the first poll.
            let read = l.read_data(offset, len, io.prio);
            return Box::pin(async move { Ok((read.await?, false)) });
        }
        Box::pin(self.read_replica(io, offset, len))
    }

    /// As [`VdevKind::read_at`], for nodes with several leaves.
    pub(crate) async fn read_replica<'a>(&'a self, io: Io<'a>, offset: u64, len: u64) -> Result<(Bytes, bool)> {
        let mut replicas = Vec::with_capacity(self.children().len());
        self.replicas(io, offset, ReplicaState::Current, &mut replicas, 0);
        let first = (offset >> MIRROR_TURN) as usize;
        let (mut tried, mut error) = (0u64, None);
        loop {
            let count = replicas.len();
            let best = (0..count)
                .map(|i| (first + i) % count)
                .filter(|i| tried & (1 << (i % 64)) == 0 && replicas[*i].1 != ReplicaState::Offline)
                .min_by_key(|i| (replicas[*i].1, replicas[*i].0.load()));
            let Some(best) = best else {
                return Err(error.unwrap_or_else(|| Error::new(ErrorKind::Io, "no device that has it is there")));
            };
            tried |= 1 << (best % 64);
            match replicas[best].0.read_data(offset, len, io.prio).await {
                Ok(data) => return Ok((data, error.is_some())),
                Err(e) if e.kind() == ErrorKind::Interrupted => return Err(e),
                Err(e) => error = Some(e),
            }
        }
    }

    /// Writes `data` and `pad` zeros at `offset` to every open leaf of the node. `None` if there is
    /// none.
    pub(crate) fn write_at(
        &self,
        root: &VdevKind,
        offset: u64,
        data: &Bytes,
        pad: usize,
        how: WriteAs,
    ) -> Option<WriteDone> {
        if let VdevKind::Leaf(l) = self {
            return l.condition.health().is_open().then(|| l.write_data(offset, data.clone(), pad, how));
        }
        let io = Io { root, written: Txg(0), prio: how.prio };
        let mut replicas = Vec::with_capacity(self.children().len());
        self.replicas(io, offset, ReplicaState::Current, &mut replicas, 0);
        let open = replicas.into_iter().filter(|(_, state)| *state != ReplicaState::Offline);
        let parts: Vec<WriteDone> = open.map(|(l, _)| l.write_data(offset, data.clone(), pad, how)).collect();
        let tolerates = parts.len().checked_sub(1)?;
        Some(WriteDone::quorum(parts, tolerates))
    }

    /// Allocated bytes of a block of `psize` bytes born in `birth`.
    pub(crate) fn asize_of(&self, ashift: u8, psize: u64, birth: Txg) -> u64 {
        match self {
            VdevKind::Raidz(r) => r.widths().at(birth).asize(psize, ashift),
            VdevKind::Draid(d) => d.layout.asize(psize),
            _ => align_up(psize, 1 << ashift),
        }
    }

    /// The stripes of a block born in `birth`; one column without parity except on RAID-Z and
    /// dRAID.
    pub(crate) fn stripes(&self, ashift: u8, offset: u64, psize: u64, birth: Txg) -> Vec<Stripe> {
        match self {
            VdevKind::Raidz(r) => r.widths().stripes(ashift, offset, psize, birth),
            VdevKind::Draid(d) => d.layout.map(offset, psize),
            _ => {
                let size = psize.next_multiple_of(1 << ashift);
                let columns = vec![Column { child: 0, offset, size, from: 0, len: psize }];
                vec![Stripe { parity: 0, columns, row: Row::over(0) }]
            }
        }
    }

    /// The second places of the sectors of a block on a RAID-Z that is being expanded.
    pub(crate) fn second_places(&self, ashift: u8, offset: u64, psize: u64, birth: Txg) -> Vec<Stripe> {
        match self {
            VdevKind::Raidz(r) => r.widths().second_places(ashift, offset, psize, birth),
            _ => Vec::new(),
        }
    }

    /// The expansion that is under way.
    pub fn reflow(&self) -> Option<&Rc<Reflow>> {
        match self {
            VdevKind::Raidz(r) => r.expansions.reflow.as_ref(),
            _ => None,
        }
    }

    /// The world of its devices; none without a device.
    pub(crate) fn rt(&self) -> Option<&Rt> {
        match self {
            VdevKind::Leaf(l) => Some(l.rt()),
            other => other.children().iter().find_map(VdevKind::rt),
        }
    }

    /// The node that holds a column of its stripes.
    pub(crate) fn column_node(&self, column: &Column) -> &VdevKind {
        match self {
            VdevKind::Raidz(r) => &r.children[column.child],
            VdevKind::Draid(d) => &d.children[column.child],
            other => other,
        }
    }
}

impl Leaf {
    /// Reads at an offset of the address space; offsets of the scratch area are negative and wrap.
    pub(crate) fn read_data(self: &Rc<Self>, offset: u64, len: u64, prio: Prio) -> crate::ReadDone {
        self.read(DATA_START.wrapping_add(offset), len, prio)
    }
    /// Writes at an offset of the address space, as [`Leaf::read_data`].
    pub(crate) fn write_data(
        self: &Rc<Self>,
        offset: u64,
        data: Bytes,
        pad: usize,
        how: impl Into<WriteAs>,
    ) -> WriteDone {
        self.write(DATA_START.wrapping_add(offset), data, pad, how)
    }
}
