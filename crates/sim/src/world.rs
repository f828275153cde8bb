//! The state of a simulated world: clock, tasks, events, randomness; and [`rt::World`] over it.
//!
//! Time. `now` moves in two ways: it jumps to the next event when no task is ready, and
//! [`rt::World::charge`] moves it while a task runs. There is one engine core, so whatever fell due
//! during a charge is handled late, when the poll is over, as on a real machine with one engine
//! thread. Devices and CPU jobs keep their own exact schedules.
//!
//! Randomness. Scheduling, the engine's `rng` and its `entropy` draw from separate streams of the
//! seed, so that one more draw in the engine does not change the whole schedule.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::Future;
use std::ops::ControlFlow;
use std::pin::Pin;
use std::rc::{Rc, Weak};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Wake, Waker};

use base::{Nanos, WallTime};
use rt::{CpuClass, HostIdentity, Rt, TaskId, TaskLocks, TimerId, World};

use crate::report::{BlockedTask, StallCause, StallReport};
use crate::rng::Rng;
use crate::timers::Timers;

/// Which ready task runs next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Pick {
    /// Any, drawn from the seed: each seed is another interleaving. For correctness.
    Seeded,
    /// The one that was woken first, as `host` does. For studies.
    Fifo,
}

/// Configuration of a world.
#[derive(Clone, Debug)]
pub struct SimConfig {
    /// Decides everything that is left to chance.
    pub seed: u64,
    /// Virtual cores that CPU jobs run on (the engine's own core is beside them).
    pub cores: usize,
    /// Physical memory as the engine sees it, in bytes.
    pub physmem: u64,
    /// The wall clock when the world begins.
    pub wall_clock: WallTime,
    /// The machine's identity.
    pub identity: HostIdentity,
    /// Which ready task runs next.
    pub pick: Pick,
    /// The longest charge that one poll may add up to; a longer one panics with the task's name.
    pub poll_charge_max: Option<Nanos>,
    /// Cores that share what the engine is charged with: `now` moves by a charge divided by this.
    /// 1 is weir's engine; more stand for a machine on which such work is done by many threads, in
    /// studies that compare with one.
    pub engine_cores: u64,
    /// Polls without time moving after which a run counts as a livelock.
    pub polls_per_instant_max: u64,
}

impl Default for SimConfig {
    fn default() -> SimConfig {
        SimConfig {
            seed: 0,
            cores: 2,
            physmem: 4 << 30,
            wall_clock: WallTime { secs: 1_700_000_000, nanos: 0 },
            identity: HostIdentity { hostid: 0x0051_3d00, hostname: "sim".into() },
            pick: Pick::Seeded,
            poll_charge_max: Some(rt::turn::BOUND),
            engine_cores: 1,
            polls_per_instant_max: 10_000_000,
        }
    }
}

impl SimConfig {
    /// The default world with a seed.
    pub fn seeded(seed: u64) -> SimConfig {
        SimConfig { seed, ..SimConfig::default() }
    }
}

/// A slot number no task has: the future that `block_on` was given.
const ROOT: u32 = u32::MAX;

#[derive(Clone, Copy, PartialEq, Eq)]
struct Key {
    slot: u32,
    id: u64,
}

/// Tasks that are ready. `Waker` asks for `Send`, hence the mutex, never contended.
#[derive(Default)]
struct ReadyQueue(Mutex<VecDeque<Key>>);

impl ReadyQueue {
    fn lock(&self) -> MutexGuard<'_, VecDeque<Key>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

struct TaskWaker {
    key: Key,
    queued: AtomicBool,
    ready: Arc<ReadyQueue>,
}

impl Wake for TaskWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }
    fn wake_by_ref(self: &Arc<Self>) {
        if !self.queued.swap(true, Ordering::AcqRel) {
            self.ready.lock().push_back(self.key);
        }
    }
}

type BoxedTask = Pin<Box<dyn Future<Output = ()>>>;

