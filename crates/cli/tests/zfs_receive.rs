//! `zfs receive` from outside: pipes from `zfs send`, what it says, streams that break off.
#![allow(clippy::unwrap_used)]

mod common;

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::process::Stdio;

use base::Guid;
use codec::checksum::Endian;
use common::world::World;
use common::{Outcome, WEIR, outcome_of};
use ondisk::nvlist::NvList;
use ondisk::stream::record::{Begin, End};
use ondisk::stream::{Record, StreamWriter};

fn words(line: &str) -> Vec<&str> {
    line.split_whitespace().collect()
}

/// `weir SEND | weir RECEIVE`: the outcome of the latter.
fn piped(w: &World, send: &str, receive: &str) -> Outcome {
    let mut from = w.command(WEIR).args(words(send)).stdout(Stdio::piped()).spawn().unwrap();
    let out = w.command(WEIR).args(words(receive)).stdin(from.stdout.take().unwrap()).output().unwrap();
    from.wait().unwrap();
    outcome_of(out)
}

/// `weir LINE < FILE`
fn fed(w: &World, file: &str, line: &str) -> Outcome {
    let input = File::open(w.dir.join(file)).unwrap();
    outcome_of(w.command(WEIR).args(words(line)).stdin(input).output().unwrap())
}

/// A daemon with the pool `tank` and the file system `tank/a` with two snapshots.
fn world(tag: &str) -> World {
    let w = World::without_mounts(tag);
    File::create(w.dir.join("d")).unwrap().set_len(192 << 20).unwrap();
    w.ok(&format!("zpool create -O mountpoint=none tank {}", w.path("d")));
    w.ok("zfs create -o x:y=z tank/a");
    w.ok("zfs snapshot tank/a@one");
    w.ok("zfs snapshot tank/a@two");
    w
}

fn value(w: &World, what: &str, name: &str) -> String {
    w.ok(&format!("zfs get -Hp -o value {what} {name}")).trim_end().to_string()
}

#[test]
fn what_is_sent_is_received() {
    let w = world("zfs-receive");
    let got = piped(&w, "zfs send tank/a@one", "zfs receive -v tank/b");
    assert_eq!(got.code, 0, "{}", got.err);
    let lines: Vec<&str> = got.out.lines().collect();
    assert_eq!(lines[0], "receiving full stream of tank/a@one into tank/b@one");
    assert!(lines[1].starts_with("received ") && lines[1].ends_with("/sec)"), "{}", lines[1]);
    assert_eq!(value(&w, "guid", "tank/b@one"), value(&w, "guid", "tank/a@one"));
    assert_eq!(value(&w, "creation", "tank/b@one"), value(&w, "creation", "tank/a@one"));
    let got = piped(&w, "zfs send -i @one tank/a@two", "zfs recv -nv tank/b");
    assert_eq!((got.code, got.out.as_str()), (0, "would receive incremental stream of tank/a@two into tank/b@two\n"));
    let got = piped(&w, "zfs send -i @one tank/a@two", "zfs recv tank/b@other");
    assert_eq!((got.code, got.out.as_str()), (0, ""), "{}", got.err);
    assert_eq!(value(&w, "guid", "tank/b@other"), value(&w, "guid", "tank/a@two"));
    // It is there already.
    let got = piped(&w, "zfs send -i @one tank/a@two", "zfs receive -v tank/b@other");
    assert!(got.code == 0 && got.out.contains("snap tank/b@other already exists; ignoring"), "{}{}", got.out, got.err);
    for (receive, name) in [("-d", "tank/below/a@one"), ("-e", "tank/below/other/a@one")] {
        let target = name.rsplit_once("/a@").unwrap().0;
        w.ok(&format!("zfs create -p {target}"));
        let got = piped(&w, "zfs send tank/a@one", &format!("zfs receive {receive} {target}"));
        assert_eq!(got.code, 0, "{}", got.err);
        assert_eq!(value(&w, "guid", name), value(&w, "guid", "tank/a@one"));
    }
    let got = piped(&w, "zfs send tank/a@one", "zfs receive -u -o compression=zstd -o u:v=w tank/props");
    assert_eq!(got.code, 0, "{}", got.err);
    assert_eq!(value(&w, "compression,u:v", "tank/props"), "zstd\nw");
    let history = w.ok("zpool history tank");
    assert!(history.contains("zfs receive -v tank/b\n") && !history.contains("recv -nv"), "{history}");
    assert!(!w.ok("zfs list -r tank").contains('%'));
    w.ok("zpool export tank");
}

