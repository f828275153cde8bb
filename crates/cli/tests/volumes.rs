//! Volumes through commands: what `zfs` prints and refuses, and pools of them before zdb.
#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use common::ALONE;
use common::world::World;

fn world(tag: &str) -> World {
    let w = World::without_mounts(tag);
    // Of the features that the installed zdb knows.
    w.ok("zpool create -o compatibility=openzfs-2.1-linux -O mountpoint=none --size 256M tank a.img");
    w
}

/// `zdb` finds nothing wrong with the pool, which is exported; false if there is no zdb.
fn judge(w: &World) -> bool {
    let mut c = w.command("zdb");
    let Ok(o) = c.args(ALONE).args(["-e", "-p", &w.path(""), "-bcc", "tank"]).output() else {
        eprintln!("NOT JUDGED: there is no zdb");
        return false;
    };
    let text = String::from_utf8_lossy(&o.stdout).into_owned();
    assert!(text.contains("No leaks (block sum matches space maps exactly)"), "{text}");
    true
}

#[test]
fn thick_and_thin_volumes_have_the_figures_of_openzfs() {
    let w = world("vol-figures");
    w.ok("zfs create -V 16M -b 8K tank/old");
    w.ok("zfs create -V 16M tank/thick");
    w.ok("zfs create -s -V 1G tank/thin");
    w.ok("zfs create -p -s -V 10M -o compression=zstd -o volblocksize=64K tank/a/b/vol");
    let get = |what: &str, name: &str| w.ok(&format!("zfs get -Hp -o value,source {what} {name}"));
    assert_eq!(
        get("type,volsize,volblocksize,refreservation,snapdev,volmode", "tank/old"),
        "volume\t-\n16777216\tlocal\n8192\t-\n19398656\tlocal\nhidden\tdefault\ndefault\tdefault\n"
    );
    assert_eq!(
        get("volsize,volblocksize,refreservation", "tank/thick"),
        "16777216\tlocal\n16384\tdefault\n18874368\tlocal\n"
    );
    assert_eq!(get("refreservation,volsize", "tank/thin"), "0\tdefault\n1073741824\tlocal\n");
    // The size is rounded up to whole blocks.
    assert_eq!(get("volsize,volblocksize", "tank/a/b/vol"), "10485760\tlocal\n65536\t-\n");
    w.ok("zfs create -s -V 1000 tank/small");
    assert_eq!(get("volsize", "tank/small"), "16384\tlocal\n");
    assert_eq!(w.ok("zfs get -H -o value volsize,volblocksize tank/old"), "16M\n8K\n");
    let used = |name: &str| w.ok(&format!("zfs list -Hp -o used,usedbyrefreservation,usedbydataset {name}"));
    let figures: Vec<u64> = used("tank/thick").trim_end().split('\t').map(|n| n.parse().unwrap()).collect();
    assert_eq!((figures[0], figures[1] + figures[2]), (18_874_368, 18_874_368), "{figures:?}");
    assert_eq!(w.ok("zfs list -H -o name -t volume"), "tank/a/b/vol\ntank/old\ntank/small\ntank/thick\ntank/thin\n");
    assert_eq!(w.ok("zfs list -H -o name -t filesystem"), "tank\ntank/a\ntank/a/b\n");
    assert_eq!(w.ok("zfs list -H -o name,mountpoint,mounted tank/thin"), "tank/thin\t-\t-\n");
    w.ok("zpool export tank");
    judge(&w);
    w.ok("zpool import -d . tank");
    assert_eq!(get("volsize,refreservation", "tank/old"), "16777216\tlocal\n19398656\tlocal\n");
}

#[test]
fn a_new_size_takes_the_reservation_along() {
    let w = world("vol-size");
    w.ok("zfs create -V 16M tank/thick");
    w.ok("zfs create -s -V 16M tank/thin");
    let get = |name: &str| w.ok(&format!("zfs get -Hp -o value volsize,refreservation {name}"));
    w.ok("zfs set volsize=32M tank/thick");
    assert_eq!(get("tank/thick"), "33554432\n36175872\n");
    w.ok("zfs set volsize=16M tank/thick");
    assert_eq!(get("tank/thick"), "16777216\n18874368\n");
    w.ok("zfs set volsize=1G tank/thin");
    assert_eq!(get("tank/thin"), "1073741824\n0\n");
    w.ok("zfs set volsize=16M tank/thin");
    w.ok("zfs set refreservation=auto tank/thin");
    assert_eq!(get("tank/thin"), "16777216\n18874368\n");
    w.ok("zfs set refreservation=none tank/thin");
    w.ok("zfs set volsize=64M refreservation=1M tank/thin");
    assert_eq!(get("tank/thin"), "67108864\n1048576\n");
    for (line, text) in [
        ("zfs set volsize=100K tank/thin", "'volsize' must be a multiple of volume block size (16K)"),
        ("zfs set volsize=0 tank/thin", "'volsize' cannot be zero"),
        ("zfs set volsize=much tank/thin", "bad numeric value 'much'"),
        ("zfs set volsize=8G tank/thick", "size is greater than available space"),
        ("zfs set volblocksize=8K tank/thin", "'volblocksize' is readonly"),
        ("zfs set quota=1G tank/thin", "'quota' does not apply to datasets of this type"),
        ("zfs set mountpoint=/x tank/thin", "'mountpoint' does not apply to datasets of this type"),
        ("zfs set refreservation=auto tank", "'refreservation=auto' only allowed on volumes"),
    ] {
        let name = line.split(' ').next_back().unwrap();
        w.fails(line, &[&format!("cannot set property for '{name}': "), text]);
    }
    w.ok("zfs set readonly=on tank/thin");
    w.fails("zfs set volsize=128M tank/thin", &["cannot set property for 'tank/thin'", "read-only"]);
    assert_eq!(get("tank/thin"), "67108864\n1048576\n");
    assert_eq!(get("tank/thick"), "16777216\n18874368\n");
}

