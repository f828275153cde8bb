//! `weir lab advise FILE|WORKLOAD --goal GOAL`: settings and layouts that serve a goal better.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use admin::tunables::{Tunables, find};
use base::Error;
use lab::advise::knob::{Change, Kind, changes};
use lab::advise::{Load, Means, Search, Settings};
use lab::device::Device;
use lab::layout::LayoutSpec;
use lab::replay::Replay;
use lab::study::State;
use lab::workload::Workload;

use super::print_report;
use super::study::{JOBS_MAX, cache_file, engine, left, number, size};
use crate::lab_replay;
use crate::opts::Parsed;
use crate::progress::Bar;
use crate::zpool::parse_for;
use crate::{Done, Fail};

/// Memory of the machine of a recording if nothing is said, as for a replay.
const MEM: u64 = 8 << 30;
/// Seeds of the last round if nothing is said.
const SEEDS: u64 = 8;

/// What is searched from: the load, and what is set now.
struct Now {
    load: Load,
    tunables: Tunables,
    layout: LayoutSpec,
    recordsize: u64,
    has_log: bool,
}

/// Runs `weir lab advise ARGS`.
pub fn run(args: &[String]) -> Done {
    let long = &[
        ("goal", true, 'g'),
        ("layout", true, 'l'),
        ("model", true, 'm'),
        ("log-model", true, 'L'),
        ("tunable", true, 't'),
        ("mem", true, 'M'),
        ("cores", true, 'c'),
        ("only", true, 'o'),
        ("seeds", true, 'n'),
        ("seed", true, 'S'),
        ("jobs", true, 'J'),
        ("state", true, 'F'),
        ("json", false, 'j'),
    ];
    let p = parse_for("lab", args, "g:l:m:L:t:M:c:o:n:S:J:F:j", long, "advise")?;
    let [path] = p.operands.as_slice() else {
        return Err(Fail::Usage("one recording or workload is needed".into(), "advise"));
    };
    let goal = p.value('g').unwrap_or("throughput").to_string();
    let first = number(&p, 'S', "seed", 0, 0, u64::from(u32::MAX))?;
    let seeds = number(&p, 'n', "seeds", SEEDS, 2, 1000)? as usize;
    let cores = std::thread::available_parallelism().map_or(1, |n| n.get() as u64);
    let jobs = number(&p, 'J', "jobs", cores, 1, JOBS_MAX)? as usize;

    let is_workload = [".toml", ".fio", ".job"].iter().any(|end| path.ends_with(end));
    let now = if is_workload { workload(&p, path)? } else { recording(&p, path)? };
    let alternatives = alternatives(&p, &now)?;
    let base = now.tunables.settings("lab", 1);
    let value = |kind, name: &str| match (kind, name) {
        (Kind::Tunable, _) => Some(find(name).ok()?.get(&base)),
        (Kind::Property, "recordsize") => Some(now.recordsize),
        (Kind::Property, "logbias") => Some(0),
        _ => None,
    };
    let mut all = changes(&value, &now.layout, &alternatives);
    // Values that a machine with this memory cannot have are no advice.
    all.retain(|c| c.kind != Kind::Tunable || find(&c.name).is_ok_and(|t| t.parse(&c.value).is_ok()));
    if let Some(only) = p.value('o') {
        let parts: Vec<&str> = only.split(',').map(str::trim).collect();
        all.retain(|c| parts.iter().any(|part| c.name.contains(part)));
    }

    let engine = engine()?;
    let own = p.value('F').map(PathBuf::from);
    let mut state = match own.clone().or_else(|| cache_file("advise")) {
        Some(path) => Some(State::open(&path)?),
        None => None,
    };
    let mut bar = Bar::new();
    let started = Instant::now();
    let mut progress = |done: u64, total: u64| {
        bar.show(&format!("advise: {done} of about {total} runs{}", left(started, done, total)), done, total);
    };
    let bytes = std::fs::read(path).map_err(|e| Error::invalid(format!("'{path}' cannot be read: {e}")))?;
    let set = now.tunables.all();
    let search = Search {
        what: format!("{:016x} {set:?} {:?} {}", codec::sha256(&bytes).0[0], now.load, goal_free(&p)),
        goal,
        load: now.load,
        changes: all,
        settings: settings(now.tunables),
        first,
        seeds,
    };
    let means = Means { jobs, engine: &engine, state: state.as_mut(), progress: &mut progress };
    let advice = search.run(means)?;
    bar.clear();
    print_report(&p, || serde_json::to_string(&advice), || advice.text())?;
    match state.filter(|_| own.is_none()) {
        Some(state) => Ok(state.remove()?),
        None => Ok(()),
    }
}

