//! The source of the allocator's space maps: objects of the MOS, as of the last commit.
//!
//! The table has, for every metaslab, the object and length as of the last committed txg. A load
//! reads exactly that many bytes, so it skips the entries that the txg under way has appended; the
//! allocator has those itself. Changes from log space maps ([`crate::commit::logs`]) are kept in
//! memory until the txg that flushes them is committed, and added to each load.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use base::{Error, Nanos, ObjectId, Result, ResultExt, VdevId};
use dmu::Objset;
use metaslab::{LoadedMap, MsSummary, Replay, Run, SpaceMapStore};
use ondisk::bytes::le64;
use ondisk::space_map::histogram_add;
use rt::LocalBoxFuture;
use rt::cost::SPACE_REPLAY;

use crate::commit::logs::{Unflushed, part_of};
use crate::commit::space_map::header;

/// The committed state of one metaslab's space map.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Committed {
    /// Its object.
    pub object: ObjectId,
    /// Bytes of entries.
    pub length: u64,
    /// Allocated bytes.
    pub alloc: i64,
    /// Its histogram.
    pub histogram: Option<[u64; 32]>,
}

/// The layout of the metaslabs of one top-level vdev.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Geometry {
    /// log2 of the metaslab size.
    pub ms_shift: u8,
    /// log2 of the allocation unit.
    pub ashift: u8,
    /// Alignment of metaslabs' starts and sizes, in bytes.
    pub unit: u64,
}

impl Geometry {
    /// The range of metaslab `ms`: see [`vdev::Top::ms_range`].
    pub(crate) fn range(&self, ms: u64) -> Run {
        let (start, size) = (ms << self.ms_shift, 1u64 << self.ms_shift);
        let first = start.next_multiple_of(self.unit);
        Run { start: first, size: (start + size - first) / self.unit * self.unit }
    }
}

/// The space maps of a pool.
#[derive(Default)]
pub(crate) struct MapStore {
    mos: RefCell<Option<Objset>>,
    geometry: RefCell<BTreeMap<VdevId, Geometry>>,
    committed: RefCell<BTreeMap<(VdevId, u64), Committed>>,
    /// Changes of the txg under way, applied at its commit.
    pending: RefCell<BTreeMap<(VdevId, u64), Committed>>,
    /// Changes from log space maps that the committed maps lack.
    unflushed: RefCell<BTreeMap<(VdevId, u64), Rc<Unflushed>>>,
    /// Metaslabs whose unflushed changes the txg under way has written to the maps.
    flushing: RefCell<Vec<(VdevId, u64)>>,
}

impl MapStore {
    pub(crate) fn new() -> Rc<MapStore> {
        Rc::default()
    }

    pub(crate) fn set_mos(&self, mos: Objset) {
        *self.mos.borrow_mut() = Some(mos);
    }

    /// Drops the MOS, which references the allocator, which references this store.
    pub(crate) fn close(&self) {
        *self.mos.borrow_mut() = None;
    }

    pub(crate) fn set_geometry(&self, vdev: VdevId, geometry: Geometry) {
        self.geometry.borrow_mut().insert(vdev, geometry);
    }

    pub(crate) fn geometry(&self, vdev: VdevId) -> Geometry {
        *self.geometry.borrow().get(&vdev).expect("every top-level vdev with metaslabs has its geometry")
    }

    /// As [`MapStore::geometry`] of a vdev that may not exist.
    pub(crate) fn geometry_of(&self, vdev: VdevId) -> Option<Geometry> {
        self.geometry.borrow().get(&vdev).copied()
    }

    /// Sets the unflushed changes; before [`MapStore::summaries`].
    pub(crate) fn set_unflushed(&self, all: BTreeMap<(VdevId, u64), Unflushed>) {
        *self.unflushed.borrow_mut() = all.into_iter().map(|(at, u)| (at, Rc::new(u))).collect();
    }

    /// The metaslabs with unflushed changes.
    pub(crate) fn unflushed_metaslabs(&self) -> Vec<(VdevId, u64)> {
        self.unflushed.borrow().keys().copied().collect()
    }

    /// The unflushed changes that the txg under way must add to a map before its own, once.
    pub(crate) fn flush(&self, vdev: VdevId, ms: u64) -> Option<Rc<Unflushed>> {
        let at = (vdev, ms);
        let unflushed = self.unflushed.borrow().get(&at).cloned()?;
        let mut flushing = self.flushing.borrow_mut();
        if flushing.contains(&at) {
            return None;
        }
        flushing.push(at);
        Some(unflushed)
    }

    /// The newest state of a map, that of the txg under way included.
    pub(crate) fn newest(&self, vdev: VdevId, ms: u64) -> Option<Committed> {
        let key = (vdev, ms);
        self.pending.borrow().get(&key).or(self.committed.borrow().get(&key)).copied()
    }

    pub(crate) fn note(&self, vdev: VdevId, ms: u64, state: Committed) {
        self.pending.borrow_mut().insert((vdev, ms), state);
    }

