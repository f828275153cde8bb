//! Bookmarks: the txg of a snapshot under a name that outlives it (format pages 05 section 11, 15
//! section 5).
//!
//! A bookmark belongs to a head and stores guid, txg and time. With the feature `bookmark_written`
//! it also stores the referenced space of the snapshot, and the space of it that is freed before
//! the next snapshot (*freed before next*, FBN), for `written#bookmark`. Bookmarks whose FBN may
//! still grow are in memory with their head as [`FreedMark`]s.

use std::collections::BTreeSet;
use std::rc::Rc;

use base::{Error, ErrorKind, ObjectId, Result, Txg};
use dmu::zap::{self, ZapValue};
use dmu::{Dnode, Tx};
use ondisk::feature::FeatureId;
use ondisk::object_type::ObjectType;
use ondisk::redact::RedactionHeader;
use rt::LocalBoxFuture;

use crate::core::Space;
use crate::dataset::Dataset;
use crate::free::deadlist::Deadlist;
use crate::pool::DslPool;
use crate::snap::snapshot::check_component;
use crate::space::SpaceCheck;

/// Key of a head's ZAP of bookmarks.
const BOOKMARKS_KEY: &[u8] = b"com.delphix:bookmarks";
/// Words of the long form (`bookmark_v2`); the last one is the guid of the IV set of an encrypted
/// snapshot.
const WORDS_V2: usize = 12;
/// Flag: the figures of freed space are kept (`ZBM_FLAG_HAS_FBN`).
const HAS_FBN: u64 = 1;
/// Flag: the snapshot still exists (`ZBM_FLAG_SNAPSHOT_EXISTS`).
const SNAPSHOT_EXISTS: u64 = 2;

/// A bookmark as stored.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Bookmark {
    /// The part of its name behind `#`.
    pub name: String,
    words: Vec<u64>,
}

impl Bookmark {
    /// A bookmark with these words (format page 05 section 11).
    pub(crate) fn new(name: String, words: Vec<u64>) -> Bookmark {
        Bookmark { name, words }
    }
    fn word(&self, i: usize) -> u64 {
        self.words.get(i).copied().unwrap_or(0)
    }
    /// Guid of the snapshot.
    pub fn guid(&self) -> u64 {
        self.word(0)
    }
    /// Txg of the snapshot.
    pub fn creation_txg(&self) -> u64 {
        self.word(1)
    }
    /// Seconds since 1970.
    pub fn creation_time(&self) -> u64 {
        self.word(2)
    }
    /// The guid of the IV set of an encrypted snapshot, 0 for others.
    pub fn ivset_guid(&self) -> u64 {
        self.word(WORDS_V2 - 1)
    }
    /// The object with the list of what a redaction bookmark leaves out.
    pub fn redaction_obj(&self) -> Option<ObjectId> {
        Some(ObjectId(self.word(3))).filter(|object| object.0 != 0)
    }
    /// Whether freed space is counted.
    pub fn has_freed(&self) -> bool {
        self.words.len() >= WORDS_V2 && self.word(4) & HAS_FBN != 0
    }
    /// Bytes that the snapshot referenced, if known.
    pub fn referenced(&self) -> Option<u64> {
        self.has_freed().then(|| self.word(5))
    }
}

/// A bookmark of a head that counts the space freed after it.
#[derive(Clone, Debug)]
pub struct FreedMark {
    mark: Bookmark,
    dirty: bool,
}

impl FreedMark {
    /// Counts a killed block of the head, if it was not born after the bookmark and there is no
    /// snapshot after the bookmark yet.
    pub(crate) fn killed(&mut self, birth: u64, last_snap: u64, space: Space) {
        let txg = self.mark.creation_txg();
        if txg >= last_snap && birth <= txg {
            self.add(space);
        }
    }
    fn add(&mut self, space: Space) {
        if space == Space::default() {
            return;
        }
        for (i, more) in [space.used, space.compressed, space.uncompressed].into_iter().enumerate() {
            self.mark.words[8 + i] = self.mark.words[8 + i].saturating_add_signed(more);
        }
        self.dirty = true;
    }
}

/// What a bookmark is made from.
enum Made {
    /// Another bookmark: its words.
    Of(Vec<u64>),
    /// A snapshot, and the guids of the snapshots that it is redacted by.
    Snapshot(Rc<Dataset>, Option<Vec<u64>>),
}

