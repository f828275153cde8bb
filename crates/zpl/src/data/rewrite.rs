//! Writing the blocks of a file anew without a change of the file (`zfs rewrite`).
//!
//! A rewritten block gets a new place, and the checksum, compression and copies that the properties
//! ask for now. Its size stays, holes stay holes, and so do the size and the times of the file.
//! Nothing goes to the intent log: after a crash a block is where it was or where it went, with the
//! same content.
//!
//! A *physical* rewrite (`-P`) keeps the logical birth of the blocks, so that streams do not have
//! them again; the feature physical_rewrite is for that (format page 17 section 5).
//!
//! The range is done in parts: the blocks of one transaction are read into the cache, then marked
//! dirty under the data lock of their range, so that others wait for one part at most.

use base::{Error, ObjectId, Result};
use dmu::write_per_tx;

use crate::fs::Zfs;

impl Zfs {
    /// Writes `len` bytes from `off` anew (0: up to the end of the file), in whole blocks. What is
    /// beyond the end is ignored. Returns the bytes of the blocks that were written.
    ///
    /// Errors: `ReadOnly`; `Quota` if the owner has used up a limit, as for a write; those of
    /// reading the blocks. What was done before stays.
    pub async fn rewrite(&self, obj: ObjectId, off: u64, len: u64) -> Result<u64> {
        self.rewrite_range(obj, off, len, false).await
    }

    /// As [`Zfs::rewrite`], but the blocks keep their logical births. Errors: also `Unsupported` if
    /// the pool does not have the feature.
    pub async fn rewrite_physically(&self, obj: ObjectId, off: u64, len: u64) -> Result<u64> {
        if !self.os.ctx().features().physical_rewrite {
            return Err(Error::unsupported("feature 'physical_rewrite' is not enabled in the pool"));
        }
        self.rewrite_range(obj, off, len, true).await
    }

    async fn rewrite_range(&self, obj: ObjectId, off: u64, len: u64, keep_birth: bool) -> Result<u64> {
        let end = if len == 0 { u64::MAX } else { off.saturating_add(len) };
        let (mut at, mut done) = (off, 0);
        while let Some((next, bytes)) = self.rewrite_some(obj, at, end, keep_birth).await? {
            at = next;
            done += bytes;
        }
        Ok(done)
    }

    /// Rewrites the share of one transaction of `at..end`. Returns where it stopped and the bytes
    /// of the blocks that were written; None if no data is left.
    async fn rewrite_some(&self, obj: ObjectId, at: u64, end: u64, keep_birth: bool) -> Result<Option<(u64, u64)>> {
        if at >= end {
            return Ok(None);
        }
        let Some(from) = self.seek_data(obj, at).await?.filter(|&from| from < end) else { return Ok(None) };
        let n = self.node(obj).await?;
        let upto = end.min(self.attrs(&n).await?.size);
        let blksz = u64::from(n.dn.block_size());
        let first = from - from % blksz;
        if upto <= first {
            return Ok(None);
        }
        let len = (upto - first).min(write_per_tx(blksz, self.os.charge_of_block(blksz)));
        let len = len.next_multiple_of(blksz);
        if self.dataset().dir().has_io_limit() {
            self.dataset().dir().io_limit(self.os.ctx().rt(), false, len).await;
            self.dataset().dir().io_limit(self.os.ctx().rt(), true, len).await;
        }
        let _pass = self.enter()?;
        // Whole blocks: a change beside the range, in the same block, would be lost.
        let _data = n.st.data.write(first, len).await;
        let a = self.live_attrs(&n).await?;
        if u64::from(n.dn.block_size()) != blksz {
            // A file of one block got a larger one before the lock was taken.
            return Ok(Some((at, 0)));
        }
        self.check_quota(&a, false).await?;
        // No transaction is open while the devices are read.
        n.dn.read_range(first, len).await?;
        let tx = self.plan().write_blocks(&n.dn, first, len, blksz).assign().await?;
        let bytes = n.dn.rewrite_blocks(first / blksz..(first + len) / blksz, keep_birth, &tx).await?;
        self.finish(tx);
        self.count_io(false, bytes);
        self.count_io(true, bytes);
        Ok(Some((first + len, bytes)))
    }
}
