//! Dedup tables (format page 13): blocks with their reference counts.
//!
//! Vocabulary. A *table* belongs to one checksum and is stored in up to three ZAPs, its *classes*:
//! entries with one reference (unique), with more (duplicate), and those of old software with an
//! extra copy (ditto). The key of an *entry* is checksum, sizes and compression of a block; it has
//! a *slot* for each number of copies: DVAs, birth, references. `DDT-statistics` has a histogram of
//! each class.
//!
//! The normal path. A write of a dataset with `dedup` calls [`Dedup::ask`] and either uses the DVAs
//! of the slot and adds a reference, or is written and fills the slot. A free only queues the
//! pointer; once a pass [`Ddt::sync`] drops those references, frees the blocks without references,
//! and writes changed entries to their ZAPs and the histograms. Entries stay in memory from the
//! first access until the txg ends.
//!
//! Invariants: an entry is in exactly one ZAP, that of its reference count; a pointer without
//! an entry frees nothing here (it may have references as a clone: [`super::brt`]); one caller
//! of `ask` at a time, so that two equal blocks of one txg share an entry.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use base::{Error, ObjectId, Result, ResultExt, Txg};
use codec::{ChecksumAlgo, CompressAlgo, Compression};
use dmu::{Dnode, ObjSpec, Objset, Tx, zap};
use ondisk::blkptr::{Blkptr, Dva};
use ondisk::bytes::{le64, put_le64};
use ondisk::object_type::ObjectType;
use ondisk::zap::{FLAG_HASH64, FLAG_PRE_HASHED_KEY, FLAG_UINT64_KEY, ZapValue};
use rt::LocalBoxFuture;
use rt::rank::Rank;
use rt::sync::Mutex;
use zio::{Dedup, DedupAnswer, WriteDone, Zio};

/// Entry of the MOS directory: the histograms.
const STATISTICS: &[u8] = b"DDT-statistics";
/// Names of the classes, in the order of lookup.
const CLASSES: [&str; 3] = ["ditto", "duplicate", "unique"];
const DUPLICATE: usize = 1;
const UNIQUE: usize = 2;
/// Checksums of tables; `fletcher4` only in very old pools.
const CHECKSUMS: [ChecksumAlgo; 6] = [
    ChecksumAlgo::Sha256,
    ChecksumAlgo::Sha512,
    ChecksumAlgo::Skein,
    ChecksumAlgo::Edonr,
    ChecksumAlgo::Blake3,
    ChecksumAlgo::Fletcher4,
];
/// log2 of the block size of the ZAPs, and of their indirect blocks.
const BLOCK_SHIFT: u32 = 12;
const SLOTS: usize = 4;
/// The word of a block pointer with its sizes and compression, and their bits (format page 02
/// section 1).
const PROP_WORD: usize = 6;
const SIZES_AND_COMPRESSION: u64 = (1 << 39) - 1;
/// Held while a block is looked up and gets its place; ZAPs are read under it.
const LOCK_RANK: Rank = Rank(695, "dedup tables");
/// Bytes of an entry before it is compressed: of each slot three DVAs, references, birth.
const ENTRY_SIZE: usize = SLOTS * 64;
const BUCKETS: usize = 64;
/// Figures of a bucket: blocks, lsize, psize, dsize, and the same times references.
const FIGURES: usize = 8;

/// The key of an entry: the checksum's words; sizes and compression.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Key {
    checksum: u8,
    words: [u64; 5],
}

