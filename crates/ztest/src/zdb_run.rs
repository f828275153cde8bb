//! Running OpenZFS's zdb, without its busy wait at the end.
//!
//! At its end zdb 2.1 empties its cache, and polls for prefetched buffers, which may not be evicted
//! before they are six seconds old: a core is busy for nothing, ten times as long as a check of a
//! small pool takes. Two of its tunables (`zfs_arc_min_prescient_prefetch_ms`,
//! `zfs_arc_min_prefetch_ms`; OpenZFS 2.1 zfs(4)) make that time a millisecond; its findings do not
//! change. It sets tunables (`-o`) in a library of the name `libzpool.so`, which Debian has in a
//! package for development only, so a link of that name is made for it. Where any of this does not
//! work, zdb runs as it is.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

use crate::judge::Scratch;

const TUNABLES: [&str; 4] = ["-o", "zfs_arc_min_prescient_prefetch_ms=1", "-o", "zfs_arc_min_prefetch_ms=1"];

/// No list of pools: zdb takes a pool in the machine's list (which a tool of OpenZFS that imports a
/// pool elsewhere writes) for one that is imported already, and fails.
const NO_CACHE: [&str; 2] = ["-U", "/nonexistent/zpool.cache"];

/// Standard output and error of a command, and its exit status; `None` if it cannot be run.
pub(crate) fn run(mut command: Command) -> Option<(i32, String)> {
    let out = command.stdin(Stdio::null()).output().ok()?;
    let text = String::from_utf8_lossy(&out.stdout).into_owned() + &String::from_utf8_lossy(&out.stderr);
    Some((out.status.code().unwrap_or(-1), text))
}

/// A zdb that knows no pools of the machine.
fn alone(zdb: &Path) -> Command {
    let mut c = Command::new(zdb);
    c.args(NO_CACHE);
    c
}

/// Whether zdb is there.
pub fn has_zdb() -> bool {
    let mut c = Command::new("zdb");
    c.arg("-h");
    run(c).is_some()
}

/// The library that zdb is linked with, if it is where Debian puts it.
fn library() -> Option<PathBuf> {
    let arch = std::env::consts::ARCH;
    let folders =
        [format!("/lib/{arch}-linux-gnu"), format!("/usr/lib/{arch}-linux-gnu"), "/lib64".into(), "/usr/lib".into()];
    let is_it = |path: &PathBuf| {
        path.file_name().and_then(|n| n.to_str()).is_some_and(|n| {
            n.strip_prefix("libzpool.so.").is_some_and(|v| !v.is_empty() && v.bytes().all(|b| b.is_ascii_digit()))
        })
    };
    folders.iter().filter_map(|f| std::fs::read_dir(f).ok()).flatten().flatten().map(|e| e.path()).find(is_it)
}

/// Runs zdb with the tunables set.
fn quick(library: &Path, args: &[&str]) -> Option<(i32, String)> {
    let links = Scratch::new("libzpool").ok()?;
    std::os::unix::fs::symlink(library, links.path().join("libzpool.so")).ok()?;
    let mut c = alone(Path::new("zdb"));
    c.env("LD_LIBRARY_PATH", links.path()).args(TUNABLES).args(args);
    run(c)
}

/// Runs zdb: its exit status and its output, or `None` if it is not installed.
pub fn zdb(args: &[&str]) -> Option<(i32, String)> {
    static LIBRARY: OnceLock<Option<PathBuf>> = OnceLock::new();
    let usable = |path: &PathBuf| {
        // A zdb without the tunables prints its usage.
        quick(path, &["-l", "/dev/null"]).is_some_and(|(_, text)| text.contains("failed to") && !text.contains("Usage"))
    };
    let library = LIBRARY.get_or_init(|| library().filter(usable));
    match library {
        Some(library) => quick(library, args),
        None => {
            let mut c = alone(Path::new("zdb"));
            c.args(args);
            run(c)
        }
    }
}

/// The zdb of OpenZFS 2.4. Pools with features of 2.2 and later are judged by it.
pub fn zdb24_program() -> Option<PathBuf> {
    program24("zdb24")
}

/// A program of OpenZFS 2.4, which `shared/judges/get-zfs24` unpacks beside the installed ones:
/// where ZFS24_DIR says, or in the judges' cache.
pub(crate) fn program24(name: &str) -> Option<PathBuf> {
    let cache = || {
        if let Some(own) = std::env::var_os("JUDGE_CACHE") {
            return Some(PathBuf::from(own));
        }
        let home = || std::env::var_os("HOME").map(|h| Path::new(&h).join(".cache"));
        Some(std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from).or_else(home)?.join("judges"))
    };
    let folder = match std::env::var_os("ZFS24_DIR") {
        Some(dir) => PathBuf::from(dir),
        None => cache()?.join("zfs24"),
    };
    Some(folder.join("bin").join(name)).filter(|p| p.is_file())
}

/// Runs the zdb of OpenZFS 2.4; `None` if it is not there.
pub fn zdb24(args: &[&str]) -> Option<(i32, String)> {
    let mut c = alone(&zdb24_program()?);
    c.args(args);
    run(c)
}
