//! CPU costs of the codecs of a block ([`rt::cost`] has the figures): they decide what runs in the
//! CPU pool, and are charged for the rest.

use base::Nanos;
use codec::{ChecksumAlgo, CompressAlgo, Compression};
use rt::cost::{self, Rate};

/// The rate of `c` over its input; `None` without compression.
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

/// The checksum of `bytes`.
pub(crate) fn checksum(sum: ChecksumAlgo, bytes: u64) -> Nanos {
    of(checksum_rate(sum), bytes)
}

/// Compression and checksum of a block of `lsize` bytes.
pub(crate) fn pack(c: Compression, sum: ChecksumAlgo, lsize: u64) -> Nanos {
    of(compress_rate(c), lsize) + of(checksum_rate(sum), lsize)
}

/// Checksum of `psize` bytes and decompression to `lsize`.
pub(crate) fn unpack(algo: CompressAlgo, sum: ChecksumAlgo, psize: u64, lsize: u64) -> Nanos {
    of(decompress_rate(algo), lsize) + of(checksum_rate(sum), psize)
}

/// Largest block that cheap codecs process on the engine's thread regardless of the estimate: it
/// fits in one turn, and usually takes a fraction of it (LZ4 stops early on incompressible data).
pub(crate) const CHEAP_INLINE_MAX: u64 = 32 << 10;

/// Whether both are cheap enough for the engine's thread.
pub(crate) fn is_cheap(c: CompressAlgo, sum: ChecksumAlgo) -> bool {
    matches!(c, CompressAlgo::Off | CompressAlgo::Empty | CompressAlgo::Lz4 | CompressAlgo::Zle | CompressAlgo::Lzjb)
        && matches!(sum, ChecksumAlgo::Off | ChecksumAlgo::NoParity | ChecksumAlgo::Fletcher2 | ChecksumAlgo::Fletcher4)
}
