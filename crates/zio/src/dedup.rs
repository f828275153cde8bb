//! What the block layer asks of the dedup tables, which are kept above it (format page 13).

use base::{Result, Txg};
use metaslab::LBF;
use ondisk::blkptr::Blkptr;

/// What the table knows of a block that is to be written. What is to be called must be called
/// before the answer is dropped, or the block counts for nothing.
pub enum DedupAnswer {
    /// It is there: at these places, born in `bp.phys_birth()`. `accept` counts one more reference.
    /// `done` says that it is on the device.
    Known {
        /// The stored block.
        bp: Blkptr,
        /// When it can be read.
        done: Option<vdev::WriteDone>,
        /// Counts the reference.
        accept: Box<dyn FnOnce()>,
    },
    /// It is not. Called with the pointer that the block was written with, the table knows it.
    New(Written),
}

/// Called with the pointer that a new block got and with the end of its write.
pub type Written = Box<dyn FnOnce(&Blkptr, &vdev::WriteDone)>;

/// The dedup tables of a pool; implemented in `spa`.
pub trait Dedup {
    /// Looks up the block that `bp` describes (checksum, sizes, compression) with `copies` copies,
    /// to be written in `txg`.
    fn ask<'a>(&'a self, bp: &'a Blkptr, copies: usize, txg: Txg) -> LBF<'a, Result<DedupAnswer>>;
    /// One reference less to the block at `bp`, counted when the pass ends.
    fn free(&self, bp: &Blkptr);
}
