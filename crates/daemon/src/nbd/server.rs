//! The servers of a daemon: their addresses, their listeners, their start and end.
//!
//! A server lives until it is stopped or the daemon ends; it is not remembered. A listener is a
//! thread that waits for connections and for the end of its server, which closes a socket pair.

use std::collections::BTreeMap;
use std::io::{Error as IoError, ErrorKind as IoErrorKind};
use std::net::TcpListener;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use admin::pool_set::PoolSet;
use admin::request::NbdStart;
use admin::view::NbdView;
use base::{Error, ErrorKind, Result};

use super::hello::{Exports, Shared, Stream};
use crate::metrics::Endpoint;
use crate::server::lock;

/// Servers at most.
const SERVERS_MAX: usize = 32;
/// Volumes named for a server at most.
const NAMES_MAX: usize = 10_000;
/// Time for connections to end.
const END_LIMIT: Duration = Duration::from_secs(60);
/// Time for clients that have just hung up.
const LEAVE_LIMIT: Duration = Duration::from_secs(1);
/// How long a listener waits at a time; its end wakes it.
const LISTEN_PERIOD: Duration = Duration::from_secs(3600);
/// Pause of a listener that cannot accept: the process has no descriptors left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// A listening socket.
enum Bound {
    /// With its path.
    Unix(UnixListener, PathBuf),
    Tcp(TcpListener),
}

/// A running server.
struct Server {
    shared: Arc<Shared>,
    place: Endpoint,
    /// Its listener ends with it.
    stop: UnixStream,
    listener: JoinHandle<()>,
}

/// The servers, by address.
#[derive(Default)]
pub(crate) struct Servers(Mutex<BTreeMap<String, Server>>);

fn text_of(place: &Endpoint) -> String {
    match place {
        Endpoint::Unix(path) => format!("unix:{}", path.display()),
        Endpoint::Tcp(at) => at.to_string(),
    }
}

/// The address of an export as clients take it (NBD URI specification, `doc/uri.md` of
/// `NetworkBlockDevice/nbd`).
fn uri(place: &Endpoint, export: &str) -> String {
    match place {
        Endpoint::Unix(path) => {
            format!("nbd+unix:///{}?socket={}", quoted(export), quoted(&path.display().to_string()))
        }
        Endpoint::Tcp(at) => format!("nbd://{at}/{}", quoted(export)),
    }
}

/// Characters that a URI cannot have are written as numbers (RFC 3986, section 2.1).
fn quoted(text: &str) -> String {
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"-._~/@:".contains(&b);
    let one = |b: u8| if plain(b) { char::from(b).to_string() } else { format!("%{b:02X}") };
    text.bytes().map(one).collect()
}

/// Listens at `place`. A socket that nobody listens at is replaced.
fn bind(place: &Endpoint) -> Result<Bound> {
    let fail = |e: IoError| {
        let kind = if e.kind() == IoErrorKind::AddrInUse { ErrorKind::Exists } else { ErrorKind::Io };
        Error::new(kind, format!("'{}' cannot be listened at: {e}", text_of(place)))
    };
    match place {
        Endpoint::Unix(path) => {
            // A file refuses connections, too.
            let is_socket = std::fs::symlink_metadata(path).is_ok_and(|m| m.file_type().is_socket());
            if is_socket && UnixStream::connect(path).is_err_and(|e| e.kind() == IoErrorKind::ConnectionRefused) {
                std::fs::remove_file(path).map_err(fail)?;
            }
            let listener = UnixListener::bind(path).map_err(fail)?;
            // Until then the kernel's word on each peer keeps others out.
            let private = std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600));
            let private = private.and_then(|()| listener.set_nonblocking(true));
            if let Err(e) = private {
                remove(path);
                return Err(fail(e));
            }
            Ok(Bound::Unix(listener, path.clone()))
        }
        Endpoint::Tcp(at) => {
            let listener = TcpListener::bind(at).map_err(fail)?;
            listener.set_nonblocking(true).map_err(fail)?;
            Ok(Bound::Tcp(listener))
        }
    }
}

fn remove(path: &Path) {
    // It may be gone.
    let _ = std::fs::remove_file(path);
}

