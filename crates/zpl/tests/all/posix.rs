//! Cases of POSIX and Linux, one by one.

use crate::common::{ROOT_CRED, Setup, World, opts, with_pool};
use base::{ErrorKind, ObjectId, WallTime};
use bdev::Bytes;
use dmu::sa::{SaAttr, SaHandle};
use spa::EngineOpts;
use zpl::{
    Atime, Case, Cred, Fallocate, FileKind, FsCreateProps, MountOpts, RenameFlags, SetAttr, SetTime, SetXattr,
    XattrMode, ioc_flags,
};

const PLAIN: RenameFlags = RenameFlags { noreplace: false, exchange: false };

#[track_caller]
fn kind<T: std::fmt::Debug>(r: base::Result<T>) -> ErrorKind {
    r.expect_err("this must fail").kind()
}

#[test]
fn rename_matrix() {
    with_pool(Setup::default(), |w| async move {
        let fs = &w.fs;
        let root = fs.root();
        // Source, target, and the result on Linux.
        let sources = ["file", "dir", "fulldir", "symlink", "none"];
        let targets = ["none", "file", "emptydir", "fulldir", "symlink", "same", "hardlink"];
        for cross in [false, true] {
            for s in sources {
                for t in targets {
                    let top = w.dir(root, "m").await;
                    let a = w.dir(top, "a").await;
                    let b = if cross { w.dir(top, "b").await } else { a };
                    let make = async |dir: ObjectId, name: &str, what: &str| match what {
                        "file" => fs.create(dir, name.as_bytes(), 0o644, &ROOT_CRED, true).await.unwrap().obj,
                        "symlink" => fs.symlink(dir, name.as_bytes(), b"t", &ROOT_CRED).await.unwrap().obj,
                        "dir" | "emptydir" => w.dir(dir, name).await,
                        "fulldir" => {
                            let d = w.dir(dir, name).await;
                            w.dir(d, "x").await;
                            d
                        }
                        _ => ObjectId(0),
                    };
                    let obj = make(a, "s", s).await;
                    if t == "hardlink" && s != "file" && s != "symlink" {
                        clean(&w).await;
                        continue;
                    }
                    let (dir, name) = if t == "same" { (a, "s") } else { (b, "t") };
                    match t {
                        "hardlink" => drop(fs.link(obj, b, b"t").await.unwrap()),
                        "same" => {}
                        _ => drop(make(b, "t", t).await),
                    }
                    let s_dir = s.ends_with("dir");
                    let want = match (s, t) {
                        ("none", _) => Some(ErrorKind::NotFound),
                        (_, "none" | "same" | "hardlink") => None,
                        (_, "file" | "symlink") => s_dir.then_some(ErrorKind::NotDir),
                        (_, "emptydir") => (!s_dir).then_some(ErrorKind::IsDir),
                        (_, _) => Some(if s_dir { ErrorKind::NotEmpty } else { ErrorKind::IsDir }),
                    };
                    let got = fs.rename(a, b"s", dir, name.as_bytes(), PLAIN).await;
                    assert_eq!(got.err().map(|e| e.kind()), want, "{s} onto {t}, cross {cross}");
                    if want.is_none() {
                        let stays = t == "hardlink" || t == "same";
                        assert_eq!(fs.lookup(a, b"s").await.is_ok(), stays, "{s} onto {t}");
                        let there = fs.lookup(dir, name.as_bytes()).await.unwrap();
                        assert_eq!(there.obj, obj);
                        assert_eq!(
                            there.nlink,
                            if t == "hardlink" {
                                2
                            } else if s_dir {
                                2 + u32::from(s == "fulldir")
                            } else {
                                1
                            }
                        );
                    }
                    // The directories count right.
                    for d in [a, b] {
                        let list = fs.readdir(d, 2, 100).await.unwrap();
                        let dirs = list.iter().filter(|e| e.kind == FileKind::Dir).count() as u32;
                        let attr = fs.getattr(d).await.unwrap();
                        assert_eq!((attr.size, attr.nlink), (list.len() as u64 + 2, 2 + dirs), "{s} onto {t}");
                    }
                    clean(&w).await;
                }
            }
        }
    });
}

/// Waits for the objects without a name to be freed, in the background and then on disk.
async fn queue_runs_empty(w: &World) {
    for _ in 0..1000 {
        if w.fs.unlinked_count().await.unwrap() == 0 {
            break;
        }
        w.rt.sleep(base::Nanos::from_ms(1)).await;
    }
    assert_eq!(w.fs.unlinked_count().await.unwrap(), 0);
    w.pool.sync().await.unwrap();
}

/// Removes everything.
async fn clean(w: &World) {
    let mut stack = vec![w.fs.root()];
    while let Some(&dir) = stack.last() {
        let mut deeper = None;
        for e in w.fs.readdir(dir, 2, 1000).await.unwrap() {
            if e.kind != FileKind::Dir {
                w.fs.unlink(dir, &e.name).await.unwrap();
            } else if w.fs.rmdir(dir, &e.name).await.is_err() {
                deeper = Some(e.obj);
            }
        }
        match deeper {
            Some(d) => stack.push(d),
            None => drop(stack.pop()),
        }
    }
}

