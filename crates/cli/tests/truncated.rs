//! Device files that are truncated, and perhaps grown again, while a daemon has them in use, seen
//! from the command line: the pool notices with the next label write, reports it in `zpool status`,
//! `zpool events` and the log, continues on its redundancy, and is suspended without.
#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use std::fs::OpenOptions;
use std::process::{Child, Command, Stdio};

use common::world::World;
use common::{ALONE, WEIR, outcome_of};

const SIZE: u64 = 64 << 20;
/// Of the features that the installed zdb knows.
const CREATE: &str = "zpool create -o compatibility=openzfs-2.1-linux -O mountpoint=none";

/// A scratch folder with these files of [`SIZE`], and its daemon.
fn world(tag: &str, files: &[&str]) -> World {
    let w = World::without_mounts(tag);
    for name in files {
        host::create_sparse(w.path(name), SIZE).unwrap();
    }
    w
}

impl World {
    fn cut(&self, name: &str, grows: bool) {
        let file = OpenOptions::new().write(true).open(self.path(name)).unwrap();
        file.set_len(1 << 20).unwrap();
        if grows {
            file.set_len(SIZE).unwrap();
        }
    }

    /// Restores the content of a file in place.
    fn put_back(&self, name: &str, held: &[u8]) {
        std::fs::write(self.path(name), held).unwrap();
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.path("run/daemon.log")).unwrap()
    }

    fn judge(&self) {
        match Command::new("zdb").args(ALONE).args(["-e", "-p"]).arg(self.dir.path()).args(["-bcc", "tank"]).output() {
            Ok(o) => assert!(o.status.success(), "zdb: {}", String::from_utf8_lossy(&o.stdout)),
            Err(_) => eprintln!("NOT RUN: zdb is not installed"),
        }
    }
}

fn state_of(status: &str, name: &str) -> String {
    let line = status.lines().find(|l| l.contains(name)).unwrap_or_else(|| panic!("{name} in {status}"));
    line.split_whitespace().nth(1).unwrap().into()
}

#[test]
fn a_file_that_others_can_stand_in_for_is_given_up_and_brought_back() {
    for (layout, names) in [("mirror", &["a.img", "b.img"][..]), ("raidz", &["a.img", "b.img", "c.img"][..])] {
        for grows in [false, true] {
            let w = world("cli-cut", &["a.img", "b.img", "c.img", "new.img"]);
            w.ok(&format!("{CREATE} tank {layout} {}", names.join(" ")));
            w.ok("zfs create tank/before");
            w.ok("zpool sync tank");
            let held = std::fs::read(w.path("a.img")).unwrap();
            w.cut("a.img", grows);
            w.ok("zfs create tank/after");
            w.ok("zpool sync tank");
            w.event("resource.fs.zfs.removed");
            let status = w.ok("zpool status tank");
            assert!(status.contains(" state: DEGRADED\n"), "{status}");
            assert_eq!(state_of(&status, "a.img"), "REMOVED", "{status}");
            assert!(status.contains("status: One or more devices has experienced an unrecoverable error."), "{status}");
            let log = w.log();
            assert!(log.lines().any(|l| l.contains("a.img is REMOVED now: ") && l.contains("truncated")), "{log}");

            // With a remaining label, or one restored from an older copy, the device is resilvered
            // completely.
            if !grows {
                w.ok("zpool clear tank");
                let status = w.ok("zpool status tank");
                assert!(status.contains(" state: DEGRADED\n") && status.contains("UNAVAIL"), "{status}");
                w.put_back("a.img", &held);
            }
            w.ok("zpool clear tank");
            // It is requested, if it has not begun.
            w.ok("zpool wait -t resilver tank");
            let status = w.ok("zpool status tank");
            assert!(status.contains(" state: ONLINE\n") && status.contains("with 0 errors"), "{status}");
            assert_eq!(state_of(&status, "a.img"), "ONLINE", "{status}");

            // The second time another file takes its place.
            w.cut("a.img", grows);
            w.ok("zfs create tank/again");
            w.ok("zpool sync tank");
            w.ok(&format!("zpool replace -w tank {} {}", w.path("a.img"), w.path("new.img")));
            let status = w.ok("zpool status tank");
            assert!(status.contains(" state: ONLINE\n") && status.contains("new.img"), "{status}");
            let names = w.ok("zfs list -H -o name -r tank");
            assert_eq!(names, "tank\ntank/after\ntank/again\ntank/before\n");
            w.ok("zpool export tank");
            std::fs::remove_file(w.path("a.img")).unwrap();
            w.judge();
        }
    }
}

