//! `weir trace record`: what users do in a mount comes out of the file, with its figures.
#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Child, Stdio};

use common::world::World;
use common::{WEIR, outcome_of};
use rt::oplog::{Recording, parse};
use rt::trace::OpKind;

/// Starts a recording of `tank`, and waits until it has begun.
fn begin(w: &World, file: &str) -> Child {
    let mut c = w.command(WEIR);
    c.args(["trace", "record", "-o", file, "tank"]).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = c.spawn().unwrap();
    while fs::metadata(file).map_or(0, |m| m.len()) == 0 {
        assert!(child.try_wait().unwrap().is_none(), "it ended before it began");
        std::thread::yield_now();
    }
    child
}

/// Ends it as Ctrl-C does; what it says, and the recording.
fn end(child: Child, file: &str) -> (String, Recording) {
    let pid = child.id().to_string();
    assert!(std::process::Command::new("kill").args(["-INT", &pid]).status().unwrap().success());
    let out = outcome_of(child.wait_with_output().unwrap());
    assert_eq!(out.code, 0, "{}{}", out.out, out.err);
    (out.out, parse(&fs::read(file).unwrap()).unwrap())
}

#[test]
fn operations_of_users_are_recorded_without_names_and_contents() {
    let Some(w) = World::new("cli-recording") else { return };
    w.ok(&format!("zpool create --size 256M -O recordsize=8k -O atime=off -m {} tank mirror a.img b.img", w.path("m")));
    w.ok("zfs create -o compression=zstd-3 tank/below");
    fs::write(w.path("m/before"), vec![7; 300_000]).unwrap();
    let file = w.path("ops");
    let child = begin(&w, &file);
    let made = OpenOptions::new().create(true).truncate(true).write(true).open(w.path("m/a-secret-name")).unwrap();
    for n in 0..20u64 {
        made.write_all_at(b"secret contents, over and over again", n * 4096).unwrap();
    }
    made.sync_all().unwrap();
    drop(made);
    let old = fs::File::open(w.path("m/before")).unwrap();
    // Its pages are not in the kernel's cache: a file that is only written goes past it.
    old.read_exact_at(&mut [0; 1000], 4096).unwrap();
    fs::create_dir(w.path("m/below/dir")).unwrap();
    fs::remove_file(w.path("m/a-secret-name")).unwrap();
    let (said, r) = end(child, &file);
    assert!(said.contains(" operations in ") && !said.contains("lost"), "{said}");
    assert!(r.is_complete() && r.lost == 0);
    let of = |kind| r.ops.iter().filter(move |o| o.op.kind == kind);
    let created = of(OpKind::Create).next().unwrap().op;
    assert!(created.ok && created.client != 0 && created.target != 0 && created.took.0 > 0, "{created:?}");
    let writes: Vec<_> = of(OpKind::Write).map(|o| (o.op.object, o.op.offset, o.op.len, o.op.ok)).collect();
    let want: Vec<_> = (0..20).map(|n| (created.target, n * 4096, 36, true)).collect();
    assert_eq!(writes, want);
    assert!(of(OpKind::Read).any(|o| o.op.object != created.target && o.op.offset <= 4096 && o.op.ok));
    assert!(of(OpKind::Fsync).any(|o| o.op.object == created.target && o.op.ok));
    assert!(of(OpKind::Remove).any(|o| o.op.object == created.object && o.op.dataset == created.dataset));
    let dir = of(OpKind::MakeDir).next().unwrap().op;
    assert_ne!(dir.dataset, created.dataset);
    assert!(r.ops.windows(2).all(|two| two[0].end <= two[1].end));
    assert!(r.ops.iter().all(|o| o.end <= r.span.unwrap()));
    // About the pool.
    let id = created.dataset;
    assert_eq!(r.header.get("layout"), Some("mirror:2"));
    assert_eq!(r.header.get(&format!("dataset.{id}.recordsize")), Some("8192"));
    assert_eq!(r.header.get(&format!("dataset.{}.compression", dir.dataset)), Some("zstd-3"));
    assert!(r.header.get("tunable.zfs_dirty_data_max").is_some_and(|v| v.parse::<u64>().is_ok_and(|n| n > 0)));
    let bytes = fs::read(&file).unwrap();
    // In virtual time, twice the same.
    let replay = |more: &str| w.ok(&format!("lab replay {file} {more}"));
    let json = replay("--json --layout single --model fixed:100:1000");
    assert_eq!(json, replay("--json --layout single --model fixed:100:1000"));
    assert!(json.contains("\"failed\":0,") && json.contains("\"complete\":true"), "{json}");
    assert!(json.contains("{\"kind\":\"write\",\"count\":20,"), "{json}");
    let table = replay("--tunable zfs_dirty_data_max=64M");
    assert!(table.contains("operations on nvme, seed 0") && table.contains("\nwrite            20 "), "{table}");
    w.fails(&format!("lab replay {file} --tunable zfs_no=1"), &["zfs_no"]);
    w.fails(&format!("lab replay {file} --layout raidz9:2"), &["'raidz9:2' is no vdev of a layout"]);
    fs::write(w.path("junk"), "no recording at all").unwrap();
    w.fails(&format!("lab replay {}", w.path("junk")), &["damaged at byte 0"]);
    for secret in ["secret", "before", "below", "tank"] {
        assert!(!bytes.windows(secret.len()).any(|w| w == secret.as_bytes()), "{secret}");
    }
}

#[test]
fn a_recording_ends_by_itself_and_mistakes_have_a_sentence() {
    let Some(w) = World::new("cli-recording-end") else { return };
    w.ok(&format!("zpool create --size 256M -m {} tank a.img", w.path("m")));
    let file = w.path("ops");
    w.ok(&format!("trace record -o {file} -s 1 tank"));
    let r = parse(&fs::read(&file).unwrap()).unwrap();
    assert!(r.span.is_some_and(|s| s.0 >= 1_000_000_000), "{:?}", r.span);
    w.fails(&format!("trace record -o {file} -s 1 none"), &["none"]);
    w.fails(&format!("trace record -o {file} -s 100000 tank"), &["1 to 86400 seconds"]);
    w.fails("trace record -o /no/such/folder/ops -s 1 tank", &["cannot write '/no/such/folder/ops'"]);
    assert!(parse(&fs::read(&file).unwrap()).is_ok(), "a refused recording leaves the old file");
    for line in ["trace record tank", "trace record -o x", "trace record -o x -s 0 tank"] {
        assert_eq!(w.say(line).code, 2, "{line}");
    }
    assert!(!Path::new(&w.path("x")).exists());
}