/// The words of a copy of a bookmark: an ordinary one, since a list belongs to one bookmark.
fn copied(old: &Bookmark) -> Vec<u64> {
    let mut words = old.words.clone();
    if old.redaction_obj().is_some() {
        words[3] = 0;
        if words[4..].iter().all(|word| *word == 0) {
            words.truncate(3);
        }
    }
    words
}

impl DslPool {
    async fn bookmark_zap(&self, head: &Dataset) -> Result<Option<Dnode>> {
        let dn = self.mos().hold(head.object).await?;
        if dn.otype() != ObjectType::OTN_ZAP_METADATA {
            return Ok(None);
        }
        match zap::lookup_u64(&dn, BOOKMARKS_KEY).await? {
            Some(object) => Ok(Some(self.mos().hold(ObjectId(object)).await?)),
            None => Ok(None),
        }
    }

    /// The bookmarks of a head, oldest first.
    pub async fn bookmarks(&self, head: &Dataset) -> Result<Vec<Bookmark>> {
        let Some(dn) = self.bookmark_zap(head).await? else { return Ok(Vec::new()) };
        let mut out = Vec::new();
        for entry in zap::list(&dn).await? {
            let name = String::from_utf8_lossy(&entry.name).into_owned();
            match entry.value.as_u64s() {
                Some(words) if words.len() >= 3 => out.push(Bookmark { name, words }),
                _ => return Err(Error::corrupt(format!("bookmark '{}#{name}' is malformed", head.name()))),
            }
        }
        out.sort_by(|a, b| (a.creation_txg(), &a.name).cmp(&(b.creation_txg(), &b.name)));
        Ok(out)
    }

    /// Reads the bookmarks that count freed space, once for each head.
    pub(crate) async fn load_marks(&self, head: &Dataset) -> Result<()> {
        if head.marks_loaded() {
            return Ok(());
        }
        let all = self.bookmarks(head).await?;
        let counting = all.into_iter().filter(Bookmark::has_freed).map(|mark| FreedMark { mark, dirty: false });
        head.set_marks(counting.collect());
        Ok(())
    }

    /// Writes the bookmarks whose figures changed.
    pub(crate) async fn write_marks(&self, head: &Dataset, tx: &Tx) -> Result<()> {
        let changed: Vec<Bookmark> = head.with_marks(|marks| {
            let dirty = marks.iter_mut().filter_map(|m| std::mem::take(&mut m.dirty).then(|| m.mark.clone()));
            dirty.collect()
        });
        if changed.is_empty() {
            return Ok(());
        }
        let Some(dn) = self.bookmark_zap(head).await? else { return Ok(()) };
        for mark in changed {
            zap::update(&dn, mark.name.as_bytes(), &ZapValue::from_u64s(&mark.words), tx).await?;
        }
        Ok(())
    }

    /// Txgs above `after` of bookmarks that count: each needs its own key in deadlists.
    pub(crate) fn mark_txgs(head: &Dataset, after: u64) -> Vec<u64> {
        let mut all: Vec<u64> = head.with_marks(|marks| marks.iter().map(|m| m.mark.creation_txg()).collect());
        all.retain(|t| *t > after);
        all.sort_unstable();
        all.dedup();
        all
    }

    /// A snapshot is destroyed: bookmarks between it and the one before add their space of
    /// `freed_upto`, and bookmarks of the snapshot itself lose the flag. True if a bookmark at its
    /// txg still counts (then its key stays in deadlists).
    pub(crate) async fn marks_snapshot_gone(
        &self,
        head: &Dataset,
        before: u64,
        at: u64,
        freed_upto: &[(u64, Space)],
        tx: &Tx,
    ) -> Result<bool> {
        let mut stays = false;
        head.with_marks(|marks| {
            for mark in marks.iter_mut() {
                let txg = mark.mark.creation_txg();
                if txg >= before
                    && txg < at
                    && let Some((_, space)) = freed_upto.iter().find(|(t, _)| *t == txg)
                {
                    mark.add(*space);
                }
                if txg == at {
                    stays = true;
                }
            }
        });
        for mut mark in
            self.bookmarks(head).await?.into_iter().filter(|m| m.creation_txg() == at && m.words.len() >= 12)
        {
            mark.words[4] &= !SNAPSHOT_EXISTS;
            if let Some(dn) = self.bookmark_zap(head).await? {
                zap::update(&dn, mark.name.as_bytes(), &ZapValue::from_u64s(&mark.words), tx).await?;
            }
            head.with_marks(|marks| {
                if let Some(kept) = marks.iter_mut().find(|m| m.mark.name == mark.name) {
                    kept.mark.words[4] &= !SNAPSHOT_EXISTS;
                }
            });
        }
        self.write_marks(head, tx).await?;
        Ok(stays)
    }