#[test]
fn refusals_are_openzfss() {
    let w = world("zfs-receive-no");
    let two = "zfs send -i @one tank/a@two";
    for (send, receive, why) in [
        (
            "zfs send tank/a@one",
            "zfs receive tank/a",
            "cannot receive new filesystem stream: destination 'tank/a' exists\nmust specify -F to overwrite it",
        ),
        ("zfs send tank/a@one", "zfs receive -F tank/a@x", "destination has snapshots (eg. tank/a@one)"),
        (two, "zfs receive tank/no", "cannot receive incremental stream: destination 'tank/no' does not exist"),
        (two, "zfs receive nopool/x", "no such pool"),
        ("zfs send tank/a@one", "zfs receive -e tank/x@y", "snapshot not allowed with -e"),
        ("zfs send tank/a@one", "zfs receive -d tank/none", "specified fs (tank/none) does not exist"),
        ("zfs send tank/a@one", "zfs receive -e tank/none", "specified fs (tank/none) does not exist"),
        ("zfs send tank/a@one", "zfs receive -o origin=tank/no@x tank/x", "local origin for clone"),
        ("zfs send tank/a@one", "zfs receive -o used=1 tank/x", "'used' is readonly"),
        ("zfs send tank/a@one", "zfs receive -o encryption=on tank/x", "'tank/x' needs a key"),
        ("zfs send tank/a@one", "zfs receive -o encryption=on -o keyformat=hex tank/x", "because stdin is in use"),
        (two, "zfs receive -o encryption=on tank/a", "property 'encryption' cannot be set for incremental streams."),
        ("zfs send tank/a@one", "zfs receive -x nonsense tank/x", "invalid property 'nonsense'"),
        ("zfs send tank/a@one", "zfs receive -c -F tank/a@one", "corrective recv can not be used when combined with"),
        ("zfs send tank/a@one", "zfs receive -c tank/a@no", "must specify an existing snapshot to heal"),
        ("zfs send tank/a@one", "zfs receive -c tank/a@two", "doesn't match the snapshot in the provided stream"),
        ("zfs get all tank/a", "zfs receive tank/x", "not a send stream"),
    ] {
        let got = piped(&w, send, receive);
        assert!(got.code == 1 && got.err.contains(why), "{receive}: {} {}", got.code, got.err);
    }
    w.ok("zfs create tank/c");
    let got = piped(&w, two, "zfs receive tank/c");
    assert!(got.err.contains("most recent snapshot of tank/c does not\nmatch incremental source"), "{}", got.err);
    for (line, code, why) in [
        ("zfs receive", 2, "missing snapshot argument"),
        ("zfs receive -d -e tank", 2, "exclude each other"),
        ("zfs receive -A -v tank/a", 2, "invalid option used with -A"),
        ("zfs receive -A tank/a", 1, "does not have any resumable receive state to abort"),
    ] {
        let got = w.say(line);
        assert!(got.code == code && got.err.contains(why), "{line}: {} {}", got.code, got.err);
    }
    w.ok("zpool export tank");
}

#[test]
fn a_stream_that_breaks_off_goes_on_by_its_token() {
    let w = world("zfs-receive-rest");
    let stream = w.command(WEIR).args(words("zfs send tank/a@one")).output().unwrap().stdout;
    std::fs::write(w.dir.join("half"), &stream[..stream.len() / 2]).unwrap();
    let got = fed(&w, "half", "zfs receive -s tank/b");
    assert!(got.code == 1 && got.err.contains("Partially received snapshot is saved.\n"), "{}", got.err);
    let token = got.err.split("zfs send -t ").nth(1).unwrap().trim().to_string();
    assert_eq!(value(&w, "receive_resume_token", "tank/b"), token);
    assert!(w.ok("zfs get all tank/b").contains("receive_resume_token"));
    assert!(!w.ok("zfs get all tank/a").contains("receive_resume_token"));
    w.fails("zfs mount tank/b", &["cannot mount"]);
    let said = w.ok("zfs list -Hp -o name,inconsistent -t filesystem,snapshot -r tank");
    assert_eq!(said, "tank\t0\ntank/a\t0\ntank/a@one\t0\ntank/a@two\t0\ntank/b\t1\n");
    // It is still there after a restart.
    w.ok("zpool export tank");
    w.ok(&format!("zpool import -d {} tank", w.path("")));
    let said = w.ok(&format!("zfs send -nv -t {token}"));
    assert!(said.starts_with("resume token contents:\n") && said.contains("\ttoname = tank/a@one\n"), "{said}");
    let again = piped(&w, "zfs send tank/a@one", "zfs receive -s tank/b");
    assert!(again.code == 1 && again.err.contains("contains partially-complete state"), "{}", again.err);
    let got = piped(&w, &format!("zfs send -t {token}"), "zfs receive -s tank/b");
    assert_eq!(got.code, 0, "{}", got.err);
    assert_eq!(value(&w, "guid", "tank/b@one"), value(&w, "guid", "tank/a@one"));
    assert_eq!(value(&w, "receive_resume_token", "tank/b"), "-");
    // Without -s nothing is kept; what is kept can be given up.
    assert_eq!(fed(&w, "half", "zfs receive tank/c").code, 1);
    w.fails("zfs list tank/c", &["does not exist"]);
    assert_eq!(fed(&w, "half", "zfs receive -s tank/c").code, 1);
    w.fails("zfs snapshot tank/c@x", &["was received in part only"]);
    w.ok("zfs snapshot -r tank@all");
    w.fails("zfs list tank/c@all", &["does not exist"]);
    w.ok("zfs receive -A tank/c");
    w.fails("zfs list tank/c", &["does not exist"]);
    w.ok("zpool export tank");
}

