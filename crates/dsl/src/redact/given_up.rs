//! What a redaction snapshot has given up of an older snapshot: the blocks of that one to which it
//! does not refer any more, whether they were overwritten, punched or cut off, or their object is
//! gone.
//!
//! The walk meets everything in the redaction snapshot that was born after the older one, in the
//! order of objects and blocks, and gives a span for each. It may give spans of blocks that the
//! older snapshot does not have; who takes them leaves these out.
//!
//! An object that a directory or other metadata has the number of now, and an object on the list of
//! unlinked files, is gone. Blocks after the last of an object are given up too: its number may
//! stand for a shorter file than before.
//!
//! Only the indirect blocks on the way, and a few blocks next to them, are in memory.

use std::collections::{BTreeSet, VecDeque};
use std::rc::Rc;

use base::{Error, Nanos, ObjectId, Result, Txg};
use bdev::Bytes;
use dmu::{DmuCtx, zap};
use ondisk::blkptr::Blkptr;
use ondisk::dnode::{DNODE_SIZE, DnodePhys};
use ondisk::objset::{ObjsetPhys, ObjsetType};
use ondisk::zpl::master_key;
use rt::cost::{DMU_POINTER, SCAN_VISIT};
use rt::join::join_all;

use super::merge::{Place, Span};
use crate::dataset::{Dataset, Use};
use crate::send::MASTER_NODE;

/// Blocks of pointers or dnodes that are read at once.
const READS_MAX: usize = 4;
/// Levels of a tree of blocks that are followed (format page 03).
const LEVELS_MAX: u8 = 12;

/// A block that is newer than the older snapshot.
enum Child {
    Hole(Span),
    /// Of data.
    Data(Span),
    /// Of pointers or dnodes.
    Block(Blkptr),
    /// The same, read.
    Read(Bytes),
}

/// A part of the tree on the way.
enum Frame {
    /// Pointers to blocks of `level`.
    Pointers { object: u64, level: u8, rest: VecDeque<(u64, Child)> },
    /// A block of dnodes, with the next one to look at.
    Dnodes { first: u64, block: Bytes, slot: usize },
    /// What comes after the blocks of an object.
    After(Span),
}

/// The shape of an object's tree.
#[derive(Clone, Copy)]
struct Shape {
    object: u64,
    epb_shift: u32,
    max_blkid: u64,
}

/// The spans of a redaction snapshot, one after the other.
pub(super) struct GivenUp {
    ctx: DmuCtx,
    since: Txg,
    /// What lies before is not given.
    from: Place,
    meta: Shape,
    /// Dnodes of a block.
    slots: u64,
    unlinked: BTreeSet<u64>,
    path: Vec<Frame>,
    /// The object on the path.
    shape: Option<Shape>,
    _use: Use,
}

impl GivenUp {
    /// For the redaction snapshot `of` and a snapshot of the txg `since`, from a place on. Errors:
    /// those of reads; `Denied` if its key is not loaded.
    pub(super) async fn open(of: &Rc<Dataset>, since: Txg, from: Place) -> Result<GivenUp> {
        let ds_use = Use::of(of);
        of.load_features().await?;
        let ctx = of.keyed_ctx()?;
        let root = of.phys().bp;
        let os = ObjsetPhys::parse(&ctx.read(&root).await.map_err(|e| e.at(format!("dataset '{}'", of.name())))?)?;
        let meta = &os.meta_dnode;
        let mut out = GivenUp {
            since,
            from,
            meta: Shape { object: ObjectId::META.0, epb_shift: meta.epb_shift(), max_blkid: u64::MAX },
            slots: (u64::from(meta.datablksz()) / DNODE_SIZE as u64).max(1),
            unlinked: unlinked(of, os.os_type).await?,
            path: Vec::new(),
            shape: None,
            ctx,
            _use: ds_use,
        };
        if out.is_new(&root) && meta.nlevels <= LEVELS_MAX {
            out.push_pointers(ObjectId::META.0, meta.nlevels.saturating_sub(1), 0, meta.bps().iter().copied());
        }
        Ok(out)
    }

