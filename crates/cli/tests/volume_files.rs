//! Volumes as files: their folder, what the files can do, file systems on them, and who is in the
//! way of whom. Needs FUSE; the parts that need more say so.
#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;
use std::process::Command;

use common::loops::Loop;
use common::machine::Machine;
use common::world::{World, mounts_at, run};
use common::{WEIR, can_mount, command_in, outcome_of};

const MIB: u64 = 1 << 20;
/// A user without rights that every Debian has: fusermount3 wants a name.
const PROXY: u32 = 13;
const OTHER: u32 = 65533;

fn tool(name: &str, package: &str) -> bool {
    let there = ["/usr/bin", "/usr/sbin", "/sbin"].iter().any(|d| Path::new(d).join(name).exists());
    if !there {
        eprintln!("NOT RUN: {name} is not installed ({package})");
    }
    there
}

fn names(dir: &str) -> Vec<String> {
    let mut all: Vec<String> =
        fs::read_dir(dir).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    all.sort();
    all
}

fn open(path: &str) -> File {
    OpenOptions::new().read(true).write(true).open(path).unwrap()
}

#[test]
fn the_folder_shows_what_is_to_be_shown() {
    let Some(w) = World::new("volfiles-folder") else { return };
    let root = w.path("run/zvol/tank");
    w.ok("zpool create -O mountpoint=none --size 512M tank a.img");
    w.ok("zfs create -p tank/empty/deep");
    assert_eq!(mounts_at(&root), 0, "a pool without volumes has no folder");
    w.ok("zfs create -p -V 16M tank/a/b/vol");
    w.ok("zfs create -s -V 1G tank/big");
    assert_eq!((mounts_at(&root), names(&root)), (1, vec!["a".to_string(), "big".into()]));
    assert_eq!(names(&format!("{root}/a/b")), ["vol"]);
    assert!(w.ok("daemon status").contains(&format!("mount: volumes of tank at {root}\n")));
    let of = |path: &str| fs::metadata(format!("{root}/{path}")).unwrap();
    let vol = of("a/b/vol");
    assert!(vol.is_file() && vol.len() == 16 * MIB && vol.mode() & 0o777 == 0o600, "{vol:?}");
    assert!(of("a").is_dir() && of("big").len() == 1 << 30);
    // Size, names and properties are followed.
    w.ok("zfs set volsize=32M tank/a/b/vol");
    assert_eq!(of("a/b/vol").len(), 32 * MIB);
    w.ok("zfs rename tank/a/b/vol tank/other");
    assert_eq!(names(&root), ["big", "other"]);
    w.ok("zfs snapshot tank/other@s");
    assert!(fs::metadata(format!("{root}/other@s")).is_err());
    w.ok("zfs set snapdev=visible tank/other");
    assert_eq!(names(&root), ["big", "other", "other@s"]);
    assert_eq!(of("other@s").mode() & 0o777, 0o400);
    w.ok("zfs set volmode=none tank/big");
    assert_eq!(names(&root), ["other", "other@s"]);
    w.ok("zfs set readonly=on tank/other");
    let e = OpenOptions::new().write(true).open(format!("{root}/other")).unwrap_err();
    assert!([Some(30), Some(13)].contains(&e.raw_os_error()), "{e}");
    w.ok("zfs destroy -r tank/other");
    assert!(names(&root).is_empty());
    w.ok("zpool export tank");
    assert!(mounts_at(&root) == 0 && !Path::new(&root).exists());
    w.ok("zpool import -N -d . tank");
    assert_eq!(mounts_at(&root), 0, "nothing is to be shown");
    w.ok("zfs inherit volmode tank/big");
    assert_eq!(names(&root), ["big"]);
    // Also the first volume of a pool if it is received.
    w.ok("zpool create -O mountpoint=none --size 128M lake b.img");
    w.ok("zfs snapshot tank/big@s");
    let both = format!("{WEIR} zfs send tank/big@s | {WEIR} zfs receive -d lake");
    let s = outcome_of(command_in(w.dir.path(), "sh").args(["-c", &both]).output().unwrap());
    assert_eq!((s.code, s.err.as_str()), (0, ""));
    assert_eq!(names(&w.path("run/zvol/lake")), ["big"]);
}

