//! Power cuts against a model of the writes that a disk may and may not lose.

use std::cell::RefCell;
use std::rc::Rc;

use base::{ErrorKind, Nanos};
use bdev::{BlockDev, Bytes, Op};
use sim::{CutStyle, DiskConfig, DiskImage, Fault, HddModel, Model, OpKind, Rng, Sim, SimConfig, SimDisk, SsdModel};

const SECTOR: u64 = 512;
const SECTORS: u64 = 256;

/// For each sector, the values that it may have after a cut: the last stable one first, then
/// completed ones in order; and the one in flight.
#[derive(Clone, Default)]
struct Allowed {
    values: Vec<u8>,
    /// Serial numbers of the completions that gave the values.
    serials: Vec<u64>,
    flying: Option<u8>,
}

struct Oracle {
    sectors: Vec<Allowed>,
    completions: u64,
}

impl Oracle {
    fn new() -> Oracle {
        let blank = Allowed { values: vec![0], serials: vec![0], flying: None };
        Oracle { sectors: vec![blank; SECTORS as usize], completions: 1 }
    }
    fn free(&self, start: u64, len: u64) -> bool {
        self.sectors[start as usize..(start + len) as usize].iter().all(|sector| sector.flying.is_none())
    }
    fn submit(&mut self, start: u64, len: u64, value: u8) {
        for sector in &mut self.sectors[start as usize..(start + len) as usize] {
            sector.flying = Some(value);
        }
    }
    fn complete(&mut self, start: u64, len: u64, durable: bool) {
        for sector in &mut self.sectors[start as usize..(start + len) as usize] {
            let value = sector.flying.take().expect("it was submitted");
            if durable {
                sector.values.clear();
                sector.serials.clear();
            }
            sector.values.push(value);
            sector.serials.push(self.completions);
        }
        self.completions += 1;
    }
    /// A flush completed that was submitted when `completions` stood at `mark`.
    fn flushed(&mut self, mark: u64) {
        for sector in &mut self.sectors {
            let settled = sector.serials.partition_point(|serial| *serial < mark);
            sector.values.drain(..settled.saturating_sub(1));
            sector.serials.drain(..settled.saturating_sub(1));
        }
    }
    /// Checks an image; gives how many sectors lost their newest completed value.
    fn check(&self, image: &DiskImage, what: &str) -> u64 {
        let mut lost = 0;
        for (n, sector) in self.sectors.iter().enumerate() {
            let bytes = image.read_vec(n as u64 * SECTOR, SECTOR as usize);
            assert!(bytes.iter().all(|b| *b == bytes[0]), "{what}: sector {n} is torn");
            let fine = sector.values.contains(&bytes[0]) || sector.flying == Some(bytes[0]);
            assert!(fine, "{what}: sector {n} holds {}, allowed is {:?}", bytes[0], sector.values);
            lost += u64::from(Some(&bytes[0]) != sector.values.last());
        }
        lost
    }
}

/// Writes and flushes at random for a while; leaves some in flight.
fn random_life(sim: &Sim, disk: &SimDisk, seed: u64) -> Rc<RefCell<Oracle>> {
    let oracle = Rc::new(RefCell::new(Oracle::new()));
    let rt = sim.rt();
    let mut rng = Rng::new(seed);
    sim.block_on(async {
        for n in 0..120u64 {
            let value = (n + 1) as u8;
            let (start, len) = (rng.below(SECTORS - 16), rng.between(1, 16));
            let keep = oracle.clone();
            if rng.percent(15) {
                let mark = oracle.borrow().completions;
                disk.submit(
                    Op::Flush,
                    Box::new(move |result| {
                        result.expect("no faults");
                        keep.borrow_mut().flushed(mark);
                    }),
                );
            } else if oracle.borrow().free(start, len) {
                oracle.borrow_mut().submit(start, len, value);
                let half = len * SECTOR / 2;
                let data = Bytes::copy_from(&vec![value; (len * SECTOR) as usize]);
                let bufs = vec![data.slice(..half as usize), data.slice(half as usize..)];
                let durable = rng.percent(20);
                disk.submit(
                    Op::Write { offset: start * SECTOR, bufs, durable },
                    Box::new(move |result| {
                        result.expect("no faults");
                        keep.borrow_mut().complete(start, len, durable);
                    }),
                );
            }
            if rng.percent(50) {
                rt.sleep(Nanos(rng.below(400_000))).await;
            }
        }
    });
    oracle
}

