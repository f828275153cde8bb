//! Events of a pool for `zpool events`, in OpenZFS's classes and with its payloads.
//!
//! The pool posts to the [`EventSink`] that a layer above sets; without one no events are made, but
//! for the history of the pool's opening, which the sink gets first. Three sources:
//!
//! * *sysevents* and *history events* are posted at their source, mostly in syncing context.
//! * *state changes* of leaves are found by comparison: at the beginning of every txg, and whenever
//!   errors are examined, the states are compared with the last ones. So a change of state cannot
//!   go unreported.
//! * *ereports* begin as trace events of the group [`Groups::FAULT`], in the middle of a device
//!   operation. They are queued as plain numbers and processed a moment later by a task with access
//!   to the tree; that batches many errors, and limits their rate as OpenZFS does, counting the
//!   dropped ones.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::rc::{Rc, Weak};

use base::{Error, Guid, Nanos, WallTime};
use ondisk::nvlist::{NvList, NvValue};
use rt::Rt;
use rt::sync::Notify;
use rt::trace::{Event, FaultKind, Groups, Listening};
use vdev::{FailMode, Health, Top, VdevKind};

use crate::commit::config::Config;
use crate::devices::aux::Aux;
use crate::stack::Stack;

/// Most queued faults, if a second may not have more; more are dropped.
const FAULTS_MAX: usize = 64;
/// The class of an entry of the pool's history.
const HISTORY: &str = "sysevent.fs.zfs.history_event";
/// How long faults are collected.
const GATHER: Nanos = Nanos::from_ms(20);
/// Most events that wait for the first sink; later ones are dropped.
const EARLY_MAX: usize = 64;

/// Limits of events.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct EventTunables {
    /// `zfs_checksum_events_per_second`: reports a second of checksums and of failed operations,
    /// of one leaf.
    pub errors_per_second: u32,
    /// `zfs_slow_io_events_per_second`: reports a second of slow operations, of one leaf.
    pub slow_per_second: u32,
    /// `zfs_deadman_events_per_second`: reports a second of operations that hang, of one leaf.
    pub hung_per_second: u32,
    /// `zfs_deadman_enabled`: operations that hang are reported.
    pub deadman: bool,
    /// `zfs_deadman_synctime_ms`: while a txg is being written for longer, in ms, an operation that
    /// is at a device for as long hangs.
    pub hung_sync_ms: u32,
    /// `zfs_deadman_checktime_ms`: the time between two looks for such operations, in ms.
    pub deadman_check_ms: u32,
}

impl EventTunables {
    /// The most a second.
    fn most(&self, of: Rate) -> u32 {
        match of {
            Rate::Errors => self.errors_per_second,
            Rate::Slow => self.slow_per_second,
            Rate::Hung => self.hung_per_second,
        }
    }

    /// The most faults that are queued: as many as a second may have, or a few.
    fn queued_max(&self) -> usize {
        FAULTS_MAX.max(self.errors_per_second.max(self.slow_per_second) as usize)
    }
}

/// What is counted together for limits of events.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Rate {
    Errors,
    Slow,
    Hung,
}

impl Rate {
    fn of(kind: FaultKind) -> Rate {
        match kind {
            FaultKind::Delay => Rate::Slow,
            FaultKind::Deadman => Rate::Hung,
            _ => Rate::Errors,
        }
    }
}

/// Looks for operations that hang now and then, until the pool is gone.
async fn watch_hung(events: Weak<Events>, rt: Rt) {
    loop {
        let Some(now) = events.upgrade() else { return };
        let (tuned, pause) = (now.tuned.clone(), Nanos::from_ms(now.tunables.get().deadman_check_ms.max(1).into()));
        now.report_hung();
        drop(now);
        rt::join::select2(rt.sleep(pause), tuned.notified()).await;
    }
}

/// Counts an event at `at` in its second; whether it is one of the first `most`.
fn counts((second, n): &mut (u64, u32), at: Nanos, most: u32) -> bool {
    if *second != at.0 / 1_000_000_000 {
        (*second, *n) = (at.0 / 1_000_000_000, 0);
    }
    *n = n.saturating_add(1);
    *n <= most
}

impl Default for EventTunables {
    /// Those of OpenZFS.
    fn default() -> EventTunables {
        EventTunables {
            errors_per_second: 20,
            slow_per_second: 20,
            hung_per_second: 1,
            deadman: true,
            hung_sync_ms: 600_000,
            deadman_check_ms: 60_000,
        }
    }
}

