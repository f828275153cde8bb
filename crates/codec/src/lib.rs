//! Checksums and compression, parity and encryption: transform a block into its bytes on disk and
//! back.
//!
//! Everything here is a pure function over slices. Nothing depends on block pointers, pools or
//! devices; callers take the algorithm numbers from block pointers and properties and hand over
//! whole blocks. Facts: format page 02, sections 3 and 4 (checksums, compression), page 01, section
//! 2 (embedded checksums).
//!
//! * [`checksum`]: the algorithms by number and name, [`compute`], and the SHA-256 that labels,
//!   uberblocks and gang headers carry in their last 40 bytes;
//! * [`fletcher`]: fletcher2 and fletcher4, the latter with AVX2 and AVX-512 kernels chosen at run
//!   time;
//! * [`raidz`]: the parity of RAID-Z rows and lost columns from it;
//! * [`crypto`]: the primitives of encrypted datasets; [`keymem`]: the memory that keys are in;
//! * [`compress`](mod@compress): the algorithms by number and name, [`compress()`] and
//!   [`decompress`]; the streams themselves are in private modules, one each.
//!
//! Input to [`decompress`] and to the checksums is hostile: every outcome is a value or a typed
//! error, and no call allocates more than the caller's block size calls for. Contexts that are
//! costly to make (zstd, zlib, the LZ4 table) are kept for each thread and reset between blocks;
//! they carry nothing from one block to the next.
#![allow(unsafe_code)] // kernels and the memory of keys; each block says why it is sound
#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod checksum;
pub mod compress;
pub mod crypto;
pub mod fletcher;
pub mod keymem;
pub mod raidz;

mod edonr;
mod gzip;
mod lz4;
mod lzjb;
mod skein;
mod zle;
mod zstandard;

pub use checksum::{
    Checksum, ChecksumAlgo, EMBEDDED_MAGIC, EmbeddedHash, EmbeddedVerifier, Endian, compute, embedded_sha256,
    embedded_sha256_seal, embedded_sha256_verify, sha256, sha512_256,
};
pub use compress::{CompressAlgo, Compression, compress, decompress, is_zero};
pub use fletcher::{fletcher2, fletcher2_be, fletcher4, fletcher4_be, fletcher4_update};
