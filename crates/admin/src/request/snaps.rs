//! Requests about snapshots, clones, holds and bookmarks.

use std::collections::BTreeMap;

use base::{Error, ErrorKind, Result};
use serde::{Deserialize, Serialize};

use super::fs::LEFT_UNMOUNTED;
use super::needs::to_set_all;
use super::{Changes, Cx, Identity, Kind, Need, Request, Rights, pool_part};
use crate::fs::ops::NewHow;
use crate::fs::snaps::DestroyHow;
use crate::pool_set::join_errors;
use crate::view::HoldView;

/// The requests of this file.
pub(super) const KINDS: &[Kind] = &[
    Kind::of::<Snapshot>(),
    Kind::of::<Rollback>(),
    Kind::of::<FsClone>(),
    Kind::of::<Promote>(),
    Kind::of::<Hold>(),
    Kind::of::<Holds>(),
    Kind::of::<Bookmark>(),
    Kind::of::<Redact>(),
    Kind::of::<SnapRename>(),
];

/// The file system of a snapshot or bookmark.
fn head(name: &str) -> &str {
    name.split(['@', '#']).next().unwrap_or(name)
}

/// Groups names by pool.
fn by_pool(names: Vec<String>) -> BTreeMap<String, Vec<String>> {
    let mut pools: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for name in names {
        pools.entry(pool_part(&name).to_string()).or_default().push(name);
    }
    pools
}

/// `zfs snapshot`: make snapshots of one pool, all at once.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Snapshot {
    /// Their full names.
    pub names: Vec<String>,
    /// And of everything below.
    pub recursive: bool,
    /// User properties.
    pub props: Vec<(String, String)>,
}

impl Request for Snapshot {
    const NAME: &'static str = "Snapshot";
    const TITLE: &'static str = "zfs snapshot";
    const RIGHTS: Rights = Rights::Delegable;
    type Reply = ();
    fn changes(&self) -> Changes {
        Changes::pools_of(&self.names)
    }
    fn needs(&self, _who: &Identity) -> Vec<Need> {
        let perms: &[&str] = if self.props.is_empty() { &["snapshot"] } else { &["snapshot", "userprop"] };
        let may = self.names.iter().map(|name| Need::on_or_below(head(name), perms, self.recursive));
        let fits = |name: &String| Need::SnapshotsFit { name: head(name).to_string(), below: self.recursive };
        may.chain(self.names.iter().map(fits)).collect()
    }
    fn run(self, cx: &Cx<'_>) -> Result<()> {
        let Snapshot { names, recursive, props } = self;
        let Some(pool) = names.first().map(|name| pool_part(name).to_string()) else { return Ok(()) };
        // They are all made or none, which only one pool can do.
        if let Some(other) = names.iter().find(|name| pool_part(name) != pool) {
            let why = format!("cannot create snapshots in pool '{pool}': '{other}' is in another pool");
            return Err(Error::new(ErrorKind::CrossDevice, why));
        }
        cx.on_dataset(&pool, move |e| async move { e.snap_create(names, recursive, &props).await })
    }
}

/// `zfs rollback`: take a file system back to a snapshot.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Rollback {
    /// The snapshot.
    pub name: String,
    /// Destroy later snapshots and bookmarks.
    pub recursive: bool,
    /// And clones of them.
    pub clones: bool,
    /// Unmount file systems in use.
    pub force: bool,
}

impl Request for Rollback {
    const NAME: &'static str = "Rollback";
    const TITLE: &'static str = "zfs rollback";
    const RIGHTS: Rights = Rights::Delegable;
    type Reply = ();
    fn changes(&self) -> Changes {
        Changes::pool_of(&self.name)
    }
    fn needs(&self, _who: &Identity) -> Vec<Need> {
        let Rollback { recursive, clones, force, .. } = *self;
        let how = DestroyHow { recursive, clones, force, ..DestroyHow::default() };
        vec![Need::Rollback(self.name.clone(), how)]
    }
    fn run(self, cx: &Cx<'_>) -> Result<()> {
        let running = cx.pools.pool_of(&self.name)?;
        let Rollback { name, recursive, clones, force } = self;
        let how = DestroyHow { recursive, clones, force, ..DestroyHow::default() };
        let progress = cx.progress.clone();
        cx.on(&running, move |e| async move { e.rollback(&name, how, &progress).await })
    }
}

