//! Dedup tables (format pages 13 and 20): blocks with their reference counts.
//!
//! Vocabulary. A *table* belongs to one checksum and is stored in up to three ZAPs, its *classes*:
//! entries with one reference (unique), with more (duplicate), and those of old software with an
//! extra copy (ditto). The key of an *entry* is checksum, sizes and compression of a block; it has
//! *slots*: DVAs, birth, references. A *legacy* table has one for each number of copies. A *flat*
//! table, which pools with the feature `fast_dedup` have, has one for all, and two *logs* before
//! its ZAPs: what changes is appended to the *active* log, and moves from the *flushing* log to the
//! ZAPs. `DDT-statistics` has a histogram of each class.
//!
//! The normal path. A write of a dataset with `dedup` calls [`Dedup::ask`] and either uses the DVAs
//! of the slot and adds a reference, or is written and fills the slot. A free only queues the
//! pointer; once a pass [`Ddt::take_frees`] drops those references and [`Ddt::sync`] writes the
//! changed entries: legacy ones to their ZAPs, flat ones to the log, and a part of the flushing log
//! to the ZAPs. Entries stay in memory from the first access until the txg ends, those of logs
//! until they are in a ZAP.
//!
//! A block without references is freed at once in a legacy table. In a flat one it stays until the
//! flush of its entry, and the same data may use it again.
//!
//! Invariants: an entry is in at most one ZAP, and the newest state of it is that in memory, else
//! that in the active log, in the flushing log, in the ZAP; a pointer without an entry frees
//! nothing here (it may have references as a clone: [`super::brt`]; or its entry was pruned); one
//! caller of `ask` at a time, so that two equal blocks of one txg share an entry. A table keeps its
//! form until it is empty.
//!
//! Knobs: `policy`; the quota and pruning: `prune`.

mod entry;
mod figures;
mod log;
mod policy;
mod prune;
mod sync;

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use arc::Arc;
use base::{Error, ObjectId, Result, ResultExt, Txg};
use codec::ChecksumAlgo;
use dmu::{Dnode, Objset, zap};
use dsl::features::Features;
use ondisk::blkptr::Blkptr;
use ondisk::ddt::{DIR_FLAGS, DIR_VERSION, FLAGS, VERSION};
use ondisk::feature::FeatureId;
use rt::LocalBoxFuture;
use rt::rank::Rank;
use rt::sync::Mutex;
use zio::{Dedup, DedupAnswer, WriteDone, Zio};

use entry::{FLAT_SLOT, Form, Key, LiveEntry, SLOTS, Slot, Slots, parse, slots_of};
use figures::Histogram;
use log::Logs;

pub use policy::{QUOTA_AUTO, QUOTA_NONE};
pub use prune::{DedupFigures, PruneBy};

/// Entry of the MOS directory: the histograms.
const STATISTICS: &[u8] = b"DDT-statistics";
/// Names of the classes, in the order of lookup.
const CLASSES: [&str; 3] = ["ditto", "duplicate", "unique"];
/// Checksums of tables; `fletcher4` only in very old pools.
const CHECKSUMS: [ChecksumAlgo; 6] = [
    ChecksumAlgo::Sha256,
    ChecksumAlgo::Sha512,
    ChecksumAlgo::Skein,
    ChecksumAlgo::Edonr,
    ChecksumAlgo::Blake3,
    ChecksumAlgo::Fletcher4,
];
/// Held while a block is looked up and gets its place; ZAPs are read under it.
const LOCK_RANK: Rank = Rank(695, "dedup tables");

/// The ZAP of a class.
struct Class {
    dn: Dnode,
    /// Of its entries, without those that a log has.
    histogram: Histogram,
    changed: bool,
}

/// What only flat tables have.
struct Flat {
    /// The table's directory; made with the first entry.
    dir: Option<Dnode>,
    logs: Logs,
    /// Of the entries in the logs.
    histogram: Histogram,
}

