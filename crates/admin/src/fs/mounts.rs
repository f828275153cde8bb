//! The mounts of a pool, and the rules for mounting.
//!
//! A front end ([`super::front_end`]) makes an open file system visible at a path; there is one per
//! process. The rules are OpenZFS's: a file system is mounted if `canmount=on` and `mountpoint` is
//! a path; parents come before children when mounting and after them when unmounting; an alternate
//! root precedes every path.
//!
//! Paths may lead through mounts of the same engine thread, which must be free to answer: system
//! calls on paths run on a thread of their own ([`host::blocking`]).

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::rc::Rc;

use base::{Error, ErrorKind, Nanos, Result};
use dsl::props::PropSource;
use dsl::{Dataset, Dir};
use host::{MountTable, MountWatch};
use zil::ZilStats;

use crate::engine::{PoolEngine, Progress, front_end, say};
use crate::fs::files::{self, Zfs};
use crate::fs::front_end::{ActiveMount, MountFlags, SnapshotsOf};
use crate::fs::places::{check_real_place, clear_dead_mounts, path_blocking};
use crate::fs::shares::Protocol;
use crate::fs::temp_props::TempProps;
use crate::keeper::Level;
use crate::kstat::pool::ObjsetFigures;

/// Time for an unmount. The kernel first writes back pages that were changed through mappings.
const UNMOUNT_LIMIT: Nanos = Nanos::from_secs(60);

/// Adds the forcing command to a `Busy` error.
pub fn advise_force(e: Error, command: &str) -> Error {
    if e.kind() == ErrorKind::Busy { Error::new(ErrorKind::Busy, format!("{e}, or use '{command}'")) } else { e }
}

/// How much of the use of a file system its unmount ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Force {
    /// None: it is refused while it is in use.
    No,
    /// `-f` of most commands. As OpenZFS on Linux, whose forced unmounts are refused like others, a
    /// file system in use stays. Use ends where OpenZFS has no like: of a file system that was
    /// unmounted from outside and lives on (`umount -l`), of one within the mount of another one,
    /// of a suspended pool, and where the way to it does not answer.
    Asked,
    /// All.
    Full,
}

impl Force {
    /// [`Force::Asked`] with the letter `-f`.
    pub fn asked(letter: bool) -> Force {
        if letter { Force::Asked } else { Force::No }
    }
    /// All use ends, or none.
    pub fn full(all: bool) -> Force {
        if all { Force::Full } else { Force::No }
    }
}

/// Fails if nothing can be mounted on this machine; on an engine thread.
pub fn usable() -> Result<()> {
    front_end()?.usable()
}

/// A file system that was unmounted and is to be mounted again as it was.
#[derive(Clone, Debug)]
pub struct Unmounted {
    /// Its name.
    pub name: String,
    /// The temporary properties of its mount.
    pub temp: TempProps,
    /// Where it was, if mount(8) had chosen that.
    pub at: Option<PathBuf>,
}

pub(super) struct Mounted {
    path: PathBuf,
    /// mount(8) has chosen the path.
    is_given: bool,
    pub(super) zfs: Rc<Zfs>,
    pub(super) front: Rc<dyn ActiveMount>,
    pub(super) temp: TempProps,
    flags: MountFlags,
    /// Later mounts have higher numbers: of several at one place the last is on top.
    number: u64,
}

impl Mounted {
    fn is_mounted(&self, table: Option<&MountTable>) -> bool {
        table.map_or_else(|| self.front.is_alive(), |t| self.front.is_attached(t))
    }
}

/// The mounts of one pool, by dataset name. Those unmounted from outside stay until their session
/// has ended.
#[derive(Default)]
pub struct Mounts {
    pub(super) active: RefCell<BTreeMap<String, Mounted>>,
    /// The number of the next one.
    next: Cell<u64>,
    watch: RefCell<Option<MountWatch>>,
    /// Warnings of the last mounts, not yet taken by the command that asked for them.
    notices: RefCell<Vec<String>>,
}

/// Where a dataset would be mounted.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum MountPoint {
    /// `none`
    None,
    /// `legacy`
    Legacy,
    /// A path, the alternate root included.
    Path(PathBuf),
}

