//! The allocator of a pool: the interface to the layers above.
//!
//! [`class`] has classes and groups, [`search`] chooses the place of a block, [`load`] loads and
//! unloads metaslabs, [`tops`] adds and removes vdevs, [`figures`] reports space. This file keeps
//! the state, allocates, frees, and hands each txg's changes to `spa`.

mod class;
mod figures;
mod load;
mod search;
mod tops;
mod trims;

use std::cell::RefCell;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound::{Excluded, Unbounded};
use std::rc::Rc;

use base::{Error, ErrorKind, ObjectId, Result, ResultExt, TXG_SIZE, Txg, VdevId};
use ondisk::blkptr::Dva;
use ondisk::vdev_config::MetaslabCounts;
use rt::sync::Notify;
use vdev::Top;

use crate::metaslab::{Ended, Metaslab, MsChanges};
use crate::range_tree::{BUCKETS, Run};
use crate::store::SpaceMapStore;
use crate::tunables::AllocTunables;
use crate::weight::Weight;

use class::{CLASSES, Class, Group};
use search::Found;

pub use class::ClassKind;
pub use figures::{ClassSpace, TopSpace};
pub use tops::MsSummary;

/// All space of a pool. See the crate's documentation.
pub struct Allocator {
    store: Rc<dyn SpaceMapStore>,
    inner: RefCell<Inner>,
}

struct Inner {
    tunables: AllocTunables,
    /// By vdev id.
    tops: Vec<Option<TopState>>,
    groups: Vec<Group>,
    classes: [Class; CLASSES],
    /// Metaslabs with changes not yet taken, by txg slot.
    dirty: [BTreeSet<(VdevId, u64)>; TXG_SIZE],
    pending: BTreeSet<(VdevId, u64)>,
    loaded: BTreeSet<(VdevId, u64)>,
    /// Freed blocks born up to this txg stay allocated.
    checkpoint: Option<Txg>,
    held_back: Vec<(VdevId, Run)>,
    /// Disabled metaslabs; `enabled` wakes allocations that wait for one of them.
    disabled: BTreeSet<(VdevId, u64)>,
    enabled: Rc<Notify>,
    /// Whether what becomes free is to be trimmed, and the metaslabs that have some of that.
    autotrim: bool,
    /// Nothing is freed in txgs after this one.
    frozen: Option<Txg>,
    trims: BTreeSet<(VdevId, u64)>,
}

struct TopState {
    top: Rc<Top>,
    class: ClassKind,
    ms_shift: u8,
    metaslabs: Vec<Metaslab>,
}

impl Inner {
    fn state(&self, vdev: VdevId) -> Result<&TopState> {
        let top = self.tops.get(vdev.0 as usize).and_then(Option::as_ref);
        top.ok_or_else(|| Error::corrupt(format!("no space is known on top-level vdev {vdev}")))
    }

    fn ms(&mut self, vdev: VdevId, ms: u64) -> &mut Metaslab {
        let top = self.tops[vdev.0 as usize].as_mut().expect("metaslabs are named by the allocator");
        &mut top.metaslabs[ms as usize]
    }

    /// The metaslab that contains `dva`; `Corrupt` if none contains it whole.
    fn locate(&self, dva: Dva) -> Result<(VdevId, u64)> {
        let (vdev, start, size) = (dva.vdev(), dva.offset(), dva.asize());
        let top = self.state(vdev)?;
        let ms = start >> top.ms_shift;
        let run = top.metaslabs.get(ms as usize).map(|m| m.run);
        let unit = (1u64 << top.top.ashift) - 1;
        match run {
            Some(run) if size > 0 && (start | size) & unit == 0 && start >= run.start && start + size <= run.end() => {
                Ok((vdev, ms))
            }
            _ => Err(Error::corrupt(format!("{dva} is not whole units within one metaslab"))),
        }
    }

