//! The daemon as the keeper of its pools: the log, mounts through FUSE, the state file, and the
//! daemon's status.

use std::rc::Rc;
use std::sync::{Arc, Mutex};
use std::thread::ThreadId;
use std::time::Duration;

use admin::fs::front_end::FrontEnd;
use admin::keeper::{Keeper, KnownPool, Level};
use admin::kstat::messages::Messages;
use admin::pool_set::PoolSet;
use admin::request::{Info, NbdStart, Request};
use admin::view::{DaemonInfo, NbdView, RequestView};
use admin::waits::{Entry, Requests, Wait};
use base::{Error, ErrorKind, Result};
use host::PeerCred;
use ondisk::nvlist::NvList;

use crate::fuse_front::FuseFrontEnd;
use crate::log::Log;
use crate::nbd::Servers;
use crate::paths::{Paths, replace_file};
use crate::server::lock;
use crate::state::State;

/// Time for a pool's engine to report its status.
const ENGINE_PATIENCE: Duration = Duration::from_secs(1);

/// The daemon's own state, besides the pools.
pub struct DaemonKeeper {
    pub(crate) paths: Paths,
    state: Mutex<State>,
    log: Arc<Log>,
    messages: Messages,
    /// The requests under way.
    pub(crate) requests: Arc<Requests>,
    /// Volumes over NBD.
    pub(crate) nbd: Servers,
}

impl DaemonKeeper {
    /// A keeper over these folders, with the loaded state.
    pub fn new(paths: Paths, state: State, log: Arc<Log>) -> DaemonKeeper {
        let (messages, requests, nbd) = (Messages::default(), Arc::default(), Servers::default());
        DaemonKeeper { paths, state: Mutex::new(state), log, messages, requests, nbd }
    }

    /// Changes the state and writes the file.
    fn change_state(&self, change: impl FnOnce(&mut State)) -> Result<()> {
        let mut state = lock(&self.state);
        change(&mut state);
        state.save(&self.paths.state_file())
    }
}

impl Keeper for DaemonKeeper {
    fn say(&self, level: Level, text: &str) {
        self.messages.add(text);
        self.log.say(level, text);
    }
    fn messages(&self) -> &Messages {
        &self.messages
    }
    fn event(&self, class: &str, payload: &NvList) {
        self.log.event(class, payload);
    }
    fn front_end(&self) -> Rc<dyn FrontEnd> {
        Rc::new(FuseFrontEnd { volumes: self.paths.volumes() })
    }

    fn remembered(&self) -> Vec<KnownPool> {
        lock(&self.state).pools.clone()
    }
    fn remembered_paths(&self) -> Vec<String> {
        lock(&self.state).device_paths()
    }
    fn remember(&self, pool: KnownPool) -> Result<()> {
        self.change_state(|s| s.remember(pool))
    }
    fn set_devices(&self, guid: u64, devices: Vec<String>) -> Result<()> {
        self.change_state(|s| {
            for p in s.pools.iter_mut().filter(|p| p.guid == guid) {
                p.devices.clone_from(&devices);
            }
        })
    }
    fn change_guid(&self, old: u64, new: u64) -> Result<()> {
        self.change_state(|s| s.change_guid(old, new))
    }
    fn exported(&self, guid: u64) -> Result<()> {
        self.change_state(|s| s.exported(guid))
    }
    fn forget(&self, guid: u64) -> Result<()> {
        self.change_state(|s| s.forget(guid))
    }

    fn save_tunable(&self, assignment: &str) -> Result<()> {
        let file = self.paths.tunables_file();
        let old = match std::fs::read_to_string(&file) {
            Ok(text) => text,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => String::new(),
            Err(e) => return Err(Error::new(ErrorKind::Io, format!("'{}' cannot be read: {e}", file.display()))),
        };
        replace_file(&file, admin::tunables::saved(&old, assignment).as_bytes())
    }

    fn nbd_start(&self, pools: &Arc<PoolSet>, what: NbdStart) -> Result<NbdView> {
        self.nbd.start(pools, what, &self.paths.nbd_socket(), self.paths.uid())
    }
    fn nbd_stop(&self, at: &[String], force: bool) -> Result<()> {
        self.nbd.stop(at, force)
    }
    fn nbd_list(&self) -> Vec<NbdView> {
        self.nbd.list()
    }

