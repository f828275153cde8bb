//! `cargo xtask zts`: OpenZFS's own test suite against weir, by `tests/zts/run-zts`.
//!
//! The suite is Debian's package `zfs-test` (2.1). Without letters every test of `common.run` and
//! `linux.run` is run, in memory, by two workers; results are in `target/zts`. All letters go to
//! `run-zts`, such as `-r sanity`, `-g 'cli_root/zpool_*'` and `-T GROUP/TEST`. It needs root.

use std::path::PathBuf;
use std::process::Command;

/// Programs that the suite needs, with the packages that have them.
const NEEDED: &[(&str, &str)] = &[
    ("/usr/share/zfs/zfs-tests", "zfs-test"),
    ("/bin/ksh", "ksh"),
    ("/usr/bin/cpio", "cpio"),
    ("/usr/bin/pax", "pax"),
    ("/usr/sbin/fdisk", "fdisk"),
    ("/usr/bin/ping", "iputils-ping"),
];

/// Runs `cargo xtask zts [--binary FILE] [LETTERS]`.
pub(crate) fn run(args: &[String]) -> Result<(), String> {
    let missing: Vec<&str> =
        NEEDED.iter().filter(|(path, _)| !std::path::Path::new(path).exists()).map(|(_, package)| *package).collect();
    if !missing.is_empty() {
        return Err(format!("the suite needs more: apt-get install {}", missing.join(" ")));
    }
    let (binary, letters) = match args {
        [name, file, rest @ ..] if name == "--binary" => (PathBuf::from(file), rest),
        _ => {
            let built = Command::new(env!("CARGO"))
                .args(["build", "--release", "-p", "openweir-cli"])
                .current_dir(crate::root())
                .status();
            if !built.is_ok_and(|status| status.success()) {
                return Err("weir does not build".into());
            }
            (crate::deb::target().join("release/weir"), args)
        }
    };
    let mut command = Command::new(crate::root().join("tests/zts/run-zts"));
    command.arg(binary).arg("-o").arg(crate::root().join("target/zts")).args(["-d", "/dev/shm", "-j", "2"]);
    if let Some(zdb) = crate::kill9::zdb24() {
        command.arg("--zdb").arg(zdb);
    }
    // Letters that are given again win.
    match command.args(letters).status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("run-zts ended with {status}")),
        Err(e) => Err(format!("run-zts cannot be run: {e}")),
    }
}
