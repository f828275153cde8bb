//! [`Pool`]: creating, finding, importing, watching and closing pools.

use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use base::{Nanos, Txg};
use ondisk::scan::{ScanFunc, ScanState};
use spa::{EngineOpts, PoolSpec, PoolState as OnDisk};
use vdev::VdevKind;

use crate::call::Call;
use crate::dataset::{init_of, parse_props};
use crate::device::{Device, Layout, MadeFiles};
use crate::engine::{Attended, DROP_WAIT, Engine, on_engine_thread};
use crate::error::{Error, ErrorKind, Result};
use crate::events::Events;
use crate::inside::{Inside, PoolState};

/// Default of the memory of a pool in bytes: 512 MiB.
pub const MEMORY: u64 = 512 << 20;
/// A txg that is a second old is written when nothing has changed for so long.
const IDLE: Nanos = Nanos::from_ms(250);

fn engine_opts(memory: u64) -> EngineOpts {
    let mut opts = EngineOpts::for_memory(memory.max(64 << 20));
    opts.txg.txg_idle_timeout = IDLE;
    opts
}

/// How a pool is to be created.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CreateOptions {
    /// The ashift, 9 to 16; by default the larger of 12 (4 KiB) and the device's sector.
    pub ashift: Option<u8>,
    /// The pool's property `comment`.
    pub comment: Option<String>,
    /// Properties of the root file system, name and value as `zfs set` takes them.
    pub properties: Vec<(String, String)>,
    /// Only features of this release (`openzfs-2.1-linux`, `grub2` ...; several with commas), as
    /// the pool property `compatibility`. The default is all that weir writes of the features of
    /// OpenZFS 2.4.
    pub compatibility: Option<String>,
    /// Also on devices that belong to a pool already, which is lost then.
    pub force: bool,
    /// Bytes of memory that the pool may count on: half of it for its cache, a tenth for data that
    /// is not on disk yet.
    pub memory: u64,
}

impl Default for CreateOptions {
    fn default() -> CreateOptions {
        CreateOptions {
            ashift: None,
            comment: None,
            properties: Vec::new(),
            compatibility: None,
            force: false,
            memory: MEMORY,
        }
    }
}

impl CreateOptions {
    /// With a property of the root file system.
    #[must_use]
    pub fn property(mut self, name: impl Into<String>, value: impl Into<String>) -> CreateOptions {
        self.properties.push((name.into(), value.into()));
        self
    }
}

/// How a pool is to be imported.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ImportOptions {
    /// The pool's name, or its guid in decimal; needed if the devices hold more than one.
    pub pool: Option<String>,
    /// A name to give it from now on.
    pub new_name: Option<String>,
    /// Nothing is written, not even to the labels; devices are opened for reading only.
    pub readonly: bool,
    /// Also a pool that another host seems to use.
    pub force: bool,
    /// If the newest state is damaged, import one of the last few before it: later changes are
    /// lost.
    pub rewind: bool,
    /// Also without a log device, whose records are lost then.
    pub missing_log: bool,
    /// As [`CreateOptions::memory`].
    pub memory: u64,
}

impl Default for ImportOptions {
    fn default() -> ImportOptions {
        ImportOptions {
            pool: None,
            new_name: None,
            readonly: false,
            force: false,
            rewind: false,
            missing_log: false,
            memory: MEMORY,
        }
    }
}

impl ImportOptions {
    /// Nothing is written.
    pub fn readonly() -> ImportOptions {
        ImportOptions { readonly: true, ..ImportOptions::default() }
    }
}

/// A pool that [`Engine::find_pools`] found.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FoundPool {
    /// Its name.
    pub name: String,
    /// Its guid.
    pub guid: u64,
    /// Whether it was exported; else some host has it open, or had when it went down.
    pub exported: bool,
    /// Whether it was destroyed.
    pub destroyed: bool,
    /// The host that had it last.
    pub hostname: Option<String>,
    /// Paths of the devices that belong to it.
    pub devices: Vec<String>,
    /// Top-level vdevs no device of which was found.
    pub missing: usize,
}

