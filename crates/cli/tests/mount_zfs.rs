//! `mount.zfs`: the helper of mount(8), alone, and called by `mount -t zfs` and for a line of
//! fstab.
#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use std::fs;
use std::process::Command;

use common::world::{World, mounts_at, run};
use common::{Outcome, WEIR, outcome_of};

/// A pool with a file system for mount(8), `tank/x`, another one, `tank/own`, and folders `a`, `b`.
fn world(tag: &str) -> Option<World> {
    let w = World::of_root(tag)?;
    w.ok(&format!("zpool create --size 128M -m {} tank a.img", w.path("m")));
    w.ok("zfs create -o mountpoint=legacy tank/x");
    w.ok("zfs create tank/own");
    fs::create_dir(w.path("a")).unwrap();
    fs::create_dir(w.path("b")).unwrap();
    std::os::unix::fs::symlink(WEIR, w.path("mount.zfs")).unwrap();
    Some(w)
}

impl World {
    /// Calls the helper as mount(8) does.
    fn helper(&self, args: &[&str]) -> Outcome {
        outcome_of(self.command(self.path("mount.zfs")).args(args).output().unwrap())
    }

    fn refuses(&self, args: &[&str], code: i32, what: &str) {
        let o = self.helper(args);
        assert!(o.code == code && o.err.contains(what), "{args:?}: {} {}{}", o.code, o.out, o.err);
    }

    fn place(&self, name: &str) -> Option<String> {
        let list = self.ok("zfs mount");
        let line = list.lines().find(|l| l.split_whitespace().next() == Some(name))?;
        Some(line.split_whitespace().nth(1).unwrap().to_string())
    }
}

#[test]
fn a_legacy_file_system_is_mounted_where_it_is_told_and_stays_there() {
    let Some(w) = world("mount-zfs") else { return };
    let (a, b) = (w.path("a"), w.path("b"));
    w.fails("zfs mount tank/x", &["legacy mountpoint", "mount -t zfs tank/x"]);
    let o = w.helper(&["tank/x", &a, "-o", "rw,noatime,nofail"]);
    assert_eq!((o.code, o.out.as_str(), o.err.as_str()), (0, "", ""));
    fs::write(format!("{a}/f"), "kept").unwrap();
    assert_eq!(w.place("tank/x"), Some(a.clone()));
    assert_eq!(w.ok("zfs get -H -o value,source atime tank/x"), "off\ttemporary\n");
    w.refuses(&["tank/x", &a], 32, "already mounted");
    // It can be seen at another place as well.
    let o = w.helper(&["tank/x", &b]);
    assert_eq!((o.code, o.err.as_str()), (0, ""));
    assert_eq!(fs::read_to_string(format!("{b}/f")).unwrap(), "kept");
    assert_eq!((w.place("tank/x"), mounts_at(&b)), (Some(a.clone()), 1));
    run("umount", &[&b]);
    assert_eq!((w.place("tank/x"), mounts_at(&a)), (Some(a.clone()), 1));
    w.fails("zfs unmount tank/x", &["legacy mountpoint", "umount(8)"]);
    w.fails("zfs unmount -f tank/x", &["legacy mountpoint"]);
    // What is mounted by hand stays, as does the place when a property needs a new mount.
    w.ok("zfs unmount -a");
    assert_eq!((w.place("tank/x"), w.place("tank/own")), (Some(a.clone()), None));
    w.ok("zfs set exec=off tank/x");
    w.ok("zfs rename tank/x tank/y");
    assert_eq!(w.place("tank/y"), Some(a.clone()));
    w.ok("zfs snapshot tank/y@s");
    fs::write(format!("{a}/f"), "changed").unwrap();
    w.ok("zfs rollback tank/y@s");
    assert_eq!(fs::read_to_string(format!("{a}/f")).unwrap(), "kept");
    w.helper(&["tank/y", &a, "-o", "remount,ro"]);
    assert!(fs::write(format!("{a}/f"), "").is_err(), "it can be written");
    run("umount", &[&a]);
    assert!(mounts_at(&a) == 0 && !w.is_mounted("tank/y"));
    // Nothing of the place is left for the next time.
    w.fails("zfs mount tank/y", &["legacy mountpoint"]);
    let link = w.path("link");
    std::os::unix::fs::symlink(&b, &link).unwrap();
    assert_eq!(w.helper(&["-v", "tank/y", &link]).code, 0);
    assert_eq!(w.place("tank/y"), Some(b.clone()));
    w.ok("zfs set mountpoint=none tank/y");
    assert_eq!(w.place("tank/y"), None);
    w.ok("zpool destroy tank");
}

