//! Pools of versions 1 to 28 that weir makes, and their upgrades: written to, with snapshots and
//! clones of every age, judged before and after.

use ondisk::version::{FEATURES, LAST};
use sim::{DiskLog, Rng};
use spa::Pool;
use zpl::{FsCreateProps, InitOwner, MountOpts, SetAttr, Zfs, init_fs};
use ztest::cuts::{completions, images_at};
use ztest::judge::{Level, Verdict, judge};
use ztest::lab::{Lab, Layout, POOL, SHAPES, Shape};
use ztest::snaps::check_images;

use crate::old_files::{change, check};

/// A pool of the first version gets the others one after the other, and is used in each.
struct Run {
    shape: &'static str,
    versions: &'static [u64],
}

/// Together every version from which one comes to a step of the format, on all kinds of vdevs that
/// there were.
const RUNS: [Run; 7] = [
    Run { shape: "stripe", versions: &[1, 3, 9, 11, 15, 26, FEATURES] },
    Run { shape: "raidz1", versions: &[2, FEATURES] },
    Run { shape: "raidz2", versions: &[3, 10, 26] },
    Run { shape: "raidz3", versions: &[17, 24, 28] },
    Run { shape: "log", versions: &[7, 13, 23, FEATURES] },
    Run { shape: "beside", versions: &[12, 27] },
    Run { shape: "mirrors", versions: &[28, FEATURES] },
];

fn shape(name: &str) -> &'static Shape {
    SHAPES.iter().find(|s| s.name == name).expect("there is one of that name")
}

async fn mount(pool: &Pool, name: &str) -> std::rc::Rc<Zfs> {
    let ds = pool.dsl().find(name).unwrap_or_else(|e| panic!("{name}: {e}"));
    Zfs::open(&ds, MountOpts::from_props(&ds)).await.unwrap_or_else(|e| panic!("{name}: {e}"))
}

async fn write(fs: &Zfs, name: &str, byte: u8) {
    let file = match fs.lookup(fs.root(), name.as_bytes()).await {
        Ok(file) => file.obj,
        Err(_) => fs.create(fs.root(), name.as_bytes(), 0o644, &zpl::Cred::new(1, 1), true).await.expect("made").obj,
    };
    fs.write(file, 0, vec![bdev::Buf::copy_from(&vec![byte; 300_000]).freeze()], false).await.expect("written");
}

/// Snapshots, a clone, what comes between them, and the end of some of them; `tag` is in the names.
async fn use_pool(pool: &Pool, tag: u64) {
    let (dsl, version) = (pool.dsl(), pool.version());
    let fs_name = format!("{POOL}/v{tag}");
    let owner = InitOwner { uid: 0, gid: 0, mode: 0o755, time: pool.rt().wall_clock() };
    dsl.create_fs(&fs_name, Vec::new(), init_fs(owner, FsCreateProps::default())).await.expect("made");
    let fs = mount(pool, &fs_name).await;
    assert_eq!(fs.version(), ondisk::version::zpl_of(version), "of a new file system");
    change(&fs).await;
    let snap = async |fs: &str, name: &str| dsl.snapshot(vec![format!("{fs}@{name}")], false, Vec::new()).await;
    for (n, name) in ["a", "b", "c", "d"].into_iter().enumerate() {
        write(&fs, "changes", n as u8).await;
        snap(&fs_name, name).await.unwrap_or_else(|e| panic!("{fs_name}@{name}: {e}"));
    }
    write(&fs, "changes", 9).await;
    check(&fs).await;
    fs.unmount().await.expect("unmounted");
    let clone = format!("{POOL}/c{tag}");
    dsl.clone_snapshot(&format!("{fs_name}@b"), &clone, Vec::new()).await.expect("cloned");
    let fs = mount(pool, &clone).await;
    check(&fs).await;
    write(&fs, "of the clone", 1).await;
    fs.unmount().await.expect("unmounted");
    snap(&clone, "e").await.expect("made");
    dsl.destroy_snapshots(vec![format!("{fs_name}@c")], false).await.expect("destroyed");
}

