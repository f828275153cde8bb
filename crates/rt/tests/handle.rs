//! The handle on the world: clock, tasks, timers, CPU jobs.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use base::{Nanos, WallTime};
use rt::join::{Pipeline, join_all};
use rt::turn::{BOUND, BUDGET, POOL_MIN};
use rt::{CpuClass, TaskId};
use sim::{Sim, SimConfig};

fn us(n: u64) -> Nanos {
    Nanos::from_us(n)
}

#[test]
fn sleeps_are_exact() {
    let sim = Sim::new(SimConfig::seeded(1));
    let rt = sim.rt();
    sim.block_on(async {
        for span in [1u64, 999, 500_000, 1_000_000_007] {
            let before = rt.now();
            rt.sleep(Nanos(span)).await;
            assert_eq!(rt.now().since(before), Nanos(span));
        }
        let at = rt.now();
        rt.sleep_until(Nanos(5)).await;
        assert_eq!(rt.now(), at, "a moment that has passed is not waited for");
    });
    assert_eq!(sim.armed_events(), 0);
}

#[test]
fn sleepers_wake_in_the_order_of_their_deadlines() {
    let sim = Sim::new(SimConfig::seeded(2));
    let rt = sim.rt();
    let woken = Rc::new(RefCell::new(Vec::new()));
    for n in [700u64, 300, 900, 100, 500] {
        let (rt2, woken) = (rt.clone(), woken.clone());
        rt.spawn("sleeper", async move {
            rt2.sleep(Nanos(n)).await;
            woken.borrow_mut().push((rt2.now().0, n));
        });
    }
    sim.run_until_idle();
    assert_eq!(*woken.borrow(), [100u64, 300, 500, 700, 900].map(|n| (n, n)));
}

#[test]
fn timeout_gives_the_value_or_none_and_leaves_no_timer() {
    let sim = Sim::new(SimConfig::seeded(3));
    let rt = sim.rt();
    sim.block_on(async {
        assert_eq!(rt.timeout(us(10), async { 7 }).await, Some(7));
        assert_eq!(rt.timeout(us(10), rt.sleep(us(11))).await, None);
        assert_eq!(rt.timeout(us(10), rt.sleep(us(10))).await, Some(()), "ready at the deadline wins");
        assert_eq!(rt.timeout(us(10), rt.sleep(us(9))).await, Some(()));
    });
    assert_eq!(sim.armed_events(), 0, "dropped sleeps are disarmed");
}

#[test]
fn join_handles_give_values_and_may_be_dropped() {
    let sim = Sim::new(SimConfig::seeded(4));
    let rt = sim.rt();
    let ran = Rc::new(Cell::new(false));
    sim.block_on(async {
        let value = rt.spawn("value", async { String::from("done") });
        assert!(!value.is_finished());
        assert_ne!(value.id(), TaskId::NONE);
        assert_eq!(value.await, "done");
        let (rt2, ran2) = (rt.clone(), ran.clone());
        drop(rt.spawn("detached", async move {
            rt2.sleep(us(5)).await;
            ran2.set(true);
        }));
        rt.sleep(us(6)).await;
    });
    assert!(ran.get());
    assert_eq!(sim.live_tasks(), 0);
}

#[test]
fn cheap_cpu_work_runs_inline_and_is_charged() {
    let sim = Sim::new(SimConfig::seeded(5));
    let rt = sim.rt();
    sim.block_on(async {
        let before = rt.now();
        assert_eq!(rt.cpu(POOL_MIN - Nanos(1), || 3).await, 3);
        assert_eq!(rt.now().since(before), Nanos(49_999));
        rt.yield_now().await;
        let before = rt.now();
        assert_eq!(rt.cpu(us(700), || 4).await, 4);
        assert_eq!(rt.now().since(before), us(700));
    });
    assert_eq!(sim.cpu_busy(), us(700));
    assert_eq!(sim.engine_busy(), Nanos(49_999));
}

