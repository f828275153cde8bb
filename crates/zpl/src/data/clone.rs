//! Cloning: a range of a file takes the blocks of another file without copying them (format page 18
//! section 5). The two may be of different file systems of a pool.
//!
//! The range is done in pieces of at most [`PIECE_BLOCKS`] blocks, each one transaction and one
//! record of the log. A piece locks the range of the source and all of the target, reads the
//! pointers of the source, and is assigned to a txg only then: so the source is freed in no txg
//! before that of the clone. A block of the source that is not on disk yet cannot be cloned; the
//! piece waits for its txg, without locks, and begins again.
//!
//! What cannot be cloned is an error of a kind that says so ([`is_no_clone`]): the caller copies.
//!
//! Ranges that are the same already are *shared* ([`Zfs::share_equal`]) by the same path: a piece
//! is compared under its locks and cloned if it is equal. It changes no content, so neither times
//! nor the log say anything of it.

use base::{Error, ErrorKind, ObjectId, Result, Txg};
use dmu::CloneSource;
use dmu::sa::ZnodeAttrs;
use ondisk::blkptr::Blkptr;
use ondisk::zpl::pflags;
use rt::sync::RangeGuard;

use crate::data::{FILE_SIZE_MAX, too_big};
use crate::fs::Zfs;
use crate::node::{Node, check_flags};

/// Blocks of a piece: the log record of so many fits into the largest log block (OpenZFS's number,
/// format page 18 section 5).
pub(crate) const PIECE_BLOCKS: u64 = 1022;
/// Bytes of a piece that is compared first.
const COMPARED_MAX: u64 = 16 << 20;
/// Txgs that a piece waits for a source that changes again and again.
const WAITS_MAX: u32 = 8;

/// A range of a file that is cloned.
#[derive(Clone, Copy)]
pub struct CloneFrom<'a> {
    /// Its file system.
    pub fs: &'a Zfs,
    /// The file.
    pub obj: ObjectId,
    /// Where the range begins, in bytes.
    pub off: u64,
}

/// What is left to clone.
#[derive(Clone, Copy)]
struct Rest<'a> {
    from: CloneFrom<'a>,
    /// Size of the source when the first piece began: a file that is cloned into itself beyond its
    /// end grows with each piece, but what the pieces add is no part of the source.
    src_size: u64,
    /// Where it goes, in bytes.
    off: u64,
    len: u64,
    /// Only if it is there already.
    if_equal: bool,
}

impl CloneFrom<'_> {
    /// Size of the file, in bytes.
    async fn size(&self) -> Result<u64> {
        let _pass = self.fs.enter_clone_source()?;
        let n = self.fs.node(self.obj).await?;
        Ok(self.fs.live_attrs(&n).await?.size)
    }
}

impl Rest<'_> {
    /// Without its first `n` bytes.
    fn skip(self, n: u64) -> Self {
        let from = CloneFrom { off: self.from.off.saturating_add(n), ..self.from };
        Rest { from, off: self.off.saturating_add(n), len: self.len - n, ..self }
    }
}

/// Whether an error of [`Zfs::clone_range`] says that the range cannot be cloned, but may be
/// copied.
pub fn is_no_clone(e: &Error) -> bool {
    matches!(e.kind(), ErrorKind::Unsupported | ErrorKind::CrossDevice | ErrorKind::Invalid | ErrorKind::Restart)
}

/// What decides whether a range can be cloned. All in bytes.
#[derive(Clone, Copy, Debug)]
struct Shape {
    src_off: u64,
    off: u64,
    /// Bytes to clone, not beyond the end of the source.
    len: u64,
    src_size: u64,
    src_blksz: u64,
    size: u64,
    blksz: u64,
    /// The target has one block at most.
    is_single: bool,
    recordsize: u64,
}

