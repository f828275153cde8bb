//! The program from outside: real command lines, a real daemon, pools on sparse files.
#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use host::TempDir;

use common::{ALONE, Outcome, WEIR, can_mount, command_in, outcome_of};

/// A user's world: a scratch folder with a runtime and a state folder of its own.
struct World {
    dir: TempDir,
}

impl World {
    fn new(tag: &str) -> World {
        World { dir: TempDir::new(tag).unwrap() }
    }

    fn path(&self, name: &str) -> String {
        self.dir.join(name).display().to_string()
    }

    fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        command_in(self.dir.path(), program)
    }

    fn say(&self, args: &[&str]) -> Outcome {
        outcome_of(self.command(WEIR).args(args).output().unwrap())
    }

    /// Runs a line that must succeed; its output.
    fn ok(&self, line: &str) -> String {
        let s = self.say(&line.split_whitespace().collect::<Vec<_>>());
        assert_eq!(s.code, 0, "weir {line}: {}{}", s.out, s.err);
        s.out
    }

    /// Runs a line that must fail with this code and message.
    fn fails(&self, line: &str, code: i32, what: &str) {
        let s = self.say(&line.split_whitespace().collect::<Vec<_>>());
        assert!(s.code == code && s.err.contains(what), "weir {line}: code {}, {}{}", s.code, s.out, s.err);
        if code == 1 {
            let sentence = s.err.split("\nuse '").next().unwrap_or("");
            assert_eq!(sentence.trim_end().lines().count(), 1, "one sentence: {}", s.err);
        }
    }

    fn files(&self) -> Vec<String> {
        let mut names: Vec<String> = std::fs::read_dir(self.dir.path())
            .unwrap()
            .map(|e| e.unwrap().file_name().into_string().unwrap())
            .collect();
        names.retain(|n| n != "run" && n != "state");
        names.sort();
        names
    }

    fn pool(&self) {
        self.ok(&format!("{CREATE} -O mountpoint=none --size 128M tank a.img b.img"));
    }
}

impl Drop for World {
    fn drop(&mut self) {
        let _ = self.command(WEIR).args(["daemon", "stop", "-f"]).output();
    }
}

/// Of the features that the installed zdb knows.
const CREATE: &str = "zpool create -o compatibility=openzfs-2.1-linux";

/// Debian's zdb on the pool's files, if it is installed.
fn judge(w: &World, pool: &str) {
    match Command::new("zdb").args(ALONE).args(["-e", "-p"]).arg(w.dir.path()).args(["-bcc", pool]).output() {
        Ok(o) => assert!(o.status.success(), "zdb: {}", String::from_utf8_lossy(&o.stdout)),
        Err(_) => eprintln!("NOT RUN: zdb is not installed"),
    }
}

#[test]
fn a_pool_lives_through_export_and_import() {
    let w = World::new("cli-life");
    assert_eq!(w.ok("zpool list"), "no pools available\n");
    w.pool();
    let list = w.ok("zpool list -H -o name,health,altroot");
    assert_eq!(list, "tank\tONLINE\t-\n");
    let status = w.ok("zpool status");
    assert!(status.starts_with("  pool: tank\n state: ONLINE\nconfig:\n\n\tNAME"), "{status}");
    assert!(status.contains("a.img  ONLINE       0     0     0\n"), "{status}");
    assert_eq!(w.ok("zpool status -x"), "all pools are healthy\n");
    assert_eq!(w.ok("zpool status -x tank"), "pool 'tank' is healthy\n");
    let header = w.ok("zpool list").lines().next().unwrap().to_string();
    assert_eq!(header, "NAME   SIZE  ALLOC   FREE  CKPOINT  EXPANDSZ   FRAG    CAP  DEDUP    HEALTH  ALTROOT");
    w.ok("zpool set comment=ours tank");
    w.ok("zpool set failmode=continue tank");
    w.ok("zpool sync");
    w.ok("zpool export tank");
    assert_eq!(w.ok("zpool list -H"), "");
    judge(&w, "tank");
    let found = w.ok("zpool import -d .");
    assert!(found.contains("   pool: tank\n") && found.contains("  state: ONLINE\n"), "{found}");
    let id = found.lines().find_map(|l| l.trim().strip_prefix("id: ")).unwrap().to_string();
    w.ok(&format!("zpool import -d a.img -d b.img {id} lake"));
    assert_eq!(w.ok("zpool get -H -o value comment,failmode,guid lake"), format!("ours\ncontinue\n{id}\n"));
    // Paths are remembered: no -d is needed.
    w.ok("zpool export -a");
    w.ok("zpool import -o readonly=on lake tank");
    assert_eq!(w.ok("zpool get -H -o value readonly tank"), "on\n");
    w.fails("zfs create tank/x", 1, "read-only");
    w.ok("zpool export tank");
    // Nothing was written, not even the name.
    w.ok("zpool import lake tank");
    w.ok("zpool destroy tank");
    let none = w.say(&["zpool", "import", "-d", "."]);
    assert_eq!((none.code, &*none.out, &*none.err), (0, "", "no pools available to import\n"));
    assert!(w.ok("zpool import -D -d .").contains("(DESTROYED)"));
    w.fails("zpool import -D -d . tank", 1, "-f is needed");
    w.ok("zpool import -D -f -d . tank");
    judge_after_export(&w);
}

fn judge_after_export(w: &World) {
    w.ok("zpool export -a");
    judge(w, "tank");
}