/// `zfs clone`: make a file system from a snapshot. The answer is a list of warnings.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct FsClone {
    /// The snapshot.
    pub snapshot: String,
    /// The new file system.
    pub name: String,
    /// Its properties.
    pub props: Vec<(String, String)>,
    /// Create missing parents.
    pub parents: bool,
    /// Leave it unmounted.
    #[serde(default)]
    pub no_mount: bool,
}

impl Request for FsClone {
    const NAME: &'static str = "FsClone";
    const TITLE: &'static str = "zfs clone";
    const RIGHTS: Rights = Rights::Delegable;
    type Reply = Vec<String>;
    fn changes(&self) -> Changes {
        Changes::pool_of(&self.name)
    }
    fn needs(&self, _who: &Identity) -> Vec<Need> {
        vec![Need::on(&self.snapshot, &["clone"]), Need::New(self.name.clone(), to_set_all(&self.props))]
    }
    fn run(self, cx: &Cx<'_>) -> Result<Vec<String>> {
        let FsClone { snapshot, name, props, parents, no_mount } = self;
        let maker = cx.caller.maker();
        let left = maker.leaves_unmounted() && !no_mount;
        let how = NewHow { volume: None, parents, no_mount: no_mount || left, maker };
        if pool_part(&snapshot) != pool_part(&name) {
            let pool = pool_part(&name);
            if cx.pools.running(pool).is_none() {
                return Err(Error::not_found(format!("cannot create '{name}': no such pool '{pool}'")));
            }
            let why = format!("cannot create '{name}': source and target pools differ");
            return Err(Error::new(ErrorKind::CrossDevice, why));
        }
        let running = cx.pools.pool_of(&snapshot)?;
        let mut notes = cx.on(&running, move |e| async move { e.clone_fs(&snapshot, &name, &props, how).await })?;
        notes.extend(left.then(|| LEFT_UNMOUNTED.to_string()));
        Ok(notes)
    }
}

/// `zfs promote`: make a clone the owner of its origin's snapshots.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Promote {
    /// The clone.
    pub name: String,
}

impl Request for Promote {
    const NAME: &'static str = "Promote";
    const TITLE: &'static str = "zfs promote";
    const RIGHTS: Rights = Rights::Delegable;
    type Reply = ();
    fn changes(&self) -> Changes {
        Changes::pool_of(&self.name)
    }
    fn needs(&self, _who: &Identity) -> Vec<Need> {
        vec![Need::Promote(self.name.clone())]
    }
    fn run(self, cx: &Cx<'_>) -> Result<()> {
        let running = cx.pools.pool_of(&self.name)?;
        cx.on(&running, move |e| async move { e.promote(&self.name).await })
    }
}

/// `zfs hold` and `zfs release`.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Hold {
    /// The hold's name.
    pub tag: String,
    /// The snapshots.
    pub names: Vec<String>,
    /// And those of that name below.
    pub recursive: bool,
    /// Release.
    pub release: bool,
}

impl Request for Hold {
    const NAME: &'static str = "Hold";
    const TITLE: &'static str = "zfs hold";
    const RIGHTS: Rights = Rights::Delegable;
    type Reply = ();
    fn changes(&self) -> Changes {
        Changes::pools_of(&self.names)
    }
    fn needs(&self, _who: &Identity) -> Vec<Need> {
        let perm = if self.release { "release" } else { "hold" };
        self.names.iter().map(|name| Need::on_or_below(head(name), &[perm], self.recursive)).collect()
    }
    fn title(&self) -> &'static str {
        if self.release { "zfs release" } else { Self::TITLE }
    }
    fn run(self, cx: &Cx<'_>) -> Result<()> {
        let Hold { tag, names, recursive, release } = self;
        let mut errors = Vec::new();
        for (pool, names) in by_pool(names) {
            let tag = tag.clone();
            let hold = move |e: std::rc::Rc<crate::engine::PoolEngine>| async move {
                join_errors(e.hold(&tag, names, recursive, release).await)
            };
            errors.extend(cx.on_dataset(&pool, hold).err());
        }
        join_errors(errors)
    }
}

