//! Devices that come and go: stale ones, strange ones, broken ones, hot spares.

use std::cell::RefCell;
use std::rc::{Rc, Weak};

use base::{Nanos, WallTime};
use ondisk::nvlist::NvList;
use ondisk::scan::{ScanFunc, ScanState};
use sim::{DiskImage, Fault, OpKind};
use vdev::Health;
use ztest::campaign::drive;
use ztest::devices::LabDoor;
use ztest::lab::{Lab, SHAPES, Shape};
use ztest::scan::scrub_clean;
use ztest::workload::{Profile, Runner};

fn shape(name: &str) -> &'static Shape {
    SHAPES.iter().find(|s| s.name == name).unwrap_or_else(|| panic!("no shape {name}"))
}

fn runner(seed: u64, name: &str) -> Runner {
    Runner::new(seed, Profile::Small).expect("a runner").shaped(seed, shape(name))
}

/// Creates or imports, works, exports.
fn live(r: &mut Runner, first: bool, ops: u64) {
    drive(r, async |r: &mut Runner| {
        if first {
            r.create().await?;
        } else {
            r.import().await?;
        }
        for _ in 0..ops {
            r.step().await?;
        }
        r.compare().await?;
        r.export().await
    })
    .unwrap_or_else(|e| panic!("{e}"));
}

fn reborn(r: &mut Runner, images: Vec<DiskImage>, seed: u64) {
    r.lab = Rc::new(Lab::with_images(seed, images, true));
}

/// A disk comes back as it was some exports ago, and its absence was not recorded: the import
/// detects that it misses the later txgs.
#[test]
fn stale_disks_are_recognised() {
    let mut r = runner(3200, "mirror");
    live(&mut r, true, 10);
    let old = r.lab.images();
    reborn(&mut r, old.clone(), 1);
    live(&mut r, false, 10);
    let mut images = r.lab.images();
    images[1] = old[1].clone();
    reborn(&mut r, images, 2);
    drive(&mut r, async |r: &mut Runner| {
        let pool = r.lab.import(false, r.layout.opts()).await.map_err(|e| e.to_string())?;
        pool.scan().wait().await.map_err(|e| e.to_string())?;
        assert!(pool.tree().leaves().iter().all(|l| l.condition.missing().is_empty()));
        // Now it has everything: the other one can go.
        pool.devices().offline("disk0.img", true).await.map_err(|e| e.to_string())?;
        r.pool = Some(pool);
        r.compare().await?;
        r.export().await
    })
    .unwrap_or_else(|e| panic!("{e}"));
    // Its missing txgs are on disk: the next import has no notices.
    let images = r.lab.images();
    reborn(&mut r, images, 3);
    live(&mut r, false, 5);
}

/// A disk fails some writes and takes all others, and the power fails when the txg is on disk: its
/// uberblock is that of the other one, and the import knows all the same that it misses something.
#[test]
fn a_write_that_failed_is_known_after_a_power_cut() {
    let mut resilvered = 0;
    for part in 0..63 {
        let mut r = runner(3210 + part, "mirror");
        let mut images = Vec::new();
        drive(&mut r, async |r: &mut Runner| {
            r.create().await?;
            for _ in 0..10 {
                r.step().await?;
            }
            r.pool().sync().await.map_err(|e| e.to_string())?;
            let size = r.layout.devices[1];
            let first = (4 << 20) + (size >> 6) * part;
            r.lab.disks[1].fault(Fault::FailRange {
                kind: Some(OpKind::Write),
                range: first..(first + (size >> 6)).min(size - (1 << 20)),
            });
            r.step().await?;
            r.pool().sync().await.map_err(|e| e.to_string())?;
            images = r.lab.images();
            r.lab.disks[1].clear_faults();
            r.export().await
        })
        .unwrap_or_else(|e| panic!("{part}: {e}"));
        reborn(&mut r, images, 4);
        drive(&mut r, async |r: &mut Runner| {
            let pool = r.lab.import(false, r.layout.opts()).await.map_err(|e| e.to_string())?;
            pool.scan().wait().await.map_err(|e| e.to_string())?;
            resilvered += u32::from(pool.scan().status().phys.func == ScanFunc::Resilver);
            r.pool = Some(pool.clone());
            scrub_clean(&pool).await?;
            drop(pool);
            r.export().await
        })
        .unwrap_or_else(|e| panic!("{part}: {e}"));
    }
    assert!(resilvered > 1, "{resilvered}");
}