/// The table of a checksum.
#[derive(Default)]
struct Table {
    classes: [Option<Class>; 3],
    /// None for a legacy table.
    flat: Option<Flat>,
}

impl Table {
    /// A table without entries.
    fn new(form: Form) -> Table {
        let flat = || Flat { dir: None, logs: Logs::new(), histogram: Histogram::default() };
        Table { classes: Default::default(), flat: (form == Form::Flat).then(flat) }
    }
    fn form(&self) -> Form {
        if self.flat.is_some() { Form::Flat } else { Form::Legacy }
    }
    fn is_on_disk(&self) -> bool {
        self.classes.iter().any(Option::is_some) || self.flat.as_ref().is_some_and(|f| f.dir.is_some())
    }
}

/// The dedup tables of a pool.
pub(crate) struct Ddt {
    mos: Objset,
    directory: Dnode,
    features: Rc<Features>,
    arc: Arc,
    zio: Zio,
    lock: Rc<Mutex<()>>,
    statistics: Cell<Option<ObjectId>>,
    tables: RefCell<BTreeMap<u8, Table>>,
    entries: Rc<RefCell<BTreeMap<Key, LiveEntry>>>,
    /// Freed pointers, by the txg of the free.
    frees: RefCell<BTreeMap<Txg, Vec<Blkptr>>>,
    /// The property `dedup_table_quota`.
    quota: Cell<u64>,
    /// Entries to be pruned, with their slots as they were found.
    pruning: RefCell<Vec<(Key, Slot)>>,
    /// Entries that [`Ddt::prune`] removed.
    pruned: Cell<u64>,
}

/// What became of freed pointers.
#[derive(Default)]
pub(crate) struct Dropped {
    /// Blocks without references.
    pub gone: Vec<Blkptr>,
    /// Pointers that no table has.
    pub unknown: Vec<Blkptr>,
}

/// What the tables belong to.
pub(crate) struct Around<'a> {
    pub mos: &'a Objset,
    pub directory: &'a Dnode,
    pub features: &'a Rc<Features>,
    pub arc: &'a Arc,
    pub zio: &'a Zio,
}

fn table_name(checksum: ChecksumAlgo, class: usize) -> String {
    format!("DDT-{}-zap-{}", checksum.name(), CLASSES[class])
}

fn directory_name(checksum: ChecksumAlgo) -> String {
    format!("DDT-{}", checksum.name())
}

/// The checksum of a table by its number. Error: `Unsupported` for one that has none.
fn algo_of(checksum: u8) -> Result<ChecksumAlgo> {
    let algo = CHECKSUMS.into_iter().find(|c| *c as u8 == checksum);
    algo.ok_or_else(|| Error::unsupported(format!("a dedup table by checksum {checksum}")))
}

impl Ddt {
    /// Opens the pool's tables: reads histograms and logs. Errors: `Unsupported` for a table of
    /// another version, `Corrupt` if one cannot be read.
    pub(crate) async fn open(around: &Around<'_>) -> Result<Rc<Ddt>> {
        let ddt = Ddt {
            mos: around.mos.clone(),
            directory: around.directory.clone(),
            features: around.features.clone(),
            arc: around.arc.clone(),
            zio: around.zio.clone(),
            lock: Rc::new(Mutex::new(LOCK_RANK, ())),
            statistics: Cell::new(zap::lookup_u64(around.directory, STATISTICS).await?.map(ObjectId)),
            tables: RefCell::default(),
            entries: Rc::default(),
            frees: RefCell::default(),
            quota: Cell::new(QUOTA_AUTO),
            pruning: RefCell::default(),
            pruned: Cell::default(),
        };
        for algo in CHECKSUMS {
            let table = ddt.read_table(algo).await.at(|| directory_name(algo))?;
            if table.is_on_disk() {
                ddt.tables.borrow_mut().insert(algo as u8, table);
            }
        }
        Ok(Rc::new(ddt))
    }