/// The mount point of a value of `mountpoint` under an alternate root.
pub fn mount_point(value: &str, altroot: Option<&str>) -> MountPoint {
    match value {
        "none" | "-" | "" => MountPoint::None,
        "legacy" => MountPoint::Legacy,
        path => MountPoint::Path(PathBuf::from(with_altroot(path, altroot))),
    }
}

/// Properties without effect because a file system is shown in the mount of another one, one
/// sentence each.
fn differences(outer: &MountFlags, inner: &MountFlags) -> Vec<String> {
    let (out, name) = (&outer.source, &inner.source);
    let within = format!("it is shown within the mount of '{out}'");
    let mut all = Vec::new();
    if outer.readonly_mount && !inner.readonly {
        all.push(format!("'{name}' can only be read: {within}, which is read-only"));
    }
    match (outer.exec, inner.exec) {
        (false, true) => all.push(format!("programs of '{name}' cannot be executed: {within}, where exec=off")),
        (true, false) => all.push(format!("exec=off of '{name}' has no effect: {within}, where exec=on")),
        _ => {}
    }
    all
}

/// A path below an alternate root.
pub fn with_altroot(path: &str, altroot: Option<&str>) -> String {
    match altroot.map(|r| r.trim_end_matches('/')) {
        None | Some("") => path.to_string(),
        Some(root) if path == "/" => root.to_string(),
        Some(root) => format!("{root}{path}"),
    }
}

/// Checks a value of `mountpoint`.
pub fn check_mountpoint(value: &str) -> Result<()> {
    if value == "none" || value == "legacy" {
        return Ok(());
    }
    let bad = |why: &str| Err(Error::invalid(format!("'{value}' is not a mount point: {why}")));
    if !value.starts_with('/') {
        let why = format!("'mountpoint' must be an absolute path, 'none', or 'legacy', not '{value}'");
        return Err(Error::invalid(why));
    }
    if value.split('/').any(|p| p == ".." || p == ".") {
        return bad("it has a part that is only dots");
    }
    Ok(())
}

impl Mounts {
    /// The list of mounts; none if it cannot be read.
    fn table(&self) -> Option<Rc<MountTable>> {
        let mut watch = self.watch.borrow_mut();
        if watch.is_none() {
            *watch = MountWatch::new().ok();
        }
        watch.as_ref()?.table().ok()
    }

    /// Name and path of all mounted file systems, in order of name.
    pub fn list(&self) -> Vec<(String, PathBuf)> {
        let table = self.table();
        let all = self.active.borrow();
        let mounted = all.iter().filter(|(_, m)| m.is_mounted(table.as_deref()));
        mounted.map(|(n, m)| (n.clone(), m.path.clone())).collect()
    }

    /// As [`Mounts::list`], with those unmounted from outside whose session has not ended, in the
    /// order for unmounting: the innermost first, of those at one place the last.
    fn all(&self) -> Vec<(String, PathBuf)> {
        let mounts = self.active.borrow();
        let mut all: Vec<(&String, &Mounted)> = mounts.iter().collect();
        all.sort_by(|(_, a), (_, b)| (&b.path, b.number).cmp(&(&a.path, a.number)));
        all.into_iter().map(|(n, m)| (n.clone(), m.path.clone())).collect()
    }

    /// The file systems that are mounted, in order of name.
    pub fn file_systems(&self) -> Vec<Rc<Zfs>> {
        self.active.borrow().values().map(|m| m.zfs.clone()).collect()
    }

    /// The file system that is mounted as `name`.
    pub(crate) fn zfs_of(&self, name: &str) -> Option<Rc<Zfs>> {
        self.active.borrow().get(name).map(|m| m.zfs.clone())
    }

    /// I/O through each mount: reads, bytes, writes, bytes.
    pub fn counted(&self) -> Vec<(String, [u64; 4])> {
        self.active.borrow().iter().map(|(n, m)| (n.clone(), m.zfs.io_counts())).collect()
    }

    /// The counters of each.
    pub(crate) fn objsets(&self) -> Vec<ObjsetFigures> {
        let of = |(name, m): (&String, &Mounted)| ObjsetFigures {
            object: m.zfs.dataset().object.0,
            name: name.clone(),
            io: m.zfs.io_counts(),
            unlinks: m.zfs.unlink_counts(),
            zil: m.zfs.log().map_or(ZilStats::default(), |log| log.stats()),
        };
        self.active.borrow().iter().map(of).collect()
    }