    /// Applies `change` to a metaslab and updates the group's totals and weights.
    fn change<T>(&mut self, vdev: VdevId, ms: u64, change: impl FnOnce(&mut Metaslab) -> T) -> T {
        let m = self.ms(vdev, ms);
        let (weight, frag, committed) = (m.weight, m.fragmentation, m.committed);
        let out = change(m);
        let (group, new_weight, new_frag, new_committed) = (m.group, m.weight, m.fragmentation, m.committed);
        let g = &mut self.groups[group];
        if weight != new_weight {
            g.by_weight.remove(&(Reverse(weight), ms));
            g.by_weight.insert((Reverse(new_weight), ms));
        }
        if let Some(f) = frag {
            g.known = (g.known.0 - 1, g.known.1 - u64::from(f));
        }
        if let Some(f) = new_frag {
            g.known = (g.known.0 + 1, g.known.1 + u64::from(f));
        }
        g.alloc = g.alloc - committed.0 + new_committed.0;
        g.deferred = g.deferred - committed.1 + new_committed.1;
        out
    }

    /// Marks a metaslab as changed in `txg`.
    fn mark_dirty(&mut self, vdev: VdevId, ms: u64, txg: Txg) {
        if self.ms(vdev, ms).mark_dirty(txg) {
            self.dirty[txg.slot()].insert((vdev, ms));
            self.pending.insert((vdev, ms));
        }
    }
}

/// Segments that one piece of the end of a txg returns: some 20 us of work (`rt::cost::METASLAB`
/// covers it).
const SYNC_DONE_RUNS: usize = 128;

impl Allocator {
    /// An allocator without any space, over the space maps in `store`.
    pub fn new(store: Rc<dyn SpaceMapStore>, tunables: AllocTunables) -> Rc<Allocator> {
        Rc::new(Allocator {
            store,
            inner: RefCell::new(Inner {
                tunables,
                tops: Vec::new(),
                groups: Vec::new(),
                classes: Default::default(),
                dirty: Default::default(),
                pending: BTreeSet::new(),
                loaded: BTreeSet::new(),
                checkpoint: None,
                held_back: Vec::new(),
                disabled: BTreeSet::new(),
                enabled: Rc::new(Notify::new()),
                autotrim: false,
                frozen: None,
                trims: BTreeSet::new(),
            }),
        })
    }

    /// How many metaslabs new vdevs have.
    pub fn counts(&self) -> MetaslabCounts {
        self.inner.borrow().tunables.counts
    }

    /// Changes the tunables, which take effect from the next decision on.
    pub fn set_tunables(&self, tunables: &AllocTunables) {
        self.inner.borrow_mut().tunables.clone_from(tunables);
    }

    /// Allocates one segment for `psize` bytes of a block of `txg`. `avoid` are the places of its
    /// other copies: this one goes to another vdev or far away if possible. A class without vdevs
    /// or space falls back to the next one. `NoSpace` if no class has room. `psize` is not 0. Does
    /// not wait if the metaslab is loaded, which is the normal case.
    pub async fn alloc(&self, class: ClassKind, psize: u64, txg: Txg, avoid: &[Dva]) -> Result<Dva> {
        loop {
            let found = self.inner.borrow_mut().search(class, psize, txg, avoid);
            match found {
                Found::At(dva) => return Ok(dva),
                // A metaslab that fails to load is skipped from now on.
                Found::Load(vdev, ms) => drop(self.load(vdev, ms).await),
                Found::Nothing => match self.wait_for_enable() {
                    Some(over) => over.notified().await,
                    None => return Err(self.no_space(class, psize)),
                },
            }
        }
    }

    /// As [`Allocator::alloc`], but `None` instead of waiting for a metaslab to be loaded.
    pub fn try_alloc(&self, class: ClassKind, psize: u64, txg: Txg, avoid: &[Dva]) -> Result<Option<Dva>> {
        let found = self.inner.borrow_mut().search(class, psize, txg, avoid);
        match found {
            Found::At(dva) => Ok(Some(dva)),
            Found::Load(..) => Ok(None),
            Found::Nothing if self.wait_for_enable().is_some() => Ok(None),
            Found::Nothing => Err(self.no_space(class, psize)),
        }
    }

    fn no_space(&self, class: ClassKind, psize: u64) -> Error {
        let inner = self.inner.borrow();
        let all = inner.tops.iter().flatten().flat_map(|t| &t.metaslabs);
        let broken: Vec<&Error> = all.filter_map(|m| m.broken.as_ref()).collect();
        let mut message = format!("no free segment of {psize} bytes in class {class:?}");
        if let Some(e) = broken.first() {
            message += &format!(" ({} metaslabs could not be loaded, the first: {e})", broken.len());
        }
        Error::new(ErrorKind::NoSpace, message)
    }

