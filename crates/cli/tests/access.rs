//! Rights of root, of the owner of a daemon and of other users on one machine, inheritance of the
//! environment, and hostile connections.
//!
//! Needs root and setpriv; without them it prints that and passes. The hostile connections are made
//! by this program run again as another user ([`hostile_child`]).
#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use std::io::{Read, Write};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use admin::request::Secret;
use admin::request::{
    AnyRequest, Datasets, DeviceLatency, FsDestroy, FsSet, Holds, LabelClear, LoadKey, Mounted, PoolActivity,
    PoolClear, PoolCreate, PoolDestroy, PoolExport, PoolHistory, PoolIo, PoolSet, Pools, Rollback, Select, Snapshot,
    Stop, TraceStart, TuneSet, Unmount,
};
use daemon::socket::proto::{self, Reply};

use common::loops::Loop;
use common::machine::{Machine, copy_program};
use common::outcome_of;

/// A user with a daemon of their own, and one without.
const USER: u32 = 64_123;
const OTHER: u32 = 64_124;
/// How long an answer may take before it counts as a hang: far more than anything here needs.
const PATIENCE: Duration = Duration::from_secs(120);

/// Requests of every user to root's daemon.
const ALLOWED: &[&str] = &[
    "zpool list",
    "zpool list -v",
    "zpool list -H -p -o name,guid tank",
    "zpool get all tank",
    "zpool get -H -o value guid tank",
    "zpool status",
    "zpool status -v tank",
    "zpool status -x",
    "zpool iostat",
    "zpool iostat -v tank",
    "zpool iostat -w tank",
    "zpool wait -t scrub tank",
    "zfs list",
    "zfs list -r -t all tank",
    "zfs list -t snapshot -o name,used",
    "zfs get all tank/a",
    "zfs get -r mountpoint,used tank",
    "zfs holds tank/a@s",
    "zfs allow tank/a",
    "zfs mount",
    "version",
    // It has everything already.
    "zpool upgrade tank",
    "zpool upgrade -a",
];

/// Requests of the owner only.
const REFUSED: &[&str] = &[
    "zpool destroy tank",
    "zpool destroy -f tank",
    "zpool export tank",
    "zpool export -f tank",
    "zpool export -a",
    "zpool import -d .",
    "zpool import -a -d .",
    "zpool set comment=mine tank",
    "zpool set failmode=panic tank",
    "zpool sync",
    "zpool sync tank",
    "zpool freeze tank",
    "zpool clear tank",
    "zpool split tank two",
    "zpool split -n tank two",
    "zpool reopen",
    "zpool reopen -n tank",
    "zpool reguid tank",
    "zpool reguid -g 7 tank",
    "zpool scrub tank",
    "zpool scrub -s tank",
    "zpool resilver tank",
    "zpool trim tank",
    "zpool initialize tank",
    "zpool checkpoint tank",
    "zpool checkpoint -d tank",
    "zpool ddtprune -p 10 tank",
    "zpool prefetch tank",
    "zpool history tank",
    "zpool history -i tank",
    "zpool events",
    "zpool events -v",
    "zpool events -c",
    "zfs create tank/new",
    "zfs create -o quota=1M tank/a/b",
    "zfs destroy tank/a",
    "zfs destroy -r tank/a",
    "zfs destroy tank/a@s",
    "zfs set compression=off tank",
    "zfs set quota=1M tank/a",
    "zfs set mountpoint=/tmp tank/a",
    "zfs inherit -r compression tank",
    "zfs rename tank/a tank/b",
    "zfs rename tank/a@s tank/a@t",
    "zfs snapshot tank@now",
    "zfs snapshot -r tank@now",
    "zfs rollback tank/a@s",
    "zfs rollback -r tank/a@s",
    "zfs clone tank/a@s tank/c",
    "zfs promote tank/a",
    "zfs hold more tank/a@s",
    "zfs release kept tank/a@s",
    "zfs bookmark tank/a@s tank/a#s",
    "zfs mount tank/a",
    "zfs mount -a",
    "zfs unmount tank/a",
    "zfs unmount -a",
    "zfs unload-key tank/a",
    "zfs load-key -a",
    "zfs allow everyone snapshot tank",
    "zfs allow -c mount tank",
    "zfs unallow everyone tank",
    "zfs send tank/a@s",
    "zfs send -nv tank/a@s",
    "zfs receive tank/r",
    "zfs receive -A tank/a",
    "zfs diff tank/a@s",
    "zfs userspace tank/a",
    "zinject",
    "zinject -a",
    "zinject -d a.img -e io tank",
    "zinject -c all",
    "tune",
    "tune set zfs_txg_timeout=1",
    "tune set tank:zfs_txg_timeout=1",
    "kstat",
    "kstat dbgmsg",
    "trace txg tank",
    "advise -s 1 tank",
    "daemon status",
    "daemon stop",
    "daemon stop -f",
];

#[test]
fn other_users_only_look_at_roots_pools() {
    let Some(m) = Machine::new("access-root", USER, OTHER) else { return };
    m.pool(0);
    let before = m.state(0);
    for user in [USER, OTHER] {
        for line in ALLOWED {
            let (theirs, roots) = (m.ok(user, 0, line), m.ok(0, 0, line));
            if !line.contains("iostat") {
                assert_eq!(theirs, roots, "{line}");
            }
        }
        for line in REFUSED {
            let s = m.say(user, 0, line);
            assert!(
                s.code == 1 && s.err.contains("permission denied"),
                "{user}: {line}: {} {}{}",
                s.code,
                s.out,
                s.err
            );
            assert!(s.out.is_empty(), "{line}: {}", s.out);
        }
    }
    assert_eq!(m.state(0), before);
    // The kernel keeps them away from the owner's socket, log and lock.
    for file in ["weir.sock", "daemon.log", "daemon.lock", "state"] {
        let mode = std::fs::symlink_metadata(m.run_dir(0).join(file)).unwrap().mode();
        assert_eq!(mode & 0o077, 0, "{file}");
    }
    let image = std::fs::metadata(m.dir.join("a.img")).unwrap();
    assert_eq!(image.mode() & 0o777, 0o600);
}

