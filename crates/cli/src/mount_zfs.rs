//! `mount.zfs`: what mount(8) calls for `mount -t zfs NAME DIR` and for lines of fstab(5).
//!
//! It serves file systems with `mountpoint=legacy`; with the option `zfsutil` also others. Exit
//! codes are those that mount(8) documents, since scripts and systemd look at them.

use std::path::Path;

use admin::fs::temp_props::MountHow;
use admin::request::{Datasets, Mount, MountAt, Pools};
use admin::view::{PoolView, VdevView};
use base::{Error, ErrorKind};

use crate::opts::Parsed;
use crate::zfs::{ask_and_warn, file_system_name, select_one};
use crate::zpool::parse_for;
use crate::{Done, Fail, ask, help, print};

/// mount(8): incorrect invocation or permissions.
const USAGE: u8 = 1;
/// mount(8): system error.
const SYSTEM: u8 = 2;
/// mount(8): mount program bug.
const BUG: u8 = 4;
/// mount(8): mount failure.
const FAILED: u8 = 32;

/// Words of fstab(5) that say when and by whom something is mounted, not how; and what holds
/// anyway.
const IGNORED: &[&str] = &[
    "defaults", "auto", "noauto", "user", "nouser", "users", "owner", "group", "nofail", "_netdev", "silent", "loud",
    "async",
];

/// The options for one mount.
#[derive(Debug)]
struct Options {
    how: MountHow,
    /// `zfsutil`: also a file system with a mount point of its own.
    util: bool,
}

/// Runs `mount.zfs ARGS`; returns the exit code.
pub fn run(args: &[String]) -> u8 {
    let done = std::panic::catch_unwind(|| mount(args));
    match done {
        Ok(Ok(())) => 0,
        Ok(Err(Fail::Usage(what, _))) => {
            eprintln!("{what}");
            eprint!("{}", help::usage("mount.zfs"));
            USAGE
        }
        Ok(Err(Fail::Error(e))) => {
            eprintln!("{e}");
            code_of(e.kind())
        }
        Ok(Err(Fail::AlreadyReported)) => FAILED,
        Err(_) => BUG,
    }
}

fn code_of(kind: ErrorKind) -> u8 {
    match kind {
        ErrorKind::Denied | ErrorKind::Invalid | ErrorKind::NotFound => USAGE,
        ErrorKind::Io => SYSTEM,
        _ => FAILED,
    }
}

fn mount(args: &[String]) -> Done {
    let p = parse_for("mount.zfs", args, "sfnvN:t:o:", &[], "")?;
    let [name, place] = p.operands.as_slice() else {
        let what = match p.operands.len() {
            0 => "missing dataset argument",
            1 => "missing mountpoint argument",
            _ => "too many arguments",
        };
        return Err(Fail::Usage(what.into(), ""));
    };
    if p.has('N') {
        return Err(
            Error::unsupported(format!("'{name}' cannot be mounted in another namespace than the daemon's")).into()
        );
    }
    let cannot = |e: Error| e.at(format!("filesystem '{name}' cannot be mounted"));
    let options = options(&p).map_err(cannot)?;
    let pool = if name.starts_with('/') { pool_of_device(name)? } else { None };
    let name = pool.as_deref().unwrap_or_else(|| dataset(name));
    if name.contains('#') {
        file_system_name(name)?;
    }
    let path =
        std::fs::canonicalize(place).map_err(|e| Error::new(ErrorKind::Io, format!("mount point '{place}': {e}")))?;
    if !path.is_dir() {
        return Err(Error::new(ErrorKind::Io, format!("mount point '{place}' is not a folder")).into());
    }
    let path = crate::absolute(&path.to_string_lossy())?;
    if p.has('v') {
        print(&format!("mount.zfs: dataset '{name}', mount point '{path}'\n"));
    }
    if p.has('f') {
        // A trial: whether there is such a file system.
        return ask(&Datasets(select_one(name))).map(|_| ());
    }
    let at = Some(MountAt { path, util: options.util });
    ask_and_warn(&Mount { name: Some(name.to_string()), how: options.how, at })
}

/// The imported pool that a device belongs to: mount(8) may be told the device in place of the
/// pool's root file system.
fn pool_of_device(path: &str) -> Result<Option<String>, Fail> {
    fn has(vdev: &VdevView, device: &Path) -> bool {
        let is_it = || std::fs::canonicalize(&vdev.name).is_ok_and(|p| p == device);
        vdev.children.is_empty() && is_it() || vdev.children.iter().any(|c| has(c, device))
    }
    let Some(device) = std::fs::canonicalize(path).ok().filter(|p| !p.is_dir()) else { return Ok(None) };
    let pools: Vec<PoolView> = ask(&Pools { names: Vec::new() })?;
    Ok(pools.into_iter().find(|pool| has(&pool.vdevs, &device)).map(|pool| pool.name))
}

/// The dataset, of which older versions of mount(8) make a path if a file of that name is in their
/// folder.
fn dataset(name: &str) -> &str {
    let here = std::env::current_dir().ok().and_then(|d| d.into_os_string().into_string().ok());
    let below = here.as_deref().filter(|h| *h != "/").and_then(|h| name.strip_prefix(h));
    below.unwrap_or(name).trim_start_matches('/')
}

/// The words of `-o`; unknown ones are a mistake unless there is `-s`.
fn options(p: &Parsed) -> Result<Options, Error> {
    let (mut words, mut util) = (Vec::new(), false);
    for word in p.values('o').flat_map(|v| v.split(',')).filter(|w| !w.is_empty()) {
        let is_comment = ["x-", "X-", "comment="].iter().any(|c| word.starts_with(c));
        match word {
            "zfsutil" => util = true,
            // mount(8) has this word for access times that are always kept.
            "strictatime" => words.extend(["atime", "norelatime"]),
            _ if is_comment || IGNORED.contains(&word) => {}
            _ if p.has('s') && MountHow::parse([word].into_iter()).is_err() => {}
            _ => words.push(word),
        }
    }
    Ok(Options { how: MountHow::parse(words.into_iter())?, util })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(args: &[&str]) -> Result<Options, Error> {
        let args: Vec<String> = args.iter().map(|a| a.to_string()).collect();
        options(&parse_for("mount.zfs", &args, "so:", &[], "").unwrap())
    }

    #[test]
    fn options_of_fstab_say_how_to_mount() {
        let o = of(&["-o", "defaults,ro,nofail,x-systemd.requires=weir.service", "-o", "noexec,strictatime"]).unwrap();
        let temp = o.how.temp;
        assert_eq!((temp.readonly, temp.exec, temp.relatime, o.util), (Some(true), Some(false), Some(false), false));
        assert!(of(&["-o", "zfsutil,remount"]).is_ok_and(|o| o.util && o.how.remount));
        assert!(of(&["-o", "nonsense"]).is_err_and(|e| e.to_string().contains("'nonsense'")));
        assert!(of(&["-s", "-o", "nonsense"]).is_ok());
    }

    #[test]
    fn a_path_that_mount_makes_of_a_name_is_the_name() {
        let here = std::env::current_dir().unwrap();
        assert_eq!(dataset("tank/x"), "tank/x");
        assert_eq!(dataset(&here.join("tank/x").display().to_string()), "tank/x");
    }

    #[test]
    fn exit_codes_are_those_of_mount() {
        assert_eq!([ErrorKind::Denied, ErrorKind::Io, ErrorKind::Busy].map(code_of), [1, 2, 32]);
    }
}
