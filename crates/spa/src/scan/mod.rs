//! Scrub and resilver: every copy of every block is read from every device that has a part of it,
//! verified against its checksum, and repaired.
//!
//! Vocabulary. A *scan* is one of the two; a resilver reads only blocks that a device misses by its
//! dirty time log. It *traverses* the trees of the MOS and of all datasets from parents to
//! children, snapshots before their descendants, so that each block is *visited* once, with the
//! oldest dataset that has it. A visit queues the block, per top-level vdev and by offset; then the
//! scan *issues* the queued blocks in that order, which makes long sequential reads of blocks
//! written in any order. Traversing until memory is full and issuing until the queues are empty is
//! a *round*.
//!
//! The normal path. [`Scan::start_scrub`] or [`Scan::request_resilver`] ([`resilver`]) begins a
//! scan in syncing context ([`Scan::begin`]). From then on each txg traverses for a fraction of a
//! second ([`walk`]), until memory is full or everything was visited. Then tasks beside the txgs
//! issue the blocks ([`work`]). When the queues are empty the next txg writes the progress, and the
//! next round begins; after the last one [`Scan::end`] writes the result, removes the resilvered
//! txgs from the dirty time logs, and replaces the list of damaged blocks.
//!
//! Invariants:
//! * every block before the bookmark on disk has been issued. The next import, also by OpenZFS,
//!   resumes there;
//! * traversal happens in syncing context, after the datasets of the txg were written and before
//!   the MOS is: no block is freed meanwhile and visited later. A block that is freed after its
//!   visit is removed from the queues, or, if its read is under way, is not repaired any more,
//!   before its space can be reused;
//! * with a head the blocks of a claimed intent log that was not replayed are issued, as OpenZFS
//!   does ([`walk`]); an invalid end of the log is no damage;
//! * blocks that only a checkpoint refers to are not visited, as in OpenZFS: the trees are those of
//!   the newest state;
//! * blocks born in or after the txg in which the scan began are left out: they were verified when
//!   they were written, and later passes rewrite them in place;
//! * trees that are being freed are not traversed, so a scan does not end before they are gone
//!   (OpenZFS does not traverse at all meanwhile);
//! * a dedup'd or cloned block that gets a new reference is visited then, for the old one may
//!   be freed before its visit. This is lost while a scrub is paused and the pool exported;
//! * datasets that are destroyed or snapshotted during a scan pass their place in the traversal on
//!   ([`dsl::core::DatasetWatch`]), as OpenZFS does.

mod damage;
mod end;
mod errlog;
mod errors;
mod range;
mod resilver;
mod walk;
mod work;

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use base::{Error, ErrorKind, Nanos, ObjectId, Result, Txg};
use dmu::{Objset, Tx, zap};
use dsl::DslPool;
use dsl::core::DatasetWatch;
use ondisk::blkptr::Blkptr;
use ondisk::bpobj::Bookmark;
use ondisk::feature::FeatureId;
use ondisk::object_type::ObjectType;
use ondisk::scan::{ErrorScrubPhys, NO_OBJSET, PAUSED, ScanFunc, ScanPhys, ScanState, VISIT_AGAIN};
use ondisk::zap::ZapValue;
use rt::sync::Notify;
use rt::{JoinHandle, LocalBoxFuture, Rt};

use crate::commit::brt::Brt;
use crate::commit::config::Config;
use crate::commit::ddt::Ddt;
use crate::stack::Stack;
use crate::zevent::Events;
use damage::{HeadChange, Place};
use errlog::Damage;
use errors::ErrorScrub;
pub use range::ScrubRange;
use work::Work;

/// Entry of the MOS directory: the record.
const RECORD: &[u8] = b"scan";
/// Memory for queued blocks: this share of the cache's limit within these bounds, in bytes.
const MEMORY_MIN: u64 = 1 << 20;
const MEMORY_MAX: u64 = 64 << 20;

/// Txgs that a device may miss before they are synced: those that were open when it failed.
const FUTURE: u64 = 8;

/// The phase of a scan.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    /// No scan runs.
    Idle,
    /// A round of an error scrub is being planned.
    Plan,
    /// The next txg traverses.
    Traverse,
    /// The queued blocks are issued.
    Issue,
    /// All were issued: the next txg writes the progress.
    Drained,
}

