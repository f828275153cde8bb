//! The interface that mounts file systems for other programs.
//!
//! [`super::mounts`] decides which file systems are mounted where; the process implements the
//! mounts: the daemon uses FUSE.

use std::any::Any;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use base::{ErrorKind, Result};
use dsl::{Dataset, DslPool};
use host::MountTable;
use rt::{LocalBoxFuture, Rt};
use zpl::Held;

use super::files::{self, Zfs};
use super::shares::ShareRoot;
use super::snaps::DestroyHow;
use super::temp_props::TempProps;
use super::volume_folder::VolumesOf;
use crate::request::{Identity, Need};

/// The flags of a mount.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MountFlags {
    /// The dataset's name, shown as the source of the mount.
    pub source: String,
    /// The file system is read-only.
    pub readonly: bool,
    /// The mount itself is read-only, and so are a plain user's file systems within it.
    pub readonly_mount: bool,
    /// Programs may be executed.
    pub exec: bool,
    /// Set-user-id bits are honoured.
    pub setuid: bool,
    /// Device nodes work.
    pub devices: bool,
    /// Access times are not updated.
    pub noatime: bool,
    /// POSIX ACLs are evaluated.
    pub posix_acl: bool,
}

/// A file system whose requests wait. If it is dropped they fail from then on.
pub struct Suspension {
    /// The objects in use.
    pub held: Vec<Held>,
    /// Lets the requests go on in a file system, where those of the objects that are named are
    /// still there.
    pub resume: Resume,
}

/// See [`Suspension::resume`].
pub type Resume = Box<dyn FnOnce(Rc<Zfs>, BTreeSet<u64>) -> LocalBoxFuture<'static, ()>>;

/// A mounted file system.
pub trait ActiveMount {
    /// False after an unmount from outside.
    fn is_alive(&self) -> bool;
    /// As [`ActiveMount::is_alive`], but false also after a lazy unmount, while its session lives
    /// on.
    fn is_attached(&self, table: &MountTable) -> bool;
    /// Waits until it is unmounted.
    fn ended(&self) -> LocalBoxFuture<'_, ()>;
    /// Whether it is at no other place of the tree of mounts.
    fn is_alone(&self, table: &MountTable) -> bool;
    /// Unmounts it. [`base::ErrorKind::Busy`] if it is in use, unless `force`. `is_alone` is what
    /// that function said a moment ago, or false.
    fn unmount(&self, force: bool, is_alone: bool) -> LocalBoxFuture<'_, Result<()>>;
    /// Whether it can be suspended.
    fn can_suspend(&self) -> bool;
    /// Has its requests wait, and ends those under way, so that the file system can be closed and
    /// another state of it opened. [`base::ErrorKind::Busy`], and nothing changes, if some do not
    /// end.
    fn suspend(&self) -> LocalBoxFuture<'_, Result<Suspension>>;
    /// Whether `.zfs` is listed in its root has changed. Where it is shown in the mount of another
    /// one that is seen a second later.
    fn root_changed(&self);
    /// Identifies its mount, or the one that it is shown in.
    fn outer(&self) -> usize;
    /// Whether it is shown in the mount of another one.
    fn is_within(&self) -> bool;
    /// The concrete type, for the front end that made it.
    fn as_any(&self) -> &dyn Any;
}

/// Mounts file systems.
pub trait FrontEnd {
    /// Fails, with what to do, if it cannot work on this machine.
    fn usable(&self) -> Result<()>;
    /// Mounts `zfs` at `at`, an existing folder. Called on the pool's engine thread, which then
    /// serves it. `snaps` are those of a file system; a snapshot has none. `others` gives the
    /// pool's mounts.
    fn mount<'a>(
        &'a self,
        rt: &'a Rt,
        zfs: Rc<Zfs>,
        at: &'a Path,
        flags: &'a MountFlags,
        snaps: Option<SnapshotsOf>,
        others: &'a dyn Fn() -> Vec<Rc<dyn ActiveMount>>,
    ) -> LocalBoxFuture<'a, Result<Rc<dyn ActiveMount>>>;
    /// The system whose servers share what is mounted, if any.
    fn shares(&self) -> Option<ShareRoot>;
    /// Shows what is mounted at `from` at `to` as well.
    fn bind<'a>(&'a self, from: &'a Path, to: &'a Path) -> LocalBoxFuture<'a, Result<()>>;
    /// Where the volumes of a pool are shown.
    fn volumes_at(&self, pool: &str) -> PathBuf;
    /// Shows the volumes of a pool there, an existing folder, as files. Called on the pool's engine
    /// thread, which then serves them.
    fn show_volumes<'a>(
        &'a self,
        rt: &'a Rt,
        pool: &'a str,
        volumes: VolumesOf,
    ) -> LocalBoxFuture<'a, Result<Rc<dyn ActiveMount>>>;
}

