//! The intent log of an object set in use: lists, commits, blocks.
//!
//! The normal path of a commit. Operations hand in records ([`Zilog::record`], [`Zilog::write`]). A
//! commit of an object moves that object's records to the sync list, appends itself, and takes the
//! *issuer's lock*. The holder packs the whole list, with the commits of other tasks, into the open
//! block (`pack`). A block that is full, or that the policy closes, gets a successor, whose place
//! must be known before the block can be written, and is issued (`issue`): its own task waits for
//! the write, flushes, waits for the block before, and wakes the commits that wait for it. With
//! `modern` a block that commits wait for, and that has nothing to flush but itself, is written
//! durably where devices do that: one operation in place of two. Commits wait for their block; a
//! timer task closes it after its time (`timer`).
//!
//! A block in flight holds the txg in which its successor was allocated: if that txg synced and the
//! block were lost, no pointer to the successor would exist. The sync of a txg moves the header to
//! the oldest block that is still needed and frees those before ([`dmu::IntentLog`]).
//!
//! An operation that cannot be logged waits for its txg: there is no room, a device failed, or the
//! format has no record for it. After a failure the chain is broken, and a replay would end at the
//! break: all commits wait for the txg, and the next commit begins a new chain.
//!
//! A commit of an object without unpacked records, its own or those that every commit carries,
//! packs nothing (`packed`): it waits for the block with the object's last record and for the block
//! with the last record that every commit carries, if they are in flight.
//!
//! Invariants: records are packed in the order of the operations; a block is FLUSH_DONE only after
//! all blocks before it; a task that holds a txg waits for no lock of a file.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::rc::{Rc, Weak};

use base::{Nanos, ObjectId, Result, Txg, VdevId};
use bdev::Bytes;
use dmu::{Dnode, IntentLog, Objset};
use ondisk::blkptr::Blkptr;
use ondisk::zil::ZilHeader;
use rt::LocalBoxFuture;
use rt::sync::{Mutex, Rank};
use zio::WriteDone;

mod batch;
mod issue;
mod pack;
mod packed;
mod sealing;
mod timer;

use crate::block::BLOCK_MAX;
use crate::itx::{Data, Itx, ItxKind, Lists, Waiter, WaiterState, cut};
pub(crate) use crate::lwb::Lwb;
use crate::policy::{self, WriteFacts, WriteState, ZilTunables};
use crate::stats::{PoolLogs, ZilStats};

/// The issuer's lock: before those of a file's data, behind those of names.
const ISSUER: Rank = Rank(615, "intent log issuer");
/// Most data of one write record: it fits into a block of the largest size.
pub const RECORD_DATA_MAX: u64 = BLOCK_MAX - 4096;

/// A block of a file stored for the log.
pub struct StoredBlock {
    /// Its pointer.
    pub bp: Blkptr,
    /// Its write.
    pub done: WriteDone,
}

impl StoredBlock {
    /// Stores `block`, which is or was the content of block `blkid` of an object, in the open txg.
    /// The caller holds no lock that a task with a txg may wait for.
    ///
    /// # Errors
    /// Those of [`Dnode::store_early`].
    pub async fn store(os: &Objset, dn: &Dnode, blkid: u64, block: Bytes) -> Result<StoredBlock> {
        let hold = os.ctx().txg().hold_open().await;
        let (bp, done) = dn.store_early(blkid, block, hold).await?;
        Ok(StoredBlock { bp, done })
    }
}

/// Gives the data of writes; implemented by file systems and volumes. `None`: the object, or that
/// part of it, does not exist any more.
pub trait GetData {
    /// The current bytes of the range, fewer at the end of the object.
    fn copy(&self, object: u64, offset: u64, length: u64) -> LocalBoxFuture<'_, Result<Option<Vec<Bytes>>>>;
    /// Stores the object's block that contains the range. Must not wait for locks while it holds a
    /// txg.
    fn store(&self, object: u64, offset: u64, length: u64) -> LocalBoxFuture<'_, Result<Option<StoredBlock>>>;
}

/// Blocks of the chain from the oldest that is needed to the open one.
#[derive(Default)]
struct Chain {
    lwbs: VecDeque<Rc<Lwb>>,
    /// The first pointer in the header, or the one that it gets when its txg syncs.
    header: Blkptr,
    /// The block with the last record of each object, and (`None`) with the last record that every
    /// commit carries. A block that does not exist any more is on disk with its txg.
    last_lwb: BTreeMap<Option<u64>, Weak<Lwb>>,
    /// Owners of the records that are being packed.
    packing: Vec<Option<u64>>,
}