/// The progress of a scan: its record and the queued datasets, each with the txg after which its
/// blocks are its own.
#[derive(Clone, Default)]
struct Progress {
    phys: ScanPhys,
    queue: BTreeMap<u64, u64>,
}

impl Progress {
    fn destroyed(&mut self, object: u64, next: Option<u64>) {
        if self.phys.bookmark.objset == object && self.phys.state == ScanState::Scanning {
            match next {
                Some(next) => {
                    self.phys.bookmark.objset = next;
                    self.phys.flags |= VISIT_AGAIN;
                }
                None => self.phys.bookmark = Bookmark { objset: NO_OBJSET, ..Bookmark::default() },
            }
        }
        if let Some(min) = self.queue.remove(&object)
            && let Some(next) = next
        {
            self.queue.insert(next, min);
        }
    }

    fn snapshotted(&mut self, head: u64, snapshot: u64) {
        if self.phys.bookmark.objset == head && self.phys.state == ScanState::Scanning {
            self.phys.bookmark.objset = snapshot;
        }
        if let Some(min) = self.queue.remove(&head) {
            self.queue.insert(snapshot, min);
        }
    }
}

/// Figures since the pool was imported or the scan began, for estimates.
#[derive(Clone, Copy, Default, Debug)]
struct Pass {
    /// Seconds since 1970.
    start: u64,
    /// When it was paused; 0: it is not.
    paused_at: u64,
    /// Seconds of pause.
    paused: u64,
    /// Allocated bytes visited.
    examined: u64,
    /// Allocated bytes issued.
    issued: u64,
    /// Allocated bytes visited in earlier passes.
    before: u64,
}

/// The status of a scan.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct ScanStatus {
    /// The record: function, progress, times, errors. `processed` is in bytes rewritten.
    pub phys: ScanPhys,
    /// It began after the pool was imported.
    pub since_import: bool,
    /// Allocated bytes issued, in all passes.
    pub issued: u64,
    /// Start of this pass (since the import or the beginning of the scan), in seconds since 1970.
    pub pass_start: u64,
    /// When the scrub was paused, in seconds since 1970; 0 if it is not.
    pub paused_at: u64,
    /// Seconds of pause in this pass.
    pub pass_paused: u64,
    /// Allocated bytes visited in this pass.
    pub pass_examined: u64,
    /// Allocated bytes issued in this pass.
    pub pass_issued: u64,
    /// The last or running scrub of what is in the error log.
    pub errors: ErrorScrubPhys,
    /// When that was paused, in seconds since 1970; 0 if it is not, or not since the import.
    pub errors_paused_at: u64,
}

/// Tunables of scrub and resilver, with OpenZFS's names.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ScanTunables {
    /// `zfs_scan_vdev_limit`: bytes in flight for each device (OpenZFS 2.1: 4 MiB; here 8 MiB,
    /// which keeps a fast device busy).
    pub vdev_limit: u64,
    /// `zfs_scan_mem_lim_fact`: queued blocks may take one part in so many of the cache's limit (of
    /// memory in OpenZFS, where it is 20). With the default, 16, at most 64 MiB.
    pub mem_lim_fact: u64,
    /// `zfs_scrub_min_time_ms`: how long a txg traverses at most while a scrub runs (OpenZFS: at
    /// least, 1 s, during which no fsync ends).
    pub scrub_min_time: Nanos,
    /// `zfs_resilver_min_time_ms`: the same for a resilver (OpenZFS: 3 s).
    pub resilver_min_time: Nanos,
    /// `zfs_scan_suspend_progress`: scans make no progress until it is off again.
    pub suspend_progress: bool,
    /// `zfs_resilver_disable_defer`: no device waits for the end of a running resilver, which
    /// begins again.
    pub defer_off: bool,
    /// `zfs_scan_legacy`: what the traversal in one txg finds is looked at before the next one
    /// begins, instead of when memory is full: less is sorted, and less memory is needed.
    pub legacy: bool,
}

impl Default for ScanTunables {
    fn default() -> ScanTunables {
        ScanTunables {
            vdev_limit: 8 << 20,
            mem_lim_fact: 16,
            scrub_min_time: Nanos::from_ms(200),
            resilver_min_time: Nanos::from_ms(200),
            suspend_progress: false,
            defer_off: false,
            legacy: false,
        }
    }
}

