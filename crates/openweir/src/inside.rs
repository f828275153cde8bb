//! The state of an engine's thread: its world, devices of its own, and the pools that are open.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};

use base::Nanos;
use bdev::{BlockDev, DevInfo, MemDev};
use rt::Rt;
use rt::sync::{Gate, Pass, Semaphore, oneshot};
use zpl::{MountOpts, Zfs};

use crate::device::{Device, Kind};
use crate::error::{Error, ErrorKind, Result};
use crate::events::Subscribers;

/// Limit for closing a pool without a waiter, in the world's time.
const CLOSE_MAX: Nanos = Nanos::from_secs(20);
/// Time limit for giving up a pool whose devices do not answer.
const GIVE_UP_MAX: Nanos = Nanos::from_secs(5);

static ENGINES: AtomicU64 = AtomicU64::new(1);

/// A device that belongs to the engine.
pub(crate) enum InnerDev {
    Memory(Rc<MemDev>),
    Sim(::sim::SimDisk),
}

/// The state of an engine's thread.
pub struct Inside {
    identity: u64,
    rt: Rt,
    sim: Option<::sim::SimHandle>,
    devices: RefCell<BTreeMap<u64, InnerDev>>,
    pools: RefCell<BTreeMap<u64, Rc<PoolState>>>,
    last_id: Cell<u64>,
    end: RefCell<Option<oneshot::Sender<()>>>,
}

impl Inside {
    /// The state, and the receiver of the request to end the thread.
    pub(crate) fn new(rt: Rt, sim: Option<(u64, ::sim::SimHandle)>) -> (Rc<Inside>, oneshot::Receiver<()>) {
        let (end, ended) = oneshot::oneshot();
        let (identity, sim) = match sim {
            Some((identity, sim)) => (identity, Some(sim)),
            None => (Inside::new_identity(), None),
        };
        let inside = Inside {
            identity,
            rt,
            sim,
            devices: RefCell::default(),
            pools: RefCell::default(),
            last_id: Cell::new(0),
            end: RefCell::new(Some(end)),
        };
        (Rc::new(inside), ended)
    }
    /// A number that no other engine of this process has.
    pub(crate) fn new_identity() -> u64 {
        ENGINES.fetch_add(1, Ordering::Relaxed)
    }
    pub(crate) fn rt(&self) -> &Rt {
        &self.rt
    }
    pub(crate) fn sim(&self) -> Option<&::sim::SimHandle> {
        self.sim.as_ref()
    }
    pub(crate) fn next_id(&self) -> u64 {
        self.last_id.set(self.last_id.get() + 1);
        self.last_id.get()
    }
    /// Lets the thread end.
    pub(crate) fn end(&self) {
        let end = self.end.borrow_mut().take();
        if let Some(end) = end {
            let _ = end.send(());
        }
    }

    // --- devices ---

    pub(crate) fn memory_device(&self, bytes: u64) -> Result<Device> {
        if bytes == 0 {
            return Err(Error::invalid("a device in memory has at least 4096 bytes"));
        }
        let id = self.next_id();
        let info = DevInfo {
            path: format!("memory{id}"),
            size_bytes: bytes,
            logical_sector: 512,
            physical_sector: 4096,
            rotational: false,
            writable: true,
            supports_discard: true,
            writes_durably: true,
        };
        self.add_device(id, InnerDev::Memory(Rc::new(MemDev::with_info(&self.rt, info))));
        Ok(Device(Kind::Inner { engine: self.identity, id }))
    }
    pub(crate) fn add_device(&self, id: u64, dev: InnerDev) {
        self.last_id.set(self.last_id.get().max(id));
        let before = self.devices.borrow_mut().insert(id, dev);
        drop(before);
    }
    pub(crate) fn sim_disks(&self) -> Vec<(u64, ::sim::SimDisk)> {
        let disk = |(id, d): (&u64, &InnerDev)| match d {
            InnerDev::Sim(disk) => Some((*id, disk.clone())),
            InnerDev::Memory(_) => None,
        };
        self.devices.borrow().iter().filter_map(disk).collect()
    }
    pub(crate) fn device(&self, engine: u64, id: u64) -> Result<Rc<dyn BlockDev>> {
        if engine != self.identity {
            return Err(Error::invalid("the device belongs to another engine"));
        }
        let used = self.pools.borrow().values().find(|p| p.holds.contains(&id)).map(|p| p.pool.name());
        if let Some(pool) = used {
            return Err(Error::new(ErrorKind::Busy, format!("the device is part of the open pool '{pool}'")));
        }
        match self.devices.borrow().get(&id) {
            Some(InnerDev::Memory(dev)) => Ok(dev.clone()),
            Some(InnerDev::Sim(disk)) => Ok(disk.dev()),
            None => Err(Error::new(ErrorKind::NotFound, "the engine has no such device any more")),
        }
    }

