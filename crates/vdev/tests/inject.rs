//! Faults on purpose: what befalls which operations, how often, and until when.

use std::rc::Rc;

use base::{ErrorKind, Guid, Nanos};
use bdev::{Bytes, MemDev};
use ondisk::label::{DATA_START, LABEL_SIZE, RING_OFFSET, label_offsets};
use rt::Rt;
use sim::{Sim, SimConfig};
use vdev::{ALWAYS, DeviceFault, DirtyGauge, FaultyOps, LabelPart, Leaf, Prio, QueueTunables, Trouble};

const SIZE: u64 = 64 << 20;
const BLOCK: u64 = 4096;

struct Bench {
    rt: Rt,
    disk: Rc<MemDev>,
    leaf: Rc<Leaf>,
}

fn bench(sim: &Sim) -> Bench {
    let rt = sim.rt();
    let disk = Rc::new(MemDev::new(&rt, SIZE));
    let (gauge, tunables) = (DirtyGauge::default(), QueueTunables::default());
    let leaf = Leaf::new(&rt, Guid(7), "/dev/model".into(), disk.clone(), gauge, tunables);
    Bench { rt, disk, leaf }
}

impl Bench {
    fn add(&self, trouble: Trouble, ops: FaultyOps, part: Option<LabelPart>, chance: u32) -> Rc<DeviceFault> {
        let fault = DeviceFault::new(trouble, ops, part, chance);
        self.leaf.condition.faults.add(fault.clone());
        fault
    }
    async fn write(&self, offset: u64, byte: u8) -> base::Result<()> {
        self.leaf.write(offset, Bytes::copy_from(&[byte; BLOCK as usize]), 0, Prio::SyncWrite).await
    }
    async fn read(&self, offset: u64) -> base::Result<Bytes> {
        self.leaf.read(offset, BLOCK, Prio::SyncRead).await
    }
    fn on_disk(&self, offset: u64) -> u8 {
        let mut byte = [0];
        self.disk.peek(offset, &mut byte);
        byte[0]
    }
}

#[test]
fn each_trouble_does_what_it_says() {
    let sim = Sim::new(SimConfig::seeded(1));
    let b = bench(&sim);
    let at = DATA_START;
    sim.block_on(async {
        b.write(at, 1).await.expect("sound");
        let remove = |f| b.leaf.condition.faults.remove(&f);

        // Carried out, and failed all the same; counted as an error of the device.
        let fault = b.add(Trouble::Fail, FaultyOps::All, None, ALWAYS);
        assert_eq!(b.read(at).await.expect_err("on purpose").kind(), ErrorKind::Io);
        b.write(at, 2).await.expect_err("on purpose");
        assert_eq!(b.on_disk(at), 2);
        b.leaf.flush().await.expect_err("on purpose");
        assert!(b.leaf.probe().await, "probes are another kind");
        let errors = b.leaf.errors();
        assert_eq!((errors.read, errors.write), (1, 2));
        assert_eq!((fault.odds.matched(), fault.odds.hits()), (3, 3));
        remove(fault);
        b.leaf.flush().await.expect("cancelled");

        let fault = b.add(Trouble::Refuse, FaultyOps::Write, None, ALWAYS);
        b.write(at, 3).await.expect_err("on purpose");
        assert_eq!(b.on_disk(at), 2, "not carried out");
        assert_eq!(b.read(at).await.expect("writes only")[0], 2);
        remove(fault);

        let fault = b.add(Trouble::Skip, FaultyOps::All, None, ALWAYS);
        b.write(at, 4).await.expect("lost without an error");
        assert_eq!(b.on_disk(at), 2);
        assert_eq!(b.read(at).await.expect("without an error")[..], [0; BLOCK as usize]);
        b.leaf.flush().await.expect("without an error");
        remove(fault);

        let fault = b.add(Trouble::FlipBit, FaultyOps::Read, None, ALWAYS);
        let read = b.read(at).await.expect("without an error");
        let flipped: u32 = read.iter().map(|byte| (byte ^ 2).count_ones()).sum();
        assert_eq!(flipped, 1);
        remove(fault);

        assert!(!b.leaf.condition.faults.refuses_open());
        let fault = b.add(Trouble::Gone, FaultyOps::All, None, ALWAYS);
        b.read(at).await.expect_err("on purpose");
        assert!(!b.leaf.probe().await);
        assert!(b.leaf.condition.faults.refuses_open());
        remove(fault);

        let fault = b.add(Trouble::Fail, FaultyOps::Probe, None, ALWAYS);
        assert!(!b.leaf.probe().await);
        assert_eq!(b.read(at).await.expect("probes only")[0], 2);
        remove(fault);
        assert!(b.leaf.probe().await);
        assert_eq!(b.read(at).await.expect("nothing is left")[..], [2; BLOCK as usize]);
    });
}

