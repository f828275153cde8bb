//! The cache without waiting: lookup, insertion, eviction, and the count of every byte.

use std::collections::BTreeMap;

use bdev::{Bytes, PAGE};
use ondisk::blkptr::Blkptr;

use crate::policy::{self, Live, State};
use crate::slab::Slab;

pub use crate::slab::Key;

impl Key {
    /// The cache key of the block at `bp`; `None` for holes and embedded blocks, which need no
    /// caching.
    pub fn of(bp: &Blkptr) -> Option<Key> {
        if bp.is_embedded() || bp.is_hole() {
            return None;
        }
        let dva = bp.dva(0);
        Some(Key { place: dva.w1, birth: bp.phys_birth().0, vdev: dva.vdev().0 })
    }
}

/// Who asks for a block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Want {
    /// A reader that needs it now.
    Demand,
    /// Somebody who reads ahead.
    Ahead,
}

/// Accesses of one kind.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Accesses {
    /// Served from memory.
    pub hits: u64,
    /// Waited for a read that another one had begun.
    pub coalesced: u64,
    /// Went to a device.
    pub misses: u64,
}

/// Counters since the pool was opened; sizes in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct ArcStats {
    /// Reads served from memory.
    pub hits: u64,
    /// All of them by who asked and for what: [`ArcStats::of`].
    pub by_kind: [Accesses; 4],
    /// Hits among blocks that are here for a moment only.
    pub uncached_hits: u64,
    /// Demands for blocks that were here because they had been read ahead.
    pub ahead_used: u64,
    /// Hits among recently used blocks.
    pub mru_hits: u64,
    /// Hits among frequently used blocks.
    pub mfu_hits: u64,
    /// Reads that went to a device.
    pub misses: u64,
    /// Reads that waited for another one's.
    pub coalesced: u64,
    /// Misses of blocks that were dropped from the MRU lately.
    pub mru_ghost_hits: u64,
    /// Misses of blocks that were dropped from the MFU lately.
    pub mfu_ghost_hits: u64,
    /// Blocks dropped to make room.
    pub evicted: u64,
    /// Blocks that were not kept because there was no room.
    pub not_kept: u64,
    /// Blocks now.
    pub blocks: u64,
    /// Ghosts now.
    pub ghosts: u64,
    /// The most that blocks and ghosts together were.
    pub entries_max: u64,
    /// Bytes of blocks used once.
    pub mru_bytes: u64,
    /// Bytes of blocks used again.
    pub mfu_bytes: u64,
    /// Bytes that the MRU's ghosts had.
    pub mru_ghost_bytes: u64,
    /// Bytes that the MFU's ghosts had.
    pub mfu_ghost_bytes: u64,
    /// Bytes of blocks that are here for a moment only.
    pub uncached_bytes: u64,
    /// Metadata among those used once.
    pub mru_meta_bytes: u64,
    /// Metadata among those used again.
    pub mfu_meta_bytes: u64,
    /// Metadata among the MRU's ghosts.
    pub mru_ghost_meta_bytes: u64,
    /// Metadata among the MFU's ghosts.
    pub mfu_ghost_meta_bytes: u64,
    /// Metadata among those that are here for a moment only.
    pub uncached_meta_bytes: u64,
    /// Bytes of metadata blocks.
    pub meta_bytes: u64,
    /// Bytes of data blocks.
    pub data_bytes: u64,
    /// Bytes of memory behind all blocks.
    pub block_memory: u64,
    /// Bytes of headers and tables.
    pub header_memory: u64,
    /// Bytes that others charged.
    pub charged: u64,
    /// Bytes that the MRU should have.
    pub target_mru: u64,
    /// Everything that counts under the limit.
    pub size: u64,
    /// The limit.
    pub limit: u64,
}

impl ArcStats {
    /// Accesses of one kind.
    pub fn of(&self, want: Want, meta: bool) -> Accesses {
        self.by_kind[kind_of(want, meta)]
    }
}

fn kind_of(want: Want, meta: bool) -> usize {
    usize::from(want == Want::Ahead) * 2 + usize::from(meta)
}

/// How a block in memory is wanted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Standing {
    /// More than once.
    pub frequent: bool,
    /// It was read ahead, and nobody has wanted it yet.
    pub ahead: bool,
}

