//! The policy of a search: successive halving over seeds. Pure functions; what runs them is in the
//! module above.
//!
//! **Rounds.** First every single change runs with one seed beside what is set now. Of those that
//! are not worse the better half runs with three seeds; what still is better then is put together
//! ([`combine`]): the best of each setting with the best of the others. The combinations and the
//! best single changes go through the same halving, with more seeds each time, until two are left;
//! they run with all seeds. Runs of one seed are compared with each other only: the same world, the
//! same arrivals, so most of what chance does is in both ([`Tried::gain`]).
//!
//! **Verdict.** The best is advised if its mean gain over what is set now is at least
//! [`WORTH`] and more than two standard errors above nothing ([`verdict`]); else: leave it. A
//! change without which the others are as good ([`NEEDLESS`]) is left out.

use crate::study::Spread;

use super::knob::Candidate;

/// Gains below this are not worth a change: 3 %.
pub const WORTH: f64 = 0.03;
/// A change that adds less than this to the others is left out: 1 %.
pub const NEEDLESS: f64 = 0.01;
/// Most settings that are changed together: more can be explained to nobody.
pub const TOGETHER_MAX: usize = 4;

/// A candidate and the values of its runs, by seed from the first on.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Tried {
    /// What it changes.
    pub candidate: Candidate,
    /// The values of its runs.
    pub values: Vec<f64>,
}

impl Tried {
    /// Gains over `base`, seed by seed.
    pub fn gains(&self, base: &Tried) -> Vec<f64> {
        self.values.iter().zip(&base.values).map(|(a, b)| a - b).collect()
    }
    /// The mean of those; 0 without runs.
    pub fn gain(&self, base: &Tried) -> f64 {
        Spread::of(&self.gains(base)).map_or(0.0, |s| s.mean)
    }
}

/// A round: how many candidates are kept at most for it, and with how many seeds they run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Round {
    /// Candidates beside the base.
    pub keep: usize,
    /// Seeds.
    pub seeds: usize,
}

/// The rounds for `candidates` of them, the last with `seeds`: each keeps half, with twice the
/// seeds, until two are left.
pub fn rounds(candidates: usize, first: usize, seeds: usize) -> Vec<Round> {
    let seeds = seeds.max(1);
    let mut out = vec![Round { keep: candidates, seeds: first.clamp(1, seeds) }];
    while let Some(&Round { keep, seeds: now }) = out.last().filter(|round| round.keep > 2) {
        out.push(Round { keep: keep.div_ceil(2).max(2), seeds: (now * 2).min(seeds) });
    }
    match out.last_mut() {
        Some(last) if last.seeds < seeds => last.seeds = seeds,
        _ => {}
    }
    out
}

/// The best `keep` of what was tried, best first, those that are worse than `base` by a
/// [`NEEDLESS`] share left out. Of equals the one with fewer changes, then the first.
pub fn best(tried: &[Tried], base: &Tried, keep: usize) -> Vec<Tried> {
    let mut all: Vec<(f64, &Tried)> = tried.iter().map(|t| (t.gain(base), t)).collect();
    all.retain(|(gain, _)| *gain > -NEEDLESS);
    all.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.candidate.len().cmp(&b.1.candidate.len())));
    all.into_iter().take(keep).map(|(_, t)| t.clone()).collect()
}

/// Combinations of single changes that gain, given best first: of each setting the best one; the
/// best two, three and so on together, and every pair of the best three.
pub fn combine(singles: &[Tried], base: &Tried) -> Vec<Candidate> {
    let mut of_each: Candidate = Vec::new();
    for tried in singles.iter().filter(|t| t.gain(base) > NEEDLESS / 2.0) {
        for change in &tried.candidate {
            if !of_each.iter().any(|c| (c.kind, &c.name) == (change.kind, &change.name)) {
                of_each.push(change.clone());
            }
        }
    }
    of_each.truncate(TOGETHER_MAX);
    let mut out: Vec<Candidate> = (2..=of_each.len()).map(|n| of_each[..n].to_vec()).collect();
    for pair in [[0, 2], [1, 2]] {
        if of_each.len() > 2 {
            out.push(pair.map(|i| of_each[i].clone()).to_vec());
        }
    }
    out
}

/// What a search found.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Verdict {
    /// Whether to change anything.
    pub change: bool,
    /// The mean gain, as a logarithm.
    pub gain: f64,
    /// Two standard errors of it.
    pub error: f64,
    /// Seeds with which it is better.
    pub better: usize,
    /// All of them.
    pub seeds: usize,
}