impl Key {
    fn of(bp: &Blkptr) -> Key {
        let [a, b, c, d] = bp.checksum_words();
        // The block may have no DVA yet.
        let prop = bp.0[PROP_WORD] & SIZES_AND_COMPRESSION | u64::from(bp.encrypted()) << 39;
        Key { checksum: bp.checksum_raw(), words: [a, b, c, d, prop] }
    }
    fn name(&self) -> Vec<u8> {
        self.words.iter().flat_map(|w| w.to_be_bytes()).collect()
    }
    fn lsize(&self) -> u64 {
        ((self.words[4] & 0xffff) + 1) * 512
    }
    fn psize(&self) -> u64 {
        ((self.words[4] >> 16 & 0xffff) + 1) * 512
    }
    /// A pointer to the block in `slot`, without the dedup bit.
    fn pointer(&self, slot: &Slot) -> Blkptr {
        let mut bp = Blkptr::hole();
        bp.set_lsize(self.lsize());
        bp.set_psize(self.psize());
        bp.set_compress((self.words[4] >> 32 & 0x7f) as u8);
        bp.set_checksum(self.checksum);
        bp.set_otype(ObjectType::PLAIN_FILE);
        bp.set_little_endian(true);
        bp.set_checksum_words([self.words[0], self.words[1], self.words[2], self.words[3]]);
        slot.dvas.iter().enumerate().for_each(|(i, dva)| bp.set_dva(i, *dva));
        bp.set_birth(Txg(slot.birth), Txg(slot.birth));
        bp.set_fill(1);
        bp
    }
}

/// The block for one number of copies.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
struct Slot {
    dvas: [Dva; 3],
    refs: u64,
    /// Txg; 0: not in use.
    birth: u64,
}

type Slots = [Slot; SLOTS];

/// The slots of a stored entry.
fn parse(value: &ZapValue) -> Result<Slots> {
    let bad = || Error::corrupt("dedup table entry that is none");
    let (version, body) = value.as_bytes().and_then(|b| b.split_first()).ok_or_else(bad)?;
    let mut raw = [0u8; ENTRY_SIZE];
    match CompressAlgo::from_u8(version & 0x7f) {
        Some(CompressAlgo::Off) if body.len() == ENTRY_SIZE => raw.copy_from_slice(body),
        Some(CompressAlgo::Zle) => codec::decompress(CompressAlgo::Zle, body, &mut raw)?,
        _ => return Err(bad()),
    }
    if version & 0x80 == 0 {
        raw.as_chunks_mut::<8>().0.iter_mut().for_each(|w| w.reverse());
    }
    let word = |i: usize| le64(&raw, i * 8);
    Ok(std::array::from_fn(|s| Slot {
        dvas: std::array::from_fn(|d| Dva { w0: word(s * 8 + d * 2), w1: word(s * 8 + d * 2 + 1) }),
        refs: word(s * 8 + 6),
        birth: word(s * 8 + 7),
    }))
}

fn store(slots: &Slots) -> ZapValue {
    let mut raw = [0u8; ENTRY_SIZE];
    for (s, slot) in slots.iter().enumerate() {
        for (d, dva) in slot.dvas.iter().enumerate() {
            put_le64(&mut raw, s * 64 + d * 16, dva.w0);
            put_le64(&mut raw, s * 64 + d * 16 + 8, dva.w1);
        }
        put_le64(&mut raw, s * 64 + 48, slot.refs);
        put_le64(&mut raw, s * 64 + 56, slot.birth);
    }
    let mut packed = [0u8; ENTRY_SIZE];
    let zle = Compression { algo: CompressAlgo::Zle, level: 0 };
    let mut out = Vec::with_capacity(ENTRY_SIZE + 1);
    match codec::compress(zle, &raw, &mut packed, ENTRY_SIZE - 1) {
        Some(n) => {
            out.push(0x80 | CompressAlgo::Zle as u8);
            out.extend_from_slice(&packed[..n]);
        }
        None => {
            out.push(0x80 | CompressAlgo::Off as u8);
            out.extend_from_slice(&raw);
        }
    }
    ZapValue::from_bytes(&out)
}

/// An entry in memory.
struct LiveEntry {
    slots: Slots,
    /// The class and slots in the ZAP.
    stored: Option<(usize, Slots)>,
    /// Writes of this txg that are under way, by slot.
    writes: [Option<WriteDone>; SLOTS],
}

impl LiveEntry {
    /// The slot of the block at `bp`, if it has references.
    fn slot_of(&self, bp: &Blkptr) -> Option<usize> {
        let is_it = |s: &Slot| s.birth == bp.phys_birth().0 && s.dvas[0] == bp.dva(0) && s.refs > 0;
        (1..SLOTS).find(|at| is_it(&self.slots[*at]))
    }
    fn is_dirty(&self) -> bool {
        self.stored.as_ref().map_or(Slots::default(), |(_, s)| *s) != self.slots
    }
}

