//! The traversal: from the roots of the MOS and of every dataset to every block below them, parents
//! first, in pieces that fit into a txg.
//!
//! A piece ends at a bookmark of level 0; the next piece descends from the root again and skips the
//! blocks complete before it. Space accounting objects come last in a dataset and are not
//! interrupted. Order and bookmark are those of OpenZFS, which can resume there.

use base::{Error, Nanos, ObjectId, Result, Txg};
use bdev::Bytes;
use dmu::zap;
use dsl::walk::{Child, Order, SPILL, Step, Visitor};
use ondisk::blkptr::Blkptr;
use ondisk::bpobj::Bookmark;
use ondisk::dsl::DslDatasetPhys;
use ondisk::scan::{NO_OBJSET, ScanFunc, VISIT_AGAIN};
use rt::{LocalBoxFuture, Rt};
use vdev::BlockPlace;
use zio::Prio;

use super::Scan;
use crate::commit::brt::Brt;
use crate::commit::ddt::Ddt;

/// Level of intent log blocks in a bookmark.
pub(super) const LOG_LEVEL: i64 = -2;
/// Dnodes of a block of the meta-dnode.
const DNODES: u128 = dsl::walk::DNODES as u128;

/// A walk through one object set.
struct Walk<'a> {
    scan: &'a Scan,
    txg: Txg,
    min: Txg,
    max: Txg,
    /// The bookmark to resume at; None once it is reached.
    resume: Option<Bookmark>,
    stopped: Option<Bookmark>,
    until: Nanos,
    /// A block was visited: the piece may end.
    progressed: bool,
}

/// The range of level-0 blocks that a block covers, end excluded; spill blocks come last.
fn span(at: &Bookmark, shift: u8) -> (u128, u128) {
    if at.level == 0 && at.blkid == SPILL {
        return (u128::MAX - 1, u128::MAX);
    }
    dsl::walk::span(at.level, at.blkid, shift)
}

/// Whether a block with everything below it comes before the bookmark `resume` of level 0. `shift`
/// is that of the block's object.
fn is_done(at: &Bookmark, resume: &Bookmark, shift: u8) -> bool {
    if at.level < 0 || (at.object as i64) < 0 {
        return false;
    }
    let (_, end) = span(at, shift);
    let (object, next) = (u128::from(at.object), u128::from(resume.object));
    match (at.object == 0, resume.object == 0) {
        (true, true) => end <= u128::from(resume.blkid),
        (true, false) => end.saturating_mul(DNODES) <= next,
        (false, true) => object < u128::from(resume.blkid) * DNODES,
        (false, false) => object < next || (object == next && end <= span(resume, shift).0),
    }
}

impl Walk<'_> {
    fn is_in_range(&self, bp: &Blkptr) -> bool {
        !bp.is_hole() && !bp.is_redacted() && bp.birth() > self.min
    }

    /// Whether to end the piece here (`dsl_scan_check_suspend`).
    fn check_suspend(&mut self, at: &Bookmark) -> bool {
        if self.progressed
            && self.resume.is_none()
            && at.level == 0
            && (at.object as i64) >= 0
            && (self.scan.is_full() || self.scan.stack.rt.now() >= self.until)
        {
            self.stopped = Some(*at);
        }
        self.stopped.is_some()
    }

    /// Whether an earlier piece visited a block (`dsl_scan_check_resume`); the bookmark to resume
    /// at is dropped once it is reached.
    fn is_before_resume(&mut self, at: &Bookmark, shift: u8) -> bool {
        let Some(resume) = self.resume else { return false };
        if is_done(at, &resume, shift) {
            return true;
        }
        if at.level == 0 && (at.object as i64) >= 0 {
            let (start, end) = span(at, shift);
            let next = u128::from(resume.object);
            let leads_there =
                at.object == 0 && resume.object != 0 && start * DNODES <= next && next < end.saturating_mul(DNODES);
            if !leads_there {
                self.resume = None;
            }
        }
        false
    }
}

