//! The executor: determinism, reports, limits, crashes.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::rc::Rc;

use base::Nanos;
use bdev::Bytes;
use rt::sync::{Mutex, Notify, Rank};
use sim::{Model, Pick, Sim, SimConfig, SimDisk, StallCause};

fn us(n: u64) -> Nanos {
    Nanos::from_us(n)
}

/// A world with tasks, timers, locks, CPU jobs and disks; gives the digest and the order in which
/// tasks ended.
fn busy_run(config: SimConfig) -> (u64, Vec<u64>, Nanos) {
    let seed = config.seed;
    let sim = Sim::new(config);
    let rt = sim.rt();
    let disk = SimDisk::new(&sim, 16 << 20, Model::random(), seed);
    let order = Rc::new(RefCell::new(Vec::new()));
    let lock = Rc::new(Mutex::new(Rank(1, "lock"), ()));
    for n in 0..30u64 {
        let (rt2, disk, order, lock) = (rt.clone(), disk.clone(), order.clone(), lock.clone());
        rt.spawn("worker", async move {
            for i in 0..10 {
                rt2.yield_now().await;
                bdev::write(&disk, (n * 10 + i) * 4096, Bytes::zeroed(4096)).await.expect("no faults");
                let _guard = lock.lock().await;
                rt2.charge(us(3));
                rt2.cpu(us(80), || ()).await;
                rt2.sleep(Nanos(rt2.rng_below(1000))).await;
            }
            order.borrow_mut().push(n);
        });
    }
    sim.run_until_idle();
    let order = order.take();
    assert_eq!(order.len(), 30);
    (sim.digest(), order, sim.now())
}

#[test]
fn the_same_seed_is_the_same_run() {
    let mut digests = BTreeSet::new();
    let mut orders = BTreeSet::new();
    for seed in 0..8 {
        let first = busy_run(SimConfig::seeded(seed));
        assert_eq!(first, busy_run(SimConfig::seeded(seed)), "seed {seed}");
        digests.insert(first.0);
        orders.insert(first.1);
    }
    assert_eq!(digests.len(), 8, "different seeds are different runs");
    assert!(orders.len() > 4, "and different interleavings");
}

#[test]
fn a_fifo_world_runs_tasks_in_the_order_woken() {
    let sim = Sim::new(SimConfig { pick: Pick::Fifo, ..SimConfig::seeded(9) });
    let rt = sim.rt();
    let order = Rc::new(RefCell::new(Vec::new()));
    for n in 0..20 {
        let order = order.clone();
        rt.spawn("worker", async move { order.borrow_mut().push(n) });
    }
    sim.run_until_idle();
    assert!(order.take().into_iter().eq(0..20));
}

#[test]
fn a_stall_names_the_blocked_tasks() {
    let sim = Sim::new(SimConfig::seeded(1));
    let rt = sim.rt();
    let lock = Rc::new(Mutex::new(Rank(7, "directory"), ()));
    let never = Rc::new(Notify::new());
    for _ in 0..2 {
        let (lock, never) = (lock.clone(), never.clone());
        rt.spawn("holder", async move {
            let _guard = lock.lock().await;
            never.notified().await;
        });
    }
    let report = sim
        .try_block_on(async {
            rt.sleep(us(1)).await;
            drop(lock.lock().await);
        })
        .expect_err("nobody gives the lock back");
    assert_eq!(report.cause, StallCause::Blocked);
    assert!(report.names("holder") && report.names("main"));
    assert_eq!(report.now, us(1));
    let text = report.to_string();
    assert!(text.contains("nothing can run any more"), "{text}");
    assert!(text.contains("holder x2") && text.contains("holds directory (rank 7)"), "{text}");
}

#[test]
fn limits_of_time_and_turns() {
    let sim = Sim::new(SimConfig::seeded(1));
    let rt = sim.rt();
    let rt2 = rt.clone();
    rt.spawn("ticker", async move {
        loop {
            rt2.sleep(Nanos::from_secs(1)).await;
        }
    });
    let report = sim.try_block_on_for(Nanos::from_secs(90), std::future::pending::<()>()).expect_err("it is pending");
    assert_eq!((report.cause, report.now), (StallCause::TimeLimit, Nanos::from_secs(90)));
    sim.run_for(Nanos(5));
    assert_eq!(sim.now(), Nanos::from_secs(90) + Nanos(5));
    let step = sim.step();
    sim.stop_at_step(Some(step + 10));
    let report = sim.try_block_on(std::future::pending::<()>()).expect_err("it is pending");
    assert_eq!((report.cause, sim.step()), (StallCause::StepLimit, step + 10));
    sim.stop_at_step(None);
    sim.block_on(rt.sleep(Nanos::from_secs(3)));
}

#[test]
fn a_busy_loop_is_found() {
    let sim = Sim::new(SimConfig { polls_per_instant_max: 1000, ..SimConfig::seeded(1) });
    let rt = sim.rt();
    let report = sim
        .try_block_on(async {
            loop {
                rt.yield_now().await;
            }
        })
        .map(|never: std::convert::Infallible| never)
        .expect_err("it never ends");
    assert_eq!(report.cause, StallCause::Livelock);
}

