//! Counting by owner what is there already: in a file system that was made before its pool counted
//! space, objects or projects, or that was received raw (format pages 08 section 7 and 16 section
//! 7).
//!
//! Vocabulary. The *kinds* are the flags `OBJSET_*_COMPLETE` of what is to be counted and is not
//! yet. An object is *counted* if the sums of these kinds have it.
//!
//! The normal path: [`Objset::begin_count`] has one sync drop what the sums of these kinds have,
//! left by a count that was broken off. Then each transaction of [`Objset::count_some`] touches
//! some objects, in the order of their numbers, and their sync counts them. Objects that are made
//! meanwhile are counted at once. When all touched ones are on disk, [`Objset::end_count`] sets the
//! flags: from then on a dnode's own flags say whether it was counted.
//!
//! What is counted is known in memory only. After a crash, or when the file system is mounted anew,
//! counting begins anew.

use std::collections::BTreeSet;

use base::{ErrorKind, ObjectId, Result, Txg};
use ondisk::objset::{
    ACCOUNTING_FEATURES, OBJSET_PROJECTQUOTA_COMPLETE, OBJSET_USERACCOUNTING_COMPLETE,
    OBJSET_USEROBJACCOUNTING_COMPLETE, ObjsetType,
};
use ondisk::version;

use crate::objset::Objset;
use crate::tx::{Tx, TxPlan};
use crate::zap;

/// Objects that one transaction counts.
const COUNTED_PER_TX: usize = 64;

/// How far counting has come.
pub(crate) struct Counting {
    /// What is counted.
    kinds: u64,
    /// The first txg whose sync counts.
    since: Txg,
    /// All objects below are counted, as of the last sync.
    upto: u64,
    /// The same as of the syncs of the transactions so far, for the next transaction.
    next: u64,
    /// Counted objects above.
    beyond: BTreeSet<u64>,
}

impl Counting {
    /// Whether an object was counted before a sync.
    pub fn was_counted(&self, object: u64) -> bool {
        object < self.upto || self.beyond.contains(&object)
    }

    /// Whether an object that exists after a sync, which counts those below `to`, is counted then.
    /// `fresh`: it did not exist before.
    pub fn is_counted(&mut self, object: u64, to: u64, fresh: bool) -> bool {
        if fresh && object >= to {
            self.beyond.insert(object);
        }
        object < to || self.was_counted(object)
    }

    /// The kinds that a sync counts, whose flags were not `flags` yet.
    fn kinds_in(&self, txg: Txg, flags: u64) -> u64 {
        if txg < self.since { 0 } else { self.kinds & !flags }
    }
}

impl Objset {
    /// The kinds that could be counted in this pool and are not: flags `OBJSET_*_COMPLETE`.
    pub fn uncounted(&self) -> u64 {
        let features = self.ctx().features();
        if self.os_type() != ObjsetType::Zfs
            || features.pool_version < version::USERSPACE
            || !self.is_writable()
            || self.is_sealed()
        {
            return 0;
        }
        let objects = if features.userobj_accounting { OBJSET_USEROBJACCOUNTING_COMPLETE } else { 0 };
        let projects = if features.project_quota { OBJSET_PROJECTQUOTA_COMPLETE } else { 0 };
        (OBJSET_USERACCOUNTING_COMPLETE | objects | projects) & !self.flags()
    }

    /// Counts all objects by their owners, as far as the pool can and they are not counted yet;
    /// one task at a time. `pass` keeps the file system open for each transaction, and ends the
    /// work with its error.
    pub async fn count_owners<P>(&self, mut pass: impl AsyncFnMut() -> Result<P>) -> Result<()> {
        if self.uncounted() == 0 {
            return Ok(());
        }
        {
            let _pass = pass().await?;
            self.begin_count().await?;
        }
        let last = loop {
            let _pass = pass().await?;
            if let Some(txg) = self.count_some().await? {
                break txg;
            }
        };
        self.ctx().txg().wait_synced(last).await?;
        let _pass = pass().await?;
        self.end_count().await
    }