/// Disks in any order, and one that belongs to another pool among them.
#[test]
fn disks_are_known_by_their_labels() {
    let mut other = runner(3201, "mirror");
    live(&mut other, true, 5);
    let mut r = runner(3202, "raidz1");
    live(&mut r, true, 10);
    let mut images = r.lab.images();
    images.rotate_left(1);
    reborn(&mut r, images.clone(), 1);
    live(&mut r, false, 5);
    // Disk 2 of the pool, at place 1 now, is a disk of the other pool.
    let mut images = r.lab.images();
    let foreign = other.lab.images().remove(0);
    let before = foreign.clone();
    images[1] = foreign;
    reborn(&mut r, images, 2);
    drive(&mut r, async |r: &mut Runner| {
        let devices = r.lab.disks.iter().map(|d| d.dev()).collect();
        let found = spa::scan(devices).await;
        let ours = found.into_iter().find(|c| c.devices.len() == 2).ok_or("the pool is not found")?;
        let import = spa::ImportOpts { force: true, ..spa::ImportOpts::default() };
        let pool = spa::Pool::import(r.lab.sim.rt(), ours, import, r.layout.opts()).await.map_err(|e| e.to_string())?;
        assert_eq!(pool.tree().health(), Health::Degraded);
        pool.devices().set_door(Rc::new(LabDoor(r.lab.clone())));
        let error = pool.devices().bring_online("disk1.img", false).await;
        let text = error.expect_err("it is another pool's").to_string();
        assert!(text.contains("belongs to the pool") || text.contains("no such device"), "{text}");
        r.pool = Some(pool);
        r.step().await?;
        r.compare().await?;
        r.export().await
    })
    .unwrap_or_else(|e| panic!("{e}"));
    let after = r.lab.images().remove(1);
    assert_eq!(before.first_difference(&after), None, "the foreign disk was written to");
}

/// A disk is pulled out under a workload: the hot spare takes its place.
#[test]
fn a_hot_spare_stands_in() {
    let mut r = runner(3203, "beside");
    drive(&mut r, async |r: &mut Runner| {
        r.create().await?;
        let pool = r.pool();
        pool.devices().set_door(Rc::new(LabDoor(r.lab.clone())));
        for _ in 0..5 {
            r.step().await?;
        }
        r.lab.disks[1].fault(Fault::Offline);
        let mut found = false;
        for _ in 0..40 {
            r.step().await?;
            pool.sync().await.map_err(|e| e.to_string())?;
            r.lab.sim.rt().sleep(Nanos::from_ms(100)).await;
            let config = pool.mos_config();
            found = config.vdev_tree.iter().any(|c| c.kind == ondisk::vdev_config::VdevKind::Spare);
            if found {
                break;
            }
        }
        assert!(found, "no spare was put in");
        r.compare().await?;
        // The spare is given back by detaching it; the lost one may not be needed, but the spare
        // has not everything.
        r.export().await
    })
    .unwrap_or_else(|e| panic!("{e}"));
}

