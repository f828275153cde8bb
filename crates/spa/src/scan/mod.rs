//! Scrub and resilver: every block that anybody may ever ask for is read wherever a device has a
//! part of it, compared with its checksum, and mended.
//!
//! Vocabulary. A *scan* is one of the two; a resilver looks only at blocks that a device misses by
//! its dirty time log. It *walks* the trees of the MOS and of all datasets from parents to
//! children, snapshots before what was made from them, so that each block is met once, with the
//! oldest dataset that has it. What it meets it *gathers*, per top-level vdev and by offset; then
//! it *looks* at what was gathered in that order, which makes long sequential reads of what was
//! written in any order. Gathering until memory is full and looking until nothing is left is a
//! *round*.
//!
//! The normal path. [`Pool::start_scrub`] or [`Pool::request_resilver`] begins a scan in syncing
//! context ([`Scan::begin`]). From then on each txg walks on for a fraction of a second ([`walk`]),
//! until memory is full or everything was met. Then tasks beside the txgs look at the blocks
//! ([`work`]). When none is left the next txg writes how far the scan has come, and the next round
//! begins; after the last one [`Pool::end_scan`] writes the result, takes what was brought to
//! devices out of their dirty time logs, and replaces the list of damaged blocks.
//!
//! Invariants:
//! * the place on disk never runs ahead: everything before it has been looked at. Whoever imports
//!   the pool, OpenZFS included, goes on from there;
//! * walking happens in syncing context, after the datasets of the txg were written and before the
//!   MOS is: nothing is freed meanwhile that is met later. What is freed after it was met is taken
//!   out of what was gathered, or, if it is being looked at, not mended any more, before its place
//!   can be given out again;
//! * with a head the blocks of an intent log that was claimed and not replayed are looked at, as
//!   OpenZFS does ([`walk`]); that its end does not verify is no damage;
//! * what only a checkpoint refers to is not met, as with OpenZFS: the trees walked are those of
//!   the newest state;
//! * blocks born in or after the txg in which the scan began are left out: they were verified when
//!   they were written, and are rewritten in place by later passes;
//! * trees that are being freed are not walked, so a scan does not end before they are gone
//!   (OpenZFS does not walk at all meanwhile);
//! * a dedup'd block that gets a new reference is met then, for the old one may go before it is
//!   met. While a scrub is paused and the pool exported this is forgotten;
//! * datasets that are destroyed or snapshotted meanwhile hand their place in the walk on
//!   ([`dsl::core::DatasetWatch`]), as OpenZFS does.

mod damage;
mod end;
mod walk;
mod work;

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use base::{Error, ErrorKind, Nanos, ObjectId, Result, Txg};
use dmu::{Dnode, LocalBoxFuture, Objset, Tx, zap};
use dsl::DslPool;
use dsl::core::DatasetWatch;
use ondisk::bpobj::Bookmark;
use ondisk::object_type::ObjectType;
use ondisk::scan::{NO_OBJSET, PAUSED, ScanFunc, ScanPhys, ScanState, VISIT_AGAIN};
use ondisk::zap::ZapValue;
use rt::sync::Notify;
use rt::{JoinHandle, Rt};
use txg::TxgPool;
use zio::Zio;

use crate::pool::Pool;
use work::Work;

/// Entry of the MOS directory: the record.
const RECORD: &[u8] = b"scan";
/// Memory for gathered blocks: this share of the cache's limit within these bounds, in bytes.
const MEMORY_MIN: u64 = 1 << 20;
const MEMORY_MAX: u64 = 64 << 20;

/// Txgs that a device may be known to miss before they are synced: those that were open when it
/// failed.
const FUTURE: u64 = 8;

/// What a scan is doing at the moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    /// There is none.
    Idle,
    /// The next txg walks on.
    Traverse,
    /// What was gathered is looked at.
    Issue,
    /// All of it was: the next txg writes that down.
    Drained,
}

/// How far a scan is: its record and the datasets that wait, each with the txg after which its
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

/// What went on since the pool was imported or the scan began, for estimates.
#[derive(Clone, Copy, Default, Debug)]
struct Pass {
    /// Seconds since 1970.
    start: u64,
    /// Since when it is paused; 0: it is not.
    paused_at: u64,
    /// Seconds that it was paused.
    paused: u64,
    /// Allocated bytes met.
    examined: u64,
    /// Allocated bytes looked at.
    issued: u64,
    /// Allocated bytes met in earlier passes.
    before: u64,
}

