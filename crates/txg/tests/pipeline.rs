//! The pipeline and the throttle in virtual time: order, holds, kicks, delays, ends.
#![allow(clippy::unwrap_used)]

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use base::{Error, ErrorKind, Nanos, Result, Txg};
use rt::Rt;
use sim::{Sim, SimConfig};
use txg::{ThrottlePolicy, TxgIo, TxgPool, TxgState, TxgTunables};
use vdev::DirtyGauge;

const MIB: u64 = 1 << 20;

fn tunables(max: u64) -> TxgTunables {
    TxgTunables { dirty_data_max: max, wrlog_data_max: 2 * max, ..TxgTunables::default() }
}

/// Txgs that were synced, with the time at which each began.
type Log = Rc<RefCell<Vec<(Txg, Nanos)>>>;

/// A pool whose sync takes `sync_time`.
fn pool(rt: &Rt, t: TxgTunables, sync_time: Nanos) -> (TxgPool, Log, DirtyGauge) {
    let gauge = DirtyGauge::default();
    let pool = TxgPool::new(rt.clone(), Txg(4), t, gauge.clone());
    let log = Log::default();
    let (p, l, r) = (pool.clone(), log.clone(), rt.clone());
    drop(rt.spawn("sync loop", async move {
        p.run(async |txg| {
            l.borrow_mut().push((txg, r.now()));
            r.sleep(sync_time).await;
            Ok(())
        })
        .await
    }));
    (pool, log, gauge)
}

#[test]
fn an_idle_pool_syncs_every_five_seconds_from_start_to_start() {
    let sim = Sim::new(SimConfig::seeded(1));
    let (pool, log, _) = pool(&sim.rt(), TxgTunables::default(), Nanos::from_secs(2));
    sim.run_for(Nanos::from_secs(21));
    let starts: Vec<(u64, u64)> = log.borrow().iter().map(|(t, n)| (t.0, n.0 / 1_000_000)).collect();
    assert_eq!(starts, [(4, 5000), (5, 10000), (6, 15000), (7, 20000)]);
    assert_eq!((pool.last_synced(), pool.syncing_txg(), pool.open_txg()), (Txg(6), Some(Txg(7)), Txg(8)));
}

#[test]
fn changes_of_an_idle_pool_are_synced_soon_and_only_then() {
    let sim = Sim::new(SimConfig::seeded(5));
    let rt = sim.rt();
    let t =
        TxgTunables { txg_idle_timeout: Nanos::from_secs(1), txg_timeout: Nanos::from_secs(60), ..tunables(100 * MIB) };
    let (pool, log, _) = pool(&rt, t, Nanos::from_ms(10));
    let change = |pool: &TxgPool| {
        let hold = pool.hold();
        pool.dirty_add(hold.txg, 4096);
        pool.dirty_done(hold.txg, 4096);
    };
    sim.block_on(async {
        rt.sleep(Nanos::from_secs(20)).await;
        assert!(log.borrow().is_empty(), "nothing changed, nothing is written");
        change(&pool);
        rt.sleep(Nanos::from_secs(5)).await;
        assert_eq!(*log.borrow(), [(Txg(4), Nanos::from_secs(21))]);
        // Changes that go on: once there is a pause of a quarter of a second.
        for _ in 0..20 {
            change(&pool);
            rt.sleep(Nanos::from_ms(100)).await;
        }
        rt.sleep(Nanos::from_secs(5)).await;
        assert_eq!(log.borrow()[1..], [(Txg(5), Nanos::from_ms(27_150))]);
    });
}

#[test]
fn the_history_has_what_devices_did_during_each_sync() {
    let sim = Sim::new(SimConfig::seeded(6));
    let rt = sim.rt();
    let (pool, ..) = pool(&rt, TxgTunables { history: 3, ..TxgTunables::default() }, Nanos::from_secs(2));
    // A device that writes all the time, four kilobytes a second.
    let clock = rt.clone();
    pool.set_meter(move || {
        let n = clock.now().0 / 1_000_000_000;
        TxgIo { writes: n, write_bytes: n << 12, ..TxgIo::default() }
    });
    sim.run_for(Nanos::from_secs(18));
    let listed: Vec<(u64, TxgIo)> = pool.listed_history().iter().map(|r| (r.txg.0, r.io)).collect();
    let two = TxgIo { writes: 2, write_bytes: 2 << 12, ..TxgIo::default() };
    assert_eq!(listed, [(5, two), (6, two), (7, TxgIo::default())]);
    assert_eq!(pool.history().len(), 4);
    pool.clear_history();
    assert_eq!(pool.listed_history(), []);
    sim.run_for(Nanos::from_secs(5));
    assert_eq!(pool.listed_history().iter().map(|r| r.txg.0).collect::<Vec<u64>>(), [8]);
    assert_eq!(pool.stats().assigned, 0);
    drop(pool.hold_for(1));
    assert_eq!(pool.stats().assigned, 1);
}

