//! [`Rt`]: the engine's handle on its world, and the futures of its methods.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::future::Future;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};

use base::{Guid, Nanos, WallTime};

use crate::sync::oneshot;
use crate::trace::{Event, Groups, Tracer};
use crate::turn::{Place, Turn, place_of};
use crate::world::{CpuClass, HostIdentity, TaskId, TimerId, World};

/// The engine's handle on the world it runs in. Cheap to clone.
#[derive(Clone)]
pub struct Rt(Rc<dyn World>, Rc<Tracer>, Rc<Turn>);

impl fmt::Debug for Rt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Rt(now {} ns)", self.now().0)
    }
}

impl Rt {
    /// A handle on `world`.
    pub fn new(world: Rc<dyn World>) -> Rt {
        let (tracer, turn) = (world.tracer(), world.turn());
        Rt(world, tracer, turn)
    }
    /// The world itself, for the crates at the edges.
    pub fn world(&self) -> &Rc<dyn World> {
        &self.0
    }
    /// The tracer of this world.
    pub fn tracer(&self) -> &Rc<Tracer> {
        &self.1
    }
    /// Emits a trace event of that group, now. `event` is called only if the group has a listener.
    #[inline(always)]
    pub fn trace(&self, group: Groups, event: impl FnOnce() -> Event) {
        if self.1.wants(group) {
            self.1.emit(self.0.now(), &event());
        }
    }
    /// As [`Rt::trace`], with the time `at`, for callers that know it.
    #[inline(always)]
    pub fn trace_at(&self, at: Nanos, group: Groups, event: impl FnOnce() -> Event) {
        if self.1.wants(group) {
            self.1.emit(at, &event());
        }
    }
    /// Monotonic time.
    pub fn now(&self) -> Nanos {
        self.0.now()
    }
    /// Wall-clock time, for file timestamps.
    pub fn wall_clock(&self) -> WallTime {
        self.0.wall_clock()
    }
    /// Waits for `span`.
    pub fn sleep(&self, span: Nanos) -> Sleep {
        self.sleep_until(self.now() + span)
    }
    /// Waits until `now() >= at`, not at all if that holds already.
    pub fn sleep_until(&self, at: Nanos) -> Sleep {
        Sleep { world: self.0.clone(), at, armed: None }
    }
    /// Lets every other ready task run once.
    pub fn yield_now(&self) -> YieldNow {
        YieldNow { yielded: false }
    }
    /// Starts `fut` as a task of its own; `name` names it in reports. Dropping the handle detaches
    /// the task.
    pub fn spawn<T: 'static>(&self, name: &'static str, fut: impl Future<Output = T> + 'static) -> JoinHandle<T> {
        let state = Rc::new(JoinState { value: RefCell::new(None), waker: RefCell::new(None), done: Cell::new(false) });
        let task_state = state.clone();
        let id = self.0.spawn(
            name,
            Box::pin(async move {
                let value = fut.await;
                *task_state.value.borrow_mut() = Some(value);
                task_state.done.set(true);
                let waker = task_state.waker.borrow_mut().take();
                if let Some(waker) = waker {
                    waker.wake();
                }
            }),
        );
        JoinHandle { state, id }
    }
    /// The next number of the engine's random generator (for choices only, see [`Rt::entropy`]).
    pub fn rng_u64(&self) -> u64 {
        self.0.rng_u64()
    }
    /// A random number below `n`, every one equally likely. `n` must not be 0.
    pub fn rng_below(&self, n: u64) -> u64 {
        assert!(n > 0, "a random number below 0 was asked for");
        // Multiply and shift; the low part identifies the few draws to reject, which would favour
        // some values.
        let reject_below = n.wrapping_neg() % n;
        loop {
            let wide = u128::from(self.rng_u64()) * u128::from(n);
            if wide as u64 >= reject_below {
                return (wide >> 64) as u64;
            }
        }
    }
    /// Fills `out` with entropy: for keys, IVs and guids.
    pub fn entropy(&self, out: &mut [u8]) {
        self.0.entropy(out);
    }
    /// A fresh guid, never 0.
    pub fn new_guid(&self) -> Guid {
        loop {
            let mut bytes = [0u8; 8];
            self.entropy(&mut bytes);
            let guid = u64::from_le_bytes(bytes);
            if guid != 0 {
                return Guid(guid);
            }
        }
    }
    /// Runs CPU work of estimated `cost` at the place that [`place_of`] chooses: on the engine's
    /// thread, after [`Rt::spend`], or in the CPU pool. Dropping the future does not stop work that
    /// has begun.
    pub async fn cpu<T: Send + 'static>(&self, cost: Nanos, f: impl FnOnce() -> T + Send + 'static) -> T {
        self.cpu_as(CpuClass::Bulk, cost, f).await
    }
    /// As [`Rt::cpu`], in that class.
    pub async fn cpu_as<T: Send + 'static>(
        &self,
        class: CpuClass,
        cost: Nanos,
        f: impl FnOnce() -> T + Send + 'static,
    ) -> T {
        if place_of(cost) == Place::Here {
            self.spend(cost).await;
            return f();
        }
        let result = Arc::new(Mutex::new(None));
        let (done, finished) = oneshot::oneshot::<()>();
        let slot = result.clone();
        self.0.cpu(
            cost,
            class,
            Box::new(move || {
                let value = f();
                *slot.lock().unwrap_or_else(PoisonError::into_inner) = Some(value);
            }),
            Box::new(move || {
                // The waiter may be gone.
                let _ = done.send(());
            }),
        );
        finished.await.expect("a world calls `done` of every CPU job");
        let value = result.lock().unwrap_or_else(PoisonError::into_inner).take();
        value.expect("a world runs `job` before `done`")
    }
    /// To be awaited before work of `cost` on the engine's thread: charges the cost, and yields
    /// first if the turn has no room for it. The work must follow without another wait.
    pub fn spend(&self, cost: Nanos) -> Spend<'_> {
        Spend { rt: self, cost }
    }
    /// As [`Rt::spend`] in code that cannot wait: false if the turn has no room for the work; then
    /// another task must do it.
    pub fn try_spend(&self, cost: Nanos) -> bool {
        let room = self.2.admits(cost, || self.now());
        if room {
            self.charge(cost);
        }
        room
    }
    /// Charges work of `cost` done on the engine's thread by code that cannot wait. The work must
    /// be short; use [`Rt::spend`] wherever possible.
    pub fn charge(&self, cost: Nanos) {
        self.2.add(cost);
        self.0.charge(cost);
    }
    /// The current turn of the engine's thread.
    pub fn turn(&self) -> &Turn {
        &self.2
    }
    /// Time that the engine's thread has worked since some fixed origin, without that in which it
    /// only looked for completions.
    pub fn worked(&self) -> Nanos {
        self.0.worked()
    }
    /// Physical memory of the machine, in bytes.
    pub fn physmem_bytes(&self) -> u64 {
        self.0.physmem_bytes()
    }
    /// The identity of this machine.
    pub fn host_identity(&self) -> HostIdentity {
        self.0.host_identity()
    }
    /// The lock that keeps memory with keys out of swap, if the world has one.
    pub fn page_lock(&self) -> Option<std::sync::Arc<dyn base::PageLock>> {
        self.0.page_lock()
    }
    /// The task being polled.
    pub fn current_task(&self) -> TaskId {
        self.0.current_task()
    }
    /// Waits for `fut`, at most for `span`: `None` (and `fut` dropped) on timeout. A future that is
    /// ready at the deadline wins.
    pub async fn timeout<T>(&self, span: Nanos, fut: impl Future<Output = T>) -> Option<T> {
        let mut fut = pin!(fut);
        let mut sleep = pin!(self.sleep(span));
        std::future::poll_fn(|cx| {
            if let Poll::Ready(value) = fut.as_mut().poll(cx) {
                return Poll::Ready(Some(value));
            }
            sleep.as_mut().poll(cx).map(|()| None)
        })
        .await
    }
}