/// What there is to tell about a scan.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct ScanStatus {
    /// The record: what, how far, since when, with how many errors. `processed` is in bytes
    /// rewritten.
    pub phys: ScanPhys,
    /// It began, or went on, after the pool was imported.
    pub since_import: bool,
    /// Allocated bytes looked at, in all.
    pub issued: u64,
    /// Of this pass (since the import or the beginning): when it began, in seconds since 1970.
    pub pass_start: u64,
    /// Since when the scrub is paused, in seconds since 1970; 0 if it is not.
    pub paused_at: u64,
    /// Seconds of this pass that it was paused.
    pub pass_paused: u64,
    /// Allocated bytes met in this pass.
    pub pass_examined: u64,
    /// Allocated bytes looked at in this pass.
    pub pass_issued: u64,
}

/// Settings of scrub and resilver, with OpenZFS's names for them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ScanTunables {
    /// `zfs_scan_vdev_limit`: bytes on their way for each device (OpenZFS 2.1: 4 MiB; here 8 MiB,
    /// which keeps a fast device busy).
    pub vdev_limit: u64,
    /// `zfs_scan_mem_lim_fact`: what was gathered may take one part in so many of the cache's limit
    /// (of memory in OpenZFS, where it is 20). With the default, 16, at most 64 MiB.
    pub mem_lim_fact: u64,
    /// `zfs_scrub_min_time_ms`: how long a txg looks for blocks at most while a scrub runs
    /// (OpenZFS: at least, 1 s, during which nobody's fsync ends).
    pub scrub_min_time: Nanos,
    /// `zfs_resilver_min_time_ms`: the same of a resilver (OpenZFS: 3 s).
    pub resilver_min_time: Nanos,
    /// `zfs_scan_suspend_progress`: scans stay where they are, and go on when it is off again.
    pub suspend_progress: bool,
}

impl Default for ScanTunables {
    fn default() -> ScanTunables {
        ScanTunables {
            vdev_limit: 8 << 20,
            mem_lim_fact: 16,
            scrub_min_time: Nanos::from_ms(200),
            resilver_min_time: Nanos::from_ms(200),
            suspend_progress: false,
        }
    }
}

impl ScanTunables {
    /// Bytes of memory for what was gathered, with a cache of at most `arc_max`.
    fn memory(&self, arc_max: u64) -> u64 {
        let is_default = self.mem_lim_fact == ScanTunables::default().mem_lim_fact;
        let most = if is_default { MEMORY_MAX } else { u64::MAX };
        (arc_max / self.mem_lim_fact.max(1)).clamp(MEMORY_MIN, most)
    }
}

