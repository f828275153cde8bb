//! Limits of users, groups and projects: they are set, kept, read and enforced.

use base::{ErrorKind, Result};
use bdev::Bytes;
use zpl::{Cred, OwnerKind, OwnerUse, SetAttr, SetXattr, XattrMode, owner_use, owner_uses};

use crate::common::{ROOT_CRED, Setup, World, with_pool};

fn joe() -> Cred {
    Cred { uid: 1000, gid: 2000, ..ROOT_CRED }
}

async fn grow(w: &World, name: &str, bytes: u64) -> Result<()> {
    let obj = w.fs.create(w.fs.root(), name.as_bytes(), 0o644, &joe(), true).await?.obj;
    let data = Bytes::copy_from(&vec![7; 64 << 10]);
    let mut at = 0;
    while at < bytes {
        at += w.fs.write(obj, at, vec![data.clone()], false).await?.0;
    }
    Ok(())
}

fn refused(done: Result<()>) {
    assert_eq!(done.unwrap_err().kind(), ErrorKind::Quota);
}

#[test]
fn limits_are_kept_and_refuse() {
    let setup = Setup { props: vec![("compression", 2)], ..Setup::default() };
    with_pool(setup, |mut w| async move {
        let os = w.fs.objset().clone();
        let none = OwnerUse { id: 1000, objused: Some(0), objquota: Some(0), ..OwnerUse::default() };
        assert_eq!(owner_use(&os, OwnerKind::User, 1000).await.unwrap(), none);
        // Nothing is stored for a limit that is not there.
        w.fs.set_quota(OwnerKind::User, false, 1000, 0).await.unwrap();
        assert_eq!(owner_uses(&os, OwnerKind::User).await.unwrap().len(), 1, "root has the root directory");

        w.fs.set_quota(OwnerKind::User, false, 1000, 1 << 20).await.unwrap();
        grow(&w, "a", 2 << 20).await.unwrap();
        w.pool.sync().await.unwrap();
        refused(grow(&w, "b", 1).await);
        let used = owner_use(&os, OwnerKind::User, 1000).await.unwrap();
        assert!(used.used > 2 << 20 && used.quota == 1 << 20 && used.objused == Some(1), "{used:?}");
        // It is there after an import.
        drop(os);
        w.reimport().await;
        refused(grow(&w, "b", 1).await);
        w.fs.set_quota(OwnerKind::User, false, 1000, 64 << 20).await.unwrap();
        grow(&w, "b", 1).await.unwrap();

        // Objects, of a group; the limit goes away again.
        w.pool.sync().await.unwrap();
        w.fs.set_quota(OwnerKind::Group, true, 2000, 2).await.unwrap();
        refused(grow(&w, "c", 0).await);
        let os = w.fs.objset().clone();
        let group = owner_use(&os, OwnerKind::Group, 2000).await.unwrap();
        assert_eq!((group.objused, group.objquota, group.quota), (Some(2), Some(2), 0));
        w.fs.set_quota(OwnerKind::Group, true, 2000, 0).await.unwrap();
        grow(&w, "c", 0).await.unwrap();

        let ids = |all: Vec<OwnerUse>| all.iter().map(|o| (o.id, o.quota, o.objquota)).collect::<Vec<_>>();
        let users = ids(owner_uses(&os, OwnerKind::User).await.unwrap());
        assert_eq!(users, [(0, 0, Some(0)), (1000, 64 << 20, Some(0))]);
        // One that uses nothing is listed with its limit.
        w.fs.set_quota(OwnerKind::Project, false, 77, 5 << 20).await.unwrap();
        let projects = ids(owner_uses(&os, OwnerKind::Project).await.unwrap());
        assert_eq!(projects, [(0, 0, Some(0)), (77, 5 << 20, Some(0))]);
        let bad = w.fs.set_quota(OwnerKind::Project, false, u64::from(u32::MAX), 1).await;
        assert_eq!(bad.unwrap_err().kind(), ErrorKind::Invalid);
    });
}

