//! Mounts through FUSE: the daemon's front end ([`admin::fs::front_end`]). File systems have mounts
//! of their own, or are shown within another one; the volumes of a pool are files of one mount.

use std::any::Any;
use std::cell::RefCell;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use admin::fs::files::Zfs;
use admin::fs::front_end::{ActiveMount, FrontEnd, MountFlags, Resume, SnapshotsOf, Suspension};
use admin::fs::open_volumes::VolumeHold;
use admin::fs::places::path_blocking;
use admin::fs::shares::ShareRoot;
use admin::fs::volume_folder::{VolumeEntry, VolumesOf};
use admin::request::Identity;
use base::{Error, Result};
use fuse::{SnapChange, SnapUser};
use host::MountTable;
use rt::join::select2;
use rt::sync::Notify;
use rt::{LocalBoxFuture, Rt};
use zvol::Volume;

/// FUSE.
pub(crate) struct FuseFrontEnd {
    /// Where volumes are shown, each pool's in a folder of its own.
    pub(crate) volumes: PathBuf,
}

impl FrontEnd for FuseFrontEnd {
    fn usable(&self) -> Result<()> {
        usable()
    }

    fn mount<'a>(
        &'a self,
        rt: &'a Rt,
        zfs: Rc<Zfs>,
        at: &'a Path,
        flags: &'a MountFlags,
        snaps: Option<SnapshotsOf>,
        others: &'a dyn Fn() -> Vec<Rc<dyn ActiveMount>>,
    ) -> LocalBoxFuture<'a, Result<Rc<dyn ActiveMount>>> {
        Box::pin(async move {
            let snaps = snaps.map(|s| Rc::new(Snaps(s)) as Rc<dyn fuse::SnapSource>);
            // Root, who mounts for a plain user, may not enter that user's mounts: a mount serves
            // the file systems within it.
            let holds_others = host::effective_uid() != 0;
            if holds_others
                && let others = others().iter().filter_map(|m| outer_of(&**m)).collect::<Vec<_>>()
                && let Some(outer) = innermost_mount(rt, at, &others).await?
            {
                let grafted = fuse::graft(rt, &outer, zfs, at, snaps).await?;
                return Ok(Rc::new(Shown::Within(grafted)) as Rc<dyn ActiveMount>);
            }
            let opts = fuse::MountOpts {
                holds_others,
                fsname: flags.source.clone(),
                readonly: flags.readonly_mount,
                nosuid: !flags.setuid,
                nodev: !flags.devices,
                noexec: !flags.exec,
                noatime: flags.noatime,
                sync_passes: std::env::var_os("WEIR_SYNC_DEVICES").is_some_and(|v| v == "1"),
                ..fuse::MountOpts::default()
            };
            let mounted = fuse::mount(rt, zfs, at, opts, snaps).await?;
            Ok(Rc::new(Shown::Mounted(mounted)) as Rc<dyn ActiveMount>)
        })
    }

    fn bind<'a>(&'a self, from: &'a Path, to: &'a Path) -> LocalBoxFuture<'a, Result<()>> {
        Box::pin(host::fuse_bind(from, to))
    }

    fn shares(&self) -> Option<ShareRoot> {
        // Another root is for tests.
        Some(ShareRoot(std::env::var_os("WEIR_SHARE_ROOT").map_or_else(|| "/".into(), PathBuf::from)))
    }

    fn volumes_at(&self, pool: &str) -> PathBuf {
        self.volumes.join(pool)
    }

    fn show_volumes<'a>(
        &'a self,
        rt: &'a Rt,
        pool: &'a str,
        volumes: VolumesOf,
    ) -> LocalBoxFuture<'a, Result<Rc<dyn ActiveMount>>> {
        Box::pin(async move {
            let mounted =
                fuse::mount_volumes(rt, pool, Rc::new(Shelf { rt: rt.clone(), volumes }), &self.volumes_at(pool))
                    .await?;
            Ok(Rc::new(Shown::Mounted(mounted)) as Rc<dyn ActiveMount>)
        })
    }
}

