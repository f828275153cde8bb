//! Every waiting primitive: first come first served, cancel-safe, nothing lost.
//!
//! The storms run many tasks that arrive, wait, cancel and hold for random times.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use base::Nanos;
use rt::sync::{Gate, Mutex, Notify, RangeLock, Rank, RwLock, Semaphore, oneshot};
use sim::{Pick, Rng, Sim, SimConfig};

const RANK: Rank = Rank(10, "test");

fn worlds() -> impl Iterator<Item = (Sim, Rng)> {
    (0..40u64).map(|seed| {
        let pick = if seed.is_multiple_of(2) { Pick::Fifo } else { Pick::Seeded };
        (Sim::new(SimConfig { pick, ..SimConfig::seeded(seed) }), Rng::new(seed ^ 77))
    })
}

fn poll_once<F: Future>(fut: Pin<&mut F>) -> Poll<F::Output> {
    fut.poll(&mut Context::from_waker(Waker::noop()))
}

/// A storm's record of its waiters, in order of arrival.
///
/// Waiters granted in one instant continue in any order. So a waiter that continues while an
/// earlier one still waits notes the time, and the earlier one must continue (or cancel) at that
/// same time.
#[derive(Default)]
struct Waiters {
    next: u64,
    waiting: BTreeMap<u64, Option<Nanos>>,
}

impl Waiters {
    fn arrive(&mut self) -> u64 {
        self.next += 1;
        self.waiting.insert(self.next, None);
        self.next
    }
    fn leave(&mut self, who: u64, now: Nanos) {
        let overtaken = self.waiting.remove(&who).expect("it waited");
        assert!(overtaken.is_none_or(|at| at == now), "somebody was overtaken");
    }
    fn go(&mut self, who: u64, now: Nanos) {
        self.leave(who, now);
        for (_, overtaken) in self.waiting.range_mut(..who) {
            overtaken.get_or_insert(now);
        }
    }
}

#[test]
fn mutex_storm() {
    for (sim, mut rng) in worlds() {
        let rt = sim.rt();
        let mutex = Rc::new(Mutex::new(RANK, 0u64));
        let waiters = Rc::new(RefCell::new(Waiters::default()));
        let inside = Rc::new(Cell::new(0));
        for n in 0..60u64 {
            let (rt2, mutex, waiters, inside) = (rt.clone(), mutex.clone(), waiters.clone(), inside.clone());
            let (start, patience, hold) = (rng.below(100), rng.below(200), rng.below(9));
            rt.spawn("locker", async move {
                rt2.sleep(Nanos(start)).await;
                let who = waiters.borrow_mut().arrive();
                if n % 3 == 0 {
                    let Some(mut guard) = rt2.timeout(Nanos(patience), mutex.lock_owned()).await else {
                        return waiters.borrow_mut().leave(who, rt2.now());
                    };
                    waiters.borrow_mut().go(who, rt2.now());
                    assert_eq!(inside.replace(1), 0);
                    *guard.borrow_mut() += 1;
                    rt2.sleep(Nanos(hold)).await;
                    inside.set(0);
                } else {
                    let Some(mut guard) = rt2.timeout(Nanos(patience), mutex.lock()).await else {
                        return waiters.borrow_mut().leave(who, rt2.now());
                    };
                    waiters.borrow_mut().go(who, rt2.now());
                    assert_eq!(inside.replace(1), 0);
                    *guard += 1;
                    rt2.sleep(Nanos(hold)).await;
                    inside.set(0);
                }
            });
        }
        assert!(sim.run_until_idle().tasks.is_empty());
        assert!(!mutex.is_locked() && mutex.waiters() == 0);
        assert!(*mutex.try_lock().expect("free") > 10);
    }
}

