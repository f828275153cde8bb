//! Timing of a spinning disk.
//!
//! *Commands* pass one processor, one after the other, each for a time that varies. *Media*: tracks
//! of one zone are equally long and begin `switch` later than the one before (skew), so that a head
//! that goes on to the next track comes just in time; rates of data sheets are sustained ones and
//! have that in them. A *seek* grows with the root of the distance and ends with a settle time that
//! varies; who comes late loses a turn. Firmware needs a `lead` from knowing a request until the
//! head can serve it: what arrives shortly before its place passes by waits a turn.
//!
//! The head serves one request at a time. Among the oldest of the queue it takes the one that it
//! reaches first (seek and rotation counted); one visit in four is for one that has waited too
//! long. With a *write cache*, writes complete when the cache has them; the head brings them to the
//! platter when they have stayed there for a while, or the cache is half full, first those that it
//! reaches first, and goes on while neighbours follow. Reads go first unless the cache is half full
//! or a flush waits.
//!
//! *Flushes* are served one after the other. A flush begins with `lead`, then the writes that the
//! cache has are its list, and the head brings those and no others to the platter; with it end all
//! flushes whose writes (those that completed before them, as for SCSI SYNCHRONIZE CACHE) were on
//! the list. What comes later waits for the next one, which begins a turn behind, if its blocks
//! follow those of the last. So flushes share a turn if they come together, as those of writers do
//! that a turn has released together, and those that come at any time wait one turn and a half.
//!
//! A read that goes on where the last one ended finds its bytes in the read-ahead buffer, which has
//! filled at the media rate since.
//!
//! Sources: turns, seeks, rates, cache and queue are from product manuals (see each model). Assumed
//! are `command`, `settle`, `switch` and the age at which the cache is written. `lead` is assumed,
//! too, and chosen once, for all numbers of disks and threads, by what illumos 8585 published of
//! one disk: with 1 ms the changes from the old policy to the new one come out. With 0.5 ms a lone
//! writer is closer (4.7 ms for each of 64 writes a second, 5.1 ms with 1 ms; published 4.4 ms),
//! but the change of latencies with 2, 8 and 32 writers is -25 % (-34 % with 1 ms, published -35
//! %).

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use base::Nanos;

use super::fault::OpKind;
use super::model::{Finishing, Shape, transfer};
use crate::Rng;

/// Zones of one recording density each.
const ZONES: u64 = 16;
/// The most that one visit of the head writes from the cache.
const DESTAGE_MAX: u64 = 1 << 20;
/// Dirty pieces among which the head chooses, from its place on.
const DESTAGE_CHOICE: usize = 8;
/// Bytes stay in the cache so long before an idle head writes them without a flush: they may be
/// overwritten, and neighbours may come.
const DESTAGE_AGE: Nanos = Nanos(20_000_000);
/// Of so many visits of the head one at most is for a request that has waited too long: with a deep
/// queue all have, and serving them in their order would be as slow as no queue.
const OVERDUE_EVERY: u32 = 4;
/// A rotation missed by less than this is not missed: it is rounding.
const ROUNDING: Nanos = Nanos(5_000);
/// Tracks of a cylinder.
const HEADS: u64 = 4;

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
    /// Time that the disk's processor needs for any command: half to one and a half times this.
    pub command: Nanos,
    /// Time from one track to the next one of the cylinder.
    pub switch: Nanos,
    /// A seek takes up to this longer than its distance says.
    pub settle: Nanos,
    /// Time from knowing a request or a flush until the head can serve it.
    pub lead: Nanos,
    /// Bytes read ahead of a sequential reader; 0 for none.
    pub read_ahead: u64,
    /// Bytes of the write cache; 0 for none.
    pub write_cache: u64,
    /// Requests among which the head chooses.
    pub queue: usize,
    /// A request that has waited so long goes first, at one visit of the head in four.
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
            switch: Nanos::from_us(600),
            settle: Nanos::from_us(300),
            lead: Nanos::from_us(1_000),
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
            switch: Nanos::from_us(250),
            settle: Nanos::from_us(150),
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
#[derive(Clone)]
enum Work {
    Serve(u64),
    /// Bytes, and the writes that are on the platter with them.
    Destage(u64, Vec<u64>),
}

