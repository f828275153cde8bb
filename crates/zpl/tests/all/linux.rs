//! Cases of Linux beyond POSIX: files without a name, whiteouts, directories that are removed while
//! in use.

use crate::common::{ROOT_CRED, Setup, World, with_pool};
use base::{ErrorKind, ObjectId, WallTime};
use bdev::Bytes;
use zpl::{Atime, Attr, Cred, FileKind, MountOpts, RenameFlags, SetAttr, SetTime, SetXattr, XattrMode};

#[track_caller]
fn kind<T: std::fmt::Debug>(r: base::Result<T>) -> ErrorKind {
    r.expect_err("this must fail").kind()
}

/// Waits for the objects without a name to be freed in the background.
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

#[test]
fn files_are_made_without_a_name_and_get_one() {
    with_pool(Setup::default(), |mut w| async move {
        let root = w.fs.root();
        let before = w.fs.objset().used_objects();
        let t = w.fs.tmpfile(root, 0o600, &Cred::new(5, 6), true).await.unwrap();
        assert_eq!((t.nlink, t.mode, t.uid, t.gid, t.kind), (0, 0o100_600, 5, 6, FileKind::File));
        assert_eq!(w.fs.unlinked_count().await.unwrap(), 1);
        w.write(t.obj, 0, b"content").await;
        w.fs.setattr(t.obj, SetAttr { mode: Some(0o640), ..SetAttr::default() }).await.unwrap();
        w.fs.setxattr(t.obj, b"user.a", b"1", SetXattr::Any).await.unwrap();
        let linked = w.fs.link(t.obj, root, b"name").await.unwrap();
        assert_eq!((linked.nlink, linked.mode), (1, 0o100_640));
        assert_eq!(w.fs.unlinked_count().await.unwrap(), 0);
        // A second name is a link like any other; once all are gone there is no way back.
        w.fs.link(t.obj, root, b"other").await.unwrap();
        w.fs.unlink(root, b"other").await.unwrap();
        w.fs.unlink(root, b"name").await.unwrap();
        assert_eq!(kind(w.fs.link(t.obj, root, b"again").await), ErrorKind::NotFound);
        w.fs.release(t.obj).await;
        queue_runs_empty(&w).await;
        // One that may not get a name, and one whose name is taken.
        let sealed = w.fs.tmpfile(root, 0o600, &ROOT_CRED, false).await.unwrap().obj;
        assert_eq!(kind(w.fs.link(sealed, root, b"x").await), ErrorKind::NotFound);
        let f = w.file("f").await;
        let late = w.fs.tmpfile(root, 0o600, &ROOT_CRED, true).await.unwrap().obj;
        assert_eq!(kind(w.fs.link(late, root, b"f").await), ErrorKind::Exists);
        assert_eq!(w.fs.unlinked_count().await.unwrap(), 2);
        w.fs.release(sealed).await;
        w.fs.release(late).await;
        queue_runs_empty(&w).await;
        assert_eq!(kind(w.fs.getattr(late).await), ErrorKind::NotFound);
        // Not in a removed directory, nor in a file.
        assert_eq!(kind(w.fs.tmpfile(f, 0o600, &ROOT_CRED, true).await), ErrorKind::NotDir);
        let d = w.dir(root, "d").await;
        w.fs.open_file(d).await.unwrap();
        w.fs.rmdir(root, b"d").await.unwrap();
        assert_eq!(kind(w.fs.tmpfile(d, 0o600, &ROOT_CRED, true).await), ErrorKind::NotFound);
        // The next mount frees files still open at the end.
        let t = w.fs.tmpfile(root, 0o600, &ROOT_CRED, true).await.unwrap().obj;
        w.write(t, 0, &[7; 300_000]).await;
        w.fs.unlink(root, b"f").await.unwrap();
        w.reimport().await;
        queue_runs_empty(&w).await;
        assert_eq!(w.fs.objset().used_objects(), before);
    });
}

