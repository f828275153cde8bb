//! State of devices and their error counts: `zpool offline`, `online`, `clear`.

use std::rc::Rc;

use base::{Error, ErrorKind, Guid, Result};
use ondisk::vdev_config::{VdevConfig, VdevKind as ConfigKind};
use vdev::{Condition, Health, Top, VdevKind};

use crate::devices::attach::matches_name;
use crate::pool::Pool;

impl Pool {
    /// Finds the vdev that a command names: by path, by the last part of a path, by its name in
    /// listings, or by guid.
    pub(crate) fn find_vdev(&self, name: &str) -> Result<(Rc<Top>, Guid)> {
        let tops = self.tree.tops.borrow();
        // Leaves before interior vdevs, and names before guids.
        let interior = |c: &VdevConfig| match c.kind {
            ConfigKind::Raidz | ConfigKind::Draid => {
                name == format!("{}{}-{}", c.kind, c.nparity.unwrap_or(1), c.id)
                    || name == format!("{}-{}", c.kind, c.id)
            }
            _ => c.kind.is_interior() && name == format!("{}-{}", c.kind, c.id),
        };
        let is_leaf = |c: &&VdevConfig| !c.kind.is_interior();
        for top in tops.iter() {
            let config = top.config_ref();
            if let Some(found) = config.iter().filter(is_leaf).find(|c| c.path.as_deref() == Some(name)) {
                return Ok((top.clone(), found.guid));
            }
        }
        for top in tops.iter() {
            let config = top.config_ref();
            let leaf = config.iter().filter(is_leaf).find(|c| matches_name(c, name));
            let above = || config.iter().find(|c| interior(c) || name.parse() == Ok(c.guid.0));
            if let Some(found) = leaf.or_else(above) {
                return Ok((top.clone(), found.guid));
            }
        }
        Err(Error::not_found(format!("no such device in pool '{}': {name}", self.name())))
    }

    pub(crate) fn check_device_change(&self) -> Result<()> {
        if self.readonly {
            return Err(Error::new(ErrorKind::ReadOnly, format!("pool '{}' is imported read-only", self.name())));
        }
        Ok(())
    }

    /// Takes a device offline. It stays so over imports, unless `temporary`. Refused for the last
    /// replica of any data.
    pub fn offline_device(&self, name: &str, temporary: bool) -> Result<()> {
        self.check_device_change()?;
        let (top, guid) = self.find_vdev(name)?;
        let kind = top.kind();
        if !kind.outage(Some(guid)).is_empty() {
            return Err(Error::new(ErrorKind::Busy, format!("cannot offline {name}: no valid replicas")));
        }
        let conditions = kind.conditions();
        let (_, condition) = conditions
            .iter()
            .find(|(g, _)| *g == guid)
            .ok_or_else(|| Error::invalid(format!("cannot offline {name}: it is not a device")))?;
        self.change_health(condition, Health::Offline);
        if !temporary {
            top.update_config(|c| {
                if let Some(leaf) = c.find_mut(guid) {
                    leaf.offline = true;
                }
            });
        }
        self.dirty_config();
        Ok(())
    }

    /// Brings an offline device online. Its missing txgs are read from others until a resilver has
    /// written them.
    pub fn online_device(&self, name: &str) -> Result<()> {
        self.check_device_change()?;
        let (top, guid) = self.find_vdev(name)?;
        let condition = match top.kind().find(guid) {
            Some(VdevKind::Leaf(leaf)) => leaf.condition.clone(),
            Some(VdevKind::Dspare(spare)) => spare.condition.clone(),
            _ => {
                return Err(Error::not_found(format!(
                    "cannot online {name}: the device is not there; import the pool again"
                )));
            }
        };
        self.restore_leaf(&top, guid, &condition);
        self.request_resilver();
        Ok(())
    }

