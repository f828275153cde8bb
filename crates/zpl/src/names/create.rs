//! Creation of files, directories, devices, symbolic links, hard links.

use base::{Error, ErrorKind, ObjectId, Result};
use dmu::sa::{NewZnode, SaHandle, ZnodeAttrs};
use dmu::{Dnode, Tx, zap};
use ondisk::object_type::ObjectType;
use ondisk::zil_record::Create as LogCreate;
use ondisk::zpl::{aces_to_bytes, new_pflags, pflags, trivial_acl};

use crate::fs::Zfs;
use crate::names::{entry_exists, no_entry};
use crate::node::{Node, check_flags, exact_file_spec, kind_of, new_file_spec};
use crate::types::{Attr, Cred, FileKind};

/// Most links of a file, and of a directory (`ZPL_LINK_MAX` of Linux).
pub(crate) const LINK_MAX: u64 = i32::MAX as u64;
/// Longest target of a symbolic link in bytes (`PATH_MAX` of Linux without its NUL).
const SYMLINK_MAX: usize = 4095;
const S_ISGID: u64 = 0o2000;
const S_IXGRP: u64 = 0o010;

/// The object to create.
pub(crate) struct New<'a> {
    pub kind: FileKind,
    /// Permission bits.
    pub mode: u32,
    pub rdev: u64,
    pub target: Option<&'a [u8]>,
    /// It is an error if the name exists.
    pub exclusive: bool,
    /// The intent log record that replay creates it from, with its numbers and times.
    pub exact: Option<LogCreate>,
}

/// The error for more than [`LINK_MAX`] links.
pub(crate) fn too_many_links(obj: ObjectId) -> Error {
    Error::new(ErrorKind::TooManyLinks, format!("object {obj} has {LINK_MAX} links already"))
}

impl Zfs {
    /// Creates a regular file; with `exclusive` an existing name is an error, otherwise the
    /// existing object is returned (`IsDir` for a directory).
    pub async fn create(&self, dir: ObjectId, name: &[u8], mode: u32, cred: &Cred, exclusive: bool) -> Result<Attr> {
        self.make(dir, name, cred, New { kind: FileKind::File, mode, rdev: 0, target: None, exclusive, exact: None })
            .await
    }

    /// Creates a directory.
    pub async fn mkdir(&self, dir: ObjectId, name: &[u8], mode: u32, cred: &Cred) -> Result<Attr> {
        self.make(
            dir,
            name,
            cred,
            New { kind: FileKind::Dir, mode, rdev: 0, target: None, exclusive: true, exact: None },
        )
        .await
    }

    /// Creates a device, FIFO, socket or regular file, by the type bits of `mode`. `rdev` as in
    /// [`Attr::rdev`].
    pub async fn mknod(&self, dir: ObjectId, name: &[u8], mode: u32, rdev: u64, cred: &Cred) -> Result<Attr> {
        let kind = match FileKind::from_mode(mode.into()) {
            Some(
                kind @ (FileKind::CharDev | FileKind::BlockDev | FileKind::Fifo | FileKind::Socket | FileKind::File),
            ) => kind,
            // POSIX: no type bits mean a regular file.
            None if mode & 0o170000 == 0 => FileKind::File,
            _ => return Err(Error::invalid(format!("mknod makes nothing of mode {mode:#o}"))),
        };
        let rdev = if matches!(kind, FileKind::CharDev | FileKind::BlockDev) { rdev } else { 0 };
        self.make(dir, name, cred, New { kind, mode, rdev, target: None, exclusive: true, exact: None }).await
    }

    /// Creates a symbolic link to `target`.
    pub async fn symlink(&self, dir: ObjectId, name: &[u8], target: &[u8], cred: &Cred) -> Result<Attr> {
        if target.is_empty() {
            return Err(no_entry(target));
        }
        if target.len() > SYMLINK_MAX {
            return Err(Error::new(
                ErrorKind::NameTooLong,
                format!("the target of a symbolic link has {} bytes, more than {SYMLINK_MAX}", target.len()),
            ));
        }
        if target.contains(&0) {
            return Err(Error::invalid("the target of a symbolic link holds a NUL"));
        }
        let new =
            New { kind: FileKind::Symlink, mode: 0o777, rdev: 0, target: Some(target), exclusive: true, exact: None };
        self.make(dir, name, cred, new).await
    }