struct Task {
    id: u64,
    name: &'static str,
    /// None while it is polled.
    future: Option<BoxedTask>,
    waker: Arc<TaskWaker>,
    locks: TaskLocks,
    polled_at: Option<Nanos>,
}

pub(crate) enum Event {
    Wake(Waker),
    Call(Box<dyn FnOnce()>),
}

/// Kinds of moments in the digest.
#[derive(Clone, Copy)]
pub(crate) enum Moment {
    Poll = 1,
    Timer,
    Io,
    CpuJob,
    CpuDone,
}

/// A device to notify when the world ends.
pub(crate) trait PowerOff {
    /// From now on nothing reaches the medium and nothing completes.
    fn power_off(&self);
}

pub(crate) struct SimWorld {
    pub(crate) config: SimConfig,
    now: Cell<Nanos>,
    wall_offset: Cell<i128>,
    tasks: RefCell<Vec<Option<Task>>>,
    free: RefCell<Vec<u32>>,
    next_task: Cell<u64>,
    ready: Arc<ReadyQueue>,
    timers: RefCell<Timers<Event>>,
    current: Cell<TaskId>,
    poll_charge: Cell<Nanos>,
    turn: Rc<rt::Turn>,
    charged: Cell<Nanos>,
    engine_percent: Cell<u64>,
    worked: Cell<Nanos>,
    cores: RefCell<Vec<Nanos>>,
    urgent_cores: RefCell<Vec<Nanos>>,
    cpu_busy: Cell<Nanos>,
    pick_rng: RefCell<Rng>,
    cpu_rng: RefCell<Rng>,
    engine_rng: RefCell<Rng>,
    entropy_rng: RefCell<Rng>,
    digest: Cell<u64>,
    step: Cell<u64>,
    pub(crate) stop_at: Cell<Option<u64>>,
    polls_in_instant: Cell<u64>,
    io_seq: Cell<u64>,
    dead: Cell<bool>,
    devices: RefCell<Vec<Weak<dyn PowerOff>>>,
    tracer: Rc<rt::trace::Tracer>,
    me: Weak<SimWorld>,
}

/// A handle on a simulated world: everything but the running of it. Cheap to clone; [`crate::Sim`]
/// derefs to it.
#[derive(Clone)]
pub struct SimHandle(pub(crate) Rc<SimWorld>);

impl SimHandle {
    /// The engine's handle on this world.
    pub fn rt(&self) -> Rt {
        Rt::new(self.0.clone())
    }
    /// The virtual time.
    pub fn now(&self) -> Nanos {
        self.0.now.get()
    }
    /// A mix of every scheduling event so far: equal for two runs of one seed.
    pub fn digest(&self) -> u64 {
        self.0.digest.get()
    }
    /// Turns so far.
    pub fn step(&self) -> u64 {
        self.0.step.get()
    }
    /// The seed.
    pub fn seed(&self) -> u64 {
        self.0.config.seed
    }
    /// Serial number of the last submission or completion on any disk; counts across all disks of
    /// the world.
    pub fn io_seq(&self) -> u64 {
        self.0.io_seq.get()
    }
    /// Sets the wall clock; it goes on from there.
    pub fn set_wall_clock(&self, to: WallTime) {
        self.0.set_wall(to);
    }
    /// Lets `span` pass on the engine's core, for something beside the engine: a study's machine
    /// that is slower somewhere. It counts neither as charged nor against the bound of a poll.
    pub fn stall(&self, span: Nanos) {
        self.0.pass(span);
    }
    /// From now on what the engine is charged with, and what devices take of its thread, lasts
    /// `percent` percent of that: an engine on a slower processor. Turns are still divided by the
    /// charges.
    pub fn set_engine_percent(&self, percent: u64) {
        self.0.engine_percent.set(percent);
    }
    /// Time that the engine's core was charged with.
    pub fn engine_busy(&self) -> Nanos {
        self.0.charged.get()
    }
    /// Time that CPU jobs took, summed over the cores.
    pub fn cpu_busy(&self) -> Nanos {
        self.0.cpu_busy.get()
    }
    /// Tasks that have not ended.
    pub fn live_tasks(&self) -> usize {
        self.0.tasks.borrow().iter().flatten().count()
    }
    /// Events that are to come: armed timers, operations in flight, CPU jobs.
    pub fn armed_events(&self) -> usize {
        self.0.timers.borrow().len()
    }
    /// Ends the world, as a power cut does: devices first, so that no `Drop` reaches a disk, then
    /// every task is dropped. Nothing runs afterwards.
    pub fn crash(&self) {
        self.0.crash();
    }
}

