//! An imported pool: the assembled layers, its state, and the tasks that run it.

use std::cell::RefCell;
use std::rc::Rc;

use arc::{Arc, L2Tunables};
use base::{Error, ErrorKind, Guid, ObjectId, Result, ResultExt, Txg};
use dmu::{DmuTunables, Objset};
use dsl::DslPool;
use dsl::features::Features;
use metaslab::{AllocTunables, Allocator, ClassKind, ClassSpace, TopSpace};
use ondisk::feature::FeatureId;
use ondisk::label::{MosConfig, PoolState};
use ondisk::nvlist::NvList;
use ondisk::space_map::ONE_WORD_MAX_OFFSET;
use ondisk::uberblock::Uberblock;
use rt::join::{Either, select2};
use rt::{JoinHandle, Rt};
use txg::{TxgPool, TxgTunables};
use vdev::{FailMode, QueueTunables, VdevTree};
use zil::ZilTunables;
use zio::{Zio, ZioOpts};

use crate::commit::brt::Brt;
use crate::commit::checkpoint::{self, Checkpoint, CheckpointRequest};
use crate::commit::config::Config;
use crate::commit::ddt::{self, Ddt, DedupFigures, PruneBy};
use crate::commit::heartbeat::{Beat, Heartbeat, MultihostTunables};
use crate::commit::history::History;
use crate::commit::logs::Logs;
use crate::commit::{Commit, Parts};
use crate::devices::aux::{Aux, AuxDevices};
use crate::devices::condense::CondenseTunables;
use crate::devices::evacuate::{FoundRemoval, RemovalTunables};
use crate::devices::layout::AutoAshift;
use crate::devices::leaf_work::WorkTunables;
use crate::devices::rebuild::RebuildTunables;
use crate::devices::reflow::ExpandTunables;
use crate::devices::{Around, Devices};
use crate::notices::Notices;
use crate::scan::{Scan, ScanStatus, ScanTunables};
use crate::stack::{Layers, Mos, Stack};
use crate::zevent::{EventSink, EventTunables, Events};

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
    /// Intent logs.
    pub zil: ZilTunables,
    /// Heartbeats of pools with `multihost`.
    pub multihost: MultihostTunables,
    /// Objects.
    pub dmu: DmuTunables,
    /// Expansions of RAID-Z.
    pub expand: ExpandTunables,
    /// Removals of devices.
    pub removal: RemovalTunables,
    /// Condensing of the mappings of removed devices.
    pub condense: CondenseTunables,
    /// Trim and initialize.
    pub works: WorkTunables,
    /// Sequential rebuilds.
    pub rebuild: RebuildTunables,
    /// What devices choose as their ashift.
    pub auto_ashift: AutoAshift,
    /// Cache devices.
    pub l2: L2Tunables,
    /// `zfs_admin_snapshot`: snapshots may be made, destroyed and renamed as folders of
    /// `.zfs/snapshot`.
    pub admin_snapshot: bool,
    /// `zfs_async_block_max_blocks`: blocks that are freed in one txg at most, at least 1.
    pub freed_per_txg: usize,
    /// `zfs_max_dataset_nesting`: levels that names of new datasets may have.
    pub nesting: usize,
    /// ALLOC entries of a part of a livelist (`zfs_livelist_max_entries`).
    pub livelist_entries: u64,
    /// Percent that a clone with a livelist shares with its origin at least
    /// (`zfs_livelist_min_percent_shared`); none: however little.
    pub livelist_shared: Option<u64>,
    /// `spa_asize_inflation`: a received snapshot may exceed a refquota by so many times 64 MiB.
    pub asize_inflation: u64,
    /// `zfs_unlink_suspend_progress`: files without a link stay where they are.
    pub unlink_suspended: bool,
    /// `zfs_override_estimate_recordsize`: bytes of a record for estimates of streams; 0: those of
    /// the dataset.
    pub estimate_record: u64,
    /// `zfs_disable_ivset_guid_check`: raw increments are received whatever set of IVs they start
    /// from.
    pub ivsets_unchecked: bool,
    /// `zfs_spa_discard_memory_limit`: bytes of a checkpoint's space maps that one txg frees from.
    pub discard_per_txg: u64,
    /// Events of errors.
    pub events: EventTunables,
    /// `fault_diagnosis`: devices with many errors are degraded or faulted, and spares stand in.
    pub fault_diagnosis: bool,
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
            zil: ZilTunables::default(),
            multihost: MultihostTunables::default(),
            dmu: DmuTunables::default(),
            expand: ExpandTunables::default(),
            removal: RemovalTunables::default(),
            condense: CondenseTunables::default(),
            works: WorkTunables::default(),
            rebuild: RebuildTunables::default(),
            auto_ashift: AutoAshift::default(),
            l2: L2Tunables::default(),
            admin_snapshot: false,
            fault_diagnosis: true,
            freed_per_txg: dsl::core::FREED_PER_TXG,
            nesting: dsl::NESTING_MAX,
            livelist_entries: dsl::LIVELIST_ENTRIES,
            livelist_shared: Some(dsl::LIVELIST_SHARED),
            asize_inflation: dsl::core::ASIZE_INFLATION,
            unlink_suspended: false,
            estimate_record: 0,
            ivsets_unchecked: false,
            discard_per_txg: checkpoint::DISCARD_PER_TXG,
            events: EventTunables::default(),
        }
    }
}

