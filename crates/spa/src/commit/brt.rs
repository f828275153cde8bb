//! The block reference table: references to cloned blocks beyond the first (format page 18).
//!
//! Vocabulary. A *place* is the vdev and offset of the first DVA of a block; all copies of the
//! block follow it. A *table* belongs to a top-level vdev: a vdev object with a header and
//! *counters*, one for each *region* of 16 MiB, and a ZAP with an *entry* for each place with
//! further references. A *pending* reference was added in a txg that does not sync yet.
//!
//! The normal path. Cloning calls [`References::add`] in the open txg: the reference is
//! pending, and an overwrite in the same txg takes it back ([`References::forget`]). When the
//! txg syncs, [`Brt::apply`] turns what is pending into counts, before anything is freed. A
//! free asks the counter of the region ([`References::may_have`]): at 0 the block has no entry
//! and its space is free at once. Else the pointer is queued, and [`Brt::take_frees`] looks for
//! the entry at the end of the pass: with one it drops a reference and the space stays; without
//! one the block is freed. [`Brt::sync`] writes the entries that changed, counters and headers,
//! in each pass. An entry is in memory from its first use in a txg to the end of that; a
//! table's counters always are.
//!
//! Blocks of dedup tables have their references there; the BRT counts those that no table has.
//!
//! A source is locked while it is cloned, and the txgs of changes never go back, so it is never
//! freed in a txg before that of its clone. Should it be all the same, the freed reference
//! becomes the pending one.
//!
//! Invariants: the counter of a region is the number of entries in it, the header's count their
//! number; a table without entries does not exist on disk; pending references of a txg are counted
//! before its first free, so a block and its clone may go in any order.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use base::{Error, ObjectId, Result, ResultExt, Txg, VdevId};
use dmu::{Dnode, ObjSpec, Objset, Tx, zap};
use dsl::features::Features;
use ondisk::blkptr::Blkptr;
use ondisk::brt::{
    BRT_BLKSZ, BRT_SIZE, BrtPhys, DIRECTORY_PREFIX, ENTRIES_SHIFT, RANGE_SIZE, counters_to_bytes, entry_value,
    region_of, regions_in,
};
use ondisk::feature::FeatureId;
use ondisk::object_type::ObjectType;
use ondisk::zap::{FLAG_HASH64, FLAG_UINT64_KEY};
use rt::cost::FREE;
use zio::{References, Zio};

use crate::commit::ddt::Ddt;

/// Most bytes of counters that are read: those of a vdev of 2 PiB.
const COUNTERS_MAX: u64 = 256 << 20;

/// Vdev and offset of the first DVA of a block.
type Place = (VdevId, u64);

fn place_of(bp: &Blkptr) -> Place {
    (bp.dva(0).vdev(), bp.dva(0).offset())
}

/// The table of one vdev.
#[derive(Default)]
struct Table {
    /// The vdev object and the entries, if they are on disk.
    objects: Option<(Dnode, Dnode)>,
    phys: BrtPhys,
    counters: Vec<u16>,
    /// The counters differ from those on disk.
    counters_changed: bool,
    /// The header differs from that on disk.
    changed: bool,
}

impl Table {
    fn counter(&self, offset: u64) -> u16 {
        self.counters.get(region_of(offset)).copied().unwrap_or(0)
    }

    /// Counts an entry that comes into being, or goes.
    fn count(&mut self, offset: u64, dsize: u64, comes: bool) {
        let region = region_of(offset);
        if region >= self.counters.len() {
            self.counters.resize(region + 1, 0);
        }
        let (counter, phys) = (&mut self.counters[region], &mut self.phys);
        if comes {
            *counter = counter.saturating_add(1);
            phys.total_count = phys.total_count.saturating_add(1);
            phys.used_space = phys.used_space.saturating_add(dsize);
        } else {
            *counter = counter.saturating_sub(1);
            phys.total_count = phys.total_count.saturating_sub(1);
            phys.used_space = phys.used_space.saturating_sub(dsize);
        }
        self.counters_changed = true;
    }
}

/// An entry in memory.
#[derive(Clone, Copy, Default)]
struct LiveEntry {
    /// References beyond the first; 0: no entry.
    count: u64,
    /// The same on disk.
    stored: u64,
}

/// References added to a block in one txg.
struct Pending {
    bp: Blkptr,
    count: u64,
}

/// The block reference tables of a pool.
pub(crate) struct Brt {
    mos: Objset,
    directory: Dnode,
    features: Rc<Features>,
    zio: Zio,
    tables: RefCell<BTreeMap<VdevId, Table>>,
    entries: RefCell<BTreeMap<Place, LiveEntry>>,
    pending: RefCell<BTreeMap<Txg, BTreeMap<Place, Pending>>>,
    frees: RefCell<BTreeMap<Txg, Vec<Blkptr>>>,
    /// Blocks that got references in the txg that syncs.
    grown: RefCell<Vec<Blkptr>>,
}

