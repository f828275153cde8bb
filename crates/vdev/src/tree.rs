//! The tree: top-level vdevs and what they are made of.

use std::cell::{Cell, Ref, RefCell};
use std::rc::Rc;

use base::{Error, ErrorKind, Guid, ObjectId, Result, ResultExt, SECTOR, VdevId, align_up};
use bdev::Bytes;
use ondisk::label::{DATA_START, usable_size};
use ondisk::vdev_config::VdevConfig;

use crate::done::WriteDone;
use crate::leaf::Leaf;
use crate::policy::Prio;

/// Allocatable bytes of a leaf on a device of `device_bytes`: what is left between the labels, in whole 256 KiB; 0 if it is too small for that.
pub fn leaf_asize(device_bytes: u64) -> u64 {
    usable_size(device_bytes)
}

/// What a top-level vdev is made of. Mirrors and RAID-Z are to follow here; whoever matches on it lives in this module.
#[derive(Clone)]
pub enum VdevKind {
    /// One device.
    Leaf(Rc<Leaf>),
    /// Its devices were not found.
    Missing,
    /// The place of a removed log vdev.
    Hole,
}

/// What a [`Top`] is made from.
pub struct TopSpec {
    /// Its index, as block pointers name it.
    pub id: VdevId,
    /// log2 of the allocation unit, 9 to 16; at least the logical sector of every device below it, which the opener has to see to.
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
    /// Its guid; 0 of a hole.
    pub guid: Guid,
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
    /// What it is made of.
    pub kind: VdevKind,
    config: RefCell<VdevConfig>,
}

impl Top {
    /// A top-level vdev as `spec` says.
    pub fn new(spec: TopSpec) -> Rc<Top> {
        Rc::new(Top {
            id: spec.id,
            guid: spec.config.guid,
            ashift: spec.ashift,
            asize: Cell::new(spec.asize),
            ms_shift: Cell::new(spec.ms_shift),
            ms_array: Cell::new(spec.ms_array),
            is_log: spec.is_log,
            kind: spec.kind,
            config: RefCell::new(spec.config),
        })
    }

    /// Bytes that a block of `psize` bytes takes here (format page 09 section 1).
    pub fn asize_of(&self, psize: u64) -> u64 {
        align_up(psize, 1 << self.ashift)
    }

    /// 512ths of a byte that datasets are charged for each byte allocated here: 512 without redundancy (format page 05; a block of 128 KiB is the measure).
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

    /// Whether blocks on it can be reached: not a hole, not missing.
    pub fn is_usable(&self) -> bool {
        matches!(self.kind, VdevKind::Leaf(_))
    }

    fn unusable(&self) -> Error {
        let what = match self.kind {
            VdevKind::Hole => "is the place of a removed device",
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

    /// Reads `psize` bytes, a multiple of 512, at DVA offset `offset`. What lies outside the vdev is `Corrupt`: the address came from a block pointer.
    pub async fn read(&self, offset: u64, psize: u64, prio: Prio) -> Result<Bytes> {
        self.check(offset, psize)?;
        match &self.kind {
            VdevKind::Leaf(leaf) => leaf.read(DATA_START + offset, psize, prio).await,
            VdevKind::Missing | VdevKind::Hole => Err(self.unusable()),
        }
    }

    /// Writes `data` at DVA offset `offset`, padded with zeros to what [`Top::asize_of`] says. Never waits; errors come out of the future.
    pub fn write(&self, offset: u64, data: Bytes, prio: Prio) -> WriteDone {
        let len = data.len() as u64;
        if let Err(e) = self.check(offset, align_up(len, SECTOR)) {
            return WriteDone::ready(Err(e));
        }
        match &self.kind {
            VdevKind::Leaf(leaf) => {
                let pad = self.asize_of(len) - len;
                leaf.write(DATA_START + offset, data, pad as usize, prio)
            }
            VdevKind::Missing | VdevKind::Hole => WriteDone::ready(Err(self.unusable())),
        }
    }

    /// Makes every write here durable that has completed by now.
    pub async fn flush(&self) -> Result<()> {
        match &self.kind {
            VdevKind::Leaf(leaf) => leaf.flush().await,
            VdevKind::Missing | VdevKind::Hole => Ok(()),
        }
    }

    /// Its devices, in order.
    pub fn leaves(&self) -> Vec<Rc<Leaf>> {
        match &self.kind {
            VdevKind::Leaf(leaf) => vec![leaf.clone()],
            VdevKind::Missing | VdevKind::Hole => Vec::new(),
        }
    }

    /// Its configuration in MOS form, with size and metaslabs as they are now.
    pub fn config(&self) -> VdevConfig {
        let mut c = self.config.borrow().clone();
        if !matches!(self.kind, VdevKind::Hole) {
            c.id = u64::from(self.id.0);
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
}

impl VdevTree {
    /// The tree of pool `root_guid` over `tops`, which stand in the order of their ids.
    pub fn new(root_guid: Guid, tops: Vec<Rc<Top>>) -> Rc<VdevTree> {
        assert!(tops.iter().enumerate().all(|(i, t)| t.id.0 as usize == i), "top-level vdevs stand at their ids");
        Rc::new(VdevTree { root_guid, tops: RefCell::new(tops) })
    }

    /// The top-level vdev `id`.
    pub fn top(&self, id: VdevId) -> Result<Rc<Top>> {
        let tops = self.tops.borrow();
        tops.get(id.0 as usize).cloned().ok_or_else(|| Error::corrupt(format!("there is no top-level vdev {id}")))
    }

    /// The sum of the guids of all vdevs, modulo 2^64, as uberblocks have it (format page 01 section 6).
    pub fn guid_sum(&self) -> u64 {
        fn sum(c: &VdevConfig) -> u64 {
            c.children.iter().fold(c.guid.0, |n, child| n.wrapping_add(sum(child)))
        }
        let tops = self.tops.borrow();
        tops.iter().fold(self.root_guid.0, |n, t| n.wrapping_add(sum(&t.config.borrow())))
    }

    fn ashifts(&self) -> Vec<u8> {
        let tops = self.tops.borrow();
        tops.iter().filter(|t| !t.is_log && !matches!(t.kind, VdevKind::Hole)).map(|t| t.ashift).collect()
    }

    /// Smallest allocation unit over the top-level vdevs that are not logs, in bytes: compressed sizes are rounded to it (format page 06 section 5).
    pub fn min_alloc(&self) -> u64 {
        1 << self.ashifts().into_iter().min().unwrap_or(9).max(9)
    }

    /// Largest ashift over the top-level vdevs that are not logs.
    pub fn max_ashift(&self) -> u8 {
        self.ashifts().into_iter().max().unwrap_or(9)
    }

    /// Makes every completed write to any device durable. All devices are flushed at the same time; of several errors the first device's is returned.
    pub async fn flush_all(&self) -> Result<()> {
        let leaves = self.leaves();
        let flushes = leaves.iter().map(|leaf| async move { leaf.flush().await.at(|| "flush") });
        rt::join::join_all(flushes.collect()).await.into_iter().collect()
    }

    /// Every device, in order.
    pub fn leaves(&self) -> Vec<Rc<Leaf>> {
        let tops = self.tops.borrow();
        tops.iter().flat_map(|t| t.leaves()).collect()
    }
}
