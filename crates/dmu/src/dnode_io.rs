//! Reading and changing the data of an object.
//!
//! Reading a block: the newest txg that wrote or freed it decides, else the committed tree.
//! Changing one: a whole block is put into the transaction's dirty state; a partial write of a
//! block that the txg has not written yet starts from its content in an older txg or on disk. While
//! it waits for the disk, other tasks may change the same block: the read is then marked
//! (`State::invalidate_rmw`) and repeated, so no lock is held. A large block that must be copied is
//! copied in the CPU pool while nothing is borrowed; the copy is used if the block still has the
//! same content then ([`Need`]).

use std::ops::Range;
use std::rc::Rc;

use arc::Keep;
use base::{Error, ErrorKind, Nanos, Result};
use bdev::{Buf, Bytes};
use ondisk::blkptr::Blkptr;
use rt::CpuClass;
use rt::cost::COPY;
use rt::join::Pipeline;
use zio::{Compression, Packed, WriteDone};

use crate::ctx::Prefetch;
use crate::dirty::{DirtyBlk, Stored, fit, is_large, is_same, resized};
use crate::dnode::{DirtyTxg, Dnode, ReadAhead, State};
use crate::tx::Tx;

/// Blocks that one read has in flight at once.
const READ_WINDOW: usize = 32;
/// Most bytes read ahead of a sequential reader.
const READ_AHEAD_MAX: u64 = 8 << 20;
/// Sequential reads after which read-ahead begins.
const READ_AHEAD_MIN_RUN: u32 = 2;
/// log2 of a block pointer's bytes.
const BLKPTR_SHIFT: u8 = 7;
/// Highest offset that an object's data may end at.
const MAX_OFFSET: u64 = i64::MAX as u64;
/// Bytes copied in one piece of a turn.
const COPY_PIECE: usize = 256 << 10;

/// A block in the dirty state of txgs.
pub(crate) enum Overlay {
    /// Its content.
    Data(Bytes),
    /// It is the clone of the block at this pointer.
    Cloned(Blkptr),
    /// It was freed; so were all blocks before this one.
    Freed(u64),
    /// Not dirty: the committed tree decides.
    None,
}

/// What a change of a block waits for.
enum Need {
    /// A copy of its committed content.
    Committed,
    /// A copy of this content with so many bytes, which are many.
    Copy(Bytes, usize),
    /// So many zeros, which are many.
    Zeros(usize),
    /// A copy of the cloned block at this pointer.
    Cloned(Box<Blkptr>),
}

/// Copies made for a change of a block.
#[derive(Default)]
struct Ready {
    /// The committed content (`Some(None)`: a hole), valid until the next wait.
    committed: Option<Option<Buf>>,
    /// A copy of dirty content.
    copy: Option<(Bytes, Buf)>,
    /// A copy of a cloned block.
    cloned: Option<Box<(Blkptr, Buf)>>,
    zeros: Option<Buf>,
}

impl Ready {
    /// Takes the copy of `content`.
    fn take(&mut self, content: &Bytes) -> Option<Buf> {
        self.copy.take_if(|(of, _)| is_same(of, content)).map(|(_, copy)| copy)
    }
    /// Takes `size` zeros, which are made here unless they are many.
    fn take_zeros(&mut self, size: usize) -> Option<Buf> {
        let zeros = self.zeros.take_if(|z| z.len() == size);
        zeros.or_else(|| (!is_large(size)).then(|| Buf::zeroed(size)))
    }
    /// Takes the copy of the cloned block at `bp`, cut or padded to `size`.
    fn take_cloned(&mut self, bp: &Blkptr, size: usize) -> Option<Buf> {
        let copy = self.cloned.take_if(|c| c.0 == *bp)?.1;
        Some(if copy.len() == size { copy } else { resized(&copy, size) })
    }
}

impl State {
    /// The newest state of a block in txgs up to `upto` (all if `None`).
    fn overlay_mut(&mut self, blkid: u64, upto: Option<base::Txg>) -> Overlay {
        let mut best: Option<(base::Txg, usize)> = None;
        let mut freed = None;
        for (i, d) in self.dirty.iter().enumerate() {
            let Some(d) = d else { continue };
            if upto.is_some_and(|t| d.txg > t) || best.is_some_and(|(t, _)| t > d.txg) {
                continue;
            }
            if d.blocks.contains(blkid) {
                (best, freed) = (Some((d.txg, i)), None);
            } else if let Some(end) = d.freed.end_of(blkid) {
                (best, freed) = (Some((d.txg, i)), Some(end));
            } else if d.free {
                (best, freed) = (Some((d.txg, i)), Some(u64::MAX));
            }
        }
        match (best, freed) {
            (None, _) => Overlay::None,
            (Some(_), Some(end)) => Overlay::Freed(end),
            (Some((_, i)), None) => {
                let blocks = &mut self.dirty[i].as_mut().expect("just found").blocks;
                match blocks.cloned(blkid) {
                    Some(bp) => Overlay::Cloned(bp),
                    None => Overlay::Data(blocks.share(blkid).expect("just found")),
                }
            }
        }
    }
    /// Whether the txg has written block `blkid`.
    pub(crate) fn writes(&self, blkid: u64, txg: base::Txg) -> bool {
        self.dirty[txg.slot()].as_ref().is_some_and(|d| d.txg == txg && d.blocks.contains(blkid))
    }
    /// Whether the committed tree certainly has no block `blkid`.
    pub(crate) fn beyond_committed(&self, blkid: u64) -> bool {
        !self.on_disk || blkid > self.phys.maxblkid
    }
}

