//! Intent log records in memory (itx): the operations since the last txg on disk.
//!
//! Records that every commit must carry (changes of names) are in the *sync list*, in the order of
//! the operations. Records of one object that only a commit of that object needs are in its *async
//! list*; the commit moves it to the end of the sync list. Records of a txg that is on disk are
//! dropped, in pieces.

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

/// Entries that are dropped at a time, but for those of a chunk, and lists that are looked at for
/// old ones: some 10 us.
const DROPPED: usize = 256;
const LISTS_LOOKED_AT: usize = 16;

/// Entries of a chunk.
const CHUNK: usize = 128;

/// Entries in the order in which they were added. They are kept in chunks, so that adding one,
/// joining lists and dropping old entries take a bounded time, however long the list is.
#[derive(Default)]
pub(crate) struct ItxList(VecDeque<Chunk>);

struct Chunk {
    itxs: Vec<Itx>,
    /// The newest txg of its records; commits have none.
    newest: Txg,
    has_commits: bool,
}

impl ItxList {
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
    pub fn iter(&self) -> impl Iterator<Item = &Itx> {
        self.0.iter().flat_map(|c| &c.itxs)
    }
    pub fn into_entries(self) -> impl Iterator<Item = Itx> {
        self.0.into_iter().flat_map(|c| c.itxs)
    }
    pub fn push_back(&mut self, itx: Itx) {
        if self.0.back().is_none_or(|c| c.itxs.len() == CHUNK) {
            self.0.push_back(Chunk { itxs: Vec::new(), newest: Txg(0), has_commits: false });
        }
        let Some(chunk) = self.0.back_mut() else { unreachable!("just added") };
        match itx.kind {
            ItxKind::Commit(_) => chunk.has_commits = true,
            _ => chunk.newest = chunk.newest.max(itx.txg),
        }
        chunk.itxs.push(itx);
    }
    /// Moves all entries of `other` behind its own.
    pub fn append(&mut self, other: &mut ItxList) {
        self.0.append(&mut other.0);
    }
    /// Whether the oldest chunk has nothing but records of txgs up to `synced`.
    fn has_old(&self, synced: Txg) -> bool {
        self.0.front().is_some_and(|c| c.newest <= synced && !c.has_commits)
    }
    /// Drops old chunks from the front, and takes their entries from `left`. The list has no more
    /// of them, or `left` is 0 then.
    fn drop_old(&mut self, synced: Txg, left: &mut usize) {
        while *left > 0 && self.has_old(synced) {
            let dropped = self.0.pop_front().map_or(0, |c| c.itxs.len());
            *left = left.saturating_sub(dropped);
        }
    }
}

#[derive(Default)]
pub(crate) struct Lists {
    pub sync: ItxList,
    pub by_object: BTreeMap<u64, ItxList>,
    /// Lists of freed objects.
    gone: Vec<ItxList>,
    /// Records of txgs up to this one are to be dropped.
    synced: Txg,
    /// The next list to look through for them; `None` if all were.
    looks_at: Option<u64>,
}

impl Lists {
    /// Drops some of the records of txgs up to `synced`, from the lists of some objects. Called
    /// with every new record, so more are dropped than come. The rest is skipped when it is packed,
    /// as are records whose chunk has younger ones.
    pub fn drop_synced(&mut self, synced: Txg) {
        if self.synced < synced {
            self.synced = synced;
            self.looks_at = Some(0);
        }
        let mut left = DROPPED;
        while left > 0
            && let Some(list) = self.gone.last_mut()
        {
            list.drop_old(Txg(u64::MAX), &mut left);
            if list.is_empty() {
                self.gone.pop();
            }
        }
        self.sync.drop_old(self.synced, &mut left);
        for _ in 0..LISTS_LOOKED_AT {
            let Some(from) = self.looks_at.filter(|_| left > 0) else { break };
            let Some((&object, list)) = self.by_object.range_mut(from..).next() else {
                self.looks_at = None;
                break;
            };
            list.drop_old(self.synced, &mut left);
            let (is_empty, is_done) = (list.is_empty(), !list.has_old(self.synced));
            if is_empty {
                self.by_object.remove(&object);
            }
            if is_done {
                self.looks_at = object.checked_add(1);
            }
        }
    }
    /// The records of a freed object, which no commit carries any more.
    pub fn remove_async(&mut self, object: u64) {
        self.gone.extend(self.by_object.remove(&object));
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
