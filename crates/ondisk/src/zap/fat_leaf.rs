//! Leaves of fat ZAPs (format page 04 section 4).
//!
//! A leaf is a small heap: a hash table of chunk numbers, then chunks of 24 bytes that are free
//! (linked in a free list), an entry (linked in its bucket's chain, in order of cd), or 21 bytes of
//! an entry's name or value (linked in order). All entries share the top `prefix_len` bits of their
//! hashes; the next bits pick the bucket, so buckets are in hash order and so is a walk over them.
//!
//! A leaf from disk is not trusted: each operation checks the chunk numbers that it follows, and no
//! walk is longer than the leaf has chunks. A changing operation collects and checks all chunks
//! that it needs before it writes the first byte, so an error leaves the leaf as it was.
//! [`Leaf::check`] verifies the whole.

use base::{Error, ErrorKind, Result};

use super::{BLOCK_LEAF, KeyKind, MAX_LONG_NAME, MAX_NAME, ZapValue};
use crate::bytes::{le16, le32, le64, put_le16, put_le32, put_le64};

const MAGIC: u32 = 0x02AB_1EAF;
const HEADER: usize = 48;
const CHUNK: usize = 24;
const PIECE: usize = 21;
const END: u16 = 0xffff;
const KIND_FREE: u8 = 253;
const KIND_ENTRY: u8 = 252;
const KIND_ARRAY: u8 = 251;
const FLAG_SORTED: u8 = 1;

/// A leaf over a block's bytes, borrowed or owned.
#[derive(Clone, Debug)]
pub struct Leaf<B> {
    b: B,
    kind: KeyKind,
    hash_shift: u32,
    chunks: usize,
}

/// An entry of a leaf: where its parts are. Valid until the leaf changes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LeafEntry {
    /// Its chunk.
    pub chunk: u16,
    /// Bytes of one integer of the value: 1, 2, 4 or 8.
    pub int_size: u8,
    /// First chunk of the name.
    pub name_chunk: u16,
    /// Integers in the name, its NUL included.
    pub name_numints: u16,
    /// First chunk of the value.
    pub value_chunk: u16,
    /// Integers in the value.
    pub value_numints: u16,
    /// Collision differentiator.
    pub cd: u32,
    /// Hash.
    pub hash: u64,
    next: u16,
}

/// The result of an insertion or update.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LeafInsert {
    /// Done; the entry has this cd.
    Done(u32),
    /// Not enough free chunks: split and try again. Nothing was changed.
    NeedSplit,
}

fn pieces(bytes: usize) -> usize {
    bytes.div_ceil(PIECE)
}

/// Bytes that a key takes in a leaf.
fn stored_key_len(kind: KeyKind, key: &[u8]) -> usize {
    key.len() + usize::from(kind == KeyKind::String)
}

/// Chunks that an entry takes.
pub fn chunks_needed(kind: KeyKind, key: &[u8], value: &ZapValue) -> usize {
    1 + pieces(stored_key_len(kind, key)) + pieces(value.bytes.len())
}

fn corrupt(what: impl std::fmt::Display) -> Error {
    Error::corrupt(format!("fat ZAP leaf: {what}"))
}

fn geometry(len: usize) -> (u32, usize) {
    let hash_entries = len / 32;
    (hash_entries.trailing_zeros(), (len - 2 * hash_entries) / CHUNK - 2)
}

