//! Messages, exit codes and refusals of `zfs`: the texts of OpenZFS, which docker, LXD, Proxmox,
//! sanoid and ansible match.
#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use std::io::Write;
use std::process::{Command, Stdio};

use host::TempDir;

use common::{Outcome, WEIR, can_mount, command_in, outcome_of};

/// A scratch folder with a daemon of its own and the pool `tank`, which is not mounted.
struct World {
    dir: TempDir,
}

impl World {
    fn new(tag: &str) -> World {
        let w = World { dir: TempDir::new(tag).unwrap() };
        w.ok("zpool create -O mountpoint=none --size 128M tank a.img");
        w
    }

    fn command(&self, line: &str) -> Command {
        let mut c = command_in(self.dir.path(), WEIR);
        c.args(line.split_whitespace());
        c
    }

    fn say(&self, line: &str) -> Outcome {
        outcome_of(self.command(line).output().unwrap())
    }

    fn typing(&self, line: &str, text: &str) -> Outcome {
        let mut c = self.command(line);
        let mut child = c.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        // A command that reads nothing has ended by now.
        let _ = child.stdin.take().unwrap().write_all(text.as_bytes());
        outcome_of(child.wait_with_output().unwrap())
    }

    fn ok(&self, line: &str) -> String {
        let s = self.say(line);
        assert_eq!(s.code, 0, "{line}: {}{}", s.out, s.err);
        s.out
    }

    /// A line that must fail with this code and begin with this text.
    fn fails(&self, line: &str, code: i32, text: &str) {
        let s = self.say(line);
        assert!(s.code == code && s.err.starts_with(text), "{line}: code {}\n{}wanted\n{text}", s.code, s.err);
    }
}

impl Drop for World {
    fn drop(&mut self) {
        let _ = self.command("daemon stop -f").output();
    }
}

