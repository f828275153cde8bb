//! The begin of a receive: what a stream and a target must be, and the dataset that receives
//! (format page 25 section 6).
//!
//! All checks are made in syncing context before the first change, so a refused stream changes
//! nothing.

use std::rc::Rc;

use base::{Error, ErrorKind, Guid, ObjectId, Result};
use dmu::{FeatureUse, Tx};
use ondisk::blkptr::Blkptr;
use ondisk::dsl::{DS_FLAG_CI_DATASET, DS_FLAG_INCONSISTENT};
use ondisk::feature::FeatureId;
use ondisk::objset::{ObjsetPhys, ObjsetType};
use ondisk::stream::record::Begin;
use ondisk::stream::{begin_flags, features};
use ondisk::version;
use ondisk::zil::ZilHeader;
use rt::LocalBoxFuture;

use super::input::Head;
use super::resume::Progress;
use super::{RECV, ReceiveOpts, Receiving};
use crate::check_name;
use crate::crypto::{PreparedCrypt, ReceivedKeys};
use crate::dataset::{Dataset, Use};
use crate::dir::Dir;
use crate::pool::DslPool;
use crate::redact::same_snaps;
use crate::snap::snapshot::check_component;
use crate::space::SpaceCheck;

/// The pool features that features of streams need.
const NEEDS: [(u64, FeatureId); 9] = [
    (features::EMBED_DATA, FeatureId::EmbeddedData),
    (features::LZ4, FeatureId::Lz4Compress),
    (features::ZSTD, FeatureId::ZstdCompress),
    (features::LARGE_BLOCKS, FeatureId::LargeBlocks),
    (features::LARGE_DNODE, FeatureId::LargeDnode),
    (features::RAW, FeatureId::Encryption),
    (features::REDACTED, FeatureId::RedactedDatasets),
    (features::LONGNAME, FeatureId::Longname),
    (features::LARGE_MICROZAP, FeatureId::LargeMicrozap),
];

/// Features of streams whose pool feature the new dataset has from the begin.
const OF_DATASETS: [(u64, FeatureId); 3] = [
    (features::LARGE_BLOCKS, FeatureId::LargeBlocks),
    (features::LONGNAME, FeatureId::Longname),
    (features::LARGE_MICROZAP, FeatureId::LargeMicrozap),
];

/// Longest list of redaction snapshots: what one entry of a ZAP has room for.
pub(super) const SNAPS_MAX: usize = ondisk::zap::MAX_VALUE / 8;

/// What is received, where to, and how.
pub(super) struct Wanted {
    pub fs: String,
    pub snap: String,
    pub head: Head,
    pub opts: ReceiveOpts,
    crypt: PreparedCrypt,
    /// The target is to have a suite or a key of its own.
    has_own_crypt: bool,
    /// The keys of a raw stream.
    pub keys: Option<ReceivedKeys>,
    /// Guids of the snapshots that the stream is redacted by.
    pub redaction: Option<Vec<u64>>,
}

/// The datasets of a receive that has begun.
pub(super) struct Begun {
    /// It receives.
    pub ds: Use,
    /// The head that it will replace; none if it is new itself.
    pub target: Option<Rc<Dataset>>,
}

impl Wanted {
    fn begin(&self) -> &Begin {
        &self.head.begin
    }
    fn has(&self, feature: u64) -> bool {
        self.begin().features() & feature != 0
    }
    fn is_full(&self) -> bool {
        self.begin().from_guid.0 == 0
    }
    /// What cannot be done, in the words of OpenZFS.
    pub(super) fn what(&self) -> &'static str {
        what(self.begin())
    }
}

/// What cannot be done with a stream, in the words of OpenZFS.
pub(super) fn what(begin: &Begin) -> &'static str {
    if begin.features() & features::RESUMING != 0 {
        "cannot receive resume stream"
    } else if begin.from_guid.0 != 0 {
        "cannot receive incremental stream"
    } else {
        "cannot receive new filesystem stream"
    }
}