/// How a pool or a device is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Health {
    /// As it should be.
    Online,
    /// In use, but not all is as it should be.
    Degraded,
    /// Taken out because of errors.
    Faulted,
    /// Taken offline by an administrator.
    Offline,
    /// Pulled out.
    Removed,
    /// Not found, or too little of it.
    Unavailable,
}

impl From<vdev::Health> for Health {
    fn from(h: vdev::Health) -> Health {
        match h {
            vdev::Health::Online => Health::Online,
            vdev::Health::Degraded => Health::Degraded,
            vdev::Health::Faulted => Health::Faulted,
            vdev::Health::Offline => Health::Offline,
            vdev::Health::Removed => Health::Removed,
            vdev::Health::Unavail => Health::Unavailable,
        }
    }
}

/// A device of an open pool.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DeviceStatus {
    /// Its path or name, if the pool has one.
    pub path: Option<String>,
    /// Its guid.
    pub guid: u64,
    /// How it is.
    pub health: Health,
    /// Reads that failed since the pool was opened.
    pub read_errors: u64,
    /// Writes that failed.
    pub write_errors: u64,
    /// Blocks whose checksum was wrong.
    pub checksum_errors: u64,
}

/// How far a scrub or resilver is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ScanStatus {
    /// A resilver; else a scrub.
    pub resilver: bool,
    /// Where it is.
    pub state: ScanPhase,
    /// Allocated bytes that there were when it began.
    pub to_examine: u64,
    /// Allocated bytes looked at so far.
    pub examined: u64,
    /// Bytes that were mended.
    pub repaired: u64,
    /// Blocks without any readable copy.
    pub errors: u64,
    /// When it began, in seconds since 1970.
    pub started: u64,
    /// When it ended, in seconds since 1970; 0 while it runs.
    pub ended: u64,
}

/// Where a scan is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum ScanPhase {
    /// There never was one.
    None,
    /// It runs.
    Running,
    /// It is paused.
    Paused,
    /// It has looked at everything.
    Finished,
    /// It was stopped.
    Canceled,
}

/// How a pool is.
#[derive(Clone, PartialEq, Debug)]
pub struct PoolStatus {
    /// Its name.
    pub name: String,
    /// Its guid.
    pub guid: u64,
    /// The worst of its parts.
    pub health: Health,
    /// Why nothing can be written, if that is so.
    pub suspended: Option<String>,
    /// The last txg on disk.
    pub txg: u64,
    /// Whether it was imported read-only.
    pub readonly: bool,
    /// Bytes of its devices, parity included.
    pub size: u64,
    /// Bytes of them that are in use.
    pub allocated: u64,
    /// Bytes written by programs that are not on disk yet.
    pub dirty: u64,
    /// Notices of its import, one sentence each.
    pub notices: Vec<String>,
    /// Its devices.
    pub devices: Vec<DeviceStatus>,
    /// Its last or running scan.
    pub scan: ScanStatus,
}

/// An open pool. Cheap to clone, `Send` and `Sync`; all clones are the same pool.
///
/// Handles on file systems and files keep the pool open. When the last of all is dropped without
/// [`Pool::export`], the pool is closed in the same way: the drop waits for that, [`DROP_WAIT`] at
/// most, and its errors are lost. On the engine's own thread the drop does not wait.
#[derive(Clone)]
pub struct Pool(pub(crate) Arc<PoolInner>);

pub(crate) struct PoolInner {
    pub(crate) engine: Engine,
    id: u64,
    name: String,
    guid: u64,
    closed: AtomicBool,
}

impl std::fmt::Debug for Pool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Pool({})", self.0.name)
    }
}

impl Drop for PoolInner {
    fn drop(&mut self) {
        if self.closed.load(Ordering::Relaxed) || !self.engine.is_running() {
            return;
        }
        let id = self.id;
        let closing = self.engine.run(move |inside| {
            let inside = inside.clone();
            async move {
                match inside.pool(id) {
                    Ok(state) => inside.close_unattended(&state).await,
                    Err(_) => Ok(()),
                }
            }
        });
        if !on_engine_thread() {
            let _ = closing.wait_for(DROP_WAIT);
        }
    }
}

