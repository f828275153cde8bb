//! Counters as OpenZFS has them: by `weir kstat`, and as files in the folder of the daemon.
#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use std::fs;
use std::io::{Read, Seek, SeekFrom};
use std::path::Path;

use common::outcome_of;
use common::world::World;

/// The value of a line.
fn value(text: &str, name: &str) -> u64 {
    let line = text.lines().find(|l| l.split_whitespace().next() == Some(name));
    line.and_then(|l| l.split_whitespace().last()?.parse().ok()).unwrap_or_else(|| panic!("{name}: {text}"))
}

#[test]
fn the_folder_has_what_programs_for_openzfs_read() {
    let Some(world) = World::new("kstat") else { return };
    let (at, mount) = (world.path("ks"), world.path("m"));
    world.ok(&format!("daemon start --kstat {at} -o zfs_arc_max=256M"));
    let zfs = format!("{at}/spl/kstat/zfs");
    let read = |name: &str| fs::read_to_string(format!("{zfs}/{name}")).unwrap();
    // Without a pool.
    let arc = read("arcstats");
    let mut lines = arc.lines();
    let head: Vec<&str> = lines.next().unwrap().split(' ').collect();
    let rows = arc.lines().count() - 2;
    assert_eq!(head[..5], ["0", "1", "0x01", &rows.to_string(), &(rows * 272).to_string()]);
    assert_eq!(lines.next().unwrap(), "name                            type data");
    assert_eq!((value(&arc, "c"), value(&arc, "c_max"), value(&arc, "c_min")), (256 << 20, 256 << 20, 64 << 20));
    world.ok(&format!("zpool create -m {mount} --size 256M tank a.img"));
    world.ok("zfs create tank/d");
    fs::write(format!("{mount}/d/f"), vec![7; 1 << 20]).unwrap();
    world.ok("zpool sync tank");
    for _ in 0..3 {
        assert_eq!(fs::read(format!("{mount}/d/f")).unwrap().len(), 1 << 20);
    }
    fs::remove_file(format!("{mount}/d/f")).unwrap();
    assert_eq!(read("tank/state"), "ONLINE\n");
    let guid = world.ok("zpool get -Hp -o value guid tank");
    assert_eq!(read("tank/guid"), guid);
    // The object set of the file system has its name.
    let names: Vec<String> =
        fs::read_dir(format!("{zfs}/tank")).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    let objsets: Vec<String> =
        names.iter().filter(|n| n.starts_with("objset-0x")).map(|n| read(&format!("tank/{n}"))).collect();
    let of = |name: &str| objsets.iter().find(|t| t.contains(&format!(" {name}\n"))).unwrap();
    assert_eq!((objsets.len(), value(of("tank/d"), "nwritten")), (2, 1 << 20));
    assert_eq!((value(of("tank/d"), "nunlinks"), value(of("tank"), "nwritten")), (1, 0));
    let txgs = read("tank/txgs");
    assert!(txgs.lines().count() > 3 && txgs.lines().skip(1).all(|l| l.split_whitespace().count() == 12), "{txgs}");
    let written: u64 = txgs.lines().skip(1).filter_map(|l| l.split_whitespace().nth(5)?.parse::<u64>().ok()).sum();
    assert!(written > 0, "{txgs}");
    // The command shows the same.
    assert_eq!(world.ok("kstat tank/guid"), guid);
    let listed = world.ok("kstat");
    for name in ["arcstats", "zil", "dbgmsg", "tank/txgs", "tank/multihost", "parameters/zfs_txg_timeout"] {
        assert!(listed.lines().any(|l| l == name), "{name}: {listed}");
    }
    let wrong = world.say("kstat tank/nothing");
    assert!(wrong.code == 1 && wrong.err.contains("is not a kstat: 'weir kstat' lists"), "{}", wrong.err);
    // A descriptor is one moment, whatever happens meanwhile.
    let mut file = fs::File::open(format!("{zfs}/tank/txgs")).unwrap();
    let mut first = [0; 100];
    file.read_exact(&mut first).unwrap();
    fs::write(format!("{zfs}/tank/txgs"), "0").unwrap();
    assert_eq!(read("tank/txgs").lines().count(), 1);
    let mut all = String::new();
    file.seek(SeekFrom::Start(0)).unwrap();
    file.read_to_string(&mut all).unwrap();
    assert!(all.as_bytes().starts_with(&first) && all.lines().count() > 3, "{all}");
    // Tunables are read and set.
    let timeout = format!("{at}/module/zfs/parameters/zfs_txg_timeout");
    assert_eq!(fs::read_to_string(&timeout).unwrap(), "5\n");
    fs::write(&timeout, "9\n").unwrap();
    assert_eq!(world.ok("tune get zfs_txg_timeout"), "zfs_txg_timeout=9\n");
    assert_eq!(fs::write(&timeout, "much\n").unwrap_err().raw_os_error(), Some(22));
    // Commands are among the messages, until these are cleared.
    let messages = read("dbgmsg");
    assert!(
        messages.starts_with("timestamp    message \n") && messages.contains("  command: zfs create tank/d\n"),
        "{messages}"
    );
    fs::write(format!("{zfs}/dbgmsg"), "0").unwrap();
    assert_eq!(read("dbgmsg").lines().count(), 1);
    // What a pool counted is not lost when it goes.
    let before = (value(&read("arcstats"), "hits"), value(&read("zil"), "zil_commit_count"));
    world.ok("zpool destroy tank");
    let after = (value(&read("arcstats"), "hits"), value(&read("zil"), "zil_commit_count"));
    assert!(after >= before && before.0 > 0, "{before:?} {after:?}");
    assert!(!Path::new(&format!("{zfs}/tank")).exists());
    world.ok("daemon stop");
    assert!(!Path::new(&zfs).exists(), "unmounted");
}