    /// Takes the warnings of the last mounts, which are in the log as well.
    pub fn take_notices(&self) -> Vec<String> {
        self.notices.take()
    }
    pub(crate) fn has_notice(&self, sentence: &str) -> bool {
        self.notices.borrow().iter().any(|s| s == sentence)
    }
    pub(crate) fn add_notice(&self, sentence: String) {
        self.notices.borrow_mut().push(sentence);
    }

    /// Where `name` is mounted.
    pub fn path_of(&self, name: &str) -> Option<PathBuf> {
        // The list of mounts is long where there are many, and changes with each.
        if !self.is_open(name) {
            return None;
        }
        let table = self.table();
        let mounts = self.active.borrow();
        mounts.get(name).filter(|m| m.is_mounted(table.as_deref())).map(|m| m.path.clone())
    }

    /// Of these file systems, those that are mounted, and of them those that are at one place only.
    fn at_places(&self, of: &[(String, PathBuf)]) -> (BTreeSet<String>, BTreeSet<String>) {
        let table = self.table();
        let mounts = self.active.borrow();
        let known = of.iter().filter_map(|(name, _)| mounts.get(name).map(|m| (name, m)));
        let mounted: Vec<_> = known.filter(|(_, m)| m.is_mounted(table.as_deref())).collect();
        let alone = mounted.iter().filter(|(_, m)| table.as_ref().is_some_and(|t| m.front.is_alone(t)));
        let alone = alone.map(|(name, _)| (*name).clone()).collect();
        (mounted.iter().map(|(name, _)| (*name).clone()).collect(), alone)
    }

    /// The mounts that can be reached.
    fn attached(&self) -> Vec<Rc<dyn ActiveMount>> {
        let table = self.table();
        let mounts = self.active.borrow();
        let attached = mounts.values().filter(|m| m.is_mounted(table.as_deref()));
        attached.map(|m| m.front.clone()).collect()
    }

    /// Whether `.zfs` is listed in the root of `name` has changed.
    pub(crate) fn root_changed(&self, name: &str) {
        if let Some(m) = self.active.borrow().get(name) {
            m.front.root_changed();
        }
    }

    /// Where `name` is mounted, if mount(8) has chosen that.
    pub fn given_place_of(&self, name: &str) -> Option<PathBuf> {
        self.active.borrow().get(name).filter(|m| m.is_given).map(|m| m.path.clone())
    }

    /// The temporary properties of the mount of `name`.
    pub fn temp_of(&self, name: &str) -> TempProps {
        self.active.borrow().get(name).map_or_else(TempProps::default, |m| m.temp)
    }

    /// Changes the temporary properties; the caller then refreshes the mount.
    pub(crate) fn change_temp(&self, name: &str, change: impl FnOnce(&mut TempProps)) {
        if let Some(m) = self.active.borrow_mut().get_mut(name) {
            change(&mut m.temp);
        }
    }

    /// Whether `name` has a session, even one that cannot be reached any more.
    pub fn is_open(&self, name: &str) -> bool {
        self.active.borrow().contains_key(name)
    }

    /// The dataset whose mount holds `path`.
    pub fn holding(&self, path: &Path) -> Option<String> {
        let mut all = self.list();
        all.retain(|(_, p)| path.starts_with(p));
        all.into_iter().max_by_key(|(_, p)| p.components().count()).map(|(n, _)| n)
    }

    /// Moves the mounts of `from` and of file systems below it to `to`.
    pub fn renamed(&self, from: &str, to: &str) {
        let old = self.active.take();
        let new = old.into_iter().map(|(name, m)| match name.strip_prefix(from) {
            Some(rest) if rest.is_empty() || rest.starts_with(['/', '@']) => (format!("{to}{rest}"), m),
            _ => (name, m),
        });
        let new = new.collect();
        *self.active.borrow_mut() = new;
    }

    pub(crate) fn is_mounted(&self, name: &str) -> bool {
        self.path_of(name).is_some()
    }
}

