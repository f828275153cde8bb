//! `zpool attach`, `replace` and `detach`. [`crate::devices`] has the path of a change.
//!
//! Attach adds a device beside another one: as a further side of a mirror, or until a resilver has
//! copied everything: in a *replacing* node of the old and the new device, or a *spare* node of a
//! device and its hot spare. The dirty time log of the new device lists all txgs from the first
//! moment; a resilver writes them. Then [`Devices::finish_replacements`] ends the replacement.

use std::rc::Rc;

use base::{Error, ErrorKind, Guid, Nanos, Result, TXG_CONCURRENT, Txg};
use ondisk::feature::FeatureId;
use ondisk::label::DeviceLabel;
use ondisk::vdev_config::{VdevConfig, VdevKind as ConfigKind};
use vdev::labels::{init_labels, read_labels};
use vdev::reshape::{Shape, attach, min_asize};
use vdev::{Absent, Dspare, Health, MirrorRole, Top, VdevKind, leaf_asize};

use super::find::in_tree;
use super::objects::{create_vdev_zap, free_vdev_zap, zap_map};
use super::rebuild::check_kind;
use super::{Devices, misses_all, restore_path, spare_label};
use crate::devices::layout::{AutoAshift, DEVICE_SIZE_MIN, DevSpec, ashift_for, leaf_config};

/// Looks whether a detached device is not used any more, and the time between. One that does not
/// answer may be used for longer.
const LET_GO_TRIES: u32 = 200;
const LET_GO_PAUSE: Nanos = Nanos::from_ms(10);

/// A device to attach.
#[derive(Clone)]
pub enum NewDevice {
    /// A device that is not part of the pool.
    Device(DevSpec),
    /// One of the pool's hot spares, distributed ones included, by name.
    Spare(String),
}

/// The leaf to attach.
struct NewLeaf {
    config: VdevConfig,
    kind: NewKind,
}

enum NewKind {
    Device(DevSpec),
    Dspare(u64),
}

fn busy(why: impl Into<String>) -> Error {
    Error::new(ErrorKind::Busy, why.into())
}

impl Devices {
    /// Makes `new` a further side of the mirror of the device `target`, or makes a mirror of the
    /// two. A resilver follows. If `target` is a RAID-Z, `new` becomes a further device of it, and
    /// its expansion begins ([`super::reflow`]). `sequential`: a rebuild in the order of the space
    /// in place of the resilver ([`super::rebuild`]).
    pub async fn attach(&self, target: &str, new: DevSpec, ashift: Option<u8>, sequential: bool) -> Result<()> {
        let place = format!("cannot attach {} to {target}", new.dev.info().path);
        let _admin = self.begin_change().await?;
        let is_raidz =
            self.find(target).is_ok_and(|(top, guid)| matches!(top.kind(), VdevKind::Raidz(_)) && top.guid() == guid);
        let result = match is_raidz {
            true if sequential => Err(Error::unsupported("a raidz is not expanded sequentially (-s)")),
            true => self.expand_raidz(target, new, ashift).await,
            false => self.attach_as(target, NewDevice::Device(new), (false, sequential), ashift).await,
        };
        result.map_err(|e| e.at(place))
    }

    /// Replaces the device `target` by `new`; `target` leaves the pool once `new` is resilvered. A
    /// hot spare stays in a spare node until one of the two is detached. `sequential` as for
    /// [`Devices::attach`].
    pub async fn replace(&self, target: &str, new: NewDevice, ashift: Option<u8>, sequential: bool) -> Result<()> {
        let place = match &new {
            NewDevice::Device(d) => format!("cannot replace {target} with {}", d.dev.info().path),
            NewDevice::Spare(name) => format!("cannot replace {target} with {name}"),
        };
        let _admin = self.begin_change().await?;
        self.attach_as(target, new, (true, sequential), ashift).await.map_err(|e| e.at(place))
    }