#[test]
#[should_panic(expected = "one poll of task hog was charged 201000 ns")]
fn a_long_poll_panics() {
    let sim = Sim::new(SimConfig::seeded(1));
    let rt = sim.rt();
    let rt2 = rt.clone();
    sim.block_on(async {
        rt.spawn("hog", async move {
            rt2.charge(us(100));
            rt2.charge(us(101));
        })
        .await;
    });
}

#[test]
fn charge_delays_everything_on_the_engines_core_but_no_device() {
    let sim = Sim::new(SimConfig::seeded(1));
    let rt = sim.rt();
    let disk = SimDisk::new(&sim, 1 << 20, Model::Fixed { latency: us(100), bandwidth: u64::MAX }, 1);
    sim.block_on(async {
        let write = bdev::run(&disk, bdev::Op::Write { offset: 0, bufs: vec![Bytes::zeroed(512)], durable: false });
        let rt2 = rt.clone();
        rt.spawn("engine work", async move {
            rt2.charge(us(150));
        });
        write.await.expect("no faults");
        assert_eq!(rt.now(), us(150), "the completion at 100 us is heard when the core is free");
    });
    assert_eq!(disk.counters().write_time, us(150));
    assert_eq!(sim.engine_busy(), us(150));
}

#[test]
fn a_crash_drops_everything_and_reaches_no_disk() {
    struct Loud(Rc<Cell<u32>>, rt::Rt, SimDisk);
    impl Drop for Loud {
        fn drop(&mut self) {
            self.0.set(self.0.get() + 1);
            // As a careless Drop might do.
            self.1.spawn("ghost", async {});
            bdev::BlockDev::submit(
                &self.2,
                bdev::Op::Write { offset: 0, bufs: vec![Bytes::copy_from(&[1; 512])], durable: false },
                Box::new(|_| panic!("a dead world completes nothing")),
            );
        }
    }
    let dropped = Rc::new(Cell::new(0));
    let sim = Sim::new(SimConfig::seeded(1));
    let rt = sim.rt();
    let disk = SimDisk::new(&sim, 1 << 20, Model::random(), 1);
    for _ in 0..5 {
        let loud = Loud(dropped.clone(), rt.clone(), disk.clone());
        let rt2 = rt.clone();
        rt.spawn("loud", async move {
            rt2.sleep(us(9)).await;
            drop(loud);
        });
    }
    sim.run_for(us(1));
    let images = sim.power_cut(std::slice::from_ref(&disk), 4);
    assert_eq!(dropped.get(), 5);
    assert_eq!(images[0].read_vec(0, 512), vec![0; 512]);
    assert!(disk.is_dead());
    assert_eq!(Rc::strong_count(&dropped), 1);
}

#[test]
fn a_world_is_freed_with_its_tasks() {
    let token = Rc::new(());
    let sim = Sim::new(SimConfig::seeded(1));
    let disk = SimDisk::new(&sim, 1 << 20, Model::nvme(), 1);
    let (token2, rt, disk2) = (token.clone(), sim.rt(), disk.clone());
    sim.rt().spawn("owner", async move {
        let dev = disk2.dev();
        let inner = bdev::run(&*dev, bdev::Op::Flush);
        rt.sleep(Nanos::from_secs(1)).await;
        inner.await.expect("no faults");
        drop((token2, disk2));
    });
    sim.run_for(us(1));
    drop(sim);
    assert_eq!(Rc::strong_count(&token), 1);
}

#[test]
fn devices_conform_to_their_contract() {
    for (seed, model) in [
        Model::random(),
        Model::nvme(),
        Model::sata_ssd(),
        Model::hdd(),
        Model::Hdd(sim::HddModel::nearline_7200().without_write_cache()),
        Model::Fixed { latency: us(10), bandwidth: 1_000_000_000 },
    ]
    .into_iter()
    .enumerate()
    {
        let sim = Sim::new(SimConfig::seeded(seed as u64));
        let disk = SimDisk::new(&sim, 16 << 20, model, seed as u64);
        sim.block_on(bdev::conformance::run(&sim.rt(), disk.dev(), bdev::conformance::Opts::default()));
        assert_eq!(disk.counters().in_flight, 0);
    }
}

#[test]
fn a_run_ends_in_time_in_a_world_with_more_work_than_time() {
    let sim = Sim::new(SimConfig { poll_charge_max: None, polls_per_instant_max: u64::MAX, ..SimConfig::seeded(7) });
    let rt = sim.rt();
    let turns = Rc::new(Cell::new(0));
    for _ in 0..2 {
        let (rt2, turns) = (rt.clone(), turns.clone());
        drop(rt.spawn("busy", async move {
            loop {
                rt2.charge(us(30));
                turns.set(turns.get() + 1);
                rt2.yield_now().await;
            }
        }));
    }
    sim.run_for(us(100));
    // Work that has begun is not cut short.
    assert_eq!((sim.now(), turns.get()), (us(120), 4));
    sim.run_for(us(60));
    assert_eq!((sim.now(), turns.get()), (us(210), 7));
}
