//! `zpool split`, the part of the pool that is split: one leaf of each mirror leaves, and becomes a
//! pool of its own (format page 23 section 10).
//!
//! 1. One txg takes the leaves offline, and notes them in the configuration (`splitcfg`). From then
//!    on nothing is written to them: their state is that of the txg before.
//! 2. That state is opened under another name and guid, and written (module `open::split`). Its
//!    first uberblock makes the leaves a pool.
//! 3. One txg takes the leaves out of the mirrors.
//!
//! After a power cut the import looks for the leaves ([`Devices::settle_split`]): those that are
//! still the pool's go online again, and if none is, the split is completed.

use std::rc::Rc;

use base::{Error, ErrorKind, Guid, Nanos, Result, Txg, VdevId};
use bdev::BlockDev;
use dsl::Dataset;
use metaslab::ClassKind;
use ondisk::blkptr::Blkptr;
use ondisk::label::SplitConfig;
use ondisk::vdev_config::VdevConfig;
use ondisk::zil::ZilHeader;
use vdev::labels::init_labels;
use vdev::{Health, Leaf, MirrorRole, Top, VdevKind};

use super::Devices;
use super::objects::{free_leaf_objects, free_top_objects, space_maps_of};
use crate::devices::aux::AuxDevices;
use crate::devices::layout::Bias;

/// Time between two looks at the devices that are to become idle.
const IDLE_PAUSE: Nanos = Nanos::from_ms(1);

/// A leaf that a split takes.
#[derive(Clone, Debug)]
pub struct SplitLeaf {
    /// Its top-level vdev, a mirror.
    pub top: VdevId,
    /// Its guid.
    pub guid: Guid,
    /// Its path, as the configuration has it.
    pub path: String,
    /// The purpose of its mirror.
    pub bias: Bias,
}

/// Blocks of intent logs that are given up, and the datasets whose logs are empty then.
type Logs = (Vec<Blkptr>, Vec<Rc<Dataset>>);

/// A split that has begun: the leaves are offline.
pub(crate) struct Begun {
    pub leaves: Vec<SplitLeaf>,
    /// Their devices.
    pub devices: Vec<(Rc<dyn BlockDev>, Guid)>,
    /// The top-level vdevs of the new pool.
    pub tops: Vec<VdevConfig>,
    /// Those of the pool that is split, as they were.
    pub old_tops: Vec<VdevConfig>,
    /// The last txg on the leaves.
    pub at: Txg,
}

impl Devices {
    /// The leaves that a split takes: the devices `named`, at most one of each mirror, and of every
    /// other mirror the last.
    pub fn choose_split(&self, named: &[String]) -> Result<Vec<SplitLeaf>> {
        let found = named.iter().map(|name| self.find(name).map(|(_, guid)| guid));
        let mut wanted = found.collect::<Result<Vec<Guid>>>()?;
        let classes = self.stack.alloc.top_spaces();
        let mut out = Vec::new();
        for top in self.stack.tree.tops.borrow().iter().filter(|t| !leaves_hole(t) && !t.is_indirect()) {
            if top.kind().role() != Some(MirrorRole::Mirror) {
                return Err(Error::invalid("Source pool must be composed only of mirrors"));
            }
            let config = top.config();
            let at = wanted.iter().position(|guid| config.children.iter().any(|c| c.guid == *guid));
            let guid = at.map(|at| wanted.swap_remove(at)).or(config.children.last().map(|c| c.guid));
            let leaf = guid.and_then(|guid| config.children.iter().find(|c| c.guid == guid));
            let leaf = leaf.ok_or_else(|| Error::corrupt(format!("mirror {} has no device", top.id)))?;
            let bias = match classes.iter().find(|s| s.vdev == top.id).map(|s| s.class) {
                Some(ClassKind::Special) => Bias::Special,
                Some(ClassKind::Dedup) => Bias::Dedup,
                _ => Bias::Normal,
            };
            out.push(SplitLeaf { top: top.id, guid: leaf.guid, path: leaf.path.clone().unwrap_or_default(), bias });
        }
        match wanted.is_empty() {
            true => Ok(out),
            false => Err(Error::invalid("Device list must include at most one disk from each mirror")),
        }
    }

