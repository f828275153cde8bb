//! The order of locks is asserted, per task.

use std::rc::Rc;

use base::Nanos;
use rt::join::{join_all, join2};
use rt::sync::{Mutex, RangeLock, Rank, RwLock};
use sim::{Sim, SimConfig};

const LOW: Rank = Rank(1, "low");
const HIGH: Rank = Rank(2, "high");

fn sim() -> Sim {
    Sim::new(SimConfig::seeded(1))
}

#[test]
fn upwards_is_fine() {
    let (low, high) = (Mutex::new(LOW, ()), RwLock::new(HIGH, ()));
    let ranges = RangeLock::new(Rank(3, "ranges"));
    sim().block_on(async {
        for _ in 0..2 {
            let _a = low.lock().await;
            let _b = high.write().await;
            let _c = ranges.write(0, 1).await;
        }
        let b = high.read().await;
        drop(b);
        let _a = low.lock().await;
    });
}

#[test]
#[should_panic(expected = "lock order: low (rank 1) is waited for while high (rank 2) is held")]
fn downwards_panics() {
    let (low, high) = (Mutex::new(LOW, ()), RwLock::new(HIGH, ()));
    sim().block_on(async {
        let _b = high.read().await;
        let _a = low.lock().await;
    });
}

#[test]
#[should_panic(expected = "lock order: high (rank 2) is waited for while high (rank 2) is held")]
fn sideways_panics() {
    let (a, b) = (Mutex::new(HIGH, ()), RangeLock::new(HIGH));
    sim().block_on(async {
        let _a = a.lock().await;
        let _b = b.write(0, 1).await;
    });
}

#[test]
fn sideways_is_fine_if_said_so() {
    let (a, b) = (Mutex::new(HIGH, ()), RwLock::new(HIGH, ()));
    let c = RangeLock::new(HIGH);
    sim().block_on(async {
        let _a = a.lock().await;
        let _b = b.write_same_rank().await;
        let _c = c.write_same_rank(0, 9).await;
        let _d = c.write_same_rank(9, 9).await;
    });
}

#[test]
fn tasks_and_branches_have_their_own_records() {
    let sim = sim();
    let rt = sim.rt();
    let (low, high) = (Rc::new(Mutex::new(LOW, ())), Rc::new(Mutex::new(HIGH, ())));
    sim.block_on(async {
        let guard = high.lock().await;
        let task = {
            let low = low.clone();
            rt.spawn("other", async move {
                let _a = low.lock().await;
            })
        };
        task.await;
        drop(guard);
        // Joined in one task: one branch's locks do not count for the other.
        join2(
            async {
                let _b = high.lock().await;
                rt.sleep(Nanos(10)).await;
            },
            async {
                rt.sleep(Nanos(5)).await;
                let _a = low.lock().await;
            },
        )
        .await;
    });
}

#[test]
#[should_panic(expected = "lock order: low")]
fn a_branch_counts_what_its_parent_holds() {
    let (low, high) = (Mutex::new(LOW, ()), Mutex::new(HIGH, ()));
    sim().block_on(async {
        let _b = high.lock().await;
        join_all(vec![async {
            let _a = low.lock().await;
        }])
        .await;
    });
}

#[test]
fn a_guard_handed_over_no_longer_counts() {
    let (low, high) = (Mutex::new(LOW, ()), Rc::new(Mutex::new(HIGH, ())));
    sim().block_on(async {
        let mut guard = high.lock_owned().await;
        guard.hand_over();
        let _a = low.lock().await;
        drop(guard);
    });
}

#[test]
fn a_guard_may_be_dropped_by_another_task() {
    let sim = sim();
    let rt = sim.rt();
    let (low, high) = (Mutex::new(LOW, ()), Rc::new(Mutex::new(HIGH, ())));
    sim.block_on(async {
        let guard = high.lock_owned().await;
        rt.spawn("dropper", async move { drop(guard) }).await;
        let _a = low.lock().await;
    });
}
