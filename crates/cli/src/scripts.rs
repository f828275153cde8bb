//! Scripts that tell of devices (`zpool status -c`, `zpool iostat -c`), as OpenZFS runs them.
//!
//! A *script* is an executable file in a folder of `ZPOOL_SCRIPTS_PATH`, by default `~/.zpool.d`
//! and `/etc/zfs/zpool.d`. It is run for each device, which its environment names, and prints lines
//! `COLUMN=VALUE`; a line without `=` is the last that counts and stands behind all columns. The
//! daemon has no part in it: scripts run as the user of the command.
//!
//! Invariant: no script runs with the rights of root unless `ZPOOL_SCRIPTS_AS_ROOT` says so, nor at
//! all if `ZPOOL_SCRIPTS_ENABLED` forbids it.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use base::Error;

use crate::Fail;

/// Where scripts are looked for last.
const FOLDER: &str = "/etc/zfs/zpool.d";
/// Scripts that run at the same time.
const WORKERS: usize = 8;

/// A device: its pool and its path.
pub type Device = (String, String);

/// What scripts said of a device.
#[derive(Default)]
struct Said {
    named: Vec<(String, String)>,
    rest: Option<String>,
}

/// What scripts said of all devices.
#[derive(Default)]
pub struct Told {
    /// Names and widths, in the order in which they were met.
    columns: Vec<(String, usize)>,
    of: BTreeMap<Device, Said>,
}

/// Whether a variable of the environment has a value that means yes.
fn is_yes(value: &str) -> bool {
    ["YES", "ON", "TRUE"].iter().any(|w| value.eq_ignore_ascii_case(w)) || value.parse::<i64>().is_ok_and(|n| n != 0)
}

/// Fails where scripts must not be run.
pub fn check() -> Result<(), Fail> {
    let says_yes = |name: &str| std::env::var(name).ok().map(|v| is_yes(&v));
    if says_yes("ZPOOL_SCRIPTS_ENABLED") == Some(false) {
        return Err(Error::unsupported("cannot run scripts (-c): ZPOOL_SCRIPTS_ENABLED forbids it").into());
    }
    if host::effective_uid() == 0 && says_yes("ZPOOL_SCRIPTS_AS_ROOT") != Some(true) {
        let why = "cannot run scripts (-c) with the rights of root unless ZPOOL_SCRIPTS_AS_ROOT is set";
        return Err(Error::unsupported(why).into());
    }
    Ok(())
}

/// The files of the scripts that a list separated by commas names; those that are not there are
/// left out.
fn found(list: &str) -> Vec<PathBuf> {
    let folders = std::env::var_os("ZPOOL_SCRIPTS_PATH").unwrap_or_else(|| {
        let mut own = std::env::var_os("HOME").unwrap_or_default();
        own.push(format!("/.zpool.d:{FOLDER}"));
        own
    });
    let folders: Vec<PathBuf> = std::env::split_paths(&folders).collect();
    let is_script =
        |path: &PathBuf| fs::metadata(path).is_ok_and(|m| m.is_file() && m.permissions().mode() & 0o111 != 0);
    let names = list.split(',').filter(|n| !n.is_empty() && !n.contains('/'));
    names.filter_map(|name| folders.iter().map(|f| f.join(name)).find(is_script)).collect()
}

/// The folder of the enclosure's slot that a disk is in, if the kernel knows it.
fn slot_of(device: &Path) -> Option<PathBuf> {
    let own = Path::new("/sys/class/block").join(device.file_name()?).join("device");
    let mut entries = fs::read_dir(own).ok()?.filter_map(Result::ok);
    let slot = entries.find(|e| e.file_name().to_string_lossy().starts_with("enclosure_device"))?;
    fs::canonicalize(slot.path()).ok()
}

/// Runs the scripts for a device.
fn ask(scripts: &[PathBuf], (pool, path): &Device) -> Said {
    let real = fs::canonicalize(path).unwrap_or_else(|_| PathBuf::from(path));
    let slot = slot_of(&real).map(PathBuf::into_os_string).unwrap_or_default();
    let env: [(&str, OsString); 5] = [
        ("PATH", "/bin:/sbin:/usr/bin:/usr/sbin".into()),
        ("POOL_NAME", pool.into()),
        ("VDEV_PATH", path.into()),
        ("VDEV_UPATH", real.into_os_string()),
        ("VDEV_ENC_SYSFS_PATH", slot),
    ];
    let mut said = Said::default();
    for script in scripts {
        let mut run = Command::new(script);
        run.env_clear().envs(env.clone()).stdin(Stdio::null()).stderr(Stdio::null());
        let Some(out) = run.output().ok().filter(|out| out.status.success()) else { continue };
        said.take(&String::from_utf8_lossy(&out.stdout));
    }
    said
}