fn models() -> [Model; 4] {
    let slow_cache = HddModel { write_cache: 32 << 10, ..HddModel::nearline_7200() };
    [
        Model::random(),
        Model::Ssd(SsdModel::nvme()),
        Model::Hdd(slow_cache),
        Model::Hdd(HddModel::nearline_7200().without_write_cache()),
    ]
}

#[test]
fn a_cut_forgets_only_what_no_flush_covered() {
    let mut lost_any = 0;
    for seed in 0..60u64 {
        let sim = Sim::new(SimConfig::seeded(seed));
        let model = models()[seed as usize % 4].clone();
        let disk = SimDisk::new(&sim, SECTORS * SECTOR, model, seed);
        disk.start_log();
        let oracle = random_life(&sim, &disk, seed ^ 5);
        let oracle = oracle.borrow();
        for cut in 0..20 {
            lost_any += oracle.check(&disk.what_if_cut(CutStyle::Seeded, cut), "seeded");
        }
        assert_eq!(oracle.check(&disk.what_if_cut(CutStyle::KeepCompleted, 0), "all"), 0);
        assert_eq!(disk.what_if_cut(CutStyle::KeepCompleted, 0), disk.image());
        let stable = disk.what_if_cut(CutStyle::KeepStable, 0);
        assert_eq!(stable, disk.stable_image());
        for (n, sector) in oracle.sectors.iter().enumerate() {
            assert_eq!(stable.read_vec(n as u64 * SECTOR, 1)[0], sector.values[0], "sector {n} after a full loss");
        }
        oracle.check(&disk.what_if_cut(CutStyle::Scatter, seed), "scatter");
        oracle.check(&disk.what_if_cut(CutStyle::Prefix, seed), "prefix");
        // The log gives the same disk for the same cut.
        let live = disk.what_if_cut(CutStyle::Seeded, 99);
        let log = disk.take_log().expect("it was started");
        assert_eq!(log.cut_at(sim.io_seq(), 99), live);
        assert_eq!(log.cut_after(log.completed_ops(), 99).size(), live.size());
        drop(oracle);
        assert_eq!(disk.power_cut(99), live);
    }
    assert!(lost_any > 1000, "cuts do lose things: {lost_any}");
}

#[test]
fn a_log_can_be_cut_at_every_moment() {
    let sim = Sim::new(SimConfig::seeded(3));
    let disk = SimDisk::new(&sim, 1 << 20, Model::random(), 3);
    disk.start_log();
    // Each value is written and flushed before the next: a cut shows the last acknowledged one or
    // the next.
    let acked = Rc::new(RefCell::new(vec![(0u64, 0u8)]));
    sim.block_on(async {
        for value in 1..=40u8 {
            bdev::write(&disk, 4096, Bytes::copy_from(&[value; 512])).await.expect("no faults");
            bdev::flush(&disk).await.expect("no faults");
            acked.borrow_mut().push((sim.io_seq(), value));
        }
    });
    let log = disk.take_log().expect("it was started");
    assert_eq!(log.completed_ops(), 80);
    assert_eq!(log.len(), 160);
    assert_eq!(log.seq_range(), Some((1, 160)));
    let mut replay = log.replay();
    let mut seen = 0;
    while let Some(seq) = replay.step() {
        let acked = acked.borrow();
        let last = acked.iter().rev().find(|(at, _)| *at <= seq).expect("nothing is acknowledged at 0").1;
        for seed in 0..6 {
            let got = replay.cut(CutStyle::Seeded, seed).read_vec(4096, 1)[0];
            assert!(got == last || got == last + 1, "{got} after {last} was acknowledged");
            seen |= 1 << (got - last);
        }
    }
    assert_eq!(seen, 3, "both the last and the next value are seen");
}

