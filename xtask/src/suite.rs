//! The tests of the workspace: test binaries side by side.
//!
//! `cargo test` runs one binary after the other, and a binary that waits (for a daemon, a mount, a
//! timer) leaves the processors idle. Here as many binaries run at once as there are processors.
//!
//! The order: build all binaries, put those that run longest in front, run them, print the output
//! of each when it ends; then the examples in doc comments. All binaries run, also after a failure.
//!
//! **Invariant**: a binary runs as `cargo test` would run it: in the folder of its package, with
//! the variables that cargo sets for the tests of a package. Each test owns its folders, sockets
//! and pools, so that binaries do not meet; those of [`MOUNTING`] see each other's mounts, and run
//! one after the other beside the rest.

use std::collections::VecDeque;
use std::fs::File;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use serde_json::Value;

/// Test targets that run longest, longest first (package, target): they begin first, so that none
/// of them is left over at the end.
const LONG: &[(&str, &str)] = &[
    ("ztest", "all"),
    ("cli", "keys"),
    ("cli", "commands"),
    ("cli", "truncated"),
    ("cli", "access_all"),
    ("fuse", "all"),
    ("openweir", "all"),
];

/// Packages whose tests mount file systems. A daemon that begins looks at the mounts of pools of
/// its pool's name, and a mount that is looked at is busy.
const MOUNTING: &[&str] = &["cli", "daemon", "fuse"];

/// One test binary.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Binary {
    package: String,
    target: String,
    program: PathBuf,
    manifest: PathBuf,
}

/// Builds and runs all tests.
pub(crate) fn run() -> Result<(), String> {
    let mut binaries = build()?;
    order(&mut binaries);
    let logs = crate::root().join("target/test-logs");
    std::fs::create_dir_all(&logs).map_err(|e| format!("{}: {e}", logs.display()))?;
    let jobs = std::thread::available_parallelism().map_or(1, |n| n.get());
    let failed: Mutex<Vec<String>> = Mutex::new(Vec::new());
    let each = |binary: Binary| {
        // The name of the program has a hash: a library and a program may have one name.
        let program = binary.program.file_name().unwrap_or_default().to_string_lossy();
        let log = logs.join(format!("{}-{program}.log", binary.package));
        let start = Instant::now();
        let result = one(&binary, &log);
        // One lock for the whole print: outputs of two binaries do not mix.
        let mut failed = lock(&failed);
        let text = std::fs::read(&log).unwrap_or_default();
        println!("     Running {} of {}", binary.target, binary.package);
        print!("{}", String::from_utf8_lossy(&text));
        println!("   {:.1} s", start.elapsed().as_secs_f64());
        if let Err(why) = result {
            println!("     FAILED {} of {}: {why}", binary.target, binary.package);
            failed.push(format!("{} of {}", binary.target, binary.package));
        }
    };
    side_by_side(jobs, groups(binaries).into_iter(), |group| group.into_iter().for_each(each));
    let mut failed = failed.into_inner().unwrap_or_else(PoisonError::into_inner);
    let docs = Command::new(env!("CARGO"))
        .args(["test", "--workspace", "--quiet", "--no-fail-fast", "--doc"])
        .current_dir(crate::root())
        .status()
        .map_err(|e| format!("cargo test --doc: {e}"))?;
    if !docs.success() {
        failed.push("examples in doc comments".to_string());
    }
    if failed.is_empty() { Ok(()) } else { Err(failed.join(", ")) }
}

/// Does all of `work`, begun in its order, `jobs` of it at a time.
fn side_by_side<T: Send>(jobs: usize, work: impl Iterator<Item = T>, each: impl Fn(T) + Sync) {
    let queue: Mutex<VecDeque<T>> = Mutex::new(work.collect());
    // A function, so that the lock does not last while the work is done.
    let next = || lock(&queue).pop_front();
    std::thread::scope(|scope| {
        for _ in 0..jobs {
            scope.spawn(|| {
                while let Some(one) = next() {
                    each(one);
                }
            });
        }
    });
}

