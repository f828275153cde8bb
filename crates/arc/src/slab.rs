//! Headers: a table from key to entry whose entries are also in lists, in memory that is counted to
//! the byte.
//!
//! Entries live in chunks that never move. A 32-bit number names an entry; the hash chains and the
//! lists are such numbers inside the entries, so that an entry costs no allocation of its own and
//! moving it between lists touches only its neighbours.
//!
//! The table grows by one bucket at a time, which takes its entries from one other (linear hashing,
//! Litwin 1980): with a hundred thousand blocks, rehashing all at once would keep the engine's
//! thread for milliseconds.

use bdev::Bytes;

/// Names no entry.
pub(crate) const NONE: u32 = u32::MAX;
/// Entries of a chunk.
const CHUNK: usize = 256;
/// Buckets of a piece of the table; a power of two.
const PIECE: usize = 256;
/// Lists there are: five states, data and metadata.
pub(crate) const LISTS: usize = 10;
/// `Entry::list` of a free slot.
const FREE: u8 = u8::MAX;

/// The cache key of a block.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Key {
    /// Second word of the first DVA: offset and gang bit.
    pub place: u64,
    /// Physical birth.
    pub birth: u64,
    /// Top-level vdev.
    pub vdev: u32,
}

impl Key {
    fn hash(&self) -> u64 {
        // Offsets differ in their low bits (in sectors), births and vdevs hardly; one
        // multiplication spreads them all.
        let mixed = self.place ^ self.birth.rotate_left(40) ^ u64::from(self.vdev).rotate_left(56);
        let wide = u128::from(mixed) * 0x9e37_79b9_7f4a_7c15;
        (wide >> 64) as u64 ^ wide as u64
    }
}

/// One header. Blocks hold `data`, ghosts hold none.
pub(crate) struct Entry {
    pub(crate) key: Key,
    pub(crate) data: Bytes,
    /// Bytes that it counts for in its list.
    pub(crate) weight: u32,
    /// When it came or became frequent, in milliseconds, wrapping.
    pub(crate) touched: u32,
    hash_next: u32,
    prev: u32,
    next: u32,
    list: u8,
    /// Its memory is counted with others that share it.
    pub(crate) shared: bool,
    /// It was read ahead, and nobody has wanted it yet.
    pub(crate) ahead: bool,
}

const EMPTY_KEY: Key = Key { place: 0, birth: 0, vdev: 0 };

impl Entry {
    fn free(next: u32) -> Entry {
        Entry {
            key: EMPTY_KEY,
            data: Bytes::empty(),
            weight: 0,
            touched: 0,
            hash_next: next,
            prev: NONE,
            next: NONE,
            list: FREE,
            shared: false,
            ahead: false,
        }
    }
    pub(crate) fn list(&self) -> usize {
        usize::from(self.list)
    }
}

/// A list of entries, newest first.
#[derive(Clone, Copy)]
pub(crate) struct List {
    head: u32,
    tail: u32,
    /// Sum of the weights.
    pub(crate) bytes: u64,
    /// Entries.
    pub(crate) count: u64,
}

impl Default for List {
    fn default() -> List {
        List { head: NONE, tail: NONE, bytes: 0, count: 0 }
    }
}

/// All headers of a cache.
pub(crate) struct Slab {
    chunks: Vec<Box<[Entry]>>,
    free: u32,
    used: usize,
    /// The first entry of each bucket. The last piece has `NONE` behind the last bucket.
    table: Vec<Box<[u32]>>,
    buckets: usize,
    lists: [List; LISTS],
}

impl Slab {
    pub(crate) fn new() -> Slab {
        Slab {
            chunks: Vec::new(),
            free: NONE,
            used: 0,
            table: vec![vec![NONE; PIECE].into()],
            buckets: PIECE,
            lists: [List::default(); LISTS],
        }
    }

    /// Bytes of all memory held here, used or not.
    pub(crate) fn memory(&self) -> u64 {
        let chunk = CHUNK * size_of::<Entry>();
        let spine = self.chunks.capacity() * size_of::<Box<[Entry]>>();
        let table = self.table.len() * PIECE * size_of::<u32>() + self.table.capacity() * size_of::<Box<[u32]>>();
        (self.chunks.len() * chunk + spine + table) as u64
    }

