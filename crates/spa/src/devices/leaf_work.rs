//! `zpool trim` and `zpool initialize`: work on the free space of single devices.
//!
//! A run goes over the metaslabs of the device's top-level vdev, one at a time. Allocation from a
//! metaslab is disabled while its free ranges are worked on; space that is freed meanwhile waits
//! for the next run. Ranges of the top-level vdev are translated to those of the device
//! ([`vdev::reshape::leaf_ranges`]). Trim discards the ranges on the device (on a file: punches a
//! hole), initialize writes a pattern over them.
//!
//! The ZAP of the leaf has the progress of a run (keys and states as in OpenZFS), so that it
//! resumes after an import. Invariant: a range counts as done on disk only after it is done on the
//! device.
//!
//! A trim may have a rate: after each discard it waits until the run as a whole is no faster. A
//! trim that is resumed without a rate keeps the one that it had.

use std::cell::{Cell, RefCell};
use std::num::NonZeroU64;
use std::rc::Rc;

use base::{Error, ErrorKind, Guid, Nanos, Result, ResultExt, TXG_DEFER, Txg};
use bdev::Bytes;
use dmu::{Tx, zap};
use ondisk::label::DATA_START;
use rt::sync::Notify;
use vdev::reshape::leaf_ranges;
use vdev::{Leaf, Prio, Top, VdevKind};

use super::autotrim::Autotrim;
use super::changes::Changes;
use super::find::find_vdev;
use crate::commit::config::Config;
use crate::stack::Stack;
use crate::zevent::Events;

/// How the work is done; defaults as in OpenZFS.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WorkTunables {
    /// Pattern that is written over free space (`zfs_initialize_value`).
    pub initialize_value: u64,
    /// Longest write of the pattern, in bytes (`zfs_initialize_chunk_size`).
    pub initialize_bytes_max: u64,
    /// Longest discard, in bytes (`zfs_trim_extent_bytes_max`).
    pub trim_bytes_max: u64,
    /// Shortest discard, in bytes (`zfs_trim_extent_bytes_min`).
    pub trim_bytes_min: u64,
    /// Txgs over which an automatic trim goes round all metaslabs (`zfs_trim_txg_batch`).
    pub trim_txg_batch: u64,
}

impl Default for WorkTunables {
    fn default() -> WorkTunables {
        WorkTunables {
            initialize_value: 0xdead_beef_dead_beee,
            initialize_bytes_max: 1 << 20,
            trim_bytes_max: 128 << 20,
            trim_bytes_min: 32 << 10,
            trim_txg_batch: 32,
        }
    }
}

/// Longest sleep of a run that keeps to a rate: a command is seen after that (as in OpenZFS).
const PAUSE_MAX: Nanos = Nanos::from_secs(1);
/// Keys of a trim in the ZAP of a leaf beside those that [`WorkKind::keys`] has, as in OpenZFS:
/// bytes a second; whether ranges without space maps are left out; whether it is a secure one.
const TRIM_RATE: &[u8] = b"org.zfsonlinux:vdev_trim_rate";
const TRIM_PARTIAL: &[u8] = b"org.zfsonlinux:vdev_trim_partial";
const TRIM_SECURE: &[u8] = b"org.zfsonlinux:vdev_trim_secure";

/// The kind of work.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum WorkKind {
    /// Discards free space.
    Trim,
    /// Writes a pattern over free space.
    Initialize,
}

/// The state of the work; the numbers are those on disk.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum WorkState {
    /// It was never begun.
    #[default]
    None = 0,
    /// It runs.
    Active = 1,
    /// It was canceled.
    Canceled = 2,
    /// It can be resumed.
    Suspended = 3,
    /// It is complete.
    Complete = 4,
}

impl WorkState {
    fn from_u64(n: u64) -> WorkState {
        match n {
            1 => WorkState::Active,
            2 => WorkState::Canceled,
            3 => WorkState::Suspended,
            4 => WorkState::Complete,
            _ => WorkState::None,
        }
    }
}

