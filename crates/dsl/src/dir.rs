//! DSL directories: the tree of names, with quota, reservation, properties and the breakdown of
//! used space.
//!
//! The whole tree is loaded when the pool opens. The record in memory changes only while a txg
//! syncs; the registry then lists its bonus for writing in this pass. Space use propagates up: the
//! use of a directory, or its reservation if that is larger, is part of its parent's CHILD share
//! (format page 05 sections 1 and 5).

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::{Rc, Weak};

use base::{Error, ObjectId, Result, TXG_SIZE, Txg, WallTime};
use dmu::TxSpace;
pub use ondisk::dsl::Used;
use ondisk::dsl::{DD_FLAG_USED_BREAKDOWN, DslDirPhys};

use crate::core::{Space, change, signed};
use crate::crypto::KeyObject;
use crate::dataset::Dataset;
use crate::iolimit::Limiter;
use crate::props::{self, PropSource, PropValue};
use crate::registry::Registry;
use crate::space::{self, Admission, PoolRequest, PoolSpace, SpaceCheck, SpaceRequest};

/// One directory.
pub struct Dir {
    /// Its object in the MOS.
    pub object: ObjectId,
    name: RefCell<String>,
    parent: RefCell<Weak<Dir>>,
    children: RefCell<BTreeMap<String, Rc<Dir>>>,
    phys: RefCell<DslDirPhys>,
    props: RefCell<BTreeMap<String, PropValue>>,
    head: RefCell<Option<Rc<Dataset>>>,
    in_flight: [Cell<u64>; TXG_SIZE],
    /// Whether the registry lists this directory for the charges of the txg in that slot.
    charged: [Cell<bool>; TXG_SIZE],
    crypt: RefCell<Option<Rc<KeyObject>>>,
    pool_space: Rc<Cell<PoolSpace>>,
    /// Creation txg of the snapshot that the head was cloned from; 0 if it is no clone. Blocks born
    /// up to that txg belong to the origin's directory.
    origin_txg: Cell<u64>,
    /// The livelist of a clone.
    livelist: Cell<Option<u64>>,
    /// When a snapshot was last made, renamed or destroyed.
    snaps_changed: Cell<Option<WallTime>>,
    me: Weak<Dir>,
    registry: Rc<Registry>,
    limiter: Limiter,
}

impl Dir {
    pub(crate) fn new(
        object: ObjectId,
        name: String,
        parent: Option<&Rc<Dir>>,
        phys: DslDirPhys,
        props: BTreeMap<String, PropValue>,
        pool_space: Rc<Cell<PoolSpace>>,
        registry: Rc<Registry>,
    ) -> Rc<Dir> {
        let dir = Rc::new_cyclic(|me| Dir {
            object,
            name: RefCell::new(name.clone()),
            parent: RefCell::new(parent.map_or_else(Weak::new, Rc::downgrade)),
            children: RefCell::default(),
            phys: RefCell::new(phys),
            props: RefCell::new(props),
            head: RefCell::default(),
            in_flight: Default::default(),
            charged: Default::default(),
            crypt: RefCell::default(),
            pool_space,
            origin_txg: Cell::new(0),
            livelist: Cell::new(None),
            snaps_changed: Cell::new(None),
            me: me.clone(),
            registry,
            limiter: Limiter::default(),
        });
        for name in crate::iolimit::PROPS {
            dir.limiter.set(name, dir.local_number(name));
        }
        if let Some(parent) = parent {
            parent.children.borrow_mut().insert(name, dir.clone());
        }
        dir
    }

    /// The last part of its name; the pool's name for the root.
    pub fn name(&self) -> String {
        self.name.borrow().clone()
    }

    /// The full name, `pool/a/b`.
    pub fn full_name(&self) -> String {
        match self.parent() {
            Some(parent) => format!("{}/{}", parent.full_name(), self.name.borrow()),
            None => self.name(),
        }
    }

    /// The directory above, none for the root.
    pub fn parent(&self) -> Option<Rc<Dir>> {
        self.parent.borrow().upgrade()
    }

    /// The local value of a number property that is not inherited; 0 if not set.
    pub(crate) fn local_number(&self, name: &str) -> u64 {
        self.props.borrow().get(name).map_or(0, PropValue::num)
    }

    pub(crate) fn limiter(&self) -> &Limiter {
        &self.limiter
    }

