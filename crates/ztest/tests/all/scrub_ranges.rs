//! Scrubs of a part of the pool (`zpool scrub -e`, `-C`, `-S`, `-E`): they find what is damaged in
//! their part, forget nothing outside it, and say rightly what was scrubbed.

use std::collections::BTreeSet;
use std::rc::Rc;

use base::{Nanos, ObjectId, Txg};
use ondisk::feature::FeatureId;
use ondisk::label::DATA_START;
use ondisk::scan::{ScanPhys, ScanState};
use spa::{ImportOpts, Pool, ScrubRange};
use ztest::lab::{Lab, POOL};

use crate::newer::{create, damage, judge, listed, mount, world, write};

/// A new file of one block.
async fn file(pool: &Rc<Pool>, name: &str, fill: u8) -> ObjectId {
    let fs = mount(pool, POOL).await;
    let object = write(&fs, name.as_bytes(), fill).await;
    fs.unmount().await.unwrap();
    pool.sync().await.unwrap();
    object
}

async fn damaged_file(lab: &Lab, pool: &Rc<Pool>, name: &str, fill: u8) -> ObjectId {
    let object = file(pool, name, fill).await;
    damage(lab, pool, POOL, object).await;
    object
}

/// Scrubs to the end.
async fn scrub(pool: &Rc<Pool>, range: ScrubRange) -> ScanPhys {
    pool.scan().start_scrub_of(range).await.unwrap();
    ztest::scan::wait(pool).await.unwrap().phys
}

fn names(files: &[ObjectId]) -> BTreeSet<String> {
    files.iter().map(|f| format!("{POOL} {f}.0")).collect()
}

/// A scrub of what is new since the last one.
#[test]
fn a_scrub_goes_on_behind_the_last_one() {
    for (seed, features) in [(91, &[FeatureId::HeadErrlog][..]), (92, &[])] {
        let (lab, layout) = world(seed, features);
        lab.sim.block_on(async {
            let pool = create(&lab, &layout).await;
            assert_eq!(pool.scan().last_scrubbed(), Txg(0));
            let old = damaged_file(&lab, &pool, "old", 1).await;
            pool.export().await.unwrap();
            drop(pool);
            let pool = lab.import_as(ImportOpts::default(), layout.opts()).await.unwrap();
            // There is no last one yet.
            let first = scrub(&pool, ScrubRange::SinceLast).await;
            assert_eq!((first.min_txg, first.errors), (Txg(0), 1));
            assert_eq!(pool.scan().last_scrubbed(), first.max_txg);
            let new = damaged_file(&lab, &pool, "new", 2).await;
            pool.export().await.unwrap();
            drop(pool);

            let pool = lab.import_as(ImportOpts::default(), layout.opts()).await.unwrap();
            assert_eq!(pool.scan().last_scrubbed(), first.max_txg, "it is on disk");
            let second = scrub(&pool, ScrubRange::SinceLast).await;
            // The first one left out the blocks of its own txg.
            assert_eq!((second.min_txg.0 + 1, second.errors), (first.max_txg.0, 1));
            assert_eq!(pool.scan().last_scrubbed(), second.max_txg);
            assert_eq!(listed(&pool).await, names(&[old, new]), "the older damage is still known");
            let third = scrub(&pool, ScrubRange::SinceLast).await;
            assert_eq!(third.errors, 0, "nothing is new");
            assert_eq!(listed(&pool).await, names(&[old, new]));
            assert_eq!(scrub(&pool, ScrubRange::All).await.errors, 2);
            assert_eq!(listed(&pool).await, names(&[old, new]));
            file(&pool, "old", 3).await;
            file(&pool, "new", 4).await;
            assert_eq!(scrub(&pool, ScrubRange::All).await.errors, 0);
            assert_eq!(listed(&pool).await, BTreeSet::new(), "seed {seed}");
            pool.export().await.unwrap();
            drop(pool);
            judge(&lab, &[0, 1], &format!("scrub-since-{seed}"));
        });
    }
}

