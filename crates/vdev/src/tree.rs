//! The tree: top-level vdevs and their nodes.

use std::cell::{Cell, Ref, RefCell};
use std::rc::Rc;

use base::{Error, ErrorKind, Guid, ObjectId, Result, ResultExt, SECTOR, Txg, VdevId, align_up};
use bdev::Bytes;
use ondisk::blkptr::Dva;
use ondisk::label::{DATA_START, usable_size};
use ondisk::vdev_config::VdevConfig;
use rt::sync::RangeGuard;
use rt::{LocalBoxFuture, Rt};

use crate::arbitrate::{Part, Repair, Verdict, Verify, arbitrate};
use crate::cost::worst_asize;
use crate::done::WriteDone;
use crate::dtl::{Condition, Health};
use crate::gate::FailGate;
use crate::leaf::{Leaf, WriteAs};
use crate::node::{Io, ReplicaState, VdevKind};
use crate::policy::Prio;
use crate::reshape::Shape;
use crate::striped::{self, Assembly};
use crate::width::ORIGINAL;

/// Allocatable bytes of a leaf on a device of `device_bytes`: the space between the labels in whole
/// 256 KiB; 0 if the device is too small.
pub fn leaf_asize(device_bytes: u64) -> u64 {
    usable_size(device_bytes)
}

/// Bound on the chain of mappings of one range.
const REMAPS_MAX: u32 = 64;

/// The result of a first read of a block, not verified.
#[derive(Debug)]
pub struct FirstRead {
    /// The bytes.
    pub data: Bytes,
    /// A device failed to read its part, which others supplied: [`VdevTree::arbitrate`] can repair
    /// it.
    pub failed: bool,
}

/// A range of a block and its current place, after remapping.
#[derive(Clone)]
pub struct Place {
    /// The vdev, never an indirect one.
    pub top: Rc<Top>,
    /// Offset there.
    pub offset: u64,
    /// Bytes.
    pub len: u64,
    /// Start of the range in the block.
    pub at: u64,
}

/// A block on a top-level vdev.
#[derive(Clone, Copy, Debug)]
pub struct BlockPlace {
    /// The vdev.
    pub vdev: VdevId,
    /// DVA offset.
    pub offset: u64,
    /// Stored bytes, a multiple of 512.
    pub psize: u64,
    /// Physical birth, which decides the layout on RAID-Z.
    pub birth: Txg,
    /// The txg in which it was written, for the dirty time logs: its birth; of a log block, which
    /// may be written later, unknown (0).
    pub written: Txg,
}

impl BlockPlace {
    /// The copy at `dva` of a block of `psize` bytes that was written in the txg of its `birth`.
    pub fn new(dva: Dva, psize: u64, birth: Txg) -> BlockPlace {
        BlockPlace { vdev: dva.vdev(), offset: dva.offset(), psize, birth, written: birth }
    }
}

/// The parameters of a new [`Top`].
pub struct TopSpec {
    /// Its index, as block pointers name it.
    pub id: VdevId,
    /// log2 of the allocation unit, 9 to 16; at least the logical sector of every device below it,
    /// which the caller ensures.
    pub ashift: u8,
    /// Allocatable bytes.
    pub asize: u64,
    /// log2 of the metaslab size; 0 before the first sync.
    pub ms_shift: u8,
    /// The metaslab array object; 0 before the first sync.
    pub ms_array: ObjectId,
    /// Whether it is a log device.
    pub is_log: bool,
    /// Its nodes.
    pub kind: VdevKind,
    /// Its configuration in the tree's MOS form; the guids come from here.
    pub config: VdevConfig,
}

/// A top-level vdev: one address space.
pub struct Top {
    /// Its index, as block pointers name it.
    pub id: VdevId,
    /// log2 of the allocation unit.
    pub ashift: u8,
    /// Allocatable bytes.
    pub asize: Cell<u64>,
    /// log2 of the metaslab size; 0 before the first sync.
    pub ms_shift: Cell<u8>,
    /// The metaslab array object; 0 before the first sync.
    pub ms_array: Cell<ObjectId>,
    /// Whether it is a log device.
    pub is_log: bool,
    undeflated: Cell<bool>,
    kind: RefCell<VdevKind>,
    config: RefCell<VdevConfig>,
}

