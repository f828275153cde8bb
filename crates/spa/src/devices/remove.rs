//! `zpool remove`: spares, caches and log devices; [`super::evacuate`] removes vdevs with data.
//! [`crate::devices`] has the path of a change.
//!
//! A log device leaves a *hole* at its id, so that the ids of others stay; the last vdev leaves
//! none. Before that its allocation is disabled, and the removal waits for its space to be freed.

use std::rc::Rc;

use base::{Error, ErrorKind, ObjectId, Result, ResultExt, TXG_CONCURRENT, TXG_DEFER, TXG_SIZE, VdevId};
use dmu::Tx;
use ondisk::vdev_config::{VdevConfig, VdevKind as ConfigKind};
use ondisk::version;
use vdev::{Top, TopSpec, VdevKind};

use super::Devices;
use super::find::{in_tree, matches_name};
use super::objects::free_top_objects;
use crate::stack::Stack;

impl Devices {
    /// Removes a spare that is not in use, a cache, or a log device; begins to remove a top-level
    /// vdev with data.
    pub async fn remove(&self, name: &str) -> Result<()> {
        let place = format!("cannot remove {name}");
        let _admin = self.begin_change().await?;
        self.remove_named(name).await.map_err(|e| e.at(place))
    }

    async fn remove_named(&self, name: &str) -> Result<()> {
        let aux = self.aux.get();
        if let Some(spare) = aux.spares.iter().find(|c| matches_name(c, name)) {
            if spare.kind == ConfigKind::Dspare {
                return Err(Error::unsupported("distributed spares belong to their draid"));
            }
            if in_tree(&self.stack.tree, spare.guid) {
                return Err(Error::new(ErrorKind::Busy, "the spare is in use: detach it first"));
            }
            return self.remove_aux(spare.clone()).await;
        }
        if let Some(cache) = aux.caches.iter().find(|c| matches_name(c, name)) {
            return self.remove_aux(cache.clone()).await;
        }
        let (top, guid) = self.find(name)?;
        if guid != top.guid() {
            return Err(Error::invalid("it is part of a mirror: detach it, or remove the mirror"));
        }
        if top.is_log {
            if self.config.version() < version::HOLES {
                return Err(Error::unsupported("pool must be upgraded to support log removal"));
            }
            return self.remove_log(&top).await;
        }
        self.checkpoint.check_none()?;
        self.remove_data(&top).await
    }

    async fn remove_aux(&self, device: VdevConfig) -> Result<()> {
        let guid = device.guid;
        self.changes
            .make(move |devices, tx| {
                Box::pin(async move {
                    if in_tree(&devices.stack.tree, guid) {
                        return Ok(Err(Error::new(ErrorKind::Busy, "the spare is in use: detach it first")));
                    }
                    let mut aux = devices.aux.get();
                    aux.spares.retain(|c| c.guid != guid);
                    aux.caches.retain(|c| c.guid != guid);
                    devices.aux.change(&devices.stack, aux, tx).await?;
                    Ok(Ok(()))
                })
            })
            .await?;
        self.stack.arc.remove_cache(guid).await;
        Ok(())
    }

    async fn remove_log(&self, top: &Rc<Top>) -> Result<()> {
        let id = top.id;
        self.stack.alloc.set_passive(id, true);
        let emptied = drain_log(&self.stack, id).await;
        let removed = match emptied {
            Ok(()) => {
                self.changes
                    .make(move |devices, tx| {
                        Box::pin(async move {
                            if devices.stack.alloc.in_use(id) > 0 {
                                return Ok(Err(log_in_use()));
                            }
                            let paths: Vec<String> =
                                devices.stack.tree.top(id)?.leaves().iter().map(|l| l.path()).collect();
                            let text = format!("{} vdev {id} (log) {}", devices.config.name(), paths.join(" "));
                            devices.stack.core.log_internal("vdev remove", text, tx.txg());
                            devices.events.post_vdev("vdev_remove_dev", devices.stack.tree.top(id)?.guid());
                            devices.remove_top(id, tx).await?;
                            Ok(Ok(()))
                        })
                    })
                    .await
            }
            Err(e) => Err(e),
        };
        if removed.is_err() && self.stack.txg.ended().is_none() {
            self.stack.alloc.set_passive(id, false);
        }
        removed
    }

    /// Removes an empty top-level vdev: its objects, its space, its place in the tree.
    async fn remove_top(&self, id: VdevId, tx: &Tx) -> Result<()> {
        let top = self.stack.tree.top(id)?;
        for leaf in top.leaves() {
            self.changes.queue_relabel(&VdevKind::Leaf(leaf.clone()), self.config.blank_label(&top, leaf.guid()));
        }
        free_top_objects(&self.stack, &top.config(), self.stack.alloc.space_maps(id), tx)
            .await
            .at(|| format!("top-level vdev {id}"))?;
        self.stack.alloc.remove_top(id);
        self.stack.store.forget(id);
        {
            let mut tops = self.stack.tree.tops.borrow_mut();
            if id.0 as usize + 1 == tops.len() {
                tops.pop();
            } else {
                tops[id.0 as usize] = Top::new(TopSpec {
                    id,
                    ashift: 9,
                    asize: 0,
                    ms_shift: 0,
                    ms_array: ObjectId(0),
                    is_log: false,
                    kind: VdevKind::Hole,
                    config: VdevConfig::hole(u64::from(id.0)),
                });
            }
        }
        // What still refers to it does not keep its devices open.
        top.set_kind(VdevKind::Hole);
        self.config.mark_dirty();
        Ok(())
    }
}

/// Waits until all space of a log device without allocation is free for good.
pub(super) async fn drain_log(stack: &Stack, id: VdevId) -> Result<()> {
    // Mounted file systems have log blocks there until their next commit: end their log chains,
    // so that new ones start elsewhere.
    for ds in stack.dsl().all() {
        if let Some(os) = ds.opened() {
            os.end_log_chain().await?;
        }
    }
    for _ in 0..TXG_CONCURRENT + TXG_DEFER + TXG_SIZE as u64 {
        if stack.alloc.in_use(id) == 0 {
            return Ok(());
        }
        stack.txg.wait_synced(base::Txg(0)).await?;
    }
    if stack.alloc.in_use(id) == 0 { Ok(()) } else { Err(log_in_use()) }
}

fn log_in_use() -> Error {
    Error::new(
        ErrorKind::Busy,
        "the log device is still in use: mount encrypted datasets to replay their logs, then try again",
    )
}