/// `zfs holds`.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Holds {
    /// The snapshots.
    pub names: Vec<String>,
    /// And those of that name below.
    pub recursive: bool,
}

impl Request for Holds {
    const NAME: &'static str = "Holds";
    const TITLE: &'static str = "zfs holds";
    const RIGHTS: Rights = Rights::Anyone;
    type Reply = Vec<HoldView>;
    fn changes(&self) -> Changes {
        Changes::Nothing
    }
    fn run(self, cx: &Cx<'_>) -> Result<Vec<HoldView>> {
        let mut out: Vec<HoldView> = Vec::new();
        for name in self.names {
            let (running, recursive) = (cx.pools.pool_of(&name)?, self.recursive);
            out.extend(cx.on(&running, move |e| async move { e.holds(&[name], recursive).await })?);
        }
        Ok(out)
    }
}

/// `zfs bookmark`: make a bookmark from a snapshot or bookmark.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Bookmark {
    /// The snapshot or bookmark.
    pub from: String,
    /// The new bookmark; `#name` is one of the same file system.
    pub to: String,
}

impl Request for Bookmark {
    const NAME: &'static str = "Bookmark";
    const TITLE: &'static str = "zfs bookmark";
    const RIGHTS: Rights = Rights::Delegable;
    type Reply = ();
    fn changes(&self) -> Changes {
        Changes::pool_of(&self.from)
    }
    fn needs(&self, _who: &Identity) -> Vec<Need> {
        let fs = if self.to.starts_with('#') { head(&self.from) } else { head(&self.to) };
        vec![Need::on(fs, &["bookmark"])]
    }
    fn run(self, cx: &Cx<'_>) -> Result<()> {
        let running = cx.pools.pool_of(&self.from)?;
        cx.on(&running, move |e| async move { e.bookmark(&self.from, &self.to).await })
    }
}

/// `zfs redact`: make a redaction bookmark, or go on with one that was interrupted.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Redact {
    /// The snapshot that is redacted.
    pub snapshot: String,
    /// The bookmark of the same file system, without the `#`.
    pub bookmark: String,
    /// The redaction snapshots, by their full names.
    pub by: Vec<String>,
}

impl Request for Redact {
    const NAME: &'static str = "Redact";
    const TITLE: &'static str = "zfs redact";
    type Reply = ();
    fn changes(&self) -> Changes {
        Changes::pool_of(&self.snapshot)
    }
    fn run(self, cx: &Cx<'_>) -> Result<()> {
        let pool = pool_part(&self.snapshot);
        if self.by.iter().any(|name| pool_part(name) != pool) {
            let text = "potentially invalid redaction snapshot; full dataset names required";
            return Err(Error::new(ErrorKind::CrossDevice, text));
        }
        let running = cx.pools.pool_of(&self.snapshot)?;
        cx.on(&running, move |e| async move { e.redact(&self.snapshot, &self.bookmark, &self.by).await })
    }
}

/// `zfs rename` of a snapshot.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct SnapRename {
    /// The snapshot.
    pub from: String,
    /// Its new name; `@name` is one of the same file system.
    pub to: String,
    /// And those of that name below.
    pub recursive: bool,
}

impl Request for SnapRename {
    const NAME: &'static str = "SnapRename";
    const TITLE: &'static str = "zfs rename";
    const RIGHTS: Rights = Rights::Delegable;
    type Reply = ();
    fn changes(&self) -> Changes {
        Changes::pool_of(&self.from)
    }
    fn needs(&self, _who: &Identity) -> Vec<Need> {
        vec![Need::on(&self.from, &["rename", "mount"]), Need::on(head(&self.from), &["create", "mount"])]
    }
    fn run(self, cx: &Cx<'_>) -> Result<()> {
        let running = cx.pools.pool_of(&self.from)?;
        cx.on(&running, move |e| async move { e.snap_rename(&self.from, &self.to, self.recursive).await })
    }
}
