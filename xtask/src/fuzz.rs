//! `cargo xtask fuzz [--seconds N] [--jobs N] [NAME...]`: builds the targets of `fuzz/` and runs
//! each for a while.
//!
//! **Target**: a program that gives bytes to a parser and asserts invariants. **Corpus**: inputs
//! that reach different code, kept in `target/fuzz-corpus/NAME` and growing from run to run.
//! **Seed**: an input to begin with; the targets make theirs with the encoders of the crates.
//!
//! The order: build in `target/fuzz`, then for each target store the seeds, run, print one line.
//! The fuzzer is libFuzzer, which the stable toolchain can serve: LLVM's pass for coverage is
//! enabled by name. Sanitizers are not there; overflow checks and debug assertions are on, and
//! there is hardly any `unsafe` to look at. This program is also its own `RUSTC_WRAPPER`: crates
//! that no target is about ([`COVERED`]) are built without counters, which would only make the
//! build slow.
//!
//! A target is *bad* if it panics, needs longer than [`TIMEOUT`] for an input or more memory than
//! [`RSS_MAX`]; the input is then in `target/fuzz-artifacts`. The last line is `targets=N bad=0`.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

const USAGE: &str = "usage: cargo xtask fuzz [--seconds N] [--jobs N] [NAME...]";
/// Seconds for one input.
const TIMEOUT: u64 = 10;
/// MiB of memory for one target.
const RSS_MAX: u64 = 1024;
/// How much longer than its seconds a target may take: the corpus is read first.
const GRACE: Duration = Duration::from_secs(60);
/// Crates with counters, beside the targets themselves.
const COVERED: &[&str] = &["base", "codec", "ondisk", "fuse", "nbd", "admin", "daemon", "serde_json", "weir_fuzz"];
/// Flags with which rustc inserts counters.
const COVERAGE: &[&str] = &[
    "-Cpasses=sancov-module",
    "-Cllvm-args=-sanitizer-coverage-level=4",
    "-Cllvm-args=-sanitizer-coverage-inline-8bit-counters",
    "-Cllvm-args=-sanitizer-coverage-pc-table",
    "-Cllvm-args=-sanitizer-coverage-trace-compares",
];
/// Set when this program is called in place of rustc.
const WRAPPED: &str = "WEIR_FUZZ_RUSTC";

/// The names of all targets: the files of `fuzz/fuzz_targets`, in order.
pub(crate) fn targets() -> Vec<String> {
    let dir = std::fs::read_dir(crate::root().join("fuzz/fuzz_targets"));
    let paths = dir.into_iter().flatten().flatten().map(|e| e.path());
    let rust = paths.filter(|p| p.extension().is_some_and(|e| e == "rs"));
    let mut names: Vec<String> = rust.filter_map(|p| Some(p.file_stem()?.to_str()?.to_string())).collect();
    names.sort();
    names
}

struct Options {
    seconds: u64,
    jobs: usize,
    names: Vec<String>,
}

impl Options {
    fn parse(args: &[String], all: &[String]) -> Result<Options, String> {
        let mut o = Options { seconds: 60, jobs: 1, names: Vec::new() };
        let mut args = args.iter();
        while let Some(arg) = args.next() {
            match arg.as_str() {
                "--seconds" | "--jobs" => {
                    let value = args.next().ok_or_else(|| format!("{arg} takes a value\n{USAGE}"))?;
                    let n: u64 = value.parse().map_err(|_| format!("{arg} {value}: not a number\n{USAGE}"))?;
                    if arg == "--jobs" {
                        o.jobs = n.clamp(1, 64) as usize;
                    } else {
                        o.seconds = n.max(1);
                    }
                }
                name if all.iter().any(|t| t == name) => o.names.push(name.to_string()),
                odd => return Err(format!("there is no target {odd}: there are {}\n{USAGE}", all.join(", "))),
            }
        }
        if o.names.is_empty() {
            o.names = all.to_vec();
        }
        Ok(o)
    }
}

