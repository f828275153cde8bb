//! `weir lab advise`: settings and layouts that serve a goal better, found in virtual time.
//!
//! **What runs** is a [`Load`]: a recording ([`crate::replay`]) or a workload of a file
//! ([`crate::workload`]), with the settings of a candidate and a seed. **What is tried** are
//! changes of single settings and then some of them together ([`knob`]). **What counts** is the
//! goal ([`goal`]). **How it is searched**, and when the answer is to leave everything as it is,
//! is in [`search`]. **Why** is in [`explain`].
//!
//! Runs go through [`crate::study`], so they use all processors, stay within its memory, and a
//! search that was stopped goes on where it was. Equal seeds give equal advice.
//!
//! An advice is as good as the model of the devices and as the load is typical. It is about the
//! engine of weir; tunables that OpenZFS has too mean the same there, but nobody has measured them
//! there for this load.

pub mod explain;
pub mod goal;
pub mod knob;
pub mod search;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::Arc;

use base::{Error, Result};
use serde::Serialize;
use spa::EngineOpts;

use crate::device::Device;
use crate::layout::LayoutSpec;
use crate::parts;
use crate::replay::{Recording, Replay};
use crate::study::{Cell, MEMORY_MAX, RunOpts, Seen, Spread, State, Study};
use crate::workload::{self, Workload};
use goal::Goal;
use knob::{Candidate, Change, Kind, lines};
use search::{NEEDLESS, Round, Tried, best, combine, rounds, verdict};

/// Seeds with which candidates of later rounds begin.
const SECOND: usize = 3;
/// Best single changes that go on beside combinations.
const SINGLES: usize = 4;

/// Settings of the engine for changed tunables.
pub type Settings = Arc<dyn Fn(&[Change]) -> Result<EngineOpts> + Send + Sync>;

/// What runs.
#[derive(Clone)]
pub enum Load {
    /// A recording.
    Recording(Arc<Recording>, Box<Replay>),
    /// A workload, and the device of a log that a candidate has.
    Workload(Box<Workload>, Option<Box<Device>>),
}

impl std::fmt::Debug for Load {
    /// Everything that a run depends on beside the recorded operations.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Load::Recording(_, replay) => {
                let Replay { layout, model, log_model, cores, ashift, warm, thread, .. } = &**replay;
                write!(f, "{} {model} {log_model:?} {cores} {ashift} {warm} {thread:?}", layout.text())
            }
            Load::Workload(workload, log) => write!(f, "{workload:?} {log:?}"),
        }
    }
}

impl Load {
    /// Runs it once.
    fn run(&self, candidate: &Candidate, settings: &Settings, seed: u64) -> Result<Seen> {
        let opts = settings(candidate)?;
        let of = |kind| candidate.iter().filter(move |c| c.kind == kind);
        let layout = of(Kind::Layout).next().map(|c| LayoutSpec::parse(&c.value)).transpose()?;
        let props: Vec<(String, String)> = of(Kind::Property).map(|c| (c.name.clone(), c.value.clone())).collect();
        match self {
            Load::Recording(recording, replay) => {
                let mut replay = Replay { opts, seed, ..(**replay).clone() };
                replay.layout = layout.unwrap_or(replay.layout);
                replay.props.extend(props);
                Ok(replay.run(recording)?.seen())
            }
            Load::Workload(workload, log) => {
                let mut workload = (**workload).clone();
                if let Some(layout) = layout {
                    workload.pool.log = workload.pool.log.or(log.as_deref().cloned()).filter(|_| layout.has_log());
                    workload.pool.layout = layout;
                }
                workload::once(&workload, seed, opts, &props)
            }
        }
    }
    /// Bytes of memory of a run, estimated.
    fn memory(&self) -> u64 {
        match self {
            Load::Recording(..) => 1 << 30,
            Load::Workload(workload, _) => workload::memory(workload),
        }
    }
}

