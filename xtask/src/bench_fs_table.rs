//! The results as tables.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;
use std::process::Command;

use serde_json::json;

use crate::bench_fs::Options;
use crate::bench_fs_contest::Turns;
use crate::bench_fs_jobs::{ARC_MAX, DIRTY_MAX, Figures, Row, Sizes};

const BEGIN: &str = "<!-- bench-fs: begin -->";
const END: &str = "<!-- bench-fs: end -->";

/// All figures.
pub(crate) struct Results {
    /// By row and contestant: the figures of it and its control, by run.
    all: BTreeMap<(Row, String), BTreeMap<usize, (Figures, Figures)>>,
    /// Most memory of a contestant's process in each row.
    peaks: BTreeMap<(String, Row), u64>,
    /// Turns of weir's thread by row, of all runs.
    turns: BTreeMap<Row, Turns>,
    /// The same of an empty loop beside the control.
    empty_loop: BTreeMap<Row, Turns>,
    /// Contestants that could not run, and why.
    pub(crate) missing: Vec<(String, String)>,
    /// Jobs that failed, and why.
    pub(crate) failed: Vec<(String, Row, String)>,
    options: Options,
    sizes: Sizes,
}

impl Results {
    /// None yet.
    pub(crate) fn new(options: &Options, sizes: &Sizes, missing: Vec<(String, String)>) -> Results {
        Results {
            all: BTreeMap::new(),
            peaks: BTreeMap::new(),
            turns: BTreeMap::new(),
            empty_loop: BTreeMap::new(),
            missing,
            failed: Vec::new(),
            options: options.clone(),
            sizes: sizes.clone(),
        }
    }

    /// Adds a job and its control.
    pub(crate) fn add(&mut self, run: usize, row: Row, who: &str, figures: Figures, control: Figures) {
        self.all.entry((row, who.to_string())).or_default().insert(run, (figures, control));
    }

    /// Notes the memory that a contestant's process has used.
    pub(crate) fn peak(&mut self, row: Row, who: &str, bytes: u64) {
        let peak = self.peaks.entry((who.to_string(), row)).or_default();
        *peak = bytes.max(*peak);
    }

    /// Adds the turns of weir's thread during a job.
    pub(crate) fn turns(&mut self, row: Row, more: Turns) {
        self.turns.entry(row).or_default().merge(more);
    }

    /// Adds what an empty loop saw beside the control.
    pub(crate) fn empty_loop(&mut self, row: Row, more: Turns) {
        self.empty_loop.entry(row).or_default().merge(more);
    }

    fn runs(&self, row: Row, who: &str) -> Vec<(Figures, Figures)> {
        self.all.get(&(row, who.to_string())).map(|r| r.values().cloned().collect()).unwrap_or_default()
    }

    /// Whether the row was asked for.
    fn ran(&self, row: Row) -> bool {
        row.sync_threads().is_none() || self.all.keys().any(|(of, _)| *of == row)
    }

    fn rate(&self, row: Row, who: &str) -> Option<f64> {
        median(self.runs(row, who).iter().map(|(f, _)| f.rate(row)).collect())
    }

    /// Latencies of a contestant: median, 99 %, 99.9 % (medians of the runs), longest of all runs.
    fn latencies(&self, row: Row, who: &str) -> Option<[f64; 4]> {
        latencies(&self.runs(row, who).into_iter().map(|(f, _)| f).collect::<Vec<_>>())
    }

    /// Median of a contestant's rate over that of its control.
    fn to_control(&self, row: Row, who: &str) -> Option<f64> {
        let ratios = self
            .runs(row, who)
            .iter()
            .filter(|(_, c)| c.rate(row) > 0.0)
            .map(|(f, c)| f.rate(row) / c.rate(row))
            .collect();
        median(ratios)
    }

    /// Median of a contestant's rate over another's in the same run.
    fn to_other(&self, row: Row, who: &str, other: &str) -> Option<f64> {
        median(self.ratios(row, who, other))
    }

    /// Least and largest of a contestant's rates over another's in the same run.
    fn span_to_other(&self, row: Row, who: &str, other: &str) -> Option<(f64, f64)> {
        let ratios = self.ratios(row, who, other).into_iter();
        ratios.map(|r| (r, r)).reduce(|(low, high), (r, _)| (low.min(r), high.max(r)))
    }

