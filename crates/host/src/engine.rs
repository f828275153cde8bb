//! The engine: tasks, timers, callbacks and the loop that serves them.
//!
//! One turn of the loop: take messages of other threads, run deferred callbacks, poll the tasks
//! that were woken (each once, a round of `runqueue`), fire timers that are due, then give
//! the driver its turn: it starts submitted operations and reports completed ones, whose
//! completions run. If nothing is left to do, the driver's turn waits, until the next timer at
//! most.
//!
//! Invariants: no borrow is held while a task, a completion or a waker runs; nothing is polled from
//! within a wake-up or a completion; memory of an operation in flight stays in `ops` until the
//! driver reported it, also when the engine is dropped.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::Future;
use std::num::NonZeroU64;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::{Pin, pin};
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant, SystemTime};

use base::{Error, ErrorKind, Nanos, Result, WallTime};
use rt::trace::{Event, Groups};
use rt::{CpuClass, HostIdentity, Rt, TaskId, TaskLocks, TimerId, World};
use slab::Slab;

use crate::awake::KeepAwake;
use crate::driver::{Driver, Owner, Request, Wait};
use crate::ident;
use crate::poller::Poller;
use crate::remote::RemoteSpawner;
use crate::ring::Ring;
use crate::runqueue::{Round, RunQueue};
use crate::shared::{Msg, Shared, TaskHeader};
use crate::timers::Timers;
use crate::workers::Workers;

/// A poll that takes so long or longer is slow: five times what a turn may cost at most
/// ([`rt::turn::BOUND`]), so neither the estimates nor other programs of the machine explain it
/// easily.
const SLOW_POLL: Nanos = Nanos::from_ms(1);
/// Within a round, operations that its polls submitted are started after this time: several times
/// what a system call takes that starts some, and short beside what a device takes.
const START_AFTER: Nanos = Nanos::from_us(25);
/// The slot of the future that `block_on` runs.
const MAIN: usize = usize::MAX;
/// How long a dropped engine waits for operations that devices do not give back, before it leaves
/// them their memory.
const DRAIN_LIMIT: Duration = Duration::from_secs(30);

/// Choice of the I/O driver.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum BackendChoice {
    /// io_uring where the kernel offers it, else threads.
    #[default]
    Auto,
    /// io_uring or nothing.
    Ring,
    /// Threads and `ppoll`.
    Threads,
}

/// How to set up an [`Engine`].
#[derive(Clone, Debug)]
pub struct EngineConfig {
    /// Threads for CPU jobs at most; 0 means one per core. They are started as jobs come.
    pub cpu_threads: usize,
    /// How much nicer CPU threads are than the engine, 0 to 19.
    pub cpu_nice: i32,
    /// The I/O driver.
    pub backend: BackendChoice,
    /// The machine's identity; determined if None.
    pub identity: Option<HostIdentity>,
    /// Seed of the engine's choices; from the system's entropy if None.
    pub seed: Option<u64>,
    /// Whether idle cores may be kept awake while many short requests come.
    pub keep_awake: KeepAwake,
}

impl Default for EngineConfig {
    fn default() -> EngineConfig {
        EngineConfig {
            cpu_threads: 0,
            cpu_nice: 5,
            backend: BackendChoice::Auto,
            identity: None,
            seed: None,
            keep_awake: KeepAwake::Auto,
        }
    }
}

/// Counters of the engine, from its start.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct EngineStats {
    /// Turns of the loop.
    pub turns: u64,
    /// Polls of tasks.
    pub polls: u64,
    /// Those of them that took 1 ms or longer.
    pub slow_polls: u64,
    /// Operations that ended.
    pub completions: u64,
    /// Entries into the kernel to submit, reap or wait.
    pub enters: u64,
    /// Operations in flight now.
    pub in_flight: u64,
    /// CPU time of the engine's thread in which it only looked for completions.
    pub looked: Nanos,
}