#[test]
fn a_creation_that_fails_leaves_nothing() {
    let w = World::new("cli-fail");
    std::fs::write(w.path("small.img"), vec![0; 1 << 20]).unwrap();
    host::create_sparse(w.path("other.img"), 128 << 20).unwrap();
    w.ok("zpool create -O mountpoint=none other other.img");
    w.ok("zpool export other");
    std::fs::create_dir(w.path("full")).unwrap();
    std::fs::write(w.path("full/x"), b"x").unwrap();
    let before = w.files();
    let label = || std::fs::read(w.path("other.img")).unwrap();
    let old = label();
    let at = w.path("mnt");
    for (line, code, what) in [
        ("zpool create", 2, "missing pool name"),
        ("zpool create tank", 2, "missing vdev"),
        ("zpool create -x tank a.img", 2, "invalid option 'x'"),
        ("zpool create -o ashift tank a.img", 2, "missing '='"),
        ("zpool create --size huge tank a.img", 2, "--size"),
        ("zpool create 1tank a.img", 1, "does not begin with a letter"),
        ("zpool create mirror1 a.img", 1, "reserved"),
        ("zpool create tank a.img", 1, "does not exist"),
        ("zpool create tank mirror a.img b.img", 1, "does not exist"),
        ("zpool create --size 128M tank mirror a.img", 1, "at least 2"),
        ("zpool create --size 128M tank raidz2 a.img b.img", 1, "at least 3"),
        ("zpool create --size 128M tank a.img log raidz b.img c.img", 1, "a log can be"),
        ("zpool create --size 128M tank a.img mirror b.img c.img", 1, "mismatched replication level"),
        ("zpool create --size 1M tank a.img", 1, "at least 64M"),
        ("zpool create -O mountpoint=none --size 128M tank a.img small.img", 1, "too small"),
        ("zpool create -O mountpoint=none --size 128M tank a.img ./a.img", 1, "named twice"),
        ("zpool create -O mountpoint=none --size 128M tank a.img other.img", 1, "exported pool 'other'"),
        ("zpool create -O mountpoint=none --size 128M tank a.img full", 1, "neither a file nor a block device"),
        ("zpool create -O recordsize=3K --size 128M tank a.img", 1, "recordsize"),
        ("zpool create -O nonsense=1 --size 128M tank a.img", 1, "'nonsense'"),
        ("zpool create -o ashift=3 --size 128M tank a.img", 1, "ashift"),
        ("zpool create -o feature@draid_failure_domains=enabled --size 128M tank a.img", 1, "draid_failure_domains"),
        ("zpool create -m relative --size 128M tank a.img", 1, "'mountpoint' must be an absolute path"),
    ] {
        w.fails(line, code, what);
        assert_eq!(w.files(), before, "{line}");
    }
    assert!(label() == old, "the label of the other pool is as it was");
    if can_mount("mount points at creation") {
        let full = w.path("full");
        w.fails(&format!("zpool create -m {full} --size 128M tank a.img"), 1, "not empty");
        w.fails(&format!("zpool create -m {full}/x/y --size 128M tank a.img"), 1, "cannot create 'tank'");
        assert_eq!(w.files(), before);
        let n = w.ok(&format!("zpool create -n -m {at} --size 128M tank a.img"));
        assert!(n.starts_with("would create 'tank' with the following layout:\n\n\ttank\n\t  /"), "{n}");
        assert_eq!(w.files(), before);
    }
    w.ok("zpool create -f -O mountpoint=none tank other.img");
    w.fails("zpool create -f -O mountpoint=none lake other.img", 1, "active pool 'tank'");
    w.fails("zpool create -O mountpoint=none --size 128M tank a.img", 1, "already exists");
    w.fails("zpool labelclear other.img", 1, "other.img");
    w.ok("zpool export tank");
    w.fails("zpool labelclear other.img", 1, "exported pool \"tank\"");
    w.ok("zpool labelclear -f other.img");
    w.fails("zpool labelclear other.img", 1, "no valid label");
    w.fails("zpool import -d . tank", 1, "no such pool");
}

/// Groups, sections, and devices that are taken out and back.
#[test]
fn layouts_are_made_and_shown() {
    let w = World::new("cli-layout");
    w.ok("zpool create -O mountpoint=none --size 128M tank raidz2 a.img b.img c.img d.img log mirror e.img f.img cache g.img spare h.img");
    let names = |status: &str| -> Vec<String> {
        let rows = status.lines().filter_map(|l| l.strip_prefix('\t')).skip_while(|l| !l.starts_with("NAME"));
        rows.map(|l| {
            let words: Vec<&str> = l.split_whitespace().take(2).collect();
            words.join(" ").replace(&w.path(""), "")
        })
        .collect()
    };
    let whole = names(&w.ok("zpool status tank"));
    let want = [
        "NAME STATE",
        "tank ONLINE",
        "raidz2-0 ONLINE",
        "a.img ONLINE",
        "b.img ONLINE",
        "c.img ONLINE",
        "d.img ONLINE",
        "logs",
        "mirror-1 ONLINE",
        "e.img ONLINE",
        "f.img ONLINE",
        "cache",
        "g.img ONLINE",
        "spares",
        "h.img AVAIL",
    ];
    assert_eq!(whole, want);
    w.ok("zpool offline tank b.img");
    let degraded = names(&w.ok("zpool status tank"));
    assert_eq!(degraded[1..5], ["tank DEGRADED", "raidz2-0 DEGRADED", "a.img ONLINE", "b.img OFFLINE"]);
    w.ok("zpool offline tank c.img");
    w.fails("zpool offline tank d.img", 1, "no valid replicas");
    // A log can be done without.
    w.ok("zpool offline tank e.img");
    w.ok("zpool offline tank f.img");
    let log = names(&w.ok("zpool status tank"));
    assert_eq!(log[7..11], ["logs", "mirror-1 UNAVAIL", "e.img OFFLINE", "f.img OFFLINE"]);
    w.ok("zpool online tank b.img c.img e.img f.img");
    w.ok("zpool wait -t resilver tank");
    assert_eq!(names(&w.ok("zpool status tank")), want);
    w.ok("zpool clear tank");
    w.ok("zpool export tank");
    std::fs::remove_file(w.path("c.img")).unwrap();
    w.ok("zpool import -d . tank");
    let degraded = w.ok("zpool status tank");
    assert!(degraded.contains("DEGRADED") && degraded.contains("UNAVAIL") && degraded.contains("was "), "{degraded}");
}

/// Devices with data are removed, and a removal is stopped.
#[test]
fn devices_with_data_are_removed() {
    let w = World::new("cli-removal");
    w.ok(&format!("{CREATE} -O mountpoint=none --size 200M tank a.img b.img c.img"));
    w.fails("zpool remove -s tank", 1, "there is no removal in progress");
    w.fails("zpool remove -s -w tank", 2, "-w cannot be used with -s");
    let told = w.ok("zpool remove -n tank b.img");
    assert!(told.starts_with("Memory that will be used after removing b.img: "), "{told}");
    assert!(w.ok("zpool remove -n -p tank b.img").starts_with("b.img "));
    w.ok("zpool remove -w tank b.img");
    let status = w.ok("zpool status tank");
    let lines = [
        "remove: Removal of vdev 1 copied ",
        " in 0h0m, completed on ",
        "\t24 memory used for removed device mappings",
    ];
    assert!(lines.iter().all(|l| status.contains(l)) && !status.contains("b.img"), "{status}");
    w.ok("zpool export tank");
    let listed = w.ok("zpool import -d .");
    assert!(listed.contains(" state: ONLINE") && !listed.contains("missing"), "{listed}");
    w.ok("zpool import -d . tank");
    w.ok("tune set tank:zfs_removal_suspend_progress=1");
    w.ok("zpool remove tank c.img");
    let status = w.ok("zpool status tank");
    assert!(status.contains("remove: Evacuation of ") && status.contains("  (removing)"), "{status}");
    assert!(w.ok("zpool status -j tank").contains("\"removing_vdev\":\"2\""));
    w.fails("zpool attach --size 200M tank a.img d.img", 1, "is being removed");
    w.fails("zpool remove tank a.img", 1, "out of space");
    w.ok("zpool remove -s tank");
    let status = w.ok("zpool status tank");
    assert!(status.contains("c.img canceled on ") && !status.contains("(removing)"), "{status}");
    w.ok("tune set tank:zfs_removal_suspend_progress=0");
    w.ok("zpool remove tank c.img");
    w.ok("zpool wait -t remove tank");
    w.fails("zpool remove tank a.img", 1, "out of space");
    w.ok("zpool export tank");
}

