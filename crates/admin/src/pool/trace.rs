//! Instruments: listeners that count trace events between two requests of a command.
//!
//! `weir trace` starts a session ([`Traces::start`]), takes its counts repeatedly
//! ([`Traces::take`]), and ends it. No event is lost between requests, and memory is bounded:
//! distributions are counts by powers of two, and the last thousand txgs are kept. A session
//! without a request for a minute ends, so that a killed command leaves no listener.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

use base::{Error, Log2, Nanos, Result};
use rt::Rt;
use rt::trace::{Event, Groups, Listening, LogPhase, TxgPhase};
use vdev::Prio;

use crate::view::{Dist, LogView, SlowTaskView, TraceView, TurnView, TxgView};

/// Txgs that are kept between two requests.
const TXGS_MAX: usize = 1000;
/// Time without a request after which a session ends.
const SESSION_TIMEOUT: Nanos = Nanos(60_000_000_000);
/// Sessions at once.
const SESSIONS_MAX: usize = 16;

/// The instruments, and the event groups of each.
const INSTRUMENTS: &[(&str, Groups)] = &[
    ("dirty", Groups::TXG),
    ("txg", Groups::TXG),
    ("io", Groups::IO),
    ("queue", Groups::TXG.and(Groups::QUEUE)),
    ("delay", Groups::DELAY),
    ("zil", Groups::LOG),
    ("turns", Groups::TURN),
    ("all", COUNTED),
];

/// What [`Counters`] counts: operations of users are recorded (`super::record`), not counted.
const COUNTED: Groups = Groups(Groups::ALL.0 & !Groups::OP.0);

/// The longest turns that are kept between two requests.
pub const LONGEST: usize = 10;

/// Kinds of operations, as in the D scripts.
const READ: usize = 0;
const WRITE: usize = 1;
const FLUSH: usize = 2;
const TRIM: usize = 3;
const KINDS: [&str; 4] = ["read", "write", "flush", "trim"];

impl Dist {
    /// Counts a value of an operation of `bytes`.
    pub fn add(&mut self, value: u64, bytes: u64) {
        let bucket = value.max(1).ilog2() as usize;
        if self.buckets.len() <= bucket {
            self.buckets.resize(bucket + 1, 0);
        }
        self.buckets[bucket] += 1;
        self.count += 1;
        self.sum += value as f64;
        self.squares += value as f64 * value as f64;
        self.bytes += bytes;
    }
    /// Their mean, 0 if there are none.
    pub fn mean(&self) -> f64 {
        if self.count == 0 { 0.0 } else { self.sum / self.count as f64 }
    }
    /// Their standard deviation.
    pub fn deviation(&self) -> f64 {
        let mean = self.mean();
        if self.count == 0 { 0.0 } else { (self.squares / self.count as f64 - mean * mean).max(0.0).sqrt() }
    }
    /// Adds another distribution.
    pub fn merge(&mut self, other: &Dist) {
        if self.buckets.len() < other.buckets.len() {
            self.buckets.resize(other.buckets.len(), 0);
        }
        self.buckets.iter_mut().zip(&other.buckets).for_each(|(a, b)| *a += b);
        self.count += other.count;
        self.sum += other.sum;
        self.squares += other.squares;
        self.bytes += other.bytes;
    }
}

/// A distribution under construction: fixed arrays, no allocation, a few instructions per value.
#[derive(Clone, Copy, Default)]
struct Tally {
    buckets: Log2<64>,
    sum: u64,
    squares: f64,
    bytes: u64,
}

impl Tally {
    #[inline]
    fn add(&mut self, value: u64, bytes: u64) {
        self.buckets.add(value);
        self.sum = self.sum.wrapping_add(value);
        self.squares += value as f64 * value as f64;
        self.bytes = self.bytes.wrapping_add(bytes);
    }
    /// The sum of both tallies.
    fn plus(&self, other: &Tally) -> Tally {
        let mut all = *self;
        all.buckets.merge(&other.buckets);
        (all.sum, all.squares, all.bytes) = (all.sum + other.sum, all.squares + other.squares, all.bytes + other.bytes);
        all
    }
    fn dist(&self) -> Dist {
        Dist {
            buckets: self.buckets.used().to_vec(),
            count: self.buckets.total(),
            sum: self.sum as f64,
            squares: self.squares,
            bytes: self.bytes,
        }
    }
}

/// A turn of the pool's thread.
#[derive(Clone, Copy)]
struct Turn {
    task: &'static str,
    took: Nanos,
    on_cpu: Nanos,
}

impl Turn {
    fn view(self) -> TurnView {
        TurnView { task: self.task.into(), took: self.took.0, on_cpu: self.on_cpu.0 }
    }
}

