//! Cloning blocks of one object into another (format page 18).
//!
//! The source gives the pointer of a block ([`Dnode::clone_source`]): that of the committed
//! tree, if no txg that has not synced has changed the block and the block itself is on disk,
//! or that of a clone that has not synced. The target takes it ([`Dnode::clone_block`]): a
//! reference is counted from the txg of the transaction on, and the block is dirty in the state
//! `Cloned` (module `dirty`), without content in memory. Readers read the block where it is;
//! the sync puts the pointer into the tree. A hole of the source frees the block of the target;
//! a block that lies in its pointer is copied with it and has no references.
//!
//! The caller holds locks that keep both ranges from other changes, and took them before the
//! transaction: so the source is freed in no txg before that of the clone.

use base::{Error, ErrorKind, Result, Txg};
use bdev::Bytes;
use ondisk::blkptr::Blkptr;

use crate::dirty::{DirtyBlk, GivenUp};
use crate::dnode::Dnode;
use crate::dnode_io::Overlay;
use crate::objset::ObjsetInner;
use crate::tx::Tx;

/// A block that is to be cloned.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CloneSource {
    /// Its pointer, or a hole.
    Block(Blkptr),
    /// It is not on disk yet: a later txg has it.
    Dirty,
}

impl Dnode {
    /// The pointer that a clone of block `blkid` gets. Errors: those of reading the blocks
    /// above it.
    pub async fn clone_source(&self, blkid: u64) -> Result<CloneSource> {
        let of = |bp: Blkptr| {
            let on_disk = bp.is_hole() || bp.is_embedded() || bp.phys_birth() <= self.os.ctx.committed();
            if on_disk { CloneSource::Block(bp) } else { CloneSource::Dirty }
        };
        loop {
            match self.overlay(blkid) {
                Overlay::Data(_) => return Ok(CloneSource::Dirty),
                Overlay::Cloned(bp) => return Ok(of(bp)),
                Overlay::Freed(_) => return Ok(CloneSource::Block(Blkptr::hole())),
                Overlay::None => {}
            }
            let generation = self.n.tree_gen.get();
            let bp = self.block_pointer(blkid).await?;
            // The tree may have been replaced while it was read, or the block changed.
            if self.n.tree_gen.get() == generation && matches!(self.overlay(blkid), Overlay::None) {
                return Ok(of(bp));
            }
        }
    }

    /// Makes block `blkid` a clone of the block at `source`, which [`Dnode::clone_source`] of
    /// another object gave, or a record of an intent log. Errors: `Invalid` if the block does
    /// not fit into the object, or is of a kind that cannot be cloned; `Busy` if a later txg
    /// has changed the block.
    pub fn clone_block(&self, blkid: u64, source: &Blkptr, tx: &Tx) -> Result<()> {
        let size = u64::from(self.block_size());
        self.check_write(blkid.saturating_mul(size), size)?;
        let txg = tx.txg();
        let is_newer = self
            .n
            .st
            .borrow()
            .dirty
            .iter()
            .flatten()
            .any(|d| d.txg > txg && (d.free || d.blocks.contains(blkid) || d.freed.contains(blkid)));
        if is_newer {
            return Err(Error::new(ErrorKind::Busy, format!("object {}: block {blkid} changed later", self.n.obj)));
        }
        if source.is_hole() {
            if blkid <= self.max_blkid() {
                self.free_blocks(blkid, blkid + 1, None, tx);
            }
            return Ok(());
        }
        if source.lsize() != size || source.otype() != self.otype() || source.level() != 0 {
            return Err(Error::invalid(format!("object {}: {source} is no block for it", self.n.obj)));
        }
        if !source.is_embedded() {
            self.os.ctx.zio().add_reference(source, txg)?;
        }
        let clone = DirtyBlk::Cloned(Box::new(source.cloned_in(txg)));
        self.insert(&mut self.n.st.borrow_mut(), blkid, clone, txg);
        Ok(())
    }

    /// Reads block `blkid`, which was the clone at `bp`.
    pub(crate) async fn read_clone(&self, blkid: u64, bp: Blkptr) -> Result<Option<Bytes>> {
        match self.os.ctx.read(&bp).await {
            Ok(block) => Ok(Some(block)),
            Err(e) if self.has_clone(blkid, &bp) => {
                Err(e.at(format_args!("object {} of object set {}, block {blkid}", self.n.obj, self.os.id)))
            }
            // It was synced, or replaced.
            Err(_) => self.block(blkid).await,
        }
    }

    /// Whether some txg has the clone at `bp` as block `blkid`.
    pub(crate) fn has_clone(&self, blkid: u64, bp: &Blkptr) -> bool {
        self.n.st.borrow().dirty.iter().flatten().any(|d| d.blocks.cloned(blkid).is_some_and(|c| c == *bp))
    }

    /// Whether the txg of `tx` or a later one has a clone as block `blkid`.
    pub(crate) fn is_cloned_from(&self, blkid: u64, tx: &Tx) -> bool {
        self.n.st.borrow().is_cloned_from(blkid, tx.txg())
    }

    /// How many indirect blocks a change of blocks `first..first + n` changes at most.
    pub(crate) fn indirects_above(&self, first: u64, n: u64) -> u64 {
        let st = self.n.st.borrow();
        let levels = u64::from(st.phys.nlevels).max(2);
        let per_block = 1u64 << st.phys.epb_shift();
        let touched = (first.saturating_add(n.max(1)) - 1) / per_block - first / per_block + 1;
        touched.saturating_mul(levels - 1)
    }
}

impl ObjsetInner {
    /// Frees what was replaced in `txg` before it became part of an object.
    pub(crate) fn free_given_up(&self, given_up: &[GivenUp], txg: Txg) -> Result<()> {
        let zio = self.ctx.zio();
        given_up.iter().try_for_each(|gone| match gone {
            GivenUp::Stored(bp) => zio.free(bp, txg),
            GivenUp::Clone(bp) => zio.drop_reference(bp, txg),
        })
    }
}