/// Commands, each with all that it needs: permissions and where. Each is done after the ones before
/// it, on the pool of [`Machine::pool`] with a file system `tank/k` that is encrypted.
const DELEGATED: &[(&str, &[(&str, &str)])] = &[
    ("zfs create tank/a/new", &[("create", "tank/a"), ("mount", "tank/a")]),
    ("zfs create -p tank/a/x/y", &[("-l create", "tank/a"), ("-d create", "tank/a"), ("mount", "tank/a")]),
    ("zfs create -o quota=1M tank/a/q", &[("create", "tank/a"), ("mount", "tank/a"), ("-d quota", "tank/a")]),
    ("zfs create -s -V 1M tank/a/v", &[("create", "tank/a"), ("mount", "tank/a")]),
    ("zfs create -V 1M tank/a/w", &[("create", "tank/a"), ("mount", "tank/a"), ("refreservation", "tank")]),
    ("zfs set compression=zle tank/a", &[("-l compression", "tank/a")]),
    ("zfs set my:note=x atime=off tank/a", &[("userprop", "tank/a"), ("-d atime", "tank")]),
    ("zfs set userquota@1=1M tank/a", &[("userquota", "tank/a")]),
    ("zfs inherit compression tank/a", &[("compression", "tank/a")]),
    ("zfs inherit -r my:note tank", &[("-l userprop", "tank"), ("-d userprop", "tank")]),
    (
        "zfs userspace tank/a",
        &[("userused", "tank"), ("userquota", "tank/a"), ("userobjused", "tank"), ("userobjquota", "tank")],
    ),
    ("zfs snapshot tank/a@n", &[("-l snapshot", "tank/a")]),
    ("zfs snapshot -r -o my:note=y tank/a@m", &[("snapshot", "tank/a"), ("userprop", "tank/a")]),
    ("zfs hold mine tank/a@n", &[("-l hold", "tank/a")]),
    ("zfs release mine tank/a@n", &[("-l release", "tank/a")]),
    ("zfs bookmark tank/a@n tank/a#n", &[("bookmark", "tank/a")]),
    ("zfs send tank/a@n", &[("-d send", "tank/a")]),
    ("zfs send -w tank/k@s", &[("send:encrypted", "tank/k")]),
    ("zfs send -R tank/a@m", &[("-d send", "tank/a")]),
    ("zfs destroy tank/a#n", &[("-l destroy", "tank/a")]),
    (
        "zfs rename tank/a@m tank/a@z",
        &[("-d rename", "tank/a"), ("-d mount", "tank/a"), ("-l create", "tank/a"), ("-l mount", "tank/a")],
    ),
    ("zfs destroy tank/a@z", &[("-d destroy", "tank/a"), ("-d mount", "tank/a")]),
    ("zfs clone tank/a@n tank/b", &[("-d clone", "tank/a"), ("-l create", "tank"), ("-l mount", "tank")]),
    ("zfs promote tank/b", &[("promote", "tank/b"), ("mount", "tank/b"), ("-d promote", "tank/a")]),
    ("zfs promote tank/a", &[("promote", "tank/a"), ("mount", "tank/a"), ("-d promote", "tank/b")]),
    (
        "zfs rename tank/b tank/a/b",
        &[("-l rename", "tank/b"), ("-l mount", "tank/b"), ("-l create", "tank/a"), ("-l mount", "tank/a")],
    ),
    ("zfs rollback tank/a@n", &[("-l rollback", "tank/a")]),
    ("zfs rollback -R tank/a@s", &[("rollback", "tank/a"), ("-d destroy", "tank/a"), ("-d mount", "tank/a")]),
    ("zfs destroy -r tank/a/x", &[("destroy", "tank/a"), ("mount", "tank/a")]),
    ("zfs unload-key tank/k", &[("load-key", "tank/k")]),
    ("zfs load-key tank/k", &[("load-key", "tank/k")]),
    ("zfs receive -u tank/a/r < STREAM", &[("receive", "tank/a"), ("mount", "tank/a"), ("create", "tank/a")]),
    ("zfs destroy -r tank/a/r", &[("destroy", "tank/a"), ("mount", "tank/a")]),
    ("zfs receive tank/a/r < STREAM", &[("receive:append", "tank/a"), ("mount", "tank/a"), ("create", "tank/a")]),
    ("zfs allow -u 64124 snapshot tank/a", &[("allow", "tank/a"), ("snapshot", "tank/a")]),
    ("zfs unallow -u 64123 snapshot tank/a", &[("allow", "tank/a")]),
];

