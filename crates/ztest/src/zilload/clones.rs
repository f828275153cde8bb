//! Cloning within the files of a task, so that the content of the source is known: a whole file, as
//! `cp --reflink` does, or some of its blocks, from another file or from the same one.

use base::ObjectId;
use zpl::{CloneFrom, is_no_clone};

use super::{Actor, Content, FILES_MAX, UNIT, text};
use crate::Check;

/// Where a range that is cloned ends at most, in bytes.
const END_MAX: u64 = 64 * UNIT;

/// What is cloned where, in bytes.
struct Range {
    src_off: u64,
    off: u64,
    len: u64,
}

impl Actor {
    /// The newest content of a file.
    fn content(&self, file: u64) -> Content {
        self.story.files.borrow().get(&file).map(|h| h.last().clone()).unwrap_or_default()
    }

    /// The file that is cloned into: a new one, or any.
    async fn clone_target(&mut self, whole: bool) -> Check<Option<(u64, ObjectId)>> {
        if whole && self.open.len() < FILES_MAX && self.rng.percent(50) {
            return self.create().await;
        }
        Ok(self.pick().map(|(_, file, obj)| (file, obj)))
    }

    /// A range of blocks of a source of `src_size` bytes, for a target of `size`.
    fn draw_blocks(&mut self, block: u64, src_size: u64, size: u64) -> Range {
        let mut place = |most: u64| self.rng.below(most / block + 1) * block;
        let (src_off, off) = (place(src_size), place(size));
        let left = src_size - src_off;
        let len = if self.rng.percent(40) { left } else { left.min(block * (1 + self.rng.below(4))) };
        Range { src_off, off, len }
    }

    /// Clones a range of one of its files into another, or into the same.
    pub(super) async fn clone_range(&mut self) -> Check {
        let Some((_, src, src_obj)) = self.pick() else { return Ok(()) };
        let whole = self.rng.percent(50);
        let Some((file, obj)) = self.clone_target(whole).await? else { return Ok(()) };
        let blksz = self.fs.getattr(src_obj).await.map_err(text)?.blksize;
        let (source, before) = (self.content(src), self.content(file));
        let (src_size, size) = (source.len() as u64 * UNIT, before.len() as u64 * UNIT);
        // Small files have one block of any size, which is cloned as a whole only.
        let range = match whole {
            true => Range { src_off: 0, off: 0, len: src_size },
            false => self.draw_blocks(u64::from(blksz).next_multiple_of(UNIT), src_size, size),
        };
        let Range { src_off, off, len } = range;
        if len == 0 || off + len > END_MAX {
            return Ok(());
        }
        let cloned = &source[(src_off / UNIT) as usize..((src_off + len) / UNIT) as usize];
        self.units(file, |u| {
            let (from, end) = ((off / UNIT) as usize, ((off + len) / UNIT) as usize);
            if u.len() < end {
                u.resize(end, None);
            }
            u[from..end].copy_from_slice(cloned);
        });
        let fs = self.fs.clone();
        let at = CloneFrom { fs: &fs, obj: src_obj, off: src_off };
        match fs.clone_range(at, obj, off, len).await {
            Err(e) if is_no_clone(&e) => {
                self.units(file, |u| *u = before);
                return Ok(());
            }
            Err(e) => return Err(text(e)),
            Ok(done) if done != (len, size.max(off + len)) => {
                return Err(format!("a clone of {len} bytes at {off} of {size}: {done:?} bytes and size"));
            }
            Ok(_) => self.story.clones.set(self.story.clones.get() + 1),
        }
        self.done(Some(file));
        if self.rng.percent(50) {
            self.fs.fsync(obj).await.map_err(text)?;
            self.durable(Some(file));
        }
        Ok(())
    }
}