/// Devices are added, attached, replaced, detached, removed, grown, trimmed and initialized.
#[test]
fn devices_are_changed() {
    let w = World::new("cli-devices");
    w.ok(&format!("{CREATE} -O mountpoint=none --size 80M tank a.img"));
    w.ok("zpool attach --size 80M tank a.img b.img");
    let status = w.ok("zpool status tank");
    assert!(status.contains("mirror-0") && status.contains("b.img"), "{status}");
    w.fails("zpool attach --size 64M tank a.img small.img", 1, "device is too small");
    w.fails(
        "zpool add --size 80M tank c.img",
        1,
        "mismatched replication level: pool uses mirror and new vdev is file",
    );
    w.fails("zpool add tank mirror b.img c.img", 1, "active pool 'tank'");
    w.fails("zpool attach tank a.img nothere.img", 1, "no such device");
    let n = w.ok("zpool add -n --size 80M tank mirror c.img d.img");
    assert!(n.starts_with("would update 'tank'"), "{n}");
    assert!(!w.files().contains(&"c.img".to_string()));
    w.ok("zpool add --size 80M tank mirror c.img d.img log e.img cache f.img spare g.img");
    let list = w.ok("zpool list -v tank");
    for name in ["mirror-0", "mirror-1", "logs", "e.img", "f.img", "g.img"] {
        assert!(list.contains(name), "{list}");
    }
    w.ok("zfs create tank/fs");
    w.fails("zpool remove tank c.img", 1, "it is part of a mirror");
    w.ok("zpool remove tank e.img f.img");
    assert!(!w.ok("zpool status tank").contains("e.img"));
    w.ok("zpool replace tank d.img g.img");
    let status = w.ok("zpool status tank");
    assert!(status.contains("spare-1") && status.contains("INUSE"), "{status}");
    w.fails("zpool remove tank g.img", 1, "in use");
    w.ok("zpool detach tank g.img");
    assert!(w.ok("zpool status tank").contains("AVAIL"));
    w.ok("zpool replace --size 80M tank d.img h.img");
    w.ok("zpool initialize -w tank");
    let status = w.ok("zpool status -i tank");
    assert!(status.contains("(100% initialized, completed at "), "{status}");
    w.fails("zpool initialize -c tank", 1, "no active initialize");
    w.fails("zpool initialize -u -w tank", 2, "-w cannot be used with -u");
    w.fails("zpool initialize -s -u tank", 2, "-u cannot be combined with -s");
    w.ok("zpool initialize -u tank");
    let status = w.ok("zpool status -i tank");
    assert!(status.contains("(uninitialized)") && !status.contains("100% initialized"), "{status}");
    w.ok("zpool trim -w tank");
    assert!(w.ok("zpool status -t tank").contains("(100% trimmed, completed at "));
    w.ok("zpool scrub tank");
    for (letters, why) in [
        ("-s -p", "-s and -p are mutually exclusive"),
        ("-p -C", "-p and -C are mutually exclusive"),
        ("-s -C", "-s and -C are mutually exclusive"),
        ("-e -C", "-e and -C are mutually exclusive"),
        ("-e -S 2026-01-01", "start/end date is available only with normal scrub"),
        ("-C -S 2026-01-01", "start/end date is available only with normal scrub"),
        ("-p -E 2026-01-01", "start/end date is available only with normal scrub"),
        ("-S 2026-01-02 -E 2025-12-31", "end date has to be later than start date"),
        ("-S yesterday", "'yesterday' is not a date: it must be YYYY-MM-DD or 'YYYY-MM-DD HH:MM'"),
        ("-w -p", "-w cannot be used with -p"),
    ] {
        w.fails(&format!("zpool scrub {letters} tank"), 2, why);
    }
    w.fails("zpool scrub -e tank", 1, "the pool needs the feature head_errlog");
    w.fails("zpool scrub", 2, "missing pool name argument");
    w.ok("zpool wait -t scrub,resilver tank");
    let table = w.ok("zpool wait tank 1");
    assert!(table.starts_with("   discard        free  initialize     replace      remove    resilver"), "{table}");
    assert_eq!(w.ok("zpool wait -Hp -t scrub,trim tank 1"), "0\t0\n");
    w.fails("zpool wait -t everything tank", 2, "invalid activity 'everything'");
    w.fails("zpool wait nothere", 1, "no such pool");
    let history = w.ok("zpool history tank");
    for command in [
        "zpool create -o compatibility=openzfs-2.1-linux -O mountpoint=none --size 80M tank a.img",
        "zpool attach --size 80M tank a.img b.img",
        "zpool add --size 80M tank mirror c.img d.img log e.img cache f.img spare g.img",
        "zpool remove tank e.img f.img",
        "zpool replace tank d.img g.img",
        "zpool detach tank g.img",
        "zpool initialize -w tank",
        "zpool trim -w tank",
        "zpool scrub tank",
    ] {
        assert_eq!(history.matches(&format!(" {command}\n")).count(), 1, "{command}: {history}");
    }
    assert!(!history.contains("nothere") && !history.contains("add -n"), "{history}");
    let events = w.ok("zpool history -i tank");
    for event in
        ["vdev attach", "spare in vdev=", "vdev remove", "detach vdev=", "initialize vdev=", "scan done errors=0"]
    {
        assert!(events.contains(event), "{event}: {events}");
    }
    let events = w.ok("zpool events tank");
    assert!(events.starts_with("TIME                           CLASS\n"), "{events}");
    let internal = w.ok("zpool history -i tank");
    for (class, internal_name) in [
        ("vdev_attach", "] vdev attach "),
        ("vdev_remove", "] detach "),
        ("vdev_remove_dev", "] vdev remove "),
        ("scrub_start", "] scan setup func=1"),
        ("scrub_finish", "] scan done errors=0"),
    ] {
        let line = format!(" sysevent.fs.zfs.{class}\n");
        let resilvers = if class == "scrub_finish" { events.matches(".resilver_finish\n").count() } else { 0 };
        let times = events.matches(&line).count() + resilvers;
        assert!(times > 0 && times == internal.matches(internal_name).count(), "{class}: {events}{internal}");
    }
    assert_eq!(events.matches(" sysevent.fs.zfs.pool_create\n").count(), 1);
    assert!(events.contains(" sysevent.fs.zfs.initialize_finish\n"), "{events}");
    let detail = w.ok("zpool events -vH");
    assert!(detail.contains("\tsysevent.fs.zfs.vdev_attach\n        version = 0x0\n        class = "), "{detail}");
    assert!(detail.contains("        history_internal_name = \"scan done\"\n"), "{detail}");
    w.fails("zpool events -c tank", 2, "-c cannot be used with a pool");
    assert!(w.ok("zpool events -c").starts_with("cleared "));
    assert_eq!(w.ok("zpool events -H"), "");
    w.ok("zpool export tank");
    assert!(w.ok("zpool events").ends_with(" sysevent.fs.zfs.pool_export\n"));
    judge(&w, "tank");
    for name in ["a.img", "b.img"] {
        let file = std::fs::OpenOptions::new().write(true).open(w.path(name)).unwrap();
        file.set_len(160 << 20).unwrap();
    }
    w.ok("zpool import -d . tank");
    let size = || w.ok("zpool list -Hp -o size tank").trim().parse::<u64>().unwrap();
    let before = size();
    w.ok("zpool online -e tank a.img");
    assert!(size() > before, "{} after {before}", size());
    let before = size();
    for name in ["c.img", "h.img"] {
        let file = std::fs::OpenOptions::new().write(true).open(w.path(name)).unwrap();
        file.set_len(240 << 20).unwrap();
    }
    w.ok("zpool set autoexpand=on tank");
    w.ok("zpool sync tank");
    assert!(size() > before + (100 << 20), "{} after {before}", size());
    w.ok("zfs create tank/more");
    w.ok("zpool export tank");
    judge(&w, "tank");
}

