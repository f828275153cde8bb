//! The client: finds the daemon, starts one if none runs, and sends it a request.

use std::cell::Cell;
use std::fs::{File, OpenOptions};
use std::io::{BufReader, Read, Seek, SeekFrom, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use admin::request::{Call, Info, Report, Request, Rights, Stop};
use admin::view::DaemonInfo;
use base::{Error, ErrorKind, Result};
use host::Access;
use serde::de::DeserializeOwned;

use crate::log::text_of;
use crate::paths::{Paths, check_folder};
use crate::server::PATH;
use crate::socket::proto::{self, Beside, REPLY_MAX, Reply, kind_named};
use crate::state::State;

/// Time for a new daemon to make its socket.
const START_TIMEOUT: Duration = Duration::from_secs(20);
/// Time for a running daemon whose socket was removed to make it again.
const SOCKET_TIMEOUT: Duration = Duration::from_secs(10);
/// Time for a daemon to end; pools with much dirty data need a while.
const STOP_TIMEOUT: Duration = Duration::from_secs(600);

/// The client of this user's daemon.
pub struct Client {
    paths: Paths,
    program: PathBuf,
    args: Vec<String>,
    starts: bool,
    started: Cell<bool>,
}

impl Client {
    /// A client over these folders; it runs `program daemon run` if there is no daemon.
    pub fn new(paths: Paths, program: PathBuf) -> Client {
        Client { paths, program, args: Vec::new(), starts: true, started: Cell::new(false) }
    }

    /// A client over the folders of this process; it runs this program.
    pub fn of_process() -> Result<Client> {
        let program = std::env::current_exe();
        let program =
            program.map_err(|e| Error::new(ErrorKind::Io, format!("this program cannot find itself: {e}")))?;
        Ok(Client::new(Paths::of_process(), program))
    }

    /// Gives further arguments to a daemon that this client starts.
    pub fn with_args(mut self, args: Vec<String>) -> Client {
        self.args = args;
        self
    }

    /// Without a daemon requests fail (`NotFound`) and start none.
    pub fn of_running(mut self) -> Client {
        self.starts = false;
        self
    }

    /// A connection to the daemon of the runtime folder; none if there is none.
    ///
    /// Root may use the daemon of another user whose folder `WEIR_RUNTIME_DIR` names. Other users
    /// who name a folder of root's reach its public socket.
    fn connect(&self) -> Result<Option<Connection>> {
        let (dir, uid) = (self.paths.runtime(), self.paths.uid());
        let owner = match std::fs::symlink_metadata(dir) {
            Ok(meta) => meta.uid(),
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(e) => {
                return Err(Error::new(ErrorKind::Denied, format!("'{}' cannot be reached: {e}", dir.display())));
            }
        };
        if owner != uid && owner == 0 {
            return Ok(connect_to(&Paths::public_socket(dir), 0)?.map(Connection::Public));
        }
        let owner = if uid == 0 { owner } else { uid };
        check_folder(dir, owner)?;
        Ok(connect_to(&self.paths.socket(), owner)?.map(Connection::Full))
    }

    /// As [`Client::connect`]; waits for a running daemon without a socket to make it again.
    fn connect_running(&self) -> Result<Option<Connection>> {
        let end = Instant::now() + SOCKET_TIMEOUT;
        loop {
            let connection = self.connect()?;
            if connection.is_some() || !self.paths.is_held() || Instant::now() > end {
                return Ok(connection);
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// A connection to root's daemon, for a request of a user who has no daemon and no pools that a
    /// daemon would import, if others than the owner may make it.
    fn connect_system(&self, rights: Rights) -> Option<UnixStream> {
        let dir = self.paths.system().filter(|_| rights != Rights::Owner)?;
        let own = State::load(&self.paths.state_file()).is_ok_and(|s| s.pools.iter().any(|p| p.imported));
        if own || self.paths.is_held() {
            return None;
        }
        connect_to(&Paths::public_socket(dir), 0).ok().flatten()
    }

    /// Whether a daemon runs.
    pub fn is_running(&self) -> Result<bool> {
        Ok(matches!(self.connect()?, Some(Connection::Full(_))))
    }

    /// Starts a daemon unless one runs; true if this call did.
    pub fn start(&self) -> Result<bool> {
        if self.is_running()? {
            return Ok(false);
        }
        self.start_and_connect().map(|_| true)
    }

    /// Whether this client has started the daemon.
    pub fn has_started(&self) -> bool {
        self.started.get()
    }

    fn start_and_connect(&self) -> Result<UnixStream> {
        self.paths.make_runtime()?;
        let log_path = self.paths.log();
        let fail = |what: &str, e: std::io::Error| {
            Error::new(ErrorKind::Io, format!("the daemon cannot be started: {what}: {e}"))
        };
        let log = OpenOptions::new().create(true).append(true).read(true).mode(0o600).open(&log_path);
        let mut log = log.map_err(|e| fail("its log", e))?;
        let old_len = log.seek(SeekFrom::End(0)).map_err(|e| fail("its log", e))?;
        let copy = || log.try_clone().map_err(|e| fail("its log", e));
        let mut child = Command::new(&self.program)
            .args(["daemon", "run"])
            .args(&self.args)
            .env_clear()
            .envs(std::env::vars_os().filter(|(name, _)| name.to_str().is_some_and(|n| n.starts_with("WEIR_"))))
            .env("PATH", PATH)
            .env("WEIR_RUNTIME_DIR", self.paths.runtime())
            .env("WEIR_STATE_DIR", self.paths.state())
            .stdin(Stdio::null())
            .stdout(copy()?)
            .stderr(copy()?)
            .current_dir("/")
            .process_group(0)
            .spawn()
            .map_err(|e| fail(&self.program.display().to_string(), e))?;
        let end = Instant::now() + START_TIMEOUT;
        let mut ended: Option<Instant> = None;
        loop {
            if let Some(Connection::Full(stream)) = self.connect()? {
                self.started.set(true);
                return Ok(stream);
            }
            if let Ok(Some(_)) = child.try_wait() {
                // Another command may have started one at the same moment, or a daemon makes its
                // removed socket again: then ours found the lock held.
                let since = *ended.get_or_insert_with(Instant::now);
                if since.elapsed() < if self.paths.is_held() { SOCKET_TIMEOUT } else { Duration::from_millis(50) } {
                    std::thread::sleep(Duration::from_millis(5));
                    continue;
                }
                let mut output = String::new();
                let _ = log.seek(SeekFrom::Start(old_len));
                let _ = log.take(64 << 10).read_to_string(&mut output);
                let last = output.lines().rev().find(|l| !l.trim().is_empty()).unwrap_or("it ended at once");
                let last = text_of(last).trim_start_matches("weir: ").trim_start_matches("error: ");
                return Err(Error::new(ErrorKind::Io, format!("the daemon cannot be started: {last}")));
            }
            if Instant::now() > end {
                let why = format!("the daemon does not answer: see '{}'", log_path.display());
                return Err(Error::new(ErrorKind::Io, why));
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Sends a request and waits for the reply; starts a daemon if there is none. `command` is the
    /// command line that the request comes from, for the histories of the pools that it changes.
    /// `progress` gets the progress of long work: what, done, total.
    pub fn ask<R: Request>(
        &self,
        request: &R,
        command: Option<&str>,
        progress: &mut dyn FnMut(&str, u64, u64),
    ) -> Result<R::Reply> {
        converse(self.connection_for(R::RIGHTS)?.stream(), request, command, progress)
    }

    /// Sends a request for a report. `each` gets `None` when the work has begun, if the request
    /// says so, and then the items as they come; it returns whether it wants more. If not, the work
    /// ends.
    pub fn ask_each<R: Report>(
        &self,
        request: &R,
        progress: &mut dyn FnMut(&str, u64, u64),
        each: &mut dyn FnMut(Option<R::Item>) -> bool,
    ) -> Result<()> {
        let bad = |e| Error::new(ErrorKind::Io, format!("the daemon's answer makes no sense: {e}"));
        // Up to the end of a line.
        let mut begun: Vec<u8> = Vec::new();
        let mut take = |bytes: &[u8]| {
            for part in bytes.split_inclusive(|b| *b == b'\n') {
                begun.extend_from_slice(part);
                let Some(line) = begun.strip_suffix(b"\n") else { continue };
                let item = if line.is_empty() { None } else { Some(serde_json::from_slice(line).map_err(bad)?) };
                begun.clear();
                if !each(item) {
                    return Ok(false);
                }
            }
            Ok(true)
        };
        converse_streaming(self.connection_for(R::RIGHTS)?.stream(), request, None, progress, &mut take).map(drop)
    }

    /// Sends a request whose stream is bytes; `each` gets them as they come. An error of `each`
    /// ends the work. `command` is the command line, if it changes something.
    pub fn ask_bytes<R: Request>(
        &self,
        request: &R,
        command: Option<&str>,
        progress: &mut dyn FnMut(&str, u64, u64),
        each: &mut dyn FnMut(&[u8]) -> Result<()>,
    ) -> Result<R::Reply> {
        converse_bytes(self.connection_for(R::RIGHTS)?.stream(), request, command, progress, each)
    }

    /// Sends a request whose stream is bytes that go to `output`. A file or a pipe is given to the
    /// daemon; what goes to another kind is copied.
    pub fn ask_with_output<R: Request>(
        &self,
        request: &R,
        progress: &mut dyn FnMut(&str, u64, u64),
        mut output: File,
    ) -> Result<R::Reply> {
        let connection = self.connection_for(R::RIGHTS)?;
        if let Some(file) = passable_to(&connection, output.as_fd(), Access::Write) {
            return converse_with_file(connection.stream(), request, None, progress, file);
        }
        let failed = |e: std::io::Error| Error::new(ErrorKind::Io, format!("cannot write the stream: {e}"));
        converse_bytes(connection.stream(), request, None, progress, &mut |bytes| {
            output.write_all(bytes).map_err(failed)
        })
    }

    /// Sends a request whose stream is what `input` gives, any descriptor that can be read. A file
    /// or a pipe is given to the daemon. Others are copied on a thread of their own: an answer that
    /// comes before the end is not kept waiting.
    pub fn ask_with_input<R: Request>(
        &self,
        request: &R,
        command: Option<&str>,
        progress: &mut dyn FnMut(&str, u64, u64),
        input: File,
    ) -> Result<R::Reply> {
        let broken = |e: std::io::Error| Error::new(ErrorKind::Io, format!("the stream cannot be sent: {e}"));
        let connection = self.connection_for(R::RIGHTS)?;
        if let Some(file) = passable_to(&connection, input.as_fd(), Access::Read) {
            return converse_with_file(connection.stream(), request, command, progress, file);
        }
        let (mut ours, conversation) = Conversation::with_stream(connection.stream(), request, command, None)?;
        // The daemon closes its end when it needs no more, which ends this with an error.
        let copy = move || drop(std::io::copy(&mut BufReader::with_capacity(128 << 10, input), &mut ours));
        std::thread::Builder::new().name("input".into()).spawn(copy).map_err(broken)?;
        conversation.end(progress)
    }

    /// A connection for a request; starts a daemon if there is none.
    fn connection_for(&self, rights: Rights) -> Result<Connection> {
        match self.connect()? {
            Some(connection) => Ok(connection),
            None => match self.connect_system(rights) {
                Some(stream) => Ok(Connection::Public(stream)),
                None if !self.starts => Err(Error::new(ErrorKind::NotFound, "no daemon is running")),
                None => self.start_and_connect().map(Connection::Full),
            },
        }
    }

    /// The status of a running daemon; none if there is none.
    pub fn info(&self) -> Result<Option<DaemonInfo>> {
        let Some(Connection::Full(stream) | Connection::Public(stream)) = self.connect_running()? else {
            return Ok(None);
        };
        converse(stream, &Info, None, &mut |_, _, _| {}).map(Some)
    }

    /// Ends the daemon and waits until it is gone; false if there was none.
    pub fn stop(&self, force: bool) -> Result<bool> {
        let Some(Connection::Full(stream) | Connection::Public(stream)) = self.connect_running()? else {
            return Ok(false);
        };
        let holder = self.paths.holder();
        converse(stream, &Stop { force }, None, &mut |_, _, _| {})?;
        let end = Instant::now() + STOP_TIMEOUT;
        // A daemon releases the lock last, and another command may start the next one at once.
        while holder.is_some() && self.paths.holder() == holder {
            if Instant::now() > end {
                return Err(Error::new(ErrorKind::Busy, "the daemon does not end: see its log"));
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(true)
    }
}

/// A connection, by the socket.
enum Connection {
    /// Every request.
    Full(UnixStream),
    /// Requests that others than the owner may make.
    Public(UnixStream),
}

impl Connection {
    fn stream(self) -> UnixStream {
        match self {
            Connection::Full(stream) | Connection::Public(stream) => stream,
        }
    }
}

/// Connects to the socket at `path`, if it belongs to the user `owner` and so does the process that
/// listens.
fn connect_to(path: &Path, owner: u32) -> Result<Option<UnixStream>> {
    let denied = |why: String| Err(Error::new(ErrorKind::Denied, format!("'{}' {why}", path.display())));
    match std::fs::symlink_metadata(path) {
        Ok(meta) if meta.uid() == owner => {}
        Ok(_) => return denied("belongs to another user: set WEIR_RUNTIME_DIR to a folder of your own".into()),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return denied(format!("cannot be reached: {e}")),
    }
    let stream = match UnixStream::connect(path) {
        Ok(stream) => stream,
        Err(e) if matches!(e.kind(), std::io::ErrorKind::ConnectionRefused | std::io::ErrorKind::NotFound) => {
            return Ok(None);
        }
        Err(e) => return Err(Error::new(ErrorKind::Io, format!("'{}' cannot be reached: {e}", path.display()))),
    };
    match host::peer_cred(&stream)?.uid {
        uid if uid == owner => Ok(Some(stream)),
        _ => denied("is served by another user: set WEIR_RUNTIME_DIR to a folder of your own".into()),
    }
}

/// A descriptor of this command's in a form that the daemon of a connection takes in place of a
/// stream: for root and for this user, since it may do with it what it likes. Through the public
/// socket it takes none.
fn passable_to(connection: &Connection, fd: BorrowedFd<'_>, access: Access) -> Option<OwnedFd> {
    let Connection::Full(connection) = connection else { return None };
    let uid = host::peer_cred(connection).ok()?.uid;
    if uid == 0 || uid == host::effective_uid() { host::passable(fd, access) } else { None }
}

/// As [`converse`], with a file that the daemon reads or writes itself.
fn converse_with_file<R: Request>(
    connection: UnixStream,
    request: &R,
    command: Option<&str>,
    progress: &mut dyn FnMut(&str, u64, u64),
    file: OwnedFd,
) -> Result<R::Reply> {
    // This end is held until the answer: when it is closed, the work ends.
    let (_ours, conversation) = Conversation::with_stream(connection, request, command, Some(file.as_fd()))?;
    drop(file);
    conversation.end(progress)
}

fn converse<R: Request>(
    stream: UnixStream,
    request: &R,
    command: Option<&str>,
    progress: &mut dyn FnMut(&str, u64, u64),
) -> Result<R::Reply> {
    Conversation::begin(stream, request, command, &[])?.end(progress)
}

/// As [`converse`], with the bytes that come over the stream of the request.
fn converse_bytes<R: Request>(
    stream: UnixStream,
    request: &R,
    command: Option<&str>,
    progress: &mut dyn FnMut(&str, u64, u64),
    each: &mut dyn FnMut(&[u8]) -> Result<()>,
) -> Result<R::Reply> {
    let reply = converse_streaming(stream, request, command, progress, &mut |bytes| each(bytes).map(|()| true))?;
    reply.ok_or_else(|| Error::new(ErrorKind::Io, "the daemon's answer is missing"))
}

/// As [`converse`], with what comes over the stream of the request; stops when `take` says so.
fn converse_streaming<R: Request>(
    stream: UnixStream,
    request: &R,
    command: Option<&str>,
    progress: &mut dyn FnMut(&str, u64, u64),
    take: &mut dyn FnMut(&[u8]) -> Result<bool>,
) -> Result<Option<R::Reply>> {
    let broken = |e: std::io::Error| Error::new(ErrorKind::Io, format!("the answer cannot be received: {e}"));
    let (mut ours, mut conversation) = Conversation::with_stream(stream, request, command, None)?;
    let mut buf = vec![0; 256 << 10];
    let mut answer = None;
    loop {
        // What was written before the answer was is taken before it.
        let control = conversation.stream.as_fd();
        let both = [ours.as_fd(), control];
        let ready = host::wait_readable(if answer.is_none() { &both } else { &both[..1] }, Duration::MAX);
        let ready = ready.map_err(broken)?;
        if ready.first() == Some(&true) {
            match ours.read(&mut buf).map_err(broken)? {
                0 => break,
                n if take(&buf[..n])? => {}
                _ => return Ok(None),
            }
        } else if ready.get(1) == Some(&true) {
            match conversation.receive()? {
                Reply::Progress { what, done, total } => progress(&what, done, total),
                end => answer = Some(end),
            }
        }
    }
    loop {
        match answer.map_or_else(|| conversation.receive(), Ok)? {
            Reply::Progress { .. } => answer = None,
            Reply::Done(value) => return read_answer(value).map(Some),
            Reply::Failed { kind, message } => return Err(Error::new(kind_named(&kind), message)),
        }
    }
}

fn read_answer<T: DeserializeOwned>(value: serde_json::Value) -> Result<T> {
    let bad = |e| Error::new(ErrorKind::Io, format!("the daemon's answer makes no sense: {e}"));
    serde_json::from_value(value).map_err(bad)
}

/// A connection over which a request was sent.
struct Conversation {
    stream: UnixStream,
    sent: std::io::Result<()>,
}

impl Conversation {
    fn begin<R: Request>(
        stream: UnixStream,
        request: &R,
        command: Option<&str>,
        fds: &[BorrowedFd<'_>],
    ) -> Result<Conversation> {
        let call = Call::of(request, command)?;
        let sent = call.write(&mut Beside { socket: &stream, fds });
        Ok(Conversation { stream, sent })
    }

    /// As [`Conversation::begin`], with this end of a stream; `file` takes its place.
    fn with_stream<R: Request>(
        stream: UnixStream,
        request: &R,
        command: Option<&str>,
        file: Option<BorrowedFd<'_>>,
    ) -> Result<(UnixStream, Conversation)> {
        let broken = |e: std::io::Error| Error::new(ErrorKind::Io, format!("the request cannot be sent: {e}"));
        // The other end is the daemon's alone: the stream ends with it.
        let (ours, theirs) = UnixStream::pair().map_err(broken)?;
        let fds: Vec<BorrowedFd<'_>> = [theirs.as_fd()].into_iter().chain(file).collect();
        let conversation = Conversation::begin(stream, request, command, &fds)?;
        Ok((ours, conversation))
    }

    /// Waits for the answer.
    fn end<T: DeserializeOwned>(mut self, progress: &mut dyn FnMut(&str, u64, u64)) -> Result<T> {
        loop {
            match self.receive()? {
                Reply::Progress { what, done, total } => progress(&what, done, total),
                Reply::Done(value) => return read_answer(value),
                Reply::Failed { kind, message } => return Err(Error::new(kind_named(&kind), message)),
            }
        }
    }

    /// The next message of the daemon.
    fn receive(&mut self) -> Result<Reply> {
        let gone =
            |e: &dyn std::fmt::Display| Error::new(ErrorKind::Io, format!("the daemon went away: {e}: see its log"));
        // A daemon that refuses a request replies with the reason and closes: report the reply, not
        // the failed write.
        let received = proto::receive::<Reply>(&mut self.stream, REPLY_MAX);
        let received =
            received.map_err(|e| gone(&self.sent.as_ref().err().map_or_else(|| e.to_string(), ToString::to_string)))?;
        received.ok_or_else(|| gone(&"it closed the connection"))
    }
}

#[cfg(test)]
mod tests {
    use admin::request::Events;

    use super::*;

    #[test]
    fn a_daemon_that_dies_is_an_error_after_what_it_wrote() {
        for reply in [None, Some(Reply::Done(().into()))] {
            let (ours, theirs) = UnixStream::pair().unwrap();
            let ended = reply.is_some();
            let server = std::thread::spawn(move || {
                let mut head = [0; 4];
                let mut got = host::receive_with(theirs.as_fd(), &mut head).unwrap();
                let mut body = vec![0; u32::from_le_bytes(head) as usize];
                (&theirs).read_exact(&mut body).unwrap();
                let mut stream = UnixStream::from(got.fds.remove(0));
                stream.write_all(b"some").unwrap();
                if let Some(reply) = reply {
                    let progress = Reply::Progress { what: "x".into(), done: 1, total: 2 };
                    proto::send(&mut &theirs, &progress).unwrap();
                    proto::send(&mut &theirs, &reply).unwrap();
                }
                stream.write_all(b"thing").unwrap();
            });
            let mut all = Vec::new();
            let mut take = |bytes: &[u8]| {
                all.extend_from_slice(bytes);
                Ok(true)
            };
            let request = Events { pool: None, follow: true };
            let done = converse_streaming(ours, &request, None, &mut |_, _, _| {}, &mut take);
            server.join().unwrap();
            assert_eq!(all, b"something");
            match done {
                Ok(answer) => assert!(ended && answer.is_some()),
                Err(e) => assert!(!ended && e.to_string().contains("went away"), "{e}"),
            }
        }
    }
}
