//! Where the allocator reads space maps: objects of the MOS, as of the last commit.
//!
//! The table keeps, for every metaslab, the object and length that the last committed txg left. A load reads exactly so many bytes, so entries that the
//! txg under way has appended already are not taken twice; the allocator knows those itself.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use base::{Error, ObjectId, Result, ResultExt, VdevId};
use dmu::Objset;
use metaslab::{LBF, LoadedMap, MsSummary, Replay, Run, SpaceMapStore};
use ondisk::bytes::le64;
use ondisk::space_map::SpaceMapPhys;

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

/// How the metaslabs of one top-level vdev are cut.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Geometry {
    /// log2 of the metaslab size.
    pub ms_shift: u8,
    /// log2 of the allocation unit.
    pub ashift: u8,
    /// Bytes that metaslabs begin at multiples of and are multiples of.
    pub unit: u64,
}

impl Geometry {
    /// Where metaslab `ms` lies: see [`vdev::Top::ms_range`].
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
    /// Changes of the txg under way, taken over when it is committed.
    pending: RefCell<BTreeMap<(VdevId, u64), Committed>>,
}

impl MapStore {
    pub(crate) fn new() -> Rc<MapStore> {
        Rc::default()
    }

    pub(crate) fn set_mos(&self, mos: Objset) {
        *self.mos.borrow_mut() = Some(mos);
    }

    /// Lets go of the MOS, which holds the allocator, which holds this store.
    pub(crate) fn close(&self) {
        *self.mos.borrow_mut() = None;
    }

    pub(crate) fn set_geometry(&self, vdev: VdevId, geometry: Geometry) {
        self.geometry.borrow_mut().insert(vdev, geometry);
    }

    pub(crate) fn geometry(&self, vdev: VdevId) -> Geometry {
        *self.geometry.borrow().get(&vdev).expect("every top-level vdev with metaslabs has its geometry")
    }

    /// The newest state of a map, that of the txg under way included.
    pub(crate) fn newest(&self, vdev: VdevId, ms: u64) -> Option<Committed> {
        let key = (vdev, ms);
        self.pending.borrow().get(&key).or(self.committed.borrow().get(&key)).copied()
    }

    pub(crate) fn note(&self, vdev: VdevId, ms: u64, state: Committed) {
        self.pending.borrow_mut().insert((vdev, ms), state);
    }

    /// The txg under way is committed.
    pub(crate) fn commit(&self) {
        self.committed.borrow_mut().append(&mut self.pending.borrow_mut());
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
                continue;
            }
            let dn = mos.hold(object).await.at(|| format!("space map of metaslab {ms} of vdev {vdev}"))?;
            let phys = dn.with_bonus(SpaceMapPhys::parse)?;
            *summary =
                MsSummary { object: Some(object), alloc: phys.alloc, histogram: phys.histogram, length: phys.length };
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
        let Some(state) = committed else {
            return Ok(LoadedMap { allocated: replay.finish(0)?, alloc: 0, histogram: None, object: None, length: 0 });
        };
        let mos =
            self.mos.borrow().clone().ok_or_else(|| Error::corrupt("space maps are read before the MOS is open"))?;
        let dn = mos.hold(state.object).await?;
        for part in dn.read_range(0, state.length).await? {
            replay.entries(&part)?;
        }
        let allocated = replay.finish(state.alloc)?;
        Ok(LoadedMap {
            allocated,
            alloc: state.alloc,
            histogram: state.histogram,
            object: Some(state.object),
            length: state.length,
        })
    }
}

impl SpaceMapStore for MapStore {
    fn load<'a>(&'a self, vdev: VdevId, ms: u64) -> LBF<'a, Result<LoadedMap>> {
        Box::pin(async move { self.read(vdev, ms).await.at(|| format!("metaslab {ms} of vdev {vdev}")) })
    }
}
