//! The engine's loop, on both drivers: tasks, timers, CPU jobs, calls from other threads,
//! descriptors.

use std::cell::{Cell, RefCell};
use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::rc::Rc;
use std::time::Duration;

use base::{ErrorKind, Nanos};
use bdev::{Buf, Bytes};
use host::{BackendChoice, Engine, EngineConfig, FdIo, Handle};
use rt::Rt;
use rt::join::{Either, join_all, join2, select2};
use rt::sync::oneshot;
use rt::trace::{Event, Groups};

fn on(backend: BackendChoice) -> Engine {
    Engine::new(EngineConfig { backend, cpu_threads: 2, ..EngineConfig::default() }).expect("an engine")
}

/// Runs `f` on an engine of each kind that this machine has.
fn both<Fut: Future<Output = ()>>(f: impl Fn(Rt) -> Fut) {
    for backend in [BackendChoice::Auto, BackendChoice::Threads] {
        let engine = on(backend);
        engine.block_on(f(engine.rt()));
        assert_eq!(engine.stats().in_flight, 0, "{}", engine.backend());
    }
}

/// Two ends of a stream, the first one without blocking.
fn pair() -> (Rc<OwnedFd>, UnixStream) {
    let (a, b) = UnixStream::pair().expect("pair");
    a.set_nonblocking(true).expect("fcntl");
    (Rc::new(OwnedFd::from(a)), b)
}

#[test]
fn io_uring_is_found_where_the_kernel_has_it() {
    match Engine::new(EngineConfig { backend: BackendChoice::Ring, ..EngineConfig::default() }) {
        Ok(engine) => {
            assert_eq!(engine.backend(), "io_uring");
            assert_eq!(on(BackendChoice::Auto).backend(), "io_uring");
        }
        Err(e) => {
            assert_eq!(e.kind(), ErrorKind::Unsupported);
            assert_eq!(on(BackendChoice::Auto).backend(), "threads");
        }
    }
    assert_eq!(on(BackendChoice::Threads).backend(), "threads");
}

#[test]
fn timers_fire_and_never_early() {
    both(|rt| async move {
        let fired = Rc::new(Cell::new(0));
        let tasks = [900u64, 100, 500, 300, 100, 0].map(|us| {
            let (rt, fired) = (rt.clone(), fired.clone());
            async move {
                let at = rt.now() + Nanos::from_us(us);
                rt.sleep_until(at).await;
                assert!(rt.now() >= at, "a timer fired early");
                fired.set(fired.get() + 1);
            }
        });
        join_all(Vec::from(tasks)).await;
        assert_eq!(fired.get(), 6);
        // A timer that is cancelled does not fire, one that is dropped leaves nothing to wait for.
        let won = select2(rt.sleep(Nanos::from_us(200)), rt.sleep(Nanos::from_secs(3600))).await;
        assert_eq!(won, Either::First(()));
    });
}

#[test]
fn tasks_run_wake_and_join() {
    both(|rt| async move {
        let sum = Rc::new(Cell::new(0u64));
        let tasks: Vec<_> = (0..1000u64)
            .map(|i| {
                let (rt2, sum) = (rt.clone(), sum.clone());
                rt.spawn("adder", async move {
                    for _ in 0..i % 7 {
                        rt2.yield_now().await;
                    }
                    assert_ne!(rt2.current_task(), rt::TaskId::NONE);
                    sum.set(sum.get() + i);
                    i
                })
            })
            .collect();
        let got = join_all(tasks).await;
        assert!(got.into_iter().eq(0..1000));
        assert_eq!(sum.get(), 499_500);
        let (tx, rx) = oneshot::oneshot();
        let rt2 = rt.clone();
        drop(rt.spawn("detached", async move {
            rt2.sleep(Nanos::from_us(50)).await;
            tx.send(7).expect("somebody waits");
        }));
        assert_eq!(rx.await.expect("a detached task goes on"), 7);
    });
}

