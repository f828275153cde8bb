//! Devices that leave and return: closed, reopened, put back into their leaf.
//!
//! The dirty time logs stay complete: a device that is taken out of use misses at once the txgs
//! under way ([`Devices::change_health`]); from then on the sync of each txg adds its own. A device
//! that was away without such a record is found at import ([`super::dtl`]).

use std::rc::Rc;

use base::{Error, ErrorKind, Guid, Nanos, Result, Txg};
use bdev::BlockDev;
use ondisk::label::{DeviceLabel, LABELS};
use ondisk::vdev_config::VdevKind as ConfigKind;
use rt::Rt;
use vdev::labels::{LeafLabels, read_labels};
use vdev::reshape::min_asize;
use vdev::{Absent, Condition, Health, Leaf, Top, VdevKind, leaf_asize};

use super::{DeviceDoor, Devices};
use crate::devices::layout::{DevSpec, LeafMaker};

/// Tries to open a device that its last user has not closed yet, and the time between.
const OPEN_TRIES: u32 = 50;
const OPEN_PAUSE: Nanos = Nanos::from_ms(10);
/// The text of a notice about a device, after its path.
const NOT_OPENED: &str = "cannot be opened again";
/// Bytes to read from a device that does not answer, to get its error.
pub(super) const REASON_BYTES: usize = 4096;

/// The record of a device before it is closed and reopened.
struct ClosedDevice {
    size: u64,
    /// The error of a device that lost its contents while it was in use.
    lost: Option<Error>,
}

impl ClosedDevice {
    async fn of(leaf: &Leaf) -> ClosedDevice {
        let lost = bdev::read(&*leaf.dev, 0, REASON_BYTES).await.err();
        ClosedDevice { size: leaf.dev.size(), lost: lost.filter(|e| e.kind() == ErrorKind::Corrupt) }
    }

    /// Whether the reopened device lost its contents: it reported so before, or it has the same
    /// size and no label at its end.
    fn lost_contents(before: Option<&ClosedDevice>, again: &Reopened) -> bool {
        before.is_some_and(|b| b.lost.is_some() || b.size == again.dev.size() && !again.has_end_label())
    }
}

/// A reopened device.
struct Reopened {
    dev: Rc<dyn BlockDev>,
    labels: LeafLabels,
}

impl Reopened {
    /// Whether one of the two labels at its end can be read.
    fn has_end_label(&self) -> bool {
        self.labels.configs.iter().any(|(at, config)| *at >= LABELS / 2 && config.is_ok())
    }
}

/// Opens a path that a leaf of the pool had open until now.
async fn open_again(rt: &Rt, door: &dyn DeviceDoor, path: &str) -> Result<Rc<dyn BlockDev>> {
    let mut tries = 0;
    loop {
        match door.open(path).await {
            Err(e) if e.kind() == ErrorKind::Busy && tries < OPEN_TRIES => {
                tries += 1;
                rt.sleep(OPEN_PAUSE).await;
            }
            result => return result,
        }
    }
}

impl Devices {
    /// Sets the health of a leaf, and adds the txgs under way to its dirty time log: their writes
    /// may be missing on it.
    pub(super) fn change_health(&self, condition: &Condition, health: Health) {
        condition.miss(self.stack.txg.last_synced().0 + 1, self.stack.txg.open_txg().0 + 1);
        condition.set_health(health);
    }

    /// The last path of the device that a command names.
    pub fn path_of(&self, name: &str) -> Result<Option<String>> {
        let (top, guid) = self.find(name)?;
        Ok(top.config_ref().find(guid).and_then(|c| c.path.clone()))
    }

