//! The numbers of the protocol, and our limits.
//!
//! The numbers are those of the NBD protocol document, section "Values" and, for magic numbers and
//! layouts, "Protocol phases". A limit that the document leaves open says why it is what it is.

/// First number of the greeting: the letters `NBDMAGIC` (section "Newstyle negotiation").
pub const GREETING_MAGIC: u64 = 0x4e42_444d_4147_4943;
/// Second number of the greeting and first of every option: `IHAVEOPT` (same section).
pub const OPTION_MAGIC: u64 = 0x4948_4156_454f_5054;
/// First number of an answer to an option (section "Fixed newstyle negotiation").
pub const OPTION_REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;
/// First number of a request (section "Request message").
pub const REQUEST_MAGIC: u32 = 0x2560_9513;
/// First number of a simple reply (section "Simple reply message").
pub const SIMPLE_REPLY_MAGIC: u32 = 0x6744_6698;
/// First number of a chunk (section "Structured reply chunk message").
pub const CHUNK_MAGIC: u32 = 0x668e_33ef;

/// Bytes of an option before its data.
pub const OPTION_HEADER: usize = 16;
/// Bytes of a request before its payload.
pub const REQUEST_HEADER: usize = 28;
/// Zeros behind the answer to `EXPORT_NAME` for clients that did not ask to be spared them.
pub const EXPORT_NAME_ZEROES: usize = 124;

/// Longest string, in bytes (section "Conventions").
pub const STRING_MAX: usize = 4096;
/// Most bytes of an option's data that are kept: two strings and 1,000 small requests fit. More
/// data are skipped, and the option is refused.
pub const OPTION_MAX: u32 = 16 << 10;
/// Most bytes of an option's data that are skipped: beyond that the client makes no sense.
pub const OPTION_SKIP_MAX: u32 = 1 << 20;
/// Most options of one handshake: clients need less than ten, those that look around some more.
pub const OPTIONS_MAX: u32 = 256;
/// Most exports in the answer to `LIST` (libnbd reads no more); with more the answer is an error.
pub const LIST_MAX: usize = 10_000;
/// Payload that a client may send or ask for unless told otherwise, in bytes (section "Size
/// constraints"). Such a payload never ends the connection, even if the export allows less.
pub const PAYLOAD_DEFAULT: u32 = 32 << 20;
/// Largest payload that an export can allow, in bytes: the largest that libnbd sends.
pub const PAYLOAD_MAX: u32 = 64 << 20;
/// Largest smallest block, in bytes (section "Size constraints").
pub const BLOCK_MIN_MAX: u32 = 64 << 10;
/// Smallest preferred block, in bytes (section "Size constraints").
pub const BLOCK_PREFERRED_MIN: u32 = 512;
/// Length of a read up to which `DF` must be granted, in bytes (section "Request types", `READ`).
/// So no export allows a smaller payload.
pub const WHOLE_MIN: u32 = 64 << 10;
/// Most descriptors in a block status; the document names 2^20 as the limit (section "Structured
/// reply types"), and 256 KiB are enough for one reply.
pub const EXTENTS_MAX: usize = 32 << 10;
/// Shortest hole within data that gets a chunk of its own, in bytes. Shorter ones cost a client
/// more than the zeros.
pub const HOLE_MIN: u32 = 4096;

/// The metadata context for allocation (section "Metadata querying").
pub const ALLOCATION: &str = "base:allocation";
/// The number that stands for it in replies.
pub const ALLOCATION_ID: u32 = 1;

/// Handshake flags of the server and client flags, which have the same bits.
#[allow(missing_docs)] // The names are those of the document.
pub mod hello {
    pub const FIXED_NEWSTYLE: u16 = 1 << 0;
    pub const NO_ZEROES: u16 = 1 << 1;
}

