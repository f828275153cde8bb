//! Log space maps (feature log_spacemap, format page 06 section 7): changes that another writer has
//! not flushed to the metaslabs' own maps.
//!
//! With the feature a writer appends all allocations and frees of a txg to one map, the log of that
//! txg, and applies them to the metaslabs' own maps later (*flushes* them), a few metaslabs a txg.
//! For each metaslab an array has the first txg that is not flushed; the entries of the logs from
//! then on for its range come on top of its own map.
//!
//! The normal path. At an import [`Logs::read`] reads all logs, oldest first, and collects for
//! every metaslab the ranges whose state differs from its own map ([`Unflushed`]).
//! [`crate::commit::store::MapStore`] adds them to every map that it loads. The first txg that is
//! written flushes all of them, empties the arrays and frees the logs: like any txg it is on disk
//! as a whole or not at all. From then on weir writes to the metaslabs' own maps, which the format
//! allows; the feature stays active, and OpenZFS begins new logs when it imports the pool again.
//!
//! Invariants: an [`Unflushed`] has only space of its metaslab; its two trees are disjoint; the
//! ranges in `frees` are allocated in the own map, those in `allocs` are free (the load of the
//! metaslab verifies it).

use std::collections::BTreeMap;

use base::{Error, ObjectId, Result, ResultExt, VdevId};
use dmu::{Dnode, Objset, Tx, zap};
use dsl::features::Features;
use metaslab::{RangeTree, Run};
use ondisk::bytes::le64;
use ondisk::space_map::{Entry, MapType, entries};
use vdev::Top;

use crate::commit::space_map::{free_space_map, header};
use crate::commit::store::{Geometry, MapStore};

/// Entry of the MOS directory: the ZAP of logs by txg.
const LOGS: &[u8] = b"com.delphix:log_spacemap_zap";
/// Entry of a top-level vdev's ZAP: the array of txgs from which on its metaslabs are not flushed.
const UNFLUSHED_TXGS: &[u8] = b"com.delphix:ms_unflushed_phys_txgs";
/// Bytes of a map that are read at once, about.
const PART: u64 = 1 << 20;

/// Bytes of a map to read at once: whole blocks, which hold whole entries.
pub(crate) fn part_of(map: &Dnode) -> u64 {
    let block = u64::from(map.block_size());
    (PART / block).max(1) * block
}

/// The differences of a metaslab from its own map.
#[derive(Clone, Debug)]
pub(crate) struct Unflushed {
    /// Allocated, but free in its map.
    pub allocs: RangeTree,
    /// Free, but allocated in its map.
    pub frees: RangeTree,
}

impl Unflushed {
    fn new(run: Run, shift: u8) -> Unflushed {
        let tree = RangeTree::new(run.start, run.size, shift);
        Unflushed { frees: tree.empty_like(), allocs: tree }
    }

    /// Applies one entry of a log: parts that undo an older one cancel it, the rest is added.
    fn apply(&mut self, kind: MapType, run: Run) -> Result<()> {
        let (own, other) = match kind {
            MapType::Alloc => (&mut self.allocs, &mut self.frees),
            MapType::Free => (&mut self.frees, &mut self.allocs),
        };
        let mut at = run.start;
        while at < run.end() {
            match other.overlap(at, run.end() - at) {
                Some(hit) => {
                    let (start, end) = (hit.start.max(at), hit.end().min(run.end()));
                    if start > at {
                        own.add(at, start - at)?;
                    }
                    other.remove(start, end - start)?;
                    at = end;
                }
                None => {
                    own.add(at, run.end() - at)?;
                    at = run.end();
                }
            }
        }
        Ok(())
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.allocs.is_empty() && self.frees.is_empty()
    }

    /// Allocated bytes more than in the own map.
    pub(crate) fn delta(&self) -> i64 {
        self.allocs.total() as i64 - self.frees.total() as i64
    }
}