#[test]
fn each_situation_has_the_text_of_openzfs() {
    let w = World::new("zfs-texts");
    for line in [
        "zfs create tank/a",
        "zfs create tank/a/b",
        "zfs create tank/z",
        "zfs snapshot tank/a@one",
        "zfs snapshot tank/a@two",
        "zfs clone tank/a@one tank/c",
        "zfs create tank/c/below",
        "zfs hold keep tank/a@two",
        "zfs bookmark tank/a@one tank/a#mark",
    ] {
        w.ok(line);
    }
    for (line, code, text) in [
        ("zfs list tank/nope", 1, "cannot open 'tank/nope': dataset does not exist"),
        ("zfs get all tank/nope", 1, "cannot open 'tank/nope': dataset does not exist"),
        ("zfs set atime=off tank/nope", 1, "cannot open 'tank/nope': dataset does not exist"),
        ("zfs destroy tank/nope", 1, "cannot open 'tank/nope': dataset does not exist"),
        ("zfs destroy tank/nope@s", 1, "cannot open 'tank/nope': dataset does not exist"),
        ("zfs snapshot tank/nope@s", 1, "cannot open 'tank/nope': dataset does not exist"),
        ("zfs rollback tank/a@nope", 1, "cannot open 'tank/a@nope': dataset does not exist"),
        ("zfs clone tank/a@nope tank/x", 1, "cannot open 'tank/a@nope': dataset does not exist"),
        ("zfs rename tank/nope tank/x", 1, "cannot open 'tank/nope': dataset does not exist"),
        ("zfs inherit x:y tank/a@nope", 1, "cannot open 'tank/a@nope': dataset does not exist"),
        ("zfs destroy tank/a@nope", 1, "could not find any snapshots to destroy; check snapshot names."),
        ("zfs create tank/a", 1, "cannot create 'tank/a': dataset already exists"),
        ("zfs create tank/x/y", 1, "cannot create 'tank/x/y': parent does not exist"),
        ("zfs create nope/x", 1, "cannot create 'nope/x': no such pool 'nope'"),
        ("zfs clone tank/a@one nope/x", 1, "cannot create 'nope/x': no such pool 'nope'"),
        ("zfs create nope", 1, "cannot create 'nope': missing dataset name"),
        ("zfs create tank", 1, "cannot create 'tank': missing dataset name"),
        ("zfs create tank/b@d", 1, "cannot create 'tank/b@d': snapshot delimiter '@' is not expected here"),
        ("zfs create tank/b%d", 1, "cannot create 'tank/b%d': invalid character '%' in name"),
        ("zfs create tank/b/", 1, "cannot create 'tank/b/': trailing slash in name"),
        ("zfs create tank//b", 1, "cannot create 'tank//b': empty component"),
        ("zfs clone tank/a@one tank/c", 1, "cannot create 'tank/c': dataset already exists"),
        ("zfs rename tank/a tank/c", 1, "cannot rename 'tank/a': dataset already exists"),
        ("zfs rename tank/a lake/c", 1, "cannot rename 'tank/a': datasets must be within same pool"),
        ("zfs snapshot tank/a@one", 1, "cannot create snapshot 'tank/a@one': dataset already exists"),
        ("zfs hold keep tank/a@two", 1, "cannot hold snapshot 'tank/a@two': tag already exists on this dataset"),
        (
            "zfs release other tank/a@two",
            1,
            "cannot release hold from snapshot 'tank/a@two': no such tag on this dataset",
        ),
        ("zfs promote tank/a@one", 1, "cannot open 'tank/a@one': snapshot delimiter '@' is not expected here"),
        ("zfs unmount ./x", 1, "cannot open './x': dataset does not exist"),
        ("zfs mount tank/a@one", 1, "cannot open 'tank/a@one': snapshot delimiter '@' is not expected here"),
        ("zfs snapshot tank/a", 2, "missing '@' delimiter in snapshot name 'tank/a'\nusage:\n\tzfs snapshot "),
        ("zfs hold keep tank/a", 1, "'tank/a' is not a snapshot\n"),
        ("zfs holds tank/a", 1, "'tank/a' is not a snapshot\n"),
        ("zfs promote tank/a", 1, "cannot promote 'tank/a': not a cloned filesystem"),
        ("zfs bookmark tank/a@one tank/a#mark", 1, "cannot create bookmark 'tank/a#mark': bookmark exists"),
        ("zfs destroy tank/a#nope", 1, "cannot destroy 'tank/a#nope': bookmark 'tank/a#nope' does not exist."),
        ("zfs destroy -n tank/a#mark", 1, "dryrun is not supported with bookmark"),
        ("zfs destroy -d tank/a#mark", 1, "defer destroy is not supported with bookmark"),
        ("zfs destroy -r tank/a#mark", 1, "recursive is not supported with bookmark"),
        ("zfs destroy -R tank/a#mark", 1, "recursive is not supported with bookmark"),
        ("zfs set x:y=1 tank/a#mark", 1, "cannot open 'tank/a#mark': dataset does not exist"),
        ("zfs inherit x:y tank/a#mark", 1, "cannot open 'tank/a#mark': dataset does not exist"),
        ("zfs rename tank/a#mark tank/a#other", 1, "cannot open 'tank/a#mark': dataset does not exist"),
        ("zfs rollback tank/a#mark", 1, "cannot open 'tank/a#mark': missing '@' delimiter in snapshot name"),
        (
            "zfs clone tank/a#mark tank/x",
            1,
            "cannot create 'tank/x': missing '@' delimiter in snapshot name 'tank/a#mark'",
        ),
        ("zfs mount tank/a", 1, "cannot mount 'tank/a': no mountpoint set"),
        ("zfs unmount tank/a", 1, "cannot unmount 'tank/a': not currently mounted"),
        (
            "zfs destroy tank/a",
            1,
            "cannot destroy 'tank/a': filesystem has children\nuse '-r' to destroy the following datasets:\ntank/a/b\ntank/a@one\ntank/a@two\n",
        ),
        (
            "zfs destroy -r tank/a",
            1,
            "cannot destroy 'tank/a': filesystem has dependent clones\nuse '-R' to destroy the following datasets:\ntank/c/below\ntank/c\n",
        ),
        (
            "zfs destroy tank/a@one",
            1,
            "cannot destroy 'tank/a@one': snapshot has dependent clones\nuse '-R' to destroy the following datasets:\ntank/c/below\ntank/c\n",
        ),
        ("zfs destroy tank/a@two", 1, "cannot destroy snapshot tank/a@two: dataset is busy"),
        (
            "zfs destroy tank",
            1,
            "cannot destroy 'tank': operation does not apply to pools\nuse 'zfs destroy -r tank' to destroy all datasets in the pool\nuse 'zpool destroy tank' to destroy the pool itself\n",
        ),
        (
            "zfs rollback tank/a@one",
            1,
            "cannot rollback to 'tank/a@one': more recent snapshots or bookmarks exist\nuse '-r' to force deletion of the following snapshots and bookmarks:\ntank/a@two\n",
        ),
        ("zfs set used=1 tank/a", 1, "cannot set property for 'tank/a': 'used' is readonly"),
        ("zfs set utf8only=on tank/a", 1, "cannot set property for 'tank/a': 'utf8only' is readonly"),
        ("zfs set nonsense=1 tank/a", 1, "cannot set property for 'tank/a': invalid property 'nonsense'"),
        ("zfs create -o nonsense=1 tank/x", 1, "cannot create 'tank/x': invalid property 'nonsense'"),
        ("zfs set atime=maybe tank/a", 1, "cannot set property for 'tank/a': 'atime' must be one of 'on | off'"),
        (
            "zfs set recordsize=3K tank/a",
            1,
            "cannot set property for 'tank/a': 'recordsize' must be power of 2 from 512 to 16M",
        ),
        ("zfs set quota=much tank/a", 1, "cannot set property for 'tank/a': bad numeric value 'much'"),
        (
            "zfs set quota=1 tank/a",
            1,
            "cannot set property for 'tank/a': size is less than current used or reserved space",
        ),
        ("zfs set reservation=1T tank/a", 1, "cannot set property for 'tank/a': size is greater than available space"),
        (
            "zfs set volsize=1G tank/a",
            1,
            "cannot set property for 'tank/a': 'volsize' does not apply to datasets of this type",
        ),
        (
            "zfs set mountpoint=here tank/a",
            1,
            "cannot set property for 'tank/a': 'mountpoint' must be an absolute path, 'none', or 'legacy'",
        ),
        (
            "zfs set atime=off tank/a@one",
            1,
            "cannot set property for 'tank/a@one': this property can not be modified for snapshots",
        ),
        ("zfs inherit used tank/a", 1, "cannot inherit used for 'tank/a': used property is read-only"),
        ("zfs inherit quota tank/a", 1, "cannot inherit quota for 'tank/a': 'quota' property cannot be inherited"),
        ("zfs inherit nonsense tank/a", 2, "invalid property 'nonsense'\nusage:\n\tzfs inherit "),
        ("zfs get nonsense tank/a", 2, "bad property list: invalid property 'nonsense'\nusage:\n\tzfs get "),
        ("zfs list -o nonsense tank/a", 2, "bad property list: invalid property 'nonsense'\nusage:\n\tzfs list "),
        ("zfs list -t nonsense tank/a", 2, "invalid type 'nonsense'\nusage:\n\tzfs list "),
    ] {
        w.fails(line, code, text);
    }
    // Docker and podman look at the end of these.
    for line in ["zfs create tank/a", "zfs clone tank/a@one tank/c", "zfs snapshot tank/a@one"] {
        assert!(w.say(line).err.ends_with(": dataset already exists\n"), "{line}: {}", w.say(line).err);
    }
    for line in ["zfs list -Hp tank/nope", "zfs get -Hp all tank/nope", "zfs destroy -r tank/nope"] {
        assert!(w.say(line).err.ends_with(": dataset does not exist\n"), "{line}: {}", w.say(line).err);
    }
    assert_eq!(w.say("zfs rename tank/c tank/c/below/x").code, 1);
    w.ok("zpool export tank");
    let s = w.say("zfs list");
    assert_eq!((s.code, s.out.as_str(), s.err.as_str()), (0, "", "no datasets available\n"));
}

