//! Requests about datasets: create, destroy, list, properties, rename.

use base::{Error, Result};
use serde::{Deserialize, Serialize};

use super::{Changes, Cx, Kind, Request, Rights, Secret, pool_part};
use crate::fs::ops::NewHow;
use crate::fs::owners::{OwnerProp, OwnerView, Owners};
use crate::fs::snaps::DestroyHow;
use crate::fs::volumes::{NewVolume, PlannedVolume};
use crate::view::{DatasetView, Destroyed};

/// The requests of this file.
pub(super) const KINDS: &[Kind] = &[
    Kind::of::<FsCreate>(),
    Kind::of::<VolumePlan>(),
    Kind::of::<FsDestroy>(),
    Kind::of::<Datasets>(),
    Kind::of::<FsSet>(),
    Kind::of::<FsInherit>(),
    Kind::of::<FsRename>(),
    Kind::of::<OwnerUses>(),
    Kind::of::<FsDeleteQueue>(),
];

/// `zfs create`. The answer is a list of warnings.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct FsCreate {
    /// Its name.
    pub name: String,
    /// Its properties.
    pub props: Vec<(String, String)>,
    /// Create missing parents as well.
    pub parents: bool,
    /// Leave it unmounted.
    pub no_mount: bool,
    /// The key, if the properties ask for one.
    pub key: Option<Secret>,
    /// It is a volume.
    #[serde(default)]
    pub volume: Option<NewVolume>,
}

impl Request for FsCreate {
    const NAME: &'static str = "FsCreate";
    const TITLE: &'static str = "zfs create";
    type Reply = Vec<String>;
    fn changes(&self) -> Changes {
        Changes::pool_of(&self.name)
    }
    fn run(self, cx: &Cx<'_>) -> Result<Vec<String>> {
        let FsCreate { name, props, parents, no_mount, key, volume } = self;
        let how = NewHow { volume, parents, no_mount };
        let running = cx.pools.pool_of(&name).map_err(|_| {
            let pool = pool_part(&name);
            Error::not_found(format!("cannot create '{name}': no such pool '{pool}'"))
        })?;
        cx.on(&running, move |e| async move { e.fs_create(&name, props, how, key).await })
    }
}

/// What `zfs create -V` would make (`-n`, `-v`).
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct VolumePlan {
    /// Its name.
    pub name: String,
    /// Its properties.
    pub props: Vec<(String, String)>,
    /// Size and kind.
    pub volume: NewVolume,
}

impl Request for VolumePlan {
    const NAME: &'static str = "VolumePlan";
    const TITLE: &'static str = "zfs create -n";
    type Reply = PlannedVolume;
    fn changes(&self) -> Changes {
        Changes::Nothing
    }
    fn run(self, cx: &Cx<'_>) -> Result<PlannedVolume> {
        let VolumePlan { name, props, volume } = self;
        let running = cx.pools.pool_of(&name)?;
        cx.on(&running, move |e| async move { e.volume_plan(&name, volume, props) })
    }
}

/// `zfs destroy`: a file system, snapshots (`fs@a,b%c`) or a bookmark.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct FsDestroy {
    /// Its name.
    pub name: String,
    /// And everything below it.
    pub recursive: bool,
    /// And all clones, wherever they are.
    pub clones: bool,
    /// Defer the destruction of snapshots with holds or clones.
    pub defer: bool,
    /// Unmount file systems in use.
    pub force: bool,
    /// Only list what would be destroyed.
    pub dry_run: bool,
}

impl Request for FsDestroy {
    const NAME: &'static str = "FsDestroy";
    const TITLE: &'static str = "zfs destroy";
    type Reply = Destroyed;
    fn changes(&self) -> Changes {
        if self.dry_run { Changes::Unrecorded } else { Changes::pool_of(&self.name) }
    }
    fn run(self, cx: &Cx<'_>) -> Result<Destroyed> {
        let FsDestroy { name, recursive, clones, defer, force, dry_run } = self;
        let how = DestroyHow { recursive, clones, defer, force, dry_run };
        let (progress, target) = (cx.progress.clone(), name.clone());
        cx.on_dataset(&name, move |e| async move { e.destroy(&target, how, &progress).await })
    }
}

/// A selection of datasets.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct Select {
    /// Names, or absolute paths in mounted file systems; empty: all of all pools.
    pub names: Vec<String>,
    /// How many levels below the named ones; none: all.
    pub depth: Option<u32>,
    /// File systems are wanted.
    pub filesystems: bool,
    /// Volumes are wanted.
    pub volumes: bool,
    /// Snapshots are wanted.
    pub snapshots: bool,
    /// Bookmarks are wanted.
    pub bookmarks: bool,
    /// Only these properties are needed; empty: all.
    pub wanted: Vec<String>,
}

/// `zfs list` and `zfs get`.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Datasets(pub Select);

