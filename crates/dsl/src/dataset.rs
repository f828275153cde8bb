//! Datasets: an object set with its place in the tree, its space figures and its features.
//!
//! A *head* is written to; a *snapshot* never. The object set is opened on first use. While a txg syncs, the object set reports every block
//! that is born or killed to [`Account`], which keeps the figures of the dataset and of its directory and frees what nothing else refers to
//! (format page 05 section 5).

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::rc::Rc;

use base::{Error, ErrorKind, ObjectId, Result, Txg};
use codec::{ChecksumAlgo, CompressAlgo, Compression};
use dmu::{
    BlockAccounting, DmuCtx, FeatureUse, Objset, ObjsetHooks, ObjsetProps, RedundantMetadata, Reservation, SpaceGate,
    TxSpace,
};
use ondisk::blkptr::Blkptr;
use ondisk::dsl::{DS_FLAG_INCONSISTENT, DslDatasetPhys};

use crate::core::{Core, Space};
use crate::dir::{Dir, Used};

/// A head or snapshot.
pub struct Dataset {
    /// Its object in the MOS.
    pub object: ObjectId,
    account: Rc<Account>,
    snapname: Option<String>,
    ctx: DmuCtx,
    objset: RefCell<Option<Objset>>,
    writable: bool,
    opening: rt::sync::Semaphore,
    users: Cell<u32>,
}

/// The part of a dataset that its object set talks to.
pub struct Account {
    core: Rc<Core>,
    dir: Rc<Dir>,
    phys: RefCell<DslDatasetPhys>,
    /// Feature guids that the dataset's ZAP has.
    features: RefCell<BTreeSet<String>>,
    new_features: RefCell<BTreeSet<&'static str>>,
    /// Killed blocks that an older snapshot still holds.
    deadlisted: RefCell<Vec<Blkptr>>,
    dirty: Cell<bool>,
    in_flight: [Cell<u64>; base::TXG_SIZE],
}

impl Account {
    fn change<R>(&self, f: impl FnOnce(&mut DslDatasetPhys) -> R) -> R {
        self.dirty.set(true);
        f(&mut self.phys.borrow_mut())
    }
}

fn shift(p: &mut DslDatasetPhys, s: Space) {
    p.referenced_bytes = p.referenced_bytes.saturating_add_signed(s.used);
    p.compressed_bytes = p.compressed_bytes.saturating_add_signed(s.compressed);
    p.uncompressed_bytes = p.uncompressed_bytes.saturating_add_signed(s.uncompressed);
}

impl BlockAccounting for Account {
    fn born(&self, bp: &Blkptr, _txg: Txg) {
        let space = Space::of(bp, &self.core.zio);
        self.change(|p| {
            shift(p, space);
            p.unique_bytes = p.unique_bytes.saturating_add_signed(space.used);
        });
        self.dir.did_use(Used::Head, space);
    }

    fn kill(&self, bp: &Blkptr, txg: Txg) {
        let space = Space::of(bp, &self.core.zio);
        if bp.is_hole() {
            return;
        }
        let ours = bp.birth().0 > self.phys.borrow().prev_snap_txg;
        self.change(|p| {
            shift(p, space.negated());
            if ours {
                p.unique_bytes = p.unique_bytes.saturating_add_signed(-space.used);
            }
        });
        if ours {
            self.dir.did_use(Used::Head, space.negated());
            self.core.free(bp, txg);
        } else {
            self.deadlisted.borrow_mut().push(*bp);
        }
    }
}

