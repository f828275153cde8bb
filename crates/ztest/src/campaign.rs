//! Workloads: one seed from creation to the judges, and many seeds with a state file of how far
//! they came.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;

use base::Nanos;

use crate::judge::{self, Level, Verdict};
use crate::lab::{SHAPES, Shape};
use crate::snaps::check_images;
use crate::workload::{Profile, Runner};
use crate::{Check, Fault};

/// How much work a seed is.
#[derive(Clone, Copy, Debug)]
pub struct Effort {
    /// Operations between two exports.
    pub ops: u64,
    /// Exports and imports.
    pub lives: u64,
}

impl Effort {
    /// The usual effort for a profile.
    pub fn of(profile: Profile) -> Effort {
        match profile {
            Profile::Many => Effort { ops: 1500, lives: 2 },
            Profile::Full => Effort { ops: 60, lives: 2 },
            _ => Effort { ops: 150, lives: 3 },
        }
    }
}

/// Runs a seed; its disks at the end, exported.
pub fn run_seed(seed: u64, profile: Profile, effort: Effort) -> Result<Vec<sim::DiskImage>, Fault> {
    run_shape(seed, profile, effort, &SHAPES[0])
}

/// Runs a seed on a pool of that shape; its disks at the end, exported.
pub fn run_shape(
    seed: u64,
    profile: Profile,
    effort: Effort,
    shape: &'static Shape,
) -> Result<Vec<sim::DiskImage>, Fault> {
    run_with(seed, profile, effort, shape, false)
}

/// Runs a seed on a pool of that shape; with `all` it has every feature that weir writes.
pub fn run_with(
    seed: u64,
    profile: Profile,
    effort: Effort,
    shape: &'static Shape,
    all: bool,
) -> Result<Vec<sim::DiskImage>, Fault> {
    let name = format!("seed {seed} ({profile:?}, {})", shape.name);
    let runner = Runner::new(seed, profile).map_err(|e| format!("{name}: {e}"))?;
    let mut runner = runner.shaped(seed, shape);
    if all {
        runner.have_all_features();
    }
    let result = catch_unwind(AssertUnwindSafe(|| live(&mut runner, seed, profile, effort)));
    let why = match result {
        Ok(Ok(())) => return Ok(runner.lab.images()),
        Ok(Err(e)) => e,
        Err(panic) => format!("panic: {}", panic_text(&*panic)),
    };
    let trace: Vec<&str> = runner.trace.iter().map(String::as_str).collect();
    let why = format!("{name}: operation {}: {why}\n    after: {}", runner.ops, trace.join("\n           "));
    // Drops after a failure may fail again; the first finding counts.
    std::mem::forget(runner);
    Err(why)
}

/// The message of a panic.
pub fn panic_text(panic: &(dyn std::any::Any + Send)) -> String {
    panic
        .downcast_ref::<String>()
        .cloned()
        .or_else(|| panic.downcast_ref::<&str>().map(|s| (*s).to_string()))
        .unwrap_or_else(|| "no text".into())
}

fn live(runner: &mut Runner, seed: u64, profile: Profile, effort: Effort) -> Check {
    for life in 0..effort.lives {
        drive(runner, async |r: &mut Runner| {
            if life == 0 {
                r.create().await?;
            } else {
                r.import().await?;
                r.compare().await.map_err(|e| format!("after import: {e}"))?;
            }
            for n in 0..effort.ops {
                r.step().await?;
                if n % 70 == 69 {
                    r.compare().await?;
                }
            }
            if profile == Profile::Many {
                r.crowd(effort.ops * 3).await?;
            }
            if profile == Profile::Full {
                r.fill().await?;
            }
            r.compare().await?;
            r.export().await
        })?;
        runner.lab = Rc::new(runner.lab.reborn(seed.wrapping_mul(1000).wrapping_add(life + 1)));
    }
    drive(runner, async |r: &mut Runner| {
        r.import().await?;
        r.compare().await.map_err(|e| format!("after the last import: {e}"))?;
        r.export().await
    })
}

/// The longest that a part of a seed may take, in virtual time.
const SPAN_MAX: Nanos = Nanos::from_secs(24 * 3600);

/// Runs `f` in the runner's world.
pub fn drive<T>(runner: &mut Runner, f: impl AsyncFnOnce(&mut Runner) -> Check<T>) -> Check<T> {
    let lab = runner.lab.clone();
    lab.sim.try_block_on_for(SPAN_MAX, f(runner)).map_err(|report| format!("stalled: {report}"))?
}

/// The outcome of many seeds.
#[derive(Clone, Copy, Default, Debug)]
pub struct Tally {
    /// Seeds run.
    pub seeds: u64,
    /// Seeds with findings.
    pub bad: u64,
    /// Seeds that could not be judged.
    pub missing: u64,
}

/// Runs and judges a seed; with `all` on a pool with every feature that weir writes.
pub fn judge_seed(seed: u64, shape: &'static Shape, all: bool, level: Level, tally: &mut Tally) {
    tally.seeds += 1;
    let profile = Profile::of(seed);
    let ran = run_with(seed, profile, Effort::of(profile), shape, all);
    // zdb does not count the references of cloned blocks that are too many.
    let ran = ran.and_then(|images| match all && shape.is_read_by_checker() {
        true => check_images(&images).map(|()| images).map_err(|e| format!("seed {seed} ({profile:?}): {e}")),
        false => Ok(images),
    });
    match ran {
        Err(e) => {
            tally.bad += 1;
            println!("BAD {e}");
        }
        Ok(images) => match judge::judge(&images, level, &format!("seed{seed}")) {
            Verdict::Good => {}
            Verdict::Missing(what) => {
                tally.missing += 1;
                println!("MISSING seed {seed}: {what}");
            }
            Verdict::Bad(why) => {
                tally.bad += 1;
                println!("BAD seed {seed} ({profile:?}): judges: {why}");
            }
        },
    }
}
