//! The judges: programs that were not written with weir and so do not share its mistakes.
//!
//! Debian has OpenZFS's own `zdb` and `ztest` in its *contrib* section. When this runs as root on a
//! machine with apt they are installed; otherwise it lists the missing ones, and the tests that
//! need a judge report it again.

use std::fmt;
use std::path::Path;
use std::process::{Command, Stdio};

/// A program, the Debian package that holds it, and its purpose.
const JUDGES: &[(&str, &str, &str)] = &[
    ("zdb", "zfsutils-linux", "reads every block of a pool and checks leaks and counts"),
    ("ztest", "zfs-test", "makes random pools, and has OpenZFS's test suite"),
    ("ksh", "ksh", "runs the tests of OpenZFS's suite"),
    ("cpio", "cpio", "what tests of the suite archive with"),
    ("pax", "pax", "what tests of the suite archive with"),
    ("fdisk", "fdisk", "what tests of the suite look at disks with"),
    ("ping", "iputils-ping", "what the suite looks for"),
    ("fusermount3", "fuse3", "lets ordinary users mount"),
    ("fio", "fio", "measures and verifies I/O"),
    ("setfacl", "acl", "sets and shows POSIX ACLs"),
    ("getfattr", "attr", "shows extended attributes"),
    ("curl", "curl", "fetches keys from servers"),
    ("setcap", "libcap2-bin", "gives programs capabilities"),
    ("nbdinfo", "libnbd-bin", "asks an NBD server what it offers"),
    ("nbdsh", "python3-libnbd", "sends single NBD requests"),
    ("nbdkit", "nbdkit", "passes NBD requests on"),
    ("qemu-io", "qemu-utils", "reads and writes NBD exports as virtual machines do"),
];

/// Which judges this machine has.
pub(crate) struct There(Vec<(&'static str, &'static str, bool)>);

impl There {
    /// The names of those that are missing.
    pub(crate) fn missing(&self) -> Vec<&'static str> {
        self.0.iter().filter(|j| !j.2).map(|j| j.0).collect()
    }
}

impl fmt::Display for There {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, what, there) in &self.0 {
            writeln!(f, "{:<12} {:<8} {what}", name, if *there { "present" } else { "MISSING" })?;
        }
        Ok(())
    }
}

fn have(program: &str) -> bool {
    ["/usr/sbin", "/sbin", "/usr/bin", "/bin", "/usr/local/bin", "/usr/local/sbin"]
        .iter()
        .any(|dir| Path::new(dir).join(program).exists())
}

fn look() -> There {
    There(JUDGES.iter().map(|(name, _, what)| (*name, *what, have(name))).collect())
}

fn quiet(program: &str, args: &[&str]) -> bool {
    Command::new(program)
        .args(args)
        .env("DEBIAN_FRONTEND", "noninteractive")
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|s| s.success())
}

/// Whether this is root.
pub(crate) fn is_root() -> bool {
    quiet("sh", &["-c", "test \"$(id -u)\" = 0"])
}

/// Installs missing judges where that is possible, and returns those present afterwards.
pub(crate) fn install() -> Result<There, String> {
    let before = look();
    if before.missing().is_empty() {
        return Ok(before);
    }
    if !is_root() || !have("apt-get") {
        return Ok(before);
    }
    let release = std::fs::read_to_string("/etc/os-release").unwrap_or_default();
    let suite = release.lines().find_map(|l| l.strip_prefix("VERSION_CODENAME=")).unwrap_or("").trim_matches('"');
    let needs_contrib = before.missing().iter().any(|n| *n == "zdb" || *n == "ztest");
    quiet("apt-get", &["update"]);
    // `apt-cache show` also succeeds for a package that others only refer to.
    if needs_contrib && !suite.is_empty() && !quiet("apt-get", &["install", "--dry-run", "zfsutils-linux"]) {
        let source = format!(
            "Types: deb\nURIs: http://deb.debian.org/debian\nSuites: {suite}\nComponents: contrib\n\
             Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg\n"
        );
        // Without it the judges stay missing, which is reported below; that is no reason to stop.
        let _ = std::fs::write("/etc/apt/sources.list.d/weir-contrib.sources", source);
        quiet("apt-get", &["update"]);
    }
    for (name, package, _) in JUDGES {
        if !have(name) {
            quiet("apt-get", &["install", "-y", "--no-install-recommends", package]);
        }
    }
    Ok(look())
}
