//! A top-level vdev that cannot be written or read any more: the pool waits, or returns errors, and
//! goes on where it was when the device is back. Devices that grow.

use std::cell::Cell;
use std::rc::Rc;

use base::{ErrorKind, Nanos};
use dsl::props::PropValue;
use sim::{Fault, OpKind, Rng};
use spa::Pool;
use vdev::FailMode;
use zpl::{Cred, MountOpts, Zfs};
use ztest::devices::LabDoor;
use ztest::judge::{self, Level, Verdict};
use ztest::lab::{Lab, Layout, POOL, SHAPES};
use ztest::scan;

pub fn layout(seed: u64, shape: &str) -> Layout {
    let mut rng = Rng::new(seed);
    let shape = SHAPES.iter().find(|s| s.name == shape).expect("it is there");
    let mut layout = Layout::draw(&mut rng, 128 << 20).shaped(shape, &mut rng);
    if shape.groups.is_empty() {
        layout.devices = vec![96 << 20; 2];
    }
    layout.features = ondisk::feature::features_of_2_1();
    layout.arc_max = 1 << 20;
    layout.dirty_max = 8 << 20;
    layout
}

fn judged(lab: &Lab, name: &str) {
    match judge::judge(&lab.images(), Level::Zdb, name) {
        Verdict::Good => {}
        Verdict::Missing(what) => eprintln!("NOT JUDGED: {name}: {what} is missing"),
        Verdict::Bad(why) => panic!("{name}: {why}"),
    }
}

pub fn content(n: u64) -> Vec<u8> {
    let mut out = vec![0; 300 << 10];
    Rng::new(n).fill(&mut out);
    out
}

pub async fn write(fs: &Zfs, n: u64) -> base::Result<()> {
    let file = fs.create(fs.root(), format!("f{n}").as_bytes(), 0o644, &Cred::new(0, 0), true).await?.obj;
    for (i, part) in content(n).chunks(100 << 10).enumerate() {
        fs.write(file, i as u64 * (100 << 10), vec![bdev::Buf::copy_from(part).freeze()], false).await?;
    }
    Ok(())
}

pub async fn read(fs: &Zfs, n: u64) -> base::Result<Vec<u8>> {
    let attr = fs.lookup(fs.root(), format!("f{n}").as_bytes()).await?;
    Ok(fs.read(attr.obj, 0, 1 << 30).await?.iter().flat_map(|b| b.to_vec()).collect())
}

pub async fn mount(pool: &Pool) -> Rc<Zfs> {
    let ds = pool.dsl().find(POOL).expect("it exists");
    Zfs::open(&ds, MountOpts::from_props(&ds)).await.expect("it opens")
}

/// A pool with files on disk, and its disks pulled out.
async fn suspended(lab: &Lab, layout: &Layout, mode: FailMode, fault: Fault) -> (Rc<Pool>, Rc<Zfs>) {
    let pool = lab.create(layout, vec![("atime".into(), PropValue::Num(0))]).await.expect("created");
    pool.set_failmode(mode);
    let fs = mount(&pool).await;
    for n in 0..20 {
        write(&fs, n).await.expect("written");
    }
    pool.sync().await.expect("synced");
    // Data written but not synced when the disks went must not be lost.
    write(&fs, 20).await.expect("written");
    for d in &lab.disks {
        d.fault(fault.clone());
    }
    assert!(pool.suspended().is_none());
    let wait = pool.rt().timeout(Nanos::from_secs(60), pool.sync()).await;
    assert!(wait.is_none(), "a sync ended without disks: {wait:?}");
    assert!(pool.suspended().is_some(), "the pool is suspended");
    (pool, fs)
}

async fn back(lab: &Lab, pool: &Rc<Pool>) {
    lab.disks.iter().for_each(|d| d.clear_faults());
    pool.devices().clear(None).await.expect("cleared");
    pool.sync().await.expect("synced");
    assert!(pool.suspended().is_none());
    scan::wait(pool).await.expect("the resilver ends");
}

