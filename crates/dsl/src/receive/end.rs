//! The end of a receive: what was received becomes the content of its file system, and a snapshot
//! with the guid and the time of the sender (format page 25 section 6).
//!
//! A target that exists changes places with the hidden dataset that received ([`DslPool::swap`]):
//! the head gets its blocks and its deadlist, and the hidden one, which then holds what the head
//! had changed, is destroyed.

use std::collections::BTreeSet;
use std::rc::Rc;

use base::{Error, ErrorKind, Guid, ObjectId, Result};
use dmu::{FeatureUse, Tx, zap};
use ondisk::dsl::{DS_FLAG_CI_DATASET, DS_FLAG_INCONSISTENT};
use ondisk::feature::FeatureId;
use rt::LocalBoxFuture;

use super::begin::Wanted;
use crate::core::Space;
use crate::dataset::Dataset;
use crate::dir::Used;
use crate::pool::DslPool;
use crate::snap::destroy::check_no_clone_source;
use crate::snap::snapshot::DATASET_KEY_IVSET;
use crate::space::SpaceCheck;

/// Bytes of the largest transaction (`DMU_MAX_ACCESS` of OpenZFS). A received snapshot may exceed
/// the refquota of its file system by the worst that one takes, since the source may have exceeded
/// its own by that ([`crate::core::Core::asize_inflation`]).
const ACCESS_MAX: u64 = 64 << 20;

impl DslPool {
    /// Makes the snapshot of a new file system (syncing context).
    pub(super) async fn end_new(&self, what: &Wanted, ds: &Rc<Dataset>, tx: &Tx) -> Result<Rc<Dataset>> {
        self.check_settled(ds, tx)?;
        self.check_space(SpaceCheck::Normal, 10)?;
        let done = self.make_received(what, ds, tx).await;
        self.fail_txg_on_error(done)
    }

    /// Replaces the content of `target` by that of `ds`, and makes the snapshot (syncing context).
    pub(super) async fn end_over(
        self: &Rc<Self>,
        what: &Wanted,
        ds: &Rc<Dataset>,
        target: &Rc<Dataset>,
        tx: &Tx,
    ) -> Result<Rc<Dataset>> {
        let name = target.name();
        self.check_settled(ds, tx)?;
        self.check_idle(target, tx)?;
        let based_on = ObjectId(ds.phys().prev_snap_obj);
        let from = match based_on == self.origin_snap() {
            true => None,
            false => Some(self.hold_dataset(based_on).await?),
        };
        let newer = self.newer_snapshots(target, based_on).await?;
        if !what.opts.force {
            let changed = match &from {
                Some(from) => self.is_modified(target, from).await?,
                None => true,
            };
            if changed || !newer.is_empty() {
                let text = format!("destination {name} has been modified\nsince most recent snapshot");
                return Err(Error::new(ErrorKind::Busy, text));
            }
        }
        for snap in &newer {
            self.check_destroy_snapshot(snap, tx).await?;
        }
        let same = self.snapshot_of(target, &what.snap).await?;
        if same.is_some_and(|s| newer.iter().all(|n| n.object != s.object)) {
            return Err(Error::new(ErrorKind::Exists, format!("destination '{name}@{}' exists", what.snap)));
        }
        if !target.phys().bp.is_hole() && !target.zil_header().await?.log.is_hole() {
            return Err(Error::unsupported(format!("dataset '{name}' has an intent log that was not replayed")));
        }
        self.check_room(target, ds)?;
        check_no_clone_source(&newer)?;
        newer.iter().for_each(|s| s.set_gone());
        let done = async {
            for snap in &newer {
                self.remove_snapshot(snap, tx).await?;
            }
            self.swap(ds, target, from.as_ref(), tx).await?;
            let snap = self.make_received(what, target, tx).await?;
            self.remove_head(ds, tx).await?;
            Ok(snap)
        };
        self.fail_txg_on_error(done.await)
    }

    /// All that was applied is on disk, or in the txg that syncs.
    fn check_settled(&self, ds: &Dataset, tx: &Tx) -> Result<()> {
        let txg = tx.txg();
        let dirty = |os: dmu::Objset| (0..3).any(|n| os.is_dirty(base::Txg(txg.0 + n)));
        if ds.phys().bp.birth() >= txg || ds.opened().is_some_and(dirty) {
            return Err(ErrorKind::Restart.into());
        }
        Ok(())
    }

    /// Checks that quotas and reservations of `target` have room for what `ds` refers to.
    fn check_room(&self, target: &Dataset, ds: &Dataset) -> Result<()> {
        let (name, phys) = (target.name(), ds.phys());
        let quota = target.refquota();
        let slack = ACCESS_MAX.saturating_mul(self.core().asize_inflation.get());
        if quota != 0 && phys.referenced_bytes > quota.saturating_add(slack) {
            return Err(Error::new(ErrorKind::Quota, format!("destination {name} space quota exceeded.")));
        }
        // What becomes the snapshot's no longer uses the refreservation.
        let needed = target.refreservation().min(phys.unique_bytes);
        if needed > target.dir().available() {
            let text = format!("out of space: there is no room to keep the refreservation of '{name}'");
            return Err(Error::new(ErrorKind::NoSpace, text));
        }
        self.check_space(SpaceCheck::Reserved, 10)
    }