impl Bound {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Bound::Unix(listener, _) => listener.as_fd(),
            Bound::Tcp(listener) => listener.as_fd(),
        }
    }

    /// A connection; none from users that are not served.
    fn accept(&self, users: &[u32]) -> std::io::Result<Option<Stream>> {
        match self {
            Bound::Unix(listener, _) => {
                let (stream, _) = listener.accept()?;
                stream.set_nonblocking(false)?;
                let known = host::peer_cred(&stream).is_ok_and(|peer| users.contains(&peer.uid));
                Ok(known.then_some(Stream::Unix(stream)))
            }
            Bound::Tcp(listener) => {
                let (stream, _) = listener.accept()?;
                stream.set_nonblocking(false)?;
                Ok(Some(Stream::Tcp(stream)))
            }
        }
    }

    /// Accepts connections until the other end of `stop` is closed.
    fn listen(&self, stop: &UnixStream, users: &[u32], shared: &Arc<Shared>) {
        loop {
            match host::wait_readable(&[self.as_fd(), stop.as_fd()], LISTEN_PERIOD) {
                Ok(ready) if ready.get(1) == Some(&true) => return,
                Ok(ready) if ready.first() == Some(&true) => match self.accept(users) {
                    Ok(Some(stream)) => shared.take(stream),
                    Ok(None) => {}
                    Err(e) if e.kind() == IoErrorKind::WouldBlock => {}
                    Err(_) => std::thread::sleep(ACCEPT_PAUSE),
                },
                Ok(_) => {}
                Err(_) => std::thread::sleep(ACCEPT_PAUSE),
            }
        }
    }
}

impl Server {
    fn view(&self, at: &str) -> NbdView {
        let state = self.shared.state();
        let (all, names) = match &self.shared.exports {
            Exports::All => (true, Vec::new()),
            Exports::These(names) => (false, names.clone()),
        };
        let uris = if all { vec![uri(&self.place, "")] } else { names.iter().map(|n| uri(&self.place, n)).collect() };
        NbdView {
            at: at.to_string(),
            read_only: self.shared.read_only,
            all,
            names,
            uris,
            clients: state.clients,
            faults: state.faults,
            last_fault: state.last_fault.clone(),
        }
    }
}

impl Servers {
    /// Starts a server; its socket is `default` if the request names no place. `owner`: the user of
    /// the daemon, who is served, as root is.
    pub(crate) fn start(&self, pools: &Arc<PoolSet>, what: NbdStart, default: &Path, owner: u32) -> Result<NbdView> {
        let place = match &what.at {
            Some(text) => Endpoint::parse_for(text, "NBD")?,
            None => Endpoint::Unix(default.to_path_buf()),
        };
        let exports = match (what.all, what.names) {
            (true, names) if names.is_empty() => Exports::All,
            (true, _) => return Err(Error::invalid("all volumes are to be served, and some are named: choose one")),
            (false, names) if names.is_empty() => return Err(Error::invalid("no volume is named: name some, or all")),
            (false, names) if names.len() > NAMES_MAX => {
                return Err(Error::invalid(format!("more than {NAMES_MAX} volumes are named: serve all")));
            }
            (false, names) => Exports::These(names),
        };
        let shared = Shared::new(Arc::downgrade(pools), exports, what.read_only);
        if let Exports::These(names) = &shared.exports {
            for name in names {
                shared.info(name)?;
            }
        }
        let mut servers = lock(&self.0);
        let at = text_of(&place);
        if servers.contains_key(&at) {
            let why = format!("'{at}' serves already: 'weir nbd stop {at}' ends that");
            return Err(Error::new(ErrorKind::Exists, why));
        }
        if servers.len() >= SERVERS_MAX {
            return Err(Error::new(ErrorKind::Busy, format!("there are {SERVERS_MAX} servers already: stop some")));
        }
        let bound = bind(&place)?;
        let place = match &bound {
            // The kernel has chosen the port if it was 0.
            Bound::Tcp(listener) => Endpoint::Tcp(
                listener
                    .local_addr()
                    .map_err(|e| Error::new(ErrorKind::Io, format!("the address of a socket is not known: {e}")))?,
            ),
            Bound::Unix(..) => place,
        };
        let pair = UnixStream::pair().map_err(|e| Error::new(ErrorKind::Io, format!("no pair of sockets: {e}")))?;
        let (stop, stopped) = pair;
        let (for_thread, users) = (shared.clone(), [owner, 0]);
        let listen = move || {
            bound.listen(&stopped, &users, &for_thread);
            if let Bound::Unix(listener, path) = bound {
                drop(listener);
                remove(&path);
            }
        };
        let started = std::thread::Builder::new().name("weir-nbd".into()).spawn(listen);
        let listener =
            started.map_err(|e| Error::new(ErrorKind::Io, format!("no thread for a server can be started: {e}")))?;
        let at = text_of(&place);
        let server = Server { shared, place, stop, listener };
        let view = server.view(&at);
        servers.insert(at, server);
        Ok(view)
    }

