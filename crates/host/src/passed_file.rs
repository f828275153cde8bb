//! Files and pipes that another process passed, to read or write in its place.
//!
//! A command whose bytes come from a file or a pipe, or go to one, may give that to the daemon
//! beside the request, so that no byte goes through the command's memory. What is taken is
//! a regular file, `/dev/null`, and a pipe that does not block (`O_NONBLOCK`); of these only a
//! regular file can make a call wait, for its file system.
//!
//! The flags of a pipe belong to all that share its description, so a command may not change those
//! of its standard input: [`passable`] opens the pipe anew. Who passed a pipe can make it block
//! later, and a thread wait in it: a daemon takes files only from its own user.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::fs::{FileType, Mode, OFlags, fcntl_getfl, fstat, major, minor, open};
use rustix::io::Errno;

/// The number of `/dev/null` (Linux `Documentation/admin-guide/devices.txt`).
const NULL_DEVICE: (u32, u32) = (1, 3);

/// How a file is used.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Access {
    /// Its bytes are read.
    Read,
    /// Bytes are written to it.
    Write,
}

impl Access {
    fn flag(self) -> OFlags {
        match self {
            Access::Read => OFlags::RDONLY,
            Access::Write => OFlags::WRONLY,
        }
    }

    /// Whether a file with these flags can be used so.
    fn fits(self, flags: OFlags) -> bool {
        let mode = flags & OFlags::RWMODE;
        mode == OFlags::RDWR || mode == self.flag()
    }
}

/// The kinds that are taken.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// Its calls wait for its file system alone.
    File,
    Pipe,
}

fn kind_of(fd: BorrowedFd<'_>) -> Option<Kind> {
    let stat = fstat(fd).ok()?;
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => Some(Kind::File),
        FileType::CharacterDevice if (major(stat.st_rdev), minor(stat.st_rdev)) == NULL_DEVICE => Some(Kind::File),
        FileType::Fifo => Some(Kind::Pipe),
        _ => None,
    }
}

/// The same file or pipe as `fd`, to be passed; `None` if it is something else, or cannot be opened
/// anew.
pub fn passable(fd: BorrowedFd<'_>, access: Access) -> Option<OwnedFd> {
    if !access.fits(fcntl_getfl(fd).ok()?) {
        return None;
    }
    match kind_of(fd)? {
        Kind::File => fd.try_clone_to_owned().ok(),
        Kind::Pipe => {
            let flags = access.flag() | OFlags::NONBLOCK | OFlags::CLOEXEC;
            open(format!("/proc/self/fd/{}", fd.as_raw_fd()), flags, Mode::empty()).ok()
        }
    }
}

/// A file or pipe that was passed.
#[derive(Debug)]
pub struct PassedFile(File);

impl PassedFile {
    /// Takes what [`passable`] made.
    ///
    /// # Errors
    /// It is something else. The descriptor is closed.
    pub fn new(fd: OwnedFd, access: Access) -> io::Result<PassedFile> {
        let wrong = || io::Error::new(io::ErrorKind::InvalidInput, "it is no file or pipe that can be used so");
        let file = File::from(fd);
        let flags = fcntl_getfl(&file)?;
        let waits = match kind_of(file.as_fd()) {
            None => true,
            Some(Kind::File) => false,
            Some(Kind::Pipe) => !flags.contains(OFlags::NONBLOCK),
        };
        if waits || !access.fits(flags) { Err(wrong()) } else { Ok(PassedFile(file)) }
    }

    /// What to poll.
    pub(crate) fn file(&self) -> &File {
        &self.0
    }

    /// Fills `buf` (not empty) with the next bytes, from its beginning, and returns how many;
    /// `None` if there are none now, 0 at the end.
    pub(crate) fn read(&self, buf: &mut [u8]) -> io::Result<Option<usize>> {
        now(|| rustix::io::read(&self.0, &mut *buf))
    }

    /// Writes some of `bytes`, and returns how many; `None` if none can be written now.
    pub(crate) fn write(&self, bytes: &[u8]) -> io::Result<Option<usize>> {
        now(|| rustix::io::write(&self.0, bytes))
    }
}

/// The result of a call that does not wait.
pub(crate) fn now(mut call: impl FnMut() -> rustix::io::Result<usize>) -> io::Result<Option<usize>> {
    loop {
        match call() {
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => return Ok(None),
            r => return Ok(Some(r?)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_pipes_and_the_null_device_are_passed_and_nothing_else() {
        let (reader, writer) = io::pipe().expect("a pipe");
        let null = File::options().read(true).write(true).open("/dev/null").expect("it opens");
        let (zero, folder) = (File::open("/dev/zero").expect("it opens"), File::open("/").expect("it opens"));
        let (socket, _other) = std::os::unix::net::UnixStream::pair().expect("a pair");
        let program = File::open("/proc/self/exe").expect("it opens");
        for (fd, access, fits) in [
            (reader.as_fd(), Access::Read, true),
            (reader.as_fd(), Access::Write, false),
            (writer.as_fd(), Access::Write, true),
            (writer.as_fd(), Access::Read, false),
            (null.as_fd(), Access::Read, true),
            (null.as_fd(), Access::Write, true),
            (program.as_fd(), Access::Read, true),
            (program.as_fd(), Access::Write, false),
            (zero.as_fd(), Access::Read, false),
            (folder.as_fd(), Access::Read, false),
            (socket.as_fd(), Access::Read, false),
        ] {
            let passed = passable(fd, access);
            assert_eq!(passed.is_some(), fits, "{fd:?} {access:?}");
            if let Some(passed) = passed {
                PassedFile::new(passed, access).expect("taken");
            } else {
                PassedFile::new(fd.try_clone_to_owned().expect("a copy"), access).expect_err("refused");
            }
        }
        // The pipe as it is waits, for all that share it.
        PassedFile::new(reader.into(), Access::Read).expect_err("it blocks");
    }

    #[test]
    fn a_pipe_that_is_passed_does_not_wait_and_the_commands_still_does() {
        let (reader, writer) = io::pipe().expect("a pipe");
        let out = PassedFile::new(passable(writer.as_fd(), Access::Write).expect("passed"), Access::Write);
        let from = PassedFile::new(passable(reader.as_fd(), Access::Read).expect("passed"), Access::Read);
        let (out, from) = (out.expect("taken"), from.expect("taken"));
        let mut got = [0; 8];
        assert_eq!(from.read(&mut got).expect("nothing yet"), None);
        let mut sent = 0;
        while let Some(n) = out.write(&[7; 4096]).expect("written") {
            sent += n;
        }
        assert!(sent >= 4096, "{sent}");
        assert_eq!(from.read(&mut got).expect("read"), Some(8));
        assert_eq!(got, [7; 8]);
        assert!(!fcntl_getfl(&reader).expect("its flags").contains(OFlags::NONBLOCK));
        // The end comes when both writers are closed.
        drop((writer, out));
        let (mut rest, mut have) = (vec![0; sent], 0);
        while let n @ 1.. = from.read(&mut rest[have..]).expect("read").expect("no writer is left") {
            have += n;
        }
        assert_eq!(have, sent - 8);
    }
}