#[test]
fn a_mounted_file_system_is_replaced() {
    let Some(w) = World::new("zfs-receive-mounted") else { return };
    File::create(w.dir.join("d")).unwrap().set_len(192 << 20).unwrap();
    w.ok(&format!("zpool create -O mountpoint={} tank {}", w.path("m"), w.path("d")));
    w.ok("zfs create tank/a");
    std::fs::write(w.dir.join("m/a/file"), "one").unwrap();
    w.ok("zfs snapshot tank/a@one");
    std::fs::write(w.dir.join("m/a/file"), "two").unwrap();
    w.ok("zfs snapshot tank/a@two");
    let got = piped(&w, "zfs send tank/a@one", "zfs receive tank/b");
    assert_eq!(got.code, 0, "{}", got.err);
    assert!(w.is_mounted("tank/b"));
    assert_eq!(std::fs::read_to_string(w.dir.join("m/b/file")).unwrap(), "one");
    let got = piped(&w, "zfs send -i @one tank/a@two", "zfs receive -F tank/b");
    assert_eq!(got.code, 0, "{}", got.err);
    assert!(w.is_mounted("tank/b"));
    assert_eq!(std::fs::read_to_string(w.dir.join("m/b/file")).unwrap(), "two");
    assert_eq!(std::fs::read_to_string(w.dir.join("m/b/.zfs/snapshot/one/file")).unwrap(), "one");
    // An increment that breaks off changes nothing; a change since makes it impossible without -F.
    std::fs::write(w.dir.join("m/a/file"), "three").unwrap();
    w.ok("zfs snapshot tank/a@three");
    let stream = w.command(WEIR).args(words("zfs send -i @two tank/a@three")).output().unwrap().stdout;
    std::fs::write(w.dir.join("half"), &stream[..stream.len() - 400]).unwrap();
    std::fs::write(w.dir.join("whole"), &stream).unwrap();
    assert_eq!(fed(&w, "half", "zfs receive tank/b").code, 1);
    assert_eq!(value(&w, "receive_resume_token", "tank/b"), "-");
    assert_eq!(fed(&w, "half", "zfs receive -s tank/b").code, 1);
    assert_ne!(value(&w, "receive_resume_token", "tank/b"), "-");
    assert!(w.is_mounted("tank/b"));
    assert_eq!(std::fs::read_to_string(w.dir.join("m/b/file")).unwrap(), "two");
    assert!(!w.ok("zfs list -r tank").contains('%'));
    w.ok("zfs receive -A tank/b");
    assert_eq!(value(&w, "receive_resume_token", "tank/b"), "-");
    std::fs::write(w.dir.join("m/b/file"), "mine").unwrap();
    let got = fed(&w, "whole", "zfs receive tank/b");
    assert!(got.code == 1 && got.err.contains("has been modified\nsince most recent snapshot"), "{}", got.err);
    assert_eq!(std::fs::read_to_string(w.dir.join("m/b/file")).unwrap(), "mine");
    let got = fed(&w, "whole", "zfs receive -F tank/b");
    assert_eq!(got.code, 0, "{}", got.err);
    assert_eq!(std::fs::read_to_string(w.dir.join("m/b/file")).unwrap(), "three");
    // A file system goes with what it has received in part.
    w.ok("zfs rollback -r tank/b@two");
    assert_eq!(fed(&w, "half", "zfs receive -s tank/b").code, 1);
    w.ok("zfs destroy -r tank/b");
    w.ok("zpool export tank");
}

/// A package as `zfs send -R` of OpenZFS writes it: a list, and streams.
fn package(list: &NvList, top: &str, subs: &[Vec<u8>]) -> Vec<u8> {
    let list = list.encode_xdr();
    let begin = Begin {
        payload_len: list.len() as u32,
        version_info: Begin::PACKAGE,
        to_name: top.as_bytes().to_vec(),
        ..Begin::default()
    };
    let mut writer = StreamWriter::new(Endian::Little);
    let mut out = writer.record(&Record::Begin(begin), &list).to_vec();
    out.extend(list);
    out.extend(writer.end(Guid(0)));
    subs.iter().for_each(|sub| out.extend(sub));
    out.extend(Record::End(End::default()).encode(Endian::Little));
    out
}