#[test]
fn cpu_jobs_run_elsewhere_and_come_back() {
    both(|rt| async move {
        let here = std::thread::current().id();
        let small = rt.cpu(Nanos(10), || std::thread::current().id()).await;
        assert_eq!(small, here, "little work stays");
        let jobs = (0..200u64).map(|i| {
            let rt = &rt;
            async move {
                let data = Bytes::from(vec![i as u8; 10_000]);
                rt.cpu(Nanos::from_ms(1), move || {
                    let sum: u64 = data.iter().map(|&b| u64::from(b)).sum();
                    (sum, std::thread::current().id())
                })
                .await
            }
        });
        for (i, (sum, id)) in join_all(jobs.collect()).await.into_iter().enumerate() {
            assert_eq!(sum, i as u64 * 10_000);
            assert_ne!(id, here);
        }
    });
}

#[test]
fn slow_polls_are_counted_and_named() {
    both(|rt| async move {
        let handle = Handle::of(&rt).expect("its engine");
        let told = Rc::new(RefCell::new(Vec::new()));
        let theirs = told.clone();
        let listening = rt.tracer().listen(Groups::TURN, move |_, event| {
            if let Event::Turn { task, took, on_cpu, .. } = *event {
                assert!(on_cpu <= took, "{task}: {on_cpu:?} of {took:?}");
                theirs.borrow_mut().push((task, took >= Nanos::from_ms(2), on_cpu >= Nanos::from_ms(2)));
            }
        });
        let slow = rt.spawn("slow", async { std::thread::sleep(Duration::from_millis(2)) });
        rt.spawn("quick", async {}).await;
        rt.spawn("busy", async {
            let begun = host::thread_cpu_time();
            while host::thread_cpu_time().since(begun) < Nanos::from_ms(3) {}
        })
        .await;
        slow.await;
        drop(listening);
        let seen = handle.slow_tasks();
        let of = |name: &str| seen.iter().find(|s| s.task == name);
        assert!(of("slow").is_some_and(|s| s.polls == 1 && s.longest >= Nanos::from_ms(2)), "{seen:?}");
        assert!(handle.stats().slow_polls >= 1);
        let told = told.borrow();
        // One that sleeps keeps the thread, but no processor.
        assert!(told.contains(&("slow", true, false)) && told.contains(&("busy", true, true)), "{told:?}");
        assert!(told.iter().any(|(task, ..)| *task == "quick"), "{told:?}");
    });
}

#[test]
fn an_urgent_cpu_job_passes_all_bulk_ones() {
    both(|rt| async move {
        // Every bulk job waits for a signal that only the urgent job gives: it would never end
        // behind them.
        let (tell, told) = std::sync::mpsc::channel::<()>();
        let told = std::sync::Arc::new(std::sync::Mutex::new(told));
        let bulk: Vec<_> = (0..8)
            .map(|_| {
                let (rt2, told) = (rt.clone(), told.clone());
                rt.spawn("bulk", async move {
                    rt2.cpu(Nanos::from_ms(1), move || told.lock().expect("no panics").recv().expect("told")).await;
                })
            })
            .collect();
        rt.cpu_as(rt::CpuClass::Urgent, Nanos::from_ms(1), move || {
            (0..8).for_each(|_| tell.send(()).expect("somebody listens"));
        })
        .await;
        for job in bulk {
            job.await;
        }
    });
}

#[test]
fn fewer_cpu_threads_do_the_same_work() {
    for backend in [BackendChoice::Auto, BackendChoice::Threads] {
        let engine = on(backend);
        let (rt, handle) = (engine.rt(), engine.handle());
        engine.block_on(async {
            for threads in [1, 3, 0, 2] {
                handle.set_cpu_threads(threads);
                let jobs = (0..40u64).map(|i| rt.cpu(Nanos::from_ms(1), move || i));
                assert_eq!(join_all(jobs.collect()).await, (0..40).collect::<Vec<u64>>());
            }
        });
    }
}

