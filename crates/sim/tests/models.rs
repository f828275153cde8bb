//! Sanity of the timing models: figures of real disks of the kind, within the accuracy of a model.

use std::cell::Cell;
use std::rc::Rc;

use base::Nanos;
use bdev::{Buf, Bytes, Op};
use rt::Rt;
use sim::{HddModel, Model, Pick, Rng, Sim, SimConfig, SimDisk, SsdModel};

const GIB: u64 = 1 << 30;

/// The workers' load.
#[derive(Clone, Copy)]
struct Work {
    write: bool,
    /// Else at random.
    sequential: bool,
    block: u64,
    depth: u64,
    ops: u64,
    flush: bool,
}

/// Runs the work on a fresh disk: operations a second, and bytes a second.
fn measure(model: Model, size: u64, work: Work) -> (f64, f64) {
    let sim = Sim::new(SimConfig { pick: Pick::Fifo, ..SimConfig::seeded(1) });
    let disk = SimDisk::new(&sim, size, model, 1);
    let rt = sim.rt();
    let next = Rc::new(Cell::new(0u64));
    let took = sim.block_on(async {
        let workers = (0..work.depth).map(|n| worker(rt.clone(), disk.clone(), work, size, next.clone(), Rng::new(n)));
        rt::join::join_all(workers.collect()).await;
        rt.now().as_secs_f64()
    });
    (work.ops as f64 / took, (work.ops * work.block) as f64 / took)
}

async fn worker(_rt: Rt, disk: SimDisk, work: Work, size: u64, next: Rc<Cell<u64>>, mut rng: Rng) {
    loop {
        let n = next.get();
        if n >= work.ops {
            return;
        }
        next.set(n + 1);
        let slot = if work.sequential { n } else { rng.below(size / work.block) };
        let offset = slot * work.block;
        let len = work.block as usize;
        let op = if work.write {
            Op::Write { offset, bufs: vec![Bytes::zeroed(len)], durable: false }
        } else {
            Op::Read { offset, bufs: vec![Buf::zeroed(len)] }
        };
        bdev::run(&disk, op).await.expect("no faults");
        if work.flush {
            bdev::flush(&disk).await.expect("no faults");
        }
    }
}

fn read(sequential: bool, block: u64, depth: u64, ops: u64) -> Work {
    Work { write: false, sequential, block, depth, ops, flush: false }
}
fn write(sequential: bool, block: u64, depth: u64, ops: u64) -> Work {
    Work { write: true, sequential, block, depth, ops, flush: false }
}

#[track_caller]
fn within(got: f64, low: f64, high: f64) {
    assert!((low..=high).contains(&got), "{got} is not within {low}..{high}");
}

#[test]
fn fixed_is_arithmetic() {
    let model = Model::Fixed { latency: Nanos::from_us(100), bandwidth: 100_000_000 };
    // 1 MB at 100 MB/s is 10 ms, and 100 us.
    let (iops, _) = measure(model.clone(), GIB, read(false, 1_000_448, 1, 100));
    within(iops, 98.9, 99.1);
    let (_, bytes) = measure(model, GIB, write(true, 128 << 10, 16, 500));
    within(bytes, 98e6, 100e6);
}

#[test]
fn hdd_random_reads_cost_a_seek_and_half_a_turn() {
    let model = Model::Hdd(HddModel::nearline_7200());
    let size = 1024 * GIB;
    // 8.3 ms seek and 4.2 ms rotation on average: some 80 a second.
    let (one, _) = measure(model.clone(), size, read(false, 4096, 1, 400));
    within(one, 65.0, 95.0);
    // Reordering among 32 gives more than twice that.
    let (deep, _) = measure(model.clone(), size, read(false, 4096, 32, 1000));
    within(deep, 150.0, 320.0);
    // So do more than it can choose from, though most have waited long.
    let (deeper, _) = measure(model.clone(), size, read(false, 4096, 128, 2000));
    within(deeper, 120.0, 320.0);
    // A short stroke is faster.
    let (near, _) = measure(model, 10 * GIB, read(false, 4096, 1, 400));
    within(near, 65.0, 200.0);
}

