//! What users, groups and projects use and may use: `zfs userspace` and its like, `userquota@` and
//! its like, `zfs project`.
#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use std::fs;
use std::os::unix::fs::chown;
use std::process::Command;

use common::ALONE;
use common::world::World;

/// Owners that have no names.
const USER: u32 = 54_321;
const GROUP: u32 = 54_322;

fn value(w: &World, prop: &str, of: &str) -> String {
    w.ok(&format!("zfs get -Hp -o value {prop} {of}")).trim().to_string()
}

#[test]
fn limits_are_set_and_shown_without_a_mount() {
    let w = World::without_mounts("owners");
    w.ok("zpool create -o compatibility=openzfs-2.1-linux -O mountpoint=none --size 128M tank a.img");
    w.ok("zfs create -o userquota@root=7M -o groupobjquota@54322=9 tank/fs");
    assert_eq!(value(&w, "userquota@root", "tank/fs"), (7 << 20).to_string());
    assert_eq!(w.ok("zfs get -H userquota@0 tank/fs"), "tank/fs\tuserquota@0\t7M\tlocal\n");
    assert_eq!(w.ok("zfs list -H -o name,groupobjquota@54322 tank/fs"), "tank/fs\t9\n");
    w.ok("zfs set userquota@54321=1G userobjquota@54321=10 tank/fs");
    w.ok("zfs snapshot tank/fs@s");
    w.ok("zfs set userquota@root=none tank/fs");
    assert_eq!(w.ok("zfs get -H -o value userquota@root tank/fs"), "none\n");
    assert_eq!(w.ok("zfs get -H -o value userquota@root tank/fs@s"), "7M\n");
    // One that does not exist has no value, but cannot get one.
    assert_eq!(w.ok("zfs get -H -o value userquota@no-such tank/fs"), "-\n");
    assert!(!w.ok("zfs get all tank/fs").contains("quota@"));
    for (line, what) in [
        ("zfs set userquota@no-such=1M tank/fs", "invalid user/group name"),
        ("zfs set userquota@54321=1Mfs tank/fs", "not a size"),
        ("zfs set userquota@54321=0 tank/fs", "use 'none'"),
        ("zfs set userused@54321=1M tank/fs", "readonly"),
        ("zfs set userquota@54321=1M tank/fs@s", "cannot be set for snapshots"),
        ("zfs create -V 16M -o userquota@54321=1M tank/vol", "do not apply"),
        ("zfs set projectquota@4294967295=1M tank/fs", "not the number of a project"),
    ] {
        w.fails(line, &[what]);
    }
    w.fails("zfs create -o userquota@54321=x tank/none", &["not a size"]);
    w.fails("zfs list tank/none", &["does not exist"]);

    let lines = w.ok("zfs userspace -n tank/fs");
    let want = "TYPE        NAME   USED  QUOTA  OBJUSED  OBJQUOTA\n";
    assert!(
        lines.starts_with(want) && lines.contains("\nPOSIX User  54321    0B     1G        0        10\n"),
        "{lines}"
    );
    let snap = w.ok("zfs userspace -Hp -o name,quota -S quota tank/fs@s");
    assert_eq!(snap, format!("54321\t{}\nroot\t{}\n", 1 << 30, 7 << 20));
    assert_eq!(w.ok("zfs groupspace -H -o type,name,objquota -s name -t posixgroup tank/fs").lines().count(), 2);
    assert_eq!(w.ok("zfs userspace -H -o type -t all tank/fs").matches("POSIX Group").count(), 2);
    let line = w.ok("zfs projectspace -H tank/fs");
    assert!(line.starts_with("Project\t0\t"), "{line}");
    for bad in [
        "zfs userspace",
        "zfs userspace -o size tank/fs",
        "zfs userspace -t smb tank/fs",
        "zfs projectspace -n tank/fs",
    ] {
        assert_eq!(w.say(bad).code, 2, "{bad}");
    }
    // Limits of those that have none of their own, which the file system keeps.
    w.ok("zfs set defaultuserquota=9M defaultprojectobjquota=2K atime=off tank/fs");
    w.ok("zfs create -o defaultgroupquota=1G tank/new");
    assert_eq!(w.ok("zfs get -H defaultuserquota tank/fs"), "tank/fs\tdefaultuserquota\t9M\t-\n");
    assert_eq!(value(&w, "defaultgroupquota", "tank/new"), (1 << 30).to_string());
    assert_eq!(w.ok("zfs get -H -o value defaultuserquota,defaultgroupquota tank/fs@s tank"), "0\n0\n0\n0\n");
    assert!(w.ok("zfs get all tank/fs").contains("defaultprojectobjquota  2K "));
    assert_eq!(w.ok("zfs get -H -o value userquota@root tank/fs"), "none\n");
    assert_eq!(w.ok("zfs userspace -Hp -o name,quota tank/fs"), format!("54321\t{}\nroot\t{}\n", 1 << 30, 9 << 20));
    // A new file system has those of its parent.
    w.ok("zfs create -o defaultprojectobjquota=none -o defaultgroupquota=2M tank/fs/below");
    let line = "zfs get -H -o value defaultuserquota,defaultprojectobjquota,defaultgroupquota tank/fs/below";
    assert_eq!(w.ok(line), "9M\n0\n2M\n");
    w.ok("zfs destroy tank/fs/below");
    for (line, what) in [
        ("zfs set defaultuserquota=1M tank/fs@s", "can not be modified for snapshots"),
        ("zfs set defaultuserquota=much tank/fs", "not a size"),
        ("zfs inherit defaultuserquota tank/fs", "cannot be inherited"),
        ("zfs clone -o defaultuserquota=1M tank/fs@s tank/clone", "'zfs set' and 'zfs create' only"),
        ("zfs create -V 16M -o defaultuserquota=1M tank/vol", "do not apply"),
    ] {
        w.fails(line, &[what]);
    }
    w.ok("zfs set defaultuserquota=none tank/fs");
    assert_eq!(value(&w, "defaultuserquota", "tank/fs"), "0");
    // OpenZFS reads the same.
    w.ok("zpool export tank");
    let zdb = Command::new("zdb").args(ALONE).args(["-e", "-p"]).arg(w.dir.path()).args(["-bcc", "tank"]).output();
    if let Ok(o) = zdb {
        assert!(o.status.success(), "{}", String::from_utf8_lossy(&o.stdout));
    }
    w.ok(&format!("zpool import -d {} tank", w.path("")));
    assert_eq!(value(&w, "userobjquota@54321", "tank/fs"), "10");
    assert_eq!(value(&w, "defaultprojectobjquota", "tank/fs"), "2048");
}

