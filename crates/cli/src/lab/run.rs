//! `weir lab run FILE`: a workload from a file.

use std::path::Path;

use lab::workload::{Workload, study};

use super::study::{run as run_study, study_options};
use crate::zpool::parse_for;
use crate::{Done, Fail};

/// Seeds by default.
const SEEDS: u64 = 3;

/// Runs `weir lab run ARGS`.
pub fn run(args: &[String]) -> Done {
    let long: &'static [(&'static str, bool, char)] = study_options![];
    let p = parse_for("lab", args, "n:S:J:jH:F:", long, "run")?;
    let [file] = &p.operands[..] else {
        return Err(Fail::Usage("it takes one file with a workload".into(), "run"));
    };
    run_study(&p, &study(file, Workload::read(Path::new(file))?), Some(SEEDS))
}