#[test]
fn hdd_streams_at_the_media_rate() {
    let model = Model::Hdd(HddModel::nearline_7200());
    for depth in [1, 4] {
        let (_, bytes) = measure(model.clone(), 1024 * GIB, read(true, 128 << 10, depth, 4000));
        within(bytes, 190e6, 222e6);
    }
    // Longer than the write cache, so that the cache does not hide the platter.
    let (_, bytes) = measure(model.clone(), 1024 * GIB, write(true, 1 << 20, 4, 1000));
    within(bytes, 190e6, 245e6);
    let uncached = Model::Hdd(HddModel::nearline_7200().without_write_cache());
    let (_, bytes) = measure(uncached.clone(), 1024 * GIB, write(true, 1 << 20, 4, 500));
    within(bytes, 190e6, 222e6);
    // Without queue or cache each write misses the turn.
    let (iops, _) = measure(uncached, 1024 * GIB, write(true, 4096, 1, 200));
    within(iops, 115.0, 121.0);
}

#[test]
fn hdd_flushed_writes_wait_for_the_platter() {
    let model = Model::Hdd(HddModel::nearline_7200());
    let cached = measure(model.clone(), 1024 * GIB, write(false, 4096, 1, 200)).0;
    let flushed = measure(model, 1024 * GIB, Work { flush: true, ..write(false, 4096, 1, 200) }).0;
    assert!(cached > 5_000.0, "{cached}");
    within(flushed, 60.0, 100.0);
}

#[test]
fn nvme_reads() {
    let model = Model::Ssd(SsdModel::nvme());
    // 10 + 1.6 + 62 us, 7.7 us on the channel and 1.3 us on the link.
    let (one, _) = measure(model.clone(), 16 * GIB, read(false, 4096, 1, 1000));
    within(1e6 / one, 82.0, 85.0);
    let (deep, _) = measure(model.clone(), 16 * GIB, read(false, 4096, 64, 20_000));
    within(deep, 300_000.0, 700_000.0);
    let (_, bytes) = measure(model, 16 * GIB, read(true, 128 << 10, 32, 10_000));
    within(bytes, 2.9e9, 3.2e9);
}

#[test]
fn nvme_writes_fill_the_buffer_then_run_at_the_dies_speed() {
    let model = Model::Ssd(SsdModel::nvme());
    let (one, _) = measure(model.clone(), 16 * GIB, write(false, 4096, 1, 1000));
    within(1e6 / one, 12.5, 15.0);
    let (_, bytes) = measure(model.clone(), 16 * GIB, write(true, 128 << 10, 16, 20_000));
    within(bytes, 2.4e9, 2.8e9);
    let flushed = measure(model.clone(), 16 * GIB, Work { flush: true, ..write(false, 4096, 1, 300) }).0;
    // The program of a share of a page, and that of the map's journal.
    within(1e6 / flushed, 500.0, 600.0);
    let protected = Model::Ssd(SsdModel { protected: true, flush: Nanos(0), ..SsdModel::nvme() });
    let (flushed, _) = measure(protected, 16 * GIB, Work { flush: true, ..write(false, 4096, 1, 300) });
    within(1e6 / flushed, 22.0, 28.0);
}

#[test]
fn sas_writes_at_the_controllers_rate_and_worn_at_that_of_garbage_collection() {
    let fresh = SsdModel::enterprise_sas();
    let size = GIB;
    let (_, bytes) = measure(Model::Ssd(fresh.clone()), size, write(true, 128 << 10, 8, 4000));
    within(bytes, 0.90e9, 0.95e9);
    // Small writes are limited by the controller.
    let (iops, _) = measure(Model::Ssd(fresh.clone()), size, write(false, 4096, 32, 100_000));
    within(iops, 190_000.0, 200_000.0);
    // Data sheets say 100,000 and more in the steady state. 37 % of spare flash: 2.3 bytes for one.
    let (iops, _) = measure(Model::Ssd(fresh.clone().worn()), size, write(false, 4096, 32, 100_000));
    within(iops, 100_000.0, 160_000.0);
    // As long as reads have dies to go to, a worn disk reads as a fresh one does.
    let (iops, _) = measure(Model::Ssd(fresh.worn()), size, read(false, 4096, 64, 20_000));
    within(iops, 150_000.0, 200_000.0);
}

