//! The DSL of one pool: the tree of directories and datasets.
//!
//! All directories and heads are in memory from the start; snapshots are read on demand. There is
//! at most one handle for a dataset, so that its record exists once in memory. The sync of a txg is
//! in `sync.rs`.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::rc::{Rc, Weak};

use base::{Error, ErrorKind, ObjectId, Result, TXG_SIZE};
use dmu::zap::ZapValue;
use dmu::{DmuCtx, Dnode, Objset, Tx, zap};
use ondisk::dsl::{DslDatasetPhys, DslDirPhys};
use ondisk::feature::{FeatureId, enable_closure_ids};
use ondisk::object_type::ObjectType;
use rt::LocalBoxFuture;
use txg::TxgPool;

use crate::core::Core;
use crate::crypto::Keys;
use crate::dataset::{Dataset, Place};
use crate::dir::Dir;
use crate::features::Features;
use crate::free::freeing::Freeing;
use crate::free::livelist::{LIVELIST_KEY, Live};
use crate::props::{self, PropValue};
use crate::redact::ListsInUse;
use crate::registry::Registry;
use crate::snap::snapshot::{SNAPS_CHANGED_KEY, moment};
use crate::space::PoolSpace;

/// Deepest nesting of datasets by default (`zfs_max_dataset_nesting` of OpenZFS 2.1).
pub const NESTING_MAX: usize = 50;
/// Levels that a name has room for.
pub const NESTING_MOST: usize = NAME_MAX.div_ceil(2);
/// Longest full name of a dataset (`ZFS_MAX_DATASET_NAME_LEN` less its NUL).
pub const NAME_MAX: usize = 255;

pub(crate) type Task = Box<dyn FnOnce(Rc<DslPool>, Rc<Tx>) -> LocalBoxFuture<'static, ()>>;

/// The DSL of one pool.
pub struct DslPool {
    ctx: DmuCtx,
    txg: TxgPool,
    core: Rc<Core>,
    mos: Objset,
    directory: Dnode,
    features: Rc<Features>,
    space: Rc<Cell<PoolSpace>>,
    root: RefCell<Option<Rc<Dir>>>,
    /// Datasets with a handle; directories hold their heads.
    datasets: RefCell<BTreeMap<ObjectId, Weak<Dataset>>>,
    dirs: RefCell<BTreeMap<ObjectId, Weak<Dir>>>,
    origin_snap: Cell<ObjectId>,
    pub(crate) empty_bpobj: Cell<Option<ObjectId>>,
    pub(crate) tasks: [RefCell<VecDeque<Task>>; TXG_SIZE],
    pub(crate) freeing: Freeing,
    pub(crate) live: Live,
    keys: Keys,
    /// Redaction lists that are being made or read.
    pub(crate) lists_in_use: ListsInUse,
    writable: bool,
}

/// The parts of a pool that its DSL needs.
pub struct DslSetup {
    /// The DMU of the pool.
    pub ctx: DmuCtx,
    /// Its txgs.
    pub txg: TxgPool,
    /// Shared with the accounting of the MOS.
    pub core: Rc<Core>,
    /// The MOS.
    pub mos: Objset,
    /// Object 1 of the MOS.
    pub directory: Dnode,
    /// Its features.
    pub features: Rc<Features>,
    /// False for a read-only import.
    pub writable: bool,
}

impl DslPool {
    pub(crate) fn bare(setup: DslSetup) -> Rc<DslPool> {
        Rc::new(DslPool {
            keys: Keys::new(setup.ctx.rt()),
            ctx: setup.ctx,
            txg: setup.txg,
            core: setup.core,
            mos: setup.mos,
            directory: setup.directory,
            features: setup.features,
            space: Rc::default(),
            root: RefCell::default(),
            datasets: RefCell::default(),
            dirs: RefCell::default(),
            origin_snap: Cell::default(),
            empty_bpobj: Cell::default(),
            tasks: Default::default(),
            freeing: Freeing::default(),
            live: Live::default(),
            lists_in_use: ListsInUse::default(),
            writable: setup.writable,
        })
    }