fn entry_name(id: VdevId) -> String {
    format!("{DIRECTORY_PREFIX}{}", id.0)
}

/// The key of an entry: the offset, as ZAPs with keys of u64 have it.
fn key_of(offset: u64) -> [u8; 8] {
    offset.to_be_bytes()
}

/// Reads the table in object `object` of the MOS.
async fn read_table(mos: &Objset, object: ObjectId) -> Result<Table> {
    let dn = mos.hold(object).await?;
    let phys = dn.with_bonus(BrtPhys::parse)?;
    if phys.counter_bytes() > COUNTERS_MAX {
        return Err(Error::corrupt(format!("{} counters of regions are more than a vdev has", phys.size)));
    }
    let mut bytes = vec![0; phys.counter_bytes() as usize];
    dn.read(0, &mut bytes).await?;
    let entries = mos.hold(ObjectId(phys.entries)).await?;
    let counters = phys.counters(&bytes);
    Ok(Table { objects: Some((dn, entries)), phys, counters, ..Table::default() })
}

impl Brt {
    /// Opens the pool's tables. Errors: `Unsupported` for the table of a big-endian machine in a
    /// pool that is to be written.
    pub(crate) async fn open(
        mos: &Objset,
        directory: &Dnode,
        features: &Rc<Features>,
        zio: Zio,
        readonly: bool,
    ) -> Result<Rc<Brt>> {
        let mut tables = BTreeMap::new();
        if features.is_active(FeatureId::BlockCloning) {
            let ids: Vec<VdevId> = zio.tree().tops.borrow().iter().map(|t| t.id).collect();
            for id in ids {
                let name = entry_name(id);
                let Some(object) = zap::lookup_u64(directory, name.as_bytes()).await? else { continue };
                let table = read_table(mos, ObjectId(object)).await.at(|| name.clone())?;
                if table.phys.big_endian && !readonly {
                    let why =
                        "a big-endian machine began the table of cloned blocks: import the pool with -o readonly=on";
                    return Err(Error::unsupported(why));
                }
                tables.insert(id, table);
            }
        }
        Ok(Rc::new(Brt {
            mos: mos.clone(),
            directory: directory.clone(),
            features: features.clone(),
            zio,
            tables: RefCell::new(tables),
            entries: RefCell::default(),
            pending: RefCell::default(),
            frees: RefCell::default(),
            grown: RefCell::default(),
        }))
    }

    /// Bytes of blocks with further references, and bytes that those save, deflated (format page 18
    /// section 4).
    pub(crate) fn figures(&self) -> (u64, u64) {
        let add = |(used, saved): (u64, u64), t: &Table| {
            (used.saturating_add(t.phys.used_space), saved.saturating_add(t.phys.saved_space))
        };
        self.tables.borrow().values().fold((0, 0), add)
    }

    /// Reads all entries into the cache.
    pub(crate) async fn prefetch(&self) -> Result<()> {
        let all: Vec<Dnode> = self
            .tables
            .borrow()
            .values()
            .filter_map(|t| t.objects.as_ref().map(|(_, entries)| entries.clone()))
            .collect();
        for dn in all {
            for blkid in 0..=dn.max_blkid() {
                dn.read_block(blkid).await?;
            }
        }
        Ok(())
    }

    /// Whether `txg` has references, frees or changed entries to write.
    pub(crate) fn is_dirty(&self, txg: Txg) -> bool {
        self.pending.borrow().first_key_value().is_some_and(|(t, _)| *t <= txg)
            || self.frees.borrow().first_key_value().is_some_and(|(t, _)| *t <= txg)
            || self.entries.borrow().values().any(|e| e.count != e.stored)
            || self.tables.borrow().values().any(|t| t.changed || t.counters_changed)
    }

    /// Drops the entries from memory, after the txg is on disk.
    pub(crate) fn synced(&self) {
        self.entries.borrow_mut().clear();
        self.grown.borrow_mut().clear();
    }

    /// Blocks that got references in the txg that syncs; never blocks of dedup tables.
    pub(crate) fn newly_referenced(&self) -> Vec<Blkptr> {
        self.grown.borrow().clone()
    }

