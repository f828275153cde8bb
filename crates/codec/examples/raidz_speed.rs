//! Measures RAID-Z parity on one core: `cargo run --release -p openweir-codec --example raidz_speed
//! [DATA_COLUMNS] [BLOCK_SIZE]`.
//!
//! Figures are the best of several short runs, in MB/s (10^6 bytes) of data, that is the size of
//! the block by the time, divided by the number of data columns: the disk_bw of OpenZFS's
//! `raidz_test -B`. Names are those of raidz_test: gen_pq computes P and Q, rec_pr reconstructs two
//! data columns from P and R. Sizes default to 8 columns and 128 KiB.

use std::hint::black_box;
use std::time::{Duration, Instant};

use codec::raidz::{Kernel, generate_with, reconstruct_with};

fn main() {
    let mut args = std::env::args().skip(1).map(|a| a.parse::<usize>().expect("arguments are numbers"));
    let columns = args.next().unwrap_or(8);
    let size = args.next().unwrap_or(128 << 10);
    let len = size / columns;
    println!("{columns} data columns, {size} bytes of data");
    print!("{:10}", "MB/s");
    let kernels = Kernel::available();
    kernels.iter().for_each(|k| print!(" {:>11}", format!("{k:?}")));
    println!();

    let mut data: Vec<Vec<u8>> =
        (0..columns).map(|c| (0..len).map(|i| (i * 7 + i / 251 + c * 31) as u8).collect()).collect();
    let mut parity = vec![vec![0u8; len]; 3];
    for (count, name) in [(1, "gen_p"), (2, "gen_pq"), (3, "gen_pqr")] {
        print!("{name:10}");
        let columns_in: Vec<&[u8]> = data.iter().map(Vec::as_slice).collect();
        let mut rows: Vec<&mut [u8]> = parity.iter_mut().take(count).map(Vec::as_mut_slice).collect();
        for &kernel in &kernels {
            let rate = best(size, || generate_with(kernel, black_box(&columns_in), black_box(&mut rows)));
            print!(" {:>11.0}", rate / columns as f64);
        }
        println!();
    }
    let ways: [(&str, &[usize]); 7] = [
        ("rec_p", &[0]),
        ("rec_q", &[1]),
        ("rec_r", &[2]),
        ("rec_pq", &[0, 1]),
        ("rec_pr", &[0, 2]),
        ("rec_qr", &[1, 2]),
        ("rec_pqr", &[0, 1, 2]),
    ];
    for (name, used) in ways {
        print!("{name:10}");
        let missing: Vec<usize> = (0..used.len().min(columns)).collect();
        let given: Vec<Option<&[u8]>> = (0..3).map(|y| used.contains(&y).then_some(parity[y].as_slice())).collect();
        for &kernel in &kernels {
            let mut columns_out: Vec<&mut [u8]> = data.iter_mut().map(Vec::as_mut_slice).collect();
            let rate = best(size, || reconstruct_with(kernel, black_box(&mut columns_out), &missing, &given));
            print!(" {:>11.0}", rate / columns as f64);
        }
        println!();
    }
}

/// The best rate of runs of at least 10 ms each, in units of 10^6 bytes a second.
fn best(bytes: usize, mut run: impl FnMut()) -> f64 {
    run();
    let mut best = 0f64;
    for _ in 0..20 {
        let begin = Instant::now();
        let mut count = 0usize;
        while begin.elapsed() < Duration::from_millis(10) {
            for _ in 0..8 {
                run();
                count += 1;
            }
        }
        best = best.max((bytes * count) as f64 / begin.elapsed().as_secs_f64() / 1e6);
    }
    best
}