/// Makes a folder and its missing parents; returns those that were made, outermost first.
pub fn make_dirs(path: &Path) -> Result<Vec<PathBuf>> {
    let mut missing: Vec<PathBuf> = path.ancestors().take_while(|p| !p.exists()).map(Path::to_path_buf).collect();
    missing.reverse();
    let mut made = Vec::new();
    for dir in missing {
        if let Err(e) = std::fs::create_dir(&dir) {
            if e.kind() == std::io::ErrorKind::AlreadyExists {
                continue;
            }
            remove_dirs(&made);
            let why = format!("mount point '{}' cannot be made: {e}", path.display());
            return Err(Error::new(ErrorKind::Denied, why));
        }
        made.push(dir);
    }
    if !path.is_dir() {
        remove_dirs(&made);
        return Err(Error::new(ErrorKind::NotDir, format!("mount point '{}' is not a folder", path.display())));
    }
    Ok(made)
}

/// Removes folders made by [`make_dirs`], as far as they are empty.
pub fn remove_dirs(made: &[PathBuf]) {
    for dir in made.iter().rev() {
        let _ = std::fs::remove_dir(dir);
    }
}

/// True for a file system that can be mounted at all.
async fn is_file_system(ds: &Dataset) -> bool {
    match ds.objset().await {
        Ok(os) => os.os_type() == ondisk::objset::ObjsetType::Zfs,
        Err(_) => false,
    }
}

impl PoolEngine {
    /// The mount point of a directory of this pool.
    pub fn mount_point(&self, dir: &Dir) -> MountPoint {
        mount_point(dir.prop("mountpoint").0.text(), self.altroot.as_deref())
    }

    fn flags_of(&self, ds: &Dataset, temp: TempProps) -> MountFlags {
        let on = |name: &str| temp.number(&ds.dir(), name) != 0;
        MountFlags {
            source: ds.name(),
            readonly: on("readonly") || ds.is_snapshot() || self.pool.is_readonly(),
            readonly_mount: ds.is_snapshot()
                || temp.readonly == Some(true)
                || self.pool.is_readonly()
                || on("readonly") && !self.writes_within(ds),
            exec: on("exec"),
            setuid: on("setuid"),
            devices: on("devices"),
            noatime: !on("atime"),
            posix_acl: files::options(ds, temp).posix_acl,
        }
    }

    /// Whether a plain user's file system will be shown within the mount of `ds`, and written to.
    fn writes_within(&self, ds: &Dataset) -> bool {
        let MountPoint::Path(path) = self.mount_point(&ds.dir()) else { return false };
        let is_written = |other: &Rc<Dataset>| {
            let dir = other.dir();
            let is_within = matches!(self.mount_point(&dir), MountPoint::Path(p) if p != path && p.starts_with(&path));
            is_within && !dir.is_hidden() && dir.prop("canmount").0.num() != 0 && dir.prop("readonly").0.num() == 0
        };
        host::effective_uid() != 0 && self.pool.dsl().all().iter().any(is_written)
    }

    /// Names and mount points of file systems with `canmount=on` that are not mounted, the outer
    /// ones first. Those that were received redacted only if that is asked for.
    pub async fn places_to_mount(&self, temp: TempProps) -> Vec<(PathBuf, String)> {
        let redacted = temp.redacted || self.mounts_redacted.get();
        let mut out: Vec<(PathBuf, String)> = Vec::new();
        for ds in self.pool.dsl().all() {
            let received = !ds.dir().is_hidden() && !ds.is_partial() && (redacted || ds.redaction().is_none());
            let wanted = received && ds.dir().prop("canmount").0.num() == 1 && !self.mounts.is_mounted(&ds.name());
            if !wanted {
                continue;
            }
            if let MountPoint::Path(path) = self.mount_point(&ds.dir())
                && is_file_system(&ds).await
            {
                out.push((path, ds.name()));
            }
        }
        out.sort();
        out
    }

    /// Ends dead mounts of the pool, also of file systems that need no mount any more.
    pub async fn clear_dead_mounts(&self) -> Result<()> {
        clear_dead_mounts(&self.pool.name(), None).await
    }

