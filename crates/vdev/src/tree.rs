//! The tree: top-level vdevs and what they are made of.

use std::cell::{Cell, Ref, RefCell};
use std::rc::Rc;

use base::{Error, ErrorKind, Guid, ObjectId, Result, ResultExt, SECTOR, Txg, VdevId, align_up};
use bdev::Bytes;
use ondisk::label::{DATA_START, usable_size};
use ondisk::vdev_config::VdevConfig;
use rt::Rt;

use crate::arbitrate::{Part, Repair, Verdict, Verify, arbitrate};
use crate::cost::worst_asize;
use crate::done::WriteDone;
use crate::dtl::Health;
use crate::gate::FailGate;
use crate::geometry::raidz_asize;
use crate::leaf::{Leaf, WriteAs};
use crate::node::{Boxed, Io, ReplicaState, VdevKind};
use crate::policy::Prio;
use crate::reshape::Shape;
use crate::striped::{self, Assembly};

/// Allocatable bytes of a leaf on a device of `device_bytes`: what is left between the labels, in
/// whole 256 KiB; 0 if it is too small for that.
pub fn leaf_asize(device_bytes: u64) -> u64 {
    usable_size(device_bytes)
}

/// Most mappings that one range goes through.
const REMAPS_MAX: u32 = 64;

/// The likeliest content of a block.
#[derive(Debug)]
pub struct FirstRead {
    /// The bytes.
    pub data: Bytes,
    /// A device failed to read its part, which was had from others: [`VdevTree::arbitrate`] can
    /// repair that.
    pub failed: bool,
}

/// A range of a block and where it lies today.
#[derive(Clone)]
pub struct Place {
    /// The vdev, which is not a removed one.
    pub top: Rc<Top>,
    /// Offset there.
    pub offset: u64,
    /// Bytes.
    pub len: u64,
    /// Where the range begins in the block.
    pub at: u64,
}

/// A block on a top-level vdev.
#[derive(Clone, Copy, Debug)]
pub struct BlockPlace {
    /// Which vdev.
    pub vdev: VdevId,
    /// DVA offset.
    pub offset: u64,
    /// Stored bytes, a multiple of 512.
    pub psize: u64,
    /// When this copy was written; 0 if that is not known.
    pub birth: Txg,
}

/// What a [`Top`] is made from.
pub struct TopSpec {
    /// Its index, as block pointers name it.
    pub id: VdevId,
    /// log2 of the allocation unit, 9 to 16; at least the logical sector of every device below it,
    /// which the opener has to see to.
    pub ashift: u8,
    /// Allocatable bytes.
    pub asize: u64,
    /// log2 of the metaslab size; 0 before the first sync.
    pub ms_shift: u8,
    /// The metaslab array object; 0 before the first sync.
    pub ms_array: ObjectId,
    /// Whether it is a log device.
    pub is_log: bool,
    /// What it is made of.
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
    /// It and its configuration, to be changed.
    pub fn shape(&self) -> Shape {
        Shape { kind: self.kind(), config: self.config.borrow().clone() }
    }
    /// Takes over a changed shape; operations in flight end where they began.
    pub fn set_shape(&self, shape: Shape) {
        *self.kind.borrow_mut() = shape.kind;
        *self.config.borrow_mut() = shape.config;
    }
    /// What it is made of, as it is now.
    pub fn kind(&self) -> VdevKind {
        self.kind.borrow().clone()
    }
    /// Changes what it is made of; operations in flight end where they began.
    pub fn set_kind(&self, kind: VdevKind) {
        *self.kind.borrow_mut() = kind;
    }
    /// Whether it is the place of a removed log vdev.
    pub fn is_hole(&self) -> bool {
        matches!(*self.kind.borrow(), VdevKind::Hole)
    }
    /// Whether it was removed and its blocks are elsewhere.
    pub fn is_indirect(&self) -> bool {
        matches!(*self.kind.borrow(), VdevKind::Indirect(_))
    }

    /// Bytes that a block of `psize` bytes takes here (format page 09 sections 1, 3 and 10).
    pub fn asize_of(&self, psize: u64) -> u64 {
        match &*self.kind.borrow() {
            VdevKind::Raidz(r) => raidz_asize(psize, self.ashift, r.children.len() as u64, r.parity),
            VdevKind::Draid(d) => d.layout.asize(psize),
            _ => align_up(psize, 1 << self.ashift),
        }
    }

