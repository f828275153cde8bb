//! The leaf queue and labels on modelled disks.

use std::rc::Rc;

use base::{ErrorKind, Guid, Nanos, ObjectId, Result, Txg, VdevId};
use bdev::Bytes;
use ondisk::blkptr::Blkptr;
use ondisk::label::ConfigRegion;
use ondisk::nvlist::NvList;
use ondisk::uberblock::Uberblock;
use ondisk::vdev_config::{VdevConfig, VdevKind as ConfigKind};
use rt::Rt;
use sim::{DiskConfig, DiskImage, Fault, Model, OpKind, Sim, SimConfig, SimDisk};
use vdev::labels::{self, LabelPair};
use vdev::{BlockPlace, DirtyGauge, Leaf, Prio, QueueTunables, Top, TopSpec, VdevKind, VdevTree, WriteAs, WriteDone};

const K: u64 = 1 << 10;
const M: u64 = 1 << 20;

struct Bench {
    rt: Rt,
    disk: SimDisk,
    gauge: DirtyGauge,
    leaf: Rc<Leaf>,
}

fn bench(sim: &Sim, size: u64, model: Model, sector: u32) -> Bench {
    let handle = sim.handle();
    let mut config = DiskConfig::new(DiskImage::zeroed(size), model, 1);
    config.logical_sector = sector;
    config.physical_sector = config.physical_sector.max(sector);
    config.panic_on_overlap = true;
    let (disk, rt, gauge) = (SimDisk::with(&handle, config), handle.rt(), DirtyGauge::default());
    let leaf = Leaf::new(&rt, Guid(7), "/dev/model".into(), disk.dev(), gauge.clone(), QueueTunables::default());
    Bench { rt, disk, gauge, leaf }
}

fn fixed() -> Model {
    Model::Fixed { latency: Nanos::from_ms(1), bandwidth: 1 << 30 }
}

fn top_over(leaf: &Rc<Leaf>, ashift: u8) -> Rc<Top> {
    Top::new(TopSpec {
        id: VdevId(0),
        ashift,
        asize: vdev::leaf_asize(leaf.dev.size()),
        ms_shift: 24,
        ms_array: ObjectId(5),
        is_log: false,
        kind: VdevKind::Leaf(leaf.clone()),
        config: VdevConfig::new(ConfigKind::Disk, 0, Guid(7)),
    })
}

/// Random reads and writes of every size, class and overlap, in flight together: the device never
/// sees overlapping operations, every read returns the data written before it was queued, and the
/// disk holds the last data written.
#[test]
fn gathering_and_overlaps_keep_every_byte() {
    let mut saved = 0;
    for seed in 0..12 {
        let sim = Sim::new(SimConfig::seeded(seed));
        let b = bench(&sim, M, Model::random(), 512);
        saved += sim.block_on(async {
            let mut model = vec![0u8; M as usize];
            let mut writes: Vec<WriteDone> = Vec::new();
            let mut reads = Vec::new();
            for i in 0..600u64 {
                b.gauge.set(b.rt.rng_below(120) as u32);
                let sectors = 1 + b.rt.rng_below(if i % 7 == 0 { 256 } else { 8 });
                // Often right behind the last one, so that operations are aggregated.
                let start = if b.rt.rng_below(3) == 0 { b.rt.rng_below(2048) } else { i * 9 % 2048 };
                let sectors = sectors.min(2048 - start);
                let (offset, len) = (start * 512, sectors * 512);
                let prio = Prio::ALL[b.rt.rng_below(9) as usize];
                if b.rt.rng_below(3) > 0 {
                    let pad = b.rt.rng_below(len + 1);
                    let mut data = vec![(i % 251) as u8 + 1; len as usize];
                    data[(len - pad) as usize..].fill(0);
                    model[offset as usize..][..len as usize].copy_from_slice(&data);
                    let data = Bytes::copy_from(&data[..(len - pad) as usize]);
                    writes.push(b.leaf.write(offset, data, pad as usize, prio));
                } else {
                    let want = len - b.rt.rng_below(512);
                    let expect = model[offset as usize..][..want as usize].to_vec();
                    reads.push((b.leaf.read(offset, want, prio), expect));
                }
                if b.rt.rng_below(40) == 0 {
                    b.rt.sleep(Nanos::from_us(b.rt.rng_below(2000))).await;
                }
            }
            let (asked_writes, asked_reads) = (writes.len() as u64, reads.len() as u64);
            for (read, expect) in reads {
                assert_eq!(&read.await.expect("a sound disk")[..], &expect[..]);
            }
            let all = WriteDone::join(writes.clone());
            for w in writes {
                w.await.expect("a sound disk");
            }
            all.await.expect("all of them");
            assert_eq!(b.disk.peek(0, M as usize), model, "seed {seed}");
            let s = b.leaf.stats();
            assert_eq!((s.write_ops, s.read_ops), (asked_writes, asked_reads));
            assert_eq!(s.errors, Default::default());
            assert_eq!(b.leaf.depth(), Default::default());
            let histogram: u64 = s.latency.iter().map(|h| h.total()).sum();
            assert_eq!(histogram, asked_writes + asked_reads);
            asked_writes + asked_reads - s.device_ops
        });
        assert_eq!(b.disk.counters().overlaps, 0);
    }
    assert!(saved > 300, "{saved} operations gathered away");
}