impl ScanTunables {
    /// Bytes of memory for queued blocks, with a cache of at most `arc_max`.
    fn memory(&self, arc_max: u64) -> u64 {
        let is_default = self.mem_lim_fact == ScanTunables::default().mem_lim_fact;
        let most = if is_default { MEMORY_MAX } else { u64::MAX };
        (arc_max / self.mem_lim_fact.max(1)).clamp(MEMORY_MIN, most)
    }
}

/// The scan of a pool: scrub and resilver.
pub struct Scan {
    stack: Rc<Stack>,
    config: Rc<Config>,
    events: Rc<Events>,
    now: RefCell<Progress>,
    /// The progress on disk, or on disk after this txg.
    on_disk: RefCell<Progress>,
    on_disk_dirty: Cell<bool>,
    /// The queue of datasets in its ZAP.
    stored: RefCell<BTreeMap<u64, u64>>,
    phase: Cell<Phase>,
    /// The traversal is complete.
    traversed_all: Cell<bool>,
    resilver_wanted: Cell<bool>,
    /// It begins in place of a running one.
    resilver_now: Cell<bool>,
    /// A resilver is being begun or ended.
    resilver_switching: Cell<bool>,
    /// A sequential rebuild is under way: no scan begins.
    rebuilding: Cell<bool>,
    /// The scan began after the import: its failed repairs are known.
    since_import: Cell<bool>,
    pass: Cell<Pass>,
    /// Damaged blocks found by this scan with their births, and the unwritten ones.
    damaged: RefCell<BTreeMap<Place, Txg>>,
    damaged_new: RefCell<Vec<Damage>>,
    /// The form of the error log on disk: with `head_errlog` it has heads.
    log_has_heads: Cell<bool>,
    /// What happened to heads in this txg.
    head_changes: RefCell<Vec<HeadChange>>,
    work: Work,
    errors: ErrorScrub,
    /// Whether damaged copies are rewritten.
    repairs: Cell<bool>,
    /// Counts scans, so that tasks of one that was stopped do not touch the next.
    generation: Cell<u64>,
    /// No work starts: the pool is not open yet, or is being closed.
    closed: Cell<bool>,
    task: RefCell<Option<JoinHandle<()>>>,
    changed: Notify,
    /// Blocks born before it were read by some scrub.
    last_scrubbed: Cell<Txg>,
    memory_max: Cell<u64>,
    tunables: Cell<ScanTunables>,
}

fn secs(rt: &Rt) -> u64 {
    rt.wall_clock().secs.max(0) as u64
}

async fn read_queue(mos: &Objset, object: ObjectId) -> Result<BTreeMap<u64, u64>> {
    let mut queue = BTreeMap::new();
    for entry in zap::list(&mos.hold(object).await?).await? {
        if let (Some(ds), Some(min)) = (zap::parse_int_key(&entry.name), entry.value.as_u64()) {
            queue.insert(ds, min);
        }
    }
    Ok(queue)
}