/// The logs of a pool.
#[derive(Default, Debug)]
pub(crate) struct Logs {
    zap: Option<ObjectId>,
    /// Txg, object.
    logs: Vec<(u64, ObjectId)>,
    /// Arrays of unflushed txgs.
    arrays: Vec<ObjectId>,
}

impl Logs {
    /// Whether there is nothing to flush or free.
    pub(crate) fn is_empty(&self) -> bool {
        self.logs.is_empty() && self.arrays.is_empty()
    }

    /// Reads all logs and passes their changes of the metaslabs of `tops` to `store`.
    pub(crate) async fn read(
        mos: &Objset,
        directory: &Dnode,
        tops: &[std::rc::Rc<Top>],
        store: &MapStore,
    ) -> Result<Logs> {
        let mut out = Logs::default();
        let mut since: BTreeMap<VdevId, Vec<u64>> = BTreeMap::new();
        for top in tops {
            if let Some((object, txgs)) = unflushed_txgs(mos, top).await.at(|| format!("vdev {}", top.id))? {
                if txgs.iter().any(|t| *t != 0) {
                    out.arrays.push(object);
                }
                since.insert(top.id, txgs);
            }
        }
        let Some(object) = zap::lookup_u64(directory, LOGS).await? else { return Ok(out) };
        out.zap = Some(ObjectId(object));
        let dn = mos.hold(ObjectId(object)).await.at(|| "list of log space maps")?;
        for entry in zap::list(&dn).await.at(|| "list of log space maps")? {
            let name = String::from_utf8_lossy(&entry.name).into_owned();
            let (Ok(txg), Some(object)) = (u64::from_str_radix(&name, 16), entry.value.as_u64()) else {
                return Err(Error::corrupt(format!("the list of log space maps has an entry '{name}'")));
            };
            out.logs.push((txg, ObjectId(object)));
        }
        out.logs.sort_unstable();
        let mut all: BTreeMap<(VdevId, u64), Unflushed> = BTreeMap::new();
        for (txg, object) in &out.logs {
            let place = || format!("log space map of txg {txg}");
            let dn = mos.hold(*object).await.at(place)?;
            let phys = header(&dn).at(place)?;
            let (mut at, step) = (0, part_of(&dn));
            while at < phys.length {
                let n = step.min(phys.length - at);
                for part in dn.read_range(at, n).await.at(place)? {
                    for entry in entries(&part, 9) {
                        let Entry::Run { kind, vdev, offset, size } = entry.at(place)? else { continue };
                        // Entries of removed vdevs are void.
                        let (Some(geometry), Some(txgs)) = (store.geometry_of(vdev), since.get(&vdev)) else {
                            continue;
                        };
                        let (ms, unflushed) = locate(geometry, txgs, offset, size).at(place)?;
                        if unflushed > *txg {
                            continue;
                        }
                        let run = geometry.range(ms);
                        let u = all.entry((vdev, ms)).or_insert_with(|| Unflushed::new(run, geometry.ashift));
                        u.apply(kind, Run { start: offset, size }).at(place)?;
                    }
                }
                at += n;
            }
        }
        all.retain(|_, u| !u.is_empty());
        store.set_unflushed(all);
        Ok(out)
    }

    /// Frees the logs: this txg has flushed all of their entries to the metaslabs' own maps.
    pub(crate) async fn retire(self, mos: &Objset, features: &Features, tx: &Tx) -> Result<()> {
        for array in &self.arrays {
            mos.hold(*array).await?.free_range(0, u64::MAX, tx).await?;
        }
        let Some(list) = self.zap else { return Ok(()) };
        let list = mos.hold(list).await?;
        for (txg, object) in &self.logs {
            free_space_map(mos, features, *object, tx).await?;
            zap::remove(&list, format!("{txg:x}").as_bytes(), tx).await?;
        }
        Ok(())
    }
}