impl Chain {
    /// Blocks that are not FLUSH_DONE, newest first: all blocks before a FLUSH_DONE one are, too.
    fn live(&self) -> impl Iterator<Item = &Rc<Lwb>> {
        self.lwbs.iter().rev().take_while(|l| !l.is_flush_done())
    }
}

struct Inner {
    os: Objset,
    data: Weak<dyn GetData>,
    shared: Rc<PoolLogs>,
    throughput: Cell<bool>,
    lists: RefCell<Lists>,
    issuer: Mutex<()>,
    chain: RefCell<Chain>,
    /// A write or flush failed: no more blocks go to this chain.
    broken: Cell<bool>,
    /// Log devices failed: blocks go to normal vdevs until this txg.
    avoid_slog: Cell<Txg>,
    seq: Cell<u64>,
    parallel: Cell<u32>,
    latency: Cell<Nanos>,
    burst: Cell<u64>,
    bursts: RefCell<VecDeque<u64>>,
    /// The sync of this txg frees the log.
    closing: Cell<Option<Txg>>,
    stats: Cell<ZilStats>,
}

/// The intent log of an object set. Cheap to clone.
#[derive(Clone)]
pub struct Zilog(Rc<Inner>);

impl Zilog {
    /// The log of `os`, whose header must be empty: a log left by a crash has been replayed.
    /// `shared` is what the logs of its pool share.
    pub fn new(os: &Objset, data: Weak<dyn GetData>, shared: Rc<PoolLogs>) -> Zilog {
        assert!(os.zil_header().log.is_hole(), "the log of object set {} is in use", os.id());
        let inner = Rc::new(Inner {
            os: os.clone(),
            data,
            shared,
            throughput: Cell::new(false),
            lists: RefCell::default(),
            issuer: Mutex::new(ISSUER, ()),
            chain: RefCell::default(),
            broken: Cell::new(false),
            avoid_slog: Cell::new(Txg(0)),
            seq: Cell::new(0),
            parallel: Cell::new(0),
            latency: Cell::new(Nanos(0)),
            burst: Cell::new(0),
            bursts: RefCell::default(),
            closing: Cell::new(None),
            stats: Cell::default(),
        });
        let hook: Rc<dyn IntentLog> = inner.clone();
        os.set_log(Some(Rc::downgrade(&hook)));
        Zilog(inner)
    }

    /// The tunables.
    pub fn tunables(&self) -> ZilTunables {
        self.0.tunables()
    }
    /// `logbias=throughput`.
    pub fn set_throughput(&self, on: bool) {
        self.0.throughput.set(on);
    }
    /// Counters.
    pub fn stats(&self) -> ZilStats {
        self.0.stats.get()
    }

    /// Adds a record (txg and number are filled in later) that every commit carries, or with
    /// `object` only commits of that object.
    pub fn record(&self, record: Vec<u8>, object: Option<ObjectId>, txg: Txg) {
        self.0.assign(txg, ItxKind::Record(record), object);
    }
    /// Notes an operation without a record: commits (of `object`, or all) wait for `txg`.
    pub fn barrier(&self, object: Option<ObjectId>, txg: Txg) {
        self.0.assign(txg, ItxKind::Barrier, object);
    }
    /// Adds a write. `data` are its bytes, kept only with `commit`: the caller commits at once, so
    /// they stay for a short time. `sync`: every commit carries it.
    #[allow(clippy::too_many_arguments)]
    pub fn write(
        &self,
        object: ObjectId,
        offset: u64,
        data: &[Bytes],
        blocksize: u64,
        commit: bool,
        sync: bool,
        txg: Txg,
    ) {
        let z = &*self.0;
        let size: u64 = data.iter().map(|d| d.len() as u64).sum();
        let facts =
            WriteFacts { size, blocksize, commit, throughput: z.throughput.get(), has_slog: z.slog().is_some() };
        let state = policy::write_state(&facts, &z.tunables());
        z.os.ctx().txg().wrlog_add(txg, size);
        let (end, mut at) = (offset + size, offset);
        while at < end {
            let length = match state {
                WriteState::Indirect => (blocksize - at % blocksize).min(end - at),
                _ => policy::record_len(at, end, policy::data_max(&z.tunables())),
            };
            let data = match state {
                WriteState::Copied => Data::Copied(data.to_vec()),
                // OpenZFS fetches data larger than `zil_maxcopied` when it packs; that would save
                // no copy here.
                WriteState::NeedCopy if commit => Data::Copied(cut(data, at - offset, length)),
                WriteState::NeedCopy => Data::NeedCopy,
                WriteState::Indirect => Data::Indirect,
            };
            let kind = ItxKind::Write { object: object.0, offset: at, length, data };
            z.assign(txg, kind, (!sync).then_some(object));
            at += length;
        }
    }
    /// The records of an object become records that every commit carries (`zil_async_to_sync`): the
    /// object gets another name, which must not be durable before its content.
    pub fn async_to_sync(&self, object: ObjectId) {
        self.0.lists.borrow_mut().async_to_sync(Some(object.0));
    }
    /// The object is freed: drops its records (`zil_remove_async`).
    pub fn remove_async(&self, object: ObjectId) {
        self.0.lists.borrow_mut().remove_async(object.0);
    }