#[test]
fn a_folder_that_a_killed_daemon_left_is_taken_over() {
    let Some(world) = World::new("kstat-killed") else { return };
    let at = world.path("ks");
    world.ok(&format!("daemon start --kstat {at}"));
    world.kill_daemon();
    // Also from the environment.
    let o = outcome_of(world.command(common::WEIR).args(["daemon", "start"]).env("WEIR_KSTAT", &at).output().unwrap());
    assert_eq!(o.code, 0, "{}", o.err);
    assert!(fs::read_to_string(format!("{at}/spl/kstat/zfs/arcstats")).unwrap().contains("\nhits "));
    // Open files do not keep the daemon from ending.
    let mut file = fs::File::open(format!("{at}/spl/kstat/zfs/zil")).unwrap();
    world.ok("daemon stop");
    assert!(file.read_to_string(&mut String::new()).is_err());
    for wrong in ["ks", "/usr"] {
        let said = world.say(&format!("daemon start --kstat {wrong}"));
        let log = fs::read_to_string(world.path("run/daemon.log")).unwrap();
        let is_said = said.code == 1 && said.err.contains("must be an absolute path");
        assert!(is_said || log.contains("kstats cannot be shown at '/usr'"), "{wrong}: {} {log}", said.err);
        world.say("daemon stop");
    }
}

/// OpenZFS's own programs, which know the folders of Linux only: copies that look elsewhere.
#[test]
fn arcstat_and_arc_summary_read_it() {
    let Some(world) = World::new("kstat-programs") else { return };
    let (at, mount) = (world.path("ks"), world.path("m"));
    world.ok(&format!("daemon start --kstat {at} -o zfs_arc_max=256M"));
    world.ok(&format!("zpool create -m {mount} --size 256M tank a.img"));
    for (name, calls) in [
        ("arcstat", &["", "-a", "-x", "-f time,hits,size,c", "1 2"][..]),
        (
            "arc_summary",
            &["", "-a", "-g", "-r", "-s arc", "-s archits", "-s dmu", "-s l2arc", "-s tunables", "-s vdev", "-s zil"],
        ),
        ("dbufstat", &["", "-d", "-r", "-x", "-F object=10,dbc=1,pool=tank"]),
    ] {
        let Some(text) = ["/usr/sbin", "/usr/bin"].iter().find_map(|d| fs::read_to_string(format!("{d}/{name}")).ok())
        else {
            eprintln!("NOT RUN: {name} is not installed");
            continue;
        };
        let text = text.replace("/proc/spl/", &format!("{at}/spl/")).replace("/sys/module/", &format!("{at}/module/"));
        fs::write(world.path(name), text).unwrap();
        for call in calls {
            let o = world.command("python3").arg(world.path(name)).args(call.split_whitespace()).output().unwrap();
            let o = outcome_of(o);
            // A mistake in the program's letters would be told on standard error.
            assert!(o.code == 0 && !o.out.is_empty() && o.err.is_empty(), "{name} {call}: {}{}", o.out, o.err);
        }
    }
    world.ok("daemon stop");
}