/// The metaslab of a range, and its first unflushed txg.
fn locate(geometry: Geometry, txgs: &[u64], offset: u64, size: u64) -> Result<(u64, u64)> {
    let ms = offset >> geometry.ms_shift;
    let unflushed = usize::try_from(ms).ok().and_then(|ms| txgs.get(ms));
    match unflushed {
        Some(txg) if (offset + size - 1) >> geometry.ms_shift == ms => Ok((ms, *txg)),
        _ => Err(Error::corrupt(format!("{size} bytes at offset {offset:#x} are not within one metaslab"))),
    }
}

/// The array of unflushed txgs of a vdev, and its object; None if it never had logs.
async fn unflushed_txgs(mos: &Objset, top: &Top) -> Result<Option<(ObjectId, Vec<u64>)>> {
    let Some(zap_object) = top.config().zap_top.filter(|o| o.0 != 0) else { return Ok(None) };
    let zap_dn = mos.hold(zap_object).await.at(|| "ZAP of the vdev")?;
    let Some(object) = zap::lookup_u64(&zap_dn, UNFLUSHED_TXGS).await? else { return Ok(None) };
    let dn = mos.hold(ObjectId(object)).await.at(|| "array of unflushed txgs")?;
    let mut words = vec![0u8; top.ms_count() as usize * 8];
    dn.read(0, &mut words).await.at(|| "array of unflushed txgs")?;
    Ok(Some((ObjectId(object), (0..top.ms_count() as usize).map(|i| le64(&words, i * 8)).collect())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const UNIT: u64 = 512;

    proptest! {
        /// Logs on top of an own map give the same as a plain set of units.
        #[test]
        fn entries_on_top_of_a_map(own in proptest::collection::vec(any::<bool>(), 64), steps in proptest::collection::vec((0u64..64, 1u64..16, any::<bool>()), 0..60)) {
            let run = Run { start: 1 << 20, size: 64 * UNIT };
            let mut now = own.clone();
            let mut u = Unflushed::new(run, 9);
            for (at, len, alloc) in steps {
                // Only what a writer may log: whole ranges change.
                let range = at as usize..(at + len).min(64) as usize;
                if now[range.clone()].contains(&alloc) {
                    continue;
                }
                now[range.clone()].fill(alloc);
                let kind = if alloc { MapType::Alloc } else { MapType::Free };
                u.apply(kind, Run { start: run.start + range.start as u64 * UNIT, size: range.len() as u64 * UNIT }).expect("sane");
            }
            for (i, (before, after)) in own.iter().zip(&now).enumerate() {
                let at = run.start + i as u64 * UNIT;
                prop_assert_eq!(u.allocs.contains(at, UNIT), !before && *after);
                prop_assert_eq!(u.frees.contains(at, UNIT), *before && !after);
            }
            let count = |v: &[bool]| v.iter().filter(|t| **t).count() as i64;
            prop_assert_eq!(u.delta(), (count(&now) - count(&own)) * UNIT as i64);
        }
    }

    #[test]
    fn contradictions_are_damage() {
        let mut u = Unflushed::new(Run { start: 0, size: 64 * UNIT }, 9);
        u.apply(MapType::Alloc, Run { start: 0, size: 4 * UNIT }).expect("first");
        assert!(u.apply(MapType::Alloc, Run { start: 2 * UNIT, size: 4 * UNIT }).is_err());
        assert!(u.clone().apply(MapType::Alloc, Run { start: 60 * UNIT, size: 8 * UNIT }).is_err());
        let geometry = Geometry { ms_shift: 24, ashift: 9, unit: 512 };
        assert_eq!(locate(geometry, &[7, 8], (1 << 24) + 512, 1024).expect("inside"), (1, 8));
        assert!(locate(geometry, &[7, 8], (1 << 24) - 512, 1024).is_err());
        assert!(locate(geometry, &[7, 8], 2 << 24, 1024).is_err());
    }
}
