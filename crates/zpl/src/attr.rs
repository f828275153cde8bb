//! Reading and setting attributes; reading symbolic links.

use base::{Error, ErrorKind, ObjectId, Result};
use dmu::sa::{SaAttr, SaHandle, Times, ZnodeAttrs};
use ondisk::zpl::{aces_to_bytes, pflags, trivial_acl};

use crate::fs::Zfs;
use crate::log::replay::{lr_attr_of, lr_attr_project};
use crate::node::{Node, check_flags, kind_of, times};
use crate::quota::{GROUP, PROJECT, USER};
use crate::types::{Attr, FileKind, SetAttr, SetTime, from_ioc, ioc_flags, to_ioc};

/// Flags that describe an ACL, which a new mode invalidates (format page 16 section 4).
const ACL_HINTS: u64 = pflags::INHERIT_ACE
    | pflags::ACL_OBJ_ACE
    | pflags::ACL_PROTECTED
    | pflags::ACL_DEFAULTED
    | pflags::ACL_AUTO_INHERIT;

impl Zfs {
    /// The object's attributes.
    pub async fn getattr(&self, obj: ObjectId) -> Result<Attr> {
        let n = self.node(obj).await?;
        let a = self.attrs(&n).await?;
        self.to_attr(&n, &a)
    }

    /// Changes attributes; returns all of them.
    pub async fn setattr(&self, obj: ObjectId, set: SetAttr) -> Result<Attr> {
        let _pass = self.enter()?;
        let n = self.node(obj).await?;
        let a = self.live_attrs(&n).await?;
        let kind = kind_of(obj, a.mode)?;
        check_flags(obj, &a, pflags::IMMUTABLE)?;
        let at = |t: Option<SetTime>| matches!(t, Some(SetTime::At(_)));
        if set.mode.is_some() || set.uid.is_some() || set.gid.is_some() || at(set.atime) || at(set.mtime) {
            check_flags(obj, &a, pflags::APPENDONLY)?;
        }
        if let Some(size) = set.size {
            // Check before the size changes, so that a change of owner and size does not fail
            // half-way.
            self.check_file(&n, &a)?;
            self.truncate(obj, size).await?;
        }
        let others = SetAttr { size: None, ..set };
        if others != SetAttr::default() {
            self.set_other_attrs(&n, kind, others).await?;
        }
        self.getattr(obj).await
    }

    /// Sets the change time alone, as `chown` to the same owner does; returns all attributes. It is
    /// not logged.
    pub async fn touch_ctime(&self, obj: ObjectId) -> Result<Attr> {
        let _pass = self.enter()?;
        let n = self.node(obj).await?;
        let kind = kind_of(obj, self.live_attrs(&n).await?.mode)?;
        self.set_other_attrs(&n, kind, SetAttr::default()).await?;
        self.getattr(obj).await
    }

    pub(crate) async fn set_other_attrs(&self, n: &Node, kind: FileKind, set: SetAttr) -> Result<()> {
        if set.uid.is_some() || set.gid.is_some() {
            let a = self.live_attrs(n).await?;
            for (kind, new, old) in [(USER, set.uid, a.uid), (GROUP, set.gid, a.gid)] {
                if let Some(new) = new.map(u64::from).filter(|new| *new != old) {
                    self.check_new_owner(kind, new).await?;
                }
            }
        }
        if let Some(mode) = set.mode {
            self.acl_follows_mode(n, mode).await?;
        }
        let tx = self.plan_layout().bonus(&n.dn).spill(&n.dn).assign().await?;
        let now = self.now();
        let time = |t: SetTime| -> Times {
            match t {
                SetTime::Now => now,
                SetTime::At(t) => times(t),
            }
        };
        let lock = n.st.attrs.lock().await;
        self.convert(n, &tx).await?;
        let sa = SaHandle::open(&n.dn, self.sa.get())?;
        let mut a = sa.attrs().await?;
        if let Some(t) = self.take_atime(n.obj()) {
            a.atime = t;
        }
        a.ctime = now;
        if let Some(uid) = set.uid {
            a.uid = uid.into();
        }
        if let Some(gid) = set.gid {
            a.gid = gid.into();
        }
        if let Some(t) = set.atime {
            a.atime = time(t);
        }
        if let Some(t) = set.mtime {
            a.mtime = time(t);
            a.flags |= self.modified_flags();
        }
        match set.mode {
            Some(mode) => set_mode(&sa, &mut a, mode, kind, &tx).await?,
            None => sa.set_attrs(&a, &tx).await?,
        }
        drop(lock);
        if set != SetAttr::default() {
            self.log_setattr(n.obj(), &set, &a, &tx);
        }
        self.finish_op(tx, n.obj()).await?;
        if set.uid.is_some() || set.gid.is_some() { self.xattrs_follow_owner(&a).await } else { Ok(()) }
    }

