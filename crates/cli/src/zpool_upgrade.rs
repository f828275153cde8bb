//! `zpool upgrade`: the features that pools do not have yet, and enabling them.

use std::fmt::Write;

use admin::request::{PoolUpgradable, PoolUpgrade, Pools};
use ondisk::feature::{FEATURES, FeatureZap};

use crate::opts::Parsed;
use crate::zpool::for_each_name;
use crate::{Done, Fail, ask, print};

/// The version of pools with feature flags (`SPA_VERSION_FEATURES`), which all of weir's are.
const VERSION: u64 = 5000;
/// The last version before it, 28, and the first.
const LEGACY: std::ops::RangeInclusive<u64> = 1..=ADDED.len() as u64;
/// What each of them added to the one before.
const ADDED: [&str; 28] = [
    "the first version",
    "metadata in several copies (ditto blocks)",
    "hot spares and double parity (raidz2)",
    "zpool history",
    "compression with gzip",
    "the property bootfs",
    "intent logs on devices of their own",
    "delegated permissions (zfs allow)",
    "refquota and refreservation",
    "cache devices",
    "faster scrubs",
    "Snapshot properties",
    "the property usedbysnapshots",
    "passthrough-x for aclinherit",
    "the space of each user and group",
    "properties of COMSTAR",
    "triple parity (raidz3)",
    "holds on snapshots",
    "removal of log devices",
    "compression with zle",
    "deduplication",
    "properties that came with a stream",
    "the slim intent log",
    "system attributes",
    "statistics of scrubs",
    "snapshots destroyed faster",
    "several snapshots made at once",
    "several devices replaced at once",
];
/// The first lines.
const FLAGS: &str = "This system supports ZFS pool feature flags.\n\n";

/// Runs `zpool upgrade`.
pub(crate) fn run(p: &Parsed) -> Done {
    let usage = |what: &str| Fail::Usage(what.into(), "upgrade");
    let version = match p.value('V') {
        None => VERSION,
        Some(text) => match text.parse::<u64>().ok().filter(|v| LEGACY.contains(v) || *v == VERSION) {
            Some(version) => version,
            None => return Err(usage(&format!("invalid version '{text}'"))),
        },
    };
    let picks = p.has('a') || p.has('V');
    if p.has('v') {
        return match picks || !p.operands.is_empty() {
            true => Err(usage("-v cannot be combined with pools or other options")),
            false => {
                print(&supported());
                Ok(())
            }
        };
    }
    match (p.has('a'), p.operands.is_empty()) {
        (true, false) => Err(usage("-a cannot be combined with names of pools")),
        (false, true) if picks => Err(usage("-V needs -a or the names of pools")),
        (false, true) => missing(),
        (true, true) => upgrade(&names()?, version),
        (false, false) => upgrade(&p.operands, version),
    }
}

fn names() -> Result<Vec<String>, Fail> {
    Ok(ask(&Pools { names: Vec::new() })?.into_iter().map(|pool| pool.name).collect())
}

fn upgrade(pools: &[String], version: u64) -> Done {
    let mut head = FLAGS;
    for_each_name(pools, |pool| {
        if version < VERSION {
            print(&format!("{head}Pool '{pool}' is already formatted using feature flags.\n\n"));
            head = "";
            return Ok(());
        }
        let enabled = ask(&PoolUpgrade { pool: pool.clone() })?;
        print(&match enabled.is_empty() {
            true => format!("{head}Pool '{pool}' already has all supported and requested features enabled.\n\n"),
            false => format!("{head}Enabled the following features on '{pool}':\n{}\n", indented(&enabled, "  ")),
        });
        head = "";
        Ok(())
    })?
}

/// Lines of names, each after `by`.
fn indented(names: &[String], by: &str) -> String {
    names.iter().fold(String::new(), |out, name| out + by + name + "\n")
}

/// Shows the pools that could have more features.
fn missing() -> Done {
    let mut lines = String::new();
    for pool in names()? {
        let missing = ask(&PoolUpgradable { pool: pool.clone() })?;
        if !missing.is_empty() {
            let _ = writeln!(lines, "{pool}\n{}", indented(&missing, "      "));
        }
    }
    print(FLAGS);
    print("All pools are formatted using feature flags.\n\n");
    print(&match lines.is_empty() {
        true => "Every feature flags pool has all supported and requested features enabled.\n".to_string(),
        false => format!(
            "These pools do not have all features that weir writes. 'zpool upgrade POOL'
enables them; software that does not know one cannot use the pool any more
once it is active, and a feature cannot be disabled again. The property
'compatibility' of a pool says which it may have.

POOL  FEATURE
---------------
{lines}"
        ),
    });
    Ok(())
}

/// The features that weir writes.
fn supported() -> String {
    let mut out = format!("{FLAGS}The following features are supported:\n\nFEAT DESCRIPTION\n{}\n", "-".repeat(61));
    for feature in FEATURES.iter().filter(|f| f.may_be_enabled()) {
        let note = if feature.zap == FeatureZap::Write { " (read-only compatible)" } else { "" };
        let _ = writeln!(out, "{:<37}{note}\n     {}", feature.name, feature.description);
    }
    out += "\nThese versions from before feature flags can be imported:\n\nVER  DESCRIPTION\n---  ";
    let _ = writeln!(out, "{}", "-".repeat(56));
    for (version, added) in LEGACY.zip(ADDED) {
        let _ = writeln!(out, " {version:<3} {added}");
    }
    out
}
