//! `zpool iostat`: statistics of devices, since the pool was opened and then per interval.
//!
//! The daemon sends counters; this module subtracts them. An interior vdev has the sums of its
//! devices.

use std::fmt::Write as _;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use admin::request::PoolIo;
use admin::view::fmt;
use admin::view::{IoStats, IoView};
use base::Error;
use host::Signals;
use serde_json::{Value, json};

use crate::opts::Parsed;
use crate::scripts::{self, Device, Told};
use crate::zpool_out::{Style, path_name};
use crate::{Done, Fail, ask, print};

/// I/O classes in the order of the daemon's lists, by OpenZFS's column names.
const CLASSES: [&str; 9] =
    ["sync_read", "sync_write", "async_read", "async_write", "scrub", "removal", "initialize", "trim", "rebuild"];
/// Whether a class counts as reads; a class with reads and writes does.
const READS: [bool; 9] = [true, false, true, false, true, true, false, false, false];
const SCRUB: usize = 4;
const TRIM: usize = 7;
const REBUILD: usize = 8;

struct Opts {
    vdevs: bool,
    latency: bool,
    queues: bool,
    wait_histogram: bool,
    size_histogram: bool,
    exact: bool,
    script: bool,
    json: bool,
    stamp: Option<char>,
    style: Style,
    /// Show only these vdevs, by their names in listings.
    only: Vec<String>,
    /// What scripts told of the devices (`-c`).
    told: Option<Told>,
}

/// Runs `zpool iostat` with these options.
pub fn run(p: &Parsed) -> Done {
    let usage = |what: String| Fail::Usage(what, "iostat");
    let stamp = match p.value('T') {
        None => None,
        Some("d") => Some('d'),
        Some("u") => Some('u'),
        Some(other) => return Err(usage(format!("invalid time stamp '{other}': it must be d or u"))),
    };
    let mut o = Opts {
        vdevs: p.has('v') || p.has('c'),
        latency: p.has('l'),
        queues: p.has('q'),
        wait_histogram: p.has('w'),
        size_histogram: p.has('r'),
        exact: p.has('p'),
        script: p.has('H'),
        json: p.has('j'),
        stamp,
        style: Style { full_paths: p.has('P'), real_paths: p.has('L'), guids: p.has('g'), ..Style::default() },
        only: Vec::new(),
        told: None,
    };
    if p.has('c') {
        scripts::check()?;
    }
    if (o.wait_histogram || o.size_histogram) && (o.latency || o.queues) || o.wait_histogram && o.size_histogram {
        return Err(usage("only one of -w and -r can be given, and neither with -l or -q".into()));
    }
    // Trailing numbers are interval and count.
    let mut names = p.operands.clone();
    let mut numbers = Vec::new();
    while numbers.len() < 2
        && let Some(n) = names.last().and_then(|n| n.parse::<f64>().ok())
    {
        numbers.insert(0, n);
        names.pop();
    }
    let interval = match numbers.first() {
        None => None,
        Some(s) if (0.01..=86_400.0).contains(s) => Some(Duration::from_secs_f64(*s)),
        Some(s) => return Err(usage(format!("'{s}' is not an interval"))),
    };
    let count = match numbers.get(1) {
        None => u64::MAX,
        Some(n) if *n >= 1.0 && n.fract() == 0.0 => *n as u64,
        Some(n) => return Err(usage(format!("'{n}' is not a count"))),
    };
    if !names.is_empty() {
        // A pool and its vdevs, unless all names are pools.
        let pools: Vec<IoView> = ask(&PoolIo { names: Vec::new() })?;
        let has = |pool: &IoView, name: &str| pool.children.iter().any(|c| contains_name(c, name, o.style));
        if !names.iter().all(|n| pools.iter().any(|p| p.name == *n)) {
            // Vdevs alone are those of the pool that has them all.
            let is_pool = pools.iter().any(|p| p.name == names[0]);
            let of = pools.iter().find(|p| !is_pool && names.iter().all(|name| has(p, name)));
            if let Some(pool) = of {
                names.insert(0, pool.name.clone());
            }
            o.only = names.split_off(1);
            o.vdevs = true;
            let pool = pools.iter().filter(|p| p.name == names[0]);
            if pool.clone().next().is_none() {
                return Err(Error::not_found(format!("cannot open '{}': no such pool", names[0])).into());
            }
            for name in &o.only {
                if !pool.clone().any(|p| has(p, name)) {
                    let why = format!("cannot open '{name}': no such device in pool '{}'", names[0]);
                    return Err(Error::not_found(why).into());
                }
            }
        }
    }
    let signals = interval.map(|_| Signals::hold());
    let mut before: Vec<IoView> = Vec::new();
    let mut shown = 0;
    loop {
        let now: Vec<IoView> = ask(&PoolIo { names: names.clone() })?;
        if now.is_empty() && interval.is_none() && !o.json {
            eprintln!("no pools available");
            return Err(Fail::AlreadyReported);
        }
        if !(before.is_empty() && p.has('y') && interval.is_some()) {
            o.told = p.value('c').map(|list| {
                let mut devices = Vec::new();
                for pool in &now {
                    pool.children.iter().for_each(|c| devices_of(&pool.name, c, &mut devices));
                }
                Told::by(list, devices)
            });
            print(&show(&now, &before, &o, shown == 0)?);
            shown += 1;
        }
        before = now;
        match (interval, &signals) {
            (Some(span), Some(signals)) if shown < count => {
                if signals.wait_for(span) {
                    return Ok(());
                }
            }
            _ => return Ok(()),
        }
    }
}

