//! Records of OpenZFS 2.2 in the intent log: extended attributes in the system attributes,
//! exchanges, whiteouts. With the feature `zilsaxattr` a commit logs them, and a replay after a
//! power cut brings them back; without it a commit waits for the txg. A dataset has the feature's
//! key for as long as it has a log.

use ondisk::feature::{FeatureId, enable_closure_ids, features_of_2_1};
use sim::{DiskImage, SimDisk};
use spa::{DevSpec, Pool, PoolSpec};
use zpl::{FileKind, FsCreateProps, MountOpts, RenameFlags, SetXattr, XattrMode, Zfs, init_fs};

use crate::common::{ROOT_CRED, mount, opts, owner};
use crate::tmpfile_crash::{cuts, recover, world};

pub(crate) fn spec(disk: &SimDisk, features: Vec<FeatureId>) -> PoolSpec {
    PoolSpec {
        version: None,
        name: "tank".into(),
        devices: vec![DevSpec { dev: disk.dev(), is_disk: false }].into(),
        ashift: Some(12),
        features,
        comment: None,
        fs_props: Vec::new(),
        init: init_fs(owner(), FsCreateProps::default()),
    }
}

fn with_zilsaxattr() -> Vec<FeatureId> {
    let mut features = features_of_2_1();
    features.push(FeatureId::Zilsaxattr);
    enable_closure_ids(&features)
}

/// `n` bytes of a value that is like no other.
fn value(n: usize, salt: u8) -> Vec<u8> {
    (0..n).map(|i| (i as u8).wrapping_mul(31) ^ salt).collect()
}

#[derive(Default, Debug, PartialEq)]
struct Seen {
    commits_by_txg: u64,
    applied: u64,
    count_while_used: Option<u64>,
}

/// Changes a file system, cuts the power, replays, and looks.
fn changed_and_replayed(seed: u64, features: Vec<FeatureId>, saxattr: bool) -> Seen {
    let (sim, disk) = world(seed, DiskImage::zeroed(256 << 20));
    let rt = sim.rt();
    let mut seen = Seen::default();
    let image = sim.block_on(async {
        let mut opts = opts();
        opts.zil.saxattr = saxattr;
        let pool = Pool::create(rt.clone(), spec(&disk, features), opts).await.unwrap();
        let fs = mount(&pool).await;
        fs.set_opts(MountOpts { xattr: XattrMode::Sa, ..fs.opts() });
        let root = fs.root();
        let make = async |name: &[u8]| fs.create(root, name, 0o644, &ROOT_CRED, true).await.unwrap().obj;
        let (a, b, c) = (make(b"a").await, make(b"b").await, make(b"c").await);
        fs.mkdir(root, b"d", 0o755, &ROOT_CRED).await.unwrap();
        let d = fs.lookup(root, b"d").await.unwrap().obj;
        fs.setxattr(a, b"user.gone", &value(9, 1), SetXattr::Any).await.unwrap();
        fs.setxattr(b, b"user.kept", &value(7, 2), SetXattr::Any).await.unwrap();
        pool.sync().await.unwrap();
        let before = fs.log().unwrap().stats();

        fs.setxattr(a, b"user.small", &value(11, 3), SetXattr::Any).await.unwrap();
        fs.setxattr(a, b"user.large", &value(20_000, 4), SetXattr::Any).await.unwrap();
        fs.removexattr(a, b"user.gone").await.unwrap();
        fs.fsync(a).await.unwrap();
        let exchange = RenameFlags { exchange: true, ..RenameFlags::default() };
        fs.rename(root, b"a", d, b"x", exchange).await.unwrap_err();
        fs.rename(root, b"a", root, b"b", exchange).await.unwrap();
        fs.rename_whiteout(root, b"c", d, b"c2", RenameFlags::default(), &ROOT_CRED).await.unwrap();
        fs.setxattr(b, b"user.kept", &value(8, 5), SetXattr::Any).await.unwrap();
        fs.fsync(b).await.unwrap();
        fs.fsync(c).await.unwrap();
        let after = fs.log().unwrap().stats();
        seen.commits_by_txg = (after.barriers + after.fallbacks) - (before.barriers + before.fallbacks);
        seen.count_while_used = pool.dsl().features().count(FeatureId::Zilsaxattr.get().guid);
        cuts(&disk)
    });
    sim.crash();

    recover(image, async |fs: std::rc::Rc<Zfs>| {
        seen.applied = fs.replayed().applied;
        let root = fs.root();
        let at = |name: &'static [u8]| {
            let fs = fs.clone();
            async move { fs.lookup(root, name).await.unwrap() }
        };
        let (a, b, d) = (at(b"b").await, at(b"a").await, at(b"d").await);
        assert_eq!(fs.getxattr(a.obj, b"user.small").await.unwrap(), value(11, 3));
        assert_eq!(fs.getxattr(a.obj, b"user.large").await.unwrap(), value(20_000, 4));
        assert_eq!(fs.listxattr(a.obj).await.unwrap().len(), 2);
        assert_eq!(fs.getxattr(b.obj, b"user.kept").await.unwrap(), value(8, 5));
        let left = at(b"c").await;
        assert_eq!((left.kind, left.rdev, left.mode), (FileKind::CharDev, 0, 0o020_000));
        assert_eq!(fs.lookup(d.obj, b"c2").await.unwrap().kind, FileKind::File);
        assert_eq!(fs.readdir(root, 0, 100).await.unwrap().len(), 6);
    });
    seen
}