#[test]
fn rwlock_storm() {
    for (sim, mut rng) in worlds() {
        let rt = sim.rt();
        let lock = Rc::new(RwLock::new(RANK, 0u64));
        let waiters = Rc::new(RefCell::new(Waiters::default()));
        let (readers, writers) = (Rc::new(Cell::new(0i64)), Rc::new(Cell::new(0i64)));
        let together = Rc::new(Cell::new(0));
        for _ in 0..60 {
            let (rt2, lock, waiters, together) = (rt.clone(), lock.clone(), waiters.clone(), together.clone());
            let (readers, writers) = (readers.clone(), writers.clone());
            let (start, patience, hold) = (rng.below(100), rng.below(200), rng.below(9));
            let write = rng.percent(40);
            rt.spawn("locker", async move {
                rt2.sleep(Nanos(start)).await;
                let who = waiters.borrow_mut().arrive();
                if write {
                    let Some(mut guard) = rt2.timeout(Nanos(patience), lock.write()).await else {
                        return waiters.borrow_mut().leave(who, rt2.now());
                    };
                    waiters.borrow_mut().go(who, rt2.now());
                    assert_eq!((readers.get(), writers.replace(1)), (0, 0));
                    *guard += 1;
                    rt2.sleep(Nanos(hold)).await;
                    writers.set(0);
                } else {
                    let Some(guard) = rt2.timeout(Nanos(patience), lock.read()).await else {
                        return waiters.borrow_mut().leave(who, rt2.now());
                    };
                    waiters.borrow_mut().go(who, rt2.now());
                    assert_eq!(writers.get(), 0);
                    readers.set(readers.get() + 1);
                    together.set(together.get().max(readers.get()));
                    let before = *guard;
                    rt2.sleep(Nanos(hold)).await;
                    assert_eq!(*guard, before);
                    readers.set(readers.get() - 1);
                }
            });
        }
        assert!(sim.run_until_idle().tasks.is_empty());
        assert!(!lock.is_locked() && lock.waiters() == 0);
        assert!(together.get() > 1, "readers read together");
    }
}

#[test]
fn semaphore_storm() {
    for (sim, mut rng) in worlds() {
        let rt = sim.rt();
        let semaphore = Semaphore::new(10);
        let waiters = Rc::new(RefCell::new(Waiters::default()));
        let used = Rc::new(Cell::new(0u64));
        for _ in 0..60 {
            let (rt2, semaphore, waiters, used) = (rt.clone(), semaphore.clone(), waiters.clone(), used.clone());
            let (start, patience, hold) = (rng.below(100), rng.below(200), rng.below(20));
            let n = rng.between(1, 10);
            rt.spawn("taker", async move {
                rt2.sleep(Nanos(start)).await;
                let who = waiters.borrow_mut().arrive();
                let Some(mut permit) = rt2.timeout(Nanos(patience), semaphore.acquire(n)).await else {
                    return waiters.borrow_mut().leave(who, rt2.now());
                };
                waiters.borrow_mut().go(who, rt2.now());
                used.set(used.get() + n);
                assert!(used.get() <= 10);
                rt2.sleep(Nanos(hold)).await;
                used.set(used.get() - n);
                permit.release(n / 2);
                assert_eq!(permit.units(), n - n / 2);
            });
        }
        assert!(sim.run_until_idle().tasks.is_empty());
        assert_eq!((semaphore.available(), semaphore.waiters()), (10, 0));
    }
}