impl Dnode {
    pub(crate) fn overlay(&self, blkid: u64) -> Overlay {
        let mut st = self.n.st.borrow_mut();
        if st.is_dirty() { st.overlay_mut(blkid, None) } else { Overlay::None }
    }

    /// The block in the newest txg, `None` for a hole.
    pub(crate) async fn block(&self, blkid: u64) -> Result<Option<Bytes>> {
        self.block_as(blkid, self.keep_data()).await
    }

    /// Whether its data stay in the cache.
    fn keep_data(&self) -> Keep {
        self.os.keep(self.otype().is_metadata())
    }

    /// As [`Dnode::block`]; a device read leaves the block in the cache or not.
    async fn block_as(&self, blkid: u64, keep: Keep) -> Result<Option<Bytes>> {
        match self.overlay(blkid) {
            Overlay::Data(b) => Ok(Some(b)),
            Overlay::Cloned(bp) => Box::pin(self.read_clone(blkid, bp)).await,
            Overlay::Freed(_) => Ok(None),
            Overlay::None if self.n.st.borrow().beyond_committed(blkid) => Ok(None),
            Overlay::None => self.read_committed(blkid, keep).await,
        }
    }

    /// The block if it is available without a wait: dirty, cached, or a known hole (zeros).
    pub fn peek_block(&self, blkid: u64) -> Option<Bytes> {
        let size = self.block_size() as usize;
        match self.overlay(blkid) {
            Overlay::Data(b) => return Some(fit(b, size)),
            Overlay::Cloned(bp) => return self.os.ctx.peek(&bp).map(|b| fit(b, size)),
            Overlay::Freed(_) => return Some(Bytes::zeroed(size)),
            Overlay::None => {}
        }
        if self.n.st.borrow().beyond_committed(blkid) {
            return Some(Bytes::zeroed(size));
        }
        let bp = self.lookup_cached(blkid)?;
        if bp.is_hole() { Some(Bytes::zeroed(size)) } else { self.os.ctx.peek(&bp).map(|b| fit(b, size)) }
    }

    /// The whole block, zeros for a hole.
    pub async fn read_block(&self, blkid: u64) -> Result<Bytes> {
        self.read_block_as(blkid, self.keep_data()).await
    }

    async fn read_block_as(&self, blkid: u64, keep: Keep) -> Result<Bytes> {
        if let Some(b) = self.peek_block(blkid) {
            return Ok(b);
        }
        self.read_block_slow(blkid, keep).await
    }

    /// As [`Dnode::read_block`], after [`Dnode::peek_block`] found nothing.
    async fn read_block_slow(&self, blkid: u64, keep: Keep) -> Result<Bytes> {
        // Boxed: the future of a read that waits is large, and would enlarge the futures of all
        // callers.
        let data = Box::pin(self.block_as(blkid, keep)).await?;
        let size = self.block_size() as usize;
        Ok(data.map_or_else(|| Bytes::zeroed(size), |b| fit(b, size)))
    }

    /// Fills `buf` from offset `off`. Holes, and everything past the last block, read as zeros.
    pub async fn read(&self, off: u64, buf: &mut [u8]) -> Result<()> {
        let size = u64::from(self.block_size());
        let mut at = 0usize;
        if (off % size) + buf.len() as u64 > size {
            for part in self.read_range(off, buf.len() as u64).await? {
                buf[at..at + part.len()].copy_from_slice(&part);
                at += part.len();
            }
            return Ok(());
        }
        let block = self.read_block(off / size).await?;
        let from = (off % size) as usize;
        // The block may have been resized while it was read.
        let have = block.get(from..).unwrap_or(&[]);
        let n = have.len().min(buf.len());
        buf[..n].copy_from_slice(&have[..n]);
        buf[n..].fill(0);
        Ok(())
    }

    /// `len` bytes from offset `off` as slices of blocks, in order, without a copy.
    pub async fn read_range(&self, off: u64, len: u64) -> Result<Vec<Bytes>> {
        self.read_range_as(off, len, None).await
    }

    /// As [`Dnode::read_range`] for data that are hardly wanted again (direct I/O): nothing is read
    /// ahead, and what comes from devices does not stay in the cache.
    pub async fn read_range_uncached(&self, off: u64, len: u64) -> Result<Vec<Bytes>> {
        self.read_range_as(off, len, Some(Keep::Uncached)).await
    }

