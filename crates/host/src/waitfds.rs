//! Waiting for several descriptors at once, for threads outside the engine.

use std::io;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

/// Waits until one of `fds` can be read or has been closed at its other end, at most `span`.
/// Returns for each whether it is so.
///
/// # Errors
/// The errors of `poll(2)`. An interruption by a signal counts as the end of the wait.
pub fn wait_readable(fds: &[BorrowedFd<'_>], span: Duration) -> io::Result<Vec<bool>> {
    let mut list: Vec<PollFd<'_>> = fds.iter().map(|fd| PollFd::from_borrowed_fd(*fd, PollFlags::IN)).collect();
    // A span beyond what the kernel counts has no end.
    match poll(&mut list, Timespec::try_from(span).ok().as_ref()) {
        Ok(_) => Ok(list.iter().map(|p| !p.revents().is_empty()).collect()),
        Err(Errno::INTR) => Ok(vec![false; fds.len()]),
        Err(e) => Err(e.into()),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::io::Write;
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn those_that_are_ready_are_named() {
        let (mut a, b) = UnixStream::pair().unwrap();
        let (c, d) = UnixStream::pair().unwrap();
        assert_eq!(wait_readable(&[b.as_fd(), d.as_fd()], Duration::ZERO).unwrap(), [false, false]);
        a.write_all(b"x").unwrap();
        assert_eq!(wait_readable(&[b.as_fd(), d.as_fd()], Duration::from_secs(9)).unwrap(), [true, false]);
        drop(c);
        assert_eq!(wait_readable(&[b.as_fd(), d.as_fd()], Duration::from_secs(9)).unwrap(), [true, true]);
    }
}
