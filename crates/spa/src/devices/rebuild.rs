//! Sequential rebuild (`zpool attach -s`, `replace -s`): fills a new device in the order of the
//! space, not of the blocks (`vdev_rebuild.c` of OpenZFS 2.0).
//!
//! Words. A *rebuild* is of a top-level vdev: of a mirror or a dRAID, whose space can be read
//! without knowing the blocks in it. A *part* is a range that is read at once.
//!
//! The normal path. The attach of the device asks for a rebuild ([`Rebuilds::ask`]); a change in a
//! txg begins it: the record in the vdev's ZAP, the count of the feature `device_rebuild`. A task
//! visits the metaslabs in order. Each is disabled, so that nothing new comes to it, and what its
//! space map has in use is read part by part from the devices that miss nothing, and written to
//! those that miss something. The next txg writes how far it is. At the end a change marks the
//! record as finished and takes what was missed from the dirty time logs; a scrub follows, since
//! nothing was verified.
//!
//! A device that is attached meanwhile makes the rebuild begin again. If nothing is missed any more
//! (the device was detached), it is canceled. It goes on after an import. While a rebuild is under
//! way no resilver and no scrub begins.
//!
//! Invariants: the record is never ahead of what is on the devices; a rebuild with a part that
//! could not be read or written takes nothing from the dirty time logs: a resilver follows in place
//! of the scrub, and finds out which blocks are lost.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::{Rc, Weak};

use base::{Error, ErrorKind, Nanos, Result, Txg, VdevId};
use dmu::zap;
use metaslab::Run;
use ondisk::feature::FeatureId;
use ondisk::scan::{REBUILD_KEY, RebuildPhys, ScanFunc, ScanState};
use ondisk::zap::ZapValue;
use rt::sync::{Notify, Semaphore};
use vdev::{BlockPlace, Prio, Top, VdevKind};

use super::changes::Changes;
use crate::scan::Scan;
use crate::stack::Stack;
use crate::zevent::Events;

/// Tunables of sequential rebuilds; defaults as in OpenZFS 2.1.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RebuildTunables {
    /// Bytes of a part on each device at most (`zfs_rebuild_max_segment`).
    pub max_segment: u64,
    /// Bytes in flight at each device of the vdev at most (`zfs_rebuild_vdev_limit`).
    pub vdev_limit: u64,
    /// A scrub follows (`zfs_rebuild_scrub_enabled`).
    pub scrub_after: bool,
}

impl Default for RebuildTunables {
    fn default() -> RebuildTunables {
        RebuildTunables { max_segment: 1 << 20, vdev_limit: 32 << 20, scrub_after: true }
    }
}

/// Time between looks at `zfs_scan_suspend_progress` while that is set.
const PAUSE: Nanos = Nanos::from_ms(200);

/// The sequential rebuild of a vdev.
struct Rebuild {
    phys: Cell<RebuildPhys>,
    /// Its task runs.
    running: Cell<bool>,
    /// It is to begin again, for a device that was attached meanwhile.
    again: Cell<bool>,
    /// When the task began, and the milliseconds before.
    pass: Cell<(Nanos, u64)>,
}

impl Rebuild {
    fn update(&self, f: impl FnOnce(&mut RebuildPhys)) {
        let mut phys = self.phys.get();
        f(&mut phys);
        self.phys.set(phys);
    }

    fn is_active(&self) -> bool {
        self.phys.get().state == ScanState::Scanning
    }
}

/// The end of a visit to the vdev.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Visit {
    /// Everything was visited.
    Whole,
    /// It begins again.
    Again,
    /// Nothing is missed any more.
    Needless,
    /// It goes on after the next import.
    Stopped,
}

/// The sequential rebuilds of a pool.
pub struct Rebuilds {
    stack: Rc<Stack>,
    scan: Rc<Scan>,
    changes: Rc<Changes>,
    events: Rc<Events>,
    all: RefCell<BTreeMap<VdevId, Rc<Rebuild>>>,
    tunables: Cell<RebuildTunables>,
    closing: Cell<bool>,
    changed: Notify,
    me: Weak<Rebuilds>,
}