    // The status does not wait for a busy pool.
    fn info(&self, pools: &PoolSet) -> DaemonInfo {
        let all = pools.all_running();
        let calls: Vec<_> = all.iter().map(|r| r.thread.call(|_| async { engine_status() })).collect();
        let mut mounts = Vec::new();
        let mut states = Vec::new();
        let mut engines: Vec<(ThreadId, String)> = Vec::new();
        for (running, call) in all.iter().zip(calls) {
            let name = &running.name;
            let (state, wait) = match call.wait_for(ENGINE_PATIENCE) {
                Ok(Ok(Ok(look))) => {
                    mounts.extend(look.mounts);
                    let wait = match look.suspended {
                        true => format!("waits for pool '{name}' to be resumed: 'zpool clear {name}' tries again"),
                        false => format!("waits for pool '{name}', which writes txg {}", look.txg),
                    };
                    (look.state, wait)
                }
                Ok(Ok(Err(e)) | Err(e)) => {
                    (format!("its engine has stopped: {e}"), "waits for nothing more".to_string())
                }
                Err(_) => ("its engine is busy".to_string(), format!("waits for the engine of pool '{name}'")),
            };
            states.push(state);
            engines.push((running.thread.id(), wait));
        }
        DaemonInfo {
            pid: std::process::id(),
            version: env!("CARGO_PKG_VERSION").to_string(),
            pools: all.iter().map(|r| r.name.clone()).collect(),
            mounts,
            tunables: pools.tunables_in_effect(),
            peak_memory: peak_memory(),
            failures: pools.failures(),
            socket: self.paths.socket().display().to_string(),
            log: self.paths.log().display().to_string(),
            states,
            requests: self.requests.all().iter().filter_map(|e| request_view(e, &engines)).collect(),
        }
    }
}

/// The status of a pool's engine.
struct EngineStatus {
    mounts: Vec<(String, String)>,
    state: String,
    suspended: bool,
    /// The txg that is written next.
    txg: u64,
}

fn engine_status() -> Result<EngineStatus> {
    let e = admin::engine::current()?;
    let suspended = e.pool.suspended().is_some();
    let state = if suspended { "SUSPENDED" } else { e.pool.tree().health().name() };
    let mut mounts: Vec<_> = e.mounts.list().into_iter().map(|(n, p)| (n, p.display().to_string())).collect();
    mounts.extend(e.folder.path().map(|at| (format!("volumes of {}", e.pool.name()), at.display().to_string())));
    Ok(EngineStatus { mounts, state: state.to_string(), suspended, txg: e.pool.txg().last_synced().0 + 1 })
}

/// A request as the status shows it; none for the status request itself.
fn request_view(e: &Entry, engines: &[(ThreadId, String)]) -> Option<RequestView> {
    let wait = match e.wait() {
        Wait::Worker => "waits for its turn".to_string(),
        Wait::Namespace => "waits for another request that creates, imports, exports or destroys a pool".to_string(),
        Wait::Start => "waits for the pools of the last daemon to be imported".to_string(),
        Wait::Engine(id) => match engines.iter().find(|(i, _)| *i == id) {
            Some((_, wait)) => wait.clone(),
            None => "waits for devices: no pool is running on them yet".to_string(),
        },
        Wait::Client => "waits for its reader".to_string(),
        Wait::Nothing if e.what == Info::TITLE => return None,
        Wait::Nothing => "is worked on".to_string(),
    };
    let progress = e.progress.get().map(|(what, done, total)| match total {
        0 => format!("{what}: {done}"),
        _ => format!("{what}: {done} of {total}"),
    });
    let age_ms = u64::try_from(e.since.elapsed().as_millis()).unwrap_or(u64::MAX);
    let PeerCred { uid, pid, .. } = e.peer;
    Some(RequestView { what: e.what.clone(), uid, pid, age_ms, wait, progress })
}

/// Peak resident memory of this process, in bytes (`VmHWM`).
fn peak_memory() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|l| l.strip_prefix("VmHWM:"));
    line.and_then(|l| l.trim().trim_end_matches("kB").trim().parse::<u64>().ok()).unwrap_or(0) * 1024
}
