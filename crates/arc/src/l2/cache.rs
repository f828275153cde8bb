//! One cache device: its ring, what is on it, reads under way.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

use base::{Error, Guid, Result};
use bdev::{BlockDev, Buf};
use ondisk::l2arc::{DevHeader, HEADER_OFFSET, HEADER_SIZE, LogEntry, LogPtr, Prop, Ring, entries_of};
use ondisk::label::{DATA_START, usable_size};
use rt::JoinHandle;
use rt::sync::Notify;

use crate::core::Key;

/// A device to be used as a cache.
#[derive(Clone)]
pub struct CacheDevice {
    /// Its guid.
    pub guid: Guid,
    /// The device.
    pub dev: Rc<dyn BlockDev>,
    /// log2 of the unit of addresses and sizes on it, at least its sector.
    pub ashift: u8,
    /// Whether it is written: not for a pool that was imported read-only.
    pub writable: bool,
}

/// A buffer on a device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Slot {
    pub(crate) key: Key,
    /// Sizes and kind of its content.
    pub(crate) prop: Prop,
    /// Bytes on the device.
    pub(crate) asize: u32,
}

/// The buffers of devices by their content, in bytes on the devices but for `lsize`.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Held {
    /// Bytes unpacked.
    pub lsize: u64,
    /// All of them.
    pub asize: u64,
    /// Blocks that were recent in memory.
    pub recent: u64,
    /// Blocks that were frequent.
    pub frequent: u64,
    /// Blocks that were read ahead and not wanted.
    pub ahead: u64,
    /// Metadata.
    pub meta: u64,
}

/// The first list of frequent blocks in `Prop::list`; before it are those of recent ones.
const FREQUENT: u8 = 3;

impl Held {
    /// Adds a buffer.
    fn add(&mut self, slot: &Slot) {
        self.zip(&Held::of(slot), u64::checked_add);
    }

    /// Takes a buffer away.
    fn take(&mut self, slot: &Slot) {
        self.zip(&Held::of(slot), u64::checked_sub);
    }

    /// Adds those of another device.
    pub(crate) fn join(&mut self, other: &Held) {
        self.zip(other, u64::checked_add);
    }

    fn of(slot: &Slot) -> Held {
        let (prop, asize) = (slot.prop, u64::from(slot.asize));
        let if_so = |is: bool| if is { asize } else { 0 };
        let (ahead, frequent) = (prop.is_prefetched(), prop.list() >= FREQUENT);
        Held {
            lsize: prop.lsize(),
            asize,
            recent: if_so(!ahead && !frequent),
            frequent: if_so(!ahead && frequent),
            ahead: if_so(ahead),
            meta: if_so(prop.is_metadata()),
        }
    }

    fn zip(&mut self, other: &Held, f: impl Fn(u64, u64) -> Option<u64>) {
        let both = |a: &mut u64, b: u64| *a = f(*a, b).expect("what is taken away was added");
        both(&mut self.lsize, other.lsize);
        both(&mut self.asize, other.asize);
        both(&mut self.recent, other.recent);
        both(&mut self.frequent, other.frequent);
        both(&mut self.ahead, other.ahead);
        both(&mut self.meta, other.meta);
    }
}

/// The log blocks of a device, and what the next one lists.
#[derive(Clone, Default)]
pub(crate) struct Logs {
    /// The pointers of the header: the newest log block and the one before.
    pub(crate) heads: [LogPtr; 2],
    /// Those that count, newest first.
    pub(crate) valid: VecDeque<LogPtr>,
    /// Buffers that no log block lists yet.
    pub(crate) pending: Vec<LogEntry>,
}

/// What is on a device.
#[derive(Clone, Copy)]
pub(crate) struct Content {
    pub(crate) held: Held,
    /// Log blocks.
    pub(crate) log_count: u64,
    /// Their bytes.
    pub(crate) log_asize: u64,
}