/// An imported pool.
pub struct Pool {
    pub(crate) stack: Rc<Stack>,
    pub(crate) config: Rc<Config>,
    pub(crate) notices: Rc<Notices>,
    pub(crate) commit: Commit,
    events: Rc<Events>,
    checkpoint: Rc<Checkpoint>,
    history: Rc<History>,
    scan: Rc<Scan>,
    devices: Rc<Devices>,
    heartbeat: Rc<Heartbeat>,
    sync_task: RefCell<Option<JoinHandle<Result<()>>>>,
}

/// The state to open a pool in.
pub(crate) struct Opening {
    /// The configuration without the vdev tree.
    pub config: MosConfig,
    /// The first txg writes the configuration.
    pub config_dirty: bool,
    /// Its object.
    pub config_object: ObjectId,
    /// The name on the devices, if it differs from the current one.
    pub on_disk_name: Option<String>,
    /// The list of deferred frees.
    pub sync_bplist: ObjectId,
    /// The uberblock on disk.
    pub uberblock: Uberblock,
    /// Spares and caches.
    pub aux: AuxDevices,
    /// Log space maps.
    pub logs: Logs,
    /// What the administrator should know.
    pub notices: Vec<String>,
    /// The property `multihost`.
    pub multihost: bool,
}

/// Most txgs at the export that only record failed writes of the one before.
const LAST_TXGS_MAX: u32 = 3;

impl Drop for Pool {
    /// Breaks the reference cycles, so that devices are closed and unlocked.
    fn drop(&mut self) {
        self.scan.close();
        self.devices.expander().close();
        self.devices.evacuator().close();
        self.devices.condenser().close();
        self.heartbeat.close();
        self.stack.close();
    }
}

