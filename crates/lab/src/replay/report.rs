//! What a replay tells: latencies as recorded and as replayed, side by side.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::calibrate::LIMITS;
use crate::hist;
use crate::study::Seen;

/// Percentiles of latencies in microseconds.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize)]
pub struct Latency {
    /// Mean.
    pub mean_us: f64,
    /// Median.
    pub p50_us: f64,
    /// 90th percentile.
    pub p90_us: f64,
    /// 99th percentile.
    pub p99_us: f64,
    /// 99.9th percentile.
    pub p999_us: f64,
    /// The longest.
    pub max_us: f64,
}

impl Latency {
    /// Sets its figures in `seen`, by names that begin with `prefix`.
    pub(crate) fn put(&self, seen: &mut Seen, prefix: &str) {
        for (name, value) in [
            ("mean", self.mean_us),
            ("p50", self.p50_us),
            ("p90", self.p90_us),
            ("p99", self.p99_us),
            ("p999", self.p999_us),
            ("max", self.max_us),
        ] {
            seen.set(&format!("{prefix}{name}_us"), value);
        }
    }
    pub(crate) fn of(mut ns: Vec<u64>) -> Latency {
        ns.sort_unstable();
        let us = |ns: u64| ns as f64 / 1000.0;
        let at = |permille| us(hist::percentile(&ns, permille));
        let mean_us = ns.iter().map(|&n| us(n)).sum::<f64>() / ns.len().max(1) as f64;
        let max_us = us(ns.last().copied().unwrap_or(0));
        Latency { mean_us, p50_us: at(500), p90_us: at(900), p99_us: at(990), p999_us: at(999), max_us }
    }
}

/// The operations of a kind.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct KindReport {
    /// `read`, `write`, ...
    pub kind: &'static str,
    /// How many worked both times.
    pub count: u64,
    /// As recorded.
    pub recorded: Latency,
    /// As replayed.
    pub predicted: Latency,
    /// Whether median and 99th percentile are as predicted, within the limits of
    /// [`crate::calibrate::LIMITS`].
    pub fits: [bool; 2],
}

impl KindReport {
    pub(super) fn of(kind: &'static str, recorded: Vec<u64>, predicted: Vec<u64>) -> KindReport {
        let count = predicted.len() as u64;
        let (recorded, predicted) = (Latency::of(recorded), Latency::of(predicted));
        let (_, median, factor) = LIMITS;
        let ratio = |a: f64, b: f64| b.max(1e-3) / a.max(1e-3);
        let tail = ratio(recorded.p99_us, predicted.p99_us);
        let fits = [
            (ratio(recorded.p50_us, predicted.p50_us) - 1.0).abs() * 100.0 <= median,
            (1.0 / factor..=factor).contains(&tail),
        ];
        KindReport { kind, count, recorded, predicted, fits }
    }
}

/// The result of a replay.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Report {
    /// Seed of the world.
    pub seed: u64,
    /// The model of its devices.
    pub model: String,
    /// Operations that were replayed.
    pub ops: u64,
    /// Of them, those that worked in the recording and not here.
    pub failed: u64,
    /// Operations that the recording lost.
    pub lost: u64,
    /// Whether the recording has its end.
    pub complete: bool,
    /// From the begin of the recording to the end of the last operation.
    pub recorded_seconds: f64,
    /// The same, replayed.
    pub predicted_seconds: f64,
    /// Bytes read a second, recorded and replayed.
    pub read_bytes_per_s: [f64; 2],
    /// Bytes written a second, recorded and replayed.
    pub write_bytes_per_s: [f64; 2],
    /// Each kind that there is, in the order of their numbers.
    pub kinds: Vec<KindReport>,
    /// Those that move data together: `reads`, `writes` (fsync and the like among them), `data`.
    pub groups: Vec<KindReport>,
    /// Whether the time is as predicted, within the limit for rates.
    pub time_fits: bool,
    /// Seconds that the engine's thread worked, recorded (0: not known) and replayed.
    pub worked_seconds: [f64; 2],
    /// Where the replayed time went ([`crate::parts`]).
    pub parts: BTreeMap<String, f64>,
    /// Identifies the run: equal for equal replays.
    pub digest: String,
}

impl Report {
    /// Its predictions by the names of [`crate::advise::goal`].
    pub(crate) fn seen(&self) -> Seen {
        let mut seen = Seen::default();
        seen.set("ops_per_s", self.ops as f64 / self.predicted_seconds.max(1e-9));
        seen.set("bytes_per_s", self.read_bytes_per_s[1] + self.write_bytes_per_s[1]);
        for group in &self.groups {
            let prefix = match group.kind {
                "reads" => "read_",
                "writes" => "write_",
                _ => "",
            };
            group.predicted.put(&mut seen, prefix);
            if prefix.is_empty() {
                group.recorded.put(&mut seen, "recorded_");
            }
        }
        seen.values.extend(self.parts.clone());
        seen
    }
}
