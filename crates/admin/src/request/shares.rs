//! Requests about shares.

use base::{Error, Result};
use serde::{Deserialize, Serialize};

use super::{Changes, Cx, Identity, Kind, Need, Request, Rights};
use crate::fs::shares::Protocol;
use crate::pool_set::join_errors;

/// The requests of this file.
pub(super) const KINDS: &[Kind] = &[Kind::of::<Share>(), Kind::of::<Unshare>()];

/// Which protocols an optional one means.
fn these(one: Option<Protocol>) -> Vec<Protocol> {
    one.map_or_else(|| Protocol::ALL.to_vec(), |p| vec![p])
}

/// `zfs share`: share one file system, mounting it if it is not, or all that are to be shared.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Share {
    /// Its name; none for all.
    pub name: Option<String>,
    /// Of all, only by this protocol.
    pub protocol: Option<Protocol>,
}

impl Request for Share {
    const NAME: &'static str = "Share";
    const TITLE: &'static str = "zfs share";
    const RIGHTS: Rights = Rights::Delegable;
    type Reply = ();
    fn changes(&self) -> Changes {
        Changes::Unrecorded
    }
    fn needs(&self, _who: &Identity) -> Vec<Need> {
        match &self.name {
            Some(name) => vec![Need::on(name, &["share"]), Need::Mounted(name.clone())],
            None => vec![Need::Owner],
        }
    }
    fn run(self, cx: &Cx<'_>) -> Result<()> {
        if let Some(name) = self.name {
            let running = cx.pools.pool_of(&name)?;
            return cx.on(&running, move |e| async move { e.fs_share(&name).await });
        }
        let protocols = these(self.protocol);
        on_all(cx, &protocols, true)
    }
}

/// `zfs unshare`: end the shares of a file system, by name or mount point, or all.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Unshare {
    /// Name or absolute path; none for all.
    pub target: Option<String>,
    /// Of all, only those by this protocol.
    pub protocol: Option<Protocol>,
}

impl Request for Unshare {
    const NAME: &'static str = "Unshare";
    const TITLE: &'static str = "zfs unshare";
    const RIGHTS: Rights = Rights::Delegable;
    type Reply = ();
    fn changes(&self) -> Changes {
        Changes::Unrecorded
    }
    fn needs(&self, _who: &Identity) -> Vec<Need> {
        match &self.target {
            Some(name) => vec![Need::on(name, &["share"])],
            None => vec![Need::Owner],
        }
    }
    fn run(self, cx: &Cx<'_>) -> Result<()> {
        let Some(target) = self.target else {
            let protocols = these(self.protocol);
            return on_all(cx, &protocols, false);
        };
        let running = cx.pools.pool_of(&target)?;
        cx.on(&running, move |e| async move {
            if target.starts_with('/') && !e.mounts.list().iter().any(|(_, p)| *p == std::path::Path::new(&target)) {
                return Err(Error::not_found(format!("cannot unshare '{target}': not a mountpoint")));
            }
            e.fs_unshare(&target).await
        })
    }
}

/// Shares, or ends the shares, of all pools.
fn on_all(cx: &Cx<'_>, protocols: &[Protocol], share: bool) -> Result<()> {
    let mut errors = Vec::new();
    for running in cx.pools.all_running() {
        let protocols = protocols.to_vec();
        let done = cx.on(&running, move |e| async move {
            if share { e.fs_share_all(&protocols).await } else { e.fs_unshare_all(&protocols).await }
        });
        errors.extend(done.err());
    }
    join_errors(errors)
}
