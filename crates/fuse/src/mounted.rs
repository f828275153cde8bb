//! Mounting, and what is mounted.

use std::path::{Path, PathBuf};
use std::rc::Rc;

use base::{Error, Nanos, Result};
use host::{FuseMount, MountedBy, fuse_mount, fuse_set_readahead, fuse_unmount};
use rt::Rt;

use crate::handler::Handler;
use crate::session::{Core, IO_MAX, Session};

pub use crate::session::SessionStats;

/// How long a forced end is waited for.
const FORCED_WAIT: Nanos = Nanos::from_secs(5);

/// How long copies of a mount in other mount namespaces may keep it alive after it was unmounted.
const COPIES_WAIT: Nanos = Nanos::from_secs(3);

/// How to mount.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MountOpts {
    /// Users other than the one who mounts may use it. For ordinary users `/etc/fuse.conf` must allow that.
    pub allow_other: bool,
    /// The kernel checks permissions by mode and owner.
    pub default_permissions: bool,
    /// What stands for the device in the list of mounts: the dataset.
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
    /// The list of mounts says `noatime` (property `atime=off`).
    pub noatime: bool,
    /// The kernel gathers small writes. It then decides sizes and times, and an error of a write may show at `fsync`
    /// only.
    pub writeback: bool,
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
            writeback: false,
            readahead_kib: (IO_MAX / 1024) as u32,
        }
    }
}

/// A mount. Dropping it does not end it: that is for [`Mounted::unmount`], or for whoever unmounts it by hand.
pub struct Mounted {
    rt: Rt,
    core: Rc<Core>,
    mountpoint: PathBuf,
    by: MountedBy,
}

/// Mounts what `handler` serves at `mountpoint`, a directory.
pub async fn mount_handler(rt: &Rt, handler: impl Handler, mountpoint: &Path, opts: MountOpts) -> Result<Rc<Mounted>> {
    let place = mountpoint.to_owned();
    // The list of mounts has the real path. Looking for it may lead through mounts of our own.
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
    };
    let (fd, by) = fuse_mount(&real, how).await?;
    let core = Session::start(rt, fd, handler, opts.writeback)?;
    fuse_set_readahead(&real, opts.readahead_kib).await;
    Ok(Rc::new(Mounted { rt: rt.clone(), core, mountpoint: real, by }))
}

impl Mounted {
    /// Unmounts and waits until every request was dealt with. `lazy`: it vanishes from the tree at once, the session
    /// ends when nobody uses it any more, and nobody waits for that here. `force`: what is under way fails, and whoever
    /// has files open there gets errors.
    /// `Busy` if it is in use and neither is asked for.
    pub async fn unmount(&self, lazy: bool, force: bool) -> Result<()> {
        if self.core.is_over() {
            self.core.ended().await;
            return Ok(());
        }
        fuse_unmount(&self.mountpoint, self.by, lazy, force).await?;
        if force {
            // Everything fails from now on. Where that could not be brought about it ends as a lazy one does.
            self.rt.timeout(FORCED_WAIT, self.core.ended()).await;
        } else if !lazy && self.rt.timeout(COPIES_WAIT, self.core.ended()).await.is_none() {
            // Nobody here uses it any more, but a process with mounts of its own was started while it was mounted and has a copy.
            // Such copies are seldom wanted: they are cut off, so that the dataset can be closed.
            self.core.cut();
            if self.rt.timeout(FORCED_WAIT, self.core.ended()).await.is_none() {
                let why =
                    format!("'{}' is still in use by a process with mounts of its own", self.mountpoint.display());
                return Err(Error::new(base::ErrorKind::Busy, why));
            }
        }
        Ok(())
    }

    /// Whether requests can still come.
    pub fn is_alive(&self) -> bool {
        !self.core.is_over()
    }

    /// Where it is, as the list of mounts has it.
    pub fn mountpoint(&self) -> &Path {
        &self.mountpoint
    }

    /// Waits until it is unmounted, by whomever, and every request was dealt with.
    pub async fn ended(&self) {
        self.core.ended().await;
    }

    /// Counters.
    pub fn stats(&self) -> SessionStats {
        self.core.stats()
    }
}