    /// The class of the metaslab that holds `dva`. `Corrupt` if there is none.
    pub fn class_of(&self, dva: Dva) -> Result<ClassKind> {
        let mut inner = self.inner.borrow_mut();
        let (vdev, ms) = inner.locate(dva)?;
        let group = inner.ms(vdev, ms).group;
        Ok(inner.groups[group].class)
    }

    /// Undoes an allocation of `txg` whose changes were not taken and that was never written: its
    /// write failed to allocate other parts.
    pub fn unalloc(&self, dva: Dva, txg: Txg) -> Result<()> {
        let mut inner = self.inner.borrow_mut();
        let (vdev, ms) = inner.locate(dva)?;
        inner.ms(vdev, ms).unalloc(dva.offset(), dva.asize(), txg).at(|| dva)
    }

    /// Frees in `txg` a block that was born in `birth`; for the DVA of a gang header the caller
    /// passes the asize of the header alone. The metaslab need not be loaded. `Corrupt` if the
    /// range is outside every metaslab, or known to be free.
    ///
    /// The space becomes allocatable when `txg` + 2 is committed; for a block born in `txg`, when
    /// `txg` is. Blocks of a checkpoint stay allocated ([`Allocator::take_held_back`]); birth 0
    /// never belongs to a checkpoint.
    ///
    /// In txgs after that of [`Allocator::freeze`] nothing is freed.
    pub fn free(&self, dva: Dva, birth: Txg, txg: Txg) -> Result<()> {
        let mut inner = self.inner.borrow_mut();
        let (vdev, ms) = inner.locate(dva)?;
        if inner.frozen.is_some_and(|last| txg > last) {
            return Ok(());
        }
        if birth.0 != 0 && inner.checkpoint.is_some_and(|c| birth <= c) {
            inner.ms(vdev, ms).check_held(dva.offset(), dva.asize()).at(|| dva)?;
            inner.held_back.push((vdev, Run { start: dva.offset(), size: dva.asize() }));
            return Ok(());
        }
        inner.pending.insert((vdev, ms));
        inner.ms(vdev, ms).free(dva.offset(), dva.asize(), birth, txg).at(|| dva)?;
        inner.mark_dirty(vdev, ms, txg);
        Ok(())
    }

    /// The state on disk stays that of txg `last`, and the intent logs': what they refer to, and
    /// what was written since, stays allocated.
    pub fn freeze(&self, last: Txg) {
        self.inner.borrow_mut().frozen = Some(last);
    }

    /// From now on freed blocks born up to this txg, which the checkpoint refers to, stay
    /// allocated.
    pub fn set_checkpoint(&self, txg: Option<Txg>) {
        self.inner.borrow_mut().checkpoint = txg;
    }

    /// Whether ranges were held back since the last [`Allocator::take_held_back`].
    pub fn has_held_back(&self) -> bool {
        !self.inner.borrow().held_back.is_empty()
    }

    /// Ranges freed since the last call that stay allocated for the checkpoint: by vdev, ascending,
    /// within metaslabs.
    pub fn take_held_back(&self) -> BTreeMap<VdevId, Vec<Run>> {
        let mut all = std::mem::take(&mut self.inner.borrow_mut().held_back);
        all.sort_unstable();
        let mut out: BTreeMap<VdevId, Vec<Run>> = BTreeMap::new();
        for (vdev, run) in all {
            out.entry(vdev).or_default().push(run);
        }
        out
    }

    /// Marks free space as allocated in `txg`: blocks of an intent log to be replayed, which space
    /// maps do not include. The load error of the metaslab, or `Corrupt` if the space is not free.
    pub async fn claim(&self, dva: Dva, txg: Txg) -> Result<()> {
        let (vdev, ms) = self.inner.borrow().locate(dva)?;
        self.load(vdev, ms).await?;
        let mut inner = self.inner.borrow_mut();
        inner.ms(vdev, ms).claim(dva.offset(), dva.asize(), txg).at(|| dva)?;
        inner.mark_dirty(vdev, ms, txg);
        Ok(())
    }