impl Said {
    /// Takes what a script printed.
    fn take(&mut self, text: &str) {
        for line in text.lines() {
            let Some((name, value)) = line.split_once('=') else {
                let rest = self.rest.get_or_insert_default();
                if !rest.is_empty() {
                    rest.push_str("  ");
                }
                rest.push_str(line);
                return;
            };
            if !self.named.iter().any(|(n, _)| n == name) {
                self.named.push((name.to_string(), value.to_string()));
            }
        }
    }
}

impl Told {
    /// Runs the scripts that `list` names, for each device.
    pub fn by(list: &str, devices: Vec<Device>) -> Told {
        let scripts = found(list);
        let (next, done) = (AtomicUsize::new(0), Mutex::new(BTreeMap::new()));
        std::thread::scope(|s| {
            for _ in 0..WORKERS.min(devices.len()) {
                s.spawn(|| {
                    while let Some(device) = devices.get(next.fetch_add(1, Ordering::Relaxed)) {
                        let said = ask(&scripts, device);
                        if let Ok(mut done) = done.lock() {
                            done.insert(device.clone(), said);
                        }
                    }
                });
            }
        });
        let of = done.into_inner().unwrap_or_default();
        Told::new(&devices, of)
    }

    fn new(devices: &[Device], of: BTreeMap<Device, Said>) -> Told {
        let mut columns: Vec<(String, usize)> = Vec::new();
        for (name, value) in devices.iter().filter_map(|d| of.get(d)).flat_map(|said| &said.named) {
            let width = value.chars().count();
            match columns.iter_mut().find(|(n, _)| n == name) {
                Some((_, widest)) => *widest = width.max(*widest),
                None => columns.push((name.clone(), width.max(name.chars().count()))),
            }
        }
        Told { columns, of }
    }

    /// The names of the columns, each with two blanks before it.
    pub fn headings(&self) -> String {
        self.columns.iter().map(|(name, width)| format!("  {name:>width$}")).collect()
    }

    /// The line below the headings.
    pub fn rule(&self) -> String {
        self.columns.iter().map(|(_, width)| format!("  {}", "-".repeat(*width))).collect()
    }

    /// What was said of a device, with two blanks before it; nothing of others.
    pub fn row(&self, pool: &str, path: &str) -> String {
        let Some(said) = self.of.get(&(pool.to_string(), path.to_string())) else { return String::new() };
        let value = |name: &str| {
            let found = said.named.iter().find(|(n, _)| n == name).map(|(_, v)| v.as_str());
            found.filter(|v| !v.trim().is_empty()).unwrap_or("-")
        };
        let mut out: Vec<String> =
            self.columns.iter().map(|(name, width)| format!("{:>width$}", value(name))).collect();
        out.extend(said.rest.clone());
        format!("  {}", out.join("  "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_those_of_all_devices() {
        let device = |n: &str| ("tank".to_string(), n.to_string());
        let said = |text: &str| {
            let mut said = Said::default();
            said.take(text);
            said
        };
        let devices = [device("a"), device("b"), device("c")];
        let of = BTreeMap::from([
            (device("a"), said("temp=31\nmodel=WDC 40\ntemp=99\n")),
            (device("b"), said("model= \nslot=7\nhot and loud\nslot=8\n")),
            (device("c"), said("")),
        ]);
        let told = Told::new(&devices, of);
        assert_eq!(told.headings(), "  temp   model  slot");
        assert_eq!(told.rule(), "  ----  ------  ----");
        assert_eq!(told.row("tank", "a"), "    31  WDC 40     -");
        assert_eq!(told.row("tank", "b"), "     -       -     7  hot and loud");
        assert_eq!(told.row("tank", "c"), "     -       -     -");
        assert_eq!(told.row("other", "a"), "");
    }

    #[test]
    fn words_that_mean_yes() {
        for (word, yes) in
            [("1", true), ("yes", true), ("On", true), ("true", true), ("0", false), ("no", false), ("", false)]
        {
            assert_eq!(is_yes(word), yes, "{word}");
        }
    }
}
