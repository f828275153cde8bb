//! The pools that run in this process.
//!
//! Start: the pools that the last process left imported are imported again ([`PoolSet::start`]);
//! requests about pools wait until that is done. End: everything is unmounted and on disk
//! ([`PoolSet::shut_down`]); the pools stay as they are and come back at the next start.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::{Duration, Instant};

use arc::MemBroker;
use base::{Error, ErrorKind, Guid, Nanos, Result};
use serde::Serialize;
use serde_json::Value;

use crate::engine::EngineThread;
use crate::fs::mounts::{Force, advise_force};
use crate::keeper::{Keeper, KnownPool, Level};
use crate::kstat::figures::Past;
use crate::pool::cache_file::CacheFiles;
use crate::pool::import::no_such_pool;
use crate::pool::zevents::{PoolSink, Zevents};
use crate::request::{Cx, Select, pool_part};
use crate::tunables::Tunables;
use crate::view::{DatasetView, FlowView, PoolView};
use crate::waits::{Wait, waiting};

/// Time that a request waits for the import of the remembered pools.
const READY_LIMIT: Duration = Duration::from_secs(60);
/// Time that the end waits for an import, and the interval of its checks.
const NAMESPACE_LIMIT: Duration = Duration::from_secs(10);
const NAMESPACE_PERIOD: Duration = Duration::from_millis(20);

/// A pool with its engine thread.
pub struct Running {
    /// Its name.
    pub name: String,
    guid: AtomicU64,
    /// Its thread.
    pub thread: EngineThread,
}

impl Running {
    /// A pool that was created or imported on `thread`.
    pub fn new(name: String, guid: u64, thread: EngineThread) -> Running {
        Running { name, guid: AtomicU64::new(guid), thread }
    }

    /// Its guid.
    pub fn guid(&self) -> u64 {
        self.guid.load(Ordering::Relaxed)
    }
}

/// The running pools.
pub struct PoolSet {
    pub(crate) keeper: Arc<dyn Keeper>,
    /// The writer of cache files.
    pub(crate) cache_files: CacheFiles,
    pub(crate) tunables: Mutex<Tunables>,
    pools: Mutex<BTreeMap<String, Arc<Running>>>,
    namespace: Mutex<()>,
    ready: (Mutex<bool>, Condvar),
    failures: Mutex<Vec<String>>,
    pub(crate) broker: Mutex<MemBroker>,
    pub(crate) events: Arc<Zevents>,
    /// What pools counted that are not imported any more.
    pub(crate) past: Past,
    /// When the process began, since the machine was started.
    pub(crate) since: Nanos,
    /// Faults on purpose so far.
    injections: AtomicU64,
}

pub(crate) fn lock<T>(m: &Mutex<T>) -> MutexGuard<'_, T> {
    m.lock().unwrap_or_else(PoisonError::into_inner)
}

impl PoolSet {
    /// No pool yet; those that [`PoolSet::start`] imports have these tunables.
    pub fn new(keeper: Arc<dyn Keeper>, tunables: Tunables) -> Arc<PoolSet> {
        let events: Arc<Zevents> = Arc::default();
        events.set_max(tunables.zevent_len_max());
        Arc::new(PoolSet {
            keeper,
            cache_files: CacheFiles::default(),
            broker: Mutex::new(MemBroker::new(tunables.arc_min(), tunables.arc_max())),
            tunables: Mutex::new(tunables),
            pools: Mutex::default(),
            namespace: Mutex::default(),
            ready: (Mutex::new(false), Condvar::new()),
            failures: Mutex::default(),
            events,
            past: Past::default(),
            since: host::uptime(),
            injections: AtomicU64::new(0),
        })
    }

    /// Imports the remembered pools. From then on requests about pools are served.
    pub fn start(&self) {
        let failures = self.import_remembered();
        for failure in &failures {
            self.keeper.say(Level::Warning, failure);
        }
        *lock(&self.failures) = failures;
        *lock(&self.ready.0) = true;
        self.ready.1.notify_all();
    }

    /// Periodic maintenance: opens spares and caches, uses devices that have grown (`autoexpand`).
    pub fn maintain(&self) {
        for running in self.all_running() {
            let _ = running.thread.with_pool(|e| async move {
                e.expand_if_wanted();
                e.hold_aux();
                Ok(())
            });
        }
    }

    /// Writes a line to the log.
    pub fn say(&self, level: Level, text: &str) {
        self.keeper.say(level, text);
    }

    /// The remembered pools that could not be imported, one sentence each.
    pub fn failures(&self) -> Vec<String> {
        lock(&self.failures).clone()
    }