#[test]
fn packages_bring_a_tree_and_follow_it() {
    let w = world("zfs-receive-package");
    w.ok("zfs create tank/a/kid");
    w.ok("zfs create tank/a/other");
    w.ok("zfs snapshot -r tank/a@1");
    let guid = |w: &World, name: &str| value(w, "guid", name).parse::<u64>().unwrap();
    let sent = |line: &str| w.command(WEIR).args(words(line)).output().unwrap().stdout;
    let fs = |name: &str, parent: u64, snaps: &[(&str, u64)]| {
        let guids = snaps.iter().fold(NvList::new(), |list, (snap, guid)| list.with_u64(snap, *guid));
        let props = NvList::new().with_str("x:y", "received").with_u64("recordsize", 65_536);
        let props = props.with_u64("copies", 77).with_u64("refquota", 50 << 20);
        let holds = NvList::new().with_list("1", NvList::new().with_u64("keep", 1));
        let fs = NvList::new().with_str("name", name).with_u64("parentfromsnap", parent).with_list("props", props);
        fs.with_list("snaps", guids).with_list("snapholds", holds)
    };
    let ones: Vec<u64> = ["tank/a", "tank/a/kid", "tank/a/other"].map(|f| guid(&w, &format!("{f}@1"))).to_vec();
    let list = NvList::new().with_str("tosnap", "1").with_list(
        "fss",
        NvList::new()
            .with_list("0x1", fs("tank/a", 0, &[("1", ones[0])]))
            .with_list("0x2", fs("tank/a/kid", ones[0], &[("1", ones[1])]))
            .with_list("0x3", fs("tank/a/other", ones[0], &[("1", ones[2])])),
    );
    let subs = ["tank/a@1", "tank/a/kid@1", "tank/a/other@1"].map(|name| sent(&format!("zfs send {name}")));
    let whole = package(&list, "tank/a@1", &subs);
    std::fs::write(w.dir.join("full"), &whole).unwrap();
    // It stops within its last stream.
    std::fs::write(w.dir.join("half"), &whole[..whole.len() - subs[2].len() / 2]).unwrap();
    for target in ["tank/to", "tank/held"] {
        w.ok(&format!("zfs create {target}"));
    }
    let refused = fed(&w, "full", "zfs receive tank/to/x@y");
    assert!(refused.err.contains("cannot specify snapshot name for multi-snapshot stream"), "{}", refused.err);
    let got = fed(&w, "full", "zfs receive -v -h -d -o compression=gzip -x recordsize tank/to");
    assert_eq!(got.code, 0, "{}", got.err);
    assert_eq!(got.out.lines().filter(|l| l.starts_with("receiving full stream of ")).count(), 3, "{}", got.out);
    let get = |what: &str, name: &str| w.ok(&format!("zfs get -Hp -o value,source {what} {name}"));
    assert_eq!(get("x:y", "tank/to/a/kid"), "received\treceived\n");
    assert_eq!(get("compression", "tank/to/a"), "gzip\tlocal\n");
    assert_eq!(get("compression", "tank/to/a/kid"), "gzip\tinherited from tank/to/a\n");
    assert_eq!(get("recordsize", "tank/to/a/kid"), "131072\tdefault\n");
    assert_eq!(get("copies", "tank/to/a/kid"), "1\tdefault\n");
    assert_eq!(value(&w, "refquota", "tank/to/a/kid"), (50 << 20).to_string());
    assert!(w.ok("zfs holds -H tank/to/a@1").is_empty());
    // Received values can be passed over, and come back.
    w.ok("zfs inherit x:y tank/to/a/kid");
    assert!(get("x:y", "tank/to/a/kid").starts_with("received\tinherited from tank/to/a"));
    w.ok("zfs inherit x:y tank/to/a");
    assert_eq!(get("x:y", "tank/to/a"), "-\t-\n");
    w.ok("zfs inherit -S x:y tank/to/a");
    assert_eq!(get("x:y", "tank/to/a"), "received\treceived\n");
    w.ok("zfs inherit -S recordsize tank/to/a/kid");
    assert_eq!(get("recordsize", "tank/to/a/kid"), "65536\treceived\n");
    // With holds.
    // What follows the package is none of it.
    std::fs::write(w.dir.join("more"), [whole.as_slice(), b"SUCCESS: sent\n"].concat()).unwrap();
    let got = fed(&w, "more", "zfs receive -e tank/held");
    assert_eq!((got.code, got.err.as_str()), (0, ""));
    assert!(w.ok("zfs holds -H tank/held/a/kid@1").contains("keep"));

    // At the sender one was renamed, one destroyed, a snapshot renamed.
    w.ok("zfs rename tank/a/kid tank/a/moved");
    w.ok("zfs destroy -r tank/a/other");
    w.ok("zfs snapshot -r tank/a@2");
    let twos: Vec<u64> = ["tank/a", "tank/a/moved"].map(|f| guid(&w, &format!("{f}@2"))).to_vec();
    let list = NvList::new().with_str("fromsnap", "1").with_str("tosnap", "2").with_list(
        "fss",
        NvList::new()
            .with_list("0x1", fs("tank/a", 0, &[("uno", ones[0]), ("2", twos[0])]))
            .with_list("0x2", fs("tank/a/moved", ones[0], &[("1", ones[1]), ("2", twos[1])])),
    );
    let subs = ["tank/a", "tank/a/moved"].map(|name| sent(&format!("zfs send -i @1 {name}@2")));
    std::fs::write(w.dir.join("more"), package(&list, "tank/a@2", &subs)).unwrap();
    let got = fed(&w, "more", "zfs receive -d -F -h tank/to");
    assert_eq!(got.code, 0, "{}", got.err);
    let names = w.ok("zfs list -H -o name -t all -r tank/to");
    let want = ["tank/to", "tank/to/a", "tank/to/a@uno", "tank/to/a@2", "tank/to/a/moved", "tank/to/a/moved@1"];
    assert_eq!(names.lines().collect::<Vec<_>>(), [&want[..], &["tank/to/a/moved@2"]].concat());
    // Half a package leaves what was whole, and nothing else.
    w.ok("zfs create tank/part");
    assert_eq!(fed(&w, "half", "zfs receive -d tank/part").code, 1);
    assert_eq!(w.ok("zfs list -H -o name -r tank/part"), "tank/part\ntank/part/a\ntank/part/a/kid\n");
    w.ok("zpool export tank");
}