/// The scan of a pool.
pub(crate) struct Scan {
    rt: Rt,
    zio: Zio,
    txg: TxgPool,
    mos: Objset,
    directory: Dnode,
    now: RefCell<Progress>,
    /// As the disk has it, or will after this txg.
    on_disk: RefCell<Progress>,
    on_disk_dirty: Cell<bool>,
    /// The queue in its ZAP.
    stored: RefCell<BTreeMap<u64, u64>>,
    phase: Cell<Phase>,
    /// Everything was met.
    traversed_all: Cell<bool>,
    resilver_wanted: Cell<bool>,
    /// A resilver is just being begun or ended.
    resilver_switching: Cell<bool>,
    /// The scan began after the import: what it failed to mend is known.
    since_import: Cell<bool>,
    pass: Cell<Pass>,
    /// Damaged blocks found by this scan, and those that wait to be written.
    damaged: RefCell<BTreeSet<(u64, u64, i64, u64)>>,
    damaged_new: RefCell<Vec<Bookmark>>,
    work: Work,
    /// Whether what is wrong is rewritten.
    repairs: Cell<bool>,
    /// Counts scans, so that tasks of one that was stopped do not touch the next.
    generation: Cell<u64>,
    /// Nothing is begun: the pool is not open yet, or is being closed.
    closed: Cell<bool>,
    task: RefCell<Option<JoinHandle<()>>>,
    changed: Notify,
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
    /// Reads what an earlier import left.
    pub(crate) async fn load(
        mos: &Objset,
        directory: &Dnode,
        zio: &Zio,
        txg: &TxgPool,
        tunables: ScanTunables,
        arc_max: u64,
    ) -> Result<Rc<Scan>> {
        let words = zap::lookup(directory, RECORD).await?.and_then(|v| v.as_u64s()).unwrap_or_default();
        let mut progress = Progress { phys: ScanPhys::from_words(&words), ..Progress::default() };
        if progress.phys.func == ScanFunc::None {
            progress.phys.state = ScanState::None;
        }
        let running = progress.phys.state == ScanState::Scanning;
        if running && progress.phys.queue_obj.0 != 0 {
            match read_queue(mos, progress.phys.queue_obj).await {
                Ok(queue) => progress.queue = queue,
                // Where it was cannot be known any more.
                Err(_) => progress.phys.state = ScanState::Canceled,
            }
        }
        let running = progress.phys.state == ScanState::Scanning;
        let rt = mos.ctx().rt().clone();
        let now = secs(&rt);
        let pass = Pass {
            start: now,
            paused_at: if progress.phys.is_paused() { now } else { 0 },
            before: progress.phys.examined,
            ..Pass::default()
        };
        Ok(Rc::new(Scan {
            rt,
            zio: zio.clone(),
            txg: txg.clone(),
            mos: mos.clone(),
            directory: directory.clone(),
            stored: RefCell::new(progress.queue.clone()),
            now: RefCell::new(progress.clone()),
            on_disk: RefCell::new(progress),
            on_disk_dirty: Cell::new(false),
            phase: Cell::new(if running { Phase::Traverse } else { Phase::Idle }),
            traversed_all: Cell::new(false),
            resilver_wanted: Cell::new(false),
            resilver_switching: Cell::new(false),
            since_import: Cell::new(false),
            pass: Cell::new(pass),
            damaged: RefCell::default(),
            damaged_new: RefCell::default(),
            work: Work::default(),
            repairs: Cell::new(true),
            generation: Cell::new(0),
            closed: Cell::new(true),
            task: RefCell::default(),
            changed: Notify::new(),
            memory_max: Cell::new(tunables.memory(arc_max)),
            tunables: Cell::new(tunables),
        }))
    }

    fn is_scanning(&self) -> bool {
        self.now.borrow().phys.state == ScanState::Scanning
    }
    fn is_paused(&self) -> bool {
        self.now.borrow().phys.is_paused()
    }
    /// Whether nothing is looked for and looked at.
    fn is_held(&self) -> bool {
        self.is_paused() || self.tunables.get().suspend_progress
    }
    fn func(&self) -> ScanFunc {
        self.now.borrow().phys.func
    }

    /// Whether the next txg has something to do for the scan.
    pub(crate) fn wants_txg(&self) -> bool {
        if self.closed.get() {
            return false;
        }
        let goes_on = self.is_scanning() && !self.is_held();
        self.resilver_wanted.get() || (goes_on && matches!(self.phase.get(), Phase::Traverse | Phase::Drained))
    }

    /// Nothing more is begun: the pool is being closed.
    pub(crate) fn close(&self) {
        self.closed.set(true);
        self.work.clear();
        self.changed.notify_all();
    }

    /// As [`Scan::close`], and waits until nothing is on its way to the devices any more.
    pub(crate) async fn close_and_wait(&self) {
        self.close();
        let task = self.task.borrow_mut().take();
        if let Some(task) = task {
            task.await;
        }
    }

    /// Whether a resilver was asked for, or is just being begun or ended.
    fn is_resilver_due(&self) -> bool {
        self.resilver_wanted.get() || self.resilver_switching.get()
    }

    /// Begins or ends a resilver: until that is done it counts as pending, whatever the record says
    /// meanwhile.
    async fn while_switching(&self, turn: impl Future<Output = Result<()>>) -> Result<()> {
        self.resilver_switching.set(true);
        let done = turn.await;
        self.resilver_switching.set(false);
        self.changed.notify_all();
        done
    }

