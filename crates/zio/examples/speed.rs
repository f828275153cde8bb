//! CPU time of block I/O: blocks written to and read from a device that takes no time, on one
//! thread.
//!
//! `cargo run --release -p openweir-zio --example speed`
#![allow(clippy::unwrap_used)]

#[path = "../tests/common/mod.rs"]
mod common;

use std::time::Instant;

use base::Txg;
use codec::Compression;
use common::{Lab, noise, text};
use ondisk::object_type::ObjectType;
use sim::{Pick, SimConfig};
use vdev::Prio;
use zio::WriteReq;

/// A device that forgets writes and completes on the next turn.
mod null {
    use std::cell::RefCell;
    use std::collections::VecDeque;
    use std::rc::Rc;

    use bdev::{BlockDev, Completion, DevInfo, Done, Op};
    use rt::Rt;
    use rt::sync::Notify;

    #[derive(Default)]
    struct Queue {
        ops: RefCell<VecDeque<(Op, Completion)>>,
        more: Notify,
    }

    pub struct NullDev {
        info: DevInfo,
        queue: Rc<Queue>,
    }

    impl NullDev {
        pub fn new(rt: &Rt, size: u64) -> NullDev {
            let queue: Rc<Queue> = Rc::default();
            let q = queue.clone();
            drop(rt.spawn("null device", async move {
                loop {
                    let next = q.ops.borrow_mut().pop_front();
                    match next {
                        Some((Op::Read { bufs, .. }, done)) => done(Ok(Done { bufs })),
                        Some((_, done)) => done(Ok(Done::default())),
                        None => q.more.notified().await,
                    }
                }
            }));
            let info = DevInfo {
                path: "null".into(),
                size_bytes: size,
                logical_sector: 512,
                physical_sector: 4096,
                rotational: false,
                writable: true,
                supports_discard: false,
                writes_durably: true,
            };
            NullDev { info, queue }
        }
    }

    impl BlockDev for NullDev {
        fn info(&self) -> &DevInfo {
            &self.info
        }
        fn submit(&self, op: Op, done: Completion) {
            self.queue.ops.borrow_mut().push_back((op, done));
            self.queue.more.notify_one();
        }
        fn size(&self) -> u64 {
            self.info.size_bytes
        }
        fn refresh_size(&self) -> base::Result<u64> {
            Ok(self.info.size_bytes)
        }
    }
}

fn main() {
    let config = SimConfig { pick: Pick::Fifo, poll_charge_max: None, ..SimConfig::seeded(1) };
    let size = 64u64 << 30;
    let lab = Lab::over(config, 1, size, 12, |sim, bytes| std::rc::Rc::new(null::NullDev::new(&sim.rt(), bytes)));
    let lz4 = Compression::LZ4;
    for (name, len, count, compression, data) in [
        ("128 KiB, no compression", 131_072, 50_000usize, Compression::OFF, noise(1, 131_072)),
        ("8 KiB, no compression", 8192, 400_000, Compression::OFF, noise(1, 8192)),
        ("8 KiB, lz4, does not compress", 8192, 100_000, lz4, noise(1, 8192)),
        ("8 KiB, lz4, to a half", 8192, 100_000, lz4, text(1, 8192)),
        ("128 KiB, lz4, to a third", 131_072, 5_000, lz4, text(1, 131_072)),
    ] {
        lab.sim.block_on(async {
            let mut dones = Vec::with_capacity(count);
            let mut bps = Vec::with_capacity(count);
            let start = Instant::now();
            for _ in 0..count {
                let req = WriteReq { compression, ..WriteReq::new(data.clone(), ObjectType::PLAIN_FILE, 0, Txg(10)) };
                let out = lab.zio.write(req).await.unwrap();
                bps.push(out.bp);
                dones.push(out.done);
                if dones.len() == 64 {
                    for d in dones.drain(..) {
                        d.await.unwrap();
                    }
                }
            }
            for d in dones {
                d.await.unwrap();
            }
            report("write", name, len, count, start);
            let start = Instant::now();
            let mut n = 0;
            for bp in bps.iter().take(count / 4) {
                // The device gives old memory: the checksum is wrong, which costs as much as a
                // right one.
                let _ = std::hint::black_box(lab.zio.read(bp, Prio::SyncRead).await);
                n += 1;
            }
            if compression == Compression::OFF {
                report("read", name, len, n, start);
            }
            for bp in &bps {
                lab.zio.free(bp, Txg(10)).unwrap();
            }
        });
    }
}

fn report(what: &str, name: &str, len: usize, count: usize, start: Instant) {
    let ns = start.elapsed().as_nanos() as f64 / count as f64;
    println!("{what:5} {name:32} {:8.2} us  {:8.0}/s  {:6.2} GB/s", ns / 1e3, 1e9 / ns, len as f64 / ns);
}