    async fn read_range_as(&self, off: u64, len: u64, keep: Option<Keep>) -> Result<Vec<Bytes>> {
        let mut out = Vec::new();
        let Some(end) = off.checked_add(len) else {
            return Err(Error::invalid(format!("object {}: read of {len} bytes at {off}", self.n.obj)));
        };
        if len == 0 {
            return Ok(out);
        }
        let size = u64::from(self.block_size());
        let (first, last) = (off / size, (end - 1) / size);
        if keep.is_none() {
            self.read_ahead(first, last, size);
        }
        let keep = keep.unwrap_or_else(|| self.keep_data());
        let cut = |blkid: u64, block: Bytes| {
            let start = blkid * size;
            let (from, to) = (off.max(start) - start, end.min(start.saturating_add(size)) - start);
            fit(block, size as usize).slice(from as usize..to as usize)
        };
        // Available blocks need no window of futures.
        let mut blkid = first;
        while blkid <= last {
            let Some(block) = self.peek_block(blkid) else { break };
            out.push(cut(blkid, block));
            blkid += 1;
        }
        if blkid > last {
            return Ok(out);
        }
        if blkid == last {
            out.push(cut(blkid, self.read_block_slow(blkid, keep).await?));
            return Ok(out);
        }
        let mut window = Pipeline::new(READ_WINDOW);
        let mut taken = blkid;
        while blkid <= last {
            if let Some(block) = window.push(self.read_block_as(blkid, keep)).await {
                out.push(cut(taken, block?));
                taken += 1;
            }
            blkid += 1;
        }
        while let Some(block) = window.next().await {
            out.push(cut(taken, block?));
            taken += 1;
        }
        Ok(out)
    }

    /// Recognises sequential readers and reads ahead for them (`dmu_zfetch`).
    fn read_ahead(&self, first: u64, last: u64, size: u64) {
        let what = self.os.props.get().prefetch;
        if what == Prefetch::None || self.os.ctx.tunables().prefetch_disable {
            return;
        }
        let mut ra = self.n.read_ahead.get();
        if first == ra.next || (ra.next > 0 && first + 1 == ra.next) {
            ra.run = ra.run.saturating_add(1);
            self.os.ctx.count_read_ahead(|s| s.hits += 1);
        } else {
            self.os.ctx.count_read_ahead(|s| s.misses += 1);
            ra = ReadAhead::default();
        }
        ra.next = last + 1;
        let max = self.max_blkid();
        if ra.run >= READ_AHEAD_MIN_RUN {
            let span = (last - first + 1).saturating_mul(1 << ra.run.min(5)).min((READ_AHEAD_MAX / size).max(1));
            let (from, to) = (ra.ahead.max(last + 1), (last + span).min(max));
            // A quarter of the distance at a time, so that tasks are few.
            if from <= to && (to - from >= span / 4 || to == max) {
                ra.ahead = to + 1;
                self.os.ctx.count_read_ahead(|s| s.issued += to - from + 1);
                if what == Prefetch::All {
                    self.prefetch_blocks(from, to);
                } else {
                    self.prefetch_indirect_blocks(from, to);
                }
            }
        }
        self.n.read_ahead.set(ra);
    }

    /// Reads `len` bytes from `off` into the cache without waiting for them.
    pub fn prefetch(&self, off: u64, len: u64) {
        if len == 0 {
            return;
        }
        let size = u64::from(self.block_size());
        let last = (off.saturating_add(len - 1) / size).min(self.max_blkid());
        let first = off / size;
        if first <= last {
            self.prefetch_blocks(first, last.min(first + READ_AHEAD_MAX / size));
        }
    }

    /// Reads the pointers of blocks into the cache.
    fn prefetch_indirect_blocks(&self, first: u64, last: u64) {
        let dn = self.clone();
        self.os.ctx.rt().spawn("dmu prefetch", async move {
            let step = 1 << dn.n.st.borrow().phys.epb_shift();
            for blkid in (first / step..=last / step).map(|n| n * step) {
                // A later read reports the error.
                let _ = dn.block_pointer(blkid.max(first)).await;
            }
        });
    }

    fn prefetch_blocks(&self, first: u64, last: u64) {
        let dn = self.clone();
        self.os.ctx.rt().spawn("dmu prefetch", async move {
            let mut window = Pipeline::new(READ_WINDOW);
            for blkid in first..=last {
                if !matches!(dn.overlay(blkid), Overlay::None | Overlay::Cloned(_)) {
                    continue;
                }
                // A later read of the block reports the error.
                window.push(dn.block(blkid)).await;
            }
            while window.next().await.is_some() {}
        });
    }

    /// Writes `data` at offset `off`.
    pub async fn write(&self, off: u64, data: &[u8], tx: &Tx) -> Result<()> {
        self.write_blocks(off, data, tx, async |part| DirtyBlk::Mut(self.copied(&data[part]).await)).await
    }

    /// Writes the blocks anew without a change; holes stay, and blocks that the txg writes anyway.
    /// With `keep_birth` they keep their logical births, and those that a later txg changes stay.
    /// The caller holds off other changes of the blocks. Returns the bytes of the blocks.
    pub async fn rewrite_blocks(&self, blkids: Range<u64>, keep_birth: bool, tx: &Tx) -> Result<u64> {
        let mut bytes = 0;
        for blkid in blkids {
            self.check_write(blkid.saturating_mul(u64::from(self.block_size())), 1)?;
            let written = {
                let st = self.n.st.borrow();
                // The newest content is not that of this txg then.
                let changes = |d: &DirtyTxg| d.free || d.blocks.contains(blkid) || d.freed.contains(blkid);
                st.writes(blkid, tx.txg())
                    || keep_birth && st.dirty.iter().flatten().any(|d| d.txg > tx.txg() && changes(d))
            };
            if !written && let Some(content) = self.block(blkid).await? {
                self.put_block(blkid, DirtyBlk::Rewritten(content, keep_birth), tx)?;
                bytes += u64::from(self.block_size());
            }
            self.os.ctx.rt().spend(rt::cost::DMU_POINTER).await;
        }
        Ok(bytes)
    }

