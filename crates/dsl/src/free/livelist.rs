//! Livelists: what a clone has that its origin does not (format page 15 section 3).
//!
//! The blocks of a clone are scattered over a tree that it mostly shares with its origin, so a walk
//! that frees them reads much of the tree. A *livelist* names them instead: an ALLOC entry for each
//! block that was born in the clone after its origin, a FREE entry when such a block is killed. A
//! destroyed clone is freed from its list: each ALLOC without a FREE is a block to free.
//!
//! A list has the form of a deadlist: *parts* by key, an entry under the largest key below the
//! birth of its block, so that both entries of a block are in one part, ALLOC first. A new part
//! begins with a txg once the last one has `zfs_livelist_max_entries` ALLOC entries.
//!
//! * **Born and killed** ([`crate::dataset`] notes the blocks): each pass of a sync adds entries
//!   ([`DslPool::write_livelist`]). A clone that shares too little with its origin loses its list
//!   (`zfs_livelist_min_percent_shared`), since a walk is as good then.
//! * **Condensing**: two parts that follow one another, the last one aside, whose live entries fit
//!   into one part become one without pairs. Both are read from the end, some entries each txg;
//!   then one txg writes the new part, with what was added to the old ones meanwhile.
//! * **Destroying** hands the list to the ZAP `com.delphix:deleted_clones`; its space belongs to
//!   `$FREE`. Each txg some entries are read from the end of the first part. Killed blocks are
//!   remembered until their ALLOC comes; other ALLOCs are blocks to free. If the part is not at its
//!   beginning at the end of the txg, FREE entries for what was freed are added to it, so the list
//!   is right for whoever goes on, after a power cut as well.
//!
//! A list that does not add up (its sums are not those of the clone) is dropped, and the tree is
//! walked. Dropping a list is always safe; a list that misses a change is not.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use base::{Error, ErrorKind, Nanos, ObjectId, Result, ResultExt};
use dmu::bpobj::{self, Bpobj};
use dmu::{Tx, zap};
use ondisk::blkptr::Blkptr;
use ondisk::feature::FeatureId;
use ondisk::object_type::ObjectType;
use rt::cost::{DMU_POINTER, FREE};

use crate::core::Space;
use crate::dataset::Dataset;
use crate::dir::{Dir, Used};
use crate::free::deadlist::Deadlist;
use crate::pool::DslPool;

/// Key of a directory's livelist.
pub(crate) const LIVELIST_KEY: &[u8] = b"com.delphix:livelist";
/// Entry of the MOS directory: the lists of destroyed clones.
pub(crate) const DELETED_KEY: &[u8] = b"com.delphix:deleted_clones";

/// Default of [`crate::core::Core::livelist_entries`] (`zfs_livelist_max_entries` of OpenZFS).
pub const LIVELIST_ENTRIES: u64 = 500_000;
/// Default of [`crate::core::Core::livelist_shared`] (`zfs_livelist_min_percent_shared` of
/// OpenZFS).
pub const LIVELIST_SHARED: u64 = 75;

/// Entries that condensing reads in one txg at most: 8 MiB of lists.
const CONDENSED_PER_TXG: u64 = 64 << 10;
/// Entries that are written at once.
const BATCH: usize = 1024;
/// Entries that count as one freed block when they are read.
const READS_PER_FREE: u64 = 8;

/// Blocks of a clone that were born and killed since its list was last written.
#[derive(Default)]
pub(crate) struct Changes {
    pub born: Vec<Blkptr>,
    pub killed: Vec<Blkptr>,
}

/// The entries of a part.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Count {
    all: u64,
    freed: u64,
}

impl Count {
    /// Entries of blocks that live, as long as every FREE has its ALLOC.
    fn live(self) -> u64 {
        self.all.saturating_sub(self.freed.saturating_mul(2))
    }
}

/// Whether the last part has as many ALLOC entries as a part may have.
fn is_full(last: Count, max: u64) -> bool {
    last.all.saturating_sub(last.freed) > max
}

