//! Classes, groups and the choice of a metaslab; the interface to the layers above.

use std::cell::RefCell;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound::{Excluded, Unbounded};
use std::rc::Rc;

use base::{Error, ErrorKind, ObjectId, Result, ResultExt, TXG_SIZE, Txg, VdevId};
use ondisk::blkptr::Dva;
use rt::Rt;
use rt::sync::Notify;
use vdev::Top;

use crate::metaslab::{Metaslab, MsChanges, State};
use crate::range_tree::{BUCKETS, RangeTree, Run};
use crate::store::{LoadedMap, SpaceMapStore};
use crate::tunables::AllocTunables;
use crate::weight::Weight;

/// The purpose of space.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum ClassKind {
    /// Data and metadata.
    Normal,
    /// The intent log, on log devices.
    Log,
    /// The intent log, on the metaslab that a large normal vdev sets aside for it (format page 14
    /// section 1).
    EmbeddedLog,
    /// Metadata and small blocks, on special devices.
    Special,
    /// Deduplication tables, on dedup devices.
    Dedup,
}

const CLASSES: usize = 5;

impl ClassKind {
    /// Where blocks of the class go, first choice first (format page 06 section 5).
    fn choices(self) -> &'static [ClassKind] {
        use ClassKind::*;
        match self {
            Normal => &[Normal],
            Log | EmbeddedLog => &[Log, EmbeddedLog, Normal],
            Special => &[Special, Normal],
            Dedup => &[Dedup, Special, Normal],
        }
    }
}

/// Summary of a metaslab that is not loaded: its entry in the metaslab array and the header of its
/// space map.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct MsSummary {
    /// Its space map object; `None` if it was never used.
    pub object: Option<ObjectId>,
    /// `smp_alloc`.
    pub alloc: i64,
    /// Its histogram, if the map has the long header.
    pub histogram: Option<[u64; 32]>,
    /// Bytes of entries.
    pub length: u64,
}

/// Space figures of a class, as of the last commit. The `_raw` ones are bytes of the vdevs, the
/// others are deflated, as charged to datasets.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct ClassSpace {
    /// All metaslabs, deflated.
    pub total: u64,
    /// Allocated, deferred frees included, deflated.
    pub alloc: u64,
    /// Freed less than two txgs ago, deflated.
    pub deferred: u64,
    /// All metaslabs.
    pub total_raw: u64,
    /// Allocated, deferred frees included.
    pub alloc_raw: u64,
    /// Freed less than two txgs ago.
    pub deferred_raw: u64,
    /// About the largest free segment: no larger than it, more than half of it.
    pub largest_free: u64,
    /// In percent; `None` if too little is known.
    pub fragmentation: Option<u8>,
}

/// Space figures of a top-level vdev as of the last commit, in bytes of the vdev, the metaslab set
/// aside for the intent log included.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TopSpace {
    /// The vdev.
    pub vdev: VdevId,
    /// Its class.
    pub class: ClassKind,
    /// Bytes in its metaslabs.
    pub total: u64,
    /// Allocated, deferred frees included.
    pub alloc: u64,
    /// Freed less than two txgs ago.
    pub deferred: u64,
    /// In percent; `None` if too little is known.
    pub fragmentation: Option<u8>,
}

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
    /// Metaslabs with changes to take, by txg slot.
    dirty: [BTreeSet<(VdevId, u64)>; TXG_SIZE],
    pending: BTreeSet<(VdevId, u64)>,
    loaded: BTreeSet<(VdevId, u64)>,
    /// Blocks born until then are held back when they are freed.
    checkpoint: Option<Txg>,
    held_back: Vec<(VdevId, Run)>,
    /// Metaslabs that are set aside; `enabled` wakes the waiters for one of them.
    disabled: BTreeSet<(VdevId, u64)>,
    enabled: Rc<Notify>,
}

struct TopState {
    top: Rc<Top>,
    class: ClassKind,
    ms_shift: u8,
    metaslabs: Vec<Metaslab>,
}

/// The metaslabs that one vdev gives to one class.
struct Group {
    vdev: VdevId,
    class: ClassKind,
    top: Rc<Top>,
    total: u64,
    alloc: u64,
    deferred: u64,
    by_weight: BTreeSet<(Reverse<Weight>, u64)>,
    /// The metaslab in use for the first, second and third copy, and its weight when it was chosen.
    active: [Option<(u64, Weight)>; 3],
    /// Metaslabs whose fragmentation is known, and the sum of it.
    known: (u64, u64),
}

