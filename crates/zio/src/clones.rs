//! The interface to the block reference table, which is kept above this crate (format page 18).

use base::{Error, Result, Txg};
use ondisk::blkptr::Blkptr;

use crate::zio::{Inner, Zio};

/// References to blocks beyond the first; implemented in `spa`.
pub trait References {
    /// Counts one more reference to the block at `bp`, from `txg` on, which does not sync yet.
    fn add(&self, bp: &Blkptr, txg: Txg);
    /// Takes back one [`References::add`] of `txg`; false if that txg syncs already: then the
    /// reference is counted, and has to be freed.
    fn forget(&self, bp: &Blkptr, txg: Txg) -> bool;
    /// Whether blocks may be cloned: the feature is enabled.
    fn is_enabled(&self) -> bool;
    /// Whether a reference to the block at `bp` may be counted; never false if one is.
    fn may_have(&self, bp: &Blkptr) -> bool;
    /// Removes a reference to the block at `bp` in `txg`; if it is the last one, frees it.
    fn free(&self, bp: &Blkptr, txg: Txg);
}

/// Whether a block is of a kind that may be cloned: data at level 0, in a place of its own.
pub fn is_cloneable(bp: &Blkptr) -> bool {
    bp.level() == 0 && !bp.is_hole() && !bp.is_embedded() && !bp.otype().is_metadata()
}

impl Inner {
    /// Hands a free to the table of references if it may know the block; false if not.
    pub(crate) fn is_referenced(&self, bp: &Blkptr, txg: Txg) -> bool {
        let table = self.references.borrow();
        let Some(table) = table.as_ref().filter(|t| is_cloneable(bp) && t.may_have(bp)) else { return false };
        table.free(bp, txg);
        true
    }
}

impl Zio {
    /// Sets or removes the table of references: without it no block can be cloned.
    pub fn set_references(&self, table: Option<std::rc::Rc<dyn References>>) {
        *self.0.references.borrow_mut() = table;
    }

    /// Whether blocks may be cloned in this pool.
    pub fn may_clone(&self) -> bool {
        !self.opts().clones_off && self.0.references.borrow().as_ref().is_some_and(|t| t.is_enabled())
    }

    /// Counts one more reference to a block that is on disk, from `txg` on. Errors: `Invalid` if
    /// the block is of a kind that cannot be cloned, `Corrupt` if it is no block of the pool.
    pub fn add_reference(&self, bp: &Blkptr, txg: Txg) -> Result<()> {
        self.check_clone(bp)?;
        let table = self.0.references.borrow();
        let table = table.as_ref().ok_or_else(|| Error::unsupported("the block reference table is not open"))?;
        table.add(bp, txg);
        Ok(())
    }

    /// As [`Zio::add_reference`] for the log of an import whose first txg is `txg`. A block that is
    /// free is allocated again in place of a reference: what has it is the log alone.
    pub async fn claim_clone(&self, bp: &Blkptr, txg: Txg) -> Result<()> {
        self.check_clone(bp)?;
        if self.is_free(bp).await? { self.claim(bp, txg).await } else { self.add_reference(bp, txg) }
    }

    /// Errors as of [`Zio::add_reference`].
    fn check_clone(&self, bp: &Blkptr) -> Result<()> {
        if !is_cloneable(bp) {
            return Err(Error::invalid(format!("block {bp} cannot be cloned: it is not one of data")));
        }
        crate::read::validate(bp)?;
        for dva in bp.dvas() {
            let end = dva.offset().saturating_add(dva.asize());
            if end > self.0.tree.top(dva.vdev())?.asize.get() {
                return Err(Error::corrupt(format!("block {bp} is beyond the end of vdev {}", dva.vdev())));
            }
        }
        Ok(())
    }

    /// Takes back one [`Zio::add_reference`] of `txg`.
    pub fn drop_reference(&self, bp: &Blkptr, txg: Txg) -> Result<()> {
        let table = self.0.references.borrow();
        let table = table.as_ref().ok_or_else(|| Error::unsupported("the block reference table is not open"))?;
        if table.forget(bp, txg) {
            return Ok(());
        }
        if bp.dedup() {
            return self.0.free_dedup(bp, txg);
        }
        table.free(bp, txg);
        Ok(())
    }
}