#[test]
fn datasets_are_made_changed_and_removed() {
    let w = World::new("cli-fs");
    w.pool();
    w.ok("zfs create -o compression=lz4 -o org.weir:note=hello tank/a");
    w.ok("zfs create -p tank/a/b/c");
    assert_eq!(w.ok("zfs list -H -o name"), "tank\ntank/a\ntank/a/b\ntank/a/b/c\n");
    assert_eq!(w.ok("zfs list -H -o name -d 1 tank/a"), "tank/a\ntank/a/b\n");
    assert_eq!(w.ok("zfs list -H -o name,mountpoint -S name -r tank/a/b"), "tank/a/b/c\tnone\ntank/a/b\tnone\n");
    let get = w.ok("zfs get compression,org.weir:note,quota tank/a/b");
    let want = "NAME      PROPERTY       VALUE  SOURCE\ntank/a/b  compression    lz4    inherited from tank/a\ntank/a/b  org.weir:note  hello  inherited from tank/a\ntank/a/b  quota          none   default\n";
    assert_eq!(get, want);
    w.ok("zfs set recordsize=16K quota=50M tank/a");
    assert_eq!(w.ok("zfs get -Hp -o value recordsize,quota tank/a"), "16384\n52428800\n");
    assert_eq!(w.ok("zfs get -r -s local -H -o name,property recordsize tank"), "tank/a\trecordsize\n");
    w.ok("zfs inherit recordsize tank/a");
    assert_eq!(w.ok("zfs get -H -o value,source recordsize tank/a"), "128K\tdefault\n");
    w.ok("zfs rename tank/a/b tank/z");
    w.ok("zfs rename -p tank/z/c tank/new/place/c");
    assert_eq!(w.ok("zfs list -H -o name -r tank/new"), "tank/new\ntank/new/place\ntank/new/place/c\n");
    assert_eq!(
        w.ok("zfs destroy -nvr tank/new"),
        "would destroy tank/new/place/c\nwould destroy tank/new/place\nwould destroy tank/new\n"
    );
    for (line, code, what) in [
        ("zfs destroy tank/new", 1, "use '-r'"),
        ("zfs destroy tank", 1, "zpool destroy"),
        ("zfs create tank/a", 1, "already exists"),
        ("zfs create nope/a", 1, "no such pool"),
        ("zfs create tank/x/y", 1, "-p"),
        ("zfs create tank/b@d", 1, "cannot create"),
        ("zfs create -V 1T tank/vol", 1, "out of space"),
        ("zfs set used=1 tank", 1, "'used' is readonly"),
        ("zfs set compression=best tank", 1, "compression"),
        ("zfs set compression tank", 2, "missing property=value"),
        ("zfs get nonsense tank", 2, "nonsense"),
        ("zfs get all tank/nope", 1, "does not exist"),
        ("zfs list nope", 1, "does not exist"),
        ("zfs rename tank/a lake/a", 1, "same pool"),
        ("zfs rename tank/a tank/z", 1, "already exists"),
        ("zfs rename tank/z tank/z/a", 1, "cannot rename"),
        ("zfs mount tank/a", 1, "no mountpoint"),
        ("zfs unmount tank/a", 1, "not currently mounted"),
        ("zfs send tank@x", 1, "cannot open 'tank@x': dataset does not exist"),
        ("zfs nonsense", 2, "unrecognized command 'nonsense'"),
        ("zpool set size=1G tank", 1, "computed"),
        ("zpool status nope", 1, "no such pool"),
        ("zpool export nope", 1, "no such pool"),
    ] {
        w.fails(line, code, what);
    }
    w.ok("zfs destroy -r tank/new");
    w.ok("zfs destroy tank/z");
    assert_eq!(w.ok("zfs list -H -o name"), "tank\ntank/a\n");
    let json: serde_json::Value = serde_json::from_str(&w.ok("zfs list -j -p -o name,used tank/a")).unwrap();
    assert!(json["datasets"]["tank/a"]["properties"]["used"]["value"].as_str().unwrap().parse::<u64>().unwrap() > 0);
    w.fails("zfs mount -j -a", 2, "-j lists what is mounted");
    let mounted = w.ok("zfs mount");
    let json = w.ok("zfs mount -j");
    assert_eq!(mounted.is_empty(), json.is_empty());
    for line in mounted.lines() {
        let json: serde_json::Value = serde_json::from_str(&json).unwrap();
        let (fs, at) = line.split_once("  ").unwrap();
        let one = &json["datasets"][fs.trim()];
        assert_eq!((&one["filesystem"], &one["mountpoint"]), (&fs.trim().into(), &at.trim().into()), "{json}");
    }
    let json: serde_json::Value = serde_json::from_str(&w.ok("zpool status -j")).unwrap();
    assert_eq!(json["pools"]["tank"]["state"], "ONLINE");
    judge_after_export(&w);
}

#[test]
fn names_of_the_program_are_commands() {
    let w = World::new("cli-links");
    for name in ["zpool", "zfs"] {
        std::os::unix::fs::symlink(WEIR, w.path(name)).unwrap();
    }
    let zpool = |args: &[&str]| outcome_of(w.command(w.path("zpool")).args(args).output().unwrap());
    assert_eq!(zpool(&["create", "-O", "mountpoint=none", "--size", "128M", "tank", "a.img"]).code, 0);
    let zfs = outcome_of(w.command(w.path("zfs")).args(["list", "-H", "-o", "name"]).output().unwrap());
    assert_eq!((zfs.code, zfs.out.as_str()), (0, "tank\n"));
    assert_eq!(zpool(&[]).code, 2);
    assert!(w.ok("version").starts_with("weir "));
    assert!(w.ok("help zfs create").contains("-o  a property"));
    w.fails("nonsense", 2, "is not a command");
}

