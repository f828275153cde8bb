//! The interface of a world to the engine.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::Waker;

use base::{Nanos, WallTime};

/// Identifies one armed timer of a world; never reused within a world.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct TimerId(pub u64);

/// Identifies one task of a world; never reused within a world.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct TaskId(pub u64);

impl TaskId {
    /// No task: code that runs outside every task of the world (set-up, completion callbacks).
    pub const NONE: TaskId = TaskId(0);
}

impl fmt::Display for TaskId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The urgency of a CPU job.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CpuClass {
    /// A caller waits for it: a read's decompression.
    Urgent,
    /// Writes of a txg, scrub, and the like: many jobs, none with a waiting caller.
    Bulk,
}

/// The identity of this machine, as pools record it (format page 03: `hostid`, `hostname`).
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct HostIdentity {
    /// The host id; only the low 32 bits are ever set. 0: unknown.
    pub hostid: u64,
    /// The node name.
    pub hostname: String,
}

/// The world of an engine. Implemented by `host` and `sim`; the engine uses it through
/// [`crate::Rt`].
///
/// All methods are called on the engine thread. A world polls one task at a time and never polls a
/// task from within a wake-up, a callback or one of these methods.
pub trait World {
    /// Monotonic time since the world began (any fixed origin).
    fn now(&self) -> Nanos;
    /// Wall-clock time, for file timestamps.
    fn wall_clock(&self) -> WallTime;
    /// Wakes `waker` once `now() >= at`. At once (in a later turn) if that holds already.
    fn set_timer(&self, at: Nanos, waker: Waker) -> TimerId;
    /// Disarms a timer; a timer that has fired, or was cancelled, is ignored.
    fn cancel_timer(&self, id: TimerId);
    /// Spawns `task`, which is first polled in a later turn. `name` names it in reports.
    fn spawn(&self, name: &'static str, task: Pin<Box<dyn Future<Output = ()>>>) -> TaskId;
    /// The next number of the engine's random generator: for choices, never for keys, IVs or guids.
    fn rng_u64(&self) -> u64;
    /// Fills `out` from the system's entropy (seeded in `sim`): for keys, IVs and guids.
    fn entropy(&self, out: &mut [u8]);
    /// Runs `job`, of estimated `cost` on one core, away from the engine thread, then `done` on the
    /// engine thread. A job of the class [`CpuClass::Urgent`] never waits behind one of
    /// [`CpuClass::Bulk`].
    fn cpu(&self, cost: Nanos, class: CpuClass, job: Box<dyn FnOnce() + Send>, done: Box<dyn FnOnce()>);
    /// Charges the running poll with `cost` of work on the engine's core. Advances virtual time in
    /// `sim`.
    fn charge(&self, cost: Nanos);
    /// The turn of the thread, the same object for every call. The world calls
    /// [`crate::Turn::begin`] at each poll of a task.
    fn turn(&self) -> std::rc::Rc<crate::Turn>;
    /// Time that the engine's thread has worked since some fixed origin, without that in which it
    /// only looked for completions.
    fn worked(&self) -> Nanos {
        Nanos(0)
    }
    /// Physical memory of the machine, in bytes.
    fn physmem_bytes(&self) -> u64;
    /// The identity of this machine.
    fn host_identity(&self) -> HostIdentity;
    /// The task being polled, [`TaskId::NONE`] outside of one.
    fn current_task(&self) -> TaskId;
    /// The lock that keeps memory with keys out of swap; none in `sim`.
    fn page_lock(&self) -> Option<std::sync::Arc<dyn base::PageLock>> {
        None
    }
    /// The tracer, the same object for every call. A world without one returns a new one, without
    /// listeners.
    fn tracer(&self) -> std::rc::Rc<crate::trace::Tracer> {
        std::rc::Rc::default()
    }
}
