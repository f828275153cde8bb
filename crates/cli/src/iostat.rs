//! `zpool iostat`: what the devices of pools do, since the pool was opened and then interval by interval.
//!
//! The daemon gives counters; differences are made here. A vdev above devices has the sums of its devices.

use std::fmt::Write as _;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use base::Error;
use daemon::nice;
use daemon::proto::{IoStats, IoView, Request};
use host::Signals;
use serde_json::{Value, json};

use crate::opts::Parsed;
use crate::{Done, Fail, ask, print};

/// Classes in the order of the daemon's lists, by the words of OpenZFS's columns.
const CLASSES: [&str; 9] =
    ["sync_read", "sync_write", "async_read", "async_write", "scrub", "removal", "initialize", "trim", "rebuild"];
/// Whether a class reads: those of which it goes both ways count as reads.
const READS: [bool; 9] = [true, false, true, false, true, true, false, false, false];
const SCRUB: usize = 4;
const TRIM: usize = 7;

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
    let o = Opts {
        vdevs: p.has('v'),
        latency: p.has('l'),
        queues: p.has('q'),
        wait_histogram: p.has('w'),
        size_histogram: p.has('r'),
        exact: p.has('p') || p.has('H'),
        script: p.has('H'),
        json: p.has('j'),
        stamp,
    };
    if (o.wait_histogram || o.size_histogram) && (o.latency || o.queues) || o.wait_histogram && o.size_histogram {
        return Err(usage("only one of -w and -r can be given, and neither with -l or -q".into()));
    }
    // Numbers at the end are interval and count.
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
    let signals = interval.map(|_| Signals::hold());
    let mut before: Vec<IoView> = Vec::new();
    let mut shown = 0;
    loop {
        let now: Vec<IoView> = ask(&Request::PoolIo { names: names.clone() })?;
        if !(before.is_empty() && p.has('y') && interval.is_some()) {
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

/// A vdev's counters over a time, with its depth in the tree.
struct Row<'a> {
    depth: usize,
    view: &'a IoView,
    stats: IoStats,
    seconds: f64,
}

fn rows<'a>(view: &'a IoView, before: Option<&IoView>, depth: usize, deep: bool, out: &mut Vec<Row<'a>>) {
    let stats = before.map_or_else(|| view.stats.clone(), |b| view.stats.since(&b.stats));
    let from = before.map_or(view.since, |b| b.at);
    let seconds = (view.at.saturating_sub(from) as f64 / 1e9).max(1e-9);
    out.push(Row { depth, view, stats, seconds });
    if deep {
        for child in &view.children {
            let old = before.and_then(|b| b.children.iter().find(|c| c.name == child.name));
            rows(child, old, depth + 1, deep, out);
        }
    }
}

fn stamp(kind: char) -> String {
    let seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs());
    if kind == 'u' { format!("{seconds}\n") } else { format!("{}\n", nice::date(seconds)) }
}

fn show(now: &[IoView], before: &[IoView], o: &Opts, first: bool) -> Result<String, Fail> {
    let mut all = Vec::new();
    for view in now {
        let old = before.iter().find(|b| b.name == view.name);
        rows(view, old, 0, o.vdevs, &mut all);
    }
    let mut out = o.stamp.map(stamp).unwrap_or_default();
    if o.json {
        let list: Vec<Value> = all.iter().map(json_of).collect();
        let text = serde_json::to_string(
            &json!({ "output_version": { "command": "zpool iostat", "vers_major": 0, "vers_minor": 1 }, "vdevs": list }),
        );
        return Ok(text.map_err(|e| Error::invalid(format!("{e}")))? + "\n");
    }
    if o.wait_histogram || o.size_histogram {
        for row in &all {
            out.push_str(&histogram(row, o));
        }
        return Ok(out);
    }
    let width = all.iter().map(|r| r.depth * 2 + r.view.name.chars().count()).max().unwrap_or(0).max(10);
    if first && !o.script {
        out.push_str(&head(width, o));
    }
    for row in &all {
        let name = format!("{}{}", "  ".repeat(row.depth), row.view.name);
        let fields = fields(row, o);
        if o.script {
            let _ = writeln!(out, "{}\t{}", row.view.name, fields.join("\t"));
        } else {
            let line: Vec<String> = fields.iter().map(|f| format!("{f:>5}")).collect();
            let _ = writeln!(out, "{name:<width$}  {}", line.join("  "));
        }
    }
    if !o.script && (o.vdevs || all.len() > 1) {
        out.push_str(&rule(width, o));
    }
    Ok(out)
}