    // --- pools ---

    pub(crate) fn pools(&self) -> Vec<Rc<PoolState>> {
        self.pools.borrow().values().cloned().collect()
    }
    pub(crate) fn pool(&self, id: u64) -> Result<Rc<PoolState>> {
        let pool = self.pools.borrow().get(&id).cloned();
        pool.ok_or_else(|| Error::new(ErrorKind::Closed, "the pool is not open any more"))
    }
    pub(crate) fn pool_named(&self, name: &str) -> Result<Rc<PoolState>> {
        let pool = self.pools.borrow().values().find(|p| p.pool.name() == name).cloned();
        pool.ok_or_else(|| Error::new(ErrorKind::NotFound, "no pool of that name is open here").about(name))
    }
    pub(crate) fn add_pool(&self, pool: Rc<spa::Pool>, holds: Vec<u64>, opened: &str) -> Rc<PoolState> {
        let id = self.next_id();
        let state = Rc::new(PoolState {
            id,
            events: Subscribers::of(&pool, opened),
            pool,
            holds,
            fs: RefCell::default(),
            admin: Semaphore::new(1),
            jobs: Gate::new(),
            closing: Cell::new(false),
        });
        self.pools.borrow_mut().insert(id, state.clone());
        state
    }
    /// Drops a pool that is closed.
    pub(crate) fn forget_pool(&self, id: u64) {
        let gone = self.pools.borrow_mut().remove(&id);
        drop(gone);
    }

    /// Closes every pool; the first error.
    pub(crate) async fn close_all(&self) -> Result<()> {
        let mut first = Ok(());
        for state in self.pools() {
            let closed = self.close_unattended(&state).await;
            first = first.and(closed);
        }
        first
    }

    /// Closes a pool without a waiter: if that does not end in time the pool is given up, and its
    /// devices are as after a power cut.
    pub(crate) async fn close_unattended(&self, state: &Rc<PoolState>) -> Result<()> {
        let closed = match self.rt.timeout(CLOSE_MAX, state.close(spa::PoolState::Exported)).await {
            Some(closed) => closed,
            None => Err(Error::new(ErrorKind::Suspended, "the pool could not be closed in time")),
        };
        if closed.is_err() {
            let _ = self.rt.timeout(GIVE_UP_MAX, state.pool.give_up()).await;
        }
        self.forget_pool(state.id);
        closed.map_err(|e| e.about(state.pool.name()))
    }

    /// Drops everything without writing: the thread ends.
    pub(crate) fn clear(&self) {
        let pools = std::mem::take(&mut *self.pools.borrow_mut());
        drop(pools);
        let devices = std::mem::take(&mut *self.devices.borrow_mut());
        drop(devices);
    }
}

/// An open pool on its thread.
pub(crate) struct PoolState {
    pub(crate) id: u64,
    pub(crate) pool: Rc<spa::Pool>,
    /// Devices of the engine that it is on.
    holds: Vec<u64>,
    pub(crate) fs: RefCell<BTreeMap<u64, Rc<FsState>>>,
    /// Held during changes of the set of file systems, or of those in use.
    pub(crate) admin: Semaphore,
    /// Operations under way.
    pub(crate) jobs: Gate,
    closing: Cell<bool>,
    pub(crate) events: Subscribers,
}

/// A file system in use by one or more handles.
pub(crate) struct FsState {
    pub(crate) id: u64,
    /// The object of its dataset, which stays when it is renamed.
    pub(crate) dataset: base::ObjectId,
    zfs: RefCell<Option<Rc<Zfs>>>,
    /// Counts rollbacks: files opened before one are stale.
    pub(crate) epoch: Cell<u64>,
    pub(crate) handles: Cell<u64>,
    /// Changes of raw objects exclude each other and their readers.
    pub(crate) batches: Semaphore,
}

impl FsState {
    pub(crate) fn zfs(&self) -> Result<Rc<Zfs>> {
        self.zfs.borrow().clone().ok_or_else(|| Error::new(ErrorKind::Closed, "the file system is not open any more"))
    }
}

/// Readers of raw objects at once; a writer takes all.
pub(crate) const READERS: u64 = 1 << 20;