    /// Mounts all of [`PoolEngine::places_to_mount`]; returns the errors.
    pub async fn mount_all(&self, temp: TempProps, progress: &Progress) -> Vec<Error> {
        let mut errors: Vec<Error> = self.clear_dead_mounts().await.err().into_iter().collect();
        let names: Vec<String> = self.places_to_mount(temp).await.into_iter().map(|(_, name)| name).collect();
        progress.begin("mounting file systems", names.len() as u64);
        errors.extend(self.mount_these(&names, temp, progress).await);
        errors
    }

    /// Mounts these file systems, in this order, but for those that are mounted or gone by now;
    /// returns the errors.
    pub async fn mount_these(&self, names: &[String], temp: TempProps, progress: &Progress) -> Vec<Error> {
        let Some(first) = names.first() else { return Vec::new() };
        if let Err(e) = usable() {
            return vec![e.at(format!("cannot mount '{first}'"))];
        }
        let mut errors = Vec::new();
        for name in names {
            if let Ok(ds) = self.pool.dsl().find(name)
                && !self.mounts.is_mounted(name)
                && let Err(e) = self.mount_alone(&ds, temp, None).await
            {
                errors.push(e);
            }
            progress.step();
        }
        self.share_these(names, Protocol::ALL).await;
        errors
    }

    /// Mounts one file system at its mount point.
    pub async fn mount(&self, ds: &Rc<Dataset>, temp: TempProps) -> Result<()> {
        self.mount_at(ds, temp, None).await
    }

    /// Mounts one file system at another place than its mount point, if there is one.
    pub async fn mount_at(&self, ds: &Rc<Dataset>, temp: TempProps, at: Option<&Path>) -> Result<()> {
        self.mount_alone(ds, temp, at).await?;
        self.share_these(&[ds.name()], Protocol::ALL).await;
        Ok(())
    }

    /// The same, without the shares of it.
    pub(super) async fn mount_alone(&self, ds: &Rc<Dataset>, temp: TempProps, at: Option<&Path>) -> Result<()> {
        let temp = TempProps { redacted: temp.redacted || self.mounts_redacted.get(), ..temp };
        let name = ds.name();
        self.mount_inner(ds, temp, at).await.map_err(|e| e.at(format!("cannot mount '{name}'")))
    }

    async fn mount_inner(&self, ds: &Rc<Dataset>, temp: TempProps, at: Option<&Path>) -> Result<()> {
        let name = ds.name();
        if let Some(path) = self.mounts.path_of(&name) {
            let why = format!("filesystem already mounted at '{}'", path.display());
            return Err(Error::new(ErrorKind::Busy, why));
        }
        if ds.dir().prop("canmount").0.num() == 0 && !ds.is_snapshot() {
            return Err(Error::invalid("'canmount' property is set to 'off'"));
        }
        if ds.redaction().is_some() && !temp.redacted {
            let why = "Dataset is not complete, was created by receiving a redacted zfs send stream.";
            return Err(Error::invalid(why));
        }
        let path = match (at, self.mount_point(&ds.dir())) {
            (Some(at), _) => at.to_path_buf(),
            (None, _) if ds.is_snapshot() => {
                return Err(Error::invalid(format!("a snapshot has no mountpoint: use 'mount -t zfs {name} DIR'")));
            }
            (None, MountPoint::Path(path)) => path,
            (None, MountPoint::Legacy) => {
                return Err(Error::invalid(format!(
                    "legacy mountpoint: set one with 'zfs set mountpoint=PATH {name}', or use 'mount -t zfs {name} DIR'"
                )));
            }
            (None, MountPoint::None) => {
                return Err(Error::invalid(format!(
                    "no mountpoint set: set one with 'zfs set mountpoint=PATH {name}'"
                )));
            }
        };
        if self.mounts.is_open(&name) {
            // It was unmounted from outside.
            self.unmount(&name, Force::No).await?;
        }
        let front_end = front_end()?;
        front_end.usable()?;
        let flags = self.flags_of(ds, temp);
        if ds.dir().has_old_keys() && !flags.readonly {
            let why = "its keys are of the first format, with which it is only read (errata 3): use 'zfs mount -o ro'";
            return Err(Error::new(ErrorKind::ReadOnly, why));
        }
        let place = path.clone();
        if path_blocking(self.pool.rt(), &path, move || host::is_way_dead(&place)).await? {
            clear_dead_mounts(&self.pool.name(), Some(&path)).await?;
        }
        let place = path.clone();
        let prepare = move || {
            check_real_place(&place)?;
            make_dirs(&place).map(|made| (made, is_empty(&place)))
        };
        let (made, empty) = path_blocking(self.pool.rt(), &path, prepare).await??;
        if ds.dir().prop("overlay").0.num() == 0 && !temp.over && !empty {
            return Err(Error::new(ErrorKind::NotEmpty, "directory is not empty and overlay=off"));
        }
        let zfs = match files::open(ds.clone(), temp).await {
            Ok(zfs) => zfs,
            Err(e) => {
                host::blocking(move || remove_dirs(&made)).await?;
                return Err(e);
            }
        };
        let snaps = match ds.is_snapshot() {
            true => None,
            false => {
                self.watch_acls(&zfs, ds).await;
                Some(SnapshotsOf::new(self.pool.dsl().clone(), ds.clone()))
            }
        };
        let others = || self.mounts.attached();
        match front_end.mount(self.pool.rt(), zfs.clone(), &path, &flags, snaps, &others).await {
            Ok(front) => {
                let flags = self.effective_flags(&*front, flags);
                self.close_when_ended(front.clone());
                let number = self.mounts.next.replace(self.mounts.next.get() + 1);
                let mounted = Mounted { path, is_given: at.is_some(), zfs, front, temp, flags, number };
                self.mounts.active.borrow_mut().insert(name, mounted);
                Ok(())
            }
            Err(e) => {
                let closed = files::close(zfs).await;
                host::blocking(move || remove_dirs(&made)).await?;
                closed.and(Err(e))
            }
        }
    }

