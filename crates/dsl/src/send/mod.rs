//! Sending: a snapshot, or what changed since an earlier one, as a stream (format pages 11 and 25).
//!
//! **Normal path.** [`DslPool::send`] finds the snapshot and the one it starts from, decides which
//! features the stream needs ([`features_of`]), and writes BEGIN. A walk of the block tree
//! (`tree`) finds everything that was born after the *from* snapshot, in the order of objects and
//! offsets; the composer (`compose`) makes records of it; [`Sink`] takes their bytes. END closes
//! the stream.
//!
//! **Words.** The *to* snapshot is the one that is sent; *from* is the one that the receiver has.
//! A *full* stream has none.
//!
//! A receive that was interrupted goes on with a stream that begins where it stopped
//! ([`DslPool::find_token`], `resume`); a *package* is several streams with a list of what they are
//! ([`DslPool::package`], `plan` and `package`).
//!
//! A *redacted* stream leaves out the blocks on the list of a redaction bookmark; one *from* a
//! redaction bookmark also has the blocks on the list of that, which the receiver lacks (`overlay`,
//! [`crate::Redaction`]).
//!
//! How long a stream will be is estimated from what the pool counts ([`DslPool::send_size`],
//! `estimate`). Where it does not count that, the stream is made *dry*: no data are read, and its
//! records are only counted.
//!
//! Invariants: objects and offsets ascend, and each offset is written once; the running sum covers
//! all bytes (`ondisk::stream`). Blocks are read several at once, and sent in order. A snapshot
//! that is being sent is in use and cannot be destroyed.

mod compose;
mod estimate;
mod overlay;
mod package;
mod plan;
mod resume;
mod tree;

use std::rc::Rc;

use base::{Error, ErrorKind, Guid, ObjectId, Result, ResultExt, Txg};
use bdev::Bytes;
use codec::checksum::Endian;
use dmu::zap;
use ondisk::dsl::{DS_FLAG_CI_DATASET, DslDatasetPhys};
use ondisk::feature::FeatureId;
use ondisk::nvlist::NvList;
use ondisk::objset::{ObjsetPhys, ObjsetType};
use ondisk::stream::record::{Begin, End, NAME_MAX};
use ondisk::stream::{RECORD_SIZE, Record, Sent, StreamWriter, begin_flags, features};
use rt::{LocalBoxFuture, Rt};

use crate::dataset::{Dataset, Use};
use crate::dir::Dir;
use crate::pool::DslPool;
use crate::snap::bookmark::Bookmark;

pub use package::Package;
pub use plan::{Note, PackageOpts, Step};
pub use resume::Found;

/// The first version of the ZPL with system attributes (format page 08).
const ZPL_VERSION_SA: u64 = 5;
/// The master node, which has the version of the ZPL.
pub(crate) const MASTER_NODE: ObjectId = ObjectId(1);

/// Takes the bytes of a stream in order.
pub trait Sink {
    /// Takes a record and its payload; waits while the receiver does not read. An error ends the
    /// stream.
    fn put(&mut self, record: [u8; RECORD_SIZE], payload: Bytes) -> LocalBoxFuture<'_, Result<()>>;
}

/// What a stream may have that not every receiver takes: the letters of `zfs send`.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct SendOpts {
    /// `-L`: blocks above 128 KiB are not cut.
    pub large_blocks: bool,
    /// `-e`: blocks that lie in their pointer are sent so.
    pub embedded: bool,
    /// `-c`: compressed blocks are sent as they are stored.
    pub compressed: bool,
    /// `-w`: all blocks are sent as they are stored, encrypted ones too: no key is needed. Means
    /// the other three as well.
    pub raw: bool,
}

/// What decides about the features of a stream.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
struct Source {
    /// Files are described by system attributes.
    sa: bool,
    /// The dataset is encrypted.
    encrypted: bool,
    /// The pool has compressed with lz4.
    lz4: bool,
    /// The pool has embedded blocks.
    embedded: bool,
    /// The dataset has had blocks above 128 KiB.
    large_blocks: bool,
    /// The dataset has had dnodes of several slots.
    large_dnode: bool,
    /// The dataset has compressed with zstd.
    zstd: bool,
    /// The dataset has had names of more than 255 bytes.
    longname: bool,
    /// The dataset has had micro ZAPs above 128 KiB.
    large_microzap: bool,
}

