//! The configuration of a pool: the nvlist in the MOS and the one in each label, both derived from
//! the vdev tree and the pool's state.
//!
//! [`Config`] has what is not in the tree. Whoever changes it or the tree marks it; the next txg
//! writes both forms.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use base::{Error, ErrorKind, Guid, ObjectId, Result, ResultExt, Txg};
use dmu::{ObjSpec, Objset, Tx};
use ondisk::bytes::le64;
use ondisk::label::{MosConfig, PoolState};
use ondisk::nvlist::NvList;
use ondisk::object_type::ObjectType;
use ondisk::vdev_config::VdevConfig;
use vdev::Top;

use crate::stack::Stack;

/// Block size of packed nvlist objects (format page 03 section 7).
const PACKED_BLKSZ: u32 = 16 << 10;
/// Largest packed nvlist that is read, in bytes; typical ones have a few KiB to a few hundred.
const PACKED_MAX: u64 = 64 << 20;

/// The configuration of an imported pool.
pub(crate) struct Config {
    stack: Rc<Stack>,
    /// All but the vdev tree.
    now: RefCell<MosConfig>,
    dirty: Cell<bool>,
    /// Its object in the MOS.
    object: ObjectId,
    /// The name on the devices, if it differs from the current one (`zpool import -t`).
    on_disk_name: Option<String>,
}

impl Config {
    /// The configuration `now`, whose object is `object`; a `dirty` one is written with the first
    /// txg.
    pub(crate) fn new(
        stack: &Rc<Stack>,
        now: MosConfig,
        dirty: bool,
        object: ObjectId,
        on_disk_name: Option<String>,
    ) -> Rc<Config> {
        let (stack, now, dirty) = (stack.clone(), RefCell::new(now), Cell::new(dirty));
        Rc::new(Config { stack, now, dirty, object, on_disk_name })
    }

    /// The pool's name.
    pub(crate) fn name(&self) -> String {
        self.now.borrow().name.clone()
    }

    /// The pool's version.
    pub(crate) fn version(&self) -> u64 {
        self.now.borrow().version
    }

    /// The pool's state.
    pub(crate) fn state(&self) -> PoolState {
        self.now.borrow().state
    }

    /// The ZAP of the root vdev.
    pub(crate) fn root_zap(&self) -> Option<ObjectId> {
        self.now.borrow().vdev_tree.zap_root.filter(|o| o.0 != 0)
    }

    /// Changes it, to be written by [`Config::mark_dirty`].
    pub(crate) fn update(&self, f: impl FnOnce(&mut MosConfig)) {
        f(&mut self.now.borrow_mut());
    }

    /// Marks it for writing with the next txg: MOS object and labels.
    pub(crate) fn mark_dirty(&self) {
        self.dirty.set(true);
    }

    /// Whether the next txg writes it.
    pub(crate) fn is_dirty(&self) -> bool {
        self.dirty.get()
    }

    /// An error if the pool is imported read-only.
    pub(crate) fn check_writable(&self) -> Result<()> {
        if self.stack.readonly {
            return Err(Error::new(ErrorKind::ReadOnly, format!("pool '{}' is imported read-only", self.name())));
        }
        Ok(())
    }

    /// The configuration for the MOS.
    pub(crate) fn full(&self) -> MosConfig {
        let mut config = self.now.borrow().clone();
        if let Some(name) = &self.on_disk_name {
            config.name.clone_from(name);
        }
        config.vdev_tree.children = self.stack.tree.tops.borrow().iter().map(|t| t.config()).collect();
        config.vdev_children = Some(config.vdev_tree.children.len() as u64);
        config.features_for_read = self.stack.features.for_labels();
        config
    }

    /// The configuration as of `txg`.
    pub(crate) fn at(&self, txg: Txg) -> MosConfig {
        let mut config = self.full();
        config.txg = txg;
        config
    }

    /// The configuration to write with `txg`, if it changed. Changes from now on are for the next
    /// txg.
    pub(crate) fn take_dirty(&self, txg: Txg) -> Option<MosConfig> {
        self.dirty.replace(false).then(|| self.at(txg))
    }

    /// Writes the object in the MOS.
    pub(crate) async fn write(&self, config: &MosConfig, tx: &Tx) -> Result<()> {
        write_packed(&self.stack.mos, self.object, &config.to_nvlist(), tx).await
    }

    /// The label of a leaf of the tree with txg 0, which no import takes.
    pub(crate) fn blank_label(&self, top: &Top, guid: Guid) -> Option<NvList> {
        self.at(Txg(0)).label_for(top.id.0 as usize, guid).map(|l| l.to_nvlist())
    }

    /// The label with txg 0 of a leaf, for a top-level vdev with the configuration `tree`.
    pub(crate) fn label_in(&self, top: &Top, tree: &VdevConfig, guid: Guid) -> Result<NvList> {
        let mut config = self.at(Txg(0));
        let at = top.id.0 as usize;
        if let Some(place) = config.vdev_tree.children.get_mut(at) {
            *place = tree.clone();
        }
        let label = config.label_for(at, guid);
        label.map(|l| l.to_nvlist()).ok_or_else(|| Error::corrupt("the new device is not in the configuration"))
    }
}

/// Creates an object for a packed nvlist.
pub(crate) async fn create_packed(mos: &Objset, tx: &Tx) -> Result<ObjectId> {
    let spec = ObjSpec::new(ObjectType::PACKED_NVLIST, PACKED_BLKSZ).bonus(ObjectType::PACKED_NVLIST_SIZE, 8);
    Ok(mos.alloc(spec, tx).await?.object())
}

/// Replaces the list in such an object.
pub(crate) async fn write_packed(mos: &Objset, object: ObjectId, list: &NvList, tx: &Tx) -> Result<()> {
    let dn = mos.hold(object).await?;
    let bytes = list.encode_xdr();
    dn.write(0, &bytes, tx).await?;
    dn.set_bonus(&(bytes.len() as u64).to_le_bytes(), tx)
}

/// Reads the list of such an object.
pub(crate) async fn read_packed(mos: &Objset, object: ObjectId) -> Result<NvList> {
    let place = || format!("packed nvlist object {object}");
    let dn = mos.hold(object).await.at(place)?;
    let len = dn.with_bonus(|b| if b.len() >= 8 { le64(b, 0) } else { 0 });
    if len == 0 || len > PACKED_MAX {
        return Err(Error::corrupt(format!("{} says that it has {len} bytes", place())));
    }
    let mut bytes = vec![0; len as usize];
    dn.read(0, &mut bytes).await.at(place)?;
    NvList::decode(&bytes).at(place)
}
