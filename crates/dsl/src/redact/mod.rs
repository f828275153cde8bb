//! Redaction: which blocks of a snapshot are left out when it is sent (format pages 15 section 5
//! and 25 section 1).
//!
//! **Words.** A snapshot is redacted with respect to *redaction snapshots*, later ones of the same
//! file system or of clones. A block of its files is redacted if *none* of them refers to it any
//! more. The *redaction list* of these blocks belongs to a *redaction bookmark* of the snapshot.
//! What is received of a redacted stream is a *redacted dataset*: it knows the guids of the
//! redaction snapshots, and has holes where blocks were left out.
//!
//! **Normal path.** [`DslPool::redact`] checks the names and makes the bookmark with an empty list.
//! A walk of each redaction snapshot tells what it gave up (`given_up`); what all of them gave up
//! (`merge`) becomes entries for the objects that the snapshot has, metadata excepted. Entries are
//! appended in sync tasks (`list`), the last of which completes the list.
//!
//! A redaction that was interrupted leaves an incomplete list, which nothing is sent by. The same
//! command goes on where it stopped; destroying the bookmark gives it up.
//!
//! Invariants: entries ascend. The snapshots are in use until the command ends, and so is the list.

mod given_up;
mod list;
mod merge;

use std::collections::BTreeSet;
use std::rc::Rc;

use base::{Error, ErrorKind, Nanos, ObjectId, Result, ResultExt, Txg};
use dmu::{Objset, Tx};
use ondisk::feature::FeatureId;
use ondisk::redact::{RedactedRange, RedactionHeader};
use rt::LocalBoxFuture;
use rt::cost::DMU_OBJECT;

use self::given_up::GivenUp;
pub(crate) use self::list::{ListReader, ListUse, ListsInUse};
use self::merge::{Entries, Place, Span, common, ends_first};
use crate::dataset::{Dataset, Use};
use crate::pool::{DslPool, NAME_MAX};
use crate::snap::bookmark::Bookmark;
use crate::snap::snapshot::check_component;
use crate::space::SpaceCheck;

/// Entries that are appended at once: as many as a block of the list has room for.
const ENTRIES_MAX: usize = 4096;
/// How often the progress is written at least.
const INTERVAL: Nanos = Nanos::from_secs(5);

/// What a redaction bookmark says besides its snapshot.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Redaction {
    /// Guids of the redaction snapshots.
    pub snaps: Vec<u64>,
    /// Whether its list is complete: others are not sent by.
    pub is_complete: bool,
}

/// Whether two lists of guids name the same snapshots.
pub(crate) fn same_snaps(a: &[u64], b: &[u64]) -> bool {
    a.iter().collect::<BTreeSet<_>>() == b.iter().collect::<BTreeSet<_>>()
}

/// A redaction that has begun.
struct Begun {
    list: ObjectId,
    _use: ListUse,
    /// Where to go on.
    from: Place,
}

impl DslPool {
    /// Makes the redaction bookmark `book` of `snapshot` with respect to the snapshots `by` (full
    /// names), or goes on with one that was interrupted.
    ///
    /// # Errors
    /// `NotFound` for a snapshot that does not exist; `Exists` if there is such a bookmark;
    /// `Invalid` if a redaction snapshot is not later than the snapshot, or one of them is redacted
    /// itself; `Busy` while the same bookmark is made; `Unsupported` without the pool feature;
    /// those of reads and of space. After an error in the middle the bookmark stays, incomplete.
    pub async fn redact(self: &Rc<Self>, snapshot: &str, book: &str, by: &[String]) -> Result<()> {
        let (fs, _) = snapshot
            .split_once('@')
            .ok_or_else(|| Error::invalid(format!("'{snapshot}' is not the name of a snapshot")))?;
        if book.contains('#') {
            return Err(Error::invalid("redaction bookmark name must not contain '#'"));
        }
        let full = format!("{fs}#{book}");
        check_component(&full, book)?;
        if full.len() > NAME_MAX {
            let text = "provided bookmark name cannot be used, final name would be too long";
            return Err(Error::new(ErrorKind::NameTooLong, text));
        }
        let ds = self.redactable(snapshot).await?;
        let _used = Use::of(&ds);
        let mut snaps: Vec<Use> = Vec::new();
        for name in by {
            let snap = self.redactable(name).await?;
            if !self.is_before(&ds.dir(), Txg(ds.phys().creation_txg), &snap).await? || snap.object == ds.object {
                return Err(Error::invalid("redaction snapshot must be descendent of snapshot being redacted"));
            }
            if snaps.iter().all(|s| s.dataset().object != snap.object) {
                snaps.push(Use::of(&snap));
            }
        }
        if snaps.is_empty() {
            return Err(Error::invalid("at least one redaction snapshot is needed"));
        }
        // A locked or damaged one is refused before anything is changed.
        let os = ds.objset().await?;
        for snap in &snaps {
            snap.objset().await?;
        }
        let guids = snaps.iter().map(|s| s.phys().guid).collect();
        let begun = self.begin_redaction(&ds, book, guids).await?;
        let advice = || format!("cannot complete '{full}', run the same command again to go on");
        self.make_list(&ds, &os, &snaps, &begun).await.at(advice)
    }