impl<B: AsRef<[u8]>> Leaf<B> {
    /// Takes a block for a leaf if its size and header are those of one.
    pub fn open(b: B, kind: KeyKind) -> Result<Leaf<B>> {
        let bytes = b.as_ref();
        let len = bytes.len();
        if !(512..=1 << 20).contains(&len) || !len.is_power_of_two() {
            return Err(corrupt(format_args!("block of {len} bytes")));
        }
        if le64(bytes, 0) != BLOCK_LEAF || le32(bytes, 24) != MAGIC {
            return Err(corrupt(format_args!("begins with {:#x}, magic {:#x}", le64(bytes, 0), le32(bytes, 24))));
        }
        let (hash_shift, chunks) = geometry(len);
        let leaf = Leaf { b, kind, hash_shift, chunks: chunks.min(usize::from(END)) };
        let plen = leaf.prefix_len();
        if plen + hash_shift > 64 || plen < 64 && leaf.prefix() >> plen != 0 {
            return Err(corrupt(format_args!("prefix {:#x} of {plen} bits", leaf.prefix())));
        }
        if usize::from(leaf.nfree()) > leaf.chunks {
            return Err(corrupt(format_args!("{} of {} chunks free", leaf.nfree(), leaf.chunks)));
        }
        Ok(leaf)
    }
    /// The block.
    pub fn into_inner(self) -> B {
        self.b
    }
    /// The block's bytes.
    pub fn bytes(&self) -> &[u8] {
        self.b.as_ref()
    }
    /// The kind of the keys.
    pub fn key_kind(&self) -> KeyKind {
        self.kind
    }
    /// The top bits that all hashes here share.
    pub fn prefix(&self) -> u64 {
        le64(self.bytes(), 16)
    }
    /// How many bits that is.
    pub fn prefix_len(&self) -> u32 {
        u32::from(le16(self.bytes(), 32))
    }
    /// Number of free chunks.
    pub fn nfree(&self) -> u16 {
        le16(self.bytes(), 28)
    }
    /// Number of entries.
    pub fn nentries(&self) -> u16 {
        le16(self.bytes(), 30)
    }
    /// Whether chains are promised to be in cd order (ZAPs that normalise names).
    pub fn is_sorted(&self) -> bool {
        self.bytes()[36] & FLAG_SORTED != 0
    }
    /// Whether this is the leaf for `hash`.
    pub fn covers(&self, hash: u64) -> bool {
        hash.checked_shr(64 - self.prefix_len()).unwrap_or(0) == self.prefix()
    }
    /// The lowest hash after those of this leaf, `None` for the last leaf: where a walk goes on.
    pub fn next_hash(&self) -> Option<u64> {
        let plen = self.prefix_len();
        if plen == 0 {
            return None;
        }
        let next = self.prefix() + 1;
        if plen < 64 && next >> plen != 0 { None } else { next.checked_shl(64 - plen) }
    }