#[test]
fn a_snapshot_with_all_that_depends_on_it_goes_everywhere_below() {
    let w = World::new("zfs-destroy");
    for line in [
        "zfs create -p tank/a/b",
        "zfs snapshot -r tank/a@s",
        "zfs clone tank/a/b@s tank/clone",
        "zfs create tank/clone/below",
        "zfs snapshot tank/clone/below@t",
        "zfs clone tank/clone/below@t tank/far",
    ] {
        w.ok(line);
    }
    let plan = "destroy\ttank/far\ndestroy\ttank/clone/below@t\ndestroy\ttank/clone/below\ndestroy\ttank/clone\n\
                destroy\ttank/a@s\ndestroy\ttank/a/b@s\nreclaim\t0\n";
    let text = w.ok("zfs destroy -nRp tank/a@s");
    let mut got: Vec<&str> = text.lines().collect();
    let mut want: Vec<&str> = plan.lines().collect();
    // The order of file systems with equal standing is not fixed.
    got.sort_unstable();
    want.sort_unstable();
    assert_eq!(got, want);
    assert!(w.ok("zfs destroy -nvR tank/a@s").starts_with("would destroy tank/"));
    w.ok("zfs destroy -R tank/a@s");
    assert_eq!(w.ok("zfs list -H -o name -t all"), "tank\ntank/a\ntank/a/b\n");
    // All of a pool except its root.
    w.ok("zfs snapshot -r tank@x");
    w.ok("zfs destroy -r tank");
    assert_eq!(w.ok("zfs list -H -o name -t all"), "tank\n");
    // -d without clones is a plain destroy; with one it waits for it.
    w.ok("zfs create tank/d");
    w.ok("zfs snapshot tank/d@s");
    w.ok("zfs clone tank/d@s tank/e");
    w.ok("zfs destroy -d tank/d@s");
    assert_eq!(w.ok("zfs get -H -o value defer_destroy tank/d@s"), "on\n");
    w.ok("zfs destroy tank/e");
    w.fails("zfs list tank/d@s", 1, "cannot open 'tank/d@s': dataset does not exist");
}

#[test]
fn values_are_taken_and_refused_as_by_openzfs() {
    let w = World::new("zfs-values");
    w.ok("zfs create tank/a");
    let none = "use 'none' to disable quota/refquota";
    for prop in ["quota", "refquota"] {
        w.fails(&format!("zfs set {prop}=0 tank/a"), 1, &format!("cannot set property for 'tank/a': {none}"));
        w.fails(&format!("zfs create -o {prop}=0 tank/x"), 1, &format!("cannot create 'tank/x': {none}"));
        w.ok(&format!("zfs set {prop}=none tank/a"));
    }
    for prop in ["reservation", "refreservation"] {
        w.ok(&format!("zfs set {prop}=0 tank/a"));
        w.ok(&format!("zfs set {prop}=none tank/a"));
    }
    w.fails("zfs set refreservation=auto tank/a", 1, "cannot set property for 'tank/a': 'refreservation=auto' only");
    for line in [
        "zfs create -o quota=1G -o quota=1G tank/x",
        "zfs clone -o quota=1G -o quota=2G tank/a@s tank/x",
        "zfs set quota=1G quota=2G tank/a",
    ] {
        w.fails(line, 1, "property 'quota' specified multiple times");
    }
    w.fails("zfs set atime=off tank/a quota=1G", 2, "invalid argument order");
    w.fails("zfs snapshot -o a:b=1 -o a:b=2 tank/a@s", 1, "property 'a:b' specified multiple times");
    // Operations are plain numbers, bytes have their unit.
    w.ok("zfs set iolimit_op_total=100 iolimit_op_read=1500000 iolimit_bw_total=512 tank/a");
    let got = w.ok("zfs get -H -o value iolimit_op_total,iolimit_op_read,iolimit_bw_total tank/a");
    assert_eq!(got, "100\n1500000\n512B\n");
    // Snapshots inherit user properties.
    w.ok("zfs snapshot -o x:y=own tank/a@s");
    w.ok("zfs set x:y=above tank/a");
    assert_eq!(w.ok("zfs get -H -o value x:y tank/a@s"), "own\n");
    w.ok("zfs inherit x:y tank/a@s");
    assert_eq!(w.ok("zfs get -H -o value x:y tank/a@s"), "above\n");
    w.ok("zfs set x:y=own tank/a@s");
    w.ok("zfs inherit -r x:y tank");
    assert_eq!(w.ok("zfs get -H -o value x:y tank/a tank/a@s"), "-\n-\n");
    // Existing datasets are shown beside the error for a missing one.
    let s = w.say("zfs list -H -o name tank/nope tank/a");
    assert_eq!((s.code, s.out.as_str()), (1, "tank/a\n"), "{}", s.err);
    // Of several snapshots all are made, or none.
    let s = w.say("zfs snapshot tank/a@new tank@new tank/a@s");
    assert!(s.code == 1 && s.err.ends_with("\nno snapshots were created\n"), "{}", s.err);
    assert_eq!(w.ok("zfs list -H -o name -t snapshot"), "tank/a@s\n");
    assert_eq!(w.ok("zfs get -Hp written@s tank/a"), "tank/a\twritten@s\t0\tlocal\n");
    w.fails(
        "zfs create -o sharenfs=ON tank/x",
        1,
        "cannot create 'tank/x': 'sharenfs' cannot be set to invalid options",
    );
    // What is not mounted is not shared.
    assert_eq!(w.say("zfs create -o sharesmb=on tank/smb").err, "");
    w.fails("zfs share tank/a", 1, "cannot share 'tank/a': legacy share: use exports(5) or smb.conf(5)");
    w.fails("zfs share tank/smb", 1, "cannot share 'tank/smb': no mountpoint set");
    w.fails("zfs unshare tank/smb", 1, "cannot unshare 'tank/smb': not currently shared");
}

