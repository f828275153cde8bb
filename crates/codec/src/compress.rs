//! Compression algorithms by number and name, and the two calls that every block goes through.
//!
//! Vocabulary. *lsize* is the size of a block as its object sees it, *psize* as it is stored: the
//! stream that [`compress`] makes, rounded up by the caller to whole sectors and filled with zeros.
//! So a stream must mark its own end; lz4 and zstd do it with a length in front, the others by
//! having produced lsize bytes. The headers are part of the stream here: [`compress`] writes
//! exactly the bytes on disk (format page 02, section 4).
//!
//! Normal path of a write: [`is_zero`] (a hole, nothing stored), [`compress`] with a limit of 7/8
//! of lsize, and on `None` the block is stored as it is. Of a read: [`decompress`] into a buffer of
//! exactly lsize bytes, after the checksum was found right; since the pool may be crafted, and
//! reconstruction tries wrong data on purpose, a stream is hostile anyway.

use base::{Error, Result};

use crate::{gzip, lz4, lzjb, zle, zstandard};

/// A compression algorithm; the numbers are those of block pointers (format page 02, section 4).
#[repr(u8)]
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum CompressAlgo {
    /// Property only: as the parent dataset.
    Inherit = 0,
    /// Property only: lz4 if its feature is active, else lzjb.
    On = 1,
    /// Stored as it is.
    Off = 2,
    /// LZJB.
    Lzjb = 3,
    /// Only all-zero blocks are compressed, to holes; no block has it.
    Empty = 4,
    /// zlib stream, level 1.
    Gzip1 = 5,
    /// zlib stream, level 2.
    Gzip2 = 6,
    /// zlib stream, level 3.
    Gzip3 = 7,
    /// zlib stream, level 4.
    Gzip4 = 8,
    /// zlib stream, level 5.
    Gzip5 = 9,
    /// zlib stream, level 6; the level of plain `gzip`.
    Gzip6 = 10,
    /// zlib stream, level 7.
    Gzip7 = 11,
    /// zlib stream, level 8.
    Gzip8 = 12,
    /// zlib stream, level 9.
    Gzip9 = 13,
    /// Runs of zeros only.
    Zle = 14,
    /// LZ4 block behind its length (feature `lz4_compress`).
    Lz4 = 15,
    /// Magicless Zstandard frame behind its length and level (feature `zstd_compress`).
    Zstd = 16,
}

impl CompressAlgo {
    /// Every algorithm, in the order of its number.
    pub const ALL: [CompressAlgo; 17] = [
        CompressAlgo::Inherit,
        CompressAlgo::On,
        CompressAlgo::Off,
        CompressAlgo::Lzjb,
        CompressAlgo::Empty,
        CompressAlgo::Gzip1,
        CompressAlgo::Gzip2,
        CompressAlgo::Gzip3,
        CompressAlgo::Gzip4,
        CompressAlgo::Gzip5,
        CompressAlgo::Gzip6,
        CompressAlgo::Gzip7,
        CompressAlgo::Gzip8,
        CompressAlgo::Gzip9,
        CompressAlgo::Zle,
        CompressAlgo::Lz4,
        CompressAlgo::Zstd,
    ];

    /// The algorithm with this number, `None` if there is none.
    pub fn from_u8(number: u8) -> Option<CompressAlgo> {
        Self::ALL.get(usize::from(number)).copied()
    }

    /// The name that `zdb` prints for a block: `lz4`, `gzip-6`.
    pub fn name(self) -> &'static str {
        match self {
            CompressAlgo::Inherit => "inherit",
            CompressAlgo::On => "on",
            CompressAlgo::Off => "uncompressed",
            CompressAlgo::Lzjb => "lzjb",
            CompressAlgo::Empty => "empty",
            CompressAlgo::Gzip1 => "gzip-1",
            CompressAlgo::Gzip2 => "gzip-2",
            CompressAlgo::Gzip3 => "gzip-3",
            CompressAlgo::Gzip4 => "gzip-4",
            CompressAlgo::Gzip5 => "gzip-5",
            CompressAlgo::Gzip6 => "gzip-6",
            CompressAlgo::Gzip7 => "gzip-7",
            CompressAlgo::Gzip8 => "gzip-8",
            CompressAlgo::Gzip9 => "gzip-9",
            CompressAlgo::Zle => "zle",
            CompressAlgo::Lz4 => "lz4",
            CompressAlgo::Zstd => "zstd",
        }
    }

    /// The zlib level 1..=9 of a gzip algorithm, `None` of any other.
    pub fn gzip_level(self) -> Option<u8> {
        let first = CompressAlgo::Gzip1 as u8;
        (first..=CompressAlgo::Gzip9 as u8).contains(&(self as u8)).then(|| self as u8 - first + 1)
    }
}

