//! `weir defrag` on a pool in an image: files in pieces are planned, rewritten through their
//! mounts, interrupted, gone on with, and measured. A pool of another daemon, which has the same
//! name and the same files, stays as it is.
#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::FileExt;
use std::process::{Command, Stdio};

use common::WEIR;
use common::world::World;
use serde_json::Value;

/// Files, records of each, bytes of a record.
const FILES: u64 = 6;
const RECORDS: u64 = 512;
const RECORD: u64 = 16 << 10;

/// Bytes that no compression makes smaller, the same for the same number.
fn record(n: u64) -> Vec<u8> {
    let mut state = n + 1;
    let word = |_| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()
    };
    (0..RECORD / 8).flat_map(word).collect()
}

/// Files whose records were overwritten in an order like that of chance, with the same bytes.
fn aged(w: &World, at: &str) {
    let name = |f: u64| format!("{at}/file{f}");
    let files: Vec<fs::File> = (0..FILES).map(|f| fs::File::create(name(f)).unwrap()).collect();
    let write = |n: u64| files[(n % FILES) as usize].write_all_at(&record(n), n / FILES * RECORD).unwrap();
    let all = FILES * RECORDS;
    (0..all).for_each(write);
    w.ok("zpool sync");
    for round in 0..4 {
        // 1009 is prime, so every record comes once in four rounds.
        (0..all).filter(|n| n % 4 == round).for_each(|n| write(n * 1009 % all));
        w.ok("zpool sync");
    }
}

/// A pool with such files, mounted at `m`.
fn aged_pool(w: &World) -> String {
    let at = w.path("m");
    w.ok(&format!("zpool create --size 512M -O compression=off -O recordsize=16K -m {at} tank a.img"));
    aged(w, &at);
    at
}

/// Runs of all files of a pool.
fn runs_of(plan: &Value) -> u64 {
    plan["pool_files"]["runs"].as_u64().unwrap()
}

fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap()
}

#[test]
fn files_are_planned_rewritten_and_measured() {
    let Some(w) = World::new("defrag") else { return };
    let at = aged_pool(&w);
    // Mounted last, it comes last in the system's list.
    let Some(other) = World::new("defrag-other") else { return };
    aged_pool(&other);
    let other_runs = || runs_of(&json(&other.ok("defrag plan --json --min-gain 0 -p a.img tank")));
    let other_before = other_runs();
    let before = json(&w.ok("defrag plan --json -p a.img tank"));
    assert_eq!(before["files"].as_array().unwrap().len() as u64, FILES, "{before:#}");
    let runs = runs_of(&before);
    assert!(runs > FILES * RECORDS / 2, "{runs}");

    // Only what it would do.
    let said = w.ok("defrag run -n -p a.img tank");
    assert!(said.contains("Would rewrite 6 of 6 files."), "{said}");
    assert_eq!(runs_of(&json(&w.ok("defrag plan --json -p a.img tank"))), runs);

    // It works a hundredth of the time, so that the interrupt comes before its end.
    let mut c = w.command(WEIR);
    let args = "defrag run --share 1 -p a.img tank".split(' ');
    let mut child = c.args(args).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    // It is there already and needs no time to start.
    let interrupt = ["-c", "read go; kill -TERM $0", &child.id().to_string()];
    let mut killer = Command::new("sh").args(interrupt).stdin(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines().map_while(Result::ok);
    let first = lines.next().unwrap();
    assert!(first.starts_with("1/6 tank:/file"), "{first}");
    killer.stdin.take().unwrap().write_all(b"\n").unwrap();
    assert!(killer.wait().unwrap().success());
    assert!(!child.wait().unwrap().success());

    // Another plan, of what is on disk by now, has to wait.
    w.ok("zpool sync");
    fs::write(w.path("other.json"), w.ok("defrag plan --json --min-gain 0 -p a.img tank")).unwrap();
    let s = w.say("defrag run --plan other.json -p a.img tank");
    assert!(s.code == 2 && s.err.contains("not at its end") && s.err.lines().count() == 1, "{}{}", s.out, s.err);

    let said = w.ok("defrag run -n -p a.img tank");
    assert!(said.starts_with("Going on with") && !said.contains("Would rewrite 6 of"), "{said}");
    let said = w.ok("defrag run --share 100 -p a.img tank");
    let going = said.lines().next().unwrap();
    assert!(going.starts_with("Going on with the plan of txg ") && !going.contains(": 0 of 6"), "{said}");
    assert!(said.contains("Rewritten: 6 of 6 files") && said.contains("measured"), "{said}");
    let after = json(&w.ok("defrag plan --json --min-gain 0 -p a.img tank"));
    let left = runs_of(&after);
    assert!(left * 4 < runs, "{left} runs of {runs} are left");
    for n in 0..FILES * RECORDS {
        let mut have = vec![0; RECORD as usize];
        let file = fs::File::open(format!("{at}/file{}", n % FILES)).unwrap();
        file.read_exact_at(&mut have, n / FILES * RECORD).unwrap();
        assert!(have == record(n), "record {n}");
    }

    // A plan from a file, whose files are not all there any more.
    fs::write(w.path("plan.json"), before.to_string()).unwrap();
    fs::remove_file(format!("{at}/file0")).unwrap();
    fs::rename(format!("{at}/file1"), format!("{at}/file2")).unwrap();
    let s = w.say("defrag run --share 100 --plan plan.json --json -p a.img tank");
    let outcome = json(&s.out);
    assert_eq!((s.code, outcome["rewritten_files"].as_u64()), (1, Some(3)), "{}{}", s.out, s.err);
    let mut why: Vec<&str> =
        outcome["left_out"].as_array().unwrap().iter().map(|f| f["why"].as_str().unwrap()).collect();
    why.sort_unstable();
    assert_eq!(why, ["it is gone", "it is gone", "its name leads to another file now"]);
    assert!(outcome["measured"]["read_bytes_per_s"].as_u64() > outcome["before"]["read_bytes_per_s"].as_u64());

    // What is not mounted, and what is no plan.
    w.ok("zfs unmount tank");
    let s = w.say("defrag run -n --plan plan.json -p a.img tank");
    assert!(
        s.out.contains("Would rewrite 0 of 6 files.") && s.out.contains("tank is not mounted"),
        "{}{}",
        s.out,
        s.err
    );
    fs::write(w.path("bad.json"), "{}").unwrap();
    let s = w.say("defrag run --plan bad.json -p a.img tank");
    assert!(s.code == 2 && s.err.contains("this is no plan"), "{}", s.err);
    other.ok("zpool sync");
    assert_eq!(other_runs(), other_before);
    w.ok("zpool export tank");
    w.ok("zdb --check -p . tank");
}