/// An error if a vdev cannot be rebuilt.
pub(super) fn check_kind(top: &Top) -> Result<()> {
    match top.kind() {
        VdevKind::Leaf(_) | VdevKind::Mirror(_) | VdevKind::Draid(_) => Ok(()),
        _ => Err(Error::unsupported("only mirror and dRAID vdevs support sequential reconstruction")),
    }
}

/// Whether no device in use misses anything.
fn is_needless(top: &Top) -> bool {
    let misses = |(_, c): &(_, Rc<vdev::Condition>)| c.health().is_open() && c.misses(Txg(0));
    !top.kind().conditions().iter().any(misses)
}

impl Rebuilds {
    pub(super) fn new(stack: &Rc<Stack>, scan: &Rc<Scan>, changes: &Rc<Changes>, events: &Rc<Events>) -> Rc<Rebuilds> {
        Rc::new_cyclic(|me| Rebuilds {
            stack: stack.clone(),
            scan: scan.clone(),
            changes: changes.clone(),
            events: events.clone(),
            all: RefCell::default(),
            tunables: Cell::default(),
            closing: Cell::new(false),
            changed: Notify::new(),
            me: me.clone(),
        })
    }

    /// Changes the tunables, which count from the next part on.
    pub(crate) fn set_tunables(&self, t: RebuildTunables) {
        self.tunables.set(t);
    }

    /// Whether a rebuild is under way.
    pub fn is_active(&self) -> bool {
        self.all.borrow().values().any(|r| r.is_active())
    }

    /// An error if a rebuild is under way.
    pub(super) fn check_none(&self) -> Result<()> {
        match self.is_active() {
            true => Err(Error::new(
                ErrorKind::Busy,
                "currently sequentially resilvering: 'zpool wait -t resilver' waits for the end of it",
            )),
            false => Ok(()),
        }
    }

    /// The records of all vdevs that have one: those under way, and the last ones.
    pub fn status(&self) -> Vec<(VdevId, RebuildPhys)> {
        let all = self.all.borrow();
        let phys = all.iter().map(|(vdev, r)| {
            let mut phys = r.phys.get();
            if r.running.get() {
                phys.time_ms = self.time_ms(r);
            }
            (*vdev, phys)
        });
        phys.filter(|(_, phys)| phys.state != ScanState::None).collect()
    }

    fn time_ms(&self, r: &Rebuild) -> u64 {
        let (since, before) = r.pass.get();
        before + self.stack.rt.now().since(since).0 / 1_000_000
    }

    fn seconds(&self) -> u64 {
        self.stack.rt.wall_clock().secs.max(0) as u64
    }

    fn rebuild(&self, vdev: VdevId) -> Rc<Rebuild> {
        let new = || {
            let (phys, pass) = (Cell::default(), Cell::new((self.stack.rt.now(), 0)));
            Rc::new(Rebuild { phys, running: Cell::new(false), again: Cell::new(false), pass })
        };
        self.all.borrow_mut().entry(vdev).or_insert_with(new).clone()
    }

    /// Reads the records at import; rebuilds that were under way go on.
    pub(crate) async fn load(&self) -> Result<()> {
        if !self.stack.features.is_enabled(FeatureId::DeviceRebuild) {
            return Ok(());
        }
        let tops = self.stack.tree.tops.borrow().clone();
        for top in tops.iter().filter(|t| t.is_concrete()) {
            let Some(object) = top.config_ref().zap_top.filter(|o| o.0 != 0) else { continue };
            let dn = self.stack.mos.hold(object).await?;
            // A record that is no list of numbers is passed over.
            let Some(words) = zap::lookup(&dn, REBUILD_KEY).await?.and_then(|v| v.as_u64s()) else { continue };
            let rebuild = self.rebuild(top.id);
            let mut phys = RebuildPhys::from_words(&words);
            if phys.last_offset > top.asize.get() {
                // It says nothing.
                phys.last_offset = 0;
            }
            rebuild.phys.set(phys);
            if rebuild.is_active() && !self.stack.readonly {
                self.run(top, &rebuild);
            }
        }
        self.tell_scan();
        Ok(())
    }

    /// Tells the scan whether rebuilds are under way.
    fn tell_scan(&self) {
        self.scan.set_rebuilding(self.is_active() && !self.stack.readonly);
        self.changed.notify_all();
    }

