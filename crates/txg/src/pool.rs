//! The pipeline: the open txg, its holds, dirty bytes, and the loop that syncs.
//!
//! Everything that moves a txg forward is a plain function that runs to its end (`close`,
//! `drained`), called by the event that makes it possible: the last hold that is dropped, the sync
//! loop when it takes a txg, a request to close. Only clients in [`TxgPool::throttle`], waiters and
//! the loop in [`TxgPool::run`] ever wait.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use base::{Error, ErrorKind, Log2, Nanos, Result, TXG_SIZE, Txg};
use rt::Rt;
use rt::join::select2;
use rt::sync::Notify;
use rt::trace::{Event, Groups, TxgPhase};
use vdev::DirtyGauge;

use crate::history::{History, TxgIo, TxgRecord, TxgState};
use crate::legacy::WriteLimit;
use crate::policy::{self, TxgTunables};
use crate::throttle;

/// Counters since the pool was opened, and the state now.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct TxgStats {
    /// Bytes dirty now, in all txgs.
    pub dirty: u64,
    /// Transactions that were delayed.
    pub delayed: u64,
    /// How long, summed.
    pub delayed_time: Nanos,
    /// Transactions that met the limit and blocked.
    pub blocked: u64,
    /// Transactions that block now.
    pub blocked_now: u64,
    /// Txgs closed because of their dirty share.
    pub kicked: u64,
    /// Txgs synced.
    pub synced: u64,
    /// Transactions that joined a txg.
    pub assigned: u64,
}

/// Administrative operations that are on disk, by the time from being asked for until then: bucket
/// b counts those of 2^b us to twice that, bucket 0 also shorter ones.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct AdminStats {
    /// How many took how long; the last bucket has all longer ones.
    pub buckets: Log2<32>,
    /// How long all of them took.
    pub time: Nanos,
}

impl AdminStats {
    /// How many there were.
    pub fn count(&self) -> u64 {
        self.buckets.total()
    }
}

/// Why the pool takes no more txgs.
#[derive(Clone, Debug)]
pub(crate) enum End {
    /// [`TxgPool::stop`], or the loop was dropped.
    Stopped,
    /// A sync failed.
    Suspended(Error),
}

impl End {
    fn error(&self) -> Error {
        match self {
            End::Stopped => Error::new(ErrorKind::Interrupted, "the pool is being closed"),
            End::Suspended(cause) => Error::new(ErrorKind::Suspended, format!("the pool is suspended: {cause}")),
        }
    }
}

pub(crate) struct Inner {
    pub(crate) rt: Rt,
    pub(crate) tunables: Cell<TxgTunables>,
    pub(crate) gauge: DirtyGauge,

    /// The txg that transactions join.
    pub(crate) open: Cell<Txg>,
    /// Closed, with holds left.
    pub(crate) quiescing: Cell<Option<Txg>>,
    /// Closed and drained, waiting for the loop.
    pub(crate) quiesced: Cell<Option<Txg>>,
    pub(crate) syncing: Cell<Option<Txg>>,
    /// When the last sync began.
    pub(crate) sync_began: Cell<Nanos>,
    pub(crate) synced: Cell<Txg>,
    /// All txgs below this one are to be closed.
    pub(crate) close_below: Cell<Txg>,
    /// The highest txg with a waiter for its sync.
    pub(crate) sync_wanted: Cell<Txg>,
    pub(crate) holds: [Cell<u64>; TXG_SIZE],

    pub(crate) dirty: Cell<u64>,
    pub(crate) dirty_of: [Cell<u64>; TXG_SIZE],
    /// When the open txg got its first and its last change; none yet.
    pub(crate) changed: Cell<Option<(Nanos, Nanos)>>,
    /// All that was made dirty in each txg, written meanwhile or not.
    pub(crate) towrite_of: [Cell<u64>; TXG_SIZE],
    /// Bytes reserved by the transactions that hold each txg.
    pub(crate) reserved_of: [Cell<u64>; TXG_SIZE],
    /// The limit of the throttle of 2008.
    pub(crate) write_limit: Cell<WriteLimit>,
    /// When the dirty share was last above that of delays; only the policy `smoothing` looks at it.
    pub(crate) above_at: Cell<Option<Nanos>>,
    pub(crate) wrlog: Cell<u64>,
    pub(crate) wrlog_of: [Cell<u64>; TXG_SIZE],
    pub(crate) last_wakeup: Cell<Nanos>,

