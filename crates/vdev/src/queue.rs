//! The queue of a leaf: operations by class and by offset, adjacent ones aggregated when issued.
//!
//! Every waiting operation is in two orders: its class's (arrival, or half-second bucket and
//! offset) and by offset among operations of the same direction. [`Queue::next`] lets the policy
//! choose a class, takes that class's first operation and aggregates it in both directions along
//! the offsets, across classes, up to the aggregation limit. The leaf submits a [`Batch`] as one
//! device operation and reports its completion with [`Queue::completed`].
//!
//! Overlaps: waiting and active writes are disjoint among themselves and from waiting and active
//! reads. An operation that would break this is held, in order of arrival, until it does not.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use base::Nanos;
use bdev::MAX_SEGMENTS;

use crate::policy::{CLASSES, Cause, Prio, QueueState, QueueTunables, Scheduler, deadline, deadline_room};

/// One operation; `payload` is the leaf's.
#[derive(Debug)]
pub(crate) struct Item<P> {
    pub offset: u64,
    pub len: u64,
    pub write: bool,
    pub prio: Prio,
    /// When it entered the queue.
    pub since: Nanos,
    /// Whether it may be aggregated.
    pub aggregate: bool,
    /// Its segments in a device operation.
    pub segments: usize,
    pub payload: P,
}

impl<P> Item<P> {
    fn end(&self) -> u64 {
        self.offset + self.len
    }
}

/// Operations issued to the device as one.
#[derive(Debug)]
pub(crate) struct Batch<P> {
    pub prio: Prio,
    pub write: bool,
    pub offset: u64,
    /// From the first member's start to the last one's end.
    pub len: u64,
    /// By offset, disjoint; reads may have gaps between them.
    pub items: Vec<Item<P>>,
}

/// Width of the time buckets of offset-ordered classes, as a shift of nanoseconds: 0.54 s.
const BUCKET_SHIFT: u32 = 29;

/// An operation's place in its class: bucket or arrival, offset, unique number with the direction
/// in the lowest bit.
type OrderKey = (u64, u64, u64);

type ByOffset<P> = BTreeMap<(u64, u64), (OrderKey, Item<P>)>;

pub(crate) struct Queue<P> {
    pub state: QueueState,
    /// Waiting operations by direction (0 reads, 1 writes), by offset and unique number.
    by_offset: [ByOffset<P>; 2],
    order: [BTreeSet<OrderKey>; CLASSES],
    /// Writes at the device: start to end, disjoint.
    writing: BTreeMap<u64, u64>,
    /// Reads at the device: start and end; few.
    reading: Vec<(u64, u64)>,
    /// The longest read so far: bounds how far before a write an overlapping read can start.
    longest_read: u64,
    held: VecDeque<Item<P>>,
    seq: u64,
    last_offset: u64,
    /// Scheduler and time shift that order new operations.
    order_by: (Scheduler, u32),
}

impl<P> Queue<P> {
    pub fn new() -> Queue<P> {
        Queue {
            // Round-robin begins with the first class.
            state: QueueState { last_class: CLASSES - 1, ..QueueState::default() },
            by_offset: [BTreeMap::new(), BTreeMap::new()],
            order: [const { BTreeSet::new() }; CLASSES],
            writing: BTreeMap::new(),
            reading: Vec::new(),
            longest_read: 0,
            held: VecDeque::new(),
            seq: 0,
            last_offset: 0,
            order_by: (Scheduler::Auto, BUCKET_SHIFT),
        }
    }

    /// Queues an operation. Its length is not 0.
    pub fn push(&mut self, item: Item<P>) {
        self.state.queued[item.prio.index()] += 1;
        if must_wait(&self.held, &item) || self.overlaps(&item) {
            self.held.push_back(item);
        } else {
            self.enter(item);
        }
    }