/// The features that a stream of `source` needs (format page 21 section 1).
fn features_of(source: Source, opts: SendOpts) -> u64 {
    let mut out = 0;
    let mut add = |wanted: bool, feature: u64| out |= if wanted { feature } else { 0 };
    let raw = opts.raw && source.encrypted;
    let embedded = (opts.embedded || opts.raw) && source.embedded && !source.encrypted;
    let compressed = opts.compressed || opts.raw;
    add(source.sa, features::SA_SPILL);
    let large = source.large_blocks || source.large_microzap;
    add((opts.large_blocks || opts.raw) && large, features::LARGE_BLOCKS);
    add(embedded, features::EMBED_DATA);
    add(compressed, features::COMPRESSED);
    add(raw, features::RAW);
    add((embedded || compressed) && source.lz4, features::LZ4);
    add(compressed && source.zstd, features::ZSTD);
    add(source.large_dnode, features::LARGE_DNODE);
    add(source.longname, features::LONGNAME);
    add(source.large_microzap, features::LARGE_MICROZAP);
    out
}

/// The snapshot that a stream starts from, which a bookmark may stand for.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Start {
    /// The snapshot; none if only a bookmark is left of it.
    object: Option<ObjectId>,
    guid: Guid,
    txg: Txg,
    /// The guid of the IV set of an encrypted one.
    ivset_guid: Option<u64>,
    /// It belongs to another file system.
    is_clone: bool,
    /// The list of blocks that the receiver lacks, if it is a redaction bookmark.
    list: Option<ObjectId>,
    /// What the receiver's copy of it is redacted by.
    redaction: Option<Vec<u64>>,
}

/// What a stream leaves out.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Redacted {
    /// The list of a bookmark; none: the snapshot was received redacted itself.
    list: Option<ObjectId>,
    /// Guids of the redaction snapshots.
    snaps: Vec<u64>,
}

/// A stream to make.
struct Job {
    ds: Rc<Dataset>,
    from: Option<Start>,
    /// The redaction bookmark whose blocks are left out: its list.
    redact: Option<ObjectId>,
    opts: SendOpts,
    /// Where the receive of an earlier stream stopped.
    resume: Option<tree::Resume>,
    /// How the stream is called, if its dataset is not the snapshot that it is of.
    named: Option<Named>,
}

/// How a stream is called that is not of a snapshot.
#[derive(Clone)]
struct Named {
    /// The guid and the name in BEGIN.
    guid: Guid,
    name: String,
    /// The guid in all other records.
    own_guid: Guid,
    /// Seconds since 1970.
    creation_time: u64,
    /// It ends with END; without, a receiver knows that the snapshot is not complete.
    is_whole: bool,
}

impl Job {
    /// An ordinary stream of a snapshot.
    fn new(ds: Rc<Dataset>, from: Option<Start>, opts: SendOpts) -> Job {
        Job { ds, from, redact: None, opts, resume: None, named: None }
    }
}

/// The hold of snapshots that are made to send a head.
const HEAD_TAG: &str = "zfs-send";

/// Fails if a name does not fit BEGIN.
fn check_name(name: &str) -> Result<()> {
    match name.len() <= NAME_MAX {
        true => Ok(()),
        false => Err(Error::new(ErrorKind::NameTooLong, format!("the name of '{name}' does not fit a stream"))),
    }
}

impl DslPool {
    /// Sends the snapshot `to`, or what changed in it since its earlier snapshot `from`, to `sink`.
    /// `from` may be a bookmark (`fs#mark`). Errors: `NotFound` if there is no such snapshot or
    /// bookmark; `CrossDevice` if `from` is not an earlier one of `to`; `Denied` if the key of an
    /// encrypted dataset is not loaded; `Unsupported` for snapshots that need large micro ZAPs;
    /// those of reads and of the sink.
    pub async fn send(&self, to: &str, from: Option<&str>, opts: SendOpts, sink: &mut dyn Sink) -> Result<Sent> {
        self.send_redacted(to, from, None, opts, sink).await
    }

    /// As [`DslPool::send`], without the blocks on the list of a redaction bookmark of `to`: `book`
    /// is its name after the `#`, or its full name. Errors: also `Invalid` if it is no complete
    /// redaction bookmark of that snapshot.
    pub async fn send_redacted(
        &self,
        to: &str,
        from: Option<&str>,
        book: Option<&str>,
        opts: SendOpts,
        sink: &mut dyn Sink,
    ) -> Result<Sent> {
        let ds = self.find_snapshot(to).await?;
        let sent = async { self.send_job(&self.job_of(ds, from, book, opts).await?, Some(sink)).await };
        sent.await.at(|| format!("cannot send '{to}'"))
    }