impl Scan {
    /// Reads the state of an earlier import.
    pub(crate) async fn load(
        stack: &Rc<Stack>,
        config: &Rc<Config>,
        events: &Rc<Events>,
        tunables: ScanTunables,
    ) -> Result<Rc<Scan>> {
        let words = zap::lookup(&stack.directory, RECORD).await?.and_then(|v| v.as_u64s()).unwrap_or_default();
        let mut progress = Progress { phys: ScanPhys::from_words(&words), ..Progress::default() };
        if progress.phys.func == ScanFunc::None {
            progress.phys.state = ScanState::None;
        }
        let running = progress.phys.state == ScanState::Scanning;
        if running && progress.phys.queue_obj.0 != 0 {
            match read_queue(&stack.mos, progress.phys.queue_obj).await {
                Ok(queue) => progress.queue = queue,
                // The progress is lost.
                Err(_) => progress.phys.state = ScanState::Canceled,
            }
        }
        let running = progress.phys.state == ScanState::Scanning;
        let now = secs(&stack.rt);
        let pass = Pass {
            start: now,
            paused_at: if progress.phys.is_paused() { now } else { 0 },
            before: progress.phys.examined,
            ..Pass::default()
        };
        Ok(Rc::new(Scan {
            stack: stack.clone(),
            config: config.clone(),
            events: events.clone(),
            stored: RefCell::new(progress.queue.clone()),
            now: RefCell::new(progress.clone()),
            on_disk: RefCell::new(progress),
            on_disk_dirty: Cell::new(false),
            phase: Cell::new(if running { Phase::Traverse } else { Phase::Idle }),
            traversed_all: Cell::new(false),
            resilver_wanted: Cell::new(false),
            resilver_now: Cell::new(false),
            resilver_switching: Cell::new(false),
            rebuilding: Cell::new(false),
            since_import: Cell::new(false),
            pass: Cell::new(pass),
            damaged: RefCell::default(),
            damaged_new: RefCell::default(),
            log_has_heads: Cell::new(stack.features.is_enabled(FeatureId::HeadErrlog)),
            head_changes: RefCell::default(),
            work: Work::default(),
            errors: ErrorScrub::load(&stack.directory, now).await?,
            repairs: Cell::new(true),
            generation: Cell::new(0),
            closed: Cell::new(true),
            task: RefCell::default(),
            changed: Notify::new(),
            last_scrubbed: Cell::new(range::stored(&stack.directory).await?),
            memory_max: Cell::new(tunables.memory(stack.arc.limit())),
            tunables: Cell::new(tunables),
        }))
    }

    fn is_scanning(&self) -> bool {
        self.now.borrow().phys.state == ScanState::Scanning
    }
    fn is_paused(&self) -> bool {
        self.now.borrow().phys.is_paused()
    }
    /// Whether the blocks of the error log alone are scrubbed.
    fn checks_errors(&self) -> bool {
        self.errors.is_running() && !self.is_scanning()
    }
    /// Whether it is paused, or suspended by the tunable.
    fn is_held(&self) -> bool {
        self.is_paused() || self.checks_errors() && self.errors.is_paused() || self.tunables.get().suspend_progress
    }
    fn func(&self) -> ScanFunc {
        self.now.borrow().phys.func
    }

    /// Whether the next txg has work for the scan.
    pub(crate) fn wants_txg(&self) -> bool {
        if self.closed.get() {
            return false;
        }
        let is_active = (self.is_scanning() || self.checks_errors()) && !self.is_held();
        let resilvers = self.resilver_wanted.get() && !self.rebuilding.get() || self.starts_deferred();
        resilvers || (is_active && matches!(self.phase.get(), Phase::Traverse | Phase::Drained))
    }

    /// Starts no more work: the pool is being closed.
    pub(crate) fn close(&self) {
        self.closed.set(true);
        self.work.clear();
        self.changed.notify_all();
    }

    /// As [`Scan::close`], and waits until no reads or writes are in flight.
    pub(crate) async fn close_and_wait(&self) {
        self.close();
        let task = self.task.borrow_mut().take();
        if let Some(task) = task {
            task.await;
        }
    }

    /// Sets whether a sequential rebuild is under way.
    pub(crate) fn set_rebuilding(&self, is: bool) {
        self.rebuilding.set(is);
        if self.resilver_wanted.get() {
            self.stack.txg.kick();
        }
        self.changed.notify_all();
    }

    /// Whether the tunable holds all scans and rebuilds (`zfs_scan_suspend_progress`).
    pub(crate) fn is_suspended(&self) -> bool {
        self.tunables.get().suspend_progress
    }

    /// Begins or ends a resilver, which counts as pending until that is done, regardless of the
    /// record.
    async fn while_switching(&self, switch: impl Future<Output = Result<()>>) -> Result<()> {
        self.resilver_switching.set(true);
        let done = switch.await;
        self.resilver_switching.set(false);
        self.changed.notify_all();
        done
    }

