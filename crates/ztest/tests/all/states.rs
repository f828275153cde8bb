//! Dedup tables, checkpoints and going back: each worked with through several imports and judged by
//! the independent checker, and by zdb where it is installed.

use std::cell::Cell;
use std::rc::Rc;

use base::{Nanos, ObjectId, Result};
use bdev::Buf;
use dsl::props::PropValue;
use ondisk::feature::FeatureId;
use spa::{EngineOpts, ImportOpts, Pool, States};
use zdb::CheckOpts;
use zpl::{Cred, MountOpts, Zfs};
use ztest::judge::{Scratch, Verdict, ask_zdb, has_zdb, save};
use ztest::lab::SHAPES;
use ztest::lab::{Lab, Layout, POOL};

use crate::images::reader;

fn layout(ashift: u8) -> Layout {
    let mut features = ondisk::feature::features_of_2_1();
    features.push(FeatureId::ZpoolCheckpoint);
    Layout {
        devices: vec![96 << 20, 80 << 20],
        shape: &SHAPES[0],
        ashift,
        version: None,
        features,
        dirty_max: 16 << 20,
        arc_max: 16 << 20,
        txg_timeout: Nanos::from_secs(5),
        condenses: None,
    }
}

fn judge(lab: &Lab, name: &str) {
    let images = lab.images();
    let report = zdb::check(&reader(&images), &CheckOpts::default(), &mut |_| {});
    assert!(report.errors.is_empty() && report.leaked == 0, "{name}: {:?}", report.errors);
    if !has_zdb() {
        eprintln!("NOT JUDGED: zdb is missing (zfsutils-linux)");
        return;
    }
    let scratch = Scratch::new(&format!("{name}-{:?}", std::thread::current().id())).expect("a scratch folder");
    save(&images, scratch.path()).expect("saved");
    assert_eq!(ask_zdb(scratch.path(), &["-bcc", "-dd"]), Verdict::Good, "{name}");
}

async fn import_with(lab: &Lab, import: ImportOpts, opts: EngineOpts) -> Result<Rc<Pool>> {
    let mut found = spa::scan(lab.disks.iter().map(|d| d.dev()).collect()).await;
    Pool::import(lab.sim.rt(), found.remove(0), import, opts).await
}

async fn open(pool: &Rc<Pool>) -> Rc<Zfs> {
    let ds = pool.dsl().find(POOL).expect("the root exists");
    Zfs::open(&ds, MountOpts::from_props(&ds)).await.expect("it opens")
}

/// A file whose blocks are all `kind`'s.
async fn put(fs: &Zfs, name: &str, kind: u8, blocks: usize) -> ObjectId {
    let file = fs.create(fs.root(), name.as_bytes(), 0o644, &Cred::new(0, 0), false).await.expect("created").obj;
    let block: Vec<u8> = (0..128usize << 10).map(|i| ((i * 7919) >> 3) as u8 ^ kind).collect();
    for n in 0..blocks {
        let data = Buf::copy_from(&block).freeze();
        fs.write(file, (n * block.len()) as u64, vec![data], false).await.expect("written");
    }
    file
}

#[test]
fn dedup_counts_what_comes_and_goes() {
    for (seed, dedup) in [(1, 1u64), (2, 0x101), (3, 0x10b)] {
        let layout = layout(if seed == 2 { 12 } else { 9 });
        let lab = Lab::new(seed, &layout);
        lab.sim.block_on(async {
            let pool = lab.create(&layout, vec![("dedup".into(), PropValue::Num(dedup))]).await.expect("created");
            let fs = open(&pool).await;
            put(&fs, "a", 1, 10).await;
            put(&fs, "b", 1, 3).await;
            put(&fs, "c", 2, 2).await;
            fs.sync_all().await.expect("synced");
            assert!(pool.zio().stats().deduped >= 12, "{:?}", pool.zio().stats());
            put(&fs, "d", 2, 5).await;
            put(&fs, "e", 3, 1).await;
            fs.sync_all().await.expect("synced");
            fs.unmount().await.expect("unmounted");
            pool.export().await.expect("exported");
        });
        judge(&lab, "dedup-made");
        let lab = lab.reborn(seed);
        lab.sim.block_on(async {
            let pool = lab.import(false, layout.opts()).await.expect("imports");
            let fs = open(&pool).await;
            let file = put(&fs, "b", 4, 2).await;
            let read = fs.read(file, 0, 128 << 10).await.expect("reads");
            assert_eq!(read.iter().map(|b| b.len()).sum::<usize>(), 128 << 10);
            fs.unlink(fs.root(), b"d").await.expect("removed");
            fs.unlink(fs.root(), b"e").await.expect("removed");
            put(&fs, "f", 1, 4).await;
            fs.sync_all().await.expect("synced");
            fs.unmount().await.expect("unmounted");
            pool.export().await.expect("exported");
        });
        judge(&lab, "dedup-changed");
        let lab = lab.reborn(seed);
        lab.sim.block_on(async {
            let pool = lab.import(false, layout.opts()).await.expect("imports");
            let fs = open(&pool).await;
            for name in ["a", "b", "c", "f"] {
                fs.unlink(fs.root(), name.as_bytes()).await.expect("removed");
            }
            fs.unmount().await.expect("unmounted");
            pool.sync().await.expect("synced");
            pool.export().await.expect("exported");
        });
        judge(&lab, "dedup-gone");
    }
}

