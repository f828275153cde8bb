//! Names of 256 to 1023 bytes: the feature `longname` of the pool and the property of the file
//! system. What was made stays readable and removable with the property off; the intent log has
//! such names, and a replay makes them whatever the property says by then.

use std::collections::BTreeSet;
use std::rc::Rc;

use base::{ErrorKind, ObjectId};
use ondisk::feature::{FeatureId, enable_closure_ids, features_of_2_1};
use sim::DiskImage;
use spa::Pool;
use zpl::{FileKind, MountOpts, RenameFlags, Zfs};

use crate::common::{ROOT_CRED, mount, opts};
use crate::log_records::spec;
use crate::tmpfile_crash::{cuts, recover, world};

fn with_longname() -> Vec<FeatureId> {
    let mut features = features_of_2_1();
    features.push(FeatureId::Longname);
    enable_closure_ids(&features)
}

/// A name of `len` bytes; names of different lengths or letters differ in their first bytes.
fn name(letter: char, len: usize) -> Vec<u8> {
    let start = format!("{letter}{len}-");
    start.bytes().cycle().take(len).collect()
}

async fn create(fs: &Zfs, dir: ObjectId, name: &[u8]) -> base::Result<ObjectId> {
    fs.create(dir, name, 0o644, &ROOT_CRED, true).await.map(|a| a.obj)
}

fn too_long<T: std::fmt::Debug>(r: base::Result<T>) {
    assert_eq!(r.unwrap_err().kind(), ErrorKind::NameTooLong);
}

async fn names(fs: &Zfs, dir: ObjectId) -> BTreeSet<Vec<u8>> {
    let mut out = BTreeSet::new();
    let mut at = 0;
    loop {
        let list = fs.readdir(dir, at, 7).await.unwrap();
        let Some(last) = list.last() else { return out };
        at = last.next_cookie;
        for e in list {
            assert!(out.insert(e.name.to_vec()), "an entry is listed twice");
        }
    }
}

fn count(pool: &Pool) -> u64 {
    pool.features().count(FeatureId::Longname.get().guid).unwrap()
}

fn set(fs: &Zfs, longname: bool) {
    fs.set_opts(MountOpts { longname, ..fs.opts() });
}