/// The devices below a vdev, for scripts.
fn devices_of(pool: &str, view: &IoView, out: &mut Vec<Device>) {
    if view.children.is_empty() {
        out.push((pool.to_string(), view.name.clone()));
    }
    view.children.iter().for_each(|c| devices_of(pool, c, out));
}

/// A vdev's counters over an interval, with its depth in the tree.
struct Row<'a> {
    depth: usize,
    view: &'a IoView,
    stats: IoStats,
    seconds: f64,
}

/// Whether `name` names this vdev: its name, base name, display name or guid.
fn has_name(view: &IoView, name: &str, style: Style) -> bool {
    let base = view.name.rsplit('/').next().unwrap_or_default();
    [view.name.as_str(), base, &display_name(view, style), &view.guid.to_string()].contains(&name)
}

/// Whether `name` names this vdev or one below it.
fn contains_name(view: &IoView, name: &str, style: Style) -> bool {
    has_name(view, name, style) || view.children.iter().any(|c| contains_name(c, name, style))
}

/// The name that listings show.
fn display_name(view: &IoView, style: Style) -> String {
    if style.guids && view.guid != 0 && view.kind != "root" {
        return view.guid.to_string();
    }
    path_name(&view.name, &view.kind, style)
}

/// Sections of top-level vdevs; normal ones have none.
const SECTIONS: [&str; 5] = ["", "dedup", "special", "logs", "cache"];

fn rows<'a>(view: &'a IoView, before: Option<&IoView>, depth: usize, o: &Opts, out: &mut Vec<Row<'a>>) {
    let stats = before.map_or_else(|| view.stats.clone(), |b| view.stats.since(&b.stats));
    let from = before.map_or(view.since, |b| b.at);
    let seconds = (view.at.saturating_sub(from) as f64 / 1e9).max(1e-9);
    if o.only.is_empty() {
        out.push(Row { depth, view, stats, seconds });
    } else if o.only.iter().any(|n| has_name(view, n, o.style)) && depth > 0 {
        out.push(Row { depth: 0, view, stats, seconds });
    }
    if o.vdevs {
        for class in SECTIONS {
            for child in view.children.iter().filter(|c| depth > 0 && class.is_empty() || c.class == class) {
                let old = before.and_then(|b| b.children.iter().find(|c| c.name == child.name));
                rows(child, old, depth + 1, o, out);
            }
        }
    }
}

fn stamp(kind: char) -> String {
    let seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs());
    if kind == 'u' { format!("{seconds}\n") } else { format!("{}\n", fmt::date(seconds)) }
}