#[test]
fn a_rename_leaves_a_whiteout() {
    with_pool(Setup::default(), |mut w| async move {
        let root = w.fs.root();
        let (a, b) = (w.dir(root, "a").await, w.dir(root, "b").await);
        let plain = RenameFlags::default();
        let who = Cred::new(7, 8);
        let is_whiteout = |x: &Attr| x.kind == FileKind::CharDev && x.rdev == 0 && x.mode == 0o020_000;
        let size = async |dir: ObjectId| w.fs.getattr(dir).await.unwrap().size;
        // In place, into another directory, over a file, and a directory.
        let f = w.file("f").await;
        w.fs.rename_whiteout(root, b"f", root, b"g", plain, &who).await.unwrap();
        let left = w.fs.lookup(root, b"f").await.unwrap();
        assert!(is_whiteout(&left), "{left:?}");
        assert_eq!((left.uid, left.gid, left.nlink), (7, 8, 1));
        assert_eq!(w.fs.lookup(root, b"g").await.unwrap().obj, f);
        assert_eq!(size(root).await, 2 + 4);
        w.fs.rename_whiteout(root, b"g", a, b"g", plain, &who).await.unwrap();
        assert!(is_whiteout(&w.fs.lookup(root, b"g").await.unwrap()));
        assert_eq!((size(root).await, size(a).await), (2 + 4, 2 + 1));
        let over = w.fs.create(b, b"over", 0o644, &ROOT_CRED, true).await.unwrap().obj;
        w.fs.rename_whiteout(a, b"g", b, b"over", plain, &who).await.unwrap();
        assert_eq!(w.fs.lookup(b, b"over").await.unwrap().obj, f);
        assert_eq!(kind(w.fs.getattr(over).await), ErrorKind::NotFound);
        assert_eq!((size(a).await, size(b).await), (2 + 1, 2 + 1));
        let d = w.dir(a, "d").await;
        w.fs.rename_whiteout(a, b"d", b, b"d", plain, &who).await.unwrap();
        assert_eq!(w.fs.lookup(d, b"..").await.unwrap().obj, b);
        let links = async |dir: ObjectId| w.fs.getattr(dir).await.unwrap().nlink;
        assert_eq!((links(a).await, links(b).await), (2, 3));
        // A whiteout itself moves like anything else.
        w.fs.rename(a, b"d", b, b"over", plain).await.unwrap();
        assert!(is_whiteout(&w.fs.lookup(b, b"over").await.unwrap()));
        // A failed creation leaves no object behind.
        let objects = w.fs.objset().used_objects();
        let both = RenameFlags { exchange: true, ..plain };
        assert_eq!(kind(w.fs.rename_whiteout(b, b"d", b, b"over", both, &who).await), ErrorKind::Invalid);
        let noreplace = RenameFlags { noreplace: true, ..plain };
        assert_eq!(kind(w.fs.rename_whiteout(b, b"d", b, b"over", noreplace, &who).await), ErrorKind::Exists);
        assert_eq!(kind(w.fs.rename_whiteout(b, b"none", b, b"x", plain, &who).await), ErrorKind::NotFound);
        assert_eq!(kind(w.fs.rename_whiteout(b, b"d", b, b"over", plain, &who).await), ErrorKind::NotDir);
        assert_eq!(w.fs.objset().used_objects(), objects);
        w.reimport().await;
        assert!(is_whiteout(&w.fs.lookup(w.fs.root(), b"f").await.unwrap()));
        assert_eq!(w.fs.readdir(a, 2, 10).await.unwrap()[0].kind, FileKind::CharDev);
    });
}

