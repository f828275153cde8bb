//! [`Engine`]: a thread on which pools live, and the way into it.
//!
//! The engine of weir is single-threaded: a pool, its file systems and everything in memory about
//! them are `Rc` and `Cell` and belong to one thread. An [`Engine`] starts that thread and is a
//! handle on it that goes anywhere. Each operation of a handle becomes a *job*: a closure that is
//! sent over, takes its locks and references in the order in which jobs were sent, and returns a
//! future that runs there as a task beside all others. The answer comes back through a [`Call`].
//!
//! A thread ends in one of four ways, and all of them answer every call that is under way:
//!
//! * its last handle is dropped: pools that are still open are closed as by
//!   [`crate::Pool::export`], jobs before that run to their end;
//! * [`Engine::stop`], the same with a waiter;
//! * a panic in the engine, which is a broken invariant: nothing is written any more, calls give
//!   [`ErrorKind::EngineGone`] with its message;
//! * in a simulation, a power cut.

use std::any::Any;
use std::cell::RefCell;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::{Arc, Condvar, Mutex, PoisonError, mpsc};
use std::task::{Context, Poll};
use std::time::Duration;

use rt::LocalBoxFuture;

use crate::call::{Call, Fate, Reply};
use crate::device::Device;
use crate::error::{Error, ErrorKind, Result};
use crate::inside::Inside;

/// How long dropping the last handle waits for the engine to write out and end.
pub const DROP_WAIT: Duration = Duration::from_secs(30);

thread_local! {
    static HERE: RefCell<Option<Rc<Inside>>> = const { RefCell::new(None) };
}

/// Whether this is the thread of some engine.
pub(crate) fn on_engine_thread() -> bool {
    HERE.with_borrow(Option::is_some)
}

/// Makes this thread an engine's, or an ordinary one again.
pub(crate) fn set_here(inside: Option<Rc<Inside>>) {
    let before = HERE.with_borrow_mut(|here| std::mem::replace(here, inside));
    drop(before);
}

fn here() -> Option<Rc<Inside>> {
    HERE.with_borrow(Clone::clone)
}

/// Work on the engine's thread: the closure runs in the order of sending, its future beside all
/// others.
pub(crate) type Job = Box<dyn FnOnce(&Rc<Inside>) -> LocalBoxFuture<'static, ()> + Send>;

/// Whether a caller may wait for a job. A simulation stands still while no such job is under way,
/// so that the moment at which a thread drops a handle does not change the run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Attended {
    Yes,
    No,
}

/// The way to an engine's thread.
pub(crate) trait Door: Send + Sync {
    /// Sends a job; one that cannot arrive any more is dropped.
    fn post(&self, job: Job, attended: Attended);
    /// Has the thread close its pools and end.
    fn stop(&self);
}

/// Signals the end of the thread, also when it panics.
#[derive(Clone, Default)]
pub(crate) struct Ended(Arc<(Mutex<bool>, Condvar)>);

impl Ended {
    pub(crate) fn tell(&self) {
        *self.0.0.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.0.1.notify_all();
    }
    /// Waits for the requested end.
    pub(crate) fn wait_for_end(&self) -> bool {
        self.wait(DROP_WAIT * 4)
    }
    fn wait(&self, span: Duration) -> bool {
        let ended = self.0.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (ended, _) = self.0.1.wait_timeout_while(ended, span, |e| !*e).unwrap_or_else(PoisonError::into_inner);
        *ended
    }
}

/// The message of a panic.
pub(crate) fn panic_text(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|s| s.to_string()).or_else(|| panic.downcast_ref::<String>().cloned());
    format!("the engine panicked: {}", text.as_deref().unwrap_or("it did not say why"))
}

/// A job's future with its answer. The answer outlives a panic of the future, so that the caller
/// gets an error.
struct Answer<T, Fut> {
    /// None once it has ended.
    fut: Option<Pin<Box<Fut>>>,
    reply: Option<Reply<T>>,
    fate: Arc<Fate>,
}

impl<T, Fut> Unpin for Answer<T, Fut> {}