    /// The table of a checksum, as it is on disk.
    async fn read_table(&self, algo: ChecksumAlgo) -> Result<Table> {
        let dir = zap::lookup_u64(&self.directory, directory_name(algo).as_bytes()).await?;
        let Some(dir) = dir else {
            return Ok(Table { classes: self.read_classes(algo, &self.directory).await?, flat: None });
        };
        let dir = self.mos.hold(ObjectId(dir)).await?;
        let version = zap::lookup_u64(&dir, DIR_VERSION.as_bytes()).await?;
        let flags = zap::lookup_u64(&dir, DIR_FLAGS.as_bytes()).await?;
        if (version, flags) != (Some(VERSION), Some(FLAGS)) {
            return Err(Error::unsupported(format!("version {version:?} with the flags {flags:?}")));
        }
        let classes = self.read_classes(algo, &dir).await?;
        let logs = Logs::read(&self.mos, &dir, algo.name()).await?;
        let mut histogram = Histogram::default();
        for (words, e) in logs.active.entries.iter().chain(&logs.flushing.entries) {
            let key = Key { checksum: algo as u8, words: *words };
            histogram.count(&self.zio, &key, &slots_of(&e.flat), true);
        }
        Ok(Table { classes, flat: Some(Flat { dir: Some(dir), logs, histogram }) })
    }

    /// The classes of a table that `directory` names.
    async fn read_classes(&self, algo: ChecksumAlgo, directory: &Dnode) -> Result<[Option<Class>; 3]> {
        let mut classes: [Option<Class>; 3] = Default::default();
        for (class, place) in classes.iter_mut().enumerate() {
            let name = table_name(algo, class);
            let Some(object) = zap::lookup_u64(directory, name.as_bytes()).await? else { continue };
            let dn = self.mos.hold(ObjectId(object)).await.at(|| name.clone())?;
            let mut histogram = Histogram::default();
            if let Some(statistics) = self.statistics.get()
                && let Some(value) = zap::lookup(&self.mos.hold(statistics).await?, name.as_bytes()).await?
            {
                histogram = Histogram::parse(&value).at(|| name)?;
            }
            *place = Some(Class { dn, histogram, changed: false });
        }
        Ok(classes)
    }

    /// Bytes that dedup saves, deflated (format page 13 section 6).
    pub(crate) fn saved(&self) -> u64 {
        let (stored, referenced) = self.sizes();
        referenced.saturating_sub(stored)
    }

    /// Allocated bytes of all blocks of the tables, and of all references to them.
    pub(crate) fn sizes(&self) -> (u64, u64) {
        let tables = self.tables.borrow();
        let all = tables.values().flat_map(|t| {
            let classes = t.classes.iter().flatten().map(|c| &c.histogram);
            classes.chain(t.flat.as_ref().map(|f| &f.histogram))
        });
        all.map(Histogram::sizes).fold((0, 0), |(a, b), (c, d)| (a.wrapping_add(c), b.wrapping_add(d)))
    }

    /// Whether frees of `txg`, changed entries or such that are to be pruned wait.
    pub(crate) fn is_dirty(&self, txg: Txg) -> bool {
        !self.pruning.borrow().is_empty()
            || self.frees.borrow().first_key_value().is_some_and(|(t, _)| *t <= txg)
            || self.entries.borrow().values().any(LiveEntry::is_dirty)
    }

    /// Drops the clean entries from memory, after the txg is on disk, and tables without any.
    pub(crate) fn synced(&self) {
        let mut entries = self.entries.borrow_mut();
        entries.retain(|_, e| e.is_dirty());
        let has_some = |checksum: u8| entries.keys().any(|key| key.checksum == checksum);
        self.tables.borrow_mut().retain(|checksum, t| t.is_on_disk() || has_some(*checksum));
    }

    /// The form of the table of a checksum; of one that comes into being that of the best feature
    /// that is enabled.
    fn form(&self, checksum: u8) -> Form {
        let best = if self.features.is_enabled(FeatureId::FastDedup) { Form::Flat } else { Form::Legacy };
        self.tables.borrow_mut().entry(checksum).or_insert_with(|| Table::new(best)).form()
    }

