//! Changes of the device tree: their path into a txg.
//!
//! The normal path of an administrative change (`add`, `attach`, `replace`, `detach`, `remove`):
//! 1. All checks are made. New devices get labels with txg 0, which no import takes for part of a
//!    pool.
//! 2. The change is queued; the next txg that syncs carries it out before its other work
//!    ([`Devices::take_changes`]). It repeats the checks that may have changed, creates and
//!    frees MOS objects, changes the tree ([`vdev::reshape`]) and marks the configuration dirty.
//! 3. The same txg writes the configuration, and its commit the labels of all devices in two halves
//!    around the uberblock: a power cut leaves the old tree or the new one.
//! 4. After the commit the devices that left get other labels; a failure of that is harmless, since
//!    the pool does not have their guids any more.
//!
//! Automatic changes take the same path from step 2 on: a replacement ends when the new device is
//! resilvered ([`Devices::finish_replacements`]).
//!
//! Invariants: one administrative change at a time; all changes of a txg are on disk or none; a
//! refused change has written nothing to the MOS.

mod add;
pub(crate) mod attach;
mod autotrim;
pub(crate) mod aux;
mod caches;
mod changes;
pub(crate) mod condense;
pub(crate) mod dtl;
pub(crate) mod evacuate;
mod expand;
mod faults;
mod find;
pub(crate) mod layout;
pub(crate) mod leaf_work;
pub(crate) mod objects;
mod presence;
mod props;
pub(crate) mod raidz_attach;
pub(crate) mod raidz_expand;
pub(crate) mod rebuild;
pub(crate) mod reflow;
mod reguid;
mod remove;
mod reopen;
pub(crate) mod split;
pub(crate) mod state;

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::rc::{Rc, Weak};

use base::{Error, Guid, Result, Txg};
use bdev::BlockDev;
use dmu::Tx;
use ondisk::label::{DeviceLabel, VERSION_FEATURES};
use ondisk::nvlist::NvList;
use rt::LocalBoxFuture;
use rt::sync::Permit;
use vdev::reshape::detach;
use vdev::{Condition, MirrorRole, Top, VdevKind};

use crate::commit::checkpoint::Checkpoint;
use crate::commit::config::Config;
use crate::notices::Notices;
use crate::scan::Scan;
use crate::stack::Stack;
use crate::zevent::Events;
use aux::{Aux, AuxDevices};
use changes::Changes;
use condense::Condenser;
use dtl::Dtls;
use evacuate::{Evacuator, FoundRemoval, RemovalTunables};
use find::find_vdev;
use layout::{AutoAshift, LeafMaker};
use leaf_work::LeafWorks;
use objects::free_leaf_objects;
use rebuild::Rebuilds;
use reflow::{ExpandTunables, Expander};

/// Opens devices that are known by path only: returning ones, and hot spares.
pub trait DeviceDoor {
    /// Opens the device at `path` exclusively.
    fn open<'a>(&'a self, path: &'a str) -> LocalBoxFuture<'a, Result<Rc<dyn BlockDev>>>;
}

/// The devices of an imported pool, and their changes.
pub struct Devices {
    stack: Rc<Stack>,
    config: Rc<Config>,
    events: Rc<Events>,
    notices: Rc<Notices>,
    aux: Rc<Aux>,
    checkpoint: Rc<Checkpoint>,
    scan: Rc<Scan>,
    changes: Rc<Changes>,
    dtls: Dtls,
    works: Rc<LeafWorks>,
    expander: Rc<Expander>,
    evacuator: Rc<Evacuator>,
    condenser: Rc<Condenser>,
    rebuilds: Rc<Rebuilds>,
    door: RefCell<Option<Rc<dyn DeviceDoor>>>,
    /// Errors have consequences: see `faults`.
    diagnoses: Cell<bool>,
    auto_ashift: Cell<AutoAshift>,
    /// Devices with a spare beside them that a command put into use again.
    is_back: RefCell<BTreeSet<Guid>>,
    /// Settings of new leaves, kept when the last leaf may be closed.
    maker: RefCell<Option<LeafMaker>>,
    me: Weak<Devices>,
}

