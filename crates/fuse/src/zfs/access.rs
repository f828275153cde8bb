//! What NFSv4 ACLs deny beyond the kernel's check of the mode.

use base::ObjectId;
use zpl::{Cred, Zfs};

use crate::errno::Errno;
use crate::groups::groups_of;
use crate::handler::Caller;

/// Refuses to remove or rename an entry that ACLs keep from the caller. The kernel holds the
/// directory meanwhile, so the name stays with its object.
pub(super) async fn check_delete(zfs: &Zfs, dir: ObjectId, name: &[u8], who: Caller) -> Result<(), Errno> {
    // Nearly all file systems: no look at groups.
    if who.uid == 0 || !zfs.has_foreign_acls() {
        return Ok(());
    }
    let cred = Cred { groups: groups_of(who.pid), ..Cred::new(who.uid, who.gid) };
    if zfs.may_delete(dir, name, &cred).await? { Ok(()) } else { Err(Errno(libc::EPERM)) }
}
