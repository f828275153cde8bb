//! `weir trace`: the figures of the tuning article's D scripts, live.

use std::fmt::Write as _;
use std::io::IsTerminal;
use std::time::{Duration, Instant};

use admin::request::{TraceStart, TraceTake};
use admin::view::{Dist, TraceView};
use base::Error;

use crate::quantize::quantize;
use crate::zpool::parse_for;
use crate::{Done, Fail, ask, print};

/// The instruments.
const INSTRUMENTS: &[&str] = &["dirty", "txg", "io", "queue", "delay", "zil", "turns"];

/// Runs `weir trace ARGS`.
pub fn run(args: &[String]) -> Done {
    if args.first().is_some_and(|a| a == "record") {
        return crate::trace_record::run(&args[1..]);
    }
    let long = &[("json", false, 'j'), ("interval", true, 'i'), ("count", true, 'c')];
    let p = parse_for("trace", args, "i:c:j", long, "")?;
    let [what, pool] = p.operands.as_slice() else {
        return Err(Fail::Usage("an instrument and a pool are needed".into(), ""));
    };
    if !INSTRUMENTS.contains(&what.as_str()) {
        return Err(Fail::Usage(format!("'{what}' is not an instrument: there are {}", INSTRUMENTS.join(", ")), ""));
    }
    let seconds = |text: &str| match text.parse::<f64>() {
        Ok(s) if (0.1..=3600.0).contains(&s) => Ok(Duration::from_secs_f64(s)),
        _ => Err(Fail::Usage(format!("'{text}' is not an interval of 0.1 to 3600 seconds"), "")),
    };
    let interval = p.value('i').map(seconds).transpose()?;
    let count = match p.value('c').map(str::parse::<u64>) {
        None => u64::MAX,
        Some(Ok(n)) if n > 0 => n,
        Some(_) => return Err(Fail::Usage("the count must be a number above 0".into(), "")),
    };
    let signals = host::Signals::hold();
    let id: u64 = ask(&TraceStart { pool: pool.clone(), what: what.clone() })?;
    let take = |end| ask(&TraceTake { pool: pool.clone(), id, end });
    // Without an interval txgs are printed when they end, distributions at the end.
    let lines = matches!(what.as_str(), "dirty" | "txg");
    let step = interval.unwrap_or(Duration::from_secs(1));
    let mut whole = TraceView::default();
    let mut shown = 0;
    let mut next = Instant::now() + step;
    loop {
        let stopped = signals.wait_for(next.saturating_duration_since(Instant::now()));
        next += step;
        let last = stopped || shown + 1 >= count;
        if stopped && !p.has('j') && std::io::stdout().is_terminal() {
            // The terminal has echoed `^C`; begin a new line.
            print("\n");
        }
        let view = take(last)?;
        let live = lines || interval.is_some();
        if live {
            print(&if p.has('j') { json_line(&view)? } else { show(what, &view) });
            shown += 1;
        } else if count != u64::MAX {
            shown += 1;
        }
        merge(&mut whole, view);
        if last {
            break;
        }
    }
    if p.has('j') {
        if !(lines || interval.is_some()) {
            print(&json_line(&whole)?);
        }
    } else {
        print(&summary(what, &whole));
    }
    Ok(())
}

fn json_line(view: &TraceView) -> Result<String, Fail> {
    let text = serde_json::to_string(view).map_err(|e| Error::invalid(format!("the answer cannot be written: {e}")))?;
    Ok(text + "\n")
}

fn merge(whole: &mut TraceView, view: TraceView) {
    whole.span += view.span;
    whole.events += view.events;
    whole.txgs.extend(view.txgs);
    for (name, dist) in view.io {
        match whole.io.iter_mut().find(|(n, _)| *n == name) {
            Some((_, old)) => old.merge(&dist),
            None => whole.io.push((name, dist)),
        }
    }
    whole.queue.extend(view.queue);
    whole.undelayed += view.undelayed;
    whole.delay.merge(&view.delay);
    whole.log.merge(&view.log);
    whole.admin.merge(&view.admin);
    whole.log_blocks.merge(&view.log_blocks);
    whole.turns.merge(&view.turns);
    whole.turns_on_cpu.merge(&view.turns_on_cpu);
    if view.longest_on_cpu.as_ref().map(|t| t.on_cpu) > whole.longest_on_cpu.as_ref().map(|t| t.on_cpu) {
        whole.longest_on_cpu = view.longest_on_cpu;
    }
    whole.longest_turns.extend(view.longest_turns);
    whole.longest_turns.sort_by_key(|t| std::cmp::Reverse(t.took));
    whole.longest_turns.truncate(admin::pool::trace::LONGEST);
    whole.slow_tasks = view.slow_tasks;
}