#[test]
fn rename_into_itself_and_exchange() {
    with_pool(Setup::default(), |w| async move {
        let fs = &w.fs;
        let root = fs.root();
        let a = w.dir(root, "a").await;
        let b = w.dir(a, "b").await;
        let c = w.dir(b, "c").await;
        assert_eq!(kind(fs.rename(root, b"a", c, b"x", PLAIN).await), ErrorKind::Invalid);
        assert_eq!(kind(fs.rename(root, b"a", a, b"x", PLAIN).await), ErrorKind::Invalid);
        assert_eq!(kind(fs.rename(b, b"c", root, b"a", PLAIN).await), ErrorKind::NotEmpty);
        assert_eq!(kind(fs.rename(root, b".", root, b"x", PLAIN).await), ErrorKind::Invalid);
        let exchange = RenameFlags { exchange: true, ..PLAIN };
        assert_eq!(kind(fs.rename(b, b"c", root, b"a", exchange).await), ErrorKind::Invalid);
        assert_eq!(kind(fs.rename(root, b"a", b, b"c", exchange).await), ErrorKind::Invalid);
        let f = w.file("f").await;
        fs.rename(root, b"f", a, b"b", exchange).await.unwrap();
        assert_eq!(fs.lookup(root, b"f").await.unwrap().obj, b);
        assert_eq!(fs.lookup(a, b"b").await.unwrap().obj, f);
        assert_eq!(fs.lookup(b, b"..").await.unwrap().obj, root);
        assert_eq!(fs.getattr(root).await.unwrap().nlink, 4);
        assert_eq!(fs.getattr(a).await.unwrap().nlink, 2);
        let noreplace = RenameFlags { noreplace: true, ..PLAIN };
        assert_eq!(kind(fs.rename(root, b"f", root, b"a", noreplace).await), ErrorKind::Exists);
        fs.rename(root, b"f", root, b"g", noreplace).await.unwrap();
        assert_eq!(kind(fs.rename(root, b"g", root, b"nothing", exchange).await), ErrorKind::NotFound);
        assert_eq!(kind(fs.rename(root, b"g", a, &[b'x'; 256], PLAIN).await), ErrorKind::NameTooLong);
    });
}

/// As a program sees them with SEEK_DATA and SEEK_HOLE, before and after they are on disk.
#[test]
fn zeros_that_wait_to_be_written_are_holes() {
    with_pool(Setup::default(), |w| async move {
        let f = w.file("f").await;
        let record = 131_072;
        w.write(f, 0, &vec![7; 4 * record]).await;
        w.write(f, record as u64, &vec![0; record]).await;
        let seen = async || {
            let data = w.fs.seek_data(f, record as u64).await.unwrap();
            (w.fs.seek_hole(f, 0).await.unwrap(), data, w.fs.seek_hole(f, 2 * record as u64).await.unwrap())
        };
        let want = (Some(record as u64), Some(2 * record as u64), Some(4 * record as u64));
        assert_eq!(seen().await, want);
        w.fs.sync_all().await.unwrap();
        assert_eq!(seen().await, want);
    });
}

/// `zfs_unlink_suspend_progress`
#[test]
fn removed_files_keep_their_space_while_that_is_wanted() {
    with_pool(Setup::default(), |mut w| async move {
        let root = w.fs.root();
        w.pool.tune(&EngineOpts { unlink_suspended: true, ..opts() });
        for name in ["a", "b"] {
            let f = w.file(name).await;
            w.write(f, 0, &[7; 300_000]).await;
            w.fs.unlink(root, name.as_bytes()).await.unwrap();
        }
        w.fs.sync_all().await.unwrap();
        assert_eq!((w.fs.unlinked_count().await.unwrap(), w.fs.unlink_counts()), (2, [2, 0]));
        // The next mount goes on, and what is removed then is freed at once.
        w.pool.tune(&opts());
        let c = w.file("c").await;
        w.write(c, 0, &[7; 3000]).await;
        w.fs.unlink(root, b"c").await.unwrap();
        assert_eq!((w.fs.unlinked_count().await.unwrap(), w.fs.unlink_counts()), (2, [3, 1]));
        w.reimport().await;
        queue_runs_empty(&w).await;
        assert_eq!(w.fs.unlink_counts(), [2, 2]);
    });
}

#[test]
fn nameless_files_live_while_open() {
    with_pool(Setup::default(), |mut w| async move {
        let root = w.fs.root();
        let f = w.file("f").await;
        w.write(f, 0, &[7; 100_000]).await;
        w.fs.open_file(f).await.unwrap();
        w.fs.open_file(f).await.unwrap();
        w.fs.unlink(root, b"f").await.unwrap();
        assert_eq!(w.fs.unlinked_count().await.unwrap(), 1);
        w.write(f, 100_000, b"more").await;
        assert_eq!(w.read(f, 99_999, 10).await, b"\x07more");
        assert_eq!(w.fs.getattr(f).await.unwrap().nlink, 0);
        w.fs.release(f).await;
        assert_eq!(w.read(f, 0, 1).await, [7]);
        w.fs.sync_all().await.unwrap();
        w.fs.release(f).await;
        queue_runs_empty(&w).await;
        assert_eq!(kind(w.fs.getattr(f).await), ErrorKind::NotFound);
        assert_eq!(w.fs.unlink_counts(), [1, 1]);
        // One that is open at the end is freed by the next mount; so is a directory.
        let g = w.file("g").await;
        w.write(g, 0, &[1; 3000]).await;
        let d = w.dir(root, "d").await;
        w.fs.open_file(g).await.unwrap();
        w.fs.open_file(d).await.unwrap();
        w.fs.unlink(root, b"g").await.unwrap();
        w.fs.rmdir(root, b"d").await.unwrap();
        assert_eq!(kind(w.fs.create(d, b"x", 0o644, &ROOT_CRED, true).await), ErrorKind::NotFound);
        assert_eq!(w.fs.unlinked_count().await.unwrap(), 2);
        assert_eq!(w.fs.unlink_counts(), [3, 1]);
        w.reimport().await;
        queue_runs_empty(&w).await;
        assert_eq!(w.fs.unlink_counts(), [2, 2]);
        assert_eq!(kind(w.fs.getattr(g).await), ErrorKind::NotFound);
        assert_eq!(kind(w.fs.open_file(d).await), ErrorKind::NotFound);
        assert_eq!(w.fs.objset().used_objects(), 6);
    });
}