impl SimWorld {
    pub(crate) fn new(config: SimConfig) -> Rc<SimWorld> {
        assert!(config.cores > 0, "a world needs a core for CPU jobs");
        assert!(config.engine_cores > 0, "a world needs a core for the engine");
        let seed = config.seed;
        let wall = config.wall_clock;
        Rc::new_cyclic(|me| SimWorld {
            now: Cell::default(),
            wall_offset: Cell::new(i128::from(wall.secs) * 1_000_000_000 + i128::from(wall.nanos)),
            tasks: RefCell::default(),
            free: RefCell::default(),
            next_task: Cell::new(1),
            ready: Arc::default(),
            timers: RefCell::new(Timers::new()),
            current: Cell::new(TaskId::NONE),
            poll_charge: Cell::default(),
            turn: Rc::default(),
            charged: Cell::default(),
            engine_percent: Cell::new(100),
            worked: Cell::default(),
            cores: RefCell::new(vec![Nanos(0); config.cores]),
            urgent_cores: RefCell::new(vec![Nanos(0); config.cores]),
            cpu_busy: Cell::default(),
            pick_rng: RefCell::new(Rng::stream(seed, 1)),
            cpu_rng: RefCell::new(Rng::stream(seed, 2)),
            engine_rng: RefCell::new(Rng::stream(seed, 3)),
            entropy_rng: RefCell::new(Rng::stream(seed, 4)),
            digest: Cell::new(seed),
            step: Cell::new(0),
            stop_at: Cell::new(None),
            polls_in_instant: Cell::new(0),
            io_seq: Cell::new(0),
            dead: Cell::new(false),
            devices: RefCell::default(),
            tracer: Rc::default(),
            me: me.clone(),
            config,
        })
    }

    // --- for devices ---

    pub(crate) fn is_dead(&self) -> bool {
        self.dead.get()
    }
    pub(crate) fn time(&self) -> Nanos {
        self.now.get()
    }
    pub(crate) fn next_io_seq(&self) -> u64 {
        self.io_seq.set(self.io_seq.get() + 1);
        self.io_seq.get()
    }
    pub(crate) fn call_at(&self, at: Nanos, call: Box<dyn FnOnce()>) -> TimerId {
        if self.dead.get() {
            // Not armed. Dropping it here is safe: the callers of a dead world hold no borrow.
            drop(call);
            return TimerId(0);
        }
        self.timers.borrow_mut().arm(at.0, Event::Call(call))
    }
    pub(crate) fn disarm(&self, id: TimerId) {
        let event = self.timers.borrow_mut().cancel(id);
        drop(event);
    }
    pub(crate) fn attach(&self, device: Weak<dyn PowerOff>) {
        self.devices.borrow_mut().push(device);
    }
    /// Adds a moment to the digest.
    pub(crate) fn note(&self, moment: Moment, what: u64) {
        let x = what ^ (moment as u64) << 56 ^ self.now.get().0.rotate_left(32);
        let mixed = (self.digest.get().rotate_left(23) ^ x).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.digest.set(mixed ^ mixed >> 29);
    }

    // --- running ---

    fn pick(&self) -> Option<Key> {
        let mut ready = self.ready.lock();
        match (self.config.pick, ready.len()) {
            (_, 0) => None,
            (Pick::Fifo, _) | (_, 1) => ready.pop_front(),
            (Pick::Seeded, n) => {
                let at = self.pick_rng.borrow_mut().below(n as u64) as usize;
                ready.swap_remove_back(at)
            }
        }
    }