/// A store of events.
pub trait EventSink {
    /// Stores an event. `time` is when it happened; the payload has no class and time yet.
    fn post(&self, class: String, time: WallTime, payload: NvList);
}

/// The events of a pool.
pub(crate) struct Events {
    stack: Rc<Stack>,
    config: Rc<Config>,
    aux: Rc<Aux>,
    sink: RefCell<Option<Rc<dyn EventSink>>>,
    /// The history of the pool's opening: time and payload.
    early: RefCell<Vec<(WallTime, NvList)>>,
    listening: RefCell<Option<Listening>>,
    faults: Rc<RefCell<VecDeque<(Nanos, Event)>>>,
    gathering: Rc<Cell<bool>>,
    states: RefCell<BTreeMap<u64, Health>>,
    /// Leaves whose device is being closed and reopened: their states are not compared.
    reopening: RefCell<BTreeSet<u64>>,
    /// Reasons for state changes of leaves, until their events are posted.
    reasons: RefCell<BTreeMap<u64, String>>,
    /// Per leaf, and of one [`Rate`]: the second, and ereports in it.
    rates: RefCell<BTreeMap<(u64, Rate), (u64, u32)>>,
    tunables: Rc<Cell<EventTunables>>,
    /// They were changed.
    tuned: Rc<Notify>,
    suspensions: Cell<u64>,
}

/// A leaf whose device is being reopened, see [`Events::reopening`].
pub(crate) struct Reopening(Rc<Events>, Guid);

impl Drop for Reopening {
    fn drop(&mut self) {
        self.0.reopening.borrow_mut().remove(&self.1.0);
    }
}

/// OpenZFS's number of a state.
fn state_number(health: Health) -> u64 {
    match health {
        Health::Offline => 2,
        Health::Removed => 3,
        Health::Unavail => 4,
        Health::Faulted => 5,
        Health::Degraded => 6,
        Health::Online => 7,
    }
}

/// The error number of Linux; `EBADE` for a wrong checksum.
fn errno(kind: FaultKind) -> u64 {
    match kind {
        FaultKind::Checksum => 52,
        FaultKind::Delay | FaultKind::Deadman => 0,
        _ => 5,
    }
}

impl Events {
    /// The events of a pool, which has no sink yet.
    pub(crate) fn new(stack: &Rc<Stack>, config: &Rc<Config>, aux: &Rc<Aux>) -> Rc<Events> {
        Rc::new(Events {
            stack: stack.clone(),
            config: config.clone(),
            aux: aux.clone(),
            sink: RefCell::default(),
            early: RefCell::default(),
            listening: RefCell::default(),
            faults: Rc::default(),
            gathering: Rc::default(),
            states: RefCell::default(),
            reopening: RefCell::default(),
            reasons: RefCell::default(),
            rates: RefCell::default(),
            tunables: Rc::default(),
            tuned: Rc::default(),
            suspensions: Cell::default(),
        })
    }

    /// Adds the reason `e` to the event of the next state change of a leaf.
    pub(crate) fn note_reason(&self, leaf: Guid, e: &Error) {
        self.reasons.borrow_mut().insert(leaf.0, e.to_string());
    }

    /// A leaf's device is closed to be reopened: until the result is dropped, its state on the way
    /// is no event.
    pub(crate) fn reopening(self: &Rc<Self>, leaf: Guid) -> Reopening {
        self.reopening.borrow_mut().insert(leaf.0);
        Reopening(self.clone(), leaf)
    }