/// The verdict on gains, one for each seed.
pub fn verdict(gains: &[f64]) -> Verdict {
    let Some(s) = Spread::of(gains) else {
        return Verdict { change: false, gain: 0.0, error: 0.0, better: 0, seeds: 0 };
    };
    // One run says nothing about its spread.
    let error = if s.count < 2 { f64::INFINITY } else { 2.0 * s.deviation / (s.count as f64).sqrt() };
    let better = gains.iter().filter(|g| **g > 0.0).count();
    Verdict { change: s.mean >= WORTH && s.mean > error, gain: s.mean, error, better, seeds: s.count }
}

#[cfg(test)]
mod tests {
    use super::super::knob::{Change, Kind};
    use super::*;

    fn change(name: &str, value: &str) -> Change {
        let text = |t: &str| t.to_string();
        Change { kind: Kind::Tunable, name: text(name), value: text(value), before: text("0"), cost: text("") }
    }
    fn tried(changes: &[(&str, &str)], values: &[f64]) -> Tried {
        Tried { candidate: changes.iter().map(|(n, v)| change(n, v)).collect(), values: values.to_vec() }
    }
    fn names(all: &[Candidate]) -> Vec<String> {
        let one = |c: &Candidate| c.iter().map(|c| format!("{}={}", c.name, c.value)).collect::<Vec<_>>().join(" ");
        all.iter().map(one).collect()
    }

    #[test]
    fn rounds_halve_and_double() {
        let of = |candidates, first, seeds| {
            rounds(candidates, first, seeds).iter().map(|r| (r.keep, r.seeds)).collect::<Vec<_>>()
        };
        assert_eq!(of(24, 1, 10), [(24, 1), (12, 2), (6, 4), (3, 8), (2, 10)]);
        assert_eq!(of(5, 3, 10), [(5, 3), (3, 6), (2, 10)]);
        assert_eq!(of(2, 3, 10), [(2, 10)]);
        assert_eq!(of(1, 1, 1), [(1, 1)]);
        assert_eq!(of(9, 4, 2), [(9, 2), (5, 2), (3, 2), (2, 2)]);
    }

    #[test]
    fn the_best_are_kept_and_the_worse_go() {
        let base = tried(&[], &[1.0, 2.0]);
        let all = [
            tried(&[("a", "1")], &[1.1, 2.1]),
            tried(&[("b", "1")], &[0.5, 1.5]),
            tried(&[("c", "1"), ("d", "1")], &[1.1, 2.1]),
            tried(&[("e", "1")], &[1.3, 2.5]),
            tried(&[("f", "1")], &[1.0, 2.0]),
        ];
        let kept = |keep| names(&best(&all, &base, keep).into_iter().map(|t| t.candidate).collect::<Vec<_>>());
        assert_eq!(kept(9), ["e=1", "a=1", "c=1 d=1", "f=1"]);
        assert_eq!(kept(2), ["e=1", "a=1"]);
        // More seeds of one side do not count.
        assert_eq!(tried(&[], &[2.0, 3.0, 99.0]).gain(&base), 1.0);
        assert_eq!(tried(&[], &[]).gain(&base), 0.0);
    }

    #[test]
    fn changes_that_gain_are_put_together() {
        let base = tried(&[], &[0.0]);
        let singles = [
            tried(&[("a", "1")], &[0.4]),
            tried(&[("a", "2")], &[0.3]),
            tried(&[("b", "1")], &[0.2]),
            tried(&[("c", "1")], &[0.1]),
            tried(&[("d", "1")], &[0.0]),
        ];
        let want = ["a=1 b=1", "a=1 b=1 c=1", "a=1 c=1", "b=1 c=1"];
        assert_eq!(names(&combine(&singles, &base)), want);
        assert_eq!(names(&combine(&singles[..3], &base)), ["a=1 b=1"]);
        assert!(combine(&singles[..2], &base).is_empty() && combine(&[], &base).is_empty());
    }

    #[test]
    fn verdicts_need_a_gain_that_is_sure() {
        for (gains, change) in [
            (&[0.2, 0.21, 0.19][..], true),
            (&[0.02, 0.02, 0.02], false),
            (&[0.9, -0.6, 0.1, 0.0], false),
            (&[0.1, 0.3, 0.2, 0.25, 0.02], true),
            (&[-0.2, -0.2], false),
            (&[0.5], false),
            (&[], false),
        ] {
            assert_eq!(verdict(gains).change, change, "{gains:?}");
        }
        let v = verdict(&[0.1, -0.1, 0.3]);
        assert_eq!((v.better, v.seeds), (2, 3));
        assert!((v.gain - 0.1).abs() < 1e-12 && v.error > 0.2);
    }
}
