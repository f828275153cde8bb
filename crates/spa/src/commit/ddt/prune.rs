//! Limits of dedup tables: the quota, which stops new entries, and pruning, which removes entries
//! that never paid off (format page 20 sections 8 and 9).
//!
//! A pruned entry leaves no trace: its slot is emptied, that goes through the log, and the flush
//! removes it from its ZAP. The block stays, and so does the dedup bit of the pointer to it, which
//! no entry knows any more.

use base::{Result, Txg};
use dmu::zap::Cursor;
use metaslab::ClassKind;
use ondisk::ddt::{FLAT_WORDS, Flat, unpack};

use super::entry::{FLAT_SLOT, Key, Slot, Slots, UNIQUE};
use super::figures::Histogram;
use super::{CHECKSUMS, Ddt, policy};

/// Entries that one txg prunes (`zfs_ddt_prunes_per_txg`).
const PRUNES_PER_TXG: usize = 50_000;
/// Entries of a ZAP that are looked at between two waits.
const WALK_BATCH: usize = 256;
/// Bins of the histogram of ages (`HIST_BINS`): hours, by powers of two.
const AGE_BINS: usize = 16;
const HOUR: u64 = 3600;

/// Which entries are pruned, of those with one reference (`zpool ddtprune`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PruneBy {
    /// Those that have not changed for this many seconds.
    Age(u64),
    /// This many percent, the oldest ones; in whole bins of ages, so it may be more.
    Percent(u64),
}

/// The dedup tables of a pool in figures.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct DedupFigures {
    /// Entries in ZAPs and logs.
    pub entries: u64,
    /// Bytes of the tables on disk.
    pub disk: u64,
    /// Bytes of the tables in memory, if all of them were there.
    pub memory: u64,
    /// By the power of two of the references: blocks, logical, stored and allocated bytes; then the
    /// same times references.
    pub histogram: Vec<[u64; 8]>,
}

/// The time before which an entry is to have changed last, of entries whose ages fill `bins`.
fn cutoff_of(bins: &[u64; AGE_BINS], percent: u64, now: u64) -> u64 {
    let all: u64 = bins.iter().sum();
    let mut target = all.saturating_mul(percent) / 100;
    let mut oldest = 0;
    for (bin, n) in bins.iter().enumerate().rev().filter(|(_, n)| **n > 0) {
        if target == 0 {
            break;
        }
        if target <= *n {
            oldest = if bin == 0 { 0 } else { (1 << (bin - 1)) * HOUR };
        }
        target = target.saturating_sub(*n);
    }
    now.saturating_sub(oldest)
}

/// The bin of an age in seconds.
fn bin_of(age: u64) -> usize {
    let hours = age / HOUR;
    (hours.checked_ilog2().map_or(0, |n| n as usize + 1)).min(AGE_BINS - 1)
}

impl Ddt {
    /// Bytes of all tables on disk, with their logs.
    pub(crate) fn table_size(&self) -> u64 {
        let tables = self.tables.borrow();
        let of = |t: &super::Table| -> u64 {
            let classes = t.classes.iter().flatten().map(|c| c.dn.used());
            let logs = t.flat.iter().flat_map(|f| [&f.logs.active, &f.logs.flushing]);
            classes.chain(logs.filter_map(|log| log.dn.as_ref().map(dmu::Dnode::used))).sum()
        };
        tables.values().map(of).sum()
    }

    /// Whether the tables may get no new entries in `txg`.
    pub(super) fn is_over_quota(&self, txg: Txg) -> bool {
        let quota = self.quota.get();
        let class_use = |class| self.zio.space().class_use(class);
        match quota {
            policy::QUOTA_NONE => false,
            policy::QUOTA_AUTO => {
                let has_own = class_use(ClassKind::Dedup).1 > 0;
                let class = if has_own { ClassKind::Dedup } else { ClassKind::Special };
                let (alloc, total) = class_use(class);
                let left = self.zio.space().class_left(class);
                policy::is_class_full(alloc, total) || left.is_some_and(|left| policy::is_recent(left, txg))
            }
            bytes => self.table_size() > bytes,
        }
    }

    /// Sets the limit: the property `dedup_table_quota`.
    pub(crate) fn set_quota(&self, quota: u64) {
        self.quota.set(quota);
    }

    /// The tables in figures.
    pub(crate) async fn figures(&self) -> Result<DedupFigures> {
        let mut out = DedupFigures { disk: self.table_size(), ..DedupFigures::default() };
        let (mut zaps, mut all) = (Vec::new(), Histogram::default());
        for t in self.tables.borrow().values() {
            for c in t.classes.iter().flatten() {
                zaps.push(c.dn.clone());
                all.add(&c.histogram);
            }
            if let Some(f) = &t.flat {
                out.entries += f.logs.len() as u64;
                all.add(&f.histogram);
            }
        }
        out.memory = out.entries.saturating_mul(policy::ENTRY_BYTES);
        for dn in zaps {
            out.entries += dmu::zap::count(&dn).await?;
            out.memory += (dn.max_blkid() + 1) * u64::from(dn.block_size());
        }
        out.histogram = all.buckets();
        Ok(out)
    }