/// Transmission flags.
#[allow(missing_docs)] // The names are those of the document.
pub mod flag {
    pub const HAS_FLAGS: u16 = 1 << 0;
    pub const READ_ONLY: u16 = 1 << 1;
    pub const SEND_FLUSH: u16 = 1 << 2;
    pub const SEND_FUA: u16 = 1 << 3;
    pub const ROTATIONAL: u16 = 1 << 4;
    pub const SEND_TRIM: u16 = 1 << 5;
    pub const SEND_WRITE_ZEROES: u16 = 1 << 6;
    pub const SEND_DF: u16 = 1 << 7;
    pub const CAN_MULTI_CONN: u16 = 1 << 8;
    pub const SEND_CACHE: u16 = 1 << 10;
    pub const SEND_FAST_ZERO: u16 = 1 << 11;
}

/// Options of the handshake.
#[allow(missing_docs)] // The names are those of the document.
pub mod opt {
    pub const EXPORT_NAME: u32 = 1;
    pub const ABORT: u32 = 2;
    pub const LIST: u32 = 3;
    pub const STARTTLS: u32 = 5;
    pub const INFO: u32 = 6;
    pub const GO: u32 = 7;
    pub const STRUCTURED_REPLY: u32 = 8;
    pub const LIST_META_CONTEXT: u32 = 9;
    pub const SET_META_CONTEXT: u32 = 10;
    pub const EXTENDED_HEADERS: u32 = 11;
}

/// Types of answers to options.
#[allow(missing_docs)] // The names are those of the document.
pub mod rep {
    pub const ACK: u32 = 1;
    pub const SERVER: u32 = 2;
    pub const INFO: u32 = 3;
    pub const META_CONTEXT: u32 = 4;
    pub const ERR_UNSUP: u32 = (1 << 31) + 1;
    pub const ERR_POLICY: u32 = (1 << 31) + 2;
    pub const ERR_INVALID: u32 = (1 << 31) + 3;
    pub const ERR_UNKNOWN: u32 = (1 << 31) + 6;
    pub const ERR_SHUTDOWN: u32 = (1 << 31) + 7;
    pub const ERR_TOO_BIG: u32 = (1 << 31) + 9;
}

/// Types of information about an export.
#[allow(missing_docs)] // The names are those of the document.
pub mod info {
    pub const EXPORT: u16 = 0;
    pub const NAME: u16 = 1;
    pub const DESCRIPTION: u16 = 2;
    pub const BLOCK_SIZE: u16 = 3;
}

/// Types of requests.
#[allow(missing_docs)] // The names are those of the document.
pub mod cmd {
    pub const READ: u16 = 0;
    pub const WRITE: u16 = 1;
    pub const DISC: u16 = 2;
    pub const FLUSH: u16 = 3;
    pub const TRIM: u16 = 4;
    pub const CACHE: u16 = 5;
    pub const WRITE_ZEROES: u16 = 6;
    pub const BLOCK_STATUS: u16 = 7;
    pub const RESIZE: u16 = 8;
}

/// Flags of requests.
#[allow(missing_docs)] // The names are those of the document.
pub mod cmd_flag {
    pub const FUA: u16 = 1 << 0;
    pub const NO_HOLE: u16 = 1 << 1;
    pub const DF: u16 = 1 << 2;
    pub const REQ_ONE: u16 = 1 << 3;
    pub const FAST_ZERO: u16 = 1 << 4;
}

/// Types of chunks.
#[allow(missing_docs)] // The names are those of the document.
pub mod chunk {
    pub const NONE: u16 = 0;
    pub const OFFSET_DATA: u16 = 1;
    pub const OFFSET_HOLE: u16 = 2;
    pub const BLOCK_STATUS: u16 = 5;
    pub const ERROR: u16 = (1 << 15) + 1;
    pub const ERROR_OFFSET: u16 = (1 << 15) + 2;
}

/// Flag of the last chunk of a reply (`NBD_REPLY_FLAG_DONE`).
pub const CHUNK_DONE: u16 = 1 << 0;
/// Bit of a block status: nothing is allocated there (`NBD_STATE_HOLE`).
pub const STATE_HOLE: u32 = 1 << 0;
/// Bit of a block status: it reads as zeros (`NBD_STATE_ZERO`).
pub const STATE_ZERO: u32 = 1 << 1;
