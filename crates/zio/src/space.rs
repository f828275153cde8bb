//! The interface to free space: what reads and writes of blocks need of an allocator.
//!
//! The space of a pool is [`metaslab::Allocator`], which implements it below. Another kind of
//! space, with its own places on the devices of the tree, implements [`Space`] instead.
//! Everything else about an allocator (which vdevs it has, what of it is stored in which txg)
//! belongs to the layer that makes it.

use base::{Result, Txg};
use metaslab::{Allocator, ClassKind};
use ondisk::blkptr::Dva;
use rt::LocalBoxFuture;

/// The space that blocks are allocated from. What was freed is not allocated again before no
/// committed txg refers to it: the implementation waits as long as its txgs need.
pub trait Space {
    /// Allocates one segment for `psize` bytes (not 0) of a block of `txg`, away from `avoid`, the
    /// places of its other copies, if possible. A class without space falls back to another one.
    /// `NoSpace` if none has room; `None` if the answer takes a wait: then call [`Space::alloc`].
    fn try_alloc(&self, class: ClassKind, psize: u64, txg: Txg, avoid: &[Dva]) -> Result<Option<Dva>>;

    /// As [`Space::try_alloc`], but waits.
    fn alloc<'a>(&'a self, class: ClassKind, psize: u64, txg: Txg, avoid: &'a [Dva])
    -> LocalBoxFuture<'a, Result<Dva>>;

    /// Undoes an allocation of `txg` that was never written.
    fn unalloc(&self, dva: Dva, txg: Txg) -> Result<()>;

    /// Frees in `txg` a segment of a block that was born in `birth` (0: unknown). `Corrupt` if it
    /// is no place, or known to be free.
    fn free(&self, dva: Dva, birth: Txg, txg: Txg) -> Result<()>;

    /// Marks free space as allocated in `txg`: blocks of an intent log to be replayed. `Corrupt` if
    /// it is not free.
    fn claim(&self, dva: Dva, txg: Txg) -> LocalBoxFuture<'_, Result<()>>;

    /// Whether all of `dva` is free. `Corrupt` if it is no place.
    fn is_free(&self, dva: Dva) -> LocalBoxFuture<'_, Result<bool>>;

    /// The class that `dva` was allocated from. `Corrupt` if it is no place.
    fn class_of(&self, dva: Dva) -> Result<ClassKind>;

    /// Allocated and total bytes of a class; cheap.
    fn class_use(&self, class: ClassKind) -> (u64, u64);

    /// The last txg of which an allocation had to leave a class that has vdevs.
    fn class_left(&self, class: ClassKind) -> Option<Txg>;
}

impl Space for Allocator {
    fn try_alloc(&self, class: ClassKind, psize: u64, txg: Txg, avoid: &[Dva]) -> Result<Option<Dva>> {
        Allocator::try_alloc(self, class, psize, txg, avoid)
    }
    fn alloc<'a>(
        &'a self,
        class: ClassKind,
        psize: u64,
        txg: Txg,
        avoid: &'a [Dva],
    ) -> LocalBoxFuture<'a, Result<Dva>> {
        Box::pin(Allocator::alloc(self, class, psize, txg, avoid))
    }
    fn unalloc(&self, dva: Dva, txg: Txg) -> Result<()> {
        self.unalloc(dva, txg)
    }
    fn free(&self, dva: Dva, birth: Txg, txg: Txg) -> Result<()> {
        self.free(dva, birth, txg)
    }
    fn claim(&self, dva: Dva, txg: Txg) -> LocalBoxFuture<'_, Result<()>> {
        Box::pin(self.claim(dva, txg))
    }
    fn is_free(&self, dva: Dva) -> LocalBoxFuture<'_, Result<bool>> {
        Box::pin(self.is_free(dva))
    }
    fn class_of(&self, dva: Dva) -> Result<ClassKind> {
        self.class_of(dva)
    }
    fn class_use(&self, class: ClassKind) -> (u64, u64) {
        self.class_use(class)
    }
    fn class_left(&self, class: ClassKind) -> Option<Txg> {
        self.class_left(class)
    }
}