#[test]
fn a_file_is_like_a_disk() {
    let Some(w) = World::new("volfiles-disk") else { return };
    w.ok("zpool create -O mountpoint=none -O compression=off --size 512M tank a.img");
    w.ok("zfs create -V 16M tank/vol");
    let path = w.path("run/zvol/tank/vol");
    let file = open(&path);
    let data: Vec<u8> = (0..3 * MIB).map(|n| ((n * 7) >> 9) as u8 | 1).collect();
    file.write_all_at(&data, 12_345).unwrap();
    let mut back = vec![0; data.len()];
    file.read_exact_at(&mut back, 12_345).unwrap();
    assert!(back == data);
    // The end stays where it is.
    assert_eq!(file.write_at(&[1; 100], 16 * MIB - 10).unwrap(), 10);
    assert_eq!(file.write_at(&[1; 100], 16 * MIB).unwrap_err().raw_os_error(), Some(28));
    assert_eq!(file.read_at(&mut back, 16 * MIB).unwrap(), 0);
    assert!(file.set_len(8 * MIB).is_err() && file.set_len(32 * MIB).is_err());
    file.set_len(16 * MIB).unwrap();
    drop(OpenOptions::new().write(true).truncate(true).open(&path).unwrap());
    assert_eq!(fs::metadata(&path).unwrap().len(), 16 * MIB);
    file.read_exact_at(&mut back, 12_345).unwrap();
    assert!(back == data, "truncation changes nothing");
    assert!(fs::set_permissions(&path, fs::Permissions::from_mode(0o666)).is_err());
    assert!(fs::remove_file(&path).is_err() && File::create(format!("{path}2")).is_err());
    // Holes and zeros.
    if tool("fallocate", "util-linux") {
        run("fallocate", &["-p", "-o", "1048576", "-l", "1048576", &path]);
        run("fallocate", &["-z", "-o", "100", "-l", "20000", &path]);
        run("fallocate", &["-l", "16777216", &path]);
        let mut want = vec![0; 16 << 20];
        want[12_345..12_345 + data.len()].copy_from_slice(&data);
        want[(16 << 20) - 10..].fill(1);
        want[1 << 20..2 << 20].fill(0);
        want[100..20_100].fill(0);
        assert!(fs::read(&path).unwrap() == want);
    }
    // Past the kernel's cache.
    let direct = OpenOptions::new().read(true).custom_flags(0o40000).open(&path).unwrap();
    let mut page = vec![0; 8192];
    let off = page.as_ptr().align_offset(4096);
    assert_eq!(direct.read_at(&mut page[off..off + 4096], 4 * MIB).unwrap(), 4096);
    // What was synced survives the daemon; a new one shows the folder at the same place.
    file.write_all_at(&[0x5a; 65_536], 5 * MIB).unwrap();
    file.sync_data().unwrap();
    w.kill_daemon();
    drop((file, direct));
    w.ok("zfs list");
    let file = open(&path);
    let mut back = vec![0; 65_536];
    file.read_exact_at(&mut back, 5 * MIB).unwrap();
    assert!(back.iter().all(|b| *b == 0x5a));
    // Through NBD the same bytes.
    w.ok("nbd start -r tank/vol");
    w.ok("nbd stop");
}

#[test]
fn open_files_make_a_pool_busy() {
    let Some(w) = World::new("volfiles-busy") else { return };
    w.ok("zpool create -O mountpoint=none --size 256M tank a.img");
    w.ok("zfs create -V 16M tank/vol");
    let path = w.path("run/zvol/tank/vol");
    let file = open(&path);
    file.write_all_at(b"kept", 0).unwrap();
    w.fails("zpool export tank", &["busy", "tank/vol", "zpool export -f"]);
    w.fails("zfs destroy tank/vol", &["busy", "tank/vol"]);
    let mut back = [0; 4];
    file.read_exact_at(&mut back, 0).unwrap();
    assert_eq!(&back, b"kept");
    w.ok("zpool export -f tank");
    assert!(file.read_at(&mut back, 0).is_err());
    drop(file);
    w.ok("zpool import -d . tank");
    let file = open(&path);
    file.read_exact_at(&mut back, 0).unwrap();
    assert_eq!(&back, b"kept");
    // A file that is closed is in nobody's way.
    drop(file);
    w.ok("zfs destroy tank/vol");
    w.ok("zpool export tank");
}

