//! A leaf: one device, its queue, its counters.
//!
//! [`Leaf::read`] and [`Leaf::write`] queue an operation and issue at once as many as the policy
//! allows; completions issue the rest. So an operation starts in the turn of its caller, and needs
//! no polling and no task.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use base::{Error, ErrorKind, Guid, Nanos, Result, align_up};
use bdev::{BlockDev, Buf, Bytes, Done, Op};
use ondisk::label::BOOT_ENV_OFFSET;
use ondisk::label::DATA_START;
use rt::Rt;
use rt::sync::Notify;
use rt::trace::{Event, FaultKind, Groups};

use crate::done::{Completer, ReadCompleter, ReadDone, WriteDone};
use crate::dtl::Condition;
use crate::inject::{FaultyOps, Given, Trouble};
use crate::labels::SafeLabels;
use crate::policy::{Cause, DirtyGauge, Prio, QueueTunables};
use crate::queue::{Batch, Item, Queue};
use crate::sharing::{Sharing, Unflushed};
use crate::stats::{IoErrors, LeafStats, QueueDepth};

/// One device of the pool with its I/O scheduler.
pub struct Leaf {
    guid: Cell<Guid>,
    path: RefCell<String>,
    /// The device. Direct operations on it are not scheduled, not counted and not ordered against
    /// the queue.
    pub dev: Rc<dyn BlockDev>,
    /// Its health and dirty time log.
    pub condition: Rc<Condition>,
    rt: Rt,
    gauge: DirtyGauge,
    tunables: RefCell<QueueTunables>,
    queue: RefCell<Queue<Job>>,
    sharing: RefCell<Sharing>,
    stats: RefCell<LeafStats>,
    /// At the device; few.
    in_flight: RefCell<Vec<InFlight>>,
    /// Completed writes plus one: earlier writes to the device count as one, so that the first
    /// flush is never skipped.
    written: Cell<u64>,
    /// Number of `written` that completed flushes cover.
    flushed: Cell<u64>,
    /// The leaf flushes on its own ([`crate::sharing`]).
    is_flushing: Cell<bool>,
    flush_over: Notify,
    /// Such a flush failed: for the next caller of [`Leaf::flush`].
    flush_failed: Cell<Option<Error>>,
    labels: SafeLabels,
}

enum Job {
    /// `want` bytes of the operation's length.
    Read {
        want: usize,
        done: ReadCompleter,
    },
    Write {
        data: Bytes,
        pad: usize,
        durable: bool,
        done: Completer,
    },
    /// Never aggregated.
    Discard(Completer),
}

/// A flush at the device.
struct Flush {
    /// The number of [`Leaf::written`] that it covers.
    upto: u64,
    bytes: Unflushed,
    start: Nanos,
}

/// Options of a write: its class, and whether it completes only when durable, as after a flush.
#[derive(Clone, Copy, Debug)]
pub struct WriteAs {
    /// Its class.
    pub prio: Prio,
    /// Only if every device of the write supports it ([`Leaf::writes_durably`]).
    pub durable: bool,
}

impl From<Prio> for WriteAs {
    fn from(prio: Prio) -> WriteAs {
        WriteAs { prio, durable: false }
    }
}

impl Leaf {
    /// A leaf over `dev`, with empty counters.
    pub fn new(
        rt: &Rt,
        guid: Guid,
        path: String,
        dev: Rc<dyn BlockDev>,
        gauge: DirtyGauge,
        tunables: QueueTunables,
    ) -> Rc<Leaf> {
        Leaf::with_condition(rt, guid, path, dev, gauge, tunables, Rc::new(Condition::default()))
    }