    /// Closes the device of a leaf and opens the current one at its path, to replace the leaf in
    /// place. Refused if the leaf has data without another replica.
    pub async fn release_for_replacement(&self, name: &str, door: &dyn DeviceDoor) -> Result<DevSpec> {
        let _admin = self.begin_change().await?;
        let (top, guid) = self.find(name)?;
        let path = top.config_ref().find(guid).and_then(|c| c.path.clone());
        let path = path.ok_or_else(|| Error::invalid("the device has no path: name the new one"))?;
        let is_disk = top.config_ref().find(guid).is_some_and(|c| c.kind == ConfigKind::Disk);
        let kind = top.kind();
        if let Some(VdevKind::Leaf(leaf)) = kind.find(guid) {
            if leaf.condition.health().is_open() && !kind.outage(Some(guid)).is_empty() {
                return Err(Error::new(
                    ErrorKind::Busy,
                    "no valid replicas: the device holds data that no other one has",
                ));
            }
            let health = leaf.condition.health();
            let maker = self.leaf_maker()?;
            let _quiet = self.events.reopening(guid);
            drop(leaf);
            drop(kind);
            let before = self.close_leaf(&top, guid);
            self.works().let_go(guid).await;
            let dev = open_again(&self.stack.rt, door, &path).await;
            return match dev {
                Ok(dev) => Ok(DevSpec { dev, is_disk }),
                Err(e) => {
                    // Restore the old device, if it can be reopened.
                    if let (Some(condition), Ok(again)) = (before, self.open_leaf(&top, guid, &path, door).await) {
                        self.install_device(&top, guid, &path, again, condition, health, &maker);
                    }
                    Err(e)
                }
            };
        }
        let dev = door.open(&path).await?;
        Ok(DevSpec { dev, is_disk })
    }

    /// Closes a leaf's device; operations in flight fail. Returns its condition.
    fn close_leaf(&self, top: &Rc<Top>, guid: Guid) -> Option<Rc<Condition>> {
        let kind = top.kind();
        let Some(VdevKind::Leaf(leaf)) = kind.find(guid) else { return None };
        let (path, condition) = (leaf.path(), leaf.condition.clone());
        self.keep_leaf_maker();
        self.change_health(&condition, Health::Unavail);
        let gone = condition.clone();
        let absent =
            move |_: &VdevKind| VdevKind::Absent(Rc::new(Absent { guid, path: path.clone(), condition: gone.clone() }));
        top.set_kind(kind.replace(guid, &absent));
        self.config.mark_dirty();
        Some(condition)
    }

    /// Installs a reopened device in its leaf.
    #[allow(clippy::too_many_arguments, reason = "all that a leaf is")]
    fn install_device(
        &self,
        top: &Rc<Top>,
        guid: Guid,
        path: &str,
        again: Reopened,
        condition: Rc<Condition>,
        health: Health,
        maker: &LeafMaker,
    ) {
        self.change_health(&condition, health);
        self.notices.drop_about(&format!("'{path}' {NOT_OPENED}"));
        let leaf = maker.leaf(guid, path.to_string(), again.dev, condition);
        leaf.note_labels(&again.labels);
        top.set_kind(top.kind().replace(guid, &move |_| VdevKind::Leaf(leaf.clone())));
        top.update_config(|c| {
            if let Some(leaf) = c.find_mut(guid) {
                leaf.not_present = false;
                leaf.path = Some(path.to_string());
            }
        });
        self.config.mark_dirty();
        self.works().go_on(top, guid);
    }