    /// Writes `data` at offset `off`; aligned whole blocks are taken without a copy.
    pub async fn write_bytes(&self, off: u64, data: Bytes, tx: &Tx) -> Result<()> {
        let whole = async |part: Range<usize>| {
            // A small slice would keep all of a large buffer in memory as long as it is cached.
            let (len, part) = (part.len(), data.slice(part));
            let lean = part.footprint() <= len.saturating_mul(8);
            if lean { DirtyBlk::Frozen(part) } else { DirtyBlk::Mut(self.copied(&part).await) }
        };
        self.write_blocks(off, &data, tx, whole).await
    }

    /// Writes the whole block at offset `off`, whose stored form is settled: `content` unpacked, as
    /// readers see it. Errors: `Invalid` if it is no block of the object.
    pub fn write_packed(&self, off: u64, content: Bytes, packed: Packed, tx: &Tx) -> Result<()> {
        let size = self.check_block(off, content.len() as u64)?;
        self.put_block(off / size, DirtyBlk::Packed(content, Rc::new(packed)), tx)
    }

    /// As [`Dnode::write_packed`] for a block that lies in its pointer: `payload` is what lies
    /// there, at most 112 bytes, packed by `compress`.
    pub fn write_embedded(&self, off: u64, content: Bytes, payload: &[u8], compress: u8, tx: &Tx) -> Result<()> {
        let size = self.check_block(off, content.len() as u64)?;
        let bp = Blkptr::embedded(payload, size, compress, self.otype(), 0, tx.txg());
        let stored = Box::new(Stored { bp, done: WriteDone::ready(Ok(())), keep: Keep::Cached });
        self.put_block(off / size, DirtyBlk::Overridden(content, stored), tx)
    }

    /// Checks that `len` bytes at `off` are a block, and gives the block size.
    fn check_block(&self, off: u64, len: u64) -> Result<u64> {
        let size = self.check_write(off, len)?;
        if len != size || !off.is_multiple_of(size) {
            return Err(Error::invalid(format!("object {}: {len} bytes at {off} are no block of it", self.n.obj)));
        }
        Ok(size)
    }

    /// Writes `data` at offset `off`. `whole` makes a block of a part of `data` that fills one.
    async fn write_blocks(
        &self,
        off: u64,
        data: &[u8],
        tx: &Tx,
        whole: impl AsyncFn(Range<usize>) -> DirtyBlk,
    ) -> Result<()> {
        let size = self.check_write(off, data.len() as u64)?;
        let mut at = 0usize;
        while at < data.len() {
            let pos = off + at as u64;
            let from = (pos % size) as usize;
            let n = (size as usize - from).min(data.len() - at);
            if n == size as usize {
                self.put_block(pos / size, whole(at..at + n).await, tx)?;
            } else {
                let part = &data[at..at + n];
                self.modify(pos / size, (from, from + n), tx, |b| b[from..from + n].copy_from_slice(part)).await?;
            }
            at += n;
        }
        Ok(())
    }

    /// A copy of `data`, made in pieces.
    async fn copied(&self, data: &[u8]) -> Buf {
        let mut copy = Buf::for_overwrite(data.len());
        for (to, from) in copy.chunks_mut(COPY_PIECE).zip(data.chunks(COPY_PIECE)) {
            self.os.ctx.rt().spend(COPY.cost(from.len() as u64)).await;
            to.copy_from_slice(from);
        }
        copy
    }

    /// A copy of `data`, cut or padded with zeros to `len`, with `data` itself.
    pub(crate) async fn copy_of(&self, data: Bytes, len: usize) -> (Bytes, Buf) {
        // Both are dropped on this thread, whose free lists own the memory.
        let job = move || (resized(&data, len), data);
        let (copy, data) = self.os.ctx.rt().cpu(COPY.cost(len as u64), job).await;
        (data, copy)
    }

    /// A copy of the committed block, `None` for a hole.
    async fn committed_copy(&self, blkid: u64) -> Result<Option<Buf>> {
        let Some(data) = self.read_committed(blkid, self.keep_data()).await? else { return Ok(None) };
        Ok(Some(self.copy_of(data, self.block_size() as usize).await.1))
    }

    /// Changes a block in place: `f` gets its current content (zeros for a hole).
    pub async fn update_block<R>(&self, blkid: u64, tx: &Tx, f: impl FnOnce(&mut [u8]) -> R) -> Result<R> {
        let size = self.check_write(blkid.saturating_mul(u64::from(self.block_size())), 1)?;
        self.modify(blkid, (0, size as usize), tx, f).await
    }

    /// Checks a write and gives the block size.
    pub(crate) fn check_write(&self, off: u64, len: u64) -> Result<u64> {
        self.check_tx()?;
        let size = u64::from(self.block_size());
        let end = off.checked_add(len).filter(|&e| e <= MAX_OFFSET);
        let Some(end) = end else {
            return Err(Error::new(ErrorKind::TooBig, format!("object {}: write of {len} bytes at {off}", self.n.obj)));
        };
        if end > size && !size.is_power_of_two() {
            return Err(Error::invalid(format!(
                "object {} has one block of {size} bytes and cannot get a second",
                self.n.obj
            )));
        }
        Ok(size)
    }

