//! Devices lost at any moment, and one wrong copy of a block at a time. The long profile:
//! `ztest --losses 0..200`.

use std::collections::HashMap;
use std::rc::Rc;

use base::Nanos;
use dsl::props::PropValue;
use sim::{DiskImage, Rng};
use spa::Pool;
use zpl::{Cred, MountOpts, Zfs};
use ztest::judge::{self, Level, Verdict};
use ztest::lab::{Lab, Layout, POOL, SHAPES, Shape};
use ztest::losses::{LAYOUTS, Met, run_seed};
use ztest::scan::{scrub, scrub_clean};

fn shape(name: &str) -> &'static Shape {
    LAYOUTS.iter().chain(SHAPES).find(|s| s.name == name).unwrap_or_else(|| panic!("no shape {name}"))
}

#[test]
fn devices_are_lost_at_any_moment() {
    let mut met = Met::default();
    for (seed, name) in
        [(4000, "mirror3"), (4001, "raidz1-3"), (4002, "raidz2-5"), (4003, "draid1"), (4004, "raidz3-6")]
    {
        let images = run_seed(seed, shape(name), 12, &mut met).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
        match judge::judge(&images, Level::Zdb, &format!("losses{seed}")) {
            Verdict::Good => {}
            Verdict::Missing(what) => eprintln!("NOT JUDGED: {name}: {what} is missing"),
            Verdict::Bad(why) => panic!("seed {seed}, {name}: {why}"),
        }
    }
    assert!(met.midway > 3 && met.replaced > 1 && met.mended > 0, "{met:?}");
}

const SECTOR: usize = 4096;

async fn open(pool: &Rc<Pool>) -> Rc<Zfs> {
    let ds = pool.dsl().find(POOL).expect("the root exists");
    Zfs::open(&ds, MountOpts::from_props(&ds)).await.expect("it opens")
}

/// Where sectors of the content are on the disks: disk, offset, offset in the content.
fn copies(images: &[DiskImage], content: &[u8]) -> Vec<(usize, u64, usize)> {
    let known: HashMap<&[u8], usize> =
        content.chunks(SECTOR).enumerate().map(|(n, sector)| (sector, n * SECTOR)).collect();
    let mut out = Vec::new();
    for (n, image) in images.iter().enumerate() {
        let each = image.for_each_part(|at, bytes| {
            let found = bytes.chunks(SECTOR).enumerate().filter_map(|(i, s)| Some((i, *known.get(s)?)));
            out.extend(found.map(|(i, from)| (n, at + (i * SECTOR) as u64, from)));
            Ok(())
        });
        each.expect("a list cannot fail");
    }
    out
}

/// One sector of one copy of a block is noise: a read gets the block and mends the copy; a scrub
/// mends it in any case.
#[test]
fn one_wrong_copy_is_found_and_mended() {
    let mut rng = Rng::new(77);
    let mut content = vec![0; 512 << 10];
    rng.fill(&mut content);
    for (name, copies_prop, each) in [
        ("stripe", 2, 2),
        ("mirror2", 1, 2),
        ("mirror3", 1, 3),
        ("raidz1-3", 1, 1),
        ("raidz2-5", 1, 1),
        ("draid1", 1, 1),
    ] {
        let shape = shape(name);
        let layout = Layout {
            devices: vec![64 << 20; 2],
            shape: &SHAPES[0],
            ashift: 12,
            version: None,
            features: ondisk::feature::features_of_2_1(),
            dirty_max: 16 << 20,
            arc_max: 16 << 20,
            txg_timeout: Nanos::from_secs(5),
            condenses: None,
        };
        let layout = layout.shaped(shape, &mut rng);
        let lab = Lab::new(1, &layout);
        lab.sim.block_on(async {
            let pool =
                lab.create(&layout, vec![("copies".into(), PropValue::Num(copies_prop))]).await.expect("created");
            let fs = open(&pool).await;
            let file = fs.create(fs.root(), b"file", 0o644, &Cred::new(0, 0), false).await.expect("created").obj;
            fs.write(file, 0, vec![bdev::Buf::copy_from(&content).freeze()], false).await.expect("written");
            fs.unmount().await.expect("unmounted");
            pool.export().await.expect("exported");
        });
        let images = lab.images();
        let places = copies(&images, &content);
        assert_eq!(places.len(), each * content.len() / SECTOR, "{name}: copies of sectors");
        let (mut seen, tries) = (0, 6);
        for n in 0..tries {
            let (disk, at, from) = places[rng.below(places.len() as u64) as usize];
            let mut noise = vec![0; SECTOR];
            rng.fill(&mut noise);
            for by_scrub in [false, true] {
                let lab = Lab::with_images(n, images.clone(), true);
                lab.disks[disk].poke(at, &noise);
                let found = lab.sim.block_on(async {
                    let pool = lab.import(false, layout.opts()).await.expect("imports");
                    if by_scrub {
                        let s = scrub(&pool).await.expect("a scrub");
                        assert!(s.phys.errors == 0 && s.phys.processed > 0, "{name}: {:?}", s.phys);
                    }
                    let fs = open(&pool).await;
                    let file = fs.lookup(fs.root(), b"file").await.expect("found").obj;
                    let parts = fs.read(file, 0, content.len() as u64).await.expect("reads");
                    let read: Vec<u8> = parts.iter().flat_map(|b| b.to_vec()).collect();
                    assert!(read == content, "{name}: other bytes were read");
                    fs.unmount().await.expect("unmounted");
                    pool.rt().sleep(Nanos::from_secs(1)).await;
                    let found: u64 = pool.tree().leaves().iter().map(|l| l.errors().cksum).sum();
                    if !by_scrub && found == 0 {
                        // No read used that copy: only a scrub does.
                        scrub(&pool).await.expect("a scrub");
                    }
                    scrub_clean(&pool).await.unwrap_or_else(|e| panic!("{name}: {e}"));
                    pool.export().await.expect("exported");
                    found
                });
                seen += u64::from(!by_scrub && found > 0);
                assert!(
                    lab.disks[disk].peek(at, SECTOR) == content[from..from + SECTOR],
                    "{name}: the copy is not mended"
                );
            }
        }
        assert!(seen > 0 && (each > 1 || seen == tries), "{name}: {seen} of {tries} were met by reads");
    }
}
