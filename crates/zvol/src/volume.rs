//! A volume in use: open, close, durability, and the state that all operations share.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use base::{Error, ErrorKind, MAX_BLOCK, Result, ResultExt, Txg};
use dmu::{Dnode, Objset, zap};
use dsl::Dataset;
use ondisk::object_type::ObjectType;
use ondisk::objset::ObjsetType;
use rt::Rt;
use rt::sync::{Gate, Pass, RangeLock, Semaphore};
use zil::replay::Replayed;
use zil::{GetData, SyncMode, ZilStats, Zilog};

use crate::size::SIZE_MAX;
use crate::{DATA, DATA_OBJ, PROPS_OBJ, SIZE_KEY, replay};

/// How a volume is used.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct VolumeOpts {
    /// Read-only.
    pub readonly: bool,
    /// Durability.
    pub sync: SyncMode,
    /// `logbias=throughput`: synchronous writes go to their final blocks, not into the log.
    pub throughput: bool,
    /// Open it also if it was received redacted: blocks that were left out read as zeros.
    pub redacted: bool,
}

impl VolumeOpts {
    /// Reads the options from the dataset's properties.
    pub fn from_props(ds: &Dataset) -> VolumeOpts {
        let num = |name: &str| ds.dir().prop(name).0.num();
        VolumeOpts {
            readonly: num("readonly") != 0,
            sync: SyncMode::from_number(num("sync")),
            throughput: num("logbias") == 1,
            redacted: false,
        }
    }
}

/// A volume in use: its dataset is busy until it is closed or dropped. All operations may run
/// concurrently.
pub struct Volume {
    ds: Rc<Dataset>,
    pub(crate) os: Objset,
    pub(crate) rt: Rt,
    pub(crate) data: Dnode,
    pub(crate) props: Dnode,
    pub(crate) size: Cell<u64>,
    opts: Cell<VolumeOpts>,
    /// It could be written if the options allowed it.
    writable: bool,
    pub(crate) ranges: RangeLock,
    /// Held by a change of the size.
    pub(crate) resizing: Semaphore,
    replayed: Replayed,
    /// None if it cannot be written.
    log: RefCell<Option<Zilog>>,
    /// Reads, their bytes, writes, their bytes.
    io: Cell<[u64; 4]>,
    busy: Gate,
    closed: Cell<bool>,
}

impl Volume {
    /// Opens the volume of a dataset. A snapshot and a dataset of a pool imported read-only are
    /// read-only regardless of `opts`; of others the intent log that a crash left is replayed.
    ///
    /// # Errors
    /// `Invalid` if the dataset is no volume, `Busy` if another user has it open for writing,
    /// `Corrupt` if its objects are not those of a volume, and those of a replay.
    pub async fn open(ds: &Rc<Dataset>, opts: VolumeOpts) -> Result<Rc<Volume>> {
        let place = || format!("volume '{}'", ds.name());
        if opts.redacted {
            ds.check_received()?;
        } else {
            ds.check_complete()?;
        }
        let os = ds.objset().await?;
        if os.os_type() != ObjsetType::Zvol {
            return Err(Error::invalid(format!("dataset '{}' is no volume", ds.name())));
        }
        let data = os.hold(DATA_OBJ).await.at(place)?;
        if data.otype() != ObjectType::ZVOL {
            return Err(Error::corrupt(format!("{}: object {DATA_OBJ} has the type {}", place(), data.otype())));
        }
        let props = os.hold(PROPS_OBJ).await.at(place)?;
        let size = zap::lookup_u64(&props, SIZE_KEY.as_bytes()).await.at(place)?;
        let size = size.ok_or_else(|| Error::corrupt(format!("{} says no size", place())))?;
        let block = u64::from(data.block_size());
        if !block.is_power_of_two() || block > MAX_BLOCK {
            return Err(Error::corrupt(format!("{} has blocks of {block} bytes", place())));
        }
        if size == 0 || size > SIZE_MAX || !size.is_multiple_of(block) {
            return Err(Error::corrupt(format!("{} has {size} bytes in blocks of {block}", place())));
        }
        let mut writable = ds.is_writable() && os.is_writable();
        if writable && os.has_log() {
            if !opts.readonly {
                return Err(Error::new(ErrorKind::Busy, format!("{} is open already", place())));
            }
            writable = false;
        }
        let mut replayed = Replayed::default();
        if writable {
            let target = replay::Target { os: &os, data: &data, size };
            replayed = zil::replay::replay(&os, &target).await.at(|| format!("{}: its intent log", place()))?;
            if let Some(e) = replayed.failed.take() {
                return Err(e.at(format!("{}: replay", place())));
            }
        }
        let vol = Rc::new(Volume {
            ds: ds.clone(),
            rt: os.ctx().rt().clone(),
            os,
            data,
            props,
            size: Cell::new(size),
            opts: Cell::new(VolumeOpts { readonly: opts.readonly || !writable, ..opts }),
            writable,
            ranges: RangeLock::new(DATA),
            resizing: Semaphore::new(1),
            replayed,
            log: RefCell::default(),
            io: Cell::default(),
            busy: Gate::new(),
            closed: Cell::new(false),
        });
        // Old pools have logs of another form, which are read only: flushes wait for their txg.
        if writable && vol.os.ctx().features().pool_version >= ondisk::version::SLIM_ZIL {
            let source: Rc<dyn GetData> = vol.clone();
            let log = Zilog::new(&vol.os, Rc::downgrade(&source), ds.intent_logs().clone());
            log.set_throughput(opts.throughput);
            *vol.log.borrow_mut() = Some(log);
        }
        ds.begin_use();
        Ok(vol)
    }

