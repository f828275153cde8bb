//! Properties of vdevs (format page 17 section 4): named values in the ZAP of a vdev, which is that
//! of the root, of a top-level vdev (also of one that is a single device) or of a device. What the
//! names mean is decided above. `allocating` is a key of the configuration besides: a top-level
//! vdev with `allocating=off` gets no new blocks, and its space does not count.

use std::collections::BTreeMap;
use std::rc::Rc;

use base::{Error, ErrorKind, Guid, ObjectId, Result};
use dmu::zap::{self, ZapValue};
use vdev::{Absent, Top, VdevKind};

use super::Devices;

impl Devices {
    /// The vdev that a command names; `root` and `root-0` are the root.
    pub fn guid_of(&self, name: &str) -> Result<Guid> {
        match name {
            "root" | "root-0" => Ok(self.stack.tree.root_guid()),
            name => Ok(self.find(name)?.1),
        }
    }

    fn zap_of(&self, vdev: Guid) -> Result<ObjectId> {
        if vdev == self.stack.tree.root_guid() {
            let why =
                "the pool keeps no properties of its root vdev: 'zpool set feature@vdev_zaps_v2=enabled' changes that";
            return self.config.root_zap().ok_or_else(|| Error::unsupported(why));
        }
        let tops = self.stack.tree.tops.borrow();
        let own = tops.iter().find_map(|top| {
            let config = top.config_ref();
            let node = config.find(vdev)?;
            Some(if top.guid() == vdev { config.zap_top } else { node.zap_leaf })
        });
        own.flatten().filter(|o| o.0 != 0).ok_or_else(|| Error::unsupported("this vdev has no properties of its own"))
    }

    /// All values in the ZAP of a vdev, the pool's own among them; none if it has no ZAP.
    pub async fn vdev_values(&self, vdev: Guid) -> Result<BTreeMap<String, ZapValue>> {
        let Ok(object) = self.zap_of(vdev) else { return Ok(BTreeMap::new()) };
        let entries = zap::list(&self.stack.mos.hold(object).await?).await?;
        Ok(entries.into_iter().map(|e| (String::from_utf8_lossy(&e.name).into_owned(), e.value)).collect())
    }

    /// Stores a value of a vdev, or removes it. Error: `Unsupported` if it has no ZAP.
    pub async fn set_vdev_value(&self, vdev: Guid, name: &str, value: Option<ZapValue>) -> Result<()> {
        let _permit = self.begin_change().await?;
        let name = name.as_bytes().to_vec();
        let change = self.changes.make(move |devices, tx| {
            Box::pin(async move {
                let object = match devices.zap_of(vdev) {
                    Ok(object) => object,
                    Err(e) => return Ok(Err(e)),
                };
                let dn = devices.stack.mos.hold(object).await?;
                match value {
                    Some(value) => zap::update(&dn, &name, &value, tx).await?,
                    None if zap::lookup(&dn, &name).await?.is_some() => zap::remove(&dn, &name, tx).await?,
                    None => {}
                }
                Ok(Ok(()))
            })
        });
        change.await
    }

    /// Gives a device another path, in the configuration and in messages; it stays in use as it is.
    /// Error: `Unsupported` for a vdev that is no device.
    pub async fn set_path(&self, vdev: Guid, path: &str) -> Result<()> {
        let _permit = self.begin_change().await?;
        let path = path.to_string();
        let change = self.changes.make(move |devices, tx| {
            Box::pin(async move {
                let tops = devices.stack.tree.tops.borrow().clone();
                let is_leaf = |top: &&Rc<Top>| top.kind().find(vdev).is_some_and(|k| k.children().is_empty());
                let Some(top) = tops.iter().find(is_leaf) else {
                    return Ok(Err(Error::unsupported("only a device has a 'path'")));
                };
                let kind = top.kind();
                match kind.find(vdev) {
                    Some(VdevKind::Leaf(leaf)) => leaf.set_path(&path),
                    Some(VdevKind::Absent(absent)) => {
                        let (path, condition) = (path.clone(), absent.condition.clone());
                        top.set_kind(kind.replace(vdev, &move |_| {
                            VdevKind::Absent(Rc::new(Absent {
                                guid: vdev,
                                path: path.clone(),
                                condition: condition.clone(),
                            }))
                        }));
                    }
                    _ => return Ok(Err(Error::unsupported("a distributed spare has no 'path' to set"))),
                }
                let text = format!("{} vdev {} path={path}", devices.config.name(), vdev.0);
                top.update_config(|c| {
                    if let Some(leaf) = c.find_mut(vdev) {
                        leaf.path = Some(path);
                    }
                });
                devices.config.mark_dirty();
                devices.stack.core.log_internal("vdev set", text, tx.txg());
                Ok(Ok(()))
            })
        });
        change.await
    }

    /// Whether new blocks go to a top-level vdev; none of other vdevs.
    pub fn allocating(&self, vdev: Guid) -> Option<bool> {
        let tops = self.stack.tree.tops.borrow();
        tops.iter().find(|t| t.guid() == vdev).map(|t| !t.config_ref().non_allocating)
    }

    /// Sets whether new blocks go to a top-level vdev (format page 23 section 6). Errors: `Invalid`
    /// for other vdevs, logs and the last one of a class, `NoSpace` if the others have too little
    /// room.
    pub async fn set_allocating(&self, vdev: Guid, on: bool) -> Result<()> {
        let _permit = self.begin_change().await?;
        let tops = self.stack.tree.tops.borrow().clone();
        let top = tops.iter().find(|t| t.guid() == vdev && t.is_concrete() && !t.is_log);
        let top = top.ok_or_else(|| Error::invalid("only a top-level vdev that is no log has 'allocating'"))?;
        if self.allocating(vdev) == Some(on) {
            return Ok(());
        }
        if top.config_ref().removing {
            return Err(Error::new(ErrorKind::Busy, "the vdev is being removed: 'zpool remove -s' cancels that"));
        }
        let spaces = self.stack.alloc.top_spaces();
        let id = top.id;
        let own = spaces.iter().find(|s| s.vdev == id).map_or((None, 0), |s| (Some(s.class), s.total));
        let mut others = tops.iter().filter(|t| t.id != id && !t.config_ref().non_allocating);
        let of_class = |t: &Rc<Top>| spaces.iter().any(|s| s.vdev == t.id && Some(s.class) == own.0);
        if !on && !others.any(of_class) {
            return Err(Error::invalid("it is the last vdev of its class that takes new blocks"));
        }
        // As much as before a removal: room for all of it (format page 23 section 1).
        if !on && self.stack.dsl().root().available() < own.1 {
            let why = "out of space: the other vdevs have less room than this one has in all";
            return Err(Error::new(ErrorKind::NoSpace, why));
        }
        let change = self.changes.make(move |devices, tx| {
            Box::pin(async move {
                let top = devices.stack.tree.top(id)?;
                if top.guid() != vdev {
                    return Ok(Err(Error::not_found("the vdev is no longer there")));
                }
                if let Ok(object) = devices.zap_of(vdev) {
                    zap::update_u64(&devices.stack.mos.hold(object).await?, b"allocating", on.into(), tx).await?;
                }
                top.update_config(|c| c.non_allocating = !on);
                devices.stack.alloc.set_passive(id, !on);
                devices.config.mark_dirty();
                let text = format!("{} vdev {id} allocating={}", devices.config.name(), if on { "on" } else { "off" });
                devices.stack.core.log_internal("vdev set", text, tx.txg());
                Ok(Ok(()))
            })
        });
        change.await
    }
}