/// Runs the command.
pub(crate) fn run(args: &[String]) -> Result<(), String> {
    let all = targets();
    let o = Options::parse(args, &all)?;
    let dir = build()?;
    let todo = Mutex::new(o.names.iter().collect::<VecDeque<_>>());
    let bad = Mutex::new(0);
    std::thread::scope(|scope| {
        for _ in 0..o.jobs {
            scope.spawn(|| {
                let next = || todo.lock().ok().and_then(|mut t| t.pop_front());
                while let Some(name) = next() {
                    let begun = Instant::now();
                    let (verdict, said) = match one(&dir, name, o.seconds) {
                        Ok(said) => ("good", said),
                        Err(why) => {
                            if let Ok(mut bad) = bad.lock() {
                                *bad += 1;
                            }
                            ("BAD ", why)
                        }
                    };
                    println!("{verdict} {name:<13} {:>5} s  {said}", begun.elapsed().as_secs());
                }
            });
        }
    });
    let bad = bad.into_inner().unwrap_or(1);
    println!("targets={} bad={bad}", o.names.len());
    if bad == 0 { Ok(()) } else { Err(format!("{bad} fuzz targets found something")) }
}

/// Builds every target; where the programs are.
pub(crate) fn build() -> Result<PathBuf, String> {
    let root = crate::root();
    let triple = triple()?;
    let me = std::env::current_exe().map_err(|e| format!("where this program is: {e}"))?;
    let mut cmd = Command::new(env!("CARGO"));
    // With a triple, flags are not for build scripts, which would not link with counters.
    cmd.args(["build", "--quiet", "--target", &triple, "--manifest-path"]).arg(root.join("fuzz/Cargo.toml"));
    cmd.env("CARGO_TARGET_DIR", root.join("target/fuzz")).env("RUSTC_WRAPPER", me).env(WRAPPED, "1");
    cmd.env("RUSTFLAGS", format!("--cfg fuzzing {}", COVERAGE.join(" "))).env_remove("CARGO_ENCODED_RUSTFLAGS");
    let status = cmd.status().map_err(|e| format!("{cmd:?}: {e}"))?;
    match status.success() {
        true => Ok(root.join("target/fuzz").join(triple).join("debug")),
        false => Err(format!("the fuzz targets do not build: {status}")),
    }
}

/// Whether there is a C++ compiler, for libFuzzer.
pub(crate) fn has_compiler() -> bool {
    let quiet = Command::new("c++").arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
    quiet.is_ok_and(|s| s.success())
}

/// The target triple of rustc.
fn triple() -> Result<String, String> {
    let out = Command::new("rustc").arg("-vV").output().map_err(|e| format!("rustc -vV: {e}"))?;
    let text = String::from_utf8_lossy(&out.stdout);
    text.lines().find_map(|l| l.strip_prefix("host: ")).map(str::to_string).ok_or("rustc -vV names no host".to_string())
}

/// Whether cargo called this program in place of rustc.
pub(crate) fn is_wrapper() -> bool {
    std::env::var_os(WRAPPED).is_some()
}

/// Runs rustc, with counters or without them.
pub(crate) fn rustc(args: &[String]) -> Result<(), String> {
    let name = args.windows(2).find(|w| w[0] == "--crate-name").map(|w| w[1].as_str()).unwrap_or_default();
    // Cargo's queries of rustc have no crate name, and must see the flags.
    let covered = ["", "___"].contains(&name) || COVERED.contains(&name) || targets().iter().any(|t| t == name);
    let (program, rest) = args.split_first().ok_or("no rustc to call")?;
    let rest = rest.iter().filter(|a| covered || !COVERAGE.contains(&a.as_str()));
    let status = Command::new(program).args(rest).status().map_err(|e| format!("{program}: {e}"))?;
    std::process::exit(status.code().unwrap_or(1));
}

