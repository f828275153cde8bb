//! The handle: state shared by reads and writes, and the calls that only need the space.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

use base::{Error, ErrorKind, Result, SECTOR, Txg, VdevId};
use metaslab::Run;
use ondisk::blkptr::{Blkptr, Dva};
use rt::Rt;
use vdev::{VdevKind, VdevTree};

use crate::clones::References;
use crate::dedup::Dedup;
use crate::evacuate::Evacuation;
use crate::inject::DataFaults;
use crate::scrub::FreeObserver;
use crate::space::Space;
use crate::{BadCopy, ZioStats};

/// Bad copies kept for [`Zio::take_bad_copies`].
const BAD_COPIES: usize = 256;

/// Settings of a [`Zio`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ZioOpts {
    /// The pool's salt, for keyed checksums.
    pub salt: Option<[u8; 32]>,
    /// Blocks stored in more bytes than this become gang blocks even if there is space
    /// (`metaslab_force_ganging` of OpenZFS); 0: none.
    pub gang_above: u64,
    /// Headers of gang blocks have the size of a unit of allocation: the feature
    /// `dynamic_gang_header` is active.
    pub large_gang_headers: bool,
    /// No blocks are cloned (`zfs_bclone_enabled` of OpenZFS is 0).
    pub clones_off: bool,
    /// A clone of what is not on disk yet is refused and does not wait for it
    /// (`zfs_bclone_wait_dirty` is 0).
    pub clones_wait_off: bool,
}

pub(crate) struct Inner {
    pub(crate) rt: Rt,
    pub(crate) tree: Rc<VdevTree>,
    pub(crate) space: Rc<dyn Space>,
    pub(crate) opts: Cell<ZioOpts>,
    stats: Cell<ZioStats>,
    /// Number of top-level vdevs, and the allocation unit for that number.
    min_alloc: Cell<(usize, u64)>,
    bad: RefCell<VecDeque<BadCopy>>,
    pub(crate) dedup: RefCell<Option<Rc<dyn Dedup>>>,
    pub(crate) references: RefCell<Option<Rc<dyn References>>>,
    pub(crate) rewritable: RefCell<crate::gang::Rewritable>,
    pub(crate) free_observer: RefCell<Option<Rc<dyn FreeObserver>>>,
    /// Freed ranges of removed vdevs that are not in an obsolete space map yet.
    pub(crate) obsolete: RefCell<BTreeMap<VdevId, Vec<Run>>>,
    pub(crate) evacuation: RefCell<Option<Rc<dyn Evacuation>>>,
    pub(crate) faults: DataFaults,
}

/// Block I/O of one pool. Cheap to clone.
#[derive(Clone)]
pub struct Zio(pub(crate) Rc<Inner>);

impl Inner {
    pub(crate) fn count(&self, f: impl FnOnce(&mut ZioStats)) {
        let mut s = self.stats.get();
        f(&mut s);
        self.stats.set(s);
    }

    /// The unit to which stored sizes of compressed blocks are rounded. Cached, since every block
    /// needs it; top-level vdevs are only added.
    pub(crate) fn min_alloc(&self) -> u64 {
        let tops = self.tree.tops.borrow().len();
        let (known, unit) = self.min_alloc.get();
        if known == tops {
            return unit;
        }
        let unit = self.tree.min_alloc().max(SECTOR);
        self.min_alloc.set((tops, unit));
        unit
    }

    /// Whether a block of `psize` bytes becomes a gang block although there may be space. A block
    /// of a few allocation units never does: it cannot be split.
    pub(crate) fn is_forced_gang(&self, psize: u64) -> bool {
        let above = self.opts.get().gang_above;
        above != 0 && psize > above.max(8 * self.min_alloc())
    }

    /// Counts and notes a bad copy of `bp` at `dva`.
    pub(crate) fn note_bad_copy(&self, bp: &Blkptr, dva: Dva, kind: ErrorKind) {
        if kind == ErrorKind::Checksum {
            self.count(|s| s.checksum_errors += 1);
            if let Ok(top) = self.tree.top(dva.vdev())
                && let VdevKind::Leaf(leaf) = top.kind()
            {
                leaf.count_checksum_error(dva.offset(), dva.asize());
            }
        } else {
            self.count(|s| s.read_errors += 1);
        }
        let mut bad = self.bad.borrow_mut();
        if bad.len() == BAD_COPIES {
            bad.pop_front();
        }
        bad.push_back(BadCopy { dva, bp: *bp, kind });
    }

    /// Frees one reference to a block of a dedup table.
    pub(crate) fn free_dedup(&self, bp: &Blkptr, txg: Txg) -> Result<()> {
        let dedup = self.dedup.borrow();
        let dedup = dedup.as_ref().ok_or_else(|| {
            Error::unsupported(format!("freeing block {bp}: the dedup table that counts its references is not open"))
        })?;
        dedup.free(bp, txg);
        Ok(())
    }

    /// Frees one copy. On a removed vdev it frees the places that the copy is mapped to, and notes
    /// the range as obsolete.
    pub(crate) fn free_dva(&self, dva: Dva, birth: Txg, txg: Txg) -> Result<()> {
        if !self.tree.top(dva.vdev())?.is_indirect() {
            return self.free_place(dva, birth, txg);
        }
        let (places, obsolete) = self.tree.places_to_free(dva.vdev(), dva.offset(), dva.asize())?;
        let mut result = Ok(());
        for p in places {
            result = result.and(self.free_place(Dva::new(p.top.id, p.offset, p.len, false), birth, txg));
        }
        let mut all = self.obsolete.borrow_mut();
        for (vdev, start, size) in obsolete {
            all.entry(vdev).or_default().push(Run { start, size });
        }
        result
    }