/// A value of the `compression` property: an algorithm and, for zstd, a level.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Compression {
    /// The algorithm.
    pub algo: CompressAlgo,
    /// For zstd its level byte (format page 02: 1..=19, 103..=123 for the fast levels), 0 for plain
    /// `zstd`, which is 3; 0 for all others.
    pub level: u8,
}

/// The level byte of `zstd-fast`, that is fast-1 (format page 02).
const FAST_1: u8 = 103;
/// Names of the zstd levels 1..=19.
const ZSTD_NAMES: [&str; 19] = [
    "zstd-1", "zstd-2", "zstd-3", "zstd-4", "zstd-5", "zstd-6", "zstd-7", "zstd-8", "zstd-9", "zstd-10", "zstd-11",
    "zstd-12", "zstd-13", "zstd-14", "zstd-15", "zstd-16", "zstd-17", "zstd-18", "zstd-19",
];
/// Names and speeds of the level bytes from [`FAST_1`] on. A speed of n is the library's level -n.
const ZSTD_FAST: [(&str, i32); 21] = [
    ("zstd-fast", 1),
    ("zstd-fast-2", 2),
    ("zstd-fast-3", 3),
    ("zstd-fast-4", 4),
    ("zstd-fast-5", 5),
    ("zstd-fast-6", 6),
    ("zstd-fast-7", 7),
    ("zstd-fast-8", 8),
    ("zstd-fast-9", 9),
    ("zstd-fast-10", 10),
    ("zstd-fast-20", 20),
    ("zstd-fast-30", 30),
    ("zstd-fast-40", 40),
    ("zstd-fast-50", 50),
    ("zstd-fast-60", 60),
    ("zstd-fast-70", 70),
    ("zstd-fast-80", 80),
    ("zstd-fast-90", 90),
    ("zstd-fast-100", 100),
    ("zstd-fast-500", 500),
    ("zstd-fast-1000", 1000),
];
/// Bits of a property value below the level (format page 02).
const LEVEL_SHIFT: u32 = 7;

impl Compression {
    /// No compression.
    pub const OFF: Compression = Compression { algo: CompressAlgo::Off, level: 0 };
    /// LZ4.
    pub const LZ4: Compression = Compression { algo: CompressAlgo::Lz4, level: 0 };
    /// LZJB.
    pub const LZJB: Compression = Compression { algo: CompressAlgo::Lzjb, level: 0 };

    /// The compression that a property value as typed names: `lz4`, `gzip`, `gzip-9`, `zstd-3`,
    /// `zstd-fast-10`, `off`...
    pub fn parse(value: &str) -> Option<Compression> {
        let plain = |algo| Some(Compression { algo, level: 0 });
        let zstd = |level| Some(Compression { algo: CompressAlgo::Zstd, level });
        match value {
            "on" => plain(CompressAlgo::On),
            "off" => plain(CompressAlgo::Off),
            "lzjb" => plain(CompressAlgo::Lzjb),
            "zle" => plain(CompressAlgo::Zle),
            "lz4" => plain(CompressAlgo::Lz4),
            "gzip" => plain(CompressAlgo::Gzip6),
            "zstd" => zstd(0),
            "zstd-fast-1" => zstd(FAST_1),
            _ => {
                if let Some(algo) =
                    CompressAlgo::ALL.into_iter().find(|a| a.gzip_level().is_some() && a.name() == value)
                {
                    plain(algo)
                } else if let Some(i) = ZSTD_NAMES.iter().position(|n| *n == value) {
                    zstd(i as u8 + 1)
                } else {
                    ZSTD_FAST.iter().position(|(n, _)| *n == value).and_then(|i| zstd(i as u8 + FAST_1))
                }
            }
        }
    }