    fn fire(&self) {
        let Some((deadline, seq, event)) = self.timers.borrow_mut().pop() else { return };
        if deadline > self.now.get().0 {
            self.now.set(Nanos(deadline));
            self.polls_in_instant.set(0);
        }
        self.note(Moment::Timer, seq);
        match event {
            Event::Wake(waker) => waker.wake(),
            Event::Call(call) => call(),
        }
    }

    /// Runs turns until `root` is ready, or something in the way is found. Without a root: until
    /// `until`, or until nothing can run.
    pub(crate) fn drive(
        &self,
        mut root: Option<Pin<&mut dyn Future<Output = ()>>>,
        until: Option<Nanos>,
    ) -> Result<(), StallReport> {
        let root_id = self.next_task.get();
        self.next_task.set(root_id + 1);
        let key = Key { slot: ROOT, id: root_id };
        let root_waker = Arc::new(TaskWaker { key, queued: AtomicBool::new(false), ready: self.ready.clone() });
        let root_locks = TaskLocks::new();
        let mut root_polled = None;
        if root.is_some() {
            root_waker.wake_by_ref();
        }
        let stop = loop {
            if self.dead.get() {
                break StallCause::Crashed;
            }
            if self.stop_at.get().is_some_and(|at| self.step.get() >= at) {
                break StallCause::StepLimit;
            }
            // Work that costs time may have gone beyond the end, and in a world that has more work
            // than time it is never idle there.
            if until.is_some_and(|until| self.now.get() > until) {
                break StallCause::TimeLimit;
            }
            let next = self.timers.borrow().next().map(Nanos);
            if next.is_some_and(|at| at <= self.now.get()) {
                self.step.set(self.step.get() + 1);
                self.fire();
                continue;
            }
            if let Some(key) = self.pick() {
                if key.slot == ROOT {
                    if key.id != root_id {
                        continue;
                    }
                    let Some(root) = root.as_mut() else { continue };
                    root_waker.queued.store(false, Ordering::Release);
                    root_polled = Some(self.now.get());
                    let waker = Waker::from(root_waker.clone());
                    if self.poll("main", root_id, root.as_mut(), &waker, &root_locks).is_break() {
                        return Ok(());
                    }
                } else {
                    self.poll_task(key);
                }
                self.polls_in_instant.set(self.polls_in_instant.get() + 1);
                if self.polls_in_instant.get() > self.config.polls_per_instant_max {
                    break StallCause::Livelock;
                }
                continue;
            }
            match (next, until) {
                (Some(next), Some(until)) if next > until => {
                    self.now.set(self.now.get().max(until));
                    break StallCause::TimeLimit;
                }
                (Some(_), _) => {
                    self.step.set(self.step.get() + 1);
                    self.fire();
                }
                (None, Some(until)) if root.is_none() => {
                    self.now.set(self.now.get().max(until));
                    break StallCause::TimeLimit;
                }
                (None, _) => break StallCause::Blocked,
            }
        };
        let mut report = self.report(stop);
        if root.is_some() {
            let main =
                BlockedTask { id: TaskId(root_id), name: "main", polled_at: root_polled, holds: root_locks.held() };
            report.tasks.insert(0, main);
        }
        Err(report)
    }

