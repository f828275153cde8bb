//! Measures the engine's loop: yields, task switches, timers, CPU jobs, calls from another thread,
//! a socket echo.
#![allow(missing_docs)]

use std::rc::Rc;
use std::time::Instant;

use base::Nanos;
use bdev::Buf;
use host::{BackendChoice, Engine, EngineConfig, FdIo, HostDev, OpenOpts};
use rt::join::{join_all, join2};
use rt::sync::oneshot;

fn report(what: &str, n: u32, start: Instant) {
    println!("  {what:<44} {:>8.3} us", start.elapsed().as_secs_f64() * 1e6 / f64::from(n));
}

fn main() {
    for backend in [BackendChoice::Auto, BackendChoice::Threads] {
        let engine = Engine::new(EngineConfig { backend, ..EngineConfig::default() }).expect("an engine");
        println!("{}:", engine.backend());
        let rt = engine.rt();
        engine.block_on(async {
            let (n, start) = (200_000, Instant::now());
            for _ in 0..n {
                rt.yield_now().await;
            }
            report("yield, one task", n, start);
            let start = Instant::now();
            let tasks = (0..100).map(|_| {
                let rt2 = rt.clone();
                rt.spawn("yields", async move {
                    for _ in 0..2000 {
                        rt2.yield_now().await;
                    }
                })
            });
            join_all(tasks.collect()).await;
            report("yield, 100 tasks", 200_000, start);
            let (n, start) = (100_000, Instant::now());
            for _ in 0..n {
                rt.spawn("nothing", async {}).await;
            }
            report("spawn and join", n, start);
            let (n, start) = (2000, Instant::now());
            for _ in 0..n {
                rt.sleep(Nanos::from_us(50)).await;
            }
            report("sleep of 50 us", n, start);
            let (n, start) = (5000, Instant::now());
            for _ in 0..n {
                rt.cpu(Nanos::from_us(60), || std::hint::black_box(1)).await;
            }
            report("empty CPU job, one at a time", n, start);
            let (n, start) = (100, Instant::now());
            for _ in 0..n {
                join_all((0..100).map(|_| rt.cpu(Nanos::from_us(60), || std::hint::black_box(1))).collect()).await;
            }
            report("empty CPU job, 100 at a time", n * 100, start);
            let remote = engine.remote();
            let (tx, rx) = oneshot::oneshot::<()>();
            let keep = std::cell::Cell::new(Some(tx));
            let n = 5000;
            let thread = std::thread::spawn(move || {
                let start = Instant::now();
                for _ in 0..n {
                    remote.call(|_| async {}).wait().expect("an answer");
                }
                start
            });
            while !thread.is_finished() {
                rt.sleep(Nanos::from_ms(1)).await;
            }
            report("call from another thread", n, thread.join().expect("no panic"));
            drop((keep.take(), rx));
            let io = FdIo::new(&rt).expect("io");
            let (a, b) = std::os::unix::net::UnixStream::pair().expect("pair");
            a.set_nonblocking(true).expect("fcntl");
            b.set_nonblocking(true).expect("fcntl");
            let (a, b) = (Rc::new(a.into()), Rc::new(b.into()));
            let (n, start) = (20_000, Instant::now());
            let ping = async {
                let mut buf = Buf::zeroed(64);
                for _ in 0..n {
                    let fd: &std::os::fd::OwnedFd = &a;
                    host::write_now(std::os::fd::AsFd::as_fd(fd), &[std::io::IoSlice::new(&[1; 64])]).expect("write");
                    buf = io.readv_fd(&a, buf, vec![]).await.header;
                }
            };
            let pong = async {
                let mut buf = Buf::zeroed(64);
                for _ in 0..n {
                    buf = io.readv_fd(&b, buf, vec![]).await.header;
                    let fd: &std::os::fd::OwnedFd = &b;
                    host::write_now(std::os::fd::AsFd::as_fd(fd), &[std::io::IoSlice::new(&buf)]).expect("write");
                }
            };
            join2(ping, pong).await;
            report("request read and answered on a socket", n * 2, start);
            let dir = host::TempDir::new("loop").expect("a folder");
            let path = dir.join("f");
            std::fs::write(&path, vec![1; 1 << 20]).expect("a file");
            let dev = HostDev::open(&rt, &path, OpenOpts::default()).expect("open");
            let (n, start) = (2000, Instant::now());
            for _ in 0..n {
                bdev::read(&*dev, 0, 4096).await.expect("read");
            }
            report("4K read, one at a time", n, start);
        });
    }
}