/// Memory that several blocks are parts of.
#[derive(Clone, Copy)]
struct Share {
    blocks: u32,
    footprint: u64,
}

/// The cache of one pool, without its device side.
pub struct Core {
    slab: Slab,
    limit: u64,
    target_mru: u64,
    /// Memory of blocks that have it for themselves, and of shares.
    memory: u64,
    /// By address; only looked up.
    shares: BTreeMap<usize, Share>,
    charged: u64,
    counters: ArcStats,
    /// Bytes of ghosts met since the last report.
    missed: u64,
}

fn list_of(state: State, meta: bool) -> usize {
    state as usize * 2 + usize::from(meta)
}

/// The first list of ghosts; those before it have data.
const GHOSTS: usize = State::MruGhost as usize * 2;

fn state_of(list: usize) -> State {
    match list / 2 {
        0 => State::Mru,
        1 => State::Mfu,
        2 => State::Uncached,
        3 => State::MruGhost,
        _ => State::MfuGhost,
    }
}

/// Whether `data` is a part of memory that is well above its own size: then others may be parts of
/// the same.
fn is_part(data: &Bytes) -> bool {
    data.footprint() > data.len() + data.len() / 4 + PAGE
}

/// Bytes of a share's book entry, roughly a slot of a B-tree node.
const SHARE_COST: u64 = 40;

impl Core {
    /// An empty cache.
    pub fn new(limit: u64) -> Core {
        Core {
            slab: Slab::new(),
            limit,
            target_mru: limit / 2,
            memory: 0,
            shares: BTreeMap::new(),
            charged: 0,
            counters: ArcStats::default(),
            missed: 0,
        }
    }

    /// Everything that counts under the limit, in bytes.
    pub fn size(&self) -> u64 {
        self.memory + self.shares.len() as u64 * SHARE_COST + self.slab.memory() + self.charged
    }

    /// The limit in bytes.
    pub fn limit(&self) -> u64 {
        self.limit
    }

    /// The block under `key`, if it is here and has `len` bytes. `now_ms` is any clock in
    /// milliseconds.
    pub fn get(&mut self, key: &Key, len: u64, now_ms: u32, want: Want) -> Option<Bytes> {
        let i = self.slab.find(key)?;
        let (list, touched) = (self.slab.get(i).list(), self.slab.get(i).touched);
        let (state, meta) = (state_of(list), list % 2 == 1);
        if matches!(state, State::MruGhost | State::MfuGhost) || self.slab.get(i).data.len() as u64 != len {
            return None;
        }
        self.counters.hits += 1;
        self.counters.by_kind[kind_of(want, meta)].hits += 1;
        // Whoever reads ahead does not use it.
        if want == Want::Demand && std::mem::take(&mut self.slab.get_mut(i).ahead) {
            self.counters.ahead_used += 1;
        }
        if state == State::Uncached {
            self.counters.uncached_hits += 1;
        } else if state == State::Mfu {
            self.counters.mfu_hits += 1;
            self.slab.move_to(i, list);
        } else if state == State::Mru {
            self.counters.mru_hits += 1;
            if now_ms.wrapping_sub(touched) >= policy::FREQUENT_AFTER_MS {
                self.slab.get_mut(i).touched = now_ms;
                self.slab.move_to(i, list_of(State::Mfu, meta));
                self.compact(i);
            }
        }
        Some(self.slab.get(i).data.clone())
    }

    /// Whether the block is here, without touching it.
    pub fn contains(&self, key: &Key) -> bool {
        self.slab.find(key).is_some_and(|i| self.slab.get(i).list() < GHOSTS)
    }

    /// Whether a block is here and kept, and how it is wanted; without touching it.
    pub fn standing(&self, key: &Key) -> Option<Standing> {
        let e = self.slab.get(self.slab.find(key)?);
        let frequent = match state_of(e.list()) {
            State::Mru => false,
            State::Mfu => true,
            State::Uncached | State::MruGhost | State::MfuGhost => return None,
        };
        Some(Standing { frequent, ahead: e.ahead })
    }

