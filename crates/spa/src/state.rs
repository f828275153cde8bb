//! Devices taken out of use and back, and their error counts: `zpool offline`, `online`, `clear`.

use std::rc::Rc;

use base::{Error, ErrorKind, Guid, Result};
use ondisk::vdev_config::VdevConfig;
use vdev::{Health, Top, VdevKind};

use crate::pool::Pool;

/// Whether a vdev has everything without the leaf `without`; leaves that miss some txgs do not count.
fn carries(kind: &VdevKind, without: Guid) -> bool {
    let lost = || kind.children().iter().filter(|c| !carries(c, without)).count();
    match kind {
        VdevKind::Leaf(l) => l.guid != without && l.condition.health().is_open() && l.condition.missing().is_empty(),
        VdevKind::Dspare(d) => d.guid != without && d.condition.missing().is_empty(),
        VdevKind::Mirror(m) => lost() < m.children.len(),
        VdevKind::Raidz(r) => lost() <= r.parity as usize,
        VdevKind::Draid(d) => lost() <= d.layout.parity as usize,
        VdevKind::Indirect(_) | VdevKind::Hole => true,
        VdevKind::Absent(_) | VdevKind::Missing => false,
    }
}

impl Pool {
    /// The vdev that a command names: by path, by the last part of a path, by what listings call it, or by guid.
    fn named(&self, name: &str) -> Result<(Rc<Top>, Guid)> {
        let matches = |c: &VdevConfig| {
            let path = c.path.as_deref();
            path == Some(name)
                || path.is_some_and(|p| p.rsplit('/').next() == Some(name))
                || name.parse() == Ok(c.guid.0)
                || c.kind.is_interior() && name == format!("{}-{}", c.kind, c.id)
        };
        for top in self.tree.tops.borrow().iter() {
            let config = top.config_ref();
            let leaf = config.leaves().find(|c| matches(c)).or_else(|| Some(&*config).filter(|c| matches(c)));
            if let Some(found) = leaf {
                return Ok((top.clone(), found.guid));
            }
        }
        Err(Error::not_found(format!("no such device in pool '{}': {name}", self.name())))
    }

    fn check_device_change(&self) -> Result<()> {
        if self.readonly {
            return Err(Error::new(ErrorKind::ReadOnly, format!("pool '{}' is imported read-only", self.name())));
        }
        Ok(())
    }

    /// Takes a device out of use. It stays out over imports, unless that is `temporary`. Refused where the pool would not have everything without it.
    pub fn offline_device(&self, name: &str, temporary: bool) -> Result<()> {
        self.check_device_change()?;
        let (top, guid) = self.named(name)?;
        let kind = top.kind();
        if !carries(&kind, guid) {
            return Err(Error::new(ErrorKind::Busy, format!("cannot offline {name}: no valid replicas")));
        }
        let conditions = kind.conditions();
        let (_, condition) = conditions
            .iter()
            .find(|(g, _)| *g == guid)
            .ok_or_else(|| Error::invalid(format!("cannot offline {name}: it is not a device")))?;
        condition.set_health(Health::Offline);
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

    /// Brings a device back that was taken out of use. What it missed is read from others until a resilver has brought it there.
    pub fn online_device(&self, name: &str) -> Result<()> {
        self.check_device_change()?;
        let (top, guid) = self.named(name)?;
        let Some(VdevKind::Leaf(leaf)) = top.kind().find(guid) else {
            return Err(Error::not_found(format!(
                "cannot online {name}: the device is not there; import the pool again"
            )));
        };
        leaf.condition.set_health(Health::Online);
        top.update_config(|c| {
            if let Some(leaf) = c.find_mut(guid) {
                (leaf.offline, leaf.faulted, leaf.degraded) = (false, false, false);
            }
        });
        self.dirty_config();
        self.request_resilver();
        Ok(())
    }

    /// Forgets the errors of one device, or of all.
    pub fn clear_device_errors(&self, name: Option<&str>) -> Result<()> {
        let Some(name) = name else {
            self.tree.tops.borrow().iter().for_each(|t| t.kind().clear_errors());
            return Ok(());
        };
        let (top, guid) = self.named(name)?;
        if let Some(node) = top.kind().find(guid) {
            node.clear_errors();
        }
        Ok(())
    }
}
