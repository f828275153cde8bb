//! Writing the block tree of one object: from the committed tree and the changes of a txg to a new
//! tree.
//!
//! The new tree is built aside, depth first in block order, and replaces the old one at the end in
//! one step: until then readers use the old tree under the txg's dirty state. Only changed blocks
//! and the indirect blocks above them are visited. At each indirect block on the way:
//!
//! 1. a block whose whole range is freed and gets no new data is freed with all below it;
//! 2. else it is read (or begins empty, or with the pointers that a growing tree pushed down into
//!    it), its changed children are done first, then it is written; when all of its children are
//!    holes it is freed instead.
//!
//! A bounded number of indirect blocks per level is in memory at a time, with any size of the
//! object: the current one, and those whose compression has not ended (it runs on the CPU pool, and
//! one after the other would take a txg's time in hand-overs). Data blocks that are costly to
//! compress are prepared ahead, several at once. Both are issued in block order, so that neighbours
//! get neighbouring space.

use std::collections::VecDeque;

use arc::Keep;
use base::{Error, Result};
use bdev::{Buf, Bytes};
use codec::{ChecksumAlgo, CompressAlgo};
use ondisk::blkptr::{BLKPTR_SIZE, Blkptr};
use ondisk::dnode::{DnodePhys, Slot, reach, slots};
use ondisk::object_type::ObjectType;
use rt::LocalBoxFuture;
use rt::cost::{DMU_BLOCK, DMU_POINTER, FREE};
use rt::join::{Pipeline, join_all};
use zio::{Prepared, WriteReq};

use crate::dirty::DirtyBlk;
use crate::dnode::Dnode;
use crate::policy::{BlockKind, Policy};
use crate::sync_block::SyncCx;
use crate::tree::{shl_sat, shr};

/// Most bytes of blocks that are prepared ahead.
const AHEAD_BYTES: u64 = 8 << 20;
/// Most blocks that are prepared ahead.
const AHEAD_BLOCKS: u64 = 32;
/// Most overridden blocks to skip in one search for blocks to prepare.
const SKIP_MAX: usize = 64;
/// Indirect blocks read ahead at once.
const INDIRECT_READS: usize = 16;
/// Indirect blocks of one level that are compressed at once.
const COMPRESSING_MAX: usize = 16;

/// Whether preparing such a block takes long enough for the CPU pool.
fn is_costly(p: &Policy, len: u64) -> bool {
    let cheap_sum = matches!(
        p.checksum,
        ChecksumAlgo::Off | ChecksumAlgo::NoParity | ChecksumAlgo::Fletcher2 | ChecksumAlgo::Fletcher4
    );
    let (none, quick) = match p.compression.algo {
        CompressAlgo::Off | CompressAlgo::Empty => (true, true),
        CompressAlgo::Lz4 | CompressAlgo::Lzjb | CompressAlgo::Zle => (false, true),
        _ => (false, false),
    };
    !(cheap_sum && (none || quick && len <= 64 << 10))
}

/// Dnodes in a dnode block: its fill count.
fn count_dnodes(block: &[u8]) -> Result<u64> {
    Ok(slots(block)?.into_iter().filter(|s| matches!(s, Slot::Dnode(_))).count() as u64)
}

/// The result for an indirect block.
enum Node {
    /// Its new pointer is known.
    Done(Blkptr),
    /// It must be written.
    Write(WriteReq),
}

/// The indirect blocks among the children of one block that are being compressed, in order: index
/// within the block, old pointer.
struct Compressing<'a> {
    window: Pipeline<LocalBoxFuture<'a, Result<Prepared>>>,
    which: VecDeque<(usize, Blkptr)>,
}

/// The sync of one object's tree.
pub(crate) struct TreeSync<'a> {
    cx: &'a SyncCx<'a>,
    dn: &'a Dnode,
    otype: ObjectType,
    /// Bytes of a data block.
    blksz: u32,
    epbs: u32,
    indblksz: usize,
    data: Policy,
    /// Policy of indirect blocks by whether they are at level 1 or above.
    indirect: [Policy; 2],
    /// Bytes charged to the object.
    pub used: u64,
    /// Pointers pushed down by growth, and the level whose block 0 begins with them.
    pushed: Option<(u8, Buf)>,
    /// Blocks being prepared, in order, and the first that is not.
    ahead: Pipeline<LocalBoxFuture<'a, Result<Prepared>>>,
    ahead_ids: VecDeque<u64>,
    ahead_next: Option<u64>,
}

