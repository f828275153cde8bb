//! The pool's checkpoint: a state that stays intact, to rewind to (format page 14 section 4).
//!
//! A checkpoint is a copy of an uberblock in the MOS directory. While it exists, the allocator does
//! not reuse freed space that it refers to (blocks born until its txg, *C*): the block stays
//! allocated in its metaslab, and a record goes to the *checkpoint space map* of its top-level
//! vdev. Discarding the checkpoint frees the ranges in these maps; rewinding to it makes its
//! uberblock the newest one.
//!
//! The normal path. [`Checkpoint::open`] reads the pool's checkpoint and sets C in the allocator.
//! In each pass of a txg [`Checkpoint::sync`] takes the ranges that the allocator held back and
//! appends them. Create and discard are requests that the next txg carries out before its first
//! free.
//!
//! Invariants: no block born until C is free in a metaslab's map while the entry in the directory
//! exists; each range held back is in one map, once; without the entry, the next txgs that are
//! written free the remaining ranges of the maps, from their ends to their beginnings.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use base::{Error, ErrorKind, ObjectId, Result, ResultExt, Txg, VdevId};
use dmu::{Dnode, Objset, Tx, zap};
use dsl::features::Features;
use metaslab::{Allocator, Run};
use ondisk::blkptr::Dva;
use ondisk::feature::FeatureId;
use ondisk::space_map::{Encoder, Entry, MapType, SpaceMapPhys, entries};
use ondisk::uberblock::Uberblock;
use ondisk::zap::ZapValue;
use vdev::VdevTree;

use crate::commit::logs::part_of;
use crate::commit::space_map::{alloc_space_map, free_space_map, header, set_header};
use crate::stack::Stack;

/// Entry of the MOS directory: the uberblock.
const ENTRY: &[u8] = b"com.delphix:zpool_checkpoint";
/// Entry of a top-level vdev's ZAP: its checkpoint space map.
const MAP_KEY: &[u8] = b"com.delphix:pool_checkpoint_sm";
/// Block size of checkpoint space maps.
const MAP_BLKSZ: u32 = 128 << 10;

/// About how many bytes of such maps are discarded in one txg: a million entries at most, so that
/// no txg takes long.
pub(crate) const DISCARD_PER_TXG: u64 = 4 << 20;

/// A checkpoint space map.
#[derive(Clone, Copy, Debug)]
struct Map {
    object: ObjectId,
    length: u64,
    /// Bytes held back.
    held: u64,
}

/// A request of an administrator.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum CheckpointRequest {
    Create,
    Discard,
}

/// The checkpoint of a pool, if it has one.
pub(crate) struct Checkpoint {
    /// Its txg.
    txg: Cell<Option<Txg>>,
    /// When its state was written, in seconds since 1970.
    time: Cell<u64>,
    maps: RefCell<BTreeMap<VdevId, Map>>,
    requested: Cell<Option<CheckpointRequest>>,
    /// Bytes of the maps that one txg frees from.
    limit: Cell<u64>,
}

/// The parts of the pool that a change needs.
pub(crate) struct Cx<'a> {
    pub mos: &'a Objset,
    pub directory: &'a Dnode,
    pub features: &'a Features,
    pub tree: &'a Rc<VdevTree>,
    pub alloc: &'a Allocator,
}

impl<'a> Cx<'a> {
    pub(crate) fn of(stack: &'a Stack) -> Cx<'a> {
        Cx {
            mos: &stack.mos,
            directory: &stack.directory,
            features: &stack.features,
            tree: &stack.tree,
            alloc: &stack.alloc,
        }
    }
}

/// The checkpoint's uberblock in the directory, if there is one.
pub(crate) async fn stored_uberblock(directory: &Dnode) -> Result<Option<Uberblock>> {
    let Some(value) = zap::lookup(directory, ENTRY).await? else { return Ok(None) };
    let bad = || Error::corrupt("the checkpoint in the MOS directory is no uberblock");
    let words = value.as_u64s().ok_or_else(bad)?;
    let ub = words.first_chunk().and_then(Uberblock::from_kept).ok_or_else(bad)?;
    Ok(Some(ub))
}

impl Checkpoint {
    /// Reads the pool's checkpoint and sets it in the allocator.
    pub(crate) async fn open(cx: &Cx<'_>) -> Result<Checkpoint> {
        let ub = stored_uberblock(cx.directory).await?;
        let mut maps = BTreeMap::new();
        if cx.features.is_active(FeatureId::ZpoolCheckpoint) {
            let tops = cx.tree.tops.borrow().clone();
            for top in tops {
                let Some(zap_object) = top.config().zap_top.filter(|o| o.0 != 0) else { continue };
                let dn = cx.mos.hold(zap_object).await?;
                let Some(object) = zap::lookup_u64(&dn, MAP_KEY).await? else { continue };
                let place = || format!("checkpoint space map of vdev {}", top.id);
                let phys = header(&cx.mos.hold(ObjectId(object)).await.at(place)?).at(place)?;
                let held = u64::try_from(phys.alloc.saturating_neg())
                    .map_err(|_| Error::corrupt(format!("{} holds {} bytes", place(), phys.alloc)))?;
                maps.insert(top.id, Map { object: ObjectId(object), length: phys.length, held });
            }
        }
        cx.alloc.set_checkpoint(ub.as_ref().map(|u| u.txg));
        Ok(Checkpoint {
            txg: Cell::new(ub.as_ref().map(|u| u.txg)),
            time: Cell::new(ub.as_ref().map_or(0, |u| u.timestamp)),
            maps: RefCell::new(maps),
            requested: Cell::new(None),
            limit: Cell::new(DISCARD_PER_TXG),
        })
    }