impl Top {
    /// A top-level vdev as `spec` says.
    pub fn new(spec: TopSpec) -> Rc<Top> {
        Rc::new(Top {
            id: spec.id,
            ashift: spec.ashift,
            asize: Cell::new(spec.asize),
            ms_shift: Cell::new(spec.ms_shift),
            ms_array: Cell::new(spec.ms_array),
            is_log: spec.is_log,
            undeflated: Cell::new(false),
            kind: RefCell::new(spec.kind),
            config: RefCell::new(spec.config),
        })
    }

    /// Its guid; 0 of a hole.
    pub fn guid(&self) -> Guid {
        self.config.borrow().guid
    }
    /// The world of its devices; none if no device is there.
    fn rt(&self) -> Option<Rt> {
        self.kind.borrow().rt().cloned()
    }
    /// Its nodes and configuration, to be changed.
    pub fn shape(&self) -> Shape {
        Shape { kind: self.kind(), config: self.config.borrow().clone() }
    }
    /// Replaces nodes and configuration; operations in flight keep the old nodes.
    pub fn set_shape(&self, shape: Shape) {
        *self.kind.borrow_mut() = shape.kind;
        *self.config.borrow_mut() = shape.config;
    }
    /// Its current nodes.
    pub fn kind(&self) -> VdevKind {
        self.kind.borrow().clone()
    }
    /// Replaces the nodes; operations in flight keep the old ones.
    pub fn set_kind(&self, kind: VdevKind) {
        *self.kind.borrow_mut() = kind;
    }
    /// Whether it is the place of a removed log vdev.
    pub fn is_hole(&self) -> bool {
        matches!(*self.kind.borrow(), VdevKind::Hole)
    }
    /// Whether it was removed and its blocks were copied to others.
    pub fn is_indirect(&self) -> bool {
        matches!(*self.kind.borrow(), VdevKind::Indirect(_))
    }

    /// Allocated bytes of a block of `psize` bytes born in `birth`, or written in that txg now
    /// (format page 09 sections 1, 3 and 10).
    pub fn asize_of(&self, psize: u64, birth: Txg) -> u64 {
        self.kind.borrow().asize_of(self.ashift, psize, birth)
    }

    /// Upper bound of the charge to a dataset for `copies` copies of a block of `psize` bytes here,
    /// gang headers included, in whichever txg it is written: a wider block takes no more.
    pub fn worst_dsize(&self, psize: u64, copies: u64) -> u64 {
        self.dsize(worst_asize(psize, copies, self.min_alloc(), |n| self.asize_of(n, ORIGINAL)))
    }

    /// Unit in bytes to which stored sizes of compressed blocks are rounded.
    pub fn min_alloc(&self) -> u64 {
        match &*self.kind.borrow() {
            VdevKind::Draid(d) => d.layout.unit_data(),
            _ => 1 << self.ashift.max(9),
        }
    }

    /// Unit in bytes of start and size of every allocation: a sector, on dRAID a sector of every
    /// column of a group.
    pub fn alloc_unit(&self) -> u64 {
        match &*self.kind.borrow() {
            VdevKind::Draid(d) => d.layout.unit(),
            _ => 1 << self.ashift,
        }
    }

    /// Start and size of metaslab `ms`, whose size must be set: trimmed to whole allocation units
    /// (format page 09 section 10).
    pub fn ms_range(&self, ms: u64) -> (u64, u64) {
        let (start, size) = (ms << self.ms_shift.get(), 1u64 << self.ms_shift.get());
        let unit = self.alloc_unit();
        let first = start.next_multiple_of(unit);
        (first, (start + size - first) / unit * unit)
    }

    /// The first part of a range in use that a sequential rebuild reads at once: allocated bytes,
    /// at most `size`, and bytes of data in them. `most` limits the bytes on each device. None for
    /// a vdev that cannot be rebuilt without knowing its blocks.
    pub fn rebuild_part(&self, start: u64, size: u64, most: u64) -> Option<(u64, u64)> {
        let most = most.max(1 << self.ashift);
        match &*self.kind.borrow() {
            VdevKind::Leaf(_) | VdevKind::Mirror(_) => {
                let n = size.min(most >> self.ashift << self.ashift);
                Some((n, n))
            }
            VdevKind::Draid(draid) => Some(draid.layout.rebuild_part(start, size, most)),
            _ => None,
        }
    }

