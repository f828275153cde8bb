//! Warnings about stored ACLs that are not evaluated.
//!
//! NFSv4 ACLs (those of FreeBSD and illumos) are kept on disk, but only removing and renaming obeys
//! what they deny: for all else owner, group and mode decide. So a user has the access that the
//! mode grants, even if such an ACL denies it. The command that mounts prints a warning if
//! `acltype` is `nfsv4` or the root has such an ACL; the log gets the first object with one, once
//! for each mount.

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

/// The sentence for the log, without "warning: ": a line of the log has a level.
fn untagged(sentence: &str) -> &str {
    sentence.strip_prefix("warning: ").unwrap_or(sentence)
}

/// The warning for the command that mounts.
fn notice(name: &str, acltype: u64, root_has_one: bool) -> Option<String> {
    match (acltype, root_has_one) {
        (_, true) => Some(sentence(name, "its root has")),
        (ACLTYPE_NFSV4, false) => Some(sentence(name, "acltype is nfsv4, and files may have")),
        _ => None,
    }
}

impl PoolEngine {
    /// After a change of `acltype`: warns if a mount then has ACLs that are not evaluated.
    pub(crate) fn warn_of_acltype(&self, ds: &Dataset) {
        let name = ds.name();
        if self.mounts.path_of(&name).is_some()
            && let Some(sentence) = notice(&name, ds.dir().prop("acltype").0.num(), false)
            // A remount of an outer mount may have given the warning already.
            && !self.mounts.has_notice(&sentence)
        {
            say(Level::Warning, untagged(&sentence));
            self.mounts.add_notice(sentence);
        }
    }

    /// Checks the root of a file system before its mount, and watches for further ACLs.
    pub(crate) async fn watch_acls(&self, zfs: &Rc<Zfs>, ds: &Dataset) {
        let name = ds.name();
        let root = zfs.getattr(zfs.root()).await;
        // Before version 5, ACLs equivalent to the mode may lack the flag.
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
