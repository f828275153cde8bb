//! Devices outside of the tree: hot spares and caches (format page 01 section 5). Objects of their
//! own list them, and their labels have only their kind and guid.

use std::cell::RefCell;
use std::rc::Rc;

use base::{Error, Guid, ObjectId, Result, ResultExt};
use dmu::{Dnode, Objset, Tx, zap};
use ondisk::label::DeviceLabel;
use ondisk::nvlist::{NvList, NvValue};
use ondisk::vdev_config::{ConfigForm, VdevConfig};
use rt::Rt;
use vdev::Top;
use vdev::labels::init_labels;

use crate::commit::config::{create_packed, read_packed, write_packed};
use crate::devices::find::matches_name;
use crate::devices::layout::{Layout, aux_config, dspare_configs};
use crate::stack::Stack;

/// Entries of the MOS directory that name the lists, and the key in each.
const SPARES: &str = "spares";
const CACHES: &str = "l2cache";
/// Most devices of a list that are read.
const LIST_MAX: usize = 4096;

/// The spares and caches of a pool.
#[derive(Clone, Default, Debug)]
pub struct AuxDevices {
    /// Hot spares, distributed ones included.
    pub spares: Vec<VdevConfig>,
    /// Cache devices.
    pub caches: Vec<VdevConfig>,
}

/// The spares and caches of an imported pool.
pub(crate) struct Aux(RefCell<AuxDevices>);

impl Aux {
    /// Those of a pool that is being opened.
    pub(crate) fn new(all: AuxDevices) -> Aux {
        Aux(RefCell::new(all))
    }

    /// All of them.
    pub(crate) fn get(&self) -> AuxDevices {
        self.0.borrow().clone()
    }

    /// Whether it is a hot spare.
    pub(crate) fn is_spare(&self, guid: Guid) -> bool {
        self.0.borrow().spares.iter().any(|s| s.guid == guid)
    }

    /// The hot spare of that name.
    pub(crate) fn spare_named(&self, name: &str) -> Option<VdevConfig> {
        self.0.borrow().spares.iter().find(|c| matches_name(c, name)).cloned()
    }

    /// Writes changed lists, and makes them the pool's.
    pub(crate) async fn change(&self, stack: &Stack, all: AuxDevices, tx: &Tx) -> Result<()> {
        all.write(&stack.mos, &stack.directory, tx).await?;
        *self.0.borrow_mut() = all;
        Ok(())
    }
}

impl AuxDevices {
    pub(crate) fn of_new(rt: &Rt, layout: &Layout, tops: &[Rc<Top>]) -> AuxDevices {
        let mut spares: Vec<VdevConfig> = layout.spares.iter().map(|d| aux_config(rt, d, true)).collect();
        spares.extend(dspare_configs(rt, tops));
        AuxDevices { spares, caches: layout.caches.iter().map(|d| aux_config(rt, d, false)).collect() }
    }

    /// Labels the devices, in the order of the layout.
    pub(crate) async fn write_labels(&self, layout: &Layout, version: u64) -> Result<()> {
        for (config, d) in self.spares.iter().zip(&layout.spares) {
            let label = DeviceLabel::Spare { version, guid: config.guid };
            init_labels(&*d.dev, &label.to_nvlist()).await?;
        }
        for (config, d) in self.caches.iter().zip(&layout.caches) {
            let label = DeviceLabel::Cache { version, guid: config.guid };
            init_labels(&*d.dev, &label.to_nvlist()).await?;
        }
        Ok(())
    }

    /// Creates the lists of a new pool.
    pub(crate) async fn create_objects(&self, mos: &Objset, directory: &Dnode, tx: &Tx) -> Result<()> {
        for (name, list) in [(SPARES, &self.spares), (CACHES, &self.caches)] {
            if list.is_empty() {
                continue;
            }
            let object = create_packed(mos, tx).await?;
            zap::add_u64(directory, name.as_bytes(), object.0, tx).await?;
            let devices = list.iter().map(|c| c.to_nvlist(ConfigForm::Aux)).collect();
            write_packed(mos, object, &NvList::new().with(name, NvValue::ListArray(devices)), tx).await?;
        }
        Ok(())
    }

    /// Writes changed lists; an existing object stays, even with an empty list.
    async fn write(&self, mos: &Objset, directory: &Dnode, tx: &Tx) -> Result<()> {
        for (name, list) in [(SPARES, &self.spares), (CACHES, &self.caches)] {
            let object = match zap::lookup_u64(directory, name.as_bytes()).await?.filter(|o| *o != 0) {
                Some(object) => ObjectId(object),
                None if list.is_empty() => continue,
                None => {
                    let object = create_packed(mos, tx).await?;
                    zap::add_u64(directory, name.as_bytes(), object.0, tx).await?;
                    object
                }
            };
            let devices = list.iter().map(|c| c.to_nvlist(ConfigForm::Aux)).collect();
            write_packed(mos, object, &NvList::new().with(name, NvValue::ListArray(devices)), tx).await?;
        }
        Ok(())
    }

    /// Reads the lists. An unreadable list is returned as an error and left empty.
    pub(crate) async fn load(mos: &Objset, directory: &Dnode) -> (AuxDevices, Vec<Error>) {
        let mut errors = Vec::new();
        let mut lists = Vec::new();
        for name in [SPARES, CACHES] {
            let list = read_list(mos, directory, name).await.at(|| format!("list of {name} devices"));
            lists.push(list.unwrap_or_else(|e| {
                errors.push(e);
                Vec::new()
            }));
        }
        let caches = lists.pop().unwrap_or_default();
        (AuxDevices { spares: lists.pop().unwrap_or_default(), caches }, errors)
    }
}

async fn read_list(mos: &Objset, directory: &Dnode, name: &str) -> Result<Vec<VdevConfig>> {
    let Some(object) = zap::lookup_u64(directory, name.as_bytes()).await?.filter(|o| *o != 0) else {
        return Ok(Vec::new());
    };
    let list = read_packed(mos, ObjectId(object)).await?;
    if !list.contains(name) {
        return Ok(Vec::new());
    }
    let devices = list.require_lists(name)?;
    if devices.len() > LIST_MAX {
        return Err(Error::corrupt(format!("it has {} entries", devices.len())));
    }
    devices.iter().map(VdevConfig::from_nvlist).collect()
}