    /// Its version: 1 to 28, or 5000 with feature flags.
    pub fn version(&self) -> u64 {
        self.features.version()
    }

    /// Checks the name of a dataset that is to be made: [`check_name`], and not deeper than
    /// datasets of this pool may be now (`zfs_max_dataset_nesting`).
    ///
    /// [`check_name`]: crate::check_name
    pub fn check_new_name(&self, name: &str) -> Result<()> {
        crate::check_name(name)?;
        let most = self.core.nesting.get();
        if name.split('/').count() <= most {
            return Ok(());
        }
        let why = format!("maximum name nesting depth exceeded: '{name}' has more than {most} levels");
        Err(Error::new(ErrorKind::NameTooLong, why))
    }

    /// Whether snapshots may be made, destroyed and renamed as folders of `.zfs/snapshot`
    /// (`zfs_admin_snapshot`).
    pub fn may_admin_snapshots(&self) -> bool {
        self.core.admin_snapshot.get()
    }

    /// What its intent logs share: tunables and counters.
    pub fn intent_logs(&self) -> &Rc<zil::PoolLogs> {
        &self.core.zil
    }

    /// Opens the DSL of an existing pool: reads every directory and head.
    pub async fn open(setup: DslSetup, pool_name: &str) -> Result<Rc<DslPool>> {
        let pool = DslPool::bare(setup);
        // What was loaded refers to the pool: without this it would stay in memory.
        pool.load(pool_name).await.inspect_err(|_| pool.close())?;
        Ok(pool)
    }

    /// Loads all directories with their datasets.
    async fn load(self: &Rc<Self>, pool_name: &str) -> Result<()> {
        let root = zap::lookup_u64(&self.directory, b"root_dataset").await?;
        let root = root.ok_or_else(|| Error::corrupt("the MOS directory has no entry root_dataset"))?;
        if let Some(obj) = zap::lookup_u64(&self.directory, b"empty_bpobj").await? {
            self.empty_bpobj.set(Some(ObjectId(obj)));
        }
        let mut todo: Vec<(ObjectId, String, Option<Rc<Dir>>, usize)> =
            vec![(ObjectId(root), pool_name.to_string(), None, 0)];
        let mut seen = BTreeSet::new();
        while let Some((object, name, parent, depth)) = todo.pop() {
            if !seen.insert(object) || depth > NAME_MAX {
                return Err(Error::corrupt(format!(
                    "directory object {object} ('{name}') stands in the tree twice or too deep"
                )));
            }
            let dir = self
                .load_dir(object, name.clone(), parent.as_ref())
                .await
                .map_err(|e| e.at(format!("directory '{name}'")))?;
            if parent.is_none() {
                *self.root.borrow_mut() = Some(dir.clone());
            }
            let children = ObjectId(dir.phys().child_dir_zapobj);
            if children.0 != 0 {
                for entry in zap::list(&self.mos.hold(children).await?).await?.into_iter().rev() {
                    let child = entry.value.as_u64().unwrap_or(0);
                    let name = String::from_utf8_lossy(&entry.name).into_owned();
                    todo.push((ObjectId(child), name, Some(dir.clone()), depth + 1));
                }
            }
        }
        self.load_salt().await?;
        let origin = self.root().child("$ORIGIN").and_then(|d| d.head());
        self.origin_snap.set(ObjectId(origin.map_or(0, |o| o.phys().prev_snap_obj)));
        self.load_origins().await?;
        self.load_freeing().await
    }

    /// Loads the origin txgs that the accounting of clones needs.
    async fn load_origins(&self) -> Result<()> {
        for dir in self.root().subtree() {
            let origin = ObjectId(dir.phys().origin_obj);
            if origin.0 != 0 && origin != self.origin_snap() {
                let phys = self.mos.hold(origin).await.and_then(|dn| dn.with_bonus(DslDatasetPhys::parse));
                let phys = phys.map_err(|e| e.at(format!("origin of '{}'", dir.full_name())))?;
                dir.set_origin_txg(phys.creation_txg);
            }
        }
        Ok(())
    }

