//! Unix stream sockets through the engine: the daemon's control socket and its clients.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use base::{Error, ErrorKind, Result};
use bdev::{Buf, Bytes, MAX_SEGMENTS};
use rt::Rt;

use crate::fdio::{Fd, FdIo, set_nonblocking};
use crate::open::os_error;

/// A listening socket; its file goes away when it is dropped.
pub struct UnixListener {
    io: FdIo,
    fd: Fd,
    path: PathBuf,
}

/// A connection. Reads and writes may run beside each other.
#[derive(Clone)]
pub struct UnixStream {
    io: FdIo,
    fd: Fd,
}

/// Credentials of the other end of a connection, as of when it was made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PeerCred {
    /// Its process.
    pub pid: i32,
    /// Its effective user.
    pub uid: u32,
    /// Its effective group.
    pub gid: u32,
}

impl PeerCred {
    /// Whether the peer is root or the user that this process runs as: those may control a daemon.
    pub fn is_owner(&self) -> bool {
        // SAFETY: no preconditions.
        self.uid == 0 || self.uid == unsafe { libc::geteuid() }
    }
}

impl UnixListener {
    /// Listens at `path`, for the owner only (mode 0600). A socket file without a listener is
    /// replaced; [`ErrorKind::Busy`] if there is one.
    pub fn bind(rt: &Rt, path: impl AsRef<Path>) -> Result<UnixListener> {
        let path = path.as_ref();
        let name = path.display().to_string();
        let io = FdIo::new(rt)?;
        let failed = |e: io::Error| os_error(&name, "cannot listen", &e);
        let listener = match std::os::unix::net::UnixListener::bind(path) {
            Err(e) if e.kind() == io::ErrorKind::AddrInUse => {
                if std::os::unix::net::UnixStream::connect(path).is_ok() {
                    return Err(Error::new(ErrorKind::Busy, format!("{name} is in use by another process")));
                }
                let socket = std::fs::symlink_metadata(path).map_err(failed)?;
                if !std::os::unix::fs::FileTypeExt::is_socket(&socket.file_type()) {
                    return Err(Error::new(ErrorKind::Exists, format!("{name} exists and is not a socket")));
                }
                std::fs::remove_file(path).map_err(failed)?;
                std::os::unix::net::UnixListener::bind(path)
            }
            r => r,
        };
        let listener = listener.map_err(failed)?;
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600)).map_err(failed)?;
        listener.set_nonblocking(true).map_err(failed)?;
        Ok(UnixListener { io, fd: Rc::new(OwnedFd::from(listener)), path: path.to_owned() })
    }

    /// Waits for a connection.
    pub async fn accept(&self) -> Result<UnixStream> {
        let fd =
            self.io.accept(&self.fd).await.map_err(|e| os_error(&self.path.display().to_string(), "accept", &e))?;
        Ok(UnixStream { io: self.io.clone(), fd: Rc::new(fd) })
    }
}

impl Drop for UnixListener {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

impl UnixStream {
    /// Connects to the socket at `path`; blocks the thread for as long as the listener's queue is
    /// full.
    pub fn connect(rt: &Rt, path: impl AsRef<Path>) -> Result<UnixStream> {
        let path = path.as_ref();
        let s = std::os::unix::net::UnixStream::connect(path)
            .map_err(|e| os_error(&path.display().to_string(), "cannot connect", &e))?;
        UnixStream::from_std(rt, s)
    }

    /// Takes over a connection.
    pub fn from_std(rt: &Rt, stream: std::os::unix::net::UnixStream) -> Result<UnixStream> {
        let fd = OwnedFd::from(stream);
        set_nonblocking(fd.as_fd(), true).map_err(|e| os_error("socket", "fcntl", &e))?;
        Ok(UnixStream { io: FdIo::new(rt)?, fd: Rc::new(fd) })
    }

    /// Two ends of one connection.
    pub fn pair(rt: &Rt) -> Result<(UnixStream, UnixStream)> {
        let (a, b) = std::os::unix::net::UnixStream::pair().map_err(|e| os_error("socket", "socketpair", &e))?;
        Ok((UnixStream::from_std(rt, a)?, UnixStream::from_std(rt, b)?))
    }

    /// Credentials of the other end.
    pub fn peer_cred(&self) -> Result<PeerCred> {
        let mut cred = libc::ucred { pid: 0, uid: 0, gid: 0 };
        let mut len = size_of::<libc::ucred>() as libc::socklen_t;
        // SAFETY: the kernel writes at most `len` bytes into `cred`.
        let r = unsafe {
            libc::getsockopt(
                self.fd.as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_PEERCRED,
                (&raw mut cred).cast(),
                &raw mut len,
            )
        };
        if r != 0 {
            return Err(os_error("socket", "SO_PEERCRED", &io::Error::last_os_error()));
        }
        Ok(PeerCred { pid: cred.pid, uid: cred.uid, gid: cred.gid })
    }

    /// Reads the bytes available, at most `buf`'s length: their number (0: the other end has
    /// closed), and the buffer.
    pub async fn read(&self, buf: Buf) -> (Result<usize>, Buf) {
        let d = self.io.readv_fd(&self.fd, buf, Vec::new()).await;
        (d.result.map_err(|e| os_error("socket", "read", &e)), d.header)
    }

    /// Reads exactly `len` bytes; None if the other end closed before the first. The caller bounds
    /// `len`.
    pub async fn read_exact(&self, len: usize) -> Result<Option<Vec<u8>>> {
        let mut out = Vec::new();
        let mut buf = Buf::for_overwrite(len.clamp(1, 64 << 10));
        while out.len() < len {
            buf.truncate(buf.len().min(len - out.len()));
            let (n, back) = self.read(buf).await;
            buf = back;
            match n? {
                0 if out.is_empty() => return Ok(None),
                0 => return Err(Error::new(ErrorKind::Io, "socket: the other end closed in the middle of a message")),
                n => out.extend_from_slice(&buf[..n]),
            }
        }
        Ok(Some(out))
    }

    /// Writes all of `data`.
    pub async fn write_all(&self, data: Bytes) -> Result<()> {
        self.write_all_vectored(vec![data]).await
    }

    /// Writes all of `data`, one after the other.
    pub async fn write_all_vectored(&self, mut data: Vec<Bytes>) -> Result<()> {
        data.retain(|b| !b.is_empty());
        while !data.is_empty() {
            let batch: Vec<Bytes> = data.iter().take(MAX_SEGMENTS).cloned().collect();
            let mut n = self.io.writev_fd(&self.fd, batch).await.map_err(|e| os_error("socket", "write", &e))?;
            if n == 0 {
                return Err(Error::new(ErrorKind::Io, "socket: the other end takes nothing"));
            }
            let whole = data.iter().take_while(|b| {
                let fits = n >= b.len();
                if fits {
                    n -= b.len();
                }
                fits
            });
            let whole = whole.count();
            data.drain(..whole);
            if n > 0 {
                data[0] = data[0].slice(n..);
            }
        }
        Ok(())
    }

    /// Signals the end of writing to the other end.
    pub fn shutdown_write(&self) -> Result<()> {
        // SAFETY: plain shutdown on a descriptor that we own.
        if unsafe { libc::shutdown(self.fd.as_raw_fd(), libc::SHUT_WR) } != 0 {
            return Err(os_error("socket", "shutdown", &io::Error::last_os_error()));
        }
        Ok(())
    }

    /// The descriptor, for [`FdIo`].
    pub fn fd(&self) -> &Fd {
        &self.fd
    }
}
