//! What a txg writes of the dedup tables: changed entries, a part of the logs, histograms.
//!
//! Of a flat table, in each pass: the changed entries go to the active log, in blocks of their own.
//! In the first pass then: entries of the flushing log move to the ZAPs in the order of their keys,
//! and blocks without references are freed; an empty flushing log is cut off, and changes its role
//! with the active one when that is due. The logs may have entries when a pool is exported.

use base::{Result, Txg};
use dmu::{Dnode, ObjSpec, Tx, zap};
use metaslab::ClassKind;
use ondisk::blkptr::Blkptr;
use ondisk::ddt::{
    DIR_FLAGS, DIR_VERSION, FLAGS, LOG_BLOCK, LOG_HEADER_SIZE, LogRecord, RECORDS_MAX, VERSION, ZAP_SHIFT, log_blocks,
    pack,
};
use ondisk::feature::FeatureId;
use ondisk::object_type::ObjectType;
use ondisk::zap::{FLAG_HASH64, FLAG_PRE_HASHED_KEY, FLAG_UINT64_KEY, ZapValue};
use rt::cost::FREE;

use super::entry::{Form, Key, class_for, flat_of, references, slots_of, store_legacy};
use super::figures::Histogram;
use super::log::{Log, LogEntry, names};
use super::policy;
use super::{CHECKSUMS, Class, Ddt, Flat, STATISTICS, Slots, algo_of, directory_name, table_name};

/// log2 of the block size of legacy ZAPs, and of their indirect blocks, as OpenZFS 2.1 makes them.
const LEGACY_SHIFT: u32 = 12;

impl Ddt {
    /// Writes the changed entries. With `flush`, which is for the first pass, moves entries from
    /// logs to ZAPs. Returns the blocks that have no references any more, to be freed.
    pub(crate) async fn sync(&self, flush: bool, tx: &Tx) -> Result<Vec<Blkptr>> {
        let _lock = self.lock.lock().await;
        self.take_prunes().await?;
        let dirty: Vec<Key> = self.entries.borrow().iter().filter(|(_, e)| e.is_dirty()).map(|(k, _)| *k).collect();
        for part in dirty.chunk_by(|a, b| a.checksum == b.checksum) {
            match self.form(part[0].checksum) {
                Form::Flat => self.log(part, tx).await?,
                Form::Legacy => self.store_all(part, tx).await?,
            }
        }
        let mut gone = Vec::new();
        if flush {
            for algo in CHECKSUMS {
                if self.is_flat(algo as u8) {
                    self.flush(algo as u8, &mut gone, tx).await?;
                }
            }
        }
        self.write_statistics(tx).await?;
        Ok(gone)
    }

    /// Whether a txg without changes is to move entries from logs to ZAPs.
    pub(crate) fn wants_flush(&self, txg: Txg) -> bool {
        let most = self.log_entries_max();
        let tables = self.tables.borrow();
        tables.values().filter_map(|t| t.flat.as_ref()).any(|f| {
            let active = &f.logs.active;
            let due = policy::swap_is_due(active.entries.len(), most, Txg(active.header.first_txg), txg);
            !f.logs.flushing.entries.is_empty() || due
        })
    }

    fn log_entries_max(&self) -> usize {
        policy::entries_max(self.arc.limit())
    }

    /// Changes the flat part of a table; nothing if it has none.
    fn with_flat<R: Default>(&self, checksum: u8, f: impl FnOnce(&mut Flat) -> R) -> R {
        let mut tables = self.tables.borrow_mut();
        tables.get_mut(&checksum).and_then(|t| t.flat.as_mut()).map(f).unwrap_or_default()
    }

    /// Adds an entry to the histogram of a class, or subtracts it.
    fn count(&self, key: &Key, class: usize, slots: &Slots, add: bool) {
        let mut tables = self.tables.borrow_mut();
        let Some(c) = tables.get_mut(&key.checksum).and_then(|t| t.classes[class].as_mut()) else { return };
        c.histogram.count(&self.zio, key, slots, add);
        c.changed = true;
    }

    /// The same for the logs.
    fn count_logged(&self, key: &Key, slots: &Slots, add: bool) {
        self.with_flat(key.checksum, |f| f.histogram.count(&self.zio, key, slots, add));
    }

