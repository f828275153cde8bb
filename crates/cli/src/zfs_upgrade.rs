//! `zfs upgrade`: the versions of file systems.

use admin::request::{Datasets, FsUpgrade, Select};
use base::ErrorKind;
use ondisk::zpl::ZPL_VERSION;

use crate::opts::Parsed;
use crate::{Done, Fail, ask, print};

/// What each version added, as OpenZFS's command describes them.
const VERSIONS: [&str; ZPL_VERSION as usize] = [
    "Initial ZFS filesystem version",
    "Enhanced directory entries",
    "Case insensitive and filesystem user identifier (FUID)",
    "userquota, groupquota properties",
    "System attributes",
];

/// Names and versions of file systems; all without names.
fn versions(names: Vec<String>, recursive: bool) -> Result<Vec<(String, u64)>, Fail> {
    let depth = if recursive || names.is_empty() { None } else { Some(0) };
    let wanted = vec!["version".to_string()];
    let select = Select { names, depth, filesystems: true, wanted, ..Select::default() };
    let all = ask(&Datasets(select))?;
    let version = |d: &admin::view::DatasetView| {
        d.props.iter().find(|p| p.name == "version").and_then(|p| p.exact.parse::<u64>().ok())
    };
    Ok(all.iter().filter_map(|d| Some((d.name.clone(), version(d)?))).collect())
}

/// `zfs upgrade`
pub fn upgrade(p: &Parsed) -> Done {
    let usage = |what: &str| Err(Fail::Usage(what.to_string(), "upgrade"));
    let wanted = match p.value('V').map(|v| {
        if v == "current" { Ok(ZPL_VERSION) } else { v.parse::<u64>() }.ok().filter(|n| (1..=ZPL_VERSION).contains(n))
    }) {
        None => ZPL_VERSION,
        Some(Some(version)) => version,
        Some(None) => return usage(&format!("invalid version {}", p.value('V').unwrap_or_default())),
    };
    let (all, names) = (p.has('a'), &p.operands);
    if !all && names.is_empty() && (p.has('r') || p.has('V')) {
        return usage("missing filesystem argument");
    }
    if all && !names.is_empty() {
        return usage("-a takes no names");
    }
    if p.has('v') {
        if all || p.has('r') || p.has('V') || !names.is_empty() {
            return usage("-v goes with nothing else");
        }
        print("The following filesystem versions are supported:\n\nVER  DESCRIPTION\n");
        print(&format!("---  {}\n", "-".repeat(56)));
        print(&VERSIONS.iter().enumerate().map(|(i, what)| format!("{:>2}   {what}\n", i + 1)).collect::<String>());
        return Ok(());
    }
    if !all && names.is_empty() {
        print(&format!("This system is currently running ZFS filesystem version {ZPL_VERSION}.\n\n"));
        let old: Vec<_> = versions(Vec::new(), true)?.into_iter().filter(|(_, v)| *v < ZPL_VERSION).collect();
        if old.is_empty() {
            print("All filesystems are formatted with the current version.\n");
            return Ok(());
        }
        print(
            "The following filesystems are out of date. After being\nupgraded, these filesystems can not be used by older software.\n\n",
        );
        print("VER  FILESYSTEM\n---  ------------\n");
        print(&old.iter().map(|(name, v)| format!("{v:>2}   {name}\n")).collect::<String>());
        return Ok(());
    }
    let (mut upgraded, mut same, mut failed) = (0, 0, None);
    for (name, version) in versions(names.clone(), p.has('r') || all)? {
        match version.cmp(&wanted) {
            std::cmp::Ordering::Equal => same += 1,
            std::cmp::Ordering::Greater => {
                print(&format!("{name}: can not be downgraded; it is already at version {version}\n"));
                failed = failed.or(Some(Fail::AlreadyReported));
            }
            std::cmp::Ordering::Less => match ask(&FsUpgrade { name: name.clone(), version: wanted }) {
                Ok(()) => upgraded += 1,
                Err(Fail::Error(e)) if e.kind() == ErrorKind::Unsupported => {
                    print(&format!("{name}: can not be upgraded; the pool version needs to be upgraded\nfirst\n\n"));
                    failed = failed.or(Some(Fail::AlreadyReported));
                }
                Err(Fail::Error(e)) => {
                    eprintln!("{e}");
                    failed = failed.or(Some(Fail::AlreadyReported));
                }
                Err(other) => return Err(other),
            },
        }
    }
    print(&format!("{upgraded} filesystems upgraded\n"));
    if same > 0 {
        print(&format!("{same} filesystems already at this version\n"));
    }
    failed.map_or(Ok(()), Err)
}