/// Each command is refused while one of the permissions that it needs is missing, and changes
/// nothing then; with all of them it is done.
#[test]
fn others_do_what_is_delegated() {
    let Some(m) = Machine::new("access-delegated", USER, OTHER) else { return };
    m.pool(0);
    std::fs::write(m.dir.join("KEY"), "0123456789abcdef".repeat(4)).unwrap();
    let key = m.dir.join("KEY").display().to_string();
    m.ok(0, 0, &format!("zfs create -o encryption=on -o keyformat=hex -o keylocation=file://{key} tank/k"));
    m.ok(0, 0, "zfs snapshot tank/k@s");
    let stream = m.dir.join("STREAM");
    let sent = m.command(0, 0, &m.dir.join("weir")).args(["zfs", "send", "tank/a@s"]).output().unwrap();
    std::fs::write(&stream, sent.stdout).unwrap();
    let by = |user: u32, line: &str| {
        let (line, file) = line.split_once(" < ").map_or((line, None), |(line, file)| (line, Some(file)));
        let mut c = m.command(user, 0, &m.dir.join("weir"));
        c.args(line.split_whitespace());
        let input = file.map_or_else(Stdio::null, |file| std::fs::File::open(m.dir.join(file)).unwrap().into());
        common::machine::fed_within_patience(c, input, line)
    };
    let state = || {
        let mut out = String::new();
        for line in ["zpool history tank", "zfs list -H -t all -o name,guid", "zfs get -Hr -s local all tank"] {
            out.push_str(&m.ok(0, 0, line));
        }
        let granted = |line: &str| line.contains(" zfs allow ") || line.contains(" zfs unallow ");
        out.lines().filter(|l| !granted(l)).map(|l| format!("{l}\n")).collect::<String>()
    };
    for (line, needs) in DELEGATED {
        for missing in 0..=needs.len() {
            for (n, (perm, on)) in needs.iter().enumerate().filter(|(n, _)| *n != missing) {
                let (place, perm) = perm.split_once(' ').unwrap_or(("-ld", perm));
                let s = m.say(0, 0, &format!("zfs allow {place} -u {USER} {perm} {on}"));
                assert_eq!(s.code, 0, "{line} {n}: {}", s.err);
            }
            let before = state();
            let s = by(USER, line);
            if missing == needs.len() {
                assert_eq!(s.code, 0, "{line}: {}{}", s.out, s.err);
            } else {
                let denied = s.code == 1 && s.err.contains("permission denied");
                assert!(denied, "{line} without {:?}: {} {}{}", needs[missing], s.code, s.out, s.err);
                assert_eq!(state(), before, "{line}");
            }
            assert!(by(OTHER, line).err.contains("permission denied"), "{line}");
            m.ok(0, 0, &format!("zfs unallow -r -u {USER} tank"));
        }
    }
    assert!(m.ok(0, 0, "zpool history -l tank").contains(&format!("user {USER} ")));
}

/// Limits bind those who have permissions, unless these let them change the limits, and never the
/// owner.
#[test]
fn limits_bind_others() {
    let Some(m) = Machine::new("access-limits", USER, OTHER) else { return };
    m.pool(0);
    let over = |line: &str, limit: &str| {
        let s = m.say(USER, 0, line);
        assert!(s.code == 1 && s.err.contains(&format!("the {limit} of 'tank/a' is ")), "{line}: {}{}", s.out, s.err);
    };
    let count = |what: &str| m.ok(OTHER, 0, &format!("zfs get -H -o value {what} tank/a"));
    assert_eq!(count("snapshot_count"), "none\n");
    m.ok(0, 0, &format!("zfs allow -u {USER} snapshot,create,mount,rename tank/a"));
    m.ok(0, 0, "zfs set filesystem_limit=1 snapshot_limit=2 tank/a");
    assert_eq!((count("filesystem_count").as_str(), count("snapshot_count").as_str()), ("0\n", "1\n"));
    m.ok(USER, 0, "zfs create tank/a/one");
    over("zfs create tank/a/two", "filesystem_limit");
    over("zfs create tank/a/one/two", "filesystem_limit");
    over("zfs snapshot -r tank/a@two", "snapshot_limit");
    m.ok(USER, 0, "zfs snapshot tank/a/one@two");
    over("zfs snapshot tank/a@two", "snapshot_limit");
    // A new name within is no other file system, one from elsewhere is.
    m.ok(USER, 0, "zfs rename tank/a/one tank/a/uno");
    m.ok(USER, 0, "zfs rename tank/a/uno tank/a/one");
    m.ok(0, 0, "zfs create tank/out");
    m.ok(0, 0, &format!("zfs allow -u {USER} create,mount,rename tank/out"));
    over("zfs rename tank/out tank/a/in", "filesystem_limit");
    // A promoted clone gets its origin's snapshots.
    m.ok(0, 0, "zfs create tank/limited");
    m.ok(0, 0, "zfs clone tank/a@s tank/limited/clone");
    m.ok(0, 0, "zfs set snapshot_limit=0 tank/limited");
    m.ok(0, 0, &format!("zfs allow -u {USER} promote,mount tank"));
    let s = m.say(USER, 0, "zfs promote tank/limited/clone");
    assert!(s.code == 1 && s.err.contains("the snapshot_limit of 'tank/limited' is 0"), "{}{}", s.out, s.err);
    m.ok(0, 0, "zfs set snapshot_limit=1 tank/limited");
    m.ok(USER, 0, "zfs promote tank/limited/clone");
    m.ok(USER, 0, "zfs promote tank/a");
    m.ok(0, 0, &format!("zfs unallow -u {USER} tank"));
    m.ok(0, 0, "zfs snapshot -r tank/a@owner");
    m.ok(0, 0, &format!("zfs allow -u {USER} snapshot_limit tank/a"));
    m.ok(USER, 0, "zfs snapshot tank/a@free");
    assert_eq!((count("filesystem_count").as_str(), count("snapshot_count").as_str()), ("1\n", "5\n"));
    m.ok(0, 0, "zfs set filesystem_limit=none tank/a");
    m.ok(USER, 0, "zfs create tank/a/two");
}