impl Request for Datasets {
    const NAME: &'static str = "Datasets";
    const TITLE: &'static str = "zfs list";
    const RIGHTS: Rights = Rights::Anyone;
    type Reply = Vec<DatasetView>;
    fn changes(&self) -> Changes {
        Changes::Nothing
    }
    fn run(self, cx: &Cx<'_>) -> Result<Vec<DatasetView>> {
        let Datasets(mut select) = self;
        if cx.caller.public && !select.wanted.is_empty() {
            // As in OpenZFS: what others use and may use is for the owner.
            let own = u64::from(cx.caller.uid);
            select.wanted.retain(|name| match OwnerProp::parse(name) {
                Some(prop) => prop.owners == Owners::Users && prop.id() == Some(own),
                None => true,
            });
            // No name at all would be all of them.
            select.wanted.push("name".to_string());
        }
        cx.pools.datasets(&select)
    }
}

/// `zfs set`. The answer is a list of warnings.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct FsSet {
    /// The datasets.
    pub names: Vec<String>,
    /// The properties.
    pub props: Vec<(String, String)>,
}

impl Request for FsSet {
    const NAME: &'static str = "FsSet";
    const TITLE: &'static str = "zfs set";
    type Reply = Vec<String>;
    fn changes(&self) -> Changes {
        Changes::pools_of(&self.names)
    }
    fn run(self, cx: &Cx<'_>) -> Result<Vec<String>> {
        let FsSet { names, props } = self;
        cx.on_datasets(names, move |e, name| {
            let props = props.clone();
            async move {
                if name.contains('@') {
                    if let Some((bad, _)) = props.iter().find(|(n, _)| OwnerProp::parse(n).is_some()) {
                        let why = format!("cannot set property for '{name}': '{bad}' cannot be set for snapshots");
                        return Err(Error::invalid(why));
                    }
                    let values = props.into_iter().map(|(n, v)| (n, Some(v))).collect();
                    return e.snap_set(&name, &values).await.map(|()| Vec::new());
                }
                e.fs_set(&name, &props).await
            }
        })
    }
}

/// `zfs inherit`: drop the local value of a property. The answer is a list of warnings.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct FsInherit {
    /// The datasets.
    pub names: Vec<String>,
    /// The property.
    pub prop: String,
    /// And that of everything below.
    pub recursive: bool,
    /// The received value counts again, if there is one.
    pub received: bool,
}

impl Request for FsInherit {
    const NAME: &'static str = "FsInherit";
    const TITLE: &'static str = "zfs inherit";
    type Reply = Vec<String>;
    fn changes(&self) -> Changes {
        Changes::pools_of(&self.names)
    }
    fn run(self, cx: &Cx<'_>) -> Result<Vec<String>> {
        let FsInherit { names, prop, recursive, received } = self;
        cx.on_datasets(names, move |e, name| {
            let prop = prop.clone();
            async move { e.fs_inherit(&name, &prop, recursive, received).await }
        })
    }
}

/// `zfs rename` of a file system or volume.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct FsRename {
    /// Its name.
    pub from: String,
    /// Its new name.
    pub to: String,
    /// Create missing parents.
    pub parents: bool,
    /// Leave mounts where they are.
    pub no_remount: bool,
    /// Unmount file systems in use.
    pub force: bool,
}

impl Request for FsRename {
    const NAME: &'static str = "FsRename";
    const TITLE: &'static str = "zfs rename";
    type Reply = ();
    fn changes(&self) -> Changes {
        Changes::pool_of(&self.from)
    }
    fn run(self, cx: &Cx<'_>) -> Result<()> {
        let running = cx.pools.pool_of(&self.from)?;
        let FsRename { from, to, parents, no_remount, force } = self;
        cx.on(&running, move |e| async move { e.fs_rename(&from, &to, parents, no_remount, force).await })
    }
}

/// `zfs userspace`, `groupspace` and `projectspace`, in the order of the numbers.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct OwnerUses {
    /// A file system or snapshot, or an absolute path in a mounted file system.
    pub name: String,
    /// Of users, groups or projects.
    pub owners: Owners,
}

impl Request for OwnerUses {
    const NAME: &'static str = "OwnerUses";
    const TITLE: &'static str = "zfs userspace";
    type Reply = Vec<OwnerView>;
    fn changes(&self) -> Changes {
        Changes::Nothing
    }
    fn run(self, cx: &Cx<'_>) -> Result<Vec<OwnerView>> {
        let OwnerUses { name, owners } = self;
        cx.on_dataset(&name.clone(), move |e| async move { e.owners(&name, owners).await })
    }
}

/// The files of a mounted file system that have no name any more and wait to be freed: they are
/// large, or open (`zfs wait`). None of one that is not mounted.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct FsDeleteQueue {
    /// The file system.
    pub name: String,
}

impl Request for FsDeleteQueue {
    const NAME: &'static str = "FsDeleteQueue";
    const TITLE: &'static str = "zfs wait";
    const RIGHTS: Rights = Rights::Anyone;
    type Reply = u64;
    fn changes(&self) -> Changes {
        Changes::Nothing
    }
    fn run(self, cx: &Cx<'_>) -> Result<u64> {
        cx.on_dataset(&self.name.clone(), move |e| async move { e.delete_queue(&self.name).await })
    }
}
