//! Any bytes: a rescue ends without a panic, and what it calls good is good.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::os::unix::fs::FileExt;

use common::{Folder, fixture_pool, report, run, untold};

/// A small multiplicative generator.
struct Rng(u64);

impl Rng {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % n.max(1)
    }
}

/// Noise at random places in the used part of the device, from a few bytes to most of it.
#[test]
fn noise_anywhere() {
    for seed in 0..12u64 {
        let folder = Folder::new(&format!("noise{seed}"));
        let manifest = fixture_pool(folder.path());
        let image = folder.path().join("d0.img");
        let mut rng = Rng(seed * 7919 + 1);
        let f = std::fs::File::options().read(true).write(true).open(&image).unwrap();
        // The labels stay in half of the runs.
        let from = if seed % 2 == 0 { 0 } else { 4 << 20 };
        for _ in 0..1u64 << (seed % 12) {
            let at = from + rng.below((20 << 20) - from);
            let len = 1 + rng.below(4096) as usize;
            let noise: Vec<u8> = (0..len).map(|_| rng.below(256) as u8).collect();
            f.write_all_at(&noise, at).unwrap();
        }
        let out = Folder::new(&format!("noise{seed}-out"));
        let (code, text) = run(&["-q", "-s", "-o", out.path().to_str().unwrap(), folder.path().to_str().unwrap()]);
        if code == 2 {
            assert!(!text.is_empty());
            continue;
        }
        let report = report(out.path());
        assert_eq!(untold(out.path(), &manifest, &report), Vec::<String>::new(), "seed {seed}: {report}");
    }
}

/// Devices that are cut off, empty, or not of the pool.
#[test]
fn devices_that_are_none() {
    let folder = Folder::new("odd");
    fixture_pool(folder.path());
    let image = folder.path().join("d0.img");
    let size = std::fs::metadata(&image).unwrap().len();
    let out = Folder::new("odd-out");
    for (n, len) in [size - 1, size / 2, 9 << 20, 1 << 20, 100_000, 5, 0].into_iter().enumerate() {
        let f = std::fs::File::options().write(true).open(&image).unwrap();
        f.set_len(len).unwrap();
        let o = out.path().join(n.to_string());
        let (code, text) = run(&["-q", "-o", o.to_str().unwrap(), image.to_str().unwrap()]);
        assert!(code <= 2 && !text.is_empty(), "{len}: {code} {text}");
        let (code, _) = run(&["-q", "-o", o.to_str().unwrap(), "raidz1", image.to_str().unwrap(), "-", "-"]);
        assert!(code <= 2);
    }
}
