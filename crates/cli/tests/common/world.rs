//! A daemon that mounts, with folders of its own.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use host::TempDir;

use super::{Outcome, WEIR, can_mount, command_in, outcome_of};

/// A scratch folder and the daemon that works there.
pub struct World {
    pub dir: TempDir,
    /// `WEIR_SYNC_DEVICES`: with 1, and where the kernel can, mounts have another type.
    pub sync_devices: &'static str,
}

impl World {
    /// None, with a message, if nothing can be mounted.
    pub fn new(tag: &str) -> Option<World> {
        if !can_mount(tag) {
            return None;
        }
        Some(World::without_mounts(tag))
    }

    /// For tests that mount nothing.
    pub fn without_mounts(tag: &str) -> World {
        World { dir: TempDir::new(tag).unwrap(), sync_devices: "0" }
    }

    /// The same as [`World::new`], but only for root.
    pub fn of_root(tag: &str) -> Option<World> {
        if host::effective_uid() != 0 {
            eprintln!("NOT RUN: {tag}: only root may do this");
            return None;
        }
        World::new(tag)
    }

    pub fn path(&self, name: &str) -> String {
        fs::canonicalize(self.dir.path()).unwrap().join(name).display().to_string()
    }

    pub fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut c = command_in(self.dir.path(), program);
        c.env("WEIR_SYNC_DEVICES", self.sync_devices);
        c
    }

    pub fn say(&self, line: &str) -> Outcome {
        outcome_of(self.command(WEIR).args(line.split_whitespace()).output().unwrap())
    }

    pub fn ok(&self, line: &str) -> String {
        let s = self.say(line);
        assert_eq!(s.code, 0, "weir {line}: {}{}", s.out, s.err);
        s.out
    }

    /// It must fail with one sentence that contains all of these.
    pub fn fails(&self, line: &str, what: &[&str]) {
        let s = self.say(line);
        assert!(s.code == 1 && what.iter().all(|w| s.err.contains(w)), "weir {line}: {}, {}{}", s.code, s.out, s.err);
        assert_eq!(s.err.trim_end().lines().count(), 1, "one sentence: {}", s.err);
    }

    /// Waits for an event of the pool `tank` by following its events.
    pub fn event(&self, class: &str) {
        let mut c = self.command(WEIR);
        let mut follower = c.args("zpool events -H -f tank".split(' ')).stdout(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(follower.stdout.take().unwrap()).lines();
        let seen = lines.map_while(Result::ok).any(|l| l.ends_with(class));
        follower.kill().unwrap();
        follower.wait().unwrap();
        assert!(seen, "{class}");
    }

    pub fn is_mounted(&self, name: &str) -> bool {
        self.ok(&format!("zfs get -H -o value mounted {name}")) == "yes\n"
    }

    /// Ends the daemon with signal 9 and waits until it is gone.
    pub fn kill_daemon(&self) {
        let pid = self.ok("daemon status").split_whitespace().nth(1).unwrap().to_string();
        run("kill", &["-9", &pid]);
        let threads = || fs::read_dir(format!("/proc/{pid}/task")).map_or(0, |list| list.count());
        let is_zombie = || fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|s| s.contains(") Z"));
        while threads() > 1 || (threads() == 1 && !is_zombie()) {
            std::thread::yield_now();
        }
    }
}

impl Drop for World {
    fn drop(&mut self) {
        let _ = self.command(WEIR).args(["daemon", "stop", "-f"]).output();
        // Dead mounts of a failed test.
        for at in mounts_below(self.dir.path()) {
            let _ = Command::new("umount").arg("-l").arg(at).stderr(Stdio::null()).status();
        }
    }
}

pub fn run(program: &str, args: &[&str]) {
    assert!(Command::new(program).args(args).status().unwrap().success(), "{program} {args:?}");
}

pub fn mounts_below(dir: &Path) -> Vec<PathBuf> {
    let table = host::MountTable::read().unwrap();
    table.entries().iter().filter(|e| e.at.starts_with(dir)).map(|e| e.at.clone()).collect()
}

pub fn mounts_at(path: &str) -> usize {
    mounts_below(Path::new("/")).iter().filter(|p| *p == Path::new(path)).count()
}