    /// As [`Leaf::new`], with an existing condition.
    pub fn with_condition(
        rt: &Rt,
        guid: Guid,
        path: String,
        dev: Rc<dyn BlockDev>,
        gauge: DirtyGauge,
        tunables: QueueTunables,
        condition: Rc<Condition>,
    ) -> Rc<Leaf> {
        Rc::new(Leaf {
            guid: Cell::new(guid),
            path: RefCell::new(path),
            labels: SafeLabels::all(dev.size()),
            dev,
            condition,
            rt: rt.clone(),
            gauge,
            queue: RefCell::new({
                let mut queue = Queue::new();
                queue.order_by(&tunables);
                queue
            }),
            tunables: RefCell::new(tunables),
            sharing: RefCell::default(),
            stats: RefCell::new(LeafStats::default()),
            in_flight: RefCell::default(),
            written: Cell::new(1),
            flushed: Cell::new(0),
            is_flushing: Cell::new(false),
            flush_over: Notify::default(),
            flush_failed: Cell::default(),
        })
    }

    pub(crate) fn safe_labels(&self) -> &SafeLabels {
        &self.labels
    }
    /// Writes that completed, plus one.
    pub(crate) fn written(&self) -> u64 {
        self.written.get()
    }
    /// The number of [`Leaf::written`] that completed flushes cover.
    pub(crate) fn flushed(&self) -> u64 {
        self.flushed.get()
    }

    /// Reads `len` bytes at device byte `offset`, a multiple of the device's sector; `len` need not
    /// be one.
    pub fn read(self: &Rc<Self>, offset: u64, len: u64, prio: Prio) -> ReadDone {
        let Ok(want) = usize::try_from(len) else {
            return ReadDone::ready(Err(self.refuse("read", offset, len)));
        };
        let padded = align_up(len, u64::from(self.dev.info().logical_sector));
        if want == 0 || offset.checked_add(padded).is_none_or(|end| end > self.dev.size()) {
            return ReadDone::ready(Err(self.refuse("read", offset, len)));
        }
        let (future, done) = ReadDone::pending();
        self.enqueue(offset, padded, false, prio, 1, Job::Read { want, done });
        future
    }

    /// Writes `data`, and `pad` zero bytes after it, at device byte `offset`. Offset and total
    /// length must be multiples of the device's sector.
    pub fn write(self: &Rc<Self>, offset: u64, data: Bytes, pad: usize, how: impl Into<WriteAs>) -> WriteDone {
        let WriteAs { prio, durable } = how.into();
        let len = (data.len() + pad) as u64;
        if len == 0 || offset.checked_add(len).is_none_or(|end| end > self.dev.size()) {
            return WriteDone::ready(Err(self.refuse("write", offset, len)));
        }
        let (future, done) = WriteDone::pending();
        let segments = usize::from(!data.is_empty()) + usize::from(pad > 0);
        self.enqueue(offset, len, true, prio, segments, Job::Write { data, pad, durable, done });
        future
    }

    /// Discards `len` bytes at device byte `offset`, in the class of trims. A failure is the
    /// caller's: it counts as no error of the device.
    pub fn discard(self: &Rc<Self>, offset: u64, len: u64) -> WriteDone {
        if len == 0 || offset.checked_add(len).is_none_or(|end| end > self.dev.size()) {
            return WriteDone::ready(Err(self.refuse("discard", offset, len)));
        }
        let (future, done) = WriteDone::pending();
        let payload = Job::Discard(done);
        let (since, prio) = (self.rt.now(), Prio::Trim);
        let item = Item { offset, len, write: true, prio, since, aggregate: false, segments: 1, payload };
        self.queue.borrow_mut().push(item);
        self.pump(Cause::Arrival);
        future
    }

    /// Whether it supports durable writes ([`WriteAs::durable`]).
    pub fn writes_durably(&self) -> bool {
        self.dev.info().writes_durably
    }

