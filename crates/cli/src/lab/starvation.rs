//! `weir lab starvation`: a writer with gzip-9 beside a reader.

use lab::starvation::study;

use super::parse_study;
use super::study::{device, number, run as run_study, study_options};
use crate::Done;

/// Seeds by default: gzip-9 takes its time.
const SEEDS: u64 = 3;

/// Runs `weir lab starvation ARGS`.
pub fn run(args: &[String]) -> Done {
    let long: &'static [(&'static str, bool, char)] = study_options![("seconds", true, 's'), ("model", true, 'M')];
    let p = parse_study(args, "s:M:n:S:J:jH:F:", long, "starvation")?;
    let seconds = number(&p, 's', "seconds", 30, 5, 600)?;
    run_study(&p, &study(seconds, device(&p)?.as_ref())?, Some(SEEDS))
}
