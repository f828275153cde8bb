//! The throttles on the real engine, small: the full cases are the commands of docs/lab.md.
#![allow(clippy::unwrap_used)]

use lab::throttle::{Report, Study};
use txg::ThrottlePolicy;

fn small(policy: ThrottlePolicy) -> Study {
    Study { policy, bandwidth: 10 << 20, seconds: 24, mem: 1 << 30, ..Study::default() }
}

/// Where admission meets the device: `scale * (x - 0.6) / (1 - x)` is the time that the device takes for a block.
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
        Study { mem: 1, ..Study::default() },
        Study { offered: 0, ..Study::default() },
    ] {
        assert!(bad.run().is_err(), "{bad:?}");
    }
}