/// `sync` of the whole machine must not hang on one pool.
#[test]
fn a_sync_does_not_wait_for_a_suspended_pool() {
    let layout = layout(4290, "stripe");
    let lab = Rc::new(Lab::new(4290, &layout));
    lab.sim.block_on(async {
        let pool = lab.create(&layout, vec![]).await.expect("created");
        let fs = mount(&pool).await;
        write(&fs, 0).await.expect("written");
        fs.sync_fs().await.expect("synced");
        let synced = pool.txg().last_synced();
        assert_eq!(pool.txg().dirty(), 0);
        write(&fs, 1).await.expect("written");
        for d in &lab.disks {
            d.fault(Fault::Offline);
        }
        // The sync finds out, then it is known.
        for _ in 0..2 {
            assert_eq!(fs.sync_fs().await.expect_err("no disks").kind(), base::ErrorKind::Suspended);
        }
        assert_eq!(pool.txg().last_synced(), synced);
        back(&lab, &pool).await;
        fs.sync_fs().await.expect("synced");
    });
}

#[test]
fn failmode_wait_blocks_until_clear() {
    for (seed, shape) in [(4200, "stripe"), (4201, "mirror"), (4202, "raidz1")] {
        let layout = layout(seed, shape);
        let lab = Rc::new(Lab::new(seed, &layout));
        lab.sim.block_on(async {
            let (pool, fs) = suspended(&lab, &layout, FailMode::Wait, Fault::Offline).await;
            // Clearing without disks changes nothing.
            pool.devices().clear(None).await.expect("cleared");
            assert!(pool.rt().timeout(Nanos::from_secs(60), pool.sync()).await.is_none());
            assert!(pool.suspended().is_some());
            // A write, and a read of uncached data, wait.
            let (wrote, found) = (Rc::new(Cell::new(false)), Rc::new(Cell::new(false)));
            {
                let (writer, wrote) = (fs.clone(), wrote.clone());
                pool.rt().spawn("writer", async move {
                    write(&writer, 21).await.expect("written in the end");
                    wrote.set(true);
                });
                let (fs, found) = (fs.clone(), found.clone());
                pool.rt().spawn("reader", async move {
                    assert_eq!(read(&fs, 0).await.expect("read in the end"), content(0));
                    found.set(true);
                });
            }
            pool.rt().sleep(Nanos::from_secs(100)).await;
            assert!(!wrote.get() && !found.get(), "{shape}: {} {}", wrote.get(), found.get());
            back(&lab, &pool).await;
            while !wrote.get() || !found.get() {
                pool.rt().sleep(Nanos::from_ms(10)).await;
            }
            for n in 0..22 {
                assert_eq!(read(&fs, n).await.expect("readable"), content(n), "{shape}: file {n}");
            }
            fs.unmount().await.expect("unmounted");
            // A scrub mends what the devices missed in the txgs before it.
            pool.sync().await.expect("synced");
            scan::scrub_clean(&pool).await.unwrap_or_else(|e| panic!("{shape}: {e}"));
            pool.export().await.expect("exported");
        });
        judged(&lab, &format!("failmode-{shape}"));
    }
}

