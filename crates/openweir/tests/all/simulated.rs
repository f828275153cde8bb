//! Pools in a simulation: virtual time, repeatable runs, power cuts.

use std::time::{Duration, Instant};

use openweir::sim::{DiskKind, Loss, Simulator};
use openweir::{Batch, CreateOptions, Device, ErrorKind, ImportOptions, OpenOptions, Pool, ScanPhase, Value, Vdev};

const SIZE: u64 = 128 << 20;

fn begin(seed: u64, kind: DiskKind) -> (Simulator, Device, Pool) {
    let sim = Simulator::new(seed).unwrap();
    let disk = sim.disk(SIZE, kind).wait().unwrap();
    let pool = sim.engine().create_pool("tank", disk.clone(), CreateOptions::default()).wait().unwrap();
    (sim, disk, pool)
}

fn import(sim: &Simulator, disk: &Device) -> Pool {
    sim.engine().import_pool(vec![disk.clone()], ImportOptions::default()).wait().unwrap()
}

#[test]
fn time_is_virtual_and_runs_repeat() {
    let run = |seed| {
        let (sim, _, pool) = begin(seed, DiskKind::Hdd);
        let fs = pool.filesystem("tank").wait().unwrap();
        for n in 0..20 {
            let file = fs.open(format!("{n}"), OpenOptions::new().create(0o644)).wait().unwrap();
            file.append(vec![n; 10_000]).wait().unwrap();
            file.sync().wait().unwrap();
        }
        let before = sim.now().wait().unwrap();
        sim.advance(Duration::from_secs(24 * 3600)).wait().unwrap();
        assert!(sim.now().wait().unwrap() >= before + Duration::from_secs(24 * 3600));
        let digest = sim.digest().wait().unwrap();
        pool.export().wait().unwrap();
        (digest, before)
    };
    let begun = Instant::now();
    let first = run(1);
    // Threads that hinder one another: the moment at which a file is dropped must not count.
    std::thread::scope(|threads| {
        let runs: Vec<_> = (0..8).map(|_| threads.spawn(|| run(1))).collect();
        for again in runs {
            assert_eq!(first, again.join().unwrap());
        }
    });
    assert_ne!(first.0, run(2).0);
    assert!(begun.elapsed() < Duration::from_secs(600));
}

#[test]
fn what_was_acknowledged_outlives_a_cut_at_any_moment() {
    let (mut acknowledged, mut batches) = (0, 0);
    for seed in 0..12u64 {
        let (sim, disk, pool) = begin(seed, DiskKind::Random);
        let fs = pool.filesystem("tank").wait().unwrap();
        let file = fs.open("log", OpenOptions::new().create(0o644)).wait().unwrap();
        let objects = fs.objects().wait().unwrap();
        pool.sync().wait().unwrap();
        sim.cut_after(300 + seed * 450, seed).wait().unwrap();
        let (mut logged, mut counted) = (0u64, 0u64);
        let why = loop {
            if let Err(e) = file.append(logged.to_le_bytes()).wait() {
                break e;
            }
            if let Err(e) = file.sync().wait() {
                break e;
            }
            logged += 1;
            if logged % 8 == 0 {
                let mut batch = Batch::new();
                batch.set(objects.root(), "a", logged);
                batch.set(objects.root(), "b", logged);
                match objects.commit_durable(batch).wait() {
                    Ok(_) => counted = logged,
                    Err(e) => break e,
                }
            }
        };
        assert_eq!((why.kind(), why.message()), (ErrorKind::EngineGone, "the power was cut"));
        let sim = sim.power_cut(seed).unwrap();
        assert_eq!(pool.sync().wait().unwrap_err().kind(), ErrorKind::EngineGone);
        let pool = import(&sim, &disk);
        let fs = pool.filesystem("tank").wait().unwrap();
        let log = fs.read("log").wait().unwrap();
        assert!(log.len() as u64 >= logged * 8, "seed {seed}: {} of {logged}", log.len() / 8);
        assert!(log.chunks_exact(8).zip(0u64..).all(|(c, n)| c == n.to_le_bytes()), "seed {seed}");
        let objects = fs.objects().wait().unwrap();
        let value = |name: &str| objects.get(objects.root(), name).wait().unwrap().and_then(|v: Value| v.number());
        assert_eq!(value("a"), value("b"), "seed {seed}: a batch is whole");
        assert!(value("a").unwrap_or(0) >= counted, "seed {seed}");
        (acknowledged, batches) = (acknowledged + logged, batches + counted / 8);
    }
    assert!(acknowledged > 100 && batches > 10, "the cuts came before anything happened: {acknowledged} {batches}");
}

#[test]
fn what_nobody_synced_may_be_lost_and_a_restart_loses_nothing() {
    let (sim, disk, pool) = begin(3, DiskKind::Nvme);
    let fs = pool.filesystem("tank").wait().unwrap();
    fs.write("unsynced", "x").wait().unwrap();
    let sim = sim.power_cut_with(Loss::Everything, 0).unwrap();
    drop((fs, pool));
    let pool = import(&sim, &disk);
    let fs = pool.filesystem("tank").wait().unwrap();
    assert_eq!(fs.read("unsynced").wait().unwrap_err().kind(), ErrorKind::NotFound);
    fs.write("unsynced", "x").wait().unwrap();
    let sim = sim.restart().unwrap();
    let pool = import(&sim, &disk);
    assert_eq!(pool.filesystem("tank").wait().unwrap().read("unsynced").wait().unwrap(), b"x");
}

#[test]
fn damage_is_found_and_mended() {
    let sim = Simulator::new(5).unwrap();
    let disks: Vec<_> = (0..2).map(|_| sim.disk(SIZE, DiskKind::Nvme).wait().unwrap()).collect();
    // The file keeps its size.
    let options = CreateOptions { properties: vec![("compression".into(), "off".into())], ..CreateOptions::default() };
    let pool = sim.engine().create_pool("tank", Vdev::mirror(disks.clone()), options).wait().unwrap();
    let fs = pool.filesystem("tank").wait().unwrap();
    fs.write("f", vec![7; 4 << 20]).wait().unwrap();
    pool.sync().wait().unwrap();
    sim.corrupt(&disks[1], 4 << 20, 110 << 20).wait().unwrap();
    assert_eq!(sim.corrupt(&disks[1], SIZE, 1).wait().unwrap_err().kind(), ErrorKind::Invalid);
    pool.scrub().wait().unwrap();
    let scan = pool.wait_scan().wait().unwrap();
    assert_eq!((scan.state, scan.errors), (ScanPhase::Finished, 0));
    assert!(scan.repaired > 4 << 20, "{scan:?}");
    let status = pool.status().wait().unwrap();
    assert!(status.devices[1].checksum_errors > 0 && status.devices[0].checksum_errors == 0);
    assert_eq!(
        sim.engine().create_pool("other", disks[0].clone(), CreateOptions::default()).wait().unwrap_err().kind(),
        ErrorKind::Busy
    );
    assert_eq!(
        sim.engine()
            .create_pool("file", Device::path("/dev/null"), CreateOptions::default())
            .wait()
            .unwrap_err()
            .kind(),
        ErrorKind::Unsupported
    );
}
