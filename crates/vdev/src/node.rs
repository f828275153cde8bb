//! What a top-level vdev is made of: a tree of nodes, each an address space of its own.
//!
//! A node is cheap to clone and never changes its children: attaching, detaching or bringing back a
//! device makes new nodes up to the top and leaves operations in flight with the old ones. Leaves
//! are shared, so queue, counters and dirty time logs stay.
//!
//! Offsets here are those of the node's own address space; a leaf adds the size of its front
//! labels.

use std::cell::{Cell, OnceCell};
use std::pin::Pin;
use std::rc::Rc;

use base::{Error, ErrorKind, Guid, Result, Txg, VdevId};
use bdev::Bytes;
use ondisk::label::DATA_START;
use rt::Rt;

use crate::done::WriteDone;
use crate::dtl::{Condition, Health};
use crate::geometry::{Column, Draid, Stripe, raidz_map};
use crate::leaf::{Leaf, WriteAs};
use crate::policy::Prio;
use crate::stats::IoErrors;

/// A boxed future over borrowed state.
pub(crate) type Boxed<'a, T> = Pin<Box<dyn Future<Output = T> + 'a>>;

/// log2 of the bytes after which another child of a mirror is preferred where all are equally busy,
/// as in OpenZFS (`vdev_mirror` shift).
const MIRROR_TURN: u32 = 21;

/// What a vdev is made of.
#[derive(Clone)]
pub enum VdevKind {
    /// One device.
    Leaf(Rc<Leaf>),
    /// Every child holds everything: a mirror, a device being replaced, a device with a spare in
    /// use.
    Mirror(Rc<Mirror>),
    /// Data with parity over all children.
    Raidz(Rc<Raidz>),
    /// Data with parity over changing groups of children, with spares distributed over all.
    Draid(Rc<DraidNode>),
    /// One of those distributed spares.
    Dspare(Rc<Dspare>),
    /// A leaf whose device is not there.
    Absent(Rc<Absent>),
    /// Its blocks were copied to other top-level vdevs and it was removed.
    Indirect(Rc<Indirect>),
    /// A top-level vdev that nothing is known of.
    Missing,
    /// The place of a removed log vdev.
    Hole,
}

/// What kind of mirror it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MirrorRole {
    /// For good.
    Mirror,
    /// Old and new device until the new one has everything.
    Replacing,
    /// A device and the hot spare that stands in for it.
    Spare,
}

/// A node whose children all hold the same.
pub struct Mirror {
    /// Its guid.
    pub guid: Guid,
    /// Its role.
    pub role: MirrorRole,
    /// Its children.
    pub children: Vec<VdevKind>,
    /// Blocks that no child had right.
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
    /// Blocks that could not be reconstructed.
    pub errors: Cell<IoErrors>,
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

/// A distributed spare of the dRAID that it is below.
pub struct Dspare {
    /// Its guid.
    pub guid: Guid,
    /// What messages call it.
    pub path: String,
    /// Which of the spares.
    pub spare: u64,
    /// What it misses.
    pub condition: Rc<Condition>,
}

/// A leaf without a device.
pub struct Absent {
    /// Its guid.
    pub guid: Guid,
    /// Where it was.
    pub path: String,
    /// What it misses by now.
    pub condition: Rc<Condition>,
}

/// Where the blocks of a removed vdev went.
pub trait IndirectMap {
    /// The pieces of `size` bytes at `offset`: start within the range, vdev, offset there, length.
    /// `Corrupt` if not all of it is mapped.
    fn remap(&self, offset: u64, size: u64) -> Result<Vec<(u64, VdevId, u64, u64)>>;
}

/// A removed vdev.
#[derive(Default)]
pub struct Indirect {
    /// Its mapping, once it is loaded.
    pub map: OnceCell<Rc<dyn IndirectMap>>,
}

/// How good a read of a node will be.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum ReplicaState {
    /// It should have the block.
    Current,
    /// It was away when the block was written.
    Stale,
    /// It cannot be read.
    Offline,
}

/// What every operation below a top-level vdev goes along with.
#[derive(Clone, Copy)]
pub(crate) struct Io<'a> {
    /// The top-level vdev, which distributed spares need.
    pub root: &'a VdevKind,
    /// When the block was born; 0 if that is not known.
    pub birth: Txg,
    /// Class of the operation.
    pub prio: Prio,
}

