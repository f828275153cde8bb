//! Dedup tables against the pointers with the dedup bit (format pages 13 and 20).
//!
//! Tables and logs are loaded before the walk. The walk claims a block with an entry once, with all
//! copies that the entry has, and counts the visits of each slot; at the end there must be as many
//! as the entry says. A pointer that no entry knows is an ordinary block: its entry was pruned, if
//! the pool has fast dedup.
//!
//! Entries that wait in a log without references are still allocated. Histograms are those of the
//! entries that are in a ZAP and in no log.

use std::collections::BTreeMap;

use base::{Error, Result, ResultExt, Txg};
use ondisk::blkptr::{Blkptr, Dva};
use ondisk::ddt::{Flat, Key, LOG_BLOCK, LogHeader, LogRecord, log_records};
use ondisk::object_type::ObjectType;

use super::report::Sink;
use crate::objset::Object;
use crate::pool::PoolReader;
use crate::zap;

const FAST_DEDUP: &str = "com.klarasystems:fast_dedup";
const STATISTICS: &str = "DDT-statistics";
const CLASSES: [&str; 3] = ["ditto", "duplicate", "unique"];
const UNIQUE: usize = 2;
const ENCRYPTED: u64 = 1 << 39;

/// A block of an entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Slot {
    dvas: [Dva; 3],
    refs: u64,
    birth: u64,
    visits: u64,
}

/// An entry in its newest state.
#[derive(Clone, Debug, Default)]
struct Entry {
    slots: Vec<Slot>,
    /// The class of the ZAP that has it.
    class: Option<usize>,
    /// Its newest state is in a log.
    logged: bool,
}

/// Sums over entries, by the power of two of their references: blocks, their logical, stored and
/// allocated bytes; then the same times references.
pub type Histogram = [[u64; 8]; 64];

/// A class of a table, for display.
pub struct ClassView {
    /// Name of the ZAP.
    pub name: String,
    /// Its object.
    pub object: u64,
    /// Its bytes on disk.
    pub disk: u64,
    /// The bytes of its blocks.
    pub memory: u64,
    /// Entries in the ZAP, those with a newer state in a log among them.
    pub entries: u64,
    /// Of those without one.
    pub histogram: Box<Histogram>,
}

/// A log of a table, for display.
pub struct LogView {
    /// Its name.
    pub name: String,
    /// Its object.
    pub object: u64,
    /// Its header.
    pub header: LogHeader,
    /// Entries that it has the newest state of.
    pub entries: u64,
}

/// A table, for display.
pub struct TableView {
    /// Its name.
    pub name: String,
    /// Flat entries and logs.
    pub flat: bool,
    /// The object of its directory.
    pub root: u64,
    /// Its ZAPs.
    pub classes: Vec<ClassView>,
    /// Its logs.
    pub logs: Vec<LogView>,
    /// Of the entries in logs.
    pub logged: Box<Histogram>,
}

/// The table of a checksum.
#[derive(Debug)]
struct Table {
    name: String,
    checksum: u8,
    flat: bool,
    entries: BTreeMap<Key, Entry>,
    classes: Vec<usize>,
    histograms: [Box<Histogram>; 3],
    /// The logs: name, object, header, how many keys they have.
    logs: Vec<(String, u64, LogHeader, u64)>,
    /// Entries of the flushing log that the active log has, too.
    superseded: u64,
}

impl Table {
    /// Counts the entries of each class that are in no log; returns the histogram of the others.
    fn count(&mut self, pool: &PoolReader) -> Box<Histogram> {
        let mut logged = Box::new([[0; 8]; 64]);
        for (key, e) in &self.entries {
            let refs = e.slots.iter().fold(0u64, |n, s| n.saturating_add(s.refs));
            let Some(bucket) = refs.checked_ilog2() else { continue };
            let bucket: &mut [u64; 8] = match e.class.filter(|_| !e.logged) {
                Some(class) => &mut self.histograms[class][bucket as usize],
                None => &mut logged[bucket as usize],
            };
            for s in e.slots.iter().filter(|s| s.birth != 0) {
                let bp = pointer(key, s);
                for (i, n) in [1, bp.lsize(), bp.psize(), pool.io.charge(&bp)[0]].into_iter().enumerate() {
                    bucket[i] = bucket[i].wrapping_add(n);
                    bucket[i + 4] = bucket[i + 4].wrapping_add(n.wrapping_mul(s.refs));
                }
            }
        }
        logged
    }
}

