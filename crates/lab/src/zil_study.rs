//! `weir lab zil --seeds N`, `--html FILE` and `--sweep NAME`: the study of the intent log with a
//! table over seeds.
//!
//! Cells are those of [`crate::zil`], one for each medium, number of disks, rate, number of
//! threads and *variant*. Without a sweep the variants are the policies before and after illumos
//! 8585, judged against the publication: averages as the publication makes them, within the goals
//! of [`goal`]; single cells are shown beside the published ones. A sweep has no publication:
//!
//! * *timeout*: `zfs_commit_timeout_pct` under the policies of 2017 and of today. Today's closes
//!   the block of a lone writer at once, so that for one thread the setting has no effect.
//! * *log*: the log in the pool, and on a log device of flash.

use ::zil::CommitPolicy;
use base::{Error, Result};

use crate::device::Device;
use crate::published;
use crate::study::plot::{Axis, Body, Curve};
use crate::study::{Cell, Lookup, Plot, Results, Row, Rule, Seen, Study};
use crate::zil::{self, Medium, Outcome, Rate, average_as_published, change_percent};

/// Values of `zfs_commit_timeout_pct` in a sweep; 5 was the default in 2017, 10 is today's.
const TIMEOUTS: [u64; 4] = [1, 5, 10, 50];

/// What varies beside disks and threads.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sweep {
    /// The commit policies before and after illumos 8585.
    Policies,
    /// `zfs_commit_timeout_pct`.
    Timeout,
    /// A log device.
    Log,
}

impl Sweep {
    /// By its name.
    ///
    /// # Errors
    /// `Invalid` if there is none.
    pub fn parse(name: &str) -> Result<Sweep> {
        match name {
            "policies" => Ok(Sweep::Policies),
            "timeout" => Ok(Sweep::Timeout),
            "log" => Ok(Sweep::Log),
            _ => Err(Error::invalid(format!("'{name}' cannot be swept: there are policies, timeout and log"))),
        }
    }

    /// The numbers of threads that it has if nothing else is said.
    pub fn threads(self) -> Vec<u32> {
        match self {
            Sweep::Policies => published::THREADS.to_vec(),
            Sweep::Timeout | Sweep::Log => vec![1, 4, 32, 256],
        }
    }

    fn variants(self) -> Vec<Variant> {
        let (old, new, now) = (CommitPolicy::Batched, CommitPolicy::Batchless2017, CommitPolicy::Modern);
        let policy = |policy: CommitPolicy| Variant { name: policy.name().into(), policy, timeout: None, log: false };
        match self {
            Sweep::Policies => [old, new].map(policy).to_vec(),
            Sweep::Timeout => {
                let of = |p: CommitPolicy| {
                    TIMEOUTS.map(|t| Variant { name: timeout_name(p, t), timeout: Some(t), ..policy(p) })
                };
                [of(new), of(now)].concat()
            }
            Sweep::Log => {
                let of = |p| [policy(p), Variant { name: format!("{}, log device", p.name()), log: true, ..policy(p) }];
                [of(old), of(new)].concat()
            }
        }
    }
}

fn timeout_name(policy: CommitPolicy, percent: u64) -> String {
    format!("{}, {percent} %", policy.name())
}

/// What the log is like.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Variant {
    name: String,
    policy: CommitPolicy,
    timeout: Option<u64>,
    log: bool,
}

/// What a study runs.
#[derive(Clone, PartialEq, Debug)]
pub struct Params {
    /// Kinds of disks.
    pub media: Vec<Medium>,
    /// Numbers of disks.
    pub disks: Vec<u32>,
    /// Rates of writers.
    pub rates: Vec<Rate>,
    /// Numbers of writers.
    pub threads: Vec<u32>,
    /// Virtual seconds of a run at most.
    pub seconds: u64,
    /// A device in place of the medium's own.
    pub device: Option<Device>,
    /// What varies.
    pub sweep: Sweep,
}

/// Cells of one kind that differ in threads and variant.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Group {
    medium: Medium,
    disks: u32,
    rate: Rate,
}

