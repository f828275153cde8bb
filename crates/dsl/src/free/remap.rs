//! Remap deadlists of OpenZFS: ranges of removed vdevs that a snapshot still needs (format page 14
//! section 5).
//!
//! OpenZFS may rewrite a pointer to a removed vdev with its new location; while a snapshot has the
//! old pointer, the old range is in the *remap deadlist* of the dataset, which works like a
//! deadlist. Weir never rewrites such pointers, but maintains these lists: they follow the chain of
//! snapshots, and ranges that no snapshot needs any more move to the pool's list of obsolete
//! ranges.

use base::{ObjectId, Result};
use dmu::bpobj::{self, Bpobj};
use dmu::{Tx, zap};
use ondisk::feature::FeatureId;
use ondisk::object_type::ObjectType;

use crate::dataset::Dataset;
use crate::free::deadlist::Deadlist;
use crate::pool::DslPool;

/// Key of a dataset: its remap deadlist.
const REMAP_KEY: &[u8] = b"com.delphix:remap_deadlist";
/// Entry of the MOS directory: obsolete ranges of removed vdevs that are not in an obsolete map
/// yet.
const OBSOLETE_LIST: &[u8] = b"com.delphix:obsolete_bpobj";

impl DslPool {
    async fn remap_list(&self, ds: ObjectId) -> Result<Option<ObjectId>> {
        // Only pools with removed vdevs have them; others skip the lookup.
        if !self.features().is_active(FeatureId::ObsoleteCounts) {
            return Ok(None);
        }
        let dn = self.mos().hold(ds).await?;
        if dn.otype() != ObjectType::OTN_ZAP_METADATA {
            return Ok(None);
        }
        Ok(zap::lookup_u64(&dn, REMAP_KEY).await?.map(ObjectId))
    }

    /// Moves the head's list to its new snapshot.
    pub(crate) async fn remap_to_snapshot(&self, head: &Dataset, snap: ObjectId, tx: &Tx) -> Result<()> {
        let Some(list) = self.remap_list(head.object).await? else { return Ok(()) };
        zap::remove(&self.mos().hold(head.object).await?, REMAP_KEY, tx).await?;
        zap::add_u64(&self.zapify(snap, tx).await?, REMAP_KEY, list.0, tx).await
    }

    /// Snapshot `snap`, the one before `next`, is destroyed: ranges that only it needed become
    /// obsolete, the rest moves to `next`. `before`: the txg of the snapshot before it.
    pub(crate) async fn remap_snapshot_destroyed(
        &self,
        snap: &Dataset,
        next: &Dataset,
        before: u64,
        tx: &Tx,
    ) -> Result<()> {
        if let Some(object) = self.remap_list(next.object).await? {
            let mut list = Deadlist::open(self.mos(), object).await?;
            list.move_to(self, &self.obsolete_list(tx).await?, before, tx).await?;
        }
        let Some(own) = self.remap_list(snap.object).await? else { return Ok(()) };
        let own = Deadlist::open(self.mos(), own).await?;
        let mut list = match self.remap_list(next.object).await? {
            Some(object) => Deadlist::open(self.mos(), object).await?,
            None => {
                let theirs = next.take_deadlist().await?;
                let keys: Vec<u64> = theirs.keys().collect();
                next.put_deadlist(theirs);
                let list = Deadlist::create(self, keys, tx).await?;
                zap::add_u64(&self.zapify(next.object, tx).await?, REMAP_KEY, list.object.0, tx).await?;
                self.features().add(FeatureId::ObsoleteCounts, 1, tx).await?;
                list
            }
        };
        list.merge(self, own, tx).await?;
        zap::remove(&self.mos().hold(snap.object).await?, REMAP_KEY, tx).await?;
        self.features().add(FeatureId::ObsoleteCounts, -1, tx).await
    }

    /// Drops the list of a head that is destroyed or rolled back.
    pub(crate) async fn drop_remaps(&self, head: &Dataset, tx: &Tx) -> Result<()> {
        let Some(list) = self.remap_list(head.object).await? else { return Ok(()) };
        Deadlist::open(self.mos(), list).await?.free(self, tx).await?;
        zap::remove(&self.mos().hold(head.object).await?, REMAP_KEY, tx).await?;
        self.features().add(FeatureId::ObsoleteCounts, -1, tx).await
    }

    /// Removes the key of a destroyed snapshot from the list of a later dataset.
    pub(crate) async fn remap_remove_key(&self, ds: &Dataset, key: u64, tx: &Tx) -> Result<()> {
        let Some(list) = self.remap_list(ds.object).await? else { return Ok(()) };
        Deadlist::open(self.mos(), list).await?.remove_key(self, key, tx).await
    }

    async fn obsolete_list(&self, tx: &Tx) -> Result<Bpobj> {
        let object = match zap::lookup_u64(self.directory(), OBSOLETE_LIST).await? {
            Some(object) => ObjectId(object),
            None => {
                let object = bpobj::create(self.mos(), ondisk::bpobj::BPOBJ_BLKSZ, tx).await?;
                zap::add_u64(self.directory(), OBSOLETE_LIST, object.0, tx).await?;
                self.features().add(FeatureId::ObsoleteCounts, 1, tx).await?;
                object
            }
        };
        Bpobj::open(self.mos(), object).await
    }
}
