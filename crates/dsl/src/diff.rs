//! Which objects of a file system may have changed since an earlier snapshot, found by the births
//! of the blocks that hold their dnodes.
//!
//! Any change of an object writes its dnode anew, and with it the block of the meta-dnode that
//! holds it: the blocks that are newer than the earlier snapshot name all objects that changed, and
//! neighbours that did not. Holes that are newer name objects that are gone.
//!
//! [`Changes::next`] gives runs of numbers in ascending order. Only the indirect blocks on the way
//! and a few blocks of dnodes are in memory.

use std::collections::VecDeque;
use std::rc::Rc;

use base::{Error, ErrorKind, ObjectId, Result, Txg};
use bdev::Bytes;
use dmu::DmuCtx;
use ondisk::blkptr::Blkptr;
use ondisk::dnode::{DNODE_SIZE, DnodePhys};
use ondisk::objset::ObjsetPhys;
use rt::cost::{DMU_POINTER, SCAN_VISIT};
use rt::join::join_all;

use crate::dataset::{Dataset, Use};
use crate::pool::DslPool;

/// Blocks of dnodes that are read at once.
const READS_MAX: usize = 16;
/// Pointers to blocks of dnodes that are looked at in one turn.
const LOOKS_MAX: usize = 128;
/// Levels of a meta-dnode that are followed (format page 03).
const LEVELS_MAX: u8 = 12;

/// Neighbouring object numbers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Run {
    /// The first.
    pub first: u64,
    /// The last.
    pub last: u64,
    /// Whether objects have these numbers in the later state.
    pub used: bool,
}

/// An indirect block on the way.
struct Frame {
    /// Of the blocks below.
    level: u8,
    /// The pointers that were not looked at yet, and the number of the first of them.
    rest: VecDeque<Blkptr>,
    blkid: u64,
}

/// The runs of a pair of states, one after the other.
pub struct Changes {
    ctx: DmuCtx,
    since: Txg,
    /// log2 of the pointers in an indirect block.
    epb_shift: u32,
    /// Dnodes of a block.
    slots: u64,
    path: Vec<Frame>,
    found: VecDeque<Run>,
    _uses: [Use; 2],
}

/// What a pointer is to the walk.
enum Child {
    /// Older than the earlier state.
    Old,
    /// No dnodes below it any more.
    Hole(Run),
    /// To be read.
    Block(Blkptr),
}

impl DslPool {
    /// The objects of `to`, a snapshot or a head that does not change, that may differ from those
    /// of its earlier snapshot `from`. Both are in use as long as the result lives.
    ///
    /// # Errors
    /// `CrossDevice` if `from` is not an earlier snapshot of `to`; `Denied` without a key; those of
    /// reads.
    pub async fn changes(&self, from: &Rc<Dataset>, to: &Rc<Dataset>) -> Result<Changes> {
        self.check_earlier(from, to).await?;
        let uses = [Use::of(from), Use::of(to)];
        to.load_features().await?;
        let ctx = to.keyed_ctx()?;
        let (root, since) = (to.phys().bp, Txg(from.phys().creation_txg));
        let os = ObjsetPhys::parse(&ctx.read(&root).await.map_err(|e| e.at(format!("dataset '{}'", to.name())))?)?;
        let meta = &os.meta_dnode;
        let mut out = Changes {
            since,
            epb_shift: meta.epb_shift(),
            slots: (u64::from(meta.datablksz()) / DNODE_SIZE as u64).max(1),
            path: Vec::new(),
            found: VecDeque::new(),
            ctx,
            _uses: uses,
        };
        if out.is_new(&root) && meta.nlevels <= LEVELS_MAX {
            let level = meta.nlevels.saturating_sub(1);
            out.path.push(Frame { level, rest: meta.bps().iter().copied().collect(), blkid: 0 });
        }
        Ok(out)
    }

    async fn check_earlier(&self, from: &Dataset, to: &Dataset) -> Result<()> {
        let mut at = ObjectId(to.phys().prev_snap_obj);
        let mut last = u64::MAX;
        while at.0 != 0 && at != self.origin_snap() {
            if at == from.object {
                return Ok(());
            }
            self.ctx().rt().spend(SCAN_VISIT).await;
            let phys = self.hold_dataset(at).await?.phys();
            // So a damaged chain ends, too.
            if phys.creation_txg >= last {
                return Err(Error::corrupt(format!("the snapshots before '{}' are not in order", to.name())));
            }
            (at, last) = (ObjectId(phys.prev_snap_obj), phys.creation_txg);
        }
        let why = format!("'{}' is not an earlier snapshot from the same fs as '{}'", from.name(), to.name());
        Err(Error::new(ErrorKind::CrossDevice, why))
    }
}