    /// The last txg that goes to disk, of a frozen pool.
    pub(crate) frozen: Cell<Option<Txg>>,

    pub(crate) end: RefCell<Option<End>>,
    pub(crate) stopping: Cell<bool>,
    pub(crate) running: Cell<bool>,

    /// The loop looks for work again.
    pub(crate) work: Notify,
    /// A txg opened, was synced, or the pool ended.
    pub(crate) progress: Notify,
    /// Blocked transactions, let through one by one.
    pub(crate) space: Notify,
    /// The settings have changed.
    pub(crate) tunables_changed: Notify,
    pub(crate) history: RefCell<History>,
    pub(crate) stats: Cell<TxgStats>,
    pub(crate) assigned: Cell<u64>,
    pub(crate) admin: Cell<AdminStats>,
    /// Reads the counters of the devices.
    pub(crate) meter: RefCell<Option<Box<dyn Fn() -> TxgIo>>>,
}

/// The txg pipeline of one pool. Cheap to clone.
#[derive(Clone)]
pub struct TxgPool(pub(crate) Rc<Inner>);

/// Membership of a transaction in a txg: the txg does not begin to sync before it is dropped.
#[must_use = "the txg may begin to sync as soon as the hold is dropped"]
pub struct TxgHold {
    pool: Rc<Inner>,
    /// The txg that the transaction belongs to.
    pub txg: Txg,
    /// Bytes that the transaction may write.
    reserved: u64,
}

impl TxgHold {
    /// Reserves the bytes that the transaction may write.
    pub(crate) fn reserve(&mut self, bytes: u64) {
        let of = &self.pool.reserved_of[self.txg.slot()];
        of.set(of.get().saturating_sub(self.reserved).saturating_add(bytes));
        self.reserved = bytes;
    }
}

impl Drop for TxgHold {
    fn drop(&mut self) {
        self.reserve(0);
        let holds = &self.pool.holds[self.txg.slot()];
        holds.set(holds.get().checked_sub(1).expect("every hold was counted"));
        if holds.get() == 0 && self.pool.quiescing.get() == Some(self.txg) {
            self.pool.drained(self.txg);
        }
    }
}

impl Clone for TxgHold {
    /// A second hold on the same txg, which may be closed already.
    fn clone(&self) -> TxgHold {
        self.pool.hold(self.txg)
    }
}

impl std::fmt::Debug for TxgHold {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "TxgHold({})", self.txg)
    }
}

impl Inner {
    fn hold(self: &Rc<Self>, txg: Txg) -> TxgHold {
        let holds = &self.holds[txg.slot()];
        holds.set(holds.get() + 1);
        TxgHold { pool: self.clone(), txg, reserved: 0 }
    }

    pub(crate) fn record(&self, txg: Txg, f: impl FnOnce(&mut TxgRecord)) {
        if let Some(r) = self.history.borrow_mut().get(txg) {
            f(r);
        }
    }

    pub(crate) fn count(&self, f: impl FnOnce(&mut TxgStats)) {
        let mut s = self.stats.get();
        f(&mut s);
        self.stats.set(s);
    }

    /// The counters of the devices, if they are known.
    fn measure(&self) -> TxgIo {
        self.meter.borrow().as_ref().map_or(TxgIo::default(), |meter| meter())
    }

    fn trace_state(&self, txg: Txg, phase: TxgPhase) {
        let (dirty, limit) = (self.dirty.get(), self.tunables.get().dirty_data_max);
        let of_txg = self.towrite_of[txg.slot()].get();
        self.rt.trace(Groups::TXG, || Event::Txg { txg: txg.0, phase, dirty, limit, of_txg });
    }

    /// The open txg got a change; the first one wakes the loop.
    fn note_change(&self) {
        let now = self.rt.now();
        let first = match self.changed.get() {
            Some((first, _)) => first,
            None => {
                self.work.notify_all();
                now
            }
        };
        self.changed.set(Some((first, now)));
    }

    /// Requests the close of every txg up to and including `txg`.
    pub(crate) fn request_close(&self, txg: Txg) {
        if self.close_below.get() <= txg {
            self.close_below.set(txg.next());
        }
        self.close_if_requested();
    }

