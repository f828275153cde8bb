//! The removal of a top-level vdev with data: what is on it is copied to others, txg by txg (format
//! page 23 sections 1 to 5).
//!
//! Words. The vdev is *evacuated*. A *chunk* is a range of it that gets one place elsewhere; an
//! *entry* of the *mapping* says where. The *births* say in which txg the entries up to an offset
//! were made. Everything in use below *max_offset* has an entry. *Live* is what is in use and was
//! freed in no txg.
//!
//! The normal path ([`Evacuator`]):
//!
//! 1. A command checks ([`begin`]), stops allocation on the vdev and waits until nothing of before
//!    is under way. One txg makes an empty mapping and the record of the removal.
//! 2. The task takes a metaslab at a time. It joins the open txg, gives the next chunk of what is
//!    live there ([`plan`]) a place in that txg, and starts its copy; many copies run at a time.
//! 3. The sync of the txg waits for its copies, so that its flush makes them durable, and appends
//!    its entries ([`Evacuator::save`]). The gaps within the chunks are freed at once.
//! 4. At the end a txg turns the vdev into an indirect one ([`end`]). Until then all reads, scrubs
//!    and repairs use the old place: what is there is never older than the copy, since nothing new
//!    is written to a vdev without allocation.
//!
//! A free on the vdev goes to its own space map as always, and in parts ([`ledger`]): below
//! max_offset the copy is freed as well; in a chunk of a txg that is not synced yet it is
//! remembered until that is; beyond, it is not copied any more.
//!
//! Invariants: an entry is on disk only with the whole copy, on every device of the destination
//! but those whose dirty time log says that they miss everything ([`Job::note_missed`]); everything
//! live below max_offset has one place elsewhere, once, and what was freed has none; at the end the
//! bytes copied or freed are those that were to be copied.
//!
//! An error cancels the removal (`zfs_removal_ignore_errors`: it goes on, and the damage stays):
//! the chunks of the txg and of later ones get no entries, and [`end`] frees all copies. An export
//! stops the task after the copies that are under way; the import goes on at max_offset.

mod begin;
mod end;
mod ledger;
mod mapping;
mod plan;

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use base::{Error, ErrorKind, Nanos, Result, ResultExt, Txg, VdevId};
use dmu::{Tx, zap};
use metaslab::{ClassKind, Run};
use ondisk::blkptr::Dva;
use ondisk::indirect::{MappingEntry, REMOVING_KEY, RemovalState, Removing};
use ondisk::zap::ZapValue;
use rt::JoinHandle;
use rt::sync::Notify;
use vdev::evacuate::{Moved, copy};
use vdev::{IndirectMap, Top, VdevKind};
use zio::{Copied, Evacuation};

use super::changes::Changes;
use crate::notices::Notices;
use crate::stack::Stack;
use ledger::Ledger;
use mapping::{MappingObjects, Placed};

pub use begin::RemovalEstimate;

/// So many bytes of copies make a txg sync: what it remembers of frees stays small.
const TXG_BYTES: u64 = 1 << 30;
/// How the notice of a removal that failed begins; the next removal ends it.
const NOTICE: &str = "the removal of ";
/// How long the task waits before it looks again at what holds it.
const RETRY: Nanos = Nanos::from_secs(1);

/// Tunables of removals, with OpenZFS's names.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RemovalTunables {
    /// `zfs_removal_ignore_errors`: copies that fail do not cancel a removal.
    pub ignore_errors: bool,
    /// `zfs_removal_suspend_progress`: nothing is copied.
    pub suspend: bool,
    /// `zfs_remove_max_segment`: bytes of a chunk at most.
    pub max_segment: u64,
    /// `vdev_removal_max_span`: bytes of a gap within a chunk at most.
    pub max_span: u64,
    /// Bytes of all copies under way at most (`zfs_remove_max_copy_bytes`, a constant of OpenZFS).
    pub max_copy_bytes: u64,
}

impl Default for RemovalTunables {
    fn default() -> RemovalTunables {
        RemovalTunables {
            ignore_errors: false,
            suspend: false,
            max_segment: 16 << 20,
            max_span: 32 << 10,
            max_copy_bytes: 64 << 20,
        }
    }
}

/// A chunk, and its copy.
type Flight = (Placed, JoinHandle<Result<()>>);

