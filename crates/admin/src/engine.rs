//! Engine threads: each runs one `host::Engine` and on it one pool.
//!
//! Pool state is `Rc` and never leaves its thread. Other threads send closures
//! ([`EngineThread::call`]), which get the pool of their thread with [`current`].

use std::cell::{Cell, RefCell};
use std::ffi::CString;
use std::future::Future;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread::{JoinHandle, ThreadId};

use base::{Error, ErrorKind, Result};
use host::{Engine, EngineConfig, RemoteCall, RemoteSpawner};
use rt::Rt;
use rt::sync::{Semaphore, oneshot};
use rt::trace::{Groups, Listening};
use spa::Pool;
use txg::TxgIo;

use crate::fs::front_end::FrontEnd;
use crate::fs::mounts::Mounts;
use crate::fs::open_volumes::OpenVolumes;
use crate::fs::volume_folder::VolumeFolder;
use crate::keeper::{Keeper, Level};
use crate::pool::cache_file::CacheFile;
use crate::pool::devices::HostDoor;
use crate::tunables::Settings;
use crate::waits::{Wait, waiting};

/// A pool on its engine thread, with the administrative state around it.
pub struct PoolEngine {
    /// The pool.
    pub pool: Rc<Pool>,
    /// `altroot`
    pub altroot: Option<String>,
    /// Its mounted file systems.
    pub mounts: Mounts,
    /// Its open volumes.
    pub volumes: Rc<OpenVolumes>,
    /// The folder with the files of its volumes.
    pub folder: VolumeFolder,
    /// `cachefile`
    pub(crate) cache_file: RefCell<CacheFile>,
    /// Identifies this import (`load_guid`).
    pub load_guid: u64,
    /// Properties of the pool as stored in its MOS, by name.
    pub props: RefCell<crate::pool::props::Stored>,
    /// Instruments that listen.
    pub traces: crate::pool::trace::Traces,
    /// Faults on purpose.
    pub(crate) injections: crate::pool::inject::Injections,
    /// Recordings of operations under way.
    pub recordings: crate::pool::record::Recordings,
    /// The listener for attached USDT probes, and its groups.
    pub probes: RefCell<Option<(Groups, Listening)>>,
    /// When the counters of its devices started, on the engine's clock.
    pub since: base::Nanos,
    /// Held while mounts or names change.
    pub admin: Semaphore,
    /// The log has the warning that keys may be swapped.
    pub(crate) warned_of_swap: Cell<bool>,
    /// What was received redacted is mounted without `-f`, too.
    pub(crate) mounts_redacted: Cell<bool>,
    /// Opens devices by path for the pool.
    pub(crate) door: Rc<HostDoor>,
}