#[test]
fn failmode_continue_says_so() {
    let layout = layout(4203, "stripe");
    let lab = Rc::new(Lab::new(4203, &layout));
    lab.sim.block_on(async {
        // Reads still work: the sync itself needs some.
        let fault = Fault::FailSome { kind: Some(OpKind::Write), per_mille: 1000 };
        let (pool, fs) = suspended(&lab, &layout, FailMode::Continue, fault).await;
        let e = write(&fs, 21).await.expect_err("nothing can be written");
        assert_eq!(e.kind(), ErrorKind::Suspended);
        for n in 0..20 {
            assert_eq!(read(&fs, n).await.expect("what is there can be read"), content(n));
        }
        // A disk that is gone: an error instead of waiting.
        for d in &lab.disks {
            d.fault(Fault::Offline);
        }
        let mut failed = 0;
        for n in 0..20 {
            match read(&fs, n).await {
                Ok(got) => assert_eq!(got, content(n)),
                Err(e) => {
                    assert_eq!(e.kind(), ErrorKind::Io, "{e}");
                    failed += 1;
                }
            }
        }
        assert!(failed > 5, "the cache holds little");
        back(&lab, &pool).await;
        write(&fs, 21).await.expect("written");
        for n in 0..22 {
            assert_eq!(read(&fs, n).await.expect("readable"), content(n), "file {n}");
        }
        fs.unmount().await.expect("unmounted");
        scan::scrub_clean(&pool).await.expect("clean");
        pool.export().await.expect("exported");
    });
    judged(&lab, "failmode-continue");
}

/// A pool that is given up leaves the last txg; closing it otherwise is refused.
#[test]
fn a_suspended_pool_can_be_given_up() {
    let layout = layout(4204, "stripe");
    let lab = Rc::new(Lab::new(4204, &layout));
    lab.sim.block_on(async {
        let (pool, fs) = suspended(&lab, &layout, FailMode::Wait, Fault::Offline).await;
        assert!(pool.export().await.is_err(), "it cannot be exported");
        pool.give_up().await;
        assert!(fs.unmount().await.is_err());
        assert!(pool.sync().await.is_err());
        drop((fs, pool));
        lab.disks.iter().for_each(|d| d.clear_faults());
        let pool = lab.import(false, layout.opts()).await.expect("imported");
        let fs = mount(&pool).await;
        for n in 0..20 {
            assert_eq!(read(&fs, n).await.expect("readable"), content(n), "file {n}");
        }
        fs.unmount().await.expect("unmounted");
        pool.export().await.expect("exported");
    });
    judged(&lab, "failmode-given-up");
}

/// Only the commit fails: flushes, then labels and uberblocks.
#[test]
fn a_commit_that_fails_is_repeated() {
    let layout = layout(4205, "stripe");
    let lab = Rc::new(Lab::new(4205, &layout));
    lab.sim.block_on(async {
        let pool = lab.create(&layout, vec![("atime".into(), PropValue::Num(0))]).await.expect("created");
        let fs = mount(&pool).await;
        for (round, fault) in [
            Fault::FailSome { kind: Some(OpKind::Flush), per_mille: 1000 },
            Fault::FailRange { kind: Some(OpKind::Write), range: 0..512 << 10 },
        ]
        .into_iter()
        .enumerate()
        {
            write(&fs, round as u64).await.expect("written");
            // All labels of one disk; those of the other are written.
            let disk = &lab.disks[round];
            disk.fault(fault.clone());
            if let Fault::FailRange { kind, .. } = fault {
                let end = layout.devices[round] / (256 << 10) * (256 << 10);
                disk.fault(Fault::FailRange { kind, range: end - (512 << 10)..layout.devices[round] });
            }
            let ended = pool.rt().timeout(Nanos::from_secs(60), pool.sync()).await;
            assert!(ended.is_none() && pool.suspended().is_some(), "round {round}: {ended:?}");
            disk.clear_faults();
            pool.devices().clear(None).await.expect("cleared");
            pool.sync().await.expect("synced");
        }
        for n in 0..2 {
            assert_eq!(read(&fs, n).await.expect("readable"), content(n));
        }
        fs.unmount().await.expect("unmounted");
        pool.export().await.expect("exported");
    });
    judged(&lab, "failmode-commit");
}

