//! Requests about mounts.

use std::path::PathBuf;

use base::{Error, ErrorKind, Result};
use serde::{Deserialize, Serialize};

use super::{Changes, Cx, Kind, Request, Rights};
use crate::fs::temp_props::MountHow;

/// The requests of this file.
pub(super) const KINDS: &[Kind] = &[Kind::of::<Mount>(), Kind::of::<Unmount>(), Kind::of::<Mounted>()];

/// `zfs mount`: mount one file system, or all that are to be mounted. The answer is a list of
/// warnings.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Mount {
    /// Its name; none for all.
    pub name: Option<String>,
    /// The options of this mount.
    pub how: MountHow,
    /// Another place than its mount point.
    #[serde(default)]
    pub at: Option<MountAt>,
}

/// A place that mount(8) names.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct MountAt {
    /// An existing folder, without symbolic links on the way.
    pub path: String,
    /// Also a file system with a mount point of its own (the option `zfsutil`); otherwise only one
    /// with `mountpoint=legacy`.
    pub util: bool,
}

impl Request for Mount {
    const NAME: &'static str = "Mount";
    const TITLE: &'static str = "zfs mount";
    type Reply = Vec<String>;
    fn changes(&self) -> Changes {
        Changes::Unrecorded
    }
    fn run(self, cx: &Cx<'_>) -> Result<Vec<String>> {
        let how = self.how;
        if let Some(name) = self.name {
            let running = cx.pools.pool_of(&name)?;
            return cx.on(&running, move |e| async move { e.fs_mount(&name, how, self.at).await });
        }
        let (mut errors, mut notices): (Vec<String>, Vec<String>) = Default::default();
        let (all, temp) = (cx.pools.all_running(), how.temp);
        // The outer ones first, of whichever pool they are.
        let mut todo: Vec<(PathBuf, String, usize)> = Vec::new();
        for (n, running) in all.iter().enumerate() {
            let (places, failed) = cx.on(running, move |e| async move {
                let failed: Vec<String> = e.clear_dead_mounts().await.err().iter().map(Error::to_string).collect();
                Ok((e.places_to_mount(temp).await, failed))
            })?;
            todo.extend(places.into_iter().map(|(path, name)| (path, name, n)));
            errors.extend(failed);
        }
        todo.sort();
        cx.progress.begin("mounting file systems", todo.len() as u64);
        for some in todo.chunk_by(|a, b| a.2 == b.2) {
            let names: Vec<String> = some.iter().map(|(_, name, _)| name.clone()).collect();
            let progress = cx.progress.clone();
            let (failed, warnings) = cx.on(&all[some[0].2], move |e| async move {
                let _admin = e.admin.acquire(1).await;
                e.mounts.take_notices();
                let failed = e.mount_these(&names, temp, &progress).await;
                let failed: Vec<String> = failed.iter().map(Error::to_string).collect();
                Ok((failed, e.mounts.take_notices()))
            })?;
            errors.extend(failed);
            notices.extend(warnings);
        }
        if errors.is_empty() { Ok(notices) } else { Err(Error::new(ErrorKind::Io, errors.join("\n"))) }
    }
}

/// `zfs unmount`: unmount a file system by name or mount point, or all.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Unmount {
    /// Name or absolute path; none for all.
    pub target: Option<String>,
    /// Also if it is in use.
    pub force: bool,
    /// Unload the keys of encryption roots that this unmounts.
    #[serde(default)]
    pub keys: bool,
}

impl Request for Unmount {
    const NAME: &'static str = "Unmount";
    const TITLE: &'static str = "zfs unmount";
    type Reply = ();
    fn changes(&self) -> Changes {
        Changes::Unrecorded
    }
    fn run(self, cx: &Cx<'_>) -> Result<()> {
        let Unmount { target, force, keys } = self;
        let Some(target) = target else {
            // Those of one pool may be mounted within those of another.
            let mut left = cx.pools.all_running();
            loop {
                let (before, mut failed) = (left.len(), None);
                left.retain(|running| {
                    let done = cx.on(running, move |e| async move { e.fs_unmount_all(force, keys).await });
                    let is_left = done.is_err();
                    failed = failed.take().or(done.err());
                    is_left
                });
                match failed {
                    None => return Ok(()),
                    Some(e) if left.len() == before => return Err(e),
                    Some(_) => {}
                }
            }
        };
        let running = cx.pools.pool_of(&target)?;
        cx.on(&running, move |e| async move {
            if target.starts_with('/') && !e.mounts.list().iter().any(|(_, p)| *p == std::path::Path::new(&target)) {
                return Err(Error::not_found(format!("cannot unmount '{target}': not a mountpoint")));
            }
            e.fs_unmount(&target, force, keys).await
        })
    }
}

/// Mounted file systems, each with its path.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Mounted;

impl Request for Mounted {
    const NAME: &'static str = "Mounted";
    const TITLE: &'static str = "zfs mount";
    const RIGHTS: Rights = Rights::Anyone;
    type Reply = Vec<(String, String)>;
    fn changes(&self) -> Changes {
        Changes::Nothing
    }
    fn run(self, cx: &Cx<'_>) -> Result<Vec<(String, String)>> {
        let mut all: Vec<(String, String)> = Vec::new();
        for running in cx.pools.all_running() {
            let list = cx.on(&running, |e| async move { Ok(e.mounts.list()) });
            let list = list.unwrap_or_default().into_iter().filter(|(n, _)| !n.contains('@'));
            all.extend(list.map(|(n, p)| (n, p.display().to_string())));
        }
        Ok(all)
    }
}
