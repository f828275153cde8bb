//! The error kit: one error type for the engine, a kind to decide by and a sentence to print.

use std::borrow::Cow;
use std::fmt;

/// The class of an error, for callers that branch on it. Front ends map kinds to errno; the engine
/// never names errno.
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
    /// The dataset or pool is read-only.
    ReadOnly,
    /// Bytes on disk are not what the format allows.
    Corrupt,
    /// Every copy of a block failed its checksum.
    Checksum,
    /// The checksum of a block is right and its authentication code wrong: it was changed without
    /// its key.
    Forged,
    /// A device failed an operation.
    Io,
    /// The pool or call needs a feature that weir does not support.
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
    /// The link would cross file systems or projects.
    CrossDevice,
    /// Too many hard links.
    TooManyLinks,
    /// The transaction must be tried again in the next transaction group.
    Restart,
    /// The pool is suspended after an error that it could not work around.
    Suspended,
    /// The attribute asked for is not there.
    NoAttr,
    /// The caller's buffer is too small.
    Range,
    /// The operation was interrupted or its executor has stopped.
    Interrupted,
    /// Two things that were to be the same are not.
    Differs,
}

/// An error: its kind, and one sentence that names the object and the fault.
#[derive(Clone)]
pub struct Error(Box<Inner>);

#[derive(Clone)]
struct Inner {
    kind: ErrorKind,
    message: Cow<'static, str>,
}

/// The result type of the engine.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// An error of `kind` with `message`.
    pub fn new(kind: ErrorKind, message: impl Into<Cow<'static, str>>) -> Error {
        Error(Box::new(Inner { kind, message: message.into() }))
    }
    /// Shorthand for [`ErrorKind::Corrupt`].
    pub fn corrupt(message: impl Into<Cow<'static, str>>) -> Error {
        Error::new(ErrorKind::Corrupt, message)
    }
    /// Shorthand for [`ErrorKind::Invalid`].
    pub fn invalid(message: impl Into<Cow<'static, str>>) -> Error {
        Error::new(ErrorKind::Invalid, message)
    }
    /// Shorthand for [`ErrorKind::NotFound`].
    pub fn not_found(message: impl Into<Cow<'static, str>>) -> Error {
        Error::new(ErrorKind::NotFound, message)
    }
    /// Shorthand for [`ErrorKind::Unsupported`].
    pub fn unsupported(message: impl Into<Cow<'static, str>>) -> Error {
        Error::new(ErrorKind::Unsupported, message)
    }
    /// The kind to decide by.
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }
    /// The same error with `place: ` in front of its sentence.
    pub fn at(mut self, place: impl fmt::Display) -> Error {
        self.0.message = format!("{place}: {}", self.0.message).into();
        self
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.message)
    }
}
impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {}", self.0.kind, self.0.message)
    }
}
impl std::error::Error for Error {}
impl From<ErrorKind> for Error {
    fn from(kind: ErrorKind) -> Error {
        Error::new(kind, format!("{kind:?}"))
    }
}

/// Adds the place to an error on its way up.
pub trait ResultExt<T> {
    /// Puts `place: ` in front of the error's sentence.
    fn at<P: fmt::Display>(self, place: impl FnOnce() -> P) -> Result<T>;
}
impl<T, E: Into<Error>> ResultExt<T> for std::result::Result<T, E> {
    fn at<P: fmt::Display>(self, place: impl FnOnce() -> P) -> Result<T> {
        self.map_err(|e| e.into().at(place()))
    }
}