/// A device that was opened anew: the old handle is dead, the path leads to the disk.
#[test]
fn devices_are_opened_again() {
    let layout = layout(4206, "mirror");
    let lab = Rc::new(Lab::new(4206, &layout));
    lab.sim.block_on(async {
        let pool = lab.create(&layout, vec![("atime".into(), PropValue::Num(0))]).await.expect("created");
        pool.devices().set_door(Rc::new(LabDoor(lab.clone())));
        let fs = mount(&pool).await;
        write(&fs, 0).await.expect("written");
        for d in &lab.disks {
            d.fault(Fault::Offline);
        }
        assert!(pool.rt().timeout(Nanos::from_secs(60), pool.sync()).await.is_none());
        // One comes back, the other stays away.
        lab.disks[1].clear_faults();
        pool.devices().clear(None).await.expect("cleared");
        pool.sync().await.expect("one side is enough");
        assert_eq!(read(&fs, 0).await.expect("readable"), content(0));
        lab.disks[0].clear_faults();
        pool.devices().bring_online("disk0.img", false).await.expect("online");
        scan::wait(&pool).await.expect("resilvered");
        fs.unmount().await.expect("unmounted");
        scan::scrub_clean(&pool).await.expect("clean");
        pool.export().await.expect("exported");
    });
    judged(&lab, "failmode-reopen");
}

/// Devices that grow: the pool grows when all of a vdev have, and its content stays.
#[test]
fn grown_devices_make_the_pool_grow() {
    let mut layout = layout(4207, "mirror");
    layout.devices.fill(80 << 20);
    let lab = Rc::new(Lab::new(4207, &layout));
    lab.sim.block_on(async {
        let pool = lab.create(&layout, vec![("atime".into(), PropValue::Num(0))]).await.expect("created");
        let fs = mount(&pool).await;
        write(&fs, 0).await.expect("written");
        pool.sync().await.expect("synced");
        let total = |pool: &Pool| pool.allocator().space(metaslab::ClassKind::Normal).total_raw;
        let before = total(&pool);
        lab.disks[0].grow(layout.devices[0] * 4);
        pool.devices().expand_all().await.expect("nothing to do");
        assert_eq!(total(&pool), before, "one device is not enough");
        for (d, size) in lab.disks.iter().zip(&layout.devices).skip(1) {
            d.grow(size * 4);
        }
        let top = pool.tree().tops.borrow()[0].clone();
        pool.devices().expand_all().await.expect("grown");
        assert_eq!(pool.devices().expandable(&top), 0);
        assert!(total(&pool) > before * 3, "{} after {before}", total(&pool));
        // More than there was room for.
        for n in 1..(before >> 20) * 4 {
            write(&fs, n).await.expect("written");
        }
        assert_eq!(read(&fs, 0).await.expect("readable"), content(0));
        fs.unmount().await.expect("unmounted");
        pool.export().await.expect("exported");
    });
}

/// A pool that was given up while it was suspended can still be marked as destroyed.
#[test]
fn a_suspended_pool_is_destroyed() {
    let layout = layout(91, "mirror");
    let lab = Lab::new(91, &layout);
    lab.sim.block_on(async {
        let (pool, fs) = suspended(&lab, &layout, FailMode::Wait, Fault::Offline).await;
        assert_eq!(pool.destroy().await.err().map(|e| e.kind()), Some(ErrorKind::Busy));
        lab.disks.iter().for_each(|d| d.clear_faults());
        pool.give_up().await;
        pool.mark_destroyed().await;
        drop((pool, fs));
        let found = lab.find().await.expect("its labels are there");
        assert_eq!(found.state, ondisk::label::PoolState::Destroyed);
    });
}

