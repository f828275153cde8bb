//! The expansion of a RAID-Z: its sectors are copied to their new places, txg by txg.
//!
//! [`vdev::reflow`] has the vocabulary, which place is valid when, and the copies; this file
//! decides when to copy what, and what the uberblock says. The normal path of an expansion
//! ([`Expander`]):
//!
//! 1. A command adds the device ([`super::raidz_attach`]); when that is on disk, and nothing that
//!    began before is under way, the task of the expansion begins.
//! 2. The sync of a txg moves the first part through the scratch area ([`FirstPart`]): the scratch
//!    area, flush, the last uberblock again with the state "valid", the real places, flush, the
//!    uberblock again with "synced".
//! 3. The task takes a metaslab at a time: allocation in it is disabled, what is allocated between
//!    `next` and the limit is copied, piece by piece, a few at a time; then allocation is allowed
//!    again. What is allocated behind `next` from then on is written at both places, what is
//!    allocated beyond it is found by the next visit.
//! 4. At the limit the task waits for a txg. Each commit takes the offset up to which all copies
//!    have ended, before its flush ([`Expander::copied`]); the uberblock gets it if every device is
//!    healthy after the flush ([`Expander::word`]). Then the task moves `committed` and with it the
//!    limit.
//! 5. When all is committed, a txg ends the expansion: blocks of later txgs are wider, and the vdev
//!    is larger. A scrub follows.
//!
//! `floor` is the offset that some uberblock has or may have: it never goes back. A copy that
//! fails, a device that is not healthy at a commit, void all copies beyond it: its cache may have
//! held them, and no log tells. Then the task waits until all devices are healthy, and begins again
//! there; a commit that took its offset before that does not use it (`generation`). A pool that is
//! imported in the middle goes on at the offset of its uberblock, with the second half of step 2 if
//! that says that the first part is in the scratch area.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::{Rc, Weak};

use base::{Error, Nanos, Result, TXG_CONCURRENT, Txg, VdevId};
use dmu::Tx;
use metaslab::{MsSummary, Run};
use ondisk::scan::ScanState;
use ondisk::uberblock::{Reflow as Word, ScratchState};
use rt::JoinHandle;
use rt::sync::{Notify, RangeGuard};
use vdev::reflow::{self, Reflow, ScratchPart, is_ready, limit, scratch_bytes};
use vdev::reshape::end_expansion;
use vdev::width::Progress;
use vdev::{Raidz, Top, VdevKind};

use super::changes::Changes;
use super::expand::asize_now;
use super::raidz_expand::{record_copied, record_end, recorded_copied};
use crate::scan::Scan;
use crate::stack::{METASLABS_MAX, Stack};
use crate::zevent::Events;

/// Bytes of one copy for each child at most: its range is locked as long as it takes.
const COPY_EACH: u64 = 1 << 20;
/// Copies under way at most: devices read the next one while they write one, and I/O waits for the
/// few before it alone.
const COPIES: usize = 4;
/// Free space up to so many bytes between two ranges is copied with them.
const GAP: u64 = 32 << 10;
/// How long the task waits for devices to become healthy before it looks again.
const RETRY: Nanos = Nanos::from_secs(5);

/// Tunables of expansions, with OpenZFS's names.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ExpandTunables {
    /// `raidz_expand_max_copy_bytes`: bytes of all copies under way at most (OpenZFS: 160 MiB).
    pub max_copy_bytes: u64,
    /// `raidz_expand_max_reflow_bytes`: the expansion rests when so many bytes are copied; 0:
    /// never.
    pub max_reflow_bytes: u64,
    /// `zfs_scrub_after_expand`: a scrub begins when an expansion ends.
    pub scrub_after: bool,
}

impl Default for ExpandTunables {
    fn default() -> ExpandTunables {
        ExpandTunables { max_copy_bytes: 160 << 20, max_reflow_bytes: 0, scrub_after: true }
    }
}

/// Copies under way, the lowest first: where each ends, its bytes, and its task.
#[derive(Default)]
struct Copies {
    tasks: VecDeque<(u64, u64, JoinHandle<Result<()>>)>,
    bytes: u64,
}