    /// Removes a vdev with all its maps.
    pub(crate) fn forget(&self, vdev: VdevId) {
        self.geometry.borrow_mut().remove(&vdev);
        self.committed.borrow_mut().retain(|(v, _), _| *v != vdev);
        self.pending.borrow_mut().retain(|(v, _), _| *v != vdev);
        self.unflushed.borrow_mut().retain(|(v, _), _| *v != vdev);
    }

    /// Applies the changes of the txg under way, at its commit.
    pub(crate) fn commit(&self) {
        self.committed.borrow_mut().append(&mut self.pending.borrow_mut());
        for at in self.flushing.take() {
            self.unflushed.borrow_mut().remove(&at);
        }
    }

    /// Reads the metaslab array and the headers of a vdev's space maps, for the allocator.
    pub(crate) async fn summaries(
        &self,
        mos: &Objset,
        vdev: VdevId,
        array: ObjectId,
        count: u64,
    ) -> Result<Vec<MsSummary>> {
        let place = || format!("metaslab array of vdev {vdev}");
        let mut out = vec![MsSummary::default(); usize::try_from(count).unwrap_or(0)];
        if array.0 == 0 {
            return Ok(out);
        }
        let dn = mos.hold(array).await.at(place)?;
        let mut words = vec![0u8; out.len() * 8];
        dn.read(0, &mut words).await.at(place)?;
        for (ms, summary) in out.iter_mut().enumerate() {
            let object = ObjectId(le64(&words, ms * 8));
            if object.0 == 0 {
                if self.unflushed.borrow().contains_key(&(vdev, ms as u64)) {
                    return Err(Error::corrupt(format!(
                        "metaslab {ms} of vdev {vdev} has no space map, but is in log space maps"
                    )));
                }
                continue;
            }
            let dn = mos.hold(object).await.at(|| format!("space map of metaslab {ms} of vdev {vdev}"))?;
            let phys = header(&dn).at(|| format!("metaslab {ms} of vdev {vdev}"))?;
            let (mut alloc, mut histogram) = (phys.alloc, phys.histogram);
            if let Some(u) = self.unflushed.borrow().get(&(vdev, ms as u64)) {
                alloc = alloc.saturating_add(u.delta());
                // Allocations within the counted segments are unknown without reading the map.
                if let Some(h) = &mut histogram {
                    let shift = u32::from(self.geometry(vdev).ashift);
                    u.frees.iter().for_each(|r| histogram_add(h, r.size, shift));
                }
            }
            *summary = MsSummary { object: Some(object), alloc, histogram, length: phys.length };
            let state = Committed { object, length: phys.length, alloc: phys.alloc, histogram: phys.histogram };
            self.committed.borrow_mut().insert((vdev, ms as u64), state);
        }
        Ok(out)
    }

    async fn read(&self, vdev: VdevId, ms: u64) -> Result<LoadedMap> {
        let geometry = self.geometry(vdev);
        let run = geometry.range(ms);
        let mut replay = Replay::new(run, geometry.ashift);
        let committed = self.committed.borrow().get(&(vdev, ms)).copied();
        let unflushed = self.unflushed.borrow().get(&(vdev, ms)).cloned();
        let Some(state) = committed else {
            return Ok(LoadedMap {
                free: replay.finish(0)?.complement(),
                alloc: 0,
                histogram: None,
                object: None,
                length: 0,
            });
        };
        let mos =
            self.mos.borrow().clone().ok_or_else(|| Error::corrupt("space maps are read before the MOS is open"))?;
        let rt = mos.ctx().rt();
        let dn = mos.hold(state.object).await?;
        let (mut at, step) = (0, part_of(&dn));
        while at < state.length {
            let n = step.min(state.length - at);
            for part in dn.read_range(at, n).await? {
                let cost = Nanos(SPACE_REPLAY.0 * (part.len() / 8) as u64);
                replay = rt.cpu(cost, move || replay.entries(&part).map(|()| replay)).await?;
            }
            at += n;
        }
        let mut alloc = state.alloc;
        if let Some(u) = unflushed {
            alloc = alloc.saturating_add(u.delta());
            let (allocs, frees): (Vec<Run>, Vec<Run>) = (u.allocs.iter().collect(), u.frees.iter().collect());
            let cost = Nanos(SPACE_REPLAY.0 * (allocs.len() + frees.len()) as u64);
            let job = move || {
                allocs.into_iter().try_for_each(|r| replay.alloc(r)).at(|| "log space maps")?;
                frees.into_iter().try_for_each(|r| replay.free(r)).at(|| "log space maps")?;
                Ok::<_, Error>(replay)
            };
            replay = rt.cpu(cost, job).await?;
        }
        let cost = Nanos(SPACE_REPLAY.0 * replay.segments() as u64);
        let free = rt.cpu(cost, move || replay.finish(alloc).map(|used| used.complement())).await?;
        Ok(LoadedMap { free, alloc, histogram: state.histogram, object: Some(state.object), length: state.length })
    }
}

impl SpaceMapStore for MapStore {
    fn load<'a>(&'a self, vdev: VdevId, ms: u64) -> LocalBoxFuture<'a, Result<LoadedMap>> {
        Box::pin(async move { self.read(vdev, ms).await.at(|| format!("metaslab {ms} of vdev {vdev}")) })
    }
}
