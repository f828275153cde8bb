//! A plain user's file systems within each other, from the command line: mount, use, unmount, mount
//! again.
#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use common::can_mount;
use common::machine::{Machine, within_patience};

/// Users without rights that every Debian has: fusermount3 wants names.
const NOBODY: u32 = 65534;
const GAMES: u32 = 5;
const LP: u32 = 7;
const MAIL: u32 = 8;
const NEWS: u32 = 9;
const OTHER: u32 = 65533;

/// A machine, and its user without rights. Each test has a user of its own: a daemon looks whether
/// mounts of its user and pool are dead, and while it looks they are busy.
struct World(Machine, u32);

impl World {
    /// A pool with `tank`, `tank/a` and `tank/a/b` mounted within each other; None, with a message,
    /// if that is not possible.
    fn new(tag: &str, user: u32) -> Option<World> {
        if !can_mount(tag) {
            return None;
        }
        if Command::new("fusermount3").arg("--version").output().is_err() {
            eprintln!("NOT RUN: {tag}: needs fusermount3");
            return None;
        }
        let w = World(Machine::new(tag, user, OTHER)?, user);
        w.ok(&format!("zpool create --size 256M -O mountpoint={} tank a.img", w.at("").display()));
        w.ok("zfs create tank/a");
        w.ok("zfs create tank/a/b");
        w.sh("echo one > m/f; echo two > m/a/f; echo three > m/a/b/f");
        Some(w)
    }

    fn at(&self, path: &str) -> PathBuf {
        self.0.home(self.1).join("m").join(path)
    }
    fn ok(&self, line: &str) -> String {
        self.0.ok(self.1, self.1, line)
    }
    #[track_caller]
    fn fails(&self, line: &str, what: &str) {
        let s = self.0.say(self.1, self.1, line);
        assert!(s.code == 1 && s.err.contains(what), "weir {line}: {}, {}{}", s.code, s.out, s.err);
        assert_eq!(s.err.trim_end().lines().count(), 1, "one sentence: {}", s.err);
    }
    /// The output of a script of the user, which must succeed.
    #[track_caller]
    fn sh(&self, script: &str) -> String {
        let mut c = self.0.command(self.1, self.1, "sh".as_ref());
        c.args(["-ec", script]);
        let s = within_patience(c, script);
        assert_eq!(s.code, 0, "{script}: {}{}", s.out, s.err);
        s.out
    }
    /// A process of the user that has done `first` and waits.
    fn waiting(&self, first: &str) -> Waiting {
        let mut c = self.0.command(self.1, self.1, "sh".as_ref());
        c.args(["-ec", &format!("{first}; echo there; exec sleep 600")]);
        let mut child = c.stdout(Stdio::piped()).spawn().unwrap();
        std::io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut [0; 6]).unwrap();
        Waiting(child)
    }
    /// Names of mounted file systems.
    fn mounted(&self) -> Vec<String> {
        let list = self.ok("zfs mount");
        list.lines().map(|l| l.split_whitespace().next().unwrap().to_string()).collect()
    }
    /// All three are there, with their files.
    #[track_caller]
    fn check_all(&self) {
        // First: the command starts a daemon where there is none.
        assert_eq!(self.mounted(), ["tank", "tank/a", "tank/a/b"]);
        assert_eq!(self.sh("cat m/f m/a/f m/a/b/f"), "one\ntwo\nthree\n");
    }
    fn kill_daemon(&self) {
        let pid = self.0.pid(self.1);
        assert!(Command::new("kill").args(["-9", &pid]).status().unwrap().success());
        let threads = || std::fs::read_dir(format!("/proc/{pid}/task")).map_or(0, |list| list.count());
        let is_zombie = || std::fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|s| s.contains(") Z"));
        while threads() > 1 || (threads() == 1 && !is_zombie()) {
            std::thread::yield_now();
        }
    }
}

struct Waiting(Child);

