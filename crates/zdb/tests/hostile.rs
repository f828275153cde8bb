//! Damage: with any bytes a check ends, does not panic, and either reports errors or is unaffected.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::cell::Cell;

use common::{Folder, extents, fixture, write_image, zdb};
use zdb::{CheckOpts, PoolReader, check, tree_manifest};

/// A small multiplicative generator.
struct Rng(Cell<u64>);

impl Rng {
    fn next(&self, below: usize) -> usize {
        self.0.set(self.0.get().wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407));
        (self.0.get() >> 33) as usize % below.max(1)
    }
    fn hurt(&self, b: &mut u8) {
        *b = match self.next(6) {
            0 => 0xff,
            1 => 0,
            2 => b.wrapping_add(1),
            3 => b.wrapping_sub(1),
            4 => *b ^ 1 << self.next(8),
            _ => self.next(256) as u8,
        };
    }
}

fn pool(folder: &Folder) -> Vec<std::path::PathBuf> {
    vec![folder.path().join("d0.img")]
}

/// One byte changed in a block that is in use is one error at least; a byte in free space is none.
/// The checksums detect it.
#[test]
fn flipped_bytes_are_found() {
    let folder = Folder::new("flips");
    let (size, ext) = extents(&fixture("names.pack.zst"));
    let rounds = std::env::var("ZDB_ROUNDS").ok().and_then(|r| r.parse().ok()).unwrap_or(3u64);
    for seed in 0..rounds {
        let rng = Rng(Cell::new(seed * 7919 + 1));
        let mut hurt = ext.clone();
        for _ in 0..1 + rng.next(200) {
            let n = hurt.len();
            let e = &mut hurt[rng.next(n)].1;
            let at = rng.next(e.len());
            rng.hurt(&mut e[at]);
        }
        write_image(&folder.path().join("d0.img"), size, &hurt);
        let (code, text) = zdb(&["--check", "-p", folder.path().to_str().unwrap()]);
        assert!(code == 0 || code == 1 && !text.ends_with(" 0 errors\n") || code == 2, "seed {seed}: {code} {text}");
    }
}

/// Contents that verify and are nonsense, as in a hostile image: errors, never a panic or a hang.
#[test]
fn nonsense_with_good_checksums_does_no_harm() {
    let folder = Folder::new("nonsense");
    let (size, ext) = extents(&fixture("names.pack.zst"));
    write_image(&folder.path().join("d0.img"), size, &ext);
    let rounds = std::env::var("ZDB_ROUNDS").ok().and_then(|r| r.parse().ok()).unwrap_or(4u64);
    let mut found = 0;
    for seed in 0..rounds {
        let p = PoolReader::open(&pool(&folder)).unwrap();
        let one_in = [3, 10, 40, 150][seed as usize % 4];
        *p.io.tamper.borrow_mut() = Some(Box::new(move |bp, b| {
            // The same block is hurt in the same way each time.
            let rng = Rng(Cell::new(bp.0[1] ^ bp.0[10] << 32 ^ seed << 48 ^ 0x5bd1));
            rng.next(1);
            if rng.next(one_in) != 0 {
                return;
            }
            for _ in 0..1 + rng.next(4) {
                let at = rng.next(b.len());
                // The first bytes of a block, and of the structures in it, matter most.
                let at = if rng.next(2) == 0 { at & !511 | at & 63 } else { at };
                rng.hurt(&mut b[at]);
            }
        }));
        let report = check(&p, &CheckOpts::default(), &mut |_| {});
        found += report.error_count;
        let mut out = Vec::new();
        let _ = tree_manifest(&p, &Default::default(), &mut out, &mut |_| {});
    }
    assert!(found > 0);
}

#[test]
fn one_wrong_byte_is_named_with_its_place() {
    let folder = Folder::new("one-byte");
    let (size, mut ext) = extents(&fixture("names.pack.zst"));
    // The root block of the pool's own objects: the first copy of the MOS.
    write_image(&folder.path().join("d0.img"), size, &ext);
    let p = PoolReader::open(&pool(&folder)).unwrap();
    let dva = p.ub.rootbp.dva(1);
    drop(p);
    let at = dva.offset() + ondisk::label::DATA_START;
    let (off, bytes) = ext.iter_mut().find(|(o, b)| *o <= at && at < *o + b.len() as u64).unwrap();
    bytes[(at - *off) as usize + 20] ^= 0x10;
    write_image(&folder.path().join("d0.img"), size, &ext);
    let (code, text) = zdb(&["--check", "-p", folder.path().to_str().unwrap()]);
    assert_eq!(code, 1);
    assert!(text.contains(&format!("copy at 0:{:#x} on d0.img", dva.offset())), "{text}");
    assert!(text.ends_with(" 0 leaked, 1 errors\n"), "{text}");
}

#[test]
fn wrong_use_is_refused() {
    assert_eq!(zdb(&["-Z"]).0, 2);
    assert_eq!(zdb(&["--frob"]).0, 2);
    assert_eq!(zdb(&["--check"]).0, 2);
    assert_eq!(zdb(&["-l", "/nonexistent"]).0, 2);
    assert_eq!(zdb(&["-p", "/nonexistent", "tank"]).0, 2);
    let folder = Folder::new("empty");
    std::fs::File::create(folder.path().join("d0.img")).unwrap().set_len(64 << 20).unwrap();
    let (code, text) = zdb(&["--check", "-p", folder.path().to_str().unwrap()]);
    assert_eq!((code, text.contains("no device has a label")), (2, true), "{text}");
}
