//! Extended attributes as files of a hidden directory (format page 08 section 6).
//!
//! The directory's number is the XATTR attribute of its owner; its PARENT is the owner. It has an
//! entry for each name, a regular file with the value. A new value is a new file that replaces the
//! old one in the same transaction.

use base::{Error, ErrorKind, ObjectId, Result};
use dmu::sa::{SaAttr, SaHandle, ZnodeAttrs};
use dmu::{Dnode, Tx, zap};
use ondisk::object_type::ObjectType;
use ondisk::zpl::{S_IFDIR, S_IFREG, new_pflags, pflags};

use crate::attr::set_mode;
use crate::fs::Zfs;
use crate::names::{Found, show};
use crate::node::{Node, kind_of, new_file_spec};

/// Mode of the hidden directory.
pub(crate) const DIR_MODE: u64 = S_IFDIR | 0o1777;
/// Mode of its files.
const FILE_MODE: u64 = S_IFREG | 0o644;

impl Zfs {
    /// The hidden directory of an object with these attributes.
    async fn xattr_dir(&self, a: &ZnodeAttrs) -> Result<Option<Node>> {
        if a.xattr == 0 { Ok(None) } else { self.node_if_there(ObjectId(a.xattr)).await }
    }

    /// Gives the directory and its files the owners and the project of the object. As in OpenZFS
    /// each has a transaction of its own, and the log has nothing of it: a replay does it again.
    pub(crate) async fn xattrs_follow_owner(&self, owner: &ZnodeAttrs) -> Result<()> {
        let Some(x) = self.xattr_dir(owner).await? else { return Ok(()) };
        self.follow_owner(&x, owner).await?;
        for entry in zap::list(&x.dn).await? {
            // It may be removed meanwhile.
            if let Some(found) = self.find(&x, &entry.name).await?
                && let Some(file) = self.node_if_there(found.obj()).await?
            {
                self.follow_owner(&file, owner).await?;
            }
        }
        Ok(())
    }

    async fn follow_owner(&self, n: &Node, owner: &ZnodeAttrs) -> Result<()> {
        let a = self.live_attrs(n).await?;
        let projid = if self.projects.get() { owner.projid } else { a.projid };
        if (a.uid, a.gid, a.projid) == (owner.uid, owner.gid, projid) {
            return Ok(());
        }
        let tx = self.plan_layout().bonus(&n.dn).spill(&n.dn).assign().await?;
        let lock = n.st.attrs.lock().await;
        self.convert(n, &tx).await?;
        let sa = SaHandle::open(&n.dn, self.sa.get())?;
        let mut a = sa.attrs().await?;
        (a.uid, a.gid) = (owner.uid, owner.gid);
        let moves = a.projid != projid;
        if moves {
            a.projid = projid;
            a.flags |= pflags::PROJID;
        }
        let bytes = projid.to_le_bytes();
        let more = [(SaAttr::Projid, Some(&bytes[..]))];
        sa.update(Some(&a), if moves { &more } else { &[] }, &tx).await?;
        drop(lock);
        self.finish(tx);
        Ok(())
    }

    /// The directory, and the entry of that name, if there is one.
    pub(crate) async fn dir_find(&self, a: &ZnodeAttrs, name: &[u8]) -> Result<Option<(Node, Found)>> {
        let Some(x) = self.xattr_dir(a).await? else { return Ok(None) };
        Ok(self.find(&x, name).await?.map(|f| (x, f)))
    }

    /// The value under a name, at most `max` bytes.
    pub(crate) async fn dir_get(&self, a: &ZnodeAttrs, name: &[u8], max: usize) -> Result<Option<Vec<u8>>> {
        let Some((_, found)) = self.dir_find(a, name).await? else { return Ok(None) };
        let f = self.node(found.obj()).await?;
        let size = self.attrs(&f).await?.size;
        if size > max as u64 {
            let what = format!("extended attribute '{}' has {size} bytes, more than {max}", show(name));
            return Err(Error::new(ErrorKind::TooBig, what));
        }
        let mut value = vec![0; size as usize];
        f.dn.read(0, &mut value).await?;
        Ok(Some(value))
    }

    /// All names.
    pub(crate) async fn dir_list(&self, a: &ZnodeAttrs) -> Result<Vec<Vec<u8>>> {
        match self.xattr_dir(a).await? {
            Some(x) => Ok(zap::list(&x.dn).await?.into_iter().map(|e| e.name).collect()),
            None => Ok(Vec::new()),
        }
    }

    pub(crate) fn xattr_node_attrs(
        &self,
        owner: &ZnodeAttrs,
        mode: u64,
        parent: ObjectId,
        size: u64,
        links: u64,
    ) -> ZnodeAttrs {
        let now = self.now();
        ZnodeAttrs {
            mode,
            size,
            uid: owner.uid,
            gid: owner.gid,
            parent: parent.0,
            flags: new_pflags(mode, self.projects.get(), self.version()) | pflags::XATTR,
            atime: now,
            mtime: now,
            ctime: now,
            crtime: now,
            links,
            projid: if self.projects.get() { owner.projid } else { 0 },
            ..ZnodeAttrs::default()
        }
    }

