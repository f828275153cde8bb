//! FUSE: the device, mounting and unmounting.
//!
//! Root opens `/dev/fuse` and mounts by itself. Other users run `fusermount3`, which is set-uid
//! root: it mounts and sends the open device back over a socket.
//!
//! A path walk may wait for a file system that the engine itself serves: the parent of a mount
//! point is often one of ours, and unmounting writes back dirty pages. So all of it runs on a
//! thread of its own ([`blocking`]) while the engine goes on answering. Mounts are found in the
//! list of mounts, not by looking at paths: see [`crate::MountTable`].
//!
//! The kernel passes `sync` and `syncfs` on only to servers of a mount with a block device (type
//! `fuseblk`, Linux 6.18), see [`crate::fusedev`].

use std::collections::BTreeSet;
use std::ffi::CString;
use std::future::poll_fn;
use std::io::{self, Read};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Poll, Waker};
use std::time::Duration;

use base::{Error, ErrorKind, Result};
use rustix::fs::{AtFlags, CWD, Mode, OFlags, StatxAttributes, StatxFlags};
use rustix::io::{Errno, FdFlags, fcntl_setfd};
use rustix::mount::{MountFlags, MoveMountFlags, OpenTreeFlags, UnmountFlags, mount, open_tree, unmount};

use crate::fdio::Fd;
use crate::fusedev;
use crate::mounttable::{DevNumber, MountEntry, MountTable};
use crate::open::os_error;
use crate::passing::receive_with;
use crate::process::{effective_gid, effective_uid};

/// The device that FUSE requests come from.
const DEVICE: &str = "/dev/fuse";
/// The helper of ordinary users, from libfuse 3.
const HELPER: &str = "fusermount3";
/// Tries of the helper to unmount a mount that it does not find, though it is there.
const HELPER_TRIES: u32 = 10;

/// How a FUSE file system is mounted.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct FuseMount {
    /// The source in the list of mounts.
    pub source: String,
    /// The type is `fuse.SUBTYPE`, or `fuse` if None.
    pub subtype: Option<String>,
    /// Users other than the mounting one may use it.
    pub allow_other: bool,
    /// The kernel checks permissions by mode and owner.
    pub default_permissions: bool,
    /// Nothing may be changed.
    pub readonly: bool,
    /// Set-user-id bits have no effect.
    pub nosuid: bool,
    /// Device files cannot be opened.
    pub nodev: bool,
    /// Nothing can be executed.
    pub noexec: bool,
    /// The list of mounts shows `noatime`.
    pub noatime: bool,
    /// The mount gets a block device where that makes the kernel pass `sync` and `syncfs` on
    /// ([`crate::fusedev`]); without one otherwise.
    pub sync_passes: bool,
}

/// How a mount came about, which is how it ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MountedBy {
    /// By system call.
    Us,
    /// By the set-uid helper.
    Helper,
}

/// Runs `f`, which may block, on a thread of its own. [`ErrorKind::Interrupted`] if `f` panics. If
/// the future is dropped `f` goes on alone.
pub async fn blocking<T: Send + 'static>(f: impl FnOnce() -> T + Send + 'static) -> Result<T> {
    let slot = Arc::new(Mutex::new(Slot { value: None, over: false, waker: None }));
    let end = End(slot.clone());
    let started = std::thread::Builder::new().name("weir-mount".into()).spawn(move || {
        let end = end;
        let value = f();
        end.0.lock().unwrap_or_else(PoisonError::into_inner).value = Some(value);
    });
    if let Err(e) = started {
        return Err(Error::new(ErrorKind::Io, format!("no thread for a blocking call: {e}")));
    }
    poll_fn(|cx| {
        let mut s = slot.lock().unwrap_or_else(PoisonError::into_inner);
        if !s.over {
            s.waker = Some(cx.waker().clone());
            return Poll::Pending;
        }
        let died = || Error::new(ErrorKind::Interrupted, "the thread of a blocking call has died");
        Poll::Ready(s.value.take().ok_or_else(died))
    })
    .await
}

struct Slot<T> {
    value: Option<T>,
    over: bool,
    waker: Option<Waker>,
}

/// Wakes the waiter when the thread is done, also when it panics.
struct End<T>(Arc<Mutex<Slot<T>>>);

