//! The handler that serves a file system of a pool.
//!
//! Node ids are object numbers; open files need no state beyond the count that
//! [`zpl::Zfs::open_file`] keeps, so file handles are flags needed later (`open`). [`attr_ttl`] and
//! [`ZfsHandler::new`] decide what the kernel may cache, and for how long.
//!
//! Stores through a shared mapping of a file that is open for reading and writing reach us late;
//! until then our view of its holes may be wrong.
//!
//! With `HANDLE_KILLPRIV_V2` the kernel leaves it to us to take set-id bits and capabilities from a
//! file that changes. It signals when set-id bits must go: with a flag, or (`fallocate`, writes
//! through its cache) with an empty `SETATTR`. Capabilities go with each change. Where the answer
//! does not carry the new mode, a notification before the answer makes the kernel drop the cached
//! one.

mod access;
mod clone;
mod ioctl;
mod open;
mod settle;

use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use base::{ErrorKind, ObjectId, Result, WallTime};
use bdev::Bytes;
use host::{CLONE_TOKEN_LEN, WEIR_IOC_CLONE, WEIR_IOC_CLONE_SOURCE, WEIR_IOC_SHARE_EQUAL};
use rt::Rt;
use rt::sync::Pass;
use zpl::{AclKind, CloneFrom, Cred, Fallocate, FileKind, ReadHow, RenameFlags, SetXattr, Zfs, is_no_clone};

use crate::dir::DirOut;
use crate::errno::{BAD_HANDLE, Errno, INVALID, NO_DATA, NOT_SUPPORTED, STALE, through_handle};
use crate::groups::{groups_of, may_keep_sgid};
use crate::handler::{Attr, COPY_MAX, Caller, Entry, Handler, Opened, SetAttr, SetTime, StatFs, Time, WriteHow};
use crate::mounted::{MountOpts, Mounted, mount_tree};
use crate::proto::ROOT_NODE;
use crate::session::Kernel;
use crate::snapdir::{
    CTL_DIR, CTL_NAME, Found, SNAP_DIR, SnapChange, SnapDir, SnapSource, is_control, node_in, object_of, read_only,
    slot_of, snap_name,
};
use crate::suspend::{Live, Switch};
use crate::tree::Tree;
use crate::tree_handler::TreeHandler;
use crate::wire::{Fields, Put};
use crate::xattr_names::{check_namespace, is_system, missing};
use open::{APPENDS, NOATIME, PAST_CACHE, READABLE, WRITABLE};
use settle::Unsettled;

/// How long the kernel may cache attributes that only it changes.
const LONG: Duration = Duration::from_secs(3600);
/// How long it may cache attributes of a recently changed file.
const SHORT: Duration = Duration::from_secs(1);
/// A change counts as recent for so many seconds: longer than its txg takes to sync.
const SETTLED_AFTER_SECS: i64 = 60;
/// Blocks of the largest dnode, in the units of `stat`.
const DNODE_BLOCKS_MAX: u64 = 32;
/// Most entries of one step of a listing.
const LIST_STEP_MAX: usize = 512;
/// Bytes of a name by which a listing guesses how many entries fit.
const NAME_GUESS: usize = 12;

/// The offset behind `.zfs`: the end of the listing.
const CTL_COOKIE: u64 = i64::MAX as u64;

/// The set-user-id bit of a mode.
const S_ISUID: u32 = 0o4000;
const S_ISGID: u32 = 0o2000;

/// Mounts a file system at `mountpoint`, a directory. When the mount ends ([`Mounted::ended`]), the
/// file system is still in use: the caller must end that ([`Zfs::unmount`]). With
/// [`MountOpts::holds_others`] a read-only file system refuses changes itself; the mount follows
/// the options. With `snaps` there is a folder `.zfs/snapshot` in its root.
pub async fn mount(
    rt: &Rt,
    zfs: Rc<Zfs>,
    mountpoint: &Path,
    opts: MountOpts,
    snaps: Option<Rc<dyn SnapSource>>,
) -> Result<Rc<Mounted>> {
    let readonly = opts.readonly || zfs.opts().readonly;
    let posix_acl = zfs.opts().posix_acl;
    let handler = ZfsHandler::new(rt, zfs, snaps);
    let switch = handler.switch().clone();
    if !opts.holds_others {
        let opts = MountOpts { readonly, posix_acl, ..opts };
        return mount_tree(rt, handler, mountpoint, opts, (Some(switch), None)).await;
    }
    // A file system grafted within it may be writable all the same.
    let tree = Tree::new(handler.kernel_reads_acls());
    mount_tree(rt, TreeHandler(tree.clone()), mountpoint, opts, (Some(switch), Some(tree))).await
}