    /// Makes every completed write durable. Skipped if an earlier flush covers them all. Fails if a
    /// flush failed that the leaf began on its own since the last call.
    pub async fn flush(&self) -> Result<()> {
        while self.is_flushing.get() {
            self.flush_over.notified().await;
        }
        if let Some(e) = self.flush_failed.take() {
            return Err(e);
        }
        if self.flushed.get() >= self.written.get() {
            return Ok(());
        }
        let begun = self.flush_begins();
        let result = match self.befalls(FaultyOps::Flush, None) {
            None => bdev::flush(&*self.dev).await,
            Some(Trouble::Skip) => Ok(()),
            Some(Trouble::Refuse) => Err(on_purpose()),
            Some(_) => bdev::flush(&*self.dev).await.and(Err(on_purpose())),
        };
        self.flush_ended(begun, result)
    }

    fn flush_begins(&self) -> Flush {
        self.stats.borrow_mut().flushes += 1;
        let bytes = self.sharing.borrow_mut().flush_begins();
        Flush { upto: self.written.get(), bytes, start: self.rt.now() }
    }

    fn flush_ended(&self, Flush { upto, bytes, start }: Flush, result: Result<()>) -> Result<()> {
        let now = self.rt.now();
        let total = now.since(start);
        self.stats.borrow_mut().flushed(total);
        self.sharing.borrow_mut().flushed(bytes, start, now);
        let (leaf, ok) = (self.guid.get().0, result.is_ok());
        self.rt.trace_at(now, Groups::IO, || Event::Flushed { leaf, total, ok });
        match result {
            Ok(()) => {
                self.flushed.set(self.flushed.get().max(upto));
                Ok(())
            }
            Err(e) => {
                self.stats.borrow_mut().errors.write += 1;
                if kind_of(&e) != ErrorKind::Interrupted {
                    self.condition.note_io_error(self.rt.now());
                    self.trace_fault(FaultKind::Io, 0, true, 0, 0);
                }
                Err(Error::new(kind_of(&e), format!("{}: flush failed: {e}", self.path())))
            }
        }
    }

    /// Probes the device (`vdev_probe` of OpenZFS): whether the first bytes of one of its labels,
    /// never written while the pool is in use, can be read. Bypasses the queue.
    pub async fn probe(&self) -> bool {
        if self.befalls(FaultyOps::Probe, None).is_some_and(|t| t != Trouble::Skip) {
            return false;
        }
        let Ok(offsets) = crate::labels::offsets(&*self.dev) else { return false };
        for at in offsets {
            if bdev::read(&*self.dev, at, BOOT_ENV_OFFSET as usize).await.is_ok() {
                return true;
            }
        }
        false
    }

