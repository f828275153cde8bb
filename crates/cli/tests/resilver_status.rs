//! The output of `zpool status` and `zpool wait` during a resilver and after it, suspended in the
//! middle by `zfs_scan_suspend_progress`.
#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use std::io::{BufRead, BufReader};
use std::process::Stdio;

use common::WEIR;
use common::world::World;

/// Splits off the text behind `before` up to `end`.
fn between<'a>(text: &'a str, before: &str, end: &str) -> (&'a str, &'a str) {
    let rest = text.strip_prefix(before).unwrap_or_else(|| panic!("{before:?} begins {text:?}"));
    rest.split_once(end).unwrap_or_else(|| panic!("{end:?} in {rest:?}"))
}

/// `Mon Nov 23 21:40:09 2026`, as `ctime` writes it.
fn is_moment(text: &str) -> bool {
    let words: Vec<&str> = text.split_whitespace().collect();
    let [day, month, date, time, year] = words[..] else { return false };
    let number = |s: &str| s.parse::<u32>().is_ok();
    let is_time = time.len() == 8 && time.split(':').all(|n| n.len() == 2 && number(n));
    text.len() == 24 && day.len() == 3 && month.len() == 3 && number(date) && is_time && number(year)
}

/// A count of bytes with a unit, as `zpool` shortens it.
fn is_size(text: &str) -> bool {
    let digits = text.trim_end_matches(['B', 'K', 'M', 'G']);
    digits.len() < text.len() && digits.parse::<f64>().is_ok()
}

/// The text between `state:` and `config:`, and the lines of the two devices.
fn block(status: &str) -> (String, Vec<String>) {
    let (_, rest) = between(status, "  pool: tank\n", " state: ONLINE\n");
    let (block, config) = rest.split_once("config:\n").unwrap();
    let devices = config.lines().filter(|l| l.contains(".img")).map(|l| l.trim().to_string()).collect();
    (block.to_string(), devices)
}

#[test]
fn a_resilver_is_shown_while_it_runs_and_when_it_is_over() {
    let w = World::without_mounts("cli-resilver");
    w.ok("daemon start");
    w.ok("tune set zfs_scan_suspend_progress=1");
    w.ok("zpool create -O mountpoint=none --size 128M tank mirror a.img b.img");
    w.ok("zpool offline tank b.img");
    for n in 0..5 {
        w.ok(&format!("zfs create tank/fs{n}"));
    }
    w.ok("zpool online tank b.img");
    w.event("sysevent.fs.zfs.resilver_start");
    let under_way = "status: One or more devices is currently being resilvered.  The pool will\n\tcontinue to \
                     function, possibly in a degraded state.\naction: Wait for the resilver to complete.\n";
    let mut since = String::new();
    // It goes on after an import, where it was.
    for again in [false, true] {
        if again {
            w.ok("zpool export tank");
            w.ok("zpool import -d . tank");
        }
        let (text, devices) = block(&w.ok("zpool status tank"));
        let (date, rest) = between(&text, &format!("{under_way}  scan: resilver in progress since "), "\n");
        assert!(is_moment(date), "{date:?}");
        assert!(!again || date == since, "{date} {since}");
        since = date.to_string();
        let (total, rest) = between(rest, "\t0B scanned at 0B/s, 0B issued at 0B/s, ", " total\n");
        assert!(is_size(total), "{total:?}");
        assert_eq!(rest, "\t0B resilvered, 0.00% done, no estimated completion time\n");
        assert!(devices.iter().any(|d| d.contains("b.img") && d.ends_with("(resilvering)")), "{devices:?}");
        assert!(devices.iter().any(|d| d.contains("a.img") && d.ends_with(" 0")), "{devices:?}");
    }
    assert!(w.ok("zpool status -x").contains("resilver in progress"));
    let refused = w.say("zpool scrub tank");
    assert!(refused.code == 1 && refused.err.contains("currently resilvering"), "{refused:?}");

    // `zpool wait` prints the remaining bytes, and returns at the end.
    let mut c = w.command(WEIR);
    let mut waits = c.args("zpool wait -H -p -t resilver tank 3600".split(' ')).stdout(Stdio::piped()).spawn().unwrap();
    let mut first = String::new();
    BufReader::new(waits.stdout.as_mut().unwrap()).read_line(&mut first).unwrap();
    assert!(first.trim().parse::<u64>().unwrap() > 0, "{first}");
    assert!(waits.try_wait().unwrap().is_none());
    w.ok("tune set zfs_scan_suspend_progress=0");
    assert!(waits.wait().unwrap().success());
    let (text, devices) = block(&w.ok("zpool status tank"));
    let (size, rest) = between(&text, "  scan: resilvered ", " in ");
    let (took, date) = between(rest, "", " with 0 errors on ");
    assert!(is_size(size) && size != "0B", "{size}");
    assert!(took.len() == 8 && took.split(':').all(|n| n.len() == 2 && n.parse::<u32>().is_ok()), "{took}");
    assert!(is_moment(date.trim_end_matches('\n')), "{date:?}");
    assert!(devices.iter().all(|d| d.ends_with(" 0")), "{devices:?}");
    w.ok("zpool scrub -w tank");
    assert!(w.ok("zpool status tank").contains("  scan: scrub repaired 0B in "));
    w.ok("zpool destroy tank");
}