#[test]
fn a_plain_stream_becomes_an_encryption_root() {
    let w = world("zfs-receive-key");
    std::fs::write(w.dir.join("key"), "correct horse battery\n").unwrap();
    let own = format!("-o keyformat=passphrase -o keylocation=file://{} -o pbkdf2iters=200000", w.path("key"));
    let got = piped(&w, "zfs send tank/a@one", &format!("zfs receive -o encryption=aes-128-gcm {own} tank/b"));
    assert_eq!(got.code, 0, "{}", got.err);
    let what = "encryption,keyformat,pbkdf2iters,keystatus,encryptionroot";
    assert_eq!(value(&w, what, "tank/b"), "aes-128-gcm\npassphrase\n200000\navailable\ntank/b");
    assert_eq!(value(&w, "keylocation", "tank/b"), format!("file://{}", w.path("key")));
    assert_eq!(value(&w, "guid", "tank/b@one"), value(&w, "guid", "tank/a@one"));
    // Its key is asked for after an import; increments need it.
    w.ok("zpool export tank");
    w.ok(&format!("zpool import -d {} tank", w.path("")));
    let two = "zfs send -i @one tank/a@two";
    let got = piped(&w, two, "zfs receive tank/b");
    assert!(got.code == 1 && got.err.contains("key"), "{}", got.err);
    w.ok("zfs load-key tank/b");
    let got = piped(&w, two, &format!("zfs receive {own} tank/b"));
    assert!(got.code == 1 && got.err.contains("cannot be set for incremental streams"), "{}", got.err);
    assert_eq!(piped(&w, two, "zfs receive tank/b").code, 0);
    // A stream with properties says that it is not encrypted: -x encryption overrides that.
    let with_props = "zfs send -p tank/a@one";
    assert_eq!(piped(&w, with_props, "zfs receive tank/b/off").code, 0);
    assert_eq!(value(&w, "encryption", "tank/b/off"), "off");
    let got = piped(&w, with_props, "zfs receive -x encryption tank/b/as-parent");
    assert_eq!(got.code, 0, "{}", got.err);
    assert_eq!(value(&w, "encryption,encryptionroot", "tank/b/as-parent"), "aes-128-gcm\ntank/b");
    let got = piped(&w, with_props, &format!("zfs receive -o encryption=on {own} tank/b/root"));
    assert_eq!(got.code, 0, "{}", got.err);
    assert_eq!(value(&w, "encryptionroot", "tank/b/root"), "tank/b/root");
    // Of a tree the top becomes the root, and those below have its key.
    w.ok("zfs create tank/a/kid");
    w.ok("zfs snapshot -r tank/a@all");
    let got = piped(&w, "zfs send -R tank/a@all", &format!("zfs receive -o encryption=on {own} tank/tree"));
    assert_eq!(got.code, 0, "{}", got.err);
    assert_eq!(value(&w, "encryptionroot", "tank/tree/kid"), "tank/tree");
    // A raw stream has its key; only where that is found can be said.
    let raw = "zfs send -w tank/b@one";
    let got = piped(&w, raw, "zfs receive -o encryption=off tank/raw");
    assert!(got.code == 1 && got.err.contains("cannot be set or excluded for raw streams."), "{}", got.err);
    let got = piped(&w, raw, &format!("zfs receive -o keylocation=file://{} tank/raw", w.path("key")));
    assert_eq!(got.code, 0, "{}", got.err);
    w.ok("zfs load-key tank/raw");
    // A raw tree tells where each of its keys is found, unless another place is given for the top.
    w.ok("zfs snapshot -r tank/b@all");
    let place = format!("file://{}", w.path("key"));
    let tree = "zfs send -Rw tank/b@all";
    for (receive, top) in [("zfs receive tank/copy", &*place), ("zfs receive -o keylocation=prompt tank/own", "prompt")]
    {
        let got = piped(&w, tree, receive);
        assert_eq!(got.code, 0, "{}", got.err);
        let copy = receive.rsplit(' ').next().unwrap();
        assert_eq!(value(&w, "keylocation", copy), top);
        assert_eq!(value(&w, "keylocation", &format!("{copy}/root")), place);
    }
    w.ok("zfs load-key -r tank/copy");
    w.ok("zfs destroy -r tank/copy");
    w.ok("zfs destroy -r tank/own");
    // What is refused leaves nothing.
    let before = w.ok("zfs list -H -o name -t all -r tank");
    let full = "zfs send tank/a@one";
    for (receive, why) in [
        (format!("zfs receive {own} tank/c"), "is not to be encrypted"),
        (format!("zfs receive -o encryption=off {own} tank/c"), "is not to be encrypted"),
        (format!("zfs receive -o encryption=rot13 {own} tank/c"), "no value of encryption"),
        (format!("zfs receive -o encryption=on -o keylocation=file://{} tank/c", w.path("key")), "need a keyformat"),
        (format!("zfs receive -o encryption=on -o keyformat=raw -o keylocation=file://{} tank/c", w.path("key")), "32"),
        (format!("zfs receive -o encryption=on {own} -o origin=tank/a@one tank/c"), "has the key of its origin"),
        (format!("zfs receive -F -o encryption=on {own} tank/empty"), "overwrite an unencrypted one"),
    ] {
        let _ = w.say("zfs create tank/empty");
        let got = piped(&w, full, &receive);
        assert!(got.code == 1 && got.err.contains(why), "{receive}: {} {}", got.code, got.err);
        w.ok("zfs destroy tank/empty");
        assert_eq!(w.ok("zfs list -H -o name -t all -r tank"), before, "{receive}");
    }
    w.ok("zpool export tank");
}

/// What came raw has the key of its parent where the sender has it so.
#[test]
fn a_raw_tree_has_the_keys_of_its_tops() {
    let w = world("zfs-receive-raw");
    std::fs::write(w.dir.join("key"), "correct horse battery\n").unwrap();
    let own = format!("-o encryption=on -o keyformat=passphrase -o keylocation=file://{}", w.path("key"));
    w.ok(&format!("zfs create {own} tank/e"));
    w.ok("zfs create tank/e/x");
    w.ok("zfs create tank/e/x/y");
    w.ok(&format!("zfs create {own} tank/e/root"));
    w.ok("zfs snapshot -r tank/e@1");
    assert_eq!(piped(&w, "zfs send -Rw tank/e@1", "zfs receive -u tank/copy").code, 0);
    let roots = |w: &World| {
        let list = w.ok("zfs get -H -o name,value -t filesystem -r encryptionroot tank/copy");
        list.lines().map(|l| l.replace('\t', " ")).collect::<Vec<String>>()
    };
    let want =
        ["tank/copy tank/copy", "tank/copy/root tank/copy/root", "tank/copy/x tank/copy", "tank/copy/x/y tank/copy"];
    assert_eq!(roots(&w), want);
    w.ok(&format!("zfs load-key -L file://{} tank/copy", w.path("key")));
    assert_eq!(value(&w, "keystatus", "tank/copy/x/y"), "available");
    // A clone moves, and takes its place in the next package.
    w.ok("zfs clone tank/e/x@1 tank/e/k");
    w.ok("zfs snapshot -r tank/e@2");
    assert_eq!(piped(&w, "zfs send -Rw -I @1 tank/e@2", "zfs receive -u -F tank/copy").code, 0);
    w.ok("zfs rename tank/e/k tank/e/r");
    w.ok("zfs snapshot -r tank/e@3");
    let got = piped(&w, "zfs send -Rw -I @2 tank/e@3", "zfs receive -u -F tank/copy");
    assert_eq!(got.code, 0, "{}", got.err);
    assert_eq!(roots(&w)[1..3], ["tank/copy/r tank/copy", "tank/copy/root tank/copy/root"]);
}