    /// Whether datasets are charged all that it allocates, as in pools from before version 3.
    pub fn set_undeflated(&self, undeflated: bool) {
        self.undeflated.set(undeflated);
    }

    /// Charge to datasets for each allocated byte, in 512ths of a byte: 512 without redundancy
    /// (format page 05; measured with a block of 128 KiB of the original width).
    pub fn deflate_ratio(&self) -> u64 {
        if self.undeflated.get() {
            return 512;
        }
        let of_128k = self.asize_of(128 << 10, ORIGINAL) >> 9;
        (128 << 10) / of_128k
    }

    /// The charge to datasets for `asize` allocated bytes.
    pub fn dsize(&self, asize: u64) -> u64 {
        (asize >> 9) * self.deflate_ratio()
    }

    /// Number of metaslabs; 0 before their size is set.
    pub fn ms_count(&self) -> u64 {
        match self.ms_shift.get() {
            0 => 0,
            shift => self.asize.get().checked_shr(u32::from(shift)).unwrap_or(0),
        }
    }

    /// Whether it has devices and a known configuration: not a hole, not indirect, not missing.
    pub fn is_concrete(&self) -> bool {
        !matches!(&*self.kind.borrow(), VdevKind::Indirect(_) | VdevKind::Hole | VdevKind::Missing)
    }

    /// Whether its blocks can be read and new ones written: not a hole, not indirect, not missing,
    /// enough devices open.
    pub fn is_usable(&self) -> bool {
        match &*self.kind.borrow() {
            VdevKind::Indirect(_) | VdevKind::Hole => false,
            kind => kind.health().is_open(),
        }
    }

    fn unusable(&self) -> Error {
        let what = match *self.kind.borrow() {
            VdevKind::Hole => "is the place of a removed device",
            VdevKind::Indirect(_) => "was removed",
            _ => "is missing",
        };
        Error::new(ErrorKind::Io, format!("top-level vdev {} {what}", self.id))
    }

    fn check(&self, offset: u64, len: u64, birth: Txg) -> Result<()> {
        if !offset.is_multiple_of(1 << self.ashift.max(9)) || len == 0 || !len.is_multiple_of(SECTOR) {
            return Err(Error::corrupt(format!(
                "top-level vdev {}: {len} bytes at {offset} are not whole sectors",
                self.id
            )));
        }
        if offset.checked_add(self.asize_of(len, birth)).is_none_or(|end| end > self.asize.get()) {
            return Err(Error::corrupt(format!(
                "top-level vdev {}: {len} bytes at {offset} are beyond its end at {}",
                self.id,
                self.asize.get()
            )));
        }
        Ok(())
    }

    /// Reads a copy of a block that is on this vdev. A range outside the vdev is `Corrupt`: the
    /// address came from a block pointer. The caller verifies the checksum: if it is wrong,
    /// [`VdevTree::arbitrate`] tries the other replicas and parity.
    pub async fn read_first(&self, block: BlockPlace, prio: Prio) -> Result<FirstRead> {
        let BlockPlace { offset, psize, birth, written, .. } = block;
        self.check(offset, psize, birth)?;
        let _range = self.share_range(offset, psize, birth).await;
        let kind = self.kind();
        let io = Io { root: &kind, written, prio };
        let (data, failed) = match &kind {
            VdevKind::Leaf(leaf) => {
                if !leaf.condition.health().is_open() {
                    return Err(self.unusable());
                }
                (leaf.read(DATA_START + offset, psize, prio).await?, false)
            }
            VdevKind::Mirror(_) => kind.read_replica(io, offset, psize).await?,
            VdevKind::Raidz(_) | VdevKind::Draid(_) => {
                let stripes = kind.stripes(self.ashift, offset, psize, birth);
                let place = || format!("top-level vdev {}: {psize} bytes at {offset}", self.id);
                striped::read(&kind, &stripes, psize, io).await.at(place)?
            }
            _ => return Err(self.unusable()),
        };
        Ok(FirstRead { data, failed })
    }

