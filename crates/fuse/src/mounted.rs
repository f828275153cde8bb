//! Mounting and mounts.

use std::io::IoSlice;
use std::path::Path;
use std::rc::Rc;

use base::{Error, ErrorKind, Nanos, Result};
use host::{FuseMount, FusePlace, MountTable, fuse_detach, fuse_mount, fuse_set_readahead, fuse_unmount};
use rt::Rt;

use crate::handler::Handler;
use crate::proto::{self, ROOT_NODE};
use crate::session::{Core, IO_MAX, Session};
use crate::suspend::{Suspended, Switch};
use crate::tree::Tree;
use crate::wire::Small;

pub use crate::session::SessionStats;

/// Wait for a forced end.
pub(crate) const FORCED_WAIT: Nanos = Nanos::from_secs(5);

/// Tries, and the wait between them, to unmount a mount without open files that another process's
/// path walk may hold.
const WALKS_TRIES: u32 = 20;
const WALKS_WAIT: Nanos = Nanos::from_ms(10);

/// Time for files that are being closed while an unmount begins: the kernel sends their RELEASE in
/// the background, and a child of a process that has them open holds them until it runs its
/// program.
const BUSY_WAIT: Nanos = Nanos::from_ms(500);

/// Time for the kernel's RELEASE of files that were closed before the mount ended here: it sends
/// them in the background.
pub(crate) const CLOSES_WAIT: Nanos = Nanos::from_secs(2);

/// How long copies of a mount in other mount namespaces may keep it alive after it was unmounted,
/// if no file is open in them.
const COPIES_WAIT: Nanos = Nanos::from_secs(1);

/// How to mount.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MountOpts {
    /// Users other than the mounting one may use it. For ordinary users `/etc/fuse.conf` must allow
    /// that.
    pub allow_other: bool,
    /// The kernel checks permissions by mode and owner.
    pub default_permissions: bool,
    /// The source in the list of mounts: the dataset.
    pub fsname: String,
    /// The type in the list of mounts is `fuse.SUBTYPE`; exactly `fuse` if None.
    pub subtype: Option<String>,
    /// Nothing may be changed.
    pub readonly: bool,
    /// Set-user-id bits have no effect (property `setuid=off`).
    pub nosuid: bool,
    /// Device files cannot be opened (property `devices=off`).
    pub nodev: bool,
    /// Nothing can be executed (property `exec=off`).
    pub noexec: bool,
    /// The list of mounts shows `noatime` (property `atime=off`).
    pub noatime: bool,
    /// `sync` and `syncfs` reach the file system, where the kernel can do that: Linux 6.18 for
    /// mounts by root, which are then of type `fuseblk.SUBTYPE` and hold a loop device each.
    pub sync_passes: bool,
    /// The kernel gathers small writes. It then decides sizes and times, and an error of a write
    /// may show at `fsync` only.
    pub writeback: bool,
    /// The kernel reads POSIX ACLs and evaluates them; it then always checks permissions.
    pub posix_acl: bool,
    /// Other file systems can be shown within the mount by [`crate::graft()`]; the kernel reads
    /// ACLs then, whether or not the first file system has them.
    pub holds_others: bool,
    /// How far the kernel reads ahead, in KiB; set where we may.
    pub readahead_kib: u32,
}

impl Default for MountOpts {
    fn default() -> MountOpts {
        MountOpts {
            allow_other: host::effective_uid() == 0,
            default_permissions: true,
            fsname: "weir".into(),
            subtype: Some("zfs".into()),
            readonly: false,
            nosuid: false,
            nodev: false,
            noexec: false,
            noatime: false,
            sync_passes: false,
            writeback: false,
            posix_acl: false,
            holds_others: false,
            readahead_kib: (IO_MAX / 1024) as u32,
        }
    }
}

/// A mount. Dropping it does not end it: [`Mounted::unmount`] or an unmount by hand does.
pub struct Mounted {
    rt: Rt,
    core: Rc<Core>,
    place: FusePlace,
    switch: Option<Rc<Switch>>,
    tree: Option<Rc<Tree>>,
}

/// Mounts the file system of `handler` at `mountpoint`, a directory.
pub async fn mount_handler(rt: &Rt, handler: impl Handler, mountpoint: &Path, opts: MountOpts) -> Result<Rc<Mounted>> {
    mount_tree(rt, handler, mountpoint, opts, (None, None)).await
}

/// As [`mount_handler`], for a handler that `switch` can suspend, and of the file systems of
/// `tree`, if given.
pub(crate) async fn mount_tree(
    rt: &Rt,
    handler: impl Handler,
    mountpoint: &Path,
    opts: MountOpts,
    (switch, tree): (Option<Rc<Switch>>, Option<Rc<Tree>>),
) -> Result<Rc<Mounted>> {
    let place = mountpoint.to_owned();
    // The list of mounts has the real path. Its lookup may go through mounts of our own.
    let real = host::blocking(move || std::fs::canonicalize(place)).await?;
    let real = real.map_err(|e| {
        let kind = match e.kind() {
            std::io::ErrorKind::NotFound => base::ErrorKind::NotFound,
            std::io::ErrorKind::PermissionDenied => base::ErrorKind::Denied,
            _ => base::ErrorKind::Io,
        };
        Error::new(kind, format!("{}: {e}", mountpoint.display()))
    })?;
    let how = FuseMount {
        source: opts.fsname,
        subtype: opts.subtype,
        allow_other: opts.allow_other,
        default_permissions: opts.default_permissions,
        readonly: opts.readonly,
        nosuid: opts.nosuid,
        nodev: opts.nodev,
        noexec: opts.noexec,
        noatime: opts.noatime,
        sync_passes: opts.sync_passes,
    };
    let (fd, place) = fuse_mount(&real, how).await?;
    let core = Session::start(rt, fd, handler, opts.writeback, opts.posix_acl || opts.holds_others)?;
    fuse_set_readahead(&place, opts.readahead_kib).await;
    Ok(Rc::new(Mounted { rt: rt.clone(), core, place, switch, tree }))
}

