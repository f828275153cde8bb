//! Reads and writes of file data.
//!
//! A file that fits one block has a block of its own size, in units of 512 bytes, up to the record
//! size; it grows by being rewritten. The blocks of a larger file have the record size of the
//! moment when it outgrew one block, permanently (format page 08 section 5). Growing a block needs
//! the data lock of the whole file, any other write only that of its range.

pub(crate) mod clone;
mod rewrite;
pub(crate) mod truncate;

use base::{Error, ErrorKind, ObjectId, Result};
use bdev::Bytes;
use dmu::sa::ZnodeAttrs;
use dmu::{Pieces, write_per_tx};
use ondisk::zpl::pflags;
use rt::sync::RangeGuard;
use zil::SyncMode;
use zio::WriteDone;

use crate::fs::Zfs;
use crate::node::{Node, check_flags, gone, kind_of};
use crate::types::{FileKind, ReadHow, WriteHow};

/// Largest size of a file (`MAXOFFSET_T`).
pub(crate) const FILE_SIZE_MAX: u64 = i64::MAX as u64;
/// The block size that a file of `size` bytes with blocks of `blksz` must get to hold `end` bytes;
/// None if it keeps its own.
fn grown_block(blksz: u64, max_blkid: u64, size: u64, end: u64, recordsize: u64) -> Option<u64> {
    let final_size = blksz.is_power_of_two() && blksz >= recordsize;
    if end <= blksz || final_size || max_blkid > 0 || size > blksz {
        return None;
    }
    // The record size may have been lowered since: a size that is not a power of two must still
    // become one.
    let limit = if blksz > recordsize { blksz.next_power_of_two() } else { recordsize };
    let new = end.min(limit).next_multiple_of(512);
    (new > blksz).then_some(new)
}

/// The error for a size that is too large.
pub(crate) fn too_big(obj: ObjectId, end: Option<u64>) -> Error {
    let what = end.map_or_else(|| "more than 2^64".to_string(), |e| e.to_string());
    Error::new(ErrorKind::TooBig, format!("file {obj} cannot have {what} bytes"))
}

impl Zfs {
    /// An error unless the object is a regular file.
    pub(crate) fn check_file(&self, n: &Node, a: &ZnodeAttrs) -> Result<()> {
        match kind_of(n.obj(), a.mode)? {
            FileKind::File => Ok(()),
            FileKind::Dir => Err(Error::new(ErrorKind::IsDir, format!("object {} is a directory", n.obj()))),
            _ => Err(Error::invalid(format!("object {} is no regular file", n.obj()))),
        }
    }

    /// Up to `len` bytes from `off`, fewer at the end of the file, as slices of blocks.
    pub async fn read(&self, obj: ObjectId, off: u64, len: u64) -> Result<Vec<Bytes>> {
        self.read_as(obj, off, len, ReadHow::default()).await
    }

    /// As [`Zfs::read`], but the access time stays (`O_NOATIME`).
    pub async fn read_noatime(&self, obj: ObjectId, off: u64, len: u64) -> Result<Vec<Bytes>> {
        self.read_as(obj, off, len, ReadHow { noatime: true, direct: false }).await
    }

    /// As [`Zfs::read`], in another way.
    pub async fn read_as(&self, obj: ObjectId, off: u64, len: u64, how: ReadHow) -> Result<Vec<Bytes>> {
        let stamp = !how.noatime;
        let n = self.node(obj).await?;
        if self.dataset().dir().has_io_limit() {
            let size = self.attrs(&n).await?.size;
            let bytes = len.min(size.saturating_sub(off));
            if bytes > 0 {
                self.dataset().dir().io_limit(self.os.ctx().rt(), false, bytes).await;
            }
        }
        let _data = n.st.data.read(off, len).await;
        let a = self.attrs(&n).await?;
        self.check_file(&n, &a)?;
        if len == 0 {
            return Ok(Vec::new());
        }
        if off >= a.size {
            // A read at the end of file updates the access time, too.
            if stamp {
                self.stamp_atime(&n, &a);
            }
            return Ok(Vec::new());
        }
        let out = match self.opts().direct.is_uncached(how.direct, off, len) {
            true => n.dn.read_range_uncached(off, len.min(a.size - off)).await?,
            false => n.dn.read_range(off, len.min(a.size - off)).await?,
        };
        if !n.dn.exists() {
            return Err(gone(obj));
        }
        if stamp {
            self.stamp_atime(&n, &a);
        }
        self.count_io(false, len.min(a.size - off));
        Ok(out)
    }