fn lock<T>(m: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    m.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Builds the test binaries of the workspace and lists them.
fn build() -> Result<Vec<Binary>, String> {
    let out = Command::new(env!("CARGO"))
        // Clippy has looked at the examples; to link them takes minutes.
        .args(["test", "--workspace", "--lib", "--bins", "--tests", "--quiet", "--no-run"])
        .arg("--message-format=json-render-diagnostics")
        .current_dir(crate::root())
        .stderr(Stdio::inherit())
        .output()
        .map_err(|e| format!("cargo test --no-run: {e}"))?;
    if !out.status.success() {
        return Err("the tests do not build".to_string());
    }
    let found: Vec<Binary> = String::from_utf8_lossy(&out.stdout).lines().filter_map(binary).collect();
    if found.is_empty() { Err("cargo names no test binary".to_string()) } else { Ok(found) }
}

/// The test binary that a message of cargo tells of, if it does.
fn binary(message: &str) -> Option<Binary> {
    let message: Value = serde_json::from_str(message).ok()?;
    if message["reason"] != "compiler-artifact" || message["profile"]["test"] != true {
        return None;
    }
    let manifest = PathBuf::from(message["manifest_path"].as_str()?);
    Some(Binary {
        package: manifest.parent()?.file_name()?.to_str()?.to_string(),
        target: message["target"]["name"].as_str()?.to_string(),
        program: PathBuf::from(message["executable"].as_str()?),
        manifest,
    })
}

/// Long ones first; the others keep their order.
fn order(binaries: &mut [Binary]) {
    let rank = |b: &Binary| {
        LONG.iter().position(|(package, target)| b.package == *package && b.target == *target).unwrap_or(LONG.len())
    };
    binaries.sort_by_key(rank);
}

/// What runs side by side: the binaries of [`MOUNTING`] as one, first, then each of the others.
fn groups(binaries: Vec<Binary>) -> Vec<Vec<Binary>> {
    let (mounting, others): (Vec<Binary>, _) =
        binaries.into_iter().partition(|b| MOUNTING.contains(&b.package.as_str()));
    std::iter::once(mounting).chain(others.into_iter().map(|b| vec![b])).collect()
}

/// Runs a binary; its output goes to `log`.
fn one(binary: &Binary, log: &std::path::Path) -> Result<(), String> {
    let file = File::create(log).map_err(|e| format!("{}: {e}", log.display()))?;
    let again = file.try_clone().map_err(|e| format!("{}: {e}", log.display()))?;
    let folder = binary.manifest.parent().unwrap_or(&binary.manifest);
    let status = Command::new(&binary.program)
        .arg("--quiet")
        .current_dir(folder)
        .env("CARGO", env!("CARGO"))
        .env("CARGO_MANIFEST_DIR", folder)
        .stdin(Stdio::null())
        .stdout(file)
        .stderr(again)
        .status()
        .map_err(|e| format!("{}: {e}", binary.program.display()))?;
    if status.success() { Ok(()) } else { Err(format!("{status}")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(package: &str, target: &str) -> Binary {
        Binary { package: package.into(), target: target.into(), program: "p".into(), manifest: "m".into() }
    }

    #[test]
    fn messages_of_test_binaries_are_taken() {
        let message = r#"{"reason":"compiler-artifact","manifest_path":"/w/crates/txg/Cargo.toml",
            "target":{"name":"pipeline"},"profile":{"test":true},"executable":"/w/target/debug/deps/pipeline-1"}"#
            .replace('\n', "");
        let taken = binary(&message).map(|b| (b.package, b.target, b.program));
        assert_eq!(taken, Some(("txg".into(), "pipeline".into(), "/w/target/debug/deps/pipeline-1".into())));
        assert_eq!(binary(&message.replace("\"test\":true", "\"test\":false")), None, "a library");
        assert_eq!(binary(&message.replace("compiler-artifact", "build-finished")), None);
        assert_eq!(binary("warning: something"), None);
    }

    #[test]
    fn long_ones_begin_first() {
        let mut all = vec![named("arc", "reads"), named("cli", "keys"), named("zio", "blocks"), named("ztest", "all")];
        order(&mut all);
        let names: Vec<&str> = all.iter().map(|b| b.target.as_str()).collect();
        assert_eq!(names, ["all", "keys", "reads", "blocks"]);
        all.push(named("fuse", "all"));
        let groups = groups(all);
        let names: Vec<Vec<&str>> =
            groups.iter().map(|group| group.iter().map(|b| b.package.as_str()).collect()).collect();
        assert_eq!(names, [vec!["cli", "fuse"], vec!["ztest"], vec!["arc"], vec!["zio"]]);
    }

    #[test]
    fn long_ones_exist() {
        for (package, target) in LONG {
            let folder = crate::root().join("crates").join(package).join("tests");
            let there = folder.join(format!("{target}.rs")).exists() || folder.join(target).exists();
            assert!(there, "{target} of {package} is in LONG, and there is no such test");
        }
    }

    #[test]
    fn work_is_done_side_by_side() {
        let (meet, wait) = std::sync::mpsc::channel();
        let wait = Mutex::new(wait);
        // The first waits for the second.
        side_by_side(2, 0..2, |n| match n {
            0 => lock(&wait).recv_timeout(std::time::Duration::from_secs(60)).expect("the other runs meanwhile"),
            _ => meet.send(()).expect("the first waits"),
        });
    }
}
