//! Pools with the property `multihost`: their heartbeats, and imports that respect those of others.

use std::rc::Rc;

use base::{ErrorKind, Nanos, ObjectId};
use dmu::zap;
use ondisk::object_type::ObjectType;
use ondisk::uberblock::{Uberblock, best, slot_count};
use rt::join::join_all;
use spa::{Beat, BeatEnd, EngineOpts, ImportOpts, MultihostTunables, Pool};
use vdev::labels::read_labels;
use vdev::{ALWAYS, DeviceFault, FaultyOps, Trouble};

use crate::common::World;

/// log2 of the unit of allocation of the pools here.
const ASHIFT: u64 = 12;

/// The newest uberblock, and on how many disks the slot of heartbeats is in use.
async fn look(world: &World) -> (Uberblock, usize) {
    let (mut all, mut beating) = (Vec::new(), 0);
    for disk in &world.disks {
        let found = read_labels(&*disk.dev()).await.unwrap().uberblocks;
        beating += usize::from(found.iter().any(|u| u.slot == slot_count(ASHIFT) - 1 && u.ub.has_heartbeat()));
        all.extend(found.into_iter().map(|u| u.ub));
    }
    (best(all).unwrap(), beating)
}

/// Sets the property as `zpool set` does.
async fn set(pool: &Pool, on: bool) {
    let stored = pool.dsl().sync_task(move |dsl, tx| {
        Box::pin(async move {
            let props = match zap::lookup_u64(dsl.directory(), b"pool_props").await? {
                Some(object) => dsl.mos().hold(ObjectId(object)).await?,
                None => {
                    let dn = zap::create(dsl.mos(), ObjectType::POOL_PROPS, 0, &tx).await?;
                    zap::add_u64(dsl.directory(), b"pool_props", dn.object().0, &tx).await?;
                    dn
                }
            };
            zap::update_u64(&props, b"multihost", u64::from(on), &tx).await
        })
    });
    pool.change_multihost(on, stored).await.unwrap();
}

async fn crash(pool: Rc<Pool>) {
    pool.give_up().await;
}

#[test]
fn a_change_that_fails_leaves_the_heartbeat() {
    let world = World::new(75, 2);
    world.sim.block_on(async {
        let pool = world.create().await;
        for before in [false, true] {
            set(&pool, before).await;
            for on in [false, true] {
                let fails = async {
                    assert_eq!(pool.has_multihost(), before || on, "before the txg");
                    Err(base::Error::invalid("a failure"))
                };
                assert_eq!(pool.change_multihost(on, fails).await.unwrap_err().kind(), ErrorKind::Invalid);
                pool.sync().await.unwrap();
                assert_eq!((pool.has_multihost(), look(&world).await.0.has_heartbeat()), (before, before));
            }
        }
        pool.export().await.unwrap();
    });
}

#[test]
fn a_pool_says_that_it_is_in_use() {
    let world = World::new(71, 2);
    world.sim.block_on(async {
        let rt = world.sim.rt();
        let pool = world.create().await;
        assert!(!look(&world).await.0.has_heartbeat());
        set(&pool, true).await;
        let (first, _) = look(&world).await;
        assert_eq!((first.mmp_interval_ms(), first.mmp_fail_intervals()), (Some(1000), Some(10)));
        rt.sleep(Nanos::from_secs(5)).await;
        let (later, beating) = look(&world).await;
        assert!(later.rank() > first.rank() && later.txg == first.txg && later.rootbp == first.rootbp);
        assert_eq!((beating, later.timestamp >= first.timestamp + 4), (2, true), "every disk has its turn");
        // The slot is not one of a txg.
        for n in 0..slot_count(ASHIFT) + 2 {
            pool.set_comment(Some(format!("{n}"))).unwrap();
            pool.sync().await.unwrap();
        }
        rt.sleep(Nanos::from_secs(5)).await;
        assert!(look(&world).await.0.has_heartbeat());
        set(&pool, false).await;
        let (off, _) = look(&world).await;
        assert!(!off.has_heartbeat());
        rt.sleep(Nanos::from_secs(5)).await;
        assert_eq!(look(&world).await.0, off);
        pool.export().await.unwrap();
    });
}