    fn poll_task(&self, key: Key) {
        let (name, mut future, waker, locks) = {
            let mut tasks = self.tasks.borrow_mut();
            let task = tasks.get_mut(key.slot as usize).and_then(Option::as_mut);
            // A waker may outlive its task, and the slot may have a new one.
            let Some(task) = task.filter(|task| task.id == key.id) else { return };
            let Some(future) = task.future.take() else { return };
            task.waker.queued.store(false, Ordering::Release);
            task.polled_at = Some(self.now.get());
            (task.name, future, task.waker.clone(), task.locks.clone())
        };
        let over = self.poll(name, key.id, future.as_mut(), &Waker::from(waker), &locks).is_break();
        if over {
            // Its last value is dropped as the task itself.
            let _scope = locks.enter();
            drop(future);
            let task = self.tasks.borrow_mut().get_mut(key.slot as usize).and_then(Option::take);
            if task.is_some() {
                self.free.borrow_mut().push(key.slot);
            }
            drop(task);
        } else {
            let mut tasks = self.tasks.borrow_mut();
            match tasks.get_mut(key.slot as usize).and_then(Option::as_mut) {
                Some(task) => task.future = Some(future),
                None => {
                    // The world ended during the poll.
                    drop(tasks);
                    drop(future);
                }
            }
        }
    }

    fn poll(
        &self,
        name: &'static str,
        id: u64,
        future: Pin<&mut dyn Future<Output = ()>>,
        waker: &Waker,
        locks: &TaskLocks,
    ) -> ControlFlow<()> {
        /// Leaves the task, also when its poll panics.
        struct Leave<'a>(&'a Cell<TaskId>);
        impl Drop for Leave<'_> {
            fn drop(&mut self) {
                self.0.set(TaskId::NONE);
            }
        }
        self.step.set(self.step.get() + 1);
        self.note(Moment::Poll, id);
        assert_eq!(self.current.replace(TaskId(id)), TaskId::NONE, "a world polls one task at a time");
        let leave = Leave(&self.current);
        self.poll_charge.set(Nanos(0));
        self.turn.begin(self.now.get());
        let scope = locks.enter();
        let poll = future.poll(&mut Context::from_waker(waker));
        drop(scope);
        drop(leave);
        let charge = self.poll_charge.replace(Nanos(0));
        if let Some(max) = self.config.poll_charge_max {
            assert!(
                charge <= max,
                "one poll of task {name} was charged {} ns, more than {} ns: it must yield (seed {})",
                charge.0,
                max.0,
                self.config.seed
            );
        }
        if poll.is_ready() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }

    /// The engine's thread works for `span`, or as much longer as its processor is slower.
    pub(crate) fn work(&self, span: Nanos) {
        self.pass(Nanos(span.0.saturating_mul(self.engine_percent.get()) / 100));
    }

    /// Lets `span` pass at once.
    pub(crate) fn pass(&self, span: Nanos) {
        if span.0 > 0 {
            self.now.set(self.now.get() + span);
            self.worked.set(self.worked.get() + span);
            self.polls_in_instant.set(0);
        }
    }

    fn report(&self, cause: StallCause) -> StallReport {
        let mut tasks: Vec<BlockedTask> = self
            .tasks
            .borrow()
            .iter()
            .flatten()
            .map(|task| BlockedTask {
                id: TaskId(task.id),
                name: task.name,
                polled_at: task.polled_at,
                holds: task.locks.held(),
            })
            .collect();
        tasks.sort_by_key(|task| task.id);
        StallReport { cause, seed: self.config.seed, now: self.now.get(), step: self.step.get(), tasks }
    }

    pub(crate) fn crash(&self) {
        self.dead.set(true);
        let devices = std::mem::take(&mut *self.devices.borrow_mut());
        for device in devices.iter().filter_map(Weak::upgrade) {
            device.power_off();
        }
        // Dropping a task may drop others' handles, wake, cancel timers; nothing of that revives
        // the world.
        loop {
            let tasks = std::mem::take(&mut *self.tasks.borrow_mut());
            let timers = std::mem::replace(&mut *self.timers.borrow_mut(), Timers::new());
            if tasks.is_empty() && timers.len() == 0 {
                break;
            }
            drop(tasks);
            drop(timers);
        }
        // Operations that drops submitted meanwhile are dropped too.
        for device in devices.iter().filter_map(Weak::upgrade) {
            device.power_off();
        }
        self.free.borrow_mut().clear();
        self.ready.lock().clear();
    }

    fn set_wall(&self, to: WallTime) {
        let to = i128::from(to.secs) * 1_000_000_000 + i128::from(to.nanos);
        self.wall_offset.set(to - i128::from(self.now.get().0));
    }
}