impl<T, Fut: Future<Output = Result<T>>> Future for Answer<T, Fut> {
    type Output = ();
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let Some(fut) = self.fut.as_mut() else { return Poll::Ready(()) };
        let polled = catch_unwind(AssertUnwindSafe(|| fut.as_mut().poll(cx)));
        match polled {
            Ok(Poll::Pending) => Poll::Pending,
            Ok(Poll::Ready(result)) => {
                // Handles that it held may send jobs when they are dropped: before the caller goes
                // on.
                self.fut = None;
                if let Some(reply) = self.reply.take() {
                    reply.send(result);
                }
                Poll::Ready(())
            }
            Err(panic) => {
                self.fate.seal(panic_text(&*panic));
                drop(self.reply.take());
                resume_unwind(panic)
            }
        }
    }
}

/// A thread with an engine on it. Cheap to clone; all clones are the same engine.
///
/// Dropping the last clone (pools, file systems and files have one each) closes the pools and ends
/// the thread; the drop waits for that, [`DROP_WAIT`] at most. In asynchronous code that must not
/// block call [`crate::Pool::export`] and [`Engine::stop`] first: then there is nothing left to
/// wait for.
#[derive(Clone)]
pub struct Engine(Arc<EngineInner>);

struct EngineInner {
    door: Box<dyn Door>,
    fate: Arc<Fate>,
    ended: Ended,
}

impl std::fmt::Debug for Engine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Engine({})", if self.is_running() { "running" } else { "ended" })
    }
}

impl Drop for EngineInner {
    fn drop(&mut self) {
        self.door.stop();
        // On the engine's own thread it would wait for itself.
        if !on_engine_thread() {
            self.ended.wait(DROP_WAIT);
        }
    }
}

impl Engine {
    /// Starts an engine of this machine: real time, files and block devices. Waits until it runs,
    /// which takes about a millisecond.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] or [`ErrorKind::Other`] if the system gives no thread or no
    /// descriptors.
    pub fn start() -> Result<Engine> {
        let (fate, ended) = (Arc::<Fate>::default(), Ended::default());
        let (tell, told) = mpsc::channel();
        let (thread_fate, thread_ended) = (fate.clone(), ended.clone());
        let run = move || {
            host_thread(&thread_fate, &tell);
            thread_ended.tell();
        };
        let thread = std::thread::Builder::new().name("openweir".into()).spawn(run);
        thread.map_err(|e| Error::new(ErrorKind::Other, format!("no engine thread can be started: {e}")))?;
        let remote = told.recv().map_err(|_| fate.error())??;
        let door = Box::new(HostDoor { remote, fate: fate.clone() });
        Ok(Engine(Arc::new(EngineInner { door, fate, ended })))
    }

    pub(crate) fn over(door: Box<dyn Door>, fate: Arc<Fate>, ended: Ended) -> Engine {
        Engine(Arc::new(EngineInner { door, fate, ended }))
    }

    /// Whether it runs: false once it was stopped, panicked, or lost its power.
    pub fn is_running(&self) -> bool {
        !self.0.fate.is_sealed()
    }

    /// Closes every pool that is open (as [`crate::Pool::export`]) and ends the thread. Earlier
    /// calls are done first; handles give [`ErrorKind::EngineGone`] afterwards.
    ///
    /// # Errors
    /// The first error of a pool that could not be closed in order, because its devices do not
    /// answer for instance. The engine ends all the same, and the pool is as after a power cut.
    pub fn stop(&self) -> Call<()> {
        let (call, reply) = Call::new(&self.0.fate);
        let job: Job = Box::new(move |inside| {
            let inside = inside.clone();
            Box::pin(async move {
                let closed = inside.close_all().await;
                inside.end();
                reply.send(closed);
            })
        });
        self.0.door.post(job, Attended::Yes);
        call
    }