    /// Sets the sink of the pool's events. It gets the history of the pool's opening, then the
    /// event `opened`: `pool_create` or `pool_import`.
    pub(crate) fn set_sink(self: &Rc<Self>, sink: Rc<dyn EventSink>, opened: &str) {
        *self.sink.borrow_mut() = Some(sink);
        let (faults, gathering, tunables) = (self.faults.clone(), self.gathering.clone(), self.tunables.clone());
        let (me, rt): (Weak<Events>, _) = (Rc::downgrade(self), self.stack.rt.clone());
        let listening = self.stack.rt.tracer().listen(Groups::FAULT, move |now, event| {
            let mut faults = faults.borrow_mut();
            if faults.len() < tunables.get().queued_max() {
                faults.push_back((now, *event));
            }
            drop(faults);
            if !gathering.replace(true) {
                let (me, rt2) = (me.clone(), rt.clone());
                drop(rt.spawn("zevents", async move {
                    rt2.sleep(GATHER).await;
                    if let Some(events) = me.upgrade() {
                        events.gathering.set(false);
                        events.post_faults();
                    }
                }));
            }
        });
        *self.listening.borrow_mut() = Some(listening);
        self.stack.rt.spawn("deadman", watch_hung(Rc::downgrade(self), self.stack.rt.clone()));
        for (time, nv) in self.early.take() {
            self.post_list(HISTORY, time, nv);
        }
        self.post(opened);
        let tops = self.stack.tree.tops.borrow().clone();
        for (top, guid, health) in self.leaf_states() {
            if !matches!(health, Health::Online | Health::Offline)
                && let Some(top) = tops.iter().find(|t| t.id.0 == top)
            {
                let nv = self.vdev_payload(self.ereport_base(), top, guid);
                self.post_list("ereport.fs.zfs.vdev.open_failed", self.stack.rt.wall_clock(), nv);
            }
            self.states.borrow_mut().insert(guid.0, health);
        }
    }

    fn has_sink(&self) -> bool {
        self.sink.borrow().is_some()
    }

    /// Posts an event about the pool itself: `sysevent.fs.zfs.NAME`.
    pub(crate) fn post(&self, name: &str) {
        if self.has_sink() {
            self.post_list(&format!("sysevent.fs.zfs.{name}"), self.stack.rt.wall_clock(), self.sysevent_base());
        }
    }

    /// The same about one of its devices.
    pub(crate) fn post_vdev(&self, name: &str, guid: Guid) {
        if !self.has_sink() {
            return;
        }
        let tops = self.stack.tree.tops.borrow().clone();
        let top = tops.iter().find(|t| t.config_ref().find(guid).is_some());
        let base = self.sysevent_base().with_u64("vdev_guid", guid.0);
        let nv = match top {
            Some(top) => self.vdev_state(self.sysevent_base(), top, guid),
            None => base,
        };
        self.post_list(&format!("sysevent.fs.zfs.{name}"), self.stack.rt.wall_clock(), nv);
    }

    /// Posts `sysevent.fs.zfs.NAME` of the sequential rebuild of a vdev.
    pub(crate) fn post_rebuild(&self, name: &str, top: Guid) {
        if self.has_sink() {
            let nv = self.sysevent_base().with_u64("vdev_guid", top.0).with_str("resilver_type", "sequential");
            self.post_list(&format!("sysevent.fs.zfs.{name}"), self.stack.rt.wall_clock(), nv);
        }
    }

    /// Posts the internal events of the pool's history.
    pub(crate) fn post_history(&self, events: &[dsl::core::Event]) {
        let early = self.listening.borrow().is_none();
        if !early && !self.has_sink() {
            return;
        }
        let host = self.stack.rt.host_identity().hostname;
        for e in events {
            let time = self.stack.rt.wall_clock();
            let mut nv = self.sysevent_base();
            nv.put_str("history_hostname", host.clone());
            if let Some((name, object)) = &e.dataset {
                nv.put_str("history_dsname", name.clone());
                nv.put_u64("history_dsid", object.0);
            }
            nv.put_str("history_internal_str", e.text.clone());
            nv.put_str("history_internal_name", e.name);
            nv.put_u64("history_txg", e.txg.0);
            nv.put_u64("history_time", time.secs.max(0) as u64);
            let mut kept = self.early.borrow_mut();
            if !early {
                drop(kept);
                self.post_list(HISTORY, time, nv);
            } else if kept.len() < EARLY_MAX {
                kept.push((time, nv));
            }
        }
    }

