//! What older releases wrote of encrypted datasets, and what is wrong with it (OpenZFS's errata 3
//! and 4, <https://openzfs.github.io/openzfs-docs/msg/ZFS-8000-ER>).

use std::rc::Rc;

use base::{ObjectId, Result};
use ondisk::feature::FeatureId;

use crate::dir::Dir;
use crate::pool::DslPool;

/// An incompatibility of what is on disk, by OpenZFS's number.
#[repr(u8)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Errata {
    /// Keys of version 0, whose MACs cover what differs by pool: their datasets are read only, and
    /// are not sent raw.
    OldKeys = 3,
    /// Snapshots without the guid of their set of IVs, so that raw increments from another one
    /// cannot be told.
    NoIvSets = 4,
}

impl Dir {
    /// Whether its datasets are encrypted with keys of version 0, so that they are read only
    /// ([`Errata::OldKeys`]).
    pub fn has_old_keys(&self) -> bool {
        self.crypt().is_some_and(|key| key.wrapped.borrow().version == 0)
    }
}

impl DslPool {
    /// Which of the errata the pool has, if any. As OpenZFS when it imports a pool, it looks at the
    /// newest snapshot of each dataset: younger ones than one with a guid have one too. What has
    /// none is looked for once, since what is made here has one.
    pub async fn errata(&self) -> Result<Option<Errata>> {
        if !self.features().is_active(FeatureId::Encryption) {
            return Ok(None);
        }
        let encrypted: Vec<Rc<Dir>> = self.root().subtree().into_iter().filter(|dir| dir.is_encrypted()).collect();
        if encrypted.iter().any(|dir| dir.has_old_keys()) {
            return Ok(Some(Errata::OldKeys));
        }
        let known = self.keys().without_ivsets.take();
        let mut without = Vec::new();
        for dir in &encrypted {
            if known.as_ref().is_none_or(|known| known.contains(&dir.object)) && self.lacks_ivset(dir).await? {
                without.push(dir.object);
            }
        }
        let errata = (!without.is_empty()).then_some(Errata::NoIvSets);
        self.keys().without_ivsets.replace(Some(without));
        Ok(errata)
    }

    /// Whether the newest snapshot of a directory's dataset has no guid of its set of IVs.
    async fn lacks_ivset(&self, dir: &Dir) -> Result<bool> {
        let newest = dir.head().map_or(ObjectId(0), |head| ObjectId(head.phys().prev_snap_obj));
        if newest.0 == 0 {
            return Ok(false);
        }
        // The origin of a clone is the snapshot of another directory.
        let is_own = self.hold_dataset(newest).await?.dir().object == dir.object;
        Ok(is_own && self.ivset_guid(newest).await?.is_none())
    }
}
