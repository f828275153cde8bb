//! `weir kstat`: counters as OpenZFS's files have them, without a mounted folder.

use admin::request::{Kstat, KstatNames};

use crate::zpool::parse_for;
use crate::{Done, ask, print};

/// Runs `weir kstat ARGS`.
pub fn run(args: &[String]) -> Done {
    if matches!(args.first().map(String::as_str), Some("help" | "--help" | "-h")) {
        return crate::help::print_topic("kstat", &[]);
    }
    let p = parse_for("kstat", args, "", &[], "")?;
    if p.operands.is_empty() {
        ask(&KstatNames)?.iter().for_each(|name| print(&format!("{name}\n")));
        return Ok(());
    }
    for name in &p.operands {
        print(&ask(&Kstat { name: name.clone() })?);
    }
    Ok(())
}
