//! The seam to what makes file systems visible to other programs.
//!
//! The rules for what is mounted where are in [`super::mounts`]; how it is mounted is the business
//! of the process: the daemon does it through FUSE.

use std::any::Any;
use std::path::Path;
use std::rc::Rc;

use base::Result;
use dmu::LocalBoxFuture;
use dsl::{Dataset, DslPool};
use host::MountTable;
use rt::Rt;

use super::files::{self, Zfs};
use super::temp_props::TempProps;

/// What a mount is told beyond the file system.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MountFlags {
    /// The dataset's name, shown as the source of the mount.
    pub source: String,
    /// Nothing may be changed.
    pub readonly: bool,
    /// The mount itself is read-only, and so is what a plain user has within it.
    pub readonly_mount: bool,
    /// Programs may be executed.
    pub exec: bool,
    /// Set-user-id bits count.
    pub setuid: bool,
    /// Device nodes work.
    pub devices: bool,
    /// Access times are not kept.
    pub noatime: bool,
    /// POSIX ACLs count.
    pub posix_acl: bool,
}

/// A file system that is visible somewhere.
pub trait ActiveMount {
    /// False after somebody else unmounted it.
    fn is_alive(&self) -> bool;
    /// False as well if its session lives on after somebody unmounted it lazily.
    fn is_attached(&self, table: &MountTable) -> bool;
    /// Waits until somebody unmounted it.
    fn ended(&self) -> LocalBoxFuture<'_, ()>;
    /// Takes it away. [`base::ErrorKind::Busy`] if it is in use, unless `force`.
    fn unmount(&self, force: bool) -> LocalBoxFuture<'_, Result<()>>;
    /// The mount that it is, or that it is seen in: equal numbers are the same one.
    fn outer(&self) -> usize;
    /// Whether it is seen in the mount of another one.
    fn is_within(&self) -> bool;
    /// Itself, for the front end that made it.
    fn as_any(&self) -> &dyn Any;
}

/// What makes file systems visible.
pub trait FrontEnd {
    /// Fails, with what to do, if it cannot work on this machine.
    fn usable(&self) -> Result<()>;
    /// Shows `zfs` at `at`, an existing folder. Called on the pool's engine thread, which then
    /// serves it. `others` are the pool's mounts.
    fn mount<'a>(
        &'a self,
        rt: &'a Rt,
        zfs: Rc<Zfs>,
        at: &'a Path,
        flags: &'a MountFlags,
        snaps: SnapshotsOf,
        others: Vec<Rc<dyn ActiveMount>>,
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

    /// Whether the folder is listed (`snapdir`).
    pub fn is_visible(&self) -> bool {
        self.head.dir().prop("snapdir").0.num() != 0
    }

    /// Their names and objects.
    pub async fn list(&self) -> Result<Vec<(String, u64)>> {
        let all = self.dsl.snapshots(&self.head).await?;
        Ok(all.into_iter().map(|s| (s.snapname(), s.object.0)).collect())
    }

    /// The files of one.
    pub async fn open(&self, name: &str) -> Result<Rc<Zfs>> {
        let snap = self.dsl.find_snapshot(&format!("{}@{name}", self.head.name())).await?;
        let zfs = files::open(snap, TempProps { readonly: Some(true), ..TempProps::default() }).await?;
        // Looking into a snapshot must not keep it from being destroyed.
        zfs.unmount().await?;
        Ok(zfs)
    }
}