    /// A contestant's rate over another's in each run that has both.
    fn ratios(&self, row: Row, who: &str, other: &str) -> Vec<f64> {
        let of = |who: &str| self.all.get(&(row, who.to_string()));
        let Some((a, b)) = of(who).zip(of(other)) else { return Vec::new() };
        a.iter().filter_map(|(run, (f, _))| b.get(run).map(|(g, _)| f.rate(row) / g.rate(row))).collect()
    }

    /// All figures as JSON, for other programs.
    pub(crate) fn json(&self) -> String {
        let fig = |f: &Figures| json!({ "secs": f.secs, "bytes": f.bytes, "ops": f.ops, "lat_us": f.lat });
        let mut rows = Vec::new();
        for ((row, who), runs) in &self.all {
            for (run, (f, c)) in runs {
                rows.push(json!({ "row": row.name(), "who": who, "run": run, "figures": fig(f), "control": fig(c) }));
            }
        }
        let peaks: Vec<_> =
            self.peaks.iter().map(|((who, row), b)| json!({ "who": who, "row": row.name(), "vmhwm": b })).collect();
        json!({ "jobs": rows, "peaks": peaks }).to_string()
    }
}

/// Median, 99 %, 99.9 % (medians of the runs), longest of all runs.
fn latencies(runs: &[Figures]) -> Option<[f64; 4]> {
    let mid = |i: usize| median(runs.iter().map(|f| f.lat[i]).collect());
    Some([mid(0)?, mid(1)?, mid(2)?, runs.iter().map(|f| f.lat[3]).fold(0.0, f64::max)])
}

/// The middle value; of two middle ones their mean.
fn median(mut v: Vec<f64>) -> Option<f64> {
    v.sort_by(f64::total_cmp);
    let mid = v.len() / 2;
    match v.len() {
        0 => None,
        n if n % 2 == 1 => Some(v[mid]),
        _ => Some((v[mid - 1] + v[mid]) / 2.0),
    }
}

fn rate_text(row: Row, rate: f64) -> String {
    if row.in_bytes() { format!("{:.0} MB/s", rate / 1e6) } else { format!("{rate:.0}/s") }
}

/// A job's rate in words.
pub(crate) fn rate(row: Row, f: &Figures) -> String {
    let [p50, p99, p999, max] = f.lat.map(micros);
    format!("{} in {:.2} s, latencies {p50} {p99} {p999} {max}", rate_text(row, f.rate(row)), f.secs)
}

fn micros(us: f64) -> String {
    match us {
        us if us >= 10_000.0 => format!("{:.0} ms", us / 1000.0),
        us if us >= 1000.0 => format!("{:.1} ms", us / 1000.0),
        us => format!("{us:.0} us"),
    }
}

/// The targets: of *weir* over zfs-fuse, and of *engine* over raw.
fn target(row: Row) -> (f64, Option<f64>) {
    match row {
        Row::SeqWrite => (3.0, Some(0.6)),
        Row::SeqRead | Row::RandRead => (1.0, Some(0.8)),
        Row::Overwrite => (1.0, Some(0.7)),
        Row::Create => (3.0, None),
        Row::Sync1 => (1.0, Some(0.8)),
        Row::Sync64 => (1.0, Some(1.0)),
        _ => (1.0, None),
    }
}

fn ratio(value: Option<f64>, goal: Option<f64>) -> String {
    match (value, goal) {
        (None, _) => "-".into(),
        (Some(v), None) => format!("{v:.2}"),
        (Some(v), Some(goal)) if v >= goal => format!("**{v:.2}**"),
        (Some(v), Some(goal)) => format!("{v:.2} (below {goal})"),
    }
}

fn what(row: Row, s: &Sizes, o: &Options) -> String {
    match row {
        Row::SeqWrite => format!("sequential write, {} MiB", s.seq >> 20),
        Row::SeqRead => format!("sequential read, cold, {} MiB", s.seq >> 20),
        Row::RandRead => format!("random 8 KiB reads, cold, 8 threads, {} MiB", s.db >> 20),
        Row::Overwrite => format!("random 8 KiB overwrites, 8 threads, {} s", s.overwrite_secs),
        Row::Create => format!("create {} files of 1 KiB", s.files),
        Row::Stat => "list and stat them, cold".into(),
        Row::Remove => "remove them".into(),
        Row::Tree => format!("copy {} in", o.tree.display()),
        Row::Sync1 => format!("8 KiB writes, each durable, 1 thread, {} s", s.sync_secs),
        Row::Sync8 => "the same, 8 threads".into(),
        Row::Sync64 => "the same, 64 threads".into(),
    }
}

