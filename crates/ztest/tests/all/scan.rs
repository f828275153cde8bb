//! Scrub and resilver on pools of some shapes with redundancy; the judges on the resulting images.

use std::rc::Rc;

use base::Nanos;
use dsl::props::PropValue;
use ondisk::scan::{ScanFunc, ScanState};
use sim::Rng;
use spa::{ImportOpts, Pool, ScanStatus};
use zpl::{Atime, Cred, MountOpts, Zfs};
use ztest::devices::LabDoor;
use ztest::judge::{self, Level, Verdict};
use ztest::lab::{Lab, Layout, SHAPES, Shape};
use ztest::scan::{CutsMet, run_cuts, run_resilver, run_rot};

/// The profile `--scans` has all shapes.
const REDUNDANT: [&str; 4] = ["mirrors", "raidz1", "raidz3", "draid"];

fn shape(name: &str) -> &'static Shape {
    SHAPES.iter().find(|s| s.name == name).unwrap_or_else(|| panic!("no shape {name}"))
}

fn judge(images: &[sim::DiskImage], name: &str) {
    match judge::judge(images, Level::Zdb, name) {
        Verdict::Good => {}
        Verdict::Missing(what) => eprintln!("NOT JUDGED: {name}: {what} is missing"),
        Verdict::Bad(why) => panic!("{name}: {why}"),
    }
}

#[test]
fn rot_is_mended() {
    for (n, name) in REDUNDANT.iter().enumerate() {
        let images = run_rot(3000 + n as u64, shape(name), 8).unwrap_or_else(|e| panic!("{name}: {e}"));
        judge(&images, &format!("rot-{name}"));
    }
}

#[test]
fn what_was_missed_is_brought_back() {
    for (n, name) in REDUNDANT.iter().enumerate() {
        let images = run_resilver(3100 + n as u64, shape(name), 4).unwrap_or_else(|e| panic!("{e}"));
        judge(&images, &format!("resilver-{name}"));
    }
}

#[test]
fn power_cuts_cost_nothing() {
    let mut met = CutsMet::default();
    for (n, name) in ["mirror", "raidz2"].iter().enumerate() {
        let images = run_cuts(3200 + n as u64, shape(name), 6, &mut met).unwrap_or_else(|e| panic!("{e}"));
        judge(&images, &format!("cuts-{name}"));
    }
    assert!(met.running > 1, "the cuts met nothing: {met:?}");
}

/// A file of `blocks` blocks that no other has, or that all files with the same `kind` have.
async fn put(pool: &Pool, fs: &str, name: &str, kind: u64, blocks: u64) {
    let fs = mounted(pool, fs).await;
    let file = fs.create(fs.root(), name.as_bytes(), 0o644, &Cred::new(0, 0), true).await.unwrap().obj;
    for n in 0..blocks {
        let data = bdev::Buf::copy_from(&block(kind, n)).freeze();
        fs.write(file, n * RECORD as u64, vec![data], false).await.unwrap();
    }
    fs.unmount().await.unwrap();
}

const RECORD: usize = 128 << 10;

fn block(kind: u64, n: u64) -> Vec<u8> {
    let mut out = vec![0; RECORD];
    Rng::new(kind << 32 | n).fill(&mut out);
    out
}

async fn mounted(pool: &Pool, fs: &str) -> Rc<Zfs> {
    let ds = pool.dsl().find(fs).unwrap();
    Zfs::open(&ds, MountOpts { atime: Atime::Off, ..MountOpts::from_props(&ds) }).await.unwrap()
}

