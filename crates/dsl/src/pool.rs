//! The DSL of one pool: the tree of directories and datasets, and what the DSL does while a txg syncs.
//!
//! Each pass of a txg (format page 06 section 9): dirty object sets are written, the space that the MOS gained in the pass before is charged to
//! `$MOS`, sync tasks run (in the first pass), and the records of changed directories and datasets go into their bonuses. The MOS itself and the space
//! maps are written by `spa` afterwards, which calls again until nothing is dirty.
//!
//! Only the sync loop changes the MOS. Whoever wants a change hands in a *sync task* ([`DslPool::sync_task`]) and waits for its txg.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::rc::Rc;

use base::{Error, ErrorKind, ObjectId, Result, TXG_SIZE, Txg};
use dmu::{DmuCtx, Dnode, LocalBoxFuture, Objset, Tx, zap};
use ondisk::dsl::{DslDatasetPhys, DslDirPhys};
use ondisk::feature::FeatureId;
use ondisk::object_type::ObjectType;
use rt::sync::oneshot;
use txg::TxgPool;
use zio::WriteDone;

use crate::core::{Core, Space};
use crate::dataset::Dataset;
use crate::dir::{Dir, Used};
use crate::features::Features;
use crate::props::PropValue;
use crate::space::{PoolSpace, SpaceCheck};

/// Deepest nesting of datasets (`zfs_max_dataset_nesting` of OpenZFS 2.1).
pub const NESTING_MAX: usize = 50;
/// Longest full name of a dataset (`ZFS_MAX_DATASET_NAME_LEN` less its NUL).
pub const NAME_MAX: usize = 255;

type Task = Box<dyn FnOnce(Rc<DslPool>, Rc<Tx>) -> LocalBoxFuture<'static, ()>>;

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
    datasets: RefCell<BTreeMap<ObjectId, Rc<Dataset>>>,
    origin_snap: Cell<ObjectId>,
    empty_bpobj: Cell<Option<ObjectId>>,
    tasks: [RefCell<VecDeque<Task>>; TXG_SIZE],
    writable: bool,
}