    /// The block that was just put in was read ahead.
    pub fn note_ahead(&mut self, key: &Key) {
        if let Some(i) = self.slab.find(key) {
            self.slab.get_mut(i).ahead = true;
        }
    }

    /// A miss of `key`: a hit on its ghost, if there is one, adapts the target. True for such a
    /// hit: the block was here before and is wanted again. `meta`: whether it is metadata.
    pub fn miss(&mut self, key: &Key, want: Want, meta: bool) -> bool {
        self.counters.misses += 1;
        self.counters.by_kind[kind_of(want, meta)].misses += 1;
        let Some(i) = self.slab.find(key) else { return false };
        let e = self.slab.get(i);
        let (state, weight) = (state_of(e.list()), u64::from(e.weight));
        match state {
            State::MruGhost => self.counters.mru_ghost_hits += 1,
            State::MfuGhost => self.counters.mfu_ghost_hits += 1,
            State::Mru | State::Mfu | State::Uncached => return false,
        }
        self.missed += weight;
        let ghosts = (self.bytes(State::MruGhost), self.bytes(State::MfuGhost));
        self.target_mru = policy::adapt(self.target_mru, state, weight, ghosts, self.limit);
        true
    }

    /// Whether blocks had to make room already.
    pub fn is_warm(&self) -> bool {
        self.counters.evicted > 0
    }

    /// Another read waits for one that is on its way.
    pub fn coalesced(&mut self, want: Want, meta: bool) {
        self.counters.coalesced += 1;
        self.counters.by_kind[kind_of(want, meta)].coalesced += 1;
    }

    /// Caches `data` under `key` in place of the old entry, if there is room or room can be made. A
    /// block whose ghost is here is frequent at once.
    pub fn put(&mut self, key: Key, data: Bytes, meta: bool, now_ms: u32) {
        let mut state = State::Mru;
        if let Some(i) = self.slab.find(&key) {
            state = match state_of(self.slab.get(i).list()) {
                State::Mru | State::Uncached => State::Mru,
                State::Mfu | State::MruGhost | State::MfuGhost => State::Mfu,
            };
            self.drop_entry(i);
        }
        self.put_as(key, data, (state, meta), now_ms);
    }

    /// As [`Core::put`] for a block that is wanted now and hardly again: it has a place in a small
    /// share of the limit until others of its kind need that, and leaves no ghost. A block that is
    /// cached already stays as it is.
    pub fn put_uncached(&mut self, key: Key, data: Bytes, meta: bool, now_ms: u32) {
        if let Some(i) = self.slab.find(&key) {
            if matches!(state_of(self.slab.get(i).list()), State::Mru | State::Mfu) {
                return;
            }
            self.drop_entry(i);
        }
        let max = policy::uncached_max(self.limit);
        let weight = data.footprint().max(data.len()) as u64;
        if weight > max {
            self.counters.not_kept += 1;
            return;
        }
        while self.slab.list(list_of(State::Uncached, meta)).bytes + weight > max && self.drop_uncached(meta) {}
        self.put_as(key, data, (State::Uncached, meta), now_ms);
    }

    /// Drops the oldest block that is not kept; false if there is none.
    fn drop_uncached(&mut self, meta: bool) -> bool {
        let oldest = self.slab.oldest(list_of(State::Uncached, meta));
        oldest.into_iter().for_each(|i| self.drop_entry(i));
        oldest.is_some()
    }

    fn put_as(&mut self, key: Key, data: Bytes, (state, meta): (State, bool), now_ms: u32) {
        let part = is_part(&data);
        let new_memory = if !part {
            data.footprint() as u64
        } else if self.shares.contains_key(&data.memory_id()) {
            0
        } else {
            data.footprint() as u64 + SHARE_COST
        };
        let weight = if part { data.len() } else { data.footprint().max(data.len()) };
        let fits = new_memory <= self.limit / policy::LARGEST_SHARE && u32::try_from(weight).is_ok();
        if !fits || !self.make_room(new_memory) {
            self.counters.not_kept += 1;
            return;
        }
        // Making room may have dropped the last block of the share that this one wanted to join;
        // that only freed more than was needed.
        let i = self.slab.insert(key, list_of(state, meta), weight as u32);
        self.counters.entries_max = self.counters.entries_max.max(self.slab.len() as u64);
        self.take_memory(&data, part);
        let e = self.slab.get_mut(i);
        (e.data, e.shared, e.touched) = (data, part, now_ms);
        self.trim_ghosts();
        // The share's memory was not foreseen if its last block went just now.
        self.make_room_within();
    }

