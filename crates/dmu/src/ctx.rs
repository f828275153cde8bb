//! The context of a pool's object sets, and the traits that the layers above implement for them.
//!
//! Calls go down only. The layers above implement small traits: they account for blocks
//! ([`BlockAccounting`]), grant space ([`SpaceGate`]) and note the first use of a feature
//! ([`FeatureUse`]). Feature flags and properties are pushed down by value.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashMap};
use std::rc::Rc;

use arc::{Arc, Keep};
use base::{Result, Txg};
use bdev::Bytes;
use codec::{ChecksumAlgo, CompressAlgo, Compression};
use ondisk::blkptr::Blkptr;
use ondisk::bpobj::Bookmark;
use ondisk::object_type::ObjectType;
use ondisk::version;
use rt::Rt;
use txg::TxgPool;
use zio::{DataKey, DedupMode, Prio, WriteDone, Zio};

/// Accounts for the blocks of an object set. Called only while its txg syncs; must not wait, and
/// must not read or change the object set that calls.
pub trait BlockAccounting {
    /// `bp` (never a hole) became part of the object set in `txg`.
    fn born(&self, bp: &Blkptr, txg: Txg);
    /// `bp` (never a hole) is no longer part of the object set. The callee frees it or puts it in a
    /// deadlist.
    fn kill(&self, bp: &Blkptr, txg: Txg);
}

/// The limit that a transaction's space is checked against (format page 14 section 1).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TxSpace {
    /// Against quotas and the normal capacity.
    Normal,
    /// Frees more than it takes: quotas do not count, half of the slop space may be used.
    NetFree,
    /// Administration: a quarter of the slop space is kept.
    Reserved,
    /// Replay of an intent log: admitted before the crash, so it is never refused. While the log's
    /// blocks are still allocated there may be no room for its worst case; its changes were in
    /// flight beside the log before the crash.
    Replayed,
}

/// Space reserved for a transaction. Dropping it runs its closure, which takes the charge back: the
/// transaction has ended, and its dirty blocks were charged by [`SpaceGate::will_use`].
#[derive(Default)]
pub struct Reservation(pub Option<Box<dyn FnOnce()>>);

impl Drop for Reservation {
    fn drop(&mut self) {
        if let Some(end) = self.0.take() {
            end();
        }
    }
}

/// Decides whether a transaction may take space.
pub trait SpaceGate {
    /// Reserves `bytes`, the worst-case charge as datasets are charged (`vdev::cost`), in `txg`.
    /// Errors: `NoSpace`, `Quota`, or `Restart` to try again in the next txg.
    fn reserve(&self, bytes: u64, kind: TxSpace, txg: Txg) -> Result<Reservation>;
    /// Charges `bytes`, the worst case of blocks that became dirty in `txg`, until the txg has
    /// synced. Called in open context, within a transaction whose reservation covers them.
    fn will_use(&self, bytes: u64, txg: Txg);
    /// Charges `bytes` for the deadlist entries of blocks that are freed in `txg`, if a snapshot
    /// may hold the blocks.
    fn will_kill(&self, bytes: u64, txg: Txg);
    /// Whether a log block, or a block that a log names, may take `bytes` of the space that syncs
    /// need; if so they are charged until `txg` has synced.
    fn take_log_block(&self, bytes: u64, txg: Txg) -> bool;
}

/// Notes per-dataset features at their first use.
pub trait FeatureUse {
    /// A block or dnode in `txg` needs the feature. Called in syncing context, any number of times.
    fn activate(&self, feature_guid: &'static str, txg: Txg);
    /// The object set does not need the feature any more. Called in syncing context, also if it
    /// never did.
    fn deactivate(&self, feature_guid: &'static str, txg: Txg);
}

/// Which metadata has an extra copy (property `redundant_metadata`, format page 02 section 4).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RedundantMetadata {
    /// All metadata.
    All,
    /// Metadata objects, and indirect blocks of data from level 2 on.
    Most,
    /// Indirect blocks from level 2 on of metadata objects.
    Some,
    /// None.
    None,
}

/// What is read ahead for sequential readers (property `prefetch`, OpenZFS 2.2).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Prefetch {
    /// Nothing.
    None,
    /// Indirect blocks.
    Metadata,
    /// Data as well.
    All,
}