/// An expansion that is under way.
struct Job {
    top: Rc<Top>,
    reflow: Rc<Reflow>,
    /// I/O that began before, as long as there is any.
    before: RefCell<Weak<()>>,
    /// All copies below have ended.
    copied: Cell<u64>,
    /// The offset that the uberblock on disk has, or one may have that is being written.
    floor: Cell<u64>,
    /// The offset of the last uberblock that is on disk.
    on_disk: Cell<u64>,
    /// Copies beyond `floor` are void.
    failed: Cell<bool>,
    /// Counts how often copies became void.
    generation: Cell<u64>,
    /// It waits until the devices are healthy.
    waiting: Cell<bool>,
    /// The first part is to be moved by the next txg.
    wants_first: Cell<bool>,
    /// Bytes copied, and those in the record.
    bytes: Cell<u64>,
    saved: Cell<u64>,
}

impl Job {
    fn of(top: &Rc<Top>, before: Weak<()>) -> Option<Rc<Job>> {
        let reflow = top.kind().reflow()?.clone();
        let at = || Cell::new(reflow.progress().committed);
        Some(Rc::new(Job {
            top: top.clone(),
            before: RefCell::new(before),
            copied: at(),
            floor: at(),
            on_disk: at(),
            failed: Cell::new(false),
            generation: Cell::new(0),
            waiting: Cell::new(false),
            wants_first: Cell::new(false),
            bytes: Cell::new(0),
            saved: Cell::new(0),
            reflow,
        }))
    }
    /// The nodes now.
    fn raidz(&self) -> Option<Rc<Raidz>> {
        match self.top.kind() {
            VdevKind::Raidz(raidz) => Some(raidz),
            _ => None,
        }
    }
    fn is_ready(&self) -> bool {
        self.raidz().is_some_and(|r| is_ready(&r))
    }
    /// Children before the expansion.
    fn old(&self) -> u64 {
        self.raidz().map_or(1, |r| r.children.len() as u64 - 1)
    }
    /// Where it ends.
    fn end(&self) -> u64 {
        self.top.ms_count() << self.top.ms_shift.get()
    }
    /// Bytes of the first part.
    fn first(&self) -> u64 {
        scratch_bytes(self.top.ashift) * (self.old() + 1)
    }
    fn fail(&self) {
        self.failed.set(true);
        self.generation.set(self.generation.get() + 1);
        self.copied.set(self.floor.get());
    }
}

/// The offset up to which all copies had ended at some time.
#[derive(Clone, Copy, Default)]
pub(crate) struct Copied {
    offset: u64,
    generation: u64,
}

/// The first part of an expansion while it goes through the scratch area; the range of it is
/// locked.
pub(crate) struct FirstPart {
    job: Rc<Job>,
    raidz: Rc<Raidz>,
    part: ScratchPart,
    /// An uberblock says already that it is in the scratch area.
    was_valid: bool,
    _range: RangeGuard,
}

impl FirstPart {
    /// What the uberblock says before the real places are written; none if it does.
    pub fn valid(&self) -> Option<Word> {
        let first = self.job.first();
        self.job.reflow.set(Progress { in_scratch: true, ..Progress::at(first) });
        (!self.was_valid).then(|| Word::new(ScratchState::Valid, first))
    }
    /// Writes the real places, durably; false if a device fails, then the scratch area stays valid.
    pub async fn write_back(&self) -> bool {
        let ashift = self.job.top.ashift;
        let good = self.part.write_new(&self.raidz, ashift).await.is_ok() && self.job.top.flush().await.is_ok();
        let good = good && is_ready(&self.raidz);
        self.job.waiting.set(!good);
        good
    }
    /// What the uberblock says after that.
    pub fn synced(&self) -> Option<Word> {
        Some(Word::new(ScratchState::Synced, self.job.first()))
    }
    /// Reads and writes use the real places from now on.
    pub fn end(self) {
        let first = self.job.first();
        self.job.reflow.set(Progress::at(first));
        for offset in [&self.job.copied, &self.job.floor, &self.job.on_disk] {
            offset.set(first);
        }
    }
}

/// The objects that an expansion uses.
pub(super) struct Around<'a> {
    pub stack: &'a Rc<Stack>,
    pub scan: &'a Rc<Scan>,
    pub changes: &'a Rc<Changes>,
    pub events: &'a Rc<Events>,
    pub tunables: ExpandTunables,
}

