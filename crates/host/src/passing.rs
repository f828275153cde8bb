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

use rustix::buffer::spare_capacity;
use rustix::cmsg_space;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketType, recv, recvmsg, send, sendmsg, sockopt,
};

/// Sends `bytes` (at least one) with a descriptor beside them; returns how many were taken.
pub fn send_with(socket: BorrowedFd<'_>, bytes: &[u8], fd: BorrowedFd<'_>) -> io::Result<usize> {
    let fds = [fd];
    let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    assert!(control.push(SendAncillaryMessage::ScmRights(&fds)), "there is room for one");
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
    let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(1))];
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

/// An end of a stream that another process made and passed.
#[derive(Debug)]
pub struct PassedStream(OwnedFd);

impl PassedStream {
    /// Takes a stream socket of the Unix family.
    ///
    /// # Errors
    /// It is something else. The descriptor is closed.
    pub fn new(fd: OwnedFd) -> io::Result<PassedStream> {
        let wrong = || io::Error::new(io::ErrorKind::InvalidInput, "it is not a stream socket");
        let family = sockopt::socket_domain(&fd).map_err(|_| wrong())?;
        let kind = sockopt::socket_type(&fd).map_err(|_| wrong())?;
        if family == AddressFamily::UNIX && kind == SocketType::STREAM { Ok(PassedStream(fd)) } else { Err(wrong()) }
    }

    /// Writes some of `bytes`, and returns how many; waits as long as the other end takes none.
    ///
    /// # Errors
    /// `BrokenPipe` if the other end is closed.
    pub fn write(&self, bytes: &[u8]) -> io::Result<usize> {
        self.retry(PollFlags::OUT, || send(&self.0, bytes, SendFlags::DONTWAIT | SendFlags::NOSIGNAL))
    }

    /// Reads some bytes, and returns how many; waits as long as there are none. 0: the other end is
    /// closed.
    pub fn read(&self, buf: &mut [u8]) -> io::Result<usize> {
        self.retry(PollFlags::IN, || recv(&self.0, &mut *buf, RecvFlags::DONTWAIT).map(|(n, _)| n))
    }

    /// As [`PassedStream::read`], but appends as much as there is room for (at least one byte), and
    /// waits at most `span`: `None` if nothing came.
    pub fn read_within(&self, buf: &mut Vec<u8>, span: Duration) -> io::Result<Option<usize>> {
        assert!(buf.len() < buf.capacity(), "there is room");
        if self.poll(PollFlags::IN, Some(span))?.is_empty() {
            return Ok(None);
        }
        loop {
            match recv(&self.0, spare_capacity(buf), RecvFlags::DONTWAIT) {
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Ok(None),
                r => return Ok(Some(r?.0)),
            }
        }
    }

    /// Whether the other end is closed.
    pub fn is_closed(&self) -> bool {
        self.poll(PollFlags::empty(), Some(Duration::ZERO)).is_ok_and(|f| f.intersects(PollFlags::HUP | PollFlags::ERR))
    }

    fn retry(&self, until: PollFlags, mut call: impl FnMut() -> rustix::io::Result<usize>) -> io::Result<usize> {
        loop {
            match call() {
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => drop(self.poll(until, None)?),
                r => return Ok(r?),
            }
        }
    }

    fn poll(&self, events: PollFlags, span: Option<Duration>) -> io::Result<PollFlags> {
        let mut list = [PollFd::new(&self.0, events)];
        let span = span.and_then(|s| Timespec::try_from(s).ok());
        match poll(&mut list, span.as_ref()) {
            Ok(_) => Ok(list[0].revents()),
            Err(Errno::INTR) => Ok(PollFlags::empty()),
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
        assert_eq!(send_with(a.as_fd(), b"yz", c.as_fd()).expect("sent"), 2);
        drop(c);
        let mut got = receive_with(b.as_fd(), &mut buf).expect("received");
        assert!(got.bytes == 2 && got.fds.len() == 1 && !got.lost);
        let end = PassedStream::new(got.fds.remove(0)).expect("a stream");
        assert!(!end.is_closed());
        assert_eq!(end.write(b"hello").expect("written"), 5);
        (&d).read_exact(&mut buf[..5]).expect("read");
        (&d).write_all(b"you").expect("written");
        assert_eq!(end.read(&mut buf).expect("read"), 3);
        let mut more = Vec::with_capacity(8);
        assert_eq!(end.read_within(&mut more, Duration::ZERO).expect("nothing"), None);
        (&d).write_all(b"me").expect("written");
        assert_eq!(end.read_within(&mut more, Duration::from_secs(60)).expect("read"), Some(2));
        assert_eq!(more, b"me");
        drop(d);
        assert!(end.is_closed());
        assert_eq!(end.read(&mut buf).expect("the end"), 0);
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