/// The snapshots of a mounted file system, for its folder `.zfs`.
pub struct SnapshotsOf {
    dsl: Rc<DslPool>,
    head: Rc<Dataset>,
}

impl SnapshotsOf {
    /// Those of `head`.
    pub fn new(dsl: Rc<DslPool>, head: Rc<Dataset>) -> SnapshotsOf {
        SnapshotsOf { dsl, head }
    }

    /// The number of the property `snapdir`, which says where the folder is found.
    pub fn snapdir(&self) -> u64 {
        self.head.dir().prop("snapdir").0.num()
    }

    /// Their names and objects.
    pub async fn list(&self) -> Result<Vec<(String, u64)>> {
        let all = self.dsl.snapshots(&self.head).await?;
        Ok(all.into_iter().map(|s| (s.snapname(), s.object.0)).collect())
    }

    /// When one was last made, renamed or destroyed, if that is known.
    pub fn changed(&self) -> Option<base::WallTime> {
        self.head.dir().snapshots_changed()
    }

    /// The object of the one with that name, if there is one.
    pub async fn find(&self, name: &str) -> Result<Option<u64>> {
        match self.dsl.find_snapshot(&self.full(name)).await {
            Ok(snap) => Ok(Some(snap.object.0)),
            Err(e) if e.kind() == ErrorKind::NotFound => Ok(None),
            Err(e) => Err(e),
        }
    }

    /// Whether they may be made, destroyed and renamed as folders (`zfs_admin_snapshot`).
    pub fn may_change(&self) -> bool {
        self.dsl.may_admin_snapshots()
    }

    /// Makes one.
    pub async fn create(&self, name: &str) -> Result<()> {
        self.dsl.snapshot(vec![self.full(name)], false, Vec::new()).await
    }

    /// Destroys one.
    pub async fn destroy(&self, name: &str) -> Result<()> {
        self.dsl.destroy_snapshots(vec![self.full(name)], false).await
    }

    /// Gives one another name.
    pub async fn rename(&self, name: &str, new: &str) -> Result<()> {
        self.dsl.rename_snapshot(&self.full(name), &self.full(new), false).await
    }

    /// Fails unless a user who does not own the daemon may make one.
    pub async fn allow_create(&self, who: &Identity) -> Result<()> {
        let head = self.head.name();
        let fits = Need::SnapshotsFit { name: head.clone(), below: false };
        self.allow(who, &[Need::on(&head, &["snapshot"]), fits]).await
    }

    /// The same for destroying one.
    pub async fn allow_destroy(&self, who: &Identity, name: &str) -> Result<()> {
        self.allow(who, &[Need::Destroy(self.full(name), DestroyHow::default())]).await
    }

    /// The same for giving one another name.
    pub async fn allow_rename(&self, who: &Identity, name: &str) -> Result<()> {
        let (snapshot, head) = (self.full(name), self.head.name());
        self.allow(who, &[Need::on(&snapshot, &["rename", "mount"]), Need::on(&head, &["create", "mount"])]).await
    }

    async fn allow(&self, who: &Identity, needs: &[Need]) -> Result<()> {
        let engine = crate::engine::current()?;
        for need in needs {
            engine.check_need(who, need).await?;
        }
        Ok(())
    }

    fn full(&self, name: &str) -> String {
        format!("{}@{name}", self.head.name())
    }

    /// The files of one.
    pub async fn open(&self, name: &str) -> Result<Rc<Zfs>> {
        let snap = self.dsl.find_snapshot(&self.full(name)).await?;
        // An access to a snapshot must not keep it from being destroyed.
        let temp = TempProps { readonly: Some(true), ..TempProps::default() };
        Zfs::open_uncounted(&snap, files::options(&snap, temp)).await
    }
}