/// The dedup tables of a pool.
#[derive(Debug, Default)]
pub struct Ddt {
    tables: BTreeMap<u8, Table>,
    /// Pointers with the dedup bit that no entry knows.
    unknown: u64,
    /// Pointers of encrypted blocks with another salt or IV than their entries.
    unsealed: u64,
}

/// How the walk meets a block.
pub enum Visit {
    /// No entry knows it.
    Ordinary,
    /// Its entry does, and it was claimed before.
    Again,
    /// It is to be claimed, with these copies.
    First(Box<Blkptr>),
}

/// The objects of the flat tables: directories and what they name.
pub fn objects(pool: &PoolReader) -> Result<Vec<u64>> {
    let mut out = Vec::new();
    for checksum in checksums() {
        let Some(dir) = pool.entry(&format!("DDT-{}", checksum.name())) else { continue };
        out.push(dir);
        let names = zap::map_u64(&pool.mos.object(dir)?)?;
        out.extend(names.into_iter().filter(|(k, _)| k.starts_with("DDT-")).map(|(_, object)| object));
    }
    Ok(out)
}

/// How many tables have a directory.
pub fn directories(pool: &PoolReader) -> u64 {
    checksums().filter(|c| pool.entry(&format!("DDT-{}", c.name())).is_some()).count() as u64
}

fn checksums() -> impl Iterator<Item = codec::ChecksumAlgo> {
    (0..=u8::MAX).filter_map(codec::ChecksumAlgo::from_u8)
}

/// The words of a table's entry (format page 13 section 2).
fn words<const N: usize>(b: &[u8]) -> Result<[u64; N]> {
    let (&version, rest) = b.split_first().ok_or_else(|| Error::corrupt("empty entry"))?;
    let algo = codec::CompressAlgo::from_u8(version & 0x7f).ok_or_else(|| Error::corrupt("unknown compression"))?;
    let mut raw = vec![0u8; N * 8];
    codec::decompress(algo, rest, &mut raw)?;
    if version & 0x80 == 0 {
        ondisk::byteswap::swap_ints::<8>(&mut raw);
    }
    let mut out = [0; N];
    raw.as_chunks::<8>().0.iter().zip(&mut out).for_each(|(b, w)| *w = u64::from_le_bytes(*b));
    Ok(out)
}

fn legacy_slots(b: &[u8]) -> Result<Vec<Slot>> {
    let w: [u64; 32] = words(b)?;
    let slot = |p: &[u64]| Slot {
        dvas: [0, 2, 4].map(|i| Dva { w0: p[i], w1: p[i + 1] }),
        refs: p[6],
        birth: p[7],
        visits: 0,
    };
    Ok(w.chunks_exact(8).map(slot).collect())
}

fn flat_slot(flat: &Flat) -> Vec<Slot> {
    vec![Slot { dvas: flat.dvas, refs: flat.refs, birth: flat.birth, visits: 0 }]
}

fn key_of(bp: &Blkptr) -> Key {
    let [a, b, c, d] = bp.checksum_words();
    let crypt = if bp.encrypted() { ENCRYPTED } else { 0 };
    [a, b, c, d, bp.prop_word() & ((1 << 39) - 1) | crypt]
}

/// A pointer to the block of a slot, of which only sizes and places are used.
fn pointer(key: &Key, slot: &Slot) -> Blkptr {
    let mut bp = Blkptr::hole();
    bp.set_lsize(((key[4] & 0xffff) + 1) * 512);
    bp.set_psize(((key[4] >> 16 & 0xffff) + 1) * 512);
    bp.set_compress((key[4] >> 32 & 0x7f) as u8);
    bp.set_otype(ObjectType::PLAIN_FILE);
    bp.set_little_endian(true);
    bp.set_encrypted(key[4] & ENCRYPTED != 0);
    bp.set_birth(Txg(slot.birth), Txg(slot.birth));
    slot.dvas.iter().enumerate().for_each(|(i, dva)| bp.set_dva(i, *dva));
    bp
}