/// The kernel may cache attributes for long, except the space a file takes: that is known only when
/// its last change is on disk ([`Unsettled`] tells the kernel then).
fn attr_ttl(now: WallTime, ctime: WallTime) -> Duration {
    if now.secs.saturating_sub(ctime.secs) > SETTLED_AFTER_SECS { LONG } else { SHORT }
}

pub(crate) struct ZfsHandler {
    rt: Rt,
    switch: Rc<Switch>,
    snaps: Option<SnapDir>,
    /// POSIX ACLs are shown and can be set; the kernel evaluates them.
    posix_acl: bool,
    /// The kernel reads ACLs although there may be none.
    kernel_reads_acls: bool,
    unsettled: Rc<Unsettled>,
}

/// Holes tried for one `SEEK_HOLE` in a mapped file that is being filled meanwhile.
const HOLES_MAX: usize = 64;
impl ZfsHandler {
    pub(crate) fn new(rt: &Rt, zfs: Rc<Zfs>, snaps: Option<Rc<dyn SnapSource>>) -> ZfsHandler {
        let posix_acl = zfs.opts().posix_acl;
        let created = Time { secs: zfs.dataset().phys().creation_time.try_into().unwrap_or(i64::MAX), nanos: 0 };
        let snaps = snaps.map(|source| SnapDir::new(source, created));
        let switch = Switch::new(rt, zfs);
        let kernel_reads_acls = posix_acl;
        ZfsHandler { rt: rt.clone(), switch, snaps, posix_acl, kernel_reads_acls, unsettled: Rc::default() }
    }

    /// What suspends it.
    pub(crate) fn switch(&self) -> &Rc<Switch> {
        &self.switch
    }

    fn live(&self) -> Rc<Live> {
        self.switch.live()
    }

    /// For a session in which the kernel reads ACLs, whether or not this file system has them.
    pub(crate) fn kernel_reads_acls(self) -> ZfsHandler {
        ZfsHandler { kernel_reads_acls: true, ..self }
    }

    /// The file system that a node is in, and its object there.
    fn at(&self, node: u64) -> Result<(Rc<Zfs>, ObjectId), Errno> {
        if node == ROOT_NODE {
            let live = self.live();
            return Ok((live.zfs.clone(), live.root));
        }
        match (slot_of(node), &self.snaps) {
            (0, _) => Ok((self.live().zfs.clone(), ObjectId(node))),
            _ if is_control(node) => Err(read_only()),
            (slot, Some(snaps)) => Ok((snaps.zfs(slot)?, object_of(node))),
            (_, None) => Err(STALE),
        }
    }
    /// The same for a change: snapshots have none.
    fn at_live(&self, node: u64) -> Result<(Rc<Zfs>, ObjectId), Errno> {
        if slot_of(node) == 0 { self.at(node) } else { Err(read_only()) }
    }
    fn control(&self, node: u64) -> Option<&SnapDir> {
        self.snaps.as_ref().filter(|_| is_control(node))
    }

    /// The snapshots, if a node is the folder of them.
    fn snapshots(&self, node: u64) -> Option<&SnapDir> {
        self.control(node).filter(|_| node == SNAP_DIR)
    }

    /// Behind everything else in the root, if it is to be seen: `.zfs`.
    fn last_entry(&self, node: u64, out: &mut DirOut) -> Result<(), Errno> {
        if node == ROOT_NODE && self.snaps.as_ref().is_some_and(SnapDir::is_visible) {
            out.push(CTL_NAME, CTL_DIR, FileKind::Dir as u8, CTL_COOKIE, None);
        }
        Ok(())
    }

    fn node(&self, slot: u64, obj: ObjectId) -> u64 {
        if slot == 0 && obj == self.live().root { ROOT_NODE } else { node_in(slot, obj) }
    }

    fn attr(&self, slot: u64, a: &zpl::Attr) -> Attr {
        let t = |t: WallTime| Time { secs: t.secs, nanos: t.nanos };
        let live = self.live();
        let of_root = self.snaps.as_ref().filter(|_| slot == 0 && a.obj == live.root);
        if slot == 0 {
            self.switch.told(self.node(slot, a.obj));
        }
        let ttl = attr_ttl(self.rt.wall_clock(), a.ctime);
        // An empty file that takes no more than its dnode will not change.
        let is_empty = a.size == 0 && a.blocks <= DNODE_BLOCKS_MAX;
        if slot == 0 && ttl == SHORT && a.kind == FileKind::File && !is_empty {
            self.unsettled.add(&self.rt, &live.zfs, &self.switch.kernel(), node_in(slot, a.obj));
        }
        Attr {
            ino: node_in(slot, a.obj),
            size: a.size,
            blocks: a.blocks,
            atime: t(a.atime),
            mtime: t(a.mtime),
            ctime: t(a.ctime),
            crtime: t(a.crtime),
            mode: a.mode,
            // A folder that is listed counts.
            nlink: a.nlink.saturating_add(of_root.is_some_and(SnapDir::is_visible).into()),
            uid: a.uid,
            gid: a.gid,
            // As Linux keeps device numbers in its kernel: 20 bits of minor number.
            rdev: ((a.rdev >> 20) as u32 & 0xfff, a.rdev as u32 & 0xf_ffff),
            blksize: a.blksize,
            // Whether `.zfs` is listed changes without a change of the root.
            ttl: if of_root.is_some() { SHORT } else { ttl },
        }
    }