impl Pool {
    /// Assembles a pool without its datasets, which the caller creates or opens, on the layers
    /// below the MOS and the open MOS.
    pub(crate) async fn assemble(layers: Layers, mos: Mos, readonly: bool, opening: Opening) -> Result<Rc<Pool>> {
        let (scan_tunables, multihost, tunables) = (layers.scan, layers.multihost, layers.expand);
        let (removal_tunables, works, rebuild) = (layers.removal, layers.works, layers.rebuild);
        let condense = layers.condense;
        let stack = Stack::new(layers, mos, readonly);
        let Opening { config, config_dirty, config_object, on_disk_name, .. } = opening;
        let config = Config::new(&stack, config, config_dirty, config_object, on_disk_name);
        let aux = Rc::new(Aux::new(opening.aux));
        let events = Events::new(&stack, &config, &aux);
        let checkpoint = Rc::new(Checkpoint::open(&checkpoint::Cx::of(&stack)).await.at(|| "checkpoint")?);
        let scan = Scan::load(&stack, &config, &events, scan_tunables).await.at(|| "record of the last scan")?;
        let removal = FoundRemoval::load(&stack).await.at(|| "removal of a device")?;
        let around = ddt::Around {
            mos: &stack.mos,
            directory: &stack.directory,
            features: &stack.features,
            arc: &stack.arc,
            zio: stack.zio(),
        };
        let ddt = Ddt::open(&around).await.at(|| "dedup tables")?;
        stack.zio().set_dedup(Some(ddt.clone()));
        let brt = Brt::open(&stack.mos, &stack.directory, &stack.features, stack.zio().clone(), readonly);
        let brt = brt.await.at(|| "block reference table")?;
        stack.zio().set_references(Some(brt.clone()));
        stack.store.set_mos(stack.mos.clone());
        let notices = Rc::new(Notices::new(opening.notices));
        let around = Around {
            stack: &stack,
            config: &config,
            events: &events,
            notices: &notices,
            aux: &aux,
            checkpoint: &checkpoint,
            scan: &scan,
            tunables,
            removal: removal_tunables,
        };
        let devices = Devices::new(&around, removal);
        devices.condenser().load().await.at(|| "a mapping that is condensed")?;
        devices.condenser().set_tunables(condense);
        devices.works().set_tunables(works);
        devices.rebuilds().set_tunables(rebuild);
        let heartbeat = Heartbeat::new(&stack.rt, &stack.tree, &stack.txg, multihost, opening.multihost);
        let history = Rc::new(History::new(&stack, &config, &events));
        let parts = Parts {
            stack: &stack,
            config: &config,
            events: &events,
            checkpoint: &checkpoint,
            history: &history,
            ddt: &ddt,
            brt: &brt,
            scan: &scan,
            devices: &devices,
            heartbeat: &heartbeat,
        };
        let commit = Commit::new(&parts, opening.logs, opening.sync_bplist, opening.uberblock);
        let sync_task = RefCell::default();
        Ok(Rc::new(Pool {
            stack,
            config,
            notices,
            commit,
            events,
            checkpoint,
            history,
            scan,
            devices,
            heartbeat,
            sync_task,
        }))
    }