    /// Writes `data` of a block born in `birth` at DVA offset `offset`, padded with zeros as the
    /// layout needs. Never waits; the future returns errors. With redundancy it succeeds if the
    /// block is readable from the devices that were written; the condition of each failed device
    /// notes the miss.
    pub fn write(&self, offset: u64, data: Bytes, birth: Txg, how: impl Into<WriteAs>) -> WriteDone {
        let how = how.into();
        let len = data.len() as u64;
        if let Err(e) = self.check(offset, align_up(len, SECTOR), birth) {
            return WriteDone::ready(Err(e));
        }
        if let Some(done) = self.write_while_expanding(offset, &data, birth, how) {
            return done;
        }
        match &*self.kind.borrow() {
            VdevKind::Leaf(leaf) if leaf.condition.health().is_open() => {
                let pad = align_up(len, 1 << self.ashift) - len;
                leaf.write(DATA_START + offset, data, pad as usize, how)
            }
            kind @ VdevKind::Mirror(_) => {
                let pad = align_up(len, 1 << self.ashift) - len;
                let done = kind.write_at(kind, offset, &data, pad as usize, how);
                done.unwrap_or_else(|| WriteDone::ready(Err(self.unusable())))
            }
            kind @ (VdevKind::Raidz(_) | VdevKind::Draid(_)) => {
                let stripes = kind.stripes(self.ashift, offset, len, birth);
                let done = striped::write(kind, stripes, Vec::new(), &data, how);
                // The beginning of an expansion waits for what knows the nodes of before.
                if let VdevKind::Raidz(raidz) = kind {
                    let held = raidz.clone();
                    done.on_done(move |_| drop(held));
                }
                done
            }
            _ => WriteDone::ready(Err(self.unusable())),
        }
    }

    /// Keeps the range of a block where it is, if the vdev is being expanded, until it is dropped.
    async fn share_range(&self, offset: u64, psize: u64, birth: Txg) -> Option<RangeGuard> {
        let reflow = self.kind.borrow().reflow().cloned()?;
        Some(reflow.share(offset, self.asize_of(psize, birth)).await)
    }

    /// Writes a block while the vdev is being expanded; none if it is not. A write that cannot
    /// begin, since its range is being copied, has a task that waits for it.
    fn write_while_expanding(&self, offset: u64, data: &Bytes, birth: Txg, how: WriteAs) -> Option<WriteDone> {
        let kind = self.kind();
        let (reflow, rt) = (kind.reflow()?.clone(), kind.rt()?.clone());
        let (len, ashift) = (data.len() as u64, self.ashift);
        let asize = self.asize_of(align_up(len, SECTOR), birth);
        let begin = move |data: &Bytes, mut range: RangeGuard| {
            let second = kind.second_places(ashift, offset, len, birth);
            let done = striped::write(&kind, kind.stripes(ashift, offset, len, birth), second, data, how);
            range.hand_over();
            done.on_done(move |_| drop(range));
            done
        };
        if let Some(range) = reflow.try_share(offset, asize) {
            return Some(begin(data, range));
        }
        let (done, completer) = WriteDone::pending();
        let data = data.clone();
        drop(rt.spawn("write after a copy", async move {
            let range = reflow.share(offset, asize).await;
            begin(&data, range).on_done(move |result| completer.complete(result.clone()));
        }));
        Some(done)
    }

    /// Whether all its devices support durable writes ([`WriteAs::durable`]).
    pub fn writes_durably(&self) -> bool {
        match &*self.kind.borrow() {
            VdevKind::Leaf(leaf) => leaf.writes_durably(),
            kind => kind.leaves().iter().all(|l| l.writes_durably()),
        }
    }

    /// Makes every completed write durable. As with writes, redundancy tolerates failed devices.
    pub async fn flush(&self) -> Result<()> {
        let kind = self.kind();
        if let VdevKind::Leaf(leaf) = &kind {
            return leaf.flush().await;
        }
        flush_node(&kind).await
    }

    /// Whether too many devices are lost to read anything: they are not open, or fail the probe of
    /// their labels.
    pub async fn is_unreachable(&self) -> bool {
        let kind = self.kind();
        let tolerates = match &kind {
            VdevKind::Mirror(m) => m.children.len().saturating_sub(1),
            VdevKind::Raidz(r) => r.parity as usize,
            VdevKind::Draid(d) => d.layout.parity as usize,
            VdevKind::Leaf(_) => 0,
            _ => return !kind.health().is_open(),
        };
        let parts = match &kind {
            VdevKind::Leaf(_) => std::slice::from_ref(&kind),
            _ => kind.children(),
        };
        let mut lost = 0;
        for part in parts {
            let mut found = false;
            for leaf in part.leaves().iter().filter(|l| l.condition.health().is_open()) {
                found |= leaf.probe().await;
            }
            lost += usize::from(!found);
        }
        lost > tolerates
    }