#[test]
fn a_pool_on_one_file_waits_until_that_is_put_back() {
    for grows in [false, true] {
        let w = world("cli-cut-one", &["a.img"]);
        w.ok(&format!("{CREATE} tank a.img"));
        w.ok("zfs create tank/before");
        w.ok("zpool sync tank");
        let held = std::fs::read(w.path("a.img")).unwrap();
        w.cut("a.img", grows);
        let create: Child =
            w.command(WEIR).args(["zfs", "create", "tank/after"]).stdout(Stdio::piped()).spawn().unwrap();
        w.event("ereport.fs.zfs.io_failure");
        let status = w.ok("zpool status tank");
        assert!(status.contains(" state: SUSPENDED\n") && status.contains("truncated"), "{status}");
        assert!(w.log().contains("pool 'tank' is suspended"), "{}", w.log());
        // Also with its contents restored: blocks of the suspended txg were written to the file and
        // are lost.
        for back in [false, true] {
            if back {
                w.put_back("a.img", &held);
            }
            let s = w.say("zpool clear tank");
            assert_eq!(s.code, 1, "{}{}", s.out, s.err);
            assert!(
                s.err.starts_with("cannot clear errors for tank: ") && s.err.contains("'zpool export -f'"),
                "{}",
                s.err
            );
        }
        assert!(w.ok("zpool status tank").contains(" state: SUSPENDED\n"));
        w.ok("zpool export -f tank");
        assert_ne!(outcome_of(create.wait_with_output().unwrap()).code, 0, "what waited is given up");
        w.ok("zpool import -d . tank");
        let status = w.ok("zpool status tank");
        assert!(status.contains(" state: ONLINE\n"), "{status}");
        assert_eq!(w.ok("zfs list -H -o name -r tank"), "tank\ntank/before\n");
        w.ok("zpool scrub -w tank");
        assert!(w.ok("zpool status tank").contains("with 0 errors"));
        w.ok("zpool export tank");
        w.judge();
    }
}

/// `zpool online` and `zpool clear` both treat all of the file as stale, whether the pool noticed
/// or the device was offline meanwhile.
#[test]
fn a_file_that_comes_online_after_it_was_cut_gets_everything() {
    for noticed in [true, false] {
        let w = world("cli-cut-online", &["a.img", "b.img"]);
        w.ok(&format!("{CREATE} tank mirror a.img b.img"));
        w.ok("zfs create tank/before");
        w.ok("zpool sync tank");
        if !noticed {
            w.ok("zpool offline tank a.img");
        }
        w.cut("a.img", true);
        w.ok("zfs create tank/after");
        w.ok("zpool sync tank");
        if noticed {
            w.event("resource.fs.zfs.removed");
        }
        w.ok("zpool online tank a.img");
        w.ok("zpool wait -t resilver tank");
        let status = w.ok("zpool status tank");
        assert!(status.contains(" state: ONLINE\n") && status.contains("scan: resilvered "), "{status}");
        w.ok("zpool scrub -w tank");
        let status = w.ok("zpool status tank");
        assert!(status.contains("scan: scrub repaired 0B in ") && status.contains("with 0 errors"), "{status}");
        // The pool can work without the other device.
        w.ok("zpool offline tank b.img");
        assert_eq!(w.ok("zfs list -H -o name -r tank"), "tank\ntank/after\ntank/before\n");
        w.ok("zpool export tank");
        w.judge();
    }
}

/// A device that was not truncated gets only the writes that it missed while offline.
#[test]
fn a_file_that_was_not_cut_gets_what_it_missed() {
    let w = world("cli-uncut", &["a.img", "b.img"]);
    w.ok("zpool create -O mountpoint=none tank mirror a.img b.img");
    for n in 0..40 {
        w.ok(&format!("zfs create tank/fs{n}"));
    }
    w.ok("zpool offline tank a.img");
    w.ok("zfs create tank/after");
    w.ok("zpool online tank a.img");
    w.ok("zpool wait -t resilver tank");
    let json: serde_json::Value = serde_json::from_str(&w.ok("zpool status -j -p tank")).unwrap();
    let resilvered = &json["pools"]["tank"]["scan_stats"]["processed"];
    let resilvered: u64 = resilvered.as_str().map_or_else(|| resilvered.as_u64(), |s| s.parse().ok()).unwrap();
    let all: u64 = w.ok("zpool get -Hp -o value allocated tank").trim().parse().unwrap();
    assert!(resilvered > 0 && 2 * resilvered < all, "{resilvered} of {all}");
    w.ok("zpool destroy tank");
}
