//! Pools of versions 1 to 28 and old file systems from outside: made, refused what they do not
//! have, upgraded.
#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use host::TempDir;

use common::{Outcome, WEIR, command_in, outcome_of};

/// `zpool create` of a pool that is mounted nowhere.
const NEW: &str = "zpool create -O mountpoint=none";

struct World {
    dir: TempDir,
}

impl World {
    fn new(tag: &str, files: &[&str]) -> World {
        let dir = TempDir::new(tag).unwrap();
        for name in files {
            std::fs::File::create(dir.join(name)).unwrap().set_len(128 << 20).unwrap();
        }
        World { dir }
    }

    fn run(&self, line: &str) -> Outcome {
        outcome_of(command_in(self.dir.path(), WEIR).args(line.split_whitespace()).output().unwrap())
    }

    fn ok(&self, line: &str) -> String {
        let s = self.run(line);
        assert_eq!(s.code, 0, "weir {line}: {}{}", s.out, s.err);
        s.out
    }

    fn fails(&self, line: &str, what: &str) {
        let s = self.run(line);
        let said = s.out.contains(what) || s.err.contains(what);
        assert!(s.code == 1 && said, "weir {line}: {} {}{}", s.code, s.out, s.err);
    }

    fn version(&self, pool: &str) -> String {
        self.ok(&format!("zpool get -Hp -o value version {pool}")).trim().to_string()
    }
}

impl Drop for World {
    fn drop(&mut self) {
        let _ = self.run("daemon stop -f");
    }
}

#[test]
fn pools_of_old_versions_are_made_and_upgraded() {
    let w = World::new("cli-versions", &["a", "b", "c"]);
    w.fails(&format!("{NEW} -o version=29 tank a"), "is invalid");
    w.fails(&format!("{NEW} -o version=28 -o feature@lz4_compress=enabled tank a"), "cannot be specified together");
    w.fails(&format!("{NEW} -o version=9 tank a cache b"), "cache devices");
    w.fails(&format!("{NEW} -o version=23 -O version=5 tank a"), "pool must be upgraded");
    w.fails(
        &format!("{NEW} -o version=4 -O compression=gzip tank a"),
        "must be upgraded to set this property or value",
    );
    w.ok(&format!("{NEW} -o version=1 tank a"));
    w.ok(&format!("{NEW} other b"));
    assert_eq!((w.version("tank").as_str(), w.version("other").as_str()), ("1", "-"));
    assert!(w.ok("zpool status tank").contains("legacy on-disk format"));
    assert!(w.ok("zpool get -H -o value feature@lz4_compress,feature@async_destroy tank").starts_with("disabled\n"));
    let listed = w.ok("zpool upgrade");
    assert!(listed.contains("VER  POOL\n---  ------------\n 1   tank\n"), "{listed}");

    w.ok("zfs create tank/a");
    assert_eq!(w.ok("zfs get -Hp -o value version tank/a"), "2\n");
    w.ok("zfs create -V 1M tank/vol");
    w.ok("zfs snapshot tank/a@s");
    for line in [
        "zfs set copies=2 tank/a",
        "zfs set dedup=on tank/a",
        "zfs set compression=zle tank/a",
        "zfs set refquota=1M tank/a",
        "zfs set aclinherit=passthrough-x tank/a",
    ] {
        w.fails(line, "pool and or dataset must be upgraded to set this property or value");
    }
    for line in ["zfs create -o version=3 tank/b", "zfs create -o normalization=formC tank/b", "zfs hold t tank/a@s"] {
        w.fails(line, "pool must be upgraded");
    }
    w.fails("zfs set org.test:x=y tank/a@s", "pool must be upgraded to set properties of snapshots");
    w.fails("zfs allow -e snapshot tank/a", "pool must be upgraded to use 'allow' or 'unallow'");
    w.fails("zpool set bootfs=tank/a tank", "pool must be upgraded to support 'bootfs' property");
    w.fails("zpool set feature@lz4_compress=enabled tank", "older than feature flags");
    w.fails("zpool add tank cache c", "pool must be upgraded to add these vdevs");
    w.fails("zfs upgrade tank/a", "tank/a: can not be upgraded; the pool version needs to be upgraded\nfirst");

    w.ok("zpool set version=6 tank");
    w.fails("zpool set version=5 tank", "is invalid");
    w.ok("zpool set bootfs=tank/a tank");
    assert!(w.ok("zpool upgrade -V 26 tank").contains("Successfully upgraded 'tank' from version 6 to version 26.\n"));
    assert!(w.ok("zpool upgrade -V 26 tank").contains("already formatted using version 26."));
    assert!(w.ok("zpool upgrade -V 7 tank").contains("already formatted using more current version '26'"));
    assert_eq!(w.version("tank"), "26");
    w.ok("zfs hold t tank/a@s");
    w.ok("zfs release t tank/a@s");
    assert_eq!(w.ok("zfs upgrade -V 4 tank/a"), "1 filesystems upgraded\n");
    assert_eq!(w.ok("zfs get -Hp -o value version tank/a"), "4\n");
    w.ok("zpool set compatibility=legacy tank");
    w.fails("zpool upgrade tank", "'compatibility' property set to 'legacy'");
    w.ok("zpool set compatibility=off tank");
    let done = w.ok("zpool upgrade -a");
    assert!(done.contains("Successfully upgraded 'tank' from version 26 to feature flags.\n"), "{done}");
    assert!(done.contains("Enabled the following features on 'tank':\n") && !done.contains("other"), "{done}");
    assert_eq!(w.version("tank"), "-");
    assert!(w.ok("zfs upgrade").contains(" 4   tank/a\n"));
    w.fails("zfs set version=3 tank/a", "cannot get version 3");
    w.ok("zfs set version=current tank/a");
    assert_eq!(w.ok("zfs upgrade -r tank"), "1 filesystems upgraded\n1 filesystems already at this version\n");
    assert_eq!(w.ok("zfs get -Hp -o value -r -t filesystem version tank"), "5\n5\n");
    let history = w.ok("zpool history -i tank");
    assert!(history.contains("version=26") && history.contains("from 4 to 5"), "{history}");

    w.ok("zpool export tank");
    w.ok("zpool import -d . tank");
    w.ok("zpool scrub -w tank");
    assert!(w.ok("zpool status tank").contains("with 0 errors"));
}