    /// Whether this is `other` or one of the directories above it.
    pub(crate) fn is_above(&self, other: &Rc<Dir>) -> bool {
        let mut at = Some(other.clone());
        while let Some(dir) = at {
            if dir.object == self.object {
                return true;
            }
            at = dir.parent();
        }
        false
    }

    /// Whether its name is none that users give: `$MOS`, `%recv`.
    pub fn is_hidden(&self) -> bool {
        self.name.borrow().starts_with(['$', '%'])
    }

    /// Children in order of name, including the hidden `$MOS`, `$FREE`, `$ORIGIN`.
    pub fn children(&self) -> Vec<Rc<Dir>> {
        self.children.borrow().values().cloned().collect()
    }

    /// This directory and its descendants, parents first, including the hidden ones.
    pub fn subtree(self: &Rc<Self>) -> Vec<Rc<Dir>> {
        let mut out = vec![self.clone()];
        let mut i = 0;
        while i < out.len() {
            let children = out[i].children();
            out.extend(children);
            i += 1;
        }
        out
    }

    /// The child of that name.
    pub fn child(&self, name: &str) -> Option<Rc<Dir>> {
        self.children.borrow().get(name).cloned()
    }

    /// The head dataset; none for `$MOS` and `$FREE`.
    pub fn head(&self) -> Option<Rc<Dataset>> {
        self.head.borrow().clone()
    }

    pub(crate) fn set_head(&self, head: Option<Rc<Dataset>>) {
        *self.head.borrow_mut() = head;
    }

    /// Its key object; none if it is not encrypted.
    pub(crate) fn crypt(&self) -> Option<Rc<KeyObject>> {
        self.crypt.borrow().clone()
    }
    pub(crate) fn set_crypt(&self, crypt: Option<Rc<KeyObject>>) {
        *self.crypt.borrow_mut() = crypt;
    }
    /// Whether its datasets are encrypted.
    pub fn is_encrypted(&self) -> bool {
        self.crypt.borrow().is_some()
    }

    /// The current record.
    pub fn phys(&self) -> DslDirPhys {
        *self.phys.borrow()
    }

    /// Changes the record (syncing context) and marks it for writing.
    pub(crate) fn change<R>(&self, f: impl FnOnce(&mut DslDirPhys) -> R) -> R {
        if let Some(me) = self.me.upgrade() {
            self.registry.dir_dirty(me);
        }
        f(&mut self.phys.borrow_mut())
    }

    /// When a snapshot of it was last made, renamed or destroyed (`snapshots_changed`); none if the
    /// pool does not know.
    pub fn snapshots_changed(&self) -> Option<WallTime> {
        self.snaps_changed.get()
    }
    pub(crate) fn set_snapshots_changed(&self, when: Option<WallTime>) {
        self.snaps_changed.set(when);
    }

    pub(crate) fn origin_txg(&self) -> u64 {
        self.origin_txg.get()
    }
    pub(crate) fn set_livelist(&self, object: Option<u64>) {
        self.livelist.set(object);
    }
    pub(crate) fn livelist(&self) -> Option<u64> {
        self.livelist.get()
    }
    pub(crate) fn take_livelist(&self) -> Option<u64> {
        self.livelist.take()
    }
    pub(crate) fn set_origin_txg(&self, txg: u64) {
        self.origin_txg.set(txg);
    }

    pub(crate) fn attach_to(self: &Rc<Self>, parent: &Rc<Dir>, name: &str) {
        self.detach();
        *self.name.borrow_mut() = name.to_string();
        *self.parent.borrow_mut() = Rc::downgrade(parent);
        parent.children.borrow_mut().insert(name.to_string(), self.clone());
    }

    pub(crate) fn detach(&self) {
        if let Some(parent) = self.parent() {
            parent.children.borrow_mut().remove(&*self.name.borrow());
        }
        *self.parent.borrow_mut() = Weak::new();
    }

    pub(crate) fn close(&self) {
        self.children.borrow_mut().clear();
        if let Some(head) = self.head.take() {
            head.set_objset(None);
        }
    }