/// Groups of columns: their heading and the columns' own.
fn groups(o: &Opts) -> Vec<(&'static str, Vec<&'static str>)> {
    let rw = || vec!["read", "write"];
    let mut g = vec![("capacity", vec!["alloc", "free"]), ("operations", rw()), ("bandwidth", rw())];
    if o.latency {
        g.extend([
            ("total_wait", rw()),
            ("disk_wait", rw()),
            ("syncq_wait", rw()),
            ("asyncq_wait", rw()),
            ("scrub", vec!["wait"]),
            ("trim", vec!["wait"]),
        ]);
    }
    if o.queues {
        let pa = || vec!["pend", "activ"];
        g.extend([
            ("syncq_read", pa()),
            ("syncq_write", pa()),
            ("asyncq_read", pa()),
            ("asyncq_write", pa()),
            ("scrubq_read", pa()),
            ("trimq_write", pa()),
            ("rebuildq_write", pa()),
        ]);
    }
    g
}

fn rule(width: usize, o: &Opts) -> String {
    let columns: usize = groups(o).iter().map(|g| g.1.len()).sum();
    format!("{}{}\n", "-".repeat(width), "  -----".repeat(columns))
}

fn head(width: usize, o: &Opts) -> String {
    let (mut one, mut two) = (" ".repeat(width), format!("{:<width$}", "pool"));
    for (name, columns) in groups(o) {
        let field = columns.len() * 7 - 2;
        let name: String = name.chars().take(field).collect();
        // In the middle, rather to the right, as OpenZFS has it.
        let left = (field - name.len()).div_ceil(2);
        let _ = write!(one, "  {}{name:<rest$}", " ".repeat(left), rest = field - left);
        columns.iter().for_each(|c| {
            let _ = write!(two, "  {c:>5}");
        });
    }
    format!("{}\n{two}\n{}", one.trim_end(), rule(width, o))
}

