//! Devices that grow under a pool, which uses the new space when it is expanded, or never: nothing
//! is lost, wherever the power is cut meanwhile.

use std::rc::Rc;

use metaslab::ClassKind;
use sim::{DiskImage, DiskLog};
use spa::Pool;
use zpl::Zfs;
use ztest::cuts::{completions, images_at};
use ztest::devices::LabDoor;
use ztest::judge::{self, Level, Verdict};
use ztest::lab::{Lab, Layout, SHAPES};
use ztest::scan;
use ztest::snaps::check_images;

use crate::failmode::{content, layout, mount, read, write};

/// Room for more than a few metaslabs, and not for all that the tests write.
const SMALL: u64 = 80 << 20;
const LARGE: u64 = 3 * SMALL;

fn world(seed: u64, shape: &str) -> (Rc<Lab>, Layout) {
    let mut layout = layout(seed, shape);
    layout.devices.fill(SMALL);
    (Rc::new(Lab::new(seed, &layout)), layout)
}

fn zdb(images: &[DiskImage], name: &str) {
    match judge::judge(images, Level::Zdb, name) {
        Verdict::Good => {}
        Verdict::Missing(what) => eprintln!("NOT JUDGED: {name}: {what} is missing"),
        Verdict::Bad(why) => panic!("{name}: {why}"),
    }
}

fn total(pool: &Pool) -> u64 {
    pool.allocator().space(ClassKind::Normal).total_raw
}

async fn fill(fs: &Zfs, files: std::ops::Range<u64>) {
    for n in files {
        write(fs, n).await.unwrap_or_else(|e| panic!("file {n}: {e}"));
    }
}

async fn check(fs: &Zfs, files: std::ops::Range<u64>) {
    for n in files {
        assert!(read(fs, n).await.unwrap_or_else(|e| panic!("file {n}: {e}")) == content(n), "file {n} differs");
    }
}

/// Writes files from that number on until more is allocated than there was room for; the number
/// after the last.
async fn overfill(pool: &Pool, fs: &Zfs, mut n: u64, room: u64) -> u64 {
    while pool.allocator().space(ClassKind::Normal).alloc_raw <= room {
        fill(fs, n..n + 10).await;
        pool.sync().await.expect("synced");
        n += 10;
    }
    n
}

/// `zpool online -e` of each device in turn: the last one makes the vdev larger.
#[test]
fn the_last_device_makes_a_vdev_grow() {
    for (seed, shape) in [(4300, "mirror"), (4301, "raidz1"), (4303, "draid")] {
        let mut layout = layout(seed, shape);
        let small = layout.devices.iter().copied().max().expect("there are devices").next_multiple_of(1 << 20);
        layout.devices.fill(small);
        let lab = Rc::new(Lab::new(seed, &layout));
        lab.sim.block_on(async {
            let pool = lab.create(&layout, Vec::new()).await.expect("created");
            pool.devices().set_door(Rc::new(LabDoor(lab.clone())));
            let fs = mount(&pool).await;
            fill(&fs, 0..3).await;
            pool.sync().await.expect("synced");
            let before = total(&pool);
            let count = SHAPES.iter().find(|s| s.name == shape).expect("known").groups[0].2;
            for (n, disk) in lab.disks.iter().enumerate() {
                disk.grow(3 * small);
                pool.devices().bring_online(&format!("disk{n}.img"), true).await.expect("online");
                if n + 1 < count {
                    assert_eq!(total(&pool), before, "{shape}: {n} devices are not enough");
                }
            }
            assert!(total(&pool) > before, "{shape}: {} after {before}", total(&pool));
            let files = overfill(&pool, &fs, 3, before).await;
            check(&fs, 0..files).await;
            fs.unmount().await.expect("unmounted");
            scan::scrub_clean(&pool).await.expect("clean");
            pool.export().await.expect("exported");
            drop(pool);
            let pool = lab.import(false, layout.opts()).await.expect("imported");
            assert!(total(&pool) > before);
            pool.export().await.expect("exported");
        });
        check_grown(&lab.images(), shape);
        zdb(&lab.images(), &format!("growth-{shape}"));
    }
}

/// The checker does not support dRAID.
fn check_grown(images: &[DiskImage], shape: &str) {
    if shape != "draid" {
        check_images(images).unwrap_or_else(|e| panic!("{shape}: {e}"));
    }
}