    /// Bytes by which the next insertion may make [`Slab::memory`] grow.
    pub(crate) fn growth(&self) -> u64 {
        let mut bytes = 0;
        if self.free == NONE {
            bytes += CHUNK * size_of::<Entry>();
            if self.chunks.len() == self.chunks.capacity() {
                bytes += (self.chunks.capacity().max(4)) * size_of::<Box<[Entry]>>();
            }
        }
        if self.used >= self.buckets && self.buckets == self.table.len() * PIECE {
            bytes += PIECE * size_of::<u32>();
            if self.table.len() == self.table.capacity() {
                bytes += self.table.capacity().max(4) * size_of::<Box<[u32]>>();
            }
        }
        bytes as u64
    }

    /// Entries, ghosts included.
    pub(crate) fn len(&self) -> usize {
        self.used
    }

    pub(crate) fn list(&self, list: usize) -> &List {
        &self.lists[list]
    }

    pub(crate) fn get(&self, i: u32) -> &Entry {
        &self.chunks[i as usize / CHUNK][i as usize % CHUNK]
    }

    pub(crate) fn get_mut(&mut self, i: u32) -> &mut Entry {
        &mut self.chunks[i as usize / CHUNK][i as usize % CHUNK]
    }

    /// The bucket of a key. Buckets from the last power of two on took their entries from those
    /// that differ in the highest bit.
    fn bucket(&self, key: &Key) -> usize {
        let bits = self.buckets.next_power_of_two();
        let bucket = key.hash() as usize & (bits - 1);
        if bucket < self.buckets { bucket } else { bucket & (bits / 2 - 1) }
    }

    fn first(&self, bucket: usize) -> u32 {
        self.table[bucket / PIECE][bucket % PIECE]
    }

    fn first_mut(&mut self, bucket: usize) -> &mut u32 {
        &mut self.table[bucket / PIECE][bucket % PIECE]
    }

    pub(crate) fn find(&self, key: &Key) -> Option<u32> {
        let mut at = self.first(self.bucket(key));
        while at != NONE {
            let e = self.get(at);
            if e.key == *key {
                return Some(at);
            }
            at = e.hash_next;
        }
        None
    }

    /// The oldest entry of a list.
    pub(crate) fn oldest(&self, list: usize) -> Option<u32> {
        let tail = self.lists[list].tail;
        (tail != NONE).then_some(tail)
    }

    /// Adds an entry, whose key is not there yet, as the newest of `list`.
    pub(crate) fn insert(&mut self, key: Key, list: usize, weight: u32) -> u32 {
        if self.used >= self.buckets {
            self.grow_table();
        }
        if self.free == NONE {
            self.grow_chunks();
        }
        let i = self.free;
        let bucket = self.bucket(&key);
        let first = self.first(bucket);
        let e = self.get_mut(i);
        let next_free = e.hash_next;
        (e.key, e.weight, e.hash_next) = (key, weight, first);
        self.free = next_free;
        *self.first_mut(bucket) = i;
        self.used += 1;
        self.link(i, list);
        i
    }

    /// Removes an entry and gives back its data.
    pub(crate) fn remove(&mut self, i: u32) -> Bytes {
        self.unlink(i);
        let bucket = self.bucket(&self.get(i).key);
        let after = self.get(i).hash_next;
        let mut at = self.first(bucket);
        if at == i {
            *self.first_mut(bucket) = after;
        } else {
            while self.get(at).hash_next != i {
                at = self.get(at).hash_next;
            }
            self.get_mut(at).hash_next = after;
        }
        let free = self.free;
        let e = std::mem::replace(self.get_mut(i), Entry::free(free));
        self.free = i;
        self.used -= 1;
        e.data
    }

    /// Makes an entry the newest of `list`.
    pub(crate) fn move_to(&mut self, i: u32, list: usize) {
        self.unlink(i);
        self.link(i, list);
    }

    /// Changes the weight of an entry.
    pub(crate) fn set_weight(&mut self, i: u32, weight: u32) {
        let e = self.get_mut(i);
        let (list, old) = (e.list(), std::mem::replace(&mut e.weight, weight));
        let list = &mut self.lists[list];
        list.bytes = list.bytes - u64::from(old) + u64::from(weight);
    }

    fn link(&mut self, i: u32, list: usize) {
        let head = self.lists[list].head;
        let e = self.get_mut(i);
        (e.prev, e.next, e.list) = (NONE, head, list as u8);
        let weight = u64::from(e.weight);
        if head != NONE {
            self.get_mut(head).prev = i;
        }
        let l = &mut self.lists[list];
        l.head = i;
        if l.tail == NONE {
            l.tail = i;
        }
        l.bytes += weight;
        l.count += 1;
    }