    /// Closes the open txg if that was requested and the stage behind it is free.
    fn close_if_requested(&self) {
        let open = self.open.get();
        let free = self.quiescing.get().is_none() && self.quiesced.get().is_none();
        if self.close_below.get() <= open || !free || self.end.borrow().is_some() {
            return;
        }
        let now = self.rt.now();
        self.record(open, |r| (r.state, r.closed) = (TxgState::Quiescing, now));
        let next = open.next();
        // The slot is reused only after the txg four before it has synced.
        assert!(
            self.dirty_of[next.slot()].get() == 0 && self.holds[next.slot()].get() == 0,
            "txg {next} opens in a used slot"
        );
        self.open.set(next);
        self.changed.set(None);
        self.history.borrow_mut().open(next, now, self.tunables.get().history);
        self.towrite_of[next.slot()].set(0);
        self.quiescing.set(Some(open));
        self.trace_state(open, TxgPhase::Quiescing);
        self.trace_state(next, TxgPhase::Open);
        if self.holds[open.slot()].get() == 0 {
            self.drained(open);
        }
        self.progress.notify_all();
    }

    /// The last hold of the closed txg is gone.
    fn drained(&self, txg: Txg) {
        let now = self.rt.now();
        self.record(txg, |r| (r.state, r.quiesced) = (TxgState::Quiesced, now));
        self.quiescing.set(None);
        self.quiesced.set(Some(txg));
        self.trace_state(txg, TxgPhase::Quiesced);
        self.work.notify_all();
    }

    pub(crate) fn set_dirty(&self, dirty: u64) {
        self.dirty.set(dirty);
        let t = self.tunables.get();
        self.above_at.set(throttle::above_after(self.above_at.get(), dirty, self.rt.now(), &t));
        self.gauge.0.set(policy::dirty_percent(dirty, &t));
        self.wake_blocked();
    }

    /// Lets one blocked transaction through for each change of the dirty bytes, so that each meets
    /// the delay of its moment; all of them once dirty bytes are below the start of the curve.
    pub(crate) fn wake_blocked(&self) {
        let (dirty, t) = (self.dirty.get(), self.tunables.get());
        if self.space.waiters() == 0 || policy::at_limit(dirty, &t) && dirty > 0 {
            return;
        }
        if dirty <= t.delay_min() { self.space.notify_all() } else { self.space.notify_one() }
    }

    fn finish(&self, end: End) {
        let mut slot = self.end.borrow_mut();
        if slot.is_none() {
            *slot = Some(end);
        }
        drop(slot);
        self.work.notify_all();
        self.progress.notify_all();
        self.space.notify_all();
    }

    pub(crate) fn ended(&self) -> Option<Error> {
        self.end.borrow().as_ref().map(End::error)
    }
}

impl TxgPool {
    /// A pipeline whose first txg is `first_open`; the one before it counts as synced. `gauge` is
    /// given the dirty share.
    pub fn new(rt: Rt, first_open: Txg, tunables: TxgTunables, gauge: DirtyGauge) -> TxgPool {
        assert!(first_open.0 > 0, "txg 0 does not exist");
        let mut history = History::new();
        history.open(first_open, rt.now(), tunables.history);
        TxgPool(Rc::new(Inner {
            rt,
            tunables: Cell::new(tunables),
            gauge,
            open: Cell::new(first_open),
            quiescing: Cell::new(None),
            quiesced: Cell::new(None),
            syncing: Cell::new(None),
            sync_began: Cell::new(Nanos(0)),
            synced: Cell::new(Txg(first_open.0 - 1)),
            close_below: Cell::new(first_open),
            sync_wanted: Cell::new(Txg(0)),
            holds: Default::default(),
            dirty: Cell::new(0),
            dirty_of: Default::default(),
            changed: Cell::new(None),
            towrite_of: Default::default(),
            reserved_of: Default::default(),
            write_limit: Cell::new(WriteLimit::new(&tunables)),
            above_at: Cell::new(None),
            wrlog: Cell::new(0),
            wrlog_of: Default::default(),
            last_wakeup: Cell::new(Nanos(0)),
            frozen: Cell::default(),
            end: RefCell::new(None),
            stopping: Cell::new(false),
            running: Cell::new(false),
            work: Notify::new(),
            progress: Notify::new(),
            space: Notify::new(),
            tunables_changed: Notify::new(),
            history: RefCell::new(history),
            stats: Cell::new(TxgStats::default()),
            assigned: Cell::default(),
            admin: Cell::default(),
            meter: RefCell::default(),
        }))
    }

