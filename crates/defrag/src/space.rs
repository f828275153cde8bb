//! The free space of a pool, and where the allocator will put blocks in it.
//!
//! [`load`] reads the space maps, logs included, into the engine's own [`Allocator`], as an import
//! does. [`Space::allocate`] and [`Space::free`] then are what a rewrite asks of it, in txgs of as
//! many bytes as those of the engine: classes, rotors, active metaslabs, cursors, and space that
//! comes free two txgs later are not copied here. At the end of each txg the metadata of it are
//! written, too: a block of pointers for each part of a file, in two copies, and the pool's own, in
//! three. They take little, but data keep out of the metaslabs of further copies.
//!
//! What is left out: other writers, gang blocks (a block without a place makes a plan impossible,
//! which is not found out by writing gangs), what the running engine remembers (cursors, active
//! metaslabs).
//!
//! Invariant: free bytes are what was loaded, less what was allocated, more what was freed, and
//! nothing is allocated twice (the allocator asserts it).
//!
//! Memory: about 30 bytes for each free segment of the pool.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::pin::pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use base::{Error, ErrorKind, ObjectId, Result, ResultExt, Txg, VdevId};
use metaslab::weight;
use metaslab::{AllocTunables, Allocator, ClassKind, LoadedMap, MsSummary, RangeTree, Run, SpaceMapStore};
use ondisk::blkptr::Dva;
use ondisk::space_map::{HISTOGRAM_BUCKETS, histogram_add};
use ondisk::zap::ZapValue;
use rt::LocalBoxFuture;
use vdev::{Top, VdevKind};
use zdb::check::Finding;
use zdb::{PoolReader, zap};

use crate::extents::{Place, total};
use crate::tops::Layout;

/// Txgs until what one of them freed can be allocated: it is deferred for two.
const DEFER: u64 = 3;
/// Log2 of the part of a pool that a txg has at most, whatever memory and time allow.
const TXG_SHIFT: u32 = 7;
/// A metaslab is fragmented from so many percent on, as `zpool list` counts: free space in segments
/// of 128 KiB is 50.
pub(crate) const FRAGMENTED: u8 = 40;
/// Free segments by powers of two of their bytes.
pub(crate) const BUCKETS: usize = 64;
/// Where the bias of a vdev is in its ZAP.
const BIAS_KEY: &str = "org.zfsonlinux:allocation_bias";
/// Stored bytes of a block pointer within a compressed block of them.
const POINTER: u64 = 48;
/// Blocks of the pool's own metadata that every txg writes, and their bytes: object sets, dnodes,
/// space maps, lists.
const OWN: (u64, u64) = (16, 4096);

/// A metaslab.
#[derive(Debug)]
struct Slab {
    run: Run,
    shift: u32,
    class: ClassKind,
    /// Whether it was fragmented when it was loaded.
    fragmented: bool,
    /// Bytes that the plan takes from here.
    emptied: u64,
}

/// A metaslab in figures.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct SlabFigures {
    /// Its vdev.
    pub(crate) vdev: u32,
    /// Its number there.
    pub(crate) index: usize,
    /// Bytes.
    pub(crate) size: u64,
    /// Free bytes.
    pub(crate) free: u64,
    /// Bytes of the largest free segment.
    pub(crate) largest: u64,
    /// Percent.
    pub(crate) fragmentation: u8,
    /// Whether it counted as fragmented when it was loaded.
    pub(crate) fragmented: bool,
    /// Bytes that were freed in it.
    pub(crate) emptied: u64,
}

/// The free space of metaslabs that the allocator has not loaded.
#[derive(Default)]
struct Maps(RefCell<BTreeMap<(VdevId, u64), RangeTree>>);

impl SpaceMapStore for Maps {
    fn load<'a>(&'a self, vdev: VdevId, ms: u64) -> LocalBoxFuture<'a, Result<LoadedMap>> {
        // It stays loaded, so its tree goes with it.
        let free = self.0.borrow_mut().remove(&(vdev, ms));
        Box::pin(async move {
            let free = free.ok_or_else(|| Error::corrupt(format!("metaslab {ms} of vdev {vdev} was loaded before")))?;
            let alloc = (free.area().size - free.total()) as i64;
            Ok(LoadedMap { free, alloc, histogram: None, object: Some(ObjectId(1)), length: 0 })
        })
    }
}