#[test]
fn sequential_writes_leave_as_large_ones() {
    let sim = Sim::new(SimConfig::seeded(1));
    let b = bench(&sim, 64 * M, fixed(), 4096);
    sim.block_on(async {
        b.gauge.set(100);
        let data = Bytes::zeroed(128 << 10);
        let writes: Vec<_> = (0..256).map(|i| b.leaf.write(i * 128 * K, data.clone(), 0, Prio::AsyncWrite)).collect();
        for w in writes {
            w.await.expect("a sound disk");
        }
        // Ten single ones at first, then a megabyte each.
        assert!(b.disk.counters().writes <= 10 + 246 / 8 + 2, "{:?}", b.disk.counters());
    });
}

/// The depth of async writes follows the share of dirty data: 2 below 30 %, linear, 10 above 60 %.
#[test]
fn the_async_write_ramp() {
    for (percent, want) in [(0, 2), (29, 2), (34, 3), (45, 6), (59, 9), (60, 10), (99, 10)] {
        let sim = Sim::new(SimConfig::seeded(2));
        let b = bench(&sim, 512 * M, fixed(), 512);
        sim.block_on(async {
            b.gauge.set(percent);
            // Two megabytes apart: no aggregation.
            let writes: Vec<_> =
                (0..200).map(|i| b.leaf.write(i * 2 * M, Bytes::zeroed(4096), 0, Prio::AsyncWrite)).collect();
            assert_eq!(b.leaf.depth().active[Prio::AsyncWrite.index()], want);
            assert_eq!(b.leaf.depth().queued[Prio::AsyncWrite.index()], 200 - want);
            for w in writes {
                w.await.expect("a sound disk");
            }
        });
        assert_eq!(b.disk.counters().in_flight_max, u64::from(want), "{percent} %");
        // The latency of the model, with the queue in front of it.
        let rounds = 200u64.div_ceil(u64::from(want));
        let took = sim.handle().now();
        assert!(took >= Nanos::from_ms(rounds) && took <= Nanos::from_ms(rounds + 4), "{percent} %: {took:?}");
    }
}

#[test]
fn the_ramp_follows_the_gauge_while_it_runs_and_readers_pass() {
    let sim = Sim::new(SimConfig::seeded(3));
    let b = bench(&sim, 1024 * M, fixed(), 512);
    sim.block_on(async {
        let writes: Vec<_> =
            (0..400).map(|i| b.leaf.write(i * 2 * M, Bytes::zeroed(4096), 0, Prio::AsyncWrite)).collect();
        let active = || b.leaf.depth().active[Prio::AsyncWrite.index()];
        assert_eq!(active(), 2);
        b.gauge.set(100);
        b.rt.sleep(Nanos::from_ms(3)).await;
        assert_eq!(active(), 10);
        b.gauge.set(10);
        b.rt.sleep(Nanos::from_ms(3)).await;
        assert_eq!(active(), 2);
        // A read is issued at once, ahead of waiting operations.
        let before = b.rt.now();
        b.leaf.read(1001 * M, 4096, Prio::SyncRead).await.expect("a sound disk");
        assert!(b.rt.now().since(before) < Nanos::from_ms(2));
        b.gauge.set(100);
        for w in writes {
            w.await.expect("a sound disk");
        }
    });
}