#[test]
fn pools_come_back_with_the_next_daemon() {
    let w = World::new("cli-again");
    w.pool();
    w.ok("zfs create tank/kept");
    let pid = || w.ok("daemon status").split_whitespace().nth(1).unwrap().to_string();
    let first = pid();
    w.ok("daemon stop");
    assert_eq!(w.say(&["daemon", "status"]).code, 1);
    assert_eq!(w.ok("zfs list -H -o name"), "tank\ntank/kept\n");
    let second = pid();
    assert_ne!(first, second);
    assert!(Command::new("kill").args(["-9", &second]).status().unwrap().success());
    // Its first thread may be gone while others still hold the socket.
    let threads = || std::fs::read_dir(format!("/proc/{second}/task")).map_or(0, |list| list.count());
    let is_zombie = || std::fs::read_to_string(format!("/proc/{second}/stat")).is_ok_and(|s| s.contains(") Z"));
    while threads() > 1 || (threads() == 1 && !is_zombie()) {
        std::thread::yield_now();
    }
    assert_eq!(w.ok("zfs list -H -o name"), "tank\ntank/kept\n");
    // A daemon elsewhere with the same state is refused, and one for devices in use as well.
    let other =
        outcome_of(w.command(WEIR).env("WEIR_RUNTIME_DIR", w.path("run2")).args(["zpool", "list"]).output().unwrap());
    assert!(other.code == 1 && other.err.contains("another daemon"), "{}{}", other.out, other.err);
    let foreign = |args: &[&str]| {
        let mut c = w.command(WEIR);
        c.env("WEIR_RUNTIME_DIR", w.path("run3")).env("WEIR_STATE_DIR", w.path("state3")).args(args);
        outcome_of(c.output().unwrap())
    };
    let s = foreign(&["zpool", "import", "-f", "-d", ".", "tank"]);
    assert!(s.code == 1 && s.err.contains("in use by another process"), "{}{}", s.out, s.err);
    assert_eq!(foreign(&["daemon", "stop"]).code, 0);
}

/// A daemon that was killed keeps its devices locked until the kernel has ended what it had under
/// way.
#[test]
fn a_pool_comes_back_when_its_devices_are_let_go() {
    let w = World::new("cli-locked");
    w.pool();
    w.ok("daemon stop");
    let device = std::fs::File::open(w.path("a.img")).unwrap();
    device.lock().unwrap();
    let mut list = w.command(WEIR);
    list.args(["zpool", "list", "-H", "-o", "name"]).stdout(std::process::Stdio::piped());
    let list = list.spawn().unwrap();
    // It will import, or has tried to.
    while !std::path::Path::new(&w.path("run/weir.sock")).exists() {
        std::thread::yield_now();
    }
    drop(device);
    assert_eq!(outcome_of(list.wait_with_output().unwrap()).out, "tank\n");
}

#[test]
fn tunables_reach_the_daemon() {
    let w = World::new("cli-tune");
    w.fails("daemon start -o nonsense=1", 1, "nonsense");
    w.ok("daemon start -o zfs_arc_max=64M -o zfs_dirty_data_max=32M");
    let status = w.ok("daemon status -v");
    assert!(status.contains("zfs_arc_max=67108864") && status.contains("zfs_dirty_data_max=33554432"), "{status}");
    w.fails("daemon start -o zfs_arc_max=128M", 1, "runs already");
    w.ok("daemon stop");
    assert_eq!(w.ok("daemon stop"), "no daemon is running\n");
}

#[test]
fn settings_change_at_run_time_and_last_if_asked() {
    let w = World::new("cli-set");
    w.pool();
    let get = |what: &str| w.ok(&format!("tune get {what}"));
    assert_eq!(get("throttle"), "throttle=openzfs\n");
    w.fails("tune set throtle=none", 1, "did you mean 'throttle'?");
    w.fails("tune set throttle=fast", 1, "it must be one of openzfs, openzfs-2013, legacy-2008, smoothing, none");
    w.fails("tune set zfs_txg_timeout=0", 1, "it must be 1 to 4294967295 s; 1 is the nearest that can be");
    w.fails("tune set -p lake throttle=none", 1, "no such pool");
    w.fails("tune get nonsense", 1, "weir tune list");
    w.fails("tune fly", 2, "list, get and set");
    w.ok("tune set -p tank throttle=legacy-2008 scheduler=deadline");
    w.ok("tune set zfs_vdev_async_write_max_active=7");
    assert_eq!(get("-p tank throttle scheduler"), "throttle=legacy-2008\nscheduler=deadline\n");
    assert_eq!(get("throttle"), "throttle=openzfs\n");
    assert_eq!(get("-p tank zfs_vdev_async_write_max_active"), "zfs_vdev_async_write_max_active=7\n");
    w.ok("tune set --save -p tank zfs_txg_timeout=9");
    w.ok("tune set --save keep_awake=off");
    let long = w.ok("tune list -v keep_awake");
    assert!(
        long.starts_with("keep_awake=off (set)\n") && long.contains("range off|auto, default auto, from weir"),
        "{long}"
    );
    let json: serde_json::Value = serde_json::from_str(&w.ok("tune list -j -p tank zfs_txg_timeout")).unwrap();
    assert_eq!((&json[0]["value"], &json[0]["source"], &json[0]["unit"]), (&"9".into(), &"pool".into(), &"s".into()));
    // The next daemon has the saved settings only.
    w.ok("daemon stop");
    assert_eq!(
        get("-p tank zfs_txg_timeout throttle keep_awake"),
        "zfs_txg_timeout=9\nthrottle=openzfs\nkeep_awake=off\n"
    );
    w.ok("tune set --save -p tank zfs_txg_timeout=default");
    assert_eq!(get("-p tank zfs_txg_timeout"), "zfs_txg_timeout=5\n");
    assert_eq!(std::fs::read_to_string(w.path("state/tunables.conf")).unwrap(), "keep_awake=off\n");
}

#[test]
fn instruments_show_a_pool() {
    let w = World::new("cli-flow");
    w.pool();
    w.ok("zfs create tank/a");
    w.ok("zpool sync");
    let line = w.ok("zpool iostat -Hp tank");
    let fields: Vec<&str> = line.trim_end().split('\t').collect();
    assert_eq!((fields.len(), fields[0]), (7, "tank"), "{line}");
    assert!(fields[1].parse::<u64>().unwrap() > 0);
    let all = w.ok("zpool iostat -vlq tank");
    assert!(all.contains("total_wait") && all.contains("a.img") && all.contains("syncq_read"), "{all}");
    assert!(w.ok("zpool iostat -w tank").contains("latency"));
    assert!(w.ok("zpool iostat -r").contains("req_size"));
    assert_eq!(w.ok("zpool iostat -y -H -T u tank 0.1 2").lines().count(), 4);
    let json: serde_json::Value = serde_json::from_str(&w.ok("zpool iostat -v -j tank")).unwrap();
    assert!(json["vdevs"][0]["write_bytes"].as_u64().unwrap() > 0 && json["vdevs"].as_array().unwrap().len() == 3);
    w.fails("zpool iostat -w -r", 2, "only one of");
    w.fails("zpool iostat lake", 1, "no such pool");
    for what in ["dirty", "txg", "io", "queue", "delay", "zil"] {
        let lines = w.ok(&format!("trace {what} -i 0.1 -c 2 --json tank"));
        assert_eq!(
            lines.lines().filter(|l| serde_json::from_str::<serde_json::Value>(l).is_ok()).count(),
            2,
            "{lines}"
        );
    }
    w.fails("trace dirt tank", 2, "dirty, txg, io, queue, delay, zil");
    w.fails("trace dirty lake", 1, "no such pool");
    let top = w.ok("top -i 0.1 -c 1 tank");
    assert!(top.starts_with("tank   throttle openzfs\ndirty [") && top.contains("async write"), "{top}");
}