impl Group {
    fn name(self) -> String {
        let s = if self.disks == 1 { "" } else { "s" };
        let rate = if self.rate == Rate::Max { "max".into() } else { format!("{}/s", self.rate.name()) };
        format!("{}, {} disk{s}, {rate}", self.medium.name(), self.disks)
    }
    fn cell(self, threads: u32, variant: &str) -> String {
        format!("{}, {threads} threads, {variant}", self.name())
    }
    /// What is compared: its name, its unit, and what it is called.
    fn measure(self) -> (&'static str, &'static str, &'static str) {
        match self.rate {
            Rate::Max => ("iops", "", "writes a second"),
            Rate::PerSecond(_) => ("latency_mean_us", "us", "mean latency"),
        }
    }
    /// The change between two variants in percent.
    fn change(self, look: Lookup, threads: u32, a: &str, b: &str) -> Option<f64> {
        let value = self.measure().0;
        Some(change_percent(look(&self.cell(threads, a), value)?, look(&self.cell(threads, b), value)?))
    }
}

/// How far in points the average change may be from the published one: gains 15; latencies 10 on
/// one disk, 8 on more.
pub fn goal(rate: Rate, disks: u32) -> f64 {
    match (rate, disks) {
        (Rate::Max, _) => 15.0,
        (Rate::PerSecond(_), 1) => 10.0,
        (Rate::PerSecond(_), _) => 8.0,
    }
}

/// The study.
///
/// # Errors
/// `Invalid` if parameters are out of range.
pub fn study(params: &Params) -> Result<Study> {
    let variants = params.sweep.variants();
    let mut groups = Vec::new();
    for &medium in &params.media {
        for &rate in &params.rates {
            groups.extend(params.disks.iter().map(|&disks| Group { medium, disks, rate }));
        }
    }
    let mut cells = Vec::new();
    for group in &groups {
        for &threads in &params.threads {
            for variant in &variants {
                cells.push(cell(params, *group, threads, variant)?);
            }
        }
    }
    let rows = match params.sweep {
        Sweep::Policies => of_policies(params, &groups),
        Sweep::Timeout => of_timeouts(params, &groups, &variants),
        Sweep::Log => of_logs(params, &groups, &variants),
    };
    let disks = params.device.as_ref().map_or("10,000 rpm disks or SAS SSDs".into(), |d| format!("'{}'", d.name));
    let (groups, threads) = (groups, params.threads.clone());
    Ok(Study {
        name: "zil",
        title: "Synchronous writers and the intent log",
        about: format!(
            "Writers with a file each write {} KiB at a time, each durable before the next, on a stripe of {disks}: as fast as they can (max), or so many a second each with the gaps of a Poisson process. Published are the measurements of illumos 8585.",
            zil::BLOCK >> 10
        ),
        cells,
        rows,
        headings: crate::study::PUBLISHED,
        draw: Box::new(move |results| draw(results, &groups, &threads, &variants)),
    })
}

fn cell(params: &Params, group: Group, threads: u32, variant: &Variant) -> Result<Cell> {
    let run = zil::Cell {
        medium: group.medium,
        disks: group.disks,
        threads,
        policy: variant.policy,
        rate: group.rate,
        seconds: params.seconds,
        seed: 0,
        timeout_pct: variant.timeout,
        log_device: variant.log,
        device: params.device.clone(),
    };
    run.check()?;
    Ok(Cell {
        name: group.cell(threads, &variant.name),
        params: format!("{run:?}"),
        memory: memory(group, threads),
        weight: u64::from(threads.min(256)) + 16,
        run: Box::new(move |seed| Ok(seen(&zil::Cell { seed, ..run.clone() }.run()?))),
    })
}

/// Memory of a run, from what runs took: headers of log blocks on the disks (0.56 GiB with 128
/// writers on one SSD), and records on the way, which grow with the rate until the disks limit it.
fn memory(group: Group, threads: u32) -> u64 {
    let each = match (group.medium, group.rate) {
        (Medium::Ssd, Rate::Max) => 6 << 20,
        _ => 1 << 20,
    };
    (192 << 20) + (u64::from(threads) * each).min(3 << 29)
}

fn seen(o: &Outcome) -> Seen {
    let mut seen = Seen::default();
    for (name, value) in [
        ("iops", o.iops),
        ("latency_mean_us", o.latency_mean_us),
        ("latency_p50_us", o.latency_p50_us),
        ("latency_p99_us", o.latency_p99_us),
        ("blocks_per_s", o.blocks_per_s),
        ("waiters_per_block", o.waiters_per_block),
        ("fill_percent", o.fill_percent),
        ("flushes_per_s", o.flushes_per_s),
        ("seconds", o.seconds),
    ] {
        seen.set(name, value);
    }
    seen
}