    pub(crate) async fn make(&self, dir: ObjectId, name: &[u8], cred: &Cred, mut new: New<'_>) -> Result<Attr> {
        let _pass = self.enter()?;
        self.check_new_name(name)?;
        let (d, _) = self.dir(dir).await?;
        let names = d.st.names.lock().await;
        let da = self.live_attrs(&d).await?;
        if let Some(found) = self.find(&d, name).await? {
            if new.exclusive {
                return Err(entry_exists(name));
            }
            let there = self.getattr(found.obj()).await?;
            return match there.kind {
                FileKind::Dir => Err(Error::new(ErrorKind::IsDir, format!("object {} is a directory", found.obj()))),
                _ => Ok(there),
            };
        }
        if da.links == 0 {
            return Err(no_entry(name));
        }
        check_flags(dir, &da, pflags::IMMUTABLE)?;
        if new.kind == FileKind::Dir && da.links >= LINK_MAX {
            return Err(too_many_links(dir));
        }
        let acls = self.mode_for_new(&d, cred, &mut new).await?;
        let mut a = self.new_attrs(&d, &da, cred, &new);
        if new.exact.is_none() {
            self.check_quota(&a, true).await?;
            self.check_quota(&a, false).await?;
        }

        let extra = new.target.map_or(0, |t| t.len() as u64) + if new.kind == FileKind::Dir { 512 } else { 0 };
        let tx = self.plan_layout().create(1).write_new(extra).zap(&d.dn).bonus(&d.dn).assign().await?;
        let dn = self.new_object(&mut a, &new, &tx).await?;
        let entered = zap::add_u64(&d.dn, name, self.entry_for(a.mode, dn.object()), &tx).await;
        if let Err(e) = entered {
            self.os.free(dn.object(), &tx).await?;
            return Err(e);
        }
        self.change_attrs(&d, &tx, |da| {
            da.change_entries(0, 1);
            da.change_subfolders(0, u64::from(new.kind == FileKind::Dir));
            (da.mtime, da.ctime) = (a.mtime, a.mtime);
        })
        .await?;
        self.log_create(new.kind, &dn, &a, name, new.target.unwrap_or_default(), &tx);
        let n = Node::new(dn);
        if let Some(acls) = acls {
            self.finish(tx);
            let given = self.set_new_acls(&n, acls).await;
            drop(names);
            if let Err(e) = given {
                // Remove the object again: it must not exist without its ACLs.
                let gone = match new.kind {
                    FileKind::Dir => self.rmdir(dir, name).await,
                    _ => self.unlink(dir, name).await,
                };
                return gone.and(Err(e));
            }
            self.commit_if_always(n.obj()).await?;
            return self.getattr(n.obj()).await;
        }
        drop(names);
        self.finish_op(tx, n.obj()).await?;
        self.to_attr(&n, &a)
    }

    /// Attributes of a new object in a directory.
    pub(crate) fn new_attrs(&self, d: &Node, da: &ZnodeAttrs, cred: &Cred, new: &New<'_>) -> ZnodeAttrs {
        let mut mode = new.kind.mode_bits() | u64::from(new.mode & 0o7777);
        let mut gid = u64::from(cred.gid);
        if da.mode & S_ISGID != 0 {
            gid = da.gid;
            if new.kind == FileKind::Dir {
                mode |= S_ISGID;
            }
        }
        // Only a member of the group, user 0 or CAP_FSETID may create an executable with the
        // set-group-id bit.
        let runs_as_group = new.kind == FileKind::File && mode & (S_ISGID | S_IXGRP) == S_ISGID | S_IXGRP;
        if runs_as_group && cred.uid != 0 && !cred.fsetid && !cred.is_member(gid) {
            mode &= !S_ISGID;
        }
        let has_project = self.projects.get() && matches!(new.kind, FileKind::File | FileKind::Dir);
        let mut flags = new_pflags(mode, has_project, self.version());
        let mut projid = 0;
        if has_project && da.flags & pflags::PROJINHERIT != 0 {
            projid = da.projid;
            if new.kind == FileKind::Dir {
                flags |= pflags::PROJINHERIT;
            }
        }
        let mut now = self.now();
        let (mut uid, mut generation) = (u64::from(cred.uid), 0);
        if let Some(exact) = &new.exact {
            (mode, uid, gid) = (exact.mode, exact.uid, exact.gid);
            (generation, now) = (exact.generation, exact.crtime);
            flags |= da.flags & pflags::XATTR;
        }
        ZnodeAttrs {
            mode,
            generation,
            size: match new.kind {
                FileKind::Dir => 2,
                _ => new.target.map_or(0, |t| t.len() as u64),
            },
            uid,
            gid,
            parent: d.obj().0,
            flags,
            atime: now,
            mtime: now,
            ctime: now,
            crtime: now,
            links: if new.kind == FileKind::Dir { 2 } else { 1 },
            rdev: new.rdev,
            projid,
            ..ZnodeAttrs::default()
        }
    }