/// The tables.
pub(crate) fn markdown(r: &Results) -> String {
    let mut t = String::new();
    conditions(r, &mut t);
    rates(r, &mut t);
    latency_table(r, &mut t);
    legacy_throttle(r, &mut t);
    beside_ext4(r, &mut t);
    peak_memory(r, &mut t);
    beside_before(r, &mut t);
    turn_table(r, &mut t);
    t
}

fn line(t: &mut String, text: impl AsRef<str>) {
    t.push_str(text.as_ref());
    t.push('\n');
}

/// The options of the run, and what could not be measured.
fn conditions(r: &Results, t: &mut String) {
    let o = &r.options;
    line(
        t,
        format!(
            "Measured with `cargo xtask bench-fs{}`: {} run{}, medians. zfs_arc_max {} MiB, zfs_dirty_data_max {} MiB. {}",
            [("--quick", o.quick), ("--first", o.first)]
                .iter()
                .filter(|f| f.1)
                .map(|f| format!(" {}", f.0))
                .collect::<String>(),
            o.runs,
            if o.runs == 1 { "" } else { "s" },
            ARC_MAX >> 20,
            DIRTY_MAX >> 20,
            machine()
        ),
    );
    line(t, "");
    for (who, why) in &r.missing {
        line(t, format!("**Not measured: {who}: {}**\n", why.trim()));
    }
    for (who, row, why) in &r.failed {
        line(t, format!("**{who} failed in {}: {}**\n", row.name(), why.trim()));
    }
}

/// Rates of all contestants, and their ratios.
fn rates(r: &Results, t: &mut String) {
    let (o, s) = (&r.options, &r.sizes);
    line(
        t,
        "Ratios within one run. *raw* is fio with O_DIRECT on an image file; rows over many files are compared to the plain directory instead. Bold: reaches its target.",
    );
    line(t, "");
    line(
        t,
        "| job | weir | engine | zfs-fuse | plain | weir / zfs-fuse | weir / raw or plain | engine / raw or plain | zfs-fuse / raw or plain | plain / raw |",
    );
    line(t, "|---|---|---|---|---|---|---|---|---|---|");
    for row in Row::ALL.into_iter().filter(|row| r.ran(*row)) {
        let cell = |who: &str| r.rate(row, who).map_or("-".into(), |v| rate_text(row, v));
        let (over, engine) = target(row);
        line(
            t,
            format!(
                "| {} | {} | {} | {} | {} | {} | {} | {} | {} | {} |",
                what(row, s, o),
                cell("weir"),
                cell("engine"),
                cell("zfs-fuse"),
                cell("plain"),
                ratio(r.to_other(row, "weir", "zfs-fuse"), Some(over)),
                ratio(r.to_control(row, "weir"), None),
                ratio(r.to_control(row, "engine"), engine),
                ratio(r.to_control(row, "zfs-fuse"), None),
                ratio(r.to_control(row, "plain"), None),
            ),
        );
    }
    line(t, "");
}

/// Latencies of single operations.
fn latency_table(r: &Results, t: &mut String) {
    let (o, s) = (&r.options, &r.sizes);
    line(t, "Latency of single operations: median / 99 % / 99.9 % / longest of all runs (medians of the first three).");
    line(t, "");
    line(t, "| job | weir | engine | zfs-fuse | plain | raw |");
    line(t, "|---|---|---|---|---|---|");
    for row in Row::ALL.into_iter().filter(|row| r.ran(*row)) {
        let lat = |l: Option<[f64; 4]>| l.map_or("-".to_string(), |l| l.map(micros).join(" / "));
        let of = |who: &str| lat(r.latencies(row, who));
        let raw = || {
            let all = ["weir", "engine", "zfs-fuse", "plain", "ext4"];
            lat(latencies(&all.iter().flat_map(|who| r.runs(row, who)).map(|(_, c)| c).collect::<Vec<_>>()))
        };
        let raw = if row.one_file() { raw() } else { "-".into() };
        line(
            t,
            format!(
                "| {} | {} | {} | {} | {} | {raw} |",
                what(row, s, o),
                of("weir"),
                of("engine"),
                of("zfs-fuse"),
                of("plain")
            ),
        );
    }
}