/// Fails, with what to do, if nothing can be mounted on this machine.
pub fn usable() -> Result<()> {
    let no = |why: String| {
        let advice = "use mountpoint=none, or install and allow FUSE";
        Err(Error::unsupported(format!("file systems cannot be mounted here: {why}: {advice}")))
    };
    if let Err(e) = std::fs::OpenOptions::new().read(true).write(true).open("/dev/fuse") {
        return no(format!("/dev/fuse: {e}"));
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let helper = std::env::split_paths(&path).any(|d| d.join("fusermount3").exists() || d.join("fusermount").exists());
    if host::effective_uid() != 0 && !helper {
        return no("fusermount3 is not installed".to_string());
    }
    Ok(())
}

/// The FUSE mount of a file system, or the one that it is shown in.
fn outer_of(mount: &dyn ActiveMount) -> Option<Rc<fuse::Mounted>> {
    mount.as_any().downcast_ref::<Shown>().map(|m| m.mount().clone())
}

/// The innermost mount that contains `at`.
async fn innermost_mount(rt: &Rt, at: &Path, mounts: &[Rc<fuse::Mounted>]) -> Result<Option<Rc<fuse::Mounted>>> {
    let place = at.to_path_buf();
    let real = path_blocking(rt, at, move || std::fs::canonicalize(&place).unwrap_or(place)).await?;
    let holding = mounts.iter().filter(|m| m.is_alive() && real.starts_with(m.mountpoint()));
    Ok(holding.max_by_key(|m| m.mountpoint().components().count()).cloned())
}

/// The snapshots of a mounted file system, for its folder `.zfs`.
struct Snaps(SnapshotsOf);

impl fuse::SnapSource for Snaps {
    fn snapdir(&self) -> fuse::Snapdir {
        match self.0.snapdir() {
            0 => fuse::Snapdir::Hidden,
            1 => fuse::Snapdir::Visible,
            _ => fuse::Snapdir::Disabled,
        }
    }
    fn list(&self) -> LocalBoxFuture<'_, Result<Vec<(String, u64)>>> {
        Box::pin(self.0.list())
    }
    fn find<'a>(&'a self, name: &'a str) -> LocalBoxFuture<'a, Result<Option<u64>>> {
        Box::pin(self.0.find(name))
    }
    fn changed(&self) -> Option<base::WallTime> {
        self.0.changed()
    }
    fn may_change(&self) -> bool {
        self.0.may_change()
    }
    fn allow<'a>(&'a self, who: SnapUser, change: SnapChange<'a>) -> LocalBoxFuture<'a, Result<()>> {
        let SnapUser { uid, gid, groups } = who;
        let who = Identity { uid, gid, groups };
        Box::pin(async move {
            match change {
                SnapChange::Create(_) => self.0.allow_create(&who).await,
                SnapChange::Destroy(name) => self.0.allow_destroy(&who, name).await,
                SnapChange::Rename(name, _) => self.0.allow_rename(&who, name).await,
            }
        })
    }
    fn change<'a>(&'a self, change: SnapChange<'a>) -> LocalBoxFuture<'a, Result<()>> {
        Box::pin(async move {
            match change {
                SnapChange::Create(name) => self.0.create(name).await,
                SnapChange::Destroy(name) => self.0.destroy(name).await,
                SnapChange::Rename(name, new) => self.0.rename(name, new).await,
            }
        })
    }
    fn open<'a>(&'a self, name: &'a str) -> LocalBoxFuture<'a, Result<Rc<Zfs>>> {
        Box::pin(self.0.open(name))
    }
}

/// The volumes of a pool, for its folder.
struct Shelf {
    rt: Rt,
    volumes: VolumesOf,
}