#[derive(Default)]
struct Class {
    groups: Vec<usize>,
    rotor: usize,
    /// Allocated from the group at the rotor since it came there.
    used: u64,
}

enum Found {
    At(Dva),
    Load(VdevId, u64),
    Nothing,
}

/// How strict a search is. Copies of a block are kept apart, to survive local damage.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Tier {
    /// At least an eighth of the vdev away from other copies, in no metaslab that is in use for
    /// them.
    Far,
    /// In another metaslab than other copies.
    Apart,
    /// Anywhere, and without a limit on the search.
    Any,
}

impl Group {
    fn fragmentation(&self) -> Option<u8> {
        let count = self.by_weight.len() as u64;
        let (known, sum) = self.known;
        (known > 0 && known * 2 > count).then(|| (sum / known) as u8)
    }
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

    /// The metaslab that holds `dva`, all of it.
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

    /// Notes that a metaslab has changes of `txg`.
    fn mark_dirty(&mut self, vdev: VdevId, ms: u64, txg: Txg) {
        if self.ms(vdev, ms).mark_dirty(txg) {
            self.dirty[txg.slot()].insert((vdev, ms));
            self.pending.insert((vdev, ms));
        }
    }

    fn search(&mut self, class: ClassKind, psize: u64, txg: Txg, avoid: &[Dva], hint: Option<Dva>) -> Found {
        assert!(psize > 0, "an allocation of nothing was asked for");
        for &choice in class.choices() {
            let count = self.classes[choice as usize].groups.len();
            for tier in [Tier::Far, Tier::Apart, Tier::Any] {
                let first = self.first_group(choice, avoid, hint);
                for i in 0..count {
                    let at = (first + i) % count;
                    let group = self.classes[choice as usize].groups[at];
                    // A pool does without its log devices; it may be opened without one, and get it
                    // back later.
                    let top = &self.groups[group].top;
                    if top.is_log && !top.is_usable() {
                        continue;
                    }
                    if tier == Tier::Far && count > 1 && self.too_fragmented(choice, group) {
                        continue;
                    }
                    match self.alloc_in_group(group, psize, txg, avoid, tier) {
                        Found::Nothing => {}
                        Found::At(dva) => {
                            self.advance_rotor(choice, at, dva.asize(), avoid.is_empty());
                            return Found::At(dva);
                        }
                        load => return load,
                    }
                }
            }
        }
        Found::Nothing
    }

    /// The place in the class where the search begins: copies go to the group after that of the
    /// last copy.
    fn first_group(&self, class: ClassKind, avoid: &[Dva], hint: Option<Dva>) -> usize {
        let c = &self.classes[class as usize];
        let place = |dva: Dva| c.groups.iter().position(|&g| self.groups[g].vdev == dva.vdev());
        match (avoid.last(), hint) {
            (Some(&last), _) => place(last).map_or(c.rotor, |p| p + 1),
            (None, Some(hint)) => place(hint).unwrap_or(c.rotor),
            (None, None) => c.rotor,
        }
    }

    fn too_fragmented(&self, class: ClassKind, group: usize) -> bool {
        let limit = self.tunables.mg_fragmentation_threshold;
        let over = |g: usize| self.groups[g].fragmentation().is_some_and(|f| f > limit);
        over(group) && !self.classes[class as usize].groups.iter().all(|&g| over(g))
    }

    /// Accounts for `asize` bytes from the group at `at` and moves the rotor on when it had its
    /// share.
    fn advance_rotor(&mut self, class: ClassKind, at: usize, asize: u64, counts: bool) {
        let rotates = matches!(class, ClassKind::Log | ClassKind::EmbeddedLog);
        let (mut total, mut free) = (0u128, 0u128);
        let c = &self.classes[class as usize];
        if c.groups.len() < 2 || !counts {
            return;
        }
        for &g in &c.groups {
            total += u128::from(self.groups[g].total);
            free += u128::from(self.groups[g].total - self.groups[g].alloc.min(self.groups[g].total));
        }
        let g = &self.groups[c.groups[at]];
        let own = u128::from(g.total - g.alloc.min(g.total));
        let plain = u128::from(self.tunables.aliquot);
        // Emptier than the average of the class: a larger share, so that vdevs fill up together.
        let share = if free == 0 || g.total == 0 { plain } else { plain * own * total / (free * u128::from(g.total)) };
        let share = share.clamp(plain / 4, plain * 4) as u64;
        let (count, c) = (c.groups.len(), &mut self.classes[class as usize]);
        if c.rotor != at {
            (c.rotor, c.used) = (at, 0);
        }
        c.used += asize;
        if rotates || c.used >= share {
            (c.rotor, c.used) = ((at + 1) % count, 0);
        }
    }