    /// The entry of an object, to which the kernel then has one more reference.
    fn entry(&self, slot: u64, a: &zpl::Attr) -> Entry {
        let entry = self.entry_in_list(slot, a);
        if slot == 0 {
            self.switch.remember(entry.node, a);
        }
        entry
    }

    /// The same without the reference.
    fn entry_in_list(&self, slot: u64, a: &zpl::Attr) -> Entry {
        let ttl = self.live().names_ttl;
        Entry { node: self.node(slot, a.obj), generation: a.generation, ttl, attr: self.attr(slot, a) }
    }

    /// Removes capabilities from a file that `who` changes, and set-id bits if `ids`. True if the
    /// kernel's cached mode is wrong from then on.
    async fn kill_privileges(&self, who: Caller, node: u64, ids: bool) -> Result<bool, Errno> {
        let (zfs, obj) = self.at_live(node)?;
        Ok(zfs.drop_privileges(obj, ids, |gid| may_keep_sgid(who, gid)).await?)
    }

    /// Clones a range into a file, from node and offset on; the bytes that were cloned. The second
    /// kind of error is that of the clone itself.
    async fn clone_into(
        &self,
        who: Caller,
        from: CloneFrom<'_>,
        to: (u64, u64),
        len: u64,
    ) -> Result<base::Result<u64>, Errno> {
        let (zfs, obj) = self.at_live(to.0)?;
        // Where the kernel wants set-id bits to go, a `SETATTR` of the owner has done it. If bits
        // are left the range is to be copied: writes say of each whether they go.
        if zfs.getattr(obj).await?.mode & (S_ISUID | S_ISGID) != 0 {
            return Err(NOT_SUPPORTED);
        }
        if self.kill_privileges(who, to.0, false).await? {
            self.switch.kernel().attrs_changed(to.0);
        }
        Ok(zfs.clone_range(from, obj, to.1, len).await.map(|(n, _)| n))
    }

    /// Serves [`WEIR_IOC_CLONE`], or [`WEIR_IOC_SHARE_EQUAL`] if `is_equal`.
    async fn clone_by_token(&self, who: Caller, node: u64, input: &[u8], is_equal: bool) -> Result<Vec<u8>, Errno> {
        let mut f = Fields::new(input);
        let (len, from, to) = (f.u64()?, f.u64()?, f.u64()?);
        let (source, obj) = clone::source(f.bytes(CLONE_TOKEN_LEN)?).await?;
        let from = CloneFrom { fs: &source, obj, off: from };
        let len = len.min(COPY_MAX);
        let n = match is_equal {
            true => {
                let (zfs, obj) = self.at_live(node)?;
                zfs.share_equal(from, obj, to, len).await?
            }
            false => self.clone_into(who, from, (node, to), len).await??,
        };
        let mut out = Vec::new();
        out.u64(n);
        Ok(out)
    }

    async fn truncate(&self, node: u64) -> Result<(), Errno> {
        let (zfs, obj) = self.at_live(node)?;
        zfs.setattr(obj, zpl::SetAttr { size: Some(0), ..zpl::SetAttr::default() }).await?;
        Ok(())
    }

    /// The ACL kind of a `system.` attribute. An error if there are no ACLs here.
    fn acl_kind(&self, name: &[u8]) -> Result<AclKind, Errno> {
        AclKind::from_xattr_name(name).filter(|_| self.posix_acl).ok_or(NOT_SUPPORTED)
    }

    /// The credentials for creating with this mode. Where the kernel does not check it,
    /// supplementary groups decide on the set-group-id bit.
    fn cred(&self, caller: Caller, mode: u32) -> Cred {
        let fsetid = caller.uid == 0 || self.switch.kernel().handles_set_ids();
        let groups = if !fsetid && mode & S_ISGID != 0 { groups_of(caller.pid) } else { Vec::new() };
        Cred { groups, umask: caller.umask, fsetid, ..Cred::new(caller.uid, caller.gid) }
    }
}

impl Handler for ZfsHandler {
    fn forget(&self, node: u64, count: u64) {
        // A directory that was removed has no name that it could be found by again.
        if slot_of(node) == 0 {
            self.switch.forget(node, count);
            self.live().zfs.forget_removed(ObjectId(node));
        }
    }