/// The file that is being rewritten.
#[derive(Default)]
struct Tree {
    /// Pointers of a block of them.
    fan: u64,
    /// Blocks of the file so far.
    at: u64,
    /// Of those, the ones whose pointers were written.
    written: u64,
    /// The last block of pointers, if it is not full.
    last: Vec<Dva>,
}

/// Free space of all vdevs.
pub(crate) struct Space {
    alloc: Rc<Allocator>,
    maps: Rc<Maps>,
    slabs: BTreeMap<(VdevId, u64), Slab>,
    /// Log2 of the bytes of a metaslab, by vdev.
    shifts: BTreeMap<VdevId, u8>,
    /// The open txg.
    txg: Txg,
    /// Bytes of content in it.
    dirty: u64,
    /// Bytes of content of a txg.
    txg_bytes: u64,
    tree: Tree,
    /// The pool's metadata of the last txg.
    own: Vec<Dva>,
}

/// The result of a future that has nothing to wait for.
fn at_once<T>(future: impl Future<Output = Result<T>>) -> Result<T> {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(result) => result,
        Poll::Pending => Err(Error::unsupported("the allocator waits for a metaslab")),
    }
}

/// A top-level vdev with the free ranges of its metaslabs.
struct Source {
    top: Rc<Top>,
    class: ClassKind,
    free: Vec<RangeTree>,
    /// As their maps' headers have them, if those are true.
    histograms: Vec<Option<[u64; HISTOGRAM_BUCKETS]>>,
}

impl Space {
    fn new(sources: Vec<Source>, txg: Txg) -> Result<Space> {
        let tunables = AllocTunables { unload_delay: u64::MAX >> 1, memory_limit: usize::MAX, ..Default::default() };
        let maps: Rc<Maps> = Rc::default();
        let alloc = Allocator::new(maps.clone(), tunables);
        let (mut slabs, mut shifts) = (BTreeMap::new(), BTreeMap::new());
        for source in sources {
            let (id, shift) = (source.top.id, u32::from(source.top.ashift));
            let mut summaries = Vec::new();
            for (ms, (free, header)) in source.free.iter().zip(&source.histograms).enumerate() {
                let mut histogram = [0; HISTOGRAM_BUCKETS];
                free.iter().for_each(|r| histogram_add(&mut histogram, r.size, shift));
                let alloc = (free.area().size - free.total()) as i64;
                let histogram = Some(header.unwrap_or(histogram));
                summaries.push(MsSummary { object: Some(ObjectId(1)), alloc, histogram, length: 0 });
                let fragmented =
                    free.total() > 0 && weight::fragmentation(&free.histogram(), shift as u8) >= FRAGMENTED;
                let slab = Slab { run: free.area(), shift, class: source.class, fragmented, emptied: 0 };
                slabs.insert((id, ms as u64), slab);
            }
            shifts.insert(id, source.top.ms_shift.get());
            alloc.add_top(source.top, source.class, summaries)?;
            maps.0.borrow_mut().extend(source.free.into_iter().enumerate().map(|(ms, t)| ((id, ms as u64), t)));
        }
        let size = total(slabs.values().map(|s| s.run.size));
        let txg_bytes = (size >> TXG_SHIFT).max(1);
        let (tree, own) = (Tree::default(), Vec::new());
        Ok(Space { alloc, maps, slabs, shifts, txg, dirty: 0, txg_bytes, tree, own })
    }

    /// Sets the bytes of content of a txg; of a small pool it has less.
    pub(crate) fn set_txg_bytes(&mut self, bytes: u64) {
        self.txg_bytes = self.txg_bytes.min(bytes).max(1);
    }

    fn key(&self, vdev: u32, offset: u64) -> Option<(VdevId, u64)> {
        let key = (VdevId(vdev), offset.checked_shr(u32::from(*self.shifts.get(&VdevId(vdev))?))?);
        self.slabs.contains_key(&key).then_some(key)
    }

    /// Whether the metaslab there was fragmented when it was loaded.
    pub(crate) fn is_fragmented(&self, vdev: u32, offset: u64) -> bool {
        self.key(vdev, offset).is_some_and(|k| self.slabs[&k].fragmented)
    }

    /// Bytes of all vdevs of data: all, free.
    pub(crate) fn room(&self) -> (u64, u64) {
        let (used, all) = self.alloc.class_use(ClassKind::Normal);
        (all, all.saturating_sub(used))
    }

