//! An imported pool: the assembled layers, its state, and the tasks that run it.

use std::cell::{Cell, OnceCell, RefCell};
use std::rc::Rc;

use arc::Arc;
use base::{Error, ErrorKind, Guid, ObjectId, Result, Txg};
use dmu::{DmuCtx, DmuFeatures, Dnode, Objset, ObjsetHooks, zap};
use dsl::core::{Core, MosAccounting};
use dsl::features::Features;
use dsl::space::PoolSpace;
use dsl::{DslPool, DslSetup};
use metaslab::{AllocTunables, Allocator, ClassKind, MsSummary, RangeTree};
use ondisk::label::{MosConfig, PoolState};
use ondisk::nvlist::NvList;
use ondisk::uberblock::Uberblock;
use rt::join::{Either, select2};
use rt::{JoinHandle, Rt};
use txg::{TxgPool, TxgTunables};
use vdev::{DirtyGauge, FailMode, QueueTunables, Top, VdevTree};
use zio::{Zio, ZioOpts};

use crate::commit::checkpoint::{Checkpoint, CheckpointRequest};
use crate::commit::ddt::Ddt;
use crate::commit::logs::Logs;
use crate::commit::store::{Geometry, MapStore};
use crate::devices::DeviceWork;
use crate::devices::aux::AuxDevices;
use crate::devices::leaf_work::LeafWork;
use crate::scan::{Scan, ScanTunables};
use crate::zevent::PoolEvents;

/// Most metaslabs of a top-level vdev (`zfs_vdev_ms_count_limit` of OpenZFS 2.1).
pub(crate) const METASLABS_MAX: u64 = 1 << 17;

/// Entry of a top-level vdev's ZAP: its allocation class.
pub(crate) const BIAS_KEY: &[u8] = b"org.zfsonlinux:allocation_bias";

/// Limits and tunables of one pool, given when it is created or imported.
#[derive(Clone, Debug)]
pub struct EngineOpts {
    /// `zfs_arc_max`: most bytes that the cache may hold.
    pub arc_max: u64,
    /// Dirty-data limits and the write throttle.
    pub txg: TxgTunables,
    /// The leaf queues.
    pub queue: QueueTunables,
    /// Block layer.
    pub zio: ZioOpts,
    /// Allocator.
    pub alloc: AllocTunables,
    /// Scrub and resilver.
    pub scan: ScanTunables,
}

impl EngineOpts {
    /// OpenZFS's defaults for a machine with `physmem` bytes: half of it for the cache
    /// (`zfs_arc_max` of 2.1 on Linux).
    pub fn for_memory(physmem: u64) -> EngineOpts {
        EngineOpts {
            arc_max: (physmem / 2).max(64 << 20),
            txg: TxgTunables::for_memory(physmem),
            queue: QueueTunables::default(),
            zio: ZioOpts::default(),
            alloc: AllocTunables::default(),
            scan: ScanTunables::default(),
        }
    }
}

/// An imported pool.
pub struct Pool {
    pub(crate) rt: Rt,
    pub(crate) guid: Guid,
    pub(crate) tree: Rc<VdevTree>,
    pub(crate) alloc: Rc<Allocator>,
    pub(crate) arc: Arc,
    pub(crate) txg: TxgPool,
    pub(crate) ctx: DmuCtx,
    pub(crate) mos: Objset,
    pub(crate) directory: Dnode,
    pub(crate) features: Rc<Features>,
    pub(crate) core: Rc<Core>,
    pub(crate) store: Rc<MapStore>,
    /// Log space maps of the previous writer, until the first txg has flushed them to the
    /// metaslabs.
    pub(crate) logs: RefCell<Logs>,
    pub(crate) ddt: Rc<Ddt>,
    pub(crate) checkpoint: Checkpoint,
    pub(crate) dsl: OnceCell<Rc<DslPool>>,
    pub(crate) config_object: Cell<ObjectId>,
    pub(crate) sync_bplist: Cell<ObjectId>,
    /// The configuration without the vdev tree.
    pub(crate) config: RefCell<MosConfig>,
    pub(crate) config_dirty: Cell<bool>,
    pub(crate) uberblock: RefCell<Uberblock>,
    pub(crate) readonly: bool,
    pub(crate) notices: RefCell<Vec<String>>,
    pub(crate) sync_task: RefCell<Option<JoinHandle<Result<()>>>>,
    pub(crate) aux: RefCell<AuxDevices>,
    pub(crate) scan: Rc<Scan>,
    pub(crate) devices: DeviceWork,
    pub(crate) works: RefCell<Vec<Rc<LeafWork>>>,
    pub(crate) events: PoolEvents,
    /// Records of commands, for the next txg.
    pub(crate) history: RefCell<Vec<NvList>>,
    /// The name on the devices, if it differs from the current one (`zpool import -t`).
    pub(crate) on_disk_name: Option<String>,
}

