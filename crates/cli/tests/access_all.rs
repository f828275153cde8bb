//! Every command, by three users: root, a plain user with a daemon, and another plain user.
//!
//! The owner's commands (root's on root's pool, the user's on the user's, root's on the user's)
//! have the results of [`STORY`]. The same commands of another user are refused with a message, or
//! only read; afterwards the pool is unchanged byte for byte: devices, properties, history, events
//! and every file of the owner. No command waits for ever.
//!
//! Needs root and setpriv; without them it prints that and passes.
#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use std::fs::File;
use std::path::Path;
use std::process::{Command, Stdio};

use base::Guid;
use codec::checksum::Endian;
use common::commands::{Kind, STORY};
use common::machine::{Machine, fed_within_patience};
use common::{Outcome, can_mount, outcome_of};
use ondisk::stream::record::Begin;
use ondisk::stream::{Record, StreamWriter, begin_flags};

/// Accounts of every Debian: fusermount3 asks for the name of its user.
const USER: u32 = 2;
const OTHER: u32 = 1;

/// A home with the files that the commands name.
fn furnish(m: &Machine, of: u32) {
    let home = m.home(of);
    std::fs::write(home.join("KEY"), "0123456789abcdef".repeat(4)).unwrap();
    std::fs::write(home.join("RAW"), [7; 32]).unwrap();
    for name in ["MNT", "ALT"] {
        std::fs::create_dir(home.join(name)).unwrap();
    }
    std::fs::write(home.join("STREAM"), stream()).unwrap();
    for name in ["KEY", "RAW", "MNT", "ALT", "STREAM"] {
        std::os::unix::fs::chown(home.join(name), Some(of), Some(of)).unwrap();
    }
}

/// A send stream of a snapshot without objects.
fn stream() -> Vec<u8> {
    let begin = Begin {
        version_info: Begin::SUBSTREAM,
        objset_type: 2,
        flags: begin_flags::FREERECORDS | begin_flags::SPILL_BLOCK,
        to_guid: Guid(77),
        to_name: b"tank/sent@s".to_vec(),
        ..Begin::default()
    };
    let mut writer = StreamWriter::new(Endian::Little);
    let mut out = writer.record(&Record::Begin(begin), &[]).to_vec();
    out.extend(writer.end(Guid(77)));
    out
}

/// The result of `line` by `user` for the daemon of `of`, run in the folder `at`.
fn say(m: &Machine, user: u32, of: u32, at: &Path, line: &str) -> Outcome {
    let mut c = m.command(user, of, &m.dir.join("weir"));
    let (words, file) = line.split_once(" < ").map_or((line, None), |(words, file)| (words, Some(file)));
    let input = file.map_or_else(Stdio::null, |file| File::open(m.home(of).join(file)).unwrap().into());
    for word in words.split(' ') {
        let mut word = word.to_string();
        for name in ["KEY", "RAW", "MNT", "ALT"] {
            word = word.replace(name, &m.home(of).join(name).display().to_string());
        }
        c.arg(word);
    }
    c.current_dir(at);
    fed_within_patience(c, input, line)
}

/// From now on only commands write: no transaction group ends by itself.
fn be_still(m: &Machine, of: u32) {
    for line in ["tune set txg_idle_ms=0", "tune set zfs_txg_timeout=3600", "zpool sync"] {
        m.ok(of, of, line);
    }
}

/// The differences from `before`.
fn assert_unchanged(now: &str, before: &str, who: &str) {
    let other = now.lines().zip(before.lines()).find(|(n, b)| n != b);
    assert!(other.is_none() && now.len() == before.len(), "{who}: {other:?}");
}

/// Everything of `of` that a command could change: the home with all times, the devices' bytes, the
/// pool's status.
fn imprint(m: &Machine, of: u32) -> String {
    let mut out = m.state(of);
    for line in
        ["zpool history -il", "zpool events -v", "zpool get -H all tank", "zfs get -H -p -r all tank", "tune -j"]
    {
        out.push_str(&m.ok(of, of, line));
    }
    let list = r"find run *.img KEY RAW MNT ALT ! -name daemon.log -printf '%p %y %s %m %U:%G %T@ %C@\n' | sort; sha256sum run/state/* *.img";
    let s = outcome_of(Command::new("sh").args(["-c", list]).current_dir(m.home(of)).output().unwrap());
    assert!(s.code == 0 && s.out.contains("a.img"), "{}{}", s.out, s.err);
    out + &s.out
}

