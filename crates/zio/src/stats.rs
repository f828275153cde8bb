//! Counters, and the copies that were found bad.

use base::ErrorKind;
use ondisk::blkptr::{Blkptr, Dva};

/// Counters since the pool was opened.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct ZioStats {
    /// Blocks read from devices.
    pub reads: u64,
    /// Bytes of them as stored.
    pub read_bytes: u64,
    /// Blocks written to devices, each counted once whatever its copies.
    pub writes: u64,
    /// Bytes of them as stored, one copy each.
    pub write_bytes: u64,
    /// Writes that turned out to be holes.
    pub holes: u64,
    /// Writes that went into their pointers.
    pub embedded: u64,
    /// Writes that share the place of a block that a dedup table knows.
    pub deduped: u64,
    /// Writes that became gang blocks.
    pub gangs: u64,
    /// Writes that overwrote their own place.
    pub rewrites: u64,
    /// Copies that were wanted and found no space.
    pub copies_short: u64,
    /// Copies read whose checksum was wrong.
    pub checksum_errors: u64,
    /// Copies that a device failed to read.
    pub read_errors: u64,
    /// Copies that a device failed to write.
    pub write_errors: u64,
    /// Copies of blocks of which something was rewritten because it was wrong.
    pub repaired: u64,
    /// Blocks of which no copy could be read.
    pub unreadable: u64,
}

/// A copy that was read and is not what its pointer says, while the block may have others.
#[derive(Clone, Debug)]
pub struct BadCopy {
    /// Where.
    pub dva: Dva,
    /// The block; for a piece of a gang block the piece.
    pub bp: Blkptr,
    /// `Checksum`, `Io` or `Corrupt`.
    pub kind: ErrorKind,
}
