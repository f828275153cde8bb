//! The listeners of the daemon: sockets, the connections with incomplete requests, and the limits
//! on both.
//!
//! There are two listeners. The owner's (`weir.sock`, mode 0600) takes every request from the user
//! that the daemon runs as and from root. Root's daemon has a second one for all users
//! (`public.sock`, mode 0666), which takes public requests and those that permissions may allow
//! ([`admin::request::Rights`]). It has a backlog, a thread and places of its own, so that other
//! users cannot use up the owner's; the mode of the first socket keeps them out there.
//!
//! One thread per listener polls all its connections. A connection costs a descriptor and the bytes
//! received, never a thread. A complete message is delivered to [`crate::socket::serve`]. If there
//! are more connections than places, the oldest incomplete one gets an error and is closed; a user
//! with more than his share loses his own first. If the socket of a listener is removed from its
//! folder, the listener makes it again.

use std::io::{Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use base::{Error, ErrorKind, Result};
use host::{PASSED_MAX, PeerCred, SecretBytes};

use crate::socket::proto::{self, Reply};

/// Interval at which a listener checks that its socket is still there.
const SOCKET_CHECK_PERIOD: Duration = Duration::from_secs(2);
/// Connections accepted at once, so that existing ones get their turn.
const ACCEPT_BATCH: usize = 64;
/// Bytes of a message's length.
const HEAD: usize = 4;
/// Bytes read at once.
const CHUNK: usize = 64 << 10;

/// The limits of a listener.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Connections with incomplete requests.
    pub places: usize,
    /// Of those, of one user.
    pub places_per_user: usize,
    /// Time for a connection to send its request.
    pub patience: Duration,
    /// The longest message in bytes.
    pub message_max: usize,
}

impl Limits {
    /// The limits of the owner's listener.
    pub const OWNER: Limits = Limits {
        places: 256,
        places_per_user: 256,
        patience: Duration::from_secs(30),
        message_max: proto::REQUEST_MAX,
    };
    /// The limits of the public listener. Its requests name pools and datasets.
    pub const PUBLIC: Limits =
        Limits { places: 64, places_per_user: 16, patience: Duration::from_secs(10), message_max: 64 << 10 };
}

/// A complete message, and the connection for the reply.
///
/// At most two descriptors come with it; the third ends the connection, so that a client cannot
/// make the daemon hold many.
pub struct Message {
    /// The connection; it blocks.
    pub stream: UnixStream,
    /// The sender.
    pub peer: PeerCred,
    /// The descriptors that came with it.
    pub fds: Vec<OwnedFd>,
    /// Length and body, which may contain a key.
    bytes: SecretBytes,
}

impl Message {
    /// The body, without the length.
    pub fn body(&self) -> &[u8] {
        self.bytes.get(HEAD..).unwrap_or_default()
    }
}

/// A listening socket.
pub struct Listener {
    /// Where its socket is.
    pub path: PathBuf,
    /// The mode of the socket.
    pub mode: u32,
    /// Its limits.
    pub limits: Limits,
    /// The users that it serves; none: all.
    pub users: Option<Vec<u32>>,
}

/// A connection with an incomplete request.
struct Pending {
    stream: UnixStream,
    peer: PeerCred,
    since: Instant,
    got: SecretBytes,
    fds: Vec<OwnedFd>,
    /// A descriptor came that there was no room for.
    lost: bool,
}

/// Reads from a connection, and takes the descriptors that come with the bytes.
struct WithDescriptors<'a> {
    from: &'a UnixStream,
    fds: &'a mut Vec<OwnedFd>,
    lost: &'a mut bool,
}

impl Read for WithDescriptors<'_> {
    fn read(&mut self, buf: &mut [u8]) -> std::io::Result<usize> {
        let got = host::receive_with(self.from.as_fd(), buf)?;
        self.fds.extend(got.fds);
        *self.lost |= got.lost;
        Ok(got.bytes)
    }
}

/// The result of reading from a connection.
enum ReadState {
    Wait,
    Closed,
    Complete,
    Refuse(Error),
}

fn busy(why: &'static str) -> Error {
    Error::new(ErrorKind::Busy, why)
}