/// A clone that was promoted is so at the receiver, too, and everything keeps its snapshots.
#[test]
fn a_promotion_is_followed() {
    let w = world("zfs-receive-promoted");
    std::fs::write(w.dir.join("key"), "correct horse battery\n").unwrap();
    let own = format!("-o encryption=on -o keyformat=passphrase -o keylocation=file://{}", w.path("key"));
    for (top, letters, opts) in [("tank/p", "-R", ""), ("tank/r", "-wR", own.as_str())] {
        w.ok(&format!("zfs create {top}"));
        w.ok(&format!("zfs create {opts} {top}/a"));
        w.ok(&format!("zfs snapshot {top}/a@s"));
        w.ok(&format!("zfs clone {top}/a@s {top}/c"));
        w.ok(&format!("zfs create {top}/a/child"));
        w.ok(&format!("zfs snapshot -r {top}@before"));
        let copy = format!("{top}-copy");
        let got = piped(&w, &format!("zfs send {letters} {top}@before"), &format!("zfs receive -u {copy}"));
        assert_eq!(got.code, 0, "{}", got.err);
        w.ok(&format!("zfs promote {top}/c"));
        w.ok(&format!("zfs snapshot -r {top}@after"));
        let send = format!("zfs send {letters} -i @before {top}@after");
        let got = piped(&w, &send, &format!("zfs receive -u -F {copy}"));
        assert_eq!(got.code, 0, "{}", got.err);
        let list = |top: &str| {
            let names = w.ok(&format!("zfs list -H -r -t all -o name,origin {top}"));
            let guids = w.ok(&format!("zfs get -H -r -t snapshot -o value guid {top}"));
            format!("{}{guids}", names.replace(top, "TOP"))
        };
        assert_eq!(list(&copy), list(top));
    }
}

#[test]
fn a_damaged_file_comes_back_from_a_stream() {
    let Some(w) = World::new("zfs-receive-heal") else { return };
    File::create(w.dir.join("d")).unwrap().set_len(192 << 20).unwrap();
    w.ok(&format!("zpool create -O mountpoint={} -O compression=off tank {}", w.path("m"), w.path("d")));
    w.ok("zfs create tank/a");
    let content: Vec<u8> = (0..40_000u32).flat_map(|n| (n.wrapping_mul(0x9E37_79B9) ^ 0x5bd1).to_le_bytes()).collect();
    std::fs::write(w.dir.join("m/a/file"), &content).unwrap();
    w.ok("zfs snapshot tank/a@one");
    w.ok("zfs snapshot tank/a@two");
    for (name, line) in [("one", "zfs send tank/a@one"), ("two", "zfs send -i @one tank/a@two")] {
        std::fs::write(w.dir.join(name), w.command(WEIR).args(words(line)).output().unwrap().stdout).unwrap();
    }
    w.ok("zpool export tank");
    let mut image = std::fs::read(w.dir.join("d")).unwrap();
    let at = image.windows(512).position(|bytes| bytes == &content[4096..4608]).unwrap();
    image[at..at + 512].fill(0x55);
    std::fs::write(w.dir.join("d"), &image).unwrap();
    w.ok(&format!("zpool import -d {} tank", w.path("")));
    assert_eq!(std::fs::read(w.dir.join("m/a/file")).unwrap_err().raw_os_error(), Some(5));
    w.ok("zpool scrub -w tank");
    let status = w.ok("zpool status -v tank");
    assert!(status.contains("Permanent errors have been detected") && status.contains("tank/a@one:/file"), "{status}");
    // The stream of another snapshot does nothing, nor does a dry run.
    let got = fed(&w, "two", "zfs receive -c tank/a@one");
    assert!(got.code == 1 && got.err.contains("doesn't match the snapshot"), "{}", got.err);
    let got = fed(&w, "one", "zfs receive -c -nv tank/a");
    assert_eq!(
        (got.code, got.out.as_str()),
        (0, "would receive corrective full stream of tank/a@one into tank/a@one\n")
    );
    for letter in ["-d", "-e", "-F", "-s", "-u", "-h", "-o atime=off"] {
        let got = fed(&w, "one", &format!("zfs receive -c {letter} tank/a@one"));
        assert!(got.code == 1 && got.err.contains("can not be used when combined with this flag"), "{}", got.err);
    }
    assert_eq!(w.ok("zpool status -v tank"), status);
    let got = fed(&w, "one", "zfs receive -cv tank/a@one");
    assert_eq!(got.code, 0, "{}", got.err);
    assert!(got.out.ends_with("healed 1 block\n"), "{}", got.out);
    assert!(w.ok("zpool status -v tank").contains("No known data errors"));
    assert_eq!(std::fs::read(w.dir.join("m/a/file")).unwrap(), content);
    w.ok("zpool scrub -w tank");
    assert!(w.ok("zpool status -v tank").contains("No known data errors"));
    w.ok("zpool export tank");
}