    async fn begin_count(&self) -> Result<()> {
        let kinds = self.uncounted();
        let tx = TxPlan::new(self).net_free().assign().await?;
        self.0.change_header(tx.txg(), |h| h.recount = kinds);
        let counting = Counting { kinds, since: tx.txg(), upto: 0, next: 0, beyond: BTreeSet::new() };
        *self.0.counting.borrow_mut() = Some(counting);
        Ok(())
    }

    /// Counts the next objects; the txg of the last ones if there are no more.
    async fn count_some(&self) -> Result<Option<Txg>> {
        let from = self.0.counting.borrow().as_ref().map_or(0, |c| c.next);
        let (mut found, mut next) = (Vec::new(), from);
        while found.len() < COUNTED_PER_TX
            && let Some(object) = self.objects(ObjectId(next)).await?
        {
            next = object.0 + 1;
            match self.hold(object).await {
                Ok(dn) => found.push(dn),
                Err(e) if e.kind() == ErrorKind::NotFound => {}
                Err(e) => return Err(e),
            }
        }
        let plan = found.iter().fold(TxPlan::new(self).net_free(), |plan, dn| plan.bonus(dn));
        let tx = plan.assign().await?;
        if found.is_empty() {
            return Ok(Some(tx.txg()));
        }
        for dn in &found {
            // One that was freed meanwhile need not be counted, but another object may have its
            // number by now, which the transaction did not wait for: then once more.
            if dn.exists() {
                dn.touch(&tx)?;
            } else if self.hold(dn.object()).await.is_ok() {
                return Ok(None);
            }
        }
        self.0.change_header(tx.txg(), |h| h.counted_upto = Some(next));
        if let Some(c) = self.0.counting.borrow_mut().as_mut() {
            c.next = next;
        }
        Ok(None)
    }

    /// All is counted and on disk.
    async fn end_count(&self) -> Result<()> {
        let kinds = self.0.counting.borrow().as_ref().map_or(0, |c| c.kinds);
        let tx = TxPlan::new(self).net_free().assign().await?;
        self.set_flags(self.flags() | kinds, &tx);
        for (kind, feature) in ACCOUNTING_FEATURES {
            if kinds & kind != 0 {
                self.need_feature(feature.get().guid, tx.txg());
            }
        }
        let txg = tx.txg();
        drop(tx);
        self.ctx().txg().wait_synced(txg).await
    }

    /// The kinds that the sync of a txg counts, beside those of `flags`, and the number below which
    /// all objects are counted after it.
    pub(crate) fn counting_in(&self, txg: Txg, flags: u64, upto: Option<u64>) -> (u64, u64) {
        let counting = self.0.counting.borrow();
        counting.as_ref().map_or((0, 0), |c| (c.kinds_in(txg, flags), upto.unwrap_or(0).max(c.upto)))
    }

    /// The sync of a txg has counted all objects below `upto`; counting ends with the flags.
    pub(crate) fn note_counted(&self, upto: u64, flags: u64) {
        let mut counting = self.0.counting.borrow_mut();
        if let Some(c) = counting.as_mut() {
            c.upto = upto;
            c.beyond = c.beyond.split_off(&upto);
        }
        if counting.as_ref().is_some_and(|c| c.kinds & !flags == 0) {
            *counting = None;
        }
    }

    /// Drops the sums of these kinds (syncing context).
    pub(crate) async fn drop_sums(&self, kinds: u64, txg: Txg) -> Result<()> {
        let tx = Tx::syncing(txg);
        for object in [ObjectId::USERUSED, ObjectId::GROUPUSED, ObjectId::PROJECTUSED] {
            let Some(dn) = self.accounting(object) else { continue };
            for entry in zap::list(&dn).await? {
                let kind = match entry.name.starts_with(b"obj-") {
                    _ if object == ObjectId::PROJECTUSED && kinds & OBJSET_PROJECTQUOTA_COMPLETE != 0 => kinds,
                    true => OBJSET_USEROBJACCOUNTING_COMPLETE,
                    false => OBJSET_USERACCOUNTING_COMPLETE,
                };
                if kinds & kind != 0 {
                    zap::remove(&dn, &entry.name, &tx).await?;
                }
            }
        }
        Ok(())
    }
}
