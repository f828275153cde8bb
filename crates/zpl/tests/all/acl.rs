//! POSIX ACLs as they are stored, and as they are after a crash.

use std::rc::Rc;

use crate::common::{ROOT_CRED, Setup, World, with_pool};
use base::{ErrorKind, ObjectId};
use bdev::{BlockDev, MemDev};
use zpl::{Acl, AclKind, Cred, SetAttr, SetXattr, XattrMode};

/// The device as it is now.
fn image(dev: &MemDev) -> Vec<u8> {
    let mut bytes = vec![0; dev.info().size_bytes as usize];
    dev.peek(0, &mut bytes);
    bytes
}

/// An ACL of tag, permissions, id.
fn acl(list: &[(u16, u16, u32)]) -> Vec<u8> {
    let mut out = vec![2, 0, 0, 0];
    for (tag, perm, id) in list {
        out.extend([tag.to_le_bytes(), perm.to_le_bytes()].concat());
        out.extend(id.to_le_bytes());
    }
    out
}

const NO_ID: u32 = u32::MAX;

/// `user::rw-,user:5:rw-,group::r--,mask::rw-,other::---`
fn user_5() -> Vec<u8> {
    acl(&[(1, 6, NO_ID), (2, 6, 5), (4, 4, NO_ID), (0x10, 6, NO_ID), (0x20, 0, NO_ID)])
}

fn posix(xattr: u64) -> Setup {
    Setup { size: 128 << 20, props: vec![("acltype", 1), ("xattr", xattr)], ..Setup::default() }
}

async fn stored(w: &World, obj: ObjectId) -> Option<Vec<u8>> {
    w.fs.get_acl(obj, AclKind::Access).await.unwrap().map(|a| a.to_bytes())
}

#[test]
fn acls_are_extended_attributes_of_linux() {
    for xattr in [1, 2] {
        with_pool(posix(xattr), |mut w| async move {
            let f = w.file("f").await;
            w.fs.set_acl(f, AclKind::Access, &user_5(), false).await.unwrap();
            let raw = w.fs.getxattr(f, b"system.posix_acl_access").await.unwrap();
            assert_eq!(raw, user_5());
            assert_eq!(w.fs.getattr(f).await.unwrap().mode, 0o100_660, "the group's bits are the mask");
            // Whichever way it is stored it counts, and there is one of it.
            w.set_xattr_mode(if xattr == 1 { XattrMode::Sa } else { XattrMode::Dir }).await;
            assert_eq!(stored(&w, f).await, Some(user_5()));
            w.fs.setattr(f, SetAttr { mode: Some(0o640), ..SetAttr::default() }).await.unwrap();
            let cut = acl(&[(1, 6, NO_ID), (2, 6, 5), (4, 4, NO_ID), (0x10, 4, NO_ID), (0x20, 0, NO_ID)]);
            assert_eq!(stored(&w, f).await, Some(cut.clone()));
            assert_eq!(w.fs.listxattr(f).await.unwrap(), [b"system.posix_acl_access"]);
            w.reimport().await;
            assert_eq!(stored(&w, f).await, Some(cut));
            // No more than a mode: not stored.
            let plain = acl(&[(1, 7, NO_ID), (4, 5, NO_ID), (0x20, 1, NO_ID)]);
            w.fs.set_acl(f, AclKind::Access, &plain, true).await.unwrap();
            assert_eq!(stored(&w, f).await, None);
            assert_eq!(w.fs.getattr(f).await.unwrap().mode, 0o100_751);
            assert!(w.fs.listxattr(f).await.unwrap().is_empty());
        });
    }
}

