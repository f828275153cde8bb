//! Partition tables: the partitions that are found, and their bounds.

use std::rc::Rc;

use bdev::{BlockDev, MemDev};
use ondisk::bytes::{put_le32, put_le64};

use super::world;
use crate::open::partition::{GPT_SIGNATURE, partitions};

const SIZE: u64 = 8 << 20;

/// A device with a table of these entries: first and last sector. Every byte of a sector of data is
/// its number.
fn disk(sim: &sim::Sim, sector: usize, entries: &[(u64, u64)]) -> Rc<dyn BlockDev> {
    let mut image = vec![0; SIZE as usize];
    for (n, s) in image.chunks_exact_mut(sector).enumerate().skip(64) {
        s.fill(n as u8);
    }
    let header = &mut image[sector..];
    header[..8].copy_from_slice(GPT_SIGNATURE);
    put_le64(header, 72, 2);
    put_le32(header, 80, entries.len().max(4) as u32);
    put_le32(header, 84, 128);
    for (i, (first, last)) in entries.iter().enumerate() {
        let entry = &mut image[2 * sector + i * 128..];
        entry[0] = 1;
        put_le64(entry, 32, *first);
        put_le64(entry, 40, *last);
    }
    Rc::new(MemDev::from_image(&sim.rt(), &image))
}

#[test]
fn partitions_are_ranges_of_the_disk() {
    for sector in [512, 4096] {
        let sim = world();
        let end = SIZE / sector as u64 - 1;
        // The second ends before it begins, the third lies beyond the disk, the fourth overflows.
        let dev =
            disk(&sim, sector, &[(100, 119), (200, 150), (end, end + 1), (u64::MAX / 2, u64::MAX / 2), (300, end)]);
        sim.block_on(async {
            let found = partitions(&dev).await;
            let got: Vec<(bool, u64)> =
                found.iter().map(|p| (p.info().path.ends_with("-part1"), p.size() / sector as u64)).collect();
            assert_eq!(got, [(true, 20), (false, end - 299)], "{sector}");
            let first = bdev::read(&*found[0], 0, sector).await.unwrap();
            assert!(first.iter().all(|b| *b == 100));
            let last = bdev::read(&*found[0], 19 * sector as u64, sector).await.unwrap();
            assert!(last.iter().all(|b| *b == 119));
            for at in [19 * sector as u64 + 512, 20 * sector as u64, u64::MAX - 4095] {
                assert!(bdev::read(&*found[0], at, sector).await.is_err(), "{at} is beyond the partition");
            }
        });
    }
}

#[test]
fn a_table_that_makes_no_sense_has_no_partitions() {
    let sim = world();
    let count = |image: &[u8]| {
        let dev: Rc<dyn BlockDev> = Rc::new(MemDev::from_image(&sim.rt(), image));
        sim.block_on(async { partitions(&dev).await.len() })
    };
    let dev = disk(&sim, 512, &[(100, 119)]);
    let good = sim.block_on(async { bdev::read(&*dev, 0, SIZE as usize).await.unwrap().to_vec() });
    assert_eq!(count(&good), 1);
    type Change = fn(&mut [u8]);
    let changes: [(&str, Change); 5] = [
        ("no signature", |b| b[512] = b'X'),
        ("no entries", |b| put_le32(b, 512 + 80, 0)),
        ("entries of 64 bytes", |b| put_le32(b, 512 + 84, 64)),
        ("too many entries", |b| put_le32(b, 512 + 80, u32::MAX)),
        ("entries beyond the disk", |b| put_le64(b, 512 + 72, u64::MAX)),
    ];
    for (what, change) in changes {
        let mut image = good.clone();
        change(&mut image);
        assert_eq!(count(&image), 0, "{what}");
    }
}
