//! Measures every checksum kernel and compressor on one core:
//! `cargo run --release -p openweir-codec --example codec_speed [FILE]`.
//!
//! Each figure is the best of several short runs over blocks of 128 KiB, in GB/s of uncompressed
//! data. The first table sets checksums of data that is in memory, not in a cache, beside the
//! memory's own speed: reading it and copying it. FILE is the data to compress; without it,
//! text-like data is made up, whose ratios mean little.

use std::hint::black_box;
use std::time::{Duration, Instant};

use codec::fletcher::Kernel;
use codec::{Compression, compress, decompress};

const BLOCK: usize = 128 << 10;
const MEMORY: usize = 256 << 20;

fn main() {
    let data = match std::env::args().nth(1) {
        Some(path) => {
            let mut data = std::fs::read(&path).unwrap_or_else(|e| panic!("{path}: {e}"));
            data.truncate(data.len().min(8 << 20) / BLOCK * BLOCK);
            assert!(!data.is_empty(), "{path} is shorter than one block");
            data
        }
        None => text(4 << 20),
    };
    let noise = noise(1 << 20);
    let block = &data[..BLOCK];

    memory();

    println!("{:28} {:>8}", "checksum", "GB/s");
    for kernel in Kernel::available() {
        for (order, big) in [("le", false), ("be", true)] {
            rate(&format!("fletcher4 {kernel:?} {order}"), BLOCK, || {
                black_box(kernel.fletcher4(black_box(block), big));
            });
        }
    }
    rate("fletcher4 as chosen, 512 B", 512, || {
        black_box(codec::fletcher4(black_box(&block[..512])));
    });
    rate("fletcher4 as chosen, 4 KiB", 4096, || {
        black_box(codec::fletcher4(black_box(&block[..4096])));
    });
    rate("fletcher2 le", BLOCK, || {
        black_box(codec::fletcher2(black_box(block)));
    });
    rate("fletcher2 be", BLOCK, || {
        black_box(codec::fletcher2_be(black_box(block)));
    });
    rate("sha256", BLOCK, || {
        black_box(codec::sha256(black_box(block)));
    });
    rate("sha512/256", BLOCK, || {
        black_box(codec::sha512_256(black_box(block)));
    });
    let zeros = vec![0u8; BLOCK];
    rate("is_zero of zeros", BLOCK, || {
        black_box(codec::is_zero(black_box(&zeros)));
    });

    println!("\n{:14} {:>6} {:>10} {:>12} {:>16}", "compression", "ratio", "compress", "decompress", "compress noise");
    for name in [
        "lzjb",
        "zle",
        "lz4",
        "gzip-1",
        "gzip",
        "gzip-9",
        "zstd-fast-10",
        "zstd-fast",
        "zstd-1",
        "zstd-3",
        "zstd-9",
        "zstd-19",
    ] {
        let c = Compression::parse(name).expect("the names are property values");
        let limit = BLOCK - BLOCK / 8;
        let mut room = vec![0u8; BLOCK];
        let mut streams = Vec::new();
        let mut stored = 0;
        for block in data.chunks_exact(BLOCK) {
            let n = compress(c, block, &mut room, limit);
            stored += n.unwrap_or(BLOCK);
            streams.extend(n.map(|n| room[..n].to_vec()));
        }
        let squeeze = best(data.len(), || {
            for block in data.chunks_exact(BLOCK) {
                black_box(compress(c, black_box(block), &mut room, limit));
            }
        });
        let expand = best(streams.len() * BLOCK, || {
            for stream in &streams {
                decompress(c.algo, black_box(stream), &mut room).expect("the stream was just made");
            }
        });
        let useless = best(noise.len(), || {
            for block in noise.chunks_exact(BLOCK) {
                black_box(compress(c, black_box(block), &mut room, limit));
            }
        });
        let ratio = data.len() as f64 / stored as f64;
        println!("{name:14} {ratio:>6.2} {squeeze:>10.3} {expand:>12.3} {useless:>16.3}");
    }
}

/// Checksums of 256 MiB beside reading and copying them, in blocks of 128 KiB.
fn memory() {
    let from = noise(MEMORY);
    let mut to = vec![0u8; MEMORY];
    let read = best(MEMORY, || {
        // As wide as the compiler makes it, in several independent sums.
        let mut sums = [0u64; 32];
        for chunk in from.chunks_exact(256) {
            for (sum, word) in sums.iter_mut().zip(chunk.chunks_exact(8)) {
                *sum ^= u64::from_le_bytes(word.try_into().expect("eight bytes"));
            }
        }
        black_box(sums);
    });
    let copy = best(MEMORY, || black_box(&mut to).copy_from_slice(black_box(&from)));
    println!("{:28} {:>8} {:>8} {:>8}", "256 MiB in memory", "GB/s", "of read", "of copy");
    let row = |name: &str, rate: f64| println!("{name:28} {rate:>8.2} {:>8.2} {:>8.2}", rate / read, rate / copy);
    row("read", read);
    row("copy", copy);
    let blocks = |f: &mut dyn FnMut(&[u8])| best(MEMORY, || from.chunks_exact(BLOCK).for_each(&mut *f));
    row("fletcher4", blocks(&mut |b| _ = black_box(codec::fletcher4(black_box(b)))));
    row("sha256", blocks(&mut |b| _ = black_box(codec::sha256(black_box(b)))));
    println!();
}

fn rate(name: &str, bytes: usize, run: impl FnMut()) {
    println!("{name:28} {:>8.2}", best(bytes, run));
}

/// The best GB/s of runs of at least 20 ms each, for at most about half a second.
fn best(bytes: usize, mut run: impl FnMut()) -> f64 {
    run();
    let mut best = 0f64;
    let start = Instant::now();
    for _ in 0..10 {
        let begin = Instant::now();
        let mut count = 0usize;
        while begin.elapsed() < Duration::from_millis(20) {
            for _ in 0..(1 + (64 << 10) / bytes.max(1)) {
                run();
                count += 1;
            }
        }
        best = best.max((bytes * count) as f64 / begin.elapsed().as_secs_f64() / 1e9);
        if start.elapsed() > Duration::from_millis(500) {
            break;
        }
    }
    best
}

fn splitmix(seed: &mut u64) -> u64 {
    *seed = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let z = (*seed ^ (*seed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

fn noise(len: usize) -> Vec<u8> {
    let mut seed = 1;
    (0..len / 8).flat_map(|_| splitmix(&mut seed).to_le_bytes()).collect()
}

fn text(len: usize) -> Vec<u8> {
    let mut seed = 2;
    let words: Vec<Vec<u8>> = (0..300)
        .map(|_| {
            let n = 2 + splitmix(&mut seed) % 9;
            (0..n).map(|_| b'a' + (splitmix(&mut seed) % 26) as u8).chain([b' ']).collect()
        })
        .collect();
    let mut out = Vec::with_capacity(len + 16);
    while out.len() < len {
        // Squaring makes some words common and most rare, as in real text.
        let r = splitmix(&mut seed) % 1000 * (splitmix(&mut seed) % 1000) * 300 / 1_000_000;
        out.extend_from_slice(&words[r as usize]);
    }
    out.truncate(len);
    out
}
