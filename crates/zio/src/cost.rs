//! What the codecs of a block cost ([`rt::cost`] has the figures), to decide what runs away from
//! the engine and to charge what does not.

use base::Nanos;
use codec::{ChecksumAlgo, CompressAlgo, Compression};
use rt::cost::{self, Rate};

/// How fast `c` takes bytes in, `None` if it takes none in.
fn compress_rate(c: Compression) -> Option<Rate> {
    Some(match c.algo {
        CompressAlgo::Inherit | CompressAlgo::On | CompressAlgo::Off | CompressAlgo::Empty => return None,
        CompressAlgo::Lz4 => cost::LZ4,
        CompressAlgo::Lzjb => cost::LZJB,
        CompressAlgo::Zle => cost::ZLE,
        CompressAlgo::Zstd => cost::zstd(c.level),
        _ => cost::gzip(c.algo.gzip_level().unwrap_or(9)),
    })
}

fn decompress_rate(algo: CompressAlgo) -> Option<Rate> {
    Some(match algo {
        CompressAlgo::Inherit | CompressAlgo::On | CompressAlgo::Off | CompressAlgo::Empty => return None,
        CompressAlgo::Lz4 => cost::UNLZ4,
        CompressAlgo::Lzjb => cost::UNLZJB,
        CompressAlgo::Zle => cost::UNZLE,
        CompressAlgo::Zstd => cost::UNZSTD,
        _ => cost::UNGZIP,
    })
}

fn checksum_rate(algo: ChecksumAlgo) -> Option<Rate> {
    Some(match algo {
        ChecksumAlgo::Off | ChecksumAlgo::NoParity | ChecksumAlgo::Inherit | ChecksumAlgo::On => return None,
        ChecksumAlgo::Fletcher2 | ChecksumAlgo::Fletcher4 | ChecksumAlgo::Zilog | ChecksumAlgo::Zilog2 => {
            cost::FLETCHER
        }
        ChecksumAlgo::Sha256 | ChecksumAlgo::Label | ChecksumAlgo::GangHeader => cost::SHA256,
        ChecksumAlgo::Sha512 => cost::SHA512,
        ChecksumAlgo::Skein => cost::SKEIN,
        ChecksumAlgo::Edonr | ChecksumAlgo::Blake3 => cost::BLAKE3,
    })
}

fn of(rate: Option<Rate>, bytes: u64) -> Nanos {
    rate.map_or(Nanos(0), |r| r.cost(bytes))
}

/// Summing up `bytes`.
pub(crate) fn checksum(sum: ChecksumAlgo, bytes: u64) -> Nanos {
    of(checksum_rate(sum), bytes)
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
