//! The scrub of the blocks in the error log alone (`zpool scrub -e`, OpenZFS 2.2; format page 17
//! section 2).
//!
//! The list of damaged blocks of the last scans is worked off in *rounds*. A task beside the txgs
//! finds out which datasets have the blocks of a round ([`Scan::plan`]). The next txg looks up
//! their pointers, in syncing context as the traversal of a scan does, and queues them
//! ([`Scan::sync_errors`]); then they are issued like those of a scan, repairs included. At the
//! end blocks that can be read now are taken off the log, and so are those that no dataset has
//! any more. A block stays that is still damaged, or that cannot be looked up.
//!
//! Invariants:
//! * nothing leaves the log before the end: after a power cut, an import, or if it is stopped, all
//!   of it is read again, by OpenZFS, too, since the record on disk has no cursor;
//! * it never runs beside a scan: a scrub waits for its end, a resilver ends it.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use base::{Error, ErrorKind, Result, Txg};
use bdev::Bytes;
use dmu::{Tx, zap};
use dsl::walk::{Child, DNODES, Order, SPILL, Step, Visitor};
use ondisk::blkptr::{Blkptr, Dva};
use ondisk::bpobj::Bookmark;
use ondisk::feature::FeatureId;
use ondisk::scan::{ErrorScrubPhys, ScanState};
use ondisk::zap::ZapValue;
use rt::{LocalBoxFuture, Rt};

use super::errlog::{Damage, LAST};
use super::{Phase, Scan, secs};

/// Entry of the MOS directory: the record.
const RECORD: &[u8] = b"error_scrub";
/// Entries of the log in a round: about as many reads as a txg can look up in a moment.
const ROUND: usize = 64;

/// What is known of a block before its pointer is looked up.
enum Where {
    /// No dataset has it any more.
    Gone,
    /// One of these has it.
    In(Vec<Bookmark>),
    /// The blocks above it cannot be read.
    Unknown,
}

/// The error scrub of a pool.
#[derive(Default)]
pub(super) struct ErrorScrub {
    /// The record as it is now; that on disk has no progress while it runs.
    phys: Cell<ErrorScrubPhys>,
    is_dirty: Cell<bool>,
    /// When it was paused, in seconds since 1970.
    paused_at: Cell<u64>,
    /// Entries that are in no round yet.
    todo: RefCell<Vec<Damage>>,
    /// The entries of the round.
    planned: RefCell<Vec<(Damage, Where)>>,
    /// Those of which a block is queued, with its number: that of the first entry that has it.
    queued: RefCell<Vec<(Damage, u64)>>,
    numbers: RefCell<BTreeMap<Dva, u64>>,
    /// Blocks of the round that cannot be read, by number.
    failed: RefCell<BTreeSet<u64>>,
    /// Entries that leave the log at the end.
    off: RefCell<Vec<Damage>>,
}

impl ErrorScrub {
    /// Reads the record.
    pub(super) async fn load(directory: &dmu::Dnode, now: u64) -> Result<ErrorScrub> {
        let words = zap::lookup(directory, RECORD).await?.and_then(|v| v.as_u64s()).unwrap_or_default();
        let out = ErrorScrub::default();
        out.phys.set(ErrorScrubPhys::from_words(&words));
        out.paused_at.set(if out.is_paused() { now } else { 0 });
        Ok(out)
    }

    pub(super) fn is_running(&self) -> bool {
        self.phys.get().is_running()
    }
    pub(super) fn is_paused(&self) -> bool {
        self.is_running() && self.phys.get().paused
    }

    /// The record as it is now, and when it was paused.
    pub(super) fn status(&self) -> (ErrorScrubPhys, u64) {
        (self.phys.get(), self.paused_at.get())
    }

    /// A block cannot be read: that with this number in the round.
    pub(super) fn note(&self, number: u64) {
        self.failed.borrow_mut().insert(number);
    }

    /// Changes the progress, which is not on disk.
    fn count(&self, f: impl FnOnce(&mut ErrorScrubPhys)) {
        let mut phys = self.phys.get();
        f(&mut phys);
        self.phys.set(phys);
    }

    fn change(&self, f: impl FnOnce(&mut ErrorScrubPhys)) {
        self.count(f);
        self.is_dirty.set(true);
    }

    fn clear(&self) {
        self.todo.borrow_mut().clear();
        self.queued.borrow_mut().clear();
        self.off.borrow_mut().clear();
        self.planned.borrow_mut().clear();
        self.numbers.borrow_mut().clear();
        self.failed.borrow_mut().clear();
    }

