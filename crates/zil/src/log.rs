//! The intent log of an object set in use: lists, commits, blocks.
//!
//! The normal path of a commit. Operations hand in what they did ([`Zilog::record`] and its like).
//! A commit of an object moves that object's records to the sync list, appends itself, and takes
//! the *issuer's lock*; whoever has it packs the whole list into the open block, other people's
//! commits included. A block that is full, or that the policy closes, gets a successor, whose place
//! must be known before the block can be written, and is issued: its own task awaits its write,
//! flushes, awaits the block before, and wakes those who waited for it. With `modern` a block that
//! somebody waits for, and that has nothing to flush but itself, is written durably where devices
//! do that: one operation in place of two. Commits wait for their block, and a task of its own
//! closes it when it has been open for long enough.
//!
//! While a block is under way it holds the txg open in which its successor was allocated: should
//! that txg sync and the block be lost, nobody would know of the successor. The sync of a txg moves
//! the header to the oldest block that is still needed and frees those before ([`dmu::IntentLog`]).
//!
//! What cannot be logged waits for its txg: there is no room, a device failed, a record does not
//! exist for it. After a failure the chain is broken, and nothing behind the break counts:
//! everybody waits for the txg, and the next commit begins a new chain.
//!
//! A commit of an object that has nothing to tell, and shares no record that is still to be packed,
//! packs nothing: it waits for the blocks in which the last of its records and the last of those
//! that every commit carries are, if these are not over yet.
//!
//! Invariants: records are packed in the order in which things happened; a block is over only after
//! everything before it is; no lock of files is waited for while a txg is held.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::pin::Pin;
use std::rc::{Rc, Weak};

use base::{Error, ErrorKind, Nanos, ObjectId, Result, Txg, VdevId};
use bdev::Bytes;
use dmu::{IntentLog, LocalBoxFuture, Objset};
use ondisk::blkptr::Blkptr;
use ondisk::object_type::ObjectType;
use ondisk::zil::{CHECKSUM_ZILOG2, ZIL_CHAIN_SIZE, ZilHeader};
use ondisk::zil_record::{Op, WRITE_SIZE, WriteData};
use rt::cost::{COPY, ZIL_RECORD};
use rt::join::join_all;
use rt::sync::{Mutex, Rank};
use rt::trace::{LogPhase, LogTimes};
use zio::{ClassKind, Prio, WriteAs, WriteDone};

mod batch;
mod packed;
mod sealing;
mod timer;

use self::sealing::Sealing;
use crate::block::{BLOCK_MAX, BLOCK_UNIT};
use crate::itx::{Data, Itx, ItxKind, Lists, Waiter, WaiterState, cut};
pub(crate) use crate::lwb::Lwb;
use crate::lwb::LwbState;
use crate::policy::{self, BURSTS, Closing, CommitPolicy, WriteFacts, WriteState, ZilTunables};
use crate::stats::ZilStats;

/// The issuer's lock: before those of a file's data, behind those of names.
const ISSUER: Rank = Rank(615, "intent log issuer");
/// Most data of one write record: it fits into a block of the largest size.
pub const RECORD_DATA_MAX: u64 = BLOCK_MAX - 4096;
/// Raw number of "no compression".
const COMPRESS_OFF: u8 = 2;

/// A boxed future of a trait of this crate.
pub type LBF<'a, T> = Pin<Box<dyn Future<Output = T> + 'a>>;

/// A block of a file stored for the log.
pub struct StoredBlock {
    /// Its pointer.
    pub bp: Blkptr,
    /// Its write.
    pub done: WriteDone,
}

/// Who has the data of writes; implemented by file systems and volumes. `None`: the object, or that
/// part of it, is no more.
pub trait GetData {
    /// The bytes that are in the range now, fewer at the end of the object.
    fn copy(&self, object: u64, offset: u64, length: u64) -> LBF<'_, Result<Option<Vec<Bytes>>>>;
    /// Stores the block of the object that holds the range. Must not wait for locks while it holds
    /// a txg.
    fn store(&self, object: u64, offset: u64, length: u64) -> LBF<'_, Result<Option<StoredBlock>>>;
}