    fn buckets(&self) -> usize {
        1 << self.hash_shift
    }
    fn bucket(&self, hash: u64) -> usize {
        (hash.checked_shr(64 - self.hash_shift - self.prefix_len()).unwrap_or(0) as usize) & (self.buckets() - 1)
    }
    fn head(&self, bucket: usize) -> u16 {
        le16(self.bytes(), HEADER + 2 * bucket)
    }
    fn chunk_at(&self, chunk: u16) -> usize {
        HEADER + 2 * self.buckets() + CHUNK * usize::from(chunk)
    }
    fn chunk(&self, chunk: u16, kind: u8) -> Result<&[u8]> {
        if usize::from(chunk) >= self.chunks {
            return Err(corrupt(format_args!("chunk {chunk} of {}", self.chunks)));
        }
        let at = self.chunk_at(chunk);
        let c = &self.bytes()[at..at + CHUNK];
        if c[0] != kind {
            return Err(corrupt(format_args!("chunk {chunk} is of kind {} where {kind} is wanted", c[0])));
        }
        Ok(c)
    }
    fn entry(&self, chunk: u16) -> Result<LeafEntry> {
        let c = self.chunk(chunk, KIND_ENTRY)?;
        let e = LeafEntry {
            chunk,
            int_size: c[1],
            next: le16(c, 2),
            name_chunk: le16(c, 4),
            name_numints: le16(c, 6),
            value_chunk: le16(c, 8),
            value_numints: le16(c, 10),
            cd: le32(c, 12),
            hash: le64(c, 16),
        };
        if !matches!(e.int_size, 1 | 2 | 4 | 8) {
            return Err(corrupt(format_args!("entry in chunk {chunk} has integers of {} bytes", e.int_size)));
        }
        if e.name_numints == 0 {
            return Err(corrupt(format_args!("entry in chunk {chunk} has no name")));
        }
        Ok(e)
    }
    /// The entries of a bucket in chain order.
    fn chain(&self, bucket: usize) -> impl Iterator<Item = Result<LeafEntry>> + '_ {
        let mut at = self.head(bucket);
        let mut left = self.chunks;
        std::iter::from_fn(move || {
            if at == END {
                return None;
            }
            if left == 0 {
                at = END;
                return Some(Err(corrupt(format_args!("chain of bucket {bucket} has no end"))));
            }
            left -= 1;
            let e = self.entry(at);
            at = e.as_ref().map_or(END, |e| e.next);
            Some(e)
        })
    }
    fn name_len(&self, e: &LeafEntry) -> usize {
        usize::from(e.name_numints) * self.kind.int_len()
    }
    /// The chunks of an array of `len` bytes.
    fn array_chunks(&self, first: u16, len: usize) -> Result<Vec<u16>> {
        let n = pieces(len);
        if n > self.chunks {
            return Err(corrupt(format_args!("array of {len} bytes")));
        }
        let mut v = Vec::with_capacity(n);
        let mut at = first;
        for _ in 0..n {
            let c = self.chunk(at, KIND_ARRAY)?;
            v.push(at);
            at = le16(c, 22);
        }
        Ok(v)
    }
    fn array(&self, first: u16, len: usize) -> Result<Vec<u8>> {
        let mut out = Vec::with_capacity(len.min(self.chunks * PIECE));
        for c in self.array_chunks(first, len)? {
            let take = (len - out.len()).min(PIECE);
            let at = self.chunk_at(c) + 1;
            out.extend_from_slice(&self.bytes()[at..at + take]);
        }
        Ok(out)
    }
    fn array_eq(&self, first: u16, want: &[u8]) -> Result<bool> {
        let mut at = first;
        for piece in want.chunks(PIECE) {
            let c = self.chunk(at, KIND_ARRAY)?;
            if c[1..1 + piece.len()] != *piece {
                return Ok(false);
            }
            at = le16(c, 22);
        }
        Ok(true)
    }
    /// The key of an entry: a name without its NUL, or words as big-endian bytes.
    pub fn key(&self, e: &LeafEntry) -> Result<Vec<u8>> {
        let mut k = self.array(e.name_chunk, self.name_len(e))?;
        if self.kind == KeyKind::String && (k.pop() != Some(0) || k.contains(&0)) {
            return Err(corrupt(format_args!("name in chunk {} does not end with its only NUL", e.name_chunk)));
        }
        Ok(k)
    }
    /// The value of an entry.
    pub fn value(&self, e: &LeafEntry) -> Result<ZapValue> {
        let bytes = self.array(e.value_chunk, usize::from(e.value_numints) * usize::from(e.int_size))?;
        Ok(ZapValue { int_size: e.int_size, bytes })
    }
    /// The entry with exactly this key.
    pub fn find(&self, hash: u64, key: &[u8]) -> Result<Option<LeafEntry>> {
        let len = stored_key_len(self.kind, key);
        for e in self.chain(self.bucket(hash)) {
            let e = e?;
            // The NUL at the end need not be compared: names hold none and the lengths agree.
            if e.hash == hash && self.name_len(&e) == len && self.array_eq(e.name_chunk, key)? {
                return Ok(Some(e));
            }
        }
        Ok(None)
    }
    /// The entry with this hash and the lowest cd whose key `matches`.
    pub fn find_by(&self, hash: u64, mut matches: impl FnMut(&[u8]) -> bool) -> Result<Option<LeafEntry>> {
        let mut best: Option<LeafEntry> = None;
        for e in self.chain(self.bucket(hash)) {
            let e = e?;
            if e.hash == hash && best.is_none_or(|b| e.cd < b.cd) && matches(&self.key(&e)?) {
                best = Some(e);
            }
        }
        Ok(best)
    }
    /// The lowest cd that no entry with this hash has.
    pub fn free_cd(&self, hash: u64) -> Result<u32> {
        let mut used = Vec::new();
        for e in self.chain(self.bucket(hash)) {
            let e = e?;
            if e.hash == hash {
                used.push(e.cd);
            }
        }
        used.sort_unstable();
        let mut want = 0;
        for cd in used {
            if cd == want {
                want += 1;
            }
        }
        Ok(want)
    }
    /// All entries in (hash, cd) order.
    pub fn entries(&self) -> Result<Vec<LeafEntry>> {
        let mut v = Vec::with_capacity(usize::from(self.nentries()).min(self.chunks));
        for bucket in 0..self.buckets() {
            for e in self.chain(bucket) {
                v.push(e?);
                if v.len() > self.chunks {
                    return Err(corrupt("more entries than chunks"));
                }
            }
        }
        v.sort_by_key(|e| (e.hash, e.cd, e.chunk));
        Ok(v)
    }
    /// The first entry at or after a place in (hash, cd) order.
    pub fn next_from(&self, hash: u64, cd: u32) -> Result<Option<LeafEntry>> {
        let start = if self.covers(hash) {
            self.bucket(hash)
        } else if hash.checked_shr(64 - self.prefix_len()).unwrap_or(0) < self.prefix() {
            0
        } else {
            return Ok(None);
        };
        for bucket in start..self.buckets() {
            let mut best: Option<LeafEntry> = None;
            for e in self.chain(bucket) {
                let e = e?;
                if (e.hash, e.cd) >= (hash, cd) && best.is_none_or(|b| (e.hash, e.cd) < (b.hash, b.cd)) {
                    best = Some(e);
                }
            }
            if best.is_some() {
                return Ok(best);
            }
        }
        Ok(None)
    }

    /// Verifies the whole leaf: every chunk is used exactly once or free, counts are right, every
    /// entry is in its bucket and belongs to the prefix.
    pub fn check(&self) -> Result<()> {
        let mut seen = vec![false; self.chunks];
        let mut mark = |c: u16| -> Result<()> {
            match seen.get_mut(usize::from(c)) {
                Some(s) if !*s => {
                    *s = true;
                    Ok(())
                }
                _ => Err(corrupt(format_args!("chunk {c} is used twice"))),
            }
        };
        let mut count = 0;
        for bucket in 0..self.buckets() {
            let mut last_cd = 0;
            for e in self.chain(bucket) {
                let e = e?;
                mark(e.chunk)?;
                count += 1;
                if !self.covers(e.hash) || self.bucket(e.hash) != bucket {
                    return Err(corrupt(format_args!("entry with hash {:#x} is in the wrong place", e.hash)));
                }
                if self.is_sorted() && e.cd < last_cd {
                    return Err(corrupt(format_args!("chain of bucket {bucket} is not in cd order")));
                }
                last_cd = e.cd;
                self.key(&e)?;
                for c in self.array_chunks(e.name_chunk, self.name_len(&e))? {
                    mark(c)?;
                }
                for c in self.array_chunks(e.value_chunk, usize::from(e.value_numints) * usize::from(e.int_size))? {
                    mark(c)?;
                }
            }
        }
        let mut free = 0;
        let mut at = le16(self.bytes(), 34);
        while at != END {
            let c = self.chunk(at, KIND_FREE)?;
            mark(at)?;
            free += 1;
            at = le16(c, 22);
        }
        if count != usize::from(self.nentries()) || free != usize::from(self.nfree()) || seen.contains(&false) {
            return Err(corrupt(format_args!(
                "{count} entries and {free} free chunks, header says {} and {}",
                self.nentries(),
                self.nfree()
            )));
        }
        Ok(())
    }

    /// The first `n` chunks of the free list, checked.
    fn free_chunks(&self, n: usize) -> Result<Vec<u16>> {
        let mut v = Vec::with_capacity(n);
        let mut at = le16(self.bytes(), 34);
        for _ in 0..n {
            let c = self.chunk(at, KIND_FREE)?;
            v.push(at);
            at = le16(c, 22);
        }
        let mut sorted = v.clone();
        sorted.sort_unstable();
        if sorted.windows(2).any(|w| w[0] == w[1]) {
            return Err(corrupt("free list runs in a circle"));
        }
        Ok(v)
    }
}