    /// Reads the entry of `key`, if there is one, into memory. The caller holds the lock.
    async fn load(&self, key: Key) -> Result<()> {
        if self.entries.borrow().contains_key(&key) {
            return Ok(());
        }
        let (form, logged) = {
            let tables = self.tables.borrow();
            let Some(table) = tables.get(&key.checksum) else { return Ok(()) };
            (table.form(), table.flat.as_ref().and_then(|f| f.logs.find(&key.words)))
        };
        if let Some(e) = logged {
            let live = LiveEntry::stored(slots_of(&e.flat), e.class.map(usize::from), true);
            self.entries.borrow_mut().insert(key, live);
            return Ok(());
        }
        for (class, name) in CLASSES.iter().enumerate() {
            let Some(dn) = self.class_zap(key.checksum, class) else { continue };
            if let Some(value) = zap::lookup(&dn, &key.name()).await.at(|| name)? {
                let live = LiveEntry::stored(parse(form, &value)?, Some(class), false);
                self.entries.borrow_mut().insert(key, live);
                return Ok(());
            }
        }
        Ok(())
    }

    /// The ZAP of a class, if it is there.
    fn class_zap(&self, checksum: u8, class: usize) -> Option<Dnode> {
        let tables = self.tables.borrow();
        tables.get(&checksum)?.classes[class].as_ref().map(|c| c.dn.clone())
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
            if self.is_flat(key.checksum) {
                // The flush frees it, unless the same data came back.
                continue;
            }
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

    fn is_flat(&self, checksum: u8) -> bool {
        self.tables.borrow().get(&checksum).is_some_and(|t| t.flat.is_some())
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

    /// Blocks of earlier txgs that got references in this one.
    pub(crate) fn newly_referenced(&self) -> Vec<Blkptr> {
        let mut out = Vec::new();
        for (key, live) in self.entries.borrow().iter() {
            let grown = |(now, was): &(&Slot, &Slot)| was.birth != 0 && now.birth == was.birth && now.refs > was.refs;
            out.extend(live.slots.iter().zip(&live.base).filter(grown).map(|(now, _)| key.pointer(now)));
        }
        out
    }
}

impl Dedup for Ddt {
    fn ask<'a>(&'a self, bp: &'a Blkptr, copies: usize, txg: Txg) -> LocalBoxFuture<'a, Result<DedupAnswer>> {
        Box::pin(async move {
            let guard = self.lock.lock_owned().await;
            let key = Key::of(bp);
            self.load(key).await?;
            let form = self.form(key.checksum);
            let at = if form == Form::Flat { FLAT_SLOT } else { copies.clamp(1, SLOTS - 1) };
            let known = self.entries.borrow().get(&key).map(|e| (e.slots[at], e.writes[at].clone()));
            let entries = self.entries.clone();
            if let Some((slot, done)) = known.filter(|(s, _)| s.birth != 0) {
                let bp = key.pointer(&slot);
                if form == Form::Flat && bp.ndvas() < copies {
                    return Ok(DedupAnswer::Apart);
                }
                let accept = move || {
                    let _guard = guard;
                    if let Some(live) = entries.borrow_mut().get_mut(&key) {
                        live.slots[at].refs = live.slots[at].refs.saturating_add(1);
                    }
                };
                return Ok(DedupAnswer::Known { bp, done, accept: Box::new(accept) });
            }
            if !self.entries.borrow().contains_key(&key) && self.is_over_quota(txg) {
                return Ok(DedupAnswer::Apart);
            }
            let fill = move |bp: &Blkptr, done: &WriteDone| {
                let _guard = guard;
                let mut entries = entries.borrow_mut();
                let live = entries.entry(key).or_default();
                // The third of an encrypted block is salt and IV: an entry has them, too.
                let dvas = std::array::from_fn(|i| bp.dva(i));
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
