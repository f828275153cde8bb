//! Files that are made without a name (`O_TMPFILE`) and may get one later.
//!
//! Such a file is in the delete queue from the transaction that makes it, so that a crash leaves
//! nothing behind. The intent log says nothing of it while it has no name, as of any file without
//! one; the link that gives it its first name is a barrier: a commit waits for the txg, which holds
//! all that the file got before.

use base::{ObjectId, Result};
use dmu::{Tx, zap};
use ondisk::zpl::pflags;

use crate::create::New;
use crate::fs::Zfs;
use crate::names::no_entry;
use crate::node::{Node, check_flags};
use crate::types::{Attr, Cred, FileKind};

impl Zfs {
    /// Makes a regular file without a name that counts as open once ([`Zfs::release`] takes that
    /// back). Group, project and flags are those of a file made in `dir`. With `linkable`
    /// [`Zfs::link`] may give it a name.
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
        // Open before it is in the queue, which may be drained meanwhile.
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

    /// A file gets its first name.
    pub(crate) async fn unlinked_remove(&self, n: &Node, tx: &Tx) -> Result<()> {
        n.st.linkable.set(false);
        zap::remove_int(self.unlinked_set()?, n.obj().0, tx).await
    }
}
