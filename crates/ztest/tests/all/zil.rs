//! Intent logs. The long profile: `ztest --campaign --cuts 1000000 --seed 0`.

use std::rc::Rc;

use dsl::crypto::{KeyFormat, KeyMaterial, NewCrypt, NewKey};
use ondisk::bytes::put_le64;
use ondisk::zil::{Record, records};
use ondisk::zil_record::Op;
use sim::DiskImage;
use spa::{EngineOpts, ImportOpts, Pool};
use zdb::CheckOpts;
use zil::chain::Walk;
use zio::crypto::Suite;
use zpl::{MountOpts, Zfs};
use ztest::lab::Lab;
use ztest::snaps::check_images;
use ztest::zilcuts::{Cutting, ZilTally, cut_seed};
use ztest::ziltrouble::Trouble;

use crate::images::{fixture, reader};

/// The disks of the pool that OpenZFS left with logs when its power failed.
fn images() -> Vec<DiskImage> {
    fixture("pools/zil")
}

async fn import(lab: &Lab, readonly: bool) -> Rc<Pool> {
    let mut found = spa::scan(lab.disks.iter().map(|d| d.dev()).collect()).await;
    let import = ImportOpts { readonly, force: true, ..ImportOpts::default() };
    Pool::import(lab.sim.rt(), found.remove(0), import, EngineOpts::for_memory(1 << 30)).await.expect("imports")
}

/// Whether we would have written the same record.
fn same(record: &Record<'_>) -> bool {
    let op = Op::parse(record).expect("records of OpenZFS are understood");
    let Ok(mut ours) = op.encode() else { return false };
    put_le64(&mut ours, 16, record.txg.0);
    put_le64(&mut ours, 24, record.seq);
    // The bytes behind the last name up to a multiple of 8 are padding.
    ours.len() == record.bytes.len() && ours[..ours.len() - 7] == record.bytes[..ours.len() - 7]
}

#[test]
fn records_of_openzfs_are_what_ours_are() {
    let lab = Lab::with_images(1, images(), false);
    let count = lab.sim.block_on(async {
        let pool = import(&lab, true).await;
        let mut count = std::collections::BTreeMap::new();
        for ds in pool.dsl().all() {
            let header = ds.zil_header().await.expect("a header");
            let mut walk = Walk::new(header.log);
            while let Some(step) = walk.step(pool.zio()).await.expect("readable") {
                let Some(block) = step.block else { break };
                for record in records(&block.bytes, block.chain.records) {
                    let record = record.expect("records are whole");
                    assert!(same(&record), "record {} of type {} of {}", record.seq, record.txtype, ds.name());
                    *count.entry(record.txtype).or_insert(0) += 1;
                }
            }
        }
        count
    });
    assert!(count.len() >= 8 && count.values().sum::<u64>() > 500, "{count:?}");
}

#[test]
fn replayed_pools_are_whole() {
    let lab = Lab::with_images(2, images(), true);
    lab.sim.block_on(async {
        let pool = import(&lab, false).await;
        let mut applied = 0;
        for ds in pool.dsl().all() {
            // The volume keeps its log until it is opened.
            let Ok(fs) = Zfs::open(&ds, MountOpts::from_props(&ds)).await else { continue };
            let done = fs.replayed();
            assert!(done.failed.is_none(), "{done:?}");
            applied += done.applied;
            fs.unmount().await.expect("unmounted");
        }
        assert!(applied > 500, "{applied}");
        pool.export().await.expect("exported");
    });
    let report = zdb::check(&reader(&lab.images()), &CheckOpts::default(), &mut |_| {});
    assert!(report.errors.is_empty() && report.leaked == 0, "{:?}", report.errors);
}