/// The hooks of the MOS: accounting only, since it is written in syncing context only.
pub(crate) fn mos_hooks(core: &Rc<Core>) -> ObjsetHooks {
    ObjsetHooks { acct: Rc::new(MosAccounting(core.clone())), gate: None, feat: None }
}

/// The layers below the MOS, on one vdev tree.
pub(crate) struct Stack {
    pub tree: Rc<VdevTree>,
    pub alloc: Rc<Allocator>,
    pub store: Rc<MapStore>,
    pub arc: Arc,
    pub txg: TxgPool,
    pub ctx: DmuCtx,
    pub core: Rc<Core>,
    pub scan: ScanTunables,
}

impl Stack {
    pub(crate) fn new(rt: &Rt, tree: Rc<VdevTree>, first_open: Txg, gauge: DirtyGauge, opts: &EngineOpts) -> Stack {
        let store = MapStore::new();
        let alloc = Allocator::new(store.clone(), opts.alloc.clone());
        let zio = Zio::new(rt.clone(), tree.clone(), alloc.clone(), opts.zio);
        let arc = Arc::new(rt.clone(), zio.clone(), opts.arc_max);
        let txg = TxgPool::new(rt.clone(), first_open, opts.txg, gauge);
        let ctx = DmuCtx::new(rt.clone(), zio.clone(), arc.clone(), txg.clone(), DmuFeatures::default());
        Stack { tree, alloc, store, arc, txg, ctx, core: Core::new(zio), scan: opts.scan }
    }

    /// Adds every top-level vdev with metaslabs to the allocator, absent log devices included:
    /// frees on them must be recorded for their return. `mos` is None for a new pool, else the MOS
    /// and its directory.
    pub(crate) async fn add_tops(&self, mos: Option<(&Objset, &Dnode)>) -> Result<Logs> {
        let mut tops = self.tree.tops.borrow().clone();
        tops.retain(|t| t.is_concrete() && t.ms_shift.get() != 0);
        for top in &tops {
            let geometry = Geometry { ms_shift: top.ms_shift.get(), ashift: top.ashift, unit: top.alloc_unit() };
            let count = top.ms_count();
            if count == 0 || count > METASLABS_MAX {
                return Err(Error::corrupt(format!("vdev {} has {count} metaslabs", top.id)));
            }
            if !RangeTree::can_cover(1 << geometry.ms_shift, geometry.ashift) {
                return Err(Error::corrupt(format!("vdev {} has metaslabs of 2^{} bytes", top.id, geometry.ms_shift)));
            }
            self.store.set_geometry(top.id, geometry);
        }
        let logs = match mos {
            Some((mos, directory)) => Logs::read(mos, directory, &tops, &self.store).await?,
            None => Logs::default(),
        };
        for top in tops {
            let count = top.ms_count();
            let summaries = match mos {
                Some((mos, _)) => self.store.summaries(mos, top.id, top.ms_array.get(), count).await?,
                None => vec![MsSummary::default(); count as usize],
            };
            let class = match mos {
                Some((mos, _)) => class_of(mos, &top).await?,
                None => class_named(top.config_ref().alloc_bias.as_deref(), top.is_log),
            };
            self.alloc.add_top(top, class, summaries)?;
        }
        Ok(logs)
    }
}

/// The class of a top-level vdev by the name of its bias.
pub(crate) fn class_named(bias: Option<&str>, is_log: bool) -> ClassKind {
    match bias {
        _ if is_log => ClassKind::Log,
        Some("special") => ClassKind::Special,
        Some("dedup") => ClassKind::Dedup,
        _ => ClassKind::Normal,
    }
}

/// The class of a top-level vdev: its bias is in its ZAP (format page 06 section 1).
async fn class_of(mos: &Objset, top: &Top) -> Result<ClassKind> {
    let zap = top.config_ref().zap_top;
    let bias = match zap.filter(|z| z.0 != 0 && !top.is_log) {
        Some(zap) => zap::lookup(&mos.hold(zap).await?, BIAS_KEY).await?,
        None => None,
    };
    let bias = bias.as_ref().and_then(|v| std::str::from_utf8(v.as_bytes()?).ok()).map(|s| s.trim_end_matches('\0'));
    Ok(class_named(bias, top.is_log))
}

/// Most txgs at the export that only record failed writes of the one before.
const LAST_TXGS_MAX: u32 = 3;

impl Drop for Pool {
    /// Breaks the reference cycles, so that devices are closed and unlocked.
    fn drop(&mut self) {
        self.store.close();
        self.scan.close();
        self.core.set_dataset_watch(None);
        self.core.zio.set_free_observer(None);
        self.core.zio.set_dedup(None);
        if let Some(dsl) = self.dsl.get() {
            dsl.close();
        }
    }
}

