//! `.zfs/snapshot`: the snapshots of a file system as folders of its mount.
//!
//! A node id has the object number in its low 48 bits and a *slot* above: 0 is the live file
//! system, [`CONTROL`] the two folders that exist nowhere else, and the rest are snapshots entered
//! since the mount began. A slot keeps its number as long as the mount lives; when its snapshot is
//! destroyed its nodes are stale.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use base::{ErrorKind, ObjectId, Result, WallTime};
use rt::LocalBoxFuture;
use zpl::Zfs;

use crate::dir::DirOut;
use crate::errno::{Errno, NO_ENTRY, STALE};
use crate::groups::groups_of;
use crate::handler::{Attr, Caller, Entry, Time};

/// Bits of an object number.
const OBJECT_BITS: u32 = 48;
/// The slot of the folders that this module makes up.
const CONTROL: u64 = 0xffff;
/// Node of `.zfs`.
pub(crate) const CTL_DIR: u64 = CONTROL << OBJECT_BITS | 1;
/// Node of `.zfs/snapshot`.
pub(crate) const SNAP_DIR: u64 = CONTROL << OBJECT_BITS | 2;
/// The name of the folder.
pub(crate) const CTL_NAME: &[u8] = b".zfs";
const SNAP_NAME: &[u8] = b"snapshot";
/// How long the kernel may cache the folders.
const TTL: Duration = Duration::from_secs(1);
const S_IFDIR: u32 = 0o040_000;
const DT_DIR: u8 = 4;

/// Where `.zfs` is found (property `snapdir`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Snapdir {
    /// By its name, but in no listing.
    Hidden,
    /// In listings, too.
    Visible,
    /// Not at all.
    Disabled,
}

/// Lists snapshots, finds and opens them.
pub trait SnapSource {
    /// Where `.zfs` is found.
    fn snapdir(&self) -> Snapdir;
    /// Names of the snapshots, each with its object, oldest first.
    fn list(&self) -> LocalBoxFuture<'_, Result<Vec<(String, u64)>>>;
    /// The object of the snapshot with that name, if there is one.
    fn find<'a>(&'a self, name: &'a str) -> LocalBoxFuture<'a, Result<Option<u64>>>;
    /// When one was last made, renamed or destroyed, if that is known.
    fn changed(&self) -> Option<WallTime>;
    /// Whether they may be made, destroyed and renamed as folders (`zfs_admin_snapshot`).
    fn may_change(&self) -> bool;
    /// Fails unless a user may do that who is neither the superuser nor that of the daemon.
    fn allow<'a>(&'a self, _who: SnapUser, _change: SnapChange<'a>) -> LocalBoxFuture<'a, Result<()>> {
        Box::pin(std::future::ready(Err(ErrorKind::Denied.into())))
    }
    /// Makes, destroys or renames one.
    fn change<'a>(&'a self, change: SnapChange<'a>) -> LocalBoxFuture<'a, Result<()>>;
    /// Opens one. It is not counted as used: the snapshot can be destroyed.
    fn open<'a>(&'a self, name: &'a str) -> LocalBoxFuture<'a, Result<Rc<Zfs>>>;
}

/// A change of the snapshots.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SnapChange<'a> {
    /// One of that name is made.
    Create(&'a str),
    /// It goes.
    Destroy(&'a str),
    /// It gets the second name.
    Rename(&'a str, &'a str),
}

/// A user who asks for a change.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SnapUser {
    /// The number of the user.
    pub uid: u32,
    /// The group for access to files.
    pub gid: u32,
    /// The other groups of the process.
    pub groups: Vec<u32>,
}

struct Slot {
    object: ObjectId,
    zfs: Rc<Zfs>,
}

/// The snapshots of one mount.
pub(crate) struct SnapDir {
    source: Rc<dyn SnapSource>,
    /// When the file system was created: the times of the folders, as in OpenZFS, except that
    /// `snapshot` changes with the list of snapshots.
    created: Time,
    slots: RefCell<Vec<Slot>>,
}

/// The slot of a node.
pub(crate) fn slot_of(node: u64) -> u64 {
    node >> OBJECT_BITS
}
/// The object number in a node.
pub(crate) fn object_of(node: u64) -> ObjectId {
    ObjectId(node & ((1 << OBJECT_BITS) - 1))
}
/// The node of an object in a slot.
pub(crate) fn node_in(slot: u64, obj: ObjectId) -> u64 {
    slot << OBJECT_BITS | obj.0
}
/// True for the folders made up here.
pub(crate) fn is_control(node: u64) -> bool {
    slot_of(node) == CONTROL
}

fn folder(node: u64, entries: u32, created: Time, changed: Time) -> Attr {
    Attr {
        ino: node,
        size: 2,
        atime: created,
        mtime: changed,
        ctime: changed,
        crtime: created,
        // As in OpenZFS: permissions on the dataset say who may change snapshots.
        mode: S_IFDIR | 0o777,
        nlink: 2 + entries,
        blksize: 512,
        ttl: TTL,
        ..Attr::default()
    }
}