/// Images that grew while the pool was away: it keeps its size until it is expanded, and both are
/// whole pools for the judges.
#[test]
fn devices_grow_between_imports() {
    for (seed, shape) in [(4310, "mirror"), (4311, "raidz1")] {
        let (lab, layout) = world(seed, shape);
        let before = lab.sim.block_on(async {
            let pool = lab.create(&layout, Vec::new()).await.expect("created");
            let fs = mount(&pool).await;
            fill(&fs, 0..10).await;
            fs.unmount().await.expect("unmounted");
            pool.export().await.expect("exported");
            total(&pool)
        });
        let mut images = lab.images();
        images.iter_mut().for_each(|i| i.resize(LARGE));
        let lab = Lab::with_images(seed, images, true);
        lab.sim.block_on(async {
            let pool = lab.import(false, layout.opts()).await.expect("imported");
            assert_eq!(total(&pool), before);
            let fs = mount(&pool).await;
            check(&fs, 0..10).await;
            fill(&fs, 10..12).await;
            fs.unmount().await.expect("unmounted");
            pool.export().await.expect("exported");
        });
        zdb(&lab.images(), &format!("growth-not-{shape}"));
        lab.sim.block_on(async {
            let pool = lab.import(false, layout.opts()).await.expect("imported");
            assert!(pool.devices().expandable(&pool.tree().tops.borrow()[0]) > 0);
            pool.devices().expand_all().await.expect("grown");
            assert!(total(&pool) > before, "{} after {before}", total(&pool));
            let fs = mount(&pool).await;
            let files = overfill(&pool, &fs, 12, before).await;
            check(&fs, 0..files).await;
            fs.unmount().await.expect("unmounted");
            scan::scrub_clean(&pool).await.expect("clean");
            pool.export().await.expect("exported");
        });
        check_images(&lab.images()).unwrap();
        zdb(&lab.images(), &format!("growth-away-{shape}"));
    }
}

/// Where the end of a device is now there may be no labels yet, and the cut may tear one label at
/// its front while it is written; the other one at the front is whole.
fn moved(found: String) -> Result<(), String> {
    let list = found.split_once(" leaked: ").map_or("", |(_, list)| list);
    let of_label = |e: &str, labels: &[u32]| labels.iter().any(|n| e.contains(&format!(".img label {n}: ")));
    let only = |labels: &[u32]| list.split(" | ").all(|e| of_label(e, labels));
    if (only(&[0, 2, 3]) || only(&[1, 2, 3])) && found.contains(" 0 bytes leaked") { Ok(()) } else { Err(found) }
}

/// A power cut at every completion from the moment a device is seen to be larger until the new
/// space is full of data.
#[test]
fn power_cuts_while_a_vdev_grows() {
    for (seed, shape) in [(4320, "mirror"), (4321, "raidz1")] {
        let (lab, layout) = world(seed, shape);
        let (before, committed) = lab.sim.block_on(async {
            let pool = lab.create(&layout, Vec::new()).await.expect("created");
            let fs = mount(&pool).await;
            let many = 30;
            fill(&fs, 0..many).await;
            lab.disks.iter().for_each(|disk| disk.grow(LARGE));
            lab.start_logs(&pool).await.expect("started");
            let before = total(&pool);
            pool.devices().expand_all().await.expect("grown");
            overfill(&pool, &fs, many, before).await;
            assert!(total(&pool) > before);
            (before, many)
        });
        let logs: Vec<DiskLog> = lab.disks.iter().filter_map(|d| d.take_log()).collect();
        lab.sim.crash();
        std::mem::forget(lab);
        let moments = completions(&logs);
        // All of the change itself, and some of the rest.
        let chosen =
            moments.iter().enumerate().filter(|(n, _)| *n < 60 && n % 2 == 0 || n % 199 == 0).map(|(_, seq)| *seq);
        let (mut old, mut new, mut judged) = (0, 0, 0);
        let mut replays: Vec<_> = logs.iter().map(DiskLog::replay).collect();
        for seq in chosen {
            let cut_seed = seed.wrapping_mul(1_000_003).wrapping_add(seq);
            let images = images_at(&mut replays, seq, cut_seed);
            // The checker takes its time.
            let checked = (old + new) % 5 == 0;
            if checked {
                check_images(&images).or_else(moved).unwrap_or_else(|e| panic!("{shape} at {seq}: at once: {e}"));
            }
            let lab = Lab::with_images(cut_seed, images, true);
            let grown = lab.sim.block_on(async {
                let at = |what: &str| format!("{shape} at {seq}: {what}");
                let pool = lab.import(false, layout.opts()).await.unwrap_or_else(|e| panic!("{}: {e}", at("import")));
                let grown = total(&pool) > before;
                let fs = mount(&pool).await;
                check(&fs, 0..3).await;
                check(&fs, committed - 3..committed).await;
                pool.devices().expand_all().await.unwrap_or_else(|e| panic!("{}: {e}", at("growing")));
                assert!(total(&pool) > before, "{}", at("grown"));
                fill(&fs, 1000..1003).await;
                fs.unmount().await.expect("unmounted");
                pool.export().await.expect("exported");
                grown
            });
            *(if grown { &mut new } else { &mut old }) += 1;
            if checked {
                check_images(&lab.images()).unwrap_or_else(|e| panic!("{shape} at {seq}: when done: {e}"));
            }
            // One of each kind.
            if judged < 2 && (if grown { new } else { old }) == 1 {
                judged += 1;
                zdb(&lab.images(), &format!("growth-cut-{shape}-{seq}"));
            }
        }
        assert!(old > 5 && new > 5, "{shape}: {old} cuts before, {new} after");
    }
}