impl<T> Drop for End<T> {
    fn drop(&mut self) {
        let waker = {
            let mut s = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            s.over = true;
            s.waker.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

/// Where a FUSE file system was mounted.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FusePlace {
    /// The folder.
    pub path: PathBuf,
    /// How it came about.
    pub by: MountedBy,
    /// The number of the file system, by which its mounts are found wherever they are. None if the
    /// list of mounts could not be read.
    pub dev: Option<DevNumber>,
}

impl FusePlace {
    /// Where it is mounted in this mount namespace, the outermost first.
    fn mounts(&self) -> Vec<PathBuf> {
        match (MountTable::read(), self.dev) {
            (Ok(table), Some(dev)) => table.of(dev).into_iter().map(|e| e.at.clone()).collect(),
            _ => vec![self.path.clone()],
        }
    }

    /// The number of the connection: the number of the file system's device as the kernel keeps it,
    /// with 20 bits of minor number.
    fn connection(&self) -> Option<u32> {
        self.dev.map(connection_of)
    }
}

fn connection_of((major, minor): (u32, u32)) -> u32 {
    major << 20 | minor
}

/// Mounts at `mountpoint`, which must be a directory, and gives the device, which does not block.
/// Root mounts by system call, other users through `fusermount3`.
pub async fn fuse_mount(mountpoint: &Path, opts: FuseMount) -> Result<(Fd, FusePlace)> {
    let path = mountpoint.to_owned();
    let (fd, place) = blocking(move || {
        let (fd, by) = if effective_uid() == 0 {
            (mount_as_root(&path, &opts)?, MountedBy::Us)
        } else {
            (mount_by_helper(&path, &opts)?, MountedBy::Helper)
        };
        let listed = || MountTable::read().ok()?.top_at(&path).filter(|e| e.fstype.starts_with("fuse")).map(|e| e.dev);
        let dev = mounted_at(&path).or_else(listed);
        Ok::<_, Error>((fd, FusePlace { path, by, dev }))
    })
    .await??;
    crate::set_nonblocking(fd.as_fd(), true).map_err(|e| os_error(DEVICE, "fcntl", &e))?;
    Ok((Rc::new(fd), place))
}

/// A mount that [`fuse_unmount`] detached, kept alive outside the tree. It ends when this is
/// dropped, unless another namespace has a copy; dropping may wait for the file system.
pub struct HeldMount(OwnedFd);

impl HeldMount {
    /// Drops it on a thread of its own: the kernel may have something to write back.
    pub async fn release(self) -> Result<()> {
        blocking(move || drop(self)).await
    }

    /// Mounts it again where it was.
    pub async fn restore(self, place: &FusePlace) -> Result<()> {
        let path = place.path.clone();
        blocking(move || move_mount(&self.0, &path)).await?
    }
}

/// The file system that is mounted at `path`, if one is, as the kernel knows it without asking the
/// file system's server (Linux 5.8).
fn mounted_at(path: &Path) -> Option<DevNumber> {
    let flags = AtFlags::STATX_DONT_SYNC | AtFlags::NO_AUTOMOUNT | AtFlags::SYMLINK_NOFOLLOW;
    let found = rustix::fs::statx(CWD, path, flags, StatxFlags::empty()).ok()?;
    let is_root = found.stx_attributes & found.stx_attributes_mask & StatxAttributes::MOUNT_ROOT;
    (!is_root.is_empty()).then_some((found.stx_dev_major, found.stx_dev_minor))
}

/// Whether `path`, or the nearest folder above it that exists, is within a FUSE mount whose server
/// is gone, or may be. Blocks for as long as a server does not answer.
pub fn is_way_dead(path: &Path) -> bool {
    for folder in path.ancestors() {
        match rustix::fs::statfs(folder) {
            Ok(_) => return false,
            Err(Errno::NOENT) => {}
            Err(_) => return true,
        }
    }
    true
}

/// Ends the mount at `place`. [`ErrorKind::Busy`], and nothing changed, if it is in use or mounted
/// elsewhere in this mount namespace; with `is_alone` the caller knows that it is not, and the list
/// of mounts is not read. Where the kernel allows, the file system lives on until the returned
/// mount is dropped. None also if it was not mounted here any more.
pub async fn fuse_unmount(place: &FusePlace, is_alone: bool) -> Result<Option<HeldMount>> {
    let place = place.clone();
    blocking(move || {
        let is_here = is_alone && place.dev.is_some() && mounted_at(&place.path) == place.dev;
        let mounts = if is_here { vec![place.path.clone()] } else { place.mounts() };
        let Some(at) = mounts.iter().find(|p| **p == place.path).or(mounts.first()).cloned() else { return Ok(None) };
        let on_top = || MountTable::read().ok().and_then(|t| t.top_at(&at).map(|e| e.dev));
        if !is_here && place.dev.is_some() && on_top() != place.dev {
            let why = format!("another file system is mounted over '{}': unmount that first", at.display());
            return Err(Error::new(ErrorKind::Busy, why));
        }
        if place.by == MountedBy::Helper {
            return unmount_by_helper(&at, false).map(|()| None);
        }
        let held = clone_mount(&at).ok().map(HeldMount);
        unmount_as_root(&at, false, false)?;
        if !is_here
            && place.dev.is_some()
            && let Some(other) = place.mounts().first()
        {
            if let Some(held) = held {
                move_mount(&held.0, &at)?;
            }
            let why = format!("it is mounted at '{}' as well: unmount that first", other.display());
            return Err(Error::new(ErrorKind::Busy, why));
        }
        Ok(held)
    })
    .await?
}

/// Takes a file system out of the tree wherever it is mounted here; it ends with its last user.
/// `force`: every request fails from now on.
pub async fn fuse_detach(place: &FusePlace, force: bool) -> Result<()> {
    let place = place.clone();
    blocking(move || {
        let mut result = Ok(());
        // The innermost first.
        for at in place.mounts().iter().rev() {
            let detached = match place.by {
                MountedBy::Us => unmount_as_root(at, true, force),
                MountedBy::Helper => unmount_by_helper(at, true),
            };
            result = result.and(detached);
        }
        // The helper cannot force; the mounting user may cut the connection, where the files for
        // that are mounted.
        if let Some(connection) = place.connection().filter(|_| force) {
            abort(connection);
        }
        result
    })
    .await?
}

/// Error number of a FUSE file system whose server is gone, as the documentation of statfs(2) and
/// the kernel's fuse/dev.c have it.
const NOT_CONNECTED: Errno = Errno::NOTCONN;
/// Time for a mount to show whether its server lives. A server that was killed counts as alive
/// until the kernel has closed its files.
const PROBE_LIMIT: Duration = Duration::from_secs(10);

/// Which mounts [`fuse_detach_dead`] probes: a file system is busy while it is probed, so that its
/// user cannot unmount it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Probe {
    /// Not this one.
    No,
    /// Unless a process that this user can see serves it.
    Unserved,
    /// In any case: it stands in the way. Waits for a server that is being killed.
    Always,
}

/// Detaches FUSE mounts whose server is gone, of those that `probe` chooses and this user mounted;
/// returns their paths. Mounts of servers that live, or do not answer in time, stay.
pub async fn fuse_detach_dead(probe: impl Fn(&MountEntry) -> Probe + Send + 'static) -> Result<Vec<PathBuf>> {
    blocking(move || {
        let user = effective_uid();
        let mut detached = Vec::new();
        let mut passed: BTreeSet<u64> = BTreeSet::new();
        let mut served = BTreeSet::new();
        // Each that goes may uncover another at the same place: until none goes.
        loop {
            let table = MountTable::read()?;
            let before = detached.len();
            for entry in table.entries() {
                let ours = entry.fstype.starts_with("fuse") && entry.fuse_user() == Some(user);
                if !ours || passed.contains(&entry.id) {
                    continue;
                }
                let why = probe(entry);
                if why == Probe::No || table.top_at(&entry.at).is_none_or(|top| top.id != entry.id) {
                    continue;
                }
                passed.insert(entry.id);
                if why == Probe::Unserved {
                    let connection = connection_of(entry.dev);
                    if !served.contains(&connection) {
                        served = served_connections();
                    }
                    if served.contains(&connection) {
                        continue;
                    }
                }
                // It may have gone with the one that it was in.
                if !is_dead(&entry.at) || mounted_at(&entry.at).is_some_and(|dev| dev != entry.dev) {
                    continue;
                }
                let by = if user == 0 { MountedBy::Us } else { MountedBy::Helper };
                let gone = match by {
                    MountedBy::Us => unmount_as_root(&entry.at, true, false),
                    MountedBy::Helper => unmount_by_helper(&entry.at, true),
                };
                match gone {
                    Ok(()) => detached.push(entry.at.clone()),
                    // Another daemon may have been there first, and one within a dead mount goes
                    // with that.
                    Err(e) if why == Probe::Always && is_there(entry.id)? => return Err(e),
                    Err(_) => {}
                }
            }
            if detached.len() == before {
                return Ok(detached);
            }
        }
    })
    .await?
}

/// Whether there is a mount with that number.
fn is_there(id: u64) -> Result<bool> {
    Ok(MountTable::read()?.entries().iter().any(|e| e.id == id))
}

/// The FUSE connections that processes have open, as far as this user can see them (Linux shows the
/// number of the connection with the descriptor: `fuse_connection`).
fn served_connections() -> BTreeSet<u32> {
    let entries = |path: PathBuf| std::fs::read_dir(path).into_iter().flatten().flatten();
    let mut out = BTreeSet::new();
    for process in entries(PathBuf::from("/proc")) {
        if !process.file_name().as_bytes().iter().all(u8::is_ascii_digit) {
            continue;
        }
        for fd in entries(process.path().join("fd")) {
            if std::fs::read_link(fd.path()).is_ok_and(|to| to == Path::new("/dev/fuse")) {
                let about = process.path().join("fdinfo").join(fd.file_name());
                let about = std::fs::read_to_string(about).unwrap_or_default();
                let number = about.lines().find_map(|l| l.strip_prefix("fuse_connection:"));
                out.extend(number.and_then(|n| n.trim().parse::<u32>().ok()));
            }
        }
    }
    out
}

/// Probes the file system at `path` by `statfs` on a thread of its own. Not by the attributes of
/// its root: the kernel may cache them for long.
fn is_dead(path: &Path) -> bool {
    let Ok(path) = c_string(path.as_os_str().as_bytes(), "the mount point") else { return false };
    let (tell, told) = std::sync::mpsc::channel();
    let ask = move || {
        let dead = rustix::fs::statfs(&path).is_err_and(|e| e == NOT_CONNECTED);
        // The receiver may have timed out.
        let _ = tell.send(dead);
    };
    let started = std::thread::Builder::new().name("weir-probe".into()).spawn(ask);
    started.is_ok() && told.recv_timeout(PROBE_LIMIT).unwrap_or(false)
}

/// Ends a connection: every request fails from now on, wherever it is mounted. Without effect where
/// we may not, or where the kernel's list of connections is not mounted.
fn abort(connection: u32) {
    let _ = std::fs::write(format!("/sys/fs/fuse/connections/{connection}/abort"), "1");
}

/// Lets the kernel read ahead up to `kib` in files of a mount, where that is allowed. Without
/// effect otherwise: it only affects speed.
pub async fn fuse_set_readahead(place: &FusePlace, kib: u32) {
    let Some((major, minor)) = place.dev else { return };
    let set = move || {
        for suffix in ["", "-fuseblk"] {
            let _ = std::fs::write(format!("/sys/class/bdi/{major}:{minor}{suffix}/read_ahead_kb"), kib.to_string());
        }
    };
    let _ = blocking(set).await;
}

/// A copy of the mount at `path` that is nowhere in the tree (Linux 5.2).
fn clone_mount(path: &Path) -> Result<OwnedFd> {
    let name = path.display().to_string();
    let path = c_string(path.as_os_str().as_bytes(), "the mount point")?;
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
    open_tree(CWD, &path, flags).map_err(|e| os_error(&name, "cannot be copied", &e.into()))
}

fn move_mount(from: &OwnedFd, path: &Path) -> Result<()> {
    let name = path.display().to_string();
    let path = c_string(path.as_os_str().as_bytes(), "the mount point")?;
    // The descriptor itself is moved.
    rustix::mount::move_mount(from, c"", CWD, &path, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)
        .map_err(|e| os_error(&name, "cannot be mounted there", &e.into()))
}

/// Shows the mount at `from` at another place as well, as `mount --bind` does.
pub async fn fuse_bind(from: &Path, to: &Path) -> Result<()> {
    let (from, to) = (from.to_path_buf(), to.to_path_buf());
    blocking(move || clone_mount(&from).and_then(|copy| move_mount(&copy, &to))).await?
}

fn open_device() -> Result<OwnedFd> {
    rustix::fs::open(DEVICE, OFlags::RDWR | OFlags::CLOEXEC | OFlags::NONBLOCK, Mode::empty())
        .map_err(|e| os_error(DEVICE, "cannot be opened", &e.into()))
}

fn c_string(bytes: &[u8], what: &str) -> Result<CString> {
    CString::new(bytes).map_err(|_| Error::invalid(format!("{what} holds a NUL")))
}

fn mount_as_root(path: &Path, opts: &FuseMount) -> Result<OwnedFd> {
    let fd = open_device()?;
    let name = path.display().to_string();
    let target = c_string(path.as_os_str().as_bytes(), "the mount point")?;
    let mut data =
        format!("fd={},rootmode=40000,user_id={},group_id={}", fd.as_raw_fd(), effective_uid(), effective_gid());
    if opts.default_permissions {
        data.push_str(",default_permissions");
    }
    if opts.allow_other {
        data.push_str(",allow_other");
    }
    let data = c_string(data.as_bytes(), "the options")?;
    let flags = [
        (opts.readonly, MountFlags::RDONLY),
        (opts.nosuid, MountFlags::NOSUID),
        (opts.nodev, MountFlags::NODEV),
        (opts.noexec, MountFlags::NOEXEC),
        (opts.noatime, MountFlags::NOATIME),
    ];
    let flags: MountFlags = flags.iter().filter(|(on, _)| *on).map(|(_, flag)| *flag).collect();
    let mount_as = |source: &str, fstype: &str| -> Result<rustix::io::Result<()>> {
        let fstype = opts.subtype.as_ref().map_or(fstype.to_owned(), |s| format!("{fstype}.{s}"));
        let fstype = c_string(fstype.as_bytes(), "the type")?;
        let source = c_string(source.as_bytes(), "the name of the file system")?;
        Ok(mount(&source, &target, &fstype, flags, data.as_c_str()))
    };
    // Where a mount with a device fails (no loop devices, a container), the one without may work.
    if opts.sync_passes
        && let Some(device) = fusedev::SyncDevice::new(&opts.source)
        && mount_as(device.source(), "fuseblk")?.is_ok()
    {
        return Ok(fd);
    }
    mount_as(&opts.source, "fuse")?.map_err(|e| os_error(&name, "cannot be mounted", &e.into()))?;
    Ok(fd)
}

fn unmount_as_root(path: &Path, lazy: bool, force: bool) -> Result<()> {
    let name = path.display().to_string();
    let target = c_string(path.as_os_str().as_bytes(), "the mount point")?;
    let mut flags = UnmountFlags::NOFOLLOW;
    flags.set(UnmountFlags::DETACH, lazy);
    flags.set(UnmountFlags::FORCE, force);
    unmount(&target, flags).map_err(|e| match e {
        Errno::BUSY => Error::new(ErrorKind::Busy, "it is in use: end what uses it"),
        e => os_error(&name, "cannot be unmounted", &e.into()),
    })
}

fn helper(args: &[&std::ffi::OsStr], socket: Option<&UnixStream>) -> Result<()> {
    let mut command = Command::new(HELPER);
    command.args(args).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    if let Some(s) = socket {
        // The helper inherits a copy without close-on-exec, made between fork and exec by this call
        // only: the descriptor itself is inheritable from here until `socket` is dropped by our
        // caller.
        fcntl_setfd(s, FdFlags::empty()).map_err(|e| os_error(HELPER, "fcntl", &e.into()))?;
        command.env("_FUSE_COMMFD", s.as_raw_fd().to_string());
    }
    let mut child = command.spawn().map_err(|e| {
        if e.kind() == io::ErrorKind::NotFound {
            return Error::new(ErrorKind::Unsupported, format!("{HELPER} is not installed: only root can mount"));
        }
        os_error(HELPER, "cannot be started", &e)
    })?;
    let mut said = String::new();
    if let Some(out) = child.stderr.take() {
        // Its messages are short; a limit all the same.
        let _ = out.take(4096).read_to_string(&mut said);
    }
    let status = child.wait().map_err(|e| os_error(HELPER, "wait", &e))?;
    if status.success() {
        return Ok(());
    }
    let said = said.trim();
    let kind = if said.contains("busy") { ErrorKind::Busy } else { ErrorKind::Denied };
    Err(Error::new(kind, if said.is_empty() { format!("{HELPER} failed: {status}") } else { said.to_owned() }))
}

fn mount_by_helper(path: &Path, opts: &FuseMount) -> Result<OwnedFd> {
    let mut list = vec![format!("fsname={}", escape(&opts.source))];
    list.extend(opts.subtype.iter().map(|s| format!("subtype={}", escape(s))));
    let words = [
        (opts.default_permissions, "default_permissions"),
        (opts.allow_other, "allow_other"),
        (opts.readonly, "ro"),
        (opts.noexec, "noexec"),
        (opts.noatime, "noatime"),
    ];
    list.extend(words.iter().filter(|(on, _)| *on).map(|(_, w)| (*w).to_owned()));
    let options = list.join(",");
    let (ours, theirs) = UnixStream::pair().map_err(|e| os_error(HELPER, "socketpair", &e))?;
    helper(&["-o".as_ref(), options.as_ref(), "--".as_ref(), path.as_os_str()], Some(&theirs))?;
    drop(theirs);
    receive_fd(&ours).map_err(|e| os_error(HELPER, "sent no device", &e))
}

/// Commas and backslashes of an option's value.
fn escape(value: &str) -> String {
    value.replace('\\', "\\\\").replace(',', "\\,")
}

fn unmount_by_helper(path: &Path, lazy: bool) -> Result<()> {
    let busy = |e: Error| match e.kind() {
        ErrorKind::Busy => Error::new(ErrorKind::Busy, "it is in use: end what uses it"),
        _ => e,
    };
    let mut args: Vec<&std::ffi::OsStr> = vec!["-u".as_ref()];
    if lazy {
        args.push("-z".as_ref());
    }
    args.extend(["--".as_ref(), path.as_os_str()]);
    let mut done = helper(&args, None);
    for _ in 1..HELPER_TRIES {
        // It reads the list of mounts in pieces, and misses an entry where others unmount something
        // meanwhile.
        let missed = done.as_ref().is_err_and(|e| e.to_string().contains("not found in /etc/mtab"));
        if !missed || !MountTable::read().is_ok_and(|t| t.top_at(path).is_some()) {
            break;
        }
        done = helper(&args, None);
    }
    done.map_err(busy)
}

/// Takes a descriptor that the other end sent beside one byte.
fn receive_fd(socket: &UnixStream) -> io::Result<OwnedFd> {
    let got = receive_with(socket.as_fd(), &mut [0])?;
    let sent = got.fds.into_iter().next().filter(|_| got.bytes > 0);
    sent.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "no descriptor in the message"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_blocking_call_leaves_the_engine_running() {
        let engine = crate::Engine::new(crate::EngineConfig::default()).expect("an engine");
        let rt = engine.rt();
        engine.block_on(async {
            let (tx, rx) = std::sync::mpsc::channel();
            // The call ends only when the engine does something else meanwhile.
            let call = blocking(move || rx.recv().expect("a word"));
            let other = async {
                rt.yield_now().await;
                tx.send(7).expect("somebody waits");
            };
            assert_eq!(rt::join::join2(call, other).await.0.expect("a result"), 7);
            let lost = blocking(|| std::panic::resume_unwind(Box::new("dies")));
            let lost: Result<()> = lost.await;
            assert_eq!(lost.expect_err("no result").kind(), ErrorKind::Interrupted);
        });
    }

    #[test]
    fn the_helper_sends_a_descriptor_or_none() {
        let (a, b) = UnixStream::pair().expect("pair");
        io::Write::write_all(&mut &a, b"x").expect("write");
        assert!(receive_fd(&b).is_err(), "a byte without a descriptor");
        let (c, d) = UnixStream::pair().expect("pair");
        crate::send_with(a.as_fd(), b"x", &[c.as_fd()]).expect("send");
        let mut c = UnixStream::from(receive_fd(&b).expect("it came"));
        io::Write::write_all(&mut c, b"y").expect("write");
        let mut byte = [0];
        io::Read::read_exact(&mut &d, &mut byte).expect("read");
        assert_eq!(&byte, b"y");
        drop(a);
        assert!(receive_fd(&b).is_err(), "the other end is closed");
    }

    #[test]
    fn mounts_are_seen_without_the_list() {
        let listed = MountTable::read().expect("a list").top_at(Path::new("/proc")).map(|e| e.dev);
        assert!(listed.is_some());
        assert_eq!(mounted_at(Path::new("/proc")), listed);
        assert_eq!(mounted_at(Path::new("/proc/self/fd")), None);
        assert_eq!(mounted_at(Path::new("/nowhere")), None);
        assert!(!is_way_dead(Path::new("/proc/nowhere/at/all")));
    }

    #[test]
    fn options_are_escaped() {
        assert_eq!(escape("a,b\\c"), "a\\,b\\\\c");
    }
}
