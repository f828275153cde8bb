//! `weir lab`: studies in virtual time.

pub(crate) mod advise;
mod arc;
mod calibrate;
mod coldstart;
mod fragmentation;
mod randwrite;
mod real;
pub(crate) mod recorded;
mod run;
mod starvation;
pub(crate) mod study;

use std::fmt::Write as _;

use base::Error;
use lab::hist::Bucket;
use lab::throttle::{Report, Study};
use lab::throttle_sweep::{self, Sweep};
use txg::ThrottlePolicy;

use crate::opts::Parsed;
use crate::quantize::quantize;
use crate::zpool::parse_for;
use crate::{Done, Fail, print};

/// Runs `weir lab ARGS`.
pub fn run(args: &[String]) -> Done {
    match args.first().map(String::as_str) {
        Some("advise") => advise::run(&args[1..]),
        Some("arc") => arc::run(&args[1..]),
        Some("calibrate") => calibrate::run(&args[1..]),
        Some("coldstart") => coldstart::run(&args[1..]),
        Some("fragmentation") => fragmentation::run(&args[1..]),
        Some("randwrite") => randwrite::run(&args[1..]),
        Some("run") => run::run(&args[1..]),
        Some("starvation") => starvation::run(&args[1..]),
        Some("throttle") => throttle(&args[1..]),
        Some("zil") => crate::lab_zil::run(&args[1..]),
        Some("replay") => crate::lab_replay::run(&args[1..]),
        Some("help" | "--help" | "-h") => crate::help::print_topic("lab", &args[1..]),
        Some(other) => Err(Fail::Usage(
            format!(
                "'{other}' is not a study: there are advise, arc, calibrate, coldstart, fragmentation, randwrite, replay, run, starvation, throttle and zil"
            ),
            "",
        )),
        None => Err(Fail::Usage("missing study".into(), "")),
    }
}

fn throttle(args: &[String]) -> Done {
    let long: &'static [(&'static str, bool, char)] = study::study_options![
        ("policy", true, 'p'),
        ("bandwidth", true, 'w'),
        ("threads", true, 't'),
        ("block", true, 'b'),
        ("copies", true, 'c'),
        ("seconds", true, 's'),
        ("mem", true, 'm'),
        ("offered", true, 'O'),
        ("sweep", true, 'W'),
    ];
    let p = parse_study(args, "p:w:t:b:c:s:S:m:O:jW:n:J:H:F:", long, "throttle")?;
    let mut study = Study::default();
    let size = |letter, name: &str, old| study::size(&p, letter, name, old);
    if let Some(name) = p.value('p') {
        study.policy = ThrottlePolicy::parse(name)?;
    }
    study.bandwidth = size('w', "bandwidth", study.bandwidth)?;
    study.threads = u32::try_from(size('t', "threads", study.threads.into())?).unwrap_or(u32::MAX);
    study.block = size('b', "block", study.block)?;
    study.copies = size('c', "copies", study.copies)?;
    study.seconds = size('s', "seconds", study.seconds)?;
    study.seed = size('S', "seed", study.seed)?;
    study.mem = size('m', "mem", study.mem)?;
    study.offered = size('O', "offered", study.offered)?;
    // One run, or a table over seeds.
    if ['W', 'n', 'J', 'H', 'F'].iter().any(|&letter| p.has(letter)) {
        let sweep = Sweep::parse(p.value('W').unwrap_or("policies"))?;
        if sweep == Sweep::Policies && p.has('p') {
            return Err(Error::invalid("--policy does not go with a table of policies: name another --sweep").into());
        }
        return study::run(&p, &throttle_sweep::study(&study, sweep)?, None);
    }
    let report = study.run()?;
    print_report(&p, || serde_json::to_string(&report), || show(&report))
}

/// Parses the options of a study, which has no operands.
pub(crate) fn parse_study(
    args: &[String],
    letters: &'static str,
    long: &'static [(&'static str, bool, char)],
    topic: &'static str,
) -> Result<Parsed, Fail> {
    let p = parse_for("lab", args, letters, long, topic)?;
    match p.operands.first() {
        Some(extra) => Err(Fail::Usage(format!("'{extra}' is too much"), topic)),
        None => Ok(p),
    }
}

/// Prints the report of a study: as JSON if that was asked for, else as `show` gives it.
pub(crate) fn print_report(
    p: &Parsed,
    json: impl FnOnce() -> serde_json::Result<String>,
    show: impl FnOnce() -> String,
) -> Done {
    if p.has('j') {
        let text = json().map_err(|e| Error::invalid(format!("the report cannot be written: {e}")))?;
        print(&format!("{text}\n"));
    } else {
        print(&show());
    }
    Ok(())
}

fn show(r: &Report) -> String {
    let mut out = String::new();
    let mb = |b: f64| b / f64::from(1 << 20);
    let _ = writeln!(out, "policy {}, seed {}, {} s that count", r.policy, r.seed, r.measured_seconds);
    let _ = writeln!(out, "dirty        {:6.1} % of {:.0} MiB", r.dirty_percent_steady, mb(r.dirty_data_max as f64));
    let _ = writeln!(
        out,
        "clients      {:6.1} MiB/s, {} writes, {:.1} % delayed",
        mb(r.throughput_bytes_per_s),
        r.writes,
        r.delayed_percent
    );
    let _ = writeln!(out, "device       {:6.1} MiB/s, {} txgs", mb(r.device_bytes_per_s), r.txgs);
    let _ = writeln!(
        out,
        "latency      p50 {:.0} us, p99 {:.0} us, p99.9 {:.0} us, max {:.0} us, mean {:.0} us; {} mode{}",
        r.latency_p50_us,
        r.latency_p99_us,
        r.latency_p999_us,
        r.latency_max_us,
        r.latency_mean_us,
        r.latency_modes,
        if r.latency_modes == 1 { "" } else { "s" }
    );
    let [fast, slow, long, longest] = r.per_txg;
    let _ = writeln!(
        out,
        "per txg      {fast:.0} under 5 ms, {slow:.0} under 100 ms, {long:.0} under 1 s, {longest:.0} longer"
    );
    let _ = writeln!(
        out,
        "unevenness   clients {:.3}, device {:.3}, queue {:.3} (deviation over mean, per 100 ms)",
        r.cv_admitted, r.cv_device, r.cv_queue
    );
    let _ = writeln!(out, "\n  write latency, us");
    out + &histogram(&r.latency_histogram)
}

/// A distribution as `quantize` draws it.
fn histogram(buckets: &[Bucket]) -> String {
    quantize(&buckets.iter().map(|b| (b.from_us, b.count)).collect::<Vec<_>>())
}
