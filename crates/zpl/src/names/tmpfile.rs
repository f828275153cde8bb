//! Files created without a name (`O_TMPFILE`), which may get one later.
//!
//! The transaction that creates such a file adds it to the unlinked set, so that a crash does not
//! leak it. The intent log has no records of an unlinked file; the link that gives it its first
//! name is a barrier: a commit waits for the txg, which holds all earlier changes of the file.

use base::{ObjectId, Result};
use dmu::{Tx, zap};
use ondisk::zpl::pflags;

use crate::fs::Zfs;
use crate::names::create::New;
use crate::names::no_entry;
use crate::node::{Node, check_flags};
use crate::types::{Attr, Cred, FileKind};

impl Zfs {
    /// Creates a regular file without a name that counts as open once ([`Zfs::release`] ends that).
    /// Group, project and flags are those of a file created in `dir`. With `linkable` [`Zfs::link`]
    /// may give it a name.
    pub async fn tmpfile(&self, dir: ObjectId, mode: u32, cred: &Cred, linkable: bool) -> Result<Attr> {
        let _pass = self.enter()?;
        let (d, _) = self.dir(dir).await?;
        let da = self.live_attrs(&d).await?;
        if da.links == 0 {
            return Err(no_entry(b""));
        }
        check_flags(dir, &da, pflags::IMMUTABLE)?;
        let mut new = New { kind: FileKind::File, mode, rdev: 0, target: None, exclusive: true, exact: None };
        let acls = self.mode_for_new(&d, cred, &mut new).await?;
        let mut a = self.new_attrs(&d, &da, cred, &new);
        a.links = 0;
        self.check_quota(&a, true).await?;
        self.check_quota(&a, false).await?;
        let tx = self.plan_layout().create(1).zap(self.unlinked_set()?).assign().await?;
        let n = Node::new(self.new_object(&mut a, &new, &tx).await?);
        // Opened before it is in the unlinked set, which a drain may read meanwhile.
        self.hold_open(&n);
        let queued = zap::update_int(self.unlinked_set()?, n.obj().0, n.obj().0, &tx).await;
        if let Err(e) = queued {
            self.os.free(n.obj(), &tx).await?;
            self.finish(tx);
            self.release(n.obj()).await;
            return Err(e);
        }
        n.st.linkable.set(linkable);
        self.finish(tx);
        let Some(acls) = acls else { return self.to_attr(&n, &a) };
        if let Err(e) = self.set_new_acls(&n, acls).await {
            self.release(n.obj()).await;
            return Err(e);
        }
        self.getattr(n.obj()).await
    }

    /// Removes a file from the unlinked set when it gets its first name.
    pub(crate) async fn unlinked_remove(&self, n: &Node, tx: &Tx) -> Result<()> {
        n.st.linkable.set(false);
        zap::remove_int(self.unlinked_set()?, n.obj().0, tx).await
    }
}
