//! The walk of a snapshot for sending: everything born after a txg, in the order of objects and
//! offsets (format page 25 section 1).
//!
//! Unlike [`crate::walk`], which scans and frees blocks, it follows dnodes, whose fields go into
//! the stream, and sees holes. Blocks of data are queued with their records and read several at
//! once; the queue is sent in order when it is long enough.
//!
//! Redaction lists are laid over it (`overlay`): what the walk meets goes through them, and so does
//! the place between two objects.

use std::collections::VecDeque;

use base::{Error, ObjectId, Result, Txg};
use bdev::Bytes;
use dmu::{DmuCtx, Keep};
use ondisk::blkptr::{BLKPTR_SIZE, Blkptr};
use ondisk::dnode::{DNODE_SIZE, DnodePhys};
use ondisk::object_type::ObjectType;
use ondisk::objset::ObjsetPhys;
use ondisk::stream::Record;
use ondisk::stream::record::{ObjectRange, TO_THE_END};
use rt::LocalBoxFuture;
use rt::cost::{DMU_POINTER, SCAN_VISIT};
use rt::join::Pipeline;
use zio::Prio;

use super::Out;
use super::compose::{Composer, Form, OLD_BLOCK_MAX, Payload};
use super::overlay::{Overlay, Part, Turn};
use crate::pool::DslPool;
use crate::redact::ListReader;
use crate::walk::DNODES;

/// The class of reads of data. OpenZFS sends with those of prefetch, up to three MiB of which are
/// at a device before each read that a program waits for; of scrubs there is one operation at a
/// time while a program reads (`zfs_vdev_nia_delay`).
const READ_AS: Prio = Prio::Scrub;
/// The class of reads of blocks that are walked through: that of prefetch, as in OpenZFS. The walk
/// waits for them, so they go before its data, and no program does ([`Prio::has_waiter`]).
const WALK_AS: Prio = Prio::AsyncRead;
/// Levels of a tree of blocks that are followed (format page 03).
const LEVELS_MAX: u8 = 12;
/// Records that wait in the queue.
const QUEUE_MAX: usize = 128;
/// Bytes that are read or wait in the queue.
const BYTES_MAX: u64 = 16 << 20;

/// A record whose payload may still be on disk.
enum Queued {
    /// It is complete.
    Ready(Record, Bytes),
    /// Its payload is read: that many bytes in the pool's memory.
    Block(Record, u64),
    /// Its payload is a part of a block that is read: pieces of one block follow each other.
    Pieces(Vec<Record>, u64),
}

/// The object whose blocks are walked.
#[derive(Clone, Copy)]
struct Owner<'a> {
    object: ObjectId,
    dn: &'a DnodePhys,
}

/// Where the receive of an earlier stream of the same snapshot stopped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Resume {
    /// The object, which is sent again.
    pub object: ObjectId,
    /// The first of its bytes that are sent.
    pub offset: u64,
}

impl Resume {
    /// Whether all blocks below a block of `owner` were received: it covers those of level 0 up to
    /// `end`.
    fn is_past(self, owner: Owner<'_>, end: u64) -> bool {
        let size = u64::from(owner.dn.datablksz()).max(1);
        match owner.object {
            ObjectId::META => end.saturating_mul(size / DNODE_SIZE as u64) <= self.object.0,
            object => object == self.object && end <= self.offset / size,
        }
    }
}

/// What the walk met.
#[derive(Clone, Copy)]
enum Met {
    Hole,
    /// Blocks that were left out when the snapshot was received.
    Redacted,
    /// A block of data.
    Data(Blkptr),
}

/// What decides which blocks are sent.
pub(super) struct Range {
    /// Blocks that are newer.
    pub from: Txg,
    /// From here on.
    pub resume: Option<Resume>,
    /// The list of blocks that are left out.
    pub redact: Option<ObjectId>,
    /// The list of blocks that are sent again, since the receiver lacks them.
    pub again: Option<ObjectId>,
}

