//! `weir top`: how data flow through a pool, drawn anew every second.
//!
//! The gauge shows dirty data between nothing and the limit, with the shares where a txg is closed (`s`) and where writes begin to be delayed (`d`); beside it stands what the
//! delay curve says now. Below: devices by class, with rates, latencies and queues; the last txgs, each as wide as it was open (`-`), waited (`.`) and was written (`#`); the
//! cache; the file systems that are used most. Rates are differences between two pictures. Ends with Ctrl-C.

use std::fmt::Write as _;
use std::io::IsTerminal;
use std::time::Duration;

use daemon::nice;
use daemon::proto::{DatasetIo, FlowView, IoStats, Request};
use host::Signals;

use crate::zpool::parse_for;
use crate::{Done, Fail, ask, print};

const CLASSES: [&str; 9] =
    ["sync read", "sync write", "async read", "async write", "scrub", "removal", "initialize", "trim", "rebuild"];
/// Width of gauges and timelines.
const WIDTH: usize = 60;
/// File systems that are shown.
const DATASETS: usize = 8;

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
    let signals = Signals::hold();
    let screen = std::io::stdout().is_terminal();
    let mut before: Vec<FlowView> = ask(&Request::PoolFlow { names: names.clone() })?;
    for _ in 0..count {
        if signals.wait_for(interval) {
            break;
        }
        let now: Vec<FlowView> = ask(&Request::PoolFlow { names: names.clone() })?;
        let text: String = now
            .iter()
            .filter_map(|n| before.iter().find(|b| b.io.name == n.io.name).map(|b| draw(n, b)))
            .collect::<Vec<_>>()
            .join("\n");
        let text = if now.is_empty() { "no pools are imported\n".to_string() } else { text };
        // Home, each line cleared to its end, and what is below the last one.
        print(&if screen { format!("\x1b[H{}\x1b[J", text.replace('\n', "\x1b[K\n")) } else { text });
        before = now;
    }
    Ok(())
}

/// The gauge of dirty data: filled up to `dirty` of `max`, with marks at `close` and `delay`.
fn gauge(dirty: u64, max: u64, close: u64, delay: u64) -> String {
    let at = |v: u64| (u128::from(v) * WIDTH as u128 / u128::from(max.max(1))) as usize;
    let cell = |i: usize| match i {
        _ if i == at(close).min(WIDTH - 1) => 's',
        _ if i == at(delay).min(WIDTH - 1) => 'd',
        _ if i < at(dirty) => '#',
        _ => ' ',
    };
    (0..WIDTH).map(cell).collect()
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
fn at(counts: &[u64], permille: u64) -> f64 {
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
            nice::bytes((bytes as f64 / seconds) as u64),
            or_dash(total as f64 / ops.max(1) as f64),
            or_dash(at(latency, 500)),
            or_dash(at(latency, 990)),
        );
    }
    let flushes: u64 = d.flush.iter().sum();
    let _ = writeln!(
        out,
        "  {:<12} {:>9.0} {:>39}",
        "flush",
        flushes as f64 / seconds,
        if flushes == 0 { "-".to_string() } else { time(at(&d.flush, 990)) }
    );
}

