//! Requests about datasets: create, destroy, list, properties, rename.

use base::{Error, Result};
use serde::{Deserialize, Serialize};

use super::needs::{moves_mounts, to_set, to_set_all};
use super::{Changes, Cx, Identity, Kind, Need, Request, Rights, Secret, pool_part};
use crate::fs::ops::{NewHow, RenameHow};
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
    Kind::of::<FsUpgrade>(),
    Kind::of::<FsInherit>(),
    Kind::of::<FsRename>(),
    Kind::of::<OwnerUses>(),
    Kind::of::<FsDeleteQueue>(),
];

/// The warning of a new file system that its maker may not mount.
pub(super) const LEFT_UNMOUNTED: &str = "filesystem successfully created, but it may only be mounted by root";

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
    const RIGHTS: Rights = Rights::Delegable;
    type Reply = Vec<String>;
    fn changes(&self) -> Changes {
        Changes::pool_of(&self.name)
    }
    fn needs(&self, _who: &Identity) -> Vec<Need> {
        let mut props = to_set_all(&self.props);
        if self.volume.is_some_and(|v| !v.sparse) {
            props.push("refreservation".to_string());
        }
        vec![Need::New(self.name.clone(), props)]
    }
    fn run(self, cx: &Cx<'_>) -> Result<Vec<String>> {
        let FsCreate { name, props, parents, no_mount, key, volume } = self;
        let maker = cx.caller.maker();
        let how = NewHow { volume, parents, no_mount: no_mount || maker.leaves_unmounted(), maker };
        let left = maker.leaves_unmounted() && !no_mount && volume.is_none();
        let running = cx.pools.pool_of(&name).map_err(|_| {
            let pool = pool_part(&name);
            Error::not_found(format!("cannot create '{name}': no such pool '{pool}'"))
        })?;
        let mut notes = cx.on(&running, move |e| async move { e.fs_create(&name, props, how, key).await })?;
        notes.extend(left.then(|| LEFT_UNMOUNTED.to_string()));
        Ok(notes)
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
    const RIGHTS: Rights = Rights::Delegable;
    type Reply = Destroyed;
    fn changes(&self) -> Changes {
        if self.dry_run { Changes::Unrecorded } else { Changes::pool_of(&self.name) }
    }
    fn needs(&self, _who: &Identity) -> Vec<Need> {
        let FsDestroy { recursive, clones, defer, force, dry_run, .. } = *self;
        vec![Need::Destroy(self.name.clone(), DestroyHow { recursive, clones, defer, force, dry_run })]
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
    /// A named dataset is shown only if it is of a wanted type, and its snapshots and bookmarks
    /// only if the depth includes them (`-r`, `-d`).
    #[serde(default)]
    pub by_type: bool,
}

/// Whether a property is of a user himself, or of one of his groups.
fn is_own(prop: &OwnerProp<'_>, user: &Identity) -> bool {
    let is = |id: u32| prop.id() == Some(u64::from(id));
    match prop.owners {
        Owners::Users => is(user.uid),
        Owners::Groups => is(user.gid) || user.groups.iter().any(|gid| is(*gid)),
        Owners::Projects => false,
    }
}

/// Whether the sender has the permission to read a property of owners of all selected datasets.
fn may_read(cx: &Cx<'_>, select: &Select, prop: &str) -> bool {
    let may = |name: &String| {
        let (who, on, perm) = (cx.caller.user.clone(), name.clone(), to_set(prop).to_string());
        let running = cx.pools.pool_of(name).ok()?;
        let look = running.thread.with_pool(move |e| async move {
            let on = e.resolve(&on)?;
            e.has_permission(&who, &on, &perm).await
        });
        look.ok()
    };
    // What is below the named ones may be granted otherwise.
    select.depth == Some(0) && !select.names.is_empty() && select.names.iter().all(|name| may(name) == Some(true))
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
            // As in OpenZFS: what others use and may use is for the owner, and for who has the
            // permission.
            let mut wanted = std::mem::take(&mut select.wanted);
            wanted.retain(|name| match OwnerProp::parse(name) {
                Some(prop) => is_own(&prop, &cx.caller.user) || may_read(cx, &select, name),
                None => true,
            });
            select.wanted = wanted;
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
    /// Leave mounts and shares as they are.
    #[serde(default)]
    pub no_remount: bool,
}

impl Request for FsSet {
    const NAME: &'static str = "FsSet";
    const TITLE: &'static str = "zfs set";
    const RIGHTS: Rights = Rights::Delegable;
    type Reply = Vec<String>;
    fn changes(&self) -> Changes {
        Changes::pools_of(&self.names)
    }
    fn needs(&self, _who: &Identity) -> Vec<Need> {
        if self.props.iter().any(|(name, _)| moves_mounts(name)) {
            return vec![Need::Owner];
        }
        let perms = to_set_all(&self.props);
        self.names.iter().map(|name| Need::On(name.clone(), perms.clone())).collect()
    }
    fn run(self, cx: &Cx<'_>) -> Result<Vec<String>> {
        let FsSet { names, props, no_remount } = self;
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
                e.fs_set(&name, &props, no_remount).await
            }
        })
    }
}

