//! `weir top`: the flow of data through pools, redrawn every second.
//!
//! The gauge shows dirty data from 0 to the limit, with marks where a txg is closed (`s`) and where
//! writes begin to be delayed (`d`); the next line has the present delay. Then: devices by class,
//! with rates, latencies and queues; the last txgs, each with its time open (`-`), waiting (`.`)
//! and syncing (`#`); the cache; the file systems with most I/O. Rates are differences between two
//! views.
//!
//! On a terminal the output fits the screen ([`screen`], a pure function): a fixed heading, then
//! the pools in order, each with at least two txgs, and with more of its txgs and file systems as
//! long as there are rows; rows are cut at the last column. The heading counts the pools that do
//! not fit. `q` and Ctrl-C end it and restore the terminal.

use std::fmt::Write as _;
use std::time::Duration;

use admin::request::PoolFlow;
use admin::view::fmt;
use admin::view::{DatasetIo, FlowView, IoStats};
use host::{Screen, Signals, Woken, terminal_size};

use crate::zpool::parse_for;
use crate::{Done, Fail, ask, print};

const CLASSES: [&str; 9] =
    ["sync read", "sync write", "async read", "async write", "scrub", "removal", "initialize", "trim", "rebuild"];
/// Width of gauges and timelines if the screen has room.
const WIDTH: usize = 60;
/// Txgs and file systems that are shown if the screen has room.
const TXGS: usize = 6;
const DATASETS: usize = 8;
/// Txgs that are always shown.
const TXGS_LEAST: usize = 2;
/// Columns if the output is no terminal.
const WIDE: usize = 200;

/// Runs `weir top ARGS`.
pub fn run(args: &[String]) -> Done {
    let p = parse_for("top", args, "i:c:", &[("interval", true, 'i'), ("count", true, 'c')], "")?;
    let bad = |what: &str| Fail::Usage(what.to_string(), "");
    let interval = match p.value('i').map(str::parse::<f64>) {
        None => Duration::from_secs(1),
        Some(Ok(s)) if (0.1..=3600.0).contains(&s) => Duration::from_secs_f64(s),
        Some(_) => return Err(bad("the interval must be 0.1 to 3600 seconds")),
    };
    let count = match p.value('c').map(str::parse::<u64>) {
        None => u64::MAX,
        Some(Ok(n)) if n > 0 => n,
        Some(_) => return Err(bad("the count must be a number above 0")),
    };
    let names = p.operands.clone();
    let look = || ask(&PoolFlow { names: names.clone() });
    let signals = Signals::hold();
    let mut before = look()?;
    let display = Screen::take();
    for _ in 0..count {
        let woken = match &display {
            Some(display) => wait_for_next(display, &signals, interval),
            None if signals.wait_for(interval) => Woken::Signal,
            None => Woken::Time,
        };
        if woken != Woken::Time {
            break;
        }
        let now = look()?;
        let pairs: Vec<(&FlowView, &FlowView)> =
            now.iter().filter_map(|n| before.iter().find(|b| b.io.name == n.io.name).map(|b| (n, b))).collect();
        match (&display, terminal_size()) {
            (Some(display), size) => {
                let (width, height) = size.unwrap_or((80, 24));
                display.show(&screen(&pairs, width, height));
            }
            (None, _) if now.is_empty() => print("no pools are imported\n"),
            (None, _) => {
                let all: Vec<String> =
                    pairs.iter().map(|(n, b)| draw(n, b, WIDE, TXGS, DATASETS).join("\n") + "\n").collect();
                print(&all.join("\n"));
            }
        }
        before = now;
    }
    Ok(())
}

/// Waits for the next update; ignores keys other than `q`.
fn wait_for_next(display: &Screen, signals: &Signals, interval: Duration) -> Woken {
    let until = std::time::Instant::now() + interval;
    loop {
        match display.wait(signals, until.saturating_duration_since(std::time::Instant::now())) {
            Woken::Key(b'q' | b'Q') => return Woken::Signal,
            Woken::Key(_) => {}
            other => return other,
        }
    }
}