/// A command of an administrator.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WorkCommand {
    /// Starts or resumes it, with a limit in bytes a second; none: that of before if it is resumed.
    Start(Option<NonZeroU64>),
    /// Suspends it (`-s`).
    Suspend,
    /// Cancels it (`-c`).
    Cancel,
    /// Forgets that it was ever begun (`zpool initialize -u`).
    Forget,
}

impl WorkKind {
    fn keys(self) -> [&'static [u8]; 3] {
        match self {
            WorkKind::Trim => [
                b"org.zfsonlinux:vdev_trim_state",
                b"org.zfsonlinux:next_offset_to_trim",
                b"org.zfsonlinux:vdev_trim_action_time",
            ],
            WorkKind::Initialize => [
                b"com.delphix:vdev_initialize_state",
                b"com.delphix:next_offset_to_initialize",
                b"com.delphix:vdev_initialize_action_time",
            ],
        }
    }
    fn verb(self) -> &'static str {
        match self {
            WorkKind::Trim => "trim",
            WorkKind::Initialize => "initialize",
        }
    }
}

/// One kind of work on one device.
pub struct LeafWork {
    /// The device. The last one of a mirror takes the guid of the mirror.
    guid: Cell<Guid>,
    kind: WorkKind,
    state: Cell<WorkState>,
    /// Everything below this offset of the top-level vdev is done.
    offset: Cell<u64>,
    /// When it was last started, stopped or completed: seconds since 1970.
    time: Cell<u64>,
    size: Cell<u64>,
    /// Bytes a second, if there is a limit.
    rate: Cell<Option<NonZeroU64>>,
    running: Cell<bool>,
    error: RefCell<Option<Error>>,
    changed: Notify,
    /// Wakes a run that waits for its rate.
    told: Notify,
}

impl LeafWork {
    /// The state.
    pub fn state(&self) -> WorkState {
        self.state.get()
    }
    /// Percent done.
    pub fn percent(&self) -> u64 {
        match self.state.get() {
            WorkState::Complete => 100,
            _ if self.size.get() == 0 => 0,
            _ => (u128::from(self.offset.get().min(self.size.get())) * 100 / u128::from(self.size.get())) as u64,
        }
    }
    /// When it was last started, stopped or completed: seconds since 1970.
    pub fn time(&self) -> u64 {
        self.time.get()
    }
    /// The error that stopped it.
    pub fn error(&self) -> Option<Error> {
        self.error.borrow().clone()
    }

    /// Writes the progress to the ZAP of the leaf.
    async fn save(&self, stack: &Stack, tx: &Tx) -> Result<()> {
        let tops = stack.tree.tops.borrow().clone();
        let zap_object = tops.iter().find_map(|t| t.config_ref().find(self.guid.get()).and_then(|c| c.zap_leaf));
        // The device may have left meanwhile.
        let Some(object) = zap_object.filter(|o| o.0 != 0) else { return Ok(()) };
        let dn = stack.mos.hold(object).await?;
        let [state, offset, time] = self.kind.keys();
        if self.state.get() == WorkState::None {
            for key in [state, offset, time, TRIM_RATE, TRIM_PARTIAL, TRIM_SECURE] {
                if zap::lookup_u64(&dn, key).await?.is_some() {
                    zap::remove(&dn, key, tx).await?;
                }
            }
            return Ok(());
        }
        zap::update_u64(&dn, state, self.state.get() as u64, tx).await?;
        zap::update_u64(&dn, time, self.time.get(), tx).await?;
        if self.kind == WorkKind::Trim {
            let rate = self.rate.get().map_or(0, NonZeroU64::get);
            for (key, value) in [(TRIM_RATE, rate), (TRIM_PARTIAL, 0), (TRIM_SECURE, 0)] {
                zap::update_u64(&dn, key, value, tx).await?;
            }
        }
        match self.offset.get() {
            0 if zap::lookup_u64(&dn, offset).await?.is_some() => zap::remove(&dn, offset, tx).await,
            0 => Ok(()),
            at => zap::update_u64(&dn, offset, at, tx).await,
        }
    }
}