    /// Begins a scan (syncing context). Blocks born in `min` or before, or in `max` or after, are
    /// left out.
    async fn begin(&self, func: ScanFunc, min: Txg, max: Txg, tx: &Tx) -> Result<()> {
        let queue = zap::create(&self.stack.mos, ObjectType::SCAN_QUEUE, 0, tx).await?;
        let now = secs(&self.stack.rt);
        let to_examine = self.stack.alloc.top_spaces().iter().map(|s| s.alloc).sum();
        let phys = ScanPhys {
            func,
            state: ScanState::Scanning,
            queue_obj: queue.object(),
            min_txg: min,
            max_txg: max,
            cur_min_txg: min,
            cur_max_txg: max,
            start_time: now,
            to_examine,
            // Blocks of dedup tables are visited with the datasets.
            ddt_bookmark: [1, 0, 0, 0],
            ..ScanPhys::default()
        };
        *self.now.borrow_mut() = Progress { phys, queue: BTreeMap::new() };
        *self.on_disk.borrow_mut() = self.now.borrow().clone();
        self.stored.borrow_mut().clear();
        self.on_disk_dirty.set(true);
        self.work.clear();
        self.damaged.borrow_mut().clear();
        self.damaged_new.borrow_mut().clear();
        self.drop_scan_errors(tx).await?;
        self.forget_error_scrub();
        self.generation.set(self.generation.get() + 1);
        self.traversed_all.set(false);
        self.since_import.set(true);
        self.pass.set(Pass { start: now, ..Pass::default() });
        self.phase.set(Phase::Traverse);
        let text = format!("func={} mintxg={min} maxtxg={max}", func as u64);
        self.stack.core.log_internal("scan setup", text, tx.txg());
        self.events.post(if func == ScanFunc::Resilver { "resilver_start" } else { "scrub_start" });
        for top in self.stack.tree.tops.borrow().iter() {
            top.kind().conditions().iter().for_each(|(_, c)| c.scan_begins());
        }
        self.changed.notify_all();
        Ok(())
    }

    /// Writes the record and the queue if they changed.
    async fn write(&self, tx: &Tx) -> Result<()> {
        self.write_damage(tx).await?;
        self.errors.write(&self.stack.directory, tx).await?;
        if !self.on_disk_dirty.replace(false) {
            return Ok(());
        }
        let on_disk = self.on_disk.borrow().clone();
        let mut phys = on_disk.phys;
        {
            // Repairs stay done, even if an import issues their blocks again.
            let now = self.now.borrow().phys;
            (phys.processed, phys.errors) = (now.processed, now.errors);
        }
        zap::update(&self.stack.directory, RECORD, &ZapValue::from_u64s(&phys.to_words()), tx).await?;
        if phys.queue_obj.0 == 0 {
            return Ok(());
        }
        let dn = self.stack.mos.hold(phys.queue_obj).await?;
        let stored = self.stored.replace(on_disk.queue.clone());
        for ds in stored.keys().filter(|ds| !on_disk.queue.contains_key(ds)) {
            zap::remove_int(&dn, *ds, tx).await?;
        }
        for (ds, min) in on_disk.queue.iter().filter(|(ds, min)| stored.get(ds) != Some(min)) {
            zap::update_int(&dn, *ds, *min, tx).await?;
        }
        Ok(())
    }

    /// Pauses or resumes it (syncing context).
    fn set_paused(&self, pause: bool) {
        for progress in [&self.now, &self.on_disk] {
            let flags = &mut progress.borrow_mut().phys.flags;
            *flags = if pause { *flags | PAUSED } else { *flags & !PAUSED };
        }
        let (mut pass, now) = (self.pass.get(), secs(&self.stack.rt));
        if pause {
            pass.paused_at = now;
        } else {
            pass.paused += now.saturating_sub(pass.paused_at);
            pass.paused_at = 0;
        }
        self.pass.set(pass);
        self.on_disk_dirty.set(true);
        self.changed.notify_all();
    }

    /// The status of the last or running scan.
    pub fn status(&self) -> ScanStatus {
        let pass = self.pass.get();
        ScanStatus {
            phys: self.now.borrow().phys,
            since_import: self.since_import.get(),
            issued: pass.before + pass.issued,
            pass_start: pass.start,
            paused_at: pass.paused_at,
            pass_paused: pass.paused,
            pass_examined: pass.examined,
            pass_issued: pass.issued,
            errors: self.errors.status().0,
            errors_paused_at: self.errors.status().1,
        }
    }
}