    /// Records a change of used space, here and up the tree (`dsl_dir_diduse_space`, syncing
    /// context).
    pub(crate) fn did_use(&self, kind: Used, space: Space) {
        let above = self.change(|p| {
            let above = space::parent_delta(p.used_bytes, p.reserved, space.used);
            p.used_bytes = p.used_bytes.saturating_add_signed(space.used);
            p.compressed_bytes = p.compressed_bytes.saturating_add_signed(space.compressed);
            p.uncompressed_bytes = p.uncompressed_bytes.saturating_add_signed(space.uncompressed);
            if p.flags & DD_FLAG_USED_BREAKDOWN != 0 {
                let share = &mut p.used_breakdown[kind as usize];
                *share = share.saturating_add_signed(space.used);
            }
            above
        });
        if let Some(parent) = self.parent() {
            parent.did_use(Used::Child, Space { used: above, ..space });
            parent.transfer(space.used.saturating_sub(above), Used::ChildRsrv, Used::Child);
        }
    }

    /// Moves bytes from one share to another (`dsl_dir_transfer_space`). Directories of pools
    /// before version 13 have none.
    pub(crate) fn transfer(&self, delta: i64, from: Used, to: Used) {
        if delta != 0 && self.phys().flags & DD_FLAG_USED_BREAKDOWN != 0 {
            self.change(|p| {
                let f = &mut p.used_breakdown[from as usize];
                *f = f.saturating_add_signed(delta.saturating_neg());
                let t = &mut p.used_breakdown[to as usize];
                *t = t.saturating_add_signed(delta);
            });
        }
    }

    /// Sets the reservation and passes the difference to the parent (syncing context).
    pub(crate) fn set_reservation(&self, reserved: u64) {
        let delta = self.change(|p| {
            let before = p.used_bytes.max(p.reserved);
            p.reserved = reserved;
            change(before, p.used_bytes.max(reserved))
        });
        if let Some(parent) = self.parent() {
            parent.did_use(Used::ChildRsrv, Space { used: delta, ..Space::default() });
        }
    }

    /// Bytes that this directory and its descendants may still write (page 14 section 1).
    pub fn available(&self) -> u64 {
        let p = self.phys.borrow();
        let mut mine = if p.quota == 0 { u64::MAX } else { p.quota };
        let from_parent = match self.parent() {
            Some(parent) => parent.available().saturating_add(p.reserved.saturating_sub(p.used_bytes)),
            None => {
                mine = mine.min(self.pool_space.get().adjusted(SpaceCheck::Normal));
                u64::MAX
            }
        };
        mine.saturating_sub(p.used_bytes).min(from_parent)
    }

    /// Bytes charged by transactions of txgs that have not synced.
    fn in_flight(&self) -> u64 {
        self.in_flight.iter().map(Cell::get).fold(0, u64::saturating_add)
    }

    /// The parent's share of `bytes` more here, on top of those in flight: less while they are
    /// covered by a reservation.
    fn parent_share(&self, bytes: u64) -> u64 {
        let p = self.phys.borrow();
        let used = p.used_bytes.saturating_add(self.in_flight());
        space::parent_delta(used, p.reserved, signed(bytes)).max(0) as u64
    }

    /// Requests `bytes` in `txg`, here and up the tree, and charges them until [`Dir::unreserve`]
    /// is called for each of `charges`.
    pub(crate) fn reserve(
        self: &Rc<Self>,
        bytes: u64,
        kind: TxSpace,
        txg: Txg,
        charges: &mut Vec<(Rc<Dir>, u64)>,
    ) -> Result<()> {
        let (used, quota) = {
            let p = self.phys.borrow();
            (p.used_bytes, p.quota)
        };
        let parent = self.parent();
        let in_flight = self.in_flight();
        let pool = self.pool_space.get();
        let check = if kind == TxSpace::Normal { SpaceCheck::Normal } else { SpaceCheck::Reserved };
        let asking = SpaceRequest {
            used,
            in_flight,
            charge: bytes,
            quota,
            net_free: matches!(kind, TxSpace::NetFree | TxSpace::Replayed),
            root: parent.is_none().then_some(PoolRequest { pool, check, replayed: kind == TxSpace::Replayed }),
        };
        match space::admit(asking) {
            Admission::Admit => {}
            Admission::Restart => return Err(base::ErrorKind::Restart.into()),
            Admission::Refuse(kind) => {
                let why = if kind == base::ErrorKind::Quota {
                    format!("the quota of '{}' is used up", self.full_name())
                } else {
                    format!("pool '{}' has no space left", self.full_name())
                };
                return Err(Error::new(kind, why));
            }
        }
        if let Some(parent) = parent {
            let above = self.parent_share(bytes);
            if above > 0 {
                parent.reserve(above, kind, txg, charges)?;
            }
        }
        self.charge(bytes, txg);
        charges.push((self.clone(), bytes));
        Ok(())
    }

