//! Says so where access to files is decided by less than what is stored.
//!
//! NFSv4 ACLs (those of FreeBSD and illumos) are kept on disk but not evaluated: owner, group and
//! mode decide. A user whom such an ACL denies what the mode gives then has access. The command
//! that mounts is told if `acltype` is `nfsv4` or the root has such an ACL; the log has the first
//! object that is met with one, once for each mount.

use std::rc::Rc;

use dsl::Dataset;
use ondisk::zpl::{ZPL_VERSION_SA, pflags};

use crate::engine::{PoolEngine, say};
use crate::fs::files::Zfs;
use crate::keeper::Level;

/// `acltype=nfsv4` as a number (`ZFS_ACLTYPE_NFSV4`).
const ACLTYPE_NFSV4: u64 = 2;

fn sentence(name: &str, has: &str) -> String {
    format!(
        "warning: '{name}': {has} an NFSv4 ACL: only owner, group and mode decide who may use a file here, so users \
         whom such an ACL denies access may have it: unmount it if that must not be"
    )
}

/// The sentence for the log, whose lines have a level of their own.
fn untagged(sentence: &str) -> &str {
    sentence.strip_prefix("warning: ").unwrap_or(sentence)
}

/// What the command that mounts is told.
fn notice(name: &str, acltype: u64, root_has_one: bool) -> Option<String> {
    match (acltype, root_has_one) {
        (_, true) => Some(sentence(name, "its root has")),
        (ACLTYPE_NFSV4, false) => Some(sentence(name, "acltype is nfsv4, and files may have")),
        _ => None,
    }
}

impl PoolEngine {
    /// After `acltype` changed: says so where that leaves a mount with ACLs that do not count.
    pub(crate) fn warn_of_acltype(&self, ds: &Dataset) {
        let name = ds.name();
        if self.mounts.path_of(&name).is_some()
            && let Some(sentence) = notice(&name, ds.dir().prop("acltype").0.num(), false)
            // It may just have been mounted anew with what it is mounted within.
            && !self.mounts.has_notice(&sentence)
        {
            say(Level::Warning, untagged(&sentence));
            self.mounts.add_notice(sentence);
        }
    }

    /// Looks at a file system that is about to be mounted.
    pub(crate) async fn watch_acls(&self, zfs: &Rc<Zfs>, ds: &Dataset) {
        let name = ds.name();
        let root = zfs.getattr(zfs.root()).await;
        // Before version 5 ACLs that say no more than the mode may lack the flag.
        let root_has_one = root.is_ok_and(|a| a.flags & pflags::ACL_TRIVIAL == 0) && zfs.version() >= ZPL_VERSION_SA;
        if let Some(sentence) = notice(&name, ds.dir().prop("acltype").0.num(), root_has_one) {
            say(Level::Warning, untagged(&sentence));
            self.mounts.add_notice(sentence);
        }
        zfs.watch_foreign_acls(move |obj| {
            say(Level::Warning, untagged(&sentence(&name, &format!("object {obj} has"))));
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_mounts_is_told_of_acls_that_do_not_count() {
        assert_eq!(notice("tank", 0, false), None);
        assert_eq!(notice("tank", 1, false), None);
        assert!(notice("tank", ACLTYPE_NFSV4, false).is_some_and(|s| s.contains("'tank': acltype is nfsv4")));
        assert!(notice("tank", 0, true).is_some_and(|s| s.contains("its root has an NFSv4 ACL")));
    }
}
