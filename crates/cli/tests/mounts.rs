//! Unusual ends of mounts, refused mount points, imports with obstacles: the program from outside.
#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};

use common::world::{World, mounts_at, run};
use common::{WEIR, outcome_of};

/// A process in a mount namespace of its own, with copies of all mounts, that has run `first`
/// there.
struct Elsewhere(Child);

impl Elsewhere {
    fn new(first: &str) -> Elsewhere {
        let mut c = Command::new("unshare");
        c.args(["-m", "--propagation", "private", "sh", "-c", &format!("{first}; echo there; exec sleep 600")]);
        let mut child = c.stdout(Stdio::piped()).spawn().unwrap();
        std::io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut [0; 6]).unwrap();
        Elsewhere(child)
    }
}

impl Drop for Elsewhere {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The everyday way back to an older file.
#[test]
fn a_file_is_copied_out_of_a_snapshot() {
    let Some(w) = World::new("snapshot-copy") else { return };
    let at = w.path("mnt");
    w.ok(&format!("zpool create --size 256M -m {at} tank a.img"));
    let text = "what it was\n".repeat(60_000);
    fs::write(format!("{at}/small"), "small").unwrap();
    fs::write(format!("{at}/large"), &text).unwrap();
    w.ok("zfs snapshot tank@s");
    for name in ["small", "large"] {
        fs::write(format!("{at}/{name}"), "spoilt").unwrap();
        let copy = format!("timeout 60 cp {at}/.zfs/snapshot/s/{name} {at}/{name}.old");
        assert!(Command::new("sh").args(["-c", &copy]).status().unwrap().success(), "{copy}");
    }
    assert_eq!(fs::read_to_string(format!("{at}/small.old")).unwrap(), "small");
    assert_eq!(fs::read_to_string(format!("{at}/large.old")).unwrap(), text);
    w.ok("zfs destroy tank@s");
    assert_eq!(fs::read_to_string(format!("{at}/large.old")).unwrap(), text);
    w.ok("zpool scrub -w tank");
    assert!(w.ok("zpool status tank").contains("errors: No known data errors"));
    w.ok("zpool export tank");
    w.ok("zdb --check -p . tank");
}

/// What a program asks before a sync is not answered from the kernel's cache after it.
#[test]
fn the_space_of_a_file_is_right_after_a_sync() {
    let Some(w) = World::new("mounts-space") else { return };
    let at = w.path("m");
    // The pool syncs by itself in a minute at the earliest.
    w.ok(&format!("zpool create --size 256M -m {at} -O compression=off tank a.img"));
    w.ok("tune set zfs_txg_timeout=60");
    w.ok("zpool sync");
    let file = format!("{at}/f");
    fs::write(&file, vec![0; 20 << 20]).unwrap();
    let before = fs::metadata(&file).unwrap().blocks();
    assert!(before < 20 << 11, "{before} blocks are on disk before the sync");
    w.ok("zpool sync");
    let after = fs::metadata(&file).unwrap().blocks();
    assert!((20 << 11..21 << 11).contains(&after), "{before} blocks, {after} after the sync");
}

#[test]
fn the_mount_of_a_killed_daemon_is_taken_away() {
    for sync_devices in ["0", "1"] {
        let Some(mut w) = World::new("mounts-dead") else { return };
        w.sync_devices = sync_devices;
        killed_and_taken_away(&w);
    }
}

fn killed_and_taken_away(w: &World) {
    let at = w.path("m");
    w.ok(&format!("zpool create --size 128M -m {at} tank a.img"));
    w.ok("zfs create tank/a");
    fs::write(format!("{at}/a/kept"), b"kept").unwrap();
    w.ok("zpool sync");
    // Something holds it, and the kernel remembers what its root looks like.
    let held = File::open(&at).unwrap();
    fs::metadata(&at).unwrap();
    w.kill_daemon();
    fs::metadata(&at).unwrap();
    assert_eq!(w.ok("zpool list -H -o name"), "tank\n");
    assert_eq!((mounts_at(&at), mounts_at(&format!("{at}/a"))), (1, 1));
    assert_eq!(fs::read(format!("{at}/a/kept")).unwrap(), b"kept");
    // The end by a signal, with the folder in use.
    let held_too = File::open(&at).unwrap();
    w.ok("daemon stop -f");
    assert_eq!(mounts_at(&at), 0);
    w.ok("zpool list");
    assert_eq!(mounts_at(&at), 1);
    w.ok("zpool destroy tank");
    assert!(!Path::new(&at).exists() || fs::read_dir(&at).unwrap().next().is_none());
    assert_eq!(mounts_at(&at), 0);
    drop((held, held_too));
}

#[test]
fn copies_of_a_mount_keep_nothing_that_is_idle() {
    let Some(w) = World::of_root("mounts-copies") else { return };
    let at = w.path("m");
    w.ok(&format!("zpool create --size 128M -m {at} tank a.img"));
    fs::write(format!("{at}/f"), b"data").unwrap();
    {
        let _idle = Elsewhere::new("true");
        w.ok("zpool export tank");
    }
    w.ok("zpool import -d . tank");
    {
        let _uses = Elsewhere::new(&format!("exec 3<{at}/f"));
        for command in ["zpool export tank", "zfs unmount tank", "daemon stop"] {
            w.fails(command, &["pool or dataset is busy", "copy of the mount"]);
            assert_eq!(fs::read(format!("{at}/f")).unwrap(), b"data", "after {command}");
        }
        run("umount", &["-l", &at]);
        w.ok("zpool export -f tank");
        assert_eq!(mounts_at(&at), 0);
    }
    w.ok("zpool import -d . tank");
    let _uses = Elsewhere::new(&format!("exec 3<{at}/f"));
    run("umount", &["-l", &at]);
    w.ok("zpool destroy -f tank");
}

/// As with OpenZFS on Linux, `-f` does not end the use of what is mounted: `umount -l` takes it out
/// of the tree of mounts, and then it does.
#[test]
fn force_leaves_what_is_in_use() {
    let Some(w) = World::of_root("mounts-force") else { return };
    let at = w.path("m");
    w.ok(&format!("zpool create --size 128M -m {at} tank a.img"));
    w.ok("zfs create -p tank/a/b");
    let inner = format!("{at}/a/b");
    fs::write(format!("{inner}/f"), b"data").unwrap();
    let file = File::open(format!("{inner}/f")).unwrap();
    let lines = [
        "zfs unmount -f tank/a/b",
        "zfs unmount -f tank/a",
        "zfs unmount -f -a",
        "zfs destroy -r -f tank/a",
        "zfs rename -f tank/a tank/c",
        "zpool export -f tank",
        "zpool destroy -f tank",
    ];
    for line in lines {
        w.fails(line, &["pool or dataset is busy", &format!("'umount -l {inner}'")]);
        assert!(["tank", "tank/a", "tank/a/b"].iter().all(|fs| w.is_mounted(fs)), "{line}");
        assert_eq!(fs::read(format!("{inner}/f")).unwrap(), b"data", "{line}");
    }
    run("umount", &["-l", &inner]);
    w.fails("zfs unmount tank/a/b", &["not currently mounted"]);
    assert_eq!(std::io::read_to_string(&file).unwrap(), "data");
    w.ok("zfs unmount -f tank/a/b");
    assert!(file.metadata().is_err());
    w.ok("zfs mount tank/a/b");
    let file = File::open(format!("{inner}/f")).unwrap();
    run("umount", &["-l", &inner]);
    w.ok("zpool export -f tank");
    assert!(file.metadata().is_err());
    w.ok("zpool import -d . tank");
    w.ok("zpool destroy tank");
}

#[test]
fn what_others_unmount_is_noticed() {
    let Some(w) = World::of_root("mounts-others") else { return };
    let at = w.path("m");
    fs::write(w.path("key"), "a passphrase").unwrap();
    w.ok(&format!("zpool create --size 128M -m {at} tank a.img"));
    let key = w.path("key");
    w.ok(&format!("zfs create -o encryption=on -o keyformat=passphrase -o keylocation=file://{key} tank/e"));
    for _ in 0..10 {
        assert!(w.is_mounted("tank/e"));
        run("umount", &[&format!("{at}/e")]);
        assert!(!w.is_mounted("tank/e"));
        w.fails("zfs unmount tank/e", &["not currently mounted"]);
        w.ok("zfs unload-key tank/e");
        w.ok("zfs load-key tank/e");
        w.ok("zfs mount tank/e");
    }
    // Lazily, while a file is open.
    let file = File::create(format!("{at}/e/f")).unwrap();
    run("umount", &["-l", &format!("{at}/e")]);
    assert!(!w.is_mounted("tank/e"));
    w.fails("zfs mount tank/e", &["files open since"]);
    w.fails("zpool export tank", &["is busy", "use -f"]);
    assert!(w.is_mounted("tank"), "what was unmounted is mounted again");
    drop(file);
    w.ok("zfs mount tank/e");
    // A second place in the same tree of mounts.
    fs::create_dir(w.path("second")).unwrap();
    run("mount", &["--bind", &format!("{at}/e"), &w.path("second")]);
    for force in ["", "-f "] {
        w.fails(&format!("zfs unmount {force}tank/e"), &["is busy", &w.path("second")]);
        assert!(w.is_mounted("tank/e"));
    }
    run("umount", &[&w.path("second")]);
    w.ok("zfs unmount tank/e");
    assert_eq!((mounts_at(&w.path("second")), mounts_at(&format!("{at}/e"))), (0, 0));
    w.ok("zfs mount tank/e");
    // Something else on top of it stays.
    run("mount", &["-t", "tmpfs", "none", &format!("{at}/e")]);
    w.fails("zfs unmount tank/e", &["mounted over"]);
    run("umount", &[&format!("{at}/e")]);
    // So does one of the pool; all of them go from the top.
    let one = w.path("one");
    w.ok(&format!("zfs create -o mountpoint={one} tank/y"));
    w.ok(&format!("zfs create -o canmount=noauto -o mountpoint={one} tank/x"));
    w.ok("zfs mount tank/x");
    w.fails("zfs unmount tank/y", &["mounted over"]);
    w.ok("zfs unmount tank/x");
    assert!(w.is_mounted("tank/y") && !w.is_mounted("tank/x"));
    w.ok("zfs mount tank/x");
    w.ok("zfs set canmount=on tank/x");
    w.ok("zfs unmount -a");
    assert_eq!(mounts_at(&one), 0);
    w.ok("zfs mount tank/e");
    // What is below it goes, too, wherever that is, but for what mount(8) mounts.
    w.ok(&format!("zfs create -o mountpoint={one} tank/e/one"));
    w.ok("zfs create -o mountpoint=legacy tank/e/legacy");
    w.ok("zfs unmount tank/e");
    assert!(!w.is_mounted("tank/e/one") && mounts_at(&one) == 0);
    w.ok("zfs mount tank/e");
    assert!(!w.is_mounted("tank/e/one"));
    w.ok("zfs destroy tank/e/one");
    w.ok("zfs destroy tank/e/legacy");
    // A key that a clone needs stays, and so does the mount.
    w.ok("zfs snapshot tank/e@s");
    w.ok("zfs clone tank/e@s tank/clone");
    w.fails("zfs unmount -u tank/e", &["cannot unmount 'tank/e'", "'tank/clone' is in use"]);
    assert!(w.is_mounted("tank/e"));
    w.ok("zfs destroy tank/clone");
    w.ok("zfs unmount -u tank/e");
    assert_eq!(w.ok("zfs get -H -o value keystatus tank/e"), "unavailable\n");
    w.ok("zpool destroy tank");
}

#[test]
fn a_mount_that_others_look_at_can_be_unmounted() {
    let Some(w) = World::new("mounts-walks") else { return };
    let at = w.path("m");
    w.ok(&format!("zpool create --size 128M -m {at} tank a.img"));
    let over = AtomicBool::new(false);
    std::thread::scope(|s| {
        s.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                let _ = fs::metadata(format!("{at}/nothing"));
            }
        });
        let rounds = (0..60).map(|_| (w.say("zfs unmount tank"), w.say("zfs mount tank")));
        let bad: Vec<String> = rounds.flat_map(|(u, m)| [u, m]).filter(|s| s.code != 0).map(|s| s.err).collect();
        over.store(true, Ordering::Relaxed);
        assert!(bad.is_empty(), "{bad:?}");
    });
    w.ok("zpool destroy tank");
}