impl PoolState {
    /// Begins an operation: the pool is not closed before it has ended.
    pub(crate) fn enter(&self) -> Result<Pass> {
        if self.closing.get() {
            return Err(Error::new(ErrorKind::Closed, "the pool is being closed").about(self.pool.name()));
        }
        Ok(self.jobs.enter())
    }

    pub(crate) fn fs_state(&self, id: u64) -> Result<Rc<FsState>> {
        let fs = self.fs.borrow().get(&id).cloned();
        fs.ok_or_else(|| Error::new(ErrorKind::Closed, "the file system is not open any more"))
    }

    /// Opens the file system of a dataset, or counts one more handle on it. The caller holds
    /// `admin`.
    pub(crate) async fn open_fs(&self, ds: &Rc<dsl::Dataset>, id: u64) -> Result<Rc<FsState>> {
        let known = self.fs.borrow().values().find(|f| f.dataset == ds.object).cloned();
        if let Some(fs) = known {
            fs.handles.set(fs.handles.get() + 1);
            return Ok(fs);
        }
        let zfs = Zfs::open(ds, MountOpts::from_props(ds)).await?;
        let fs = Rc::new(FsState {
            id,
            dataset: ds.object,
            zfs: RefCell::new(Some(zfs)),
            epoch: Cell::new(0),
            handles: Cell::new(1),
            batches: Semaphore::new(READERS),
        });
        self.fs.borrow_mut().insert(id, fs.clone());
        Ok(fs)
    }

    /// A handle on a file system is gone; with the last one its use ends.
    pub(crate) async fn drop_fs(&self, id: u64) {
        let _admin = self.admin.acquire(1).await;
        let Ok(fs) = self.fs_state(id) else { return };
        fs.handles.set(fs.handles.get() - 1);
        if fs.handles.get() > 0 {
            return;
        }
        let zfs = fs.zfs.borrow_mut().take();
        if let Some(zfs) = zfs {
            // There is no caller left for an error; the state on disk is that of the last txg and
            // the intent log.
            let _ = zfs.unmount().await;
        }
        let gone = self.fs.borrow_mut().remove(&id);
        drop(gone);
    }

    /// Ends the use of a file system for a while, for changes of it as a whole. The caller holds
    /// `admin`.
    pub(crate) async fn set_aside(&self, ds: &dsl::Dataset) -> Result<Option<Rc<FsState>>> {
        let Some(fs) = self.fs.borrow().values().find(|f| f.dataset == ds.object).cloned() else { return Ok(None) };
        let zfs = fs.zfs.borrow_mut().take();
        if let Some(zfs) = zfs {
            zfs.unmount().await?;
        }
        Ok(Some(fs))
    }

    /// Takes the use up again.
    pub(crate) async fn bring_back(&self, fs: &FsState, ds: &Rc<dsl::Dataset>) -> Result<()> {
        let zfs = Zfs::open(ds, MountOpts::from_props(ds)).await?;
        *fs.zfs.borrow_mut() = Some(zfs);
        Ok(())
    }

    /// Passes changed properties to file systems in use.
    pub(crate) fn refresh_opts(&self) {
        for fs in self.fs.borrow().values() {
            if let Ok(zfs) = fs.zfs() {
                zfs.set_opts(MountOpts::from_props(zfs.dataset()));
            }
        }
    }

    /// Leaves the pool in that state on disk: operations that have begun end first, then the use of
    /// file systems, then the pool.
    pub(crate) async fn close(&self, to: spa::PoolState) -> Result<()> {
        if let Some(e) = self.pool.suspended() {
            return Err(e.into());
        }
        if self.closing.replace(true) {
            return Err(Error::new(ErrorKind::Closed, "the pool is being closed").about(self.pool.name()));
        }
        let closed = self.close_now(to).await;
        if closed.is_err() {
            self.closing.set(false);
        } else {
            self.events.close();
        }
        closed
    }

    async fn close_now(&self, to: spa::PoolState) -> Result<()> {
        self.jobs.wait().await;
        let _admin = self.admin.acquire(1).await;
        let all: Vec<Rc<FsState>> = self.fs.borrow().values().cloned().collect();
        for fs in &all {
            let zfs = fs.zfs.borrow_mut().take();
            if let Some(zfs) = zfs {
                zfs.unmount().await?;
            }
        }
        self.pool.close(to).await?;
        let gone = std::mem::take(&mut *self.fs.borrow_mut());
        drop(gone);
        Ok(())
    }
}