#[test]
fn large_files_are_freed_over_several_txgs() {
    // 1 GiB of 512-byte blocks, sparse: 16 pieces of 64 MiB.
    let setup = Setup { props: vec![("recordsize", 512), ("compression", 2)], ..Setup::default() };
    with_pool(setup, |w| async move {
        let f = w.file("f").await;
        for i in 0..16u64 {
            w.write(f, i << 26, &[i as u8 + 1; 5000]).await;
        }
        w.fs.sync_all().await.unwrap();
        let used = w.fs.getattr(f).await.unwrap().blocks;
        let before = w.pool.txg().open_txg();
        w.fs.truncate(f, (3 << 26) + 100).await.unwrap();
        assert!(w.pool.txg().open_txg().0 >= before.0 + 11, "each piece has a txg of its own");
        assert_eq!(w.read(f, 3 << 26, 1000).await, [4; 100]);
        w.fs.truncate(f, 2 << 30).await.unwrap();
        assert!(w.read(f, 3 << 26, 100_000).await[100..].iter().all(|&b| b == 0));
        assert_eq!(w.fs.seek_data(f, (3 << 26) + 512).await.unwrap(), None);
        w.fs.sync_all().await.unwrap();
        assert!(w.fs.getattr(f).await.unwrap().blocks < used / 3);
        for i in 0..16u64 {
            w.write(f, i << 26, &[9; 5000]).await;
        }
        w.fs.fallocate(f, Fallocate::PunchHole, 100, 15 << 26).await.unwrap();
        assert_eq!(w.read(f, 0, 200).await[..], [[9; 100], [0; 100]].concat());
        assert_eq!(w.fs.seek_data(f, 512).await.unwrap(), Some(15 << 26));
        w.fs.unlink(w.fs.root(), b"f").await.unwrap();
        queue_runs_empty(&w).await;
        assert_eq!(kind(w.fs.getattr(f).await), ErrorKind::NotFound);
    });
}

/// Compressible bytes that no two blocks of 4 KiB share.
fn lines(len: usize) -> Vec<u8> {
    (0..len).map(|i| if i % 4096 < 8 { (i / 4096) as u8 } else { b'z' }).collect()
}

#[test]
fn rewritten_blocks_get_the_properties_of_now_and_nothing_else_changes() {
    let setup = Setup { props: vec![("recordsize", 8192), ("compression", 2), ("atime", 0)], ..Setup::default() };
    with_pool(setup, |w| async move {
        let (f, g) = (w.file("f").await, w.file("g").await);
        w.write(f, 0, &lines(100_000)).await;
        w.write(f, 1 << 20, &lines(20_001)).await;
        w.write(g, 0, &lines(3000)).await;
        w.fs.sync_all().await.unwrap();
        let content = w.read(f, 0, 2 << 20).await;
        let before = [w.fs.getattr(f).await.unwrap(), w.fs.getattr(g).await.unwrap()];
        let os = w.fs.objset().clone();
        let lz4 = dmu::ObjsetProps::default().compression;
        os.set_props(dmu::ObjsetProps {
            compression: zio::Compression { algo: zio::CompressAlgo::Lz4, ..lz4 },
            ..os.props()
        });
        // The middle of two blocks, then all, then beyond the end.
        assert_eq!(w.fs.rewrite(f, 8000, 400).await.unwrap(), 2 * 8192);
        w.fs.sync_all().await.unwrap();
        let some = w.fs.getattr(f).await.unwrap().blocks;
        assert!(some < before[0].blocks, "{some}");
        assert_eq!(w.fs.rewrite(f, 0, 0).await.unwrap(), 16 * 8192, "13 blocks, a hole, and 3");
        assert_eq!(w.fs.rewrite(g, 0, u64::MAX).await.unwrap(), 3072, "one block of its own size");
        assert_eq!(w.fs.rewrite(f, 1_068_577, 0).await.unwrap(), 0);
        assert_eq!(w.read(f, 0, 2 << 20).await, content, "before it is on disk");
        w.fs.sync_all().await.unwrap();
        for (obj, before) in [f, g].into_iter().zip(before) {
            let after = w.fs.getattr(obj).await.unwrap();
            assert!(obj == g || after.blocks * 4 < before.blocks, "{} {}", after.blocks, before.blocks);
            assert_eq!(zpl::Attr { blocks: before.blocks, ..after }, before);
        }
        assert_eq!(w.read(f, 0, 2 << 20).await, content);
        assert_eq!(w.fs.seek_hole(f, 0).await.unwrap(), Some(13 * 8192), "the hole stays");
        w.fs.set_opts(zpl::MountOpts { readonly: true, ..w.fs.opts() });
        assert_eq!(kind(w.fs.rewrite(f, 0, 0).await), ErrorKind::ReadOnly);
        assert_eq!(kind(w.fs.rewrite(w.fs.root(), 0, 0).await), ErrorKind::IsDir);
    });
}

#[test]
fn block_size_follows_the_file() {
    with_pool(Setup { props: vec![("recordsize", 8192), ("compression", 2)], ..Setup::default() }, |w| async move {
        let f = w.file("f").await;
        let size = async || w.fs.getattr(f).await.unwrap().blksize;
        for (off, len, want) in
            [(0, 3, 512), (3, 1000, 1024), (2000, 1000, 3072), (7000, 1000, 8192), (100_000, 1, 8192)]
        {
            w.write(f, off, &vec![1; len]).await;
            assert_eq!(size().await, want, "after {len} bytes at {off}");
        }
        assert_eq!(w.fs.getattr(f).await.unwrap().size, 100_001);
        w.fs.truncate(f, 0).await.unwrap();
        assert_eq!(size().await, 8192);
        let g = w.file("g").await;
        w.fs.truncate(g, 1 << 40).await.unwrap();
        assert_eq!(w.fs.getattr(g).await.unwrap().blksize, 8192);
        w.write(g, (1 << 40) - 1, &[5]).await;
        assert_eq!(w.read(g, (1 << 40) - 2, 10).await, [0, 5]);
    });
}