/// Checks what BEGIN alone says. Errors: `Unsupported` for features that weir or the pool does not
/// have, `Invalid` for what no sender writes.
pub(super) fn check_stream(begin: &Begin, is_enabled: impl Fn(FeatureId) -> bool) -> Result<ObjsetType> {
    let has = |feature| begin.features() & feature != 0;
    if begin.header_type() != Begin::SUBSTREAM {
        return Err(Error::invalid("the stream does not begin with that of a snapshot"));
    }
    let unknown = begin.features() & !features::KNOWN;
    if unknown != 0 {
        let text = format!("stream has unsupported feature, feature flags = {:x}", begin.features());
        return Err(Error::unsupported(format!("{text} (unknown flags = {unknown:x})")));
    }
    if has(features::DEDUP | features::DEDUPPROPS) {
        let text = "deduplicated streams are no longer supported: 'zstream redup' converts this one";
        return Err(Error::unsupported(text));
    }
    if let Some((_, id)) = NEEDS.iter().find(|(feature, id)| has(*feature) && !is_enabled(*id)) {
        let text = format!("pool must be upgraded to receive this stream: it needs the feature '{id}'");
        return Err(Error::unsupported(text));
    }
    if has(features::RAW) && (has(features::EMBED_DATA) || begin.flags & begin_flags::SPILL_BLOCK == 0) {
        return Err(Error::invalid("the stream is raw, and has not what raw streams have"));
    }
    if has(features::RAW) && has(features::REDACTED) {
        return Err(Error::invalid("the stream is raw and redacted, which no stream is"));
    }
    match begin.objset_type {
        2 => Ok(ObjsetType::Zfs),
        3 => Ok(ObjsetType::Zvol),
        other => Err(Error::invalid(format!("the stream has an object set of type {other}"))),
    }
}

/// The guids of the snapshots that a stream is redacted by. A stream of a snapshot that OpenZFS
/// received redacted has the list without the flag. Errors: `Invalid` without a list, or with an
/// empty one; `Unsupported` if the pool does not have the feature.
fn check_redaction(head: &Head, is_enabled: impl Fn(FeatureId) -> bool) -> Result<Option<Vec<u64>>> {
    let flagged = head.begin.features() & features::REDACTED != 0;
    match head.list.u64s("redact_snaps") {
        None if !flagged => Ok(None),
        None | Some([]) => Err(Error::invalid("the stream is redacted, and does not say by which snapshots")),
        Some(_) if !is_enabled(FeatureId::RedactedDatasets) => {
            let id = FeatureId::RedactedDatasets;
            let text = format!("pool must be upgraded to receive this stream: it needs the feature '{id}'");
            Err(Error::unsupported(text))
        }
        Some(snaps) if snaps.len() > SNAPS_MAX => {
            Err(Error::invalid(format!("the stream is redacted by {} snapshots", snaps.len())))
        }
        Some(snaps) => Ok(Some(snaps.to_vec())),
    }
}

/// Whether an increment may be based on a snapshot that is redacted by the snapshots `has`: it has
/// all that is missing there, or misses it too.
fn fits_redacted(has: &[u64], head: &Head, redaction: Option<&[u64]>) -> bool {
    let all_there = |snaps: &[u64]| snaps.iter().all(|guid| has.contains(guid));
    if let Some(from) = head.list.u64s("redact_from_snaps") {
        return all_there(from);
    }
    match redaction {
        Some(snaps) => all_there(snaps),
        None => has.contains(&head.begin.to_guid.0),
    }
}

fn exists(text: String) -> Error {
    Error::new(ErrorKind::Exists, text)
}

/// The error of a target with an interrupted receive.
pub(super) fn partial(name: &str) -> Error {
    let text = format!("destination {name} contains partially-complete state from \"zfs receive -s\".");
    Error::new(ErrorKind::Busy, text)
}