fn show(now: &[IoView], before: &[IoView], o: &Opts, first: bool) -> Result<String, Fail> {
    let mut pools = Vec::new();
    for view in now {
        let old = before.iter().find(|b| b.name == view.name);
        let mut rows_of = Vec::new();
        rows(view, old, 0, o, &mut rows_of);
        pools.push(rows_of);
    }
    let mut out = o.stamp.map(stamp).unwrap_or_default();
    if o.json {
        let list: Vec<Value> = pools.iter().flatten().map(json_of).collect();
        let text = serde_json::to_string(
            &json!({ "output_version": { "command": "zpool iostat", "vers_major": 0, "vers_minor": 1 }, "vdevs": list }),
        );
        return Ok(text.map_err(|e| Error::invalid(format!("{e}")))? + "\n");
    }
    if o.wait_histogram || o.size_histogram {
        let width = name_width(&pools, o);
        for row in pools.iter().flatten() {
            out.push_str(&histogram(row, width, o));
        }
        return Ok(out);
    }
    let width = name_width(&pools, o);
    let groups = groups(o);
    if first && !o.script {
        out.push_str(&headings(width, &groups, if o.only.is_empty() { "pool" } else { "vdev" }, "", o.told.as_ref()));
    }
    let rule_below = || rule(width, &groups, o.told.as_ref());
    for (rows, pool) in pools.iter().zip(now) {
        let mut class = "";
        for row in rows {
            let fields = fields(row, o);
            let told = o.told.as_ref().map(|t| t.row(&pool.name, &row.view.name)).unwrap_or_default();
            if o.script {
                let _ = writeln!(out, "{}\t{}{told}", display_name(row.view, o.style), fields.join("\t"));
                continue;
            }
            let widths = groups.iter().flat_map(|g| g.1.iter().map(|_| g.2));
            if row.depth == 1 && row.view.class != class {
                class = &row.view.class;
                let dashes: Vec<String> = widths.clone().map(|w| format!("{:>w$}", "-")).collect();
                let _ = writeln!(out, "{class:<width$}  {}", dashes.join("  "));
            }
            let name = format!("{}{}", "  ".repeat(row.depth), display_name(row.view, o.style));
            let line: Vec<String> = fields.iter().zip(widths).map(|(f, w)| format!("{f:>w$}")).collect();
            let _ = writeln!(out, "{name:<width$}  {}{told}", line.join("  "));
        }
        if !o.script && o.vdevs && o.only.is_empty() {
            out.push_str(&rule_below());
        }
    }
    if !o.script && (pools.len() > 1 && !o.vdevs || !o.only.is_empty()) {
        out.push_str(&rule_below());
    }
    Ok(out)
}

/// Width of the column of names.
fn name_width(pools: &[Vec<Row>], o: &Opts) -> usize {
    let widths = pools.iter().flatten().map(|r| r.depth * 2 + display_name(r.view, o.style).chars().count());
    widths.max().unwrap_or(0).max(10)
}

/// Groups of columns: the heading of the group, those of the columns, and the width of a column.
type Groups = Vec<(&'static str, Vec<&'static str>, usize)>;

fn groups(o: &Opts) -> Groups {
    let rw = || vec!["read", "write"];
    // Room for exact numbers, as in OpenZFS.
    let width = |exact: usize| if o.exact { exact } else { 5 };
    let (plain, times, depths) = (width(15), width(10), width(6));
    let mut g =
        vec![("capacity", vec!["alloc", "free"], plain), ("operations", rw(), plain), ("bandwidth", rw(), plain)];
    if o.latency {
        g.extend([
            ("total_wait", rw(), times),
            ("disk_wait", rw(), times),
            ("syncq_wait", rw(), times),
            ("asyncq_wait", rw(), times),
            ("scrub", vec!["wait"], times),
            ("trim", vec!["wait"], times),
        ]);
    }
    if o.queues {
        let pa = || vec!["pend", "activ"];
        g.extend([
            ("syncq_read", pa(), depths),
            ("syncq_write", pa(), depths),
            ("asyncq_read", pa(), depths),
            ("asyncq_write", pa(), depths),
            ("scrubq_read", pa(), depths),
            ("trimq_write", pa(), depths),
            ("rebuildq_write", pa(), depths),
        ]);
    }
    g
}

fn rule(width: usize, groups: &Groups, told: Option<&Told>) -> String {
    let columns = groups.iter().flat_map(|g| g.1.iter().map(|_| g.2));
    let line = columns.fold("-".repeat(width), |line, w| line + "  " + &"-".repeat(w));
    line + &told.map(Told::rule).unwrap_or_default() + "\n"
}

