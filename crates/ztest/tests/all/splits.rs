//! `zpool split`: two pools of the mirrors of one, and power cuts during that.

use std::cell::Cell;
use std::rc::Rc;

use base::Guid;
use bdev::BlockDev;
use ondisk::label::{CONFIG_SIZE, config_offset, label_offsets};
use sim::{CutStyle, DiskImage, Replay, Rng};
use spa::{Bias, GroupKind, ImportOpts, Pool, PoolCandidate};
use vdev::Health;
use zpl::{Cred, MountOpts, Zfs};
use ztest::cuts::completions;
use ztest::judge::{self, Level, Verdict};
use ztest::lab::{Lab, Layout, POOL, Shape};

/// A log between mirrors, a special class, a spare and a cache.
const SHAPE: Shape = Shape {
    name: "mirrors to split",
    groups: &[
        (GroupKind::Mirror, Bias::Normal, 2),
        (GroupKind::Single, Bias::Log, 1),
        (GroupKind::Mirror, Bias::Special, 2),
        (GroupKind::Mirror, Bias::Normal, 3),
        (GroupKind::Single, Bias::Log, 1),
    ],
    spares: 1,
    caches: 1,
};
/// The disks that leave: the last of each mirror.
const LEAVE: [usize; 3] = [1, 4, 7];
/// Of so many moments one is looked at.
const EVERY: usize = 4;
/// The mirror of disks 5 to 7 has two sides left.
const STAY: usize = 6;

fn layout(seed: u64) -> Layout {
    let mut rng = Rng::new(seed);
    let features = ondisk::feature::features_of_2_1();
    Layout { features, ..Layout::draw(&mut rng, 100 << 20).shaped(&SHAPE, &mut rng) }
}

fn snapshot(name: &str) -> Vec<String> {
    vec![format!("{POOL}@{name}")]
}

/// A pool with some datasets and snapshots.
async fn fill(lab: &Lab, layout: &Layout) -> Rc<Pool> {
    let pool = lab.create(layout, Vec::new()).await.expect("created");
    for name in ["a", "b"] {
        pool.dsl().snapshot(snapshot(name), false, Vec::new()).await.expect("a snapshot");
    }
    pool.sync().await.expect("synced");
    pool
}

async fn split(pool: &Pool, layout: &Layout, named: &[String]) -> base::Result<Guid> {
    let settings = async |new: &Rc<Pool>| {
        new.set_comment(Some("split".into()))?;
        new.sync().await
    };
    Ok(pool.split("other", named, layout.opts(), settings).await?.0)
}

async fn candidates(lab: &Lab) -> Vec<PoolCandidate> {
    spa::scan(lab.disks.iter().map(|d| d.dev() as Rc<dyn BlockDev>).collect()).await
}

/// The leaves of a pool with their health.
fn leaves(pool: &Pool) -> Vec<(Guid, Health)> {
    let tops = pool.tree().tops.borrow();
    tops.iter().flat_map(|t| t.kind().conditions()).map(|(guid, c)| (guid, c.health())).collect()
}

/// Imports a pool, reads everything in it and exports it; its leaves.
async fn check(lab: &Lab, found: PoolCandidate, how: ImportOpts, layout: &Layout, moment: u64) -> Vec<Guid> {
    let name = found.name.clone();
    let fail = |e: base::Error| -> ! { panic!("moment {moment}, pool {name}: {e}") };
    let pool = Pool::import(lab.sim.rt(), found, how, layout.opts()).await.unwrap_or_else(|e| fail(e));
    pool.sync().await.unwrap_or_else(|e| fail(e));
    pool.scan().wait().await.unwrap_or_else(|e| fail(e));
    pool.scan().start_scrub().await.unwrap_or_else(|e| fail(e));
    pool.scan().wait().await.unwrap_or_else(|e| fail(e));
    assert_eq!(pool.scan().status().phys.errors, 0, "moment {moment}, pool {name}");
    let all = leaves(&pool);
    for (guid, health) in &all {
        assert_eq!(*health, Health::Online, "moment {moment}, pool {name}: device {guid}");
    }
    assert!(pool.mos_config().split.is_none(), "moment {moment}, pool {name}");
    let here = pool.name();
    for snap in ["a", "b"] {
        pool.dsl().find_snapshot(&format!("{here}@{snap}")).await.unwrap_or_else(|e| fail(e));
    }
    pool.export().await.unwrap_or_else(|e| fail(e));
    all.into_iter().map(|(guid, _)| guid).collect()
}

