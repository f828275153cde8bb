//! Changes of a file's size, freeing and zeroing of ranges, search for data and holes.

use base::{Error, ErrorKind, ObjectId, Result};
use dmu::Dnode;
use dmu::sa::ZnodeAttrs;
use ondisk::zpl::pflags;

use crate::data::{FILE_SIZE_MAX, too_big};
use crate::fs::Zfs;
use crate::node::{Node, check_flags};
use crate::types::Fallocate;

impl Zfs {
    /// Sets the size of a regular file. Bytes beyond the new size are freed; new bytes read as
    /// zeros.
    pub async fn truncate(&self, obj: ObjectId, size: u64) -> Result<()> {
        let _pass = self.enter()?;
        let n = self.node(obj).await?;
        if size > FILE_SIZE_MAX {
            return Err(too_big(obj, Some(size)));
        }
        let _data = n.st.data.write(0, u64::MAX).await;
        let a = self.live_attrs(&n).await?;
        self.check_file(&n, &a)?;
        check_flags(obj, &a, pflags::IMMUTABLE | pflags::APPENDONLY | pflags::READONLY)?;
        self.resize(&n, &a, size).await?;
        drop(_data);
        self.commit_if_always(obj).await
    }

    /// As [`Zfs::truncate`]; the caller has done the checks and holds the data lock.
    async fn resize(&self, n: &Node, a: &ZnodeAttrs, size: u64) -> Result<()> {
        let now = self.now();
        let set = |a: &mut ZnodeAttrs| {
            a.size = size;
            (a.mtime, a.ctime) = (now, now);
            a.flags |= self.modified_flags();
        };
        if size >= a.size {
            let grown = self.grow_to(n, a.size, size);
            let plan = self.plan().write_new(grown.unwrap_or(0)).bonus(&n.dn);
            // A truncation to the same size is allowed above a quota, like any other.
            let plan = if size == a.size { plan.net_free() } else { plan };
            let tx = plan.assign().await?;
            if let Some(blksz) = grown {
                n.dn.resize_block(blksz as u32, &tx).await?;
            }
            self.change_attrs(n, &tx, set).await?;
            self.log_truncate((n.obj(), a.links), size, 0, &tx);
            self.finish(tx);
            return Ok(());
        }
        self.free_tail(n, size, true).await?;
        n.dn.check_free(size, u64::MAX).await?;
        let mut plan = self.plan().free(&n.dn).bonus(&n.dn).net_free();
        if size > 0 {
            plan = plan.write(&n.dn, size - 1, 1);
        }
        let tx = plan.assign().await?;
        n.dn.free_range(size, u64::MAX, &tx).await?;
        self.change_attrs(n, &tx, set).await?;
        self.log_truncate((n.obj(), a.links), size, 0, &tx);
        self.finish(tx);
        Ok(())
    }

    /// Allocates, frees or zeroes `len` bytes from `off`.
    pub async fn fallocate(&self, obj: ObjectId, what: Fallocate, off: u64, len: u64) -> Result<()> {
        let _pass = self.enter()?;
        if len == 0 {
            return Err(Error::invalid("a range of no bytes"));
        }
        let Some(end) = off.checked_add(len).filter(|&e| e <= FILE_SIZE_MAX) else {
            return Err(too_big(obj, off.checked_add(len)));
        };
        let n = self.node(obj).await?;
        let _data = n.st.data.write(0, u64::MAX).await;
        let a = self.live_attrs(&n).await?;
        self.check_file(&n, &a)?;
        check_flags(obj, &a, pflags::IMMUTABLE | pflags::READONLY)?;
        let (keep_size, zeroes) = match what {
            Fallocate::Allocate { keep_size } => {
                // Copy on write cannot reserve space; this only checks the space available now,
                // with a tenth more for metadata.
                if self.statfs().avail.saturating_mul(512) < len.saturating_add(len / 10) {
                    return Err(Error::new(ErrorKind::NoSpace, format!("there is no room for {len} bytes")));
                }
                (keep_size, false)
            }
            Fallocate::PunchHole | Fallocate::ZeroRange { .. } => {
                check_flags(obj, &a, pflags::APPENDONLY)?;
                (!matches!(what, Fallocate::ZeroRange { keep_size: false }), true)
            }
        };
        // First what may be refused for want of space: then nothing has changed.
        if !keep_size && end > a.size {
            self.resize(&n, &a, end).await?;
        }
        let upto = end.min(a.size);
        if zeroes && off < upto {
            self.zero(&n, a.links, off, upto).await?;
        }
        drop(_data);
        self.commit_if_always(obj).await
    }

    async fn zero(&self, n: &Node, links: u64, off: u64, end: u64) -> Result<()> {
        let now = self.now();
        self.free_middle(n, off, end, async |tx| {
            // Each transaction logs the whole range: the next ones free the rest.
            self.log_truncate((n.obj(), links), off, end - off, tx);
            self.change_attrs(n, tx, |a| {
                (a.mtime, a.ctime) = (now, now);
                a.flags |= self.modified_flags();
            })
            .await
        })
        .await
    }

    /// The first byte at or after `off` that may be data; None if there is none before the end of
    /// the file.
    pub async fn seek_data(&self, obj: ObjectId, off: u64) -> Result<Option<u64>> {
        self.seek(obj, off, async |dn, size| Ok(dn.seek_data(off).await?.filter(|&at| at < size))).await
    }

    /// The first byte at or after `off` that begins a hole, at most the end of the file; None if
    /// `off` is beyond the file.
    pub async fn seek_hole(&self, obj: ObjectId, off: u64) -> Result<Option<u64>> {
        self.seek(obj, off, async |dn, size| Ok(Some(dn.seek_hole(off).await?.min(size)))).await
    }

    /// What `find` finds in a file of that size, if `off` is within it.
    async fn seek(
        &self,
        obj: ObjectId,
        off: u64,
        find: impl AsyncFnOnce(&Dnode, u64) -> Result<Option<u64>>,
    ) -> Result<Option<u64>> {
        let n = self.node(obj).await?;
        let _data = n.st.data.read(0, u64::MAX).await;
        let a = self.attrs(&n).await?;
        self.check_file(&n, &a)?;
        if off >= a.size {
            return Ok(None);
        }
        find(&n.dn, a.size).await
    }
}