    /// Its present devices, in order, open or not.
    pub fn leaves(&self) -> Vec<Rc<Leaf>> {
        self.kind.borrow().leaves()
    }
    /// Its open devices.
    pub fn open_leaves(&self) -> Vec<Rc<Leaf>> {
        let mut leaves = self.leaves();
        leaves.retain(|l| l.condition.health().is_open());
        leaves
    }

    /// Its configuration in MOS form, with current size and metaslabs.
    pub fn config(&self) -> VdevConfig {
        let mut c = self.config.borrow().clone();
        if !self.is_hole() {
            c.id = u64::from(self.id.0);
            if self.is_indirect() {
                return c;
            }
            c.ashift = Some(u64::from(self.ashift));
            c.asize = Some(self.asize.get());
            c.metaslab_array = Some(self.ms_array.get());
            c.metaslab_shift = Some(u64::from(self.ms_shift.get()));
            c.is_log = Some(u64::from(self.is_log));
        }
        c
    }
    /// The configuration as last updated.
    pub fn config_ref(&self) -> Ref<'_, VdevConfig> {
        self.config.borrow()
    }
    /// Changes the configuration (ZAP objects, paths, state flags).
    pub fn update_config(&self, f: impl FnOnce(&mut VdevConfig)) {
        f(&mut self.config.borrow_mut());
    }
}

/// All top-level vdevs of a pool.
pub struct VdevTree {
    /// The pool's guid, which is the root's: now, and in the last txg on disk.
    root_guid: Cell<Guid>,
    committed_guid: Cell<Guid>,
    /// The top-level vdevs, indexed by id.
    pub tops: RefCell<Vec<Rc<Top>>>,
    /// The last txg on disk; 0 while writing is not allowed, repairs included.
    pub committed: Cell<Txg>,
    /// It is being split off: its state still points to vdevs behind its last one.
    pub is_split_off: Cell<bool>,
    /// Holds I/O that failed beyond redundancy.
    pub gate: FailGate,
}

impl VdevTree {
    /// The tree of pool `root_guid` over `tops`, in the order of their ids.
    pub fn new(root_guid: Guid, tops: Vec<Rc<Top>>) -> Rc<VdevTree> {
        assert!(tops.iter().enumerate().all(|(i, t)| t.id.0 as usize == i), "top-level vdevs stand at their ids");
        Rc::new(VdevTree {
            root_guid: Cell::new(root_guid),
            committed_guid: Cell::new(root_guid),
            tops: RefCell::new(tops),
            committed: Cell::new(Txg(0)),
            is_split_off: Cell::new(false),
            gate: FailGate::default(),
        })
    }

    /// Whether datasets are charged all that the vdevs allocate, with their parity
    /// ([`Top::set_undeflated`]).
    pub fn set_undeflated(&self, undeflated: bool) {
        self.tops.borrow().iter().for_each(|top| top.set_undeflated(undeflated));
    }
    /// The same, of one that is to be added.
    pub fn is_undeflated(&self) -> bool {
        self.tops.borrow().iter().any(|top| top.undeflated.get())
    }

    /// The pool's guid, which is the root's.
    pub fn root_guid(&self) -> Guid {
        self.root_guid.get()
    }

    /// Gives the pool another guid, with the txg that is being synced.
    pub fn set_root_guid(&self, guid: Guid) {
        self.root_guid.set(guid);
    }

    /// Whether a label with the pool guid `guid` is the pool's: of the last txg on disk, or of the
    /// one that is being written.
    pub fn is_own_guid(&self, guid: Guid) -> bool {
        guid == self.root_guid.get() || guid == self.committed_guid.get()
    }

    /// The uberblock of `txg` is on disk.
    pub fn set_committed(&self, txg: Txg) {
        self.committed.set(txg);
        self.committed_guid.set(self.root_guid.get());
    }

    /// The top-level vdev `id`.
    pub fn top(&self, id: VdevId) -> Result<Rc<Top>> {
        let tops = self.tops.borrow();
        tops.get(id.0 as usize).cloned().ok_or_else(|| Error::corrupt(format!("there is no top-level vdev {id}")))
    }