#[test]
fn range_lock_storm() {
    type Ranges = RefCell<Vec<(u64, u64, u64, bool)>>;
    let conflicts = |a: (u64, u64, bool), b: (u64, u64, bool)| (a.2 || b.2) && a.0 < b.1 && b.0 < a.1;
    for (sim, mut rng) in worlds() {
        let rt = sim.rt();
        let lock = RangeLock::new(RANK);
        // (arrival, start, end, write) of holders, and of waiters
        let (held, waiting): (Rc<Ranges>, Rc<Ranges>) = Default::default();
        let most = Rc::new(Cell::new(0));
        for n in 0..80u64 {
            let (rt2, lock, held, waiting, most) =
                (rt.clone(), lock.clone(), held.clone(), waiting.clone(), most.clone());
            let (start, patience, hold) = (rng.below(100), rng.below(200), rng.below(20));
            let (from, len, write) = (rng.below(100), rng.between(1, 40), rng.percent(60));
            let shrink = rng.percent(30);
            rt.spawn("locker", async move {
                rt2.sleep(Nanos(start)).await;
                let me = (n, from, from + len, write);
                waiting.borrow_mut().push(me);
                let wait = async { if write { lock.write(from, len).await } else { lock.read(from, len).await } };
                let guard = rt2.timeout(Nanos(patience), wait).await;
                let place = waiting.borrow().iter().position(|w| w.0 == n).expect("it waits");
                let mut ahead = waiting.borrow_mut().drain(..=place).collect::<Vec<_>>();
                ahead.pop();
                let Some(mut guard) = guard else {
                    waiting.borrow_mut().splice(0..0, ahead);
                    return;
                };
                assert_eq!(guard.range(), (from, len));
                let mine = (me.1, me.2, write);
                for other in &ahead {
                    let other = (other.1, other.2, other.3);
                    // Conflicting ones ahead may have been granted in the same instant only if they
                    // do not conflict.
                    assert!(!conflicts(mine, other), "a conflicting earlier request was overtaken");
                }
                waiting.borrow_mut().splice(0..0, ahead);
                for other in held.borrow().iter() {
                    assert!(!conflicts(mine, (other.1, other.2, other.3)));
                }
                held.borrow_mut().push(me);
                most.set(most.get().max(held.borrow().len()));
                rt2.sleep(Nanos(hold)).await;
                if shrink {
                    let half = len.div_ceil(2);
                    held.borrow_mut().iter_mut().filter(|h| h.0 == n).for_each(|h| h.2 = from + half);
                    guard.shrink(from, half);
                    rt2.sleep(Nanos(hold)).await;
                }
                held.borrow_mut().retain(|h| h.0 != n);
                drop(guard);
            });
        }
        assert!(sim.run_until_idle().tasks.is_empty());
        assert_eq!(lock.requests(), 0);
        assert!(most.get() > 2, "ranges apart are held together");
    }
}

#[test]
fn range_lock_edges() {
    let lock = RangeLock::new(RANK);
    let all = lock.try_lock(0, u64::MAX, true).expect("free");
    assert!(lock.try_lock(u64::MAX - 1, 10, false).is_none());
    assert!(lock.try_lock(5, 0, true).is_none() || lock.requests() > 1, "an empty range harms nobody");
    drop(all);
    let a = lock.try_lock(0, 10, false).expect("free");
    let b = lock.try_lock(5, 10, false).expect("readers share");
    assert!(lock.try_lock(14, 1, true).is_none());
    assert!(lock.try_lock(15, 1, true).is_some());
    drop((a, b));
}

#[test]
fn oneshot_ends() {
    let sim = Sim::new(SimConfig::seeded(1));
    let rt = sim.rt();
    sim.block_on(async {
        let (tx, rx) = oneshot();
        let sent = rt.clone();
        rt.spawn("sender", async move {
            sent.sleep(Nanos(5)).await;
            tx.send(9).expect("the receiver waits");
        });
        assert_eq!(rx.await, Some(9));
        let (tx, rx) = oneshot::<u8>();
        drop(tx);
        assert_eq!(rx.await, None);
        let (tx, rx) = oneshot();
        drop(rx);
        assert!(tx.is_closed());
        assert_eq!(tx.send(1), Err(1));
    });
}

#[test]
fn notified_is_in_the_queue_from_its_making() {
    let notify = Notify::new();
    let mut early = pin!(notify.notified());
    notify.notify_all();
    assert!(poll_once(early.as_mut()).is_ready(), "a notification between making and awaiting counts");
    let mut late = pin!(notify.notified());
    assert!(poll_once(late.as_mut()).is_pending(), "nothing is kept of notify_all");
    notify.notify_one();
    assert!(poll_once(late.as_mut()).is_ready());
    notify.notify_one();
    notify.notify_one();
    assert!(poll_once(pin!(notify.notified())).is_ready(), "one wake-up is kept");
    assert!(poll_once(pin!(notify.notified())).is_pending(), "and only one");
    assert_eq!(notify.waiters(), 0);
}