    /// Whether a waiting or active write overlaps a range. Writes are disjoint, so only the last
    /// one that starts below the end can.
    fn overlaps_write(&self, start: u64, end: u64) -> bool {
        let active = self.writing.range(..end).next_back();
        let waiting = self.by_offset[1].range(..(end, 0)).next_back();
        active.is_some_and(|(_, &e)| e > start) || waiting.is_some_and(|(_, (_, w))| w.end() > start)
    }

    /// Whether a waiting or active operation overlaps `item`, one of the two a write.
    fn overlaps(&self, item: &Item<P>) -> bool {
        let near = (item.offset.saturating_sub(self.longest_read), 0)..(item.end(), 0);
        self.overlaps_write(item.offset, item.end())
            || item.write
                && (self.reading.iter().any(|&(start, end)| overlap(start, end, item))
                    || self.by_offset[0].range(near).any(|(_, (_, r))| r.end() > item.offset))
    }

    /// Whether a read may span the gap from `start` to `end`: no write overlaps it.
    fn may_bridge(&self, start: u64, end: u64, gap: u64) -> bool {
        start == end || end - start <= gap && !self.overlaps_write(start, end)
    }

    fn enter(&mut self, item: Item<P>) {
        self.seq += 2;
        let seq = self.seq | u64::from(item.write);
        let major = match self.order_by {
            (Scheduler::Off, _) => seq,
            (Scheduler::Deadline, shift) => deadline(item.since.0, item.prio, shift),
            _ if item.prio.is_fifo() => seq,
            _ => item.since.0 >> BUCKET_SHIFT,
        };
        let key = (major, item.offset, seq);
        if !item.write {
            self.longest_read = self.longest_read.max(item.len);
        }
        self.order[item.prio.index()].insert(key);
        self.by_offset[usize::from(item.write)].insert((item.offset, seq), (key, item));
    }

    fn take(&mut self, write: bool, key: (u64, u64)) -> Item<P> {
        let (order, item) =
            self.by_offset[usize::from(write)].remove(&key).expect("both orders hold the same operations");
        self.order[item.prio.index()].remove(&order);
        self.state.queued[item.prio.index()] -= 1;
        item
    }

    /// The first operation of a class: in offset-ordered classes, the next after the last issued
    /// offset within the oldest bucket.
    fn first_of(&self, prio: Prio) -> Option<OrderKey> {
        let set = &self.order[prio.index()];
        let first = *set.first()?;
        if prio.is_fifo() {
            return Some(first);
        }
        let ahead = set.range((first.0, self.last_offset, 0)..=(first.0, u64::MAX, u64::MAX)).next();
        Some(ahead.copied().unwrap_or(first))
    }

    /// Sets the scheduler for operations queued from now on; waiting ones keep their place.
    pub fn order_by(&mut self, t: &QueueTunables) {
        self.order_by = (t.scheduler, t.time_shift);
    }

    /// The first of all classes: by arrival without a scheduler, else by deadline and offset.
    fn first_of_all(&self, by_arrival: bool) -> Option<(Prio, OrderKey)> {
        let firsts = Prio::ALL.into_iter().filter_map(|p| Some((p, *self.order[p.index()].first()?)));
        firsts.min_by_key(|(_, key)| if by_arrival { (key.2, 0, 0) } else { *key })
    }

    /// Limit on the operations to issue now because of `cause`; `u32::MAX` if the classes decide.
    pub fn room(&self, t: &QueueTunables, cause: Cause) -> u32 {
        match t.scheduler {
            Scheduler::Deadline => deadline_room(cause, self.state.total_active(), t),
            _ => u32::MAX,
        }
    }

