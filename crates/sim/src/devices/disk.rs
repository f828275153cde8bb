//! [`SimDisk`]: a disk of the laboratory, as the engine sees it (a [`BlockDev`]) and as a test
//! does.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::{Rc, Weak};

use base::{Error, ErrorKind, Nanos, Result};
use bdev::{BlockDev, Completion, DevInfo, Done, Op};
use rt::TimerId;

use super::durability::{Change, CutStyle, Durability, Moment};
use super::fault::{Fate, Fault, FaultId, Faults, OpKind};
use super::image::DiskImage;
use super::log::{DiskLog, Entry};
use super::model::{HostLatency, Model, Shape, Timing};
use super::truncated::Truncated;
use crate::Rng;
use crate::world::{self, PowerOff, SimHandle, SimWorld};

/// Configuration of a disk.
#[derive(Clone, Debug)]
pub struct DiskConfig {
    /// The name in messages.
    pub name: String,
    /// Its content.
    pub image: DiskImage,
    /// How long operations take.
    pub model: Model,
    /// What the host adds to that.
    pub host: HostLatency,
    /// Seed of all random choices: times of [`Model::Random`], failures, tears.
    pub seed: u64,
    /// Unit of offsets and lengths, in bytes.
    pub logical_sector: u32,
    /// Unit of writing, in bytes.
    pub physical_sector: u32,
    /// Bytes that a power cut never tears apart.
    pub tear_unit: u64,
    /// Whether completed writes wait for a flush; false for a disk with power-loss protection.
    pub volatile: bool,
    /// Whether discards work.
    pub supports_discard: bool,
    /// Whether it makes single writes durable. Such a write takes the time of a write and of a
    /// flush.
    pub writes_durably: bool,
    /// Whether writes are allowed.
    pub writable: bool,
    /// Whether overlapping operations in flight, one of them a write, panic. They are counted in
    /// any case.
    pub panic_on_overlap: bool,
}

impl DiskConfig {
    /// A disk with `image` on it and the usual rest: 512-byte sectors, volatile, discards.
    pub fn new(image: DiskImage, model: Model, seed: u64) -> DiskConfig {
        DiskConfig {
            name: format!("sim{seed}"),
            image,
            logical_sector: 512,
            physical_sector: model.physical_sector(),
            tear_unit: 512,
            volatile: true,
            supports_discard: true,
            writes_durably: true,
            writable: true,
            panic_on_overlap: false,
            host: HostLatency::default(),
            model,
            seed,
        }
    }
}

/// Counters of a disk.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counters {
    /// Completed reads, failed ones included, as in all counts.
    pub reads: u64,
    /// Completed writes.
    pub writes: u64,
    /// Completed flushes.
    pub flushes: u64,
    /// Completed discards.
    pub discards: u64,
    /// Bytes of reads.
    pub read_bytes: u64,
    /// Bytes of writes.
    pub write_bytes: u64,
    /// Sum of the reads' times from submission to completion.
    pub read_time: Nanos,
    /// Sum of the writes' times.
    pub write_time: Nanos,
    /// Sum of the flushes' times.
    pub flush_time: Nanos,
    /// Operations that failed, by fault or by misuse.
    pub errors: u64,
    /// Submissions that overlapped an operation in flight, one of the two a write.
    pub overlaps: u64,
    /// Operations in flight now.
    pub in_flight: u64,
    /// The most that ever were.
    pub in_flight_max: u64,
}

struct InFlight {
    op: Op,
    kind: OpKind,
    done: Completion,
    fate: Fate,
    submitted: Nanos,
    /// A durable write whose bytes are still to leave the cache, once they have come there.
    to_settle: bool,
}