impl PoolEngine {
    /// The property `ashift`, if it is set.
    pub fn default_ashift(&self) -> Option<u8> {
        self.props.borrow().get("ashift").copied().filter(|n| (9..=16).contains(n)).map(|n| n as u8)
    }
    /// Applies settings; the broker sets the cache's limit.
    pub fn tune(&self, settings: &Settings) {
        self.pool.tune(&settings.engine);
        self.mounts_redacted.set(settings.allow_redacted_mount);
        self.volumes.redacted.set(settings.allow_redacted_mount);
        if let Some(host) = host::Handle::of(self.pool.rt()) {
            let cores = std::thread::available_parallelism().map_or(1, |n| n.get());
            host.set_keep_awake(settings.keep_awake);
            host.set_cpu_threads(settings.cpu_threads(cores));
        }
    }
    /// Fires the USDT probes that a tracer is attached to now, and no others.
    pub fn follow_probes(&self) {
        let wanted = host::usdt::wanted();
        if self.probes.borrow().as_ref().map_or(Groups(0), |(groups, _)| *groups) == wanted {
            return;
        }
        // A name has no NUL in it.
        let name = CString::new(self.pool.name()).unwrap_or_default();
        let listen = || self.pool.rt().tracer().listen(wanted, move |_, event| host::usdt::fire(&name, event));
        let new = (wanted != Groups(0)).then(|| (wanted, listen()));
        *self.probes.borrow_mut() = new;
    }
    /// A pool that was just created or imported; `props` are those in its MOS.
    pub fn new(pool: Rc<Pool>, altroot: Option<String>, props: crate::pool::props::Stored) -> Rc<PoolEngine> {
        let load_guid = pool.rt().new_guid().0;
        let (mounts, props) = (Mounts::default(), RefCell::new(props));
        let volumes = OpenVolumes::new(pool.rt());
        let (traces, since) = (crate::pool::trace::Traces::default(), pool.rt().now());
        let (admin, probes) = (Semaphore::new(1), RefCell::default());
        let door = HostDoor::new(pool.rt().clone());
        pool.devices().set_door(door.clone());
        let warned_of_swap = Cell::default();
        let engine = Rc::new(PoolEngine {
            pool,
            altroot,
            mounts,
            volumes,
            folder: VolumeFolder::default(),
            cache_file: RefCell::default(),
            load_guid,
            props,
            traces,
            injections: crate::pool::inject::Injections::default(),
            recordings: crate::pool::record::Recordings::default(),
            probes,
            since,
            admin,
            warned_of_swap,
            mounts_redacted: Cell::new(false),
            door,
        });
        // Weak: the tree refers to the txgs.
        let tree = Rc::downgrade(engine.pool.tree());
        engine.pool.txg().set_meter(move || {
            let mut io = TxgIo::default();
            for leaf in tree.upgrade().iter().flat_map(|t| t.leaves()) {
                let s = leaf.stats();
                io.reads += s.read_ops;
                io.read_bytes += s.read_bytes;
                io.writes += s.write_ops;
                io.write_bytes += s.write_bytes;
            }
            io
        });
        engine.apply_pool_props();
        engine.expand_if_wanted();
        engine
    }
}

struct PerThread {
    pool: Option<Rc<PoolEngine>>,
    stop: Option<oneshot::Sender<()>>,
    keeper: Option<Arc<dyn Keeper>>,
}

thread_local! {
    static THIS: RefCell<PerThread> = const { RefCell::new(PerThread { pool: None, stop: None, keeper: None }) };
}

/// The front end that mounts file systems, on an engine thread.
pub(crate) fn front_end() -> Result<Rc<dyn FrontEnd>> {
    let keeper = THIS.with_borrow(|t| t.keeper.clone());
    let keeper = keeper.ok_or_else(|| Error::unsupported("file systems cannot be mounted here"))?;
    Ok(keeper.front_end())
}

/// Writes a line to the log, from an engine thread.
pub(crate) fn say(level: Level, text: &str) {
    match THIS.with_borrow(|t| t.keeper.clone()) {
        Some(keeper) => keeper.say(level, text),
        None => eprintln!("{text}"),
    }
}

/// The pool of this engine thread.
pub fn current() -> Result<Rc<PoolEngine>> {
    let pool = THIS.with_borrow(|t| t.pool.clone());
    pool.ok_or_else(|| Error::new(ErrorKind::Interrupted, "the pool is not imported any more"))
}

/// Sets the pool of this engine thread.
pub fn set_current(pool: Rc<PoolEngine>) {
    THIS.with_borrow_mut(|t| t.pool = Some(pool));
}

/// Drops the pool of this engine thread.
pub fn clear_current() {
    // Dropped outside the borrow: the drop of a pool may read thread state.
    let pool = THIS.with_borrow_mut(|t| t.pool.take());
    drop(pool);
}