#[test]
fn sizes_up_to_the_end() {
    with_pool(Setup::default(), |mut w| async move {
        let f = w.file("f").await;
        let max = i64::MAX as u64;
        w.fs.truncate(f, max).await.unwrap();
        assert_eq!(kind(w.fs.truncate(f, max + 1).await), ErrorKind::TooBig);
        assert_eq!(kind(w.fs.write(f, max, vec![Bytes::copy_from(b"x")], false).await), ErrorKind::TooBig);
        assert_eq!(kind(w.fs.write(f, max - 1, vec![Bytes::copy_from(b"xyz")], false).await), ErrorKind::TooBig);
        assert_eq!(kind(w.fs.write(f, 0, vec![Bytes::copy_from(b"x")], true).await), ErrorKind::TooBig);
        let far = (1 << 62) + 12345;
        w.write(f, far, b"far away").await;
        w.reimport().await;
        assert_eq!(w.fs.getattr(f).await.unwrap().size, max);
        assert_eq!(w.read(f, far - 2, 12).await, b"\0\0far away\0\0");
        assert_eq!(w.fs.seek_data(f, 0).await.unwrap(), Some(far / 131_072 * 131_072));
        assert_eq!(w.fs.seek_hole(f, far).await.unwrap(), Some((far / 131_072 + 1) * 131_072));
        w.fs.unlink(w.fs.root(), b"f").await.unwrap();
        w.fs.sync_all().await.unwrap();
    });
}

#[test]
fn xattrs_beside_attributes_spill_and_move_to_the_directory() {
    with_pool(Setup::default(), |mut w| async move {
        let f = w.file("f").await;
        let xattr_obj = async |w: &World| {
            let dn = w.fs.objset().hold(f).await.unwrap();
            let table = dmu::sa::SaTable::load(w.fs.objset(), sa_master(w).await).await.unwrap();
            SaHandle::open(&dn, Some(&table)).unwrap().attrs().await.unwrap().xattr
        };
        let small = vec![1u8; 20];
        w.fs.setxattr(f, b"user.a", &small, SetXattr::Create).await.unwrap();
        assert!(!w.fs.objset().hold(f).await.unwrap().has_spill());
        let medium = vec![2u8; 3000];
        w.fs.setxattr(f, b"user.b", &medium, SetXattr::Any).await.unwrap();
        assert!(w.fs.objset().hold(f).await.unwrap().has_spill());
        assert_eq!(xattr_obj(&w).await, 0);
        // More than 32 KiB: a file of the hidden directory.
        let large = vec![3u8; 50_000];
        w.fs.setxattr(f, b"user.c", &large, SetXattr::Any).await.unwrap();
        assert_ne!(xattr_obj(&w).await, 0);
        // 20 + 20 KiB are beside the others, another 30 KiB would be too much.
        for (name, len) in [("user.d", 20_000), ("user.e", 20_000), ("user.f", 30_000)] {
            w.fs.setxattr(f, name.as_bytes(), &vec![name.len() as u8; len], SetXattr::Any).await.unwrap();
        }
        for round in 0..2 {
            let mut names = w.fs.listxattr(f).await.unwrap();
            names.sort();
            assert_eq!(names.len(), 6, "{round}");
            assert_eq!(w.fs.getxattr(f, b"user.a").await.unwrap(), small);
            assert_eq!(w.fs.getxattr(f, b"user.b").await.unwrap(), medium);
            assert_eq!(w.fs.getxattr(f, b"user.c").await.unwrap(), large);
            assert_eq!(w.fs.getxattr(f, b"user.f").await.unwrap().len(), 30_000);
            w.reimport().await;
        }
        assert_eq!(kind(w.fs.setxattr(f, b"user.a", b"", SetXattr::Create).await), ErrorKind::Exists);
        assert_eq!(kind(w.fs.setxattr(f, b"user.z", b"", SetXattr::Replace).await), ErrorKind::NoAttr);
        assert_eq!(kind(w.fs.setxattr(f, b"user.z", &[0; 65_537], SetXattr::Any).await), ErrorKind::TooBig);
        assert_eq!(kind(w.fs.removexattr(f, b"user.z").await), ErrorKind::NoAttr);
        // From the directory back beside the others, and the other way round.
        w.fs.setxattr(f, b"user.c", b"short", SetXattr::Replace).await.unwrap();
        assert_eq!(w.fs.getxattr(f, b"user.c").await.unwrap(), b"short");
        w.fs.setxattr(f, b"user.b", &large, SetXattr::Replace).await.unwrap();
        assert_eq!(w.fs.getxattr(f, b"user.b").await.unwrap(), large);
        assert_eq!(w.fs.listxattr(f).await.unwrap().len(), 6);
        for name in w.fs.listxattr(f).await.unwrap() {
            w.fs.removexattr(f, &name).await.unwrap();
        }
        assert!(!w.fs.objset().hold(f).await.unwrap().has_spill());
        w.set_xattr_mode(XattrMode::Dir).await;
        w.fs.setxattr(f, b"user.dir", b"1", SetXattr::Any).await.unwrap();
        w.fs.setxattr(f, b"user.dir", b"22", SetXattr::Any).await.unwrap();
        assert_eq!(w.fs.getxattr(f, b"user.dir").await.unwrap(), b"22");
        w.set_xattr_mode(XattrMode::Off).await;
        assert_eq!(kind(w.fs.getxattr(f, b"user.dir").await), ErrorKind::Unsupported);
        w.fs.unlink(w.fs.root(), b"f").await.unwrap();
        queue_runs_empty(&w).await;
        assert_eq!(w.fs.objset().used_objects(), 6, "the hidden directory and its files are gone too");
    });
}

async fn sa_master(w: &World) -> ObjectId {
    let master = w.fs.objset().hold(ObjectId(1)).await.unwrap();
    ObjectId(dmu::zap::lookup_u64(&master, b"SA_ATTRS").await.unwrap().unwrap())
}