impl DslPool {
    /// Begins to receive the snapshot of a stream as `target`, a full name `fs@snap`: makes the
    /// hidden dataset, or finds that of an interrupted receive which the stream continues.
    ///
    /// # Errors
    /// `Exists` if there is such a snapshot, or a file system and neither `-F` nor an increment;
    /// `NotFound` if the target or the snapshot that the stream starts from is missing; `Busy` if
    /// the target was changed since, or is being received into; `Unsupported` for features that
    /// weir or the pool does not have; `Invalid` if stream and target do not fit; `Denied` if a key
    /// is missing.
    pub async fn begin_receive(self: &Rc<Self>, target: &str, head: Head, opts: ReceiveOpts) -> Result<Receiving> {
        let what = what(&head.begin);
        self.begin_any(target, head, opts).await.map_err(|e| e.at(what))
    }

    async fn begin_any(self: &Rc<Self>, target: &str, head: Head, mut opts: ReceiveOpts) -> Result<Receiving> {
        let (fs, snap) = target
            .split_once('@')
            .ok_or_else(|| Error::invalid(format!("missing '@' delimiter in snapshot name '{target}'")))?;
        check_name(fs)?;
        check_component(target, snap)?;
        let is_enabled = |id| self.features().is_enabled(id);
        let os_type = check_stream(&head.begin, is_enabled)?;
        if head.begin.features() & features::SA_SPILL != 0 {
            self.check_version(version::needed_by_zpl(5), "pool must be upgraded to receive this stream")?;
        }
        if opts.resumable && !is_enabled(FeatureId::ExtensibleDataset) {
            return Err(Error::unsupported("a receive that can be resumed needs the feature 'extensible_dataset'"));
        }
        let keys = match head.begin.features() & features::RAW {
            0 => None,
            _ => Some(ReceivedKeys::parse(&head.list)?),
        };
        let redaction = check_redaction(&head, is_enabled)?;
        for (name, value) in &opts.props {
            self.check_value(name, value)?;
        }
        let crypt = std::mem::take(&mut opts.crypt);
        let has_own_crypt = crypt.key.is_some() || matches!(crypt.suite, Some(Some(_)));
        let crypt = self.prepare_crypt(crypt).await?;
        let wanted =
            Rc::new(Wanted { fs: fs.into(), snap: snap.into(), head, opts, crypt, has_own_crypt, keys, redaction });
        if wanted.has(features::RESUMING) {
            return self.resume_receive(wanted, os_type).await;
        }
        let what = wanted.clone();
        let begun = self
            .sync_task_again(move |pool, tx| -> LocalBoxFuture<'static, Result<Begun>> {
                let what = what.clone();
                Box::pin(async move {
                    match pool.find(&what.fs) {
                        Ok(head) => pool.begin_over(&what, os_type, head, &tx).await,
                        Err(e) if e.kind() == ErrorKind::NotFound => pool.begin_new(&what, os_type, &tx).await,
                        Err(e) => Err(e),
                    }
                })
            })
            .await?;
        Ok(Receiving::new(self.clone(), wanted, begun, Progress::default()))
    }

    /// Begins in a target that exists: the hidden dataset replaces it at the end.
    async fn begin_over(
        self: &Rc<Self>,
        what: &Wanted,
        os_type: ObjsetType,
        head: Rc<Dataset>,
        tx: &Rc<Tx>,
    ) -> Result<Begun> {
        let (dir, name) = (head.dir(), head.name());
        if dir.child(RECV).is_some() || head.is_partial() {
            return Err(partial(&name));
        }
        if what.is_full() {
            self.check_replaced(what, os_type, &head).await?;
        }
        if self.snapshot_of(&head, &what.snap).await?.is_some() {
            return Err(exists(format!("destination '{name}@{}' exists", what.snap)));
        }
        if os_type == ObjsetType::Zvol
            && let Some(child) = dir.children().iter().find(|c| !c.is_hidden())
        {
            let text = format!("destination has children (eg. {})\ncannot overwrite with a ZVOL", child.full_name());
            return Err(Error::invalid(text));
        }
        if let Some(keys) = &what.keys
            && !what.is_full()
        {
            self.check_received_crypt(&dir, keys)?;
        }
        if what.has_own_crypt && !what.is_full() {
            let text = format!("'{name}' exists: how it is encrypted cannot be set for incremental streams");
            return Err(Error::invalid(text));
        }
        let from = match what.is_full() {
            false => Some(self.source_snapshot(what, &head).await?),
            true => None,
        };
        if let Some(from) = &from {
            self.check_source(what, os_type, from, tx).await?;
        }
        self.check_space(SpaceCheck::Normal, 30)?;
        let made = async {
            let recv = self.make_dir(Some(&dir), RECV, tx).await?;
            let ds = match &from {
                Some(from) => {
                    self.share_crypt(&recv, &dir, tx).await?;
                    self.make_head(&recv, Some(from), tx).await?
                }
                None => self.make_head(&recv, self.hold_origin().await?.as_ref(), tx).await?,
            };
            self.begin_dataset(what, os_type, &ds, from.is_some(), tx).await?;
            Ok(Begun { ds: Use::of(&ds), target: Some(head.clone()) })
        };
        self.fail_txg_on_error(made.await)
    }

    /// Begins in a new target, a clone if it has an origin.
    async fn begin_new(self: &Rc<Self>, what: &Wanted, os_type: ObjsetType, tx: &Rc<Tx>) -> Result<Begun> {
        let missing = |name: &str| Error::not_found(format!("destination '{name}' does not exist"));
        let Some((above, _)) = what.fs.rsplit_once('/') else { return Err(missing(&what.fs)) };
        if self.find_dir(above).is_err() {
            return Err(missing(above));
        }
        self.check_new_name(&what.fs)?;
        let (parent, last) = self.parent_for_new(&what.fs)?;
        self.check_receive_parent(&parent).await?;
        let origin = self.origin_for(what).await?;
        if let Some(origin) = &origin {
            self.check_source(what, os_type, origin, tx).await?;
        }
        if what.has_own_crypt && (origin.is_some() || what.keys.is_some()) {
            let why =
                if origin.is_some() { "a clone has the key of its origin" } else { "a raw stream brings its key" };
            return Err(Error::invalid(format!("'{}' cannot be encrypted otherwise: {why}", what.fs)));
        }
        self.check_space(SpaceCheck::Normal, 30)?;
        let crypt = match (&origin, &what.keys) {
            (Some(origin), Some(keys)) => {
                self.check_received_crypt(&origin.dir(), keys)?;
                None
            }
            (Some(_), None) | (None, Some(_)) => None,
            (None, None) => self.plan_crypt(&what.fs, parent.crypt(), &what.crypt)?,
        };
        let grants = self.grants_at_creation(&parent, what.opts.creator).await?;
        let made = async {
            let dir = self.make_dir(Some(&parent), &last, tx).await?;
            self.give_grants(&dir, grants, tx).await?;
            match (crypt, &what.keys) {
                (Some(crypt), _) => self.make_crypt(&dir, crypt, tx).await?,
                (None, Some(keys)) if origin.is_none() => self.make_received_crypt(&dir, keys, tx).await?,
                (None, _) => {}
            }
            let ds = match &origin {
                Some(origin) => {
                    self.share_crypt(&dir, &origin.dir(), tx).await?;
                    let head = self.make_head(&dir, Some(origin), tx).await?;
                    self.make_livelist(&dir, tx).await?;
                    head
                }
                None => self.make_head(&dir, self.hold_origin().await?.as_ref(), tx).await?,
            };
            for (name, value) in &what.opts.props {
                self.write_prop(&dir, name, Some(value), tx).await?;
            }
            self.begin_dataset(what, os_type, &ds, origin.is_some(), tx).await?;
            Ok(Begun { ds: Use::of(&ds), target: None })
        };
        self.fail_txg_on_error(made.await)
    }

    /// Makes a new head receive: marks it, gives it an object set if it is no clone, and keeps the
    /// state from which the receive can be resumed (syncing context).
    async fn begin_dataset(
        &self,
        what: &Wanted,
        os_type: ObjsetType,
        ds: &Rc<Dataset>,
        is_clone: bool,
        tx: &Rc<Tx>,
    ) -> Result<()> {
        let case = if what.begin().flags & begin_flags::CI_DATA != 0 { DS_FLAG_CI_DATASET } else { 0 };
        ds.change(|p| p.flags |= DS_FLAG_INCONSISTENT | case);
        match (&what.keys, is_clone) {
            (Some(keys), true) => {
                let os = self.raw_objset(ds, keys).await?;
                os.set_zil_header(ZilHeader::default(), tx.txg());
            }
            (Some(keys), false) => self.make_raw_objset(ds, os_type, keys, tx)?,
            (None, true) => self.clear_log(ds, tx).await?,
            (None, false) => drop(self.make_objset(ds, os_type, tx).await?),
        }
        for (feature, id) in OF_DATASETS {
            if what.has(feature) {
                ds.account().activate(id.get().guid, tx.txg());
            }
        }
        self.activate_features(ds, tx).await?;
        // A clone of a redacted snapshot is not redacted unless the stream says so.
        self.set_redaction(ds, what.redaction.as_deref().filter(|_| !planted!(MarkLost)), tx).await?;
        if what.opts.resumable {
            self.save_begin(ds, &what.head, tx).await?;
        }
        self.core().log_internal_ds("receive", (ds.name(), ds.object), String::new(), tx);
        Ok(())
    }

    /// The snapshot of `head` that the stream starts from.
    async fn source_snapshot(&self, what: &Wanted, head: &Rc<Dataset>) -> Result<Rc<Dataset>> {
        let name = head.name();
        let snaps = self.snapshots(head).await?;
        let is_it = |s: &Rc<Dataset>| Guid(s.phys().guid) == what.begin().from_guid;
        let unlike = || Error::not_found(format!("most recent snapshot of {name} does not\nmatch incremental source"));
        let at = snaps.iter().rposition(is_it).ok_or_else(unlike)?;
        if what.opts.force {
            return Ok(snaps[at].clone());
        }
        // Newer snapshots without a change are kept; a raw stream names its very predecessor.
        let newer = at + 1 < snaps.len();
        if (newer && what.keys.is_some()) || self.is_modified(head, &snaps[at]).await? {
            let text = format!("destination {name} has been modified\nsince most recent snapshot");
            return Err(Error::new(ErrorKind::Busy, text));
        }
        snaps.into_iter().next_back().ok_or_else(unlike)
    }

    /// Whether objects of a head differ from those of its snapshot. An intent log does not count.
    pub(super) async fn is_modified(&self, head: &Dataset, snap: &Dataset) -> Result<bool> {
        let (now, then) = (head.phys().bp, snap.phys());
        if now.birth().0 <= then.creation_txg {
            return Ok(false);
        }
        let meta = async |bp: &Blkptr| Ok::<_, Error>(ObjsetPhys::parse(&self.ctx().read(bp).await?)?.meta_dnode);
        Ok(meta(&now).await? != meta(&then.bp).await?)
    }

    /// Checks that a full stream may replace `head`.
    async fn check_replaced(&self, what: &Wanted, os_type: ObjsetType, head: &Rc<Dataset>) -> Result<()> {
        let name = head.name();
        if !what.opts.force {
            return Err(exists(format!("destination '{name}' exists\nmust specify -F to overwrite it")));
        }
        if let Some(snap) = self.snapshots(head).await?.first() {
            let text = format!("destination has snapshots (eg. {})\nmust destroy them to overwrite it", snap.name());
            return Err(exists(text));
        }
        if self.origin_of(head).await?.is_some() {
            return Err(exists(format!("destination '{name}' is a clone\nmust destroy it to overwrite it")));
        }
        if os_type == ObjsetType::Zvol && head.dir().parent().is_none() {
            let text = format!("destination {name} is the root dataset\ncannot overwrite with a ZVOL");
            return Err(exists(text));
        }
        if head.dir().is_encrypted() || what.keys.is_some() || what.has_own_crypt {
            let text = "zfs receive -F cannot be used to destroy an encrypted filesystem or overwrite an \
                        unencrypted one with an encrypted one";
            return Err(Error::invalid(text));
        }
        Ok(())
    }

    /// Checks the snapshot that the received one will be based on.
    async fn check_source(&self, what: &Wanted, os_type: ObjsetType, from: &Rc<Dataset>, tx: &Tx) -> Result<()> {
        from.check_received()?;
        // Its block may not be on disk yet, and this txg still changes its deadlist.
        if from.phys().creation_txg >= tx.txg().0 {
            return Err(ErrorKind::Restart.into());
        }
        let has = from.load_features().await?;
        if let Some(snaps) = from.redaction()
            && !what.is_full()
            && !fits_redacted(&snaps, &what.head, what.redaction.as_deref())
        {
            let text = format!("'{}' was received redacted, and the stream does not have what it lacks", from.name());
            return Err(Error::invalid(text));
        }
        if has.contains_key(FeatureId::LargeBlocks.get().guid) && !what.has(features::LARGE_BLOCKS) {
            let text = "incremental send stream requires -L (--large-block), to match previous receive.";
            return Err(Error::invalid(text));
        }
        if from.dir().is_encrypted() && what.has(features::EMBED_DATA) {
            return Err(Error::invalid(format!("'{}' is encrypted, and the stream has embedded data", from.name())));
        }
        if let Some(keys) = &what.keys {
            self.check_ivset(keys, from).await?;
        } else {
            // Opened before any change, so that a damaged or locked one is refused.
            from.objset().await?;
        }
        let block = self.ctx().read(&from.phys().bp).await?;
        if ObjsetPhys::parse(&block)?.os_type != os_type {
            return Err(Error::invalid(format!("'{}' is not of the type that the stream has", from.name())));
        }
        Ok(())
    }

    /// Checks that the snapshot that a raw increment goes on was received raw from the same one.
    async fn check_ivset(&self, keys: &ReceivedKeys, from: &Dataset) -> Result<()> {
        if self.core().ivsets_unchecked.get() {
            return Ok(());
        }
        match (self.ivset_guid(from.object).await?, keys.from_ivset) {
            (None, _) => Err(Error::invalid(format!("IV set guid missing: '{}' has none (errata 4)", from.name()))),
            (_, None) => {
                Err(Error::invalid("IV set guid missing: the stream has none of what it starts from (errata 4)"))
            }
            (Some(has), Some(wanted)) if Guid(has) == wanted => Ok(()),
            (Some(_), Some(_)) => Err(Error::invalid(format!(
                "IV set guid mismatch: '{}' was not received raw from the snapshot that the stream starts from",
                from.name()
            ))),
        }
    }

    async fn check_receive_parent(&self, parent: &Rc<Dir>) -> Result<()> {
        let no = || Error::invalid(format!("parent '{}' is not a filesystem", parent.full_name()));
        let head = parent.head().ok_or_else(no)?;
        if head.os_type().await? == ObjsetType::Zfs { Ok(()) } else { Err(no()) }
    }

    /// The local snapshot that a new target is cloned from; none if it is no clone.
    async fn origin_for(&self, what: &Wanted) -> Result<Option<Rc<Dataset>>> {
        let begin = what.begin();
        let missing = || Error::not_found(format!("local origin for clone {}@{} does not exist", what.fs, what.snap));
        if let Some(name) = &what.opts.origin {
            let origin = self.find_snapshot(name).await.map_err(|_| missing())?;
            if !what.is_full() && Guid(origin.phys().guid) != begin.from_guid {
                return Err(Error::not_found(format!("'{name}' does not\nmatch incremental source")));
            }
            if what.is_full() && begin.flags & begin_flags::FREERECORDS == 0 {
                return Err(Error::invalid("the stream does not say what is free, so it cannot become a clone"));
            }
            return Ok(Some(origin));
        }
        if what.is_full() {
            return match begin.flags & begin_flags::CLONE {
                0 => Ok(None),
                _ => Err(Error::invalid("the stream is that of a clone, and starts from no snapshot")),
            };
        }
        if begin.flags & begin_flags::CLONE == 0 {
            return Err(Error::not_found(format!("destination '{}' does not exist", what.fs)));
        }
        self.snapshot_near(&what.fs, begin.from_guid).await?.ok_or_else(missing).map(Some)
    }

    /// The snapshot with that guid that is nearest to `name`, a file system or what was one: in it
    /// and below it, then in ever larger parts of the pool (`guid_to_name` of OpenZFS).
    pub async fn snapshot_near(&self, name: &str, guid: Guid) -> Result<Option<Rc<Dataset>>> {
        let (mut part, mut searched) = (name.split('@').next().unwrap_or_default(), None);
        loop {
            if let Ok(dir) = self.find_dir(part) {
                let found = self.snapshot_below(&dir, searched, guid).await?;
                if found.is_some() {
                    return Ok(found);
                }
                searched = Some(dir.object);
            }
            match part.rsplit_once('/') {
                Some((parent, _)) => part = parent,
                None => return Ok(None),
            }
        }
    }

    /// The snapshot with that guid of `top` or of what is below it but for `searched`.
    async fn snapshot_below(
        &self,
        top: &Rc<Dir>,
        searched: Option<ObjectId>,
        guid: Guid,
    ) -> Result<Option<Rc<Dataset>>> {
        let mut left = vec![top.clone()];
        while let Some(dir) = left.pop() {
            if dir.is_hidden() || Some(dir.object) == searched {
                continue;
            }
            if let Some(head) = dir.head() {
                let found = self.snapshots(&head).await?.into_iter().find(|s| Guid(s.phys().guid) == guid);
                if found.is_some() {
                    return Ok(found);
                }
            }
            left.extend(dir.children().into_iter().rev());
        }
        Ok(None)
    }

    /// Finds the dataset that received the first part of a stream.
    async fn resume_receive(self: &Rc<Self>, what: Rc<Wanted>, os_type: ObjsetType) -> Result<Receiving> {
        let begin = what.begin();
        let unlike = |why: &str| Error::invalid(format!("'{}' cannot be resumed by this stream: {why}", what.fs));
        let head = self.find(&what.fs)?;
        let ds = self.receiver_of(&head);
        let target = (ds.object != head.object).then_some(head);
        let Some(saved) = self.saved(&ds).await? else {
            if what.is_full() && target.is_none() && !what.opts.force {
                let text =
                    format!("Resuming recv on existing destination '{}'\nmust specify -F to overwrite it", what.fs);
                return Err(exists(text));
            }
            return Err(unlike("no receive into it was interrupted"));
        };
        if ds.is_used() {
            return Err(Error::new(ErrorKind::Busy, format!("'{}' is being received into", what.fs)));
        }
        if saved.to_guid != begin.to_guid || saved.from_guid.unwrap_or_default() != begin.from_guid {
            return Err(unlike("another snapshot was received"));
        }
        let at = |name: &str| what.head.list.u64(name);
        let progress = Progress { object: saved.object, offset: saved.offset, bytes: saved.bytes };
        if at("resume_object") != Some(progress.object.0) || at("resume_offset") != Some(progress.offset) {
            return Err(unlike("it does not begin where the receive stopped"));
        }
        if self.has_snapshots(&ds).await? {
            return Err(unlike("it has snapshots"));
        }
        let same = match (&what.redaction, ds.redaction()) {
            (None, None) => true,
            (Some(now), Some(before)) => same_snaps(now, &before),
            _ => false,
        };
        if !same {
            return Err(unlike("it is redacted in another way"));
        }
        let ds_use = Use::of(&ds);
        let os = match &what.keys {
            Some(keys) => {
                self.check_received_crypt(&ds.dir(), keys)?;
                self.raw_objset(&ds, keys).await?
            }
            None => ds.objset().await?,
        };
        if os.os_type() != os_type {
            return Err(unlike("it is of another type"));
        }
        let begun = Begun { ds: ds_use, target };
        Ok(Receiving::new(self.clone(), what.clone(), begun, progress))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_say_what_they_need() {
        let begin = |objset_type, features| {
            let begin = Begin { version_info: Begin::SUBSTREAM, objset_type, flags: 0xc, ..Begin::default() };
            begin.with_features(features)
        };
        let all = |_| true;
        let kind = |begin: &Begin| check_stream(begin, all).unwrap_err().kind();
        assert_eq!(check_stream(&begin(2, features::SA_SPILL), |_| false).unwrap(), ObjsetType::Zfs);
        assert_eq!(check_stream(&begin(3, 0), all).unwrap(), ObjsetType::Zvol);
        assert_eq!(kind(&begin(1, 0)), ErrorKind::Invalid);
        assert_eq!(kind(&Begin { version_info: Begin::PACKAGE, ..begin(2, 0) }), ErrorKind::Invalid);
        for unknown in [features::DEDUP, 1 << 3, 1 << 55] {
            assert_eq!(kind(&begin(2, unknown)), ErrorKind::Unsupported, "{unknown:x}");
        }
        for (feature, id) in NEEDS {
            let without = check_stream(&begin(2, feature), |enabled| enabled != id).unwrap_err();
            assert!(without.kind() == ErrorKind::Unsupported && without.to_string().contains(id.get().name));
            assert!(check_stream(&begin(2, feature), all).is_ok(), "{id}");
        }
        assert_eq!(kind(&begin(2, features::RAW | features::EMBED_DATA)), ErrorKind::Invalid);
        assert_eq!(kind(&begin(2, features::RAW | features::REDACTED)), ErrorKind::Invalid);
        assert_eq!(kind(&Begin { flags: 4, ..begin(2, features::RAW) }), ErrorKind::Invalid);
    }

    fn head(features: u64, to_guid: u64, lists: &[(&str, &[u64])]) -> Head {
        let begin = Begin { version_info: Begin::SUBSTREAM, to_guid: Guid(to_guid), ..Begin::default() };
        let mut list = ondisk::nvlist::NvList::new();
        for (name, guids) in lists {
            list.put_u64s(name, guids.to_vec());
        }
        Head { begin: begin.with_features(features), list }
    }

    #[test]
    fn redacted_streams_say_by_what() {
        let flag = features::REDACTED;
        let by = |features, lists: &[(&str, &[u64])]| check_redaction(&head(features, 1, lists), |_| true);
        assert_eq!(by(0, &[]).unwrap(), None);
        assert_eq!(by(flag, &[("redact_snaps", &[7, 8])]).unwrap(), Some(vec![7, 8]));
        // Sent on by OpenZFS.
        assert_eq!(by(0, &[("redact_snaps", &[7])]).unwrap(), Some(vec![7]));
        assert_eq!(by(flag, &[]).unwrap_err().kind(), ErrorKind::Invalid);
        assert_eq!(by(flag, &[("redact_snaps", &[])]).unwrap_err().kind(), ErrorKind::Invalid);
        assert_eq!(by(flag, &[("redact_snaps", &[1; SNAPS_MAX + 1])]).unwrap_err().kind(), ErrorKind::Invalid);
        let without = check_redaction(&head(0, 1, &[("redact_snaps", &[7])]), |_| false);
        assert_eq!(without.unwrap_err().kind(), ErrorKind::Unsupported);
    }

    #[test]
    fn what_a_redacted_snapshot_lacks_must_come() {
        let has = [7, 8];
        let fits = |to: u64, redaction: Option<&[u64]>, lists: &[(&str, &[u64])]| {
            fits_redacted(&has, &head(0, to, lists), redaction)
        };
        // One of the redaction snapshots itself has all of it.
        assert!(fits(7, None, &[]) && fits(8, None, &[]) && !fits(9, None, &[]));
        // Redacted by some of the same, more is missing.
        assert!(fits(9, Some(&[8]), &[]) && fits(9, Some(&[8, 7]), &[]) && !fits(9, Some(&[8, 9]), &[]));
        // From a redaction bookmark, or a redacted snapshot, by some of the same, it comes.
        assert!(
            fits(9, None, &[("redact_from_snaps", &[7])]) && fits(9, Some(&[1]), &[("redact_from_snaps", &[7, 8])])
        );
        assert!(!fits(7, None, &[("redact_from_snaps", &[9])]));
    }
}
