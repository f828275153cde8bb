//! Properties of every compression algorithm and level: a round trip gives the input, limits hold,
//! damage is an error.

#![allow(clippy::unwrap_used)]

use codec::{CompressAlgo, Compression, compress, decompress};

/// SplitMix64.
struct Rng(u64);

impl Rng {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
    fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }
}

/// Blocks of every kind: zeros, noise, text-like, runs, sparse, and mixtures.
fn block(kind: usize, len: usize, rng: &mut Rng) -> Vec<u8> {
    match kind % 7 {
        0 => vec![0; len],
        1 => (0..len).map(|_| rng.next() as u8).collect(),
        2 => {
            let words = ["pool ", "vdev ", "dataset ", "snapshot\n", "txg ", "a", "\u{e4}"];
            let mut out = Vec::new();
            while out.len() < len {
                out.extend_from_slice(words[rng.below(words.len())].as_bytes());
            }
            out.truncate(len);
            out
        }
        3 => {
            let mut out = Vec::new();
            while out.len() < len {
                let (byte, n) = (rng.next() as u8, 1 + rng.below(300));
                out.extend(std::iter::repeat_n(byte, n));
            }
            out.truncate(len);
            out
        }
        4 => {
            let mut out = vec![0; len];
            for _ in 0..len / 50 {
                let at = rng.below(len);
                out[at] = rng.next() as u8;
            }
            out
        }
        5 => {
            let period = 1 + rng.below(2000);
            let pattern: Vec<u8> = (0..period).map(|_| rng.next() as u8).collect();
            pattern.into_iter().cycle().take(len).collect()
        }
        _ => {
            let mut out = Vec::new();
            while out.len() < len {
                let kind = rng.below(6);
                let n = 1 + rng.below(5000);
                out.extend(block(kind, n, rng));
            }
            out.truncate(len);
            out
        }
    }
}

fn every_compression() -> Vec<Compression> {
    (0..1 << 15)
        .filter_map(Compression::from_prop)
        .filter(|c| {
            !matches!(c.algo, CompressAlgo::Inherit | CompressAlgo::On | CompressAlgo::Off | CompressAlgo::Empty)
        })
        .collect()
}

/// One of each algorithm, for the tests that run many cases.
fn one_of_each() -> Vec<Compression> {
    ["lzjb", "zle", "lz4", "gzip-1", "gzip-6", "zstd-3", "zstd-fast-10"].map(|n| Compression::parse(n).unwrap()).into()
}

fn round_trip(c: Compression, src: &[u8]) -> Option<Vec<u8>> {
    let mut dst = vec![0xaa; src.len() + src.len() / 4 + 64];
    let limit = dst.len();
    let n = compress(c, src, &mut dst, limit).unwrap_or_else(|| panic!("{} of {} bytes", c.name(), src.len()));
    dst.truncate(n);
    // Rounded up with zeros as on disk; the junk in `out` must all be overwritten.
    let mut stored = dst.clone();
    stored.resize(n.next_multiple_of(512), 0);
    let mut out = vec![0x55; src.len()];
    decompress(c.algo, &stored, &mut out).unwrap_or_else(|e| panic!("{} of {} bytes: {e}", c.name(), src.len()));
    assert!(out == src, "{} of {} bytes came back different", c.name(), src.len());
    if !src.is_empty() {
        assert!(decompress(c.algo, &stored, &mut vec![0; src.len() + 513]).is_err() || c.algo == CompressAlgo::Zle);
    }
    Some(dst)
}

#[test]
fn every_level_round_trips() {
    let mut rng = Rng(1);
    assert_eq!(every_compression().len(), 1 + 9 + 1 + 1 + 1 + 19 + 21);
    for c in every_compression() {
        let small = c.algo == CompressAlgo::Zstd && (10..=19).contains(&c.level);
        for kind in 0..7 {
            let len = if small { 16384 } else { 40960 };
            round_trip(c, &block(kind, len, &mut rng));
        }
    }
}

#[test]
fn every_algorithm_round_trips_at_many_lengths() {
    let mut rng = Rng(2);
    for c in one_of_each() {
        for len in (0..80).chain([127, 128, 129, 191, 192, 193, 511, 512, 513, 1022, 1023, 1024, 1025, 1090]) {
            for kind in 0..7 {
                if len == 0 && kind % 7 == 4 {
                    continue;
                }
                round_trip(c, &block(kind, len, &mut rng));
            }
        }
        for kind in 0..7 {
            for len in [4096, 65534, 65535, 65536, 131072] {
                round_trip(c, &block(kind, len, &mut rng));
            }
        }
    }
}