/// The objects that devices report to or ask.
pub(crate) struct Around<'a> {
    pub stack: &'a Rc<Stack>,
    pub config: &'a Rc<Config>,
    pub events: &'a Rc<Events>,
    pub notices: &'a Rc<Notices>,
    pub aux: &'a Rc<Aux>,
    pub checkpoint: &'a Rc<Checkpoint>,
    pub scan: &'a Rc<Scan>,
    pub tunables: ExpandTunables,
    pub removal: RemovalTunables,
}

impl Devices {
    /// The devices of a pool that is being opened, which has that removal.
    pub(crate) fn new(around: &Around<'_>, found: FoundRemoval) -> Rc<Devices> {
        let Around { stack, config, events, notices, aux, checkpoint, scan, tunables, removal } = *around;
        let changes = Changes::new(stack);
        Rc::new_cyclic(|me| Devices {
            stack: stack.clone(),
            config: config.clone(),
            events: events.clone(),
            notices: notices.clone(),
            aux: aux.clone(),
            checkpoint: checkpoint.clone(),
            scan: scan.clone(),
            dtls: Dtls::new(stack, config),
            works: LeafWorks::new(stack, config, events, &changes),
            expander: Expander::new(&reflow::Around { stack, scan, changes: &changes, events, tunables }),
            evacuator: Evacuator::new(evacuate::Around { stack, changes: &changes, notices, tunables: removal, found }),
            condenser: Condenser::new(stack, &changes, notices),
            rebuilds: Rebuilds::new(stack, scan, &changes, events),
            changes,
            door: RefCell::default(),
            diagnoses: Cell::new(true),
            auto_ashift: Cell::default(),
            is_back: RefCell::default(),
            maker: RefCell::default(),
            me: me.clone(),
        })
    }

    /// Sets how the pool opens devices by path; its cache devices are used from then on.
    pub fn set_door(&self, door: Rc<dyn DeviceDoor>) {
        *self.door.borrow_mut() = Some(door);
        self.use_caches();
    }

    /// Spares and caches.
    pub fn aux(&self) -> AuxDevices {
        self.aux.get()
    }

    /// Whether the pool has a hot spare of that name.
    pub fn has_spare(&self, name: &str) -> bool {
        self.aux.spare_named(name).is_some()
    }

    /// Trim and initialize.
    pub fn works(&self) -> &Rc<LeafWorks> {
        &self.works
    }

    /// The expansion of a RAID-Z.
    pub fn expander(&self) -> &Rc<Expander> {
        &self.expander
    }

    /// The removal of a vdev with data.
    pub fn evacuator(&self) -> &Rc<Evacuator> {
        &self.evacuator
    }

    /// The condensing of the mappings of removed vdevs.
    pub fn condenser(&self) -> &Rc<Condenser> {
        &self.condenser
    }

    /// The sequential rebuilds.
    pub fn rebuilds(&self) -> &Rc<Rebuilds> {
        &self.rebuilds
    }

    /// The dirty time logs.
    pub(crate) fn dtls(&self) -> &Dtls {
        &self.dtls
    }

    /// How the pool opens devices by path.
    fn door(&self) -> Option<Rc<dyn DeviceDoor>> {
        self.door.borrow().clone()
    }

    /// Opens the device at a path.
    async fn open_path(&self, path: &str) -> Result<Rc<dyn BlockDev>> {
        let door = self.door().ok_or_else(|| Error::not_found(format!("'{path}' cannot be opened from here")))?;
        door.open(path).await
    }

    /// Begins an administrative change of the devices: others wait for its end.
    pub(crate) async fn begin_change(&self) -> Result<Permit> {
        let permit = self.changes.hold().await;
        self.config.check_writable()?;
        Ok(permit)
    }