impl Visitor for Walk<'_> {
    fn order(&self) -> Order {
        Order::ParentsFirst
    }
    fn rt(&self) -> &Rt {
        &self.scan.stack.rt
    }
    fn enter(&mut self, child: &Child, _meta_shift: u8) -> Step {
        let Child { bp, at, shift } = child;
        let left_out = !self.is_in_range(bp) || self.check_suspend(at) || self.is_before_resume(at, *shift);
        if left_out { Step::Skip } else { Step::Subtree }
    }
    fn visit(&mut self, child: &Child) {
        let Child { bp, at, .. } = child;
        // A dedup'd or cloned block may be much older than the pointer to it.
        if !bp.is_embedded() && bp.phys_birth() <= self.max {
            self.scan.visit(&self.scan.stack.tree, bp, *at);
        }
        self.progressed |= at.level == 0;
    }
    fn will_read(&self, child: &Child, _meta_shift: u8) -> bool {
        let passed = self.resume.is_some_and(|r| is_done(&child.at, &r, child.shift));
        self.is_in_range(&child.bp) && !passed
    }
    /// Block pointers are not encrypted: no key is needed.
    fn read<'a>(&'a self, bp: &'a Blkptr) -> LocalBoxFuture<'a, Result<Bytes>> {
        Box::pin(self.scan.read_tree(bp, self.txg))
    }
    /// Reading the block at issue finds its damage, except for blocks that only the traversal
    /// reads.
    fn lost(&mut self, child: &Child) {
        self.scan.note_damage(child.at, child.bp.phys_birth());
    }
    fn is_stopped(&self) -> bool {
        self.stopped.is_some()
    }
}

impl Scan {
    /// Reads a block of a tree for its pointers, in txg `txg`.
    pub(super) async fn read_tree(&self, bp: &Blkptr, txg: Txg) -> Result<Bytes> {
        // The next pass may rewrite a block of this txg in place: it must not stay in the cache.
        if bp.is_encrypted_data() || bp.phys_birth() >= txg {
            match self.stack.ctx.peek(bp).filter(|_| !bp.is_encrypted_data()) {
                Some(block) => Ok(block),
                None => self.stack.zio().read_sealed(bp, Prio::AsyncRead).await,
            }
        } else {
            self.stack.ctx.read(bp).await
        }
    }

    /// Queues a block if the scan covers it.
    fn visit(&self, tree: &vdev::VdevTree, bp: &Blkptr, at: Bookmark) {
        let (func, min, max) = {
            let p = &self.now.borrow().phys;
            (p.func, p.min_txg, p.max_txg)
        };
        let bytes = bp.dvas().map(|d| d.asize()).sum::<u64>();
        self.now.borrow_mut().phys.examined += bytes;
        let mut pass = self.pass.get();
        pass.examined += bytes;
        let birth = bp.phys_birth();
        let mut wanted = birth > min && birth < max;
        if func == ScanFunc::Resilver && wanted && !bp.is_gang() {
            // Members of gang blocks may be on any vdev.
            let misses = |dva: ondisk::blkptr::Dva| {
                let place = BlockPlace::new(dva, bp.psize(), birth);
                // A bad pointer is reported at issue.
                tree.needs_resilver(place).unwrap_or(true)
            };
            wanted = bp.dvas().any(misses);
        }
        if wanted {
            self.work.add(bp, at);
        } else {
            pass.issued += bytes;
        }
        self.pass.set(pass);
    }

    fn queue(&self, ds: u64, min: u64) {
        let queue = &mut self.now.borrow_mut().queue;
        let old = queue.entry(ds).or_insert(min);
        *old = (*old).min(min);
    }
}

impl Scan {
    /// Visits the old blocks to which the txg adds references, by dedup or as clones: the traversal
    /// may have passed the new pointer, and the old pointer may be freed before its visit. OpenZFS
    /// does the same when an entry of a dedup table changes (`dsl_scan_ddt_entry`).
    pub(super) fn rescan_newly_referenced(&self, ddt: &Ddt, brt: &Brt) {
        for bp in ddt.newly_referenced().iter().chain(&brt.newly_referenced()) {
            self.visit(&self.stack.tree, bp, Bookmark::default());
        }
    }

    /// Traverses for the time of one txg. `mos` is the root of the MOS on disk.
    pub(super) async fn traverse(&self, mos: Blkptr, txg: Txg) {
        let t = self.tunables.get();
        let slice = if self.func() == ScanFunc::Resilver { t.resilver_min_time } else { t.scrub_min_time };
        let until = self.stack.rt.now() + slice;
        while !self.traversed_all.get() && !self.is_full() && self.stack.rt.now() < until {
            let at = self.now.borrow().phys.bookmark;
            let mut objset = at.objset;
            let result = match objset {
                0 => self.walk_mos(mos, at, txg, until).await,
                NO_OBJSET => {
                    let next = self.now.borrow_mut().queue.pop_first();
                    match next {
                        Some((ds, min)) => {
                            objset = ds;
                            self.walk_dataset(ds, Some(min), txg, until).await
                        }
                        None => {
                            self.traversed_all.set(true);
                            Ok(())
                        }
                    }
                }
                ds => self.walk_dataset(ds, None, txg, until).await,
            };
            if result.is_err() {
                // The dataset cannot be opened; go on with the others.
                // Its birth is not known: the record may be what is damaged.
                self.note_damage(Bookmark { objset, object: 0, level: -1, blkid: 0 }, Txg(0));
                self.now.borrow_mut().phys.bookmark = Bookmark { objset: NO_OBJSET, ..Bookmark::default() };
            }
        }
    }