#[test]
fn progress_is_told_while_nobody_reads_and_heads_are_sent() {
    let Some(w) = World::new("zfs-send-head") else { return };
    File::create(w.dir.join("d")).unwrap().set_len(192 << 20).unwrap();
    w.ok(&format!("zpool create -O mountpoint={} tank {}", w.path("m"), w.path("d")));
    w.ok("zfs create tank/a");
    w.ok("zfs snapshot tank/a@one");
    let content: Vec<u8> = (0..250_000u32).flat_map(|n| n.wrapping_mul(0x9E37_79B9).to_le_bytes()).collect();
    std::fs::write(w.dir.join("m/a/file"), &content).unwrap();
    let got = w.say("zfs send tank/a");
    assert!(
        got.code == 1 && got.err.contains("target is busy; if a filesystem, it must not be mounted"),
        "{}",
        got.err
    );
    w.ok("zfs unmount tank/a");
    for (send, receive) in [("zfs send tank/a", "zfs receive tank/b"), ("zfs send -i @one tank/a", "")] {
        let dump = outcome_of(w.command(WEIR).args(words(send)).output().unwrap());
        assert_eq!(dump.code, 0, "{}", dump.err);
        assert_eq!(w.ok("zfs list -H -o name -t all -r tank/a"), "tank/a\ntank/a@one\n");
        if !receive.is_empty() {
            let got = piped(&w, send, &format!("{receive}@head"));
            assert_eq!(got.code, 0, "{}", got.err);
        }
    }
    assert_eq!(value(&w, "guid", "tank/b@head"), value(&w, "guid", "tank/a"));
    assert_eq!(std::fs::read(w.dir.join("m/b/file")).unwrap(), content);
    assert!(w.ok("zfs send -nv tank/a").starts_with("full send of tank/a estimated size is "));
    // The pipe is full after 64 KiB, and the lines go on.
    let mut sends = w.command(WEIR);
    sends.args(words("zfs send -v tank/b@head")).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut sends = sends.spawn().unwrap();
    let mut lines = BufReader::new(sends.stderr.take().unwrap()).lines().map(Result::unwrap);
    let first = lines.find(|line| line.starts_with("TIME ")).unwrap();
    assert_eq!(first, "TIME        SENT   SNAPSHOT tank/b@head");
    let (one, two) = (lines.next().unwrap(), lines.next().unwrap());
    assert!(one != two && one[8..] == two[8..] && one.ends_with("   tank/b@head"), "{one}\n{two}");
    sends.kill().unwrap();
    sends.wait().unwrap();
    w.ok("zpool export tank");
}

#[test]
fn what_was_renamed_is_found_by_the_snapshot_it_has() {
    let w = world("zfs-receive-moved");
    let two = "zfs send -i @one tank/a@two";
    w.ok("zfs create tank/to");
    assert_eq!(piped(&w, "zfs send tank/a@one", "zfs receive -d tank/to").code, 0);
    w.ok("zfs create tank/to/deep");
    w.ok("zfs rename tank/to/a tank/to/deep/moved");
    // A target that was named itself is not looked for.
    let got = piped(&w, two, "zfs receive tank/to/a");
    assert!(got.code == 1 && got.err.contains("destination 'tank/to/a' does not exist"), "{}", got.err);
    let got = piped(&w, two, "zfs receive -nv -d tank/to");
    assert_eq!(got.out, "would receive incremental stream of tank/a@two into tank/to/deep/moved@two\n");
    let got = piped(&w, two, "zfs receive -d tank/to");
    assert_eq!(got.code, 0, "{}", got.err);
    assert_eq!(value(&w, "guid", "tank/to/deep/moved@two"), value(&w, "guid", "tank/a@two"));
    // The nearest one counts: the sender's own has the snapshot, too.
    assert_eq!(w.ok("zfs list -H -o name -t snapshot -r tank/a"), "tank/a@one\ntank/a@two\n");
    // A token means the snapshot wherever it is now.
    let stream = w.command(WEIR).args(words("zfs send tank/a@one")).output().unwrap().stdout;
    std::fs::write(w.dir.join("half"), &stream[..stream.len() / 2]).unwrap();
    let got = fed(&w, "half", "zfs receive -s tank/b");
    let token = got.err.split("zfs send -t ").nth(1).unwrap().trim().to_string();
    w.ok("zfs rename tank/a tank/to/sender");
    let said = w.ok(&format!("zfs send -nvP -t {token}"));
    assert!(said.contains("full\ttank/to/sender@one\t") || said.contains("full\ttank/to/deep/moved@one\t"), "{said}");
    assert_eq!(piped(&w, &format!("zfs send -t {token}"), "zfs receive -s tank/b").code, 0);
    w.ok("zpool export tank");
}