/// A pool with a checkpoint between two sets of files.
fn checkpointed(layout: &Layout) -> Lab {
    let lab = Lab::new(7, layout);
    lab.sim.block_on(async {
        let pool = lab.create(layout, Vec::new()).await.expect("created");
        let fs = open(&pool).await;
        put(&fs, "old", 1, 20).await;
        put(&fs, "both", 2, 20).await;
        fs.sync_all().await.expect("synced");
        pool.create_checkpoint().await.expect("a checkpoint");
        assert!(pool.create_checkpoint().await.is_err(), "only one at a time");
        fs.unlink(fs.root(), b"old").await.expect("removed");
        put(&fs, "both", 3, 5).await;
        put(&fs, "new", 4, 30).await;
        fs.sync_all().await.expect("synced");
        put(&fs, "new", 5, 3).await;
        fs.unmount().await.expect("unmounted");
        pool.sync().await.expect("synced");
        assert!(pool.checkpoint().is_some_and(|(_, held)| held > 2 << 20), "{:?}", pool.checkpoint());
        pool.export().await.expect("exported");
    });
    judge(&lab, "checkpoint-made");
    lab
}

#[test]
fn checkpoints_keep_and_let_go() {
    let layout = layout(9);
    let lab = checkpointed(&layout).reborn(1);
    lab.sim.block_on(async {
        let pool = lab.import(false, layout.opts()).await.expect("imports");
        let held = pool.checkpoint().expect("it has a checkpoint").1;
        let fs = open(&pool).await;
        fs.unlink(fs.root(), b"both").await.expect("removed");
        fs.unmount().await.expect("unmounted");
        pool.sync().await.expect("synced");
        assert!(pool.checkpoint().is_some_and(|(_, now)| now > held));
        pool.export().await.expect("exported");
    });
    judge(&lab, "checkpoint-grown");
    let lab = lab.reborn(2);
    lab.sim.block_on(async {
        let pool = lab.import(false, layout.opts()).await.expect("imports");
        pool.discard_checkpoint().await.expect("discarded");
        assert_eq!(pool.checkpoint(), None);
        assert!(pool.discard_checkpoint().await.is_err(), "there is none");
        pool.export().await.expect("exported");
    });
    judge(&lab, "checkpoint-discarded");
}

#[test]
fn checkpoints_come_and_go_while_txgs_are_written() {
    let layout = layout(9);
    let lab = Lab::new(7, &layout);
    lab.sim.block_on(async {
        let pool = lab.create(&layout, Vec::new()).await.expect("created");
        let stop = Rc::new(Cell::new(false));
        let load = {
            let (pool, stop) = (pool.clone(), stop.clone());
            lab.sim.rt().spawn("load", async move {
                let fs = open(&pool).await;
                for n in 0..u8::MAX {
                    if stop.get() {
                        break;
                    }
                    put(&fs, &format!("f{n}"), n, 1).await;
                    // A txg follows the other: the command meets one in the middle of its passes.
                    fs.sync_all().await.expect("synced");
                }
                fs.unmount().await.expect("unmounted");
            })
        };
        for _ in 0..10 {
            pool.create_checkpoint().await.expect("a checkpoint");
            lab.sim.rt().sleep(Nanos::from_ms(37)).await;
            pool.discard_checkpoint().await.expect("discarded");
            pool.wait_discarded().await.expect("free again");
        }
        stop.set(true);
        load.await;
        pool.export().await.expect("exported");
    });
    judge(&lab, "checkpoint-under-load");
}

#[test]
fn checkpoints_are_gone_back_to() {
    let layout = layout(12);
    let made = checkpointed(&layout);
    for readonly in [true, false] {
        let lab = made.reborn(3);
        lab.sim.block_on(async {
            let import = ImportOpts { to_checkpoint: true, readonly, ..ImportOpts::default() };
            let pool = import_with(&lab, import, layout.opts()).await.expect("imports");
            let fs = open(&pool).await;
            assert!(fs.lookup(fs.root(), b"old").await.is_ok());
            assert!(fs.lookup(fs.root(), b"new").await.is_err());
            let both = fs.lookup(fs.root(), b"both").await.expect("found").obj;
            let read = fs.read(both, 0, 4096).await.expect("reads");
            assert_eq!(read[0][0], 2);
            if !readonly {
                put(&fs, "after", 9, 9).await;
            }
            fs.unmount().await.expect("unmounted");
            pool.export().await.expect("exported");
        });
        judge(&lab, "checkpoint-rewound");
    }
}

#[test]
fn a_damaged_last_state_is_passed_over() {
    let layout = layout(9);
    let lab = Lab::new(11, &layout);
    let (root, txg) = lab.sim.block_on(async {
        let pool = lab.create(&layout, Vec::new()).await.expect("created");
        let fs = open(&pool).await;
        for n in 0..6 {
            put(&fs, &format!("f{n}"), n, 3).await;
            fs.sync_all().await.expect("synced");
        }
        fs.unmount().await.expect("unmounted");
        pool.export().await.expect("exported");
        (pool.uberblock().rootbp, pool.uberblock().txg)
    });
    let lab = lab.reborn(1);
    for dva in root.dvas() {
        // Behind the two labels and the boot area at the front.
        lab.disks[dva.vdev().0 as usize].corrupt(dva.offset() + (4 << 20), 512);
    }
    lab.sim.block_on(async {
        assert!(import_with(&lab, ImportOpts::default(), layout.opts()).await.is_err());
        let import = ImportOpts { states: States::Last, ..ImportOpts::default() };
        let pool = import_with(&lab, import, layout.opts()).await.expect("imports");
        assert_eq!(pool.notices().len(), 1, "{:?}", pool.notices());
        assert!(pool.uberblock().txg > txg, "the first txg is newer than the damaged one");
        let fs = open(&pool).await;
        put(&fs, "after", 9, 9).await;
        fs.unmount().await.expect("unmounted");
        pool.export().await.expect("exported");
    });
    judge(&lab, "rewound");
}
