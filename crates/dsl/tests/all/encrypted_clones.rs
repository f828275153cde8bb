//! Clones of files between encrypted file systems: blocks are shared where the key is the same one,
//! and nowhere else (format page 18 section 5).

use std::rc::Rc;

use base::{ErrorKind, ObjectId};
use dsl::crypto::NewCrypt;
use dsl::props::PropValue;
use ondisk::feature::FeatureId;
use spa::{GroupKind, ImportOpts, Pool};
use zpl::{CloneFrom, Cred, MountOpts, Zfs};

use crate::common::{World, opts};
use crate::streams::{create_encrypted, create_with, load_key};

/// Bytes of the file that is cloned.
const LEN: u64 = 10 * (8 << 10);

async fn mount(pool: &Pool, name: &str) -> Rc<Zfs> {
    let ds = pool.dsl().find(name).unwrap();
    Zfs::open(&ds, MountOpts::from_props(&ds)).await.unwrap()
}

async fn create(fs: &Zfs, name: &str) -> ObjectId {
    fs.create(fs.root(), name.as_bytes(), 0o644, &Cred::new(0, 0), false).await.unwrap().obj
}

fn content() -> Vec<u8> {
    let mut rng = sim::Rng::new(7);
    (0..LEN).map(|_| rng.next_u64() as u8).collect()
}

async fn read(fs: &Zfs, obj: ObjectId) -> Vec<u8> {
    fs.read(obj, 0, LEN + 1).await.unwrap().iter().flat_map(|b| b.to_vec()).collect()
}

/// A pool with encrypted file systems: `from/fs` with a file on disk, `from/fs/below`, which has
/// the key of the same wrapping key, `from/other`, and `from/plain`, which is not encrypted.
async fn pool(world: &World) -> Rc<Pool> {
    let pool = create_with(world, "from", GroupKind::Single, &[0], 12, &[FeatureId::BlockCloning]).await;
    let props = || vec![("recordsize".to_string(), PropValue::Num(8 << 10))];
    for name in ["from/fs", "from/other"] {
        create_encrypted(world, &pool, name, props()).await;
    }
    let dsl = pool.dsl();
    dsl.create_fs_encrypted("from/fs/below", props(), NewCrypt::default(), world.new_fs()).await.unwrap();
    dsl.create_fs("from/plain", props(), world.new_fs()).await.unwrap();
    for name in ["from/fs", "from/plain"] {
        let fs = mount(&pool, name).await;
        let file = create(&fs, "file").await;
        fs.write(file, 0, vec![bdev::Buf::copy_from(&content()).freeze()], false).await.unwrap();
        fs.unmount().await.unwrap();
    }
    pool.sync().await.unwrap();
    pool
}

/// Clones the file of one file system into a new one of another; the error, after which nothing has
/// changed.
async fn try_clone(pool: &Pool, from: &str, to: &str) -> Option<ErrorKind> {
    let (source, target) = (mount(pool, from).await, mount(pool, to).await);
    let obj = source.lookup(source.root(), b"file").await.unwrap().obj;
    let new = create(&target, "new").await;
    let saved = pool.cloned();
    let got = target.clone_range(CloneFrom { fs: &source, obj, off: 0 }, new, 0, LEN).await;
    let kind = match got {
        Ok(done) => {
            assert_eq!(done, (LEN, LEN));
            None
        }
        Err(e) => {
            assert_eq!(target.getattr(new).await.unwrap().size, 0, "{e}");
            Some(e.kind())
        }
    };
    pool.sync().await.unwrap();
    let is_shared = pool.cloned().1 > saved.1;
    assert_eq!(is_shared, kind.is_none(), "{from} to {to}");
    if kind.is_none() {
        assert_eq!(read(&target, new).await, content());
    }
    target.unlink(target.root(), b"new").await.unwrap();
    source.unmount().await.unwrap();
    target.unmount().await.unwrap();
    kind
}

#[test]
fn blocks_are_shared_by_file_systems_with_one_key() {
    let world = World::with_sizes(1, &[96 << 20]);
    world.sim.block_on(async {
        let pool = pool(&world).await;
        let dsl = pool.dsl();
        dsl.snapshot(vec!["from/fs@a".into()], false, Vec::new()).await.unwrap();
        dsl.clone_snapshot("from/fs@a", "from/twin", Vec::new()).await.unwrap();
        // A clone of a file system has the key of its origin, also after it has another wrapping
        // key, and after a promotion.
        for (from, to) in [("from/fs", "from/fs"), ("from/fs", "from/twin"), ("from/twin", "from/fs")] {
            assert_eq!(try_clone(&pool, from, to).await, None, "{from} to {to}");
        }
        dsl.promote("from/twin").await.unwrap();
        assert_eq!(try_clone(&pool, "from/fs", "from/twin").await, None);
        // One wrapping key is not one key.
        let other = Some(ErrorKind::CrossDevice);
        for (from, to) in [
            ("from/fs", "from/other"),
            ("from/fs", "from/fs/below"),
            ("from/fs", "from/plain"),
            ("from/plain", "from/fs"),
        ] {
            assert_eq!(try_clone(&pool, from, to).await, other, "{from} to {to}");
        }
        assert_eq!(try_clone(&pool, "from/plain", "from/plain").await, None);
        pool.export().await.unwrap();
    });
}

/// After a power cut the log of an encrypted file system is claimed without its key, with the
/// references of its clones, and replayed when the key is there.
#[test]
fn clones_in_the_log_wait_for_the_key() {
    let world = World::with_sizes(2, &[96 << 20]);
    world.sim.block_on(async {
        let pool = pool(&world).await;
        let fs = mount(&pool, "from/fs").await;
        let file = fs.lookup(fs.root(), b"file").await.unwrap().obj;
        let new = create(&fs, "new").await;
        fs.clone_range(CloneFrom { fs: &fs, obj: file, off: 0 }, new, 0, LEN).await.unwrap();
        // The source goes: only the references of the log keep its blocks.
        fs.unlink(fs.root(), b"file").await.unwrap();
        fs.fsync(new).await.unwrap();
    });
    let world = world.reborn(3);
    world.sim.block_on(async {
        for round in 0..2 {
            let pool =
                Pool::import(world.sim.rt(), world.find(&[0]).await, ImportOpts::default(), opts()).await.unwrap();
            if round == 1 {
                // Claimed and written since.
                let plain = mount(&pool, "from/plain").await;
                for n in 0..200 {
                    let file = create(&plain, &format!("more{n}")).await;
                    plain.write(file, 0, vec![bdev::Buf::copy_from(&content()).freeze()], false).await.unwrap();
                }
                plain.unmount().await.unwrap();
                load_key(&pool, "from/fs").await.unwrap();
                let fs = mount(&pool, "from/fs").await;
                assert!(fs.replayed().failed.is_none());
                assert!(fs.lookup(fs.root(), b"file").await.is_err());
                let new = fs.lookup(fs.root(), b"new").await.unwrap().obj;
                assert_eq!(read(&fs, new).await, content());
                fs.unlink(fs.root(), b"new").await.unwrap();
                fs.unmount().await.unwrap();
                while pool.dsl().has_freeing() {
                    pool.sync().await.unwrap();
                }
                pool.sync().await.unwrap();
                assert_eq!(pool.cloned().0, 0, "nothing refers to a block twice");
            }
            pool.export().await.unwrap();
        }
    });
}
