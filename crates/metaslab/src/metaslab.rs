//! One metaslab: its trees, its allocations, its writes to the space map.

use std::collections::VecDeque;
use std::rc::Rc;

use base::{Error, ObjectId, Result, ResultExt, TXG_DEFER, TXG_SIZE, Txg};
use ondisk::space_map::ONE_WORD_MAX_RUN;
use rt::sync::Notify;

use crate::pick::pick;
use crate::range_tree::{BUCKETS, RangeTree, Run};
use crate::store::LoadedMap;
use crate::tunables::AllocTunables;
use crate::weight::{Weight, fragmentation};

/// The entries that a txg's sync must write to the space map of one metaslab.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MsChanges {
    /// Allocated since the last call, ascending, absolute in the top-level vdev.
    pub allocs: Vec<Run>,
    /// Freed since the last call, ascending, disjoint from `allocs`.
    pub frees: Vec<Run>,
    /// The space map object, if the metaslab has one.
    pub object: Option<ObjectId>,
    /// If set: rewrite the map from scratch with these ALLOC entries *instead of* appending
    /// `allocs` and `frees`, which they include.
    pub condense: Option<Vec<Run>>,
    /// Free segments by size after these changes, bucket b counting `2^(b + ashift)` bytes and
    /// more. Deferred frees count as free, as separate segments even if adjacent to others. Zeros
    /// if the map has no histogram and was not loaded.
    pub histogram: [u64; BUCKETS],
    /// `smp_alloc` after these changes.
    pub alloc_after: i64,
}

pub(crate) enum State {
    Unloaded,
    Loading(Rc<Notify>),
    Loaded(Box<Loaded>),
}

pub(crate) struct Loaded {
    /// Space that can be allocated now.
    pub free: RangeTree,
    /// End of the last allocation, by the lowest set bit of its size: equal sizes stay together.
    cursors: [u64; 64],
}

/// Changes of a metaslab that do not have their final place yet: not committed, or deferred. Exists
/// only while there are any.
struct Pending {
    allocating: [RangeTree; TXG_SIZE],
    freeing: [RangeTree; TXG_SIZE],
    /// As `freeing`, for blocks born in the same txg whose ALLOC was taken already.
    freeing_born: [RangeTree; TXG_SIZE],
    /// Born and freed in the same txg before the ALLOC was taken: the space map gets no entry.
    returning: [RangeTree; TXG_SIZE],
    freed: RangeTree,
    freed_born: RangeTree,
    defer: VecDeque<(Txg, RangeTree)>,
    /// Changes taken while not loaded, which a load may not find in the map: txg, allocations,
    /// frees.
    recent: Vec<(Txg, Vec<Run>, Vec<Run>)>,
    taken_in: Option<Txg>,
    dirty: [bool; TXG_SIZE],
}

impl Pending {
    fn new(like: &RangeTree) -> Box<Pending> {
        let four = || std::array::from_fn(|_| like.empty_like());
        Box::new(Pending {
            allocating: four(),
            freeing: four(),
            freeing_born: four(),
            returning: four(),
            freed: like.empty_like(),
            freed_born: like.empty_like(),
            defer: VecDeque::new(),
            recent: Vec::new(),
            taken_in: None,
            dirty: [false; TXG_SIZE],
        })
    }

    /// Trees of space that is free in the map but not allocatable yet.
    fn freed_trees(&self) -> impl Iterator<Item = &RangeTree> {
        [&self.freed, &self.freed_born].into_iter().chain(self.defer.iter().map(|(_, t)| t))
    }

    fn freeing_trees(&self) -> impl Iterator<Item = &RangeTree> {
        self.freeing.iter().chain(&self.freeing_born)
    }

    fn is_empty(&self) -> bool {
        let four = self.allocating.iter().chain(&self.returning).chain(self.freeing_trees());
        four.chain(self.freed_trees()).all(RangeTree::is_empty) && self.recent.is_empty()
    }

    fn deferred(&self) -> u64 {
        self.defer.iter().map(|(_, t)| t.total()).sum()
    }

