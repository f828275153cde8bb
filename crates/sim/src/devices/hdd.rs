//! Timing of a spinning disk: seek, rotation, media rate, a queue that is reordered, read-ahead, a
//! write cache.
//!
//! The head serves one request at a time. Among the oldest requests of the queue it takes the one
//! that it reaches first (seek and rotation both counted), unless one has waited too long. With a
//! write cache, writes complete when the cache took them and are brought to the platter in one
//! direction across the disk, neighbours joined; reads go first unless the cache is half full or a
//! flush waits. A read that goes on where the last one ended finds its bytes in the read-ahead
//! buffer, which has filled at the media rate since.

use std::collections::{BTreeMap, VecDeque};

use base::Nanos;

use super::fault::OpKind;
use super::model::{Finishing, Shape, transfer};
use crate::Rng;

/// Zones of one recording density each.
const ZONES: u64 = 16;
/// The most that one visit of the head writes from the cache.
const DESTAGE_MAX: u64 = 1 << 20;
/// A rotation missed by less than this is not missed: it is rounding.
const ROUNDING: Nanos = Nanos(5_000);

/// Parameters of a spinning disk.
#[derive(Clone, PartialEq, Debug)]
pub struct HddModel {
    /// Turns a minute.
    pub rpm: u64,
    /// When offset 0 passes the head for the first time, within the first turn: spindles of several
    /// disks are not in step.
    pub phase: Nanos,
    /// The shortest seek, to a neighbouring track, settling included.
    pub seek_min: Nanos,
    /// The longest seek, across the whole disk. Between them time grows with the root of the
    /// distance.
    pub seek_max: Nanos,
    /// Bytes a second at offset 0, the outer edge.
    pub outer_rate: u64,
    /// Bytes a second at the end.
    pub inner_rate: u64,
    /// Bytes a second between host and disk.
    pub link: u64,
    /// Time that the disk needs for any command.
    pub command: Nanos,
    /// Bytes read ahead of a sequential reader; 0 for none.
    pub read_ahead: u64,
    /// Bytes of the write cache; 0 for none.
    pub write_cache: u64,
    /// Requests among which the head chooses.
    pub queue: usize,
    /// A request that has waited so long goes first.
    pub patience: Nanos,
}

impl HddModel {
    /// A 7200 rpm nearline disk: 8.3 ms average seek, 220 to 110 MB/s, 64 MiB write cache, a queue
    /// of 32.
    pub fn nearline_7200() -> HddModel {
        HddModel {
            rpm: 7200,
            phase: Nanos(0),
            seek_min: Nanos::from_us(700),
            seek_max: Nanos::from_us(14_000),
            outer_rate: 220_000_000,
            inner_rate: 110_000_000,
            link: 550_000_000,
            command: Nanos::from_us(50),
            read_ahead: 1 << 20,
            write_cache: 64 << 20,
            queue: 32,
            patience: Nanos::from_ms(500),
        }
    }
    /// A 10,000 rpm SAS disk of the small kind, as Seagate's product manuals of 2010 to 2016
    /// (Savvio 10K.5 and its successors) describe them: track to track 0.3 ms, 4 ms average and 8
    /// ms longest seek for writes, 168 to 93 MB/s, SAS of 6 Gb/s, 64 MiB of cache.
    pub fn enterprise_10k() -> HddModel {
        HddModel {
            rpm: 10_000,
            seek_min: Nanos::from_us(300),
            seek_max: Nanos::from_us(8_000),
            outer_rate: 168_000_000,
            inner_rate: 93_000_000,
            ..HddModel::nearline_7200()
        }
    }
    /// One of several: its platters stand anywhere, and its motor is up to 0.2 % off its speed, so
    /// that disks do not turn in step.
    pub fn one_of(mut self, seed: u64) -> HddModel {
        let mut rng = Rng::stream(seed, 0x0068_6464);
        self.rpm += rng.below(self.rpm / 250 + 1);
        self.rpm -= self.rpm / 500;
        self.phase = Nanos(rng.below(self.turn().0));
        self
    }
    /// The same with its write cache off.
    pub fn without_write_cache(mut self) -> HddModel {
        self.write_cache = 0;
        self
    }
    fn turn(&self) -> Nanos {
        Nanos(60_000_000_000 / self.rpm)
    }
}

#[derive(Clone, Copy)]
struct Request {
    op: u64,
    offset: u64,
    len: u64,
    read: bool,
    arrived: Nanos,
}