/// The rows of a screen: at most `height`, of at most `width` characters.
fn screen(pools: &[(&FlowView, &FlowView)], width: usize, height: usize) -> Vec<String> {
    let cut = |line: String| line.chars().take(width).collect::<String>();
    let most = |n: &FlowView, b: &FlowView, txgs: usize, datasets: usize| draw(n, b, width, txgs, datasets).len();
    let rows = height.saturating_sub(1);
    // As many pools as fit with the fewest rows each, at least one. A blank row separates two
    // pools.
    let (mut shown, mut used) = (0, 0);
    for (i, (n, b)) in pools.iter().enumerate() {
        let least = most(n, b, TXGS_LEAST, 0) + usize::from(i > 0);
        if i > 0 && used + least > rows {
            break;
        }
        (shown, used) = (i + 1, used + least);
    }
    let mut left = rows.saturating_sub(used);
    let more = match pools.len() - shown {
        0 => String::new(),
        n => format!(", {n} more that do not fit: name those to be seen"),
    };
    let what = match pools.len() {
        0 => "no pools are imported".to_string(),
        1 => "1 pool".to_string(),
        n => format!("{n} pools{more}"),
    };
    let mut out = vec![format!("weir top   {what}   q ends")];
    for (i, (n, b)) in pools[..shown].iter().enumerate() {
        // Remaining rows go to txgs first, pool by pool.
        let base = most(n, b, TXGS_LEAST, 0);
        let fit = |txgs: usize, datasets: usize| most(n, b, txgs, datasets) - base <= left;
        let txgs = (TXGS_LEAST..=TXGS).rev().find(|t| fit(*t, 0)).unwrap_or(TXGS_LEAST);
        let datasets = (0..=DATASETS).rev().find(|d| fit(txgs, *d)).unwrap_or(0);
        if i > 0 {
            out.push(String::new());
        }
        let lines = draw(n, b, width, txgs, datasets);
        left -= (lines.len() - base).min(left);
        out.extend(lines);
    }
    out.truncate(height);
    out.into_iter().map(cut).collect()
}

/// The gauge of dirty data, `width` characters: filled up to `dirty` of `max`, with marks at
/// `close` and `delay`.
fn gauge(width: usize, dirty: u64, max: u64, close: u64, delay: u64) -> String {
    let at = |v: u64| (u128::from(v) * width as u128 / u128::from(max.max(1))) as usize;
    let cell = |i: usize| match i {
        _ if i == at(close).min(width - 1) => 's',
        _ if i == at(delay).min(width - 1) => 'd',
        _ if i < at(dirty) => '#',
        _ => ' ',
    };
    (0..width).map(cell).collect()
}

fn time(ns: f64) -> String {
    match ns {
        _ if ns < 1e3 => format!("{ns:.0}ns"),
        _ if ns < 1e6 => format!("{:.0}us", ns / 1e3),
        _ if ns < 1e9 => format!("{:.1}ms", ns / 1e6),
        _ => format!("{:.2}s", ns / 1e9),
    }
}

/// The upper end of the bucket that holds the `permille`th of the counts.
fn percentile(counts: &[u64], permille: u64) -> f64 {
    let total: u64 = counts.iter().sum();
    let mut left = (total * permille).div_ceil(1000);
    for (b, &n) in counts.iter().enumerate() {
        if n >= left {
            return 2f64.powi(b as i32 + 1);
        }
        left -= n;
    }
    0.0
}

fn devices(d: &IoStats, seconds: f64, out: &mut String) {
    let _ = writeln!(
        out,
        "  {:<12} {:>9} {:>9} {:>9} {:>9} {:>9} {:>6} {:>6}",
        "class", "ops/s", "bytes/s", "mean", "p50", "p99", "wait", "activ"
    );
    for (i, name) in CLASSES.iter().enumerate() {
        let [ops, bytes, total, _] = d.class.get(i).copied().unwrap_or_default();
        let depth = |list: &[u64]| list.get(i).copied().unwrap_or(0);
        let (waiting, active) = (depth(&d.queued), depth(&d.active));
        if ops + waiting + active == 0 && i > 3 {
            continue;
        }
        let latency = d.total.get(i).map_or(&[][..], |l| &l[..]);
        let or_dash = |t: f64| if ops == 0 { "-".to_string() } else { time(t) };
        let _ = writeln!(
            out,
            "  {name:<12} {:>9.0} {:>9} {:>9} {:>9} {:>9} {waiting:>6} {active:>6}",
            ops as f64 / seconds,
            fmt::bytes((bytes as f64 / seconds) as u64),
            or_dash(total as f64 / ops.max(1) as f64),
            or_dash(percentile(latency, 500)),
            or_dash(percentile(latency, 990)),
        );
    }
    let flushes: u64 = d.flush.iter().sum();
    let _ = writeln!(
        out,
        "  {:<12} {:>9.0} {:>39}",
        "flush",
        flushes as f64 / seconds,
        if flushes == 0 { "-".to_string() } else { time(percentile(&d.flush, 990)) }
    );
}