    /// Posts the states of leaves that changed since the last time.
    pub(crate) fn post_states(&self) {
        if !self.has_sink() {
            return;
        }
        let mut now = self.leaf_states();
        let before = self.states.take();
        let reopening = self.reopening.borrow().clone();
        let kept = before.iter().filter(|(guid, _)| reopening.contains(*guid)).map(|(guid, health)| (*guid, *health));
        now.retain(|(_, guid, _)| !reopening.contains(&guid.0));
        *self.states.borrow_mut() = now.iter().map(|(_, g, h)| (g.0, *h)).chain(kept).collect();
        let tops = self.stack.tree.tops.borrow().clone();
        for (top, guid, health) in now {
            let was = before.get(&guid.0).copied();
            // The attach posts the event of a new leaf.
            let (Some(was), Some(top)) = (was.filter(|w| *w != health), tops.iter().find(|t| t.id.0 == top)) else {
                continue;
            };
            let class = if health == Health::Removed { "removed" } else { "statechange" };
            let mut nv = self.vdev_state(self.sysevent_base(), top, guid).with_u64("vdev_laststate", state_number(was));
            if let Some(why) = self.reasons.borrow_mut().remove(&guid.0) {
                nv.put_str("vdev_reason", why);
            }
            self.post_list(&format!("resource.fs.zfs.{class}"), self.stack.rt.wall_clock(), nv);
        }
    }

    /// Posts the collected faults.
    fn post_faults(&self) {
        let faults = self.faults.take();
        let tops = self.stack.tree.tops.borrow().clone();
        let (now, wall) = (self.stack.rt.now(), self.stack.rt.wall_clock());
        for (at, event) in faults {
            let (class, nv) = match event {
                Event::Fault { leaf, kind, class, offset, len, .. } => {
                    let guid = Guid(leaf);
                    let Some(top) = tops.iter().find(|t| t.kind().find(guid).is_some()) else { continue };
                    if kind == FaultKind::Deadman && !self.tunables.get().deadman {
                        continue;
                    }
                    if !self.may_report((leaf, Rate::of(kind)), at) {
                        continue;
                    }
                    let mut nv = self.vdev_payload(self.ereport_base(), top, guid);
                    nv.put_u64("zio_err", errno(kind));
                    if len > 0 {
                        nv.put_u64("zio_offset", offset);
                        nv.put_u64("zio_size", len);
                    }
                    nv.put_u64("zio_priority", class.into());
                    (kind.class(), nv)
                }
                Event::Damaged { objset, object, level, blkid, forged } => {
                    // Each of the two kinds has a limit of its own, as if it were a leaf: many of
                    // one must not hide the other.
                    if !self.may_report((u64::from(forged), Rate::Errors), at) {
                        continue;
                    }
                    let (class, kind) =
                        if forged { ("authentication", FaultKind::Checksum) } else { ("data", FaultKind::Io) };
                    let nv = self.ereport_base().with_u64("zio_err", errno(kind));
                    let nv = nv.with_u64("zio_objset", objset).with_u64("zio_object", object);
                    (class, nv.with_i64("zio_level", level).with_u64("zio_blkid", blkid))
                }
                _ => continue,
            };
            let ago = now.since(at).0;
            let nanos = i128::from(wall.secs) * 1_000_000_000 + i128::from(wall.nanos) - i128::from(ago);
            let time = WallTime {
                secs: nanos.div_euclid(1_000_000_000) as i64,
                nanos: nanos.rem_euclid(1_000_000_000) as u32,
            };
            self.post_list(&format!("ereport.fs.zfs.{class}"), time, nv);
        }
        let times = self.stack.tree.gate.times();
        if self.suspensions.replace(times) != times {
            self.post_list("ereport.fs.zfs.io_failure", wall, self.ereport_base());
        }
        self.post_states();
    }

    /// Changes the limits.
    pub(crate) fn set_tunables(&self, tunables: EventTunables) {
        self.tunables.set(tunables);
        self.tuned.notify_all();
    }

    /// Reports operations that a device does not end, one of each device.
    fn report_hung(&self) {
        let t = self.tunables.get();
        if !t.deadman {
            return;
        }
        let now = self.stack.rt.now();
        let before = |ms: u32| Nanos(now.0.saturating_sub(Nanos::from_ms(ms.into()).0));
        let of_sync = before(t.hung_sync_ms);
        let is_sync_hung = self.stack.txg.syncing_since().is_some_and(|since| since < of_sync);
        for leaf in self.stack.tree.leaves() {
            let of_io = before(leaf.tunables().hung_io_ms);
            leaf.report_hung(if is_sync_hung { of_io.max(of_sync) } else { of_io });
        }
    }

    /// Whether an event of a leaf may be posted.
    fn may_report(&self, what: (u64, Rate), at: Nanos) -> bool {
        counts(self.rates.borrow_mut().entry(what).or_default(), at, self.tunables.get().most(what.1))
    }

    fn post_list(&self, class: &str, time: WallTime, payload: NvList) {
        // Without a borrow: the sink may call back.
        let sink = self.sink.borrow().clone();
        if let Some(sink) = sink {
            sink.post(class.to_string(), time, payload);
        }
    }