#[test]
fn removed_directories_stay_until_they_are_forgotten() {
    with_pool(Setup::default(), |mut w| async move {
        let root = w.fs.root();
        let before = w.fs.objset().used_objects();
        w.fs.keep_removed_dirs();
        let d = w.dir(root, "d").await;
        let e = w.dir(root, "e").await;
        w.fs.rmdir(root, b"d").await.unwrap();
        let gone = w.fs.getattr(d).await.unwrap();
        assert_eq!((gone.nlink, gone.kind), (0, FileKind::Dir));
        assert_eq!(w.fs.readdir(d, 2, 10).await.unwrap(), []);
        assert_eq!(kind(w.fs.create(d, b"x", 0o644, &ROOT_CRED, true).await), ErrorKind::NotFound);
        assert_eq!(kind(w.fs.mkdir(d, b"x", 0o755, &ROOT_CRED).await), ErrorKind::NotFound);
        // The same for one that another directory takes the place of.
        let f = w.dir(root, "f").await;
        w.fs.rename(root, b"f", root, b"e", RenameFlags::default()).await.unwrap();
        assert_eq!((w.fs.getattr(e).await.unwrap().nlink, w.fs.lookup(root, b"e").await.unwrap().obj), (0, f));
        assert_eq!(w.fs.open_objects(), 2);
        w.fs.forget_removed(f);
        w.fs.forget_removed(d);
        w.fs.forget_removed(d);
        w.rt.sleep(base::Nanos::from_ms(1)).await;
        assert_eq!(kind(w.fs.getattr(d).await), ErrorKind::NotFound);
        assert_eq!(w.fs.getattr(e).await.unwrap().nlink, 0);
        w.fs.forget_all_removed().await;
        queue_runs_empty(&w).await;
        assert_eq!(w.fs.open_objects(), 0);
        // A crash or the end forgets them, too.
        w.fs.rmdir(root, b"e").await.unwrap();
        w.reimport().await;
        queue_runs_empty(&w).await;
        assert_eq!(w.fs.objset().used_objects(), before);
    });
}

#[test]
fn names_of_attributes_may_have_slashes() {
    with_pool(Setup::default(), |mut w| async move {
        let f = w.file("f").await;
        for mode in [XattrMode::Sa, XattrMode::Dir] {
            w.set_xattr_mode(mode).await;
            w.fs.setxattr(f, b"user.a/b", b"1", SetXattr::Create).await.unwrap();
            w.fs.setxattr(f, b"user./", b"2", SetXattr::Create).await.unwrap();
            let mut names = w.fs.listxattr(f).await.unwrap();
            names.sort();
            assert_eq!(names, [b"user./".to_vec(), b"user.a/b".to_vec()]);
            w.reimport().await;
            assert_eq!(w.fs.getxattr(f, b"user.a/b").await.unwrap(), b"1");
            w.fs.removexattr(f, b"user.a/b").await.unwrap();
            w.fs.removexattr(f, b"user./").await.unwrap();
        }
        assert_eq!(kind(w.fs.setxattr(f, b"user.a\0b", b"1", SetXattr::Any).await), ErrorKind::Invalid);
    });
}

#[test]
fn writes_reach_the_last_byte_of_the_largest_file() {
    with_pool(Setup::default(), |mut w| async move {
        let max = i64::MAX as u64;
        // The first write, and one after others.
        let (f, g) = (w.file("f").await, w.file("g").await);
        w.write(g, 0, &[1; 200_000]).await;
        for obj in [f, g] {
            w.write(obj, max - 3, b"end").await;
            assert_eq!(kind(w.fs.write(obj, max - 2, vec![Bytes::copy_from(b"xyz")], false).await), ErrorKind::TooBig);
        }
        w.reimport().await;
        for obj in [f, g] {
            assert_eq!(w.fs.getattr(obj).await.unwrap().size, max);
            assert_eq!(w.read(obj, max - 5, 10).await, b"\0\0end");
            w.fs.truncate(obj, max - 1).await.unwrap();
            assert_eq!(w.read(obj, max - 5, 10).await, b"\0\0en");
            w.fs.truncate(obj, 0).await.unwrap();
        }
        w.fs.sync_all().await.unwrap();
    });
}

#[test]
fn reading_nothing_and_listing_are_accesses() {
    with_pool(Setup::default(), |w| async move {
        let root = w.fs.root();
        w.fs.set_opts(MountOpts { atime: Atime::On, ..w.fs.opts() });
        let past = WallTime { secs: 1_000_000, nanos: 0 };
        let f = w.file("f").await;
        let d = w.dir(root, "d").await;
        for obj in [f, d] {
            w.fs.setattr(obj, SetAttr { atime: Some(SetTime::At(past)), ..SetAttr::default() }).await.unwrap();
        }
        w.fs.read(f, 0, 0).await.unwrap();
        assert_eq!(w.fs.getattr(f).await.unwrap().atime, past, "a read of no bytes is none");
        w.fs.read(f, 0, 100).await.unwrap();
        w.fs.readdir(d, 0, 10).await.unwrap();
        for obj in [f, d] {
            assert!(w.fs.getattr(obj).await.unwrap().atime > past);
        }
    });
}