    fn traced(&self, node: u64) -> Option<(u64, u64)> {
        let (zfs, obj) = self.at(node).ok()?;
        Some((zfs.objset().id(), obj.0))
    }

    async fn enter(&self, node: u64, check: bool) -> Result<Option<Pass>, Errno> {
        let pass = self.switch.enter().await?;
        if check {
            self.switch.check(node).await?;
        }
        Ok(Some(pass))
    }

    async fn end(&self) {
        self.live().zfs.forget_all_removed().await;
    }

    fn begin(&self, kernel: Kernel) {
        self.switch.begin(kernel);
    }

    async fn lookup(&self, _: Caller, parent: u64, name: &[u8]) -> Result<Entry, Errno> {
        if let Some(snaps) = self.control(parent) {
            return match snaps.lookup(parent, name).await? {
                Found::Folder(entry) => Ok(entry),
                Found::Root(slot, zfs) => {
                    let entry = self.entry(slot, &zfs.getattr(zfs.root()).await?);
                    // Commands destroy, rename and promote snapshots without a notice to the
                    // kernel.
                    Ok(Entry { ttl: Duration::ZERO, ..entry })
                }
            };
        }
        if parent == ROOT_NODE
            && name == CTL_NAME
            && let Some(snaps) = &self.snaps
        {
            return snaps.entry();
        }
        let (zfs, obj) = self.at(parent)?;
        let slot = slot_of(parent);
        if name == b"." {
            // Asked of anything, when a file handle of NFS is opened.
            return Ok(self.entry(slot, &zfs.getattr(obj).await?));
        }
        match zfs.lookup(obj, name).await {
            Ok(a) => Ok(self.entry(slot, &a)),
            // Missing names are cached, too.
            Err(e) if e.kind() == ErrorKind::NotFound => match self.live().names_ttl {
                Duration::ZERO => Err(e.into()),
                ttl => Ok(Entry { ttl, ..Entry::default() }),
            },
            Err(e) => Err(e.into()),
        }
    }

    async fn getattr(&self, node: u64, _: Option<u64>) -> Result<Attr, Errno> {
        if let Some(snaps) = self.control(node) {
            return snaps.attr(node);
        }
        let (zfs, obj) = self.at(node)?;
        let slot = slot_of(node);
        Ok(self.attr(slot, &zfs.getattr(obj).await?))
    }

    async fn setattr(&self, who: Caller, node: u64, set: SetAttr) -> Result<Attr, Errno> {
        let (zfs, obj) = self.at_live(node)?;
        let slot = slot_of(node);

        let time = |t: SetTime| match t {
            SetTime::Now => zpl::SetTime::Now,
            SetTime::At(t) => zpl::SetTime::At(WallTime { secs: t.secs, nanos: t.nanos }),
        };
        let changes_owner = set.uid.is_some() || set.gid.is_some();
        // An empty `SETATTR` is the kernel's request to remove set-id bits, which is our task. Any
        // user can cause one (`chown` without a change of owner), so it counts only from the owner.
        // For others `WRITE` repeats it, and `fallocate` decides by itself.
        let is_empty = SetAttr { fh: None, ..set } == SetAttr::default();
        let ids = set.kill_suidgid || is_empty && (who.uid == 0 || zfs.getattr(obj).await?.uid == who.uid);
        if ids || set.size.is_some() || changes_owner {
            self.kill_privileges(who, node, ids).await?;
        }
        if is_empty {
            // Or a `chown` without a change of owner.
            return Ok(self.attr(slot, &zfs.touch_ctime(obj).await?));
        }
        let set = zpl::SetAttr {
            mode: set.mode,
            uid: set.uid,
            gid: set.gid,
            size: set.size,
            atime: set.atime.map(time),
            mtime: set.mtime.map(time),
        };
        if set == zpl::SetAttr::default() {
            return self.getattr(node, None).await;
        }
        Ok(self.attr(slot, &zfs.setattr(obj, set).await?))
    }

    async fn readlink(&self, node: u64) -> Result<Vec<u8>, Errno> {
        let (zfs, obj) = self.at(node)?;
        Ok(zfs.readlink(obj).await?)
    }

    async fn symlink(&self, who: Caller, parent: u64, name: &[u8], target: &[u8]) -> Result<Entry, Errno> {
        let (zfs, obj) = self.at_live(parent)?;
        let slot = slot_of(parent);
        Ok(self.entry(slot, &zfs.symlink(obj, name, target, &self.cred(who, 0)).await?))
    }