#[test]
fn a_creation_says_what_it_makes() {
    let w = World::new("zfs-create");
    assert_eq!(w.ok("zfs create -n tank/a"), "");
    assert_eq!(w.ok("zfs create -nv -o atime=off tank/a"), "would create tank/a\n\tatime=off\n");
    assert_eq!(w.ok("zfs create -nP -o atime=off tank/a"), "create\ttank/a\nproperty\tatime\toff\n");
    assert_eq!(w.ok("zfs create -npv tank/a/b"), "would create ancestors of tank/a/b\nwould create tank/a/b\n");
    w.fails("zfs create -n -o nonsense=1 tank/a", 1, "cannot verify 'tank/a': invalid property 'nonsense'");
    w.fails("zfs create -n nope/a", 1, "cannot open 'nope': no such pool");
    assert_eq!(w.ok("zfs list -H -o name"), "tank\n");
    assert_eq!(w.ok("zfs create -pv tank/a/b"), "create ancestors of tank/a/b\ncreate tank/a/b\n");
    assert_eq!(w.ok("zfs create -pP tank/a/c"), "create_ancestors\ttank/a/c\ncreate\ttank/a/c\n");
    assert_eq!(w.ok("zfs create -pv tank/a/c"), "");
    w.ok("zfs snapshot tank/a@s");
    w.ok("zfs bookmark @s tank/a#short");
    w.ok("zfs bookmark tank/a@s #other");
    assert_eq!(w.ok("zfs list -H -o name -t bookmark"), "tank/a#other\ntank/a#short\n");
}

#[test]
fn a_mount_loads_keys_where_asked() {
    if !can_mount("a_mount_loads_keys_where_asked") {
        return;
    }
    let w = World::new("zfs-keys");
    let at = w.dir.join("m").display().to_string();
    let new = format!("zfs create -o encryption=on -o keyformat=passphrase -o mountpoint={at} tank/e");
    assert_eq!(w.typing(&new, "password1\n").code, 0);
    for line in ["zfs mount -l tank/e", "zfs mount -al"] {
        w.ok("zfs unmount tank/e");
        w.ok("zfs unload-key tank/e");
        w.fails("zfs mount tank/e", 1, "cannot mount 'tank/e': encryption key not loaded");
        let s = w.typing(line, "password1\n");
        assert_eq!(s.code, 0, "{line}: {}", s.err);
        assert_eq!(w.ok("zfs get -H -o value mounted,keystatus tank/e"), "yes\navailable\n", "{line}");
    }
    // A child that inherits its key becomes an encryption root only with a keyformat.
    w.ok("zfs create tank/e/child");
    let s = w.typing("zfs change-key tank/e/child", "password2\n");
    assert!(s.code == 1 && s.err.contains("Keyformat required for new encryption root"), "{}", s.err);
    assert_eq!(w.typing("zfs change-key -o keyformat=passphrase tank/e/child", "password2\n").code, 0);
    w.ok("zfs destroy tank/e/child");
    // A file system in use is not unmounted; the message has the words that tools match.
    let held = std::fs::File::create(w.dir.join("m/f")).unwrap();
    w.fails("zfs unmount tank/e", 1, &format!("cannot unmount '{at}': pool or dataset is busy"));
    w.fails("zfs destroy tank/e", 1, &format!("cannot unmount '{at}': pool or dataset is busy"));
    drop(held);
}

/// Commands with several names process all, print the errors, and fail.
#[test]
fn a_name_that_is_not_there_keeps_none_of_the_others() {
    let w = World::new("zfs-several");
    w.ok("zfs create tank/a");
    w.ok("zfs snapshot tank@s tank/a@s");
    let nope = "cannot open 'tank/nope': dataset does not exist\n";
    let fails = |line: &str, err: &str| {
        let s = w.say(line);
        assert_eq!((s.code, s.err.as_str()), (1, err), "{line}");
        s.out
    };
    fails("zfs set atime=off tank/nope tank/a", nope);
    fails("zfs set x:y=1 tank/nope tank/a@s", nope);
    assert_eq!(w.ok("zfs get -H -o value -s local atime tank/a"), "off\n");
    assert_eq!(w.ok("zfs get -H -o value x:y tank/a@s"), "1\n");
    fails("zfs inherit atime tank/nope tank/a", nope);
    assert_eq!(w.ok("zfs get -H -o value,source atime tank/a"), "on\tdefault\n");
    let gone = "cannot open 'tank/a@nope': dataset does not exist\n";
    fails("zfs hold keep tank/a@nope tank/a@s tank@s", gone);
    let held = fails("zfs holds -H tank/a@s tank/a@nope tank@s", gone);
    let names: Vec<&str> = held.lines().map(|l| l.split('\t').next().unwrap()).collect();
    assert_eq!(names, ["tank/a@s", "tank@s"]);
    fails("zfs release keep tank/a@nope tank/a@s tank@s", gone);
    assert_eq!(w.ok("zfs holds -H tank/a@s tank@s"), "");
    w.fails("zfs rename tank/a@nope tank/a@other", 1, gone);
    w.fails("zfs rename -r tank@nope tank@other", 1, "cannot open 'tank@nope': dataset does not exist");
}

/// One pool in use does not keep the others.
#[test]
fn all_pools_are_exported_that_can_be() {
    if !can_mount("all_pools_are_exported_that_can_be") {
        return;
    }
    let w = World::new("zfs-export");
    let at = w.dir.join("m").display().to_string();
    w.ok(&format!("zpool create -m {at} --size 80M busy b.img"));
    let held = std::fs::File::create(w.dir.join("m/f")).unwrap();
    w.fails("zpool export -a", 1, &format!("cannot export 'busy': cannot unmount '{at}': pool or dataset is busy"));
    assert_eq!(w.ok("zpool list -H -o name"), "busy\n");
    drop(held);
    w.ok("zpool export -a");
}