    /// Bytes of the maps that one txg frees from, from now on; a block of a map at least.
    pub(crate) fn set_limit(&self, limit: u64) {
        self.limit.set(limit.max(1));
    }

    /// When its state was written (seconds since 1970), and how many bytes of the vdevs only it
    /// uses.
    pub(crate) fn info(&self) -> Option<(u64, u64)> {
        self.txg.get().map(|_| (self.time.get(), self.maps.borrow().values().map(|m| m.held).sum()))
    }

    /// An error if the pool has one, or one is being discarded: its devices cannot be changed.
    pub(crate) fn check_none(&self) -> Result<()> {
        let why = match self.info() {
            Some(_) => "pool has a checkpoint: 'zpool checkpoint -d' gives it up",
            None if self.is_discarding() => "the space of a discarded checkpoint is still being freed",
            None => return Ok(()),
        };
        Err(Error::new(ErrorKind::Busy, why))
    }

    pub(crate) fn discarding(&self) -> Option<u64> {
        self.is_discarding().then(|| self.maps.borrow().values().map(|m| m.held).sum())
    }

    /// Bytes held back, deflated.
    pub(crate) fn held(&self, tree: &VdevTree) -> u64 {
        let maps = self.maps.borrow();
        maps.iter().map(|(vdev, map)| tree.top(*vdev).map_or(map.held, |top| top.dsize(map.held))).sum()
    }

    /// Queues a request for the next txg; an error if it is not possible now.
    pub(crate) fn request(&self, request: CheckpointRequest, features: &Features) -> Result<()> {
        match (request, self.txg.get()) {
            (CheckpointRequest::Create, Some(_)) => {
                return Err(Error::new(ErrorKind::Exists, "the pool has a checkpoint already: discard it first"));
            }
            (CheckpointRequest::Create, None) if !features.is_enabled(FeatureId::ZpoolCheckpoint) => {
                return Err(Error::unsupported("the feature zpool_checkpoint is not enabled in this pool"));
            }
            (CheckpointRequest::Create, None) if features.is_active(FeatureId::ZpoolCheckpoint) => {
                return Err(Error::new(ErrorKind::Busy, "the checkpoint before is still being discarded"));
            }
            (CheckpointRequest::Discard, None) => return Err(Error::not_found("the pool has no checkpoint")),
            _ => {}
        }
        self.requested.set(Some(request));
        Ok(())
    }

    /// Whether a discarded checkpoint still holds space.
    pub(crate) fn is_discarding(&self) -> bool {
        self.txg.get().is_none() && !self.maps.borrow().is_empty()
    }

    /// Whether the next txg has work here, before its first pass.
    pub(crate) fn is_dirty(&self) -> bool {
        self.requested.get().is_some() || self.is_discarding()
    }

    /// Carries out the request, before the first free of the txg. `committed` is the uberblock on
    /// disk.
    pub(crate) async fn begin(&self, cx: &Cx<'_>, committed: &Uberblock, tx: &Tx) -> Result<()> {
        match self.requested.take() {
            Some(CheckpointRequest::Create) => {
                let mut ub = committed.clone();
                ub.checkpoint_txg = ub.txg.0;
                let kept = ub.to_kept(cx.features.is_enabled(FeatureId::RaidzExpansion));
                zap::add(cx.directory, ENTRY, &ZapValue::from_u64s(&kept), tx).await?;
                cx.features.add(FeatureId::ZpoolCheckpoint, 1, tx).await?;
                self.txg.set(Some(ub.txg));
                self.time.set(ub.timestamp);
                cx.alloc.set_checkpoint(Some(ub.txg));
            }
            Some(CheckpointRequest::Discard) => {
                zap::remove(cx.directory, ENTRY, tx).await?;
                self.txg.set(None);
                cx.alloc.set_checkpoint(None);
            }
            None => {}
        }
        if self.txg.get().is_none() && cx.features.is_active(FeatureId::ZpoolCheckpoint) {
            self.discard_some(cx, tx).await?;
        }
        Ok(())
    }