/// The two lines of headings, the first with `name` in front, the second with `title`, and the line
/// below.
fn headings(width: usize, groups: &Groups, title: &str, name: &str, told: Option<&Told>) -> String {
    let (mut one, mut two) = (format!("{name:<width$}"), format!("{title:<width$}"));
    for (name, columns, w) in groups {
        let n = columns.len().max(1);
        let field = w * n + 2 * (n - 1);
        // Centred, rather to the right, as in OpenZFS.
        let left = (field / n).saturating_sub(name.len() / n).min(field.saturating_sub(name.len()));
        let _ = write!(one, "  {}{name:<rest$}", " ".repeat(left), rest = field.saturating_sub(left));
        columns.iter().for_each(|c| {
            let _ = write!(two, "  {c:>w$}");
        });
    }
    two.push_str(&told.map(Told::headings).unwrap_or_default());
    format!("{}\n{two}\n{}", one.trim_end(), rule(width, groups, told))
}

fn fields(row: &Row, o: &Opts) -> Vec<String> {
    let s = &row.stats;
    let bytes = |b: u64| if o.exact { b.to_string() } else { fmt::num(b) };
    let rate = |n: u64| (n as f64 / row.seconds).round() as u64;
    let number = |n: u64| if o.exact { n.to_string() } else { fmt::num(n) };
    let space = |b: Option<u64>| b.map_or_else(|| "-".to_string(), bytes);
    let mut out = vec![
        space(row.view.alloc),
        space(row.view.free),
        number(rate(s.ops[0])),
        number(rate(s.ops[1])),
        bytes(rate(s.bytes[0])),
        bytes(rate(s.bytes[1])),
    ];
    if o.latency {
        // Sums of ns over operations; the wait in the queue is the total without the device's time.
        let wait = |pick: &dyn Fn(usize) -> bool, part: &dyn Fn(&[u64; 4]) -> u64| {
            let chosen = || s.class.iter().enumerate().filter(|(i, _)| pick(*i)).map(|(_, c)| c);
            let ops: u64 = chosen().map(|c| c[0]).sum();
            let ns: u64 = chosen().map(part).sum();
            ns.checked_div(ops).map_or("-".to_string(), |ns| time(ns, o.exact))
        };
        let is = |n: usize| move |i: usize| i == n;
        let (total, disk, queue) = (|c: &[u64; 4]| c[2], |c: &[u64; 4]| c[3], |c: &[u64; 4]| c[2].saturating_sub(c[3]));
        let (reads, writes) = (|i: usize| READS[i], |i: usize| !READS[i]);
        out.extend([
            wait(&reads, &total),
            wait(&writes, &total),
            wait(&reads, &disk),
            wait(&writes, &disk),
            wait(&is(0), &queue),
            wait(&is(1), &queue),
            wait(&is(2), &queue),
            wait(&is(3), &queue),
            wait(&is(SCRUB), &queue),
            wait(&is(TRIM), &queue),
        ]);
    }
    if o.queues {
        for class in [0, 1, 2, 3, SCRUB, TRIM, 8] {
            let at = |list: &[u64]| list.get(class).copied().unwrap_or(0);
            out.push(number(at(&s.queued)));
            out.push(number(at(&s.active)));
        }
    }
    out
}

/// A count as OpenZFS shortens it.
fn time(ns: u64, exact: bool) -> String {
    match ns {
        _ if exact => ns.to_string(),
        0..=999 => format!("{ns}ns"),
        1_000..=999_999 => format!("{}us", ns / 1_000),
        1_000_000..=999_999_999 => format!("{}ms", ns / 1_000_000),
        _ => format!("{}s", ns / 1_000_000_000),
    }
}

