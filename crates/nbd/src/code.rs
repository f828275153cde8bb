//! The errors that a reply can carry, and which of them stands for which kind of the engine's.

use base::ErrorKind;

/// An error of a reply (NBD protocol document, section "Error values"): the document allows these
/// numbers and no others, whatever the system of the server calls its own.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum Code {
    /// `NBD_EPERM`: the export is read-only, or the client may not do this.
    Denied = 1,
    /// `NBD_EIO`: a device failed, or what it holds is damaged.
    Io = 5,
    /// `NBD_ENOMEM`: there is no memory for this.
    NoMemory = 12,
    /// `NBD_EINVAL`: the request makes no sense.
    Invalid = 22,
    /// `NBD_ENOSPC`: no space is left, or the write is beyond the end.
    NoSpace = 28,
    /// `NBD_EOVERFLOW`: the length is more than is served in one request; shorter ones may do.
    TooLong = 75,
    /// `NBD_ENOTSUP`: zeros cannot be written faster than data.
    Unsupported = 95,
    /// `NBD_ESHUTDOWN`: the server is about to end; the client must disconnect.
    Shutdown = 108,
}

impl Code {
    /// The number on the wire.
    pub fn number(self) -> u32 {
        self as u32
    }
}

impl From<ErrorKind> for Code {
    /// The code for a failed operation of the engine. A quota is no space (the document says so of
    /// `EDQUOT` and `EFBIG`). What the engine does not support is invalid here, since
    /// `NBD_ENOTSUP` has one meaning only.
    fn from(kind: ErrorKind) -> Code {
        match kind {
            ErrorKind::NoSpace | ErrorKind::Quota | ErrorKind::TooBig => Code::NoSpace,
            ErrorKind::ReadOnly | ErrorKind::Denied => Code::Denied,
            ErrorKind::Invalid | ErrorKind::Range | ErrorKind::Unsupported => Code::Invalid,
            ErrorKind::Interrupted => Code::Shutdown,
            _ => Code::Io,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_those_of_the_document() {
        let table = [
            (Code::Denied, 1),
            (Code::Io, 5),
            (Code::NoMemory, 12),
            (Code::Invalid, 22),
            (Code::NoSpace, 28),
            (Code::TooLong, 75),
            (Code::Unsupported, 95),
            (Code::Shutdown, 108),
        ];
        for (code, number) in table {
            assert_eq!(code.number(), number, "{code:?}");
        }
    }

    #[test]
    fn kinds_have_their_codes() {
        let table = [
            (ErrorKind::NoSpace, Code::NoSpace),
            (ErrorKind::Quota, Code::NoSpace),
            (ErrorKind::TooBig, Code::NoSpace),
            (ErrorKind::ReadOnly, Code::Denied),
            (ErrorKind::Invalid, Code::Invalid),
            (ErrorKind::Unsupported, Code::Invalid),
            (ErrorKind::Checksum, Code::Io),
            (ErrorKind::Suspended, Code::Io),
            (ErrorKind::Busy, Code::Io),
            (ErrorKind::Interrupted, Code::Shutdown),
        ];
        for (kind, code) in table {
            assert_eq!(Code::from(kind), code, "{kind:?}");
        }
    }
}
