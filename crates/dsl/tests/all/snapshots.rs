//! Snapshots of one file system: their order and names against a list, and the figures of space
//! against each other.

use std::rc::Rc;

use crate::common::{POOL, World};
use base::{ErrorKind, ObjectId};
use dsl::deadlist::Deadlist;
use dsl::{Dataset, Dir, DslPool};
use ondisk::dsl::Used;
use sim::Rng;
use spa::ImportOpts;
use zpl::{Cred, MountOpts, Zfs};

/// Checks the figures of a directory and of all below it (format page 05 section 5).
pub fn check_dir(dir: &Rc<Dir>) {
    let p = dir.phys();
    let share = |of: Used| p.used_breakdown[of as usize];
    let name = dir.full_name();
    assert_eq!(p.used_bytes, p.used_breakdown.iter().sum::<u64>(), "{name}");
    let children = dir.children();
    assert_eq!(share(Used::Child), children.iter().map(|c| c.phys().used_bytes).sum::<u64>(), "{name}");
    let hidden = children.iter().map(|c| c.phys().reserved.saturating_sub(c.phys().used_bytes)).sum::<u64>();
    assert_eq!(share(Used::ChildRsrv), hidden, "{name}");
    children.iter().for_each(check_dir);
}

async fn deadlist(dsl: &DslPool, ds: &Dataset) -> Deadlist {
    Deadlist::open(dsl.mos(), ObjectId(ds.phys().deadlist_obj)).await.unwrap()
}

/// Checks one file system that is no clone: every block is referenced by the head, or was freed
/// after a snapshot.
pub async fn check_fs(dsl: &DslPool, head: &Dataset, names: &[String]) {
    let snaps = dsl.snapshots(head).await.unwrap();
    assert_eq!(snaps.iter().map(|s| s.snapname()).collect::<Vec<_>>(), names);
    assert!(snaps.windows(2).all(|w| w[0].phys().creation_txg < w[1].phys().creation_txg));
    let mut chain: Vec<&Dataset> = snaps.iter().map(|s| &**s).collect();
    chain.push(head);
    for w in chain.windows(2) {
        assert_eq!((w[0].phys().next_snap_obj, w[1].phys().prev_snap_obj), (w[1].object.0, w[0].object.0));
        assert_eq!(w[1].phys().prev_snap_txg, w[0].phys().creation_txg);
    }
    let mut freed = 0;
    for ds in &chain {
        freed += deadlist(dsl, ds).await.space().await.unwrap().used;
    }
    let p = head.dir().phys();
    assert_eq!(p.used_breakdown[Used::Snap as usize] as i64, freed);
    assert_eq!(p.used_bytes, p.used_breakdown[Used::Head as usize] + freed as u64);
    assert_eq!(p.used_bytes, head.phys().referenced_bytes + freed as u64);
}

#[test]
fn snapshots_stay_in_order_and_their_space_adds_up() {
    for seed in 0..3 {
        let world = World::new(seed, 1);
        let mut rng = Rng::new(seed);
        world.sim.block_on(async {
            let pool = world.create().await;
            let dsl = pool.dsl().clone();
            let fs = format!("{POOL}/fs");
            dsl.create_fs(&fs, Vec::new(), world.new_fs()).await.unwrap();
            let head = dsl.find(&fs).unwrap();
            let zfs = Zfs::open(&head, MountOpts::default()).await.unwrap();
            let mut names: Vec<String> = Vec::new();
            for n in 0..40 {
                let pick = |rng: &mut Rng, names: &[String]| rng.below(names.len().max(1) as u64) as usize;
                match rng.below(6) {
                    0 | 1 => {
                        let name = format!("s{n}");
                        dsl.snapshot(vec![format!("{fs}@{name}")], false, Vec::new()).await.unwrap();
                        names.push(name);
                    }
                    2 if !names.is_empty() => {
                        let gone = names.remove(pick(&mut rng, &names));
                        let snap = dsl.find_snapshot(&format!("{fs}@{gone}")).await.unwrap();
                        let (unique, before) = (snap.phys().unique_bytes, head.dir().phys().used_bytes);
                        assert_eq!(dsl.space_of_snapshots(&snap, &snap).await.unwrap(), unique);
                        drop(snap);
                        dsl.destroy_snapshots(vec![format!("{fs}@{gone}")], false).await.unwrap();
                        assert_eq!(before - head.dir().phys().used_bytes, unique, "what only {gone} held is free");
                    }
                    3 if !names.is_empty() => {
                        let (at, new) = (pick(&mut rng, &names), format!("r{n}"));
                        dsl.rename_snapshot(&format!("{fs}@{}", names[at]), &format!("{fs}@{new}"), false)
                            .await
                            .unwrap();
                        names[at] = new;
                    }
                    _ => {
                        let name = format!("f{}", rng.below(6)).into_bytes();
                        let file = match zfs.lookup(zfs.root(), &name).await {
                            Ok(found) => found.obj,
                            Err(_) => zfs.create(zfs.root(), &name, 0o644, &Cred::default(), true).await.unwrap().obj,
                        };
                        let mut data = vec![0; 4096 * (1 + rng.below(40) as usize)];
                        rng.fill(&mut data);
                        let data = vec![bdev::Bytes::copy_from(&data)];
                        zfs.write(file, rng.below(8) * 65536, data, false).await.unwrap();
                        pool.sync().await.unwrap();
                    }
                }
                check_fs(&dsl, &head, &names).await;
                check_dir(&dsl.root());
            }
            zfs.unmount().await.unwrap();
            drop((zfs, head, dsl));
            pool.export().await.unwrap();
            drop(pool);
            let pool = world.import(ImportOpts::default()).await.unwrap();
            let head = pool.dsl().find(&fs).unwrap();
            check_fs(pool.dsl(), &head, &names).await;
            check_dir(&pool.dsl().root());
            pool.export().await.unwrap();
        });
    }
}

