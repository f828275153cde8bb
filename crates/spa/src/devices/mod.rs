//! Changes of the device tree: their path into a txg.
//!
//! The normal path of an administrative change (`add`, `attach`, `replace`, `detach`, `remove`):
//! 1. All checks are made. New devices get labels with txg 0, which no import takes for part of a
//!    pool.
//! 2. The change is queued; the next txg that syncs carries it out before its other work
//!    ([`Pool::take_device_changes`]). It repeats the checks that may have changed, creates and
//!    frees MOS objects, changes the tree ([`vdev::reshape`]) and marks the configuration dirty.
//! 3. The same txg writes the configuration, and its commit the labels of all devices in two halves
//!    around the uberblock: a power cut leaves the old tree or the new one.
//! 4. After the commit the devices that left get other labels; a failure of that is harmless, since
//!    the pool does not have their guids any more.
//!
//! Automatic changes take the same path from step 2 on: a replacement ends when the new device is
//! resilvered ([`Pool::finish_replacements`]).
//!
//! Invariants: one administrative change at a time; all changes of a txg are on disk or none; a
//! refused change has written nothing to the MOS.

mod add;
pub(crate) mod attach;
pub(crate) mod aux;
pub(crate) mod dtl;
mod expand;
pub(crate) mod layout;
pub(crate) mod leaf_work;
mod presence;
mod remove;
mod state;

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::{Rc, Weak};

use base::{Error, ErrorKind, Guid, ObjectId, Result, Txg};
use bdev::BlockDev;
use dmu::{Dnode, ObjSpec, Objset, Tx, zap};
use ondisk::feature::FeatureId;
use ondisk::label::{DeviceLabel, VERSION_FEATURES};
use ondisk::nvlist::NvList;
use ondisk::object_type::ObjectType;
use ondisk::space_map::SPACE_MAP_SIZE;
use ondisk::vdev_config::VdevConfig;
use rt::LocalBoxFuture;
use rt::sync::{Permit, Semaphore, oneshot};
use vdev::labels::init_labels;
use vdev::reshape::detach;
use vdev::{Condition, MirrorRole, Top, VdevKind};

use crate::devices::layout::LeafMaker;
use crate::pool::{BIAS_KEY, Pool};

/// Entry of the MOS directory: the list of all ZAPs of vdevs.
pub(crate) const ZAP_MAP: &[u8] = b"com.delphix:vdev_zap_map";

/// Opens devices that are known by path only: returning ones, and hot spares.
pub trait DeviceDoor {
    /// Opens the device at `path` exclusively.
    fn open<'a>(&'a self, path: &'a str) -> LocalBoxFuture<'a, Result<Rc<dyn BlockDev>>>;
}

/// The result of a change: an outer error means that the MOS is half changed, and ends the txg; an
/// inner one that nothing was changed.
type Outcome<T> = Result<std::result::Result<T, Error>>;
type Change = Box<dyn for<'a> FnOnce(&'a Pool, &'a Tx) -> LocalBoxFuture<'a, Result<()>>>;

/// A label to write after a commit.
struct Relabel {
    dev: Rc<dyn BlockDev>,
    label: NvList,
}

/// Pending work on devices.
pub(crate) struct DeviceWork {
    changes: RefCell<VecDeque<Change>>,
    relabel: RefCell<Vec<Relabel>>,
    door: RefCell<Option<Rc<dyn DeviceDoor>>>,
    admin: Semaphore,
    /// Settings of new leaves, kept when the last leaf may be closed.
    maker: RefCell<Option<LeafMaker>>,
    me: Weak<Pool>,
    /// The last txg whose sync checked the leaves for failed writes.
    pub(crate) dtls_checked: Cell<Txg>,
    /// The pool is being closed: background work ends.
    pub(crate) closing: Cell<bool>,
}

impl DeviceWork {
    /// Nothing is under way in the pool `me`.
    pub(crate) fn new(me: Weak<Pool>) -> DeviceWork {
        DeviceWork {
            changes: RefCell::default(),
            relabel: RefCell::default(),
            door: RefCell::default(),
            admin: Semaphore::new(1),
            maker: RefCell::default(),
            me,
            dtls_checked: Cell::new(Txg(u64::MAX)),
            closing: Cell::new(false),
        }
    }
}

impl Pool {
    /// Sets how the pool opens devices by path.
    pub fn set_device_door(&self, door: Rc<dyn DeviceDoor>) {
        *self.devices.door.borrow_mut() = Some(door);
    }

    /// How the pool opens devices by path.
    pub(crate) fn device_door(&self) -> Option<Rc<dyn DeviceDoor>> {
        self.devices.door.borrow().clone()
    }

    /// The handle for tasks of the pool's own, while the pool is in use.
    pub(crate) fn self_rc(&self) -> Option<Rc<Pool>> {
        self.devices.me.upgrade()
    }

    /// Opens the device at a path.
    pub(crate) async fn open_path(&self, path: &str) -> Result<Rc<dyn BlockDev>> {
        let door = self.devices.door.borrow().clone();
        let door = door.ok_or_else(|| Error::not_found(format!("'{path}' cannot be opened from here")))?;
        door.open(path).await
    }