fn bars(dist: &Dist) -> String {
    let first = dist.buckets.iter().position(|&c| c > 0).unwrap_or(0);
    let list: Vec<(u64, u64)> = (first..dist.buckets.len()).map(|b| (1u64 << b.min(63), dist.buckets[b])).collect();
    quantize(&list)
}

const KINDS: [&str; 4] = ["read", "write", "flush", "trim"];

/// The events since the last call.
fn show(what: &str, v: &TraceView) -> String {
    let mib = |b: u64| b >> 20;
    let ms = |ns: u64| ns as f64 / 1e6;
    let mut out = String::new();
    match what {
        "dirty" => v.txgs.iter().for_each(|t| {
            let _ = writeln!(out, "txg {:<10} {:>6} MB of {:>6} MB used", t.txg, mib(t.dirty), mib(t.limit));
        }),
        "txg" => v.txgs.iter().for_each(|t| {
            // A dash for a phase that began before the trace.
            let span = |i: usize, digits: usize| {
                t.spans[i].map_or_else(|| "-".to_string(), |ns| format!("{:.digits$} ms", ms(ns)))
            };
            let [open, quiescing, waiting, syncing] = [span(0, 0), span(1, 1), span(2, 1), span(3, 0)];
            let _ = writeln!(
                out,
                "txg {:<10} open {open}, quiescing {quiescing}, waiting {waiting}, sync took {syncing}, {} MB",
                t.txg,
                mib(t.of_txg)
            );
        }),
        _ => out = summary(what, v),
    }
    out
}

/// `1 txg`, `2 txgs`.
fn counted(n: u64, what: &str) -> String {
    format!("{n} {what}{}", if n == 1 { "" } else { "s" })
}

/// Distributions and totals.
fn summary(what: &str, v: &TraceView) -> String {
    let mut out = String::new();
    let seconds = (v.span as f64 / 1e9).max(1e-9);
    match what {
        "dirty" => {
            let most = v.txgs.iter().map(|t| t.dirty).max().unwrap_or(0);
            let _ = writeln!(
                out,
                "{} in {seconds:.1} s, at most {} MB dirty when one began to sync",
                counted(v.txgs.len() as u64, "txg"),
                most >> 20
            );
        }
        "txg" => {
            let mut dist = Dist::default();
            for t in &v.txgs {
                t.spans[3].into_iter().for_each(|ns| dist.add(ns / 1_000_000, t.of_txg));
            }
            let _ = writeln!(out, "\n  sync duration, ms");
            out.push_str(&bars(&dist));
            let _ = writeln!(
                out,
                "{} in {seconds:.1} s, mean {:.0} ms, deviation {:.0} ms",
                counted(dist.count, "txg"),
                dist.mean(),
                dist.deviation()
            );
            if v.admin.count > 0 {
                let _ = writeln!(out, "\n  administrative operations until they were on disk, us");
                out.push_str(&bars(&v.admin));
                let (n, mean) = (v.admin.count, v.admin.mean() / 1000.0);
                let _ = writeln!(out, "{}, mean {mean:.1} ms", counted(n, "operation"));
            }
        }
        "io" => {
            for (name, dist) in v.io.iter().filter(|(n, _)| KINDS.contains(&n.as_str())) {
                let _ = writeln!(out, "\n  {name} latency, us");
                out.push_str(&bars(dist));
            }
            let _ = writeln!(
                out,
                "\n{:<14} {:>12} {:>12} {:>12} {:>14}",
                "", "avg latency", "stddev", "iops", "throughput"
            );
            for (name, d) in &v.io {
                let _ = writeln!(
                    out,
                    "{name:<14} {:>10.0}us {:>10.0}us {:>10.0}/s {:>12.0}k/s",
                    d.mean(),
                    d.deviation(),
                    d.count as f64 / seconds,
                    d.bytes as f64 / 1024.0 / seconds
                );
            }
        }
        "queue" => {
            let mut all = Dist::default();
            for (txg, dist) in &v.queue {
                let _ = writeln!(
                    out,
                    "txg {txg:<10} {} issued, depth {:.1} on average",
                    counted(dist.count, "async write"),
                    dist.mean()
                );
                all.merge(dist);
            }
            let _ = writeln!(out, "\n  async writes at a device when one is issued");
            out.push_str(&bars(&all));
        }
        "delay" => {
            let total = v.undelayed + v.delay.count;
            let share = v.delay.count as f64 * 100.0 / (total.max(1)) as f64;
            let _ = writeln!(out, "\n  delay of those that were delayed, us");
            out.push_str(&bars(&v.delay));
            let _ = writeln!(
                out,
                "{}, {share:.1} % delayed, mean {:.0} us, deviation {:.0} us",
                counted(total, "transaction"),
                v.delay.mean(),
                v.delay.deviation()
            );
        }
        "turns" => {
            let _ = writeln!(out, "\n  turns of the pool's thread, ns");
            out.push_str(&bars(&v.turns));
            out.push_str(&turn_figures(v, seconds));
        }
        _ => {
            let _ = writeln!(out, "\n  intent log blocks from opened to durable, us");
            out.push_str(&bars(&v.log));
            out.push_str(&log_figures(v, seconds));
        }
    }
    out
}