#[test]
fn long_symlinks_spill_and_modes_change_acls() {
    with_pool(Setup::default(), |mut w| async move {
        let root = w.fs.root();
        for len in [1, 6, 100, 599, 4095] {
            let name = format!("l{len}").into_bytes();
            let a = w.fs.symlink(root, &name, &vec![b'x'; len], &ROOT_CRED).await.unwrap();
            assert_eq!((a.kind, a.size, a.mode & 0o7777), (FileKind::Symlink, len as u64, 0o777));
        }
        assert_eq!(kind(w.fs.symlink(root, b"l", &[b'x'; 4096], &ROOT_CRED).await), ErrorKind::NameTooLong);
        let f = w.file("f").await;
        for mode in [0o604, 0o755, 0o070, 0o000, 0o7777] {
            let a = w.fs.setattr(f, SetAttr { mode: Some(mode), ..SetAttr::default() }).await.unwrap();
            assert_eq!(a.mode & 0o7777, mode);
            let dn = w.fs.objset().hold(f).await.unwrap();
            let table = dmu::sa::SaTable::load(w.fs.objset(), sa_master(&w).await).await.unwrap();
            let sa = SaHandle::open(&dn, Some(&table)).unwrap();
            let aces = sa.get(SaAttr::DaclAces).await.unwrap().unwrap();
            let count = sa.attrs().await.unwrap().dacl_count;
            let want = ondisk::zpl::trivial_acl(u64::from(mode), false);
            assert_eq!(ondisk::zpl::parse_aces(&aces).unwrap(), want);
            assert_eq!(count, want.len() as u64);
            assert_eq!(a.flags & ondisk::zpl::pflags::NO_EXECS_DENIED != 0, mode & 0o111 == 0o111);
        }
        w.reimport().await;
        for len in [1, 6, 100, 599, 4095] {
            let a = w.fs.lookup(root, format!("l{len}").as_bytes()).await.unwrap();
            assert_eq!(w.fs.readlink(a.obj).await.unwrap(), vec![b'x'; len]);
        }
        assert_eq!(w.fs.getattr(f).await.unwrap().mode, 0o107777);
        assert_eq!(kind(w.fs.readlink(f).await), ErrorKind::Invalid);
    });
}

#[test]
fn a_new_file_system_is_like_the_kernels() {
    with_pool(Setup::default(), |w| async move {
        let a = w.fs.getattr(w.fs.root()).await.unwrap();
        assert_eq!((a.kind, a.mode, a.nlink, a.size), (FileKind::Dir, 0o40755, 2, 2));
        assert_eq!(a.flags, 0x8408_0000_0144, "project ids are on by default");
        assert_eq!(a.crtime, WallTime { secs: 1_700_000_000, nanos: 5 });
        let f = w.file("f").await;
        assert_eq!(w.fs.getattr(f).await.unwrap().flags, 0x8408_0000_0004);
        let dn = w.fs.objset().hold(f).await.unwrap();
        assert_eq!(dn.bonus().len(), 176, "layout with a project id, format page 08 section 3");
        let s = w.fs.statfs();
        assert_eq!((s.namelen, s.frsize, s.bsize), (255, 512, 131_072));
        let available = w.fs.dataset().available();
        assert_eq!(s.avail, available / 512);
        assert!(s.blocks > s.free && s.ffree > 1000);
        assert_eq!(w.fs.version(), 5);
    });
}

#[test]
fn owners_modes_and_times() {
    with_pool(Setup { props: vec![("atime", 1), ("relatime", 0)], ..Setup::default() }, |mut w| async move {
        let root = w.fs.root();
        let cred = Cred { groups: vec![200], ..Cred::new(1000, 100) };
        let d = w.fs.mkdir(root, b"d", 0o2775, &cred).await.unwrap();
        w.fs.setattr(d.obj, SetAttr { gid: Some(300), ..SetAttr::default() }).await.unwrap();
        let f = w.fs.create(d.obj, b"f", 0o2755, &cred, true).await.unwrap();
        assert_eq!(
            (f.uid, f.gid, f.mode),
            (1000, 300, 0o100755),
            "a program cannot run as a group that its maker is not in"
        );
        let sub = w.fs.mkdir(d.obj, b"sub", 0o755, &cred).await.unwrap();
        assert_eq!((sub.gid, sub.mode), (300, 0o42755));
        let early = WallTime { secs: -5, nanos: 999_999_999 };
        let set = SetAttr { atime: Some(SetTime::At(early)), mtime: Some(SetTime::At(early)), ..SetAttr::default() };
        let a = w.fs.setattr(f.obj, set).await.unwrap();
        assert_eq!((a.atime, a.mtime), (early, early));
        w.write(f.obj, 0, b"hello").await;
        let a = w.fs.getattr(f.obj).await.unwrap();
        assert_eq!(a.atime, early);
        assert!(a.mtime > early);
        w.rt.sleep(base::Nanos::from_secs(10)).await;
        w.read(f.obj, 0, 5).await;
        let read_at = w.fs.getattr(f.obj).await.unwrap().atime;
        assert!(read_at.secs >= a.ctime.secs + 10);
        w.reimport().await;
        assert_eq!(w.fs.getattr(f.obj).await.unwrap().atime, read_at);
        // Relative: at the first read after a change, and not again.
        w.fs.set_opts(MountOpts { atime: Atime::Relative, ..w.fs.opts() });
        w.write(f.obj, 0, b"world").await;
        w.rt.sleep(base::Nanos::from_secs(10)).await;
        w.read(f.obj, 0, 5).await;
        let first = w.fs.getattr(f.obj).await.unwrap().atime;
        assert!(first > read_at);
        w.rt.sleep(base::Nanos::from_secs(10)).await;
        w.read(f.obj, 0, 5).await;
        assert_eq!(w.fs.getattr(f.obj).await.unwrap().atime, first);
        w.rt.sleep(base::Nanos::from_secs(25 * 3600)).await;
        w.read(f.obj, 0, 5).await;
        assert!(w.fs.getattr(f.obj).await.unwrap().atime > first);
    });
}