    async fn mknod(
        &self,
        who: Caller,
        parent: u64,
        name: &[u8],
        mode: u32,
        (major, minor): (u32, u32),
    ) -> Result<Entry, Errno> {
        let (zfs, obj) = self.at_live(parent)?;
        let slot = slot_of(parent);
        let rdev = u64::from(major) << 20 | u64::from(minor);
        Ok(self.entry(slot, &zfs.mknod(obj, name, mode, rdev, &self.cred(who, mode)).await?))
    }

    async fn mkdir(&self, who: Caller, parent: u64, name: &[u8], mode: u32) -> Result<Entry, Errno> {
        if let Some(snaps) = self.snapshots(parent) {
            snaps.change(who, SnapChange::Create(snap_name(name)?)).await?;
            return self.lookup(who, parent, name).await;
        }
        let (zfs, obj) = self.at_live(parent)?;
        let slot = slot_of(parent);
        Ok(self.entry(slot, &zfs.mkdir(obj, name, mode, &self.cred(who, mode)).await?))
    }

    async fn unlink(&self, who: Caller, parent: u64, name: &[u8]) -> Result<(), Errno> {
        let (zfs, obj) = self.at_live(parent)?;
        access::check_delete(&zfs, obj, name, who).await?;
        Ok(zfs.unlink(obj, name).await?)
    }

    async fn rmdir(&self, who: Caller, parent: u64, name: &[u8]) -> Result<(), Errno> {
        if let Some(snaps) = self.snapshots(parent) {
            return snaps.change(who, SnapChange::Destroy(snap_name(name)?)).await;
        }
        let (zfs, obj) = self.at_live(parent)?;
        access::check_delete(&zfs, obj, name, who).await?;
        Ok(zfs.rmdir(obj, name).await?)
    }

    async fn rename(&self, who: Caller, from: (u64, &[u8]), to: (u64, &[u8]), flags: u32) -> Result<(), Errno> {
        if let Some(snaps) = self.snapshots(from.0) {
            let (name, new) = (snap_name(from.1)?, snap_name(to.1)?);
            return match to.0 == SNAP_DIR && flags & !libc::RENAME_NOREPLACE == 0 {
                true if name == new => Ok(()),
                true => snaps.change(who, SnapChange::Rename(name, new)).await,
                false => Err(INVALID),
            };
        }
        self.switch.check(to.0).await?;
        let ((zfs, obj), (_, to_obj)) = (self.at_live(from.0)?, self.at_live(to.0)?);
        if slot_of(from.0) != slot_of(to.0) {
            return Err(Errno(libc::EXDEV));
        }
        if flags & !(libc::RENAME_NOREPLACE | libc::RENAME_EXCHANGE | libc::RENAME_WHITEOUT) != 0 {
            return Err(INVALID);
        }
        access::check_delete(&zfs, obj, from.1, who).await?;
        access::check_delete(&zfs, to_obj, to.1, who).await?;
        let how = RenameFlags {
            noreplace: flags & libc::RENAME_NOREPLACE != 0,
            exchange: flags & libc::RENAME_EXCHANGE != 0,
        };
        if flags & libc::RENAME_WHITEOUT != 0 {
            return Ok(zfs.rename_whiteout(obj, from.1, to_obj, to.1, how, &self.cred(who, 0)).await?);
        }
        Ok(zfs.rename(obj, from.1, to_obj, to.1, how).await?)
    }

    async fn link(&self, _: Caller, node: u64, parent: u64, name: &[u8]) -> Result<Entry, Errno> {
        self.switch.check(node).await?;
        let ((zfs, obj), (_, dir)) = (self.at_live(node)?, self.at_live(parent)?);
        let slot = slot_of(node);
        if slot != slot_of(parent) {
            return Err(Errno(libc::EXDEV));
        }
        Ok(self.entry(slot, &zfs.link(obj, dir, name).await?))
    }

    async fn open(&self, who: Caller, node: u64, flags: u32, kill_suidgid: bool) -> Result<Opened, Errno> {
        self.opened(who, node, flags, kill_suidgid).await
    }

    async fn create(
        &self,
        who: Caller,
        parent: u64,
        name: &[u8],
        mode: u32,
        flags: u32,
        kill_suidgid: bool,
    ) -> Result<(Entry, Opened), Errno> {
        let (zfs, obj) = self.at_live(parent)?;
        let slot = slot_of(parent);
        let exclusive = flags & libc::O_EXCL as u32 != 0;
        // A new file needs no truncation, so first try to create it exclusively.
        let truncate = flags & libc::O_TRUNC as u32 != 0;
        let cred = self.cred(who, mode);
        let (mut a, flags) = match zfs.create(obj, name, mode, &cred, exclusive || truncate).await {
            Ok(a) if truncate => (a, flags & !(libc::O_TRUNC as u32)),
            Err(e) if truncate && !exclusive && e.kind() == ErrorKind::Exists => {
                (zfs.create(obj, name, mode, &cred, false).await?, flags)
            }
            other => (other?, flags),
        };
        let opened = self.opened(who, self.node(slot, a.obj), flags, kill_suidgid).await?;
        if flags & libc::O_TRUNC as u32 != 0 {
            a = zfs.getattr(a.obj).await?;
        }
        Ok((self.entry(slot, &a), opened))
    }