    /// Waits until no administrative change of the devices is under way, and blocks new ones.
    pub(crate) async fn hold_device_changes(&self) -> Permit {
        self.devices.admin.acquire(1).await
    }

    /// Begins an administrative change of the devices: others wait for its end.
    pub(crate) async fn begin_device_change(&self) -> Result<Permit> {
        let permit = self.devices.admin.acquire(1).await;
        self.check_device_change()?;
        Ok(permit)
    }

    /// Queues `change` for the next txg and waits until that is on disk.
    pub(crate) async fn change_devices<T: 'static>(
        &self,
        change: impl for<'a> FnOnce(&'a Pool, &'a Tx) -> LocalBoxFuture<'a, Outcome<T>> + 'static,
    ) -> Result<T> {
        let (outcome_tx, mut outcome_rx) = oneshot::oneshot();
        let boxed: Change = Box::new(move |pool, tx| {
            Box::pin(async move {
                let outcome = change(pool, tx).await?;
                // The caller may be gone; the change is made regardless.
                let _ = outcome_tx.send(outcome);
                Ok(())
            })
        });
        let (start, txg) = (self.rt.now(), self.txg.open_txg());
        self.devices.changes.borrow_mut().push_back(boxed);
        self.txg.wait_synced(txg).await?;
        self.txg.admin_done(txg, start);
        outcome_rx.try_recv().ok_or_else(|| Error::new(ErrorKind::Interrupted, "the pool is being closed"))?
    }

    /// Queues `change` for the next txg that is synced, without a wait.
    pub(crate) fn queue_change(
        &self,
        change: impl for<'a> FnOnce(&'a Pool, &'a Tx) -> LocalBoxFuture<'a, Result<()>> + 'static,
    ) {
        self.devices.changes.borrow_mut().push_back(Box::new(change));
    }

    /// Carries out the queued changes, at the beginning of the sync of a txg.
    pub(crate) async fn take_device_changes(&self, tx: &Tx) -> Result<()> {
        self.check_device_errors();
        loop {
            let next = self.devices.changes.borrow_mut().pop_front();
            match next {
                Some(change) => change(self, tx).await?,
                None => break,
            }
        }
        self.finish_replacements(tx).await
    }

    /// Writes the new labels of devices that left the pool, after the commit.
    pub(crate) async fn relabel_devices(&self) {
        for r in self.devices.relabel.take() {
            // The device may have left because it cannot be written.
            let _ = init_labels(&*r.dev, &r.label).await;
        }
    }

    /// Queues the new label of a leaf that left the tree; from the next commit on its device is not
    /// the pool's, or is a hot spare.
    pub(crate) fn queue_relabel(&self, kind: &VdevKind, label: Option<NvList>) {
        if let (VdevKind::Leaf(leaf), Some(label)) = (kind, label) {
            self.devices.relabel.borrow_mut().push(Relabel { dev: leaf.dev.clone(), label });
        }
    }

    /// The label of a leaf of the tree with txg 0, which no import takes.
    pub(crate) fn blank_label(&self, top: &Top, guid: Guid) -> Option<NvList> {
        let mut config = self.mos_config();
        config.txg = Txg(0);
        config.label_for(top.id.0 as usize, guid).map(|l| l.to_nvlist())
    }

    /// The label of a hot spare that is not in use.
    pub(crate) fn spare_label(guid: Guid) -> NvList {
        DeviceLabel::Spare { version: VERSION_FEATURES, guid }.to_nvlist()
    }

    /// The settings of new leaves.
    pub(crate) fn leaf_maker(&self) -> Result<LeafMaker> {
        let leaves = self.tree.leaves();
        let Some(like) = leaves.first() else {
            let kept = self.devices.maker.borrow().clone();
            return kept.ok_or_else(|| Error::not_found("the pool has no device"));
        };
        Ok(LeafMaker { rt: self.rt.clone(), gauge: like.gauge(), queue: like.tunables() })
    }

    /// Keeps the settings of new leaves, before a leaf is closed.
    pub(crate) fn keep_leaf_maker(&self) {
        if let Ok(maker) = self.leaf_maker() {
            *self.devices.maker.borrow_mut() = Some(maker);
        }
    }

    /// The list of the ZAPs of all vdevs, if the pool has them.
    pub(crate) async fn zap_map(&self) -> Result<Option<Dnode>> {
        match zap::lookup_u64(&self.directory, ZAP_MAP).await? {
            Some(object) => Ok(Some(self.mos.hold(ObjectId(object)).await?)),
            None => Ok(None),
        }
    }

    /// Frees the objects of a leaf that left the tree: its ZAP, its dirty time log.
    pub(crate) async fn free_leaf_objects(&self, config: &VdevConfig, tx: &Tx) -> Result<()> {
        if let Some(object) = config.zap_leaf.filter(|o| o.0 != 0) {
            self.free_vdev_zap(object, tx).await?;
        }
        if let Some(object) = config.dtl.filter(|o| o.0 != 0) {
            self.free_space_map(object, tx).await?;
        }
        Ok(())
    }

    /// Frees a vdev's ZAP.
    pub(crate) async fn free_vdev_zap(&self, object: ObjectId, tx: &Tx) -> Result<()> {
        if let Some(map) = self.zap_map().await? {
            zap::remove_int(&map, object.0, tx).await?;
        }
        self.mos.free(object, tx).await
    }

    /// Frees a space map object of any kind.
    pub(crate) async fn free_space_map(&self, object: ObjectId, tx: &Tx) -> Result<()> {
        let long = self.mos.hold(object).await?.bonus().len() >= SPACE_MAP_SIZE;
        self.mos.free(object, tx).await?;
        if long {
            self.features.add(FeatureId::SpacemapHistogram, -1, tx).await?;
        }
        Ok(())
    }

    /// Removes a leaf from a mirror, replacing or spare node: from tree, configuration and objects.
    /// The device gets `label` after the commit.
    pub(crate) async fn remove_leaf(&self, top: &Rc<Top>, guid: Guid, label: Option<NvList>, tx: &Tx) -> Result<()> {
        let (_, taken) = detach(&top.shape(), guid)?;
        self.free_leaf_objects(&taken, tx).await?;
        // Another device may have come back meanwhile: change the current tree.
        let kind = top.kind().find(guid);
        let (shape, _) = detach(&top.shape(), guid)?;
        top.set_shape(shape);
        if let Some(kind) = kind {
            self.queue_relabel(&kind, label);
        }
        self.dirty_config();
        Ok(())
    }

    /// Ends replacements whose new device is resilvered, and the use of spares whose device was
    /// replaced.
    pub(crate) async fn finish_replacements(&self, tx: &Tx) -> Result<()> {
        let tops = self.tree.tops.borrow().clone();
        for top in tops {
            while let Some((guid, spare)) = finished_replacement(&top.kind(), &top.kind()) {
                let is_spare = self.is_spare(guid);
                let label = if is_spare { Some(Pool::spare_label(guid)) } else { self.blank_label(&top, guid) };
                // The replaced device was known as `PATH/old` during the replacement.
                self.restore_path(&top, guid);
                self.remove_leaf(&top, guid, label, tx).await?;
                if let Some(spare) = spare {
                    self.remove_leaf(&top, spare, Some(Pool::spare_label(spare)), tx).await?;
                }
            }
        }
        Ok(())
    }

    /// Whether it is one of the pool's hot spares.
    pub(crate) fn is_spare(&self, guid: Guid) -> bool {
        self.aux.borrow().spares.iter().any(|s| s.guid == guid)
    }

    /// Before `leaving` leaves a replacement: gives the other leaf its path back if it is known as
    /// `PATH/old`.
    pub(crate) fn restore_path(&self, top: &Top, leaving: Guid) {
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
    let whole = |k: &VdevKind| k.conditions().iter().all(|(_, c)| c.health().is_open() && c.missing().is_empty());
    let there = !matches!(new, VdevKind::Absent(_));
    if kind.children().len() < 2 || !there || !whole(new) || !root.outage(Some(old)).is_empty() {
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

/// Creates the metaslab array of a new top-level vdev, and a ZAP for every vdev in it if `map`, the
/// list of them, exists (format page 06 section 1).
pub(crate) async fn create_top_objects(mos: &Objset, map: Option<&Dnode>, top: &Rc<Top>, tx: &Tx) -> Result<()> {
    let array = mos.alloc(ObjSpec::new(ObjectType::OBJECT_ARRAY, 512), tx).await?.object();
    let mut config = top.config();
    // On disk the bias is in the ZAP alone.
    let bias = config.alloc_bias.take();
    if let Some(map) = map {
        let guids: Vec<Guid> = config.leaves().map(|l| l.guid).collect();
        for guid in guids {
            let object = create_vdev_zap(mos, map, tx).await?.object();
            config.find_mut(guid).expect("its own leaves").zap_leaf = Some(object);
        }
        let own = create_vdev_zap(mos, map, tx).await?;
        if let Some(bias) = bias {
            zap::add_text(&own, BIAS_KEY, &bias, tx).await?;
        }
        config.zap_top = Some(own.object());
    }
    config.metaslab_array = Some(array);
    top.ms_array.set(array);
    top.update_config(|c| *c = config);
    Ok(())
}

/// Creates a ZAP for a vdev and adds it to the list of them.
pub(crate) async fn create_vdev_zap(mos: &Objset, map: &Dnode, tx: &Tx) -> Result<Dnode> {
    let dn = zap::create(mos, ObjectType::OTN_ZAP_METADATA, 0, tx).await?;
    zap::add_int(map, dn.object().0, dn.object().0, tx).await?;
    Ok(dn)
}

/// A condition with all txgs up to `end` (not included) missing and dirty.
pub(crate) fn misses_all(end: Txg) -> Rc<Condition> {
    let condition = Rc::new(Condition::default());
    condition.miss(base::TXG_INITIAL.0, end.0);
    condition
}
