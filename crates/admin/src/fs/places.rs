//! Mount points that are refused.
//!
//! A mount hides the content of its folder. Over a folder that the running system needs, that
//! breaks the system, so these folders are refused; folders below them are not. The check is of the
//! whole path, with the alternate root.

use std::path::{Path, PathBuf};

use base::{Error, ErrorKind, Nanos, Result};
use host::Probe;
use rt::Rt;

/// Folders that the running system needs: those of the Filesystem Hierarchy Standard 3.0 for
/// programs, libraries, devices, settings and state, and those that distributions merged them into.
const SYSTEM: &[&str] = &[
    "/",
    "/bin",
    "/boot",
    "/dev",
    "/etc",
    "/lib",
    "/lib32",
    "/lib64",
    "/libx32",
    "/proc",
    "/run",
    "/sbin",
    "/sys",
    "/tmp",
    "/usr",
    "/usr/bin",
    "/usr/lib",
    "/usr/lib32",
    "/usr/lib64",
    "/usr/libx32",
    "/usr/sbin",
    "/usr/share",
    "/var",
    "/var/lib",
    "/var/run",
    "/var/tmp",
];
/// Folders that may be mount points only if they are empty.
const IF_EMPTY: &[&str] = &["/home", "/root"];

/// Time for system calls on a path: it may lead through a mount whose server hangs.
const PATH_LIMIT: Nanos = Nanos::from_secs(20);

/// Refuses a mount at a folder of the system. `is_empty` is called for `IF_EMPTY` only.
pub fn check_place(path: &Path, is_empty: impl FnOnce(&Path) -> bool) -> Result<()> {
    // Drops repeated and trailing slashes.
    let path: PathBuf = path.components().collect();
    let is_one_of = |list: &[&str]| list.iter().any(|p| path == Path::new(p));
    let why = if is_one_of(SYSTEM) {
        "is a folder that the system itself needs"
    } else if is_one_of(IF_EMPTY) && !is_empty(&path) {
        "holds files of this system, which would be hidden"
    } else {
        return Ok(());
    };
    let advice = "choose another mount point, or import the pool with an alternate root (-R)";
    Err(Error::new(ErrorKind::Denied, format!("'{}' {why}: {advice}", path.display())))
}

/// As [`check_place`], with the folder's content, and also for the target of links.
pub fn check_real_place(path: &Path) -> Result<()> {
    let is_empty = crate::fs::mounts::is_empty;
    check_place(path, is_empty)?;
    match std::fs::canonicalize(path) {
        Ok(real) => check_place(&real, is_empty),
        Err(_) => Ok(()),
    }
}

/// Runs system calls on a path, on a thread of their own and for a limited time.
pub async fn path_blocking<T: Send + 'static>(
    rt: &Rt,
    path: &Path,
    f: impl FnOnce() -> T + Send + 'static,
) -> Result<T> {
    match rt.timeout(PATH_LIMIT, host::blocking(f)).await {
        Some(result) => result,
        None => {
            let why = "a file system on the way there does not answer: unmount it with 'umount -l'";
            Err(Error::new(ErrorKind::Busy, format!("'{}' cannot be looked at: {why}", path.display())))
        }
    }
}

/// Detaches dead mounts of weir: those of file systems of `pool` that a killed daemon left, and
/// those on the way to `path`.
pub async fn clear_dead_mounts(pool: &str, path: Option<&Path>) -> Result<()> {
    let (pool, path) = (pool.to_string(), path.map(Path::to_path_buf));
    let probe = move |e: &host::MountEntry| {
        let of_pool = e.source.strip_prefix(&pool).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
        match is_our_type(&e.fstype) {
            true if path.as_ref().is_some_and(|p| p.starts_with(&e.at)) => Probe::Always,
            // Another daemon may have a pool of that name.
            true if of_pool => Probe::Unserved,
            _ => Probe::No,
        }
    };
    host::fuse_detach_dead(probe).await.map(drop)
}

/// Whether mounts of weir have this type; the second is for mounts that `sync` reaches, the third
/// for volumes, the last for kstats.
fn is_our_type(fstype: &str) -> bool {
    matches!(fstype, "fuse.zfs" | "fuseblk.zfs" | "fuse.zvol" | "fuse.kstat")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_of_the_system_are_refused() {
        let may = |path: &str, empty: bool| check_place(Path::new(path), |_| empty).is_ok();
        for path in ["/", "//", "/usr", "/usr/", "//usr//", "/lib64", "/proc", "/tmp", "/var/lib"] {
            assert!(!may(path, true), "{path}");
        }
        for path in ["/tank", "/usr/local/tank", "/tmp/x", "/var/lib/tank", "/mnt", "/opt", "/srv", "/home/u", "/usrx"]
        {
            assert!(may(path, false), "{path}");
        }
        assert!(may("/home", true) && !may("/home", false));
        assert!(may("/root/", true) && !may("/root/", false));
    }
}