/// Snapshots are made, renamed and destroyed as folders by whom `zfs allow` lets do that.
#[test]
fn folders_of_snapshots_are_delegated() {
    let Some(m) = Machine::new("access-folders", USER, OTHER) else { return };
    m.pool(0);
    let at = m.dir.join("mnt");
    m.ok(0, 0, "tune set zfs_admin_snapshot=1");
    m.ok(0, 0, &format!("zfs set mountpoint={} tank/a", at.display()));
    let folders = at.join(".zfs/snapshot");
    let does = |program: &str, names: &[&str]| {
        let mut c = Command::new("setpriv");
        c.args([format!("--reuid={USER}"), format!("--regid={USER}"), "--clear-groups".to_string()]);
        c.arg(program).args(names).current_dir(&folders);
        c.output().unwrap().status.success()
    };
    assert!(!does("mkdir", &["own"]));
    m.ok(0, 0, &format!("zfs allow -u {USER} snapshot tank/a"));
    assert!(does("mkdir", &["own"]) && !does("mv", &["own", "new"]) && !does("rmdir", &["own"]));
    m.ok(0, 0, &format!("zfs allow -u {USER} rename,mount,create tank/a"));
    assert!(does("mv", &["own", "new"]) && !does("rmdir", &["new"]));
    m.ok(0, 0, &format!("zfs allow -u {USER} destroy tank/a"));
    assert!(does("rmdir", &["new"]));
    m.ok(0, 0, &format!("zfs unallow -u {USER} tank/a"));
    assert!(!does("mkdir", &["own"]));
    assert_eq!(m.ok(0, 0, "zfs list -H -t snapshot -o name"), "tank/a@s\n");
    m.ok(0, 0, "zfs unmount tank/a");
}

/// Rows of [`others_do_what_is_delegated`] say what is needed; here is what else there is to
/// grants.
#[test]
fn grants_reach_groups_sets_and_creators() {
    let Some(m) = Machine::new("access-grants", USER, OTHER) else { return };
    m.pool(0);
    let denied = |user: u32, line: &str| {
        let s = m.say(user, 0, line);
        assert!(s.code == 1 && s.err.to_lowercase().contains("permission denied"), "{line}: {}{}", s.out, s.err);
    };
    let in_group = |line: &str| {
        let mut c = Command::new("setpriv");
        c.args([format!("--reuid={USER}"), format!("--regid={USER}"), "--groups=7777".to_string()]);
        c.arg(m.dir.join("weir")).args(line.split_whitespace());
        c.env("WEIR_RUNTIME_DIR", m.run_dir(0)).env("HOME", m.home(USER)).current_dir(m.home(USER));
        outcome_of(c.output().unwrap())
    };
    m.ok(0, 0, "zfs allow -g 7777 snapshot,groupused tank/a");
    denied(USER, "zfs snapshot tank/a@g");
    assert_eq!(in_group("zfs snapshot tank/a@g").code, 0);
    // One's own figures need nothing, those of others do.
    let figure = |user: u32, prop: &str| m.ok(user, 0, &format!("zfs get -H -o value {prop} tank/a"));
    assert_eq!(figure(USER, &format!("userused@{USER}")), "0B\n");
    assert_eq!(figure(USER, &format!("groupused@{USER}")), "0B\n");
    assert_eq!((figure(USER, "userused@0").as_str(), figure(USER, "groupused@0").as_str()), ("-\n", "-\n"));
    assert_ne!(in_group("zfs get -H -o value groupused@0 tank/a").out, "-\n");
    // Everyone, and a set of sets that is defined above.
    m.ok(0, 0, "zfs allow -s @inner snapshot tank");
    m.ok(0, 0, "zfs allow -s @ops @inner,hold tank");
    m.ok(0, 0, "zfs allow everyone @ops tank/a");
    m.ok(OTHER, 0, "zfs snapshot tank/a@e");
    m.ok(0, 0, "zfs unallow -s @inner tank");
    denied(OTHER, "zfs snapshot tank/a@f");
    m.ok(OTHER, 0, "zfs hold mine tank/a@e");
    // What is made belongs to who made it, and with it what is given to creators.
    m.ok(0, 0, "zfs allow -c destroy tank");
    m.ok(0, 0, &format!("zfs allow -u {USER} create,mount,allow,mountpoint,canmount,rename tank/a"));
    let s = m.say(USER, 0, "zfs create tank/a/mine");
    assert!(s.code == 0 && s.err.contains("may only be mounted by root"), "{}{}", s.out, s.err);
    let listed = m.ok(OTHER, 0, "zfs allow tank/a/mine");
    let own = format!("Local permissions:\n\tuser (unknown: {USER}) destroy\n");
    assert!(listed.starts_with("---- Permissions on tank/a/mine ----") && listed.contains(&own), "{listed}");
    // Mounts are the owner's, and so is passing on what one does not have, or `allow` itself.
    for line in [
        "zfs mount tank/a/mine",
        "zfs set mountpoint=/tmp/x tank/a/mine",
        "zfs set canmount=off tank/a/mine",
        "zfs inherit mountpoint tank/a/mine",
        "zfs allow everyone send tank/a/mine",
        "zfs allow everyone allow tank/a/mine",
        "zfs allow everyone @ops tank/a/mine",
        "zfs unallow everyone tank/a",
        "zfs destroy -r tank/a",
        "zfs program tank /dev/null",
        "zfs redact tank/a@s r tank/a@e",
    ] {
        denied(USER, line);
    }
    if common::can_mount("renames of what is mounted") {
        let place = m.dir.join("mnt").display().to_string();
        m.ok(0, 0, &format!("zfs set mountpoint={place} tank/a/mine"));
        assert_eq!(std::fs::metadata(&place).unwrap().uid(), USER);
        denied(USER, "zfs rename tank/a/mine tank/a/other");
        denied(USER, "zfs rename -u tank/a/mine tank/a/other");
        m.ok(0, 0, "zfs unmount tank/a/mine");
        m.ok(USER, 0, "zfs rename tank/a/mine tank/a/other");
        m.ok(USER, 0, "zfs rename tank/a/other tank/a/mine");
        assert_eq!(m.ok(0, 0, "zfs mount"), "");
    }
    m.ok(0, 0, "zpool set delegation=off tank");
    denied(USER, "zfs destroy tank/a/mine");
    m.ok(0, 0, "zpool set delegation=on tank");
    denied(OTHER, "zfs destroy tank/a/mine");
    m.ok(USER, 0, "zfs destroy tank/a/mine");
}