#[test]
fn cpu_jobs_share_the_cores() {
    let sim = Sim::new(SimConfig { cores: 2, ..SimConfig::seeded(6) });
    let rt = sim.rt();
    sim.block_on(async {
        let jobs = (0..4u64).map(|n| {
            let rt2 = rt.clone();
            async move { rt2.cpu(us(100), move || n).await }
        });
        assert_eq!(join_all(jobs.collect()).await, [0, 1, 2, 3]);
        assert_eq!(rt.now(), us(200), "four jobs of 100 us on two cores");
    });
}

#[test]
fn urgent_cpu_jobs_do_not_wait_for_bulk_ones() {
    let sim = Sim::new(SimConfig { cores: 1, ..SimConfig::seeded(6) });
    let rt = sim.rt();
    sim.block_on(async {
        for _ in 0..50 {
            let rt2 = rt.clone();
            drop(rt.spawn("bulk", async move { rt2.cpu(us(1000), || ()).await }));
        }
        rt.sleep(us(10)).await;
        rt.cpu_as(CpuClass::Urgent, us(100), || ()).await;
        assert_eq!(rt.now(), us(110));
    });
}

#[test]
fn random_numbers_stay_below_their_bound() {
    let sim = Sim::new(SimConfig::seeded(7));
    let rt = sim.rt();
    let mut seen = [0u32; 6];
    for _ in 0..6000 {
        seen[rt.rng_below(6) as usize] += 1;
    }
    assert!(seen.iter().all(|n| (800..1200).contains(n)), "{seen:?}");
    assert_eq!(rt.rng_below(1), 0);
    rt.rng_below(u64::MAX);
    assert_ne!(rt.new_guid(), rt.new_guid());
}

#[test]
fn the_wall_clock_runs_and_can_be_set() {
    let sim = Sim::new(SimConfig { wall_clock: WallTime { secs: 100, nanos: 999_999_999 }, ..SimConfig::seeded(8) });
    let rt = sim.rt();
    sim.run_for(Nanos(2));
    assert_eq!(rt.wall_clock(), WallTime { secs: 101, nanos: 1 });
    sim.set_wall_clock(WallTime { secs: -5, nanos: 500_000_000 });
    sim.run_for(Nanos::from_ms(250));
    assert_eq!(rt.wall_clock(), WallTime { secs: -5, nanos: 750_000_000 });
}

#[test]
fn a_turn_is_shared_by_all_that_one_task_does() {
    let sim = Sim::new(SimConfig::seeded(9));
    let rt = sim.rt();
    let others = Rc::new(Cell::new(0u64));
    let (rt2, others2) = (rt.clone(), others.clone());
    drop(rt.spawn("other", async move {
        loop {
            others2.set(others2.get() + 1);
            rt2.yield_now().await;
        }
    }));
    // Alone, joined, and in a window that polls its members many times in one poll: never more than
    // the bound, which the world asserts.
    sim.block_on(async {
        for _ in 0..1000 {
            rt.spend(us(7)).await;
        }
        assert_eq!(rt.now(), us(7_000));
        let small: Vec<_> = (0..8).map(|_| rt.spend(us(40))).collect();
        join_all(small).await;
        let many: Vec<_> = (0..100).map(|_| rt.spend(us(40))).collect();
        join_all(many).await;
        let mut window = Pipeline::new(8);
        for _ in 0..100 {
            window.push(rt.spend(us(40))).await;
        }
        while window.next().await.is_some() {}
        assert_eq!(rt.now(), us(7_000 + 208 * 40));
        // Work charged without waiting comes on top, and the next piece waits.
        rt.yield_now().await;
        rt.spend(BUDGET).await;
        rt.charge(us(90));
        rt.spend(Nanos(1)).await;
        assert_eq!(rt.turn().used(), Nanos(1));
    });
    // 14 pieces of 7 us and two of 40 us make a turn.
    assert!(others.get() > 170, "{}", others.get());
    assert!(BUDGET < BOUND);
}

#[test]
fn cores_of_a_machine_share_what_is_charged_and_the_bound_stays() {
    let sim = Sim::new(SimConfig { engine_cores: 4, ..SimConfig::seeded(10) });
    let rt = sim.rt();
    sim.block_on(async {
        rt.charge(us(100));
        sim.stall(us(3));
        rt.charge(us(60));
        assert_eq!(rt.now(), us(43));
    });
    assert_eq!(sim.engine_busy(), us(160));
}
