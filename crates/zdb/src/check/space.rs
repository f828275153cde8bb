//! Space maps: replays maps and logs into allocated ranges, and checks each map's own figures.
//!
//! A map is replayed strictly: an ALLOC must meet free space and a FREE allocated space. After the
//! replay the block walk claims the allocated ranges of each vdev; the rest is leaked.

use std::collections::{BTreeMap, BTreeSet};

use base::{Error, Result, ResultExt};
use ondisk::bytes::le64;
use ondisk::object_type::ObjectType;
use ondisk::space_map::{Entry, HISTOGRAM_BUCKETS, MapType, SpaceMapPhys, entries, histogram_add};
use ondisk::vdev_config::VdevConfig;

use super::report::Sink;
use crate::objset::Object;
use crate::pool::PoolReader;
use crate::zap;

/// Bytes of a space map that are read at once.
const PIECE: u64 = 1 << 20;
/// Errors of one map after which the rest of it is not reported.
const MAX_MAP_ERRORS: u32 = 20;
/// Largest map that is not a metaslab's.
pub const MAX_OTHER_MAP: u64 = 1 << 30;
/// Most metaslabs of one vdev.
const MAX_METASLABS: u64 = 1 << 24;

/// Disjoint ranges, merged where they touch.
#[derive(Clone, Debug, Default)]
pub struct Ranges {
    m: BTreeMap<u64, u64>,
}

impl Ranges {
    /// Adds `[a, a + n)`; false, and nothing changed, when part of it is there already.
    pub fn add(&mut self, a: u64, n: u64) -> bool {
        let Some(mut end) = a.checked_add(n) else { return false };
        let mut start = a;
        if let Some((&s, &e)) = self.m.range(..=a).next_back() {
            if e > a {
                return false;
            }
            if e == a {
                start = s;
            }
        }
        if let Some((&s, &e)) = self.m.range(a..).next() {
            if s < end {
                return false;
            }
            if s == end {
                self.m.remove(&s);
                end = e;
            }
        }
        self.m.insert(start, end);
        true
    }
    /// Removes `[a, a + n)`; false, and nothing changed, when it is not all there.
    pub fn remove(&mut self, a: u64, n: u64) -> bool {
        let Some(end) = a.checked_add(n) else { return false };
        let Some((&s, &e)) = self.m.range(..=a).next_back() else { return false };
        if e < end {
            return false;
        }
        self.m.remove(&s);
        if s < a {
            self.m.insert(s, a);
        }
        if end < e {
            self.m.insert(end, e);
        }
        true
    }
    /// Removes the part of `[a, a + n)` that is there.
    pub fn clear(&mut self, a: u64, n: u64) {
        let end = a.saturating_add(n);
        let hit: Vec<(u64, u64)> =
            self.m.range(..end).rev().take_while(|&(_, &e)| e > a).map(|(&s, &e)| (s, e)).collect();
        for (s, e) in hit {
            self.m.remove(&s);
            if s < a {
                self.m.insert(s, a);
            }
            if e > end {
                self.m.insert(end, e);
            }
        }
    }
    /// Whether all of `[a, a + n)` is there.
    pub fn contains(&self, a: u64, n: u64) -> bool {
        self.m.range(..=a).next_back().is_some_and(|(_, &e)| a.checked_add(n).is_some_and(|end| end <= e))
    }
    /// Bytes in all.
    pub fn total(&self) -> u64 {
        self.m.iter().map(|(s, e)| e - s).sum()
    }
    /// The parts of ranges within `[a, b)`, in order: start and end.
    pub fn within(&self, a: u64, b: u64) -> impl Iterator<Item = (u64, u64)> + '_ {
        let from = self.m.range(..=a).next_back().map_or(a, |(&s, _)| s);
        let hit = self.m.range(from..b.max(from)).filter(move |&(_, &e)| e > a);
        hit.map(move |(&s, &e)| (s.max(a), e.min(b)))
    }
    /// The ranges in order: start and length.
    pub fn iter(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.m.iter().map(|(&s, &e)| (s, e - s))
    }
}