/// A scrub reads a log that a crash left before it is replayed: damage on one side of a mirror is
/// mended.
#[test]
fn a_scrub_mends_logs_that_wait_for_replay() {
    const DATA: u64 = 4 << 20;
    let shape = ztest::lab::SHAPES.iter().find(|s| s.name == "mirror").expect("it is there");
    let mut rng = sim::Rng::new(4400);
    let mut layout = ztest::lab::Layout::draw(&mut rng, 128 << 20).shaped(shape, &mut rng);
    layout.features = ondisk::feature::features_of_2_1();
    layout.txg_timeout = base::Nanos::from_secs(3600);
    let lab = Lab::new(4400, &layout);
    let mut left = lab.sim.block_on(async {
        let pool = lab.create(&layout, Vec::new()).await.expect("created");
        let ds = pool.dsl().find(ztest::lab::POOL).expect("it exists");
        let fs = Zfs::open(&ds, MountOpts::from_props(&ds)).await.expect("it opens");
        for n in 0..12u8 {
            let cred = zpl::Cred::new(0, 0);
            let file = fs.create(fs.root(), &[b'a' + n], 0o644, &cred, true).await.expect("created").obj;
            // Small ones are in the log, of large ones it names blocks.
            let mut content = vec![n; if n % 3 == 0 { 128 << 10 } else { 5000 }];
            sim::Rng::new(u64::from(n)).fill(&mut content);
            fs.write(file, 0, vec![bdev::Buf::copy_from(&content).freeze()], false).await.expect("written");
            fs.fsync(file).await.expect("logged");
        }
        // The image after a power cut.
        lab.disks.iter().map(|d| d.stable_image()).collect::<Vec<DiskImage>>()
    });
    lab.sim.crash();
    let look = Lab::with_images(1, left.clone(), false);
    let places: Vec<(u64, u64, bool)> = look.sim.block_on(async {
        let pool = look.import(true, layout.opts()).await.expect("imported");
        let ds = pool.dsl().find(ztest::lab::POOL).expect("it exists");
        let header = ds.zil_header().await.expect("a header");
        let mut all = Vec::new();
        for bp in zil::replay::blocks_of(pool.zio(), &header).await.expect("readable") {
            let raw = pool.zio().read_raw(bp.dva(0), bp.psize(), bp.phys_birth(), zio::Prio::SyncRead).await;
            let raw = raw.expect("readable");
            all.push((bp.dva(0).offset(), bp.psize(), zil::block::verify(&raw, &bp).is_some()));
        }
        all
    });
    let written: Vec<&(u64, u64, bool)> = places.iter().filter(|p| p.2).collect();
    assert!(written.len() >= 5 && places.len() == written.len() + 1, "{places:?}");
    let good = left[0].clone();
    for (offset, len, _) in &written {
        left[0].corrupt(DATA + offset, *len);
    }
    let lab = Lab::with_images(2, left, true);
    lab.sim.block_on(async {
        let pool = lab.import(false, layout.opts()).await.expect("imported");
        let s = ztest::scan::scrub(&pool).await.expect("scrubbed");
        let least: u64 = written.iter().map(|p| p.1).sum();
        assert!(s.phys.errors == 0 && s.phys.processed >= least, "{least} of {s:?}");
        for (offset, len, _) in &written {
            let (now, then) =
                (lab.disks[0].peek(DATA + offset, *len as usize), good.read_vec(DATA + offset, *len as usize));
            // A log block is as long as its written part.
            assert!(now == then, "the block at {offset}");
        }
        ztest::scan::scrub_clean(&pool).await.expect("clean");
        let ds = pool.dsl().find(ztest::lab::POOL).expect("it exists");
        let fs = Zfs::open(&ds, MountOpts::from_props(&ds)).await.expect("it opens");
        assert!(fs.replayed().applied >= 20 && fs.replayed().failed.is_none(), "{:?}", fs.replayed());
        fs.unmount().await.expect("unmounted");
        pool.export().await.expect("exported");
    });
    let report = zdb::check(&reader(&lab.images()), &CheckOpts::default(), &mut |_| {});
    assert!(report.errors.is_empty() && report.leaked == 0, "{:?}", report.errors);
}