/// Scrubs between two times, by the log of times.
#[test]
fn a_scrub_reads_what_is_between_two_times() {
    let (lab, layout) = world(93, &[FeatureId::HeadErrlog, FeatureId::DynamicGangHeader]);
    lab.sim.block_on(async {
        let pool = create(&lab, &layout).await;
        let clock = || pool.rt().wall_clock().secs as u64;
        let (mut files, mut times) = (Vec::new(), Vec::new());
        for n in 0..3 {
            files.push(file(&pool, &format!("f{n}"), n).await);
            times.push(clock());
            // A txg that changes something comes into the log of times, halfway to the next file.
            for _ in 0..2 {
                lab.sim.rt().sleep(Nanos::from_secs(2000)).await;
                file(&pool, "clock", 9).await;
            }
        }
        pool.export().await.unwrap();
        drop(pool);
        // Reads come from the disks, not from memory.
        let pool = lab.import_as(ImportOpts::default(), layout.opts()).await.unwrap();
        for f in &files {
            damage(&lab, &pool, POOL, *f).await;
        }
        let between = |from: Option<u64>, until: Option<u64>| ScrubRange::Between { from, until };
        let mut known = BTreeSet::new();
        for (range, found) in [
            (between(Some(times[1] - 1000), Some(times[1] + 1000)), &files[1..2]),
            (between(Some(times[2] - 1000), None), &files[2..]),
            (between(Some(times[2] + 1_000_000), None), &[]),
            (between(None, Some(times[1] + 1000)), &files[..2]),
            (between(None, Some(times[0] - 1_000_000)), &[]),
            (between(Some(times[0] - 1_000_000), Some(times[2] + 1_000_000)), &files[..]),
        ] {
            let phys = scrub(&pool, range).await;
            assert_eq!(phys.errors, found.len() as u64, "{range:?}");
            known.extend(names(found));
            assert_eq!(listed(&pool).await, known, "{range:?}");
            // What is older was not read, except by those that began with the pool.
            let all = if phys.min_txg.0 == 0 { phys.max_txg } else { Txg(0) };
            assert!(pool.scan().last_scrubbed() >= all, "{range:?}");
            if known.len() < 3 {
                assert_eq!(pool.scan().last_scrubbed(), Txg(0), "{range:?}");
            }
        }
        for n in 0..3 {
            file(&pool, &format!("f{n}"), 3 + n).await;
        }
        pool.export().await.unwrap();
        drop(pool);
        judge(&lab, &[0, 1], "scrub-between");
    });
}

/// The first copy of the first block of a file: its place on the disks of the mirror, and its
/// bytes.
async fn on_disk(lab: &Lab, pool: &Rc<Pool>, file: ObjectId) -> (u64, Vec<u8>) {
    let dn = pool.dsl().find(POOL).unwrap().objset().await.unwrap().hold(file).await.unwrap();
    let dva = dn.block_pointer(0).await.unwrap().dva(0);
    let place = DATA_START + dva.offset();
    (place, lab.disks[0].peek(place, dva.asize() as usize))
}