impl PoolInner {
    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    /// Runs `f` with the pool on its thread.
    pub(crate) fn call<T, F, Fut>(&self, f: F) -> Call<T>
    where
        T: Send + 'static,
        F: FnOnce(Rc<PoolState>) -> Fut + Send + 'static,
        Fut: Future<Output = Result<T>> + 'static,
    {
        self.send(f, Attended::Yes)
    }

    /// As [`PoolInner::call`]; with [`Attended::No`] the call must be dropped.
    pub(crate) fn send<T, F, Fut>(&self, f: F, attended: Attended) -> Call<T>
    where
        T: Send + 'static,
        F: FnOnce(Rc<PoolState>) -> Fut + Send + 'static,
        Fut: Future<Output = Result<T>> + 'static,
    {
        let id = self.id;
        let job = move |inside: &Rc<Inside>| {
            // Taken now and not when the task runs: a later close waits for it.
            let begun = inside.pool(id).and_then(|state| state.enter().map(|pass| (state, pass)));
            async move {
                let (state, _pass) = begun?;
                f(state).await
            }
        };
        self.engine.send(job, attended)
    }

    /// The same for calls that wait for an external event, so that closing the pool must not wait
    /// for them.
    fn call_waiting<T, F, Fut>(&self, f: F) -> Call<T>
    where
        T: Send + 'static,
        F: FnOnce(Rc<PoolState>) -> Fut + Send + 'static,
        Fut: Future<Output = Result<T>> + 'static,
    {
        let id = self.id;
        self.engine.run(move |inside| {
            let state = inside.pool(id);
            async move { f(state?).await }
        })
    }
}

impl Engine {
    /// Creates a pool on devices that hold none, and leaves it open. Its root file system has the
    /// pool's name.
    ///
    /// # Errors
    /// [`ErrorKind::Busy`] for a device that belongs to a pool (unless [`CreateOptions::force`]) or
    /// is in use; [`ErrorKind::Invalid`] for names, properties and layouts that cannot be, and
    /// devices that are too small; [`ErrorKind::Exists`] if this engine has a pool of that name, or
    /// a file that is to be made is there. Nothing is left behind then.
    pub fn create_pool(
        &self,
        name: impl Into<String>,
        layout: impl Into<Layout>,
        options: CreateOptions,
    ) -> Call<Pool> {
        let (name, layout, engine) = (name.into(), layout.into(), self.clone());
        self.run(move |inside| {
            let inside = inside.clone();
            async move {
                let made = create_here(&inside, name.clone(), layout, options).await.map_err(|e| e.about(name))?;
                Ok(Pool::of(engine, &made))
            }
        })
    }

    /// Pools that these devices belong to, in order of name.
    ///
    /// # Errors
    /// Those of opening a device that was named by itself.
    pub fn find_pools(&self, devices: Vec<Device>) -> Call<Vec<FoundPool>> {
        self.run(move |inside| {
            let inside = inside.clone();
            async move {
                let found = spa::scan(open_all(&inside, &devices, false)?).await;
                Ok(found.iter().map(found_pool).collect())
            }
        })
    }

    /// Imports a pool. Intent logs that a crash left are replayed when its file systems are opened.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] if no pool, or not the one asked for, is on the devices;
    /// [`ErrorKind::Invalid`] if there are several to choose from; [`ErrorKind::Busy`] if another
    /// host, or another program, has it; [`ErrorKind::Unsupported`] with the features that weir
    /// lacks; [`ErrorKind::Corrupt`] or [`ErrorKind::Checksum`] for damage.
    pub fn import_pool(&self, devices: Vec<Device>, options: ImportOptions) -> Call<Pool> {
        let engine = self.clone();
        self.run(move |inside| {
            let inside = inside.clone();
            async move {
                let state = import_here(&inside, devices, options).await?;
                Ok(Pool::of(engine, &state))
            }
        })
    }