/// The expansion of a pool; there is one at a time.
pub struct Expander {
    stack: Rc<Stack>,
    scan: Rc<Scan>,
    changes: Rc<Changes>,
    events: Rc<Events>,
    tunables: Cell<ExpandTunables>,
    job: RefCell<Option<Rc<Job>>>,
    closing: Cell<bool>,
    task: RefCell<Option<JoinHandle<()>>>,
    changed: Notify,
}

impl Expander {
    /// Finds the expansion of an imported pool; [`Expander::resume`] goes on with it.
    pub(super) fn new(around: &Around<'_>) -> Rc<Expander> {
        let tops = around.stack.tree.tops.borrow();
        let job = tops.iter().find_map(|top| Job::of(top, Weak::new()));
        Rc::new(Expander {
            stack: around.stack.clone(),
            scan: around.scan.clone(),
            changes: around.changes.clone(),
            events: around.events.clone(),
            tunables: Cell::new(around.tunables),
            job: RefCell::new(job),
            closing: Cell::new(false),
            task: RefCell::default(),
            changed: Notify::new(),
        })
    }

    fn job(&self) -> Option<Rc<Job>> {
        self.job.borrow().clone()
    }

    /// Whether an expansion is under way.
    pub fn is_busy(&self) -> bool {
        self.job.borrow().is_some()
    }

    /// Bytes that the expansion under way has still to copy, about.
    pub fn left(&self) -> Option<u64> {
        let job = self.job().filter(|_| !self.stack.readonly)?;
        let spaces = self.stack.alloc.top_spaces();
        let used = spaces.iter().find(|s| s.vdev == job.top.id).map_or(0, |s| s.alloc);
        Some(used.saturating_sub(job.bytes.get()))
    }

    /// Bytes copied by the expansion of that vdev, and whether it waits for devices.
    pub(crate) fn figures(&self, vdev: VdevId) -> Option<(u64, bool)> {
        self.job().filter(|job| job.top.id == vdev).map(|job| (job.bytes.get(), job.waiting.get()))
    }

    /// Changes the tunables.
    pub(crate) fn set_tunables(&self, t: ExpandTunables) {
        if self.tunables.replace(t) != t {
            self.changed.notify_all();
        }
    }

    /// An expansion began (syncing context); `before` is alive while I/O of before is under way.
    pub(super) fn begin(&self, top: &Rc<Top>, before: Weak<()>) {
        *self.job.borrow_mut() = Job::of(top, before);
    }

    /// Goes on with the expansion of an imported pool.
    pub(crate) async fn resume(self: &Rc<Self>) -> Result<()> {
        if let Some(job) = self.job() {
            let copied = recorded_copied(&self.stack, &job.top).await?;
            job.bytes.set(copied);
            job.saved.set(copied);
            self.run();
        }
        Ok(())
    }

    /// Lets the task end after its present copy.
    pub(crate) fn close(&self) {
        self.closing.set(true);
        self.changed.notify_all();
    }

    /// Ends the task; the expansion goes on after the next import.
    pub(crate) async fn stop(&self) {
        self.close();
        let task = self.task.borrow_mut().take();
        if let Some(task) = task {
            task.await;
        }
    }

    /// The offset up to which all copies have ended: those are on disk after the next flush.
    pub(crate) fn copied(&self) -> Copied {
        self.job()
            .map_or_else(Copied::default, |job| Copied { offset: job.copied.get(), generation: job.generation.get() })
    }

    /// What the uberblock says after a flush: `copied`, from before it, if all devices are healthy.
    pub(crate) fn word(&self, copied: Copied) -> Word {
        let Some(job) = self.job() else { return Word::default() };
        let progress = job.reflow.progress();
        if progress.in_scratch {
            return Word::new(ScratchState::Valid, progress.committed);
        }
        if !job.is_ready() {
            job.fail();
        } else if copied.generation == job.generation.get() {
            job.floor.set(job.floor.get().max(copied.offset));
        }
        match job.floor.get() {
            0 => Word::default(),
            floor => Word::new(ScratchState::SyncedReflow, floor),
        }
    }

    /// An uberblock is on disk.
    pub(crate) fn committed(&self, word: Word) {
        if let Some(job) = self.job().filter(|_| !word.is_in_scratch()) {
            job.on_disk.set(word.offset());
        }
    }