/// Every clone is promoted, a file system rolled back, snapshots go, and file systems.
async fn end_pool(pool: &Pool, versions: &[u64]) {
    let dsl = pool.dsl();
    for v in versions {
        let (fs, clone) = (format!("{POOL}/v{v}"), format!("{POOL}/c{v}"));
        dsl.promote(&clone).await.unwrap_or_else(|e| panic!("{clone}: {e}"));
        dsl.rollback(&format!("{fs}@d")).await.unwrap_or_else(|e| panic!("{fs}: {e}"));
        let open = mount(pool, &fs).await;
        check(&open).await;
        write(&open, "after", 5).await;
        open.unmount().await.expect("unmounted");
        dsl.snapshot(vec![format!("{fs}@f"), format!("{clone}@f")], false, Vec::new()).await.expect("made");
        dsl.destroy_snapshots(vec![format!("{clone}@a"), format!("{fs}@d")], false).await.expect("destroyed");
    }
    let (fs, clone) = (format!("{POOL}/v{}", versions[0]), format!("{POOL}/c{}", versions[0]));
    dsl.destroy_snapshots(vec![format!("{fs}@f")], false).await.expect("destroyed");
    dsl.destroy_fs(&fs).await.expect("destroyed");
    dsl.destroy_snapshots(vec![format!("{clone}@b"), format!("{clone}@e")], false).await.expect("destroyed");
    while dsl.has_freeing() {
        pool.sync().await.expect("synced");
    }
}

/// By weir's checker, and by `level`.
fn judged(lab: &Lab, level: Level, what: &str) {
    check_images(&lab.images()).unwrap_or_else(|e| panic!("{what}: {e}"));
    match judge(&lab.images(), level, "versions") {
        Verdict::Good => {}
        Verdict::Missing(missing) => eprintln!("NOT JUDGED: {what}: {missing}"),
        Verdict::Bad(why) => panic!("{what}: {why}"),
    }
}

#[test]
fn pools_of_every_version_are_made_used_and_upgraded() {
    for (seed, run) in (7300..).zip(&RUNS) {
        let mut rng = Rng::new(seed);
        let mut layout = Layout::draw(&mut rng, 128 << 20).shaped(shape(run.shape), &mut rng);
        (layout.features, layout.version) = (Vec::new(), Some(run.versions[0]));
        let lab = Lab::new(seed, &layout);
        let place = |version: u64| format!("{} {:?} at {version}", run.shape, run.versions);
        lab.sim.block_on(async {
            let pool = lab.create(&layout, Vec::new()).await.unwrap_or_else(|e| panic!("{}: {e}", place(0)));
            pool.export().await.expect("exported");
        });
        judged(&lab, Level::Zdb, &place(0));
        for (n, &version) in run.versions.iter().enumerate() {
            lab.sim.block_on(async {
                let pool = lab.import(false, layout.opts()).await.unwrap_or_else(|e| panic!("{}: {e}", place(version)));
                if n > 0 {
                    pool.upgrade(version).await.unwrap_or_else(|e| panic!("{}: {e}", place(version)));
                    assert!(pool.upgrade(run.versions[n - 1]).await.is_err(), "{}: an older one", place(version));
                }
                assert_eq!((pool.version(), pool.uberblock().version), (version, version));
                use_pool(&pool, version).await;
                pool.export().await.expect("exported");
            });
            let last = n + 1 == run.versions.len();
            judged(&lab, if last { Level::Zdb } else { Level::None }, &place(version));
        }
        lab.sim.block_on(async {
            let pool = lab.import(false, layout.opts()).await.expect("imported");
            end_pool(&pool, run.versions).await;
            pool.export().await.expect("exported");
        });
        judged(&lab, Level::Zdb, &place(u64::MAX));
    }
}

/// The power fails at every completion of a device during an upgrade: the pool has the old or the
/// new version, and is as good as any.
#[test]
fn upgrades_are_made_whole_or_not_at_all() {
    for (seed, from, to) in [(7500, 1, FEATURES), (7501, 10, LAST), (7502, 28, FEATURES)] {
        let mut layout = Layout::draw(&mut Rng::new(seed), 128 << 20);
        (layout.features, layout.version) = (Vec::new(), Some(from));
        let lab = Lab::new(seed, &layout);
        let logs: Vec<DiskLog> = lab.sim.block_on(async {
            let pool = lab.create(&layout, Vec::new()).await.expect("made");
            use_pool(&pool, 1).await;
            lab.start_logs(&pool).await.expect("started");
            pool.upgrade(to).await.expect("upgraded");
            pool.sync().await.expect("synced");
            lab.disks.iter().filter_map(|d| d.take_log()).collect()
        });
        lab.sim.crash();
        let mut replays: Vec<_> = logs.iter().map(DiskLog::replay).collect();
        let mut seen = Vec::new();
        for seq in completions(&logs) {
            let place = format!("{from} to {to}, cut at {seq}");
            let cut = Lab::with_images(seed ^ seq, images_at(&mut replays, seq, seed ^ seq << 8), true);
            let version = cut.sim.block_on(async {
                let pool = cut.import(false, layout.opts()).await.unwrap_or_else(|e| panic!("{place}: {e}"));
                let version = pool.version();
                assert_eq!(pool.uberblock().version, version, "{place}");
                use_pool(&pool, 2).await;
                pool.export().await.unwrap_or_else(|e| panic!("{place}: {e}"));
                version
            });
            check_images(&cut.images()).unwrap_or_else(|e| panic!("{place}: {e}"));
            assert!(version == from || version == to, "{place}: {version}");
            seen.push(version);
        }
        assert!(seen.first() == Some(&from) && seen.last() == Some(&to), "{from} to {to}: {seen:?}");
    }
}