    async fn attach_as(
        &self,
        target: &str,
        new: NewDevice,
        (replacing, sequential): (bool, bool),
        ashift: Option<u8>,
    ) -> Result<()> {
        self.checkpoint.check_none()?;
        self.evacuator.check_none()?;
        let (top, guid) = self.find(target)?;
        if !sequential {
            self.rebuilds.check_none()?;
        } else if !self.stack.features.is_enabled(FeatureId::DeviceRebuild) {
            let why = "the feature device_rebuild is not enabled: without -s it resilvers";
            return Err(Error::unsupported(why));
        } else if self.scan.is_resilvering() {
            return Err(busy("currently resilvering: 'zpool wait -t resilver' waits for the end of it"));
        } else {
            check_kind(&top)?;
        }
        let (role, new_leaf) = self.plan_attach(&top, guid, new, replacing, ashift).await?;
        let parent = self.stack.rt.new_guid();
        if let NewKind::Device(d) = &new_leaf.kind {
            let shape = attach(&top.shape(), guid, role, parent, preview(&new_leaf))?;
            let label = self.config.label_in(&top, &shape.config, new_leaf.config.guid)?;
            init_labels(&*d.dev, &label).await?;
        }
        let (maker, id) = (self.leaf_maker()?, top.id);
        let end = self
            .changes
            .make(move |devices, tx| {
                Box::pin(async move {
                    let top = match devices.stack.tree.top(id) {
                        Ok(top) if top.kind().find(guid).is_some() => top,
                        _ => return Ok(Err(Error::not_found("the device is not there any more"))),
                    };
                    let end = Txg(tx.txg().0 + TXG_CONCURRENT);
                    let condition = misses_all(end);
                    let NewLeaf { mut config, kind } = new_leaf;
                    let path = config.path.clone();
                    let node = match kind {
                        NewKind::Device(d) => {
                            let path = d.dev.info().path.clone();
                            VdevKind::Leaf(maker.leaf(config.guid, path, d.dev, condition))
                        }
                        NewKind::Dspare(spare) => VdevKind::Dspare(Rc::new(Dspare {
                            guid: config.guid,
                            path: path.clone().unwrap_or_default(),
                            spare,
                            condition,
                        })),
                    };
                    config.create_txg = top.config_ref().find(guid).and_then(|c| c.create_txg);
                    let zap = match zap_map(&devices.stack).await? {
                        Some(map) => Some(create_vdev_zap(&devices.stack.mos, &map, tx).await?.object()),
                        None => None,
                    };
                    // No awaits from here on: another device may come back at any moment, so the
                    // change applies to the current tree.
                    let shape = match attach(&top.shape(), guid, role, parent, Shape { kind: node, config }) {
                        Ok(shape) => shape,
                        Err(e) => {
                            if let Some(zap) = zap {
                                free_vdev_zap(&devices.stack, zap, tx).await?;
                            }
                            return Ok(Err(e));
                        }
                    };
                    let new_guid = attached_sibling_guid(&shape, guid, role);
                    let old_path = top.config_ref().find(guid).and_then(|c| c.path.clone()).unwrap_or_default();
                    let new_path = path.clone().unwrap_or_default();
                    let text = match role {
                        MirrorRole::Spare => format!("spare in vdev={new_path} for vdev={old_path}"),
                        _ if replacing => format!("replace vdev={new_path} for vdev={old_path}"),
                        _ => format!("attach vdev={new_path} to vdev={old_path}"),
                    };
                    devices.stack.core.log_internal("vdev attach", text, tx.txg());
                    top.set_shape(shape);
                    devices.events.post_vdev("vdev_attach", new_guid.unwrap_or(guid));
                    top.update_config(|c| {
                        if let Some(leaf) = new_guid.and_then(|g| c.find_mut(g)) {
                            leaf.zap_leaf = zap;
                        }
                        if let Some(old) = c.find_mut(guid)
                            && replacing
                            && old.path.is_some()
                            && old.path == path
                        {
                            old.path = path.as_ref().map(|p| format!("{p}/old"));
                        }
                    });
                    if replacing {
                        retire_same_path(&top, guid, path.as_deref());
                    }
                    devices.config.mark_dirty();
                    Ok(Ok(end))
                })
            })
            .await?;
        if sequential {
            self.stack.txg.wait_synced(end).await?;
            return self.rebuilds.ask(&top).await;
        }
        self.scan.resilver_from(end).await
    }