/// The first of two parts to make one of; the last part is never one of them.
fn pair_to_condense(parts: &[(u64, Count)], max: u64) -> Option<(u64, u64)> {
    let older = &parts[..parts.len().saturating_sub(1)];
    let pair = older.windows(2).find(|w| w[0].1.live().saturating_add(w[1].1.live()) < max);
    pair.map(|w| (w[0].0, w[1].0))
}

/// Whether a clone shares too little with its origin to keep a list. `used` is what belongs to the
/// clone of the `referenced` bytes.
fn shares_too_little(referenced: u64, used: u64, percent_min: u64) -> bool {
    let shared = u128::from(referenced.saturating_sub(used)) * 100;
    referenced != 0 && shared / u128::from(referenced) <= u128::from(percent_min)
}

/// Matches the entries of a part, read from the last to the first.
#[derive(Default)]
struct Matcher {
    /// FREE entries whose ALLOC did not come yet, by device and offset. Deduplicated and cloned
    /// blocks may have several.
    freed: BTreeMap<(u32, u64), u32>,
}

impl Matcher {
    /// Takes the entry before those that it has; true for one of a block that lives.
    fn lives(&mut self, entry: &Blkptr) -> bool {
        let dva = entry.dva(0);
        let place = (dva.vdev().0, dva.offset());
        if entry.is_freed_entry() {
            *self.freed.entry(place).or_default() += 1;
            return false;
        }
        match self.freed.get_mut(&place) {
            None => true,
            Some(left) => {
                *left -= 1;
                if *left == 0 {
                    self.freed.remove(&place);
                }
                false
            }
        }
    }

    /// Fails if FREE entries without ALLOC are left at the beginning of a part.
    fn finish(&self, part: ObjectId) -> Result<()> {
        if self.freed.is_empty() {
            return Ok(());
        }
        Err(Error::corrupt(format!("part {part} of a livelist frees {} blocks that it has not", self.freed.len())))
    }
}

/// The livelist of a clone, open to be changed.
pub(crate) struct Livelist {
    list: Deadlist,
    parts: BTreeMap<u64, Count>,
}

impl Livelist {
    async fn open(pool: &DslPool, object: ObjectId) -> Result<Livelist> {
        let list = Deadlist::open(pool.mos(), object).await?;
        let mut parts = BTreeMap::new();
        for (key, part) in list.lists() {
            let mut count = Count::default();
            if !pool.is_shared_empty(part) {
                let h = Bpobj::open(pool.mos(), part).await?.live_header()?;
                count = Count { all: h.num_blkptrs, freed: h.num_freed };
            }
            parts.insert(key, count);
        }
        if list.is_flat() {
            return Err(Error::corrupt(format!("livelist {object} has no keys")));
        }
        Ok(Livelist { list, parts })
    }

    async fn add_key(&mut self, pool: &DslPool, key: u64, tx: &Tx) -> Result<()> {
        let part = bpobj::create_live(pool.mos(), tx).await?;
        self.list.set_key(key, part, tx).await?;
        self.parts.insert(key, Count::default());
        Ok(())
    }

    /// The part under a key, made if the key has the shared empty list.
    async fn part(&mut self, pool: &DslPool, key: u64, tx: &Tx) -> Result<Bpobj> {
        let mut part = self.list.list_of(key).expect("a key of the list");
        if pool.is_shared_empty(part) {
            let empty = part;
            part = bpobj::create_live(pool.mos(), tx).await?;
            self.list.set_key(key, part, tx).await?;
            pool.drop_empty_list(empty, tx).await?;
        }
        Bpobj::open(pool.mos(), part).await
    }

