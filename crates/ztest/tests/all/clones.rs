//! Pools of OpenZFS with cloned blocks, changed by weir (format page 18): files and snapshots that
//! share blocks go in any order, and what is left keeps its bytes. The checker compares the block
//! reference tables with the pointers of the pool.

use std::collections::BTreeMap;
use std::rc::Rc;

use base::ObjectId;
use bdev::Buf;
use ondisk::feature::FeatureId;
use sim::{CutStyle, DiskImage, DiskLog, Rng};
use spa::{EngineOpts, ImportOpts, Pool};
use zpl::{FileKind, MountOpts, Zfs};
use ztest::judge::{Verdict, judge24};
use ztest::lab::{Lab, Layout};
use ztest::reference::images_of;
use ztest::snaps::check_images;

/// Larger files are not read: they are sparse.
const READ_MAX: u64 = 8 << 20;

/// A file: its directory, object and size.
#[derive(Clone, Copy)]
struct File {
    dir: ObjectId,
    obj: ObjectId,
    size: u64,
}

/// Contents by path.
type Files = BTreeMap<Vec<u8>, Vec<u8>>;

/// What a pool must hold: files of file systems and snapshots.
type Model = BTreeMap<String, Files>;

fn opts() -> EngineOpts {
    let mut opts = Layout::draw(&mut Rng::new(1), 64 << 20).opts();
    opts.arc_max = 64 << 20;
    opts
}

async fn import(lab: &Lab) -> Rc<Pool> {
    lab.import_as(ImportOpts::default(), opts()).await.unwrap()
}

async fn mount(pool: &Pool, name: &str) -> Rc<Zfs> {
    let (ds, readonly) = match name.contains('@') {
        true => (pool.dsl().find_snapshot(name).await.unwrap(), true),
        false => (pool.dsl().find(name).unwrap(), false),
    };
    Zfs::open(&ds, MountOpts { readonly, ..MountOpts::from_props(&ds) }).await.unwrap()
}

/// The files of a file system, by path.
async fn list(fs: &Zfs) -> BTreeMap<Vec<u8>, File> {
    let mut out = BTreeMap::new();
    let mut dirs = vec![(Vec::new(), fs.root())];
    while let Some((at, dir)) = dirs.pop() {
        let mut cookie = 0;
        loop {
            let entries = fs.readdir(dir, cookie, 500).await.unwrap();
            let Some(last) = entries.last() else { break };
            cookie = last.next_cookie;
            for e in entries.iter().filter(|e| e.name != b"." && e.name != b"..") {
                let path = [&at[..], b"/", &e.name].concat();
                match e.kind {
                    FileKind::Dir => dirs.push((path, e.obj)),
                    FileKind::File => {
                        let size = fs.getattr(e.obj).await.unwrap().size;
                        out.insert(path, File { dir, obj: e.obj, size });
                    }
                    _ => {}
                }
            }
        }
    }
    out
}

async fn read(fs: &Zfs, file: File) -> Vec<u8> {
    let mut bytes = Vec::new();
    while (bytes.len() as u64) < file.size {
        let at = bytes.len() as u64;
        let parts = fs.read(file.obj, at, file.size - at).await.unwrap();
        parts.iter().for_each(|p| bytes.extend_from_slice(p));
        assert!(bytes.len() as u64 > at, "object {}: nothing at {at} of {}", file.obj, file.size);
    }
    bytes
}

async fn read_all(pool: &Pool, name: &str) -> Files {
    let fs = mount(pool, name).await;
    let mut out = Files::new();
    for (path, file) in list(&fs).await {
        if file.size <= READ_MAX {
            out.insert(path, read(&fs, file).await);
        }
    }
    fs.unmount().await.unwrap();
    out
}

/// Reads the whole pool.
async fn adopt(pool: &Pool) -> Model {
    let mut model = Model::new();
    for head in pool.dsl().all().into_iter().filter(|ds| !ds.name().contains('@')) {
        for ds in pool.dsl().snapshots(&head).await.unwrap().into_iter().chain([head]) {
            model.insert(ds.name(), read_all(pool, &ds.name()).await);
        }
    }
    model
}

