//! Requests: their header, and the policy that decides what becomes of one.
//!
//! The normal path: [`Header::parse`] reads 28 bytes, and [`Terms::judge`] says with a [`Verdict`]
//! whether to serve, refuse or disconnect.
//!
//! The order of the checks is part of the policy, since the first that fails names the error:
//! length of a payload (beyond all limits: a [`Fault`]), type, flags, rights, features, zero
//! length, alignment, bounds, payload of this export. Every check is the document's (NBD protocol
//! document, sections "Command flags", "Request types", "Error values", "Size constraints"). It
//! leaves requests of length 0 open; they are refused here, since none of them means anything.
//!
//! Invariant: a served request lies within the export, is aligned to the smallest block, has flags
//! that were agreed on, and writes nothing to a read-only export. Requests without a payload have
//! no limit of length but the export's size.

use crate::code::Code;
use crate::fault::Fault;
use crate::proto::{PAYLOAD_DEFAULT, REQUEST_HEADER, REQUEST_MAGIC, cmd, cmd_flag};
use crate::terms::Terms;
use crate::wire::Fields;

/// The header of a request, as it came.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Header {
    /// Bits of [`cmd_flag`].
    pub flags: u16,
    /// One of [`cmd`], or anything else.
    pub kind: u16,
    /// The client's number for the request.
    pub cookie: u64,
    /// First byte in the export.
    pub offset: u64,
    /// Bytes in the export, and of the payload of a write.
    pub length: u32,
}

impl Header {
    /// Reads a header. The only fault is a wrong magic number.
    pub fn parse(bytes: &[u8; REQUEST_HEADER]) -> Result<Header, Fault> {
        let mut f = Fields::new(bytes);
        let magic = f.u32().unwrap_or_default();
        if magic != REQUEST_MAGIC {
            return Err(Fault::RequestMagic(magic));
        }
        // The array has room for every field, so no default is ever used.
        Ok(Header {
            flags: f.u16().unwrap_or_default(),
            kind: f.u16().unwrap_or_default(),
            cookie: f.u64().unwrap_or_default(),
            offset: f.u64().unwrap_or_default(),
            length: f.u32().unwrap_or_default(),
        })
    }

    /// Bytes of payload that follow the header.
    pub fn payload(&self) -> u32 {
        if self.kind == cmd::WRITE { self.length } else { 0 }
    }
}

/// A range of an export, not empty.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Span {
    /// First byte.
    pub offset: u64,
    /// Bytes.
    pub length: u32,
}

/// What a request wants. `durable`: the answer may be sent when what was written survives a loss
/// of power.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Command {
    /// Answer with the data: [`Terms::read_answer`].
    Read {
        /// The range; not longer than the largest payload.
        span: Span,
        /// All of it in one chunk.
        whole: bool,
    },
    /// Write the payload, `span.length` bytes that follow the header.
    #[allow(missing_docs)] // As above.
    Write { span: Span, durable: bool },
    /// Answer when everything that was answered before survives a loss of power.
    Flush,
    /// The data are not needed any more; they may go, or stay.
    #[allow(missing_docs)] // As above.
    Trim { span: Span, durable: bool },
    /// The range will be used soon; any length, so do as much as is sensible.
    #[allow(missing_docs)] // As above.
    Cache { span: Span },
    /// Make it read as zeros.
    WriteZeroes {
        /// The range; any length.
        span: Span,
        /// As above.
        durable: bool,
        /// Space for the range must stay allocated.
        no_hole: bool,
        /// Refuse with [`Code::Unsupported`], and change nothing, if it is not faster than a write.
        fast: bool,
    },
    /// Say what is allocated: [`Extents`](crate::Extents).
    BlockStatus {
        /// The range; any length.
        span: Span,
        /// Describe the first extent only.
        one: bool,
    },
}

/// A request to serve.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Request {
    /// The client's number, for the answer.
    pub cookie: u64,
    /// What it wants.
    pub command: Command,
}

impl Request {
    /// Bytes of payload that follow the header and that the caller takes from the stream.
    pub fn payload(&self) -> u32 {
        match self.command {
            Command::Write { span, .. } => span.length,
            _ => 0,
        }
    }
}

/// A request that is answered with an error: [`Terms::refuse`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Refusal {
    /// The client's number, for the answer.
    pub cookie: u64,
    /// The error.
    pub code: Code,
    /// A sentence for the client's user.
    pub why: &'static str,
    /// Bytes of payload that follow the header and mean nothing. [`Intake`](crate::Intake) skips
    /// them itself; who calls [`Terms::judge`] must skip them before the answer.
    pub skip: u32,
}

/// What becomes of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// Serve it.
    Serve(Request),
    /// Answer with an error.
    Refuse(Refusal),
    /// Answer what is under way and close the connection; there is no reply.
    Disconnect,
}