    /// The sum of the guids of all vdevs, modulo 2^64, as uberblocks have it (format page 01
    /// section 6).
    pub fn guid_sum(&self) -> u64 {
        fn sum(c: &VdevConfig) -> u64 {
            c.children.iter().fold(c.guid.0, |n, child| n.wrapping_add(sum(child)))
        }
        let tops = self.tops.borrow();
        tops.iter().fold(self.root_guid.get().0, |n, t| n.wrapping_add(sum(&t.config.borrow())))
    }

    fn ashifts(&self) -> Vec<u8> {
        let tops = self.tops.borrow();
        let concrete = |t: &&Rc<Top>| !t.is_log && !t.is_hole() && !t.is_indirect();
        tops.iter().filter(concrete).map(|t| t.ashift).collect()
    }

    /// Smallest allocation unit over the top-level vdevs that are not logs, in bytes: compressed
    /// sizes are rounded to it (format page 06 section 5).
    pub fn min_alloc(&self) -> u64 {
        let tops = self.tops.borrow();
        let concrete = tops.iter().filter(|t| !t.is_log && !t.is_hole() && !t.is_indirect());
        concrete.map(|t| t.min_alloc()).min().unwrap_or(512)
    }

    /// Upper bound of the charge to a dataset for `copies` copies of a block of `psize` bytes on
    /// any top-level vdev that is not a log.
    pub fn worst_dsize(&self, psize: u64, copies: u64) -> u64 {
        let tops = self.tops.borrow();
        let taken = tops.iter().filter(|t| t.is_concrete() && !t.is_log);
        taken.map(|t| t.worst_dsize(psize, copies)).max().unwrap_or(0)
    }

    /// Unit in bytes of the pieces of gang blocks: the largest of the vdevs' units of stored data.
    pub fn piece_unit(&self) -> u64 {
        let tops = self.tops.borrow();
        let taken = tops.iter().filter(|t| t.is_concrete() && !t.is_log);
        taken.map(|t| t.min_alloc()).max().unwrap_or(512)
    }

    /// Largest ashift over the top-level vdevs that are not logs.
    pub fn max_ashift(&self) -> u8 {
        self.ashifts().into_iter().max().unwrap_or(9)
    }

    /// Makes every completed write to any device durable. All devices are flushed at the same time.
    /// An error if a top-level vdev that is not a log has lost more devices than its redundancy
    /// allows; the first of several errors.
    pub async fn flush_all(&self) -> Result<()> {
        let tops = self.tops.borrow().clone();
        let used = tops.iter().filter(|t| t.is_usable());
        let flushes = used.map(|t| async move {
            match t.flush().await {
                Err(e) if e.kind() != ErrorKind::Interrupted && t.is_log => Ok(()),
                result => result.at(|| "flush"),
            }
        });
        rt::join::join_all(flushes.collect()).await.into_iter().collect()
    }

    /// Reads a copy of a block, unverified; remaps through removed vdevs.
    pub async fn read(&self, block: BlockPlace, prio: Prio) -> Result<FirstRead> {
        let BlockPlace { vdev, offset, psize, birth, .. } = block;
        let top = self.top(vdev)?;
        if !top.is_indirect() {
            return top.read_first(block, prio).await;
        }
        let mut places = Vec::new();
        self.resolve(&top, offset, psize, 0, 0, &mut places)?;
        // When the copied pieces were written is not looked up.
        let piece = |p: &Place| BlockPlace { vdev: p.top.id, offset: p.offset, psize: p.len, birth, written: Txg(0) };
        if let [p] = &places[..] {
            return p.top.read_first(piece(p), prio).await;
        }
        let mut all = Assembly::default();
        let mut failed = false;
        let reads = places.iter().map(|p| p.top.read_first(piece(p), prio));
        for (part, p) in rt::join::join_all(reads.collect()).await.into_iter().zip(&places) {
            let part = part?;
            failed |= part.failed;
            all.copies.push((p.at as usize, part.data));
        }
        let rt = places.iter().find_map(|p| p.top.rt()).ok_or_else(|| top.unusable())?;
        Ok(FirstRead { data: all.block(&rt, psize, prio).await, failed })
    }