    /// Drops a block and its ghost.
    pub fn forget(&mut self, key: &Key) {
        if let Some(i) = self.slab.find(key) {
            self.drop_entry(i);
        }
    }

    /// Drops up to `count` blocks or ghosts; false if there are none left.
    pub fn drop_some(&mut self, count: usize) -> bool {
        (0..count)
            .all(|_| self.drop_uncached(false) || self.drop_uncached(true) || self.evict_one() || self.drop_ghost())
    }

    /// Counts `delta` bytes of others under the limit.
    pub fn charge(&mut self, delta: i64) {
        self.charged = self.charged.checked_add_signed(delta).expect("no more is given back than was charged");
        self.make_room_within();
    }

    /// Changes the limit, and evicts down to it.
    pub fn set_limit(&mut self, limit: u64) {
        self.limit = limit;
        self.target_mru = self.target_mru.min(limit);
        self.make_room_within();
    }

    /// Counters and sizes.
    pub fn stats(&self) -> ArcStats {
        let live = self.live();
        ArcStats {
            blocks: (0..GHOSTS).map(|l| self.slab.list(l).count).sum(),
            ghosts: (GHOSTS..crate::slab::LISTS).map(|l| self.slab.list(l).count).sum(),
            mru_bytes: live.mru(),
            mfu_bytes: live.mfu_data + live.mfu_meta,
            uncached_bytes: self.bytes(State::Uncached),
            mru_ghost_bytes: self.bytes(State::MruGhost),
            mfu_ghost_bytes: self.bytes(State::MfuGhost),
            mru_meta_bytes: live.mru_meta,
            mfu_meta_bytes: live.mfu_meta,
            mru_ghost_meta_bytes: self.slab.list(list_of(State::MruGhost, true)).bytes,
            mfu_ghost_meta_bytes: self.slab.list(list_of(State::MfuGhost, true)).bytes,
            uncached_meta_bytes: self.slab.list(list_of(State::Uncached, true)).bytes,
            meta_bytes: live.meta(),
            data_bytes: live.data(),
            block_memory: self.memory,
            header_memory: self.slab.memory() + self.shares.len() as u64 * SHARE_COST,
            charged: self.charged,
            target_mru: self.target_mru,
            size: self.size(),
            limit: self.limit,
            ..self.counters
        }
    }

    /// Bytes of blocks that were read again soon after they had been dropped, since the last call.
    pub fn take_missed(&mut self) -> u64 {
        std::mem::take(&mut self.missed)
    }

    fn live(&self) -> Live {
        let bytes = |state, meta| self.slab.list(list_of(state, meta)).bytes;
        Live {
            mru_data: bytes(State::Mru, false),
            mru_meta: bytes(State::Mru, true),
            mfu_data: bytes(State::Mfu, false),
            mfu_meta: bytes(State::Mfu, true),
        }
    }

    fn bytes(&self, state: State) -> u64 {
        self.slab.list(list_of(state, false)).bytes + self.slab.list(list_of(state, true)).bytes
    }

    fn take_memory(&mut self, data: &Bytes, part: bool) {
        let footprint = data.footprint() as u64;
        if !part {
            self.memory += footprint;
            return;
        }
        let share = self.shares.entry(data.memory_id()).or_insert(Share { blocks: 0, footprint: 0 });
        if share.blocks == 0 {
            share.footprint = footprint;
            self.memory += footprint;
        }
        share.blocks += 1;
    }

    fn give_memory(&mut self, data: &Bytes, part: bool) {
        if !part {
            self.memory -= data.footprint() as u64;
            return;
        }
        let id = data.memory_id();
        let share = self.shares.get_mut(&id).expect("every part was counted");
        share.blocks -= 1;
        if share.blocks == 0 {
            self.memory -= share.footprint;
            self.shares.remove(&id);
        }
    }