    /// The property value as `zfs get` prints it. Of two names for one value it is the shorter:
    /// `gzip`, `zstd-fast`.
    pub fn name(self) -> &'static str {
        match (self.algo, self.level) {
            (CompressAlgo::Off, _) => "off",
            (CompressAlgo::Gzip6, _) => "gzip",
            (CompressAlgo::Zstd, level @ 1..=19) => ZSTD_NAMES[usize::from(level) - 1],
            (CompressAlgo::Zstd, level) => match level.checked_sub(FAST_1).map(usize::from) {
                Some(i) if i < ZSTD_FAST.len() => ZSTD_FAST[i].0,
                _ => "zstd",
            },
            (algo, _) => algo.name(),
        }
    }

    /// The number stored for the property: `algorithm | level << 7`.
    pub fn to_prop(self) -> u64 {
        u64::from(self.algo as u8) | u64::from(self.level) << LEVEL_SHIFT
    }

    /// The compression that a stored property number means; `None` for an unknown algorithm or
    /// level.
    pub fn from_prop(value: u64) -> Option<Compression> {
        let algo = CompressAlgo::from_u8((value & ((1 << LEVEL_SHIFT) - 1)) as u8)?;
        let level = u8::try_from(value >> LEVEL_SHIFT).ok()?;
        let known = match algo {
            CompressAlgo::Zstd => matches!(level, 0..=19) || level.checked_sub(FAST_1).is_some_and(|i| i < 21),
            _ => level == 0,
        };
        known.then_some(Compression { algo, level })
    }

    /// The level as the zstd library counts it, and the level byte to store.
    fn zstd_level(self) -> (i32, u8) {
        match self.level {
            0 => (3, 3),
            level @ 1..=19 => (i32::from(level), level),
            level => match level.checked_sub(FAST_1).map(usize::from) {
                Some(i) if i < ZSTD_FAST.len() => (-ZSTD_FAST[i].1, level),
                _ => (3, 3),
            },
        }
    }
}

/// Compresses `src` into `dst` and returns the length of the stream, at most `limit`; `None` if it
/// would be longer, or if `c` compresses nothing (`off`, `empty`). The stream has the headers of
/// lz4 and zstd, exactly as stored on disk. `dst` may be larger than `limit` and its bytes beyond
/// the stream are unspecified afterwards.
///
/// # Panics
/// If `dst` is shorter than `limit`, or if `c` is `inherit` or `on`: which algorithm these mean
/// depends on the dataset and on the pool's features, so the caller must have resolved them.
pub fn compress(c: Compression, src: &[u8], dst: &mut [u8], limit: usize) -> Option<usize> {
    assert!(dst.len() >= limit, "compress: a limit of {limit} bytes needs that much room, not {}", dst.len());
    // A header has 32 bits for the length; blocks are at most 16 MiB.
    if src.len() > i32::MAX as usize {
        return None;
    }
    match c.algo {
        CompressAlgo::Inherit | CompressAlgo::On => panic!("compress: {} was not resolved", c.algo.name()),
        CompressAlgo::Off | CompressAlgo::Empty => None,
        CompressAlgo::Lzjb => lzjb::compress(src, &mut dst[..limit]),
        CompressAlgo::Zle => zle::compress(src, &mut dst[..limit]),
        CompressAlgo::Lz4 => lz4::compress(src, dst, limit),
        CompressAlgo::Zstd => {
            let (level, byte) = c.zstd_level();
            zstandard::compress(level, byte, src, &mut dst[..limit])
        }
        CompressAlgo::Gzip1
        | CompressAlgo::Gzip2
        | CompressAlgo::Gzip3
        | CompressAlgo::Gzip4
        | CompressAlgo::Gzip5
        | CompressAlgo::Gzip6
        | CompressAlgo::Gzip7
        | CompressAlgo::Gzip8
        | CompressAlgo::Gzip9 => {
            let level = c.algo.gzip_level().expect("the match arm lists the gzip algorithms");
            gzip::compress(level, src, &mut dst[..limit])
        }
    }
}

/// Decompresses the stream at the start of `src` into all of `dst`, which is exactly lsize bytes
/// long. Bytes after the stream in `src` are ignored: psize is rounded up.
///
/// Errors: `Corrupt` if `src` is not a stream of exactly that many bytes; `dst` is then
/// unspecified. `off` copies.
pub fn decompress(algo: CompressAlgo, src: &[u8], dst: &mut [u8]) -> Result<()> {
    match algo {
        CompressAlgo::Off => match src.get(..dst.len()) {
            Some(data) => {
                dst.copy_from_slice(data);
                Ok(())
            }
            None => Err(Error::corrupt(format!("uncompressed block of {} bytes holds {}", dst.len(), src.len()))),
        },
        CompressAlgo::Lzjb => lzjb::decompress(src, dst),
        CompressAlgo::Zle => zle::decompress(src, dst),
        CompressAlgo::Lz4 => lz4::decompress(src, dst),
        CompressAlgo::Zstd => zstandard::decompress(src, dst),
        CompressAlgo::Inherit | CompressAlgo::On | CompressAlgo::Empty => {
            Err(Error::corrupt(format!("no block can have compression {}", algo.name())))
        }
        CompressAlgo::Gzip1
        | CompressAlgo::Gzip2
        | CompressAlgo::Gzip3
        | CompressAlgo::Gzip4
        | CompressAlgo::Gzip5
        | CompressAlgo::Gzip6
        | CompressAlgo::Gzip7
        | CompressAlgo::Gzip8
        | CompressAlgo::Gzip9 => gzip::decompress(src, dst),
    }
}