    /// The pools that are open on this engine, in the order of opening.
    pub fn pools(&self) -> Call<Vec<String>> {
        self.run(|inside| {
            let names = inside.pools().iter().map(|p| p.pool.name()).collect();
            async move { Ok(names) }
        })
    }
}

impl Pool {
    fn of(engine: Engine, state: &PoolState) -> Pool {
        let (name, guid) = (state.pool.name(), state.pool.guid().0);
        Pool(Arc::new(PoolInner { engine, id: state.id, name, guid, closed: AtomicBool::new(false) }))
    }

    /// As [`Engine::create_pool`] on an engine of its own.
    pub fn create(name: impl Into<String>, layout: impl Into<Layout>, options: CreateOptions) -> Call<Pool> {
        match Engine::start() {
            Ok(engine) => engine.create_pool(name, layout, options),
            Err(e) => Call::ready(Err(e)),
        }
    }

    /// As [`Engine::import_pool`] on an engine of its own.
    pub fn import(devices: Vec<Device>, options: ImportOptions) -> Call<Pool> {
        match Engine::start() {
            Ok(engine) => engine.import_pool(devices, options),
            Err(e) => Call::ready(Err(e)),
        }
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.0.name
    }
    /// Its guid.
    pub fn guid(&self) -> u64 {
        self.0.guid
    }
    /// The engine that it is on.
    pub fn engine(&self) -> &Engine {
        &self.0.engine
    }

    /// Closes the pool in order: earlier operations are done, everything is on disk, and the labels
    /// have the state exported. All handles on it give [`ErrorKind::Closed`] from then on.
    ///
    /// # Errors
    /// [`ErrorKind::Suspended`] if its devices do not answer; the pool stays open then.
    pub fn export(&self) -> Call<()> {
        self.close(OnDisk::Exported)
    }

    /// As [`Pool::export`], and marks the pool as destroyed: its devices are free for others.
    pub fn destroy(&self) -> Call<()> {
        self.close(OnDisk::Destroyed)
    }

    fn close(&self, to: OnDisk) -> Call<()> {
        let (id, inner) = (self.0.id, Arc::downgrade(&self.0));
        self.0.engine.run(move |inside| {
            let inside = inside.clone();
            async move {
                let state = inside.pool(id)?;
                state.close(to).await.map_err(|e| e.about(state.pool.name()))?;
                inside.forget_pool(id);
                if let Some(inner) = inner.upgrade() {
                    inner.closed.store(true, Ordering::Relaxed);
                }
                Ok(())
            }
        })
    }

    /// Gives up a pool whose devices do not answer: its waiters get an error, and it is closed
    /// without writing. Its devices are as after a power cut.
    pub fn abandon(&self) -> Call<()> {
        let id = self.0.id;
        self.0.engine.run(move |inside| {
            let inside = inside.clone();
            async move {
                let state = inside.pool(id)?;
                state.pool.give_up().await;
                state.events.close();
                inside.forget_pool(id);
                Ok(())
            }
        })
    }

    /// Waits until all earlier changes are on disk; returns their txg.
    pub fn sync(&self) -> Call<u64> {
        self.0.call(|state| async move {
            state.pool.sync().await?;
            Ok(state.pool.txg().last_synced().0)
        })
    }

    /// Waits until that txg is on disk.
    pub fn wait_txg(&self, txg: u64) -> Call<()> {
        self.0.call(move |state| async move {
            if state.pool.is_readonly() || txg == 0 {
                return Ok(());
            }
            if txg > state.pool.txg().open_txg().0 {
                return Err(Error::invalid(format!("txg {txg} has not begun")));
            }
            Ok(state.pool.txg().wait_synced(Txg(txg)).await?)
        })
    }

    /// How it is. Costs no I/O.
    pub fn status(&self) -> Call<PoolStatus> {
        self.0.call_waiting(|state| async move { Ok(status(&state.pool)) })
    }

    /// The events of the pool from now on.
    pub fn events(&self) -> Call<Events> {
        let (events, queue) = Events::new();
        self.0.call(move |state| async move {
            state.events.add(&queue);
            Ok(events)
        })
    }

