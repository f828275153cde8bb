//! The shell around [`Core`]: reads missing blocks, one device read for all concurrent readers.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use base::Result;
use bdev::Bytes;
use ondisk::blkptr::Blkptr;
use rt::Rt;
use rt::sync::Notify;
use vdev::Prio;
use zio::{DataKey, Zio};

use crate::Demand;
use crate::core::{ArcStats, Core, Key, Want};
use crate::l2::L2;

/// Whose memory is charged.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum MemKind {
    /// Cached dnodes and their attached state.
    Dnode,
    /// In-memory indexes of ZAPs.
    ZapIndex,
}

/// Whether a block that is read stays in the cache.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Keep {
    /// As long as it is worth its room, then on a cache device.
    Cached,
    /// As [`Keep::Cached`] in memory, and not on cache devices (`secondarycache`).
    MemoryOnly,
    /// For a moment: it is hardly wanted again (`ARC_FLAG_UNCACHED`).
    Uncached,
}

/// How many kinds there are.
const KINDS: usize = 2;

/// A read in flight, and its waiters.
#[derive(Default)]
struct Pending {
    result: RefCell<Option<Result<Bytes>>>,
    done: Notify,
    /// The block was dropped or rewritten meanwhile: the result is not cached.
    stale: Cell<bool>,
}

pub(crate) struct Inner {
    pub(crate) rt: Rt,
    pub(crate) zio: Zio,
    pub(crate) core: RefCell<Core>,
    pending: RefCell<BTreeMap<Key, Rc<Pending>>>,
    charged: [Cell<u64>; KINDS],
    pub(crate) l2: L2,
    /// Bytes charged for index and stage of cache devices.
    pub(crate) l2_charged: Cell<u64>,
}

/// The cache of one pool. Cheap to clone.
#[derive(Clone)]
pub struct Arc(Rc<Inner>);

/// Wakes the waiters of a read, even if the reading future is dropped half-way (then one of them
/// reads).
struct Leader<'a> {
    inner: &'a Inner,
    key: Key,
    pending: Rc<Pending>,
}

impl Drop for Leader<'_> {
    fn drop(&mut self) {
        let mut map = self.inner.pending.borrow_mut();
        if map.get(&self.key).is_some_and(|p| Rc::ptr_eq(p, &self.pending)) {
            map.remove(&self.key);
        }
        drop(map);
        self.pending.done.notify_all();
    }
}

/// Who asks in a class of reads.
fn want_of(prio: Prio) -> Want {
    if prio == Prio::SyncRead { Want::Demand } else { Want::Ahead }
}

fn is_meta(bp: &Blkptr) -> bool {
    bp.level() > 0 || bp.otype().is_metadata()
}

impl Inner {
    fn now_ms(&self) -> u32 {
        (self.rt.now().0 / 1_000_000) as u32
    }

    /// The block from a cache device, or else from the pool; from there also its stored bytes, if
    /// a cache device may get them.
    async fn fetch(
        &self,
        key: &Key,
        bp: &Blkptr,
        crypt: Option<&DataKey>,
        prio: Prio,
        keep: Keep,
    ) -> (Result<Bytes>, Option<Bytes>) {
        if self.l2.is_used() {
            if let Some(data) = self.read_l2(key, bp, crypt, prio).await {
                return (Ok(data), None);
            }
            if keep == Keep::Cached && self.l2.is_fed() {
                return match self.zio.read_both(bp, crypt, prio).await {
                    Ok((data, stored)) => (Ok(data), stored),
                    Err(e) => (Err(e), None),
                };
            }
        }
        (self.zio.read_with(bp, crypt, prio).await, None)
    }
}

impl Arc {
    /// A cache of at most `limit` bytes over `zio`.
    pub fn new(rt: Rt, zio: Zio, limit: u64) -> Arc {
        Arc(Rc::new(Inner {
            rt,
            zio,
            core: RefCell::new(Core::new(limit)),
            pending: RefCell::default(),
            charged: Default::default(),
            l2: L2::default(),
            l2_charged: Cell::default(),
        }))
    }