    /// Traverses an object set from its root; true if it is complete.
    async fn walk_tree(&self, root: Blkptr, objset: u64, range: (Txg, Txg), txg: Txg, until: Nanos) -> bool {
        let start = Bookmark { objset, object: 0, level: 0, blkid: 0 };
        let resume = Some(self.now.borrow().phys.bookmark).filter(|b| b.objset == objset && *b != start);
        let mut walk =
            Walk { scan: self, txg, min: range.0, max: range.1, resume, stopped: None, until, progressed: false };
        dsl::walk::walk(&mut walk, root, objset).await;
        let next = walk.stopped;
        self.now.borrow_mut().phys.bookmark = next.unwrap_or(Bookmark { objset: NO_OBJSET, ..Bookmark::default() });
        next.is_none()
    }

    async fn walk_mos(&self, root: Blkptr, at: Bookmark, txg: Txg, until: Nanos) -> Result<()> {
        let phys = self.now.borrow().phys;
        debug_assert_eq!(at.objset, 0);
        if !self.walk_tree(root, 0, (phys.min_txg, phys.max_txg), txg, until).await {
            return Ok(());
        }
        // Every dataset descends from $ORIGIN's snapshot; where there is none (old pools), from its
        // own first snapshot.
        let dsl = self.stack.dsl();
        let origin = dsl.root().child("$ORIGIN").and_then(|d| d.head()).map_or(0, |o| o.phys().prev_snap_obj);
        if origin != 0 {
            self.queue(origin, 0);
            return Ok(());
        }
        for head in dsl.all() {
            let (mut object, mut prev) = (head.object.0, head.phys().prev_snap_obj);
            let mut last = u64::MAX;
            while prev != 0 {
                let phys = self.dataset_record(prev).await?;
                if phys.creation_txg >= last {
                    return Err(Error::corrupt("snapshots follow each other in a circle"));
                }
                last = phys.creation_txg;
                if phys.dir_obj != head.dir().object.0 {
                    // A clone: it is queued by its origin.
                    break;
                }
                (object, prev) = (prev, phys.prev_snap_obj);
            }
            if prev == 0 {
                self.queue(object, 0);
            }
        }
        Ok(())
    }

    pub(super) async fn dataset_record(&self, object: u64) -> Result<DslDatasetPhys> {
        self.stack.mos.hold(ObjectId(object)).await?.with_bonus(DslDatasetPhys::parse)
    }

    /// Traverses a dataset: from its beginning, the blocks born after `min`, or from the bookmark.
    async fn walk_dataset(&self, ds: u64, min: Option<u64>, txg: Txg, until: Nanos) -> Result<()> {
        let record = self.dataset_record(ds).await?;
        let is_snapshot = record.num_children != 0;
        {
            let mut now = self.now.borrow_mut();
            if let Some(min) = min {
                if is_snapshot && record.creation_txg <= min {
                    return Err(Error::corrupt(format!("dataset object {ds} is older than the one before it")));
                }
                now.phys.cur_min_txg = Txg(min).max(now.phys.min_txg);
                let made = if is_snapshot { record.creation_txg } else { u64::MAX };
                now.phys.cur_max_txg = Txg(made).min(now.phys.max_txg);
                now.phys.bookmark = Bookmark { objset: ds, object: 0, level: 0, blkid: 0 };
            }
        }
        if min.is_some() && !is_snapshot {
            self.walk_log(ds).await?;
        }
        let phys = self.now.borrow().phys;
        if phys.cur_min_txg < phys.max_txg
            && !record.bp.is_hole()
            && !self.walk_tree(record.bp, ds, (phys.cur_min_txg, phys.cur_max_txg), txg, until).await
        {
            return Ok(());
        }
        {
            let mut now = self.now.borrow_mut();
            now.phys.bookmark = Bookmark { objset: NO_OBJSET, ..Bookmark::default() };
            if phys.flags & VISIT_AGAIN != 0 {
                // It took the place of a destroyed snapshot; its own newer blocks are still to be
                // visited.
                now.phys.flags &= !VISIT_AGAIN;
                now.queue.insert(ds, phys.cur_max_txg.0);
                return Ok(());
            }
        }
        if !is_snapshot {
            return Ok(());
        }
        if record.next_snap_obj != 0 {
            self.queue(record.next_snap_obj, record.creation_txg);
        }
        if record.num_children > 1 {
            self.queue_clones(ds, &record).await?;
        }
        Ok(())
    }

