//! `weir lab advise FILE|WORKLOAD --goal GOAL`: settings and layouts that serve a goal better; and
//! the search that `weir advise` does as well.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use admin::tunables::{Tunables, find};
use lab::advise::knob::{Change, Kind, changes};
use lab::advise::{Advice, Load, Means, Search, Settings};
use lab::device::Device;
use lab::layout::LayoutSpec;
use lab::study::State;
use lab::workload::Workload;

use super::print_report;
use super::recorded::{self, Machine, Recorded};
use super::study::{JOBS_MAX, cache_file, engine, left, number, size};
use crate::opts::Parsed;
use crate::progress::Bar;
use crate::zpool::parse_for;
use crate::{Done, Fail};

/// Seeds of the last round if nothing is said.
const SEEDS: u64 = 8;

/// Long options of every search; those of one command come before them.
macro_rules! search_options {
    ($($own:expr),* $(,)?) => {
        $crate::lab::recorded::replay_options![
            $($own,)*
            ("goal", true, 'g'),
            ("only", true, 'O'),
            ("seeds", true, 'n'),
            ("jobs", true, 'J'),
            ("state", true, 'F'),
        ]
    };
}
pub(crate) use search_options;

/// Their letters.
macro_rules! search_letters {
    ($own:literal) => {
        concat!($own, "g:O:n:J:F:", $crate::lab::recorded::replay_letters!(""))
    };
}
pub(crate) use search_letters;

/// How a search is done, by its options.
pub(crate) struct How {
    first: u64,
    seeds: usize,
    jobs: usize,
    layouts: Vec<LayoutSpec>,
}

/// What is searched from: the load, and what is set now.
pub(crate) struct Now {
    load: Load,
    tunables: Tunables,
    layout: LayoutSpec,
    recordsize: u64,
    has_log: bool,
    /// Names the load: part of the key of a run that is kept.
    key: String,
}

/// Runs `weir lab advise ARGS`.
pub fn run(args: &[String]) -> Done {
    let p = parse_for("lab", args, search_letters!(""), search_options![], "advise")?;
    let [path] = p.operands.as_slice() else {
        return Err(Fail::Usage("one recording or workload is needed".into(), "advise"));
    };
    let how = How::of(&p)?;
    let is_workload = [".toml", ".fio", ".job"].iter().any(|end| path.ends_with(end));
    let now = match is_workload {
        true => workload(&p, path)?,
        false => recording(&p, Recorded::read(path)?, path, &Machine::of(&p)?)?,
    };
    let goal = p.value('g').unwrap_or("throughput");
    let names = ("POOL".into(), "POOL".into());
    search(&p, how, now, goal, names, |advice| print_report(&p, || serde_json::to_string(advice), || advice.text()))
}

impl Now {
    /// Has a recording replayed with a warm cache if that is closer to what was recorded. Whether
    /// it is.
    pub(crate) fn choose_cache(&mut self) -> Result<bool, Fail> {
        let Load::Recording(recording, replay) = &mut self.load else { return Ok(false) };
        replay.warm = replay.warm || replay.looks_warm(recording)?;
        Ok(replay.warm)
    }
}

impl How {
    /// By the options.
    pub(crate) fn of(p: &Parsed) -> Result<How, Fail> {
        let cores = std::thread::available_parallelism().map_or(1, |n| n.get() as u64);
        Ok(How {
            first: number(p, 'S', "seed", 0, 0, u64::from(u32::MAX))?,
            seeds: number(p, 'n', "seeds", SEEDS, 2, 1000)? as usize,
            jobs: number(p, 'J', "jobs", cores, 1, JOBS_MAX)? as usize,
            layouts: p.values('l').map(LayoutSpec::parse).collect::<Result<_, _>>()?,
        })
    }
}

/// Searches, and has what it found reported; `names` are the pool and its file system. Finished
/// runs are kept until then.
pub(crate) fn search(
    p: &Parsed,
    how: How,
    now: Now,
    goal: &str,
    names: (String, String),
    report: impl FnOnce(&Advice) -> Done,
) -> Done {
    let mut layouts = how.layouts;
    if p.has('L') && !now.has_log {
        layouts.push(now.layout.clone().with_log());
    }
    let base = now.tunables.settings("lab", 1);
    let value = |kind, name: &str| match (kind, name) {
        (Kind::Tunable, _) => Some(find(name).ok()?.get(&base)),
        (Kind::Property, "recordsize") => Some(now.recordsize),
        (Kind::Property, "logbias") => Some(0),
        _ => None,
    };
    let mut all = changes(&value, &now.layout, &layouts);
    // Values that a machine with this memory cannot have are no advice.
    all.retain(|c| c.kind != Kind::Tunable || find(&c.name).is_ok_and(|t| t.parse(&c.value).is_ok()));
    if let Some(only) = p.value('O') {
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
    let set = now.tunables.all();
    let search = Search {
        what: format!("{} {set:?} {:?}", now.key, now.load),
        goal: goal.to_string(),
        names,
        load: now.load,
        changes: all,
        settings: settings(now.tunables),
        first: how.first,
        seeds: how.seeds,
    };
    let means = Means { jobs: how.jobs, engine: &engine, state: state.as_mut(), progress: &mut progress };
    let advice = search.run(means)?;
    bar.clear();
    report(&advice)?;
    match state.filter(|_| own.is_none()) {
        Some(state) => Ok(state.remove()?),
        None => Ok(()),
    }
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
    let load = Load::Workload(Box::new(workload), log);
    // Everything about it is in the load.
    Ok(Now { load, tunables, layout, recordsize, has_log, key: "workload".into() })
}

/// What is searched from with a recording on a machine; `path` names it in errors.
pub(crate) fn recording(p: &Parsed, recorded: Recorded, path: &str, machine: &Machine) -> Result<Now, Fail> {
    let Recorded { recording, key } = recorded;
    let (tunables, replay) = recorded::replay(p, &recording, path, machine, None)?;
    let (layout, recordsize) = (replay.layout.clone(), replay.recordsize(&recording));
    let has_log = layout.has_log();
    let load = Load::Recording(Arc::new(recording), Box::new(replay));
    Ok(Now { load, tunables, layout, recordsize, has_log, key })
}