    /// The snapshots of a head after `base`, newest first.
    async fn newer_snapshots(&self, head: &Rc<Dataset>, base: ObjectId) -> Result<Vec<Rc<Dataset>>> {
        let mut out: Vec<Rc<Dataset>> = Vec::new();
        let mut at = ObjectId(head.phys().prev_snap_obj);
        let mut seen = BTreeSet::new();
        while at != base {
            if at.0 == 0 || at == self.origin_snap() || !seen.insert(at) {
                let text = format!("most recent snapshot of {} does not\nmatch incremental source", head.name());
                return Err(Error::not_found(text));
            }
            let snap = self.hold_dataset(at).await?;
            at = ObjectId(snap.phys().prev_snap_obj);
            out.push(snap);
        }
        Ok(out)
    }

    /// Exchanges the contents of the hidden clone and of the head (`dsl_dataset_clone_swap`). Both
    /// are based on `from`, or on nothing.
    async fn swap(&self, clone: &Rc<Dataset>, head: &Rc<Dataset>, from: Option<&Rc<Dataset>>, tx: &Tx) -> Result<()> {
        let (dir, c, h) = (head.dir(), clone.phys(), head.phys());
        let text = format!("parent={}", dir.name());
        self.core().log_internal_ds("clone swap", (head.name(), head.object), text, tx);
        for ds in [head, clone] {
            self.drop_livelist(&ds.dir(), tx).await?;
            self.load_marks(ds).await?;
            self.drop_remaps(ds, tx).await?;
        }
        let (mut of_clone, of_head) = (clone.take_deadlist().await?, head.take_deadlist().await?);
        if let Some(from) = from {
            let own = of_clone.space_range(self, from.phys().prev_snap_txg, u64::MAX).await?;
            from.change(|p| p.unique_bytes = own.used.max(0) as u64);
        }
        let mut own = Space::referenced(&c);
        own.add(of_clone.space().await?);
        own.add(Space::referenced(&h).negated());
        own.add(of_head.space().await?.negated());
        dir.did_use(Used::Head, own);
        clone.dir().did_use(Used::Head, own.negated());
        let held = of_clone.space_range(self, dir.origin_txg(), u64::MAX).await?.used
            - of_head.space_range(self, dir.origin_txg(), u64::MAX).await?.used;
        dir.transfer(held, Used::Head, Used::Snap);
        for (ds, other) in [(head, &c), (clone, &h)] {
            ds.set_objset(None);
            ds.change(|p| {
                p.bp = other.bp;
                p.referenced_bytes = other.referenced_bytes;
                p.compressed_bytes = other.compressed_bytes;
                p.uncompressed_bytes = other.uncompressed_bytes;
                p.deadlist_obj = other.deadlist_obj;
            });
            ds.set_unique(other.unique_bytes);
        }
        let case = c.flags & DS_FLAG_CI_DATASET;
        head.change(|p| p.flags = p.flags & !DS_FLAG_CI_DATASET | case);
        for guid in clone.load_features().await?.into_keys() {
            // How it is redacted is part of the content, and is exchanged below.
            if let Some(id) = FeatureId::by_guid(&guid).filter(|id| *id != FeatureId::RedactedDatasets) {
                head.account().activate(id.get().guid, tx.txg());
            }
        }
        head.load_features().await?;
        self.activate_features(head, tx).await?;
        self.set_redaction(head, clone.redaction().as_deref(), tx).await?;
        // Those of bookmarks after the snapshot: nothing on the list is younger than that.
        let keys: Vec<u64> = of_head.keys().collect();
        for key in keys {
            of_clone.add_key(self, key, tx).await?;
        }
        self.recount_marks(head, &of_clone, from.map_or(0, |f| f.phys().creation_txg), tx).await?;
        head.put_deadlist(of_clone);
        clone.put_deadlist(of_head);
        Ok(())
    }

    /// Makes the snapshot of a head with all that was received, and shows the head (syncing
    /// context).
    async fn make_received(&self, what: &Wanted, head: &Rc<Dataset>, tx: &Tx) -> Result<Rc<Dataset>> {
        let begin = &what.head.begin;
        head.change(|p| p.flags &= !DS_FLAG_INCONSISTENT);
        let snap = self.make_snapshot(head, &what.snap, &[], tx).await?;
        snap.change(|p| {
            p.guid = begin.to_guid.0;
            p.creation_time = begin.creation_time;
        });
        if let Some(keys) = &what.keys {
            // Without one the snapshot keeps that which it was made with.
            if let Some(Guid(ivset)) = keys.to_ivset {
                zap::update_u64(&self.mos().hold(snap.object).await?, DATASET_KEY_IVSET, ivset, tx).await?;
            }
            self.take_received_crypt(&head.dir(), keys, tx).await?;
            // Written without its key, it is opened with it from now on.
            head.set_objset(None);
        }
        self.drop_saved(head, tx).await?;
        let text = format!("snap={}", what.snap);
        self.core().log_internal_ds("finish receiving", (head.name(), head.object), text, tx);
        Ok(snap)
    }

    /// Destroys a hidden dataset with what it received.
    pub(super) async fn destroy_received(self: &Rc<Self>, ds: &Rc<Dataset>) -> Result<()> {
        let ds = ds.clone();
        self.sync_task_again(move |pool, tx| -> LocalBoxFuture<'static, Result<()>> {
            let ds = ds.clone();
            Box::pin(async move {
                if ds.is_gone() {
                    return Ok(());
                }
                pool.check_idle(&ds, &tx)?;
                if !ds.dir().children().is_empty() || pool.has_snapshots(&ds).await? {
                    let text = format!("dataset '{}' has children or snapshots: destroy them first", ds.name());
                    return Err(Error::new(ErrorKind::NotEmpty, text));
                }
                pool.check_space(SpaceCheck::ExtraReserved, 0)?;
                let removed = pool.remove_head(&ds, &tx).await;
                pool.fail_txg_on_error(removed)
            })
        })
        .await
    }
}