/// A device that is attached meanwhile waits, until the end or `zpool resilver`.
#[test]
fn a_device_that_waits_for_the_next_resilver_is_shown() {
    let w = World::without_mounts("cli-deferred");
    w.ok("daemon start");
    w.ok("tune set zfs_scan_suspend_progress=1");
    w.ok("zpool create -O mountpoint=none --size 128M tank mirror a.img b.img");
    w.ok("zpool offline tank b.img");
    w.ok("zfs create tank/fs");
    w.ok("zpool online tank b.img");
    w.event("sysevent.fs.zfs.resilver_start");
    w.ok("zpool attach --size 128M tank a.img c.img");
    w.ok("zpool sync -f tank");
    let (_, devices) = block(&w.ok("zpool status tank"));
    let line = |name: &str| devices.iter().find(|d| d.contains(name)).unwrap().clone();
    assert!(line("b.img").ends_with("(resilvering)"), "{devices:?}");
    assert!(line("c.img").ends_with("(awaiting resilver)"), "{devices:?}");
    assert!(w.ok("zpool status -j tank").contains("\"resilver_deferred\":\"1\""));
    assert_eq!(w.ok("zpool get -H -o value feature@resilver_defer tank").trim(), "active");
    w.ok("zpool resilver tank");
    w.ok("zpool sync -f tank");
    let (_, devices) = block(&w.ok("zpool status tank"));
    assert!(!devices.iter().any(|d| d.contains("awaiting")), "{devices:?}");
    assert_eq!(w.ok("zpool get -H -o value feature@resilver_defer tank").trim(), "enabled");
    assert!(w.ok("zpool history -i tank").contains("starting deferred resilver errors=0"));
    w.ok("tune set zfs_scan_suspend_progress=0");
    w.ok("zpool wait -t resilver tank");
    let (_, devices) = block(&w.ok("zpool status tank"));
    assert!(devices.iter().all(|d| d.ends_with(" 0")), "{devices:?}");
    w.ok("zpool destroy tank");
}

/// `zpool wait` also waits for a requested resilver: `zpool clear` and `zpool resilver` return
/// before it begins.
#[test]
fn a_resilver_that_was_asked_for_is_waited_for() {
    let w = World::without_mounts("cli-asked");
    w.ok("zpool create -O mountpoint=none --size 128M tank mirror a.img b.img");
    let mut ends = 0;
    for n in 0..20 {
        w.ok("zpool offline tank b.img");
        w.ok(&format!("zfs create tank/fs{n}"));
        w.ok("zpool online tank b.img");
        if n % 2 == 1 {
            w.ok("zpool resilver tank");
        }
        w.ok("zpool wait -t resilver tank");
        let (text, devices) = block(&w.ok("zpool status tank"));
        assert!(text.starts_with("  scan: resilvered "), "{n}: {text}");
        assert!(devices.iter().all(|d| d.ends_with(" 0")), "{n}: {devices:?}");
        let finished = w.ok("zpool events -H").lines().filter(|l| l.ends_with("resilver_finish")).count();
        assert!(finished > ends, "{n}: it was waited for to its end");
        ends = finished;
    }
    w.ok("zpool destroy tank");
}
