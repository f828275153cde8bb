//! `zpool remove`: spares, caches and log devices. [`crate::devices`] has the path of a change.
//!
//! A log device leaves a *hole* at its id, so that the ids of others stay; the last vdev leaves
//! none. Before that its allocation is disabled, and the removal waits for its space to be freed.

use std::rc::Rc;

use base::{Error, ErrorKind, ObjectId, Result, ResultExt, TXG_CONCURRENT, TXG_DEFER, TXG_SIZE, VdevId};
use dmu::{Tx, zap};
use ondisk::vdev_config::{VdevConfig, VdevKind as ConfigKind};
use vdev::{Top, TopSpec, VdevKind};

use crate::devices::attach::matches_name;
use crate::pool::Pool;

/// Entries of a top-level vdev's ZAP that name objects of the vdev.
const OWN_MAPS: [&[u8]; 1] = [b"com.delphix:pool_checkpoint_sm"];
const OWN_ARRAYS: [&[u8]; 1] = [b"com.delphix:ms_unflushed_phys_txgs"];

impl Pool {
    /// Removes a spare that is not in use, a cache, or a log device.
    pub async fn remove_device(&self, name: &str) -> Result<()> {
        let place = format!("cannot remove {name}");
        let _admin = self.begin_device_change().await?;
        self.remove_named(name).await.map_err(|e| e.at(place))
    }

    async fn remove_named(&self, name: &str) -> Result<()> {
        let aux = self.aux();
        if let Some(spare) = aux.spares.iter().find(|c| matches_name(c, name)) {
            if spare.kind == ConfigKind::Dspare {
                return Err(Error::unsupported("distributed spares belong to their draid"));
            }
            if self.in_tree(spare.guid) {
                return Err(Error::new(ErrorKind::Busy, "the spare is in use: detach it first"));
            }
            return self.remove_aux(spare.clone()).await;
        }
        if let Some(cache) = aux.caches.iter().find(|c| matches_name(c, name)) {
            return self.remove_aux(cache.clone()).await;
        }
        let (top, guid) = self.find_vdev(name)?;
        if !top.is_log {
            let why = "only inactive hot spares, caches and log devices can be removed: weir cannot remove a top-level vdev with data yet";
            return Err(Error::unsupported(why));
        }
        if guid != top.guid() {
            return Err(Error::invalid("it is part of a mirror: detach it, or remove the mirror"));
        }
        self.remove_log(&top).await
    }

    async fn remove_aux(&self, device: VdevConfig) -> Result<()> {
        let guid = device.guid;
        self.change_devices(move |pool, tx| {
            Box::pin(async move {
                if pool.in_tree(guid) {
                    return Ok(Err(Error::new(ErrorKind::Busy, "the spare is in use: detach it first")));
                }
                let mut aux = pool.aux.borrow().clone();
                aux.spares.retain(|c| c.guid != guid);
                aux.caches.retain(|c| c.guid != guid);
                aux.write(&pool.mos, &pool.directory, tx).await?;
                *pool.aux.borrow_mut() = aux;
                Ok(Ok(()))
            })
        })
        .await?;
        Ok(())
    }

    async fn remove_log(&self, top: &Rc<Top>) -> Result<()> {
        let id = top.id;
        self.alloc.set_passive(id, true);
        let emptied = self.drain_log(id).await;
        let removed = match emptied {
            Ok(()) => {
                self.change_devices(move |pool, tx| {
                    Box::pin(async move {
                        if pool.alloc.in_use(id) > 0 {
                            return Ok(Err(log_in_use()));
                        }
                        let paths: Vec<String> = pool.tree.top(id)?.leaves().iter().map(|l| l.path.clone()).collect();
                        let text = format!("{} vdev {id} (log) {}", pool.name(), paths.join(" "));
                        pool.core.log_internal("vdev remove", text, tx.txg());
                        pool.post_vdev("vdev_remove_dev", pool.tree.top(id)?.guid());
                        pool.remove_top(id, tx).await?;
                        Ok(Ok(()))
                    })
                })
                .await
            }
            Err(e) => Err(e),
        };
        if removed.is_err() && self.txg.ended().is_none() {
            self.alloc.set_passive(id, false);
        }
        removed
    }

    /// Waits until all space of a log device without allocation is free for good.
    async fn drain_log(&self, id: VdevId) -> Result<()> {
        // Mounted file systems have log blocks there until their next commit: end their log chains,
        // so that new ones start elsewhere.
        for ds in self.dsl().all() {
            if let Some(os) = ds.opened() {
                os.end_log_chain().await?;
            }
        }
        for _ in 0..TXG_CONCURRENT + TXG_DEFER + TXG_SIZE as u64 {
            if self.alloc.in_use(id) == 0 {
                return Ok(());
            }
            self.txg.wait_synced(base::Txg(0)).await?;
        }
        if self.alloc.in_use(id) == 0 { Ok(()) } else { Err(log_in_use()) }
    }

    /// Removes an empty top-level vdev: its objects, its space, its place in the tree.
    async fn remove_top(&self, id: VdevId, tx: &Tx) -> Result<()> {
        let top = self.tree.top(id)?;
        let config = top.config();
        let place = || format!("top-level vdev {id}");
        for leaf in top.leaves() {
            self.queue_relabel(&VdevKind::Leaf(leaf.clone()), self.blank_label(&top, leaf.guid()));
        }
        for object in self.alloc.space_maps(id) {
            self.free_space_map(object, tx).await.at(place)?;
        }
        if config.metaslab_array.is_some_and(|o| o.0 != 0) {
            self.mos.free(config.metaslab_array.unwrap_or_default(), tx).await.at(place)?;
        }
        for leaf in config.leaves() {
            self.free_leaf_objects(leaf, tx).await.at(place)?;
        }
        if let Some(object) = config.zap_top.filter(|o| o.0 != 0) {
            let dn = self.mos.hold(object).await.at(place)?;
            for key in OWN_MAPS {
                if let Some(map) = zap::lookup_u64(&dn, key).await? {
                    self.free_space_map(ObjectId(map), tx).await.at(place)?;
                }
            }
            for key in OWN_ARRAYS {
                if let Some(array) = zap::lookup_u64(&dn, key).await? {
                    self.mos.free(ObjectId(array), tx).await.at(place)?;
                }
            }
            self.free_vdev_zap(object, tx).await.at(place)?;
        }
        self.alloc.remove_top(id);
        self.store.forget(id);
        {
            let mut tops = self.tree.tops.borrow_mut();
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
        self.dirty_config();
        Ok(())
    }
}

fn log_in_use() -> Error {
    Error::new(
        ErrorKind::Busy,
        "the log device is still in use: mount encrypted datasets to replay their logs, then try again",
    )
}