    /// Sends the file system or volume `to` as it is now: from a snapshot of the moment, which
    /// goes afterwards. The stream has the guid of the head and is called `to@--head--`, as
    /// OpenZFS's. Errors: `Busy` if it is in use; those of [`DslPool::send`].
    pub async fn send_head(
        self: &Rc<Self>,
        to: &str,
        from: Option<&str>,
        opts: SendOpts,
        sink: &mut dyn Sink,
    ) -> Result<Sent> {
        self.send_head_as(to, from, opts, sink).await.at(|| format!("cannot send '{to}'"))
    }

    async fn send_head_as(
        self: &Rc<Self>,
        to: &str,
        from: Option<&str>,
        opts: SendOpts,
        sink: &mut dyn Sink,
    ) -> Result<Sent> {
        let head = self.find(to)?;
        head.check_complete()?;
        let phys = head.phys();
        let named = Named {
            guid: Guid(phys.guid),
            name: format!("{to}@--head--"),
            own_guid: Guid(phys.guid),
            creation_time: phys.creation_time,
            is_whole: true,
        };
        check_name(&named.name)?;
        let job = |ds, from| Job { named: Some(named), ..Job::new(ds, from, opts) };
        if !self.is_writable() {
            let from = self.start_if(&head, from).await?;
            return self.send_job(&job(head, from), Some(sink)).await;
        }
        if head.is_used() {
            return Err(Error::new(ErrorKind::Busy, "target is busy; if a filesystem, it must not be mounted"));
        }
        // Before a snapshot is made for nothing.
        self.start_if(&head, from).await?;
        drop(head);
        let snap = format!("{HEAD_TAG}-{:016x}", self.ctx().rt().rng_u64());
        self.snapshot_temporary(to, &snap, HEAD_TAG).await?;
        let ds = self.find_snapshot(&format!("{to}@{snap}")).await?;
        let sent = async {
            let from = self.start_if(&ds, from).await?;
            self.send_job(&job(ds.clone(), from), Some(sink)).await
        };
        let sent = sent.await;
        // It may have another name by now.
        let gone = self.release(HEAD_TAG, vec![ds.name()], false).await;
        let sent = sent?;
        gone.map(|_| sent)
    }

    async fn job_of(&self, ds: Rc<Dataset>, from: Option<&str>, book: Option<&str>, opts: SendOpts) -> Result<Job> {
        let from = self.start_if(&ds, from).await?;
        let redact = match book {
            Some(book) => Some(self.redaction_bookmark(&ds, book, opts).await?),
            None => None,
        };
        Ok(Job { redact, ..Job::new(ds, from, opts) })
    }

    /// The list of a redaction bookmark of `ds`.
    async fn redaction_bookmark(&self, ds: &Rc<Dataset>, book: &str, opts: SendOpts) -> Result<ObjectId> {
        if opts.raw {
            return Err(Error::invalid("raw sends may not be redacted."));
        }
        let head = ds.dir().head().ok_or_else(|| Error::not_found(format!("'{}' has no head", ds.name())))?;
        let name = book.split('#').next_back().unwrap_or_default();
        let mark = self.bookmarks(&head).await?.into_iter().find(|m| m.name == name);
        let mark = mark.ok_or_else(|| Error::not_found(format!("bookmark '{}#{name}' does not exist", head.name())))?;
        let list = mark.redaction_obj().ok_or_else(|| Error::invalid("not a redaction bookmark"))?;
        if mark.guid() != ds.phys().guid {
            let text = format!("'{}#{name}' is not a redaction bookmark of this snapshot", head.name());
            return Err(Error::invalid(text));
        }
        Ok(list)
    }

    async fn start_if(&self, ds: &Rc<Dataset>, from: Option<&str>) -> Result<Option<Start>> {
        match from {
            Some(name) => Ok(Some(self.start_of(ds, name).await?)),
            None => Ok(None),
        }
    }