#[test]
fn notify_one_passes_on_when_its_waiter_leaves() {
    let notify = Notify::new();
    let mut first = Box::pin(notify.notified());
    let mut second = Box::pin(notify.notified());
    let mut third = Box::pin(notify.notified());
    assert!(poll_once(first.as_mut()).is_pending());
    assert!(poll_once(second.as_mut()).is_pending());
    notify.notify_one();
    drop(first);
    assert!(poll_once(third.as_mut()).is_pending());
    assert!(poll_once(second.as_mut()).is_ready(), "the wake-up of the one that left");
    drop(second);
    assert!(poll_once(third.as_mut()).is_pending(), "a wake-up that was seen does not pass on");
    // Woken by notify_all and dropped: the wake-up does not pass on.
    notify.notify_all();
    drop(third);
    assert!(poll_once(pin!(notify.notified())).is_pending());
    // A kept wake-up taken by a future that is dropped unpolled stays.
    notify.notify_one();
    drop(notify.notified());
    assert!(poll_once(pin!(notify.notified())).is_ready());
}

#[test]
fn a_granted_lock_passes_on_when_its_waiter_leaves() {
    let mutex = Mutex::new(RANK, ());
    let guard = mutex.try_lock().expect("free");
    let mut first = Box::pin(mutex.lock());
    let mut second = Box::pin(mutex.lock());
    assert!(poll_once(first.as_mut()).is_pending());
    assert!(poll_once(second.as_mut()).is_pending());
    drop(guard);
    assert!(poll_once(second.as_mut()).is_pending(), "the first was granted");
    drop(first);
    assert!(poll_once(second.as_mut()).is_ready());
}

#[test]
fn readers_behind_a_writer_that_leaves_go_on() {
    let lock = RwLock::new(RANK, ());
    let reading = lock.try_read().expect("free");
    let mut writer = Box::pin(lock.write());
    let mut reader = Box::pin(lock.read());
    assert!(poll_once(writer.as_mut()).is_pending());
    assert!(poll_once(reader.as_mut()).is_pending(), "a reader does not overtake a waiting writer");
    assert!(lock.try_read().is_none());
    drop(writer);
    assert!(poll_once(reader.as_mut()).is_ready());
    drop(reading);
}

#[test]
fn semaphore_grows_and_shrinks() {
    let semaphore = Semaphore::new(2);
    let permit = semaphore.try_acquire(2).expect("free");
    semaphore.take_away(1);
    drop(permit);
    assert_eq!(semaphore.available(), 1);
    let mut wait = pin!(semaphore.acquire(3));
    assert!(poll_once(wait.as_mut()).is_pending());
    assert!(semaphore.try_acquire(1).is_none(), "nobody overtakes");
    semaphore.add(2);
    let Poll::Ready(permit) = poll_once(wait.as_mut()) else { panic!("three are free") };
    assert_eq!((permit.units(), semaphore.available()), (3, 0));
}

#[test]
fn gate_waits_for_zero() {
    let sim = Sim::new(SimConfig::seeded(3));
    let rt = sim.rt();
    let gate = Gate::new();
    sim.block_on(async {
        gate.wait().await;
        for n in 1..=10u64 {
            let (pass, rt2) = (gate.enter(), rt.clone());
            rt.spawn("inside", async move {
                rt2.sleep(Nanos(n)).await;
                drop(pass);
            });
        }
        gate.up(2);
        gate.down(2);
        assert_eq!(gate.count(), 10);
        gate.wait().await;
        assert_eq!((rt.now(), gate.count()), (Nanos(10), 0));
    });
}