/// Which blocks stay in the cache (property `primarycache`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PrimaryCache {
    /// None.
    None,
    /// Metadata.
    Metadata,
    /// Data as well.
    All,
}

impl PrimaryCache {
    fn has(self, metadata: bool) -> bool {
        match self {
            PrimaryCache::All => true,
            PrimaryCache::Metadata => metadata,
            PrimaryCache::None => false,
        }
    }
    /// Whether blocks of metadata, or of data, stay; `secondary`: those that cache devices get of
    /// the blocks that do.
    pub fn keep(self, secondary: PrimaryCache, metadata: bool) -> Keep {
        match (self.has(metadata), secondary.has(metadata)) {
            (true, true) => Keep::Cached,
            (true, false) => Keep::MemoryOnly,
            (false, _) => Keep::Uncached,
        }
    }
}

/// The properties of an object set that decide how its blocks are stored and read; pushed down by
/// the dataset.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ObjsetProps {
    /// Compression of user data.
    pub compression: Compression,
    /// Checksum of user data, and of metadata if it is strong enough for metadata.
    pub checksum: ChecksumAlgo,
    /// Copies of user data, 1 to 3; metadata gets one more, at most 3. 3 for the MOS.
    pub copies: u8,
    /// Largest block of a file, in bytes.
    pub recordsize: u32,
    /// Which metadata has an extra copy.
    pub redundant_metadata: RedundantMetadata,
    /// Bytes of a new dnode of a file, 512 when legacy.
    pub dnodesize: u32,
    /// Checksum and mode of deduplication of user data, if it is on.
    pub dedup: Option<(ChecksumAlgo, DedupMode)>,
    /// File blocks of at most this stored size go to the special class, as metadata does
    /// (`special_small_blocks`); 0: none.
    pub special_small: u32,
    /// What is read ahead.
    pub prefetch: Prefetch,
    /// Which blocks stay in the cache.
    pub primary_cache: PrimaryCache,
    /// Which of them cache devices get (property `secondarycache`).
    pub secondary_cache: PrimaryCache,
}

impl Default for ObjsetProps {
    fn default() -> ObjsetProps {
        ObjsetProps {
            compression: Compression { algo: CompressAlgo::Off, level: 0 },
            checksum: ChecksumAlgo::Fletcher4,
            copies: 1,
            recordsize: 128 << 10,
            redundant_metadata: RedundantMetadata::All,
            dnodesize: 512,
            dedup: None,
            special_small: 0,
            prefetch: Prefetch::All,
            primary_cache: PrimaryCache::All,
            secondary_cache: PrimaryCache::All,
        }
    }
}

impl ObjsetProps {
    /// The properties of the MOS.
    pub fn mos() -> ObjsetProps {
        ObjsetProps { copies: 3, ..ObjsetProps::default() }
    }
}

/// Feature flags that change how blocks are written; pushed down by the pool.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DmuFeatures {
    /// Version of the pool: 1 to 28, or 5000 with feature flags.
    pub pool_version: u64,
    /// `hole_birth` is active: holes remember when they were punched.
    pub hole_birth: bool,
    /// `embedded_data` is enabled: tiny blocks go into their pointers.
    pub embedded_data: bool,
    /// `lz4_compress` is active: metadata uses it.
    pub lz4: bool,
    /// `zilsaxattr` is enabled: logs of file systems may have the records of OpenZFS 2.2.
    pub zilsaxattr: bool,
    /// `longname` is enabled: names of files may have more than 255 bytes.
    pub longname: bool,
    /// `large_microzap` is enabled: micro ZAPs of datasets may have more than 128 KiB.
    pub large_microzap: bool,
    /// `physical_rewrite` is enabled: blocks that are written anew may keep their logical birth.
    pub physical_rewrite: bool,
    /// `userobj_accounting` is enabled: objects are counted by their owners.
    pub userobj_accounting: bool,
    /// `project_quota` is enabled: space and objects are counted by projects.
    pub project_quota: bool,
}