    /// Without a sink the stream is dry.
    async fn send_job(&self, job: &Job, sink: Option<&mut dyn Sink>) -> Result<Sent> {
        let Job { ds, from, opts, resume, named, .. } = job;
        self.check_sendable(job).await?;
        let _use = Use::of(ds);
        let lists = [job.redact, from.as_ref().and_then(|f| f.list)];
        let _lists: Vec<_> = lists.into_iter().flatten().map(|list| self.use_list(list)).collect();
        let raw = opts.raw && ds.dir().is_encrypted();
        // A raw stream is made without the key, so that nothing is decrypted on its way.
        let ctx = if raw { ds.sealed_ctx() } else { ds.keyed_ctx()? };
        let phys = ds.phys();
        let block = ctx.read(&phys.bp).await.map_err(|e| e.at(format!("dataset '{}'", ds.name())))?;
        let os = ObjsetPhys::parse(&block)?;
        let mut features = features_of(self.source_of(ds, &os, raw).await?, *opts);
        if features & (features::LARGE_MICROZAP | features::LARGE_BLOCKS) == features::LARGE_MICROZAP {
            // Their blocks cannot be cut.
            let text = format!("'{}' contains large microzaps, need -L (--large-block) or -w (--raw)", ds.name());
            return Err(Error::unsupported(text));
        }
        if resume.is_some() {
            features |= features::RESUMING;
        }
        let redacted = self.redacted_by(job).await?;
        if redacted.is_some() {
            features |= features::REDACTED;
        }
        let named = named.clone().unwrap_or_else(|| Named {
            guid: Guid(phys.guid),
            name: ds.name(),
            own_guid: Guid(phys.guid),
            creation_time: phys.creation_time,
            is_whole: true,
        });
        check_name(&named.name)?;
        let mut flags = begin_flags::FREERECORDS | begin_flags::SPILL_BLOCK;
        if from.as_ref().is_some_and(|f| f.is_clone) {
            flags |= begin_flags::CLONE;
        }
        if phys.flags & DS_FLAG_CI_DATASET != 0 {
            flags |= begin_flags::CI_DATA;
        }
        let mut list = NvList::new();
        if let Some(redacted) = &redacted {
            list.put_u64s("redact_snaps", redacted.snaps.clone());
        }
        if let Some(snaps) = from.as_ref().and_then(|f| f.redaction.clone()).filter(|_| !raw) {
            list.put_u64s("redact_from_snaps", snaps);
        }
        if let Some(at) = resume {
            list.put_u64("resume_object", at.object.0);
            list.put_u64("resume_offset", at.offset);
        }
        if raw {
            list.put_list("crypt_keydata", self.keydata_of(ds, &os, from.as_ref()).await?);
        }
        let list = if list.is_empty() { Vec::new() } else { list.encode_native() };
        let begin = Begin {
            payload_len: list.len() as u32,
            version_info: Begin::SUBSTREAM,
            creation_time: named.creation_time,
            objset_type: os.os_type as u32,
            flags,
            to_guid: named.guid,
            from_guid: from.as_ref().map_or(Guid(0), |f| f.guid),
            to_name: named.name.into_bytes(),
        };
        let mut out = Out::new(ctx.rt().clone(), sink);
        out.put(Record::Begin(begin.with_features(features)), list.into()).await?;
        let form = compose::Form { features, to_guid: named.own_guid };
        let range = tree::Range {
            from: from.as_ref().map_or(Txg(0), |f| f.txg),
            resume: *resume,
            redact: redacted.and_then(|r| r.list),
            // A raw receiver is not redacted: it lacks nothing.
            again: from.as_ref().and_then(|f| f.list).filter(|_| !raw && !planted!(NothingAgain)),
        };
        tree::send_blocks(self, &ctx, (phys.bp, &os), range, form, &mut out).await?;
        if named.is_whole {
            out.put(Record::End(End { to_guid: named.own_guid, ..End::default() }), Bytes::default()).await?;
        }
        Ok(out.sent())
    }

    /// Fails if the dataset of a job cannot be sent.
    async fn check_sendable(&self, job: &Job) -> Result<()> {
        job.ds.load_features().await?;
        match job.named.as_ref().is_none_or(|named| named.is_whole) {
            true => job.ds.check_received(),
            false => Ok(()),
        }
    }

    /// What a stream leaves out. OpenZFS marks no streams of snapshots that were received redacted,
    /// so that their copies pass for complete ones; these are marked as well.
    async fn redacted_by(&self, job: &Job) -> Result<Option<Redacted>> {
        if let Some(list) = job.redact {
            let (_, header) = self.redaction_list(list).await?;
            return Ok(Some(Redacted { list: Some(list), snaps: header.snaps }));
        }
        Ok(job.ds.redaction().map(|snaps| Redacted { list: None, snaps }))
    }