/// What a pool hands to its DSL.
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
            ctx: setup.ctx,
            txg: setup.txg,
            core: setup.core,
            mos: setup.mos,
            directory: setup.directory,
            features: setup.features,
            space: Rc::default(),
            root: RefCell::default(),
            datasets: RefCell::default(),
            origin_snap: Cell::default(),
            empty_bpobj: Cell::default(),
            tasks: Default::default(),
            writable: setup.writable,
        })
    }

    /// Opens the DSL of an existing pool: reads every directory and head.
    pub async fn open(setup: DslSetup, pool_name: &str) -> Result<Rc<DslPool>> {
        let pool = DslPool::bare(setup);
        let root = zap::lookup_u64(&pool.directory, b"root_dataset").await?;
        let root = root.ok_or_else(|| Error::corrupt("the MOS directory has no entry root_dataset"))?;
        if let Some(obj) = zap::lookup_u64(&pool.directory, b"empty_bpobj").await? {
            pool.empty_bpobj.set(Some(ObjectId(obj)));
        }
        let mut todo: Vec<(ObjectId, String, Option<Rc<Dir>>, usize)> =
            vec![(ObjectId(root), pool_name.to_string(), None, 0)];
        let mut seen = BTreeSet::new();
        while let Some((object, name, parent, depth)) = todo.pop() {
            if !seen.insert(object) || depth > 2 * NESTING_MAX {
                return Err(Error::corrupt(format!(
                    "directory object {object} ('{name}') stands in the tree twice or too deep"
                )));
            }
            let dir = pool
                .load_dir(object, name.clone(), parent.as_ref())
                .await
                .map_err(|e| e.at(format!("directory '{name}'")))?;
            if parent.is_none() {
                *pool.root.borrow_mut() = Some(dir.clone());
            }
            let children = ObjectId(dir.phys().child_dir_zapobj);
            if children.0 != 0 {
                for entry in zap::list(&pool.mos.hold(children).await?).await?.into_iter().rev() {
                    let child = entry.value.as_u64().unwrap_or(0);
                    let name = String::from_utf8_lossy(&entry.name).into_owned();
                    todo.push((ObjectId(child), name, Some(dir.clone()), depth + 1));
                }
            }
        }
        let origin = pool.root().child("$ORIGIN").and_then(|d| d.head());
        pool.origin_snap.set(ObjectId(origin.map_or(0, |o| o.phys().prev_snap_obj)));
        Ok(pool)
    }

    async fn load_dir(&self, object: ObjectId, name: String, parent: Option<&Rc<Dir>>) -> Result<Rc<Dir>> {
        let dn = self.mos.hold(object).await?;
        let phys = dn.with_bonus(DslDirPhys::parse)?;
        let mut props = BTreeMap::new();
        if phys.props_zapobj != 0 {
            for entry in zap::list(&self.mos.hold(ObjectId(phys.props_zapobj)).await?).await? {
                let name = String::from_utf8_lossy(&entry.name).into_owned();
                let value = match entry.value.as_text() {
                    Some(text) => PropValue::Text(text),
                    None => PropValue::Num(entry.value.as_u64().unwrap_or(0)),
                };
                props.insert(name, value);
            }
        }
        let dir = Dir::new(object, name, parent, phys, props, self.space.clone());
        if phys.head_dataset_obj != 0 {
            let head = self.load_dataset(ObjectId(phys.head_dataset_obj), &dir, None).await?;
            dir.set_head(Some(head.clone()));
            self.datasets.borrow_mut().insert(head.object, head);
        }
        Ok(dir)
    }

    async fn load_dataset(&self, object: ObjectId, dir: &Rc<Dir>, snapname: Option<String>) -> Result<Rc<Dataset>> {
        let dn = self.mos.hold(object).await.map_err(|e| e.at(format!("dataset object {object}")))?;
        let phys = dn.with_bonus(DslDatasetPhys::parse)?;
        let mut features = BTreeSet::new();
        if dn.otype() == ObjectType::OTN_ZAP_METADATA {
            for entry in zap::list(&dn).await? {
                let name = String::from_utf8_lossy(&entry.name).into_owned();
                if FeatureId::by_guid(&name).is_some_and(|f| f.get().per_dataset) {
                    features.insert(name);
                }
            }
        }
        Ok(Dataset::new(
            object,
            dir.clone(),
            phys,
            features,
            snapname,
            self.core.clone(),
            self.ctx.clone(),
            self.writable,
        ))
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
    pub(crate) fn origin_snap(&self) -> ObjectId {
        self.origin_snap.get()
    }
    pub(crate) fn set_origin_snap(&self, object: ObjectId) {
        self.origin_snap.set(object);
    }
    pub(crate) fn space_cell(&self) -> &Rc<Cell<PoolSpace>> {
        &self.space
    }

    /// Forgets all directories and datasets, which refer to each other. The pool is not used any more.
    pub fn close(&self) {
        self.datasets.borrow_mut().clear();
        let root = self.root.borrow_mut().take();
        let mut todo: Vec<Rc<Dir>> = root.into_iter().collect();
        while let Some(dir) = todo.pop() {
            todo.extend(dir.children());
            dir.close();
        }
    }

    /// The pool's size, pushed by the sync loop.
    pub fn set_space(&self, space: PoolSpace) {
        self.space.set(space);
    }
    /// The size as last pushed.
    pub fn space(&self) -> PoolSpace {
        self.space.get()
    }

    pub(crate) fn add_dataset(&self, ds: &Rc<Dataset>) {
        ds.dir().set_head(Some(ds.clone()));
        self.datasets.borrow_mut().insert(ds.object, ds.clone());
    }
    pub(crate) fn drop_dataset(&self, ds: &Dataset) {
        self.datasets.borrow_mut().remove(&ds.object);
        ds.dir().set_head(None);
    }

    /// The head called `name`.
    pub fn find(&self, name: &str) -> Result<Rc<Dataset>> {
        let dir = self.find_dir(name)?;
        dir.head().ok_or_else(|| Error::not_found(format!("dataset '{name}' does not exist")))
    }

    /// The directory called `name`.
    pub fn find_dir(&self, name: &str) -> Result<Rc<Dir>> {
        let missing = || Error::not_found(format!("dataset '{name}' does not exist"));
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

    /// All heads in order of name, parents before children, the hidden ones left out.
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
            let name = String::from_utf8_lossy(&entry.name).into_owned();
            out.push(self.load_dataset(object, head.dir(), Some(name)).await?);
        }
        out.sort_by_key(|s| (s.phys().creation_txg, s.name()));
        Ok(out)
    }

    /// The snapshot `pool/fs@name`.
    pub async fn find_snapshot(&self, name: &str) -> Result<Rc<Dataset>> {
        let (fs, snap) =
            name.split_once('@').ok_or_else(|| Error::invalid(format!("'{name}' is not the name of a snapshot")))?;
        let head = self.find(fs)?;
        let missing = || Error::not_found(format!("snapshot '{name}' does not exist"));
        let names = self.mos.hold(ObjectId(head.phys().snapnames_zapobj)).await?;
        let object = zap::lookup_u64(&names, snap.as_bytes()).await?.ok_or_else(missing)?;
        self.load_dataset(ObjectId(object), head.dir(), Some(snap.to_string())).await
    }

    /// Runs `task` in the syncing context of the next txg and waits until that txg is on disk. The task must check everything before
    /// it changes anything: an error from it must leave the MOS as it was.
    pub async fn sync_task<T: 'static>(
        self: &Rc<Self>,
        task: impl FnOnce(Rc<DslPool>, Rc<Tx>) -> LocalBoxFuture<'static, Result<T>> + 'static,
    ) -> Result<T> {
        if !self.writable {
            return Err(Error::new(
                ErrorKind::ReadOnly,
                format!("pool '{}' is imported read-only", self.root().name()),
            ));
        }
        let (sender, receiver) = oneshot::<Result<T>>();
        let hold = self.txg.hold_open().await;
        let txg = hold.txg;
        self.tasks[txg.slot()].borrow_mut().push_back(Box::new(move |pool, tx| {
            Box::pin(async move {
                let result = task(pool, tx).await;
                // Whoever asked may have gone away; the change stays.
                let _ = sender.send(result);
            })
        }));
        drop(hold);
        self.txg.wait_synced(txg).await?;
        receiver
            .await
            .unwrap_or_else(|| Err(Error::new(ErrorKind::Interrupted, "the pool stopped before the change was made")))
    }

    /// Fails with ENOSPC if a task that changes `blocks` blocks has no room (page 14 section 2).
    pub fn check_space(&self, check: SpaceCheck, blocks: u64) -> Result<()> {
        let space = self.space.get();
        let room = space.adjusted(check).saturating_sub(space.deferred);
        if self.root().phys().used_bytes.saturating_add(3 * (blocks << 14)) > room {
            return Err(Error::new(
                ErrorKind::NoSpace,
                format!("pool '{}' has no space left for this change", self.root().name()),
            ));
        }
        Ok(())
    }

    /// True if something of the DSL still waits to be written in `txg`.
    pub fn is_dirty(&self, txg: Txg) -> bool {
        !self.tasks[txg.slot()].borrow().is_empty()
            || self.core.has_mos_delta()
            || self.datasets.borrow().values().any(|d| d.is_dirty() || d.opened().is_some_and(|os| os.is_dirty(txg)))
            || self.dirty_dirs().next().is_some()
    }

    fn dirty_dirs(&self) -> impl Iterator<Item = Rc<Dir>> {
        let mut out = Vec::new();
        let mut todo = vec![self.root()];
        while let Some(dir) = todo.pop() {
            todo.extend(dir.children());
            if dir.is_dirty() {
                out.push(dir);
            }
        }
        out.sort_by_key(|d| d.object);
        out.into_iter()
    }

    /// Writes what is dirty in `txg`; returns the device writes still under way.
    pub async fn sync(self: &Rc<Self>, txg: Txg, pass: u32) -> Result<Vec<WriteDone>> {
        let tx = Rc::new(Tx::syncing(txg));
        self.core.pass.set(pass);
        let mut done = Vec::new();
        self.sync_datasets(txg, pass, &tx, &mut done).await?;
        let delta = self.core.take_mos_delta();
        if delta != Space::default()
            && let Some(mos_dir) = self.root().child("$MOS")
        {
            mos_dir.did_use(Used::Head, delta);
        }
        if pass == 1 {
            loop {
                let next = self.tasks[txg.slot()].borrow_mut().pop_front();
                let Some(task) = next else { break };
                task(self.clone(), tx.clone()).await;
            }
        }
        self.write_records(&tx).await?;
        Ok(done)
    }

    async fn sync_datasets(self: &Rc<Self>, txg: Txg, pass: u32, tx: &Tx, done: &mut Vec<WriteDone>) -> Result<()> {
        let all: Vec<Rc<Dataset>> = self.datasets.borrow().values().cloned().collect();
        for ds in all {
            let Some(os) = ds.opened() else { continue };
            if !os.is_dirty(txg) {
                continue;
            }
            if let Some(root) = os.sync(txg, pass).await.map_err(|e| e.at(format!("dataset '{}'", ds.name())))? {
                ds.change(|p| p.bp = root.bp);
                done.extend(root.done);
            }
            self.activate_features(&ds, tx).await?;
            let dead = ds.take_deadlisted();
            assert!(
                dead.is_empty(),
                "blocks of snapshots were freed in '{}', whose snapshots cannot be written yet",
                ds.name()
            );
        }
        Ok(())
    }

    /// Marks features that a dataset began to use in this txg.
    pub(crate) async fn activate_features(&self, ds: &Dataset, tx: &Tx) -> Result<()> {
        for guid in ds.take_new_features() {
            let Some(id) = FeatureId::by_guid(guid) else { continue };
            let dn = self.zapify(ds.object, tx).await?;
            if zap::lookup_u64(&dn, guid.as_bytes()).await?.is_none() {
                zap::add_u64(&dn, guid.as_bytes(), 0, tx).await?;
                self.features.add(id, 1, tx).await?;
            }
            ds.note_feature(guid);
        }
        Ok(())
    }

    /// Gives a directory or dataset object a ZAP for named values (format page 03 section 7).
    pub(crate) async fn zapify(&self, object: ObjectId, tx: &Tx) -> Result<Dnode> {
        let dn = self.mos.hold(object).await?;
        if dn.otype() != ObjectType::OTN_ZAP_METADATA {
            dn.set_type(ObjectType::OTN_ZAP_METADATA, tx)?;
            zap::init(&dn, 0, tx).await?;
            self.features.add(FeatureId::ExtensibleDataset, 1, tx).await?;
        }
        Ok(dn)
    }

    async fn write_records(&self, tx: &Tx) -> Result<()> {
        for dir in self.dirty_dirs() {
            if dir.take_dirty() {
                self.mos.hold(dir.object).await?.set_bonus(&dir.phys().to_bytes(), tx)?;
            }
        }
        let all: Vec<Rc<Dataset>> = self.datasets.borrow().values().cloned().collect();
        for ds in all {
            if ds.take_dirty() {
                self.mos.hold(ds.object).await?.set_bonus(&ds.phys().to_bytes(), tx)?;
            }
        }
        Ok(())
    }

    /// The txg is on disk: charges of its transactions end.
    pub fn synced(&self, txg: Txg) {
        self.root().synced(txg);
        for ds in self.datasets.borrow().values() {
            ds.synced(txg);
        }
    }

    /// A reference to the shared empty list, made on first use (format page 15 section 1); a private empty list where the feature is off.
    pub(crate) async fn empty_list(&self, tx: &Tx) -> Result<ObjectId> {
        if !self.features.is_enabled(FeatureId::EmptyBpobj) {
            return dmu::bpobj::create(&self.mos, ondisk::bpobj::BPOBJ_BLKSZ, tx).await;
        }
        let object = match self.empty_bpobj.get() {
            Some(object) => object,
            None => {
                let object = dmu::bpobj::create(&self.mos, ondisk::bpobj::BPOBJ_BLKSZ, tx).await?;
                zap::add_u64(&self.directory, b"empty_bpobj", object.0, tx).await?;
                self.empty_bpobj.set(Some(object));
                object
            }
        };
        self.features.add(FeatureId::EmptyBpobj, 1, tx).await?;
        Ok(object)
    }

    /// Gives back a list of no entries: a reference to the shared one, or the object itself.
    pub(crate) async fn drop_empty_list(&self, object: ObjectId, tx: &Tx) -> Result<()> {
        if self.empty_bpobj.get() != Some(object) {
            return dmu::bpobj::free(&self.mos, object, tx).await;
        }
        self.features.add(FeatureId::EmptyBpobj, -1, tx).await?;
        if !self.features.is_active(FeatureId::EmptyBpobj) {
            zap::remove(&self.directory, b"empty_bpobj", tx).await?;
            self.empty_bpobj.set(None);
            dmu::bpobj::free(&self.mos, object, tx).await?;
        }
        Ok(())
    }
}