    fn alloc_in_group(&mut self, group: usize, psize: u64, txg: Txg, avoid: &[Dva], tier: Tier) -> Found {
        let copy = avoid.len().min(2);
        let g = &self.groups[group];
        let (vdev, asize) = (g.vdev, g.top.asize_of(psize));
        let distance = g.top.asize.get() >> 3;
        if let Some((ms, _)) = g.active[copy]
            && self.is_far_enough(vdev, ms, avoid, tier, distance)
            && let Some(dva) = self.alloc_in_metaslab(vdev, ms, asize, txg)
        {
            return Found::At(dva);
        }
        let (mut tries, mut after) = (0, None);
        loop {
            let g = &self.groups[group];
            let next = match after {
                None => g.by_weight.first(),
                Some(key) => g.by_weight.range((Excluded(key), Unbounded)).next(),
            };
            let Some(&(weight, ms)) = next else { return Found::Nothing };
            after = Some((weight, ms));
            if weight.0 == Weight(0) && tier != Tier::Any {
                return Found::Nothing;
            }
            tries += 1;
            if tier != Tier::Any && tries > self.tunables.find_max_tries {
                return Found::Nothing;
            }
            let in_use = g.active.iter().enumerate().any(|(i, a)| i != copy && a.is_some_and(|(m, _)| m == ms));
            if tier == Tier::Far && in_use || !self.is_far_enough(vdev, ms, avoid, tier, distance) {
                continue;
            }
            let m = self.ms(vdev, ms);
            // Weights are estimates: histograms on disk count touching segments apart, and do not
            // include later frees. Check the metaslab itself before "no space".
            let may_fit = if tier == Tier::Any { m.largest_allocatable() >= asize } else { weight.0.may_fit(asize) };
            if m.broken.is_some() || m.disabled > 0 || !may_fit {
                continue;
            }
            if !m.is_loaded() {
                if m.object.is_some() || matches!(m.state, State::Loading(_)) {
                    return Found::Load(vdev, ms);
                }
                // Never used: nothing to read.
                self.finish_load(vdev, ms, Ok(None)).expect("an untouched metaslab is free");
            }
            if let Some(dva) = self.alloc_in_metaslab(vdev, ms, asize, txg) {
                let weight = self.ms(vdev, ms).weight;
                let old = self.groups[group].active[copy].replace((ms, weight));
                if let Some((old, _)) = old {
                    self.change(vdev, old, Metaslab::reweigh);
                }
                return Found::At(dva);
            }
            // Its weight was too high, for instance because of allocations since it was computed.
            self.change(vdev, ms, Metaslab::reweigh);
        }
    }

    fn alloc_in_metaslab(&mut self, vdev: VdevId, ms: u64, asize: u64, txg: Txg) -> Option<Dva> {
        let top = self.tops[vdev.0 as usize].as_mut().expect("metaslabs are named by the allocator");
        let start = top.metaslabs[ms as usize].allocate(asize, txg, &self.tunables)?;
        self.mark_dirty(vdev, ms, txg);
        Some(Dva::new(vdev, start, asize, false))
    }

    fn is_far_enough(&self, vdev: VdevId, ms: u64, avoid: &[Dva], tier: Tier, distance: u64) -> bool {
        let Some(top) = self.tops[vdev.0 as usize].as_ref() else { return false };
        let start = ms << top.ms_shift;
        let apart = |dva: &Dva| {
            let other = dva.offset() >> top.ms_shift;
            match tier {
                Tier::Far => other != ms && start.abs_diff(other << top.ms_shift) >= distance,
                Tier::Apart => other != ms,
                Tier::Any => true,
            }
        };
        avoid.iter().filter(|d| d.vdev() == vdev).all(apart)
    }

    fn finish_load(&mut self, vdev: VdevId, ms: u64, map: Result<Option<LoadedMap>>) -> Result<()> {
        let r = self.change(vdev, ms, |m| m.finish_load(map)).at(|| format!("metaslab {ms} of top-level vdev {vdev}"));
        if r.is_ok() {
            self.loaded.insert((vdev, ms));
        }
        r
    }

    fn is_active(&self, vdev: VdevId, ms: u64) -> bool {
        self.groups.iter().any(|g| g.vdev == vdev && g.active.iter().flatten().any(|&(m, _)| m == ms))
    }

    fn memory(&self) -> usize {
        let one = |&(vdev, ms): &(VdevId, u64)| {
            let top = self.tops[vdev.0 as usize].as_ref();
            top.and_then(|t| t.metaslabs[ms as usize].loaded()).map_or(0, |l| l.free.footprint())
        };
        self.loaded.iter().map(one).sum()
    }