    pub(crate) fn inner(&self) -> &Rc<Inner> {
        &self.0
    }

    /// The block, from memory or else from a device: lsize bytes in native order, as [`Zio::read`].
    /// Holes and embedded blocks are made anew each time.
    pub async fn read(&self, bp: &Blkptr, prio: Prio) -> Result<Bytes> {
        self.read_with(bp, None, prio, Keep::Cached).await
    }

    /// As [`Arc::read`] with the key of the block's dataset if that is encrypted; the cache keeps
    /// plaintext. A hit needs no key, so callers without the key must not call this.
    pub async fn read_with(&self, bp: &Blkptr, crypt: Option<&DataKey>, prio: Prio, keep: Keep) -> Result<Bytes> {
        let c = &*self.0;
        let key = Key::of(bp);
        if let Some(key) = &key
            && let Some(data) = c.core.borrow_mut().get(key, bp.lsize(), c.now_ms(), want_of(prio))
        {
            return Ok(data);
        }
        // Boxed, because the state of a device read is many times larger than that of a hit, and
        // every future above this one would hold, and move, room for it.
        Box::pin(self.read_missing(key, bp, crypt, prio, keep)).await
    }

    /// As [`Arc::read_with`] for a block that is not in memory.
    async fn read_missing(
        &self,
        key: Option<Key>,
        bp: &Blkptr,
        crypt: Option<&DataKey>,
        prio: Prio,
        keep: Keep,
    ) -> Result<Bytes> {
        let c = &*self.0;
        let Some(key) = key else { return c.zio.read_with(bp, crypt, prio).await };
        let (want, meta) = (want_of(prio), is_meta(bp));
        loop {
            let other = c.pending.borrow().get(&key).cloned();
            let Some(other) = other else { break };
            c.core.borrow_mut().coalesced(want, meta);
            other.done.notified().await;
            let result = other.result.borrow().clone();
            match result {
                Some(Ok(data)) if data.len() as u64 == bp.lsize() => return Ok(data),
                Some(Err(e)) => return Err(e),
                // Two pointers disagree about the block's size: each must see for itself.
                Some(Ok(_)) => return c.zio.read_with(bp, crypt, prio).await,
                // The reading future was dropped.
                None => {}
            }
            if let Some(data) = c.core.borrow_mut().get(&key, bp.lsize(), c.now_ms(), want) {
                return Ok(data);
            }
        }
        let again = c.core.borrow_mut().miss(&key, want, meta);
        let pending = Rc::new(Pending::default());
        c.pending.borrow_mut().insert(key, pending.clone());
        let leader = Leader { inner: c, key, pending };
        let (result, stored) = c.fetch(&key, bp, crypt, prio, keep).await;
        if let Ok(data) = &result
            && !leader.pending.stale.get()
        {
            let (data, ahead) = (data.clone(), want == Want::Ahead);
            {
                let mut core = c.core.borrow_mut();
                match keep {
                    Keep::Cached | Keep::MemoryOnly => core.put(key, data, meta, c.now_ms()),
                    Keep::Uncached => core.put_uncached(key, data, meta, c.now_ms()),
                }
                if ahead {
                    core.note_ahead(&key);
                }
            }
            if let Some(stored) = stored {
                c.offer(bp, stored, meta, again, ahead);
            }
        }
        *leader.pending.result.borrow_mut() = Some(result.clone());
        drop(leader);
        result
    }

    /// Starts to read a block that will be wanted soon, unless it is here or on its way. Errors
    /// surface when the block is read.
    pub fn prefetch(&self, bp: &Blkptr, prio: Prio) {
        let Some(key) = Key::of(bp) else { return };
        if self.0.core.borrow().contains(&key) || self.0.pending.borrow().contains_key(&key) {
            return;
        }
        let (arc, bp) = (self.clone(), *bp);
        drop(self.0.rt.spawn("arc prefetch", async move {
            let _ = arc.read(&bp, prio).await;
        }));
    }