/// The blocks of level 0 that a block covers, without the last.
fn covered(dn: &DnodePhys, level: u8, blkid: u64) -> (u64, u64) {
    let bits = u32::from(level) * dn.epb_shift();
    let span = 1u64.checked_shl(bits).filter(|_| bits < 64).unwrap_or(u64::MAX);
    let start = blkid.saturating_mul(span);
    (start, start.saturating_add(span))
}

/// Offset and length of blocks.
fn bytes_of(start: u64, end: u64, size: u64) -> (u64, u64) {
    let offset = start.saturating_mul(size);
    (offset, end.saturating_mul(size) - offset)
}

fn missing(object: ObjectId) -> Error {
    Error::not_found(format!("object {object}, at which the receive stopped, does not exist"))
}

struct Walk<'a, 'o> {
    ctx: &'a DmuCtx,
    meta: &'a DnodePhys,
    from: Txg,
    /// None: there are no lists.
    overlay: Option<Overlay>,
    /// The block of dnodes that was looked into last.
    dnodes_seen: Option<(u64, Bytes)>,
    resume: Option<Resume>,
    form: Form,
    composer: Composer,
    queue: VecDeque<Queued>,
    /// The blocks of the queue, in its order.
    reads: Pipeline<LocalBoxFuture<'a, Result<Bytes>>>,
    queued_bytes: u64,
    out: &'a mut Out<'o>,
}

/// Sends the blocks of an object set with that root block that `range` chooses.
pub(super) async fn send_blocks(
    pool: &DslPool,
    ctx: &DmuCtx,
    (root, os): (Blkptr, &ObjsetPhys),
    range: Range,
    form: Form,
    out: &mut Out<'_>,
) -> Result<()> {
    let Range { from, resume, redact, again } = range;
    let meta = &os.meta_dnode;
    let objects = DNODES.saturating_mul(meta.maxblkid.saturating_add(1));
    let composer = Composer::new(form.to_guid, objects);
    let (overlay, dnodes_seen) = (None, None);
    let (queue, reads, queued_bytes) = (VecDeque::new(), Pipeline::new(QUEUE_MAX), 0);
    let mut walk =
        Walk { ctx, meta, from, overlay, dnodes_seen, resume, form, composer, queue, reads, queued_bytes, out };
    if redact.is_some() || again.is_some() {
        let from = match resume {
            Some(at) => (at.object.0, at.offset / walk.block_size_of(at.object).await?),
            None => (0, 0),
        };
        let open = async |list: Option<ObjectId>| -> Result<Option<ListReader>> {
            match list {
                Some(list) => Ok(Some(pool.read_redactions(list, from).await?)),
                None => Ok(None),
            }
        };
        walk.overlay = Some(Overlay::new(open(redact).await?, open(again).await?));
    }
    if walk.is_new(&root) {
        walk.object(Owner { object: ObjectId::META, dn: meta }).await?;
    }
    walk.lists_before(u64::MAX).await?;
    walk.push_pending();
    while !walk.queue.is_empty() {
        walk.send_oldest().await?;
    }
    Ok(())
}

impl Walk<'_, '_> {
    /// Whether a block, or a hole, belongs into the stream. Holes without a birth may have been
    /// punched at any time.
    fn is_new(&self, bp: &Blkptr) -> bool {
        bp.logical_birth().0 == 0 || bp.logical_birth() > self.from
    }

    /// Whether an interrupted receive has all that a block covers.
    fn is_past(&self, owner: Owner<'_>, level: u8, blkid: u64) -> bool {
        let bits = u32::from(level) * owner.dn.epb_shift();
        let span = 1u64.checked_shl(bits).filter(|_| bits < 64).unwrap_or(u64::MAX);
        let end = blkid.saturating_add(1).saturating_mul(span);
        self.resume.is_some_and(|at| at.is_past(owner, end))
    }