impl<B: AsRef<[u8]> + AsMut<[u8]>> Leaf<B> {
    /// Makes `b` an empty leaf. Its size is a power of two, 512 bytes to 1 MiB. `sorted`: the ZAP
    /// normalises names.
    pub fn init(mut b: B, kind: KeyKind, prefix: u64, prefix_len: u32, sorted: bool) -> Leaf<B> {
        let bytes = b.as_mut();
        let len = bytes.len();
        assert!((512..=1 << 20).contains(&len) && len.is_power_of_two(), "leaf of {len} bytes");
        bytes.fill(0);
        let (hash_shift, chunks) = geometry(len);
        let chunks = chunks.min(usize::from(END));
        put_le64(bytes, 0, BLOCK_LEAF);
        put_le64(bytes, 16, prefix);
        put_le32(bytes, 24, MAGIC);
        put_le16(bytes, 28, chunks as u16);
        put_le16(bytes, 32, prefix_len as u16);
        put_le16(bytes, 34, 0);
        bytes[36] = if sorted { FLAG_SORTED } else { 0 };
        bytes[HEADER..HEADER + (2 << hash_shift)].fill(0xff);
        let mut leaf = Leaf { b, kind, hash_shift, chunks };
        for i in 0..chunks {
            let at = leaf.chunk_at(i as u16);
            let c = &mut leaf.b.as_mut()[at..at + CHUNK];
            c[0] = KIND_FREE;
            put_le16(c, 22, if i + 1 == chunks { END } else { i as u16 + 1 });
        }
        leaf
    }

