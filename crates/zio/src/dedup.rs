//! The interface to the dedup tables, which are kept above this crate (format pages 13 and 20).

use base::{Result, Txg};
use ondisk::blkptr::Blkptr;
use rt::LocalBoxFuture;

/// The entry of the table for a block to write. The caller must call the function of the answer, or
/// the reference is not counted.
pub enum DedupAnswer {
    /// It is stored, at the places of `bp`, born in `bp.phys_birth()`.
    Known {
        /// The stored block.
        bp: Blkptr,
        /// Resolves when it is on the device; none if it is.
        done: Option<vdev::WriteDone>,
        /// Counts the reference.
        accept: Box<dyn FnOnce()>,
    },
    /// It is to be written without the table, as a block of its own.
    Apart,
    /// It is not stored. To be called with the pointer of the written block, which the table
    /// enters.
    New(Written),
}

/// Called with the pointer of a new block and the completion of its write.
pub type Written = Box<dyn FnOnce(&Blkptr, &vdev::WriteDone)>;

/// The dedup tables of a pool; implemented in `spa`.
pub trait Dedup {
    /// Looks up the block that `bp` describes (checksum, sizes, compression) with `copies` copies,
    /// to be written in `txg`.
    fn ask<'a>(&'a self, bp: &'a Blkptr, copies: usize, txg: Txg) -> LocalBoxFuture<'a, Result<DedupAnswer>>;
    /// Removes one reference to the block at `bp` in `txg`; counted when a pass of that ends.
    fn free(&self, bp: &Blkptr, txg: Txg);
}