    /// A tree of space that is free when `txg` is committed, if there is any.
    fn returned(&mut self, txg: Txg) -> Option<&mut RangeTree> {
        let aged = self.defer.iter_mut().take_while(|(t, _)| t.0 + TXG_DEFER <= txg.0).map(|(_, t)| t);
        let mut trees = [&mut self.returning[txg.slot()], &mut self.freed_born].into_iter().chain(aged);
        trees.find(|t| !t.is_empty())
    }

    /// What is free when `txg` is committed leaves the trees, and what it freed is deferred.
    fn end(&mut self, txg: Txg) {
        self.returning[txg.slot()].take();
        self.freed_born.take();
        while self.defer.front().is_some_and(|(t, _)| t.0 + TXG_DEFER <= txg.0) {
            self.defer.pop_front();
        }
        let freed = self.freed.take();
        if !freed.is_empty() {
            self.defer.push_back((txg, freed));
        }
    }
}

/// How far the end of a txg has come in a metaslab.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Ended {
    /// More space returns.
    Part,
    /// It is complete; whether changes of other txgs are pending, or deferred space.
    Whole { pending: bool },
}

/// The union of two disjoint sets.
fn joined(mut to: RangeTree, from: &RangeTree) -> RangeTree {
    from.iter().for_each(|r| to.add(r.start, r.size).expect("the trees of a metaslab are disjoint"));
    to
}

pub(crate) struct Metaslab {
    /// The range of the vdev that it covers.
    pub run: Run,
    shift: u8,
    pub object: Option<ObjectId>,
    /// Bytes of entries in its map.
    pub length: u64,
    /// Allocated according to its map, including all taken changes.
    alloc: u64,
    /// Free segments according to its map; `None` if unknown.
    histogram: Option<[u64; BUCKETS]>,
    pub state: State,
    /// The load error, if loading failed; it allocates nothing then.
    pub broken: Option<Error>,
    pending: Option<Box<Pending>>,
    /// Allocated (deferred frees included) and deferred as of the last commit.
    pub committed: (u64, u64),
    pub weight: Weight,
    pub fragmentation: Option<u8>,
    /// Txg of its last allocation.
    pub used: Txg,
    /// Index of its group.
    pub group: usize,
    /// Nesting depth of [`crate::Allocator::disable`]: no allocation while it is above 0.
    pub disabled: u32,
    /// What became free since it was last trimmed and is still free; none while no trim is wanted.
    trim: Option<Box<RangeTree>>,
}

impl Metaslab {
    pub fn new(
        run: Run,
        shift: u8,
        object: Option<ObjectId>,
        length: u64,
        alloc: u64,
        histogram: Option<[u64; BUCKETS]>,
        group: usize,
    ) -> Metaslab {
        let mut ms = Metaslab {
            run,
            shift,
            object,
            length,
            alloc,
            histogram,
            state: State::Unloaded,
            broken: None,
            pending: None,
            committed: (alloc, 0),
            weight: Weight(0),
            fragmentation: None,
            used: Txg(0),
            group,
            disabled: 0,
            trim: None,
        };
        if alloc == 0 && object.is_none() {
            // One segment, split if it is larger than the last bucket.
            let mut h = [0; BUCKETS];
            ondisk::space_map::histogram_add(&mut h, run.size, u32::from(shift));
            ms.histogram = Some(h);
        }
        ms.reweigh();
        ms
    }

    fn tree(&self) -> RangeTree {
        RangeTree::new(self.run.start, self.run.size, self.shift)
    }

    fn pending(&mut self) -> &mut Pending {
        if self.pending.is_none() {
            self.pending = Some(Pending::new(&self.tree()));
        }
        self.pending.as_mut().expect("just made")
    }

    pub fn is_loaded(&self) -> bool {
        matches!(self.state, State::Loaded(_))
    }

    pub fn loaded(&self) -> Option<&Loaded> {
        match &self.state {
            State::Loaded(l) => Some(l),
            _ => None,
        }
    }