impl Leaf {
    fn replica_state(&self, birth: Txg) -> ReplicaState {
        if !self.condition.health().is_open() {
            ReplicaState::Offline
        } else if self.condition.misses(birth) {
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

    /// Its guid; none where the configuration only has it.
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

    /// The same with the node `guid` replaced by what `f` makes of it; unchanged parts are shared.
    /// Unchanged as a whole if there is no such node.
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

    /// Every device that is there, in order.
    pub fn leaves(&self) -> Vec<Rc<Leaf>> {
        match self {
            VdevKind::Leaf(l) => vec![l.clone()],
            _ => self.children().iter().flat_map(VdevKind::leaves).collect(),
        }
    }

    /// The condition of every leaf, there or not, with its guid.
    pub fn conditions(&self) -> Vec<(Guid, Rc<Condition>)> {
        match self {
            VdevKind::Leaf(l) => vec![(l.guid(), l.condition.clone())],
            VdevKind::Absent(a) => vec![(a.guid, a.condition.clone())],
            VdevKind::Dspare(d) => vec![(d.guid, d.condition.clone())],
            _ => self.children().iter().flat_map(VdevKind::conditions).collect(),
        }
    }

    /// How it is, by its children.
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

    /// Errors that are its own: of a leaf those of the device, else of blocks that could not be had
    /// from what is below.
    pub fn errors(&self) -> IoErrors {
        match self {
            VdevKind::Leaf(l) => l.errors(),
            VdevKind::Mirror(m) => m.errors.get(),
            VdevKind::Raidz(r) => r.errors.get(),
            VdevKind::Draid(d) => d.errors.get(),
            _ => IoErrors::default(),
        }
    }

    /// Forgets the errors of it and of everything below.
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
            VdevKind::Leaf(l) => l.replica_state(io.birth),
            VdevKind::Mirror(m) => {
                m.children.iter().map(|c| c.replica_state(io, offset)).min().unwrap_or(ReplicaState::Offline)
            }
            VdevKind::Dspare(d) => {
                let below =
                    self.dspare_child(io.root, offset).map_or(ReplicaState::Offline, |c| c.replica_state(io, offset));
                if d.condition.misses(io.birth) { below.max(ReplicaState::Stale) } else { below }
            }
            _ => ReplicaState::Offline,
        }
    }

    /// The child of the dRAID that a distributed spare has its data on at `offset`.
    fn dspare_child<'a>(&self, root: &'a VdevKind, offset: u64) -> Option<&'a VdevKind> {
        let (VdevKind::Dspare(spare), VdevKind::Draid(draid)) = (self, root) else { return None };
        draid.children.get(draid.layout.spare_child(spare.spare, offset)?)
    }

    /// Every leaf that holds the bytes at `offset`, with what it promises. Only for nodes below a
    /// stripe.
    pub(crate) fn replicas<'a>(
        &'a self,
        io: Io<'a>,
        offset: u64,
        above: ReplicaState,
        out: &mut Vec<(&'a Rc<Leaf>, ReplicaState)>,
        depth: u32,
    ) {
        // A distributed spare may stand for one that a spare stands for; a configuration can be a
        // circle.
        if depth > 8 {
            return;
        }
        match self {
            VdevKind::Leaf(l) => out.push((l, l.replica_state(io.birth).max(above))),
            VdevKind::Mirror(m) => m.children.iter().for_each(|c| c.replicas(io, offset, above, out, depth + 1)),
            VdevKind::Dspare(d) => {
                let above = if d.condition.misses(io.birth) { above.max(ReplicaState::Stale) } else { above };
                if let Some(child) = self.dspare_child(io.root, offset) {
                    child.replicas(io, offset, above, out, depth + 1);
                }
            }
            _ => {}
        }
    }

    /// Reads `len` bytes at `offset` from the best leaf that has them, from the next one where that
    /// fails. The flag tells that one failed.
    pub(crate) fn read_at<'a>(&'a self, io: Io<'a>, offset: u64, len: u64) -> Boxed<'a, Result<(Bytes, bool)>> {
        if let VdevKind::Leaf(l) = self {
            // Queued now, not when somebody looks at the future.
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

    /// Writes `data` and `pad` zeros at `offset` to every leaf that holds it. `None` if there is
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
        let io = Io { root, birth: Txg(0), prio: how.prio };
        let mut replicas = Vec::with_capacity(self.children().len());
        self.replicas(io, offset, ReplicaState::Current, &mut replicas, 0);
        let open = replicas.into_iter().filter(|(_, state)| *state != ReplicaState::Offline);
        let parts: Vec<WriteDone> = open.map(|(l, _)| l.write_data(offset, data.clone(), pad, how)).collect();
        let tolerates = parts.len().checked_sub(1)?;
        Some(WriteDone::quorum(parts, tolerates))
    }

    /// The stripes of a block: what has parity by its layout, anything else as one column.
    pub(crate) fn stripes(&self, ashift: u8, offset: u64, psize: u64) -> Vec<Stripe> {
        match self {
            VdevKind::Raidz(r) => vec![raidz_map(offset, psize, ashift, r.children.len() as u64, r.parity)],
            VdevKind::Draid(d) => d.layout.map(offset, psize),
            _ => {
                let size = psize.next_multiple_of(1 << ashift);
                vec![Stripe { parity: 0, columns: vec![Column { child: 0, offset, size, from: 0, len: psize }] }]
            }
        }
    }

    /// The world of its devices; none if no device is there.
    pub(crate) fn rt(&self) -> Option<&Rt> {
        match self {
            VdevKind::Leaf(l) => Some(l.rt()),
            other => other.children().iter().find_map(VdevKind::rt),
        }
    }

    /// The node that a column of its stripes lies on.
    pub(crate) fn column_node(&self, column: &Column) -> &VdevKind {
        match self {
            VdevKind::Raidz(r) => &r.children[column.child],
            VdevKind::Draid(d) => &d.children[column.child],
            other => other,
        }
    }
}

impl Leaf {
    /// Reads from the part of the device that is address space.
    pub(crate) fn read_data(self: &Rc<Self>, offset: u64, len: u64, prio: Prio) -> crate::ReadDone {
        self.read(DATA_START + offset, len, prio)
    }
    /// Writes to it.
    pub(crate) fn write_data(
        self: &Rc<Self>,
        offset: u64,
        data: Bytes,
        pad: usize,
        how: impl Into<WriteAs>,
    ) -> WriteDone {
        self.write(DATA_START + offset, data, pad, how)
    }
}