    /// The snapshot or bookmark called `name` as the start of a stream of `ds`.
    async fn start_of(&self, ds: &Rc<Dataset>, name: &str) -> Result<Start> {
        let absent = |e: Error| match e.kind() {
            ErrorKind::NotFound => Error::not_found(format!("incremental source ({name}) does not exist")),
            _ => e,
        };
        if let Some((fs, mark)) = name.split_once('#') {
            let head = self.find(fs).map_err(absent)?;
            let mark = self.bookmarks(&head).await?.into_iter().find(|b| b.name == mark);
            let mark = mark.ok_or_else(|| absent(ErrorKind::NotFound.into()))?;
            let txg = Txg(mark.creation_txg());
            // The blocks that a redacted copy lacks may be sent of the same snapshot.
            let same = mark.redaction_obj().is_some() && mark.guid() == ds.phys().guid;
            if !same && !self.is_before(&head.dir(), txg, ds).await? {
                return Err(no_ancestor(name));
            }
            return self.start_at_mark(&head, ds, &mark).await;
        }
        let from = self.find_snapshot(name).await.map_err(absent)?;
        let mut at = ds.phys();
        while let Some(older) = self.snapshot_before(ds, &at).await? {
            at = older.phys();
            if older.object == from.object {
                return self.start_at(ds, &older).await;
            }
        }
        Err(no_ancestor(name))
    }

    /// A bookmark of `head` as the start of a stream of `ds`.
    async fn start_at_mark(&self, head: &Dataset, ds: &Dataset, mark: &Bookmark) -> Result<Start> {
        Ok(Start {
            object: None,
            guid: Guid(mark.guid()),
            txg: Txg(mark.creation_txg()),
            ivset_guid: Some(mark.ivset_guid()).filter(|guid| *guid != 0),
            is_clone: head.dir().object != ds.dir().object,
            list: mark.redaction_obj(),
            redaction: self.redaction_of(mark).await?.map(|r| r.snaps),
        })
    }

    /// A snapshot that `ds` developed from as the start of its stream.
    async fn start_at(&self, ds: &Dataset, from: &Dataset) -> Result<Start> {
        from.load_features().await?;
        let phys = from.phys();
        Ok(Start {
            object: Some(from.object),
            guid: Guid(phys.guid),
            txg: Txg(phys.creation_txg),
            ivset_guid: self.ivset_guid(from.object).await?,
            is_clone: from.dir().object != ds.dir().object,
            list: None,
            redaction: from.redaction(),
        })
    }

    /// The snapshot before `at`, which is an ancestor of `ds` or itself.
    async fn snapshot_before(&self, ds: &Dataset, at: &DslDatasetPhys) -> Result<Option<Rc<Dataset>>> {
        let prev = ObjectId(at.prev_snap_obj);
        if prev.0 == 0 || prev == self.origin_snap() {
            return Ok(None);
        }
        let older = self.hold_dataset(prev).await?;
        // So a damaged chain ends, too. The time of a head is that of its first txg.
        if at.is_snapshot() && older.phys().creation_txg >= at.creation_txg {
            return Err(Error::corrupt(format!("the snapshots before '{}' are not in order", ds.name())));
        }
        Ok(Some(older))
    }

    /// Whether the state of `dir` at the end of `txg` is one that `ds` developed from.
    pub(crate) async fn is_before(&self, dir: &Dir, txg: Txg, ds: &Rc<Dataset>) -> Result<bool> {
        let mut at = ds.clone();
        loop {
            if at.dir().object == dir.object {
                if !at.is_snapshot() {
                    return Ok(true);
                }
                let made = Txg(at.phys().creation_txg);
                // An origin may be the very snapshot that a bookmark stands for.
                return Ok(txg < made || (at.object != ds.object && txg == made));
            }
            let phys = at.phys();
            match self.snapshot_before(ds, &phys).await? {
                Some(older) => at = older,
                None => return Ok(false),
            }
        }
    }

    /// The keys after BEGIN of a raw stream.
    async fn keydata_of(&self, ds: &Dataset, os: &ObjsetPhys, from: Option<&Start>) -> Result<NvList> {
        // Snapshots of old pools have none: receivers take the stream if they are told to.
        let to = self.ivset_guid(ds.object).await?.unwrap_or(0);
        let from = from.and_then(|start| start.ivset_guid).unwrap_or(0);
        self.crypt_keydata(&ds.dir(), os, Guid(to), Guid(from))
    }

