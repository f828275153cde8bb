//! The free space of a pool, and where the allocator would put blocks in it.
//!
//! [`load`] reads the space maps, logs included. [`Space::allocate`] then follows the policy of the
//! engine's allocator on a copy in memory: the group at the rotor of the block's class, in it the
//! active metaslab or else the one with the best weight that no further copies go to, in that the
//! first fit from the cursor on, or the best fit where there is little room. [`Space::free`] gives
//! places back some bytes later, as txgs do. So the places of a file that is rewritten, and the
//! free segments after it, come from the pool's own maps.
//!
//! What is left out: other writers, metadata, further copies, gang blocks (a block without a place
//! makes a plan impossible, which is not found out by writing gangs), the metaslab of the embedded
//! log.
//!
//! Invariant: free bytes are what was loaded, less what was allocated, more what was freed, and
//! nothing is allocated twice (the range trees refuse).
//!
//! Memory: about 30 bytes for each free segment of the pool, and the places of [`FREE_LAG`] bytes.

use std::collections::VecDeque;

use base::{Error, Result, ResultExt};
use metaslab::weight::{self, Weight};
use metaslab::{AllocTunables, RangeTree};
use ondisk::vdev_config::VdevKind;
use ondisk::zap::ZapValue;
use zdb::check::Finding;
use zdb::{PoolReader, zap};

use crate::extents::{Place, total};

/// Most bytes that are written until what was freed before can be allocated again: the txgs that
/// are under way and two more, none of them full. Of a small pool it is a part: 2 to the power of
/// minus the other number.
const FREE_LAG: (u64, u32) = (1 << 30, 5);
/// Txgs in that time: at the end of each the allocator looks whether a metaslab is used up.
const TXGS: u64 = 3;
/// Metaslabs of a vdev that further copies of metadata are written to, if it has more than these
/// and two others: each copy has an active metaslab of its own, which data keep out of.
const COPIES: usize = 2;
/// A metaslab is fragmented from so many percent on, as `zpool list` counts: free space in segments
/// of 128 KiB is 50.
pub(crate) const FRAGMENTED: u8 = 40;
/// Free segments by powers of two of their bytes.
pub(crate) const BUCKETS: usize = 64;
/// Where the bias of a vdev is in its ZAP.
const BIAS_KEY: &str = "org.zfsonlinux:allocation_bias";

/// The purpose of a vdev's space. A block stays in its class when it is rewritten.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Class {
    /// Data.
    Normal,
    /// Metadata and small blocks.
    Special,
    /// Anything else; no file is here.
    Other,
}

/// A metaslab's free space.
#[derive(Debug)]
struct Slab {
    start: u64,
    size: u64,
    free: RangeTree,
    /// By the lowest set bit of a size.
    cursors: [u64; 64],
    /// Whether it was fragmented when it was loaded.
    fragmented: bool,
    /// Bytes that the plan takes from here.
    emptied: u64,
}

/// A top-level vdev.
#[derive(Debug)]
struct Top {
    id: u32,
    class: Class,
    ashift: u32,
    /// Columns and parity of RAID-Z.
    raidz: Option<(u64, u64)>,
    slabs: Vec<Slab>,
    /// The metaslab in use and its log2 of the largest segments when it was chosen.
    active: Option<(usize, Option<u32>)>,
    /// Metaslabs that data keep out of while there is room elsewhere.
    copies: Vec<usize>,
    /// Bytes allocated since the rotor came here.
    used: u64,
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

/// Free space of all vdevs.
#[derive(Debug)]
pub(crate) struct Space {
    tops: Vec<Top>,
    tunables: AllocTunables,
    /// Index of the vdev at the rotor, of normal and special ones.
    rotors: [usize; 2],
    /// Places that are free soon, with the count of written bytes from which on they are.
    waiting: VecDeque<(u64, u32, u64, u64)>,
    written: u64,
    /// Bytes that are written until a place that was given back can be allocated.
    lag: u64,
    /// Bytes written since the last look at active metaslabs.
    txg: u64,
}

impl Top {
    /// Bytes that `psize` stored bytes take here.
    fn asize(&self, psize: u64) -> u64 {
        let sectors = psize.div_ceil(1 << self.ashift).max(1);
        let all = match self.raidz {
            Some((columns, parity)) => {
                let n = sectors + parity * sectors.div_ceil(columns - parity);
                n.div_ceil(parity + 1) * (parity + 1)
            }
            None => sectors,
        };
        all << self.ashift
    }

    fn slab_of(&self, offset: u64) -> Option<usize> {
        let at = self.slabs.partition_point(|s| s.start <= offset).checked_sub(1)?;
        (offset - self.slabs[at].start < self.slabs[at].size).then_some(at)
    }