    /// The pool's name.
    pub fn name(&self) -> String {
        self.config.name()
    }
    /// Its guid.
    pub fn guid(&self) -> Guid {
        self.stack.tree.root_guid()
    }
    /// Its runtime.
    pub fn rt(&self) -> &Rt {
        &self.stack.rt
    }
    /// Its datasets.
    pub fn dsl(&self) -> &Rc<DslPool> {
        self.stack.dsl()
    }
    /// The tree of its devices.
    pub fn tree(&self) -> &Rc<VdevTree> {
        &self.stack.tree
    }
    /// Its devices, and what changes them.
    pub fn devices(&self) -> &Rc<Devices> {
        &self.devices
    }
    /// Its scrub or resilver.
    pub fn scan(&self) -> &Rc<Scan> {
        &self.scan
    }
    /// Space of the normal class, which holds files and their metadata.
    pub fn space(&self) -> ClassSpace {
        self.stack.alloc.space(ClassKind::Normal)
    }
    /// Bytes of cloned blocks, and bytes that cloning saves: the properties `bcloneused` and
    /// `bclonesaved`.
    pub fn cloned(&self) -> (u64, u64) {
        self.commit.cloned()
    }
    /// Allocated bytes of all deduplicated blocks, and of all references to them, deflated.
    pub fn dedup_sizes(&self) -> (u64, u64) {
        self.commit.ddt().sizes()
    }
    /// Bytes of the dedup tables on disk: the property `dedup_table_size`.
    pub fn dedup_table_size(&self) -> u64 {
        self.commit.ddt().table_size()
    }
    /// The dedup tables in figures.
    pub async fn dedup_figures(&self) -> Result<DedupFigures> {
        self.commit.ddt().figures().await
    }
    /// Sets the property `dedup_table_quota`: bytes, [`crate::DEDUP_QUOTA_NONE`] or
    /// [`crate::DEDUP_QUOTA_AUTO`].
    pub fn set_dedup_quota(&self, quota: u64) {
        self.commit.ddt().set_quota(quota);
    }
    /// Removes entries with one reference from dedup tables with logs (`zpool ddtprune`); returns
    /// how many. Their blocks stay, and are not found any more.
    pub async fn prune_dedup(&self, by: PruneBy) -> Result<u64> {
        self.config.check_writable()?;
        self.commit.ddt().prune(by, async || self.sync().await).await
    }
    /// Reads tables into the cache (`zpool prefetch`): those of deduplicated blocks, and those of
    /// cloned ones.
    pub async fn prefetch_tables(&self, ddt: bool, brt: bool) -> Result<()> {
        if ddt {
            self.commit.ddt().prefetch().await?;
        }
        if brt { self.commit.brt().prefetch().await } else { Ok(()) }
    }
    /// Space of every top-level vdev with its class, in the order of their ids.
    pub fn top_spaces(&self) -> Vec<TopSpace> {
        self.stack.alloc.top_spaces()
    }
    /// How often a feature is in use, by its guid (`com.delphix:hole_birth`): 0 if it is only
    /// enabled, None if it is not.
    pub fn feature_count(&self, guid: &str) -> Option<u64> {
        self.stack.features.count(guid)
    }
    /// Features of the pool that weir does not know, by guid, with their counts: first those
    /// needed for reading, then those for writing. A list that cannot be read counts as empty.
    pub async fn unknown_features(&self) -> Vec<(String, u64)> {
        let features = &self.stack.features;
        let mut out = Vec::new();
        for counts in [features.read_counts().await, features.write_counts().await] {
            out.extend(counts.unwrap_or_default().into_iter().filter(|(g, _)| FeatureId::by_guid(g).is_none()));
        }
        out
    }
    /// Its allocator, for tests.
    #[doc(hidden)]
    pub fn allocator(&self) -> &Rc<Allocator> {
        &self.stack.alloc
    }
    /// Its cache.
    pub fn arc(&self) -> &Arc {
        &self.stack.arc
    }
    /// Its txgs.
    pub fn txg(&self) -> &TxgPool {
        &self.stack.txg
    }
    /// The block layer, for tests.
    #[doc(hidden)]
    pub fn zio(&self) -> &Zio {
        self.stack.zio()
    }
    /// Its MOS, for tests.
    #[doc(hidden)]
    pub fn mos(&self) -> &Objset {
        &self.stack.mos
    }
    /// Its feature flags, for tests.
    #[doc(hidden)]
    pub fn features(&self) -> &Rc<Features> {
        &self.stack.features
    }
    /// True if it was imported read-only.
    pub fn is_readonly(&self) -> bool {
        self.stack.readonly
    }
    /// The uberblock on disk.
    pub fn uberblock(&self) -> Uberblock {
        self.commit.uberblock()
    }
    /// Notices of the import (an older state than the newest label, for example).
    pub fn notices(&self) -> Vec<String> {
        self.notices.all()
    }

    /// The configuration for the MOS.
    pub fn mos_config(&self) -> MosConfig {
        self.config.full()
    }

    /// Waits until everything written so far is on disk.
    pub async fn sync(&self) -> Result<()> {
        self.stack.sync().await
    }

    /// As [`Pool::sync`], and a txg goes to disk even if nothing has changed.
    pub async fn sync_anew(&self) -> Result<()> {
        self.config.check_writable()?;
        self.config.mark_dirty();
        self.sync().await
    }

    /// Freezes the pool until it is exported (`zpool freeze`, for tests of intent logs): from a txg
    /// that is on disk when this returns, only intent logs become part of what an import finds.
    /// Their records are kept until they are committed, at the latest when the log is closed.
    /// Of file systems and volumes that are opened later, and of operations that logs have no
    /// record for, nothing stays.
    pub async fn freeze(&self) -> Result<()> {
        self.config.check_writable()?;
        for os in self.stack.dsl().all().iter().filter_map(|ds| ds.opened()) {
            os.begin_log_chain().await?;
        }
        let last = self.stack.txg.freeze();
        self.stack.alloc.freeze(last);
        self.stack.txg.wait_synced(last).await
    }

    /// Changes the property `comment` with the next txg.
    pub fn set_comment(&self, comment: Option<String>) -> Result<()> {
        self.config.check_writable()?;
        self.config.update(|c| c.comment = comment);
        self.config.mark_dirty();
        Ok(())
    }