    /// Whether all of a place is free. Space of removed vdevs is not known and counts as taken. The
    /// load error of the metaslab, or `Corrupt` if it is no place.
    pub async fn is_free(&self, dva: Dva) -> Result<bool> {
        if self.inner.borrow().state(dva.vdev()).is_err() {
            return Ok(false);
        }
        let (vdev, ms) = self.inner.borrow().locate(dva)?;
        self.load(vdev, ms).await?;
        let mut inner = self.inner.borrow_mut();
        Ok(inner.ms(vdev, ms).loaded().is_some_and(|l| l.free.contains(dva.offset(), dva.asize())))
    }

    /// The metaslabs with untaken changes of `txg`, ascending.
    pub fn dirty_metaslabs(&self, txg: Txg) -> Vec<(VdevId, u64)> {
        let inner = self.inner.borrow();
        let changed = |&(vdev, ms): &(VdevId, u64)| {
            let top = inner.tops[vdev.0 as usize].as_ref();
            top.is_some_and(|t| t.metaslabs[ms as usize].has_changes(txg))
        };
        inner.dirty[txg.slot()].iter().copied().filter(changed).collect()
    }

    /// The changes of one metaslab in `txg` since the last call, for the caller to write. Only one
    /// txg syncs at a time.
    pub fn take_changes(&self, vdev: VdevId, ms: u64, txg: Txg) -> MsChanges {
        let mut inner = self.inner.borrow_mut();
        inner.dirty[txg.slot()].remove(&(vdev, ms));
        inner.pending.insert((vdev, ms));
        let inner = &mut *inner;
        let top = inner.tops[vdev.0 as usize].as_mut().expect("metaslabs are named by the allocator");
        top.metaslabs[ms as usize].take_changes(txg, &inner.tunables)
    }

    /// Sets the space map object of a metaslab.
    pub fn set_object(&self, vdev: VdevId, ms: u64, object: ObjectId) {
        self.inner.borrow_mut().ms(vdev, ms).object = Some(object);
    }

    /// Sets the length of a metaslab's space map, in bytes of entries.
    pub fn set_length(&self, vdev: VdevId, ms: u64, length: u64) {
        self.inner.borrow_mut().ms(vdev, ms).length = length;
    }

    /// `txg` is committed: its uberblock is on disk. Called for every txg, in order, after all
    /// changes of [`Allocator::dirty_metaslabs`] were taken.
    pub fn sync_done(&self, txg: Txg) {
        let mut at = None;
        while self.sync_done_next(txg, &mut at) {}
        self.sync_done_end(txg);
    }

    /// A piece of the first part of [`Allocator::sync_done`], for the next metaslab after `done`
    /// with pending changes: at most [`SYNC_DONE_RUNS`] segments become free. `done` becomes the
    /// metaslab when it is complete; false after the last. For callers that yield between pieces.
    pub fn sync_done_next(&self, txg: Txg, done: &mut Option<(VdevId, u64)>) -> bool {
        let mut inner = self.inner.borrow_mut();
        let next = match *done {
            None => inner.pending.first().copied(),
            Some(at) => inner.pending.range((Excluded(at), Unbounded)).next().copied(),
        };
        let Some((vdev, ms)) = next else { return false };
        let trim = inner.autotrim;
        if let Ended::Whole { pending } = inner.change(vdev, ms, |m| m.sync_done_part(txg, SYNC_DONE_RUNS, trim)) {
            *done = next;
            if trim && inner.ms(vdev, ms).has_trim() {
                inner.trims.insert((vdev, ms));
            }
            if !pending {
                inner.pending.remove(&(vdev, ms));
            }
        }
        true
    }

    /// The second part of [`Allocator::sync_done`], after the first for every metaslab.
    pub fn sync_done_end(&self, txg: Txg) {
        let mut inner = self.inner.borrow_mut();
        inner.dirty[txg.slot()].clear();
        // An active metaslab whose large segments are used up is deactivated.
        let threshold = inner.tunables.switch_threshold;
        for g in 0..inner.groups.len() {
            for copy in 0..3 {
                let Some((ms, then)) = inner.groups[g].active[copy] else { continue };
                let vdev = inner.groups[g].vdev;
                let now = inner.ms(vdev, ms).weight;
                let worn = match (then.index(), now.index()) {
                    (Some(then), Some(now)) => now + threshold <= then,
                    _ => now == Weight(0),
                };
                if worn {
                    inner.groups[g].active[copy] = None;
                }
            }
        }
        inner.unload_idle(txg);
    }
}

const _: () = assert!(BUCKETS == ondisk::space_map::HISTOGRAM_BUCKETS);