#[test]
fn metrics_are_given_out_where_asked() {
    use std::io::{Read, Write};
    let w = World::new("cli-metrics");
    w.fails("daemon start -m 0.0.0.0:9100", 1, "loopback");
    w.ok(&format!("daemon start -m unix:{}", w.path("metrics")));
    w.pool();
    let mut s = std::os::unix::net::UnixStream::connect(w.path("metrics")).unwrap();
    s.write_all(b"GET /metrics HTTP/1.1\r\nHost: here\r\n\r\n").unwrap();
    let mut text = String::new();
    s.read_to_string(&mut text).unwrap();
    assert!(text.contains("weir_dirty_limit_bytes{pool=\"tank\"} "), "{text}");
    assert!(text.contains("class=\"asyncq_write\"}"), "{text}");
}

#[test]
fn file_systems_are_mounted_and_moved() {
    if !can_mount("mounting") {
        return;
    }
    let w = World::new("cli-mount");
    let at = w.path("tank");
    w.ok(&format!("{CREATE} -m {at} -O compression=lz4 --size 128M tank a.img"));
    std::fs::write(w.path("tank/hello"), b"hello").unwrap();
    assert_eq!(std::fs::metadata(&at).unwrap().uid(), host::effective_uid());
    w.ok("zfs create tank/a");
    w.ok("zfs create tank/a/b");
    std::fs::write(w.path("tank/a/b/deep"), b"deep").unwrap();
    assert_eq!(w.ok("zfs get -H -o value mounted tank/a/b"), "yes\n");
    assert_eq!(w.ok(&format!("zfs list -H -o name {at}/a")), "tank/a\n");
    let elsewhere = w.path("elsewhere");
    w.ok(&format!("zfs set mountpoint={elsewhere} tank/a"));
    assert_eq!(std::fs::read(w.path("elsewhere/b/deep")).unwrap(), b"deep");
    w.ok("zfs rename tank/a/b tank/c");
    assert_eq!(std::fs::read(w.path("tank/c/deep")).unwrap(), b"deep");
    w.ok("zfs set readonly=on tank/c");
    assert!(std::fs::write(w.path("tank/c/more"), b"x").is_err());
    w.ok("zfs inherit readonly tank/c");
    std::fs::write(w.path("tank/c/more"), b"x").unwrap();
    // One mount in use keeps all mounts.
    let held = std::fs::File::open(w.path("tank/c/deep")).unwrap();
    w.fails("zfs unmount tank/c", 1, "pool or dataset is busy");
    w.fails("zpool export tank", 1, "is busy");
    w.fails("daemon stop", 1, "is busy");
    assert_eq!(w.ok("zfs mount").lines().count(), 3);
    drop(held);
    w.ok(&format!("zfs unmount {at}/c"));
    assert_eq!(w.ok("zfs get -H -o value mounted tank/c"), "no\n");
    w.ok("zfs mount -a");
    // What is mounted by hand stays mounted.
    w.ok("zfs set canmount=noauto tank/a");
    w.ok("zfs unmount -a");
    assert_eq!(w.ok("zfs get -H -o value mounted tank/a tank/c"), "yes\nno\n");
    w.ok("zfs set canmount=on tank/a");
    w.ok("zfs mount -a");
    w.ok("zfs set canmount=off tank/c");
    assert_eq!(w.ok("zfs get -H -o value mounted tank/c"), "no\n");
    w.ok("zfs set canmount=on tank/c");
    w.ok("zpool export tank");
    assert!(!Path::new(&at).join("hello").exists());
    judge(&w, "tank");
    let root = w.path("root");
    w.ok(&format!("zpool import -d . -R {root} tank"));
    assert_eq!(std::fs::read(format!("{root}{at}/hello")).unwrap(), b"hello");
    assert_eq!(w.ok("zpool get -H -o value,source altroot tank"), format!("{root}\tlocal\n"));
    w.ok("zfs destroy -r tank/c");
    w.ok("zpool export tank");
    w.ok("zpool import -d . -N tank");
    assert_eq!(w.ok("zfs mount"), "");
    w.ok("zfs mount tank");
    assert_eq!(std::fs::read(w.path("tank/hello")).unwrap(), b"hello");
    w.ok("zpool destroy tank");
}

#[test]
fn an_ordinary_user_has_a_pool_of_their_own() {
    let setpriv = Command::new("setpriv").arg("--version").output().is_ok();
    if host::effective_uid() != 0 || !setpriv || !can_mount("mounting as an ordinary user") {
        eprintln!("NOT RUN: an ordinary user's pool (needs root and setpriv)");
        return;
    }
    const NOBODY: u32 = 65534;
    let w = World::new("cli-user");
    let program = w.dir.join("weir");
    std::fs::copy(WEIR, &program).unwrap();
    std::os::unix::fs::chown(w.dir.path(), Some(NOBODY), Some(NOBODY)).unwrap();
    let as_user = |line: &str| {
        let mut c = w.command("setpriv");
        c.args(["--reuid=65534", "--regid=65534", "--clear-groups"]).arg(&program);
        // Neither is set: the socket goes to a folder in /tmp that is closed to others.
        c.env_remove("WEIR_RUNTIME_DIR").env_remove("XDG_RUNTIME_DIR").args(line.split_whitespace());
        outcome_of(c.output().unwrap())
    };
    struct Stop<'a>(&'a dyn Fn(&str) -> Outcome);
    impl Drop for Stop<'_> {
        fn drop(&mut self) {
            (self.0)("daemon stop -f");
        }
    }
    let _stop = Stop(&as_user);
    let at = w.path("mnt");
    let s = as_user(&format!("zpool create -m {at} --size 128M mine a.img"));
    assert_eq!(s.code, 0, "{}{}", s.out, s.err);
    let info = std::fs::metadata(PathBuf::from("/tmp/weir-65534")).unwrap();
    assert_eq!((info.uid(), info.mode() & 0o777), (NOBODY, 0o700));
    assert_eq!(as_user(&format!("zfs list -H -o name {at}")).out, "mine\n");
    // Only the user sees into the mount, so the owner is asked for as that user.
    let mut stat = Command::new("setpriv");
    stat.args(["--reuid=65534", "--regid=65534", "--clear-groups", "stat", "-c", "%u:%g", &at]);
    assert_eq!(outcome_of(stat.output().unwrap()).out, "65534:65534\n");
    assert_eq!(as_user("zpool export mine").code, 0);
    let s = as_user("zpool create --size 128M theirs b.img");
    assert!(s.code == 1 && s.err.contains("mount point '/theirs'"), "{}{}", s.out, s.err);
    assert!(!w.dir.join("b.img").exists());
}