/// A claim needs no keys: the blocks that the log of an encrypted file system names are its own
/// until a mount with the key replays it.
#[test]
fn logs_that_wait_for_their_keys_keep_their_blocks() {
    let mut rng = sim::Rng::new(4403);
    let mut layout = ztest::lab::Layout::draw(&mut rng, 128 << 20).shaped(&ztest::lab::SHAPES[0], &mut rng);
    layout.features = ondisk::feature::features_of_2_1();
    layout.txg_timeout = base::Nanos::from_secs(3600);
    let lab = Lab::new(4403, &layout);
    let name = format!("{}/sealed", ztest::lab::POOL);
    let material = || KeyMaterial::new(b"00112233".repeat(8));
    let left = lab.sim.block_on(async {
        let pool = lab.create(&layout, Vec::new()).await.expect("created");
        let key = NewKey { format: KeyFormat::Hex, material: material(), iters: None, location: "prompt".into() };
        let crypt = NewCrypt { suite: Some(Some(Suite::Aes256Gcm)), key: Some(key) };
        let props = ztest::lab::new_fs(&lab.sim);
        pool.dsl().create_fs_encrypted(&name, Vec::new(), crypt, props).await.expect("created");
        let ds = pool.dsl().find(&name).expect("it exists");
        let fs = Zfs::open(&ds, MountOpts::from_props(&ds)).await.expect("it opens");
        for n in 0..6u8 {
            let cred = zpl::Cred::new(0, 0);
            let file = fs.create(fs.root(), &[b'a' + n], 0o644, &cred, true).await.expect("created").obj;
            let mut content = vec![n; if n % 2 == 0 { 128 << 10 } else { 5000 }];
            sim::Rng::new(u64::from(n)).fill(&mut content);
            fs.write(file, 0, vec![bdev::Buf::copy_from(&content).freeze()], false).await.expect("written");
            fs.fsync(file).await.expect("logged");
        }
        lab.disks.iter().map(|d| d.stable_image()).collect::<Vec<DiskImage>>()
    });
    lab.sim.crash();
    let lab = Lab::with_images(1, left, true);
    lab.sim.block_on(async {
        let pool = lab.import(false, layout.opts()).await.expect("imported");
        let ds = pool.dsl().find(&name).expect("it exists");
        let header = ds.zil_header().await.expect("a header");
        let named = zil::replay::blocks_of(pool.zio(), &header).await.expect("readable");
        // The commit of the first file waited for a txg.
        assert_eq!(named.iter().filter(|bp| bp.psize() >= 128 << 10).count(), 2, "the log names blocks");
        pool.export().await.expect("exported");
        check_images(&lab.images()).expect("claimed");
        let pool = lab.import(false, layout.opts()).await.expect("imported");
        pool.dsl().load_key(&name, &material(), false).await.expect("it is the key");
        let ds = pool.dsl().find(&name).expect("it exists");
        let fs = Zfs::open(&ds, MountOpts::from_props(&ds)).await.expect("it opens");
        assert!(fs.replayed().applied == 10 && fs.replayed().failed.is_none(), "{:?}", fs.replayed());
        fs.unmount().await.expect("unmounted");
        pool.export().await.expect("exported");
        check_images(&lab.images()).expect("replayed");
    });
}

/// A log whose device is lost after a crash, with records in it, is given up by an import that goes
/// on without it, whether or not an import had claimed it before.
#[test]
fn a_log_on_a_lost_device_is_given_up() {
    for claimed in [false, true] {
        let shape = ztest::lab::SHAPES.iter().find(|s| s.name == "log").expect("it is there");
        let mut rng = sim::Rng::new(4402);
        let mut layout = ztest::lab::Layout::draw(&mut rng, 128 << 20).shaped(shape, &mut rng);
        layout.features = ondisk::feature::features_of_2_1();
        layout.txg_timeout = base::Nanos::from_secs(3600);
        let lab = Lab::new(4402, &layout);
        let mut left = lab.sim.block_on(async {
            let pool = lab.create(&layout, Vec::new()).await.expect("created");
            let ds = pool.dsl().find(ztest::lab::POOL).expect("it exists");
            let fs = Zfs::open(&ds, MountOpts::from_props(&ds)).await.expect("it opens");
            let cred = zpl::Cred::new(0, 0);
            for name in [b"in the pool", b"in the log!"] {
                let file = fs.create(fs.root(), name, 0o644, &cred, true).await.expect("created").obj;
                fs.write(file, 0, vec![bdev::Buf::copy_from(name).freeze()], false).await.expect("written");
                fs.fsync(file).await.expect("logged");
                if name == b"in the pool" {
                    pool.txg().wait_synced(base::Txg(0)).await.expect("synced");
                }
            }
            lab.disks.iter().map(|d| d.stable_image()).collect::<Vec<DiskImage>>()
        });
        lab.sim.crash();
        if claimed {
            let lab = Lab::with_images(1, left, true);
            left = lab.sim.block_on(async {
                lab.import(false, layout.opts()).await.expect("imported");
                lab.disks.iter().map(|d| d.stable_image()).collect()
            });
            lab.sim.crash();
        }
        let lab = Lab::with_images(2, left, true);
        let disks = lab.disks.len();
        lab.sim.block_on(async {
            *lab.away.borrow_mut() = (disks - 2..disks).collect();
            assert!(lab.import(false, layout.opts()).await.is_err());
            let how = ImportOpts { missing_log: true, ..ImportOpts::default() };
            let pool = lab.import_as(how, layout.opts()).await.expect("imported");
            assert!(pool.notices().iter().any(|n| n.contains("without a log device")), "{:?}", pool.notices());
            let ds = pool.dsl().find(ztest::lab::POOL).expect("it exists");
            let fs = Zfs::open(&ds, MountOpts::from_props(&ds)).await.expect("it opens");
            let cred = zpl::Cred::new(0, 0);
            fs.lookup(fs.root(), b"in the pool").await.expect("it is there");
            fs.lookup(fs.root(), b"in the log!").await.expect_err("it was only in the log");
            let file = fs.create(fs.root(), b"later", 0o644, &cred, true).await.expect("created").obj;
            fs.fsync(file).await.expect("logged");
            fs.unmount().await.expect("unmounted");
            pool.export().await.expect("exported");
            lab.away.borrow_mut().clear();
            let pool = lab.import(false, layout.opts()).await.expect("with the device");
            // By its DTL the device missed writes.
            pool.scan().wait().await.expect("resilvered");
            ztest::scan::scrub_clean(&pool).await.expect("clean");
            pool.export().await.expect("exported");
        });
        let report = zdb::check(&reader(&lab.images()), &CheckOpts::default(), &mut |_| {});
        // Claimed blocks are in the space maps, and only the first block of the chain could be
        // freed unread, as OpenZFS does.
        let other = |e: &&String| !(claimed && e.starts_with("leaked: vdev 1,"));
        assert_eq!(report.errors.iter().find(other), None);
    }
}