    fn weight(&self, slab: usize) -> Weight {
        Weight::from_histogram(&self.slabs[slab].free.histogram(), self.ashift as u8)
    }

    fn free(&self) -> u64 {
        total(self.slabs.iter().map(|s| s.free.total()))
    }

    /// Leaves the active metaslab if its largest segments have become much smaller.
    fn end_txg(&mut self, t: &AllocTunables) {
        let worn = self.active.is_some_and(|(slab, index)| {
            let now = self.weight(slab).index();
            now.is_none() || index.zip(now).is_some_and(|(then, now)| now + t.switch_threshold <= then)
        });
        if worn {
            self.active = None;
        }
    }

    /// Metaslabs from the best on.
    fn by_weight(&self) -> Vec<usize> {
        let mut all: Vec<usize> = (0..self.slabs.len()).collect();
        all.sort_by_key(|&i| (std::cmp::Reverse(self.weight(i)), i));
        all
    }

    /// A place of `asize` bytes.
    fn take(&mut self, asize: u64, t: &AllocTunables) -> Option<u64> {
        if let Some((slab, _)) = self.active
            && let Some(offset) = self.slabs[slab].take(asize, t)
        {
            return Some(offset);
        }
        let fits = |i: &usize| self.slabs[*i].free.largest() >= asize;
        let all: Vec<usize> = self.by_weight().into_iter().filter(fits).collect();
        let best = *all.iter().find(|i| !self.copies.contains(i)).or(all.first())?;
        self.active = Some((best, self.weight(best).index()));
        self.slabs[best].take(asize, t)
    }
}

impl Slab {
    /// The policy of `metaslab::Method::Dynamic`.
    fn take(&mut self, asize: u64, t: &AllocTunables) -> Option<u64> {
        let largest = self.free.largest();
        if largest < asize {
            return None;
        }
        let cursor = &mut self.cursors[asize.trailing_zeros() as usize & 63];
        let roomy = largest >= t.df_alloc_threshold && self.free.total() * 100 / self.size.max(1) >= t.df_free_pct;
        let first = || self.free.first_fit(*cursor, asize, t.df_max_search, t.min_search_count);
        let found = roomy.then(first).flatten().or_else(|| self.free.best_fit(asize))?;
        self.free.remove(found.start, asize).ok()?;
        *cursor = found.start + asize;
        Some(found.start)
    }
}

impl Space {
    fn new(mut tops: Vec<Top>) -> Space {
        for top in tops.iter_mut().filter(|t| t.slabs.len() > COPIES + 2) {
            // Data came first.
            top.copies = top.by_weight().into_iter().skip(1).take(COPIES).collect();
        }
        let size = total(tops.iter().flat_map(|t| &t.slabs).map(|s| s.size));
        let lag = FREE_LAG.0.min(size >> FREE_LAG.1);
        Space {
            tops,
            tunables: AllocTunables::default(),
            rotors: [0; 2],
            waiting: VecDeque::new(),
            written: 0,
            lag,
            txg: 0,
        }
    }

    fn top(&self, vdev: u32) -> Option<&Top> {
        self.tops.iter().find(|t| t.id == vdev)
    }

    /// Whether the metaslab there was fragmented when it was loaded.
    pub(crate) fn is_fragmented(&self, vdev: u32, offset: u64) -> bool {
        self.top(vdev).is_some_and(|t| t.slab_of(offset).is_some_and(|s| t.slabs[s].fragmented))
    }

    /// The class of a vdev; removed ones gave theirs to data.
    fn class(&self, vdev: u32) -> Class {
        self.top(vdev).map_or(Class::Normal, |t| t.class)
    }

    /// Bytes of all vdevs of data: all, free.
    pub(crate) fn room(&self) -> (u64, u64) {
        let normal = self.tops.iter().filter(|t| t.class == Class::Normal);
        normal.fold((0, 0), |(size, free): (u64, u64), t| {
            (size.saturating_add(total(t.slabs.iter().map(|s| s.size))), free.saturating_add(t.free()))
        })
    }

    /// A new place for a block that lies at `old`.
    ///
    /// # Errors
    /// `NoSpace` if there is no segment that is large enough.
    pub(crate) fn allocate(&mut self, old: &Place) -> Result<Place> {
        self.settle(self.lag);
        let class = self.class(old.vdev);
        let members: Vec<usize> = (0..self.tops.len()).filter(|&i| self.tops[i].class == class).collect();
        let rotor = usize::from(class == Class::Special);
        for turn in 0..members.len() {
            let at = (self.rotors[rotor] + turn) % members.len();
            let share = self.share(&members, at);
            let top = &mut self.tops[members[at]];
            let asize = top.asize(old.psize);
            let Some(offset) = top.take(asize, &self.tunables) else { continue };
            if turn > 0 {
                top.used = 0;
            }
            top.used += asize;
            let (vdev, over) = (top.id, top.used >= share);
            if over {
                top.used = 0;
            }
            self.rotors[rotor] = if over { (at + 1) % members.len() } else { at };
            self.written = self.written.saturating_add(asize);
            self.txg = self.txg.saturating_add(asize);
            if self.txg >= self.lag / TXGS {
                self.txg = 0;
                self.tops.iter_mut().for_each(|t| t.end_txg(&self.tunables));
            }
            return Ok(Place { vdev, offset, asize, gang: false, held: false, ..*old });
        }
        let what = format!("there is no free segment for a block of {} bytes", old.psize);
        Err(Error::new(base::ErrorKind::NoSpace, what))
    }

