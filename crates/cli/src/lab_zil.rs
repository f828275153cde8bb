//! `weir lab zil`: the commit policies of the intent log side by side, as published and as measured
//! here.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use ::zil::CommitPolicy;
use base::{Error, Result};
use lab::zil::{Cell, Medium, Outcome, Rate, Report, Row};
use lab::zil_study::{self, Params, Sweep};

use crate::Done;
use crate::lab::study::{self, JOBS_MAX, left, number, study_options};
use crate::lab::{parse_study, print_report};
use crate::opts::Parsed;
use crate::progress::Bar;

/// Before and after.
const POLICIES: [CommitPolicy; 2] = [CommitPolicy::Batched, CommitPolicy::Batchless2017];
/// Pause between two looks at the progress.
const TICK: Duration = Duration::from_millis(100);
/// Seeds of a table by default: it has many cells.
const SEEDS: u64 = 1;

/// Runs `weir lab zil ARGS`.
pub fn run(args: &[String]) -> Done {
    let long: &'static [(&'static str, bool, char)] = study_options![
        ("disks", true, 'd'),
        ("media", true, 'm'),
        ("rate", true, 'r'),
        ("threads", true, 't'),
        ("seconds", true, 's'),
        ("sweep", true, 'W'),
        ("model", true, 'M'),
    ];
    let p = parse_study(args, "d:m:r:t:s:W:M:n:S:J:jH:F:", long, "zil")?;
    // One run of each cell, or a table over seeds.
    let table = ['W', 'n', 'H', 'F'].iter().any(|&letter| p.has(letter));
    let params = params(&p, table)?;
    if table {
        return study::run(&p, &zil_study::study(&params)?, Some(SEEDS));
    }
    let cells = cells(&params, number(&p, 'S', "seed", 0, 0, u64::from(u32::MAX))?)?;
    let jobs = number(&p, 'J', "jobs", 1, 1, JOBS_MAX)? as usize;
    let report = Report::of(run_parallel(cells, jobs)?);
    print_report(&p, || serde_json::to_string(&report), || show(&report))
}

/// The parts of a list with commas, each once.
fn list<T: PartialEq>(text: &str, name: &str, one: impl Fn(&str) -> Result<T>) -> Result<Vec<T>> {
    let mut out = Vec::new();
    for part in text.split(',') {
        let value = one(part.trim()).map_err(|e| Error::invalid(format!("--{name}: {e}")))?;
        if !out.contains(&value) {
            out.push(value);
        }
    }
    Ok(out)
}

fn count(text: &str) -> Result<u32> {
    match text.parse::<u32>() {
        Ok(n) if n > 0 => Ok(n),
        _ => Err(Error::invalid(format!("'{text}' is not a number above 0"))),
    }
}

/// What the options ask for. A table has both rates unless one is chosen.
fn params(p: &Parsed, table: bool) -> Result<Params> {
    let sweep = Sweep::parse(p.value('W').unwrap_or("policies"))?;
    let threads = sweep.threads().iter().map(u32::to_string).collect::<Vec<_>>().join(",");
    let rates = if table { "max,64" } else { "max" };
    Ok(Params {
        media: list(p.value('m').unwrap_or("hdd,ssd"), "media", Medium::parse)?,
        disks: list(p.value('d').unwrap_or("1,8"), "disks", count)?,
        rates: list(p.value('r').unwrap_or(rates), "rate", Rate::parse)?,
        threads: list(p.value('t').unwrap_or(&threads), "threads", count)?,
        seconds: number(p, 's', "seconds", lab::zil::SECONDS, 1, 3600)?,
        device: study::device(p)?,
        sweep,
    })
}

/// The runs that the options ask for.
fn cells(params: &Params, seed: u64) -> Result<Vec<Cell>> {
    let mut cells = Vec::new();
    for &medium in &params.media {
        for &rate in &params.rates {
            for &disks in &params.disks {
                for &threads in &params.threads {
                    for policy in POLICIES {
                        let (seconds, device) = (params.seconds, params.device.clone());
                        let (timeout_pct, log_device) = (None, false);
                        let cell = Cell {
                            medium,
                            disks,
                            threads,
                            policy,
                            rate,
                            seconds,
                            seed,
                            timeout_pct,
                            log_device,
                            device,
                        };
                        cell.check()?;
                        cells.push(cell);
                    }
                }
            }
        }
    }
    Ok(cells)
}