#[test]
fn every_operation_takes_long_names() {
    let (sim, disk) = world(41, DiskImage::zeroed(256 << 20));
    let rt = sim.rt();
    sim.block_on(async {
        let pool = Pool::create(rt.clone(), spec(&disk, with_longname()), opts()).await.unwrap();
        let fs = mount(&pool).await;
        let root = fs.root();
        assert_eq!((count(&pool), fs.statfs().namelen), (0, 255));
        too_long(create(&fs, root, &name('a', 256)).await);
        too_long(fs.lookup(root, &name('a', 256)).await);
        set(&fs, true);
        assert_eq!(fs.statfs().namelen, 1023);
        assert_eq!(fs.lookup(root, &name('a', 256)).await.unwrap_err().kind(), ErrorKind::NotFound);
        create(&fs, root, &name('a', 255)).await.unwrap();
        pool.sync().await.unwrap();
        assert_eq!(count(&pool), 0, "no long name yet");

        let a = create(&fs, root, &name('a', 256)).await.unwrap();
        assert_eq!(create(&fs, root, &name('a', 256)).await.unwrap_err().kind(), ErrorKind::Exists);
        let dir = fs.mkdir(root, &name('d', 1023), 0o755, &ROOT_CRED).await.unwrap().obj;
        fs.symlink(root, &name('s', 700), &name('t', 900), &ROOT_CRED).await.unwrap();
        fs.mknod(root, &name('p', 300), 0o010_644, 0, &ROOT_CRED).await.unwrap();
        fs.link(a, dir, &name('l', 1000)).await.unwrap();
        for r in [create(&fs, root, &name('a', 1024)).await, fs.lookup(root, &name('a', 5000)).await.map(|a| a.obj)] {
            too_long(r);
        }
        too_long(fs.rename(root, &name('a', 256), dir, &name('a', 1024), RenameFlags::default()).await);
        fs.rename(root, &name('a', 256), dir, &name('b', 800), RenameFlags::default()).await.unwrap();
        let exchange = RenameFlags { exchange: true, ..RenameFlags::default() };
        fs.rename(dir, &name('b', 800), root, &name('p', 300), exchange).await.unwrap();
        assert_eq!(fs.lookup(dir, &name('b', 800)).await.unwrap().kind, FileKind::Fifo);
        // Many, so that leaves split; names that differ at their ends only.
        let mut many = Vec::new();
        for i in 0..400u32 {
            let mut n = name('m', 1015);
            n.extend(format!("{i:08}").bytes());
            create(&fs, dir, &n).await.unwrap();
            many.push(n);
        }
        pool.sync().await.unwrap();
        assert_eq!(count(&pool), 1);
        for n in many.iter().filter(|n| n.ends_with(b"7")) {
            fs.unlink(dir, n).await.unwrap();
        }
        let mut in_dir: BTreeSet<_> = many.into_iter().filter(|n| !n.ends_with(b"7")).collect();
        in_dir.extend([name('l', 1000), name('b', 800), b".".to_vec(), b"..".to_vec()]);
        let mut in_root = BTreeSet::from([name('a', 255), name('d', 1023), name('s', 700), name('p', 300)]);
        in_root.extend([b".".to_vec(), b"..".to_vec()]);
        assert_eq!(names(&fs, dir).await, in_dir);
        assert_eq!(names(&fs, root).await, in_root);
        assert_eq!(fs.path_of(a).await.unwrap(), [b"/".to_vec(), name('p', 300)].concat());

        // Off: what is there is read, renamed to shorter names and removed.
        set(&fs, false);
        assert_eq!(fs.statfs().namelen, 255);
        too_long(create(&fs, root, &name('x', 256)).await);
        too_long(fs.link(a, root, &name('x', 256)).await);
        too_long(fs.rename(root, &name('p', 300), root, &name('x', 256), RenameFlags::default()).await);
        pool.dsl().snapshot(vec!["tank@s".into()], false, Vec::new()).await.unwrap();
        assert_eq!(count(&pool), 2, "the snapshot has it too");
        fs.rename(root, &name('p', 300), root, b"short", RenameFlags::default()).await.unwrap();
        fs.unlink(dir, &name('l', 1000)).await.unwrap();
        fs.unlink(root, &name('s', 700)).await.unwrap();
        fs.unmount().await.unwrap();
        pool.dsl().clone_snapshot("tank@s", "tank/c", Vec::new()).await.unwrap();
        assert_eq!(count(&pool), 3);
        pool.dsl().destroy_fs("tank/c").await.unwrap();
        pool.sync().await.unwrap();
        assert_eq!(count(&pool), 2);
        pool.export().await.unwrap();
        drop(pool);

        let mut found = spa::scan(vec![disk.dev()]).await;
        let import = spa::ImportOpts::default();
        let pool = Pool::import(rt.clone(), found.remove(0), import, opts()).await.unwrap();
        let fs = mount(&pool).await;
        in_dir.remove(&name('l', 1000));
        assert_eq!(names(&fs, dir).await, in_dir);
        for n in in_dir.iter().filter(|n| n.len() > 2) {
            fs.unlink(dir, n).await.unwrap();
        }
        fs.rmdir(root, &name('d', 1023)).await.unwrap();
        assert_eq!(names(&fs, root).await.len(), 4);
        pool.dsl().destroy_snapshots(vec!["tank@s".into()], false).await.unwrap();
        pool.sync().await.unwrap();
        assert_eq!(count(&pool), 1, "the dataset keeps it");
        fs.unmount().await.unwrap();
        pool.export().await.unwrap();
    });
}

#[test]
fn without_the_feature_the_property_changes_nothing() {
    let (sim, disk) = world(42, DiskImage::zeroed(128 << 20));
    let rt = sim.rt();
    sim.block_on(async {
        let pool = Pool::create(rt.clone(), spec(&disk, features_of_2_1()), opts()).await.unwrap();
        let fs = mount(&pool).await;
        set(&fs, true);
        assert_eq!(fs.statfs().namelen, 255);
        too_long(create(&fs, fs.root(), &name('a', 256)).await);
        too_long(fs.lookup(fs.root(), &name('a', 256)).await);
        fs.unmount().await.unwrap();
        pool.export().await.unwrap();
    });
}