    /// The vdev that a command names.
    fn find(&self, name: &str) -> Result<(Rc<Top>, Guid)> {
        find_vdev(&self.stack.tree, &self.config, name)
    }

    /// Carries out the queued changes, at the beginning of the sync of a txg.
    pub(crate) async fn take_changes(&self, tx: &Tx) -> Result<()> {
        self.check_errors();
        while let Some(change) = self.changes.next() {
            change(self, tx).await?;
        }
        self.finish_replacements(tx).await
    }

    /// Writes the new labels of devices that left the pool, after the commit.
    pub(crate) async fn relabel(&self) {
        self.changes.relabel().await;
    }

    /// The settings of new leaves.
    fn leaf_maker(&self) -> Result<LeafMaker> {
        let counts = self.stack.alloc.counts();
        let leaves = self.stack.tree.leaves();
        let Some(like) = leaves.first() else {
            let kept = self.maker.borrow().clone();
            return kept.ok_or_else(|| Error::not_found("the pool has no device"));
        };
        Ok(LeafMaker {
            rt: self.stack.rt.clone(),
            gauge: like.gauge(),
            queue: like.tunables(),
            counts,
            ashift: self.auto_ashift.get(),
        })
    }

    /// Keeps the settings of new leaves, before a leaf is closed.
    fn keep_leaf_maker(&self) {
        if let Ok(maker) = self.leaf_maker() {
            *self.maker.borrow_mut() = Some(maker);
        }
    }

    /// Removes a leaf from a mirror, replacing or spare node: from tree, configuration and objects.
    /// The device gets `label` after the commit.
    async fn remove_leaf(&self, top: &Rc<Top>, guid: Guid, label: Option<NvList>, tx: &Tx) -> Result<()> {
        let before = top.kind().conditions();
        let (shape, taken) = detach(&top.shape(), guid)?;
        // The last device of a mirror that was the top-level vdev has taken its guid.
        for (new, condition) in shape.kind.conditions() {
            let old = before.iter().find(|(_, c)| Rc::ptr_eq(c, &condition)).map(|(old, _)| *old);
            if let Some(old) = old.filter(|old| *old != new) {
                self.works.renamed(old, new);
            }
        }
        free_leaf_objects(&self.stack, &taken, tx).await?;
        // Another device may have come back meanwhile: change the current tree.
        let kind = top.kind().find(guid);
        let (shape, _) = detach(&top.shape(), guid)?;
        top.set_shape(shape);
        if let Some(kind) = kind {
            self.changes.queue_relabel(&kind, label);
        }
        self.config.mark_dirty();
        Ok(())
    }

    /// A device leaves a mirror, a replacement or its place beside another one.
    fn tell_detach(&self, top: &Top, guid: Guid, tx: &Tx) {
        let path = top.config_ref().find(guid).and_then(|c| c.path.clone()).unwrap_or_default();
        self.stack.core.log_internal("detach", format!("vdev={path}"), tx.txg());
        self.events.post_vdev("vdev_remove", guid);
    }

    /// A spare leaves the tree, and is available again.
    async fn send_home(&self, top: &Rc<Top>, spare: Guid, tx: &Tx) -> Result<()> {
        self.tell_detach(top, spare, tx);
        self.remove_leaf(top, spare, Some(spare_label(spare)), tx).await
    }

    /// Notes that a command put a device into use again: a spare that stands in for it leaves once
    /// the device is resilvered (`vdev_unspare` of OpenZFS).
    fn note_back(&self, top: &Top, guid: Guid) {
        let kind = top.kind();
        let above = kind.parent_of(guid).filter(|p| p.role() == Some(MirrorRole::Spare));
        if above.is_some_and(|p| p.children().first().and_then(VdevKind::guid) == Some(guid)) {
            self.is_back.borrow_mut().insert(guid);
        }
    }