    /// Writes the record if it changed.
    pub(super) async fn write(&self, directory: &dmu::Dnode, tx: &Tx) -> Result<()> {
        if !self.is_dirty.replace(false) {
            return Ok(());
        }
        let mut phys = self.phys.get();
        if phys.is_running() {
            // As if it had just begun.
            (phys.to_examine, phys.examined, phys.errors) = (phys.to_examine.saturating_add(phys.examined), 0, 0);
            phys.cursor = 0;
        }
        zap::update(directory, RECORD, &ZapValue::from_u64s(&phys.to_words()), tx).await
    }
}

impl Scan {
    /// Begins to scrub the blocks in the error log, or goes on after a pause. Does nothing if the
    /// log is empty. `Busy` while a scan or another one runs, or a scrub is paused; `Unsupported`
    /// without the feature `head_errlog`.
    pub async fn start_error_scrub(self: &Rc<Self>) -> Result<()> {
        if !self.stack.features.is_enabled(FeatureId::HeadErrlog) {
            let why = "to scrub what is damaged alone (-e) the pool needs the feature head_errlog";
            return Err(Error::unsupported(why));
        }
        self.sync_task(|scan, tx| {
            Box::pin(async move {
                if scan.errors.is_paused() {
                    scan.set_errors_paused(false);
                    scan.events.post("errorscrub_resume");
                    return Ok(());
                }
                scan.check_idle()?;
                let count = scan.log(LAST).list().await?.len() as u64;
                if count == 0 {
                    return Ok(());
                }
                let (state, start_time) = (ScanState::Scanning, secs(&scan.stack.rt));
                scan.errors.change(|p| {
                    *p = ErrorScrubPhys { state, start_time, to_examine: count, ..ErrorScrubPhys::default() };
                });
                let text = format!("func=3 mintxg=0 maxtxg={}", tx.txg());
                scan.stack.core.log_internal("error scrub setup", text, tx.txg());
                scan.events.post("errorscrub_start");
                scan.begin_errors();
                Ok(())
            })
        })
        .await
    }

    /// Fails if a scan runs or is paused, or an error scrub is.
    pub(super) fn check_idle(&self) -> Result<()> {
        let what = match (self.is_scanning(), self.errors.is_running()) {
            _ if self.rebuilding.get() => "currently sequentially resilvering",
            (false, false) => return Ok(()),
            (false, true) if self.errors.is_paused() => {
                "error scrub is paused; use 'zpool scrub -e' to resume error scrub"
            }
            (false, true) => "currently error scrubbing; use 'zpool scrub -s' to cancel error scrub",
            (true, _) if self.func() == ondisk::scan::ScanFunc::Resilver => "currently resilvering",
            (true, _) if self.is_paused() => {
                "scrub is paused; use 'zpool scrub' to resume or 'zpool scrub -s' to cancel scrub"
            }
            (true, _) => "currently scrubbing; use 'zpool scrub -s' to cancel current scrub",
        };
        Err(Error::new(ErrorKind::Busy, what))
    }

    /// Begins with the first entry of the log.
    pub(super) fn begin_errors(self: &Rc<Self>) {
        self.errors.clear();
        self.work.clear();
        self.generation.set(self.generation.get() + 1);
        self.start_plan(true);
    }

    /// Pauses it or goes on (syncing context).
    pub(super) fn set_errors_paused(&self, pause: bool) {
        self.errors.change(|p| p.paused = pause);
        self.errors.paused_at.set(if pause { secs(&self.stack.rt) } else { 0 });
        self.changed.notify_all();
        self.stack.txg.kick();
    }

    /// Forgets the record, when a scan begins (syncing context).
    pub(super) fn forget_error_scrub(&self) {
        self.errors.clear();
        if self.errors.phys.get() != ErrorScrubPhys::default() {
            self.errors.change(|p| *p = ErrorScrubPhys::default());
        }
    }