impl Mounted {
    /// Unmounts and waits until every request was dealt with. `lazy`: it vanishes from the tree at
    /// once, the session ends with its last use, without a wait for that. `force`: requests under
    /// way fail, and open files give errors; copies of the mount end, too. `Busy`, and nothing
    /// changes, if it is in use with neither. Copies in other mount namespaces without open files
    /// do not count as use: they end, too.
    pub async fn unmount(&self, lazy: bool, force: bool) -> Result<()> {
        self.unmount_at(lazy, force, false).await
    }

    /// As [`Mounted::unmount`]. `is_alone`: it is at one place of the tree of mounts, as
    /// [`Mounted::is_alone`] says; with many mounts it costs much to find that out for each.
    pub async fn unmount_at(&self, lazy: bool, force: bool, is_alone: bool) -> Result<()> {
        if self.core.is_over() {
            self.core.ended().await;
            return Ok(());
        }
        if lazy || force {
            let detached = fuse_detach(&self.place, force).await;
            if force {
                self.core.stop_reading();
                // Where a request does not end the session stays; its mounts are gone all the same.
                self.rt.timeout(FORCED_WAIT, self.core.ended()).await;
                return Ok(());
            }
            return detached;
        }
        let mut tries = 0;
        let held = loop {
            match fuse_unmount(&self.place, is_alone).await {
                // A process that walks a path through it, such as a scan of all mounts, holds it
                // for a moment.
                Err(e) if e.kind() == ErrorKind::Busy && tries < WALKS_TRIES => {
                    tries += 1;
                    if self.core.has_open() && self.rt.timeout(BUSY_WAIT, self.core.closed()).await.is_none() {
                        return Err(e);
                    }
                    self.rt.sleep(WALKS_WAIT).await;
                }
                done => break done?,
            }
        };
        if self.rt.timeout(CLOSES_WAIT, self.core.closed()).await.is_none() {
            if let Some(held) = held {
                held.restore(&self.place).await?;
            }
            let why = "a process with a copy of the mount, or with files open since before it was unmounted, uses it: end that";
            return Err(Error::new(ErrorKind::Busy, why));
        }
        if let Some(held) = held {
            held.release().await?;
        }
        if self.rt.timeout(COPIES_WAIT, self.core.ended()).await.is_none() {
            self.core.stop_reading();
            if self.rt.timeout(FORCED_WAIT, self.core.ended()).await.is_none() {
                return Err(Error::new(ErrorKind::Busy, "requests that began before are still under way"));
            }
        }
        Ok(())
    }

    /// Whether requests can still come.
    pub fn is_alive(&self) -> bool {
        !self.core.is_over()
    }

    /// Has the kernel ask for the attributes of the root again: whether `.zfs` is listed has
    /// changed.
    pub fn root_changed(&self) {
        let mut message = Small::new();
        proto::put_attrs_stale(&mut message, ROOT_NODE);
        // An error means that the kernel caches nothing of it, or is gone.
        let _ = self.core.send(&[IoSlice::new(message.as_slice())]);
    }

    /// Whether its file system can be suspended.
    pub fn can_suspend(&self) -> bool {
        self.is_alive() && self.switch.as_ref().is_some_and(|s| s.can_suspend())
    }

    /// Suspends its file system, the first one if there are several. [`ErrorKind::Busy`], and
    /// nothing changes, if requests under way do not end.
    pub async fn suspend(&self) -> Result<Suspended> {
        match &self.switch {
            Some(switch) => switch.suspend().await,
            None => Err(Error::unsupported("it is no file system of a pool")),
        }
    }

    /// The file systems that it shows, if they may be several.
    pub(crate) fn tree(&self) -> Option<&Rc<Tree>> {
        self.tree.as_ref()
    }

    /// Where it was mounted, as the list of mounts has it.
    pub fn mountpoint(&self) -> &Path {
        &self.place.path
    }

    /// Whether it is in the tree of mounts: the session may live on after a lazy unmount.
    pub fn is_attached(&self, table: &MountTable) -> bool {
        !self.core.is_over() && self.place.dev.is_none_or(|dev| !table.of(dev).is_empty())
    }

    /// Whether it is at no other place of the tree of mounts.
    pub fn is_alone(&self, table: &MountTable) -> bool {
        self.place.dev.is_some_and(|dev| table.of(dev).len() <= 1)
    }

    /// Waits until it is unmounted and every request was dealt with.
    pub async fn ended(&self) {
        self.core.ended().await;
    }

    /// Counters.
    pub fn stats(&self) -> SessionStats {
        self.core.stats()
    }
}