/// Runs cells on `jobs` threads of this process, each in a world of its own: the number of threads
/// does not change the results.
fn run_parallel(cells: Vec<Cell>, jobs: usize) -> Result<Vec<(Cell, Outcome)>> {
    let next = AtomicUsize::new(0);
    let done: Mutex<BTreeMap<usize, Result<Outcome>>> = Mutex::default();
    // Cells with many writers take longest, so they come first.
    let mut order: Vec<usize> = (0..cells.len()).collect();
    order.sort_by_key(|&i| std::cmp::Reverse(cells[i].threads));
    std::thread::scope(|scope| {
        let work = || {
            while let Some(&at) = order.get(next.fetch_add(1, Ordering::Relaxed)) {
                let seen = cells[at].run();
                done.lock().unwrap_or_else(PoisonError::into_inner).insert(at, seen);
            }
        };
        let workers: Vec<_> = (0..jobs.min(cells.len())).map(|_| scope.spawn(work)).collect();
        let (started, total) = (Instant::now(), cells.len() as u64);
        let mut bar = Bar::new();
        loop {
            let over = done.lock().unwrap_or_else(PoisonError::into_inner).len() as u64;
            if over == total || workers.iter().all(std::thread::ScopedJoinHandle::is_finished) {
                break;
            }
            bar.show(&format!("zil: {over} of {total} runs{}", left(started, over, total)), over, total);
            std::thread::sleep(TICK);
        }
    });
    let done = done.into_inner().unwrap_or_else(PoisonError::into_inner);
    done.into_iter().map(|(at, seen)| Ok((cells[at].clone(), seen?))).collect()
}

fn show(r: &Report) -> String {
    let mut out = String::new();
    let mut rows = &r.rows[..];
    while let Some(first) = rows.first() {
        let same = |row: &&Row| (row.medium, &row.rate, row.disks) == (first.medium, &first.rate, first.disks);
        let (these, rest) = rows.split_at(rows.iter().take_while(same).count());
        rows = rest;
        let max = first.rate == "max";
        let what = if max { "writes a second".into() } else { format!("mean latency in us at {}/s each", first.rate) };
        let _ = writeln!(out, "{}, {} disk{}: {what}", first.medium.name(), first.disks, plural(first.disks));
        let _ = writeln!(out, "threads   batched batchless  change   published: before    after  change");
        for row in these {
            let _ = write!(
                out,
                "{:>7} {:>9.0} {:>9.0} {:>+6.1}%",
                row.threads, row.batched, row.batchless, row.change_percent
            );
            let known = (row.published_batched, row.published_batchless, row.published_change_percent);
            if let (Some(before), Some(after), Some(change)) = known {
                let _ = write!(out, "          {before:>9.0} {after:>8.0} {change:>+6.1}%");
            }
            out.push('\n');
        }
        let pick =
            |m: &BTreeMap<&'static str, BTreeMap<u32, f64>>| Some(*m.get(first.medium.name())?.get(&first.disks)?);
        let (mean, known) = if max {
            (pick(&r.gain_percent_by_disks), pick(&r.published_gain_percent_by_disks))
        } else {
            (pick(&r.latency_change_percent_by_disks), pick(&r.published_latency_change_percent_by_disks))
        };
        if let Some(mean) = mean {
            let _ = write!(out, "average {mean:>+26.1}%");
            if let Some(known) = known {
                let _ = write!(out, "{known:>+35.1}%");
            }
            out.push('\n');
        }
        if !rows.is_empty() {
            out.push('\n');
        }
    }
    out
}

fn plural(n: u32) -> &'static str {
    if n == 1 { "" } else { "s" }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_taken_apart_and_checked() {
        assert_eq!(list("1,8,8", "disks", count).expect("a list"), [1, 8]);
        for bad in ["", "1,,2", "0", "x", "1;2"] {
            assert!(list(bad, "disks", count).is_err(), "{bad}");
        }
        assert_eq!(list("ssd,hdd", "media", Medium::parse).expect("a list"), [Medium::Ssd, Medium::Hdd]);
        assert!(list("tape", "media", Medium::parse).is_err());
        assert_eq!(list("max,64", "rate", Rate::parse).expect("a list"), [Rate::Max, Rate::PerSecond(64)]);
        assert!(list("0", "rate", Rate::parse).is_err() && list("fast", "rate", Rate::parse).is_err());
    }
}
