//! Counters, and reports of bad copies.

use base::ErrorKind;
use ondisk::blkptr::{Blkptr, Dva};

/// Counters since the pool was opened.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct ZioStats {
    /// Blocks read from devices.
    pub reads: u64,
    /// Bytes of them as stored.
    pub read_bytes: u64,
    /// Blocks written to devices, each counted once with all its copies.
    pub writes: u64,
    /// Bytes of them as stored, one copy each.
    pub write_bytes: u64,
    /// Writes of zeros, stored as holes.
    pub holes: u64,
    /// Writes embedded in their pointers.
    pub embedded: u64,
    /// Writes that share the place of a block in a dedup table.
    pub deduped: u64,
    /// Writes that became gang blocks.
    pub gangs: u64,
    /// Writes that overwrote their own place.
    pub rewrites: u64,
    /// Blocks that stayed where they were, since they were the same.
    pub nopwrites: u64,
    /// Requested copies that found no space.
    pub copies_short: u64,
    /// Copies read whose checksum was wrong.
    pub checksum_errors: u64,
    /// Copies that a device failed to read.
    pub read_errors: u64,
    /// Copies that a device failed to write.
    pub write_errors: u64,
    /// Copies of blocks that were repaired at least in part.
    pub repaired: u64,
    /// Blocks of which no copy could be read.
    pub unreadable: u64,
}

/// A bad copy of a block, which may have good ones.
#[derive(Clone, Debug)]
pub struct BadCopy {
    /// Its place.
    pub dva: Dva,
    /// The block; for a piece of a gang block the piece.
    pub bp: Blkptr,
    /// `Checksum`, `Io` or `Corrupt`.
    pub kind: ErrorKind,
}