    /// Whether a block, or a hole, may be younger than the older snapshot. Holes without a birth
    /// may have been punched at any time.
    fn is_new(&self, bp: &Blkptr) -> bool {
        bp.logical_birth().0 == 0 || bp.logical_birth() > self.since
    }

    /// The next span: they ascend and do not overlap.
    pub(super) async fn next(&mut self) -> Result<Option<Span>> {
        loop {
            let Some(frame) = self.path.last_mut() else { return Ok(None) };
            match frame {
                Frame::After(span) => {
                    let span = *span;
                    self.path.pop();
                    if let Some(span) = self.wanted(span) {
                        return Ok(Some(span));
                    }
                }
                Frame::Dnodes { .. } => {
                    if let Some(span) = self.next_dnode().await? {
                        return Ok(Some(span));
                    }
                }
                Frame::Pointers { .. } => {
                    if let Some(span) = self.next_pointer().await? {
                        return Ok(Some(span));
                    }
                }
            }
        }
    }

    /// The part of a span that does not lie before the beginning.
    fn wanted(&self, span: Span) -> Option<Span> {
        (span.last >= self.from).then(|| Span { first: span.first.max(self.from), ..span })
    }

    /// Looks at the next dnode of a block.
    async fn next_dnode(&mut self) -> Result<Option<Span>> {
        self.ctx.rt().spend(SCAN_VISIT).await;
        let Some(Frame::Dnodes { first, block, slot }) = self.path.last_mut() else { return Ok(None) };
        if *slot >= block.len() / DNODE_SIZE {
            self.path.pop();
            return Ok(None);
        }
        let object = first.saturating_add(*slot as u64);
        let dn = DnodePhys::parse_slot(block, *slot)?;
        let slots = dn.as_ref().map_or(1, DnodePhys::num_slots) as u64;
        *slot += slots as usize;
        let last = object.saturating_add(slots - 1);
        // The number of the meta-dnode is not that of an object.
        if object == ObjectId::META.0 || (last, u64::MAX) < self.from {
            return Ok(None);
        }
        let Some(dn) = dn.filter(|dn| !dn.otype.is_metadata() && !self.unlinked.contains(&object)) else {
            return Ok(self.wanted(Span::of_objects(object, last)));
        };
        if dn.nlevels > LEVELS_MAX {
            return Err(Error::corrupt(format!("object {object} has {} levels of blocks", dn.nlevels)));
        }
        // Slots of a large dnode may have been those of other objects.
        let after = match dn.maxblkid.checked_add(1) {
            Some(next) => Some(Span { first: (object, next), last: (last, u64::MAX) }),
            None if last > object => Some(Span::of_objects(object + 1, last)),
            None => None,
        };
        self.path.extend(after.filter(|_| !planted!(TailSent)).map(Frame::After));
        self.shape = Some(Shape { object, epb_shift: dn.epb_shift(), max_blkid: dn.maxblkid });
        self.push_pointers(object, dn.nlevels.saturating_sub(1), 0, dn.bps().iter().copied());
        Ok(None)
    }

    fn shape(&self, object: u64) -> Shape {
        self.shape.filter(|shape| shape.object == object).unwrap_or(self.meta)
    }

    /// The blocks that a pointer of `level` covers, up to the last of its object.
    fn covered(&self, object: u64, level: u8, blkid: u64) -> Span {
        let shape = self.shape(object);
        let bits = u32::from(level) * shape.epb_shift;
        let span = 1u64.checked_shl(bits).filter(|_| bits < 64).unwrap_or(u64::MAX);
        let first = blkid.saturating_mul(span);
        let last = blkid.saturating_add(1).saturating_mul(span).saturating_sub(1);
        match object == ObjectId::META.0 {
            // A hole covers the numbers of its dnodes.
            true => {
                let last = last.saturating_add(1).saturating_mul(self.slots).saturating_sub(1);
                Span::of_objects(first.saturating_mul(self.slots).max(1), last)
            }
            false => Span::of_blocks(object, first, last.min(shape.max_blkid)),
        }
    }