    /// Upper bound of an allocation.
    pub fn largest_allocatable(&self) -> u64 {
        self.loaded().map_or(self.run.size - self.alloc.min(self.run.size), |l| l.free.largest())
    }

    pub fn has_pending(&self) -> bool {
        self.pending.is_some()
    }

    /// Marks it as changed in `txg`; true if it was not.
    pub fn mark_dirty(&mut self, txg: Txg) -> bool {
        !std::mem::replace(&mut self.pending().dirty[txg.slot()], true)
    }

    pub fn has_changes(&self, txg: Txg) -> bool {
        let slot = txg.slot();
        let has = |p: &Pending| [&p.allocating, &p.freeing, &p.freeing_born].iter().any(|t| !t[slot].is_empty());
        self.pending.as_deref().is_some_and(has)
    }

    /// Recomputes weight and fragmentation.
    pub fn reweigh(&mut self) {
        let in_use = self.pending.is_some();
        let (weight, frag) = match &self.state {
            State::Loaded(l) if l.free.total() == self.run.size => (Weight::empty(self.run.size), Some(0)),
            State::Loaded(l) => {
                let h = l.free.histogram();
                (Weight::from_histogram(&h, self.shift), Some(fragmentation(&h, self.shift)))
            }
            _ if self.alloc == 0 && !in_use => (Weight::empty(self.run.size), Some(0)),
            _ => {
                let frag = self.histogram.map(|h| fragmentation(&h, self.shift));
                let free = self.run.size.saturating_sub(self.alloc);
                let weight = match &self.histogram {
                    _ if free == 0 => Weight(0),
                    Some(h) => Weight::from_histogram(h, self.shift),
                    None => Weight::from_space(free, frag),
                };
                (weight, frag)
            }
        };
        self.weight = if self.broken.is_some() { Weight(0) } else { weight };
        self.fragmentation = frag;
    }

    /// Allocates `asize` bytes in `txg`, if it is loaded and has a segment of that size.
    pub fn allocate(&mut self, asize: u64, txg: Txg, t: &AllocTunables) -> Option<u64> {
        let size = self.run.size;
        if self.disabled > 0 {
            return None;
        }
        let State::Loaded(l) = &mut self.state else { return None };
        let start = pick(&l.free, &mut l.cursors, asize, size, t)?;
        l.free.remove(start, asize).expect("the segment was just found to be free");
        self.used = txg;
        self.keep_from_trim(start, asize);
        self.pending().allocating[txg.slot()].add(start, asize).expect("free space is in no other tree");
        Some(start)
    }

    /// It is in use from now on.
    fn keep_from_trim(&mut self, start: u64, asize: u64) {
        if let Some(trim) = &mut self.trim {
            trim.clear_range(start, asize).expect("it is space of this metaslab");
        }
    }

    /// Takes what is to be trimmed, ascending. The metaslab is disabled until that is done.
    pub fn take_trim(&mut self) -> Vec<Run> {
        let Some(trim) = self.trim.take() else { return Vec::new() };
        let free = self.loaded().map(|l| &l.free);
        let is_free = |r: &Run| free.is_none_or(|f| f.contains(r.start, r.size));
        assert!(trim.iter().all(|r| is_free(&r)), "only free space is trimmed");
        trim.iter().collect()
    }

    /// Whether it has allocations of txgs that were not synced yet.
    pub fn is_allocating(&self) -> bool {
        self.pending.as_ref().is_some_and(|p| p.allocating.iter().any(|t| !t.is_empty()))
    }

    /// Whether there is something to trim.
    pub fn has_trim(&self) -> bool {
        self.trim.as_ref().is_some_and(|t| !t.is_empty())
    }

    /// Undoes an allocation of `txg` that was never written.
    pub fn unalloc(&mut self, start: u64, asize: u64, txg: Txg) -> Result<()> {
        self.pending().allocating[txg.slot()].remove(start, asize).at(|| "undoing an allocation")?;
        let State::Loaded(l) = &mut self.state else { unreachable!("a metaslab with allocations is loaded") };
        l.free.add(start, asize).expect("allocated space is in no other tree");
        Ok(())
    }