    /// The block if it is in memory; counts as a use of it.
    pub fn peek(&self, bp: &Blkptr) -> Option<Bytes> {
        let key = Key::of(bp)?;
        self.0.core.borrow_mut().get(&key, bp.lsize(), self.0.now_ms(), Want::Demand)
    }

    /// Keeps a block that is being written, lsize bytes in native order; replaces a cached one.
    /// `meta`: whether it is metadata.
    pub fn insert(&self, bp: &Blkptr, data: Bytes, meta: bool) {
        let Some(key) = Key::of(bp) else { return };
        self.drop_pending(&key);
        self.forget_l2(&key);
        self.0.core.borrow_mut().put(key, data, meta, self.0.now_ms());
    }

    /// A block that was written, after [`Arc::insert`], in its stored form: a cache device may keep
    /// it.
    pub fn offer_written(&self, bp: &Blkptr, stored: Bytes, meta: bool) {
        if self.0.l2.is_fed() {
            self.0.offer(bp, stored, meta, false, false);
        }
    }

    fn forget_l2(&self, key: &Key) {
        if self.0.l2.is_used() {
            self.0.l2.forget(key);
            self.0.settle();
        }
    }

    /// Drops a block, for instance because it was freed.
    pub fn forget(&self, bp: &Blkptr) {
        let Some(key) = Key::of(bp) else { return };
        self.drop_pending(&key);
        self.forget_l2(&key);
        self.0.core.borrow_mut().forget(&key);
    }

    /// The result of a read of `key` in flight is not cached, and no new reader joins it.
    fn drop_pending(&self, key: &Key) {
        if let Some(p) = self.0.pending.borrow_mut().remove(key) {
            p.stale.set(true);
        }
    }

    /// Counts `delta` bytes of others under the limit: memory that they hold on behalf of this
    /// pool.
    pub fn charge(&self, kind: MemKind, delta: i64) {
        let cell = &self.0.charged[kind as usize];
        cell.set(cell.get().checked_add_signed(delta).expect("no more is given back than was charged"));
        self.0.core.borrow_mut().charge(delta);
    }

    /// Bytes charged as `kind`.
    pub fn charged(&self, kind: MemKind) -> u64 {
        self.0.charged[kind as usize].get()
    }

    /// Drops the blocks that are cached now; cache devices keep theirs.
    pub async fn drop_cached(&self) {
        const AT_ONCE: usize = 256;
        let stats = self.stats();
        // What is read meanwhile may be dropped in place of something, so it could go on for ever.
        // A block becomes a ghost before it is gone.
        for _ in 0..=(2 * stats.blocks + stats.ghosts) / AT_ONCE as u64 {
            if !self.0.core.borrow_mut().drop_some(AT_ONCE) {
                break;
            }
            self.0.rt.yield_now().await;
        }
    }

    /// Changes the limit, in bytes; evicts down to it at once.
    pub fn set_limit(&self, limit: u64) {
        self.0.core.borrow_mut().set_limit(limit);
    }
    /// The limit in bytes.
    pub fn limit(&self) -> u64 {
        self.0.core.borrow().limit()
    }
    /// Bytes in use: blocks, headers, charges.
    pub fn size(&self) -> u64 {
        self.0.core.borrow().size()
    }
    /// Counters and sizes.
    pub fn stats(&self) -> ArcStats {
        self.0.core.borrow().stats()
    }
    /// The report for a [`crate::MemBroker`]; misses count from the last call on.
    pub fn demand(&self) -> Demand {
        let mut core = self.0.core.borrow_mut();
        Demand { size: core.size(), missed: core.take_missed() }
    }
    /// The block I/O behind it.
    pub fn zio(&self) -> &Zio {
        &self.0.zio
    }
}