#[test]
fn a_users_daemon_obeys_that_user_and_root() {
    let Some(m) = Machine::new("access-user", USER, OTHER) else { return };
    m.pool(USER);
    let before = m.state(USER);
    for line in ALLOWED.iter().chain(REFUSED).filter(|l| **l != "version") {
        let s = m.say(OTHER, USER, line);
        assert!(s.code == 1 && s.err.contains("belongs to another user"), "{line}: {}{}", s.out, s.err);
    }
    assert_eq!(m.state(USER), before);
    // Not dumpable: what belongs to the process in /proc is root's.
    let proc = PathBuf::from("/proc").join(m.pid(USER)).join("environ");
    assert_eq!(std::fs::metadata(proc).unwrap().uid(), 0);
    for line in ALLOWED.iter().filter(|l| !l.contains("iostat")) {
        assert_eq!(m.ok(0, USER, line), m.ok(USER, USER, line), "{line}");
    }
    m.ok(0, USER, "zfs set compression=off tank/a");
    m.ok(0, USER, "zpool scrub tank");
    assert!(m.ok(USER, USER, "zpool history -l tank").contains("user 0 "));
    m.ok(0, USER, "daemon stop");
    // But root starts none there.
    let s = m.say(0, USER, "zpool list");
    assert!(s.code == 1 && s.err.contains("belongs to another user"), "{}{}", s.out, s.err);
    m.ok(USER, USER, "zpool list");
}

/// In a mount namespace with a /run of its own: a user without a daemon sees the system's pools and
/// has what they make in their own.
#[test]
fn users_without_a_daemon_ask_the_systems() {
    let Some(m) = Machine::new("access-system", USER, OTHER) else { return };
    if !Command::new("unshare").args(["-m", "true"]).status().is_ok_and(|s| s.success()) {
        eprintln!("NOT RUN: users_without_a_daemon_ask_the_systems: needs mount namespaces");
        return;
    }
    let script = format!(
        "set -e; mount -t tmpfs run /run; mount -t tmpfs lib /var/lib; cd {dir}
        unset WEIR_RUNTIME_DIR WEIR_STATE_DIR
        XDG_RUNTIME_DIR={dir}/xdg ./weir zpool create -O mountpoint=none --size 128M systems s.img
        test -S /run/weir/weir.sock; test ! -e {dir}/xdg
        trap './weir daemon stop -f; $U ./weir daemon stop -f' EXIT
        mkdir home{USER}/xdg; chown {USER} home{USER}/xdg; chmod 700 home{USER}/xdg
        U='env HOME={dir}/home{USER} XDG_RUNTIME_DIR={dir}/home{USER}/xdg setpriv --reuid={USER} --regid={USER} --clear-groups'
        echo user: $($U ./weir zpool list -H -o name)
        $U ./weir daemon status || true
        $U ./weir zpool create -O mountpoint=none --size 128M users home{USER}/u.img
        echo user: $($U ./weir zpool list -H -o name)
        $U ./weir daemon stop
        echo user: $($U ./weir zpool list -H -o name)
        echo root: $(./weir zpool list -H -o name)",
        dir = m.dir.path().display()
    );
    let s = outcome_of(Command::new("unshare").args(["-m", "sh", "-c", &script]).output().unwrap());
    let want = "user: systems\nno daemon is running\nuser: users\nuser: users\nroot: systems\n";
    assert!(s.code == 0 && s.out == want, "{}: {}{}", s.code, s.out, s.err);
}

