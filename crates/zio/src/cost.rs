//! What codecs cost on one core, to decide what runs away from the engine and to charge what does
//! not.
//!
//! Measured figures (reference `crates.md` section 6), in bytes per microsecond; they need to be
//! right within a factor of two.

use base::Nanos;
use codec::{ChecksumAlgo, CompressAlgo, Compression};

fn nanos(bytes: u64, bytes_per_us: u64) -> Nanos {
    Nanos(bytes * 1000 / bytes_per_us)
}

/// Bytes per microsecond that `c` takes in, `None` if it takes none in.
fn compress_rate(c: Compression) -> Option<u64> {
    Some(match c.algo {
        CompressAlgo::Inherit | CompressAlgo::On | CompressAlgo::Off | CompressAlgo::Empty => return None,
        CompressAlgo::Lz4 => 554,
        CompressAlgo::Lzjb => 350,
        CompressAlgo::Zle => 1_000,
        CompressAlgo::Zstd => match c.level {
            0 => 377,
            1 => 463,
            2 | 3 => 377,
            4..=6 => 120,
            7..=9 => 75,
            10..=15 => 10,
            16..=19 => 3,
            _ => 517,
        },
        _ => match c.algo.gzip_level() {
            Some(1..=3) => 266,
            Some(4..=6) => 91,
            _ => 46,
        },
    })
}

fn decompress_rate(algo: CompressAlgo) -> Option<u64> {
    Some(match algo {
        CompressAlgo::Inherit | CompressAlgo::On | CompressAlgo::Off | CompressAlgo::Empty => return None,
        CompressAlgo::Lz4 => 2_788,
        CompressAlgo::Lzjb => 800,
        CompressAlgo::Zle => 3_000,
        CompressAlgo::Zstd => 1_700,
        _ => 540,
    })
}

fn checksum_rate(algo: ChecksumAlgo) -> Option<u64> {
    Some(match algo {
        ChecksumAlgo::Off | ChecksumAlgo::NoParity | ChecksumAlgo::Inherit | ChecksumAlgo::On => return None,
        ChecksumAlgo::Fletcher2 | ChecksumAlgo::Fletcher4 | ChecksumAlgo::Zilog | ChecksumAlgo::Zilog2 => 30_000,
        ChecksumAlgo::Sha256 | ChecksumAlgo::Label | ChecksumAlgo::GangHeader => 1_750,
        ChecksumAlgo::Sha512 => 690,
        ChecksumAlgo::Skein => 500,
        ChecksumAlgo::Edonr | ChecksumAlgo::Blake3 => 1_500,
    })
}

fn of(rate: Option<u64>, bytes: u64) -> Nanos {
    rate.map_or(Nanos(0), |r| nanos(bytes, r))
}

/// Compressing and summing up a block of `lsize` bytes.
pub(crate) fn pack(c: Compression, sum: ChecksumAlgo, lsize: u64) -> Nanos {
    of(compress_rate(c), lsize) + of(checksum_rate(sum), lsize)
}

/// Summing up `psize` bytes and decompressing them to `lsize`.
pub(crate) fn unpack(algo: CompressAlgo, sum: ChecksumAlgo, psize: u64, lsize: u64) -> Nanos {
    of(decompress_rate(algo), lsize) + of(checksum_rate(sum), psize)
}

/// Largest block that a cheap codec is run on inline, whatever the estimate says: at its pace it
/// fits in one turn, and usually takes a fraction of it (data that does not compress is given up
/// early).
pub(crate) const CHEAP_INLINE_MAX: u64 = 32 << 10;

/// Whether both are cheap enough for the engine's thread.
pub(crate) fn is_cheap(c: CompressAlgo, sum: ChecksumAlgo) -> bool {
    matches!(c, CompressAlgo::Off | CompressAlgo::Empty | CompressAlgo::Lz4 | CompressAlgo::Zle | CompressAlgo::Lzjb)
        && matches!(sum, ChecksumAlgo::Off | ChecksumAlgo::NoParity | ChecksumAlgo::Fletcher2 | ChecksumAlgo::Fletcher4)
}