#[test]
fn volumes_are_snapshotted_cloned_rolled_back_renamed_and_destroyed() {
    let w = world("vol-life");
    w.ok("zfs create -s -V 16M tank/v");
    w.ok("zfs snapshot tank/v@one");
    w.ok("zfs set volsize=32M tank/v");
    w.ok("zfs snapshot tank/v@two");
    assert_eq!(
        w.ok("zfs get -Hp -o name,value -r volsize tank/v -t all"),
        "tank/v\t33554432\ntank/v@one\t16777216\ntank/v@two\t33554432\n"
    );
    w.ok("zfs clone -o refreservation=auto tank/v@one tank/c");
    assert_eq!(
        w.ok("zfs get -Hp -o value type,origin,volsize,refreservation tank/c"),
        "volume\ntank/v@one\n16777216\n18874368\n"
    );
    w.ok("zfs promote tank/c");
    assert_eq!(w.ok("zfs get -Hp -o value origin tank/v"), "tank/c@one\n");
    w.ok("zfs promote tank/v");
    w.ok("zfs destroy tank/v@two");
    w.ok("zfs rollback tank/v@one");
    assert_eq!(w.ok("zfs get -Hp -o value volsize tank/v"), "16777216\n");
    w.ok("zfs rename tank/v tank/w");
    for (line, text) in [
        ("zfs create tank/w/fs", "cannot create 'tank/w/fs': parent is not a filesystem"),
        ("zfs create -s -V 1M tank/w/v", "cannot create 'tank/w/v': parent is not a filesystem"),
        ("zfs clone tank/w@one tank/w/c", "cannot create 'tank/w/c': parent is not a filesystem"),
        ("zfs rename tank/c tank/w/c", "parent is not a filesystem"),
        ("zfs clone -o volsize=1M tank/w@one tank/d", "'volsize' of a clone"),
        ("zfs mount tank/w", "cannot open 'tank/w': operation not applicable to datasets of this type"),
        ("zfs create -V 0 tank/x", "cannot create 'tank/x': volume size cannot be zero"),
        ("zfs create -V big tank/x", "bad volume size 'big'"),
        ("zfs create -V 1M -b 3000 tank/x", "'volblocksize' must be power of 2 from 512 to 16M"),
        ("zfs create -V 8G tank/x", "cannot create 'tank/x': out of space"),
        ("zfs create -V 1M -o quota=1M tank/x", "'quota' does not apply to datasets of this type"),
        ("zfs create -V 1M -o volsize=2M tank/x", "property 'volsize' specified multiple times"),
        ("zfs create -o volsize=2M tank/x", "'volsize' does not apply to datasets of this type"),
        ("zfs create -V 1M nope/x", "no such pool 'nope'"),
    ] {
        w.fails(line, &[text]);
    }
    let s = w.say("zfs destroy tank/w");
    assert!(s.code == 1 && s.err.starts_with("cannot destroy 'tank/w': volume has children\n"), "{}", s.err);
    for (line, text) in [
        ("zfs create -s tank/x", "'-s' and '-b' can only be used when creating a volume\n"),
        ("zfs create -b 8K tank/x", "'-s' and '-b' can only be used when creating a volume\n"),
        ("zfs create -u -V 1M tank/x", "'-u' can only be used when creating a filesystem\n"),
        ("zfs create -V 1M", "missing volume argument\n"),
    ] {
        let s = w.say(line);
        assert!(s.code == 2 && s.err.starts_with(text), "{line}: {} {}", s.code, s.err);
    }
    w.ok("zfs destroy -R tank/w");
    assert_eq!(w.ok("zfs list -H -o name -t all"), "tank\n");
    w.ok("zpool export tank");
    judge(&w);
}

#[test]
fn plans_are_shown_and_small_blocks_are_warned_of() {
    let w = world("vol-plan");
    assert_eq!(
        w.ok("zfs create -nP -V 16M -o compression=lz4 tank/v"),
        "create\ttank/v\nproperty\tvolsize\t16777216\nproperty\tcompression\tlz4\nproperty\trefreservation\t18874368\n"
    );
    assert_eq!(
        w.ok("zfs create -pnvs -b 8K -V 1000 tank/a/v"),
        "would create ancestors of tank/a/v\nwould create tank/a/v\n\tvolblocksize=8192\n\tvolsize=8192\n"
    );
    w.fails("zfs create -n -V 0 tank/v", &["cannot verify 'tank/v': volume size cannot be zero"]);
    assert_eq!(w.ok("zfs list -H -o name"), "tank\n");
    let s = w.say("zfs create -s -V 1M -b 4K tank/v");
    assert!(
        s.code == 0 && s.err.starts_with("Warning: volblocksize (4096) is less than the default minimum"),
        "{}",
        s.err
    );
    assert!(w.ok("zpool history tank").contains("zfs create -s -V 1M -b 4K tank/v"));
}

#[test]
fn streams_of_volumes_say_what_they_are() {
    let w = world("vol-send");
    w.ok("zfs create -s -V 1M tank/v");
    w.ok("zfs snapshot tank/v@s");
    let o = w.command(common::WEIR).args(["zfs", "send", "tank/v@s"]).output().unwrap();
    assert!(o.status.success(), "{}", String::from_utf8_lossy(&o.stderr));
    // BEGIN: type 0; the type of the object set at 32.
    assert_eq!((&o.stdout[..4], &o.stdout[32..36]), (&[0, 0, 0, 0][..], &[3, 0, 0, 0][..]));
}