/// Labels are spared, unless a fault is about a part of them; then everything else is.
#[test]
fn labels_and_data_are_apart() {
    let sim = Sim::new(SimConfig::seeded(1));
    let b = bench(&sim);
    let labels = label_offsets(SIZE);
    sim.block_on(async {
        let fault = b.add(Trouble::Fail, FaultyOps::All, None, ALWAYS);
        for at in labels {
            b.write(at + RING_OFFSET, 1).await.expect("a label");
        }
        b.write(labels[2] - BLOCK, 1).await.expect_err("the last data");
        b.write(DATA_START, 1).await.expect_err("the first data");
        b.leaf.condition.faults.remove(&fault);

        let fault = b.add(Trouble::Fail, FaultyOps::Write, Some(LabelPart::Uberblocks), ALWAYS);
        for at in labels {
            b.write(at + RING_OFFSET, 1).await.expect_err("the first of the ring");
            b.write(at + LABEL_SIZE - BLOCK, 1).await.expect_err("the last");
            b.write(at + RING_OFFSET - BLOCK, 1).await.expect("the configuration");
        }
        b.write(DATA_START, 1).await.expect("data");
        assert_eq!(fault.odds.hits(), 8);
    });
}

/// Every operation has its own chance, and the same seed gives the same ones.
#[test]
fn chance_is_that_of_each_operation() {
    let run = |seed: u64| {
        let sim = Sim::new(SimConfig::seeded(seed));
        let b = bench(&sim);
        sim.block_on(async {
            let fault = b.add(Trouble::Fail, FaultyOps::Read, None, ALWAYS / 4);
            // In flight together and side by side, so that they would be gathered.
            let reads: Vec<_> =
                (0..4000).map(|i| b.leaf.read(DATA_START + i * BLOCK, BLOCK, Prio::AsyncRead)).collect();
            let mut failed = Vec::new();
            for (i, read) in reads.into_iter().enumerate() {
                if read.await.is_err() {
                    failed.push(i);
                }
            }
            assert_eq!((fault.odds.matched(), fault.odds.hits()), (4000, failed.len() as u64));
            failed
        })
    };
    let failed = run(1);
    // Four standard deviations of 4000 draws are 110.
    assert!((890..=1110).contains(&failed.len()), "{} of 4000", failed.len());
    assert_eq!(failed, run(1));
    assert_ne!(failed, run(2));
}

/// The lanes of a delay take one operation at a time; those of several delays add up.
#[test]
fn delays_take_their_time() {
    let took = |delays: &'static [(u64, u32)], ops: FaultyOps, count: u64| {
        let sim = Sim::new(SimConfig::seeded(1));
        let b = bench(&sim);
        sim.block_on(async {
            let t = QueueTunables { max_active: 1000, aggregation_limit_non_rotating: 0, ..QueueTunables::default() };
            b.leaf.set_tunables(t);
            for (ms, lanes) in delays {
                b.add(Trouble::Delay { span: Nanos::from_ms(*ms), lanes: *lanes }, ops, None, ALWAYS);
            }
            let start = b.rt.now();
            let reads: Vec<_> =
                (0..count).map(|i| b.leaf.read(DATA_START + i * 64 * BLOCK, BLOCK, Prio::SyncRead)).collect();
            for read in reads {
                read.await.expect("only late");
            }
            b.rt.now().since(start)
        })
    };
    let ms = Nanos::from_ms;
    assert!(took(&[], FaultyOps::All, 10) < ms(1));
    let close = |took: Nanos, want: u64| {
        assert!(took >= ms(want) && took < ms(want + 1), "{took:?} for {want} ms");
    };
    close(took(&[(10, 1)], FaultyOps::All, 1), 10);
    close(took(&[(10, 1)], FaultyOps::Read, 10), 100);
    close(took(&[(10, 2)], FaultyOps::All, 10), 50);
    close(took(&[(10, 1), (10, 1)], FaultyOps::All, 10), 50);
    // One lane of 10 ms and two of 25 ms carry nine operations in 50 ms.
    close(took(&[(10, 1), (25, 2)], FaultyOps::All, 9), 50);
    assert!(took(&[(10, 1)], FaultyOps::Write, 10) < ms(1), "reads are not delayed");
}

/// A device whose faults are taken away while its operations wait completes them.
#[test]
fn what_is_cancelled_is_over() {
    let sim = Sim::new(SimConfig::seeded(1));
    let b = bench(&sim);
    sim.block_on(async {
        let fault = b.add(Trouble::Delay { span: Nanos::from_ms(50), lanes: 1 }, FaultyOps::All, None, ALWAYS);
        let late = b.leaf.read(DATA_START, BLOCK, Prio::SyncRead);
        b.leaf.condition.faults.remove(&fault);
        let start = b.rt.now();
        b.read(DATA_START + 64 * BLOCK).await.expect("sound");
        assert!(b.rt.now().since(start) < Nanos::from_ms(1));
        late.await.expect("only late");
        assert_eq!(b.rt.now().since(start), Nanos::from_ms(50));
    });
}