#[test]
fn a_bad_sector_costs_only_its_own_block() {
    let sim = Sim::new(SimConfig::seeded(4));
    let b = bench(&sim, 64 * M, fixed(), 512);
    sim.block_on(async {
        b.disk.fault(Fault::FailRange { kind: Some(OpKind::Write), range: 5 * 64 * K + 512..5 * 64 * K + 1024 });
        b.gauge.set(0);
        let writes: Vec<_> = (0..10)
            .map(|i| b.leaf.write(i * 64 * K, Bytes::copy_from(&[i as u8 + 1; 65536]), 0, Prio::AsyncWrite))
            .collect();
        for (i, w) in writes.into_iter().enumerate() {
            let r = w.await;
            assert_eq!(r.is_ok(), i != 5);
            if let Err(e) = r {
                assert_eq!(e.kind(), ErrorKind::Io);
                let text = e.to_string();
                assert!(text.contains("/dev/model: write of 65536 bytes at 327680"), "{text}");
            }
        }
        assert_eq!(b.leaf.stats().errors.write, 1);
        b.disk.clear_faults();
        b.disk.fault(Fault::FailRange { kind: Some(OpKind::Read), range: 2 * 64 * K..2 * 64 * K + 1 });
        let reads: Vec<_> = (0..10).map(|i| b.leaf.read(i * 64 * K, 64 * K, Prio::Scrub)).collect();
        for (i, r) in reads.into_iter().enumerate() {
            match r.await {
                Ok(data) => assert!(i != 2 && (i == 5 || data[0] == i as u8 + 1)),
                Err(e) => assert!(i == 2 && e.to_string().contains("read of 65536 bytes at 131072"), "{e}"),
            }
        }
        assert_eq!((b.leaf.stats().errors.read, b.leaf.stats().errors.write), (1, 1));
        assert_eq!(b.leaf.stats().slow_ios, 0, "all took milliseconds");
        let as_before = b.leaf.tunables();
        b.leaf.set_tunables(QueueTunables { slow_io_ms: 0, ..as_before.clone() });
        b.leaf.read(40 * 64 * K, 64 * K, Prio::SyncRead).await.expect("a sound range");
        assert_eq!(b.leaf.stats().slow_ios, 1);
        b.leaf.set_tunables(as_before);
        b.leaf.clear_errors();
        assert_eq!(b.leaf.stats().slow_ios, 0);
        b.leaf.count_checksum_error(0, 512);
        assert_eq!(b.leaf.stats().errors, vdev::IoErrors { read: 0, write: 0, cksum: 1 });
        let e = b.leaf.write(64 * M, Bytes::zeroed(512), 0, Prio::SyncWrite).await.expect_err("beyond the end");
        assert_eq!(e.kind(), ErrorKind::Invalid);
    });
}

#[test]
fn flushes_are_left_out_only_when_they_have_nothing_to_do() {
    let sim = Sim::new(SimConfig::seeded(5));
    let b = bench(&sim, 64 * M, fixed(), 512);
    sim.block_on(async {
        b.leaf.flush().await.expect("a sound disk");
        b.leaf.flush().await.expect("a sound disk");
        assert_eq!(b.disk.counters().flushes, 1, "the first covers what others wrote before us");
        b.leaf.write(0, Bytes::zeroed(512), 0, Prio::SyncWrite).await.expect("a sound disk");
        let two = [b.leaf.flush(), b.leaf.flush()];
        let both: Vec<Result<()>> = rt::join::join_all(two.into_iter().collect()).await;
        assert!(both.iter().all(Result::is_ok));
        let so_far = b.disk.counters().flushes;
        b.leaf.flush().await.expect("a sound disk");
        assert_eq!(b.disk.counters().flushes, so_far);
        assert_eq!(b.disk.unflushed(), 0);
        b.disk.fault(Fault::FailOne { kind: Some(OpKind::Flush), skip: 0 });
        b.leaf.write(0, Bytes::zeroed(512), 0, Prio::SyncWrite).await.expect("a sound disk");
        assert_eq!(b.leaf.flush().await.expect_err("the fault").kind(), ErrorKind::Io);
        b.leaf.flush().await.expect("tried again");
        assert_eq!(b.disk.unflushed(), 0);
        // A durable write needs no flush.
        let so_far = b.disk.counters().flushes;
        let durably = WriteAs { prio: Prio::SyncWrite, durable: true };
        b.leaf.write(0, Bytes::copy_from(&[7; 512]), 0, durably).await.expect("a sound disk");
        b.leaf.flush().await.expect("a sound disk");
        assert_eq!(b.disk.counters().flushes, so_far);
        assert_eq!(b.disk.stable_image().read_vec(0, 1), [7]);
    });
}