/// Compares the pool with the model; `only` limits the file systems.
async fn compare(pool: &Pool, model: &Model, only: &dyn Fn(&str) -> bool) {
    for (name, files) in model.iter().filter(|(n, _)| only(n)) {
        let have = read_all(pool, name).await;
        for (path, want) in files {
            let have = have.get(path).unwrap_or_else(|| panic!("{name}: {} is gone", String::from_utf8_lossy(path)));
            assert!(have == want, "{name}: {} has other bytes", String::from_utf8_lossy(path));
        }
        assert_eq!(have.len(), files.len(), "files of {name}");
    }
}

async fn drain(pool: &Pool) {
    while pool.dsl().has_freeing() {
        pool.sync().await.unwrap();
    }
}

/// A random change of a random file of `name`.
async fn change(pool: &Pool, model: &mut Model, name: &str, rng: &mut Rng) {
    let fs = mount(pool, name).await;
    let all: Vec<(Vec<u8>, File)> = list(&fs).await.into_iter().collect();
    if !all.is_empty() {
        let (path, file) = &all[rng.below(all.len() as u64) as usize];
        let what = rng.below(10);
        if what < 5 || file.size > READ_MAX {
            fs.unlink(file.dir, path.rsplit(|c| *c == b'/').next().unwrap()).await.unwrap();
            model.get_mut(name).unwrap().remove(path);
        } else if what < 8 {
            let at = rng.below(file.size.max(1));
            let noise: Vec<u8> = (0..=rng.below(60_000)).map(|_| rng.next_u64() as u8).collect();
            fs.write(file.obj, at, vec![Buf::copy_from(&noise).freeze()], false).await.unwrap();
            let bytes = model.get_mut(name).unwrap().get_mut(path).unwrap();
            let end = at as usize + noise.len();
            bytes.resize(bytes.len().max(end), 0);
            bytes[at as usize..end].copy_from_slice(&noise);
        } else {
            let size = rng.below(file.size + 1);
            fs.truncate(file.obj, size).await.unwrap();
            model.get_mut(name).unwrap().get_mut(path).unwrap().truncate(size as usize);
        }
    }
    fs.unmount().await.unwrap();
}

fn judge(images: &[DiskImage], name: &str, pool: &str) {
    check_images(images).unwrap_or_else(|e| panic!("{name}: {e}"));
    match judge24(images, name, pool) {
        Verdict::Good => {}
        Verdict::Missing(what) => eprintln!("NOT JUDGED: {what} is missing"),
        Verdict::Bad(why) => panic!("{name}: {why}"),
    }
}

fn images() -> Option<Vec<DiskImage>> {
    let images = images_of("clone");
    if images.is_none() {
        eprintln!("NOT RUN: clone.tar.zst is missing");
    }
    images
}

