//! A file system within the mount of another one, served by the same session: see [`crate::tree`].

use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::rc::Rc;

use base::{Error, ErrorKind, Nanos, Result};
use host::MountTable;
use rt::Rt;
use zpl::Zfs;

use crate::mounted::{CLOSES_WAIT, FORCED_WAIT, Mounted};
use crate::snapdir::SnapSource;
use crate::suspend::Suspended;
use crate::tree::{Member, Tree, cover_error};
use crate::zfs::ZfsHandler;

/// Tries to make the kernel drop cached nodes, while programs look names up in between.
const FORGET_TRIES: u32 = 3;
/// Time for the kernel's FORGET messages, which wait for their turn among the requests.
const FORGETS_WAIT: Nanos = Nanos::from_ms(500);

/// A file system that is seen within the mount of another one.
pub struct Grafted {
    rt: Rt,
    outer: Rc<Mounted>,
    tree: Rc<Tree>,
    member: Rc<Member>,
}

/// Shows `zfs` at `at`, a folder within `outer`, which was mounted with
/// [`crate::MountOpts::holds_others`]. The options of `outer` on programs, devices, set-id bits and
/// read-only apply to `zfs` as well.
pub async fn graft(
    rt: &Rt,
    outer: &Rc<Mounted>,
    zfs: Rc<Zfs>,
    at: &Path,
    snaps: Option<Rc<dyn SnapSource>>,
) -> Result<Rc<Grafted>> {
    let Some(tree) = outer.tree().cloned() else {
        return Err(Error::unsupported("the mount around it serves one file system only"));
    };
    let place = at.to_owned();
    // The path lookup goes through the session itself.
    let look = host::blocking(move || {
        let real = std::fs::canonicalize(&place)?;
        let ino = std::fs::metadata(&real)?.ino();
        Ok::<_, std::io::Error>((real, ino))
    });
    let (real, ino_seen) = look.await?.map_err(|e| Error::new(ErrorKind::Io, format!("{}: {e}", at.display())))?;
    let within = real.strip_prefix(outer.mountpoint()).map_err(|_| cover_error(crate::errno::NO_ENTRY))?;
    let path: Vec<&[u8]> = within.iter().map(OsStrExt::as_bytes).collect();
    let (place, ino) = tree.find(&path).await.map_err(cover_error)?;
    if ino != ino_seen {
        return Err(cover_error(crate::errno::NO_ENTRY));
    }
    let fs = ZfsHandler::new(rt, zfs, snaps).kernel_reads_acls();
    let member = tree.add(fs, place).map_err(cover_error)?;
    tree.drop_name(&member).await;
    Ok(Rc::new(Grafted { rt: rt.clone(), outer: outer.clone(), tree, member }))
}

impl Grafted {
    /// Whether requests can still come.
    pub fn is_alive(&self) -> bool {
        !self.member.is_gone() && self.outer.is_alive()
    }

    /// Whether the mount around it is in the tree of mounts.
    pub fn is_attached(&self, table: &MountTable) -> bool {
        self.is_alive() && self.outer.is_attached(table)
    }

    /// Whether it can be suspended.
    pub fn can_suspend(&self) -> bool {
        self.is_alive() && self.member.fs.switch().can_suspend()
    }

    /// Suspends it, as [`Mounted::suspend`].
    pub async fn suspend(&self) -> Result<Suspended> {
        self.member.fs.switch().suspend().await
    }

    /// The mount around it.
    pub fn outer(&self) -> &Rc<Mounted> {
        &self.outer
    }

    /// Waits until it was taken out, or the mount around it ended, and every request was dealt
    /// with.
    pub async fn ended(&self) {
        self.member.ended().await;
    }

    /// Takes it out. `force`: also while it is in use; open files give errors then. `Busy`, and
    /// nothing changes, if it is in use without `force`.
    pub async fn unmount(&self, force: bool) -> Result<()> {
        let (rt, member) = (&self.rt, &self.member);
        if !self.is_alive() {
            self.ended().await;
            return Ok(());
        }
        if member.holds_others() {
            return Err(Error::new(ErrorKind::Busy, "another file system is mounted within it: unmount that first"));
        }
        if !force {
            let closed = rt.timeout(CLOSES_WAIT, wait_until_zero(&member.open)).await;
            if closed.is_none() {
                return Err(Error::new(ErrorKind::Busy, "a process has files open there: end that"));
            }
            let mut tries = 0;
            while member.nlookup.count() > 0 || member.open.count() > 0 {
                if tries == FORGET_TRIES {
                    let why = "a process has its working folder there, or watches it: end that";
                    return Err(Error::new(ErrorKind::Busy, why));
                }
                tries += 1;
                self.tree.drop_name(member).await;
                rt.timeout(FORGETS_WAIT, wait_until_zero(&member.nlookup)).await;
            }
            if member.holds_others() || member.is_gone() {
                return Err(Error::new(ErrorKind::Busy, "it was mounted or unmounted at the same time"));
            }
        }
        self.tree.remove(member);
        if force {
            self.tree.drop_name(member).await;
        }
        if rt.timeout(FORCED_WAIT, self.tree.finish(member)).await.is_none() {
            return Err(Error::new(ErrorKind::Busy, "requests that began before are still under way"));
        }
        Ok(())
    }
}

/// Waits until a count is zero.
async fn wait_until_zero(gate: &rt::sync::Gate) {
    while gate.count() > 0 {
        gate.wait().await;
    }
}