#[test]
fn a_panic_in_a_cpu_job_reaches_the_engine() {
    let engine = on(BackendChoice::Auto);
    let rt = engine.rt();
    let r = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        engine.block_on(rt.cpu(Nanos::from_ms(1), || {
            std::panic::resume_unwind(Box::new("of the job"));
        }))
    }));
    assert_eq!(*r.expect_err("a panic").downcast::<&str>().expect("the same"), "of the job");
}

#[test]
fn calls_from_other_threads() {
    for backend in [BackendChoice::Auto, BackendChoice::Threads] {
        let engine = on(backend);
        let remote = engine.remote();
        let (tx, done) = oneshot::oneshot();
        let tx = Rc::new(Cell::new(Some(tx)));
        // Things that only the engine's thread may touch, reached through a thread-local of the
        // test.
        thread_local!(static STOP: RefCell<Option<oneshot::Sender<()>>> = const { RefCell::new(None) });
        STOP.set(tx.take());
        let thread = std::thread::spawn(move || {
            let mut calls = Vec::new();
            for i in 0..500u64 {
                calls.push(remote.call(move |rt| {
                    let rt = rt.clone();
                    async move {
                        rt.sleep(Nanos::from_us(i % 50)).await;
                        i * 2
                    }
                }));
            }
            for (i, c) in calls.into_iter().enumerate() {
                assert_eq!(c.wait().expect("an answer"), i as u64 * 2);
            }
            let never = remote.call(|_| std::future::pending::<()>());
            let never = never.wait_for(Duration::from_millis(1)).expect_err("not over");
            remote
                .call(|_| async {
                    STOP.take().expect("still there").send(()).expect("the engine waits");
                })
                .wait()
                .expect("an answer");
            (remote, never)
        });
        engine.block_on(done).expect("told to stop");
        let (remote, never) = thread.join().expect("the thread does not panic");
        drop(engine);
        assert_eq!(never.wait().expect_err("the engine is gone").kind(), ErrorKind::Interrupted);
        let late = remote.call(|_| async {}).wait();
        assert_eq!(late.expect_err("the engine is gone").kind(), ErrorKind::Interrupted);
    }
}

#[test]
fn an_engine_that_ends_drops_its_tasks() {
    for backend in [BackendChoice::Auto, BackendChoice::Threads] {
        let engine = on(backend);
        let token = Rc::new(());
        let (io, (a, b)) =
            (FdIo::new(&engine.rt()).expect("io"), std::os::unix::net::UnixStream::pair().expect("pair"));
        let a = Rc::new(OwnedFd::from(a));
        for _ in 0..10 {
            let (theirs, rt, io, a) = (token.clone(), engine.rt(), io.clone(), a.clone());
            drop(engine.rt().spawn("waits for ever", async move {
                let _token = theirs;
                let read = io.readv_fd(&a, Buf::zeroed(10), vec![]);
                select2(read, rt.sleep(Nanos::from_secs(3600))).await;
            }));
        }
        engine.block_on(engine.rt().sleep(Nanos::from_us(100)));
        assert_eq!(engine.stats().in_flight, 10, "the reads wait");
        let rt = engine.rt();
        assert!(Handle::of(&rt).is_some());
        drop(engine);
        assert!(Handle::of(&rt).is_none());
        assert_eq!(Rc::strong_count(&token), 1);
        assert_eq!(Rc::strong_count(&a), 1, "no operation holds the descriptor");
        drop(b);
    }
}