    /// Begins a scrub, or goes on with one that is paused. [`ErrorKind::Busy`] while one runs.
    pub fn scrub(&self) -> Call<()> {
        self.0.call(|state| async move { Ok(state.pool.scan().start_scrub().await?) })
    }
    /// Pauses the scrub that runs. [`ErrorKind::NotFound`] if none does.
    pub fn pause_scrub(&self) -> Call<()> {
        self.0.call(|state| async move { Ok(state.pool.scan().pause_scrub().await?) })
    }
    /// Stops the scrub that runs or is paused. [`ErrorKind::NotFound`] if there is none.
    pub fn stop_scrub(&self) -> Call<()> {
        self.0.call(|state| async move { Ok(state.pool.scan().stop_scrub().await?) })
    }
    /// Waits until no scrub or resilver runs (a paused one does not count); how it ended.
    /// [`ErrorKind::Closed`] if the pool is closed meanwhile.
    pub fn wait_scan(&self) -> Call<ScanStatus> {
        self.0.call_waiting(|state| async move {
            state.pool.scan().wait().await?;
            Ok(scan_status(&state.pool))
        })
    }
    /// How far the last or running scrub or resilver is.
    pub fn scan_status(&self) -> Call<ScanStatus> {
        self.0.call_waiting(|state| async move { Ok(scan_status(&state.pool)) })
    }

    /// Makes a checkpoint: an import can rewind to the state of now. [`ErrorKind::Exists`] if there
    /// is one.
    pub fn checkpoint(&self) -> Call<()> {
        self.0.call(|state| async move { Ok(state.pool.create_checkpoint().await?) })
    }
    /// Gives the checkpoint up.
    pub fn discard_checkpoint(&self) -> Call<()> {
        self.0.call(|state| async move { Ok(state.pool.discard_checkpoint().await?) })
    }
}

fn found_pool(c: &spa::PoolCandidate) -> FoundPool {
    FoundPool {
        name: c.name.clone(),
        guid: c.guid.0,
        exported: c.state == OnDisk::Exported,
        destroyed: c.state == OnDisk::Destroyed,
        hostname: c.hostname.clone(),
        devices: c.devices.iter().map(|d| d.opened.clone()).collect(),
        missing: c.missing_tops().len(),
    }
}

fn open_all(inside: &Inside, devices: &[Device], write: bool) -> Result<Vec<Rc<dyn bdev::BlockDev>>> {
    let mut out = Vec::new();
    for device in devices {
        out.extend(device.open(inside, write)?.map(|(dev, _)| dev));
    }
    Ok(out)
}

async fn create_here(
    inside: &Rc<Inside>,
    name: String,
    layout: Layout,
    options: CreateOptions,
) -> Result<Rc<PoolState>> {
    if inside.pool_named(&name).is_ok() {
        return Err(Error::new(ErrorKind::Exists, "this engine has a pool of that name open"));
    }
    let mut fs_props = parse_props(&options.properties, true)?;
    let init = init_of(inside.rt(), &mut fs_props);
    let mut features = ondisk::feature::default_features();
    for set in options.compatibility.iter().flat_map(|c| c.split(',')) {
        let allowed = ondisk::feature::compatibility_set(set)
            .ok_or_else(|| Error::invalid(format!("'{set}' is no value of compatibility")))?;
        features.retain(|f| allowed.contains(f));
    }
    let made = MadeFiles::make(&layout)?;
    let devices = layout.open(inside)?;
    if !options.force {
        for d in devices.devices() {
            if spa::is_candidate(&d.dev).await {
                let why = "it has labels of a pool, or partitions: force is needed to overwrite it";
                return Err(Error::new(ErrorKind::Busy, why).about(d.dev.info().path.clone()));
            }
        }
    }
    let holds = layout.devices().filter_map(Device::inner_id).collect();
    let spec = PoolSpec {
        version: None,
        name,
        devices,
        ashift: options.ashift,
        features,
        comment: options.comment,
        fs_props,
        init,
    };
    let pool = spa::Pool::create(inside.rt().clone(), spec, engine_opts(options.memory)).await?;
    made.keep();
    if options.compatibility.is_some() {
        pool.set_compatibility(options.compatibility)?;
    }
    Ok(inside.add_pool(pool, holds, "pool_create"))
}