    /// The next batch to issue, if any may be. It counts as in flight from here on.
    pub fn next(&mut self, t: &QueueTunables, limit: u64, dirty_percent: u32) -> Option<Batch<P>> {
        if let Scheduler::Off | Scheduler::Deadline = t.scheduler {
            let off = t.scheduler == Scheduler::Off;
            let (prio, key) = self.first_of_all(off)?;
            return Some(self.issue(prio, key, t, if off { 0 } else { limit }));
        }
        // A class whose operations are all held counts as queued but has none to issue: retry
        // without it.
        let mut asked = self.state.clone();
        let (prio, key) = loop {
            let prio = asked.next_class(t, dirty_percent)?;
            match self.first_of(prio) {
                Some(key) => break (prio, key),
                None => asked.queued[prio.index()] = 0,
            }
        };
        Some(self.issue(prio, key, t, limit))
    }

    fn issue(&mut self, prio: Prio, (_, offset, seq): OrderKey, t: &QueueTunables, limit: u64) -> Batch<P> {
        let lead = self.take(seq & 1 == 1, (offset, seq));
        let limit = self.state.aggregation_limit(prio, limit, t);
        let batch = self.aggregate(prio, lead, t, limit);
        self.state.issued(prio);
        self.last_offset = batch.offset + batch.len;
        if batch.write {
            self.writing.insert(batch.offset, batch.offset + batch.len);
        } else {
            self.reading.push((batch.offset, batch.offset + batch.len));
        }
        batch
    }

    fn aggregate(&mut self, prio: Prio, lead: Item<P>, t: &QueueTunables, limit: u64) -> Batch<P> {
        let write = lead.write;
        let gap = if write { 0 } else { t.read_gap };
        let (mut start, mut end, mut segments, aggregates) = (lead.offset, lead.end(), lead.segments, lead.aggregate);
        let mut before = Vec::new();
        let mut items = vec![lead];
        if aggregates {
            // Keep one segment for the filler of a gap.
            while let Some((&key, (_, item))) = self.by_offset[usize::from(write)].range(..(start, 0)).next_back() {
                let fits = item.aggregate && end - item.offset <= limit && segments + item.segments < MAX_SEGMENTS;
                if item.end() > start || !self.may_bridge(item.end(), start, gap) || !fits {
                    break;
                }
                segments += item.segments + usize::from(item.end() != start);
                start = item.offset;
                before.push(self.take(write, key));
            }
            before.reverse();
            before.append(&mut items);
            items = before;
            while let Some((&key, (_, item))) = self.by_offset[usize::from(write)].range((end, 0)..).next() {
                let fits = item.aggregate && item.end() - start <= limit && segments + item.segments < MAX_SEGMENTS;
                if !self.may_bridge(end, item.offset, gap) || !fits {
                    break;
                }
                segments += item.segments + usize::from(item.offset != end);
                end = item.end();
                let item = self.take(write, key);
                items.push(item);
            }
        }
        Batch { prio, write, offset: start, len: end - start, items }
    }

    /// A batch of [`Queue::next`] completed; operations held only by it enter their class.
    pub fn completed(&mut self, prio: Prio, write: bool, offset: u64, len: u64, t: &QueueTunables) {
        self.state.completed(prio, t);
        if write {
            self.writing.remove(&offset);
        } else if let Some(i) = self.reading.iter().position(|&r| r == (offset, offset + len)) {
            self.reading.swap_remove(i);
        }
        if self.held.is_empty() {
            return;
        }
        let mut still = VecDeque::new();
        for item in std::mem::take(&mut self.held) {
            if must_wait(&still, &item) || self.overlaps(&item) {
                still.push_back(item);
            } else {
                self.enter(item);
            }
        }
        self.held = still;
    }
}

/// Whether `item` overlaps a held operation and must wait behind it.
fn must_wait<P>(held: &VecDeque<Item<P>>, item: &Item<P>) -> bool {
    held.iter().any(|h| (h.write || item.write) && overlap(h.offset, h.end(), item))
}

fn overlap<P>(start: u64, end: u64, item: &Item<P>) -> bool {
    start < item.end() && item.offset < end
}

#[cfg(test)]
mod tests {
    use super::*;

    const K: u64 = 1 << 10;