/// A search.
pub struct Search {
    /// Names the load and everything about it: part of the key of a run that is kept.
    pub what: String,
    /// What it is for, as text.
    pub goal: String,
    /// The pool and its file system, as command lines name them.
    pub names: (String, String),
    /// What runs.
    pub load: Load,
    /// Single changes to try.
    pub changes: Vec<Change>,
    /// Settings for changes.
    pub settings: Settings,
    /// The first seed.
    pub first: u64,
    /// Seeds of the last round.
    pub seeds: usize,
}

/// How a search runs.
pub struct Means<'a> {
    /// Threads.
    pub jobs: usize,
    /// Identifies the program.
    pub engine: &'a str,
    /// Where finished runs are kept.
    pub state: Option<&'a mut State>,
    /// Told how many runs are over and about how many there are.
    pub progress: &'a mut dyn FnMut(u64, u64),
}

/// A change of the advice.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Advised {
    /// Its setting.
    pub name: String,
    /// What it was.
    pub before: String,
    /// What it should be.
    pub value: String,
    /// What it costs.
    pub cost: String,
    /// What it adds to the others, in percent of what is to be good.
    pub adds_percent: f64,
    /// Limits that do not hold without it.
    pub needed_for: Vec<String>,
    /// Command lines that make it.
    pub lines: Vec<String>,
}

/// A figure with what is set now and with the advice, means over the seeds.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Figure {
    /// Its name.
    pub name: String,
    /// Now.
    pub now: f64,
    /// With the advice; the same without one.
    pub then: f64,
}

/// A single change that was tried.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Attempt {
    /// What it changed.
    pub name: String,
    /// Its mean gain in percent of what is to be good.
    pub gain_percent: f64,
    /// Limits that do not hold with it.
    pub misses: Vec<String>,
    /// Seeds it ran with.
    pub seeds: usize,
}

/// What a search found.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Advice {
    /// The goal.
    pub goal: String,
    /// Limits of the goal that do not hold now.
    pub missed_now: Vec<String>,
    /// Limits that do not hold with the advice.
    pub missed_then: Vec<String>,
    /// What to change; empty: leave it.
    pub changes: Vec<Advised>,
    /// The best that was found, if it was not worth it.
    pub best_found: String,
    /// Its mean gain in percent of what is to be good, whatever the limits.
    pub gain_percent: f64,
    /// Two standard errors of that, in points.
    pub error_percent: f64,
    /// Seeds with which it was better.
    pub better: usize,
    /// All seeds of the last round.
    pub seeds: usize,
    /// Runs.
    pub runs: u64,
    /// Figures now and then.
    pub figures: Vec<Figure>,
    /// Where the time goes ([`crate::parts`]), and how long operations took when they were
    /// recorded.
    pub parts: Vec<Figure>,
    /// Single changes, best first.
    pub tried: Vec<Attempt>,
}

fn name(candidate: &Candidate) -> String {
    if candidate.is_empty() {
        return "as it is".into();
    }
    candidate.iter().map(|c| format!("{}={}", c.name, c.value)).collect::<Vec<_>>().join(" ")
}

/// A gain that is a logarithm, in percent.
fn percent(gain: f64) -> f64 {
    (gain.exp() - 1.0) * 100.0
}

/// The runs so far.
struct Trials<'s, 'm> {
    search: &'s Search,
    goal: Goal,
    seen: BTreeMap<String, Vec<Seen>>,
    means: Means<'m>,
    runs: u64,
    planned: u64,
}

