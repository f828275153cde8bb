//! Devices that do not answer, or refuse all writes: the end of the daemon while an import waits
//! for one, and forced exports of suspended pools.
#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::Instant;

use common::loops::Loop;
use common::machine::{PATIENCE, within_patience};
use common::world::{World, mounts_below, run};
use common::{Outcome, WEIR, outcome_of};

impl World {
    /// A command that runs in the background.
    fn start(&self, line: &str) -> Child {
        let mut c = self.command(WEIR);
        c.args(line.split_whitespace()).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        c.spawn().unwrap()
    }

    /// It must end.
    fn ends(&self, line: &str) -> Outcome {
        let mut c = self.command(WEIR);
        c.args(line.split_whitespace());
        within_patience(c, line)
    }

    /// It must succeed.
    fn done(&self, line: &str) -> String {
        let s = self.ends(line);
        assert_eq!((s.code, s.err.as_str()), (0, ""), "weir {line}: {}", s.out);
        s.out
    }

    fn pid(&self) -> String {
        self.ok("daemon status").split_whitespace().nth(1).unwrap().to_string()
    }

    /// Waits until the daemon has this request.
    fn is_asked(&self, what: &str) {
        let since = Instant::now();
        while !self.done("daemon status").contains(&format!("request: {what}")) {
            assert!(since.elapsed() < PATIENCE, "nobody asks for {what}");
            std::thread::yield_now();
        }
    }
}

/// A process that does nothing as long as this lives.
struct Halted(String);

impl Halted {
    fn new(pid: String) -> Halted {
        run("kill", &["-STOP", &pid]);
        Halted(pid)
    }
}

impl Drop for Halted {
    fn drop(&mut self) {
        run("kill", &["-CONT", &self.0]);
    }
}

/// The disk is a file in the mount of another daemon, which is stopped.
#[test]
fn the_end_waits_for_no_import() {
    let Some(outer) = World::of_root("stop-outer") else { return };
    let Some(w) = World::of_root("stop-import") else { return };
    let at = outer.path("m");
    outer.ok(&format!("zpool create -m {at} --size 512M outer o.img"));
    let file = Path::new(&at).join("disk");
    host::create_sparse(&file, 128 << 20).unwrap();
    let Some(disk) = Loop::new(&file, &[]) else { return };
    w.done(&format!("zpool create -f -O mountpoint=none slow {}", disk.at));
    w.done("zfs create slow/kept");
    let place = w.path("other");
    w.done(&format!("zpool create -m {place} --size 128M other o.img"));
    w.done("daemon stop");
    // An import that the daemon begins by itself: the pool was imported when the last one ended.
    let halted = Halted::new(outer.pid());
    w.done("daemon start");
    let list = w.start("zpool list");
    w.is_asked("zpool status");
    w.done("daemon stop -f");
    assert_eq!(outcome_of(list.wait_with_output().unwrap()).code, 1);
    drop(halted);
    assert_eq!(w.done("zfs list -H -o name"), "other\nslow\nslow/kept\n");
    // An import by a command, beside a healthy pool that is closed cleanly.
    w.done("zpool export slow");
    let halted = Halted::new(outer.pid());
    let import = w.start(&format!("zpool import -d {} slow", disk.at));
    w.is_asked("zpool import");
    fs::write(format!("{place}/f"), "written").unwrap();
    assert_eq!(w.done("zpool list -H -o name"), "other\n");
    w.done("daemon stop -f");
    assert!(mounts_below(w.dir.path()).is_empty());
    let s = outcome_of(import.wait_with_output().unwrap());
    assert!(s.code == 1 && s.err.contains("the daemon went away"), "{s:?}");
    drop(halted);
    assert_eq!(w.done("zpool list -H -o name,health"), "other\tONLINE\n");
    assert_eq!(fs::read_to_string(format!("{place}/f")).unwrap(), "written");
}

/// A file that cannot grow: the file system below it is full.
#[test]
fn a_suspended_pool_is_given_up_by_force() {
    for destroy in [false, true] {
        let Some(w) = World::of_root("suspended") else { return };
        let (below, at) = (w.path("below"), w.path("m"));
        fs::create_dir(&below).unwrap();
        run("mount", &["-t", "tmpfs", "-o", "size=24M", "none", &below]);
        w.done(&format!("zpool create -m {at} -O compression=off --size 128M tank {below}/a.img"));
        w.done("zfs create tank/child");
        fs::write(format!("{at}/child/kept"), "kept").unwrap();
        w.done("zpool sync tank");
        // Nothing is left of the file system below.
        let block = vec![0; 1 << 16];
        let mut fill = File::create(format!("{below}/fill")).unwrap();
        while fill.write_all(&block).is_ok() {}
        drop(fill);
        let lost = File::create(format!("{at}/child/lost")).unwrap();
        for n in 0..64 {
            lost.write_all_at(&block, n << 16).unwrap();
        }
        let (waits, in_use) = (lost.try_clone().unwrap(), File::open(format!("{at}/child/kept")).unwrap());
        let waits = std::thread::spawn(move || waits.sync_all());
        w.event("ereport.fs.zfs.io_failure");
        assert!(w.done("zpool status tank").contains(" state: SUSPENDED\n"));
        // Commands without -f are refused with a message, and change nothing.
        for line in ["zpool export tank", "zpool destroy tank", "daemon stop"] {
            let s = w.ends(line);
            assert!(s.code == 1 && s.err.contains("suspended"), "{line}: {s:?}");
        }
        assert!(w.is_mounted("tank/child") && !waits.is_finished());
        w.done(if destroy { "zpool destroy -f tank" } else { "zpool export -f tank" });
        // Waiting commands fail, nothing is mounted, and the file is closed.
        assert!(waits.join().unwrap().is_err());
        assert!(lost.sync_all().is_err() && in_use.metadata().is_err());
        assert_eq!(mounts_below(Path::new(&at)).len(), 0);
        assert_eq!(w.done("zpool list -H"), "");
        drop((lost, in_use));
        fs::remove_file(format!("{below}/fill")).unwrap();
        if destroy {
            w.fails(&format!("zpool import -d {below} tank"), &["no such pool available"]);
        } else {
            w.done(&format!("zpool import -d {below} tank"));
            assert_eq!(fs::read_to_string(format!("{at}/child/kept")).unwrap(), "kept");
            w.done("zpool scrub -w tank");
            assert!(w.done("zpool status tank").contains("with 0 errors"));
            w.done("zpool destroy tank");
        }
        w.done("daemon stop");
        run("umount", &[&below]);
    }
}
