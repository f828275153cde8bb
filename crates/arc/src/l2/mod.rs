//! The second level of the cache: blocks on cache devices, in OpenZFS's format (format page 22).
//!
//! Vocabulary. A cache device is a *ring*: the *hand* is where the next buffer goes, and what lies
//! before it is *given up* when the hand comes there. The *index* names for each block on a device
//! its address. An *offer* is a block in its stored form that may be written.
//!
//! What a device holds is the block as the pool stores it, compressed and encrypted, so that the
//! checksum of the block pointer verifies it and nothing on the device has to be trusted. The cache
//! in memory holds unpacked blocks, and the stored form cannot be made from those for certain:
//! another program's compressor may give other bytes, and the key may be gone. But the stored bytes
//! pass by once: when a block is read from the pool, and when a sync writes it. There they are
//! taken as an offer, without a read or a compression, into a *stage* of bounded memory, and a feed
//! decides: it asks the cache in memory how the block is wanted by now ([`crate::core::Standing`]),
//! and takes offers in the order of OpenZFS's lists: frequent metadata, recent metadata, frequent
//! data, recent data. A block that is read again after it had left memory counts as frequent, and
//! stays longest in the stage: it is what a larger cache would have kept. What was only read ahead
//! waits until it is wanted. So OpenZFS's `l2arc_headroom`, how far to search the lists, has no
//! meaning here.
//!
//! Reading: a miss in memory asks the index; the bytes are read from the device and unpacked as
//! those of the pool are. An error or a wrong checksum drops the entry and costs the read from the
//! pool, nothing else. Blocks without a checksum are never offered. A key is place and physical
//! birth, so that what was freed and written anew is another key; a block that is overwritten
//! within its txg, which keeps its key, is dropped here as it is in memory, and what a power cut
//! leaves of a txg that never came to be fails the checksum.
//!
//! Writing ([`feed`]): one task for each device. Room is made at the hand: index entries there are
//! dropped, reads under way are waited for, and only then is written. The index learns of buffers
//! when they are on the device. After each full log block's worth of buffers a log block lists
//! them, and the header, written last, points to it; no flush is needed, since header, log blocks
//! and buffers are each verified by a checksum when they are used.
//!
//! Opening ([`rebuild`]): header and log blocks are read in the background and fill the index.
//!
//! Invariants: buffers on a device never overlap; nothing that is being read is overwritten; index
//! and stage are counted under the limit of the cache, with at most `l2arc_meta_percent` of it for
//! the index and an eighth for the stage.

mod cache;
mod feed;
mod policy;
mod rebuild;
mod stage;

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use base::{ErrorKind, Guid, Result};
use bdev::Bytes;
use ondisk::blkptr::Blkptr;
use rt::sync::Notify;
use vdev::Prio;
use zio::DataKey;

use crate::cache::{Arc, Inner};
use crate::core::Key;
use cache::{Cache, Content, Slot};
use stage::{Offer, Stage};

pub use cache::{CacheDevice, CacheFigures, Held};
pub use policy::L2Tunables;

/// Counters of all cache devices of a pool since it was opened, by their names in OpenZFS's
/// `arcstats` (there with `l2_` in front); sizes in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct L2Stats {
    /// Misses in memory that a device served.
    pub hits: u64,
    /// Misses in memory that no device could serve.
    pub misses: u64,
    /// Feeds that wrote something.
    pub feeds: u64,
    /// Reads left to the pool because the device was being written.
    pub rw_clash: u64,
    /// Bytes read from devices.
    pub read_bytes: u64,
    /// Bytes written to devices.
    pub write_bytes: u64,
    /// Feeds that failed.
    pub writes_error: u64,
    /// Feeds that were left out since the index takes too much memory.
    pub abort_lowmem: u64,
    /// Buffers that were not the block.
    pub cksum_bad: u64,
    /// Reads that failed.
    pub io_error: u64,
    /// Bytes of buffers and log blocks on the devices now, those that are offline included; so for
    /// the next three.
    pub asize: u64,
    /// The buffers on the devices now.
    pub held: Held,
    /// Log blocks on the devices now.
    pub log_blk_count: u64,
    /// Their bytes.
    pub log_blk_asize: u64,
    /// Bytes of memory that the index takes now.
    pub hdr_size: u64,
    /// Log blocks written.
    pub log_blk_writes: u64,
    /// Devices whose content was found again.
    pub rebuild_success: u64,
    /// Devices without a header of use.
    pub rebuild_unsupported: u64,
    /// Log blocks that could not be read.
    pub rebuild_io_errors: u64,
    /// Headers that could not be read.
    pub rebuild_dh_errors: u64,
    /// Log blocks with a wrong checksum.
    pub rebuild_cksum_lb_errors: u64,
    /// Searches that ended for want of memory.
    pub rebuild_lowmem: u64,
    /// Bytes of content that was found again.
    pub rebuild_asize: u64,
    /// Bytes of it unpacked.
    pub rebuild_size: u64,
    /// Buffers that were found again.
    pub rebuild_bufs: u64,
    /// Those of them that memory had already.
    pub rebuild_bufs_precached: u64,
    /// Log blocks that were found again.
    pub rebuild_log_blks: u64,
}