impl Trials<'_, '_> {
    /// Has all of them run with the first `seeds` seeds.
    fn run(&mut self, candidates: &[Candidate], seeds: usize) -> Result<Vec<Tried>> {
        let mut missing: BTreeMap<usize, Vec<Candidate>> = BTreeMap::new();
        for candidate in candidates {
            let have = self.seen.get(&name(candidate)).map_or(0, Vec::len);
            let list = missing.entry(have).or_default();
            if have < seeds && !list.contains(candidate) {
                list.push(candidate.clone());
            }
        }
        for (have, list) in missing.into_iter().filter(|(have, list)| *have < seeds && !list.is_empty()) {
            let study = self.study(&list);
            let first = self.search.first;
            let (before, planned) = (self.runs, self.planned);
            let progress = &mut *self.means.progress;
            let results = study.run(
                RunOpts {
                    seeds: first + have as u64..first + seeds as u64,
                    jobs: self.means.jobs,
                    memory: MEMORY_MAX,
                    engine: self.means.engine,
                    state: self.means.state.as_deref_mut(),
                },
                &mut |at| progress(before + at.done, planned.max(before + at.total)),
            )?;
            self.runs += (list.len() * (seeds - have)) as u64;
            for (name, runs) in results.cells {
                self.seen.entry(name).or_default().extend(runs);
            }
        }
        Ok(candidates.iter().map(|c| self.tried(c)).collect())
    }

    fn study(&self, candidates: &[Candidate]) -> Study {
        let cell = |candidate: &Candidate| {
            let (load, settings, own) = (self.search.load.clone(), self.search.settings.clone(), candidate.clone());
            Cell {
                name: name(candidate),
                params: self.search.what.clone(),
                memory: self.search.load.memory(),
                weight: 1,
                run: Box::new(move |seed| load.run(&own, &settings, seed)),
            }
        };
        Study {
            name: "advise",
            title: "Advice",
            about: String::new(),
            cells: candidates.iter().map(cell).collect(),
            rows: Vec::new(),
            headings: crate::study::PUBLISHED,
            draw: Box::new(|_| Vec::new()),
        }
    }

    fn tried(&self, candidate: &Candidate) -> Tried {
        let runs = self.seen.get(&name(candidate)).map_or(&[][..], Vec::as_slice);
        Tried { candidate: candidate.clone(), values: runs.iter().map(|seen| self.goal.value(seen)).collect() }
    }

