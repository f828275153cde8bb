//! Pools of old versions, made by zfs-fuse 0.7.0 (fixtures `old/vN`: `zpool create -o version=N`, a
//! file system with 40 files, links and a snapshot; exported): imported, read, written to, given a
//! snapshot, relieved of another, scrubbed and exported, and not upgraded by any of that.

use std::rc::Rc;

use spa::{EngineOpts, Pool};
use zpl::{MountOpts, Zfs};
use ztest::judge::{Level, Verdict, judge_pool};
use ztest::lab::Lab;

use crate::images::{fixture, reader};
use crate::old_files::{change, check};

/// Those that there are fixtures of.
const VERSIONS: [u64; 5] = [1, 3, 8, 15, 22];

/// The output of `seq n`.
fn seq(n: u64) -> Vec<u8> {
    (1..=n).flat_map(|i| format!("{i}\n").into_bytes()).collect()
}

async fn content(fs: &Zfs, path: &[&str]) -> Option<Vec<u8>> {
    let mut at = fs.root();
    for name in path {
        at = fs.lookup(at, name.as_bytes()).await.ok()?.obj;
    }
    Some(fs.read(at, 0, 1 << 30).await.expect("readable").iter().flat_map(|b| b.to_vec()).collect())
}

async fn compare(fs: &Zfs, snapshot: bool) {
    for n in 1..=40u64 {
        let want = match n {
            7 if !snapshot => None,
            8 if !snapshot => Some(b"changed\n".to_vec()),
            n => Some(seq(n * 50)),
        };
        assert!(content(fs, &["dir", &format!("file{n}")]).await == want, "file{n}");
    }
    assert!(content(fs, &["large"]).await == Some(seq(100_000)));
    assert!(content(fs, &["hard"]).await == Some(seq(200)));
    let link = fs.lookup(fs.root(), b"link").await.expect("there").obj;
    assert_eq!(fs.readlink(link).await.expect("readable"), b"dir/file3");
    let dir = fs.lookup(fs.root(), b"dir").await.expect("there").obj;
    let attr = fs.lookup(dir, b"file5").await.expect("there");
    assert_eq!(attr.mode & 0o777, 0o600);
    let attr = fs.lookup(dir, b"file6").await.expect("there");
    assert_eq!(attr.mtime.secs, 981_173_106);
}

async fn mount(pool: &Pool, name: &str) -> Rc<Zfs> {
    let (ds, readonly) = match name.contains('@') {
        true => (pool.dsl().find_snapshot(name).await.expect("it exists"), true),
        false => (pool.dsl().find(name).expect("it exists"), false),
    };
    Zfs::open(&ds, MountOpts { readonly, ..MountOpts::from_props(&ds) }).await.expect("it opens")
}

#[test]
fn old_pools_are_written_and_stay_old() {
    for version in VERSIONS {
        let lab = Lab::with_images(version, fixture(&format!("old/v{version}")), true);
        let opts = EngineOpts::for_memory(1 << 30);
        let (fs_name, snap) = (format!("old{version}/fs"), format!("old{version}/fs@s"));
        lab.sim.block_on(async {
            let pool = lab.import(false, opts.clone()).await.unwrap_or_else(|e| panic!("v{version}: {e}"));
            let old = mount(&pool, &snap).await;
            compare(&old, true).await;
            old.unmount().await.expect("unmounted");
            let fs = mount(&pool, &fs_name).await;
            compare(&fs, false).await;
            change(&fs).await;
            check(&fs).await;
            fs.unmount().await.expect("unmounted");
            pool.dsl().snapshot(vec![format!("old{version}/fs@t")], false, Vec::new()).await.expect("made");
            pool.log_command("zfs snapshot", 0);
            pool.dsl().destroy_snapshots(vec![snap.clone()], false).await.expect("destroyed");
            pool.export().await.expect("exported");
            let pool = lab.import(false, opts.clone()).await.expect("imported again");
            assert_eq!(pool.uberblock().version, version, "it was upgraded");
            let fs = mount(&pool, &format!("old{version}/fs@t")).await;
            compare(&fs, false).await;
            check(&fs).await;
            fs.unmount().await.expect("unmounted");
            ztest::scan::scrub_clean(&pool).await.unwrap_or_else(|e| panic!("v{version}: {e}"));
            // Snapshots of weir have deadlists of the old form too: destroy them again; nothing may
            // leak.
            let dsl = pool.dsl();
            for name in ["u", "v"] {
                dsl.snapshot(vec![format!("{fs_name}@{name}")], false, Vec::new()).await.expect("made");
            }
            dsl.rollback(&format!("{fs_name}@v")).await.expect("rolled back");
            for name in ["v", "t", "u"] {
                let gone = dsl.destroy_snapshots(vec![format!("{fs_name}@{name}")], false).await;
                gone.unwrap_or_else(|e| panic!("v{version}: @{name}: {e}"));
            }
            pool.export().await.expect("exported");
            let pool = lab.import(false, opts.clone()).await.expect("imported again");
            let fs = mount(&pool, &fs_name).await;
            compare(&fs, false).await;
            check(&fs).await;
            fs.unmount().await.expect("unmounted");
            ztest::scan::scrub_clean(&pool).await.unwrap_or_else(|e| panic!("v{version}: {e}"));
            pool.export().await.expect("exported");
        });
        assert_eq!(reader(&lab.images()).version(), version);
        match judge_pool(&lab.images(), Level::Zdb, &format!("old{version}"), &format!("old{version}")) {
            Verdict::Good => {}
            Verdict::Missing(what) => eprintln!("NOT JUDGED: {what} is missing"),
            Verdict::Bad(why) => panic!("v{version}: {why}"),
        }
    }
}