impl Default for DmuFeatures {
    fn default() -> DmuFeatures {
        DmuFeatures {
            pool_version: version::FEATURES,
            hole_birth: false,
            embedded_data: false,
            lz4: false,
            zilsaxattr: false,
            longname: false,
            large_microzap: false,
            physical_rewrite: false,
            userobj_accounting: false,
            project_quota: false,
        }
    }
}

/// Tunables of the DMU.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DmuTunables {
    /// Clean dnodes kept in memory per object set.
    pub dnodes_max: usize,
    /// `zap_micro_max_size`: largest micro ZAP in bytes; above 128 KiB with `large_microzap` only.
    pub zap_micro_max: u32,
    /// `zfs_prefetch_disable`: nothing is read ahead for sequential readers.
    pub prefetch_disable: bool,
}

impl Default for DmuTunables {
    fn default() -> DmuTunables {
        let zap_micro_max = ondisk::zap::MICRO_MAX_SIZE as u32;
        DmuTunables { dnodes_max: 16 << 10, zap_micro_max, prefetch_disable: false }
    }
}

/// Counters of reading ahead for sequential readers (`zfetchstats` of OpenZFS).
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct ReadAheadStats {
    /// Reads that go on where the reader's last one ended.
    pub hits: u64,
    /// Others: a reader's first one, or after a jump.
    pub misses: u64,
    /// Blocks that were asked for ahead of a reader.
    pub issued: u64,
}

/// Most blocks that could not be read that are noted at a time.
const DAMAGED_MAX: usize = 10_000;

type Place = (u64, u64, u64);

fn place(bp: &Blkptr) -> Place {
    let dva = bp.dva(0);
    (dva.w0 >> 32, dva.w1, bp.phys_birth().0)
}

struct Inner {
    rt: Rt,
    zio: Zio,
    arc: Arc,
    txg: TxgPool,
    features: Cell<DmuFeatures>,
    tunables: Cell<DmuTunables>,
    read_ahead: Cell<ReadAheadStats>,
    /// Blocks whose device writes have not ended: they are read from here, since the device may
    /// still have the old content.
    in_flight: RefCell<HashMap<Place, (Bytes, WriteDone)>>,
    /// Blocks that could not be read, by object set, object, level and number, with their births.
    damaged: RefCell<BTreeMap<(u64, u64, i64, u64), Txg>>,
}

/// The context of a pool's object sets: block I/O, the cache, the txg pipeline; for encrypted
/// datasets also the key. Cheap to clone.
#[derive(Clone)]
pub struct DmuCtx(Rc<Inner>, Access);

/// How blocks of encrypted datasets are read.
#[derive(Clone)]
enum Access {
    /// Not at all.
    Clear,
    /// With their key.
    Key(Rc<DataKey>),
    /// As they are stored.
    Sealed,
}