#[test]
fn descriptors_with_owned_buffers() {
    both(|rt| async move {
        let io = FdIo::new(&rt).expect("io");
        let (a, mut b) = pair();
        // A read that waits, woken by a write; header and payload are filled in order.
        let read = async {
            let d = io.readv_fd(&a, Buf::zeroed(4), vec![Buf::zeroed(3), Buf::zeroed(100)]).await;
            assert_eq!(d.result.expect("read"), 10);
            assert_eq!(
                (&d.header[..], &d.payload[0][..], &d.payload[1][..3]),
                (&b"head"[..], &b"pay"[..], &b"loa"[..])
            );
        };
        let write = async {
            rt.sleep(Nanos::from_us(300)).await;
            (&b).write_all(b"headpayloa").expect("write");
        };
        join2(read, write).await;
        // An abandoned read takes nothing that comes later.
        {
            let read = io.readv_fd(&a, Buf::zeroed(10), vec![]);
            let gave_up = select2(read, rt.sleep(Nanos::from_us(200))).await;
            assert!(matches!(gave_up, Either::Second(())));
        }
        for _ in 0..20 {
            rt.yield_now().await;
        }
        b.write_all(b"later").expect("write");
        let d = io.readv_fd(&a, Buf::zeroed(10), vec![]).await;
        assert_eq!((d.result.expect("read"), &d.header[..5]), (5, &b"later"[..]));
        let mut small = [0u8; 1];
        let e = host::read_now(a.as_fd(), &mut [std::io::IoSliceMut::new(&mut small)]).expect_err("nothing there");
        assert_eq!(e.kind(), std::io::ErrorKind::WouldBlock);
        // A write, gathered.
        let parts = [std::io::IoSlice::new(b"one"), std::io::IoSlice::new(b"two")];
        assert_eq!(host::write_now(a.as_fd(), &parts).expect("write"), 6);
        let mut got = [0; 6];
        b.read_exact(&mut got).expect("read");
        assert_eq!(&got, b"onetwo");
        // The end.
        drop(b);
        let d = io.readv_fd(&a, Buf::zeroed(10), vec![]).await;
        assert_eq!(d.result.expect("end of stream"), 0);
        let e = host::write_now(a.as_fd(), &[std::io::IoSlice::new(b"x")]).expect_err("nobody reads");
        assert_eq!(e.kind(), std::io::ErrorKind::BrokenPipe);
    });
}

#[test]
fn reads_that_are_over_at_once_leave_room_for_hot_ones() {
    both(|rt| async move {
        let io = FdIo::new(&rt).expect("io");
        let (a, mut b) = pair();
        let zeros = Rc::new(OwnedFd::from(std::fs::File::open("/dev/zero").expect("zeros")));
        let at_once = async |times: u32| {
            for _ in 0..times {
                assert_eq!(io.readv_fd(&zeros, Buf::zeroed(64), vec![]).await.result.expect("zeros"), 64);
            }
        };
        // Each is found at the first look, so that the engine looks before every wait.
        at_once(200).await;
        let is_over = Cell::new(false);
        let hot = async {
            assert_eq!(io.readv_hot(&a, Buf::zeroed(1), vec![]).await.result.expect("a byte"), 1);
            is_over.set(true);
        };
        let others = async {
            at_once(10).await;
            b.write_all(b"x").expect("write");
            at_once(10).await;
            assert!(is_over.get(), "the byte waits while other reads come and go");
        };
        join2(hot, others).await;
    });
}

#[test]
fn operations_are_started_in_the_midst_of_a_long_round() {
    let Ok(engine) = Engine::new(EngineConfig { backend: BackendChoice::Ring, ..EngineConfig::default() }) else {
        return;
    };
    let rt = engine.rt();
    engine.block_on(async {
        let io = FdIo::new(&rt).expect("io");
        let zeros = Rc::new(OwnedFd::from(std::fs::File::open("/dev/zero").expect("zeros")));
        let handle = Handle::of(&rt).expect("this engine");
        // Three tasks of one round: what the first submits, the second keeps waiting.
        let read = rt.spawn("read", async move { io.readv_fd(&zeros, Buf::zeroed(64), vec![]).await.result });
        let (clock, of) = (rt.clone(), handle.clone());
        let long = rt.spawn("long", async move {
            let begin = clock.now();
            while clock.now().since(begin) < Nanos::from_us(60) {}
            of.stats().enters
        });
        let look = rt.spawn("look", async move { handle.stats().enters });
        let (before, after) = join2(long, look).await;
        assert!(before < after, "the read waits for the end of the round: {before} system calls");
        assert_eq!(read.await.expect("64 bytes"), 64);
    });
}