/// Bytes of the cache that are still to be written.
#[derive(Clone)]
struct Piece {
    len: u64,
    known: Nanos,
    serials: Vec<u64>,
}

/// What happens besides the head's work.
enum Event {
    /// The processor has taken a command.
    Command(Shape, Nanos),
    /// A write's bytes are in the cache.
    Cached(Request),
    /// The list of the flush that has begun is made.
    Listed,
    /// Bytes of the cache may be old enough to be written.
    Aged,
}

/// What the head does for flushes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Flushing {
    /// No flush waits.
    No,
    /// Firmware makes the list.
    Listing,
    /// Writes with lower serials are on the list.
    Listed(u64),
}

/// A flush: it waits for the writes with lower serials, which are those that completed before it
/// came.
struct Flush {
    op: u64,
    owes: u64,
}

/// Where a byte is on its track, and what the track is like.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Place {
    track: u64,
    /// Time from the index mark until it passes the head.
    angle: Nanos,
    /// Bytes of the track.
    track_len: u64,
}

impl HddModel {
    /// Bytes a second at an offset of a disk of `size` bytes, sustained.
    fn rate(&self, size: u64, offset: u64) -> u64 {
        let zone = (u128::from(offset) * u128::from(ZONES) / u128::from(size.max(1))) as u64;
        let zone = zone.min(ZONES - 1);
        self.outer_rate - (self.outer_rate - self.inner_rate) * zone / (ZONES - 1)
    }
    fn place(&self, size: u64, offset: u64) -> Place {
        let turn = self.turn().0;
        // A sustained rate has a switch for each turn in it.
        let track_len = (self.rate(size, offset) * (turn + self.switch.0) / 1_000_000_000).max(1);
        let track = offset / track_len;
        let within = (u128::from(offset % track_len) * u128::from(turn) / u128::from(track_len)) as u64;
        let skew = (u128::from(track) * u128::from(self.switch.0) % u128::from(turn)) as u64;
        Place { track, angle: Nanos((within + skew) % turn), track_len }
    }
    /// Time on the media for `len` bytes from `offset`, switches of tracks included.
    fn media(&self, size: u64, offset: u64, len: u64) -> Nanos {
        let track_len = self.place(size, offset).track_len;
        let crossed = (offset + len.max(1) - 1) / track_len - offset / track_len;
        Nanos((u128::from(len) * u128::from(self.turn().0) / u128::from(track_len)) as u64 + crossed * self.switch.0)
    }
    /// Time to move the head, without the part that varies.
    fn seek(&self, size: u64, from: u64, to: u64) -> Nanos {
        let (a, b) = (self.place(size, from), self.place(size, to));
        match a.track.abs_diff(b.track) {
            0 if a.track_len == b.track_len => Nanos(0),
            n if n < HEADS && a.track_len == b.track_len => self.switch,
            _ => {
                let share = (from.abs_diff(to) as f64 / size as f64).sqrt();
                self.seek_min + Nanos(((self.seek_max - self.seek_min).0 as f64 * share) as u64)
            }
        }
    }
    /// Time that the head, free at `now` and standing at `from`, needs to the first byte at
    /// `offset`, with a seek that takes `late` longer.
    fn positioning(&self, size: u64, now: Nanos, from: u64, offset: u64, late: Nanos) -> Nanos {
        let turn = self.turn();
        let seek = match self.seek(size, from, offset) {
            Nanos(0) => Nanos(0),
            seek => seek + late,
        };
        let target = self.place(size, offset).angle.0;
        let angle = ((now + seek).0 + turn.0 - self.phase.0 % turn.0) % turn.0;
        let wait = Nanos((target + turn.0 - angle) % turn.0);
        if wait + ROUNDING >= turn { seek } else { seek + wait }
    }
}

