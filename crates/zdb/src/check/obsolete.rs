//! What of the mappings of removed vdevs is obsolete: every range has a block pointer, or is
//! counted or listed as obsolete, once; and a mapping that is being condensed is a beginning of the
//! whole one (format page 14 section 5).

use std::collections::BTreeMap;

use base::{Error, Result, ResultExt};
use ondisk::indirect::{CONDENSING_KEY, Condensing, MAPPING_ENTRY_SIZE, MappingEntry, MappingPhys, parse_mapping};
use ondisk::space_map::{Entry, MapType};
use ondisk::vdev_config::{VdevConfig, VdevKind};

use super::report::Sink;
use super::space::{MAX_OTHER_MAP, Ranges, for_each_entry};
use crate::pool::PoolReader;
use crate::zap;

const PRECISE: &str = "com.delphix:obsolete_counts_are_precise";
const OBSOLETE_MAP: &str = "com.delphix:indirect_obsolete_sm";

/// The mapping that is condensed, if one is.
fn condensing(pool: &PoolReader) -> Result<Option<Condensing>> {
    let key = std::str::from_utf8(CONDENSING_KEY).unwrap_or_default();
    let Some(value) = pool.directory.get(key) else { return Ok(None) };
    Condensing::parse(&value.as_u64s().unwrap_or_default()).map(Some)
}

/// A mapping in an object, with the obsolete bytes that it counts.
fn read_mapping(pool: &PoolReader, object: u64) -> Result<Vec<(MappingEntry, u64)>> {
    let obj = pool.mos.object(object)?;
    let phys = MappingPhys::parse(obj.dn.bonus())?;
    let len = phys.num_entries.checked_mul(MAPPING_ENTRY_SIZE as u64).filter(|n| *n <= obj.dn.data_len());
    let len = len.ok_or_else(|| Error::corrupt(format!("{} entries do not fit into it", phys.num_entries)))?;
    let entries = parse_mapping(&obj.read(0, len as usize)?)?;
    let mapped: u64 = entries.iter().map(MappingEntry::len).sum();
    if phys.bytes_mapped != mapped || entries.last().is_some_and(|e| e.end() > phys.max_offset) {
        return Err(Error::corrupt(format!(
            "its header counts {} bytes up to {:#x}",
            phys.bytes_mapped, phys.max_offset
        )));
    }
    let counts = match phys.counts_object {
        Some(counts) if !entries.is_empty() => pool.mos.object(counts)?.read(0, entries.len() * 4)?,
        _ => vec![0; entries.len() * 4],
    };
    let counts = counts.chunks_exact(4).map(|b| u64::from(u32::from_le_bytes([b[0], b[1], b[2], b[3]])));
    Ok(entries.into_iter().zip(counts).collect())
}

/// The ranges of an obsolete map, each once.
fn read_map(pool: &PoolReader, object: u64, all: &mut Ranges) -> Result<()> {
    let obj = pool.mos.object(object)?;
    let mut sum = 0;
    let phys = for_each_entry(&obj, 0, MAX_OTHER_MAP, &mut |entry| {
        let Entry::Run { kind, offset, size, .. } = entry else { return Ok(()) };
        if kind != MapType::Alloc || !all.add(offset, size) {
            return Err(Error::corrupt(format!("{size:#x} bytes at {offset:#x} become obsolete again")));
        }
        sum += size;
        Ok(())
    })?;
    if phys.alloc != sum as i64 {
        return Err(Error::corrupt(format!("it says {} bytes, its entries {sum}", phys.alloc)));
    }
    Ok(())
}

fn obsolete_in(ranges: &Ranges, e: &MappingEntry) -> u64 {
    ranges.within(e.src, e.end()).map(|(start, end)| end - start).sum()
}

fn check_vdev(
    pool: &PoolReader,
    top: &VdevConfig,
    condensed: Option<Condensing>,
    named: Option<&Ranges>,
    exact: bool,
) -> Result<()> {
    let object = top.indirect_object.ok_or_else(|| Error::corrupt("it has no mapping"))?;
    let entries = read_mapping(pool, object.0)?;
    let keys = match top.zap_top.filter(|o| o.0 != 0) {
        Some(o) => zap::map_u64(&pool.mos.object(o.0)?)?,
        None => BTreeMap::new(),
    };
    let precise = keys.get(PRECISE).is_some_and(|n| *n != 0);
    let mut before = Ranges::default();
    if let Some(c) = condensed {
        read_map(pool, c.old_map.0, &mut before).at(|| "the obsolete map that is being worked off")?;
    }
    let mut now = before.clone();
    if let Some(map) = keys.get(OBSOLETE_MAP) {
        read_map(pool, *map, &mut now).at(|| "obsolete map")?;
    }
    // The part of the mapping that is needed, when it was begun to be condensed.
    let kept = entries.iter().map(|(e, n)| (*e, n + obsolete_in(&before, e))).filter(|(e, n)| *n < e.len());
    if let Some(c) = condensed {
        let new = read_mapping(pool, c.mapping.0).at(|| "new mapping")?;
        if !kept.take(new.len()).eq(new.iter().copied()) {
            return Err(Error::corrupt("the new mapping is no beginning of what is needed of the mapping"));
        }
    }
    let mapped: u64 = entries.iter().map(|(e, _)| obsolete_in(&now, e)).sum();
    if mapped != now.total() {
        return Err(Error::corrupt(format!("{mapped} of {} obsolete bytes are mapped", now.total())));
    }
    let none = Ranges::default();
    for (i, (e, n)) in entries.iter().enumerate() {
        let (obsolete, live) = (n + obsolete_in(&now, e), obsolete_in(named.unwrap_or(&none), e));
        if obsolete + live > e.len() || (precise && exact && obsolete + live != e.len()) {
            return Err(Error::corrupt(format!(
                "entry {i} of its mapping has {:#x} bytes, of which {obsolete:#x} are obsolete and {live:#x} have block pointers",
                e.len()
            )));
        }
    }
    Ok(())
}

/// Checks the mappings of all removed vdevs. `named`: the ranges that have block pointers.
/// `is_partial`: not all are known, or some are in lists of blocks that were remapped.
pub fn check(pool: &PoolReader, named: &BTreeMap<u32, Ranges>, is_partial: bool, sink: &mut Sink<'_>) {
    let Some(condensed) = sink.take(condensing(pool)) else { return };
    let tops = &pool.config.vdev_tree.children;
    if let Some(c) = condensed
        && tops.get(c.vdev.0 as usize).is_none_or(|t| t.kind != VdevKind::Indirect)
    {
        sink.error(format!("the mapping of vdev {} is being condensed, but it was not removed", c.vdev));
    }
    for top in tops.iter().filter(|t| t.kind == VdevKind::Indirect) {
        let own = condensed.filter(|c| u64::from(c.vdev.0) == top.id);
        let checked = check_vdev(pool, top, own, named.get(&(top.id as u32)), !is_partial);
        sink.take(checked.at(|| format!("removed vdev {}", top.id)));
    }
}