    /// A file begins, whose blocks of pointers have so many of them.
    pub(crate) fn begin_file(&mut self, fan: u64) {
        self.end_file();
        self.tree = Tree { fan: fan.max(1), ..Tree::default() };
    }

    /// A file ends.
    pub(crate) fn end_file(&mut self) {
        self.pointers();
        self.tree = Tree::default();
    }

    /// A new place for a block that lies at `old`, the next of its file.
    ///
    /// # Errors
    /// `NoSpace` if there is no segment that is large enough.
    pub(crate) fn allocate(&mut self, old: &Place) -> Result<Place> {
        if self.dirty >= self.txg_bytes {
            self.end_txg();
        }
        // A block stays in its class when it is rewritten.
        let special = self.key(old.vdev, old.offset).is_some_and(|k| self.slabs[&k].class == ClassKind::Special);
        let class = if special { ClassKind::Special } else { ClassKind::Normal };
        let mut tries = 0;
        let dva = loop {
            match at_once(self.alloc.alloc(class, old.psize.max(1), self.txg, &[])) {
                Ok(dva) => break dva,
                // What was freed is not free yet.
                Err(e) if e.kind() == ErrorKind::NoSpace && tries < DEFER => {
                    tries += 1;
                    self.end_txg();
                }
                Err(e) => return Err(e),
            }
        };
        self.dirty = self.dirty.saturating_add(old.lsize);
        self.tree.at += 1;
        if self.tree.fan > 0 && self.tree.at.is_multiple_of(self.tree.fan) {
            self.pointers();
            self.tree.last.clear();
        }
        let (vdev, offset, asize) = (dva.vdev().0, dva.offset(), dva.asize());
        Ok(Place { vdev, offset, asize, gang: false, held: false, birth: self.txg, ..*old })
    }

    /// Gives the place of a block back, so that it can be allocated some txgs later.
    pub(crate) fn free(&mut self, place: &Place) {
        // The pieces of a gang are not known; what has no metaslab was moved meanwhile.
        let Some(key) = self.key(place.vdev, place.offset).filter(|_| !place.gang) else { return };
        let (offset, asize) = (place.offset, place.asize);
        if self.maps.0.borrow().get(&key).is_some_and(|t| t.overlap(offset, asize).is_some()) {
            return;
        }
        // What two pointers share is given back by the first of them.
        let dva = Dva::new(key.0, offset, asize, false);
        if self.alloc.free(dva, Txg(0), self.txg).is_ok()
            && let Some(slab) = self.slabs.get_mut(&key)
        {
            slab.emptied += asize;
        }
    }

    /// Bytes that are written until a place that was given back can be allocated.
    pub(crate) fn lag(&self) -> u64 {
        self.txg_bytes.saturating_mul(DEFER)
    }

    /// Makes free all that was given back.
    pub(crate) fn settle(&mut self) {
        self.end_file();
        (0..=DEFER).for_each(|_| self.end_txg());
    }

    /// Allocates copies of a block of metadata; as many as there is room for.
    fn metadata(&mut self, psize: u64, copies: usize) -> Vec<Dva> {
        let mut places = Vec::new();
        while places.len() < copies {
            match at_once(self.alloc.alloc(ClassKind::Special, psize, self.txg, &places)) {
                Ok(dva) => places.push(dva),
                Err(_) => break,
            }
        }
        places
    }

    fn give_back(&self, places: &[Dva]) {
        for dva in places {
            // They were allocated here, so this cannot fail; nothing depends on it either.
            let _ = self.alloc.free(*dva, Txg(0), self.txg);
        }
    }

    /// Writes the block of pointers above the blocks since the last one.
    fn pointers(&mut self) {
        let (fan, at) = (self.tree.fan, self.tree.at);
        if fan == 0 || at == self.tree.written {
            return;
        }
        let before = std::mem::take(&mut self.tree.last);
        self.give_back(&before);
        let count = (at - 1) % fan + 1;
        self.tree.last = self.metadata((count * POINTER).next_multiple_of(512), 2);
        self.tree.written = at;
    }