#[test]
fn a_protected_disk_forgets_no_completed_write() {
    let sim = Sim::new(SimConfig::seeded(4));
    let image = DiskImage::zeroed(SECTORS * SECTOR);
    let disk = SimDisk::with(&sim, DiskConfig { volatile: false, ..DiskConfig::new(image, Model::random(), 4) });
    let oracle = random_life(&sim, &disk, 4);
    let mut oracle = oracle.borrow_mut();
    let all = oracle.completions;
    oracle.flushed(all);
    for seed in 0..30 {
        oracle.check(&disk.what_if_cut(CutStyle::Seeded, seed), "protected");
    }
    assert_eq!(disk.unflushed(), 0);
}

#[test]
fn a_lying_disk_is_found_out() {
    let sim = Sim::new(SimConfig::seeded(5));
    let disk = SimDisk::new(&sim, 1 << 20, Model::random(), 5);
    disk.fault(Fault::LyingFlush);
    sim.block_on(async {
        bdev::write(&disk, 0, Bytes::copy_from(&[9; 512])).await.expect("no faults");
        bdev::flush(&disk).await.expect("it says so");
        let bufs = vec![Bytes::copy_from(&[9; 512])];
        bdev::run(&disk, Op::Write { offset: 512, bufs, durable: true }).await.expect("it says so");
    });
    assert_eq!(disk.unflushed(), 2);
    assert_eq!(disk.power_cut_with(CutStyle::KeepStable, 0), DiskImage::zeroed(1 << 20));
}

#[test]
fn discards_may_be_lost_too() {
    let sim = Sim::new(SimConfig::seeded(6));
    let disk = SimDisk::new(&sim, 1 << 20, Model::random(), 6);
    sim.block_on(async {
        bdev::write(&disk, 0, Bytes::copy_from(&[9; 100 << 10])).await.expect("no faults");
        bdev::flush(&disk).await.expect("no faults");
        bdev::discard(&disk, 512, 90 << 10).await.expect("no faults");
        assert_eq!(disk.peek(0, 1024)[511..513], [9, 0]);
    });
    assert_eq!(disk.what_if_cut(CutStyle::KeepStable, 0).read_vec(1024, 1), [9]);
    assert_eq!(disk.what_if_cut(CutStyle::KeepCompleted, 0).read_vec(1024, 1), [0]);
}

#[test]
fn faults_strike_as_told() {
    let sim = Sim::new(SimConfig::seeded(7));
    let disk = SimDisk::new(&sim, 1 << 20, Model::random(), 7);
    sim.block_on(async {
        let write = |at: u64, value: u8| bdev::write(&disk, at, Bytes::copy_from(&[value; 1024]));
        disk.fail_nth(Some(OpKind::Write), 1);
        write(0, 1).await.expect("the first is fine");
        let error = write(0, 2).await.expect_err("the second fails");
        assert_eq!(error.kind(), ErrorKind::Io);
        assert!(error.to_string().contains("write of 1024 bytes at 0"), "{error}");
        for half in disk.peek(0, 1024).chunks(512) {
            assert!(half.iter().all(|b| *b == half[0]) && (1..=2).contains(&half[0]), "old or new, by sector");
        }
        write(0, 3).await.expect("the third is fine");

        let bad = disk.fault(Fault::FailRange { kind: Some(OpKind::Read), range: 512..1024 });
        assert!(bdev::read(&disk, 0, 512).await.is_ok());
        assert!(bdev::read(&disk, 0, 1024).await.is_err());
        assert!(write(0, 4).await.is_ok());
        disk.unfault(bad);
        assert_eq!(bdev::read(&disk, 0, 1024).await.expect("no faults left")[1023], 4);

        disk.corrupt(100, 3);
        assert_eq!(bdev::read(&disk, 0, 512).await.expect("readable")[99..104], [4, !4, !4, !4, 4]);

        disk.fault(Fault::LoseOne { skip: 0 });
        write(2048, 7).await.expect("it says so");
        assert_eq!(disk.peek(2048, 1), [0]);

        let lost = disk.fault(Fault::LoseSome { per_mille: 1000 });
        write(2048, 7).await.expect("it says so");
        assert_eq!(disk.peek(2048, 1), [0]);
        disk.unfault(lost);

        let old = disk.image();
        let (seen, other) = (Rc::new(RefCell::new(Vec::new())), disk.clone());
        let trigger = seen.clone();
        disk.at_completion(1, move || trigger.borrow_mut().push(other.peek(0, 1)[0]));
        write(0, 8).await.expect("written");
        assert!(seen.borrow().is_empty());
        write(0, 9).await.expect("written");
        write(0, 10).await.expect("written");
        assert_eq!(*seen.borrow(), [9]);
        disk.restore(&old);
        assert_eq!(bdev::read(&disk, 0, 512).await.expect("readable")[0], 4);

        disk.fail_nth(Some(OpKind::Flush), 0);
        let bufs = vec![Bytes::copy_from(&[4; 512])];
        let settled = bdev::run(&disk, Op::Write { offset: 0, bufs, durable: true }).await;
        assert!(settled.is_err(), "a durable write fails where a flush would");

        disk.fault(Fault::FlipOnRead { range: 2050..2051 });
        assert_eq!(bdev::read(&disk, 2048, 512).await.expect("readable")[1..4], [0, 255, 0]);
        disk.fault(Fault::Offline);
        assert!(bdev::flush(&disk).await.is_err());
        disk.clear_faults();
        assert!(bdev::flush(&disk).await.is_ok());
    });
    let counters = disk.counters();
    assert_eq!((counters.errors, counters.in_flight, counters.overlaps), (4, 0, 0));
}