/// A row with a measure of its own.
fn row(name: String, unit: &'static str, measure: impl Fn(Lookup) -> Option<f64> + Send + Sync + 'static) -> Row {
    Row { measure: Box::new(measure), ..Row::of(name, "", "", unit) }
}

/// Averages first, then cells.
fn of_policies(params: &Params, groups: &[Group]) -> Vec<Row> {
    let [old, new] = [CommitPolicy::Batched, CommitPolicy::Batchless2017].map(CommitPolicy::name);
    let source = "Surya, illumos 8585";
    let mut rows = Vec::new();
    for &group in groups {
        let threads = params.threads.clone();
        let known: Vec<(u32, f64)> = threads
            .iter()
            .filter_map(|&t| {
                let (a, b) = published::value(group.medium, group.rate, group.disks, t)?;
                Some((t, change_percent(a, b)))
            })
            .collect();
        let known = if params.device.is_some() { Vec::new() } else { known };
        let average = row(format!("{}: average change of {}", group.name(), group.measure().2), "%", move |look| {
            let one = |&t: &u32| Some((t, group.change(look, t, old, new)?));
            average_as_published(group.medium, group.rate, &threads.iter().filter_map(one).collect::<Vec<_>>())
        });
        let same = known.len() == params.threads.len();
        rows.push(match average_as_published(group.medium, group.rate, &known).filter(|_| same) {
            Some(mean) => average.published(mean, source, Rule::Within(goal(group.rate, group.disks))),
            None => average,
        });
    }
    for &group in groups {
        let (value, unit, _) = group.measure();
        for &threads in &params.threads {
            let known = published::value(group.medium, group.rate, group.disks, threads);
            let known = known.filter(|_| params.device.is_none());
            let show = |row: Row, figure: Option<f64>| match figure {
                Some(figure) => row.published(figure, source, Rule::None),
                None => row,
            };
            for (variant, figure) in [(old, known.map(|k| k.0)), (new, known.map(|k| k.1))] {
                let name = group.cell(threads, variant);
                rows.push(show(Row::of(name.clone(), name, value, unit).digits(0), figure));
            }
            let name = format!("{}, {threads} threads: change", group.name());
            let change = row(name, "%", move |look| group.change(look, threads, old, new));
            rows.push(show(change, known.map(|(a, b)| change_percent(a, b))));
        }
    }
    rows
}

/// Each cell.
fn each(params: &Params, groups: &[Group], variants: &[Variant]) -> Vec<Row> {
    let mut rows = Vec::new();
    for &group in groups {
        let (value, unit, _) = group.measure();
        for &threads in &params.threads {
            for variant in variants {
                let name = group.cell(threads, &variant.name);
                rows.push(Row::of(name.clone(), name, value, unit).digits(0));
            }
        }
    }
    rows
}

fn of_timeouts(params: &Params, groups: &[Group], variants: &[Variant]) -> Vec<Row> {
    let mut rows = Vec::new();
    let [least, most] = [TIMEOUTS[0], TIMEOUTS[TIMEOUTS.len() - 1]];
    for &group in groups.iter().filter(|_| params.threads.contains(&1)) {
        for (policy, source) in [
            (CommitPolicy::Modern, "the block of a lone writer is closed at once (OpenZFS 2.2)"),
            (CommitPolicy::Batchless2017, ""),
        ] {
            let [a, b] = [least, most].map(|t| timeout_name(policy, t));
            let what = group.measure().2;
            let name = format!("{}, 1 thread, {}: {what}, {least} to {most} %", group.name(), policy.name());
            let change = row(name, "%", move |look| group.change(look, 1, &a, &b));
            let judged = policy == CommitPolicy::Modern;
            rows.push(if judged { change.shape(source, -5.0, 5.0) } else { change });
        }
    }
    rows.extend(each(params, groups, variants));
    rows
}

fn of_logs(params: &Params, groups: &[Group], variants: &[Variant]) -> Vec<Row> {
    let mut rows = Vec::new();
    for &group in groups {
        for &threads in &params.threads {
            for pair in variants.chunks(2) {
                let [a, b] = [pair[0].name.clone(), pair[1].name.clone()];
                let name = format!("{}, {threads} threads, {a}: change by a log device", group.name());
                let change = row(name, "%", move |look| group.change(look, threads, &a, &b));
                let max = threads == 1 && group.rate == Rate::Max && group.medium == Medium::Hdd;
                let source = "one writer waits half a turn and more on a disk, a fifth of a millisecond on flash";
                rows.push(if max { change.shape(source, 100.0, f64::INFINITY) } else { change });
            }
        }
    }
    rows.extend(each(params, groups, variants));
    rows
}