#[test]
fn folders_of_the_system_are_no_mount_points() {
    let Some(w) = World::of_root("mounts-system") else { return };
    // In a tree of mounts of its own, for the case that one of these is mounted all the same.
    let started = w.command("unshare").args(["-m", "--propagation", "private", WEIR, "daemon", "start"]).status();
    assert!(started.unwrap().success());
    w.ok("zpool create --size 128M -O mountpoint=none tank a.img");
    w.ok("zfs create tank/x");
    for place in ["/", "/usr", "/usr/", "/etc", "/lib64", "/tmp", "/var"] {
        w.fails(&format!("zfs set mountpoint={place} tank/x"), &["the system itself needs", "-R"]);
        w.fails(&format!("zfs create -o mountpoint={place} tank/y"), &["the system itself needs"]);
    }
    w.fails("zpool create --size 128M -m /usr other b.img", &["the system itself needs"]);
    assert_eq!(w.ok("zfs list -H -o name,mountpoint"), "tank\tnone\ntank/x\tnone\n");
    w.ok(&format!("zfs set mountpoint={} tank/x", w.path("x")));
    w.ok("zpool export tank");
    // Under another root the same values are harmless.
    let root = w.path("root");
    w.ok(&format!("zpool import -d . -R {root} tank"));
    w.ok("zfs set mountpoint=/ tank");
    w.ok("zpool export tank");
    let s = w.say("zpool import -d . tank");
    assert!(s.code == 0 && s.err.contains("cannot mount 'tank': '/' is a folder"), "{}{}", s.code, s.err);
    assert!(s.err.ends_with("Import was successful, but unable to mount some datasets\n"), "{}", s.err);
    assert!(!w.is_mounted("tank") && w.is_mounted("tank/x"));
    w.ok("zpool destroy tank");
}