    async fn load_dir(&self, object: ObjectId, name: String, parent: Option<&Rc<Dir>>) -> Result<Rc<Dir>> {
        let dn = self.mos.hold(object).await?;
        let phys = dn.with_bonus(DslDirPhys::parse)?;
        let mut props = BTreeMap::new();
        if phys.props_zapobj != 0 {
            props = self.read_props(ObjectId(phys.props_zapobj)).await?;
        }
        let dir = self.new_dir(object, name, parent, phys, props);
        if dn.otype() == ObjectType::OTN_ZAP_METADATA {
            dir.set_livelist(zap::lookup_u64(&dn, LIVELIST_KEY).await?);
            dir.set_snapshots_changed(zap::lookup(&dn, SNAPS_CHANGED_KEY).await?.and_then(|v| moment(&v)));
        }
        dir.set_crypt(self.load_crypt(&dn).await?);
        if phys.head_dataset_obj != 0 {
            let head = self.load_dataset(ObjectId(phys.head_dataset_obj), Some(&dir)).await?;
            head.load_features().await?;
            dir.set_head(Some(head));
        }
        Ok(dir)
    }

    /// The properties in a ZAP.
    pub(crate) async fn read_props(&self, object: ObjectId) -> Result<BTreeMap<String, PropValue>> {
        Ok(self.stored_props(object).await?.into_iter().collect())
    }

    /// The stored properties of a directory or snapshot, in the order of their ZAP.
    pub(crate) async fn stored_props(&self, object: ObjectId) -> Result<Vec<(String, PropValue)>> {
        let entries = zap::list(&self.mos.hold(object).await?).await?;
        let stored = entries.into_iter().map(|entry| {
            let value = match entry.value.as_text() {
                Some(text) => PropValue::Text(text),
                None => PropValue::Num(entry.value.as_u64().unwrap_or(0)),
            };
            (String::from_utf8_lossy(&entry.name).into_owned(), value)
        });
        Ok(props::with_newer(stored.collect()))
    }

    pub(crate) fn new_dir(
        &self,
        object: ObjectId,
        name: String,
        parent: Option<&Rc<Dir>>,
        phys: DslDirPhys,
        props: BTreeMap<String, PropValue>,
    ) -> Rc<Dir> {
        let dir = Dir::new(object, name, parent, phys, props, self.space.clone(), self.registry().clone());
        self.dirs.borrow_mut().insert(object, Rc::downgrade(&dir));
        dir
    }

    /// The directory of an object number.
    pub(crate) fn dir_of(&self, object: u64) -> Result<Rc<Dir>> {
        let found = self.dirs.borrow().get(&ObjectId(object)).and_then(Weak::upgrade);
        found.ok_or_else(|| Error::corrupt(format!("directory object {object} is not in the tree of names")))
    }
    pub(crate) fn forget_dir(&self, dir: &Dir) {
        self.dirs.borrow_mut().remove(&dir.object);
        self.registry().forget(dir.object);
    }

    /// The dataset of an object number.
    pub(crate) async fn hold_dataset(&self, object: ObjectId) -> Result<Rc<Dataset>> {
        self.load_dataset(object, None).await
    }

    async fn load_dataset(&self, object: ObjectId, dir: Option<&Rc<Dir>>) -> Result<Rc<Dataset>> {
        let held = || self.datasets.borrow().get(&object).and_then(Weak::upgrade);
        if let Some(ds) = held() {
            return Ok(ds);
        }
        let place = || format!("dataset object {object}");
        let dn = self.mos.hold(object).await.map_err(|e| e.at(place()))?;
        // Another task may have read it meanwhile.
        if let Some(ds) = held() {
            return Ok(ds);
        }
        let phys = dn.with_bonus(DslDatasetPhys::parse).map_err(|e| e.at(place()))?;
        let dir = match dir {
            Some(dir) => dir.clone(),
            None => self.dir_of(phys.dir_obj).map_err(|e| e.at(place()))?,
        };
        let ds = self.new_dataset(object, phys, None, dir, self.writable);
        Ok(ds)
    }