/// One pool.
fn draw(now: &FlowView, before: &FlowView) -> String {
    let seconds = (now.io.at.saturating_sub(before.io.at) as f64 / 1e9).max(1e-9);
    let mut out = String::new();
    let share = now.dirty as f64 * 100.0 / now.dirty_max.max(1) as f64;
    let rate = |a: u64, b: u64| a.saturating_sub(b) as f64 / seconds;
    let _ = writeln!(out, "{}   throttle {}", now.io.name, now.throttle);
    let _ = writeln!(
        out,
        "dirty [{}] {share:.1} % of {}",
        gauge(now.dirty, now.dirty_max, now.sync_from, now.delay_from),
        nice::bytes(now.dirty_max)
    );
    let delayed = now.delayed.saturating_sub(before.delayed);
    let _ = writeln!(
        out,
        "      delay of a write now {}; {:.0}/s delayed by {} on average; {} blocked now, {:.0}/s",
        time(now.delay_ns as f64),
        delayed as f64 / seconds,
        time(now.delayed_ns.saturating_sub(before.delayed_ns) as f64 / delayed.max(1) as f64),
        now.blocked_now,
        rate(now.blocked, before.blocked)
    );
    let difference = now.io.stats.since(&before.io.stats);
    devices(&difference, seconds, &mut out);
    let longest = now.txgs.iter().map(|t| t.spans.iter().sum::<u64>()).max().unwrap_or(1).max(1);
    for t in now.txgs.iter().rev().take(6).rev() {
        let part = |ns: u64, c: &str| c.repeat((u128::from(ns) * WIDTH as u128).div_ceil(u128::from(longest)) as usize);
        let line: String =
            (part(t.spans[0], "-") + &part(t.spans[1], ".") + &part(t.spans[2], "#")).chars().take(WIDTH + 2).collect();
        let [open, wait, sync] = t.spans.map(|s| time(s as f64));
        let _ = writeln!(
            out,
            "  txg {:<9} {line:<62} {:<9} {:>6} open {open} wait {wait} sync {sync}",
            t.txg,
            t.state,
            nice::bytes(t.dirty)
        );
    }
    let [size, limit, hits, misses] = now.arc;
    let (hits, misses) = (hits.saturating_sub(before.arc[2]), misses.saturating_sub(before.arc[3]));
    let share =
        if hits + misses == 0 { "-".into() } else { format!("{:.1} %", hits as f64 * 100.0 / (hits + misses) as f64) };
    let _ = writeln!(
        out,
        "  arc {} of {}, {:.0} reads/s, hits {share}",
        nice::bytes(size),
        nice::bytes(limit),
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
    for (d, io) in used.iter().take(DATASETS) {
        let per = |n: u64| n as f64 / seconds;
        let _ = writeln!(
            out,
            "  {:<40} read {:>7.0}/s {:>7}/s  write {:>7.0}/s {:>7}/s",
            d.name,
            per(io[0]),
            nice::bytes(per(io[1]) as u64),
            per(io[2]),
            nice::bytes(per(io[3]) as u64)
        );
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use daemon::proto::{IoView, TxgSpan};

    #[test]
    fn a_pool_is_drawn_from_two_pictures() {
        let stats = |n: u64| {
            let mut s = IoStats::nothing();
            s.class[3] = [n, n << 20, n * 4_000_000, n * 1_000_000];
            s.total[3][21] = n;
            s.queued[3] = 7;
            s
        };
        let view = |at: u64, n: u64| FlowView {
            io: IoView { name: "tank".into(), at, stats: stats(n), ..IoView::default() },
            throttle: "openzfs".into(),
            dirty: 65,
            dirty_max: 100,
            delay_from: 60,
            sync_from: 20,
            delay_ns: 78_000,
            delayed: n,
            delayed_ns: n * 780_000,
            txgs: vec![TxgSpan { txg: 9, state: "open".into(), dirty: 5, delayed: 1, spans: [4_000_000_000, 0, 0] }],
            datasets: vec![DatasetIo { name: "tank/a".into(), io: [0, 0, n, n << 13] }],
            ..FlowView::default()
        };
        let text = draw(&view(3_000_000_000, 300), &view(1_000_000_000, 100));
        assert!(text.contains("65.0 % of 100B"), "{text}");
        assert!(text.contains("delay of a write now 78us; 100/s delayed by 780us"), "{text}");
        assert!(
            text.contains("  async write        100      100M     4.0ms     4.2ms     4.2ms      7      0"),
            "{text}"
        );
        assert!(text.contains("tank/a"), "{text}");
        assert!(text.contains("txg 9 "), "{text}");
        let g = gauge(65, 100, 20, 60);
        assert_eq!((g.len(), g.chars().filter(|c| *c == '#').count(), &g[12..13], &g[36..37]), (60, 37, "s", "d"));
        // Odd settings draw something all the same.
        assert_eq!(gauge(u64::MAX, 0, u64::MAX, 0).len(), WIDTH);
        assert_eq!((at(&[], 500), at(&[0, 0, 4], 990)), (0.0, 8.0));
    }
}