#[test]
fn an_import_loads_keys_where_asked() {
    if !can_mount("an_import_loads_keys_where_asked") {
        return;
    }
    let w = World::new("zfs-import-keys");
    let at = w.dir.join("m").display().to_string();
    // Within the encrypted one there is another with a key of its own, and one that is not mounted
    // by itself.
    let new = "-o encryption=on -o keyformat=passphrase";
    assert_eq!(w.typing(&format!("zfs create {new} -o mountpoint={at} tank/e"), "password1\n").code, 0);
    assert_eq!(w.typing(&format!("zfs create {new} tank/e/own"), "password2\n").code, 0);
    w.ok("zfs create -o canmount=noauto tank/e/not");
    w.ok("zfs create tank/e/child");
    std::fs::write(w.dir.join("m/child/f"), b"text").unwrap();
    let mounted = |dir: &str| w.ok(&format!("zfs get -Hr -o name,value -t filesystem mounted {dir}"));
    let mine = "tank/e\tyes\ntank/e/child\tyes\ntank/e/not\tno\n";
    w.ok("zpool export tank");
    w.ok("zpool import -d . tank");
    assert_eq!(mounted("tank/e"), "tank/e\tno\ntank/e/child\tno\ntank/e/not\tno\ntank/e/own\tno\n");
    w.ok("zpool export tank");
    let s = w.typing("zpool import -l -d . tank", "password1\npassword2\n");
    assert_eq!((s.code, s.err.as_str()), (0, ""), "{}", s.out);
    assert_eq!(mounted("tank/e"), format!("{mine}tank/e/own\tyes\n"));
    assert_eq!(std::fs::read(w.dir.join("m/child/f")).unwrap(), b"text");
    w.ok("zpool export tank");
    // A missing key is reported, and stops neither the import nor the other keys.
    let s = w.typing("zpool import -l -d . tank", "password1\nwrongword\n");
    assert_eq!(s.code, 0, "{}", s.err);
    assert!(
        s.err.contains("'tank/e/own'") && s.err.contains("Import was successful, but unable to mount"),
        "{}",
        s.err
    );
    assert_eq!(mounted("tank/e"), format!("{mine}tank/e/own\tno\n"));
    w.ok("zpool export tank");
    w.fails("zpool import -l -N -d . tank", 2, "-l is incompatible with -N");
}

#[test]
fn a_mount_over_files_needs_a_letter_where_overlay_is_off() {
    if !can_mount("a_mount_over_files_needs_a_letter_where_overlay_is_off") {
        return;
    }
    let w = World::new("zfs-overlay");
    let at = w.dir.join("m").display().to_string();
    w.ok(&format!("zfs create -u -o overlay=off -o mountpoint={at} tank/a"));
    std::fs::create_dir(w.dir.join("m")).unwrap();
    std::fs::write(w.dir.join("m/below"), b"").unwrap();
    w.fails("zfs mount tank/a", 1, "cannot mount 'tank/a': directory is not empty");
    w.ok("zfs mount -O tank/a");
    assert!(!w.dir.join("m/below").exists());
    // The kernel has to know of this one, which takes a mount of its own.
    w.ok("zfs mount -o remount,noexec tank/a");
    assert_eq!(w.ok("zfs get -H -o value mounted,exec tank/a"), "yes\noff\n");
    w.ok("zfs unmount tank/a");
    w.ok("zfs set overlay=on tank/a");
    w.ok("zfs mount tank/a");
}

#[test]
fn versions_are_what_tools_parse() {
    let w = World { dir: TempDir::new("zfs-version").unwrap() };
    for program in ["zfs", "zpool"] {
        let text = w.ok(&format!("{program} version"));
        let [first, second] = text.lines().collect::<Vec<_>>()[..] else { panic!("{text}") };
        assert!(
            first.starts_with("zfs-2.1.") && first.ends_with(concat!("-weir", env!("CARGO_PKG_VERSION"))),
            "{first}"
        );
        assert_eq!(second, first.replace("zfs-", "zfs-kmod-"));
        assert_eq!(w.ok(&format!("{program} --version")), text);
        let json: serde_json::Value = serde_json::from_str(&w.ok(&format!("{program} version -j"))).unwrap();
        assert_eq!(json["zfs_version"]["userland"], first);
        assert_eq!(json["output_version"]["command"], format!("{program} version"));
    }
    assert!(w.ok("--version").starts_with(concat!("weir ", env!("CARGO_PKG_VERSION"))));
}

