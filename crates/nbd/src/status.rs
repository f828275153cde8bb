//! Answers to block status: which stretches of a range are allocated.
//!
//! The normal path: [`Extents::new`] for the request, [`Extents::push`] for each stretch from the
//! first byte on until it says that this is enough, [`Extents::finish`] for the bytes to send.
//!
//! Rules (NBD protocol document, section "Structured reply types", `BLOCK_STATUS`): neighbours of
//! one state are joined, the answer does not go beyond the range, has at least one extent, one only
//! if the request says so, and at most [`EXTENTS_MAX`]. It may end before the range does; the
//! client asks again from there. A stretch of which nothing is known counts as data.

use crate::proto::{ALLOCATION_ID, EXTENTS_MAX, STATE_HOLE, STATE_ZERO, chunk};
use crate::reply::put_chunk;
use crate::request::Span;
use crate::wire::Put;

/// What is known of a stretch (NBD protocol document, section "`base:allocation` metadata
/// context").
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum State {
    /// Allocated, with any contents.
    Data,
    /// Allocated, and reads as zeros.
    Zeros,
    /// Not allocated, and reads as zeros: what trims and zeros leave behind.
    Hole,
}

impl State {
    fn bits(self) -> u32 {
        match self {
            State::Data => 0,
            State::Zeros => STATE_ZERO,
            State::Hole => STATE_HOLE | STATE_ZERO,
        }
    }
}

/// Collects the extents of one answer.
#[derive(Clone, Debug)]
pub struct Extents {
    /// Bytes of the range that are not described yet.
    left: u32,
    max: usize,
    list: Vec<(u32, State)>,
}

impl Extents {
    /// For a request about `span`; `one`: it wants the first extent only.
    pub fn new(span: Span, one: bool) -> Extents {
        Extents { left: span.length, max: if one { 1 } else { EXTENTS_MAX }, list: Vec::new() }
    }

    /// Adds the next `length` bytes. False: it is enough, and more changes nothing.
    pub fn push(&mut self, length: u64, state: State) -> bool {
        // No more than what is left, which is 32 bits.
        let n = length.min(u64::from(self.left)) as u32;
        if n == 0 {
            return self.left > 0;
        }
        let full = self.list.len() == self.max;
        match self.list.last_mut() {
            Some((sum, last)) if *last == state => *sum += n,
            _ if full => {
                self.left = 0;
                return false;
            }
            _ => self.list.push((n, state)),
        }
        self.left -= n;
        self.left > 0
    }

    /// The reply: one chunk, the last one.
    pub fn finish(mut self, cookie: u64) -> Vec<u8> {
        if self.list.is_empty() {
            self.list.push((self.left, State::Data));
        }
        let mut out = Vec::new();
        // The list is bounded.
        put_chunk(&mut out, chunk::BLOCK_STATUS, cookie, 4 + 8 * self.list.len() as u32, true);
        out.u32(ALLOCATION_ID);
        for (length, state) in &self.list {
            out.u32(*length);
            out.u32(state.bits());
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use State::{Data, Hole, Zeros};

    fn descriptors(reply: &[u8]) -> Vec<(u32, u32)> {
        assert_eq!(reply[4..8], [0, 1, 0, 5], "one chunk, the last");
        assert_eq!(reply[16..20], (reply.len() as u32 - 20).to_be_bytes());
        assert_eq!(reply[20..24], [0, 0, 0, 1]);
        let number = |b: &[u8]| u32::from_be_bytes(b.try_into().unwrap());
        reply[24..].chunks(8).map(|d| (number(&d[..4]), number(&d[4..]))).collect()
    }

    #[test]
    fn stretches_become_extents() {
        type Row<'a> = (u32, bool, &'a [(u64, State)], &'a [(u32, u32)]);
        let table: [Row; 8] = [
            (100, false, &[(100, Data)], &[(100, 0)]),
            (100, false, &[(10, Data), (20, Data), (30, Hole), (40, Zeros)], &[(30, 0), (30, 3), (40, 2)]),
            (100, false, &[(10, Hole), (1 << 40, Data)], &[(10, 3), (90, 0)]),
            (100, false, &[(10, Hole), (0, Data), (5, Hole)], &[(15, 3)]),
            (100, false, &[], &[(100, 0)]),
            (100, true, &[(10, Hole), (10, Hole), (80, Data)], &[(20, 3)]),
            (100, true, &[(500, Zeros)], &[(100, 2)]),
            (u32::MAX, false, &[(1 << 31, Hole), (1 << 40, Hole)], &[(u32::MAX, 3)]),
        ];
        for (length, one, stretches, want) in table {
            let mut extents = Extents::new(Span { offset: 4096, length }, one);
            for (n, state) in stretches {
                extents.push(*n, *state);
            }
            assert_eq!(descriptors(&extents.finish(8)), want, "{stretches:?}");
        }
    }

    #[test]
    fn enough_is_said_and_holds() {
        let mut extents = Extents::new(Span { offset: 0, length: u32::MAX }, false);
        let mut n = 0;
        while extents.push(512, if n % 2 == 0 { Data } else { Hole }) {
            n += 1;
        }
        assert_eq!(n, EXTENTS_MAX);
        assert!(!extents.push(512, Hole) && !extents.push(512, Data));
        assert_eq!(descriptors(&extents.finish(1)).len(), EXTENTS_MAX);
        let mut extents = Extents::new(Span { offset: 0, length: 10 }, false);
        assert!(extents.push(9, Data) && extents.push(0, Hole) && !extents.push(1, Data) && !extents.push(1, Data));
    }
}