    fn unlink(&mut self, i: u32) {
        let e = self.get(i);
        let (prev, next, list, weight) = (e.prev, e.next, e.list(), u64::from(e.weight));
        if prev != NONE {
            self.get_mut(prev).next = next;
        } else {
            self.lists[list].head = next;
        }
        if next != NONE {
            self.get_mut(next).prev = prev;
        } else {
            self.lists[list].tail = prev;
        }
        let l = &mut self.lists[list];
        l.bytes -= weight;
        l.count -= 1;
    }

    fn grow_chunks(&mut self) {
        let base = (self.chunks.len() * CHUNK) as u32;
        assert!(base < NONE - CHUNK as u32, "fewer than 2^32 blocks fit in memory");
        let entry = |n: u32| Entry::free(if n + 1 < CHUNK as u32 { base + n + 1 } else { NONE });
        if self.chunks.len() == self.chunks.capacity() {
            self.chunks.reserve_exact(self.chunks.capacity().max(4));
        }
        self.chunks.push((0..CHUNK as u32).map(entry).collect());
        self.free = base;
    }

    /// Adds a bucket, and moves the entries that belong there.
    fn grow_table(&mut self) {
        if self.buckets == self.table.len() * PIECE {
            if self.table.len() == self.table.capacity() {
                self.table.reserve_exact(self.table.capacity().max(4));
            }
            self.table.push(vec![NONE; PIECE].into());
        }
        let new = self.buckets;
        self.buckets += 1;
        let old = new & (self.buckets.next_power_of_two() / 2 - 1);
        let mut at = std::mem::replace(self.first_mut(old), NONE);
        while at != NONE {
            let bucket = self.bucket(&self.get(at).key);
            let first = std::mem::replace(self.first_mut(bucket), at);
            at = std::mem::replace(&mut self.get_mut(at).hash_next, first);
        }
    }

    /// Every entry, for tests that count again.
    #[cfg(test)]
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Entry> {
        self.chunks.iter().flat_map(|c| c.iter()).filter(|e| e.list != FREE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(n: u64) -> Key {
        Key { place: n, birth: n / 7, vdev: (n % 3) as u32 }
    }

    #[test]
    fn the_table_grows_by_a_bucket() {
        let mut s = Slab::new();
        for n in 0..5000 {
            let (before, buckets) = (s.memory(), s.buckets);
            s.insert(key(n), 0, 1);
            assert_eq!(s.buckets, buckets + usize::from(n as usize >= PIECE));
            assert!(s.memory() - before <= 64 << 10, "{n}");
            assert!(n % 97 > 0 || (0..=n).all(|n| s.find(&key(n)).is_some()), "{n}");
        }
        let some = |i: u32| (i != NONE).then_some(i);
        let chain = |bucket: usize| std::iter::successors(some(s.first(bucket)), |i| some(s.get(*i).hash_next));
        let lengths = (0..s.buckets).map(|b| chain(b).count());
        assert!(lengths.max().unwrap() < 12, "hashes are spread");
    }

    #[test]
    fn finds_what_is_there_and_keeps_order() {
        let mut s = Slab::new();
        let mut expected = s.memory();
        for n in 0..2000 {
            expected += s.growth();
            s.insert(key(n), (n % 2) as usize, 10);
            assert_eq!(s.memory(), expected, "growth is foretold");
        }
        assert_eq!((s.len(), s.list(0).count, s.list(1).bytes), (2000, 1000, 10_000));
        for n in 0..2000 {
            let i = s.find(&key(n)).unwrap();
            assert_eq!(s.get(i).key, key(n));
        }
        assert_eq!(s.get(s.oldest(0).unwrap()).key, key(0));
        s.move_to(s.find(&key(0)).unwrap(), 0);
        assert_eq!(s.get(s.oldest(0).unwrap()).key, key(2));
        for n in (0..2000).step_by(2) {
            s.remove(s.find(&key(n)).unwrap());
        }
        assert_eq!((s.len(), s.oldest(0), s.list(0).bytes), (1000, None, 0));
        assert!((0..2000).all(|n| s.find(&key(n)).is_some() == (n % 2 == 1)));
        let before = s.memory();
        for n in 0..1000 {
            s.insert(key(10_000 + n), 5, 1);
        }
        assert_eq!(s.memory(), before, "free slots are used again");
        s.set_weight(s.find(&key(10_000)).unwrap(), 7);
        assert_eq!(s.list(5).bytes, 1006);
    }
}