/// Counts events. An event costs a place in an array; names, lists and sums over classes are made
/// on request.
#[derive(Default)]
pub struct Counters {
    events: u64,
    /// The start of each phase of txgs that are not on disk.
    phases: BTreeMap<u64, [Nanos; 4]>,
    txgs: VecDeque<TxgView>,
    /// Reads and writes of each class.
    classes: [[Tally; 2]; Prio::ALL.len()],
    flushes: Tally,
    syncing: u64,
    /// Depths seen since the sync of the txg `syncing` began, and those of the ones before.
    depth: Tally,
    queue: VecDeque<(u64, Dist)>,
    admin: Tally,
    undelayed: u64,
    delay: Tally,
    log: Tally,
    log_blocks: LogView,
    turns: Tally,
    turns_on_cpu: Tally,
    /// The longest first.
    longest: Vec<Turn>,
    longest_on_cpu: Option<Turn>,
}

impl Counters {
    /// Counts one.
    pub fn note(&mut self, now: Nanos, event: &Event) {
        self.events += 1;
        let us = |n: Nanos| n.0 / 1000;
        match *event {
            Event::Txg { txg, phase, dirty, limit, of_txg } => {
                self.txg(now, txg, phase, TxgView { txg, dirty, limit, of_txg, spans: [None; 4] })
            }
            Event::Admin { waited, .. } => self.admin.add(us(waited), 0),
            Event::Admitted { waited: Nanos(0), .. } => self.undelayed += 1,
            Event::Admitted { waited, .. } => self.delay.add(us(waited), 0),
            Event::Issued { class, active, len, .. } => {
                if usize::from(class) == Prio::AsyncWrite.index() {
                    self.depth.add(active.into(), len);
                }
            }
            Event::Done { class, write, len, total, .. } => {
                if let Some(tallies) = self.classes.get_mut(usize::from(class)) {
                    tallies[usize::from(write)].add(us(total), len);
                }
            }
            Event::Flushed { total, .. } => self.flushes.add(us(total), 0),
            Event::Log { phase: LogPhase::Done, bytes, size, waiters, times: t, .. } => {
                self.log.add(us(Nanos(t.queue.0 + t.write.0 + t.flush.0 + t.order.0)), bytes);
                self.log_blocks.merge(&LogView {
                    size,
                    waiters: waiters.into(),
                    queue: t.queue.0,
                    write: t.write.0,
                    flush: t.flush.0,
                    order: t.order.0,
                    ..LogView::default()
                });
            }
            Event::Turn { task, took, on_cpu, .. } => self.turn(Turn { task, took, on_cpu }),
            Event::Log { .. } | Event::Fault { .. } | Event::Damaged { .. } | Event::Op(_) => {}
        }
    }

    fn turn(&mut self, turn: Turn) {
        self.turns.add(turn.took.0, 0);
        self.turns_on_cpu.add(turn.on_cpu.0, 0);
        if self.longest_on_cpu.is_none_or(|l| turn.on_cpu > l.on_cpu) {
            self.longest_on_cpu = Some(turn);
        }
        let least = self.longest.last().map_or(Nanos(0), |l| l.took);
        if self.longest.len() < LONGEST || turn.took > least {
            let at = self.longest.partition_point(|l| l.took >= turn.took);
            self.longest.insert(at, turn);
            self.longest.truncate(LONGEST);
        }
    }

    fn txg(&mut self, now: Nanos, txg: u64, phase: TxgPhase, mut seen: TxgView) {
        let phases = self.phases.entry(txg).or_default();
        let keep = match phase {
            TxgPhase::Open => {
                phases[0] = now;
                None
            }
            TxgPhase::Quiescing => {
                phases[1] = now;
                None
            }
            TxgPhase::Quiesced => {
                phases[2] = now;
                None
            }
            TxgPhase::Syncing => {
                phases[3] = now;
                self.end_depths();
                self.syncing = txg;
                // Dirty bytes are sampled now; the record is completed when the txg is on disk.
                Some(seen)
            }
            TxgPhase::Synced => {
                let [open, closed, quiesced, start] = *phases;
                // A phase that began before the session has no length.
                let span = |from: Nanos, to: Nanos| (from.0 != 0).then(|| to.since(from).0);
                seen.spans = [span(open, closed), span(closed, quiesced), span(quiesced, start), span(start, now)];
                self.phases.remove(&txg);
                match self.txgs.iter_mut().find(|t| t.txg == txg) {
                    Some(old) => {
                        (old.spans, old.of_txg) = (seen.spans, seen.of_txg);
                        None
                    }
                    None => Some(seen),
                }
            }
        };
        if let Some(seen) = keep {
            if self.txgs.len() == TXGS_MAX {
                self.txgs.pop_front();
            }
            self.txgs.push_back(seen);
        }
        // Drops txgs whose end was not seen.
        while self.phases.len() > 8 {
            self.phases.pop_first();
        }
    }

