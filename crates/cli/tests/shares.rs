//! Shares by NFS and SMB: the file and the programs of a system that is a folder.
#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use common::world::World;

/// Puts an `exportfs` and a `net` into the world, which say in a file what they were called with.
fn give_servers(w: &World) {
    let root = w.path("share-root");
    let shares = format!("{root}/var/lib/samba/usershares");
    fs::create_dir_all(&shares).unwrap();
    for name in ["usr/sbin/exportfs", "usr/bin/net"] {
        let program = format!("{root}/{name}");
        fs::create_dir_all(Path::new(&program).parent().unwrap()).unwrap();
        let text = format!(
            "#!/bin/sh\necho \"$*\" >> {root}/log\ncase $4 in add) printf 'path=%s\\n' \"$6\" > {shares}/\"$5\";; \
             delete) rm {shares}/\"$5\";; esac\n"
        );
        fs::write(&program, text).unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    }
}

/// The places that are shared by NFS, each with its hosts and the first words in the brackets.
fn exported(w: &World) -> Vec<String> {
    let text = fs::read_to_string(w.path("share-root/etc/exports.d/zfs.exports")).unwrap_or_default();
    let lines = text.lines().filter(|l| !l.starts_with('#'));
    let mut all: Vec<String> = lines.map(|l| l.split(",no_subtree").next().unwrap().to_string()).collect();
    all.sort();
    all
}

fn by_smb(w: &World) -> Vec<String> {
    let list = fs::read_dir(w.path("share-root/var/lib/samba/usershares")).unwrap();
    let mut all: Vec<String> = list.map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    all.sort();
    all
}

#[test]
fn what_is_mounted_is_shared_as_its_properties_say() {
    let Some(w) = World::new("shares") else { return };
    give_servers(&w);
    let at = w.path("m");
    let line = |name: &str, how: &str| format!("{at}{name} {how}");
    w.ok(&format!("zpool create --size 128M -m {at} tank a.img"));
    assert_eq!(exported(&w), [""; 0]);
    w.ok("zfs create -o sharenfs=on tank/a");
    w.ok("zfs create tank/a/b");
    w.ok("zfs create -o sharenfs=sec=krb5,ro=10.0.0.0/8:host,rw=*.org -o sharesmb=on tank/a/c-d");
    let three = [
        line("/a *(sec=sys,rw", ""),
        line("/a/b *(sec=sys,rw", ""),
        line("/a/c-d *.org(sec=krb5,rw", ""),
        line("/a/c-d 10.0.0.0/8(sec=krb5,ro", ""),
        line("/a/c-d host(sec=krb5,ro", ""),
    ]
    .map(|l| l.trim_end().to_string());
    assert_eq!((exported(&w).as_slice(), by_smb(&w)), (&three[..], vec!["tank_a_c_d".to_string()]));
    // A change of what is inherited.
    w.ok("zfs set sharenfs=ro tank/a");
    assert_eq!(exported(&w)[..2], [line("/a", "*(sec=sys,ro"), line("/a/b", "*(sec=sys,ro")]);
    // -u leaves the shares.
    w.ok("zfs set -u sharenfs=off tank/a");
    assert_eq!(exported(&w).len(), 5);
    w.ok("zfs set sharenfs=off tank/a");
    assert_eq!(exported(&w), three[2..]);
    // By hand.
    w.ok("zfs unshare tank/a/c-d");
    assert_eq!((exported(&w).len(), by_smb(&w).len()), (0, 0));
    w.fails("zfs unshare tank/a/c-d", &["cannot unshare 'tank/a/c-d': not currently shared"]);
    w.ok("zfs share tank/a/c-d");
    w.fails("zfs share tank/a/c-d", &["cannot share 'tank/a/c-d': filesystem already shared"]);
    w.ok("zfs unshare -a smb");
    assert_eq!((exported(&w).len(), by_smb(&w).len()), (3, 0));
    w.ok("zfs share -a");
    assert_eq!((exported(&w).len(), by_smb(&w).len()), (3, 1));
    w.ok(&format!("zfs unshare {at}/a/c-d"));
    assert_eq!(exported(&w).len(), 0);
    w.ok("zfs share -a");
    // In use it stays mounted, and shared.
    let held = fs::File::open(format!("{at}/a/c-d")).unwrap();
    w.fails("zfs unmount tank/a/c-d", &["busy"]);
    assert_eq!((exported(&w).len(), by_smb(&w).len()), (3, 1));
    drop(held);
    // A new place.
    w.ok("zfs rename tank/a/c-d tank/e");
    assert_eq!(exported(&w)[1], line("/e", "10.0.0.0/8(sec=krb5,ro"));
    assert_eq!(by_smb(&w), ["tank_e"]);
    w.ok("zfs unmount tank/e");
    assert_eq!((exported(&w).len(), by_smb(&w).len()), (0, 0));
    w.ok("zfs share tank/e");
    assert!(w.is_mounted("tank/e"));
    assert_eq!(exported(&w).len(), 3);
    // The pool takes its shares away, and brings them.
    w.ok("zpool export tank");
    assert_eq!((exported(&w).len(), by_smb(&w).len()), (0, 0));
    w.ok(&format!("zpool import -d {} tank", w.path("")));
    assert_eq!((exported(&w).len(), by_smb(&w).len()), (3, 1));
    // What a killed daemon left.
    w.kill_daemon();
    w.ok("zfs set sharenfs=off tank/e");
    assert_eq!(exported(&w).len(), 0);
    w.ok("zfs destroy tank/e");
    assert_eq!(by_smb(&w).len(), 0);
}

#[test]
fn a_system_without_servers_is_a_warning() {
    let Some(w) = World::new("shares-none") else { return };
    let at = w.path("m");
    w.ok(&format!("zpool create --size 128M -m {at} tank a.img"));
    let s = w.say("zfs create -o sharenfs=on tank/a");
    assert_eq!((s.code, s.err.lines().count()), (0, 1), "{}", s.err);
    assert!(
        s.err.starts_with("warning: 'tank/a' is not shared by NFS: ") && s.err.ends_with("install an NFS server\n")
    );
    let s = w.say("zfs set sharesmb=on tank/a");
    assert!(s.code == 0 && s.err.starts_with("warning: 'tank/a' is not shared by SMB: install Samba"), "{}", s.err);
    w.fails("zfs share tank/a", &["cannot share 'tank/a': ", "by NFS", "by SMB"]);
    assert_eq!(w.say("zfs set sharenfs=off tank/a").err, "");
    assert!(!Path::new(&w.path("share-root")).exists());
}