    /// Joins the open txg. Never waits; async for the sake of policies that do.
    pub async fn hold_open(&self) -> TxgHold {
        self.hold()
    }

    /// Joins the open txg.
    pub fn hold(&self) -> TxgHold {
        self.0.hold(self.0.open.get())
    }

    /// `bytes` became dirty in `txg`, which the caller holds or syncs.
    pub fn dirty_add(&self, txg: Txg, bytes: u64) {
        let p = &*self.0;
        assert!(txg > p.synced.get() && txg <= p.open.get(), "txg {txg} takes no changes");
        let of = &p.dirty_of[txg.slot()];
        of.set(of.get() + bytes);
        let towrite = &p.towrite_of[txg.slot()];
        towrite.set(towrite.get() + bytes);
        p.record(txg, |r| r.dirty += bytes);
        p.set_dirty(p.dirty.get() + bytes);
        let t = p.tunables.get();
        if t.txg_idle_timeout > Nanos(0) && txg == p.open.get() {
            p.note_change();
        }
        let full = t.policy.closes_by_share() && policy::is_full(of.get(), &t);
        if txg == p.open.get() && p.close_below.get() <= txg && full {
            p.count(|s| s.kicked += 1);
            p.request_close(txg);
        }
    }

    /// `bytes` of `txg` are dirty no more: written, or given up.
    pub fn dirty_done(&self, txg: Txg, bytes: u64) {
        let p = &*self.0;
        if txg <= p.synced.get() {
            return; // taken back as a whole when the txg was synced
        }
        let of = &p.dirty_of[txg.slot()];
        let bytes = bytes.min(of.get());
        of.set(of.get() - bytes);
        p.set_dirty(p.dirty.get() - bytes);
    }

    /// `bytes` were appended to intent logs in `txg`; they count until it has synced.
    pub fn wrlog_add(&self, txg: Txg, bytes: u64) {
        let p = &*self.0;
        let of = &p.wrlog_of[txg.slot()];
        of.set(of.get() + bytes);
        p.wrlog.set(p.wrlog.get() + bytes);
        // Three quarters of the dirty kick share, of the log's own limit (behaviour section 3.1).
        let t = p.tunables.get();
        let kick = t.wrlog_data_max / 200 * (u64::from(t.dirty_data_sync_percent) + 10);
        if t.policy.closes_by_share() && txg == p.open.get() && p.close_below.get() <= txg && of.get() > kick {
            p.request_close(txg);
        }
    }

    /// Bytes dirty now, in all txgs.
    pub fn dirty(&self) -> u64 {
        self.0.dirty.get()
    }

    /// Bytes of `txg` (one of the three that exist) that are dirty now.
    pub fn dirty_in(&self, txg: Txg) -> u64 {
        self.0.dirty_of[txg.slot()].get()
    }

    /// Waits until `txg` is on disk; 0 means the one that is open now. Makes it sync if nothing
    /// else does.
    pub async fn wait_synced(&self, txg: Txg) -> Result<()> {
        let p = &*self.0;
        let txg = if txg == Txg(0) { p.open.get() } else { txg };
        loop {
            if p.synced.get() >= txg {
                return Ok(());
            }
            if let Some(e) = p.ended() {
                return Err(e);
            }
            if p.sync_wanted.get() < txg {
                p.sync_wanted.set(txg);
                p.work.notify_all();
            }
            p.progress.notified().await;
        }
    }

    /// Waits until `txg` (0: the open one) is on disk, and does not hasten it. Errors as those of
    /// [`TxgPool::wait_synced`].
    pub async fn when_synced(&self, txg: Txg) -> Result<()> {
        let p = &*self.0;
        let txg = if txg == Txg(0) { p.open.get() } else { txg };
        while p.synced.get() < txg {
            if let Some(e) = p.ended() {
                return Err(e);
            }
            p.progress.notified().await;
        }
        Ok(())
    }