/// A program reads from a disk whose flushes hold up everything, beside writes of a txg.
#[test]
fn a_program_waits_for_short_flushes_only() {
    let sim = Sim::new(SimConfig::seeded(7));
    let model = Model::Virtual { latency: Nanos::from_us(200), bandwidth: 1 << 30, flush_bandwidth: 1000 << 20 };
    let b = bench(&sim, 256 * M, model, 512);
    let write_all = async || {
        let write = |n: u64| b.leaf.write(n * 128 * K, Bytes::zeroed(128 << 10), 0, Prio::AsyncWrite);
        for done in (0..512).map(write).collect::<Vec<_>>() {
            done.await.expect("a sound disk");
        }
    };
    // The longest read of those that begin before `end`.
    let read_until = async |end: &dyn Fn() -> bool| {
        let mut longest = Nanos(0);
        while !end() {
            let start = b.rt.now();
            b.leaf.read(200 * M, 4096, Prio::SyncRead).await.expect("a sound disk");
            longest = longest.max(b.rt.now().since(start));
        }
        longest
    };
    let txg = async || {
        let is_over = std::cell::Cell::new(false);
        let writes = async {
            write_all().await;
            let result = b.leaf.flush().await;
            is_over.set(true);
            result
        };
        rt::join::join2(writes, read_until(&|| is_over.get())).await
    };
    sim.block_on(async {
        // The first txg tells what a flush costs, with the flush of its label.
        let (flushed, longest) = txg().await;
        assert_eq!((flushed.is_ok(), longest >= Nanos::from_ms(64)), (true, true), "{longest:?}");
        b.leaf.write(0, Bytes::zeroed(4096), 0, Prio::SyncWrite).await.expect("a sound disk");
        b.leaf.flush().await.expect("a sound disk");
        let (flushed, longest) = txg().await;
        assert!(flushed.is_ok() && longest < Nanos::from_ms(2), "{longest:?}");
        assert_eq!(b.disk.unflushed(), 0);
        // Without a program nothing is flushed early.
        b.rt.sleep(Nanos::from_ms(200)).await;
        let so_far = b.disk.counters().flushes;
        write_all().await;
        assert_eq!(b.disk.counters().flushes, so_far);
        b.leaf.flush().await.expect("a sound disk");
        // An early flush that failed is an error of the flush that a caller waits for.
        b.disk.fault(Fault::FailOne { kind: Some(OpKind::Flush), skip: 3 });
        let (flushed, _) = txg().await;
        assert_eq!(flushed.expect_err("the fault").kind(), ErrorKind::Io);
        b.leaf.flush().await.expect("tried again");
        assert_eq!(b.disk.unflushed(), 0);
    });
}

#[test]
fn gathered_writes_are_durable_if_one_of_them_is_to_be() {
    let sim = Sim::new(SimConfig::seeded(6));
    let b = bench(&sim, 64 * M, fixed(), 512);
    sim.block_on(async {
        let mut t = b.leaf.tunables();
        t.max_active = 1;
        b.leaf.set_tunables(t);
        // The first keeps the device busy while the others queue up.
        let sectors = (0..3u64).map(|n| {
            let durable = n == 2;
            let how = WriteAs { prio: Prio::SyncWrite, durable };
            b.leaf.write(n * 512, Bytes::copy_from(&[1 + n as u8; 512]), 0, how)
        });
        for done in sectors.collect::<Vec<_>>() {
            done.await.expect("a sound disk");
        }
        let stable = b.disk.stable_image();
        assert_eq!([0, 1, 2].map(|n| stable.read_vec(n * 512, 1)[0]), [0, 2, 3]);
        b.leaf.flush().await.expect("a sound disk");
        assert_eq!(b.disk.unflushed(), 0, "the first is still to be flushed");
    });
}

