//! From a complete message to its answer: whether it may be asked, its place in the list of
//! requests, its lane, the work and the reply.
//!
//! A request costs two threads while it is served: one does the work, the other tells how far it
//! is. Both are bounded by the lane. What finds its lane full is refused in words. The lanes of
//! status and control have threads of their own, so that what everybody waits for can always be
//! seen and ended.

use std::os::unix::net::UnixStream;
use std::sync::{Arc, mpsc};
use std::thread::ThreadId;
use std::time::Duration;

use base::{Error, ErrorKind, Result};
use host::PeerCred;

use crate::front::{Message, refuse};
use crate::lanes::Queue;
use crate::proto::{self, DaemonInfo, Reply, RequestView};
use crate::request::{Asked, Call, Caller, Info, Lane, Request, Stop, perform};
use crate::requests::{Entry, Ticket, Wait, enter};
use crate::server::{Daemon, lock};

/// How often a long request says how far it is.
const PROGRESS_PERIOD: Duration = Duration::from_millis(100);
/// How long a client may leave an answer unread.
const REPLY_TIMEOUT: Duration = Duration::from_secs(30);
/// The same for other users' clients, whose places are few.
const PUBLIC_REPLY_TIMEOUT: Duration = Duration::from_secs(5);
/// Requests of one other user that are served or wait at once.
const PUBLIC_PER_USER: usize = 8;
/// How long a pool's engine may take to say how it is.
const ENGINE_PATIENCE: Duration = Duration::from_secs(1);

/// The lanes: threads that serve at once, requests that wait.
pub struct Lanes {
    status: Arc<Queue>,
    control: Arc<Queue>,
    work: Arc<Queue>,
    public: Arc<Queue>,
}

impl Default for Lanes {
    fn default() -> Lanes {
        Lanes {
            status: Queue::new("weir-status", 4, 64),
            control: Queue::new("weir-control", 8, 64),
            work: Queue::new("weir-work", 64, 512),
            public: Queue::new("weir-public", 4, 64),
        }
    }
}

/// A request with the command line that it comes from.
type Parsed = (Box<dyn Asked>, Option<String>);

fn denied() -> Error {
    Error::new(ErrorKind::Denied, "permission denied: only the owner of the daemon may do this")
}

impl Daemon {
    /// Takes a message from a door: `public` is the one for all users.
    pub(crate) fn take(self: &Arc<Self>, message: Message, public: bool) {
        // Nothing of what others may not ask is looked at beyond its name.
        if public && !Call::is_public(message.body()) {
            return refuse(&message.stream, &denied());
        }
        let parsed = Call::parse(message.body());
        let Message { stream, peer, .. } = message;
        let (request, command) = match parsed {
            Ok(parsed) => parsed,
            Err(e) => return refuse(&stream, &e),
        };
        if public && self.public_requests(peer.uid) >= PUBLIC_PER_USER {
            let why = format!("the daemon serves {PUBLIC_PER_USER} requests of another user at once: try again");
            return refuse(&stream, &Error::new(ErrorKind::Busy, why));
        }
        let Ok(spare) = stream.try_clone() else {
            return refuse(&stream, &Error::new(ErrorKind::Busy, "the daemon has no descriptors left: try again"));
        };
        let what = command.as_deref().unwrap_or(request.title());
        let ticket = self.requests.begin(what, peer, public);
        let queue = match request.lane() {
            _ if public => &self.lanes.public,
            Lane::Status => &self.lanes.status,
            Lane::Control => &self.lanes.control,
            Lane::Work => &self.lanes.work,
        };
        let daemon = self.clone();
        if !queue.push(Box::new(move || daemon.serve(stream, (request, command), ticket, public))) {
            let why = "the daemon has too many requests waiting: try again when some have ended ('weir daemon status' shows them)";
            refuse(&spare, &Error::new(ErrorKind::Busy, why));
        }
    }

    fn public_requests(&self, uid: u32) -> usize {
        self.requests.all().iter().filter(|e| e.public && e.peer.uid == uid).count()
    }

