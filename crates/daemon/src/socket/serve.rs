//! From a complete message to its reply: rights, place in the list of requests, lane, work and
//! reply.
//!
//! A request takes two threads while it is served: one does the work, the other sends its progress.
//! Both are bounded by the lane. A request whose lane is full gets an error. The lanes of status
//! and control have threads of their own, so that waiting requests can always be listed and ended.

use std::os::unix::net::UnixStream;
use std::sync::{Arc, mpsc};
use std::time::Duration;

use admin::request::{AnyRequest, Call, Caller, Lane, Request, Stop, perform};
use admin::waits::{Ticket, enter};
use base::{Error, ErrorKind};

use crate::server::Daemon;
use crate::socket::lanes::Queue;
use crate::socket::listener::{Message, refuse};
use crate::socket::proto::{self, Reply};

/// Interval of the progress messages of a long request.
const PROGRESS_PERIOD: Duration = Duration::from_millis(100);
/// Time for a client to read its reply.
const REPLY_TIMEOUT: Duration = Duration::from_secs(30);
/// The same for clients of other users, who share few threads.
const PUBLIC_REPLY_TIMEOUT: Duration = Duration::from_secs(5);
/// Requests of one other user that run or wait at once.
const PUBLIC_PER_USER: usize = 8;

/// The lanes, each with its bounds on threads and waiting requests.
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
type Parsed = (Box<dyn AnyRequest>, Option<String>);

fn denied() -> Error {
    Error::new(ErrorKind::Denied, "permission denied: only the owner of the daemon may do this")
}

impl Daemon {
    /// Takes a message from a listener; `public`: from the public one.
    pub(crate) fn take(self: &Arc<Self>, message: Message, public: bool) {
        // Only the name of a request is parsed before its rights are checked.
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
        let ticket = self.keeper.requests.begin(what, peer, public);
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
        self.keeper.requests.all().iter().filter(|e| e.public && e.peer.uid == uid).count()
    }

    fn serve(self: &Arc<Self>, mut stream: UnixStream, asked: Parsed, ticket: Ticket, public: bool) {
        let (request, command) = asked;
        let _ = stream.set_write_timeout(Some(if public { PUBLIC_REPLY_TIMEOUT } else { REPLY_TIMEOUT }));
        let ends = request.name() == Stop::NAME;
        let (daemon, entry) = (self.clone(), ticket.entry().clone());
        let (tx, rx) = mpsc::channel();
        let work = move || {
            enter(&entry);
            let caller = Caller { uid: entry.peer.uid, public };
            let done = perform(&daemon.pools, request, command, caller, &entry.progress);
            let _ = tx.send(done);
        };
        if let Err(e) = std::thread::Builder::new().name("weir-request".into()).spawn(work) {
            let e = Error::new(ErrorKind::Busy, format!("the daemon can start no thread for this: {e}: try again"));
            return refuse(&stream, &e);
        }
        let progress = &ticket.entry().progress;
        let mut last = None;
        let reply = loop {
            match rx.recv_timeout(PROGRESS_PERIOD) {
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
                    // A closed connection does not stop the work.
                    let _ = proto::send(&mut stream, &Reply::Progress { what, done, total });
                }
                last = now;
            }
        };
        // Ends the request before its reply is sent, so that the client's next request does not
        // list it.
        drop(ticket);
        let _ = proto::send(&mut stream, &reply);
        if ends && matches!(reply, Reply::Done(_)) {
            // Only after the reply is sent.
            host::terminate_self();
        }
    }
}