/// The records of a log that are not in the ZAPs yet, the newest of each key.
fn read_log(obj: &Object) -> Result<(LogHeader, BTreeMap<Key, LogRecord>)> {
    let header = LogHeader::parse(obj.dn.bonus())?;
    let mut out = BTreeMap::new();
    if header.length > 0 && obj.dn.datablksz() as usize != LOG_BLOCK {
        return Err(Error::corrupt(format!("a log in blocks of {} bytes", obj.dn.datablksz())));
    }
    if header.length > obj.dn.data_len() {
        return Err(Error::corrupt(format!("a log of {} bytes in {}", header.length, obj.dn.data_len())));
    }
    for blkid in 0..header.length / LOG_BLOCK as u64 {
        let records = log_records(&obj.block(blkid)?)?;
        if records.is_empty() {
            return Err(Error::corrupt(format!("block {blkid} of a log has no record")));
        }
        for r in records.into_iter().filter(|r| header.checkpoint.is_none_or(|last| r.key > last)) {
            out.insert(r.key, r);
        }
    }
    Ok((header, out))
}

fn load_table(
    pool: &PoolReader,
    algo: codec::ChecksumAlgo,
    named: &BTreeMap<String, u64>,
    flat: bool,
) -> Result<(Table, Vec<String>)> {
    let mut faults = Vec::new();
    let mut table = Table {
        name: format!("DDT-{}", algo.name()),
        checksum: algo as u8,
        flat,
        entries: BTreeMap::new(),
        classes: Vec::new(),
        histograms: std::array::from_fn(|_| Box::new([[0; 8]; 64])),
        logs: Vec::new(),
        superseded: 0,
    };
    for (class, word) in CLASSES.iter().enumerate() {
        let name = format!("{}-zap-{word}", table.name);
        let Some(object) = named.get(&name) else { continue };
        table.classes.push(class);
        for e in zap::entries(&pool.mos.object(*object)?).at(|| name.clone())? {
            if e.key.len() != 40 {
                return Err(Error::corrupt(format!("{name}: a key of {} bytes", e.key.len())));
            }
            let mut key = [0; 5];
            e.key.as_chunks::<8>().0.iter().zip(&mut key).for_each(|(b, w)| *w = u64::from_be_bytes(*b));
            let slots = if flat {
                words::<9>(&e.value.bytes).map(|w| flat_slot(&Flat::from_words(&w)))
            } else {
                legacy_slots(&e.value.bytes)
            };
            let slots = slots.at(|| name.clone())?;
            if table.entries.insert(key, Entry { slots, class: Some(class), logged: false }).is_some() {
                faults.push(format!("{name}: {key:x?} is in another class, too"));
            }
        }
    }
    if !flat {
        return Ok((table, faults));
    }
    let mut logs = Vec::new();
    for n in 0..2 {
        let name = format!("DDT-log-{}-{n}", algo.name());
        let Some(object) = named.get(&name) else { continue };
        let (header, records) = read_log(&pool.mos.object(*object)?).at(|| name.clone())?;
        table.logs.push((name, *object, header, records.len() as u64));
        logs.push((header, records));
    }
    if logs.len() == 1 || (logs.len() == 2 && logs[0].0.flushing == logs[1].0.flushing) {
        faults.push(format!("{}: the logs are no pair", table.name));
    }
    // That of the flushing log first: the active one is newer.
    logs.sort_by_key(|(header, _)| !header.flushing);
    for (key, r) in logs.into_iter().flat_map(|(_, records)| records) {
        table.superseded += u64::from(table.entries.get(&key).is_some_and(|e| e.logged));
        let stored = table.entries.get(&key).and_then(|e| e.class);
        if stored != r.class.map(usize::from) {
            faults.push(format!("{}: a log has {key:x?} in class {:?}, it is in {stored:?}", table.name, r.class));
        }
        table.entries.insert(key, Entry { slots: flat_slot(&r.flat), class: stored, logged: true });
    }
    Ok((table, faults))
}

impl Ddt {
    /// Loads all tables and their logs.
    pub fn load(pool: &PoolReader, sink: &mut Sink<'_>) -> Ddt {
        let mut ddt = Ddt::default();
        let in_mos: BTreeMap<String, u64> =
            pool.directory.iter().filter_map(|(k, v)| Some((k.clone(), v.as_u64()?))).collect();
        for algo in checksums() {
            let dir = in_mos.get(&format!("DDT-{}", algo.name()));
            let own = dir.map(|dir| pool.mos.object(*dir).and_then(|o| zap::map_u64(&o)));
            let own = own.map(|m| sink.take(m).unwrap_or_default());
            let named = own.as_ref().unwrap_or(&in_mos);
            if let Some(own) = &own
                && (own.get("version"), own.get("flags")) != (Some(&1), Some(&3))
            {
                sink.error(format!("DDT-{}: version or flags in {own:?}", algo.name()));
            }
            let loaded = load_table(pool, algo, named, own.is_some()).at(|| format!("DDT-{}", algo.name()));
            let Some((table, faults)) = sink.take(loaded) else { continue };
            faults.into_iter().for_each(|f| sink.error(f));
            if own.is_some() || !table.classes.is_empty() {
                ddt.tables.insert(algo as u8, table);
            }
        }
        ddt
    }