impl Pool {
    /// The pool's name.
    pub fn name(&self) -> String {
        self.config.borrow().name.clone()
    }
    /// Its guid.
    pub fn guid(&self) -> Guid {
        self.guid
    }
    /// Its runtime.
    pub fn rt(&self) -> &Rt {
        &self.rt
    }
    /// Its datasets.
    pub fn dsl(&self) -> &Rc<DslPool> {
        self.dsl.get().expect("the DSL is opened before the pool is handed out")
    }
    /// Its devices.
    pub fn tree(&self) -> &Rc<VdevTree> {
        &self.tree
    }
    /// Its spares and caches.
    pub fn aux(&self) -> AuxDevices {
        self.aux.borrow().clone()
    }
    /// Its allocator.
    pub fn allocator(&self) -> &Rc<Allocator> {
        &self.alloc
    }
    /// Its cache.
    pub fn arc(&self) -> &Arc {
        &self.arc
    }
    /// Its txgs.
    pub fn txg(&self) -> &TxgPool {
        &self.txg
    }
    /// The block layer.
    pub fn zio(&self) -> &Zio {
        &self.core.zio
    }
    /// Its MOS.
    pub fn mos(&self) -> &Objset {
        &self.mos
    }
    /// Its feature flags.
    pub fn features(&self) -> &Rc<Features> {
        &self.features
    }
    /// True if it was imported read-only.
    pub fn is_readonly(&self) -> bool {
        self.readonly
    }
    /// The uberblock on disk.
    pub fn uberblock(&self) -> Uberblock {
        self.uberblock.borrow().clone()
    }
    /// Notices of the import (an older state than the newest label, for example).
    pub fn notices(&self) -> Vec<String> {
        self.notices.borrow().clone()
    }

    /// The configuration for the MOS.
    pub fn mos_config(&self) -> MosConfig {
        let mut config = self.config.borrow().clone();
        if let Some(name) = &self.on_disk_name {
            config.name.clone_from(name);
        }
        config.vdev_tree.children = self.tree.tops.borrow().iter().map(|t| t.config()).collect();
        config.vdev_children = Some(config.vdev_tree.children.len() as u64);
        config.features_for_read = self.features.for_labels();
        config
    }

    /// Waits until everything written so far is on disk.
    pub async fn sync(&self) -> Result<()> {
        if self.readonly {
            return Ok(());
        }
        self.txg.wait_synced(Txg(0)).await
    }

    /// Changes the property `comment` with the next txg.
    pub fn set_comment(&self, comment: Option<String>) -> Result<()> {
        if self.readonly {
            return Err(Error::new(ErrorKind::ReadOnly, format!("pool '{}' is imported read-only", self.name())));
        }
        self.config.borrow_mut().comment = comment;
        self.dirty_config();
        Ok(())
    }

    /// Changes the property `compatibility` with the next txg.
    pub fn set_compatibility(&self, compatibility: Option<String>) -> Result<()> {
        if self.readonly {
            return Err(Error::new(ErrorKind::ReadOnly, format!("pool '{}' is imported read-only", self.name())));
        }
        self.config.borrow_mut().compatibility = compatibility;
        self.dirty_config();
        Ok(())
    }

    /// Creates a checkpoint of the state on disk (`zpool checkpoint`). Earlier writes are synced
    /// first.
    pub async fn create_checkpoint(&self) -> Result<()> {
        self.sync().await?;
        self.change_checkpoint(CheckpointRequest::Create).await
    }

    /// Discards the checkpoint and frees the space that only it uses (`zpool checkpoint -d`).
    pub async fn discard_checkpoint(&self) -> Result<()> {
        self.change_checkpoint(CheckpointRequest::Discard).await
    }

    /// Waits until the space of a discarded checkpoint is free (`zpool checkpoint -d -w`).
    pub async fn wait_discarded(&self) -> Result<()> {
        while !self.readonly && self.checkpoint.is_discarding() {
            self.sync().await?;
        }
        Ok(())
    }

    /// Whether a discarded checkpoint still holds space.
    pub fn is_discarding(&self) -> bool {
        self.checkpoint.is_discarding()
    }

    async fn change_checkpoint(&self, request: CheckpointRequest) -> Result<()> {
        if self.readonly {
            return Err(Error::new(ErrorKind::ReadOnly, format!("pool '{}' is imported read-only", self.name())));
        }
        self.checkpoint.request(request, &self.features)?;
        self.sync().await
    }

    /// When the checkpoint's state was written, in seconds since 1970, and how many bytes of the
    /// devices only it uses.
    pub fn checkpoint(&self) -> Option<(u64, u64)> {
        self.checkpoint.info()
    }

    /// Bytes that a discarded checkpoint still holds.
    pub fn discarding(&self) -> Option<u64> {
        self.checkpoint.discarding()
    }