/// Options that a run depends on and that are not in the load.
fn goal_free(p: &Parsed) -> String {
    ['m', 'L', 'M', 'c'].map(|letter| p.value(letter).unwrap_or_default()).join(" ")
}

/// The engine's settings for changed tunables.
fn settings(tunables: Tunables) -> Settings {
    Arc::new(move |changes: &[Change]| {
        let mut tunables = tunables.clone();
        for change in changes.iter().filter(|c| c.kind == Kind::Tunable) {
            tunables.set(&format!("{}={}", change.name, change.value))?;
        }
        Ok(tunables.settings("lab", 1).engine)
    })
}

/// Layouts to try: those that were named, and the present one with a log device.
fn alternatives(p: &Parsed, now: &Now) -> Result<Vec<LayoutSpec>, Fail> {
    let mut out = p.values('l').map(LayoutSpec::parse).collect::<Result<Vec<_>, _>>()?;
    if p.has('L') && !now.has_log {
        out.push(now.layout.clone().with_log());
    }
    Ok(out)
}

fn workload(p: &Parsed, path: &str) -> Result<Now, Fail> {
    let mut workload = Workload::read(Path::new(path))?;
    if let Some(name) = p.value('m') {
        workload.pool.device = Device::of(name)?;
    }
    workload.pool.memory = size(p, 'M', "mem", workload.pool.memory)?;
    let mut tunables = Tunables::for_memory(workload.pool.memory);
    p.values('t').try_for_each(|assignment| tunables.set(assignment))?;
    let log = p.value('L').map(Device::of).transpose()?.map(Box::new);
    let (layout, recordsize) = (workload.pool.layout.clone(), workload.pool.recordsize);
    let has_log = layout.has_log() || workload.pool.log.is_some();
    Ok(Now { load: Load::Workload(Box::new(workload), log), tunables, layout, recordsize, has_log })
}

fn recording(p: &Parsed, path: &str) -> Result<Now, Fail> {
    let mem = size(p, 'M', "mem", MEM)?;
    if !(256 << 20..=1 << 40).contains(&mem) {
        return Err(Error::invalid("a replay needs 256M to 1T of memory").into());
    }
    let recording = lab_replay::read(path)?;
    let mut tunables = lab_replay::recorded_tunables(&recording, path, mem)?;
    p.values('t').try_for_each(|assignment| tunables.set(assignment))?;
    let layout = lab_replay::layout(&recording, path, None)?;
    let replay = Replay {
        layout: layout.clone(),
        model: p.value('m').unwrap_or("nvme").into(),
        log_model: p.value('L').map(String::from),
        props: Vec::new(),
        opts: tunables.settings("lab", 1).engine,
        cores: number(p, 'c', "cores", 2, 1, 1024)? as usize,
        ashift: lab_replay::ashift(&recording),
        seed: 0,
    };
    replay.check()?;
    let recordsize = replay.recordsize(&recording);
    let has_log = layout.has_log();
    Ok(Now { load: Load::Recording(Arc::new(recording), Box::new(replay)), tunables, layout, recordsize, has_log })
}