#[test]
fn waiting_syncs_at_once_and_a_hold_keeps_its_txg_from_syncing() {
    let sim = Sim::new(SimConfig::seeded(2));
    let rt = sim.rt();
    let (pool, log, _) = pool(&rt, TxgTunables::default(), Nanos::from_ms(10));
    sim.block_on(async {
        let hold = pool.hold_open().await;
        assert_eq!(hold.txg, Txg(4));
        let (p, r) = (pool.clone(), rt.clone());
        let waiter = rt.spawn("waiter", async move {
            p.wait_synced(Txg(0)).await.unwrap();
            r.now()
        });
        rt.sleep(Nanos::from_secs(1)).await;
        assert_eq!(pool.open_txg(), Txg(5), "closed");
        assert!(log.borrow().is_empty(), "but held");
        let second = hold.clone();
        drop(hold);
        rt.sleep(Nanos::from_secs(1)).await;
        assert!(log.borrow().is_empty(), "a second hold counts as the first");
        drop(second);
        assert_eq!(waiter.await, Nanos::from_ms(2010));
        pool.wait_synced(Txg(4)).await.unwrap();
        assert_eq!(pool.last_synced(), Txg(4));
        pool.wait_synced(Txg(9)).await.unwrap();
        assert_eq!(pool.last_synced(), Txg(9), "txgs that are not open yet are waited for as well");
    });
}

#[test]
fn at_most_three_txgs_exist() {
    let sim = Sim::new(SimConfig::seeded(3));
    let rt = sim.rt();
    let (pool, _, _) = pool(&rt, TxgTunables::default(), Nanos::from_secs(3));
    sim.block_on(async {
        pool.kick();
        rt.sleep(Nanos::from_ms(1)).await;
        assert_eq!((pool.syncing_txg(), pool.open_txg()), (Some(Txg(4)), Txg(5)));
        let hold = pool.hold();
        pool.kick();
        assert_eq!(pool.open_txg(), Txg(6), "5 quiesces");
        pool.kick();
        assert_eq!(pool.open_txg(), Txg(6), "6 stays open until 5 syncs");
        drop(hold);
        assert_eq!(pool.open_txg(), Txg(6), "quiesced, but 4 still syncs");
        let states: Vec<TxgState> = pool.history().iter().map(|r| r.state).collect();
        assert_eq!(states, [TxgState::Syncing, TxgState::Quiesced, TxgState::Open]);
        pool.wait_open(Txg(7)).await.unwrap();
        assert_eq!(pool.syncing_txg(), Some(Txg(5)));
        assert_eq!(rt.now(), Nanos::from_secs(3), "as soon as 4 was done");
    });
}

#[test]
fn a_fifth_of_the_limit_closes_a_txg_and_the_gauge_follows() {
    let sim = Sim::new(SimConfig::seeded(4));
    let rt = sim.rt();
    let (pool, log, gauge) = pool(&rt, tunables(100 * MIB), Nanos::from_ms(50));
    sim.block_on(async {
        let hold = pool.hold();
        pool.dirty_add(hold.txg, 20 * MIB);
        assert_eq!((pool.open_txg(), gauge.0.get()), (Txg(4), 20));
        pool.dirty_add(hold.txg, 1);
        assert_eq!(pool.open_txg(), Txg(5));
        pool.dirty_add(hold.txg, 10 * MIB);
        assert_eq!((pool.dirty_in(Txg(4)), gauge.0.get()), (30 * MIB + 1, 30), "a hold goes on in its closed txg");
        drop(hold);
        let hold = pool.hold();
        pool.dirty_add(hold.txg, MIB);
        rt.sleep(Nanos::from_ms(10)).await;
        assert_eq!(log.borrow()[..], [(Txg(4), Nanos(0))]);
        pool.dirty_done(Txg(4), 30 * MIB);
        assert_eq!(pool.dirty(), MIB + 1);
        pool.wait_synced(Txg(4)).await.unwrap();
        assert_eq!((pool.dirty(), gauge.0.get()), (MIB, 1), "the rest of a synced txg is gone");
        pool.dirty_done(Txg(4), MIB);
        assert_eq!(pool.dirty(), MIB, "and is not taken back twice");
        let r = pool.history()[0];
        assert_eq!(
            (r.txg, r.state, r.dirty, r.synced),
            (Txg(4), TxgState::Committed, 30 * MIB + 1, Nanos::from_ms(50))
        );
        assert_eq!(pool.stats().kicked, 1);
        drop(hold);
    });
}