    fn item(id: u32, write: bool, prio: Prio, offset: u64, len: u64) -> Item<u32> {
        Item { offset, len, write, prio, since: Nanos(0), aggregate: true, segments: 1, payload: id }
    }

    fn ids(b: &Batch<u32>) -> Vec<u32> {
        b.items.iter().map(|i| i.payload).collect()
    }

    #[test]
    fn writes_merge_only_without_a_gap_and_up_to_the_limit() {
        let t = QueueTunables::default();
        let mut q = Queue::new();
        for i in 0..8 {
            q.push(item(i, true, Prio::AsyncWrite, u64::from(i) * 128 * K, 128 * K));
        }
        q.push(item(99, true, Prio::AsyncWrite, 8 * 128 * K + 4 * K, 4 * K));
        let b = q.next(&t, 512 * K, 0).expect("room");
        assert_eq!((b.offset, b.len, ids(&b)), (0, 512 * K, vec![0, 1, 2, 3]));
        let b = q.next(&t, 1 << 20, 0).expect("room");
        assert_eq!((b.offset, b.len, ids(&b)), (512 * K, 512 * K, vec![4, 5, 6, 7]));
        assert!(q.next(&t, 1 << 20, 0).is_none(), "two async writes while little is dirty");
        assert_eq!(ids(&q.next(&t, 1 << 20, 100).expect("ten while much is")), [99]);
    }

    #[test]
    fn reads_merge_over_small_gaps_and_across_classes() {
        let t = QueueTunables::default();
        let mut q = Queue::new();
        q.push(item(1, false, Prio::AsyncRead, 100 * K, 8 * K));
        q.push(item(2, false, Prio::SyncRead, 140 * K, 8 * K));
        q.push(item(3, false, Prio::AsyncRead, 180 * K + 1024, 8 * K));
        q.push(item(4, false, Prio::SyncRead, 144 * K, 8 * K));
        let b = q.next(&t, 1 << 20, 0).expect("room");
        assert_eq!((b.prio, b.offset, b.len, ids(&b)), (Prio::SyncRead, 100 * K, 48 * K, vec![1, 2]));
        let b = q.next(&t, 1 << 20, 0).expect("room");
        assert_eq!(ids(&b), [4, 3], "what overlaps is not gathered with the first, but with the next");
        assert_eq!(q.state.queued, [0; CLASSES]);
    }

    #[test]
    fn offset_order_resumes_and_arrival_order_does_not_sort() {
        let t = QueueTunables::default();
        let mut q = Queue::new();
        for (i, o) in [(0, 50), (1, 10), (2, 70), (3, 30)] {
            q.push(item(i, true, Prio::AsyncWrite, o << 20, K));
        }
        let mut order = Vec::new();
        let mut late = Some(item(4, true, Prio::AsyncWrite, 5 << 20, K));
        while let Some(b) = q.next(&t, 1 << 20, 100) {
            order.extend(ids(&b));
            if order.len() == 2 {
                late.take().into_iter().for_each(|i| q.push(i));
            }
        }
        assert_eq!(order, [1, 3, 0, 2, 4]);
        let mut q = Queue::new();
        for (i, o) in [(0, 50), (1, 10), (2, 70)] {
            q.push(item(i, true, Prio::SyncWrite, o << 20, K));
        }
        let order: Vec<u32> = std::iter::from_fn(|| q.next(&t, 1 << 20, 0)).flat_map(|b| ids(&b)).collect();
        assert_eq!(order, [0, 1, 2]);
        // An older bucket goes first, at any offset.
        let mut q = Queue::new();
        q.push(Item { since: Nanos(2 << BUCKET_SHIFT), ..item(0, true, Prio::AsyncWrite, 0, K) });
        q.push(Item { since: Nanos(1 << BUCKET_SHIFT), ..item(1, true, Prio::AsyncWrite, 9 << 20, K) });
        assert_eq!(ids(&q.next(&t, 1 << 20, 0).expect("room")), [1]);
    }