/// Blocks of the chain from the oldest that is needed to the open one.
#[derive(Default)]
struct Chain {
    lwbs: VecDeque<Rc<Lwb>>,
    /// What the header says, or will when its txg syncs.
    header: Blkptr,
    /// The block that has the last record of each object, and (`None`) the last of those that every
    /// commit carries. One that is gone is on disk with its txg.
    last_lwb: BTreeMap<Option<u64>, Weak<Lwb>>,
    /// Whose records are being packed at the moment.
    packing: Vec<Option<u64>>,
}

impl Chain {
    /// Blocks that are not over, the newest first: before one that is over everything is.
    fn live(&self) -> impl Iterator<Item = &Rc<Lwb>> {
        self.lwbs.iter().rev().take_while(|l| !l.is_flush_done())
    }
}

struct Inner {
    os: Objset,
    data: Weak<dyn GetData>,
    tun: Cell<ZilTunables>,
    throughput: Cell<bool>,
    lists: RefCell<Lists>,
    issuer: Mutex<()>,
    chain: RefCell<Chain>,
    /// Something failed: nothing more goes to this chain.
    broken: Cell<bool>,
    /// Log devices failed: blocks go to normal vdevs until this txg.
    avoid_slog: Cell<Txg>,
    seq: Cell<u64>,
    parallel: Cell<u32>,
    latency: Cell<Nanos>,
    burst: Cell<u64>,
    bursts: RefCell<VecDeque<u64>>,
    /// The log is given up with this txg.
    closing: Cell<Option<Txg>>,
    stats: Cell<ZilStats>,
}

/// The intent log of an object set. Cheap to clone.
#[derive(Clone)]
pub struct Zilog(Rc<Inner>);

impl Zilog {
    /// The log of `os`, whose header must be empty: what a crash left has been replayed.
    pub fn new(os: &Objset, data: Weak<dyn GetData>, tun: ZilTunables) -> Zilog {
        assert!(os.zil_header().log.is_hole(), "the log of object set {} is in use", os.id());
        let inner = Rc::new(Inner {
            os: os.clone(),
            data,
            tun: Cell::new(tun),
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

    /// The settings.
    pub fn tunables(&self) -> ZilTunables {
        self.0.tun.get()
    }
    /// Changes the settings; they hold from the next decision on.
    pub fn set_tunables(&self, tun: ZilTunables) {
        self.0.tun.set(tun);
    }
    /// `logbias=throughput`.
    pub fn set_throughput(&self, on: bool) {
        self.0.throughput.set(on);
    }
    /// Counters.
    pub fn stats(&self) -> ZilStats {
        self.0.stats.get()
    }

    /// Notes a record (txg and number are filled in later) that every commit carries, or with
    /// `object` only commits of that object.
    pub fn record(&self, record: Vec<u8>, object: Option<ObjectId>, txg: Txg) {
        self.0.assign(txg, ItxKind::Record(record), object);
    }
    /// Notes something that no record tells: commits (of `object`, or all) wait for `txg`.
    pub fn barrier(&self, object: Option<ObjectId>, txg: Txg) {
        self.0.assign(txg, ItxKind::Barrier, object);
    }
    /// Notes a write. `data` are its bytes; kept only if `commit` says that they are committed at
    /// once, so not for long. `sync`: every commit carries it.
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
        let state = policy::write_state(&facts, &z.tun.get());
        z.os.ctx().txg().wrlog_add(txg, size);
        let (end, mut at) = (offset + size, offset);
        while at < end {
            let length = match state {
                WriteState::Indirect => (blocksize - at % blocksize).min(end - at),
                _ => policy::record_len(at, end, policy::data_max(&z.tun.get())),
            };
            let data = match state {
                WriteState::Copied => Data::Copied(data.to_vec()),
                // OpenZFS fetches what is larger than `zil_maxcopied` when it packs; here no copy
                // is saved by that.
                WriteState::NeedCopy if commit => Data::Copied(cut(data, at - offset, length)),
                WriteState::NeedCopy => Data::NeedCopy,
                WriteState::Indirect => Data::Indirect,
            };
            let kind = ItxKind::Write { object: object.0, offset: at, length, data };
            z.assign(txg, kind, (!sync).then_some(object));
            at += length;
        }
    }
    /// The records of an object become records that every commit carries: it gets another name,
    /// which must not be durable before what it names.
    pub fn async_to_sync(&self, object: ObjectId) {
        self.0.lists.borrow_mut().async_to_sync(Some(object.0));
    }
    /// The object is no more: nobody needs what it was.
    pub fn remove_async(&self, object: ObjectId) {
        self.0.lists.borrow_mut().by_object.remove(&object.0);
    }

    /// Makes what is known of `object`, or of all, durable.
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
            None => z.clone().write_out(&waiter).await?,
            // They end in order.
            Some(last) => last.link(&waiter),
        }
        z.wait(&waiter).await;
        if waiter.state.get() == WaiterState::Failed {
            z.count(|s| s.fallbacks += 1);
            return z.os.ctx().txg().wait_synced(Txg(0)).await;
        }
        Ok(())
    }