    /// Records the progress; a txg with any is committed.
    pub(crate) async fn save(&self, tx: &Tx) -> Result<()> {
        let Some(job) = self.job() else { return Ok(()) };
        let bytes = job.bytes.get();
        if job.copied.get() > job.floor.get() || job.saved.replace(bytes) != bytes {
            record_copied(&self.stack, &job.top, bytes, tx).await?;
        }
        Ok(())
    }

    /// The first part, in the scratch area of every device, if it is to be moved now (syncing
    /// context).
    pub(crate) async fn first_part(&self) -> Option<FirstPart> {
        let job = self.job().filter(|job| job.wants_first.replace(false))?;
        let range = job.reflow.exclude(0, job.first()).await;
        let raidz = job.raidz().filter(|r| is_ready(r))?;
        let (ashift, was_valid) = (job.top.ashift, job.reflow.progress().in_scratch);
        let part = async {
            if was_valid {
                return ScratchPart::read_scratch(&raidz, ashift).await;
            }
            let part = ScratchPart::read_old(&raidz, ashift).await?;
            part.write_scratch(&raidz, ashift).await?;
            job.top.flush().await?;
            Ok(part)
        };
        let part = part.await.ok().filter(|_| is_ready(&raidz));
        job.waiting.set(part.is_none());
        Some(FirstPart { part: part?, job, raidz, was_valid, _range: range })
    }

    /// Starts the task.
    pub(super) fn run(self: &Rc<Self>) {
        let (Some(job), false) = (self.job(), self.closing.get()) else { return };
        let expander = self.clone();
        let task = self.stack.rt.spawn("raidz_expand", async move {
            // An error is that of a pool that has ended; the next import goes on.
            let _ = expander.work(&job).await;
        });
        *self.task.borrow_mut() = Some(task);
    }

    fn is_over(&self) -> bool {
        self.closing.get() || self.stack.txg.ended().is_some()
    }

    /// Waits for a change, or a while.
    async fn rest(&self, time: Nanos) {
        let changed = self.changed.notified();
        if !self.is_over() {
            let _ = self.stack.rt.timeout(time, changed).await;
        }
    }

    fn log(&self, what: &'static str, text: String) {
        self.stack.core.log_internal(what, text, self.stack.txg.open_txg());
    }

    /// The task of an expansion.
    async fn work(self: &Rc<Self>, job: &Rc<Job>) -> Result<()> {
        while job.before.borrow().strong_count() > 0 && !self.is_over() {
            self.rest(Nanos::from_ms(1)).await;
        }
        while !self.is_over() {
            self.follow(job).await;
            if job.failed.get() {
                self.go_back(job).await;
            }
            if !job.is_ready() {
                if !job.waiting.replace(true) {
                    self.log("reflow pause", format!("offset={}", job.floor.get()));
                }
                self.ask_for_resilver(job);
                self.rest(RETRY).await;
                continue;
            }
            job.waiting.set(false);
            let progress = job.reflow.progress();
            if progress.committed >= job.end() && !progress.in_scratch {
                return self.finish(job).await;
            }
            if progress.committed == 0 || progress.in_scratch {
                job.wants_first.set(true);
                self.stack.sync().await?;
                let now = job.reflow.progress();
                if now.committed == 0 || now.in_scratch {
                    self.rest(RETRY).await;
                }
                continue;
            }
            if self.is_resting(job) {
                self.rest(RETRY).await;
                continue;
            }
            let ashift = job.top.ashift;
            let limit = (limit(progress.committed >> ashift, job.old()) << ashift).min(job.end());
            if progress.next >= limit {
                self.stack.sync().await?;
                if job.on_disk.get() <= progress.committed && !job.failed.get() {
                    self.rest(Nanos::from_ms(10)).await;
                }
                continue;
            }
            if self.visit(job, progress.next, limit).await.is_err() {
                job.fail();
                // A device that cannot be read at that place is not copied from again and again.
                self.rest(RETRY).await;
            }
        }
        Ok(())
    }

