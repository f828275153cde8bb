//! The throttles on the real engine, small: the full cases are the commands of docs/lab.md.
#![allow(clippy::unwrap_used)]

use base::Nanos;
use lab::throttle::{Report, Study};
use sim::{DiskConfig, DiskImage, Model, Sim, SimConfig, SimDisk};
use spa::{Bias, DevSpec, EngineOpts, Group, GroupKind, Layout, Pool, PoolSpec};
use txg::ThrottlePolicy;
use zpl::{Cred, FsCreateProps, InitOwner, MountOpts, Zfs, init_fs};

fn small(policy: ThrottlePolicy) -> Study {
    Study { policy, bandwidth: 10 << 20, seconds: 24, mem: 1 << 30, ..Study::default() }
}

/// The equilibrium of admission and device: `scale * (x - 0.6) / (1 - x)` is the device's time for
/// a block.
fn expected_percent(s: &Study) -> f64 {
    let ratio = s.block as f64 * 1e9 / s.bandwidth as f64 / 500_000.0;
    (0.6 + ratio) / (1.0 + ratio) * 100.0
}

fn run(s: &Study) -> Report {
    let r = s.run().unwrap();
    eprintln!(
        "{} {:.1} % dirty, {:.0} B/s, p50 {:.0} p99.9 {:.0} max {:.0} us, modes {}, cv {:.3}",
        r.policy,
        r.dirty_percent_steady,
        r.throughput_bytes_per_s,
        r.latency_p50_us,
        r.latency_p999_us,
        r.latency_max_us,
        r.latency_modes,
        r.cv_admitted
    );
    r
}

#[test]
fn the_curve_settles_where_it_meets_the_device_and_2008_goes_in_pickets() {
    let study = small(ThrottlePolicy::OpenZfs);
    let new = run(&study);
    assert!((new.dirty_percent_steady - expected_percent(&study)).abs() < 2.0, "{} %", new.dirty_percent_steady);
    assert!((new.throughput_bytes_per_s / study.bandwidth as f64 - 1.0).abs() < 0.04, "{}", new.throughput_bytes_per_s);
    assert_eq!(new.latency_modes, 1, "{:?}", new.latency_histogram);
    assert!(new.throttle_wait_max_us <= 100_000.0, "{}", new.throttle_wait_max_us);
    let old = run(&small(ThrottlePolicy::Legacy2008));
    assert!(old.cv_admitted > new.cv_admitted * 5.0, "{} against {}", old.cv_admitted, new.cv_admitted);
    assert!(old.latency_max_us > 1e6);
    assert_eq!(new.digest, run(&study).digest, "the same seed is the same run");
}

#[test]
fn throttles_and_their_settings_make_tables() {
    use lab::study::{MEMORY_MAX, Report as Table, RunOpts, Verdict};
    use lab::throttle_sweep::{Sweep, study};
    let run = |study: &lab::study::Study| {
        let opts = RunOpts { seeds: 0..1, jobs: 2, memory: MEMORY_MAX, engine: "", state: None };
        let results = study.run(opts, &mut |_| {}).unwrap();
        (Table::of(study, &results), (study.draw)(&results))
    };
    let base = small(ThrottlePolicy::OpenZfs);
    let (table, plots) = run(&study(&base, Sweep::Policies).unwrap());
    eprintln!("{}", table.text());
    let modes = table.rows.iter().rfind(|r| r.name.starts_with("openzfs: modes")).unwrap();
    assert_eq!((modes.verdict, plots.len()), (Verdict::Shape, 4));
    // A later begin of the delay lets more be dirty.
    let (table, _) =
        run(&study(&Study { seconds: 12, ..base }, Sweep::parse("delay_min_dirty_percent").unwrap()).unwrap());
    let dirty: Vec<f64> =
        table.rows.iter().filter(|r| r.name.ends_with("dirty, steady")).map(|r| r.measured.unwrap().mean).collect();
    assert!(dirty.len() == 3 && dirty.is_sorted(), "{dirty:?}");
    assert!(Sweep::parse("nothing").is_err());
}

#[test]
fn below_the_device_nobody_waits() {
    let r = run(&Study { offered: 8 << 20, seconds: 8, ..small(ThrottlePolicy::OpenZfs) });
    assert_eq!(r.delayed_percent, 0.0);
    assert!((r.throughput_bytes_per_s / f64::from(8 << 20) - 1.0).abs() < 0.01);
}