    /// The mean of a figure; None if no run has it.
    fn mean(&self, candidate: &Candidate, figure: &str) -> Option<f64> {
        let runs = self.seen.get(&name(candidate))?;
        let values: Vec<f64> = runs.iter().filter_map(|seen| seen.values.get(figure).copied()).collect();
        (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
    }

    /// Gains of `a` over `b` in what is to be good, seed by seed.
    fn gains(&self, a: &Candidate, b: &Candidate) -> Vec<f64> {
        let of = |c: &Candidate| self.seen.get(&name(c)).map_or(&[][..], Vec::as_slice);
        of(a).iter().zip(of(b)).map(|(a, b)| self.goal.gain(a) - self.goal.gain(b)).collect()
    }

    /// Limits that the mean does not hold.
    fn missed(&self, candidate: &Candidate) -> Vec<String> {
        let mut mean = Seen::default();
        for limit in &self.goal.limits {
            if let Some(value) = self.mean(candidate, &limit.figure) {
                mean.set(&limit.figure, value);
            }
        }
        self.goal.missed(&mean).into_iter().map(|limit| limit.text.clone()).collect()
    }

    /// The best of `candidates`, best first, after all rounds from `first` seeds on; at most two.
    fn halve(&mut self, mut candidates: Vec<Candidate>, first: usize, last: usize) -> Result<Vec<Tried>> {
        let plan: Vec<Round> = rounds(candidates.len(), first, last);
        let mut kept = Vec::new();
        for (n, round) in plan.iter().enumerate() {
            let base = self.run(&[Vec::new()], round.seeds)?.remove(0);
            let tried = self.run(&candidates, round.seeds)?;
            let next = plan.get(n + 1).map_or(2, |next| next.keep);
            kept = best(&tried, &base, next);
            candidates = kept.iter().map(|t| t.candidate.clone()).collect();
            if candidates.is_empty() {
                break;
            }
        }
        Ok(kept)
    }
}

impl Search {
    /// Searches.
    ///
    /// # Errors
    /// `Invalid` if the goal is none or there is nothing to try; those of runs.
    pub fn run(&self, means: Means) -> Result<Advice> {
        let goal = Goal::parse(&self.goal)?;
        if self.changes.is_empty() {
            return Err(Error::invalid("there is nothing that could be changed"));
        }
        let singles: Vec<Candidate> = self.changes.iter().map(|change| vec![change.clone()]).collect();
        let seeds = self.seeds.max(1);
        // Singles, the better half of them again, combinations, and what each change adds.
        let planned = singles.len() + 1 + singles.len() + 2 * SECOND + 4 * seeds + 3 * seeds;
        let mut trials = Trials { search: self, goal, seen: BTreeMap::new(), means, runs: 0, planned: planned as u64 };
        let base = Vec::new();

        let first = trials.run(std::slice::from_ref(&base), 1)?.remove(0);
        let tried = trials.run(&singles, 1)?;
        let half: Vec<Candidate> =
            best(&tried, &first, singles.len().div_ceil(2)).into_iter().map(|t| t.candidate).collect();
        let second = SECOND.min(seeds);
        let now = trials.run(std::slice::from_ref(&base), second)?.remove(0);
        let tried = trials.run(&half, second)?;
        let good = best(&tried, &now, half.len());
        let mut finals = combine(&good, &now);
        finals.extend(good.iter().take(SINGLES).map(|t| t.candidate.clone()));
        let found = if finals.is_empty() { Vec::new() } else { trials.halve(finals, second, seeds)? };
        let now = trials.run(std::slice::from_ref(&base), seeds)?.remove(0);
        let mut winner = found.first().map(|t| t.candidate.clone()).unwrap_or_default();

        // What the others are as good without goes, one after the other.
        let mut adds = BTreeMap::new();
        while winner.len() > 1 {
            let without = |n: usize| {
                let mut rest = winner.clone();
                rest.remove(n);
                rest
            };
            let rest: Vec<Candidate> = (0..winner.len()).map(without).collect();
            let whole = trials.run(std::slice::from_ref(&winner), seeds)?.remove(0);
            let tried = trials.run(&rest, seeds)?;
            adds = tried.iter().zip(&winner).map(|(t, c)| (c.name.clone(), t.candidate.clone())).collect();
            let least = tried.iter().enumerate().min_by(|a, b| whole.gain(a.1).total_cmp(&whole.gain(b.1)));
            match least {
                Some((n, t)) if whole.gain(t) < NEEDLESS => drop(winner.remove(n)),
                _ => break,
            }
        }
        let whole = trials.run(std::slice::from_ref(&winner), seeds)?.remove(0);
        if let [only] = &winner[..] {
            adds = BTreeMap::from([(only.name.clone(), Vec::new())]);
        }
        Ok(self.advice(&trials, &singles, &winner, &whole, &now, &adds))
    }