    /// All blocks of an object.
    async fn object(&mut self, owner: Owner<'_>) -> Result<()> {
        let level = owner.dn.nlevels.saturating_sub(1);
        for (blkid, bp) in owner.dn.bps().iter().enumerate() {
            self.block(owner, *bp, level, blkid as u64).await?;
        }
        if owner.object != ObjectId::META {
            self.lists_before(owner.object.0.saturating_add(1)).await?;
        }
        if let Some(spill) = owner.dn.spill.filter(|s| self.is_new(s) && !s.is_hole()) {
            self.spill(owner.object, spill, false).await?;
        }
        Ok(())
    }

    /// What lists have before an object.
    async fn lists_before(&mut self, object: u64) -> Result<()> {
        let Some(mut overlay) = self.overlay.take() else { return Ok(()) };
        while let Some(turn) = self.reads.beside(overlay.before(object)).await? {
            self.listed(turn).await?;
        }
        self.overlay = Some(overlay);
        Ok(())
    }

    /// Blocks that the walk met, with what lists have up to their end.
    async fn met(&mut self, owner: Owner<'_>, met: Met, start: u64, end: u64) -> Result<()> {
        let Some(mut overlay) = self.overlay.take() else { return self.send_met(owner, met, start, end).await };
        overlay.walked(Part { object: owner.object.0, start, end });
        while let Some(turn) = self.reads.beside(overlay.turn()).await? {
            match turn {
                Turn::Walked(part) => self.send_met(owner, met, part.start, part.end).await?,
                other => self.listed(other).await?,
            }
        }
        self.overlay = Some(overlay);
        Ok(())
    }

    /// Sends what only lists have.
    async fn listed(&mut self, turn: Turn) -> Result<()> {
        match turn {
            Turn::Redact(part, size) => {
                let (offset, length) = bytes_of(part.start, part.end, u64::from(size));
                let records = self.composer.redact(ObjectId(part.object), offset, length);
                self.ready(records).await
            }
            Turn::Again(part) => self.again(part).await,
            Turn::Walked(_) | Turn::Pass(_) => Ok(()),
        }
    }

    /// Sends blocks as they are, whenever they were born. Those of an object that does not exist
    /// any more are gone, which other records say.
    async fn again(&mut self, part: Part) -> Result<()> {
        let object = ObjectId(part.object);
        let Some(dn) = self.dnode_of(object).await? else { return Ok(()) };
        let window = (part.start, part.end.min(dn.maxblkid.saturating_add(1)));
        if window.0 >= window.1 {
            return Ok(());
        }
        let level = dn.nlevels.saturating_sub(1);
        for (blkid, bp) in dn.bps().iter().enumerate() {
            self.block_again(Owner { object, dn: &dn }, *bp, level, blkid as u64, window).await?;
        }
        Ok(())
    }

