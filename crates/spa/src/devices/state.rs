//! State of devices and their error counts: `zpool offline`, `online`, `clear`.

use std::rc::Rc;

use base::{Error, ErrorKind, Guid, Result, ResultExt, Txg, VdevId};
use metaslab::Allocator;
use vdev::{Condition, Health, Top, VdevKind};

use super::Devices;
use super::remove::drain_log;

/// The key `aux_state` of a device that a command declared faulted: it stays so over imports
/// (`VDEV_AUX_EXTERNAL` of OpenZFS).
pub(crate) const FAULTED_BY_COMMAND: &str = "external";

/// Nothing is allocated on a vdev ([`Devices::keep_empty`]).
pub(super) struct KeptEmpty(Rc<Allocator>, VdevId);

impl Drop for KeptEmpty {
    fn drop(&mut self) {
        self.0.set_passive(self.1, false);
    }
}

impl Devices {
    /// Takes a device offline. It stays so over imports, unless `temporary`. Refused for the last
    /// replica of any data; a log device is emptied first.
    pub async fn offline(&self, name: &str, temporary: bool) -> Result<()> {
        self.config.check_writable()?;
        let (top, guid) = self.find(name)?;
        if top.kind().outage(Some(guid)).is_empty() {
            return self.set_offline(name, &top, guid, temporary);
        }
        if !top.is_log {
            return Err(Error::new(ErrorKind::Busy, format!("cannot offline {name}: no valid replicas")));
        }
        let _admin = self.begin_change().await?;
        // While it is offline nothing is allocated there anyway.
        let _empty = self.keep_empty(&top);
        drain_log(&self.stack, top.id).await.at(|| format!("cannot offline {name}"))?;
        self.set_offline(name, &top, guid, temporary)
    }

    fn set_offline(&self, name: &str, top: &Top, guid: Guid, temporary: bool) -> Result<()> {
        let kind = top.kind();
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
        self.config.mark_dirty();
        Ok(())
    }

    /// Declares a device faulted (`zpool offline -f`): it is out of use until `zpool clear` or, if
    /// `temporary`, the next import. One without a replica is degraded instead, and stays in use.
    pub fn fault(&self, name: &str, temporary: bool) -> Result<()> {
        self.config.check_writable()?;
        let (top, guid) = self.find(name)?;
        let kind = top.kind();
        let Some(VdevKind::Leaf(leaf)) = kind.find(guid) else {
            return Err(Error::invalid(format!("cannot fault {name}: it is not a device")));
        };
        let is_needed = !kind.outage(Some(guid)).is_empty();
        if is_needed {
            leaf.condition.set_health(Health::Degraded);
        } else {
            self.change_health(&leaf.condition, Health::Faulted);
            self.works().cancel(guid);
        }
        top.update_config(|c| {
            if let Some(leaf) = c.find_mut(guid) {
                (leaf.faulted, leaf.degraded) = (!is_needed, is_needed);
                leaf.aux_state = (!temporary).then(|| FAULTED_BY_COMMAND.into());
            }
        });
        self.config.mark_dirty();
        Ok(())
    }

    /// Declares a device degraded, which stays in use, until `zpool clear` or the next import.
    pub fn degrade(&self, name: &str) -> Result<()> {
        self.config.check_writable()?;
        let (top, guid) = self.find(name)?;
        let Some(VdevKind::Leaf(leaf)) = top.kind().find(guid).filter(|k| k.health().is_open()) else {
            return Err(Error::invalid(format!("cannot degrade {name}: it is not a device in use")));
        };
        leaf.condition.set_health(Health::Degraded);
        top.update_config(|c| {
            if let Some(leaf) = c.find_mut(guid) {
                (leaf.degraded, leaf.aux_state) = (true, None);
            }
        });
        self.config.mark_dirty();
        Ok(())
    }

    /// The guid and the condition of the device that a command names.
    pub fn condition_of(&self, name: &str) -> Result<(Guid, Rc<Condition>)> {
        let (top, guid) = self.find(name)?;
        let found = top.kind().conditions().into_iter().find(|(g, _)| *g == guid);
        found.ok_or_else(|| Error::invalid(format!("{name} is not a device")))
    }

    /// Brings an offline device online. Its missing txgs are read from others until a resilver has
    /// written them.
    pub async fn online(&self, name: &str) -> Result<()> {
        self.config.check_writable()?;
        let (top, guid) = self.find(name)?;
        if !top.is_log || top.is_usable() {
            return self.set_online(name, &top, guid);
        }
        let _admin = self.begin_change().await?;
        let _empty = self.keep_empty(&top);
        self.set_online(name, &top, guid)?;
        self.stack.txg.wait_synced(Txg(0)).await
    }

