//! `zfs allow` and `zfs unallow`: permissions of users on datasets, on the pool's engine thread.

use base::{Error, ErrorKind, Result};
use dsl::deleg::GrantChange;

use crate::engine::PoolEngine;
use crate::request::{AllowedView, Grant};

/// Where errors come from.
fn place(name: &str, e: Error) -> Error {
    let advice = if e.kind() == ErrorKind::Invalid { ": 'zfs help allow' lists them" } else { "" };
    Error::new(e.kind(), format!("cannot set permissions on '{name}': {e}{advice}"))
}

impl PoolEngine {
    /// `zfs allow DATASET`: what is granted at a dataset and at those above it.
    pub(crate) async fn allowed(&self, name: &str) -> Result<Vec<AllowedView>> {
        let ds = self.find(name)?;
        let mut out = Vec::new();
        let mut at = Some(ds.dir());
        while let Some(dir) = at {
            let grants = self.pool.dsl().grants(&dir).await?;
            if !grants.is_empty() {
                let grants = grants.into_iter().map(|(who, perms)| (who, perms.into_iter().collect())).collect();
                out.push(AllowedView { name: dir.full_name(), grants });
            }
            at = dir.parent();
        }
        Ok(out)
    }

    /// `zfs allow`: grants.
    pub(crate) async fn allow(&self, name: &str, grants: Vec<Grant>) -> Result<()> {
        let _admin = self.admin.acquire(1).await;
        let ds = self.find(name)?;
        let done = self.pool.dsl().grant(&ds.name(), changes(grants)).await;
        done.map_err(|e| place(name, e))
    }

    /// `zfs unallow`: takes away, with `recursive` below as well.
    pub(crate) async fn unallow(&self, name: &str, grants: Vec<Grant>, recursive: bool) -> Result<()> {
        let _admin = self.admin.acquire(1).await;
        let ds = self.find(name)?;
        let done = self.pool.dsl().revoke(&ds.name(), changes(grants), recursive).await;
        done.map_err(|e| place(name, e))
    }
}

fn changes(grants: Vec<Grant>) -> Vec<GrantChange> {
    grants.into_iter().map(|Grant { who, perms }| GrantChange { who, perms }).collect()
}