/// All of the story by `user` for the daemon of `of`.
fn tell(m: &Machine, user: u32, of: u32) {
    let mounts = can_mount("the commands that mount");
    let mut done = 0;
    for &(kind, code, line) in STORY {
        if kind == Kind::Mount && !mounts {
            continue;
        }
        // Root starts no daemon in another user's folder.
        let by = if line == "daemon start" { of } else { user };
        let s = say(m, by, of, &m.home(of), line);
        assert_eq!(s.code, code, "user {by}, daemon of {of}: {line}: {}{}", s.out, s.err);
        assert!(code == 0 || !s.err.is_empty(), "{line}: failed without a word");
        done += 1;
    }
    assert!(done >= 100, "{done}");
}

#[test]
fn root_does_everything_with_roots_pool() {
    let Some(m) = Machine::new("access-all-root", USER, OTHER) else { return };
    furnish(&m, 0);
    tell(&m, 0, 0);
}

#[test]
fn a_user_does_everything_with_a_pool_of_their_own() {
    let Some(m) = Machine::new("access-all-user", USER, OTHER) else { return };
    furnish(&m, USER);
    tell(&m, USER, USER);
}

#[test]
fn root_does_everything_with_a_users_pool() {
    let Some(m) = Machine::new("access-all-both", USER, OTHER) else { return };
    furnish(&m, USER);
    tell(&m, 0, USER);
}

#[test]
fn other_users_look_at_roots_pool_and_change_nothing() {
    let Some(m) = Machine::new("access-all-others", USER, OTHER) else { return };
    furnish(&m, 0);
    m.pool(0);
    be_still(&m, 0);
    let before = imprint(&m, 0);
    for user in [USER, OTHER] {
        let (mut refused, mut allowed) = (0, 0);
        for &(kind, _, line) in STORY {
            let s = match kind {
                Kind::Disk => say(&m, user, 0, &m.home(0), line),
                _ => say(&m, user, 0, &m.home(user), line),
            };
            match kind {
                Kind::Own | Kind::Mount | Kind::Disk => {
                    let denied = s.err.to_lowercase().contains("permission denied");
                    // Anyone may learn that a name does not exist.
                    let absent = s.err.ends_with("dataset does not exist\n");
                    assert!(s.code != 0 && (denied || absent), "{user}: {line}: {} {}{}", s.code, s.out, s.err);
                    assert!(s.out.is_empty(), "{user}: {line}: {}", s.out);
                    refused += 1;
                }
                Kind::Look | Kind::Plain => {
                    let roots = say(&m, 0, 0, &m.home(0), line);
                    assert_eq!((s.code, &s.err), (roots.code, &roots.err), "{user}: {line}");
                    // Counters of devices go on.
                    assert!(line.contains("iostat") || s.out == roots.out, "{user}: {line}: {}{}", s.out, roots.out);
                    allowed += 1;
                }
            }
        }
        assert!(refused >= 100 && allowed >= 40, "{refused} {allowed}");
        assert_unchanged(&imprint(&m, 0), &before, &user.to_string());
    }
}

#[test]
fn other_users_get_nothing_of_a_users_pool() {
    let Some(m) = Machine::new("access-all-private", USER, OTHER) else { return };
    furnish(&m, USER);
    m.pool(USER);
    be_still(&m, USER);
    let before = imprint(&m, USER);
    for &(kind, _, line) in STORY {
        let s = match kind {
            Kind::Disk => say(&m, OTHER, USER, &m.home(USER), line),
            _ => say(&m, OTHER, USER, &m.home(OTHER), line),
        };
        match kind {
            Kind::Plain => assert_eq!(s.code, say(&m, 0, USER, &m.home(0), line).code, "{line}"),
            Kind::Disk => assert!(s.code != 0 && s.err.contains("Permission denied"), "{line}: {}{}", s.out, s.err),
            _ => assert!(
                s.code == 1 && s.out.is_empty() && s.err.contains("belongs to another user"),
                "{line}: {} {}{}",
                s.code,
                s.out,
                s.err
            ),
        }
    }
    assert_unchanged(&imprint(&m, USER), &before, "another user");
}