    /// Makes all earlier operations on `object`, or on all objects, durable.
    pub async fn commit(&self, object: Option<ObjectId>) -> Result<()> {
        let z = &self.0;
        let waiter = Rc::new(Waiter::default());
        let mut under_way = Vec::new();
        {
            let mut lists = z.lists.borrow_mut();
            lists.drop_synced(z.synced());
            if !planted!(AsyncLeft) {
                lists.async_to_sync(object.map(|o| o.0));
            }
            if lists.sync.is_empty() && (planted!(UnderwayIgnored) || z.is_quiet()) {
                return Ok(());
            }
            match object.filter(|o| z.all_packed(o.0, &lists)).and_then(|o| z.lwbs_in_flight(o.0)) {
                Some(blocks) if blocks.is_empty() => return Ok(()),
                Some(blocks) => under_way = blocks,
                None => lists.sync.push_back(Itx { txg: Txg(0), owner: None, kind: ItxKind::Commit(waiter.clone()) }),
            }
        }
        z.count(|s| s.commits += 1);
        match under_way.pop() {
            None => {
                z.count(|s| s.writers += 1);
                z.clone().write_out(&waiter).await?;
            }
            // Blocks end in the order of the chain.
            Some(last) => last.link(&waiter),
        }
        z.wait(&waiter).await;
        if waiter.state.get() == WaiterState::Failed {
            z.count(|s| s.fallbacks += 1);
            return z.os.ctx().txg().wait_synced(Txg(0)).await;
        }
        Ok(())
    }

    /// Ends the use: waits for blocks in flight and frees the blocks of the log. No commits or
    /// changes may come any more. In a frozen pool all records are committed first, since the log
    /// on disk is all that stays of them.
    pub async fn close(&self) -> Result<()> {
        let z = &self.0;
        let txg = z.os.ctx().txg();
        if txg.is_frozen(txg.open_txg()) {
            self.commit(None).await?;
        }
        let _issuer = z.issuer.lock().await;
        let under_way: Vec<Rc<Lwb>> = z.chain.borrow().lwbs.iter().filter(|l| !l.is_open()).cloned().collect();
        for lwb in under_way {
            lwb.wait_flush_done().await;
        }
        if z.chain.borrow().lwbs.is_empty() && z.chain.borrow().header.is_hole() {
            z.os.set_log(None);
            return Ok(());
        }
        let hold = z.os.ctx().txg().hold_open().await;
        let txg = hold.txg;
        z.closing.set(Some(txg));
        z.os.touch(txg);
        drop(hold);
        z.os.ctx().txg().wait_synced(txg).await?;
        z.os.set_log(None);
        Ok(())
    }
}

impl Inner {
    /// The last txg that is on disk: records of later ones are kept until they are committed.
    fn synced(&self) -> Txg {
        self.os.ctx().txg().last_durable()
    }
    fn count(&self, f: impl Fn(&mut ZilStats)) {
        let mut s = self.stats.get();
        f(&mut s);
        self.stats.set(s);
        self.shared.count(f);
    }
    /// The tunables of the pool's logs.
    fn tunables(&self) -> ZilTunables {
        self.shared.tunables()
    }
    fn assign(&self, txg: Txg, kind: ItxKind, object: Option<ObjectId>) {
        let mut lists = self.lists.borrow_mut();
        lists.drop_synced(self.synced());
        let itx = Itx { txg, owner: object.map(|o| o.0), kind };
        match object {
            Some(obj) => lists.by_object.entry(obj.0).or_default().push_back(itx),
            None => lists.sync.push_back(itx),
        }
    }
    /// Whether no record is being packed, and no block with records is open or in flight.
    fn is_quiet(&self) -> bool {
        let chain = self.chain.borrow();
        !self.broken.get() && chain.packing.is_empty() && chain.live().all(|l| l.is_open() && !l.has_records())
    }
    /// A usable log device.
    fn slog(&self) -> Option<VdevId> {
        let tops = self.os.ctx().zio().tree().tops.borrow();
        tops.iter().find(|t| t.is_log && t.is_usable() && t.kind().health().is_open()).map(|t| t.id)
    }
    /// The block that takes records.
    fn open_block(&self) -> Option<Rc<Lwb>> {
        self.chain.borrow().lwbs.back().filter(|l| l.is_open()).cloned()
    }
    /// A burst ends: no more records wait to be packed.
    fn burst_done(&self) {
        let burst = self.burst.replace(0);
        if burst > 0 {
            let mut bursts = self.bursts.borrow_mut();
            while bursts.len() >= policy::bursts_kept(self.tunables().policy) {
                bursts.pop_front();
            }
            bursts.push_back(burst);
        }
    }