#[test]
fn a_dead_disk_completes_nothing() {
    let sim = Sim::new(SimConfig::seeded(8));
    let disk = SimDisk::new(&sim, 1 << 20, Model::random(), 8);
    let rt = sim.rt();
    sim.block_on(async {
        let before = bdev::run(&disk, Op::Flush);
        disk.dead();
        assert!(rt.timeout(Nanos::from_secs(9), before).await.is_none());
        assert!(rt.timeout(Nanos::from_secs(9), bdev::flush(&disk)).await.is_none());
    });
}

#[test]
#[should_panic(expected = "overlaps a write of")]
fn overlaps_can_panic() {
    let sim = Sim::new(SimConfig::seeded(9));
    let image = DiskImage::zeroed(1 << 20);
    let disk = SimDisk::with(&sim, DiskConfig { panic_on_overlap: true, ..DiskConfig::new(image, Model::random(), 9) });
    let _first = bdev::run(&disk, Op::Write { offset: 0, bufs: vec![Bytes::zeroed(1024)], durable: false });
    let _apart = bdev::run(&disk, Op::Write { offset: 1024, bufs: vec![Bytes::zeroed(1024)], durable: false });
    let _second = bdev::run(&disk, Op::Write { offset: 512, bufs: vec![Bytes::zeroed(1024)], durable: false });
}

#[test]
fn images_share_compare_and_go_to_files() {
    let mut image = DiskImage::zeroed(10 << 20);
    image.write(5_000_000, b"hello");
    let mut other = image.clone();
    assert_eq!(image, other);
    other.write(5_000_001, b"E");
    assert_eq!(image.first_difference(&other), Some(5_000_001));
    assert_eq!(image.read_vec(5_000_000, 5), b"hello");
    assert!(image.same_at(&other, 4_000_000, 1_000_001) && image.same_at(&other, 5_000_002, 1 << 20));
    assert!(!image.same_at(&other, 4_000_000, 1_000_002) && !other.same_at(&image, 5_000_001, 1));
    let empty = DiskImage::zeroed(10 << 20);
    assert!(empty.same_at(&image, 4_999_990, 10) && !empty.same_at(&image, 4_999_990, 11));
    other.zero(16_000, 6_000_000);
    assert_eq!(other, DiskImage::zeroed(10 << 20));
    other.resize(11 << 20);
    assert_eq!(other.read_vec(10 << 20, 1 << 20), vec![0; 1 << 20]);

    let path = std::env::temp_dir().join(format!("weir-sim-image-{}", std::process::id()));
    image.save(&path).expect("the file is written");
    assert_eq!(DiskImage::load(&path).expect("the file is read"), image);
    std::fs::remove_file(&path).expect("the file is there");
}