    /// A block that is used often should not keep a large allocation alive for a small part of it.
    fn compact(&mut self, i: u32) {
        let e = self.slab.get(i);
        if !e.shared || e.data.footprint() < 2 * e.data.len() {
            return;
        }
        let copy = Bytes::copy_from(&e.data);
        if self.size() + copy.footprint() as u64 > self.limit {
            return;
        }
        let old = std::mem::replace(&mut self.slab.get_mut(i).data, copy.clone());
        self.slab.get_mut(i).shared = false;
        self.give_memory(&old, true);
        self.take_memory(&copy, false);
        self.slab.set_weight(i, copy.footprint() as u32);
    }

    /// Removes an entry of any kind.
    fn drop_entry(&mut self, i: u32) {
        let shared = self.slab.get(i).shared;
        let ghost = self.slab.get(i).list() >= GHOSTS;
        let data = self.slab.remove(i);
        if !ghost {
            self.give_memory(&data, shared);
        }
    }

    /// Makes a ghost of the oldest block of the list that the policy names; false if there is none.
    fn evict_one(&mut self) -> bool {
        let Some((state, meta)) = policy::victim(&self.live(), self.target_mru, self.limit) else {
            // Blocks without weight (static zeros) are no victims by bytes.
            return self.drop_uncached(false) || self.drop_uncached(true);
        };
        let i = self.slab.oldest(list_of(state, meta)).expect("the policy names a list with bytes in it");
        let e = self.slab.get_mut(i);
        let data = std::mem::take(&mut e.data);
        let shared = std::mem::take(&mut e.shared);
        self.give_memory(&data, shared);
        let ghost = if state == State::Mru { State::MruGhost } else { State::MfuGhost };
        self.slab.move_to(i, list_of(ghost, meta));
        self.counters.evicted += 1;
        true
    }

    /// Drops blocks until `bytes` and one more header fit; false if they cannot.
    fn make_room(&mut self, bytes: u64) -> bool {
        while self.size() + self.slab.growth() + bytes > self.limit {
            if !self.evict_one() {
                // The headers of ghosts are the last resort: their slots can be used again.
                if self.slab.growth() > 0 && self.drop_ghost() {
                    continue;
                }
                return false;
            }
        }
        true
    }

    fn make_room_within(&mut self) {
        while self.size() > self.limit && self.evict_one() {}
        self.trim_ghosts();
        // Chunks of headers do not shrink one by one; when they alone are too much, the cache
        // starts afresh.
        if self.size() > self.limit
            && self.slab.memory() > self.limit / 8
            && (0..GHOSTS).all(|l| self.slab.list(l).count == 0)
        {
            self.slab = Slab::new();
        }
    }

    fn drop_ghost(&mut self) -> bool {
        let (mru, mfu) = (self.bytes(State::MruGhost), self.bytes(State::MfuGhost));
        let order = if mru >= mfu { [State::MruGhost, State::MfuGhost] } else { [State::MfuGhost, State::MruGhost] };
        for state in order {
            for meta in [false, true] {
                if let Some(i) = self.slab.oldest(list_of(state, meta)) {
                    self.slab.remove(i);
                    return true;
                }
            }
        }
        false
    }

    fn drop_ghost_of(&mut self, state: State) -> bool {
        let data_first = self.slab.list(list_of(state, false)).bytes >= self.slab.list(list_of(state, true)).bytes;
        for meta in [!data_first, data_first] {
            if let Some(i) = self.slab.oldest(list_of(state, meta)) {
                self.slab.remove(i);
                return true;
            }
        }
        false
    }

    /// Trims the ghosts to a useful size (behaviour section 3.6): a list of ghosts at most half of
    /// the three other states, headers their share of the limit.
    fn trim_ghosts(&mut self) {
        let live = self.live();
        let live = live.data() + live.meta();
        while self.bytes(State::MruGhost) > (live + self.bytes(State::MfuGhost)) / 2
            && self.drop_ghost_of(State::MruGhost)
        {}
        while self.bytes(State::MfuGhost) > (live + self.bytes(State::MruGhost)) / 2
            && self.drop_ghost_of(State::MfuGhost)
        {}
        let ghosts = |s: &Slab| (GHOSTS..crate::slab::LISTS).map(|l| s.list(l).count).sum::<u64>();
        let max = self.limit / policy::GHOST_HEADER_SHARE / size_of::<crate::slab::Entry>() as u64;
        while ghosts(&self.slab) > max && self.drop_ghost() {}
    }