/// A scrub of what is in the error log mends what can be had again, takes it off the log, forgets
/// what is gone, keeps the rest, and looks at nothing else.
#[test]
fn a_scrub_of_errors_reads_what_the_log_names() {
    let (lab, layout) = world(94, &[FeatureId::HeadErrlog, FeatureId::BlockCloning]);
    lab.sim.block_on(async {
        let pool = create(&lab, &layout).await;
        let a = file(&pool, "a", 1).await;
        let b = file(&pool, "b", 2).await;
        let c = file(&pool, "c", 3).await;
        let (place, bytes) = on_disk(&lab, &pool, a).await;
        for f in [a, b, c] {
            damage(&lab, &pool, POOL, f).await;
        }
        let snap = format!("{POOL}@s");
        pool.dsl().snapshot(vec![snap.clone()], false, Vec::new()).await.unwrap();
        pool.export().await.unwrap();
        drop(pool);
        let pool = lab.import_as(ImportOpts::default(), layout.opts()).await.unwrap();
        let scan = pool.scan().clone();
        scan.start_error_scrub().await.unwrap();
        assert_eq!(scan.status().errors.state, ScanState::None, "the log is empty");
        assert_eq!(scrub(&pool, ScrubRange::All).await.errors, 3);
        let before = scan.status().phys;
        // The second is in the snapshot alone, the third nowhere.
        file(&pool, "b", 4).await;
        let listed_b = format!("{snap} {b}.0");
        let all = listed(&pool).await;
        assert!(all.contains(&listed_b) && all.contains(&format!("{POOL} {a}.0")), "{all:?}");

        // It waits, refuses scrubs, and is as it was after an import.
        scan.start_error_scrub().await.unwrap();
        scan.pause_scrub().await.unwrap();
        for refused in [scan.start_scrub().await, scan.pause_scrub().await] {
            assert_eq!(refused.unwrap_err().kind(), base::ErrorKind::Busy);
        }
        pool.export().await.unwrap();
        drop((pool, scan));
        lab.disks[1].poke(place, &bytes);
        let pool = lab.import_as(ImportOpts::default(), layout.opts()).await.unwrap();
        let scan = pool.scan().clone();
        let s = scan.status().errors;
        assert!(s.is_running() && s.paused && (s.to_examine, s.examined) == (3, 0), "{s:?}");
        scan.stop_scrub().await.unwrap();
        assert_eq!((scan.status().errors.state, listed(&pool).await), (ScanState::Canceled, all.clone()));

        let late = damaged_file(&lab, &pool, "late", 5).await;
        let fs = mount(&pool, POOL).await;
        fs.unlink(fs.root(), b"c").await.unwrap();
        fs.unmount().await.unwrap();
        pool.dsl().destroy_snapshots(vec![snap.clone()], false).await.unwrap();
        file(&pool, "b", 2).await;
        damage(&lab, &pool, POOL, b).await;
        pool.sync().await.unwrap();
        assert_eq!(scrub(&pool, ScrubRange::SinceLast).await.errors, 2, "b and late");
        lab.disks[1].poke(place, &bytes);
        lab.disks[0].corrupt(place, 512);
        let newest = damaged_file(&lab, &pool, "newest", 6).await;
        pool.export().await.unwrap();
        drop((pool, scan));

        let pool = lab.import_as(ImportOpts::default(), layout.opts()).await.unwrap();
        let scan = pool.scan().clone();
        let known = listed(&pool).await;
        scan.start_error_scrub().await.unwrap();
        scan.wait().await.unwrap();
        let s = scan.status();
        assert_eq!((s.errors.state, s.errors.to_examine, s.errors.errors), (ScanState::Finished, 0, 2), "{s:?}");
        assert!(s.phys.max_txg > before.max_txg && s.phys.end_time <= s.errors.start_time, "{s:?}");
        assert!(known.contains(&format!("{POOL} {a}.0")), "{known:?}");
        assert_eq!(listed(&pool).await, names(&[b, late]), "{newest} is not in the log");
        for disk in &lab.disks[..2] {
            assert!(disk.peek(place, bytes.len()) == bytes, "the first is mended on every disk");
        }
        pool.export().await.unwrap();
        drop((pool, scan));
        let pool = lab.import_as(ImportOpts::default(), layout.opts()).await.unwrap();
        assert_eq!(pool.scan().status().errors.state, ScanState::Finished);
        assert_eq!(scrub(&pool, ScrubRange::All).await.errors, 3);
        assert_eq!(pool.scan().status().errors.state, ScanState::None);
        for (name, fill) in [("b", 7), ("late", 8), ("newest", 9)] {
            file(&pool, name, fill).await;
        }
        pool.export().await.unwrap();
        drop(pool);
        judge(&lab, &[0, 1], "scrub-errors");
    });
}