    /// Frees a place on a vdev that is there.
    fn free_place(&self, dva: Dva, birth: Txg, txg: Txg) -> Result<()> {
        self.space.free(dva, birth, txg)?;
        self.free_evacuated(dva, birth, txg)
    }

    /// The DVA of the gang header at `dva`, born in `birth`, with the size of the header alone.
    pub(crate) fn header_place(&self, dva: Dva, birth: Txg) -> Result<Dva> {
        let asize = self.tree.top(dva.vdev())?.asize_of(ondisk::gang::GANG_HEADER_SIZE as u64, birth);
        Ok(Dva::new(dva.vdev(), dva.offset(), asize, false))
    }
}

impl Zio {
    /// Block I/O over the devices of `tree` with places from `space`.
    pub fn new(rt: Rt, tree: Rc<VdevTree>, space: Rc<dyn Space>, opts: ZioOpts) -> Zio {
        Zio(Rc::new(Inner {
            rt,
            tree,
            space,
            opts: Cell::new(opts),
            stats: Cell::new(ZioStats::default()),
            min_alloc: Cell::new((0, SECTOR)),
            bad: RefCell::default(),
            dedup: RefCell::default(),
            references: RefCell::default(),
            rewritable: RefCell::default(),
            free_observer: RefCell::default(),
            obsolete: RefCell::default(),
            evacuation: RefCell::default(),
            faults: DataFaults::default(),
        }))
    }
    /// Sets or removes the dedup tables: without them their blocks can be neither written nor
    /// freed.
    pub fn set_dedup(&self, dedup: Option<Rc<dyn Dedup>>) {
        *self.0.dedup.borrow_mut() = dedup;
    }
    /// Faults on purpose.
    pub fn faults(&self) -> &DataFaults {
        &self.0.faults
    }
    /// The devices.
    pub fn tree(&self) -> &Rc<VdevTree> {
        &self.0.tree
    }
    /// The space.
    pub fn space(&self) -> &Rc<dyn Space> {
        &self.0.space
    }
    /// The world.
    pub fn rt(&self) -> &Rt {
        &self.0.rt
    }
    /// Changes the settings.
    pub fn set_opts(&self, opts: ZioOpts) {
        self.0.opts.set(opts);
    }
    /// The settings.
    pub fn opts(&self) -> ZioOpts {
        self.0.opts.get()
    }

    /// Frees every copy in `txg`, or one reference of a block with several. Does nothing for holes
    /// and embedded pointers. For gang blocks, whose pieces are listed only in their headers on
    /// disk, use [`Zio::free_gang`], which takes any block.
    ///
    /// # Panics
    /// If the block is a gang block.
    pub fn free(&self, bp: &Blkptr, txg: Txg) -> Result<()> {
        if bp.dedup() && !bp.is_hole() && !bp.is_embedded() {
            return self.0.free_dedup(bp, txg);
        }
        if self.0.is_referenced(bp, txg) {
            return Ok(());
        }
        self.free_copies(bp, txg)
    }

    /// As [`Zio::free`] for a block without another reference.
    pub(crate) fn free_copies(&self, bp: &Blkptr, txg: Txg) -> Result<()> {
        assert!(!bp.is_gang(), "gang blocks are freed with free_gang");
        let mut result = Ok(());
        for dva in bp.dvas() {
            self.0.notify_freed(dva);
            // Free the other copies even if one fails, so that they do not leak.
            result = result.and(self.0.free_dva(dva, bp.phys_birth(), txg));
        }
        result
    }

    /// Whether ranges of removed vdevs were freed since [`Zio::take_obsolete`].
    pub fn has_obsolete(&self) -> bool {
        !self.0.obsolete.borrow().is_empty()
    }

    /// The ranges of removed vdevs that were freed since the last call, by vdev.
    pub fn take_obsolete(&self) -> BTreeMap<VdevId, Vec<Run>> {
        self.0.obsolete.take()
    }

    /// Marks every copy as allocated in `txg`, for blocks of an intent log found at import. Of a
    /// gang block also its pieces, for which it reads the headers.
    pub async fn claim(&self, bp: &Blkptr, txg: Txg) -> Result<()> {
        self.0.claim_tree(*bp, txg, 0).await
    }

    /// Whether no copy of a block is allocated. On a vdev that is being removed all counts as
    /// allocated: nothing can be allocated there again, since its copy is gone.
    pub(crate) async fn is_free(&self, bp: &Blkptr) -> Result<bool> {
        let evacuated = self.0.evacuation.borrow().as_ref().map(|e| e.vdev());
        for dva in bp.dvas() {
            if Some(dva.vdev()) == evacuated {
                return Ok(false);
            }
            let dva = if dva.gang() { self.0.header_place(dva, bp.phys_birth())? } else { dva };
            if !self.0.space.is_free(dva).await? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Allocated bytes of all copies, deflated as datasets are charged (format page 05).
    pub fn dsize(&self, bp: &Blkptr) -> u64 {
        bp.dvas().map(|d| self.0.tree.top(d.vdev()).map_or(d.asize(), |top| top.dsize(d.asize()))).sum()
    }

    /// Counters.
    pub fn stats(&self) -> ZioStats {
        self.0.stats.get()
    }
    /// The bad copies since the last call; the newest few hundred are kept.
    pub fn take_bad_copies(&self) -> Vec<BadCopy> {
        std::mem::take(&mut *self.0.bad.borrow_mut()).into()
    }
}