#[test]
fn flags_are_kept() {
    with_pool(Setup::default(), |w| async move {
        let fs = &w.fs;
        let root = fs.root();
        let f = w.file("f").await;
        w.write(f, 0, b"abc").await;
        fs.set_flags(f, ioc_flags::APPEND).await.unwrap();
        assert_eq!(kind(fs.write(f, 0, vec![Bytes::copy_from(b"x")], false).await), ErrorKind::Denied);
        assert_eq!(fs.write(f, 0, vec![Bytes::copy_from(b"d")], true).await.unwrap(), (1, 4));
        assert_eq!(kind(fs.truncate(f, 0).await), ErrorKind::Denied);
        assert_eq!(kind(fs.unlink(root, b"f").await), ErrorKind::Denied);
        assert_eq!(kind(fs.rename(root, b"f", root, b"g", PLAIN).await), ErrorKind::Denied);
        fs.set_flags(f, ioc_flags::IMMUTABLE | ioc_flags::NODUMP).await.unwrap();
        assert_eq!(fs.get_flags(f).await.unwrap(), ioc_flags::IMMUTABLE | ioc_flags::NODUMP);
        assert_eq!(kind(fs.write(f, 0, vec![Bytes::copy_from(b"d")], true).await), ErrorKind::Denied);
        assert_eq!(kind(fs.setxattr(f, b"user.a", b"", SetXattr::Any).await), ErrorKind::Denied);
        assert_eq!(kind(fs.link(f, root, b"g").await), ErrorKind::Denied);
        assert_eq!(kind(fs.setattr(f, SetAttr { mode: Some(0), ..SetAttr::default() }).await), ErrorKind::Denied);
        assert_eq!(kind(fs.set_flags(f, 0x4).await), ErrorKind::Unsupported);
        fs.set_flags(f, 0).await.unwrap();
        fs.unlink(root, b"f").await.unwrap();
        // A directory that hands its project down.
        let d = w.dir(root, "d").await;
        fs.set_project(d, 77).await.unwrap();
        fs.set_flags(d, ioc_flags::PROJINHERIT).await.unwrap();
        let sub = fs.mkdir(d, b"sub", 0o755, &ROOT_CRED).await.unwrap();
        assert_eq!((sub.projid, sub.ioc_flags()), (77, ioc_flags::PROJINHERIT));
        let g = w.file("g").await;
        assert_eq!(kind(fs.rename(root, b"g", d, b"g", PLAIN).await), ErrorKind::CrossDevice);
        assert_eq!(kind(fs.link(g, d, b"g").await), ErrorKind::CrossDevice);
        fs.set_project(g, 77).await.unwrap();
        fs.rename(root, b"g", d, b"g", PLAIN).await.unwrap();
    });
}

#[test]
fn cookies_survive_changes() {
    with_pool(Setup::default(), |mut w| async move {
        let d = w.dir(w.fs.root(), "d").await;
        for i in 0..3000 {
            w.fs.create(d, format!("file {i}").as_bytes(), 0o644, &ROOT_CRED, true).await.unwrap();
        }
        let mut seen = std::collections::BTreeSet::new();
        let mut cookie = 0;
        let mut round = 0u32;
        loop {
            let list = w.fs.readdir(d, cookie, 100).await.unwrap();
            let Some(last) = list.last() else { break };
            cookie = last.next_cookie;
            for e in &list {
                assert!(seen.insert(e.name.clone()), "{} twice", String::from_utf8_lossy(&e.name));
            }
            // Others come and go; a new mount makes no difference.
            round += 1;
            for i in 0..50 {
                let name = format!("other {round} {i}");
                w.fs.create(d, name.as_bytes(), 0o644, &ROOT_CRED, true).await.unwrap();
                if i % 2 == 0 {
                    w.fs.unlink(d, name.as_bytes()).await.unwrap();
                }
            }
            if round == 7 {
                w.remount().await;
            }
        }
        let originals = (0..3000).filter(|i| seen.contains(format!("file {i}").as_bytes())).count();
        assert_eq!(originals, 3000);
        assert_eq!(w.fs.readdir(d, u64::MAX, 100).await.unwrap(), []);
        // Removing the listed entries, batch by batch, empties the directory.
        loop {
            let list = w.fs.readdir(d, 2, 500).await.unwrap();
            if list.is_empty() {
                break;
            }
            for e in list {
                w.fs.unlink(d, &e.name).await.unwrap();
            }
        }
        w.fs.rmdir(w.fs.root(), b"d").await.unwrap();
    });
}

#[test]
fn names_that_are_equal_in_other_ways() {
    let fs = FsCreateProps { normalization: 0x50, casesensitivity: Case::Insensitive, ..FsCreateProps::default() };
    with_pool(Setup { fs, ..Setup::default() }, |mut w| async move {
        let root = w.fs.root();
        let f = w.file("Straße É").await;
        w.remount().await;
        // A decomposed E with an acute accent, lower case.
        let other = "STRAßE e\u{301}".as_bytes();
        assert_eq!(w.fs.lookup(root, other).await.unwrap().obj, f);
        assert_eq!(kind(w.fs.mkdir(root, other, 0o755, &ROOT_CRED).await), ErrorKind::Exists);
        assert_eq!(kind(w.fs.create(root, b"\xff", 0o644, &ROOT_CRED, true).await), ErrorKind::Invalid);
        // The spelling may change.
        w.fs.rename(root, "straße é".as_bytes(), root, other, PLAIN).await.unwrap();
        assert_eq!(w.fs.readdir(root, 2, 10).await.unwrap()[0].name, other);
        let g = w.file("G").await;
        w.fs.rename(root, other, root, b"g", PLAIN).await.unwrap();
        let list = w.fs.readdir(root, 2, 10).await.unwrap();
        assert_eq!((list.len(), list[0].name.as_slice(), list[0].obj), (1, &b"g"[..], f));
        assert_eq!(kind(w.fs.getattr(g).await), ErrorKind::NotFound);
        w.fs.unlink(root, b"G").await.unwrap();
        assert_eq!(w.fs.getattr(root).await.unwrap().size, 2);
    });
}