    /// Adds the entries of one pass.
    async fn write(&mut self, pool: &DslPool, changes: &Changes, tx: &Tx) -> Result<()> {
        let core = pool.core();
        let last = self.parts.last_key_value().map(|(_, count)| *count);
        let begins = match last {
            None => true,
            // Blocks born in one txg stay in one part, whichever pass wrote them.
            Some(last) => core.pass.get() == 1 && is_full(last, core.livelist_entries.get()),
        };
        if begins {
            self.add_key(pool, tx.txg().0.saturating_sub(1), tx).await?;
        }
        let mut entries: BTreeMap<u64, Vec<(Blkptr, u64, bool)>> = BTreeMap::new();
        let mut sum = Space::default();
        let both = changes.born.iter().map(|bp| (bp, false)).chain(changes.killed.iter().map(|bp| (bp, true)));
        for (bp, freed) in both {
            let under = self.parts.range(..bp.birth().0).next_back().map(|(key, _)| *key);
            let under = under.ok_or_else(|| Error::corrupt("a livelist has no part for a block"))?;
            entries.entry(under).or_default().push((*bp, core.zio.dsize(bp), freed));
            let space = Space::of(bp, &core.zio);
            sum.add(if freed { space.negated() } else { space });
        }
        for (key, entries) in entries {
            let part = self.part(pool, key, tx).await?;
            append(pool, &part, &entries, tx).await?;
            let h = part.live_header()?;
            self.parts.insert(key, Count { all: h.num_blkptrs, freed: h.num_freed });
        }
        self.list.add_to_total(sum, tx).await
    }
}

/// Adds entries to a part, some at a time.
async fn append(pool: &DslPool, part: &Bpobj, entries: &[(Blkptr, u64, bool)], tx: &Tx) -> Result<()> {
    for some in entries.chunks(BATCH) {
        pool.ctx().rt().spend(Nanos(DMU_POINTER.0 * some.len() as u64)).await;
        part.enqueue_live(some, tx).await?;
    }
    Ok(())
}

impl DslPool {
    /// Gives a new clone its livelist, if the pool has them (syncing context).
    pub(crate) async fn make_livelist(&self, dir: &Rc<Dir>, tx: &Tx) -> Result<()> {
        if !self.features().is_enabled(FeatureId::Livelist) {
            return Ok(());
        }
        let list = Deadlist::create(self, [], tx).await?;
        zap::add_u64(&self.zapify(dir.object, tx).await?, LIVELIST_KEY, list.object.0, tx).await?;
        dir.set_livelist(Some(list.object.0));
        self.features().add(FeatureId::Livelist, 1, tx).await
    }

    /// Removes the livelist of a clone, but does not free the blocks in it (syncing context).
    pub(crate) async fn drop_livelist(&self, dir: &Rc<Dir>, tx: &Tx) -> Result<()> {
        let Some(object) = self.take_livelist(dir, tx).await? else { return Ok(()) };
        Deadlist::open(self.mos(), object).await?.free(self, tx).await?;
        self.features().add(FeatureId::Livelist, -1, tx).await
    }

    /// Takes the list from the clone's directory.
    async fn take_livelist(&self, dir: &Rc<Dir>, tx: &Tx) -> Result<Option<ObjectId>> {
        let Some(object) = dir.take_livelist() else { return Ok(None) };
        self.live.lists.borrow_mut().remove(&dir.object);
        self.live.changed.borrow_mut().remove(&dir.object);
        zap::remove(&self.mos().hold(dir.object).await?, LIVELIST_KEY, tx).await?;
        Ok(Some(ObjectId(object)))
    }

    /// Writes what was born and killed in a clone to its livelist; drops the list if it is damaged
    /// or the clone shares too little with its origin.
    pub(crate) async fn write_livelist(&self, ds: &Rc<Dataset>, tx: &Tx) -> Result<()> {
        let changes = ds.take_live_changes();
        let dir = ds.dir();
        let Some(object) = dir.livelist() else { return Ok(()) };
        if changes.born.is_empty() && changes.killed.is_empty() {
            return Ok(());
        }
        let opened = self.live.lists.borrow_mut().remove(&dir.object);
        let opened = match opened {
            Some(list) => Ok(list),
            None => Livelist::open(self, ObjectId(object)).await,
        };
        let Ok(mut list) = opened else { return self.drop_livelist(&dir, tx).await };
        match list.write(self, &changes, tx).await {
            Err(e) if e.kind() == ErrorKind::Corrupt => return self.drop_livelist(&dir, tx).await,
            other => other?,
        }
        self.live.lists.borrow_mut().insert(dir.object, list);
        self.live.changed.borrow_mut().insert(dir.object);
        let used = dir.phys().used_breakdown[Used::Head as usize];
        if let Some(least) = self.core().livelist_shared.get()
            && shares_too_little(ds.phys().referenced_bytes, used, least)
        {
            self.drop_livelist(&dir, tx).await?;
        }
        Ok(())
    }