#[test]
fn an_import_from_a_read_only_disk_says_so() {
    let Some(w) = World::of_root("mounts-readonly") else { return };
    w.ok("zpool create --size 128M -O mountpoint=none tank a.img");
    w.ok("zfs create tank/kept");
    w.ok("zpool export tank");
    let made = Command::new("losetup").args(["-r", "-f", "--show", &w.path("a.img")]).output();
    let Some(made) = made.ok().filter(|o| o.status.success()) else {
        eprintln!("NOT RUN: an import from a read-only disk: no loop device");
        return;
    };
    let disk = outcome_of(made).out.trim().to_string();
    let all = || {
        w.fails(&format!("zpool import -d {disk} tank"), &["is read only", "-o readonly=on"]);
        w.ok(&format!("zpool import -d {disk} -o readonly=on tank"));
        assert_eq!(w.ok("zfs list -H -o name"), "tank\ntank/kept\n");
        assert_eq!(w.ok("zpool get -H -o value readonly tank"), "on\n");
        w.ok("zpool export tank");
    };
    let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(all));
    let _ = w.command(WEIR).args(["daemon", "stop", "-f"]).output();
    run("losetup", &["-d", &disk]);
    result.unwrap();
}

#[test]
fn a_pool_whose_devices_are_gone_is_reported() {
    let Some(w) = World::new("mounts-gone") else { return };
    w.ok("zpool create --size 128M -O mountpoint=none tank a.img");
    w.ok("zpool create --size 128M -O mountpoint=none other b.img");
    w.ok("daemon stop");
    fs::rename(w.path("a.img"), w.path("elsewhere")).unwrap();
    let s = w.say("zpool list -H -o name");
    assert_eq!((s.code, s.out.as_str()), (0, "other\n"));
    assert_eq!(s.err, "cannot import 'tank': its devices are not there\n");
    assert_eq!(w.say("zpool list").err, "", "once");
    w.ok("zpool destroy other");
}