    /// Counts everything again and compares.
    #[cfg(test)]
    pub(crate) fn check(&self) {
        let (mut alone, mut shares) = (0u64, BTreeMap::new());
        let mut lists = [(0u64, 0u64); crate::slab::LISTS];
        for e in self.slab.iter() {
            lists[e.list()].0 += u64::from(e.weight);
            lists[e.list()].1 += 1;
            if e.list() >= GHOSTS {
                assert!(e.data.is_empty(), "a ghost holds no data");
            } else if e.shared {
                shares.insert(e.data.memory_id(), e.data.footprint() as u64);
            } else {
                alone += e.data.footprint() as u64;
            }
        }
        for (l, (bytes, count)) in lists.into_iter().enumerate() {
            assert_eq!((self.slab.list(l).bytes, self.slab.list(l).count), (bytes, count), "list {l}");
        }
        assert_eq!(self.shares.len(), shares.len());
        assert_eq!(self.memory, alone + shares.values().sum::<u64>());
        assert_eq!(self.slab.len() as u64, lists.iter().map(|l| l.1).sum::<u64>());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bdev::Buf;
    use proptest::prelude::*;

    fn key(n: u64) -> Key {
        Key { place: n * 8, birth: 5, vdev: 0 }
    }

    fn block(tag: u64, len: usize) -> Bytes {
        let mut b = Buf::zeroed(len);
        b[..8].copy_from_slice(&tag.to_le_bytes());
        b.freeze()
    }

    /// Reads as a client does: a hit, or a miss and the block put in.
    fn read(c: &mut Core, n: u64, len: usize, now: u32) -> bool {
        if let Some(d) = c.get(&key(n), len as u64, now, Want::Demand) {
            assert_eq!(d[..8], n.to_le_bytes());
            return true;
        }
        c.miss(&key(n), Want::Demand, false);
        c.put(key(n), block(n, len), false, now);
        false
    }

    #[derive(Clone, Debug)]
    enum Act {
        Read(u64),
        Write(u64, bool),
        WriteParts(u64),
        Forget(u64),
        Charge(u32),
        Limit(u64),
        Wait(u32),
    }

    fn act() -> impl Strategy<Value = Act> {
        prop_oneof![
            6 => (0u64..80).prop_map(Act::Read),
            4 => (0u64..80, any::<bool>()).prop_map(|(k, m)| Act::Write(k, m)),
            2 => (0u64..70).prop_map(Act::WriteParts),
            1 => (0u64..80).prop_map(Act::Forget),
            1 => (0u32..400_000).prop_map(Act::Charge),
            1 => (100_000u64..1_500_000).prop_map(Act::Limit),
            2 => (1u32..200).prop_map(Act::Wait),
        ]
    }

    /// Sizes depend on the key alone: those of one key agree, as they do on disk.
    fn size_of_key(k: u64) -> usize {
        [512, 4096, 8192, 16384, 65536][(k % 5) as usize]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        /// After any sequence of operations, a hit returns the last data put, the limit holds, and
        /// the books are right.
        #[test]
        fn hits_are_current_and_the_limit_holds(acts in proptest::collection::vec(act(), 1..400)) {
            let mut c = Core::new(700_000);
            let mut latest = std::collections::BTreeMap::new();
            let (mut now, mut tag, mut charged) = (0u32, 0u64, 0i64);
            for a in acts {
                match a {
                    Act::Read(k) => match c.get(&key(k), size_of_key(k) as u64, now, Want::Demand) {
                        Some(d) => prop_assert_eq!(&d[..8], &u64::to_le_bytes(latest[&k])[..]),
                        None => {
                            c.miss(&key(k), Want::Demand, k % 3 == 0);
                            if let Some(tag) = latest.get(&k) {
                                let (data, meta) = (block(*tag, size_of_key(k)), k % 3 == 0);
                                if k % 7 == 0 {
                                    c.put_uncached(key(k), data, meta, now);
                                } else {
                                    c.put(key(k), data, meta, now);
                                }
                            }
                        }
                    },
                    Act::Write(k, meta) => {
                        tag += 1;
                        latest.insert(k, tag);
                        c.put(key(k), block(tag, size_of_key(k)), meta, now);
                    }
                    Act::WriteParts(k) => {
                        // Neighbours that arrived in one buffer.
                        let total: usize = (k..k + 8).map(size_of_key).sum();
                        let mut whole = Buf::zeroed(total);
                        let mut at = 0;
                        for n in k..k + 8 {
                            tag += 1;
                            latest.insert(n, tag);
                            whole[at..at + 8].copy_from_slice(&tag.to_le_bytes());
                            at += size_of_key(n);
                        }
                        let whole = whole.freeze();
                        at = 0;
                        for n in k..k + 8 {
                            c.put(key(n), whole.slice(at..at + size_of_key(n)), false, now);
                            at += size_of_key(n);
                        }
                    }
                    Act::Forget(k) => c.forget(&key(k)),
                    Act::Charge(n) => {
                        c.charge(i64::from(n) - charged);
                        charged = i64::from(n);
                    }
                    Act::Limit(n) => c.set_limit(n),
                    Act::Wait(ms) => now += ms,
                }
                c.check();
                let fixed = charged as u64 + c.slab.memory();
                prop_assert!(c.size() <= c.limit().max(fixed), "{} of {}, {} cannot be dropped", c.size(), c.limit(), fixed);
            }
        }
    }

    #[test]
    fn a_scan_does_not_drive_out_what_is_used_often() {
        let mut c = Core::new(8 << 20);
        let mut now = 0;
        // 3 MiB in use, round and round.
        for _ in 0..4 {
            for n in 0..384 {
                read(&mut c, n, 8192, now);
            }
            now += 100;
        }
        // A scan of 64 MiB, read once, while the others go on.
        let mut hot = 0;
        for n in 0..8192 {
            read(&mut c, 100_000 + n, 8192, now);
            if n % 16 == 0 {
                hot += u64::from(read(&mut c, n / 16 % 384, 8192, now));
                now += 1;
            }
        }
        assert_eq!(hot, 512, "all of them hits");
        c.check();
    }

    #[test]
    fn what_is_wanted_once_takes_its_own_share_only() {
        let mut c = Core::new(8 << 20);
        for n in 0..700 {
            read(&mut c, n, 8192, 0);
        }
        let kept = c.stats();
        for n in 0..10_000 {
            c.miss(&key(10_000 + n), Want::Demand, n % 2 == 0);
            c.put_uncached(key(10_000 + n), block(n, 8192), n % 2 == 0, 0);
            // Read ahead by 30 blocks.
            assert!(c.contains(&key(10_000 + n.saturating_sub(30))), "{n}");
            c.check();
        }
        let now = c.stats();
        assert_eq!(now.uncached_bytes, 2 * policy::uncached_max(8 << 20), "data and metadata");
        assert_eq!((now.mru_bytes, now.ghosts), (kept.mru_bytes, 0), "there was room for it");
        // It leaves what is cached alone, and others may cache what it left.
        c.put_uncached(key(5), block(5, 8192), false, 0);
        assert_eq!(c.stats().mru_bytes, now.mru_bytes);
        c.put(key(19_999), block(9_999, 8192), false, 0);
        assert_eq!(c.stats().mru_bytes, now.mru_bytes + 8192);
        // Too large for its share.
        c.put_uncached(key(3), block(3, 1 << 20), false, 0);
        c.forget(&key(3));
        c.put_uncached(key(3), block(3, 1 << 20), false, 0);
        assert!(!c.contains(&key(3)));
        c.check();
        // When nothing else is left, it gives way.
        c.charge(8 << 20);
        assert_eq!(c.stats().uncached_bytes, 0);
        c.check();
    }

    #[test]
    fn the_target_follows_the_work() {
        let mut c = Core::new(4 << 20);
        let mut now = 0;
        let mut round = |c: &mut Core| {
            for n in 0..600 {
                read(c, n, 8192, now);
                now += 1;
            }
        };
        // A loop a little larger than the cache: ghosts of the MRU are met, it gets its room.
        c.target_mru = 0;
        round(&mut c);
        round(&mut c);
        assert!(c.stats().mru_ghost_hits > 0 && c.target_mru > 1 << 20, "{:?}", c.stats());
        assert!(c.stats().hits > 200, "a plain list would have none");
        // By now all are frequent, and the evicted ones give ghost hits.
        round(&mut c);
        assert!(c.stats().mfu_ghost_hits > 0 && c.target_mru < 1 << 20, "{:?}", c.stats());
        c.check();
    }

    #[test]
    fn accesses_are_counted_by_who_asks_and_for_what() {
        let mut c = Core::new(8 << 20);
        c.miss(&key(1), Want::Ahead, false);
        c.coalesced(Want::Demand, false);
        c.put(key(1), block(1, 4096), false, 0);
        c.note_ahead(&key(1));
        assert!(c.get(&key(1), 4096, 0, Want::Ahead).is_some());
        assert_eq!(c.stats().ahead_used, 0, "nobody has used it yet");
        assert!(c.get(&key(1), 4096, 0, Want::Demand).is_some());
        assert!(c.get(&key(1), 4096, 0, Want::Demand).is_some());
        c.miss(&key(2), Want::Demand, true);
        c.put_uncached(key(2), block(2, 512), true, 0);
        assert!(c.get(&key(2), 512, 0, Want::Demand).is_some());
        let s = c.stats();
        let of = |want, meta| {
            let Accesses { hits, coalesced, misses } = s.of(want, meta);
            [hits, coalesced, misses]
        };
        assert_eq!([of(Want::Demand, false), of(Want::Demand, true)], [[2, 1, 0], [1, 0, 1]]);
        assert_eq!([of(Want::Ahead, false), of(Want::Ahead, true)], [[1, 0, 1], [0, 0, 0]]);
        assert_eq!((s.hits, s.misses, s.coalesced, s.ahead_used, s.uncached_hits), (4, 2, 1, 1, 1));
        assert_eq!((s.mru_meta_bytes, s.entries_max), (0, 2));
        assert!(s.uncached_meta_bytes >= 512 && s.uncached_meta_bytes == s.uncached_bytes);
        c.forget(&key(1));
        assert_eq!((c.stats().blocks, c.stats().entries_max), (1, 2));
    }

    #[test]
    fn parts_of_one_allocation_cost_it_once() {
        let mut c = Core::new(64 << 20);
        let whole = Bytes::copy_from(&[7; 1 << 20]);
        let before = c.size();
        for n in 0..8 {
            c.put(key(n), whole.slice((n as usize) << 17..(n as usize + 1) << 17), false, 0);
        }
        drop(whole);
        let headers = c.slab.memory();
        assert_eq!(c.stats().block_memory, 1 << 20);
        assert!(c.size() - before <= (1 << 20) + headers + SHARE_COST);
        for n in 0..7 {
            c.forget(&key(n));
        }
        assert_eq!(c.stats().block_memory, 1 << 20, "the last part holds all of it");
        // Used again, it moves into memory of its own.
        assert!(c.get(&key(7), 1 << 17, 1000, Want::Demand).is_some());
        assert_eq!(c.stats().block_memory, 1 << 17);
        c.check();
    }

    #[test]
    fn what_does_not_fit_is_not_kept() {
        let mut c = Core::new(1 << 20);
        c.put(key(1), block(1, 512 << 10), false, 0);
        assert!(!c.contains(&key(1)), "more than a quarter of the limit");
        c.put(key(2), block(2, 128 << 10), false, 0);
        assert!(c.contains(&key(2)));
        c.charge(1 << 20);
        assert!(!c.contains(&key(2)) && c.size() >= 1 << 20);
        c.put(key(3), block(3, 4096), false, 0);
        assert!(!c.contains(&key(3)) && c.stats().not_kept == 2);
        c.charge(-(1 << 20));
        c.put(key(3), block(3, 4096), false, 0);
        assert!(c.contains(&key(3)));
        assert!(c.get(&key(3), 8192, 0, Want::Demand).is_none(), "another size is another block");
        c.set_limit(0);
        assert!(c.size() <= 1 << 20 && !c.contains(&key(3)));
        c.check();
    }
}