    /// Marks free space as allocated in `txg`. The metaslab must be loaded.
    pub fn claim(&mut self, start: u64, asize: u64, txg: Txg) -> Result<()> {
        let State::Loaded(l) = &mut self.state else { unreachable!("claims load the metaslab first") };
        l.free.remove(start, asize).at(|| "claim")?;
        self.used = txg;
        self.keep_from_trim(start, asize);
        self.pending().allocating[txg.slot()].add(start, asize).expect("free space is in no other tree");
        Ok(())
    }

    /// Frees in `txg` a range born in `birth`. A range known to be free already is `Corrupt`.
    pub fn free(&mut self, start: u64, asize: u64, birth: Txg, txg: Txg) -> Result<()> {
        let slot = txg.slot();
        if let State::Loaded(l) = &self.state
            && let Some(r) = l.free.overlap(start, asize)
        {
            return Err(Error::corrupt(format!("free of space of which {r} is free already")));
        }
        if self.object.is_none() && !self.is_loaded() {
            return Err(Error::corrupt("free of space in a metaslab that was never used"));
        }
        let p = self.pending();
        if birth == txg && p.allocating[slot].remove(start, asize).is_ok() {
            return p.returning[slot].add(start, asize).at(|| "free");
        }
        let known = p.freeing_trees().chain(p.freed_trees()).chain(&p.returning);
        if let Some(r) = known.filter_map(|t| t.overlap(start, asize)).next() {
            return Err(Error::corrupt(format!("free of space of which {r} was freed before")));
        }
        if let Some(r) = p.allocating.iter().find_map(|t| t.overlap(start, asize)) {
            return Err(Error::corrupt(format!("free of an older block on space of which {r} was allocated just now")));
        }
        let tree = if birth == txg { &mut p.freeing_born[slot] } else { &mut p.freeing[slot] };
        tree.add(start, asize).at(|| "free")
    }

    /// Checks a freed range that stays allocated for a checkpoint: `Corrupt` if it is known to be
    /// free.
    pub fn check_held(&self, start: u64, asize: u64) -> Result<()> {
        let free = self.loaded().and_then(|l| l.free.overlap(start, asize));
        let freed = self.pending.iter().flat_map(|p| p.freeing_trees().chain(p.freed_trees()));
        match free.or_else(|| freed.filter_map(|t| t.overlap(start, asize)).next()) {
            Some(r) => Err(Error::corrupt(format!("free of space of which {r} is free already"))),
            None => Ok(()),
        }
    }

    /// The space in use according to the map, after all taken changes, ascending; loaded metaslabs
    /// only.
    pub fn allocated_in_map(&self) -> Option<Vec<Run>> {
        let mut free: Vec<Run> = self.loaded()?.free.iter().collect();
        if let Some(p) = &self.pending {
            free.extend(p.freed_trees().chain(&p.returning).chain(&p.allocating).flat_map(RangeTree::iter));
        }
        Some(self.rest(free))
    }

    /// What is in use and was freed in no txg yet, ascending, if it is loaded: without what waits
    /// to return. Allocations that are not committed count.
    pub fn live(&self) -> Option<Vec<Run>> {
        let mut free: Vec<Run> = self.loaded()?.free.iter().collect();
        if let Some(p) = &self.pending {
            free.extend(p.freed_trees().chain(&p.returning).chain(p.freeing_trees()).flat_map(RangeTree::iter));
        }
        Some(self.rest(free))
    }

    /// Bytes of [`Metaslab::live`] without the allocations of txgs that were not synced yet, which
    /// are known without a load.
    pub fn live_bytes(&self) -> u64 {
        let freeing = self.pending.iter().flat_map(|p| p.freeing_trees()).map(RangeTree::total).sum::<u64>();
        self.alloc.saturating_sub(freeing)
    }

    /// Free segments by size, in units of the vdev, as far as they are known.
    pub fn free_histogram(&self) -> [u64; BUCKETS] {
        self.histogram_in_map().or(self.histogram).unwrap_or([0; BUCKETS])
    }