    /// Writes the record of a vdev, if it is still there.
    async fn save(&self, top: &Top, phys: RebuildPhys, tx: &dmu::Tx) -> Result<()> {
        let Some(object) = top.config_ref().zap_top.filter(|o| o.0 != 0) else { return Ok(()) };
        if self.stack.tree.top(top.id).is_ok_and(|t| t.guid() == top.guid() && t.is_concrete()) {
            let dn = self.stack.mos.hold(object).await?;
            zap::update(&dn, REBUILD_KEY, &ZapValue::from_u64s(&phys.to_words()), tx).await?;
        }
        Ok(())
    }

    /// Adds the record to the history, and posts an event.
    fn tell(&self, top: &Top, what: &str, event: Option<&str>, txg: Txg) {
        let text = format!("vdev_id={} vdev_guid={} {what}", top.id, top.guid());
        self.stack.core.log_internal("rebuild", text, txg);
        if let Some(event) = event {
            self.events.post_rebuild(event, top.guid());
        }
    }

    /// Begins a rebuild of a vdev, or makes the one that is under way begin again. What its devices
    /// miss is synced. On return the record is on disk.
    pub(super) async fn ask(&self, top: &Rc<Top>) -> Result<()> {
        let rebuild = self.rebuild(top.id);
        if rebuild.is_active() {
            rebuild.again.set(true);
            return Ok(());
        }
        let (me, top) = (self.me.upgrade().expect("a method runs"), top.clone());
        self.changes
            .make(move |_, tx| {
                Box::pin(async move {
                    if !me.begin(&top, &rebuild) {
                        return Ok(Ok(()));
                    }
                    me.stack.features.add(FeatureId::DeviceRebuild, 1, tx).await?;
                    rebuild.update(|p| p.max_txg = tx.txg());
                    me.save(&top, rebuild.phys.get(), tx).await?;
                    me.tell(&top, "started", Some("resilver_start"), tx.txg());
                    me.tell_scan();
                    me.run(&top, &rebuild);
                    Ok(Ok(()))
                })
            })
            .await
    }

    /// Makes the record that of a new rebuild; false if nothing is missed.
    fn begin(&self, top: &Top, rebuild: &Rebuild) -> bool {
        let missed = top.kind().conditions().into_iter().filter(|(_, c)| c.health().is_open());
        let Some((first, _)) = missed.filter_map(|(_, c)| c.missing().bounds()).min() else { return false };
        rebuild.again.set(false);
        rebuild.pass.set((self.stack.rt.now(), 0));
        let estimate = self.stack.alloc.in_use(top.id);
        let min_txg = Txg(first.0.saturating_sub(1));
        let start_time = self.seconds();
        rebuild.phys.set(RebuildPhys {
            state: ScanState::Scanning,
            min_txg,
            start_time,
            estimate,
            ..RebuildPhys::default()
        });
        true
    }

    fn run(&self, top: &Rc<Top>, rebuild: &Rc<Rebuild>) {
        rebuild.running.set(true);
        rebuild.pass.set((self.stack.rt.now(), rebuild.phys.get().time_ms));
        let (me, top, rebuild) = (self.me.upgrade().expect("a method runs"), top.clone(), rebuild.clone());
        self.stack.rt.spawn("vdev_rebuild", async move {
            // An error is that of a pool that has ended; the next import goes on.
            let _ = me.work(&top, &rebuild).await;
            rebuild.running.set(false);
            me.changed.notify_all();
        });
    }

    fn is_stopped(&self, top: &Top) -> bool {
        self.closing.get() || self.stack.txg.ended().is_some() || top.config_ref().removing
    }

    /// The task of a rebuild.
    async fn work(&self, top: &Rc<Top>, rebuild: &Rc<Rebuild>) -> Result<()> {
        // A scrub ends, as at the beginning of a resilver.
        if self.scan.status().phys.state == ScanState::Scanning && self.scan.status().phys.func == ScanFunc::Scrub {
            match self.scan.clone().stop_scrub().await {
                Err(e) if e.kind() != ErrorKind::NotFound => return Err(e),
                _ => {}
            }
        }
        loop {
            let visit = self.visit(top, rebuild).await?;
            match visit {
                Visit::Stopped => return Ok(()),
                Visit::Again => self.begin_again(top, rebuild).await?,
                Visit::Whole | Visit::Needless => {
                    if self.finish(top, rebuild, visit).await? {
                        break;
                    }
                }
            }
        }
        if rebuild.phys.get().errors > 0 {
            self.scan.request_resilver();
        }
        Ok(())
    }

