//! Error numbers: the one place that maps the engine's error kinds to errno values.

use base::{Error, ErrorKind};

/// An error number of Linux, positive.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Errno(pub i32);

/// The operation is not supported; for most requests the kernel never sends it again.
pub const NO_SYS: Errno = Errno(libc::ENOSYS);
/// The request makes no sense.
pub const INVALID: Errno = Errno(libc::EINVAL);
/// The name or object is not there.
pub const NO_ENTRY: Errno = Errno(libc::ENOENT);
/// The file may not be changed by any user.
pub const DENIED: Errno = Errno(libc::EPERM);
/// There is no such extended attribute.
pub const NO_DATA: Errno = Errno(libc::ENODATA);
/// This cannot be done here.
pub const NOT_SUPPORTED: Errno = Errno(libc::EOPNOTSUPP);
/// The two files are on different file systems.
pub const OTHER_DEVICE: Errno = Errno(libc::EXDEV);
/// The file is not open for this.
pub const BAD_HANDLE: Errno = Errno(libc::EBADF);
/// No such control operation.
pub const NOT_TTY: Errno = Errno(libc::ENOTTY);
/// The caller's buffer is too small.
pub const RANGE: Errno = Errno(libc::ERANGE);
/// Something failed below.
pub const IO: Errno = Errno(libc::EIO);
/// What a node named has gone.
pub const STALE: Errno = Errno(libc::ESTALE);

/// The error for a stale node through an open file: a path would be looked up anew.
pub(crate) fn through_handle(e: Errno) -> Errno {
    if e == STALE { IO } else { e }
}

/// The error number for a kind of error.
pub fn of_kind(kind: ErrorKind) -> Errno {
    Errno(match kind {
        ErrorKind::NotFound => libc::ENOENT,
        ErrorKind::Exists => libc::EEXIST,
        ErrorKind::NoSpace => libc::ENOSPC,
        ErrorKind::Quota => libc::EDQUOT,
        ErrorKind::ReadOnly => libc::EROFS,
        // What is being closed does not come back; an interrupted call would be repeated for ever.
        ErrorKind::Interrupted => libc::EIO,
        ErrorKind::Corrupt | ErrorKind::Checksum | ErrorKind::Forged | ErrorKind::Io | ErrorKind::Suspended => {
            libc::EIO
        }
        ErrorKind::Unsupported => libc::EOPNOTSUPP,
        ErrorKind::Invalid => libc::EINVAL,
        ErrorKind::NotDir => libc::ENOTDIR,
        ErrorKind::IsDir => libc::EISDIR,
        ErrorKind::NotEmpty => libc::ENOTEMPTY,
        ErrorKind::NameTooLong => libc::ENAMETOOLONG,
        ErrorKind::TooBig => libc::EFBIG,
        ErrorKind::Busy => libc::EBUSY,
        ErrorKind::Denied => libc::EPERM,
        ErrorKind::CrossDevice => libc::EXDEV,
        ErrorKind::TooManyLinks => libc::EMLINK,
        ErrorKind::Restart => libc::EAGAIN,
        ErrorKind::NoAttr => libc::ENODATA,
        ErrorKind::Range => libc::ERANGE,
        ErrorKind::Differs => libc::EILSEQ,
        // Kinds that a later version of the engine may add.
        _ => libc::EIO,
    })
}

impl From<ErrorKind> for Errno {
    fn from(kind: ErrorKind) -> Errno {
        of_kind(kind)
    }
}

impl From<Error> for Errno {
    fn from(e: Error) -> Errno {
        of_kind(e.kind())
    }
}
