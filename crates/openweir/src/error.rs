//! The one error type: a kind to branch on, a sentence, and the object that it is about.

use std::fmt;

/// The class of an error, for programs to branch on. More may come; a program treats unknown ones
/// as [`ErrorKind::Other`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The named thing does not exist.
    NotFound,
    /// The named thing exists already.
    Exists,
    /// The pool has no space left for this.
    NoSpace,
    /// A quota of the dataset, user, group or project is used up.
    Quota,
    /// The dataset, snapshot or pool is read-only.
    ReadOnly,
    /// Bytes on disk are not what the format allows.
    Corrupt,
    /// Every copy of a block failed its checksum.
    Checksum,
    /// A device failed an operation.
    Io,
    /// The pool or the call needs a feature that weir does not support.
    Unsupported,
    /// An argument is out of range or malformed.
    Invalid,
    /// A directory was needed.
    NotDir,
    /// A directory is not allowed here.
    IsDir,
    /// The directory still has entries.
    NotEmpty,
    /// A name is longer than the format allows.
    NameTooLong,
    /// A size is beyond what the format allows.
    TooBig,
    /// Something still uses the thing.
    Busy,
    /// Not permitted.
    Denied,
    /// A link or a rename would cross file systems or projects.
    CrossDevice,
    /// Too many hard links.
    TooManyLinks,
    /// The pool is suspended: its devices do not answer, and the pool waits for them.
    Suspended,
    /// The attribute asked for is not there.
    NoAttr,
    /// The object of the handle is closed: the pool was exported or the file system was given up.
    Closed,
    /// The file system was rolled back since the handle was opened: open the file again.
    Stale,
    /// An expectation of a [`crate::Batch`] was not met; nothing was changed.
    Conflict,
    /// The engine's thread has ended, by a panic or by a simulated power cut. Changes acknowledged
    /// as durable are on the devices; import them again.
    EngineGone,
    /// Anything else.
    Other,
}

impl From<base::ErrorKind> for ErrorKind {
    fn from(kind: base::ErrorKind) -> ErrorKind {
        use base::ErrorKind as B;
        match kind {
            B::NotFound => ErrorKind::NotFound,
            B::Exists => ErrorKind::Exists,
            B::NoSpace => ErrorKind::NoSpace,
            B::Quota => ErrorKind::Quota,
            B::ReadOnly => ErrorKind::ReadOnly,
            B::Corrupt => ErrorKind::Corrupt,
            B::Checksum | B::Forged => ErrorKind::Checksum,
            B::Io => ErrorKind::Io,
            B::Unsupported => ErrorKind::Unsupported,
            B::Invalid | B::Range => ErrorKind::Invalid,
            B::NotDir => ErrorKind::NotDir,
            B::IsDir => ErrorKind::IsDir,
            B::NotEmpty => ErrorKind::NotEmpty,
            B::NameTooLong => ErrorKind::NameTooLong,
            B::TooBig => ErrorKind::TooBig,
            B::Busy | B::Restart => ErrorKind::Busy,
            B::Denied => ErrorKind::Denied,
            B::CrossDevice => ErrorKind::CrossDevice,
            B::TooManyLinks => ErrorKind::TooManyLinks,
            B::Suspended => ErrorKind::Suspended,
            B::NoAttr => ErrorKind::NoAttr,
            B::Interrupted => ErrorKind::Closed,
            _ => ErrorKind::Other,
        }
    }
}

/// An error of this crate. Prints as `object: sentence`.
#[derive(Clone, PartialEq, Eq)]
pub struct Error(Box<Inner>);

#[derive(Clone, PartialEq, Eq)]
struct Inner {
    kind: ErrorKind,
    message: String,
    object: Option<String>,
}

/// The result type of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// An error of that kind with a sentence, without an object.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Error {
        Error(Box::new(Inner { kind, message: message.into(), object: None }))
    }
    /// The same error, about `object` (a dataset, a path, a device) unless it names one already.
    #[must_use]
    pub fn about(mut self, object: impl Into<String>) -> Error {
        if self.0.object.is_none() {
            self.0.object = Some(object.into());
        }
        self
    }
    /// The class of the error.
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }
    /// One sentence that describes the fault, without the object.
    pub fn message(&self) -> &str {
        &self.0.message
    }
    /// The object of the error: the name of a pool, dataset or snapshot, a path in a file system,
    /// or a device. None where the sentence needs none.
    pub fn object(&self) -> Option<&str> {
        self.0.object.as_deref()
    }
    pub(crate) fn invalid(message: impl Into<String>) -> Error {
        Error::new(ErrorKind::Invalid, message)
    }
}

impl From<base::Error> for Error {
    fn from(e: base::Error) -> Error {
        Error::new(e.kind().into(), e.to_string())
    }
}

/// For programs that use `std::io`: the nearest kind, with this error inside.
impl From<Error> for std::io::Error {
    fn from(e: Error) -> std::io::Error {
        use std::io::ErrorKind as Io;
        let kind = match e.kind() {
            ErrorKind::NotFound | ErrorKind::NoAttr => Io::NotFound,
            ErrorKind::Exists => Io::AlreadyExists,
            ErrorKind::NoSpace => Io::StorageFull,
            ErrorKind::Quota => Io::QuotaExceeded,
            ErrorKind::ReadOnly => Io::ReadOnlyFilesystem,
            ErrorKind::Corrupt | ErrorKind::Checksum => Io::InvalidData,
            ErrorKind::Unsupported => Io::Unsupported,
            ErrorKind::Invalid => Io::InvalidInput,
            ErrorKind::NotDir => Io::NotADirectory,
            ErrorKind::IsDir => Io::IsADirectory,
            ErrorKind::NotEmpty => Io::DirectoryNotEmpty,
            ErrorKind::NameTooLong => Io::InvalidFilename,
            ErrorKind::TooBig => Io::FileTooLarge,
            ErrorKind::Busy => Io::ResourceBusy,
            ErrorKind::Denied => Io::PermissionDenied,
            ErrorKind::CrossDevice => Io::CrossesDevices,
            ErrorKind::TooManyLinks => Io::TooManyLinks,
            ErrorKind::Stale => Io::StaleNetworkFileHandle,
            ErrorKind::Closed | ErrorKind::EngineGone => Io::BrokenPipe,
            _ => Io::Other,
        };
        std::io::Error::new(kind, e)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0.object {
            Some(object) if !self.0.message.contains(object.as_str()) => write!(f, "{object}: {}", self.0.message),
            _ => f.write_str(&self.0.message),
        }
    }
}
impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {self}", self.0.kind)
    }
}
impl std::error::Error for Error {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_says_what_it_is_about_once() {
        let e = Error::new(ErrorKind::NotFound, "there is no such file").about("a/b");
        assert_eq!((e.to_string().as_str(), e.object()), ("a/b: there is no such file", Some("a/b")));
        let e = e.about("tank");
        assert_eq!(e.object(), Some("a/b"));
        let e = Error::new(ErrorKind::Busy, "dataset 'tank' is in use").about("tank");
        assert_eq!(e.to_string(), "dataset 'tank' is in use");
        assert_eq!(std::io::Error::from(e).kind(), std::io::ErrorKind::ResourceBusy);
    }

    #[test]
    fn kinds_of_the_engine_keep_their_meaning() {
        let e = Error::from(base::Error::new(base::ErrorKind::Quota, "full"));
        assert_eq!((e.kind(), e.message()), (ErrorKind::Quota, "full"));
        assert_eq!(ErrorKind::from(base::ErrorKind::Interrupted), ErrorKind::Closed);
    }
}
