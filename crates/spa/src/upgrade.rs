//! `zpool upgrade` of a pool from before feature flags: one txg in which the pool gets a newer
//! version, with all that such pools have ([`DslPool::upgrade`]). Its labels, its configuration
//! and its uberblock have that version together.

use std::rc::Rc;

use base::{Error, Result};
use dmu::Tx;
use dsl::DslPool;
use ondisk::label::version_supported;
use ondisk::version;
use rt::LocalBoxFuture;
use vdev::VdevKind;

use crate::pool::Pool;

impl Pool {
    /// Its version: 1 to 28, or 5000 with feature flags.
    pub fn version(&self) -> u64 {
        self.config.version()
    }

    /// Gives the pool a newer version; the features that come with 5000 are disabled. An error if
    /// it has a newer one.
    pub async fn upgrade(&self, to: u64) -> Result<()> {
        self.config.check_writable()?;
        if !version_supported(to) || to < self.version() {
            let why = format!("a pool of version {} cannot get version {to}", self.version());
            return Err(Error::invalid(why));
        }
        if to == self.version() {
            return Ok(());
        }
        let (stack, config) = (self.stack.clone(), self.config.clone());
        let task = move |dsl: Rc<DslPool>, tx: Rc<Tx>| -> LocalBoxFuture<'static, Result<()>> {
            Box::pin(async move {
                if to <= config.version() {
                    return Ok(());
                }
                // A RAID-Z would be charged in two ways.
                let mixed = stack.tree.tops.borrow().iter().any(|top| matches!(top.kind(), VdevKind::Raidz(_)));
                dsl.upgrade(to, !mixed, &tx).await?;
                if to >= version::DEFLATE && !mixed {
                    stack.tree.set_undeflated(false);
                }
                config.update(|c| c.version = to);
                dsl.core().log_internal("set", format!("version={to}"), tx.txg());
                Ok(())
            })
        };
        self.dsl().sync_task(task).await
    }
}
