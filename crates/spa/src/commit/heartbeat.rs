//! The heartbeat of a pool with the property `multihost` (MMP): uberblocks that say that the pool
//! is in use, for hosts that could import it meanwhile (format pages 01 section 6 and 17 section
//! 4).
//!
//! Between two txgs the uberblock of the last one is written again and again, to the last slot of a
//! ring that no txg uses, with a newer time or a higher sequence; each write goes to another
//! device, so that each of them has a new one about once in an interval; a device that takes its
//! time is passed over until it has done the last one. An importing host that sees a change keeps
//! off ([`crate::open::multihost`]). A host whose heartbeat did not reach the
//! devices for so long that another one may have taken the pool over must not write any more: the
//! txg that is to be committed then fails, and the pool is suspended for good.
//!
//! What lets others wait is what the last heartbeat on a device says of the settings: when these
//! change the next one is due at once, and until it is on a device the old ones limit how long the
//! pool may go without.
//!
//! The last heartbeats are kept for whoever wants to see them ([`Beat`]; none by default).

use std::cell::{Cell, RefCell};
use std::collections::{BTreeSet, VecDeque};
use std::rc::Rc;

use base::{Error, ErrorKind, Guid, Nanos, Result, Txg};
use ondisk::label::LABELS;
use ondisk::uberblock::Uberblock;
use rt::Rt;
use rt::join::select2;
use rt::sync::Notify;
use txg::TxgPool;
use vdev::labels::write_heartbeat;
use vdev::{Leaf, VdevTree};

/// Settings of `multihost`, with OpenZFS's names and defaults.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MultihostTunables {
    /// `zfs_multihost_interval`: time in which each device gets a heartbeat, 100 ms or more.
    pub interval: Nanos,
    /// `zfs_multihost_fail_intervals`: the pool is suspended after so many without any heartbeat;
    /// 0: never.
    pub fail_intervals: u64,
    /// `zfs_multihost_import_intervals`: an import watches a pool for so many, if the pool itself
    /// does not say how long.
    pub import_intervals: u64,
    /// `zfs_multihost_history`: heartbeats that are kept to be looked at.
    pub history: usize,
}

/// What became of a heartbeat.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum BeatEnd {
    /// It is being written.
    Writing,
    /// It was written, or not, and how long that took.
    Done {
        /// It is on the device.
        ok: bool,
        /// From issue to end.
        took: Nanos,
    },
    /// No device could take it, so many times one after the other.
    Skipped {
        /// How often.
        times: u64,
        /// Some device had not done the one before.
        pending: bool,
        /// From the first time to the last one.
        took: Nanos,
    },
}

/// A heartbeat, as `zfs_multihost_history` keeps them.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Beat {
    /// Its number, from 0.
    pub id: u64,
    /// The txg of its uberblock.
    pub txg: Txg,
    /// When it was issued, in seconds since 1970.
    pub time: u64,
    /// Nanoseconds from one to the next, averaged.
    pub delay: u64,
    /// The device, its path and the label; none if it was skipped.
    pub device: Option<(Guid, String, usize)>,
    /// What became of it.
    pub end: BeatEnd,
}

impl Default for MultihostTunables {
    fn default() -> MultihostTunables {
        MultihostTunables { interval: Nanos::from_secs(1), fail_intervals: 10, import_intervals: 20, history: 0 }
    }
}

/// Shortest interval (`MMP_MIN_INTERVAL`).
const INTERVAL_MIN: Nanos = Nanos::from_ms(100);

impl MultihostTunables {
    /// Milliseconds of an interval, as uberblocks have them.
    pub(crate) fn interval_ms(&self) -> u64 {
        self.interval.max(INTERVAL_MIN).0 / 1_000_000
    }

    /// How long the pool may go without a heartbeat; None: for ever.
    fn limit(&self) -> Option<Nanos> {
        (self.fail_intervals > 0).then(|| Nanos(self.interval_ms() * 1_000_000 * self.fail_intervals))
    }
}

/// The heartbeat of one pool.
pub(crate) struct Heartbeat {
    rt: Rt,
    tree: Rc<VdevTree>,
    txg: TxgPool,
    tunables: Cell<MultihostTunables>,
    on: Cell<bool>,
    closed: Cell<bool>,
    running: Cell<bool>,
    changed: Notify,
    /// The uberblock of the last txg, with the time and sequence of the last heartbeat.
    last: RefCell<Option<Uberblock>>,
    seq: Cell<u64>,
    /// When a heartbeat last reached a device.
    good: Cell<Nanos>,
    /// Nanoseconds from one heartbeat to the next, averaged.
    delay: Cell<u64>,
    /// Counts heartbeats, to take the devices in turn.
    turn: Cell<usize>,
    /// Devices that have not done their last one.
    pending: RefCell<BTreeSet<Guid>>,
    /// The last ones, and the number of the next.
    beats: RefCell<VecDeque<Beat>>,
    next_id: Cell<u64>,
    /// When those that are skipped one after the other began to be.
    skipped_since: Cell<Option<Nanos>>,
    /// How long the last heartbeat on a device lets others wait.
    promised: Cell<Option<Nanos>>,
    /// Others must hear of changed settings: the next one is due.
    due: Cell<bool>,
}