type Histogram = [[u64; FIGURES]; BUCKETS];

struct Table {
    dn: Dnode,
    histogram: Box<Histogram>,
    changed: bool,
}

/// The dedup tables of a pool.
pub(crate) struct Ddt {
    mos: Objset,
    directory: Dnode,
    zio: Zio,
    lock: Rc<Mutex<()>>,
    statistics: Cell<Option<ObjectId>>,
    tables: RefCell<BTreeMap<(u8, usize), Table>>,
    entries: Rc<RefCell<BTreeMap<Key, LiveEntry>>>,
    /// Freed pointers, by the txg of the free.
    frees: RefCell<BTreeMap<Txg, Vec<Blkptr>>>,
}

/// What became of freed pointers.
#[derive(Default)]
pub(crate) struct Dropped {
    /// Blocks without references.
    pub gone: Vec<Blkptr>,
    /// Pointers that no table has.
    pub unknown: Vec<Blkptr>,
}

fn table_name(checksum: ChecksumAlgo, class: usize) -> String {
    format!("DDT-{}-zap-{}", checksum.name(), CLASSES[class])
}

impl Ddt {
    /// Opens the pool's tables.
    pub(crate) async fn open(mos: &Objset, directory: &Dnode, zio: Zio) -> Result<Rc<Ddt>> {
        let statistics = zap::lookup_u64(directory, STATISTICS).await?.map(ObjectId);
        let mut tables = BTreeMap::new();
        for checksum in CHECKSUMS {
            for class in 0..CLASSES.len() {
                let name = table_name(checksum, class);
                let Some(object) = zap::lookup_u64(directory, name.as_bytes()).await? else { continue };
                let dn = mos.hold(ObjectId(object)).await.at(|| name.clone())?;
                let mut histogram = Box::new([[0; FIGURES]; BUCKETS]);
                if let Some(statistics) = statistics
                    && let Some(value) = zap::lookup(&mos.hold(statistics).await?, name.as_bytes()).await?
                {
                    let words = value.as_u64s().filter(|w| w.len() == BUCKETS * FIGURES);
                    let words = words.ok_or_else(|| Error::corrupt(format!("histogram of {name}")))?;
                    for (i, w) in words.into_iter().enumerate() {
                        histogram[i / FIGURES][i % FIGURES] = w;
                    }
                }
                tables.insert((checksum as u8, class), Table { dn, histogram, changed: false });
            }
        }
        Ok(Rc::new(Ddt {
            mos: mos.clone(),
            directory: directory.clone(),
            zio,
            lock: Rc::new(Mutex::new(LOCK_RANK, ())),
            statistics: Cell::new(statistics),
            tables: RefCell::new(tables),
            entries: Rc::default(),
            frees: RefCell::default(),
        }))
    }

    /// Bytes that dedup saves, deflated (format page 13 section 6).
    pub(crate) fn saved(&self) -> u64 {
        let tables = self.tables.borrow();
        let sum = |figure: usize| -> u64 {
            let all = tables.values().flat_map(|t| t.histogram.iter());
            all.fold(0u64, |sum, bucket| sum.wrapping_add(bucket[figure]))
        };
        sum(7).saturating_sub(sum(3))
    }

    /// Whether frees of `txg` or changed entries wait.
    pub(crate) fn is_dirty(&self, txg: Txg) -> bool {
        self.frees.borrow().first_key_value().is_some_and(|(t, _)| *t <= txg)
            || self.entries.borrow().values().any(LiveEntry::is_dirty)
    }

    /// Drops the clean entries from memory, after the txg is on disk.
    pub(crate) fn synced(&self) {
        self.entries.borrow_mut().retain(|_, e| e.is_dirty());
    }

    /// Reads the entry of `key`, if there is one, into memory. The caller holds the lock.
    async fn load(&self, key: Key) -> Result<()> {
        if self.entries.borrow().contains_key(&key) {
            return Ok(());
        }
        for (class, name) in CLASSES.iter().enumerate() {
            let dn = self.tables.borrow().get(&(key.checksum, class)).map(|t| t.dn.clone());
            let Some(dn) = dn else { continue };
            if let Some(value) = zap::lookup(&dn, &key.name()).await.at(|| name)? {
                let slots = parse(&value)?;
                let live = LiveEntry { slots, stored: Some((class, slots)), writes: Default::default() };
                self.entries.borrow_mut().insert(key, live);
                return Ok(());
            }
        }
        Ok(())
    }

