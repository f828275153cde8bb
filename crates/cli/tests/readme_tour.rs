//! The tour of the README, run as it stands there, in a folder of its own.
#![allow(clippy::unwrap_used, missing_docs)]

use std::process::Command;

use host::TempDir;

/// The lines behind `$ ` of the first block of the section.
fn steps(readme: &str, section: &str) -> Vec<String> {
    let text = readme.split(&format!("\n## {section}\n")).nth(1).expect("the section");
    let block = text.split("```").nth(1).expect("its block");
    block.lines().filter_map(|l| l.strip_prefix("$ ")).map(str::to_string).collect()
}

#[test]
fn the_tour_is_true() {
    if let Err(e) = daemon::fuse_front::usable() {
        eprintln!("NOT RUN: the_tour_is_true: {e}");
        return;
    }
    let readme = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../README.md")).unwrap();
    let steps = steps(&readme, "A tour");
    assert!(steps.len() > 12 && steps.iter().any(|s| s.contains("weir daemon stop")), "{steps:?}");
    let dir = TempDir::new("tour").unwrap();
    let tour = dir.join("tour").display().to_string();
    let bin = std::path::Path::new(env!("CARGO_BIN_EXE_weir")).parent().unwrap().display().to_string();
    let path = format!("{bin}:{}", std::env::var("PATH").unwrap_or_default());
    let has = |program: &str| std::env::split_paths(&path).any(|d| d.join(program).exists());
    // One shell for all of them, so that `cd` holds; it ends at the first that fails.
    let mut script = "set -ex\n".to_string();
    for step in steps.iter().map(|s| s.replace("/tmp/tour", &tour)) {
        if step.starts_with("zdb ") && !has("zdb") {
            eprintln!("NOT RUN: {step}: zdb is not installed");
        } else {
            script.push_str(&format!("{step}\n"));
        }
    }
    let mut c = Command::new("sh");
    c.args(["-c", &script]).env("PATH", &path).env_remove("WEIR_TUNABLES").current_dir(dir.path());
    c.env("WEIR_RUNTIME_DIR", dir.join("run")).env("WEIR_STATE_DIR", dir.join("state"));
    let o = c.output().unwrap();
    let (out, err) = (String::from_utf8_lossy(&o.stdout), String::from_utf8_lossy(&o.stderr));
    if !o.status.success() {
        let mut stop = Command::new(env!("CARGO_BIN_EXE_weir"));
        stop.env("WEIR_RUNTIME_DIR", dir.join("run")).env("WEIR_STATE_DIR", dir.join("state"));
        let _ = stop.args(["daemon", "stop", "-f"]).output();
        panic!("{out}{err}");
    }
    for text in ["tank/photos", "compressratio", "state: ONLINE", "tank/photos@tuesday", "nbd+unix://"] {
        assert!(out.contains(text), "{text} is not in {out}");
    }
    assert!(!std::path::Path::new(&tour).exists(), "the tour leaves nothing");
}
