//! Several futures in one task.

use std::cell::Cell;
use std::rc::Rc;

use base::Nanos;
use rt::join::{Either, Pipeline, join_all, join2, select2};
use sim::{Rng, Sim, SimConfig};

#[test]
fn join_all_keeps_the_order_and_takes_the_longest() {
    for n in [0usize, 1, 3, 8, 9, 300] {
        let sim = Sim::new(SimConfig::seeded(n as u64));
        let rt = sim.rt();
        sim.block_on(async {
            let futs = (0..n as u64).map(|i| {
                let rt = rt.clone();
                async move {
                    rt.sleep(Nanos((i * 7919) % 1000)).await;
                    rt.yield_now().await;
                    i
                }
            });
            let got = join_all(futs.collect()).await;
            assert!(got.into_iter().eq(0..n as u64));
            assert!(rt.now() < Nanos(1000));
        });
    }
}

#[test]
fn a_large_join_polls_only_who_was_woken() {
    let sim = Sim::new(SimConfig::seeded(1));
    let rt = sim.rt();
    let polls = Rc::new(Cell::new(0));
    sim.block_on(async {
        let futs = (0..500u64).map(|i| {
            let (rt, polls) = (rt.clone(), polls.clone());
            async move {
                let mut sleep = std::pin::pin!(rt.sleep(Nanos(i)));
                std::future::poll_fn(|cx| {
                    polls.set(polls.get() + 1);
                    sleep.as_mut().poll(cx)
                })
                .await
            }
        });
        join_all(futs.collect()).await;
    });
    assert!(polls.get() <= 1000, "{} polls for 500 sleeps", polls.get());
}

#[test]
fn select_drops_the_loser() {
    let sim = Sim::new(SimConfig::seeded(1));
    let rt = sim.rt();
    sim.block_on(async {
        assert_eq!(select2(rt.sleep(Nanos(5)), rt.sleep(Nanos(3))).await, Either::Second(()));
        assert_eq!(rt.now(), Nanos(3));
        assert_eq!(select2(async { 1 }, async { 2 }).await, Either::First(1));
        assert_eq!(join2(async { 1 }, async { "two" }).await, (1, "two"));
    });
    assert_eq!(sim.armed_events(), 0);
}

#[test]
fn pipeline_keeps_order_and_window() {
    for seed in 0..20 {
        let sim = Sim::new(SimConfig::seeded(seed));
        let rt = sim.rt();
        let mut rng = Rng::new(seed);
        let (running, most) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(0)));
        sim.block_on(async {
            let mut window = Pipeline::new(4);
            let mut got = Vec::new();
            for i in 0..50u64 {
                let (rt, running, most, span) = (rt.clone(), running.clone(), most.clone(), rng.below(100));
                let fut = async move {
                    running.set(running.get() + 1);
                    most.set(most.get().max(running.get()));
                    rt.sleep(Nanos(span)).await;
                    running.set(running.get() - 1);
                    i
                };
                got.extend(window.push(fut).await);
            }
            assert!(window.is_full());
            while let Some(i) = window.next().await {
                got.push(i);
            }
            assert!(window.is_empty());
            assert!(got.into_iter().eq(0..50));
        });
        assert_eq!((running.get(), most.get()), (0, 4));
    }
}
