//! What all parts of the DSL share while a txg syncs: where freed blocks go and what the MOS itself
//! uses.
//!
//! A block that nothing refers to any more goes back to its metaslab at once in the first pass;
//! from the second pass on it is put on the deferred list instead (`zfs_sync_pass_deferred_free` 2,
//! format page 06 section 9), so that the passes converge.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use base::{Error, ObjectId, Txg};
use dmu::bpobj::BpobjSpace;
use dmu::{BlockAccounting, Tx};
use ondisk::blkptr::Blkptr;
use ondisk::dsl::{DslDatasetPhys, DslDirPhys};
use zio::Zio;

use crate::registry::Registry;

/// Changes of space: deflated, physical and logical bytes (format page 05 section 5).
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Space {
    /// Deflated allocated bytes.
    pub used: i64,
    /// Sum of physical sizes.
    pub compressed: i64,
    /// Sum of logical sizes of data, physical sizes of metadata.
    pub uncompressed: i64,
}

impl Space {
    /// What one block takes.
    pub fn of(bp: &Blkptr, zio: &Zio) -> Space {
        if bp.is_hole() {
            return Space::default();
        }
        if bp.is_embedded() {
            return Space { used: 0, compressed: 0, uncompressed: bp.ucsize() as i64 };
        }
        Space { used: zio.dsize(bp) as i64, compressed: bp.psize() as i64, uncompressed: bp.ucsize() as i64 }
    }
    /// Figures from disk, each at most [`i64::MAX`]: no pool is larger.
    pub fn of_figures(used: u64, compressed: u64, uncompressed: u64) -> Space {
        Space { used: signed(used), compressed: signed(compressed), uncompressed: signed(uncompressed) }
    }
    /// The space of a list of blocks.
    pub fn of_list(s: BpobjSpace) -> Space {
        Space::of_figures(s.bytes, s.comp, s.uncomp)
    }
    /// What a dataset refers to.
    pub(crate) fn referenced(p: &DslDatasetPhys) -> Space {
        Space::of_figures(p.referenced_bytes, p.compressed_bytes, p.uncompressed_bytes)
    }
    /// What a directory and everything below it uses.
    pub(crate) fn used_by(p: &DslDirPhys) -> Space {
        Space::of_figures(p.used_bytes, p.compressed_bytes, p.uncompressed_bytes)
    }
    /// The opposite change.
    pub fn negated(self) -> Space {
        Space {
            used: self.used.saturating_neg(),
            compressed: self.compressed.saturating_neg(),
            uncompressed: self.uncompressed.saturating_neg(),
        }
    }
    /// Adds another change.
    pub fn add(&mut self, other: Space) {
        self.used = self.used.saturating_add(other.used);
        self.compressed = self.compressed.saturating_add(other.compressed);
        self.uncompressed = self.uncompressed.saturating_add(other.uncompressed);
    }
}

/// A figure from disk as a change of a figure, at most [`i64::MAX`].
pub(crate) fn signed(bytes: u64) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}

/// The change from `old` to `new`, within the range of its type whatever the disk says.
pub(crate) fn change(old: u64, new: u64) -> i64 {
    if new >= old { signed(new - old) } else { -signed(old - new) }
}

/// Hears of changes to the chain of datasets in syncing context: a scan of the pool goes along it.
pub trait DatasetWatch {
    /// The dataset `object` is destroyed; of a snapshot `next` is the dataset that follows it.
    fn destroyed(&self, object: ObjectId, next: Option<ObjectId>);
    /// The head `head` got the snapshot `snapshot`.
    fn snapshotted(&self, head: ObjectId, snapshot: ObjectId);
}

/// Something that the pool's history is told besides commands (`zpool history -i`), with OpenZFS's
/// name for it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Event {
    /// What happened.
    pub name: &'static str,
    /// The particulars.
    pub text: String,
    /// The txg in which it happened.
    pub txg: Txg,
    /// Name and object of the dataset that it concerns, if it is one.
    pub dataset: Option<(String, ObjectId)>,
}

/// Events kept for one txg at most: the ring on disk holds little more.
const EVENTS_MAX: usize = 4096;