    /// Its guid. It changes when the leaf replaces its mirror.
    pub fn guid(&self) -> Guid {
        self.guid.get()
    }
    pub(crate) fn set_guid(&self, guid: Guid) {
        self.guid.set(guid);
    }
    /// Its path, as in configuration and messages.
    pub fn path(&self) -> String {
        self.path.borrow().clone()
    }
    /// Gives it another path; the device stays.
    pub fn set_path(&self, path: &str) {
        self.path.replace(path.to_string());
    }
    /// Its world.
    pub(crate) fn rt(&self) -> &Rt {
        &self.rt
    }
    /// Operations queued or in flight.
    pub fn load(&self) -> u32 {
        let q = self.queue.borrow();
        q.state.queued.iter().sum::<u32>() + q.state.total_active()
    }
    /// Its errors.
    pub fn errors(&self) -> IoErrors {
        self.stats.borrow().errors
    }
    /// Its counters.
    pub fn stats(&self) -> LeafStats {
        self.stats.borrow().clone()
    }
    /// The operations in its queue.
    pub fn depth(&self) -> QueueDepth {
        let q = self.queue.borrow();
        QueueDepth { queued: q.state.queued, active: q.state.active }
    }
    /// Traces an error of the device.
    pub fn trace_fault(&self, kind: FaultKind, class: u8, write: bool, offset: u64, len: u64) {
        let leaf = self.guid.get().0;
        self.rt.trace(Groups::FAULT, || Event::Fault { leaf, kind, class, write, offset, len });
    }
    /// Counts a read of `len` bytes at `offset` of the address space that failed on purpose, above
    /// the device.
    pub fn count_read_error(&self, prio: Prio, offset: u64, len: u64) {
        self.stats.borrow_mut().errors.read += 1;
        self.condition.note_io_error(self.rt.now());
        self.trace_fault(FaultKind::Io, prio.index() as u8, false, offset.wrapping_add(DATA_START), len);
    }
    /// Counts a block with a wrong checksum: `len` bytes at `offset` of the address space, both 0
    /// if unknown; that of the scratch area wraps.
    pub fn count_checksum_error(&self, offset: u64, len: u64) {
        let at = if len > 0 { offset.wrapping_add(DATA_START) } else { 0 };
        self.trace_fault(FaultKind::Checksum, 0, false, at, len);
        self.stats.borrow_mut().errors.cksum += 1;
        self.condition.note_checksum_error(self.rt.now());
    }
    /// Operations that took too long, since it was opened or cleared.
    pub fn slow_ios(&self) -> u64 {
        self.stats.borrow().slow_ios
    }
    /// Counts an operation of `len` bytes at `offset` that took `disk` at the device, if that was
    /// too long.
    fn note_slow(&self, disk: Nanos, prio: Prio, write: bool, (offset, len): (u64, u64)) {
        let (slow, hung) = {
            let t = self.tunables.borrow();
            (Nanos::from_ms(t.slow_io_ms.into()), Nanos::from_ms(t.hung_io_ms.into()))
        };
        if disk > slow {
            self.stats.borrow_mut().slow_ios += 1;
            self.trace_fault(FaultKind::Delay, prio.index() as u8, write, offset, len);
        }
        if disk > hung {
            self.trace_fault(FaultKind::Deadman, prio.index() as u8, write, offset, len);
        }
    }
    /// Reports the operation that is longest at the device, if it is there since before `since`.
    pub fn report_hung(&self, since: Nanos) {
        let oldest = self.in_flight.borrow().iter().min_by_key(|f| f.started).copied();
        if let Some(f) = oldest.filter(|f| f.started < since) {
            self.trace_fault(FaultKind::Deadman, f.prio.index() as u8, f.write, f.offset, f.len);
        }
    }
    /// Clears the errors (`zpool clear`).
    pub fn clear_errors(&self) {
        {
            let mut stats = self.stats.borrow_mut();
            (stats.errors, stats.slow_ios) = Default::default();
        }
        self.condition.clear_errors();
    }
    /// The queue's tunables.
    pub fn tunables(&self) -> QueueTunables {
        self.tunables.borrow().clone()
    }
    /// The dirty-data gauge of its queue.
    pub fn gauge(&self) -> DirtyGauge {
        self.gauge.clone()
    }
    /// Changes the queue's tunables; operations in flight stay.
    pub fn set_tunables(self: &Rc<Self>, t: QueueTunables) {
        self.queue.borrow_mut().order_by(&t);
        *self.tunables.borrow_mut() = t;
        // Both causes, since limits may have risen.
        self.pump(Cause::Arrival);
        self.pump(Cause::Completion);
    }

    fn refuse(&self, verb: &str, offset: u64, len: u64) -> Error {
        Error::invalid(format!(
            "{}: {verb} of {len} bytes at {offset} is empty or beyond the device's end at {}",
            self.path(),
            self.dev.size()
        ))
    }

    fn enqueue(self: &Rc<Self>, offset: u64, len: u64, write: bool, prio: Prio, segments: usize, payload: Job) {
        let since = self.rt.now();
        self.queue.borrow_mut().push(Item { offset, len, write, prio, since, aggregate: true, segments, payload });
        self.pump(Cause::Arrival);
    }