impl SpaceGate for Account {
    fn reserve(&self, bytes: u64, kind: TxSpace, txg: Txg) -> Result<Reservation> {
        let refquota = self.dir.prop("refquota").0.num();
        if refquota != 0 && kind == TxSpace::Normal {
            let referenced = self.phys.borrow().referenced_bytes;
            let in_flight: u64 = self.in_flight.iter().map(Cell::get).sum();
            if referenced >= refquota {
                return Err(Error::new(
                    ErrorKind::Quota,
                    format!("the refquota of '{}' is used up", self.dir.full_name()),
                ));
            }
            if referenced.saturating_add(in_flight) >= refquota.saturating_add(refquota >> 5) {
                return Err(ErrorKind::Restart.into());
            }
        }
        self.dir.reserve(bytes, kind, txg)?;
        let slot = &self.in_flight[txg.slot()];
        slot.set(slot.get().saturating_add(bytes));
        Ok(Reservation(None))
    }
}

impl FeatureUse for Account {
    fn activate(&self, feature_guid: &'static str, _txg: Txg) {
        if !self.features.borrow().contains(feature_guid) {
            self.new_features.borrow_mut().insert(feature_guid);
        }
    }
}

impl Dataset {
    pub(crate) fn new(
        object: ObjectId,
        dir: Rc<Dir>,
        phys: DslDatasetPhys,
        features: BTreeSet<String>,
        snapname: Option<String>,
        core: Rc<Core>,
        ctx: DmuCtx,
        writable: bool,
    ) -> Rc<Dataset> {
        let account = Account {
            core,
            dir,
            phys: RefCell::new(phys),
            features: RefCell::new(features),
            new_features: RefCell::default(),
            deadlisted: RefCell::default(),
            dirty: Cell::new(false),
            in_flight: Default::default(),
        };
        Rc::new(Dataset {
            object,
            account: Rc::new(account),
            writable: writable && snapname.is_none(),
            snapname,
            ctx,
            objset: RefCell::default(),
            opening: rt::sync::Semaphore::new(1),
            users: Cell::new(0),
        })
    }

    /// Its directory.
    pub fn dir(&self) -> &Rc<Dir> {
        &self.account.dir
    }

    /// `pool/fs` or `pool/fs@snapshot`.
    pub fn name(&self) -> String {
        match &self.snapname {
            Some(snap) => format!("{}@{snap}", self.dir().full_name()),
            None => self.dir().full_name(),
        }
    }

    /// True for snapshots.
    pub fn is_snapshot(&self) -> bool {
        self.snapname.is_some()
    }

    /// True if it may be written to at all (a head in a pool imported read-write).
    pub fn is_writable(&self) -> bool {
        self.writable
    }

    /// The record as it is now.
    pub fn phys(&self) -> DslDatasetPhys {
        *self.account.phys.borrow()
    }

    /// Changes the record (syncing context) and marks it for writing.
    pub(crate) fn change<R>(&self, f: impl FnOnce(&mut DslDatasetPhys) -> R) -> R {
        self.account.change(f)
    }