    /// Frees the ranges at the ends of the maps, up to the limit of one txg, and maps that are
    /// empty.
    async fn discard_some(&self, cx: &Cx<'_>, tx: &Tx) -> Result<()> {
        let mut left = self.limit.get();
        while left > 0 {
            let first = self.maps.borrow().first_key_value().map(|(vdev, map)| (*vdev, *map));
            let Some((vdev, map)) = first else { break };
            let place = || format!("checkpoint space map of vdev {vdev}");
            let wrong = |held| Error::corrupt(format!("{} lists other than the {held} bytes that it says", place()));
            let top = cx.tree.top(vdev)?;
            if map.length == 0 {
                if map.held != 0 {
                    return Err(wrong(map.held));
                }
                let zap_object = top.config().zap_top.unwrap_or_default();
                zap::remove(&cx.mos.hold(zap_object).await?, MAP_KEY, tx).await?;
                free_space_map(cx.mos, cx.features, map.object, tx).await?;
                self.maps.borrow_mut().remove(&vdev);
                continue;
            }
            let dn = cx.mos.hold(map.object).await.at(place)?;
            // Whole blocks, which hold whole entries; one at least.
            let block = u64::from(dn.block_size());
            let step = part_of(&dn).min((left / block).max(1) * block);
            let start = (map.length - 1) / step * step;
            let mut held = map.held;
            for part in dn.read_range(start, map.length - start).await.at(place)? {
                for entry in entries(&part, u32::from(top.ashift)) {
                    let Entry::Run { kind, offset, size, .. } = entry.at(place)? else { continue };
                    if kind != MapType::Free {
                        return Err(Error::corrupt(format!("{} has an allocation", place())));
                    }
                    held = held.checked_sub(size).ok_or_else(|| wrong(map.held))?;
                    self.free_run(cx, vdev, Run { start: offset, size }, tx.txg()).at(place)?;
                }
            }
            let histogram = dn.with_bonus(SpaceMapPhys::parse)?.histogram.unwrap_or_default();
            set_header(&dn, start, -(held as i64), histogram, tx)?;
            self.maps.borrow_mut().insert(vdev, Map { length: start, held, ..map });
            left = left.saturating_sub(map.length - start);
        }
        let is_gone = self.maps.borrow().is_empty();
        if is_gone { cx.features.add(FeatureId::ZpoolCheckpoint, -1, tx).await } else { Ok(()) }
    }

    /// Frees a range that may span metaslabs.
    fn free_run(&self, cx: &Cx<'_>, vdev: VdevId, run: Run, txg: Txg) -> Result<()> {
        let shift = cx.tree.top(vdev)?.ms_shift.get();
        let mut at = run.start;
        while at < run.end() {
            let end = run.end().min(((at >> shift) + 1) << shift);
            // A DVA holds sizes up to some GiB only.
            let end = end.min(at + (1 << 30));
            cx.alloc.free(Dva::new(vdev, at, end - at, false), Txg(0), txg)?;
            at = end;
        }
        Ok(())
    }

    /// Appends the ranges held back since the last call to the maps.
    pub(crate) async fn sync(&self, cx: &Cx<'_>, pass: u32, tx: &Tx) -> Result<()> {
        for (vdev, runs) in cx.alloc.take_held_back() {
            let top = cx.tree.top(vdev)?;
            let known = self.maps.borrow().get(&vdev).copied();
            let map = match known {
                Some(map) => map,
                None => self.create_map(cx, vdev, tx).await?,
            };
            let dn = cx.mos.hold(map.object).await?;
            let v2 = cx.features.is_active(FeatureId::SpacemapV2);
            let mut encoder = Encoder::new(u32::from(top.ashift), u64::from(dn.block_size()), map.length, v2);
            encoder.group(MapType::Free, pass, tx.txg().0);
            let mut held = map.held;
            for run in &runs {
                encoder.run(MapType::Free, run.start, run.size);
                held += run.size;
            }
            let new = Map { object: map.object, length: encoder.length(), held };
            dn.write(map.length, &encoder.finish(), tx).await?;
            let histogram = dn.with_bonus(SpaceMapPhys::parse)?.histogram.unwrap_or_default();
            set_header(&dn, new.length, -(held as i64), histogram, tx)?;
            self.maps.borrow_mut().insert(vdev, new);
        }
        Ok(())
    }

    async fn create_map(&self, cx: &Cx<'_>, vdev: VdevId, tx: &Tx) -> Result<Map> {
        let dn = alloc_space_map(cx.mos, cx.features, MAP_BLKSZ, tx).await?;
        let zap_object = cx.tree.top(vdev)?.config().zap_top.filter(|o| o.0 != 0);
        let zap_object = zap_object
            .ok_or_else(|| Error::unsupported(format!("vdev {vdev} has no ZAP to keep a checkpoint space map in")))?;
        zap::add_u64(&cx.mos.hold(zap_object).await?, MAP_KEY, dn.object().0, tx).await?;
        Ok(Map { object: dn.object(), length: 0, held: 0 })
    }
}