    fn pump(self: &Rc<Self>, cause: Cause) {
        let room = self.queue.borrow().room(&self.tunables.borrow(), cause);
        for _ in 0..room {
            let batch = {
                let t = self.tunables.borrow();
                let limit = match () {
                    () if self.condition.faults.wants_single() => 0,
                    () if self.dev.info().rotational => t.aggregation_limit,
                    () => t.aggregation_limit_non_rotating,
                };
                let mut queue = self.queue.borrow_mut();
                queue.state.is_shared = self.sharing.borrow().is_shared(queue.state.waited_for(), self.rt.now());
                queue.next(&t, limit, self.gauge.percent())
            };
            let Some(batch) = batch else { return };
            self.submit(batch);
        }
    }

    fn submit(self: &Rc<Self>, batch: Batch<Job>) {
        let durable = batch.is_durable();
        let op = if batch.is_discard() {
            Op::Discard { offset: batch.offset, len: batch.len }
        } else if batch.write {
            let mut bufs = Vec::with_capacity(batch.items.iter().map(|i| i.segments).sum());
            for item in &batch.items {
                if let Job::Write { data, pad, .. } = &item.payload {
                    if !data.is_empty() {
                        bufs.push(data.clone());
                    }
                    if *pad > 0 {
                        bufs.push(Bytes::zeroed(*pad));
                    }
                }
            }
            Op::Write { offset: batch.offset, bufs, durable }
        } else {
            let mut bufs = Vec::with_capacity(2 * batch.items.len() - 1);
            let mut at = batch.offset;
            for item in &batch.items {
                if item.offset > at {
                    bufs.push(Buf::for_overwrite((item.offset - at) as usize));
                }
                bufs.push(Buf::for_overwrite(item.len as usize));
                at = item.offset + item.len;
            }
            Op::Read { offset: batch.offset, bufs }
        };
        self.stats.borrow_mut().issued(batch.prio, batch.len, batch.items.len());
        let started = self.rt.now();
        let Batch { prio, write, offset, len, .. } = batch;
        self.in_flight.borrow_mut().push(InFlight { started, prio, write, offset, len });
        self.rt.trace_at(started, Groups::QUEUE, || {
            let class = batch.prio.index();
            let state = &self.queue.borrow().state;
            Event::Issued {
                leaf: self.guid.get().0,
                class: class as u8,
                write: batch.write,
                offset: batch.offset,
                len: batch.len,
                items: batch.items.len() as u32,
                queued: state.queued[class],
                active: state.active[class],
            }
        });
        if self.condition.faults.is_active() && !matches!(op, Op::Discard { .. }) {
            return self.submit_faulty(op, batch, started);
        }
        let leaf = self.clone();
        // If the world ends first, the closure is dropped uncalled, and with it every completer,
        // which resolves its future.
        self.dev.submit(op, Box::new(move |result| leaf.complete(batch, started, result)));
    }

    /// What befalls an operation that is given to the device, but for delays.
    fn befalls(&self, op: FaultyOps, offset: Option<u64>) -> Option<Trouble> {
        self.condition.faults.befalls(&self.rt, Given { op, offset, size: self.dev.size() })
    }

