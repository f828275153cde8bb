//! ACLs from outside: those of snapshots, a change of `acltype` under a mount, and the warning
//! where ACLs are not evaluated.
#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use std::fs::{self, File, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use common::outcome_of;
use common::world::World;

/// Two users that own nothing.
const ONE: u32 = 12345;
const OTHER: u32 = 12346;

/// A world that other users may enter, if the tools for ACLs are installed.
fn world(tag: &str) -> Option<World> {
    let w = World::of_root(tag)?;
    if ["setfacl", "getfacl", "setpriv"].iter().any(|p| Command::new(p).arg("--version").output().is_err()) {
        eprintln!("NOT RUN: {tag}: needs setfacl, getfacl and setpriv");
        return None;
    }
    fs::set_permissions(w.dir.path(), Permissions::from_mode(0o755)).unwrap();
    Some(w)
}

/// A command that must succeed, in a folder.
fn sh(dir: &str, script: &str) -> String {
    let s = outcome_of(Command::new("sh").args(["-ec", script]).current_dir(dir).output().unwrap());
    assert_eq!(s.code, 0, "{script}: {}{}", s.out, s.err);
    s.out
}

/// Whether a user can do something.
fn can(user: u32, program: &str, path: &str) -> bool {
    let mut c = Command::new("setpriv");
    c.args([format!("--reuid={user}"), format!("--regid={user}"), "--clear-groups".into()]).args([program, path]);
    outcome_of(c.output().unwrap()).code == 0
}

#[test]
fn snapshots_have_the_acls_of_their_time() {
    let Some(w) = world("acls-snap") else { return };
    let at = w.path("m");
    w.ok(&format!("zpool create --size 128M -O acltype=posix -O xattr=sa -m {at} tank a.img"));
    w.ok("zfs create -o xattr=on tank/dir");
    let show = "getfacl -cpnR . | grep -v '^$'; stat -c %a .";
    for fs in ["tank", "tank/dir"] {
        let live = if fs == "tank" { at.clone() } else { format!("{at}/dir") };
        let old = format!("{live}/.zfs/snapshot/s");
        sh(&live, "mkdir d; echo old > d/f; chmod 700 d; chmod 600 d/f");
        sh(
            &live,
            &format!("setfacl -m u:{ONE}:rx d; setfacl -d -m u:{ONE}:rw d; setfacl -m u:{ONE}:r d/f; echo x > d/g"),
        );
        let before = sh(&format!("{live}/d"), show);
        w.ok(&format!("zfs snapshot {fs}@s"));
        sh(
            &live,
            &format!("setfacl -bk d d/f d/g; setfacl -m u:{OTHER}:rx d; setfacl -m u:{OTHER}:r d/f; echo new > d/f"),
        );
        assert_ne!(sh(&format!("{live}/d"), show), before);
        // Also when it is opened anew.
        for again in [false, true] {
            if again {
                w.ok("zpool export tank");
                w.ok("zpool import -d . tank");
            }
            assert_eq!(sh(&format!("{old}/d"), show), before, "{fs}");
            assert!(before.contains(&format!("user:{ONE}:r--")), "{before}");
            let may = |user, program, of: &str, name| can(user, program, &format!("{of}/{name}"));
            for (user, in_old) in [(ONE, true), (OTHER, false)] {
                assert_eq!(may(user, "cat", &old, "d/f"), in_old, "{fs}: {user} in the snapshot");
                assert_eq!(may(user, "ls", &old, "d"), in_old, "{fs}: {user} in the snapshot");
                assert_eq!(may(user, "cat", &live, "d/f"), !in_old, "{fs}: {user} now");
                assert_eq!(may(user, "ls", &live, "d"), !in_old, "{fs}: {user} now");
            }
            let set = Command::new("setfacl").args(["-m", "u:1:r", &format!("{old}/d/f")]).output().unwrap();
            assert!(outcome_of(set).err.contains("Read-only file system"));
        }
    }
    w.ok("zpool destroy tank");
}