    /// Allocates the object and stores its attributes; `a` gets the generation and the ACL count.
    pub(crate) async fn new_object(&self, a: &mut ZnodeAttrs, new: &New<'_>, tx: &Tx) -> Result<Dnode> {
        let is_dir = new.kind == FileKind::Dir;
        let otype = if is_dir { ObjectType::DIRECTORY } else { ObjectType::PLAIN_FILE };
        let dn = match &new.exact {
            Some(exact) => {
                let (obj, spec) = (ObjectId(exact.object), exact_file_spec(otype, exact.slots));
                if is_dir {
                    zap::create_at(&self.os, obj, spec, self.normflags, tx).await?
                } else {
                    self.os.alloc_at(obj, spec, tx).await?
                }
            }
            None if is_dir => zap::create_spec(&self.os, new_file_spec(&self.os, otype), self.normflags, tx).await?,
            None => self.os.alloc(new_file_spec(&self.os, otype), tx).await?,
        };
        // Also if the number is 0, as for a whiteout.
        let rdev = matches!(new.kind, FileKind::CharDev | FileKind::BlockDev);
        if let Err(e) = self.init_attrs(&dn, a, rdev, new.target, tx).await {
            self.os.free(dn.object(), tx).await?;
            return Err(e);
        }
        Ok(dn)
    }

    /// Gives a new object its attributes and a trivial ACL.
    pub(crate) async fn init_attrs(
        &self,
        dn: &Dnode,
        a: &mut ZnodeAttrs,
        rdev: bool,
        target: Option<&[u8]>,
        tx: &Tx,
    ) -> Result<()> {
        let aces = trivial_acl(a.mode, true);
        if a.generation == 0 {
            a.generation = tx.txg().0;
        }
        a.dacl_count = aces.len() as u64;
        let Some(table) = self.sa.get() else {
            return SaHandle::create_old(dn, self.version(), (a, &aces), target, tx).await;
        };
        let bytes = aces_to_bytes(&aces);
        let projid = a.flags & pflags::PROJID != 0;
        let more = NewZnode { aces: &bytes, symlink: target, projid, rdev };
        SaHandle::create_znode(dn, table, a, more, tx).await?;
        Ok(())
    }

    /// Gives an object another name. `Denied` for a directory.
    pub async fn link(&self, obj: ObjectId, dir: ObjectId, name: &[u8]) -> Result<Attr> {
        let _pass = self.enter()?;
        self.check_new_name(name)?;
        let n = self.node(obj).await?;
        let (d, _) = self.dir(dir).await?;
        let a = self.live_attrs(&n).await?;
        if kind_of(obj, a.mode)? == FileKind::Dir {
            return Err(Error::new(
                ErrorKind::Denied,
                format!("object {obj} is a directory: it cannot have two names"),
            ));
        }
        let names = d.st.names.lock().await;
        let links = n.st.names.lock_same_rank().await;
        let da = self.live_attrs(&d).await?;
        let a = self.live_attrs(&n).await?;
        if self.find(&d, name).await?.is_some() {
            return Err(entry_exists(name));
        }
        if da.links == 0 {
            return Err(no_entry(name));
        }
        let first = a.links == 0;
        if first && !n.st.linkable.get() {
            return Err(Error::not_found(format!("object {obj} has no name any more")));
        }
        check_flags(dir, &da, pflags::IMMUTABLE)?;
        check_flags(obj, &a, pflags::IMMUTABLE | pflags::APPENDONLY)?;
        if a.flags & pflags::XATTR != 0 {
            return Err(Error::invalid(format!("object {obj} is part of extended attributes")));
        }
        check_project(&da, &a)?;
        if a.links >= LINK_MAX {
            return Err(too_many_links(obj));
        }
        let mut plan = self.plan().zap(&d.dn).bonus(&d.dn).bonus(&n.dn);
        if first {
            plan = plan.zap(self.unlinked_set()?);
        }
        let tx = plan.assign().await?;
        zap::add_u64(&d.dn, name, self.entry_for(a.mode, obj), &tx).await?;
        let now = self.now();
        self.change_attrs(&n, &tx, |a| {
            a.links = a.links.saturating_add(1);
            a.parent = dir.0;
            a.ctime = now;
        })
        .await?;
        self.change_attrs(&d, &tx, |a| {
            a.change_entries(0, 1);
            (a.mtime, a.ctime) = (now, now);
        })
        .await?;
        if first {
            self.unlinked_remove(&n, &tx).await?;
            // The log has no records of an unlinked file: a commit waits for the txg.
            self.log_barrier(None, &tx);
        } else {
            self.log_link(dir, obj, name, &tx);
        }
        drop((names, links));
        self.finish_op(tx, obj).await?;
        self.getattr(obj).await
    }
}

/// A directory with PROJINHERIT accepts only objects of its own project.
pub(crate) fn check_project(dir: &ZnodeAttrs, a: &ZnodeAttrs) -> Result<()> {
    if dir.flags & pflags::PROJINHERIT != 0 && dir.projid != a.projid {
        return Err(Error::new(
            ErrorKind::CrossDevice,
            format!("the directory belongs to project {}, the file to project {}", dir.projid, a.projid),
        ));
    }
    Ok(())
}