    fn end_txg(&mut self) {
        self.pointers();
        let before = std::mem::take(&mut self.own);
        self.give_back(&before);
        for _ in 0..OWN.0 {
            let places = self.metadata(OWN.1, 3);
            self.own.extend(places);
        }
        for (vdev, ms) in self.alloc.dirty_metaslabs(self.txg) {
            let changes = self.alloc.take_changes(vdev, ms, self.txg);
            if let Some(tree) = self.maps.0.borrow_mut().get_mut(&(vdev, ms)) {
                // Not loaded, so nothing was allocated there; what is free already was refused.
                changes.frees.iter().for_each(|r| tree.set_range(r.start, r.size).unwrap_or(()));
            }
        }
        self.alloc.sync_done(self.txg);
        self.txg = self.txg.next();
        self.dirty = 0;
    }

    /// The free ranges of a metaslab.
    fn runs(&self, key: (VdevId, u64)) -> Vec<Run> {
        if let Some(tree) = self.maps.0.borrow().get(&key) {
            return tree.iter().collect();
        }
        let runs = at_once(self.alloc.disable(key.0, key.1));
        if runs.is_ok() {
            self.alloc.enable(key.0, key.1);
        }
        runs.unwrap_or_default()
    }

    fn of_data(&self) -> impl Iterator<Item = (&(VdevId, u64), &Slab)> {
        self.slabs.iter().filter(|(_, s)| s.class == ClassKind::Normal)
    }

    /// Free segments of the vdevs of data, by powers of two of their bytes.
    pub(crate) fn segments(&self) -> [u64; BUCKETS] {
        let mut all = [0; BUCKETS];
        for run in self.of_data().flat_map(|(key, _)| self.runs(*key)) {
            all[run.size.max(1).ilog2() as usize] += 1;
        }
        all
    }

    /// All metaslabs of the vdevs of data.
    pub(crate) fn figures(&self) -> Vec<SlabFigures> {
        let of = |(key, s): (&(VdevId, u64), &Slab)| {
            let runs = self.runs(*key);
            let mut histogram = [0; HISTOGRAM_BUCKETS];
            runs.iter().for_each(|r| histogram_add(&mut histogram, r.size, s.shift));
            SlabFigures {
                vdev: key.0.0,
                index: key.1 as usize,
                size: s.run.size,
                free: total(runs.iter().map(|r| r.size)),
                largest: runs.iter().map(|r| r.size).max().unwrap_or(0),
                fragmentation: weight::fragmentation(&histogram, s.shift as u8),
                fragmented: s.fragmented,
                emptied: s.emptied,
            }
        };
        self.of_data().map(of).collect()
    }
}

/// A tree of the free ranges of a metaslab (begin and length); of an impossible one `Corrupt`.
fn slab(run: Run, ashift: u8, free: impl Iterator<Item = (u64, u64)>) -> Result<RangeTree> {
    if !RangeTree::can_cover(run.size, ashift) {
        return Err(Error::corrupt(format!("a metaslab has {} bytes, not whole sectors of 2^{ashift}", run.size)));
    }
    let mut tree = RangeTree::indexed(run.start, run.size, ashift);
    for (at, n) in free {
        tree.add(at, n).map_err(|e| Error::corrupt(format!("free space at {at:#x}: {e:?}")))?;
    }
    Ok(tree)
}

/// Bytes between the ranges `used` (begin and end, ascending, disjoint) from `start` to `end`.
fn gaps(start: u64, end: u64, used: impl Iterator<Item = (u64, u64)>) -> Vec<(u64, u64)> {
    let (mut at, mut out) = (start, Vec::new());
    for (from, to) in used.chain([(end, end)]) {
        if from > at {
            out.push((at, from - at));
        }
        at = at.max(to);
    }
    out
}

/// The purpose of vdev `id`; none of one that no file is written to.
fn class_of(pool: &PoolReader, id: u32) -> Result<Option<ClassKind>> {
    let Some(config) = pool.config.vdev_tree.children.get(id as usize) else { return Ok(None) };
    if config.is_log.is_some_and(|l| l != 0) || config.non_allocating || config.removing {
        return Ok(None);
    }
    let Some(zap_top) = config.zap_top else { return Ok(Some(ClassKind::Normal)) };
    let found = zap::lookup(&pool.mos.object(zap_top.0)?, BIAS_KEY.as_bytes())?;
    Ok(match found.as_ref().and_then(ZapValue::as_cstr) {
        Some(b"special") => Some(ClassKind::Special),
        Some(_) => None,
        None => Some(ClassKind::Normal),
    })
}