#[test]
fn a_mount_takes_a_new_acltype() {
    let Some(w) = world("acls-set") else { return };
    let at = w.path("m");
    w.ok(&format!("zpool create --size 128M -O xattr=sa -m {at} tank a.img"));
    w.ok("zfs create tank/child");
    let files = [format!("{at}/f"), format!("{at}/child/f")];
    let try_set = |file: &str| {
        outcome_of(Command::new("setfacl").args(["-m", &format!("u:{ONE}:r"), file]).output().unwrap()).err
    };
    for file in &files {
        fs::write(file, "text").unwrap();
        fs::set_permissions(file, Permissions::from_mode(0o600)).unwrap();
        assert!(try_set(file).contains("Operation not supported"), "{file}");
    }
    // The child inherits it.
    w.ok("zfs set acltype=posix tank");
    for file in &files {
        assert_eq!(try_set(file), "", "{file}");
        assert!(can(ONE, "cat", file) && !can(OTHER, "cat", file), "{file}");
    }
    w.ok("zfs set acltype=off tank/child");
    assert!(can(ONE, "cat", &files[0]));
    // Kept, but neither shown nor evaluated: the group has the permissions of the mask.
    assert!(!can(ONE, "cat", &files[1]));
    assert!(try_set(&files[1]).contains("Operation not supported"));
    w.ok("zfs inherit acltype tank/child");
    assert!(can(ONE, "cat", &files[1]));
    // A mount in use keeps the old value, and the command says so; the next mount has the new one.
    let held = File::open(&files[1]).unwrap();
    w.fails("zfs set acltype=off tank/child", &["the property is set", "mounted anew", "busy"]);
    assert_eq!(w.ok("zfs get -H -o value,source acltype tank/child"), "off\tlocal\n");
    assert!(can(ONE, "cat", &files[1]) && w.is_mounted("tank/child"));
    drop(held);
    w.ok("zfs unmount tank/child");
    w.ok("zfs mount tank/child");
    assert!(!can(ONE, "cat", &files[1]));
    w.ok("zpool destroy tank");
}

#[test]
fn commands_say_where_acls_do_not_count() {
    let Some(w) = World::new("acls-nfsv4") else { return };
    let at = w.path("m");
    // The warning names each file system once, with the consequence and the remedy.
    let warns = |line: &str, names: &[&str]| {
        let s = w.say(line);
        assert_eq!(s.code, 0, "{line}: {}{}", s.out, s.err);
        assert_eq!(s.err.lines().count(), names.len(), "{line}: {}", s.err);
        for name in names {
            let what = format!(
                "warning: '{name}': acltype is nfsv4, and files may have an NFSv4 ACL: only owner, group and mode decide"
            );
            let found =
                s.err.lines().any(|l| l.starts_with(&what) && l.contains("denies access") && l.contains("unmount"));
            assert!(found, "{line}: {}", s.err);
        }
    };
    let (all, root, child): (&[&str], &[&str], &[&str]) = (&["tank", "tank/c"], &["tank"], &["tank/c"]);
    warns(&format!("zpool create --size 128M -O acltype=nfsv4 -m {at} tank a.img"), root);
    warns("zfs create tank/c", child);
    warns("zfs unmount tank/c", &[]);
    warns("zfs mount tank/c", child);
    warns("zfs unmount -a", &[]);
    warns("zfs mount -a", all);
    warns("zfs snapshot tank/c@s", &[]);
    warns("zfs clone tank/c@s tank/d", &["tank/d"]);
    warns("zfs destroy tank/d", &[]);
    warns("zpool export tank", &[]);
    warns("zpool import -d . tank", all);
    warns("zfs set acltype=off tank/c", &[]);
    warns("zfs inherit acltype tank/c", child);
    warns("zfs set compression=off tank", &[]);
    warns("zfs set acltype=posix tank", &[]);
    warns("zfs set acltype=nfsv4 tank", all);
    // An unmounted file system gives no access.
    warns("zfs unmount tank/c", &[]);
    warns("zfs set acltype=off tank", &[]);
    warns("zfs set acltype=nfsv4 tank", root);
    assert_eq!(w.ok("zfs get -H -o value,source acltype tank/c"), "nfsv4\tinherited from tank\n");
    warns("zfs create -u tank/later", &[]);
    w.ok("zpool destroy tank");
}
