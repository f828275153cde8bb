//! Volumes: an object set with one array of blocks (format pages 08 section 10 and 16 section 8).
//!
//! A *volume* is a disk inside a pool. Object 1 of its object set is the data, in blocks of
//! `volblocksize`, which never changes; object 2 is a ZAP whose entry `size` is the length in
//! bytes, a multiple of the block size. Blocks never written, or discarded, are holes and read as
//! zeros.
//!
//! Every change takes the same path: check the range, lock it, assign a transaction, change the
//! blocks, note the change for the intent log, end the transaction; with `sync=always` commit. A
//! large write or discard is several transactions: as on a disk, only the flush after it makes it
//! whole.
//!
//! Ranges are locked for readers and writers, so that each sees the others' writes of one
//! transaction whole, and so that the records of the log are in the order of the changes. No range
//! is locked while a task waits for a txg to be on disk.
//!
//! Invariants: no block beyond the size is written, so no record of the log is beyond the size that
//! is on disk: a smaller size applies at once, a larger one when it is on disk
//! ([`Volume::set_size`]).
//!
//! Reading order: `volume` (open, close, flush), `data` (reads, writes, discards), `size`, `log`
//! and `replay`, `init` (a new volume).

mod data;
mod init;
mod log;
mod replay;
mod size;
mod volume;

use base::ObjectId;
use rt::rank::Rank;

pub use init::init_volume;
pub use size::{SIZE_MAX, check_size};
pub use volume::{Volume, VolumeOpts};
pub use zil::SyncMode;

/// The object with the data.
pub const DATA_OBJ: ObjectId = ObjectId(1);
/// The ZAP with the size.
pub const PROPS_OBJ: ObjectId = ObjectId(2);
/// The entry of [`PROPS_OBJ`] that is the size in bytes.
pub const SIZE_KEY: &str = "size";

/// A range of a volume's data: the layers below have higher ranks, the log's issuer a lower one.
const DATA: Rank = Rank(621, "volume data");
