//! One object of a mounted file system: its dnode, its locks, its attributes.

use std::cell::Cell;
use std::rc::Rc;

use base::{Error, ErrorKind, ObjectId, Result, WallTime};
use dmu::sa::{SaHandle, Times, ZnodeAttrs};
use dmu::{Dnode, ObjSpec, Objset, Tx};
use ondisk::dnode::bonus_area;
use ondisk::object_type::ObjectType;
use ondisk::zpl::pflags;
use rt::sync::{Mutex, RangeLock};

use crate::acl::privileges::CapsCache;
use crate::fs::Zfs;
use crate::ranks;
use crate::types::{Attr, FileKind};

/// Locks and counts of an object, kept with its cached dnode.
pub(crate) struct NodeState {
    /// Entries of a directory, links of anything.
    pub names: Mutex<()>,
    /// Data of a file.
    pub data: RangeLock,
    /// Extended attributes.
    pub xattrs: Mutex<()>,
    /// Attributes while they are changed.
    pub attrs: Mutex<()>,
    /// How often it is open.
    pub opens: Cell<u32>,
    /// A file created without a name may get one ([`Zfs::tmpfile`]).
    pub linkable: Cell<bool>,
    /// Cache of whether it has capabilities.
    pub caps: CapsCache,
}

impl NodeState {
    fn new() -> NodeState {
        NodeState {
            names: Mutex::new(ranks::NAMES, ()),
            data: RangeLock::new(ranks::DATA),
            xattrs: Mutex::new(ranks::XATTRS, ()),
            attrs: Mutex::new(ranks::ATTRS, ()),
            opens: Cell::new(0),
            linkable: Cell::new(false),
            caps: CapsCache::default(),
        }
    }
}

/// An object in use. Its state lives at least as long as its `Node`s.
#[derive(Clone)]
pub(crate) struct Node {
    pub dn: Dnode,
    pub st: Rc<NodeState>,
}

impl Node {
    pub fn new(dn: Dnode) -> Node {
        let st = dn.attach(NodeState::new);
        Node { dn, st }
    }
    pub fn obj(&self) -> ObjectId {
        self.dn.object()
    }
    pub fn is(&self, other: &Node) -> bool {
        self.obj() == other.obj()
    }
}

/// A time as it is stored.
pub(crate) fn times(t: WallTime) -> Times {
    [t.secs as u64, u64::from(t.nanos)]
}

/// A stored time.
pub(crate) fn wall_time(t: Times) -> WallTime {
    WallTime { secs: t[0] as i64, nanos: t[1].min(999_999_999) as u32 }
}

/// The dnode of a new object with system attributes.
pub(crate) fn new_file_spec(os: &Objset, otype: ObjectType) -> ObjSpec {
    let dnodesize = os.props().dnodesize.max(512);
    let capacity = bonus_area((dnodesize / 512) as usize, 1);
    ObjSpec::new(otype, 512).dnodesize(dnodesize).bonus(ObjectType::SA, capacity as u16)
}

/// The dnode of an object that replay creates, with so many slots of 512 bytes.
pub(crate) fn exact_file_spec(otype: ObjectType, slots: u8) -> ObjSpec {
    let slots = usize::from(slots.clamp(1, 32));
    ObjSpec::new(otype, 512).dnodesize(slots as u32 * 512).bonus(ObjectType::SA, bonus_area(slots, 1) as u16)
}

/// The type in a mode.
pub(crate) fn kind_of(obj: ObjectId, mode: u64) -> Result<FileKind> {
    FileKind::from_mode(mode)
        .ok_or_else(|| Error::corrupt(format!("object {obj} has the mode {mode:#o}, which is of no kind of file")))
}

/// The error for a freed object.
pub(crate) fn gone(obj: ObjectId) -> Error {
    Error::not_found(format!("object {obj} exists no more"))
}

/// `Denied` if the object has one of `flags`.
pub(crate) fn check_flags(obj: ObjectId, a: &ZnodeAttrs, flags: u64) -> Result<()> {
    if a.flags & flags == 0 {
        return Ok(());
    }
    let word = if a.flags & flags & pflags::IMMUTABLE != 0 {
        "immutable"
    } else if a.flags & flags & pflags::APPENDONLY != 0 {
        "append-only"
    } else {
        "protected by its flags"
    };
    Err(Error::new(ErrorKind::Denied, format!("object {obj} is {word}")))
}

