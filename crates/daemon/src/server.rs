//! The daemon itself: the socket, the connections, the set of running pools, its start and its end.
//!
//! Start: lock the folders, listen, import what the last daemon left imported. Connections are
//! served from the first moment; requests about pools wait until the remembered ones are imported.
//! End (SIGTERM, or a request): unmount, sync, stop the engines; the pools stay as they are on disk
//! and come back at the next start.

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::net::UnixListener;
use std::rc::Rc;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::{Duration, Instant};

use arc::MemBroker;
use base::{Error, ErrorKind, Result};
use host::Signals;
use serde::Serialize;
use serde_json::Value;
use spa::EngineOpts;

use crate::engine::{EngineThread, PoolEngine};
use crate::front::{Door, Limits};
use crate::import::no_such_pool;
use crate::log::{Level, Log};
use crate::metrics::Endpoint;
use crate::paths::{Locks, Paths};
use crate::proto::{self, DatasetView, PoolView, TunableView};
use crate::request::{Select, pool_part};
use crate::requests::{Requests, Wait, waiting};
use crate::serve::Lanes;
use crate::state::{KnownPool, State};
use crate::tunables::Tunables;
use crate::zevents::{PoolSink, Zevents};

/// How often the broker looks at what the caches want.
const BROKER_PERIOD: Duration = Duration::from_secs(2);
/// How many of those periods pass between looks at the sizes of devices (`autoexpand`).
const EXPAND_EVERY: u32 = 5;
/// How long a request waits for the import of the remembered pools.
const READY_LIMIT: Duration = Duration::from_secs(60);
/// How long the end of the daemon waits for an import, and how often it looks.
const NAMESPACE_LIMIT: Duration = Duration::from_secs(10);
const NAMESPACE_PERIOD: Duration = Duration::from_millis(20);

/// Where programs that the daemon starts are looked for.
pub(crate) const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
/// Tells whether standard error is the journal (systemd.exec(5)).
pub(crate) const JOURNAL_STREAM: &str = "JOURNAL_STREAM";

/// A pool with its engine thread.
pub struct Running {
    /// Its name.
    pub name: String,
    /// Its guid.
    pub guid: u64,
    /// Its thread.
    pub thread: EngineThread,
}

impl Running {
    /// A pool that was created or imported on `thread`.
    pub fn new(name: String, guid: u64, thread: EngineThread) -> Running {
        Running { name, guid, thread }
    }
}

/// The daemon.
pub struct Daemon {
    pub(crate) paths: Paths,
    pub(crate) tunables: Mutex<Tunables>,
    state: Mutex<State>,
    pools: Mutex<BTreeMap<String, Arc<Running>>>,
    namespace: Mutex<()>,
    ready: (Mutex<bool>, Condvar),
    pub(crate) failures: Mutex<Vec<String>>,
    broker: Mutex<MemBroker>,
    pub(crate) events: Arc<Zevents>,
    pub(crate) log: Arc<Log>,
    pub(crate) requests: Arc<Requests>,
    pub(crate) lanes: Lanes,
}

pub(crate) fn lock<T>(m: &Mutex<T>) -> MutexGuard<'_, T> {
    m.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Makes this process a daemon's, before anything else: nothing stays of who started it.
/// `WEIR_DUMPABLE=1` lets debuggers and core files have it.
pub fn become_daemon() {
    let keep = |name: &str| name.starts_with("WEIR_") || name == JOURNAL_STREAM;
    host::shed_inheritance(keep, PATH);
    host::new_session();
    if std::env::var_os("WEIR_DUMPABLE").is_none_or(|v| v != "1") {
        host::forbid_dumps();
    }
    // Other users mount through fusermount3, which is set-user-id.
    if host::effective_uid() == 0 {
        host::forbid_new_privileges();
    }
}

/// Runs a daemon until it is told to end, giving out metrics at `metrics`. An error that is in its
/// log already is given back as a value.
pub fn run(paths: Paths, tunables: Tunables, metrics: Option<Endpoint>) -> Result<Option<Error>> {
    let signals = Signals::hold();
    host::raise_open_files();
    host::raise_locked_memory();
    paths.make_runtime()?;
    let log = Arc::new(Log::open(&paths.log()));
    let panics = log.clone();
    std::panic::set_hook(Box::new(move |info| {
        let thread = std::thread::current();
        let at = info.location().map_or(String::new(), |l| format!(" at {l}"));
        let what = info.payload_as_str().unwrap_or("no message");
        panics.say(Level::Err, &format!("thread '{}' panicked{at}: {what}", thread.name().unwrap_or("?")));
    }));
    let done = run_logged(&signals, paths, tunables, metrics, &log);
    if let Err(e) = &done {
        log.say(Level::Err, &e.to_string());
    }
    Ok(done.err())
}