/// `zfs upgrade` of a file system.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct FsUpgrade {
    /// The file system.
    pub name: String,
    /// Its new version; not older than the one that it has.
    pub version: u64,
}

impl Request for FsUpgrade {
    const NAME: &'static str = "FsUpgrade";
    const TITLE: &'static str = "zfs upgrade";
    const RIGHTS: Rights = Rights::Delegable;
    type Reply = ();
    fn changes(&self) -> Changes {
        Changes::pool_of(&self.name)
    }
    fn needs(&self, _who: &Identity) -> Vec<Need> {
        vec![Need::on(&self.name, &["version"])]
    }
    fn run(self, cx: &Cx<'_>) -> Result<()> {
        let FsUpgrade { name, version } = self;
        let running = cx.pools.need_running(pool_part(&name))?;
        cx.on(&running, move |e| async move { e.fs_upgrade(&name, version).await })
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
    const RIGHTS: Rights = Rights::Delegable;
    type Reply = Vec<String>;
    fn changes(&self) -> Changes {
        Changes::pools_of(&self.names)
    }
    fn needs(&self, _who: &Identity) -> Vec<Need> {
        if moves_mounts(&self.prop) {
            return vec![Need::Owner];
        }
        let perm = to_set(&self.prop);
        let mut out: Vec<Need> =
            self.names.iter().map(|name| Need::on_or_below(name, &[perm], self.recursive)).collect();
        if self.recursive && perm == "userprop" {
            // Those of the snapshots go as well.
            out.extend(self.names.iter().map(|name| Need::on_or_below(&format!("{name}@"), &[perm], true)));
        }
        out
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
    const RIGHTS: Rights = Rights::Delegable;
    type Reply = ();
    fn changes(&self) -> Changes {
        Changes::pool_of(&self.from)
    }
    fn needs(&self, _who: &Identity) -> Vec<Need> {
        // With -u as well: the next command that mounts it anew would do so in the new place.
        let needs = [Need::on(&self.from, &["rename", "mount"]), Need::Move(self.from.clone(), self.to.clone())];
        needs.into_iter().chain([Need::Unmounted(self.from.clone())]).collect()
    }
    fn run(self, cx: &Cx<'_>) -> Result<()> {
        let running = cx.pools.pool_of(&self.from)?;
        let FsRename { from, to, parents, no_remount, force } = self;
        let maker = cx.caller.maker();
        let how = RenameHow { parents, no_remount: no_remount || maker.leaves_unmounted(), force, maker };
        cx.on(&running, move |e| async move { e.fs_rename(&from, &to, how).await })
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
    const RIGHTS: Rights = Rights::Delegable;
    type Reply = Vec<OwnerView>;
    fn changes(&self) -> Changes {
        Changes::Nothing
    }
    fn needs(&self, _who: &Identity) -> Vec<Need> {
        let perms: &[&str] = match self.owners {
            Owners::Users => &["userused", "userquota", "userobjused", "userobjquota"],
            Owners::Groups => &["groupused", "groupquota", "groupobjused", "groupobjquota"],
            Owners::Projects => &["projectused", "projectquota", "projectobjused", "projectobjquota"],
        };
        vec![Need::on(&self.name, perms)]
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