/// Maps ids that do not fit (foreign domains, format page 16 section 5) to 65534.
fn posix_id(v: u64) -> u32 {
    u32::try_from(v).unwrap_or(65534)
}

impl Zfs {
    /// Holds the object, which must have the bonus of a znode. Every operation begins with this for
    /// each of its objects, so the CPU cost of an operation is charged here.
    pub(crate) async fn node(&self, obj: ObjectId) -> Result<Node> {
        self.rt.spend(rt::cost::ZPL_OP).await;
        let dn = self.os.hold(obj).await?;
        match dn.bonus_type() {
            ObjectType::SA | ObjectType::ZNODE => Ok(Node::new(dn)),
            _ => Err(Error::not_found(format!("object {obj} of {} is no file", self.name()))),
        }
    }

    /// The stored attributes.
    pub(crate) async fn stored_attrs(&self, n: &Node) -> Result<ZnodeAttrs> {
        SaHandle::open(&n.dn, self.sa.get())?.attrs().await
    }

    /// The attributes with a pending access time. An error if the object has been freed.
    pub(crate) async fn attrs(&self, n: &Node) -> Result<ZnodeAttrs> {
        let mut a = self.stored_attrs(n).await?;
        if !n.dn.exists() {
            return Err(gone(n.obj()));
        }
        if let Some(t) = self.pending_atime(n.obj()) {
            a.atime = t;
        }
        Ok(a)
    }

    /// Converts attributes for callers.
    pub(crate) fn to_attr(&self, n: &Node, a: &ZnodeAttrs) -> Result<Attr> {
        let kind = kind_of(n.obj(), a.mode)?;
        self.check_foreign_acl(n.obj(), a.flags);
        // The dnode counts too, as in OpenZFS's `stat`.
        let blocks = (n.dn.used().saturating_add(256) >> 9) + u64::from(n.dn.dnode_size() / 512);
        Ok(Attr {
            obj: n.obj(),
            generation: a.generation,
            kind,
            mode: (a.mode & 0xffff) as u32,
            uid: posix_id(a.uid),
            gid: posix_id(a.gid),
            nlink: u32::try_from(a.links).unwrap_or(u32::MAX),
            size: a.size,
            blocks,
            blksize: n.dn.block_size(),
            rdev: a.rdev,
            atime: wall_time(a.atime),
            mtime: wall_time(a.mtime),
            ctime: wall_time(a.ctime),
            crtime: wall_time(a.crtime),
            flags: a.flags,
            projid: posix_id(a.projid),
        })
    }

    /// The object's attributes for changing it: an error if it has been freed or has no name and is
    /// not open.
    pub(crate) async fn live_attrs(&self, n: &Node) -> Result<ZnodeAttrs> {
        let a = self.attrs(n).await?;
        if a.links == 0 && n.st.opens.get() == 0 {
            return Err(gone(n.obj()));
        }
        Ok(a)
    }

    /// The directory, with its attributes. `NotDir` if it is something else.
    pub(crate) async fn dir(&self, obj: ObjectId) -> Result<(Node, ZnodeAttrs)> {
        let n = self.node(obj).await?;
        let a = self.attrs(&n).await?;
        if kind_of(obj, a.mode)? != FileKind::Dir {
            return Err(Error::new(ErrorKind::NotDir, format!("object {obj} is no directory")));
        }
        Ok((n, a))
    }

    /// Changes attributes of fixed length under the object's lock.
    pub(crate) async fn change_attrs<R>(&self, n: &Node, tx: &Tx, f: impl FnOnce(&mut ZnodeAttrs) -> R) -> Result<R> {
        let sa = SaHandle::open(&n.dn, self.sa.get())?;
        let _lock = n.st.attrs.lock().await;
        let mut a = sa.attrs().await?;
        if let Some(t) = self.take_atime(n.obj()) {
            a.atime = t;
        }
        let r = f(&mut a);
        sa.set_attrs(&a, tx).await?;
        Ok(r)
    }
}