/// Trim and initialize of the devices of a pool.
pub struct LeafWorks {
    pub(super) stack: Rc<Stack>,
    config: Rc<Config>,
    events: Rc<Events>,
    changes: Rc<Changes>,
    all: RefCell<Vec<Rc<LeafWork>>>,
    /// Devices of a vdev that is being removed: their work rests.
    held: RefCell<Vec<Guid>>,
    /// The pool is being closed: all runs end.
    closing: Cell<bool>,
    tunables: Cell<WorkTunables>,
    pub(super) auto: Autotrim,
}

impl LeafWorks {
    /// No work was ever started, until the import finds some.
    pub(super) fn new(
        stack: &Rc<Stack>,
        config: &Rc<Config>,
        events: &Rc<Events>,
        changes: &Rc<Changes>,
    ) -> Rc<LeafWorks> {
        Rc::new(LeafWorks {
            stack: stack.clone(),
            config: config.clone(),
            events: events.clone(),
            changes: changes.clone(),
            all: RefCell::default(),
            held: RefCell::default(),
            closing: Cell::new(false),
            tunables: Cell::default(),
            auto: Autotrim::default(),
        })
    }

    /// Counts from the next range on.
    pub(crate) fn set_tunables(&self, tunables: WorkTunables) {
        self.tunables.set(tunables);
    }

    /// The work on a device, if it was ever started.
    pub fn get(&self, guid: Guid, kind: WorkKind) -> Option<Rc<LeafWork>> {
        let all = self.all.borrow();
        all.iter().find(|w| w.guid.get() == guid && w.kind == kind && w.state.get() != WorkState::None).cloned()
    }

    fn work(&self, guid: Guid, kind: WorkKind) -> Rc<LeafWork> {
        let mut all = self.all.borrow_mut();
        if let Some(found) = all.iter().find(|w| w.guid.get() == guid && w.kind == kind) {
            return found.clone();
        }
        let work = Rc::new(LeafWork {
            guid: Cell::new(guid),
            kind,
            state: Cell::default(),
            offset: Cell::new(0),
            time: Cell::new(0),
            size: Cell::new(0),
            rate: Cell::default(),
            running: Cell::new(false),
            error: RefCell::default(),
            changed: Notify::new(),
            told: Notify::new(),
        });
        all.push(work.clone());
        work
    }