/// The current work of the head.
#[derive(Clone, Copy)]
enum Work {
    Serve(u64),
    Destage(u64),
}

/// A flush that waits until so many bytes of the cache were written.
struct Flush {
    op: u64,
    left: u64,
}

pub(crate) struct Hdd {
    model: HddModel,
    size: u64,
    /// Where the head is: the byte after the last one transferred.
    head: u64,
    /// When the last read ended and where, for the read-ahead buffer.
    read_end: Option<(u64, Nanos)>,
    busy: Option<(Nanos, Work)>,
    queue: VecDeque<Request>,
    link_until: Nanos,
    /// Dirty extents: offset to length.
    dirty: BTreeMap<u64, u64>,
    dirty_bytes: u64,
    /// Bytes on their way from cache to platter.
    destaging: u64,
    /// Writes that wait for room in the cache.
    waiting: VecDeque<Request>,
    flushes: VecDeque<Flush>,
    /// Whether the last visit was a destage, for taking turns with reads.
    destaged_last: bool,
}

impl Hdd {
    pub(crate) fn new(model: HddModel, size: u64) -> Hdd {
        assert!(model.rpm > 0 && model.inner_rate > 0, "a spinning disk spins");
        Hdd {
            model,
            size: size.max(1),
            head: 0,
            read_end: None,
            busy: None,
            queue: VecDeque::new(),
            link_until: Nanos(0),
            dirty: BTreeMap::new(),
            dirty_bytes: 0,
            destaging: 0,
            waiting: VecDeque::new(),
            flushes: VecDeque::new(),
            destaged_last: false,
        }
    }
    pub(crate) fn next(&self) -> Option<Nanos> {
        self.busy.map(|(until, _)| until)
    }
    pub(crate) fn submit(&mut self, now: Nanos, shape: Shape, done: &mut Finishing) {
        let begin = now + self.model.command;
        let request = Request {
            op: shape.op,
            offset: shape.offset,
            len: shape.len,
            read: shape.kind == OpKind::Read,
            arrived: now,
        };
        match shape.kind {
            OpKind::Discard => done.push(begin, shape.op),
            OpKind::Flush => {
                let left = self.dirty_bytes + self.destaging + self.waiting.iter().map(|w| w.len).sum::<u64>();
                if left == 0 {
                    done.push(begin, shape.op);
                } else {
                    self.flushes.push_back(Flush { op: shape.op, left });
                }
            }
            OpKind::Write if self.model.write_cache > 0 => {
                self.waiting.push_back(request);
                self.admit(begin, done);
            }
            OpKind::Read if self.cached(shape.offset, shape.len) => {
                self.link_until = self.link_until.max(begin) + transfer(shape.len, self.model.link);
                done.push(self.link_until, shape.op);
            }
            _ => self.queue.push_back(request),
        }
        if self.busy.is_none() {
            self.start(begin);
        }
    }
    pub(crate) fn advance(&mut self, now: Nanos, done: &mut Finishing) {
        while let Some((until, work)) = self.busy {
            if until > now {
                break;
            }
            self.busy = None;
            match work {
                Work::Serve(op) => done.push(until, op),
                Work::Destage(len) => {
                    self.destaging = 0;
                    for flush in &mut self.flushes {
                        flush.left = flush.left.saturating_sub(len);
                    }
                    while let Some(flush) = self.flushes.pop_front_if(|flush| flush.left == 0) {
                        done.push(until + self.model.command, flush.op);
                    }
                    self.admit(until, done);
                }
            }
            self.start(until);
        }
    }

    // --- cache ---

    /// Takes waiting writes into the cache while there is room.
    fn admit(&mut self, now: Nanos, done: &mut Finishing) {
        while let Some(write) = self.waiting.front().copied() {
            let used = self.dirty_bytes + self.destaging;
            if used > 0 && used + write.len > self.model.write_cache {
                break;
            }
            self.waiting.pop_front();
            self.link_until = self.link_until.max(now) + transfer(write.len, self.model.link);
            done.push(self.link_until, write.op);
            self.insert_dirty(write.offset, write.len);
        }
    }
    fn insert_dirty(&mut self, offset: u64, len: u64) {
        let (mut start, mut end) = (offset, offset + len);
        // Joins every extent that touches the new one.
        while let Some((&at, &length)) = self.dirty.range(..=end).next_back() {
            if at + length < start {
                break;
            }
            self.dirty.remove(&at);
            self.dirty_bytes -= length;
            start = start.min(at);
            end = end.max(at + length);
        }
        self.dirty.insert(start, end - start);
        self.dirty_bytes += end - start;
        // Bytes written twice count once from now on: flushes wait for no more than is there.
        let most = self.dirty_bytes + self.destaging + self.waiting.iter().map(|w| w.len).sum::<u64>();
        for flush in &mut self.flushes {
            flush.left = flush.left.min(most);
        }
    }
    fn cached(&self, offset: u64, len: u64) -> bool {
        self.dirty.range(..=offset).next_back().is_some_and(|(at, length)| at + length >= offset + len)
    }

