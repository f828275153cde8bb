//! The version of a pool when properties are set: what it is too old for, and a newer one.

use base::{Error, Result};
use ondisk::version;

use crate::engine::PoolEngine;
use crate::pool::props::Wanted;

impl PoolEngine {
    /// Gives the pool the version that is wanted. Fails before that if it is older than the pool's,
    /// or if pools of it cannot have the other properties.
    pub(super) async fn upgrade_for(&self, wanted: &Wanted) -> Result<()> {
        let old = self.pool.version();
        let new = wanted.version.unwrap_or(old);
        if new < old {
            return Err(Error::unsupported(format!("property 'version' number {new} is invalid")));
        }
        if new < version::FEATURES && wanted.features.iter().any(|f| f.1) {
            return Err(Error::unsupported("the pool is older than feature flags: upgrade it first"));
        }
        if new < version::BOOTFS && wanted.bootfs.is_some() {
            return Err(Error::unsupported("pool must be upgraded to support 'bootfs' property"));
        }
        if new > old { self.pool.upgrade(new).await } else { Ok(()) }
    }
}