    /// The tables of a pool, for display.
    pub fn views(pool: &PoolReader) -> Result<Vec<TableView>> {
        let mut report = Vec::new();
        let ddt = Ddt::load(
            pool,
            &mut Sink::new(pool.name(), &mut |f| {
                if let super::Finding::Error(e) = f {
                    report.push(e.to_string());
                }
            }),
        );
        if let Some(e) = report.into_iter().next() {
            return Err(Error::corrupt(e));
        }
        let mut out = Vec::new();
        for mut t in ddt.tables.into_values() {
            let logged = t.count(pool);
            let dir = pool.entry(&t.name).filter(|_| t.flat);
            let named = match dir {
                Some(dir) => zap::map_u64(&pool.mos.object(dir)?)?,
                None => BTreeMap::new(),
            };
            let mut classes = Vec::new();
            for class in &t.classes {
                let name = format!("{}-zap-{}", t.name, CLASSES[*class]);
                let object = named.get(&name).copied().or_else(|| pool.entry(&name)).unwrap_or(0);
                let obj = pool.mos.object(object)?;
                let fill: u64 = obj.dn.bps().iter().map(Blkptr::fill).sum();
                classes.push(ClassView {
                    name,
                    object,
                    disk: obj.dn.used_bytes(),
                    memory: fill * u64::from(obj.dn.datablksz()),
                    entries: t.entries.values().filter(|e| e.class == Some(*class)).count() as u64,
                    histogram: t.histograms[*class].clone(),
                });
            }
            let logs = t.logs.iter().map(|(name, object, header, entries)| {
                let mut entries = *entries;
                if header.flushing {
                    // Newer states are in the active log.
                    entries -= t.superseded;
                }
                LogView { name: name.clone(), object: *object, header: *header, entries }
            });
            let logs = logs.collect();
            out.push(TableView { name: t.name, flat: t.flat, root: dir.unwrap_or(1), classes, logs, logged });
        }
        Ok(out)
    }

    /// Counts a visit of a block.
    pub fn visit(&mut self, bp: &Blkptr) -> Visit {
        if !bp.dedup() {
            return Visit::Ordinary;
        }
        let key = key_of(bp);
        let entry = self.tables.get_mut(&bp.checksum_raw()).and_then(|t| t.entries.get_mut(&key));
        let is_it = |s: &&mut Slot| {
            s.birth == bp.phys_birth().0 && bp.dvas().enumerate().all(|(i, dva)| s.dvas[i] == dva) && s.refs > 0
        };
        let Some(slot) = entry.and_then(|e| e.slots.iter_mut().find(is_it)) else {
            self.unknown += 1;
            return Visit::Ordinary;
        };
        slot.visits += 1;
        // All but the last four bytes of the IV, which only pointers have.
        self.unsealed += u64::from(bp.is_encrypted_data() && slot.dvas[2] != bp.dva(2));
        match slot.visits {
            1 => {
                let mut all = *bp;
                let copies = if bp.is_encrypted_data() { 2 } else { 3 };
                (0..copies).for_each(|i| all.set_dva(i, slot.dvas[i]));
                Visit::First(Box::new(all))
            }
            _ => Visit::Again,
        }
    }

    /// Blocks of entries that have no references, or that old software left: they are allocated,
    /// and no pointer refers to them.
    pub fn waiting(&self) -> Vec<Blkptr> {
        let mut out = Vec::new();
        for t in self.tables.values() {
            for (key, e) in &t.entries {
                let unused = e.slots.iter().filter(|s| s.birth != 0 && s.refs == 0);
                out.extend(unused.map(|s| pointer(key, s)));
            }
        }
        out
    }

