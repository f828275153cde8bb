//! Freeing of unlinked objects, and of large ranges of data.
//!
//! The unlinked set names objects without a link: large ones, those with an xattr directory, those
//! that were open when their last name was removed. [`Zfs::reap`] frees an object when its last
//! opener closes it, or at the next mount: first the content of its xattr directory, then its data
//! in pieces, then the object itself together with its entry in the set. Each step leaves a state
//! from which another attempt can resume. The frees of one txg are limited, since its sync must
//! visit every block.

use base::{Error, ErrorKind, ObjectId, Result, Txg};
use dmu::sa::SaHandle;
use dmu::zap;
use ondisk::bytes::le64;
use ondisk::zpl::{Dirent, pflags};

use crate::fs::Zfs;
use crate::node::{Node, kind_of};
use crate::types::FileKind;

/// Most pieces that are collected before freeing begins.
const PIECES_MAX: usize = 64 << 10;
/// Files of an xattr directory that one transaction frees.
const XATTRS_PER_TX: usize = 32;
/// Most objects of the unlinked set that one txg frees.
const OBJECTS_PER_TXG: u32 = 4096;

impl Zfs {
    /// Frees all data from about `keep` on except the first piece, which the caller's transaction
    /// frees; last piece first. `shorten`: SIZE follows.
    pub(crate) async fn free_tail(&self, n: &Node, keep: u64, shorten: bool) -> Result<()> {
        let size = u64::from(n.dn.block_size());
        let span = n.dn.free_span();
        loop {
            let first = (keep - keep % size).saturating_add(span);
            let mut pieces = Vec::new();
            let mut pos = first;
            while pos <= n.dn.max_blkid().saturating_mul(size) && pieces.len() < PIECES_MAX {
                match n.dn.next_data(pos).await? {
                    Some(at) => pieces.push(at),
                    None => break,
                }
                pos = pieces[pieces.len() - 1].saturating_add(span);
            }
            let more = pieces.len() == PIECES_MAX;
            let mut end = if more { pos } else { u64::MAX };
            for start in pieces.into_iter().rev() {
                // The next mount resumes objects of the unlinked set; a truncation must be
                // completed.
                if !shorten && self.is_closed() {
                    return Err(Error::new(ErrorKind::Interrupted, "the file system is being unmounted"));
                }
                n.dn.check_free(start, end).await?;
                let tx = self.plan().free(&n.dn).net_free().assign().await?;
                let len = if end == u64::MAX { u64::MAX } else { end - start };
                n.dn.free_range(start, len, &tx).await?;
                if shorten && !more {
                    self.change_attrs(n, &tx, |a| a.size = a.size.min(start)).await?;
                }
                end = start;
                let txg = tx.txg();
                drop(tx);
                self.next_txg(txg).await?;
            }
            if !more {
                return Ok(());
            }
        }
    }

    /// Frees a range of the file in pieces, each in a transaction of its own; `each` runs in every
    /// one of them.
    pub(crate) async fn free_middle(
        &self,
        n: &Node,
        off: u64,
        end: u64,
        mut each: impl AsyncFnMut(&dmu::Tx) -> Result<()>,
    ) -> Result<()> {
        n.dn.free_in_parts(off, end, async |pos, upto| {
            let tx = self.plan().write(&n.dn, pos, 1).write(&n.dn, upto - 1, 1).free(&n.dn).net_free().assign().await?;
            n.dn.free_range(pos, upto - pos, &tx).await?;
            each(&tx).await?;
            Ok(tx.txg())
        })
        .await
    }

    /// The object that holds the ACL of an object from before version 5, if there is one (format
    /// page 16 section 3).
    pub(crate) fn acl_object(&self, n: &Node) -> Result<Option<ObjectId>> {
        let sa = SaHandle::open(&n.dn, self.sa.get())?;
        if !sa.is_znode() {
            return Ok(None);
        }
        Ok(sa.znode()?.filter(|z| z.acl.len() >= 8).map(|z| le64(&z.acl, 0)).filter(|&obj| obj != 0).map(ObjectId))
    }

    /// Frees an object of the unlinked set, unless it is open or being freed already.
    pub(crate) async fn reap(&self, obj: ObjectId) -> Result<()> {
        if !self.reaping.borrow_mut().insert(obj.0) {
            return Ok(());
        }
        let done = self.reap_exclusive(obj).await;
        self.reaping.borrow_mut().remove(&obj.0);
        done
    }