    /// The effective flags of a file system in the mount of another one; warns about differences.
    fn effective_flags(&self, front: &dyn ActiveMount, flags: MountFlags) -> MountFlags {
        if !front.is_within() {
            return flags;
        }
        let outer = front.outer();
        let mounts = self.mounts.active.borrow();
        let mount = mounts.values().find(|m| !m.front.is_within() && m.front.outer() == outer);
        let sentences = mount.map(|m| differences(&m.flags, &flags));
        drop(mounts);
        for sentence in sentences.into_iter().flatten() {
            say(Level::Warning, &sentence);
            self.mounts.add_notice(format!("warning: {sentence}"));
        }
        MountFlags { readonly_mount: false, ..flags }
    }

    /// Closes a file system when it is unmounted from outside.
    fn close_when_ended(&self, front: Rc<dyn ActiveMount>) {
        self.pool.rt().spawn("unmounted", async move {
            front.ended().await;
            let Ok(engine) = crate::engine::current() else { return };
            let _admin = engine.admin.acquire(1).await;
            let is_this = |m: &Mounted| Rc::ptr_eq(&m.front, &front);
            let mounts = &engine.mounts.active;
            let ended = mounts.borrow().iter().find(|(_, m)| is_this(m)).map(|(n, m)| (n.clone(), m.path.clone()));
            let Some((name, place)) = ended else { return };
            engine.end_shares([(&name, &place)]).await;
            if let Err(e) = engine.close_mounted(&name).await {
                say(Level::Err, &e.to_string());
            }
        });
    }

    /// Unmounts one file system.
    pub async fn unmount(&self, name: &str, force: Force) -> Result<()> {
        let name = name.to_string();
        if let Some(place) = self.mounts.path_of(&name) {
            self.end_shares([(&name, &place)]).await;
        }
        self.unmount_one(&name, force, false).await
    }