    /// Opens the device of leaf `guid` and verifies its label and size.
    async fn open_leaf(&self, top: &Top, guid: Guid, path: &str, door: &dyn DeviceDoor) -> Result<Reopened> {
        let gone_on_purpose = |(g, c): &(Guid, Rc<Condition>)| *g == guid && c.faults.refuses_open();
        if top.kind().conditions().iter().any(gone_on_purpose) {
            return Err(Error::new(ErrorKind::Io, format!("'{path}' does not answer, on purpose (zinject)")));
        }
        let dev = open_again(&self.stack.rt, door, path).await?;
        let labels = read_labels(&*dev).await?;
        // A replacement may have ended meanwhile, and its old device is then no part of the pool.
        if top.kind().find(guid).is_none() {
            return Err(Error::not_found(format!(
                "no such device in pool '{}': '{path}' was detached",
                self.config.name()
            )));
        }
        if !self.has_own_label(&labels, guid) {
            let all: Vec<DeviceLabel> =
                labels.configs.iter().filter_map(|(_, c)| DeviceLabel::from_nvlist(c.as_ref().ok()?).ok()).collect();
            let why = match all.first() {
                Some(DeviceLabel::Pool(c)) if self.stack.tree.is_own_guid(c.pool_guid) => {
                    format!("'{path}' is another device of this pool: the devices have changed places")
                }
                Some(DeviceLabel::Pool(c)) => format!("'{path}' belongs to the pool '{}' now", c.name),
                Some(_) => format!("'{path}' is a spare or cache device now"),
                None => format!("'{path}' has no label: 'zpool replace' makes it part of the pool"),
            };
            return Err(Error::new(ErrorKind::NotFound, why));
        }
        if leaf_asize(dev.size()) < min_asize(&top.kind(), guid, top.asize.get(), top.ms_shift.get()) {
            return Err(Error::new(ErrorKind::Range, format!("'{path}' has become too small")));
        }
        Ok(Reopened { dev, labels })
    }

    /// Marks everything as missing on a device whose contents are unknown.
    fn miss_everything(&self, condition: &Condition) {
        condition.miss(1, self.stack.txg.open_txg().0 + 1);
    }

    /// Brings a device online that was offline, removed or faulted. A resilver writes the missing
    /// txgs. `expand`: the pool uses all of devices that have grown.
    pub async fn bring_online(&self, name: &str, expand: bool) -> Result<()> {
        let admin = self.begin_change().await?;
        let place = format!("cannot online {name}");
        let (top, guid) = self.find(name)?;
        let node = top.kind().find(guid).filter(VdevKind::is_leaf);
        let node = node.ok_or_else(|| Error::invalid("it is not a device").at(&place))?;
        let condition = match &node {
            VdevKind::Leaf(l) => l.condition.clone(),
            VdevKind::Absent(a) => a.condition.clone(),
            VdevKind::Dspare(d) => d.condition.clone(),
            _ => return Err(Error::invalid("it is not a device").at(&place)),
        };
        let is_open = condition.health() == Health::Online && matches!(node, VdevKind::Leaf(_) | VdevKind::Dspare(_));
        let empty = (top.is_log && !top.is_usable()).then(|| self.keep_empty(&top));
        // A device without another replica is never closed.
        let needed = condition.health().is_open() && !top.kind().outage(Some(guid)).is_empty();
        // A distributed spare is space on other devices: there is nothing to open.
        let distributed = matches!(node, VdevKind::Dspare(_));
        let before = match &node {
            VdevKind::Leaf(leaf) if !is_open => Some(ClosedDevice::of(leaf).await),
            _ => None,
        };
        drop(node);
        if !is_open && (needed || distributed || self.door().is_none()) {
            self.set_online(name, &top, guid)?;
        } else if !is_open {
            let path = self.path_of(name)?.ok_or_else(|| Error::not_found("it has no path").at(&place))?;
            let door = self.door().expect("it was asked for");
            // Close and reopen: its path may lead to another device.
            let was = condition.health();
            let maker = self.leaf_maker()?;
            let _quiet = self.events.reopening(guid);
            let had = self.close_leaf(&top, guid).is_some();
            self.works().let_go(guid).await;
            // The txg that is being written may still use the device, and would write labels while
            // they are read.
            let idle = if had { self.stack.sync().await } else { Ok(()) };
            let opened = match idle {
                Ok(()) => self.open_leaf(&top, guid, &path, &*door).await,
                Err(e) => Err(e),
            };
            match opened {
                Ok(again) => {
                    if ClosedDevice::lost_contents(before.as_ref(), &again) {
                        self.miss_everything(&condition);
                    }
                    self.install_device(&top, guid, &path, again, condition.clone(), Health::Online, &maker);
                }
                Err(e) => {
                    if had || was != Health::Offline {
                        condition.set_health(was);
                    }
                    return Err(e.at(&place));
                }
            }
        }
        condition.clear_errors();
        self.note_back(&top, guid);
        top.update_config(|c| {
            if let Some(leaf) = c.find_mut(guid) {
                (leaf.offline, leaf.faulted, leaf.degraded, leaf.removed) = (false, false, false, false);
                leaf.aux_state = None;
            }
        });
        self.config.mark_dirty();
        if expand {
            self.expand_top(&top).await.map_err(|e| e.at(&place))?;
        }
        drop(admin);
        self.events.post_states();
        self.events.post_vdev("vdev_online", guid);
        self.stack.sync().await?;
        drop(empty);
        if !is_open {
            self.scan.resilver_from(Txg(self.stack.txg.open_txg().0)).await?;
        }
        Ok(())
    }

