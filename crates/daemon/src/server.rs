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

use crate::device_ops::known_as;
use crate::engine::{EngineThread, PoolEngine, Progress};
use crate::front::{Door, Limits};
use crate::import::no_such_pool;
use crate::log::{Level, Log};
use crate::metrics::Endpoint;
use crate::paths::{Locks, Paths};
use crate::pool_props::{Wanted, When};
use crate::proto::{self, DatasetView, HoldView, KeyView, PoolView, Request, Select};
use crate::requests::{Requests, Wait, waiting};
use crate::serve::Lanes;
use crate::snap_ops::DestroyHow;
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
    events: Arc<Zevents>,
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
    /// Does what is asked for; `uid` is the user that asks.
    pub(crate) fn handle(self: &Arc<Self>, request: Request, progress: &Arc<Progress>, uid: u32) -> Result<Value> {
        match &request {
            Request::Info => return json(&self.info()),
            Request::Stop { force: true } => return json(&()),
            Request::Stop { force: false } => {
                self.wait_ready()?;
                return self.stop().and_then(|()| json(&()));
            }
            _ => self.wait_ready()?,
        }
        match request {
            Request::Info | Request::Stop { .. } => json(&()),
            Request::PoolCreate(r) => json(&self.pool_create(r)?),
            Request::PoolDestroy { pool, force } => json(&self.pool_destroy(&pool, force)?),
            Request::Logged { command, request } => json(&self.handle_logged(&command, *request, progress, uid)?),
            Request::PoolCheckpoint { pool, discard, wait } => {
                let running = self.need_running(&pool)?;
                json(&running.thread.with_pool(move |e| async move { e.checkpoint(discard, wait).await })?)
            }
            Request::PoolHistory { pool } => {
                let running = self.need_running(&pool)?;
                json(&running.thread.with_pool(|e| async move { e.history().await })?)
            }
            Request::PoolScan(search) => json(&self.pool_scan(&search, progress)?),
            Request::PoolImport(r) => json(&self.pool_import(r, progress)?),
            Request::PoolExport { pools, all, force } => json(&self.pool_export(&pools, all, force, progress)?),
            Request::Pools { names } => json(&self.pool_views(&names)?),
            Request::PoolSet { pool, name, value } => json(&self.pool_set(&pool, name, value)?),
            Request::PoolSync { names } => {
                let names = if names.is_empty() { self.running_names() } else { names };
                json(&self.each(&names, |running| running.thread.with_pool(|e| async move { e.pool.sync().await }))?)
            }
            Request::PoolAdd(r) => json(&self.pool_add(r)?),
            Request::PoolAttach(r) => json(&self.pool_attach(r)?),
            Request::PoolDetach { pool, device } => json(&self.pool_detach(&pool, device)?),
            Request::PoolRemove { pool, devices } => json(&self.pool_remove(&pool, devices)?),
            Request::PoolWork { pool, initialize, suspend, cancel, wait, devices } => {
                let running = self.need_running(&pool)?;
                let kind = if initialize { spa::WorkKind::Initialize } else { spa::WorkKind::Trim };
                let wish = match (suspend, cancel) {
                    (true, _) => spa::WorkWish::Suspend,
                    (_, true) => spa::WorkWish::Cancel,
                    _ => spa::WorkWish::Start,
                };
                json(&running.thread.with_pool(move |e| async move {
                    let devices: Vec<String> = devices.iter().map(|d| known_as(&e.pool, d)).collect();
                    e.pool.change_leaf_work(kind, wish, &devices).await?;
                    if wait { e.pool.wait_leaf_work(kind).await } else { Ok(()) }
                })?)
            }
            Request::PoolOffline { pool, devices, temporary } => {
                let running = self.need_running(&pool)?;
                json(&running.thread.with_pool(move |e| async move {
                    let mut errors = Vec::new();
                    for name in &devices {
                        let done = e.pool.offline_device(&known_as(&e.pool, name), temporary);
                        errors.extend(done.err().map(|e| at_device(e, "offline", name)));
                    }
                    if errors.len() < devices.len() {
                        e.pool.sync().await?;
                    }
                    all_of(errors)
                })?)
            }
            Request::PoolOnline { pool, devices, expand } => {
                let running = self.need_running(&pool)?;
                json(&running.thread.with_pool(move |e| async move {
                    let mut errors = Vec::new();
                    for name in &devices {
                        let done = e.pool.bring_online(&known_as(&e.pool, name), expand).await;
                        errors.extend(done.err().map(|e| at_device(e, "online", name)));
                    }
                    if errors.len() < devices.len() {
                        e.pool.sync().await?;
                    }
                    all_of(errors)
                })?)
            }
            Request::PoolClear { pool, device } => {
                let running = self.need_running(&pool)?;
                let resumed = running.thread.with_pool(move |e| async move {
                    if e.pool.is_readonly() {
                        let why = format!("cannot clear errors for {}: pool is read-only", e.pool.name());
                        return Err(Error::new(ErrorKind::ReadOnly, why));
                    }
                    let was = e.pool.suspended().is_some();
                    let device = device.map(|d| known_as(&e.pool, &d));
                    let done = e.pool.clear(device.as_deref()).await;
                    done.map_err(|e| match &device {
                        Some(name) => at_device(e, "clear errors for", name),
                        None => e,
                    })?;
                    Ok(was && e.pool.suspended().is_none())
                })?;
                if resumed {
                    self.log.say(Level::Notice, &format!("pool '{pool}' is resumed"));
                }
                json(&())
            }
            Request::PoolScrub { pools, action, wait } => {
                let mut begun = Vec::new();
                let all = self.each(&pools, |running| {
                    running.thread.with_pool(move |e| async move { e.scrub(action).await })?;
                    begun.push(running.name.clone());
                    Ok(())
                });
                for pool in begun.iter().filter(|_| wait) {
                    let running = self.need_running(pool)?;
                    running.thread.with_pool(|e| async move { e.pool.wait_scan().await })?;
                }
                json(&all?)
            }
            Request::PoolResilver { pools } => {
                json(&self.each(&pools, |running| running.thread.with_pool(|e| async move { e.resilver() }))?)
            }
            Request::PoolWaitScan { pool } => {
                let running = self.need_running(&pool)?;
                json(&running.thread.with_pool(|e| async move { e.pool.wait_scan().await })?)
            }
            Request::PoolLatency { pool } => {
                let running = self.need_running(&pool)?;
                json(&running.thread.with_pool(|e| async move { Ok(e.latency()) })?)
            }
            Request::PoolIo { names } => {
                let mut out = Vec::new();
                for running in self.chosen(&names)? {
                    out.push(running.thread.with_pool(|e| async move { Ok(e.io_view()) })?);
                }
                json(&out)
            }
            Request::PoolFlow { names } => json(&self.flows(&names)?),
            Request::Tune { pool } => {
                if let Some(pool) = &pool {
                    self.need_running(pool)?;
                }
                let pools = lock(&self.pools).len();
                json(&lock(&self.tunables).views(pool.as_deref(), pools))
            }
            Request::TuneSet { assignment, save } => json(&self.tune(&assignment, save)?),
            Request::TraceStart { pool, what } => {
                let running = self.need_running(&pool)?;
                json(&running.thread.with_pool(move |e| async move { e.traces.start(e.pool.rt(), &what) })?)
            }
            Request::TraceTake { pool, id, end } => {
                let running = self.need_running(&pool)?;
                json(&running.thread.with_pool(move |e| async move {
                    let mut view = e.traces.take(e.pool.rt().now(), id, end)?;
                    let txg = e.pool.txg().tunables();
                    (view.log_blocks.limit, view.log_blocks.txg_ns) = (txg.wrlog_data_max, txg.txg_timeout.0);
                    view.slow_tasks = crate::trace::slow_tasks(e.pool.rt());
                    Ok(view)
                })?)
            }
            Request::PoolActivity { pool } => {
                let running = self.need_running(&pool)?;
                json(&running.thread.with_pool(|e| async move { Ok(e.activity()) })?)
            }
            Request::Events { after, pool, wait } => {
                // Later answers may tell of its end.
                if let Some(pool) = pool.as_ref().filter(|_| after == 0) {
                    self.need_running(pool)?;
                }
                json(&self.events.after(after, pool.as_deref(), wait))
            }
            Request::EventsClear => json(&self.events.clear()),
            Request::LabelClear { path, force } => json(&self.label_clear(&path, force)?),
            Request::Datasets(select) => json(&self.datasets(&select)?),
            Request::Mounted => {
                let mut all: Vec<(String, String)> = Vec::new();
                for running in self.all_running() {
                    let list = running.thread.with_pool(|e| async move { Ok(e.mounts.list()) });
                    all.extend(list.unwrap_or_default().into_iter().map(|(n, p)| (n, p.display().to_string())));
                }
                json(&all)
            }
            other => self.handle_fs(other, progress),
        }
    }

    /// Does it, and has the pools that it changed remember the command.
    fn handle_logged(
        self: &Arc<Self>,
        command: &str,
        request: Request,
        progress: &Arc<Progress>,
        uid: u32,
    ) -> Result<Value> {
        if matches!(request, Request::Logged { .. } | Request::Stop { .. } | Request::Info) {
            return Err(Error::invalid("the request is not known"));
        }
        let who = u64::from(uid);
        let log = |pools: &BTreeSet<String>| {
            for running in pools.iter().filter_map(|name| self.running(name)) {
                let command = command.to_string();
                let note = move |e: Rc<PoolEngine>| async move {
                    e.pool.log_command(&command, who);
                    Ok(())
                };
                // That a command cannot be remembered does not undo it.
                let _ = running.thread.with_pool(note);
            }
        };
        // A pool that goes has to be told before.
        let leaving = matches!(request, Request::PoolExport { .. });
        let mut pools = changed_pools(&request);
        if !leaving && !matches!(request, Request::PoolClear { .. }) {
            for running in pools.iter().filter_map(|name| self.running(name)) {
                running.thread.with_pool(|e| async move { check_not_suspended(&e) })?;
            }
        }
        if leaving {
            log(&pools);
        }
        let imports = matches!(request, Request::PoolImport(_));
        let before: BTreeSet<String> = self.all_running().iter().map(|r| r.name.clone()).collect();
        let answer = self.handle(request, progress, uid)?;
        if imports {
            pools = self.all_running().iter().map(|r| r.name.clone()).filter(|n| !before.contains(n)).collect();
        }
        if !leaving {
            log(&pools);
        }
        Ok(answer)
    }

    fn handle_fs(&self, request: Request, progress: &Arc<Progress>) -> Result<Value> {
        match request {
            Request::FsCreate { name, props, parents, no_mount, key } => {
                let running = self.pool_of(&name).map_err(|_| {
                    let pool = pool_part(&name);
                    Error::not_found(format!("cannot create '{name}': no such pool '{pool}'"))
                })?;
                json(
                    &running
                        .thread
                        .with_pool(move |e| async move { e.fs_create(&name, props, parents, no_mount, key).await })?,
                )
            }
            Request::FsDestroy { name, recursive, clones, defer, force, dry_run } => {
                let running = self.pool_of(&name)?;
                let progress = progress.clone();
                let how = DestroyHow { recursive, clones, defer, force, dry_run };
                json(&running.thread.with_pool(move |e| async move { e.destroy(&name, how, &progress).await })?)
            }
            Request::Snapshot { names, recursive, props } => {
                let mut pools: BTreeMap<String, Vec<String>> = BTreeMap::new();
                for name in names {
                    pools.entry(pool_part(&name).to_string()).or_default().push(name);
                }
                for (pool, names) in pools {
                    let (running, props) = (self.pool_of(&pool)?, props.clone());
                    let make = move |e: Rc<PoolEngine>| async move { e.snap_create(names, recursive, &props).await };
                    running.thread.with_pool(make)?;
                }
                json(&())
            }
            Request::Rollback { name, recursive, clones, force } => {
                let running = self.pool_of(&name)?;
                let progress = progress.clone();
                let how = DestroyHow { recursive, clones, force, ..DestroyHow::default() };
                json(&running.thread.with_pool(move |e| async move { e.rollback(&name, how, &progress).await })?)
            }
            Request::Clone { snapshot, name, props, parents } => {
                if pool_part(&snapshot) != pool_part(&name) {
                    let pool = pool_part(&name);
                    if self.running(pool).is_none() {
                        return Err(Error::not_found(format!("cannot create '{name}': no such pool '{pool}'")));
                    }
                    let why = format!("cannot create '{name}': source and target pools differ");
                    return Err(Error::new(ErrorKind::CrossDevice, why));
                }
                let running = self.pool_of(&snapshot)?;
                json(
                    &running
                        .thread
                        .with_pool(move |e| async move { e.clone_fs(&snapshot, &name, &props, parents).await })?,
                )
            }
            Request::Promote { name } => {
                let running = self.pool_of(&name)?;
                json(&running.thread.with_pool(move |e| async move { e.promote(&name).await })?)
            }
            Request::Hold { tag, names, recursive, release } => {
                let mut pools: BTreeMap<String, Vec<String>> = BTreeMap::new();
                for name in names {
                    pools.entry(pool_part(&name).to_string()).or_default().push(name);
                }
                let mut errors = Vec::new();
                for (pool, names) in pools {
                    let tag = tag.clone();
                    let hold =
                        move |e: Rc<PoolEngine>| async move { Ok(e.hold(&tag, names, recursive, release).await) };
                    match self.pool_of(&pool).and_then(|running| running.thread.with_pool(hold)) {
                        Ok(more) => errors.extend(more),
                        Err(e) => errors.push(e),
                    }
                }
                json(&all_of(errors)?)
            }
            Request::Holds { names, recursive } => {
                let mut out: Vec<HoldView> = Vec::new();
                for name in names {
                    let running = self.pool_of(&name)?;
                    out.extend(running.thread.with_pool(move |e| async move { e.holds(&[name], recursive).await })?);
                }
                json(&out)
            }
            Request::Bookmark { from, to } => {
                let running = self.pool_of(&from)?;
                json(&running.thread.with_pool(move |e| async move { e.bookmark(&from, &to).await })?)
            }
            Request::SnapRename { from, to, recursive } => {
                let running = self.pool_of(&from)?;
                json(&running.thread.with_pool(move |e| async move { e.snap_rename(&from, &to, recursive).await })?)
            }
            Request::FsSet { names, props } => {
                let (mut notices, mut errors): (Vec<String>, Vec<Error>) = Default::default();
                for name in names {
                    match self.set_one(name, props.clone()) {
                        Ok(said) => notices.extend(said),
                        Err(e) => errors.push(e),
                    }
                }
                all_of(errors)?;
                json(&notices)
            }
            Request::Keys { names, recursive } => {
                let names =
                    if names.is_empty() { self.all_running().iter().map(|r| r.name.clone()).collect() } else { names };
                let mut all: Vec<KeyView> = Vec::new();
                for name in names {
                    let running = self.pool_of(&name)?;
                    all.extend(running.thread.with_pool(move |e| async move { e.keys(&name, recursive).await })?);
                }
                json(&all)
            }
            Request::LoadKey { name, key, check_only } => {
                let running = self.pool_of(&name)?;
                json(&running.thread.with_pool(move |e| async move { e.load_key(&name, key, check_only).await })?)
            }
            Request::UnloadKey { name } => {
                let running = self.pool_of(&name)?;
                json(&running.thread.with_pool(move |e| async move { e.unload_key(&name).await })?)
            }
            Request::ChangeKey { name, props, key } => {
                let running = self.pool_of(&name)?;
                json(&running.thread.with_pool(move |e| async move { e.change_key(&name, &props, key).await })?)
            }
            Request::FsInherit { names, prop, recursive } => {
                let (mut notices, mut errors): (Vec<String>, Vec<Error>) = Default::default();
                for name in names {
                    let prop = prop.clone();
                    let done = self.pool_of(&name).and_then(|running| {
                        running.thread.with_pool(move |e| async move { e.fs_inherit(&name, &prop, recursive).await })
                    });
                    match done {
                        Ok(said) => notices.extend(said),
                        Err(e) => errors.push(e),
                    }
                }
                all_of(errors)?;
                json(&notices)
            }
            Request::FsRename { from, to, parents, no_remount, force } => {
                let running = self.pool_of(&from)?;
                json(
                    &running
                        .thread
                        .with_pool(move |e| async move { e.fs_rename(&from, &to, parents, no_remount, force).await })?,
                )
            }
            Request::Mount { name: Some(name), how } => {
                let running = self.pool_of(&name)?;
                json(&running.thread.with_pool(move |e| async move { e.fs_mount(&name, how).await })?)
            }
            Request::Mount { name: None, how } => {
                let (mut errors, mut notices): (Vec<String>, Vec<String>) = Default::default();
                for running in self.all_running() {
                    let progress = progress.clone();
                    let (failed, said) = running.thread.with_pool(move |e| async move {
                        let _admin = e.admin.acquire(1).await;
                        e.mounts.take_notices();
                        let failed = e.mount_all(how.temp, &progress).await;
                        let failed: Vec<String> = failed.iter().map(Error::to_string).collect();
                        Ok((failed, e.mounts.take_notices()))
                    })?;
                    errors.extend(failed);
                    notices.extend(said);
                }
                if errors.is_empty() { json(&notices) } else { Err(Error::new(ErrorKind::Io, errors.join("\n"))) }
            }
            Request::Unmount { target: Some(target), force, keys } => {
                let running = self.pool_of(&target)?;
                json(&running.thread.with_pool(move |e| async move {
                    if target.starts_with('/')
                        && !e.mounts.list().iter().any(|(_, p)| *p == std::path::Path::new(&target))
                    {
                        return Err(Error::not_found(format!("cannot unmount '{target}': not a mountpoint")));
                    }
                    e.fs_unmount(&target, force, keys).await
                })?)
            }
            Request::Unmount { target: None, force, keys } => {
                for running in self.all_running() {
                    running.thread.with_pool(move |e| async move { e.fs_unmount_all(force, keys).await })?;
                }
                json(&())
            }
            _ => Err(Error::invalid("the request is not known")),
        }
    }

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
    fn chosen(&self, names: &[String]) -> Result<Vec<Arc<Running>>> {
        if names.is_empty() { Ok(self.all_running()) } else { names.iter().map(|n| self.need_running(n)).collect() }
    }

    fn running_names(&self) -> Vec<String> {
        self.all_running().iter().map(|r| r.name.clone()).collect()
    }

    /// Does something with each of these pools; one that is not there, or where it fails, keeps
    /// none of the others.
    fn each(&self, names: &[String], mut what: impl FnMut(&Arc<Running>) -> Result<()>) -> Result<()> {
        let done = names.iter().map(|name| self.need_running(name).and_then(|running| what(&running)));
        all_of(done.filter_map(Result::err).collect())
    }

    /// `zfs set` of one file system or snapshot; what there is to say.
    fn set_one(&self, name: String, props: Vec<(String, String)>) -> Result<Vec<String>> {
        let running = self.pool_of(&name)?;
        if name.contains('@') {
            let values = props.into_iter().map(|(n, v)| (n, Some(v))).collect();
            running.thread.with_pool(move |e| async move { e.snap_set(&name, &values).await })?;
            return Ok(Vec::new());
        }
        running.thread.with_pool(move |e| async move { e.fs_set(&name, &props).await })
    }

    /// The pool of a dataset's name, or of a path in one of its mounts.
    fn pool_of(&self, name: &str) -> Result<Arc<Running>> {
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

    /// Sets a tunable (`[pool:]name=value`) for the running pools and those to come; with `save`
    /// for later daemons as well.
    fn tune(&self, assignment: &str, save: bool) -> Result<()> {
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

    fn flows(&self, names: &[String]) -> Result<Vec<proto::FlowView>> {
        let running = self.chosen(names)?;
        running.iter().map(|r| r.thread.with_pool(|e| async move { Ok(e.flow_view()) })).collect()
    }

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

    fn pool_set(&self, pool: &str, name: String, value: String) -> Result<()> {
        let running = self.need_running(pool)?;
        let wanted = Wanted::parse(&[(name, value)], When::Set);
        let pool = pool.to_string();
        let at = move |e: Error| e.at(format!("cannot set property for '{pool}'"));
        let wanted = wanted.map_err(&at)?;
        running.thread.with_pool(move |e| async move { e.set_pool_props(wanted).await }).map_err(at)
    }

    fn datasets(&self, select: &Select) -> Result<Vec<DatasetView>> {
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
    fn stop(&self) -> Result<()> {
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

/// Commands that change a pool would wait for devices that do not answer.
fn check_not_suspended(e: &PoolEngine) -> Result<()> {
    match e.pool.suspended() {
        Some(_) => {
            let why = "pool I/O is currently suspended: see 'zpool status', 'zpool clear' tries again";
            Err(Error::new(ErrorKind::Suspended, format!("pool '{}': {why}", e.pool.name())))
        }
        None => Ok(()),
    }
}

/// The pools that a request changes when it is done.
fn changed_pools(request: &Request) -> BTreeSet<String> {
    let of = |names: &[String]| names.iter().map(|n| pool_part(n).to_string()).collect();
    let one = |name: &String| BTreeSet::from([pool_part(name).to_string()]);
    match request {
        Request::PoolCreate(r) => one(&r.name),
        Request::PoolExport { pools, .. } => of(pools),
        Request::PoolAdd(r) if r.dry_run => BTreeSet::new(),
        Request::PoolAdd(r) => one(&r.pool),
        Request::PoolAttach(r) => one(&r.pool),
        Request::PoolScrub { pools, .. } | Request::PoolResilver { pools } => of(pools),
        Request::PoolSet { pool, .. }
        | Request::PoolDetach { pool, .. }
        | Request::PoolRemove { pool, .. }
        | Request::PoolWork { pool, .. }
        | Request::PoolCheckpoint { pool, .. }
        | Request::PoolOffline { pool, .. }
        | Request::PoolOnline { pool, .. }
        | Request::PoolClear { pool, .. } => one(pool),
        Request::FsCreate { name, .. }
        | Request::FsDestroy { name, dry_run: false, .. }
        | Request::Rollback { name, .. }
        | Request::Clone { name, .. }
        | Request::Promote { name }
        | Request::ChangeKey { name, .. } => one(name),
        Request::Bookmark { from, .. } | Request::SnapRename { from, .. } | Request::FsRename { from, .. } => one(from),
        Request::Snapshot { names, .. }
        | Request::Hold { names, .. }
        | Request::FsSet { names, .. }
        | Request::FsInherit { names, .. } => of(names),
        _ => BTreeSet::new(),
    }
}

/// Begins with what could not be done to which device, unless the error says it already.
fn at_device(e: Error, what: &str, device: &str) -> Error {
    if e.to_string().starts_with("cannot ") { e } else { e.at(format!("cannot {what} {device}")) }
}

/// One error for those of several objects, each of which was tried.
pub(crate) fn all_of(errors: Vec<Error>) -> Result<()> {
    let Some(kind) = errors.first().map(Error::kind) else { return Ok(()) };
    let lines: Vec<String> = errors.iter().map(Error::to_string).collect();
    Err(Error::new(kind, lines.join("\n")))
}

/// The pool in a dataset's name.
fn pool_part(name: &str) -> &str {
    name.split(['/', '@', '#']).next().unwrap_or(name)
}

pub(crate) fn json<T: Serialize>(value: &T) -> Result<Value> {
    serde_json::to_value(value).map_err(|e| Error::invalid(format!("the answer cannot be written: {e}")))
}
