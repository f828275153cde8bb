//! Walking the committed block tree of an object, and finding blocks in it without visiting holes.
//!
//! The tree read here is that of the last finished sync of the object. While a sync of it runs, a
//! new tree is built aside, and the old one stays readable because its blocks are not allocated
//! again before later txgs. A walk that fails because its tree was replaced meanwhile is repeated.

use std::cell::Cell;

use arc::Keep;
use base::{Error, ErrorKind, Result, Txg};
use bdev::Bytes;
use ondisk::blkptr::Blkptr;
use ondisk::bpobj::Bookmark;
use ondisk::dnode::{DNODES_PER_BLOCK, reach};
use rt::trace::{Event, Groups};
use zio::Prio;

use crate::dnode::Dnode;

/// `x << n` without overflow: saturates.
pub(crate) fn shl_sat(x: u64, n: u32) -> u64 {
    if x == 0 {
        0
    } else if n >= 64 || x > u64::MAX >> n {
        u64::MAX
    } else {
        x << n
    }
}

/// `x >> n`, 0 when everything is shifted out.
pub(crate) fn shr(x: u64, n: u32) -> u64 {
    x.checked_shr(n).unwrap_or(0)
}

/// The start of a walk: a consistent copy of the dnode's fields.
struct Start {
    bp: Blkptr,
    nlevels: u8,
    epbs: u32,
    maxblkid: u64,
}

/// Whether an error says that a block is not readable, whatever is tried.
fn is_damage(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::Checksum | ErrorKind::Corrupt | ErrorKind::Forged | ErrorKind::Io)
}

impl Dnode {
    /// The dnode's pointer above `blkid`; `None` beyond the reach of the tree.
    fn start(&self, blkid: u64) -> Option<Start> {
        let st = self.n.st.borrow();
        let p = &st.phys;
        if !st.on_disk || blkid >= reach(p.nlevels, p.nblkptr, p.indblkshift) {
            return None;
        }
        let epbs = p.epb_shift();
        let top = shr(blkid, u32::from(p.nlevels - 1) * epbs) as usize;
        let bp = *p.bps().get(top)?;
        Some(Start { bp, nlevels: p.nlevels, epbs, maxblkid: p.maxblkid })
    }

    /// Pointer `index` of an indirect block, checked against its place.
    fn child(&self, block: &Bytes, index: usize, level: u8) -> Result<Blkptr> {
        let bp = Blkptr::at(block, index).ok_or_else(|| {
            Error::corrupt(format!(
                "object {}: indirect block of {} bytes has no pointer {index}",
                self.n.obj,
                block.len()
            ))
        })?;
        if !bp.is_hole() && bp.level() != level {
            return Err(Error::corrupt(format!(
                "object {}: level {} pointer where level {level} belongs",
                self.n.obj,
                bp.level()
            )));
        }
        Ok(bp)
    }

    /// An indirect block.
    async fn read_indirect(&self, bp: &Blkptr) -> Result<Bytes> {
        self.os.ctx.read_as(bp, Prio::SyncRead, self.os.keep(true)).await
    }

    /// The committed pointer of data block `blkid`; a hole beyond the tree.
    pub(crate) async fn lookup(&self, blkid: u64) -> Result<Blkptr> {
        let Some(s) = self.start(blkid) else { return Ok(Blkptr::hole()) };
        self.descend(&s, blkid, 0).await
    }

    /// The pointer of the block of `level` above data block `blkid`.
    async fn descend(&self, s: &Start, blkid: u64, level: u8) -> Result<Blkptr> {
        let mut bp = s.bp;
        for level in (level + 1..s.nlevels).rev() {
            if bp.is_hole() {
                return Ok(bp);
            }
            let block = self.read_indirect(&bp).await?;
            let index = shr(blkid, u32::from(level - 1) * s.epbs) & ((1 << s.epbs) - 1);
            bp = self.child(&block, index as usize, level - 1)?;
        }
        Ok(bp)
    }

    /// As [`Dnode::lookup`] if every block on the way is cached.
    pub(crate) fn lookup_cached(&self, blkid: u64) -> Option<Blkptr> {
        let Some(s) = self.start(blkid) else { return Some(Blkptr::hole()) };
        let mut bp = s.bp;
        for level in (1..s.nlevels).rev() {
            if bp.is_hole() {
                return Some(bp);
            }
            let block = self.os.ctx.peek(&bp)?;
            let index = shr(blkid, u32::from(level - 1) * s.epbs) & ((1 << s.epbs) - 1);
            bp = self.child(&block, index as usize, level - 1).ok()?;
        }
        Some(bp)
    }

    /// Repeats `step` if it failed on a tree that was replaced meanwhile, and once after a running
    /// sync of the object set.
    pub(crate) async fn retry<T>(&self, mut step: impl AsyncFnMut() -> Result<T>) -> Result<T> {
        let mut waited = false;
        loop {
            let generation = self.n.tree_gen.get();
            match step().await {
                Err(e) if !is_damage(e.kind()) => {
                    return Err(e);
                }
                Err(_) if self.n.tree_gen.get() != generation => waited = false,
                Err(_) if !waited && self.os.is_syncing() => {
                    self.os.wait_sync_step().await;
                    waited = true;
                }
                other => return other,
            }
        }
    }

