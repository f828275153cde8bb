//! `weir lab coldstart`: many readers of one input at once.

use base::Error;
use lab::coldstart::{Params, study};

use super::parse_study;
use super::study::{number, run as run_study, size, study_options};
use crate::Done;

/// Seeds by default: runs are long, and their spread is small.
const SEEDS: u64 = 3;

/// Runs `weir lab coldstart ARGS`.
pub fn run(args: &[String]) -> Done {
    let long: &'static [(&'static str, bool, char)] =
        study_options![("readers", true, 'r'), ("cores", true, 'c'), ("input", true, 'i')];
    let p = parse_study(args, "r:c:i:n:S:J:jH:F:", long, "coldstart")?;
    let old = Params::default();
    let mut readers = old.readers;
    if let Some(list) = p.value('r') {
        let one = |text: &str| {
            let bad = || Error::invalid(format!("--readers: '{text}' is not a number of readers"));
            text.trim().parse::<u32>().map_err(|_| bad())
        };
        readers = list.split(',').map(one).collect::<Result<_, _>>()?;
        readers.sort_unstable();
        readers.dedup();
    }
    let params = Params {
        readers,
        cores: number(&p, 'c', "cores", old.cores.into(), 1, u32::MAX.into())? as u32,
        input: size(&p, 'i', "input", old.input)?,
    };
    run_study(&p, &study(&params)?, Some(SEEDS))
}