/// A cache device in use.
pub(crate) struct Cache {
    pub(crate) guid: Guid,
    pub(crate) dev: Rc<dyn BlockDev>,
    /// The unit of addresses and sizes.
    pub(crate) sector: u64,
    pub(crate) writable: bool,
    /// Entries of a log block; 0: none are written.
    pub(crate) entries: u64,
    pub(crate) ring: Cell<Ring>,
    pub(crate) logs: RefCell<Logs>,
    /// By address; no two overlap.
    slots: RefCell<BTreeMap<u64, Slot>>,
    held: Cell<Held>,
    /// Reads under way, by number.
    reads: RefCell<BTreeMap<u64, (u64, u64)>>,
    next_read: Cell<u64>,
    read_done: Notify,
    /// Writes are under way.
    pub(crate) writing: Cell<bool>,
    pub(crate) closed: Cell<bool>,
    /// The device is closed.
    pub(crate) stop: Notify,
    pub(crate) task: RefCell<Option<JoinHandle<()>>>,
    pub(crate) figures: Cell<CacheFigures>,
}

/// What a cache device holds, and what it did since it was opened; bytes.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct CacheFigures {
    /// The device.
    pub guid: Guid,
    /// Bytes that it has room for.
    pub size: u64,
    /// Bytes of buffers and log blocks on it.
    pub alloc: u64,
    /// Reads.
    pub reads: u64,
    /// Bytes of them.
    pub read_bytes: u64,
    /// Writes.
    pub writes: u64,
    /// Bytes of them.
    pub write_bytes: u64,
    /// Reads that failed.
    pub read_errors: u64,
    /// Writes that failed.
    pub write_errors: u64,
    /// Buffers that were not what they should be.
    pub checksum_errors: u64,
}

/// A read under way: what it reads is not overwritten before it is dropped.
pub(crate) struct Reading<'a> {
    cache: &'a Cache,
    id: u64,
}

impl Drop for Reading<'_> {
    fn drop(&mut self) {
        self.cache.reads.borrow_mut().remove(&self.id);
        self.cache.read_done.notify_all();
    }
}

impl Cache {
    /// The device, empty; `least` bytes have to be there for log blocks. Error: it is too small.
    pub(crate) fn new(device: CacheDevice, least: u64) -> Result<Cache> {
        let CacheDevice { guid, dev, ashift, writable } = device;
        let sector = (1u64 << ashift.clamp(9, 16)).max(u64::from(dev.info().logical_sector));
        let (start, end) = (HEADER_OFFSET + sector, DATA_START + usable_size(dev.size()));
        let end = end / sector * sector;
        if end <= start + sector {
            return Err(Error::invalid(format!("'{}' is too small for a cache", dev.info().path)));
        }
        Ok(Cache {
            guid,
            dev,
            sector,
            writable,
            entries: entries_of(end - start, least),
            ring: Cell::new(Ring { start, end, hand: start, evict: start, first: true }),
            logs: RefCell::default(),
            slots: RefCell::default(),
            held: Cell::default(),
            reads: RefCell::default(),
            next_read: Cell::new(0),
            read_done: Notify::default(),
            writing: Cell::new(false),
            closed: Cell::new(false),
            stop: Notify::default(),
            task: RefCell::default(),
            figures: Cell::default(),
        })
    }

    /// Bytes on the device of `psize` bytes of content.
    pub(crate) fn asize(&self, psize: u64) -> u64 {
        psize.next_multiple_of(self.sector)
    }

    pub(crate) fn count(&self, f: impl FnOnce(&mut CacheFigures)) {
        let mut figures = self.figures.get();
        f(&mut figures);
        self.figures.set(figures);
    }

    /// The figures now.
    pub(crate) fn view(&self) -> CacheFigures {
        let (ring, content) = (self.ring.get(), self.content());
        CacheFigures {
            guid: self.guid,
            size: ring.end - ring.start,
            alloc: content.held.asize + content.log_asize,
            ..self.figures.get()
        }
    }

    /// What it holds.
    pub(crate) fn content(&self) -> Content {
        let logs = self.logs.borrow();
        Content {
            held: self.held.get(),
            log_count: logs.valid.len() as u64,
            log_asize: logs.valid.iter().map(LogPtr::asize).sum(),
        }
    }

    /// The buffer at an address.
    pub(crate) fn slot(&self, addr: u64) -> Option<Slot> {
        self.slots.borrow().get(&addr).copied()
    }

    /// Whether some buffer has bytes in a range.
    pub(crate) fn is_taken(&self, from: u64, to: u64) -> bool {
        let slots = self.slots.borrow();
        slots.range(..to).next_back().is_some_and(|(addr, s)| addr + u64::from(s.asize) > from)
    }