impl DatasetWatch for Scan {
    fn destroyed(&self, object: ObjectId, next: Option<ObjectId>) {
        if next.is_none() {
            self.head_gone(object);
        }
        if self.is_scanning() {
            for progress in [&self.now, &self.on_disk] {
                progress.borrow_mut().destroyed(object.0, next.map(|n| n.0));
            }
            self.on_disk_dirty.set(true);
        }
    }
    fn snapshotted(&self, head: ObjectId, snapshot: ObjectId) {
        if self.is_scanning() {
            for progress in [&self.now, &self.on_disk] {
                progress.borrow_mut().snapshotted(head.0, snapshot.0);
            }
            self.on_disk_dirty.set(true);
        }
    }
    fn promoted(&self, from: ObjectId, to: ObjectId, youngest: Txg) {
        self.note_head(HeadChange::Promoted { from: from.0, to: to.0, youngest });
    }
}

impl Scan {
    /// The work of a txg for the scan, in its first pass, after the datasets were written. `mos` is
    /// the root of the MOS on disk.
    pub(crate) async fn sync(self: &Rc<Self>, txg: Txg, mos: Blkptr, (ddt, brt): (&Ddt, &Brt), tx: &Tx) -> Result<()> {
        self.begin_resilver(txg, tx).await?;
        self.changed.notify_all();
        if self.is_scanning() && !self.closed.get() {
            self.rescan_newly_referenced(ddt, brt);
        }
        if self.checks_errors() && !self.is_held() && !self.closed.get() {
            self.sync_errors(mos, txg, tx).await?;
        }
        if self.is_scanning() && !self.is_held() && !self.closed.get() {
            if self.phase.get() == Phase::Drained && self.has_queued() {
                self.start_issue();
            }
            if self.phase.get() == Phase::Drained {
                *self.on_disk.borrow_mut() = self.now.borrow().clone();
                self.on_disk_dirty.set(true);
                if !self.traversed_all.get() {
                    self.phase.set(Phase::Traverse);
                } else if !self.stack.dsl().has_freeing() {
                    // The rest of destroyed trees is not traversed, and must be readable until it
                    // is freed.
                    match self.func() {
                        ScanFunc::Resilver => self.while_switching(self.end(true, tx)).await?,
                        _ => self.end(true, tx).await?,
                    }
                }
            }
            if self.phase.get() == Phase::Traverse {
                self.traverse(mos, txg).await;
                let is_round = self.is_full() || self.tunables.get().legacy && self.has_queued();
                if self.traversed_all.get() || is_round {
                    self.start_issue();
                }
            }
        }
        self.write(tx).await
    }