async fn import_here(inside: &Rc<Inside>, devices: Vec<Device>, options: ImportOptions) -> Result<Rc<PoolState>> {
    let found = spa::scan(open_all(inside, &devices, !options.readonly)?).await;
    let wanted = |c: &spa::PoolCandidate| match &options.pool {
        None => c.state != OnDisk::Destroyed,
        Some(name) => c.name == *name || c.guid.0.to_string() == *name,
    };
    let mut chosen: Vec<_> = found.into_iter().filter(wanted).collect();
    let which = options.pool.clone().unwrap_or_default();
    let candidate = match (chosen.pop(), chosen.is_empty()) {
        (None, _) => {
            let why =
                if options.pool.is_some() { "no such pool is on the devices" } else { "no pool is on the devices" };
            let e = Error::new(ErrorKind::NotFound, why);
            return Err(if which.is_empty() { e } else { e.about(which) });
        }
        (Some(c), true) => c,
        (Some(c), false) => {
            let names: Vec<String> = chosen.iter().chain([&c]).map(|c| format!("{} ({})", c.name, c.guid)).collect();
            return Err(Error::invalid(format!("several pools are on the devices: {}", names.join(", "))));
        }
    };
    let name = options.new_name.clone().unwrap_or_else(|| candidate.name.clone());
    if inside.pool_named(&name).is_ok() {
        return Err(Error::new(ErrorKind::Exists, "this engine has a pool of that name open").about(name));
    }
    let import = spa::ImportOpts {
        new_name: options.new_name,
        readonly: options.readonly,
        force: options.force,
        states: if options.rewind { spa::States::Last } else { spa::States::Newest },
        missing_log: options.missing_log,
        ..spa::ImportOpts::default()
    };
    let holds = devices.iter().filter_map(Device::inner_id).collect();
    let pool = spa::Pool::import(inside.rt().clone(), candidate, import, engine_opts(options.memory)).await?;
    Ok(inside.add_pool(pool, holds, "pool_import"))
}

fn scan_status(pool: &spa::Pool) -> ScanStatus {
    let s = pool.scan().status();
    let state = match s.phys.state {
        ScanState::Scanning if s.paused_at != 0 => ScanPhase::Paused,
        ScanState::Scanning => ScanPhase::Running,
        ScanState::Finished => ScanPhase::Finished,
        ScanState::Canceled => ScanPhase::Canceled,
        _ => ScanPhase::None,
    };
    ScanStatus {
        resilver: s.phys.func == ScanFunc::Resilver,
        state,
        to_examine: s.phys.to_examine,
        examined: s.issued,
        repaired: s.phys.processed,
        errors: s.phys.errors,
        started: s.phys.start_time,
        ended: s.phys.end_time,
    }
}

fn status(pool: &spa::Pool) -> PoolStatus {
    let space = pool.space();
    let mut devices = Vec::new();
    for top in pool.tree().tops.borrow().iter() {
        let kind = top.kind();
        for (guid, condition) in kind.conditions() {
            let errors = match kind.find(guid) {
                Some(VdevKind::Leaf(leaf)) => leaf.errors(),
                _ => Default::default(),
            };
            devices.push(DeviceStatus {
                path: top.config_ref().find(guid).and_then(|c| c.path.clone()),
                guid: guid.0,
                health: condition.health().into(),
                read_errors: errors.read,
                write_errors: errors.write,
                checksum_errors: errors.cksum,
            });
        }
    }
    PoolStatus {
        name: pool.name(),
        guid: pool.guid().0,
        health: pool.tree().health().into(),
        suspended: pool.suspended().map(|e| e.to_string()),
        txg: pool.uberblock().txg.0,
        readonly: pool.is_readonly(),
        size: space.total_raw,
        allocated: space.alloc_raw,
        dirty: pool.txg().dirty(),
        notices: pool.notices(),
        devices,
        scan: scan_status(pool),
    }
}