    pub(crate) fn new_dataset(
        &self,
        object: ObjectId,
        phys: DslDatasetPhys,
        features: Option<BTreeMap<String, ZapValue>>,
        dir: Rc<Dir>,
        writable: bool,
    ) -> Rc<Dataset> {
        let place = Place { dir, mos: &self.mos, core: &self.core, ctx: &self.ctx, writable };
        let ds = Dataset::new(object, phys, features, place);
        self.datasets.borrow_mut().insert(object, Rc::downgrade(&ds));
        ds
    }

    pub(crate) fn registry(&self) -> &Rc<Registry> {
        &self.core.registry
    }

    /// The root directory.
    pub fn root(&self) -> Rc<Dir> {
        self.root.borrow().clone().expect("the root directory is set when the pool opens")
    }
    pub(crate) fn set_root(&self, root: Rc<Dir>) {
        *self.root.borrow_mut() = Some(root);
    }
    /// The MOS.
    pub fn mos(&self) -> &Objset {
        &self.mos
    }
    /// Object 1 of the MOS.
    pub fn directory(&self) -> &Dnode {
        &self.directory
    }
    /// The pool's features.
    pub fn features(&self) -> &Rc<Features> {
        &self.features
    }
    /// Enables features, and those that they need; what the DMU does otherwise with them it does
    /// from now on (syncing context).
    pub async fn enable_features(&self, wanted: &[FeatureId], tx: &Tx) -> Result<()> {
        for id in enable_closure_ids(wanted) {
            self.features.enable(id, &self.directory, tx).await?;
        }
        self.ctx.set_features(self.features.for_dmu());
        Ok(())
    }
    /// The pool's DMU.
    pub fn ctx(&self) -> &DmuCtx {
        &self.ctx
    }
    /// The pool's txgs.
    pub fn txg(&self) -> &TxgPool {
        &self.txg
    }
    /// Shared accounting.
    pub fn core(&self) -> &Rc<Core> {
        &self.core
    }
    /// False in a pool that was imported read-only.
    pub fn is_writable(&self) -> bool {
        self.writable
    }
    pub(crate) fn keys(&self) -> &Keys {
        &self.keys
    }
    pub(crate) fn origin_snap(&self) -> ObjectId {
        self.origin_snap.get()
    }
    /// The empty snapshot that file systems are clones of; none before pool version 11.
    pub(crate) async fn hold_origin(&self) -> Result<Option<Rc<Dataset>>> {
        match self.origin_snap() {
            ObjectId(0) => Ok(None),
            object => Ok(Some(self.hold_dataset(object).await?)),
        }
    }
    pub(crate) fn set_origin_snap(&self, object: ObjectId) {
        self.origin_snap.set(object);
    }

    /// Drops all directories and datasets, which refer to each other, and the sync tasks that no
    /// txg has run: what they hold may refer to the pool. The pool must not be used any more.
    pub fn close(&self) {
        for tasks in &self.tasks {
            drop(tasks.take());
        }
        self.datasets.borrow_mut().clear();
        self.dirs.borrow_mut().clear();
        self.registry().clear();
        let root = self.root.borrow_mut().take();
        let mut todo: Vec<Rc<Dir>> = root.into_iter().collect();
        while let Some(dir) = todo.pop() {
            todo.extend(dir.children());
            dir.close();
        }
    }

    /// The pool's size, pushed by the sync loop.
    pub fn set_space(&self, space: PoolSpace) {
        let settled = self.root.borrow().as_ref().map_or(0, |root| root.phys().used_bytes);
        self.space.set(PoolSpace { settled, ..space });
    }
    /// The size as last set.
    pub fn space(&self) -> PoolSpace {
        self.space.get()
    }