/// The histogram of waits, or of sizes, of one vdev: OpenZFS's columns.
fn histogram(row: &Row, width: usize, o: &Opts) -> String {
    let s = &row.stats;
    let sum = |all: &[Vec<u64>], reads: bool| {
        let n = all.first().map_or(0, Vec::len);
        (0..n)
            .map(|b| all.iter().zip(READS).filter(|(_, r)| *r == reads).map(|(l, _)| l[b]).sum())
            .collect::<Vec<u64>>()
    };
    let class = |all: &[Vec<u64>], i: usize| all.get(i).cloned().unwrap_or_default();
    let (title, lists): (&str, Vec<Vec<u64>>) = if o.wait_histogram {
        let mut lists = vec![sum(&s.total, true), sum(&s.total, false), sum(&s.disk, true), sum(&s.disk, false)];
        lists.extend([0, 1, 2, 3, SCRUB, TRIM, REBUILD].map(|i| class(&s.queue, i)));
        ("latency", lists)
    } else {
        let pairs = [0, 1, 2, 3, SCRUB, TRIM, REBUILD].map(|i| [class(&s.ind, i), class(&s.agg, i)]);
        ("req_size", pairs.into_iter().flatten().collect())
    };
    let largest = lists.iter().flatten().max().copied().unwrap_or(0);
    let column = if o.exact { largest.to_string().len().max(5) } else { 5 };
    let rw = || vec!["read", "write"];
    let groups: Groups = if o.wait_histogram {
        let mut g: Groups = ["total_wait", "disk_wait", "syncq_wait", "asyncq_wait"].map(|n| (n, rw(), column)).into();
        g.extend(["scrub", "trim", "rebuild"].map(|n| ("", vec![n], column)));
        g
    } else {
        let names = ["sync_read", "sync_write", "async_read", "async_write", "scrub", "trim", "rebuild"];
        names.map(|n| (n, vec!["ind", "agg"], column)).into()
    };
    let name = display_name(row.view, o.style);
    let width = width.max(name.chars().count());
    let mut out =
        if o.script { format!("{name}\n") } else { format!("\n{}", headings(width, &groups, title, &name, None)) };
    for b in 0..lists.iter().map(Vec::len).max().unwrap_or(0) {
        let edge = if o.wait_histogram { (1u64 << (b + 1).min(63)) - 1 } else { 512u64 << b };
        let label = match (o.script, o.wait_histogram) {
            (true, _) => edge.to_string(),
            (_, true) => time(edge, false),
            _ => fmt::num(edge),
        };
        let values = lists.iter().map(|l| l.get(b).copied().unwrap_or(0));
        let number = |n: u64| if o.exact { n.to_string() } else { fmt::num(n) };
        if o.script {
            let line: Vec<String> = values.map(number).collect();
            let _ = writeln!(out, "{label}\t{}", line.join("\t"));
        } else {
            let line: Vec<String> = values.map(|v| format!("{:>column$}", number(v))).collect();
            let _ = writeln!(out, "{label:<width$}  {}", line.join("  "));
        }
    }
    if !o.script {
        let _ = writeln!(out, "{}", "-".repeat(width + (column + 2) * lists.len()));
    }
    out
}