pub(crate) struct Hdd {
    model: HddModel,
    size: u64,
    rng: Rng,
    /// Where the head is: the byte after the last one transferred.
    head: u64,
    /// When the last read ended and where, for the read-ahead buffer.
    read_end: Option<(u64, Nanos)>,
    busy: Option<(Nanos, Work)>,
    queue: VecDeque<Request>,
    /// When the processor has taken all commands so far.
    commands_until: Nanos,
    link_until: Nanos,
    events: BTreeMap<(Nanos, u64), Event>,
    events_made: u64,
    /// Dirty pieces by offset; they do not overlap.
    dirty: BTreeMap<u64, Piece>,
    /// Bytes of the cache in use: dirty, arriving, on their way to the platter.
    used: u64,
    /// Serials of writes that are not on the platter.
    unsettled: BTreeSet<u64>,
    next_serial: u64,
    /// Writes that wait for room in the cache.
    waiting: VecDeque<Request>,
    /// In the order of arrival.
    flushes: VecDeque<Flush>,
    flushing: Flushing,
    /// Whether an event will look for bytes that are old enough.
    aging: bool,
    /// Visits since the last one for a request that had waited too long.
    since_overdue: u32,
    /// Whether the last visit was a destage, for taking turns with reads.
    destaged_last: bool,
}

impl Hdd {
    pub(crate) fn new(model: HddModel, size: u64, rng: Rng) -> Hdd {
        assert!(model.rpm > 0 && model.inner_rate > 0, "a spinning disk spins");
        Hdd {
            model,
            size: size.max(1),
            rng,
            head: 0,
            read_end: None,
            busy: None,
            queue: VecDeque::new(),
            commands_until: Nanos(0),
            link_until: Nanos(0),
            events: BTreeMap::new(),
            events_made: 0,
            dirty: BTreeMap::new(),
            used: 0,
            unsettled: BTreeSet::new(),
            next_serial: 0,
            waiting: VecDeque::new(),
            flushes: VecDeque::new(),
            flushing: Flushing::No,
            aging: false,
            since_overdue: 0,
            destaged_last: false,
        }
    }
    pub(crate) fn next(&self) -> Option<Nanos> {
        let event = self.events.first_key_value().map(|(&(at, _), _)| at);
        let busy = self.busy.as_ref().map(|&(until, _)| until);
        event.into_iter().chain(busy).min()
    }
    pub(crate) fn submit(&mut self, now: Nanos, shape: Shape) {
        let command = self.model.command.0;
        let took = Nanos(self.rng.between(command / 2, command * 3 / 2));
        self.commands_until = self.commands_until.max(now) + took;
        self.at(self.commands_until, Event::Command(shape, now));
    }
    pub(crate) fn advance(&mut self, now: Nanos, done: &mut Finishing) {
        while let Some(at) = self.next().filter(|&at| at <= now) {
            // The head first: what it ends makes room for what arrives.
            match self.busy.take_if(|(until, _)| *until <= at) {
                Some((_, Work::Serve(op))) => done.push(at, op),
                Some((_, Work::Destage(len, serials))) => self.destaged(at, len, &serials, done),
                None => match self.events.pop_first() {
                    Some((_, Event::Command(shape, since))) => self.command(at, shape, since, done),
                    Some((_, Event::Cached(request))) => self.cached(at, request, done),
                    Some((_, Event::Listed)) => {
                        self.flushing = Flushing::Listed(self.next_serial);
                        self.flushed(at, done);
                    }
                    Some((_, Event::Aged)) => self.aging = false,
                    None => {}
                },
            }
            if self.busy.is_none() {
                self.start(at);
            }
        }
    }
    fn at(&mut self, at: Nanos, event: Event) {
        self.events_made += 1;
        self.events.insert((at, self.events_made), event);
    }
    fn command(&mut self, now: Nanos, shape: Shape, arrived: Nanos, done: &mut Finishing) {
        let Shape { op, kind, offset, len } = shape;
        let request = Request { op, offset, len, read: kind == OpKind::Read, arrived };
        match kind {
            OpKind::Discard => done.push(now, op),
            OpKind::Flush if self.unsettled.is_empty() => done.push(now, op),
            OpKind::Flush => {
                self.flushes.push_back(Flush { op, owes: self.next_serial });
                self.list(now);
            }
            OpKind::Write if self.model.write_cache > 0 => {
                self.waiting.push_back(request);
                self.admit(now);
            }
            OpKind::Read if self.holds(offset, len) => {
                self.link_until = self.link_until.max(now) + transfer(len, self.model.link);
                done.push(self.link_until, op);
            }
            _ => self.queue.push_back(request),
        }
    }