fn judged(images: &[DiskImage], what: &str) {
    match judge::judge(images, Level::Zdb, what) {
        Verdict::Good => {}
        Verdict::Missing(what) => eprintln!("NOT JUDGED: {what} is missing"),
        Verdict::Bad(why) => panic!("{what}: {why}"),
    }
}

fn taken<T: Clone>(all: &[T], which: impl Fn(usize) -> bool) -> Vec<T> {
    all.iter().enumerate().filter(|(n, _)| which(*n)).map(|(_, image)| image.clone()).collect()
}

/// Both pools have everything, each on its own disks, and the judges find nothing wrong; before the
/// next import the labels tell of the split.
#[test]
fn a_split_makes_two_pools() {
    let layout = layout(4100);
    let lab = Lab::new(4100, &layout);
    lab.sim.block_on(async {
        let pool = fill(&lab, &layout).await;
        let old = pool.guid();
        let new = split(&pool, &layout, &["disk1.img".into()]).await.expect("split");
        assert_eq!(leaves(&pool).len(), STAY);
        pool.export().await.expect("exported");
        drop(pool);
        let mut found = candidates(&lab).await;
        let other = found.pop().expect("two pools");
        assert_eq!((other.name.as_str(), other.guid, other.devices.len()), ("other", new, LEAVE.len()));
        assert_eq!((other.config.split_guid, other.config.hole_array.clone()), (Some(old), vec![1]));
        assert_eq!(other.config.vdev_children, Some(4));
        let mine = found.pop().expect("two pools");
        assert_eq!((mine.guid, found.len()), (old, 0));
        let as_lab = ImportOpts { new_name: Some(POOL.into()), ..ImportOpts::default() };
        let one = check(&lab, other, as_lab, &layout, 0).await;
        let two = check(&lab, mine, ImportOpts::default(), &layout, 0).await;
        assert_eq!((one.len(), two.len()), (LEAVE.len(), STAY));
    });
    let images = lab.images();
    judged(&taken(&images, |n| LEAVE.contains(&n)), "split-new");
    judged(&taken(&images, |n| !LEAVE.contains(&n)), "split-old");
}

/// What waits in logs on log devices, which the new pool has not, is in both pools.
#[test]
fn a_log_on_log_devices_stays_with_the_old_pool() {
    let layout = layout(4103);
    let lab = Lab::new(4103, &layout);
    lab.sim.block_on(async {
        let pool = fill(&lab, &layout).await;
        let ds = pool.dsl().find(POOL).expect("the file system");
        let fs = Zfs::open(&ds, MountOpts::from_props(&ds)).await.expect("mounted");
        let file = fs.create(fs.root(), b"file", 0o644, &Cred::default(), true).await.expect("made").obj;
        fs.fsync(file).await.expect("logged");
        split(&pool, &layout, &[]).await.expect("split");
        fs.unmount().await.expect("unmounted");
        pool.export().await.expect("exported");
        drop((fs, ds, pool));
        for found in candidates(&lab).await {
            let name = found.name.clone();
            let pool = Pool::import(lab.sim.rt(), found, ImportOpts::default(), layout.opts()).await.expect("imported");
            let ds = pool.dsl().find(&name).expect("the file system");
            let fs = Zfs::open(&ds, MountOpts::from_props(&ds)).await.expect("mounted");
            fs.lookup(fs.root(), b"file").await.unwrap_or_else(|e| panic!("{name}: {e}"));
            fs.unmount().await.expect("unmounted");
            pool.export().await.expect("exported");
        }
    });
}

