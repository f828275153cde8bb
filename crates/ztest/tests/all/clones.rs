//! Cloned blocks (format page 18), in a pool of OpenZFS and in pools of weir: files and snapshots
//! that share blocks are made, change and go in any order, and what is left keeps its bytes. The
//! checker compares the block reference tables with the pointers of the pool.

use std::collections::BTreeMap;
use std::rc::Rc;

use base::ObjectId;
use bdev::Buf;
use dsl::props::PropValue;
use ondisk::feature::FeatureId;
use sim::{DiskImage, DiskLog, Rng};
use spa::{EngineOpts, ImportOpts, Pool};
use zpl::{CloneFrom, Cred, FileKind, MountOpts, Zfs, is_no_clone};
use ztest::cuts::{completions, images_at};
use ztest::judge::{Verdict, judge24};
use ztest::lab::{Lab, Layout, POOL, new_fs, shape_of};
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
        lab.start_logs(&pool).await.unwrap();
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
    let moments = completions(&logs);
    let every = moments.len().div_ceil(40).max(1);
    let mut replays: Vec<_> = logs.iter().map(DiskLog::replay).collect();
    for (n, seq) in moments.into_iter().enumerate().step_by(every) {
        let images = images_at(&mut replays, seq, seq);
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

/// A state of the files of both file systems.
type State = BTreeMap<(usize, u8), Vec<u8>>;

/// Files of the load, in each of the file systems [`own_fs`].
const FILES: u64 = 5;

fn own_fs(n: usize) -> String {
    format!("{POOL}/{}", ["one", "two"][n])
}

/// A pool with two file systems of different compression and checksum.
async fn own_pool(lab: &Lab, layout: &Layout) -> Rc<Pool> {
    let pool = lab.create(layout, Vec::new()).await.unwrap();
    for (n, props) in [vec![("recordsize", 8192)], vec![("recordsize", 8192), ("compression", 2), ("checksum", 8)]]
        .into_iter()
        .enumerate()
    {
        let props = props.into_iter().map(|(k, v)| (k.to_string(), PropValue::Num(v))).collect();
        pool.dsl().create_fs(&own_fs(n), props, new_fs(&lab.sim)).await.unwrap();
    }
    pool
}

fn own_world(seed: u64) -> (Lab, Layout) {
    let mut rng = Rng::new(seed);
    let mut layout = Layout::draw(&mut rng, 64 << 20);
    layout.features = ondisk::feature::features_of_2_1();
    layout.features.push(FeatureId::BlockCloning);
    if seed.is_multiple_of(2) {
        layout.features.push(FeatureId::BlockCloningEndian);
    }
    let layout = layout.shaped(shape_of(seed), &mut rng);
    (Lab::new(seed, &layout), layout)
}

async fn file_of(fs: &Zfs, n: u8) -> (ObjectId, u64) {
    let name = [b'f', b'0' + n];
    match fs.lookup(fs.root(), &name).await {
        Ok(a) => (a.obj, a.size),
        Err(_) => (fs.create(fs.root(), &name, 0o644, &Cred::new(0, 0), false).await.unwrap().obj, 0),
    }
}

/// One random change, done and put into `state`. Returns the file that it changed.
async fn own_change(mounts: &[Rc<Zfs>], state: &mut State, rng: &mut Rng) -> (usize, u8) {
    let key = (rng.below(2) as usize, rng.below(FILES) as u8);
    let fs = &mounts[key.0];
    let (obj, size) = file_of(fs, key.1).await;
    state.entry(key).or_default();
    match rng.below(10) {
        0..5 => {
            let from = (rng.below(2) as usize, rng.below(FILES) as u8);
            let Some(source) = state.get(&from).cloned() else { return key };
            let (src, _) = file_of(&mounts[from.0], from.1).await;
            let block = |n: u64| n / 8192 * 8192;
            let (src_off, off, len) = match rng.below(3) {
                0 => (0, 0, source.len() as u64),
                _ => {
                    let at = block(rng.below(source.len() as u64 + 1));
                    (at, block(rng.below(size + 8192)), 8192 * (1 + rng.below(8)))
                }
            };
            let at = CloneFrom { fs: &mounts[from.0], obj: src, off: src_off };
            if rng.percent(30) {
                let own = &state[&key];
                let part = |b: &[u8], at: u64, n: u64| b.get(at as usize..(at + n) as usize).map(<[u8]>::to_vec);
                match fs.share_equal(at, obj, off, len).await {
                    Ok(n) => assert_eq!(part(own, off, n), part(&source, src_off, n)),
                    Err(e) if e.kind() == base::ErrorKind::Differs => {
                        let n = len.min(source.len() as u64 - src_off);
                        assert_ne!(part(own, off, n), part(&source, src_off, n));
                    }
                    Err(e) => assert!(is_no_clone(&e), "{e:?}"),
                }
                return key;
            }
            match fs.clone_range(at, obj, off, len).await {
                Ok((0, _)) => {}
                Ok((n, _)) => {
                    let bytes = state.get_mut(&key).unwrap();
                    let end = (off + n) as usize;
                    bytes.resize(bytes.len().max(end), 0);
                    bytes[off as usize..end].copy_from_slice(&source[src_off as usize..(src_off + n) as usize]);
                }
                Err(e) => assert!(is_no_clone(&e), "{e:?}"),
            }
        }
        5..8 => {
            let at = rng.below(size + 5000);
            let data: Vec<u8> =
                (0..=rng.below(30_000)).map(|i| if i % 64 < 32 { rng.next_u64() as u8 } else { 3 }).collect();
            fs.write(obj, at, vec![Buf::copy_from(&data).freeze()], false).await.unwrap();
            let bytes = state.get_mut(&key).unwrap();
            let end = at as usize + data.len();
            bytes.resize(bytes.len().max(end), 0);
            bytes[at as usize..end].copy_from_slice(&data);
        }
        8 => {
            let to = rng.below(size + 1);
            fs.truncate(obj, to).await.unwrap();
            state.get_mut(&key).unwrap().truncate(to as usize);
        }
        _ => {
            fs.unlink(fs.root(), &[b'f', b'0' + key.1]).await.unwrap();
            state.remove(&key);
        }
    }
    key
}

/// Files with the same bytes share their blocks when they are asked to: the space of one becomes
/// free, no time changes, and a file that differs stays as it is.
#[test]
fn equal_files_are_shared() {
    let mut rng = Rng::new(71);
    let mut layout = Layout::draw(&mut rng, 128 << 20);
    layout.features.push(FeatureId::BlockCloning);
    let lab = Lab::new(71, &layout);
    lab.sim.block_on(async {
        let pool = lab.create(&layout, vec![("compression".into(), PropValue::Num(2))]).await.unwrap();
        let name = format!("{POOL}/fs");
        pool.dsl().create_fs(&name, Vec::new(), new_fs(&lab.sim)).await.unwrap();
        let fs = mount(&pool, &name).await;
        let mut bytes = vec![0; 3_000_000];
        rng.fill(&mut bytes);
        let mut files = Vec::new();
        for (n, change) in [(0, None), (1, None), (2, Some(2_999_000)), (3, Some(10))] {
            let obj = file_of(&fs, n).await.0;
            let mut own = bytes.clone();
            if let Some(at) = change {
                own[at] ^= 1;
            }
            fs.write(obj, 0, vec![Buf::copy_from(&own).freeze()], false).await.unwrap();
            files.push((obj, own));
        }
        // Of files that are not on disk yet, too.
        let len = bytes.len() as u64;
        let from = CloneFrom { fs: &fs, obj: files[0].0, off: 0 };
        let before = fs.getattr(files[1].0).await.unwrap();
        assert_eq!(fs.share_equal(from, files[1].0, 0, len).await.unwrap(), len);
        let after = fs.getattr(files[1].0).await.unwrap();
        assert_eq!((after.mtime, after.ctime, after.size), (before.mtime, before.ctime, len));
        for n in [2, 3] {
            let e = fs.share_equal(from, files[n].0, 0, len).await.unwrap_err();
            assert_eq!(e.kind(), base::ErrorKind::Differs, "{e}");
        }
        // The blocks before the one that differs are the same.
        let blksz = u64::from(before.blksize);
        assert_eq!(fs.share_equal(from, files[2].0, 0, blksz * 4).await.unwrap(), blksz * 4);
        let beyond = fs.share_equal(CloneFrom { off: blksz, ..from }, files[1].0, blksz * 2, len).await.unwrap_err();
        assert_eq!(beyond.kind(), base::ErrorKind::Invalid);
        pool.sync().await.unwrap();
        let os = fs.dataset().objset().await.unwrap();
        let mut places = Vec::new();
        for (obj, _) in &files {
            let dn = os.hold(*obj).await.unwrap();
            places.push([dn.block_pointer(0).await.unwrap(), dn.block_pointer(dn.max_blkid()).await.unwrap()]);
        }
        let shared = |a: usize, b: usize| [0, 1].map(|n| places[a][n].same_place(&places[b][n]));
        assert_eq!((shared(0, 1), shared(0, 2), shared(0, 3)), ([true; 2], [true, false], [false; 2]));
        for (obj, own) in &files {
            assert!(read(&fs, File { dir: fs.root(), obj: *obj, size: len }).await == *own);
        }
        // Once more, which changes nothing.
        assert_eq!(fs.share_equal(from, files[1].0, 0, len).await.unwrap(), len);
        pool.sync().await.unwrap();
        assert_eq!(os.hold(files[1].0).await.unwrap().block_pointer(0).await.unwrap(), places[1][0]);
        fs.unmount().await.unwrap();
        pool.export().await.unwrap();
    });
    check_images(&lab.images()).unwrap();
}

async fn own_mounts(pool: &Pool) -> Vec<Rc<Zfs>> {
    let mounts = vec![mount(pool, &own_fs(0)).await, mount(pool, &own_fs(1)).await];
    for fs in &mounts {
        assert!(fs.replayed().failed.is_none(), "{:?}", fs.replayed());
    }
    mounts
}

async fn own_state(mounts: &[Rc<Zfs>]) -> State {
    let mut out = State::new();
    for (n, fs) in mounts.iter().enumerate() {
        for (path, file) in list(fs).await {
            out.insert((n, path[2] - b'0'), read(fs, file).await);
        }
    }
    out
}

async fn close(mounts: Vec<Rc<Zfs>>) {
    for fs in mounts {
        fs.unmount().await.unwrap();
    }
}

/// Compares, but for one file.
fn assert_same(have: &State, want: &State, but: Option<(usize, u8)>, what: &str) {
    for key in have.keys().chain(want.keys()).filter(|k| Some(**k) != but) {
        let (a, b) = (have.get(key), want.get(key));
        let len = |s: Option<&Vec<u8>>| s.map(|s| s.len());
        assert!(a == b, "{what}: file {key:?} has {:?} bytes, or others; should have {:?}", len(a), len(b));
    }
}

/// A block that gets many references in one txg is the work of one entry: turns are short.
#[test]
fn a_block_is_cloned_many_times_in_one_txg() {
    let (lab, layout) = own_world(30);
    let times = 600;
    lab.sim.block_on(async {
        let pool = own_pool(&lab, &layout).await;
        let mounts = own_mounts(&pool).await;
        let fs = &mounts[0];
        let (obj, _) = file_of(fs, 0).await;
        fs.write(obj, 0, vec![Buf::copy_from(&[7; 8192]).freeze()], false).await.unwrap();
        pool.sync().await.unwrap();
        for n in 1..=times {
            let done = fs.clone_range(CloneFrom { fs, obj, off: 0 }, obj, n * 8192, 8192).await.unwrap();
            assert_eq!(done, (8192, (n + 1) * 8192));
        }
        pool.sync().await.unwrap();
        // Bytes of clones, as a RAID-Z charges them.
        assert!(pool.cloned().1 > times * 8000);
        close(mounts).await;
        pool.export().await.unwrap();
    });
    check_images(&lab.images()).unwrap();
}

/// A file is cloned out of a snapshot that is open without a use, as those of `.zfs` are, and the
/// snapshot is destroyed only when that is done.
#[test]
fn a_file_is_cloned_out_of_a_snapshot_that_goes() {
    let (lab, layout) = own_world(30);
    let rt = lab.sim.rt();
    lab.sim.block_on(async {
        let pool = own_pool(&lab, &layout).await;
        let mounts = own_mounts(&pool).await;
        let fs = &mounts[0];
        let (from, to) = (file_of(fs, 0).await.0, file_of(fs, 1).await.0);
        let text: Vec<u8> = (0..40_960u32).map(|i| (i / 13) as u8).collect();
        fs.write(from, 0, vec![Buf::copy_from(&text).freeze()], false).await.unwrap();
        let name = format!("{}@s", fs.dataset().name());
        pool.dsl().snapshot(vec![name.clone()], false, Vec::new()).await.unwrap();
        fs.setattr(from, zpl::SetAttr { size: Some(0), ..zpl::SetAttr::default() }).await.unwrap();
        let snap = pool.dsl().find_snapshot(&name).await.unwrap();
        let old = zpl::Zfs::open_uncounted(&snap, zpl::MountOpts::default()).await.unwrap();
        let at = CloneFrom { fs: &old, obj: from, off: 0 };
        assert_eq!(fs.clone_range(at, to, 0, u64::MAX).await.unwrap(), (40_960, 40_960));

        let held = dsl::CloneSource::of(&snap).expect("it is there");
        let dsl = pool.dsl().clone();
        let destroyed = std::rc::Rc::new(std::cell::Cell::new(false));
        let (done, what) = (destroyed.clone(), name.clone());
        let task = rt.spawn("destroy", async move {
            dsl.destroy_snapshots(vec![what], false).await.unwrap();
            done.set(true);
        });
        for _ in 0..4 {
            pool.sync().await.unwrap();
        }
        assert!(!destroyed.get() && !snap.is_gone(), "its blocks are being cloned");
        drop(held);
        task.await;
        assert!(snap.is_gone() && dsl::CloneSource::of(&snap).is_none());
        let e = fs.clone_range(at, to, 40_960, 40_960).await.unwrap_err();
        assert_eq!(e.kind(), base::ErrorKind::NotFound);
        drain(&pool).await;
        pool.sync().await.unwrap();
        assert!(pool.cloned().1 == 0, "the snapshot's references are gone");
        let read: Vec<u8> = fs.read(to, 0, 40_960).await.unwrap().iter().flat_map(|b| b.to_vec()).collect();
        assert_eq!(read, text);
        close(mounts).await;
        pool.export().await.unwrap();
    });
    check_images(&lab.images()).unwrap();
}

/// A file that is cloned to its own end grows with each piece; the copy ends where the file ended
/// before.
#[test]
fn a_file_is_cloned_behind_its_own_end_once() {
    let (lab, layout) = own_world(30);
    lab.sim.block_on(async {
        let pool = own_pool(&lab, &layout).await;
        let mounts = own_mounts(&pool).await;
        let fs = &mounts[0];
        let (obj, _) = file_of(fs, 0).await;
        // More blocks than a piece has.
        let len = 1200 * 8192;
        let mut data = vec![0; len as usize];
        Rng::new(30).fill(&mut data);
        fs.write(obj, 0, vec![Buf::copy_from(&data).freeze()], false).await.unwrap();
        pool.sync().await.unwrap();
        let done = fs.clone_range(CloneFrom { fs, obj, off: 0 }, obj, len, 5 * len).await.unwrap();
        assert_eq!(done, (len, 2 * len));
        let got = read(fs, File { dir: fs.root(), obj, size: 2 * len }).await;
        assert!(got == [&data[..], &data].concat());
        close(mounts).await;
        pool.export().await.unwrap();
    });
    check_images(&lab.images()).unwrap();
}

/// Clones, writes, truncations and removals in any order, snapshots among them, against files in
/// memory; the checker and zdb recount the references.
#[test]
fn clones_are_as_copies() {
    for seed in 0..6 {
        let (lab, layout) = own_world(seed);
        let mut rng = Rng::new(seed);
        lab.sim.block_on(async {
            let mut pool = own_pool(&lab, &layout).await;
            let mut state = State::new();
            let mut cloned = 0;
            for round in 0..8u64 {
                let mounts = own_mounts(&pool).await;
                for _ in 0..25 {
                    own_change(&mounts, &mut state, &mut rng).await;
                    if rng.percent(15) {
                        pool.sync().await.unwrap();
                        cloned = cloned.max(pool.cloned().1);
                    }
                }
                assert_same(&own_state(&mounts).await, &state, None, &format!("seed {seed} round {round}"));
                close(mounts).await;
                let snap = |n: u64| format!("{}@s{n}", own_fs((n % 2) as usize));
                pool.dsl().snapshot(vec![snap(round)], false, Vec::new()).await.unwrap();
                if round >= 3 {
                    pool.dsl().destroy_snapshots(vec![snap(round - 3)], false).await.unwrap();
                }
                drain(&pool).await;
                pool.sync().await.unwrap();
                check_images(&lab.images()).unwrap_or_else(|e| panic!("seed {seed} round {round}: {e}"));
                if round % 3 == 2 {
                    pool.export().await.unwrap();
                    drop(pool);
                    pool = lab.import(false, layout.opts()).await.unwrap();
                }
            }
            assert!(cloned > 0, "nothing was cloned");
            pool.export().await.unwrap();
            drop(pool);
            judge(&lab.images(), &format!("own-clones-{seed}"), POOL);
            let pool = lab.import(false, layout.opts()).await.unwrap();
            for n in 0..2 {
                let ds = pool.dsl().find(&own_fs(n)).unwrap();
                let snaps: Vec<String> = pool.dsl().snapshots(&ds).await.unwrap().iter().map(|s| s.name()).collect();
                drop(ds);
                pool.dsl().destroy_snapshots(snaps, false).await.unwrap();
                pool.dsl().destroy_fs(&own_fs(n)).await.unwrap();
                drain(&pool).await;
                pool.sync().await.unwrap();
                check_images(&lab.images()).unwrap_or_else(|e| panic!("seed {seed} without {n}: {e}"));
            }
            assert_eq!(pool.cloned(), (0, 0));
            assert_eq!(pool.features().count(FeatureId::BlockCloning.get().guid), Some(0));
            pool.export().await.unwrap();
        });
    }
}

/// A power cut at any moment of a synchronous load with clones: what was durable is there, in
/// files that share blocks too, and the references fit before and after the replay.
#[test]
fn power_cuts_find_clones_in_the_log() {
    for seed in 24..28 {
        let (lab, layout) = own_world(seed);
        let mut rng = Rng::new(seed);
        // When a change began, when it was durable, the file and the state after it.
        let mut history: Vec<(u64, u64, (usize, u8), State)> = Vec::new();
        let (start, logs) = lab.sim.block_on(async {
            let pool = own_pool(&lab, &layout).await;
            let mounts = own_mounts(&pool).await;
            let mut state = State::new();
            for _ in 0..12 {
                own_change(&mounts, &mut state, &mut rng).await;
            }
            lab.start_logs(&pool).await.unwrap();
            let start = state.clone();
            for _ in 0..60 {
                let begun = lab.sim.io_seq();
                let key = own_change(&mounts, &mut state, &mut rng).await;
                let fs = &mounts[key.0];
                let sync_at = match fs.lookup(fs.root(), &[b'f', b'0' + key.1]).await {
                    Ok(a) => a.obj,
                    Err(_) => fs.root(),
                };
                fs.fsync(sync_at).await.unwrap();
                history.push((begun, lab.sim.io_seq(), key, state.clone()));
                if rng.percent(5) {
                    pool.sync().await.unwrap();
                }
            }
            let logs: Vec<DiskLog> = lab.disks.iter().filter_map(|d| d.take_log()).collect();
            close(mounts).await;
            pool.export().await.unwrap();
            (start, logs)
        });
        let moments = completions(&logs);
        let every = moments.len().div_ceil(30).max(1);
        let mut replays: Vec<_> = logs.iter().map(DiskLog::replay).collect();
        for (n, seq) in moments.into_iter().enumerate().step_by(every) {
            let images = images_at(&mut replays, seq, seq);
            let name = format!("seed {seed} cut {n}");
            let durable = history.iter().rev().find(|h| h.1 <= seq).map_or(&start, |h| &h.3);
            let under_way = history.iter().find(|h| h.0 <= seq && seq < h.1).map(|h| h.2);
            let lab = Lab::with_images(seq, images, true);
            lab.sim.block_on(async {
                let mut pool = lab.import(false, layout.opts()).await.unwrap();
                if n.is_multiple_of(2) {
                    // Claimed and not replayed: the log has the references.
                    pool.export().await.unwrap();
                    drop(pool);
                    check_images(&lab.images()).unwrap_or_else(|e| panic!("{name}: claimed: {e}"));
                    pool = lab.import(false, layout.opts()).await.unwrap();
                }
                let mounts = own_mounts(&pool).await;
                assert_same(&own_state(&mounts).await, durable, under_way, &name);
                close(mounts).await;
                drain(&pool).await;
                pool.export().await.unwrap();
            });
            check_images(&lab.images()).unwrap_or_else(|e| panic!("{name}: when done: {e}"));
        }
    }
}

/// A clone and its origin lose their blocks in the txg that clones them, while its record waits for
/// a commit of the next txg: the log that a power cut leaves names blocks that are free.
#[test]
fn power_cuts_find_clones_of_what_is_free() {
    for seed in 24..28 {
        let (lab, layout) = own_world(seed);
        let logs: Vec<DiskLog> = lab.sim.block_on(async {
            let pool = own_pool(&lab, &layout).await;
            let mounts = own_mounts(&pool).await;
            let fs = &mounts[1];
            let ((from, _), (to, _)) = (file_of(fs, 0).await, file_of(fs, 1).await);
            lab.start_logs(&pool).await.unwrap();
            let mut rng = Rng::new(seed);
            for _ in 0..4 {
                let mut data = vec![0; 40_960];
                rng.fill(&mut data);
                fs.write(from, 0, vec![Buf::copy_from(&data).freeze()], false).await.unwrap();
                pool.sync().await.unwrap();
                let (done, _) = fs.clone_range(CloneFrom { fs, obj: from, off: 0 }, to, 0, 40_960).await.unwrap();
                assert_eq!(done, 40_960);
                for file in [from, to] {
                    fs.truncate(file, 0).await.unwrap();
                }
                let commit = async {
                    // While the txg is on its way to disk.
                    pool.rt().sleep(base::Nanos(rng.below(300_000))).await;
                    fs.write(to, 0, vec![Buf::copy_from(&data[..700]).freeze()], false).await.unwrap();
                    fs.fsync(to).await.unwrap();
                };
                let (synced, ()) = rt::join::join2(pool.sync(), commit).await;
                synced.unwrap();
            }
            let logs = lab.disks.iter().filter_map(|d| d.take_log()).collect();
            close(mounts).await;
            pool.export().await.unwrap();
            logs
        });
        let moments = completions(&logs);
        let every = moments.len().div_ceil(60).max(1);
        let mut replays: Vec<_> = logs.iter().map(DiskLog::replay).collect();
        for (n, seq) in moments.into_iter().enumerate().step_by(every) {
            let lab = Lab::with_images(seq, images_at(&mut replays, seq, seq), true);
            let name = format!("seed {seed} cut {n}");
            lab.sim.block_on(async {
                let pool = lab.import(false, layout.opts()).await.unwrap();
                pool.export().await.unwrap();
                drop(pool);
                check_images(&lab.images()).unwrap_or_else(|e| panic!("{name}: claimed: {e}"));
                let pool = lab.import(false, layout.opts()).await.unwrap();
                let mounts = own_mounts(&pool).await;
                close(mounts).await;
                drain(&pool).await;
                pool.export().await.unwrap();
            });
            check_images(&lab.images()).unwrap_or_else(|e| panic!("{name}: when done: {e}"));
        }
    }
}