    /// Begins a scan (syncing context). Blocks born in `min` or before, or in `max` or after, are
    /// left out.
    async fn begin(&self, pool: &Pool, func: ScanFunc, min: Txg, max: Txg, tx: &Tx) -> Result<()> {
        let queue = zap::create(&self.mos, ObjectType::SCAN_QUEUE, 0, tx).await?;
        let now = secs(&self.rt);
        let to_examine = pool.allocator().top_spaces().iter().map(|s| s.alloc).sum();
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
            // Blocks that dedup tables know are met with the datasets.
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
        self.generation.set(self.generation.get() + 1);
        self.traversed_all.set(false);
        self.since_import.set(true);
        self.pass.set(Pass { start: now, ..Pass::default() });
        self.phase.set(Phase::Traverse);
        let text = format!("func={} mintxg={min} maxtxg={max}", func as u64);
        pool.core.note("scan setup", text, tx.txg());
        pool.post(if func == ScanFunc::Resilver { "resilver_start" } else { "scrub_start" });
        for top in pool.tree.tops.borrow().iter() {
            top.kind().conditions().iter().for_each(|(_, c)| c.scan_begins());
        }
        self.changed.notify_all();
        Ok(())
    }

    /// Writes the record and the queue if they changed.
    async fn write(&self, tx: &Tx) -> Result<()> {
        self.write_damage(tx).await?;
        if !self.on_disk_dirty.replace(false) {
            return Ok(());
        }
        let on_disk = self.on_disk.borrow().clone();
        let mut phys = on_disk.phys;
        {
            // What was mended stays mended, whatever is looked at again after an import.
            let now = self.now.borrow().phys;
            (phys.processed, phys.errors) = (now.processed, now.errors);
        }
        zap::update(&self.directory, RECORD, &ZapValue::from_u64s(&phys.to_words()), tx).await?;
        if phys.queue_obj.0 == 0 {
            return Ok(());
        }
        let dn = self.mos.hold(phys.queue_obj).await?;
        let stored = self.stored.replace(on_disk.queue.clone());
        for ds in stored.keys().filter(|ds| !on_disk.queue.contains_key(ds)) {
            zap::remove_int(&dn, *ds, tx).await?;
        }
        for (ds, min) in on_disk.queue.iter().filter(|(ds, min)| stored.get(ds) != Some(min)) {
            zap::update_int(&dn, *ds, *min, tx).await?;
        }
        Ok(())
    }

    /// Pauses it, or goes on (syncing context).
    fn set_paused(&self, pause: bool) {
        for progress in [&self.now, &self.on_disk] {
            let flags = &mut progress.borrow_mut().phys.flags;
            *flags = if pause { *flags | PAUSED } else { *flags & !PAUSED };
        }
        let (mut pass, now) = (self.pass.get(), secs(&self.rt));
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

    fn status(&self) -> ScanStatus {
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
        }
    }
}

impl DatasetWatch for Scan {
    fn destroyed(&self, object: ObjectId, next: Option<ObjectId>) {
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
}

impl Pool {
    /// What a txg does for the scan, in its first pass, after the datasets were written.
    pub(crate) async fn sync_scan(&self, txg: Txg, tx: &Tx) -> Result<()> {
        let scan = &self.scan;
        if !scan.closed.get()
            && scan.resilver_wanted.replace(false)
            && let Some((min, max)) = self.resilver_window()
        {
            if max > txg && max.0 <= txg.0 + FUTURE {
                // What is missed is not all in the past: one of the next txgs.
                scan.resilver_wanted.set(true);
            } else {
                let turn = async {
                    if scan.is_scanning() {
                        self.end_scan(false, tx).await?;
                    }
                    // A log that could not be read says that anything may be missed.
                    scan.begin(self, ScanFunc::Resilver, min, max.min(txg), tx).await
                };
                scan.while_switching(turn).await?;
            }
        }
        scan.changed.notify_all();
        if scan.is_scanning() && !scan.closed.get() {
            self.rescan_changed_ddt_entries();
        }
        if scan.is_scanning() && !scan.is_held() && !scan.closed.get() {
            if scan.phase.get() == Phase::Drained && scan.has_queued() {
                scan.start_issue();
            }
            if scan.phase.get() == Phase::Drained {
                *scan.on_disk.borrow_mut() = scan.now.borrow().clone();
                scan.on_disk_dirty.set(true);
                if !scan.traversed_all.get() {
                    scan.phase.set(Phase::Traverse);
                } else if !self.dsl().has_freeing() {
                    // What is left of destroyed trees is not walked, and must be readable until it
                    // is freed.
                    match scan.func() {
                        ScanFunc::Resilver => scan.while_switching(self.end_scan(true, tx)).await?,
                        _ => self.end_scan(true, tx).await?,
                    }
                }
            }
            if scan.phase.get() == Phase::Traverse {
                self.traverse(txg).await;
                if scan.traversed_all.get() || scan.is_full() {
                    scan.start_issue();
                }
            }
        }
        scan.write(tx).await
    }