#[test]
fn a_full_pool_stays_usable() {
    let setup = Setup { size: 128 << 20, props: vec![("compression", 2)], ..Setup::default() };
    with_pool(setup, |mut w| async move {
        let root = w.fs.root();
        let noise: Vec<u8> = {
            let mut r = crate::common::rng::Rng::new(5);
            std::iter::repeat_with(|| r.next().to_le_bytes()).take(32 << 10).flatten().collect()
        };
        let data = Bytes::copy_from(&noise);
        let mut files = Vec::new();
        'fill: for i in 0u64.. {
            let name = format!("f{i}");
            match w.fs.create(root, name.as_bytes(), 0o644, &ROOT_CRED, true).await {
                Ok(a) => files.push((name, a.obj, 0u64)),
                Err(e) => {
                    assert_eq!(e.kind(), ErrorKind::NoSpace);
                    break;
                }
            }
            for _ in 0..16 {
                let last = files.last_mut().unwrap();
                match w.fs.write(last.1, last.2, vec![data.clone()], false).await {
                    Ok((n, _)) => last.2 += n,
                    Err(e) => {
                        assert_eq!(e.kind(), ErrorKind::NoSpace);
                        break 'fill;
                    }
                }
            }
        }
        let total: u64 = files.iter().map(|f| f.2).sum();
        assert!(total > 20 << 20, "{total} bytes fitted");
        w.fs.sync_all().await.unwrap();
        assert_eq!(kind(w.fs.mkdir(root, b"d", 0o755, &ROOT_CRED).await), ErrorKind::NoSpace);
        assert!(w.fs.statfs().avail < 4096);
        // Removing, cutting and renaming go on; then there is room again.
        w.fs.truncate(files[0].1, 1000).await.unwrap();
        w.fs.rename(root, b"f1", root, b"renamed", PLAIN).await.err();
        for (name, ..) in &files[2..files.len() / 2] {
            w.fs.unlink(root, name.as_bytes()).await.unwrap();
        }
        for _ in 0..4 {
            w.pool.sync().await.unwrap();
        }
        assert!(w.fs.statfs().avail * 512 > total / 4);
        w.fs.mkdir(root, b"d", 0o755, &ROOT_CRED).await.unwrap();
        w.reimport().await;
        for (_, obj, len) in files.iter().skip(files.len() / 2) {
            let mut at = 0;
            while at < *len {
                assert!(w.read(*obj, at, noise.len() as u64).await == noise[..noise.len().min((len - at) as usize)]);
                at += noise.len() as u64;
            }
        }
    });
}

#[test]
fn quotas_refuse() {
    let setup = Setup { props: vec![("quota", 8 << 20), ("compression", 2)], ..Setup::default() };
    with_pool(setup, |w| async move {
        let f = w.file("f").await;
        let data = Bytes::copy_from(&vec![1; 1 << 20]);
        let mut at = 0;
        let e = loop {
            match w.fs.write(f, at, vec![data.clone()], false).await {
                Ok((n, _)) => at += n,
                Err(e) => break e,
            }
            assert!(at < 64 << 20, "the quota holds nobody back");
        };
        assert_eq!(e.kind(), ErrorKind::Quota);
        w.fs.unlink(w.fs.root(), b"f").await.unwrap();
    });
}

#[test]
fn many_at_once() {
    with_pool(Setup::default(), |w| async move {
        let root = w.fs.root();
        let shared = w.file("shared").await;
        for i in 0..4 {
            w.dir(root, &format!("d{i}")).await;
        }
        let mut tasks = Vec::new();
        for t in 0..16u64 {
            let (fs, rt) = (w.fs.clone(), w.rt.clone());
            tasks.push(w.rt.spawn("worker", async move {
                let mut rng = crate::common::rng::Rng::new(t);
                for i in 0..150u64 {
                    let dirs = [rng.below(4), rng.below(4)];
                    let mut ids = Vec::new();
                    for d in dirs {
                        ids.push(fs.lookup(root, format!("d{d}").as_bytes()).await.map(|a| a.obj).unwrap_or(root));
                    }
                    let (a, b) = (format!("n{}", rng.below(8)).into_bytes(), format!("n{}", rng.below(8)).into_bytes());
                    match rng.below(12) {
                        0 | 1 => drop(fs.create(ids[0], &a, 0o644, &ROOT_CRED, true).await),
                        2 => drop(fs.mkdir(ids[0], &a, 0o755, &ROOT_CRED).await),
                        3 => drop(fs.unlink(ids[0], &a).await),
                        4 => drop(fs.rmdir(ids[0], &a).await),
                        5 | 6 => drop(fs.rename(ids[0], &a, ids[1], &b, PLAIN).await),
                        7 => drop(fs.rename(ids[0], &a, ids[1], &b, RenameFlags { exchange: true, ..PLAIN }).await),
                        8 => drop(fs.rename(root, format!("d{}", dirs[0]).as_bytes(), ids[1], &b, PLAIN).await),
                        9 => drop(fs.rename(ids[1], &b, root, format!("d{}", dirs[0]).as_bytes(), PLAIN).await),
                        10 => {
                            // Each writes a stripe of its own; nothing of it is lost.
                            let data = Bytes::copy_from(&[t as u8 + 1; 1000]);
                            fs.write(shared, (i * 16 + t) * 1000, vec![data], false).await.unwrap();
                        }
                        _ => {
                            if let Ok(f) = fs.lookup(ids[0], &a).await
                                && fs.open_file(f.obj).await.is_ok()
                            {
                                drop(fs.write(f.obj, 0, vec![Bytes::copy_from(&[1; 5000])], true).await);
                                drop(fs.setxattr(f.obj, b"user.x", &[2; 400], SetXattr::Any).await);
                                fs.release(f.obj).await;
                            }
                        }
                    }
                    if rng.one_in(10) {
                        rt.sleep(base::Nanos::from_us(rng.below(5000))).await;
                    }
                }
            }));
        }
        for t in tasks {
            t.await;
        }
        // Every directory counts right, every object has one name for each link, and nothing is
        // left over.
        w.pool.sync().await.unwrap();
        let mut links = std::collections::BTreeMap::new();
        let mut stack = vec![root];
        while let Some(d) = stack.pop() {
            let list = w.fs.readdir(d, 2, 1000).await.unwrap();
            let dirs = list.iter().filter(|e| e.kind == FileKind::Dir).count() as u32;
            let a = w.fs.getattr(d).await.unwrap();
            assert_eq!((a.nlink, a.size), (2 + dirs, list.len() as u64 + 2));
            for e in list {
                *links.entry(e.obj).or_insert(0u32) += 1;
                if e.kind == FileKind::Dir {
                    assert_eq!(w.fs.lookup(e.obj, b"..").await.unwrap().obj, d);
                    stack.push(e.obj);
                }
            }
        }
        for (&obj, &n) in &links {
            let a = w.fs.getattr(obj).await.unwrap();
            assert!(a.kind == FileKind::Dir || a.nlink == n);
        }
        queue_runs_empty(&w).await;
        assert_eq!(w.fs.objset().used_objects(), 6 + links.len() as u64);
        let size = w.fs.getattr(shared).await.unwrap().size;
        let all = w.read(shared, 0, size).await;
        for (i, stripe) in all.chunks(1000).enumerate() {
            let want = (i % 16) as u8 + 1;
            assert!(stripe.iter().all(|&b| b == 0) || stripe.iter().all(|&b| b == want), "stripe {i}");
        }
    });
}