/// A log device is removed under file systems that log all the time.
#[test]
fn a_log_device_is_removed_under_load() {
    let shape = ztest::lab::SHAPES.iter().find(|s| s.name == "log").expect("it is there");
    let mut rng = sim::Rng::new(4401);
    let mut layout = ztest::lab::Layout::draw(&mut rng, 128 << 20).shaped(shape, &mut rng);
    layout.features = ondisk::feature::features_of_2_1();
    let lab = Lab::new(4401, &layout);
    lab.sim.block_on(async {
        let pool = lab.create(&layout, Vec::new()).await.expect("created");
        let ds = pool.dsl().find(ztest::lab::POOL).expect("it exists");
        let fs = Zfs::open(&ds, MountOpts::from_props(&ds)).await.expect("it opens");
        let ends = Rc::new(std::cell::Cell::new(false));
        let tasks: Vec<_> = (0..4u8)
            .map(|n| {
                let (fs, ends) = (fs.clone(), ends.clone());
                pool.rt().spawn("writer", async move {
                    let file = fs.create(fs.root(), &[b'a' + n], 0o644, &zpl::Cred::new(0, 0), true).await;
                    let file = file.expect("created").obj;
                    let mut rounds = 0u64;
                    while !ends.get() {
                        rounds += 1;
                        let data = vec![bdev::Buf::copy_from(&[rounds as u8; 3000]).freeze()];
                        fs.write(file, 0, data, false).await.expect("written");
                        fs.fsync(file).await.expect("logged");
                    }
                    rounds
                })
            })
            .collect();
        let log = pool.tree().tops.borrow().iter().find(|t| t.is_log).expect("there is one").id;
        while pool.allocator().in_use(log) == 0 {
            pool.rt().sleep(base::Nanos::from_ms(10)).await;
        }
        pool.devices().remove("mirror-1").await.expect("removed");
        assert!(!pool.tree().tops.borrow().iter().any(|t| t.is_log));
        pool.rt().sleep(base::Nanos::from_secs(1)).await;
        ends.set(true);
        for (n, task) in tasks.into_iter().enumerate() {
            let rounds = task.await;
            assert!(rounds > 20, "{rounds}");
            let file = fs.lookup(fs.root(), &[b'a' + n as u8]).await.expect("there").obj;
            let got: Vec<u8> = fs.read(file, 0, 4000).await.expect("read").iter().flat_map(|b| b.to_vec()).collect();
            assert!(got == [rounds as u8; 3000]);
        }
        fs.unmount().await.expect("unmounted");
        pool.export().await.expect("exported");
    });
    let report = zdb::check(&reader(&lab.images()[..1]), &CheckOpts::default(), &mut |_| {});
    assert!(report.errors.is_empty() && report.leaked == 0, "{:?}", report.errors);
}