#[test]
fn a_read_path_limits_reads_and_nothing_else() {
    let model = SsdModel { read_path: 700_000_000, ..SsdModel::nvme() };
    let (_, bytes) = measure(Model::Ssd(model.clone()), GIB, read(false, 128 << 10, 8, 2000));
    assert!((650e6..=700e6).contains(&bytes), "{bytes}");
    let written = |model| measure(Model::Ssd(model), GIB, write(true, 128 << 10, 8, 2000));
    assert_eq!(written(model), written(SsdModel::nvme()));
}

#[test]
fn tails_are_those_of_data_sheets() {
    // (model, reads, writes): 99.9th percentiles in us at a depth of 1.
    for (model, reads, writes) in [(SsdModel::sata(), 300.0, 800.0), (SsdModel::enterprise_sas(), 500.0, 500.0)] {
        for (is_write, want) in [(false, reads), (true, writes)] {
            let sim = Sim::new(SimConfig { pick: Pick::Fifo, ..SimConfig::seeded(1) });
            let disk = SimDisk::new(&sim, 64 * GIB, Model::Ssd(model.clone()), 1);
            let rt = sim.rt();
            let times = sim.block_on(async {
                let (mut rng, mut times) = (Rng::new(7), Vec::new());
                for _ in 0..40_000 {
                    let (offset, from) = (rng.below(16 << 20) * 4096, rt.now());
                    let op = if is_write {
                        Op::Write { offset, bufs: vec![Bytes::zeroed(4096)], durable: false }
                    } else {
                        Op::Read { offset, bufs: vec![Buf::zeroed(4096)] }
                    };
                    bdev::run(&disk, op).await.expect("no faults");
                    times.push(rt.now().since(from).0);
                }
                times.sort_unstable();
                times
            });
            let tail = times[times.len() * 999 / 1000] as f64 / 1e3;
            within(tail, want * 0.7, want * 1.4);
            assert!(times[times.len() / 2] as f64 / 1e3 < want / 2.0, "the median is far below the tail");
        }
    }
}

#[test]
fn reads_among_writes_are_slower_but_do_not_wait_for_the_buffer() {
    let sim = Sim::new(SimConfig::seeded(2));
    let disk = SimDisk::new(&sim, 4 * GIB, Model::nvme(), 2);
    let rt = sim.rt();
    sim.block_on(async {
        for n in 0..64 {
            drop(bdev::run(&disk, Op::Write { offset: n << 18, bufs: vec![Bytes::zeroed(1 << 18)], durable: false }));
        }
        let before = rt.now();
        bdev::read(&disk, 3 * GIB, 4096).await.expect("no faults");
        within(rt.now().since(before).0 as f64 / 1e3, 100.0, 400.0);
    });
}

#[test]
fn random_completes_in_any_order_within_its_bounds() {
    let sim = Sim::new(SimConfig::seeded(3));
    let disk = SimDisk::new(&sim, GIB, Model::random(), 3);
    let rt = sim.rt();
    sim.block_on(async {
        let order = Rc::new(std::cell::RefCell::new(Vec::new()));
        let reads = (0..100u64).map(|n| {
            let (disk, rt, order) = (disk.clone(), rt.clone(), order.clone());
            async move {
                bdev::read(&disk, n * 4096, 4096).await.expect("no faults");
                within(rt.now().0 as f64, 10e3, 500e3);
                order.borrow_mut().push(n);
            }
        });
        rt::join::join_all(reads.collect()).await;
        let order = order.take();
        let steps_back = order.windows(2).filter(|pair| pair[0] > pair[1]).count();
        assert!(steps_back > 25, "{steps_back}");
    });
    assert_eq!(disk.counters().in_flight_max, 100);
}