    // --- cache ---

    /// Takes waiting writes into the cache while there is room.
    fn admit(&mut self, now: Nanos) {
        while let Some(write) = self.waiting.front().copied() {
            if self.used > 0 && self.used + write.len > self.model.write_cache {
                break;
            }
            self.waiting.pop_front();
            self.used += write.len;
            self.link_until = self.link_until.max(now) + transfer(write.len, self.model.link);
            self.at(self.link_until, Event::Cached(write));
        }
    }
    fn cached(&mut self, now: Nanos, write: Request, done: &mut Finishing) {
        done.push(now, write.op);
        let (mut start, mut end) = (write.offset, write.offset + write.len);
        let serial = self.next_serial;
        self.next_serial += 1;
        self.unsettled.insert(serial);
        let mut piece = Piece { len: 0, known: now, serials: vec![serial] };
        // Joins every piece that overlaps the new one; neighbours stay, the head joins them.
        while let Some((&at, old)) = self.dirty.range(..end).next_back() {
            if at + old.len <= start {
                break;
            }
            if let Some(old) = self.dirty.remove(&at) {
                self.used -= old.len;
                (start, end) = (start.min(at), end.max(at + old.len));
                piece.serials.extend(old.serials);
            }
        }
        piece.len = end - start;
        self.used = self.used - write.len + piece.len;
        self.dirty.insert(start, piece);
    }
    fn holds(&self, offset: u64, len: u64) -> bool {
        self.dirty.range(..=offset).next_back().is_some_and(|(at, piece)| at + piece.len >= offset + len)
    }
    fn destaged(&mut self, now: Nanos, len: u64, serials: &[u64], done: &mut Finishing) {
        self.used -= len;
        for serial in serials {
            self.unsettled.remove(serial);
        }
        self.flushed(now, done);
        self.admit(now);
    }
    /// Begins the next flush, if one waits and none is at work.
    fn list(&mut self, now: Nanos) {
        if self.flushing == Flushing::No && !self.flushes.is_empty() {
            self.flushing = Flushing::Listing;
            self.at(now + self.model.lead, Event::Listed);
        }
    }
    /// Ends the flush at work, if its list is on the platter, and those that it served with it.
    fn flushed(&mut self, now: Nanos, done: &mut Finishing) {
        let Flushing::Listed(bound) = self.flushing else { return };
        if self.unsettled.first().is_some_and(|&first| first < bound) {
            return;
        }
        while let Some(flush) = self.flushes.pop_front_if(|flush| flush.owes <= bound) {
            done.push(now, flush.op);
        }
        self.flushing = Flushing::No;
        self.list(now);
    }

    // --- head ---