/// Why a request is refused.
type Why = (Code, &'static str);

impl Terms {
    /// Decides about a request. A fault means to close the connection.
    pub fn judge(&self, header: &Header) -> Result<Verdict, Fault> {
        let max = self.export.block_max.max(PAYLOAD_DEFAULT);
        if header.payload() > max {
            return Err(Fault::PayloadTooLong { length: header.payload(), max });
        }
        if header.kind == cmd::DISC {
            return Ok(Verdict::Disconnect);
        }
        let cookie = header.cookie;
        Ok(match self.command(header) {
            Ok(command) => Verdict::Serve(Request { cookie, command }),
            Err((code, why)) => Verdict::Refuse(Refusal { cookie, code, why, skip: header.payload() }),
        })
    }

    fn command(&self, header: &Header) -> Result<Command, Why> {
        let span = Span { offset: header.offset, length: header.length };
        let has = |flag: u16| header.flags & flag != 0;
        let durable = has(cmd_flag::FUA);
        self.known(header)?;
        self.may_write(header)?;
        self.offered(header)?;
        if header.kind == cmd::FLUSH {
            return match (header.offset, header.length) {
                (0, 0) => Ok(Command::Flush),
                _ => Err((Code::Invalid, "a flush covers the whole export: send offset and length 0")),
            };
        }
        self.within(header)?;
        Ok(match header.kind {
            cmd::READ => Command::Read { span, whole: has(cmd_flag::DF) },
            cmd::WRITE => Command::Write { span, durable },
            cmd::TRIM => Command::Trim { span, durable },
            cmd::CACHE => Command::Cache { span },
            cmd::WRITE_ZEROES => {
                Command::WriteZeroes { span, durable, no_hole: has(cmd_flag::NO_HOLE), fast: has(cmd_flag::FAST_ZERO) }
            }
            _ => Command::BlockStatus { span, one: has(cmd_flag::REQ_ONE) },
        })
    }

    /// The type exists and has these flags.
    fn known(&self, header: &Header) -> Result<(), Why> {
        let own = match header.kind {
            cmd::READ if self.structured => cmd_flag::DF,
            cmd::READ | cmd::WRITE | cmd::FLUSH | cmd::TRIM | cmd::CACHE => 0,
            cmd::WRITE_ZEROES if self.export.fast_zeroes() => cmd_flag::NO_HOLE | cmd_flag::FAST_ZERO,
            cmd::WRITE_ZEROES => cmd_flag::NO_HOLE,
            cmd::BLOCK_STATUS => cmd_flag::REQ_ONE,
            cmd::RESIZE => return Err((Code::Invalid, "the size cannot be changed here: set it at the server")),
            _ => return Err((Code::Invalid, "the type of request is unknown: use those that were announced")),
        };
        // Durability is allowed everywhere, since there are clients that ask for it everywhere.
        let fua = if self.export.fua { cmd_flag::FUA } else { 0 };
        match header.flags & !(own | fua) {
            0 => Ok(()),
            _ => Err((Code::Invalid, "the request has a flag that it cannot have: use those that were announced")),
        }
    }

    fn may_write(&self, header: &Header) -> Result<(), Why> {
        match header.kind {
            cmd::WRITE | cmd::TRIM | cmd::WRITE_ZEROES if self.export.read_only => {
                Err((Code::Denied, "the export is read-only: choose one that is not"))
            }
            _ => Ok(()),
        }
    }

    fn offered(&self, header: &Header) -> Result<(), Why> {
        let (offered, why) = match header.kind {
            cmd::FLUSH => (self.export.flush, "flushes were not announced: do without"),
            cmd::TRIM => (self.export.trims(), "trims were not announced: do without"),
            cmd::CACHE => (self.export.cache, "hints to cache were not announced: do without"),
            cmd::WRITE_ZEROES => (self.export.zeroes(), "zeros were not announced: write data"),
            cmd::BLOCK_STATUS => (self.block_status, "no metadata context was chosen: choose one when connecting"),
            _ => return Ok(()),
        };
        if offered { Ok(()) } else { Err((Code::Invalid, why)) }
    }

    /// Length, alignment, bounds and payload.
    fn within(&self, header: &Header) -> Result<(), Why> {
        let export = &self.export;
        let length = u64::from(header.length);
        if length == 0 {
            return Err((Code::Invalid, "the length is 0: ask for at least one block"));
        }
        let min = u64::from(export.block_min);
        if !header.offset.is_multiple_of(min) || !length.is_multiple_of(min) {
            return Err((Code::Invalid, "the range is not aligned: use multiples of the smallest block"));
        }
        if header.offset.checked_add(length).is_none_or(|end| end > export.size_bytes) {
            let code = match header.kind {
                cmd::WRITE | cmd::WRITE_ZEROES => Code::NoSpace,
                _ => Code::Invalid,
            };
            return Err((code, "the range goes beyond the end of the export: look at its size"));
        }
        let why = "the length is beyond the largest payload: send shorter requests";
        match header.kind {
            // The document allows the other error only where `DF` is offered.
            cmd::READ if header.length > export.block_max && self.structured => Err((Code::TooLong, why)),
            cmd::READ | cmd::WRITE if header.length > export.block_max => Err((Code::Invalid, why)),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests;