/// The engine beside itself with the write throttle of 2008.
fn legacy_throttle(r: &Results, t: &mut String) {
    for row in Row::ALL.into_iter().filter(|row| !r.runs(*row, "legacy").is_empty()) {
        line(t, "");
        line(t, format!("Beside the write throttle of 2008, {}:", what(row, &r.sizes, &r.options)));
        line(t, "");
        line(t, "| | rate | median | 99 % | 99.9 % | longest |");
        line(t, "|---|---|---|---|---|---|");
        let of = |who: &str| -> Option<[f64; 5]> {
            let [p50, p99, p999, max] = r.latencies(row, who)?;
            Some([r.rate(row, who)?, p50, p99, p999, max])
        };
        let ours = of("engine");
        for (who, name) in [("engine", "engine"), ("legacy", "engine, `legacy-2008`"), ("zfs-fuse", "zfs-fuse")] {
            let Some(v) = of(who) else { continue };
            let times = |i: usize| {
                let ratio = ours.filter(|_| who != "engine").map(|o| format!(" ({:.2}x)", v[i] / o[i]));
                format!("{}{}", micros(v[i]), ratio.unwrap_or_default())
            };
            let rate = rate_text(row, v[0]);
            line(t, format!("| {name} | {rate} | {} | {} | {} | {} |", times(1), times(2), times(3), times(4)));
        }
    }
}

/// weir beside an older weir.
fn beside_before(r: &Results, t: &mut String) {
    let rows = || Row::ALL.into_iter().filter(|row| !r.runs(*row, "before").is_empty());
    if rows().next().is_none() {
        return;
    }
    line(t, "");
    line(t, "Beside the older program, job by job: its rate, and weir's over it (median, lowest to highest run).");
    line(t, "");
    line(t, "| job | before | weir | weir / before | runs | 99.9 % before | 99.9 % weir |");
    line(t, "|---|---|---|---|---|---|---|");
    for row in rows() {
        let rate = |who: &str| r.rate(row, who).map_or("-".into(), |v| rate_text(row, v));
        let tail = |who: &str| r.latencies(row, who).map_or("-".into(), |l| micros(l[2]));
        let span = r.span_to_other(row, "weir", "before").map_or("-".into(), |(a, b)| format!("{a:.2} to {b:.2}"));
        line(
            t,
            format!(
                "| {} | {} | {} | {} | {span} | {} | {} |",
                what(row, &r.sizes, &r.options),
                rate("before"),
                rate("weir"),
                ratio(r.to_other(row, "weir", "before"), None),
                tail("before"),
                tail("weir"),
            ),
        );
    }
}

/// Turns that used a processor for 2^21 ns (2.1 ms) or longer.
fn long(turns: &Turns) -> u64 {
    turns.buckets.iter().skip(21).sum()
}

/// How long tasks kept weir's thread at a time.
fn turn_table(r: &Results, t: &mut String) {
    if r.turns.is_empty() {
        return;
    }
    line(t, "");
    line(
        t,
        "Turns of weir's thread: the time for which a turn used a processor, by powers of two (of the 99.99 % the upper end is shown), and the longest by the clock, with whatever else ran meanwhile. A host may take a processor away without a word to the clock of its guest: the last columns are an empty loop beside the control of the row, and its longest pass.",
    );
    line(t, "");
    line(
        t,
        "| job | turns | 99.99 % below | 2 ms or more | longest | its task | by the clock | empty loop: 2 ms or more | longest | by the clock |",
    );
    line(t, "|---|---|---|---|---|---|---|---|---|---|");
    for (row, turns) in &r.turns {
        let (took, task) = turns.longest.clone().unwrap_or_default();
        let empty = r.empty_loop.get(row).cloned().unwrap_or_default();
        line(
            t,
            format!(
                "| {} | {} | {} | {} | {} | {task} | {} | {} | {} | {} |",
                what(*row, &r.sizes, &r.options),
                turns.buckets.iter().sum::<u64>(),
                micros(quantile(&turns.buckets, 0.9999) as f64 / 1e3),
                long(turns),
                micros(took as f64 / 1e3),
                micros(turns.longest_by_clock as f64 / 1e3),
                long(&empty),
                micros(empty.longest.as_ref().map_or(0, |l| l.0) as f64 / 1e3),
                micros(empty.longest_by_clock as f64 / 1e3),
            ),
        );
    }
}

/// The upper end of the bucket of that part of all entries; bucket `n` begins at 2^n.
fn quantile(buckets: &[u64], part: f64) -> u64 {
    let upto = buckets.iter().sum::<u64>() as f64 * part;
    let mut seen = 0;
    let at = buckets.iter().position(|n| {
        seen += n;
        seen as f64 >= upto
    });
    at.map_or(0, |n| 1 << (n + 1).min(63))
}

