//! `contrib/systemd/weir-events`, which runs scripts for events, and the script for mail.
#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use common::world::World;
use common::{WEIR, outcome_of};

/// A file of `contrib`.
fn contrib(name: &str) -> String {
    format!("{}/../../contrib/{name}", env!("CARGO_MANIFEST_DIR"))
}

fn script(path: &str, text: &str, mode: u32) {
    fs::write(path, format!("#!/bin/sh\n{text}\n")).unwrap();
    fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
}

#[test]
fn each_event_is_handled_once_by_each_executable_script() {
    let w = World::without_mounts("event-scripts");
    w.ok("zpool create --size 128M -m none tank a.img");
    let folder = w.path("events.d");
    fs::create_dir(&folder).unwrap();
    let fields = "$ZEVENT_SUBCLASS $ZEVENT_CLASS $ZEVENT_POOL $ZEVENT_TIME_SECS $ZEVENT_POOL_GUID";
    script(&format!("{folder}/10-say"), &format!("echo \"{fields} [$ZEVENT_HISTORY_INTERNAL_NAME]\""), 0o755);
    script(&format!("{folder}/20-fails"), "exit 3", 0o755);
    script(&format!("{folder}/30-off"), "echo off", 0o644);
    // Events until now, then the end: the service follows.
    let all = w.path("weir");
    script(&all, &format!("[ \"$*\" = 'zpool events -f -H -v' ] && exec {WEIR} zpool events -H -v"), 0o755);
    let handled = || {
        let mut c = w.command("sh");
        c.arg(contrib("systemd/weir-events")).args([&folder, &w.path("last")]).env("WEIR", &all);
        let o = outcome_of(c.output().unwrap());
        assert_eq!((o.code, o.out.as_str()), (0, ""), "{}", o.err);
        o.err
    };
    w.ok("zpool scrub -w tank");
    let first = handled();
    let guid: u64 = w.ok("zpool get -H -o value guid tank").trim().parse().unwrap();
    let line = first.lines().find(|l| l.starts_with("scrub_finish ")).unwrap_or_else(|| panic!("{first}"));
    let words: Vec<&str> = line.split(' ').collect();
    assert_eq!(words[1..3], ["sysevent.fs.zfs.scrub_finish", "tank"]);
    assert!(words[3].parse::<u64>().is_ok_and(|secs| secs > 1_500_000_000), "{line}");
    // A guid may be more than a shell counts with. No field of the event before is left.
    assert_eq!(words[4..], [&format!("{guid:#x}"), "[]"]);
    assert!(first.contains("history_event ") && first.contains("[scan setup]"), "{first}");
    let events = first.lines().filter(|l| l.contains(" tank ")).count();
    assert_eq!(first.lines().filter(|l| l.ends_with("20-fails: exit status 3")).count(), events);
    assert_eq!(events, w.ok("zpool events -H").lines().count());
    assert!(!first.contains("off\n"), "{first}");
    assert_eq!(handled(), "");
    w.ok("zpool scrub -w tank");
    let second = handled();
    assert_eq!(second.lines().filter(|l| l.starts_with("scrub_finish ")).count(), 1, "{second}");
    w.ok("zpool destroy tank");
}

#[test]
fn the_mail_has_the_status_of_a_pool_in_trouble() {
    let w = World::without_mounts("event-mail");
    fs::create_dir(w.path("bin")).unwrap();
    script(&w.path("bin/mail"), "echo \"$@\"; cat", 0o755);
    script(&w.path("bin/weir"), "echo \"weir $*\"", 0o755);
    let mail = |to: &str, subclass: &str| {
        let mut c = Command::new("sh");
        c.arg(contrib("events.d/mail")).env("PATH", format!("{}:/usr/bin:/bin", w.path("bin")));
        c.env("WEIR_MAIL", to).env("ZEVENT_SUBCLASS", subclass).env("ZEVENT_POOL", "tank");
        c.env("ZEVENT_CLASS", format!("resource.fs.zfs.{subclass}")).env("ZEVENT_VDEV_PATH", "/dev/sdx");
        let o = outcome_of(c.output().unwrap());
        assert_eq!((o.code, o.err.as_str()), (0, ""));
        o.out
    };
    let text = mail("root", "statechange");
    assert!(text.contains("statechange of pool tank root\n") && text.contains("of /dev/sdx"), "{text}");
    assert!(text.ends_with("weir zpool status -v tank\n"), "{text}");
    assert_eq!((mail("", "statechange"), mail("root", "history_event")), (String::new(), String::new()));
}