    /// The block size for a file that is to hold `end` bytes, if it must change.
    pub(crate) fn grow_to(&self, n: &Node, size: u64, end: u64) -> Option<u64> {
        let recordsize = u64::from(self.os.props().recordsize);
        grown_block(u64::from(n.dn.block_size()), n.dn.max_blkid(), size, end, recordsize)
    }

    /// Takes the data lock for a write of `len` bytes. Returns the lock, the offset (with `append`
    /// the end of the file) and the attributes.
    async fn lock_for_write(
        &self,
        n: &Node,
        off: u64,
        len: u64,
        append: bool,
    ) -> Result<(RangeGuard, u64, ZnodeAttrs)> {
        let mut whole = append;
        loop {
            let mut guard = if whole { n.st.data.write(0, u64::MAX).await } else { n.st.data.write(off, len).await };
            let a = self.live_attrs(n).await?;
            self.check_file(n, &a)?;
            let at = if append { a.size } else { off };
            let Some(end) = at.checked_add(len).filter(|&e| e <= FILE_SIZE_MAX) else {
                return Err(too_big(n.obj(), at.checked_add(len)));
            };
            let grows = self.grow_to(n, a.size, end.max(a.size)).is_some();
            if grows && !whole {
                drop(guard);
                whole = true;
                continue;
            }
            if whole && !grows {
                guard.shrink(at, len);
            }
            return Ok((guard, at, a));
        }
    }

    /// Writes `data`, one slice after the other, at `off`, or at the end of the file if `append`.
    /// Whole aligned blocks within one slice are not copied. Returns the bytes written and the new
    /// size of the file; an error only if nothing was written.
    pub async fn write(&self, obj: ObjectId, off: u64, data: Vec<Bytes>, append: bool) -> Result<(u64, u64)> {
        self.write_as(obj, off, data, WriteHow { append, ..WriteHow::default() }).await
    }

    /// As [`Zfs::write`], and makes the data durable (`O_SYNC`, `O_DSYNC`).
    pub async fn write_sync(&self, obj: ObjectId, off: u64, data: Vec<Bytes>, append: bool) -> Result<(u64, u64)> {
        self.write_as(obj, off, data, WriteHow { append, sync: true, direct: false }).await
    }

    /// As [`Zfs::write`], in another way. Whole blocks of a write around the cache are on their
    /// devices when it ends, but the file has them from their txg on only: durable they are with
    /// `sync`.
    pub async fn write_as(&self, obj: ObjectId, off: u64, data: Vec<Bytes>, how: WriteHow) -> Result<(u64, u64)> {
        let written = self.write_now(obj, off, data, how).await?;
        if how.sync && self.opts().sync == SyncMode::Standard {
            let _pass = self.enter()?;
            self.commit(obj).await?;
        }
        Ok(written)
    }

    async fn write_now(&self, obj: ObjectId, off: u64, data: Vec<Bytes>, how: WriteHow) -> Result<(u64, u64)> {
        let append = how.append;
        let len: u64 = data.iter().map(|b| b.len() as u64).sum();
        // Before `enter`: a write that waits for the limit does not delay an unmount.
        if len > 0 && self.dataset().dir().has_io_limit() {
            self.dataset().dir().io_limit(self.os.ctx().rt(), true, len).await;
        }
        let _pass = self.enter()?;
        let commit = how.sync || self.opts().sync == SyncMode::Always;
        let n = self.node(obj).await?;
        let (_data, off, a) = self.lock_for_write(&n, off, len, append).await?;
        check_flags(obj, &a, pflags::IMMUTABLE | pflags::READONLY)?;
        if off < a.size {
            check_flags(obj, &a, pflags::APPENDONLY)?;
        }
        if len == 0 {
            return Ok((0, a.size));
        }
        let direct = self.replaying.get().is_none() && self.opts().direct.is_direct(how.direct, off, len);
        let mut stored = Vec::new();
        let mut pieces = Pieces::new(data);
        let (mut done, mut size) = (0, a.size);
        while done < len {
            let to = direct.then_some(&mut stored);
            match self.write_some(&n, &a, off + done, len - done, &mut pieces, commit, to).await {
                Ok((some, new_size)) => {
                    done += some;
                    size = new_size;
                }
                Err(e) if done == 0 => return Err(e),
                Err(_) => break,
            }
        }
        drop(_data);
        for write in stored {
            // The sync of the txg writes again what failed.
            let _ = write.await;
        }
        self.count_io(true, done);
        self.commit_if_always(obj).await?;
        Ok((done, size))
    }