    /// `zpool clear`: resets the errors of one device, or of all, reopens devices that do not
    /// answer, and resumes a suspended pool. A resilver follows. An error, and the pool stays
    /// suspended, if a device that it needs cannot be reopened.
    pub async fn clear(&self, name: Option<&str>) -> Result<()> {
        let suspended = self.tree.gate.is_suspended();
        // A device change under way may wait for the suspended pool.
        let admin = if suspended { None } else { Some(self.hold_device_changes().await) };
        let away = if self.readonly {
            Vec::new()
        } else {
            self.leaves_to_reopen(if suspended { None } else { name }, suspended)?
        };
        self.clear_device_errors(name)?;
        let mut failed = None;
        for (top, guid) in &away {
            if let Err(e) = self.reopen(top, *guid, !suspended).await {
                let lost = e.kind() == ErrorKind::Corrupt && !top.kind().outage(Some(*guid)).is_empty();
                let needed = !top.is_log && (lost || !top.is_usable());
                self.notice_once(e.to_string());
                failed = failed.or(needed.then_some(e));
            }
        }
        drop(admin);
        self.post_states();
        if let Some(e) = failed {
            return Err(e.at(format!("cannot clear errors for {}", self.name())));
        }
        self.tree.gate.resume();
        if suspended || !away.is_empty() {
            self.request_resilver();
        }
        Ok(())
    }

    fn notice_once(&self, text: String) {
        let mut notices = self.notices.borrow_mut();
        if !notices.contains(&text) {
            notices.push(text);
        }
    }

    /// The leaves that `zpool clear` may have to reopen: those out of use, or all. No reference to
    /// the tree is held meanwhile.
    fn leaves_to_reopen(&self, name: Option<&str>, all: bool) -> Result<Vec<(Rc<Top>, Guid)>> {
        let named = name.map(|name| self.find_vdev(name)).transpose()?;
        let mut out = Vec::new();
        for top in self.tree.tops.borrow().iter() {
            let kind = top.kind();
            let below = match &named {
                Some((_, guid)) => kind.find(*guid),
                None => Some(kind),
            };
            for (guid, condition) in below.iter().flat_map(|node| node.conditions()) {
                if all || !matches!(condition.health(), Health::Online | Health::Degraded | Health::Offline) {
                    out.push((top.clone(), guid));
                }
            }
        }
        Ok(out)
    }

    /// Resets the errors of one device, or of all. Faulted and degraded devices are in use again,
    /// and a resilver writes their missing txgs.
    pub fn clear_device_errors(&self, name: Option<&str>) -> Result<()> {
        let tops = self.tree.tops.borrow().clone();
        let scope: Vec<(Rc<Top>, VdevKind)> = match name {
            None => tops.iter().map(|t| (t.clone(), t.kind())).collect(),
            Some(name) => {
                let (top, guid) = self.find_vdev(name)?;
                let node = top.kind().find(guid);
                node.into_iter().map(|node| (top.clone(), node)).collect()
            }
        };
        for (top, node) in scope {
            for leaf in node.leaves() {
                let errors = leaf.errors();
                if errors.read + errors.write + errors.cksum > 0 || !leaf.condition.health().is_open() {
                    self.post_vdev("vdev_clear", leaf.guid());
                }
            }
            node.clear_errors();
            for leaf in node.leaves() {
                let errored = matches!(leaf.condition.health(), Health::Degraded | Health::Faulted);
                if errored && !self.readonly {
                    self.restore_leaf(&top, leaf.guid(), &leaf.condition);
                }
                if leaf.condition.health().is_open() && !leaf.condition.missing().is_empty() {
                    self.request_resilver();
                }
            }
        }
        Ok(())
    }

    /// Puts a leaf with an open device into use again.
    fn restore_leaf(&self, top: &Top, guid: Guid, condition: &Condition) {
        self.change_health(condition, Health::Online);
        condition.clear_errors();
        top.update_config(|c| {
            if let Some(leaf) = c.find_mut(guid) {
                (leaf.offline, leaf.faulted, leaf.degraded) = (false, false, false);
                leaf.aux_state = None;
            }
        });
        self.dirty_config();
    }
}
