//! NFSv4 ACLs deny removing and renaming beyond the mode, and nothing else.

use std::fs;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use base::ObjectId;
use dmu::sa::{SaAttr, SaHandle, SaTable};
use host::{Engine, EngineConfig, TempDir};
use ondisk::zpl::{
    ACE_ALLOW, ACE_DELETE_CHILD, ACE_DENY, ACE_EVERYONE, ACE_IDENTIFIER_GROUP, Ace, aces_to_bytes, pflags,
};
use zpl::{Cred, SetAttr, Zfs};

use crate::common::{Setup, can_mount, mounted};

/// ACE mask: delete the object itself.
const DELETE: u32 = 0x1_0000;
/// All that a mode grants.
const ALL: u32 = 0x1F_01FF;
const USER: u32 = 1;
const GROUP: u32 = 60;

/// Stores an ACL as FreeBSD would.
async fn set_acl(zfs: &Zfs, obj: ObjectId, aces: &[Ace]) {
    let os = zfs.objset();
    let master = os.hold(ObjectId(1)).await.unwrap();
    let attrs = dmu::zap::lookup_u64(&master, b"SA_ATTRS").await.unwrap().unwrap();
    let table = SaTable::load(os, ObjectId(attrs)).await.unwrap();
    let dn = os.hold(obj).await.unwrap();
    let sa = SaHandle::open(&dn, Some(&table)).unwrap();
    let mut a = sa.attrs().await.unwrap();
    a.flags &= !pflags::ACL_TRIVIAL;
    a.dacl_count = aces.len() as u64;
    let tx = dmu::TxPlan::new(os).bonus(&dn).spill(&dn).assign().await.unwrap();
    sa.update(Some(&a), &[(SaAttr::DaclAces, Some(&aces_to_bytes(aces)))], &tx).await.unwrap();
}

/// A folder that everyone may write, with a file `f`.
async fn folder(zfs: &Zfs, name: &str) -> (ObjectId, ObjectId) {
    let root = Cred::new(0, 0);
    let dir = zfs.mkdir(zfs.root(), name.as_bytes(), 0o777, &root).await.unwrap().obj;
    zfs.setattr(dir, SetAttr { mode: Some(0o777), ..SetAttr::default() }).await.unwrap();
    let f = zfs.create(dir, b"f", 0o666, &root, true).await.unwrap().obj;
    (dir, f)
}

/// A command's error as another user, "" if there is none.
fn as_user(dir: &Path, line: &str, groups: &str) -> String {
    let script = format!("exec setpriv --reuid {USER} --regid {USER} {groups} {line}");
    let done = Command::new("sh").arg0("sh").args(["-c", &script]).env("LC_ALL", "C").current_dir(dir).output();
    String::from_utf8(done.unwrap().stderr).unwrap()
}

fn client(root: &Path) {
    const ALONE: &str = "--clear-groups";
    let member = format!("--groups {GROUP}");
    let refused = |dir: &str, line: &str, groups: &str| {
        let said = as_user(&root.join(dir), line, groups);
        assert!(said.contains("Operation not permitted"), "{dir}: {line}: {said:?}");
    };
    let done = |dir: &str, line: &str, groups: &str| {
        assert_eq!(as_user(&root.join(dir), line, groups), "", "{dir}: {line}");
    };
    let names = || {
        for dir in ["kept", "closed"] {
            done(dir, "cp f new", ALONE);
            done(dir, "mkdir sub", ALONE);
            done(dir, "cat f", ALONE);
        }
    };
    names();
    // The object's own ACL.
    refused("kept", "rm -f f", ALONE);
    refused("kept", "mv f g", ALONE);
    refused("kept", "mv new f", ALONE);
    refused("kept", "mv f ../plain/g", ALONE);
    done("kept", "rm new", ALONE);
    done("kept", "rmdir sub", ALONE);
    // That of the directory, for all in it.
    refused("closed", "rm -f f", ALONE);
    refused("closed", "rm -f new", ALONE);
    refused("closed", "rmdir sub", ALONE);
    refused("closed", "mv new g", ALONE);
    // The object grants what the directory denies.
    done("granted", "rm -f f", ALONE);
    // For members of a group only.
    refused("grouped", "rm -f f", &member);
    done("grouped", "rm -f f", ALONE);
    done("plain", "rm -f f", ALONE);
    // The superuser may do it all.
    for dir in ["kept", "closed"] {
        fs::remove_file(root.join(dir).join("f")).unwrap();
    }
}

#[test]
fn acls_keep_entries_from_being_removed() {
    if !can_mount() {
        return;
    }
    if Command::new("setpriv").arg("--version").output().is_err() {
        eprintln!("SKIPPED: setpriv is not installed: other users could not be tried");
        return;
    }
    let dir = TempDir::new("nfs4").unwrap();
    let engine = Engine::new(EngineConfig::default()).unwrap();
    let rt = engine.rt();
    engine.block_on(async {
        let path = fs::canonicalize(dir.path()).unwrap();
        let (pool, zfs, m) = mounted(&rt, &path, Setup::default()).await;
        let everyone = |kind, mask| Ace { kind, flags: ACE_EVERYONE, mask, who: None };
        let grants_all = everyone(ACE_ALLOW, ALL);
        folder(&zfs, "plain").await;
        let (_, kept) = folder(&zfs, "kept").await;
        set_acl(&zfs, kept, &[everyone(ACE_DENY, DELETE), grants_all]).await;
        let (closed, _) = folder(&zfs, "closed").await;
        set_acl(&zfs, closed, &[everyone(ACE_DENY, ACE_DELETE_CHILD), grants_all]).await;
        let (granted, f) = folder(&zfs, "granted").await;
        set_acl(&zfs, granted, &[everyone(ACE_DENY, ACE_DELETE_CHILD), grants_all]).await;
        set_acl(&zfs, f, &[grants_all]).await;
        let (_, grouped) = folder(&zfs, "grouped").await;
        let denied = Ace { kind: ACE_DENY, flags: ACE_IDENTIFIER_GROUP, mask: DELETE, who: Some(GROUP.into()) };
        set_acl(&zfs, grouped, &[denied, grants_all]).await;
        let result = host::blocking(move || std::panic::catch_unwind(|| client(&path))).await.unwrap();
        m.unmount(result.is_err(), false).await.unwrap();
        m.ended().await;
        if let Err(panic) = result {
            std::panic::resume_unwind(panic);
        }
        zfs.unmount().await.unwrap();
        pool.export().await.unwrap();
    });
}