impl DmuCtx {
    /// The context of a pool.
    pub fn new(rt: Rt, zio: Zio, arc: Arc, txg: TxgPool, features: DmuFeatures) -> DmuCtx {
        let inner = Rc::new(Inner {
            rt,
            zio,
            arc,
            txg,
            features: Cell::new(features),
            tunables: Cell::default(),
            read_ahead: Cell::default(),
            in_flight: RefCell::default(),
            damaged: RefCell::default(),
        });
        DmuCtx(inner, Access::Clear)
    }
    /// The same for an encrypted dataset with this key.
    pub fn with_key(&self, key: Rc<DataKey>) -> DmuCtx {
        DmuCtx(self.0.clone(), Access::Key(key))
    }
    /// The same for an encrypted dataset that is read and written without its key: dnodes have
    /// encrypted bonuses.
    pub(crate) fn sealed(&self) -> DmuCtx {
        DmuCtx(self.0.clone(), Access::Sealed)
    }
    /// The dataset's key.
    pub fn key(&self) -> Option<&Rc<DataKey>> {
        match &self.1 {
            Access::Key(key) => Some(key),
            _ => None,
        }
    }
    /// The runtime.
    pub fn rt(&self) -> &Rt {
        &self.0.rt
    }
    /// Block I/O.
    pub fn zio(&self) -> &Zio {
        &self.0.zio
    }
    /// The cache.
    pub fn arc(&self) -> &Arc {
        &self.0.arc
    }
    /// The txg pipeline.
    pub fn txg(&self) -> &TxgPool {
        &self.0.txg
    }
    /// Feature flags in force.
    pub fn features(&self) -> DmuFeatures {
        self.0.features.get()
    }
    /// Changes the feature flags, for blocks written from now on.
    pub fn set_features(&self, features: DmuFeatures) {
        self.0.features.set(features);
    }
    /// The tunables.
    pub fn tunables(&self) -> DmuTunables {
        self.0.tunables.get()
    }
    /// Changes the tunables.
    pub fn set_tunables(&self, tunables: DmuTunables) {
        self.0.tunables.set(tunables);
    }

    /// Counters of reading ahead.
    pub fn read_ahead_stats(&self) -> ReadAheadStats {
        self.0.read_ahead.get()
    }
    pub(crate) fn count_read_ahead(&self, f: impl FnOnce(&mut ReadAheadStats)) {
        let mut stats = self.0.read_ahead.get();
        f(&mut stats);
        self.0.read_ahead.set(stats);
    }