#[test]
fn nothing_of_the_first_caller_stays_in_the_daemon() {
    let Some(m) = Machine::new("access-inherit", USER, OTHER) else { return };
    let line = "umask 077; exec 9<\"$0\"; exec \"$1\" zpool create -O mountpoint=none --size 128M tank a.img";
    let mut c = m.command(0, 0, Path::new("sh"));
    c.args(["-c", line])
        .arg(m.dir.join("weir"))
        .arg(m.dir.join("weir"))
        .env("SECRET_OF_MINE", "1")
        .env("PATH", "/usr/bin:/bin:/x");
    let s = outcome_of(c.output().unwrap());
    assert_eq!(s.code, 0, "{}{}", s.out, s.err);
    let proc = PathBuf::from("/proc").join(m.pid(0));
    let environ = std::fs::read(proc.join("environ")).unwrap();
    let names = environ.split(|b| *b == 0).filter(|v| !v.is_empty()).map(|v| String::from_utf8_lossy(v).into_owned());
    let names: Vec<String> = names.collect();
    assert!(names.iter().all(|n| n.starts_with("WEIR_") || n == "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"), "{names:?}");
    for fd in std::fs::read_dir(proc.join("fd")).unwrap() {
        let to = std::fs::read_link(fd.unwrap().path()).unwrap_or_default();
        assert_ne!(to, m.dir.join("weir"));
    }
    let status = std::fs::read_to_string(proc.join("status")).unwrap();
    assert!(status.contains("\nNoNewPrivs:\t1\n") && status.contains("\nUmask:\t0022\n"), "{status}");
    assert_eq!(std::fs::read_link(proc.join("cwd")).unwrap(), Path::new("/"));
    // The log has the pool's life with times.
    m.ok(0, 0, "zpool scrub -w tank");
    m.ok(0, 0, "zpool export tank");
    let log = std::fs::read_to_string(m.run_dir(0).join("daemon.log")).unwrap();
    for what in ["begins as process", "'tank' was created", "'tank': the scrub has ended", "'tank' was exported"] {
        let line = log.lines().find(|l| l.contains(what)).unwrap_or_else(|| panic!("{what}: {log}"));
        assert!(line.as_bytes()[19] == b'Z' && line.contains("Z notice: "), "{line}");
    }
}

#[test]
fn a_socket_that_was_removed_is_made_again() {
    let Some(m) = Machine::new("access-socket", USER, OTHER) else { return };
    m.pool(USER);
    let pid = m.pid(USER);
    std::fs::remove_file(m.run_dir(USER).join("weir.sock")).unwrap();
    assert_eq!(m.pid(USER), pid);
    // The whole folder, as a session's goes with the session.
    let state = m.home(USER).join("kept");
    std::fs::rename(m.run_dir(USER).join("state"), &state).unwrap();
    std::fs::remove_dir_all(m.run_dir(USER)).unwrap();
    while !m.run_dir(USER).join("weir.sock").exists() {
        std::thread::yield_now();
    }
    std::fs::rename(&state, m.run_dir(USER).join("state")).unwrap();
    assert_eq!(m.pid(USER), pid);
    m.ok(USER, USER, "zpool list tank");
}

#[test]
fn crowds_are_served_or_refused_in_words() {
    let Some(m) = Machine::new("access-crowd", USER, OTHER) else { return };
    m.pool(0);
    let connect = || UnixStream::connect(m.run_dir(0).join("weir.sock")).unwrap();
    let idle: Vec<UnixStream> = (0..600).map(|_| connect()).collect();
    assert_eq!(m.ok(0, 0, "zpool list -H -o name"), "tank\n");
    // Closed connections got the reason.
    let mut first = &idle[0];
    first.set_read_timeout(Some(PATIENCE)).unwrap();
    match proto::receive::<Reply>(&mut first, 1 << 20).unwrap() {
        Some(Reply::Failed { kind, message }) => assert!(kind == "busy" && message.contains("idle"), "{message}"),
        other => panic!("{other:?}"),
    }
    let start = |n: usize| {
        let mut c = m.command(0, 0, &m.dir.join("weir"));
        let line =
            if n.is_multiple_of(2) { format!("zfs create tank/c{n}") } else { "zpool list -H -o name".to_string() };
        c.args(line.split(' ')).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    };
    let all: Vec<_> = (0..128).map(start).collect();
    for c in all {
        let s = outcome_of(c.wait_with_output().unwrap());
        assert_eq!(s.code, 0, "{}{}", s.out, s.err);
    }
    assert_eq!(m.ok(0, 0, "zfs list -H -o name -r tank").lines().count(), 2 + 64);
}

#[test]
fn waits_have_owners() {
    let Some(m) = Machine::new("access-waits", USER, OTHER) else { return };
    m.pool(0);
    let help = m.ok(0, 0, "daemon --help");
    assert!(help.contains("weir daemon status [-v]"), "{help}");
    let mut c = m.command(0, 0, &m.dir.join("weir"));
    let mut follower = c.args(["zpool", "events", "-f"]).stdout(Stdio::null()).spawn().unwrap();
    let status = loop {
        let status = m.ok(0, 0, "daemon status");
        if status.contains("request: ") {
            break status;
        }
    };
    follower.kill().unwrap();
    follower.wait().unwrap();
    let lines: Vec<&str> = status.lines().collect();
    assert!(
        lines[0].starts_with("daemon ") && lines[1].starts_with("socket: ") && lines[2].starts_with("log: "),
        "{status}"
    );
    assert_eq!(lines[3], "pools: tank (ONLINE)");
    assert!(lines[4].starts_with("request: zpool events, ") && lines[4].contains(" s, user 0, process "), "{status}");
    assert!(!status.contains("tunable: ") && m.ok(0, 0, "daemon status -v").contains("tunable: "));
}

/// A small generator of random numbers with a seed.
struct Rng(u64);

impl Rng {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }
    fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }
    fn word(&mut self) -> String {
        const WORDS: &[&str] =
            &["tank", "tank/a", "tank/a@s", "", "/", "x", "tank/../a", "tank#b", "no such", "\u{0}", "%", "-f"];
        if self.below(8) == 0 { "a".repeat(self.below(5000)) } else { WORDS[self.below(WORDS.len())].to_string() }
    }
    fn flag(&mut self) -> bool {
        self.below(2) == 0
    }
}