/// The last side of a mirror has another guid than before. Power cuts in two txgs, each between its
/// first labels and its uberblock or its last labels, leave no label with it of the state itself.
#[test]
fn two_cuts_after_a_mirror_has_ended_leave_its_last_side() {
    let layout = layout(4104);
    let lab = Lab::new(4104, &layout);
    let labels = |image: &DiskImage, which: [usize; 2]| {
        let places = which.map(|n| config_offset(label_offsets(image.size())[n]));
        places.map(|at| (at, image.read_vec(at, CONFIG_SIZE)))
    };
    let (mut images, old, new) = lab.sim.block_on(async {
        let pool = fill(&lab, &layout).await;
        let old = labels(&lab.disks[0].image(), [1, 3]);
        pool.devices().detach("disk1.img").await.expect("detached");
        pool.sync().await.expect("synced");
        let images = lab.images();
        pool.set_comment(Some("next".into())).expect("a comment");
        pool.sync().await.expect("synced");
        let new = labels(&lab.disks[0].image(), [0, 2]);
        pool.export().await.expect("exported");
        (images, old, new)
    });
    for (at, label) in old.into_iter().chain(new) {
        images[0].write(at, &label);
    }
    let lab = Lab::with_images(4105, images, true);
    lab.sim.block_on(async {
        let mut found = candidates(&lab).await;
        assert_eq!(found.len(), 1);
        let all = check(&lab, found.remove(0), ImportOpts::default(), &layout, 0).await;
        assert_eq!(all.len(), STAY + LEAVE.len() - 1);
    });
}

/// The labels of these disks with these numbers, each with its place.
fn labels_of(lab: &Lab, disks: &[usize], which: [usize; 2]) -> Vec<(usize, u64, Vec<u8>)> {
    let of = |disk: usize| {
        let image = lab.disks[disk].image();
        which
            .map(|n| config_offset(label_offsets(image.size())[n]))
            .map(|at| (disk, at, image.read_vec(at, CONFIG_SIZE)))
    };
    disks.iter().flat_map(|disk| of(*disk)).collect()
}

/// A new guid has come to be with its first uberblock. Power cuts in two txgs, before the last
/// labels of that one and before the uberblock of the next, leave labels of the pool before and
/// labels that are ahead: the devices stay with the new guid.
#[test]
fn two_cuts_after_a_new_guid_leave_it() {
    for splits in [true, false] {
        let layout = layout(4106);
        let lab = Lab::new(4106, &layout);
        let (moved, guids, images) = lab.sim.block_on(async {
            let pool = fill(&lab, &layout).await;
            let all = SHAPE.groups.iter().map(|g| g.2).sum();
            let moved: Vec<usize> = if splits { LEAVE.to_vec() } else { (0..all).collect() };
            let (old, before) = (pool.guid(), labels_of(&lab, &moved, [1, 3]));
            let new = match splits {
                true => split(&pool, &layout, &[]).await.expect("split"),
                false => pool.devices().change_guid(None).await.expect("a new guid"),
            };
            let mut images = lab.images();
            let next = match splits {
                true => {
                    let found = candidates(&lab).await.into_iter().find(|f| f.guid == new).expect("the new pool");
                    Pool::import(lab.sim.rt(), found, ImportOpts::default(), layout.opts()).await.expect("imported")
                }
                false => pool.clone(),
            };
            next.set_comment(Some("next".into())).expect("a comment");
            next.sync().await.expect("synced");
            for (disk, at, label) in before.into_iter().chain(labels_of(&lab, &moved, [0, 2])) {
                images[disk].write(at, &label);
            }
            next.export().await.expect("exported");
            if splits {
                pool.export().await.expect("exported");
            }
            (moved, (old, new), images)
        });
        let lab = Lab::with_images(4107, images, true);
        lab.sim.block_on(async {
            let (old, new) = guids;
            let of = |found: &[PoolCandidate], guid| found.iter().find(|f| f.guid == guid).map(|f| f.devices.len());
            let found = candidates(&lab).await;
            assert_eq!((of(&found, new), of(&found, old).is_some()), (Some(moved.len()), splits), "split: {splits}");
        });
    }
}