    /// What is left of it without `holes`, which do not overlap.
    fn rest(&self, mut holes: Vec<Run>) -> Vec<Run> {
        // Each tree is in order: the sort merges them.
        holes.sort_by_key(|r| r.start);
        let mut used = Vec::new();
        let mut at = self.run.start;
        for r in holes.into_iter().chain([Run { start: self.run.end(), size: 0 }]) {
            assert!(at <= r.start, "the trees of a metaslab are disjoint");
            if at < r.start {
                used.push(Run { start: at, size: r.start - at });
            }
            at = r.end();
        }
        used
    }

    /// The histogram of the free space of the map, with each tree's segments counted separately.
    fn histogram_in_map(&self) -> Option<[u64; BUCKETS]> {
        let mut sum = self.loaded()?.free.histogram();
        if let Some(p) = &self.pending {
            for t in p.freed_trees().chain(&p.returning).chain(&p.allocating).filter(|t| !t.is_empty()) {
                sum.iter_mut().zip(t.histogram()).for_each(|(a, b)| *a += b);
            }
        }
        Some(sum)
    }

    /// Bytes of a condensed map (only the allocated ranges), if loaded.
    fn optimal_length(&self) -> Option<u64> {
        let free = &self.loaded()?.free;
        let segments = free.len() as u64 + 1;
        let long = (self.run.size >> self.shift) / ONE_WORD_MAX_RUN;
        Some(8 * (1 + segments + long))
    }

    /// The changes of `txg` since the last call.
    pub fn take_changes(&mut self, txg: Txg, t: &AllocTunables) -> MsChanges {
        let slot = txg.slot();
        let loaded = self.is_loaded();
        let p = self.pending();
        p.dirty[slot] = false;
        let first = p.taken_in.replace(txg) != Some(txg);
        let allocs: Vec<Run> = p.allocating[slot].take().iter().collect();
        let (freeing, born) = (p.freeing[slot].take(), p.freeing_born[slot].take());
        // Few blocks are born and freed in one txg, and most changes are taken in the first pass:
        // then no tree is copied.
        let both = (!born.is_empty()).then(|| joined(freeing.clone(), &born));
        let frees = both.as_ref().unwrap_or(&freeing);
        let list: Vec<Run> = frees.iter().collect();
        let (freed, freed_by_size) = (frees.total(), frees.histogram());
        for (from, to) in [(freeing, &mut p.freed), (born, &mut p.freed_born)] {
            *to = if to.is_empty() { from } else { joined(to.take(), &from) };
        }
        let changed = !allocs.is_empty() || !list.is_empty();
        if !loaded && changed {
            p.recent.push((txg, allocs.clone(), list.clone()));
        }
        let added: u64 = allocs.iter().map(|r| r.size).sum();
        // A map that was never read may be damaged and count less than the frees; loading it
        // detects that.
        self.alloc = (self.alloc + added).saturating_sub(freed);
        if let Some(h) = self.histogram_in_map() {
            self.histogram = Some(h);
        } else if let Some(h) = &mut self.histogram {
            h.iter_mut().zip(freed_by_size).for_each(|(a, b)| *a = a.saturating_add(b));
        }
        let long = |optimal: u64| self.length >= optimal * t.condense_pct / 100 && self.length > t.condense_min_bytes;
        let condense = (first && self.object.is_some() && self.optimal_length().is_some_and(long))
            .then(|| self.allocated_in_map())
            .flatten();
        if let Some(c) = &condense {
            assert_eq!(
                c.iter().map(|r| r.size).sum::<u64>(),
                self.alloc,
                "the trees of a metaslab account for all of it"
            );
        }
        MsChanges {
            allocs,
            frees: list,
            object: self.object,
            condense,
            histogram: self.histogram.unwrap_or([0; BUCKETS]),
            alloc_after: self.alloc as i64,
        }
    }

