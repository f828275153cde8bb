//! Answers on their way to a client.
//!
//! Answers wait in a queue with their permits, which bound what a connection holds. They are sent
//! many at a time, straight from the blocks of the cache, as far as the socket takes them; the rest
//! is sent when it takes bytes again. Whoever sends goes on where the last one stopped.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::os::fd::BorrowedFd;

use bdev::Bytes;
use nbd::Head;
use rt::sync::Permit;

/// Most slices of one call; the kernel takes 1024.
const SLICES_MAX: usize = 512;
/// About the most bytes of one call, so that the engine's thread does other things in between.
pub(super) const SEND_MAX: usize = 256 << 10;

/// What comes first in an answer.
pub(super) enum Front {
    /// A reply without a text.
    Head(Head),
    /// Anything else.
    Text(Vec<u8>),
}

impl Front {
    fn as_slice(&self) -> &[u8] {
        match self {
            Front::Head(head) => head.as_slice(),
            Front::Text(text) => text,
        }
    }
}

/// What a request holds until its answer has left: its place, and its bytes.
pub(super) struct Permits {
    pub(super) _place: Permit,
    pub(super) bytes: Permit,
}

/// An answer.
pub(super) struct Answer {
    pub(super) front: Front,
    pub(super) data: Vec<Bytes>,
    pub(super) _permits: Permits,
}

impl Answer {
    fn parts(&self) -> impl Iterator<Item = &[u8]> {
        std::iter::once(self.front.as_slice()).chain(self.data.iter().map(|d| &d[..]))
    }
    fn len(&self) -> usize {
        self.parts().map(<[u8]>::len).sum()
    }
}

/// The result of sending.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Sent {
    /// Nothing is left.
    All,
    /// There is more, and the socket may take it.
    Some,
    /// The socket takes nothing now.
    Full,
}

/// The answers that have not left.
#[derive(Default)]
pub(super) struct Outbox {
    queue: VecDeque<Answer>,
    /// Bytes of the first answer that have left.
    gone: usize,
    /// Nobody will read any more.
    broken: bool,
}

impl Outbox {
    /// Whether nobody will read any more.
    pub(super) fn is_broken(&self) -> bool {
        self.broken
    }

    /// Adds an answer; it is dropped if nobody will read it.
    pub(super) fn push(&mut self, answer: Answer) {
        if !self.broken {
            self.queue.push_back(answer);
        }
    }

    /// Bytes that the next call would send at most.
    pub(super) fn next_bytes(&self) -> usize {
        let mut sum = 0;
        for answer in &self.queue {
            sum += answer.len();
            if sum >= SEND_MAX {
                return SEND_MAX;
            }
        }
        sum
    }

    /// Sends once. Answers that have left are given to the caller to be dropped: that wakes others.
    pub(super) fn send(&mut self, fd: BorrowedFd<'_>, done: &mut Vec<Answer>) -> Sent {
        if self.queue.is_empty() {
            return Sent::All;
        }
        let sent = host::send_now(fd, &gather(&self.queue, self.gone));
        match sent {
            Ok(n) => {
                self.take(n, done);
                if self.queue.is_empty() { Sent::All } else { Sent::Some }
            }
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => Sent::Full,
            Err(_) => {
                self.broken = true;
                done.extend(self.queue.drain(..));
                Sent::All
            }
        }
    }

    /// `n` bytes have left.
    fn take(&mut self, n: usize, done: &mut Vec<Answer>) {
        self.gone += n;
        while let Some(first) = self.queue.front() {
            let len = first.len();
            if self.gone < len {
                return;
            }
            self.gone -= len;
            done.extend(self.queue.pop_front());
        }
    }
}

/// The first bytes behind `gone` of them.
fn gather(queue: &VecDeque<Answer>, gone: usize) -> Vec<IoSlice<'_>> {
    let (mut skip, mut sum) = (gone, 0);
    let mut out = Vec::new();
    for part in queue.iter().flat_map(Answer::parts) {
        let rest = part.get(skip..).unwrap_or_default();
        skip = skip.saturating_sub(part.len());
        if rest.is_empty() {
            continue;
        }
        let rest = &rest[..rest.len().min(SEND_MAX - sum)];
        out.push(IoSlice::new(rest));
        sum += rest.len();
        if out.len() == SLICES_MAX || sum == SEND_MAX {
            break;
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use rt::sync::Semaphore;

    use super::*;

    fn permits(all: &Semaphore) -> Permits {
        Permits { _place: all.try_acquire(1).unwrap(), bytes: all.try_acquire(0).unwrap() }
    }

    fn answer(all: &Semaphore, front: &[u8], data: &[&[u8]]) -> Answer {
        let data = data.iter().map(|d| Bytes::copy_from(d)).collect();
        Answer { front: Front::Text(front.to_vec()), data, _permits: permits(all) }
    }

    fn joined(slices: &[IoSlice<'_>]) -> Vec<u8> {
        slices.iter().flat_map(|s| s.to_vec()).collect()
    }

    #[test]
    fn any_cut_sends_every_byte_once() {
        let all = Semaphore::new(10);
        for step in 1..20 {
            let mut outbox = Outbox::default();
            outbox.push(answer(&all, b"ab", &[b"cde", b"", b"f"]));
            outbox.push(answer(&all, b"", &[b"gh"]));
            outbox.push(answer(&all, b"ijklmnop", &[]));
            let (mut sent, mut done) = (Vec::new(), Vec::new());
            while !outbox.queue.is_empty() {
                let mut next = joined(&gather(&outbox.queue, outbox.gone));
                next.truncate(step);
                sent.extend_from_slice(&next);
                outbox.take(next.len(), &mut done);
            }
            assert_eq!((&sent[..], done.len()), (&b"abcdefghijklmnop"[..], 3), "{step}");
            drop(done);
            assert_eq!(all.available(), 10);
        }
    }

    #[test]
    fn calls_are_bounded() {
        let all = Semaphore::new(1000);
        let mut outbox = Outbox::default();
        outbox.push(Answer {
            front: Front::Text(vec![1; 16]),
            data: vec![Bytes::zeroed(SEND_MAX), Bytes::zeroed(9)],
            _permits: permits(&all),
        });
        let slices = gather(&outbox.queue, 0);
        assert_eq!((slices.len(), slices.iter().map(|s| s.len()).sum::<usize>()), (2, SEND_MAX));
        assert_eq!(outbox.next_bytes(), SEND_MAX);
        let mut outbox = Outbox::default();
        (0..900).for_each(|_| outbox.push(answer(&all, b"x", &[])));
        assert_eq!((gather(&outbox.queue, 0).len(), outbox.next_bytes()), (SLICES_MAX, 900));
    }
}
