//! Lists of work for a sync: directories and datasets with changed records, and heads with changes
//! in their object sets and directories with charges, by txg.
//!
//! A txg visits only these, so its cost depends on the changes and not on the number of datasets.
//! The order is that of object numbers, never of hashing.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::{Rc, Weak};

use base::{ObjectId, TXG_SIZE, Txg};

use crate::dataset::Dataset;
use crate::dir::Dir;

/// The lists of one pool.
#[derive(Default)]
pub(crate) struct Registry {
    dirty_dirs: RefCell<BTreeMap<ObjectId, Rc<Dir>>>,
    dirty_datasets: RefCell<BTreeMap<ObjectId, Rc<Dataset>>>,
    changed: [RefCell<BTreeMap<ObjectId, Rc<Dataset>>>; TXG_SIZE],
    charged: [RefCell<Vec<Weak<Dir>>>; TXG_SIZE],
}

impl Registry {
    /// The record of a directory changed.
    pub fn dir_dirty(&self, dir: Rc<Dir>) {
        self.dirty_dirs.borrow_mut().insert(dir.object, dir);
    }
    /// The record of a dataset changed. It stays in memory until it is written.
    pub fn dataset_dirty(&self, ds: Rc<Dataset>) {
        self.dirty_datasets.borrow_mut().insert(ds.object, ds);
    }
    /// True if a record waits to be written.
    pub fn is_dirty(&self) -> bool {
        !self.dirty_dirs.borrow().is_empty() || !self.dirty_datasets.borrow().is_empty()
    }
    /// Takes the directories to write.
    pub fn take_dirs(&self) -> Vec<Rc<Dir>> {
        std::mem::take(&mut *self.dirty_dirs.borrow_mut()).into_values().collect()
    }
    /// Takes the datasets to write.
    pub fn take_datasets(&self) -> Vec<Rc<Dataset>> {
        std::mem::take(&mut *self.dirty_datasets.borrow_mut()).into_values().collect()
    }
    /// The object is freed: drops it from the lists.
    pub fn forget(&self, object: ObjectId) {
        self.dirty_dirs.borrow_mut().remove(&object);
        self.dirty_datasets.borrow_mut().remove(&object);
        for list in &self.changed {
            list.borrow_mut().remove(&object);
        }
    }
    /// The object set of a head has changes in `txg`, or will have some.
    pub fn changed(&self, ds: Rc<Dataset>, txg: Txg) {
        self.changed[txg.slot()].borrow_mut().insert(ds.object, ds);
    }
    /// Heads whose object sets may have changes in `txg`.
    pub fn changed_in(&self, txg: Txg) -> Vec<Rc<Dataset>> {
        self.changed[txg.slot()].borrow().values().cloned().collect()
    }
    /// True if `f` holds for one of them.
    pub fn any_changed(&self, txg: Txg, f: impl Fn(&Dataset) -> bool) -> bool {
        self.changed[txg.slot()].borrow().values().any(|ds| f(ds))
    }
    /// Takes them.
    pub fn take_changed(&self, txg: Txg) -> Vec<Rc<Dataset>> {
        std::mem::take(&mut *self.changed[txg.slot()].borrow_mut()).into_values().collect()
    }
    /// The directory has its first charge in `txg`.
    pub fn charged(&self, dir: Weak<Dir>, txg: Txg) {
        self.charged[txg.slot()].borrow_mut().push(dir);
    }
    /// Takes the directories with charges in `txg`.
    pub fn take_charged(&self, txg: Txg) -> Vec<Rc<Dir>> {
        let list = std::mem::take(&mut *self.charged[txg.slot()].borrow_mut());
        list.iter().filter_map(Weak::upgrade).collect()
    }
    /// Clears all lists: the pool is closed.
    pub fn clear(&self) {
        self.dirty_dirs.borrow_mut().clear();
        self.dirty_datasets.borrow_mut().clear();
        self.changed.iter().for_each(|list| list.borrow_mut().clear());
        self.charged.iter().for_each(|list| list.borrow_mut().clear());
    }
}