    async fn tmpfile(
        &self,
        who: Caller,
        parent: u64,
        mode: u32,
        flags: u32,
        kill_suidgid: bool,
    ) -> Result<(Entry, Opened), Errno> {
        let (zfs, obj) = self.at_live(parent)?;
        // With O_EXCL it never gets a name.
        let linkable = flags & libc::O_EXCL as u32 == 0;
        let a = zfs.tmpfile(obj, mode, &self.cred(who, mode), linkable).await?;
        let opened = self.opened(who, self.node(slot_of(parent), a.obj), flags, kill_suidgid).await;
        zfs.release(a.obj).await;
        Ok((self.entry(slot_of(parent), &a), opened?))
    }

    async fn read(&self, node: u64, fh: u64, offset: u64, size: u32, direct: bool) -> Result<Vec<Bytes>, Errno> {
        self.switch.check_handle(node, fh)?;
        let (zfs, obj) = self.at(node)?;
        let how = ReadHow { noatime: fh & NOATIME != 0, direct };
        Ok(zfs.read_as(obj, offset, size.into(), how).await?)
    }

    async fn write(
        &self,
        who: Caller,
        node: u64,
        fh: u64,
        offset: u64,
        data: Vec<Bytes>,
        how: WriteHow,
    ) -> Result<u32, Errno> {
        self.switch.check_handle(node, fh)?;
        let (zfs, obj) = self.at_live(node)?;
        if how.from_cache && self.switch.has_old_pages(node) {
            return u32::try_from(data.iter().map(|d| d.len()).sum::<usize>()).map_err(|_| INVALID);
        }
        // Stores to mapped memory remove no privileges, as on other file systems.
        if (how.kill_suidgid || !how.from_cache) && self.kill_privileges(who, node, how.kill_suidgid).await? {
            self.switch.kernel().attrs_changed(node);
        }
        let append = fh & APPENDS != 0 && !how.from_cache && self.switch.has_old_size(node);
        let how = zpl::WriteHow { append, sync: how.sync, direct: how.direct };
        let (n, _) = zfs.write_as(obj, offset, data, how).await?;
        u32::try_from(n).map_err(|_| INVALID)
    }

    fn may_be_mapped(&self, node: u64) -> bool {
        self.switch.opens(node).mappable > 0
    }

    fn may_be_cached(&self, node: u64, fh: u64) -> bool {
        fh & PAST_CACHE != 0 && self.switch.opens(node).cached > 0
    }

    async fn statfs(&self, node: u64) -> Result<StatFs, Errno> {
        // A folder of `.zfs` has no object of its own.
        let s = match self.at(node) {
            Ok((zfs, obj)) => zfs.statfs_at(obj).await?,
            Err(_) => self.live().zfs.statfs(),
        };
        Ok(StatFs {
            blocks: s.blocks,
            bfree: s.free,
            bavail: s.avail,
            files: s.files,
            ffree: s.ffree,
            bsize: s.bsize,
            namelen: s.namelen,
            frsize: s.frsize,
        })
    }

    async fn release(&self, node: u64, fh: u64) -> Result<(), Errno> {
        if !self.uncount(node, fh) {
            return Ok(());
        }
        let Ok((zfs, obj)) = self.at(node) else { return Ok(()) };
        zfs.release(obj).await;
        Ok(())
    }

    async fn fsync(&self, node: u64, fh: u64, _: bool) -> Result<(), Errno> {
        self.switch.check_handle(node, fh)?;
        let (zfs, obj) = self.at(node)?;
        Ok(zfs.fsync(obj).await?)
    }

    async fn readdir(&self, node: u64, _: u64, offset: u64, out: &mut DirOut) -> Result<(), Errno> {
        if let Some(snaps) = self.control(node) {
            return snaps.readdir(node, offset, out).await;
        }
        let (zfs, obj) = self.at(node)?;
        let slot = slot_of(node);
        let dir = obj;
        let mut at = offset;
        if offset == CTL_COOKIE {
            return Ok(());
        }
        loop {
            let step = out.room(NAME_GUESS).clamp(1, LIST_STEP_MAX);
            if out.plus() {
                let list = zfs.readdirplus(dir, at, step).await?;
                for e in &list {
                    let attr = e.attr.as_ref();
                    let entry = attr.map(|a| self.entry_in_list(slot, a));
                    let (e, dtype) = (&e.entry, e.entry.kind as u8);
                    if !out.push(&e.name, node_in(slot, e.obj), dtype, e.next_cookie, entry.as_ref()) {
                        return Ok(());
                    }
                    if let (0, Some(a), Some(entry)) = (slot, attr, entry) {
                        self.switch.remember(entry.node, a);
                    }
                    at = e.next_cookie;
                }
                if list.is_empty() {
                    return self.last_entry(node, out);
                }
            } else {
                let list = zfs.readdir(dir, at, step).await?;
                for e in &list {
                    if !out.push(&e.name, node_in(slot, e.obj), e.kind as u8, e.next_cookie, None) {
                        return Ok(());
                    }
                    at = e.next_cookie;
                }
                if list.is_empty() {
                    return self.last_entry(node, out);
                }
            }
        }
    }