    /// Ends these servers, or all; [`ErrorKind::Busy`], and nothing changed, if one has clients,
    /// unless `force`.
    pub(crate) fn stop(&self, at: &[String], force: bool) -> Result<()> {
        let mut servers = lock(&self.0);
        let chosen: Vec<String> = if at.is_empty() { servers.keys().cloned().collect() } else { at.to_vec() };
        for at in &chosen {
            let Some(server) = servers.get(at) else {
                return Err(Error::not_found(format!(
                    "nothing is served at '{at}': 'weir nbd list' shows the servers"
                )));
            };
            let clients = if force { 0 } else { server.shared.clients_after(LEAVE_LIMIT) };
            if clients > 0 {
                let why = format!("'{at}' has clients ({clients}): disconnect them, or use 'weir nbd stop -f'");
                return Err(Error::new(ErrorKind::Busy, why));
            }
        }
        let gone: Vec<(String, Server)> = chosen.into_iter().filter_map(|at| servers.remove_entry(&at)).collect();
        drop(servers);
        let mut slow = Vec::new();
        for (at, Server { shared, stop, listener, .. }) in gone {
            // First the listener, so that no connection comes behind the last one.
            drop(stop);
            let _ = listener.join();
            if !shared.end_all(END_LIMIT) {
                slow.push(at);
            }
        }
        match slow.is_empty() {
            true => Ok(()),
            false => {
                let why = format!("requests of clients of {} are still under way", slow.join(", "));
                Err(Error::new(ErrorKind::Busy, why))
            }
        }
    }

    /// The servers, in order of address.
    pub(crate) fn list(&self) -> Vec<NbdView> {
        lock(&self.0).iter().map(|(at, server)| server.view(at)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_those_that_clients_take() {
        let unix = Endpoint::Unix("/run/user/1000/weir/nbd.sock".into());
        let spaced = Endpoint::Unix("/a b/x&y".into());
        let tcp = Endpoint::Tcp("127.0.0.1:10809".parse().unwrap());
        let six = Endpoint::Tcp("[::1]:10809".parse().unwrap());
        for (place, export, want) in [
            (&unix, "tank/vol", "nbd+unix:///tank/vol?socket=/run/user/1000/weir/nbd.sock"),
            (&unix, "", "nbd+unix:///?socket=/run/user/1000/weir/nbd.sock"),
            (&spaced, "tank/a b@s", "nbd+unix:///tank/a%20b@s?socket=/a%20b/x%26y"),
            (&tcp, "tank/vol", "nbd://127.0.0.1:10809/tank/vol"),
            (&six, "tank/vol", "nbd://[::1]:10809/tank/vol"),
        ] {
            assert_eq!(uri(place, export), want);
        }
    }

    #[test]
    fn a_socket_in_use_and_a_file_stay() {
        let dir = host::TempDir::new("nbd-bind").unwrap();
        let at = |name: &str| Endpoint::Unix(dir.join(name));
        let Bound::Unix(listener, path) = bind(&at("sock")).unwrap() else { panic!("a socket") };
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(bind(&at("sock")).err().unwrap().kind(), ErrorKind::Exists);
        drop(listener);
        bind(&at("sock")).unwrap();
        std::fs::write(dir.join("file"), b"kept").unwrap();
        assert!(bind(&at("file")).is_err());
        assert_eq!(std::fs::read(dir.join("file")).unwrap(), b"kept");
    }
}