struct State {
    current: DiskImage,
    durability: Durability,
    timing: Timing,
    in_flight: BTreeMap<u64, InFlight>,
    /// Operations refused at submission, whose completions must still come later.
    refused: BTreeMap<u64, (Completion, Error)>,
    next_op: u64,
    armed: Option<(TimerId, Nanos)>,
    faults: Faults,
    rng: Rng,
    counters: Counters,
    log: Option<DiskLog>,
    /// Offset and length of each read, if recorded.
    reads: Option<Vec<(u64, u64)>>,
    /// Callbacks of tests at later completions: how many complete first, and the callback.
    triggers: Vec<(u64, Box<dyn FnOnce()>)>,
    truncated: Option<Truncated>,
    /// Completions that will never be called: the power is off.
    limbo: Vec<Completion>,
}

struct Inner {
    info: DevInfo,
    config: DiskConfig,
    world: Rc<SimWorld>,
    state: RefCell<State>,
    size: Cell<u64>,
    next_size: Cell<u64>,
    dead: Cell<bool>,
    me: Weak<Inner>,
}

/// A modelled disk. A clone is the same disk.
#[derive(Clone)]
pub struct SimDisk(Rc<Inner>);

impl SimDisk {
    /// An empty disk of `size` bytes.
    pub fn new(sim: &SimHandle, size: u64, model: Model, seed: u64) -> SimDisk {
        SimDisk::from_image(sim, DiskImage::zeroed(size), model, seed)
    }
    /// A disk with `image` on it: the next life of another.
    pub fn from_image(sim: &SimHandle, image: DiskImage, model: Model, seed: u64) -> SimDisk {
        SimDisk::with(sim, DiskConfig::new(image, model, seed))
    }
    /// A disk by `config`.
    pub fn with(sim: &SimHandle, mut config: DiskConfig) -> SimDisk {
        // What is overwritten later is not kept for the configuration's sake.
        let image = std::mem::take(&mut config.image);
        let size = image.size();
        assert!(size.is_multiple_of(u64::from(config.logical_sector)), "a disk has whole sectors");
        let info = DevInfo {
            path: config.name.clone(),
            size_bytes: size,
            logical_sector: config.logical_sector,
            physical_sector: config.physical_sector,
            rotational: config.model.rotational(),
            writable: config.writable,
            supports_discard: config.supports_discard,
            writes_durably: config.writes_durably,
        };
        let state = State {
            current: image.clone(),
            durability: Durability::new(image, config.volatile, config.tear_unit),
            timing: Timing::new(&config.model, size, config.host, Rng::stream(config.seed, 1)),
            in_flight: BTreeMap::new(),
            refused: BTreeMap::new(),
            next_op: 1,
            armed: None,
            faults: Faults::default(),
            rng: Rng::stream(config.seed, 2),
            counters: Counters::default(),
            log: None,
            reads: None,
            triggers: Vec::new(),
            truncated: None,
            limbo: Vec::new(),
        };
        let world = sim.0.clone();
        let inner = Rc::new_cyclic(|me| Inner {
            info,
            config,
            world: world.clone(),
            state: RefCell::new(state),
            size: Cell::new(size),
            next_size: Cell::new(size),
            dead: Cell::new(world.is_dead()),
            me: me.clone(),
        });
        let weak: Weak<Inner> = inner.me.clone();
        world.attach(weak);
        SimDisk(inner)
    }
    /// The disk as the engine takes it.
    pub fn dev(&self) -> Rc<dyn BlockDev> {
        Rc::new(self.clone())
    }

    /// How many others hold the disk: a pool that is gone holds none.
    pub fn holders(&self) -> usize {
        Rc::strong_count(&self.0) - 1
    }

    // --- contents ---