/// A device that does not answer costs the others no heartbeat, and what happened is kept.
#[test]
fn slow_devices_are_passed_over() {
    let world = World::new(76, 2);
    world.sim.block_on(async {
        let rt = world.sim.rt();
        let pool = world.create().await;
        let multihost = MultihostTunables { history: 100, ..MultihostTunables::default() };
        let opts = EngineOpts { multihost, ..EngineOpts::for_memory(1 << 30) };
        pool.tune(&opts);
        set(&pool, true).await;
        rt.sleep(Nanos::from_secs(4)).await;
        let (leaves, beats) = (pool.tree().leaves(), pool.beats());
        let of = |beats: &[Beat], at: usize| {
            let guid = leaves[at].guid();
            beats.iter().filter(|b| b.device.as_ref().is_some_and(|(g, ..)| *g == guid)).count()
        };
        assert!(of(&beats, 0) >= 3 && of(&beats, 0).abs_diff(of(&beats, 1)) <= 1, "{beats:?}");
        assert!(beats.windows(2).all(|w| w[0].id + 1 == w[1].id), "{beats:?}");
        assert!(beats.iter().rev().skip(1).all(|b| matches!(b.end, BeatEnd::Done { ok: true, .. })), "{beats:?}");
        // Settings that stay as they are bring none, and shorter intervals hold at once.
        pool.clear_beats();
        for _ in 0..8 {
            pool.tune(&opts);
            rt.sleep(Nanos::from_ms(500)).await;
        }
        assert!((7..=9).contains(&pool.beats().len()), "{:?}", pool.beats());
        let hours = MultihostTunables { interval: Nanos::from_secs(7200), ..multihost };
        pool.clear_beats();
        pool.tune(&EngineOpts { multihost: hours, ..opts.clone() });
        rt.sleep(Nanos::from_secs(30)).await;
        assert_eq!(pool.beats().len(), 1, "others hear of it");
        assert_eq!(look(&world).await.0.mmp_interval_ms(), Some(7_200_000));
        // It has not promised more than that.
        pool.tune(&opts);
        rt.sleep(Nanos::from_ms(100)).await;
        assert_eq!((pool.beats().len(), pool.suspended().is_none()), (2, true));
        assert_eq!(look(&world).await.0.mmp_interval_ms(), Some(1000));
        // One of them takes eight seconds: the other one's go on.
        let slow = |at: usize| {
            let delay = Trouble::Delay { span: Nanos::from_secs(8), lanes: 1 };
            let fault = DeviceFault::new(delay, FaultyOps::Write, None, ALWAYS);
            leaves[at].condition.faults.add(fault.clone());
            fault
        };
        let first = slow(0);
        pool.clear_beats();
        rt.sleep(Nanos::from_secs(7)).await;
        let beats = pool.beats();
        assert!(of(&beats, 0) <= 1 && of(&beats, 1) >= 11, "{beats:?}");
        assert!(pool.suspended().is_none());
        // Both: nothing can be written for a while.
        let second = slow(1);
        rt.sleep(Nanos::from_secs(6)).await;
        let beats = pool.beats();
        let skipped = beats.iter().filter(|b| matches!(b.end, BeatEnd::Skipped { pending: true, .. }));
        assert!((1..=2).contains(&skipped.clone().count()) && skipped.clone().all(|b| b.device.is_none()), "{beats:?}");
        leaves[0].condition.faults.remove(&first);
        leaves[1].condition.faults.remove(&second);
        let multihost = MultihostTunables { history: 2, ..multihost };
        pool.tune(&EngineOpts { multihost, ..opts });
        assert_eq!(pool.beats().len(), 2);
        rt.sleep(Nanos::from_secs(20)).await;
        assert!(pool.suspended().is_none());
        pool.export().await.unwrap();
    });
}

#[test]
fn a_pool_in_use_is_not_imported() {
    let world = World::new(72, 2);
    world.sim.block_on(async {
        let rt = world.sim.rt();
        let pool = world.create().await;
        set(&pool, true).await;
        for how in [
            ImportOpts::default(),
            ImportOpts { force: true, ..ImportOpts::default() },
            ImportOpts { readonly: true, ..ImportOpts::default() },
        ] {
            let e = world.import(how).await.map(drop).unwrap_err();
            assert!(e.kind() == ErrorKind::Busy && e.to_string().contains("in use by host 'sim'"), "{e}");
        }
        pool.sync().await.unwrap();
        pool.export().await.unwrap();
        drop(pool);

        // This host has exported it.
        let before = rt.now();
        let pool = world.import(ImportOpts::default()).await.unwrap();
        assert!(rt.now().since(before) < Nanos::from_secs(5));
        assert!(look(&world).await.0.has_heartbeat(), "the property is kept");
        crash(pool).await;

        // Nobody uses it: found out in twenty seconds, and claimed.
        let (left, _) = look(&world).await;
        let before = rt.now();
        let pool = world.import(ImportOpts { readonly: true, ..ImportOpts::default() }).await.unwrap();
        assert_eq!(look(&world).await.0, left, "nothing is written");
        pool.export().await.unwrap();
        let watched = rt.now().since(before);
        assert!((20..28).contains(&(watched.0 / 1_000_000_000)), "{watched:?}");
        let before = rt.now();
        let pool = world.import(ImportOpts::default()).await.unwrap();
        let taken = rt.now().since(before);
        assert!((30..40).contains(&(taken.0 / 1_000_000_000)), "{taken:?}");
        let (own, _) = look(&world).await;
        assert!(own.has_heartbeat() && own.txg > left.txg);
        pool.export().await.unwrap();
    });
}

/// Of several hosts that import a pool at the same time at most one gets it.
#[test]
fn a_pool_has_one_host() {
    let mut got = 0;
    for seed in 80..86 {
        let world = World::new(seed, 2);
        got += world.sim.block_on(async {
            let pool = world.create().await;
            set(&pool, true).await;
            crash(pool).await;
            let imports = (0..3).map(|_| world.import(ImportOpts::default())).collect();
            let (mut won, mut lost) = (Vec::new(), 0);
            for outcome in join_all(imports).await {
                match outcome {
                    Ok(pool) => won.push(pool),
                    Err(e) => {
                        assert_eq!(e.kind(), ErrorKind::Busy, "{e}");
                        lost += 1;
                    }
                }
            }
            assert!(won.len() <= 1 && won.len() + lost == 3);
            for pool in &won {
                pool.sync().await.unwrap();
                pool.export().await.unwrap();
            }
            won.len()
        });
    }
    assert!(got >= 4, "only {got} of 6 were imported by anybody");
}