    /// What datasets may be charged for `copies` copies of a block of `psize` bytes here, gang
    /// headers included.
    pub fn worst_dsize(&self, psize: u64, copies: u64) -> u64 {
        self.dsize(worst_asize(psize, copies, self.min_alloc(), |n| self.asize_of(n)))
    }

    /// Bytes that stored sizes of compressed blocks are rounded to here.
    pub fn min_alloc(&self) -> u64 {
        match &*self.kind.borrow() {
            VdevKind::Draid(d) => d.layout.unit_data(),
            _ => 1 << self.ashift.max(9),
        }
    }

    /// Bytes that every allocation here is a multiple of and begins at a multiple of: a sector, on
    /// dRAID a sector of every column of a group.
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

    /// 512ths of a byte that datasets are charged for each byte allocated here: 512 without
    /// redundancy (format page 05; a block of 128 KiB is the measure).
    pub fn deflate_ratio(&self) -> u64 {
        let of_128k = self.asize_of(128 << 10) >> 9;
        (128 << 10) / of_128k
    }

    /// What datasets are charged for `asize` bytes allocated here.
    pub fn dsize(&self, asize: u64) -> u64 {
        (asize >> 9) * self.deflate_ratio()
    }

    /// Whole metaslabs that fit; 0 before their size is set.
    pub fn ms_count(&self) -> u64 {
        match self.ms_shift.get() {
            0 => 0,
            shift => self.asize.get().checked_shr(u32::from(shift)).unwrap_or(0),
        }
    }

    /// Whether it is made of devices, and its configuration is known: not a hole, not removed, not
    /// unknown.
    pub fn is_concrete(&self) -> bool {
        !matches!(&*self.kind.borrow(), VdevKind::Indirect(_) | VdevKind::Hole | VdevKind::Missing)
    }

    /// Whether blocks on it can be reached and new ones put there: not a hole, not removed, not
    /// missing, enough of its devices there.
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

    fn check(&self, offset: u64, len: u64) -> Result<()> {
        if !offset.is_multiple_of(1 << self.ashift.max(9)) || len == 0 || !len.is_multiple_of(SECTOR) {
            return Err(Error::corrupt(format!(
                "top-level vdev {}: {len} bytes at {offset} are not whole sectors",
                self.id
            )));
        }
        if offset.checked_add(self.asize_of(len)).is_none_or(|end| end > self.asize.get()) {
            return Err(Error::corrupt(format!(
                "top-level vdev {}: {len} bytes at {offset} are beyond its end at {}",
                self.id,
                self.asize.get()
            )));
        }
        Ok(())
    }

    /// Reads `psize` bytes, a multiple of 512, at DVA offset `offset`. What lies outside the vdev
    /// is `Corrupt`: the address came from a block pointer.
    pub async fn read(&self, offset: u64, psize: u64, prio: Prio) -> Result<Bytes> {
        Ok(self.read_first(offset, psize, Txg(0), prio).await?.data)
    }

    /// As [`Top::read`], of a block born in `birth` (0: not known), whose checksum is still to be
    /// looked at: the likeliest content. If that is wrong [`VdevTree::arbitrate`] tries everything
    /// else.
    pub async fn read_first(&self, offset: u64, psize: u64, birth: Txg, prio: Prio) -> Result<FirstRead> {
        self.check(offset, psize)?;
        let kind = self.kind();
        let io = Io { root: &kind, birth, prio };
        let (data, failed) = match &kind {
            VdevKind::Leaf(leaf) => {
                if !leaf.condition.health().is_open() {
                    return Err(self.unusable());
                }
                (leaf.read(DATA_START + offset, psize, prio).await?, false)
            }
            VdevKind::Mirror(_) => kind.read_replica(io, offset, psize).await?,
            VdevKind::Raidz(_) | VdevKind::Draid(_) => {
                let stripes = kind.stripes(self.ashift, offset, psize);
                let place = || format!("top-level vdev {}: {psize} bytes at {offset}", self.id);
                striped::read(&kind, &stripes, psize, io).await.at(place)?
            }
            _ => return Err(self.unusable()),
        };
        Ok(FirstRead { data, failed })
    }

