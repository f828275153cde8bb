//! Worst-case space of changes: bytes that are in flight from the moment a block becomes dirty
//! until its txg has synced.
//!
//! Charges are bytes as datasets are charged, from the geometry of the pool (`vdev::cost`): the
//! largest space that the copies of a block may take, on any vdev and in any number of gang pieces.
//! They must never be less than the sync takes: on a full pool the sync of an admitted txg has no
//! other space. Blocks of a sync beside the changed ones (the object set's own block, accounting of
//! owners, records of the dataset) are charged once for each object set and txg.

use base::Txg;
use ondisk::blkptr::Blkptr;
use ondisk::dnode::DNODE_BLOCK_SIZE;
use zio::Zio;

use crate::ctx::ObjsetProps;
use crate::objset::{Objset, ObjsetInner};

/// Most copies of a block.
const COPIES_MAX: u64 = 3;
/// Bytes of an object set's block.
const OBJSET_SIZE: u64 = 4096;
/// Bytes charged for one ZAP of owners: users, groups and projects have one each.
const OWNERS_SIZE: u64 = 16 << 10;
/// Bytes of an indirect block of the meta-dnode with few pointers, stored.
const META_INDIRECT_SIZE: u64 = 1024;
/// Most levels of indirect blocks of a meta-dnode.
const META_INDIRECTS: u64 = 5;
/// Blocks of the MOS that hold the records of a dataset and of its directory.
const RECORD_BLOCKS: u64 = 2;
/// Bytes of an entry of a deadlist, a block pointer.
const BLKPTR_SIZE: u64 = 128;
/// Bytes charged for the entry of a cloned block in the block reference table: its share of a leaf
/// of 8 KiB, which has room for a hundred entries and more, of which one transaction changes many.
const REFERENCE_SIZE: u64 = 1024;
/// Bytes of a block of a deduplication table, of which an entry changes a leaf and a pointer block.
const DDT_BLOCK_SIZE: u64 = 4096;

/// The worst cases of one object set with these properties.
#[derive(Clone, Copy)]
pub(crate) struct Cost<'a> {
    zio: &'a Zio,
    props: ObjsetProps,
}

impl Cost<'_> {
    /// A block of metadata.
    pub fn metadata(&self, size: u64) -> u64 {
        self.zio.tree().worst_dsize(size, (u64::from(self.props.copies) + 1).min(COPIES_MAX))
    }
    /// A block of data, with the deadlist entry of the block that it replaces and its own entry in
    /// a deduplication table.
    pub fn data(&self, size: u64) -> u64 {
        let tree = self.zio.tree();
        let dedup = if self.props.dedup.is_some() { 2 * tree.worst_dsize(DDT_BLOCK_SIZE, COPIES_MAX) } else { 0 };
        tree.worst_dsize(size, u64::from(self.props.copies).clamp(1, COPIES_MAX)) + self.killed(1) + dedup
    }
    /// A clone of the block at `bp`: the dataset is charged as for a block of its own.
    pub fn clone_of(&self, bp: &Blkptr) -> u64 {
        self.zio.dsize(bp) + self.killed(1) + self.zio.tree().worst_dsize(REFERENCE_SIZE, COPIES_MAX)
    }
    /// A block of an object.
    pub fn block(&self, size: u64, metadata: bool) -> u64 {
        if metadata { self.metadata(size) + self.killed(1) } else { self.data(size) }
    }
    /// Entries of so many blocks in a deadlist.
    pub fn killed(&self, blocks: u64) -> u64 {
        blocks.saturating_mul(BLKPTR_SIZE * COPIES_MAX)
    }
    /// Blocks of the meta-dnode for the first changed object of a dnode block.
    pub fn dnode_block(&self) -> u64 {
        self.metadata(DNODE_BLOCK_SIZE as u64)
    }
    /// Blocks that the sync of any change writes beside the changed ones.
    pub fn objset(&self) -> u64 {
        let records = self.zio.tree().worst_dsize(DNODE_BLOCK_SIZE as u64, COPIES_MAX);
        self.metadata(OBJSET_SIZE)
            + 3 * self.metadata(OWNERS_SIZE)
            + META_INDIRECTS * self.metadata(META_INDIRECT_SIZE)
            + RECORD_BLOCKS * records
    }
}

impl Objset {
    /// The worst-case charge of a data block of `size` bytes.
    pub fn charge_of_block(&self, size: u64) -> u64 {
        self.0.cost().data(size)
    }
    /// As [`crate::SpaceGate::take_log_block`].
    pub fn take_log_block(&self, bytes: u64, txg: Txg) -> bool {
        self.0.take_log_block(bytes, txg)
    }
}

impl ObjsetInner {
    /// The worst cases of this object set.
    pub(crate) fn cost(&self) -> Cost<'_> {
        Cost { zio: self.ctx.zio(), props: self.props.get() }
    }
    /// As [`crate::SpaceGate::take_log_block`].
    pub(crate) fn take_log_block(&self, bytes: u64, txg: Txg) -> bool {
        self.gate.as_ref().is_none_or(|gate| gate.take_log_block(bytes, txg))
    }
    /// Charges `cost` to `txg` until it has synced.
    pub(crate) fn will_use(&self, txg: Txg, cost: impl FnOnce(Cost<'_>) -> u64) {
        if let Some(gate) = &self.gate {
            gate.will_use(cost(self.cost()), txg);
        }
    }
    /// At most `blocks` blocks are freed in `txg`.
    pub(crate) fn will_kill(&self, txg: Txg, blocks: u64) {
        if let Some(gate) = &self.gate {
            gate.will_kill(self.cost().killed(blocks), txg);
        }
    }
}
