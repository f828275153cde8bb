//! The device tree changes under a workload. The long profile: `ztest --devices 0..100`.

use std::cell::Cell;
use std::rc::Rc;

use base::Guid;
use bdev::BlockDev;
use sim::{CutStyle, DiskImage, Replay, Rng};
use spa::Pool;
use vdev::Health;
use ztest::cuts::{completions, cut_on};
use ztest::devices::run_seed;
use ztest::judge::{self, Level, Verdict};
use ztest::lab::{Lab, Layout, SHAPES};

#[test]
fn devices_come_and_go() {
    let mut made = 0;
    for (seed, name) in [(3000, "mirror"), (3001, "raidz1"), (3003, "beside")] {
        let shape = SHAPES.iter().find(|s| s.name == name).unwrap_or_else(|| panic!("no shape {name}"));
        let (images, n, refused) = run_seed(seed, shape, 24).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
        made += n;
        assert!(n + refused > 4, "{n} {refused}");
        match judge::judge(&images, Level::Zdb, &format!("devices{seed}")) {
            Verdict::Good => {}
            Verdict::Missing(what) => eprintln!("NOT JUDGED: {name}: {what} is missing"),
            Verdict::Bad(why) => panic!("seed {seed}, {name}: {why}"),
        }
    }
    assert!(made > 10, "only {made} changes were made");
}

/// Power cuts while the tree changes: every image imports, with one state of the files. In the last
/// one labels are cut off behind txgs without changes, which left no uberblock.
#[test]
fn cuts_leave_a_tree() {
    for (seed, name, txgs, every) in [(3100, "mirror", 3, 60), (3101, "raidz1", 3, 60), (20_261_164, "raidz3", 4, 40)] {
        let shape = SHAPES.iter().find(|s| s.name == name).unwrap_or_else(|| panic!("no shape {name}"));
        let (tally, faults) = cut_on(seed, txgs, 0, every, false, Some(shape), false);
        assert!(tally.is_good() && tally.cuts > 3, "{name}: {tally:?}\n{}", faults.join("\n"));
    }
}

/// The images after a power cut at each moment of `change` on a new mirror of two, with the number
/// of the moment, and the layout.
fn cuts_during(seed: u64, change: impl AsyncFn(&Lab, &Rc<Pool>)) -> (Layout, Vec<(u64, Vec<DiskImage>)>) {
    let mut rng = Rng::new(seed);
    let shape = SHAPES.iter().find(|s| s.name == "mirror").expect("a known shape");
    let layout = Layout::draw(&mut rng, 100 << 20).shaped(shape, &mut rng);
    let lab = Lab::new(seed, &layout);
    lab.sim.block_on(async {
        let pool = lab.create(&layout, Vec::new()).await.expect("created");
        lab.start_logs(&pool).await.expect("started");
        change(&lab, &pool).await;
        pool.export().await.expect("exported");
    });
    let logs: Vec<_> = lab.disks.iter().filter_map(|d| d.take_log()).collect();
    let mut replays: Vec<_> = logs.iter().map(|l| l.replay()).collect();
    let mut images_at = |seq: u64| {
        let mut cut = |(disk, replay): (usize, &mut Replay<'_>)| {
            replay.to_seq(seq);
            replay.cut(CutStyle::Seeded, seq * 31 + disk as u64)
        };
        (seq, replays.iter_mut().enumerate().map(&mut cut).collect())
    };
    (layout, completions(&logs).into_iter().map(&mut images_at).collect())
}

/// A device is taken out of a mirror, and the power goes at any moment of that: the pool has all
/// devices that it had, or all but the one. (The label of the device that stays gets the guid of
/// the mirror, a moment before the uberblock.)
#[test]
fn a_detach_cut_anywhere_loses_no_device() {
    let (layout, cuts) = cuts_during(5, async |_, pool| {
        let leaves = pool.tree().leaves();
        pool.devices().detach(&leaves[0].guid().0.to_string()).await.expect("detached");
    });
    let mut sizes = Vec::new();
    for (seq, images) in cuts {
        let lab = Lab::with_images(seq, images, true);
        let leaves = lab.sim.block_on(async {
            let pool = lab.import(false, layout.opts()).await.unwrap_or_else(|e| panic!("moment {seq}: {e}"));
            let tops = pool.tree().tops.borrow().clone();
            let all: Vec<_> = tops.iter().flat_map(|top| top.kind().conditions()).collect();
            for (guid, condition) in &all {
                assert_ne!(condition.health(), Health::Unavail, "moment {seq}: device {guid} was not found");
            }
            pool.export().await.expect("exports");
            all.len()
        });
        sizes.push(leaves);
    }
    assert_eq!((sizes.first(), sizes.last()), (Some(&2), Some(&1)), "before the detach and after it: {sizes:?}");
}

/// The pool gets another guid, and the power goes at any moment of that: it has the old one or the
/// new one, and all of its devices.
#[test]
fn a_reguid_cut_anywhere_is_done_or_not() {
    let guids = Cell::new((Guid(0), Guid(0)));
    let (layout, cuts) = cuts_during(6, async |_, pool| {
        let old = pool.guid();
        let new = pool.devices().change_guid(None).await.expect("changed");
        assert_eq!(pool.guid(), new);
        guids.set((old, new));
    });
    let (old, new) = guids.get();
    let mut seen = Vec::new();
    let last = cuts.last().map(|(_, images)| images.clone()).expect("there are moments");
    for (seq, images) in cuts {
        let lab = Lab::with_images(seq, images, true);
        seen.push(lab.sim.block_on(async {
            let all = spa::scan(lab.disks.iter().map(|d| d.dev() as Rc<dyn BlockDev>).collect()).await;
            assert_eq!(all.len(), 1, "moment {seq}: {:?}", all.iter().map(|c| c.guid).collect::<Vec<_>>());
            let pool = lab.import(false, layout.opts()).await.unwrap_or_else(|e| panic!("moment {seq}: {e}"));
            for (guid, condition) in pool.tree().tops.borrow()[0].kind().conditions() {
                assert_ne!(condition.health(), Health::Unavail, "moment {seq}: device {guid} was not found");
            }
            let guid = pool.guid();
            assert_eq!(pool.mos_config().pool_guid, guid);
            pool.export().await.expect("exports");
            guid
        }));
    }
    assert!(seen.iter().all(|g| *g == old || *g == new));
    assert_eq!((seen.first(), seen.last()), (Some(&old), Some(&new)));
    match judge::judge(&last, Level::Zdb, "reguid") {
        Verdict::Good => {}
        Verdict::Missing(what) => eprintln!("NOT JUDGED: {what} is missing"),
        Verdict::Bad(why) => panic!("{why}"),
    }
}