    /// The contents as reads see them: every completed write, nothing in flight.
    pub fn image(&self) -> DiskImage {
        self.0.state.borrow().current.clone()
    }
    /// The contents that no power cut can take back.
    pub fn stable_image(&self) -> DiskImage {
        self.what_if_cut(CutStyle::KeepStable, 0)
    }
    /// Completed writes and discards that a power cut may take back.
    pub fn unflushed(&self) -> usize {
        self.0.state.borrow().durability.pending_len()
    }
    /// Cuts the power: from now on no operation completes. `seed` draws the remaining content.
    pub fn power_cut(&self, seed: u64) -> DiskImage {
        self.power_cut_with(CutStyle::Seeded, seed)
    }
    /// Like [`SimDisk::power_cut`], with a given style of loss.
    pub fn power_cut_with(&self, style: CutStyle, seed: u64) -> DiskImage {
        let image = self.what_if_cut(style, seed);
        self.0.power_off();
        image
    }
    /// A possible image after a power cut now, without the cut.
    pub fn what_if_cut(&self, style: CutStyle, seed: u64) -> DiskImage {
        self.0.state.borrow().durability.cut(style, seed)
    }
    /// Stops the disk: operations, those in flight too, never complete. As after a power cut, or as
    /// a disk that hangs.
    pub fn dead(&self) {
        self.0.power_off();
    }
    /// Whether the disk is stopped.
    pub fn is_dead(&self) -> bool {
        self.0.dead.get()
    }
    /// Changes the size that [`BlockDev::refresh_size`] will find; new bytes are zeros.
    pub fn grow(&self, size: u64) {
        assert!(size >= self.0.size.get(), "a disk only grows");
        assert!(size.is_multiple_of(u64::from(self.0.config.logical_sector)), "a disk has whole sectors");
        let mut state = self.0.state.borrow_mut();
        assert!(state.log.is_none(), "a disk whose operations are recorded keeps its size");
        state.current.resize(size);
        state.durability.stable_mut().resize(size);
        self.0.next_size.set(size);
    }

    // --- log ---

    /// Whether nothing is in flight, and nothing would be lost by a power cut.
    pub fn is_settled(&self) -> bool {
        let state = self.0.state.borrow();
        state.in_flight.is_empty() && state.durability.pending_len() == 0
    }
    /// Begins to record operations. The disk must be settled: the log starts from stable contents.
    pub fn start_log(&self) {
        assert!(self.is_settled(), "a log starts when nothing is in flight or unflushed");
        let mut state = self.0.state.borrow_mut();
        state.log = Some(DiskLog {
            base: state.current.clone(),
            volatile: self.0.config.volatile,
            sector: self.0.config.tear_unit,
            entries: Vec::new(),
        });
    }
    /// Ends the recording: the log, if one was begun.
    pub fn take_log(&self) -> Option<DiskLog> {
        self.0.state.borrow_mut().log.take()
    }

    /// Begins to record the places of reads.
    pub fn watch_reads(&self) {
        self.0.state.borrow_mut().reads = Some(Vec::new());
    }
    /// Offset and length of each read that completed since [`SimDisk::watch_reads`].
    pub fn take_reads(&self) -> Vec<(u64, u64)> {
        self.0.state.borrow_mut().reads.take().unwrap_or_default()
    }

    // --- faults ---