    async fn sync_task(
        self: &Rc<Self>,
        f: impl FnOnce(Rc<Scan>, Rc<Tx>) -> LocalBoxFuture<'static, Result<()>> + 'static,
    ) -> Result<()> {
        self.config.check_writable()?;
        let scan = self.clone();
        let task = move |_: Rc<DslPool>, tx: Rc<Tx>| -> LocalBoxFuture<'static, Result<()>> {
            Box::pin(async move { f(scan, tx).await })
        };
        self.stack.dsl().sync_task(task).await
    }

    /// Pauses the running scrub: it stays so over exports and imports until
    /// [`Scan::start_scrub`], and one of errors until [`Scan::start_error_scrub`].
    pub async fn pause_scrub(self: &Rc<Self>) -> Result<()> {
        self.sync_task(|scan, _| {
            Box::pin(async move {
                if scan.errors.is_running() {
                    if scan.errors.is_paused() {
                        return Err(Error::new(ErrorKind::Busy, "error scrub is already paused"));
                    }
                    scan.set_errors_paused(true);
                    scan.events.post("errorscrub_paused");
                    return Ok(());
                }
                if !scan.is_scanning() || scan.func() != ScanFunc::Scrub {
                    return Err(Error::not_found("there is no active scrub"));
                }
                if scan.is_paused() {
                    return Err(Error::new(ErrorKind::Busy, "scrub is already paused"));
                }
                scan.set_paused(true);
                scan.events.post("scrub_paused");
                Ok(())
            })
        })
        .await
    }

    /// Stops the running or paused scrub, also one of errors. A resilver cannot be stopped.
    pub async fn stop_scrub(self: &Rc<Self>) -> Result<()> {
        self.sync_task(|scan, tx| {
            Box::pin(async move {
                if scan.errors.is_running() {
                    return scan.end_errors(false, &tx).await;
                }
                if !scan.is_scanning() || scan.func() != ScanFunc::Scrub {
                    return Err(Error::not_found("there is no active scrub"));
                }
                scan.end(false, &tx).await
            })
        })
        .await
    }

    /// Waits until no scan is running or requested, or the scan is paused. The error is that of a
    /// pool that has ended.
    pub async fn wait(&self) -> Result<()> {
        loop {
            let changed = self.changed.notified();
            let on_errors = self.checks_errors() && !self.errors.is_paused();
            let busy = self.is_scanning() && !self.is_paused() || on_errors || self.is_resilver_due();
            if !busy || self.stack.readonly {
                return Ok(());
            }
            if let Some(e) = self.stack.txg.ended() {
                return Err(e);
            }
            if self.closed.get() {
                return Err(Error::new(ErrorKind::Interrupted, "the pool is being closed"));
            }
            // A suspended pool notifies no waiter.
            let _ = self.stack.rt.timeout(Nanos::from_secs(1), changed).await;
        }
    }

    /// A scrub of a pool that is imported read-only: reads and verifies everything, without repairs
    /// and writes. Afterwards [`Scan::damaged_blocks`] returns the damage that it found.
    /// `mos` is the root of the MOS on disk.
    pub(crate) async fn verify(self: &Rc<Self>, mos: Blkptr) -> Result<ScanStatus> {
        if !self.stack.readonly || self.phase.get() == Phase::Issue {
            return Err(Error::new(
                ErrorKind::Busy,
                "only a pool that is imported read-only is verified, once at a time",
            ));
        }
        let now = secs(&self.stack.rt);
        let to_examine = self.stack.alloc.top_spaces().iter().map(|s| s.alloc).sum();
        let phys = ScanPhys {
            func: ScanFunc::Scrub,
            state: ScanState::Scanning,
            max_txg: Txg(u64::MAX),
            start_time: now,
            to_examine,
            ..ScanPhys::default()
        };
        *self.now.borrow_mut() = Progress { phys, queue: BTreeMap::new() };
        self.damaged.borrow_mut().clear();
        self.generation.set(self.generation.get() + 1);
        self.pass.set(Pass { start: now, ..Pass::default() });
        self.traversed_all.set(false);
        self.closed.set(false);
        self.repairs.set(false);
        self.phase.set(Phase::Issue);
        while !self.traversed_all.get() {
            self.traverse(mos, Txg(u64::MAX)).await;
            self.issue_all(self.generation.get()).await;
        }
        {
            let phys = &mut self.now.borrow_mut().phys;
            (phys.state, phys.end_time) = (ScanState::Finished, secs(&self.stack.rt));
        }
        self.damaged_new.borrow_mut().clear();
        self.phase.set(Phase::Idle);
        Ok(self.status())
    }

    /// Changes the tunables; those of memory and time apply at once, that of devices with the next
    /// round.
    pub(crate) fn set_tunables(&self, t: ScanTunables, arc_max: u64) {
        let old = self.tunables.replace(t);
        if old.mem_lim_fact != t.mem_lim_fact {
            self.memory_max.set(t.memory(arc_max));
        }
        if old.suspend_progress && !t.suspend_progress || t.defer_off && !old.defer_off {
            self.changed.notify_all();
            if self.wants_txg() {
                self.stack.txg.kick();
            }
        }
    }

    /// Sets the memory for queued blocks, in bytes (`zfs_scan_mem_lim_fact` of OpenZFS).
    pub fn set_memory(&self, bytes: u64) {
        self.memory_max.set(bytes);
    }

    /// Resumes the scan of an earlier import, and begins a resilver if devices came back. After the
    /// first txg.
    pub(crate) fn resume(self: &Rc<Self>) {
        self.closed.set(false);
        self.stack.zio().set_free_observer(Some(self.clone()));
        self.stack.core.set_dataset_watch(Some(self.clone()));
        self.resume_resilver();
        if self.checks_errors() {
            self.begin_errors();
        }
        if self.wants_txg() {
            self.stack.txg.kick();
        }
    }
}

#[cfg(test)]
mod tests;