    /// Visits the blocks of a head's intent log that a crash left and no replay has used; in a
    /// read-only pool, of any log. Logs in use are rewritten all the time, and the log of a
    /// snapshot is its head's.
    async fn walk_log(&self, ds: u64) -> Result<()> {
        let Some(head) = self.stack.dsl().all().into_iter().find(|d| d.object.0 == ds) else { return Ok(()) };
        let Ok(header) = head.zil_header().await else { return Ok(()) };
        if header.log.is_hole() || header.claim_txg.0 == 0 && !self.stack.readonly {
            return Ok(());
        }
        let blocks = zil::replay::blocks_of(self.stack.zio(), &header).await?;
        // Replayed meanwhile: the blocks do not belong to the log any more.
        if head.zil_header().await.ok() != Some(header) {
            return Ok(());
        }
        let min = self.now.borrow().phys.cur_min_txg;
        for (n, bp) in (0..).zip(&blocks).filter(|(_, bp)| bp.birth() > min) {
            self.visit(&self.stack.tree, bp, Bookmark { objset: ds, object: 0, level: LOG_LEVEL, blkid: n });
        }
        Ok(())
    }

    async fn queue_clones(&self, ds: u64, record: &DslDatasetPhys) -> Result<()> {
        if record.next_clones_obj != 0 {
            for entry in zap::list(&self.stack.mos.hold(ObjectId(record.next_clones_obj)).await?).await? {
                self.queue(entry.value.as_u64().unwrap_or(0), record.creation_txg);
            }
            return Ok(());
        }
        // Pools without lists of clones: find clones by their origins.
        for head in self.stack.dsl().all().into_iter().filter(|h| h.dir().phys().origin_obj == ds) {
            let (mut object, mut prev) = (head.object.0, head.phys().prev_snap_obj);
            let mut last = u64::MAX;
            while prev != ds && prev != 0 {
                let phys = self.dataset_record(prev).await?;
                if phys.creation_txg >= last {
                    return Err(Error::corrupt("snapshots follow each other in a circle"));
                }
                last = phys.creation_txg;
                (object, prev) = (prev, phys.prev_snap_obj);
            }
            self.queue(object, record.creation_txg);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(object: u64, level: i64, blkid: u64) -> Bookmark {
        Bookmark { objset: 5, object, level, blkid }
    }

    #[test]
    fn what_is_before_a_place_is_passed() {
        let shift = 14; // 128 pointers
        let resume = at(40, 0, 300);
        assert!(is_done(&at(40, 0, 299), &resume, shift));
        assert!(!is_done(&at(40, 0, 300), &resume, shift));
        assert!(is_done(&at(40, 1, 1), &resume, shift), "blocks 128 to 255");
        assert!(!is_done(&at(40, 1, 2), &resume, shift), "blocks 256 to 383");
        assert!(!is_done(&at(40, 2, 0), &resume, shift));
        assert!(is_done(&at(39, 2, 7), &resume, shift));
        assert!(!is_done(&at(41, 0, 0), &resume, shift));
        assert!(is_done(&at(0, 0, 0), &resume, shift), "objects 0 to 31");
        assert!(!is_done(&at(0, 0, 1), &resume, shift), "leads to object 40");
        assert!(!is_done(&at(40, 0, SPILL), &resume, shift));
        assert!(!is_done(&at(u64::MAX, 0, 0), &resume, shift), "accounting comes last");
        let resume = at(0, 0, 2);
        assert!(is_done(&at(63, 0, 9), &resume, shift));
        assert!(!is_done(&at(64, 0, 0), &resume, shift));
        assert!(is_done(&at(0, 0, 1), &resume, shift));
        assert!(!is_done(&at(0, 0, 2), &resume, shift));
        assert!(!is_done(&at(0, 1, 0), &resume, shift));
        assert!(is_done(&at(40, 0, 7), &at(40, 0, SPILL), shift));
    }
}