/// A request with random fields. If `harmless`, requests that change something name objects that do
/// not exist.
fn any_request(r: &mut Rng, harmless: bool) -> (Box<dyn AnyRequest>, Option<String>) {
    let names = vec![r.word(), r.word()];
    let changed = |r: &mut Rng| if harmless { format!("absent{}", r.below(9)) } else { r.word() };
    let request: Box<dyn AnyRequest> = match r.below(24) {
        0 => Box::new(Pools { names }),
        1 => Box::new(PoolIo { names }),
        2 => Box::new(DeviceLatency { pool: r.word() }),
        3 => Box::new(PoolActivity { pool: r.word() }),
        4 => Box::new(Datasets(Select {
            names,
            filesystems: true,
            snapshots: r.flag(),
            wanted: vec![r.word()],
            ..Select::default()
        })),
        5 => Box::new(Holds { names, recursive: r.flag() }),
        6 => Box::new(Mounted),
        7 if !harmless => Box::new(Stop { force: r.flag() }),
        8 => Box::new(PoolDestroy { pool: changed(r), force: r.flag() }),
        9 => Box::new(PoolExport { pools: vec![changed(r)], all: false, force: r.flag(), stays_cached: r.flag() }),
        10 => Box::new(PoolSet { pool: changed(r), name: "comment".into(), value: r.word() }),
        11 => Box::new(FsDestroy {
            name: changed(r),
            recursive: true,
            clones: true,
            defer: false,
            force: true,
            dry_run: false,
        }),
        12 => Box::new(FsSet {
            names: vec![changed(r)],
            props: vec![("compression".into(), "off".into())],
            no_remount: r.flag(),
        }),
        13 => Box::new(Snapshot { names: vec![format!("{}@x", changed(r))], recursive: r.flag(), props: vec![] }),
        14 => Box::new(LoadKey {
            name: changed(r),
            key: Secret(vec![0; r.below(100)].as_slice().into()),
            check_only: r.flag(),
        }),
        15 => Box::new(PoolHistory { pool: changed(r) }),
        16 => Box::new(TuneSet { assignment: changed(r), save: r.flag() }),
        17 => Box::new(TraceStart { pool: changed(r), what: r.word() }),
        18 => Box::new(PoolClear { pool: changed(r), device: Some(r.word()) }),
        19 => {
            Box::new(PoolCreate { name: changed(r), devices: vec![r.word()], dry_run: true, ..PoolCreate::default() })
        }
        20 => Box::new(LabelClear { path: format!("/nonexistent/{}", r.below(9)), force: r.flag() }),
        21 => Box::new(Unmount { target: Some(changed(r)), force: r.flag(), keys: r.flag() }),
        22 => Box::new(Rollback { name: changed(r), recursive: true, clones: true, force: true }),
        _ => Box::new(PoolDestroy { pool: changed(r), force: true }),
    };
    let command = r.flag().then(|| r.word());
    (request, command)
}

/// `rounds` hostile conversations at `socket`. Only public requests may be answered (if `public`),
/// and nothing may hang.
fn be_hostile(socket: &Path, rounds: u64, seed: u64, public: bool) {
    let mut r = Rng(seed);
    for round in 0..rounds {
        let (request, command) = any_request(&mut r, !public);
        let mut message = Vec::new();
        request.call(command.as_deref()).unwrap().write(&mut message).unwrap();
        let may_be_done = match r.below(8) {
            0 => {
                message = (0..r.below(300)).map(|_| r.next() as u8).collect();
                false
            }
            1 => {
                let keep = r.below(message.len());
                message.truncate(keep);
                false
            }
            2 => {
                let huge = (r.next() as u32) | 0x0500_0000;
                message[..4].copy_from_slice(&huge.to_le_bytes());
                false
            }
            3 => {
                let deep = "[".repeat(r.below(60_000));
                message = (deep.len() as u32).to_le_bytes().to_vec();
                message.extend_from_slice(deep.as_bytes());
                false
            }
            4 => {
                // Text after the name does not change the rights.
                let kind = "Stop \"Pools\"\n{\"force\":true}\nPools\n{\"names\":[]}";
                message = (kind.len() as u32).to_le_bytes().to_vec();
                message.extend_from_slice(kind.as_bytes());
                false
            }
            _ => true,
        };
        let reply = converse(socket, &message);
        let looks = ["Pools", "PoolIo", "DeviceLatency", "PoolActivity", "Datasets", "Holds", "Mounted"];
        let look = looks.contains(&request.name());
        match reply {
            Some(Reply::Done(_)) if !public => assert!(may_be_done, "round {round}: {request:?}"),
            Some(Reply::Done(_)) => assert!(may_be_done && look, "round {round}: {request:?}"),
            Some(Reply::Failed { kind, .. }) if public && may_be_done && !look => {
                assert_eq!(kind, "denied", "round {round}: {request:?}");
            }
            Some(Reply::Failed { message, .. }) => assert!(!message.is_empty()),
            Some(Reply::Progress { .. }) => panic!("round {round}: {request:?}"),
            None => assert!(!may_be_done, "round {round}: no answer to {request:?}"),
        }
    }
}

/// Sends all bytes and closes; returns the daemon's last message.
fn converse(socket: &Path, message: &[u8]) -> Option<Reply> {
    let mut stream = UnixStream::connect(socket).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    // The daemon may refuse it before all of it is sent.
    let _ = stream.write_all(message);
    let _ = stream.shutdown(std::net::Shutdown::Write);
    let mut all = Vec::new();
    if let Err(e) = stream.read_to_end(&mut all) {
        assert_eq!(e.kind(), std::io::ErrorKind::ConnectionReset, "the daemon hangs: {e}");
    }
    let mut from = all.as_slice();
    let mut last = None;
    while let Ok(Some(reply)) = proto::receive::<Reply>(&mut from, 1 << 28) {
        last = Some(reply);
    }
    last
}