/// A split that is refused has changed nothing.
#[test]
fn a_refused_split_changes_nothing() {
    let layout = layout(4101);
    let lab = Lab::new(4101, &layout);
    lab.sim.block_on(async {
        let pool = fill(&lab, &layout).await;
        let before = pool.mos_config();
        let refused = async |named: &[&str], why: &str| {
            let named: Vec<String> = named.iter().map(|n| n.to_string()).collect();
            let e = split(&pool, &layout, &named).await.expect_err(why);
            assert!(e.to_string().contains(why), "{e}");
        };
        refused(&["disk0.img", "disk1.img"], "at most one disk from each mirror").await;
        refused(&["disk2.img"], "at most one disk from each mirror").await;
        refused(&["disk9.img"], "no such device").await;
        pool.create_checkpoint().await.expect("a checkpoint");
        refused(&[], "checkpoint").await;
        pool.discard_checkpoint().await.expect("none");
        pool.wait_discarded().await.expect("none");
        assert_eq!(pool.mos_config(), before);
        pool.devices().offline("disk1.img", false).await.expect("offline");
        refused(&[], "name another disk").await;
        refused(&["disk0.img"], "no valid replicas").await;
        pool.devices().online("disk1.img").await.expect("online");
        pool.sync().await.expect("synced");
        pool.scan().wait().await.expect("resilvered");
        assert_eq!(leaves(&pool).len(), STAY + LEAVE.len());
        pool.export().await.expect("exported");
        assert_eq!(candidates(&lab).await.len(), 1);
    });
    judged(&lab.images(), "split-refused");
}

/// The power goes at any moment of a split: the pool has all its disks, or there are two pools, and
/// no disk is of both.
#[test]
fn a_split_cut_anywhere_leaves_one_pool_or_two() {
    let layout = layout(4102);
    let lab = Lab::new(4102, &layout);
    let new = Cell::new(Guid(0));
    lab.sim.block_on(async {
        let pool = fill(&lab, &layout).await;
        lab.start_logs(&pool).await.expect("started");
        new.set(split(&pool, &layout, &[]).await.expect("split"));
        pool.export().await.expect("exported");
    });
    let logs: Vec<_> = lab.disks.iter().filter_map(|d| d.take_log()).collect();
    let all: Vec<u64> = completions(&logs).into_iter().collect();
    let mut moments: Vec<u64> = all.iter().copied().step_by(EVERY).collect();
    moments.extend(all.last().filter(|last| moments.last() != Some(last)));
    let mut replays: Vec<_> = logs.iter().map(|l| l.replay()).collect();
    let mut seen = Vec::new();
    for seq in moments {
        let mut cut = |(disk, replay): (usize, &mut Replay<'_>)| {
            replay.to_seq(seq);
            replay.cut(CutStyle::Seeded, seq * 31 + disk as u64)
        };
        let images: Vec<DiskImage> = replays.iter_mut().enumerate().map(&mut cut).collect();
        let lab = Lab::with_images(seq, images, true);
        seen.push(lab.sim.block_on(async {
            let found = candidates(&lab).await;
            let pools = found.len();
            let mut all: Vec<Guid> = Vec::new();
            for pool in found {
                assert!(pools == 1 || pool.missing_tops().is_empty(), "moment {seq}: {}", pool.name);
                all.extend(check(&lab, pool, ImportOpts::default(), &layout, seq).await);
            }
            let count = all.len();
            all.sort();
            all.dedup();
            assert_eq!((count, all.len()), (STAY + LEAVE.len(), count), "moment {seq}, {pools} pools: {all:?}");
            assert!(pools <= 2);
            pools
        }));
    }
    assert_eq!((seen.first(), seen.last()), (Some(&1), Some(&2)), "before the split and after it");
    eprintln!("{} moments, {} with two pools", seen.len(), seen.iter().filter(|n| **n == 2).count());
}

/// Power cuts while a workload goes on: `ztest --splitcuts` has many more.
#[test]
fn power_cuts_while_mirrors_are_split() {
    // A plain one, one with logs, and one that is given up.
    for seed in [1, 3, 4] {
        let (tally, faults) = ztest::splitcuts::cut_seed(seed, 0, 101);
        assert!(faults.is_empty() && tally.is_good(), "{faults:#?}");
        assert!(tally.cuts > 10, "{tally:?}");
    }
}