    /// The current places of a range of a top-level vdev, after remapping.
    pub fn places(&self, id: VdevId, offset: u64, len: u64) -> Result<Vec<Place>> {
        let mut out = Vec::new();
        self.resolve(&self.top(id)?, offset, len, 0, 0, &mut out)?;
        Ok(out)
    }

    fn resolve(&self, top: &Rc<Top>, offset: u64, len: u64, at: u64, depth: u32, out: &mut Vec<Place>) -> Result<()> {
        let VdevKind::Indirect(indirect) = top.kind() else {
            out.push(Place { top: top.clone(), offset, len, at });
            return Ok(());
        };
        if depth > REMAPS_MAX {
            return Err(Error::corrupt("the mappings of removed vdevs lead to each other"));
        }
        let map = indirect.map().ok_or_else(|| {
            Error::new(ErrorKind::Io, format!("the mapping of the removed vdev {} is not loaded", top.id))
        })?;
        for (start, vdev, to, len) in map.remap(offset, len)? {
            self.resolve(&self.top(vdev)?, to, len, at + start, depth + 1, out)?;
        }
        Ok(())
    }

    /// The current places of a range to free, and the obsolete ranges (vdev, offset, length) of
    /// removed vdevs that map to them.
    #[allow(clippy::type_complexity, reason = "a pair of lists, used in one place")]
    pub fn places_to_free(&self, id: VdevId, offset: u64, len: u64) -> Result<(Vec<Place>, Vec<(VdevId, u64, u64)>)> {
        let (mut places, mut obsolete) = (Vec::new(), Vec::new());
        self.collect_places_to_free(&self.top(id)?, offset, len, 0, &mut places, &mut obsolete)?;
        Ok((places, obsolete))
    }

    fn collect_places_to_free(
        &self,
        top: &Rc<Top>,
        offset: u64,
        len: u64,
        depth: u32,
        places: &mut Vec<Place>,
        obsolete: &mut Vec<(VdevId, u64, u64)>,
    ) -> Result<()> {
        let VdevKind::Indirect(indirect) = top.kind() else {
            places.push(Place { top: top.clone(), offset, len, at: 0 });
            return Ok(());
        };
        if depth > REMAPS_MAX {
            return Err(Error::corrupt("the mappings of removed vdevs lead to each other"));
        }
        obsolete.push((top.id, offset, len));
        let map = indirect.map().ok_or_else(|| {
            Error::new(ErrorKind::Io, format!("the mapping of the removed vdev {} is not loaded", top.id))
        })?;
        for (_, vdev, to, len) in map.remap(offset, len)? {
            self.collect_places_to_free(&self.top(vdev)?, to, len, depth + 1, places, obsolete)?;
        }
        Ok(())
    }

    /// Reads every replica and parity column of a block and reconstructs its data. `verify` decides
    /// whether bytes are the block; without it (the block has no checksum) the first candidate is
    /// taken. With `repair` wrong replicas are rewritten, in that class.
    pub async fn arbitrate(
        &self,
        block: BlockPlace,
        prio: Prio,
        verify: Option<&Verify>,
        repair: Option<Prio>,
    ) -> Result<Verdict> {
        self.arbitrate_with(block, prio, verify, &|| repair).await
    }

    /// As [`VdevTree::arbitrate`]; `repair` is called after all reads, which may be many txgs
    /// later.
    pub async fn arbitrate_with(
        &self,
        block: BlockPlace,
        prio: Prio,
        verify: Option<&Verify>,
        repair: Repair<'_>,
    ) -> Result<Verdict> {
        let BlockPlace { vdev, offset, psize, birth, written } = block;
        let places = self.places(vdev, offset, psize)?;
        let remapped = self.top(vdev)?.is_indirect();
        let mut parts = Vec::with_capacity(places.len());
        // At most one vdev is being expanded: one range of it, so that nothing waits holding one.
        let mut range: Option<(&Rc<Top>, u64, u64)> = None;
        for Place { top, offset, len, .. } in &places {
            top.check(*offset, *len, birth)?;
            if top.kind.borrow().reflow().is_some() {
                let (start, end) = range.map_or((u64::MAX, 0), |(_, start, end)| (start, end));
                range = Some((top, start.min(*offset), end.max(offset + len)));
            }
        }
        let range = match range {
            Some((top, start, end)) => top.share_range(start, end - start, birth).await,
            None => None,
        };
        for Place { top, offset, len, at } in &places {
            let kind = top.kind();
            if matches!(kind, VdevKind::Hole | VdevKind::Missing | VdevKind::Indirect(_)) {
                return Err(top.unusable());
            }
            let stripes = kind.stripes(top.ashift, *offset, *len, birth);
            let second = kind.second_places(top.ashift, *offset, *len, birth);
            parts.push(Part { kind, stripes, second, base: *at });
        }
        let written = if remapped { Txg(0) } else { written };
        let verdict = arbitrate(&parts, psize, written, prio, verify, repair).await;
        let nodes: Vec<VdevKind> = parts.into_iter().map(|p| p.kind).collect();
        let range = range.map(|mut range| {
            range.hand_over();
            range
        });
        verdict.done.on_done(move |_| drop((range, nodes)));
        Ok(verdict)
    }

