//! Pools, datasets and files through the `Send` handles.

use openweir::{
    CreateOptions, Device, Engine, ErrorKind, FileKind, ImportOptions, Layout, OpenOptions, Pool, Source, Vdev,
};

const SIZE: u64 = 128 << 20;

fn folder(name: &str) -> std::path::PathBuf {
    let dir = std::env::temp_dir().join(format!("openweir-{name}-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&dir);
    std::fs::create_dir_all(&dir).unwrap();
    dir
}

#[test]
fn a_pool_on_files_lives_from_create_to_destroy() {
    let dir = folder("life");
    let files: Vec<_> = (0..2).map(|n| dir.join(format!("{n}.img"))).collect();
    let new = || Vdev::mirror(files.iter().map(|f| Device::new_file(f, SIZE)).collect());
    let there = || files.iter().map(Device::path).collect::<Vec<_>>();
    let options = || CreateOptions::default().property("compression", "lz4");
    let bad = CreateOptions::default().property("compression", "lz5");
    assert_eq!(Pool::create("tank", new(), bad).wait().unwrap_err().kind(), ErrorKind::Invalid);
    assert!(!files[0].exists());
    let pool = Pool::create("tank", new(), options()).wait().unwrap();
    assert_eq!(Pool::create("tank", new(), options()).wait().unwrap_err().kind(), ErrorKind::Exists);
    assert_eq!(
        Pool::import(there(), ImportOptions::default()).wait().unwrap_err().kind(),
        ErrorKind::Busy,
        "one that is open is locked"
    );
    let fs = pool.filesystem("tank").wait().unwrap();
    fs.write("hello", "world").wait().unwrap();
    let status = pool.status().wait().unwrap();
    assert_eq!((status.name.as_str(), status.devices.len()), ("tank", 2));
    assert_eq!(status.health, openweir::Health::Online);
    assert!(status.size >= SIZE * 3 / 4 && status.allocated > 0);
    pool.export().wait().unwrap();
    assert_eq!(fs.read("hello").wait().unwrap_err().kind(), ErrorKind::Closed);
    assert_eq!(pool.sync().wait().unwrap_err().kind(), ErrorKind::Closed);
    drop((fs, pool));

    let engine = Engine::start().unwrap();
    let found = engine.find_pools(Device::in_folder(&dir).unwrap()).wait().unwrap();
    assert_eq!((found.len(), found[0].name.as_str(), found[0].exported), (1, "tank", true));
    assert_eq!((found[0].devices.len(), found[0].missing), (2, 0));
    let other = ImportOptions { pool: Some("dozer".into()), ..ImportOptions::default() };
    let e = engine.import_pool(there(), other).wait().unwrap_err();
    assert_eq!((e.kind(), e.object()), (ErrorKind::NotFound, Some("dozer")));
    assert_eq!(
        engine.create_pool("new", Layout::from(there()), CreateOptions::default()).wait().unwrap_err().kind(),
        ErrorKind::Busy
    );
    let pool = engine.import_pool(there(), ImportOptions::readonly()).wait().unwrap();
    let fs = pool.filesystem("tank").wait().unwrap();
    assert_eq!(fs.read("/hello").wait().unwrap(), b"world");
    assert!(fs.is_readonly());
    assert_eq!(fs.write("hello", "x").wait().unwrap_err().kind(), ErrorKind::ReadOnly);
    pool.export().wait().unwrap();
    let pool = engine.import_pool(there(), ImportOptions::default()).wait().unwrap();
    assert_eq!(engine.pools().wait().unwrap(), ["tank"]);
    pool.destroy().wait().unwrap();
    engine.stop().wait().unwrap();
    assert_eq!(engine.pools().wait().unwrap_err().kind(), ErrorKind::EngineGone);
    std::fs::remove_dir_all(dir).unwrap();
}

fn memory_pool() -> Pool {
    let engine = Engine::start().unwrap();
    let disk = engine.memory_device(SIZE).wait().unwrap();
    engine.create_pool("tank", disk, CreateOptions::default()).wait().unwrap()
}

#[test]
fn files_do_what_files_do() {
    let pool = memory_pool();
    let fs = pool.filesystem("tank").wait().unwrap().with_owner(7, 8);
    fs.mkdir_all("a/b").wait().unwrap();
    fs.mkdir_all("a/b").wait().unwrap();
    assert_eq!(fs.mkdir("a").wait().unwrap_err().kind(), ErrorKind::Exists);
    assert_eq!(fs.mkdir("x/y").wait().unwrap_err().kind(), ErrorKind::NotFound);
    let file = fs.open("a/b/f", OpenOptions::new().create_new(0o640)).wait().unwrap();
    let again = fs.open("a/b/f", OpenOptions::new().create_new(0o640)).wait().unwrap_err();
    assert_eq!((again.kind(), again.object()), (ErrorKind::Exists, Some("a/b/f")));
    file.write_at(0, *b"0123456789").wait().unwrap();
    assert_eq!(file.append("abc").wait().unwrap(), 10);
    file.write_at(300_000, vec![7u8; 2 << 20]).wait().unwrap();
    assert_eq!(file.read_at(8, 6).wait().unwrap(), b"89abc\0");
    let stat = file.stat().wait().unwrap();
    assert_eq!((stat.size, stat.mode, stat.uid, stat.gid, stat.links), (300_000 + (2 << 20), 0o640, 7, 8, 1));
    assert_eq!(file.read_at(300_000, usize::MAX).wait().unwrap(), vec![7u8; 2 << 20]);
    file.sync().wait().unwrap();
    file.punch_hole(262_144, 1 << 20).wait().unwrap();
    assert_eq!(file.next_data(200_000).wait().unwrap(), Some(262_144 + (1 << 20)));
    file.set_len(5).wait().unwrap();
    assert_eq!(fs.read("a/b/f").wait().unwrap(), b"01234");
    fs.set_xattr("a/b/f", "user.note", "hi").wait().unwrap();
    assert_eq!(fs.get_xattr("a/b/f", "user.note").wait().unwrap(), b"hi");
    assert_eq!(fs.list_xattrs("a/b/f").wait().unwrap(), [b"user.note".to_vec()]);
    fs.remove_xattr("a/b/f", "user.note").wait().unwrap();
    assert_eq!(fs.get_xattr("a/b/f", "user.note").wait().unwrap_err().kind(), ErrorKind::NoAttr);

    fs.link("a/b/f", "hard").wait().unwrap();
    fs.symlink("/a/b", "soft").wait().unwrap();
    fs.symlink("loop", "loop").wait().unwrap();
    assert_eq!(fs.readlink("soft").wait().unwrap(), b"/a/b");
    assert_eq!(fs.read("soft/f").wait().unwrap(), b"01234");
    assert_eq!(fs.read("soft/../b/./f").wait().unwrap(), b"01234");
    assert_eq!(fs.read("loop").wait().unwrap_err().kind(), ErrorKind::Invalid);
    assert_eq!(fs.lstat("soft").wait().unwrap().kind, FileKind::Symlink);
    assert_eq!(fs.stat("soft").wait().unwrap().kind, FileKind::Dir);
    fs.unlink("a/b/f").wait().unwrap();
    fs.rename("hard", "a/soft").wait().unwrap();
    let mut names: Vec<_> = fs.readdir("a").wait().unwrap().iter().map(|e| e.name_lossy()).collect();
    names.sort();
    assert_eq!(names, ["b", "soft"]);
    assert_eq!(fs.rmdir("a").wait().unwrap_err().kind(), ErrorKind::NotEmpty);
    assert_eq!(fs.unlink("a").wait().unwrap_err().kind(), ErrorKind::IsDir);
    fs.unlink("a/soft").wait().unwrap();
    assert_eq!(file.read_at(0, 9).wait().unwrap(), b"01234", "it lives while it is open");
    fs.rmdir("a/b").wait().unwrap();
    let when = std::time::SystemTime::UNIX_EPOCH + std::time::Duration::from_millis(1500);
    let change = openweir::Change { mode: Some(0o700), modified: Some(when), ..Default::default() };
    let stat = fs.change("a", change).wait().unwrap();
    assert_eq!((stat.mode, stat.modified), (0o700, when));
    fs.sync().wait().unwrap();
    assert!(fs.space().wait().unwrap().available > 1 << 20);
}

#[test]
fn long_listings_come_in_pages() {
    let pool = memory_pool();
    let fs = pool.filesystem("tank").wait().unwrap();
    let made: Vec<_> = (0..3000).map(|n| fs.write(format!("f{n}"), "")).collect();
    made.into_iter().for_each(|c| c.wait().unwrap());
    assert_eq!(fs.readdir("/").wait().unwrap().len(), 3000);
    let (mut seen, mut cookie) = (0, 0);
    loop {
        let (entries, next) = fs.readdir_page("/", cookie, 700).wait().unwrap();
        seen += entries.len();
        match next {
            Some(next) => cookie = next,
            None => break,
        }
    }
    assert_eq!(seen, 3000);
}

#[test]
fn datasets_snapshots_and_properties() {
    let pool = memory_pool();
    pool.create_filesystem("tank/a", &[("compression", "zstd"), ("org.example:note", "x")]).wait().unwrap();
    pool.create_filesystem("tank/a/b", &[]).wait().unwrap();
    assert_eq!(pool.create_filesystem("tank/x/y", &[]).wait().unwrap_err().kind(), ErrorKind::NotFound);
    assert_eq!(pool.create_filesystem("tank/a", &[]).wait().unwrap_err().kind(), ErrorKind::Exists);
    let p = pool.get("tank/a/b", "compress").wait().unwrap();
    assert_eq!((p.value.as_str(), p.source), ("zstd", Source::Inherited("tank/a".into())));
    pool.set("tank/a/b", &[("recordsize", "64K"), ("atime", "off")]).wait().unwrap();
    let p = pool.get("tank/a/b", "recordsize").wait().unwrap();
    assert_eq!((p.value.as_str(), p.exact.as_str(), p.source), ("64K", "65536", Source::Local));
    pool.inherit("tank/a/b", "recordsize").wait().unwrap();
    assert_eq!(pool.get("tank/a/b", "recordsize").wait().unwrap().source, Source::Default);
    assert_eq!(pool.get("tank/a/b", "org.example:note").wait().unwrap().value, "x");
    assert_eq!(pool.get("tank", "org.example:note").wait().unwrap_err().kind(), ErrorKind::NotFound);
    assert_eq!(pool.set("tank", &[("used", "1")]).wait().unwrap_err().kind(), ErrorKind::ReadOnly);
    assert_eq!(pool.set("tank", &[("nonsense", "1")]).wait().unwrap_err().kind(), ErrorKind::Invalid);
    assert!(pool.get_all("tank/a").wait().unwrap().iter().any(|p| p.name == "org.example:note"));

    let fs = pool.filesystem("tank/a").wait().unwrap();
    fs.write("f", "one").wait().unwrap();
    pool.snapshot(&["tank/a@1"], true).wait().unwrap();
    fs.write("f", "two").wait().unwrap();
    let open = fs.open("f", OpenOptions::new()).wait().unwrap();
    let snap = pool.filesystem("tank/a@1").wait().unwrap();
    assert_eq!(snap.read("f").wait().unwrap(), b"one");
    assert_eq!(snap.write("g", "x").wait().unwrap_err().kind(), ErrorKind::ReadOnly);
    pool.clone_snapshot("tank/a@1", "tank/c", &[]).wait().unwrap();
    let clone = pool.filesystem("tank/c").wait().unwrap();
    assert_eq!(clone.read("f").wait().unwrap(), b"one");
    assert_eq!(pool.dataset("tank/c").wait().unwrap().origin.as_deref(), Some("tank/a@1"));
    pool.rollback("tank/a@1").wait().unwrap();
    assert_eq!(fs.read("f").wait().unwrap(), b"one");
    assert_eq!(open.read_at(0, 3).wait().unwrap_err().kind(), ErrorKind::Stale);
    pool.promote("tank/c").wait().unwrap();
    assert_eq!(pool.dataset("tank/a").wait().unwrap().origin.as_deref(), Some("tank/c@1"));
    assert_eq!(pool.destroy_dataset("tank/a", true).wait().unwrap_err().kind(), ErrorKind::Busy);
    drop((fs, open));
    pool.rename("tank/c", "tank/d").wait().unwrap();
    clone.write("still", "good").wait().unwrap();
    pool.destroy_dataset("tank/a", true).wait().unwrap();
    pool.hold("tank/d@1", "me").wait().unwrap();
    assert_eq!(pool.destroy_snapshots(&["tank/d@1"]).wait().unwrap_err().kind(), ErrorKind::Busy);
    pool.release("tank/d@1", "me").wait().unwrap();
    pool.bookmark("tank/d@1", "tank/d#m").wait().unwrap();
    drop(snap);
    pool.destroy_dataset("tank/d@1", false).wait().unwrap();
    pool.destroy_dataset("tank/d#m", false).wait().unwrap();
    let names: Vec<_> = pool.datasets().wait().unwrap().into_iter().map(|d| d.name).collect();
    assert_eq!(names, ["tank", "tank/d"]);
    assert!(pool.snapshots("tank/d").wait().unwrap().is_empty());
    assert_eq!(pool.destroy_dataset("tank", true).wait().unwrap_err().kind(), ErrorKind::Invalid);
}