#[test]
fn top_level_vdevs_pad_and_check() {
    let sim = Sim::new(SimConfig::seeded(6));
    let b = bench(&sim, 128 * M, fixed(), 4096);
    sim.block_on(async {
        let top = top_over(&b.leaf, 12);
        assert_eq!(top.asize.get(), 129_499_136);
        assert_eq!(top.ms_count(), 7);
        assert_eq!((top.asize_of(1536, Txg(4)), top.asize_of(4096, Txg(4)), top.deflate_ratio()), (4096, 4096, 512));
        assert_eq!(top.dsize(8192), 8192);
        b.disk.poke(4 * M + 8192, &[9; 8192]);
        top.write(8192, Bytes::copy_from(&[1; 1536]), Txg(4), Prio::AsyncWrite).await.expect("a sound disk");
        let mut want = vec![1u8; 1536];
        want.resize(4096, 0);
        want.extend([9; 4096]);
        assert_eq!(b.disk.peek((4 * M + 8192) as usize as u64, 8192), want);
        let place = |offset, psize| BlockPlace { vdev: VdevId(0), offset, psize, birth: Txg(4), written: Txg(4) };
        let first = top.read_first(place(8192, 1536), Prio::SyncRead).await.expect("a sound disk");
        assert_eq!(first.data[..], [1; 1536]);
        for (offset, psize) in
            [(129_499_136, 512), (129_499_136 - 4096, 4608), (512, 512), (0, 0), (0, 100), (!4095, 8192)]
        {
            let e = top.read_first(place(offset, psize), Prio::SyncRead).await.expect_err("not an address");
            assert_eq!(e.kind(), ErrorKind::Corrupt, "{e}");
        }
        let missing = Top::new(TopSpec {
            id: VdevId(1),
            ashift: 13,
            asize: 64 * M,
            ms_shift: 24,
            ms_array: ObjectId(0),
            is_log: false,
            kind: VdevKind::Missing,
            config: VdevConfig::new(ConfigKind::Missing, 1, Guid(30)),
        });
        let read = missing.read_first(place(0, 512), Prio::SyncRead);
        assert_eq!(read.await.expect_err("missing").kind(), ErrorKind::Io);
        assert_eq!(
            missing.write(0, Bytes::zeroed(512), Txg(4), Prio::SyncRead).await.expect_err("missing").kind(),
            ErrorKind::Io
        );
        let tree = VdevTree::new(Guid(u64::MAX), vec![top, missing]);
        assert_eq!(tree.guid_sum(), 36);
        assert_eq!((tree.min_alloc(), tree.max_ashift()), (4096, 13));
        assert_eq!(tree.top(VdevId(2)).err().map(|e| e.kind()), Some(ErrorKind::Corrupt));
        tree.flush_all().await.expect("a sound disk");
    });
}

fn config(txg: u64) -> NvList {
    let tree = NvList::new()
        .with("type", ondisk::nvlist::NvValue::String("file".into()))
        .with("ashift", ondisk::nvlist::NvValue::Uint64(12));
    NvList::new()
        .with("txg", ondisk::nvlist::NvValue::Uint64(txg))
        .with("guid", ondisk::nvlist::NvValue::Uint64(77))
        .with("vdev_tree", ondisk::nvlist::NvValue::List(tree))
}

fn region(txg: u64) -> ConfigRegion {
    ConfigRegion::new(&config(txg)).expect("a small list")
}