    /// As [`PoolEngine::unmount`], of a mount that is known to be at one place only.
    pub(super) async fn unmount_one(&self, name: &str, force: Force, is_alone: bool) -> Result<()> {
        let front = self.mounts.active.borrow().get(name).map(|m| (m.front.clone(), m.path.clone()));
        let Some((front, path)) = front else {
            return Err(Error::not_found(format!("cannot unmount '{name}': not currently mounted")));
        };
        if front.is_alive() {
            let ends_use = match force {
                Force::No => false,
                Force::Asked => {
                    front.is_within() || self.pool.suspended().is_some() || self.mounts.path_of(name).is_none()
                }
                Force::Full => true,
            };
            let limited = async |all| self.pool.rt().timeout(UNMOUNT_LIMIT, front.unmount(all, is_alone)).await;
            let unmounted = match limited(ends_use).await {
                None if force == Force::Asked && !ends_use => limited(true).await,
                ended => ended,
            };
            let silent = || Err(Error::new(ErrorKind::Busy, "a file system on the way there does not answer"));
            let unmounted = unmounted.unwrap_or_else(silent);
            unmounted.map_err(|e| match e.kind() {
                ErrorKind::Busy => {
                    let place = path.display();
                    // The words of OpenZFS, which programs match, and ours.
                    let advice = match force {
                        Force::No if front.is_within() || self.mounts.path_of(name).is_none() => ", or use -f".into(),
                        Force::Asked if !ends_use => format!(", or use 'umount -l {place}', then -f once more"),
                        _ => String::new(),
                    };
                    let why = format!("pool or dataset is busy: {e}{advice}");
                    Error::new(ErrorKind::Busy, format!("cannot unmount '{place}': {why}"))
                }
                _ => e.at(format!("cannot unmount '{}'", path.display())),
            })?;
        }
        self.close_mounted(name).await
    }

    /// Closes a file system whose mount has ended.
    async fn close_mounted(&self, name: &str) -> Result<()> {
        let gone = self.mounts.active.borrow_mut().remove(name);
        if let Some(m) = gone {
            drop(m.front);
            match files::close(m.zfs).await {
                // A suspended pool takes no writes; its mounts must end all the same.
                Err(e) if self.pool.txg().ended().is_some() => say(Level::Err, &format!("unmounting '{name}': {e}")),
                other => other.map_err(|e| e.at(format!("unmounting '{name}'")))?,
            }
        }
        Ok(())
    }

    /// Unmounts these file systems, if mounted, and those of the pool within them, the innermost
    /// first; returns them in the order for mounting them again. If one fails, the others are
    /// mounted again.
    pub async fn unmount_these(&self, names: &[String], force: Force) -> Result<Vec<Unmounted>> {
        let names: BTreeSet<&String> = names.iter().collect();
        let places: BTreeSet<PathBuf> = names.iter().filter_map(|n| self.mounts.path_of(n)).collect();
        let mut todo = self.mounts.all();
        // A file system unmounted from outside has no mounts within it, and one at the same place
        // is not within another.
        todo.retain(|(n, p)| names.contains(n) || p.ancestors().skip(1).any(|above| places.contains(above)));
        // Of this moment: to look at the list of mounts after each would cost much where there are
        // many.
        let (mounted, alone) = self.mounts.at_places(&todo);
        // A server keeps what it shares in use.
        self.end_shares(todo.iter().map(|(name, place)| (name, place))).await;
        let mut done: Vec<(PathBuf, Unmounted)> = Vec::new();
        let mut result = Ok(());
        let mut hidden: Vec<(String, PathBuf)> = Vec::new();
        for last in [false, true] {
            // A mount below a later one can be reached only after that is unmounted.
            for (name, path) in if last { std::mem::take(&mut hidden) } else { std::mem::take(&mut todo) } {
                let (temp, at) = (self.mounts.temp_of(&name), self.mounts.given_place_of(&name));
                match self.unmount_one(&name, force, alone.contains(&name)).await {
                    Ok(()) if mounted.contains(&name) => done.push((path, Unmounted { name, temp, at })),
                    Ok(()) => {}
                    Err(e) if e.kind() == ErrorKind::NotFound && !last => hidden.push((name, path)),
                    Err(e) => result = result.and(Err(e)),
                }
                if result.is_err() {
                    break;
                }
            }
        }
        // The outer first, of those at one place the first.
        done.reverse();
        done.sort_by(|a, b| a.0.cmp(&b.0));
        let done: Vec<Unmounted> = done.into_iter().map(|(_, unmounted)| unmounted).collect();
        if let Err(e) = result {
            self.mount_again(&done).await;
            let mounted: Vec<String> = mounted.into_iter().collect();
            self.share_these(&mounted, Protocol::ALL).await;
            return Err(e);
        }
        Ok(done)
    }