/// The load of the pool's thread, the longest turns, and the tasks with slow turns.
fn turn_figures(v: &TraceView, seconds: f64) -> String {
    let us = |ns: f64| ns / 1e3;
    let mut out = format!(
        "{} in {seconds:.1} s, mean {:.1} us, {:.1} % of the time\n",
        counted(v.turns.count, "turn"),
        us(v.turns.mean()),
        v.turns.sum / 1e9 / seconds * 100.0
    );
    if !v.longest_turns.is_empty() {
        out.push_str("\nlongest, us (and for how long of it the thread had a processor)\n");
        for t in &v.longest_turns {
            let _ = writeln!(out, "{:>10.1} {:>10.1}  {}", us(t.took as f64), us(t.on_cpu as f64), t.task);
        }
    }
    if let Some(t) = &v.longest_on_cpu {
        let _ = writeln!(out, "\nlongest on a processor: {:.1} us, {}", us(t.on_cpu as f64), t.task);
    }
    for (n, s) in v.slow_tasks.iter().enumerate() {
        if n == 0 {
            out.push_str("\n1 ms or longer since the pool was opened\n");
        }
        let _ = writeln!(out, "{:>10}  {}, the longest {:.1} ms", s.turns, s.task, s.longest as f64 / 1e6);
    }
    out
}

/// Figures of log blocks: number, fill, commits for each, and the parts of their time.
fn log_figures(v: &TraceView, seconds: f64) -> String {
    let (n, b) = (v.log.count, &v.log_blocks);
    let mut out = format!("{}, {} bytes of records in {seconds:.1} s", counted(n, "block"), v.log.bytes);
    if n == 0 {
        return out + "\n";
    }
    let mean = |sum: u64| sum as f64 / n as f64;
    let _ = writeln!(
        out,
        ": {:.0} blocks a second, {:.0} % full, {:.1} commits waited for each",
        n as f64 / seconds,
        v.log.bytes as f64 * 100.0 / b.size.max(1) as f64,
        mean(b.waiters)
    );
    let us = |sum: u64| mean(sum) / 1000.0;
    let _ = writeln!(
        out,
        "mean {:.0} us: queue {:.0}, write {:.0}, flush {:.0}, order {:.0}",
        us(b.queue + b.write + b.flush + b.order),
        us(b.queue),
        us(b.write),
        us(b.flush),
        us(b.order)
    );
    let rate = v.log.bytes as f64 / seconds;
    let (now, most) = log_room(rate, b.txg_ns, b.limit);
    let _ = writeln!(
        out,
        "a log device needs {} at this rate, {} at most (zfs_wrlog_data_max)",
        admin::view::fmt::bytes(now),
        admin::view::fmt::bytes(most)
    );
    out
}