    /// Notes a buffer.
    pub(crate) fn put(&self, addr: u64, slot: Slot) {
        let to = addr + u64::from(slot.asize);
        assert!(!self.is_taken(addr, to), "what the ring overwrites was given up before");
        self.slots.borrow_mut().insert(addr, slot);
        let mut held = self.held.get();
        held.add(&slot);
        self.held.set(held);
    }

    /// Drops a buffer; it is not read any more.
    pub(crate) fn forget(&self, addr: u64) -> Option<Slot> {
        let slot = self.slots.borrow_mut().remove(&addr)?;
        let mut held = self.held.get();
        held.take(&slot);
        self.held.set(held);
        Some(slot)
    }

    /// The first buffer that has bytes in a range.
    pub(crate) fn first_in(&self, from: u64, to: u64) -> Option<(u64, Key)> {
        let slots = self.slots.borrow();
        let before = slots.range(..from).next_back().filter(|(a, s)| *a + u64::from(s.asize) > from);
        before.or_else(|| slots.range(from..to).next()).map(|(a, s)| (*a, s.key))
    }

    /// Takes every buffer out.
    pub(crate) fn take_all(&self) -> Vec<Key> {
        self.held.set(Held::default());
        self.slots.take().into_values().map(|s| s.key).collect()
    }

    /// Marks a range as being read.
    pub(crate) fn begin_read(&self, from: u64, len: u64) -> Reading<'_> {
        let id = self.next_read.get();
        self.next_read.set(id + 1);
        self.reads.borrow_mut().insert(id, (from, from + len));
        Reading { cache: self, id }
    }

    /// Waits until nothing in a range is being read.
    pub(crate) async fn wait_unread(&self, from: u64, to: u64) {
        loop {
            let done = self.read_done.notified();
            if !self.reads.borrow().values().any(|&(a, b)| a < to && from < b) {
                return;
            }
            done.await;
        }
    }

    /// Reads bytes of the device, which counts as one of its reads.
    pub(crate) async fn read(&self, addr: u64, len: u64) -> Result<Buf> {
        let result = bdev::read(&*self.dev, addr, len as usize).await;
        self.count(|f| match &result {
            Ok(_) => (f.reads, f.read_bytes) = (f.reads + 1, f.read_bytes + len),
            Err(_) => f.read_errors += 1,
        });
        result
    }

    /// Writes bytes of the device, which counts as one of its writes.
    pub(crate) async fn write(&self, addr: u64, bufs: Vec<bdev::Bytes>) -> Result<()> {
        let len: u64 = bufs.iter().map(|b| b.len() as u64).sum();
        let result = bdev::writev(&*self.dev, addr, bufs).await;
        self.count(|f| match &result {
            Ok(()) => (f.writes, f.write_bytes) = (f.writes + 1, f.write_bytes + len),
            Err(_) => f.write_errors += 1,
        });
        result
    }

    /// Drops pointers to log blocks that do not count any more.
    pub(crate) fn trim_logs(&self) {
        let (ring, mut logs) = (self.ring.get(), self.logs.borrow_mut());
        while logs.valid.back().is_some_and(|p| !p.is_valid(&ring)) {
            logs.valid.pop_back();
        }
    }

    /// The header as it stands, of a device of pool `pool`.
    pub(crate) fn header(&self, pool: Guid) -> DevHeader {
        let (ring, logs) = (self.ring.get(), self.logs.borrow());
        DevHeader {
            pool,
            vdev: self.guid,
            log_entries: self.entries,
            evict: ring.evict,
            first: ring.first,
            start: ring.start,
            end: ring.end,
            log: logs.heads,
            log_asize: logs.valid.iter().map(LogPtr::asize).sum(),
            log_count: logs.valid.len() as u64,
            trim_time: 0,
            trim_state: 0,
        }
    }

    /// Writes the header.
    pub(crate) async fn write_header(&self, pool: Guid) -> Result<()> {
        let mut block = Buf::zeroed(self.header_size());
        self.header(pool).write_to(&mut block);
        self.write(HEADER_OFFSET, vec![block.freeze()]).await
    }

    /// Bytes of the header on the device.
    pub(crate) fn header_size(&self) -> usize {
        (self.sector as usize).max(HEADER_SIZE)
    }
}