#[test]
fn labels_survive_damage_and_tell_it() {
    let sim = Sim::new(SimConfig::seeded(7));
    let b = bench(&sim, 64 * M + 4096, Model::random(), 512);
    sim.block_on(async {
        let dev = &*b.leaf.dev;
        let blank = labels::read_labels(dev).await.expect("large enough");
        assert_eq!((blank.configs.len(), blank.any(), blank.uberblocks.len()), (4, false, 0));
        b.disk.poke(0, &[0xee; 8192]);
        labels::init_labels(dev, &config(0)).await.expect("a sound disk");
        let fresh = labels::read_labels(dev).await.expect("large enough");
        assert!(fresh.configs.iter().all(|(_, c)| c.as_ref().is_ok_and(|c| *c == config(0))));
        assert_eq!((fresh.guid(), fresh.uberblocks.len(), fresh.damage.len()), (Some(Guid(77)), 0, 0));

        labels::write_config(&b.leaf, LabelPair::First, &mut region(9)).await.expect("a sound disk");
        for txg in 9..12 {
            let ub = Uberblock::new(Txg(txg), 1, 2, Blkptr::hole());
            labels::write_uberblock(&b.leaf, 12, &ub).await.expect("a sound disk");
        }
        let l = labels::read_labels(dev).await.expect("large enough");
        let txgs: Vec<_> = l.configs.iter().map(|(_, c)| c.as_ref().ok().and_then(|c| c.integer("txg"))).collect();
        assert_eq!(txgs, [Some(9), Some(0), Some(9), Some(0)]);
        let found: Vec<_> = l.uberblocks.iter().map(|u| (u.label, u.slot, u.ub.txg.0)).collect();
        let want: Vec<_> = (0..4).flat_map(|i| (9..12).map(move |t| (i, t, t))).collect();
        assert_eq!(found, want);

        // One config torn, one slot torn, one label unreadable.
        b.disk.poke(16 * K + 100, &[1, 2, 3]);
        b.disk.poke(256 * K + 128 * K + 10 * 4096 + 300, &[1, 2, 3]);
        b.disk.fault(Fault::FailRange { kind: Some(OpKind::Read), range: 64 * M - 256 * K..64 * M });
        let l = labels::read_labels(dev).await.expect("large enough");
        let kinds: Vec<_> = l.configs.iter().map(|(_, c)| c.as_ref().err().map(|e| e.kind())).collect();
        assert_eq!(kinds, [Some(ErrorKind::Checksum), None, None, Some(ErrorKind::Io)]);
        assert_eq!(
            l.damage.iter().map(|(i, e)| (*i, e.kind())).collect::<Vec<_>>(),
            [(1, ErrorKind::Checksum), (3, ErrorKind::Io)]
        );
        assert_eq!(l.uberblocks.iter().filter(|u| u.label == 1).map(|u| u.ub.txg.0).collect::<Vec<_>>(), [9, 11]);
        assert_eq!(l.uberblocks.len(), 8);
        b.disk.clear_faults();

        // Without any config the slots are still found.
        for at in [0, 256 * K, 64 * M - 512 * K, 64 * M - 256 * K] {
            b.disk.poke(at + 16 * K, &[0; 64]);
        }
        let l = labels::read_labels(dev).await.expect("large enough");
        assert!(!l.any());
        assert_eq!(l.uberblocks.len(), 11);

        // A pair of writes is good if one of them is.
        b.disk.fault(Fault::FailRange { kind: Some(OpKind::Write), range: 0..256 * K });
        labels::write_config(&b.leaf, LabelPair::First, &mut region(20)).await.expect("L2 is good");
        b.disk.fault(Fault::Offline);
        let e = labels::write_config(&b.leaf, LabelPair::Second, &mut region(20)).await.expect_err("none is good");
        assert_eq!(e.kind(), ErrorKind::Io);
        b.disk.clear_faults();

        labels::zero_ring(dev).await.expect("a sound disk");
        assert_eq!(labels::read_labels(dev).await.expect("large enough").uberblocks.len(), 0);
        labels::clear_labels(dev).await.expect("a sound disk");
        assert!(!labels::read_labels(dev).await.expect("large enough").any());
        assert_eq!(b.disk.peek(0, 8192), [0xee; 8192], "the partition table's place is left alone");
        assert_eq!(b.disk.unflushed(), 0);
    });
    let small = bench(&sim, 512 * K, Model::random(), 512);
    let e = sim.block_on(labels::read_labels(&*small.leaf.dev)).expect_err("too small");
    assert_eq!(e.kind(), ErrorKind::Invalid);
}