    /// The head was rolled back to its snapshot of txg `at`: bookmarks of that txg have nothing
    /// freed after them.
    pub(crate) async fn reset_marks(&self, head: &Dataset, at: u64, tx: &Tx) -> Result<()> {
        head.with_marks(|marks| {
            for mark in marks.iter_mut().filter(|m| m.mark.creation_txg() >= at) {
                mark.mark.words[8..11].fill(0);
                mark.dirty = true;
            }
        });
        self.write_marks(head, tx).await
    }

    /// As [`DslPool::reset_marks`] when the head has got other content, with the deadlist `list`:
    /// what is on that was freed after the bookmarks.
    pub(crate) async fn recount_marks(&self, head: &Dataset, list: &Deadlist, at: u64, tx: &Tx) -> Result<()> {
        let txgs: BTreeSet<u64> = head.with_marks(|marks| marks.iter().map(|m| m.mark.creation_txg()).collect());
        for txg in txgs.into_iter().filter(|txg| *txg >= at) {
            let space = list.space_range(self, 0, txg).await?;
            head.with_marks(|marks| {
                for mark in marks.iter_mut().filter(|m| m.mark.creation_txg() == txg) {
                    mark.mark.words[8..11].fill(0);
                    mark.add(space);
                    mark.dirty = true;
                }
            });
        }
        self.write_marks(head, tx).await
    }

    /// Stores a bookmark with a head (syncing context); counts features.
    pub(crate) async fn store_bookmark(&self, head: &Rc<Dataset>, mark: Bookmark, tx: &Tx) -> Result<()> {
        let dn = match self.bookmark_zap(head).await? {
            Some(dn) => dn,
            None => {
                let new = zap::create(self.mos(), ObjectType::OTN_ZAP_METADATA, 2, tx).await?;
                let ds = self.zapify(head.object, tx).await?;
                zap::add_u64(&ds, BOOKMARKS_KEY, new.object().0, tx).await?;
                self.features().add(FeatureId::Bookmarks, 1, tx).await?;
                new
            }
        };
        zap::add(&dn, mark.name.as_bytes(), &ZapValue::from_u64s(&mark.words), tx).await?;
        if mark.words.len() > 3 {
            self.features().add(FeatureId::BookmarkV2, 1, tx).await?;
        }
        if mark.has_freed() {
            self.features().add(FeatureId::BookmarkWritten, 1, tx).await?;
            self.load_marks(head).await?;
            head.with_marks(|marks| {
                if !marks.iter().any(|m| m.mark.name == mark.name) {
                    marks.push(FreedMark { mark, dirty: false });
                }
            });
        }
        Ok(())
    }

    /// Removes a bookmark with its redaction list.
    async fn remove_bookmark(&self, head: &Rc<Dataset>, mark: &Bookmark, tx: &Tx) -> Result<()> {
        if let Some(list) = mark.redaction_obj() {
            self.free_redaction_list(list, tx).await?;
        }
        self.take_out_bookmark(head, mark, tx).await
    }

    /// Removes a bookmark's entry and its counts; frees the ZAP with the last bookmark.
    async fn take_out_bookmark(&self, head: &Rc<Dataset>, mark: &Bookmark, tx: &Tx) -> Result<()> {
        let Some(dn) = self.bookmark_zap(head).await? else { return Ok(()) };
        zap::remove(&dn, mark.name.as_bytes(), tx).await?;
        head.with_marks(|marks| marks.retain(|m| m.mark.name != mark.name));
        if mark.words.len() > 3 {
            self.features().add(FeatureId::BookmarkV2, -1, tx).await?;
        }
        if mark.has_freed() {
            self.features().add(FeatureId::BookmarkWritten, -1, tx).await?;
        }
        if zap::count(&dn).await? == 0 {
            let object = dn.object();
            drop(dn);
            let ds = self.mos().hold(head.object).await?;
            zap::remove(&ds, BOOKMARKS_KEY, tx).await?;
            self.mos().free(object, tx).await?;
            self.features().add(FeatureId::Bookmarks, -1, tx).await?;
        }
        Ok(())
    }