    async fn setxattr(&self, node: u64, name: &[u8], value: &[u8], flags: u32, kill_sgid: bool) -> Result<(), Errno> {
        let (zfs, obj) = self.at_live(node)?;
        if is_system(name) {
            let acl = self.acl_kind(name)?;
            return Ok(zfs.set_acl(obj, acl, value, kill_sgid).await?);
        }
        check_namespace(name)?;
        let how = match flags as i32 {
            0 => SetXattr::Any,
            libc::XATTR_CREATE => SetXattr::Create,
            libc::XATTR_REPLACE => SetXattr::Replace,
            _ => return Err(INVALID),
        };
        Ok(zfs.setxattr(obj, name, value, how).await?)
    }

    async fn getxattr(&self, node: u64, name: &[u8]) -> Result<Vec<u8>, Errno> {
        let acl = if is_system(name) { Some(self.acl_kind(name)) } else { None };
        let acl = match acl {
            // The kernel takes any other error as the result of its permission check.
            Some(Err(_)) if self.kernel_reads_acls && AclKind::from_xattr_name(name).is_some() => return Err(NO_DATA),
            acl => acl.transpose()?,
        };
        if self.control(node).is_some() {
            // The kernel reads ACLs before any access.
            return Err(if acl.is_some() { NO_DATA } else { NOT_SUPPORTED });
        }
        let (zfs, obj) = self.at(node)?;
        if let Some(acl) = acl {
            return Ok(zfs.get_acl(obj, acl).await?.ok_or(NO_DATA)?.to_bytes());
        }
        zfs.getxattr(obj, name).await.map_err(|e| missing(name, e))
    }

    async fn listxattr(&self, caller: Caller, node: u64) -> Result<Vec<u8>, Errno> {
        if self.control(node).is_some() {
            return Ok(Vec::new());
        }
        let (zfs, obj) = self.at(node)?;
        let mut out = Vec::new();
        for name in zfs.listxattr(obj).await? {
            // The kernel's own file systems show `trusted` to root only.
            let hidden = if is_system(&name) {
                self.acl_kind(&name).is_err()
            } else {
                caller.uid != 0 && name.starts_with(b"trusted.")
            };
            if hidden {
                continue;
            }
            out.extend_from_slice(&name);
            out.push(0);
        }
        Ok(out)
    }

    async fn removexattr(&self, node: u64, name: &[u8]) -> Result<(), Errno> {
        let (zfs, obj) = self.at_live(node)?;
        if is_system(name) {
            return match zfs.remove_acl(obj, self.acl_kind(name)?).await {
                // A missing ACL counts as removed.
                Err(e) if e.kind() == ErrorKind::NoAttr => Ok(()),
                removed => Ok(removed?),
            };
        }
        zfs.removexattr(obj, name).await.map_err(|e| missing(name, e))
    }

    async fn fallocate(&self, who: Caller, node: u64, _: u64, offset: u64, len: u64, mode: u32) -> Result<(), Errno> {
        let (zfs, obj) = self.at_live(node)?;
        let keep_size = mode as i32 & libc::FALLOC_FL_KEEP_SIZE != 0;
        let what = match mode as i32 & !libc::FALLOC_FL_KEEP_SIZE {
            0 => Fallocate::Allocate { keep_size },
            libc::FALLOC_FL_PUNCH_HOLE if keep_size => Fallocate::PunchHole,
            libc::FALLOC_FL_ZERO_RANGE => Fallocate::ZeroRange { keep_size },
            _ => return Err(NOT_SUPPORTED),
        };
        // For the owner a `SETATTR` has done it.
        let setattr_sent = self.switch.kernel().handles_set_ids() && zfs.getattr(obj).await?.uid == who.uid;
        let ids = who.uid != 0 && !setattr_sent;
        if self.kill_privileges(who, node, ids).await? {
            self.switch.kernel().attrs_changed(node);
        }
        Ok(zfs.fallocate(obj, what, offset, len).await?)
    }