    /// Writes entries of a legacy table to their ZAPs.
    async fn store_all(&self, keys: &[Key], tx: &Tx) -> Result<()> {
        for key in keys {
            let Some((slots, base, old)) = self.entries.borrow().get(key).map(|e| (e.slots, e.base, e.class)) else {
                continue;
            };
            let class = class_for(references(&slots));
            if let Some(old) = old {
                self.count(key, old, &base, false);
                if class != Some(old) {
                    self.remove_from(key, old, tx).await?;
                }
            }
            if let Some(class) = class {
                let dn = self.class_for_writing(key.checksum, class, tx).await?;
                zap::update(&dn, &key.name(), &store_legacy(&slots), tx).await?;
                self.count(key, class, &slots, true);
            }
            if let Some(live) = self.entries.borrow_mut().get_mut(key) {
                (live.base, live.class) = (slots, class);
            }
        }
        Ok(())
    }

    async fn remove_from(&self, key: &Key, class: usize, tx: &Tx) -> Result<()> {
        match self.class_zap(key.checksum, class) {
            Some(dn) => zap::remove(&dn, &key.name(), tx).await,
            None => Ok(()),
        }
    }

    /// Appends the entries of `keys`, all of one flat table, to its active log.
    async fn log(&self, keys: &[Key], tx: &Tx) -> Result<()> {
        let checksum = keys[0].checksum;
        let dn = self.active_log(checksum, tx).await?;
        let mut header = self.with_flat(checksum, |f| f.logs.active.header);
        let now = self.zio.rt().wall_clock().secs.max(0) as u64;
        for part in keys.chunks(RECORDS_MAX) {
            let mut records = Vec::with_capacity(part.len());
            for key in part {
                self.zio.rt().spend(FREE).await;
                let mut entries = self.entries.borrow_mut();
                let Some(live) = entries.get_mut(key) else { continue };
                let flat = flat_of(&live.slots, now);
                let class = live.class.map(|c| c as u8);
                match (live.logged, live.class) {
                    (true, _) => self.count_logged(key, &live.base, false),
                    (false, Some(class)) => self.count(key, class, &live.base, false),
                    (false, None) => {}
                }
                self.count_logged(key, &live.slots, true);
                self.with_flat(checksum, |f| {
                    f.logs.flushing.entries.remove(&key.words);
                    f.logs.active.entries.insert(key.words, LogEntry { flat, class });
                });
                (live.base, live.logged) = (live.slots, true);
                records.push(LogRecord { key: key.words, class, flat });
            }
            if planted!(DedupRecordLost) {
                records.pop();
            }
            dn.write(header.length, &log_blocks(&records), tx).await?;
            header.length += LOG_BLOCK as u64;
        }
        dn.set_bonus(&header.to_bytes(), tx)?;
        self.with_flat(checksum, |f| f.logs.active.header = header);
        Ok(())
    }

    /// The object of the active log. Logs and directory are created if they are missing.
    async fn active_log(&self, checksum: u8, tx: &Tx) -> Result<Dnode> {
        let known = self.with_flat(checksum, |f| f.logs.active.dn.clone());
        if let Some(dn) = known {
            return Ok(dn);
        }
        let algo = algo_of(checksum)?;
        let dir = self.dir_of_flat(checksum, tx).await?;
        let kind = ObjectType::OTN_U64_METADATA;
        let [active, flushing] = names(algo.name());
        for (name, is_active) in [(active, true), (flushing, false)] {
            let spec = ObjSpec::new(kind, LOG_BLOCK as u32).bonus(kind, LOG_HEADER_SIZE as u16);
            let dn = self.mos.alloc(spec, tx).await?;
            dn.set_class(ClassKind::Dedup);
            zap::add_u64(&dir, name.as_bytes(), dn.object().0, tx).await?;
            let header = self.with_flat(checksum, |f| {
                let log = if is_active { &mut f.logs.active } else { &mut f.logs.flushing };
                log.header.first_txg = tx.txg().0;
                log.dn = Some(dn.clone());
                log.header
            });
            dn.set_bonus(&header.to_bytes(), tx)?;
        }
        Ok(self.with_flat(checksum, |f| f.logs.active.dn.clone()).expect("both were made"))
    }

    /// The directory of a flat table, created if missing.
    async fn dir_of_flat(&self, checksum: u8, tx: &Tx) -> Result<Dnode> {
        let known = self.with_flat(checksum, |f| f.dir.clone());
        if let Some(dir) = known {
            return Ok(dir);
        }
        self.create_statistics(tx).await?;
        let dir = zap::create(&self.mos, ObjectType::OTN_ZAP_METADATA, 0, tx).await?;
        let name = directory_name(algo_of(checksum)?);
        zap::add_u64(&self.directory, name.as_bytes(), dir.object().0, tx).await?;
        zap::add_u64(&dir, DIR_VERSION.as_bytes(), VERSION, tx).await?;
        zap::add_u64(&dir, DIR_FLAGS.as_bytes(), FLAGS, tx).await?;
        self.features.add(FeatureId::FastDedup, 1, tx).await?;
        self.with_flat(checksum, |f| f.dir = Some(dir.clone()));
        Ok(dir)
    }