    /// Stores the depths of the txg that synced until now.
    fn end_depths(&mut self) {
        let depth = std::mem::take(&mut self.depth).dist();
        if depth.count > 0 {
            if self.queue.len() == TXGS_MAX {
                self.queue.pop_front();
            }
            self.queue.push_back((self.syncing, depth));
        }
    }

    /// Takes the counts and restarts them. A syncing txg is reported when it is on disk.
    pub fn take(&mut self, span: Nanos) -> TraceView {
        self.end_depths();
        let mut old = std::mem::take(self);
        (self.syncing, self.phases) = (old.syncing, std::mem::take(&mut old.phases));
        let (under_way, over): (VecDeque<TxgView>, VecDeque<TxgView>) =
            old.txgs.into_iter().partition(|t: &TxgView| self.phases.contains_key(&t.txg));
        self.txgs = under_way;
        let mut kinds = [Tally::default(); 4];
        kinds[FLUSH] = old.flushes;
        for (prio, [reads, writes]) in Prio::ALL.iter().zip(&old.classes) {
            if *prio == Prio::Trim {
                kinds[TRIM] = kinds[TRIM].plus(reads).plus(writes);
            } else {
                (kinds[READ], kinds[WRITE]) = (kinds[READ].plus(reads), kinds[WRITE].plus(writes));
            }
        }
        let kinds = KINDS.iter().zip(kinds).map(|(name, tally)| (name.to_string(), tally.dist()));
        let classes = Prio::ALL.iter().zip(&old.classes).map(|(p, [r, w])| (p.name().to_string(), r.plus(w).dist()));
        TraceView {
            span: span.0,
            events: old.events,
            txgs: over.into(),
            io: kinds.chain(classes).filter(|(_, d)| d.count > 0).collect(),
            queue: old.queue.into(),
            undelayed: old.undelayed,
            delay: old.delay.dist(),
            log: old.log.dist(),
            log_blocks: old.log_blocks,
            admin: old.admin.dist(),
            turns: old.turns.dist(),
            turns_on_cpu: old.turns_on_cpu.dist(),
            longest_turns: old.longest.into_iter().map(Turn::view).collect(),
            longest_on_cpu: old.longest_on_cpu.map(Turn::view),
            slow_tasks: Vec::new(),
        }
    }
}

/// Tasks with slow turns since the thread of that engine started.
pub fn slow_tasks(rt: &Rt) -> Vec<SlowTaskView> {
    let all = host::Handle::of(rt).map(|engine| engine.slow_tasks()).unwrap_or_default();
    let view = |s: host::SlowTask| SlowTaskView { task: s.task.to_string(), turns: s.polls, longest: s.longest.0 };
    all.into_iter().map(view).collect()
}

struct Session {
    counters: Rc<RefCell<Counters>>,
    last_take: Nanos,
    _listening: Listening,
}

/// The trace sessions of one pool.
#[derive(Default)]
pub struct Traces {
    next: Cell<u64>,
    sessions: RefCell<BTreeMap<u64, Session>>,
}

impl Traces {
    /// Starts a session of the instrument of that name; returns its number.
    pub fn start(&self, rt: &Rt, what: &str) -> Result<u64> {
        let Some((_, groups)) = INSTRUMENTS.iter().find(|(name, _)| *name == what) else {
            let names: Vec<&str> = INSTRUMENTS.iter().map(|(n, _)| *n).collect();
            return Err(Error::invalid(format!("'{what}' is not an instrument: there are {}", names.join(", "))));
        };
        let now = rt.now();
        self.drop_idle(now);
        if self.sessions.borrow().len() >= SESSIONS_MAX {
            return Err(Error::invalid(format!("{SESSIONS_MAX} instruments listen to this pool already")));
        }
        let counters: Rc<RefCell<Counters>> = Rc::default();
        let theirs = counters.clone();
        let _listening = rt.tracer().listen(*groups, move |now, event| theirs.borrow_mut().note(now, event));
        let id = self.next.get() + 1;
        self.next.set(id);
        self.sessions.borrow_mut().insert(id, Session { counters, last_take: now, _listening });
        Ok(id)
    }

    /// The counts of session `id` since the last request.
    pub fn take(&self, now: Nanos, id: u64, end: bool) -> Result<TraceView> {
        self.drop_idle(now);
        let mut sessions = self.sessions.borrow_mut();
        let session =
            sessions.get_mut(&id).ok_or_else(|| Error::not_found(format!("there is no instrument {id} any more")))?;
        let view = session.counters.borrow_mut().take(now.since(session.last_take));
        session.last_take = now;
        if end {
            sessions.remove(&id);
        }
        Ok(view)
    }

