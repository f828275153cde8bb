//! `weir lab run FILE`: a workload from a file, on modelled devices or on real ones beside them.

use std::path::Path;

use base::{Error, Result};
use host::{Engine, EngineConfig};
use lab::study::Seen;
use lab::workload::{Workload, on_devices, study};
use spa::DevSpec;

use super::real;
use super::study::{SEEDS_MAX, device, number, run as run_study, size, study_options};
use crate::opts::Parsed;
use crate::progress::Bar;
use crate::zpool::parse_for;
use crate::{Done, Fail};

/// Seeds by default.
const SEEDS: u64 = 3;

/// Runs `weir lab run ARGS`.
pub fn run(args: &[String]) -> Done {
    let long: &'static [(&'static str, bool, char)] =
        study_options![("model", true, 'M'), ("real", true, 'r'), ("size", true, 'z'), ("overwrite", false, 'O'),];
    let p = parse_for("lab", args, "n:S:J:jH:F:M:r:z:O", long, "run")?;
    let [file] = &p.operands[..] else {
        return Err(Fail::Usage("it takes one file with a workload".into(), "run"));
    };
    let mut workload = Workload::read(Path::new(file))?;
    if let Some(device) = device(&p)? {
        workload.pool.device = device;
    }
    let real = match p.value('r') {
        Some(list) => {
            let (sizes, seen) = on_real(&p, &list.split(',').collect::<Vec<_>>(), &workload)?;
            workload.on_sizes(&sizes);
            Some(seen)
        }
        None if p.has('z') || p.has('O') => {
            return Err(Fail::Usage("--size and --overwrite go with --real".into(), "run"));
        }
        None => None,
    };
    run_study(&p, &study(file, workload, real.as_deref()), Some(SEEDS))
}

/// Runs it on these devices, once for each seed. Also returns their sizes in bytes.
fn on_real(p: &Parsed, paths: &[&str], workload: &Workload) -> Result<(Vec<u64>, Vec<Seen>)> {
    let wanted = workload.devices();
    if paths.len() != wanted {
        let (are, devices) = (paths.len(), if wanted == 1 { "device" } else { "devices" });
        return Err(Error::invalid(format!("--real: the pool of the workload has {wanted} {devices}, not {are}")));
    }
    let asked = p.value('z').map(|_| size(p, 'z', "size", 0)).transpose()?;
    if let Some(size) = asked
        && size < real::SIZE_MIN
    {
        return Err(Error::invalid("--size: a device needs at least 64M"));
    }
    if asked.is_some() && p.has('O') {
        return Err(Error::invalid("--size is for new files, --overwrite for devices that are there: name one"));
    }
    let first = number(p, 'S', "seed", 0, 0, u64::from(u32::MAX))?;
    let seeds = number(p, 'n', "seeds", SEEDS, 1, SEEDS_MAX)?;
    let _made = real::make(paths, asked, p.has('O'))?;
    let mut bar = Bar::new();
    let (mut sizes, mut all) = (Vec::new(), Vec::new());
    for seed in first..first + seeds {
        let (done, span) = (seed - first, (workload.warmup + workload.seconds) * seeds);
        bar.show(&format!("on the devices: {done} of {seeds} runs, {span} s and the filling in all"), done, seeds);
        let seen;
        (sizes, seen) = once(paths, workload, seed)?;
        all.push(seen);
    }
    bar.clear();
    Ok((sizes, all))
}

fn once(paths: &[&str], workload: &Workload, seed: u64) -> Result<(Vec<u64>, Seen)> {
    let engine = Engine::new(EngineConfig { cpu_threads: workload.pool.cores as usize, ..EngineConfig::default() })?;
    let rt = engine.rt();
    let open = |path: &&str| Ok(DevSpec { dev: real::open(&rt, path, "used")?, is_disk: false });
    let devices = paths.iter().map(open).collect::<Result<Vec<_>>>()?;
    let sizes = devices.iter().map(|d| d.dev.size()).collect();
    Ok((sizes, engine.block_on(on_devices(&rt, devices, workload, seed))?))
}