    #[test]
    fn what_overlaps_a_write_waits_for_it_in_order() {
        let t = QueueTunables::default();
        let mut q = Queue::new();
        q.push(item(0, true, Prio::AsyncWrite, 0, 8 * K));
        q.push(item(1, true, Prio::AsyncWrite, 4 * K, 8 * K));
        q.push(item(2, false, Prio::SyncRead, 4 * K, K));
        q.push(item(3, true, Prio::SyncWrite, 11 * K, K));
        q.push(item(4, false, Prio::SyncRead, 20 * K, K));
        assert_eq!(ids(&q.next(&t, 1 << 20, 0).expect("the read apart")), [4]);
        assert_eq!(ids(&q.next(&t, 1 << 20, 0).expect("the first write")), [0]);
        assert!(q.next(&t, 1 << 20, 0).is_none());
        q.completed(Prio::AsyncWrite, true, 0, 8 * K, &t);
        assert_eq!(ids(&q.next(&t, 1 << 20, 0).expect("the second write")), [1]);
        assert!(q.next(&t, 1 << 20, 0).is_none(), "the read came after it, and the last write overlaps it");
        q.completed(Prio::AsyncWrite, true, 4 * K, 8 * K, &t);
        let rest: Vec<u32> = std::iter::from_fn(|| q.next(&t, 1 << 20, 0)).flat_map(|b| ids(&b)).collect();
        assert_eq!(rest.len(), 2);
        assert!(rest.contains(&2) && rest.contains(&3));
        // A write waits for reads, too, waiting or active.
        q.push(item(5, true, Prio::SyncWrite, 20 * K, K));
        assert!(q.next(&t, 1 << 20, 0).is_none());
        q.completed(Prio::SyncRead, false, 20 * K, K, &t);
        assert_eq!(ids(&q.next(&t, 1 << 20, 0).expect("nobody reads there now")), [5]);
        assert_eq!(q.state.queued, [0; CLASSES]);
    }

    #[test]
    fn without_a_scheduler_all_goes_at_once_in_the_order_of_arrival() {
        let t = QueueTunables { scheduler: Scheduler::Off, ..QueueTunables::default() };
        let mut q = Queue::new();
        q.order_by(&t);
        for (i, prio) in [Prio::Scrub, Prio::AsyncWrite, Prio::SyncRead, Prio::AsyncWrite].into_iter().enumerate() {
            q.push(item(i as u32, prio == Prio::AsyncWrite, prio, (9 - i as u64) * 8 * K, 8 * K));
        }
        let order: Vec<Vec<u32>> = std::iter::from_fn(|| q.next(&t, 1 << 20, 0)).map(|b| ids(&b)).collect();
        assert_eq!(order, [[0], [1], [2], [3]]);
    }

    #[test]
    fn deadlines_order_across_classes_and_offsets() {
        let t = QueueTunables { scheduler: Scheduler::Deadline, time_shift: 6, ..QueueTunables::default() };
        let mut q = Queue::new();
        q.order_by(&t);
        let at = |i: u32, prio, ns: u64, offset: u64| Item { since: Nanos(ns), ..item(i, true, prio, offset << 20, K) };
        q.push(at(0, Prio::AsyncWrite, 64, 5)); // deadline 5
        q.push(at(1, Prio::SyncWrite, 64 * 4, 9)); // 4
        q.push(at(2, Prio::SyncWrite, 64 * 5, 1)); // 5, before the first by offset
        q.push(at(3, Prio::Scrub, 0, 3)); // 20
        let mut order = Vec::new();
        assert_eq!(q.room(&t, Cause::Arrival), 4);
        for _ in 0..q.room(&t, Cause::Arrival) {
            order.extend(q.next(&t, 1 << 20, 0).iter().flat_map(ids));
        }
        assert_eq!((order, q.room(&t, Cause::Arrival)), (vec![1, 2, 0, 3], 0));
    }
}