    /// The leaf of the tree, if it can leave its mirror now.
    fn leaf_to_split(&self, leaf: &SplitLeaf) -> Result<(Rc<Top>, Rc<Leaf>)> {
        let SplitLeaf { guid, path, .. } = leaf;
        let top = self.stack.tree.top(leaf.top)?;
        let kind = top.kind();
        let in_mirror = kind.parent_of(*guid).is_some_and(|p| p.role() == Some(MirrorRole::Mirror));
        let found = match kind.find(*guid) {
            Some(VdevKind::Leaf(found)) if in_mirror && found.condition.health() == Health::Online => found,
            _ => {
                let why = format!("'{path}' is not in use by itself: name another disk of its mirror");
                return Err(Error::invalid(why));
            }
        };
        if !kind.outage(Some(*guid)).is_empty() {
            return Err(Error::new(ErrorKind::Busy, format!("no valid replicas without '{path}'")));
        }
        if !found.condition.missing().is_empty() || found.condition.has_failed_write() {
            let why = format!("'{path}' is being resilvered: 'zpool wait -t resilver' waits for its end");
            return Err(Error::new(ErrorKind::Busy, why));
        }
        Ok((top, found))
    }

    /// Takes the leaves offline with the next txg, and waits until nothing is under way at them.
    /// The caller holds the lock of changes.
    pub(crate) async fn begin_split(&self, leaves: Vec<SplitLeaf>) -> Result<Begun> {
        self.checkpoint.check_none()?;
        self.evacuator.check_none()?;
        for leaf in &leaves {
            self.leaf_to_split(leaf)?;
        }
        // What was written until now is in the new pool, too.
        self.stack.sync().await?;
        let begun = self
            .changes
            .make(move |devices, _| {
                Box::pin(async move {
                    if let Err(e) = devices.checkpoint.check_none() {
                        return Ok(Err(e));
                    }
                    let found: Result<Vec<_>> = leaves.iter().map(|leaf| devices.leaf_to_split(leaf)).collect();
                    let found = match found {
                        Ok(found) => found,
                        Err(e) => return Ok(Err(e)),
                    };
                    let old_tops: Vec<VdevConfig> =
                        devices.stack.tree.tops.borrow().iter().map(|t| t.config()).collect();
                    let tops = new_tops(&devices.stack.tree.tops.borrow(), &leaves);
                    let in_place =
                        |top: &VdevConfig| leaves.iter().find(|l| u64::from(l.top.0) == top.id).map(|l| l.guid);
                    let guid_list = tops.iter().map(|top| in_place(top).unwrap_or_default()).collect();
                    let mut devs = Vec::new();
                    for (top, leaf) in &found {
                        devices.change_health(&leaf.condition, Health::Offline);
                        set_offline(top, leaf.guid(), true);
                        devs.push((leaf.dev.clone(), leaf.guid()));
                    }
                    devices.config.update(|c| c.split = Some(SplitConfig { guid_list, split_guid: None }));
                    devices.config.mark_dirty();
                    let at = devices.stack.tree.committed.get();
                    Ok(Ok(Begun { leaves, devices: devs, tops, old_tops, at }))
                })
            })
            .await?;
        while begun.leaves.iter().any(|leaf| self.is_busy(leaf)) {
            self.stack.rt.sleep(IDLE_PAUSE).await;
        }
        Ok(begun)
    }

    /// Whether operations on a leaf are under way.
    fn is_busy(&self, leaf: &SplitLeaf) -> bool {
        let Ok(top) = self.stack.tree.top(leaf.top) else { return false };
        let load = match top.kind().find(leaf.guid) {
            Some(VdevKind::Leaf(found)) => found.load(),
            _ => 0,
        };
        load > 0 || self.works.is_running(leaf.guid)
    }

    /// Gives a split up: the leaves are in use again, and get what they missed. `written`: the new
    /// pool may have written to them.
    pub(crate) async fn undo_split(&self, begun: &Begun, written: bool) -> Result<()> {
        for leaf in &begun.leaves {
            let top = self.stack.tree.top(leaf.top)?;
            let Some(VdevKind::Leaf(found)) = top.kind().find(leaf.guid) else { continue };
            if written {
                // No uberblock of the new pool may stay. A device that cannot be written stays
                // offline.
                let Some(label) = self.config.blank_label(&top, leaf.guid) else { continue };
                if init_labels(&*found.dev, &label).await.is_err() {
                    continue;
                }
            }
            self.change_health(&found.condition, Health::Online);
            set_offline(&top, leaf.guid, false);
        }
        self.config.update(|c| c.split = None);
        self.config.mark_dirty();
        self.stack.sync().await?;
        self.scan.request_resilver();
        Ok(())
    }

    /// Takes the leaves out of their mirrors: they are another pool's.
    pub(crate) async fn finish_split(&self, leaves: Vec<SplitLeaf>) -> Result<()> {
        let gone: Vec<(VdevId, Guid)> = leaves.into_iter().map(|leaf| (leaf.top, leaf.guid)).collect();
        self.changes.make(move |devices, tx| Box::pin(async move { Ok(Ok(devices.drop_split(gone, tx).await?)) })).await
    }

