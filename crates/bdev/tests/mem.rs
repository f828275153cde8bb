//! The memory device keeps the contract, in the smallest world that can run it.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use base::{Nanos, WallTime};
use bdev::{BlockDev, Bytes, DevInfo, HeldDev, MemDev, Op, conformance};
use rt::{CpuClass, HostIdentity, Rt, TaskId, TimerId, World};

type Task = Pin<Box<dyn Future<Output = ()>>>;

/// Polls every task in turn, first come first served. No time, no timers.
#[derive(Default)]
struct Mini {
    new: RefCell<VecDeque<Task>>,
    ids: Cell<u64>,
}

struct Flag(AtomicBool);
impl Wake for Flag {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Relaxed);
    }
}

impl World for Mini {
    fn now(&self) -> Nanos {
        Nanos(0)
    }
    fn wall_clock(&self) -> WallTime {
        WallTime::default()
    }
    fn set_timer(&self, _: Nanos, waker: Waker) -> TimerId {
        waker.wake();
        TimerId(0)
    }
    fn cancel_timer(&self, _: TimerId) {}
    fn spawn(&self, _: &'static str, task: Task) -> TaskId {
        self.new.borrow_mut().push_back(task);
        self.ids.set(self.ids.get() + 1);
        TaskId(self.ids.get())
    }
    fn rng_u64(&self) -> u64 {
        4
    }
    fn entropy(&self, out: &mut [u8]) {
        out.fill(4);
    }
    fn cpu(&self, _: Nanos, _: CpuClass, job: Box<dyn FnOnce() + Send>, done: Box<dyn FnOnce()>) {
        job();
        self.spawn("cpu", Box::pin(async move { done() }));
    }
    fn charge(&self, _: Nanos) {}
    fn turn(&self) -> Rc<rt::Turn> {
        Rc::default()
    }
    fn physmem_bytes(&self) -> u64 {
        1 << 30
    }
    fn host_identity(&self) -> HostIdentity {
        HostIdentity::default()
    }
    fn current_task(&self) -> TaskId {
        TaskId::NONE
    }
}

fn block_on<F: Future + 'static>(f: impl FnOnce(Rt) -> F) {
    let world = Rc::new(Mini::default());
    let rt = Rt::new(world.clone());
    let fut = f(rt);
    let over = Rc::new(Cell::new(false));
    let theirs = over.clone();
    world.spawn(
        "main",
        Box::pin(async move {
            fut.await;
            theirs.set(true);
        }),
    );
    let mut tasks: Vec<(Task, Arc<Flag>)> = Vec::new();
    while !over.get() {
        let mut ran = false;
        tasks.extend(world.new.take().into_iter().map(|t| (t, Arc::new(Flag(AtomicBool::new(true))))));
        tasks.retain_mut(|(task, flag)| {
            if !flag.0.swap(false, Ordering::Relaxed) {
                return true;
            }
            ran = true;
            let waker = Waker::from(flag.clone());
            task.as_mut().poll(&mut Context::from_waker(&waker)) == Poll::Pending
        });
        assert!(ran || !world.new.borrow().is_empty(), "every task waits for another");
    }
}

fn info(logical: u32, physical: u32) -> DevInfo {
    DevInfo {
        path: "mem".into(),
        size_bytes: 16 << 20,
        logical_sector: logical,
        physical_sector: physical,
        rotational: false,
        writable: true,
        supports_discard: true,
        writes_durably: true,
    }
}

#[test]
fn keeps_the_contract() {
    block_on(|rt| async move {
        let dev = Rc::new(MemDev::new(&rt, 16 << 20));
        conformance::run(&rt, dev, conformance::Opts::default()).await;
    });
}

#[test]
fn keeps_the_contract_with_large_sectors_and_without_discard() {
    block_on(|rt| async move {
        let dev = Rc::new(MemDev::with_info(&rt, DevInfo { supports_discard: false, ..info(4096, 8192) }));
        conformance::run(&rt, dev, conformance::Opts { seed: 7, ..conformance::Opts::default() }).await;
    });
}

#[test]
fn refuses_writes_when_read_only() {
    block_on(|rt| async move {
        let dev = Rc::new(MemDev::with_info(&rt, DevInfo { writable: false, ..info(512, 512) }));
        conformance::run(&rt, dev, conformance::Opts::default()).await;
    });
}

#[test]
fn holding_keeps_the_contract() {
    block_on(|rt| async move {
        let dev = Rc::new(HeldDev::new(&rt, Rc::new(MemDev::new(&rt, 16 << 20))));
        conformance::run(&rt, dev, conformance::Opts { seed: 11, ..conformance::Opts::default() }).await;
    });
}

#[test]
fn holds_what_is_not_flushed() {
    block_on(|rt| async move {
        let below = Rc::new(MemDev::new(&rt, 1 << 20));
        let dev = HeldDev::new(&rt, below.clone());
        let there = |at: u64| {
            let mut one = [0];
            below.peek(at, &mut one);
            one[0]
        };
        bdev::write(&dev, 512, Bytes::copy_from(&[1; 2048])).await.expect("a write");
        assert_eq!(there(512), 0);
        bdev::flush(&dev).await.expect("a flush");
        assert_eq!((there(512), there(2559)), (1, 1));
        bdev::write(&dev, 1024, Bytes::copy_from(&[2; 512])).await.expect("a write");
        let got = bdev::read(&dev, 0, 4096).await.expect("a read");
        assert_eq!((got[511], got[512], got[1024], got[1536], got[2560]), (0, 1, 2, 1, 0));
        let bufs = vec![Bytes::copy_from(&[3; 512])];
        bdev::run(&dev, Op::Write { offset: 1536, bufs, durable: true }).await.expect("a durable write");
        assert_eq!((there(1024), there(1536)), (1, 3), "it is there, and nothing else");
        drop(dev);
        assert_eq!(there(1024), 1, "what was not flushed is gone");
    });
}

#[test]
fn images_grow_and_discards_free() {
    block_on(|rt| async move {
        let dev = MemDev::from_image(&rt, &[7; 1000]);
        assert_eq!(dev.size(), 1024);
        let got = bdev::read(&dev, 512, 512).await.expect("the second sector");
        assert_eq!((got[487], got[488]), (7, 0));
        dev.grow(1 << 20);
        bdev::write(&dev, (1 << 20) - 512, bdev::Bytes::zeroed(512)).await.expect("the new end");
        assert_eq!(dev.footprint(), 128 << 10);
        bdev::discard(&dev, 0, 1 << 20).await.expect("discard");
        assert_eq!(dev.footprint(), 0);
        assert_eq!(dev.info().size_bytes, 1024, "the description stays as opened");
    });
}
