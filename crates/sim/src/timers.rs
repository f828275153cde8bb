//! Events to come, ordered by (deadline, order of arming): an indexed binary heap.
//!
//! Cancelling takes an event out for good, so the many time-outs that never fire leave nothing
//! behind to skip.

use rt::TimerId;

/// Bits of a timer id that name its slot; the rest is a serial number that makes ids unique.
const SLOT_BITS: u32 = 24;

struct Node {
    deadline: u64,
    seq: u64,
    slot: u32,
}

struct Slot<E> {
    seq: u64,
    /// Where the node stands in the heap.
    at: usize,
    event: Option<E>,
}

pub(crate) struct Timers<E> {
    heap: Vec<Node>,
    slots: Vec<Slot<E>>,
    free: Vec<u32>,
    next_seq: u64,
}

impl<E> Timers<E> {
    pub(crate) fn new() -> Timers<E> {
        Timers { heap: Vec::new(), slots: Vec::new(), free: Vec::new(), next_seq: 1 }
    }
    pub(crate) fn len(&self) -> usize {
        self.heap.len()
    }
    pub(crate) fn arm(&mut self, deadline: u64, event: E) -> TimerId {
        let seq = self.next_seq;
        self.next_seq += 1;
        let at = self.heap.len();
        let slot = match self.free.pop() {
            Some(slot) => slot,
            None => {
                let slot = self.slots.len() as u32;
                assert!(slot < 1 << SLOT_BITS, "too many timers are armed at once");
                self.slots.push(Slot { seq: 0, at: 0, event: None });
                slot
            }
        };
        self.slots[slot as usize] = Slot { seq, at, event: Some(event) };
        self.heap.push(Node { deadline, seq, slot });
        self.up(at);
        TimerId(seq << SLOT_BITS | u64::from(slot))
    }
    pub(crate) fn cancel(&mut self, id: TimerId) -> Option<E> {
        let slot = (id.0 & ((1 << SLOT_BITS) - 1)) as usize;
        let entry = self.slots.get(slot)?;
        if entry.seq != id.0 >> SLOT_BITS || entry.event.is_none() {
            return None;
        }
        let at = entry.at;
        self.remove(at).map(|(_, _, event)| event)
    }
    /// The next deadline.
    pub(crate) fn next(&self) -> Option<u64> {
        self.heap.first().map(|node| node.deadline)
    }
    /// Takes the next event out: its deadline, serial number and itself.
    pub(crate) fn pop(&mut self) -> Option<(u64, u64, E)> {
        self.remove(0)
    }
    fn remove(&mut self, at: usize) -> Option<(u64, u64, E)> {
        if at >= self.heap.len() {
            return None;
        }
        let node = self.heap.swap_remove(at);
        if at < self.heap.len() {
            self.place(at);
            self.up(at);
            self.down(at);
        }
        self.free.push(node.slot);
        let event = self.slots[node.slot as usize].event.take().expect("a node in the heap has its event");
        Some((node.deadline, node.seq, event))
    }
    fn before(&self, a: usize, b: usize) -> bool {
        let (a, b) = (&self.heap[a], &self.heap[b]);
        (a.deadline, a.seq) < (b.deadline, b.seq)
    }
    fn place(&mut self, at: usize) {
        let slot = self.heap[at].slot;
        self.slots[slot as usize].at = at;
    }
    fn up(&mut self, mut at: usize) {
        while at > 0 && self.before(at, (at - 1) / 2) {
            self.heap.swap(at, (at - 1) / 2);
            self.place(at);
            at = (at - 1) / 2;
        }
        self.place(at);
    }
    fn down(&mut self, mut at: usize) {
        loop {
            let mut least = at;
            for child in [2 * at + 1, 2 * at + 2] {
                if child < self.heap.len() && self.before(child, least) {
                    least = child;
                }
            }
            if least == at {
                break;
            }
            self.heap.swap(at, least);
            self.place(at);
            at = least;
        }
        self.place(at);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Rng;
    use std::collections::BTreeMap;

    #[test]
    fn behaves_like_a_sorted_map() {
        let mut rng = Rng::new(1);
        let mut timers = Timers::new();
        let mut model: BTreeMap<(u64, u64), TimerId> = BTreeMap::new();
        for n in 1..=20_000u64 {
            match rng.below(4) {
                0 | 1 => {
                    let deadline = rng.below(50);
                    let id = timers.arm(deadline, n);
                    model.insert((deadline, id.0 >> SLOT_BITS), id);
                }
                2 => {
                    let got = timers.pop().map(|(deadline, seq, _)| (deadline, seq));
                    assert_eq!(got, model.pop_first().map(|(key, _)| key));
                }
                _ if !model.is_empty() => {
                    let at = rng.below(model.len() as u64) as usize;
                    let key = *model.keys().nth(at).expect("within the map");
                    let id = model.remove(&key).expect("just found");
                    assert!(timers.cancel(id).is_some());
                    assert!(timers.cancel(id).is_none(), "an id is used once");
                }
                _ => {}
            }
            assert_eq!(timers.len(), model.len());
            assert_eq!(timers.next(), model.keys().next().map(|key| key.0));
        }
    }
}