    /// Bytes that the vdev at `at` gets before the rotor goes on: more if it is emptier than
    /// others.
    fn share(&self, members: &[usize], at: usize) -> u64 {
        if members.len() < 2 {
            return u64::MAX;
        }
        let size = |t: &Top| t.slabs.iter().map(|s| u128::from(s.size)).sum::<u128>();
        let (mut total, mut free) = (0u128, 0u128);
        for &m in members {
            total += size(&self.tops[m]);
            free += u128::from(self.tops[m].free());
        }
        let (own, own_size) = (u128::from(self.tops[members[at]].free()), size(&self.tops[members[at]]));
        let plain = u128::from(self.tunables.aliquot);
        let share = if free == 0 || own_size == 0 { plain } else { plain * own * total / (free * own_size) };
        share.clamp(plain / 4, plain * 4) as u64
    }

    /// Gives a place back, so that it can be allocated some bytes later.
    pub(crate) fn free(&mut self, place: &Place) {
        self.waiting.push_back((self.written, place.vdev, place.offset, place.asize));
    }

    /// Bytes that are written until a place that was given back can be allocated.
    pub(crate) fn lag(&self) -> u64 {
        self.lag
    }

    /// Makes free what was given back at least `lag` written bytes ago.
    pub(crate) fn settle(&mut self, lag: u64) {
        while let Some(&(then, vdev, offset, asize)) = self.waiting.front()
            && self.written - then >= lag
        {
            self.waiting.pop_front();
            let Some(top) = self.tops.iter_mut().find(|t| t.id == vdev) else { continue };
            let Some(slab) = top.slab_of(offset) else { continue };
            // What two pointers share is given back by the first of them.
            if top.slabs[slab].free.add(offset, asize).is_ok() {
                top.slabs[slab].emptied += asize;
            }
        }
    }

    /// Free segments of the vdevs of data, by powers of two of their bytes.
    pub(crate) fn segments(&self) -> [u64; BUCKETS] {
        let mut all = [0; BUCKETS];
        for top in self.tops.iter().filter(|t| t.class == Class::Normal) {
            for run in top.slabs.iter().flat_map(|s| s.free.iter()) {
                all[run.size.max(1).ilog2() as usize] += 1;
            }
        }
        all
    }