    /// Reopens the device of a leaf that is to be in use and does not answer, if it is there again.
    /// Operations in flight to it fail, and are retried with the rest. `settle`: wait for the txg
    /// that is being written in between, as it may still use the device.
    pub(super) async fn reopen(&self, top: &Rc<Top>, guid: Guid, settle: bool) -> Result<()> {
        let kind = top.kind();
        let (leaf, condition) = match kind.find(guid) {
            Some(VdevKind::Leaf(l)) => (Some(l.clone()), l.condition.clone()),
            Some(VdevKind::Absent(a)) => (None, a.condition.clone()),
            _ => return Ok(()),
        };
        if condition.health() == Health::Offline {
            return Ok(());
        }
        let maker = self.leaf_maker();
        let answers = match &leaf {
            Some(leaf) => self.answers(leaf).await,
            None => false,
        };
        let before = match &leaf {
            Some(leaf) if !answers => Some(ClosedDevice::of(leaf).await),
            _ => None,
        };
        // The device is in use while the leaf is referenced.
        drop((leaf, kind));
        if answers && !condition.health().is_open() {
            self.change_health(&condition, Health::Online);
        } else if !answers {
            let Some(door) = self.door() else { return Ok(()) };
            let Some(path) = top.config_ref().find(guid).and_then(|c| c.path.clone()) else { return Ok(()) };
            let needed = !top.kind().outage(Some(guid)).is_empty();
            if let Some(e) = before.as_ref().and_then(|b| b.lost.as_ref()).filter(|_| needed) {
                // The writes of the txg under way are lost, and there is no other replica: that txg
                // must never be committed.
                let advice =
                    "put its contents back, give up with 'zpool export -f' what was written since, and import the pool";
                return Err(Error::new(ErrorKind::Corrupt, format!("{e}: {advice}")));
            }
            let maker = maker?;
            let was = condition.health();
            let _quiet = self.events.reopening(guid);
            let had = self.close_leaf(top, guid).is_some();
            self.works().let_go(guid).await;
            let settled = if had && settle { self.stack.sync().await } else { Ok(()) };
            let opened = match settled {
                Ok(()) => self.open_leaf(top, guid, &path, &*door).await,
                Err(e) => Err(e),
            };
            match opened {
                Ok(again) => {
                    if ClosedDevice::lost_contents(before.as_ref(), &again) {
                        self.miss_everything(&condition);
                    }
                    self.install_device(top, guid, &path, again, condition, Health::Online, &maker);
                }
                Err(e) => {
                    if !had {
                        condition.set_health(was);
                    }
                    return Err(e.at(format!("'{path}' {NOT_OPENED}")));
                }
            }
        }
        top.update_config(|c| {
            if let Some(leaf) = c.find_mut(guid) {
                (leaf.faulted, leaf.degraded, leaf.removed) = (false, false, false);
                leaf.aux_state = None;
            }
        });
        self.config.mark_dirty();
        Ok(())
    }
}