/// A pool of the kernel module has the same listing.
#[test]
fn real_pools_are_listed_as_the_kernel_lists_them() {
    let w = World::new("cli-real");
    let fixture = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/pools/grown.tar.zst");
    let tar = Command::new("tar").arg("--zstd").arg("-xf").arg(&fixture).current_dir(w.dir.path()).output();
    if !tar.is_ok_and(|o| o.status.success()) {
        eprintln!("NOT RUN: listing a real pool: tar cannot unpack {}", fixture.display());
        return;
    }
    let told = |name: &str| std::fs::read_to_string(w.dir.join("grown").join(name)).unwrap();
    w.ok("zpool import -N -R /mnt -o readonly=on -d grown gr");
    // That kernel had no more features than the pool.
    let status = w.ok("zpool status");
    let (before, told_of) = status.split_once("status: Some supported and requested features").unwrap();
    let (_, config) = told_of.split_once("config:").unwrap();
    let both = format!("{before}config:{config}\n{}", w.ok("zpool list -v"));
    assert!(told("zpool.txt").starts_with(&both), "{both}");
    let list = w.ok("zfs list -t all -o name,type,used,avail,refer,lrefer,ratio,creation,origin,mountpoint");
    assert_eq!(list, told("zfs-list.txt"));
    // The kernel's listing is from before the last txgs, which changed the MOS.
    // Those of the second list are newer than that kernel, and so are default quotas.
    let changing = ["available", "mounted", "used", "usedbychildren", "logicalused"];
    let changing = changing.into_iter().chain(["longname", "prefetch", "direct", "volthreading"]).collect::<Vec<_>>();
    let stable = |text: &str| {
        let changes = |p: &str| changing.contains(&p) || dsl::props::is_default_quota(p);
        let fits = |l: &&str| !l.split('\t').nth(1).is_some_and(changes);
        text.lines().filter(fits).map(str::to_string).collect::<Vec<_>>()
    };
    // Defaults that changed with 2.2 and 2.3.
    let theirs = told("zfs-get.tsv")
        .replace("compression\toff\tdefault", "compression\ton\tdefault")
        .replace("relatime\toff\tdefault", "relatime\ton\tdefault")
        .replace("xattr\ton\tdefault", "xattr\tsa\tdefault");
    let (ours, theirs) = (stable(&w.ok("zfs get -Hp -t all all")), stable(&theirs));
    for (a, b) in ours.iter().zip(&theirs) {
        assert_eq!(a, b);
    }
    assert_eq!(ours.len(), theirs.len());
    let get = w.ok("zpool get all");
    let known = told("zpool.txt");
    // These are newer than that kernel.
    let newer =
        ["blake3", "head_errlog", "vdev_zaps_v2", "zilsaxattr", "dynamic_gang_header", "longname", "large_microzap"];
    let newer = newer.into_iter().chain(["block_cloning", "bclone", "raidz_expansion", "fast_dedup", "dedup_table"]);
    let newer = newer.chain(["physical_rewrite", "last_scrubbed", "redaction_list_spill"]);
    let differs = |l: &str| ["load_guid", "readonly"].into_iter().chain(newer.clone()).any(|name| l.contains(name));
    for line in get.lines().filter(|l| !differs(l)) {
        assert!(known.lines().any(|k| k == line), "{line}");
    }
}

#[test]
fn the_tour_checks_itself() {
    let w = World::new("cli-tour");
    let tree = w.dir.join("tree");
    std::fs::create_dir_all(tree.join("sub")).unwrap();
    std::fs::write(tree.join("sub/text"), "the same words ".repeat(10_000)).unwrap();
    std::os::unix::fs::symlink("text", tree.join("sub/link")).unwrap();
    let mut ways = vec!["quickstart --dir . --tree tree --no-mount"];
    if can_mount("the tour with a mount") {
        ways.push("quickstart --dir . --tree tree");
    }
    for line in ways {
        let out = w.ok(line);
        assert!(out.contains("compression ratio: ") && out.contains("Distribution"), "{out}");
        assert!(out.contains("Everything is as it should be"), "{out}");
        assert_eq!(w.files(), ["tree"]);
    }
}

#[test]
fn snapshots_clones_and_bookmarks() {
    let w = World::new("cli-snap");
    w.pool();
    w.ok("zfs create tank/a");
    w.ok("zfs create tank/a/b");
    w.ok("zfs snapshot -r -o org.me:why=test tank/a@one");
    w.fails("zfs snapshot tank/a@one", 1, "dataset already exists");
    w.fails("zfs snapshot tank/a@x/y", 1, "character '/'");
    w.ok("zfs snapshot tank/a@two tank/a/b@two");
    assert_eq!(w.ok("zfs list -H -t snapshot -o name -r tank"), "tank/a@one\ntank/a@two\ntank/a/b@one\ntank/a/b@two\n");
    assert_eq!(w.ok("zfs list -H -o name,used -t snap -d 1 tank/a").lines().count(), 2);
    assert_eq!(w.ok("zfs get -H -o value,source org.me:why tank/a@one"), "test\tlocal\n");
    assert_eq!(w.ok("zfs get -Hp -o value written@one,written tank/a"), "0\n0\n");
    w.ok("zfs clone -o compression=lz4 tank/a@one tank/c");
    assert_eq!(w.ok("zfs get -H -o value origin,compression tank/c"), "tank/a@one\nlz4\n");
    assert_eq!(w.ok("zfs get -H -o value clones tank/a@one"), "tank/c\n");
    w.fails("zfs destroy tank/a@one", 1, "snapshot has dependent clones\nuse '-R'");
    w.ok("zfs promote tank/c");
    assert_eq!(w.ok("zfs get -H -o value origin tank/a tank/c"), "tank/c@one\n-\n");
    w.ok("zfs promote tank/a");
    w.ok("zfs hold keep tank/a@two");
    assert!(w.ok("zfs holds -r tank/a@two").contains("tank/a@two  keep"));
    assert_eq!(w.ok("zfs get -H -o value userrefs tank/a@two"), "1\n");
    w.fails("zfs destroy tank/a@two", 1, "held");
    w.ok("zfs destroy -d tank/a@two");
    assert_eq!(w.ok("zfs get -H -o value defer_destroy tank/a@two"), "on\n");
    w.ok("zfs release keep tank/a@two");
    w.fails("zfs list tank/a@two", 1, "does not exist");
    w.ok("zfs bookmark tank/a@one #mark");
    assert_eq!(w.ok("zfs list -H -t bookmark -o name,used -r tank"), "tank/a#mark\t-\n");
    w.ok("zfs destroy tank/a#mark");
    w.ok("zfs rename -r tank/a@one @first");
    assert_eq!(w.ok("zfs list -H -t snap -o name -d 1 tank/a"), "tank/a@first\n");
    for n in 1..6 {
        w.ok(&format!("zfs snapshot tank/a@s{n}"));
    }
    let text = w.ok("zfs destroy -nv tank/a@s2%s4,s1");
    assert!(text.starts_with("would destroy tank/a@s1\nwould destroy tank/a@s2\n"), "{text}");
    assert!(text.ends_with("would reclaim 0B\n"), "{text}");
    assert!(w.ok("zfs destroy -np tank/a@s2%s4").ends_with("reclaim\t0\n"));
    w.ok("zfs destroy tank/a@s2%s4");
    w.fails("zfs rollback tank/a@s1", 1, "snapshots and bookmarks:\ntank/a@s5");
    w.ok("zfs rollback -r tank/a@s1");
    w.fails("zfs destroy -r tank/a", 1, "dependent clones");
    w.ok("zfs set refreservation=8M tank/a");
    assert_eq!(w.ok("zfs get -Hp -o value refreservation tank/a"), format!("{}\n", 8 << 20));
    w.ok("zfs destroy -R tank/a");
    assert_eq!(w.ok("zfs list -H -o name -t all"), "tank\n");
    w.ok("zpool sync");
    w.ok("zpool export tank");
    judge(&w, "tank");
}