    /// Drops the references of pointers freed up to `txg`.
    pub(crate) async fn take_frees(&self, txg: Txg) -> Result<Dropped> {
        let later = self.frees.borrow_mut().split_off(&txg.next());
        let frees = self.frees.replace(later);
        let _lock = self.lock.lock().await;
        let mut out = Dropped::default();
        for bp in frees.into_values().flatten() {
            let key = Key::of(&bp);
            self.load(key).await?;
            let mut entries = self.entries.borrow_mut();
            let live = entries.get_mut(&key);
            let Some((live, at)) = live.and_then(|l| l.slot_of(&bp).map(|at| (l, at))) else {
                out.unknown.push(bp);
                continue;
            };
            let slot = &mut live.slots[at];
            slot.refs -= 1;
            if slot.refs == 0 {
                out.gone.push(key.pointer(slot));
                *slot = Slot::default();
            }
            let ditto = std::mem::take(&mut live.slots[0]);
            if ditto.birth != 0 {
                out.gone.push(key.pointer(&ditto));
            }
        }
        Ok(out)
    }

    /// Counts `count` more references to the block at `bp`; false if no table has it.
    pub(crate) async fn add_references(&self, bp: &Blkptr, count: u64) -> Result<bool> {
        let _lock = self.lock.lock().await;
        let key = Key::of(bp);
        self.load(key).await?;
        let mut entries = self.entries.borrow_mut();
        let live = entries.get_mut(&key);
        let Some((live, at)) = live.and_then(|l| l.slot_of(bp).map(|at| (l, at))) else { return Ok(false) };
        live.slots[at].refs = live.slots[at].refs.saturating_add(count);
        Ok(true)
    }

    /// Blocks of earlier txgs that got references in this one; never encrypted ones.
    pub(crate) fn newly_referenced(&self) -> Vec<Blkptr> {
        let mut out = Vec::new();
        for (key, live) in self.entries.borrow().iter() {
            let Some((_, stored)) = &live.stored else { continue };
            let grown = |(now, was): &(&Slot, &Slot)| was.birth != 0 && now.birth == was.birth && now.refs > was.refs;
            out.extend(live.slots.iter().zip(stored).filter(grown).map(|(now, _)| key.pointer(now)));
        }
        out
    }

    /// Adds `slots` to the histogram of a class, or subtracts them.
    fn count(&self, table: (u8, usize), key: &Key, slots: &Slots, add: bool) {
        let mut tables = self.tables.borrow_mut();
        let Some(t) = tables.get_mut(&table) else { return };
        let refs: u64 = slots.iter().fold(0u64, |n, s| n.saturating_add(s.refs));
        let bucket = &mut t.histogram[refs.checked_ilog2().unwrap_or(0) as usize];
        let mut change = |figure: usize, by: u64| {
            bucket[figure] = if add { bucket[figure].wrapping_add(by) } else { bucket[figure].wrapping_sub(by) };
        };
        for slot in slots.iter().filter(|s| s.birth != 0) {
            let dsize = self.zio.dsize(&key.pointer(slot));
            for (i, v) in [1, key.lsize(), key.psize(), dsize].into_iter().enumerate() {
                change(i, v);
                change(i + 4, v.wrapping_mul(slot.refs));
            }
        }
        t.changed = true;
    }