    /// Devices that are there and miss something, after single failed writes, are resilvered.
    fn ask_for_resilver(&self, job: &Job) {
        let is_open = |c: &VdevKind| matches!(c, VdevKind::Leaf(l) if l.condition.health().is_open());
        let idle = self.scan.status().phys.state != ScanState::Scanning && !self.scan.is_resilver_pending();
        if idle && job.raidz().is_some_and(|r| r.children.iter().all(is_open)) {
            self.scan.request_resilver();
        }
    }

    /// Follows the uberblock on disk: what it says is at the new places is used there from now on.
    async fn follow(&self, job: &Job) {
        let (at, on_disk) = (job.reflow.progress(), job.on_disk.get());
        if on_disk > at.committed && !at.in_scratch {
            let _range = job.reflow.exclude(at.committed, on_disk - at.committed).await;
            let now = job.reflow.progress();
            job.reflow.set(Progress { committed: on_disk, next: now.next.max(on_disk), ..now });
        }
    }

    /// Goes back to the offset that an uberblock may have.
    async fn go_back(&self, job: &Job) {
        let (at, floor) = (job.reflow.progress(), job.floor.get());
        if at.next > floor {
            let _range = job.reflow.exclude(floor, at.next - floor).await;
            let now = job.reflow.progress();
            job.reflow.set(Progress { next: floor.max(now.committed), ..now });
        }
        job.copied.set(floor);
        job.failed.set(false);
    }

    /// Copies what is allocated from `from` to `limit` or the end of the metaslab.
    async fn visit(&self, job: &Job, from: u64, limit: u64) -> Result<()> {
        let (vdev, shift) = (job.top.id, job.top.ms_shift.get());
        let ms = from >> shift;
        let to = limit.min((ms + 1) << shift);
        // One that cannot be loaded gets no new blocks: all of it is copied.
        let disabled = self.stack.alloc.disable(vdev, ms).await;
        let free = disabled.as_ref().map_or(&[][..], Vec::as_slice);
        let mut copies = Copies::default();
        let done = async {
            for run in used(free, from, to) {
                if !self.copy_run(job, run, &mut copies).await? {
                    return Ok(());
                }
            }
            self.settle(job, &mut copies, 0).await?;
            self.advance(job, to, &copies).await;
            Ok(())
        };
        let done: Result<()> = done.await;
        // Ranges stay locked, and the metaslab disabled, as long as a copy is under way.
        let mut rest = self.settle(job, &mut copies, 0).await;
        while !copies.tasks.is_empty() {
            rest = rest.and(self.settle(job, &mut copies, 0).await);
        }
        let done = done.and(rest);
        if disabled.is_ok() {
            self.stack.alloc.enable(vdev, ms);
        }
        done
    }

    /// Moves `next` over free space.
    async fn advance(&self, job: &Job, to: u64, copies: &Copies) {
        let at = job.reflow.progress().next;
        if at < to && !job.failed.get() && !self.is_over() {
            let _range = job.reflow.exclude(at, to - at).await;
            job.reflow.set(Progress { next: to, ..job.reflow.progress() });
            if copies.tasks.is_empty() && !job.failed.get() {
                job.copied.set(to);
            }
        }
    }

    /// Waits, in their order, for copies until `most` bytes are under way at most; the first error
    /// voids all.
    async fn settle(&self, job: &Job, copies: &mut Copies, most: u64) -> Result<()> {
        while copies.bytes > most || copies.tasks.len() >= COPIES {
            let Some((end, bytes, task)) = copies.tasks.pop_front() else { break };
            copies.bytes -= bytes;
            if let Err(e) = task.await {
                job.fail();
                return Err(e);
            }
            if !job.failed.get() {
                job.copied.set(end);
                job.bytes.set(job.bytes.get() + bytes);
            }
        }
        Ok(())
    }