/// Reads the space maps of a pool.
///
/// # Errors
/// `Corrupt` if one of them cannot be read or contradicts itself.
pub(crate) fn load(pool: &PoolReader, layout: &Layout) -> Result<Space> {
    let mut bad = None;
    let maps = zdb::check::load_space(pool, &mut |f| {
        if let Finding::Error(e) = f {
            bad.get_or_insert_with(|| e.to_owned());
        }
    });
    if let Some(e) = bad {
        return Err(Error::corrupt(format!(
            "{e}: without its space maps there is no plan; try again if the pool is in use, else run 'weir zdb --check'"
        )));
    }
    let tops = layout.tops(&mut |_| VdevKind::Missing)?;
    let mut sources = Vec::new();
    for (&id, maps) in &maps.vdevs {
        let Some(top) = tops.get(id as usize).filter(|t| t.id.0 == id) else { continue };
        let at = || format!("vdev {id}");
        let Some(class) = class_of(pool, id).at(at)? else { continue };
        let (mut free, mut histograms) = (Vec::new(), Vec::new());
        for ms in 0..top.ms_count() {
            let (start, size) = top.ms_range(ms);
            let end = start.checked_add(size).ok_or_else(|| Error::corrupt("a metaslab has no end")).at(at)?;
            let ranges = gaps(start, end, maps.all.within(start, end));
            free.push(slab(Run { start, size }, top.ashift, ranges.into_iter()).at(at)?);
            let map = maps.metaslabs.iter().find(|m| m.index == ms).filter(|m| m.unflushed == 0);
            histograms.push(map.and_then(|m| m.phys.as_ref()).and_then(|p| p.histogram));
        }
        if !free.is_empty() {
            sources.push(Source { top: top.clone(), class, free, histograms });
        }
    }
    // A block is written after the state that was read.
    Space::new(sources, pool.txg().next())
}

/// The number of free segments from which `bytes` can be taken, the largest first, by a histogram:
/// a lower bound of the runs of a file that is written anew. What does not fit counts as segments
/// of the smallest kind.
pub(crate) fn segments_for(bytes: u64, segments: &[u64; BUCKETS]) -> u64 {
    let (mut left, mut count, mut least) = (bytes, 0u64, 9);
    for (power, &n) in segments.iter().enumerate().rev().filter(|(_, n)| **n > 0) {
        // A segment has between one and two times its power of two.
        let mean = (1u64 << power).saturating_add((1u64 << power) / 2);
        let take = left.div_ceil(mean).min(n);
        count += take;
        left = left.saturating_sub(take.saturating_mul(mean));
        least = power;
        if left == 0 {
            return count;
        }
    }
    count.saturating_add(left.div_ceil(1 << least))
}

#[cfg(test)]
mod tests {
    use ondisk::vdev_config::VdevKind as ConfigKind;

    use super::*;
    use crate::extents::at;
    use crate::tops::tests::config;

    const M: u64 = 1 << 20;
    const K: u64 = 1 << 10;

    /// Vdevs of two metaslabs, each with these free ranges.
    fn several(count: u64, size: u64, free: &[(u64, u64)]) -> Space {
        let half = size / 2;
        let one = |id| {
            let mut c = config(ConfigKind::Disk, id, 0, size);
            (c.ashift, c.metaslab_shift) = (Some(9), Some(u64::from(half.ilog2())));
            c
        };
        let layout = Layout { configs: (0..count).map(one).collect(), moved: 0 };
        let of = |from: u64| free.iter().copied().filter(move |r| (from..from + half).contains(&r.0));
        let tree = |start| slab(Run { start, size: half }, 9, of(start)).unwrap();
        let source =
            |top| Source { top, class: ClassKind::Normal, free: vec![tree(0), tree(half)], histograms: vec![None; 2] };
        let tops = layout.tops(&mut |_| VdevKind::Missing).unwrap();
        Space::new(tops.into_iter().map(source).collect(), Txg(100)).unwrap()
    }

    fn plain(size: u64, free: &[(u64, u64)]) -> Space {
        several(1, size, free)
    }

    fn places(space: &mut Space, size: u64, n: usize) -> Vec<(u32, u64)> {
        (0..n).map(|_| space.allocate(&at(0, 0, size)).unwrap()).map(|p| (p.vdev, p.offset)).collect()
    }