    fn positioning(&self, now: Nanos, known: Nanos, offset: u64, late: Nanos) -> Nanos {
        let ready = now.max(known + self.model.lead);
        ready.since(now) + self.model.positioning(self.size, ready, self.head, offset, late)
    }
    /// How much longer a seek takes than its distance says.
    fn late(&mut self) -> Nanos {
        Nanos(self.rng.below(self.model.settle.0 + 1))
    }
    fn cost(&self, now: Nanos, request: &Request, late: Nanos) -> Nanos {
        let media = self.model.media(self.size, request.offset, request.len);
        if request.read
            && let Some((end, at)) = self.read_end
            && request.offset == end
            && self.model.read_ahead > 0
        {
            // The disk has read on since; no further than the buffer goes.
            let ahead = now.since(at).min(self.model.media(self.size, end, self.model.read_ahead));
            return media.since(ahead).max(transfer(request.len, self.model.link));
        }
        self.positioning(now, request.arrived, request.offset, late) + media
    }
    fn start(&mut self, now: Nanos) {
        let listed = matches!(self.flushing, Flushing::Listed(_));
        let full = !self.waiting.is_empty() || self.used > self.model.write_cache / 2;
        let urgent = listed || full;
        let destage = !self.dirty.is_empty() && (self.queue.is_empty() || (urgent && !self.destaged_last));
        self.destaged_last = destage && self.start_destage(now, full);
        if self.destaged_last {
            return;
        }
        let overdue = self.queue.front().is_some_and(|oldest| now.since(oldest.arrived) > self.model.patience)
            && self.since_overdue >= OVERDUE_EVERY - 1;
        let window = self.queue.iter().take(self.model.queue.max(1)).enumerate();
        let best = if overdue {
            Some(0)
        } else {
            window.min_by_key(|(at, request)| (self.cost(now, request, Nanos(0)), *at)).map(|(at, _)| at)
        };
        let Some(request) = best.and_then(|at| self.queue.remove(at)) else { return };
        self.since_overdue = if overdue { 0 } else { self.since_overdue.saturating_add(1) };
        let late = self.late();
        let until = now + self.cost(now, &request, late);
        self.head = request.offset + request.len;
        self.read_end = request.read.then_some((self.head, until));
        self.busy = Some((until, Work::Serve(request.op)));
    }
    /// Begins to write what is on the list of the flush at work; without one, what is old enough,
    /// or if the cache is `full`, anything. False if there is nothing.
    fn start_destage(&mut self, now: Nanos, full: bool) -> bool {
        let bound = if let Flushing::Listed(bound) = self.flushing { Some(bound) } else { None };
        let due = |piece: &Piece| match bound {
            Some(bound) => piece.serials.iter().any(|&s| s < bound),
            None => full || piece.known + DESTAGE_AGE <= now,
        };
        let ahead = self.dirty.range(self.head..).chain(self.dirty.range(..self.head));
        let ahead = ahead.filter(|(_, piece)| due(piece)).take(DESTAGE_CHOICE);
        // Firmware knows what is on a list.
        let known = |piece: &Piece| if bound.is_some() { Nanos(0) } else { piece.known };
        let cost = |(&offset, piece): (&u64, &Piece)| (self.positioning(now, known(piece), offset, Nanos(0)), offset);
        let Some((_, offset)) = ahead.map(cost).min() else {
            self.look_later();
            return false;
        };
        let known = self.dirty.get(&offset).map_or(now, known);
        let late = self.late();
        let begin = now + self.positioning(now, known, offset, late);
        let (mut len, mut serials) = (0, Vec::new());
        while len < DESTAGE_MAX {
            let until = begin + self.model.media(self.size, offset, len);
            let Some(mut piece) = self.dirty.remove(&(offset + len)) else { break };
            let part = piece.len.min(DESTAGE_MAX - len);
            let follows = match bound {
                Some(_) => due(&piece),
                None => piece.known + self.model.lead <= until,
            };
            if len > 0 && !follows {
                self.dirty.insert(offset + len, piece);
                break;
            }
            len += part;
            if part < piece.len {
                piece.len -= part;
                self.dirty.insert(offset + len, piece);
                break;
            }
            serials.append(&mut piece.serials);
        }
        let until = begin + self.model.media(self.size, offset, len);
        self.head = offset + len;
        self.read_end = None;
        self.busy = Some((until, Work::Destage(len, serials)));
        true
    }
    /// Has the cache looked at again when its oldest bytes are old enough.
    fn look_later(&mut self) {
        let oldest = self.dirty.values().map(|piece| piece.known).min();
        if let Some(known) = oldest.filter(|_| !self.aging) {
            self.aging = true;
            self.at(known + DESTAGE_AGE, Event::Aged);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::model::{HostLatency, Model, Timing};
    use super::*;

    const GIB: u64 = 1 << 30;

    #[test]
    fn tracks_follow_one_another_without_a_lost_turn() {
        let m = HddModel::enterprise_10k();
        let track = m.place(600 * GIB, 0).track_len;
        // (head free at the end of `from`, next byte, positioning): going on costs nothing; the
        // place just written comes again after a turn; a byte skipped costs its time.
        let end = m.media(600 * GIB, 0, track / 2);
        for (offset, want) in [(track / 2, 0), (track, m.turn().0 / 2 + m.switch.0), (track / 2 - 4096, 5_977_000)] {
            let got = m.positioning(600 * GIB, end, track / 2, offset, Nanos(0)).0;
            assert!(got.abs_diff(want) < 20_000, "{offset}: {got} for {want}");
        }
        // 100 tracks at the rate of the data sheet.
        let took = m.media(600 * GIB, 0, 100 * track).as_secs_f64();
        let rate = 100.0 * track as f64 / took;
        assert!((rate / 168e6 - 1.0).abs() < 0.01, "{rate}");
    }

    #[test]
    fn a_late_head_loses_a_turn() {
        let m = HddModel::enterprise_10k();
        let far = 300 * GIB;
        let on_time = m.positioning(600 * GIB, Nanos(0), 0, far, Nanos(0));
        let seek = m.seek(600 * GIB, 0, far);
        let slack = on_time - seek;
        let late = m.positioning(600 * GIB, Nanos(0), 0, far, slack + Nanos(10_000));
        assert!((late - on_time).0.abs_diff(m.turn().0) < 20_000, "{} after {}", late.0, on_time.0);
        assert_eq!(m.positioning(600 * GIB, Nanos(0), 0, far, slack), on_time);
    }

    #[test]
    fn seeks_grow_with_distance() {
        let m = HddModel::enterprise_10k();
        let track = m.place(600 * GIB, 0).track_len;
        let of = |to| m.seek(600 * GIB, 0, to).0;
        assert_eq!((of(track - 1), of(track)), (0, m.switch.0));
        assert!(of(HEADS * track) >= m.seek_min.0 && of(HEADS * track) < m.seek_min.0 * 2);
        assert!(of(200 * GIB) > 4_000_000 && of(200 * GIB) < of(599 * GIB));
    }

    #[test]
    fn a_flush_waits_only_for_writes_that_completed_before_it() {
        let model = HddModel::enterprise_10k();
        let turn = model.turn();
        let mut disk = Timing::new(&Model::Hdd(model), 600 * GIB, HostLatency::default(), Rng::new(1));
        // When the operation completes.
        let until = |disk: &mut Timing, op: u64| {
            loop {
                let now = disk.next().unwrap();
                disk.advance(now);
                while let Some(done) = disk.pop(now) {
                    if done == op {
                        return now;
                    }
                }
            }
        };
        let write = |op, offset, len| Shape { op, kind: OpKind::Write, offset, len };
        disk.submit(Nanos(0), write(1, 0, 8192));
        let now = until(&mut disk, 1);
        disk.submit(now, Shape { op: 2, kind: OpKind::Flush, offset: 0, len: 0 });
        // 32 MiB elsewhere, which take some 200 ms on the media.
        for n in 0..32 {
            disk.submit(now, write(3 + n, 300 * GIB + n * (2 << 20), 1 << 20));
        }
        let flushed = until(&mut disk, 2);
        assert!(flushed - now < Nanos(3 * turn.0), "{:?}", flushed - now);
        disk.submit(flushed, Shape { op: 99, kind: OpKind::Flush, offset: 0, len: 0 });
        let all = until(&mut disk, 99);
        assert!(all - now > Nanos::from_ms(20), "the later flush has them to wait for: {:?}", all - now);
    }
}