#[test]
fn delays_are_the_curve_and_serialised() {
    let sim = Sim::new(SimConfig::seeded(5));
    let rt = sim.rt();
    // No loop: dirty bytes stay dirty.
    let pool = TxgPool::new(rt.clone(), Txg(4), tunables(100 * MIB), DirtyGauge::default());
    sim.block_on(async {
        let hold = pool.hold();
        pool.dirty_add(hold.txg, 60 * MIB);
        pool.throttle(rt.now()).await.unwrap();
        assert_eq!((rt.now(), pool.stats().delayed), (Nanos(0), 0), "up to 60 % nobody waits");
        pool.dirty_add(hold.txg, 20 * MIB);
        // 500 us each at 80 %, regardless of the client: ten clients leave one after the other.
        let clients: Vec<_> = (0..10)
            .map(|_| {
                let (p, r) = (pool.clone(), rt.clone());
                rt.spawn("client", async move {
                    p.throttle(Nanos(0)).await.unwrap();
                    r.now()
                })
            })
            .collect();
        let mut left = rt::join::join_all(clients).await;
        left.sort();
        assert_eq!(left, (1..=10).map(|n| Nanos::from_us(500 * n)).collect::<Vec<_>>());
        assert_eq!((pool.stats().delayed, pool.history().last().unwrap().delayed), (10, 10));
        // A transaction that took long anyway is not delayed.
        let now = rt.now();
        pool.throttle(now - Nanos::from_us(501)).await.unwrap();
        assert_eq!(rt.now(), now);
        drop(hold);
    });
}

#[test]
fn the_limit_blocks_and_what_is_written_lets_through_one_by_one() {
    let sim = Sim::new(SimConfig::seeded(6));
    let rt = sim.rt();
    let t = TxgTunables { delay_max: Nanos(0), ..tunables(100 * MIB) };
    let pool = TxgPool::new(rt.clone(), Txg(4), t, DirtyGauge::default());
    sim.block_on(async {
        let hold = pool.hold();
        pool.dirty_add(hold.txg, 101 * MIB);
        let through: Rc<Cell<u32>> = Rc::default();
        let mut clients = Vec::new();
        for _ in 0..5 {
            let (p, n, r) = (pool.clone(), through.clone(), rt.clone());
            clients.push(rt.spawn("client", async move {
                p.throttle(r.now()).await.unwrap();
                n.set(n.get() + 1);
            }));
        }
        rt.sleep(Nanos::from_secs(1)).await;
        assert_eq!((through.get(), pool.stats().blocked_now), (0, 5));
        pool.dirty_done(hold.txg, MIB);
        rt.sleep(Nanos::from_ms(1)).await;
        assert_eq!(through.get(), 0, "still at the limit");
        for n in 1..=2 {
            pool.dirty_done(hold.txg, MIB);
            rt.sleep(Nanos::from_ms(1)).await;
            assert_eq!(through.get(), n);
        }
        // Below the share where delays begin all go at once.
        pool.dirty_done(hold.txg, 50 * MIB);
        rt.sleep(Nanos::from_ms(1)).await;
        assert_eq!((through.get(), pool.stats().blocked_now, pool.stats().blocked), (5, 0, 5));
        drop((hold, clients));
    });
}