    /// Unloads metaslabs that have long been idle; while memory is short all idle ones, the longest
    /// idle first.
    fn unload_idle(&mut self, txg: Txg) {
        let (limit, delay) = (self.tunables.memory_limit, self.tunables.unload_delay);
        let mut memory = self.memory();
        let mut idle: Vec<(Txg, VdevId, u64)> = Vec::new();
        for (vdev, ms) in self.loaded.clone() {
            let active = self.is_active(vdev, ms);
            let m = self.ms(vdev, ms);
            if !active && !m.has_pending() {
                idle.push((m.used, vdev, ms));
            }
        }
        idle.sort();
        for (used, vdev, ms) in idle {
            if used.0 + delay >= txg.0 && memory <= limit {
                continue;
            }
            let freed = self.ms(vdev, ms).loaded().map_or(0, |l| l.free.footprint());
            if self.change(vdev, ms, Metaslab::unload) {
                self.loaded.remove(&(vdev, ms));
                memory = memory.saturating_sub(freed);
            }
        }
    }
}

impl Allocator {
    /// An allocator without any space, over the space maps in `store`.
    pub fn new(_rt: Rt, store: Rc<dyn SpaceMapStore>, tunables: AllocTunables) -> Rc<Allocator> {
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
            }),
        })
    }

    /// Changes the settings; they hold from the next decision on.
    pub fn set_tunables(&self, tunables: &AllocTunables) {
        self.inner.borrow_mut().tunables.clone_from(tunables);
    }

    /// Adds the metaslabs of `top` (its `ms_shift` is set), `summaries` one for each in order, to
    /// `class`. A normal vdev with many metaslabs sets the one with the least allocated aside for
    /// the intent log. All of this may come from disk: impossible values are `Corrupt`.
    pub fn add_top(&self, top: Rc<Top>, class: ClassKind, summaries: Vec<MsSummary>) -> Result<()> {
        let (vdev, shift) = (top.id, top.ms_shift.get());
        let bad = |what: String| Err(Error::corrupt(format!("top-level vdev {vdev}: {what}")));
        if !(9..=62).contains(&shift) || shift < top.ashift || !RangeTree::can_cover(1 << shift, top.ashift) {
            return bad(format!("metaslabs of 2^{shift} bytes in units of 2^{}", top.ashift));
        }
        if top.ms_count() == 0 || summaries.len() as u64 != top.ms_count() {
            return bad(format!("{} metaslabs are described, it has {}", summaries.len(), top.ms_count()));
        }
        let size = 1u64 << shift;
        for (i, s) in summaries.iter().enumerate() {
            let fits = u64::try_from(s.alloc).is_ok_and(|a| a <= size && a.is_multiple_of(1 << top.ashift));
            if !fits || s.object.is_none() && s.alloc != 0 {
                return bad(format!("metaslab {i} has {} of {size} bytes allocated", s.alloc));
            }
        }
        let mut inner = self.inner.borrow_mut();
        let at = vdev.0 as usize;
        if inner.tops.len() <= at {
            inner.tops.resize_with(at + 1, || None);
        }
        assert!(inner.tops[at].is_none(), "top-level vdev {vdev} was added before");
        let embedded = (class == ClassKind::Normal && summaries.len() as u64 > inner.tunables.embedded_slog_min_ms)
            .then(|| summaries.iter().enumerate().min_by_key(|(_, s)| s.alloc).map(|(i, _)| i))
            .flatten();
        let mut state = TopState { top: top.clone(), class, ms_shift: shift, metaslabs: Vec::new() };
        let main = inner.groups.len();
        let mut groups = vec![Group::new(class, &top)];
        if embedded.is_some() {
            groups.push(Group::new(ClassKind::EmbeddedLog, &top));
        }
        for (i, s) in summaries.into_iter().enumerate() {
            let own = usize::from(embedded == Some(i));
            let (start, size) = top.ms_range(i as u64);
            let run = Run { start, size };
            let ms = Metaslab::new(run, top.ashift, s.object, s.length, s.alloc as u64, s.histogram, main + own);
            let g = &mut groups[own];
            g.total += size;
            g.alloc += ms.committed.0;
            g.by_weight.insert((Reverse(ms.weight), i as u64));
            if let Some(f) = ms.fragmentation {
                g.known = (g.known.0 + 1, g.known.1 + u64::from(f));
            }
            state.metaslabs.push(ms);
        }
        for g in groups {
            let index = inner.groups.len();
            inner.classes[g.class as usize].groups.push(index);
            inner.groups.push(g);
        }
        inner.tops[at] = Some(state);
        Ok(())
    }

    /// Stops allocation on a vdev that is about to be removed, or allows it again. Frees still
    /// work.
    pub fn set_passive(&self, vdev: VdevId, passive: bool) {
        let mut inner = self.inner.borrow_mut();
        let inner = &mut *inner;
        for (index, g) in inner.groups.iter_mut().enumerate().filter(|(_, g)| g.vdev == vdev) {
            let class = &mut inner.classes[g.class as usize];
            class.groups.retain(|i| *i != index);
            if !passive {
                class.groups.push(index);
                class.groups.sort_unstable();
            }
            (class.rotor, class.used) = (0, 0);
            g.active = [None; 3];
        }
    }

    /// Bytes of a vdev in use: allocated, or freed too few txgs ago.
    pub fn in_use(&self, vdev: VdevId) -> u64 {
        let inner = self.inner.borrow();
        let own = inner.groups.iter().filter(|g| g.vdev == vdev);
        let pending = inner.pending.iter().any(|(v, _)| *v == vdev);
        own.map(|g| g.alloc).sum::<u64>() + u64::from(pending)
    }

    /// The space map objects of a vdev.
    pub fn space_maps(&self, vdev: VdevId) -> Vec<ObjectId> {
        let inner = self.inner.borrow();
        let top = inner.tops.get(vdev.0 as usize).and_then(Option::as_ref);
        top.iter().flat_map(|t| &t.metaslabs).filter_map(|m| m.object).collect()
    }

    /// Drops a vdev on which nothing is in use. Its id may be added again.
    pub fn remove_top(&self, vdev: VdevId) {
        self.set_passive(vdev, true);
        assert_eq!(self.in_use(vdev), 0, "a vdev that is removed has nothing on it");
        let mut inner = self.inner.borrow_mut();
        inner.tops[vdev.0 as usize] = None;
        inner.loaded.retain(|(v, _)| *v != vdev);
        inner.disabled.retain(|(v, _)| *v != vdev);
        // Groups are known by their index: these stay, without space.
        for g in inner.groups.iter_mut().filter(|g| g.vdev == vdev) {
            (g.vdev, g.total, g.known) = (VdevId(u32::MAX), 0, (0, 0));
            g.by_weight.clear();
        }
    }

    /// Stops allocation in a metaslab until [`Allocator::enable`] and returns its free ranges,
    /// which hold no live data. Calls may nest.
    pub async fn disable(&self, vdev: VdevId, ms: u64) -> Result<Vec<Run>> {
        {
            let mut inner = self.inner.borrow_mut();
            inner.ms(vdev, ms).disabled += 1;
            inner.disabled.insert((vdev, ms));
        }
        let loaded = self.load(vdev, ms).await;
        let free = self.inner.borrow_mut().ms(vdev, ms).loaded().map(|l| l.free.iter().collect());
        if loaded.is_err() {
            self.enable(vdev, ms);
        }
        loaded.map(|()| free.unwrap_or_default())
    }

    /// The event to wait for before "no space": the free space may be in a metaslab that is set
    /// aside.
    fn wait_for_enable(&self) -> Option<Rc<Notify>> {
        let inner = self.inner.borrow();
        (!inner.disabled.is_empty()).then(|| inner.enabled.clone())
    }

    /// Undoes [`Allocator::disable`].
    pub fn enable(&self, vdev: VdevId, ms: u64) {
        let mut inner = self.inner.borrow_mut();
        // The vdev may have left the pool meanwhile.
        if inner.tops.get(vdev.0 as usize).is_some_and(Option::is_some) {
            let m = inner.ms(vdev, ms);
            m.disabled = m.disabled.saturating_sub(1);
            if m.disabled > 0 {
                return;
            }
        }
        inner.disabled.remove(&(vdev, ms));
        inner.enabled.notify_all();
    }

    /// The vdev has grown: as many metaslabs more as there are `summaries`, in the class that it
    /// has.
    pub fn grow_top(&self, vdev: VdevId, summaries: Vec<MsSummary>) -> Result<()> {
        let mut inner = self.inner.borrow_mut();
        let inner = &mut *inner;
        let state = inner.tops.get_mut(vdev.0 as usize).and_then(Option::as_mut);
        let state = state.ok_or_else(|| Error::corrupt(format!("no space is known on top-level vdev {vdev}")))?;
        let group = inner.groups.iter().position(|g| g.vdev == vdev && g.class == state.class);
        let group = group.expect("a vdev has a group of its class");
        for s in summaries {
            let i = state.metaslabs.len() as u64;
            let (start, size) = state.top.ms_range(i);
            let run = Run { start, size };
            let ms = Metaslab::new(run, state.top.ashift, s.object, s.length, s.alloc as u64, s.histogram, group);
            let g = &mut inner.groups[group];
            g.total += size;
            g.alloc += ms.committed.0;
            g.by_weight.insert((Reverse(ms.weight), i));
            if let Some(f) = ms.fragmentation {
                g.known = (g.known.0 + 1, g.known.1 + u64::from(f));
            }
            state.metaslabs.push(ms);
        }
        Ok(())
    }

    /// Allocates room for `psize` bytes in one piece for a block of `txg`. `avoid` are the places
    /// of its copies so far: this one will be on another vdev or far away if that is possible.
    /// `hint` is a place whose vdev would be good. Where a class has no vdevs, or no space, the
    /// next fitting class is used. `NoSpace` when nothing fits anywhere. `psize` is not 0. Does not
    /// wait if the metaslab in question is loaded, as it nearly always is.
    pub async fn alloc(&self, class: ClassKind, psize: u64, txg: Txg, avoid: &[Dva], hint: Option<Dva>) -> Result<Dva> {
        loop {
            let found = self.inner.borrow_mut().search(class, psize, txg, avoid, hint);
            match found {
                Found::At(dva) => return Ok(dva),
                // A metaslab that fails to load is passed over from now on.
                Found::Load(vdev, ms) => drop(self.load(vdev, ms).await),
                Found::Nothing => match self.wait_for_enable() {
                    Some(over) => over.notified().await,
                    None => return Err(self.no_space(class, psize)),
                },
            }
        }
    }

    /// As [`Allocator::alloc`], but `None` instead of waiting for a metaslab to be loaded.
    pub fn try_alloc(
        &self,
        class: ClassKind,
        psize: u64,
        txg: Txg,
        avoid: &[Dva],
        hint: Option<Dva>,
    ) -> Result<Option<Dva>> {
        let found = self.inner.borrow_mut().search(class, psize, txg, avoid, hint);
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

    /// Makes sure that a metaslab is loaded. A metaslab that cannot be loaded stays unloaded for
    /// good, and so do its errors.
    pub async fn load(&self, vdev: VdevId, ms: u64) -> Result<()> {
        loop {
            let waits = {
                let mut inner = self.inner.borrow_mut();
                let m = inner.ms(vdev, ms);
                if let Some(e) = &m.broken {
                    return Err(e.clone());
                }
                match &m.state {
                    State::Loaded(_) => return Ok(()),
                    State::Loading(n) => Some(n.clone()),
                    State::Unloaded if m.object.is_none() => return inner.finish_load(vdev, ms, Ok(None)),
                    State::Unloaded => {
                        m.state = State::Loading(Rc::new(Notify::new()));
                        None
                    }
                }
            };
            if let Some(n) = waits {
                n.notified().await;
                continue;
            }
            let guard = LoadGuard { allocator: self, vdev, ms };
            let map = self.store.load(vdev, ms).await;
            return guard.finish(map);
        }
    }

    /// Loads the metaslabs that are likely to be used next, so that allocations need not wait.
    /// Errors are kept with the metaslabs.
    pub async fn preload(&self) {
        let mut wanted = Vec::new();
        {
            let inner = self.inner.borrow();
            for g in inner.groups.iter().filter(|g| g.top.is_usable()) {
                let best = g.by_weight.iter().take(inner.tunables.preload_limit);
                wanted.extend(best.filter(|(w, _)| w.0 != Weight(0)).map(|&(_, ms)| (g.vdev, ms)));
            }
        }
        for (vdev, ms) in wanted {
            drop(self.load(vdev, ms).await);
        }
    }

    /// The class of the metaslab that holds `dva`. `Corrupt` if there is none.
    pub fn class_of(&self, dva: Dva) -> Result<ClassKind> {
        let mut inner = self.inner.borrow_mut();
        let (vdev, ms) = inner.locate(dva)?;
        let group = inner.ms(vdev, ms).group;
        Ok(inner.groups[group].class)
    }

    /// Takes back at once an allocation of `txg` that was not taken since and never written: its
    /// write failed to allocate the rest.
    pub fn unalloc(&self, dva: Dva, txg: Txg) -> Result<()> {
        let mut inner = self.inner.borrow_mut();
        let (vdev, ms) = inner.locate(dva)?;
        inner.ms(vdev, ms).unalloc(dva.offset(), dva.asize(), txg).at(|| dva)
    }

    /// Frees in `txg` a block that was born in `birth`; of a gang header's DVA the caller replaces
    /// the asize by that of 512 bytes. The metaslab need not be loaded. `Corrupt` if the range
    /// cannot be one of ours, or is known to be free.
    ///
    /// The space can be allocated again once `txg` + 2 is committed; if the block was born in `txg`
    /// itself, once that is. Blocks of a checkpoint are held back instead
    /// ([`Allocator::take_held_back`]); a birth of 0 is never of a checkpoint.
    pub fn free(&self, dva: Dva, birth: Txg, txg: Txg) -> Result<()> {
        let mut inner = self.inner.borrow_mut();
        let (vdev, ms) = inner.locate(dva)?;
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

    /// From now on blocks born until this txg, which a checkpoint refers to, stay allocated when
    /// they are freed.
    pub fn set_checkpoint(&self, txg: Option<Txg>) {
        self.inner.borrow_mut().checkpoint = txg;
    }

    /// Whether something was held back since the last [`Allocator::take_held_back`].
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

    /// Marks as allocated in `txg` space that the space map has as free but that is in use: blocks
    /// of an intent log that is to be replayed. The error of a metaslab that cannot be loaded, or
    /// `Corrupt` if the space is not free.
    pub async fn claim(&self, dva: Dva, txg: Txg) -> Result<()> {
        let (vdev, ms) = self.inner.borrow().locate(dva)?;
        self.load(vdev, ms).await?;
        let mut inner = self.inner.borrow_mut();
        inner.ms(vdev, ms).claim(dva.offset(), dva.asize(), txg).at(|| dva)?;
        inner.mark_dirty(vdev, ms, txg);
        Ok(())
    }

    /// The metaslabs with changes of `txg` that were not taken yet, ascending.
    pub fn dirty_metaslabs(&self, txg: Txg) -> Vec<(VdevId, u64)> {
        let inner = self.inner.borrow();
        let changed = |&(vdev, ms): &(VdevId, u64)| {
            let top = inner.tops[vdev.0 as usize].as_ref();
            top.is_some_and(|t| t.metaslabs[ms as usize].has_changes(txg))
        };
        inner.dirty[txg.slot()].iter().copied().filter(changed).collect()
    }

    /// The changes of one metaslab in `txg` since the last call, which the caller now writes. Only
    /// one txg syncs at a time.
    pub fn take_changes(&self, vdev: VdevId, ms: u64, txg: Txg) -> MsChanges {
        let mut inner = self.inner.borrow_mut();
        inner.dirty[txg.slot()].remove(&(vdev, ms));
        inner.pending.insert((vdev, ms));
        let inner = &mut *inner;
        let top = inner.tops[vdev.0 as usize].as_mut().expect("metaslabs are named by the allocator");
        top.metaslabs[ms as usize].take_changes(txg, &inner.tunables)
    }

    /// The space map of a metaslab is `object` from now on.
    pub fn set_object(&self, vdev: VdevId, ms: u64, object: ObjectId) {
        self.inner.borrow_mut().ms(vdev, ms).object = Some(object);
    }

    /// The space map of a metaslab has `length` bytes of entries from now on.
    pub fn set_length(&self, vdev: VdevId, ms: u64, length: u64) {
        self.inner.borrow_mut().ms(vdev, ms).length = length;
    }

    /// `txg` is committed: its uberblock is on disk. Called for every txg, in order, after
    /// everything that [`Allocator::dirty_metaslabs`] names was taken.
    pub fn sync_done(&self, txg: Txg) {
        let mut at = None;
        while let Some(next) = self.sync_done_next(txg, at) {
            at = Some(next);
        }
        self.sync_done_end(txg);
    }

    /// The first part of [`Allocator::sync_done`] for the first metaslab after `after` that has
    /// something pending: gives its name, `None` after the last. For callers that let others run in
    /// between.
    pub fn sync_done_next(&self, txg: Txg, after: Option<(VdevId, u64)>) -> Option<(VdevId, u64)> {
        let mut inner = self.inner.borrow_mut();
        let next = match after {
            None => inner.pending.first().copied(),
            Some(at) => inner.pending.range((Excluded(at), Unbounded)).next().copied(),
        };
        let (vdev, ms) = next?;
        if !inner.change(vdev, ms, |m| m.sync_done(txg)) {
            inner.pending.remove(&(vdev, ms));
        }
        next
    }

    /// The second part of [`Allocator::sync_done`], after the first is over for every metaslab.
    pub fn sync_done_end(&self, txg: Txg) {
        let mut inner = self.inner.borrow_mut();
        inner.dirty[txg.slot()].clear();
        // An active metaslab whose large segments are used up makes room for one that has them.
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

    /// Bytes allocated and bytes in all of a class, as of the last commit; cheap.
    pub fn class_use(&self, class: ClassKind) -> (u64, u64) {
        let inner = self.inner.borrow();
        let groups = inner.groups.iter().filter(|g| g.class == class);
        groups.fold((0, 0), |(alloc, total), g| (alloc + g.alloc, total + g.total))
    }

    /// Figures of a class.
    pub fn space(&self, class: ClassKind) -> ClassSpace {
        let inner = self.inner.borrow();
        let mut out = ClassSpace::default();
        let (mut frag, mut known) = (0u128, true);
        for g in inner.groups.iter().filter(|g| g.class == class) {
            out.total_raw += g.total;
            out.alloc_raw += g.alloc;
            out.deferred_raw += g.deferred;
            out.total += g.top.dsize(g.total);
            out.alloc += g.top.dsize(g.alloc);
            out.deferred += g.top.dsize(g.deferred);
            let best = g.by_weight.first().and_then(|(w, _)| w.0.index());
            out.largest_free = out.largest_free.max(best.map_or(0, |i| 1 << i));
            match g.fragmentation() {
                Some(f) => frag += u128::from(f) * u128::from(g.total),
                None => known = false,
            }
        }
        out.fragmentation = (known && out.total_raw > 0).then(|| (frag / u128::from(out.total_raw)) as u8);
        out
    }

    /// Figures of every top-level vdev, ascending.
    pub fn top_spaces(&self) -> Vec<TopSpace> {
        let inner = self.inner.borrow();
        let mut out: Vec<TopSpace> = Vec::new();
        for top in inner.tops.iter().flatten() {
            let vdev = top.top.id;
            let groups = || inner.groups.iter().filter(|g| g.vdev == vdev);
            out.push(TopSpace {
                vdev,
                class: top.class,
                total: groups().map(|g| g.total).sum(),
                alloc: groups().map(|g| g.alloc).sum(),
                deferred: groups().map(|g| g.deferred).sum(),
                fragmentation: groups().find(|g| g.class == top.class).and_then(Group::fragmentation),
            });
        }
        out
    }

    /// The range of its vdev that a metaslab covers.
    pub fn metaslab_run(&self, vdev: VdevId, ms: u64) -> Run {
        self.inner.borrow_mut().ms(vdev, ms).run
    }

    /// The metaslabs that could not be loaded and why.
    pub fn broken_metaslabs(&self) -> Vec<(VdevId, u64, Error)> {
        let inner = self.inner.borrow();
        let mut out = Vec::new();
        for top in inner.tops.iter().flatten() {
            for (i, m) in top.metaslabs.iter().enumerate() {
                out.extend(m.broken.clone().map(|e| (top.top.id, i as u64, e)));
            }
        }
        out
    }

    /// Metaslabs that are loaded, and the memory that they take in bytes.
    pub fn loaded(&self) -> (usize, usize) {
        let inner = self.inner.borrow();
        (inner.loaded.len(), inner.memory())
    }
}

impl Group {
    fn new(class: ClassKind, top: &Rc<Top>) -> Group {
        Group {
            vdev: top.id,
            class,
            top: top.clone(),
            total: 0,
            alloc: 0,
            deferred: 0,
            by_weight: BTreeSet::new(),
            active: [None; 3],
            known: (0, 0),
        }
    }
}

/// Ends a load: with its result, or, if the loading future is dropped, by letting a waiter try.
struct LoadGuard<'a> {
    allocator: &'a Allocator,
    vdev: VdevId,
    ms: u64,
}

impl LoadGuard<'_> {
    fn finish(self, map: Result<LoadedMap>) -> Result<()> {
        let notify = self.leave();
        let r = self.allocator.inner.borrow_mut().finish_load(self.vdev, self.ms, map.map(Some));
        notify.into_iter().for_each(|n| n.notify_all());
        r
    }

    /// Back to unloaded; returns the waiters.
    fn leave(&self) -> Option<Rc<Notify>> {
        let mut inner = self.allocator.inner.borrow_mut();
        let m = inner.ms(self.vdev, self.ms);
        match std::mem::replace(&mut m.state, State::Unloaded) {
            State::Loading(n) => Some(n),
            other => {
                m.state = other;
                None
            }
        }
    }
}

impl Drop for LoadGuard<'_> {
    fn drop(&mut self) {
        self.leave().into_iter().for_each(|n| n.notify_all());
    }
}

const _: () = assert!(BUCKETS == ondisk::space_map::HISTOGRAM_BUCKETS);