/// Run again as another user by [`hostile_users_change_and_stop_nothing`]; alone it does nothing.
#[test]
fn hostile_child() {
    let Some(socket) = std::env::var_os("HOSTILE_SOCKET") else { return };
    let socket = PathBuf::from(socket);
    let crowd: Vec<UnixStream> = (0..200).filter_map(|_| UnixStream::connect(&socket).ok()).collect();
    be_hostile(&socket, 1000, 0x5eed_0001, true);
    drop(crowd);
}

#[test]
fn hostile_users_change_and_stop_nothing() {
    let Some(m) = Machine::new("access-hostile", USER, OTHER) else { return };
    m.pool(0);
    let program = m.dir.join("hostile");
    copy_program(&std::env::current_exe().unwrap(), &program);
    let before = m.state(0);
    let mut c = m.command(OTHER, 0, &program);
    c.args(["--exact", "hostile_child", "--nocapture"]).env("HOSTILE_SOCKET", m.run_dir(0).join("public.sock"));
    let child = c.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    // Meanwhile the owner and another user are served.
    for _ in 0..10 {
        assert_eq!(m.ok(0, 0, "zpool list -H -o name"), "tank\n");
        assert_eq!(m.ok(USER, 0, "zpool list -H -o name"), "tank\n");
    }
    let s = outcome_of(child.wait_with_output().unwrap());
    assert!(s.code == 0 && s.out.contains("1 passed"), "{}{}", s.out, s.err);
    assert_eq!(m.state(0), before);
    be_hostile(&m.run_dir(0).join("weir.sock"), 500, 0x5eed_0002, false);
    assert_eq!(m.state(0), before);
}

#[test]
fn disks_of_a_pool_are_held_against_others() {
    let Some(m) = Machine::new("access-disks", USER, OTHER) else { return };
    let new = |n: usize| {
        let file = m.dir.join(&format!("disk{n}"));
        host::create_sparse(&file, 128 << 20).unwrap();
        Loop::new(&file, &[])
    };
    let Some(loops) = (0..4).map(new).collect::<Option<Vec<Loop>>>() else { return };
    let d: Vec<&str> = loops.iter().map(|l| l.at.as_str()).collect();
    let run = |program: &str, args: &[&str]| outcome_of(Command::new(program).args(args).output().unwrap());
    let create = format!("zpool create -f -O mountpoint=none tank {} log {} cache {} spare {}", d[0], d[1], d[2], d[3]);
    m.ok(0, 0, &create);
    let held = |readonly: bool| {
        for dev in &d {
            let s = run("mkfs.ext4", &["-F", "-q", dev]);
            assert!(s.code != 0 && s.err.contains("in use"), "readonly {readonly}: {dev}: {}{}", s.out, s.err);
            // A second daemon is refused, too.
            let s = m.say(USER, USER, &format!("zpool create -f u {dev}"));
            assert_eq!(s.code, 1, "{dev}");
        }
    };
    held(false);
    let mut second = m.command(0, 0, &m.dir.join("weir"));
    second.env("WEIR_RUNTIME_DIR", m.dir.join("second")).args([
        "zpool",
        "create",
        "-f",
        "-O",
        "mountpoint=none",
        "other",
        d[0],
    ]);
    let s = outcome_of(second.output().unwrap());
    assert!(s.code == 1 && s.err.contains("in use by another process"), "{}{}", s.out, s.err);
    let mut stop = m.command(0, 0, &m.dir.join("weir"));
    stop.env("WEIR_RUNTIME_DIR", m.dir.join("second")).args(["daemon", "stop"]).output().unwrap();
    // Reading stays possible.
    if Command::new("zdb").arg("-h").output().is_ok() {
        let s = run("zdb", &["-l", d[0]]);
        assert!(s.code == 0 && s.out.contains("name: 'tank'"), "{}{}", s.out, s.err);
    }
    // A daemon that is killed holds nothing.
    let pid = m.pid(0);
    assert_eq!(run("kill", &["-9", &pid]).code, 0);
    // Its first thread may be gone while others still hold the socket.
    let threads = || std::fs::read_dir(format!("/proc/{pid}/task")).map_or(0, |list| list.count());
    let is_zombie = || std::fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|s| s.contains(") Z"));
    while threads() > 1 || (threads() == 1 && !is_zombie()) {
        std::thread::yield_now();
    }
    assert_eq!(m.ok(0, 0, "zpool list -H -o name,health"), "tank\tONLINE\n");
    held(false);
    m.ok(0, 0, "zpool export tank");
    // Named, since another disk of the machine may have a pool of that name.
    m.ok(0, 0, &format!("zpool import -o readonly=on -d {} tank", d.join(" -d ")));
    let s = run("mkfs.ext4", &["-F", "-q", d[0]]);
    assert!(s.code != 0, "a pool that is read only: {}{}", s.out, s.err);
    m.ok(0, 0, "zpool export tank");
    // Devices in use by others are refused with the reason.
    assert_eq!(run("mkfs.ext4", &["-F", "-q", d[0]]).code, 0);
    let at = m.dir.join("mnt");
    std::fs::create_dir(&at).unwrap();
    let at = at.display().to_string();
    assert_eq!(run("mount", &[d[0], &at]).code, 0);
    let s = m.say(0, 0, &format!("zpool create -f -O mountpoint=none new {}", d[0]));
    assert_eq!(run("umount", &[&at]).code, 0);
    assert!(s.code == 1 && s.err.contains(&format!("it is mounted at '{at}'")), "{}{}", s.out, s.err);
}