    fn put16(&mut self, off: usize, v: u16) {
        put_le16(self.b.as_mut(), off, v);
    }
    fn chunk_mut(&mut self, chunk: u16) -> &mut [u8] {
        let at = self.chunk_at(chunk);
        &mut self.b.as_mut()[at..at + CHUNK]
    }
    /// Takes chunks that [`Leaf::free_chunks`] gave off the free list.
    fn take(&mut self, taken: &[u16]) {
        if let Some(&last) = taken.last() {
            let next = le16(self.chunk_mut(last), 22);
            self.put16(34, next);
            let n = self.nfree() - taken.len() as u16;
            self.put16(28, n);
        }
    }
    fn give_back(&mut self, chunks: &[u16]) {
        for &c in chunks {
            let head = le16(self.bytes(), 34);
            let b = self.chunk_mut(c);
            b.fill(0);
            b[0] = KIND_FREE;
            put_le16(b, 22, head);
            self.put16(34, c);
        }
        let n = self.nfree() + chunks.len() as u16;
        self.put16(28, n);
    }
    /// Writes an array into chunks that have been taken; first chunk, or none for an empty array.
    fn write_array(&mut self, chunks: &[u16], bytes: &[u8]) -> u16 {
        for (i, (&c, piece)) in chunks.iter().zip(bytes.chunks(PIECE)).enumerate() {
            let next = chunks.get(i + 1).copied().unwrap_or(END);
            let b = self.chunk_mut(c);
            b.fill(0);
            b[0] = KIND_ARRAY;
            b[1..1 + piece.len()].copy_from_slice(piece);
            put_le16(b, 22, next);
        }
        chunks.first().copied().unwrap_or(END)
    }