    async fn copy_file_range(&self, who: Caller, from: (u64, u64), to: (u64, u64), len: u64) -> Result<u64, Errno> {
        self.switch.check(to.0).await?;
        let (source, from_obj) = self.at(from.0)?;
        let from = CloneFrom { fs: &source, obj: from_obj, off: from.1 };
        match self.clone_into(who, from, to, len).await? {
            Ok(n) => Ok(n),
            // The kernel copies.
            Err(e) if is_no_clone(&e) => Err(NOT_SUPPORTED),
            Err(e) => Err(e.into()),
        }
    }

    async fn lseek(&self, node: u64, fh: u64, offset: u64, whence: u32) -> Result<u64, Errno> {
        // Entered for each step, since what the kernel writes back enters, too.
        let enter = async || {
            let pass = self.enter(node, true).await.map_err(through_handle)?;
            self.switch.check_handle(node, fh)?;
            Ok::<_, Errno>((pass, self.at(node)?))
        };
        let find = async || {
            let (_pass, (zfs, obj)) = enter().await?;
            match whence as i32 {
                libc::SEEK_DATA => Ok(zfs.seek_data(obj, offset).await?),
                libc::SEEK_HOLE => Ok(zfs.seek_hole(obj, offset).await?),
                _ => Err(INVALID),
            }
        };
        // The hole that an answer relies on.
        let hole_of = async |found: Option<u64>| {
            let (_pass, (zfs, obj)) = enter().await?;
            let size = zfs.getattr(obj).await?.size;
            Ok::<_, Errno>(match (whence as i32, found) {
                (libc::SEEK_DATA, at) => Some(offset..at.unwrap_or(size)),
                (_, Some(at)) => Some(at..zfs.seek_data(obj, at).await?.unwrap_or(size)),
                (_, None) => None,
            })
        };
        let mut found = find().await?;
        // Holes where the kernel has nothing any more that it has not written back.
        let mut verified = offset..offset;
        for _ in 0..HOLES_MAX {
            if !self.may_be_mapped(node) {
                break;
            }
            let Some(hole) = hole_of(found).await? else { break };
            if hole.is_empty() || (verified.start <= hole.start && hole.end <= verified.end) {
                return found.ok_or(Errno(libc::ENXIO));
            }
            self.switch.kernel().write_back(node, hole.clone()).await;
            verified = hole;
            found = find().await?;
        }
        found.ok_or(Errno(libc::ENXIO))
    }

    async fn syncfs(&self) -> Result<(), Errno> {
        let _pass = self.enter(ROOT_NODE, false).await?;
        Ok(self.live().zfs.sync_fs().await?)
    }

    async fn ioctl(&self, who: Caller, (node, fh): (u64, u64), cmd: u32, input: &[u8]) -> Result<Vec<u8>, Errno> {
        let (zfs, obj) = self.at(node)?;
        match cmd {
            WEIR_IOC_CLONE_SOURCE | WEIR_IOC_CLONE | WEIR_IOC_SHARE_EQUAL
                if zfs.getattr(obj).await?.kind != FileKind::File =>
            {
                return Err(INVALID);
            }
            WEIR_IOC_CLONE_SOURCE if fh & READABLE == 0 => return Err(BAD_HANDLE),
            WEIR_IOC_CLONE_SOURCE => return Ok(clone::offer(&zfs, obj).await?.to_vec()),
            WEIR_IOC_CLONE | WEIR_IOC_SHARE_EQUAL if fh & WRITABLE == 0 => return Err(BAD_HANDLE),
            WEIR_IOC_CLONE | WEIR_IOC_SHARE_EQUAL => {
                return self.clone_by_token(who, node, input, cmd == WEIR_IOC_SHARE_EQUAL).await;
            }
            _ => {}
        }
        let how = ioctl::How { in_snapshot: slot_of(node) != 0, writable: fh & WRITABLE != 0 };
        ioctl::ioctl(&zfs, obj, how, cmd, input).await
    }

    async fn opendir(&self, node: u64) -> Result<Opened, Errno> {
        if self.control(node).is_some() {
            return Ok(Opened::default());
        }
        let (zfs, obj) = self.at(node)?;
        if zfs.getattr(obj).await?.kind != FileKind::Dir {
            return Err(Errno(libc::ENOTDIR));
        }
        Ok(Opened::default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_are_remembered_once_they_are_settled() {
        let at = |secs| WallTime { secs, nanos: 0 };
        assert_eq!(attr_ttl(at(1000), at(999)), SHORT);
        assert_eq!(attr_ttl(at(1000), at(5000)), SHORT, "a time in the future");
        assert_eq!(attr_ttl(at(1000), at(100)), LONG);
        assert_eq!(attr_ttl(at(i64::MAX), at(i64::MIN)), LONG);
    }
}
