//! Newtypes, units and the error kit shared by every crate of weir.
//!
//! Nothing here does I/O, allocates more than a message, or depends on the on-disk format.

mod error;
mod ids;
mod log2;
mod page_lock;
mod units;

pub use error::{Error, ErrorKind, Result, ResultExt};
pub use ids::{BlkId, Guid, Level, ObjectId, Txg, VdevId};
pub use log2::Log2;
pub use page_lock::PageLock;
pub use units::{Nanos, NiceNum, WallTime, align_down, align_up};

/// The smallest unit of every size field on disk, in bytes (`SPA_MINBLOCKSHIFT` 9, format page 02).
pub const SECTOR: u64 = 512;
/// Largest block that the format allows, in bytes (feature `large_blocks`, format page 02).
pub const MAX_BLOCK: u64 = 16 << 20;
/// Largest block without the feature `large_blocks`, in bytes (`SPA_OLD_MAXBLOCKSIZE`, format page
/// 02).
pub const OLD_MAX_BLOCK: u64 = 128 << 10;
/// Transaction groups that can exist at once, as array size (`TXG_SIZE`).
pub const TXG_SIZE: usize = 4;
/// Transaction groups for which freed space stays unusable (`TXG_DEFER_SIZE`).
pub const TXG_DEFER: u64 = 2;
/// Transaction groups that can be under way at once: open, quiescing, syncing
/// (`TXG_CONCURRENT_STATES`).
pub const TXG_CONCURRENT: u64 = 3;
/// Sync pass of a txg, counted from 1, from which on freed blocks go to the deferred list: adding
/// them to space maps would make blocks dirty in every pass (`zfs_sync_pass_deferred_free`).
pub const SYNC_PASS_DEFERRED_FREE: u32 = 2;
/// Sync pass from which on blocks are not compressed, so that sizes stop changing and the txg
/// converges (`zfs_sync_pass_dont_compress`).
pub const SYNC_PASS_DONT_COMPRESS: u32 = 8;
/// Sync pass from which on a block written earlier in the same txg is overwritten in place
/// (`zfs_sync_pass_rewrite`).
pub const SYNC_PASS_REWRITE: u32 = 2;
/// The txg that creates a pool (`TXG_INITIAL`, format page 03).
pub const TXG_INITIAL: Txg = Txg(4);
