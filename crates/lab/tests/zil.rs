//! The intent log's commit policies on the real engine, small, and how their table is made.
#![allow(clippy::unwrap_used)]

use base::Nanos;
use lab::published::{DISKS, THREADS, value};
use lab::zil::{Cell, Medium, Outcome, Rate, Report, average_as_published, change_percent, poisson_gap};
use zil::CommitPolicy;

const FIXED: Rate = Rate::PerSecond(64);

fn cell(policy: CommitPolicy, threads: u32) -> Cell {
    Cell {
        medium: Medium::Ssd,
        disks: 2,
        threads,
        policy,
        rate: Rate::Max,
        seconds: 1,
        seed: 0,
        timeout_pct: None,
        log_device: false,
        device: None,
    }
}

fn run(cell: Cell) -> Outcome {
    let seen = cell.run().unwrap();
    eprintln!(
        "{} {} threads: {:.0} a second, {:.0} us, {:.1} commits a block",
        seen.policy, seen.threads, seen.iops, seen.latency_mean_us, seen.waiters_per_block
    );
    seen
}

#[test]
fn many_writers_gain_from_batchless_and_one_does_not() {
    let [before, after] = [CommitPolicy::Batched, CommitPolicy::Batchless2017].map(|p| run(cell(p, 8)));
    // With one batch at a time a writer waits for the batch before, and then for its own.
    let gain = change_percent(before.iops, after.iops);
    assert!(gain > 30.0, "{gain} %");
    assert!(after.latency_mean_us < before.latency_mean_us);
    let alone = [CommitPolicy::Batched, CommitPolicy::Batchless2017].map(|p| run(cell(p, 1)).iops);
    let gain = change_percent(alone[0], alone[1]);
    assert!(gain.abs() < 10.0, "{gain} %");
    let again = run(cell(CommitPolicy::Batched, 8));
    assert_eq!(again, before, "the same seed is the same run");
}

#[test]
fn a_fixed_rate_is_kept() {
    let seen = run(Cell { rate: FIXED, seconds: 4, ..cell(CommitPolicy::Batchless2017, 16) });
    assert!((seen.iops / (16.0 * 64.0) - 1.0).abs() < 0.06, "{}", seen.iops);
}

#[test]
fn gaps_are_those_of_a_poisson_process() {
    let mut rng = sim::Rng::new(1);
    let gaps: Vec<f64> = (0..100_000).map(|_| poisson_gap(64, rng.next_u64()).0 as f64 / 1e9).collect();
    let mean = gaps.iter().sum::<f64>() / gaps.len() as f64;
    let longer = gaps.iter().filter(|&&g| g > 1.0 / 64.0).count() as f64 / gaps.len() as f64;
    assert!((mean * 64.0 - 1.0).abs() < 0.02, "{mean}");
    assert!((longer - (-1.0f64).exp()).abs() < 0.01, "{longer}");
    assert_eq!(poisson_gap(64, u64::MAX), Nanos(0));
    assert!(poisson_gap(64, 0).0 < 1_000_000_000);
}

#[test]
fn averages_are_those_of_the_publication() {
    // The four headline numbers, from the tables themselves (behaviour page 3.4).
    for (medium, rate, disks, want) in [
        (Medium::Hdd, Rate::Max, 1, 59.2),
        (Medium::Hdd, Rate::Max, 8, 83.8),
        (Medium::Ssd, Rate::Max, 1, 29.2),
        (Medium::Ssd, Rate::Max, 8, 48.9),
        (Medium::Hdd, FIXED, 1, -37.3),
        (Medium::Hdd, FIXED, 8, -27.9),
        (Medium::Ssd, FIXED, 1, -16.8),
        (Medium::Ssd, FIXED, 8, -16.1),
    ] {
        let changes: Vec<(u32, f64)> = THREADS
            .iter()
            .map(|&t| (t, value(medium, rate, disks, t).unwrap()))
            .map(|(t, (before, after))| (t, change_percent(before, after)))
            .collect();
        let mean = average_as_published(medium, rate, &changes).unwrap();
        assert!((mean - want).abs() < 0.1, "{medium:?} {rate:?} {disks}: {mean}");
    }
    assert_eq!(average_as_published(Medium::Hdd, Rate::Max, &[(1, 50.0)]), None);
    assert_eq!(average_as_published(Medium::Hdd, FIXED, &[(2, -10.0), (128, -90.0)]), Some(-10.0));
    assert_eq!(value(Medium::Hdd, Rate::PerSecond(10), 8, 2), None);
    assert_eq!(value(Medium::Hdd, Rate::Max, 3, 2), None);
    assert_eq!(DISKS.len(), 4);
}

#[test]
fn a_report_pairs_runs_and_averages_the_largest_stripe() {
    let seen = |c: Cell, iops: f64| {
        let seen = Outcome {
            medium: c.medium,
            disks: c.disks,
            threads: c.threads,
            policy: c.policy.name(),
            rate: c.rate.name(),
            seconds: 1.0,
            writes: 1,
            iops,
            latency_mean_us: 1.0,
            latency_p50_us: 1.0,
            latency_p99_us: 1.0,
            blocks_per_s: 1.0,
            waiters_per_block: 1.0,
            fill_percent: 1.0,
            flushes_per_s: 1.0,
            txgs: 1,
            device_ops: 1,
            virtual_seconds: 1.0,
            digest: String::new(),
        };
        (c, seen)
    };
    let (b, a) = (CommitPolicy::Batched, CommitPolicy::Batchless2017);
    let on = |disks, policy, threads| Cell { medium: Medium::Hdd, disks, ..cell(policy, threads) };
    let report = Report::of(vec![
        seen(on(8, b, 1), 100.0),
        seen(on(8, a, 1), 300.0),
        seen(on(8, b, 2), 100.0),
        seen(on(8, a, 2), 150.0),
        seen(on(8, a, 4), 300.0),
        seen(on(8, b, 4), 200.0),
        seen(on(1, b, 2), 100.0),
        seen(on(1, a, 2), 120.0),
        seen(on(1, b, 4), 100.0),
    ]);
    assert_eq!(report.gain_percent["hdd"], 50.0);
    assert_eq!(report.gain_percent_by_disks["hdd"][&1], 20.0);
    assert!(report.latency_change_percent.is_empty());
    // A cell without its counterpart makes no row.
    assert_eq!((report.rows.len(), report.cells.len()), (4, 9));
    assert!((report.published_gain_percent_by_disks["hdd"][&8] - (53.45 + 123.1) / 2.0).abs() < 0.2);
}

#[test]
fn studies_that_make_no_sense_are_refused() {
    let good = cell(CommitPolicy::Batched, 1);
    for bad in [
        Cell { disks: 0, ..good.clone() },
        Cell { threads: 0, ..good.clone() },
        Cell { seconds: 0, ..good.clone() },
        Cell { disks: 65, ..good.clone() },
    ] {
        assert!(bad.run().is_err(), "{bad:?}");
    }
    assert!(Medium::parse("tape").is_err());
    assert!(Rate::parse("0").is_err() && Rate::parse("often").is_err());
    assert_eq!(Rate::parse("64").unwrap(), FIXED);
}