/// Bytes of memory for each block on a device: a slot in the index and in the device's map, and
/// the room that nodes of such trees have to spare.
const ENTRY_COST: u64 = 128;
/// The stage takes at most this share of the cache's limit.
const STAGE_SHARE: u64 = 8;

/// The cache devices of a pool and the index of what is on them.
#[derive(Default)]
pub(crate) struct L2 {
    caches: RefCell<BTreeMap<Guid, Rc<Cache>>>,
    /// What devices that are offline hold, until they are used again or removed.
    offline: RefCell<BTreeMap<Guid, Content>>,
    /// Device and address of a block.
    index: RefCell<BTreeMap<Key, (Guid, u64)>>,
    pub(crate) stage: RefCell<Stage>,
    /// Blocks that are being written and neither freed nor overwritten, with the number of the
    /// offer.
    pub(crate) writing: RefCell<BTreeMap<Key, u64>>,
    pub(crate) tunables: Cell<L2Tunables>,
    stats: Cell<L2Stats>,
    /// Something was offered.
    pub(crate) offered: Notify,
    /// No device is added any more.
    closed: Cell<bool>,
}

impl L2 {
    pub(crate) fn count(&self, f: impl FnOnce(&mut L2Stats)) {
        let mut stats = self.stats.get();
        f(&mut stats);
        self.stats.set(stats);
    }

    /// Whether there is a device.
    pub(crate) fn is_used(&self) -> bool {
        !self.caches.borrow().is_empty()
    }

    /// Whether offers are wanted: some device is written.
    pub(crate) fn is_fed(&self) -> bool {
        self.caches.borrow().values().any(|c| c.writable)
    }

    /// Bytes of memory of index and stage.
    pub(crate) fn memory(&self) -> (u64, u64) {
        (self.index.borrow().len() as u64 * ENTRY_COST, self.stage.borrow().memory())
    }

    /// Whether the index has its share of a limit.
    pub(crate) fn is_index_full(&self, limit: u64) -> bool {
        let max = u128::from(limit) * u128::from(self.tunables.get().meta_percent) / 100;
        u128::from(self.memory().0) >= max
    }

    pub(crate) fn contains(&self, key: &Key) -> bool {
        self.index.borrow().contains_key(key)
    }

    /// A buffer is on a device.
    pub(crate) fn note(&self, cache: &Cache, addr: u64, slot: Slot) {
        if let Some((guid, old)) = self.index.borrow_mut().insert(slot.key, (cache.guid, addr)) {
            let other = self.caches.borrow().get(&guid).cloned();
            other.and_then(|c| c.forget(old));
        }
        cache.put(addr, slot);
    }

    /// Drops up to `count` entries in a range of a device; false if none is left there.
    pub(crate) fn give_up(&self, cache: &Cache, (from, to): (u64, u64), count: usize) -> bool {
        let mut index = self.index.borrow_mut();
        for _ in 0..count {
            let Some((addr, key)) = cache.first_in(from, to) else { return false };
            cache.forget(addr);
            index.remove(&key);
        }
        true
    }