    fn charge(&self, bytes: u64, txg: Txg) {
        if !self.charged[txg.slot()].replace(true) {
            self.registry.charged(self.me.clone(), txg);
        }
        let slot = &self.in_flight[txg.slot()];
        slot.set(slot.get().saturating_add(bytes));
    }

    /// Ends the charge of a transaction. It holds its txg, so the charge still exists.
    pub(crate) fn unreserve(&self, bytes: u64, txg: Txg) {
        let slot = &self.in_flight[txg.slot()];
        slot.set(slot.get().saturating_sub(bytes));
    }

    /// Charges bytes that became dirty in `txg`, here and up the tree, until the txg has synced
    /// (`dsl_dir_willuse_space`).
    pub(crate) fn will_use(&self, bytes: u64, txg: Txg) {
        if let Some(parent) = self.parent() {
            let above = self.parent_share(bytes);
            if above > 0 {
                parent.will_use(above, txg);
            }
        }
        self.charge(bytes, txg);
    }

    /// As [`dmu::SpaceGate::take_log_block`], for the root directory. No dataset is charged for log
    /// blocks; they are allocated already.
    pub(crate) fn take_log_block(&self, bytes: u64, txg: Txg) -> bool {
        let used = self.phys.borrow().used_bytes;
        let fits = space::log_block_fits(self.pool_space.get(), used, self.in_flight(), bytes);
        if fits {
            self.charge(bytes, txg);
        }
        fits
    }

    /// Ends the charges of `txg`: its real use is in the record now.
    pub(crate) fn synced(&self, txg: Txg) {
        self.in_flight[txg.slot()].set(0);
        self.charged[txg.slot()].set(false);
    }

    /// Properties that are set here.
    pub fn local_props(&self) -> BTreeMap<String, PropValue> {
        self.props.borrow().clone()
    }

    pub(crate) fn store_prop(&self, name: &str, value: Option<PropValue>) {
        self.limiter.set(name, value.as_ref().map_or(0, PropValue::num));
        match value {
            Some(value) => self.props.borrow_mut().insert(name.to_string(), value),
            None => self.props.borrow_mut().remove(name),
        };
    }

    /// A property's effective value and its source.
    pub fn prop(&self, name: &str) -> (PropValue, PropSource) {
        let prop = props::find(name);
        let name = prop.map_or(name, |p| p.name);
        if let Some(value) = self.props.borrow().get(name) {
            return (value.clone(), PropSource::Local);
        }
        let received = format!("{name}$recvd");
        let passed_over = format!("{name}$inherit");
        let inherits_explicitly = self.props.borrow().contains_key(&passed_over);
        if !inherits_explicitly && let Some(value) = self.props.borrow().get(&received) {
            return (value.clone(), PropSource::Received);
        }
        if prop.is_none_or(|p| p.inheritable()) {
            let mut at = self.parent();
            while let Some(dir) = at {
                let found = {
                    let props = dir.props.borrow();
                    let came = props.get(&received).filter(|_| !props.contains_key(&passed_over));
                    props.get(name).or(came).cloned()
                };
                if let Some(value) = found {
                    let value = if name == "mountpoint" { self.inherited_mountpoint(&dir, value) } else { value };
                    return (value, PropSource::Inherited(dir.full_name()));
                }
                at = dir.parent();
            }
        }
        let default = prop.map_or(PropValue::Text(String::new()), |p| p.default_value());
        if name == "mountpoint" {
            return (PropValue::Text(format!("/{}", self.full_name())), PropSource::Default);
        }
        (default, PropSource::Default)
    }

    /// An inherited mount point is followed by the path below the ancestor that has it.
    fn inherited_mountpoint(&self, from: &Dir, value: PropValue) -> PropValue {
        let text = value.text();
        if text == "none" || text == "legacy" {
            return value;
        }
        let full = self.full_name();
        let rest = full.strip_prefix(&from.full_name()).unwrap_or("");
        PropValue::Text(format!("{}{rest}", text.trim_end_matches('/')))
    }
}