    /// Sets the value under a name, creating the directory if there is none, and the owner's mode,
    /// if given. The caller holds the owner's xattrs lock.
    pub(crate) async fn dir_set(&self, n: &Node, name: &[u8], value: &[u8], mode: Option<u32>) -> Result<()> {
        let a = self.attrs(n).await?;
        let x = self.xattr_dir(&a).await?;
        let old = match &x {
            Some(x) => self.find(x, name).await?,
            None => None,
        };
        let old = match old {
            Some(f) => Some((self.node(f.obj()).await?, f)),
            None => None,
        };
        if let Some((f, _)) = &old {
            self.free_tail(f, 0, false).await?;
        }
        let mut plan = self.plan_layout().create(2).write_new(value.len() as u64 + 1024).bonus(&n.dn).spill(&n.dn);
        if let Some(x) = &x {
            plan = plan.zap(&x.dn);
        }
        if let Some((f, _)) = &old {
            plan = plan.free(&f.dn);
        }
        let tx = plan.assign().await?;
        let file = self.os.alloc(new_file_spec(&self.os, ObjectType::PLAIN_FILE), &tx).await?;
        // On any error from here on the new file must be freed: it has no name.
        let named = self.link_value(n, &a, x, old, &file, name, value, mode, &tx).await;
        if named.is_err() {
            self.os.free(file.object(), &tx).await?;
        }
        named?;
        self.log_barrier(Some(n.obj()), &tx);
        self.finish(tx);
        Ok(())
    }

    #[allow(clippy::too_many_arguments)]
    async fn link_value(
        &self,
        n: &Node,
        a: &ZnodeAttrs,
        x: Option<Node>,
        old: Option<(Node, Found)>,
        file: &Dnode,
        name: &[u8],
        value: &[u8],
        mode: Option<u32>,
        tx: &Tx,
    ) -> Result<()> {
        let is_new_dir = x.is_none();
        let x = match x {
            Some(x) => x,
            None => {
                let spec = new_file_spec(&self.os, ObjectType::DIRECTORY);
                let dn = zap::create_spec(&self.os, spec, self.normflags, tx).await?;
                let mut xa = self.xattr_node_attrs(a, DIR_MODE, n.obj(), 2, 2);
                self.init_attrs(&dn, &mut xa, false, None, tx).await?;
                Node::new(dn)
            }
        };
        let mut fa = self.xattr_node_attrs(a, FILE_MODE, x.obj(), value.len() as u64, 1);
        self.init_attrs(file, &mut fa, false, None, tx).await?;
        if value.len() > 512 {
            let blksz = value.len().next_multiple_of(512);
            file.set_block_size(blksz as u32, tx)?;
        }
        if !value.is_empty() {
            file.write(0, value, tx).await?;
        }
        let entry = self.entry_for(FILE_MODE, file.object());
        let now = self.now();
        match &old {
            Some((f, found)) => {
                zap::update_u64(&x.dn, &found.name, entry, tx).await?;
                self.take_atime(f.obj());
                self.os.free(f.obj(), tx).await?;
            }
            None => zap::add_u64(&x.dn, name, entry, tx).await?,
        }
        let added = u64::from(old.is_none());
        self.change_attrs(&x, tx, |xa| {
            xa.change_entries(0, added);
            (xa.mtime, xa.ctime) = (now, now);
        })
        .await?;
        self.update_owner(n, is_new_dir.then(|| x.obj()), mode, tx).await
    }

    /// After a change of extended attributes: sets the owner's change time, its hidden directory
    /// and its mode, if given.
    pub(crate) async fn update_owner(&self, n: &Node, dir: Option<ObjectId>, mode: Option<u32>, tx: &Tx) -> Result<()> {
        let _lock = n.st.attrs.lock().await;
        self.convert(n, tx).await?;
        let sa = SaHandle::open(&n.dn, self.sa.get())?;
        let mut a = sa.attrs().await?;
        if let Some(t) = self.take_atime(n.obj()) {
            a.atime = t;
        }
        a.ctime = self.now();
        if let Some(dir) = dir {
            a.xattr = dir.0;
        }
        match mode {
            Some(mode) => {
                let kind = kind_of(n.obj(), a.mode)?;
                set_mode(&sa, &mut a, mode, kind, tx).await
            }
            None => sa.set_attrs(&a, tx).await,
        }
    }

    /// Removes a name; true if it existed. Sets the owner's mode, if given. The caller holds the
    /// owner's xattrs lock.
    pub(crate) async fn dir_remove(&self, n: &Node, name: &[u8], mode: Option<u32>) -> Result<bool> {
        let a = self.attrs(n).await?;
        let Some((x, found)) = self.dir_find(&a, name).await? else { return Ok(false) };
        let file = self.node_if_there(found.obj()).await?;
        if let Some(f) = &file {
            self.free_tail(f, 0, false).await?;
        }
        let mut plan = self.plan_layout().zap(&x.dn).bonus(&n.dn).spill(&n.dn).net_free();
        if let Some(f) = &file {
            plan = plan.free(&f.dn);
        }
        let tx = plan.assign().await?;
        zap::remove(&x.dn, &found.name, &tx).await?;
        if let Some(f) = &file {
            self.take_atime(f.obj());
            self.os.free(f.obj(), &tx).await?;
        }
        let now = self.now();
        self.change_attrs(&x, &tx, |xa| {
            xa.change_entries(1, 0);
            (xa.mtime, xa.ctime) = (now, now);
        })
        .await?;
        self.update_owner(n, None, mode, &tx).await?;
        self.log_barrier(Some(n.obj()), &tx);
        self.finish(tx);
        Ok(true)
    }
}