#[test]
fn records_of_2_2_are_replayed() {
    let seen = changed_and_replayed(31, with_zilsaxattr(), true);
    assert_eq!((seen.commits_by_txg, seen.count_while_used), (0, Some(1)), "{seen:?}");
    // The exchange, the whiteout, the change of b. The changes of a are in the txg that the first
    // commit waits for, since it begins the log.
    assert_eq!(seen.applied, 3, "{seen:?}");
}

#[test]
fn without_the_feature_commits_wait_for_the_txg() {
    let seen = changed_and_replayed(32, features_of_2_1(), true);
    assert!(seen.commits_by_txg > 0, "{seen:?}");
    assert_eq!((seen.count_while_used, seen.applied), (None, 0), "{seen:?}");
}

#[test]
fn attributes_need_no_records_of_their_own() {
    let seen = changed_and_replayed(34, with_zilsaxattr(), false);
    // Commits of changed attributes, though the log may have such records.
    assert!(seen.commits_by_txg > 0, "{seen:?}");
    assert_eq!((seen.count_while_used, seen.applied), (Some(1), 0), "{seen:?}");
}

#[test]
fn a_dataset_has_the_key_while_it_has_a_log() {
    let (sim, disk) = world(33, DiskImage::zeroed(128 << 20));
    let rt = sim.rt();
    sim.block_on(async {
        let pool = Pool::create(rt.clone(), spec(&disk, with_zilsaxattr()), opts()).await.unwrap();
        let count = || pool.dsl().features().count(FeatureId::Zilsaxattr.get().guid).unwrap();
        let fs = mount(&pool).await;
        fs.set_opts(MountOpts { xattr: XattrMode::Sa, ..fs.opts() });
        assert_eq!(count(), 0);
        let f = fs.create(fs.root(), b"f", 0o644, &ROOT_CRED, true).await.unwrap().obj;
        pool.sync().await.unwrap();
        assert_eq!(count(), 0, "no commit, no log");
        fs.setxattr(f, b"user.x", b"1", SetXattr::Any).await.unwrap();
        fs.fsync(f).await.unwrap();
        assert_eq!(count(), 1);
        fs.unmount().await.unwrap();
        pool.sync().await.unwrap();
        assert_eq!(count(), 0, "the log is gone");
        pool.export().await.unwrap();
    });
}