    pub(crate) fn account(&self) -> &Rc<Account> {
        &self.account
    }
    pub(crate) fn is_dirty(&self) -> bool {
        self.account.dirty.get()
    }
    pub(crate) fn take_dirty(&self) -> bool {
        self.account.dirty.replace(false)
    }
    pub(crate) fn take_new_features(&self) -> BTreeSet<&'static str> {
        self.account.new_features.take()
    }
    pub(crate) fn take_deadlisted(&self) -> Vec<Blkptr> {
        self.account.deadlisted.take()
    }
    pub(crate) fn note_feature(&self, guid: &str) {
        self.account.features.borrow_mut().insert(guid.to_string());
    }
    pub(crate) fn synced(&self, txg: Txg) {
        self.account.in_flight[txg.slot()].set(0);
    }

    /// Feature guids that this dataset uses.
    pub fn features(&self) -> BTreeSet<String> {
        self.account.features.borrow().clone()
    }

    /// An error if the dataset's content must not be shown, because it is not all there: a receive has filled it in part, or it was received from a redacted stream.
    pub fn check_complete(&self) -> Result<()> {
        if self.phys().flags & DS_FLAG_INCONSISTENT != 0 {
            return Err(Error::new(
                ErrorKind::Busy,
                format!("dataset '{}' was received in part only: finish the receive or destroy it", self.name()),
            ));
        }
        if self.account.features.borrow().contains("com.delphix:redacted_datasets") {
            return Err(Error::unsupported(format!(
                "dataset '{}' was received from a redacted stream and lacks blocks, which weir does not show",
                self.name()
            )));
        }
        Ok(())
    }

    /// Somebody begins to use the file system (a mount); such a dataset is busy.
    pub fn begin_use(&self) {
        self.users.set(self.users.get() + 1);
    }
    /// The use ends.
    pub fn end_use(&self) {
        self.users.set(self.users.get().saturating_sub(1));
    }
    /// True while somebody uses it.
    pub fn is_used(&self) -> bool {
        self.users.get() > 0
    }

    /// The object set if it is open.
    pub fn opened(&self) -> Option<Objset> {
        self.objset.borrow().clone()
    }

    pub(crate) fn set_objset(&self, os: Option<Objset>) {
        *self.objset.borrow_mut() = os;
    }

    /// The object set, opened now if it was not.
    pub async fn objset(&self) -> Result<Objset> {
        if let Some(os) = self.opened() {
            return Ok(os);
        }
        let _one = self.opening.acquire(1).await;
        if let Some(os) = self.opened() {
            return Ok(os);
        }
        let bp = self.phys().bp;
        if bp.is_hole() {
            return Err(Error::corrupt(format!("dataset '{}' has no object set", self.name())));
        }
        if self.account.features.borrow().contains("com.datto:encryption") {
            return Err(Error::unsupported(format!(
                "dataset '{}' is encrypted, which weir does not read yet",
                self.name()
            )));
        }
        let hooks = ObjsetHooks {
            acct: self.account.clone(),
            gate: Some(self.account.clone()),
            feat: Some(self.account.clone()),
        };
        let os = Objset::open(self.ctx.clone(), self.object.0, bp, self.objset_props(), hooks, self.writable)
            .await
            .map_err(|e| e.at(format!("dataset '{}'", self.name())))?;
        self.set_objset(Some(os.clone()));
        Ok(os)
    }

    /// What the object set must know of the properties.
    pub fn objset_props(&self) -> ObjsetProps {
        let dir = self.dir();
        let num = |name: &str| dir.prop(name).0.num();
        let compression = match Compression::from_prop(num("compression")) {
            Some(c) if c.algo == CompressAlgo::On => Compression::LZ4,
            Some(c) => c,
            None => Compression::OFF,
        };
        let checksum = match ChecksumAlgo::from_u8((num("checksum") & 0xff) as u8) {
            Some(ChecksumAlgo::On) | Some(ChecksumAlgo::Inherit) | None => ChecksumAlgo::Fletcher4,
            Some(c) => c,
        };
        ObjsetProps {
            compression,
            checksum,
            copies: num("copies").clamp(1, 3) as u8,
            recordsize: num("recordsize").clamp(512, 1 << 20) as u32,
            redundant_metadata: match num("redundant_metadata") {
                1 => RedundantMetadata::Most,
                2 => RedundantMetadata::Some,
                3 => RedundantMetadata::None,
                _ => RedundantMetadata::All,
            },
            dnodesize: match num("dnodesize") {
                0 => 512,
                1 => 1024,
                n => n.clamp(512, 16384) as u32,
            },
        }
    }

    /// Pushes changed properties to the open object set.
    pub(crate) fn push_props(&self) {
        if let Some(os) = self.opened() {
            os.set_props(self.objset_props());
        }
    }

    /// Bytes that may still be written, quotas and reservations counted.
    pub fn available(&self) -> u64 {
        let num = |name: &str| self.dir().prop(name).0.num();
        let phys = self.phys();
        // What its refreservation still holds back is counted as used everywhere but here.
        let held = num("refreservation").saturating_sub(phys.unique_bytes);
        let available = self.dir().available().saturating_add(held);
        let refquota = num("refquota");
        if refquota == 0 { available } else { available.min(refquota.saturating_sub(phys.referenced_bytes)) }
    }
}
