//! Removal of set-id bits and capabilities from files that change.
//!
//! Linux clears the set-user-id and set-group-id bits of a file when a process without `CAP_FSETID`
//! writes to or truncates it, and on every change of owner; it removes `security.capability` on any
//! change of the file. A FUSE server has to do both (`FUSE_HANDLE_KILLPRIV_V2` of `linux/fuse.h`).
//!
//! Every write checks for capabilities. A node therefore caches that it has none until one of its
//! extended attributes changes.

use std::cell::Cell;

use base::{ErrorKind, ObjectId, Result};
use dmu::sa::SaHandle;

use crate::attr::set_mode;
use crate::fs::Zfs;
use crate::node::{Node, kind_of};
use crate::types::{FileKind, SetAttr};

/// The extended attribute of a program's capabilities.
const CAPABILITY: &[u8] = b"security.capability";
const S_ISUID: u64 = 0o4000;
const S_ISGID: u64 = 0o2000;
const S_IXGRP: u64 = 0o010;

/// Cache of a node's lack of capabilities.
#[derive(Default)]
pub(crate) struct CapsCache {
    /// Changes of extended attributes so far.
    changes: Cell<u64>,
    /// The count of changes at which there were no capabilities.
    none_at: Cell<Option<u64>>,
}

impl CapsCache {
    /// Invalidates the cache, before and after a change of an extended attribute.
    pub(crate) fn changed(&self) {
        self.changes.set(self.changes.get() + 1);
    }
    fn is_none(&self) -> bool {
        self.none_at.get() == Some(self.changes.get())
    }
    /// Records that there were none when `changes` was read.
    fn set_none(&self, changes: u64) {
        self.none_at.set(Some(changes));
    }
}

/// The mode without the bits that a change clears. Where the group may not execute the file the
/// set-group-id bit is cleared only if `may_keep_sgid` is false (Linux `setattr_should_drop_sgid`,
/// 6.2).
fn without_set_ids(mode: u64, may_keep_sgid: impl FnOnce() -> bool) -> u64 {
    let mut new = mode & !S_ISUID;
    if mode & S_ISGID != 0 && (mode & S_IXGRP != 0 || !may_keep_sgid()) {
        new &= !S_ISGID;
    }
    new
}

impl Zfs {
    /// Before a change of an object: removes `security.capability`, and with `ids` the set-id bits.
    /// `may_keep_sgid` is called with the object's group, and only if its answer matters: whether
    /// the caller belongs to that group or has `CAP_FSETID`. True if the mode changed. A directory
    /// keeps all.
    pub async fn drop_privileges(
        &self,
        obj: ObjectId,
        ids: bool,
        may_keep_sgid: impl FnOnce(u32) -> bool,
    ) -> Result<bool> {
        let n = self.node(obj).await?;
        self.drop_capability(&n).await?;
        if !ids || self.attrs(&n).await?.mode & (S_ISUID | S_ISGID) == 0 {
            return Ok(false);
        }
        let _pass = self.enter()?;
        let tx = self.plan_layout().bonus(&n.dn).spill(&n.dn).assign().await?;
        let sa = SaHandle::open(&n.dn, self.sa.get())?;
        let lock = n.st.attrs.lock().await;
        let mut a = sa.attrs().await?;
        let kind = kind_of(obj, a.mode)?;
        let mode = without_set_ids(a.mode, || may_keep_sgid(u32::try_from(a.gid).unwrap_or(u32::MAX)));
        let drops = mode != a.mode && kind != FileKind::Dir;
        if drops {
            a.ctime = self.now();
            let mode = (mode & 0o7777) as u32;
            set_mode(&sa, &mut a, mode, kind, &tx).await?;
            drop(lock);
            self.log_setattr(obj, &SetAttr { mode: Some(mode), ..SetAttr::default() }, &a, &tx);
        }
        self.finish(tx);
        Ok(drops)
    }

    async fn drop_capability(&self, n: &Node) -> Result<()> {
        let known = &n.st.caps;
        if known.is_none() {
            return Ok(());
        }
        let changes = known.changes.get();
        match self.getxattr(n.obj(), CAPABILITY).await {
            Ok(_) => {
                let _pass = self.enter()?;
                self.remove_xattr(n, CAPABILITY).await?;
                self.commit_if_always(n.obj()).await
            }
            Err(e) if matches!(e.kind(), ErrorKind::NoAttr | ErrorKind::Unsupported) => {
                // With `xattr=off` stored attributes are hidden, but may become visible again.
                if e.kind() == ErrorKind::NoAttr {
                    known.set_none(changes);
                }
                Ok(())
            }
            Err(e) => Err(e),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_go_as_linux_takes_them() {
        for (mode, keeps, want) in [
            (0o100_755, false, 0o100_755),
            (0o104_755, true, 0o100_755),
            (0o104_644, true, 0o100_644),
            (0o106_755, true, 0o100_755),
            (0o102_755, true, 0o100_755),
            (0o102_710, true, 0o100_710),
            (0o102_644, true, 0o102_644),
            (0o102_644, false, 0o100_644),
            (0o106_644, true, 0o102_644),
            (0o010_000 | 0o6644, false, 0o010_644),
        ] {
            assert_eq!(without_set_ids(mode, || keeps), want, "{mode:o} {keeps}");
        }
    }

    #[test]
    fn having_none_is_forgotten_with_each_change() {
        let known = CapsCache::default();
        assert!(!known.is_none());
        known.set_none(known.changes.get());
        assert!(known.is_none());
        known.changed();
        assert!(!known.is_none());
        // A read that began before a change does not set the cache.
        let before = known.changes.get();
        known.changed();
        known.set_none(before);
        assert!(!known.is_none());
    }
}
