//! Removed vdevs: their mappings and obsolete ranges (format pages 09 section 11 and 14 section 5).
//!
//! The mapping of a removed vdev has the new places of its blocks. Block pointers still name the
//! removed vdev. A free of such a block frees the space of its copy, and the range of the removed
//! vdev becomes *obsolete*: with the feature obsolete_counts it is appended to the vdev's *obsolete
//! map*, a space map of allocations. Every range without a block pointer is there, or in the counts
//! beside the mapping, exactly once.

use std::cell::{Cell, Ref, RefCell};
use std::rc::Rc;

use base::{Error, ObjectId, Result, ResultExt, VdevId};
use dmu::{Dnode, ObjSpec, Objset, Tx, zap};
use metaslab::Run;
use ondisk::feature::FeatureId;
use ondisk::indirect::{
    MAPPING_BLKSZ, MAPPING_ENTRY_SIZE, MAPPING_SIZE, MAPPING_SIZE_V0, MappingEntry, MappingPhys, parse_mapping, remap,
};
use ondisk::object_type::ObjectType;
use ondisk::space_map::{Encoder, MapType, SPACE_MAP_INDBLKSHIFT, SPACE_MAP_SIZE, SPACE_MAP_SIZE_V0, SpaceMapPhys};
use vdev::{IndirectMap, Top, VdevKind, VdevTree};

use crate::commit::space_map::header;
use crate::stack::Stack;

/// Entry of a removed vdev's ZAP: its obsolete map.
pub(crate) const OBSOLETE_KEY: &[u8] = b"com.delphix:indirect_obsolete_sm";
/// Entry of a removed vdev's ZAP, 1: the counts and the obsolete map tell every range without a
/// block pointer.
pub(crate) const PRECISE_KEY: &[u8] = b"com.delphix:obsolete_counts_are_precise";
/// Block size of obsolete maps.
const OBSOLETE_BLKSZ: u32 = 128 << 10;

/// Longest mapping that is read, in bytes: 11 million ranges.
const MAPPING_MAX: u64 = 256 << 20;

/// The mapping of one vdev that is removed, or being removed: then it grows.
#[derive(Default)]
pub(crate) struct Mapping(RefCell<Vec<MappingEntry>>);

impl IndirectMap for Mapping {
    fn remap(&self, offset: u64, size: u64) -> Result<Vec<(u64, VdevId, u64, u64)>> {
        remap(&self.0.borrow(), offset, size)
    }

    fn entries(&self) -> Ref<'_, [MappingEntry]> {
        Ref::map(self.0.borrow(), Vec::as_slice)
    }
}

impl Mapping {
    /// The mapping with these entries, which ascend.
    pub(crate) fn of(entries: Vec<MappingEntry>) -> Mapping {
        Mapping(RefCell::new(entries))
    }

    /// Reads the mapping in `object`.
    pub(crate) async fn read(mos: &Objset, object: ObjectId) -> Result<Mapping> {
        let dn = mos.hold(object).await?;
        let head = MappingPhys::parse(&dn.bonus())?;
        let len = head.num_entries.saturating_mul(MAPPING_ENTRY_SIZE as u64);
        if len > MAPPING_MAX {
            return Err(Error::unsupported(format!("{} ranges are more than weir reads", head.num_entries)));
        }
        let mut data = vec![0; len as usize];
        if len > 0 {
            dn.read(0, &mut data).await?;
        }
        Ok(Mapping(RefCell::new(parse_mapping(&data)?)))
    }

    /// Adds entries behind all others.
    pub(crate) fn extend(&self, entries: impl Iterator<Item = MappingEntry>) {
        self.0.borrow_mut().extend(entries);
    }

    /// Where the last entry ends.
    pub(crate) fn end(&self) -> u64 {
        self.0.borrow().last().map_or(0, MappingEntry::end)
    }
}

/// A mapping on disk that entries are appended to, with the counts of what is obsolete of them.
pub(crate) struct MappingObject {
    dn: Dnode,
    counts: Option<Dnode>,
    phys: Cell<MappingPhys>,
}

