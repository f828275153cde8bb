//! Help and usage of every command, from outside.
#![allow(clippy::unwrap_used, missing_docs)]

use std::process::Command;

use host::TempDir;

/// Exit code, output and errors of a command line that reaches no daemon.
fn weir(line: &str) -> (i32, String, String) {
    let dir = TempDir::new("cli-help").unwrap();
    let mut c = Command::new(env!("CARGO_BIN_EXE_weir"));
    c.env("WEIR_RUNTIME_DIR", dir.join("run")).env("WEIR_STATE_DIR", dir.join("state"));
    let o = c.args(line.split_whitespace()).current_dir(dir.path()).output().unwrap();
    let text = |b: Vec<u8>| String::from_utf8_lossy(&b).into_owned();
    assert!(!dir.join("run").exists(), "{line} started a daemon");
    (o.status.code().unwrap_or(-1), text(o.stdout), text(o.stderr))
}

/// The commands that the usage of `program` lists.
fn commands(program: &str) -> Vec<String> {
    let (_, out, _) = weir(&format!("{program} help"));
    let lines = out.lines().filter_map(|l| l.strip_prefix(&format!("  {program} ")));
    let mut all: Vec<String> = lines.map(|l| l.split(' ').next().unwrap().to_string()).collect();
    all.dedup();
    all
}

#[test]
fn every_command_shows_its_page_in_every_way() {
    for program in ["zpool", "zfs"] {
        let all = commands(program);
        assert!(all.len() > 20, "{all:?}");
        for command in all {
            let (code, page, err) = weir(&format!("{program} {command} --help"));
            assert!(code == 0 && err.is_empty(), "{program} {command}: {err}");
            assert!(page.starts_with(&format!("usage:\n  {program} {command}")), "{page}");
            for other in [format!("{program} help {command}"), format!("help {program} {command}")] {
                assert_eq!(weir(&other), (0, page.clone(), String::new()), "{other}");
            }
            // OpenZFS's commands do not have this letter.
            assert_eq!(weir(&format!("{program} {command} -h")), (2, page.clone(), String::new()));
            // A mistake: one sentence and the usage of this command.
            let (code, out, err) = weir(&format!("{program} {command} -?"));
            assert!(code == 2 && out.is_empty(), "{program} {command} -?: {code} {out}");
            assert!(err.starts_with(&format!("invalid option '?'\nusage:\n\t{program} {command}")), "{err}");
            // 'zfs send' has five forms.
            assert!(err.lines().count() <= 7, "{err}");
        }
        assert_eq!(weir(&format!("{program} help nonsense")).0, 2);
        let (code, _, err) = weir(&format!("{program} nonsense"));
        assert!(code == 2 && err.starts_with("unrecognized command 'nonsense'\n"), "{err}");
        assert!(err.lines().count() <= 9, "{err}");
    }
}

#[test]
fn commands_of_weir_name_themselves_in_their_usage() {
    for command in
        ["cp", "tune", "kstat", "top", "trace", "advise", "daemon", "lab", "man", "nbd", "quickstart", "zinject"]
    {
        for line in [format!("{command} --help"), format!("help {command}")] {
            let (code, out, err) = weir(&line);
            assert!(code == 0 && out.starts_with(&format!("usage:\n  weir {command} ")), "{line}: {code} {out}{err}");
        }
    }
    let (_, overview, _) = weir("--help");
    for command in ["add", "attach", "replace", "scrub", "wait", "load-key", "trim"] {
        assert!(
            overview.contains(&format!(" {command},")) || overview.contains(&format!(" {command}\n")),
            "{overview}"
        );
    }
}

/// Letters that weir accepts only to print that it does not support them yet.
const NOT_YET: &[(&str, &str)] = &[
    ("zpool import", "X"),
    ("zpool attach", "s"),
    ("zpool replace", "s"),
    ("zpool trim", "d"),
    ("zpool wait", "T"),
    ("zfs send", "d"),
    ("zfs receive", "c"),
];

/// The letters in usage lines: those behind a single `-`.
fn letters(usage: &str) -> Vec<char> {
    let mut out = Vec::new();
    for word in usage.split(['[', ']', ' ', '\n', '<', '>', '|']) {
        if let Some(group) = word.strip_prefix('-').filter(|g| g.chars().all(char::is_alphabetic)) {
            out.extend(group.chars());
        }
    }
    out
}

/// The usage has exactly the accepted letters, and the page explains each.
#[test]
fn usage_names_the_letters_that_are_taken() {
    for program in ["zpool", "zfs"] {
        for command in commands(program) {
            let name = format!("{program} {command}");
            let (_, page, _) = weir(&format!("{name} --help"));
            let (usage, text) = page.split_once("\n\n").unwrap();
            let shown = letters(usage);
            let not_yet = NOT_YET.iter().find(|(n, _)| *n == name).map_or("", |(_, l)| l);
            for letter in ('a'..='z').chain('A'..='Z') {
                // The second mistake stops accepted and unknown letters alike.
                let (code, _, err) = weir(&format!("{name} -{letter}? -?"));
                assert_eq!(code, 2, "{name} -{letter}? -?");
                let is_taken = !err.starts_with(&format!("invalid option '{letter}'"));
                let is_named = shown.contains(&letter) || not_yet.contains(letter);
                assert_eq!(is_taken, is_named, "{name} -{letter}: taken, in the usage: {page}");
                let is_explained = text.split([' ', ',', '\n']).any(|w| w == format!("-{letter}"));
                let named = text.contains(&format!("-{letter}:"));
                assert!(!shown.contains(&letter) || is_explained || named, "{name} -{letter} is not explained: {page}");
            }
        }
    }
}

/// What `program` says about a file, or nothing where it is not installed.
fn said(program: &str, args: &[&str], file: &std::path::Path) -> Option<String> {
    let Ok(o) = Command::new(program).args(args).arg(file).env("LC_ALL", "C.UTF-8").output() else {
        eprintln!("NOT RUN: {program} on {}: it is not installed", file.display());
        return None;
    };
    Some(format!("{}{}", String::from_utf8_lossy(&o.stdout), String::from_utf8_lossy(&o.stderr)))
}

/// Manual pages are in a folder under OpenZFS's names, and groff finds nothing wrong with them.
#[test]
fn man_writes_pages_that_groff_takes() {
    let dir = TempDir::new("cli-man").unwrap();
    let at = dir.join("a/man8");
    let (code, out, err) = weir(&format!("man {}", at.display()));
    assert_eq!((code, out.as_str(), err.as_str()), (0, "", ""));
    let mut names: Vec<_> = std::fs::read_dir(&at).unwrap().map(|e| e.unwrap().file_name()).collect();
    names.sort();
    for program in ["zpool", "zfs", "zstream"] {
        for command in commands(program) {
            let name = format!("{program}-{command}.8");
            assert!(names.iter().any(|n| *n == *name), "{name} is not there");
        }
    }
    for name in ["weir.8", "weir-lab.8", "weir-lab-zil.8", "weir-daemon.8", "zdb.8", "zfs-recv.8"] {
        assert!(names.iter().any(|n| n == name), "{name} is not there");
    }
    for name in &names {
        // An alias leads to a file below the folder of all sections.
        let file = at.join(name);
        let alias = std::fs::read_to_string(&file).unwrap().starts_with(".so ");
        let Some(warnings) = said("groff", &["-man", "-Tutf8", "-ww", "-z"], &file).filter(|_| !alias) else {
            continue;
        };
        assert_eq!(warnings, "", "{}", name.display());
    }
    assert_eq!(weir("man").0, 2);
    assert_eq!(weir("man /dev/null/x").0, 1);
}