    /// Compares the visits with the entries, and the entries with classes and histograms.
    /// `is_partial`: some pointers were not walked.
    pub fn check(&mut self, pool: &PoolReader, is_partial: bool, sink: &mut Sink<'_>) {
        let stats = sink.take(pool.entry_object(STATISTICS)).flatten();
        let stats = stats.and_then(|o| sink.take(zap::map(&o))).unwrap_or_default();
        for t in self.tables.values_mut() {
            t.count(pool);
            let place = &t.name;
            for e in t.entries.values() {
                let refs = e.slots.iter().fold(0u64, |n, s| n.saturating_add(s.refs));
                let wrong = |s: &&Slot| s.birth != 0 && (s.visits > s.refs || (s.visits < s.refs && !is_partial));
                for s in e.slots.iter().filter(wrong) {
                    let (at, n) = (s.dvas[0], s.visits);
                    sink.error(format!(
                        "{place}: block {}:{:x} has {n} references, the entry says {}",
                        at.vdev().0,
                        at.offset(),
                        s.refs
                    ));
                }
                let Some(class) = e.class.filter(|_| !e.logged) else { continue };
                if refs == 0 || (class != 0 && (class == UNIQUE) != (refs == 1)) {
                    sink.error(format!("{place}-zap-{}: an entry with {refs} references", CLASSES[class]));
                }
            }
            for class in &t.classes {
                let name = format!("{place}-zap-{}", CLASSES[*class]);
                let have: Vec<u64> = stats.get(&name).and_then(|v| v.as_u64s()).unwrap_or_default();
                let want: Vec<u64> = t.histograms[*class].iter().flatten().copied().collect();
                if have != want {
                    let differs = have.iter().zip(&want).position(|(a, b)| a != b);
                    sink.error(format!("{name}: the histogram differs from the entries, first at {differs:?}"));
                }
            }
            if t.flat && t.entries.is_empty() {
                sink.error(format!("{place}: a table without entries (checksum {})", t.checksum));
            }
        }
        let known: Vec<String> = self.tables.values().flat_map(names).collect();
        for name in stats.keys().filter(|n| !known.contains(n)) {
            sink.error(format!("{STATISTICS} has {name}, which is not there"));
        }
        if self.unsealed > 0 {
            sink.error(format!("{} encrypted blocks have another salt or IV than their entries", self.unsealed));
        }
        if self.unknown > 0 && pool.directory.contains_key(STATISTICS) {
            let enabled = sink.take(pool.entry_object("features_for_write")).flatten();
            let enabled = enabled.and_then(|o| sink.take(zap::map_u64(&o))).unwrap_or_default();
            let text = format!("{} blocks have the dedup bit, but no table has them", self.unknown);
            if enabled.contains_key(FAST_DEDUP) { sink.note(text) } else { sink.error(text) }
        }
    }
}

/// Names of the ZAPs of a table.
fn names(t: &Table) -> Vec<String> {
    t.classes.iter().map(|c| format!("{}-zap-{}", t.name, CLASSES[*c])).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_claimed_once_with_all_copies() {
        let dva = |n: u64| Dva::new(base::VdevId(0), n << 20, 8192, false);
        let key = [1, 2, 3, 4, 7];
        let slot = Slot { dvas: [dva(1), dva(2), Dva::default()], refs: 2, birth: 9, visits: 0 };
        let table = Table {
            name: "DDT-sha256".into(),
            checksum: codec::ChecksumAlgo::Sha256 as u8,
            flat: true,
            entries: BTreeMap::from([(key, Entry { slots: vec![slot], class: None, logged: true })]),
            classes: Vec::new(),
            histograms: std::array::from_fn(|_| Box::new([[0; 8]; 64])),
            logs: Vec::new(),
            superseded: 0,
        };
        let mut ddt = Ddt { tables: BTreeMap::from([(table.checksum, table)]), unknown: 0, unsealed: 0 };
        let mut old = pointer(&key, &Slot { dvas: [dva(1), Dva::default(), Dva::default()], ..slot });
        old.set_checksum(codec::ChecksumAlgo::Sha256 as u8);
        old.set_checksum_words([1, 2, 3, 4]);
        assert!(matches!(ddt.visit(&old), Visit::Ordinary), "it has no dedup bit");
        old.set_dedup(true);
        assert!(matches!(ddt.visit(&old), Visit::First(bp) if bp.ndvas() == 2));
        assert!(matches!(ddt.visit(&old), Visit::Again));
        let mut pruned = old;
        pruned.set_dva(0, dva(5));
        assert!(matches!(ddt.visit(&pruned), Visit::Ordinary));
        assert_eq!(ddt.unknown, 1);
    }
}