/// One metaslab's map.
#[derive(Clone, Debug)]
pub struct Metaslab {
    /// Its index in the vdev.
    pub index: u64,
    /// Offset of its first byte in the vdev.
    pub start: u64,
    /// Bytes.
    pub size: u64,
    /// Its map's object, 0 when it was never used.
    pub object: u64,
    /// The map's header.
    pub phys: Option<SpaceMapPhys>,
    /// Blocks size of the map object.
    pub blksz: u32,
    /// Allocated by the map's entries alone, without logs.
    pub allocated: u64,
    /// Txg from which on logs count; 0 for none.
    pub unflushed: u64,
    /// Free segments as the map has them.
    pub segments: [u64; HISTOGRAM_BUCKETS],
}

/// One top-level vdev.
#[derive(Clone, Debug, Default)]
pub struct VdevSpace {
    /// Allocated, logs included; the block walk removes the ranges that it claims.
    pub left: Ranges,
    /// Allocated, logs included, as it was before that.
    pub all: Ranges,
    /// Metaslabs in order.
    pub metaslabs: Vec<Metaslab>,
    /// log2 of the metaslab size.
    pub shift: u32,
}

impl VdevSpace {
    /// As [`is_cutting`] for the free segments with the entries still in the logs applied: a
    /// histogram may run ahead of its map.
    fn is_cutting_with_logs(&self, ms: &Metaslab, have: &[u64; HISTOGRAM_BUCKETS], ashift: u32) -> bool {
        let mut segments = [0; HISTOGRAM_BUCKETS];
        let (mut at, mut free) = (ms.start, 0);
        let end = ms.start + ms.size;
        for (s, e) in self.all.within(ms.start, end).chain([(end, end)]) {
            histogram_add(&mut segments, s - at, ashift);
            free += s - at;
            at = e;
        }
        is_cutting(have, &segments, free >> ashift)
    }
}

/// All vdevs with allocations, by id.
#[derive(Clone, Debug, Default)]
pub struct Space {
    /// By id.
    pub vdevs: BTreeMap<u32, VdevSpace>,
    /// Maps that belong to metaslabs: object and owner.
    pub owners: BTreeMap<u64, String>,
    /// Ranges of removed vdevs that block pointers name, or mappings of other ones.
    pub named: BTreeMap<u32, Ranges>,
}

/// Every entry of a map, in order, as far as its header counts them. A map longer than `limit` is
/// an error: the same block could be there again and again.
pub fn for_each_entry(
    obj: &Object,
    shift: u32,
    limit: u64,
    f: &mut dyn FnMut(Entry) -> Result<()>,
) -> Result<SpaceMapPhys> {
    let phys = SpaceMapPhys::parse(obj.dn.bonus()).at(|| obj.place())?;
    if phys.length > obj.dn.data_len().min(limit) || phys.length != 0 && obj.is_empty() {
        return Err(Error::corrupt(format!(
            "{}: space map of {} bytes in an object of {}, or longer than it can be",
            obj.place(),
            phys.length,
            obj.dn.data_len()
        )));
    }
    // Two-word entries do not straddle blocks, and a piece is whole blocks.
    let bs = u64::from(obj.dn.datablksz());
    let piece = (PIECE / bs).max(1) * bs;
    let mut at = 0;
    while at < phys.length {
        let n = piece.min(phys.length - at);
        let data = obj.read(at, n as usize)?;
        for e in entries(&data, shift) {
            f(e.at(|| format!("{} from byte {at:#x}", obj.place()))?)?;
        }
        at += n;
    }
    Ok(phys)
}

/// Longest map of a metaslab of `size` bytes: OpenZFS condenses a map more than twice as long as it
/// must be, and no map is shorter than a few blocks.
pub fn map_limit(size: u64, ashift: u32) -> u64 {
    ((size >> ashift) * 64).max(4 << 20)
}

/// The object with a u64 for each metaslab, `n` of them.
fn array(pool: &PoolReader, obj: u64, n: u64) -> Result<Vec<u64>> {
    let o = pool.mos.object(obj)?;
    Ok(o.read(0, n as usize * 8)?.chunks_exact(8).map(|b| le64(b, 0)).collect())
}

impl Space {
    /// Replays the space maps of all vdevs, then the logs.
    pub fn load(pool: &PoolReader, sink: &mut Sink<'_>) -> Space {
        let mut space = Space::default();
        for top in &pool.config.vdev_tree.children {
            let (Some(obj), Some(shift)) = (top.metaslab_array, top.metaslab_shift) else { continue };
            if obj.0 == 0 || shift == 0 {
                continue;
            }
            let place = format!("vdev {}", top.id);
            if let Some(v) = sink.take(space.load_vdev_maps(pool, top, obj.0, shift).at(|| place)) {
                let errors = space.fill(pool, top, v);
                errors.into_iter().for_each(|e| sink.error(e));
            }
        }
        space.load_logs(pool, sink);
        for (id, v) in &mut space.vdevs {
            v.all = v.left.clone();
            sink.rep.allocated.insert(*id, v.all.total());
        }
        space
    }