    /// Starts, suspends or cancels work on devices: those named, or all. Refused before any change
    /// if there is nothing to start or stop.
    pub async fn change(self: &Rc<Self>, kind: WorkKind, command: WorkCommand, names: &[String]) -> Result<()> {
        self.config.check_writable()?;
        let verb = kind.verb();
        let mut leaves: Vec<(Rc<Top>, Rc<Leaf>)> = Vec::new();
        if names.is_empty() {
            for top in self.stack.tree.tops.borrow().iter() {
                let free = top.open_leaves().into_iter().filter(|l| !self.is_held(l.guid()));
                leaves.extend(free.map(|l| (top.clone(), l)));
            }
            if kind == WorkKind::Trim && matches!(command, WorkCommand::Start(_)) {
                leaves.retain(|(_, l)| l.dev.info().supports_discard);
                if leaves.is_empty() {
                    let why =
                        format!("cannot trim '{}': no devices in pool support trim operations", self.config.name());
                    return Err(Error::unsupported(why));
                }
            }
        }
        for name in names {
            let (top, guid) = find_vdev(&self.stack.tree, &self.config, name)?;
            match top.kind().find(guid) {
                Some(VdevKind::Leaf(l)) if l.condition.health().is_open() => {
                    if kind == WorkKind::Trim && !l.dev.info().supports_discard {
                        return Err(Error::unsupported(format!("cannot trim '{name}': the device cannot discard")));
                    }
                    if self.is_held(l.guid()) {
                        let why = format!("cannot {verb} '{name}': the device is being removed");
                        return Err(Error::new(ErrorKind::Busy, why));
                    }
                    leaves.push((top, l));
                }
                Some(node) if node.is_leaf() => {
                    return Err(Error::new(ErrorKind::Io, format!("cannot {verb} '{name}': device is not available")));
                }
                _ => return Err(Error::invalid(format!("cannot {verb} '{name}': it is not a device"))),
            }
        }
        let works: Vec<_> = leaves.into_iter().map(|(top, l)| (self.work(l.guid(), kind), top)).collect();
        let stops = matches!(command, WorkCommand::Suspend | WorkCommand::Cancel);
        if names.is_empty() && stops && works.iter().all(|(w, _)| !can_stop(w, command)) {
            return Err(Error::not_found(format!("there is no active {verb} in '{}'", self.config.name())));
        }
        // All devices may be told to start what some are at already, but not to forget it.
        for (work, _) in works.iter().filter(|_| !names.is_empty() || command == WorkCommand::Forget) {
            let refused = match command {
                WorkCommand::Start(_) | WorkCommand::Forget => {
                    work.running.get().then(|| Error::new(ErrorKind::Busy, format!("{verb} is running already")))
                }
                _ => (!can_stop(work, command)).then(|| Error::not_found(format!("there is no active {verb}"))),
            };
            if let Some(e) = refused {
                return Err(e.at(format!("cannot {verb}: device {}", work.guid.get())));
            }
        }
        if matches!(command, WorkCommand::Start(_)) && works.iter().any(|(_, top)| top.kind().reflow().is_some()) {
            let why =
                format!("cannot {verb}: a raidz is being expanded: 'zpool wait -t raidz_expand' waits for its end");
            return Err(Error::new(ErrorKind::Busy, why));
        }
        for (work, top) in &works {
            match command {
                WorkCommand::Forget => self.forget(work),
                WorkCommand::Start(_) if work.running.get() => {}
                WorkCommand::Start(rate) => {
                    if work.state.get() != WorkState::Suspended {
                        work.offset.set(0);
                        work.rate.set(None);
                    }
                    work.rate.set(rate.or(work.rate.get()));
                    self.set_work(work, WorkState::Active);
                    self.run_work(work.clone(), top.clone());
                }
                _ if !can_stop(work, command) => {}
                WorkCommand::Suspend => self.set_work(work, WorkState::Suspended),
                WorkCommand::Cancel => {
                    self.set_work(work, WorkState::Canceled);
                    work.offset.set(0);
                }
            }
        }
        if stops {
            // A run that has not yet ended would take no new start.
            for (work, _) in &works {
                work.told.notify_all();
                self.let_go(work.guid.get()).await;
            }
        }
        self.stack.sync().await
    }

    /// Waits until no work of the kind runs.
    pub async fn wait(&self, kind: WorkKind) -> Result<()> {
        self.wait_for(kind, &[]).await
    }

    /// The same on the devices with those names, or on all (`-w`).
    pub async fn wait_for(&self, kind: WorkKind, names: &[String]) -> Result<()> {
        let find = |name: &String| find_vdev(&self.stack.tree, &self.config, name).map(|(_, guid)| guid);
        let guids = names.iter().map(find).collect::<Result<Vec<Guid>>>()?;
        let is_asked_for = |w: &LeafWork| w.kind == kind && (guids.is_empty() || guids.contains(&w.guid.get()));
        loop {
            let running = self.all.borrow().iter().find(|w| is_asked_for(w) && w.running.get()).cloned();
            let Some(work) = running else { break };
            work.changed.notified().await;
        }
        let failed = self.all.borrow().iter().filter(|w| is_asked_for(w)).find_map(|w| w.error());
        failed.map_or(Ok(()), Err)
    }