    /// Rebuilds all that is not rebuilt yet.
    async fn visit(&self, top: &Rc<Top>, rebuild: &Rc<Rebuild>) -> Result<Visit> {
        for ms in 0..top.ms_count() {
            let end = (ms + 1) << top.ms_shift.get();
            if end <= rebuild.phys.get().last_offset {
                continue;
            }
            if self.is_stopped(top) {
                return Ok(Visit::Stopped);
            }
            if rebuild.again.get() {
                return Ok(Visit::Again);
            }
            if is_needless(top) {
                return Ok(Visit::Needless);
            }
            // One that cannot be loaded, or is damaged, is for the resilver.
            if self.stack.alloc.disable(top.id, ms).await.is_err() {
                rebuild.update(|p| p.errors += 1);
                continue;
            }
            let done = self.metaslab(top, ms, rebuild).await;
            self.stack.alloc.enable(top.id, ms);
            done?;
            if self.is_stopped(top) || rebuild.again.get() || is_needless(top) {
                continue;
            }
            rebuild.update(|p| (p.last_offset, p.time_ms) = (end, self.time_ms(rebuild)));
            let (me, top, phys) = (self.me.upgrade().expect("a method runs"), top.clone(), rebuild.phys.get());
            self.changes.queue(move |_, tx| Box::pin(async move { me.save(&top, phys, tx).await }));
        }
        Ok(match () {
            () if self.is_stopped(top) => Visit::Stopped,
            () if rebuild.again.get() => Visit::Again,
            () if is_needless(top) => Visit::Needless,
            () => Visit::Whole,
        })
    }

    /// Rebuilds what is in use in a disabled metaslab.
    async fn metaslab(&self, top: &Rc<Top>, ms: u64, rebuild: &Rc<Rebuild>) -> Result<()> {
        let (vdev, alloc) = (top.id, &self.stack.alloc);
        let Ok((mut runs, incomplete)) = alloc.allocated(vdev, ms).await else {
            rebuild.update(|p| p.errors += 1);
            return Ok(());
        };
        if incomplete {
            // What was allocated before is on its way: it is in the map, and on the devices, then.
            self.stack.sync().await?;
            runs = alloc.allocated(vdev, ms).await?.0;
        }
        let devices = top.open_leaves().len().max(1) as u64;
        let limit = self.tunables.get().vdev_limit.saturating_mul(devices).max(1 << 20);
        let room = Semaphore::new(limit);
        let mut tasks = Vec::new();
        'runs: for run in runs {
            let mut at = run.start;
            while at < run.end() {
                if self.is_stopped(top) || rebuild.again.get() || is_needless(top) {
                    break 'runs;
                }
                if self.scan.is_suspended() {
                    self.stack.rt.sleep(PAUSE).await;
                    continue;
                }
                let most = self.tunables.get().max_segment;
                let Some((asize, psize)) = top.rebuild_part(at, run.end() - at, most) else { break 'runs };
                let part = Run { start: at, size: asize };
                let permit = room.acquire(psize.clamp(1, limit)).await;
                let (me, top, rebuild) = (self.me.upgrade().expect("a method runs"), top.clone(), rebuild.clone());
                tasks.push(self.stack.rt.spawn("rebuild_part", async move {
                    me.part(&top, part, psize, &rebuild).await;
                    drop(permit);
                }));
                at += asize;
            }
        }
        for task in tasks {
            task.await;
        }
        Ok(())
    }

