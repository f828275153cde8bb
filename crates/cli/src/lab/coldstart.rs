//! `weir lab coldstart`: many readers of one input at once.

use lab::coldstart::{Params, study};

use super::parse_study;
use super::study::{device, number, numbers, run as run_study, size, study_options};
use crate::Done;

/// Seeds by default: runs are long, and their spread is small.
const SEEDS: u64 = 3;

/// Runs `weir lab coldstart ARGS`.
pub fn run(args: &[String]) -> Done {
    let long: &'static [(&'static str, bool, char)] =
        study_options![("readers", true, 'r'), ("cores", true, 'c'), ("input", true, 'i'), ("model", true, 'M')];
    let p = parse_study(args, "r:c:i:M:n:S:J:jH:F:", long, "coldstart")?;
    let old = Params::default();
    let readers = numbers(&p, 'r', "readers", old.readers, 0..=u32::MAX, "a number of readers")?;
    let params = Params {
        readers,
        cores: number(&p, 'c', "cores", old.cores.into(), 1, u32::MAX.into())? as u32,
        input: size(&p, 'i', "input", old.input)?,
        device: device(&p)?,
    };
    run_study(&p, &study(&params)?, Some(SEEDS))
}