/// Wrong contents degrade a disk: the hot spare stands in for it too, and is sent home when the
/// disk was cleared and misses nothing.
#[test]
fn a_hot_spare_goes_home() {
    let mut r = runner(3205, "beside");
    drive(&mut r, async |r: &mut Runner| {
        let text = |e: base::Error| e.to_string();
        r.create().await?;
        let pool = r.pool();
        pool.devices().set_door(Rc::new(LabDoor(r.lab.clone())));
        for _ in 0..10 {
            r.step().await?;
        }
        let spares = || {
            let config = pool.mos_config();
            config.vdev_tree.iter().filter(|c| c.kind == ondisk::vdev_config::VdevKind::Spare).count()
        };
        let settle = async || {
            for _ in 0..3 {
                pool.sync().await.map_err(text)?;
                r.lab.sim.rt().sleep(Nanos::from_ms(100)).await;
            }
            pool.scan().wait().await.map_err(text)?;
            pool.sync().await.map_err(text)
        };
        for round in 0..2 {
            r.lab.disks[0].fault(Fault::FlipOnRead { range: 4 << 20..1 << 40 });
            pool.scan().start_scrub().await.map_err(text)?;
            pool.scan().wait().await.map_err(text)?;
            r.lab.disks[0].clear_faults();
            settle().await?;
            let leaf = pool.tree().leaves()[0].clone();
            assert_eq!((leaf.condition.health(), spares()), (Health::Degraded, 1), "round {round}");
            settle().await?;
            assert_eq!(spares(), 1, "round {round}: it stays until the disk is cleared");
            pool.devices().clear(None).await.map_err(text)?;
            settle().await?;
            assert_eq!((leaf.condition.health(), spares()), (Health::Online, 0), "round {round}");
        }
        r.compare().await?;
        r.export().await
    })
    .unwrap_or_else(|e| panic!("{e}"));
}

/// A disk that fails to write every now and then is given up; one whose data no other device has is
/// not.
#[test]
fn worn_disks_are_faulted() {
    let mut r = runner(3204, "mirror");
    drive(&mut r, async |r: &mut Runner| {
        r.create().await?;
        let pool = r.pool();
        r.lab.disks[0].fault(Fault::FailSome { kind: Some(OpKind::Write), per_mille: 500 });
        for _ in 0..60 {
            r.step().await?;
            pool.sync().await.map_err(|e| e.to_string())?;
            if pool.tree().leaves()[0].condition.health() == Health::Faulted {
                break;
            }
        }
        assert_eq!(pool.tree().leaves()[0].condition.health(), Health::Faulted);
        assert_eq!(pool.tree().health(), Health::Degraded);
        r.compare().await?;
        r.lab.disks[0].clear_faults();
        let name = pool.tree().leaves()[0].guid().0.to_string();
        pool.devices().bring_online(&name, false).await.map_err(|e| e.to_string())?;
        let leaf = pool.tree().leaves()[0].clone();
        assert_eq!(leaf.condition.health(), Health::Online);
        assert!(pool.devices().offline("disk1.img", false).await.is_err() != leaf.condition.missing().is_empty());
        for _ in 0..5 {
            r.step().await?;
        }
        r.compare().await?;
        r.export().await
    })
    .unwrap_or_else(|e| panic!("{e}"));
}

/// Looks at a pool whenever an event of a resilver is posted.
#[derive(Default)]
struct Watch {
    pool: RefCell<Weak<spa::Pool>>,
    seen: RefCell<Vec<(String, bool)>>,
}

impl spa::EventSink for Watch {
    fn post(&self, class: String, _: WallTime, _: NvList) {
        if let Some(pool) = self.pool.borrow().upgrade().filter(|_| class.contains("resilver")) {
            self.seen.borrow_mut().push((class, is_under_way(&pool)));
        }
    }
}

/// The condition of `zpool wait -t resilver`.
fn is_under_way(pool: &spa::Pool) -> bool {
    pool.scan().status().phys.state == ScanState::Scanning || pool.scan().is_resilver_pending()
}