    /// Goes to the new ones of these pointers, the first of which is `blkid`.
    fn push_pointers(&mut self, object: u64, level: u8, blkid: u64, bps: impl Iterator<Item = Blkptr>) {
        let mut rest = VecDeque::new();
        for (i, bp) in (0..).zip(bps) {
            let Some(id) = blkid.checked_add(i) else { break };
            if !self.is_new(&bp) {
                continue;
            }
            let span = self.covered(object, level, id);
            if span.last < self.from.max(span.first) {
                continue;
            }
            let child = match (bp.is_hole(), level) {
                (true, _) => Child::Hole(span),
                (false, 0) if object != ObjectId::META.0 => Child::Data(span),
                (false, _) => Child::Block(bp),
            };
            rest.push_back((id, child));
        }
        self.path.push(Frame::Pointers { object, level, rest });
    }

    /// Looks at the next pointer of a block.
    async fn next_pointer(&mut self) -> Result<Option<Span>> {
        self.read_ahead().await?;
        let Some(Frame::Pointers { object, level, rest }) = self.path.last_mut() else { return Ok(None) };
        let (object, level) = (*object, *level);
        match rest.pop_front() {
            None => {
                self.path.pop();
                Ok(None)
            }
            Some((_, Child::Hole(span) | Child::Data(span))) => {
                self.ctx.rt().spend(DMU_POINTER).await;
                Ok(self.wanted(span))
            }
            Some((blkid, Child::Read(block))) if level == 0 => {
                let first = blkid.checked_mul(self.slots);
                let first = first.ok_or_else(|| Error::corrupt("the number of an object is too large"))?;
                self.path.push(Frame::Dnodes { first, block, slot: 0 });
                Ok(None)
            }
            Some((blkid, Child::Read(block))) => {
                let bps: Vec<Blkptr> = Blkptr::iter_block(&block).collect();
                self.ctx.rt().spend(Nanos(DMU_POINTER.0 * bps.len() as u64)).await;
                let shift = self.shape(object).epb_shift;
                let first = blkid.checked_shl(shift).filter(|_| shift < 64).unwrap_or(u64::MAX);
                self.push_pointers(object, level - 1, first, bps.into_iter());
                Ok(None)
            }
            Some((_, Child::Block(_))) => unreachable!("it was read"),
        }
    }

    /// Reads the next blocks of the last frame if its first one is not there.
    async fn read_ahead(&mut self) -> Result<()> {
        let Some(Frame::Pointers { object, level, rest }) = self.path.last_mut() else { return Ok(()) };
        if !matches!(rest.front(), Some((_, Child::Block(_)))) {
            return Ok(());
        }
        self.ctx.rt().spend(SCAN_VISIT).await;
        let wanted = rest.iter_mut().take(READS_MAX * 4).map(|(_, child)| child);
        let wanted: Vec<(&mut Child, Blkptr)> = wanted
            .filter_map(|child| match *child {
                Child::Block(bp) => Some((child, bp)),
                _ => None,
            })
            .take(READS_MAX)
            .collect();
        if let Some((_, bp)) = wanted.iter().find(|(_, bp)| bp.level() != *level) {
            return Err(Error::corrupt(format!("block {bp} of object {object} is not of level {level}")));
        }
        let ctx = &self.ctx;
        let blocks = join_all(wanted.iter().map(|(_, bp)| ctx.read(bp)).collect()).await;
        for ((child, _), block) in wanted.into_iter().zip(blocks) {
            *child = Child::Read(block?);
        }
        Ok(())
    }
}

/// The numbers of files that have no name any more and are only held open.
async fn unlinked(of: &Dataset, os_type: ObjsetType) -> Result<BTreeSet<u64>> {
    if os_type != ObjsetType::Zfs {
        return Ok(BTreeSet::new());
    }
    let os = of.objset().await?;
    let master = os.hold(MASTER_NODE).await?;
    let Some(queue) = zap::lookup_u64(&master, master_key::DELETE_QUEUE.as_bytes()).await? else {
        return Ok(BTreeSet::new());
    };
    let entries = zap::list(&os.hold(ObjectId(queue)).await?).await?;
    Ok(entries.into_iter().filter_map(|e| e.value.as_u64()).collect())
}