    /// Lets all runs end after the range that they are at.
    pub(crate) fn close(&self) {
        self.closing.set(true);
    }

    /// Stops all runs when the pool is closed; they resume after the next import.
    pub(crate) async fn stop(&self) {
        self.close();
        loop {
            let running = self.all.borrow().iter().find(|w| w.running.get()).cloned();
            let Some(work) = running else { break };
            work.changed.notified().await;
        }
        self.autotrim_ends().await;
    }

    pub(super) fn tunables(&self) -> WorkTunables {
        self.tunables.get()
    }

    /// Whether the pool is being closed.
    pub(super) fn is_closing(&self) -> bool {
        self.closing.get()
    }

    /// Longest discard of a device, in bytes.
    pub(super) fn trim_step(&self, leaf: &Leaf) -> u64 {
        in_sectors(leaf, self.tunables.get().trim_bytes_max)
    }

    pub(super) fn is_held(&self, guid: Guid) -> bool {
        self.held.borrow().contains(&guid)
    }

    /// Lets the work on the devices of a vdev rest, and waits until it does; its state stays.
    pub(super) async fn hold(&self, top: &Top) {
        self.held.borrow_mut().extend(top.leaves().iter().map(|l| l.guid()));
        loop {
            let running = self.all.borrow().iter().find(|w| w.running.get() && self.is_held(w.guid.get())).cloned();
            let Some(work) = running else { break };
            work.changed.notified().await;
        }
        self.autotrim_leaves(top.id).await;
    }

    /// Goes on with the work on the devices of a vdev.
    pub(super) fn release(self: &Rc<Self>, top: &Rc<Top>) {
        let guids: Vec<Guid> = top.leaves().iter().map(|l| l.guid()).collect();
        self.held.borrow_mut().retain(|g| !guids.contains(g));
        let all = self.all.borrow().clone();
        for work in all.iter().filter(|w| guids.contains(&w.guid.get())) {
            if work.state.get() == WorkState::Active && !work.running.get() && !self.closing.get() {
                self.run_work(work.clone(), top.clone());
            }
        }
    }

    fn set_work(&self, work: &Rc<LeafWork>, state: WorkState) {
        let how = match state {
            WorkState::Active => "activated",
            WorkState::Suspended => "suspended",
            WorkState::Canceled => "canceled",
            _ => "complete",
        };
        let text = format!("vdev={} {how}", self.path_of(work.guid.get()));
        self.stack.core.log_internal(work.kind.verb(), text, self.stack.txg.open_txg());
        let event = match state {
            WorkState::Active => "start",
            WorkState::Suspended => "suspend",
            WorkState::Canceled => "cancel",
            _ => "finish",
        };
        self.events.post_vdev(&format!("{}_{event}", work.kind.verb()), work.guid.get());
        work.state.set(state);
        work.time.set(self.stack.rt.wall_clock().secs.max(0) as u64);
        self.write_work(work);
    }

    /// Forgets that work was ever begun.
    fn forget(&self, work: &Rc<LeafWork>) {
        if work.state.replace(WorkState::None) == WorkState::None {
            return;
        }
        work.offset.set(0);
        work.time.set(0);
        let text = format!("vdev={}", self.path_of(work.guid.get()));
        let verb = match work.kind {
            WorkKind::Initialize => "uninitialize",
            WorkKind::Trim => "untrim",
        };
        self.stack.core.log_internal(verb, text, self.stack.txg.open_txg());
        self.write_work(work);
    }

    fn path_of(&self, guid: Guid) -> String {
        let tops = self.stack.tree.tops.borrow();
        let path = tops.iter().find_map(|t| t.config_ref().find(guid).and_then(|c| c.path.clone()));
        path.unwrap_or_default()
    }

