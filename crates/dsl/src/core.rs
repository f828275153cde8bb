//! State that all parts of the DSL share while a txg syncs: freed blocks, space of the MOS,
//! internal history.
//!
//! A block without references is returned to its metaslab at once in the first pass; from the
//! second pass on it goes to the deferred list instead ([`SYNC_PASS_DEFERRED_FREE`], format
//! page 06 section 9), so that the passes converge.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use base::{Error, ObjectId, SYNC_PASS_DEFERRED_FREE, Txg};
use dmu::bpobj::BpobjSpace;
use dmu::{BlockAccounting, Tx};
use ondisk::blkptr::Blkptr;
use ondisk::dsl::{DslDatasetPhys, DslDirPhys};
use zil::{PoolLogs, ZilTunables};

use crate::free::livelist::{LIVELIST_ENTRIES, LIVELIST_SHARED};
use crate::pool::NESTING_MAX;
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
    /// The space of one block.
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
    /// The referenced space of a dataset.
    pub(crate) fn referenced(p: &DslDatasetPhys) -> Space {
        Space::of_figures(p.referenced_bytes, p.compressed_bytes, p.uncompressed_bytes)
    }
    /// The space used by a directory and its descendants.
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

/// The change from `old` to `new`, saturated for any figures from disk.
pub(crate) fn change(old: u64, new: u64) -> i64 {
    if new >= old { signed(new - old) } else { -signed(old - new) }
}

/// Is told of changes to the chain of datasets in syncing context, for a scan of the pool, which
/// follows that chain.
pub trait DatasetWatch {
    /// The dataset `object` is destroyed; for a snapshot `next` is the dataset after it.
    fn destroyed(&self, object: ObjectId, next: Option<ObjectId>);
    /// The head `head` got the snapshot `snapshot`.
    fn snapshotted(&self, head: ObjectId, snapshot: ObjectId);
    /// A clone was promoted: the snapshots of the head `from` up to that of txg `youngest` are
    /// those of the head `to` now.
    fn promoted(&self, from: ObjectId, to: ObjectId, youngest: Txg);
}

/// An internal event of the pool's history (`zpool history -i`), with OpenZFS's name for it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Event {
    /// Its name.
    pub name: &'static str,
    /// Its details.
    pub text: String,
    /// The txg in which it happened.
    pub txg: Txg,
    /// Name and object of the dataset that it concerns, if any.
    pub dataset: Option<(String, ObjectId)>,
}

/// Most events of one txg: the ring on disk holds little more.
const EVENTS_MAX: usize = 4096;

/// State shared by datasets, directories and the pool.
pub struct Core {
    /// The block layer.
    pub zio: Zio,
    /// What the intent logs share.
    pub zil: Rc<PoolLogs>,
    /// Snapshots may be made, destroyed and renamed as folders of `.zfs/snapshot`
    /// (`zfs_admin_snapshot`).
    pub admin_snapshot: Cell<bool>,
    /// Blocks that are freed in one txg at most (`zfs_async_block_max_blocks`).
    pub freed_per_txg: Cell<usize>,
    /// ALLOC entries of the last part of a livelist with which a new one begins
    /// (`zfs_livelist_max_entries`).
    pub livelist_entries: Cell<u64>,
    /// A clone that shares no more percent with its origin loses its livelist
    /// (`zfs_livelist_min_percent_shared`); none: it never does.
    pub livelist_shared: Cell<Option<u64>>,
    /// Levels that names of new datasets may have (`zfs_max_dataset_nesting`).
    pub nesting: Cell<usize>,
    /// A received snapshot may refer to so many times 64 MiB more than the
    /// refquota of its file system (`spa_asize_inflation`).
    pub asize_inflation: Cell<u64>,
    /// Files without a link stay where they are (`zfs_unlink_suspend_progress`).
    pub unlink_suspended: Cell<bool>,
    /// Bytes of a record for estimates of streams; 0: those of the dataset
    /// (`zfs_override_estimate_recordsize`).
    pub estimate_record: Cell<u64>,
    /// Raw increments are received whatever set of IVs they start from
    /// (`zfs_disable_ivset_guid_check`).
    pub ivsets_unchecked: Cell<bool>,
    /// Pass of the txg that is syncing, from 1.
    pub pass: Cell<u32>,
    /// Freed blocks that could not be freed at once (deferred, or gang blocks, which need reads).
    frees: RefCell<Vec<Blkptr>>,
    mos: Cell<Space>,
    error: RefCell<Option<Error>>,
    watch: RefCell<Option<Rc<dyn DatasetWatch>>>,
    events: RefCell<Vec<Event>>,
    pub(crate) registry: Rc<Registry>,
}