#[test]
fn a_large_block_round_trips() {
    let mut rng = Rng(3);
    let src = block(6, 4 << 20, &mut rng);
    for c in one_of_each() {
        round_trip(c, &src);
    }
}

#[test]
fn the_limit_is_exact_and_nothing_is_written_beyond_a_tight_buffer() {
    let mut rng = Rng(4);
    for c in one_of_each() {
        for kind in [2, 3, 4, 5] {
            let src = block(kind, 8192, &mut rng);
            let n = round_trip(c, &src).unwrap().len();
            let mut dst = vec![0; n];
            // zlib and zstd may take another way when the room is short, but never more room.
            if let Some(m) = compress(c, &src, &mut dst, n) {
                assert!(m <= n);
                let mut out = vec![0; src.len()];
                decompress(c.algo, &dst[..m], &mut out).unwrap();
                assert_eq!(out, src);
            } else {
                assert!(matches!(c.algo, CompressAlgo::Zstd), "{}", c.name());
            }
            for limit in [0, 1, 3, 4, 7, 8, 9, n / 2] {
                let got = compress(c, &src, &mut dst[..limit], limit);
                assert!(got.is_none_or(|m| m <= limit), "{} limit {limit}", c.name());
            }
        }
        // Noise does not reach 7/8.
        let src = block(1, 131072, &mut rng);
        assert_eq!(compress(c, &src, &mut vec![0; 131072], 131072 - 131072 / 8), None, "{}", c.name());
    }
}

#[test]
fn off_and_empty_compress_nothing() {
    for algo in [CompressAlgo::Off, CompressAlgo::Empty] {
        assert_eq!(compress(Compression { algo, level: 0 }, &[0; 512], &mut [0; 512], 512), None);
    }
    let mut out = [0; 4];
    decompress(CompressAlgo::Off, b"abcdef", &mut out).unwrap();
    assert_eq!(&out, b"abcd");
    assert!(decompress(CompressAlgo::Off, b"abc", &mut out).is_err());
    for algo in [CompressAlgo::Inherit, CompressAlgo::On, CompressAlgo::Empty] {
        assert!(decompress(algo, b"abcdef", &mut out).is_err());
    }
}

#[test]
fn damaged_streams_never_panic() {
    let mut rng = Rng(5);
    for c in one_of_each() {
        for round in 0..400 {
            let len = 1 + rng.below(6000);
            let src = block(2 + round % 5, len, &mut rng);
            let mut stream = vec![0; len * 2 + 100];
            let limit = stream.len();
            let n = compress(c, &src, &mut stream, limit).unwrap();
            stream.truncate(n);
            for _ in 0..1 + rng.below(4) {
                match rng.below(5) {
                    0 => stream.truncate(rng.below(stream.len() + 1)),
                    1 => stream.extend((0..rng.below(40)).map(|i| i as u8)),
                    2 if !stream.is_empty() => {
                        let (a, b) = (rng.below(stream.len()), rng.below(stream.len()));
                        stream.swap(a, b);
                    }
                    _ if !stream.is_empty() => {
                        let at =
                            if rng.below(2) == 0 { rng.below(stream.len().min(24)) } else { rng.below(stream.len()) };
                        stream[at] ^= 1 << rng.below(8);
                    }
                    _ => {}
                }
            }
            let size = if rng.below(2) == 0 { len } else { rng.below(2 * len) };
            let mut out = vec![0; size];
            let _ = decompress(c.algo, &stream, &mut out);
        }
        // A good stream after all that still comes out right: no state is left behind.
        round_trip(c, &block(2, 10000, &mut rng));
    }
}

#[test]
fn noise_is_no_stream_but_never_panics() {
    let mut rng = Rng(6);
    for c in one_of_each() {
        for _ in 0..2000 {
            let n = rng.below(200);
            let mut src = block(1, n, &mut rng);
            // Let the lengths of lz4 and zstd be plausible most of the time, or the code behind
            // them is not reached.
            if src.len() > 8 && rng.below(8) != 0 {
                let header = if c.algo == CompressAlgo::Zstd { 8 } else { 4 };
                if matches!(c.algo, CompressAlgo::Zstd | CompressAlgo::Lz4) {
                    let body = (src.len() - header) as u32;
                    src[..4].copy_from_slice(&body.to_be_bytes());
                }
            }
            let mut out = vec![0; rng.below(3000)];
            let _ = decompress(c.algo, &src, &mut out);
        }
    }
}