    /// Queues the progress for the next txg.
    fn write_work(&self, work: &Rc<LeafWork>) {
        // Without a handle of these works, which have the queue.
        let (stack, work) = (self.stack.clone(), work.clone());
        self.changes.queue(move |_, tx| Box::pin(async move { work.save(&stack, tx).await }));
    }

    /// Reads the ZAPs of the leaves at import. Active runs resume.
    pub(crate) async fn load(self: &Rc<Self>) -> Result<()> {
        let tops = self.stack.tree.tops.borrow().clone();
        for top in tops {
            if top.config_ref().removing {
                self.held.borrow_mut().extend(top.config_ref().leaves().map(|c| c.guid));
            }
            let leaves = top.config().leaves().filter_map(|c| Some((c.guid, c.zap_leaf?))).collect::<Vec<_>>();
            for (guid, object) in leaves.into_iter().filter(|(_, o)| o.0 != 0) {
                let dn = self.stack.mos.hold(object).await.at(|| format!("object of device {guid}"))?;
                for kind in [WorkKind::Trim, WorkKind::Initialize] {
                    let [state, offset, time] = kind.keys();
                    let Some(state) = zap::lookup_u64(&dn, state).await? else { continue };
                    let work = self.work(guid, kind);
                    work.state.set(WorkState::from_u64(state));
                    work.offset.set(zap::lookup_u64(&dn, offset).await?.unwrap_or(0));
                    work.time.set(zap::lookup_u64(&dn, time).await?.unwrap_or(0));
                    work.size.set(top.asize.get());
                    if kind == WorkKind::Trim {
                        work.rate.set(NonZeroU64::new(zap::lookup_u64(&dn, TRIM_RATE).await?.unwrap_or(0)));
                    }
                    // That of OpenZFS waits for the end of an expansion, too.
                    let may_run = !self.stack.readonly && top.kind().reflow().is_none() && !self.is_held(guid);
                    if work.state.get() == WorkState::Active && may_run {
                        self.run_work(work, top.clone());
                    }
                }
            }
        }
        Ok(())
    }

    /// Whether work on the device runs.
    pub(super) fn is_running(&self, guid: Guid) -> bool {
        self.all.borrow().iter().any(|w| w.guid.get() == guid && w.running.get())
    }

    /// Waits until no work holds a device that was closed, for [`PAUSE_MAX`] and a bit: one whose
    /// device does not answer may take longer.
    pub(super) async fn let_go(&self, guid: Guid) {
        let ended = async {
            loop {
                let running = self.all.borrow().iter().find(|w| w.guid.get() == guid && w.running.get()).cloned();
                let Some(work) = running else { return };
                let changed = work.changed.notified();
                if work.running.get() {
                    changed.await;
                }
            }
        };
        let _ = self.stack.rt.timeout(Nanos(PAUSE_MAX.0 * 2), ended).await;
    }

    /// A device has another guid now.
    pub(super) fn renamed(&self, from: Guid, to: Guid) {
        self.all.borrow().iter().filter(|w| w.guid.get() == from).for_each(|w| w.guid.set(to));
        self.held.borrow_mut().iter_mut().filter(|g| **g == from).for_each(|g| *g = to);
    }

    /// Cancels what is under way on a device that is declared faulted, as OpenZFS does.
    pub(super) fn cancel(&self, guid: Guid) {
        let all = self.all.borrow().clone();
        for work in all.iter().filter(|w| w.guid.get() == guid && w.state.get() == WorkState::Active) {
            self.set_work(work, WorkState::Canceled);
            work.offset.set(0);
        }
    }

    /// Goes on with what was under way when a device of this vdev was closed.
    pub(super) fn go_on(self: &Rc<Self>, top: &Rc<Top>, guid: Guid) {
        let all: Vec<_> = self.all.borrow().iter().filter(|w| w.guid.get() == guid).cloned().collect();
        for work in all {
            let waits = work.state.get() == WorkState::Active && !work.running.get();
            if waits && top.kind().reflow().is_none() && !self.is_held(guid) && !self.closing.get() {
                self.run_work(work, top.clone());
            }
        }
    }