    // --- head ---

    fn rate(&self, offset: u64) -> u64 {
        let zone = (u128::from(offset) * u128::from(ZONES) / u128::from(self.size)) as u64;
        let zone = zone.min(ZONES - 1);
        self.model.outer_rate - (self.model.outer_rate - self.model.inner_rate) * zone / (ZONES - 1)
    }
    fn seek(&self, to: u64) -> Nanos {
        let track = self.rate(to) * self.model.turn().0 / 1_000_000_000;
        let distance = self.head.abs_diff(to);
        if distance < track {
            return Nanos(0);
        }
        let share = (distance as f64 / self.size as f64).sqrt();
        let span = self.model.seek_max - self.model.seek_min;
        self.model.seek_min + Nanos((span.0 as f64 * share) as u64)
    }
    /// Seek and rotation from now until the first byte at `offset` passes the head.
    fn positioning(&self, now: Nanos, offset: u64) -> Nanos {
        let turn = self.model.turn();
        let seek = self.seek(offset);
        let track = (self.rate(offset) * turn.0 / 1_000_000_000).max(1);
        let target = (u128::from(offset % track) * u128::from(turn.0) / u128::from(track)) as u64;
        let angle = ((now + seek).0 + turn.0 - self.model.phase.0 % turn.0) % turn.0;
        let wait = Nanos((target + turn.0 - angle) % turn.0);
        if wait + ROUNDING >= turn { seek } else { seek + wait }
    }
    fn cost(&self, now: Nanos, request: &Request) -> Nanos {
        let media = transfer(request.len, self.rate(request.offset));
        if request.read
            && let Some((end, at)) = self.read_end
            && request.offset == end
        {
            // The disk has read on since; no further than the buffer goes.
            let ahead = now.since(at).min(transfer(self.model.read_ahead, self.rate(end)));
            if self.model.read_ahead > 0 {
                return media.since(ahead).max(transfer(request.len, self.model.link));
            }
        }
        self.positioning(now, request.offset) + media
    }
    fn start(&mut self, now: Nanos) {
        let want_destage = !self.dirty.is_empty();
        let urgent = !self.flushes.is_empty()
            || !self.waiting.is_empty()
            || self.dirty_bytes + self.destaging > self.model.write_cache / 2;
        let destage = want_destage && (self.queue.is_empty() || (urgent && !self.destaged_last));
        self.destaged_last = destage;
        if destage {
            return self.start_destage(now);
        }
        let patience = self.model.patience;
        let window = self.queue.iter().take(self.model.queue.max(1)).enumerate();
        let best = match self.queue.front() {
            None => return,
            Some(oldest) if now.since(oldest.arrived) > patience => Some(0),
            Some(_) => window.min_by_key(|(at, request)| (self.cost(now, request), *at)).map(|(at, _)| at),
        };
        let Some(request) = best.and_then(|at| self.queue.remove(at)) else { return };
        let until = now + self.cost(now, &request);
        self.head = request.offset + request.len;
        self.read_end = request.read.then_some((self.head, until));
        self.busy = Some((until, Work::Serve(request.op)));
    }
    fn start_destage(&mut self, now: Nanos) {
        let next = self.dirty.range(self.head..).next().or_else(|| self.dirty.iter().next());
        let Some((&offset, &len)) = next else { return };
        self.dirty.remove(&offset);
        let part = len.min(DESTAGE_MAX);
        if part < len {
            self.dirty.insert(offset + part, len - part);
        }
        self.dirty_bytes -= part;
        self.destaging = part;
        let until = now + self.positioning(now, offset) + transfer(part, self.rate(offset));
        self.head = offset + part;
        self.read_end = None;
        self.busy = Some((until, Work::Destage(part)));
    }
}