impl Shape {
    /// Why the range cannot be cloned.
    fn hindrance(&self) -> Option<&'static str> {
        let s = self;
        let blksz = s.src_blksz;
        let can_grow = s.is_single && s.size <= s.blksz;
        if blksz < s.blksz {
            return Some("the blocks of the source are smaller");
        }
        if blksz != s.blksz && !can_grow {
            return Some("the blocks of the target are smaller");
        }
        if (s.src_off != 0 || s.off != 0) && !blksz.is_power_of_two() {
            return Some("the block size of the source is no power of two");
        }
        if !s.src_off.is_multiple_of(blksz) || !s.off.is_multiple_of(blksz) {
            return Some("the range does not begin with a block");
        }
        let is_end = s.src_off + s.len >= s.src_size && s.off + s.len >= s.size;
        if !s.len.is_multiple_of(blksz) && !is_end {
            return Some("the range does not end with a block");
        }
        // The small block size would stay for ever.
        if blksz < s.recordsize && s.is_single && s.off + s.len > blksz && s.len <= blksz {
            return Some("the target would have several blocks smaller than its record size");
        }
        None
    }
}

/// What clones say of themselves.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Told {
    /// New times, and a record of the log.
    Change,
    /// Nothing: the contents were the same.
    Nothing,
}

/// What a try at a piece came to.
enum Piece {
    /// Cloned: bytes, and the size of the target.
    Done(u64, u64),
    /// The source has a block that is not on disk yet.
    Dirty,
    /// The source ends before the range.
    End(u64),
}

impl Zfs {
    /// Makes `len` bytes from `off` of a file clones of as many of another file, or of another part
    /// of the same. Less is cloned at the end of the source, or if something fails after the first
    /// piece. Returns the bytes cloned and the size of the file.
    ///
    /// Errors: those of [`is_no_clone`] if the range can only be copied; those of writes.
    pub async fn clone_range(&self, from: CloneFrom<'_>, obj: ObjectId, off: u64, len: u64) -> Result<(u64, u64)> {
        let done = self.clone_pieces(from, obj, (off, len), false).await?;
        self.commit_if_always(obj).await?;
        Ok(done)
    }

    /// Makes `len` bytes from `off` of a file share the blocks of as many of another file, or of
    /// another part of the same, that are the same bytes; what is shared already stays. Less is
    /// shared at the end of the source, or if something fails or differs after the first piece.
    /// Returns the bytes that are shared.
    ///
    /// Errors: `Differs` if the bytes do, and those of [`Zfs::clone_range`]; `Invalid` if the range
    /// is not within the file.
    pub async fn share_equal(&self, from: CloneFrom<'_>, obj: ObjectId, off: u64, len: u64) -> Result<u64> {
        self.clone_pieces(from, obj, (off, len), true).await.map(|(n, _)| n)
    }

    /// Clones the pieces of a range; the bytes done and the size of the file.
    async fn clone_pieces(
        &self,
        from: CloneFrom<'_>,
        obj: ObjectId,
        (off, len): (u64, u64),
        if_equal: bool,
    ) -> Result<(u64, u64)> {
        self.check_clones_from(from.fs)?;
        let all = Rest { from, src_size: from.size().await?, off, len, if_equal };
        let (mut done, mut size) = (0, 0);
        loop {
            match self.clone_piece(all.skip(done), obj).await {
                Ok(Piece::Done(some, new_size)) => (done, size) = (done + some, new_size),
                Ok(Piece::End(now)) => {
                    size = now;
                    break;
                }
                Ok(Piece::Dirty) => break,
                Err(e) if done == 0 => return Err(e),
                Err(_) => break,
            }
            if done >= len {
                break;
            }
        }
        Ok((done, size))
    }