/// Replies with an error and closes. The few bytes fit into any socket's buffer; if the connection
/// takes none, nothing is sent.
pub fn refuse(mut stream: &UnixStream, e: &Error) {
    let mut out = Vec::new();
    if proto::send(&mut out, &Reply::failed(e)).is_ok() {
        let _ = stream.set_nonblocking(true);
        let _ = stream.write(&out);
    }
}

impl Pending {
    fn read(&mut self, max: usize) -> ReadState {
        // Read no more than the message: a connection carries one.
        let want = match self.length() {
            None => HEAD - self.got.len(),
            Some(len) => (HEAD + len - self.got.len()).min(CHUNK),
        };
        let mut from = WithDescriptors { from: &self.stream, fds: &mut self.fds, lost: &mut self.lost };
        match self.got.read_from(&mut from, want) {
            Ok(_) if self.lost || self.fds.len() > PASSED_MAX => {
                let why = "the request cannot be read: more descriptors came with it than the daemon takes";
                ReadState::Refuse(Error::invalid(why))
            }
            Ok(0) if self.got.is_empty() => ReadState::Closed,
            Ok(0) => ReadState::Refuse(Error::invalid("the request cannot be read: it ends in the middle")),
            Ok(_) => match self.length() {
                Some(len) if len > max => {
                    let why = format!("the request cannot be read: it has {len} bytes, {max} are allowed");
                    ReadState::Refuse(Error::invalid(why))
                }
                Some(len) if self.got.len() == HEAD + len => ReadState::Complete,
                _ => ReadState::Wait,
            },
            Err(e) if matches!(e.kind(), std::io::ErrorKind::WouldBlock | std::io::ErrorKind::Interrupted) => {
                ReadState::Wait
            }
            Err(_) => ReadState::Closed,
        }
    }

    fn length(&self) -> Option<usize> {
        self.got.first_chunk::<HEAD>().map(|b| u32::from_le_bytes(*b) as usize)
    }
}

/// The connection to close when there are too many: the oldest of the newest connection's user if
/// he has more than his share, else the oldest of the user with most connections.
fn victim(pending: &[(u32, Instant)], newest: u32, limits: &Limits) -> Option<usize> {
    let count = |uid: u32| pending.iter().filter(|(u, _)| *u == uid).count();
    let uid = if count(newest) > limits.places_per_user {
        newest
    } else if pending.len() > limits.places {
        pending.iter().map(|(u, _)| *u).max_by_key(|u| (count(*u), *u))?
    } else {
        return None;
    };
    (0..pending.len()).filter(|i| pending[*i].0 == uid).min_by_key(|i| pending[*i].1)
}

impl Listener {
    /// Listens at its path, and replaces a socket there.
    pub fn open(&self) -> Result<(UnixListener, u64)> {
        let fail = |e: std::io::Error| {
            Error::new(ErrorKind::Io, format!("'{}' cannot be listened at: {e}", self.path.display()))
        };
        // The caller holds the lock of the folder: an existing socket belongs to a daemon that has
        // ended.
        match std::fs::remove_file(&self.path) {
            Err(e) if e.kind() != std::io::ErrorKind::NotFound => return Err(fail(e)),
            _ => {}
        }
        let listener = UnixListener::bind(&self.path).map_err(fail)?;
        std::fs::set_permissions(&self.path, std::fs::Permissions::from_mode(self.mode)).map_err(fail)?;
        listener.set_nonblocking(true).map_err(fail)?;
        let ino = std::fs::symlink_metadata(&self.path).map_err(fail)?.ino();
        Ok((listener, ino))
    }

    fn is_there(&self, ino: u64) -> bool {
        std::fs::symlink_metadata(&self.path).is_ok_and(|m| m.ino() == ino)
    }