    async fn source_of(&self, ds: &Dataset, os: &ObjsetPhys, raw: bool) -> Result<Source> {
        let has = |id: FeatureId| ds.features().contains(id.get().guid);
        let sa = match os.os_type {
            // Encrypted file systems are younger than system attributes.
            ObjsetType::Zfs if raw => true,
            ObjsetType::Zfs => {
                let version = zap::lookup_u64(&ds.objset().await?.hold(MASTER_NODE).await?, b"VERSION").await?;
                version.is_some_and(|v| v >= ZPL_VERSION_SA)
            }
            _ => false,
        };
        Ok(Source {
            sa,
            encrypted: ds.dir().is_encrypted(),
            lz4: self.features().is_active(FeatureId::Lz4Compress),
            embedded: self.features().is_active(FeatureId::EmbeddedData),
            large_blocks: has(FeatureId::LargeBlocks),
            large_dnode: has(FeatureId::LargeDnode),
            zstd: has(FeatureId::ZstdCompress),
            longname: has(FeatureId::Longname),
            large_microzap: has(FeatureId::LargeMicrozap),
        })
    }
}

fn no_ancestor(name: &str) -> Error {
    Error::new(ErrorKind::CrossDevice, format!("'{name}' is not an earlier snapshot from the same fs"))
}

/// The stream on its way to the sink.
struct Out<'a> {
    rt: Rt,
    writer: StreamWriter,
    /// None: the stream is dry.
    sink: Option<&'a mut dyn Sink>,
    /// Records of a dry stream, and their bytes.
    counted: Sent,
}

impl<'a> Out<'a> {
    fn new(rt: Rt, sink: Option<&'a mut dyn Sink>) -> Out<'a> {
        Out { rt, writer: StreamWriter::new(Endian::Little), sink, counted: Sent::default() }
    }

    /// Whether records are only counted.
    fn is_dry(&self) -> bool {
        self.sink.is_none()
    }

    /// What was sent or counted.
    fn sent(&self) -> Sent {
        if self.is_dry() { self.counted } else { self.writer.sent() }
    }

    /// Counts a record of a dry stream.
    fn count(&mut self, record: &Record) {
        self.counted.records += 1;
        self.counted.bytes += RECORD_SIZE as u64 + record.payload_len();
    }

    /// Sends a record with its payload, which a dry stream does not look at.
    async fn put(&mut self, record: Record, payload: Bytes) -> Result<()> {
        let Some(sink) = &mut self.sink else {
            self.count(&record);
            return Ok(());
        };
        let cost = rt::cost::FLETCHER.cost((RECORD_SIZE + payload.len()) as u64);
        // The sums of large payloads are a job for another thread, which gives the writer back.
        let mut writer = std::mem::replace(&mut self.writer, StreamWriter::new(Endian::Little));
        let (writer, bytes, payload) = self
            .rt
            .cpu(cost, move || {
                let bytes = writer.record(&record, &payload);
                (writer, bytes, payload)
            })
            .await;
        self.writer = writer;
        sink.put(bytes, payload).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn features_follow_from_the_dataset_and_the_letters() {
        use features::*;
        let opts = |letters: &str| SendOpts {
            large_blocks: letters.contains('L'),
            embedded: letters.contains('e'),
            compressed: letters.contains('c'),
            raw: letters.contains('w'),
        };
        let plain = Source { sa: true, lz4: true, embedded: true, ..Source::default() };
        let all = Source { large_blocks: true, large_dnode: true, zstd: true, ..plain };
        for (source, letters, has) in [
            (plain, "", SA_SPILL),
            (plain, "L", SA_SPILL),
            (plain, "ce", SA_SPILL | COMPRESSED | EMBED_DATA | LZ4),
            (plain, "e", SA_SPILL | EMBED_DATA | LZ4),
            (Source { lz4: false, ..plain }, "c", SA_SPILL | COMPRESSED),
            (Source { encrypted: true, ..plain }, "e", SA_SPILL),
            (Source { encrypted: true, ..plain }, "w", SA_SPILL | RAW | COMPRESSED | LZ4),
            (plain, "w", SA_SPILL | COMPRESSED | EMBED_DATA | LZ4),
            (all, "", SA_SPILL | LARGE_DNODE),
            (Source { large_microzap: true, ..plain }, "L", SA_SPILL | LARGE_BLOCKS | LARGE_MICROZAP),
            (Source { longname: true, ..all }, "", SA_SPILL | LARGE_DNODE | LONGNAME),
            (all, "Lec", SA_SPILL | LARGE_DNODE | LARGE_BLOCKS | EMBED_DATA | COMPRESSED | LZ4 | ZSTD),
        ] {
            assert_eq!(features_of(source, opts(letters)), has, "{source:?} {letters}");
        }
    }
}
