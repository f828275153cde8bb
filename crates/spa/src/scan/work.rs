//! The queued blocks, and the tasks that issue them: per top-level vdev by offset, with a bounded
//! number of bytes in flight.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use base::{ErrorKind, VdevId};
use ondisk::blkptr::{Blkptr, Dva};
use ondisk::bpobj::Bookmark;
use rt::sync::Semaphore;
use zio::{FreeObserver, Prio};

use super::walk::LOG_LEVEL;
use super::{Phase, Scan};

/// Bytes of an entry in memory, nodes of the tree included.
const ENTRY_BYTES: u64 = 280;
/// Most queued bytes: a round, and so the work lost by a power cut, takes no more than some
/// minutes.
const ROUND_BYTES: u64 = 32 << 30;
/// Copies of one top-level vdev that are issued concurrently.
const WORKERS: usize = 256;
/// Most bytes in flight for all devices of a top-level vdev together, unless one alone may have
/// more.
const TOP_BYTES: u64 = 128 << 20;

/// Whether it is a block of an intent log itself, which has its checksum inside, and not a block of
/// data that a record points to.
fn is_log_block(bp: &Blkptr) -> bool {
    matches!(bp.checksum_algo(), Some(codec::ChecksumAlgo::Zilog | codec::ChecksumAlgo::Zilog2))
}

/// A copy of a block.
#[derive(Clone)]
struct Entry {
    bp: Blkptr,
    dva: Dva,
    at: Bookmark,
}

/// The copies of one top-level vdev, by offset.
#[derive(Default)]
struct TopQueue {
    entries: BTreeMap<u64, Entry>,
    /// Offset of the last entry taken.
    at: u64,
}

/// Copies being issued, by DVA; false once the DVA was freed.
type Active = BTreeMap<(VdevId, u64), Rc<Cell<bool>>>;

/// The queued copies and those being issued.
#[derive(Default)]
pub(super) struct Work {
    queues: RefCell<BTreeMap<VdevId, TopQueue>>,
    active: RefCell<Active>,
    count: Cell<u64>,
    bytes: Cell<u64>,
}

impl Work {
    /// Adds all copies of a block.
    pub(super) fn add(&self, bp: &Blkptr, at: Bookmark) {
        let mut queues = self.queues.borrow_mut();
        for dva in bp.dvas() {
            let queue = queues.entry(dva.vdev()).or_default();
            if queue.entries.insert(dva.offset(), Entry { bp: *bp, dva, at }).is_none() {
                self.count.set(self.count.get() + 1);
                self.bytes.set(self.bytes.get() + dva.asize());
            }
        }
    }

    fn is_full(&self, memory: u64) -> bool {
        self.count.get() * ENTRY_BYTES >= memory || self.bytes.get() >= ROUND_BYTES
    }

    fn forget(&self, dva: Dva) {
        self.count.set(self.count.get() - 1);
        self.bytes.set(self.bytes.get().saturating_sub(dva.asize()));
    }

    /// Takes the next copy of a vdev by offset, wrapping around.
    fn pop(&self, vdev: VdevId) -> Option<(Entry, Rc<Cell<bool>>)> {
        let mut queues = self.queues.borrow_mut();
        let queue = queues.get_mut(&vdev)?;
        loop {
            let next = queue.entries.range(queue.at..).next().or_else(|| queue.entries.iter().next());
            let offset = *next?.0;
            queue.at = offset;
            let entry = queue.entries.remove(&offset)?;
            self.forget(entry.dva);
            // Queued again while it is being issued: skip it.
            if let std::collections::btree_map::Entry::Vacant(v) = self.active.borrow_mut().entry((vdev, offset)) {
                let alive = Rc::new(Cell::new(true));
                v.insert(alive.clone());
                return Some((entry, alive));
            }
        }
    }

    fn done(&self, entry: &Entry, alive: &Rc<Cell<bool>>) {
        let place = (entry.dva.vdev(), entry.dva.offset());
        let mut active = self.active.borrow_mut();
        // Perhaps it is being issued again, by a later scan.
        if active.get(&place).is_some_and(|a| Rc::ptr_eq(a, alive)) {
            active.remove(&place);
        }
    }

    /// Clears the queues; copies being issued are not repaired any more, and do not keep the next
    /// scan from issuing them.
    pub(super) fn clear(&self) {
        self.queues.borrow_mut().clear();
        self.count.set(0);
        self.bytes.set(0);
        self.active.take().values().for_each(|alive| alive.set(false));
    }

    fn vdevs(&self) -> Vec<(VdevId, usize)> {
        let queues = self.queues.borrow();
        queues.iter().filter(|(_, l)| !l.entries.is_empty()).map(|(id, l)| (*id, l.entries.len())).collect()
    }
}