    fn leaf_states(&self) -> Vec<(u32, Guid, Health)> {
        let tops = self.stack.tree.tops.borrow();
        let of = |t: &Rc<Top>| {
            let id = t.id.0;
            t.kind().conditions().into_iter().map(move |(g, c)| (id, g, c.health())).collect::<Vec<_>>()
        };
        tops.iter().flat_map(of).collect()
    }

    fn sysevent_base(&self) -> NvList {
        let mut nv = NvList::new();
        nv.put_u64("version", 0);
        nv.put_str("pool", self.config.name());
        nv.put_u64("pool_guid", self.stack.tree.root_guid().0);
        nv.put_u64("pool_state", self.config.state() as u64);
        nv.put("pool_context", NvValue::Int32(0));
        nv
    }

    fn ereport_base(&self) -> NvList {
        let mode = match self.stack.tree.gate.mode() {
            FailMode::Wait => "wait",
            FailMode::Continue => "continue",
            FailMode::Panic => "panic",
        };
        let mut nv = self.sysevent_base();
        nv.remove("version");
        nv.with_str("pool_failmode", mode)
    }

    /// The payload of a leaf's state.
    fn vdev_state(&self, mut nv: NvList, top: &Top, guid: Guid) -> NvList {
        nv.put_u64("vdev_guid", guid.0);
        let state = top.kind().conditions().iter().find(|(g, _)| *g == guid).map(|(_, c)| c.health());
        if let Some(state) = state {
            nv.put_u64("vdev_state", state_number(state));
        }
        if let Some(path) = top.config_ref().find(guid).and_then(|c| c.path.clone()) {
            nv.put_str("vdev_path", path);
        }
        nv
    }

    /// The payload of an ereport: the leaf and its parent.
    fn vdev_payload(&self, nv: NvList, top: &Top, guid: Guid) -> NvList {
        let detector = NvList::new().with_u64("version", 0).with_str("scheme", "zfs");
        let detector = detector.with_u64("pool", self.stack.tree.root_guid().0).with_u64("vdev", guid.0);
        let mut all = NvList::new().with_list("detector", detector);
        nv.into_iter().for_each(|(name, value)| all.put(&name, value));
        let mut nv = self.vdev_state(all, top, guid);
        if let Some(config) = top.config_ref().find(guid) {
            nv.put_str("vdev_type", config.kind.to_string());
        }
        nv.put_u64("vdev_ashift", top.ashift.into());
        let kind = top.kind();
        if let Some(VdevKind::Leaf(leaf)) = kind.find(guid) {
            let errors = leaf.errors();
            nv.put_u64("vdev_read_errors", errors.read);
            nv.put_u64("vdev_write_errors", errors.write);
            nv.put_u64("vdev_cksum_errors", errors.cksum);
        }
        if let Some(parent) = kind.parent_of(guid).and_then(|p| p.guid()) {
            nv.put_u64("parent_guid", parent.0);
            if let Some(config) = top.config_ref().find(parent) {
                nv.put_str("parent_type", config.kind.to_string());
            }
        }
        let aux = self.aux.get();
        if !aux.spares.is_empty() {
            let paths = aux.spares.iter().map(|s| s.path.clone().unwrap_or_default()).collect();
            nv.put("vdev_spare_paths", NvValue::StringArray(paths));
            nv.put("vdev_spare_guids", NvValue::Uint64Array(aux.spares.iter().map(|s| s.guid.0).collect()));
        }
        nv
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_has_as_many_events_as_the_tunables_say() {
        let t = EventTunables { errors_per_second: 100, slow_per_second: 3, ..EventTunables::default() };
        let mut rate = (0, 0);
        let mut posted = |n: u64, at: Nanos| (0..n).filter(|_| counts(&mut rate, at, t.most(Rate::Slow))).count();
        assert_eq!((posted(5, Nanos(1)), posted(5, Nanos(999_999_999)), posted(5, Nanos(1_000_000_000))), (3, 0, 3));
        assert_eq!((t.most(Rate::Errors), t.queued_max()), (100, 100));
        assert_eq!(EventTunables::default().queued_max(), FAULTS_MAX);
        assert!(!counts(&mut (7, u32::MAX), Nanos(7_000_000_000), u32::MAX - 1));
    }
}
