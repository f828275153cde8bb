//! Descriptors that are passed over Unix sockets (`SCM_RIGHTS`), and streams that came so.
//!
//! Who sends a descriptor may be hostile: it may send none, many, or something else than expected,
//! and it shares the flags of what it sent. So [`receive_with`] takes the few that it has room for
//! and says if there were more (the kernel closes those), a [`PassedStream`] is a stream socket of
//! the Unix family and nothing else, and its calls never rely on whether the descriptor blocks:
//! each says for itself that it does not (`MSG_DONTWAIT`), and waits by `poll`.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::cmsg_space;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketType, recv, recvmsg, send, sendmsg, sockopt,
};

use crate::passed_file::{PassedFile, now};

/// Descriptors that are passed at once, at most.
pub const PASSED_MAX: usize = 2;

/// Sends `bytes` (at least one) with up to [`PASSED_MAX`] descriptors beside them; returns how many
/// bytes were taken.
pub fn send_with(socket: BorrowedFd<'_>, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(PASSED_MAX))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    assert!(control.push(SendAncillaryMessage::ScmRights(fds)), "there is room for two");
    loop {
        match sendmsg(socket, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL) {
            Err(Errno::INTR) => {}
            r => return Ok(r?),
        }
    }
}

/// What came with some bytes.
#[derive(Debug)]
pub struct Received {
    /// The number of bytes; 0 at the end.
    pub bytes: usize,
    /// The descriptors beside them.
    pub fds: Vec<OwnedFd>,
    /// There were more, which are closed: too many, or this process may have no more.
    pub lost: bool,
}

/// Receives bytes, and the descriptors beside them.
pub fn receive_with(socket: BorrowedFd<'_>, buf: &mut [u8]) -> io::Result<Received> {
    let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(PASSED_MAX))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let got = recvmsg(socket, &mut [IoSliceMut::new(buf)], &mut control, RecvFlags::CMSG_CLOEXEC)?;
    let mut fds = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(more) = message {
            fds.extend(more);
        }
    }
    Ok(Received { bytes: got.bytes, fds, lost: got.flags.contains(ReturnFlags::CTRUNC) })
}

/// An end of a stream that another process made and passed, perhaps with the file that the bytes
/// come from or go to instead: then the socket only tells whether that process is there.
#[derive(Debug)]
pub struct PassedStream {
    socket: OwnedFd,
    file: Option<PassedFile>,
}

impl PassedStream {
    /// Takes a stream socket of the Unix family.
    ///
    /// # Errors
    /// It is something else. The descriptor is closed.
    pub fn new(fd: OwnedFd) -> io::Result<PassedStream> {
        let wrong = || io::Error::new(io::ErrorKind::InvalidInput, "it is not a stream socket");
        let family = sockopt::socket_domain(&fd).map_err(|_| wrong())?;
        let kind = sockopt::socket_type(&fd).map_err(|_| wrong())?;
        if family == AddressFamily::UNIX && kind == SocketType::STREAM {
            Ok(PassedStream { socket: fd, file: None })
        } else {
            Err(wrong())
        }
    }

    /// The same with a file: its bytes are what is read, or it gets what is written.
    pub fn with_file(self, file: PassedFile) -> PassedStream {
        PassedStream { file: Some(file), ..self }
    }

    /// Writes some of `bytes`, and returns how many; waits as long as the other end takes none.
    ///
    /// # Errors
    /// `BrokenPipe` if the other end is closed; as of writing the file.
    pub fn write(&self, bytes: &[u8]) -> io::Result<usize> {
        loop {
            let sent = match &self.file {
                None => now(|| send(&self.socket, bytes, SendFlags::DONTWAIT | SendFlags::NOSIGNAL))?,
                Some(_) if self.is_closed() => return Err(io::ErrorKind::BrokenPipe.into()),
                Some(file) => file.write(bytes)?,
            };
            match sent {
                Some(n) => return Ok(n),
                None => drop(self.poll(PollFlags::OUT, None)?),
            }
        }
    }