    /// Ends idle sessions.
    fn drop_idle(&self, now: Nanos) {
        self.sessions.borrow_mut().retain(|_, s| now.since(s.last_take) < SESSION_TIMEOUT);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_counted_between_questions() {
        let mut c = Counters::default();
        let ms = Nanos::from_ms;
        let txg = |txg, phase, dirty| Event::Txg { txg, phase, dirty, limit: 100, of_txg: 9 };
        c.note(ms(1), &txg(5, TxgPhase::Open, 0));
        c.note(ms(2), &txg(5, TxgPhase::Quiescing, 30));
        c.note(ms(4), &txg(5, TxgPhase::Quiesced, 30));
        c.note(ms(7), &txg(5, TxgPhase::Syncing, 40));
        let issue =
            |active| Event::Issued { leaf: 1, class: 3, write: true, offset: 0, len: 10, items: 1, queued: 0, active };
        [1, 2, 3, 3].into_iter().for_each(|n| c.note(ms(8), &issue(n)));
        assert!(c.take(ms(8)).txgs.is_empty(), "it is under way");
        c.note(ms(12), &txg(5, TxgPhase::Synced, 10));
        let done = |write, us: u64| Event::Done {
            leaf: 1,
            class: if write { 3 } else { 0 },
            write,
            len: 512,
            total: Nanos(us * 1000),
            disk: Nanos(1),
            ok: true,
        };
        [(true, 3), (true, 4), (false, 100)].into_iter().for_each(|(w, us)| c.note(ms(13), &done(w, us)));
        c.note(ms(13), &Event::Flushed { leaf: 1, total: Nanos(9000), ok: true });
        [0, 0, 500]
            .into_iter()
            .for_each(|us| c.note(ms(14), &Event::Admitted { txg: 6, waited: Nanos(us * 1000), delay: Nanos(0) }));
        let v = c.take(ms(6));
        assert_eq!(
            v.txgs,
            [TxgView { txg: 5, dirty: 40, limit: 100, of_txg: 9, spans: [1, 2, 3, 5].map(|n| Some(n * 1_000_000)) }]
        );
        // Of a txg under way at the start, only complete phases have a length.
        let mut late = Counters::default();
        late.note(ms(7), &txg(4, TxgPhase::Syncing, 40));
        late.note(ms(9), &txg(4, TxgPhase::Synced, 10));
        assert_eq!(late.take(ms(9)).txgs[0].spans, [None, None, None, Some(2_000_000)]);
        let io: Vec<(&str, u64, u64)> = v.io.iter().map(|(n, d)| (n.as_str(), d.count, d.bytes)).collect();
        assert_eq!(
            io,
            [("read", 1, 512), ("write", 2, 1024), ("flush", 1, 0), ("syncq_read", 1, 512), ("asyncq_write", 2, 1024)]
        );
        assert_eq!(v.io[1].1.buckets, [0, 1, 1]);
        assert_eq!((v.io[1].1.mean(), v.io[1].1.deviation()), (3.5, 0.5));
        assert_eq!((v.undelayed, v.delay.count, v.delay.buckets.len()), (2, 1, 9));
        assert_eq!(c.take(ms(1)), TraceView { span: 1_000_000, ..TraceView::default() });
        // The longest turns have names.
        // The thread has the processor for all of it or for 4 us.
        let cpu = |us: u64| Nanos::from_us(if us > 28 { 4 } else { us });
        let turn = |task, us| Event::Turn { task, id: 7, took: Nanos::from_us(us), on_cpu: cpu(us) };
        for us in 1..=30 {
            c.note(ms(15), &turn(if us == 20 { "sync" } else { "fuse" }, us));
        }
        c.note(ms(15), &turn("scan", 25));
        let v2 = c.take(ms(1));
        assert_eq!((v2.turns.count, v2.turns.sum), (31, 490_000.0));
        let longest: Vec<(&str, u64)> = v2.longest_turns.iter().map(|t| (t.task.as_str(), t.took / 1000)).collect();
        let on_cpu = v2.longest_on_cpu.map(|t| (t.task, t.took, t.on_cpu));
        assert_eq!((on_cpu, v2.turns_on_cpu.sum), (Some(("fuse".into(), 28_000, 28_000)), 439_000.0));
        let fuse = |us| ("fuse", us);
        let want =
            [fuse(30), fuse(29), fuse(28), fuse(27), fuse(26), fuse(25), ("scan", 25), fuse(24), fuse(23), fuse(22)];
        assert_eq!(longest, want);
        let mut sum = v.io[0].1.clone();
        sum.merge(&v.io[1].1);
        assert_eq!((sum.count, sum.sum, sum.bytes), (3, 107.0, 1536));
    }
}
