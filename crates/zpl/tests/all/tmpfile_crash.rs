//! Power cuts around operations without an intent log record: first names of unnamed files,
//! whiteouts, exchanges.

use std::rc::Rc;

use crate::common::{ROOT_CRED, mount, opts, owner};
use bdev::Bytes;
use ondisk::feature::features_of_2_1;
use sim::{CutStyle, DiskConfig, DiskImage, Model, Sim, SimConfig, SimDisk};
use spa::{DevSpec, ImportOpts, Pool, PoolSpec};
use zpl::{FileKind, FsCreateProps, RenameFlags, Zfs, init_fs};

pub(crate) fn world(seed: u64, image: DiskImage) -> (Sim, SimDisk) {
    let sim = Sim::new(SimConfig::seeded(seed));
    let disk = SimDisk::with(&sim.handle(), DiskConfig::new(image, Model::random(), seed));
    (sim, disk)
}

/// The disk after a power cut at this moment, in several variants.
pub(crate) fn cuts(disk: &SimDisk) -> Vec<DiskImage> {
    (0..4).map(|seed| disk.what_if_cut(CutStyle::Seeded, seed)).collect()
}

/// Imports each image in a world of its own and looks at it.
pub(crate) fn recover(images: Vec<DiskImage>, mut look: impl AsyncFnMut(Rc<Zfs>)) {
    for (seed, image) in (0..).zip(images) {
        let (sim, disk) = world(seed, image);
        let rt = sim.rt();
        sim.block_on(async {
            let mut found = spa::scan(vec![disk.dev()]).await;
            let import = ImportOpts { force: true, ..ImportOpts::default() };
            let pool = Pool::import(rt.clone(), found.remove(0), import, opts()).await.unwrap();
            let fs = mount(&pool).await;
            assert!(fs.replayed().failed.is_none());
            for _ in 0..1000 {
                if fs.unlinked_count().await.unwrap() == 0 {
                    break;
                }
                rt.sleep(base::Nanos::from_ms(1)).await;
            }
            assert_eq!(fs.unlinked_count().await.unwrap(), 0, "what has no name goes");
            pool.sync().await.unwrap();
            look(fs.clone()).await;
            fs.unmount().await.unwrap();
            pool.export().await.unwrap();
        });
    }
}

async fn content(fs: &Zfs, name: &[u8]) -> Option<Vec<u8>> {
    let a = fs.lookup(fs.root(), name).await.ok()?;
    assert_eq!(a.nlink, 1);
    Some(fs.read(a.obj, 0, 1 << 20).await.unwrap().iter().flat_map(|b| b.to_vec()).collect())
}

#[test]
fn names_are_durable_with_what_they_name() {
    let (sim, disk) = world(1, DiskImage::zeroed(256 << 20));
    let rt = sim.rt();
    let (nameless, linked, synced, whiteout, exchanged, before) = sim.block_on(async {
        let spec = PoolSpec {
            version: None,
            name: "tank".into(),
            devices: vec![DevSpec { dev: disk.dev(), is_disk: false }].into(),
            ashift: Some(12),
            features: features_of_2_1(),
            comment: None,
            fs_props: Vec::new(),
            init: init_fs(owner(), FsCreateProps::default()),
        };
        let pool = Pool::create(rt.clone(), spec, opts()).await.unwrap();
        let fs = mount(&pool).await;
        let root = fs.root();
        let before = fs.objset().used_objects();
        let write = async |obj, data: &[u8]| {
            fs.write(obj, 0, vec![Bytes::copy_from(data)], false).await.unwrap();
        };

        let t = fs.tmpfile(root, 0o600, &ROOT_CRED, true).await.unwrap().obj;
        write(t, &[1; 50_000]).await;
        fs.fsync(t).await.unwrap();
        pool.sync().await.unwrap();
        let nameless = cuts(&disk);
        write(t, &[2; 70_000]).await;
        fs.link(t, root, b"name").await.unwrap();
        let mut linked = cuts(&disk);
        fs.truncate(t, 60_000).await.unwrap();
        linked.extend(cuts(&disk));
        fs.fsync(t).await.unwrap();
        let synced = cuts(&disk);

        fs.rename_whiteout(root, b"name", root, b"new", RenameFlags::default(), &ROOT_CRED).await.unwrap();
        fs.fsync(t).await.unwrap();
        let whiteout = cuts(&disk);
        let f = fs.create(root, b"other", 0o644, &ROOT_CRED, true).await.unwrap().obj;
        write(f, b"other").await;
        let exchange = RenameFlags { exchange: true, ..RenameFlags::default() };
        fs.rename(root, b"other", root, b"new", exchange).await.unwrap();
        fs.fsync(f).await.unwrap();
        let exchanged = cuts(&disk);
        fs.release(t).await;
        (nameless, linked, synced, whiteout, exchanged, before)
    });
    sim.crash();

    recover(nameless, async |fs| {
        assert_eq!(fs.objset().used_objects(), before);
    });
    recover(linked, async |fs| match content(&fs, b"name").await {
        None => assert_eq!(fs.objset().used_objects(), before),
        Some(data) => assert!(data == [2; 70_000] || data == [2; 60_000], "{} bytes", data.len()),
    });
    recover(synced, async |fs| assert!(content(&fs, b"name").await.unwrap() == [2; 60_000]));
    recover(whiteout, async |fs| {
        let left = fs.lookup(fs.root(), b"name").await.unwrap();
        assert_eq!((left.kind, left.rdev), (FileKind::CharDev, 0));
        assert!(content(&fs, b"new").await.unwrap() == [2; 60_000]);
    });
    recover(exchanged, async |fs| {
        assert_eq!(content(&fs, b"new").await.unwrap(), b"other");
        assert!(content(&fs, b"other").await.unwrap() == [2; 60_000]);
    });
}
