//! `cargo xtask zts`: OpenZFS's own test suite against weir, by `tests/zts/run-zts`.
//!
//! The suite is Debian's package `zfs-test` (2.1). Without letters every test of `common.run` and
//! `linux.run` is run, in memory, by two workers; results are in `target/zts`. All letters go to
//! `run-zts`, such as `-r sanity`, `-g 'cli_root/zpool_*'` and `-T GROUP/TEST`. It needs root.
//!
//! The test command runs a part of the suite ([`quick`]): the tests of `tests/zts/quick.txt`, which
//! pass again and again also on a busy machine, for some 15 minutes.

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

/// The packages that are missing.
pub(crate) fn missing() -> Vec<&'static str> {
    NEEDED.iter().filter(|(path, _)| !std::path::Path::new(path).exists()).map(|(_, package)| *package).collect()
}

/// Runs the tests of `tests/zts/quick.txt`, with the `weir` of the development profile: all have to
/// pass. False if no test could be begun: workers need namespaces, overlays and loop devices, which
/// a container may not have.
pub(crate) fn quick() -> Result<bool, String> {
    let list = crate::root().join("tests/zts/quick.txt");
    // What an earlier run left would count as this one's.
    let _ = std::fs::remove_dir_all(out());
    // Time limits are those of a machine that does nothing else: here there may be more.
    let letters = ["-t", "300", "--only"].map(str::to_string);
    let done = suite(crate::deb::target().join("debug/weir"), letters.into_iter().chain([list.display().to_string()]));
    let results = std::fs::read_to_string(out().join("results.tsv")).unwrap_or_default();
    if results.lines().count() > 1 { done.map(|()| true) } else { Ok(false) }
}

fn out() -> PathBuf {
    crate::root().join("target/zts")
}

/// Runs `cargo xtask zts [--binary FILE] [LETTERS]`.
pub(crate) fn run(args: &[String]) -> Result<(), String> {
    let missing = missing();
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
    suite(binary, letters.iter().cloned())
}

fn suite(binary: PathBuf, letters: impl Iterator<Item = String>) -> Result<(), String> {
    let mut command = Command::new(crate::root().join("tests/zts/run-zts"));
    command.arg(binary).arg("-o").arg(out()).args(["-d", "/dev/shm", "-j", "2"]);
    if let Some(zdb) = crate::kill9::zdb24() {
        for (letter, name) in [("--ztest", "ztest24"), ("--zhack", "zhack24")] {
            let program = zdb.with_file_name(name);
            if program.exists() {
                command.arg(letter).arg(program);
            }
        }
        command.arg("--zdb").arg(zdb);
    }
    // Letters that are given again win.
    match command.args(letters).status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("run-zts ended with {status}")),
        Err(e) => Err(format!("run-zts cannot be run: {e}")),
    }
}