/// A removal that is under way.
pub(crate) struct Job {
    top: Rc<Top>,
    class: ClassKind,
    objects: MappingObjects,
    ledger: RefCell<Ledger>,
    /// The chunks of txgs that are not synced yet.
    flights: RefCell<BTreeMap<Txg, Vec<Flight>>>,
    /// The bytes that a chunk may have in a txg.
    limit: Cell<(Txg, u64)>,
    /// Why it is to be cancelled.
    failed: RefCell<Option<Error>>,
    /// A command cancels it.
    stopping: Cell<bool>,
    /// Bytes of copies under way.
    copying: Cell<u64>,
    /// The vdevs that got copies since the import.
    destinations: RefCell<BTreeSet<VdevId>>,
}

impl Job {
    fn new(stack: &Stack, top: &Rc<Top>, objects: MappingObjects) -> Rc<Job> {
        let spaces = stack.alloc.top_spaces();
        let class = spaces.iter().find(|s| s.vdev == top.id).map_or(ClassKind::Normal, |s| s.class);
        Rc::new(Job {
            ledger: RefCell::new(Ledger::new(objects.max_offset(), top.ashift)),
            top: top.clone(),
            class,
            objects,
            flights: RefCell::default(),
            limit: Cell::default(),
            failed: RefCell::default(),
            stopping: Cell::new(false),
            copying: Cell::new(0),
            destinations: RefCell::default(),
        })
    }

    fn fail(&self, error: Error) {
        self.failed.borrow_mut().get_or_insert(error);
    }

    /// Leaves of the destinations that may lack copies miss blocks of every birth: those that were
    /// away when copies were made (their copy noted that), or in a txg whose flush made some
    /// durable. `now` is the txg that is being synced. A resilver does not complete them before the
    /// vdev is an indirect one, since it reads and repairs at the old places.
    fn note_missed(&self, stack: &Stack, now: Txg) {
        for top in stack.tree.tops.borrow().iter().filter(|top| top.id != self.top.id && top.is_concrete()) {
            for (_, condition) in top.kind().conditions() {
                let away = !condition.health().is_open() || condition.has_failed_write();
                let missed = match away && self.destinations.borrow().contains(&top.id) {
                    true => Some(now),
                    false => self.objects.last_birth_in(&condition.missing()).filter(|_| !condition.misses_copies()),
                };
                if let Some(txg) = missed {
                    condition.miss_copies(txg);
                }
            }
        }
    }

    /// The error of a device of the vdev that is in use and did not take a write: the copies are
    /// not read from it any more, so they would not tell.
    fn check_source(&self) -> Result<()> {
        let leaves = self.top.leaves();
        let failing = leaves.iter().find(|l| l.condition.health().is_open() && l.condition.has_failed_write());
        match failing {
            Some(leaf) => Err(Error::new(ErrorKind::Io, format!("{}: writing to it failed", leaf.path()))),
            None => Ok(()),
        }
    }

    fn is_failed(&self) -> bool {
        self.failed.borrow().is_some()
    }
}

impl Evacuation for Job {
    fn vdev(&self) -> VdevId {
        self.top.id
    }

    fn freed(&self, run: Run, txg: Txg) -> Result<Vec<Copied>> {
        let mapped = self.ledger.borrow_mut().freed(run, self.objects.max_offset(), txg)?;
        mapped.map_or_else(|| Ok(Vec::new()), |r| self.objects.copies(r.start, r.size, txg))
    }
}

/// The objects that a removal uses.
pub(super) struct Around<'a> {
    pub stack: &'a Rc<Stack>,
    pub changes: &'a Rc<Changes>,
    pub notices: &'a Rc<Notices>,
    pub tunables: RemovalTunables,
    pub found: FoundRemoval,
}

/// What an import found of removals.
#[derive(Default)]
pub(crate) struct FoundRemoval {
    record: Option<Removing>,
    job: Option<Rc<Job>>,
}

impl FoundRemoval {
    /// Reads the record, and of a removal that is under way the mapping. Frees must know it from
    /// the first one on.
    pub(crate) async fn load(stack: &Stack) -> Result<FoundRemoval> {
        let Some(value) = zap::lookup(&stack.directory, REMOVING_KEY).await? else {
            return Ok(FoundRemoval::default());
        };
        let words =
            value.as_u64s().ok_or_else(|| Error::corrupt("the record of the removal of a device is malformed"))?;
        let record = Removing::parse(&words)?;
        if record.state != RemovalState::Active {
            return Ok(FoundRemoval { record: Some(record), job: None });
        }
        let top = stack.tree.top(record.vdev)?;
        if !top.is_concrete() || !top.config_ref().removing {
            return Err(Error::corrupt(format!("vdev {} is being removed, and does not know it", record.vdev)));
        }
        let objects = MappingObjects::open(stack, &top).await.at(|| format!("vdev {}", top.id))?;
        let job = Job::new(stack, &top, objects);
        if !stack.readonly {
            job.note_missed(stack, Txg(0));
            stack.zio().set_evacuation(Some(job.clone()));
        }
        Ok(FoundRemoval { record: Some(record), job: Some(job) })
    }
}