    /// The pointer of data block `blkid` as of the last sync; a hole beyond the last block. Errors:
    /// those of reading the blocks above it.
    pub async fn block_pointer(&self, blkid: u64) -> Result<Blkptr> {
        let found = self.retry(async || self.lookup(blkid).await).await;
        found.map_err(|e| e.at(format_args!("object {} of object set {}, block {blkid}", self.n.obj, self.os.id)))
    }

    /// The pointer of block `blkid` of `level` as of the last sync; a hole outside the tree.
    /// Errors: those of reading the blocks above it.
    pub async fn pointer_at(&self, level: u8, blkid: u64) -> Result<Blkptr> {
        let found = self.retry(async || {
            let epbs = self.n.st.borrow().phys.epb_shift();
            let first = shl_sat(blkid, u32::from(level) * epbs);
            match self.start(first) {
                Some(s) if level < s.nlevels => self.descend(&s, first, level).await,
                _ => Ok(Blkptr::hole()),
            }
        });
        found.await.map_err(|e| {
            e.at(format_args!("object {} of object set {}, level {level} block {blkid}", self.n.obj, self.os.id))
        })
    }

    /// The pointer of the spill block as of the last sync, if there is one.
    pub fn spill_pointer(&self) -> Option<Blkptr> {
        self.n.st.borrow().phys.spill
    }

    /// The committed content of a block, `None` for a hole.
    /// A device read leaves it in the cache or not.
    pub(crate) async fn read_committed(&self, blkid: u64, keep: Keep) -> Result<Option<Bytes>> {
        // Not known while the pointer is not.
        let birth = Cell::new(Txg(0));
        self.retry(async || {
            birth.set(Txg(0));
            let bp = self.lookup(blkid).await?;
            birth.set(bp.phys_birth());
            if bp.is_hole() { Ok(None) } else { self.os.ctx.read_as(&bp, Prio::SyncRead, keep).await.map(Some) }
        })
        .await
        .map_err(|e| {
            self.note_damage(blkid, birth.get(), &e);
            e.at(format_args!("object {} of object set {}, block {blkid}", self.n.obj, self.os.id))
        })
    }

    /// Notes that a block was not readable, as of the data of an object, and tells listeners.
    fn note_damage(&self, blkid: u64, birth: Txg, e: &Error) {
        let (objset, object, forged) = (self.os.id, self.n.obj.0, e.kind() == ErrorKind::Forged);
        if is_damage(e.kind()) {
            self.os.ctx.note_damage(Bookmark { objset, object, level: 0, blkid }, birth);
            let event = || Event::Damaged { objset, object, level: 0, blkid, forged };
            self.os.ctx.rt().trace(Groups::FAULT, event);
        }
    }

    /// The first committed data block at or after `from` that is not a hole.
    pub(crate) async fn next_committed(&self, from: u64) -> Result<Option<u64>> {
        self.retry(async || {
            let mut blkid = from;
            'descend: loop {
                let Some(s) = self.start(blkid) else { return Ok(None) };
                if blkid > s.maxblkid {
                    return Ok(None);
                }
                let mut bp = s.bp;
                let mut level = s.nlevels - 1;
                loop {
                    if bp.is_hole() {
                        // To the end of the range of the hole.
                        let span = u32::from(level) * s.epbs;
                        blkid = shl_sat(shr(blkid, span) + 1, span);
                        if blkid == u64::MAX {
                            return Ok(None);
                        }
                        continue 'descend;
                    }
                    if level == 0 {
                        return Ok(Some(blkid));
                    }
                    let block = self.read_indirect(&bp).await?;
                    level -= 1;
                    let span = u32::from(level) * s.epbs;
                    let mut index = (shr(blkid, span) & ((1 << s.epbs) - 1)) as usize;
                    bp = self.child(&block, index, level)?;
                    // Adjacent holes are skipped here, without another descent for each.
                    while bp.is_hole() && index + 1 < 1 << s.epbs {
                        index += 1;
                        blkid = shl_sat(shr(blkid, span) + 1, span);
                        bp = self.child(&block, index, level)?;
                    }
                }
            }
        })
        .await
        .map_err(|e| e.at(format_args!("object {} of object set {}", self.n.obj, self.os.id)))
    }

    /// For the meta-dnode: the first block at or after `from` with room for new dnodes by the
    /// committed fill counts (at least a quarter of it), at latest the first block after the last
    /// one.
    pub(crate) async fn next_with_room(&self, from: u64) -> Result<u64> {
        let per_block = DNODES_PER_BLOCK as u64;
        self.retry(async || {
            let mut blkid = from;
            'descend: loop {
                let Some(s) = self.start(blkid) else { return Ok(blkid) };
                if blkid > s.maxblkid {
                    return Ok(blkid);
                }
                let mut bp = s.bp;
                let mut level = s.nlevels - 1;
                loop {
                    if bp.is_hole() {
                        return Ok(blkid);
                    }
                    let span = u32::from(level) * s.epbs;
                    let room = if level == 0 { per_block * 3 / 4 } else { shl_sat(per_block, span) };
                    if level == 0 && bp.fill() <= room {
                        return Ok(blkid);
                    }
                    if level == 0 || bp.fill() >= room {
                        blkid = shl_sat(shr(blkid, span) + 1, span);
                        continue 'descend;
                    }
                    let block = self.read_indirect(&bp).await?;
                    level -= 1;
                    bp = self.child(
                        &block,
                        (shr(blkid, u32::from(level) * s.epbs) & ((1 << s.epbs) - 1)) as usize,
                        level,
                    )?;
                }
            }
        })
        .await
    }
}