    /// Adds an entry. The caller guarantees that the key is absent, and that a name of more than
    /// [`MAX_NAME`] bytes is in a directory. `cd`: as given, or the lowest free one. An entry too
    /// large for any leaf of this size is an error of kind `TooBig`.
    pub fn insert(&mut self, key: &[u8], hash: u64, cd: Option<u32>, value: &ZapValue) -> Result<LeafInsert> {
        value.check()?;
        let mut stored = key.to_vec();
        match self.kind {
            KeyKind::String if key.is_empty() || key.contains(&0) => {
                return Err(Error::invalid("ZAP name is empty or holds a NUL"));
            }
            KeyKind::String if key.len() > MAX_LONG_NAME => {
                return Err(Error::new(ErrorKind::NameTooLong, format!("ZAP name of {} bytes", key.len())));
            }
            KeyKind::String => stored.push(0),
            KeyKind::U64 if key.is_empty() || !key.len().is_multiple_of(8) || key.len() > MAX_NAME => {
                return Err(Error::invalid(format!("ZAP key of {} bytes where words are wanted", key.len())));
            }
            KeyKind::U64 => {}
        }
        let needed = chunks_needed(self.kind, key, value);
        if needed > self.chunks {
            return Err(Error::new(
                ErrorKind::TooBig,
                format!("ZAP entry needs {needed} chunks of a leaf's {}", self.chunks),
            ));
        }
        if !self.covers(hash) {
            return Err(corrupt(format_args!(
                "hash {hash:#x} does not belong to prefix {:#x} of {} bits",
                self.prefix(),
                self.prefix_len()
            )));
        }
        if usize::from(self.nfree()) < needed {
            return Ok(LeafInsert::NeedSplit);
        }
        let cd = match cd {
            Some(cd) => cd,
            None => self.free_cd(hash)?,
        };
        let bucket = self.bucket(hash);
        // The chain is in cd order: the new entry goes after all that have its cd or a lower one.
        let mut before: Option<u16> = None;
        let mut next = self.head(bucket);
        for e in self.chain(bucket) {
            let e = e?;
            if e.cd > cd {
                break;
            }
            before = Some(e.chunk);
            next = e.next;
        }
        let free = self.free_chunks(needed)?;
        let (entry_chunk, rest) = (free[0], &free[1..]);
        let (name_chunks, value_chunks) = rest.split_at(pieces(stored.len()));
        self.take(&free);
        let name_chunk = self.write_array(name_chunks, &stored);
        let value_chunk = self.write_array(value_chunks, &value.bytes);
        let name_numints = (stored.len() / self.kind.int_len()) as u16;
        let c = self.chunk_mut(entry_chunk);
        c[0] = KIND_ENTRY;
        c[1] = value.int_size;
        put_le16(c, 2, next);
        put_le16(c, 4, name_chunk);
        put_le16(c, 6, name_numints);
        put_le16(c, 8, value_chunk);
        put_le16(c, 10, value.num_ints() as u16);
        put_le32(c, 12, cd);
        put_le64(c, 16, hash);
        match before {
            Some(p) => put_le16(self.chunk_mut(p), 2, entry_chunk),
            None => self.put16(HEADER + 2 * bucket, entry_chunk),
        }
        let n = self.nentries() + 1;
        self.put16(30, n);
        Ok(LeafInsert::Done(cd))
    }

    /// Removes an entry that a lookup has just given.
    pub fn remove(&mut self, entry: &LeafEntry) -> Result<()> {
        let bucket = self.bucket(entry.hash);
        let mut before: Option<u16> = None;
        let mut found = false;
        for e in self.chain(bucket) {
            let e = e?;
            if e.chunk == entry.chunk {
                found = true;
                break;
            }
            before = Some(e.chunk);
        }
        if !found || self.nentries() == 0 {
            return Err(corrupt(format_args!("entry in chunk {} is not in its chain", entry.chunk)));
        }
        let mut chunks = self.array_chunks(entry.name_chunk, self.name_len(entry))?;
        chunks.extend(
            self.array_chunks(entry.value_chunk, usize::from(entry.value_numints) * usize::from(entry.int_size))?,
        );
        chunks.push(entry.chunk);
        self.check_to_free(&chunks)?;
        match before {
            Some(p) => put_le16(self.chunk_mut(p), 2, entry.next),
            None => self.put16(HEADER + 2 * bucket, entry.next),
        }
        self.give_back(&chunks);
        let n = self.nentries() - 1;
        self.put16(30, n);
        Ok(())
    }