/// Tasks of one name whose polls took 1 ms or longer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SlowTask {
    /// Their name.
    pub task: &'static str,
    /// How many of their polls did.
    pub polls: u64,
    /// The longest.
    pub longest: Nanos,
}

/// The owner of an engine. Stays on the thread that made it; dropping it ends its tasks where they
/// are.
pub struct Engine(Rc<Inner>);

/// A handle on an engine for code on its thread that has only an `Rt`.
#[derive(Clone)]
pub struct Handle(pub(crate) Rc<Inner>);

struct Task {
    future: Option<Pin<Box<dyn Future<Output = ()>>>>,
    header: Arc<TaskHeader>,
    waker: Waker,
    locks: Option<TaskLocks>,
    name: &'static str,
}

struct OpSlot {
    token: u64,
    owner: Box<dyn Owner>,
}

pub(crate) struct Inner {
    me: Weak<Inner>,
    shared: Arc<Shared>,
    origin: Instant,
    tasks: RefCell<Slab<Task>>,
    last_task: Cell<u64>,
    current: Cell<TaskId>,
    ready: RefCell<RunQueue<Arc<TaskHeader>>>,
    timers: RefCell<Timers>,
    deferred: RefCell<VecDeque<Box<dyn FnOnce()>>>,
    cpu_done: RefCell<Slab<Box<dyn FnOnce()>>>,
    cpu: Workers,
    /// For jobs with a waiter: at the engine's own priority, so that they displace those of `cpu`.
    cpu_urgent: Workers,
    ops: RefCell<Slab<OpSlot>>,
    last_op: Cell<u64>,
    driver: RefCell<Box<dyn Driver>>,
    rng: Cell<u64>,
    identity: RefCell<HostIdentity>,
    tracer: Rc<rt::trace::Tracer>,
    turn: Rc<rt::Turn>,
    /// The thread's processor time when the last traced poll ended, or the loop's turn began.
    cpu_clock: Cell<Option<Nanos>>,
    running: Cell<bool>,
    /// The engine was dropped: nothing starts any more.
    ended: Cell<bool>,
    turns: Cell<u64>,
    polls: Cell<u64>,
    /// By the names of tasks, of which there are a few dozen.
    slow: RefCell<Vec<SlowTask>>,
    completions: Cell<u64>,
}

thread_local! {
    /// The engines of this thread, to find one from an `Rt`.
    static ENGINES: RefCell<Vec<Weak<Inner>>> = const { RefCell::new(Vec::new()) };
}