    /// Ends it (syncing context): `complete` if it came to its end, else it was stopped.
    pub(super) async fn end_errors(&self, complete: bool, tx: &Tx) -> Result<()> {
        self.work.clear();
        self.generation.set(self.generation.get() + 1);
        self.phase.set(Phase::Idle);
        if complete {
            let off = self.errors.off.take();
            self.take_off(&off, tx).await?;
        }
        self.errors.clear();
        let (state, end_time) = match complete {
            true => (ScanState::Finished, secs(&self.stack.rt)),
            false => (ScanState::Canceled, secs(&self.stack.rt)),
        };
        self.errors.change(|p| {
            (p.state, p.end_time, p.paused) = (state, end_time, false);
        });
        self.errors.paused_at.set(0);
        let (event, verb) = match complete {
            true => ("errorscrub_finish", "error scrub done"),
            false => ("errorscrub_abort", "error scrub canceled"),
        };
        self.stack.core.log_internal(verb, format!("errors={}", self.errors.phys.get().errors), tx.txg());
        self.events.post(event);
        self.changed.notify_all();
        Ok(())
    }

    /// Plans a round in a task; `first`: the log is read before.
    fn start_plan(self: &Rc<Self>, first: bool) {
        self.phase.set(Phase::Plan);
        let (scan, generation) = (self.clone(), self.generation.get());
        let task = self.stack.rt.spawn("scan", async move {
            let is_off = || scan.closed.get() || scan.generation.get() != generation;
            if first {
                // What cannot be listed is damaged itself, and stays.
                let all = scan.log(LAST).list().await.unwrap_or_default();
                if !is_off() {
                    let to_examine = all.len() as u64;
                    scan.errors.count(|p| (p.to_examine, p.examined, p.errors) = (to_examine, 0, 0));
                    *scan.errors.todo.borrow_mut() = all;
                }
            }
            while !is_off() && scan.errors.planned.borrow().len() < ROUND {
                let Some(d) = scan.errors.todo.borrow_mut().pop() else { break };
                let place = scan.plan(&d).await;
                scan.errors.planned.borrow_mut().push((d, place));
            }
            if !is_off() {
                scan.phase.set(Phase::Traverse);
                scan.changed.notify_all();
                scan.stack.txg.kick();
            }
        });
        *self.task.borrow_mut() = Some(task);
    }

    async fn plan(&self, d: &Damage) -> Where {
        if d.at.level < -1 {
            // A block of an intent log.
            return Where::Unknown;
        }
        let dsl = self.stack.dsl();
        match dsl.affected(&[(d.at, d.birth)]).await {
            Err(_) => Where::Unknown,
            Ok(places) if !places.is_empty() => {
                Where::In(places.into_iter().map(|(objset, ..)| Bookmark { objset, ..d.at }).collect())
            }
            // Metadata that cannot be read does not say that the block is gone.
            Ok(_) => match dsl.block_birth(&d.at).await {
                Ok(_) => Where::Gone,
                Err(_) => Where::Unknown,
            },
        }
    }

    /// The work of a txg for an error scrub. `mos` is the root of the MOS on disk.
    pub(super) async fn sync_errors(self: &Rc<Self>, mos: Blkptr, txg: Txg, tx: &Tx) -> Result<()> {
        if self.phase.get() == Phase::Drained {
            let failed = self.errors.failed.take();
            self.errors.numbers.borrow_mut().clear();
            for (d, number) in self.errors.queued.take() {
                match failed.contains(&number) {
                    true => self.errors.count(|p| p.errors += 1),
                    false => self.errors.off.borrow_mut().push(d),
                }
            }
            if self.errors.todo.borrow().is_empty() {
                return self.end_errors(true, tx).await;
            }
            self.start_plan(false);
        }
        if self.phase.get() != Phase::Traverse {
            return Ok(());
        }
        for (d, place) in self.errors.planned.take() {
            self.errors.count(|p| {
                p.examined += 1;
                p.to_examine = p.to_examine.saturating_sub(1);
            });
            let is_known = match place {
                Where::Gone => {
                    self.errors.off.borrow_mut().push(d);
                    true
                }
                Where::In(places) => self.queue_error(&d, &places, mos, txg).await,
                Where::Unknown => false,
            };
            if !is_known {
                self.errors.count(|p| p.errors += 1);
            }
        }
        self.start_issue();
        Ok(())
    }