/// A thread that runs an engine. Dropping it ends the engine at once: close or sync the pool first.
pub struct EngineThread {
    remote: RemoteSpawner,
    id: ThreadId,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl EngineThread {
    /// Starts a thread and waits until its engine runs. It logs and mounts through `keeper`.
    pub fn start(keeper: Option<Arc<dyn Keeper>>) -> Result<EngineThread> {
        let (tx, rx) = mpsc::channel::<Result<RemoteSpawner>>();
        let run = move || {
            let engine = match Engine::new(EngineConfig::default()) {
                Ok(engine) => engine,
                Err(e) => return drop(tx.send(Err(e))),
            };
            let (stop, stopped) = oneshot::oneshot::<()>();
            THIS.with_borrow_mut(|t| (t.stop, t.keeper) = (Some(stop), keeper));
            let _ = tx.send(Ok(engine.remote()));
            // A message and a dropped sender both end the engine.
            let _ = engine.block_on(stopped);
            clear_current();
            drop(engine);
        };
        let thread = std::thread::Builder::new().name("weir-engine".into()).spawn(run);
        let thread = thread.map_err(|e| Error::new(ErrorKind::Io, format!("no engine thread can be started: {e}")))?;
        let remote = rx.recv().map_err(|_| Error::new(ErrorKind::Interrupted, "the engine thread ended at once"))??;
        Ok(EngineThread { remote, id: thread.thread().id(), thread: Mutex::new(Some(thread)) })
    }

    /// Runs `f` on the thread.
    pub fn call<T, F, Fut>(&self, f: F) -> RemoteCall<T>
    where
        T: Send + 'static,
        F: FnOnce(&Rt) -> Fut + Send + 'static,
        Fut: Future<Output = T> + 'static,
    {
        self.remote.call(f)
    }

    /// Runs `f` with the thread's pool and waits for its result.
    pub fn with_pool<T, F, Fut>(&self, f: F) -> Result<T>
    where
        T: Send + 'static,
        F: FnOnce(Rc<PoolEngine>) -> Fut + Send + 'static,
        Fut: Future<Output = Result<T>> + 'static,
    {
        self.begin_with_pool(f).wait()
    }

    /// Runs `f` with the thread's pool.
    pub(crate) fn begin_with_pool<T, F, Fut>(&self, f: F) -> PoolCall<T>
    where
        T: Send + 'static,
        F: FnOnce(Rc<PoolEngine>) -> Fut + Send + 'static,
        Fut: Future<Output = Result<T>> + 'static,
    {
        PoolCall { call: self.call(move |_| async move { f(current()?).await }), thread: self.id }
    }

    /// The thread.
    pub fn id(&self) -> ThreadId {
        self.id
    }

    /// Ends the engine and waits for the thread.
    pub fn stop(&self) {
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread {
            drop(self.remote.call(|_| async {
                let stop = THIS.with_borrow_mut(|t| t.stop.take());
                stop.map(|s| s.send(()))
            }));
            let _ = thread.join();
        }
    }
}

impl Drop for EngineThread {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Work on a pool that is under way.
#[must_use = "its result"]
pub(crate) struct PoolCall<T> {
    call: RemoteCall<Result<T>>,
    thread: ThreadId,
}

impl<T> PoolCall<T> {
    /// Waits for its result.
    pub(crate) fn wait(self) -> Result<T> {
        waiting(Wait::Engine(self.thread), || self.call.wait())?
    }
}

/// The progress of a request: its work writes it, the connection's thread reads it.
#[derive(Default, Debug)]
pub struct Progress {
    what: Mutex<String>,
    done: AtomicU64,
    total: AtomicU64,
}

impl Progress {
    /// Nothing yet.
    pub fn new() -> Arc<Progress> {
        Arc::default()
    }
    /// Begins to count `total` of `what`.
    pub fn begin(&self, what: impl Into<String>, total: u64) {
        *self.what.lock().unwrap_or_else(PoisonError::into_inner) = what.into();
        self.done.store(0, Ordering::Relaxed);
        self.total.store(total, Ordering::Relaxed);
    }
    /// One more is done.
    pub fn step(&self) {
        self.done.fetch_add(1, Ordering::Relaxed);
    }
    /// The name of the count, the steps done, and their total; none before the first count begins.
    pub fn get(&self) -> Option<(String, u64, u64)> {
        let what = self.what.lock().unwrap_or_else(PoisonError::into_inner).clone();
        (!what.is_empty()).then(|| (what, self.done.load(Ordering::Relaxed), self.total.load(Ordering::Relaxed)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_answers_and_ends() {
        let t = EngineThread::start(None).unwrap();
        assert_eq!(
            t.call(|rt| {
                let rt = rt.clone();
                async move {
                    rt.sleep(base::Nanos(1000)).await;
                    7
                }
            })
            .wait()
            .unwrap(),
            7
        );
        assert!(t.with_pool(|_| async { Ok(()) }).is_err());
        t.stop();
        assert!(t.call(|_| async { 1 }).wait().is_err());
        t.stop();
    }
}