/// Devices that take no writes make an import and a creation fail: there is no pool yet that
/// `zpool clear` could be used on.
#[test]
fn an_import_does_not_wait_for_devices_that_take_no_writes() {
    let layout = layout(4212, "raidz1");
    let lab = Lab::new(4212, &layout);
    let hour = Nanos::from_secs(3600);
    lab.sim.block_on(async {
        let pool = lab.create(&layout, Vec::new()).await.expect("created");
        let fs = mount(&pool).await;
        write(&fs, 1).await.expect("written");
        fs.unmount().await.expect("unmounted");
        pool.export().await.expect("exported");
        drop((fs, pool));
        for d in &lab.disks {
            d.fault(Fault::FailSome { kind: Some(OpKind::Write), per_mille: 1000 });
        }
        let import = lab.sim.rt().timeout(hour, lab.import(false, layout.opts())).await;
        let e = import.expect("it ends").map(drop).expect_err("nothing can be written");
        assert!(e.kind() == ErrorKind::Io && e.to_string().contains("nothing can be written"), "{e}");
        lab.disks.iter().for_each(|d| d.clear_faults());
        let pool = lab.import(false, layout.opts()).await.expect("imported");
        let fs = mount(&pool).await;
        assert_eq!(read(&fs, 1).await.expect("read"), content(1));
        fs.unmount().await.expect("unmounted");
        pool.export().await.expect("exported");
        drop((fs, pool));
        // After the labels, which a creation writes first, all writes fail.
        for d in &lab.disks {
            d.fault(Fault::FailRange { kind: Some(OpKind::Write), range: 4 << 20..64 << 20 });
        }
        let create = lab.sim.rt().timeout(hour, lab.create(&layout, Vec::new())).await;
        let e = create.expect("it ends").map(drop).expect_err("nothing can be written");
        assert_eq!(e.kind(), ErrorKind::Io, "{e}");
        lab.disks.iter().for_each(|d| d.clear_faults());
    });
}

/// Device files that are truncated, and perhaps grow again, while the pool uses them: noticed by a
/// read alone or by the next sync, and rebuilt from the other devices.
#[test]
fn truncated_devices_are_noticed_and_brought_back() {
    for (seed, shape) in [(4210, "mirror"), (4211, "raidz1")] {
        for (grows, reads) in [(false, true), (true, true), (true, false)] {
            let layout = layout(seed, shape);
            let lab = Rc::new(Lab::new(seed, &layout));
            let what = format!("{shape}, grows: {grows}, reads: {reads}");
            lab.sim.block_on(async {
                let pool = lab.create(&layout, vec![("atime".into(), PropValue::Num(0))]).await.expect("created");
                let fs = mount(&pool).await;
                for n in 0..20 {
                    write(&fs, n).await.expect("written");
                }
                fs.unmount().await.expect("unmounted");
                pool.export().await.expect("exported");
                // With nothing in memory.
                let pool = lab.import(false, layout.opts()).await.expect("imported");
                pool.devices().set_door(Rc::new(LabDoor(lab.clone())));
                let fs = mount(&pool).await;
                pool.sync().await.expect("synced");
                let disk = &lab.disks[0];
                let held = disk.image();
                disk.truncate(1 << 20, grows);
                let is_known = || pool.tree().health() != vdev::Health::Online;
                if reads {
                    for n in 0..20 {
                        assert!(read(&fs, n).await.expect("readable") == content(n), "{what}: file {n}");
                    }
                    pool.rt().sleep(Nanos::from_secs(30)).await;
                    // Reads of zeros give checksum errors only; reads behind the end show the
                    // truncation.
                    assert!(grows || is_known(), "{what}: reads alone found out");
                }
                write(&fs, 20).await.expect("written");
                pool.sync().await.expect("the others are enough");
                pool.rt().sleep(Nanos::from_secs(30)).await;
                assert!(is_known(), "{what}");
                if !grows {
                    pool.devices().clear(None).await.expect("the others are enough");
                    assert!(is_known(), "{what}: it is too short to be taken back");
                    disk.restore(&held);
                }
                pool.devices().clear(None).await.expect("cleared");
                scan::wait(&pool).await.expect("resilvered");
                assert!(!is_known(), "{what}");
                fs.unmount().await.expect("unmounted");
                scan::scrub_clean(&pool).await.unwrap_or_else(|e| panic!("{what}: {e}"));
                pool.export().await.expect("exported");
            });
            // The others may go now.
            judged(&lab, &format!("truncated-{shape}-{grows}-{reads}"));
        }
    }
}
