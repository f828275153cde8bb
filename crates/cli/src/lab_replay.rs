//! `weir lab replay`: a recording of operations in virtual time.

use std::cell::RefCell;
use std::fmt::Write as _;
use std::rc::Rc;
use std::time::Instant;

use lab::replay::{KindReport, Replay, Report};

use crate::lab::print_report;
use crate::lab::recorded::{self, Machine, Recorded, replay_letters, replay_options};
use crate::lab::study::{left, size};
use crate::progress::Bar;
use crate::zpool::parse_for;
use crate::{Done, Fail};

/// Runs `weir lab replay ARGS`.
pub fn run(args: &[String]) -> Done {
    let p = parse_for("lab", args, replay_letters!(""), replay_options![], "replay")?;
    let [path] = p.operands.as_slice() else {
        return Err(Fail::Usage("one recording is needed".into(), "replay"));
    };
    let (machine, seed) = (Machine::of(&p)?, size(&p, 'S', "seed", 0)?);
    let recording = Recorded::read(path)?.recording;
    let (_, replay) = recorded::replay(&p, &recording, path, &machine, p.value('l'))?;
    let replay = Replay { seed, ..replay };
    let bar = Rc::new(RefCell::new((Bar::new(), Instant::now())));
    let shown = bar.clone();
    let progress = move |done, total| {
        let (bar, started) = &mut *shown.borrow_mut();
        bar.show(&format!("replay{}", left(*started, done, total)), done, total);
    };
    let report = replay.run_showing(&recording, Rc::new(progress))?;
    bar.borrow_mut().0.clear();
    print_report(&p, || serde_json::to_string(&report), || show(&report))
}

fn show(r: &Report) -> String {
    let mut out = String::new();
    let [read, write] = [r.read_bytes_per_s, r.write_bytes_per_s].map(|both| both.map(|b| b / f64::from(1 << 20)));
    let _ = writeln!(out, "{} operations on {}, seed {}", r.ops, r.model, r.seed);
    let star = |fits: bool| if fits { ' ' } else { '*' };
    let fits = star(r.time_fits);
    let _ = writeln!(out, "time   {:9.2} s recorded, {:9.2} s replayed{fits}", r.recorded_seconds, r.predicted_seconds);
    let _ = writeln!(out, "read   {:9.1} MiB/s       {:9.1} MiB/s", read[0], read[1]);
    let _ = writeln!(out, "write  {:9.1} MiB/s       {:9.1} MiB/s", write[0], write[1]);
    let _ = writeln!(out, "\n{:<10}{:>9}  latency, us: recorded, replayed", "", "count");
    let _ = writeln!(out, "{:<10}{:>9}{:>20}{:>20}{:>20}{:>20}", "", "", "p50", "p90", "p99", "p99.9");
    for KindReport { kind, count, recorded: a, predicted: b, fits } in r.kinds.iter().chain(&r.groups) {
        let _ = write!(out, "{kind:<10}{count:>9}");
        let [median, tail] = fits.map(star);
        for (a, b, star) in [
            (a.p50_us, b.p50_us, median),
            (a.p90_us, b.p90_us, ' '),
            (a.p99_us, b.p99_us, tail),
            (a.p999_us, b.p999_us, ' '),
        ] {
            let _ = write!(out, "{a:>10.0}{b:>9.0}{star}");
        }
        out.truncate(out.trim_end().len());
        out.push('\n');
    }
    let (rate, median, factor) = lab::calibrate::LIMITS;
    let fitting = r.groups.iter().flat_map(|g| g.fits).filter(|fits| *fits).count();
    let _ = writeln!(
        out,
        "{fitting} of {} medians and 99th percentiles of reads, writes and data fit (a star: not; within {median} %, a factor of {factor}; time within {rate} %)",
        r.groups.len() * 2
    );
    if r.failed > 0 {
        let _ = writeln!(out, "{} operations worked when they were recorded and not here", r.failed);
    }
    if r.lost > 0 {
        let _ = writeln!(out, "{} operations are missing: the recording lost them", r.lost);
    }
    if !r.complete {
        out.push_str("the recording has no end: it was interrupted\n");
    }
    out
}