#[test]
fn sockets_that_are_full_or_have_ended() {
    both(|rt| async move {
        let io = FdIo::new(&rt).expect("io");
        let (a, mut b) = std::os::unix::net::UnixStream::pair().expect("pair");
        let a = Rc::new(OwnedFd::from(a));
        let chunk = vec![7; 64 << 10];
        let mut sent = 0;
        // The descriptor itself would block.
        let e = loop {
            match host::send_now(a.as_fd(), &[std::io::IoSlice::new(&chunk)]) {
                Ok(n) => sent += n,
                Err(e) => break e,
            }
        };
        assert_eq!(e.kind(), std::io::ErrorKind::WouldBlock);
        let room = io.writable(&a);
        let taken = async {
            rt.sleep(Nanos::from_us(300)).await;
            let mut all = vec![0; sent];
            (&b).read_exact(&mut all).expect("all that was sent");
            assert!(all.iter().all(|x| *x == 7));
        };
        join2(room, taken).await.0.expect("room");
        assert_eq!(host::send_now(a.as_fd(), &[std::io::IoSlice::new(b"x")]).expect("sent"), 1);
        // What earlier reads filled stays.
        b.write_all(b"abcdef").expect("write");
        host::set_nonblocking(a.as_fd(), true).expect("fcntl");
        let d = io.read_behind(&a, vec![Buf::copy_from(b"XY.."), Buf::copy_from(b"....")], 2).await;
        assert_eq!((d.result.expect("read"), &d.payload[0][..], &d.payload[1][..]), (6, &b"XYab"[..], &b"cdef"[..]));
        b.write_all(b"gh").expect("write");
        let d = io.read_behind(&a, vec![Buf::copy_from(b"...."), Buf::copy_from(b"....")], 5).await;
        assert_eq!((d.result.expect("read"), &d.payload[0][..], &d.payload[1][..]), (2, &b"...."[..], &b".gh."[..]));
        // The end, by ourselves while a read waits.
        let read = io.read_behind(&a, vec![Buf::zeroed(4)], 0);
        let end = async {
            rt.sleep(Nanos::from_us(300)).await;
            host::end_connection(&a);
        };
        assert_eq!(join2(read, end).await.0.result.expect("the end"), 0);
        io.writable(&a).await.expect("it would fail at once");
        let e = host::send_now(a.as_fd(), &[std::io::IoSlice::new(b"x")]).expect_err("ended");
        assert_eq!(e.kind(), std::io::ErrorKind::BrokenPipe);
    });
}

#[test]
fn a_socket_knows_its_other_end() {
    let (a, _b) = std::os::unix::net::UnixStream::pair().expect("pair");
    let peer = host::peer_cred(&a).expect("credentials");
    assert_eq!(peer.pid as u32, std::process::id());
    assert!(peer.is_owner());
}

#[test]
fn the_machine_is_known() {
    let engine = on(BackendChoice::Auto);
    let rt = engine.rt();
    assert!(rt.physmem_bytes() > 64 << 20);
    assert!(rt.wall_clock().secs > 1_700_000_000);
    let id = rt.host_identity();
    assert!(!id.hostname.is_empty() && id.hostid <= u64::from(u32::MAX));
    assert_ne!(rt.new_guid(), rt.new_guid());
    assert_ne!(rt.rng_u64(), rt.rng_u64());
    let seeded = |seed| {
        let e = Engine::new(EngineConfig { seed: Some(seed), ..EngineConfig::default() }).expect("an engine");
        e.rt().rng_u64()
    };
    assert_eq!(seeded(5), seeded(5));
}