impl Heartbeat {
    pub(crate) fn new(rt: &Rt, tree: &Rc<VdevTree>, txg: &TxgPool, tunables: MultihostTunables, on: bool) -> Rc<Self> {
        Rc::new(Heartbeat {
            rt: rt.clone(),
            tree: tree.clone(),
            txg: txg.clone(),
            tunables: Cell::new(tunables),
            on: Cell::new(on),
            closed: Cell::new(false),
            running: Cell::new(false),
            changed: Notify::new(),
            last: RefCell::default(),
            seq: Cell::new(0),
            good: Cell::new(rt.now()),
            delay: Cell::new(tunables.interval.0),
            turn: Cell::new(0),
            pending: RefCell::default(),
            beats: RefCell::default(),
            next_id: Cell::new(0),
            skipped_since: Cell::new(None),
            promised: Cell::new(tunables.limit()),
            due: Cell::new(false),
        })
    }

    /// Whether the property is on.
    pub(crate) fn is_on(&self) -> bool {
        self.on.get()
    }

    /// Sets the property in a running pool; the uberblock of the next txg says so.
    pub(crate) fn set(self: &Rc<Self>, on: bool) {
        if on && !self.on.get() {
            self.good.set(self.rt.now());
            self.promised.set(self.tunables.get().limit());
        }
        self.on.set(on);
        self.changed.notify_all();
        self.begin();
    }

    /// Begins the heartbeat of a pool that runs, if the property is on.
    pub(crate) fn begin(self: &Rc<Self>) {
        if self.on.get() && !self.closed.get() && !self.running.replace(true) {
            // It ends with the property, or when the pool is closed.
            self.rt.spawn("heartbeat", self.clone().run());
        }
    }

    /// Changes the settings.
    pub(crate) fn set_tunables(&self, tunables: MultihostTunables) {
        let old = self.tunables.replace(tunables);
        if old != tunables {
            self.trim();
            let same = MultihostTunables { history: tunables.history, ..old } == tunables;
            self.due.set(self.due.get() || !same);
            self.changed.notify_all();
        }
    }

    /// The heartbeats that are kept, oldest first.
    pub(crate) fn beats(&self) -> Vec<Beat> {
        self.beats.borrow().iter().cloned().collect()
    }

    /// Forgets them.
    pub(crate) fn clear_beats(&self) {
        self.beats.borrow_mut().clear();
    }

    fn trim(&self) {
        let mut beats = self.beats.borrow_mut();
        while beats.len() > self.tunables.get().history {
            beats.pop_front();
        }
    }

    /// Notes a heartbeat; its number.
    fn note(&self, device: Option<(Guid, String, usize)>, end: BeatEnd) -> u64 {
        let id = self.next_id.get();
        self.next_id.set(id + 1);
        let (txg, time) = self.last.borrow().as_ref().map_or((Txg(0), 0), |ub| (ub.txg, ub.timestamp));
        if self.tunables.get().history > 0 {
            self.beats.borrow_mut().push_back(Beat { id, txg, time, delay: self.delay.get(), device, end });
            self.trim();
        }
        id
    }

    /// Says what became of one.
    fn end_of(&self, id: u64, end: BeatEnd) {
        if let Some(beat) = self.beats.borrow_mut().iter_mut().rev().find(|b| b.id == id) {
            beat.end = end;
        }
    }

    /// No device can take a heartbeat now.
    fn skip(&self, pending: bool) {
        let now = self.rt.now();
        if let Some(since) = self.skipped_since.get()
            && let Some(Beat { end: BeatEnd::Skipped { times, pending: old, took }, .. }) =
                self.beats.borrow_mut().back_mut()
            && *old == pending
        {
            (*times, *took) = (*times + 1, now.since(since));
            return;
        }
        self.skipped_since.set(Some(now));
        self.note(None, BeatEnd::Skipped { times: 1, pending, took: Nanos(0) });
    }

    /// No more heartbeats: the pool is being closed.
    pub(crate) fn close(&self) {
        self.closed.set(true);
        self.changed.notify_all();
    }

    fn mark(&self, ub: &mut Uberblock, seq: u64) {
        let t = self.tunables.get();
        ub.set_multihost(self.delay.get().max(1), t.interval_ms(), seq, t.fail_intervals);
    }

    /// Marks the uberblock of a txg. Error: `Suspended` if there was no heartbeat for so long that
    /// another host may have the pool by now.
    pub(crate) fn stamp(&self, ub: &mut Uberblock) -> Result<()> {
        if self.on.get() {
            self.check()?;
            self.mark(ub, 0);
        }
        Ok(())
    }