impl fuse::VolumeSource for Shelf {
    fn find<'a>(&'a self, path: &'a str) -> LocalBoxFuture<'a, Result<Option<fuse::VolumeNode>>> {
        Box::pin(async move {
            Ok(self.volumes.find(path).await?.map(|entry| match entry {
                VolumeEntry::Folder(object) => fuse::VolumeNode::folder(object),
                VolumeEntry::Volume(info) => fuse::VolumeNode {
                    object: info.object,
                    is_folder: false,
                    size: info.size,
                    block_size: info.block_size,
                    read_only: info.read_only,
                    referenced: info.referenced,
                    created: info.created,
                },
            }))
        })
    }
    fn list<'a>(&'a self, folder: &'a str) -> LocalBoxFuture<'a, Result<Vec<(String, bool, u64)>>> {
        Box::pin(async move {
            let all = self.volumes.list(folder).await?;
            Ok(all.into_iter().map(|n| (n.name, n.is_folder, n.object)).collect())
        })
    }
    fn open<'a>(&'a self, path: &'a str) -> LocalBoxFuture<'a, Result<Rc<dyn fuse::VolumeUse>>> {
        Box::pin(async move {
            let hold = Rc::new(self.volumes.open(path).await?);
            let file = Rc::new(OpenFile { hold: RefCell::new(Some(hold.clone())), closed: Notify::new() });
            let watched = file.clone();
            self.rt.spawn("volume file", async move {
                // The file is closed, or a command wants the volume.
                select2(watched.closed.notified(), hold.revoked()).await;
                let ours = watched.hold.take();
                // The last one releases the volume.
                drop((ours, hold));
            });
            Ok(file as Rc<dyn fuse::VolumeUse>)
        })
    }
}

/// The hold of an open file on its volume.
struct OpenFile {
    hold: RefCell<Option<Rc<VolumeHold>>>,
    closed: Notify,
}

impl fuse::VolumeUse for OpenFile {
    fn volume(&self) -> Option<Rc<Volume>> {
        self.hold.borrow().as_ref().map(|hold| hold.volume().clone())
    }
    fn close(&self) {
        self.closed.notify_one();
    }
}

/// A file system that programs see.
enum Shown {
    /// By a mount of its own.
    Mounted(Rc<fuse::Mounted>),
    /// Within the mount of another one.
    Within(Rc<fuse::Grafted>),
}

impl Shown {
    /// Its mount, or the one that it is shown in.
    fn mount(&self) -> &Rc<fuse::Mounted> {
        match self {
            Shown::Mounted(m) => m,
            Shown::Within(g) => g.outer(),
        }
    }

    /// With `force` open files get errors from now on.
    async fn end(&self, force: bool, is_alone: bool) -> Result<()> {
        match self {
            Shown::Mounted(m) => m.unmount_at(force, force, is_alone).await,
            Shown::Within(g) => g.unmount(force).await,
        }
    }
}

impl ActiveMount for Shown {
    fn is_alive(&self) -> bool {
        match self {
            Shown::Mounted(m) => m.is_alive(),
            Shown::Within(g) => g.is_alive(),
        }
    }
    fn is_attached(&self, table: &MountTable) -> bool {
        match self {
            Shown::Mounted(m) => m.is_attached(table),
            Shown::Within(g) => g.is_attached(table),
        }
    }
    fn ended(&self) -> LocalBoxFuture<'_, ()> {
        match self {
            Shown::Mounted(m) => Box::pin(m.ended()),
            Shown::Within(g) => Box::pin(g.ended()),
        }
    }
    fn is_alone(&self, table: &MountTable) -> bool {
        match self {
            Shown::Mounted(m) => m.is_alone(table),
            Shown::Within(_) => true,
        }
    }
    fn unmount(&self, force: bool, is_alone: bool) -> LocalBoxFuture<'_, Result<()>> {
        Box::pin(async move {
            match self.end(false, is_alone).await {
                Err(_) if force => self.end(true, is_alone).await,
                result => result,
            }
        })
    }
    fn can_suspend(&self) -> bool {
        match self {
            Shown::Mounted(m) => m.can_suspend(),
            Shown::Within(g) => g.can_suspend(),
        }
    }
    fn suspend(&self) -> LocalBoxFuture<'_, Result<Suspension>> {
        Box::pin(async move {
            let suspended = match self {
                Shown::Mounted(m) => m.suspend().await?,
                Shown::Within(g) => g.suspend().await?,
            };
            let held = suspended.held().to_vec();
            let resume: Resume = Box::new(|zfs, kept| Box::pin(async move { suspended.resume(zfs, &kept).await }));
            Ok(Suspension { held, resume })
        })
    }
    fn root_changed(&self) {
        match self {
            Shown::Mounted(m) => m.root_changed(),
            Shown::Within(_) => {}
        }
    }
    fn outer(&self) -> usize {
        Rc::as_ptr(self.mount()).addr()
    }
    fn is_within(&self) -> bool {
        matches!(self, Shown::Within(_))
    }
    fn as_any(&self) -> &dyn Any {
        self
    }
}