    /// As [`Leaf::submit`], for a device with faults on purpose.
    fn submit_faulty(self: &Rc<Self>, op: Op, batch: Batch<Job>, started: Nanos) {
        let kind = if batch.write { FaultyOps::Write } else { FaultyOps::Read };
        let trouble = self.befalls(kind, Some(batch.offset));
        let until = self.condition.faults.delays(&self.rt, kind);
        let leaf = self.clone();
        let over = move |result: Result<Done>| {
            let late = until.filter(|until| *until > leaf.rt.now());
            let Some(until) = late else { return leaf.complete(batch, started, result) };
            let rt = leaf.rt.clone();
            drop(rt.clone().spawn("delay on purpose", async move {
                rt.sleep_until(until).await;
                leaf.complete(batch, started, result);
            }));
        };
        match trouble {
            None => self.dev.submit(op, Box::new(over)),
            // A task, since completions issue operations.
            Some(trouble @ (Trouble::Skip | Trouble::Refuse)) => {
                drop(self.rt.spawn("fault on purpose", async move {
                    over(if trouble == Trouble::Refuse { Err(on_purpose()) } else { Ok(undone(op)) });
                }));
            }
            Some(Trouble::FlipBit) => {
                let rt = self.rt.clone();
                self.dev.submit(op, Box::new(move |result| over(result.map(|done| with_flipped_bit(&rt, done)))));
            }
            Some(_) => self.dev.submit(op, Box::new(move |result| over(result.and(Err(on_purpose()))))),
        }
    }

    fn complete(self: &Rc<Self>, batch: Batch<Job>, started: Nanos, result: Result<Done>) {
        let now = self.rt.now();
        let (durable, discard) = (batch.is_durable(), batch.is_discard());
        let Batch { prio, write, offset, len, items } = batch;
        {
            let own = InFlight { started, prio, write, offset, len };
            let mut all = self.in_flight.borrow_mut();
            let at = all.iter().position(|f| *f == own).expect("what completes was submitted");
            all.swap_remove(at);
        }
        let flush_is_due = {
            let (mut sharing, state) = (self.sharing.borrow_mut(), &self.queue.borrow().state);
            sharing.completed((prio, write && !durable && !discard), len, state.total_active() - 1, started, now);
            write
                && !discard
                && !prio.has_waiter()
                && !self.is_flushing.get()
                && result.is_ok()
                && sharing.wants_flush()
                && sharing.is_shared(state.waited_for(), now)
        };
        if !flush_is_due {
            self.queue.borrow_mut().completed(prio, write, offset, len, &self.tunables.borrow());
        }
        // The members of a failed aggregate are retried alone and traced then.
        if self.rt.tracer().wants(Groups::IO) && (result.is_ok() || items.len() == 1) {
            let (leaf, disk, ok) = (self.guid.get().0, now.since(started), result.is_ok());
            for i in &items {
                let (class, total) = (i.prio.index() as u8, now.since(i.since));
                self.rt.trace_at(now, Groups::IO, || Event::Done { leaf, class, write, len: i.len, total, disk, ok });
            }
        }
        match result {
            Ok(done) => {
                if write && !durable && !discard {
                    self.written.set(self.written.get() + 1);
                }
                {
                    let mut stats = self.stats.borrow_mut();
                    for i in &items {
                        stats.count(i.prio, (!discard).then_some(write), i.len, now.since(i.since), now.since(started));
                    }
                }
                self.note_slow(now.since(started), prio, write, (offset, len));
                complete_items(items, done, offset);
            }
            Err(_) if items.len() > 1 => {
                // Retry each alone to find the failing sector.
                for item in items {
                    self.queue.borrow_mut().push(Item { aggregate: false, ..item });
                }
            }
            Err(e) => {
                let kind = kind_of(&e);
                let verb = if write { "write" } else { "read" };
                let verb = if discard { "discard" } else { verb };
                if kind != ErrorKind::Interrupted && !discard {
                    let mut stats = self.stats.borrow_mut();
                    let n = if write { &mut stats.errors.write } else { &mut stats.errors.read };
                    *n += 1;
                    self.condition.note_io_error(now);
                    self.trace_fault(FaultKind::Io, prio.index() as u8, write, offset, len);
                    if write {
                        self.condition.note_failed_write();
                    }
                }
                let error = Error::new(kind, format!("{}: {verb} of {len} bytes at {offset} failed: {e}", self.path()));
                for item in items {
                    match item.payload {
                        Job::Read { done, .. } => done.complete(Err(error.clone())),
                        Job::Write { done, .. } | Job::Discard(done) => done.complete(Err(error.clone())),
                    }
                }
            }
        }
        if flush_is_due {
            self.flush_after((prio, offset, len));
        } else {
            self.pump(Cause::Completion);
        }
    }

