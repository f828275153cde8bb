//! `zpool upgrade`: the features that pools do not have yet, and enabling them; newer versions for
//! pools from before feature flags.

use std::fmt::Write;

use admin::request::{PoolUpgradable, PoolUpgrade, Pools};
use admin::view::PoolView;
use ondisk::feature::{FEATURES, FeatureZap};

use crate::opts::Parsed;
use crate::zpool::for_each_name;
use crate::{Done, Fail, ask, print};

/// The version of pools with feature flags (`SPA_VERSION_FEATURES`).
const VERSION: u64 = ondisk::version::FEATURES;
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
        (true, true) => upgrade_all(version),
        (false, false) => upgrade(&p.operands, version),
    }
}

/// Names and versions of pools, all of them without names.
fn versions(names: &[String]) -> Result<Vec<(String, u64)>, Fail> {
    let version = |pool: &PoolView| {
        let shown = pool.props.iter().find(|p| p.name == "version").and_then(|p| p.exact.parse().ok());
        shown.unwrap_or(VERSION)
    };
    Ok(ask(&Pools { names: names.to_vec() })?.iter().map(|pool| (pool.name.clone(), version(pool))).collect())
}

/// `-a`: says nothing of pools that stay as they are.
fn upgrade_all(version: u64) -> Done {
    let pools = versions(&[])?;
    let mut head = FLAGS;
    let mut changed = false;
    let names: Vec<String> = pools.iter().map(|(name, _)| name.clone()).collect();
    let done = for_each_name(&names, |pool| {
        let old = pools.iter().find(|(name, _)| *name == pool).map_or(VERSION, |(_, old)| *old);
        if old > version {
            return Ok(());
        }
        let text = upgraded(&pool, old, version)?;
        changed |= !text.is_empty();
        if !text.is_empty() {
            print(&format!("{}{text}", std::mem::take(&mut head)));
        }
        Ok(())
    });
    if done.is_ok() && !changed {
        print(head);
        print(&match version {
            VERSION => "All pools are already formatted using feature flags.\n\nEvery feature flags pool already has all supported and requested features enabled.\n".to_string(),
            _ => format!("All pools are already formatted with version {version} or higher.\n"),
        });
    }
    done?
}

/// Upgrades a pool of version `old`; what was done, nothing if it stays as it is.
fn upgraded(pool: &str, old: u64, version: u64) -> Result<String, Fail> {
    // Where there is nothing to do, anyone may hear it.
    if old == VERSION && version == VERSION && ask(&PoolUpgradable { pool: pool.to_string() })?.is_empty() {
        return Ok(String::new());
    }
    let enabled = ask(&PoolUpgrade { pool: pool.to_string(), version })?;
    let mut text = String::new();
    if old < version {
        let what = if version == VERSION { "feature flags".to_string() } else { format!("version {version}") };
        let _ = writeln!(text, "Successfully upgraded '{pool}' from version {old} to {what}.");
    }
    if !enabled.is_empty() {
        let _ = write!(text, "Enabled the following features on '{pool}':\n{}", indented(&enabled, "  "));
    }
    if !text.is_empty() {
        text.push('\n');
    }
    Ok(text)
}

fn upgrade(pools: &[String], version: u64) -> Done {
    let mut head = FLAGS;
    for_each_name(pools, |pool| {
        let one = [pool.to_string()];
        let old = versions(&one)?.first().map_or(VERSION, |(_, old)| *old);
        let text = match () {
            () if old > version => match old {
                VERSION => format!("Pool '{pool}' is already formatted using feature flags.\n\n"),
                _ => format!("Pool '{pool}' is already formatted using more current version '{old}'.\n\n"),
            },
            () if old == version && version != VERSION => {
                format!("Pool '{pool}' is already formatted using version {version}.\n\n")
            }
            () => match upgraded(&pool, old, version)? {
                text if text.is_empty() => {
                    format!("Pool '{pool}' already has all supported and requested features enabled.\n\n")
                }
                text => text,
            },
        };
        print(&format!("{}{text}", std::mem::take(&mut head)));
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
    let pools = versions(&[])?;
    for (pool, _) in pools.iter().filter(|(_, version)| *version == VERSION) {
        let missing = ask(&PoolUpgradable { pool: pool.clone() })?;
        if !missing.is_empty() {
            let _ = writeln!(lines, "{pool}\n{}", indented(&missing, "      "));
        }
    }
    print(FLAGS);
    let old: Vec<_> = pools.iter().filter(|(_, version)| *version < VERSION).collect();
    print(&match old.is_empty() {
        true => "All pools are formatted using feature flags.\n\n".to_string(),
        false => format!(
            "These pools have versions from before feature flags. 'zpool upgrade POOL'
gives them those; software that has none cannot use the pool any more. With
the property compatibility=legacy a pool is left as it is.

VER  POOL
---  ------------
{}
'zpool upgrade -v' lists what each version added.\n\n",
            old.iter().map(|(pool, version)| format!("{version:>2}   {pool}\n")).collect::<String>()
        ),
    });
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
    out += "\nThese versions from before feature flags are supported as well:\n\nVER  DESCRIPTION\n---  ";
    let _ = writeln!(out, "{}", "-".repeat(56));
    for (version, added) in LEGACY.zip(ADDED) {
        let _ = writeln!(out, " {version:<3} {added}");
    }
    out
}
