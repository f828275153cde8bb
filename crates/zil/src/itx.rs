//! Intent log records in memory (itx): the operations since the last txg on disk.
//!
//! Records that every commit must carry (changes of names) are in the *sync list*, in the order of
//! the operations. Records of one object that only a commit of that object needs are in its *async
//! list*; the commit moves it to the end of the sync list. Records of a txg that is on disk are
//! dropped.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

use base::Txg;
use bdev::Bytes;
use rt::sync::Notify;

use crate::log::Lwb;

/// An entry of the lists: a record, a barrier or a commit.
pub(crate) struct Itx {
    pub txg: Txg,
    /// The object whose commits carry it; `None`: every commit does.
    pub owner: Option<u64>,
    pub kind: ItxKind,
}

impl Itx {
    /// Whether a commit of `object` alone has to carry it.
    pub fn concerns(&self, object: u64) -> bool {
        !matches!(self.kind, ItxKind::Commit(_)) && self.owner.is_none_or(|o| o == object)
    }
}

pub(crate) enum ItxKind {
    /// An encoded record.
    Record(Vec<u8>),
    /// A write.
    Write { object: u64, offset: u64, length: u64, data: Data },
    /// An operation without a record: it and all operations before it are durable only with its
    /// txg.
    Barrier,
    /// A commit: all entries before it are to be durable.
    Commit(Rc<Waiter>),
}

/// The data of a write (`WR_COPIED`, `WR_NEED_COPY`, `WR_INDIRECT`).
pub(crate) enum Data {
    Copied(Vec<Bytes>),
    NeedCopy,
    Indirect,
}

/// A commit that waits (`zil_commit_waiter`).
#[derive(Default)]
pub(crate) struct Waiter {
    pub state: Cell<WaiterState>,
    pub lwb: RefCell<Option<Rc<Lwb>>>,
    pub changed: Notify,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum WaiterState {
    /// It is in the sync list.
    #[default]
    Queued,
    /// It waits for a log block.
    Linked,
    /// Its records are durable.
    Done,
    /// The log could not make them durable.
    Failed,
}

impl Waiter {
    pub fn finish(&self, good: bool) {
        if matches!(self.state.get(), WaiterState::Queued | WaiterState::Linked) {
            self.state.set(if good { WaiterState::Done } else { WaiterState::Failed });
            self.lwb.borrow_mut().take();
            self.changed.notify_all();
        }
    }
    pub fn is_done(&self) -> bool {
        matches!(self.state.get(), WaiterState::Done | WaiterState::Failed)
    }
}

#[derive(Default)]
pub(crate) struct Lists {
    pub sync: VecDeque<Itx>,
    pub by_object: BTreeMap<u64, VecDeque<Itx>>,
    clean: Txg,
}

impl Lists {
    /// Drops records of txgs up to `synced`.
    pub fn drop_synced(&mut self, synced: Txg) {
        if self.clean >= synced {
            return;
        }
        self.clean = synced;
        let keep = |i: &Itx| i.txg > synced || matches!(i.kind, ItxKind::Commit(_));
        self.sync.retain(keep);
        self.by_object.retain(|_, list| {
            list.retain(keep);
            !list.is_empty()
        });
    }
    /// Moves the async list of an object, or all of them, to the sync list.
    pub fn async_to_sync(&mut self, object: Option<u64>) {
        match object {
            Some(obj) => {
                if let Some(mut list) = self.by_object.remove(&obj) {
                    self.sync.append(&mut list);
                }
            }
            None => {
                for (_, mut list) in std::mem::take(&mut self.by_object) {
                    self.sync.append(&mut list);
                }
            }
        }
    }
}

/// `len` bytes of `data` from `at` on, as slices of the same memory.
pub(crate) fn cut(data: &[Bytes], at: u64, len: u64) -> Vec<Bytes> {
    let (mut skip, mut left) = (at as usize, len as usize);
    let mut out = Vec::new();
    for part in data {
        let from = skip.min(part.len());
        let to = (from + left).min(part.len());
        if from < to {
            out.push(part.slice(from..to));
        }
        (skip, left) = (skip - from, left - (to - from));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_are_cut_where_they_lie() {
        let whole = Bytes::copy_from(&(0..100).collect::<Vec<u8>>());
        let parts = [whole.slice(..30), Bytes::empty(), whole.slice(30..31), whole.slice(31..)];
        for (at, len) in [(0, 100), (0, 30), (5, 20), (29, 3), (30, 1), (31, 69), (99, 1), (0, 0)] {
            let got = cut(&parts, at, len);
            assert!(got.iter().all(|p| !p.is_empty() && p.memory_id() == whole.memory_id()), "{at} {len}");
            let bytes: Vec<u8> = got.iter().flat_map(|p| p.to_vec()).collect();
            assert_eq!(bytes, whole[at as usize..(at + len) as usize], "{at} {len}");
        }
    }
}