    fn load_vdev_maps(&mut self, pool: &PoolReader, top: &VdevConfig, obj: u64, shift: u64) -> Result<VdevSpace> {
        let asize = top.asize.unwrap_or(0);
        if shift >= 63 || asize >> shift > MAX_METASLABS {
            return Err(Error::corrupt(format!("{asize} bytes in metaslabs of 2^{shift}")));
        }
        let n = asize >> shift;
        let objs = array(pool, obj, n).at(|| "metaslab array")?;
        let mut unflushed = vec![0; n as usize];
        if let Some(z) = top.zap_top
            && let Some(o) = zap::map_u64(&pool.mos.object(z.0)?)?.get("com.delphix:ms_unflushed_phys_txgs")
        {
            unflushed = array(pool, *o, n).at(|| "unflushed txgs")?;
        }
        // A dRAID's metaslabs begin at whole stripes.
        let stripe = match (top.draid_ndata, top.nparity) {
            (Some(d), Some(p)) if d < 256 && p < 4 => (d + p) << top.ashift.unwrap_or(9).min(16),
            _ => 1,
        };
        let metaslabs = (0..n)
            .map(|i| {
                let start = (i << shift).div_ceil(stripe) * stripe;
                let size = ((i + 1) << shift).saturating_sub(start) / stripe * stripe;
                Metaslab {
                    index: i,
                    start,
                    size,
                    object: objs[i as usize],
                    phys: None,
                    blksz: 0,
                    allocated: 0,
                    unflushed: unflushed[i as usize],
                    segments: [0; HISTOGRAM_BUCKETS],
                }
            })
            .collect();
        Ok(VdevSpace { metaslabs, shift: shift as u32, ..VdevSpace::default() })
    }

    /// Replays the maps of one vdev.
    fn fill(&mut self, pool: &PoolReader, top: &VdevConfig, mut v: VdevSpace) -> Vec<String> {
        let mut errors = Vec::new();
        let ashift = top.ashift.unwrap_or(9).clamp(9, 16) as u32;
        for ms in v.metaslabs.iter_mut().filter(|m| m.object != 0) {
            let name = format!("vdev {} metaslab {} (space map {})", top.id, ms.index, ms.object);
            if let Some(owner) = self.owners.insert(ms.object, name.clone()) {
                errors.push(format!("{name} is also that of {owner}"));
                continue;
            }
            let obj = match pool.mos.object(ms.object) {
                Ok(o) if o.dn.otype == ObjectType::SPACE_MAP => o,
                Ok(o) => {
                    errors.push(format!("{name}: object of type {}", o.dn.otype));
                    continue;
                }
                Err(e) => {
                    errors.push(format!("{name}: {e}"));
                    continue;
                }
            };
            ms.blksz = obj.dn.datablksz();
            let mut own = Ranges::default();
            let mut faults = 0;
            let replay = for_each_entry(&obj, ashift, map_limit(ms.size, ashift), &mut |e| {
                let Entry::Run { kind, vdev, offset, size } = e else { return Ok(()) };
                let inside = offset.checked_add(size).is_some_and(|end| end <= ms.size);
                let right = inside
                    && vdev.0 == 0
                    && match kind {
                        MapType::Alloc => own.add(offset, size),
                        MapType::Free => own.remove(offset, size),
                    };
                if !right {
                    faults += 1;
                    if faults > MAX_MAP_ERRORS {
                        return Err(Error::corrupt("too many faults"));
                    }
                    errors.push(format!("{name}: {kind:?} of {offset:#x}+{size:#x} does not fit what came before"));
                }
                Ok(())
            });
            match replay {
                Ok(phys) => ms.phys = Some(phys),
                Err(e) => errors.push(format!("{name}: {e}")),
            }
            ms.allocated = own.total();
            let mut at = 0;
            for (s, n) in own.iter() {
                histogram_add(&mut ms.segments, s - at, ashift);
                at = s + n;
                v.left.add(ms.start + s, n);
            }
            histogram_add(&mut ms.segments, ms.size.saturating_sub(at), ashift);
        }
        self.vdevs.insert(top.id as u32, v);
        errors
    }

