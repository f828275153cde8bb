//! Block I/O: between block pointers and the devices.
//!
//! Vocabulary (format page 02). A block has *lsize* bytes as its object sees it and *psize* as
//! stored. A *block pointer* (bp) holds the places of its copies (*DVAs*), its compression and its
//! checksum. A *hole* stores nothing, an *embedded* block lives in its pointer, a *gang* block is
//! stored in pieces, because no free segment was large enough.
//!
//! A write has two halves. [`Zio::prepare`] does the CPU work: find zeros, compress, round up,
//! checksum; costly work runs in the CPU pool, so a caller with many blocks runs many of these
//! concurrently. [`Zio::issue`] allocates the copies, makes the pointer and queues the device
//! writes. The pointer is final when `issue` returns; [`WriteOut::done`] resolves when the devices
//! have the block. Parents need only pointers, so a whole tree is issued before its first block is
//! on disk.
//!
//! A read validates the pointer, tries the copies in order until one has the right checksum,
//! decompresses, and converts the byte order. Pointers and bytes are hostile: sizes are bounded by
//! the largest block, nesting by [`ondisk::gang::GANG_MAX_DEPTH`], and every damage is a typed
//! error that names vdev, offset and pointer.
//!
//! Invariants: the bytes of an uncompressed block reach the device without a copy; a write that
//! fails to allocate all its places returns those it has; a block is overwritten in place only in
//! the txg of its birth, from the second sync pass on, and only with the same sizes.

/// Whether a bug is planted: only in builds with the feature `planted-bugs`.
#[cfg(feature = "planted-bugs")]
macro_rules! planted {
    ($bug:ident) => {
        $crate::bugs::planted($crate::bugs::Bug::$bug)
    };
}
/// Whether a bug is planted: only in builds with the feature `planted-bugs`.
#[cfg(not(feature = "planted-bugs"))]
macro_rules! planted {
    ($bug:ident) => {
        false
    };
}

#[cfg(feature = "planted-bugs")]
pub mod bugs;
mod clones;
mod cost;
mod crypt;
mod dedup;
mod evacuate;
mod gang;
mod heal;
mod inject;
mod prepare;
mod read;
mod request;
mod scrub;
mod space;
mod stats;
mod write;
mod zio;

pub use clones::{References, is_cloneable};
pub use codec::{ChecksumAlgo, CompressAlgo, Compression};
pub use codec::{crypto, keymem};
pub use crypt::{AreaSeal, DataKey, ENCRYPTED_COPIES_MAX};
pub use dedup::{Dedup, DedupAnswer, Written};
pub use evacuate::{Copied, Evacuation};
pub use heal::Remedy;
pub use inject::{DataFault, DataFaults, DataTrouble};
pub use metaslab::ClassKind;
pub use read::has_checksum;
pub use request::{DedupMode, Packed, Prepared, SealMark, WriteOut, WriteReq};
pub use scrub::{FreeObserver, Scrubbed};
pub use space::Space;
pub use stats::{BadCopy, ZioStats};
pub use vdev::{Prio, WriteAs, WriteDone};
pub use zio::{Zio, ZioOpts};