/// All contestants beside ext4 on a loop device.
fn beside_ext4(r: &Results, t: &mut String) {
    for row in Row::ALL.into_iter().filter(|row| !r.runs(*row, "ext4").is_empty()) {
        line(t, "");
        line(t, format!("Beside ext4 on a loop device, {}:", what(row, &r.sizes, &r.options)));
        line(t, "");
        line(t, "| | rate | to raw | to ext4 | median | 99 % | 99.9 % | longest |");
        line(t, "|---|---|---|---|---|---|---|---|");
        for who in ["engine", "weir", "zfs-fuse", "plain", "ext4"] {
            let (Some(rate), Some(lat)) = (r.rate(row, who), r.latencies(row, who)) else { continue };
            // The goal of contestants through FUSE is ext4.
            let goal = (who == "weir").then_some(1.0);
            line(
                t,
                format!(
                    "| {who} | {} | {} | {} | {} |",
                    rate_text(row, rate),
                    ratio(r.to_control(row, who), if who == "engine" { target(row).1 } else { None }),
                    ratio(r.to_other(row, who, "ext4"), goal),
                    lat.map(micros).join(" | ")
                ),
            );
        }
    }
}

/// The most memory of each contestant.
fn peak_memory(r: &Results, t: &mut String) {
    if r.peaks.is_empty() {
        return;
    }
    line(t, "");
    line(
        t,
        format!(
            "Most memory of the process (VmHWM) in MiB. Limit: zfs_arc_max + zfs_dirty_data_max + 256 = {} MiB, with two pools imported in *weir*.",
            (ARC_MAX + DIRTY_MAX + (256 << 20)) >> 20
        ),
    );
    line(t, "");
    let names = ["weir", "engine", "zfs-fuse"];
    line(t, format!("| job | {} |", names.join(" | ")));
    line(t, "|---|---|---|---|");
    for row in Row::ALL.into_iter().filter(|row| r.ran(*row)) {
        let mut text = format!("| {} |", what(row, &r.sizes, &r.options));
        for who in names {
            let cell = r.peaks.get(&(who.to_string(), row)).map_or("-".into(), |b| (b >> 20).to_string());
            let _ = write!(text, " {cell} |");
        }
        line(t, text);
    }
}

fn machine() -> String {
    let cpu = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model =
        cpu.lines().find_map(|l| l.strip_prefix("model name")).map_or("", |l| l.trim_start_matches([' ', '\t', ':']));
    let cores = cpu.lines().filter(|l| l.starts_with("processor")).count();
    let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let load = load.split(' ').next().unwrap_or("?").to_string();
    let rev = Command::new("git").args(["rev-parse", "--short", "HEAD"]).current_dir(crate::root()).output();
    let rev = rev.map(|o| String::from_utf8_lossy(&o.stdout).trim().to_string()).unwrap_or_default();
    format!("Commit {rev}; {cores} x {model}; load at the end {load}.")
}

/// Replaces the text between the marks in the document; the text around them stays.
pub(crate) fn write_doc(path: &Path, text: &str) -> Result<(), String> {
    let fail = |e: std::io::Error| format!("{}: {e}", path.display());
    let mut old = std::fs::read_to_string(path).unwrap_or_else(|_| "# Benchmarks\n".to_string());
    if !old.contains(BEGIN) {
        old.push_str(&format!("\n## Side by side\n\n{BEGIN}\n{END}\n"));
    }
    let (before, rest) =
        old.split_once(BEGIN).ok_or_else(|| format!("{}: the line '{BEGIN}' is missing", path.display()))?;
    let (_, after) = rest.split_once(END).ok_or_else(|| format!("{}: the line '{END}' is missing", path.display()))?;
    if let Some(dir) = path.parent() {
        std::fs::create_dir_all(dir).map_err(fail)?;
    }
    std::fs::write(path, format!("{before}{BEGIN}\n{text}{END}{after}")).map_err(fail)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians() {
        assert_eq!(median(vec![]), None);
        assert_eq!(median(vec![3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(vec![4.0, 1.0]), Some(2.5));
    }

    #[test]
    fn quantiles_are_upper_ends() {
        assert_eq!(quantile(&[], 0.9999), 0);
        assert_eq!(quantile(&[0, 9999, 1], 0.9999), 4, "of 2 to 3 ns");
        assert_eq!(quantile(&[0, 9998, 2], 0.9999), 8);
    }

    #[test]
    fn targets_are_marked() {
        assert_eq!(ratio(Some(3.1), Some(3.0)), "**3.10**");
        assert_eq!(ratio(Some(2.9), Some(3.0)), "2.90 (below 3)");
        assert_eq!(ratio(None, Some(3.0)), "-");
    }
}