    /// Flushes after a write, which counts as at the device until the flush is over: so no write
    /// of its class takes its place meanwhile, and reads are held up by one flush only.
    fn flush_after(self: &Rc<Self>, (prio, offset, len): (Prio, u64, u64)) {
        self.is_flushing.set(true);
        let begun = self.flush_begins();
        let leaf = self.clone();
        let trouble = self.befalls(FaultyOps::Flush, None);
        let over = move |result: Result<Done>| {
            let result = if trouble.is_some_and(|t| t != Trouble::Skip) { Err(on_purpose()) } else { result };
            if let Err(e) = leaf.flush_ended(begun, result.map(drop)) {
                leaf.flush_failed.set(Some(e));
            }
            leaf.is_flushing.set(false);
            leaf.flush_over.notify_all();
            leaf.queue.borrow_mut().completed(prio, true, offset, len, &leaf.tunables.borrow());
            leaf.pump(Cause::Completion);
        };
        match trouble {
            Some(Trouble::Skip | Trouble::Refuse) => {
                drop(self.rt.spawn("fault on purpose", async move { over(Ok(Done::default())) }));
            }
            _ => self.dev.submit(Op::Flush, Box::new(over)),
        }
    }
}

/// An operation that is at the device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct InFlight {
    started: Nanos,
    prio: Prio,
    write: bool,
    offset: u64,
    len: u64,
}

impl Batch<Job> {
    /// Whether it is a discard, alone.
    fn is_discard(&self) -> bool {
        self.items.iter().any(|i| matches!(i.payload, Job::Discard(_)))
    }
    /// Whether a member is to be durable: then the whole batch is.
    fn is_durable(&self) -> bool {
        self.items.iter().any(|i| matches!(i.payload, Job::Write { durable: true, .. }))
    }
}

/// Completes every member of a batch; read buffers of gaps between members are dropped.
fn complete_items(items: Vec<Item<Job>>, done: Done, offset: u64) {
    let mut bufs = done.bufs.into_iter();
    let mut at = offset;
    for item in items {
        match item.payload {
            Job::Write { done, .. } | Job::Discard(done) => done.complete(Ok(())),
            Job::Read { want, done } => {
                let own = bufs.by_ref().find_map(|b| {
                    let start = at;
                    at += b.len() as u64;
                    (start == item.offset).then_some(b)
                });
                let mut own = own.expect("a device gives back the buffers it was given");
                own.truncate(want);
                done.complete(Ok(own.freeze()));
            }
        }
    }
}

/// The error of an operation that fails on purpose.
fn on_purpose() -> Error {
    Error::new(ErrorKind::Io, "an error on purpose (zinject)")
}

/// The result of an operation that the device was not given.
fn undone(op: Op) -> Done {
    let Op::Read { mut bufs, .. } = op else { return Done::default() };
    bufs.iter_mut().for_each(|b| b.fill(0));
    Done { bufs }
}

/// The result of a read with a bit changed somewhere.
fn with_flipped_bit(rt: &Rt, mut done: Done) -> Done {
    let bits = done.bufs.iter().map(|b| b.len() as u64 * 8).sum();
    if bits == 0 {
        return done;
    }
    let mut bit = rt.rng_below(bits);
    for buf in &mut done.bufs {
        let own = buf.len() as u64 * 8;
        if bit < own {
            buf[(bit / 8) as usize] ^= 1 << (bit % 8);
            break;
        }
        bit -= own;
    }
    done
}

/// A device's error is an I/O error, unless the world is ending.
fn kind_of(e: &Error) -> ErrorKind {
    if e.kind() == ErrorKind::Interrupted { ErrorKind::Interrupted } else { ErrorKind::Io }
}