    /// Takes leaves that are another pool's out of the tree.
    async fn drop_split(&self, leaves: Vec<(VdevId, Guid)>, tx: &dmu::Tx) -> Result<()> {
        for (id, guid) in leaves {
            let top = self.stack.tree.top(id)?;
            let path = top.config_ref().find(guid).and_then(|c| c.path.clone()).unwrap_or_default();
            self.stack.core.log_internal("detach", format!("vdev={path}"), tx.txg());
            self.remove_leaf(&top, guid, None, tx).await?;
        }
        self.config.update(|c| c.split = None);
        self.config.mark_dirty();
        Ok(())
    }

    /// At the import, before the first txg: ends a split that a power cut interrupted, and forgets
    /// one that made this pool.
    pub(crate) fn settle_split(&self) {
        let mut split = None;
        self.config.update(|c| split = c.split.take());
        let Some(split) = split else { return };
        let mut there = false;
        let mut leaves = Vec::new();
        for top in self.stack.tree.tops.borrow().iter().filter(|t| t.kind().role() == Some(MirrorRole::Mirror)) {
            for (guid, condition) in top.kind().conditions() {
                if !split.guid_list.contains(&guid) {
                    continue;
                }
                let found = matches!(top.kind().find(guid), Some(VdevKind::Leaf(_)));
                there |= found;
                condition.set_health(if found { Health::Online } else { Health::Unavail });
                set_offline(top, guid, false);
                leaves.push((top.id, guid));
            }
        }
        if !there && !leaves.is_empty() {
            self.changes.queue(move |devices, tx| Box::pin(async move { devices.drop_split(leaves, tx).await }));
        }
    }

    /// In the first txg of a new pool: frees the objects of what it does not have of `old_tops` and
    /// the blocks of logs, and forgets spares and caches.
    async fn forget_others(&self, old_tops: &[VdevConfig], logs: Logs, tx: &dmu::Tx) -> Result<()> {
        let (blocks, emptied) = logs;
        for bp in &blocks {
            self.stack.zio().free_gang(bp, tx.txg()).await?;
        }
        for ds in emptied {
            ds.set_zil_header(ZilHeader::default(), tx.txg()).await?;
        }
        let own = self.config.full().vdev_tree;
        for top in old_tops {
            let place = own.children.get(top.id as usize).filter(|c| !c.is_hole);
            if place.is_none() && !top.is_hole {
                let maps = space_maps_of(&self.stack, top).await?;
                free_top_objects(&self.stack, top, maps, tx).await?;
                continue;
            }
            for leaf in top.leaves().filter(|leaf| own.find(leaf.guid).is_none()) {
                free_leaf_objects(&self.stack, leaf, tx).await?;
            }
        }
        let aux = self.aux.get();
        if !aux.spares.is_empty() || !aux.caches.is_empty() {
            self.aux.change(&self.stack, AuxDevices::default(), tx).await?;
        }
        Ok(())
    }

    /// Queues [`Devices::forget_others`] for the first txg.
    pub(crate) fn queue_forget_others(&self, old_tops: Vec<VdevConfig>, logs: Logs) {
        self.changes
            .queue(move |devices, tx| Box::pin(async move { devices.forget_others(&old_tops, logs, tx).await }));
    }
}

/// Whether a split leaves a hole in the place of a vdev: of a hole, and of a log.
fn leaves_hole(top: &Top) -> bool {
    top.is_log || top.is_hole()
}

fn set_offline(top: &Top, guid: Guid, offline: bool) {
    top.update_config(|c| {
        if let Some(leaf) = c.find_mut(guid) {
            leaf.offline = offline;
        }
    });
}

/// The top-level vdevs of the new pool: the leaves in place of their mirrors, without what is only
/// logs and holes at the end.
fn new_tops(tops: &[Rc<Top>], leaves: &[SplitLeaf]) -> Vec<VdevConfig> {
    let mut out: Vec<VdevConfig> = tops
        .iter()
        .map(|top| {
            let config = top.config();
            let leaf = leaves.iter().find(|l| l.top == top.id).and_then(|l| config.find(l.guid));
            match leaf {
                _ if leaves_hole(top) => VdevConfig::hole(u64::from(top.id.0)),
                None => config,
                Some(leaf) => VdevConfig {
                    id: config.id,
                    metaslab_array: config.metaslab_array,
                    metaslab_shift: config.metaslab_shift,
                    ashift: config.ashift,
                    asize: config.asize,
                    min_alloc: config.min_alloc,
                    non_allocating: config.non_allocating,
                    alloc_bias: config.alloc_bias.clone(),
                    expansion_time: config.expansion_time,
                    zap_top: config.zap_top,
                    dtl: None,
                    ..leaf.clone()
                },
            }
        })
        .collect();
    while out.last().is_some_and(|last| last.is_hole) {
        out.pop();
    }
    out
}