    /// Puts a whole block into the transaction's dirty state.
    fn put_block(&self, blkid: u64, mut blk: DirtyBlk, tx: &Tx) -> Result<()> {
        let mut st = self.n.st.borrow_mut();
        if blk.as_slice().len() != st.blksz as usize {
            blk = DirtyBlk::Mut(resized(blk.as_slice(), st.blksz as usize));
        }
        self.unfree_in_newer(&mut st, blkid, tx);
        for i in st.newer_than(tx.txg()) {
            let d = st.dirty[i].as_mut().expect("newer_than gives slots in use");
            if d.blocks.contains(blkid) {
                d.mods += 1;
                let shared = blk.share().expect("what is written has content");
                let (txg, len, was) = (d.txg, shared.len() as u64, d.blocks.put(blkid, DirtyBlk::Frozen(shared)));
                self.recount(txg, was.unwrap_or(0), len, st.otype.is_metadata());
            }
        }
        self.insert(&mut st, blkid, blk, tx.txg());
        Ok(())
    }

    /// Before a change of a block: newer txgs that freed it get it as zeros, so that the change can
    /// be applied to them.
    fn unfree_in_newer(&self, st: &mut State, blkid: u64, tx: &Tx) {
        for i in st.newer_than(tx.txg()) {
            let d = st.dirty[i].as_ref().expect("newer_than gives slots in use");
            if d.freed.contains(blkid) && !d.blocks.contains(blkid) {
                let (txg, zeros) = (d.txg, Bytes::zeroed(st.blksz as usize));
                self.insert(st, blkid, DirtyBlk::Frozen(zeros), txg);
            }
        }
    }

    /// Puts the block into the txg's state: dirty bytes, space charge, highest block id.
    pub(crate) fn insert(&self, st: &mut State, blkid: u64, blk: DirtyBlk, txg: base::Txg) {
        let len = blk.in_memory();
        let clone = if let DirtyBlk::Cloned(bp) = &blk { Some(**bp) } else { None };
        let (levels, shift, metadata) = (u64::from(st.phys.nlevels), st.phys.indblkshift, st.otype.is_metadata());
        let slot = self.slot(st, txg);
        let was = slot.blocks.put(blkid, blk);
        if let Some(was) = was {
            self.recount(txg, was, len, metadata);
        } else if !self.is_special() {
            let span = (1u64 << shift.saturating_sub(BLKPTR_SHIFT)) - 1;
            let (first, last) = (blkid & !span, blkid | span);
            // The first block below an indirect block changes that one, too, and those above it.
            let alone = !slot.blocks.has_two_in(first..=last);
            let indirect = if alone && (levels > 1 || blkid > 0) { levels.max(2) - 1 } else { 0 };
            self.os.ctx.dirty_add(txg, len);
            self.os.will_use(txg, |c| {
                let own = clone.map_or_else(|| c.block(len, metadata), |bp| c.clone_of(&bp));
                own + indirect * c.metadata(1 << shift)
            });
        }
        st.maxblkid = st.maxblkid.max(blkid);
        st.invalidate_rmw(blkid, blkid + 1);
    }

    /// Counts a dirty block whose content in memory has `len` bytes now, and had `was`: a clone has
    /// none.
    fn recount(&self, txg: base::Txg, was: u64, len: u64, metadata: bool) {
        if was == len || self.is_special() {
            return;
        }
        self.os.ctx.dirty_add(txg, len);
        self.os.ctx.dirty_done(txg, was);
        if was == 0 {
            self.os.will_use(txg, |c| c.block(len, metadata));
        }
    }

    /// Whether the object is in the object set block: its blocks are written during the sync, and
    /// not counted as dirty data.
    pub(crate) fn is_special(&self) -> bool {
        self.n.obj == base::ObjectId::META || self.n.obj.0 >= base::ObjectId::PROJECTUSED.0
    }

    /// Changes bytes `range` of a block: `f` gets the whole newest content and changes nothing
    /// outside the range.
    pub(crate) async fn modify<R>(
        &self,
        blkid: u64,
        range: (usize, usize),
        tx: &Tx,
        f: impl FnOnce(&mut [u8]) -> R,
    ) -> Result<R> {
        // What the changes before it copied may have filled the turn.
        self.os.ctx.rt().spend(Nanos(0)).await;
        let (mut ready, mut f) = (Ready::default(), f);
        loop {
            let need;
            match self.try_modify(blkid, range, tx, &mut ready, f) {
                Ok(r) => return Ok(r),
                Err(again) => (f, need) = again,
            }
            ready.committed = None;
            match need {
                Need::Committed => {
                    let id = self.n.st.borrow_mut().rmw_begin(blkid);
                    let guard = RmwGuard { dn: self, id };
                    let data = Box::pin(self.committed_copy(blkid)).await;
                    finish_rmw(guard, &mut ready.committed, data)?;
                }
                Need::Cloned(bp) => ready.cloned = Box::pin(self.copy_of_clone(blkid, bp)).await?,
                Need::Copy(shared, len) => ready.copy = Some(Box::pin(self.copy_of(shared, len)).await),
                Need::Zeros(len) => {
                    let zeros = self.os.ctx.rt().cpu(COPY.cost(len as u64), move || Buf::zeroed(len));
                    ready.zeros = Some(zeros.await);
                }
            }
            self.check_tx()?;
        }
    }