fn fields(row: &Row, o: &Opts) -> Vec<String> {
    let s = &row.stats;
    let bytes = |b: u64| if o.exact { b.to_string() } else { nice::num(b) };
    let rate = |n: u64| (n as f64 / row.seconds).round() as u64;
    let number = |n: u64| if o.exact { n.to_string() } else { nice::num(n) };
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
        // Sums of ns over operations; the wait in the queue is what the device did not take.
        let wait = |pick: &dyn Fn(usize) -> bool, part: &dyn Fn(&[u64; 4]) -> u64| {
            let chosen = || s.class.iter().enumerate().filter(|(i, _)| pick(*i)).map(|(_, c)| c);
            let ops: u64 = chosen().map(|c| c[0]).sum();
            let ns: u64 = chosen().map(part).sum();
            if ops == 0 { "-".to_string() } else { time(ns / ops, o.exact) }
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

/// The histogram of waits, or of sizes, of one vdev.
fn histogram(row: &Row, o: &Opts) -> String {
    let s = &row.stats;
    let (mut columns, mut lists): (Vec<String>, Vec<Vec<u64>>) = (Vec::new(), Vec::new());
    let sum = |all: &[Vec<u64>], reads: bool| {
        let n = all.first().map_or(0, Vec::len);
        (0..n)
            .map(|b| all.iter().zip(READS).filter(|(_, r)| *r == reads).map(|(l, _)| l[b]).sum())
            .collect::<Vec<u64>>()
    };
    if o.wait_histogram {
        for (name, all) in [("total_wait", &s.total), ("disk_wait", &s.disk)] {
            columns.extend([format!("{name}_read"), format!("{name}_write")]);
            lists.extend([sum(all, true), sum(all, false)]);
        }
        columns.extend(CLASSES.iter().map(|c| (*c).to_string()));
        lists.extend(s.total.iter().cloned());
        columns.push("flush".into());
        lists.push(s.flush.clone());
    } else {
        for (i, name) in CLASSES.iter().enumerate() {
            columns.extend([format!("{name}_ind"), format!("{name}_agg")]);
            lists.push(s.ind.get(i).cloned().unwrap_or_default());
            lists.push(s.agg.get(i).cloned().unwrap_or_default());
        }
    }
    let label = |b: usize| {
        if o.wait_histogram {
            time((1u64 << (b + 1).min(63)) - 1, o.exact)
        } else if o.exact {
            (512u64 << b).to_string()
        } else {
            nice::bytes(512 << b)
        }
    };
    let what = if o.wait_histogram { "latency" } else { "req_size" };
    let mut out = String::new();
    let sep = if o.script { "\t" } else { "  " };
    if !o.script {
        let _ = writeln!(out, "{}", row.view.name);
        let heads: Vec<String> = columns.iter().map(|c| format!("{c:>10}")).collect();
        let _ = writeln!(out, "{what:<10}{sep}{}", heads.join(sep));
    }
    let buckets = lists.iter().map(Vec::len).max().unwrap_or(0);
    for b in 0..buckets {
        let values: Vec<u64> = lists.iter().map(|l| l.get(b).copied().unwrap_or(0)).collect();
        let one = |(v, c): (&u64, &String)| {
            if o.script { v.to_string() } else { format!("{v:>width$}", width = c.len().max(10)) }
        };
        let line: Vec<String> = values.iter().zip(&columns).map(one).collect();
        let _ = writeln!(out, "{:<10}{sep}{}", label(b), line.join(sep));
    }
    out.push('\n');
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
        }
    }

    #[test]
    fn rates_are_differences_over_time() {
        let (a, b) = (view(1_000_000_000, 10), view(3_000_000_000, 30));
        let text = show(&[b.clone()], &[a.clone()], &opts(), true).expect("shown");
        let last = text.lines().last().expect("a line");
        let words: Vec<&str> = last.split_whitespace().collect();
        assert_eq!(words, ["tank", "1G", "3G", "0", "10", "0", "10M"], "{text}");
        assert!(text.starts_with("              capacity     operations     bandwidth\npool        alloc   free   read  write   read  write\n"), "{text}");
        let script =
            show(&[b.clone()], &[], &Opts { script: true, exact: true, latency: true, queues: true, ..opts() }, true)
                .expect("shown");
        let f: Vec<&str> = script.trim_end().split('\t').collect();
        assert_eq!(f[..7], ["tank", "1073741824", "3221225472", "0", "10", "0", "10485760"]);
        assert_eq!(f[7..17], ["-", "5000000", "-", "2000000", "-", "-", "-", "3000000", "-", "-"]);
        assert_eq!(f.len(), 17 + 14);
        assert_eq!(f[17 + 7], "2");
        let deep = show(&[b.clone()], &[a], &Opts { vdevs: true, ..opts() }, true).expect("shown");
        assert!(deep.contains("\n  /d/a.img  "), "{deep}");
        let w = show(&[b.clone()], &[], &Opts { wait_histogram: true, ..opts() }, true).expect("shown");
        assert!(w.contains("8ms"), "{w}");
        let j = show(&[b], &[], &Opts { json: true, ..opts() }, true).expect("shown");
        let j: Value = serde_json::from_str(&j).expect("JSON");
        assert_eq!(j["vdevs"][0]["classes"]["async_write"]["operations"], 30);
    }
}