impl Engine {
    /// An engine that belongs to the calling thread.
    pub fn new(config: EngineConfig) -> Result<Engine> {
        crate::memory::install();
        let fail = |what: &str, e: std::io::Error| Error::new(ErrorKind::Unsupported, format!("{what}: {e}"));
        let shared = Arc::new(Shared::new().map_err(|e| fail("no eventfd for the engine", e))?);
        let driver: Box<dyn Driver> = match config.backend {
            BackendChoice::Threads => Box::new(Poller::new(shared.clone())),
            BackendChoice::Ring => {
                Box::new(Ring::new(shared.clone(), config.keep_awake).map_err(|e| fail("no io_uring here", e))?)
            }
            BackendChoice::Auto => match Ring::new(shared.clone(), config.keep_awake) {
                Ok(ring) => Box::new(ring),
                Err(_) => Box::new(Poller::new(shared.clone())),
            },
        };
        // A timer of this thread may be late by this much (ns) on top of the clock's own precision;
        // 50 us is usual.
        let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(1000));
        let cpu_threads = match config.cpu_threads {
            0 => std::thread::available_parallelism().map_or(1, |n| n.get()),
            n => n,
        };
        let seed = config.seed.unwrap_or_else(|| {
            let mut b = [0; 8];
            ident::entropy(&mut b);
            u64::from_ne_bytes(b)
        });
        let inner = Rc::new_cyclic(|me| Inner {
            me: me.clone(),
            shared,
            origin: Instant::now(),
            tasks: RefCell::new(Slab::new()),
            last_task: Cell::new(0),
            current: Cell::new(TaskId::NONE),
            ready: RefCell::default(),
            timers: RefCell::default(),
            deferred: RefCell::default(),
            cpu_done: RefCell::new(Slab::new()),
            cpu_urgent: Workers::new("weir-cpu-now", std::thread::available_parallelism().map_or(1, |n| n.get()), 0),
            cpu: Workers::new("weir-cpu", cpu_threads, config.cpu_nice.clamp(0, 19)),
            ops: RefCell::new(Slab::new()),
            last_op: Cell::new(0),
            driver: RefCell::new(driver),
            rng: Cell::new(seed),
            identity: RefCell::new(config.identity.unwrap_or_else(ident::host_identity)),
            tracer: Rc::default(),
            turn: Rc::default(),
            cpu_clock: Cell::default(),
            running: Cell::new(false),
            ended: Cell::new(false),
            turns: Cell::new(0),
            polls: Cell::new(0),
            slow: RefCell::default(),
            completions: Cell::new(0),
        });
        ENGINES.with_borrow_mut(|list| list.push(Rc::downgrade(&inner)));
        Ok(Engine(inner))
    }

    /// The engine's world as the engine crates see it.
    pub fn rt(&self) -> Rt {
        self.0.rt()
    }

    /// A handle for edges on this thread.
    pub fn handle(&self) -> Handle {
        Handle(self.0.clone())
    }

    /// The way into this engine from other threads.
    pub fn remote(&self) -> RemoteSpawner {
        RemoteSpawner::new(self.0.shared.clone())
    }

    /// The I/O driver: `io_uring` or `threads`.
    pub fn backend(&self) -> &'static str {
        self.0.driver.borrow().name()
    }

    /// Counters up to now.
    pub fn stats(&self) -> EngineStats {
        self.handle().stats()
    }

    /// Runs the engine until `fut` has ended, and gives its result. Other tasks stay where they are
    /// until the next call.
    pub fn block_on<T>(&self, fut: impl Future<Output = T>) -> T {
        self.0.block_on(fut)
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.0.shut_down();
    }
}

impl Handle {
    /// The engine that `rt` belongs to, if it is one of this crate's, alive and of this thread.
    pub fn of(rt: &Rt) -> Option<Handle> {
        let world = Rc::as_ptr(rt.world()).cast::<()>();
        ENGINES.with_borrow(|list| {
            list.iter().find(|e| e.as_ptr().cast::<()>() == world).and_then(Weak::upgrade).map(Handle)
        })
    }

    /// As [`Handle::of`], with an error for worlds that are not of this crate.
    pub(crate) fn need(rt: &Rt) -> Result<Handle> {
        Handle::of(rt).ok_or_else(|| Error::new(ErrorKind::Unsupported, "real I/O needs an engine of this machine"))
    }

    /// The engine's world.
    pub fn rt(&self) -> Rt {
        self.0.rt()
    }

    /// The way into this engine from other threads.
    pub fn remote(&self) -> RemoteSpawner {
        RemoteSpawner::new(self.0.shared.clone())
    }