    /// Applies the log space maps, oldest first.
    fn load_logs(&mut self, pool: &PoolReader, sink: &mut Sink<'_>) {
        let Some(Some(obj)) = sink.take(pool.entry_object("com.delphix:log_spacemap_zap")) else { return };
        let Some(logs) = sink.take(zap::int_map(&obj)) else { return };
        for (txg, o) in &logs {
            let name = format!("log space map of txg {txg} (object {o})");
            let Some(obj) = sink.take(pool.mos.object(*o).at(|| name.clone())) else { continue };
            let mut faults = 0;
            let mut errors = Vec::new();
            let replay = for_each_entry(&obj, 9, MAX_OTHER_MAP, &mut |e| {
                let Entry::Run { kind, vdev, offset, size } = e else { return Ok(()) };
                let Some(v) = self.vdevs.get_mut(&vdev.0) else { return Ok(()) };
                let ms = v.metaslabs.get((offset >> v.shift) as usize);
                let right = match ms {
                    Some(ms) if *txg < ms.unflushed => true,
                    Some(_) if kind == MapType::Alloc => v.left.add(offset, size),
                    Some(_) => v.left.remove(offset, size),
                    None => false,
                };
                if !right {
                    faults += 1;
                    if faults > MAX_MAP_ERRORS {
                        return Err(Error::corrupt("too many faults"));
                    }
                    errors.push(format!(
                        "{name}: {kind:?} of {vdev}:{offset:#x}+{size:#x} does not fit what came before"
                    ));
                }
                Ok(())
            });
            errors.into_iter().for_each(|e| sink.error(e));
            sink.take(replay.at(|| name));
            self.owners.insert(*o, format!("log of txg {txg}"));
        }
        let wanted: BTreeSet<u64> =
            self.vdevs.values().flat_map(|v| &v.metaslabs).map(|m| m.unflushed).filter(|&u| u != 0).collect();
        for u in wanted.iter().filter(|u| !logs.contains_key(u)) {
            sink.error(format!("metaslabs are unflushed since txg {u}, but there is no log space map of that txg"));
        }
    }

    /// Compares each map's header with its entries.
    pub fn check_headers(&self, pool: &PoolReader, sink: &mut Sink<'_>) {
        for (id, v) in &self.vdevs {
            let ashift = pool.io.tops.get(*id as usize).and_then(Option::as_ref).map_or(9, |t| t.ashift);
            for ms in &v.metaslabs {
                let Some(phys) = &ms.phys else { continue };
                let name = format!("vdev {id} metaslab {} (space map {})", ms.index, ms.object);
                if phys.alloc != ms.allocated as i64 {
                    sink.error(format!(
                        "{name}: says {} bytes are allocated, its entries {}",
                        phys.alloc, ms.allocated
                    ));
                }
                let Some(have) = &phys.histogram else { continue };
                if *have == ms.segments {
                    sink.rep.histograms_exact += 1;
                } else if is_cutting(have, &ms.segments, ms.size.saturating_sub(ms.allocated) >> ashift)
                    || ms.unflushed != 0 && v.is_cutting_with_logs(ms, have, ashift)
                {
                    sink.rep.histograms_split += 1;
                } else {
                    let what = format!(
                        "{name}: histogram {:?} is no cutting of the free segments {:?}",
                        sparse(have),
                        sparse(&ms.segments)
                    );
                    // With changes still in the logs a histogram may be of a state between the two.
                    if ms.unflushed == 0 || have.iter().any(|n| *n > ms.size >> ashift) {
                        sink.error(what);
                    } else {
                        sink.note(what);
                    }
                }
            }
        }
    }
    /// As [`Space::claim`] for a range that may cross metaslabs.
    pub fn claim_piecewise(&mut self, vdev: u32, offset: u64, size: u64) -> Result<()> {
        let shift = self.vdevs.get(&vdev).map_or(63, |v| v.shift);
        let end = offset.checked_add(size).ok_or_else(|| Error::corrupt("a range beyond 2^64"))?;
        let mut at = offset;
        while at < end {
            let stop = end.min(((at >> shift) + 1).checked_shl(shift).unwrap_or(end).max(at + 1));
            self.claim(vdev, at, stop - at)?;
            at = stop;
        }
        Ok(())
    }
    /// Claims a range for a block. The error tells a range claimed already from one never
    /// allocated.
    pub fn claim(&mut self, vdev: u32, offset: u64, size: u64) -> Result<()> {
        let place = format!("{vdev}:{offset:x}:{size:x}");
        let Some(v) = self.vdevs.get_mut(&vdev) else {
            return Err(Error::corrupt(format!("{place}: the vdev has no space maps")));
        };
        if offset >> v.shift != (offset.saturating_add(size).saturating_sub(1)) >> v.shift {
            return Err(Error::corrupt(format!("{place} crosses the end of a metaslab")));
        }
        if v.left.remove(offset, size) {
            return Ok(());
        }
        let why = if v.all.contains(offset, size) { "is claimed by more than one block" } else { "is not allocated" };
        v.left.clear(offset, size);
        Err(Error::corrupt(format!("{place} {why}")))
    }
}