    /// Whether work on a device of that vdev runs.
    pub(super) fn is_running_on(&self, top: &Top) -> bool {
        let kind = top.kind();
        self.all.borrow().iter().any(|w| w.running.get() && kind.find(w.guid.get()).is_some())
    }

    fn run_work(self: &Rc<Self>, work: Rc<LeafWork>, top: Rc<Top>) {
        work.running.set(true);
        *work.error.borrow_mut() = None;
        work.size.set(top.asize.get());
        let works = self.clone();
        self.stack.rt.spawn("leaf_work", async move {
            let result = works.process_metaslabs(&work, &top).await;
            if work.state.get() == WorkState::Active && works.stack.txg.ended().is_none() && !works.closing.get() {
                match result {
                    Ok(true) => works.set_work(&work, WorkState::Complete),
                    Ok(false) => {}
                    // The device and its ZAP have left the pool.
                    Err(e) if e.kind() == ErrorKind::NotFound => work.state.set(WorkState::Canceled),
                    Err(e) => {
                        *work.error.borrow_mut() = Some(e);
                        works.set_work(&work, WorkState::Canceled);
                    }
                }
            }
            work.running.set(false);
            work.changed.notify_all();
        });
    }

    /// Processes the remaining metaslabs; false if it was stopped.
    async fn process_metaslabs(&self, work: &Rc<LeafWork>, top: &Rc<Top>) -> Result<bool> {
        if work.kind == WorkKind::Trim && work.offset.get() == 0 {
            // What was freed just before can be allocated only after these.
            for _ in 0..=TXG_DEFER {
                self.stack.txg.wait_synced(Txg(0)).await?;
            }
        }
        let mut pace = Pace { bytes: 0, start: self.stack.rt.now(), rate: work.rate.get() };
        for ms in 0..top.ms_count() {
            let end = (ms + 1) << top.ms_shift.get();
            if end <= work.offset.get() {
                continue;
            }
            let free = match self.stack.alloc.disable(top.id, ms).await {
                Ok(free) => free,
                // Skip a metaslab that cannot be loaded.
                Err(_) => continue,
            };
            let mut done = Ok(true);
            let before = work.offset.get();
            'ranges: for run in free {
                // What a run before this one has done of it. No offset lies within a range of a
                // RAID-Z or dRAID.
                let part = before.saturating_sub(run.start).min(run.size);
                // The run keeps no other device of the vdev open.
                let ranges = leaf_ranges(&top.kind(), top.ashift, work.guid.get(), run.start + part, run.size - part);
                for (offset, len) in ranges {
                    done = self.process_range(work, top, offset, len, &mut pace).await;
                    if !matches!(done, Ok(true)) {
                        break 'ranges;
                    }
                }
            }
            self.stack.alloc.enable(top.id, ms);
            if !done? {
                // Where it was stopped.
                self.write_work(work);
                return Ok(false);
            }
            work.offset.set(end);
            self.write_work(work);
        }
        Ok(true)
    }

    /// Processes one contiguous range of the device; false if the work was stopped.
    async fn process_range(&self, work: &LeafWork, top: &Top, offset: u64, len: u64, pace: &mut Pace) -> Result<bool> {
        // Of the leaves: while its mirror goes, that has the same guid. One that was closed is
        // there all the same, and the work goes on once it is open again.
        let is_there = || top.kind().conditions().iter().any(|(guid, _)| *guid == work.guid.get());
        let gone = || Error::not_found("the device has left the pool");
        let Some(leaf) = top.leaves().into_iter().find(|l| l.guid() == work.guid.get()) else {
            return if is_there() { Ok(false) } else { Err(gone()) };
        };
        // Offsets of the device are those of the top-level vdev.
        let is_whole = !matches!(top.kind(), VdevKind::Raidz(_) | VdevKind::Draid(_));
        let tunables = self.tunables.get();
        let step = match work.kind {
            WorkKind::Trim => tunables.trim_bytes_max,
            WorkKind::Initialize => tunables.initialize_bytes_max,
        };
        let step = in_sectors(&leaf, step);
        if work.kind == WorkKind::Trim && len < tunables.trim_bytes_min {
            return Ok(true);
        }
        let may_go_on = || {
            let ends = self.closing.get() || self.stack.txg.ended().is_some() || self.is_held(work.guid.get());
            work.state.get() == WorkState::Active && leaf.condition.health().is_open() && !ends
        };
        let mut at = offset;
        while at < offset + len {
            while may_go_on() {
                let pause = pace.pause(self.stack.rt.now());
                if pause == Nanos(0) {
                    break;
                }
                let _ = self.stack.rt.timeout(pause.min(PAUSE_MAX), work.told.notified()).await;
            }
            if !may_go_on() {
                return Ok(false);
            }
            if !is_there() {
                return Err(gone());
            }
            let n = step.min(offset + len - at);
            match work.kind {
                WorkKind::Trim => leaf.discard(DATA_START + at, n).await?,
                WorkKind::Initialize => {
                    let word = tunables.initialize_value.to_le_bytes();
                    let data: Vec<u8> = word.iter().copied().cycle().take(n as usize).collect();
                    leaf.write(DATA_START + at, Bytes::copy_from(&data), 0, Prio::Initializing).await?;
                }
            }
            at += n;
            pace.bytes += n;
            if is_whole && work.state.get() == WorkState::Active {
                work.offset.set(at);
            }
        }
        self.stack.rt.sleep(Nanos(0)).await;
        Ok(true)
    }
}