    /// The dataset is destroyed: drops its handle.
    pub(crate) fn forget_dataset(&self, ds: &Dataset) {
        ds.set_gone();
        ds.set_objset(None);
        self.datasets.borrow_mut().remove(&ds.object);
        self.registry().forget(ds.object);
    }

    /// The head called `name`.
    pub fn find(&self, name: &str) -> Result<Rc<Dataset>> {
        let dir = self.find_dir(name)?;
        dir.head().ok_or_else(|| Error::not_found(format!("cannot open '{name}': dataset does not exist")))
    }

    /// The directory called `name`.
    pub fn find_dir(&self, name: &str) -> Result<Rc<Dir>> {
        let missing = || Error::not_found(format!("cannot open '{name}': dataset does not exist"));
        let mut parts = name.split('/');
        let mut dir = self.root();
        if parts.next() != Some(dir.name().as_str()) {
            return Err(missing());
        }
        for part in parts {
            dir = dir.child(part).filter(|d| !d.name().starts_with('$')).ok_or_else(missing)?;
        }
        Ok(dir)
    }

    /// All heads in order of name, parents before children, without the hidden ones.
    pub fn all(&self) -> Vec<Rc<Dataset>> {
        fn walk(dir: &Rc<Dir>, out: &mut Vec<Rc<Dataset>>) {
            if dir.name().starts_with('$') {
                return;
            }
            out.extend(dir.head());
            for child in dir.children() {
                walk(&child, out);
            }
        }
        let mut out = Vec::new();
        walk(&self.root(), &mut out);
        out
    }

    /// The snapshots of a head, oldest first.
    pub async fn snapshots(&self, head: &Dataset) -> Result<Vec<Rc<Dataset>>> {
        let names = head.phys().snapnames_zapobj;
        if names == 0 {
            return Ok(Vec::new());
        }
        let mut out = Vec::new();
        for entry in zap::list(&self.mos.hold(ObjectId(names)).await?).await? {
            let object = ObjectId(entry.value.as_u64().unwrap_or(0));
            let snap = match self.load_dataset(object, None).await {
                Ok(snap) => snap,
                // Destroyed since the names were read.
                Err(e) if e.kind() == base::ErrorKind::NotFound => continue,
                Err(e) => return Err(e),
            };
            if snap.is_snapshot() {
                snap.set_snapname(&String::from_utf8_lossy(&entry.name));
                out.push(snap);
            }
        }
        out.sort_by_cached_key(|s| (s.phys().creation_txg, s.snapname()));
        Ok(out)
    }

    /// The snapshot `pool/fs@name`.
    pub async fn find_snapshot(&self, name: &str) -> Result<Rc<Dataset>> {
        let (fs, snap) = name
            .split_once('@')
            .ok_or_else(|| Error::invalid(format!("missing '@' delimiter in snapshot name '{name}'")))?;
        let found = self.snapshot_of(&*self.find(fs)?, snap).await?;
        found.ok_or_else(|| Error::not_found(format!("cannot open '{name}': dataset does not exist")))
    }

    /// The snapshot of `head` with this last part of its name.
    pub(crate) async fn snapshot_of(&self, head: &Dataset, snap: &str) -> Result<Option<Rc<Dataset>>> {
        let names = head.phys().snapnames_zapobj;
        if names == 0 {
            return Ok(None);
        }
        let names = self.mos.hold(ObjectId(names)).await?;
        let Some(object) = zap::lookup_u64(&names, snap.as_bytes()).await? else { return Ok(None) };
        let ds = self.load_dataset(ObjectId(object), None).await?;
        ds.set_snapname(snap);
        ds.load_features().await?;
        Ok(Some(ds))
    }

    /// Whether there is a snapshot of `head`.
    pub(crate) async fn has_snapshots(&self, head: &Dataset) -> Result<bool> {
        let names = head.phys().snapnames_zapobj;
        Ok(names != 0 && zap::count(&self.mos.hold(ObjectId(names)).await?).await? > 0)
    }
}