    /// Puts a fault in.
    pub fn fault(&self, fault: Fault) -> FaultId {
        self.0.state.borrow_mut().faults.add(fault)
    }
    /// Takes a fault away; one that struck already is gone.
    pub fn unfault(&self, id: FaultId) {
        self.0.state.borrow_mut().faults.remove(id);
    }
    /// Calls `f` when `n` more operations have completed (0: at the next), just before that one's
    /// completion runs.
    pub fn at_completion(&self, n: u64, f: impl FnOnce() + 'static) {
        self.0.state.borrow_mut().triggers.push((n, Box::new(f)));
    }
    /// Takes all faults away.
    pub fn clear_faults(&self) {
        self.0.state.borrow_mut().faults.clear();
    }
    /// The `n`th operation from now (0 is the next) of the kind, or of any kind, fails with an I/O
    /// error.
    pub fn fail_nth(&self, kind: Option<OpKind>, n: u64) -> FaultId {
        self.fault(Fault::FailOne { kind, skip: n })
    }
    /// Inverts the bits of `len` bytes at `offset`, now and for good.
    pub fn corrupt(&self, offset: u64, len: u64) {
        let mut state = self.0.state.borrow_mut();
        assert!(state.log.is_none(), "damage is no operation: a recorded log would not know of it");
        state.current.corrupt(offset, len);
        state.durability.stable_mut().corrupt(offset, len);
    }
    /// Stores `data` at `offset`, now and for good, past all models.
    pub fn poke(&self, offset: u64, data: &[u8]) {
        let mut state = self.0.state.borrow_mut();
        assert!(state.log.is_none(), "a poke is no operation: a recorded log would not know of it");
        state.current.write(offset, data);
        state.durability.stable_mut().write(offset, data);
    }
    /// Puts the whole contents back to `image`, of the same size, now and for good. Writes in
    /// flight still arrive.
    pub fn restore(&self, image: &DiskImage) {
        let mut state = self.0.state.borrow_mut();
        assert!(state.log.is_none(), "a recorded log would not know of it");
        assert_eq!(state.current.size(), image.size(), "a disk keeps its size");
        state.current = image.clone();
        *state.durability.stable_mut() = image.clone();
        if let Some(truncated) = &mut state.truncated {
            truncated.len = image.size();
        }
    }
    /// The disk is a file, and another program truncates it to `len` bytes; then it `grows` to its
    /// old size. Later operations notice as those of a real file do (see `truncated`).
    pub fn truncate(&self, len: u64, grows: bool) {
        let mut state = self.0.state.borrow_mut();
        assert!(state.log.is_none(), "a recorded log would not know of it");
        let size = state.current.size();
        state.current.zero(len, size - len);
        state.durability.stable_mut().zero(len, size - len);
        state.truncated = Some(Truncated { len: if grows { size } else { len }, is_known: false });
    }
    /// Opens it again after it was truncated. False if it is too short.
    pub fn open_again(&self) -> bool {
        let mut state = self.0.state.borrow_mut();
        let size = state.current.size();
        state.truncated = state.truncated.take().filter(|t| t.len < size);
        state.truncated.is_none()
    }
    /// `len` bytes at `offset` as reads see them, past all models.
    pub fn peek(&self, offset: u64, len: usize) -> Vec<u8> {
        self.0.state.borrow().current.read_vec(offset, len)
    }
    /// Its counters.
    pub fn counters(&self) -> Counters {
        self.0.state.borrow().counters
    }
}

impl State {
    /// The triggers due at this completion.
    fn take_triggers(&mut self) -> Vec<Box<dyn FnOnce()>> {
        let mut due = Vec::new();
        for (left, f) in std::mem::take(&mut self.triggers) {
            match left.checked_sub(1) {
                None => due.push(f),
                Some(left) => self.triggers.push((left, f)),
            }
        }
        due
    }
    /// Whether a completed durable write is only in the model's cache; submits the flush of it.
    fn settles(&mut self, now: Nanos, op: u64) -> bool {
        let Some(write) = self.in_flight.get_mut(&op) else { return false };
        if std::mem::take(&mut write.to_settle) {
            self.timing.submit(now, Shape { op, kind: OpKind::Flush, offset: 0, len: 0 });
            return true;
        }
        false
    }
    fn moment(&mut self, world: &SimWorld, moment: Moment) {
        let seq = world.next_io_seq();
        self.durability.apply(&moment, &mut self.current);
        if let Some(log) = &mut self.log {
            log.entries.push(Entry { seq, at: world.time(), moment });
        }
    }
    /// Names an operation in flight that this one must not overlap.
    fn overlapped(&self, kind: OpKind, offset: u64, len: u64) -> Option<String> {
        if kind == OpKind::Flush || kind == OpKind::Read && !self.durability.overlaps_in_flight(offset, len) {
            return None;
        }
        let touches = |op: &Op| op.offset() < offset + len && offset < op.offset() + op.len();
        let other = self.in_flight.values().find(|other| other.kind != OpKind::Flush && touches(&other.op))?;
        Some(format!("a {} of {} bytes at {}", other.op.verb(), other.op.len(), other.op.offset()))
    }
}

