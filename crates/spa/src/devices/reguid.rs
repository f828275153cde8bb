//! `zpool reguid`: the pool gets another guid, so that a copy of its devices can be imported beside
//! it. [`crate::devices`] has the path of a change.
//!
//! The guid is in the configuration, in every label, and in the uberblock's sum of guids. A device
//! that is away would keep labels with the old one, so all have to be there. A power cut before the
//! uberblock leaves the new guid in labels that no uberblock confirms: [`crate::scan()`] passes
//! over them.

use base::{Error, ErrorKind, Guid, Result};
use vdev::{Health, VdevTree};

use super::Devices;

impl Devices {
    /// Gives the pool the guid `new`, or one drawn at random; returns it. Refused while the pool
    /// has a checkpoint, or a device is not in use.
    pub async fn change_guid(&self, new: Option<Guid>) -> Result<Guid> {
        let place = format!("cannot reguid '{}'", self.config.name());
        let _admin = self.begin_change().await?;
        let new = new.unwrap_or_else(|| self.stack.rt.new_guid());
        self.set_guid(new).await.map_err(|e| e.at(place))?;
        self.events.post("pool_reguid");
        Ok(new)
    }

    async fn set_guid(&self, new: Guid) -> Result<()> {
        if new == Guid(0) {
            return Err(Error::invalid("a guid is a number other than 0"));
        }
        if new == self.stack.tree.root_guid() {
            return Err(Error::new(ErrorKind::Exists, "the pool has this guid already"));
        }
        self.checkpoint.check_none()?;
        check_all_there(&self.stack.tree)?;
        self.changes
            .make(move |devices, tx| {
                Box::pin(async move {
                    let tree = &devices.stack.tree;
                    if let Err(e) = devices.checkpoint.check_none().and_then(|()| check_all_there(tree)) {
                        return Ok(Err(e));
                    }
                    let text = format!("old={} new={new}", tree.root_guid());
                    devices.stack.core.log_internal("guid change", text, tx.txg());
                    tree.set_root_guid(new);
                    devices.config.update(|c| {
                        c.pool_guid = new;
                        c.vdev_tree.guid = new;
                    });
                    devices.config.mark_dirty();
                    Ok(Ok(()))
                })
            })
            .await
    }
}

/// Fails if a device of the tree is not in use.
fn check_all_there(tree: &VdevTree) -> Result<()> {
    let tops = tree.tops.borrow();
    match tops.iter().all(|top| top.kind().health() == Health::Online) {
        true => Ok(()),
        false => Err(Error::new(ErrorKind::Io, "one or more devices is currently unavailable")),
    }
}
