//! `zfs mount -o`: temporary properties, and their end.
#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use std::fs::{self, File, Permissions};
use std::io::ErrorKind;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::process::Command;
use std::time::{Duration, SystemTime};

use common::outcome_of;
use common::world::World;

/// A pool with a mounted file system `tank/x`.
fn world(tag: &str) -> Option<(World, String)> {
    let w = World::of_root(tag)?;
    fs::set_permissions(w.dir.path(), Permissions::from_mode(0o755)).unwrap();
    let at = w.path("m");
    w.ok(&format!("zpool create --size 128M -m {at} tank a.img"));
    w.ok("zfs create tank/x");
    Some((w, format!("{at}/x")))
}

impl World {
    fn get(&self, prop: &str) -> String {
        self.ok(&format!("zfs get -H -o value,source {prop} tank/x")).trim_end().to_string()
    }

    /// Mounts `tank/x` anew with these options, none if empty.
    fn mount_with(&self, options: &str) {
        self.ok("zfs unmount tank/x");
        let o = if options.is_empty() { String::new() } else { format!("-o {options} ") };
        self.ok(&format!("zfs mount {o}tank/x"));
    }
}

/// The options that the list of mounts has for a place.
fn listed(at: &str) -> Vec<String> {
    let list = fs::read_to_string("/proc/self/mounts").unwrap();
    let line = list.lines().find(|l| l.split(' ').nth(1) == Some(at)).unwrap_or_else(|| panic!("{at}: {list}"));
    line.split(' ').nth(3).unwrap().split(',').map(str::to_string).collect()
}

fn has(at: &str, option: &str) -> bool {
    listed(at).iter().any(|o| o == option)
}

/// Sets the access time of a file, reads it, and returns whether the time changed.
fn reading_is_noted(file: &str, accessed: SystemTime) -> bool {
    let times = fs::FileTimes::new().set_accessed(accessed);
    File::options().write(true).open(file).unwrap().set_times(times).unwrap();
    let before = fs::metadata(file).unwrap().atime();
    fs::read(file).unwrap();
    fs::metadata(file).unwrap().atime() != before
}