#[test]
fn files_count_for_their_owners_and_projects() {
    let Some(w) = World::of_root("owners-files") else { return };
    let mnt = w.path("mnt");
    w.ok(&format!("zpool create -O mountpoint={mnt} -O compression=off --size 256M tank a.img"));
    fs::create_dir(format!("{mnt}/d")).unwrap();
    fs::write(format!("{mnt}/d/f"), vec![1; 1 << 20]).unwrap();
    chown(format!("{mnt}/d/f"), Some(USER), Some(GROUP)).unwrap();
    w.ok("zpool sync tank");
    let used: u64 = value(&w, &format!("userused@{USER}"), "tank").parse().unwrap();
    assert!((1 << 20..1 << 21).contains(&used), "{used}");
    assert_eq!(value(&w, &format!("groupobjused@{GROUP}"), "tank"), "1");
    assert_eq!(value(&w, &format!("groupused@{GROUP}"), "tank"), used.to_string());
    let line = w.ok(&format!("zfs userspace -Hpn -o name,used,objused {mnt}/d"));
    assert!(line.contains(&format!("{USER}\t{used}\t1\n")), "{line}");

    assert_eq!(w.ok(&format!("zfs project {mnt}/d")), format!("    0 - {mnt}/d\n    0 - {mnt}/d/f\n"));
    w.ok(&format!("zfs project -s -p 77 {mnt}/d"));
    let wrong = "project ID is not set properly (0/77)";
    let flag = "project inherit flag is not set";
    let got = w.ok(&format!("zfs project -c -r {mnt}/d"));
    assert_eq!(got, format!("{mnt}/d/f - {wrong}\n{mnt}/d/f - {flag}\n"));
    assert_eq!(w.ok(&format!("zfs project -c -0 {mnt}/d")), format!("{mnt}/d/f\0"));
    w.ok(&format!("zfs project -r -s {mnt}/d"));
    assert_eq!(w.ok(&format!("zfs project -c -r {mnt}/d")), "");
    w.ok("zpool sync tank");
    assert_eq!(value(&w, "projectobjused@77", "tank"), "2");
    w.ok(&format!("zfs project -C -k -r {mnt}/d"));
    assert_eq!(w.ok(&format!("zfs project -d {mnt}/d")), format!("   77 - {mnt}/d\n"));
    w.ok(&format!("zfs project -C -r {mnt}/d"));
    w.ok("zpool sync tank");
    assert_eq!(value(&w, "projectobjused@77", "tank"), "0");
    assert_eq!(w.say(&format!("zfs project -d {mnt}/d/f")).code, 1);
    assert_eq!(w.say(&format!("zfs project {mnt}/none")).code, 1);

    // The limit of a project holds for the next file.
    w.ok("zfs set projectobjquota@77=1 tank");
    w.ok(&format!("zfs project -s -p 77 {mnt}/d"));
    w.ok("zpool sync tank");
    let e = fs::write(format!("{mnt}/d/g"), "x").unwrap_err();
    assert_eq!(e.kind(), std::io::ErrorKind::QuotaExceeded, "{e}");
}