    /// Keeps a log vdev empty for as long as the result lives: while it is being taken offline, and
    /// until it is online on disk, since an import that finds it offline does not read it.
    pub(super) fn keep_empty(&self, top: &Top) -> KeptEmpty {
        self.stack.alloc.set_passive(top.id, true);
        KeptEmpty(self.stack.alloc.clone(), top.id)
    }

    pub(super) fn set_online(&self, name: &str, top: &Rc<Top>, guid: Guid) -> Result<()> {
        let condition = match top.kind().find(guid) {
            Some(VdevKind::Leaf(leaf)) => leaf.condition.clone(),
            Some(VdevKind::Dspare(spare)) => spare.condition.clone(),
            _ => {
                return Err(Error::not_found(format!(
                    "cannot online {name}: the device is not there; import the pool again"
                )));
            }
        };
        self.restore_leaf(top, guid, &condition);
        self.works().go_on(top, guid);
        self.scan.request_resilver();
        Ok(())
    }

    /// `zpool clear`: resets the errors of one device, or of all, reopens devices that do not
    /// answer, and resumes a suspended pool. A resilver follows. An error, and the pool stays
    /// suspended, if a device that it needs cannot be reopened.
    pub async fn clear(&self, name: Option<&str>) -> Result<()> {
        let suspended = self.stack.tree.gate.is_suspended();
        // A device change under way may wait for the suspended pool.
        let admin = if suspended { None } else { Some(self.changes.hold().await) };
        let away = if self.stack.readonly {
            Vec::new()
        } else {
            self.leaves_to_reopen(if suspended { None } else { name }, suspended)?
        };
        self.clear_errors(name)?;
        let mut failed = None;
        for (top, guid) in &away {
            if let Err(e) = self.reopen(top, *guid, !suspended).await {
                let lost = e.kind() == ErrorKind::Corrupt && !top.kind().outage(Some(*guid)).is_empty();
                let needed = !top.is_log && (lost || !top.is_usable());
                self.notices.push_once(e.to_string());
                failed = failed.or(needed.then_some(e));
            }
        }
        drop(admin);
        self.events.post_states();
        if !suspended {
            // As in OpenZFS, which writes its cache file then.
            self.events.post("config_sync");
        }
        if let Some(e) = failed {
            return Err(e.at(format!("cannot clear errors for {}", self.config.name())));
        }
        self.stack.tree.gate.resume();
        if suspended || !away.is_empty() {
            self.scan.request_resilver();
        }
        Ok(())
    }

    /// The leaves that `zpool clear` may have to reopen: those out of use, or all. No reference to
    /// the tree is held meanwhile.
    fn leaves_to_reopen(&self, name: Option<&str>, all: bool) -> Result<Vec<(Rc<Top>, Guid)>> {
        let named = name.map(|name| self.find(name)).transpose()?;
        let mut out = Vec::new();
        for top in self.stack.tree.tops.borrow().iter() {
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
    pub fn clear_errors(&self, name: Option<&str>) -> Result<()> {
        let tops = self.stack.tree.tops.borrow().clone();
        let scope: Vec<(Rc<Top>, VdevKind)> = match name {
            None => tops.iter().map(|t| (t.clone(), t.kind())).collect(),
            Some(name) => {
                let (top, guid) = self.find(name)?;
                let node = top.kind().find(guid);
                node.into_iter().map(|node| (top.clone(), node)).collect()
            }
        };
        for (top, node) in scope {
            for leaf in node.leaves() {
                let errors = leaf.errors();
                if errors.read + errors.write + errors.cksum > 0 || !leaf.condition.health().is_open() {
                    self.events.post_vdev("vdev_clear", leaf.guid());
                }
            }
            node.clear_errors();
            for leaf in node.leaves() {
                let errored = matches!(leaf.condition.health(), Health::Degraded | Health::Faulted);
                if errored && !self.stack.readonly {
                    self.restore_leaf(&top, leaf.guid(), &leaf.condition);
                }
                if leaf.condition.health().is_open() && !leaf.condition.missing().is_empty() {
                    self.scan.request_resilver();
                }
            }
        }
        Ok(())
    }

    /// Puts a leaf with an open device into use again.
    fn restore_leaf(&self, top: &Top, guid: Guid, condition: &Condition) {
        self.note_back(top, guid);
        self.change_health(condition, Health::Online);
        condition.clear_errors();
        top.update_config(|c| {
            if let Some(leaf) = c.find_mut(guid) {
                (leaf.offline, leaf.faulted, leaf.degraded) = (false, false, false);
                leaf.aux_state = None;
            }
        });
        self.config.mark_dirty();
    }
}