    /// Part of the end of `txg`, which is committed: returns what became free, at most `runs_max`
    /// segments at a time; the last part also defers what the txg freed. `trim`: what returns is to
    /// be trimmed.
    pub fn sync_done_part(&mut self, txg: Txg, runs_max: usize, trim: bool) -> Ended {
        let slot = txg.slot();
        let Some(mut p) = self.pending.take() else { return Ended::Whole { pending: false } };
        p.dirty[slot] = false;
        let untaken = [&p.allocating, &p.freeing, &p.freeing_born].iter().any(|t| !t[slot].is_empty());
        assert!(!untaken, "txg {txg} was committed without all changes of the metaslab at {}", self.run);
        if self.is_loaded() || trim {
            for _ in 0..runs_max {
                let Some(r) = p.returned(txg).and_then(RangeTree::pop) else { break };
                if trim && self.trim.is_none() {
                    self.trim = Some(Box::new(self.tree()));
                }
                if let Some(noted) = self.trim.as_mut().filter(|_| trim) {
                    noted.set_range(r.start, r.size).expect("it is space of this metaslab");
                }
                if let State::Loaded(l) = &mut self.state {
                    l.free.add(r.start, r.size).expect("the trees of a metaslab are disjoint");
                }
            }
            if p.returned(txg).is_some() {
                self.pending = Some(p);
                return Ended::Part;
            }
        }
        p.end(txg);
        // A load under way may have read the map before this commit.
        if !matches!(self.state, State::Loading(_)) {
            p.recent.retain(|(t, _, _)| *t > txg);
        }
        let deferred = p.deferred();
        self.committed = (self.alloc + deferred, deferred);
        if !p.is_empty() {
            self.pending = Some(p);
        }
        self.reweigh();
        Ended::Whole { pending: self.pending.is_some() }
    }

    /// Completes a load with the content of its map; an error makes it broken for good.
    pub fn finish_load(&mut self, map: Result<Option<LoadedMap>>) -> Result<()> {
        let result = map.and_then(|m| self.free_from(m));
        let outcome = match result {
            Ok(free) => {
                self.state = State::Loaded(Box::new(Loaded { free, cursors: [0; 64] }));
                Ok(())
            }
            Err(e) => {
                self.state = State::Unloaded;
                self.broken = Some(e.clone());
                Err(e)
            }
        };
        self.reweigh();
        outcome
    }

    fn free_from(&self, map: Option<LoadedMap>) -> Result<RangeTree> {
        let mut free = match map {
            Some(map) => {
                if map.free.area() != self.run {
                    return Err(Error::corrupt(format!("its map covers {}, not {}", map.free.area(), self.run)));
                }
                map.free
            }
            None => self.tree().complement(),
        };
        self.apply_pending(&mut free)?;
        let waiting = self.pending.iter().flat_map(|p| p.freed_trees()).map(RangeTree::total).sum::<u64>();
        let allocated = self.run.size - free.total() - waiting;
        if allocated != self.alloc {
            return Err(Error::corrupt(format!(
                "its map has {allocated} bytes allocated, its header said {}",
                self.alloc
            )));
        }
        Ok(free)
    }

    /// Applies the changes since the map was written to its free space.
    fn apply_pending(&self, free: &mut RangeTree) -> Result<()> {
        let Some(p) = &self.pending else { return Ok(()) };
        // The map may or may not include these; a range changes at most once within these txgs, so
        // applying it again is harmless.
        for (_, allocs, frees) in &p.recent {
            allocs.iter().try_for_each(|r| free.clear_range(r.start, r.size))?;
            frees.iter().try_for_each(|r| free.set_range(r.start, r.size))?;
        }
        for r in p.freed_trees().flat_map(RangeTree::iter) {
            free.remove(r.start, r.size).at(|| "space that was freed")?;
        }
        for r in p.freeing_trees().flat_map(RangeTree::iter) {
            if let Some(hit) = free.overlap(r.start, r.size) {
                return Err(Error::corrupt(format!("{r} was freed, but according to its map {hit} was free already")));
            }
        }
        Ok(())
    }