    /// Fills `buf` (not empty) with the next bytes, from its beginning, and returns how many; waits
    /// at most `span`: `None` if nothing came. 0: the other end is closed, or that is the end of
    /// the file.
    ///
    /// # Errors
    /// As of reading the file.
    pub fn read_within(&self, buf: &mut [u8], span: Duration) -> io::Result<Option<usize>> {
        assert!(!buf.is_empty(), "there is room");
        match self.read(buf)? {
            None if self.poll(PollFlags::IN, Some(span))? => self.read(buf),
            got => Ok(got),
        }
    }

    /// Whether a file takes its place.
    pub fn has_file(&self) -> bool {
        self.file.is_some()
    }

    /// Whether the other end is closed.
    pub fn is_closed(&self) -> bool {
        let mut list = [PollFd::new(&self.socket, PollFlags::empty())];
        poll(&mut list, Some(&Timespec::default())).is_ok() && !list[0].revents().is_empty()
    }

    /// As [`PassedStream::read_within`], without waiting.
    fn read(&self, buf: &mut [u8]) -> io::Result<Option<usize>> {
        match &self.file {
            None => now(|| recv(&self.socket, &mut *buf, RecvFlags::DONTWAIT).map(|(n, _)| n)),
            Some(_) if self.is_closed() => Ok(Some(0)),
            Some(file) => file.read(buf),
        }
    }

