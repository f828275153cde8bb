//! `weir lab arc`: hit rates of the cache, and that its limit holds.

use lab::arc::{Params, study};

use super::parse_study;
use super::study::{number, run as run_study, size, study_options};
use crate::Done;

/// Runs `weir lab arc ARGS`.
pub fn run(args: &[String]) -> Done {
    let long: &'static [(&'static str, bool, char)] =
        study_options![("limit", true, 'l'), ("files", true, 'f'), ("writes", true, 'w')];
    let p = parse_study(args, "l:f:w:n:S:J:jH:F:", long, "arc")?;
    let old = Params::default();
    let params = Params {
        limit: size(&p, 'l', "limit", old.limit)?,
        files: number(&p, 'f', "files", old.files.into(), 0, u32::MAX.into())? as u32,
        writes: number(&p, 'w', "writes", old.writes.into(), 0, u32::MAX.into())? as u32,
    };
    run_study(&p, &study(params)?, None)
}