    /// Ends the writing of an offer; false if its block was freed or overwritten meanwhile.
    pub(crate) fn written(&self, key: &Key, number: u64) -> bool {
        let mut writing = self.writing.borrow_mut();
        let same = writing.get(key) == Some(&number);
        if same {
            writing.remove(key);
        }
        same
    }

    /// Drops a block: from the index, the stage, and what is being written.
    pub(crate) fn forget(&self, key: &Key) {
        if let Some((guid, addr)) = self.index.borrow_mut().remove(key) {
            let cache = self.caches.borrow().get(&guid).cloned();
            cache.and_then(|c| c.forget(addr));
        }
        self.stage.borrow_mut().forget(key);
        self.writing.borrow_mut().remove(key);
    }

    /// Where a block is, if a device can be asked for it.
    fn find(&self, key: &Key, psize: u64) -> Option<(Rc<Cache>, u64, Slot)> {
        let (guid, addr) = self.index.borrow().get(key).copied()?;
        let cache = self.caches.borrow().get(&guid).cloned()?;
        let slot = cache.slot(addr)?;
        if slot.prop.psize() != psize {
            return None;
        }
        if cache.writing.get() && self.tunables.get().no_rw {
            self.count(|s| s.rw_clash += 1);
            return None;
        }
        Some((cache, addr, slot))
    }
}

impl Inner {
    /// Charges what index and stage take by now.
    pub(crate) fn settle(&self) {
        let (index, stage) = self.l2.memory();
        let delta = (index + stage) as i64 - self.l2_charged.get() as i64;
        if delta != 0 {
            self.l2_charged.set(index + stage);
            self.core.borrow_mut().charge(delta);
        }
    }

    /// The block from a cache device, if one has it and it is right.
    pub(crate) async fn read_l2(&self, key: &Key, bp: &Blkptr, crypt: Option<&DataKey>, prio: Prio) -> Option<Bytes> {
        let Some((cache, addr, slot)) = self.l2.find(key, bp.psize()) else {
            self.l2.count(|s| s.misses += 1);
            return None;
        };
        let reading = cache.begin_read(addr, slot.asize.into());
        let read = cache.read(addr, slot.asize.into()).await;
        drop(reading);
        let result = match read {
            Ok(mut buf) => {
                buf.truncate(slot.prop.psize() as usize);
                self.l2.count(|s| s.read_bytes += slot.prop.psize());
                self.zio.unpack(bp, crypt, buf.freeze(), prio).await.map_err(Some)
            }
            Err(_) => Err(None),
        };
        match result {
            Ok(data) if data.len() as u64 == bp.lsize() => {
                self.l2.count(|s| s.hits += 1);
                return Some(data);
            }
            Ok(_) => {}
            Err(None) => self.l2.count(|s| s.io_error += 1),
            Err(Some(e)) if e.kind() == ErrorKind::Checksum => {
                self.l2.count(|s| s.cksum_bad += 1);
                cache.count(|f| f.checksum_errors += 1);
            }
            Err(Some(_)) => {}
        }
        // The entry may be another one by now.
        if cache.slot(addr) == Some(slot) {
            self.l2.forget(key);
            self.settle();
        }
        self.l2.count(|s| s.misses += 1);
        None
    }

    /// Takes a block that was read or written as an offer.
    pub(crate) fn offer(&self, bp: &Blkptr, stored: Bytes, meta: bool, again: bool, ahead: bool) {
        let Some(key) = Key::of(bp).filter(|_| zio::has_checksum(bp)) else { return };
        if self.l2.contains(&key) || stored.len() as u64 != bp.psize() {
            return;
        }
        let t = self.l2.tunables.get();
        if t.exclude_special && self.is_on_special(bp) {
            return;
        }
        let max = (self.core.borrow().limit() / STAGE_SHARE).min(t.write_max.max(1 << 20).saturating_mul(2));
        self.l2.stage.borrow_mut().put(Offer { key, bp: *bp, stored, meta, again, ahead, number: 0 }, max);
        self.settle();
        self.l2.offered.notify_all();
    }

    /// Whether the first copy of a block is on a special or dedup vdev.
    fn is_on_special(&self, bp: &Blkptr) -> bool {
        let top = self.zio.tree().top(bp.dva(0).vdev());
        top.is_ok_and(|t| matches!(t.config_ref().alloc_bias.as_deref(), Some("special" | "dedup")))
    }
}