    /// Ends replacements whose new device is resilvered, and the use of spares whose device was
    /// replaced, or is back and resilvered.
    async fn finish_replacements(&self, tx: &Tx) -> Result<()> {
        let tops = self.stack.tree.tops.borrow().clone();
        for top in tops {
            while let Some((guid, spare)) = finished_replacement(&top.kind(), &top.kind()) {
                let is_spare = self.aux.is_spare(guid);
                self.tell_detach(&top, guid, tx);
                let label = if is_spare { Some(spare_label(guid)) } else { self.config.blank_label(&top, guid) };
                // The replaced device was known as `PATH/old` during the replacement.
                restore_path(&top, guid);
                self.remove_leaf(&top, guid, label, tx).await?;
                if let Some(spare) = spare {
                    self.send_home(&top, spare, tx).await?;
                }
            }
            let back = self.is_back.borrow().clone();
            for (guid, spare) in spares_to_send_home(&top.kind(), &back) {
                self.is_back.borrow_mut().remove(&guid);
                self.send_home(&top, spare, tx).await?;
            }
        }
        Ok(())
    }
}

/// Those of the devices `is_back` that have all their data again, and the spares that stand in for
/// them.
fn spares_to_send_home(root: &VdevKind, is_back: &BTreeSet<Guid>) -> Vec<(Guid, Guid)> {
    let mut out = Vec::new();
    for back in is_back {
        let Some(above) = root.parent_of(*back).filter(|p| p.role() == Some(MirrorRole::Spare)) else { continue };
        let [first, last] = above.children() else { continue };
        let (Some(own), Some(spare)) = (first.guid(), last.guid()) else { continue };
        if own == *back && is_whole(first) && root.outage(Some(spare)).is_empty() {
            out.push((*back, spare));
        }
    }
    out
}

/// Whether everything below is in use and misses nothing.
fn is_whole(kind: &VdevKind) -> bool {
    let there = !matches!(kind, VdevKind::Absent(_));
    there && kind.conditions().iter().all(|(_, c)| c.health().is_open() && c.missing().is_empty())
}

/// The first old device of a completed replacement, and its spare, if any.
fn finished_replacement(kind: &VdevKind, root: &VdevKind) -> Option<(Guid, Option<Guid>)> {
    for child in kind.children() {
        if let Some(found) = finished_replacement(child, root) {
            return Some(found);
        }
    }
    if kind.role()? != MirrorRole::Replacing {
        return None;
    }
    let (old, new) = (kind.children().first()?, kind.children().last()?);
    let old = old.guid()?;
    if kind.children().len() < 2 || !is_whole(new) || !root.outage(Some(old)).is_empty() {
        return None;
    }
    let own = kind.guid()?;
    let above = root.parent_of(own).filter(|p| p.role() == Some(MirrorRole::Spare));
    let spare = above.and_then(|p| match p.children() {
        [first, last] if first.guid() == Some(own) && kind.children().len() == 2 => last.guid(),
        _ => None,
    });
    Some((old, spare))
}

/// Before `leaving` leaves a replacement: gives the other leaf its path back if it is known as
/// `PATH/old`.
fn restore_path(top: &Top, leaving: Guid) {
    let kind = top.kind();
    let Some(above) = kind.parent_of(leaving).filter(|p| p.role() == Some(MirrorRole::Replacing)) else { return };
    top.update_config(|c| {
        let Some(path) = c.find(leaving).and_then(|l| l.path.clone()) else { return };
        let old = format!("{path}/old");
        for child in above.children() {
            if let Some(c) = child.guid().and_then(|g| c.find_mut(g))
                && c.path.as_deref() == Some(&old)
            {
                c.path = Some(path.clone());
            }
        }
    });
}

/// A condition with all txgs up to `end` (not included) missing and dirty.
fn misses_all(end: Txg) -> Rc<Condition> {
    let condition = Rc::new(Condition::default());
    condition.miss(base::TXG_INITIAL.0, end.0);
    condition
}

/// The label of a hot spare that is not in use.
fn spare_label(guid: Guid) -> NvList {
    DeviceLabel::Spare { version: VERSION_FEATURES, guid }.to_nvlist()
}