#[test]
fn what_is_refused_has_the_exit_code_of_mount_and_changes_nothing() {
    let Some(w) = world("mount-zfs-no") else { return };
    let a = w.path("a");
    w.ok("zfs unmount tank/own");
    w.refuses(&["tank/own", &a], 1, "cannot be mounted using 'mount'");
    w.refuses(&["tank/x", &a, "-o", "zfsutil"], 1, "cannot be mounted using 'zfs mount'");
    w.refuses(&["tank/nothing", &a], 1, "tank/nothing");
    w.refuses(&["tank/x@s", &a], 1, "does not exist");
    w.refuses(&["tank/x", &a, "-o", "nonsense"], 1, "'nonsense'");
    w.refuses(&["tank/x", &w.path("nowhere")], 2, "nowhere");
    w.refuses(&["tank/x", &w.path("a.img")], 2, "is not a folder");
    w.refuses(&["tank/x"], 1, "missing mountpoint argument");
    w.refuses(&["tank/x", &a, &a], 1, "too many arguments");
    w.refuses(&["-?"], 1, "invalid option");
    w.refuses(&["-N", "/proc/1/ns/mnt", "tank/x", &a], 32, "namespace");
    assert!(w.place("tank/x").is_none() && w.place("tank/own").is_none());
    // A trial; a sloppy one; and a file system that knows its place, all the same.
    assert_eq!(w.helper(&["-f", "tank/x", &a]).code, 0);
    assert_eq!(w.place("tank/x"), None);
    assert_eq!(w.helper(&["-s", "-n", "tank/x", &a, "-o", "nonsense"]).code, 0);
    assert_eq!(w.place("tank/x"), Some(a));
    assert_eq!(w.helper(&["tank/own", &w.path("b"), "-o", "zfsutil"]).code, 0);
    assert_eq!(w.place("tank/own"), Some(w.path("b")));
    // A device stands for its pool.
    w.ok("zfs unmount -a");
    let (device, m) = (w.path("a.img"), w.path("m"));
    assert_eq!(w.helper(&["-o", "zfsutil", &device, &m]).code, 0);
    assert_eq!(w.place("tank"), Some(m.clone()));
    w.refuses(&["-o", "zfsutil", &w.path("key"), &m], 1, "does not exist");
    w.ok("zpool destroy tank");
}

#[test]
fn a_snapshot_is_mounted_where_it_is_told() {
    let Some(w) = world("mount-snapshot") else { return };
    let (a, m) = (w.path("a"), w.path("m"));
    fs::write(format!("{m}/own/f"), "then").unwrap();
    w.ok("zfs snapshot tank/own@s");
    fs::write(format!("{m}/own/f"), "now").unwrap();
    let o = w.helper(&["tank/own@s", &a, "-o", "rw"]);
    assert_eq!((o.code, o.err.as_str()), (0, ""));
    assert_eq!(fs::read_to_string(format!("{a}/f")).unwrap(), "then");
    assert!(fs::write(format!("{a}/f"), "x").is_err() && !fs::exists(format!("{a}/.zfs")).unwrap());
    assert_eq!((w.place("tank/own@s"), mounts_at(&a)), (None, 1));
    w.refuses(&["tank/own@s", &a, "-o", "remount,rw"], 32, "a snapshot is read-only");
    assert_eq!(w.helper(&["tank/own@s", &a, "-o", "remount,ro"]).code, 0);
    w.refuses(&["tank/own@none", &a], 1, "does not exist");
    // It is in use, whatever it is called.
    w.fails("zfs destroy tank/own@s", &["busy"]);
    w.ok("zfs rename tank/own@s tank/own@t");
    w.ok("zfs rename tank/own tank/new");
    w.refuses(&["tank/new@t", &a], 32, "already mounted");
    w.ok("zfs unmount -a");
    assert_eq!(mounts_at(&a), 1);
    run("umount", &[&a]);
    w.ok("zfs destroy tank/new@t");
    // An export ends it.
    w.ok("zfs snapshot tank/new@u");
    assert_eq!(w.helper(&["tank/new@u", &a]).code, 0);
    w.ok("zpool export tank");
    assert_eq!(mounts_at(&a), 0);
}

/// mount(8) itself, in a namespace where this program is `/sbin/mount.zfs`.
#[test]
fn mount_finds_the_helper_for_its_arguments_and_for_fstab() {
    let Some(w) = world("mount-t-zfs") else { return };
    if !fs::exists("/sbin/mount.zfs").unwrap() || Command::new("unshare").arg("--version").output().is_err() {
        eprintln!("NOT RUN: mount -t zfs: there is no /sbin/mount.zfs to cover, or no unshare");
        return;
    }
    let a = w.path("a");
    let inside = |script: &str| {
        let mut c = w.command("unshare");
        c.args(["-m", "--propagation", "slave", "sh", "-c"]);
        c.arg(format!("mount --bind {WEIR} /sbin/mount.zfs && {script}"));
        outcome_of(c.output().unwrap())
    };
    let o = inside(&format!("mount -t zfs -o ro tank/x {a}"));
    assert_eq!((o.code, o.err.as_str()), (0, ""));
    assert_eq!(w.place("tank/x"), Some(a.clone()));
    assert!(fs::write(format!("{a}/f"), "").is_err(), "it can be written");
    run("umount", &[&a]);
    fs::write(w.path("fstab"), format!("tank/x {a} zfs defaults,nofail,x-systemd.requires=weir.service 0 0\n"))
        .unwrap();
    let fstab = w.path("fstab");
    // The second time there is nothing to do.
    for _ in 0..2 {
        let o = inside(&format!("mount -T {fstab} -a"));
        assert_eq!((o.code, o.err.as_str()), (0, ""));
        assert_eq!(mounts_at(&a), 1);
    }
    fs::write(format!("{a}/f"), "1").unwrap();
    let o = inside(&format!("mount -T {fstab} -t zfs -o remount,ro tank/x {a}"));
    assert_eq!((o.code, o.err.as_str()), (0, ""));
    assert!(fs::write(format!("{a}/f"), "2").is_err(), "it can be written");
    let o = inside(&format!("mount -t zfs tank/own {}", w.path("b")));
    assert!(o.code == 1 && o.err.contains("cannot be mounted using 'mount'"), "{} {}", o.code, o.err);
    run("umount", &[&a]);
    w.ok("zpool destroy tank");
}