    /// Ends the use: nothing is under way any more, and the blocks of the log are free. Nobody may
    /// commit or change anything by now.
    pub async fn close(&self) -> Result<()> {
        let z = &self.0;
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
    fn synced(&self) -> Txg {
        self.os.ctx().txg().last_synced()
    }
    fn count(&self, f: impl FnOnce(&mut ZilStats)) {
        let mut s = self.stats.get();
        f(&mut s);
        self.stats.set(s);
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
    /// Whether nothing is being packed, and no block that says something is under way or open.
    fn is_quiet(&self) -> bool {
        let chain = self.chain.borrow();
        !self.broken.get() && chain.packing.is_empty() && chain.live().all(|l| l.is_open() && !l.has_records())
    }
    /// A log device that can be used.
    fn slog(&self) -> Option<VdevId> {
        let tops = self.os.ctx().zio().tree().tops.borrow();
        tops.iter().find(|t| t.is_log && t.is_usable() && t.kind().health().is_open()).map(|t| t.id)
    }
    fn class(&self) -> ClassKind {
        if self.avoid_slog.get() > self.synced() { ClassKind::Normal } else { ClassKind::Log }
    }
    /// The block that takes records.
    fn open_block(&self) -> Option<Rc<Lwb>> {
        self.chain.borrow().lwbs.back().filter(|l| l.is_open()).cloned()
    }
    fn pointer(&self, dva: ondisk::blkptr::Dva, size: u64, words: [u64; 4], txg: Txg) -> Blkptr {
        let mut bp = Blkptr::hole();
        bp.set_dva(0, dva);
        bp.set_lsize(size);
        bp.set_psize(size);
        bp.set_compress(COMPRESS_OFF);
        bp.set_checksum(CHECKSUM_ZILOG2);
        bp.set_otype(ObjectType::INTENT_LOG);
        bp.set_little_endian(true);
        bp.set_birth(txg, txg);
        bp.set_checksum_words(words);
        if let Some(key) = self.os.ctx().key() {
            bp.set_encrypted(true);
            let (salt, iv) = key.fresh_salt_iv(self.os.ctx().rt());
            bp.set_salt_iv(salt, iv);
        }
        bp
    }
    async fn allocate(&self, size: u64, words: [u64; 4], txg: Txg) -> Result<Blkptr> {
        let alloc = self.os.ctx().zio().allocator().clone();
        let dva = match alloc.try_alloc(self.class(), size, txg, &[], None)? {
            Some(dva) => dva,
            None => alloc.alloc(self.class(), size, txg, &[], None).await?,
        };
        // Datasets are charged for what is in the normal class only; the room of their syncs lies
        // there.
        if alloc.class_of(dva)? == ClassKind::Normal {
            let bytes = self.os.ctx().zio().tree().top(dva.vdev())?.dsize(dva.asize());
            if !self.os.take_log_block(bytes, txg) {
                alloc.unalloc(dva, txg)?;
                return Err(Error::new(ErrorKind::NoSpace, "the rest of the pool is kept for txgs"));
            }
        }
        Ok(self.pointer(dva, size, words, txg))
    }
    fn next_size(&self, want: u64) -> u64 {
        let mut bursts: Vec<u64> = self.bursts.borrow().iter().copied().collect();
        bursts.push(self.burst.get());
        policy::block_size(&bursts, want, &self.tun.get())
    }
    /// A burst is over: nothing more was to be said for the moment.
    fn burst_done(&self) {
        let burst = self.burst.replace(0);
        if burst > 0 {
            let mut bursts = self.bursts.borrow_mut();
            let keep = if self.tun.get().policy == CommitPolicy::Modern { BURSTS } else { 16 };
            while bursts.len() >= keep {
                bursts.pop_front();
            }
            bursts.push_back(burst);
        }
    }

    /// Packs the sync list, unless somebody has packed `waiter` meanwhile.
    async fn write_out(self: Rc<Self>, waiter: &Rc<Waiter>) -> Result<()> {
        let _issuer = self.issuer.lock().await;
        if waiter.state.get() != WaiterState::Queued {
            return Ok(());
        }
        if self.broken.get() {
            self.recover().await?;
        }
        let list = std::mem::take(&mut self.lists.borrow_mut().sync);
        let owners = list.iter().filter(|itx| !matches!(itx.kind, ItxKind::Commit(_))).map(|itx| itx.owner);
        if !planted!(PackingIgnored) {
            self.chain.borrow_mut().packing = owners.collect();
        }
        self.note_parallel();
        let mut stalled: Option<Vec<Rc<Waiter>>> = None;
        for itx in list {
            match (&itx.kind, &mut stalled) {
                (ItxKind::Commit(w), Some(waiters)) => waiters.push(w.clone()),
                (ItxKind::Commit(w), None) => self.link_waiter(w),
                (_, Some(_)) => {}
                (_, None) => {
                    if self.pack(itx).await.is_err() {
                        stalled = Some(Vec::new());
                    }
                }
            }
        }
        if let Some(waiters) = stalled {
            let result = self.stall().await;
            self.chain.borrow_mut().packing.clear();
            waiters.iter().for_each(|w| w.finish(result.is_ok()));
            return Ok(());
        }
        self.chain.borrow_mut().packing.clear();
        self.close_or_arm_timer().await
    }

    /// Measures how much company commits have.
    fn note_parallel(&self) {
        let chain = self.chain.borrow();
        let open = chain.lwbs.back().is_some_and(|l| l.is_open() && l.has_records());
        let before = chain.lwbs.len().checked_sub(2).and_then(|i| chain.lwbs.get(i));
        let busy = before.is_some_and(|l| !l.is_flush_done());
        self.parallel.set(policy::parallel_after(self.parallel.get(), open, busy));
    }

    /// After everything is packed: closes the open block, or leaves it to the timers of those who
    /// wait for it.
    async fn close_or_arm_timer(self: &Rc<Self>) -> Result<()> {
        let how = policy::closing(self.parallel.get(), self.latency.get(), &self.tun.get());
        if self.parallel.get() > 0 {
            self.parallel.set(self.parallel.get() - 1);
        }
        let open = self.open_block().filter(|l| l.has_records());
        if how == Closing::Now
            && let Some(lwb) = &open
        {
            self.burst_done();
            if self.close_block(lwb, 0).await.is_err() {
                // Who waits for it learns that with everybody else.
                return self.stall().await;
            }
        }
        if let (Closing::After(share), Some(lwb)) = (how, open)
            && !lwb.has_timer.replace(true)
        {
            let z = self.clone();
            self.os.ctx().rt().spawn("zil timer", async move { z.close_on_timeout(lwb, share).await });
        }
        self.end_batch().await;
        Ok(())
    }

    /// Somebody waits for everything packed so far.
    fn link_waiter(&self, w: &Rc<Waiter>) {
        let last = self.chain.borrow().lwbs.iter().rev().find(|l| !l.is_open() || l.has_records()).cloned();
        match last {
            Some(lwb) if !planted!(UnderwayIgnored) || lwb.is_open() => lwb.link(w),
            _ => w.finish(true),
        }
    }

    /// Puts one record into the log. An error: it cannot be logged.
    async fn pack(self: &Rc<Self>, itx: Itx) -> Result<()> {
        let txg = itx.txg;
        if txg <= self.synced() {
            return Ok(());
        }
        match itx.kind {
            ItxKind::Commit(_) => Ok(()),
            ItxKind::Barrier => {
                self.count(|s| s.barriers += 1);
                self.give_up_batch().await;
                self.os.ctx().txg().wait_synced(txg).await
            }
            ItxKind::Record(record) => self.append(&record, &[], txg, itx.owner, |_| {}).await,
            ItxKind::Write { object, offset, length, data } => {
                self.pack_write(object, offset, length, data, txg, itx.owner).await
            }
        }
    }

    async fn pack_write(
        self: &Rc<Self>,
        object: u64,
        offset: u64,
        mut length: u64,
        data: Data,
        txg: Txg,
        owner: Option<u64>,
    ) -> Result<()> {
        let source = || {
            let gone = || Error::new(ErrorKind::Interrupted, "the file system is not in use any more");
            self.data.upgrade().ok_or_else(gone)
        };
        let (parts, stored) = match data {
            Data::Copied(parts) => (parts, None),
            Data::NeedCopy => match source()?.copy(object, offset, length).await? {
                None => return Ok(()),
                Some(parts) => (parts, None),
            },
            Data::Indirect => match source()?.store(object, offset, length).await? {
                None => return Ok(()),
                Some(stored) => (Vec::new(), Some(stored)),
            },
        };
        let bp = match &stored {
            Some(stored) => stored.bp,
            None => {
                length = parts.iter().map(|p| p.len() as u64).sum();
                Blkptr::hole()
            }
        };
        if length == 0 {
            return Ok(());
        }
        let record = Op::Write { object, offset, length, data: WriteData::Block(bp) }.encode()?;
        assert!(record.len() == WRITE_SIZE, "a write record without data has a fixed size");
        self.count(|s| match &stored {
            Some(_) => s.indirect += 1,
            None => s.copied += 1,
        });
        self.append(&record, &parts, txg, owner, |lwb| {
            let Some(stored) = stored else { return };
            if !planted!(IndirectNotFlushed) {
                lwb.vdevs.borrow_mut().extend(stored.bp.dvas().map(|d| d.vdev()));
            }
            lwb.writes.borrow_mut().push(stored.done);
        })
        .await
    }

    async fn append(
        self: &Rc<Self>,
        fixed: &[u8],
        data: &[Bytes],
        txg: Txg,
        owner: Option<u64>,
        more: impl FnOnce(&Lwb),
    ) -> Result<()> {
        let len = (fixed.len() + data.iter().map(|d| d.len()).sum::<usize>()).next_multiple_of(8);
        self.os.ctx().rt().spend(ZIL_RECORD + COPY.cost(len as u64)).await;
        if len > BLOCK_MAX as usize - ZIL_CHAIN_SIZE {
            return Err(Error::new(ErrorKind::TooBig, format!("a log record of {len} bytes")));
        }
        let lwb = self.lwb_with_room(len).await?;
        if txg <= self.synced() {
            return Ok(());
        }
        if !lwb.has_records() {
            let rt = self.os.ctx().rt();
            lwb.opened.set(rt.now());
            lwb.trace(rt, self.os.id(), LogPhase::Opened, LogTimes::default());
        }
        self.seq.set(self.seq.get() + 1);
        self.burst.set(self.burst.get() + len as u64);
        lwb.push(fixed, data, txg, self.seq.get());
        more(&lwb);
        self.chain.borrow_mut().last_lwb.insert(owner, Rc::downgrade(&lwb));
        self.count(|s| (s.records, s.bytes) = (s.records + 1, s.bytes + len as u64));
        Ok(())
    }

    /// The open block with room for `len` bytes.
    async fn lwb_with_room(self: &Rc<Self>, len: usize) -> Result<Rc<Lwb>> {
        loop {
            match self.open_block() {
                None => self.begin_chain(len as u64).await?,
                Some(lwb) if lwb.fits(len) => return Ok(lwb),
                Some(lwb) => {
                    let full = lwb.has_records();
                    self.close_block(&lwb, len as u64).await?;
                    self.count(|s| s.full += u64::from(full));
                }
            }
        }
    }

    /// Begins a chain: its first block must be in a header on disk before a commit can rely on it.
    async fn begin_chain(&self, want: u64) -> Result<()> {
        let txg = self.os.ctx().txg();
        let hold = txg.hold_open().await;
        let rt = self.os.ctx().rt();
        let words = [rt.rng_u64() | 1, rt.rng_u64() | 1, self.os.id(), 1];
        let bp = self.allocate(self.next_size(want), words, hold.txg).await?;
        let at = hold.txg;
        self.chain.borrow_mut().lwbs.push_back(Lwb::new(bp, at));
        self.os.touch(at);
        drop(hold);
        txg.wait_synced(at).await
    }

    /// Gives the open block a successor that can take `want` bytes, and issues it.
    async fn close_block(self: &Rc<Self>, lwb: &Rc<Lwb>, want: u64) -> Result<()> {
        let ctx = self.os.ctx();
        let sealing = Sealing::of(lwb, ctx.key());
        // Before anything changes: from the next block's place on nothing is waited for.
        ctx.rt().spend(sealing.cost_here()).await;
        let hold = ctx.txg().hold_open().await;
        let mut words = lwb.bp.checksum_words();
        words[3] = words[3].wrapping_add(1);
        let next_bp = match self.allocate(self.next_size(want), words, hold.txg).await {
            Ok(bp) => bp,
            Err(e) => {
                self.broken.set(true);
                return Err(e);
            }
        };
        let next = Lwb::new(next_bp, hold.txg);
        self.os.touch(hold.txg);
        let before = {
            let mut chain = self.chain.borrow_mut();
            let at = chain.lwbs.len();
            chain.lwbs.push_back(next);
            at.checked_sub(2).map(|i| chain.lwbs[i].clone())
        };
        lwb.holds.borrow_mut().push(hold);
        let nused = lwb.used.get();
        let dva = lwb.bp.dva(0);
        // Where parity goes with the data the whole block is written: it is read as a whole.
        let spread = dva.asize() > lwb.bp.psize();
        let written = if spread { lwb.bp.psize() as usize } else { nused.next_multiple_of(BLOCK_UNIT) };
        let bytes = lwb.take_bytes(written.min(lwb.bp.psize() as usize));
        lwb.issued.set(ctx.rt().now());
        let queue = lwb.issued.get().since(lwb.opened.get());
        lwb.trace(ctx.rt(), self.os.id(), LogPhase::Issued, LogTimes { queue, ..LogTimes::default() });
        let top = ctx.zio().tree().top(dva.vdev())?;
        let bulk = top.is_log && self.burst.get() > self.tun.get().slog_bulk;
        let prio = if bulk { Prio::AsyncWrite } else { Prio::SyncWrite };
        match self.tun.get().policy {
            CommitPolicy::Batched => {
                lwb.flush_deferred.set(true);
                lwb.in_batch.set(true);
            }
            CommitPolicy::Batchless2017 => {}
            CommitPolicy::Modern => {
                let unawaited = |b: &Rc<Lwb>| b.state.get() == LwbState::Issued && b.waiters.borrow().is_empty();
                if let Some(b) = before.filter(unawaited) {
                    b.flush_deferred.set(true);
                    lwb.vdevs.borrow_mut().extend(b.vdevs.borrow().iter().copied());
                    self.count(|s| s.deferred += 1);
                } else if lwb.needs_own_flush_only() && top.writes_durably() && !planted!(NoFlush) {
                    // Nothing else to be flushed: its own write will be enough.
                    lwb.vdevs.borrow_mut().clear();
                }
            }
        }
        let durable = lwb.vdevs.borrow().is_empty();
        let how = WriteAs { prio, durable };
        let done = sealing.write(ctx.rt(), &top, how, bytes, next_bp, nused);
        lwb.set_state(LwbState::Issued);
        self.count(|s| (s.blocks, s.block_bytes) = (s.blocks + 1, s.block_bytes + written as u64));
        let (z, chained, lwb) = (self.clone(), self.lwbs_before(lwb), lwb.clone());
        ctx.rt().spawn("zil block", async move { z.run_lwb(lwb, chained, done).await });
        Ok(())
    }

    /// The blocks before one that are not over, the nearest first.
    fn lwbs_before(&self, lwb: &Rc<Lwb>) -> Vec<Rc<Lwb>> {
        let chain = self.chain.borrow();
        chain.live().skip_while(|l| !Rc::ptr_eq(l, lwb)).skip(1).cloned().collect()
    }

    /// A block's own task: its write, its flush, the block before. `before`: blocks before it that
    /// were under way when it was issued, the nearest first.
    async fn run_lwb(self: Rc<Self>, lwb: Rc<Lwb>, before: Vec<Rc<Lwb>>, done: WriteDone) {
        let rt = self.os.ctx().rt();
        if planted!(WakeBeforePredecessor) {
            self.wake_early(&lwb, &done).await;
        }
        let mut good = self.wait_writes(&lwb, done).await;
        lwb.failed.set(!good);
        lwb.written.set(rt.now());
        lwb.set_state(LwbState::WriteDone);
        if planted!(WakeBeforeFlush) {
            lwb.waiters.take().iter().for_each(|w| w.finish(good));
        }
        if lwb.flush_deferred.get() {
            return;
        }
        // Those that leave their flush to this one must be written before it.
        let mine: Vec<Rc<Lwb>> = before.iter().take_while(|b| b.flush_deferred.get()).cloned().collect();
        for b in &mine {
            b.wait_write_done().await;
            good &= !b.failed.get();
        }
        let vdevs: Vec<VdevId> = lwb.vdevs.borrow().iter().copied().collect();
        let began = rt.now();
        good &= self.flush(&vdevs).await;
        let flush = rt.now().since(began);
        if let Some(b) = before.get(mine.len()) {
            b.wait_flush_done().await;
            good &= !b.failed.get();
        }
        // A block that failed may have been over before this one was issued: a replay ends there.
        good &= !self.broken.get();
        if !good {
            self.note_failure(&lwb);
        }
        let took = rt.now().since(lwb.issued.get());
        let latency = self.latency.get();
        self.latency.set(if latency.0 == 0 { took } else { Nanos((latency.0 * 7 + took.0) / 8) });
        if self.tun.get().policy == CommitPolicy::Batchless2017 {
            self.latency.set(took);
        }
        for b in mine.iter().rev().chain([&lwb]) {
            self.lwb_flush_done(b, flush, good);
        }
    }

    /// A block is over; that flush was for it.
    fn lwb_flush_done(&self, lwb: &Lwb, flush: Nanos, good: bool) {
        let rt = self.os.ctx().rt();
        let times = lwb.times(rt.now(), flush);
        self.count(|s| s.block_done(lwb.waiters.borrow().len(), times));
        lwb.trace(rt, self.os.id(), LogPhase::Done, times);
        lwb.finish(good);
    }

    async fn wait_writes(&self, lwb: &Lwb, done: WriteDone) -> bool {
        let writes = lwb.writes.take();
        let mut good = done.await.is_ok();
        for w in writes {
            good &= w.await.is_ok();
        }
        good
    }

    /// A mistake on purpose: only the own write and flush count.
    async fn wake_early(&self, lwb: &Lwb, done: &WriteDone) {
        let good = done.clone().await.is_ok();
        let vdevs: Vec<VdevId> = lwb.vdevs.borrow().iter().copied().collect();
        let good = good && self.flush(&vdevs).await;
        lwb.waiters.take().iter().for_each(|w| w.finish(good));
    }

    /// Makes what was written to these vdevs durable.
    async fn flush(&self, vdevs: &[VdevId]) -> bool {
        if planted!(NoFlush) {
            return true;
        }
        self.count(|s| s.flushes += vdevs.len() as u64);
        let tree = self.os.ctx().zio().tree();
        let flushes = vdevs.iter().map(|&v| async move { tree.top(v)?.flush().await });
        let all: Result<()> = join_all(flushes.collect()).await.into_iter().collect();
        all.is_ok() || planted!(FlushErrorIgnored)
    }

    fn note_failure(&self, lwb: &Lwb) {
        self.broken.set(true);
        self.count(|s| s.failures += 1);
        let on_log = self.os.ctx().zio().tree().top(lwb.bp.dva(0).vdev()).is_ok_and(|t| t.is_log);
        if on_log {
            self.avoid_slog.set(Txg(self.synced().0 + 16));
        }
    }

    /// Something found no room in the log, or could not be read for it.
    async fn stall(&self) -> Result<()> {
        self.count(|s| s.stalls += 1);
        self.recover().await
    }

    /// After a failure, or where something cannot be logged: everything so far becomes durable with
    /// its txg, and the chain ends. The issuer's lock is held.
    async fn recover(&self) -> Result<()> {
        self.give_up_batch().await;
        let synced = self.os.ctx().txg().wait_synced(Txg(0)).await;
        let all: Vec<Rc<Lwb>> = self.chain.borrow().lwbs.iter().cloned().collect();
        for lwb in all {
            if lwb.is_open() {
                // It is durable by its txg, or the pool has ended.
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

    /// Waits until `waiter` is served.
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

    fn end_chain(self: Rc<Self>) -> LocalBoxFuture<'static, Result<()>> {
        Box::pin(async move {
            let _issuer = self.issuer.lock().await;
            if self.chain.borrow().lwbs.is_empty() {
                return Ok(());
            }
            self.recover().await?;
            // The sync of a txg that writes the object set gives the blocks up.
            let txg = self.os.ctx().txg();
            let hold = txg.hold_open().await;
            let at = hold.txg;
            self.os.touch(at);
            drop(hold);
            txg.wait_synced(at).await
        })
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.lists.get_mut().sync.clear();
    }
}
