//! Block I/O: between block pointers and the devices.
//!
//! Vocabulary (format page 02). A block has *lsize* bytes as its object sees it and *psize* as
//! stored. A *block pointer* (bp) says where its copies are (*DVAs*), how it is compressed, and
//! what its checksum must be. A *hole* stores nothing, an *embedded* block lives in its pointer, a
//! *gang* block is stored in pieces because no run of free space was long enough.
//!
//! A write has two halves. [`Zio::prepare`] is the CPU's: find zeros, compress, round up, sum up;
//! costly work runs away from the engine, so a caller with many blocks runs many of these at once.
//! [`Zio::issue`] is the rest: allocate the copies, make the pointer, queue the device writes. The
//! pointer is final as soon as `issue` returns; the device may take its time, [`WriteOut::done`]
//! tells. Parents are made from pointers alone, so a whole tree is issued before its first block is
//! on disk.
//!
//! A read validates the pointer, tries the copies in order until one has the right checksum,
//! decompresses, and converts the byte order. Pointers and bytes are hostile: sizes are bounded by
//! the largest block, nesting by [`ondisk::gang::GANG_MAX_DEPTH`], and whatever is wrong is a typed
//! error that names vdev, offset and pointer.
//!
//! Invariants: the bytes of an uncompressed block reach the device without a copy; what was
//! allocated for a write that then fails is given back; a block is overwritten in place only in the
//! txg that it was born in, from the second sync pass on, and only if all of its sizes stay.

mod cost;
mod crypt;
mod dedup;
mod gang;
mod prepare;
mod read;
mod request;
mod scrub;
mod stats;
mod write;
mod zio;

pub use codec::{ChecksumAlgo, CompressAlgo, Compression};
pub use codec::{crypto, keymem};
pub use crypt::{AreaSeal, DataKey, ENCRYPTED_COPIES_MAX};
pub use dedup::{Dedup, DedupAnswer, Written};
pub use metaslab::{ClassKind, LBF};
pub use request::{DedupMode, Prepared, WriteOut, WriteReq};
pub use scrub::{FreeObserver, Scrubbed};
pub use stats::{BadCopy, ZioStats};
pub use vdev::{Prio, WriteAs, WriteDone};
pub use zio::{Zio, ZioOpts};