/// Waits until a moment. See [`Rt::sleep_until`].
#[must_use = "a sleep waits only when awaited"]
pub struct Sleep {
    world: Rc<dyn World>,
    at: Nanos,
    armed: Option<(TimerId, Waker)>,
}

impl Sleep {
    /// The time that it waits for.
    pub fn deadline(&self) -> Nanos {
        self.at
    }
}

impl Future for Sleep {
    type Output = ();
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let due = self.world.now() >= self.at;
        if let Some((id, waker)) = &self.armed {
            if !due && waker.will_wake(cx.waker()) {
                return Poll::Pending;
            }
            self.world.cancel_timer(*id);
            self.armed = None;
        }
        if due {
            return Poll::Ready(());
        }
        let id = self.world.set_timer(self.at, cx.waker().clone());
        self.armed = Some((id, cx.waker().clone()));
        Poll::Pending
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        if let Some((id, _)) = self.armed.take() {
            self.world.cancel_timer(id);
        }
    }
}

/// Yields once. See [`Rt::yield_now`].
#[must_use = "a yield happens only when awaited"]
pub struct YieldNow {
    yielded: bool,
}

impl Future for YieldNow {
    type Output = ();
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        if self.yielded {
            return Poll::Ready(());
        }
        self.yielded = true;
        cx.waker().wake_by_ref();
        Poll::Pending
    }
}

/// Charges the turn. See [`Rt::spend`].
#[must_use = "a turn is shared only when this is awaited"]
pub struct Spend<'a> {
    rt: &'a Rt,
    cost: Nanos,
}

impl Future for Spend<'_> {
    type Output = ();
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        if self.rt.2.admits(self.cost, || self.rt.now()) {
            self.rt.charge(self.cost);
            return Poll::Ready(());
        }
        // If polled again within this turn, as a member of a join may be, it still waits.
        cx.waker().wake_by_ref();
        Poll::Pending
    }
}

struct JoinState<T> {
    value: RefCell<Option<T>>,
    waker: RefCell<Option<Waker>>,
    done: Cell<bool>,
}

/// Resolves to the result of a spawned task. Dropping it detaches the task.
///
/// If the world ends before the task does (a power cut in `sim`), the handle never becomes ready.
pub struct JoinHandle<T> {
    state: Rc<JoinState<T>>,
    id: TaskId,
}

impl<T> JoinHandle<T> {
    /// The task's id.
    pub fn id(&self) -> TaskId {
        self.id
    }
    /// Whether the task has ended.
    pub fn is_finished(&self) -> bool {
        self.state.done.get()
    }
}

impl<T> Future for JoinHandle<T> {
    type Output = T;
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<T> {
        if self.state.done.get() {
            let value = self.state.value.borrow_mut().take();
            return Poll::Ready(value.expect("a join handle is not awaited again after it gave its value"));
        }
        let mut waker = self.state.waker.borrow_mut();
        match &mut *waker {
            Some(old) => old.clone_from(cx.waker()),
            None => *waker = Some(cx.waker().clone()),
        }
        Poll::Pending
    }
}