    /// Rebuilds a part.
    async fn part(&self, top: &Top, part: Run, psize: u64, rebuild: &Rebuild) {
        let place = BlockPlace {
            vdev: top.id,
            offset: part.start,
            psize,
            birth: base::TXG_INITIAL,
            // Any txg: a device that misses anything may miss this.
            written: Txg(0),
        };
        let repair = || Some(Prio::Rebuild);
        let done = match self.stack.tree.arbitrate_with(place, Prio::Rebuild, None, &repair).await {
            Ok(verdict) if verdict.doubtful => Err(()),
            Ok(verdict) => match (verdict.data, verdict.done.await) {
                (Ok(_), Ok(())) => Ok(verdict.repaired),
                _ => Err(()),
            },
            Err(_) => Err(()),
        };
        rebuild.update(|p| {
            p.scanned += part.size;
            p.issued += part.size;
            match done {
                Ok(repaired) => p.rebuilt += repaired,
                Err(()) => p.errors += 1,
            }
        });
    }

    async fn begin_again(&self, top: &Rc<Top>, rebuild: &Rc<Rebuild>) -> Result<()> {
        let (me, top, rebuild) = (self.me.upgrade().expect("a method runs"), top.clone(), rebuild.clone());
        self.changes
            .make(move |_, tx| {
                Box::pin(async move {
                    let start_time = rebuild.phys.get().start_time;
                    if me.begin(&top, &rebuild) {
                        rebuild.update(|p| (p.max_txg, p.start_time) = (tx.txg(), start_time));
                        me.save(&top, rebuild.phys.get(), tx).await?;
                        me.tell(&top, "reset", None, tx.txg());
                    } else {
                        // The next visit finds that nothing is missed.
                        rebuild.again.set(false);
                    }
                    Ok(Ok(()))
                })
            })
            .await
    }

    /// Ends a rebuild; false if a device was attached since its last part.
    async fn finish(&self, top: &Rc<Top>, rebuild: &Rc<Rebuild>, visit: Visit) -> Result<bool> {
        let (me, top, rebuild) = (self.me.upgrade().expect("a method runs"), top.clone(), rebuild.clone());
        self.changes
            .make(move |_, tx| {
                Box::pin(async move {
                    if rebuild.again.get() {
                        return Ok(Ok(false));
                    }
                    let whole = visit == Visit::Whole;
                    let (now, time_ms) = (me.seconds(), me.time_ms(&rebuild));
                    rebuild.update(|p| {
                        p.state = if whole { ScanState::Finished } else { ScanState::Canceled };
                        (p.end_time, p.time_ms) = (now, time_ms);
                    });
                    let phys = rebuild.phys.get();
                    me.save(&top, phys, tx).await?;
                    // The count comes from disk, and may be too low.
                    if me.stack.features.is_active(FeatureId::DeviceRebuild) {
                        me.stack.features.add(FeatureId::DeviceRebuild, -1, tx).await?;
                    }
                    if whole && phys.errors == 0 {
                        // What comes from disk may name a txg of the future.
                        me.scan.excise_rebuilt(&top, phys.max_txg.min(tx.txg()), tx.txg());
                    }
                    me.tell(&top, if whole { "complete" } else { "canceled" }, Some("resilver_finish"), tx.txg());
                    me.tell_scan();
                    if whole && phys.errors == 0 && me.tunables.get().scrub_after && !me.is_active() {
                        me.scan.scrub_if_idle(tx).await?;
                    }
                    me.stack.txg.kick();
                    Ok(Ok(true))
                })
            })
            .await
    }

    /// Waits for the end of the rebuild of a vdev of which nothing is missed any more.
    pub(super) async fn end_if_needless(&self, top: &Top) {
        let rebuild = self.all.borrow().get(&top.id).cloned();
        let Some(rebuild) = rebuild else { return };
        while rebuild.is_active() && rebuild.running.get() && is_needless(top) && !self.is_stopped(top) {
            let changed = self.changed.notified();
            let _ = self.stack.rt.timeout(PAUSE, changed).await;
        }
    }

    /// Starts no more parts: the pool is being closed.
    pub(crate) fn close(&self) {
        self.closing.set(true);
    }

    /// Ends the tasks; the rebuilds go on after the next import.
    pub(crate) async fn stop(&self) {
        self.close();
        loop {
            let changed = self.changed.notified();
            if !self.all.borrow().values().any(|r| r.running.get()) {
                return;
            }
            changed.await;
        }
    }
}