/// While a device is brought up to date a dedup'd block moves: its pointer goes to a dataset that
/// was walked already, or to a place that is walked later with a pointer younger than all that the
/// device misses. In both cases the block is resilvered.
#[test]
fn shared_blocks_that_move_are_brought_back() {
    for (seed, to) in [(3300, "lab/early"), (3301, "lab/late")] {
        let mut rng = Rng::new(seed);
        let mut layout = Layout::draw(&mut rng, 64 << 20).shaped(shape("mirror"), &mut rng);
        layout.features = ondisk::feature::features_of_2_1();
        layout.devices.fill(160 << 20);
        (layout.arc_max, layout.dirty_max) = (1 << 20, 64 << 20);
        let lab = Rc::new(Lab::new(seed, &layout));
        lab.sim.block_on(async {
            let pool = lab.create(&layout, vec![("dedup".into(), PropValue::Num(1))]).await.unwrap();
            pool.devices().set_door(Rc::new(LabDoor(lab.clone())));
            for fs in ["lab/early", "lab/late"] {
                pool.dsl().create_fs(fs, Vec::new(), ztest::lab::new_fs(&lab.sim)).await.unwrap();
            }
            pool.sync().await.unwrap();
            pool.devices().offline("disk1.img", false).await.unwrap();
            pool.sync().await.unwrap();
            put(&pool, "lab/late", "much", 1, 200).await;
            put(&pool, "lab/late", "tail", 2, 20).await;
            pool.sync().await.unwrap();
            // A few blocks in each round.
            pool.scan().set_memory(6 << 10);
            pool.devices().bring_online("disk1.img", false).await.unwrap();
            let late = pool.dsl().find("lab/late").unwrap().object.0;
            let walks_late = |s: &ScanStatus| {
                s.phys.func == ScanFunc::Resilver
                    && s.phys.state == ScanState::Scanning
                    && s.phys.bookmark.objset == late
            };
            while !walks_late(&pool.scan().status()) {
                assert!(pool.scan().status().phys.state != ScanState::Finished, "the resilver was too fast");
                // The sync of a txg without changes takes no time, and the resilver's reads do.
                pool.rt().sleep(Nanos::from_us(100)).await;
                pool.sync().await.unwrap();
            }
            put(&pool, to, "moved", 2, 20).await;
            let fs = mounted(&pool, "lab/late").await;
            fs.unlink(fs.root(), b"tail").await.unwrap();
            fs.unmount().await.unwrap();
            pool.sync().await.unwrap();
            assert!(pool.zio().stats().deduped >= 20, "{:?}", pool.zio().stats());
            let place = pool.scan().status();
            assert!(walks_late(&place) && place.phys.bookmark.object != 0, "{to}: the walk is elsewhere: {place:?}");
            pool.scan().set_memory(1 << 20);
            let s = ztest::scan::wait(&pool).await.unwrap();
            assert_eq!((s.phys.state, s.phys.errors), (ScanState::Finished, 0));
            pool.export().await.unwrap();
            drop(pool);
            // Only the resilvered device is left.
            lab.away.borrow_mut().push(0);
            let how = ImportOpts { readonly: true, ..ImportOpts::default() };
            let pool = lab.import_as(how, layout.opts()).await.unwrap();
            let fs = mounted(&pool, to).await;
            let file = fs.lookup(fs.root(), b"moved").await.unwrap().obj;
            for n in 0..20 {
                let got = fs.read(file, n * RECORD as u64, RECORD as u64).await;
                let got = got.unwrap_or_else(|e| panic!("{to}: block {n}: {e}"));
                assert!(got.iter().flat_map(|b| b.to_vec()).eq(block(2, n)), "{to}: block {n} differs");
            }
            pool.export().await.unwrap();
        });
    }
}

/// A file system is destroyed that a device missed parts of. The rest of it is not walked, so the
/// resilver must not clear the device's missing txgs before all of it is freed.
#[test]
fn a_resilver_waits_for_what_is_being_freed() {
    let mut rng = Rng::new(3310);
    let mut layout = Layout::draw(&mut rng, 64 << 20).shaped(shape("mirror"), &mut rng);
    layout.features = ondisk::feature::features_of_2_1();
    layout.devices.fill(160 << 20);
    let lab = Rc::new(Lab::new(3310, &layout));
    lab.sim.block_on(async {
        let pool = lab.create(&layout, Vec::new()).await.unwrap();
        pool.devices().set_door(Rc::new(LabDoor(lab.clone())));
        pool.dsl().create_fs("lab/gone", Vec::new(), ztest::lab::new_fs(&lab.sim)).await.unwrap();
        pool.sync().await.unwrap();
        pool.devices().offline("disk1.img", false).await.unwrap();
        pool.sync().await.unwrap();
        put(&pool, "lab/gone", "much", 1, 200).await;
        pool.sync().await.unwrap();
        pool.dsl().set_freed_per_txg(10);
        pool.dsl().destroy_fs("lab/gone").await.unwrap();
        pool.sync().await.unwrap();
        pool.devices().bring_online("disk1.img", false).await.unwrap();
        assert!(pool.dsl().freeing() > 0, "it was freed too fast");
        ztest::scan::wait(&pool).await.unwrap();
        assert_eq!(pool.dsl().freeing(), 0);
        pool.export().await.unwrap();
    });
    judge(&lab.images(), "freed");
}