/// True if every byte of `data` is 0. Stops within a few hundred bytes of the first that is not.
pub fn is_zero(data: &[u8]) -> bool {
    // Wide chunks without an early exit inside, which the compiler turns into vector ORs.
    let (chunks, rest) = data.as_chunks::<256>();
    let word = |b: &[u8; 8]| u64::from_ne_bytes(*b);
    chunks.iter().all(|c| c.as_chunks::<8>().0.iter().fold(0, |acc, b| acc | word(b)) == 0)
        && rest.iter().fold(0, |acc, b| acc | b) == 0
}

/// The error of a stream that does not decompress to the expected bytes.
pub(crate) fn corrupt(algo: &str, what: impl std::fmt::Display) -> Error {
    Error::corrupt(format!("{algo} stream is damaged: {what}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_levels() {
        for (i, algo) in CompressAlgo::ALL.into_iter().enumerate() {
            assert_eq!(algo as usize, i);
            assert_eq!(CompressAlgo::from_u8(i as u8), Some(algo));
            assert_eq!(algo.gzip_level(), (5..=13).contains(&i).then(|| i as u8 - 4));
        }
        assert_eq!(CompressAlgo::from_u8(17), None);
    }

    #[test]
    fn property_values_are_those_of_real_pools() {
        // format page 02, section 4
        for (name, value) in [
            ("on", 1),
            ("off", 2),
            ("lzjb", 3),
            ("gzip-1", 5),
            ("gzip", 10),
            ("gzip-9", 13),
            ("zle", 14),
            ("lz4", 15),
            ("zstd", 16),
            ("zstd-1", 144),
            ("zstd-3", 400),
            ("zstd-19", 2448),
            ("zstd-fast", 13200),
            ("zstd-fast-10", 16 | 0x70 << 7),
            ("zstd-fast-1000", 15760),
        ] {
            let c = Compression::parse(name).unwrap();
            assert_eq!(c.to_prop(), value, "{name}");
            assert_eq!(Compression::from_prop(value), Some(c));
            assert_eq!(c.name(), name);
        }
        assert_eq!(Compression::parse("gzip-6"), Compression::parse("gzip"));
        assert_eq!(Compression::parse("zstd-fast-1"), Compression::parse("zstd-fast"));
        for bad in
            ["", "lz5", "gzip-0", "gzip-10", "zstd-0", "zstd-20", "zstd-fast-0", "zstd-fast-11", "inherit", "empty"]
        {
            assert_eq!(Compression::parse(bad), None, "{bad}");
        }
        for bad in [17, 127, 15 | 1 << 7, 16 | 20 << 7, 16 | 102 << 7, 16 | 124 << 7, 16 | 256 << 7, u64::MAX] {
            assert_eq!(Compression::from_prop(bad), None, "{bad}");
        }
        for value in 0..1 << 15 {
            if let Some(c) = Compression::from_prop(value) {
                assert_eq!(c.to_prop(), value);
                if !matches!(c.algo, CompressAlgo::Inherit | CompressAlgo::Empty) {
                    assert_eq!(Compression::parse(c.name()), Some(c));
                }
            }
        }
    }

    #[test]
    fn zstd_levels() {
        let level = |name| Compression::parse(name).unwrap().zstd_level();
        assert_eq!(level("zstd"), (3, 3));
        assert_eq!(level("zstd-19"), (19, 19));
        assert_eq!(level("zstd-fast"), (-1, 103));
        assert_eq!(level("zstd-fast-20"), (-20, 113));
        assert_eq!(level("zstd-fast-100"), (-100, 121));
        assert_eq!(level("zstd-fast-500"), (-500, 122));
        assert_eq!(level("zstd-fast-1000"), (-1000, 123));
    }

    #[test]
    fn is_zero_sees_every_byte() {
        let mut data = vec![0u8; 1200];
        for len in [0, 1, 7, 255, 256, 257, 512, 1200] {
            assert!(is_zero(&data[..len]));
            for at in 0..len {
                data[at] = 0x80;
                assert!(!is_zero(&data[..len]), "{at} of {len}");
                data[at] = 0;
            }
        }
    }
}
