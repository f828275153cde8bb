//! `cargo xtask test`: everything that must pass before a change lands, in order, loudest failure
//! first.

use std::process::Command;
use std::time::Instant;

struct Step {
    name: &'static str,
    args: &'static [&'static str],
    env: &'static [(&'static str, &'static str)],
}

const fn step(name: &'static str, args: &'static [&'static str]) -> Step {
    Step { name, args, env: &[] }
}

/// Steps in order: cheap ones first. Everything runs in one target folder.
const STEPS: &[Step] = &[
    step("format", &["fmt", "--all", "--check"]),
    step("clippy", &["clippy", "--workspace", "--all-targets", "--quiet", "--", "-D", "warnings"]),
    Step {
        name: "docs",
        args: &["doc", "--workspace", "--no-deps", "--document-private-items", "--quiet"],
        // These docs are for engine developers: links to private items are allowed, broken links
        // are not.
        env: &[("RUSTDOCFLAGS", "-D warnings -A rustdoc::private-intra-doc-links")],
    },
];

/// How long each fuzz target runs: enough to see that it does, and to run its corpus again.
const FUZZ_SECONDS: &str = "2";

/// Runs the steps, then lists the passed, the failed and the missing judges.
pub(crate) fn run(args: &[String]) -> Result<(), String> {
    if let Some(odd) = args.iter().find(|a| *a != "--keep-going") {
        return Err(format!("test knows no argument {odd}; it takes --keep-going"));
    }
    let keep_going = args.iter().any(|a| a == "--keep-going");
    let judges = crate::judges::install()?;
    print!("{judges}");
    let (mut passed, mut failed, mut not_run) = (0, Vec::new(), Vec::new());
    let mut note = |name: &str, result: Result<(), String>| -> bool {
        match result {
            Ok(()) => {
                passed += 1;
                println!("ok    {name}");
                true
            }
            Err(why) => {
                println!("FAIL  {name}: {why}");
                failed.push(name.to_string());
                false
            }
        }
    };
    let mut go = note("layer rules", crate::layers::run());
    go = note("nothing unused", crate::deps::run()) && go;
    go = note("book", crate::book::run()) && go;
    go = note("width", crate::width::run(&[])) && go;
    for step in STEPS {
        if !go && !keep_going {
            break;
        }
        if step.name == "clippy" && !has_clippy() {
            not_run.push("clippy");
            continue;
        }
        let start = Instant::now();
        println!("-- {} (cargo {})", step.name, step.args.join(" "));
        let ok = Command::new(env!("CARGO"))
            .args(step.args)
            .envs(step.env.iter().copied())
            .current_dir(crate::root())
            .status()
            .map_err(|e| e.to_string())
            .and_then(|s| if s.success() { Ok(()) } else { Err(format!("{s}")) });
        go = note(step.name, ok) && go;
        println!("   {:.1} s", start.elapsed().as_secs_f64());
    }
    if go || keep_going {
        let start = Instant::now();
        println!("-- tests");
        go = note("tests", crate::suite::run()) && go;
        println!("   {:.1} s", start.elapsed().as_secs_f64());
    }
    // The zdb of 2.1 cannot look at the pools that its tests make here.
    if !crate::judges::is_root() || !crate::zts::missing().is_empty() || crate::kill9::zdb24().is_none() {
        not_run.push("zts (root, packages of the suite, the zdb of 2.4)");
    } else if go || keep_going {
        let start = Instant::now();
        println!("-- zts (a part of OpenZFS's test suite)");
        match crate::zts::quick() {
            Ok(false) => not_run.push("zts (namespaces, overlays and loop devices)"),
            other => go = note("zts", other.map(drop)) && go,
        }
        println!("   {:.1} s", start.elapsed().as_secs_f64());
    }
    if !crate::book::has_mdbook() {
        not_run.push("mdbook build");
    }
    if !crate::fuzz::has_compiler() {
        not_run.push("fuzz (c++)");
    } else if go || keep_going {
        let start = Instant::now();
        println!("-- fuzz (each target for {FUZZ_SECONDS} s)");
        let jobs = std::thread::available_parallelism().map_or(1, |n| n.get());
        let words = ["--seconds", FUZZ_SECONDS, "--jobs", &jobs.to_string()].map(str::to_string);
        note("fuzz", crate::fuzz::run(&words));
        println!("   {:.1} s", start.elapsed().as_secs_f64());
    }
    if !judges.missing().is_empty() {
        println!("NOT RUN for lack of a judge: everything that needs {}", judges.missing().join(", "));
    }
    if !not_run.is_empty() {
        println!("NOT RUN because the tool is not there: {}", not_run.join(", "));
    }
    println!("{passed} passed, {} failed", failed.len());
    if failed.is_empty() { Ok(()) } else { Err(format!("failed: {}", failed.join(", "))) }
}

/// Whether the toolchain has clippy, which is a component of its own.
fn has_clippy() -> bool {
    Command::new(env!("CARGO")).args(["clippy", "--version"]).output().is_ok_and(|o| o.status.success())
}