/// Also if the holder is gone: after a crash the next import releases it.
#[test]
fn a_temporary_snapshot_goes_with_its_hold() {
    let world = World::new(8, 1);
    let reborn = world.sim.block_on(async {
        let pool = world.create().await;
        let dsl = pool.dsl();
        let name = format!("{POOL}@zfs-diff-1");
        for round in 0..2 {
            dsl.snapshot_temporary(POOL, "zfs-diff-1", "zfs-diff").await.unwrap();
            let snap = dsl.find_snapshot(&name).await.unwrap();
            assert_eq!(
                dsl.holds(&snap).await.unwrap().iter().map(|h| h.tag.as_str()).collect::<Vec<_>>(),
                ["zfs-diff"]
            );
            drop(snap);
            assert_eq!(dsl.destroy_snapshots(vec![name.clone()], false).await.unwrap_err().kind(), ErrorKind::Busy);
            if round == 0 {
                dsl.release("zfs-diff", vec![name.clone()], false).await.unwrap();
                assert!(dsl.find_snapshot(&name).await.is_err());
            }
        }
        // A user's hold keeps it.
        let kept = format!("{POOL}@kept");
        dsl.snapshot_temporary(POOL, "kept", "zfs-diff").await.unwrap();
        dsl.hold("user", vec![kept], false).await.unwrap();
        world.reborn(9)
    });
    reborn.sim.block_on(async {
        let import = ImportOpts { force: true, ..ImportOpts::default() };
        let pool = reborn.import(import).await.unwrap();
        let names: Vec<String> =
            pool.dsl().snapshots(&pool.dsl().find(POOL).unwrap()).await.unwrap().iter().map(|s| s.snapname()).collect();
        assert_eq!(names, ["kept"]);
        pool.export().await.unwrap();
    });
}

#[test]
fn a_held_snapshot_stays() {
    let world = World::new(7, 1);
    world.sim.block_on(async {
        let pool = world.create().await;
        let dsl = pool.dsl();
        let snap = format!("{POOL}@a");
        dsl.snapshot(vec![snap.clone()], false, Vec::new()).await.unwrap();
        dsl.hold("keep", vec![snap.clone()], false).await.unwrap();
        assert_eq!(dsl.hold("keep", vec![snap.clone()], false).await.unwrap_err().kind(), ErrorKind::Exists);
        assert!(dsl.destroy_snapshots(vec![snap.clone()], false).await.is_err());
        // With `defer` it goes with its last hold.
        dsl.destroy_snapshots(vec![snap.clone()], true).await.unwrap();
        assert!(dsl.find_snapshot(&snap).await.is_ok());
        assert_eq!(dsl.release("other", vec![snap.clone()], false).await.unwrap_err().kind(), ErrorKind::NotFound);
        dsl.release("keep", vec![snap.clone()], false).await.unwrap();
        assert_eq!(dsl.find_snapshot(&snap).await.err().unwrap().kind(), ErrorKind::NotFound);
        pool.export().await.unwrap();
    });
}

#[test]
fn all_snapshots_of_a_call_are_made_or_none() {
    let world = World::new(8, 1);
    world.sim.block_on(async {
        let pool = world.create().await;
        let dsl = pool.dsl();
        let (a, b) = (format!("{POOL}/a"), format!("{POOL}/a/b"));
        for fs in [&a, &b] {
            dsl.create_fs(fs, Vec::new(), world.new_fs()).await.unwrap();
        }
        dsl.snapshot(vec![format!("{b}@s")], false, Vec::new()).await.unwrap();
        // One of them exists.
        assert!(dsl.snapshot(vec![format!("{a}@s")], true, Vec::new()).await.is_err());
        assert!(dsl.find_snapshot(&format!("{a}@s")).await.is_err());
        dsl.snapshot(vec![format!("{POOL}@t")], true, Vec::new()).await.unwrap();
        let mut txgs = Vec::new();
        for fs in [POOL, &a, &b] {
            txgs.push(dsl.find_snapshot(&format!("{fs}@t")).await.unwrap().phys().creation_txg);
        }
        assert!(txgs.iter().all(|t| *t == txgs[0]), "{txgs:?}");
        pool.export().await.unwrap();
    });
}