    /// Hands the livelist of a clone that is being destroyed to the work in the background. False
    /// if the clone has none, or one that does not add up: its tree must be walked then.
    pub(crate) async fn free_by_livelist(&self, dir: &Rc<Dir>, tx: &Tx) -> Result<bool> {
        let Some(object) = dir.livelist() else { return Ok(false) };
        let clone = Space::used_by(&dir.phys());
        let list = match Livelist::open(self, ObjectId(object)).await {
            Ok(list) => Some(list.list.space().await?),
            Err(_) => None,
        };
        // Embedded blocks are in the clone's uncompressed sum, and in no list.
        let adds_up = |list: &Space| {
            (list.used, list.compressed) == (clone.used, clone.compressed) && list.uncompressed <= clone.uncompressed
        };
        let Some(list) = list.filter(adds_up) else {
            self.drop_livelist(dir, tx).await?;
            return Ok(false);
        };
        self.take_livelist(dir, tx).await?;
        let zap = match self.live.deleted.get() {
            Some(zap) => self.mos().hold(zap).await?,
            None => {
                let zap = zap::create(self.mos(), ObjectType::OTN_ZAP_METADATA, 0, tx).await?;
                zap::add_u64(self.directory(), DELETED_KEY, zap.object().0, tx).await?;
                self.live.deleted.set(Some(zap.object()));
                zap
            }
        };
        zap::add_int(&zap, object, object, tx).await?;
        dir.did_use(Used::Head, clone.negated());
        self.charge_freeing(list);
        Ok(true)
    }
}

/// The livelists of a pool: those in use, those of destroyed clones, and the work on them.
#[derive(Default)]
pub(crate) struct Live {
    /// Open lists by directory.
    lists: std::cell::RefCell<BTreeMap<ObjectId, Livelist>>,
    /// Directories whose lists changed since they were last looked at for parts to condense.
    changed: std::cell::RefCell<BTreeSet<ObjectId>>,
    condensing: std::cell::RefCell<Option<Condensing>>,
    /// The ZAP of the lists of destroyed clones.
    deleted: std::cell::Cell<Option<ObjectId>>,
    freeing: std::cell::RefCell<Option<FreeingPart>>,
}

/// A part of a destroyed clone's list that is being worked off.
struct FreeingPart {
    part: ObjectId,
    /// Entries before this one were not read yet.
    left: u64,
    matcher: Matcher,
}

/// Two parts that become one.
struct Condensing {
    dir: ObjectId,
    keys: [u64; 2],
    parts: [ObjectId; 2],
    /// Their entries when it began.
    sizes: [u64; 2],
    /// The part that is read, and its entries that were not read yet.
    at: (usize, u64),
    matcher: Matcher,
    live: Vec<Blkptr>,
}

impl DslPool {
    /// Loads the lists of destroyed clones that an earlier import left; true if there are some.
    pub(crate) async fn load_deleted_clones(&self) -> Result<bool> {
        let zap = zap::lookup_u64(self.directory(), DELETED_KEY).await?.map(ObjectId);
        self.live.deleted.set(zap);
        Ok(zap.is_some())
    }