    async fn reap_exclusive(&self, obj: ObjectId) -> Result<()> {
        // As in OpenZFS the next mount goes on.
        if self.is_reaping_suspended() {
            return Ok(());
        }
        let _pass = self.enter()?;
        let n = match self.node(obj).await {
            Ok(n) => n,
            Err(e) if e.kind() == ErrorKind::NotFound => return self.remove_stale_entry(obj).await,
            Err(e) => return Err(e),
        };
        if n.st.opens.get() > 0 {
            return Ok(());
        }
        let a = self.attrs(&n).await?;
        if a.links > 0 {
            return Err(Error::corrupt(format!("object {obj} is in the delete queue with {} links", a.links)));
        }
        let is_dir = kind_of(obj, a.mode)? == FileKind::Dir;
        if is_dir && a.flags & pflags::XATTR != 0 {
            self.empty_xattr_dir(&n).await?;
        }
        let xattr_dir = if a.xattr == 0 { None } else { self.node_if_there(ObjectId(a.xattr)).await? };
        if let Some(x) = &xattr_dir {
            self.empty_xattr_dir(x).await?;
        }
        // Wait for readers that have not opened the file.
        let _data = n.st.data.write(0, u64::MAX).await;
        if !is_dir {
            self.free_tail(&n, 0, false).await?;
        }
        n.dn.check_free(0, u64::MAX).await?;
        let acl = self.acl_object(&n)?;
        let mut plan = self.plan().free(&n.dn).zap(self.unlinked_set()?).net_free();
        if let Some(x) = &xattr_dir {
            plan = plan.free(&x.dn);
        }
        let tx = plan.assign().await?;
        if n.st.opens.get() > 0 || !n.dn.exists() {
            return Ok(());
        }
        if let Some(x) = &xattr_dir {
            self.os.free(x.obj(), &tx).await?;
            remove_entry(self, x.obj(), &tx).await?;
        }
        if let Some(acl) = acl
            && self.os.hold(acl).await.is_ok()
        {
            self.os.free(acl, &tx).await?;
        }
        self.take_atime(obj);
        self.os.free(obj, &tx).await?;
        self.count_freed();
        remove_entry(self, obj, &tx).await
    }

    /// Removes the entry of an object that does not exist.
    async fn remove_stale_entry(&self, obj: ObjectId) -> Result<()> {
        let tx = self.plan().zap(self.unlinked_set()?).net_free().assign().await?;
        remove_entry(self, obj, &tx).await
    }

    pub(crate) async fn node_if_there(&self, obj: ObjectId) -> Result<Option<Node>> {
        match self.node(obj).await {
            Ok(n) => Ok(Some(n)),
            Err(e) if e.kind() == ErrorKind::NotFound => Ok(None),
            Err(e) => Err(e),
        }
    }

    /// Frees everything in an xattr directory.
    async fn empty_xattr_dir(&self, x: &Node) -> Result<()> {
        loop {
            let entries = zap::Cursor::new(&x.dn).next_batch(XATTRS_PER_TX).await?;
            if entries.is_empty() {
                return Ok(());
            }
            let mut files = Vec::new();
            for (e, _) in entries {
                let file = match e.value.as_u64() {
                    Some(v) => self.node_if_there(ObjectId(Dirent::unpack(v).object)).await?,
                    None => None,
                };
                if let Some(f) = &file {
                    self.free_tail(f, 0, false).await?;
                }
                files.push((e.name, file));
            }
            let mut plan = self.plan().zap(&x.dn).net_free();
            for (_, f) in &files {
                if let Some(f) = f {
                    plan = plan.free(&f.dn);
                }
            }
            let tx = plan.assign().await?;
            for (name, f) in files {
                zap::remove(&x.dn, &name, &tx).await?;
                if let Some(f) = f
                    && f.dn.exists()
                {
                    self.os.free(f.obj(), &tx).await?;
                }
            }
        }
    }

    /// Frees an object of the unlinked set in the background.
    pub(crate) fn spawn_reap(&self, obj: ObjectId) {
        // The drain after a replay frees the objects that the replay unlinked.
        if self.is_closed() || self.replaying.get().is_some() {
            return;
        }
        if let Some(fs) = self.rc() {
            self.rt.spawn("zpl reap", async move {
                // The next mount resumes after an unmount that interrupts this.
                if fs.reap(obj).await.is_err_and(|e| e.kind() != ErrorKind::Interrupted) {
                    fs.reap_errors.set(fs.reap_errors.get() + 1);
                }
            });
        }
    }

    /// Frees every object of the unlinked set that is not open, in the background
    /// (`zfs_unlinked_drain`).
    pub(crate) fn spawn_unlinked_drain(&self) {
        if let Some(fs) = self.rc() {
            self.rt.spawn("zpl drain", async move {
                if fs.unlinked_drain().await.is_err() {
                    fs.reap_errors.set(fs.reap_errors.get() + 1);
                }
            });
        }
    }

    async fn unlinked_drain(&self) -> Result<()> {
        let mut cursor = zap::Cursor::new(self.unlinked_set()?);
        let (mut txg, mut count) = (Txg(0), 0);
        while let Some((e, _)) = cursor.next().await? {
            if self.is_closed() {
                break;
            }
            let Some(obj) = e.value.as_u64() else { continue };
            match self.reap(ObjectId(obj)).await {
                Ok(()) => {}
                Err(e) if e.kind() == ErrorKind::Interrupted => break,
                // Go on with the others.
                Err(_) => self.reap_errors.set(self.reap_errors.get() + 1),
            }
            let open = self.os.ctx().txg().open_txg();
            count = if open == txg { count + 1 } else { 0 };
            txg = open;
            if count >= OBJECTS_PER_TXG {
                self.next_txg(open).await?;
            }
        }
        Ok(())
    }

    /// Entries of the unlinked set.
    pub async fn unlinked_count(&self) -> Result<u64> {
        zap::count(self.unlinked_set()?).await
    }
}

async fn remove_entry(fs: &Zfs, obj: ObjectId, tx: &dmu::Tx) -> Result<()> {
    match zap::remove_int(fs.unlinked_set()?, obj.0, tx).await {
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(()),
        r => r,
    }
}