#[test]
fn mounts_are_listed_by_their_type() {
    let Some(w) = World::new("mounts-type") else { return };
    let at = w.path("m");
    w.ok(&format!("zpool create --size 128M -m {at} tank a.img"));
    let list = fs::read_to_string("/proc/self/mounts").unwrap();
    assert!(list.contains(&format!("tank {at} fuse.zfs ")), "{list}");
    let df = outcome_of(Command::new("df").args(["-t", "fuse.zfs", "--output=source,target"]).output().unwrap());
    let line = |l: &str| l.split_whitespace().collect::<Vec<_>>() == ["tank", &at];
    assert!(df.out.lines().any(line), "{}", df.out);
    w.ok("zpool destroy tank");
}

#[test]
fn files_are_cloned_between_mounts() {
    let Some(w) = World::new("mounts-clones") else { return };
    let at = w.path("m");
    w.ok(&format!("zpool create --size 256M -o feature@block_cloning=enabled -O compression=off -m {at} tank a.img"));
    w.ok("zfs create tank/below");
    w.ok(&format!("zpool create --size 64M -m {at}2 dozer b.img"));
    let bytes: Vec<u8> = (0..3_000_000u32).flat_map(|i| i.to_le_bytes()).collect();
    fs::write(format!("{at}/one"), &bytes).unwrap();
    fs::create_dir(format!("{at}/below/dir")).unwrap();
    w.ok("zpool sync");
    let saved = || w.ok("zpool get -Hp -o value bclonesaved tank").trim().parse::<u64>().unwrap();
    assert_eq!(saved(), 0);
    // Twice, into a folder and to a name; a file whose size the kernel has in mind, too.
    w.ok(&format!("cp {at}/one {at}/below/two"));
    w.ok(&format!("cp --reflink always {at}/below/two {at}/one {at}/below/dir"));
    for name in ["below/two", "below/dir/two", "below/dir/one"] {
        assert!(fs::read(format!("{at}/{name}")).unwrap() == bytes, "{name}");
    }
    w.ok("zpool sync");
    assert!(saved() >= 3 * 12_000_000, "{}", saved());
    // A copy of its own after a change.
    fs::write(format!("{at}/below/two"), b"other").unwrap();
    assert!(fs::read(format!("{at}/one")).unwrap() == bytes);
    // What cannot be shared is refused and leaves nothing, or is copied.
    w.fails(&format!("cp {at}/one {at}2/one"), &["cannot clone", "not in the same pool"]);
    assert!(!Path::new(&format!("{at}2/one")).exists());
    w.ok(&format!("cp --reflink auto {at}/one {at}2/one"));
    assert!(fs::read(format!("{at}2/one")).unwrap() == bytes);
    w.fails(&format!("cp {at}/one {}", w.path("out")), &["cannot clone", "not one of weir"]);
    w.fails(&format!("cp {at}/one {at}/below/two"), &["cannot make", "exists"]);
    w.fails(&format!("cp {at}/below {at}/none"), &["no regular file"]);
    // Copies of the same bytes share them when they are told to.
    fs::write(format!("{at}/below/same"), &bytes).unwrap();
    let mut other = bytes.clone();
    other[11_000_000] ^= 1;
    fs::write(format!("{at}/below/other"), &other).unwrap();
    w.ok("zpool sync");
    let before = saved();
    w.ok(&format!("cp --dedupe {at}/one {at}/below/same"));
    w.ok("zpool sync");
    assert!(saved() >= before + 12_000_000, "{} {before}", saved());
    w.fails(&format!("cp --dedupe {at}/one {at}/below/other"), &["cannot let", "they differ"]);
    w.fails(&format!("cp --dedupe {at}/one {at}/below/two"), &["they differ in size"]);
    w.fails(&format!("cp --dedupe {at}/one {at}2/one"), &["not in the same pool"]);
    for (name, want) in [("one", &bytes), ("below/same", &bytes), ("below/other", &other)] {
        assert!(fs::read(format!("{at}/{name}")).unwrap() == *want, "{name}");
    }
    w.ok("zpool destroy tank");
    w.ok("zpool destroy dozer");
}