#[test]
fn record_sizes_change_between() {
    with_pool(Setup { props: vec![("compression", 2)], ..Setup::default() }, |mut w| async move {
        let pattern = |seed: u64, len: usize| crate::common::rng::Rng::new(seed * 4 + 3).bytes(len);
        let mut files = Vec::new();
        for (i, (before, after)) in
            [(131_072, 1 << 20), (8192, 131_072), (1 << 20, 4096), (4096, 512)].into_iter().enumerate()
        {
            for synced in [false, true] {
                for keep in [0u64, 700] {
                    let name = format!("f{i}{synced}{keep}");
                    let f = w.file(&name).await;
                    let os = w.fs.objset().clone();
                    os.set_props(dmu::ObjsetProps { recordsize: before, ..os.props() });
                    let mut want = pattern(1, 5 * before as usize + 77);
                    w.write(f, 0, &want).await;
                    if synced {
                        w.fs.sync_all().await.unwrap();
                    }
                    os.set_props(dmu::ObjsetProps { recordsize: after, ..os.props() });
                    w.fs.truncate(f, keep).await.unwrap();
                    want.truncate(keep as usize);
                    assert_eq!(w.read(f, 0, 10_000).await, want, "{name}");
                    let more = pattern(2, 3 * after as usize + 5);
                    want.resize(1000, 0);
                    want.extend_from_slice(&more);
                    w.write(f, 1000, &more).await;
                    assert!(w.read(f, 0, 10 << 20).await == want, "{name}");
                    files.push((name, f, want));
                }
            }
        }
        w.reimport().await;
        for (name, f, want) in files {
            assert!(w.read(f, 0, 10 << 20).await == want, "{name}");
        }
    });
}

#[test]
fn always_synchronous() {
    with_pool(Setup { props: vec![("sync", 1)], ..Setup::default() }, |w| async move {
        let root = w.fs.root();
        let f = w.file("f").await;
        w.write(f, 0, b"abc").await;
        w.fs.rename(root, b"f", root, b"g", PLAIN).await.unwrap();
        // A returned operation is in the log (crash tests verify that): it waits for no txg.
        let before = w.pool.txg().last_synced();
        let mut tasks = Vec::new();
        for i in 0..20 {
            let fs = w.fs.clone();
            tasks.push(w.rt.spawn("maker", async move {
                fs.create(fs.root(), format!("x{i}").as_bytes(), 0o644, &ROOT_CRED, true).await.unwrap();
            }));
        }
        for t in tasks {
            t.await;
        }
        assert!(w.pool.txg().last_synced().0 < before.0 + 10);
        assert_eq!(w.fs.lookup(root, b"g").await.unwrap().obj, f);
        assert_eq!(w.fs.readdir(root, 2, 100).await.unwrap().len(), 21);
    });
}

/// The tunables of intent logs are those of the pool, from the first commit on and at every change.
#[test]
fn a_log_has_the_tunables_of_its_pool() {
    let mut opts = opts();
    opts.zil.immediate_write_sz = 4096;
    with_pool(Setup { opts: opts.clone(), ..Setup::default() }, |w| async move {
        assert_eq!(w.fs.log().unwrap().tunables(), opts.zil);
        let file = w.file("a").await;
        // The chain begins: what is committed here is durable with its txg.
        w.fs.write_sync(file, 0, vec![Bytes::copy_from(&[0; 8192])], false).await.unwrap();
        for (n, immediate) in [(1, 4096), (2, 32 << 10), (3, 4096)] {
            opts.zil.immediate_write_sz = immediate;
            if n > 1 {
                w.pool.tune(&opts);
            }
            let before = w.fs.log().unwrap().stats();
            w.fs.write_sync(file, 0, vec![Bytes::copy_from(&[n; 8192])], false).await.unwrap();
            let stats = w.fs.log().unwrap().stats();
            let (indirect, copied) = (stats.indirect - before.indirect, stats.copied - before.copied);
            assert_eq!((indirect, copied > 0), if immediate == 4096 { (1, false) } else { (0, true) }, "write {n}");
        }
    });
}