/// Bytes that a log device must hold: at `rate` bytes a second, and at most. Records are needed
/// until their txg is on disk, and at most three txgs are in memory: open, quiescing and syncing. A
/// txg is open for at most `txg_ns`; if syncing takes longer, `zfs_wrlog_data_max` delays the
/// writers.
fn log_room(rate: f64, txg_ns: u64, limit: u64) -> (u64, u64) {
    (((rate * 3.0 * txg_ns as f64 / 1e9) as u64).min(limit), limit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_instrument_shows_something_and_sums_add_up() {
        let mut dist = Dist::default();
        [3, 5, 900].into_iter().for_each(|v| dist.add(v, 512));
        let txg = admin::view::TxgView {
            txg: 9,
            dirty: 700 << 20,
            limit: 800 << 20,
            of_txg: 1 << 20,
            spans: [None, None, Some(0), Some(1_000_000)],
        };
        let turn = admin::view::TurnView { task: "sync".into(), took: 1_500_000, on_cpu: 900_000 };
        let view = TraceView {
            span: 1_000_000_000,
            events: 7,
            txgs: vec![txg],
            io: vec![("read".into(), dist.clone())],
            queue: vec![(9, dist.clone())],
            undelayed: 1,
            delay: dist.clone(),
            log: dist.clone(),
            admin: dist.clone(),
            turns: dist.clone(),
            turns_on_cpu: dist,
            longest_turns: vec![turn.clone()],
            longest_on_cpu: Some(turn),
            slow_tasks: vec![admin::view::SlowTaskView { task: "sync".into(), turns: 2, longest: 1_500_000 }],
            log_blocks: admin::view::LogView {
                size: 3 * 1024,
                waiters: 6,
                queue: 3000,
                write: 6000,
                flush: 9000,
                order: 12000,
                limit: 1 << 30,
                txg_ns: 5_000_000_000,
            },
        };
        assert!(show("dirty", &view).contains("700 MB of    800 MB used"), "{}", show("dirty", &view));
        let line = show("txg", &view);
        assert!(line.contains("open -, quiescing -, waiting 0.0 ms, sync took 1 ms, "), "{line}");
        assert!(summary("txg", &view).contains("\n1 txg in 1.0 s, "), "{}", summary("txg", &view));
        assert!(summary("dirty", &view).starts_with("1 txg in "));
        assert!(summary("txg", &view).contains("3 operations, mean 0.3 ms"), "{}", summary("txg", &view));
        assert!(show("delay", &view).contains("4 transactions, 75.0 % delayed"));
        assert_eq!((counted(0, "block"), counted(1, "block")), ("0 blocks".into(), "1 block".into()));
        let log = summary("zil", &view);
        assert!(log.contains("3 blocks a second, 50 % full, 2.0 commits waited for each"), "{log}");
        assert!(log.contains("a log device needs 22.5K at this rate, 1G at most"), "{log}");
        assert_eq!(log_room(1e9, 5_000_000_000, 1 << 30), (1 << 30, 1 << 30));
        assert!(log.contains("mean 10 us: queue 1, write 2, flush 3, order 4"), "{log}");
        let turns = summary("turns", &view);
        assert!(turns.contains("3 turns in 1.0 s, mean 0.3 us, 0.0 % of the time"), "{turns}");
        assert!(
            turns.contains("    1500.0      900.0  sync") && turns.contains("2  sync, the longest 1.5 ms"),
            "{turns}"
        );
        INSTRUMENTS.iter().for_each(|w| assert!(!summary(w, &view).is_empty(), "{w}"));
        let mut whole = TraceView::default();
        merge(&mut whole, view.clone());
        merge(&mut whole, view);
        assert_eq!((whole.events, whole.io[0].1.count, whole.delay.count, whole.txgs.len()), (14, 6, 6, 2));
    }
}