    /// Reads all ZAPs of the tables into the cache.
    pub(crate) async fn prefetch(&self) -> Result<()> {
        let zaps: Vec<dmu::Dnode> = {
            let tables = self.tables.borrow();
            tables.values().flat_map(|t| t.classes.iter().flatten().map(|c| c.dn.clone())).collect()
        };
        for dn in zaps {
            let size = u64::from(dn.block_size());
            for blkid in 0..=dn.max_blkid() {
                if blkid.is_multiple_of(16) {
                    dn.prefetch(blkid * size, 32 * size);
                }
                dn.read_block(blkid).await?;
            }
        }
        Ok(())
    }

    /// Calls `each` with the unique entries of flat tables that are in no log, and the time of
    /// their last change. Entries that come or go meanwhile may be left out.
    async fn walk_unique(&self, mut each: impl AsyncFnMut(Key, Slots, u64) -> Result<()>) -> Result<()> {
        for algo in CHECKSUMS {
            let checksum = algo as u8;
            let Some(dn) = self.class_zap(checksum, UNIQUE).filter(|_| self.is_flat(checksum)) else { continue };
            let mut cursor = Cursor::new(&dn);
            loop {
                let batch = cursor.next_batch(WALK_BATCH).await?;
                if batch.is_empty() {
                    break;
                }
                for (e, _) in batch {
                    let Some(key) = Key::parse(checksum, &e.name) else { continue };
                    let flat = Flat::from_words(&unpack::<FLAT_WORDS>(&e.value)?);
                    let logged =
                        self.tables.borrow().get(&checksum).and_then(|t| t.flat.as_ref()?.logs.find(&key.words));
                    if logged.is_none() {
                        each(key, super::slots_of(&flat), flat.class_start).await?;
                    }
                }
            }
        }
        Ok(())
    }

    /// Prunes entries; `sync` waits until a txg that began after its call is on disk. Returns how
    /// many there were.
    pub(crate) async fn prune(&self, by: PruneBy, sync: impl AsyncFn() -> Result<()>) -> Result<u64> {
        let now = self.zio.rt().wall_clock().secs.max(0) as u64;
        let cutoff = match by {
            PruneBy::Age(age) => now.saturating_sub(age),
            PruneBy::Percent(percent) => {
                let mut bins = [0; AGE_BINS];
                self.walk_unique(async |_, _, start| {
                    bins[bin_of(now.saturating_sub(start))] += 1;
                    Ok(())
                })
                .await?;
                cutoff_of(&bins, percent, now)
            }
        };
        self.pruned.set(0);
        self.walk_unique(async |key, slots, start| {
            if start < cutoff {
                self.pruning.borrow_mut().push((key, slots[FLAT_SLOT]));
            }
            let is_full = self.pruning.borrow().len() >= PRUNES_PER_TXG;
            if is_full { sync().await } else { Ok(()) }
        })
        .await?;
        sync().await?;
        Ok(self.pruned.get())
    }

    /// Empties the entries that are to be pruned. One that is in use, or that changed since, stays.
    /// The caller holds the lock.
    pub(super) async fn take_prunes(&self) -> Result<()> {
        let mut prunes = self.pruning.take();
        // Those of an entry are together, and ZAPs are read in order.
        prunes.sort_unstable_by_key(|(key, _)| *key);
        for (key, slot) in prunes {
            if self.entries.borrow().contains_key(&key) {
                continue;
            }
            self.load(key).await?;
            let mut entries = self.entries.borrow_mut();
            let Some(live) = entries.get_mut(&key) else { continue };
            if !live.logged && live.class == Some(UNIQUE) && live.slots[FLAT_SLOT] == slot {
                live.slots[FLAT_SLOT] = Slot::default();
                self.pruned.set(self.pruned.get() + 1);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_have_bins() {
        for (hours, bin) in [(0, 0), (1, 1), (2, 2), (3, 2), (4, 3), (1 << 14, 15), (1 << 40, 15)] {
            assert_eq!(bin_of(hours * HOUR), bin, "{hours} hours");
        }
    }

    #[test]
    fn the_oldest_go_first() {
        let mut bins = [0; AGE_BINS];
        (bins[0], bins[3], bins[9]) = (50, 30, 20);
        let now = 1 << 32;
        // Ten of a hundred are in the bin of 256 hours and more, forty reach into that of four.
        for (percent, hours) in [(10, 256), (20, 256), (21, 4), (50, 4), (51, 0), (100, 0)] {
            assert_eq!(cutoff_of(&bins, percent, now), now - hours * HOUR, "{percent} percent");
        }
        assert_eq!(cutoff_of(&[0; AGE_BINS], 50, now), now);
    }
}
