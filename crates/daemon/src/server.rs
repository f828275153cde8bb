//! The daemon itself: its start, its threads and its end.
//!
//! Start: lock the folders, listen, import the pools that the last daemon left imported.
//! Connections are served at once; requests about pools wait until these are imported. End
//! (SIGTERM, or a request): unmount, sync, stop the engines; the pools stay as they are on disk and
//! come back at the next start.

use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use admin::keeper::Level;
use admin::pool_set::PoolSet;
use admin::tunables::Tunables;
use base::{Error, Result};
use host::Signals;

use crate::keeper::DaemonKeeper;
use crate::kstat_front::KstatFolder;
use crate::log::Log;
use crate::metrics::Endpoint;
use crate::paths::Paths;
use crate::socket::listener::{Limits, Listener};
use crate::socket::serve::Lanes;
use crate::state::State;

/// Interval at which the broker reads the caches' demands.
const BROKER_PERIOD: Duration = Duration::from_secs(2);
/// Broker periods between checks of the devices' sizes (`autoexpand`).
const EXPAND_EVERY: u32 = 5;

/// The search path for programs that the daemon starts.
pub(crate) const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
/// The variable that says whether standard error is the journal (systemd.exec(5)).
pub(crate) const JOURNAL_STREAM: &str = "JOURNAL_STREAM";

/// The daemon.
pub struct Daemon {
    pub(crate) keeper: Arc<DaemonKeeper>,
    pub(crate) pools: Arc<PoolSet>,
    pub(crate) lanes: Lanes,
}

pub(crate) fn lock<T>(m: &Mutex<T>) -> MutexGuard<'_, T> {
    m.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Makes this process a daemon, before anything else: it drops the environment, descriptors and
/// session of its parent. `WEIR_DUMPABLE=1` permits debuggers and core files.
pub fn become_daemon() {
    let keep = |name: &str| name.starts_with("WEIR_") || name == JOURNAL_STREAM;
    host::shed_inheritance(keep, PATH);
    host::new_session();
    if std::env::var_os("WEIR_DUMPABLE").is_none_or(|v| v != "1") {
        host::forbid_dumps();
    }
    host::forbid_huge_pages();
    // Other users mount through fusermount3, which is set-user-id.
    if host::effective_uid() == 0 {
        host::forbid_new_privileges();
    }
}

/// What a daemon gives out beside answers to commands.
#[derive(Clone, Default, Debug)]
pub struct Outlets {
    /// Where metrics are served.
    pub metrics: Option<Endpoint>,
    /// The folder that shows kstats.
    pub kstat: Option<PathBuf>,
    /// The cache file of pools that name none.
    pub cache_file: Option<PathBuf>,
}

/// Runs a daemon until a signal or request ends it. An error that the log has already is returned
/// as a value.
pub fn run(paths: Paths, tunables: Tunables, outlets: Outlets) -> Result<Option<Error>> {
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
    let done = run_logged(&signals, paths, tunables, outlets, &log);
    if let Err(e) = &done {
        log.say(Level::Err, &e.to_string());
    }
    Ok(done.err())
}

fn run_logged(signals: &Signals, paths: Paths, tunables: Tunables, outlets: Outlets, log: &Arc<Log>) -> Result<()> {
    paths.make_state()?;
    let locks = paths.lock()?;
    let state = State::load(&paths.state_file())?;
    let keeper = Arc::new(DaemonKeeper::new(paths, state, log.clone()));
    let pools = PoolSet::new(keeper.clone(), tunables);
    if let Some(file) = outlets.cache_file {
        pools.keep_cache_file(file);
    }
    let daemon = Arc::new(Daemon { keeper, pools, lanes: Lanes::default() });
    // Before the sockets are there, so that who started the daemon finds it. Pools are more
    // important than a look at them.
    let shown = outlets.kstat.map(|at| KstatFolder::mount(&daemon.pools, &at));
    let kstat = shown.and_then(|shown| shown.inspect_err(|e| log.say(Level::Err, &e.to_string())).ok());
    let listeners = listeners(&daemon.keeper.paths)?;
    let locks = Arc::new(Mutex::new(Some(locks)));
    for (listener, opened) in listeners {
        let (daemon, locks) = (daemon.clone(), locks.clone());
        let public = listener.users.is_none();
        std::thread::spawn(move || {
            let reopen = |listener: &Listener| {
                // Held until the listener is open: a daemon that ends leaves no socket behind.
                let mut locks = lock(&locks);
                let in_order = locks.as_mut().is_some_and(|l| l.relock(&daemon.keeper.paths));
                in_order.then(|| listener.open().ok()).flatten()
            };
            listener.serve(opened, reopen, |message| daemon.take(message, public));
        });
    }
    let pools = daemon.pools.clone();
    std::thread::spawn(move || {
        let mut rounds = 0u32;
        loop {
            std::thread::sleep(BROKER_PERIOD);
            pools.balance();
            rounds = rounds.wrapping_add(1);
            if rounds.is_multiple_of(EXPAND_EVERY) {
                pools.maintain();
            }
        }
    });
    let pools = daemon.pools.clone();
    std::thread::spawn(move || pools.follow_configs());
    if let Some(endpoint) = outlets.metrics {
        let pools = daemon.pools.clone();
        endpoint.serve(move || pools.flows(&[]).unwrap_or_default())?;
    }
    log.say(Level::Notice, &format!("weir {} begins as process {}", env!("CARGO_PKG_VERSION"), std::process::id()));
    let pools = daemon.pools.clone();
    // On its own thread: devices that do not answer must not keep the daemon from ending.
    std::thread::spawn(move || pools.start());
    signals.wait();
    log.say(Level::Notice, "the daemon ends: its pools are unmounted and written");
    drop(kstat);
    if let Err(e) = daemon.keeper.nbd.stop(&[], true) {
        log.say(Level::Warning, &e.to_string());
    }
    let _namespace = daemon.pools.shut_down();
    let mut locks = lock(&locks);
    let paths = &daemon.keeper.paths;
    let _ = std::fs::remove_file(paths.socket());
    let _ = std::fs::remove_file(Paths::public_socket(paths.runtime()));
    *locks = None;
    Ok(())
}

/// The listeners, open: the owner's, and root's for all users.
fn listeners(paths: &Paths) -> Result<Vec<(Listener, (UnixListener, u64))>> {
    let owner = paths.uid();
    let users = if owner == 0 { vec![0] } else { vec![owner, 0] };
    let mut listeners = vec![Listener { path: paths.socket(), mode: 0o600, limits: Limits::OWNER, users: Some(users) }];
    if owner == 0 {
        let path = Paths::public_socket(paths.runtime());
        listeners.push(Listener { path, mode: 0o666, limits: Limits::PUBLIC, users: None });
    }
    let open = |l: Listener| l.open().map(|o| (l, o));
    listeners.into_iter().map(open).collect()
}