/// Runs a target; returns a summary, or its finding.
fn one(dir: &Path, name: &str, seconds: u64) -> Result<String, String> {
    let target = crate::root().join("target");
    let (corpus, artifacts) = (target.join("fuzz-corpus").join(name), target.join("fuzz-artifacts"));
    for d in [&corpus, &artifacts] {
        std::fs::create_dir_all(d).map_err(|e| format!("{}: {e}", d.display()))?;
    }
    // A target without seeds of its own ends at once.
    let seeds = Command::new(dir.join(name)).arg("-runs=0").env("FUZZ_SEEDS", &corpus).output();
    let seeds = seeds.map_err(|e| format!("{name}: {e}"))?;
    if !seeds.status.success() {
        return Err(format!("its seeds: {}", last_line(&String::from_utf8_lossy(&seeds.stderr))));
    }
    let log = artifacts.join(format!("{name}.log"));
    let file = std::fs::File::create(&log).map_err(|e| format!("{}: {e}", log.display()))?;
    let mut cmd = Command::new(dir.join(name));
    cmd.arg(&corpus).args([
        format!("-max_total_time={seconds}"),
        format!("-rss_limit_mb={RSS_MAX}"),
        format!("-timeout={TIMEOUT}"),
        format!("-artifact_prefix={}/{name}-", artifacts.display()),
        "-print_final_stats=1".to_string(),
    ]);
    cmd.stdin(Stdio::null()).stdout(Stdio::null()).stderr(file).env("RUST_BACKTRACE", "0");
    let mut child = cmd.spawn().map_err(|e| format!("{cmd:?}: {e}"))?;
    let until = Instant::now() + Duration::from_secs(seconds + TIMEOUT) + GRACE;
    let status = loop {
        if let Some(status) = child.try_wait().map_err(|e| format!("{cmd:?}: {e}"))? {
            break status;
        }
        if Instant::now() > until {
            let _ = child.kill();
            let _ = child.wait();
            return Err(format!("did not end; see {}", log.display()));
        }
        std::thread::sleep(Duration::from_millis(20));
    };
    let text = String::from_utf8_lossy(&std::fs::read(&log).unwrap_or_default()).into_owned();
    if status.success() { Ok(summary(&text)) } else { Err(finding(&text, &log)) }
}

fn last_line(text: &str) -> &str {
    text.lines().rev().find(|l| !l.trim().is_empty()).unwrap_or("no word")
}

/// How often a target ran and how much code it reached, from libFuzzer's output.
fn summary(text: &str) -> String {
    let runs = text.lines().find_map(|l| l.strip_prefix("stat::number_of_executed_units:"));
    let covered = text.lines().rev().find_map(|l| l.split("cov: ").nth(1)?.split(' ').next());
    format!("runs={} covered={}", runs.map_or("?", str::trim), covered.unwrap_or("?"))
}

/// The finding of a target: the panic or libFuzzer's error, and the file of the input.
fn finding(text: &str, log: &Path) -> String {
    let panic = text.lines().skip_while(|l| !l.contains("panicked at")).take(2).collect::<Vec<_>>().join(" ");
    let error = text.lines().find(|l| l.contains("ERROR: libFuzzer:")).unwrap_or_else(|| last_line(text));
    let input = text.lines().find_map(|l| l.split("Test unit written to ").nth(1)).unwrap_or("not written");
    let what = if panic.is_empty() { error } else { &panic };
    format!("{what}; input: {input}; see {}", log.display())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_read() {
        let all = ["a".to_string(), "b".to_string()];
        let parse = |words: &[&str]| Options::parse(&words.iter().map(|w| w.to_string()).collect::<Vec<_>>(), &all);
        let o = parse(&["--seconds", "5", "b"]).expect("fine");
        assert_eq!((o.seconds, o.jobs, o.names.as_slice()), (5, 1, &all[1..]));
        assert_eq!(parse(&[]).expect("fine").names, all);
        assert!(parse(&["c"]).is_err() && parse(&["--seconds"]).is_err() && parse(&["--jobs", "x"]).is_err());
    }

    #[test]
    fn every_target_is_in_the_manifest() {
        let manifest = std::fs::read_to_string(crate::root().join("fuzz/Cargo.toml")).expect("fuzz/Cargo.toml");
        let lines = manifest.lines().filter_map(|l| l.strip_prefix("path = \"fuzz_targets/"));
        let mut named: Vec<String> = lines.filter_map(|l| Some(l.strip_suffix(".rs\"")?.to_string())).collect();
        named.sort();
        assert_eq!(named, targets());
    }

    #[test]
    fn what_the_fuzzer_says_is_read() {
        let good = "#2 INITED cov: 10 ft: 1\n#9 NEW cov: 55 ft: 3\nstat::number_of_executed_units: 900\n";
        assert_eq!(summary(good), "runs=900 covered=55");
        let bad = "thread '<unnamed>' panicked at x.rs:1:2:\nwhy\n==1== ERROR: libFuzzer: deadly signal\n\
                   artifact_prefix='/a/'; Test unit written to /a/zap-crash-1\n";
        let said = finding(bad, Path::new("log"));
        assert!(said.contains("x.rs:1:2: why") && said.contains("input: /a/zap-crash-1"), "{said}");
        let said = finding("==1== ERROR: libFuzzer: out-of-memory (used: 1Mb)\n", Path::new("log"));
        assert!(said.starts_with("==1== ERROR: libFuzzer: out-of-memory"), "{said}");
    }
}