    /// An error unless blocks of the file system `from` may be cloned into this one.
    fn check_clones_from(&self, from: &Zfs) -> Result<()> {
        let (ours, theirs) = (self.os.ctx(), from.os.ctx());
        let other = |why| Error::new(ErrorKind::CrossDevice, format!("'{}' and '{}' {why}", from.name(), self.name()));
        if !std::rc::Rc::ptr_eq(ours.zio().tree(), theirs.zio().tree()) {
            return Err(other("are in different pools"));
        }
        if !ours.zio().may_clone() {
            return Err(Error::unsupported("the pool does not have the feature block_cloning"));
        }
        match (ours.key(), theirs.key()) {
            (None, None) => Ok(()),
            (Some(a), Some(b)) if a.guid() == b.guid() => Ok(()),
            _ => Err(other("do not have the same encryption key")),
        }
    }

    /// One piece at the beginning of the range.
    async fn clone_piece(&self, rest: Rest<'_>, obj: ObjectId) -> Result<Piece> {
        for _ in 0..WAITS_MAX {
            let piece = self.try_clone(rest, obj).await?;
            if !matches!(piece, Piece::Dirty) {
                return Ok(piece);
            }
            if self.os.ctx().zio().opts().clones_wait_off {
                break;
            }
            self.wait_txg(Txg(0)).await?;
        }
        Err(Error::new(ErrorKind::Restart, format!("file {} has blocks that are not on disk", rest.from.obj)))
    }

    /// Locks the source's range and the target, in the order of object sets and objects; one lock
    /// if they are one file.
    async fn lock_to_clone(&self, from: CloneFrom<'_>, src: &Node, n: &Node, len: u64) -> [Option<RangeGuard>; 2] {
        let (ours, theirs) = ((self.os.id(), n.obj()), (from.fs.os.id(), src.obj()));
        let (src, n) = (&src.st.data, &n.st.data);
        if ours == theirs {
            [Some(n.write(0, u64::MAX).await), None]
        } else if theirs < ours {
            let source = src.read(from.off, len).await;
            [Some(source), Some(n.write_same_rank(0, u64::MAX).await)]
        } else {
            let target = n.write(0, u64::MAX).await;
            [Some(target), Some(src.read_same_rank(from.off, len).await)]
        }
    }

    async fn try_clone(&self, rest: Rest<'_>, obj: ObjectId) -> Result<Piece> {
        let Rest { from, off, len, .. } = rest;
        let _pass = self.enter()?;
        let _source_pass = from.fs.enter_clone_source()?;
        let (n, src) = (self.node(obj).await?, from.fs.node(from.obj).await?);
        let _locks = self.lock_to_clone(from, &src, &n, len).await;
        let (a, s) = (self.live_attrs(&n).await?, from.fs.live_attrs(&src).await?);
        self.check_file(&n, &a)?;
        from.fs.check_file(&src, &s)?;
        check_flags(obj, &a, pflags::IMMUTABLE | pflags::READONLY)?;
        if off < a.size {
            check_flags(obj, &a, pflags::APPENDONLY)?;
        }
        if s.flags & pflags::AV_QUARANTINED != 0 {
            return Err(Error::new(ErrorKind::Denied, format!("file {} is in quarantine", from.obj)));
        }
        let src_size = s.size.min(rest.src_size);
        if from.off >= src_size || len == 0 {
            return Ok(Piece::End(a.size));
        }
        let len = len.min(src_size - from.off);
        if off.checked_add(len).is_none_or(|end| end > FILE_SIZE_MAX) {
            return Err(too_big(obj, off.checked_add(len)));
        }
        let is_same = self.os.id() == from.fs.os.id() && obj == from.obj;
        if is_same && off < from.off + len && from.off < off + len {
            return Err(Error::invalid(format!("file {obj}: the ranges overlap")));
        }
        let blksz = u64::from(src.dn.block_size());
        let shape = Shape {
            src_off: from.off,
            off,
            len,
            src_size,
            src_blksz: blksz,
            size: a.size,
            blksz: u64::from(n.dn.block_size()),
            is_single: n.dn.max_blkid() == 0,
            recordsize: u64::from(self.os.props().recordsize),
        };
        if let Some(why) = shape.hindrance() {
            return Err(Error::invalid(format!("file {} cannot be cloned to file {obj}: {why}", from.obj)));
        }
        self.check_quota(&a, false).await?;
        let is_beyond = off + len > a.size || blksz != u64::from(n.dn.block_size());
        if rest.if_equal && is_beyond {
            return Err(Error::invalid(format!("file {obj} ends before the range, or has smaller blocks")));
        }
        let most = if rest.if_equal { (COMPARED_MAX / blksz).clamp(1, PIECE_BLOCKS) } else { PIECE_BLOCKS };
        let len = len.min(most * blksz);
        let Some(blocks) = sources(from.fs, &src, from.off / blksz, len.div_ceil(blksz)).await? else {
            return Ok(Piece::Dirty);
        };
        if rest.if_equal {
            let to = (off / blksz, len);
            if !self.is_shared(&n, to.0, &blocks).await? {
                self.compare(&src, from.off / blksz, &n, to).await?;
                self.put_clones(&n, &a, (off, len), blksz, &blocks, Told::Nothing).await?;
            }
            return Ok(Piece::Done(len, a.size));
        }
        let size = self.put_clones(&n, &a, (off, len), blksz, &blocks, Told::Change).await?;
        from.fs.stamp_atime(&src, &s);
        Ok(Piece::Done(len, size))
    }