    fn check_to_free(&self, chunks: &[u16]) -> Result<()> {
        let mut sorted = chunks.to_vec();
        sorted.sort_unstable();
        if sorted.windows(2).any(|w| w[0] == w[1]) || usize::from(self.nfree()) + chunks.len() > self.chunks {
            return Err(corrupt("an entry's chunks are used twice"));
        }
        Ok(())
    }

    /// Replaces the value of an entry that a lookup has just given.
    pub fn update(&mut self, entry: &LeafEntry, value: &ZapValue) -> Result<LeafInsert> {
        value.check()?;
        let entry = self.entry(entry.chunk)?;
        let old =
            self.array_chunks(entry.value_chunk, usize::from(entry.value_numints) * usize::from(entry.int_size))?;
        self.check_to_free(&old)?;
        let needed = pieces(value.bytes.len());
        if 1 + pieces(self.name_len(&entry)) + needed > self.chunks {
            return Err(Error::new(
                ErrorKind::TooBig,
                format!("ZAP value needs {needed} chunks of a leaf's {}", self.chunks),
            ));
        }
        if usize::from(self.nfree()) + old.len() < needed {
            return Ok(LeafInsert::NeedSplit);
        }
        let mut chunks: Vec<u16> = old.iter().copied().take(needed).collect();
        let more = self.free_chunks(needed - chunks.len())?;
        if more.iter().any(|c| old.contains(c)) {
            return Err(corrupt("an entry's chunks are free"));
        }
        self.take(&more);
        chunks.extend(more);
        let surplus = old.get(needed..).unwrap_or(&[]);
        self.give_back(surplus);
        let value_chunk = self.write_array(&chunks, &value.bytes);
        let c = self.chunk_mut(entry.chunk);
        c[1] = value.int_size;
        put_le16(c, 8, value_chunk);
        put_le16(c, 10, value.num_ints() as u16);
        Ok(LeafInsert::Done(entry.cd))
    }

    /// Moves the entries whose next hash bit is 1 to a new leaf in `new`, a block of the same size.
    /// On an error neither this leaf nor `new` is usable as one of two halves: this leaf is
    /// unchanged.
    pub fn split<N: AsRef<[u8]> + AsMut<[u8]>>(&mut self, new: N) -> Result<Leaf<N>> {
        let plen = self.prefix_len();
        if plen >= 48 || self.prefix_len() + 1 + self.hash_shift > 64 {
            return Err(Error::new(ErrorKind::NoSpace, "fat ZAP leaf cannot be split further"));
        }
        assert_eq!(new.as_ref().len(), self.bytes().len(), "halves of a leaf differ in size");
        let (kind, sorted) = (self.kind, self.is_sorted());
        let mut low = Leaf::init(vec![0u8; self.bytes().len()], kind, self.prefix() << 1, plen + 1, sorted);
        let mut high = Leaf::init(new, kind, self.prefix() << 1 | 1, plen + 1, sorted);
        for e in self.entries()? {
            let (key, value) = (self.key(&e)?, self.value(&e)?);
            let done = if high.covers(e.hash) {
                high.insert(&key, e.hash, Some(e.cd), &value)?
            } else {
                low.insert(&key, e.hash, Some(e.cd), &value)?
            };
            if done == LeafInsert::NeedSplit {
                return Err(corrupt("entries hold more than the leaf can"));
            }
        }
        self.b.as_mut().copy_from_slice(low.bytes());
        Ok(high)
    }
}