    /// Checks an attach or replace; returns the role of the new mirror node and the new leaf.
    async fn plan_attach(
        &self,
        top: &Rc<Top>,
        guid: Guid,
        new: NewDevice,
        replacing: bool,
        ashift: Option<u8>,
    ) -> Result<(MirrorRole, NewLeaf)> {
        let kind = top.kind();
        let old = kind.find(guid).filter(VdevKind::is_leaf).ok_or_else(|| {
            Error::unsupported("can only attach to mirrors and top-level disks, and replace single devices")
        })?;
        let above = kind.parent_of(guid);
        let above_role = above.as_ref().and_then(VdevKind::role);
        let new_leaf = self.new_leaf(top, new).await?;
        let is_spare = new_leaf.config.is_spare;
        let old_is_spare = self.aux.is_spare(guid);
        if is_spare && top.is_log {
            return Err(Error::unsupported("cannot replace a log with a spare"));
        }
        let role = if !replacing {
            if above.is_some() && above_role != Some(MirrorRole::Mirror) {
                return Err(Error::unsupported("can only attach to mirrors and top-level disks"));
            }
            MirrorRole::Mirror
        } else {
            let wait = "already in replacing/spare config; wait for completion or use 'zpool detach'";
            if above_role == Some(MirrorRole::Spare) && is_spare != old_is_spare {
                return Err(Error::unsupported(wait));
            }
            if above_role == Some(MirrorRole::Replacing) && is_spare {
                return Err(Error::unsupported(wait));
            }
            if is_spare { MirrorRole::Spare } else { MirrorRole::Replacing }
        };
        if let NewKind::Device(d) = &new_leaf.kind {
            check_device(top, &kind, guid, d, ashift)?;
        }
        if let VdevKind::Leaf(leaf) = &old
            && leaf.condition.health().is_open()
            && let NewKind::Device(d) = &new_leaf.kind
            && Rc::ptr_eq(&leaf.dev, &d.dev)
            && !kind.outage(Some(guid)).is_empty()
        {
            return Err(busy("the device holds data that no other one has"));
        }
        Ok((role, new_leaf))
    }

    /// The configuration of a device to attach, and the open device.
    async fn new_leaf(&self, top: &Top, new: NewDevice) -> Result<NewLeaf> {
        let name = match new {
            NewDevice::Device(d) => {
                let config = leaf_config(&self.stack.rt, &d, 0);
                return Ok(NewLeaf { config, kind: NewKind::Device(d) });
            }
            NewDevice::Spare(name) => name,
        };
        let mut config =
            self.aux.spare_named(&name).ok_or_else(|| Error::not_found(format!("no such spare: {name}")))?;
        config.is_spare = true;
        if in_tree(&self.stack.tree, config.guid) {
            return Err(busy(format!("{name} is in use already")));
        }
        if config.kind == ConfigKind::Dspare {
            let draid = matches!(top.kind(), VdevKind::Draid(_)) && config.dspare_top_guid == Some(top.guid());
            let k = config.dspare_id.filter(|_| draid);
            let k =
                k.ok_or_else(|| Error::unsupported("can only be replaced by distributed spares of the same draid"))?;
            return Ok(NewLeaf { config, kind: NewKind::Dspare(k) });
        }
        let path = config.path.clone().unwrap_or_default();
        let dev = self.open_path(&path).await?;
        let labels = read_labels(&*dev).await?;
        let label = labels.configs.iter().filter_map(|(_, c)| c.as_ref().ok());
        let label = label.filter_map(|l| DeviceLabel::from_nvlist(l).ok()).next();
        if label.is_none_or(|l| l.guid() != config.guid) {
            return Err(Error::not_found(format!("'{path}' has not the label of the spare any more")));
        }
        let is_disk = config.kind == ConfigKind::Disk;
        Ok(NewLeaf { config, kind: NewKind::Device(DevSpec { dev, is_disk }) })
    }

    /// Detaches a device from a mirror, a replacement or a spare node.
    pub async fn detach(&self, name: &str) -> Result<()> {
        let place = format!("cannot detach {name}");
        let _admin = self.begin_change().await?;
        self.detach_named(name).await.map_err(|e| e.at(place))
    }

    async fn detach_named(&self, name: &str) -> Result<()> {
        self.checkpoint.check_none()?;
        let (top, guid) = self.find(name)?;
        check_detach(&top.kind(), guid)?;
        let id = top.id;
        let leaf = match top.kind().find(guid) {
            Some(VdevKind::Leaf(leaf)) => Some(Rc::downgrade(&leaf)),
            _ => None,
        };
        self.changes
            .make(move |devices, tx| {
                Box::pin(async move {
                    let top = devices.stack.tree.top(id)?;
                    let kind = top.kind();
                    if let Err(e) = check_detach(&kind, guid) {
                        return Ok(Err(e));
                    }
                    let above = kind.parent_of(guid).expect("it was checked");
                    devices.tell_detach(&top, guid, tx);
                    restore_path(&top, guid);
                    // The original device leaves: its spare replaces it permanently.
                    let last = above.children().last().and_then(VdevKind::guid);
                    let first = above.children().first().and_then(VdevKind::guid) == Some(guid);
                    let settles = above.role() == Some(MirrorRole::Spare) && first;
                    if let Some(spare) = last.filter(|g| settles && devices.aux.is_spare(*g)) {
                        let is_dspare = matches!(kind.find(spare), Some(VdevKind::Dspare(_)));
                        if !is_dspare {
                            devices.keep_spare(&top, spare, tx).await?;
                        }
                    }
                    let label = match devices.aux.is_spare(guid) {
                        true => Some(spare_label(guid)),
                        false => devices.config.blank_label(&top, guid),
                    };
                    devices.remove_leaf(&top, guid, label, tx).await?;
                    Ok(Ok(()))
                })
            })
            .await?;
        self.rebuilds.end_if_needless(&top).await;
        // Operations in flight hold the device: it is free for others after them.
        let mut tries = 0;
        while leaf.as_ref().is_some_and(|l| l.strong_count() > 0) && tries < LET_GO_TRIES {
            tries += 1;
            self.stack.rt.sleep(LET_GO_PAUSE).await;
        }
        Ok(())
    }