    /// Queues a block at the first of the places that has it; false if none has it.
    async fn queue_error(&self, d: &Damage, places: &[Bookmark], mos: Blkptr, txg: Txg) -> bool {
        for at in places {
            let root = match at.objset {
                0 => mos,
                objset => match self.dataset_record(objset).await {
                    Ok(record) => record.bp,
                    Err(_) => continue,
                },
            };
            let mut search = Search { scan: self, txg, at: *at, found: None };
            dsl::walk::walk(&mut search, root, at.objset).await;
            let Some(bp) = search.found else { continue };
            if d.birth.0 != 0 && bp.phys_birth() != d.birth {
                continue;
            }
            let mut queued = self.errors.queued.borrow_mut();
            // Its number finds it again: several entries may have the place, or, dedup'd or cloned,
            // the block.
            let first = queued.len() as u64;
            let object = *self.errors.numbers.borrow_mut().entry(bp.dva(0)).or_insert(first);
            queued.push((*d, object));
            if object == first {
                self.work.add(&bp, Bookmark { objset: 0, object, level: at.level, blkid: 0 });
            }
            return true;
        }
        false
    }
}

/// The walk to one block.
struct Search<'a> {
    scan: &'a Scan,
    txg: Txg,
    at: Bookmark,
    found: Option<Blkptr>,
}

/// Whether the block `to` is one of those below `from` in its object set.
fn leads(from: &Bookmark, to: &Bookmark, shift: u8) -> bool {
    let covers = |block: u128| {
        let (start, end) = dsl::walk::span(from.level, from.blkid, shift);
        start <= block && block < end
    };
    if from.level < 0 {
        return true;
    }
    if from.object == 0 && to.object != 0 {
        return (to.object as i64) > 0 && covers(u128::from(to.object / DNODES));
    }
    from.object == to.object
        && from.blkid != SPILL
        && to.blkid != SPILL
        && from.level > to.level
        && covers(dsl::walk::span(to.level, to.blkid, shift).0)
}

impl Visitor for Search<'_> {
    fn order(&self) -> Order {
        Order::ParentsFirst
    }
    fn rt(&self) -> &Rt {
        &self.scan.stack.rt
    }
    fn enter(&mut self, child: &Child, _meta_shift: u8) -> Step {
        let Child { bp, at, shift } = child;
        let is_it = (at.object, at.level, at.blkid) == (self.at.object, self.at.level, self.at.blkid);
        if is_it && !bp.is_hole() && !bp.is_embedded() && !bp.is_redacted() {
            self.found = Some(*bp);
        }
        if !is_it && self.will_read(child, *shift) { Step::Subtree } else { Step::Skip }
    }
    fn visit(&mut self, _child: &Child) {}
    fn will_read(&self, child: &Child, _meta_shift: u8) -> bool {
        let Child { bp, at, shift } = child;
        !bp.is_hole() && !bp.is_redacted() && leads(at, &self.at, *shift)
    }
    fn read<'a>(&'a self, bp: &'a Blkptr) -> LocalBoxFuture<'a, Result<Bytes>> {
        Box::pin(self.scan.read_tree(bp, self.txg))
    }
    fn lost(&mut self, _child: &Child) {}
    fn is_stopped(&self) -> bool {
        self.found.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_search_goes_the_way_to_its_block() {
        let at = |object: u64, level: i64, blkid: u64| Bookmark { objset: 5, object, level, blkid };
        let shift = 14; // 128 pointers
        let to = at(100, 0, 300);
        for (from, want) in [
            (at(0, -1, 0), true),
            (at(0, 0, 3), true),
            (at(0, 0, 2), false),
            (at(0, 1, 0), true),
            (at(0, 1, 1), false),
            (at(100, 1, 2), true),
            (at(100, 1, 1), false),
            (at(100, 2, 0), true),
            (at(99, 2, 0), false),
            (at(100, 0, 300), false),
            (at(100, 0, SPILL), false),
            (at(u64::MAX, 0, 0), false),
        ] {
            assert_eq!(leads(&from, &to, shift), want, "{from:?}");
        }
        assert!(leads(&at(100, 2, 1), &at(100, 1, 128), shift) && !leads(&at(100, 2, 1), &at(100, 1, 127), shift));
        assert!(leads(&at(0, 0, 3), &at(100, 0, SPILL), shift) && !leads(&at(100, 1, 0), &at(100, 0, SPILL), shift));
        // Blocks of the meta-dnode, and of the accounting.
        assert!(leads(&at(0, 1, 0), &at(0, 0, 5), shift) && !leads(&at(0, 0, 5), &at(0, 0, 5), shift));
        assert!(leads(&at(u64::MAX, 1, 0), &at(u64::MAX, 0, 1), shift));
        assert!(!leads(&at(0, 0, 0), &at(u64::MAX, 0, 1), shift));
    }
}