    fn block_again<'b>(
        &'b mut self,
        owner: Owner<'b>,
        bp: Blkptr,
        level: u8,
        blkid: u64,
        window: (u64, u64),
    ) -> LocalBoxFuture<'b, Result<()>> {
        Box::pin(async move {
            let (start, end) = covered(owner.dn, level, blkid);
            let (start, end) = (start.max(window.0), end.min(window.1));
            if start >= end {
                return Ok(());
            }
            self.ctx.rt().spend(SCAN_VISIT).await;
            if bp.is_hole() {
                return self.send_met(owner, Met::Hole, start, end).await;
            }
            if bp.is_redacted() {
                return self.send_met(owner, Met::Redacted, start, end).await;
            }
            if bp.level() != level || level > LEVELS_MAX {
                return Err(Error::corrupt(format!("block {bp} of object {} is not of level {level}", owner.object)));
            }
            if level == 0 {
                return self.send_met(owner, Met::Data(bp), start, end).await;
            }
            let block = self.metadata(&bp).await?;
            let per = (block.len() / BLKPTR_SIZE) as u64;
            self.ctx.rt().spend(base::Nanos(DMU_POINTER.0 * per)).await;
            let below: Vec<Blkptr> = Blkptr::iter_block(&block).collect();
            drop(block);
            for (i, child) in (0..).zip(below) {
                let Some(id) = blkid.checked_mul(per).and_then(|first| first.checked_add(i)) else { break };
                self.block_again(owner, child, level - 1, id, window).await?;
            }
            Ok(())
        })
    }

    /// The dnode of an object, if it exists.
    async fn dnode_of(&mut self, object: ObjectId) -> Result<Option<DnodePhys>> {
        let slots = (u64::from(self.meta.datablksz()) / DNODE_SIZE as u64).max(1);
        let (blkid, slot) = (object.0 / slots, (object.0 % slots) as usize);
        if blkid > self.meta.maxblkid {
            return Ok(None);
        }
        let block = match &self.dnodes_seen {
            Some((seen, block)) if *seen == blkid => block.clone(),
            _ => {
                let Some(block) = self.meta_block(blkid).await? else { return Ok(None) };
                self.dnodes_seen = Some((blkid, block.clone()));
                block
            }
        };
        match slot < block.len() / DNODE_SIZE {
            true => DnodePhys::parse_slot(&block, slot),
            false => Ok(None),
        }
    }

    /// A block of dnodes; `None` for a hole.
    async fn meta_block(&mut self, blkid: u64) -> Result<Option<Bytes>> {
        let meta = self.meta;
        let mut level = meta.nlevels.saturating_sub(1);
        let mut found = meta.bps().get(meta.blkid_at_level(blkid, level) as usize).copied();
        loop {
            let Some(bp) = found.filter(|bp| !bp.is_hole()) else { return Ok(None) };
            if bp.level() != level || level > LEVELS_MAX {
                return Err(Error::corrupt(format!("block {bp} of the meta-dnode is not of level {level}")));
            }
            let block = self.metadata(&bp).await?;
            if level == 0 {
                return Ok(Some(block));
            }
            level -= 1;
            let per = (block.len() / BLKPTR_SIZE).max(1) as u64;
            let at = (meta.blkid_at_level(blkid, level) % per) as usize;
            found = Blkptr::iter_block(&block).nth(at);
        }
    }

    /// Bytes of a block of an object; an error if it does not exist.
    async fn block_size_of(&mut self, object: ObjectId) -> Result<u64> {
        let dn = self.dnode_of(object).await?;
        let dn = dn.ok_or_else(|| missing(object))?;
        Ok(u64::from(dn.datablksz()).max(1))
    }

    /// A block and those below it.
    fn block<'b>(&'b mut self, owner: Owner<'b>, bp: Blkptr, level: u8, blkid: u64) -> LocalBoxFuture<'b, Result<()>> {
        Box::pin(async move {
            if !self.is_new(&bp) || self.is_past(owner, level, blkid) {
                return Ok(());
            }
            self.ctx.rt().spend(SCAN_VISIT).await;
            if bp.is_hole() || bp.is_redacted() {
                return self.gap(owner, &bp, level, blkid).await;
            }
            if bp.level() != level || level > LEVELS_MAX {
                return Err(Error::corrupt(format!("block {bp} of object {} is not of level {level}", owner.object)));
            }
            if level == 0 {
                return match owner.object {
                    ObjectId::META => self.dnodes(&bp, blkid).await,
                    _ => self.data(owner, bp, blkid).await,
                };
            }
            let block = self.metadata(&bp).await?;
            let per = (block.len() / BLKPTR_SIZE) as u64;
            self.ctx.rt().spend(base::Nanos(DMU_POINTER.0 * per)).await;
            let below: Vec<Blkptr> = Blkptr::iter_block(&block).collect();
            drop(block);
            for (i, child) in (0..).zip(below) {
                let Some(id) = blkid.checked_mul(per).and_then(|first| first.checked_add(i)) else { break };
                self.block(owner, child, level - 1, id).await?;
            }
            Ok(())
        })
    }

    /// A hole, or a part that was left out, of any level.
    async fn gap(&mut self, owner: Owner<'_>, bp: &Blkptr, level: u8, blkid: u64) -> Result<()> {
        let Owner { object, dn } = owner;
        let bits = u32::from(level) * dn.epb_shift();
        let span = 1u64.checked_shl(bits).filter(|_| bits < 64);
        // A place that no offset can name needs no record.
        let Some(start) = span.and_then(|s| s.checked_mul(blkid)) else { return Ok(()) };
        if start > dn.maxblkid && !dn.otype.is_metadata() {
            return Ok(());
        }
        let (_, end) = covered(dn, level, blkid);
        if object == ObjectId::META {
            let slots = u64::from(dn.datablksz()) / DNODE_SIZE as u64;
            let first = start.saturating_mul(slots);
            self.lists_before(first).await?;
            let records = self.composer.free_objects(first, end.saturating_mul(slots) - first);
            return self.ready(records).await;
        }
        if start.checked_mul(u64::from(dn.datablksz())).is_none() {
            return Ok(());
        }
        self.met(owner, if bp.is_redacted() { Met::Redacted } else { Met::Hole }, start, end).await
    }

    /// Sends blocks that the walk met.
    async fn send_met(&mut self, owner: Owner<'_>, met: Met, start: u64, end: u64) -> Result<()> {
        let (offset, length) = bytes_of(start, end, u64::from(owner.dn.datablksz()));
        let records = match met {
            Met::Data(bp) => return self.send_data(owner, bp, start).await,
            Met::Hole => self.composer.free(owner.object, offset, length),
            Met::Redacted => self.composer.redact(owner.object, offset, length),
        };
        self.ready(records).await
    }

    /// A block of dnodes: each object with its blocks, and what is free between them.
    async fn dnodes(&mut self, bp: &Blkptr, blkid: u64) -> Result<()> {
        let block = self.metadata(bp).await?;
        let slots = block.len() / DNODE_SIZE;
        let first = blkid.checked_mul(slots as u64).ok_or_else(|| Error::corrupt("object numbers overflow"))?;
        if self.form.is_raw() {
            let range = ObjectRange {
                first: first.into(),
                slots: slots as u64,
                to_guid: self.form.to_guid,
                crypt: super::compose::crypt_of(bp),
                flags: if bp.needs_swap() { ondisk::stream::record_flags::RAW_BYTESWAP } else { 0 },
            };
            self.push(Record::ObjectRange(range), Bytes::default()).await?;
        }
        let mut slot = 0;
        while slot < slots {
            let object = ObjectId(first + slot as u64);
            // The number of the meta-dnode is not that of an object.
            if object == ObjectId::META {
                slot += 1;
                continue;
            }
            let dn = DnodePhys::parse_slot(&block, slot)?;
            slot += dn.as_ref().map_or(1, DnodePhys::num_slots);
            if let Some(at) = self.resume {
                if object < at.object {
                    continue;
                }
                if object == at.object && dn.is_none() {
                    return Err(missing(object));
                }
            }
            self.lists_before(object.0).await?;
            let Some(dn) = dn else {
                let records = self.composer.free_objects(object.0, 1);
                self.ready(records).await?;
                continue;
            };
            let (record, bonus) = self.form.object(object, &dn, bp.needs_swap());
            self.push(Record::Object(record), bonus.into()).await?;
            let end = dn.maxblkid.saturating_add(1).saturating_mul(u64::from(dn.datablksz()));
            let records = self.composer.free(object, end, TO_THE_END);
            self.ready(records).await?;
            if let Some(spill) = dn.spill.filter(|s| !self.is_new(s)) {
                self.spill(object, spill, true).await?;
            }
            self.object(Owner { object, dn: &dn }).await?;
        }
        Ok(())
    }

    async fn spill(&mut self, object: ObjectId, bp: Blkptr, unmodified: bool) -> Result<()> {
        let payload = if self.form.is_raw() { Payload::Stored } else { Payload::Content };
        let record = Record::Spill(self.form.spill(object, &bp, unmodified));
        self.push_read(Queued::Block(record, bp.lsize()), bp, payload).await
    }

    /// A block of data.
    async fn data(&mut self, owner: Owner<'_>, bp: Blkptr, blkid: u64) -> Result<()> {
        let Owner { object, dn } = owner;
        if blkid > dn.maxblkid && !dn.otype.is_metadata() {
            return Ok(());
        }
        if bp.otype() == ObjectType::SA && dn.otype != ObjectType::SA {
            return Err(Error::corrupt(format!("block {bp} of object {object} is a spill block among data")));
        }
        if blkid.checked_mul(u64::from(dn.datablksz())).is_none() {
            return Ok(());
        }
        self.met(owner, Met::Data(bp), blkid, blkid.saturating_add(1)).await
    }

    async fn send_data(&mut self, owner: Owner<'_>, bp: Blkptr, blkid: u64) -> Result<()> {
        let Owner { object, dn } = owner;
        let size = u64::from(dn.datablksz());
        let Some(offset) = blkid.checked_mul(size) else { return Ok(()) };
        let what = (object, dn.otype);
        let payload = self.form.payload(&bp, size);
        let queued = match payload {
            Payload::Embedded => {
                let (bytes, len) = bp.payload();
                let mut content = bytes[..len].to_vec();
                content.resize(len.next_multiple_of(8), 0);
                let record = Record::WriteEmbedded(self.form.embedded(object, offset, size, &bp));
                return self.push(record, content.into()).await;
            }
            Payload::Pieces => {
                let starts = (0..bp.lsize()).step_by(OLD_BLOCK_MAX as usize);
                let pieces = starts.map(|at| {
                    let len = OLD_BLOCK_MAX.min(bp.lsize() - at);
                    Record::Write(self.form.piece(what, offset + at, len))
                });
                Queued::Pieces(pieces.collect(), bp.lsize())
            }
            Payload::Content | Payload::Stored => {
                if bp.lsize() != size {
                    return Err(Error::corrupt(format!("block {bp} of object {object} has not {size} bytes")));
                }
                Queued::Block(Record::Write(self.form.write(what, offset, size, &bp)), bp.lsize())
            }
        };
        self.push_read(queued, bp, payload).await
    }

    /// Queues records without payload.
    async fn ready(&mut self, records: Vec<Record>) -> Result<()> {
        self.queue.extend(records.into_iter().map(|r| Queued::Ready(r, Bytes::default())));
        self.make_room(0).await
    }

    fn push_pending(&mut self) {
        let pending = self.composer.push_out();
        self.queue.extend(pending.map(|r| Queued::Ready(r, Bytes::default())));
    }

    /// Queues a record that is complete after the one that waits.
    async fn push(&mut self, record: Record, payload: Bytes) -> Result<()> {
        self.push_pending();
        self.queue.push_back(Queued::Ready(record, payload));
        self.make_room(0).await
    }

    /// Queues a record, or the pieces of one, after the one that waits, and begins to read its
    /// block.
    async fn push_read(&mut self, queued: Queued, bp: Blkptr, payload: Payload) -> Result<()> {
        self.push_pending();
        let bytes = bp.lsize();
        self.make_room(bytes).await?;
        if !self.out.is_dry() {
            self.reads.push(Box::pin(read(self.ctx, self.form.is_raw(), bp, payload))).await;
            self.queued_bytes += bytes;
        }
        self.queue.push_back(queued);
        Ok(())
    }

    /// Sends the oldest of the queue until there is room for a record with that many bytes.
    async fn make_room(&mut self, bytes: u64) -> Result<()> {
        let is_full = |w: &Self| w.queue.len() >= QUEUE_MAX || w.queued_bytes + bytes > BYTES_MAX;
        while !self.queue.is_empty() && is_full(self) {
            self.send_oldest().await?;
        }
        Ok(())
    }

    /// Sends the oldest of the queue, and goes on reading meanwhile.
    async fn send_oldest(&mut self) -> Result<()> {
        let Some(queued) = self.queue.pop_front() else { return Ok(()) };
        if self.out.is_dry() {
            match &queued {
                Queued::Ready(record, _) | Queued::Block(record, _) => self.out.count(record),
                Queued::Pieces(pieces, _) => pieces.iter().for_each(|piece| self.out.count(piece)),
            }
            return Ok(());
        }
        match queued {
            Queued::Ready(record, payload) => self.put(record, payload).await,
            Queued::Block(record, bytes) => {
                let content = self.content(bytes).await?;
                self.put(record, content).await
            }
            Queued::Pieces(pieces, bytes) => {
                let (content, mut at) = (self.content(bytes).await?, 0);
                for piece in pieces {
                    let len = piece.payload_len() as usize;
                    self.put(piece, content.slice(at..at + len)).await?;
                    at += len;
                }
                Ok(())
            }
        }
    }

    /// The oldest block that is read.
    async fn content(&mut self, bytes: u64) -> Result<Bytes> {
        self.queued_bytes -= bytes;
        self.reads.next().await.expect("a block is read for each of the queue")
    }

    async fn put(&mut self, record: Record, payload: Bytes) -> Result<()> {
        self.reads.beside(self.out.put(record, payload)).await
    }

    /// A block that is walked through. The reads of the queue go on meanwhile: one of them may hold
    /// what this one waits for.
    async fn metadata(&mut self, bp: &Blkptr) -> Result<Bytes> {
        let (ctx, raw) = (self.ctx, self.form.is_raw());
        self.reads.beside(metadata(ctx, raw, bp)).await
    }
}

