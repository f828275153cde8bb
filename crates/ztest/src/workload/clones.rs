//! Cloning ranges of files, within a file system and between two.

use zpl::{CloneFrom, is_no_clone};

use super::*;

/// Blocks that are cloned in one transaction (format page 18 section 5).
const PIECE_BLOCKS: u64 = 1022;
/// Bytes cloned at most: more takes long in files with large holes.
const CLONED_MAX: u64 = 8 << 20;

/// What is cloned where, in bytes.
struct Range {
    src_off: u64,
    off: u64,
    len: u64,
}

impl Runner {
    /// The file system of the source: that of the target, or any.
    async fn source_turn(&mut self, t: &Turn) -> Check<Turn> {
        if self.rng.percent(60) {
            return Ok(Turn { ds: t.ds.clone(), fs: t.fs.clone(), start: t.start });
        }
        self.turn().await
    }

    /// A range of a source of `src_size` bytes in blocks of `blksz`, for a target of `size`.
    fn draw_range(&mut self, blksz: u64, src_size: u64, size: u64) -> Range {
        let mut block = |n: u64| self.rng.below(n / blksz + 1) * blksz;
        let (src_at, at, near) = (block(src_size), block(size + blksz), block(1 << 20) + blksz);
        let (src_off, off, len) = match self.rng.below(10) {
            0 | 1 => (src_at, src_at, src_size - src_at),
            2 => (0, at, src_size),
            3..=5 => (src_at, at, near),
            6 | 7 => (src_at, at, blksz),
            // Not of whole blocks: cloned at the end of both files only.
            8 => (src_at, at, self.rng.below(near)),
            _ => (self.draw_offset(src_size), self.draw_offset(size), near),
        };
        Range { src_off, off, len }
    }

    pub(super) async fn clone_range(&mut self) -> Check {
        let t = self.turn().await?;
        let from = self.source_turn(&t).await?;
        let has_data = |i: &Inode| i.kind == FileKind::File && i.size() > 0;
        let Some(src) = self.pick(&from, has_data) else { return Ok(()) };
        let a = from.fs.getattr(ObjectId(src)).await.map_err(|e| format!("getattr {src}: {e:?}"))?;
        let (blksz, src_size) = (u64::from(a.blksize), self.fs(&from).get(src).size());
        // Single blocks of odd sizes are cloned as a whole or not at all.
        let whole = self.rng.percent(if blksz.is_power_of_two() { 40 } else { 90 });
        let smaller = |i: &Inode| i.kind == FileKind::File && i.size() <= src_size;
        let target = if whole { self.pick(&t, smaller) } else { None };
        let Some(ino) = target.or_else(|| self.pick_file(&t)) else { return Ok(()) };
        let size = self.fs(&t).get(ino).size();
        let range = match whole {
            true => Range { src_off: 0, off: 0, len: src_size },
            false => self.draw_range(blksz, src_size, size),
        };
        // A cut shows each transaction.
        let most = if self.profile == Profile::Cuts { PIECE_BLOCKS * blksz } else { CLONED_MAX / blksz * blksz };
        let Range { src_off, off, len } = Range { len: range.len.min(most), ..range };
        self.note(format!("clone {src} of {} at {src_off}+{len} size {src_size} to {ino} {off} size {size}", from.ds));
        let at = CloneFrom { fs: &from.fs, obj: ObjectId(src), off: src_off };
        let got = match t.fs.clone_range(at, ObjectId(ino), off, len).await {
            Err(e) if is_no_clone(&e) => {
                self.note(format!("  not cloned: {e}"));
                return self.adopt(&t, ino, 0).await;
            }
            got => got,
        };
        let Some((done, new_size)) = self.agree("clone", Ok(()), got)? else { return self.adopt(&t, ino, 0).await };
        let want = len.min(src_size.saturating_sub(src_off));
        // Beyond the first piece there may be a lack of space.
        if done > want || (done < want && done < PIECE_BLOCKS * blksz) {
            return Err(format!("object {ino}: {done} of {want} bytes were cloned"));
        }
        let source = self.fs(&from).get(src).content().cloned().ok_or("picked as a file")?;
        let Body::File(c) = &mut self.fs_mut(&t).get_mut(ino).body else { unreachable!("picked as a file") };
        if done > 0 {
            c.clone_range(off, &source, src_off, done);
        }
        if c.size != new_size {
            return Err(format!("object {ino}: the size is said to be {new_size}, not {}", c.size));
        }
        self.clones += u64::from(done > 0);
        self.adopt(&t, ino, if done == 0 { 0 } else { M | C }).await
    }
}
