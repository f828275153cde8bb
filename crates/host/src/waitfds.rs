//! Waiting for several descriptors at once, for threads outside the engine.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::time::Duration;

/// Waits until one of `fds` can be read or has been closed at its other end, at most `span`.
/// Returns for each whether it is so.
///
/// # Errors
/// The errors of `poll(2)`. An interruption by a signal counts as the end of the wait.
pub fn wait_readable(fds: &[BorrowedFd<'_>], span: Duration) -> io::Result<Vec<bool>> {
    let mut list: Vec<libc::pollfd> =
        fds.iter().map(|fd| libc::pollfd { fd: fd.as_raw_fd(), events: libc::POLLIN, revents: 0 }).collect();
    let ms = libc::c_int::try_from(span.as_millis()).unwrap_or(libc::c_int::MAX);
    // SAFETY: the array has the length that is given; the kernel writes `revents` only.
    let n = unsafe { libc::poll(list.as_mut_ptr(), list.len() as libc::nfds_t, ms) };
    if n < 0 {
        let e = io::Error::last_os_error();
        return if e.kind() == io::ErrorKind::Interrupted { Ok(vec![false; fds.len()]) } else { Err(e) };
    }
    Ok(list.iter().map(|p| p.revents != 0).collect())
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