/// Commands of a user with a daemon of his own, on the folder `ROOT` with root's pool and keys.
const AT_OTHERS_DEVICES: &[&str] = &[
    "zpool create -O mountpoint=none new ROOT/a.img",
    "zpool create -f -O mountpoint=none new ROOT/a.img",
    "zpool create -f -O mountpoint=none --size 128M new ROOT/new.img",
    "zpool create -f -n -O mountpoint=none new mirror ROOT/a.img ROOT/b.img",
    "zpool create -m ROOT/MNT --size 128M new new.img",
    "zpool add -f own ROOT/a.img",
    "zpool add -f own log ROOT/a.img",
    "zpool add -f own cache ROOT/a.img",
    "zpool add -f own spare ROOT/a.img",
    "zpool add -f --size 128M own ROOT/new.img",
    "zpool attach -f own own.img ROOT/a.img",
    "zpool replace -f own own.img ROOT/a.img",
    "zpool labelclear ROOT/a.img",
    "zpool labelclear -f ROOT/a.img",
    "zpool import -d ROOT tank",
    "zpool import -d ROOT/a.img -d ROOT/b.img tank",
    "zpool import -d ROOT -f -D tank",
    "zpool import -d ROOT -f -F tank",
    "zpool import -d ROOT -o readonly=on tank mine",
    "zpool list tank",
    "zfs list tank",
    "zfs destroy -r tank",
    "zfs set mountpoint=ROOT/MNT own",
    "zfs create -o mountpoint=ROOT/MNT own/m",
    "zfs create -o encryption=on -o keyformat=hex -o keylocation=file://ROOT/KEY own/k",
    "zfs load-key -L file://ROOT/KEY own",
    "daemon start -m unix:ROOT/run/metrics",
    "zdb -l ROOT/a.img",
    "zdb -C -p ROOT tank",
    "zdb --check -p ROOT tank",
    "zdb --manifest -p ROOT tank",
];

#[test]
fn a_users_daemon_reaches_nothing_of_others() {
    let Some(m) = Machine::new("access-all-devices", USER, OTHER) else { return };
    furnish(&m, 0);
    std::fs::set_permissions(m.home(0).join("KEY"), std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    m.pool(0);
    be_still(&m, 0);
    m.ok(USER, USER, "zpool create -O mountpoint=none --size 128M own own.img");
    let mounts = can_mount("mounts at others' folders");
    let root = m.home(0).display().to_string();
    for exported in [false, true] {
        if exported {
            m.ok(0, 0, "zpool export tank");
        }
        let sums = || {
            let all = "find . -path './home*' -prune -o ! -name daemon.log -printf '%p %y %s %m %U:%G %T@ %C@\\n'; sha256sum *.img";
            outcome_of(Command::new("sh").args(["-c", all]).current_dir(m.home(0)).output().unwrap()).out
        };
        // The property is set even if its mount point cannot be used.
        m.ok(USER, USER, "zfs set mountpoint=none own");
        let before = sums();
        for line in AT_OTHERS_DEVICES {
            if line.contains("/MNT") && !mounts {
                continue;
            }
            let line = line.replace("ROOT", &root);
            let s = m.say(USER, USER, &line);
            assert!(s.code != 0 && !s.err.is_empty(), "exported {exported}: {line}: {}{}", s.out, s.err);
        }
        assert_unchanged(&sums(), &before, &format!("exported {exported}"));
        assert_eq!(m.ok(USER, USER, "zpool list -H -o name"), "own\n");
        assert_eq!(m.ok(USER, USER, "zfs list -H -o name"), "own\n");
    }
    m.ok(0, 0, "zpool import -d . tank");
}