#[test]
fn what_cannot_be_set_is_refused() {
    with_pool(Setup { props: vec![("xattr", 2)], ..Setup::default() }, |w| async move {
        let f = w.file("f").await;
        let set = w.fs.set_acl(f, AclKind::Access, &user_5(), false).await;
        assert_eq!(set.unwrap_err().kind(), ErrorKind::Unsupported, "acltype=off");
        // Stored ACLs stay, and a new mode does not change them.
        w.fs.setxattr(f, AclKind::Access.xattr_name(), &user_5(), SetXattr::Any).await.unwrap();
        w.fs.setattr(f, SetAttr { mode: Some(0o600), ..SetAttr::default() }).await.unwrap();
        assert_eq!(stored(&w, f).await, Some(user_5()));
    });
    with_pool(posix(2), |w| async move {
        let f = w.file("f").await;
        let bad = w.fs.set_acl(f, AclKind::Access, b"nonsense", false).await;
        assert_eq!(bad.unwrap_err().kind(), ErrorKind::Invalid);
        let bad = w.fs.set_acl(f, AclKind::Default, &user_5(), false).await;
        assert_eq!(bad.unwrap_err().kind(), ErrorKind::Denied);
        let link = w.fs.symlink(w.fs.root(), b"l", b"f", &ROOT_CRED).await.unwrap().obj;
        let bad = w.fs.set_acl(link, AclKind::Access, &user_5(), false).await;
        assert_eq!(bad.unwrap_err().kind(), ErrorKind::Unsupported);
        // A stored invalid ACL is an error, not None: it might have denied access.
        w.fs.setxattr(f, AclKind::Access.xattr_name(), b"nonsense", SetXattr::Any).await.unwrap();
        assert_eq!(w.fs.get_acl(f, AclKind::Access).await.unwrap_err().kind(), ErrorKind::Corrupt);
    });
}

#[test]
fn new_objects_inherit() {
    for xattr in [1, 2] {
        with_pool(posix(xattr), |w| async move {
            let who = Cred { umask: 0o077, ..Cred::new(1000, 100) };
            let d = w.dir(w.fs.root(), "d").await;
            let made = w.fs.create(d, b"before", 0o666, &who, true).await.unwrap();
            assert_eq!(made.mode, 0o100_600, "the umask");
            w.fs.set_acl(d, AclKind::Default, &user_5(), false).await.unwrap();
            let made = w.fs.create(d, b"f", 0o666, &who, true).await.unwrap();
            assert_eq!(made.mode, 0o100_660, "the default ACL in its place");
            assert_eq!(stored(&w, made.obj).await, Some(user_5()));
            let sub = w.fs.mkdir(d, b"sub", 0o777, &who).await.unwrap();
            let default = w.fs.get_acl(sub.obj, AclKind::Default).await.unwrap();
            assert_eq!(default, Some(Acl::parse(&user_5()).unwrap()));
            let link = w.fs.symlink(d, b"l", b"x", &who).await.unwrap();
            assert_eq!((link.mode & 0o777, stored(&w, link.obj).await), (0o777, None));
        });
    }
}