/// Default of [`Core::freed_per_txg`]: a few seconds of a slow disk's allocator work at worst, 2
/// GiB of usual records.
pub const FREED_PER_TXG: usize = 16 << 10;

/// Default of [`Core::asize_inflation`], that of OpenZFS.
pub const ASIZE_INFLATION: u64 = 24;

impl Core {
    /// For this block layer, with these tunables of intent logs.
    pub fn new(zio: Zio, zil: ZilTunables) -> Rc<Core> {
        Rc::new(Core {
            zio,
            zil: Rc::new(PoolLogs::new(zil)),
            admin_snapshot: Cell::new(false),
            freed_per_txg: Cell::new(FREED_PER_TXG),
            livelist_entries: Cell::new(LIVELIST_ENTRIES),
            livelist_shared: Cell::new(Some(LIVELIST_SHARED)),
            nesting: Cell::new(NESTING_MAX),
            asize_inflation: Cell::new(ASIZE_INFLATION),
            unlink_suspended: Cell::new(false),
            estimate_record: Cell::new(0),
            ivsets_unchecked: Cell::new(false),
            pass: Cell::new(1),
            frees: RefCell::default(),
            mos: Cell::default(),
            error: RefCell::default(),
            watch: RefCell::default(),
            events: RefCell::default(),
            registry: Rc::default(),
        })
    }

    /// Frees a block: at once in the first pass, else by the list.
    pub fn free(&self, bp: &Blkptr, txg: Txg) {
        if bp.is_hole() || bp.is_embedded() {
            return;
        }
        if self.pass.get() < SYNC_PASS_DEFERRED_FREE && !bp.is_gang() {
            if let Err(e) = self.zio.free(bp, txg) {
                self.error.borrow_mut().get_or_insert(e);
            }
        } else {
            self.frees.borrow_mut().push(*bp);
        }
    }

    /// Sets the watch of changes to the chain of datasets.
    pub fn set_dataset_watch(&self, watch: Option<Rc<dyn DatasetWatch>>) {
        *self.watch.borrow_mut() = watch;
    }
    pub(crate) fn notify_watch(&self, f: impl FnOnce(&dyn DatasetWatch)) {
        if let Some(watch) = &*self.watch.borrow() {
            f(&**watch);
        }
    }

    /// Adds an event of the whole pool in `txg` to its history (`spa_history_log_internal`). Events
    /// beyond [`EVENTS_MAX`] are dropped.
    pub fn log_internal(&self, name: &'static str, text: String, txg: Txg) {
        self.push_event(Event { name, text, txg, dataset: None });
    }
    /// As [`Core::log_internal`], for an event of a dataset (`spa_history_log_internal_ds`).
    pub(crate) fn log_internal_ds(&self, name: &'static str, of: (String, ObjectId), text: String, tx: &Tx) {
        self.push_event(Event { name, text, txg: tx.txg(), dataset: Some(of) });
    }
    fn push_event(&self, event: Event) {
        let mut events = self.events.borrow_mut();
        if events.len() < EVENTS_MAX {
            events.push(event);
        }
    }
    /// Takes the events since the last call.
    pub fn take_events(&self) -> Vec<Event> {
        self.events.take()
    }

    /// Records an error, which must fail the txg.
    pub(crate) fn fail(&self, error: Error) {
        self.error.borrow_mut().get_or_insert(error);
    }

    /// Takes the first error recorded; it must fail the txg.
    pub fn take_error(&self) -> Option<Error> {
        self.error.take()
    }

    /// Takes the list of blocks that could not be freed at once.
    pub fn take_frees(&self) -> Vec<Blkptr> {
        std::mem::take(&mut *self.frees.borrow_mut())
    }

    /// True if that list is not empty.
    pub fn has_frees(&self) -> bool {
        !self.frees.borrow().is_empty()
    }

    /// Takes the change of the MOS's space since the last call; it is charged to `$MOS` one pass
    /// later (format page 05 section 5).
    pub fn take_mos_delta(&self) -> Space {
        self.mos.take()
    }

    /// True if the MOS's space changed since the last call of `take_mos_delta`.
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