/// A removal, for `zpool status`.
#[derive(Clone, Debug)]
pub struct RemovalStatus {
    /// The record of it.
    pub record: Removing,
    /// Entries of all mappings.
    pub entries: u64,
}

/// The removal of a vdev of a pool; there is one at a time.
pub struct Evacuator {
    stack: Rc<Stack>,
    changes: Rc<Changes>,
    notices: Rc<Notices>,
    tunables: Cell<RemovalTunables>,
    record: Cell<Option<Removing>>,
    job: RefCell<Option<Rc<Job>>>,
    closing: Cell<bool>,
    task: RefCell<Option<JoinHandle<()>>>,
    changed: Rc<Notify>,
}

impl Evacuator {
    pub(super) fn new(around: Around<'_>) -> Rc<Evacuator> {
        Rc::new(Evacuator {
            stack: around.stack.clone(),
            changes: around.changes.clone(),
            notices: around.notices.clone(),
            tunables: Cell::new(around.tunables),
            record: Cell::new(around.found.record),
            job: RefCell::new(around.found.job),
            closing: Cell::new(false),
            task: RefCell::default(),
            changed: Rc::default(),
        })
    }

    fn job(&self) -> Option<Rc<Job>> {
        self.job.borrow().clone()
    }

    /// Whether a vdev is being removed.
    pub fn is_busy(&self) -> bool {
        self.job.borrow().is_some()
    }

    /// The vdev that is being removed.
    pub fn vdev(&self) -> Option<VdevId> {
        self.job.borrow().as_ref().map(|job| job.top.id)
    }

    /// Bytes that have still to be copied.
    pub fn left(&self) -> Option<u64> {
        let record = self.record.get().filter(|_| self.is_busy() && !self.stack.readonly)?;
        Some(record.to_copy.saturating_sub(record.copied))
    }

    /// The removal that is under way, or the last one.
    pub fn status(&self) -> Option<RemovalStatus> {
        let record = self.record.get().filter(|r| r.state != RemovalState::None)?;
        let tops = self.stack.tree.tops.borrow();
        let entries = tops.iter().filter_map(|top| match top.kind() {
            VdevKind::Indirect(indirect) => indirect.map().map(|map| map.entries().len() as u64),
            _ => None,
        });
        let own = self.job().map_or(0, |job| job.objects.entries().entries().len() as u64);
        let entries = entries.sum::<u64>() + own;
        Some(RemovalStatus { record, entries })
    }

    /// Waits until no vdev is being removed (`zpool wait -t remove`), or the pool is closed.
    pub async fn wait(&self) -> Result<()> {
        while self.is_busy() && !self.stack.readonly {
            if let Some(e) = self.stack.txg.ended() {
                return Err(e);
            }
            self.rest(RETRY).await;
        }
        Ok(())
    }

    /// An error if a vdev is being removed: its devices cannot be changed.
    pub(crate) fn check_none(&self) -> Result<()> {
        match self.is_busy() {
            true => Err(Error::new(
                ErrorKind::Busy,
                "a device of the pool is being removed: 'zpool wait -t remove' waits for the end of it",
            )),
            false => Ok(()),
        }
    }

    /// Changes the tunables.
    pub(crate) fn set_tunables(&self, t: RemovalTunables) {
        if self.tunables.replace(t) != t {
            self.changed.notify_all();
        }
    }

    /// Goes on with the removal of an imported pool.
    pub(crate) fn resume(self: &Rc<Self>) {
        self.run();
    }

    /// Lets the task end after the copies that are under way.
    pub(crate) fn close(&self) {
        self.closing.set(true);
        self.changed.notify_all();
    }

    /// Ends the task; the removal goes on after the next import.
    pub(crate) async fn stop(&self) {
        self.close();
        self.ended().await;
    }