impl MappingObject {
    /// Creates an empty one, with counts if the pool has them.
    pub(crate) async fn create(stack: &Stack, tx: &Tx) -> Result<MappingObject> {
        let counts = match stack.features.is_enabled(FeatureId::ObsoleteCounts) {
            true => {
                let spec = ObjSpec::new(ObjectType::OTN_U32_METADATA, MAPPING_BLKSZ);
                let counts = stack.mos.alloc(spec, tx).await?;
                stack.features.add(FeatureId::ObsoleteCounts, 1, tx).await?;
                Some(counts)
            }
            false => None,
        };
        let bonus = if counts.is_some() { MAPPING_SIZE } else { MAPPING_SIZE_V0 };
        let number = ObjectType::OTN_U64_METADATA;
        let dn = stack.mos.alloc(ObjSpec::new(number, MAPPING_BLKSZ).bonus(number, bonus as u16), tx).await?;
        let phys = MappingPhys {
            max_offset: 0,
            bytes_mapped: 0,
            num_entries: 0,
            counts_object: counts.as_ref().map(|dn| dn.object().0),
        };
        dn.set_bonus(&phys.to_bytes(), tx)?;
        Ok(MappingObject { dn, counts, phys: Cell::new(phys) })
    }

    /// Opens the one in `object`.
    pub(crate) async fn open(mos: &Objset, object: ObjectId) -> Result<MappingObject> {
        let dn = mos.hold(object).await?;
        let phys = MappingPhys::parse(&dn.bonus())?;
        let counts = match phys.counts_object {
            Some(object) => Some(mos.hold(ObjectId(object)).await?),
            None => None,
        };
        Ok(MappingObject { dn, counts, phys: Cell::new(phys) })
    }

    /// Its object.
    pub(crate) fn object(&self) -> ObjectId {
        self.dn.object()
    }

    /// Its header.
    pub(crate) fn phys(&self) -> MappingPhys {
        self.phys.get()
    }

    /// The obsolete bytes of each entry when that was written.
    pub(crate) async fn read_counts(&self) -> Result<Vec<u32>> {
        let entries = self.phys.get().num_entries;
        let len = usize::try_from(entries.saturating_mul(4)).ok().filter(|n| *n as u64 <= MAPPING_MAX);
        let len = len.ok_or_else(|| Error::unsupported(format!("{entries} ranges are more than weir reads")))?;
        let mut raw = vec![0; len];
        if let (Some(counts), false) = (&self.counts, raw.is_empty()) {
            counts.read(0, &mut raw).await.at(|| "counts of a mapping")?;
        }
        Ok(raw.chunks_exact(4).map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect())
    }

    /// Appends entries, ascending and beyond all others, with the obsolete bytes of each.
    pub(crate) async fn append(&self, entries: &[(MappingEntry, u32)], tx: &Tx) -> Result<()> {
        let (Some((first, _)), Some((last, _))) = (entries.first(), entries.last()) else { return Ok(()) };
        let mut phys = self.phys.get();
        assert!(first.src >= phys.max_offset, "entries of a mapping are appended in order");
        let mut bytes = Vec::with_capacity(entries.len() * MAPPING_ENTRY_SIZE);
        let mut obsolete = Vec::with_capacity(entries.len() * 4);
        for (entry, count) in entries {
            bytes.extend(entry.to_bytes());
            obsolete.extend(count.to_le_bytes());
        }
        self.dn.write(phys.num_entries * MAPPING_ENTRY_SIZE as u64, &bytes, tx).await?;
        if let Some(counts) = &self.counts {
            counts.write(phys.num_entries * 4, &obsolete, tx).await?;
        }
        phys.max_offset = last.end();
        phys.bytes_mapped = phys.bytes_mapped.saturating_add(entries.iter().map(|(e, _)| e.len()).sum());
        phys.num_entries += entries.len() as u64;
        self.dn.set_bonus(&phys.to_bytes(), tx)?;
        self.phys.set(phys);
        Ok(())
    }

    /// Frees it and its counts.
    pub(crate) async fn free(&self, stack: &Stack, tx: &Tx) -> Result<()> {
        if let Some(counts) = &self.counts {
            stack.mos.free(counts.object(), tx).await?;
            stack.features.add(FeatureId::ObsoleteCounts, -1, tx).await?;
        }
        stack.mos.free(self.dn.object(), tx).await
    }
}

