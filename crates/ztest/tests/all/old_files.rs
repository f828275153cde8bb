//! File systems of ZPL versions 1 to 4, whose objects have znodes: made, written to, and as they
//! were after an import; judged.

use base::ObjectId;
use zpl::{Cred, FileKind, FsCreateProps, InitOwner, RenameFlags, SetAttr, SetXattr, Zfs, init_fs};
use ztest::judge::{Level, Verdict, judge};
use ztest::lab::{Lab, Layout, POOL};
use ztest::snaps::check_images;

use sim::Rng;

/// A target that fits behind a znode, the longest such, one too long for that, and the longest.
const TARGETS: [usize; 4] = [9, 56, 57, 1023];

fn bytes(n: usize) -> Vec<u8> {
    (0..n).map(|i| b'a' + (i % 23) as u8).collect()
}

/// Every kind of change, in the folder `new`.
pub(crate) async fn change(fs: &Zfs) {
    let cred = Cred::new(1000, 100);
    let dir = fs.mkdir(fs.root(), b"new", 0o750, &cred).await.unwrap().obj;
    let make = async |name: &[u8]| fs.create(dir, name, 0o644, &cred, true).await.unwrap().obj;
    let file = make(b"file").await;
    fs.write(file, 0, vec![bdev::Buf::copy_from(&bytes(300_000)).freeze()], false).await.unwrap();
    fs.setattr(file, SetAttr { size: Some(250_000), ..SetAttr::default() }).await.unwrap();
    for mode in [0o604, 0o4755, 0o640] {
        fs.setattr(file, SetAttr { mode: Some(mode), ..SetAttr::default() }).await.unwrap();
    }
    fs.setattr(file, SetAttr { uid: Some(4_000_000_000), gid: Some(7), ..SetAttr::default() }).await.unwrap();
    for len in TARGETS {
        fs.symlink(dir, format!("link{len}").as_bytes(), &bytes(len), &cred).await.unwrap();
    }
    fs.setxattr(file, b"user.short", b"one", SetXattr::Any).await.unwrap();
    fs.setxattr(file, b"user.long", &bytes(3000), SetXattr::Any).await.unwrap();
    fs.setxattr(dir, b"user.of-a-folder", b"two", SetXattr::Any).await.unwrap();
    fs.link(file, dir, b"second").await.unwrap();
    let gone = make(b"gone").await;
    fs.setxattr(gone, b"user.gone", b"three", SetXattr::Any).await.unwrap();
    fs.unlink(dir, b"gone").await.unwrap();
    make(b"old name").await;
    fs.rename(dir, b"old name", dir, b"new name", RenameFlags::default()).await.unwrap();
    let below = fs.mkdir(dir, b"below", 0o755, &cred).await.unwrap().obj;
    fs.rename(dir, b"second", below, b"moved", RenameFlags::default()).await.unwrap();
}

/// What [`change`] left is there.
pub(crate) async fn check(fs: &Zfs) {
    let dir = fs.lookup(fs.root(), b"new").await.unwrap();
    assert_eq!((dir.kind, dir.mode & 0o7777, dir.uid, dir.gid), (FileKind::Dir, 0o750, 1000, 100));
    let at = async |dir: ObjectId, name: &[u8]| fs.lookup(dir, name).await;
    let file = at(dir.obj, b"file").await.unwrap();
    assert_eq!((file.kind, file.mode & 0o7777, file.uid, file.gid), (FileKind::File, 0o640, 4_000_000_000, 7));
    assert_eq!((file.size, file.nlink), (250_000, 2));
    let content: Vec<u8> = fs.read(file.obj, 0, 1 << 20).await.unwrap().iter().flat_map(|b| b.to_vec()).collect();
    assert!(content == bytes(300_000)[..250_000]);
    for len in TARGETS {
        let link = at(dir.obj, format!("link{len}").as_bytes()).await.unwrap();
        assert_eq!((link.kind, link.size), (FileKind::Symlink, len as u64));
        assert_eq!(fs.readlink(link.obj).await.unwrap(), bytes(len));
    }
    assert_eq!(fs.getxattr(file.obj, b"user.short").await.unwrap(), b"one");
    assert_eq!(fs.getxattr(file.obj, b"user.long").await.unwrap(), bytes(3000));
    assert_eq!(fs.getxattr(dir.obj, b"user.of-a-folder").await.unwrap(), b"two");
    for gone in [&b"gone"[..], b"old name", b"second"] {
        assert!(at(dir.obj, gone).await.is_err());
    }
    assert_eq!(at(dir.obj, b"new name").await.unwrap().kind, FileKind::File);
    let below = at(dir.obj, b"below").await.unwrap().obj;
    assert_eq!(at(below, b"moved").await.unwrap().obj, file.obj);
}

#[test]
fn old_file_systems_are_made_and_written() {
    let mut layout = Layout::draw(&mut Rng::new(5300), 128 << 20);
    layout.features = ondisk::feature::features_of_2_1();
    let lab = Lab::new(5300, &layout);
    let name = |version: u64| format!("{POOL}/v{version}");
    lab.sim.block_on(async {
        let mut pool = lab.create(&layout, Vec::new()).await.unwrap();
        for version in 1..=4 {
            let owner = InitOwner { uid: 0, gid: 0, mode: 0o755, time: lab.sim.rt().wall_clock() };
            let props = FsCreateProps { version: Some(version), ..FsCreateProps::default() };
            let ds = pool.dsl().create_fs(&name(version), Vec::new(), init_fs(owner, props)).await.unwrap();
            let fs = Zfs::open(&ds, zpl::MountOpts::from_props(&ds)).await.unwrap();
            assert_eq!(fs.version(), version);
            change(&fs).await;
            fs.fsync(fs.root()).await.unwrap();
            check(&fs).await;
            fs.unmount().await.unwrap();
        }
        while pool.dsl().has_freeing() {
            pool.sync().await.unwrap();
        }
        pool.export().await.unwrap();
        drop(pool);
        pool = lab.import(false, layout.opts()).await.unwrap();
        for version in 1..=4 {
            let ds = pool.dsl().find(&name(version)).unwrap();
            let fs = Zfs::open(&ds, zpl::MountOpts::from_props(&ds)).await.unwrap();
            check(&fs).await;
            fs.unmount().await.unwrap();
        }
        pool.export().await.unwrap();
    });
    check_images(&lab.images()).unwrap();
    match judge(&lab.images(), Level::Full, "old-files") {
        Verdict::Good => {}
        Verdict::Missing(what) => eprintln!("NOT JUDGED: {what}"),
        Verdict::Bad(why) => panic!("{why}"),
    }
}