#[test]
fn each_option_holds_for_its_mount_and_is_called_temporary() {
    let Some((w, at)) = world("mount-o") else { return };
    let file = format!("{at}/f");
    fs::write(&file, "#!/bin/sh\nexit 0\n").unwrap();
    fs::set_permissions(&file, Permissions::from_mode(0o755)).unwrap();
    fs::copy(
        fs::canonicalize(outcome_of(Command::new("which").arg("id").output().unwrap()).out.trim()).unwrap(),
        format!("{at}/id"),
    )
    .unwrap();
    fs::set_permissions(format!("{at}/id"), Permissions::from_mode(0o4755)).unwrap();
    let made = Command::new("mknod").args([&format!("{at}/null"), "c", "1", "3"]).status().unwrap();
    assert!(made.success());
    let writes = || File::create(format!("{at}/new")).map_err(|e| e.kind());
    let runs = || Command::new(&file).status().is_ok_and(|s| s.success());
    let is_root_by_bit = || {
        let mut c = Command::new("setpriv");
        c.args(["--reuid=12345", "--regid=12345", "--clear-groups", &format!("{at}/id"), "-u"]);
        outcome_of(c.output().unwrap()).out == "0\n"
    };
    let opens_device = || File::open(format!("{at}/null")).is_ok();
    let sets_attr = || {
        let set = Command::new("setfattr").args(["-n", "user.a", "-v", "1", &file]).output().expect("setfattr");
        outcome_of(set).code == 0
    };

    // Option, property, its temporary value, and a test of the effect: false with the option, true
    // before and after.
    type Look<'a> = &'a dyn Fn() -> bool;
    let noted = || reading_is_noted(&file, SystemTime::now() - Duration::from_secs(2 * 24 * 3600));
    // Read later than it was changed: relative times are not kept again within a day.
    let rare = || !reading_is_noted(&file, SystemTime::now() + Duration::from_secs(3600));
    let writes_now = || writes().is_ok();
    let table: [(&str, &str, &str, &str, Look<'_>); 7] = [
        ("ro", "readonly", "on", "off", &writes_now),
        ("noexec", "exec", "off", "on", &runs),
        ("nosuid", "setuid", "off", "on", &is_root_by_bit),
        ("nodev", "devices", "off", "on", &opens_device),
        ("noatime", "atime", "off", "on", &noted),
        ("norelatime", "relatime", "off", "on", &rare),
        ("noxattr", "xattr", "off", "sa", &sets_attr),
    ];
    for (option, prop, under, stored, works) in table {
        let plain = w.get(prop);
        assert!(plain.starts_with(&format!("{stored}\t")), "{prop}: {plain}");
        assert!(works(), "{option}: before");
        w.mount_with(option);
        assert_eq!(w.get(prop), format!("{under}\ttemporary"), "{option}");
        assert!(!works(), "{option}: it has no effect");
        // It applies to this mount and this property only.
        for (_, other, ..) in table.iter().filter(|(_, p, ..)| *p != prop) {
            assert!(!w.get(other).ends_with("temporary"), "{option} changes {other}");
        }
        assert!(!w.ok(&format!("zfs get -H -o source {prop} tank")).contains("temporary"));
        assert_eq!(w.ok("zfs get -H -s temporary -o property,value all tank/x"), format!("{prop}\t{under}\n"));
        // A mount that is made anew keeps it.
        w.ok("zfs rename tank/x tank/y");
        assert_eq!(w.ok(&format!("zfs get -H -o source {prop} tank/y")), "temporary\n", "{option}");
        w.ok("zfs rename tank/y tank/x");
        assert!(!works(), "{option}: after a rename");
        w.mount_with("");
        assert_eq!(w.get(prop), plain, "{option}");
        assert!(works(), "{option}: after");
        // The other way round, against the property.
        w.ok(&format!("zfs set {prop}={under} tank/x"));
        assert!(!works(), "{prop}={under}");
        let opposite = match option {
            "ro" => "rw",
            other => other.strip_prefix("no").unwrap(),
        };
        w.mount_with(opposite);
        assert_eq!(w.get(prop), format!("{stored}\ttemporary"), "{opposite}");
        assert!(works(), "{opposite}: it has no effect");
        // A value equal to the property's is not shown as temporary.
        w.mount_with(option);
        assert_eq!(w.get(prop), format!("{under}\tlocal"), "{option}");
        w.ok(&format!("zfs inherit {prop} tank/x"));
        if prop == "relatime" {
            w.ok("zfs set relatime=on tank/x");
        }
        assert!(works(), "{prop} inherited");
    }
    assert_eq!(writes().map(|_| ()), Ok(()));
    w.mount_with("ro,noexec,nosuid,nodev,noatime");
    assert_eq!(writes().err(), Some(ErrorKind::ReadOnlyFilesystem));
    for option in ["ro", "noexec", "nosuid", "nodev", "noatime"] {
        assert!(has(&at, option), "{option}: {:?}", listed(&at));
    }
    w.ok("zpool destroy tank");
}

#[test]
fn a_new_value_of_the_property_ends_it() {
    let Some((w, at)) = world("mount-o-set") else { return };
    let writes = || fs::write(format!("{at}/f"), "x").is_ok();
    w.mount_with("ro,noexec");
    w.ok("zfs set readonly=off tank/x");
    assert_eq!((w.get("readonly").as_str(), writes()), ("off\tlocal", true));
    assert_eq!(w.get("exec"), "off\ttemporary");
    // Also where it is inherited.
    w.ok("zfs set exec=on tank");
    assert_eq!(w.get("exec"), "on\tinherited from tank");
    assert!(!has(&at, "noexec"));
    w.mount_with("ro");
    w.ok("zfs inherit -r readonly tank");
    assert_eq!((w.get("readonly").as_str(), writes()), ("off\tdefault", true));
    w.ok("zpool destroy tank");
}

#[test]
fn mounts_are_changed_where_they_are() {
    let Some((w, at)) = world("mount-o-remount") else { return };
    let writes = || fs::write(format!("{at}/f"), "x").is_ok();
    assert!(writes());
    let reader = File::open(format!("{at}/f")).unwrap();
    w.ok("zfs mount -o remount,ro tank/x");
    assert_eq!((w.get("readonly").as_str(), writes()), ("on\ttemporary", false));
    w.ok("zfs mount -o remount,rw tank/x");
    assert_eq!((w.get("readonly").as_str(), writes()), ("off\tdefault", true));
    // The kernel has to know, and the mount is in use: nothing changes.
    w.fails("zfs mount -o remount,noexec,ro tank/x", &["cannot remount 'tank/x'", "busy"]);
    assert_eq!((w.get("readonly").as_str(), w.get("exec").as_str(), writes()), ("off\tdefault", "on\tdefault", true));
    drop(reader);
    w.ok("zfs mount -o remount,noexec,ro tank/x");
    assert_eq!((w.get("readonly").as_str(), w.get("exec").as_str()), ("on\ttemporary", "off\ttemporary"));
    assert!(!writes() && has(&at, "noexec"));
    // Options that are not named return to the property.
    w.ok("zfs mount -o remount,noatime tank/x");
    let now = ["readonly", "exec", "atime"].map(|p| w.get(p));
    assert_eq!(now, ["off\tdefault", "on\tdefault", "off\ttemporary"]);
    assert!(writes() && !has(&at, "noexec"));
    w.ok("zfs unmount tank/x");
    w.fails("zfs mount -o remount,ro tank/x", &["cannot remount 'tank/x': not currently mounted"]);
    assert!(!w.is_mounted("tank/x"));
    w.fails("zfs mount -o remount,ro -a", &["-o remount"]);
    for bad in ["rx", "ro,sometimes", "nbmand", "readonly=perhaps"] {
        w.fails(&format!("zfs mount -o {bad} tank/x"), &["cannot mount: mount option '", "' is not known", "remount"]);
        assert!(!w.is_mounted("tank/x"), "{bad}");
    }
    // All that -a mounts gets the options.
    w.ok("zfs unmount -a");
    w.ok("zfs mount -a -o ro");
    assert_eq!((w.get("readonly").as_str(), writes()), ("on\ttemporary", false));
    assert_eq!(w.ok("zfs get -H -o source readonly tank"), "temporary\n");
    // Pools within each other are unmounted from the inside, whichever comes first.
    for (outer, inner) in [("tank", "lake"), ("pond", "tank")] {
        w.ok("zfs unmount -a");
        let other = if outer == "tank" { inner } else { outer };
        w.ok(&format!("zpool create -O mountpoint=none --size 128M {other} {other}.img"));
        w.ok(&format!("zfs set mountpoint={} {outer}", w.path("out")));
        w.ok(&format!("zfs set mountpoint={} {inner}", w.path("out/in")));
        w.ok("zfs mount -a");
        let mounted = w.ok("zfs mount");
        assert!([outer, inner].iter().all(|name| mounted.contains(&format!("{name} "))), "{mounted}");
        w.ok("zfs unmount -a");
        assert_eq!(w.ok("zfs mount"), "");
        w.ok(&format!("zpool destroy {other}"));
    }
    w.ok("zpool destroy tank");
}