    async fn create_statistics(&self, tx: &Tx) -> Result<()> {
        if self.statistics.get().is_none() {
            let stats = zap::create(&self.mos, ObjectType::DDT_STATS, 0, tx).await?;
            zap::add_u64(&self.directory, STATISTICS, stats.object().0, tx).await?;
            self.statistics.set(Some(stats.object()));
        }
        Ok(())
    }

    /// Moves entries of the flushing log to the ZAPs, as many as the policy wants, and lets the
    /// logs change roles when that is due.
    async fn flush(&self, checksum: u8, gone: &mut Vec<Blkptr>, tx: &Tx) -> Result<()> {
        let most = self.log_entries_max();
        let goal = policy::flush_goal(self.with_flat(checksum, |f| f.logs.len()), most);
        let begin = self.zio.rt().now();
        let (mut done, mut last) = (0, None);
        while !policy::is_enough(done, goal, self.zio.rt().now() - begin) {
            let next = self.with_flat(checksum, |f| f.logs.flushing.entries.pop_first());
            let Some((words, e)) = next else { break };
            let key = Key { checksum, words };
            if !planted!(DedupFlushLost) {
                self.flush_entry(key, &e, gone, tx).await?;
            }
            (done, last) = (done + 1, Some(words));
        }
        let log = self.with_flat(checksum, |f| {
            let log = &f.logs.flushing;
            log.dn.clone().map(|dn| (dn, log.header, log.entries.is_empty()))
        });
        let Some((dn, mut header, is_empty)) = log else { return Ok(()) };
        if is_empty && header.length > 0 {
            // All of it moved, or newer states in the active log took its place.
            dn.free_range(0, u64::MAX, tx).await?;
            (header.length, header.checkpoint) = (0, None);
            dn.set_bonus(&header.to_bytes(), tx)?;
        } else if last.is_some() {
            header.checkpoint = last;
            dn.set_bonus(&header.to_bytes(), tx)?;
        }
        let swapped = self.with_flat(checksum, |f| {
            f.logs.flushing.header = header;
            let active = &f.logs.active;
            let due = policy::swap_is_due(active.entries.len(), most, Txg(active.header.first_txg), tx.txg());
            if !is_empty || !due {
                return None;
            }
            let logs = &mut f.logs;
            std::mem::swap(&mut logs.active, &mut logs.flushing);
            logs.active.header.flushing = false;
            logs.active.header.first_txg = tx.txg().0;
            logs.flushing.header.flushing = true;
            let of = |log: &Log| Some((log.dn.clone()?, log.header));
            Some([of(&logs.active), of(&logs.flushing)])
        });
        for (dn, header) in swapped.into_iter().flatten().flatten() {
            dn.set_bonus(&header.to_bytes(), tx)?;
        }
        Ok(())
    }

    /// Writes an entry that left the log to the ZAP of its class.
    async fn flush_entry(&self, key: Key, e: &LogEntry, gone: &mut Vec<Blkptr>, tx: &Tx) -> Result<()> {
        let slots = slots_of(&e.flat);
        self.count_logged(&key, &slots, false);
        let class = class_for(e.flat.refs);
        if class.is_none() && e.flat.birth != 0 {
            gone.extend(slots.iter().filter(|s| s.birth != 0).map(|s| key.pointer(s)));
        }
        let old = e.class.map(usize::from);
        if let Some(old) = old
            && class != Some(old)
        {
            self.remove_from(&key, old, tx).await?;
        }
        if let Some(class) = class {
            let dn = self.class_for_writing(key.checksum, class, tx).await?;
            zap::update(&dn, &key.name(), &pack(&e.flat.to_words()), tx).await?;
            self.count(&key, class, &slots, true);
        } else if let Some(old) = old {
            // The class may be empty now.
            self.count(&key, old, &Slots::default(), false);
        }
        // What was read from the log is not as it is on disk any more.
        self.entries.borrow_mut().remove(&key);
        Ok(())
    }

