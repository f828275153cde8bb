//! The history of the last txgs, for statistics: a hundred (`zfs_txg_history`), and a few in any
//! case, which `weir top` shows.

use std::collections::VecDeque;

use base::{Nanos, Txg};

/// Default of `zfs_txg_history`.
pub(crate) const KEEP: usize = 100;
/// Txgs that are kept whatever that is.
pub(crate) const KEEP_MIN: usize = 12;

/// Where a txg is in its life.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum TxgState {
    /// Transactions join.
    Open,
    /// Closed; transactions that joined have not all ended.
    Quiescing,
    /// All ended; it waits for the sync before it to end.
    Quiesced,
    /// It is being written.
    Syncing,
    /// It is on disk.
    Committed,
}

/// Operations of devices and their bytes.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct TxgIo {
    /// Reads.
    pub reads: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Writes.
    pub writes: u64,
    /// Bytes written.
    pub write_bytes: u64,
}

impl TxgIo {
    /// What came after `earlier`; a device that was taken away leaves less than there was.
    pub(crate) fn since(&self, earlier: &TxgIo) -> TxgIo {
        TxgIo {
            reads: self.reads.saturating_sub(earlier.reads),
            read_bytes: self.read_bytes.saturating_sub(earlier.read_bytes),
            writes: self.writes.saturating_sub(earlier.writes),
            write_bytes: self.write_bytes.saturating_sub(earlier.write_bytes),
        }
    }
}

/// One txg's life. Moments are of the world's clock; those not reached yet are 0.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TxgRecord {
    /// The txg.
    pub txg: Txg,
    /// How far it got.
    pub state: TxgState,
    /// When it opened.
    pub opened: Nanos,
    /// When it closed.
    pub closed: Nanos,
    /// When its last transaction ended.
    pub quiesced: Nanos,
    /// When its sync began.
    pub sync_start: Nanos,
    /// When it was on disk.
    pub synced: Nanos,
    /// Bytes made dirty in it, in total.
    pub dirty: u64,
    /// What the devices did while it was written; none before its end.
    pub io: TxgIo,
    /// Transactions delayed or blocked while it was open.
    pub delayed: u64,
    /// How long they were, summed.
    pub delayed_time: Nanos,
}

/// The ring of records: txgs in order without gaps, the newest is the open one.
#[derive(Debug)]
pub(crate) struct History {
    ring: VecDeque<TxgRecord>,
    /// Earlier txgs were cleared: they are not listed any more.
    listed_from: Txg,
}

impl History {
    pub(crate) fn new() -> History {
        History { ring: VecDeque::with_capacity(KEEP), listed_from: Txg(0) }
    }

    /// A txg opens; `keep` are listed.
    pub(crate) fn open(&mut self, txg: Txg, now: Nanos, keep: usize) {
        while self.ring.len() >= keep.max(KEEP_MIN) {
            self.ring.pop_front();
        }
        self.ring.push_back(TxgRecord {
            txg,
            state: TxgState::Open,
            opened: now,
            closed: Nanos(0),
            quiesced: Nanos(0),
            sync_start: Nanos(0),
            synced: Nanos(0),
            dirty: 0,
            io: TxgIo::default(),
            delayed: 0,
            delayed_time: Nanos(0),
        });
    }

    /// The record of `txg`, if it is recent enough.
    pub(crate) fn get(&mut self, txg: Txg) -> Option<&mut TxgRecord> {
        let first = self.ring.front()?.txg.0;
        let index = usize::try_from(txg.0.checked_sub(first)?).ok()?;
        self.ring.get_mut(index)
    }

    pub(crate) fn last(&mut self) -> Option<&mut TxgRecord> {
        self.ring.back_mut()
    }

    pub(crate) fn to_vec(&self) -> Vec<TxgRecord> {
        self.ring.iter().copied().collect()
    }

    /// The txgs that are listed, at most `keep`.
    pub(crate) fn listed(&self, keep: usize) -> Vec<TxgRecord> {
        let from = self.ring.len().saturating_sub(keep);
        self.ring.iter().skip(from).filter(|r| r.txg >= self.listed_from).copied().collect()
    }

    /// Lists nothing of what there is now.
    pub(crate) fn clear(&mut self) {
        self.listed_from = self.ring.back().map_or(Txg(0), |r| r.txg.next());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_many_are_listed_as_are_wanted_and_none_that_were_cleared() {
        let mut h = History::new();
        (1..=200).for_each(|n| h.open(Txg(n), Nanos(n), KEEP));
        let listed = |h: &History, keep| h.listed(keep).iter().map(|r| r.txg.0).collect::<Vec<u64>>();
        assert_eq!(listed(&h, KEEP), (101..=200).collect::<Vec<u64>>());
        assert_eq!((listed(&h, 2), listed(&h, 0)), (vec![199, 200], vec![]));
        (201..=203).for_each(|n| h.open(Txg(n), Nanos(n), 0));
        assert_eq!((h.to_vec().len(), listed(&h, 0)), (KEEP_MIN, vec![]));
        h.clear();
        assert_eq!(listed(&h, KEEP), Vec::<u64>::new());
        h.open(Txg(204), Nanos(204), KEEP);
        assert_eq!(listed(&h, KEEP), [204]);
        assert!(h.get(Txg(203)).is_some(), "it is not forgotten");
    }

    #[test]
    fn counters_that_shrink_give_no_wonders() {
        let io = |n| TxgIo { reads: n, read_bytes: n, writes: n, write_bytes: n };
        assert_eq!((io(7).since(&io(5)), io(5).since(&io(7))), (io(2), io(0)));
    }
}