    /// Copies a range; false if it has to stop before its end. Its last copies may be under way.
    async fn copy_run(&self, job: &Job, run: Run, copies: &mut Copies) -> Result<bool> {
        let ashift = job.top.ashift;
        let in_flight = self.tunables.get().max_copy_bytes;
        let most = (COPY_EACH * job.old()).min(in_flight / 2).max(1 << ashift) >> ashift << ashift;
        let mut at = run.start;
        while at < run.end() {
            let end = run.end().min(at + most);
            if self.is_over() || self.is_resting(job) || job.failed.get() {
                return Ok(false);
            }
            self.settle(job, copies, in_flight.saturating_sub(end - at)).await?;
            self.advance(job, at, copies).await;
            let mut range = job.reflow.exclude(at, end - at).await;
            range.hand_over();
            job.reflow.set(Progress { next: end, ..job.reflow.progress() });
            let raidz = job.raidz().filter(|r| is_ready(r)).ok_or_else(not_ready)?;
            let (first, last) = (at >> ashift, end >> ashift);
            let task = self.stack.rt.spawn("copy of an expansion", async move {
                let _range = range;
                reflow::copy(&raidz, ashift, first, last).await?;
                if is_ready(&raidz) { Ok(()) } else { Err(not_ready()) }
            });
            copies.tasks.push_back((end, end - at, task));
            copies.bytes += end - at;
            at = end;
        }
        Ok(true)
    }

    /// Whether the tunable for tests holds the expansion.
    fn is_resting(&self, job: &Job) -> bool {
        let most = self.tunables.get().max_reflow_bytes;
        most != 0 && job.bytes.get() >= most
    }

    /// Everything is moved: ends the expansion.
    async fn finish(self: &Rc<Self>, job: &Rc<Job>) -> Result<()> {
        let done = job.clone();
        self.changes
            .make(move |devices, tx| {
                Box::pin(async move {
                    let (stack, top) = (&devices.stack, &done.top);
                    let now = stack.rt.wall_clock().secs.max(0) as u64;
                    record_copied(stack, top, done.bytes.get(), tx).await?;
                    record_end(stack, top, now, tx).await?;
                    // Blocks of the txgs that are open or being synced have the old width.
                    let open = if planted!(ExpandedEarly) { 0 } else { TXG_CONCURRENT };
                    let first = Txg(tx.txg().0 + open);
                    top.set_shape(end_expansion(&top.shape(), first)?);
                    let kind = top.kind();
                    let asize = asize_now(&kind).filter(|n| *n > top.asize.get());
                    if let Some(asize) = asize.filter(|n| n >> top.ms_shift.get() <= METASLABS_MAX) {
                        let more = (asize >> top.ms_shift.get()).saturating_sub(top.ms_count());
                        top.asize.set(asize);
                        top.update_config(|c| c.expansion_time = Some(now));
                        stack.alloc.grow_top(top.id, vec![MsSummary::default(); more as usize])?;
                    }
                    devices.expander.job.borrow_mut().take();
                    let text = format!("{} vdev {} new width {}", devices.config.name(), top.id, kind.children().len());
                    stack.core.log_internal("raidz vdev expansion completed", text, tx.txg());
                    devices.config.mark_dirty();
                    Ok(Ok(()))
                })
            })
            .await?;
        self.events.post("raidz_expand_finish");
        self.changed.notify_all();
        if self.tunables.get().scrub_after && !self.is_over() {
            // While another scan runs there is none.
            let _ = self.scan.start_scrub().await;
        }
        Ok(())
    }
}

fn not_ready() -> Error {
    Error::new(base::ErrorKind::Io, "a device of the raidz is not healthy")
}

/// What is not free from `from` to `to`, small free ranges included; `free` is in order.
fn used(free: &[Run], from: u64, to: u64) -> Vec<Run> {
    let mut out: Vec<Run> = Vec::new();
    let mut at = from;
    let large = free.iter().filter(|f| f.size > GAP && f.end() > from && f.start < to);
    for f in large.copied().chain([Run { start: to, size: 0 }]) {
        if at < f.start {
            out.push(Run { start: at, size: f.start.min(to) - at });
        }
        at = f.end().max(at);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_used_is_what_is_not_free() {
        const K: u64 = 1 << 10;
        let run = |start: u64, end: u64| Run { start: start * K, size: (end - start) * K };
        let free = [run(10, 20), run(100, 200), run(300, 310), run(400, 900)];
        let of = |from: u64, to: u64| used(&free, from * K, to * K);
        assert_eq!(of(0, 1000), [run(0, 100), run(200, 400), run(900, 1000)]);
        assert_eq!(of(150, 350), [run(200, 350)]);
        assert_eq!(of(110, 190), []);
        assert_eq!(of(50, 500), [run(50, 100), run(200, 400)]);
        assert_eq!(used(&[], 0, 5), [Run { start: 0, size: 5 }]);
    }
}