#[test]
fn an_overload_settles_where_admission_meets_the_disk() {
    // Behaviour section 3.1: a 100 MB/s disk and 128 KiB writes settle near 89 % of 4 GiB; the
    // curve is the same at a smaller limit.
    let sim = Sim::new(SimConfig::seeded(7));
    let rt = sim.rt();
    let max = 400 * MIB;
    let pool = TxgPool::new(rt.clone(), Txg(4), tunables(max), DirtyGauge::default());
    let (block, rate) = (128 << 10, 100_000_000u64);
    let per_block = Nanos(block * 1_000_000_000 / rate);
    let (p, r) = (pool.clone(), rt.clone());
    drop(rt.spawn("sync loop", async move {
        p.run(async |txg| {
            while p.dirty_in(txg) > 0 {
                r.sleep(per_block).await;
                p.dirty_done(txg, block);
            }
            Ok(())
        })
        .await
    }));
    for _ in 0..20 {
        let (p, r) = (pool.clone(), rt.clone());
        drop(rt.spawn("client", async move {
            loop {
                p.throttle(r.now()).await.unwrap();
                let hold = p.hold_open().await;
                p.dirty_add(hold.txg, block);
            }
        }));
    }
    sim.run_for(Nanos::from_secs(20));
    let mut percents = Vec::new();
    for _ in 0..50 {
        sim.run_for(Nanos::from_ms(97));
        percents.push(pool.dirty() * 1000 / max);
    }
    let mean = percents.iter().sum::<u64>() / 50;
    assert!((870..=910).contains(&mean), "settled at {mean} permille: {percents:?}");
    assert_eq!(pool.stats().blocked_now, 0, "and nobody ever blocks");
}

#[test]
fn a_failed_sync_suspends_and_everybody_hears_of_it() {
    let sim = Sim::new(SimConfig::seeded(8));
    let rt = sim.rt();
    let pool = TxgPool::new(rt.clone(), Txg(4), tunables(10 * MIB), DirtyGauge::default());
    let (p, r) = (pool.clone(), rt.clone());
    let run = rt.spawn("sync loop", async move {
        p.run(async |txg| {
            r.sleep(Nanos::from_ms(1)).await;
            if txg < Txg(5) { Ok(()) } else { Err(Error::new(ErrorKind::Io, "disk is gone")) }
        })
        .await
    });
    sim.block_on(async {
        pool.wait_synced(Txg(4)).await.unwrap();
        let hold = pool.hold();
        pool.dirty_add(hold.txg, 20 * MIB);
        let (p, r) = (pool.clone(), rt.clone());
        let blocked = rt.spawn("blocked", async move { p.throttle(r.now()).await });
        let p = pool.clone();
        let opener = rt.spawn("opener", async move { p.wait_open(Txg(50)).await });
        drop(hold);
        let e = pool.wait_synced(Txg(5)).await.unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Suspended);
        assert!(e.to_string().contains("disk is gone"), "{e}");
        assert_eq!(run.await.unwrap_err().kind(), ErrorKind::Io);
        assert_eq!(blocked.await.unwrap_err().kind(), ErrorKind::Suspended);
        assert_eq!(opener.await.unwrap_err().kind(), ErrorKind::Suspended);
        assert_eq!(pool.wait_synced(Txg(99)).await.unwrap_err().kind(), ErrorKind::Suspended);
        assert_eq!(pool.throttle(rt.now()).await.unwrap_err().kind(), ErrorKind::Suspended);
        pool.wait_synced(Txg(4)).await.unwrap();
        pool.wait_stopped().await;
    });
}

#[test]
fn stopping_ends_the_loop_after_the_running_sync() {
    let sim = Sim::new(SimConfig::seeded(9));
    let rt = sim.rt();
    let (pool, log, _) = pool(&rt, TxgTunables::default(), Nanos::from_secs(1));
    sim.block_on(async {
        pool.kick();
        rt.sleep(Nanos::from_ms(1)).await;
        pool.stop();
        let waiter = pool.wait_synced(Txg(4));
        pool.wait_stopped().await;
        assert_eq!(rt.now(), Nanos::from_secs(1));
        waiter.await.unwrap();
        assert_eq!(log.borrow().len(), 1);
        assert_eq!(pool.wait_synced(Txg(5)).await.unwrap_err().kind(), ErrorKind::Interrupted);
    });
}

#[test]
fn a_dropped_loop_leaves_nobody_waiting() {
    let sim = Sim::new(SimConfig::seeded(10));
    let rt = sim.rt();
    let pool = TxgPool::new(rt.clone(), Txg(4), TxgTunables::default(), DirtyGauge::default());
    sim.block_on(async {
        let p = pool.clone();
        let waiter = rt.spawn("waiter", async move { p.wait_synced(Txg(4)).await });
        let never = pool.run(async |_| std::future::pending::<Result<()>>().await);
        assert!(rt.timeout(Nanos::from_secs(1), never).await.is_none());
        assert_eq!(waiter.await.unwrap_err().kind(), ErrorKind::Interrupted);
    });
}