    /// Whether a file has these blocks from block `first` on already.
    async fn is_shared(&self, n: &Node, first: u64, blocks: &[Blkptr]) -> Result<bool> {
        let Some(own) = sources(self, n, first, blocks.len() as u64).await? else { return Ok(false) };
        let is_it = |(a, b): (&Blkptr, &Blkptr)| (a.is_hole() && b.is_hole()) || a.same_place(b);
        Ok(own.iter().zip(blocks).all(is_it))
    }

    /// Compares the blocks of `src` from block `from` on with those of `n`, for `len` bytes. Error:
    /// `Differs` if they are not the same.
    async fn compare(&self, src: &Node, from: u64, n: &Node, (to, len): (u64, u64)) -> Result<()> {
        let blksz = u64::from(n.dn.block_size());
        src.dn.prefetch(from * blksz, len);
        n.dn.prefetch(to * blksz, len);
        for i in 0..len.div_ceil(blksz) {
            let (a, b) = (src.dn.read_block(from + i).await?, n.dn.read_block(to + i).await?);
            let part = (len - i * blksz).min(blksz) as usize;
            self.rt.spend(rt::cost::COPY.cost(part as u64)).await;
            if a[..part] != b[..part] {
                let at = (to + i) * blksz;
                let what = format!("file {} differs from file {} at or after byte {at}", n.obj(), src.obj());
                return Err(Error::new(ErrorKind::Differs, what));
            }
        }
        Ok(())
    }

