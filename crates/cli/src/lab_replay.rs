//! `weir lab replay`: a recording of operations in virtual time.

use std::cell::RefCell;
use std::fmt::Write as _;
use std::io::Read;
use std::rc::Rc;
use std::time::Instant;

use admin::tunables::{Tunables, find};
use base::{Error, ErrorKind};
use lab::replay::{KindReport, LayoutSpec, Recording, Replay, Report};

use crate::lab::print_report;
use crate::lab::study::{left, size};
use crate::progress::Bar;
use crate::zpool::parse_for;
use crate::{Done, Fail};

/// Memory of the machine if nothing is said: half is the cache's, a tenth may be dirty.
const MEM: u64 = 8 << 30;

/// Runs `weir lab replay ARGS`.
pub fn run(args: &[String]) -> Done {
    let long = &[
        ("layout", true, 'l'),
        ("model", true, 'm'),
        ("log-model", true, 'L'),
        ("tunable", true, 't'),
        ("mem", true, 'M'),
        ("cores", true, 'c'),
        ("seed", true, 'S'),
        ("json", false, 'j'),
    ];
    let p = parse_for("lab", args, "l:m:L:t:M:c:S:j", long, "replay")?;
    let [path] = p.operands.as_slice() else {
        return Err(Fail::Usage("one recording is needed".into(), "replay"));
    };
    let (mem, cores, seed) = (size(&p, 'M', "mem", MEM)?, size(&p, 'c', "cores", 2)?, size(&p, 'S', "seed", 0)?);
    if !(256 << 20..=1 << 40).contains(&mem) {
        return Err(Error::invalid("a replay needs 256M to 1T of memory").into());
    }
    let recording = read(path)?;
    let mut tunables = recorded_tunables(&recording, path, mem)?;
    p.values('t').try_for_each(|assignment| tunables.set(assignment))?;
    let replay = Replay {
        layout: layout(&recording, path, p.value('l'))?,
        model: p.value('m').unwrap_or("nvme").into(),
        log_model: p.value('L').map(String::from),
        props: Vec::new(),
        opts: tunables.settings("lab", 1).engine,
        cores: usize::try_from(cores).unwrap_or(usize::MAX),
        ashift: ashift(&recording),
        seed,
    };
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

/// The tunables of the recorded pool, on a machine with `mem` bytes.
pub(crate) fn recorded_tunables(recording: &Recording, path: &str, mem: u64) -> Result<Tunables, Fail> {
    let mut tunables = Tunables::for_memory(mem);
    for (key, value) in &recording.header.pairs {
        if let Some(name) = key.strip_prefix("tunable.")
            && find(name).is_ok()
        {
            tunables.set(&format!("{name}={value}")).map_err(|e| e.at(format!("'{path}'")))?;
        }
    }
    Ok(tunables)
}

/// The layout that was asked for, or that of the recorded pool.
pub(crate) fn layout(recording: &Recording, path: &str, asked: Option<&str>) -> Result<LayoutSpec, Fail> {
    Ok(match (asked, recording.header.get("layout")) {
        (Some(text), _) => LayoutSpec::parse(text)?,
        (None, Some(text)) => {
            LayoutSpec::parse(text).map_err(|e| e.at(format!("'{path}'; choose one with --layout")))?
        }
        (None, None) => LayoutSpec::single(),
    })
}

/// log2 of the recorded pool's allocation unit.
pub(crate) fn ashift(recording: &Recording) -> u8 {
    recording.header.get("ashift").and_then(|text| text.parse().ok()).unwrap_or(12)
}

/// The recording in a file.
pub(crate) fn read(path: &str) -> Result<Recording, Fail> {
    let failed = |e: std::io::Error| Error::new(ErrorKind::Io, format!("cannot read '{path}': {e}"));
    let file = std::fs::File::open(path).map_err(failed)?;
    let mut bytes = Vec::new();
    file.take(lab::replay::FILE_MAX + 1).read_to_end(&mut bytes).map_err(failed)?;
    if bytes.len() as u64 > lab::replay::FILE_MAX {
        return Err(Error::invalid(format!("'{path}' is longer than 1G, the longest recording")).into());
    }
    lab::replay::parse(&bytes).map_err(|e| e.at(format!("'{path}'")).into())
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