impl Changes {
    /// Whether a block, or a hole, may be younger than the earlier state. Holes without a birth may
    /// have been punched at any time.
    fn is_new(&self, bp: &Blkptr) -> bool {
        bp.logical_birth().0 == 0 || bp.logical_birth() > self.since
    }

    /// The next run. Neighbouring runs may be alike.
    pub async fn next(&mut self) -> Result<Option<Run>> {
        while self.found.is_empty() {
            let Some(frame) = self.path.last_mut() else { return Ok(None) };
            if frame.rest.is_empty() {
                self.path.pop();
                continue;
            }
            match frame.level {
                0 => self.dnodes().await?,
                _ => self.descend().await?,
            }
        }
        Ok(self.found.pop_front())
    }

    /// Takes the next pointer of the last indirect block.
    fn take(&mut self) -> Option<(Child, u64)> {
        let frame = self.path.last_mut()?;
        let (level, blkid) = (frame.level, frame.blkid);
        let bp = frame.rest.pop_front()?;
        frame.blkid += 1;
        if !self.is_new(&bp) {
            return Some((Child::Old, blkid));
        }
        if !bp.is_hole() {
            return Some((Child::Block(bp), blkid));
        }
        let bits = u32::from(level) * self.epb_shift;
        let span = 1u64.checked_shl(bits).filter(|_| bits < 64).unwrap_or(u64::MAX);
        let first = blkid.saturating_mul(span).saturating_mul(self.slots);
        let last = first.saturating_add(span.saturating_mul(self.slots) - 1);
        Some((Child::Hole(Run { first, last, used: false }), blkid))
    }

    /// Goes one level down, or finds a hole.
    async fn descend(&mut self) -> Result<()> {
        self.ctx.rt().spend(SCAN_VISIT).await;
        let level = self.path.last().map_or(0, |f| f.level);
        match self.take() {
            None | Some((Child::Old, _)) => {}
            Some((Child::Hole(run), _)) => self.found.push_back(run),
            Some((Child::Block(bp), blkid)) => {
                check_level(&bp, level)?;
                let block = self.ctx.read(&bp).await?;
                let rest: VecDeque<Blkptr> = Blkptr::iter_block(&block).collect();
                self.ctx.rt().spend(base::Nanos(DMU_POINTER.0 * rest.len() as u64)).await;
                let first = blkid.checked_shl(self.epb_shift).unwrap_or(u64::MAX);
                self.path.push(Frame { level: level - 1, rest, blkid: first });
            }
        }
        Ok(())
    }

    /// Reads the next blocks of dnodes.
    async fn dnodes(&mut self) -> Result<()> {
        let mut taken = Vec::new();
        let mut blocks = Vec::new();
        self.ctx.rt().spend(base::Nanos(SCAN_VISIT.0 * LOOKS_MAX as u64)).await;
        let mut looks = 0;
        while blocks.len() < READS_MAX
            && looks < LOOKS_MAX
            && let Some((child, blkid)) = self.take()
        {
            looks += 1;
            match child {
                Child::Old => continue,
                Child::Hole(run) => taken.push(Err(run)),
                Child::Block(bp) => {
                    check_level(&bp, 0)?;
                    blocks.push(bp);
                    taken.push(Ok(blkid));
                }
            }
        }
        let ctx = &self.ctx;
        let mut read = join_all(blocks.iter().map(|bp| ctx.read(bp)).collect()).await.into_iter();
        for part in taken {
            match part {
                Err(hole) => self.found.push_back(hole),
                Ok(blkid) => {
                    let block = read.next().expect("one block was read for it")?;
                    self.slots_of(&block, blkid)?;
                    self.ctx.rt().spend(SCAN_VISIT).await;
                }
            }
        }
        Ok(())
    }

    /// The runs of a block of dnodes.
    fn slots_of(&mut self, block: &Bytes, blkid: u64) -> Result<()> {
        let first =
            blkid.checked_mul(self.slots).ok_or_else(|| Error::corrupt("the number of an object is too large"))?;
        let mut slot = 0;
        while slot < block.len() / DNODE_SIZE {
            let dn = DnodePhys::parse_slot(block, slot)?;
            let object = first.saturating_add(slot as u64);
            slot += dn.as_ref().map_or(1, DnodePhys::num_slots);
            let used = dn.is_some();
            match self.found.back_mut() {
                Some(run) if run.used == used && run.last.checked_add(1) == Some(object) => run.last = object,
                _ => self.found.push_back(Run { first: object, last: object, used }),
            }
        }
        Ok(())
    }
}

fn check_level(bp: &Blkptr, level: u8) -> Result<()> {
    match bp.level() == level {
        true => Ok(()),
        false => Err(Error::corrupt(format!("block {bp} of a meta-dnode is not of level {level}"))),
    }
}