/// A synced change with long names comes back after a power cut, though the property, which was
/// only the mount's, is off at the replay.
#[test]
fn logged_long_names_are_replayed() {
    let (sim, disk) = world(43, DiskImage::zeroed(256 << 20));
    let rt = sim.rt();
    let image = sim.block_on(async {
        let pool = Pool::create(rt.clone(), spec(&disk, with_longname()), opts()).await.unwrap();
        let fs = mount(&pool).await;
        set(&fs, true);
        let root = fs.root();
        for n in ["gone", "moved", "first"] {
            create(&fs, root, n.as_bytes()).await.unwrap();
        }
        let first = fs.lookup(root, b"first").await.unwrap().obj;
        // Begins the log.
        fs.write(first, 0, vec![bdev::Bytes::copy_from(&[7; 100])], false).await.unwrap();
        fs.fsync(first).await.unwrap();
        pool.sync().await.unwrap();
        assert_eq!(count(&pool), 0);
        fs.mkdir(root, &name('d', 1023), 0o755, &ROOT_CRED).await.unwrap();
        let dir = fs.lookup(root, &name('d', 1023)).await.unwrap().obj;
        create(&fs, dir, &name('f', 400)).await.unwrap();
        create(&fs, dir, &name('g', 500)).await.unwrap();
        fs.symlink(dir, &name('s', 300), &name('t', 900), &ROOT_CRED).await.unwrap();
        fs.rename(root, b"moved", dir, &name('m', 1000), RenameFlags::default()).await.unwrap();
        fs.rename(dir, &name('m', 1000), root, &name('m', 1001), RenameFlags::default()).await.unwrap();
        fs.link(first, dir, &name('l', 600)).await.unwrap();
        fs.unlink(dir, &name('g', 500)).await.unwrap();
        fs.fsync(first).await.unwrap();
        assert_eq!(count(&pool), 0, "no txg had a long name");
        cuts(&disk)
    });
    sim.crash();
    recover(image, async |fs: Rc<Zfs>| {
        assert!(!fs.opts().longname && fs.replayed().applied >= 7, "{:?}", fs.replayed());
        let root = fs.root();
        let dots = || BTreeSet::from([b".".to_vec(), b"..".to_vec()]);
        let mut want = dots();
        want.extend([name('d', 1023), name('m', 1001), b"gone".to_vec(), b"first".to_vec()]);
        assert_eq!(names(&fs, root).await, want);
        let dir = fs.lookup(root, &name('d', 1023)).await.unwrap().obj;
        let mut want = dots();
        want.extend([name('f', 400), name('s', 300), name('l', 600)]);
        assert_eq!(names(&fs, dir).await, want);
        let link = fs.lookup(dir, &name('s', 300)).await.unwrap().obj;
        assert_eq!(fs.readlink(link).await.unwrap(), name('t', 900));
        too_long(create(&fs, root, &name('x', 256)).await);
    });
}

/// The first long name of a log that is replayed is the new name of a rename: nothing before it
/// says that the file system has such names.
#[test]
fn a_rename_to_a_long_name_is_replayed_alone() {
    let (sim, disk) = world(44, DiskImage::zeroed(256 << 20));
    let rt = sim.rt();
    let image = sim.block_on(async {
        let pool = Pool::create(rt.clone(), spec(&disk, with_longname()), opts()).await.unwrap();
        let fs = mount(&pool).await;
        set(&fs, true);
        let root = fs.root();
        let file = create(&fs, root, b"file").await.unwrap();
        fs.write(file, 0, vec![bdev::Bytes::copy_from(&[7; 100])], false).await.unwrap();
        fs.fsync(file).await.unwrap();
        pool.sync().await.unwrap();
        fs.rename(root, b"file", root, &name('r', 780), RenameFlags::default()).await.unwrap();
        fs.fsync(file).await.unwrap();
        assert_eq!(count(&pool), 0, "no txg had a long name");
        cuts(&disk)
    });
    sim.crash();
    recover(image, async |fs: Rc<Zfs>| {
        assert!(!fs.opts().longname && fs.replayed().applied >= 1, "{:?}", fs.replayed());
        assert_eq!(names(&fs, fs.root()).await, BTreeSet::from([b".".to_vec(), b"..".to_vec(), name('r', 780)]));
    });
}