impl Arc {
    /// Uses a cache device: finds what is on it, in the background, and feeds it. Nothing happens
    /// if it is used already, or the pool is being closed. Error: it is too small.
    pub fn add_cache(&self, device: CacheDevice) -> Result<()> {
        let inner = self.inner();
        if inner.l2.closed.get() || inner.l2.caches.borrow().contains_key(&device.guid) {
            return Ok(());
        }
        let cache = Rc::new(Cache::new(device, inner.l2.tunables.get().rebuild_min_size)?);
        inner.l2.caches.borrow_mut().insert(cache.guid, cache.clone());
        inner.l2.offline.borrow_mut().remove(&cache.guid);
        let task = inner.rt.spawn("cache device", feed::run(inner.clone(), cache.clone()));
        *cache.task.borrow_mut() = Some(task);
        Ok(())
    }

    /// Whether a cache device is in use.
    pub fn has_cache(&self, guid: Guid) -> bool {
        self.inner().l2.caches.borrow().contains_key(&guid)
    }

    /// Ends the use of a cache device for a time: as [`Arc::remove_cache`], but what it holds still
    /// counts in [`Arc::l2_stats`].
    pub async fn offline_cache(&self, guid: Guid) {
        let cache = self.inner().l2.caches.borrow().get(&guid).cloned();
        if let Some(cache) = cache {
            let content = cache.content();
            self.remove_cache(guid).await;
            self.inner().l2.offline.borrow_mut().insert(guid, content);
        }
    }

    /// Ends the use of a cache device; what is on it is forgotten, and nothing is written to it any
    /// more.
    pub async fn remove_cache(&self, guid: Guid) {
        let inner = self.inner();
        inner.l2.offline.borrow_mut().remove(&guid);
        let Some(cache) = inner.l2.caches.borrow().get(&guid).cloned() else { return };
        cache.closed.set(true);
        cache.stop.notify_all();
        let task = cache.task.borrow_mut().take();
        if let Some(task) = task {
            task.await;
        }
        inner.l2.caches.borrow_mut().remove(&guid);
        for key in cache.take_all() {
            inner.l2.index.borrow_mut().remove(&key);
        }
        if !inner.l2.is_fed() {
            inner.l2.stage.borrow_mut().clear();
        }
        inner.settle();
    }

    /// Ends the use of all cache devices, for good.
    pub async fn close_caches(&self) {
        self.inner().l2.closed.set(true);
        let all: Vec<Guid> = self.inner().l2.caches.borrow().keys().copied().collect();
        for guid in all {
            self.remove_cache(guid).await;
        }
    }

    /// As [`Arc::close_caches`] without waiting: their tasks end soon.
    pub fn give_up_caches(&self) {
        let l2 = &self.inner().l2;
        l2.closed.set(true);
        for (_, cache) in l2.caches.take() {
            cache.closed.set(true);
            cache.stop.notify_all();
            drop(cache.task.borrow_mut().take());
        }
        l2.index.borrow_mut().clear();
        l2.stage.borrow_mut().clear();
        self.inner().settle();
    }

    /// What each cache device in use holds and did.
    pub fn caches(&self) -> Vec<CacheFigures> {
        self.inner().l2.caches.borrow().values().map(|c| c.view()).collect()
    }

    /// Counters of the cache devices.
    pub fn l2_stats(&self) -> L2Stats {
        let l2 = &self.inner().l2;
        let mut now = L2Stats { hdr_size: l2.memory().0, ..l2.stats.get() };
        let (used, offline) = (l2.caches.borrow(), l2.offline.borrow());
        for content in used.values().map(|c| c.content()).chain(offline.values().copied()) {
            now.asize += content.held.asize + content.log_asize;
            now.held.join(&content.held);
            now.log_blk_count += content.log_count;
            now.log_blk_asize += content.log_asize;
        }
        now
    }

    /// Changes the settings of cache devices; `rebuild_min_size` counts for devices that are added
    /// later.
    pub fn set_l2_tunables(&self, tunables: L2Tunables) {
        self.inner().l2.tunables.set(tunables);
    }
}