fn sparse(h: &[u64; HISTOGRAM_BUCKETS]) -> BTreeMap<usize, u64> {
    h.iter().enumerate().filter(|(_, n)| **n != 0).map(|(i, n)| (i, *n)).collect()
}

/// Whether segments could have been cut into the pieces of `have`: OpenZFS counts space freed in
/// the last txgs apart and adds without merging. Piece sizes are known to a factor of two only, so
/// this is a necessary condition: the sums can agree, there are not fewer pieces than segments, and
/// no more space in large pieces than in large segments. `free`: sectors free in all.
fn is_cutting(have: &[u64; HISTOGRAM_BUCKETS], segments: &[u64; HISTOGRAM_BUCKETS], free: u64) -> bool {
    let at_least = |h: &[u64; HISTOGRAM_BUCKETS], from: usize| -> u128 {
        (from..HISTOGRAM_BUCKETS).map(|k| u128::from(h[k]) << k).sum()
    };
    let at_most = |h: &[u64; HISTOGRAM_BUCKETS], from: usize| -> u128 {
        (from..HISTOGRAM_BUCKETS).map(|k| u128::from(h[k]) * ((2u128 << k) - 1)).sum()
    };
    let free = u128::from(free);
    let count = |h: &[u64; HISTOGRAM_BUCKETS]| h.iter().map(|&n| u128::from(n)).sum::<u128>();
    let last = have[HISTOGRAM_BUCKETS - 1] != 0;
    at_least(have, 0) <= free
        && (free <= at_most(have, 0) || last)
        && count(have) >= count(segments)
        && (0..HISTOGRAM_BUCKETS).all(|k| last || at_least(have, k) <= at_most(segments, k))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_strict() {
        let mut r = Ranges::default();
        assert!(r.add(10, 10) && r.add(30, 10) && r.add(20, 10));
        assert_eq!(r.iter().collect::<Vec<_>>(), [(10, 30)]);
        assert!(!r.add(39, 5) && !r.add(5, 6) && !r.add(0, 100) && r.add(0, 10));
        assert!(r.remove(5, 10) && !r.remove(5, 1) && !r.remove(14, 2));
        assert_eq!(r.iter().collect::<Vec<_>>(), [(0, 5), (15, 25)]);
        r.clear(3, 20);
        assert_eq!(r.iter().collect::<Vec<_>>(), [(0, 3), (23, 17)]);
        assert_eq!(r.total(), 20);
        assert_eq!(r.within(4, 30).collect::<Vec<_>>(), [(23, 30)]);
        assert_eq!(r.within(1, 24).collect::<Vec<_>>(), [(1, 3), (23, 24)]);
        assert!(!r.add(u64::MAX, 2) && !r.remove(u64::MAX, 2));
    }

    #[test]
    fn cuttings() {
        let h = |v: &[(usize, u64)]| {
            let mut h = [0; HISTOGRAM_BUCKETS];
            v.iter().for_each(|&(i, n)| h[i] = n);
            h
        };
        // A segment of 12 sectors as 8 + 4.
        assert!(is_cutting(&h(&[(2, 1), (3, 1)]), &h(&[(3, 1)]), 12));
        // More than is free; fewer pieces than segments; a piece larger than any segment.
        assert!(!is_cutting(&h(&[(4, 1)]), &h(&[(3, 1)]), 12));
        assert!(!is_cutting(&h(&[(3, 1)]), &h(&[(2, 2)]), 12));
    }
}