    /// Changes the property `compatibility` with the next txg.
    pub fn set_compatibility(&self, compatibility: Option<String>) -> Result<()> {
        self.config.check_writable()?;
        self.config.update(|c| c.compatibility = compatibility);
        self.config.mark_dirty();
        Ok(())
    }

    /// Creates a checkpoint of the state on disk (`zpool checkpoint`). Earlier writes are synced
    /// first.
    pub async fn create_checkpoint(&self) -> Result<()> {
        if self.devices.expander().is_busy() {
            let why = "a raidz of the pool is being expanded: 'zpool wait -t raidz_expand' waits for its end";
            return Err(Error::new(ErrorKind::Busy, why));
        }
        self.devices.evacuator().check_none()?;
        self.check_addressable()?;
        self.sync().await?;
        self.change_checkpoint(CheckpointRequest::Create).await
    }

    /// An error if a vdev is so large that one space map for all of it needs entries of two words,
    /// and the pool cannot have these.
    fn check_addressable(&self) -> Result<()> {
        if self.stack.features.is_active(FeatureId::SpacemapV2) {
            return Ok(());
        }
        let tops = self.tree().tops.borrow();
        let is_large = |t: &&Rc<vdev::Top>| t.asize.get() >> t.ashift >= ONE_WORD_MAX_OFFSET;
        match tops.iter().find(is_large) {
            Some(top) => Err(Error::unsupported(format!(
                "vdev {} is too large for a checkpoint without the feature spacemap_v2: enable it first",
                top.id
            ))),
            None => Ok(()),
        }
    }

    /// Discards the checkpoint and frees the space that only it uses (`zpool checkpoint -d`).
    pub async fn discard_checkpoint(&self) -> Result<()> {
        self.change_checkpoint(CheckpointRequest::Discard).await
    }

    /// Waits until the space of a discarded checkpoint is free (`zpool checkpoint -d -w`).
    pub async fn wait_discarded(&self) -> Result<()> {
        while !self.stack.readonly && self.checkpoint.is_discarding() {
            self.sync().await?;
        }
        Ok(())
    }

    /// Whether a discarded checkpoint still holds space.
    pub fn is_discarding(&self) -> bool {
        self.checkpoint.is_discarding()
    }

