//! Where file systems may be mounted.
//!
//! A mount hides what was there. Over a folder that the running system lives in, that ends the
//! system, so those folders are refused; what is below them is not. With an alternate root in front
//! the same value is harmless: it is the whole path that counts.

use std::path::{Path, PathBuf};

use base::{Error, ErrorKind, Nanos, Result};
use rt::Rt;

/// Folders that the running system lives in: those of the Filesystem Hierarchy Standard 3.0 that
/// hold programs, libraries, devices, settings and state of the system, and where distributions
/// have merged them.
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
/// Folders that may be file systems of their own, as long as nothing is in them that would be
/// hidden.
const IF_EMPTY: &[&str] = &["/home", "/root"];

/// How long a look at a path may take: it may lead through a mount whose server hangs.
const PATH_LIMIT: Nanos = Nanos::from_secs(20);

/// Refuses a mount at a folder of the system. `is_empty` is asked where that matters.
pub fn check_place(path: &Path, is_empty: impl FnOnce(&Path) -> bool) -> Result<()> {
    // Repeated and trailing slashes mean nothing.
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

/// The same, with a look at the folder, and at where links lead.
pub fn check_real_place(path: &Path) -> Result<()> {
    let is_empty = crate::fs::mounts::is_empty;
    check_place(path, is_empty)?;
    match std::fs::canonicalize(path) {
        Ok(real) => check_place(&real, is_empty),
        Err(_) => Ok(()),
    }
}

/// Looks at paths on a thread of its own, for a limited time.
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

/// Detaches mounts of file systems of `pool` that an earlier daemon left when it was killed, and
/// others of weir's that are dead and on the way to `path`.
pub async fn clear_dead_mounts(pool: &str, path: Option<&Path>) -> Result<()> {
    let (pool, path) = (pool.to_string(), path.map(Path::to_path_buf));
    let wanted = move |e: &host::MountEntry| {
        let of_pool = e.source.strip_prefix(&pool).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
        is_our_type(&e.fstype) && (of_pool || path.as_ref().is_some_and(|p| p.starts_with(&e.at)))
    };
    host::fuse_detach_dead(wanted).await.map(drop)
}

/// Whether mounts of weir have this type: the second where `sync` reaches them.
fn is_our_type(fstype: &str) -> bool {
    matches!(fstype, "fuse.zfs" | "fuseblk.zfs")
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