    /// A txg was committed with this uberblock.
    pub(crate) fn committed(&self, ub: &Uberblock) {
        let before = self.last.replace(Some(ub.clone()));
        self.seq.set(0);
        self.good.set(self.rt.now());
        self.promised.set(self.tunables.get().limit());
        if before.is_none() {
            self.changed.notify_all();
        }
    }

    fn check(&self) -> Result<()> {
        let since = self.rt.now().since(self.good.get());
        match self.promised.get() {
            Some(limit) if since > limit => Err(Error::new(
                ErrorKind::Suspended,
                format!(
                    "no heartbeat of this host reached the devices for {} seconds, so another host may use the pool: export it here with -f, and import it again",
                    since.0 / 1_000_000_000
                ),
            )),
            _ => Ok(()),
        }
    }

    /// The uberblock of the next heartbeat.
    fn next(&self) -> Option<Uberblock> {
        let mut last = self.last.borrow_mut();
        let ub = last.as_mut()?;
        let now = self.rt.wall_clock().secs.max(0) as u64;
        if now > ub.timestamp {
            ub.timestamp = now;
            self.seq.set(0);
        }
        // 16 bits; the next second starts again.
        self.seq.set((self.seq.get() + 1).min(0xffff));
        self.mark(ub, self.seq.get());
        Some(ub.clone())
    }

    fn leaves(&self) -> Vec<(u8, Rc<Leaf>)> {
        let tops = self.tree.tops.borrow();
        tops.iter().flat_map(|t| t.open_leaves().into_iter().map(|l| (t.ashift, l))).collect()
    }

    /// Writes heartbeats until the property is off or the pool is closed.
    async fn run(self: Rc<Self>) {
        // When the last one was due.
        let mut last = self.rt.now();
        while self.on.get() && !self.closed.get() {
            let changed = self.changed.notified();
            if self.last.borrow().is_none() {
                changed.await;
                continue;
            }
            let leaves = self.leaves();
            let interval = self.tunables.get().interval_ms() * 1_000_000;
            let due = last + Nanos(interval / leaves.len().max(1) as u64);
            if !self.due.take() && self.rt.now() < due {
                select2(self.rt.sleep_until(due), changed).await;
                // Devices and settings may be others by now.
                continue;
            }
            // None is made up for.
            last = self.rt.now();
            if let Err(e) = self.check() {
                self.txg.suspend(e);
                break;
            }
            let turn = self.turn.get() % leaves.len().max(1);
            let pending = |l: &Leaf| self.pending.borrow().contains(&l.guid());
            let in_turn = (turn..leaves.len()).chain(0..turn);
            let Some(at) = in_turn.into_iter().find(|&at| !pending(&leaves[at].1)) else {
                self.skip(!leaves.is_empty());
                continue;
            };
            self.turn.set(at + 1);
            let Some(ub) = self.next() else { continue };
            let (ashift, leaf) = leaves[at].clone();
            self.pending.borrow_mut().insert(leaf.guid());
            // A device that does not answer holds up no other one.
            self.rt.spawn("heartbeat write", self.clone().write(ashift, leaf, ub));
        }
        self.running.set(false);
    }

    /// Writes one heartbeat.
    async fn write(self: Rc<Self>, ashift: u8, leaf: Rc<Leaf>, ub: Uberblock) {
        let limit = self.tunables.get().limit();
        let (label, issued) = (self.rt.rng_below(LABELS as u64) as usize, self.rt.now());
        self.skipped_since.set(None);
        let id = self.note(Some((leaf.guid(), leaf.path(), label)), BeatEnd::Writing);
        let ok = write_heartbeat(&leaf, ashift, label, &ub).await.is_ok();
        self.pending.borrow_mut().remove(&leaf.guid());
        self.end_of(id, BeatEnd::Done { ok, took: self.rt.now().since(issued) });
        // What counts for others is when it was written at the latest, here when at the earliest.
        if ok && issued > self.good.get() {
            self.promised.set(limit);
            let took = issued.since(self.good.replace(issued)).0;
            self.delay.set(averaged(self.delay.get(), took));
        }
    }
}

/// The delay after a heartbeat that came `took` after the one before: longer ones count at once,
/// shorter ones slowly, as in OpenZFS.
fn averaged(delay: u64, took: u64) -> u64 {
    if took > delay { took } else { (delay / 128 * 127 + took / 128).max(1) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_follow_the_settings() {
        let t = MultihostTunables::default();
        assert_eq!((t.interval_ms(), t.limit()), (1000, Some(Nanos::from_secs(10))));
        assert_eq!(MultihostTunables { fail_intervals: 0, ..t }.limit(), None);
        assert_eq!(MultihostTunables { interval: Nanos(5), ..t }.interval_ms(), 100);
    }

    #[test]
    fn delays_grow_at_once_and_shrink_slowly() {
        assert_eq!(averaged(1000, 5000), 5000);
        assert!((9_900..10_000).contains(&averaged(10_000, 100)));
        assert_eq!(averaged(1, 0), 1);
    }
}