#[test]
fn what_a_version_does_not_have_is_refused() {
    for (name, first) in [("raidz2", 3), ("raidz3", 17), ("log", 7), ("beside", 10)] {
        for version in [first - 1, first] {
            let mut rng = Rng::new(version);
            let mut layout = Layout::draw(&mut rng, 128 << 20).shaped(shape(name), &mut rng);
            (layout.features, layout.version) = (Vec::new(), Some(version));
            let lab = Lab::new(version, &layout);
            let made = lab.sim.block_on(async { lab.create(&layout, Vec::new()).await.map(drop) });
            assert_eq!(made.is_ok(), version == first, "{name} {version}: {made:?}");
        }
    }
    for version in [0, LAST + 1, FEATURES + 1] {
        let mut layout = Layout::draw(&mut Rng::new(1), 128 << 20);
        (layout.features, layout.version) = (Vec::new(), Some(version));
        let lab = Lab::new(1, &layout);
        assert!(lab.sim.block_on(async { lab.create(&layout, Vec::new()).await.map(drop) }).is_err(), "{version}");
    }
}

/// File systems of old versions in a new pool get newer ones, and their files attributes.
#[test]
fn file_systems_are_upgraded() {
    let mut layout = Layout::draw(&mut Rng::new(7400), 128 << 20);
    layout.features = ondisk::feature::features_of_2_1();
    let lab = Lab::new(7400, &layout);
    let name = |version: u64, to: u64| format!("{POOL}/from{version}to{to}");
    let pairs = || (1..=4).flat_map(|from| (from + 1..=5).map(move |to| (from, to)));
    lab.sim.block_on(async {
        let pool = lab.create(&layout, Vec::new()).await.expect("made");
        for (from, to) in pairs() {
            let owner = InitOwner { uid: 0, gid: 0, mode: 0o755, time: lab.sim.rt().wall_clock() };
            let props = FsCreateProps { version: Some(from), ..FsCreateProps::default() };
            let ds = pool.dsl().create_fs(&name(from, to), Vec::new(), init_fs(owner, props)).await.expect("made");
            let fs = Zfs::open(&ds, MountOpts::from_props(&ds)).await.expect("opened");
            change(&fs).await;
            fs.upgrade(to).await.expect("upgraded");
            assert!(fs.upgrade(from).await.is_err(), "it has {to}");
            assert_eq!(fs.version(), to);
            check(&fs).await;
            // Files made before and after.
            let dir = fs.lookup(fs.root(), b"new").await.expect("there").obj;
            let old = fs.lookup(dir, b"file").await.expect("there");
            for mode in [0o600, old.mode & 0o7777] {
                let set = SetAttr { mode: Some(mode), ..SetAttr::default() };
                assert_eq!(fs.setattr(old.obj, set).await.expect("set").mode & 0o7777, mode);
            }
            write(&fs, "newer", 3).await;
            check(&fs).await;
            fs.fsync(old.obj).await.expect("durable");
            fs.unmount().await.expect("unmounted");
        }
        pool.export().await.expect("exported");
    });
    judged(&lab, Level::Zdb, "file systems");
    lab.sim.block_on(async {
        let pool = lab.import(false, layout.opts()).await.expect("imported");
        for (from, to) in pairs() {
            let fs = mount(&pool, &name(from, to)).await;
            assert_eq!(fs.version(), to);
            check(&fs).await;
            fs.unmount().await.expect("unmounted");
        }
        pool.export().await.expect("exported");
    });
}