    /// Reads the block: from a write in flight, the cache, or a device.
    pub fn read<'a>(&'a self, bp: &'a Blkptr) -> impl Future<Output = Result<Bytes>> + 'a {
        self.read_as(bp, Prio::SyncRead, Keep::Cached)
    }
    /// As [`DmuCtx::read`], in another class of reads, for a block that stays or not.
    pub async fn read_as(&self, bp: &Blkptr, prio: Prio, keep: Keep) -> Result<Bytes> {
        match self.in_flight(bp) {
            Some(b) => Ok(b),
            // The cache keeps what is decrypted.
            None if self.is_sealed(bp) => self.0.zio.read_sealed(bp, prio).await,
            None => self.0.arc.read_with(bp, self.key().map(|key| &**key), prio, keep).await,
        }
    }
    /// Notes a block that could not be read, with its physical birth (0: not known).
    pub(crate) fn note_damage(&self, at: Bookmark, birth: Txg) {
        let mut damaged = self.0.damaged.borrow_mut();
        if damaged.len() < DAMAGED_MAX {
            damaged.insert((at.objset, at.object, at.level, at.blkid), birth);
        }
    }
    /// The blocks that could not be read since they were forgotten last, with their births.
    pub fn damaged(&self) -> Vec<(Bookmark, Txg)> {
        let bookmark =
            |(&(objset, object, level, blkid), birth): (&_, &Txg)| (Bookmark { objset, object, level, blkid }, *birth);
        self.0.damaged.borrow().iter().map(bookmark).collect()
    }
    /// Forgets blocks that could not be read, except those that `keep` keeps.
    pub fn forget_damaged(&self, keep: impl Fn(&Bookmark) -> bool) {
        let is_kept = |&(objset, object, level, blkid): &_| keep(&Bookmark { objset, object, level, blkid });
        self.0.damaged.borrow_mut().retain(|at, _| is_kept(at));
    }
    /// The block if it is in memory.
    pub fn peek(&self, bp: &Blkptr) -> Option<Bytes> {
        self.in_flight(bp).or_else(|| if self.is_sealed(bp) { None } else { self.0.arc.peek(bp) })
    }
    fn is_sealed(&self, bp: &Blkptr) -> bool {
        matches!(self.1, Access::Sealed) && bp.is_encrypted_data()
    }
    fn in_flight(&self, bp: &Blkptr) -> Option<Bytes> {
        let map = self.0.in_flight.borrow();
        if map.is_empty() || bp.ndvas() == 0 { None } else { map.get(&place(bp)).map(|(b, _)| b.clone()) }
    }
    /// Waits for the write of `bp`, if it is in flight: its DVA is about to be overwritten.
    pub(crate) async fn wait_written(&self, bp: &Blkptr) -> Result<()> {
        let done =
            if bp.ndvas() == 0 { None } else { self.0.in_flight.borrow().get(&place(bp)).map(|(_, d)| d.clone()) };
        match done {
            Some(done) => done.await,
            None => Ok(()),
        }
    }
    /// Keeps the content of a block whose write was just issued: in the list of writes in flight
    /// and, if it stays, in the cache, which may have a device that takes it as it is stored.
    pub(crate) fn track_write(
        &self,
        bp: &Blkptr,
        (data, stored): (Bytes, Option<Bytes>),
        done: &WriteDone,
        metadata: bool,
        keep: Keep,
    ) {
        if bp.ndvas() == 0 {
            return;
        }
        if !done.is_done() {
            self.0.in_flight.borrow_mut().insert(place(bp), (data.clone(), done.clone()));
            let (weak, key) = (Rc::downgrade(&self.0), place(bp));
            done.on_done(move |_| {
                if let Some(ctx) = weak.upgrade() {
                    let removed = ctx.in_flight.borrow_mut().remove(&key);
                    drop(removed);
                }
            });
        }
        // Of what is received raw, only blocks that are made here are known unpacked.
        let is_known = !matches!(self.1, Access::Sealed) || bp.level() > 0 || bp.otype() == ObjectType::OBJSET;
        match keep {
            _ if !is_known => {}
            Keep::Cached | Keep::MemoryOnly => {
                self.0.arc.insert(bp, data, metadata);
                if let Some(stored) = stored.filter(|_| keep == Keep::Cached) {
                    self.0.arc.offer_written(bp, stored, metadata);
                }
            }
            // A block that is overwritten in place may have its old content there.
            Keep::Uncached => self.forget(bp),
        }
    }
    /// The last txg on disk.
    pub fn committed(&self) -> Txg {
        self.0.zio.tree().committed.get()
    }
    /// The block is freed: drops it from the cache.
    pub(crate) fn forget(&self, bp: &Blkptr) {
        self.0.arc.forget(bp);
    }
    pub(crate) fn dirty_add(&self, txg: Txg, bytes: u64) {
        self.0.txg.dirty_add(txg, bytes);
    }
    /// Subtracts `dirty` bytes when their write ends or, if the throttle policy says so, a share
    /// when each device has written its part.
    pub(crate) fn dirty_done_on_write(&self, txg: Txg, dirty: u64, done: &zio::WriteDone) {
        let pool = self.txg().clone();
        if !pool.tunables().policy.retires_by_part() {
            done.on_done(move |_| pool.dirty_done(txg, dirty));
            return;
        }
        let left = Rc::new(Cell::new(dirty));
        let (part_left, part_pool) = (left.clone(), pool.clone());
        done.on_parts(move |nth, of, result| {
            // The share of a failed device is subtracted at the end.
            if result.is_ok() {
                let share = txg::throttle::part_share(dirty, of, nth).min(part_left.get());
                part_left.set(part_left.get() - share);
                part_pool.dirty_done(txg, share);
            }
        });
        done.on_done(move |_| pool.dirty_done(txg, left.take()));
    }
    pub(crate) fn dirty_done(&self, txg: Txg, bytes: u64) {
        self.0.txg.dirty_done(txg, bytes);
    }
}