fn draw(results: &Results, groups: &[Group], threads: &[u32], variants: &[Variant]) -> Vec<Plot> {
    let mut plots = Vec::new();
    for &group in groups {
        let (value, unit, what) = group.measure();
        let known = |after: bool| {
            let points = threads.iter().filter_map(|&t| {
                let (a, b) = published::value(group.medium, group.rate, group.disks, t)?;
                Some((f64::from(t), if after { b } else { a }))
            });
            points.collect::<Vec<_>>()
        };
        let mut curves: Vec<Curve> = variants
            .iter()
            .map(|v| {
                let point = |&t: &u32| Some((f64::from(t), results.spread(&group.cell(t, &v.name), value)?.mean));
                Curve { name: v.name.clone(), points: threads.iter().filter_map(point).collect(), dots: false }
            })
            .collect();
        if let [_, _] = variants {
            for (name, after) in [("published before", false), ("published after", true)] {
                let points = known(after);
                if !points.is_empty() {
                    curves.push(Curve { name: name.into(), points, dots: true });
                }
            }
        }
        let y = if unit.is_empty() { what.to_string() } else { format!("{what}, {unit}") };
        plots.push(Plot { title: group.name(), x: Axis::log("threads"), y: Axis::log(&y), body: Body::Curves(curves) });
    }
    plots
}

#[cfg(test)]
mod tests {
    use super::*;

    fn params(sweep: Sweep) -> Params {
        Params {
            media: vec![Medium::Hdd, Medium::Ssd],
            disks: vec![1, 8],
            rates: vec![Rate::Max, Rate::PerSecond(64)],
            threads: sweep.threads(),
            seconds: 1,
            device: None,
            sweep,
        }
    }

    #[test]
    fn averages_are_judged_by_the_published_ones() {
        let study = study(&params(Sweep::Policies)).unwrap();
        assert_eq!(study.cells.len(), 2 * 2 * 2 * 11 * 2);
        let judged: Vec<(f64, Rule)> = study.rows[..8].iter().map(|r| (r.published.unwrap(), r.rule)).collect();
        let want = [(59.2, 15.0), (83.8, 15.0), (-37.3, 10.0), (-27.9, 8.0), (29.2, 15.0), (48.9, 15.0)];
        for (&(figure, rule), (published, within)) in judged.iter().zip(want) {
            assert!((figure - published).abs() < 0.1 && rule == Rule::Within(within), "{figure} {rule:?}");
        }
        assert!(study.rows[8..].iter().all(|r| r.rule == Rule::None && r.published.is_some()));
        // The figure of a row comes from its own cells.
        let look = |cell: &str, value: &str| {
            let base = if cell.ends_with("batched") { 100.0 } else { 150.0 };
            (value == "iops").then_some(base)
        };
        assert_eq!((study.rows[0].measure)(&look), Some(50.0));
        assert_eq!((study.rows[2].measure)(&look), None, "there is no latency");
    }

    #[test]
    fn sweeps_have_their_cells_and_claims() {
        let timeouts = study(&params(Sweep::Timeout)).unwrap();
        assert_eq!(timeouts.cells.len(), 8 * 4 * 2 * TIMEOUTS.len());
        assert!(timeouts.cells.iter().any(|c| c.name == "hdd, 1 disk, max, 1 threads, modern, 50 %"));
        assert_eq!(timeouts.rows.iter().filter(|r| r.rule != Rule::None).count(), 8);
        let logs = study(&params(Sweep::Log)).unwrap();
        assert_eq!(logs.cells.len(), 8 * 4 * 4);
        assert_eq!(logs.rows.iter().filter(|r| r.rule != Rule::None).count(), 4, "one thread on hdd, by policy");
        for mut all in [timeouts.cells, logs.cells] {
            let count = all.len();
            all.sort_by(|a, b| a.name.cmp(&b.name));
            all.dedup_by(|a, b| a.name == b.name || a.params == b.params);
            assert_eq!(all.len(), count, "names and parameters are unique");
        }
        assert!(Sweep::parse("speed").is_err());
        assert!(study(&Params { seconds: 0, ..params(Sweep::Log) }).is_err());
    }
}