impl Drop for Waiting {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn they_come_and_go_with_their_pool_and_daemon() {
    let Some(w) = World::new("nested-life", NOBODY) else { return };
    w.check_all();
    w.ok("zpool export tank");
    assert_eq!(w.sh("ls -A m 2>/dev/null | wc -l"), "0\n");
    w.ok("zpool import -d . tank");
    w.check_all();
    w.sh("echo more > m/a/b/more; sync m/a/b/more");
    w.kill_daemon();
    w.check_all();
    assert_eq!(w.sh("cat m/a/b/more; rm m/a/b/more"), "more\n");
    // Unmounted by hand: the mounts within it end, and can be mounted again.
    w.sh("fusermount3 -u m");
    w.ok("zfs mount -a");
    w.check_all();
    w.ok("zfs unmount -a");
    assert_eq!(w.mounted(), [""; 0]);
    w.ok("zfs mount -a");
    w.check_all();
    w.ok("daemon stop");
    w.check_all();
}

#[test]
fn what_is_in_use_stays() {
    let Some(w) = World::new("nested-use", LP) else { return };
    for first in ["cd m/a/b", "exec 3<m/a/b/f", "exec 3<>m/a/b/new", "exec 3<m/a/b"] {
        let process = w.waiting(first);
        for line in ["zfs unmount tank/a/b", "zpool export tank"] {
            w.fails(line, "busy");
        }
        w.check_all();
        drop(process);
    }
    w.ok("zfs unmount tank/a/b");
    assert_eq!(w.mounted(), ["tank", "tank/a"]);
    assert_eq!(w.sh("ls -A m/a/b | wc -l"), "0\n");
    w.ok("zfs mount tank/a/b");
    w.check_all();
    // With the mounts within it.
    let process = w.waiting("exec 3<m/a/b/f");
    w.ok("zfs unmount -f tank/a");
    assert_eq!(w.mounted(), ["tank"]);
    drop(process);
    w.ok("zfs mount -a");
    w.check_all();
    for (line, why) in [("mv m/a m/z", "busy"), ("rmdir m/a/b", "busy"), ("ln m/f m/a/link", "cross-device")] {
        let text = w.sh(&format!("{line} 2>&1 || true"));
        assert!(text.contains(why), "{line}: {text}");
    }
    w.check_all();
}

#[test]
fn commands_that_change_file_systems_find_them() {
    let Some(w) = World::new("nested-change", MAIL) else { return };
    w.ok("zfs snapshot -r tank@s");
    assert_eq!(w.sh("cat m/a/b/.zfs/snapshot/s/f"), "three\n");
    w.sh("echo changed > m/a/b/f");
    w.ok("zfs rollback tank/a/b@s");
    w.check_all();
    w.sh("echo changed > m/a/f");
    w.ok("zfs rollback tank/a@s");
    w.check_all();
    w.ok("zfs rename tank/a/b tank/c");
    assert_eq!(w.sh("cat m/c/f; ls m/a"), "three\nf\n");
    w.ok("zfs rename tank/c tank/a/b");
    w.check_all();
    w.ok("zfs clone tank/a/b@s tank/a/clone");
    assert_eq!(w.sh("cat m/a/clone/f"), "three\n");
    w.ok("zfs destroy tank/a/clone");
    assert_eq!(w.sh("ls m/a"), "b\nf\n");
    w.ok(&format!("zfs set mountpoint={} tank/a/b", w.at("moved").display()));
    assert_eq!(w.sh("cat m/moved/f; ls m/a"), "three\nb\nf\n");
    w.ok("zfs inherit mountpoint tank/a/b");
    w.check_all();
    w.ok("zfs set quota=20M tank/a/b");
    let blocks = w.sh("for i in m m/a/b; do stat -f -c %b $i; done");
    let blocks: Vec<u64> = blocks.lines().map(|l| l.parse().unwrap()).collect();
    assert!(blocks[1] < blocks[0] / 2, "{blocks:?}");
    w.ok("zfs destroy -r tank/a");
    assert_eq!(w.mounted(), ["tank"]);
    assert_eq!(w.sh("ls m"), "f\nmoved\n");
}

#[test]
fn each_is_as_writable_as_its_properties_say() {
    let Some(w) = World::new("nested-flags", NEWS) else { return };
    w.ok("zfs set readonly=on tank/a");
    w.ok("zfs set readonly=off tank/a/b");
    for line in ["", "zpool export tank", "zpool import -d . tank"] {
        if !line.is_empty() {
            w.ok(line);
        }
        if line.starts_with("zpool export") {
            continue;
        }
        w.sh("echo x > m/x; rm m/x; echo x > m/a/b/x; rm m/a/b/x");
        assert!(w.sh("touch m/a/x 2>&1 || true").contains("Read-only"));
    }
    // The outer one is read-only, the inner ones are not.
    w.ok("zfs inherit readonly tank/a");
    w.ok("zfs set readonly=on tank");
    w.ok("zfs set readonly=off tank/a");
    w.ok("zpool export tank");
    w.ok("zpool import -d . tank");
    assert!(w.sh("touch m/x 2>&1 || true").contains("Read-only"));
    w.sh("echo x > m/a/x; rm m/a/x");
    // Mount flags that the kernel evaluates apply to the mounts within, and the command says so.
    w.ok("zfs unmount -a");
    w.ok("zfs set exec=off tank");
    w.ok("zfs set exec=on tank/a");
    let outcome = w.0.say(w.1, w.1, "zfs mount -a");
    assert!(
        outcome.code == 0 && outcome.err.contains("warning: programs of 'tank/a' cannot be executed"),
        "{}",
        outcome.err
    );
    assert!(w.sh("cp /bin/true m/a/; m/a/true 2>&1 || true").contains("Permission denied"));
}

#[test]
fn an_encrypted_one_goes_with_its_key() {
    let Some(w) = World::new("nested-key", GAMES) else { return };
    w.sh("printf 'a long pass phrase\\n' > key");
    let key = w.0.home(w.1).join("key");
    w.ok(&format!(
        "zfs create -o encryption=on -o keyformat=passphrase -o keylocation=file://{} tank/a/b/e",
        key.display()
    ));
    w.sh("echo secret > m/a/b/e/f");
    w.fails("zfs unload-key tank/a/b/e", "");
    w.ok("zfs unmount tank/a/b/e");
    w.ok("zfs unload-key tank/a/b/e");
    assert_eq!(w.sh("ls -A m/a/b/e"), "");
    w.fails("zfs mount tank/a/b/e", "key");
    w.ok("zfs mount -l tank/a/b/e");
    assert_eq!(w.sh("cat m/a/b/e/f"), "secret\n");
}
