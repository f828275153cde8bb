//! `weir lab fragmentation`: random writes to a pool that is more or less full.

use lab::fragmentation::{Params, study};

use super::parse_study;
use super::study::{device, number, numbers, run as run_study, size, study_options};
use crate::Done;

/// Seeds by default: a run of everything takes its time.
const SEEDS: u64 = 1;

/// Runs `weir lab fragmentation ARGS`.
pub fn run(args: &[String]) -> Done {
    let long: &'static [(&'static str, bool, char)] = study_options![
        ("size", true, 'z'),
        ("fill", true, 'f'),
        ("seconds", true, 's'),
        ("all", false, 'a'),
        ("model", true, 'M')
    ];
    let p = parse_study(args, "z:f:s:aM:n:S:J:jH:F:", long, "fragmentation")?;
    let old = Params::default();
    let fills = numbers(&p, 'f', "fill", old.fills, 1..=95, "a percentage from 1 to 95")?;
    let params = Params {
        size: size(&p, 'z', "size", old.size)?,
        fills,
        seconds: number(&p, 's', "seconds", old.seconds, 1, 36_000)?,
        all: p.has('a'),
        device: device(&p)?,
    };
    run_study(&p, &study(&params)?, Some(SEEDS))
}