    /// Counts the references that were added in `txg`, before anything is freed in it.
    pub(crate) async fn apply(&self, txg: Txg, ddt: &Ddt) -> Result<()> {
        let later = self.pending.borrow_mut().split_off(&txg.next());
        let pending = self.pending.replace(later);
        for (place, Pending { bp, count }) in pending.into_values().flatten() {
            // One entry, however many references it gets.
            self.zio.rt().spend(FREE).await;
            if bp.dedup() && ddt.add_references(&bp, count).await? {
                continue;
            }
            let dsize = self.zio.dsize(&bp);
            let mut live = self.load(place).await?;
            let mut tables = self.tables.borrow_mut();
            let table = tables.entry(place.0).or_default();
            if live.count == 0 {
                table.count(place.1, dsize, true);
            }
            live.count = live.count.saturating_add(count);
            table.phys.saved_space = table.phys.saved_space.saturating_add(count.saturating_mul(dsize));
            table.changed = true;
            self.entries.borrow_mut().insert(place, live);
            self.grown.borrow_mut().push(bp);
        }
        Ok(())
    }

    /// The entry of a place, read into memory; without references if there is none.
    async fn load(&self, place: Place) -> Result<LiveEntry> {
        if let Some(live) = self.entries.borrow().get(&place) {
            return Ok(*live);
        }
        let found =
            self.tables.borrow().get(&place.0).filter(|t| t.counter(place.1) > 0).map(|t| (t.objects.clone(), t.phys));
        let mut live = LiveEntry::default();
        if let Some((Some((_, entries)), phys)) = found {
            let at = || format!("entry {:#x} of {}", place.1, entry_name(place.0));
            if let Some(value) = zap::lookup(&entries, &key_of(place.1)).await.at(at)? {
                live.count = phys.entry_count(&value).at(at)?;
                live.stored = live.count;
            }
        }
        self.entries.borrow_mut().insert(place, live);
        Ok(live)
    }

    /// Takes one pending reference of that txg and place; false if there is none.
    fn take_pending(&self, txg: Txg, place: Place) -> bool {
        let mut pending = self.pending.borrow_mut();
        let Some(entry) = pending.get_mut(&txg).and_then(|p| p.get_mut(&place)) else { return false };
        entry.count -= 1;
        if entry.count == 0 {
            pending.get_mut(&txg).map(|p| p.remove(&place));
            pending.retain(|_, p| !p.is_empty());
        }
        true
    }

    /// Gives a reference that is freed to a pending one of a later txg; false if there is none.
    fn hand_over(&self, txg: Txg, place: Place) -> bool {
        let later = self.pending.borrow().iter().find(|(t, p)| **t > txg && p.contains_key(&place)).map(|(t, _)| *t);
        later.is_some_and(|later| self.take_pending(later, place))
    }

    /// Drops the references of pointers freed up to `txg`; returns the blocks without any left.
    pub(crate) async fn take_frees(&self, txg: Txg) -> Result<Vec<Blkptr>> {
        let later = self.frees.borrow_mut().split_off(&txg.next());
        let frees = self.frees.replace(later);
        let mut gone = Vec::new();
        for bp in frees.into_values().flatten() {
            let place = place_of(&bp);
            let mut live = self.load(place).await?;
            if live.count == 0 {
                if !self.hand_over(txg, place) {
                    gone.push(bp);
                }
                continue;
            }
            let dsize = self.zio.dsize(&bp);
            live.count -= 1;
            let mut tables = self.tables.borrow_mut();
            let table = tables.entry(place.0).or_default();
            table.phys.saved_space = table.phys.saved_space.saturating_sub(dsize);
            if live.count == 0 {
                table.count(place.1, dsize, false);
            }
            table.changed = true;
            self.entries.borrow_mut().insert(place, live);
        }
        Ok(gone)
    }

    /// Writes the entries that changed, and the counters and headers of their tables.
    pub(crate) async fn sync(&self, tx: &Tx) -> Result<()> {
        let dirty: Vec<(Place, LiveEntry)> =
            self.entries.borrow().iter().filter(|(_, e)| e.count != e.stored).map(|(p, e)| (*p, *e)).collect();
        for (place, live) in dirty {
            let entries = self.objects(place.0, tx).await?.1;
            let key = key_of(place.1);
            if live.count == 0 {
                zap::remove(&entries, &key, tx).await?;
            } else {
                let as_word = self.features.is_active(FeatureId::BlockCloningEndian);
                zap::update(&entries, &key, &entry_value(live.count, as_word), tx).await?;
            }
            self.entries.borrow_mut().insert(place, LiveEntry { stored: live.count, ..live });
        }
        let changed: Vec<VdevId> = {
            let tables = self.tables.borrow();
            tables.iter().filter(|(_, t)| t.changed || t.counters_changed).map(|(id, _)| *id).collect()
        };
        for id in changed {
            self.write_table(id, tx).await.at(|| entry_name(id))?;
        }
        Ok(())
    }

