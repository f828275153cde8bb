//! What an advice is for: limits that must hold, and what is to be as good as possible.
//!
//! A goal is parts with commas between them: `p99<5ms`, `write p99.9<20ms`, `mean<1ms`, and one of
//! `throughput` (the default), `bytes`, or a percentile alone, which is to be small. Percentiles
//! are of all reads and writes together unless `read` or `write` stands before them.
//!
//! A run is worth one number, its [`Goal::value`]: the logarithm of what is to be good, less
//! [`MISSED`] times the logarithms by which limits are missed. So differences are ratios, whatever
//! the units, and hardly any gain makes up for a limit that does not hold.

use base::{Error, Result};

use crate::layout::parse_span;
use crate::study::Seen;

/// Weight of a missed limit: one that is missed by a tenth counts as a fall to four tenths.
pub const MISSED: f64 = 10.0;

/// A figure of a run, by the name that it has in [`Seen`].
const FIGURES: [(&str, &str); 7] = [
    ("p50", "p50_us"),
    ("p90", "p90_us"),
    ("p99", "p99_us"),
    ("p99.9", "p999_us"),
    ("p999", "p999_us"),
    ("mean", "mean_us"),
    ("max", "max_us"),
];

/// A limit.
#[derive(Clone, PartialEq, Debug)]
pub struct Limit {
    /// The figure of a run, in microseconds.
    pub figure: String,
    /// As it was written.
    pub text: String,
    /// Less than this.
    pub us: f64,
}

/// What is to be as good as possible.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Best {
    /// The largest.
    Most(&'static str),
    /// The smallest.
    Least(String),
}

/// A goal.
#[derive(Clone, PartialEq, Debug)]
pub struct Goal {
    /// All of them must hold.
    pub limits: Vec<Limit>,
    /// Then this counts.
    pub best: Best,
}

/// The figure that words name, such as `write p99`.
fn figure(text: &str) -> Option<String> {
    let words: Vec<&str> = text.split_whitespace().collect();
    let find = |name: &str| FIGURES.iter().find(|(short, _)| *short == name).map(|(_, figure)| *figure);
    match words[..] {
        [name] => find(name).map(String::from),
        [kind @ ("read" | "write"), name] => Some(format!("{kind}_{}", find(name)?)),
        _ => None,
    }
}

impl Goal {
    /// By its text.
    ///
    /// # Errors
    /// `Invalid`, with the part that is wrong.
    pub fn parse(text: &str) -> Result<Goal> {
        let (mut limits, mut best) = (Vec::new(), None);
        for part in text.split(',').map(str::trim) {
            let bad = || {
                Error::invalid(format!(
                    "the goal '{part}' is none of: p99<5ms (also p50, p90, p99.9, mean, max, with read or write before), throughput, bytes, or a percentile alone"
                ))
            };
            if let Some((name, most)) = part.split_once('<') {
                let figure = figure(name).ok_or_else(bad)?;
                let us = parse_span(most.trim().trim_start_matches('=')).ok_or_else(bad)?.0 as f64 / 1e3;
                limits.push(Limit { figure, text: part.into(), us });
                continue;
            }
            let this = match part {
                "throughput" => Best::Most("ops_per_s"),
                "bytes" => Best::Most("bytes_per_s"),
                _ => Best::Least(figure(part).ok_or_else(bad)?),
            };
            if best.replace(this).is_some() {
                return Err(Error::invalid(format!("the goal '{text}' has two things to be as good as possible")));
            }
        }
        Ok(Goal { limits, best: best.unwrap_or(Best::Most("ops_per_s")) })
    }

    /// The name of the figure that is to be good.
    pub fn figure(&self) -> &str {
        match &self.best {
            Best::Most(name) => name,
            Best::Least(name) => name,
        }
    }

    /// Limits that do not hold in a run.
    pub fn missed<'a>(&'a self, seen: &Seen) -> Vec<&'a Limit> {
        self.limits.iter().filter(|limit| over(limit, seen) > 0.0).collect()
    }

    /// What a run is worth: more is better.
    pub fn value(&self, seen: &Seen) -> f64 {
        self.gain(seen) - MISSED * self.limits.iter().map(|limit| over(limit, seen)).sum::<f64>()
    }

    /// The logarithm of what is to be good, whatever the limits: more is better.
    pub fn gain(&self, seen: &Seen) -> f64 {
        let of = |name: &str| seen.values.get(name).copied().unwrap_or(0.0).max(1e-6).ln();
        match &self.best {
            Best::Most(name) => of(name),
            Best::Least(name) => -of(name),
        }
    }
}

/// The logarithm by which a limit is missed; 0 if it holds. A figure that a run does not have, as
/// reads where nothing reads, holds.
fn over(limit: &Limit, seen: &Seen) -> f64 {
    let value = seen.values.get(&limit.figure).copied().unwrap_or(0.0);
    if value < limit.us { 0.0 } else { (value / limit.us).ln().max(1e-9) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(values: &[(&str, f64)]) -> Seen {
        let mut seen = Seen::default();
        values.iter().for_each(|(name, value)| seen.set(name, *value));
        seen
    }

    #[test]
    fn goals_are_read() {
        let goal = Goal::parse("p99<5ms, throughput").unwrap();
        assert_eq!((goal.limits[0].figure.as_str(), goal.limits[0].us), ("p99_us", 5000.0));
        assert_eq!(goal.best, Best::Most("ops_per_s"));
        let goal = Goal::parse("read p99.9<800us,write mean < 1ms,write p50").unwrap();
        let limits: Vec<(&str, f64)> = goal.limits.iter().map(|l| (l.figure.as_str(), l.us)).collect();
        assert_eq!(limits, [("read_p999_us", 800.0), ("write_mean_us", 1000.0)]);
        assert_eq!(goal.best, Best::Least("write_p50_us".into()));
        for bad in ["", "fast", "p99<5", "p98<5ms", "p99<", "throughput,bytes", "sync p99<5ms", "p99<5ms,,bytes"] {
            assert!(Goal::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn values_are_ratios_and_limits_come_first() {
        let goal = Goal::parse("p99<5ms,throughput").unwrap();
        let run = |ops: f64, p99: f64| goal.value(&seen(&[("ops_per_s", ops), ("p99_us", p99)]));
        // (better, worse): (operations a second, p99).
        for (a, b) in [
            ((200.0, 4000.0), (100.0, 4000.0)),
            ((100.0, 4999.0), (100.0, 5001.0)),
            ((100.0, 4000.0), (150.0, 5500.0)),
            ((100.0, 6000.0), (100.0, 9000.0)),
        ] {
            assert!(run(a.0, a.1) > run(b.0, b.1), "{a:?} {b:?}");
        }
        assert_eq!(run(100.0, 100.0), run(100.0, 4000.0), "below a limit nothing counts");
        assert!((run(110.0, 1.0) - run(100.0, 1.0) - 1.1f64.ln()).abs() < 1e-9);
        let small = Goal::parse("p99").unwrap();
        assert!(small.value(&seen(&[("p99_us", 10.0)])) > small.value(&seen(&[("p99_us", 11.0)])));
        let missed = |p99: f64| goal.missed(&seen(&[("p99_us", p99)])).len();
        assert_eq!((missed(4999.0), missed(5000.0)), (0, 1));
        assert!(goal.missed(&seen(&[])).is_empty(), "nothing reads or writes");
    }
}