    /// The target of a symbolic link.
    pub async fn readlink(&self, obj: ObjectId) -> Result<Vec<u8>> {
        let n = self.node(obj).await?;
        let a = self.attrs(&n).await?;
        if kind_of(obj, a.mode)? != FileKind::Symlink {
            return Err(Error::invalid(format!("object {obj} is no symbolic link")));
        }
        let target = SaHandle::open(&n.dn, self.sa.get())?.symlink().await?;
        let target = target.ok_or_else(|| Error::corrupt(format!("symbolic link {obj} has no target")))?;
        self.stamp_atime(&n, &a);
        Ok(target)
    }

    /// Flags as `FS_IOC_GETFLAGS` returns them ([`ioc_flags`]).
    pub async fn get_flags(&self, obj: ObjectId) -> Result<u32> {
        let n = self.node(obj).await?;
        Ok(to_ioc(self.attrs(&n).await?.flags))
    }

    /// Sets flags as `FS_IOC_SETFLAGS` does; `Unsupported` for flags not in [`ioc_flags`].
    pub async fn set_flags(&self, obj: ObjectId, flags: u32) -> Result<()> {
        let _pass = self.enter()?;
        if flags & !ioc_flags::ALL != 0 {
            return Err(Error::unsupported(format!("files have no flags {:#x}", flags & !ioc_flags::ALL)));
        }
        let n = self.node(obj).await?;
        let a = self.live_attrs(&n).await?;
        let inherits = flags & ioc_flags::PROJINHERIT != 0;
        if inherits && (!self.has_projects().await? || !matches!(kind_of(obj, a.mode)?, FileKind::File | FileKind::Dir))
        {
            return Err(Error::unsupported(format!("object {obj} cannot hand down a project")));
        }
        let tx = self.plan_layout().bonus(&n.dn).spill(&n.dn).assign().await?;
        let now = self.now();
        let (old, new) = self
            .change_attrs(&n, &tx, |a| {
                let old = a.flags;
                a.flags = from_ioc(a.flags, flags);
                a.ctime = now;
                (old, a.flags)
            })
            .await?;
        self.log_flags(obj, lr_attr_of(old, new), &tx);
        self.finish_op(tx, obj).await
    }

    /// Sets the project of a file or directory.
    pub async fn set_project(&self, obj: ObjectId, projid: u32) -> Result<()> {
        let _pass = self.enter()?;
        if projid == u32::MAX {
            return Err(Error::invalid(format!("{projid} is no project")));
        }
        let n = self.node(obj).await?;
        let a = self.live_attrs(&n).await?;
        if !self.has_projects().await? || !matches!(kind_of(obj, a.mode)?, FileKind::File | FileKind::Dir) {
            return Err(Error::unsupported(format!("object {obj} cannot belong to a project")));
        }
        check_flags(obj, &a, pflags::IMMUTABLE)?;
        if a.projid != u64::from(projid) {
            self.check_new_owner(PROJECT, projid.into()).await?;
        }
        let tx = self.plan_layout().bonus(&n.dn).spill(&n.dn).assign().await?;
        let lock = n.st.attrs.lock().await;
        self.convert(&n, &tx).await?;
        let sa = SaHandle::open(&n.dn, self.sa.get())?;
        let mut a = sa.attrs().await?;
        a.projid = projid.into();
        a.flags |= pflags::PROJID;
        a.ctime = self.now();
        sa.update(Some(&a), &[(SaAttr::Projid, Some(&u64::from(projid).to_le_bytes()))], &tx).await?;
        drop(lock);
        self.log_flags(obj, lr_attr_project(projid.into()), &tx);
        self.finish_op(tx, obj).await?;
        self.xattrs_follow_owner(&a).await
    }
}

/// Sets the mode in the attributes; returns the bytes of the trivial ACL for it.
pub(crate) fn new_mode(a: &mut ZnodeAttrs, mode: u32, kind: FileKind) -> Vec<u8> {
    a.mode = kind.mode_bits() | u64::from(mode & 0o7777);
    a.flags = a.flags & !(ACL_HINTS | pflags::NO_EXECS_DENIED) | pflags::ACL_TRIVIAL;
    if a.mode & 0o111 == 0o111 {
        a.flags |= pflags::NO_EXECS_DENIED;
    }
    let aces = trivial_acl(a.mode, kind == FileKind::Dir);
    a.dacl_count = aces.len() as u64;
    aces_to_bytes(&aces)
}

/// Stores a new mode and the trivial ACL for it.
pub(crate) async fn set_mode(
    sa: &SaHandle<'_>,
    a: &mut ZnodeAttrs,
    mode: u32,
    kind: FileKind,
    tx: &dmu::Tx,
) -> Result<()> {
    let bytes = new_mode(a, mode, kind);
    if sa.is_znode() {
        return sa.set_old_mode(a, &trivial_acl(a.mode, kind == FileKind::Dir), tx);
    }
    match sa.update(Some(a), &[(SaAttr::DaclAces, Some(&bytes))], tx).await {
        Err(e) if e.kind() == ErrorKind::TooBig => {
            Err(Error::new(ErrorKind::NoSpace, "there is no room for another access control list"))
        }
        r => r,
    }
}