/// How fast a run is.
struct Pace {
    /// Bytes that it has done.
    bytes: u64,
    /// When it began.
    start: Nanos,
    /// The most bytes a second.
    rate: Option<NonZeroU64>,
}

impl Pace {
    /// How long a run waits until it is not too fast.
    fn pause(&self, now: Nanos) -> Nanos {
        let Some(rate) = self.rate else { return Nanos(0) };
        let due = u128::from(self.bytes) * 1_000_000_000 / u128::from(rate.get());
        let elapsed = now.0.saturating_sub(self.start.0);
        Nanos(u64::try_from(due).unwrap_or(u64::MAX).saturating_sub(elapsed))
    }
}

/// Whole sectors of a device within `bytes`, at least one.
fn in_sectors(leaf: &Leaf, bytes: u64) -> u64 {
    let sector = u64::from(leaf.dev.info().logical_sector);
    (bytes - bytes % sector).max(sector)
}

fn can_stop(work: &LeafWork, command: WorkCommand) -> bool {
    match command {
        WorkCommand::Start(_) | WorkCommand::Forget => false,
        WorkCommand::Suspend => work.state.get() == WorkState::Active,
        WorkCommand::Cancel => matches!(work.state.get(), WorkState::Active | WorkState::Suspended),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_wait_until_they_are_slow_enough() {
        let sec = |n: u64| Nanos::from_secs(n);
        for (bytes, rate, elapsed, want) in [
            (100, 0, sec(0), sec(0)),
            (0, 1, sec(0), sec(0)),
            (100, 10, sec(0), sec(10)),
            (100, 10, sec(4), sec(6)),
            (100, 10, sec(11), sec(0)),
            (u64::MAX, 1, sec(1), Nanos(u64::MAX - 1_000_000_000)),
        ] {
            let pace = Pace { bytes, start: sec(7), rate: NonZeroU64::new(rate) };
            assert_eq!(pace.pause(sec(7) + elapsed), want, "{bytes} bytes at {rate}/s after {elapsed:?}");
        }
    }
}
