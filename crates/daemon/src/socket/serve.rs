//! From a complete message to its reply: rights, place in the list of requests, lane, work and
//! reply.
//!
//! A request takes two threads while it is served: one does the work, the other sends its progress.
//! Both are bounded by the lane. A request whose lane is full gets an error. The lanes of status
//! and control have threads of their own, so that waiting requests can always be listed and ended.

use std::os::unix::net::UnixStream;
use std::sync::{Arc, mpsc};
use std::time::Duration;

use admin::request::{AnyRequest, Call, Caller, Identity, Lane, Request, Rights, Stop, Stream, denied, perform};
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
    stream: Arc<Queue>,
    work: Arc<Queue>,
    public: Arc<Queue>,
    /// Those of users with permissions, and of these those with streams, which may take long.
    delegated: Arc<Queue>,
    delegated_stream: Arc<Queue>,
}

impl Default for Lanes {
    fn default() -> Lanes {
        Lanes {
            status: Queue::new("weir-status", 4, 64),
            control: Queue::new("weir-control", 8, 64),
            stream: Queue::new("weir-stream", 32, 64),
            work: Queue::new("weir-work", 64, 512),
            public: Queue::new("weir-public", 4, 64),
            delegated: Queue::new("weir-delegated", 8, 64),
            delegated_stream: Queue::new("weir-del-stream", 16, 64),
        }
    }
}

/// What a message asks for.
struct Asked {
    request: Box<dyn AnyRequest>,
    /// The command line that it comes from.
    command: Option<String>,
    stream: Option<Stream>,
}

impl Daemon {
    /// Takes a message from a listener; `public`: from the public one.
    pub(crate) fn take(self: &Arc<Self>, message: Message, public: bool) {
        // Only the name of a request is parsed before its rights are checked.
        if public && !Call::is_public(message.body()) {
            return refuse(&message.stream, &denied());
        }
        let parsed = Call::parse(message.body());
        let Message { stream, peer, fds, .. } = message;
        let groups = if public { host::peer_groups(&stream).unwrap_or_default() } else { Vec::new() };
        let caller = Caller { user: Identity { uid: peer.uid, gid: peer.gid, groups }, public };
        let asked = parsed.and_then(|(request, command)| {
            // What another user's file does with reads and writes is not known.
            if public && fds.len() > 1 {
                let why = "the request cannot be served: only the owner passes files to the daemon";
                return Err(Error::new(ErrorKind::Denied, why));
            }
            let stream = Stream::take(request.stream(), fds)?;
            Ok(Asked { request, command, stream })
        });
        let asked = match asked {
            Ok(asked) => asked,
            Err(e) => return refuse(&stream, &e),
        };
        if public && self.public_requests(peer.uid) >= PUBLIC_PER_USER {
            let why = format!("the daemon serves {PUBLIC_PER_USER} requests of another user at once: try again");
            return refuse(&stream, &Error::new(ErrorKind::Busy, why));
        }
        let Ok(spare) = stream.try_clone() else {
            return refuse(&stream, &Error::new(ErrorKind::Busy, "the daemon has no descriptors left: try again"));
        };
        let what = asked.command.as_deref().unwrap_or(asked.request.title());
        let ticket = self.keeper.requests.begin(what, peer, public);
        let queue = match asked.request.lane() {
            lane if public && asked.request.rights() == Rights::Delegable => match lane {
                Lane::Stream => &self.lanes.delegated_stream,
                _ => &self.lanes.delegated,
            },
            _ if public => &self.lanes.public,
            Lane::Status => &self.lanes.status,
            Lane::Control => &self.lanes.control,
            Lane::Stream => &self.lanes.stream,
            Lane::Work => &self.lanes.work,
        };
        let daemon = self.clone();
        if !queue.push(Box::new(move || daemon.serve(stream, asked, ticket, caller))) {
            let why = "the daemon has too many requests waiting: try again when some have ended ('weir daemon status' shows them)";
            refuse(&spare, &Error::new(ErrorKind::Busy, why));
        }
    }