fn run_logged(
    signals: &Signals,
    paths: Paths,
    tunables: Tunables,
    metrics: Option<Endpoint>,
    log: &Arc<Log>,
) -> Result<()> {
    paths.make_state()?;
    let locks = paths.lock()?;
    let state = State::load(&paths.state_file())?;
    let doors = doors(&paths)?;
    let broker = Mutex::new(MemBroker::new(tunables.arc_max()));
    let events: Arc<Zevents> = Arc::default();
    events.set_max(tunables.zevent_len_max());
    let daemon = Arc::new(Daemon {
        paths,
        tunables: Mutex::new(tunables),
        state: Mutex::new(state),
        pools: Mutex::default(),
        namespace: Mutex::default(),
        ready: (Mutex::new(false), Condvar::new()),
        failures: Mutex::default(),
        broker,
        events,
        log: log.clone(),
        requests: Arc::default(),
        lanes: Lanes::default(),
    });
    let locks = Arc::new(Mutex::new(Some(locks)));
    for (door, opened) in doors {
        let (daemon, locks) = (daemon.clone(), locks.clone());
        let public = door.users.is_none();
        std::thread::spawn(move || {
            let again = |door: &Door| {
                // Held until it is open: a daemon that ends leaves no socket behind.
                let mut locks = lock(&locks);
                let in_order = locks.as_mut().is_some_and(|l| l.renew(&daemon.paths));
                in_order.then(|| door.open().ok()).flatten()
            };
            door.serve(opened, again, |message| daemon.take(message, public));
        });
    }
    let brokering = daemon.clone();
    std::thread::spawn(move || {
        let mut rounds = 0u32;
        loop {
            std::thread::sleep(BROKER_PERIOD);
            brokering.balance();
            rounds = rounds.wrapping_add(1);
            if rounds.is_multiple_of(EXPAND_EVERY) {
                for running in brokering.all_running() {
                    let _ = running.thread.with_pool(|e| async move {
                        e.expand_if_wanted();
                        e.keep_aux();
                        Ok(())
                    });
                }
            }
        }
    });
    if let Some(endpoint) = metrics {
        let daemon = daemon.clone();
        endpoint.serve(move || daemon.flows(&[]).unwrap_or_default())?;
    }
    log.say(Level::Notice, &format!("weir {} begins as process {}", env!("CARGO_PKG_VERSION"), std::process::id()));
    let importing = daemon.clone();
    // Beside the wait for signals: devices that do not answer must not keep the daemon from ending.
    std::thread::spawn(move || {
        let failures = importing.import_remembered();
        for failure in &failures {
            importing.log.say(Level::Warning, failure);
        }
        *lock(&importing.failures) = failures;
        *lock(&importing.ready.0) = true;
        importing.ready.1.notify_all();
    });
    signals.wait();
    log.say(Level::Notice, "the daemon ends: its pools are unmounted and written");
    daemon.shut_down(&locks);
    Ok(())
}

/// The doors, open: the owner's, and root's for all users.
fn doors(paths: &Paths) -> Result<Vec<(Door, (UnixListener, u64))>> {
    let owner = paths.uid();
    let users = if owner == 0 { vec![0] } else { vec![owner, 0] };
    let mut doors = vec![Door { path: paths.socket(), mode: 0o600, limits: Limits::OWNER, users: Some(users) }];
    if owner == 0 {
        let path = Paths::public_socket(paths.runtime());
        doors.push(Door { path, mode: 0o666, limits: Limits::PUBLIC, users: None });
    }
    let open = |d: Door| d.open().map(|o| (d, o));
    doors.into_iter().map(open).collect()
}