    /// Waits until `txg` or a later one is open; 0 means the one after that which is open now.
    /// Errors as [`TxgPool::wait_synced`].
    pub async fn wait_open(&self, txg: Txg) -> Result<()> {
        let p = &*self.0;
        let txg = if txg == Txg(0) { p.open.get().next() } else { txg };
        loop {
            if p.open.get() >= txg {
                return Ok(());
            }
            if let Some(e) = p.ended() {
                return Err(e);
            }
            p.request_close(Txg(txg.0 - 1));
            p.progress.notified().await;
        }
    }

    /// Closes the open txg as soon as the stage behind it is free; it then syncs.
    pub fn kick(&self) {
        self.0.request_close(self.0.open.get());
    }

    /// Stops the loop after the sync that is running, if any. Waiters get an error of kind
    /// `Interrupted`.
    pub fn stop(&self) {
        self.0.stopping.set(true);
        if self.0.syncing.get().is_none() {
            self.0.finish(End::Stopped);
        }
        self.0.work.notify_all();
    }

    /// Waits until [`TxgPool::run`] has returned (at once if it does not run).
    pub async fn wait_stopped(&self) {
        while self.0.running.get() {
            self.0.progress.notified().await;
        }
    }

    /// Marks the pool as suspended because of `cause`, as a failed sync does.
    pub fn suspend(&self, cause: Error) {
        self.0.finish(End::Suspended(cause));
    }

    /// The error that waiters get, if the pool has been suspended or stopped.
    pub fn ended(&self) -> Option<Error> {
        self.0.ended()
    }

    /// The sync loop: closes, drains and syncs txgs in order, each by one call of `sync`, until
    /// [`TxgPool::stop`] (then Ok) or until `sync` fails (then its error, and the pool is
    /// suspended). One loop per pool.
    pub async fn run(&self, sync: impl AsyncFn(Txg) -> Result<()>) -> Result<()> {
        let p = &*self.0;
        assert!(!p.running.replace(true), "one sync loop per pool");
        let _running = Running(p);
        let mut last_start = p.rt.now();
        loop {
            let txg = loop {
                if p.stopping.get() || p.end.borrow().is_some() {
                    p.finish(End::Stopped);
                    return Ok(());
                }
                if let Some(txg) = p.quiesced.get() {
                    break txg;
                }
                let (now, t) = (p.rt.now(), p.tunables.get());
                let idle = p.changed.get().and_then(|(first, last)| policy::idle_due(first, last, t.txg_idle_timeout));
                let (wanted, synced) = (p.sync_wanted.get().0, p.synced.get().0);
                match policy::sync_due(false, wanted, synced, now, last_start, t.txg_timeout, idle) {
                    Ok(_) => {
                        // A txg that quiesces already will do.
                        if p.quiescing.get().is_none() {
                            p.request_close(p.open.get());
                        }
                        if p.quiesced.get().is_none() {
                            p.work.notified().await;
                        }
                    }
                    Err(until) => {
                        select2(p.work.notified(), p.rt.sleep_until(until)).await;
                    }
                }
            };
            let now = p.rt.now();
            last_start = now;
            p.quiesced.set(None);
            p.syncing.set(Some(txg));
            p.sync_began.set(now);
            p.record(txg, |r| (r.state, r.sync_start) = (TxgState::Syncing, now));
            p.trace_state(txg, TxgPhase::Syncing);
            // A request to close the next txg can be met now.
            p.close_if_requested();
            let before = p.measure();
            let result = sync(txg).await;
            p.syncing.set(None);
            if let Err(e) = result {
                p.finish(End::Suspended(e.clone()));
                return Err(e);
            }
            let now = p.rt.now();
            let io = p.measure().since(&before);
            p.record(txg, |r| (r.state, r.synced, r.io) = (TxgState::Committed, now, io));
            let towrite = p.towrite_of[txg.slot()].get();
            p.write_limit.set(p.write_limit.get().after_sync(towrite, now.since(last_start), &p.tunables.get()));
            p.trace_state(txg, TxgPhase::Synced);
            // Bytes that no `dirty_done` took back were dirtied in vain, or by the sync itself.
            let left = p.dirty_of[txg.slot()].replace(0);
            let log = p.wrlog_of[txg.slot()].replace(0);
            p.wrlog.set(p.wrlog.get() - log);
            p.synced.set(txg);
            p.set_dirty(p.dirty.get() - left);
            p.count(|s| s.synced += 1);
            p.progress.notify_all();
        }
    }