    /// Waits until the task has ended.
    async fn ended(&self) {
        let task = self.task.borrow_mut().take();
        if let Some(task) = task {
            task.await;
        }
    }

    /// Starts the task.
    fn run(self: &Rc<Self>) {
        let (Some(job), false) = (self.job(), self.closing.get() || self.stack.readonly) else { return };
        let evacuator = self.clone();
        let task = self.stack.rt.spawn("vdev_remove", async move {
            // An error is that of a pool that has ended; the next import goes on.
            let _ = evacuator.work(&job).await;
            evacuator.changed.notify_all();
        });
        *self.task.borrow_mut() = Some(task);
    }

    fn is_over(&self, job: &Job) -> bool {
        self.closing.get() || job.stopping.get() || self.stack.txg.ended().is_some()
    }

    /// Waits for a change, or a while.
    async fn rest(&self, time: Nanos) {
        let changed = self.changed.notified();
        let _ = self.stack.rt.timeout(time, changed).await;
    }

    /// The task of a removal.
    async fn work(self: &Rc<Self>, job: &Rc<Job>) -> Result<()> {
        let done = match self.copy_all(job).await {
            Ok(true) => self.finish(job).await,
            Ok(false) => return Ok(()),
            Err(e) => Err(e),
        };
        let Err(e) = done else { return Ok(()) };
        if self.is_over(job) {
            return Ok(());
        }
        job.fail(e);
        self.call_off(job).await
    }

    /// Copies everything that is live; false if it was stopped.
    async fn copy_all(self: &Rc<Self>, job: &Rc<Job>) -> Result<bool> {
        let (top, alloc) = (&job.top, &self.stack.alloc);
        let mut ms = job.ledger.borrow().next() >> top.ms_shift.get();
        while ms < top.ms_count() {
            let live = alloc.live(top.id, ms).await?;
            let (start, size) = top.ms_range(ms);
            // No await in between: a free finds the ranges here or in the allocator.
            job.ledger.borrow_mut().visit(Run { start, size }, &live, top.ashift)?;
            loop {
                if self.is_over(job) {
                    return Ok(false);
                }
                if let Some(e) = job.failed.borrow().clone() {
                    return Err(e);
                }
                let t = self.tunables.get();
                if t.suspend || job.copying.get() >= t.max_copy_bytes {
                    self.rest(RETRY).await;
                    continue;
                }
                if !self.copy_chunk(job).await? {
                    break;
                }
                self.stack.rt.yield_now().await;
            }
            ms += 1;
        }
        self.stack.sync().await?;
        match job.failed.borrow().clone() {
            Some(e) => Err(e),
            None => Ok(!self.is_over(job)),
        }
    }

    /// Gives the next chunk of the metaslab a place, and starts its copy; false at the end of the
    /// metaslab.
    async fn copy_chunk(self: &Rc<Self>, job: &Rc<Job>) -> Result<bool> {
        let (top, alloc, t) = (&job.top, &self.stack.alloc, self.tunables.get());
        let unit = 1u64 << top.ashift;
        let hold = self.stack.txg.hold_open().await;
        let txg = hold.txg;
        if job.limit.get().0 != txg {
            let most = t.max_segment.clamp(unit, base::MAX_BLOCK).next_multiple_of(unit);
            job.limit.set((txg, most));
        }
        loop {
            let most = job.limit.get().1;
            let next = || job.ledger.borrow().chunk(most, t.max_span);
            let Some(chunk) = next() else { return Ok(false) };
            let dst = match alloc.alloc(job.class, chunk.len, txg, &[]).await {
                Ok(dst) => dst,
                Err(e) if e.kind() == ErrorKind::NoSpace && chunk.len > unit => {
                    // The pool is too fragmented for a chunk like that, for the rest of the txg.
                    job.limit.set((txg, (chunk.len / 2).next_multiple_of(unit).min(chunk.len - unit)));
                    continue;
                }
                Err(e) => return Err(e),
            };
            if dst.asize() != chunk.len {
                alloc.unalloc(dst, txg)?;
                return Err(Error::unsupported(format!("{} bytes take {} elsewhere", chunk.len, dst.asize())));
            }
            if next().as_ref() != Some(&chunk) {
                // Something of it was freed meanwhile.
                alloc.unalloc(dst, txg)?;
                continue;
            }
            self.launch(job, Placed { entry: MappingEntry { src: chunk.start, dst }, chunk }, txg)?;
            return Ok(true);
        }
    }