    /// Writes the changed entries to their ZAPs.
    pub(crate) async fn sync(&self, tx: &Tx) -> Result<()> {
        let _lock = self.lock.lock().await;
        let dirty: Vec<Key> = self.entries.borrow().iter().filter(|(_, e)| e.is_dirty()).map(|(k, _)| *k).collect();
        for key in dirty {
            let Some((slots, stored)) = self.entries.borrow().get(&key).map(|e| (e.slots, e.stored)) else { continue };
            let total = slots[1..].iter().fold(0u64, |n, s| n.saturating_add(s.refs));
            let class = match total {
                0 => None,
                1 => Some(UNIQUE),
                _ => Some(DUPLICATE),
            };
            if let Some((old, old_slots)) = stored {
                self.count((key.checksum, old), &key, &old_slots, false);
                if class != Some(old) {
                    let dn = self.tables.borrow().get(&(key.checksum, old)).map(|t| t.dn.clone());
                    if let Some(dn) = dn {
                        zap::remove(&dn, &key.name(), tx).await?;
                    }
                }
            }
            if let Some(class) = class {
                let dn = self.table(key.checksum, class, tx).await?;
                zap::update(&dn, &key.name(), &store(&slots), tx).await?;
                self.count((key.checksum, class), &key, &slots, true);
            }
            if let Some(live) = self.entries.borrow_mut().get_mut(&key) {
                live.stored = class.map(|class| (class, slots));
            }
        }
        self.write_statistics(tx).await
    }

    /// The ZAP of a class, created if missing.
    async fn table(&self, checksum: u8, class: usize, tx: &Tx) -> Result<Dnode> {
        if let Some(t) = self.tables.borrow().get(&(checksum, class)) {
            return Ok(t.dn.clone());
        }
        let algo = CHECKSUMS.into_iter().find(|c| *c as u8 == checksum);
        let algo = algo.ok_or_else(|| Error::unsupported(format!("a dedup table by checksum {checksum}")))?;
        let strong = matches!(algo, ChecksumAlgo::Sha256 | ChecksumAlgo::Sha512 | ChecksumAlgo::Skein);
        let flags = FLAG_HASH64 | FLAG_UINT64_KEY | if strong { FLAG_PRE_HASHED_KEY } else { 0 };
        let spec = ObjSpec::new(ObjectType::DDT_ZAP, 0).indblkshift(BLOCK_SHIFT as u8);
        let dn = zap::create_fat(&self.mos, spec, BLOCK_SHIFT, flags, tx).await?;
        zap::add_u64(&self.directory, table_name(algo, class).as_bytes(), dn.object().0, tx).await?;
        if self.statistics.get().is_none() {
            let stats = zap::create(&self.mos, ObjectType::DDT_STATS, 0, tx).await?;
            zap::add_u64(&self.directory, STATISTICS, stats.object().0, tx).await?;
            self.statistics.set(Some(stats.object()));
        }
        let table = Table { dn: dn.clone(), histogram: Box::new([[0; FIGURES]; BUCKETS]), changed: true };
        self.tables.borrow_mut().insert((checksum, class), table);
        Ok(dn)
    }

    /// Writes the histograms that changed; removes the tables of a checksum that has no entries
    /// left.
    async fn write_statistics(&self, tx: &Tx) -> Result<()> {
        let Some(statistics) = self.statistics.get() else { return Ok(()) };
        let statistics = self.mos.hold(statistics).await?;
        for algo in CHECKSUMS {
            let mine: Vec<(usize, Dnode, bool)> = {
                let tables = self.tables.borrow();
                let of = tables.range((algo as u8, 0)..=(algo as u8, CLASSES.len()));
                of.map(|((_, class), t)| (*class, t.dn.clone(), t.changed)).collect()
            };
            if !mine.iter().any(|(.., changed)| *changed) {
                continue;
            }
            let mut entries = 0;
            for (_, dn, _) in &mine {
                entries += zap::count(dn).await?;
            }
            for (class, dn, changed) in mine {
                let name = table_name(algo, class);
                if entries == 0 {
                    self.tables.borrow_mut().remove(&(algo as u8, class));
                    zap::remove(&self.directory, name.as_bytes(), tx).await?;
                    if zap::lookup(&statistics, name.as_bytes()).await?.is_some() {
                        zap::remove(&statistics, name.as_bytes(), tx).await?;
                    }
                    self.mos.free(dn.object(), tx).await?;
                } else if changed {
                    let words: Vec<u64> = {
                        let mut tables = self.tables.borrow_mut();
                        let t = tables.get_mut(&(algo as u8, class)).expect("it was listed just now");
                        t.changed = false;
                        t.histogram.iter().flatten().copied().collect()
                    };
                    zap::update(&statistics, name.as_bytes(), &ZapValue::from_u64s(&words), tx).await?;
                }
            }
        }
        Ok(())
    }
}