/// The rows of one pool, with at most so many txgs and file systems.
fn draw(now: &FlowView, before: &FlowView, width: usize, txgs: usize, datasets: usize) -> Vec<String> {
    let seconds = (now.io.at.saturating_sub(before.io.at) as f64 / 1e9).max(1e-9);
    let mut out = String::new();
    let share = now.dirty as f64 * 100.0 / now.dirty_max.max(1) as f64;
    let rate = |a: u64, b: u64| a.saturating_sub(b) as f64 / seconds;
    let _ = writeln!(out, "{}   throttle {}", now.io.name, now.throttle);
    let _ = writeln!(
        out,
        "dirty [{}] {share:.1} % of {}",
        gauge(width.saturating_sub(27).clamp(10, WIDTH), now.dirty, now.dirty_max, now.sync_from, now.delay_from),
        fmt::bytes(now.dirty_max)
    );
    let delayed = now.delayed.saturating_sub(before.delayed);
    let mean = now.delayed_ns.saturating_sub(before.delayed_ns) as f64 / delayed.max(1) as f64;
    let _ = writeln!(
        out,
        "      delay of a write now {}; {:.0}/s delayed by {}; {} blocked, {:.0}/s",
        time(now.delay_ns as f64),
        delayed as f64 / seconds,
        if delayed == 0 { "-".to_string() } else { time(mean) },
        now.blocked_now,
        rate(now.blocked, before.blocked)
    );
    let difference = now.io.stats.since(&before.io.stats);
    devices(&difference, seconds, &mut out);
    let longest = now.txgs.iter().map(|t| t.spans.iter().sum::<u64>()).max().unwrap_or(1).max(1);
    let room = width.saturating_sub(72).clamp(8, WIDTH);
    for t in now.txgs.iter().rev().take(txgs).rev() {
        let part = |ns: u64, c: &str| c.repeat((u128::from(ns) * room as u128).div_ceil(u128::from(longest)) as usize);
        let line: String =
            (part(t.spans[0], "-") + &part(t.spans[1], ".") + &part(t.spans[2], "#")).chars().take(room).collect();
        let [open, wait, sync] = t.spans.map(|s| time(s as f64));
        let _ = writeln!(
            out,
            "  txg {:<9} {line:<room$} {:<9} {:>6} open {open} wait {wait} sync {sync}",
            t.txg,
            t.state,
            fmt::bytes(t.dirty)
        );
    }
    let [size, limit, hits, misses] = now.arc;
    let (hits, misses) = (hits.saturating_sub(before.arc[2]), misses.saturating_sub(before.arc[3]));
    let share =
        if hits + misses == 0 { "-".into() } else { format!("{:.1} %", hits as f64 * 100.0 / (hits + misses) as f64) };
    let _ = writeln!(
        out,
        "  arc {} of {}, {:.0} reads/s, hits {share}",
        fmt::bytes(size),
        fmt::bytes(limit),
        (hits + misses) as f64 / seconds
    );
    let mut used: Vec<(&DatasetIo, [u64; 4])> = now
        .datasets
        .iter()
        .map(|d| {
            let old = before.datasets.iter().find(|b| b.name == d.name).map_or(d.io, |b| b.io);
            (d, std::array::from_fn(|i| d.io[i].saturating_sub(old[i])))
        })
        .filter(|(_, io): &(_, [u64; 4])| io.iter().any(|&n| n > 0))
        .collect();
    used.sort_by_key(|(_, io)| std::cmp::Reverse(io[1] + io[3]));
    let long = width.saturating_sub(56).clamp(12, 40);
    for (d, io) in used.iter().take(datasets) {
        let per = |n: u64| n as f64 / seconds;
        let name: String = d.name.chars().take(long).collect();
        let _ = writeln!(
            out,
            "  {name:<long$} read {:>7.0}/s {:>7}/s  write {:>7.0}/s {:>7}/s",
            per(io[0]),
            fmt::bytes(per(io[1]) as u64),
            per(io[2]),
            fmt::bytes(per(io[3]) as u64)
        );
    }
    out.lines().map(str::to_string).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use admin::view::{IoView, TxgSpan};

    /// A busy pool `n` writes after its beginning: every class, six txgs, ten file systems.
    fn view(name: &str, at: u64, n: u64) -> FlowView {
        let mut stats = IoStats::nothing();
        for class in &mut stats.class {
            *class = [n, n << 20, n * 4_000_000, n * 1_000_000];
        }
        stats.total[3][21] = n;
        stats.queued[3] = 7;
        let txg = |i: u64| TxgSpan {
            txg: 123_456_780 + i,
            state: "quiescing".into(),
            dirty: 999 << 20,
            delayed: 1,
            spans: [4_987_000_000, 123_400_000, 1_234_500_000],
        };
        let dataset =
            |i: u64| DatasetIo { name: format!("{name}/a/long/name/of/a/file/system/{i}"), io: [0, 0, n, n << 13] };
        FlowView {
            io: IoView { name: name.into(), at, stats, ..IoView::default() },
            throttle: "openzfs".into(),
            dirty: 65 << 20,
            dirty_max: 100 << 20,
            delay_from: 60 << 20,
            sync_from: 20 << 20,
            delay_ns: 78_000,
            delayed: n,
            delayed_ns: n * 780_000,
            txgs: (0..8).map(txg).collect(),
            datasets: (0..10).map(dataset).collect(),
            ..FlowView::default()
        }
    }

    #[test]
    fn a_pool_is_drawn_from_two_pictures() {
        let text =
            draw(&view("tank", 3_000_000_000, 300), &view("tank", 1_000_000_000, 100), WIDE, TXGS, DATASETS).join("\n");
        assert!(text.contains("65.0 % of 100M"), "{text}");
        assert!(text.contains("delay of a write now 78us; 100/s delayed by 780us; 0 blocked, 0/s"), "{text}");
        assert!(
            text.contains("  async write        100      100M     4.0ms     4.2ms     4.2ms      7      0"),
            "{text}"
        );
        assert_eq!(text.matches("  txg 1234").count(), TXGS, "{text}");
        assert_eq!(text.matches("tank/a/long/name/of/a/file/system/").count(), DATASETS, "{text}");
        let idle = draw(&view("tank", 3_000_000_000, 100), &view("tank", 1_000_000_000, 100), WIDE, 1, 1).join("\n");
        assert!(idle.contains("0/s delayed by -;"), "{idle}");
        let g = gauge(60, 65, 100, 20, 60);
        assert_eq!((g.len(), g.chars().filter(|c| *c == '#').count(), &g[12..13], &g[36..37]), (60, 37, "s", "d"));
        // Unusual settings must not panic.
        assert_eq!(gauge(60, u64::MAX, 0, u64::MAX, 0).len(), 60);
        assert_eq!((percentile(&[], 500), percentile(&[0, 0, 4], 990)), (0.0, 8.0));
    }

    #[test]
    fn pictures_fit_their_screen() {
        for (pools, width, height, shown) in [
            (1, 80, 24, 1),
            (2, 80, 24, 1),
            (1, 120, 40, 1),
            (2, 120, 40, 2),
            (5, 120, 40, 2),
            (3, 200, 100, 3),
            (1, 20, 5, 1),
            (1, 1, 1, 0),
            (0, 80, 24, 0),
        ] {
            let case = format!("{pools} pools on {width}x{height}");
            let names: Vec<String> = (0..pools).map(|i| format!("pool{i}")).collect();
            let pictures: Vec<(FlowView, FlowView)> =
                names.iter().map(|n| (view(n, 3_000_000_000, 300), view(n, 1_000_000_000, 100))).collect();
            let pairs: Vec<(&FlowView, &FlowView)> = pictures.iter().map(|(n, b)| (n, b)).collect();
            let rows = screen(&pairs, width, height);
            assert!(rows.len() <= height, "{case}: {} rows", rows.len());
            assert!(rows.iter().all(|r| r.chars().count() <= width), "{case}: {rows:#?}");
            assert!("weir top   ".starts_with(&rows[0]) || rows[0].starts_with("weir top   "), "{case}: {}", rows[0]);
            assert_eq!(rows.iter().filter(|r| r.contains("   throttle ")).count(), shown, "{case}: {rows:#?}");
            if width >= 80 && shown < pools {
                assert!(rows[0].contains(&format!("{} more that do not fit", pools - shown)), "{case}: {}", rows[0]);
            }
            if width >= 80 {
                // A cut row loses only the end of long names.
                assert!(
                    rows.iter().filter(|r| r.contains("  txg ")).all(|r| r.ends_with("sync 1.23s")),
                    "{case}: {rows:#?}"
                );
                assert!(
                    rows.iter().filter(|r| r.contains("/s  write")).all(|r| r.ends_with("/s")),
                    "{case}: {rows:#?}"
                );
                assert!(rows.iter().filter(|r| r.contains("  txg ")).count() >= 2 * shown, "{case}: {rows:#?}");
            }
        }
    }
}
