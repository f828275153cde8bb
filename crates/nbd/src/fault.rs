//! Faults: what a client did after which the connection must end, since its next bytes cannot be
//! told apart, or since the protocol has no answer for it.

use std::fmt;

use base::{Error, ErrorKind};

/// Why a connection must end. `Display` is a sentence for the log.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Fault {
    /// The client set flags that the greeting did not offer.
    ClientFlags(u32),
    /// Something else stands where an option must begin.
    OptionMagic(u64),
    /// The data of an option are longer than [`OPTION_SKIP_MAX`](crate::proto::OPTION_SKIP_MAX).
    OptionTooLong {
        /// The option.
        option: u32,
        /// Bytes of its data.
        length: u32,
    },
    /// There were [`OPTIONS_MAX`](crate::proto::OPTIONS_MAX) options and no export was chosen.
    TooManyOptions,
    /// A client of before 2013, which understands no answers, sent an option that has one.
    NotFixed(u32),
    /// The option `EXPORT_NAME` asked for something that is not to be had; it has no error answer.
    NoExport(String),
    /// Something else stands where a request must begin.
    RequestMagic(u32),
    /// The payload of a write is longer than any export allows.
    PayloadTooLong {
        /// Bytes of the payload.
        length: u32,
        /// Most bytes that it might have.
        max: u32,
    },
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Fault::ClientFlags(flags) => {
                write!(f, "the client set the unknown flags {flags:#x}: use a client of the fixed newstyle protocol")
            }
            Fault::OptionMagic(magic) => {
                write!(f, "an option began with {magic:#018x}: the other side is no NBD client, or lost its place")
            }
            Fault::OptionTooLong { option, length } => {
                write!(f, "option {option} had {length} bytes of data: send shorter names and fewer queries")
            }
            Fault::TooManyOptions => {
                let max = crate::proto::OPTIONS_MAX;
                write!(f, "the client sent more than {max} options without choosing an export: connect again")
            }
            Fault::NotFixed(option) => {
                write!(f, "option {option} came from a client that does not know the fixed newstyle: use a newer one")
            }
            Fault::NoExport(why) => write!(f, "the client cannot have the export that it chose: {why}"),
            Fault::RequestMagic(magic) => {
                write!(f, "a request began with {magic:#010x}: the client lost its place in the stream")
            }
            Fault::PayloadTooLong { length, max } => {
                write!(f, "a write had {length} bytes of data and may have {max}: use the limits that are announced")
            }
        }
    }
}

impl std::error::Error for Fault {}

impl From<Fault> for Error {
    fn from(fault: Fault) -> Error {
        let kind = match fault {
            Fault::OptionTooLong { .. } | Fault::PayloadTooLong { .. } => ErrorKind::TooBig,
            Fault::NoExport(_) => ErrorKind::NotFound,
            _ => ErrorKind::Invalid,
        };
        Error::new(kind, fault.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_are_errors_of_the_engine() {
        let table = [
            (Fault::ClientFlags(9), ErrorKind::Invalid, "0x9"),
            (Fault::OptionMagic(1), ErrorKind::Invalid, "0x0000000000000001"),
            (Fault::OptionTooLong { option: 7, length: 99 }, ErrorKind::TooBig, "option 7 had 99 bytes"),
            (Fault::TooManyOptions, ErrorKind::Invalid, "256"),
            (Fault::NotFixed(3), ErrorKind::Invalid, "option 3"),
            (Fault::NoExport("a is not there".into()), ErrorKind::NotFound, ": a is not there"),
            (Fault::RequestMagic(5), ErrorKind::Invalid, "0x00000005"),
            (Fault::PayloadTooLong { length: 8, max: 4 }, ErrorKind::TooBig, "8 bytes of data and may have 4"),
        ];
        for (fault, kind, part) in table {
            let error = Error::from(fault.clone());
            assert_eq!(error.kind(), kind, "{fault:?}");
            assert!(error.to_string().contains(part) && !error.to_string().contains('\n'), "{error}");
        }
    }
}
