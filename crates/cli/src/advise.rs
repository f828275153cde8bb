//! `weir advise`: records what users do with a pool, searches settings that serve a goal better,
//! and says in at most three sentences what would change and why.
//!
//! The recording is that of `weir trace record`, the search that of `weir lab advise`; the
//! sentences are [`lab::advise::explain`]'s. What only a live pool knows comes from here: what its
//! devices are, the memory of the machine, and the names of its file systems.

use std::path::Path;
use std::time::{Duration, Instant};

use admin::request::{Datasets, Pools, Select, TraceRecord};
use admin::tunables::Tunables;
use admin::view::{RecordedView, VdevView};
use base::Error;
use host::Medium;
use lab::advise::Advice;
use lab::advise::explain::{few, goal_for, losses, not_recorded, pace, unusable};
use lab::advise::goal::Goal;
use lab::replay::Plan;
use serde_json::json;

use crate::lab::advise::{How, recording, search, search_letters, search_options};
use crate::lab::print_report;
use crate::lab::recorded::{Machine, Recorded, memory};
use crate::lab::study::left;
use crate::opts::Parsed;
use crate::progress::Bar;
use crate::trace_record::{Output, seconds, token};
use crate::zpool::parse_for;
use crate::{Done, Fail, ask, ask_bytes};

/// Seconds of a recording if nothing is said.
const SECONDS: u64 = 60;
/// The least and most memory that a replay takes.
const MEM: (u64, u64) = (256 << 20, 1 << 40);

/// What the answer is about.
struct About {
    pool: String,
    goal: String,
    ops: u64,
    lost: u64,
    seconds: f64,
    /// Share of their time in which clients wait for the pool.
    waiting: f64,
    model: String,
    /// Where the model is from, in words.
    source: &'static str,
    /// Whether replays begin with a warm cache.
    warm: bool,
    notes: Vec<String>,
}

/// Runs `weir advise ARGS`.
pub fn run(args: &[String]) -> Done {
    let long = search_options![("seconds", true, 's'), ("keep-recording", true, 'o')];
    let p = parse_for("advise", args, search_letters!("s:o:"), long, "")?;
    let [pool] = p.operands.as_slice() else { return Err(Fail::Usage("one pool is needed".into(), "")) };
    // What is wrong with the command line is said before a minute goes by.
    let span = seconds(&p, "")?.unwrap_or(SECONDS);
    let how = How::of(&p)?;
    let mem = memory(&p, host::physmem_bytes().clamp(MEM.0, MEM.1))?;
    p.values('t').try_for_each(|assignment| Tunables::for_memory(mem).set(assignment))?;
    p.value('g').map(Goal::parse).transpose()?;
    let (machine, source) = machine(&p, pool, mem)?;

    let (bytes, view) = record(&p, pool, span)?;
    let recorded = Recorded::of(&bytes, p.value('o').unwrap_or("the recording"))?;
    drop(bytes);
    if let Some(fault) = unusable(&recorded.recording, pool) {
        return Err(Error::invalid(fault).into());
    }
    let plan = Plan::new(&recorded.recording)?;
    let waiting = plan.waiting();
    let goal = p.value('g').unwrap_or_else(|| goal_for(waiting)).to_string();
    let parsed = Goal::parse(&goal)?;
    if let Some(fault) = not_recorded(&parsed, &recorded.recording) {
        return Err(Error::invalid(fault).into());
    }
    let mut about = About {
        pool: pool.clone(),
        goal: goal.clone(),
        ops: view.ops,
        lost: view.lost,
        seconds: view.span as f64 / 1e9,
        waiting,
        model: machine.model.clone(),
        source,
        warm: false,
        notes: losses(view.lost).into_iter().chain(few(&recorded.recording)).collect(),
    };
    about.notes.extend(pace(&parsed, waiting));
    let names = (pool.clone(), name_of(pool, plan.dataset));
    let mut now = recording(&p, recorded, p.value('o').unwrap_or("the recording"), &machine)?;
    about.warm = now.choose_cache()?;
    search(&p, how, now, &goal, names, |advice| {
        about.notes.extend(advice.misfit(&about.model));
        show(&p, &about, advice)
    })
}

/// Records the pool. The bytes are kept in memory, and in a file if that was asked for.
fn record(p: &Parsed, pool: &str, span: u64) -> Result<(Vec<u8>, RecordedView), Fail> {
    let mut out = p.value('o').map(Output::new);
    let (mut bar, started) = (Bar::new(), Instant::now());
    let whole = Duration::from_secs(span);
    let mut all = Vec::new();
    let request = TraceRecord { pool: pool.to_string(), seconds: Some(span), token: token() };
    let view = ask_bytes(&request, &mut |bytes| {
        all.extend_from_slice(bytes);
        out.as_mut().map_or(Ok(()), |out| out.put(bytes))?;
        let [done, total] = [started.elapsed().min(whole), whole].map(|t| t.as_millis() as u64);
        bar.show(&format!("advise: recording {pool}{}", left(started, done, total)), done, total);
        Ok(())
    })?;
    Ok((all, view))
}