    /// The ZAP of a class, created if missing.
    async fn class_for_writing(&self, checksum: u8, class: usize, tx: &Tx) -> Result<Dnode> {
        if let Some(dn) = self.class_zap(checksum, class) {
            return Ok(dn);
        }
        let algo = algo_of(checksum)?;
        self.create_statistics(tx).await?;
        let (dir, shift) = match self.form(checksum) {
            Form::Flat => (self.dir_of_flat(checksum, tx).await?, ZAP_SHIFT),
            Form::Legacy => (self.directory.clone(), LEGACY_SHIFT),
        };
        let flags = FLAG_HASH64 | FLAG_UINT64_KEY | if algo.is_dedup_strong() { FLAG_PRE_HASHED_KEY } else { 0 };
        let spec = ObjSpec::new(ObjectType::DDT_ZAP, 0).indblkshift(shift as u8);
        let dn = zap::create_fat(&self.mos, spec, shift, flags, tx).await?;
        zap::add_u64(&dir, table_name(algo, class).as_bytes(), dn.object().0, tx).await?;
        if let Some(table) = self.tables.borrow_mut().get_mut(&checksum) {
            table.classes[class] = Some(Class { dn: dn.clone(), histogram: Histogram::default(), changed: true });
        }
        Ok(dn)
    }

    /// Writes the histograms that changed; removes the ZAPs of a table that has no entries in any,
    /// and the table if its logs have none either.
    async fn write_statistics(&self, tx: &Tx) -> Result<()> {
        let Some(statistics) = self.statistics.get() else { return Ok(()) };
        let statistics = self.mos.hold(statistics).await?;
        for algo in CHECKSUMS {
            let checksum = algo as u8;
            let (mine, dir) = {
                let tables = self.tables.borrow();
                let Some(table) = tables.get(&checksum) else { continue };
                let classes = table.classes.iter().enumerate();
                let mine: Vec<(usize, Dnode, bool)> =
                    classes.filter_map(|(n, c)| c.as_ref().map(|c| (n, c.dn.clone(), c.changed))).collect();
                let dir = table.flat.as_ref().map_or(Some(self.directory.clone()), |f| f.dir.clone());
                (mine, dir)
            };
            let Some(dir) = dir else { continue };
            if mine.iter().any(|(.., changed)| *changed) {
                let mut entries = 0;
                for (_, dn, _) in &mine {
                    entries += zap::count(dn).await?;
                }
                for (class, dn, changed) in mine {
                    let name = table_name(algo, class);
                    if entries == 0 {
                        self.forget_class(checksum, class);
                        for zap in [&dir, &statistics] {
                            if zap::lookup(zap, name.as_bytes()).await?.is_some() {
                                zap::remove(zap, name.as_bytes(), tx).await?;
                            }
                        }
                        self.mos.free(dn.object(), tx).await?;
                    } else if changed {
                        let value = self.histogram_value(checksum, class);
                        zap::update(&statistics, name.as_bytes(), &value, tx).await?;
                    }
                }
            }
            self.remove_if_empty(checksum, &dir, tx).await?;
        }
        Ok(())
    }

    /// The histogram of a class, which is written now.
    fn histogram_value(&self, checksum: u8, class: usize) -> ZapValue {
        let mut tables = self.tables.borrow_mut();
        let c = tables.get_mut(&checksum).and_then(|t| t.classes[class].as_mut()).expect("it was listed just now");
        c.changed = false;
        c.histogram.value()
    }

    fn forget_class(&self, checksum: u8, class: usize) {
        if let Some(table) = self.tables.borrow_mut().get_mut(&checksum) {
            table.classes[class] = None;
        }
    }

    /// Removes directory and logs of a flat table without entries.
    async fn remove_if_empty(&self, checksum: u8, dir: &Dnode, tx: &Tx) -> Result<()> {
        let logs = {
            let tables = self.tables.borrow();
            let Some(table) = tables.get(&checksum).filter(|t| t.classes.iter().all(Option::is_none)) else {
                return Ok(());
            };
            let Some(flat) = table.flat.as_ref().filter(|f| f.logs.len() == 0) else { return Ok(()) };
            [&flat.logs.active, &flat.logs.flushing].map(|log| log.dn.clone())
        };
        let algo = algo_of(checksum)?;
        for name in names(algo.name()) {
            if zap::lookup(dir, name.as_bytes()).await?.is_some() {
                zap::remove(dir, name.as_bytes(), tx).await?;
            }
        }
        for dn in logs.into_iter().flatten() {
            self.mos.free(dn.object(), tx).await?;
        }
        zap::remove(&self.directory, directory_name(algo).as_bytes(), tx).await?;
        self.mos.free(dir.object(), tx).await?;
        self.features.add(FeatureId::FastDedup, -1, tx).await?;
        self.tables.borrow_mut().remove(&checksum);
        Ok(())
    }
}