#[test]
fn file_systems_live_on_volumes() {
    if !tool("mkfs.ext4", "e2fsprogs") || !tool("e2fsck", "e2fsprogs") {
        return;
    }
    let Some(w) = World::of_root("volfiles-ext4") else { return };
    w.ok("zpool create -O mountpoint=none --size 512M tank a.img");
    w.ok("zfs create -V 128M tank/vol");
    let path = w.path("run/zvol/tank/vol");
    fs::create_dir(w.path("tree")).unwrap();
    for n in 0..50u8 {
        fs::write(w.path(&format!("tree/{n}")), vec![n; 20_000]).unwrap();
    }
    run("mkfs.ext4", &["-q", "-F", "-d", &w.path("tree"), &path]);
    run("e2fsck", &["-f", "-n", &path]);
    w.ok("zfs snapshot tank/vol@made");
    let Some(device) = Loop::new(Path::new(&path), &[]) else { return };
    let at = w.path("m");
    fs::create_dir(&at).unwrap();
    let mounted = Command::new("mount").args(["-t", "ext4", &device.at, &at]).output().unwrap();
    if !mounted.status.success() {
        return eprintln!("NOT RUN: ext4 cannot be mounted: {}", outcome_of(mounted).err);
    }
    for n in 0..50u8 {
        assert!(fs::read(format!("{at}/{n}")).unwrap() == vec![n; 20_000]);
        fs::write(format!("{at}/new{n}"), vec![n ^ 0x55; 300_000]).unwrap();
    }
    fs::remove_file(format!("{at}/0")).unwrap();
    File::open(&at).unwrap().sync_all().unwrap();
    w.fails("zpool export tank", &["busy"]);
    run("fstrim", &[&at]);
    run("umount", &[&at]);
    drop(device);
    run("e2fsck", &["-f", "-n", &path]);
    w.ok("zpool export tank");
    w.ok("zpool import -d . tank");
    run("e2fsck", &["-f", "-n", &path]);
    // The snapshot is as it was, in a clone that can be written.
    w.ok("zfs clone tank/vol@made tank/clone");
    let clone = w.path("run/zvol/tank/clone");
    run("e2fsck", &["-f", "-y", &clone]);
    assert!(fs::read(&clone).unwrap() != fs::read(&path).unwrap());
    w.ok("zpool scrub -w tank");
    assert!(w.ok("zpool status tank").contains("No known data errors"));
}

#[test]
fn a_plain_user_has_volumes() {
    if !can_mount("volfiles-user") || !tool("mkfs.ext4", "e2fsprogs") || !tool("fusermount3", "fuse3") {
        return;
    }
    let Some(m) = Machine::new("volfiles-user", PROXY, OTHER) else { return };
    let ok = |line: &str| m.ok(PROXY, PROXY, line);
    ok("zpool create -O mountpoint=none --size 256M tank a.img");
    ok("zfs create -V 64M tank/vol");
    let path = m.run_dir(PROXY).join("zvol/tank/vol");
    let mut script = m.command(PROXY, PROXY, Path::new("sh"));
    script.args([
        "-ec",
        "/usr/sbin/mkfs.ext4 -q -F \"$1\"; /usr/sbin/e2fsck -f -n \"$1\"; dd if=\"$1\" of=copy bs=1M status=none; \
         cmp copy \"$1\"; dd if=/dev/urandom of=noise bs=1M count=8 status=none; \
         dd if=noise of=\"$1\" bs=64k conv=fsync status=none; cmp -n 8388608 noise \"$1\"",
        "sh",
    ]);
    let done = outcome_of(script.arg(&path).output().unwrap());
    assert_eq!(done.code, 0, "{}{}", done.out, done.err);
    let meta = m.command(OTHER, PROXY, Path::new("cat")).arg(&path).output().unwrap();
    assert!(!meta.status.success(), "other users have nothing there");
    ok("zpool export tank");
    ok("zpool import -d . tank");
    ok("zpool destroy -f tank");
}