    async fn change_checkpoint(&self, request: CheckpointRequest) -> Result<()> {
        self.config.check_writable()?;
        self.checkpoint.request(request, &self.stack.features)?;
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

    /// Starts the sync loop.
    pub(crate) fn start(self: &Rc<Self>) {
        self.stack.tree.gate.arm();
        let pool = self.clone();
        let task = self.stack.rt.spawn("txg_sync", async move {
            let txg = pool.stack.txg.clone();
            txg.run(async |txg| pool.commit.sync_txg(txg).await).await
        });
        *self.sync_task.borrow_mut() = Some(task);
        self.heartbeat.begin();
    }

    /// Whether heartbeats tell other hosts that the pool is in use.
    pub fn has_multihost(&self) -> bool {
        self.heartbeat.is_on()
    }

    /// The last heartbeats, oldest first, as many as `zfs_multihost_history` says.
    pub fn beats(&self) -> Vec<Beat> {
        self.heartbeat.beats()
    }

    /// Forgets them.
    pub fn clear_beats(&self) {
        self.heartbeat.clear_beats();
    }

    /// Runs the change that stores the property `multihost` as `on`: heartbeats tell other hosts
    /// that the pool is in use. They are in the uberblock of the txg that stores it, and end with
    /// the txg after that; if the change fails, all is as before. Error: `Denied` on a host without
    /// an id.
    pub async fn change_multihost(&self, on: bool, change: impl Future<Output = Result<()>>) -> Result<()> {
        let before = self.has_multihost();
        self.set_multihost(before || on)?;
        let done = change.await;
        self.set_multihost(if done.is_ok() { on } else { before })?;
        done?;
        if before && !on { self.sync().await } else { Ok(()) }
    }

    fn set_multihost(&self, on: bool) -> Result<()> {
        let host = self.stack.rt.host_identity();
        if on && host.hostid == 0 {
            return Err(Error::new(ErrorKind::Denied, "requires a non-zero system hostid: set one with zgenhostid"));
        }
        if on != self.heartbeat.is_on() && !self.stack.readonly {
            // The host may have got its id since it opened the pool.
            self.config.update(|c| c.hostid = (host.hostid != 0).then_some(host.hostid));
            self.heartbeat.set(on);
            self.config.mark_dirty();
        }
        Ok(())
    }

    /// Closes the pool as exported or destroyed: the last txg writes that state into the labels,
    /// then nothing is written any more.
    pub async fn close(self: &Rc<Self>, state: PoolState) -> Result<()> {
        if self.stack.readonly {
            return Ok(());
        }
        if let Some(ds) = self.stack.dsl().all().into_iter().find(|ds| ds.is_used()) {
            return Err(Error::new(
                ErrorKind::Busy,
                format!("pool '{}' is busy: dataset '{}' is in use", self.name(), ds.name()),
            ));
        }
        if let Some(cause) = self.suspended() {
            return Err(Error::new(ErrorKind::Suspended, format!("pool I/O is currently suspended: {cause}")));
        }
        self.scan.close_and_wait().await;
        self.devices.works().stop().await;
        self.devices.rebuilds().stop().await;
        self.devices.expander().stop().await;
        self.devices.evacuator().stop().await;
        self.devices.condenser().stop().await;
        self.stack.arc.close_caches().await;
        self.heartbeat.close();
        self.config.update(|c| c.state = state);
        self.config.mark_dirty();
        self.stack.txg.wait_synced(Txg(0)).await?;
        // Failed writes of the last txg are recorded by the next one.
        for _ in 0..LAST_TXGS_MAX {
            if !self.devices.dtls().has_failed_writes() {
                break;
            }
            self.stack.txg.wait_synced(Txg(0)).await?;
        }
        self.stack.txg.stop();
        let task = self.sync_task.borrow_mut().take();
        if let Some(task) = task {
            task.await?;
        }
        self.events.post(if state == PoolState::Destroyed { "pool_destroy" } else { "pool_export" });
        Ok(())
    }

    /// The error that prevents writes, if any: devices do not answer (`zpool clear` retries) or the
    /// sync of a txg failed for good.
    pub fn suspended(&self) -> Option<Error> {
        self.stack.tree.gate.cause().or_else(|| self.stack.txg.ended().filter(|e| e.kind() == ErrorKind::Suspended))
    }

    /// Sets the property `failmode`: the behaviour while devices do not answer.
    pub fn set_failmode(&self, mode: FailMode) {
        self.stack.tree.gate.set_mode(mode);
    }

    /// Drops the unwritten changes, mostly those of a suspended pool: waiting callers get an error,
    /// and the state on disk stays that of the last committed txg. The sync loop, which holds the
    /// pool, has ended afterwards.
    pub async fn give_up(&self) {
        self.scan.close();
        self.heartbeat.close();
        self.devices.works().close();
        self.devices.rebuilds().close();
        self.devices.expander().close();
        self.devices.evacuator().close();
        self.devices.condenser().close();
        self.stack.arc.give_up_caches();
        self.stack.tree.gate.give_up();
        if self.suspended().is_none() {
            self.stack.txg.stop();
        }
        let task = self.sync_task.borrow_mut().take();
        if let Some(task) = task {
            // The waiting callers got the error.
            let _ = task.await;
        }
    }

    /// Awaits a step of the creation or import of the pool after the sync loop has begun: a step
    /// that fails gives the pool up. So does a suspension of the pool, whose error ends the step:
    /// no administrator can resume the pool yet.
    pub(crate) async fn or_give_up<T>(&self, step: impl Future<Output = Result<T>>) -> Result<T> {
        let e = match select2(step, self.stack.tree.gate.suspension()).await {
            Either::First(Ok(done)) => return Ok(done),
            Either::First(Err(e)) => e,
            Either::Second(suspended) => {
                let cause = self.stack.tree.gate.cause().unwrap_or(suspended);
                Error::new(ErrorKind::Io, format!("nothing can be written to its devices: {cause}"))
            }
        };
        self.give_up().await;
        Err(e)
    }

    /// Sets the sink of the pool's events. The first event is `opened`: `pool_create` or
    /// `pool_import`.
    pub fn set_event_sink(&self, sink: Rc<dyn EventSink>, opened: &str) {
        self.events.set_sink(sink, opened);
    }

    /// Posts an event about the pool itself: `sysevent.fs.zfs.NAME`.
    pub fn post(&self, name: &str) {
        self.events.post(name);
    }

    /// A scrub of a pool that is imported read-only: see [`Scan::verify`].
    pub async fn verify(&self) -> Result<ScanStatus> {
        self.scan.verify(self.commit.uberblock().rootbp).await
    }

    /// Sets whether space that was freed is discarded (`autotrim`).
    pub fn set_autotrim(&self, on: bool) {
        self.devices.works().set_autotrim(on && !self.stack.readonly);
    }

    /// Records a command line with the next txg that is written. `who` is its user id.
    pub fn log_command(&self, command: &str, who: u64) {
        self.history.log_command(command, who);
    }

    /// Notes its creation or import in the history.
    pub(crate) fn note_opening(&self, how: &'static str) {
        self.history.note_opening(how);
    }

    /// Gives all records of the history to `each`, oldest first, a piece of the log at a time;
    /// returns the first error of unreadable ones, if any. Records that are overwritten meanwhile
    /// are left out.
    pub async fn read_history(&self, each: impl AsyncFnMut(NvList) -> Result<()>) -> Result<Option<Error>> {
        self.history.read(each).await
    }

    /// After [`Pool::give_up`]: marks the pool as destroyed in the labels of every device that
    /// answers.
    pub async fn mark_destroyed(&self) {
        self.commit.mark_destroyed().await;
    }

    /// Applies changed tunables of the throttle, the queues, the allocator, the block layer, scans,
    /// intent logs and cache devices. The broker sets the cache's limit, see
    /// [`arc::Arc::set_limit`].
    pub fn tune(&self, opts: &EngineOpts) {
        let stack = &self.stack;
        if stack.txg.tunables() != opts.txg {
            stack.txg.set_tunables(opts.txg);
        }
        stack.alloc.set_tunables(&opts.alloc);
        self.scan.set_tunables(opts.scan, opts.arc_max);
        self.devices.expander().set_tunables(opts.expand);
        self.devices.evacuator().set_tunables(opts.removal);
        self.devices.condenser().set_tunables(opts.condense);
        self.devices.works().set_tunables(opts.works);
        self.devices.rebuilds().set_tunables(opts.rebuild);
        self.devices.set_diagnosis(opts.fault_diagnosis);
        self.devices.set_auto_ashift(opts.auto_ashift);
        stack.core.zil.set_tunables(opts.zil);
        stack.core.admin_snapshot.set(opts.admin_snapshot);
        stack.core.freed_per_txg.set(opts.freed_per_txg);
        stack.core.livelist_entries.set(opts.livelist_entries);
        stack.core.livelist_shared.set(opts.livelist_shared);
        stack.core.nesting.set(opts.nesting);
        stack.core.asize_inflation.set(opts.asize_inflation);
        stack.core.unlink_suspended.set(opts.unlink_suspended);
        stack.core.estimate_record.set(opts.estimate_record);
        stack.core.ivsets_unchecked.set(opts.ivsets_unchecked);
        self.checkpoint.set_limit(opts.discard_per_txg);
        self.events.set_tunables(opts.events);
        self.heartbeat.set_tunables(opts.multihost);
        stack.arc.set_l2_tunables(opts.l2);
        stack.ctx.set_tunables(opts.dmu);
        // Keep the pool's salt.
        let zio = stack.ctx.zio();
        let ZioOpts { gang_above, clones_off, clones_wait_off, .. } = opts.zio;
        zio.set_opts(ZioOpts { gang_above, clones_off, clones_wait_off, ..zio.opts() });
        for leaf in stack.tree.leaves() {
            if leaf.tunables() != opts.queue {
                leaf.set_tunables(opts.queue.clone());
            }
        }
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