    /// The I/O driver: `io_uring` or `threads`.
    pub fn backend(&self) -> &'static str {
        self.0.driver.borrow().name()
    }

    /// Whether idle cores may be kept awake from now on.
    pub fn set_keep_awake(&self, mode: KeepAwake) {
        self.0.driver.borrow_mut().set_keep_awake(mode);
    }

    /// What the machine is from now on: its id may be given to it while it runs.
    pub fn set_identity(&self, identity: HostIdentity) {
        *self.0.identity.borrow_mut() = identity;
    }

    /// How many threads for CPU jobs there may be from now on, at least one.
    pub fn set_cpu_threads(&self, threads: usize) {
        self.0.cpu.set_max(threads);
    }

    /// Whose polls took 1 ms or longer up to now, the longest first.
    pub fn slow_tasks(&self) -> Vec<SlowTask> {
        let mut all = self.0.slow.borrow().clone();
        all.sort_by_key(|s| (std::cmp::Reverse(s.longest), s.task));
        all
    }

    /// Counters up to now.
    pub fn stats(&self) -> EngineStats {
        EngineStats {
            turns: self.0.turns.get(),
            polls: self.0.polls.get(),
            slow_polls: self.0.slow.borrow().iter().map(|s| s.polls).sum(),
            completions: self.0.completions.get(),
            enters: self.0.driver.borrow().enters(),
            in_flight: self.0.ops.borrow().len() as u64,
            looked: Nanos(self.0.driver.borrow().looked().as_nanos() as u64),
        }
    }
}

/// Clears the mark of a running engine, also when a task panics.
struct Running<'a>(&'a Inner);
impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.0.running.set(false);
        self.0.current.set(TaskId::NONE);
        self.0.shared.awake();
    }
}

impl Inner {
    fn this(&self) -> Rc<Inner> {
        self.me.upgrade().expect("a borrowed engine is alive")
    }

    fn rt(&self) -> Rt {
        Rt::new(self.this())
    }

    fn next_task(&self) -> u64 {
        self.last_task.set(self.last_task.get() + 1);
        self.last_task.get()
    }

    fn block_on<T>(&self, fut: impl Future<Output = T>) -> T {
        assert!(!self.running.replace(true), "an engine is not run from within itself");
        let _running = Running(self);
        let id = self.next_task();
        let header = Arc::new(TaskHeader::new(id, MAIN, self.shared.clone()));
        let waker = Waker::from(header.clone());
        let locks = task_locks();
        self.ready.borrow_mut().push(header.clone(), false);
        let mut fut = pin!(fut);
        let (mut came, mut msgs, mut over) = (Vec::new(), Vec::new(), Vec::new());
        loop {
            self.turns.set(self.turns.get() + 1);
            self.shared.take(&mut came, &mut msgs);
            for task in came.drain(..) {
                let is_behind = task.is_behind();
                self.ready.borrow_mut().push(task, is_behind);
            }
            for msg in msgs.drain(..) {
                self.handle_msg(msg);
            }
            self.run_deferred();
            // The end of one poll is the beginning of the next.
            let began = self.now();
            let mut clock = began;
            // What the operations that ended let go must not wait for the round.
            self.driver.borrow_mut().start();
            let mut started = began;
            self.cpu_clock.set(self.tracer.wants(Groups::TURN).then(thread_cpu_time));
            let mut round = Round::default();
            loop {
                let next = self.ready.borrow_mut().next(&mut round, clock.since(began));
                let Some(task) = next else { break };
                if clock.since(started) >= START_AFTER {
                    self.driver.borrow_mut().start();
                    started = clock;
                }
                if task.slot != MAIN {
                    clock = self.poll_task(task, clock);
                } else if task.id == id {
                    self.polls.set(self.polls.get() + 1);
                    self.current.set(TaskId(id));
                    self.turn.begin(clock);
                    task.begin_poll();
                    let poll = {
                        let _scope = locks.as_ref().map(TaskLocks::enter);
                        fut.as_mut().poll(&mut Context::from_waker(&waker))
                    };
                    self.current.set(TaskId::NONE);
                    if let Poll::Ready(value) = poll {
                        return value;
                    }
                    task.end_poll(self.turn.is_spent());
                    clock = self.poll_over("main", id, clock);
                }
            }
            self.fire_timers();
            let wait = self.may_wait();
            self.driver.borrow_mut().turn(wait, &mut over);
            self.shared.awake();
            for (token, res) in over.drain(..) {
                self.op_over(token, res);
            }
        }
    }