    /// Records that an administrative operation requested at `asked` is on disk with `txg`.
    pub fn admin_done(&self, txg: Txg, asked: Nanos) {
        let p = &*self.0;
        let now = p.rt.now();
        let waited = now.since(asked);
        let mut stats = p.admin.get();
        stats.buckets.add(waited.0 / 1000);
        stats.time = Nanos(stats.time.0.saturating_add(waited.0));
        p.admin.set(stats);
        p.rt.trace_at(now, Groups::TXG, || Event::Admin { txg: txg.0, waited });
    }
    /// The world's clock.
    pub fn now(&self) -> Nanos {
        self.0.rt.now()
    }
    /// How long administrative operations took.
    pub fn admin_stats(&self) -> AdminStats {
        self.0.admin.get()
    }
    /// The txg that transactions join now.
    pub fn open_txg(&self) -> Txg {
        self.0.open.get()
    }
    /// Since when a txg is being written, if one is.
    pub fn syncing_since(&self) -> Option<Nanos> {
        self.0.syncing.get().map(|_| self.0.sync_began.get())
    }
    /// The txg that is being written, if one is.
    pub fn syncing_txg(&self) -> Option<Txg> {
        self.0.syncing.get()
    }
    /// The last txg that is on disk.
    pub fn last_synced(&self) -> Txg {
        self.0.synced.get()
    }
    /// The last txg whose state an import after a power cut would find: [`TxgPool::last_synced`]
    /// unless the pool is frozen.
    pub fn last_durable(&self) -> Txg {
        let synced = self.last_synced();
        self.0.frozen.get().map_or(synced, |last| last.min(synced))
    }
    /// Freezes the pool for as long as it is imported: the txg that is open now, which is returned,
    /// is the last one that becomes the state on disk. Later ones are synced in memory and to free
    /// space, and nothing refers to them. Does nothing in a frozen pool.
    pub fn freeze(&self) -> Txg {
        let last = self.0.frozen.get().unwrap_or(self.open_txg());
        self.0.frozen.set(Some(last));
        last
    }
    /// Whether `txg` never becomes the state on disk: see [`TxgPool::freeze`].
    pub fn is_frozen(&self, txg: Txg) -> bool {
        self.0.frozen.get().is_some_and(|last| txg > last)
    }
    /// The limit of the throttle of 2008, from the measured throughput; it is updated under every
    /// policy.
    pub fn write_limit(&self) -> WriteLimit {
        self.0.write_limit.get()
    }
    /// The settings.
    pub fn tunables(&self) -> TxgTunables {
        self.0.tunables.get()
    }
    /// Changes the settings; they hold from the next decision on.
    pub fn set_tunables(&self, tunables: TxgTunables) {
        self.0.tunables.set(tunables);
        // Sleeping transactions wake and sleep by the new settings.
        self.0.last_wakeup.set(self.0.last_wakeup.get().min(self.0.rt.now()));
        self.0.tunables_changed.notify_all();
        self.0.set_dirty(self.0.dirty.get());
        self.0.work.notify_all();
    }
    /// Counters.
    pub fn stats(&self) -> TxgStats {
        TxgStats { dirty: self.0.dirty.get(), assigned: self.0.assigned.get(), ..self.0.stats.get() }
    }
    /// The last txgs, oldest first; the last is the open one.
    pub fn history(&self) -> Vec<TxgRecord> {
        self.0.history.borrow().to_vec()
    }
    /// Those of them that `zfs_txg_history` and [`TxgPool::clear_history`] leave to be listed.
    pub fn listed_history(&self) -> Vec<TxgRecord> {
        self.0.history.borrow().listed(self.0.tunables.get().history)
    }
    /// Lists only the txgs that open from now on.
    pub fn clear_history(&self) {
        self.0.history.borrow_mut().clear();
    }
    /// `meter` reads the counters of the pool's devices, for the history.
    pub fn set_meter(&self, meter: impl Fn() -> TxgIo + 'static) {
        *self.0.meter.borrow_mut() = Some(Box::new(meter));
    }
}

/// The loop is alive; if its future is dropped, its waiters fail instead of hanging.
struct Running<'a>(&'a Inner);

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.0.running.set(false);
        self.0.syncing.set(None);
        self.0.finish(End::Stopped);
    }
}