    /// All metaslabs of the vdevs of data.
    pub(crate) fn figures(&self) -> Vec<SlabFigures> {
        let normal = self.tops.iter().filter(|t| t.class == Class::Normal);
        let of = |t: &Top, (index, s): (usize, &Slab)| SlabFigures {
            vdev: t.id,
            index,
            size: s.size,
            free: s.free.total(),
            largest: s.free.largest(),
            fragmentation: weight::fragmentation(&s.free.histogram(), t.ashift as u8),
            fragmented: s.fragmented,
            emptied: s.emptied,
        };
        normal.flat_map(|t| t.slabs.iter().enumerate().map(move |s| of(t, s))).collect()
    }
}

/// A metaslab with these free ranges: begin and length.
fn slab(start: u64, size: u64, ashift: u32, free: impl Iterator<Item = (u64, u64)>) -> Result<Slab> {
    let shift = ashift as u8;
    if !RangeTree::can_cover(size, shift) {
        return Err(Error::corrupt(format!("a metaslab has {size} bytes, not whole sectors of 2^{ashift}")));
    }
    let mut tree = RangeTree::indexed(start, size, shift);
    for (at, n) in free {
        tree.add(at, n).map_err(|e| Error::corrupt(format!("free space at {at:#x}: {e:?}")))?;
    }
    let fragmented = tree.total() > 0 && weight::fragmentation(&tree.histogram(), shift) >= FRAGMENTED;
    Ok(Slab { start, size, free: tree, cursors: [0; 64], fragmented, emptied: 0 })
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

/// The purpose of vdev `id`.
fn class_of(pool: &PoolReader, id: u32) -> Result<Class> {
    let Some(config) = pool.config.vdev_tree.children.get(id as usize) else { return Ok(Class::Other) };
    if config.is_log.is_some_and(|l| l != 0) || config.non_allocating || config.removing {
        return Ok(Class::Other);
    }
    let Some(zap_top) = config.zap_top else { return Ok(Class::Normal) };
    let found = zap::lookup(&pool.mos.object(zap_top.0)?, BIAS_KEY.as_bytes())?;
    Ok(match found.as_ref().and_then(ZapValue::as_cstr) {
        Some(b"special") => Class::Special,
        Some(_) => Class::Other,
        None => Class::Normal,
    })
}

/// Reads the space maps of a pool.
///
/// # Errors
/// `Corrupt` if one of them cannot be read or contradicts itself.
pub(crate) fn load(pool: &PoolReader) -> Result<Space> {
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
    let mut tops = Vec::new();
    for (&id, maps) in &maps.vdevs {
        let Some(vdev) = pool.io.tops.get(id as usize).and_then(Option::as_ref) else { continue };
        let at = || format!("vdev {id}");
        let raidz = match vdev.kind {
            VdevKind::Raidz => Some((vdev.children.len() as u64, vdev.nparity)),
            _ => None,
        };
        let (mut slabs, ashift) = (Vec::new(), vdev.ashift.clamp(9, 16));
        for m in &maps.metaslabs {
            let end = m.start.checked_add(m.size).ok_or_else(|| Error::corrupt("a metaslab has no end")).at(at)?;
            let free = gaps(m.start, end, maps.all.within(m.start, end));
            slabs.push(slab(m.start, m.size, ashift, free.into_iter()).at(at)?);
        }
        let class = class_of(pool, id).at(at)?;
        tops.push(Top { id, class, ashift, raidz, slabs, active: None, copies: Vec::new(), used: 0 });
    }
    Ok(Space::new(tops))
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
fn plain(size: u64, free: &[(u64, u64)]) -> Space {
    several(1, size, free)
}

/// Vdevs of two metaslabs, each with these free ranges.
#[cfg(test)]
fn several(count: u32, size: u64, free: &[(u64, u64)]) -> Space {
    let half = size / 2;
    let of = |from: u64| free.iter().copied().filter(move |r| (from..from + half).contains(&r.0));
    let top = |id: u32| {
        let slabs = vec![slab(0, half, 9, of(0)).unwrap(), slab(half, half, 9, of(half)).unwrap()];
        Top { id, class: Class::Normal, ashift: 9, raidz: None, slabs, active: None, copies: Vec::new(), used: 0 }
    };
    Space::new((0..count).map(top).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::extents::at;

    const M: u64 = 1 << 20;
    const K: u64 = 1 << 10;

    fn places(space: &mut Space, size: u64, n: usize) -> Vec<(u32, u64)> {
        (0..n).map(|_| space.allocate(&at(0, 0, size)).unwrap()).map(|p| (p.vdev, p.offset)).collect()
    }

    #[test]
    fn blocks_follow_each_other_in_the_best_metaslab() {
        // The second metaslab has the larger segment.
        let mut s = plain(64 * M, &[(M, 2 * M), (40 * M, 8 * M)]);
        assert_eq!(places(&mut s, 128 * K, 2), [(0, 40 * M), (0, 40 * M + 128 * K)]);
        assert_eq!(s.room(), (64 * M, 10 * M - 256 * K));
        // It is left when its segments are a quarter, and the rest has larger ones.
        let all = places(&mut s, 128 * K, 60);
        assert!(all.iter().any(|p| p.1 < 32 * M), "{all:?}");
    }

    #[test]
    fn small_segments_make_runs_as_long_as_they_are() {
        let holes: Vec<(u64, u64)> = (0..32).map(|i| (i * M, 256 * K)).collect();
        let mut s = plain(64 * M, &holes);
        let all = places(&mut s, 128 * K, 8);
        let breaks = all.windows(2).filter(|w| w[0].1 + 128 * K != w[1].1).count();
        assert_eq!(breaks, 3, "{all:?}");
        assert!(s.allocate(&at(0, 0, M)).is_err());
    }

    #[test]
    fn the_rotor_goes_round_by_shares() {
        let mut s = several(2, 64 * M, &[(0, 16 * M)]);
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
        s.settle(s.lag());
        assert_eq!((s.room().1, s.lag()), (M, 2 * M));
        s.settle(0);
        assert_eq!(s.room().1, M + 128 * K);
        assert_eq!(s.figures()[0].emptied, 128 * K);
        s.free(&at(7, 0, 512));
        s.free(&at(0, 1 << 60, 512));
        s.settle(0);
        assert_eq!(s.room().1, M + 128 * K, "places that are not there");
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
        let top = |raidz| Top { raidz, ..plain(M, &[]).tops.remove(0) };
        assert_eq!(
            [top(None).asize(1), top(Some((4, 1))).asize(512), top(Some((6, 2))).asize(2048)],
            [512, 1024, 3072]
        );
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
