//! Faults that a test puts into a disk.

use std::ops::Range;

/// Kinds of operations.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OpKind {
    /// A read.
    Read,
    /// A write.
    Write,
    /// A flush.
    Flush,
    /// A discard.
    Discard,
}

/// Something wrong with a disk.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Fault {
    /// The operation after `skip` more of the kind (of any kind if `None`) fails with an I/O error,
    /// once.
    FailOne {
        /// Which kind counts.
        kind: Option<OpKind>,
        /// How many of them succeed first.
        skip: u64,
    },
    /// Every operation of the kind (of any kind if `None`) that touches the byte range fails with
    /// an I/O error.
    FailRange {
        /// Which kind fails. Flushes touch nothing.
        kind: Option<OpKind>,
        /// Where.
        range: Range<u64>,
    },
    /// So many of a thousand operations of the kind fail with an I/O error, drawn from the disk's
    /// seed.
    FailSome {
        /// Which kind fails.
        kind: Option<OpKind>,
        /// Failures in a thousand.
        per_mille: u64,
    },
    /// The write after `skip` more succeeds but never reaches the medium, once.
    LoseOne {
        /// How many writes are stored first.
        skip: u64,
    },
    /// So many of a thousand writes succeed but never reach the medium, drawn from the disk's seed.
    LoseSome {
        /// Lost writes in a thousand.
        per_mille: u64,
    },
    /// Reads of the range succeed with other bytes than are stored.
    FlipOnRead {
        /// Where.
        range: Range<u64>,
    },
    /// Flushes succeed and do nothing: a disk that ignores flushes. A test that passes with this
    /// proves nothing.
    LyingFlush,
    /// Everything that is submitted fails with an I/O error and leaves no trace: the disk was
    /// pulled out.
    Offline,
}

/// Names a fault in order to take it away again.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct FaultId(pub(crate) u64);

/// The outcome of one operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Fate {
    pub(crate) fail: bool,
    pub(crate) lose: bool,
    pub(crate) lie: bool,
}

#[derive(Default)]
pub(crate) struct Faults {
    list: Vec<(FaultId, Fault)>,
    next: u64,
}

fn touches(range: &Range<u64>, offset: u64, len: u64) -> bool {
    range.start < offset + len && offset < range.end
}

impl Faults {
    pub(crate) fn add(&mut self, fault: Fault) -> FaultId {
        self.next += 1;
        self.list.push((FaultId(self.next), fault));
        FaultId(self.next)
    }
    pub(crate) fn remove(&mut self, id: FaultId) {
        self.list.retain(|(each, _)| *each != id);
    }
    pub(crate) fn clear(&mut self) {
        self.list.clear();
    }
    /// Decides about an operation; faults that strike once are used up.
    pub(crate) fn decide(&mut self, op: OpKind, offset: u64, len: u64, mut chance: impl FnMut() -> u64) -> Fate {
        let mut fate = Fate::default();
        let is = |kind: &Option<OpKind>| kind.is_none_or(|kind| kind == op);
        self.list.retain_mut(|(_, fault)| match fault {
            Fault::FailOne { kind, skip } if is(kind) => {
                fate.fail |= *skip == 0;
                let keep = *skip > 0;
                *skip = skip.saturating_sub(1);
                keep
            }
            Fault::LoseOne { skip } if op == OpKind::Write => {
                fate.lose |= *skip == 0;
                let keep = *skip > 0;
                *skip = skip.saturating_sub(1);
                keep
            }
            Fault::LoseSome { per_mille } if op == OpKind::Write => {
                fate.lose |= chance() % 1000 < *per_mille;
                true
            }
            Fault::FailRange { kind, range } if is(kind) && len > 0 => {
                fate.fail |= touches(range, offset, len);
                true
            }
            Fault::FailSome { kind, per_mille } if is(kind) => {
                fate.fail |= chance() % 1000 < *per_mille;
                true
            }
            Fault::LyingFlush => {
                fate.lie = true;
                true
            }
            Fault::Offline => {
                // A missing device does not write even a part.
                (fate.fail, fate.lose) = (true, true);
                true
            }
            _ => true,
        });
        fate
    }
    /// Corrupts the result of a read of `offset`.
    pub(crate) fn spoil(&self, offset: u64, out: &mut [u8]) {
        for (_, fault) in &self.list {
            let Fault::FlipOnRead { range } = fault else { continue };
            let end = offset + out.len() as u64;
            for at in range.start.max(offset)..range.end.min(end) {
                out[(at - offset) as usize] ^= 0xff;
            }
        }
    }
}