    /// Marks the configuration for writing with the next txg: MOS object and labels.
    pub(crate) fn dirty_config(&self) {
        self.config_dirty.set(true);
    }

    /// Updates the size of the pool that datasets see.
    pub(crate) fn push_space(&self, deferred_bpobj: u64) {
        let space = self.alloc.space(ClassKind::Normal);
        self.dsl().set_space(PoolSpace {
            dspace: space.total,
            dedup_saved: self.ddt.saved(),
            embedded_log: self.alloc.space(ClassKind::EmbeddedLog).total,
            checkpoint: self.checkpoint.held(&self.tree),
            deferred_bpobj,
            deferred: space.deferred,
            alloc: space.alloc,
            ..PoolSpace::default()
        });
    }

    pub(crate) fn dsl_setup(&self) -> DslSetup {
        DslSetup {
            ctx: self.ctx.clone(),
            txg: self.txg.clone(),
            core: self.core.clone(),
            mos: self.mos.clone(),
            directory: self.directory.clone(),
            features: self.features.clone(),
            writable: !self.readonly,
            version: self.config.borrow().version,
        }
    }

    /// Starts the sync loop.
    pub(crate) fn start(self: &Rc<Self>) {
        self.tree.gate.arm();
        let pool = self.clone();
        let task = self.rt.spawn("txg_sync", async move {
            let txg = pool.txg.clone();
            txg.run(async |txg| pool.sync_txg(txg).await).await
        });
        *self.sync_task.borrow_mut() = Some(task);
    }

    /// Closes the pool as exported or destroyed: the last txg writes that state into the labels,
    /// then nothing is written any more.
    pub async fn close(self: &Rc<Self>, state: PoolState) -> Result<()> {
        if self.readonly {
            return Ok(());
        }
        if let Some(ds) = self.dsl().all().into_iter().find(|ds| ds.is_used()) {
            return Err(Error::new(
                ErrorKind::Busy,
                format!("pool '{}' is busy: dataset '{}' is in use", self.name(), ds.name()),
            ));
        }
        if let Some(cause) = self.suspended() {
            return Err(Error::new(ErrorKind::Suspended, format!("pool I/O is currently suspended: {cause}")));
        }
        self.scan.close_and_wait().await;
        self.stop_leaf_works().await;
        self.config.borrow_mut().state = state;
        self.dirty_config();
        self.txg.wait_synced(Txg(0)).await?;
        // Failed writes of the last txg are recorded by the next one.
        for _ in 0..LAST_TXGS_MAX {
            if !self.has_failed_writes() {
                break;
            }
            self.txg.wait_synced(Txg(0)).await?;
        }
        self.txg.stop();
        let task = self.sync_task.borrow_mut().take();
        if let Some(task) = task {
            task.await?;
        }
        self.post(if state == PoolState::Destroyed { "pool_destroy" } else { "pool_export" });
        Ok(())
    }

    /// The error that prevents writes, if any: devices do not answer (`zpool clear` retries) or the
    /// sync of a txg failed for good.
    pub fn suspended(&self) -> Option<Error> {
        self.tree.gate.cause().or_else(|| self.txg.ended().filter(|e| e.kind() == ErrorKind::Suspended))
    }

    /// Sets the property `failmode`: the behaviour while devices do not answer.
    pub fn set_failmode(&self, mode: FailMode) {
        self.tree.gate.set_mode(mode);
    }

    /// Drops the unwritten changes of a suspended pool: waiting callers get an error, and the state
    /// on disk stays that of the last committed txg.
    pub async fn give_up(&self) {
        self.scan.close();
        self.tree.gate.give_up();
        let task = self.sync_task.borrow_mut().take();
        if self.suspended().is_some()
            && let Some(task) = task
        {
            // The waiting callers got the error.
            let _ = task.await;
        }
    }

    /// Awaits a step of the creation or import of the pool. A suspension of the pool ends the step
    /// with its error: no administrator can resume the pool yet.
    pub(crate) async fn unless_suspended<T>(&self, step: impl Future<Output = Result<T>>) -> Result<T> {
        let suspended = match select2(step, self.tree.gate.suspension()).await {
            Either::First(done) => return done,
            Either::Second(e) => e,
        };
        let cause = self.tree.gate.cause().unwrap_or(suspended);
        self.give_up().await;
        Err(Error::new(ErrorKind::Io, format!("nothing can be written to its devices: {cause}")))
    }

    /// Exports the pool.
    pub async fn export(self: &Rc<Self>) -> Result<()> {
        self.close(PoolState::Exported).await
    }

    /// Marks the pool as destroyed; its devices can be reused.
    pub async fn destroy(self: &Rc<Self>) -> Result<()> {
        self.close(PoolState::Destroyed).await
    }
}