    /// A copy of the clone at `bp`; none if it is block `blkid` no more.
    async fn copy_of_clone(&self, blkid: u64, bp: Box<Blkptr>) -> Result<Option<Box<(Blkptr, Buf)>>> {
        match self.os.ctx.read(&bp).await {
            Ok(data) => Ok(Some(Box::new((*bp, self.copy_of(data, self.block_size() as usize).await.1)))),
            Err(e) if self.has_clone(blkid, &bp) => Err(e),
            Err(_) => Ok(None),
        }
    }

    /// As [`Dnode::modify`], unless a copy is needed that is not `ready`: `f` comes back.
    fn try_modify<R, F: FnOnce(&mut [u8]) -> R>(
        &self,
        blkid: u64,
        range: (usize, usize),
        tx: &Tx,
        ready: &mut Ready,
        f: F,
    ) -> Result<R, (F, Need)> {
        let rt = self.os.ctx.rt();
        let mut st = self.n.st.borrow_mut();
        let st = &mut *st;
        let size = st.blksz as usize;
        // A clone gets content before it is changed.
        let own = st.writes(blkid, tx.txg()).then_some(tx.txg().slot());
        for i in st.newer_than(tx.txg()).chain(own) {
            let metadata = st.otype.is_metadata();
            let d = st.dirty[i].as_mut().expect("slots in use");
            let Some(bp) = d.blocks.cloned(blkid) else { continue };
            let Some(copy) = ready.take_cloned(&bp, size) else { return Err((f, Need::Cloned(Box::new(bp)))) };
            d.mods += 1;
            let (txg, was) = (d.txg, d.blocks.put(blkid, DirtyBlk::Mut(copy)));
            self.recount(txg, was.unwrap_or(0), size as u64, metadata);
        }
        if !st.writes(blkid, tx.txg()) {
            let buf = match st.overlay_mut(blkid, Some(tx.txg())) {
                Overlay::Data(b) => match ready.take(&b) {
                    Some(copy) if copy.len() == size => copy,
                    _ if is_large(size) => return Err((f, Need::Copy(b, size))),
                    _ => {
                        rt.charge(COPY.cost(size as u64));
                        resized(&b, size)
                    }
                },
                Overlay::Cloned(bp) => match ready.take_cloned(&bp, size) {
                    Some(copy) => copy,
                    None => return Err((f, Need::Cloned(Box::new(bp)))),
                },
                Overlay::None if !st.beyond_committed(blkid) && !matches!(ready.committed, Some(None)) => {
                    match ready.committed.take().flatten() {
                        None => return Err((f, Need::Committed)),
                        Some(copy) if copy.len() == size => copy,
                        Some(copy) => resized(&copy, size),
                    }
                }
                // A hole, freed or of old.
                Overlay::Freed(_) | Overlay::None => match ready.take_zeros(size) {
                    Some(zeros) => zeros,
                    None => return Err((f, Need::Zeros(size))),
                },
            };
            self.insert(st, blkid, DirtyBlk::Mut(buf), tx.txg());
        } else {
            // Counts the change, and resizes the block if a newer txg changed the block size.
            self.slot(st, tx.txg());
        }
        self.unfree_in_newer(st, blkid, tx);
        let newer: Vec<usize> = st
            .newer_than(tx.txg())
            .filter(|&i| st.dirty[i].as_ref().is_some_and(|d| d.blocks.contains(blkid)))
            .collect();
        let at = tx.txg().slot();
        let newest = newer.first().copied().unwrap_or(at);
        for i in newer.iter().copied().chain([at]) {
            let blocks = &mut st.dirty[i].as_mut().expect("just found").blocks;
            let Some(shared) = blocks.shared(blkid) else { continue };
            match ready.take(&shared) {
                Some(copy) => {
                    blocks.put(blkid, DirtyBlk::Mut(copy));
                }
                // What was done so far changes no content.
                None if is_large(shared.len()) => {
                    let len = shared.len();
                    return Err((f, Need::Copy(shared, len)));
                }
                None => rt.charge(COPY.cost(shared.len() as u64)),
            }
        }
        let r = f(st.dirty[newest].as_mut().and_then(|d| d.blocks.make_mut(blkid)).expect("just found"));
        if newest != at {
            let changed = st.dirty[newest].as_mut().and_then(|d| d.blocks.share(blkid)).expect("just found");
            for &i in newer[1..].iter().chain([&at]) {
                let d = st.dirty[i].as_mut().expect("just found");
                d.mods += 1;
                let b = d.blocks.make_mut(blkid).expect("just found");
                b[range.0..range.1].copy_from_slice(&changed[range.0..range.1]);
            }
        }
        Ok(r)
    }

    /// As [`Dnode::set_block_size`] for a block that may be large.
    pub async fn resize_block(&self, blksz: u32, tx: &Tx) -> Result<()> {
        if self.is_cloned_from(0, tx) {
            // Gets its content, which the new block begins with.
            self.modify(0, (0, 0), tx, |_| ()).await?;
        }
        let mut copies = Vec::new();
        while let Some(old) = self.large_versions(tx).into_iter().find(|b| !copies.iter().any(|(of, _)| is_same(of, b)))
        {
            copies.push(self.copy_of(old, blksz as usize).await);
        }
        self.set_block_size_with(blksz, tx, copies)
    }