impl Dedup for Ddt {
    fn ask<'a>(&'a self, bp: &'a Blkptr, copies: usize, txg: Txg) -> LocalBoxFuture<'a, Result<DedupAnswer>> {
        Box::pin(async move {
            let guard = self.lock.lock_owned().await;
            let key = Key::of(bp);
            self.load(key).await?;
            let at = copies.clamp(1, SLOTS - 1);
            let known = self.entries.borrow().get(&key).map(|e| (e.slots[at], e.writes[at].clone()));
            let entries = self.entries.clone();
            if let Some((slot, done)) = known.filter(|(s, _)| s.birth != 0) {
                let accept = move || {
                    let _guard = guard;
                    if let Some(live) = entries.borrow_mut().get_mut(&key) {
                        live.slots[at].refs = live.slots[at].refs.saturating_add(1);
                    }
                };
                return Ok(DedupAnswer::Known { bp: key.pointer(&slot), done, accept: Box::new(accept) });
            }
            let fill = move |bp: &Blkptr, done: &WriteDone| {
                let _guard = guard;
                let mut entries = entries.borrow_mut();
                let live = entries.entry(key).or_insert_with(|| LiveEntry {
                    slots: Slots::default(),
                    stored: None,
                    writes: Default::default(),
                });
                let crypt = bp.encrypted();
                let dvas = std::array::from_fn(|i| if crypt && i == 2 { Dva::default() } else { bp.dva(i) });
                live.slots[at] = Slot { dvas, refs: 1, birth: txg.0 };
                live.writes[at] = Some(done.clone());
            };
            Ok(DedupAnswer::New(Box::new(fill)))
        })
    }

    fn free(&self, bp: &Blkptr, txg: Txg) {
        self.frees.borrow_mut().entry(txg).or_default().push(*bp);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::VdevId;

    #[test]
    fn entries_keep_what_they_say() {
        let mut slots = Slots::default();
        assert_eq!(parse(&store(&slots)).expect("own bytes"), slots);
        let dva = |n: u64| Dva::new(VdevId(0), n << 20, 8192, false);
        slots[1] = Slot { dvas: [dva(1), Dva::default(), Dva::default()], refs: 3, birth: 77 };
        slots[3] = Slot { dvas: [dva(2), dva(3), dva(4)], refs: u64::MAX, birth: 1 << 40 };
        let value = store(&slots);
        assert_eq!(value.as_bytes().map(|b| b[0]), Some(0x8e));
        assert_eq!(parse(&value).expect("own bytes"), slots);
        for bad in [&[][..], &[0x8e], &[0x82, 1, 2, 3], &[0xff; 257]] {
            assert!(parse(&ZapValue::from_bytes(bad)).is_err());
        }
        // A big-endian writer's, not compressed.
        let mut raw = vec![2u8];
        let words = slots.iter().flat_map(|s| s.dvas.iter().flat_map(|d| [d.w0, d.w1]).chain([s.refs, s.birth]));
        raw.extend(words.flat_map(u64::to_be_bytes));
        assert_eq!(parse(&ZapValue::from_bytes(&raw)).expect("sane"), slots);
    }

    #[test]
    fn keys_name_blocks() {
        let mut bp = Blkptr::hole();
        bp.set_lsize(128 << 10);
        bp.set_psize(512);
        bp.set_compress(CompressAlgo::Lz4 as u8);
        bp.set_checksum(ChecksumAlgo::Sha256 as u8);
        bp.set_checksum_words([1, 2, 3, 4]);
        let key = Key::of(&bp);
        assert_eq!(key.words, [1, 2, 3, 4, 255 | (CompressAlgo::Lz4 as u64) << 32]);
        let slot =
            Slot { dvas: [Dva::new(VdevId(0), 0, 512, false), Dva::default(), Dva::default()], refs: 1, birth: 5 };
        let back = key.pointer(&slot);
        assert_eq!(Key::of(&back), key);
        assert_eq!((back.lsize(), back.psize(), back.ndvas(), back.phys_birth()), (128 << 10, 512, 1, Txg(5)));
    }
}