/// Real OpenZFS's dump of a stream: every sum is right. None if the program is not installed.
fn dumped(stream: &[u8], letters: &str) -> Option<String> {
    let mut c = Command::new("zstream");
    c.args(["dump", letters]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let Ok(mut child) = c.spawn() else {
        eprintln!("NOT RUN: zstream is not installed");
        return None;
    };
    let mut stdin = child.stdin.take().unwrap();
    let bytes = stream.to_vec();
    let feed = std::thread::spawn(move || stdin.write_all(&bytes));
    let out = child.wait_with_output().unwrap();
    feed.join().unwrap().unwrap();
    assert!(out.status.success() && out.stderr.is_empty(), "{}", String::from_utf8_lossy(&out.stderr));
    Some(String::from_utf8(out.stdout).unwrap())
}

#[test]
fn snapshots_are_sent_as_openzfs_reads_them() {
    let w = World::new("zfs-send");
    let mount = w.dir.join("m").display().to_string();
    w.ok(&format!("zfs create -o recordsize=16k -o mountpoint={mount} tank/a"));
    let files = can_mount("snapshots_are_sent_as_openzfs_reads_them");
    if files {
        std::fs::write(w.dir.join("m/big"), vec![7; 300_000]).unwrap();
        std::fs::write(w.dir.join("m/small"), "small").unwrap();
    }
    w.ok("zfs snapshot tank/a@one");
    if files {
        std::fs::remove_file(w.dir.join("m/small")).unwrap();
        std::fs::write(w.dir.join("m/new"), vec![9; 50_000]).unwrap();
    }
    w.ok("zfs snapshot tank/a@two");
    w.ok("zfs clone -o mountpoint=none tank/a@one tank/c");
    w.ok("zfs snapshot tank/c@three");
    for (letters, source) in [
        ("", "tank/a@one"),
        ("-L -e -c ", "tank/a@two"),
        ("-w ", "tank/a@two"),
        ("-i @one ", "tank/a@two"),
        ("-ci tank/a@one ", "tank/a@two"),
        ("-i tank/a@one ", "tank/c@three"),
    ] {
        let out = w.command(&format!("zfs send {letters}{source}")).output().unwrap();
        assert!(out.status.success(), "{letters}{source}: {}", String::from_utf8_lossy(&out.stderr));
        let stream = out.stdout;
        let path = w.dir.join("stream");
        std::fs::write(&path, &stream).unwrap();
        for dump in ["-v", "-d"] {
            let ours = w.ok(&format!("zstream dump {dump} {}", path.display()));
            assert!(ours.contains(&format!("\ttoname = {source}\n")), "{ours}");
            let incremental = !ours.contains("\tfromguid = 0\n");
            assert_eq!(incremental, letters.contains('i'), "{letters}");
            if let Some(theirs) = dumped(&stream, dump) {
                assert!(ours == theirs, "{letters}{source} {dump}");
            }
        }
        let summary = w.ok(&format!("zstream dump {}", path.display()));
        let writes = summary.lines().find_map(|l| l.strip_prefix("\tTotal DRR_WRITE records = ")).unwrap();
        let writes: u64 = writes.split(' ').next().unwrap().parse().unwrap();
        if files && !letters.contains('e') && source == "tank/a@one" {
            // 300,000 bytes in blocks of 16 KiB, besides those of the directory and the like.
            assert!(writes >= 19, "{summary}");
        }
    }
    // A reader that has enough ends the work; the pool is free afterwards.
    let mut child = w.command("zfs send tank/a@two").stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    drop(child.stdout.take());
    child.wait().unwrap();
    w.fails(
        "zfs send tank/a@two -i @nope",
        1,
        "cannot send 'tank/a@two': incremental source (tank/a@nope) does not exist",
    );
    w.fails(
        "zfs send -i @two tank/a@one",
        1,
        "cannot send 'tank/a@one': 'tank/a@two' is not an earlier snapshot from the same fs",
    );
    w.fails("zfs send tank/a", 1, "cannot send 'tank/a': target is busy; if a filesystem, it must not be mounted");
    // A bookmark stands for its snapshot, whether that is there or not.
    let sent = |line: &str| w.command(line).output().unwrap().stdout;
    let from_snapshot = sent("zfs send -i @one tank/a@two");
    w.ok("zfs bookmark tank/a@one tank/a#m");
    assert!(sent("zfs send -i #m tank/a@two") == from_snapshot);
    for (letters, text) in
        [("-nP", "incremental\ttank/a#m\ttank/a@two\t"), ("-nv", "send from tank/a#m to tank/a@two ")]
    {
        let said = w.ok(&format!("zfs send {letters} -i #m tank/a@two"));
        assert!(said.starts_with(text), "{said}");
    }
    let dry = |from: &str| w.ok(&format!("zfs send -nP -i {from} tank/a@two"));
    let size = |said: String| said.trim_end().rsplit('\t').next().unwrap().parse::<u64>().unwrap();
    assert_eq!(size(dry("tank/a#m")), from_snapshot.len() as u64);
    // The estimate knows nothing of metadata.
    assert!(size(dry("@one")).abs_diff(from_snapshot.len() as u64) < 100_000);
    w.ok("zfs destroy tank/c -r");
    w.ok("zfs destroy tank/a@one");
    assert!(sent("zfs send -i tank/a#m tank/a@two") == from_snapshot);
    w.fails(
        "zfs send -n -i #nope tank/a@two",
        1,
        "cannot send 'tank/a@two': incremental source (tank/a#nope) does not exist",
    );
    w.ok("zfs bookmark tank/a@two tank/a#late");
    w.fails(
        "zfs send -i #late tank/a@two",
        1,
        "cannot send 'tank/a@two': 'tank/a#late' is not an earlier snapshot from the same fs",
    );
    w.fails("zfs send", 2, "missing snapshot argument");
    w.ok("zpool export tank");
}

#[test]
fn packages_are_read_by_openzfs() {
    let w = World::new("zfs-package");
    w.ok("zfs create -o compression=lz4 -o atime=off tank/a");
    w.ok("zfs create tank/a/b");
    w.ok("zfs snapshot -r -o user:note=x tank/a@one");
    w.ok("zfs clone tank/a/b@one tank/a/c");
    w.ok("zfs snapshot tank/a/c@one");
    w.ok("zfs snapshot -r tank/a@two");
    w.ok("zfs snapshot -r tank/a@three");
    w.ok("zfs hold kept tank/a@two");
    for (letters, lines) in [
        ("-R", "full tank/a@one\nincremental one tank/a@two\nincremental two tank/a@three\n"),
        ("-Rh -i @one", "incremental one tank/a@three\n"),
        ("-I tank/a@one", "incremental one tank/a@two\nincremental two tank/a@three\n"),
        ("-ph", "full tank/a@three\n"),
        ("-p -i @two", "incremental tank/a@two tank/a@three\n"),
        ("-b", "full tank/a@three\n"),
    ] {
        let out = w.command(&format!("zfs send {letters} tank/a@three")).output().unwrap();
        assert!(out.status.success(), "{letters}: {}", String::from_utf8_lossy(&out.stderr));
        let path = w.dir.join("stream");
        std::fs::write(&path, &out.stdout).unwrap();
        let ours = w.ok(&format!("zstream dump -v {}", path.display()));
        assert!(ours.contains("\thdrtype = 2\n") && ours.contains("\ttoname = tank/a@three\n"), "{ours}");
        if let Some(theirs) = dumped(&out.stdout, "-v") {
            assert!(ours == theirs, "{letters}");
        }
        // What it says before is what it sends; the size without what the estimate does not know.
        let said = w.ok(&format!("zfs send -nP {letters} tank/a@three"));
        let of_top: String = said
            .lines()
            .filter(|l| !l.starts_with("size\t") && !l.contains("tank/a/"))
            .map(|l| l.rsplit_once('\t').unwrap().0.replace('\t', " ") + "\n")
            .collect();
        assert_eq!(of_top, lines, "{letters}");
        let parts = said.lines().count() - 1;
        assert_eq!(ours.matches("\thdrtype = 1\n").count(), parts, "{letters}: {said}");
        assert!(said.lines().last().unwrap().starts_with("size\t"), "{said}");
    }
    let text = w.say("zfs send -v -I @one tank/a@three");
    assert!(text.code == 0 && text.err.starts_with("send from @one to tank/a@two estimated size is "), "{}", text.err);
    // A file system without the snapshot.
    w.ok("zfs create tank/a/new");
    w.ok("zfs snapshot tank/a@four");
    // Which one comes first is the order of the kernel.
    let missing = "cannot send tank/a@four recursively: snapshot tank/a/";
    w.fails("zfs send -nR tank/a@four", 1, missing);
    let s = w.say("zfs send -nPRs -i @three tank/a@four");
    assert!(s.code == 0 && s.out.starts_with("incremental\tthree\ttank/a@four\t"), "{}{}", s.out, s.err);
    for name in ["b", "c", "new"] {
        let warning =
            format!("WARNING: skipping dataset tank/a/{name} and its children: snapshot four does not exist\n");
        assert!(s.err.contains(&warning), "{}", s.err);
    }
    let s = w.say("zfs send -nPRs -X tank/a/b,tank/a/c,tank/a/new -i @three tank/a@four");
    assert!(s.code == 0 && s.err.is_empty(), "{}{}", s.out, s.err);
    w.fails(
        "zfs send -n -I @four tank/a@three",
        1,
        "WARNING: could not send tank/a@three:\nincremental source (tank/a@four)",
    );
    w.fails("zfs send -n -I tank/a/b@one tank/a@three", 1, "incremental source must be in same filesystem");
    w.fails("zfs send -n -I @nope tank/a@three", 1, "cannot open 'tank/a@nope': dataset does not exist");
    w.fails("zfs send -n -t 1-0-0-", 1, "cannot resume send: resume token is corrupt");
    w.fails("zfs send -n -S tank/a", 1, "cannot send 'tank/a': it has no partially received state");
    w.fails("zfs send -n -S tank/nope", 1, "cannot open 'tank/nope': dataset does not exist");
    w.ok("zpool export tank");
}

#[test]
fn a_diff_lists_what_changed() {
    if !can_mount("a_diff_lists_what_changed") {
        return;
    }
    let w = World::new("zfs-diff");
    let mount = w.dir.join("m").display().to_string();
    w.ok(&format!("zfs create -o mountpoint={mount} tank/a"));
    let file = |name: &str| w.dir.join("m").join(name);
    for name in ["gone", "old name", "linked", "changed"] {
        std::fs::write(file(name), name).unwrap();
    }
    w.ok("zfs snapshot tank/a@one");
    std::fs::remove_file(file("gone")).unwrap();
    std::fs::rename(file("old name"), file("näme")).unwrap();
    std::fs::hard_link(file("linked"), file("again")).unwrap();
    std::fs::write(file("changed"), "later").unwrap();
    std::fs::create_dir(file("dir")).unwrap();
    let sorted = |text: String| {
        let mut lines: Vec<String> = text.lines().map(|l| l.replace(&mount, "")).collect();
        lines.sort();
        lines.join("\n")
    };
    let want = "+\t/dir\n-\t/gone\nM\t/\nM\t/changed\nM\t/linked\t(+1)\nR\t/old\\0040name -> /n\\0303\\0244me";
    assert_eq!(sorted(w.ok("zfs diff tank/a@one")), want);
    assert_eq!(sorted(w.ok("zfs diff @one tank/a")), want);
    // The snapshot of the present state is gone again.
    assert_eq!(w.ok("zfs list -H -t snapshot -o name -r tank/a"), "tank/a@one\n");
    w.ok("zfs snapshot tank/a@two");
    assert_eq!(sorted(w.ok("zfs diff tank/a@one @two")), want);
    let classified = "+\t/\t/dir\n-\tF\t/gone\nM\t/\t/\nM\tF\t/changed\nM\tF\t/linked\t(+1)\nR\tF\t/old name\t/näme";
    assert_eq!(sorted(w.ok("zfs diff -FHh tank/a@one tank/a@two")), classified);
    assert_eq!(sorted(w.ok("zfs diff -h -FH tank/a@one tank/a@two")), classified);
    let times = w.ok("zfs diff -t tank/a@one tank/a@two");
    let is_time = |t: &str| t.split_once('.').is_some_and(|(s, n)| s.len() == 10 && n.len() == 9);
    assert!(times.lines().all(|l| is_time(l.split('\t').next().unwrap())), "{times}");
    assert_eq!(w.ok("zfs diff tank/a@two"), "");
    for (line, code, text) in [
        ("zfs diff", 2, "must provide at least one snapshot name"),
        ("zfs diff a b c", 2, "too many arguments"),
        ("zfs diff tank/a", 1, "Badly formed snapshot name tank/a"),
        ("zfs diff @one @two", 1, "Unable to determine which snapshots to compare"),
        ("zfs diff tank/a@two tank/a@one", 1, "Unable to obtain diffs: 'tank/a@two' is not an earlier snapshot"),
        ("zfs diff tank/a@nope", 1, "cannot open 'tank/a@nope': dataset does not exist"),
        ("zfs diff tank/nope@one", 1, "cannot open 'tank/nope': dataset does not exist"),
    ] {
        w.fails(line, code, text);
    }
    w.ok("zfs unmount tank/a");
    w.fails("zfs diff tank/a@one tank/a@two", 1, "Cannot diff an unmounted snapshot: 'tank/a' is not mounted");
    w.ok("zpool export tank");
}

#[test]
fn forms_of_names_go_to_what_is_made_below() {
    let w = World::new("forms");
    let forms = |fs: &str| w.ok(&format!("zfs get -H -o value normalization,utf8only,casesensitivity {fs}"));
    w.ok("zfs create -o normalization=formD -o casesensitivity=mixed tank/a");
    assert_eq!(forms("tank/a"), "formD\non\nmixed\n");
    w.ok("zfs create -p tank/a/b/c");
    w.ok("zfs create -o utf8only=off -o casesensitivity=sensitive tank/a/plain");
    w.ok("zfs create tank/other");
    w.ok("zfs rename -p tank/other tank/a/made/other");
    for fs in ["tank/a/b", "tank/a/b/c", "tank/a/made"] {
        assert_eq!(forms(fs), "formD\non\nmixed\n", "{fs}");
    }
    assert_eq!(forms("tank/a/plain"), "none\noff\nsensitive\n");
    assert_eq!(forms("tank/a/made/other"), "none\noff\nsensitive\n");
    let why = "cannot create 'tank/x': 'utf8only' must be set 'on' if normalization chosen";
    w.fails("zfs create -o utf8only=off -o normalization=formC tank/x", 1, why);
}

#[test]
fn file_systems_are_of_the_newest_version() {
    let w = World::new("versions");
    w.ok("zfs create -p tank/a/b");
    let none = "This system is currently running ZFS filesystem version 5.\n\n\
                All filesystems are formatted with the current version.\n";
    assert_eq!(w.ok("zfs upgrade"), none);
    assert!(w.ok("zfs upgrade -v").contains("\n 2   Enhanced directory entries\n"));
    assert_eq!(w.ok("zfs upgrade -r tank/a"), "0 filesystems upgraded\n2 filesystems already at this version\n");
    assert!(w.ok("zfs upgrade -a -V 5").contains("3 filesystems already"));
    let s = w.say("zfs upgrade -V 4 tank/a");
    assert_eq!((s.code, s.out.lines().next()), (1, Some("tank/a: can not be downgraded; it is already at version 5")));
    for bad in ["-V 6 tank", "-V x tank", "-V 5", "-r", "-v tank", "-a tank"] {
        assert_eq!(w.say(&format!("zfs upgrade {bad}")).code, 2, "{bad}");
    }
    // A clone takes it as well.
    w.ok("zfs snapshot tank/a@s");
    w.ok("zfs clone -o version=5 tank/a@s tank/clone");
    assert_eq!(w.say("zfs clone -o version=4 tank/a@s tank/older").code, 1);
}

#[test]
fn new_vdevs_on_files_have_the_unit_that_is_set() {
    let w = World::new("ashift");
    let ashift = |pool: &str, n: usize| {
        let top = format!("zpool get -H -o value ashift {pool} {}", w.dir.join(&format!("{n}.img")).display());
        w.ok(&top).trim().to_string()
    };
    let make = |line: &str| w.ok(&format!("{line} --size 128M"));
    w.ok("tune set vdev_file_physical_ashift=14");
    w.ok("zpool create -O mountpoint=none --size 128M p 1.img");
    make("zpool add p 2.img");
    make("zpool add -o ashift=9 p 3.img");
    w.ok("tune set vdev_file_physical_ashift=default");
    make("zpool add p 4.img");
    // More than is chosen by itself.
    w.ok("tune set vdev_file_physical_ashift=15");
    make("zpool add p 6.img");
    w.ok("zpool set ashift=10 p");
    w.ok("tune set vdev_file_physical_ashift=16");
    make("zpool add p 5.img");
    assert_eq!([1, 2, 3, 4, 5, 6].map(|n| ashift("p", n)), ["14", "14", "9", "12", "10", "12"]);
}

#[test]
fn names_are_as_openzfs_takes_them() {
    let w = World::new("names");
    w.ok("zfs snapshot tank@a");
    w.ok("zfs rename tank@a b");
    w.ok("zfs rename tank@b @c");
    w.ok("zfs list tank@c");
    w.fails("zfs destroy -r /tank", 1, "cannot open '/tank': leading slash in name");
    // What is not encrypted may stand below what is, and stays as it is.
    std::fs::write(w.dir.join("key"), "correct horse battery").unwrap();
    let key = format!("-o keyformat=passphrase -o keylocation=file://{}", w.dir.join("key").display());
    w.ok(&format!("zfs create -o encryption=on {key} tank/e"));
    w.ok("zfs create tank/plain");
    w.ok("zfs rename tank/plain tank/e/plain");
    assert_eq!(w.ok("zfs get -H -o value encryption tank/e/plain"), "off\n");
    // Values that say nothing new are taken.
    w.ok("zfs set keylocation=none tank/e/plain");
    let why = "'tank/e/plain' is no encryption root: keylocation belongs to the dataset that has the key";
    w.fails("zfs set keylocation=prompt tank/e/plain", 1, &format!("cannot set property for 'tank/e/plain': {why}"));
    w.ok("zfs set checksum=noparity tank/e/plain");
    assert_eq!(w.ok("zfs get -H -o value checksum tank/e/plain"), "noparity\n");
}

#[test]
fn what_is_listed_is_of_the_type_and_depth() {
    let w = World::new("list-types");
    w.ok("zfs snapshot tank@a");
    let list = |line: &str| w.ok(&format!("zfs list -H -o name {line} tank"));
    assert_eq!(list("-t snapshot"), "tank@a\n");
    assert_eq!(list("-t snapshot -d 1"), "tank@a\n");
    assert_eq!(list("-t snapshot -d 0"), "");
    assert_eq!(list("-t volume -d 0"), "");
    assert_eq!(list("-t volume -r"), "");
    assert_eq!(list("-t all -d 0"), "tank\n");
    for path in ["/nonexistent/x", "./x", "/dev/null/x"] {
        let text = format!("cannot open '{path}': no such file or directory");
        w.fails(&format!("zfs list {path}"), 1, &text);
        w.fails(&format!("zfs get -t snapshot name {path}"), 1, &text);
    }
}

#[test]
fn snapshots_of_two_pools_are_no_one_moment() {
    let w = World::new("two-pools");
    w.ok("zpool create -O mountpoint=none --size 128M two b.img");
    let text = "cannot create snapshots in pool 'tank': 'two@s' is in another pool";
    w.fails("zfs snapshot tank@s two@s", 1, text);
    assert_eq!(w.ok("zfs list -H -t snapshot"), "");
}

#[test]
fn a_new_name_leaves_room_for_those_of_snapshots() {
    let w = World::new("long-rename");
    let (short, snap) = ("s".repeat(10), "x".repeat(200));
    w.ok(&format!("zfs create -p tank/a/{short}"));
    w.ok(&format!("zfs snapshot tank/a/{short}@{snap}"));
    let longer = "l".repeat(60);
    w.fails(&format!("zfs rename tank/a tank/{longer}"), 1, "cannot rename 'tank/a': name is too long");
    w.fails(&format!("zfs rename tank/a/{short} tank/{longer}"), 1, "cannot rename");
    w.ok(&format!("zfs rename tank/a tank/{}", &longer[..20]));
    w.fails("zfs create -s -V 1z tank/v", 1, "bad volume size '1z': numeric value is too large");
    w.fails("zfs create -s -p -V 1m tank", 1, "cannot create 'tank': dataset already exists");
    for line in ["zfs get all,used tank", "zpool get all,size tank"] {
        w.fails(line, 2, "bad property list: invalid property 'all'");
    }
    w.fails("zfs create -s -V 1.01BB tank/v", 1, "bad volume size '1.01BB': bad numeric value");
}
