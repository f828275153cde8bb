//! CPU costs on one core of a current machine: they divide turns, decide which work goes to the CPU
//! pool, and advance virtual time in `sim` ([`crate::turn`]).
//!
//! They need to be right within a factor of two. Rates of kernels are measured on one core of an
//! AMD EPYC 7003 (AVX2) with data in the cache, and capped at the memory bandwidth; times of the
//! engine's own paths come from `op_cost`, which runs them on devices of `sim` and prints each in
//! the form used here:
//!
//! * checksums, compression: `cargo run --release -p openweir-codec --example codec_speed`;
//! * parity: `cargo run --release -p openweir-codec --example raidz_speed -- 8 131072`;
//! * the engine: `cargo run --release -p openweir-zpl --example op_cost`.

use base::Nanos;

/// A processing rate.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rate {
    /// Bytes per microsecond.
    pub bytes_per_us: u64,
}

impl Rate {
    const fn of_us(bytes_per_us: u64) -> Rate {
        Rate { bytes_per_us }
    }

    /// The time for that many bytes.
    pub const fn cost(self, bytes: u64) -> Nanos {
        Nanos((bytes as u128 * 1000 / self.bytes_per_us as u128) as u64)
    }
}

/// Copying and comparing bytes: memory bandwidth.
pub const COPY: Rate = Rate::of_us(10_000);

// Compression: bytes that go in.
/// LZ4.
pub const LZ4: Rate = Rate::of_us(554);
/// LZJB.
pub const LZJB: Rate = Rate::of_us(350);
/// ZLE.
pub const ZLE: Rate = Rate::of_us(1_000);
/// Zstandard's negative levels (`zstd-fast`).
pub const ZSTD_FAST: Rate = Rate::of_us(517);

/// Zstandard by the level byte of the format: 1 to 19, 0 the default level, others `zstd-fast`.
pub const fn zstd(level: u8) -> Rate {
    Rate::of_us(match level {
        1 => 463,
        0 | 2 | 3 => 377,
        4..=6 => 120,
        7..=9 => 75,
        10..=15 => 10,
        16..=19 => 3,
        _ => ZSTD_FAST.bytes_per_us,
    })
}

/// GZIP of a level from 1 to 9.
pub const fn gzip(level: u8) -> Rate {
    Rate::of_us(match level {
        1..=3 => 266,
        4..=6 => 91,
        _ => 46,
    })
}

// Decompression: bytes that come out.
/// LZ4.
pub const UNLZ4: Rate = Rate::of_us(2_788);
/// LZJB.
pub const UNLZJB: Rate = Rate::of_us(800);
/// ZLE.
pub const UNZLE: Rate = Rate::of_us(3_000);
/// Zstandard.
pub const UNZSTD: Rate = Rate::of_us(1_700);
/// GZIP.
pub const UNGZIP: Rate = Rate::of_us(540);

// Checksums.
/// fletcher2, fletcher4, and those of the intent log.
pub const FLETCHER: Rate = Rate::of_us(30_000);
/// SHA-256.
pub const SHA256: Rate = Rate::of_us(1_750);
/// SHA-512/256.
pub const SHA512: Rate = Rate::of_us(690);
/// Skein.
pub const SKEIN: Rate = Rate::of_us(500);
/// Edon-R and BLAKE3.
pub const BLAKE3: Rate = Rate::of_us(1_500);

// Encryption.
/// AES-GCM, with AES-NI.
pub const GCM: Rate = Rate::of_us(2_500);
/// AES-CCM, with AES-NI.
pub const CCM: Rate = Rate::of_us(350);

/// Computing 1 to 3 columns of parity: bytes of data. In the cache it would be 48,000, 30,000 and
/// 13,200.
pub const fn parity(columns: usize) -> Rate {
    Rate::of_us(match columns {
        0..=2 => 12_000,
        _ => 10_000,
    })
}

/// Reconstructing 1 to 3 columns of data from parity: bytes of data. In the cache it would be
/// 18,500 to 42,000, 16,700 to 24,400 and 15,300.
pub const fn reconstruction(columns: usize) -> Rate {
    Rate::of_us(match columns {
        0..=2 => 12_000,
        _ => 10_000,
    })
}

// The engine's own paths.
/// A file system operation, for each of its objects, without work on bytes.
pub const ZPL_OP: Nanos = Nanos(800);
/// A read or change of a volume, without work on bytes. Not measured alone.
pub const ZVOL_OP: Nanos = Nanos(800);
/// An entry of a directory listing.
pub const ZPL_ENTRY: Nanos = Nanos(200);
/// A transaction, with its attribute changes.
pub const DMU_TX: Nanos = Nanos(2_200);
/// A new object.
pub const DMU_ALLOC: Nanos = Nanos(3_000);
/// An entry of a micro ZAP: indexing it.
pub const ZAP_INDEX: Nanos = Nanos(150);
/// An entry of a micro ZAP that becomes fat: its hash, its place in a leaf, its share of splits.
pub const ZAP_MOVE: Nanos = Nanos(1_200);
/// Packing a record into an intent log block, without its bytes.
pub const ZIL_RECORD: Nanos = Nanos(500);
/// Sealing and issuing an intent log block, with its waiting commits, without its checksum.
pub const ZIL_BLOCK: Nanos = Nanos(10_000);
/// Syncing a dirty object, without its blocks.
pub const DMU_OBJECT: Nanos = Nanos(2_500);
/// Allocating a block, data or indirect, and queueing its writes, when a txg is synced. The figure
/// of `op_cost` includes the page allocations of the simulated disk, more than half of it; the
/// block of a new object costs some 5,000.
pub const DMU_BLOCK: Nanos = Nanos(4_000);
/// Examining a block pointer. Not measured alone.
pub const DMU_POINTER: Nanos = Nanos(50);
/// Reading a block that is not in the cache: queueing, completion, its place in the cache, without
/// work on its bytes.
pub const ZIO_READ: Nanos = Nanos(4_000);
/// Freeing a block to its metaslab, or adding it to a list.
pub const FREE: Nanos = Nanos(700);
/// Awaiting a completed write. Not measured alone.
pub const REAP: Nanos = Nanos(100);
/// Syncing the space map of a metaslab, without its runs. Not measured alone.
pub const METASLAB: Nanos = Nanos(10_000);
/// Writing a run of a space map. Not measured alone.
pub const SPACE_RUN: Nanos = Nanos(50);
/// Replaying an entry of a space map, or turning a segment of it into free space. Not measured
/// alone.
pub const SPACE_REPLAY: Nanos = Nanos(100);
/// Visiting a block in a walk through the trees of a pool.
pub const SCAN_VISIT: Nanos = Nanos(400);
/// Issuing the scrub or resilver of a copy, without its checksum.
pub const SCAN_ISSUE: Nanos = Nanos(2_500);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_give_times() {
        assert_eq!(COPY.cost(0), Nanos(0));
        assert_eq!(FLETCHER.cost(128 << 10), Nanos(4_369));
        assert_eq!(SHA512.cost(16 << 20), Nanos(24_314_805));
        assert_eq!(parity(1).cost(u64::MAX), Nanos((u128::from(u64::MAX) * 1000 / 12_000) as u64));
        assert_eq!(zstd(3), zstd(0));
        assert_eq!(zstd(105), ZSTD_FAST);
    }
}
