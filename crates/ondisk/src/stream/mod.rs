//! Send streams: the file format that carries a snapshot, or the difference between two, to another
//! pool (format pages 11 and 21).
//!
//! A stream is a row of *records* of 312 bytes, each with a *payload* after it or without. A
//! *sub-stream* goes from BEGIN to END and carries one snapshot; a *package* (`zfs send -R`) is a
//! BEGIN with a list of what follows, its END, sub-streams, and a last END. One fletcher4, the
//! *running sum*, goes over all bytes from a BEGIN; each record but BEGIN stores the sum as it
//! stands before the last 32 bytes of the record, END also as it stands before END.
//!
//! * [`Record`] is a record as a type; one description of the places of its fields serves reading
//!   and writing ([`record`]).
//! * [`StreamReader`] takes records and payloads as they come, checks sums and order, and says how
//!   long the next payload is. [`StreamWriter`] makes the bytes of records, with their sums.
//! * [`Token`] is the text by which a receive that was interrupted is resumed.
//!
//! None of them reads or writes by itself, and none holds a payload: the caller moves payloads
//! between its own buffers, in pieces if it likes.
//!
//! Streams are hostile: lengths are bounded before anything is read by them ([`PAYLOAD_MAX`],
//! [`LIST_MAX`]), and every error says which record at which offset.

mod frame;
pub mod record;
mod token;

pub use frame::{Frame, Sent, StreamReader, StreamWriter, words};
pub use record::Record;
pub use token::Token;

/// Bytes of a record (format page 11 section 1).
pub const RECORD_SIZE: usize = 312;
/// The offset of the sum that a record stores (format page 11 section 1).
pub const SUM_AT: usize = 280;
/// The magic number of BEGIN (format page 11 section 2).
pub const MAGIC: u64 = 0x2_F5BA_CBAC;
/// Longest payload of a record but BEGIN, in bytes: that of the largest block (format page 21
/// section 1).
pub const PAYLOAD_MAX: u64 = 16 << 20;
/// Longest list after a BEGIN, in bytes: the limit of OpenZFS's commands (format page 25 section
/// 5).
pub const LIST_MAX: u64 = 64 << 20;

/// Features that a stream needs, as BEGIN names them (format pages 11 section 2 and 21 section 1).
pub mod features {
    /// Blocks are stored once and referred to by WRITE_BYREF; no receiver takes it any more.
    pub const DEDUP: u64 = 1 << 0;
    /// As [`DEDUP`], with the properties of dedup checksums.
    pub const DEDUPPROPS: u64 = 1 << 1;
    /// There may be SPILL records.
    pub const SA_SPILL: u64 = 1 << 2;
    /// There may be WRITE_EMBEDDED records.
    pub const EMBED_DATA: u64 = 1 << 16;
    /// Payloads may be compressed by lz4.
    pub const LZ4: u64 = 1 << 17;
    /// Blocks may be larger than 128 KiB.
    pub const LARGE_BLOCKS: u64 = 1 << 19;
    /// The stream goes on where an earlier one was interrupted.
    pub const RESUMING: u64 = 1 << 20;
    /// Parts are left out on purpose.
    pub const REDACTED: u64 = 1 << 21;
    /// Payloads of WRITE may be compressed.
    pub const COMPRESSED: u64 = 1 << 22;
    /// Dnodes may have several slots.
    pub const LARGE_DNODE: u64 = 1 << 23;
    /// Blocks are sent as they lie on disk, encrypted ones too.
    pub const RAW: u64 = 1 << 24;
    /// Payloads may be compressed by zstd.
    pub const ZSTD: u64 = 1 << 25;
    /// The package has holds.
    pub const HOLDS: u64 = 1 << 26;
    /// The stream may make blocks of an earlier one larger.
    pub const SWITCH_TO_LARGE_BLOCKS: u64 = 1 << 27;
    /// Names may have more than 255 bytes.
    pub const LONGNAME: u64 = 1 << 28;
    /// Micro ZAPs may be larger than 128 KiB.
    pub const LARGE_MICROZAP: u64 = 1 << 29;
    /// All that weir knows.
    pub const KNOWN: u64 = DEDUP | DEDUPPROPS | SA_SPILL | EMBED_DATA | LZ4 | 0x3ff8 << 16;
}

/// Flags of BEGIN (format page 11 section 2).
pub mod begin_flags {
    /// Incremental from a snapshot of another file system.
    pub const CLONE: u32 = 1;
    /// Names are compared without case.
    pub const CI_DATA: u32 = 2;
    /// FREE and FREEOBJECTS are complete.
    pub const FREERECORDS: u32 = 4;
    /// OBJECT says whether there is a spill block.
    pub const SPILL_BLOCK: u32 = 8;
}

/// Flags of OBJECT, WRITE and SPILL (format page 11 section 2).
pub mod record_flags {
    /// WRITE: the checksum may serve dedup.
    pub const CHECKSUM_DEDUP: u8 = 1;
    /// Raw streams: the block has the other byte order.
    pub const RAW_BYTESWAP: u8 = 2;
    /// OBJECT: the dnode has a spill block.
    pub const OBJECT_SPILL: u8 = 4;
    /// SPILL: the block did not change.
    pub const SPILL_UNMODIFIED: u8 = 4;
}