    fn serve(self: &Arc<Self>, mut stream: UnixStream, asked: Parsed, ticket: Ticket, public: bool) {
        let (request, command) = asked;
        let _ = stream.set_write_timeout(Some(if public { PUBLIC_REPLY_TIMEOUT } else { REPLY_TIMEOUT }));
        let ends = request.name() == Stop::NAME;
        let (daemon, entry) = (self.clone(), ticket.entry().clone());
        let (tell, told) = mpsc::channel();
        let work = move || {
            enter(&entry);
            let caller = Caller { uid: entry.peer.uid, public };
            let done = perform(&daemon, request, command, caller, &entry.progress);
            let _ = tell.send(done);
        };
        if let Err(e) = std::thread::Builder::new().name("weir-request".into()).spawn(work) {
            let e = Error::new(ErrorKind::Busy, format!("the daemon can start no thread for this: {e}: try again"));
            return refuse(&stream, &e);
        }
        let progress = &ticket.entry().progress;
        let mut last = None;
        let reply = loop {
            match told.recv_timeout(PROGRESS_PERIOD) {
                Ok(Ok(value)) => break Reply::Done(value),
                Ok(Err(e)) => break Reply::failed(&e),
                Err(mpsc::RecvTimeoutError::Disconnected) => {
                    let why = "the daemon failed in the middle of this: see its log";
                    break Reply::failed(&Error::new(ErrorKind::Interrupted, why));
                }
                Err(mpsc::RecvTimeoutError::Timeout) => {}
            }
            let now = progress.get();
            if now != last {
                if let Some((what, done, total)) = now.clone() {
                    // A client that has gone away does not stop the work.
                    let _ = proto::send(&mut stream, &Reply::Progress { what, done, total });
                }
                last = now;
            }
        };
        // It is over before its answer is read: who asks next finds it gone.
        drop(ticket);
        let _ = proto::send(&mut stream, &reply);
        if ends && matches!(reply, Reply::Done(_)) {
            // Not before the answer is on its way.
            host::terminate_self();
        }
    }

    /// What the daemon tells about itself. A pool in the middle of something long does not keep it
    /// from answering.
    pub(crate) fn info(&self) -> DaemonInfo {
        let all = self.all_running();
        let calls: Vec<_> = all.iter().map(|r| r.thread.call(|_| async { look_at_engine() })).collect();
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
            tunables: lock(&self.tunables).all(),
            peak_memory: peak_memory(),
            failures: lock(&self.failures).clone(),
            socket: self.paths.socket().display().to_string(),
            log: self.paths.log().display().to_string(),
            states,
            requests: self.requests.all().iter().filter_map(|e| request_view(e, &engines)).collect(),
        }
    }
}

/// What a pool's engine says about itself.
struct EngineLook {
    mounts: Vec<(String, String)>,
    state: String,
    suspended: bool,
    /// The txg that is written next.
    txg: u64,
}

fn look_at_engine() -> Result<EngineLook> {
    let e = crate::engine::current()?;
    let suspended = e.pool.suspended().is_some();
    let state = if suspended { "SUSPENDED" } else { e.pool.tree().health().name() };
    let mounts = e.mounts.list().into_iter().map(|(n, p)| (n, p.display().to_string())).collect();
    Ok(EngineLook { mounts, state: state.to_string(), suspended, txg: e.pool.txg().last_synced().0 + 1 })
}

/// A request as it is shown; none for the one that asks.
fn request_view(e: &Entry, engines: &[(ThreadId, String)]) -> Option<RequestView> {
    let wait = match e.wait() {
        Wait::Turn => "waits for its turn".to_string(),
        Wait::Namespace => "waits for another request that creates, imports, exports or destroys a pool".to_string(),
        Wait::Start => "waits for the pools of the last daemon to be imported".to_string(),
        Wait::Engine(id) => match engines.iter().find(|(i, _)| *i == id) {
            Some((_, wait)) => wait.clone(),
            None => "waits for devices: no pool is running on them yet".to_string(),
        },
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

/// The most memory that this process ever had, in bytes (`VmHWM`).
fn peak_memory() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|l| l.strip_prefix("VmHWM:"));
    line.and_then(|l| l.trim().trim_end_matches("kB").trim().parse::<u64>().ok()).unwrap_or(0) * 1024
}