/// Trace events, the device's own counts and the leaf's counters agree: under every scheduler, with
/// tunables that change at random while operations are in flight, and every operation completes.
#[test]
fn events_counters_and_device_agree_whatever_is_set() {
    use std::cell::Cell;

    use rt::trace::{Event, Groups};
    use vdev::{CLASSES, ClassLimits, Scheduler};

    for seed in 0..6 {
        let sim = Sim::new(SimConfig::seeded(seed));
        let b = bench(&sim, 8 * M, Model::random(), 512);
        // Queued operations and their bytes, by direction; device operations and their bytes;
        // flushes.
        let heard: Rc<Cell<[u64; 9]>> = Rc::default();
        let h = heard.clone();
        let listening = b.rt.tracer().listen(Groups::ALL, move |_, e| {
            let mut n = h.get();
            match *e {
                Event::Done { write, len, ok, .. } => {
                    assert!(ok);
                    n[usize::from(write)] += 1;
                    n[2 + usize::from(write)] += len;
                }
                Event::Issued { write, len, items, .. } => {
                    n[4 + usize::from(write)] += 1;
                    n[6] += if write { len } else { 0 };
                    n[7] += u64::from(items);
                }
                Event::Flushed { .. } => n[8] += 1,
                _ => {}
            }
            h.set(n);
        });
        sim.block_on(async {
            let (mut reads, mut writes) = (Vec::new(), Vec::new());
            for i in 0..1500u64 {
                if i % 10 == 0 {
                    let mut t = QueueTunables::default();
                    let pick = |of: &[u32]| of[b.rt.rng_below(of.len() as u64) as usize];
                    for class in 0..CLASSES {
                        t.classes[class] = ClassLimits {
                            min_active: pick(&[0, 1, 9, u32::MAX]),
                            max_active: pick(&[0, 1, 3, u32::MAX]),
                        };
                    }
                    t.scheduler = Scheduler::ALL[pick(&[0, 1, 2, 3]) as usize];
                    t.max_active = pick(&[0, 1, 1000]);
                    t.nia_credit = pick(&[0, 5, u32::MAX]);
                    t.nia_delay = pick(&[0, 5, u32::MAX]);
                    (t.async_write_min_dirty_percent, t.async_write_max_dirty_percent) =
                        (pick(&[0, 30, 100]), pick(&[0, 60, 100]));
                    (t.min_pending, t.max_pending, t.ramp_rate) = (pick(&[0, 4]), pick(&[0, 10]), pick(&[0, 2]));
                    t.time_shift = pick(&[0, 6, 29, 63]);
                    t.aggregation_limit_non_rotating = pick(&[0, 4096, 1 << 20]).into();
                    t.aggregation_limit_shared = pick(&[0, 4096, 1 << 18]).into();
                    b.leaf.set_tunables(t);
                }
                b.gauge.set(b.rt.rng_below(120) as u32);
                let offset = b.rt.rng_below(16_000) * 512;
                let len = (1 + b.rt.rng_below(16)) * 512;
                let prio = Prio::ALL[b.rt.rng_below(9) as usize];
                if b.rt.rng_below(2) == 0 {
                    writes.push(b.leaf.write(offset, Bytes::zeroed(len as usize), 0, prio));
                } else {
                    reads.push(b.leaf.read(offset, len, prio));
                }
                b.rt.sleep(Nanos(b.rt.rng_below(60_000))).await;
            }
            for w in writes {
                w.await.expect("written");
            }
            for r in reads {
                r.await.expect("read");
            }
            b.leaf.flush().await.expect("flushed");
        });
        let (n, stats, disk) = (heard.get(), b.leaf.stats(), b.disk.counters());
        assert_eq!(
            [n[0], n[1], n[2], n[3]],
            [stats.read_ops, stats.write_ops, stats.read_bytes, stats.write_bytes],
            "seed {seed}"
        );
        assert_eq!([n[4], n[5], n[6], n[8]], [disk.reads, disk.writes, disk.write_bytes, disk.flushes], "seed {seed}");
        assert_eq!((n[7], n[0] + n[1]), (1500, 1500));
        let class: u64 = stats.class.iter().map(|c| c.ops).sum();
        let sizes: u64 = stats.size_ind.iter().chain(&stats.size_agg).map(|h| h.total()).sum();
        assert_eq!((class, sizes, stats.flush_latency.iter().sum::<u64>()), (1500, disk.reads + disk.writes, 1));
        // Tracing has ended.
        drop(listening);
        assert!(!b.rt.tracer().is_on());
    }
}