/// The name of the pool's file system with this number; the pool's own if it is gone.
fn name_of(pool: &str, dataset: u64) -> String {
    let wanted = vec!["objsetid".to_string()];
    let select = Select { names: vec![pool.to_string()], filesystems: true, wanted, ..Select::default() };
    let all = ask(&Datasets(select)).unwrap_or_default();
    let is = |d: &admin::view::DatasetView| {
        d.props.iter().any(|prop| prop.name == "objsetid" && prop.exact == dataset.to_string())
    };
    all.into_iter().find(is).map_or_else(|| pool.to_string(), |d| d.name)
}

/// The machine to search on: what the options say, or what the pool's devices are; and where the
/// model of the devices is from.
fn machine(p: &Parsed, pool: &str, mem: u64) -> Result<(Machine, &'static str), Fail> {
    let views = ask(&Pools { names: vec![pool.to_string()] })?;
    let (mut data, mut logs) = (Vec::new(), Vec::new());
    for view in &views {
        for top in &view.vdevs.children {
            media(top, if top.is_log { &mut logs } else { &mut data });
        }
    }
    let (model, source) = match (p.value('m'), model_of(&data)) {
        (Some(model), _) => (model, "by --model"),
        (None, Some(model)) => (model, "by what sysfs says of them"),
        (None, None) => {
            (crate::lab::recorded::MODEL, "assumed, since files and virtual disks do not say what they are")
        }
    };
    let log_model = p.value('L').or(model_of(&logs)).map(String::from);
    let machine = Machine { mem, model: model.to_string(), log_model };
    machine.check()?;
    Ok((machine, source))
}

/// What the devices below a vdev are.
fn media(vdev: &VdevView, out: &mut Vec<Medium>) {
    match vdev.children.as_slice() {
        [] if vdev.kind == "disk" => out.push(host::medium(Path::new(&vdev.name))),
        [] => out.push(Medium::Unknown),
        children => children.iter().for_each(|child| media(child, out)),
    }
}

/// The model of the slowest of these devices; none if one of them is not known.
fn model_of(media: &[Medium]) -> Option<&'static str> {
    let names = [(Medium::Spinning, "hdd"), (Medium::Flash, "sata-ssd"), (Medium::Nvme, "nvme")];
    let known = !media.contains(&Medium::Unknown);
    names.into_iter().find(|(medium, _)| known && media.contains(medium)).map(|(_, name)| name)
}

/// The commands that make the changes.
fn commands(advice: &Advice) -> Vec<(String, String)> {
    let of_weir = |line: &String| match line.starts_with("weir ") {
        true => line.clone(),
        false => format!("weir {line}"),
    };
    advice.changes.iter().filter_map(|c| Some((of_weir(c.lines.first()?), c.cost.clone()))).collect()
}

/// Prints the answer.
fn show(p: &Parsed, about: &About, advice: &Advice) -> Done {
    let (sentences, commands) = (advice.sentences(), commands(advice));
    let object = || {
        let lines: Vec<&str> = commands.iter().map(|(line, _)| line.as_str()).collect();
        serde_json::to_string(&json!({
            "pool": about.pool,
            "goal": about.goal,
            "operations": about.ops,
            "lost": about.lost,
            "seconds": about.seconds,
            "waiting_percent": about.waiting * 100.0,
            "model": about.model,
            "model_source": about.source,
            "warm_cache": about.warm,
            "answer": if lines.is_empty() { "leave it" } else { "change" },
            "sentences": sentences,
            "notes": about.notes,
            "commands": lines,
            "advice": advice,
        }))
    };
    let text = || {
        let About { pool, goal, ops, seconds, model, source, notes, .. } = about;
        let mut out =
            format!("{pool}: {ops} operations in {seconds:.1} s; goal {goal}; devices {model} ({source})\n\n");
        out.extend(sentences.iter().map(|line| format!("{line}\n")));
        if !commands.is_empty() {
            out.push('\n');
        }
        out.extend(commands.iter().map(|(line, cost)| format!("  {line}\n    costs: {cost}\n")));
        if !notes.is_empty() {
            out.push('\n');
        }
        out.extend(notes.iter().map(|line| format!("note: {line}\n")));
        out
    };
    print_report(p, object, text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_slowest_device_is_the_model() {
        use Medium::{Flash, Nvme, Spinning, Unknown};
        for (media, want) in [
            (&[Nvme, Nvme][..], Some("nvme")),
            (&[Nvme, Flash], Some("sata-ssd")),
            (&[Flash, Spinning, Nvme], Some("hdd")),
            (&[Nvme, Unknown], None),
            (&[], None),
        ] {
            assert_eq!(model_of(media), want, "{media:?}");
        }
    }
}