    /// How long the driver may wait now. If it may, other threads ring the bell from now on.
    fn may_wait(&self) -> Wait {
        if !self.ready.borrow().is_empty() || !self.deferred.borrow().is_empty() {
            return Wait::No;
        }
        let wait = match self.timers.borrow().next() {
            None => Wait::Forever,
            Some(at) => match at.since(self.now()) {
                Nanos(0) => return Wait::No,
                Nanos(ns) => Wait::For(Duration::from_nanos(ns)),
            },
        };
        if self.shared.fall_asleep() { wait } else { Wait::No }
    }

    fn handle_msg(&self, msg: Msg) {
        match msg {
            Msg::Call(f) => f(&self.rt()),
            Msg::Io { token, res } => self.op_over(token, res),
            Msg::CpuDone { id, panic } => {
                let done = self.cpu_done.borrow_mut().try_remove(id);
                if let Some(panic) = panic {
                    resume_unwind(panic);
                }
                done.expect("every CPU job has its callback")();
            }
        }
    }

    fn run_deferred(&self) {
        let count = self.deferred.borrow().len();
        for _ in 0..count {
            let f = self.deferred.borrow_mut().pop_front();
            if let Some(f) = f {
                f();
            }
        }
    }

    fn fire_timers(&self) {
        if self.timers.borrow().next().is_none() {
            return;
        }
        let now = self.now();
        loop {
            let waker = self.timers.borrow_mut().pop_due(now);
            match waker {
                Some(w) => w.wake(),
                None => return,
            }
        }
    }

    /// A poll that began at `began` is over; when that was.
    fn poll_over(&self, task: &'static str, id: u64, began: Nanos) -> Nanos {
        let now = self.now();
        let took = now.since(began);
        if took >= SLOW_POLL {
            self.note_slow(task, took);
        }
        if self.tracer.wants(Groups::TURN) {
            let used = thread_cpu_time();
            // The first turn of a trace has no beginning on this clock, or an old one.
            let on_cpu = self.cpu_clock.replace(Some(used)).map_or(took, |before| used.since(before).min(took));
            self.tracer.emit(now, &Event::Turn { task, id, took, on_cpu });
        }
        now
    }

    #[cold]
    fn note_slow(&self, task: &'static str, took: Nanos) {
        let mut slow = self.slow.borrow_mut();
        match slow.iter_mut().find(|s| s.task == task) {
            Some(known) => (known.polls, known.longest) = (known.polls + 1, known.longest.max(took)),
            None => slow.push(SlowTask { task, polls: 1, longest: took }),
        }
    }

    /// Polls a task at `began`; when the poll was over.
    fn poll_task(&self, header: Arc<TaskHeader>, began: Nanos) -> Nanos {
        let (mut future, waker, locks, name) = {
            let mut tasks = self.tasks.borrow_mut();
            let Some(task) = tasks.get_mut(header.slot).filter(|t| t.header.id == header.id) else { return began };
            let Some(future) = task.future.take() else { return began };
            (future, task.waker.clone(), task.locks.clone(), task.name)
        };
        self.polls.set(self.polls.get() + 1);
        self.current.set(TaskId(header.id));
        self.turn.begin(began);
        header.begin_poll();
        let poll = {
            let _scope = locks.as_ref().map(TaskLocks::enter);
            future.as_mut().poll(&mut Context::from_waker(&waker))
        };
        self.current.set(TaskId::NONE);
        if poll.is_pending() {
            header.end_poll(self.turn.is_spent());
            if let Some(task) = self.tasks.borrow_mut().get_mut(header.slot) {
                task.future = Some(future);
            }
        } else {
            let task = self.tasks.borrow_mut().try_remove(header.slot);
            drop(future);
            drop(task);
        }
        self.poll_over(name, header.id, began)
    }