/// A block that is walked through.
async fn metadata(ctx: &DmuCtx, raw: bool, bp: &Blkptr) -> Result<Bytes> {
    if !raw {
        return ctx.read_as(bp, WALK_AS, Keep::Cached).await;
    }
    if !bp.encrypted() {
        return Err(Error::corrupt(format!("block {bp} of an encrypted dataset is not encrypted")));
    }
    if bp.needs_swap() {
        return Err(Error::unsupported("raw streams of big-endian datasets are not made"));
    }
    // Bonus areas stay encrypted.
    ctx.zio().read_sealed(bp, WALK_AS).await
}

/// A block as it is sent.
async fn read(ctx: &DmuCtx, raw: bool, bp: Blkptr, payload: Payload) -> Result<Bytes> {
    let zio = ctx.zio();
    if payload != Payload::Stored {
        return zio.read_with(&bp, ctx.key().map(|k| &**k), READ_AS).await;
    }
    // Read as a block that is not compressed, its checksum is verified and nothing unpacked.
    let mut stored = bp;
    stored.set_compress(codec::compress::CompressAlgo::Off as u8);
    stored.set_lsize(bp.psize());
    match raw {
        true => zio.read_sealed(&stored, READ_AS).await,
        // What is encrypted is decrypted, and stays compressed.
        false => zio.read_with(&stored, ctx.key().map(|k| &**k), READ_AS).await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_received_is_not_sent_again() {
        let dn = |blksz: u32| DnodePhys::new(ObjectType::PLAIN_FILE, blksz, 17, ObjectType::NONE, 0, 1);
        let (meta, file) = (dn(16 << 10), dn(128 << 10));
        let at = Resume { object: ObjectId(70), offset: 256 << 10 };
        for (object, dn, end, past) in [
            // 32 objects a block: 0 to 63 are done, 70 lies in the third.
            (ObjectId::META, &meta, 2, true),
            (ObjectId::META, &meta, 3, false),
            (ObjectId::META, &meta, u64::MAX, false),
            (ObjectId(70), &file, 1, true),
            (ObjectId(70), &file, 2, true),
            (ObjectId(70), &file, 3, false),
            (ObjectId(71), &file, 1, false),
        ] {
            assert_eq!(at.is_past(Owner { object, dn }, end), past, "{object} {end}");
        }
    }
}