    /// Writes `data` at DVA offset `offset`, padded with zeros to what the layout needs. Never
    /// waits; errors come out of the future. With redundancy it is good as long as the block can be
    /// read from what was written; who missed it is noted in that device's condition.
    pub fn write(&self, offset: u64, data: Bytes, how: impl Into<WriteAs>) -> WriteDone {
        let how = how.into();
        let len = data.len() as u64;
        if let Err(e) = self.check(offset, align_up(len, SECTOR)) {
            return WriteDone::ready(Err(e));
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
                let stripes = kind.stripes(self.ashift, offset, len);
                striped::write(kind, stripes, &data, how)
            }
            _ => WriteDone::ready(Err(self.unusable())),
        }
    }

    /// Whether writes here may be asked to be durable by themselves: all its devices do so.
    pub fn writes_durably(&self) -> bool {
        match &*self.kind.borrow() {
            VdevKind::Leaf(leaf) => leaf.writes_durably(),
            kind => kind.leaves().iter().all(|l| l.writes_durably()),
        }
    }

    /// Makes every write here durable that has completed by now. As with writes, some devices may
    /// fail where there is redundancy.
    pub async fn flush(&self) -> Result<()> {
        let kind = self.kind();
        if let VdevKind::Leaf(leaf) = &kind {
            return leaf.flush().await;
        }
        flush_node(&kind).await
    }

    /// Looks whether so many of its devices are gone that nothing here can be read: they are taken
    /// out, or none of their labels can be read.
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

    /// Its devices that are there, in order; those that are taken out as well.
    pub fn leaves(&self) -> Vec<Rc<Leaf>> {
        self.kind.borrow().leaves()
    }
    /// Its devices that are in use.
    pub fn open_leaves(&self) -> Vec<Rc<Leaf>> {
        let mut leaves = self.leaves();
        leaves.retain(|l| l.condition.health().is_open());
        leaves
    }

    /// Its configuration in MOS form, with size and metaslabs as they are now.
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
    /// Looks at the configuration as it was last updated.
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
    /// The pool's guid, which is the root's.
    pub root_guid: Guid,
    /// The top-level vdevs: the one with id i stands at i.
    pub tops: RefCell<Vec<Rc<Top>>>,
    /// The last txg on disk; 0 while nothing may be written, repairs included.
    pub committed: Cell<Txg>,
    /// Where failures wait that redundancy does not cover.
    pub gate: FailGate,
}

impl VdevTree {
    /// The tree of pool `root_guid` over `tops`, which stand in the order of their ids.
    pub fn new(root_guid: Guid, tops: Vec<Rc<Top>>) -> Rc<VdevTree> {
        assert!(tops.iter().enumerate().all(|(i, t)| t.id.0 as usize == i), "top-level vdevs stand at their ids");
        Rc::new(VdevTree {
            root_guid,
            tops: RefCell::new(tops),
            committed: Cell::new(Txg(0)),
            gate: FailGate::default(),
        })
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
        tops.iter().fold(self.root_guid.0, |n, t| n.wrapping_add(sum(&t.config.borrow())))
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

    /// What datasets may be charged for `copies` copies of a block of `psize` bytes, wherever they
    /// go: the largest charge of all top-level vdevs that are not logs.
    pub fn worst_dsize(&self, psize: u64, copies: u64) -> u64 {
        let tops = self.tops.borrow();
        let taken = tops.iter().filter(|t| t.is_concrete() && !t.is_log);
        taken.map(|t| t.worst_dsize(psize, copies)).max().unwrap_or(0)
    }

    /// Bytes that pieces of gang blocks are multiples of: the least data that an allocation holds,
    /// wherever it may be.
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
    /// allows; of several the first's.
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

    /// The likeliest content of `psize` bytes of a block born in `birth` (0: not known) at `offset`
    /// of vdev `id`; goes through the mapping of a removed vdev.
    pub async fn read(&self, id: VdevId, offset: u64, psize: u64, birth: Txg, prio: Prio) -> Result<FirstRead> {
        let top = self.top(id)?;
        if !top.is_indirect() {
            return top.read_first(offset, psize, birth, prio).await;
        }
        let mut places = Vec::new();
        self.resolve(&top, offset, psize, 0, 0, &mut places)?;
        if let [p] = &places[..] {
            return p.top.read_first(p.offset, p.len, Txg(0), prio).await;
        }
        let mut all = Assembly::default();
        let mut failed = false;
        // When the pieces were copied is not looked up.
        let reads = places.iter().map(|p| p.top.read_first(p.offset, p.len, Txg(0), prio));
        for (part, p) in rt::join::join_all(reads.collect()).await.into_iter().zip(&places) {
            let part = part?;
            failed |= part.failed;
            all.copies.push((p.at as usize, part.data));
        }
        let rt = places.iter().find_map(|p| p.top.rt()).ok_or_else(|| top.unusable())?;
        Ok(FirstRead { data: all.block(&rt, psize, prio).await, failed })
    }

    /// Where a range of a top-level vdev lies today.
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
        let map = indirect.map.get().ok_or_else(|| {
            Error::new(ErrorKind::Io, format!("the mapping of the removed vdev {} is not loaded", top.id))
        })?;
        for (start, vdev, to, len) in map.remap(offset, len)? {
            self.resolve(&self.top(vdev)?, to, len, at + start, depth + 1, out)?;
        }
        Ok(())
    }

