//! Frees on a vdev that is being removed (format page 23 section 3).
//!
//! The space map of the vdev stays exact as long as the removal may be cancelled, so a free goes to
//! it as always. What of the range was copied already is freed where it was copied to besides, and
//! is obsolete in the mapping. Which parts those are, and what becomes of the others, is known
//! above this crate.

use base::{Result, Txg, VdevId};
use metaslab::Run;
use ondisk::blkptr::Dva;

use crate::zio::{Inner, Zio};

/// A range of the vdev and its copy.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Copied {
    /// Where it starts on the vdev that is being removed.
    pub from: u64,
    /// Its copy; the asize is the length.
    pub to: Dva,
    /// Whether the place of the copy was allocated in the txg that is being synced.
    pub is_new: bool,
}

/// A removal that is under way; implemented in `spa`.
pub trait Evacuation {
    /// The vdev.
    fn vdev(&self) -> VdevId;
    /// A range was freed in `txg`, which is being synced. Returns the parts that have copies on
    /// disk, to be freed as well. `Corrupt` if a part below the end of the mapping has none.
    fn freed(&self, run: Run, txg: Txg) -> Result<Vec<Copied>>;
}

impl Inner {
    /// The part of a free that the vdev's own space map does not show.
    pub(crate) fn free_evacuated(&self, dva: Dva, birth: Txg, txg: Txg) -> Result<()> {
        let evacuation = self.evacuation.borrow().clone();
        let Some(evacuation) = evacuation.filter(|e| e.vdev() == dva.vdev()) else { return Ok(()) };
        let copies = evacuation.freed(Run { start: dva.offset(), size: dva.asize() }, txg)?;
        self.free_copied(dva.vdev(), &copies, birth, txg)
    }

    fn free_copied(&self, vdev: VdevId, copies: &[Copied], birth: Txg, txg: Txg) -> Result<()> {
        let mut result = Ok(());
        for copy in copies {
            let run = Run { start: copy.from, size: copy.to.asize() };
            self.obsolete.borrow_mut().entry(vdev).or_default().push(run);
            // The allocator has to know a place that it gave out in this very txg.
            let birth = if copy.is_new { txg } else { birth };
            result = result.and(self.space.free(copy.to, birth, txg));
        }
        result
    }
}

impl Zio {
    /// Sets or removes the removal that is under way.
    pub fn set_evacuation(&self, evacuation: Option<std::rc::Rc<dyn Evacuation>>) {
        *self.0.evacuation.borrow_mut() = evacuation;
    }

    /// Frees copies in `txg`, which is being synced, of ranges of `vdev` that were freed before,
    /// and notes the ranges as obsolete.
    pub fn free_copied(&self, vdev: VdevId, copies: &[Copied], txg: Txg) -> Result<()> {
        self.0.free_copied(vdev, copies, base::TXG_INITIAL, txg)
    }
}