#[test]
fn the_same_seed_is_the_same_run() {
    let run = |seed| {
        let sim = Sim::new(SimConfig::seeded(seed));
        let rt = sim.rt();
        let (pool, _, _) = pool(&rt, tunables(MIB), Nanos::from_ms(3));
        for _ in 0..4 {
            let (p, r) = (pool.clone(), rt.clone());
            drop(rt.spawn("client", async move {
                for _ in 0..100 {
                    let start = r.now();
                    p.throttle(start).await.unwrap();
                    let hold = p.hold();
                    p.dirty_add(hold.txg, 8192);
                    r.sleep(Nanos(r.rng_below(100_000))).await;
                }
            }));
        }
        sim.run_for(Nanos::from_secs(1));
        (sim.digest(), pool.last_synced(), pool.stats())
    };
    assert_eq!(run(11), run(11));
    assert_ne!(run(11).0, run(12).0);
}

/// Clients that write `block` bytes each as fast as they are let, at most one every `pace` all
/// together; gives how long each write waited.
fn clients(rt: &Rt, pool: &TxgPool, n: u64, block: u64, pace: Nanos) -> Rc<RefCell<Vec<Nanos>>> {
    let waits: Rc<RefCell<Vec<Nanos>>> = Rc::default();
    let turn = Rc::new(Cell::new(Nanos(0)));
    for _ in 0..n {
        let (p, r, w, turn) = (pool.clone(), rt.clone(), waits.clone(), turn.clone());
        drop(rt.spawn("client", async move {
            loop {
                let at = turn.get().max(r.now());
                turn.set(at + pace);
                r.sleep_until(at).await;
                let start = r.now();
                p.throttle_for(start, block).await.unwrap();
                let hold = p.hold_for(block);
                p.dirty_add(hold.txg, block);
                drop(hold);
                w.borrow_mut().push(r.now().since(start));
            }
        }));
    }
    waits
}

/// A pool over a disk of `rate` bytes a second, written block by block.
fn on_a_disk(rt: &Rt, t: TxgTunables, block: u64, rate: u64) -> TxgPool {
    let pool = TxgPool::new(rt.clone(), Txg(4), t, DirtyGauge::default());
    let per_block = Nanos(block * 1_000_000_000 / rate);
    let (p, r) = (pool.clone(), rt.clone());
    drop(rt.spawn("sync loop", async move {
        p.run(async |txg| {
            while p.dirty_in(txg) > 0 {
                r.sleep(per_block).await;
                p.dirty_done(txg, block);
            }
            Ok(())
        })
        .await
    }));
    pool
}

#[test]
fn the_throttle_of_2008_is_fast_then_ticks_then_stops() {
    // Behaviour section 3.3: 1000 threads offer 1 GB/s to a disk of 100 MB/s; of each 500 MB group
    // 7/8 are fast, 1/8 tick, and the threads then wait for the rest of 5 s.
    let sim = Sim::new(SimConfig::seeded(20));
    let rt = sim.rt();
    let block = 8192;
    let t = TxgTunables {
        policy: ThrottlePolicy::Legacy2008,
        txg_timeout: Nanos::from_secs(30),
        ..TxgTunables::for_memory(8 << 30)
    };
    let pool = on_a_disk(&rt, t, block, 100_000_000);
    let waits = clients(&rt, &pool, 1000, block, Nanos(8192));
    // Until the limit is learned and three txgs exist.
    sim.run_for(Nanos::from_secs(30));
    let limit = pool.write_limit().limit;
    assert!((480_000_000..520_000_000).contains(&limit), "limit {limit}");
    // From the middle of a stop to the middle of the fourth one after it.
    let until = |txg: u64| {
        while pool.last_synced().0 < txg {
            sim.run_for(Nanos::from_ms(10));
        }
        sim.run_for(Nanos::from_secs(2));
    };
    let from = pool.last_synced().0 + 1;
    until(from);
    waits.borrow_mut().clear();
    until(from + 4);
    let waits = waits.borrow();
    let count = |lo: u64, hi: u64| waits.iter().filter(|w| (lo..hi).contains(&(w.0 / 1_000_000))).count() as u64 / 4;
    let (fast, ticks, long) = (count(0, 5), count(5, 100), count(1000, 10_000));
    assert!(
        (52_000..58_000).contains(&fast),
        "{fast} fast, {ticks} ticks, {} between, {long} long, {} all",
        count(100, 1000),
        waits.len() / 4
    );
    assert!((7_000..9_000).contains(&ticks), "{ticks} ticks");
    assert!((900..1_100).contains(&long), "{long} long");
    assert!(count(100, 1000) < 60, "{} between", count(100, 1000));
}