    /// Whether the dirty time log of an open device says that it may miss its part of a copy.
    pub fn needs_resilver(&self, block: BlockPlace) -> Result<bool> {
        let remapped = self.top(block.vdev)?.is_indirect();
        let written = if remapped { Txg(0) } else { block.written };
        for Place { top, offset, len, .. } in self.places(block.vdev, block.offset, block.psize)? {
            top.check(offset, len, block.birth)?;
            let kind = top.kind();
            let io = Io { root: &kind, written, prio: Prio::Scrub };
            if kind.reflow().is_some() {
                // It may have sectors at two places.
                let misses = |(_, c): &(Guid, Rc<Condition>)| c.health().is_open() && c.misses(written);
                if kind.conditions().iter().any(misses) {
                    return Ok(true);
                }
                continue;
            }
            for column in kind.stripes(top.ashift, offset, len, block.birth).iter().flat_map(|s| &s.columns) {
                let mut found = Vec::new();
                kind.column_node(column).replicas(io, column.offset, ReplicaState::Current, &mut found, 0);
                if found.iter().any(|(_, state)| *state == ReplicaState::Stale) {
                    return Ok(true);
                }
            }
        }
        Ok(false)
    }

    /// Whether vdev `id` has more than one way to read a block.
    pub fn is_redundant(&self, id: VdevId) -> bool {
        self.top(id).is_ok_and(|t| !matches!(*t.kind.borrow(), VdevKind::Leaf(_)))
    }

    /// Health of the pool: the worst of its top-level vdevs. A lost log vdev, or a vdev that is
    /// open but not online, counts as degraded; any other lost vdev makes the pool unavailable.
    pub fn health(&self) -> Health {
        let tops = self.tops.borrow();
        let mut out = Health::Online;
        for t in tops.iter() {
            out = out.max(match t.kind.borrow().health() {
                Health::Online => Health::Online,
                health if health.is_open() || t.is_log => Health::Degraded,
                _ => Health::Unavail,
            });
        }
        out
    }

    /// Every device, in order.
    pub fn leaves(&self) -> Vec<Rc<Leaf>> {
        let tops = self.tops.borrow();
        tops.iter().flat_map(|t| t.leaves()).collect()
    }
}

/// Flushes all leaves below a node. A device that fails counts as a failed write.
fn flush_node(kind: &VdevKind) -> LocalBoxFuture<'_, Result<()>> {
    Box::pin(async move {
        let tolerates = match kind {
            VdevKind::Leaf(leaf) if leaf.condition.health().is_open() => {
                return leaf.flush().await.inspect_err(|_| leaf.condition.note_failed_write());
            }
            VdevKind::Dspare(_) => return Ok(()),
            VdevKind::Mirror(m) => m.children.len().saturating_sub(1),
            VdevKind::Raidz(r) => r.parity as usize,
            VdevKind::Draid(d) => d.layout.parity as usize,
            _ => return Err(Error::new(ErrorKind::Io, "a device is not there")),
        };
        let results = rt::join::join_all(kind.children().iter().map(flush_node).collect()).await;
        let mut errors: Vec<Error> = results.into_iter().filter_map(Result::err).collect();
        if let Some(i) = errors.iter().position(|e| e.kind() == ErrorKind::Interrupted) {
            return Err(errors.swap_remove(i));
        }
        if errors.len() > tolerates { Err(errors.swap_remove(0)) } else { Ok(()) }
    })
}