    /// A snapshot that is not redacted itself.
    async fn redactable(&self, name: &str) -> Result<Rc<Dataset>> {
        let absent = |e: Error| match e.kind() {
            ErrorKind::NotFound => Error::not_found(format!("provided snapshot {name} does not exist")),
            _ => e,
        };
        let ds = self.find_snapshot(name).await.map_err(absent)?;
        ds.load_features().await?;
        match ds.redaction() {
            None => Ok(ds),
            Some(_) => Err(Error::invalid("attempted to redact redacted dataset or with respect to redacted dataset")),
        }
    }

    /// Makes the bookmark with an empty list, or finds that of an interrupted redaction.
    async fn begin_redaction(self: &Rc<Self>, ds: &Rc<Dataset>, book: &str, guids: Vec<u64>) -> Result<Begun> {
        let (ds, book) = (ds.clone(), book.to_string());
        self.sync_task_again(move |pool, tx| -> LocalBoxFuture<'static, Result<Begun>> {
            let (ds, book, guids) = (ds.clone(), book.clone(), guids.clone());
            Box::pin(async move {
                pool.check_redaction_list(guids.len())?;
                let head = ds.dir().head().ok_or_else(|| Error::not_found(format!("'{}' has no head", ds.name())))?;
                if let Some(mark) = pool.bookmarks(&head).await?.into_iter().find(|m| m.name == book) {
                    return pool.interrupted(&ds, &mark, &guids).await;
                }
                pool.check_space(SpaceCheck::Normal, 5)?;
                let header = RedactionHeader { snaps: guids, ..RedactionHeader::default() };
                let made = async {
                    let list = pool.make_redaction_list(&header, &tx).await?;
                    let words = pool.bookmark_words(&ds, Some(list)).await?;
                    pool.log_bookmark(&head, &book, &words, &tx);
                    pool.store_bookmark(&head, Bookmark::new(book, words), &tx).await?;
                    Ok(Begun { list, _use: pool.use_list(list), from: (0, 0) })
                };
                pool.fail_txg_on_error(made.await)
            })
        })
        .await
    }

    /// The interrupted redaction of a bookmark that exists.
    async fn interrupted(&self, ds: &Dataset, mark: &Bookmark, guids: &[u64]) -> Result<Begun> {
        let exists = || {
            let text = format!("specified redaction bookmark ({}) provided already exists", mark.name);
            Error::new(ErrorKind::Exists, text)
        };
        let list = mark.redaction_obj().ok_or_else(exists)?;
        let (_, header) = self.redaction_list(list).await?;
        if !same_snaps(&header.snaps, guids) || mark.guid() != ds.phys().guid {
            return Err(Error::invalid("attempted to resume redaction with a mismatched redaction list"));
        }
        if header.is_complete() {
            return Err(exists());
        }
        if self.is_list_used(list) {
            return Err(Error::new(ErrorKind::Busy, format!("bookmark '{}' is being made", mark.name)));
        }
        Ok(Begun { list, _use: self.use_list(list), from: header.last })
    }

    /// Finds what is redacted and appends it to the list.
    async fn make_list(self: &Rc<Self>, ds: &Dataset, os: &Objset, snaps: &[Use], begun: &Begun) -> Result<()> {
        let since = Txg(ds.phys().creation_txg);
        let mut walks = Vec::new();
        for snap in &snaps[..if planted!(FirstDecides) { 1 } else { snaps.len() }] {
            walks.push(GivenUp::open(snap.dataset(), since, begun.from).await?);
        }
        let mut fronts = Vec::new();
        for walk in &mut walks {
            match walk.next().await? {
                Some(span) => fronts.push(span),
                None => return self.append(begun.list, Vec::new(), None).await,
            }
        }
        let written = self.ctx().rt().now();
        let mut out = Output { pool: self, list: begun.list, entries: Entries::default(), made: Vec::new(), written };
        loop {
            if let Some(span) = common(&fronts) {
                out.redact(os, span).await?;
            }
            let ends = ends_first(&fronts);
            match walks[ends].next().await? {
                Some(span) => fronts[ends] = span,
                None => break,
            }
        }
        let last = out.entries.finish();
        out.made.extend(last.filter(|_| !planted!(LastEntryLost)));
        self.append(begun.list, out.made, None).await
    }

    async fn append(self: &Rc<Self>, list: ObjectId, made: Vec<RedactedRange>, last: Option<Place>) -> Result<()> {
        let made = Rc::new(made);
        self.sync_task_again(move |pool, tx: Rc<Tx>| -> LocalBoxFuture<'static, Result<()>> {
            let made = made.clone();
            Box::pin(async move {
                pool.check_space(SpaceCheck::Normal, 4)?;
                let appended = pool.append_redactions(list, &made, last, &tx).await;
                pool.fail_txg_on_error(appended)
            })
        })
        .await
    }

    /// The guids of the snapshots that a dataset is redacted by; `None` if it is not redacted.
    pub async fn dataset_redaction(&self, ds: &Dataset) -> Result<Option<Vec<u64>>> {
        if !self.features().is_active(FeatureId::RedactedDatasets) {
            return Ok(None);
        }
        ds.load_features().await?;
        Ok(ds.redaction())
    }

    /// What a bookmark says about redaction; `None` for an ordinary one.
    pub async fn redaction_of(&self, mark: &Bookmark) -> Result<Option<Redaction>> {
        let Some(list) = mark.redaction_obj() else { return Ok(None) };
        let (_, header) = self.redaction_list(list).await?;
        Ok(Some(Redaction { is_complete: header.is_complete(), snaps: header.snaps }))
    }
}