    /// The txgs that devices in use miss: the one before the first, and the one after the last.
    fn resilver_window(&self) -> Option<(Txg, Txg)> {
        let mut window: Option<(u64, u64)> = None;
        for top in self.tree.tops.borrow().iter() {
            for (_, condition) in top.kind().conditions() {
                if let Some((first, last)) = condition.missing().bounds().filter(|_| condition.health().is_open()) {
                    let (min, max) = window.unwrap_or((u64::MAX, 0));
                    window = Some((min.min(first.0.saturating_sub(1)), max.max(last.0.saturating_add(1))));
                }
            }
        }
        window.map(|(min, max)| (Txg(min), Txg(max)))
    }

    fn check_scan(&self) -> Result<()> {
        if self.readonly {
            return Err(Error::new(ErrorKind::ReadOnly, format!("pool '{}' is imported read-only", self.name())));
        }
        Ok(())
    }

    async fn scan_task(
        self: &Rc<Self>,
        f: impl FnOnce(Rc<Pool>, Rc<Tx>) -> LocalBoxFuture<'static, Result<()>> + 'static,
    ) -> Result<()> {
        self.check_scan()?;
        let pool = self.clone();
        let task = move |_: Rc<DslPool>, tx: Rc<Tx>| -> LocalBoxFuture<'static, Result<()>> {
            Box::pin(async move { f(pool, tx).await })
        };
        self.dsl().sync_task(task).await
    }

    /// Begins a scrub, or goes on with one that is paused. `Busy` while a scan runs.
    pub async fn start_scrub(self: &Rc<Self>) -> Result<()> {
        self.scan_task(|pool, tx| {
            Box::pin(async move {
                let scan = &pool.scan;
                if scan.is_paused() && scan.func() == ScanFunc::Scrub {
                    scan.set_paused(false);
                    pool.post("scrub_resume");
                    return Ok(());
                }
                if scan.is_scanning() {
                    let what = match scan.func() {
                        ScanFunc::Resilver => "currently resilvering",
                        _ => "currently scrubbing; use 'zpool scrub -s' to cancel current scrub",
                    };
                    return Err(Error::new(ErrorKind::Busy, what));
                }
                scan.begin(&pool, ScanFunc::Scrub, Txg(0), tx.txg(), &tx).await
            })
        })
        .await
    }

    /// Pauses the scrub that runs: it stays so over exports and imports until
    /// [`Pool::start_scrub`].
    pub async fn pause_scrub(self: &Rc<Self>) -> Result<()> {
        self.scan_task(|pool, _| {
            Box::pin(async move {
                let scan = &pool.scan;
                if !scan.is_scanning() || scan.func() != ScanFunc::Scrub {
                    return Err(Error::not_found("there is no active scrub"));
                }
                if scan.is_paused() {
                    return Err(Error::new(ErrorKind::Busy, "scrub is already paused"));
                }
                scan.set_paused(true);
                pool.post("scrub_paused");
                Ok(())
            })
        })
        .await
    }

    /// Stops the scrub that runs or is paused. A resilver goes on until it is done.
    pub async fn stop_scrub(self: &Rc<Self>) -> Result<()> {
        self.scan_task(|pool, tx| {
            Box::pin(async move {
                if !pool.scan.is_scanning() || pool.scan.func() != ScanFunc::Scrub {
                    return Err(Error::not_found("there is no active scrub"));
                }
                pool.end_scan(false, &tx).await
            })
        })
        .await
    }

    /// Brings to devices in use what they miss by their dirty time logs: a resilver begins with one
    /// of the next txgs, if there is anything to do, in place of a scan that runs. To be called
    /// when a device came back or was put in.
    pub fn request_resilver(&self) {
        if !self.readonly {
            self.scan.resilver_wanted.set(true);
            self.txg.kick();
        }
    }