/// Files that share blocks are overwritten, cut and removed, snapshots come and go, and at the end
/// everything.
#[test]
fn clones_go_in_any_order() {
    for seed in 0..2 {
        let Some(images) = images() else { return };
        let lab = Lab::with_images(seed, images, true);
        let mut rng = Rng::new(seed);
        lab.sim.block_on(async {
            let mut pool = import(&lab).await;
            let root = pool.name();
            // As zdb of 2.4.4 shows them (-T): 2.31M and 3.52M.
            let (used, saved) = pool.cloned();
            let hundredths = |n: u64| (n * 100 + (1 << 19)) >> 20;
            assert_eq!((hundredths(used), hundredths(saved)), (231, 352), "{used} {saved}");
            let mut model = adopt(&pool).await;
            for round in 0..6u64 {
                for _ in 0..12 {
                    let names: Vec<String> = model.keys().filter(|n| !n.contains('@')).cloned().collect();
                    let name = &names[rng.below(names.len() as u64) as usize];
                    change(&pool, &mut model, name, &mut rng).await;
                }
                let snap = format!("{root}/a@s{round}");
                if rng.percent(50) {
                    pool.dsl().snapshot(vec![snap.clone()], false, Vec::new()).await.unwrap();
                    model.insert(snap, model[&format!("{root}/a")].clone());
                }
                let snaps: Vec<String> =
                    model.keys().filter(|n| n.contains('@') && !n.ends_with("d@one")).cloned().collect();
                if rng.percent(50) && !snaps.is_empty() {
                    let gone = snaps[rng.below(snaps.len() as u64) as usize].clone();
                    pool.dsl().destroy_snapshots(vec![gone.clone()], false).await.unwrap();
                    model.remove(&gone);
                }
                drain(&pool).await;
                pool.sync().await.unwrap();
                check_images(&lab.images()).unwrap_or_else(|e| panic!("seed {seed} round {round}: {e}"));
                if round % 2 == 1 {
                    pool.export().await.unwrap();
                    drop(pool);
                    pool = import(&lab).await;
                }
                compare(&pool, &model, &|_| true).await;
            }
            pool.export().await.unwrap();
            drop(pool);
            judge(&lab.images(), &format!("clones-{seed}"), &root);
            let pool = import(&lab).await;
            let heads = ["b", "d", "a", "c"].map(|n| format!("{root}/{n}"));
            for head in &heads {
                let ds = pool.dsl().find(head).unwrap();
                let snaps: Vec<String> = pool.dsl().snapshots(&ds).await.unwrap().iter().map(|s| s.name()).collect();
                drop(ds);
                if !snaps.is_empty() {
                    // That of `d` has the clone `b`, which went first.
                    pool.dsl().destroy_snapshots(snaps, false).await.unwrap();
                }
                pool.dsl().destroy_fs(head).await.unwrap();
                drain(&pool).await;
                pool.sync().await.unwrap();
                check_images(&lab.images()).unwrap_or_else(|e| panic!("seed {seed} without {head}: {e}"));
            }
            assert_eq!(pool.cloned(), (0, 0));
            let count = |id: FeatureId| pool.features().count(id.get().guid);
            assert_eq!(count(FeatureId::BlockCloning), Some(0));
            assert_eq!(count(FeatureId::BlockCloningEndian), Some(0));
            pool.export().await.unwrap();
            drop(pool);
            judge(&lab.images(), &format!("clones-gone-{seed}"), &root);
        });
    }
}

/// A power cut at any moment while files and snapshots with clones go: what was not touched has its
/// bytes, and the tables fit to the pointers.
#[test]
fn power_cuts_while_clones_go() {
    let Some(images) = images() else { return };
    let lab = Lab::with_images(7, images, true);
    let mut rng = Rng::new(7);
    let (model, logs) = lab.sim.block_on(async {
        let pool = import(&lab).await;
        let root = pool.name();
        let mut model = adopt(&pool).await;
        pool.sync().await.unwrap();
        for disk in &lab.disks {
            bdev::flush(disk).await.unwrap();
            disk.start_log();
        }
        pool.dsl().set_freed_per_txg(40);
        let snaps = ["a@two", "c@two"].map(|n| format!("{root}/{n}"));
        pool.dsl().destroy_snapshots(snaps.to_vec(), false).await.unwrap();
        for _ in 0..4 {
            for name in ["a", "c"] {
                for _ in 0..6 {
                    change(&pool, &mut model, &format!("{root}/{name}"), &mut rng).await;
                }
            }
            pool.sync().await.unwrap();
        }
        drain(&pool).await;
        pool.sync().await.unwrap();
        model.retain(|name, _| name.contains("/b") || name.contains("/d"));
        let logs: Vec<DiskLog> = lab.disks.iter().filter_map(|d| d.take_log()).collect();
        pool.export().await.unwrap();
        (model, logs)
    });
    let mut moments: Vec<u64> = logs.iter().flat_map(|l| l.completions()).collect();
    moments.sort_unstable();
    let every = moments.len().div_ceil(40).max(1);
    let mut replays: Vec<_> = logs.iter().map(DiskLog::replay).collect();
    for (n, seq) in moments.into_iter().enumerate().step_by(every) {
        let images: Vec<DiskImage> = (0u64..)
            .zip(&mut replays)
            .map(|(d, replay)| {
                replay.to_seq(seq);
                replay.cut(CutStyle::Seeded, seq.wrapping_add(d << 40))
            })
            .collect();
        let lab = Lab::with_images(seq, images, true);
        lab.sim.block_on(async {
            let pool = import(&lab).await;
            compare(&pool, &model, &|_| true).await;
            drain(&pool).await;
            pool.export().await.unwrap();
        });
        check_images(&lab.images()).unwrap_or_else(|e| panic!("cut {n}: {e}"));
    }
}