#[test]
fn snapshots_are_folders_of_the_mount() {
    if !can_mount("snapshots_are_folders_of_the_mount") {
        return;
    }
    let w = World::new("cli-dotzfs");
    let place = w.path("place");
    w.ok(&format!("{CREATE} -O mountpoint={place} --size 128M tank a.img"));
    std::fs::write(w.dir.join("place/file"), b"before").unwrap();
    w.ok("zfs snapshot tank@one");
    std::fs::write(w.dir.join("place/file"), b"after that").unwrap();
    let snap = w.dir.join("place/.zfs/snapshot/one");
    assert_eq!(std::fs::read(snap.join("file")).unwrap(), b"before");
    assert!(std::fs::write(snap.join("file"), b"x").is_err());
    assert!(std::fs::create_dir(w.dir.join("place/.zfs/x")).is_err());
    let names = |dir: &Path| {
        let list = std::fs::read_dir(dir).unwrap();
        let mut names: Vec<String> = list.map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    };
    assert_eq!(names(&w.dir.join("place/.zfs/snapshot")), ["one"]);
    assert_eq!(names(&w.dir.join("place/.zfs")), ["snapshot"]);
    assert_eq!(names(&snap), ["file"]);
    assert_eq!(names(&w.dir.join("place")), ["file"]);
    w.ok("zfs set snapdir=visible tank");
    assert_eq!(names(&w.dir.join("place")), [".zfs", "file"]);
    w.ok("zfs rollback tank@one");
    assert_eq!(std::fs::read(w.dir.join("place/file")).unwrap(), b"before");
    assert!(snap.join("file").exists());
    w.ok("zfs clone tank@one tank/copy");
    assert_eq!(std::fs::read(w.dir.join("place/copy/file")).unwrap(), b"before");
    w.ok("zfs destroy tank/copy");
    w.ok("zfs clone -u tank@one tank/copy");
    assert_eq!(w.ok("zfs get -H -o value mounted tank/copy"), "no\n");
    w.ok("zfs mount tank/copy");
    assert_eq!(std::fs::read(w.dir.join("place/copy/file")).unwrap(), b"before");
    w.ok("zfs destroy tank/copy");
    w.ok("zfs destroy tank@one");
    assert!(std::fs::read(w.dir.join("place/.zfs/snapshot/one/file")).is_err());
    w.ok("zpool export tank");
    judge(&w, "tank");
}

/// Pools of other releases: listed, refused by name, and unchanged.
#[test]
fn pools_with_features_of_others_are_listed_and_refused() {
    let w = World::new("features");
    w.pool();
    w.ok("zpool export tank");
    let images = ["a.img", "b.img"].map(|n| w.dir.join(n));
    for image in &images {
        let mut bytes = std::fs::read(image).unwrap();
        for label in ondisk::label::label_offsets(bytes.len() as u64) {
            let at = ondisk::label::config_offset(label);
            let region = &mut bytes[at as usize..][..ondisk::label::CONFIG_SIZE];
            let mut config =
                ondisk::label::LabelConfig::from_nvlist(&ondisk::label::parse_config(region, at).unwrap()).unwrap();
            config.features_for_read.push("com.seagate:draid_failure_domains".into());
            region.copy_from_slice(&ondisk::label::seal_config(&config.to_nvlist(), at).unwrap());
        }
        std::fs::write(image, bytes).unwrap();
    }
    let before = images.each_ref().map(|i| std::fs::read(i).unwrap());
    let listed = w.ok("zpool import -d .");
    let want = "  state: UNAVAIL\n status: The pool uses the following feature(s) not supported on this system:\n\tcom.seagate:draid_failure_domains\n action: The pool cannot be imported. ";
    assert!(listed.contains(want), "{listed}");
    assert!(listed.contains("UNAVAIL  unsupported feature(s)\n"), "{listed}");
    let why = "cannot import 'tank': the pool uses com.seagate:draid_failure_domains, which weir cannot read: import it with the software that wrote it";
    for how in ["", "-f", "-F", "-Fn", "-o readonly=on"] {
        w.fails(&format!("zpool import -d . {how} tank"), 1, why);
    }
    assert!(images.each_ref().map(|i| std::fs::read(i).unwrap()) == before, "the devices were written");
}

/// The probes in the program, as `readelf` shows them: name and number of arguments. None if there
/// is no readelf.
fn probes() -> Option<std::collections::BTreeMap<String, usize>> {
    let out = Command::new("readelf").args(["-n", WEIR]).output().ok()?;
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    let mut found = std::collections::BTreeMap::new();
    let mut lines = text.lines().map(str::trim);
    while let Some(line) = lines.next() {
        if line != "Provider: weir" {
            continue;
        }
        let name = lines.next().unwrap().strip_prefix("Name: ").unwrap().to_string();
        let place = lines.next().unwrap();
        let semaphore = place.rsplit("Semaphore: ").next().unwrap();
        assert_ne!(u64::from_str_radix(semaphore.trim_start_matches("0x"), 16).unwrap(), 0, "{name}: {place}");
        let arguments = lines.next().unwrap().strip_prefix("Arguments: ").unwrap().split_whitespace().count();
        assert_eq!(found.insert(name.clone(), arguments), None, "{name} is there once");
    }
    Some(found)
}

#[test]
fn scripts_name_probes_that_the_program_has() {
    if !cfg!(all(target_os = "linux", target_arch = "x86_64")) {
        return;
    }
    let Some(found) = probes() else {
        eprintln!("NOT CHECKED: readelf is missing (binutils)");
        return;
    };
    let all = [("admin", 3), ("admitted", 4), ("damaged", 6), ("done", 8), ("fault", 7), ("flushed", 4), ("issued", 9)];
    let all = all.into_iter().chain([("log", 9), ("op", 8), ("turn", 6), ("txg", 6)]);
    assert_eq!(found, all.map(|(n, a)| (n.to_string(), a)).collect());
    let scripts = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../contrib/bpftrace");
    let mut seen = 0;
    for entry in std::fs::read_dir(scripts).unwrap() {
        let text = std::fs::read_to_string(entry.unwrap().path()).unwrap();
        for part in text.split("usdt:/usr/bin/weir:weir:").skip(1) {
            let name: String = part.chars().take_while(|c| c.is_ascii_alphanumeric()).collect();
            let arguments = *found.get(&name).unwrap_or_else(|| panic!("{name} is no probe"));
            let block = part.split("\n}").next().unwrap();
            for used in block.split("arg").skip(1) {
                let n: String = used.chars().take_while(char::is_ascii_digit).collect();
                // bpftrace sees six on x86-64.
                assert!(n.parse::<usize>().unwrap() < arguments.min(6), "{name} has no arg{n}");
                seen += 1;
            }
        }
    }
    assert!(seen > 20, "{seen}");
}