/// From the request to the moment when nothing is missed any more: without a gap in which a waiter
/// would return.
#[test]
fn a_resilver_is_under_way_until_it_is_over() {
    for seed in 3210..3216 {
        let mut r = runner(seed, "mirror");
        drive(&mut r, async |r: &mut Runner| {
            let text = |e: base::Error| e.to_string();
            r.create().await?;
            let pool = r.pool();
            let watch: Rc<Watch> = Rc::default();
            *watch.pool.borrow_mut() = Rc::downgrade(&pool);
            pool.set_event_sink(watch.clone(), "pool_create");
            pool.devices().offline("disk0.img", true).await.map_err(text)?;
            for _ in 0..10 {
                r.step().await?;
            }
            pool.sync().await.map_err(text)?;
            pool.devices().online("disk0.img").await.map_err(text)?;
            while is_under_way(&pool) {
                r.lab.sim.rt().sleep(Nanos(777)).await;
            }
            assert_eq!(pool.scan().status().phys.state, ScanState::Finished, "seed {seed}");
            assert!(
                pool.tree().leaves().iter().all(|l| l.condition.missing().is_empty()),
                "seed {seed}: something is missed"
            );
            let seen = watch.seen.take();
            assert!(seen.len() >= 2 && seen.iter().all(|(_, busy)| *busy), "seed {seed}: {seen:?}");
            r.compare().await?;
            r.export().await
        })
        .unwrap_or_else(|e| panic!("{e}"));
    }
}

/// `zpool reopen`: a device that does not answer is let go, comes back when it is there again, and
/// gets what it missed. With `-n` a scrub that runs goes on; a device that was taken out stays out.
#[test]
fn reopening_notices_what_left_and_what_came_back() {
    let mut r = runner(3210, "mirrors");
    drive(&mut r, async |r: &mut Runner| {
        let text = |e: base::Error| e.to_string();
        r.create().await?;
        let pool = r.pool();
        pool.devices().set_door(Rc::new(LabDoor(r.lab.clone())));
        pool.devices().offline("disk4.img", false).await.map_err(text)?;
        r.step().await?;
        pool.devices().reopen_all(false).await.map_err(text)?;
        let states = || {
            let all = pool.tree().tops.borrow().iter().flat_map(|t| t.kind().conditions()).collect::<Vec<_>>();
            all.iter().map(|(_, c)| c.health()).collect::<Vec<_>>()
        };
        use Health::{Offline, Online, Unavail};
        assert_eq!(states(), [Online, Online, Online, Online, Offline]);
        r.lab.away.borrow_mut().push(1);
        r.lab.disks[1].fault(Fault::FailSome { kind: None, per_mille: 1000 });
        pool.devices().reopen_all(false).await.map_err(text)?;
        assert_eq!(states(), [Online, Unavail, Online, Online, Offline]);
        for _ in 0..5 {
            r.step().await?;
        }
        pool.sync().await.map_err(text)?;
        r.lab.away.borrow_mut().clear();
        r.lab.disks[1].clear_faults();
        let mut opts = r.layout.opts();
        opts.scan.suspend_progress = true;
        pool.tune(&opts);
        pool.scan().start_scrub().await.map_err(text)?;
        pool.devices().reopen_all(true).await.map_err(text)?;
        let scan = || pool.scan().status().phys;
        assert_eq!((scan().func, scan().state), (ScanFunc::Scrub, ScanState::Scanning));
        assert_eq!(states(), [Online, Online, Online, Online, Offline]);
        let misses = || pool.tree().leaves().iter().filter(|l| !l.condition.missing().is_empty()).count();
        assert_eq!(misses(), 2, "{}", ztest::devices::devices_text(&pool));
        pool.devices().reopen_all(false).await.map_err(text)?;
        pool.tune(&r.layout.opts());
        pool.scan().wait().await.map_err(text)?;
        assert_eq!((scan().func, scan().state), (ScanFunc::Resilver, ScanState::Finished));
        assert_eq!(misses(), 1, "{}", ztest::devices::devices_text(&pool));
        // Now it has everything: the other one can go.
        pool.devices().offline("disk0.img", true).await.map_err(text)?;
        r.compare().await?;
        r.export().await
    })
    .unwrap_or_else(|e| panic!("{e}"));
}