    /// What freeing a range gives up: where it lies today, and which ranges of removed vdevs (vdev,
    /// offset, length) led there.
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
        let map = indirect.map.get().ok_or_else(|| {
            Error::new(ErrorKind::Io, format!("the mapping of the removed vdev {} is not loaded", top.id))
        })?;
        for (_, vdev, to, len) in map.remap(offset, len)? {
            self.collect_places_to_free(&self.top(vdev)?, to, len, depth + 1, places, obsolete)?;
        }
        Ok(())
    }

    /// Looks at everything that the devices have of a block of `psize` bytes, born in `birth` (0:
    /// not known), at `offset` of vdev `id`. `verify` says whether bytes are the block; without it
    /// (the block has no checksum) devices are believed. With `repair` what is wrong is rewritten,
    /// in that class.
    pub async fn arbitrate(
        &self,
        block: BlockPlace,
        prio: Prio,
        verify: Option<&Verify>,
        repair: Option<Prio>,
    ) -> Result<Verdict> {
        self.arbitrate_with(block, prio, verify, &|| repair).await
    }

    /// As [`VdevTree::arbitrate`]; whether to rewrite is asked when everything was read, which may
    /// be many txgs later.
    pub async fn arbitrate_with(
        &self,
        block: BlockPlace,
        prio: Prio,
        verify: Option<&Verify>,
        repair: Repair<'_>,
    ) -> Result<Verdict> {
        let BlockPlace { vdev, offset, psize, birth } = block;
        let places = self.places(vdev, offset, psize)?;
        let remapped = self.top(vdev)?.is_indirect();
        let mut parts = Vec::with_capacity(places.len());
        for Place { top, offset, len, at } in &places {
            top.check(*offset, *len)?;
            let kind = top.kind();
            if matches!(kind, VdevKind::Hole | VdevKind::Missing | VdevKind::Indirect(_)) {
                return Err(top.unusable());
            }
            let stripes = kind.stripes(top.ashift, *offset, *len);
            parts.push(Part { kind, stripes, base: *at });
        }
        let birth = if remapped { Txg(0) } else { birth };
        Ok(arbitrate(&parts, psize, birth, prio, verify, repair).await)
    }

    /// Whether a device that is in use may miss its part of a copy, as its dirty time log says.
    pub fn needs_resilver(&self, block: BlockPlace) -> Result<bool> {
        let remapped = self.top(block.vdev)?.is_indirect();
        let birth = if remapped { Txg(0) } else { block.birth };
        for Place { top, offset, len, .. } in self.places(block.vdev, block.offset, block.psize)? {
            top.check(offset, len)?;
            let kind = top.kind();
            let io = Io { root: &kind, birth, prio: Prio::Scrub };
            for column in kind.stripes(top.ashift, offset, len).iter().flat_map(|s| &s.columns) {
                let mut found = Vec::new();
                kind.column_node(column).replicas(io, column.offset, ReplicaState::Current, &mut found, 0);
                if found.iter().any(|(_, state)| *state == ReplicaState::Stale) {
                    return Ok(true);
                }
            }
        }
        Ok(false)
    }

    /// Whether there is more than one way to read a block on vdev `id`.
    pub fn is_redundant(&self, id: VdevId) -> bool {
        self.top(id).is_ok_and(|t| !matches!(*t.kind.borrow(), VdevKind::Leaf(_)))
    }

    /// How the pool is: the worst of its top-level vdevs, where losing a part is degraded and
    /// losing all of one that is not a log is not to be had.
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

/// Flushes everything below a node; a device that fails has missed what it was to keep.
fn flush_node(kind: &VdevKind) -> Boxed<'_, Result<()>> {
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
