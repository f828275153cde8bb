//! Removal of names: unlink and rmdir.

use base::{Error, ErrorKind, ObjectId, Result};
use dmu::{Tx, zap};
use ondisk::zpl::pflags;

use crate::fs::Zfs;
use crate::names::show;
use crate::node::{Node, check_flags, kind_of};
use crate::types::FileKind;

/// Blocks of a file that unlink itself frees with the last name (`zfs_delete_blocks`).
const FREE_NOW_BLOCKS: u64 = 20480;

/// The state of an object after it lost a name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Fate {
    /// It has other names.
    Linked,
    /// It was freed.
    Freed,
    /// It is in the unlinked set and not open.
    Queued,
    /// It is in the unlinked set and open.
    Open,
}

/// Flags of a directory that protect its entries.
pub(crate) const KEEPS_ENTRIES: u64 = pflags::IMMUTABLE | pflags::APPENDONLY;
/// Flags of an object that protect its names.
pub(crate) const KEEPS_NAMES: u64 = pflags::IMMUTABLE | pflags::APPENDONLY | pflags::NOUNLINK;

impl Zfs {
    /// Removes a name. `IsDir` for a directory.
    pub async fn unlink(&self, dir: ObjectId, name: &[u8]) -> Result<()> {
        self.remove(dir, name, false).await
    }

    /// Removes an empty directory.
    pub async fn rmdir(&self, dir: ObjectId, name: &[u8]) -> Result<()> {
        match name {
            b"." => Err(Error::invalid("'.' cannot be removed")),
            b".." => Err(Error::new(ErrorKind::NotEmpty, "'..' cannot be removed: it is not empty")),
            _ => self.remove(dir, name, true).await,
        }
    }

    async fn remove(&self, dir: ObjectId, name: &[u8], want_dir: bool) -> Result<()> {
        let _pass = self.enter()?;
        self.check_name(name)?;
        if name == b"." || name == b".." {
            return Err(Error::new(ErrorKind::IsDir, format!("'{}' is a directory", show(name))));
        }
        let (d, _) = self.dir(dir).await?;
        let names = d.st.names.lock().await;
        let found = self.find_entry(&d, name).await?;
        let n = self.node(found.obj()).await?;
        let links = n.st.names.lock_same_rank().await;
        let (da, a) = (self.attrs(&d).await?, self.attrs(&n).await?);
        let is_dir = kind_of(n.obj(), a.mode)? == FileKind::Dir;
        if is_dir != want_dir {
            let (kind, what) =
                if is_dir { (ErrorKind::IsDir, "a directory") } else { (ErrorKind::NotDir, "no directory") };
            return Err(Error::new(kind, format!("'{}' is {what}", show(name))));
        }
        check_flags(dir, &da, KEEPS_ENTRIES)?;
        check_flags(n.obj(), &a, KEEPS_NAMES)?;
        if is_dir {
            self.check_empty(&n).await?;
        }
        if !is_dir && a.links == 1 && n.dn.max_blkid() < FREE_NOW_BLOCKS {
            // So that no transaction waits for these reads. Errors are seen later.
            let _ = n.dn.check_free(0, u64::MAX).await;
        }
        let plan = self.plan().zap(&d.dn).bonus(&d.dn).free(&n.dn).zap(self.unlinked_set()?).net_free();
        let tx = plan.assign().await?;
        zap::remove(&d.dn, &found.name, &tx).await?;
        let fate = self.drop_link(&n, &tx).await?;
        let now = self.now();
        self.change_attrs(&d, &tx, |a| {
            a.change_entries(1, 0);
            a.change_subfolders(u64::from(is_dir), 0);
            (a.mtime, a.ctime) = (now, now);
        })
        .await?;
        let gone = (fate != Fate::Linked).then(|| n.obj());
        self.log_remove(dir, &found.name, is_dir, gone, &tx);
        drop(links);
        drop(names);
        self.finish_op(tx, dir).await?;
        self.reap_unlinked(&n, fate);
        Ok(())
    }

    /// `NotEmpty` if the directory has entries.
    pub(crate) async fn check_empty(&self, n: &Node) -> Result<()> {
        match zap::count(&n.dn).await? {
            0 => Ok(()),
            entries => {
                Err(Error::new(ErrorKind::NotEmpty, format!("directory {} still has {entries} entries", n.obj())))
            }
        }
    }

    /// Drops one link. The last link of a small object that is not open frees it; other objects go
    /// to the unlinked set. The caller holds its names lock and has planned for freeing it and for
    /// a change of the unlinked set.
    pub(crate) async fn drop_link(&self, n: &Node, tx: &Tx) -> Result<Fate> {
        let a = self.attrs(n).await?;
        let is_dir = kind_of(n.obj(), a.mode)? == FileKind::Dir;
        let now = self.now();
        if !is_dir && a.links > 1 {
            self.change_attrs(n, tx, |a| {
                a.links -= 1;
                a.ctime = now;
            })
            .await?;
            return Ok(Fate::Linked);
        }
        if is_dir {
            self.keep_removed(n);
        }
        let open = n.st.opens.get() > 0;
        let waits = open || self.is_reaping_suspended();
        let is_small = a.xattr == 0 && n.dn.max_blkid() < FREE_NOW_BLOCKS && self.acl_object(n)?.is_none();
        // One that cannot be freed because of damage waits in the set, as in OpenZFS.
        if !waits && is_small && n.dn.check_free(0, u64::MAX).await.is_ok() {
            self.take_atime(n.obj());
            self.os.free(n.obj(), tx).await?;
            self.count_unlinked();
            self.count_freed();
            return Ok(Fate::Freed);
        }
        self.change_attrs(n, tx, |a| {
            a.links = 0;
            a.ctime = now;
        })
        .await?;
        zap::update_int(self.unlinked_set()?, n.obj().0, n.obj().0, tx).await?;
        self.count_unlinked();
        Ok(if open { Fate::Open } else { Fate::Queued })
    }

    /// Starts the reap of an unlinked object, after the transaction has ended.
    pub(crate) fn reap_unlinked(&self, n: &Node, fate: Fate) {
        if fate == Fate::Queued || (fate == Fate::Open && n.st.opens.get() == 0) {
            self.spawn_reap(n.obj());
        }
    }
}