    /// Starts an operation whose memory `owner` keeps, and returns the token to cancel it by.
    ///
    /// # Safety
    /// `owner` owns the memory that the operation points to; it neither moves nor is touched until
    /// the owner gets the result.
    pub(crate) unsafe fn start(&self, req: Request, owner: Box<dyn Owner>) -> u64 {
        if self.ended.get() {
            // The engine would free the memory without waiting for the end.
            drop(owner);
            return 0;
        }
        let token = {
            let mut ops = self.ops.borrow_mut();
            let index = ops.vacant_key();
            // 24 bits of index, 38 of age: no token comes twice in the life of a process, and the
            // top bits stay free.
            assert!(index < 1 << 24, "too many operations in flight");
            self.last_op.set((self.last_op.get() + 1) & ((1 << 38) - 1));
            let token = self.last_op.get() << 24 | index as u64;
            ops.insert(OpSlot { token, owner });
            token
        };
        // SAFETY: the caller's promise; the owner is dropped only after the driver's report.
        unsafe { self.driver.borrow_mut().submit(token, req) };
        token
    }

    /// Asks for the end of an operation; its owner gets a result in any case.
    pub(crate) fn cancel(&self, token: u64) {
        let live = self.ops.borrow_mut().get_mut(index_of(token)).is_some_and(|s| s.token == token);
        if live {
            self.driver.borrow_mut().cancel(token);
        }
    }

    /// Runs `f` in a later turn.
    pub(crate) fn defer(&self, f: Box<dyn FnOnce()>) {
        self.deferred.borrow_mut().push_back(f);
    }

    fn op_over(&self, token: u64, res: i32) {
        let slot = {
            let mut ops = self.ops.borrow_mut();
            match ops.get_mut(index_of(token)) {
                Some(s) if s.token == token => ops.try_remove(index_of(token)),
                _ => None,
            }
        };
        let Some(slot) = slot else { return };
        self.completions.set(self.completions.get() + 1);
        if let Some((req, owner)) = slot.owner.complete(&self.this(), res) {
            // SAFETY: the owner describes its own memory, as it did when it started.
            unsafe { self.start(req, owner) };
        }
    }

    fn shut_down(&self) {
        ENGINES.with_borrow_mut(|list| list.retain(|e| !std::ptr::eq(e.as_ptr(), self)));
        self.ended.set(true);
        drop(self.shared.close());
        self.cpu.stop();
        self.cpu_urgent.stop();
        // Tasks hold the engine through their `Rt`: they go first. Dropping them may start or
        // cancel operations.
        loop {
            let tasks = std::mem::take(&mut *self.tasks.borrow_mut());
            if tasks.is_empty() {
                break;
            }
            drop(tasks);
        }
        drop(std::mem::take(&mut *self.ready.borrow_mut()));
        drop(self.timers.borrow_mut().take_all());
        let cpu_done = std::mem::take(&mut *self.cpu_done.borrow_mut());
        drop(cpu_done);
        let deferred = std::mem::take(&mut *self.deferred.borrow_mut());
        drop(deferred);
        self.drain();
    }

    /// Waits until no device uses memory of ours, dropping owners without a call.
    fn drain(&self) {
        let begin = Instant::now();
        let mut over = Vec::new();
        let mut lost = Vec::new();
        while !self.ops.borrow().is_empty() {
            self.driver.borrow_mut().cancel_all();
            self.driver.borrow_mut().turn(Wait::For(Duration::from_millis(5)), &mut over);
            over.extend(self.shared.take_io());
            for (token, _) in over.drain(..) {
                let slot = self.ops.borrow_mut().try_remove(index_of(token));
                drop(slot);
            }
            if begin.elapsed() > DRAIN_LIMIT {
                lost.extend(std::mem::take(&mut *self.ops.borrow_mut()));
            }
        }
        // A device that does not answer may still write there later.
        lost.into_iter().for_each(std::mem::forget);
    }
}

fn index_of(token: u64) -> usize {
    (token & ((1 << 24) - 1)) as usize
}

