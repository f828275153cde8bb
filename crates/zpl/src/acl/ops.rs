//! Operations on POSIX ACLs: get, set, inherit, and keep the mode and the access ACL in agreement.
//!
//! Front ends evaluate ACLs (with FUSE the kernel does). The intent log has no record of an ACL, so
//! setting one is a barrier: a commit of the object waits for the txg. A crash before that leaves
//! the object with its initial mode, which grants no user more than its ACL
//! ([`Acl::restricted_mode`]).

use base::{Error, ErrorKind, ObjectId, Result, ResultExt};

use crate::acl::{Acl, AclKind};
use crate::fs::Zfs;
use crate::names::create::New;
use crate::node::{Node, kind_of};
use crate::types::{Cred, FileKind};

const S_ISGID: u32 = 0o2000;

/// The ACLs that a new object inherits from the default ACL of its directory.
pub(crate) struct NewAcls {
    access: Acl,
    /// Its own default ACL, if it is a directory.
    default: Option<Acl>,
    /// The mode with all bits.
    mode: u32,
}

impl Zfs {
    fn check_acls_on(&self) -> Result<()> {
        if self.opts().posix_acl {
            return Ok(());
        }
        Err(Error::unsupported(format!("POSIX ACLs are off in '{}': see the property acltype", self.name())))
    }

    /// Reads a stored ACL, also with ACLs disabled. An unreadable or invalid ACL is an error, not
    /// None.
    pub async fn get_acl(&self, obj: ObjectId, kind: AclKind) -> Result<Option<Acl>> {
        match self.getxattr(obj, kind.xattr_name()).await {
            Ok(bytes) => match Acl::parse(&bytes) {
                Ok(acl) => Ok(Some(acl)),
                Err(e) => Err(Error::corrupt(format!("object {obj}: {e}"))),
            },
            Err(e) if e.kind() == ErrorKind::NoAttr => Ok(None),
            Err(e) => Err(e),
        }
    }

    /// Sets an ACL, given in the encoding of Linux. The mode follows the access ACL; one equivalent
    /// to the mode is not stored. `drop_sgid` clears the set-group-id bit. `Unsupported` without
    /// `acltype=posix` and for symbolic links, `Denied` for a default ACL of anything but a
    /// directory.
    pub async fn set_acl(&self, obj: ObjectId, kind: AclKind, value: &[u8], drop_sgid: bool) -> Result<()> {
        let _pass = self.enter()?;
        self.check_acls_on()?;
        let acl = Acl::parse(value)?;
        let n = self.node(obj).await?;
        {
            let _xattrs = n.st.xattrs.lock().await;
            let a = self.xattr_for_change(&n).await?;
            match (kind_of(obj, a.mode)?, kind) {
                (FileKind::Symlink, _) => return Err(Error::unsupported("symbolic links have no ACLs")),
                (FileKind::Dir, _) | (_, AclKind::Access) => {}
                _ => return Err(Error::new(ErrorKind::Denied, format!("object {obj} is no directory"))),
            }
            let mut mode = None;
            if kind == AclKind::Access {
                let dropped = if drop_sgid { S_ISGID } else { 0 };
                mode = Some((a.mode & 0o7000) as u32 & !dropped | acl.mode());
            }
            self.put_acl(&n, kind, &acl, mode).await?;
        }
        self.commit_if_always(obj).await
    }

    /// Removes an ACL; the mode stays. `NoAttr` if there is none.
    pub async fn remove_acl(&self, obj: ObjectId, kind: AclKind) -> Result<()> {
        self.check_acls_on()?;
        self.removexattr(obj, kind.xattr_name()).await
    }

    /// Stores an ACL, and a mode with it. The caller holds the xattrs lock.
    async fn put_acl(&self, n: &Node, kind: AclKind, acl: &Acl, mode: Option<u32>) -> Result<()> {
        if kind == AclKind::Default || !acl.is_trivial() {
            let a = self.live_attrs(n).await?;
            return self.put_xattr(n, &a, kind.xattr_name(), &acl.to_bytes(), mode).await;
        }
        if self.remove_xattr_locked(n, kind.xattr_name(), mode).await? {
            return Ok(());
        }
        // No stored ACL: only the mode changes.
        let tx = self.plan_layout().bonus(&n.dn).spill(&n.dn).assign().await?;
        if let Some(mode) = mode {
            self.update_owner(n, None, Some(mode), &tx).await?;
            self.log_barrier(Some(n.obj()), &tx);
        }
        self.finish(tx);
        Ok(())
    }

    /// Changes the access ACL to agree with a new mode, before the mode is set.
    pub(crate) async fn acl_follows_mode(&self, n: &Node, mode: u32) -> Result<()> {
        if !self.opts().posix_acl {
            return Ok(());
        }
        let _xattrs = n.st.xattrs.lock().await;
        let Some(mut acl) = self.get_acl(n.obj(), AclKind::Access).await? else { return Ok(()) };
        let before = acl.clone();
        acl.set_mode(mode);
        if acl == before {
            return Ok(());
        }
        let seq = self.replaying.get();
        // This transaction does not complete the record.
        self.replaying.set(seq.map(|s| s - 1));
        let put = self.put_acl(n, AclKind::Access, &acl, None).await;
        self.replaying.set(seq);
        put
    }

    /// Sets the mode of a new object: by the directory's default ACL, else by the umask. Returns
    /// the ACLs to set afterwards. Until they are set the mode grants no more than they do: the
    /// intent log records the mode alone.
    pub(crate) async fn mode_for_new(&self, dir: &Node, cred: &Cred, new: &mut New<'_>) -> Result<Option<NewAcls>> {
        if new.exact.is_some() || new.kind == FileKind::Symlink {
            return Ok(None);
        }
        let acls = self.acls_for_new(dir, new).await?;
        new.mode = match &acls {
            Some(acls) => new.mode & !0o777 | acls.access.restricted_mode(),
            None => new.mode & !cred.umask,
        };
        Ok(acls)
    }

    async fn acls_for_new(&self, dir: &Node, new: &New<'_>) -> Result<Option<NewAcls>> {
        if !self.opts().posix_acl {
            return Ok(None);
        }
        let place = || format!("directory {}", dir.obj());
        let Some(default) = self.get_acl(dir.obj(), AclKind::Default).await.at(place)? else { return Ok(None) };
        let access = default.inherited(new.mode);
        let mode = new.mode & 0o7000 | access.mode();
        Ok(Some(NewAcls { access, default: (new.kind == FileKind::Dir).then_some(default), mode }))
    }

    /// Gives a new object its ACLs.
    pub(crate) async fn set_new_acls(&self, n: &Node, acls: NewAcls) -> Result<()> {
        let n = n.clone();
        let _xattrs = n.st.xattrs.lock().await;
        if let Some(default) = &acls.default {
            self.put_acl(&n, AclKind::Default, default, None).await?;
        }
        let a = self.attrs(&n).await?;
        // A directory may have inherited the set-group-id bit; a file may have lost it.
        let mode = acls.mode & !S_ISGID | a.mode as u32 & S_ISGID;
        if acls.access.is_trivial() && mode == (a.mode & 0o7777) as u32 {
            return Ok(());
        }
        self.put_acl(&n, AclKind::Access, &acls.access, Some(mode)).await
    }
}
