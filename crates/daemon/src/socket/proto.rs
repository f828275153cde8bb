//! The messages between commands and the daemon.
//!
//! A connection carries one request and its answer. A message is a length (4 bytes, little endian)
//! and that many bytes. The client sends one [`Call`](admin::request::Call); the daemon sends any
//! number of [`Reply::Progress`] and then [`Reply::Done`] or [`Reply::Failed`], all JSON. `Done`
//! contains the [`Reply`](admin::request::Request::Reply) of the request. Paths in requests are
//! absolute: the daemon has its own working folder.
//!
//! A request with a stream ([`admin::request::stream`]) has the client's end of it as a descriptor
//! beside its first byte ([`Beside`]), and perhaps the file that takes its place. What goes over it
//! is the request's matter, and what the bytes amount to is said by the answer, here.
//!
//! Both ends bound what they read: a request may have [`REQUEST_MAX`] bytes, a reply [`REPLY_MAX`].

use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;

use base::{Error, ErrorKind};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// Longest request in bytes.
pub const REQUEST_MAX: usize = 4 << 20;
/// Longest reply in bytes.
pub const REPLY_MAX: usize = 256 << 20;

/// A message of the daemon.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub enum Reply {
    /// The request is under way.
    Progress {
        /// The name of the count.
        what: String,
        /// The steps done.
        done: u64,
        /// The total; 0 if not known.
        total: u64,
    },
    /// It is done.
    Done(serde_json::Value),
    /// It failed.
    Failed {
        /// The kind of error, by [`kind_name`].
        kind: String,
        /// The sentence.
        message: String,
    },
}

/// Kinds of errors that cross the socket with a name; the others become `Io`.
const KINDS: &[(&str, ErrorKind)] = &[
    ("not_found", ErrorKind::NotFound),
    ("exists", ErrorKind::Exists),
    ("no_space", ErrorKind::NoSpace),
    ("quota", ErrorKind::Quota),
    ("read_only", ErrorKind::ReadOnly),
    ("corrupt", ErrorKind::Corrupt),
    ("checksum", ErrorKind::Checksum),
    ("forged", ErrorKind::Forged),
    ("io", ErrorKind::Io),
    ("unsupported", ErrorKind::Unsupported),
    ("invalid", ErrorKind::Invalid),
    ("not_empty", ErrorKind::NotEmpty),
    ("name_too_long", ErrorKind::NameTooLong),
    ("busy", ErrorKind::Busy),
    ("denied", ErrorKind::Denied),
    ("range", ErrorKind::Range),
    ("suspended", ErrorKind::Suspended),
    ("interrupted", ErrorKind::Interrupted),
];

/// The name of a kind in [`Reply::Failed`].
pub fn kind_name(kind: ErrorKind) -> &'static str {
    KINDS.iter().find(|(_, k)| *k == kind).map_or("io", |(n, _)| n)
}

/// The kind with that name.
pub fn kind_named(name: &str) -> ErrorKind {
    KINDS.iter().find(|(n, _)| *n == name).map_or(ErrorKind::Io, |(_, k)| *k)
}

impl Reply {
    /// The reply for `error`.
    pub fn failed(error: &Error) -> Reply {
        Reply::Failed { kind: kind_name(error.kind()).to_string(), message: error.to_string() }
    }
}

/// A connection whose first write carries descriptors.
pub struct Beside<'a> {
    /// The connection.
    pub socket: &'a UnixStream,
    /// The descriptors, until they are sent.
    pub fds: &'a [BorrowedFd<'a>],
}

impl Write for Beside<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.fds.is_empty() || bytes.is_empty() {
            return (&mut &*self.socket).write(bytes);
        }
        let sent = host::send_with(self.socket.as_fd(), bytes, self.fds)?;
        self.fds = &[];
        Ok(sent)
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn bad_data(why: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why)
}

/// Writes one message.
pub fn send<T: Serialize>(to: &mut impl Write, message: &T) -> io::Result<()> {
    let body = serde_json::to_vec(message).map_err(|e| bad_data(e.to_string()))?;
    let len = u32::try_from(body.len()).map_err(|_| bad_data("the message is too long".to_string()))?;
    let mut bytes = len.to_le_bytes().to_vec();
    bytes.extend_from_slice(&body);
    to.write_all(&bytes)?;
    to.flush()
}

/// Reads one message of at most `max` bytes; none if the other end closed before its first byte.
pub fn receive<T: DeserializeOwned>(from: &mut impl Read, max: usize) -> io::Result<Option<T>> {
    let mut len = [0; 4];
    match from.read(&mut len)? {
        0 => return Ok(None),
        n => from.read_exact(&mut len[n..])?,
    }
    let len = u32::from_le_bytes(len) as usize;
    if len > max {
        return Err(bad_data(format!("a message of {len} bytes is longer than {max}")));
    }
    // Memory grows with the bytes received, not with the claimed length.
    let mut body = Vec::new();
    from.take(len as u64).read_to_end(&mut body)?;
    if body.len() < len {
        return Err(io::Error::from(io::ErrorKind::UnexpectedEof));
    }
    serde_json::from_slice(&body).map(Some).map_err(|e| bad_data(format!("a message that makes no sense: {e}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_come_back() {
        let replies = [
            Reply::Progress { what: "mounting".into(), done: 1, total: 2 },
            Reply::Done(serde_json::Value::Null),
            Reply::failed(&Error::not_found("no such pool")),
        ];
        let mut wire = Vec::new();
        for r in &replies {
            send(&mut wire, r).unwrap();
        }
        let mut from = wire.as_slice();
        for r in &replies {
            assert_eq!(receive::<Reply>(&mut from, REPLY_MAX).unwrap().as_ref(), Some(r));
        }
        assert!(receive::<Reply>(&mut from, REPLY_MAX).unwrap().is_none());
    }

    #[test]
    fn hostile_messages_are_errors() {
        let huge = [0xff; 16];
        assert!(receive::<Reply>(&mut huge.as_slice(), REPLY_MAX).is_err());
        let cut = [10, 0, 0, 0, b'{'];
        assert!(receive::<Reply>(&mut cut.as_slice(), REPLY_MAX).is_err());
        let short = [1, 0];
        assert!(receive::<Reply>(&mut short.as_slice(), REPLY_MAX).is_err());
        let nonsense = [2, 0, 0, 0, b'{', b'}'];
        assert!(receive::<Reply>(&mut nonsense.as_slice(), REPLY_MAX).is_err());
        let deep = {
            let mut v = 200_000u32.to_le_bytes().to_vec();
            v.extend(std::iter::repeat_n(b'[', 200_000));
            v
        };
        assert!(receive::<Reply>(&mut deep.as_slice(), REPLY_MAX).is_err());
    }

    #[test]
    fn kinds_have_names_of_their_own() {
        for (name, kind) in KINDS {
            assert_eq!(kind_named(name), *kind);
            assert_eq!(kind_name(*kind), *name);
        }
        assert_eq!(kind_named("nonsense"), ErrorKind::Io);
    }
}