    /// Frees up to `budget` blocks of destroyed clones; true if no list is left.
    pub(crate) async fn free_from_livelists(&self, budget: &mut usize, tx: &Tx) -> Result<bool> {
        while *budget > 0 {
            let Some(zap) = self.live.deleted.get() else { return Ok(true) };
            let zap = self.mos().hold(zap).await.at(|| "deleted clones")?;
            let first = zap::list(&zap).await?.into_iter().next().and_then(|e| e.value.as_u64());
            let Some(object) = first.map(ObjectId) else {
                zap::remove(self.directory(), DELETED_KEY, tx).await?;
                let object = zap.object();
                drop(zap);
                self.mos().free(object, tx).await?;
                self.live.deleted.set(None);
                return Ok(true);
            };
            let mut list = Deadlist::open(self.mos(), object).await?;
            let first = list.lists().next();
            let Some((key, part)) = first else {
                list.free(self, tx).await?;
                zap::remove_int(&zap, object.0, tx).await?;
                self.features().add(FeatureId::Livelist, -1, tx).await?;
                *budget -= 1;
                continue;
            };
            let rest = self.free_part(&mut list, part, budget, tx).await.at(|| format!("livelist {object}"))?;
            if let Some(rest) = rest {
                let dropped = async {
                    list.drop_key(key, tx).await?;
                    list.add_to_total(rest.negated(), tx).await
                };
                self.fail_txg_on_error(dropped.await)?;
                *budget = budget.saturating_sub(1);
            }
        }
        Ok(false)
    }

    /// Works off some of a part. At its end it frees the part; its sums, which the list must lose,
    /// are returned.
    async fn free_part(
        &self,
        list: &mut Deadlist,
        part: ObjectId,
        budget: &mut usize,
        tx: &Tx,
    ) -> Result<Option<Space>> {
        if self.is_shared_empty(part) {
            self.drop_empty_list(part, tx).await?;
            return Ok(Some(Space::default()));
        }
        let entries = Bpobj::open(self.mos(), part).await?;
        let mut work = match self.live.freeing.take() {
            Some(work) if work.part == part => work,
            _ => FreeingPart { part, left: entries.live_header()?.num_blkptrs, matcher: Matcher::default() },
        };
        let mut freed = Vec::new();
        let walked = self.free_living(&entries, &mut work, budget, &mut freed, tx).await;
        if walked.is_ok() && work.left == 0 {
            let rest = Space::of_list(entries.space()?);
            drop(entries);
            self.fail_txg_on_error(bpobj::free(self.mos(), part, tx).await)?;
            return Ok(Some(rest));
        }
        // The next txg goes on; an import must know what is free already.
        let zio = &self.core().zio;
        let marks: Vec<_> = freed.iter().map(|bp| (*bp, zio.dsize(bp), true)).collect();
        let mut space = Space::default();
        freed.iter().for_each(|bp| space.add(Space::of(bp, zio)));
        let marked = async {
            if planted!(FreedUnnoted) {
                return Ok(());
            }
            append(self, &entries, &marks, tx).await?;
            list.add_to_total(space.negated(), tx).await
        };
        self.fail_txg_on_error(marked.await)?;
        walked?;
        *self.live.freeing.borrow_mut() = Some(work);
        Ok(None)
    }

    /// Reads a part towards its beginning and frees the blocks that live, which are added to
    /// `freed`.
    async fn free_living(
        &self,
        entries: &Bpobj,
        work: &mut FreeingPart,
        budget: &mut usize,
        freed: &mut Vec<Blkptr>,
        tx: &Tx,
    ) -> Result<()> {
        let zio = self.core().zio.clone();
        while *budget > 0 && work.left > 0 {
            let (start, read) = entries.entries_before(0, work.left).await?;
            let before = freed.len();
            for (i, bp) in read.iter().enumerate().rev() {
                if *budget == 0 {
                    break;
                }
                work.left = start + i as u64;
                let lives = work.matcher.lives(bp);
                if lives {
                    freed.push(*bp);
                }
                if lives || work.left.is_multiple_of(READS_PER_FREE) {
                    *budget -= 1;
                }
            }
            let live = &freed[before..];
            let cost = DMU_POINTER.0 * read.len() as u64 + FREE.0 * live.len() as u64;
            let mut space = Space::default();
            for bp in live {
                space.add(Space::of(bp, &zio));
                self.core().free(bp, tx.txg());
            }
            self.charge_free(space.negated());
            self.ctx().rt().spend(Nanos(cost)).await;
        }
        if work.left == 0 { work.matcher.finish(work.part) } else { Ok(()) }
    }