/// The list that is made.
struct Output<'a> {
    pool: &'a Rc<DslPool>,
    list: ObjectId,
    entries: Entries,
    made: Vec<RedactedRange>,
    /// When the list was written last.
    written: Nanos,
}

impl Output<'_> {
    /// Adds the blocks of a span that the objects of `os` have.
    async fn redact(&mut self, os: &Objset, span: Span) -> Result<()> {
        let mut next = span.first.0;
        while next <= span.last.0 {
            self.pool.ctx().rt().spend(DMU_OBJECT).await;
            let Some(object) = os.objects(ObjectId(next)).await?.filter(|o| o.0 <= span.last.0) else { break };
            next = object.0 + 1;
            let dn = os.hold(object).await?;
            // Only the content of files and volumes is redacted.
            if !dn.otype().is_metadata()
                && let Some((first, last)) = span.within(object.0, dn.max_blkid())
            {
                let count = (last - first).saturating_add(1);
                let range = RedactedRange { object, blkid: first, count, block_size: dn.block_size() };
                self.made.extend(self.entries.push(range));
            }
            if self.made.len() >= ENTRIES_MAX {
                self.write(span.first).await?;
            }
        }
        let due = Nanos(self.written.0.saturating_add(INTERVAL.0));
        if self.pool.ctx().rt().now() >= due { self.write(span.first).await } else { Ok(()) }
    }

    /// Appends what is complete. Nothing before `place` is missing.
    async fn write(&mut self, place: Place) -> Result<()> {
        let last = self.entries.waits_at().unwrap_or(place);
        let made = std::mem::take(&mut self.made);
        self.pool.append(self.list, made, Some(last)).await?;
        self.written = self.pool.ctx().rt().now();
        Ok(())
    }
}