    /// A device in memory of `bytes` bytes (whole multiples of 4096; at least 64 MiB for a pool),
    /// zero at first. Memory is taken as it is written. The device lives as long as the engine,
    /// whether a pool uses it or not.
    pub fn memory_device(&self, bytes: u64) -> Call<Device> {
        self.run(move |inside| {
            let made = inside.memory_device(bytes & !4095);
            async move { made }
        })
    }

    /// Runs `f` on the engine's thread and the future that it gives as a task there. See
    /// [`crate::local`].
    ///
    /// # Errors
    /// The error of `f`; [`ErrorKind::EngineGone`] if the engine has ended, or ends first.
    pub fn local<T, F, Fut>(&self, f: F) -> Call<T>
    where
        T: Send + 'static,
        F: FnOnce(crate::local::Inside) -> Fut + Send + 'static,
        Fut: Future<Output = Result<T>> + 'static,
    {
        self.run(move |inside| f(crate::local::Inside(inside.clone())))
    }

    /// Runs a job and gives its answer.
    pub(crate) fn run<T, F, Fut>(&self, f: F) -> Call<T>
    where
        T: Send + 'static,
        F: FnOnce(&Rc<Inside>) -> Fut + Send + 'static,
        Fut: Future<Output = Result<T>> + 'static,
    {
        self.send(f, Attended::Yes)
    }

    /// As [`Engine::run`]; with [`Attended::No`] the call must be dropped.
    pub(crate) fn send<T, F, Fut>(&self, f: F, attended: Attended) -> Call<T>
    where
        T: Send + 'static,
        F: FnOnce(&Rc<Inside>) -> Fut + Send + 'static,
        Fut: Future<Output = Result<T>> + 'static,
    {
        let (call, reply) = Call::new(&self.0.fate);
        let fate = self.0.fate.clone();
        let job: Job = Box::new(move |inside| {
            let made = catch_unwind(AssertUnwindSafe(|| f(inside)));
            match made {
                Ok(fut) => Box::pin(Answer { fut: Some(Box::pin(fut)), reply: Some(reply), fate }),
                Err(panic) => {
                    fate.seal(panic_text(&*panic));
                    drop(reply);
                    resume_unwind(panic)
                }
            }
        });
        self.0.door.post(job, attended);
        call
    }
}

struct HostDoor {
    remote: host::RemoteSpawner,
    fate: Arc<Fate>,
}

impl Door for HostDoor {
    fn post(&self, job: Job, _: Attended) {
        let fate = self.fate.clone();
        // Every job answers by itself; the result of the engine's own call is not needed.
        drop(self.remote.call(move |_| {
            let fut = here().map(|inside| job(&inside));
            async move {
                let _keep = fate;
                if let Some(fut) = fut {
                    fut.await;
                }
            }
        }));
    }
    fn stop(&self) {
        drop(self.remote.call(|_| async {
            if let Some(inside) = here() {
                inside.end();
            }
        }));
    }
}

/// The life of a thread with an engine of this machine.
fn host_thread(fate: &Arc<Fate>, tell: &mpsc::Sender<Result<host::RemoteSpawner>>) {
    let engine = match host::Engine::new(host::EngineConfig::default()) {
        Ok(engine) => engine,
        Err(e) => {
            let _ = tell.send(Err(e.into()));
            return;
        }
    };
    let (inside, stopped) = Inside::new(engine.rt(), None);
    set_here(Some(inside.clone()));
    let _ = tell.send(Ok(engine.remote()));
    let life = catch_unwind(AssertUnwindSafe(|| {
        engine.block_on(async {
            // Either a stop was sent or its sender was dropped: the engine ends.
            let _ = stopped.await;
            let _ = inside.close_all().await;
        });
    }));
    match life {
        Ok(()) => fate.seal("the engine has ended"),
        Err(panic) => fate.seal(panic_text(&*panic)),
    }
    // After a panic, drops here may find inconsistent state and panic again.
    let _ = catch_unwind(AssertUnwindSafe(|| inside.clear()));
    set_here(None);
    let _ = catch_unwind(AssertUnwindSafe(|| drop(inside)));
    let _ = catch_unwind(AssertUnwindSafe(|| drop(engine)));
}
