//! What all studies with a table have in common: their options, progress, the state file, and the
//! three forms of the report.

use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::time::Instant;

use base::{Error, Result};
use lab::device::Device;
use lab::study::{MEMORY_MAX, Progress, Report, Results, RunOpts, State, Study, html};

use super::print_report;
use crate::Done;
use crate::opts::Parsed;
use crate::progress::Bar;

/// Seeds of a study by default: enough for a spread.
const SEEDS: u64 = 10;
/// Most seeds.
pub(crate) const SEEDS_MAX: u64 = 10_000;
/// Most threads of this process.
pub(crate) const JOBS_MAX: u64 = 256;

/// Letters and long options of every study; those of one study come before them.
macro_rules! study_options {
    ($($own:expr),* $(,)?) => {
        &[
            $($own,)*
            ("seeds", true, 'n'),
            ("seed", true, 'S'),
            ("jobs", true, 'J'),
            ("json", false, 'j'),
            ("html", true, 'H'),
            ("state", true, 'F'),
        ]
    };
}
pub(crate) use study_options;

/// A number from `least` to `most`; `old` if the option is not given.
pub(crate) fn number(p: &Parsed, letter: char, name: &str, old: u64, least: u64, most: u64) -> Result<u64> {
    match p.value(letter).map(str::parse::<u64>) {
        None => Ok(old),
        Some(Ok(n)) if (least..=most).contains(&n) => Ok(n),
        Some(_) => {
            let text = p.value(letter).unwrap_or_default();
            Err(Error::invalid(format!("--{name}: '{text}' is not a number from {least} to {most}")))
        }
    }
}

/// The numbers of a list with commas, ascending and each once; `old` if the option is not given.
/// `what` says in an error what each has to be.
pub(crate) fn numbers(
    p: &Parsed,
    letter: char,
    name: &str,
    old: Vec<u32>,
    bounds: RangeInclusive<u32>,
    what: &str,
) -> Result<Vec<u32>> {
    let Some(list) = p.value(letter) else { return Ok(old) };
    let one = |text: &str| {
        let bad = || Error::invalid(format!("--{name}: '{text}' is not {what}"));
        text.trim().parse::<u32>().ok().filter(|n| bounds.contains(n)).ok_or_else(bad)
    };
    let mut all = list.split(',').map(one).collect::<Result<Vec<_>>>()?;
    all.sort_unstable();
    all.dedup();
    Ok(all)
}

/// A size such as 64M; `old` if the option is not given.
pub(crate) fn size(p: &Parsed, letter: char, name: &str, old: u64) -> Result<u64> {
    let parse = |text| dsl::props::parse_size(text).map_err(|e| Error::invalid(format!("--{name}: {e}")));
    p.value(letter).map_or(Ok(old), parse)
}

/// The device that `--model` names.
pub(crate) fn device(p: &Parsed) -> Result<Option<Device>> {
    p.value('M').map(Device::of).transpose()
}

/// Runs the study and prints its report; `seeds` are those of the study's default.
pub(crate) fn run(p: &Parsed, study: &Study, seeds: Option<u64>) -> Done {
    let first = number(p, 'S', "seed", 0, 0, u64::from(u32::MAX))?;
    let seeds = number(p, 'n', "seeds", seeds.unwrap_or(SEEDS), 1, SEEDS_MAX)?;
    let cores = std::thread::available_parallelism().map_or(1, |n| n.get() as u64);
    let jobs = number(p, 'J', "jobs", cores, 1, JOBS_MAX)? as usize;
    // A page that cannot be written is better known before the study than after it.
    let page = p.value('H').map(|path| create(Path::new(path)).map(|file| (path, file))).transpose()?;
    let engine = engine()?;
    let own = p.value('F').map(PathBuf::from);
    let mut state = match own.clone().or_else(|| cache_file(study.name)) {
        Some(path) => Some(State::open(&path)?),
        None => None,
    };
    let mut bar = Bar::new();
    let opts =
        RunOpts { seeds: first..first + seeds, jobs, memory: MEMORY_MAX, engine: &engine, state: state.as_mut() };
    let results = study.run(opts, &mut |at| show(&mut bar, study.name, at))?;
    bar.clear();
    let report = Report::of(study, &results);
    if let Some((path, mut file)) = page {
        let text = page_of(study, &results, &report);
        let written = std::io::Write::write_all(&mut file, text.as_bytes());
        written.map_err(|e| Error::invalid(format!("the page {path} cannot be written: {e}")))?;
    }
    print_report(p, || report.json(), || report.text())?;
    // A file that the user named stays: the study may be repeated with more seeds.
    match state.filter(|_| own.is_none()) {
        Some(state) => Ok(state.remove()?),
        None => Ok(()),
    }
}

fn create(path: &Path) -> Result<std::fs::File> {
    std::fs::File::create(path).map_err(|e| Error::invalid(format!("the page {} cannot be made: {e}", path.display())))
}

fn page_of(study: &Study, results: &Results, report: &Report) -> String {
    let args: Vec<String> = std::env::args_os().skip(1).map(|a| a.to_string_lossy().into_owned()).collect();
    html::page(study.title, &study.about, &format!("weir {}", args.join(" ")), report, &(study.draw)(results))
}

fn show(bar: &mut Bar, name: &str, at: Progress) {
    let left = at.left.map_or(String::new(), |t| format!(", {} left", span(t.as_secs())));
    let what = format!("{name}: {} of {} runs{left}", at.done, at.total);
    bar.show(&what, (at.share * 1000.0) as u64, 1000);
}

/// The time that is left if it goes on as since `started`, with a comma before it; nothing in the
/// first second.
pub(crate) fn left(started: Instant, done: u64, total: u64) -> String {
    let elapsed = started.elapsed();
    match total.checked_sub(done) {
        Some(rest) if done > 0 && elapsed.as_secs() > 0 => {
            format!(", {} left", span(elapsed.mul_f64(rest as f64 / done as f64).as_secs()))
        }
        _ => String::new(),
    }
}

/// Seconds for people.
fn span(seconds: u64) -> String {
    match seconds {
        0..60 => format!("{seconds} s"),
        60..3600 => format!("{} min {:02} s", seconds / 60, seconds % 60),
        _ => format!("{} h {:02} min", seconds / 3600, seconds / 60 % 60),
    }
}

/// Identifies this program: runs of another build are not taken over.
pub(crate) fn engine() -> Result<String> {
    let bad = |e: std::io::Error| Error::invalid(format!("this program cannot be read: {e}"));
    let bytes = std::fs::read(std::env::current_exe().map_err(bad)?).map_err(bad)?;
    let words = codec::sha256(&bytes).0;
    Ok(format!("{} {:016x}{:016x}", env!("CARGO_PKG_VERSION"), words[0], words[1]))
}

/// Where finished runs of a study are kept until it ends; None if there is no such place.
pub(crate) fn cache_file(name: &str) -> Option<PathBuf> {
    let var = |name| std::env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
    let base = var("XDG_CACHE_HOME").filter(|p| p.is_absolute()).or_else(|| Some(var("HOME")?.join(".cache")))?;
    // A home that cannot be written to only means that nothing is kept.
    let dir = base.join("weir/lab");
    std::fs::create_dir_all(&dir).is_ok().then(|| dir.join(format!("{name}.state")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_are_short() {
        assert_eq!([0, 59, 61, 3599, 3661].map(span), ["0 s", "59 s", "1 min 01 s", "59 min 59 s", "1 h 01 min"]);
    }
}