    /// Unloads it, unless changes are pending.
    pub fn unload(&mut self) -> bool {
        if self.pending.is_some() || !self.is_loaded() {
            return false;
        }
        self.histogram = self.histogram_in_map();
        self.state = State::Unloaded;
        self.reweigh();
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const M: u64 = 1 << 20;

    #[test]
    fn deferred_space_returns_in_parts() {
        let t = AllocTunables::default();
        let mut m = Metaslab::new(Run { start: 0, size: 16 * M }, 9, None, 0, 0, None, 0);
        m.finish_load(Ok(None)).expect("nothing to load");
        let end = |m: &mut Metaslab, txg: u64| {
            m.take_changes(Txg(txg), &t);
            m.sync_done_part(Txg(txg), usize::MAX, false)
        };
        let blocks: Vec<u64> = (0..500).map(|_| m.allocate(512, Txg(4), &t).expect("room")).collect();
        assert_eq!(end(&mut m, 4), Ended::Whole { pending: false });
        for at in blocks.iter().step_by(2) {
            m.free(*at, 512, Txg(4), Txg(5)).expect("allocated");
        }
        assert_eq!(end(&mut m, 5), Ended::Whole { pending: true });
        assert_eq!(end(&mut m, 6), Ended::Whole { pending: true });
        assert_eq!(m.committed, (500 * 512, 250 * 512));
        m.take_changes(Txg(7), &t);
        let free = |m: &Metaslab| m.loaded().expect("loaded").free.total();
        let before = free(&m);
        assert_eq!(m.sync_done_part(Txg(7), 100, false), Ended::Part);
        assert_eq!((free(&m) - before, m.committed), (100 * 512, (500 * 512, 250 * 512)));
        // Between the parts its space is used, and what is still to return counts as free in the
        // map.
        m.allocate(512, Txg(8), &t).expect("room");
        assert!(m.free(blocks[0], 512, Txg(4), Txg(8)).is_err(), "it waits to return");
        let used: u64 = m.allocated_in_map().expect("loaded").iter().map(|r| r.size).sum();
        assert_eq!(used, 250 * 512);
        assert_eq!(m.sync_done_part(Txg(7), 100, false), Ended::Part);
        assert_eq!(m.sync_done_part(Txg(7), 100, false), Ended::Whole { pending: true });
        assert_eq!((free(&m) - before, m.committed), (249 * 512, (250 * 512, 0)));
        assert_eq!(end(&mut m, 8), Ended::Whole { pending: false });
    }

    #[test]
    fn what_is_trimmed_is_free() {
        let t = AllocTunables::default();
        for loaded in [true, false] {
            let mut m = Metaslab::new(Run { start: 0, size: 16 * M }, 9, Some(ObjectId(1)), 0, 0, None, 0);
            m.finish_load(Ok(None)).expect("nothing to load");
            let blocks: Vec<u64> = (0..100).map(|_| m.allocate(512, Txg(4), &t).expect("room")).collect();
            let end = |m: &mut Metaslab, txg: u64| {
                m.take_changes(Txg(txg), &t);
                m.sync_done_part(Txg(txg), usize::MAX, true)
            };
            end(&mut m, 4);
            if !loaded {
                assert!(m.unload());
            }
            for at in &blocks {
                m.free(*at, 512, Txg(4), Txg(5)).expect("allocated");
            }
            end(&mut m, 5);
            end(&mut m, 6);
            assert!(!m.has_trim(), "a rewind may need it");
            end(&mut m, 7);
            assert!(m.has_trim());
            if loaded {
                // Some of it is used again.
                let again: Vec<u64> = (0..200).map(|_| m.allocate(512, Txg(8), &t).expect("room")).collect();
                let left: u64 = m.take_trim().iter().map(|r| r.size).sum();
                let reused = again.iter().filter(|a| blocks.contains(a)).count() as u64;
                assert_eq!(left, (100 - reused) * 512);
            } else {
                assert_eq!(m.take_trim().iter().map(|r| r.size).sum::<u64>(), 100 * 512);
            }
            assert!(!m.has_trim() && m.take_trim().is_empty());
        }
    }
}
