//! Measures a device through the engine: `dev_speed FILE [MiB]`. Writes all of FILE first if it is
//! short.
//!
//! Prints, for 128 KiB sequential writes 16 deep and 8 KiB random reads and writes 32 deep:
//! throughput, operations per second and CPU time of the process (kernel work on its behalf
//! included) per operation.
#![allow(unsafe_code, missing_docs)]

use std::cell::Cell;
use std::rc::Rc;
use std::time::Instant;

use bdev::{BlockDev, Buf, Bytes, Op};
use host::{BackendChoice, Engine, EngineConfig, HostDev, OpenOpts};
use rt::join::join_all;

/// CPU time of the process so far, in microseconds: its own and the kernel's for it.
fn cpu_us() -> (f64, f64) {
    // SAFETY: rusage is plain data that the kernel fills in.
    let u = unsafe {
        let mut u: libc::rusage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_SELF, &raw mut u);
        u
    };
    let us = |t: libc::timeval| t.tv_sec as f64 * 1e6 + t.tv_usec as f64;
    (us(u.ru_utime), us(u.ru_stime))
}

/// One kind of load.
struct Load {
    name: &'static str,
    depth: usize,
    /// Bytes of an operation.
    len: usize,
    count: u64,
    random: bool,
    write: bool,
}

async fn measure(dev: &Rc<dyn BlockDev>, rt: &rt::Rt, load: Load) {
    let Load { name, depth, len, count, random, write } = load;
    let blocks = dev.size() / len as u64;
    let next = Rc::new(Cell::new(0u64));
    let data = Bytes::copy_from(&(0..len).map(|i| i as u8).collect::<Vec<_>>());
    let (start, cpu) = (Instant::now(), cpu_us());
    let lanes = (0..depth).map(|_| {
        let (next, data) = (next.clone(), data.clone());
        async move {
            let mut buf = Some(Buf::zeroed(len));
            while next.get() < count {
                let n = next.get();
                next.set(n + 1);
                let offset = (if random { rt.rng_below(blocks) } else { n % blocks }) * len as u64;
                if write {
                    bdev::run(&**dev, Op::Write { offset, bufs: vec![data.clone()], durable: false })
                        .await
                        .expect("write");
                } else {
                    let bufs = vec![buf.take().expect("given back")];
                    buf = bdev::readv(&**dev, offset, bufs).await.expect("read").pop();
                }
            }
        }
    });
    join_all(lanes.collect()).await;
    let (secs, now) = (start.elapsed().as_secs_f64(), cpu_us());
    println!(
        "{name:<28} {:>7.2} GB/s {:>9.0} /s   CPU us each: {:>5.2} own + {:>5.2} kernel",
        count as f64 * len as f64 / secs / 1e9,
        count as f64 / secs,
        (now.0 - cpu.0) / count as f64,
        (now.1 - cpu.1) / count as f64,
    );
}

fn main() {
    let mut args = std::env::args().skip(1);
    let path = args.next().expect("usage: dev_speed FILE [MiB]");
    let mib: u64 = args.next().map_or(1024, |s| s.parse().expect("a number of MiB"));
    let _ = host::create_sparse(&path, mib << 20);
    for backend in [BackendChoice::Auto, BackendChoice::Threads] {
        let engine = Engine::new(EngineConfig { backend, ..EngineConfig::default() }).expect("an engine");
        let rt = engine.rt();
        engine.block_on(async {
            let dev = HostDev::open(&rt, &path, OpenOpts { write: true, ..OpenOpts::default() }).expect("open");
            let full = dev.size() / (128 << 10);
            if backend == BackendChoice::Auto {
                measure(
                    &dev,
                    &rt,
                    Load { name: "(first fill)", depth: 16, len: 128 << 10, count: full, random: false, write: true },
                )
                .await;
                bdev::flush(&*dev).await.expect("flush");
            }
            println!("{}:", engine.backend());
            for _ in 0..2 {
                measure(
                    &dev,
                    &rt,
                    Load {
                        name: "128K sequential write qd16",
                        depth: 16,
                        len: 128 << 10,
                        count: full * 2,
                        random: false,
                        write: true,
                    },
                )
                .await;
                measure(
                    &dev,
                    &rt,
                    Load {
                        name: "128K sequential read qd16",
                        depth: 16,
                        len: 128 << 10,
                        count: full,
                        random: false,
                        write: false,
                    },
                )
                .await;
                measure(
                    &dev,
                    &rt,
                    Load {
                        name: "8K random read qd32",
                        depth: 32,
                        len: 8192,
                        count: 200_000,
                        random: true,
                        write: false,
                    },
                )
                .await;
                measure(
                    &dev,
                    &rt,
                    Load {
                        name: "8K random write qd32",
                        depth: 32,
                        len: 8192,
                        count: 100_000,
                        random: true,
                        write: true,
                    },
                )
                .await;
            }
            let (start, n) = (Instant::now(), 300u32);
            for _ in 0..n {
                bdev::write(&*dev, 0, Bytes::zeroed(8192)).await.expect("write");
                bdev::flush(&*dev).await.expect("flush");
            }
            println!(
                "8K write + flush             {:>7.1} us each",
                start.elapsed().as_secs_f64() * 1e6 / f64::from(n)
            );
        });
        let s = engine.stats();
        println!("  {} turns, {} polls, {} completions, {} kernel entries", s.turns, s.polls, s.completions, s.enters);
    }
}