impl SnapDir {
    pub(crate) fn new(source: Rc<dyn SnapSource>, created: Time) -> SnapDir {
        SnapDir { source, created, slots: RefCell::default() }
    }
    pub(crate) fn is_visible(&self) -> bool {
        self.source.snapdir() == Snapdir::Visible
    }
    /// Fails as if the folders did not exist, if they are disabled.
    fn enabled(&self) -> Result<(), Errno> {
        if self.source.snapdir() == Snapdir::Disabled { Err(NO_ENTRY) } else { Ok(()) }
    }
    /// The file system in a slot that is not 0.
    pub(crate) fn zfs(&self, slot: u64) -> Result<Rc<Zfs>, Errno> {
        let slots = self.slots.borrow();
        let found = usize::try_from(slot).ok().and_then(|s| slots.get(s.checked_sub(1)?));
        match found {
            Some(s) if !s.zfs.dataset().is_gone() => Ok(s.zfs.clone()),
            _ => Err(STALE),
        }
    }

    /// The entry of `.zfs`.
    pub(crate) fn entry(&self) -> Result<Entry, Errno> {
        self.enabled()?;
        let attr = folder(CTL_DIR, 1, self.created, self.created);
        Ok(Entry { node: CTL_DIR, ttl: TTL, attr, ..Entry::default() })
    }
    pub(crate) fn attr(&self, node: u64) -> Result<Attr, Errno> {
        match node {
            CTL_DIR => Ok(folder(node, 0, self.created, self.created)),
            SNAP_DIR => Ok(self.snapshot_folder()),
            _ => Err(STALE),
        }
    }
    /// `.zfs/snapshot`. Programs look at its times to see whether there are other snapshots.
    fn snapshot_folder(&self) -> Attr {
        let changed = self.source.changed().map_or(self.created, |t| Time { secs: t.secs, nanos: t.nanos });
        Attr { ttl: Duration::ZERO, ..folder(SNAP_DIR, 0, self.created, changed) }
    }

    /// Looks up a name in one of the folders: a folder, or a slot with its file system.
    pub(crate) async fn lookup(&self, parent: u64, name: &[u8]) -> Result<Found, Errno> {
        self.enabled()?;
        if name == b"." {
            return Ok(Found::Folder(Entry { node: parent, ttl: TTL, attr: self.attr(parent)?, ..Entry::default() }));
        }
        if parent == CTL_DIR {
            if name != SNAP_NAME {
                return Err(NO_ENTRY);
            }
            return Ok(Found::Folder(Entry {
                node: SNAP_DIR,
                ttl: TTL,
                attr: self.snapshot_folder(),
                ..Entry::default()
            }));
        }
        let name = std::str::from_utf8(name).map_err(|_| NO_ENTRY)?;
        let object = self.source.find(name).await?.map(ObjectId).ok_or(NO_ENTRY)?;
        let known = {
            let slots = self.slots.borrow();
            slots.iter().position(|s| s.object == object && !s.zfs.dataset().is_gone())
        };
        let at = match known {
            Some(at) => at,
            None => {
                let zfs = self.source.open(name).await?;
                let mut slots = self.slots.borrow_mut();
                if slots.len() as u64 + 2 >= CONTROL {
                    return Err(Errno(libc::ENFILE));
                }
                // A number that was used before would let old nodes lead to the new snapshot.
                slots.push(Slot { object, zfs });
                slots.len() - 1
            }
        };
        let slot = at as u64 + 1;
        Ok(Found::Root(slot, self.zfs(slot)?))
    }

    /// Makes, destroys or renames a snapshot: for the superuser, the user of the daemon, and those
    /// whom `zfs allow` lets do it.
    pub(crate) async fn change(&self, who: Caller, change: SnapChange<'_>) -> Result<(), Errno> {
        self.enabled()?;
        if !self.source.may_change() {
            return Err(Errno(libc::EACCES));
        }
        if who.uid != 0 && who.uid != host::effective_uid() {
            let user = SnapUser { uid: who.uid, gid: who.gid, groups: groups_of(who.pid) };
            self.source.allow(user, change).await.map_err(|_| Errno(libc::EPERM))?;
        }
        Ok(self.source.change(change).await?)
    }

    /// Lists one of the folders.
    pub(crate) async fn readdir(&self, node: u64, offset: u64, out: &mut DirOut) -> Result<(), Errno> {
        self.enabled()?;
        let mut names: Vec<(Vec<u8>, u64)> = vec![(b".".to_vec(), node), (b"..".to_vec(), CTL_DIR)];
        match node {
            CTL_DIR => names.push((SNAP_NAME.to_vec(), SNAP_DIR)),
            SNAP_DIR => {
                let list = self.source.list().await?;
                names.extend(list.into_iter().map(|(n, o)| (n.into_bytes(), node_in(CONTROL, ObjectId(o)))));
            }
            _ => return Err(STALE),
        }
        for (n, (name, ino)) in names.iter().enumerate().skip(usize::try_from(offset).unwrap_or(usize::MAX)) {
            if !out.push(name, *ino, DT_DIR, n as u64 + 1, None) {
                break;
            }
        }
        Ok(())
    }
}

/// The result of a lookup in `.zfs`.
pub(crate) enum Found {
    /// One of the folders.
    Folder(Entry),
    /// The root of the snapshot in a slot.
    Root(u64, Rc<Zfs>),
}

/// The name of a snapshot that a request has.
pub(crate) fn snap_name(name: &[u8]) -> Result<&str, Errno> {
    std::str::from_utf8(name).map_err(|_| Errno(libc::EILSEQ))
}

/// The error for changes of snapshots and of the folders here.
pub(crate) fn read_only() -> Errno {
    Errno::from(base::Error::from(ErrorKind::ReadOnly))
}