impl Inner {
    /// Keeps one event armed for whatever happens next.
    fn rearm(&self, state: &mut State) {
        let next = if state.refused.is_empty() { state.timing.next() } else { Some(self.world.time()) };
        if state.armed.map(|(_, at)| at) == next {
            return;
        }
        if let Some((id, _)) = state.armed.take() {
            self.world.disarm(id);
        }
        if let Some(at) = next {
            let me = self.me.clone();
            let call = move || {
                if let Some(me) = me.upgrade() {
                    me.event();
                }
            };
            state.armed = Some((self.world.call_at(at, Box::new(call)), at));
        }
    }
    /// Completes at most one operation, so that each completion is a turn of its own.
    fn event(&self) {
        let (due, (done, result)) = {
            let mut state = self.state.borrow_mut();
            state.armed = None;
            if self.dead.get() {
                return;
            }
            let over = if let Some((op, (done, error))) = state.refused.pop_first() {
                state.counters.errors += 1;
                self.world.note(world::Moment::Io, op);
                Some((done, Err(error)))
            } else {
                let now = self.world.time();
                state.timing.advance(now);
                match state.timing.pop(now) {
                    Some(op) if state.settles(now, op) => None,
                    Some(op) => Some(self.complete(&mut state, op)),
                    None => None,
                }
            };
            self.rearm(&mut state);
            match over {
                Some(over) => (state.take_triggers(), over),
                None => return,
            }
        };
        due.into_iter().for_each(|f| f());
        done(result);
    }
    fn complete(&self, state: &mut State, number: u64) -> (Completion, Result<Done>) {
        self.world.note(world::Moment::Io, number);
        let InFlight { op, kind, done, fate, submitted, .. } =
            state.in_flight.remove(&number).expect("a model completes what was submitted");
        let took = self.world.time().since(submitted);
        let counters = &mut state.counters;
        counters.in_flight -= 1;
        counters.errors += u64::from(fate.fail);
        match kind {
            OpKind::Read => {
                counters.reads += 1;
                counters.read_bytes += op.len();
                counters.read_time = counters.read_time + took;
            }
            OpKind::Write => {
                counters.writes += 1;
                counters.write_bytes += op.len();
                counters.write_time = counters.write_time + took;
            }
            OpKind::Flush => {
                counters.flushes += 1;
                counters.flush_time = counters.flush_time + took;
            }
            OpKind::Discard => counters.discards += 1,
        }
        match kind {
            OpKind::Read => {}
            OpKind::Flush => {
                state.moment(&self.world, Moment::FlushCompleted { op: number, honest: !fate.fail && !fate.lie });
            }
            // A lost write never became a change of the medium.
            OpKind::Write | OpKind::Discard if fate.lose => {}
            OpKind::Write | OpKind::Discard => {
                let torn = fate.fail.then(|| state.rng.next_u64());
                let kept = matches!(op, Op::Write { durable: true, .. }) && !fate.fail && !fate.lie;
                state.moment(&self.world, Moment::Completed { op: number, torn, kept });
            }
        }
        if fate.fail {
            let message = format!("{}: {} of {} bytes at {} failed", self.info.path, op.verb(), op.len(), op.offset());
            return (done, Err(Error::new(ErrorKind::Io, message)));
        }
        let bufs = match op {
            Op::Read { offset, mut bufs } => {
                let mut at = offset;
                if let Some(reads) = &mut state.reads {
                    reads.push((offset, bufs.iter().map(|buf| buf.len() as u64).sum()));
                }
                for buf in &mut bufs {
                    state.current.read(at, buf);
                    state.faults.spoil(at, buf);
                    at += buf.len() as u64;
                }
                bufs
            }
            _ => Vec::new(),
        };
        (done, Ok(Done { bufs }))
    }
}

