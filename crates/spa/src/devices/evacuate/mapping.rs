//! The mapping of a vdev that is being removed, on disk and in memory (format page 14 section 5).

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::rc::Rc;

use base::{Error, ObjectId, Result, ResultExt, Txg};
use dmu::{Dnode, ObjSpec, Tx, zap};
use ondisk::bytes::le64;
use ondisk::feature::FeatureId;
use ondisk::indirect::{BIRTHS_ENTRY_SIZE, BIRTHS_SIZE, MAPPING_BLKSZ, MappingEntry, births_entry};
use ondisk::object_type::ObjectType;
use vdev::{IndirectMap, Top, TxgSet};
use zio::Copied;

use super::plan::Chunk;
use crate::commit::removed::{Mapping, MappingObject, OBSOLETE_KEY, PRECISE_KEY};
use crate::commit::space_map::free_space_map;
use crate::stack::Stack;

/// A chunk with its place.
pub(super) struct Placed {
    pub chunk: Chunk,
    pub entry: MappingEntry,
}

fn births_count(births: &Dnode) -> u64 {
    births.with_bonus(|b| if b.len() >= BIRTHS_SIZE { le64(b, 0) } else { 0 })
}

/// The objects of a mapping, and its entries.
pub(super) struct MappingObjects {
    mapping: MappingObject,
    births: Dnode,
    entries: Rc<Mapping>,
    /// The txgs that appended entries.
    birth_txgs: RefCell<BTreeSet<u64>>,
    /// The last txg that appended entries, and where the first of them starts.
    newest: Cell<(Txg, u64)>,
}

impl MappingObjects {
    /// Creates the objects of an empty mapping, with the keys of `top` that name them, and counts
    /// the features.
    pub async fn create(stack: &Stack, top: &Top, tx: &Tx) -> Result<MappingObjects> {
        let features = &stack.features;
        features.add(FeatureId::DeviceRemoval, 1, tx).await?;
        if features.is_enabled(FeatureId::ObsoleteCounts) {
            let zap_object = top.config_ref().zap_top.filter(|o| o.0 != 0);
            let zap_object = zap_object.ok_or_else(|| Error::unsupported("the vdev has no ZAP"))?;
            zap::add_u64(&stack.mos.hold(zap_object).await?, PRECISE_KEY, 1, tx).await?;
            features.add(FeatureId::ObsoleteCounts, 1, tx).await?;
        }
        let mapping = MappingObject::create(stack, tx).await?;
        let number = ObjectType::OTN_U64_METADATA;
        let spec = ObjSpec::new(number, MAPPING_BLKSZ).bonus(number, BIRTHS_SIZE as u16);
        let births = stack.mos.alloc(spec, tx).await?;
        births.set_bonus(&[0; BIRTHS_SIZE], tx)?;
        top.update_config(|c| {
            c.indirect_object = Some(mapping.object());
            c.indirect_births = Some(births.object());
        });
        let newest = Cell::new((Txg(0), 0));
        let birth_txgs = RefCell::default();
        Ok(MappingObjects { mapping, births, entries: Rc::default(), birth_txgs, newest })
    }

    /// Opens the objects that the configuration of `top` names.
    pub async fn open(stack: &Stack, top: &Top) -> Result<MappingObjects> {
        let object = |o: Option<ObjectId>| o.filter(|o| o.0 != 0).ok_or_else(|| Error::corrupt("it has no mapping"));
        let (mapping, births) = {
            let config = top.config_ref();
            (object(config.indirect_object)?, object(config.indirect_births)?)
        };
        let entries = Rc::new(Mapping::read(&stack.mos, mapping).await?);
        let mapping = MappingObject::open(&stack.mos, mapping).await?;
        if entries.end() > mapping.phys().max_offset {
            return Err(Error::corrupt("its mapping says that it ends before its last entry"));
        }
        let births = stack.mos.hold(births).await?;
        let room = births.max_blkid().saturating_add(1).saturating_mul(u64::from(births.block_size()));
        if births_count(&births) > room / BIRTHS_ENTRY_SIZE as u64 {
            return Err(Error::corrupt("its births are longer than their object"));
        }
        let mut raw = vec![0; births_count(&births) as usize * BIRTHS_ENTRY_SIZE];
        births.read(0, &mut raw).await?;
        let birth_txgs = RefCell::new(raw.chunks_exact(BIRTHS_ENTRY_SIZE).map(|entry| le64(entry, 8)).collect());
        let newest = Cell::new((Txg(0), 0));
        Ok(MappingObjects { mapping, births, entries, birth_txgs, newest })
    }