/// State shared by datasets, directories and the pool.
pub struct Core {
    /// The block layer.
    pub zio: Zio,
    /// Pass of the txg that is syncing, from 1.
    pub pass: Cell<u32>,
    /// Freed blocks that must wait (deferred, or gangs, which need reads to free).
    frees: RefCell<Vec<Blkptr>>,
    mos: Cell<Space>,
    error: RefCell<Option<Error>>,
    watch: RefCell<Option<Rc<dyn DatasetWatch>>>,
    events: RefCell<Vec<Event>>,
    pub(crate) registry: Rc<Registry>,
}

impl Core {
    /// Over this block layer.
    pub fn new(zio: Zio) -> Rc<Core> {
        Rc::new(Core {
            zio,
            pass: Cell::new(1),
            frees: RefCell::default(),
            mos: Cell::default(),
            error: RefCell::default(),
            watch: RefCell::default(),
            events: RefCell::default(),
            registry: Rc::default(),
        })
    }

    /// Really frees a block: now in the first pass, on the list otherwise.
    pub fn free(&self, bp: &Blkptr, txg: Txg) {
        if bp.is_hole() || bp.is_embedded() {
            return;
        }
        if self.pass.get() == 1 && !bp.is_gang() {
            if let Err(e) = self.zio.free(bp, txg) {
                self.error.borrow_mut().get_or_insert(e);
            }
        } else {
            self.frees.borrow_mut().push(*bp);
        }
    }

    /// Who hears of changes to the chain of datasets from now on.
    pub fn set_dataset_watch(&self, watch: Option<Rc<dyn DatasetWatch>>) {
        *self.watch.borrow_mut() = watch;
    }
    pub(crate) fn notify_watch(&self, f: impl FnOnce(&dyn DatasetWatch)) {
        if let Some(watch) = &*self.watch.borrow() {
            f(&**watch);
        }
    }

    /// Tells the pool's history of something that the pool as a whole did in `txg`. What is too
    /// much for one txg is dropped.
    pub fn log_internal(&self, name: &'static str, text: String, txg: Txg) {
        self.push_event(Event { name, text, txg, dataset: None });
    }
    /// The same of something that concerns a dataset.
    pub(crate) fn log_internal_ds(&self, name: &'static str, of: (String, ObjectId), text: String, tx: &Tx) {
        self.push_event(Event { name, text, txg: tx.txg(), dataset: Some(of) });
    }
    fn push_event(&self, event: Event) {
        let mut events = self.events.borrow_mut();
        if events.len() < EVENTS_MAX {
            events.push(event);
        }
    }
    /// What happened since the last call.
    pub fn take_events(&self) -> Vec<Event> {
        self.events.take()
    }

    /// Notes an error, which must stop the txg.
    pub(crate) fn fail(&self, error: Error) {
        self.error.borrow_mut().get_or_insert(error);
    }

    /// The first error of a free, which must stop the txg.
    pub fn take_error(&self) -> Option<Error> {
        self.error.take()
    }

    /// Takes the list of blocks that could not be freed at once.
    pub fn take_frees(&self) -> Vec<Blkptr> {
        std::mem::take(&mut *self.frees.borrow_mut())
    }

    /// True if some wait.
    pub fn has_frees(&self) -> bool {
        !self.frees.borrow().is_empty()
    }

    /// Takes what the MOS gained since the last call; it is charged to `$MOS` one pass later
    /// (format page 05 section 5).
    pub fn take_mos_delta(&self) -> Space {
        self.mos.take()
    }

    /// True if the MOS gained or lost since the last call of `take_mos_delta`.
    pub fn has_mos_delta(&self) -> bool {
        self.mos.get() != Space::default()
    }
}

/// Accounting of the MOS: no snapshots, so every killed block is freed.
pub struct MosAccounting(pub Rc<Core>);

impl BlockAccounting for MosAccounting {
    fn born(&self, bp: &Blkptr, _txg: Txg) {
        let mut delta = self.0.mos.get();
        delta.add(Space::of(bp, &self.0.zio));
        self.0.mos.set(delta);
    }
    fn kill(&self, bp: &Blkptr, txg: Txg) {
        let mut delta = self.0.mos.get();
        delta.add(Space::of(bp, &self.0.zio).negated());
        self.0.mos.set(delta);
        self.0.free(bp, txg);
    }
}
