//! A vdev that is being removed: what is allocated on it below the end of its mapping has a copy
//! elsewhere, which no block pointer names yet (format page 23 section 3).

use base::{Error, Result, ResultExt, Txg};
use ondisk::bytes::le64;
use ondisk::indirect::{
    BIRTHS_ENTRY_SIZE, BIRTHS_SIZE, MappingPhys, REMOVING_KEY, RemovalState, Removing, parse_births,
};
use ondisk::vdev_config::{VdevConfig, VdevKind};

use super::report::Sink;
use super::space::Space;
use crate::pool::PoolReader;

/// The record of the removal that is under way, or of the last one.
fn record(pool: &PoolReader) -> Result<Option<Removing>> {
    let key = std::str::from_utf8(REMOVING_KEY).unwrap_or_default();
    let Some(value) = pool.directory.get(key) else { return Ok(None) };
    let words = value.as_u64s().ok_or_else(|| Error::corrupt("the record of the removal is no list of numbers"))?;
    Removing::parse(&words).map(Some)
}

/// Compares the births of all mappings with their ends.
fn check_births(pool: &PoolReader, sink: &mut Sink<'_>) {
    let tops = &pool.config.vdev_tree.children;
    for top in tops.iter().filter(|c| c.removing || c.kind == VdevKind::Indirect) {
        sink.take(births_of(pool, top).at(|| format!("births of the mapping of vdev {}", top.id)));
    }
}

fn births_of(pool: &PoolReader, top: &VdevConfig) -> Result<()> {
    let there = |o: Option<base::ObjectId>| o.ok_or_else(|| Error::corrupt("there are none"));
    let mapping = pool.mos.object(there(top.indirect_object)?.0)?;
    let phys = MappingPhys::parse(mapping.dn.bonus())?;
    let births = pool.mos.object(there(top.indirect_births)?.0)?;
    let bonus = births.dn.bonus();
    let count = if bonus.len() >= BIRTHS_SIZE { le64(bonus, 0) } else { 0 };
    if count > births.dn.data_len() / BIRTHS_ENTRY_SIZE as u64 {
        return Err(Error::corrupt(format!("{count} do not fit into their object")));
    }
    let entries = parse_births(&births.read(0, count as usize * BIRTHS_ENTRY_SIZE)?);
    if !entries.is_sorted_by(|(a, of_a), (b, of_b)| a < b && of_a < of_b) {
        return Err(Error::corrupt("they do not ascend"));
    }
    let (end, txg) = entries.last().copied().unwrap_or((0, Txg(0)));
    // A condensed mapping may have lost its last entries.
    let fits = if top.removing { end == phys.max_offset } else { end >= phys.max_offset };
    if !fits || txg > pool.ub.txg {
        return Err(Error::corrupt(format!(
            "they end at {end:#x} in txg {txg}, the mapping at {:#x}",
            phys.max_offset
        )));
    }
    Ok(())
}

/// Claims the copies of a removal under way, and compares its parts with each other.
pub fn claim(pool: &PoolReader, space: &mut Space, sink: &mut Sink<'_>) {
    check_births(pool, sink);
    let Some(record) = sink.take(record(pool)) else { return };
    let active = record.filter(|r| r.state == RemovalState::Active);
    for top in pool.config.vdev_tree.children.iter().filter(|c| c.removing) {
        if active.is_none_or(|r| u64::from(r.vdev.0) != top.id) {
            sink.error(format!("vdev {} says that it is being removed, the pool does not", top.id));
        }
    }
    let Some(active) = active else { return };
    let top = pool.config.vdev_tree.children.get(active.vdev.0 as usize).filter(|c| c.removing);
    let Some(top) = top else {
        sink.error(format!("the pool says that vdev {} is being removed, the vdev does not", active.vdev));
        return;
    };
    if active.copied > active.to_copy {
        sink.error(format!("{} bytes of {} that were to be copied are", active.copied, active.to_copy));
    }
    sink.take(claim_copies(pool, top, space).at(|| format!("mapping of vdev {}, which is being removed", top.id)));
}

fn claim_copies(pool: &PoolReader, top: &VdevConfig, space: &mut Space) -> Result<()> {
    let object = top.indirect_object.ok_or_else(|| Error::corrupt("there is none"))?;
    let phys = MappingPhys::parse(pool.mos.object(object.0)?.dn.bonus())?;
    let vdev = pool.io.tops.get(top.id as usize).and_then(Option::as_ref);
    let mapping = vdev.and_then(|v| v.mapping.get()).ok_or_else(|| Error::corrupt("it was not read"))?;
    let own = space.vdevs.get(&(top.id as u32)).map(|v| v.all.clone()).unwrap_or_default();
    let mapped: u64 = mapping.iter().map(|e| e.len()).sum();
    if phys.max_offset != mapping.last().map_or(0, |e| e.end()) || phys.bytes_mapped != mapped {
        return Err(Error::corrupt(format!(
            "its header counts {} bytes up to {:#x}",
            phys.bytes_mapped, phys.max_offset
        )));
    }
    let mut copied = 0;
    for e in mapping {
        for (start, end) in own.within(e.src, e.end()) {
            copied += end - start;
            space.claim_piecewise(e.dst.vdev().0, e.dst.offset() + (start - e.src), end - start)?;
        }
    }
    let below: u64 = own.within(0, phys.max_offset).map(|(start, end)| end - start).sum();
    if below != copied {
        return Err(Error::corrupt(format!("{copied} of the {below} bytes allocated below its end have copies")));
    }
    Ok(())
}