    /// Makes parts of livelists smaller, some entries each txg (syncing context).
    pub(crate) async fn condense_livelists(&self, tx: &Tx) -> Result<()> {
        let mut budget = CONDENSED_PER_TXG;
        while budget > 0 {
            let begun = self.live.condensing.take();
            let work = match begun {
                Some(work) if self.is_current(&work) => work,
                _ => match self.next_to_condense() {
                    Some(work) => work,
                    None => return Ok(()),
                },
            };
            let (dir, mut work) = (self.dir_of(work.dir.0)?, work);
            match self.read_parts(&mut work, &mut budget).await {
                Ok(None) => *self.live.condensing.borrow_mut() = Some(work),
                Ok(Some(entries)) => self.join_parts(&work, &entries, tx).await?,
                // A list that cannot be read is of no use.
                Err(_) => self.drop_livelist(&dir, tx).await?,
            }
        }
        Ok(())
    }

    /// Whether both parts still are those of the clone's list.
    fn is_current(&self, work: &Condensing) -> bool {
        let lists = self.live.lists.borrow();
        let list = lists.get(&work.dir).map(|l| &l.list);
        list.is_some_and(|l| (0..2).all(|i| l.list_of(work.keys[i]) == Some(work.parts[i])))
    }

    /// The next two parts to make one of.
    fn next_to_condense(&self) -> Option<Condensing> {
        let lists = self.live.lists.borrow();
        let mut changed = self.live.changed.borrow_mut();
        while let Some(dir) = changed.first().copied() {
            if let Some(list) = lists.get(&dir) {
                let parts: Vec<(u64, Count)> = list.parts.iter().map(|(k, c)| (*k, *c)).collect();
                if let Some((first, second)) = pair_to_condense(&parts, self.core().livelist_entries.get()) {
                    let keys = [first, second];
                    let part = |key| list.list.list_of(key).expect("a key of the list");
                    let sizes = keys.map(|key| list.parts[&key].all);
                    return Some(Condensing {
                        dir,
                        keys,
                        parts: keys.map(part),
                        sizes,
                        at: (1, sizes[1]),
                        matcher: Matcher::default(),
                        live: Vec::new(),
                    });
                }
            }
            changed.remove(&dir);
        }
        None
    }

    /// Reads some entries of both parts. At their end it returns the entries of the new part: those
    /// that live, and those that were added since they were read.
    async fn read_parts(&self, work: &mut Condensing, budget: &mut u64) -> Result<Option<Vec<(Blkptr, u64, bool)>>> {
        let parts = [self.open_part(work.parts[0]).await?, self.open_part(work.parts[1]).await?];
        loop {
            let (which, left) = work.at;
            match &parts[which] {
                Some(part) if left > 0 => {
                    if *budget == 0 {
                        return Ok(None);
                    }
                    let (start, read) = part.entries_before(0, left).await?;
                    self.ctx().rt().spend(Nanos(DMU_POINTER.0 * read.len() as u64)).await;
                    for bp in read.iter().rev() {
                        if work.matcher.lives(bp) {
                            work.live.push(*bp);
                        }
                    }
                    *budget = budget.saturating_sub(read.len() as u64);
                    work.at = (which, start);
                }
                _ => {
                    work.matcher.finish(work.parts[which])?;
                    if which == 0 {
                        break;
                    }
                    work.at = (0, work.sizes[0]);
                }
            }
        }
        let mut entries: Vec<(Blkptr, bool)> = work.live.iter().rev().map(|bp| (*bp, false)).collect();
        let mut sum = Space::default();
        for (part, size) in parts.iter().zip(work.sizes) {
            let Some(part) = part else { continue };
            sum.add(Space::of_list(part.space()?));
            let mut end = part.live_header()?.num_blkptrs;
            let mut added = Vec::new();
            while end > size {
                let (start, read) = part.entries_before(size, end).await?;
                added.extend(read.iter().rev().map(|bp| (*bp, bp.is_freed_entry())));
                end = start;
            }
            entries.extend(added.into_iter().rev());
        }
        let zio = &self.core().zio;
        for (bp, freed) in &entries {
            let space = Space::of(bp, zio);
            sum.add(if *freed { space } else { space.negated() });
        }
        if sum != Space::default() {
            return Err(Error::corrupt("the sums of a livelist are not those of its entries"));
        }
        Ok(Some(entries.into_iter().map(|(bp, freed)| (bp, zio.dsize(&bp), freed)).collect()))
    }

