//! The device tree changes under a workload. The long profile: `ztest --devices 0..100`.

use sim::{CutStyle, DiskImage, Replay, Rng};
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

/// A device is taken out of a mirror, and the power goes at any moment of that: the pool has all
/// devices that it had, or all but the one. (The label of the device that stays gets the guid of
/// the mirror, a moment before the uberblock.)
#[test]
fn a_detach_cut_anywhere_loses_no_device() {
    let mut rng = Rng::new(5);
    let shape = SHAPES.iter().find(|s| s.name == "mirror").expect("a known shape");
    let layout = Layout::draw(&mut rng, 100 << 20).shaped(shape, &mut rng);
    let lab = Lab::new(5, &layout);
    lab.sim.block_on(async {
        let pool = lab.create(&layout, Vec::new()).await.expect("created");
        pool.sync().await.expect("synced");
        lab.disks.iter().for_each(|d| d.start_log());
        let leaves = pool.tree().leaves();
        pool.devices().detach(&leaves[0].guid().0.to_string()).await.expect("detached");
        pool.export().await.expect("exported");
    });
    let logs: Vec<_> = lab.disks.iter().filter_map(|d| d.take_log()).collect();
    let moments = completions(&logs);
    let mut replays: Vec<_> = logs.iter().map(|l| l.replay()).collect();
    let mut sizes = Vec::new();
    for seq in moments {
        let mut cut = |(disk, replay): (usize, &mut Replay<'_>)| {
            replay.to_seq(seq);
            replay.cut(CutStyle::Seeded, seq * 31 + disk as u64)
        };
        let images: Vec<DiskImage> = replays.iter_mut().enumerate().map(&mut cut).collect();
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