#[test]
fn studies_that_make_no_sense_are_refused() {
    for bad in [
        Study { bandwidth: 1, ..Study::default() },
        Study { threads: 0, ..Study::default() },
        Study { block: 3000, ..Study::default() },
        Study { seconds: 0, ..Study::default() },
        Study { copies: 4, ..Study::default() },
        Study { mem: 1, ..Study::default() },
        Study { offered: 0, ..Study::default() },
    ] {
        assert!(bad.run().is_err(), "{bad:?}");
    }
}

/// A mirror of a fast and a very slow device: dirty bytes after the fast one has written
/// everything.
fn dirty_when_one_half_is_written(policy: ThrottlePolicy) -> (u64, u64) {
    const SIZE: u64 = 8 << 20;
    let sim = Sim::new(SimConfig::seeded(7));
    let disk = |bandwidth| {
        let model = Model::Fixed { latency: Nanos::from_us(50), bandwidth };
        SimDisk::with(&sim.handle(), DiskConfig::new(DiskImage::zeroed(256 << 20), model, 7))
    };
    let (fast, slow) = (disk(400 << 20), disk(1 << 20));
    let mut opts = EngineOpts::for_memory(1 << 30);
    opts.txg.policy = policy;
    let devices = [&fast, &slow].map(|d| DevSpec { dev: d.dev(), is_disk: false }).to_vec();
    let group = Group { kind: GroupKind::Mirror, bias: Bias::Normal, devices };
    let prop = |name: &str, value| (name.to_string(), dsl::props::find(name).unwrap().parse(value).unwrap());
    let handle = sim.handle();
    let spec = PoolSpec {
        version: None,
        name: "lab".into(),
        devices: Layout { groups: vec![group], ..Layout::default() },
        ashift: Some(12),
        features: ondisk::feature::features_of_2_1(),
        comment: None,
        fs_props: vec![prop("compression", "off"), prop("recordsize", "8k")],
        init: init_fs(
            InitOwner { uid: 0, gid: 0, mode: 0o755, time: handle.rt().wall_clock() },
            FsCreateProps::default(),
        ),
    };
    let (pool, fs) = sim.block_on(async {
        let pool = Pool::create(handle.rt(), spec, opts).await.unwrap();
        let ds = pool.dsl().find("lab").unwrap();
        let fs = Zfs::open(&ds, MountOpts::from_props(&ds)).await.unwrap();
        (pool, fs)
    });
    sim.block_on(async {
        let file = fs.create(fs.root(), b"f", 0o644, &Cred::new(0, 0), true).await.unwrap().obj;
        pool.sync().await.unwrap();
        let data = bdev::Buf::copy_from(&[0x5a; 8 << 10]).freeze();
        for n in 0..SIZE / (8 << 10) {
            fs.write(file, n * (8 << 10), vec![data.clone()], false).await.unwrap();
        }
    });
    let before = pool.txg().dirty();
    let base = fast.counters().write_bytes;
    pool.txg().kick();
    let mut rounds = 0;
    while fast.counters().write_bytes < base + SIZE {
        sim.run_for(Nanos::from_ms(1));
        rounds += 1;
        assert!(rounds < 60_000, "the fast device never gets there");
    }
    let dirty = pool.txg().dirty();
    assert!(slow.counters().write_bytes > 0 && before >= SIZE);
    sim.block_on(pool.sync()).unwrap();
    assert_eq!(pool.txg().dirty(), 0);
    (before, dirty)
}

#[test]
fn in_2013_each_device_took_its_share_back() {
    // The depth of the slow device's queue limits how far the fast one is ahead; half of the bytes
    // that only the fast one has written are not dirty any more.
    let (all, whole) = dirty_when_one_half_is_written(ThrottlePolicy::OpenZfs);
    let (_, share) = dirty_when_one_half_is_written(ThrottlePolicy::OpenZfs2013);
    eprintln!("{all} dirty, {whole} when one device has it, {share} in 2013");
    assert!(whole > all / 10 * 8, "{whole} of {all}");
    assert!(share > all / 10 * 4 && share < all / 10 * 6, "{share} of {all}");
}