    /// Starts the copy of a chunk.
    fn launch(self: &Rc<Self>, job: &Rc<Job>, placed: Placed, txg: Txg) -> Result<()> {
        let (chunk, dst) = (&placed.chunk, placed.entry.dst);
        let destination = self.stack.tree.top(dst.vdev())?;
        job.ledger.borrow_mut().take(chunk, txg)?;
        job.destinations.borrow_mut().insert(destination.id);
        let used = chunk.used();
        job.copying.set(job.copying.get() + used);
        let to = |r: Run| Moved { from: r.start, to: dst.offset() + (r.start - chunk.start), len: r.size };
        let ranges: Vec<Moved> = chunk.ranges().into_iter().map(to).collect();
        let (own, source, changed) = (job.clone(), job.top.clone(), self.changed.clone());
        let task = self.stack.rt.spawn("copy of a removal", async move {
            let result = copy(&source, &destination, &ranges, txg).await;
            own.copying.set(own.copying.get() - used);
            changed.notify_all();
            result
        });
        job.flights.borrow_mut().entry(txg).or_default().push((placed, task));
        if job.ledger.borrow().done_with(txg) >= TXG_BYTES {
            self.stack.txg.kick();
        }
        Ok(())
    }

    /// The first part of the sync of a txg: its copies end, and get entries.
    pub(crate) async fn save(&self, tx: &Tx) -> Result<()> {
        let Some(job) = self.job() else { return Ok(()) };
        job.note_missed(&self.stack, tx.txg());
        if let Err(e) = job.check_source()
            && !self.tunables.get().ignore_errors
        {
            job.fail(e);
        }
        let flight = job.flights.borrow_mut().remove(&tx.txg());
        if let Some(flight) = flight {
            let mut all = Vec::with_capacity(flight.len());
            for (placed, task) in flight {
                if planted!(CopyNotAwaited) {
                    all.push(placed);
                    continue;
                }
                if let Err(e) = task.await
                    && !self.tunables.get().ignore_errors
                {
                    job.fail(e.at(format!("copying {} bytes at {}", placed.chunk.len, placed.chunk.start)));
                }
                all.push(placed);
            }
            let frees = job.ledger.borrow_mut().close_window(tx.txg());
            self.append(&job, &all, &frees, tx).await.at(|| format!("mapping of vdev {}", job.top.id))?;
        }
        self.save_counts(tx).await
    }

    /// Appends the entries of chunks that are copied, and frees what of them is not needed: after a
    /// failure all of them.
    async fn append(&self, job: &Job, all: &[Placed], frees: &[Run], tx: &Tx) -> Result<()> {
        let txg = tx.txg();
        if job.is_failed() {
            return all.iter().try_for_each(|p| self.stack.alloc.free(p.entry.dst, txg, txg));
        }
        job.objects.append(all, tx).await?;
        for Placed { chunk, entry } in all {
            for gap in &chunk.gaps {
                let at = entry.dst.offset() + (gap.start - chunk.start);
                self.stack.alloc.free(Dva::new(entry.dst.vdev(), at, gap.size, false), txg, txg)?;
            }
        }
        if planted!(MappingNotFreed) {
            return Ok(());
        }
        for run in frees {
            let copies = job.objects.copies(run.start, run.size, txg)?;
            self.stack.zio().free_copied(job.top.id, &copies, txg)?;
        }
        Ok(())
    }

    /// Records what counts as copied by now, in each pass of a txg.
    pub(crate) async fn save_counts(&self, tx: &Tx) -> Result<()> {
        let (Some(job), Some(record)) = (self.job(), self.record.get()) else { return Ok(()) };
        let bytes = job.ledger.borrow_mut().take_done(tx.txg());
        if bytes == 0 {
            return Ok(());
        }
        self.write_record(Removing { copied: record.copied.saturating_add(bytes), ..record }, tx).await
    }

    async fn write_record(&self, record: Removing, tx: &Tx) -> Result<()> {
        self.record.set(Some(record));
        zap::update(&self.stack.directory, REMOVING_KEY, &ZapValue::from_u64s(&record.to_words()), tx).await
    }
}

/// The name of a top-level vdev in listings.
fn top_name(top: &Top) -> String {
    let config = top.config_ref();
    match &config.path {
        Some(path) if !config.kind.is_interior() => path.clone(),
        _ => format!("{}-{}", config.kind, top.id),
    }
}