    /// The content of block 0 in the txg and in newer ones, where it is large.
    fn large_versions(&self, tx: &Tx) -> Vec<Bytes> {
        let mut st = self.n.st.borrow_mut();
        let slots: Vec<usize> = st.newer_than(tx.txg()).chain([tx.txg().slot()]).collect();
        let of = |i: usize| st.dirty[i].as_mut().and_then(|d| d.blocks.share(0));
        slots.into_iter().filter_map(of).filter(|b| is_large(b.len())).collect()
    }

    /// Changes the block size. Only while at most block 0 exists; its content is kept, truncated or
    /// padded with zeros.
    pub fn set_block_size(&self, blksz: u32, tx: &Tx) -> Result<()> {
        self.set_block_size_with(blksz, tx, Vec::new())
    }

    /// As [`Dnode::set_block_size`], with copies of large content that have the new size.
    fn set_block_size_with(&self, blksz: u32, tx: &Tx, mut copies: Vec<(Bytes, Buf)>) -> Result<()> {
        self.check_tx()?;
        if blksz == 0 || !blksz.is_multiple_of(512) || u64::from(blksz) > base::MAX_BLOCK {
            return Err(Error::invalid(format!("object {}: block size {blksz}", self.n.obj)));
        }
        let mut st = self.n.st.borrow_mut();
        let st = &mut *st;
        if st.blksz == blksz {
            return Ok(());
        }
        if st.maxblkid != 0 {
            return Err(Error::invalid(format!(
                "object {} has more than one block: its block size cannot change",
                self.n.obj
            )));
        }
        let txg = tx.txg();
        if st.is_cloned_from(0, txg) {
            return Err(Error::invalid(format!("object {}: the size of a clone cannot change", self.n.obj)));
        }
        st.blksz = blksz;
        st.invalidate_rmw(0, 1);
        self.slot(st, tx.txg()).blksz = Some(blksz);
        let (special, metadata) = (self.is_special(), st.otype.is_metadata());
        let ctx = &self.os.ctx;
        for i in st.newer_than(txg).chain([txg.slot()]) {
            let d = st.dirty[i].as_mut().expect("slots in use");
            if d.blksz.is_some() {
                d.blksz = Some(blksz);
            }
            if let Some(old) = d.blocks.resize(0, blksz as usize, &mut copies)
                && !special
            {
                ctx.dirty_add(d.txg, u64::from(blksz));
                ctx.dirty_done(d.txg, old);
                let cost = |c: crate::charge::Cost<'_>| {
                    c.block(u64::from(blksz), metadata).saturating_sub(c.block(old, metadata))
                };
                self.os.will_use(d.txg, cost);
            }
        }
        Ok(())
    }

    /// Frees `len` bytes from `off` (`u64::MAX`: to the end): whole blocks become holes, partial
    /// blocks at the edges are zeroed. Freeing up to the end lowers the highest block id.
    pub async fn free_range(&self, off: u64, len: u64, tx: &Tx) -> Result<()> {
        self.check_tx()?;
        if len == 0 {
            return Ok(());
        }
        let size = u64::from(self.block_size());
        let max = self.max_blkid();
        let data_end = (max + 1).saturating_mul(size);
        let end = off.saturating_add(len);
        if off >= data_end {
            return Ok(());
        }
        let to_end = end >= data_end;
        let first = off.div_ceil(size);
        if !off.is_multiple_of(size) {
            let start = off - off % size;
            self.zero_part(off / size, (off - start) as usize, (end.min(start + size) - start) as usize, tx).await?;
        }
        if to_end {
            if first <= max {
                self.free_blocks(first, u64::MAX, Some(first.saturating_sub(1)), tx);
            }
            return Ok(());
        }
        let last = end / size;
        if last > first {
            self.free_blocks(first, last, None, tx);
        }
        if last >= first && !end.is_multiple_of(size) {
            self.zero_part(last, 0, (end % size) as usize, tx).await?;
        }
        Ok(())
    }

    /// Zeroes part of a block, unless it is a hole.
    async fn zero_part(&self, blkid: u64, from: usize, to: usize, tx: &Tx) -> Result<()> {
        let hole = match self.overlay(blkid) {
            Overlay::Data(_) | Overlay::Cloned(_) => false,
            Overlay::Freed(_) => true,
            Overlay::None if self.n.st.borrow().beyond_committed(blkid) => true,
            Overlay::None => {
                self.retry(async || self.lookup(blkid).await).await?.is_hole()
                    && matches!(self.overlay(blkid), Overlay::None)
            }
        };
        if hole { Ok(()) } else { self.modify(blkid, (from, to), tx, |b| b[from..to].fill(0)).await }
    }

    /// Frees blocks `first..end`.
    pub(crate) fn free_blocks(&self, first: u64, end: u64, cap: Option<u64>, tx: &Tx) {
        let mut st = self.n.st.borrow_mut();
        let st = &mut *st;
        st.invalidate_rmw(first, end);
        self.os.will_kill(tx.txg(), end.min(st.maxblkid.saturating_add(1)).saturating_sub(first));
        let slot = self.slot(st, tx.txg());
        slot.freed.insert(first, end);
        if let Some(c) = cap {
            slot.cap = Some(slot.cap.map_or(c, |old| old.min(c)));
            st.maxblkid = st.maxblkid.min(c);
        }
        for i in st.newer_than(tx.txg()).chain([tx.txg().slot()]) {
            let d = st.dirty[i].as_mut().expect("slots in use");
            d.mods += 1;
            let gone = d.blocks.free(first, end);
            self.release(d.txg, gone);
        }
    }

    /// `bytes` of dirty blocks were dropped.
    pub(crate) fn release(&self, txg: base::Txg, bytes: u64) {
        if !self.is_special() && bytes > 0 {
            self.os.ctx.dirty_done(txg, bytes);
        }
    }

    /// The first block at or after `from` that has data in the newest txg.
    pub(crate) async fn next_data_block(&self, from: u64) -> Result<Option<u64>> {
        let mut from = from;
        loop {
            let dirty = {
                let st = self.n.st.borrow();
                st.newest_first().filter_map(|d| d.blocks.first_in(from..)).min()
            };
            let Some(blkid) = [dirty, self.next_committed(from).await?].into_iter().flatten().min() else {
                return Ok(None);
            };
            match self.overlay(blkid) {
                Overlay::Freed(u64::MAX) => {
                    // All committed blocks from here on are freed; newer blocks may follow.
                    let st = self.n.st.borrow();
                    let next = st.newest_first().filter_map(|d| d.blocks.first_in(blkid + 1..)).min();
                    match next {
                        Some(b) => from = b,
                        None => return Ok(None),
                    }
                }
                // A newer txg may have written blocks inside the range that an older one freed.
                Overlay::Freed(end) => {
                    let st = self.n.st.borrow();
                    let next = st.newest_first().filter_map(|d| d.blocks.first_in(blkid + 1..end)).min();
                    from = next.unwrap_or(end);
                }
                _ => return Ok(Some(blkid)),
            }
        }
    }

    /// The first offset at or after `off` that may have data; `None` if only holes follow.
    pub async fn next_data(&self, off: u64) -> Result<Option<u64>> {
        let size = u64::from(self.block_size());
        Ok(self.next_data_block(off / size).await?.map(|b| off.max(b * size)))
    }

    /// As [`Dnode::next_data`], but what will be a hole when it is on disk is one already: zeros
    /// that are written, where zeros are stored as holes.
    pub async fn seek_data(&self, off: u64) -> Result<Option<u64>> {
        let size = u64::from(self.block_size());
        let mut from = off / size;
        while let Some(blkid) = self.next_data_block(from).await? {
            match self.overlay(blkid) {
                Overlay::Data(data) if self.becomes_hole(&data).await => from = blkid + 1,
                _ => return Ok(Some(off.max(blkid * size))),
            }
        }
        Ok(None)
    }

    /// As [`Dnode::next_hole`], with holes as [`Dnode::seek_data`] sees them.
    pub async fn seek_hole(&self, off: u64) -> Result<u64> {
        self.hole_from(off, true).await
    }

    /// Whether a block that waits to be written will be stored as a hole.
    async fn becomes_hole(&self, data: &Bytes) -> bool {
        if self.os.props.get().compression == Compression::OFF {
            return false;
        }
        let (data, cost) = (data.clone(), COPY.cost(data.len() as u64));
        self.os.ctx.rt().cpu_as(CpuClass::Urgent, cost, move || codec::is_zero(&data)).await
    }

    /// The first offset at or after `off` where a hole begins, at most the end of the last block.
    pub async fn next_hole(&self, off: u64) -> Result<u64> {
        self.hole_from(off, false).await
    }

    async fn hole_from(&self, off: u64, sees_zeros: bool) -> Result<u64> {
        let size = u64::from(self.block_size());
        let mut blkid = off / size;
        let max = self.max_blkid();
        while blkid <= max {
            let hole = match self.overlay(blkid) {
                Overlay::Data(data) => sees_zeros && self.becomes_hole(&data).await,
                Overlay::Cloned(_) => false,
                Overlay::Freed(_) => true,
                Overlay::None => self.retry(async || self.lookup(blkid).await).await?.is_hole(),
            };
            if hole {
                break;
            }
            blkid += 1;
            self.os.ctx.rt().spend(rt::cost::DMU_POINTER).await;
        }
        Ok(off.max(blkid * size))
    }
}

/// Removes a read for a partial write from the list, even if its task is dropped while it waits.
struct RmwGuard<'a> {
    dn: &'a Dnode,
    id: u64,
}

impl Drop for RmwGuard<'_> {
    fn drop(&mut self) {
        self.dn.n.st.borrow_mut().rmw_end(self.id);
    }
}

/// Ends the read; keeps its result if that is still valid.
fn finish_rmw(guard: RmwGuard<'_>, base: &mut Option<Option<Buf>>, data: Result<Option<Buf>>) -> Result<()> {
    let fresh = guard.dn.n.st.borrow_mut().rmw_end(guard.id);
    drop(guard);
    let data = data?;
    if fresh {
        *base = Some(data);
    }
    Ok(())
}