/// A default holds for ids without a limit of their own, root among them, but not for files of no
/// project; it is no limit of an id's own, and there after an import.
#[test]
fn defaults_hold_where_there_is_no_own_limit() {
    let setup = Setup { props: vec![("compression", 2)], ..Setup::default() };
    with_pool(setup, |mut w| async move {
        w.fs.set_default_quota(OwnerKind::User, false, 0).await.unwrap();
        w.fs.set_default_quota(OwnerKind::Project, false, 1).await.unwrap();
        w.fs.set_default_quota(OwnerKind::Project, true, 1).await.unwrap();
        grow(&w, "a", 2 << 20).await.unwrap();
        w.pool.sync().await.unwrap();
        grow(&w, "no-project", 64 << 10).await.unwrap();
        w.fs.set_default_quota(OwnerKind::User, false, 1 << 20).await.unwrap();
        refused(grow(&w, "b", 1).await);
        w.reimport().await;
        refused(grow(&w, "b", 1).await);
        let os = w.fs.objset().clone();
        assert_eq!(owner_use(&os, OwnerKind::User, 1000).await.unwrap().quota, 0);
        let quotas = |all: Vec<OwnerUse>| all.iter().map(|o| (o.id, o.quota)).collect::<Vec<_>>();
        let listed = quotas(owner_uses(&os, OwnerKind::User).await.unwrap());
        assert_eq!(listed, [(0, 1 << 20), (1000, 1 << 20)]);
        drop(os);

        // One's own limit comes before it.
        w.fs.set_quota(OwnerKind::User, false, 1000, 64 << 20).await.unwrap();
        grow(&w, "b", 1).await.unwrap();
        w.pool.sync().await.unwrap();
        w.fs.set_default_quota(OwnerKind::User, true, 1).await.unwrap();
        refused(grow(&w, "c", 0).await);
        let by_root = w.fs.create(w.fs.root(), b"by-root", 0o644, &ROOT_CRED, true).await.map(drop);
        refused(by_root);
        w.fs.set_default_quota(OwnerKind::User, true, 0).await.unwrap();
        grow(&w, "c", 0).await.unwrap();
    });
}

/// Attributes that have files of their own go to the new owners with the file; who is at a limit
/// gets no more by a change of owner; a directory that hands its project down shows its limits.
#[test]
fn a_new_owner_gets_all_of_a_file() {
    let setup = Setup { props: vec![("compression", 2)], ..Setup::default() };
    with_pool(setup, |mut w| async move {
        w.set_xattr_mode(XattrMode::Dir).await;
        let file = w.fs.create(w.fs.root(), b"a", 0o644, &joe(), true).await.unwrap().obj;
        for name in [b"user.x".as_slice(), b"user.y", b"user.z"] {
            w.fs.setxattr(file, name, &[7; 5000], SetXattr::Any).await.unwrap();
        }
        let objects = async |w: &World, kind, id| {
            w.pool.sync().await.unwrap();
            owner_use(w.fs.objset(), kind, id).await.unwrap().objused.unwrap()
        };
        // The file, its hidden directory, and three files.
        assert_eq!(objects(&w, OwnerKind::User, 1000).await, 5);
        let to = |uid, gid| SetAttr { uid, gid, ..SetAttr::default() };
        w.fs.setattr(file, to(Some(1001), Some(2001))).await.unwrap();
        assert_eq!(objects(&w, OwnerKind::User, 1000).await, 0);
        assert_eq!((objects(&w, OwnerKind::User, 1001).await, objects(&w, OwnerKind::Group, 2001).await), (5, 5));
        w.fs.set_project(file, 5).await.unwrap();
        assert_eq!(objects(&w, OwnerKind::Project, 5).await, 5);
        w.reimport().await;
        assert_eq!(w.fs.getxattr(file, b"user.y").await.unwrap(), [7; 5000]);

        // Limits of the new owners.
        let kinds = [(OwnerKind::User, 1001), (OwnerKind::Group, 2001), (OwnerKind::Project, 5)];
        for (kind, id) in kinds {
            w.fs.set_quota(kind, true, id, 5).await.unwrap();
        }
        let other = w.fs.create(w.fs.root(), b"b", 0o644, &joe(), true).await.unwrap().obj;
        refused(w.fs.setattr(other, to(Some(1001), None)).await.map(drop));
        refused(w.fs.setattr(other, to(None, Some(2001))).await.map(drop));
        refused(w.fs.set_project(other, 5).await);
        // To the same owner is no change.
        w.fs.setattr(file, to(Some(1001), Some(2001))).await.unwrap();
        w.fs.set_project(file, 5).await.unwrap();

        let dir = w.dir(w.fs.root(), "d").await;
        let whole = w.fs.statfs_at(dir).await.unwrap();
        w.fs.set_project(dir, 6).await.unwrap();
        w.fs.set_flags(dir, zpl::ioc_flags::PROJINHERIT).await.unwrap();
        assert_eq!(w.fs.statfs_at(dir).await.unwrap().blocks, whole.blocks);
        w.fs.set_quota(OwnerKind::Project, false, 6, 64 << 20).await.unwrap();
        w.fs.set_quota(OwnerKind::Project, true, 6, 10).await.unwrap();
        w.pool.sync().await.unwrap();
        let s = w.fs.statfs_at(dir).await.unwrap();
        let unit = u64::from(s.frsize);
        assert_eq!((s.blocks, s.files, s.ffree), ((64 << 20) / unit, 10, 9));
        assert!(s.free < s.blocks && s.avail == s.free, "{s:?}");
        assert_eq!(w.fs.statfs_at(w.fs.root()).await.unwrap().fsid, whole.fsid);
    });
}
