//! Encrypted pools of older releases (OpenZFS's errata 3 and 4), images of OpenZFS's test suite.
#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use std::fs;
use std::path::Path;
use std::process::Command;

use common::world::World;

/// A pool of the suite's folder `zpool_import/blockfiles`, in a world of its own.
fn world_with(image: &str) -> Option<World> {
    let suite = Path::new("/usr/share/zfs/zfs-tests/tests/functional/cli_root/zpool_import/blockfiles");
    if !suite.exists() {
        eprintln!("NOT RUN: zfs-test is not installed");
        return None;
    }
    let w = World::of_root(&format!("errata-{image}"))?;
    let to = fs::File::create(w.path("pool.img")).unwrap();
    let from = suite.join(format!("{image}.dat.bz2"));
    assert!(Command::new("bzcat").arg(from).stdout(to).status().unwrap().success());
    fs::write(w.path("key"), "password\n").unwrap();
    Some(w)
}

fn sh(w: &World, script: &str) -> bool {
    let script = script.replace("weir", common::WEIR);
    w.command("sh").args(["-c", &script]).status().unwrap().success()
}

#[test]
fn keys_of_the_first_format_are_only_read() {
    let Some(w) = world_with("cryptv0") else { return };
    w.ok("zpool import -d . cryptv0");
    let status = w.ok("zpool status cryptv0");
    assert!(status.contains("status: Errata #3 detected."), "{status}");
    assert!(status.contains("   see: https://openzfs.github.io/openzfs-docs/msg/ZFS-8000-ER\n"), "{status}");
    assert!(w.ok("zpool status -j cryptv0").contains("\"msgid\":\"ZFS-8000-ER\""));
    let key = w.path("key");
    for fs in ["testfs", "testvol"] {
        w.ok(&format!("zfs load-key -L file://{key} cryptv0/{fs}"));
    }
    let at = w.path("m");
    w.ok(&format!("zfs set mountpoint={at} cryptv0/testfs"));
    w.fails("zfs mount cryptv0/testfs", &["only read (errata 3)", "'zfs mount -o ro'"]);
    w.ok("zfs mount -o ro cryptv0/testfs");
    assert!(fs::read_dir(&at).unwrap().count() > 0);
    assert!(fs::write(format!("{at}/new"), "x").is_err());
    // Copies are made by sending what is decrypted, not raw.
    w.ok("zpool set feature@bookmark_v2=enabled cryptv0");
    w.ok(&format!("zfs create -o encryption=on -o keyformat=passphrase -o keylocation=file://{key} cryptv0/new"));
    assert!(!sh(&w, "weir zfs send -w cryptv0/testfs@snap1 | weir zfs receive cryptv0/new/raw"));
    assert!(sh(&w, "weir zfs send cryptv0/testfs@snap1 | weir zfs receive cryptv0/new/copy"));
    w.ok("zfs destroy -r cryptv0/testfs");
    w.ok("zfs destroy -r cryptv0/testvol");
    assert!(!w.ok("zpool status cryptv0").contains("Errata"));
    w.ok("zpool destroy cryptv0");
}

#[test]
fn snapshots_without_a_set_of_ivs_are_told_of() {
    let Some(w) = world_with("missing_ivset") else { return };
    w.ok("zpool import -N -d . missing_ivset");
    let status = w.ok("zpool status missing_ivset");
    assert!(status.contains("status: Errata #4 detected.") && status.contains("ZFS-8000-ER"), "{status}");
    let of = |name: &str| w.ok(&format!("zfs get -H -o value ivsetguid missing_ivset/{name}"));
    assert_eq!(of("testfs@snap1"), "-\n");
    assert!(!w.ok("zfs get -H -o property all missing_ivset/testfs@snap1").contains("ivset"));
    w.ok("zpool set feature@bookmark_v2=enabled missing_ivset");
    w.ok("zfs create missing_ivset/new");
    // A whole stream gets a new one, an increment is for those who say so.
    assert!(sh(&w, "weir zfs send -w missing_ivset/testfs@snap1 | weir zfs receive missing_ivset/new/fs"));
    assert_ne!(of("new/fs@snap1"), "-\n");
    let more = "weir zfs send -w -i @snap1 missing_ivset/testfs@snap2 | weir zfs receive -u missing_ivset/new/fs";
    assert!(!sh(&w, more));
    w.ok("tune set zfs_disable_ivset_guid_check=1");
    assert!(sh(&w, more));
    assert_ne!(of("new/fs@snap2"), "-\n");
    let key = w.path("key");
    for fs in ["testfs", "testvol"] {
        w.ok(&format!("zfs load-key -L file://{key} missing_ivset/{fs}"));
    }
    w.ok("zfs destroy -r missing_ivset/testfs");
    w.ok("zfs destroy -r missing_ivset/testvol");
    assert!(!w.ok("zpool status missing_ivset").contains("Errata"));
    w.ok("zpool destroy missing_ivset");
}