/// What is in the intent logs of a frozen pool is there after an import, and nothing else.
#[test]
fn a_frozen_pool_keeps_what_is_in_its_logs() {
    let Some(w) = World::new("mounts-freeze") else { return };
    let at = w.path("m");
    w.ok(&format!("zpool create --size 128M -m {at} tank a.img"));
    fs::write(format!("{at}/before"), b"before").unwrap();
    w.fails("zpool freeze nope", &["no such pool"]);
    w.ok("zpool freeze tank");
    fs::write(format!("{at}/after"), vec![7; 300_000]).unwrap();
    fs::rename(format!("{at}/before"), format!("{at}/old")).unwrap();
    w.ok("zfs create tank/lost");
    w.ok("zpool sync -f tank");
    fs::write(format!("{at}/last"), b"last").unwrap();
    w.ok("zpool export tank");
    w.ok("zpool import -f -d . tank");
    assert_eq!(fs::read(format!("{at}/after")).unwrap(), vec![7; 300_000]);
    assert_eq!(fs::read(format!("{at}/old")).unwrap(), b"before");
    assert_eq!(fs::read(format!("{at}/last")).unwrap(), b"last");
    assert!(!Path::new(&format!("{at}/before")).exists() && !w.ok("zfs list -r tank").contains("lost"));
    // It is like any other pool again.
    w.ok("zfs create tank/kept");
    w.ok("zpool export tank");
    w.ok("zpool import -d . tank");
    assert!(w.ok("zfs list -r tank").contains("kept"));
    w.ok("zpool destroy tank");
}