    fn advice(
        &self,
        trials: &Trials,
        singles: &[Candidate],
        winner: &Candidate,
        whole: &Tried,
        now: &Tried,
        without: &BTreeMap<String, Candidate>,
    ) -> Advice {
        let found = verdict(&whole.gains(now));
        let then = if found.change { winner.clone() } else { Vec::new() };
        let (pool, file_system) = &self.names;
        let mean = |gains: &[f64]| percent(Spread::of(gains).map_or(0.0, |s| s.mean));
        let advised = |c: &Change| {
            let rest = without.get(&c.name).cloned().unwrap_or_default();
            Advised {
                name: c.name.clone(),
                before: c.before.clone(),
                value: c.value.clone(),
                cost: c.cost.clone(),
                adds_percent: mean(&trials.gains(winner, &rest)),
                needed_for: trials.missed(&rest),
                lines: lines(c, if c.kind == Kind::Property { file_system } else { pool }),
            }
        };
        let mut tried: Vec<(f64, Attempt)> = singles
            .iter()
            .map(|single| {
                let tried = trials.tried(single);
                let attempt = Attempt {
                    name: name(single),
                    gain_percent: mean(&trials.gains(single, &Vec::new())),
                    misses: trials.missed(single),
                    seeds: tried.values.len(),
                };
                (tried.gain(now), attempt)
            })
            .collect();
        tried.sort_by(|a, b| b.0.total_cmp(&a.0));
        let tried = tried.into_iter().map(|(_, attempt)| attempt).collect();
        let plain = verdict(&trials.gains(winner, &Vec::new()));
        let shown = ["ops_per_s", "bytes_per_s", "p50_us", "p99_us", "p999_us", "read_p99_us", "write_p99_us"];
        let mut names: Vec<String> = shown.map(String::from).to_vec();
        let own = trials.goal.limits.iter().map(|l| l.figure.clone()).chain([trials.goal.figure().to_string()]);
        own.for_each(|own| {
            if !names.contains(&own) {
                names.push(own)
            }
        });
        let figure = |name: String| {
            let (now, then) = (trials.mean(&Vec::new(), &name)?, trials.mean(&then, &name)?);
            Some(Figure { name, now, then })
        };
        let others = ["mean_us", "recorded_p50_us", "recorded_p99_us"].into_iter().map(String::from);
        Advice {
            goal: self.goal.clone(),
            missed_now: trials.missed(&Vec::new()),
            missed_then: trials.missed(&then),
            changes: then.iter().map(advised).collect(),
            best_found: name(winner),
            gain_percent: percent(plain.gain),
            error_percent: if plain.error.is_finite() { plain.error * 100.0 } else { 100.0 },
            better: found.better,
            seeds: found.seeds,
            runs: trials.runs,
            figures: names.into_iter().filter_map(figure).collect(),
            parts: others.chain(parts::figures()).filter_map(figure).collect(),
            tried,
        }
    }
}

impl Advice {
    /// The advice as text.
    pub fn text(&self) -> String {
        let mut out = format!("goal: {}\n", self.goal);
        let sure = format!(
            "{:+.1} % (two standard errors: {:.1} points), better with {} of {} seeds",
            self.gain_percent, self.error_percent, self.better, self.seeds
        );
        if self.changes.is_empty() {
            let _ = writeln!(out, "leave it: nothing that was tried is surely better by 3 % or more");
            if self.best_found != "as it is" {
                let _ = writeln!(out, "best found: {}: {sure}", self.best_found);
            }
        } else {
            let _ = writeln!(out, "change {}: {sure}", self.changes.len());
            for c in &self.changes {
                let _ =
                    writeln!(out, "\n{}: {} in place of {}, adds {:+.1} %", c.name, c.value, c.before, c.adds_percent);
                if !c.needed_for.is_empty() {
                    let _ = writeln!(out, "  without it the goal is missed: {}", c.needed_for.join(", "));
                }
                let _ = writeln!(out, "  costs: {}", c.cost);
                for line in &c.lines {
                    let _ = writeln!(out, "  {line}");
                }
            }
        }
        for (when, missed) in [("now", &self.missed_now), ("then", &self.missed_then)] {
            if !missed.is_empty() && (when == "now" || !self.changes.is_empty()) {
                let _ = writeln!(out, "\n{when} the goal is missed: {}", missed.join(", "));
            }
        }
        let _ = writeln!(out, "\n{:<14}{:>14}{:>14}{:>9}", "", "now", "then", "");
        for f in &self.figures {
            let change = if f.now > 0.0 { (f.then / f.now - 1.0) * 100.0 } else { 0.0 };
            let _ = writeln!(out, "{:<14}{:>14.0}{:>14.0}{change:>+8.1} %", f.name, f.now, f.then);
        }
        let _ = writeln!(out, "\n{} runs; single changes, best first:", self.runs);
        for t in self.tried.iter().take(10) {
            let s = if t.seeds == 1 { "" } else { "s" };
            let misses = if t.misses.is_empty() { String::new() } else { format!(", misses {}", t.misses.join(", ")) };
            let _ = writeln!(out, "{:>+8.1} %  {} ({} seed{s}{misses})", t.gain_percent, t.name, t.seeds);
        }
        out
    }
}
