//! Seeds: what every profile does with its command line, its threads, its state file and its
//! counts.
//!
//! A profile takes a range of seeds ([`range`]), runs each in one of `--jobs` threads until
//! `--seconds` are over ([`spread`]), counts the verdicts and prints those that are not good
//! ([`count`]). With `--state FILE` the seeds that were good are remembered with their figures, and
//! are not run again ([`Seeds`]).

use std::collections::BTreeMap;
use std::io::Write;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use ztest::campaign::Tally;
use ztest::judge::Verdict;
use ztest::lab::{SHAPES, Shape};

pub(crate) fn range(text: &str) -> Option<(u64, u64)> {
    match text.split_once("..") {
        Some((a, b)) => Some((a.parse().ok()?, b.parse().ok()?)),
        None => Some((0, text.parse().ok()?)),
    }
}

pub(crate) struct Args(pub(crate) Vec<String>);

impl Args {
    pub(crate) fn value(&self, name: &str) -> Option<&str> {
        let at = self.0.iter().position(|a| a == name)?;
        self.0.get(at + 1).map(String::as_str)
    }
    pub(crate) fn number(&self, name: &str, default: u64) -> u64 {
        self.value(name).and_then(|v| v.parse().ok()).unwrap_or(default)
    }
    /// The layout of `--layout NAME`.
    pub(crate) fn shape(&self) -> Option<&'static Shape> {
        self.value("--layout").and_then(|name| SHAPES.iter().find(|s| s.name == name))
    }
}

/// The moment after which no seed begins, from `--seconds`.
pub(crate) struct Limit(Option<Instant>);

impl Limit {
    pub(crate) fn of(args: &Args) -> Limit {
        let seconds = args.value("--seconds").and_then(|v| v.parse().ok());
        Limit(seconds.map(|s| Instant::now() + Duration::from_secs(s)))
    }
    pub(crate) fn is_over(&self) -> bool {
        self.0.is_some_and(|at| Instant::now() >= at)
    }
}

/// Calls `f` for every seed, in `--jobs` threads, until `--seconds` are over.
pub(crate) fn spread(args: &Args, from: u64, to: u64, f: impl Fn(u64) + Sync) {
    let (next, limit) = (AtomicU64::new(from), Limit::of(args));
    std::thread::scope(|scope| {
        for _ in 0..args.number("--jobs", 2).max(1) {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= to || (seed > from && limit.is_over()) {
                        return;
                    }
                    f(seed);
                }
            });
        }
    });
}

/// Counts the verdict of a seed and prints it unless good.
pub(crate) fn count(tally: &mut Tally, seed: u64, shape: &str, verdict: Result<Verdict, String>) {
    match verdict {
        Ok(Verdict::Good) => {}
        Ok(Verdict::Missing(what)) => {
            tally.missing += 1;
            println!("MISSING seed {seed}: {what}");
        }
        Ok(Verdict::Bad(why)) | Err(why) => {
            tally.bad += 1;
            println!("BAD seed {seed} ({shape}): {why}");
        }
    }
}

/// The results of earlier runs from the state file: one line `good SEED FIGURE...` for each seed
/// without a finding.
pub(crate) fn done_before(path: Option<&str>) -> BTreeMap<u64, Vec<u64>> {
    let text = path.and_then(|path| std::fs::read_to_string(path).ok()).unwrap_or_default();
    let numbers = |l: &str| l.split_whitespace().map(|n| n.parse().ok()).collect::<Option<Vec<u64>>>();
    let lines = text.lines().filter_map(|l| numbers(l.strip_prefix("good ")?));
    lines.filter_map(|mut l| (!l.is_empty()).then(|| (l.remove(0), l))).collect()
}

/// Records a seed that is done.
pub(crate) fn remember(path: Option<&str>, line: &str) {
    let Some(path) = path else { return };
    let file = std::fs::OpenOptions::new().create(true).append(true).open(path);
    if let Err(e) = file.and_then(|mut f| writeln!(f, "good {line}")) {
        eprintln!("{path}: {e}");
    }
}

/// The result of a seed, of which a panic is an error.
pub(crate) fn caught<T>(run: impl FnOnce() -> Result<T, String> + std::panic::UnwindSafe) -> Result<T, String> {
    let got = std::panic::catch_unwind(run);
    got.unwrap_or_else(|p| Err(format!("panic: {}", ztest::campaign::panic_text(&*p))))
}

/// The totals of a profile with a state file, and their last line.
pub(crate) struct Seeds<'a> {
    state: Option<&'a str>,
    done: BTreeMap<u64, Vec<u64>>,
    total: Mutex<(Tally, Vec<u64>)>,
}

impl<'a> Seeds<'a> {
    pub(crate) fn new(args: &'a Args, figures: usize) -> Seeds<'a> {
        let state = args.value("--state");
        Seeds { state, done: done_before(state), total: Mutex::new((Tally::default(), vec![0; figures])) }
    }
    /// Runs a seed unless it is done: `run` gives the verdict and the figures.
    pub(crate) fn run(&self, seed: u64, shape: &str, run: impl FnOnce() -> (Result<Verdict, String>, Vec<u64>)) {
        let (verdict, figures) = match self.done.get(&seed) {
            Some(figures) => (None, figures.clone()),
            None => {
                let (verdict, figures) = run();
                (Some(verdict), figures)
            }
        };
        let mut total = self.total.lock().unwrap_or_else(|e| e.into_inner());
        total.0.seeds += 1;
        for (sum, n) in total.1.iter_mut().zip(&figures) {
            *sum += n;
        }
        let Some(verdict) = verdict else { return };
        if verdict == Ok(Verdict::Good) {
            let words: Vec<String> = std::iter::once(&seed).chain(&figures).map(u64::to_string).collect();
            remember(self.state, &words.join(" "));
        }
        count(&mut total.0, seed, shape, verdict);
    }
    pub(crate) fn end(self, names: &[&str]) -> bool {
        let (tally, figures) = self.total.into_inner().unwrap_or_else(|e| e.into_inner());
        let figures: Vec<String> = names.iter().zip(figures).map(|(name, n)| format!("{name}={n}")).collect();
        println!("{}", figures.join(" "));
        println!("seeds={} bad={} missing={}", tally.seeds, tally.bad, tally.missing);
        tally.bad + tally.missing == 0
    }
}