    /// Everything in use below is mapped, on disk or by the txg that is being synced.
    pub fn max_offset(&self) -> u64 {
        self.mapping.phys().max_offset
    }

    /// The entries in memory.
    pub fn entries(&self) -> &Rc<Mapping> {
        &self.entries
    }

    /// The last txg that is in `txgs` and appended entries.
    pub fn last_birth_in(&self, txgs: &TxgSet) -> Option<Txg> {
        let births = self.birth_txgs.borrow();
        let last = |&(start, end): &(u64, u64)| births.range(start..end).next_back().copied();
        txgs.runs().iter().filter_map(last).max().map(Txg)
    }

    /// Appends chunks, ascending, which are beyond all others, and everything of which is copied.
    pub async fn append(&self, placed: &[Placed], tx: &Tx) -> Result<()> {
        let Some(first) = placed.first() else { return Ok(()) };
        // A chunk has less than 4 GiB.
        let obsolete = |p: &Placed| (p.chunk.len - p.chunk.used()) as u32;
        let entries: Vec<(MappingEntry, u32)> = placed.iter().map(|p| (p.entry, obsolete(p))).collect();
        self.mapping.append(&entries, tx).await?;
        if !planted!(BirthsUnwritten) {
            let count = births_count(&self.births);
            let entry = births_entry(self.max_offset(), tx.txg());
            self.births.write(count * BIRTHS_ENTRY_SIZE as u64, &entry, tx).await?;
            self.births.set_bonus(&(count + 1).to_le_bytes(), tx)?;
        }
        self.entries.extend(placed.iter().map(|p| p.entry));
        self.birth_txgs.borrow_mut().insert(tx.txg().0);
        self.newest.set((tx.txg(), first.entry.src));
        Ok(())
    }

    /// The copies of a range below [`MappingObjects::max_offset`], for a free in `txg`, which is
    /// being synced.
    pub fn copies(&self, start: u64, len: u64, txg: Txg) -> Result<Vec<Copied>> {
        let (newest, first) = self.newest.get();
        let parts = self.entries.remap(start, len).at(|| "a vdev that is being removed")?;
        let copied = |(at, vdev, offset, len): (u64, base::VdevId, u64, u64)| Copied {
            from: start + at,
            to: ondisk::blkptr::Dva::new(vdev, offset, len, false),
            is_new: newest == txg && start + at >= first,
        };
        Ok(parts.into_iter().map(copied).collect())
    }

    /// Frees all objects, with the keys that name them.
    pub async fn free(&self, stack: &Stack, top: &Top, tx: &Tx) -> Result<()> {
        let (mos, features) = (&stack.mos, &stack.features);
        let zap_object = top.config_ref().zap_top.filter(|o| o.0 != 0);
        if let Some(zap_object) = zap_object {
            let dn = mos.hold(zap_object).await?;
            if zap::lookup_u64(&dn, PRECISE_KEY).await?.is_some() {
                zap::remove(&dn, PRECISE_KEY, tx).await?;
                features.add(FeatureId::ObsoleteCounts, -1, tx).await?;
            }
            if let Some(map) = zap::lookup_u64(&dn, OBSOLETE_KEY).await? {
                zap::remove(&dn, OBSOLETE_KEY, tx).await?;
                free_space_map(mos, features, ObjectId(map), tx).await?;
                features.add(FeatureId::ObsoleteCounts, -1, tx).await?;
            }
        }
        self.mapping.free(stack, tx).await?;
        mos.free(self.births.object(), tx).await?;
        features.add(FeatureId::DeviceRemoval, -1, tx).await?;
        top.update_config(|c| (c.indirect_object, c.indirect_births) = (None, None));
        Ok(())
    }
}