    /// Mounts the result of [`PoolEngine::unmount_these`]; returns the errors.
    pub async fn mount_again(&self, unmounted: &[Unmounted]) -> Vec<Error> {
        let mut errors = Vec::new();
        for Unmounted { name, temp, at } in unmounted {
            let found = match name.contains('@') {
                true => self.pool.dsl().find_snapshot(name).await,
                false => self.pool.dsl().find(name),
            };
            let result = match found {
                Ok(ds) => self.mount_alone(&ds, *temp, at.as_deref()).await,
                Err(e) => Err(e),
            };
            errors.extend(result.err());
        }
        let names: Vec<String> = unmounted.iter().map(|u| u.name.clone()).collect();
        self.share_these(&names, Protocol::ALL).await;
        errors
    }

    /// Unmounts everything.
    pub async fn unmount_all(&self, force: Force) -> Result<Vec<Unmounted>> {
        let names: Vec<String> = self.mounts.all().into_iter().map(|(n, _)| n).collect();
        self.unmount_these(&names, force).await
    }

    /// The folder of a mount point derived from the dataset's name; it is removed with the dataset.
    pub fn own_mount_dir(&self, dir: &Dir) -> Option<PathBuf> {
        let (value, source) = dir.prop("mountpoint");
        let follows = matches!(source, PropSource::Default | PropSource::Inherited(_));
        match mount_point(value.text(), self.altroot.as_deref()) {
            MountPoint::Path(path) if follows => Some(path),
            _ => None,
        }
    }

    /// Applies changed properties to a mounted file system. False if the kernel evaluates one of
    /// them: it must be mounted again.
    pub fn refresh_mount(&self, ds: &Dataset) -> bool {
        let mounts = self.mounts.active.borrow();
        let Some(m) = mounts.get(&ds.name()) else { return true };
        let flags = self.flags_of(ds, m.temp);
        files::refresh(&m.zfs, ds, m.temp);
        let (new, old) = (&flags, &m.flags);
        let same =
            (new.exec, new.setuid, new.devices, new.posix_acl) == (old.exec, old.setuid, old.devices, old.posix_acl);
        // From read-only to writable needs a new mount; the other way round the file system refuses
        // writes.
        same && (new.readonly || !old.readonly_mount)
    }
}

/// Removes a folder if it is empty.
pub async fn remove_dir(path: PathBuf) {
    // Missing, not empty, or not ours: leave it.
    let _ = host::blocking(move || std::fs::remove_dir(path)).await;
}

/// True for a folder without entries, and if there is none.
pub fn is_empty(path: &Path) -> bool {
    std::fs::read_dir(path).map_or(true, |mut d| d.next().is_none())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mount_points_stand_below_the_alternate_root() {
        let path = |p: &str| MountPoint::Path(p.into());
        for (value, altroot, want) in [
            ("none", None, MountPoint::None),
            ("legacy", Some("/mnt"), MountPoint::Legacy),
            ("/tank", None, path("/tank")),
            ("/tank", Some("/mnt"), path("/mnt/tank")),
            ("/tank", Some("/mnt/"), path("/mnt/tank")),
            ("/tank", Some("/"), path("/tank")),
            ("/", Some("/mnt"), path("/mnt")),
        ] {
            assert_eq!(mount_point(value, altroot), want, "{value} {altroot:?}");
        }
    }

    #[test]
    fn values_of_mountpoint_are_checked() {
        for good in ["none", "legacy", "/", "/a/b"] {
            assert!(check_mountpoint(good).is_ok(), "{good}");
        }
        for bad in ["", "tank", "./a", "/a/../b", "None"] {
            assert!(check_mountpoint(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn folders_made_can_be_unmade() {
        let dir = host::TempDir::new("mounts").unwrap();
        let deep = dir.join("a/b/c");
        let made = make_dirs(&deep).unwrap();
        assert_eq!(made.len(), 3);
        assert!(make_dirs(&deep).unwrap().is_empty());
        assert!(is_empty(&deep));
        std::fs::write(dir.join("a/file"), b"x").unwrap();
        remove_dirs(&made);
        assert!(!dir.join("a/b").exists() && dir.join("a").exists());
        assert!(make_dirs(&dir.join("a/file/x")).is_err());
    }
}
