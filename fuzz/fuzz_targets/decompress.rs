//! Decompressors on hostile streams, and round trips of the compressors on the same bytes.
//!
//! Input: algorithm (1 byte), size of the block (3 bytes, little-endian, cut to 256 KiB), flags (1
//! byte), then the stream. Flag bit 0 writes a matching length into the header of lz4 and zstd,
//! without which the fuzzer seldom gets behind it.
#![no_main]

use codec::{CompressAlgo, Compression, compress, decompress, is_zero};
use libfuzzer_sys::fuzz_target;
use weir_fuzz::{after, seeds};

fn make_seeds() -> Vec<Vec<u8>> {
    let text = b"to be or not to be, to be or not to be, ".repeat(20);
    let mut out = vec![after(&[3, 0, 4, 0, 0], &text)];
    for n in 0..17 {
        let Some(algo) = CompressAlgo::from_u8(n).filter(|a| !matches!(a, CompressAlgo::Inherit | CompressAlgo::On))
        else {
            continue;
        };
        let mut room = vec![0; text.len() * 2];
        let limit = room.len();
        if let Some(len) = compress(Compression { algo, level: 0 }, &text, &mut room, limit) {
            let size = (text.len() as u32).to_le_bytes();
            out.push(after(&[n, size[0], size[1], size[2], 0], &room[..len]));
        }
    }
    out
}

fuzz_target!(init: seeds(make_seeds), |input: &[u8]| {
    let Some((&[algo, s0, s1, s2, flags], data)) = input.split_first_chunk() else { return };
    let Some(algo) = CompressAlgo::from_u8(algo % 17) else { return };
    let size = u32::from_le_bytes([s0, s1, s2, 0]) as usize % ((256 << 10) + 1);

    let mut stream = data.to_vec();
    let header = match algo {
        CompressAlgo::Lz4 => 4,
        CompressAlgo::Zstd => 8,
        _ => 0,
    };
    if flags & 1 != 0 && header != 0 && stream.len() > header {
        let body = (stream.len() - header) as u32;
        stream[..4].copy_from_slice(&body.to_be_bytes());
    }
    let mut block = vec![0xa5; size];
    let first = decompress(algo, &stream, &mut block).is_ok();
    let mut again = vec![0x5a; size];
    let second = decompress(algo, &stream, &mut again).is_ok();
    assert_eq!(first, second, "the outcome depends on what was there before");
    if first {
        assert!(block == again, "bytes of the block were left as they were");
    }

    assert_eq!(is_zero(data), data.iter().all(|b| *b == 0));
    if !matches!(algo, CompressAlgo::Inherit | CompressAlgo::On) {
        let level = if algo == CompressAlgo::Zstd { flags >> 1 & 7 } else { 0 };
        let mut room = vec![0; data.len() + data.len() / 4 + 64];
        let limit = if flags & 0x80 != 0 { data.len() - data.len() / 8 } else { room.len() };
        if let Some(n) = compress(Compression { algo, level }, data, &mut room, limit) {
            assert!(n <= limit);
            let mut back = vec![0; data.len()];
            decompress(algo, &room[..n], &mut back).expect("what was compressed decompresses");
            assert!(back == data, "the round trip changed the block");
        }
    }
});
