//! The history of the last hundred txgs, for statistics.

use std::collections::VecDeque;

use base::{Nanos, Txg};

/// Txgs that the history keeps (`zfs_txg_history` 100).
pub(crate) const KEEP: usize = 100;

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
    /// Transactions delayed or blocked while it was open.
    pub delayed: u64,
    /// How long they were, summed.
    pub delayed_time: Nanos,
}

/// The ring of records: txgs in order without gaps, the newest is the open one.
#[derive(Debug)]
pub(crate) struct History {
    ring: VecDeque<TxgRecord>,
}

impl History {
    pub(crate) fn new() -> History {
        History { ring: VecDeque::with_capacity(KEEP) }
    }

    pub(crate) fn open(&mut self, txg: Txg, now: Nanos) {
        if self.ring.len() == KEEP {
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
}
