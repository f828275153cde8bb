//! How fast the laboratory is: `cargo bench -p openweir-lab --bench speed`.
//!
//! Operations at modelled devices for each second of a processor: of devices alone, and with the
//! engine above them. The goal is 300,000 (issue 20 of this project). Time is that of this
//! process's processor, so other programs disturb little.
#![allow(missing_docs)]

use std::cell::Cell as Slot;
use std::rc::Rc;

use base::Nanos;
use bdev::{BlockDev, Buf, Bytes, Op};
use lab::zil::{Cell, Medium, Rate};
use sim::{Model, Pick, Rng, Sim, SimConfig, SimDisk};
use zil::CommitPolicy;

/// Seconds of processor time of this process.
fn cpu() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/schedstat").unwrap_or_default();
    stat.split(' ').next().and_then(|ns| ns.parse::<f64>().ok()).unwrap_or(0.0) / 1e9
}

/// Random operations of 4 KiB by `depth` clients, a quarter of them reads.
fn device(model: Model, depth: u64, ops: u64) -> f64 {
    let sim = Sim::new(SimConfig { pick: Pick::Fifo, polls_per_instant_max: u64::MAX, ..SimConfig::seeded(1) });
    let disk = SimDisk::new(&sim, 64 << 30, model, 1);
    let left = Rc::new(Slot::new(ops));
    let data = Bytes::zeroed(4096);
    let from = cpu();
    sim.block_on(async {
        let client = |n| {
            let (disk, left, data) = (disk.clone(), left.clone(), data.clone());
            let mut rng = Rng::new(n);
            async move {
                while left.get() > 0 {
                    left.set(left.get() - 1);
                    let offset = rng.below(16 << 20) * 4096;
                    let op = match rng.below(4) {
                        0 => Op::Read { offset, bufs: vec![Buf::zeroed(4096)] },
                        _ => Op::Write { offset, bufs: vec![data.clone()], durable: false },
                    };
                    bdev::run(&disk as &dyn BlockDev, op).await.expect("no faults");
                }
            }
        };
        rt::join::join_all((0..depth).map(client).collect()).await;
    });
    ops as f64 / (cpu() - from)
}

/// Log blocks, flushes and writes of txgs of synchronous writers.
fn engine(medium: Medium, disks: u32, threads: u32) -> (f64, f64) {
    let cell = Cell {
        medium,
        disks,
        threads,
        policy: CommitPolicy::Batchless2017,
        rate: Rate::Max,
        seconds: 8,
        seed: 0,
        timeout_pct: None,
        log_device: false,
        device: None,
    };
    let from = cpu();
    let seen = cell.run().expect("a cell");
    let took = cpu() - from;
    (seen.device_ops as f64 / took, seen.virtual_seconds / took)
}

fn main() {
    println!("operations a second of a processor");
    for (name, model, depth) in
        [("nvme", Model::nvme(), 32), ("hdd", Model::hdd(), 32), ("fixed", fixed(), 32), ("nvme", Model::nvme(), 1)]
    {
        println!("  {name}, depth {depth}: {:.0}", device(model, depth, 400_000));
    }
    for (medium, disks, threads) in [(Medium::Ssd, 1, 16), (Medium::Ssd, 8, 128), (Medium::Hdd, 8, 64)] {
        let (ops, speed) = engine(medium, disks, threads);
        let name = medium.name();
        println!("  with the engine, {disks} {name}, {threads} synchronous writers: {ops:.0}, {speed:.2} s a second");
    }
}

fn fixed() -> Model {
    Model::Fixed { latency: Nanos::from_us(100), bandwidth: 1 << 30 }
}
