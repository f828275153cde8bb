//! A log block in memory (lwb): OPENED, ISSUED, WRITE_DONE, FLUSH_DONE.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::rc::Rc;

use base::{Nanos, Txg, VdevId};
use bdev::{Buf, Bytes};
use ondisk::blkptr::Blkptr;
use ondisk::bytes::put_le64;
use ondisk::zil::ZIL_CHAIN_SIZE;
use rt::Rt;
use rt::sync::Notify;
use rt::trace::{Event, Groups, LogPhase, LogTimes};
use txg::TxgHold;
use zio::WriteDone;

use crate::itx::{Waiter, WaiterState};

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum LwbState {
    /// It may take records.
    Opened,
    /// Its write is in flight.
    Issued,
    /// Its write has ended.
    WriteDone,
    /// It is durable, as are all blocks before it; or it failed.
    FlushDone,
}

/// A log block.
pub(crate) struct Lwb {
    pub bp: Blkptr,
    pub alloc_txg: Txg,
    pub state: Cell<LwbState>,
    pub failed: Cell<bool>,
    /// Memory for the whole block, from its first record on: the chain part and the records so far.
    pub buf: RefCell<Option<Buf>>,
    /// Used bytes of the block.
    pub used: Cell<usize>,
    /// Newest txg of its records.
    pub max_txg: Cell<Txg>,
    pub waiters: RefCell<Vec<Rc<Waiter>>>,
    /// Vdevs to flush after its write. Empty: its own write makes it durable.
    pub vdevs: RefCell<BTreeSet<VdevId>>,
    /// Writes of blocks that its records name.
    pub writes: RefCell<Vec<WriteDone>>,
    /// Txgs that must not sync before it is FLUSH_DONE.
    pub holds: RefCell<Vec<TxgHold>>,
    /// The next block flushes for this one, or its batch does (`lwb_flush_defer`).
    pub flush_deferred: Cell<bool>,
    /// Its batch flushes for it.
    pub in_batch: Cell<bool>,
    /// It has a timer that will close it.
    pub has_timer: Cell<bool>,
    pub opened: Cell<Nanos>,
    pub issued: Cell<Nanos>,
    pub written: Cell<Nanos>,
    pub changed: Notify,
}

impl Lwb {
    pub fn new(bp: Blkptr, alloc_txg: Txg) -> Rc<Lwb> {
        Rc::new(Lwb {
            vdevs: RefCell::new(BTreeSet::from([bp.dva(0).vdev()])),
            bp,
            alloc_txg,
            state: Cell::new(LwbState::Opened),
            failed: Cell::new(false),
            buf: RefCell::new(None),
            used: Cell::new(ZIL_CHAIN_SIZE),
            max_txg: Cell::new(alloc_txg),
            waiters: RefCell::default(),
            writes: RefCell::default(),
            holds: RefCell::default(),
            flush_deferred: Cell::new(false),
            in_batch: Cell::new(false),
            has_timer: Cell::new(false),
            opened: Cell::new(Nanos(0)),
            issued: Cell::new(Nanos(0)),
            written: Cell::new(Nanos(0)),
            changed: Notify::new(),
        })
    }
    /// Its number in the chain.
    pub fn seq(&self) -> u64 {
        self.bp.checksum_words()[3]
    }
    pub fn is_open(&self) -> bool {
        self.state.get() == LwbState::Opened
    }
    pub fn is_flush_done(&self) -> bool {
        self.state.get() == LwbState::FlushDone
    }
    pub fn has_records(&self) -> bool {
        self.used.get() > ZIL_CHAIN_SIZE
    }
    /// Whether it has waiters, and only its own write needs a flush for them.
    pub fn needs_own_flush_only(&self) -> bool {
        !self.waiters.borrow().is_empty() && self.writes.borrow().is_empty() && self.vdevs.borrow().len() == 1
    }
    /// Whether a record of `len` bytes fits.
    pub fn fits(&self, len: usize) -> bool {
        self.used.get() + len <= self.bp.lsize() as usize
    }
    /// Appends a record of `txg`, for which there is room: its fixed part and its data, padded.
    pub fn push(&self, fixed: &[u8], data: &[Bytes], txg: Txg, seq: u64) {
        let mut buf = self.buf.borrow_mut();
        let buf = buf.get_or_insert_with(|| Buf::for_overwrite(self.bp.psize() as usize));
        let at = self.used.get();
        let mut end = at;
        for part in [fixed].into_iter().chain(data.iter().map(|d| &**d)) {
            buf[end..end + part.len()].copy_from_slice(part);
            end += part.len();
        }
        let padded = end.next_multiple_of(8);
        buf[end..padded].fill(0);
        self.used.set(padded);
        put_le64(&mut buf[at..], 8, (padded - at) as u64);
        put_le64(&mut buf[at..], 16, txg.0);
        put_le64(&mut buf[at..], 24, seq);
        self.max_txg.set(self.max_txg.get().max(txg));
    }
    /// Takes its content for the write: `len` bytes, at most its size, zero after the records; the
    /// chain part is not filled in yet. The block takes no record after this.
    pub fn take_bytes(&self, len: usize) -> Buf {
        let used = self.used.get();
        let mut buf = self.buf.take().unwrap_or_else(|| Buf::for_overwrite(self.bp.psize() as usize));
        buf.truncate(len);
        buf[used..].fill(0);
        buf
    }
    /// The times of its phases, if it ends at `now` after a flush that took `flush`.
    pub fn times(&self, now: Nanos, flush: Nanos) -> LogTimes {
        let queue = self.issued.get().since(self.opened.get());
        let write = self.written.get().since(self.issued.get());
        LogTimes { queue, write, flush, order: Nanos(now.since(self.written.get()).0.saturating_sub(flush.0)) }
    }
    /// Sends a trace event of its phase.
    pub fn trace(&self, rt: &Rt, objset: u64, phase: LogPhase, times: LogTimes) {
        rt.trace(Groups::LOG, || {
            let bytes = self.used.get().saturating_sub(ZIL_CHAIN_SIZE) as u64;
            let waiters = self.waiters.borrow().len() as u32;
            Event::Log { objset, phase, bytes, size: self.bp.psize(), waiters, times }
        });
    }
    /// Links a waiter to the block; a block that is done finishes the waiter at once.
    pub fn link(self: &Rc<Self>, w: &Rc<Waiter>) {
        if self.is_flush_done() {
            w.finish(!self.failed.get());
            return;
        }
        w.state.set(WaiterState::Linked);
        *w.lwb.borrow_mut() = Some(self.clone());
        self.waiters.borrow_mut().push(w.clone());
        w.changed.notify_all();
    }
    pub async fn wait_write_done(&self) {
        while self.state.get() < LwbState::WriteDone {
            self.changed.notified().await;
        }
    }
    pub async fn wait_flush_done(&self) {
        while !self.is_flush_done() {
            self.changed.notified().await;
        }
    }
    pub fn set_state(&self, state: LwbState) {
        self.state.set(state);
        self.changed.notify_all();
    }
    /// The block is durable, or failed: wakes its waiters and releases its txgs.
    pub fn finish(&self, good: bool) {
        if !good {
            self.failed.set(true);
        }
        let good = !self.failed.get();
        self.set_state(LwbState::FlushDone);
        self.buf.take();
        self.holds.take();
        for w in self.waiters.take() {
            w.finish(good);
        }
    }
}