    /// A record found no room in the log, or its data could not be read.
    async fn stall(&self) -> Result<()> {
        self.count(|s| s.stalls += 1);
        self.recover().await
    }

    /// After a failure, or if a record cannot be logged: waits until all operations so far are
    /// durable with their txg, and ends the chain. The issuer's lock is held.
    async fn recover(&self) -> Result<()> {
        self.give_up_batch().await;
        let synced = self.os.ctx().txg().wait_synced(Txg(0)).await;
        let all: Vec<Rc<Lwb>> = self.chain.borrow().lwbs.iter().cloned().collect();
        for lwb in all {
            if lwb.is_open() {
                // Its records are durable with their txg, or the pool has ended.
                let waiters = lwb.waiters.take();
                lwb.finish(synced.is_ok());
                waiters.iter().for_each(|w| w.finish(synced.is_ok()));
            } else {
                lwb.wait_flush_done().await;
            }
        }
        self.broken.set(false);
        synced
    }

    /// After [`Inner::recover`]: the sync of a txg that writes the object set frees the blocks.
    async fn end_now(&self) -> Result<()> {
        let txg = self.os.ctx().txg();
        let hold = txg.hold_open().await;
        let at = hold.txg;
        self.os.touch(at);
        drop(hold);
        txg.wait_synced(at).await
    }

    /// Waits until `waiter` is done.
    async fn wait(&self, waiter: &Rc<Waiter>) {
        while !waiter.is_done() {
            waiter.changed.notified().await;
        }
    }
}

impl IntentLog for Inner {
    fn sync(&self, txg: Txg) -> Result<Option<ZilHeader>> {
        let mut chain = self.chain.borrow_mut();
        let chain = &mut *chain;
        let zio = self.os.ctx().zio();
        self.lists.borrow_mut().drop_synced(self.synced());
        if self.closing.get().is_some_and(|c| c <= txg) {
            for lwb in chain.lwbs.drain(..) {
                zio.free(&lwb.bp, txg)?;
            }
            chain.header = Blkptr::hole();
            return Ok(Some(ZilHeader::default()));
        }
        let needed = |l: &Lwb| !l.is_flush_done() || l.max_txg.get() > txg || l.alloc_txg > txg;
        while chain.lwbs.front().is_some_and(|l| !needed(l) || (planted!(FreedEarly) && l.is_flush_done())) {
            let Some(lwb) = chain.lwbs.pop_front() else { break };
            zio.free(&lwb.bp, txg)?;
        }
        chain.last_lwb.retain(|_, lwb| lwb.strong_count() > 0);
        let first = chain.lwbs.front().map_or(Blkptr::hole(), |l| l.bp);
        if first == chain.header {
            return Ok(None);
        }
        chain.header = first;
        Ok(Some(ZilHeader { log: first, ..ZilHeader::default() }))
    }

    fn begin_chain(self: Rc<Self>) -> LocalBoxFuture<'static, Result<()>> {
        Box::pin(async move {
            let _issuer = self.issuer.lock().await;
            if self.broken.get() {
                self.recover().await?;
                self.end_now().await?;
            }
            if self.chain.borrow().lwbs.is_empty() { Inner::begin_chain(&self, 0).await } else { Ok(()) }
        })
    }

    fn end_chain(self: Rc<Self>) -> LocalBoxFuture<'static, Result<()>> {
        Box::pin(async move {
            let _issuer = self.issuer.lock().await;
            if self.chain.borrow().lwbs.is_empty() {
                return Ok(());
            }
            self.recover().await?;
            self.end_now().await
        })
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        std::mem::take(&mut self.lists.get_mut().sync);
    }
}