    /// Fails with `Busy` if the redaction list of a bookmark is being made or read.
    fn check_list_idle(&self, head: &Dataset, mark: &Bookmark) -> Result<()> {
        match mark.redaction_obj() {
            Some(list) if self.is_list_used(list) => {
                let text = format!("dataset is busy: '{}#{}' is being made or sent by", head.name(), mark.name);
                Err(Error::new(ErrorKind::Busy, text))
            }
            _ => Ok(()),
        }
    }

    /// The words of a new bookmark of a snapshot, with a redaction list if it has one (syncing
    /// context).
    pub(crate) async fn bookmark_words(&self, snap: &Dataset, list: Option<ObjectId>) -> Result<Vec<u64>> {
        let p = snap.phys();
        let mut words = vec![p.guid, p.creation_txg, p.creation_time];
        // A raw stream from the bookmark names the IV set that it starts from.
        let ivset = self.ivset_guid(snap.object).await?.unwrap_or(0);
        let list = list.map_or(0, |list| list.0);
        if self.features().is_enabled(FeatureId::BookmarkWritten) {
            let next = self.hold_dataset(ObjectId(p.next_snap_obj)).await?;
            let deadlist = next.take_deadlist().await?;
            let freed = deadlist.space().await;
            next.put_deadlist(deadlist);
            let freed = freed?;
            words.extend([list, HAS_FBN | SNAPSHOT_EXISTS]);
            words.extend([p.referenced_bytes, p.compressed_bytes, p.uncompressed_bytes]);
            words.extend([freed.used, freed.compressed, freed.uncompressed].map(|n| n.max(0) as u64));
        }
        if words.len() > 3 || ivset != 0 || list != 0 {
            words.resize(WORDS_V2 - 1, 0);
            words[3] = list;
            words.push(ivset);
        }
        Ok(words)
    }

    /// Notes a new bookmark in the history (syncing context).
    pub(crate) fn log_bookmark(&self, head: &Dataset, name: &str, words: &[u64], tx: &Tx) {
        let list = words.get(3).copied().unwrap_or(0);
        let text = format!("name={name} creation_txg={} target_txg={} redact_obj={list}", words[1], tx.txg());
        self.core().log_internal_ds("bookmark", (head.name(), head.object), text, tx);
    }