    /// Serves for as long as the process lives. `reopen` opens the listener again when its socket
    /// was removed, if the folder is in order; `deliver` gets complete messages.
    pub fn serve(
        self,
        opened: (UnixListener, u64),
        reopen: impl Fn(&Listener) -> Option<(UnixListener, u64)>,
        deliver: impl Fn(Message),
    ) {
        let (mut listener, mut ino) = opened;
        let mut pending: Vec<Pending> = Vec::new();
        let mut checked = Instant::now();
        loop {
            let now = Instant::now();
            let oldest = pending.iter().map(|p| p.since).min();
            let left =
                oldest.map_or(SOCKET_CHECK_PERIOD, |t| (t + self.limits.patience).saturating_duration_since(now));
            let fds: Vec<BorrowedFd<'_>> =
                std::iter::once(listener.as_fd()).chain(pending.iter().map(|p| p.stream.as_fd())).collect();
            let Ok(ready) = host::wait_readable(&fds, left.min(SOCKET_CHECK_PERIOD)) else {
                // No memory for the wait: close the connections.
                pending.clear();
                continue;
            };
            if checked.elapsed() >= SOCKET_CHECK_PERIOD {
                checked = Instant::now();
                if !self.is_there(ino)
                    && let Some(new) = reopen(&self)
                {
                    (listener, ino) = new;
                }
            }
            let mut flags = ready.iter().skip(1);
            let mut keep: Vec<Pending> = Vec::with_capacity(pending.len());
            for mut p in std::mem::take(&mut pending) {
                let readable = flags.next().copied().unwrap_or(false);
                let read = if readable { p.read(self.limits.message_max) } else { ReadState::Wait };
                match read {
                    ReadState::Wait if p.since.elapsed() >= self.limits.patience => {
                        refuse(&p.stream, &busy("the connection sent no complete request in time"));
                    }
                    ReadState::Wait => keep.push(p),
                    ReadState::Closed => {}
                    ReadState::Refuse(e) => refuse(&p.stream, &e),
                    ReadState::Complete => {
                        if p.stream.set_nonblocking(false).is_ok() {
                            deliver(Message { stream: p.stream, peer: p.peer, fds: p.fds, bytes: p.got });
                        }
                    }
                }
            }
            pending = keep;
            if ready.first() == Some(&true) {
                self.accept(&listener, &mut pending);
            }
        }
    }

    fn accept(&self, listener: &UnixListener, pending: &mut Vec<Pending>) {
        for _ in 0..ACCEPT_BATCH {
            let stream = match listener.accept() {
                Ok((stream, _)) => stream,
                // No descriptor is left: close the oldest connection for one.
                Err(e) if e.raw_os_error().is_some_and(|n| n == 23 || n == 24) && !pending.is_empty() => {
                    let gone = pending.remove(0);
                    refuse(&gone.stream, &busy("the daemon has no descriptors left for idle connections"));
                    return;
                }
                Err(_) => return,
            };
            let Ok(peer) = host::peer_cred(&stream) else { continue };
            if self.users.as_ref().is_some_and(|users| !users.contains(&peer.uid)) {
                let e = Error::new(ErrorKind::Denied, "permission denied: this daemon belongs to another user");
                refuse(&stream, &e);
                continue;
            }
            if stream.set_nonblocking(true).is_err() {
                continue;
            }
            let (since, got) = (Instant::now(), SecretBytes::default());
            pending.push(Pending { stream, peer, since, got, fds: Vec::new(), lost: false });
            let list: Vec<(u32, Instant)> = pending.iter().map(|p| (p.peer.uid, p.since)).collect();
            if let Some(at) = victim(&list, peer.uid, &self.limits) {
                let gone = pending.remove(at);
                let e = busy("the daemon has too many idle connections: this one waited longest");
                refuse(&gone.stream, &e);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_user_with_most_gives_way() {
        let limits = Limits { places: 4, places_per_user: 3, ..Limits::PUBLIC };
        let t = Instant::now();
        let list = |uids: &[u32]| -> Vec<(u32, Instant)> {
            uids.iter().enumerate().map(|(n, u)| (*u, t + Duration::from_secs(n as u64))).collect()
        };
        for (uids, newest, gone) in [
            (&[1, 1, 1][..], 1, None),
            (&[2, 1, 1, 1, 1], 1, Some(1)),
            (&[1, 2, 2, 2, 3], 3, Some(1)),
            // Of users with equally many connections the one with the higher uid.
            (&[2, 2, 1, 1, 3], 3, Some(0)),
        ] {
            assert_eq!(victim(&list(uids), newest, &limits), gone, "{uids:?}");
        }
    }
}
