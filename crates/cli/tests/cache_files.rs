//! Cache files: `cachefile=FILE`, `zpool import -c FILE`; OpenZFS's zdb reads them.
#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use std::process::Command;
use std::time::{Duration, Instant};

use common::world::World;

/// The pools that zdb finds in a cache file, with the paths of their devices; none if it is not
/// there.
fn zdb(file: &str) -> Option<Vec<String>> {
    let out = Command::new("zdb").args(["-U", file, "-C"]).output().ok()?;
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    assert!(out.status.success(), "{text}{}", String::from_utf8_lossy(&out.stderr));
    let is_name = |l: &&str| l.starts_with("    name: ") || l.trim_start().starts_with("path: ");
    Some(text.lines().filter(is_name).map(|l| l.trim().to_string()).collect())
}

#[test]
fn pools_are_in_the_file_that_they_name() {
    let w = World::without_mounts("cache-file");
    for name in ["a", "b", "c"] {
        host::create_sparse(w.dir.join(name), 80 << 20).unwrap();
    }
    let at = |name: &str| w.path(name);
    let (one, two) = (at("one.cache"), at("two.cache"));
    let exists = |file: &str| std::path::Path::new(file).exists();
    for (value, what) in [("x", "an absolute path"), ("/", "not a valid file"), ("/no/x", "not a valid directory")] {
        w.fails(&format!("zpool create -m none -o ashift=9 -o cachefile={value} tank a"), &[what]);
    }
    w.ok(&format!("zpool create -m none -o ashift=9 -o cachefile={one} tank a"));
    w.ok(&format!("zpool create -m none -o ashift=9 -o cachefile={one} pond b"));
    assert_eq!(w.ok("zpool get -H -o value,source cachefile tank"), format!("{one}\tlocal\n"));
    let names = |name: &str, disks: &[&str]| {
        let mut all = vec![format!("name: '{name}'")];
        all.extend(disks.iter().map(|d| format!("path: '{}'", at(d))));
        all
    };
    let both = [names("tank", &["a"]), names("pond", &["b"])].concat();
    match zdb(&one) {
        Some(found) => assert_eq!(found, both),
        None => eprintln!("NOT JUDGED: zdb is not there"),
    }
    // What changes the devices changes the file.
    w.ok("zpool attach -w tank a c");
    if let Some(found) = zdb(&one) {
        assert!(found.contains(&format!("path: '{}'", at("c"))), "{found:?}");
    }
    // As does what else the configuration has.
    for (prop, value) in [("comment", "a comment"), ("compatibility", "legacy")] {
        let set = w.command(common::WEIR).args(["zpool", "set", &format!("{prop}={value}"), "tank"]).status();
        assert!(set.unwrap().success());
        if let Ok(out) = Command::new("zdb").args(["-U", &one, "-C"]).output() {
            let text = String::from_utf8_lossy(&out.stdout);
            assert!(text.contains(&format!("{prop}: '{value}'")), "{text}");
        }
    }
    w.ok("zpool set compatibility=off tank");
    w.ok(&format!("zpool set cachefile={two} tank"));
    if let Some(found) = zdb(&two) {
        assert_eq!(found, names("tank", &["a", "c"]));
        assert_eq!(zdb(&one).unwrap(), names("pond", &["b"]));
    }
    std::fs::copy(&two, at("kept")).unwrap();
    w.ok("zpool export pond");
    assert!(!exists(&one), "the last pool is gone from it");
    w.ok("zpool set cachefile=none tank");
    assert!(!exists(&two));
    w.ok("zpool export tank");

    // Of the pools in the folder only that of the file, under another path than it has.
    std::fs::rename(at("a"), at("moved")).unwrap();
    let kept = at("kept");
    let found = w.ok(&format!("zpool import -c {kept}"));
    assert!(found.contains("pool: tank") && !found.contains("pond"), "{found}");
    w.fails(&format!("zpool import -c {kept} pond"), &["no such pool available"]);
    w.fails(&format!("zpool import -c {} tank", at("b")), &["no cache file"]);
    w.fails(&format!("zpool import -c {} tank", at("gone")), &["cannot open"]);
    assert_eq!(w.say(&format!("zpool import -c {kept} -d . tank")).code, 2);
    w.ok(&format!("zpool import -c {kept} -o cachefile={one} tank"));
    // -F leaves it there.
    w.ok("zpool export -F tank");
    w.ok(&format!("zpool import -c {one} -o cachefile={one} tank"));
    assert!(w.ok("zpool status tank").contains(&at("moved")));
    if let Some(found) = zdb(&one) {
        assert_eq!(found, names("tank", &["moved", "c"]));
    }
    w.ok("zpool destroy tank");
    assert!(!exists(&one));
}

/// With `weir daemon start --cachefile` pools are in it that say nothing, as in OpenZFS.
#[test]
fn a_file_is_kept_for_all_pools() {
    let w = World::without_mounts("cache-kept");
    for name in ["a", "b"] {
        host::create_sparse(w.dir.join(name), 80 << 20).unwrap();
    }
    let kept = w.path("kept.cache");
    w.fails("daemon start --cachefile kept.cache", &["must be an absolute path"]);
    w.ok(&format!("daemon start --cachefile {kept}"));
    let names = || {
        let listed = std::fs::read(&kept).unwrap_or_default();
        ["tank", "pond"].map(|name| listed.windows(4).any(|w| w == name.as_bytes()))
    };
    w.ok("zpool create -m none -o ashift=9 -o cachefile=none tank a");
    w.ok("zpool create -m none -o ashift=9 pond b");
    assert_eq!(names(), [false, true]);
    // The property is not kept on disk.
    w.ok("zpool export tank");
    w.ok("zpool import -d . tank");
    assert_eq!(names(), [true, true]);
    assert_eq!(w.ok("zpool get -H -o value,source cachefile tank"), "-\tdefault\n");
    w.ok("zpool export tank");
    w.ok(&format!("zpool import -d . -R {} tank", w.path("r")));
    assert_eq!(names(), [false, true]);
    // The end of the daemon does not take them out: it imports them again.
    w.ok("daemon stop");
    assert_eq!(names(), [false, true]);
    w.ok(&format!("daemon start --cachefile {kept}"));
    assert_eq!(names(), [false, true]);
    w.ok("zpool destroy pond");
    assert_eq!(names(), [false, false]);
}

/// A removal ends by itself: the file follows.
#[test]
fn the_end_of_a_removal_is_in_the_file() {
    let w = World::without_mounts("cache-removal");
    for name in ["a", "b"] {
        host::create_sparse(w.dir.join(name), 160 << 20).unwrap();
    }
    let (file, gone) = (w.path("a.cache"), w.path("b"));
    w.ok(&format!("zpool create -m none -o ashift=9 -o cachefile={file} tank a b"));
    let has_it = || std::fs::read(&file).unwrap().windows(gone.len()).any(|w| w == gone.as_bytes());
    assert!(has_it());
    w.ok(&format!("zpool remove -w tank {gone}"));
    let since = Instant::now();
    while has_it() {
        assert!(since.elapsed() < Duration::from_secs(30), "{gone} stays in {file}");
    }
}