#[test]
fn smoothing_goes_on_for_a_while_and_none_never_delays() {
    let sim = Sim::new(SimConfig::seeded(21));
    let rt = sim.rt();
    let smooth = TxgTunables { policy: ThrottlePolicy::Smoothing, ..tunables(100 * MIB) };
    let pool = TxgPool::new(rt.clone(), Txg(4), smooth, DirtyGauge::default());
    sim.block_on(async {
        let hold = pool.hold();
        pool.dirty_add(hold.txg, 70 * MIB);
        pool.dirty_done(hold.txg, 20 * MIB);
        let waited = async |p: &TxgPool| {
            let start = rt.now();
            p.throttle(start).await.unwrap();
            rt.now().since(start)
        };
        assert_eq!(waited(&pool).await, Nanos::from_us(100), "half dirty: 100 us");
        rt.sleep(Nanos::from_secs(5)).await;
        assert_eq!(waited(&pool).await, Nanos(0), "five seconds later no more");
        pool.dirty_add(hold.txg, 49 * MIB);
        pool.set_tunables(TxgTunables { policy: ThrottlePolicy::None, ..smooth });
        assert_eq!(waited(&pool).await, Nanos(0), "at 99 %");
        pool.dirty_add(hold.txg, MIB);
        let (p, r) = (pool.clone(), rt.clone());
        let blocked = rt.spawn("blocked", async move { p.throttle(r.now()).await.map(|()| r.now()) });
        rt.sleep(Nanos::from_secs(1)).await;
        assert_eq!(pool.stats().blocked_now, 1);
        pool.dirty_done(hold.txg, 1);
        let at = blocked.await.unwrap();
        assert_eq!(at, rt.now());
    });
}

#[test]
fn hostile_settings_neither_stall_nor_break_the_limit() {
    for seed in 0..4 {
        let sim = Sim::new(SimConfig::seeded(100 + seed));
        let rt = sim.rt();
        let block = 128 << 10;
        let pool = on_a_disk(&rt, tunables(50 * MIB), block, 100_000_000);
        let waits = clients(&rt, &pool, 20, block, Nanos(0));
        let mut rng = sim::Rng::new(seed);
        let (mut last, mut still) = (0, 0);
        for _ in 0..3_000 {
            let mut pick = |of: &[u64]| of[rng.below(of.len() as u64) as usize];
            let max = pick(&[0, 1, MIB, 20 * MIB, 100 * MIB]);
            let t = TxgTunables {
                policy: ThrottlePolicy::ALL[pick(&[0, 1, 2, 3, 4]) as usize],
                dirty_data_max: max,
                dirty_data_sync_percent: pick(&[0, 1, 20, 100]) as u32,
                txg_timeout: Nanos::from_ms(pick(&[1, 1000, 5000])),
                delay_min_dirty_percent: pick(&[0, 60, 100, 200]) as u32,
                delay_scale: pick(&[0, 1, 500_000, u64::MAX]),
                delay_max: Nanos::from_ms(pick(&[0, 1, 100, 1000])),
                wrlog_data_max: pick(&[0, MIB, u64::MAX]),
                write_smoothing: Nanos::from_secs(pick(&[0, 5, 1_000_000])),
                smoothing_scale: pick(&[0, 100_000, u64::MAX]),
                txg_synctime: Nanos::from_ms(pick(&[0, 1000, 5000])),
                write_limit_min: pick(&[0, 1, MIB]),
                write_limit_max: 100 * MIB,
                write_limit_override: pick(&[0, 0, 1, MIB]),
                throttle_delay: Nanos::from_ms(pick(&[0, 10])),
                ..tunables(max)
            };
            pool.set_tunables(t);
            sim.run_for(Nanos::from_ms(10));
            // Each of the twenty clients may add the one block that it was let in with; in 2008
            // each of three txgs has a limit.
            let most = 3 * 100 * MIB + 20 * block;
            assert!(pool.dirty() <= most, "seed {seed}: {} dirty", pool.dirty());
            let n = waits.borrow().len();
            still = if n == last { still + 1 } else { 0 };
            last = n;
            assert!(still < 300, "seed {seed}: nobody wrote for 3 s with {t:?}");
        }
    }
}