    /// Waits until the file, or without one the socket, is ready, or the other end is closed; false
    /// if that takes longer than `span`.
    fn poll(&self, events: PollFlags, span: Option<Duration>) -> io::Result<bool> {
        let span = span.and_then(|s| Timespec::try_from(s).ok());
        let ready = match &self.file {
            None => poll(&mut [PollFd::new(&self.socket, events)], span.as_ref()),
            Some(file) => {
                let mut list = [PollFd::new(file.file(), events), PollFd::new(&self.socket, PollFlags::empty())];
                poll(&mut list, span.as_ref())
            }
        };
        match ready {
            Ok(n) => Ok(n > 0),
            Err(Errno::INTR) => Ok(false),
            Err(e) => Err(e.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::fd::AsFd;
    use std::os::unix::net::{UnixDatagram, UnixStream};

    use super::*;
    use crate::passed_file::{Access, passable};

    fn pair() -> (UnixStream, UnixStream) {
        UnixStream::pair().expect("a pair")
    }

    #[test]
    fn descriptors_travel_over_sockets() {
        let (a, b) = pair();
        let mut buf = [0; 8];
        (&a).write_all(b"x").expect("written");
        let got = receive_with(b.as_fd(), &mut buf).expect("received");
        assert!(got.bytes == 1 && got.fds.is_empty() && !got.lost);
        let (c, d) = pair();
        assert_eq!(send_with(a.as_fd(), b"yz", &[c.as_fd()]).expect("sent"), 2);
        drop(c);
        let mut got = receive_with(b.as_fd(), &mut buf).expect("received");
        assert!(got.bytes == 2 && got.fds.len() == 1 && !got.lost);
        let end = PassedStream::new(got.fds.remove(0)).expect("a stream");
        assert!(!end.is_closed());
        assert_eq!(end.write(b"hello").expect("written"), 5);
        (&d).read_exact(&mut buf[..5]).expect("read");
        (&d).write_all(b"you").expect("written");
        let mut more = [0; 8];
        assert_eq!(end.read_within(&mut more, Duration::from_secs(60)).expect("read"), Some(3));
        assert_eq!(end.read_within(&mut more, Duration::ZERO).expect("nothing"), None);
        (&d).write_all(b"me").expect("written");
        assert_eq!(end.read_within(&mut more, Duration::from_secs(60)).expect("read"), Some(2));
        assert_eq!(&more[..3], b"meu");
        drop(d);
        assert!(end.is_closed());
        assert_eq!(end.read_within(&mut more, Duration::from_secs(60)).expect("the end"), Some(0));
        assert_eq!(end.write(b"x").expect_err("closed").kind(), io::ErrorKind::BrokenPipe);
        drop(a);
        assert_eq!(receive_with(b.as_fd(), &mut buf).expect("the end").bytes, 0);
    }

    #[test]
    fn those_without_room_are_closed() {
        let (a, b) = pair();
        let all: Vec<(UnixStream, UnixStream)> = (0..5).map(|_| pair()).collect();
        let fds: Vec<BorrowedFd<'_>> = all.iter().map(|(c, _)| c.as_fd()).collect();
        let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(5))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        assert!(control.push(SendAncillaryMessage::ScmRights(&fds)));
        sendmsg(&a, &[IoSlice::new(b"x")], &mut control, SendFlags::empty()).expect("sent");
        let got = receive_with(b.as_fd(), &mut [0; 8]).expect("received");
        assert!(got.lost && got.fds.len() < all.len(), "{got:?}");
        drop(got);
        for (c, mut d) in all {
            drop(c);
            assert_eq!(d.read(&mut [0; 1]).expect("no other end is left"), 0);
        }
    }

    #[test]
    fn only_stream_sockets_are_taken() {
        let file = std::fs::File::open("/dev/null").expect("it opens");
        assert!(PassedStream::new(file.into()).is_err());
        let (a, _b) = UnixDatagram::pair().expect("a pair");
        assert!(PassedStream::new(a.into()).is_err());
        let (reader, _writer) = std::io::pipe().expect("a pipe");
        assert!(PassedStream::new(reader.into()).is_err());
    }

    /// Bytes go to the file and come from it; the socket ends what waits for them.
    #[test]
    fn a_file_beside_a_stream_takes_its_place() {
        let with = |fd: BorrowedFd<'_>, access| {
            let (theirs, d) = pair();
            let file = PassedFile::new(passable(fd, access).expect("passed"), access).expect("taken");
            (PassedStream::new(theirs.into()).expect("a stream").with_file(file), d)
        };
        let (reader, writer) = io::pipe().expect("a pipe");
        let (to, d) = with(writer.as_fd(), Access::Write);
        let (from, e) = with(reader.as_fd(), Access::Read);
        assert_eq!(to.write(b"hello").expect("written"), 5);
        (&e).write_all(b"not this").expect("written");
        let mut got = [0; 16];
        assert_eq!(from.read_within(&mut got, Duration::from_secs(60)).expect("read"), Some(5));
        assert_eq!(&got[..6], b"hello\0");
        assert_eq!(from.read_within(&mut got, Duration::ZERO).expect("nothing"), None);
        drop(e);
        assert_eq!(from.read_within(&mut got, Duration::from_secs(60)).expect("the end"), Some(0));
        // A full pipe: the write waits until the other end of the socket is closed.
        let full = std::thread::spawn(move || {
            loop {
                if let Err(e) = to.write(&[7; 4096]) {
                    break e.kind();
                }
            }
        });
        drop(d);
        assert_eq!(full.join().expect("it ends"), io::ErrorKind::BrokenPipe);
        // A pipe that is not read any more.
        drop(from);
        let (to, _d) = with(writer.as_fd(), Access::Write);
        drop(reader);
        assert_eq!(to.write(b"x").expect_err("closed").kind(), io::ErrorKind::BrokenPipe);
        assert!(!to.is_closed());
    }

    /// The other end may make the descriptor that it passed block or not, at any moment.
    #[test]
    fn flags_that_the_sender_shares_do_not_matter() {
        for nonblocking in [false, true] {
            let (theirs, mut d) = pair();
            theirs.set_nonblocking(nonblocking).expect("set");
            let end = PassedStream::new(theirs.into()).expect("a stream");
            let writer = std::thread::spawn(move || {
                let all = vec![7; 1 << 20];
                let mut done = 0;
                while done < all.len() {
                    done += end.write(&all[done..]).expect("written");
                }
            });
            let mut all = Vec::new();
            d.read_to_end(&mut all).expect("read");
            writer.join().expect("it ends");
            assert_eq!(all.len(), 1 << 20);
        }
    }
}