    /// Makes a bookmark `fs#mark` from a snapshot or another bookmark, of `fs` or of what it was
    /// cloned from.
    pub async fn create_bookmark(self: &Rc<Self>, from: &str, to: &str) -> Result<()> {
        let (from, to) = (from.to_string(), to.to_string());
        self.sync_task_again(move |pool, tx| -> LocalBoxFuture<'static, Result<()>> {
            let (from, to) = (from.clone(), to.clone());
            Box::pin(async move { pool.create_bookmark_in(&from, &to, false, &tx).await })
        })
        .await
    }

    /// As [`DslPool::create_bookmark`], in a task that is running. With `trial` it only makes the
    /// checks.
    pub async fn create_bookmark_in(self: &Rc<Self>, from: &str, to: &str, trial: bool, tx: &Rc<Tx>) -> Result<()> {
        let (pool, tx) = (self.clone(), tx.clone());
        if !pool.features().is_enabled(FeatureId::Bookmarks) {
            return Err(Error::unsupported("bookmarks need the pool feature 'bookmarks'"));
        }
        let (fs, name) =
            to.split_once('#').ok_or_else(|| Error::invalid(format!("'{to}' is not the name of a bookmark")))?;
        check_component(to, name)?;
        let head = pool.find(fs)?;
        let all = pool.bookmarks(&head).await?;
        if all.iter().any(|m| m.name == name) {
            return Err(Error::new(ErrorKind::Exists, "bookmark exists"));
        }
        let foreign = || Error::invalid("source is not an ancestor of the new bookmark's dataset");
        let is_own = from.split(['@', '#']).next() == Some(fs);
        pool.check_space(SpaceCheck::Normal, 4)?;
        let made = match from.split_once('#') {
            Some((source, old)) => {
                let of = if is_own { head.clone() } else { pool.find(source)? };
                let old = pool.bookmarks(&of).await?.into_iter().find(|m| m.name == old);
                let old = old.ok_or_else(|| Error::not_found(format!("bookmark '{from}' does not exist")))?;
                // A clone comes after what its origin comes from.
                if !is_own && !pool.is_before(&of.dir(), Txg(old.creation_txg()), &head).await? {
                    return Err(foreign());
                }
                Made::Of(copied(&old))
            }
            None => {
                let snap = pool.find_snapshot(from).await?;
                if !is_own && !pool.is_before(&snap.dir(), Txg(snap.phys().creation_txg), &head).await? {
                    return Err(foreign());
                }
                snap.load_features().await?;
                let snaps = snap.redaction();
                if let Some(snaps) = &snaps {
                    pool.check_redaction_list(snaps.len())?;
                }
                Made::Snapshot(snap, snaps)
            }
        };
        if trial {
            return Ok(());
        }
        let stored = async {
            let words = match made {
                Made::Of(words) => words,
                Made::Snapshot(snap, snaps) => {
                    let list = match snaps {
                        None => None,
                        // A stream from it tells what its snapshot is redacted by.
                        Some(snaps) => {
                            let mut header = RedactionHeader { snaps, ..RedactionHeader::default() };
                            header.complete();
                            Some(pool.make_redaction_list(&header, &tx).await?)
                        }
                    };
                    pool.bookmark_words(&snap, list).await?
                }
            };
            pool.log_bookmark(&head, name, &words, &tx);
            pool.store_bookmark(&head, Bookmark::new(name.to_string(), words), &tx).await
        };
        pool.fail_txg_on_error(stored.await)
    }

    /// Destroys a bookmark `fs#mark`.
    pub async fn destroy_bookmark(self: &Rc<Self>, name: &str) -> Result<()> {
        let name = name.to_string();
        self.sync_task_again(move |pool, tx| -> LocalBoxFuture<'static, Result<()>> {
            let name = name.clone();
            Box::pin(async move {
                let (fs, last) = name
                    .split_once('#')
                    .ok_or_else(|| Error::invalid(format!("'{name}' is not the name of a bookmark")))?;
                let head = pool.find(fs)?;
                let all = pool.bookmarks(&head).await?;
                let mark = all.iter().find(|m| m.name == last);
                let mark = mark.ok_or_else(|| Error::not_found(format!("bookmark '{name}' does not exist.")))?;
                pool.check_list_idle(&head, mark)?;
                pool.check_space(SpaceCheck::ExtraReserved, 1)?;
                pool.load_marks(&head).await?;
                let at = mark.creation_txg();
                let others = all.iter().any(|m| m.name != last && m.creation_txg() == at && m.has_freed());
                let removed = pool.remove_bookmark(&head, mark, &tx).await;
                pool.fail_txg_on_error(removed)?;
                let text = format!("name={last}");
                pool.core().log_internal_ds("remove bookmark", (head.name(), head.object), text, &tx);
                if mark.has_freed() && !others && at < head.phys().prev_snap_txg {
                    let snaps = pool.snapshots(&head).await?;
                    if !snaps.iter().any(|s| s.phys().creation_txg == at) {
                        let removed = pool.remove_key_of(&head, at, &tx).await;
                        pool.fail_txg_on_error(removed)?;
                    }
                }
                Ok(())
            })
        })
        .await
    }

    /// Removes the key of a txg from the deadlists of a head and of all clones made later.
    async fn remove_key_of(&self, head: &Rc<Dataset>, key: u64, tx: &Tx) -> Result<()> {
        let mut list = head.take_deadlist().await?;
        let removed = list.remove_key(self, key, tx).await;
        head.put_deadlist(list);
        removed?;
        self.remove_key_of_clones(&head.dir(), key, tx).await
    }

    /// Frees all bookmarks of a head that is destroyed.
    pub(crate) async fn drop_bookmarks(&self, head: &Rc<Dataset>, tx: &Tx) -> Result<()> {
        for mark in self.bookmarks(head).await? {
            self.remove_bookmark(head, &mark, tx).await?;
        }
        Ok(())
    }

    /// Fails with `Busy` if redaction lists of a head are being made or read.
    pub(crate) async fn check_lists_idle(&self, head: &Dataset) -> Result<()> {
        self.bookmarks(head).await?.iter().try_for_each(|m| self.check_list_idle(head, m))
    }

    /// Moves the bookmarks up to a txg from one head to another (promotion).
    pub(crate) async fn move_bookmarks(&self, from: &Rc<Dataset>, to: &Rc<Dataset>, upto: u64, tx: &Tx) -> Result<()> {
        self.load_marks(from).await?;
        self.load_marks(to).await?;
        for mark in self.bookmarks(from).await?.into_iter().filter(|m| m.creation_txg() <= upto) {
            self.take_out_bookmark(from, &mark, tx).await?;
            self.store_bookmark(to, mark, tx).await?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