#[test]
fn nothing_acknowledged_is_lost() {
    let mut all = ZilTally::default();
    for seed in 0..5 {
        let how = Cutting { all: false, steps: 10, repeats: 1, every: 12, second: 9, zdb: 0, trouble: Trouble::None };
        let (tally, faults) = cut_seed(seed, how);
        assert!(tally.is_good(), "{tally:?}\n{}", faults.join("\n"));
        all.add(tally);
    }
    assert!(all.cuts > 30 && all.replayed > 5 && all.acks > 20, "{all:?}");
}

/// Files are cloned between the other changes; the checker counts the references of their blocks
/// after replay.
#[test]
fn clones_survive_power_cuts() {
    let mut all = ZilTally::default();
    for seed in 0..4 {
        let how = Cutting { all: true, steps: 15, repeats: 1, every: 15, second: 20, zdb: 0, trouble: Trouble::None };
        let (tally, faults) = cut_seed(seed, how);
        assert!(tally.is_good(), "{tally:?}\n{}", faults.join("\n"));
        all.add(tally);
    }
    assert!(all.cuts > 30 && all.replayed > 5 && all.clones > 10 && all.checked > 3, "{all:?}");
}

#[test]
fn zdb_finds_nothing_after_replay() {
    if !ztest::judge::has_zdb() {
        eprintln!("NOT JUDGED: zdb is missing (zfsutils-linux)");
        return;
    }
    let how = Cutting { all: false, steps: 10, repeats: 1, every: 12, second: 0, zdb: 5, trouble: Trouble::None };
    let (tally, faults) = cut_seed(15, how);
    assert!(tally.is_good() && tally.zdb > 0, "{tally:?}\n{}", faults.join("\n"));
}

#[test]
fn trouble_loses_nothing() {
    for (name, trouble) in Trouble::NAMES.into_iter().skip(1) {
        let mut all = ZilTally::default();
        for seed in 0..3 {
            let how = Cutting { all: false, steps: 25, repeats: 1, every: 30, second: 0, zdb: 0, trouble };
            let (tally, faults) = cut_seed(seed, how);
            assert!(tally.is_good(), "{name}: {tally:?}\n{}", faults.join("\n"));
            all.add(tally);
        }
        assert!(all.acks > 0, "{name}: {all:?}");
    }
}

/// A failed write of the pool itself suspends it: after a clear it goes on, with everything that
/// was acknowledged.
#[test]
fn a_pool_that_was_suspended_goes_on() {
    for (seed, trouble) in [(20_261_132, Trouble::PoolFlush), (20_261_126, Trouble::PoolWrite)] {
        let how = Cutting { all: false, steps: 25, repeats: 1, every: 40, second: 0, zdb: 0, trouble };
        let (tally, faults) = cut_seed(seed, how);
        assert!(tally.is_good() && tally.cuts > 0, "{tally:?}\n{}", faults.join("\n"));
    }
}

/// A log block that failed is over before the next one is issued: the records in the next one must
/// not count as durable, since a replay ends at the failed one.
#[test]
fn a_block_behind_a_failed_one_is_not_durable() {
    let flushes = [20_261_113, 20_261_139, 20_261_159].map(|seed| (seed, Trouble::LogFlushes));
    for (seed, trouble) in [(20_261_131, Trouble::LogWrites)].into_iter().chain(flushes) {
        let how = Cutting { all: false, steps: 25, repeats: 1, every: 5, second: 0, zdb: 0, trouble };
        let (tally, faults) = cut_seed(seed, how);
        assert!(tally.is_good() && tally.failures > 0, "{tally:?}\n{}", faults.join("\n"));
    }
}

/// A log device that fails to write its labels, and tears them, keeps one: with the last one
/// everything that was acknowledged there would be gone.
#[test]
fn a_log_device_keeps_a_label() {
    for seed in [20_261_152, 20_261_168, 20_261_169] {
        let how =
            Cutting { all: false, steps: 25, repeats: 1, every: 5, second: 0, zdb: 0, trouble: Trouble::LogWrites };
        let (tally, faults) = cut_seed(seed, how);
        assert!(tally.is_good() && tally.cuts > 0, "{tally:?}\n{}", faults.join("\n"));
    }
}

/// What is done in a frozen pool is in its logs alone, and all of it is there after an import.
#[test]
fn frozen_pools_replay_everything() {
    let mut replayed = 0;
    for seed in 0..6 {
        replayed += ztest::zilfrozen::run_seed(seed, 60).unwrap_or_else(|e| panic!("{e}"));
    }
    assert!(replayed > 200, "{replayed}");
}
