//! Cloned blocks: the block reference tables against the pointers of the pool.
//!
//! Every entry is loaded before the walk. The walk claims a block with an entry once and counts its
//! further visits; at the end there must be exactly one visit more than the entry says, and headers
//! and counters must agree with the entries.

use std::collections::BTreeMap;

use base::{Error, Result, ResultExt};
use ondisk::blkptr::Blkptr;
use ondisk::brt::{BrtPhys, DIRECTORY_PREFIX, RANGE_SIZE, region_of, regions_in};

use super::report::Sink;
use crate::pool::PoolReader;
use crate::zap;

/// Most counters that are read: those of a vdev of 2 PiB.
const COUNTERS_MAX: u64 = 1 << 27;
const ENDIAN: &str = "com.truenas:block_cloning_endian";

/// A block with an entry.
#[derive(Clone, Copy, Debug, Default)]
struct Entry {
    /// References beyond the first.
    count: u64,
    visits: u64,
    /// Allocated bytes, deflated, as the first visit finds them.
    dsize: u64,
}

/// The table of one vdev.
#[derive(Debug)]
struct Table {
    phys: BrtPhys,
    counters: Vec<u16>,
    entries: BTreeMap<u64, Entry>,
}

/// The block reference tables of a pool.
#[derive(Debug, Default)]
pub struct Brt {
    tables: BTreeMap<u32, Table>,
    /// Trees that are freed in part are not walked: some visits are missing.
    pub is_partial: bool,
}

/// Objects of the tables, by vdev: vdev object and entries.
pub fn objects(pool: &PoolReader) -> Result<Vec<(u32, u64, u64)>> {
    let mut out = Vec::new();
    for (name, value) in &pool.directory {
        let Some(id) = name.strip_prefix(DIRECTORY_PREFIX) else { continue };
        let (Ok(id), Some(object)) = (id.parse(), value.as_u64()) else {
            return Err(Error::corrupt(format!("the MOS directory has an entry {name}")));
        };
        let phys = BrtPhys::parse(pool.mos.object(object)?.dn.bonus()).at(|| name.clone())?;
        out.push((id, object, phys.entries));
    }
    Ok(out)
}

fn load_table(pool: &PoolReader, object: u64, entries: u64) -> Result<Table> {
    let obj = pool.mos.object(object)?;
    let phys = BrtPhys::parse(obj.dn.bonus())?;
    if phys.size > COUNTERS_MAX || phys.counter_bytes() > obj.dn.data_len() {
        return Err(Error::corrupt(format!("{} counters in {} bytes", phys.size, obj.dn.data_len())));
    }
    let counters = phys.counters(&obj.read(0, phys.counter_bytes() as usize)?);
    let mut table = Table { phys, counters, entries: BTreeMap::new() };
    let as_word = pool.entry_object("features_for_write")?.map(|o| zap::map_u64(&o)).transpose()?;
    let as_word = as_word.and_then(|f| f.get(ENDIAN).copied()).is_some_and(|n| n > 0);
    for e in zap::entries(&pool.mos.object(entries)?)? {
        let key = <[u8; 8]>::try_from(&e.key[..]).map_err(|_| Error::corrupt("a key that is no offset"))?;
        let value = ondisk::zap::ZapValue { int_size: e.value.int_size, bytes: e.value.bytes.clone() };
        if (value.int_size == 8) != as_word {
            return Err(Error::corrupt(format!("an entry in integers of {} bytes", value.int_size)));
        }
        let count = phys.entry_count(&value)?;
        table.entries.insert(u64::from_be_bytes(key), Entry { count, ..Entry::default() });
    }
    Ok(table)
}

impl Brt {
    /// Loads all tables.
    pub fn load(pool: &PoolReader, sink: &mut Sink<'_>) -> Brt {
        let mut brt = Brt::default();
        for (id, object, entries) in sink.take(objects(pool)).unwrap_or_default() {
            let table = load_table(pool, object, entries).at(|| format!("block reference table of vdev {id}"));
            if let Some(table) = sink.take(table) {
                brt.tables.insert(id, table);
            }
        }
        brt
    }

    /// Counts a visit of a block of `dsize` bytes. True if it was visited before and its entry
    /// allows another visit.
    pub fn visit(&mut self, bp: &Blkptr, dsize: u64) -> bool {
        if bp.level() != 0 || bp.otype().is_metadata() {
            return false;
        }
        let at = bp.dva(0);
        let table = self.tables.get_mut(&at.vdev().0);
        let Some(entry) = table.and_then(|t| t.entries.get_mut(&at.offset())) else { return false };
        entry.visits += 1;
        entry.dsize = dsize;
        (2..=entry.count.saturating_add(1)).contains(&entry.visits)
    }

    /// Compares the visits with the entries, and the entries with counters and headers.
    pub fn check(&self, pool: &PoolReader, sink: &mut Sink<'_>) {
        for (id, table) in &self.tables {
            let place = format!("block reference table of vdev {id}");
            let (mut used, mut saved) = (0u64, 0u64);
            let mut counters = vec![0u64; table.counters.len()];
            for (offset, e) in &table.entries {
                let wanted = e.count.saturating_add(1);
                if e.count == 0 {
                    sink.error(format!("{place}: an entry {offset:#x} without references"));
                }
                if e.visits > wanted || e.visits < wanted && !self.is_partial {
                    sink.error(format!(
                        "{place}: block {id}:{offset:x} has {} references, the entry says {wanted}",
                        e.visits
                    ));
                }
                used = used.saturating_add(e.dsize);
                saved = saved.saturating_add(e.dsize.saturating_mul(e.count));
                match counters.get_mut(region_of(*offset)) {
                    Some(n) => *n += 1,
                    None => sink.error(format!("{place}: entry {offset:#x} lies beyond the counters")),
                }
            }
            for (i, (have, want)) in table.counters.iter().zip(&counters).enumerate() {
                if u64::from(*have) != *want {
                    sink.error(format!("{place}: region {i} is counted {have} times, it has {want} entries"));
                }
            }
            let phys = &table.phys;
            let all = table.entries.len() as u64;
            if phys.total_count != all || all == 0 {
                sink.error(format!("{place}: says that it has {} entries, it has {all}", phys.total_count));
            }
            let whole = pool.config.vdev_tree.children.get(*id as usize).map_or(0, |top| {
                let (asize, shift) = (top.asize.unwrap_or(0), top.metaslab_shift.unwrap_or(0).min(63));
                if shift == 0 { asize } else { asize >> shift << shift }
            });
            // A vdev that grew has more at the next change.
            if phys.size > regions_in(whole).max(1) || phys.range_size != RANGE_SIZE {
                sink.error(format!("{place}: {} counters for {whole} bytes", phys.size));
            }
            if !self.is_partial && (phys.used_space, phys.saved_space) != (used, saved) {
                sink.error(format!(
                    "{place}: says that {} bytes are used and {} saved, its blocks {used} and {saved}",
                    phys.used_space, phys.saved_space
                ));
            }
        }
    }
}
