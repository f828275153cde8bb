//! What shells complete: the real script in bash, the syntax of the others.
#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use std::path::PathBuf;
use std::process::Command;

use common::world::World;
use common::{Outcome, WEIR, outcome_of};
use host::TempDir;

/// A script of `weir completions` in a folder where `weir` is this program.
fn script(dir: &TempDir, shell: &str) -> PathBuf {
    let o = outcome_of(Command::new(WEIR).args(["completions", shell]).output().unwrap());
    assert_eq!((o.code, o.err.as_str()), (0, ""));
    let file = dir.join(&format!("weir.{shell}"));
    std::fs::write(&file, o.out).unwrap();
    let _ = std::os::unix::fs::symlink(WEIR, dir.join("weir"));
    file
}

/// Runs a command with this `weir` first in the path; none if the shell is not installed.
fn shell(dir: &TempDir, command: &mut Command) -> Option<Outcome> {
    let path = format!("{}:{}", dir.path().display(), std::env::var("PATH").unwrap());
    let o = command.env("PATH", path).output();
    if o.is_err() {
        eprintln!("NOT RUN: {command:?}: the shell is not installed");
    }
    Some(outcome_of(o.ok()?))
}

/// What bash offers for a line with the cursor at its end, sorted.
fn offered(dir: &TempDir, folders: &[(&str, String)], line: &str) -> Vec<String> {
    let file = script(dir, "bash");
    // Words as readline cuts them, which takes the separators out of names, too.
    let run = r#"
        source "$1"; COMP_LINE=$2; COMP_POINT=${#2}
        read -ra COMP_WORDS <<< "$(sed 's/[=:@]/ & /g' <<< "$2")"
        [[ $2 == *' ' ]] && COMP_WORDS+=('')
        COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
        _weir; printf '%s\n' "${COMPREPLY[@]}""#;
    let mut c = Command::new("bash");
    c.args(["-c", run, "bash"]).arg(&file).arg(line).envs(folders.iter().cloned());
    let o = shell(dir, &mut c).expect("bash");
    assert_eq!(o.err, "", "{line}");
    let mut all: Vec<String> = o.out.lines().filter(|l| !l.is_empty()).map(str::to_string).collect();
    all.sort();
    all
}

#[test]
fn bash_completes_commands_letters_and_properties() {
    let dir = TempDir::new("cli-bash").unwrap();
    let file = script(&dir, "bash");
    let o = shell(&dir, Command::new("bash").arg("-n").arg(&file)).expect("bash");
    assert_eq!((o.code, o.err.as_str()), (0, ""));
    let folders = ["WEIR_RUNTIME_DIR", "WEIR_STATE_DIR"].map(|n| (n, dir.join(n).display().to_string()));
    let of = |line: &str| offered(&dir, &folders, line);
    assert_eq!(of("weir zpo"), ["zpool"]);
    assert_eq!(of("weir daemon s"), ["start", "status", "stop"]);
    assert_eq!(of("weir zpool sc"), ["scrub"]);
    assert_eq!(of("/usr/sbin/zpool sc"), ["scrub"]);
    assert_eq!(of("zfs re"), ["receive", "recv", "redact", "release", "rename", "rewrite"]);
    assert_eq!(of("weir lab z"), ["zil"]);
    assert_eq!(of("zpool checkpoint -"), ["-d", "-w"]);
    assert_eq!(of("weir zpool checkpoint -d -"), ["-d", "-w"]);
    assert_eq!(of("zfs create -o compressi"), ["compression="]);
    assert_eq!(of("zpool create -o ashi"), ["ashift="]);
    assert_eq!(of("zpool create -O recordsi"), ["recordsize="]);
    assert_eq!(of("zfs set recordsi"), ["recordsize="]);
    assert_eq!(of("zfs get usedbys"), ["usedbysnapshots"]);
    assert_eq!(of("zfs list -o usedbys"), ["usedbysnapshots"]);
    assert!(of("zpool ").contains(&"create".to_string()) && of("zfs send nonsense").is_empty());
    // No name without a daemon, and no daemon for a name.
    assert!(of("zpool scrub ").is_empty());
    assert!(!dir.join("WEIR_RUNTIME_DIR").exists(), "completion started a daemon");
}

#[test]
fn bash_completes_names_of_pools_and_datasets() {
    let w = World::without_mounts("complete");
    w.ok("zpool create --size 128M -m none tank a.img");
    w.ok("zfs create tank/home");
    w.ok("zfs snapshot tank/home@monday");
    let dir = TempDir::new("cli-bash-names").unwrap();
    let folders = [("WEIR_RUNTIME_DIR", w.path("run")), ("WEIR_STATE_DIR", w.path("state"))];
    let of = |line: &str| offered(&dir, &folders, line);
    assert_eq!(of("zpool scrub "), ["tank"]);
    assert_eq!(of("weir zpool scrub -w t"), ["tank"]);
    assert_eq!(of("zfs destroy tank/"), ["tank/home"]);
    assert_eq!(of("zfs snapshot "), ["tank", "tank/home"]);
    // What stands before the last separator is there already.
    assert_eq!(of("zfs rollback tank/home@m"), ["monday"]);
    assert_eq!(of("zfs set compression=on tank/h"), ["tank/home"]);
    w.ok("zpool destroy tank");
}

#[test]
fn zsh_and_fish_take_their_scripts() {
    let dir = TempDir::new("cli-shells").unwrap();
    for name in ["zsh", "fish"] {
        let file = script(&dir, name);
        let Some(o) = shell(&dir, Command::new(name).arg("-n").arg(&file)) else { continue };
        assert_eq!((o.code, o.err.as_str()), (0, ""), "{name}");
    }
    // fish can be asked what it would offer.
    let (file, asked) = (script(&dir, "fish"), "source $argv[1]; complete -C $argv[2]");
    for (line, want) in
        [("zpool checkpoint -", "-d\t"), ("weir zpool scr", "scrub\t"), ("zfs set recor", "recordsize=")]
    {
        let mut c = Command::new("fish");
        let Some(o) = shell(&dir, c.args(["--no-config", "-c", asked]).arg(&file).arg(line)) else { continue };
        assert!(o.err.is_empty() && o.out.lines().any(|l| l.starts_with(want)), "{line}: {} {}", o.out, o.err);
    }
}