/// Replayed objects grant no user more than the ACL did; committed changes are complete.
#[test]
fn acls_and_crashes() {
    for xattr in [1, 2] {
        with_pool(posix(xattr), |mut w| async move {
            let root = w.fs.root();
            let d = w.dir(root, "d").await;
            let denies = acl(&[(1, 6, NO_ID), (2, 0, 5), (4, 4, NO_ID), (0x10, 6, NO_ID), (0x20, 4, NO_ID)]);
            w.fs.set_acl(d, AclKind::Default, &denies, false).await.unwrap();
            let old = w.file("old").await;
            w.fs.sync_all().await.unwrap();
            // The first commit makes the log, with a txg.
            w.write(old, 0, b"x").await;
            w.fs.fsync(old).await.unwrap();
            let who = Cred::new(1000, 100);
            let lost = w.fs.create(d, b"lost", 0o666, &who, true).await.unwrap();
            assert_eq!(lost.mode & 0o777, 0o664);
            // Carries the name along, which is all that the log knows.
            let other = w.file("other").await;
            w.write(other, 0, b"x").await;
            w.fs.fsync(other).await.unwrap();
            w.dev = Rc::new(MemDev::from_image(&w.rt, &image(&w.dev)));
            w.import().await;
            assert!(w.fs.replayed().applied > 0);
            let lost = w.fs.lookup(d, b"lost").await.unwrap();
            assert_eq!(stored(&w, lost.obj).await, None);
            assert_eq!(lost.mode & 0o777, 0o600, "user 5 is not to pass for one of the others");

            let kept = w.fs.create(d, b"kept", 0o666, &who, true).await.unwrap();
            w.fs.fsync(kept.obj).await.unwrap();
            w.fs.set_acl(old, AclKind::Access, &user_5(), false).await.unwrap();
            w.fs.fsync(old).await.unwrap();
            w.fs.setattr(old, SetAttr { mode: Some(0o600), ..SetAttr::default() }).await.unwrap();
            w.fs.fsync(old).await.unwrap();
            w.dev = Rc::new(MemDev::from_image(&w.rt, &image(&w.dev)));
            w.import().await;
            let kept = w.fs.lookup(d, b"kept").await.unwrap();
            assert_eq!((kept.mode & 0o777, stored(&w, kept.obj).await), (0o664, Some(denies)));
            let cut = acl(&[(1, 6, NO_ID), (2, 6, 5), (4, 4, NO_ID), (0x10, 0, NO_ID), (0x20, 0, NO_ID)]);
            assert_eq!(w.fs.getattr(old).await.unwrap().mode, 0o100_600);
            assert_eq!(stored(&w, old).await, Some(cut));
        });
    }
}

#[test]
fn capabilities_go_once_and_are_seen_again() {
    with_pool(posix(2), |w| async move {
        const CAPS: &[u8] = b"security.capability";
        let f = w.file("f").await;
        w.fs.setattr(f, SetAttr { mode: Some(0o6755), ..SetAttr::default() }).await.unwrap();
        assert!(!w.fs.drop_privileges(f, false, |_| true).await.unwrap());
        for _ in 0..3 {
            w.fs.setxattr(f, CAPS, b"all", SetXattr::Any).await.unwrap();
            assert!(!w.fs.drop_privileges(f, false, |_| true).await.unwrap());
            assert_eq!(w.fs.getxattr(f, CAPS).await.unwrap_err().kind(), ErrorKind::NoAttr);
            assert!(!w.fs.drop_privileges(f, false, |_| true).await.unwrap());
        }
        assert!(w.fs.drop_privileges(f, true, |_| true).await.unwrap());
        assert_eq!(w.fs.getattr(f).await.unwrap().mode, 0o100_755);
    });
}

/// A non-trivial NFSv4 ACL is reported, once.
#[test]
fn foreign_acls_are_told_of() {
    with_pool(posix(2), |w| async move {
        let (plain, foreign) = (w.file("plain").await, w.file("foreign").await);
        let os = w.fs.objset();
        let master = os.hold(ObjectId(1)).await.unwrap();
        let attrs = dmu::zap::lookup_u64(&master, b"SA_ATTRS").await.unwrap().unwrap();
        let table = dmu::sa::SaTable::load(os, ObjectId(attrs)).await.unwrap();
        let dn = os.hold(foreign).await.unwrap();
        let sa = dmu::sa::SaHandle::open(&dn, Some(&table)).unwrap();
        let mut a = sa.attrs().await.unwrap();
        a.flags &= !ondisk::zpl::pflags::ACL_TRIVIAL;
        let tx = dmu::TxPlan::new(os).bonus(&dn).assign().await.unwrap();
        sa.set_attrs(&a, &tx).await.unwrap();
        drop(tx);
        let met = Rc::new(std::cell::RefCell::new(Vec::new()));
        let told = met.clone();
        w.fs.watch_foreign_acls(move |obj| told.borrow_mut().push(obj));
        for obj in [plain, foreign, foreign] {
            w.fs.getattr(obj).await.unwrap();
        }
        assert_eq!(*met.borrow(), [foreign]);
    });
}