impl Daemon {
    /// Waits until the remembered pools are imported, or have turned out not to be importable.
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
        let missing = self.remembered().into_iter().filter(|p| p.imported && !running.contains(&p.name));
        let names: Vec<String> = missing.map(|p| format!("'{}'", p.name)).collect();
        let why = format!("the daemon is still importing {}", names.join(", "));
        let advice = "wait for it, or look at its devices and end it with 'weir daemon stop -f'";
        Err(Error::new(ErrorKind::Busy, format!("{why}: {advice}")))
    }

    /// Held by whoever changes the set of running pools.
    pub(crate) fn namespace(&self) -> MutexGuard<'_, ()> {
        waiting(Wait::Namespace, || lock(&self.namespace))
    }

    /// All running pools in order of name.
    pub(crate) fn all_running(&self) -> Vec<Arc<Running>> {
        lock(&self.pools).values().cloned().collect()
    }

    /// The running pool of that name.
    pub(crate) fn running(&self, name: &str) -> Option<Arc<Running>> {
        lock(&self.pools).get(name).cloned()
    }

    /// The same, or the error that there is none.
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

    /// Takes up a pool that was created or imported: `opened` says which.
    pub(crate) fn add_running(&self, running: Arc<Running>, known: KnownPool, opened: &'static str) -> Result<()> {
        let (events, log) = (self.events.clone(), self.log.clone());
        running.thread.with_pool(move |e| async move {
            e.pool.set_event_sink(Rc::new(PoolSink(events, log)), opened);
            e.keep_aux();
            Ok(())
        })?;
        lock(&self.pools).insert(running.name.clone(), running);
        self.balance();
        self.change_state(|s| s.remember(known))
    }

    /// Ends the engine of a pool that was exported or destroyed.
    pub(crate) fn remove_running(&self, running: &Arc<Running>) {
        lock(&self.pools).remove(&running.name);
        lock(&self.broker).remove(running.guid);
        running.thread.stop();
        self.balance();
    }

    /// Changes what is remembered and writes it down.
    pub(crate) fn change_state(&self, change: impl FnOnce(&mut State)) -> Result<()> {
        let mut state = lock(&self.state);
        change(&mut state);
        state.save(&self.paths.state_file())
    }

    /// What is remembered.
    pub(crate) fn remembered(&self) -> Vec<KnownPool> {
        lock(&self.state).pools.clone()
    }

    /// Paths at which devices were seen.
    pub(crate) fn remembered_paths(&self) -> Vec<String> {
        lock(&self.state).device_paths()
    }

    /// Tunables of a pool (its name, as far as it is known) when `more` are about to run beside
    /// those that do.
    pub(crate) fn engine_opts(&self, name: &str, more: usize) -> EngineOpts {
        let pools = lock(&self.pools).len() + more;
        // The others give up their part before the new one has it.
        self.limit_all(pools);
        lock(&self.tunables).settings(name, pools).engine
    }

    /// Holds the running pools to their part of the limits among `pools`.
    fn limit_all(&self, pools: usize) {
        for running in self.all_running() {
            let settings = lock(&self.tunables).settings(&running.name, pools);
            let _ = running.thread.with_pool(move |e| async move {
                e.pool.arc().set_limit(settings.engine.arc_max.min(e.pool.arc().limit()));
                e.tune(&settings);
                Ok(())
            });
        }
    }

    /// Tunables of a pool, or of the daemon.
    pub(crate) fn tunables_of(&self, pool: Option<&str>) -> Result<Vec<TunableView>> {
        if let Some(pool) = pool {
            self.need_running(pool)?;
        }
        let pools = lock(&self.pools).len();
        Ok(lock(&self.tunables).views(pool, pools))
    }

    /// Sets a tunable (`[pool:]name=value`) for the running pools and those to come; with `save`
    /// for later daemons as well.
    pub(crate) fn tune(&self, assignment: &str, save: bool) -> Result<()> {
        // Not taken over before it is checked, and saved.
        let mut new = lock(&self.tunables).clone();
        new.set(assignment)?;
        if let Some((pool, _)) = assignment.split_once(':').filter(|(pool, _)| !save && !pool.contains('=')) {
            self.need_running(pool)?;
        }
        if save {
            let file = self.paths.tunables_file();
            let old = match std::fs::read_to_string(&file) {
                Ok(text) => text,
                Err(e) if e.kind() == std::io::ErrorKind::NotFound => String::new(),
                Err(e) => return Err(Error::new(ErrorKind::Io, format!("'{}' cannot be read: {e}", file.display()))),
            };
            crate::paths::replace_file(&file, crate::tunables::saved(&old, assignment).as_bytes())?;
        }
        let arc_max = new.arc_max();
        self.events.set_max(new.zevent_len_max());
        let changed = arc_max != lock(&self.tunables).arc_max();
        *lock(&self.tunables) = new;
        if changed {
            *lock(&self.broker) = MemBroker::new(arc_max);
        }
        self.balance();
        Ok(())
    }

    /// Splits the limits over the running pools by what their caches want.
    fn balance(&self) {
        let running = self.all_running();
        for r in &running {
            let look = |e: Rc<PoolEngine>| async move {
                e.follow_probes();
                Ok(e.pool.arc().demand())
            };
            if let Ok(demand) = r.thread.with_pool(look) {
                lock(&self.broker).report(r.guid, demand);
            }
        }
        let limits = lock(&self.broker).limits();
        // Those that shrink go first, so that the sum never exceeds the limit.
        for shrink in [true, false] {
            for r in &running {
                let Some((_, limit)) = limits.iter().find(|(guid, _)| *guid == r.guid).copied() else { continue };
                let settings = lock(&self.tunables).settings(&r.name, running.len());
                let _ = r.thread.with_pool(move |e| async move {
                    if (limit < e.pool.arc().limit()) == shrink {
                        e.pool.arc().set_limit(limit);
                    }
                    e.tune(&settings);
                    Ok(())
                });
            }
        }
    }

    /// How data flow through these pools, or all.
    pub(crate) fn flows(&self, names: &[String]) -> Result<Vec<proto::FlowView>> {
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
                    guid: running.guid,
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

    /// The datasets that are asked for; those of several names once each.
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

    /// Prepares the end on request: fails if something is in use.
    pub(crate) fn stop(&self) -> Result<()> {
        let _namespace = self.namespace();
        let mut unmounted = Vec::new();
        for running in self.all_running() {
            let result = running.thread.with_pool(|e| async move {
                // Before the lock: who holds it may wait for the devices.
                if let Some(cause) = e.pool.suspended() {
                    return Err(Error::new(ErrorKind::Suspended, format!("pool '{}': {cause}", e.pool.name())));
                }
                let _admin = e.admin.acquire(1).await;
                e.unmount_all(false).await.map_err(|e| crate::mounts::or_by_force(e, "weir daemon stop -f"))
            });
            match result {
                Ok(list) => unmounted.push((running, list)),
                Err(e) => {
                    for (running, list) in unmounted {
                        let _ = running.thread.with_pool(move |e| async move {
                            e.mount_again(&list).await;
                            Ok(())
                        });
                    }
                    return Err(e.at("cannot stop the daemon"));
                }
            }
        }
        Ok(())
    }

    /// The end: everything is unmounted and on disk.
    fn shut_down(&self, locks: &Mutex<Option<Locks>>) {
        // An import whose devices do not answer holds this for ever. It has written nothing that a
        // later one would not repeat.
        let end = Instant::now() + NAMESPACE_LIMIT;
        let _namespace = loop {
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
                    // What could not be written until now never will be.
                    engine.pool.give_up().await;
                    engine.unmount_all(true).await?;
                    return Err(cause);
                }
                engine.unmount_all(true).await?;
                engine.pool.sync().await?;
                engine.pool.txg().stop();
                Ok::<(), Error>(())
            });
            if let Err(e) = call.wait().and_then(|r| r) {
                self.log.say(Level::Err, &format!("pool '{}' could not be left in order: {e}", running.name));
            }
            running.thread.stop();
        }
        let mut locks = lock(locks);
        let _ = std::fs::remove_file(self.paths.socket());
        let _ = std::fs::remove_file(Paths::public_socket(self.paths.runtime()));
        *locks = None;
    }
}

/// One error for those of several objects, each of which was tried.
pub(crate) fn all_of(errors: Vec<Error>) -> Result<()> {
    let Some(kind) = errors.first().map(Error::kind) else { return Ok(()) };
    let lines: Vec<String> = errors.iter().map(Error::to_string).collect();
    Err(Error::new(kind, lines.join("\n")))
}

pub(crate) fn json<T: Serialize>(value: &T) -> Result<Value> {
    serde_json::to_value(value).map_err(|e| Error::invalid(format!("the answer cannot be written: {e}")))
}
