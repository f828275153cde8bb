//! `weir advise`: a live pool is recorded and gets an answer, as text and as JSON.
#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use std::fs::OpenOptions;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use common::world::World;
use common::{WEIR, outcome_of};

/// Writes durably to a file meanwhile; the first write has ended when that begins.
fn writing<T>(file: &str, during: impl FnOnce() -> T) -> T {
    let end = Arc::new(AtomicBool::new(false));
    let (told, file) = (end.clone(), file.to_string());
    let (tell, first) = std::sync::mpsc::channel();
    let writer = std::thread::spawn(move || {
        // O_DSYNC.
        let file = OpenOptions::new().create(true).truncate(true).write(true).custom_flags(0o10000).open(file).unwrap();
        for n in 0.. {
            if told.load(Ordering::Relaxed) {
                return;
            }
            file.write_all_at(&[7; 4096], n % 64 * 4096).unwrap();
            let _ = tell.send(());
        }
    });
    first.recv().unwrap();
    let result = during();
    end.store(true, Ordering::Relaxed);
    writer.join().unwrap();
    result
}

/// Few changes and seeds, so that a search takes a second.
const SMALL: &str = "--only zfs_txg_timeout,zfs_commit --seeds 2 --mem 512M";

#[test]
fn a_pool_in_use_gets_an_answer() {
    let Some(w) = World::new("cli-advise") else { return };
    w.ok(&format!("zpool create --size 256M -m {} tank a.img", w.path("m")));
    w.ok("zfs create -o recordsize=8k tank/db");
    let (file, ops) = (w.path("m/db/log"), w.path("ops"));
    let text = writing(&file, || w.ok(&format!("advise -s 2 -o {ops} {SMALL} --goal p99 tank")));
    assert!(text.starts_with("tank: ") && text.contains(" s; goal p99; devices nvme ("), "{text}");
    assert!(text.contains("(assumed, since files and virtual disks do not say what they are)"), "{text}");
    let said = text.lines().filter(|l| l.starts_with("Leave it: ") || l.starts_with("Change ")).count();
    assert_eq!(said, 1, "{text}");
    // The recording that was kept can be searched again, and says the same each time.
    let again = |line: &str| w.ok(&format!("lab advise {SMALL} --goal p99 --json {line} {ops}"));
    assert_eq!(again("--jobs 1"), again("--jobs 2"));
    assert!(w.ok(&format!("lab replay --warm {ops}")).contains("operations on nvme, seed 0"));

    // As JSON.
    let line = format!("advise -s 2 {SMALL} --goal p99 --model fixed:100:500 --json tank");
    let json = writing(&file, || w.ok(&line));
    for part in [
        "\"pool\":\"tank\"",
        "\"goal\":\"p99\"",
        "\"model\":\"fixed:100:500\",\"model_source\":\"by --model\"",
        "\"sentences\":[\"",
        "\"advice\":{\"",
    ] {
        assert!(json.contains(part), "{part}: {json}");
    }
    let is_change = json.contains("\"answer\":\"change\"");
    assert_eq!(is_change, json.contains("\"commands\":[\"weir tune set --save -p tank zfs_"), "{json}");
    assert!(is_change || json.contains("\"answer\":\"leave it\"") && json.contains("[\"Leave it: "), "{json}");
    // An advice changes nothing by itself.
    assert!(w.ok("tune get zfs_txg_timeout").contains("zfs_txg_timeout=5"));
    // Limits that no setting meets, and goals about what nobody did.
    let goal = |goal: &str| {
        let mut c = w.command(WEIR);
        c.args("advise -s 2 --only zfs_txg_timeout --seeds 2 --mem 512M tank --goal".split(' ')).arg(goal);
        writing(&file, || outcome_of(c.output().unwrap()))
    };
    let said = goal("write p99<1us");
    assert!(said.code == 0 && said.out.contains("write p99<1us is missed with "), "{}{}", said.out, said.err);
    let said = goal("read p99");
    assert!(said.code == 1 && said.err.contains("the goal is about reads, and none was recorded"), "{}", said.err);
}

#[test]
fn mistakes_and_pools_without_use_have_a_sentence() {
    let Some(w) = World::new("cli-advise-none") else { return };
    w.ok(&format!("zpool create --size 256M -m {} tank a.img", w.path("m")));
    w.fails("advise -s 1 tank", &["nothing was done in the mounts of 'tank'"]);
    // Before anything is recorded.
    for (line, what) in [
        ("advise --goal fast tank", "the goal 'fast' is none of"),
        ("advise --model tape tank", "'tape' is no model of a device"),
        ("advise --layout raidz9:2 tank", "'raidz9:2' is no vdev of a layout"),
        ("advise --tunable zfs_no=1 tank", "zfs_no"),
        ("advise --mem 1M tank", "256M to 1T of memory"),
        ("advise --seeds 1 tank", "--seeds: '1' is not a number from 2 to 1000"),
        ("advise none", "none"),
        ("advise -s 100000 tank", "1 to 86400 seconds"),
        ("advise -s 1 -o /no/such/folder/ops tank", "cannot write '/no/such/folder/ops'"),
    ] {
        w.fails(line, &[what]);
    }
    for line in ["advise", "advise tank other", "advise -s 0 tank", "advise -s x tank", "advise -x tank"] {
        let said = w.say(line);
        assert_eq!(said.code, 2, "{line}: {}", said.err);
        assert!(said.err.contains("usage:\n\tweir advise "), "{line}: {}", said.err);
    }
}