impl World for SimWorld {
    fn now(&self) -> Nanos {
        self.now.get()
    }
    fn wall_clock(&self) -> WallTime {
        let ns = self.wall_offset.get() + i128::from(self.now.get().0);
        WallTime { secs: ns.div_euclid(1_000_000_000) as i64, nanos: ns.rem_euclid(1_000_000_000) as u32 }
    }
    fn set_timer(&self, at: Nanos, waker: Waker) -> TimerId {
        if self.dead.get() {
            return TimerId(0);
        }
        self.timers.borrow_mut().arm(at.0, Event::Wake(waker))
    }
    fn cancel_timer(&self, id: TimerId) {
        self.disarm(id);
    }
    fn spawn(&self, name: &'static str, task: BoxedTask) -> TaskId {
        if self.dead.get() {
            drop(task);
            return TaskId::NONE;
        }
        let id = self.next_task.get();
        self.next_task.set(id + 1);
        let mut tasks = self.tasks.borrow_mut();
        let slot = self.free.borrow_mut().pop().unwrap_or_else(|| {
            tasks.push(None);
            (tasks.len() - 1) as u32
        });
        assert!(slot != ROOT, "too many tasks");
        let waker =
            Arc::new(TaskWaker { key: Key { slot, id }, queued: AtomicBool::new(false), ready: self.ready.clone() });
        waker.wake_by_ref();
        tasks[slot as usize] =
            Some(Task { id, name, future: Some(task), waker, locks: TaskLocks::new(), polled_at: None });
        TaskId(id)
    }
    fn rng_u64(&self) -> u64 {
        self.engine_rng.borrow_mut().next_u64()
    }
    fn entropy(&self, out: &mut [u8]) {
        self.entropy_rng.borrow_mut().fill(out);
    }
    fn cpu(&self, cost: Nanos, class: CpuClass, job: Box<dyn FnOnce() + Send>, done: Box<dyn FnOnce()>) {
        if self.dead.get() {
            return;
        }
        let (start, end) = {
            // Urgent jobs displace bulk ones; the longer time of those is neglected.
            let cores = if class == CpuClass::Urgent { &self.urgent_cores } else { &self.cores };
            let mut cores = cores.borrow_mut();
            let core = cores.iter_mut().min().expect("a world has a core");
            let start = (*core).max(self.now.get());
            *core = start + cost;
            (start, *core)
        };
        self.cpu_busy.set(self.cpu_busy.get() + cost);
        // At any instant within its time: a job that reads memory which changes meanwhile is
        // detected.
        let at = Nanos(self.cpu_rng.borrow_mut().between(start.0, end.0));
        let me = self.me.clone();
        let run = move || {
            if let Some(me) = me.upgrade() {
                me.note(Moment::CpuJob, cost.0);
            }
            job();
        };
        let me = self.me.clone();
        let finish = move || {
            if let Some(me) = me.upgrade() {
                me.note(Moment::CpuDone, cost.0);
            }
            done();
        };
        self.call_at(at, Box::new(run));
        self.call_at(end, Box::new(finish));
    }
    fn charge(&self, cost: Nanos) {
        if cost.0 == 0 || self.dead.get() {
            return;
        }
        self.work(Nanos(cost.0 / self.config.engine_cores));
        self.poll_charge.set(self.poll_charge.get() + cost);
        self.charged.set(self.charged.get() + cost);
    }
    fn worked(&self) -> Nanos {
        self.worked.get()
    }
    fn turn(&self) -> Rc<rt::Turn> {
        self.turn.clone()
    }
    fn physmem_bytes(&self) -> u64 {
        self.config.physmem
    }
    fn host_identity(&self) -> HostIdentity {
        self.config.identity.clone()
    }
    fn current_task(&self) -> TaskId {
        self.current.get()
    }
    fn tracer(&self) -> Rc<rt::trace::Tracer> {
        self.tracer.clone()
    }
}