/// Loads the mapping of every removed vdev, the last removed first: older mappings may be stored on
/// it.
pub(crate) async fn load_mappings(mos: &Objset, tree: &VdevTree) -> Result<()> {
    let removed: Vec<Rc<Top>> = tree.tops.borrow().iter().filter(|t| t.is_indirect()).cloned().collect();
    let before = |t: &Rc<Top>| t.config_ref().prev_indirect_vdev;
    let mut left = removed;
    while !left.is_empty() {
        // The vdev that was removed last. A cycle is damage; then any order will do.
        let last = left.iter().position(|t| !left.iter().any(|o| before(o) == Some(u64::from(t.id.0)))).unwrap_or(0);
        let top = left.remove(last);
        let object = top.config_ref().indirect_object.unwrap_or_default();
        let mapping = Mapping::read(mos, object).await.at(|| format!("mapping of the removed vdev {}", top.id))?;
        if let VdevKind::Indirect(indirect) = top.kind() {
            indirect.set_map(Rc::new(mapping));
        }
    }
    Ok(())
}

/// Appends the ranges of removed vdevs that became obsolete in this pass; true if there are some.
pub(crate) async fn sync_obsolete(stack: &Stack, pass: u32, tx: &Tx) -> Result<bool> {
    let mut any = false;
    for (vdev, runs) in stack.zio().take_obsolete() {
        // Pools without the feature have no obsolete maps.
        if !stack.features.is_enabled(FeatureId::ObsoleteCounts) {
            continue;
        }
        append_obsolete(stack, vdev, &runs, pass, tx).await.at(|| format!("obsolete map of removed vdev {vdev}"))?;
        any = true;
    }
    Ok(any)
}

async fn append_obsolete(stack: &Stack, vdev: VdevId, runs: &[Run], pass: u32, tx: &Tx) -> Result<()> {
    let zap_object = stack.tree.top(vdev)?.config().zap_top.filter(|o| o.0 != 0);
    let zap_object = zap_object.ok_or_else(|| Error::corrupt("the vdev has no ZAP"))?;
    let list = stack.mos.hold(zap_object).await?;
    let dn = match zap::lookup_u64(&list, OBSOLETE_KEY).await? {
        Some(object) => stack.mos.hold(ObjectId(object)).await?,
        None => {
            let histogram = stack.features.is_enabled(FeatureId::SpacemapHistogram);
            let bonus = if histogram { SPACE_MAP_SIZE } else { SPACE_MAP_SIZE_V0 };
            let spec = ObjSpec::new(ObjectType::SPACE_MAP, OBSOLETE_BLKSZ)
                .bonus(ObjectType::SPACE_MAP_HEADER, bonus as u16)
                .indblkshift(SPACE_MAP_INDBLKSHIFT);
            let dn = stack.mos.alloc(spec, tx).await?;
            let empty = histogram.then_some([0; 32]);
            let phys = SpaceMapPhys { object: dn.object().0, length: 0, alloc: 0, histogram: empty };
            let mut bytes = vec![0; phys.size()];
            phys.write_to(&mut bytes);
            dn.set_bonus(&bytes, tx)?;
            if histogram {
                stack.features.add(FeatureId::SpacemapHistogram, 1, tx).await?;
            }
            zap::add_u64(&list, OBSOLETE_KEY, dn.object().0, tx).await?;
            stack.features.add(FeatureId::ObsoleteCounts, 1, tx).await?;
            dn
        }
    };
    let old = header(&dn)?;
    let v2 = stack.features.is_active(FeatureId::SpacemapV2);
    let mut encoder = Encoder::new(0, u64::from(dn.block_size()), old.length, v2);
    encoder.group(MapType::Alloc, pass, tx.txg().0);
    let mut added = 0u64;
    for run in runs {
        encoder.run(MapType::Alloc, run.start, run.size);
        added += run.size;
    }
    let length = encoder.length();
    dn.write(old.length, &encoder.finish(), tx).await?;
    let phys = SpaceMapPhys { length, alloc: old.alloc.saturating_add_unsigned(added), ..old };
    let mut bytes = vec![0; phys.size()];
    phys.write_to(&mut bytes);
    dn.set_bonus(&bytes, tx)
}