    /// Writes the share of one transaction. Returns the bytes written and the file's size. `stored`
    /// gets the writes of whole blocks that are stored at once, if they are to be.
    #[allow(clippy::too_many_arguments)] // Those of the write, and where it is.
    async fn write_some(
        &self,
        n: &Node,
        a: &ZnodeAttrs,
        off: u64,
        len: u64,
        pieces: &mut Pieces,
        commit: bool,
        stored: Option<&mut Vec<WriteDone>>,
    ) -> Result<(u64, u64)> {
        self.check_quota(a, false).await?;
        let size = self.attrs(n).await?.size;
        // Size the block for the whole write, not only for this transaction's part.
        let grown = self.grow_to(n, size, (off + len).max(size));
        let blksz = grown.unwrap_or(u64::from(n.dn.block_size()));
        // Up to a multiple of the block size, so that no block is written by two transactions.
        let some = len.min(write_per_tx(blksz, self.os.charge_of_block(blksz)) - off % blksz);
        n.dn.check_path(off, some).await?;
        let plan = self.plan().write_blocks(&n.dn, off, some, blksz).bonus(&n.dn);
        let tx = plan.assign().await?;
        if let Some(blksz) = grown {
            n.dn.resize_block(blksz as u32, &tx).await?;
        }
        let logged = pieces.peek(some as usize);
        n.dn.write_pieces(off, some, pieces, &tx).await?;
        let now = self.now();
        let new_size = self
            .change_attrs(n, &tx, |a| {
                a.size = a.size.max(self.replay_eof.get().map_or(off + some, |eof| eof.min(off + some)));
                (a.mtime, a.ctime) = (now, now);
                a.flags |= self.modified_flags();
                a.size
            })
            .await?;
        if let Some(stored) = stored {
            let blksz = u64::from(n.dn.block_size());
            for blkid in off.div_ceil(blksz)..(off + some) / blksz {
                stored.extend(n.dn.store_direct(blkid, &tx).await);
            }
        }
        if self.replaying.get().is_some() && some < len {
            // Only the last part completes the record.
            drop(tx);
        } else {
            self.log_write(n, off, &logged, commit, a.links == 0, &tx);
            self.finish(tx);
        }
        Ok((some, new_size))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn block_sizes_grow_as_in_openzfs() {
        let rec = 128 << 10;
        for (blksz, max_blkid, size, end, recordsize, want) in [
            (512, 0, 0, 3, rec, None),
            (512, 0, 0, 513, rec, Some(1024)),
            (512, 0, 0, 100_000, rec, Some(100_352)),
            (512, 0, 0, 1 << 30, rec, Some(rec)),
            (100_352, 0, 100_000, 200_000, rec, Some(rec)),
            (rec, 0, 1000, 1 << 20, rec, None),
            (rec, 5, 1 << 20, 2 << 20, 1 << 20, None),
            // The record size was raised while the file still has one block.
            (rec, 0, 1000, 300_000, 1 << 20, Some(300_032)),
            // It was lowered, and the block is no power of two yet.
            (100_352, 0, 100_000, 1 << 20, 8192, Some(131_072)),
            (512, 0, 0, 4096, 512, None),
            (1024, 0, 2000, 4096, rec, None),
        ] {
            assert_eq!(
                grown_block(blksz, max_blkid, size, end, recordsize),
                want,
                "{blksz} {max_blkid} {size} {end} {recordsize}"
            );
        }
    }
}
