//! Livelists of clones, which weir does not keep (format page 15 section 3).
//!
//! A clone made by OpenZFS may list its own blocks, so that it can be destroyed without a walk. A
//! list that misses a change would free the wrong blocks later, so it is removed before the first
//! change of its clone; the clone is then destroyed like any other file system. Lists of clones
//! that are destroyed already are not changed.

use std::rc::Rc;

use base::{ObjectId, Result};
use dmu::{Tx, zap};
use ondisk::feature::FeatureId;

use crate::dir::Dir;
use crate::free::deadlist::Deadlist;
use crate::pool::DslPool;

/// Key of a directory's livelist.
pub(crate) const LIVELIST_KEY: &[u8] = b"com.delphix:livelist";

impl DslPool {
    /// Removes the livelist of a clone, but does not free the blocks in it (syncing context).
    pub(crate) async fn drop_livelist(&self, dir: &Rc<Dir>, tx: &Tx) -> Result<()> {
        let Some(object) = dir.take_livelist() else { return Ok(()) };
        Deadlist::open(self.mos(), ObjectId(object)).await?.free(self, tx).await?;
        zap::remove(&self.mos().hold(dir.object).await?, LIVELIST_KEY, tx).await?;
        self.features().add(FeatureId::Livelist, -1, tx).await
    }
}