/// A device that comes back during the resilver of another one waits for the end of it, also over
/// an import, or begins it again at once, as it is asked.
#[test]
fn a_device_that_comes_late_waits_for_the_next_resilver() {
    const GUID: &str = "com.datto:resilver_defer";
    for (seed, how) in (3220..).zip(["waits", "imports", "restarts", "without", "leaves"]) {
        let mut r = runner(seed, "raidz2");
        r.have_all_features();
        let text = |e: base::Error| e.to_string();
        drive(&mut r, async |r: &mut Runner| {
            r.create().await?;
            let pool = r.pool();
            pool.devices().set_door(Rc::new(LabDoor(r.lab.clone())));
            let mut opts = r.layout.opts();
            opts.scan.suspend_progress = true;
            pool.tune(&opts);
            let scan = || pool.scan().status().phys;
            let flags = || {
                let config = pool.tree().tops.borrow()[0].config_ref().clone();
                config.children.iter().map(|c| c.resilver_defer).collect::<Vec<_>>()
            };
            let count = || pool.feature_count(GUID);
            for (disk, steps) in [("disk1.img", 12), ("disk2.img", 6)] {
                pool.devices().offline(disk, false).await.map_err(text)?;
                for _ in 0..steps {
                    r.step().await?;
                }
                pool.sync_anew().await.map_err(text)?;
                pool.devices().online(disk).await.map_err(text)?;
                pool.sync_anew().await.map_err(text)?;
                pool.sync_anew().await.map_err(text)?;
                assert_eq!((scan().func, scan().state), (ScanFunc::Resilver, ScanState::Scanning), "{how}");
            }
            let first = scan();
            assert_eq!((flags(), count()), (vec![false, false, true, false, false], Some(1)), "{how}");
            // The one that is being resilvered loses its place when it leaves.
            pool.devices().offline("disk1.img", false).await.map_err(text)?;
            pool.devices().online("disk1.img").await.map_err(text)?;
            pool.sync_anew().await.map_err(text)?;
            assert_eq!((flags(), count()), (vec![false, true, true, false, false], Some(1)), "{how}");
            assert_eq!((scan().min_txg, scan().max_txg), (first.min_txg, first.max_txg), "{how}");
            match how {
                "restarts" => {
                    pool.scan().restart_resilver();
                    pool.sync_anew().await.map_err(text)?;
                }
                "without" => {
                    opts.scan.defer_off = true;
                    pool.tune(&opts);
                    pool.sync_anew().await.map_err(text)?;
                }
                "leaves" => {
                    pool.devices().offline("disk2.img", false).await.map_err(text)?;
                    pool.sync_anew().await.map_err(text)?;
                }
                _ => {}
            }
            if matches!(how, "restarts" | "without") {
                assert_eq!((flags(), count()), (vec![false; 5], Some(0)), "{how}");
                assert!(scan().state == ScanState::Scanning && scan().max_txg > first.max_txg, "{how}");
            }
            Ok(())
        })
        .unwrap_or_else(|e| panic!("{how}: {e}"));
        drive(&mut r, async |r: &mut Runner| {
            if how == "imports" {
                r.export().await?;
                r.import().await?;
            }
            let pool = r.pool();
            pool.tune(&r.layout.opts());
            pool.scan().wait().await.map_err(text)?;
            assert_eq!(pool.scan().status().phys.state, ScanState::Finished, "{how}");
            let misses = |l: &Rc<vdev::Leaf>| !l.condition.missing().is_empty();
            let away = usize::from(how == "leaves");
            assert_eq!(pool.tree().leaves().iter().filter(|l| misses(l)).count(), away, "{how}");
            let flags = pool.tree().tops.borrow()[0].config_ref().children.iter().any(|c| c.resilver_defer);
            assert_eq!((flags, pool.feature_count(GUID)), (false, Some(0)), "{how}");
            // Nothing is read from the devices that had everything.
            for disk in ["disk0.img", "disk3.img"].iter().skip(away) {
                pool.devices().offline(disk, false).await.map_err(text)?;
            }
            r.compare().await?;
            for disk in ["disk0.img", "disk3.img"].iter().skip(away) {
                pool.devices().online(disk).await.map_err(text)?;
            }
            pool.scan().wait().await.map_err(text)?;
            r.export().await
        })
        .unwrap_or_else(|e| panic!("{how}: {e}"));
    }
}