impl<'a> TreeSync<'a> {
    /// For the tree of `phys`, an object of type `otype` whose data blocks get `blksz` bytes.
    pub fn new(cx: &'a SyncCx<'a>, dn: &'a Dnode, phys: &DnodePhys, otype: ObjectType, blksz: u32) -> TreeSync<'a> {
        let own = (phys.compress, phys.checksum);
        let policy_of = |level: u8| {
            let mut policy = cx.os.0.policy(BlockKind { otype, level, spill: false, own }, cx.pass);
            policy.class = dn.n.class.get().unwrap_or(policy.class);
            policy
        };
        let data = policy_of(0);
        let indirect = [policy_of(1), policy_of(2)];
        let costly = cx.pass == 1 && otype != ObjectType::DNODE && is_costly(&data, u64::from(blksz));
        let room = (AHEAD_BYTES / u64::from(blksz)).clamp(2, AHEAD_BLOCKS) as usize;
        TreeSync {
            cx,
            dn,
            otype,
            blksz,
            epbs: phys.epb_shift(),
            indblksz: phys.indblksz() as usize,
            data,
            indirect,
            used: phys.used_bytes(),
            pushed: None,
            ahead: Pipeline::new(room),
            ahead_ids: VecDeque::new(),
            ahead_next: costly.then_some(0),
        }
    }

    pub fn slot<R>(&self, f: impl FnOnce(&mut crate::dnode::DirtyTxg) -> R) -> R {
        let mut st = self.dn.n.st.borrow_mut();
        f(st.dirty[self.cx.txg.slot()].as_mut().expect("the txg's state stays until its sync is done"))
    }
    fn next_dirty(&self, from: u64, end: u64) -> Option<u64> {
        self.slot(|d| d.blocks.first_in(from..end))
    }
    fn next_freed(&self, from: u64, end: u64) -> Option<u64> {
        self.slot(|d| d.freed.next_from(from)).filter(|&b| b < end)
    }
    pub fn replace_used(&mut self, old: &Blkptr, new: &Blkptr) {
        let zio = self.cx.os.ctx().zio();
        let (minus, plus) = (zio.dsize(old), zio.dsize(new));
        self.used = self.used.saturating_add(plus).saturating_sub(minus);
    }
    pub fn kill(&mut self, bp: &Blkptr) {
        self.replace_used(bp, &Blkptr::hole());
        self.cx.kill(bp);
    }

    /// Frees early writes whose content was replaced: born in this txg, and never part of the
    /// object; and references of clones that were.
    pub fn free_given_up(&self) -> Result<()> {
        let given_up = self.slot(|d| d.blocks.take_given_up());
        self.cx.os.0.free_given_up(&given_up, self.cx.txg)
    }

    /// The content of a dirty data block.
    fn content(&self, blkid: u64) -> Bytes {
        self.slot(|d| d.blocks.share(blkid)).expect("the block was found dirty")
    }

    /// The pointer of a dirty data block's early write, if it is usable.
    fn overridden(&self, blkid: u64) -> Option<Blkptr> {
        let (otype, txg) = (self.otype, self.cx.txg);
        self.slot(|d| {
            d.blocks.overridden(blkid, |bp, len| {
                bp.is_hole() || bp.otype() == otype && bp.level() == 0 && bp.lsize() == len && bp.birth() == txg
            })
        })
    }

    /// `old` if the dirty data block in its place is the same, written anew.
    fn keeps_birth_of(&self, blkid: u64, old: &Blkptr) -> Option<Blkptr> {
        (!old.is_hole() && self.slot(|d| d.blocks.keeps_birth(blkid))).then_some(*old)
    }

    /// The request for a dirty data block.
    fn leaf_request(&self, blkid: u64) -> Result<WriteReq> {
        let data = self.content(blkid);
        let fill = if self.otype == ObjectType::DNODE { count_dnodes(&data)? } else { 1 };
        let mut req = self.cx.request(data, &self.data, (self.dn.n.obj, blkid));
        req.fill = fill;
        req.packed = self.slot(|d| d.blocks.packed(blkid));
        req.nopwrite &= !self.slot(|d| d.blocks.is_rewritten(blkid));
        Ok(req)
    }

    /// Starts preparing blocks ahead.
    fn prepare_ahead(&mut self) -> Result<()> {
        let mut skipped = 0;
        while let Some(from) = self.ahead_next
            && !self.ahead.is_full()
            && skipped < SKIP_MAX
        {
            let Some(blkid) = self.next_dirty(from, u64::MAX) else {
                self.ahead_next = None;
                break;
            };
            self.ahead_next = Some(blkid + 1);
            if self.overridden(blkid).is_some() || self.slot(|d| d.blocks.cloned(blkid)).is_some() {
                skipped += 1;
                continue;
            }
            let req = self.leaf_request(blkid)?;
            let zio = self.cx.os.ctx().zio();
            self.ahead.add(Box::pin(zio.prepare(req)));
            self.ahead_ids.push_back(blkid);
        }
        Ok(())
    }

    /// Writes or frees a changed data block.
    async fn sync_leaf(&mut self, blkid: u64, old: &Blkptr) -> Result<Blkptr> {
        let Some(len) = self.slot(|d| d.blocks.len_of(blkid)) else {
            if old.is_hole() {
                return Ok(*old);
            }
            self.kill(old);
            return Ok(self.cx.hole_in_place_of(old, old.lsize(), self.otype, 0));
        };
        let dirty_bytes = if self.dn.is_special() { 0 } else { len };
        let clone = self.slot(|d| d.blocks.cloned(blkid));
        let bp = if let Some(bp) = clone {
            self.ahead_next = self.ahead_next.map(|next| next.max(blkid + 1));
            self.cx.spend(DMU_BLOCK).await;
            self.sync_clone(blkid, bp, old).await?
        } else if let Some(bp) = self.overridden(blkid) {
            // The search for blocks to prepare must not go back before this block.
            self.ahead_next = self.ahead_next.map(|next| next.max(blkid + 1));
            self.cx.spend(DMU_BLOCK).await;
            let (metadata, kept) = (self.data.metadata, self.slot(|d| d.blocks.keep(blkid)));
            let keep = if kept == Keep::Cached { self.cx.os.0.keep(metadata) } else { kept };
            self.cx.put_stored(bp, self.content(blkid), old, (self.otype, 0), (metadata, keep), dirty_bytes)
        } else if self.ahead_next.is_some() || !self.ahead_ids.is_empty() {
            self.prepare_ahead()?;
            let id = self.ahead_ids.pop_front();
            assert!(id == Some(blkid), "blocks are prepared in the order of the tree");
            let mut prepared = self.ahead.next().await.expect("the pipeline has a future for every id")?;
            if let Some(old) = self.keeps_birth_of(blkid, old) {
                prepared.keep_birth_of(old);
            }
            self.prepare_ahead()?;
            self.cx.spend(DMU_BLOCK).await;
            let req = prepared.request().clone();
            self.cx.put(req, Some(prepared), old, self.data.metadata, dirty_bytes).await?
        } else {
            let mut req = self.leaf_request(blkid)?;
            req.keeps_birth_of = self.keeps_birth_of(blkid, old).map(Box::new);
            self.cx.spend(DMU_BLOCK).await;
            if self.otype == ObjectType::DNODE && req.fill == 0 {
                // A dnode block without dnodes becomes a hole, with any compression.
                if !old.is_hole() {
                    self.kill(old);
                }
                return Ok(self.cx.hole_in_place_of(old, len, self.otype, 0));
            }
            if self.otype == ObjectType::DNODE
                && let Some(raw) = &*self.cx.os.0.raw.borrow()
            {
                raw.seal_dnodes(&mut req, blkid, old);
            }
            self.cx.put(req, None, old, self.data.metadata, dirty_bytes).await?
        };
        self.replace_used(old, &bp);
        Ok(bp)
    }

    /// Puts a clone in place of `old`. If the block size was changed after it was made, the sync
    /// writes its content instead.
    async fn sync_clone(&mut self, blkid: u64, bp: Blkptr, old: &Blkptr) -> Result<Blkptr> {
        if bp.lsize() == u64::from(self.blksz) && bp.otype() == self.otype {
            return Ok(self.cx.put_clone(bp, old));
        }
        let content = self.cx.os.ctx().read(&bp).await?;
        let (_, copy) = self.dn.copy_of(content, self.blksz as usize).await;
        self.slot(|d| d.blocks.put(blkid, DirtyBlk::Mut(copy)));
        let req = self.leaf_request(blkid)?;
        self.cx.put(req, None, old, self.data.metadata, 0).await
    }

    /// Gives `phys` the height that its highest block id needs, and at least that. A tree that
    /// grows moves the pointers of the dnode into the first block of the first new level.
    pub fn grow(&mut self, phys: &mut DnodePhys, at_least: u8) {
        let levels = phys.nlevels_needed(phys.maxblkid).max(at_least);
        assert!(
            phys.maxblkid < reach(levels, phys.nblkptr, phys.indblkshift),
            "object {}: block {} is beyond reach",
            self.dn.n.obj,
            phys.maxblkid
        );
        if levels > phys.nlevels {
            if phys.bps().iter().any(|bp| !bp.is_hole() || bp.logical_birth().0 != 0) {
                let mut buf = Buf::zeroed(self.indblksz);
                for (bp, b) in phys.bps().iter().zip(buf.chunks_exact_mut(BLKPTR_SIZE)) {
                    bp.write_to(b);
                }
                self.pushed = Some((phys.nlevels, buf));
                for bp in &mut phys.blkptr {
                    *bp = Blkptr::hole();
                }
            }
            phys.nlevels = levels;
        }
    }

    /// Writes all changed blocks of the tree, and puts its new top pointers into `phys`.
    pub async fn sync_all(&mut self, phys: &mut DnodePhys) -> Result<()> {
        let n = usize::from(phys.nblkptr);
        let mut top = vec![0u8; n * BLKPTR_SIZE];
        for (bp, b) in phys.bps().iter().zip(top.chunks_exact_mut(BLKPTR_SIZE)) {
            bp.write_to(b);
        }
        self.sync_children(phys.nlevels - 1, 0, &mut top).await?;
        for (bp, b) in phys.blkptr.iter_mut().zip(Blkptr::iter_block(&top)) {
            *bp = b;
        }
        Ok(())
    }

    /// Frees all blocks of the tree of `phys`, and its spill block.
    pub async fn free_all(&mut self, phys: &DnodePhys) -> Result<()> {
        for i in 0..usize::from(phys.nblkptr) {
            let bp = phys.blkptr[i];
            if !bp.is_hole() {
                self.free_tree(phys.nlevels - 1, bp, None).await?;
            }
        }
        if let Some(bp) = phys.spill.filter(|bp| !bp.is_hole()) {
            self.kill(&bp);
        }
        Ok(())
    }

    /// Syncs the changed children in `buf`, the pointers of blocks `first..` of `level`. True if a
    /// pointer changed.
    fn sync_children<'b>(&'b mut self, level: u8, first: u64, buf: &'b mut [u8]) -> LocalBoxFuture<'b, Result<bool>> {
        Box::pin(async move {
            let n = buf.len() / BLKPTR_SIZE;
            let span = u32::from(level) * self.epbs;
            let end = shl_sat(first.saturating_add(n as u64), span);
            let mut changed = false;
            let mut prefetched_to = 0;
            let mut i = 0usize;
            let mut compressing = Compressing { window: Pipeline::new(COMPRESSING_MAX), which: VecDeque::new() };
            loop {
                let from = shl_sat(first + i as u64, span);
                let pushed = i == 0 && first == 0 && self.pushed.as_ref().is_some_and(|(l, _)| level >= *l);
                let next = if pushed {
                    Some(0)
                } else {
                    [self.next_dirty(from, end), self.next_freed(from, end)].into_iter().flatten().min()
                };
                let Some(next) = next else { break };
                i = (shr(next, span) - first) as usize;
                if i >= n {
                    break;
                }
                let old = Blkptr::at(buf, i).expect("the index is within the block");
                let id = first + i as u64;
                let new = if level == 0 {
                    self.sync_leaf(id, &old).await?
                } else {
                    if i >= prefetched_to {
                        prefetched_to = self.prefetch_indirect(level, first, i, buf).await;
                    }
                    match self.sync_indirect(level, id, &old).await? {
                        Node::Done(new) => new,
                        Node::Write(req) => {
                            if compressing.window.is_full() {
                                changed |= self.issue_compressed(&mut compressing, buf).await?;
                            }
                            compressing.which.push_back((i, old));
                            let zio = self.cx.os.ctx().zio();
                            compressing.window.push(Box::pin(zio.prepare(req))).await;
                            old
                        }
                    }
                };
                if new != old {
                    new.write_to(&mut buf[i * BLKPTR_SIZE..]);
                    changed = true;
                }
                i += 1;
                if i >= n {
                    break;
                }
                self.cx.spend(DMU_POINTER).await;
            }
            while !compressing.which.is_empty() {
                changed |= self.issue_compressed(&mut compressing, buf).await?;
            }
            Ok(changed)
        })
    }

    /// Issues the first of the blocks being compressed, and puts its pointer into `buf`. True if
    /// the pointer changed.
    async fn issue_compressed(&mut self, compressing: &mut Compressing<'a>, buf: &mut [u8]) -> Result<bool> {
        let prepared = compressing.window.next().await.expect("somebody is in the window")?;
        let (i, old) = compressing.which.pop_front().expect("as many as in the window");
        self.cx.spend(DMU_BLOCK).await;
        let req = prepared.request().clone();
        let bp = self.cx.put(req, Some(prepared), &old, true, 0).await?;
        self.replace_used(&old, &bp);
        bp.write_to(&mut buf[i * BLKPTR_SIZE..]);
        Ok(bp != old)
    }

    /// Prefetches the next indirect blocks to change, several at once. Returns the index up to
    /// which it searched.
    async fn prefetch_indirect(&self, level: u8, first: u64, from: usize, buf: &[u8]) -> usize {
        let span = u32::from(level) * self.epbs;
        let n = buf.len() / BLKPTR_SIZE;
        let mut bps = Vec::new();
        let mut i = from;
        while i < n && bps.len() < INDIRECT_READS {
            let lo = shl_sat(first + i as u64, span);
            let end = shl_sat(first + n as u64, span);
            let Some(next) = [self.next_dirty(lo, end), self.next_freed(lo, end)].into_iter().flatten().min() else {
                i = n;
                break;
            };
            i = (shr(next, span) - first) as usize;
            if let Some(bp) = Blkptr::at(buf, i)
                && !bp.is_hole()
            {
                bps.push(bp);
            }
            i += 1;
        }
        let ctx = self.cx.os.ctx();
        bps.retain(|bp| ctx.peek(bp).is_none());
        if bps.len() > 1 {
            // The use of the block reports the error.
            join_all(bps.iter().map(|bp| ctx.read(bp)).collect()).await;
        }
        i
    }

    /// Reads an indirect block of the old tree.
    async fn read_indirect(&self, level: u8, bp: &Blkptr) -> Result<Bytes> {
        let place = || format!("object {} of object set {}, level {level}", self.dn.n.obj, self.cx.os.id());
        if bp.level() != level {
            return Err(Error::corrupt(format!("{}: the pointer {bp} is of level {}", place(), bp.level())));
        }
        let block = self.cx.os.ctx().read(bp).await.map_err(|e| e.at(place()))?;
        if block.len() != self.indblksz {
            return Err(Error::corrupt(format!("{}: block of {} bytes", place(), block.len())));
        }
        Ok(block)
    }

    /// Syncs indirect block `id` of `level`, with all blocks below it.
    async fn sync_indirect(&mut self, level: u8, id: u64, old: &Blkptr) -> Result<Node> {
        let span = u32::from(level) * self.epbs;
        let (lo, hi) = (shl_sat(id, span), shl_sat(id + 1, span));
        let pushed_here = id == 0 && self.pushed.as_ref().is_some_and(|(l, _)| *l == level);
        let pushed_below = id == 0 && self.pushed.as_ref().is_some_and(|(l, _)| *l < level);
        if !pushed_here && !pushed_below && self.next_dirty(lo, hi).is_none() {
            if old.is_hole() {
                return Ok(Node::Done(*old));
            }
            if self.slot(|d| d.freed.covers(lo, hi)) {
                self.free_tree(level, *old, None).await?;
                return Ok(Node::Done(self.cx.hole_in_place_of(old, self.indblksz as u64, self.otype, level)));
            }
        }
        let mut buf = if pushed_here {
            self.pushed.take().expect("just seen").1
        } else if old.is_hole() {
            self.empty_indirect(level, old)
        } else {
            Buf::copy_from(&self.read_indirect(level, old).await?)
        };
        let changed = self.sync_children(level - 1, shl_sat(id, self.epbs), &mut buf).await?;
        if !changed && !pushed_here {
            return Ok(Node::Done(*old));
        }
        let (mut fill, mut holes) = (0u64, true);
        // Zero pointers are skipped: most of an indirect block is often empty.
        for bytes in buf.chunks_exact(BLKPTR_SIZE).filter(|bytes| **bytes != [0; BLKPTR_SIZE]) {
            let bp = Blkptr::at(bytes, 0).expect("a chunk is a pointer");
            fill = fill.saturating_add(bp.fill());
            holes &= bp.is_hole();
        }
        if holes {
            if !old.is_hole() {
                self.kill(old);
            }
            return Ok(Node::Done(self.cx.hole_in_place_of(old, self.indblksz as u64, self.otype, level)));
        }
        let mut p = self.indirect[usize::from(level > 1)];
        p.kind.level = level;
        let mut req = self.cx.request(buf.freeze(), &p, (self.dn.n.obj, id));
        req.fill = fill;
        req.rewrite = self.cx.is_rewrite(old).then_some(*old);
        self.cx.spend(DMU_BLOCK).await;
        Ok(Node::Write(req))
    }

    /// An indirect block in place of a hole; its pointers are holes with the same birth.
    fn empty_indirect(&self, level: u8, old: &Blkptr) -> Buf {
        let mut buf = Buf::zeroed(self.indblksz);
        if self.cx.hole_birth() && old.logical_birth().0 != 0 {
            let lsize =
                if level == 1 { u64::from(self.dn.n.st.borrow().phys.datablksz()) } else { self.indblksz as u64 };
            let hole = Blkptr::punched_hole(lsize, self.otype, level - 1, old.logical_birth());
            for b in buf.chunks_exact_mut(BLKPTR_SIZE) {
                hole.write_to(b);
            }
        }
        buf
    }

    /// Frees a block and all blocks below it.
    fn free_tree(&mut self, level: u8, bp: Blkptr, content: Option<Bytes>) -> LocalBoxFuture<'_, Result<()>> {
        Box::pin(async move {
            if level > 0 {
                let block = match content {
                    Some(b) => b,
                    None => self.read_indirect(level, &bp).await?,
                };
                let kids: Vec<Blkptr> = Blkptr::iter_block(&block).filter(|b| !b.is_hole()).collect();
                drop(block);
                if level == 1 {
                    for kid in &kids {
                        if kid.level() != 0 {
                            return Err(Error::corrupt(format!(
                                "object {}: pointer {kid} under level 1",
                                self.dn.n.obj
                            )));
                        }
                        self.kill(kid);
                        self.cx.spend(FREE).await;
                    }
                } else {
                    for some in kids.chunks(INDIRECT_READS) {
                        let ctx = self.cx.os.ctx();
                        let blocks = join_all(some.iter().map(|b| ctx.read(b)).collect()).await;
                        for (kid, block) in some.iter().zip(blocks) {
                            let block = block.ok().filter(|b| b.len() == self.indblksz && kid.level() == level - 1);
                            self.free_tree(level - 1, *kid, block).await?;
                        }
                    }
                }
            }
            self.kill(&bp);
            Ok(())
        })
    }
}