#[test]
fn the_delete_queue_is_waited_for() {
    let Some(w) = World::new("mounts-wait") else { return };
    let at = w.path("m");
    w.ok(&format!("zpool create --size 128M -m {at} tank a.img"));
    fs::write(format!("{at}/file"), b"text").unwrap();
    let open = File::open(format!("{at}/file")).unwrap();
    fs::remove_file(format!("{at}/file")).unwrap();
    let mut waiting = w.command(WEIR).args(["zfs", "wait", "-t", "deleteq", "tank"]).spawn().unwrap();
    for _ in 0..20 {
        w.ok("zfs list tank");
    }
    assert!(waiting.try_wait().unwrap().is_none(), "the file is open");
    drop(open);
    assert!(waiting.wait().unwrap().success());
    w.ok("zfs wait tank");
    w.ok("zfs unmount tank");
    w.ok("zfs wait tank");
    w.ok("zpool destroy tank");
}

#[test]
fn files_are_rewritten_through_their_mounts() {
    let Some(w) = World::new("mounts-rewrite") else { return };
    let at = w.path("m");
    w.ok(&format!("zpool create --size 256M -O compression=off -m {at} tank a.img"));
    w.ok("zfs create tank/below");
    let text = "all work and no play\n".repeat(30_000);
    fs::create_dir(format!("{at}/dir")).unwrap();
    for name in ["one", "dir/two", "below/three"] {
        fs::write(format!("{at}/{name}"), &text).unwrap();
    }
    std::os::unix::fs::symlink("one", format!("{at}/link")).unwrap();
    w.ok("zpool sync");
    let times = |name: &str| {
        let m = fs::metadata(format!("{at}/{name}")).unwrap();
        (m.mtime_nsec(), m.ctime_nsec())
    };
    // The kernel may remember the blocks of a file, so datasets are asked.
    let used = |name: &str| -> u64 {
        w.ok("zpool sync");
        w.ok(&format!("zfs get -Hp -o value usedbydataset {name}")).trim().parse().unwrap()
    };
    let before = ["one", "dir/two"].map(times);
    let (top, below) = (used("tank"), used("tank/below"));
    w.ok("zfs set compression=lz4 tank");
    assert_eq!(w.ok(&format!("zfs rewrite -v -o 100 -l 1 {at}/one {at}/dir {at}/link")), format!("{at}/one\n"));
    let part = used("tank");
    assert!(part < top && part > top * 3 / 4, "one block of ten: {part} {top}");
    let said = w.ok(&format!("zfs rewrite -rvx {at}"));
    let mut lines: Vec<&str> = said.lines().collect();
    lines.sort_unstable();
    assert_eq!(lines, [format!("{at}/dir/two"), format!("{at}/one")]);
    assert!(used("tank") * 3 < top);
    assert_eq!(used("tank/below"), below, "another file system");
    w.ok(&format!("zfs rewrite -r {at}"));
    assert!(used("tank/below") * 3 < below);
    assert_eq!(["one", "dir/two"].map(times), before);
    for name in ["one", "dir/two", "below/three"] {
        assert_eq!(fs::read_to_string(format!("{at}/{name}")).unwrap(), text);
    }
    // What it may not do.
    w.ok("zfs snapshot tank@s");
    w.fails(&format!("zfs rewrite {at}/.zfs/snapshot/s/one"), &["cannot rewrite", "Read-only file system"]);
    w.fails(&format!("zfs rewrite {}", w.path("a.img")), &["it is not on a file system of weir"]);
    w.fails(&format!("zfs rewrite {at}/none"), &["cannot look at", "No such file"]);
    w.fails("zfs rewrite -o 1z x", &["bad offset '1z'"]);
    // Incremental streams have what was rewritten, unless -P was given.
    let sent = |from: &str, to: &str| -> u64 {
        let out = w.command(WEIR).args(["zfs", "send", "-i", from, to]).output().unwrap();
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
        out.stdout.len() as u64
    };
    let feature = |w: &World| w.ok("zpool get -H -o value feature@physical_rewrite tank");
    assert_eq!(feature(&w), "enabled\n");
    w.ok(&format!("zfs rewrite -P {at}/one"));
    w.ok("zfs snapshot tank@p");
    assert_eq!(feature(&w), "active\n");
    w.ok(&format!("zfs rewrite {at}/one"));
    w.ok("zfs snapshot tank@q");
    let (physical, logical) = (sent("@s", "tank@p"), sent("@p", "tank@q"));
    assert!(physical < 20_000 && logical > 600_000, "{physical} {logical}");
    assert_eq!(fs::read_to_string(format!("{at}/one")).unwrap(), text);
    // One sentence for a pool without the feature.
    let old = w.path("old");
    w.ok(&format!("zpool create --size 128M -o compatibility=openzfs-2.1-linux -m {old} old b.img"));
    fs::write(format!("{old}/a"), "a").unwrap();
    fs::write(format!("{old}/b"), "b").unwrap();
    w.fails(&format!("zfs rewrite -P -r {old}"), &["with -P: feature 'physical_rewrite' is not enabled"]);
    w.ok("zpool destroy old");
    w.ok("zpool export tank");
    w.ok("zdb --check -p . tank");
}