/// How long this thread had a processor (`CLOCK_THREAD_CPUTIME_ID`).
pub fn thread_cpu_time() -> Nanos {
    let t = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Nanos((t.tv_sec as u64).saturating_mul(1_000_000_000).saturating_add(t.tv_nsec as u64))
}

/// Lock ranks are checked where assertions are.
fn task_locks() -> Option<TaskLocks> {
    cfg!(debug_assertions).then(TaskLocks::new)
}

impl World for Inner {
    fn now(&self) -> Nanos {
        Nanos(u64::try_from(self.origin.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }

    fn wall_clock(&self) -> WallTime {
        match SystemTime::now().duration_since(SystemTime::UNIX_EPOCH) {
            Ok(d) => WallTime { secs: d.as_secs() as i64, nanos: d.subsec_nanos() },
            Err(e) => {
                let before = e.duration();
                let (secs, nanos) = (before.as_secs() as i64, before.subsec_nanos());
                if nanos == 0 {
                    WallTime { secs: -secs, nanos: 0 }
                } else {
                    WallTime { secs: -secs - 1, nanos: 1_000_000_000 - nanos }
                }
            }
        }
    }

    fn set_timer(&self, at: Nanos, waker: Waker) -> TimerId {
        self.timers.borrow_mut().arm(at, waker)
    }

    fn cancel_timer(&self, id: TimerId) {
        let waker = self.timers.borrow_mut().cancel(id);
        drop(waker);
    }

    fn spawn(&self, name: &'static str, task: Pin<Box<dyn Future<Output = ()>>>) -> TaskId {
        let id = self.next_task();
        let header = {
            let mut tasks = self.tasks.borrow_mut();
            let slot = tasks.vacant_key();
            let header = Arc::new(TaskHeader::new(id, slot, self.shared.clone()));
            let waker = Waker::from(header.clone());
            tasks.insert(Task { future: Some(task), header: header.clone(), waker, locks: task_locks(), name });
            header
        };
        self.ready.borrow_mut().push(header, false);
        TaskId(id)
    }

    fn rng_u64(&self) -> u64 {
        // SplitMix64.
        let mut z = self.rng.get().wrapping_add(0x9e37_79b9_7f4a_7c15);
        self.rng.set(z);
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn entropy(&self, out: &mut [u8]) {
        ident::entropy(out);
    }

    fn cpu(&self, _cost: Nanos, class: CpuClass, job: Box<dyn FnOnce() + Send>, done: Box<dyn FnOnce()>) {
        let id = self.cpu_done.borrow_mut().insert(done);
        let shared = self.shared.clone();
        let workers = if class == CpuClass::Urgent { &self.cpu_urgent } else { &self.cpu };
        workers.run(Box::new(move || {
            // A panic of a job is resumed on the engine's thread.
            let panic: Option<Box<dyn Any + Send>> = catch_unwind(AssertUnwindSafe(job)).err();
            let _ = shared.post(Msg::CpuDone { id, panic });
        }));
    }

    fn charge(&self, _cost: Nanos) {}

    fn worked(&self) -> Nanos {
        // A round that looks for completions may be in both clocks by different amounts.
        let looked = self.driver.try_borrow().map_or(Duration::ZERO, |driver| driver.looked());
        Nanos(thread_cpu_time().0.saturating_sub(looked.as_nanos() as u64))
    }

    fn turn(&self) -> Rc<rt::Turn> {
        self.turn.clone()
    }

    fn physmem_bytes(&self) -> u64 {
        ident::physmem_bytes()
    }

    fn host_identity(&self) -> HostIdentity {
        self.identity.borrow().clone()
    }

    fn current_task(&self) -> TaskId {
        self.current.get()
    }

    fn page_lock(&self) -> Option<Arc<dyn base::PageLock>> {
        Some(Arc::new(crate::secret::SystemPageLock))
    }

    fn tracer(&self) -> Rc<rt::trace::Tracer> {
        self.tracer.clone()
    }
}