    async fn open_part(&self, part: ObjectId) -> Result<Option<Bpobj>> {
        if self.is_shared_empty(part) {
            return Ok(None);
        }
        Bpobj::open(self.mos(), part).await.map(Some)
    }

    /// Replaces two parts by one with these entries.
    async fn join_parts(&self, work: &Condensing, entries: &[(Blkptr, u64, bool)], tx: &Tx) -> Result<()> {
        let part = Bpobj::open(self.mos(), bpobj::create_live(self.mos(), tx).await?).await?;
        append(self, &part, entries, tx).await?;
        let h = part.live_header()?;
        let list = self.live.lists.borrow_mut().remove(&work.dir);
        let mut list = list.expect("the list is current");
        list.list.drop_key(work.keys[1], tx).await?;
        list.list.set_key(work.keys[0], part.object(), tx).await?;
        list.parts.remove(&work.keys[1]);
        list.parts.insert(work.keys[0], Count { all: h.num_blkptrs, freed: h.num_freed });
        for old in work.parts {
            self.drop_empty_list(old, tx).await?;
        }
        self.live.lists.borrow_mut().insert(work.dir, list);
        self.live.changed.borrow_mut().insert(work.dir);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(all: u64, freed: u64) -> Count {
        Count { all, freed }
    }

    #[test]
    fn parts_with_few_living_entries_become_one() {
        let max = 20;
        for (parts, want) in [
            (&[][..], None),
            (&[(1, count(40, 20))][..], None),
            // The last part is never taken.
            (&[(1, count(40, 20)), (2, count(40, 20))], None),
            (&[(1, count(40, 20)), (2, count(40, 20)), (3, count(0, 0))], Some((1, 2))),
            (&[(1, count(40, 0)), (2, count(40, 20)), (3, count(4, 2)), (4, count(0, 0))], Some((2, 3))),
            (&[(1, count(10, 0)), (2, count(10, 0)), (3, count(0, 0))], None),
            (&[(1, count(10, 0)), (2, count(9, 0)), (3, count(0, 0))], Some((1, 2))),
        ] {
            assert_eq!(pair_to_condense(parts, max), want, "{parts:?}");
        }
        assert!(!is_full(count(30, 10), 20) && is_full(count(31, 10), 20));
    }

    #[test]
    fn a_clone_that_shares_little_needs_no_list() {
        for (referenced, used, want) in [
            (0, 0, false),
            (1000, 0, false),
            (1000, 239, false),
            (1000, 241, true),
            (1000, 1000, true),
            (1000, 1001, true),
            (u64::MAX, 1, false),
        ] {
            assert_eq!(shares_too_little(referenced, used, 75), want, "{used} of {referenced}");
        }
    }

    #[test]
    fn pairs_cancel_however_often_a_block_comes() {
        let block = |offset: u64, freed| {
            let mut bp = Blkptr::hole();
            bp.set_dva(0, ondisk::blkptr::Dva::new(base::VdevId(1), offset, 4096, false));
            bp.for_livelist(freed)
        };
        // In the order in which they were added.
        let entries = [(8, false), (16, false), (16, true), (24, false), (24, false), (24, true), (16, false)];
        let mut matcher = Matcher::default();
        let mut living = Vec::new();
        for (at, freed) in entries.iter().rev() {
            let bp = block(at * 512, *freed);
            if matcher.lives(&bp) {
                living.push(at);
            }
        }
        living.sort();
        assert_eq!(living, [&8, &16, &24]);
        matcher.finish(ObjectId(1)).expect("every FREE had its ALLOC");
        matcher.lives(&block(32 * 512, true));
        matcher.finish(ObjectId(1)).expect_err("a FREE without ALLOC");
    }
}