impl FreeObserver for Scan {
    fn freed(&self, dva: Dva) {
        let (vdev, offset) = (dva.vdev(), dva.offset());
        let gone = self.work.queues.borrow_mut().get_mut(&vdev).and_then(|l| l.entries.remove(&offset));
        if let Some(entry) = gone {
            self.work.forget(entry.dva);
        }
        if let Some(alive) = self.work.active.borrow().get(&(vdev, offset)) {
            alive.set(false);
        }
    }
}

impl Scan {
    /// Whether the queues are full.
    pub(super) fn is_full(&self) -> bool {
        self.work.is_full(self.memory_max.get())
    }

    /// Whether copies are queued.
    pub(super) fn has_queued(&self) -> bool {
        self.work.count.get() > 0
    }

    /// Issues the queued copies, in a task beside the txgs.
    pub(super) fn start_issue(self: &Rc<Self>) {
        self.phase.set(Phase::Issue);
        let (scan, generation) = (self.clone(), self.generation.get());
        // The task ends when all is issued, the scan is stopped or the pool is closed.
        let task = self.stack.rt.spawn("scan", async move {
            scan.issue_all(generation).await;
            if scan.generation.get() == generation && scan.phase.get() == Phase::Issue && !scan.closed.get() {
                scan.phase.set(Phase::Drained);
                scan.stack.txg.kick();
            }
        });
        *self.task.borrow_mut() = Some(task);
    }

    pub(super) async fn issue_all(self: &Rc<Self>, generation: u64) {
        loop {
            let vdevs = self.work.vdevs();
            // A traversal that was under way when the pool was closed may have queued more, which
            // no worker takes.
            if vdevs.is_empty() || self.generation.get() != generation || self.closed.get() {
                return;
            }
            let mut workers = Vec::new();
            for (vdev, count) in vdevs {
                let devices = self.stack.zio().tree().top(vdev).map_or(1, |top| top.open_leaves().len().max(1));
                let limit = self.tunables.get().vdev_limit;
                let window = limit.saturating_mul(devices as u64).min(TOP_BYTES.max(limit));
                let room = Semaphore::new(window);
                for _ in 0..WORKERS.min(count) {
                    let (scan, room) = (self.clone(), room.clone());
                    workers.push(self.stack.rt.spawn("scan_look", async move {
                        scan.worker(generation, vdev, room, window).await;
                    }));
                }
            }
            for worker in workers {
                worker.await;
            }
        }
    }

    async fn worker(&self, generation: u64, vdev: VdevId, room: Semaphore, window: u64) {
        loop {
            while self.is_held() && !self.closed.get() && self.generation.get() == generation {
                let changed = self.changed.notified();
                if !self.is_held() {
                    break;
                }
                changed.await;
            }
            if self.generation.get() != generation || self.closed.get() {
                return;
            }
            let Some((entry, alive)) = self.work.pop(vdev) else { return };
            let permit = room.acquire(entry.dva.asize().clamp(1, window)).await;
            if alive.get() {
                self.issue(generation, &entry, &alive).await;
            }
            drop(permit);
            self.work.done(&entry, &alive);
        }
    }

    async fn issue(&self, generation: u64, entry: &Entry, alive: &Rc<Cell<bool>>) {
        let Entry { bp, dva, at } = entry;
        self.stack.rt.spend(rt::cost::SCAN_ISSUE).await;
        let repair = || (alive.get() && self.repairs.get()).then_some(Prio::AsyncWrite);
        let is_log = at.level == LOG_LEVEL;
        let out = match is_log && is_log_block(bp) {
            true => self.stack.zio().scrub_with(bp, Prio::Scrub, &zil::block::verifier(bp), &repair).await,
            false => self.stack.zio().scrub_copy(bp, *dva, Prio::Scrub, &repair).await,
        };
        // The last block of a log was never written, and blocks without a completed commit may be
        // incomplete: that is no damage.
        let mut error = out.error.filter(|_| !is_log);
        if bp.is_gang() && *dva == bp.dva(0) && alive.get() && error.is_none() {
            match self.stack.zio().gang_pieces(bp, Prio::Scrub).await {
                // The header may have been freed meanwhile, and then be invalid.
                Ok(pieces) if alive.get() && self.generation.get() == generation => {
                    pieces.iter().for_each(|piece| self.work.add(piece, *at));
                }
                Ok(_) => {}
                Err(e) => error = Some(e),
            }
        }
        if self.generation.get() != generation {
            return;
        }
        if self.checks_errors() {
            // One that was freed meanwhile is not damaged any more.
            if error.is_some_and(|e| alive.get() && e.kind() != ErrorKind::Interrupted) {
                self.errors.note(at.object);
            }
            return;
        }
        let mut pass = self.pass.get();
        pass.issued += dva.asize();
        self.pass.set(pass);
        self.now.borrow_mut().phys.processed += out.repaired;
        // A freed DVA may have other contents by now.
        if let Some(e) = error
            && alive.get()
            && e.kind() != ErrorKind::Interrupted
        {
            self.note_damage(*at, bp.phys_birth());
        }
    }
}

#[cfg(test)]
mod tests;