impl PowerOff for Inner {
    fn power_off(&self) {
        self.dead.set(true);
        let (armed, triggers) = {
            let mut state = self.state.borrow_mut();
            let in_flight = std::mem::take(&mut state.in_flight);
            let refused = std::mem::take(&mut state.refused);
            state.limbo.extend(in_flight.into_values().map(|each| each.done));
            state.limbo.extend(refused.into_values().map(|(done, _)| done));
            (state.armed.take(), std::mem::take(&mut state.triggers))
        };
        // They may own this disk.
        drop(triggers);
        if let Some((id, _)) = armed {
            self.world.disarm(id);
        }
        if self.world.is_dead() {
            // Dropping the completions wakes no task any more; they may own the disk, so they must
            // not stay in it.
            let limbo = std::mem::take(&mut self.state.borrow_mut().limbo);
            drop(limbo);
        }
    }
}

impl BlockDev for SimDisk {
    fn info(&self) -> &DevInfo {
        &self.0.info
    }
    fn submit(&self, op: Op, done: Completion) {
        let inner = &*self.0;
        if inner.world.is_dead() {
            // The caller may hold a borrow that the completion's drop takes: the world's tasks are
            // gone, but their drops are still running.
            inner.state.borrow_mut().limbo.push(done);
            return;
        }
        let mut state = inner.state.borrow_mut();
        let state = &mut *state;
        if inner.dead.get() {
            state.limbo.push(done);
            return;
        }
        let number = state.next_op;
        state.next_op += 1;
        if let Err(error) = op.check(&inner.info, inner.size.get()) {
            state.refused.insert(number, (done, error));
            inner.rearm(state);
            return;
        }
        if state.truncated.as_mut().is_some_and(|t| t.fails(&op, inner.size.get())) {
            let why = format!("{}: {}: the file was truncated while in use", inner.info.path, op.verb());
            state.refused.insert(number, (done, Error::corrupt(why)));
            inner.rearm(state);
            return;
        }
        let kind = match &op {
            Op::Read { .. } => OpKind::Read,
            Op::Write { .. } => OpKind::Write,
            Op::Flush => OpKind::Flush,
            Op::Discard { .. } => OpKind::Discard,
        };
        let (offset, len) = (op.offset(), op.len());
        if let Some(other) = state.overlapped(kind, offset, len) {
            state.counters.overlaps += 1;
            assert!(
                !inner.config.panic_on_overlap,
                "{}: {} of {len} bytes at {offset} overlaps {other} in flight",
                inner.info.path,
                op.verb()
            );
        }
        let rng = &mut state.rng;
        let mut fate = state.faults.decide(kind, offset, len, || rng.next_u64());
        let durable = matches!(op, Op::Write { durable: true, .. });
        if durable {
            let flush = state.faults.decide(OpKind::Flush, 0, 0, || rng.next_u64());
            fate.fail |= flush.fail;
        }
        inner.world.work(inner.config.host.cpu.cost(kind, len));
        let now = inner.world.time();
        state.timing.advance(now);
        state.timing.submit(now, Shape { op: number, kind, offset, len });
        match &op {
            Op::Read { .. } => {}
            Op::Flush => state.moment(&inner.world, Moment::FlushSubmitted { op: number }),
            Op::Write { .. } | Op::Discard { .. } if fate.lose => {}
            Op::Write { bufs, .. } => {
                let change = Change::Write { offset, data: bufs.iter().cloned().collect() };
                state.moment(&inner.world, Moment::Submitted { op: number, change });
            }
            Op::Discard { .. } => {
                state.moment(&inner.world, Moment::Submitted { op: number, change: Change::Discard { offset, len } });
            }
        }
        // Also without a volatile cache: the model says what its flushes cost.
        state.in_flight.insert(number, InFlight { op, kind, done, fate, submitted: now, to_settle: durable });
        state.counters.in_flight += 1;
        state.counters.in_flight_max = state.counters.in_flight_max.max(state.counters.in_flight);
        inner.rearm(state);
    }
    fn size(&self) -> u64 {
        self.0.size.get()
    }
    fn refresh_size(&self) -> Result<u64> {
        self.0.size.set(self.0.next_size.get());
        Ok(self.size())
    }
}