    /// Ends the use: refuses new operations, waits for those under way, and until all changes are
    /// on disk.
    pub async fn close(&self) -> Result<()> {
        if self.closed.replace(true) {
            return Ok(());
        }
        self.busy.wait().await;
        let log = self.log.borrow_mut().take();
        let closed = match log {
            Some(log) => log.close().await,
            None => Ok(()),
        };
        let synced = if self.writable { self.wait_txg(Txg(0)).await } else { Ok(()) };
        self.ds.end_use();
        closed.and(synced)
    }

    /// Its dataset.
    pub fn dataset(&self) -> &Rc<Dataset> {
        &self.ds
    }
    /// The dataset's name.
    pub fn name(&self) -> String {
        self.ds.name()
    }
    /// Its length in bytes, a multiple of [`Volume::block_size`].
    pub fn size(&self) -> u64 {
        self.size.get()
    }
    /// `volblocksize`: bytes of a block, a power of two from 512 to 16 MiB.
    pub fn block_size(&self) -> u32 {
        self.data.block_size()
    }
    /// Whether changes are refused.
    pub fn is_read_only(&self) -> bool {
        self.opts.get().readonly
    }
    /// Whether it was closed: all operations fail.
    pub fn is_closed(&self) -> bool {
        self.closed.get()
    }
    /// How it is used.
    pub fn opts(&self) -> VolumeOpts {
        self.opts.get()
    }
    /// Changes how it is used, when a property changed. A volume that cannot be written stays
    /// read-only.
    pub fn set_opts(&self, opts: VolumeOpts) {
        let before = self.opts.replace(VolumeOpts { readonly: opts.readonly || !self.writable, ..opts });
        if let Some(log) = self.log() {
            log.set_throughput(opts.throughput);
            if before.sync == SyncMode::Disabled && opts.sync != SyncMode::Disabled {
                // Changes made with `sync=disabled` were not logged.
                log.barrier(None, self.os.ctx().txg().open_txg());
            }
        }
    }
    /// Result of the intent log's replay when it was opened.
    pub fn replayed(&self) -> &Replayed {
        &self.replayed
    }
    /// Reads, bytes read, writes, bytes written since it was opened.
    pub fn io_counts(&self) -> [u64; 4] {
        self.io.get()
    }
    /// Counters of its intent log.
    pub fn log_stats(&self) -> ZilStats {
        self.log.borrow().as_ref().map_or(ZilStats::default(), Zilog::stats)
    }
    pub(crate) fn count_io(&self, write: bool, bytes: u64) {
        let mut io = self.io.get();
        let at = usize::from(write) * 2;
        (io[at], io[at + 1]) = (io[at] + 1, io[at + 1] + bytes);
        self.io.set(io);
    }

    /// Begins an operation: the volume is not closed while the pass lives.
    pub(crate) fn enter(&self) -> Result<Pass> {
        if self.closed.get() {
            return Err(Error::new(ErrorKind::Interrupted, format!("volume '{}' is closed", self.name())));
        }
        Ok(self.busy.enter())
    }
    /// Begins a change.
    pub(crate) fn enter_change(&self) -> Result<Pass> {
        if self.is_read_only() {
            return Err(Error::new(ErrorKind::ReadOnly, format!("volume '{}' is read-only", self.name())));
        }
        self.enter()
    }

    /// The intent log.
    pub fn log(&self) -> Option<Zilog> {
        self.log.borrow().clone()
    }
    pub(crate) async fn wait_txg(&self, txg: Txg) -> Result<()> {
        self.os.ctx().txg().wait_synced(txg).await
    }
    /// Makes all changes durable, with any `sync` property. The caller holds no locks.
    pub(crate) async fn commit(&self) -> Result<()> {
        match self.log() {
            Some(log) => log.commit(Some(DATA_OBJ)).await,
            None => self.wait_txg(Txg(0)).await,
        }
    }
    /// With `sync=always`, makes all changes durable. The caller holds no locks.
    pub(crate) async fn commit_if_always(&self) -> Result<()> {
        if self.opts.get().sync == SyncMode::Always { self.commit().await } else { Ok(()) }
    }

    /// Makes all changes that ended before durable; nothing with `sync=disabled`.
    pub async fn flush(&self) -> Result<()> {
        let _pass = self.enter()?;
        if !self.writable || self.opts.get().sync == SyncMode::Disabled {
            return Ok(());
        }
        self.commit().await
    }
}

impl Drop for Volume {
    fn drop(&mut self) {
        if !self.closed.get() {
            self.ds.end_use();
        }
    }
}