    /// Puts clones of `blocks`, of `blksz` bytes each, at `off`, for `len` bytes of which the last
    /// block may have a part. The caller holds the lock of the whole file, and those of the blocks'
    /// owners. Returns the size of the file.
    #[allow(clippy::too_many_arguments, reason = "what a record of the log says, and whether there is one")]
    pub(crate) async fn put_clones(
        &self,
        n: &Node,
        a: &ZnodeAttrs,
        (off, len): (u64, u64),
        blksz: u64,
        blocks: &[Blkptr],
        told: Told,
    ) -> Result<u64> {
        let first = off / blksz;
        if let Some(odd) = blocks.iter().find(|b| !b.is_hole() && (b.lsize() != blksz || b.otype() != n.dn.otype())) {
            return Err(Error::unsupported(format!("file {}: {odd} is no block for it", n.obj())));
        }
        let grown = (blksz != u64::from(n.dn.block_size())).then_some(blksz as u32);
        let plan = self.plan().clone_blocks(&n.dn, first, blocks).write_new(grown.map_or(0, u64::from));
        let tx = plan.free(&n.dn).bonus(&n.dn).assign().await?;
        let done = async {
            if let Some(blksz) = grown {
                n.dn.resize_block(blksz, &tx).await?;
            }
            for (blkid, bp) in (first..).zip(blocks) {
                self.rt.spend(rt::cost::DMU_POINTER).await;
                n.dn.clone_block(blkid, bp, &tx)?;
            }
            if told == Told::Nothing {
                return Ok(a.size);
            }
            let now = self.now();
            self.change_attrs(n, &tx, |a| {
                a.size = a.size.max(off + len);
                (a.mtime, a.ctime) = (now, now);
                a.flags |= self.modified_flags();
                a.size
            })
            .await
        };
        match done.await {
            Ok(size) if told == Told::Nothing => {
                self.finish(tx);
                Ok(size)
            }
            Ok(size) => {
                self.log_clone((n.obj(), a.links), (off, len), blksz, blocks, &tx);
                self.finish(tx);
                Ok(size)
            }
            Err(e) => {
                // Some blocks may be clones already.
                self.log_barrier(Some(n.obj()), &tx);
                Err(e)
            }
        }
    }
}

/// The pointers of `count` blocks from `first` on; none if one of them is not on disk.
async fn sources(fs: &Zfs, n: &Node, first: u64, count: u64) -> Result<Option<Vec<Blkptr>>> {
    let mut out = Vec::with_capacity(count as usize);
    for blkid in first..first + count {
        fs.rt.spend(rt::cost::DMU_POINTER).await;
        if blkid > n.dn.max_blkid() {
            out.push(Blkptr::hole());
            continue;
        }
        match n.dn.clone_source(blkid).await? {
            CloneSource::Block(bp) => out.push(bp),
            CloneSource::Dirty => return Ok(None),
        }
    }
    Ok(Some(out))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_cloned_by_the_rules_of_openzfs() {
        let rec = 128 << 10;
        let new = Shape {
            src_off: 0,
            off: 0,
            len: 10 * rec,
            src_size: 10 * rec,
            src_blksz: rec,
            size: 0,
            blksz: 512,
            is_single: true,
            recordsize: rec,
        };
        let many = Shape { size: 20 * rec, blksz: rec, is_single: false, ..new };
        for (what, shape, may) in [
            ("a new file", new, true),
            ("a part of it", Shape { len: 2 * rec, ..new }, true),
            ("not to the end of a block", Shape { len: 2 * rec + 1, ..new }, false),
            ("to the end of the source", Shape { len: 9 * rec + 5, src_size: 9 * rec + 5, ..new }, true),
            ("that is not the end of the target", Shape { len: 9 * rec + 5, src_size: 9 * rec + 5, ..many }, false),
            ("a whole block beyond", Shape { src_off: 9 * rec, off: 30 * rec, len: rec, ..many }, true),
            ("from within a block", Shape { src_off: 512, len: rec, ..many }, false),
            ("to within a block", Shape { off: 512, len: rec, ..many }, false),
            ("smaller blocks", Shape { src_blksz: 8192, ..many }, false),
            ("larger blocks", Shape { src_blksz: 2 * rec, ..many }, false),
            ("larger blocks, new file", Shape { src_blksz: 2 * rec, ..new }, true),
            ("a small file", Shape { src_blksz: 5120, len: 5000, src_size: 5000, ..new }, true),
            ("a small file, elsewhere", Shape { src_blksz: 5120, len: 5000, src_size: 5000, off: 5120, ..new }, false),
            ("a small block beyond", Shape { src_blksz: 4096, len: 4096, src_size: 4096, off: 4096, ..new }, false),
            ("as large as a record", Shape { len: rec, src_size: rec, off: rec, ..new }, true),
        ] {
            assert_eq!(shape.hindrance().is_none(), may, "{what}: {:?}", shape.hindrance());
        }
    }
}