    fn public_requests(&self, uid: u32) -> usize {
        self.keeper.requests.all().iter().filter(|e| e.public && e.peer.uid == uid).count()
    }

    fn serve(self: &Arc<Self>, mut stream: UnixStream, asked: Asked, ticket: Ticket, caller: Caller) {
        let public = caller.public;
        let Asked { request, command, stream: report } = asked;
        let _ = stream.set_write_timeout(Some(if public { PUBLIC_REPLY_TIMEOUT } else { REPLY_TIMEOUT }));
        let ends = request.name() == Stop::NAME;
        let (daemon, entry) = (self.clone(), ticket.entry().clone());
        let (tx, rx) = mpsc::channel();
        let work = move || {
            enter(&entry);
            let done = perform(&daemon.pools, request, command, caller, &entry.progress, report);
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

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
    use std::path::Path;

    use admin::pool_set::PoolSet;
    use admin::request::{Events, Info, PoolHistory, Report};
    use admin::tunables::Tunables;
    use host::TempDir;

    use super::*;
    use crate::Client;
    use crate::keeper::DaemonKeeper;
    use crate::log::Log;
    use crate::paths::{Env, Paths};
    use crate::socket::listener::{Limits, Listener};
    use crate::socket::proto::{Beside, REPLY_MAX};
    use crate::state::State;

    /// A daemon without pools in this process, and its client.
    struct World {
        _dir: TempDir,
        daemon: Arc<Daemon>,
        paths: Paths,
        client: Client,
    }

    fn world(tag: &str) -> World {
        let dir = TempDir::new(tag).unwrap();
        let env = Env {
            weir_runtime_dir: Some(dir.join("run")),
            weir_state_dir: Some(dir.join("state")),
            xdg_runtime_dir: None,
            xdg_state_home: None,
            home: None,
            uid: host::effective_uid(),
        };
        let paths = || Paths::of(&env);
        paths().make_runtime().unwrap();
        let log = Arc::new(Log::open(&paths().log()));
        let keeper = Arc::new(DaemonKeeper::new(paths(), State::default(), log));
        let pools = PoolSet::new(keeper.clone(), Tunables::for_memory(1 << 30));
        pools.start();
        let daemon = Arc::new(Daemon { keeper, pools, lanes: Lanes::default() });
        let listener = Listener { path: paths().socket(), mode: 0o600, limits: Limits::OWNER, users: None };
        let (opened, server) = (listener.open().unwrap(), daemon.clone());
        std::thread::spawn(move || listener.serve(opened, |_| None, |message| server.take(message, false)));
        World { _dir: dir, daemon, client: Client::new(paths(), "/nonexistent".into()), paths: paths() }
    }

    impl World {
        fn connect(&self) -> UnixStream {
            let stream = UnixStream::connect(self.paths.socket()).unwrap();
            stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
            stream
        }

        /// Waits until no request is under way.
        fn rest(&self) {
            while !self.daemon.keeper.requests.all().is_empty() {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
    }

    fn message(request: &dyn AnyRequest) -> Vec<u8> {
        let mut out = Vec::new();
        request.call(None).unwrap().write(&mut out).unwrap();
        out
    }

    fn failure(mut stream: &UnixStream) -> String {
        match proto::receive::<Reply>(&mut stream, REPLY_MAX).unwrap() {
            Some(Reply::Failed { message, .. }) => message,
            other => panic!("{other:?}"),
        }
    }

    fn follow() -> Events {
        Events { pool: None, follow: true }
    }

    #[test]
    fn a_descriptor_that_is_not_wanted_is_refused_and_closed() {
        let w = world("streams-hostile");
        let events = message(&follow());
        let info = message(&Info);
        // The request, the descriptors that come with its bytes, one with each, and the reason.
        for (message, count, why) in [
            (&events, 0, "no descriptor of its stream"),
            (&events, 2, "no file or pipe"),
            (&events, 3, "more descriptors"),
            (&events, 5, "more descriptors"),
            (&info, 1, "has no stream"),
            (&info, 2, "has no stream"),
            (&info, 3, "more descriptors"),
        ] {
            let stream = w.connect();
            let (mut kept, sent): (Vec<UnixStream>, Vec<UnixStream>) =
                (0..count).map(|_| UnixStream::pair().unwrap()).unzip();
            let (mut at, mut fds) = (0, sent.iter());
            while at < message.len() {
                // It may be refused before all of it is sent.
                let Ok(n) = (match fds.next() {
                    Some(fd) => host::send_with(stream.as_fd(), &message[at..=at], &[fd.as_fd()]),
                    None => (&stream).write(&message[at..]),
                }) else {
                    break;
                };
                at += n;
            }
            drop(sent);
            assert!(failure(&stream).contains(why), "{count}: {why}");
            for end in &mut kept {
                end.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
                assert_eq!(end.read(&mut [0; 1]).expect("closed"), 0, "{why}");
            }
        }
        let wrong: [OwnedFd; 3] = [
            std::fs::File::open("/dev/null").unwrap().into(),
            std::io::pipe().unwrap().1.into(),
            std::os::unix::net::UnixDatagram::unbound().unwrap().into(),
        ];
        for fd in wrong {
            let stream = w.connect();
            Beside { socket: &stream, fds: &[fd.as_fd()] }.write_all(&events).unwrap();
            assert!(failure(&stream).contains("not its stream"));
        }
        // One that was never an end of a pair is a stream, which nobody reads.
        let stream = w.connect();
        let listener = std::os::unix::net::UnixListener::bind(w.paths.runtime().join("own")).unwrap();
        Beside { socket: &stream, fds: &[listener.as_fd()] }.write_all(&events).unwrap();
        assert!(failure(&stream).contains("has ended"));
        w.rest();
        assert_eq!(w.client.info().unwrap().expect("it serves").pid, std::process::id());
    }

    #[test]
    fn a_client_that_leaves_ends_its_request() {
        let w = world("streams-leave");
        // A socket by its number: other tests of this process open and close descriptors too.
        let is_open = |socket: &Path| {
            let fds = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
            fds.filter_map(|fd| std::fs::read_link(fd.path()).ok()).any(|to| to == socket)
        };
        for closes_stream_only in [false, true] {
            let stream = w.connect();
            let (mut ours, theirs) = UnixStream::pair().unwrap();
            let fd: BorrowedFd<'_> = theirs.as_fd();
            let passed = std::fs::read_link(format!("/proc/self/fd/{}", fd.as_raw_fd())).unwrap();
            Beside { socket: &stream, fds: &[fd] }.write_all(&message(&follow())).unwrap();
            drop(theirs);
            let mut begun = [0; 1];
            ours.read_exact(&mut begun).unwrap();
            assert_eq!(&begun, b"\n");
            assert_eq!(w.daemon.keeper.requests.all().len(), 1);
            assert!(is_open(&passed), "the daemon has it");
            drop(ours);
            if closes_stream_only {
                assert_eq!(proto::receive::<Reply>(&mut &stream, REPLY_MAX).unwrap(), Some(Reply::Done(().into())));
            }
            drop(stream);
            w.rest();
            assert!(!is_open(&passed), "the daemon keeps {}", passed.display());
        }
    }

    #[test]
    fn reports_come_and_errors_before_them_are_answers() {
        let w = world("streams-client");
        let mut got = Vec::new();
        let mut ask = |request: &Events, more: bool| {
            w.client.ask_each(request, &mut |_, _, _| {}, &mut |item: Option<<Events as Report>::Item>| {
                got.push(item);
                more
            })
        };
        ask(&Events { pool: None, follow: false }, true).unwrap();
        // A follower that wants no more.
        ask(&follow(), false).unwrap();
        assert_eq!(got, [None, None]);
        let absent = PoolHistory { pool: "absent".into() };
        let e = w.client.ask_each(&absent, &mut |_, _, _| {}, &mut |_| panic!("nothing comes")).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::NotFound);
        w.rest();
    }
}