    /// Waits until the import of every remembered pool has succeeded or failed.
    pub(crate) fn wait_ready(&self) -> Result<()> {
        let ready = waiting(Wait::Start, || {
            let ready = lock(&self.ready.0);
            let waited = self.ready.1.wait_timeout_while(ready, READY_LIMIT, |ready| !*ready);
            *waited.unwrap_or_else(PoisonError::into_inner).0
        });
        if ready {
            return Ok(());
        }
        let running: Vec<String> = self.all_running().iter().map(|r| r.name.clone()).collect();
        let missing = self.keeper.remembered().into_iter().filter(|p| p.imported && !running.contains(&p.name));
        let names: Vec<String> = missing.map(|p| format!("'{}'", p.name)).collect();
        let why = format!("the daemon is still importing {}", names.join(", "));
        let advice = "wait for it, or look at its devices and end it with 'weir daemon stop -f'";
        Err(Error::new(ErrorKind::Busy, format!("{why}: {advice}")))
    }

    /// Held while the set of running pools changes.
    pub(crate) fn namespace(&self) -> MutexGuard<'_, ()> {
        waiting(Wait::Namespace, || lock(&self.namespace))
    }

    /// All running pools in order of name.
    pub fn all_running(&self) -> Vec<Arc<Running>> {
        lock(&self.pools).values().cloned().collect()
    }

    /// The number of the next fault on purpose, from 1.
    pub(crate) fn next_injection(&self) -> u64 {
        self.injections.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// How many run.
    pub(crate) fn len(&self) -> usize {
        lock(&self.pools).len()
    }

    /// The running pool of that name.
    pub fn running(&self, name: &str) -> Option<Arc<Running>> {
        lock(&self.pools).get(name).cloned()
    }

    /// As [`PoolSet::running`]; an error if there is none.
    pub(crate) fn need_running(&self, name: &str) -> Result<Arc<Running>> {
        self.running(name).ok_or_else(|| no_such_pool(name))
    }

    /// These pools, or all if none is named.
    pub(crate) fn chosen(&self, names: &[String]) -> Result<Vec<Arc<Running>>> {
        if names.is_empty() { Ok(self.all_running()) } else { names.iter().map(|n| self.need_running(n)).collect() }
    }

    /// Their names.
    pub(crate) fn running_names(&self) -> Vec<String> {
        self.all_running().iter().map(|r| r.name.clone()).collect()
    }

    /// The pool of a dataset's name, or of a path in one of its mounts.
    pub(crate) fn pool_of(&self, name: &str) -> Result<Arc<Running>> {
        if name.starts_with('/') {
            for running in self.all_running() {
                let path = name.to_string();
                let holds = running
                    .thread
                    .with_pool(move |e| async move { Ok(e.mounts.holding(std::path::Path::new(&path)).is_some()) });
                if holds.unwrap_or(false) {
                    return Ok(running);
                }
            }
            return Err(Error::not_found(format!("cannot open '{name}': not a path of a mounted weir file system")));
        }
        let pool = pool_part(name);
        self.running(pool).ok_or_else(|| Error::not_found(format!("cannot open '{name}': dataset does not exist")))
    }

    /// Adds a pool that was created or imported, as `opened` says.
    pub(crate) fn add_running(&self, running: Arc<Running>, known: KnownPool, opened: &'static str) -> Result<()> {
        let changes = self.cache_files.changes.clone();
        let sink = PoolSink { events: self.events.clone(), keeper: self.keeper.clone(), changes };
        running.thread.with_pool(move |e| async move {
            e.pool.set_event_sink(Rc::new(sink), opened);
            // In OpenZFS that of the list of pools, which has one more.
            e.pool.post("config_sync");
            e.hold_aux();
            Ok(())
        })?;
        lock(&self.pools).insert(running.name.clone(), running.clone());
        self.balance();
        self.update_cache_file(&running, None);
        self.keeper.remember(known)
    }

    /// Ends the engine of a pool that was exported or destroyed.
    pub(crate) fn remove_running(&self, running: &Arc<Running>) {
        self.keep_figures(running);
        lock(&self.pools).remove(&running.name);
        lock(&self.broker).remove(running.guid());
        running.thread.stop();
        self.balance();
    }

    /// `zpool reguid`: gives a pool the guid `new`, or one drawn at random.
    pub(crate) fn reguid(&self, cx: &Cx<'_>, pool: &str, new: Option<u64>) -> Result<()> {
        let _namespace = self.namespace();
        let running = self.need_running(pool)?;
        if let Some(new) = new
            && self.all_running().iter().any(|r| r.guid() == new)
        {
            let why = format!("cannot reguid '{pool}': a pool with the guid {new} is imported already");
            return Err(Error::new(ErrorKind::Exists, why));
        }
        let new = new.map(Guid);
        let new = cx.on(&running, move |e| async move { e.pool.devices().change_guid(new).await })?.0;
        let old = running.guid.swap(new, Ordering::Relaxed);
        self.leave_cache_file(self.cache_file_of(&running).as_deref(), old);
        self.update_cache_file(&running, None);
        lock(&self.broker).remove(old);
        self.balance();
        // A process that ends in between finds the pool by its name.
        self.keeper.change_guid(old, new)
    }

    /// The data flow through these pools, or all.
    pub fn flows(&self, names: &[String]) -> Result<Vec<FlowView>> {
        let running = self.chosen(names)?;
        running.iter().map(|r| r.thread.with_pool(|e| async move { Ok(e.flow_view()) })).collect()
    }

    /// Everything about these pools, or all.
    pub(crate) fn pool_views(&self, names: &[String]) -> Result<Vec<PoolView>> {
        let mut out = Vec::new();
        for running in self.chosen(names)? {
            match running.thread.with_pool(|e| async move { Ok(e.view().await) }) {
                Ok(view) => out.push(view),
                Err(e) => out.push(PoolView {
                    name: running.name.clone(),
                    guid: running.guid(),
                    state: "SUSPENDED".into(),
                    status: Some(format!("The pool's engine has stopped: {e}. The log has more.")),
                    action: Some(
                        "Run 'weir daemon stop -f'; the next command starts a daemon that imports the pool again."
                            .into(),
                    ),
                    ..PoolView::default()
                }),
            }
        }
        Ok(out)
    }

    /// The selected datasets, each once.
    pub(crate) fn datasets(&self, select: &Select) -> Result<Vec<DatasetView>> {
        if select.names.is_empty() {
            let mut out = Vec::new();
            for running in self.all_running() {
                let select = select.clone();
                out.extend(running.thread.with_pool(move |e| async move { e.select(&select).await })?);
            }
            return Ok(out);
        }
        let mut out: Vec<DatasetView> = Vec::new();
        let mut seen: BTreeSet<String> = BTreeSet::new();
        for name in &select.names {
            let one = Select { names: vec![name.clone()], ..select.clone() };
            let more = self.pool_of(name)?.thread.with_pool(move |e| async move { e.select(&one).await })?;
            for view in more {
                if seen.insert(view.name.clone()) {
                    out.push(view);
                }
            }
        }
        Ok(out)
    }

    /// Prepares the end: unmounts everything, or fails if a file system is in use.
    pub(crate) fn stop(&self) -> Result<()> {
        let _namespace = self.namespace();
        let mut unmounted = Vec::new();
        for running in self.all_running() {
            let result = running.thread.with_pool(|e| async move {
                // Before the lock: its holder may wait for the devices.
                if let Some(cause) = e.pool.suspended() {
                    return Err(Error::new(ErrorKind::Suspended, format!("pool '{}': {cause}", e.pool.name())));
                }
                let _admin = e.admin.acquire(1).await;
                e.end_all_use(Force::No).await.map_err(|e| advise_force(e, "weir daemon stop -f"))
            });
            match result {
                Ok(list) => unmounted.push((running, list)),
                Err(e) => {
                    for (running, list) in unmounted {
                        let _ = running.thread.with_pool(move |e| async move {
                            e.mount_again(&list).await;
                            e.show_volumes().await;
                            Ok(())
                        });
                    }
                    return Err(e.at("cannot stop the daemon"));
                }
            }
        }
        Ok(())
    }

    /// The end: everything is unmounted and on disk. While the guard lives no pool is added.
    pub fn shut_down(&self) -> Option<MutexGuard<'_, ()>> {
        // An import whose devices do not answer holds this for ever. A later import repeats all of
        // its writes.
        let end = Instant::now() + NAMESPACE_LIMIT;
        let namespace = loop {
            match self.namespace.try_lock() {
                Err(TryLockError::WouldBlock) if Instant::now() < end => std::thread::sleep(NAMESPACE_PERIOD),
                Err(TryLockError::WouldBlock) => break None,
                Err(TryLockError::Poisoned(guard)) => break Some(guard.into_inner()),
                Ok(guard) => break Some(guard),
            }
        };
        for running in self.all_running() {
            let call = running.thread.call(|_| async {
                let engine = crate::engine::current()?;
                if let Some(cause) = engine.pool.suspended() {
                    // Dirty data of a suspended pool is lost.
                    engine.pool.give_up().await;
                    engine.end_all_use(Force::Full).await?;
                    return Err(cause);
                }
                engine.end_all_use(Force::Full).await?;
                engine.pool.sync().await?;
                engine.pool.txg().stop();
                Ok::<(), Error>(())
            });
            if let Err(e) = call.wait().and_then(|r| r) {
                self.keeper.say(Level::Err, &format!("pool '{}' could not be left in order: {e}", running.name));
            }
            running.thread.stop();
        }
        namespace
    }
}

/// Joins the errors of several objects.
pub(crate) fn join_errors(errors: Vec<Error>) -> Result<()> {
    let Some(kind) = errors.first().map(Error::kind) else { return Ok(()) };
    let lines: Vec<String> = errors.iter().map(Error::to_string).collect();
    Err(Error::new(kind, lines.join("\n")))
}

pub(crate) fn json<T: Serialize>(value: &T) -> Result<Value> {
    serde_json::to_value(value).map_err(|e| Error::invalid(format!("the answer cannot be written: {e}")))
}