    #[test]
    fn blocks_follow_each_other_in_the_best_metaslab() {
        // The second metaslab has the larger segment.
        let mut s = plain(64 * M, &[(M, 2 * M), (40 * M, 8 * M)]);
        assert_eq!(places(&mut s, 128 * K, 2), [(0, 40 * M), (0, 40 * M + 128 * K)]);
        // It is left at the end of a txg if its segments are a quarter.
        let all = places(&mut s, 128 * K, 62);
        assert!(all.iter().any(|p| p.1 < 32 * M), "{all:?}");
    }

    #[test]
    fn small_segments_make_runs_as_long_as_they_are() {
        let holes: Vec<(u64, u64)> = (0..32).map(|i| (i * M, 256 * K)).collect();
        let mut s = plain(64 * M, &holes);
        let all = places(&mut s, 128 * K, 4);
        let breaks = all.windows(2).filter(|w| w[0].1 + 128 * K != w[1].1).count();
        assert_eq!(breaks, 1, "{all:?}");
        assert!(s.allocate(&at(0, 0, M)).is_err());
    }

    #[test]
    fn the_rotor_goes_round_by_shares() {
        let mut s = several(2, 64 * M, &[(0, 16 * M)]);
        s.txg_bytes = u64::MAX;
        let all = places(&mut s, 256 * K, 16);
        let vdevs: Vec<u32> = all.iter().map(|p| p.0).collect();
        assert_eq!(vdevs.iter().filter(|v| **v == 0).count(), 8, "{vdevs:?}");
        assert!(vdevs.windows(2).filter(|w| w[0] != w[1]).count() <= 4, "{vdevs:?}");
    }

    #[test]
    fn what_is_given_back_comes_back_later_and_once() {
        let mut s = plain(64 * M, &[(M, M)]);
        let old = at(0, 4 * M, 128 * K);
        s.free(&old);
        s.free(&old);
        assert_eq!((s.room().1, s.lag()), (M, 3 * M / 2));
        let own = 3 * OWN.0 * OWN.1;
        s.settle();
        // The metadata of the last txg, and of those before whose places are deferred.
        assert!((M + 128 * K - 4 * own..M + 128 * K).contains(&s.room().1), "{}", s.room().1);
        assert_eq!(s.figures()[0].emptied, 128 * K);
        s.free(&at(7, 0, 512));
        s.free(&at(0, 1 << 60, 512));
        s.settle();
        assert_eq!(s.figures()[0].emptied, 128 * K, "places that are not there");
    }

    #[test]
    fn files_have_blocks_of_pointers() {
        let mut s = plain(64 * M, &[(M, 8 * M), (40 * M, 8 * M)]);
        s.txg_bytes = u64::MAX;
        s.begin_file(4);
        let all = places(&mut s, 128 * K, 8);
        // After each fourth of them a small one lies between.
        let apart: Vec<u64> = all.windows(2).map(|w| w[1].1 - w[0].1).collect();
        assert_eq!(apart.iter().filter(|n| **n == 128 * K).count(), 6, "{apart:?}");
        s.end_file();
        assert!(s.tree.last.is_empty() && s.tree.fan == 0);
    }

    #[test]
    fn figures_and_histograms() {
        let s = plain(64 * M, &[(M, 4 * K), (2 * M, 4 * K), (40 * M, 16 * M)]);
        let seg = s.segments();
        assert_eq!((seg[12], seg[24], seg.iter().sum::<u64>()), (2, 1, 3));
        let f = s.figures();
        assert_eq!((f[0].fragmented, f[0].free, f[0].largest), (true, 8 * K, 4 * K));
        assert!(!f[1].fragmented && s.is_fragmented(0, M) && !s.is_fragmented(0, 40 * M) && !s.is_fragmented(9, 0));
        assert_eq!(gaps(0, 10, [(0, 2), (4, 5)].into_iter()), [(2, 2), (5, 5)]);
    }

    #[test]
    fn runs_to_expect_from_a_histogram() {
        let mut seg = [0; BUCKETS];
        assert_eq!(segments_for(0, &seg), 0);
        seg[20] = 2;
        seg[12] = 1000;
        assert_eq!(segments_for(M, &seg), 1);
        assert_eq!(segments_for(3 * M, &seg), 2);
        assert_eq!(segments_for(3 * M + 6 * K, &seg), 3);
        assert!(segments_for(1 << 40, &seg) > 1000);
        assert!(segments_for(u64::MAX, &[u64::MAX; BUCKETS]) > 0);
    }
}