#[test]
fn redacted_copies_say_so_and_are_not_mounted() {
    let w = world("zfs-redact");
    w.ok("zfs clone tank/a@one tank/c");
    w.ok("zfs snapshot tank/c@x");
    w.ok("zfs redact tank/a@one book tank/c@x");
    let guid = value(&w, "guid", "tank/c@x");
    let listed = w.ok("zfs list -H -t bookmark -o name,redact_snaps -r tank");
    assert_eq!(listed, format!("tank/a#book\t{guid}\n"));
    assert_eq!(value(&w, "redact_snaps", "tank/a#book"), guid);
    let said = w.ok("zfs send -nP --redact book tank/a@one");
    assert!(said.starts_with("full\ttank/a@one\t") && said.contains("\nsize\t"), "{said}");
    let got = piped(&w, "zfs send --redact book tank/a@one", "zfs receive -v tank/copy");
    assert_eq!(got.code, 0, "{}", got.err);
    for name in ["tank/copy", "tank/copy@one"] {
        assert_eq!(value(&w, "redact_snaps", name), guid);
        assert!(w.ok(&format!("zfs get all {name}")).contains("redact_snaps"));
    }
    assert_eq!(value(&w, "redact_snaps", "tank/a"), "-");
    assert!(!w.ok("zfs get all tank/a").contains("redact_snaps"));
    w.ok(&format!("zfs set mountpoint={} tank/copy", w.path("copy")));
    let why = "cannot mount 'tank/copy': Dataset is not complete, was created by receiving a redacted zfs send stream.";
    w.fails("zfs mount tank/copy", &[why]);
    // A clone of it is made all the same.
    w.ok("zfs clone tank/copy@one tank/copied");
    w.ok("zfs destroy tank/copied");
    let got = w.say("zfs mount -f tank/copy");
    assert!(!got.err.contains("Dataset is not complete"), "{}", got.err);
    w.ok("zfs mount -a");
    // By the tunable of OpenZFS it is mounted with all others, but not by name.
    w.say("zfs unmount tank/copy");
    w.ok("tune set zfs_allow_redacted_dataset_mount=1");
    w.fails("zfs mount tank/copy", &[why]);
    let got = w.say("zfs mount -a");
    assert!(!got.err.contains("Dataset is not complete"), "{}", got.err);
    w.ok("tune set zfs_allow_redacted_dataset_mount=default");
    w.say("zfs unmount tank/copy");
    w.fails("zfs mount tank/copy", &[why]);
    // What is missing comes from the bookmark only.
    let got = piped(&w, "zfs send -i @one tank/a@two", "zfs receive tank/copy");
    assert!(got.code == 1 && got.err.contains("'tank/copy@one' was received redacted"), "{}", got.err);
    let got = piped(&w, "zfs send -p -i #book tank/a@two", "zfs receive -u tank/copy");
    assert_eq!(got.code, 0, "{}", got.err);
    assert_eq!(value(&w, "redact_snaps", "tank/copy"), "-");
    for (line, code, why) in [
        ("zfs redact tank/a@one book", 2, "too few arguments"),
        ("zfs redact tank/a@one book tank/c@x", 1, "specified redaction bookmark (book) provided already exists"),
        ("zfs redact tank/a@one b @x", 1, "potentially invalid redaction snapshot; full dataset names required"),
        ("zfs redact tank/a@two b tank/c@x", 1, "redaction snapshot must be descendent of snapshot being redacted"),
        ("zfs send --redact none tank/a@one", 1, "bookmark 'tank/a#none' does not exist"),
        ("zfs send --redact book tank/a@two", 1, "'tank/a#book' is not a redaction bookmark of this snapshot"),
    ] {
        let got = w.say(line);
        assert!(got.code == code && got.err.contains(why), "{line}: {} {}", got.code, got.err);
    }
    assert!(w.ok("zpool history -i tank").contains("redact_obj="));
    w.ok("zfs destroy tank/a#book");
    assert!(w.ok("zpool get -H -o value feature@redaction_bookmarks tank").contains("enabled"));
    w.ok("zpool export tank");
}

#[test]
fn properties_of_snapshots_are_received_ones() {
    let w = world("zfs-receive-snapprops");
    for fixed in ["version", "normalization", "volsize"] {
        let got = piped(&w, "zfs send tank/a@one", &format!("zfs receive -x {fixed} tank/copy"));
        assert!(got.code == 1 && got.err.contains(&format!("'{fixed}' cannot be excluded")), "{}", got.err);
    }
    let got = piped(&w, "zfs send tank/a@one", "zfs receive -o volsize=32K tank/copy");
    assert!(got.code == 1 && got.err.contains("'volsize' does not apply to datasets of this type"), "{}", got.err);
    let get = |name: &str| w.ok(&format!("zfs get -H -o value,source n:p {name}"));
    w.ok("zfs set n:p=first tank/a@one");
    assert_eq!(piped(&w, "zfs send -p tank/a@one", "zfs receive tank/copy").code, 0);
    assert_eq!(get("tank/copy@one"), "first\treceived\n");
    w.ok("zfs set n:p=own n:q=own tank/copy@one");
    assert_eq!(get("tank/copy@one"), "own\tlocal\n");
    // The copy sends what it is, or with -b what it was.
    assert_eq!(piped(&w, "zfs send -p tank/copy@one", "zfs receive tank/is").code, 0);
    assert_eq!(piped(&w, "zfs send -b tank/copy@one", "zfs receive tank/was").code, 0);
    assert_eq!((get("tank/is@one"), get("tank/was@one")), ("own\treceived\n".into(), "first\treceived\n".into()));
    assert_eq!(w.ok("zfs get -H -o value n:q tank/was@one"), "-\n");
    // As with those of file systems they can be passed over, and come back.
    w.ok("zfs inherit n:p tank/copy@one");
    assert_eq!(get("tank/copy@one"), "-\t-\n");
    w.ok("zfs inherit -S n:p tank/copy@one");
    assert_eq!(get("tank/copy@one"), "first\treceived\n");
}

#[test]
fn a_refquota_bounds_what_is_received() {
    let Some(w) = World::new("zfs-receive-refquota") else { return };
    w.ok(&format!("zpool create --size 256M -m {} -O compression=off tank d", w.path("m")));
    w.ok("zfs create tank/a");
    w.ok("zfs create -o refquota=2M tank/b");
    std::fs::write(w.path("m/a/file"), vec![1; 4 << 20]).unwrap();
    w.ok("zfs snapshot tank/a@s");
    // The source may have exceeded its own by much, as OpenZFS has it.
    w.ok("tune set spa_asize_inflation=0");
    let got = piped(&w, "zfs send tank/a@s", "zfs receive -F tank/b");
    assert!(got.code == 1 && got.err.contains("space quota exceeded"), "{}", got.err);
    w.ok("tune set spa_asize_inflation=1");
    let got = piped(&w, "zfs send tank/a@s", "zfs receive -F tank/b");
    assert_eq!(got.code, 0, "{}", got.err);
}