    /// Makes a spare in use an ordinary device.
    async fn keep_spare(&self, top: &Top, guid: Guid, tx: &dmu::Tx) -> Result<()> {
        let mut aux = self.aux.get();
        aux.spares.retain(|s| s.guid != guid);
        self.aux.change(&self.stack, aux, tx).await?;
        top.update_config(|c| {
            if let Some(leaf) = c.find_mut(guid) {
                (leaf.is_spare, leaf.unspare) = (false, false);
            }
        });
        Ok(())
    }
}

/// Checks whether a device is large enough to stand beside the leaf `guid`, and has no larger
/// sectors than its vdev.
pub(super) fn check_device(top: &Top, kind: &VdevKind, guid: Guid, d: &DevSpec, ashift: Option<u8>) -> Result<()> {
    let info = d.dev.info();
    let have = leaf_asize(d.dev.size());
    let want = min_asize(kind, guid, top.asize.get(), top.ms_shift.get());
    if d.dev.size() < DEVICE_SIZE_MIN || have < want {
        return Err(Error::new(ErrorKind::Range, "device is too small"));
    }
    let own = match ashift {
        Some(_) => ashift_for(&*d.dev, ashift, AutoAshift::default())?,
        None => info.logical_sector.max(512).ilog2() as u8,
    };
    if own > top.ashift {
        return Err(Error::invalid(
            "new device has a different optimal sector size; use the option '-o ashift=N' to override the optimal size",
        ));
    }
    Ok(())
}

/// The shape of the leaf to attach, before its device is in use.
fn preview(new_leaf: &NewLeaf) -> Shape {
    preview_of(&new_leaf.config)
}

/// The shape of a leaf with that configuration, before its device is in use.
pub(super) fn preview_of(config: &VdevConfig) -> Shape {
    let config = config.clone();
    let path = config.path.clone().unwrap_or_default();
    let kind = VdevKind::Absent(Rc::new(Absent { guid: config.guid, path, condition: Rc::default() }));
    Shape { kind, config }
}

/// The guid of the device attached beside `guid`.
fn attached_sibling_guid(shape: &Shape, guid: Guid, role: MirrorRole) -> Option<Guid> {
    let above = shape.kind.parent_of(guid).filter(|p| p.role() == Some(role))?;
    above.children().last()?.guid()
}

/// Makes the old leaf absent if its replacement has the same path.
fn retire_same_path(top: &Top, guid: Guid, path: Option<&str>) {
    let kind = top.kind();
    let Some(VdevKind::Leaf(leaf)) = kind.find(guid) else { return };
    if path != Some(leaf.path().as_str()) {
        return;
    }
    leaf.condition.set_health(Health::Unavail);
    let path = format!("{}/old", leaf.path());
    let condition = leaf.condition.clone();
    let gone = move |_: &VdevKind| {
        VdevKind::Absent(Rc::new(Absent { guid, path: path.clone(), condition: condition.clone() }))
    };
    top.set_kind(kind.replace(guid, &gone));
}

/// Checks whether a leaf can be detached.
fn check_detach(kind: &VdevKind, guid: Guid) -> Result<()> {
    let only = || Error::unsupported("only applicable to mirror and replacing vdevs");
    kind.find(guid).filter(VdevKind::is_leaf).ok_or_else(only)?;
    kind.parent_of(guid).and_then(|p| p.role()).ok_or_else(only)?;
    if !kind.outage(Some(guid)).is_empty() {
        return Err(busy("no valid replicas"));
    }
    Ok(())
}