fn json_of(row: &Row) -> Value {
    let s = &row.stats;
    let class = |i: usize| {
        let c = s.class.get(i).copied().unwrap_or_default();
        json!({
            "operations": c[0], "bytes": c[1], "total_wait_ns": c[2], "disk_wait_ns": c[3],
            "pending": s.queued.get(i), "active": s.active.get(i),
            "total_wait_histogram": s.total.get(i), "disk_wait_histogram": s.disk.get(i),
            "individual_size_histogram": s.ind.get(i), "aggregated_size_histogram": s.agg.get(i),
        })
    };
    let classes: serde_json::Map<String, Value> =
        CLASSES.iter().enumerate().map(|(i, n)| ((*n).to_string(), class(i))).collect();
    json!({
        "name": row.view.name, "depth": row.depth, "seconds": row.seconds, "alloc": row.view.alloc, "free": row.view.free,
        "read_operations": s.ops[0], "write_operations": s.ops[1], "read_bytes": s.bytes[0], "write_bytes": s.bytes[1],
        "flushes": s.flushes, "flush_histogram": s.flush, "classes": classes,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn opts() -> Opts {
        Opts {
            vdevs: false,
            latency: false,
            queues: false,
            wait_histogram: false,
            size_histogram: false,
            exact: false,
            script: false,
            json: false,
            stamp: None,
            style: Style::default(),
            only: Vec::new(),
            told: None,
        }
    }

    fn view(at: u64, writes: u64) -> IoView {
        let mut stats = IoStats::nothing();
        stats.ops = [0, writes];
        stats.bytes = [0, writes << 20];
        stats.class[3] = [writes, writes << 20, writes * 5_000_000, writes * 2_000_000];
        stats.total[3][22] = writes;
        stats.agg[3][11] = writes;
        stats.active[3] = 2;
        let leaf = IoView { name: "/d/a.img".into(), at, stats: stats.clone(), ..IoView::default() };
        IoView {
            name: "tank".into(),
            alloc: Some(1 << 30),
            free: Some(3 << 30),
            at,
            since: 0,
            stats,
            children: vec![leaf],
            ..IoView::default()
        }
    }

    #[test]
    fn sections_have_headings_and_scripts_short_numbers() {
        let mut v = view(3_000_000_000, 30);
        v.children.push(IoView {
            name: "/dev/sdb".into(),
            kind: "disk".into(),
            class: "logs".into(),
            ..v.children[0].clone()
        });
        v.children.push(IoView {
            name: "/d/c.img".into(),
            kind: "file".into(),
            class: "cache".into(),
            ..v.children[0].clone()
        });
        let deep = Opts { vdevs: true, ..opts() };
        let text = show(&[v.clone()], &[], &deep, true).expect("shown");
        assert!(text.contains("\nlogs            -      -      -      -      -      -\n  sdb      "), "{text}");
        assert!(text.contains("\ncache           -      -      -      -      -      -\n  /d/c.img "), "{text}");
        let script = show(&[v.clone()], &[], &Opts { script: true, ..opts() }, true).expect("shown");
        assert_eq!(script, "tank\t1G\t3G\t0\t10\t0\t10M\n");
        let exact = show(&[v.clone()], &[], &Opts { exact: true, ..opts() }, true).expect("shown");
        assert!(exact.ends_with("tank             1073741824       3221225472                0               10                0         10485760\n"), "{exact}");
        let one = show(&[v], &[], &Opts { only: vec!["sdb".into()], ..deep }, true).expect("shown");
        let lines: Vec<&str> = one.lines().collect();
        assert!(lines.len() == 5 && lines[1].starts_with("vdev  ") && lines[3].starts_with("sdb  "), "{one}");
    }

    #[test]
    fn rates_are_differences_over_time() {
        let (a, b) = (view(1_000_000_000, 10), view(3_000_000_000, 30));
        let text = show(std::slice::from_ref(&b), std::slice::from_ref(&a), &opts(), true).expect("shown");
        let last = text.lines().last().expect("a line");
        let words: Vec<&str> = last.split_whitespace().collect();
        assert_eq!(words, ["tank", "1G", "3G", "0", "10", "0", "10M"], "{text}");
        assert!(text.starts_with("              capacity     operations     bandwidth\npool        alloc   free   read  write   read  write\n"), "{text}");
        let script = show(
            std::slice::from_ref(&b),
            &[],
            &Opts { script: true, exact: true, latency: true, queues: true, ..opts() },
            true,
        )
        .expect("shown");
        let f: Vec<&str> = script.trim_end().split('\t').collect();
        assert_eq!(f[..7], ["tank", "1073741824", "3221225472", "0", "10", "0", "10485760"]);
        assert_eq!(f[7..17], ["-", "5000000", "-", "2000000", "-", "-", "-", "3000000", "-", "-"]);
        assert_eq!(f.len(), 17 + 14);
        assert_eq!(f[17 + 7], "2");
        let deep = show(std::slice::from_ref(&b), &[a], &Opts { vdevs: true, ..opts() }, true).expect("shown");
        assert!(deep.contains("\n  /d/a.img  "), "{deep}");
        let w = show(std::slice::from_ref(&b), &[], &Opts { wait_histogram: true, ..opts() }, true).expect("shown");
        let head = "\ntank         total_wait     disk_wait    syncq_wait    asyncq_wait\nlatency      read  write   read  write   read  write   read  write  scrub   trim  rebuild\n";
        assert!(w.starts_with(head), "{w}");
        assert!(w.contains("\n8ms             0     30"), "{w}");
        let r = show(std::slice::from_ref(&b), &[], &Opts { size_histogram: true, ..opts() }, true).expect("shown");
        let head = "\ntank          sync_read    sync_write    async_read    async_write      scrub         trim         rebuild\nreq_size      ind    agg    ind    agg";
        assert!(r.starts_with(head), "{r}");
        assert!(r.contains("\n1M              0      0      0      0      0      0      0     30      0"), "{r}");
        let j = show(&[b], &[], &Opts { json: true, ..opts() }, true).expect("shown");
        let j: Value = serde_json::from_str(&j).expect("JSON");
        assert_eq!(j["vdevs"][0]["classes"]["async_write"]["operations"], 30);
    }
}
