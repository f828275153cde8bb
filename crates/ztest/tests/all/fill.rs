//! Full pools. The long profile: `ztest --fill 0..500 --layout all`.

use std::rc::Rc;

use base::{ErrorKind, Nanos};
use dsl::props::PropValue;
use spa::Pool;
use zpl::{Cred, MountOpts, Zfs};
use ztest::fill::{Filled, Met, Plan, run, run_seed};
use ztest::judge::{self, Level, Verdict};
use ztest::lab::{Lab, Layout, SHAPES, shape_of};

fn judged(images: &[sim::DiskImage], name: &str) {
    match judge::judge(images, Level::Zdb, name) {
        Verdict::Good => {}
        Verdict::Missing(what) => eprintln!("NOT JUDGED: {name}: {what} is missing"),
        Verdict::Bad(why) => panic!("{name}: {why}"),
    }
}

/// One small device.
fn one_device(ashift: u8) -> Layout {
    Layout {
        devices: vec![128 << 20],
        shape: &SHAPES[0],
        ashift,
        version: None,
        features: ondisk::feature::features_of_2_1(),
        dirty_max: 64 << 20,
        arc_max: 16 << 20,
        txg_timeout: Nanos::from_secs(5),
        condenses: None,
    }
}

/// Records far below the unit of allocation, in three copies: a byte takes 48.
#[test]
fn records_below_the_unit_of_allocation() {
    let mut met = Met::default();
    let Filled { images, .. } =
        run(1, one_device(13), Plan::appends(512, 3), &mut met).unwrap_or_else(|e| panic!("{e}"));
    assert!(met.refused > 0, "{met:?}");
    judged(&images, "fill-records");
}

/// A block that is written again and again is charged once a txg, and logged and stored early each
/// time: that must not take the room of the txg.
#[test]
fn logs_leave_room_for_their_txg() {
    let layout = Layout { dirty_max: 1 << 30, txg_timeout: Nanos::from_secs(3600), ..one_device(12) };
    let lab = Lab::new(3, &layout);
    lab.sim.block_on(async {
        let pool = lab.create(&layout, vec![("recordsize".into(), PropValue::Num(32 << 10))]).await.expect("created");
        let fs = mounted(&pool, ztest::lab::POOL).await;
        let file = fs.create(fs.root(), b"f", 0o644, &Cred::new(0, 0), true).await.expect("created");
        for n in 0..6000u64 {
            let mut data = vec![0; 32 << 10];
            sim::Rng::new(n).fill(&mut data);
            fs.write_sync(file.obj, 0, vec![bdev::Bytes::copy_from(&data)], false).await.expect("written");
        }
        assert!(pool.suspended().is_none());
        fs.unmount().await.expect("unmounted");
        pool.export().await.expect("exported");
    });
    judged(&lab.images(), "fill-log");
}

#[test]
fn full_pools_refuse_and_go_on() {
    let mut met = Met::default();
    // 3: commits find no room for their log; 40, 84: the log of a full pool is replayed, also where
    // it takes nearly all the room; 131: blocks that a log names are gang blocks; 398: snapshots
    // are destroyed while freed space is not allocatable yet.
    for seed in [3, 7, 40, 84, 131, 398] {
        let shape = shape_of(seed);
        let filled = run_seed(seed, shape, &mut met).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
        judged(&filled.images, &format!("fill{seed}"));
        if let Some(images) = filled.recovered {
            judged(&images, &format!("fill{seed}cut"));
        }
    }
    assert!(met.refused > 0 && met.stalls > 0, "{met:?}");
}

/// A quota of 18 MiB of which files that are never removed hold nearly all: emptying one of them
/// brings its space back.
#[test]
fn a_quota_is_full_of_tracked_files() {
    let met = &mut Met::default();
    run_seed(92, shape_of(92), met).unwrap_or_else(|e| panic!("{e}"));
}

async fn mounted(pool: &Pool, name: &str) -> Rc<Zfs> {
    let ds = pool.dsl().find(name).expect("it exists");
    Zfs::open(&ds, MountOpts::from_props(&ds)).await.expect("it opens")
}

/// Appends up to `len` bytes; how it ended.
async fn append(fs: &Zfs, obj: base::ObjectId, len: u64) -> base::Result<()> {
    let part = 64 << 10;
    for _ in 0..len / part {
        let mut data = vec![0; part as usize];
        sim::Rng::new(len).fill(&mut data);
        fs.write(obj, 0, vec![bdev::Bytes::copy_from(&data)], true).await?;
    }
    Ok(())
}

/// Limits of a dataset's referenced space: space from a truncation can be written at once, a
/// rollback must fit, and so must the growth of a reservation by a snapshot.
#[test]
fn limits_of_a_dataset() {
    let layout = crate::failmode::layout(5, "stripe");
    let lab = Lab::new(5, &layout);
    lab.sim.block_on(async {
        let pool = lab.create(&layout, vec![("compression".into(), PropValue::Num(2))]).await.expect("created");
        let dsl = pool.dsl();
        let new = || ztest::lab::new_fs(&lab.sim);
        let set = async |name: &str, prop: &str, mib: u64| {
            dsl.set_props(name, vec![(prop.into(), PropValue::Num(mib << 20))]).await
        };
        dsl.create_fs("lab/a", Vec::new(), new()).await.expect("created");
        set("lab/a", "refquota", 6).await.expect("set");
        let fs = mounted(&pool, "lab/a").await;
        let file = fs.create(fs.root(), b"f", 0o644, &Cred::new(0, 0), true).await.expect("created").obj;
        assert_eq!(append(&fs, file, 20 << 20).await.err().map(|e| e.kind()), Some(ErrorKind::Quota));
        pool.sync().await.expect("synced");
        assert_eq!(append(&fs, file, 64 << 10).await.err().map(|e| e.kind()), Some(ErrorKind::Quota));
        fs.truncate(file, 0).await.expect("a truncation at the refquota");
        append(&fs, file, 4 << 20).await.expect("what was given back can be written");
        fs.unmount().await.expect("unmounted");

        dsl.snapshot(vec!["lab/a@s".into()], false, Vec::new()).await.expect("a snapshot");
        let fs = mounted(&pool, "lab/a").await;
        fs.truncate(file, 0).await.expect("truncated");
        fs.unmount().await.expect("unmounted");
        set("lab/a", "refquota", 2).await.expect("set");
        assert_eq!(dsl.rollback("lab/a@s").await.err().map(|e| e.kind()), Some(ErrorKind::Quota));
        set("lab/a", "refquota", 0).await.expect("set");
        dsl.rollback("lab/a@s").await.expect("a rollback that fits");

        dsl.create_fs("lab/b", Vec::new(), new()).await.expect("created");
        set("lab/b", "quota", 13).await.expect("set");
        set("lab/b", "refreservation", 10).await.expect("set");
        let fs = mounted(&pool, "lab/b").await;
        let file = fs.create(fs.root(), b"f", 0o644, &Cred::new(0, 0), true).await.expect("created").obj;
        append(&fs, file, 6 << 20).await.expect("written");
        fs.unmount().await.expect("unmounted");
        pool.sync().await.expect("synced");
        // 6 of 10 MiB are used, 3 are left: a snapshot would need 6 more.
        let got = dsl.snapshot(vec!["lab/b@s".into()], false, Vec::new()).await;
        assert_eq!(got.err().map(|e| e.kind()), Some(ErrorKind::NoSpace));
        set("lab/b", "quota", 20).await.expect("set");
        dsl.snapshot(vec!["lab/b@s".into()], false, Vec::new()).await.expect("there is room now");
        pool.export().await.expect("exported");
    });
}