    /// Waits until no scan runs that is not paused, requests included. The error is that of a pool
    /// that has ended.
    pub async fn wait_scan(&self) -> Result<()> {
        loop {
            let changed = self.scan.changed.notified();
            let busy = self.scan.is_scanning() && !self.scan.is_paused() || self.scan.is_resilver_due();
            if !busy || self.readonly {
                return Ok(());
            }
            if let Some(e) = self.txg.ended() {
                return Err(e);
            }
            if self.scan.closed.get() {
                return Err(Error::new(ErrorKind::Interrupted, "the pool is being closed"));
            }
            // A pool that is suspended tells nobody.
            let _ = self.rt.timeout(Nanos::from_secs(1), changed).await;
        }
    }

    /// Whether a resilver was asked for that has not begun, or is just being begun or ended.
    pub fn is_resilver_pending(&self) -> bool {
        self.scan.is_resilver_due() && !self.readonly && !self.scan.closed.get()
    }

    /// What there is to tell about the last or running scan.
    pub fn scan_status(&self) -> ScanStatus {
        self.scan.status()
    }

    /// As a scrub of a pool that is imported read-only: reads and verifies everything, repairs
    /// nothing, and writes nothing down. What it found damaged is what [`Pool::damaged_blocks`]
    /// tells from then on.
    pub async fn verify(&self) -> Result<ScanStatus> {
        let scan = &self.scan;
        if !self.readonly || scan.phase.get() == Phase::Issue {
            return Err(Error::new(
                ErrorKind::Busy,
                "only a pool that is imported read-only is verified, once at a time",
            ));
        }
        let now = secs(&scan.rt);
        let to_examine = self.allocator().top_spaces().iter().map(|s| s.alloc).sum();
        let phys = ScanPhys {
            func: ScanFunc::Scrub,
            state: ScanState::Scanning,
            max_txg: Txg(u64::MAX),
            start_time: now,
            to_examine,
            ..ScanPhys::default()
        };
        *scan.now.borrow_mut() = Progress { phys, queue: BTreeMap::new() };
        scan.damaged.borrow_mut().clear();
        scan.generation.set(scan.generation.get() + 1);
        scan.pass.set(Pass { start: now, ..Pass::default() });
        scan.traversed_all.set(false);
        scan.closed.set(false);
        scan.repairs.set(false);
        scan.phase.set(Phase::Issue);
        while !scan.traversed_all.get() {
            self.traverse(Txg(u64::MAX)).await;
            scan.issue_all(scan.generation.get()).await;
        }
        {
            let phys = &mut scan.now.borrow_mut().phys;
            (phys.state, phys.end_time) = (ScanState::Finished, secs(&scan.rt));
        }
        scan.damaged_new.borrow_mut().clear();
        scan.phase.set(Phase::Idle);
        Ok(scan.status())
    }

    /// Changes the settings; those of memory and time hold from now on, that of devices from the
    /// next round on.
    pub(crate) fn set_scan_tunables(&self, t: ScanTunables, arc_max: u64) {
        let old = self.scan.tunables.replace(t);
        if old.mem_lim_fact != t.mem_lim_fact {
            self.scan.memory_max.set(t.memory(arc_max));
        }
        if old.suspend_progress && !t.suspend_progress {
            self.scan.changed.notify_all();
            if self.scan.wants_txg() {
                self.txg.kick();
            }
        }
    }

    /// Sets how much memory blocks may take that wait to be looked at, in bytes
    /// (`zfs_scan_mem_lim_fact` of OpenZFS).
    pub fn set_scan_memory(&self, bytes: u64) {
        self.scan.memory_max.set(bytes);
    }

    /// Goes on with what an earlier import left, and begins a resilver if devices came back. After
    /// the first txg.
    pub(crate) fn resume_scan(&self) {
        self.scan.closed.set(false);
        self.core.zio.set_free_watch(Some(self.scan.clone()));
        self.core.set_dataset_watch(Some(self.scan.clone()));
        let resilvering = self.scan.is_scanning() && self.scan.func() == ScanFunc::Resilver;
        let covered = resilvering && {
            let phys = self.scan.now.borrow().phys;
            self.resilver_window().is_none_or(|(min, max)| phys.min_txg <= min && phys.max_txg >= max)
        };
        if !covered && self.resilver_window().is_some() {
            self.scan.resilver_wanted.set(true);
        }
        if self.scan.wants_txg() {
            self.txg.kick();
        }
    }
}