    /// Writes the header of a table, and the counters if they changed; frees a table without
    /// entries.
    async fn write_table(&self, id: VdevId, tx: &Tx) -> Result<()> {
        let (is_empty, objects) = {
            let tables = self.tables.borrow();
            let Some(table) = tables.get(&id) else { return Ok(()) };
            (table.phys.total_count == 0, table.objects.clone())
        };
        let Some((dn, entries)) = objects else {
            // All entries came and went in one pass.
            if is_empty {
                self.tables.borrow_mut().remove(&id);
            }
            return Ok(());
        };
        if is_empty {
            let left = zap::count(&entries).await?;
            if left != 0 {
                return Err(Error::corrupt(format!("{left} entries are left, none is counted")));
            }
            self.tables.borrow_mut().remove(&id);
            zap::remove(&self.directory, entry_name(id).as_bytes(), tx).await?;
            self.mos.free(entries.object(), tx).await?;
            self.mos.free(dn.object(), tx).await?;
            return self.count_features(-1, tx).await;
        }
        let top = self.zio.tree().top(id)?;
        let whole = match top.ms_shift.get() {
            0 => top.asize.get(),
            shift => top.ms_count() << shift,
        };
        let (bytes, header) = {
            let mut tables = self.tables.borrow_mut();
            let Some(table) = tables.get_mut(&id) else { return Ok(()) };
            let size = regions_in(whole).max(table.counters.len() as u64);
            let counters_changed = std::mem::take(&mut table.counters_changed) || size != table.phys.size;
            table.counters.resize(size as usize, 0);
            table.phys.size = size;
            table.changed = false;
            (counters_changed.then(|| counters_to_bytes(&table.counters)), table.phys.to_bytes())
        };
        if let Some(bytes) = bytes {
            dn.write(0, &bytes, tx).await?;
        }
        dn.set_bonus(&header, tx)
    }

    /// The vdev object and the entries of a table, created if missing.
    async fn objects(&self, id: VdevId, tx: &Tx) -> Result<(Dnode, Dnode)> {
        let known = self.tables.borrow().get(&id).and_then(|t| t.objects.clone());
        if let Some(objects) = known {
            return Ok(objects);
        }
        let kind = ObjectType::OTN_U64_METADATA;
        let dn = self.mos.alloc(ObjSpec::new(kind, BRT_BLKSZ).bonus(kind, BRT_SIZE as u16), tx).await?;
        let spec = ObjSpec::new(ObjectType::OTN_ZAP_METADATA, 0).indblkshift(ENTRIES_SHIFT as u8);
        let entries = zap::create_fat(&self.mos, spec, ENTRIES_SHIFT, FLAG_HASH64 | FLAG_UINT64_KEY, tx).await?;
        zap::add_u64(&self.directory, entry_name(id).as_bytes(), dn.object().0, tx).await?;
        self.count_features(1, tx).await?;
        let mut tables = self.tables.borrow_mut();
        let table = tables.entry(id).or_default();
        table.phys.entries = entries.object().0;
        table.phys.range_size = RANGE_SIZE;
        (table.changed, table.counters_changed) = (true, true);
        table.objects = Some((dn.clone(), entries.clone()));
        Ok((dn, entries))
    }

    /// Counts a table that begins or ends. The values of entries are words, independent of the byte
    /// order, if the feature for that was enabled when the first table of the pool began.
    async fn count_features(&self, delta: i64, tx: &Tx) -> Result<()> {
        let is_first = delta > 0 && !self.features.is_active(FeatureId::BlockCloning);
        let endian = FeatureId::BlockCloningEndian;
        let with_endian = if is_first { self.features.is_enabled(endian) } else { self.features.is_active(endian) };
        self.features.add(FeatureId::BlockCloning, delta, tx).await?;
        if with_endian { self.features.add(endian, delta, tx).await } else { Ok(()) }
    }
}

impl References for Brt {
    fn add(&self, bp: &Blkptr, txg: Txg) {
        let mut pending = self.pending.borrow_mut();
        let of_txg = pending.entry(txg).or_default();
        of_txg.entry(place_of(bp)).or_insert(Pending { bp: *bp, count: 0 }).count += 1;
    }

    fn forget(&self, bp: &Blkptr, txg: Txg) -> bool {
        self.take_pending(txg, place_of(bp))
    }

    fn is_enabled(&self) -> bool {
        self.features.is_enabled(FeatureId::BlockCloning)
    }

    fn may_have(&self, bp: &Blkptr) -> bool {
        let place = place_of(bp);
        let is_counted = self.tables.borrow().get(&place.0).is_some_and(|t| t.counter(place.1) > 0);
        let is_pending = || self.pending.borrow().values().any(|p| p.contains_key(&place));
        !planted!(BrtNotAsked) && (is_counted || is_pending())
    }

    fn free(&self, bp: &Blkptr, txg: Txg) {
        self.frees.borrow_mut().entry(txg).or_default().push(*bp);
    }
}
