//! Chunks of address space from the world, cut into buffers of one size each.
//!
//! A C library's allocator serves page-aligned requests badly: its header before each block costs
//! another page, half as much memory again for blocks of 8 KiB, and first touch of its memory is
//! page by page. Where the world offers a [`ChunkSource`], buffers come from chunks of 2 MiB
//! instead, which the kernel backs once and for all, because first touches are expensive. A chunk
//! belongs to one size class until its last block is given back; then it serves any class. Chunks
//! are never given back, so the process keeps the address space of its peak, but the world may take
//! the memory of empty ones when it is short.
//!
//! Invariants: there are never more chunks than blocks in use have needed at some time;
//! `partial[class]` holds exactly the chunks of the class with room, each at `Chunk::at`; a block
//! belongs to the chunk at its address rounded down; blocks from outside the chunks are not found
//! here and belong to their allocator.

use std::collections::BTreeMap;
use std::ptr::NonNull;
use std::sync::{Mutex, OnceLock, PoisonError};

/// Bytes of a chunk, and its alignment.
pub const CHUNK: usize = 2 << 20;
/// Empty chunks that stay backed: 32 MiB. The world may reclaim the memory of further ones.
const RESERVE: usize = 16;
/// A class that would waste more than this of a chunk is not served.
const WASTE_MAX: usize = CHUNK / 8;

/// Where chunks come from.
#[derive(Clone, Copy, Debug)]
pub struct ChunkSource {
    /// [`CHUNK`] zero bytes of memory at a multiple of [`CHUNK`]; `None` if there is none to be
    /// had.
    pub map: fn() -> Option<NonNull<u8>>,
    /// The content of a chunk is no longer needed: the memory behind it may be taken away, to come
    /// back as zeros.
    ///
    /// # Safety
    /// The chunk came from `map` of the same source, and nothing refers to it.
    pub idle: unsafe fn(NonNull<u8>),
}

/// Memory use of the arena, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct ArenaStats {
    /// Blocks in use.
    pub live: usize,
    /// Chunks with blocks in use.
    pub used: usize,
    /// Empty chunks.
    pub reserve: usize,
}

/// Block addresses are plain numbers here, so that the arena can be shared by threads.
struct Chunk {
    class: usize,
    /// Blocks in use.
    live: usize,
    /// Blocks given back, by number.
    free: Vec<u16>,
    /// Blocks from this number on were never used.
    carved: usize,
    /// Blocks from `carved` on read as zero.
    fresh: bool,
    /// Place in the list of chunks with room.
    at: usize,
}

#[derive(Default)]
struct Arena {
    chunks: BTreeMap<usize, Chunk>,
    partial: Vec<Vec<usize>>,
    /// Empty chunks, the last used last.
    reserve: Vec<usize>,
    /// How many of them, from the first on, are idle.
    idle: usize,
    live: usize,
}

static SOURCE: OnceLock<ChunkSource> = OnceLock::new();
static ARENA: Mutex<Option<Arena>> = Mutex::new(None);

/// Sets the source of buffer memory for the whole process; the first call decides. The default is
/// the global allocator.
pub fn set_chunk_source(source: ChunkSource) {
    let _ = SOURCE.set(source);
}

fn with<R>(f: impl FnOnce(&mut Arena) -> R) -> R {
    let mut arena = ARENA.lock().unwrap_or_else(PoisonError::into_inner);
    f(arena.get_or_insert_default())
}

fn blocks_of(bytes: usize) -> usize {
    CHUNK / bytes
}

/// A block of `class`, whose blocks have `bytes`, and whether it may hold old bytes (else it is
/// zero); `None` if the arena does not serve it.
pub(crate) fn take(class: usize, bytes: usize) -> Option<(NonNull<u8>, bool)> {
    let source = SOURCE.get()?;
    if bytes > CHUNK || CHUNK % bytes > WASTE_MAX {
        return None;
    }
    with(|a| a.take(class, bytes, source))
}

/// Takes back a block of `bytes`; false if it is not one of the arena's.
pub(crate) fn give(p: NonNull<u8>, bytes: usize) -> bool {
    let Some(source) = SOURCE.get() else { return false };
    if bytes > CHUNK || CHUNK % bytes > WASTE_MAX {
        return false;
    }
    with(|a| a.give(p.as_ptr().expose_provenance(), bytes, source))
}

/// Memory use of the process's arena.
pub fn arena_stats() -> ArenaStats {
    with(|a| ArenaStats { live: a.live, used: a.chunks.len() * CHUNK, reserve: a.reserve.len() * CHUNK })
}

fn pointer(addr: usize) -> NonNull<u8> {
    NonNull::new(std::ptr::with_exposed_provenance_mut(addr)).expect("chunks are not at address 0")
}

impl Arena {
    fn take(&mut self, class: usize, bytes: usize, source: &ChunkSource) -> Option<(NonNull<u8>, bool)> {
        if self.partial.len() <= class {
            self.partial.resize_with(class + 1, Vec::new);
        }
        let base = match self.partial[class].last() {
            Some(&base) => base,
            None => self.add(class, source)?,
        };
        let c = self.chunks.get_mut(&base).expect("listed chunks exist");
        c.live += 1;
        self.live += bytes;
        let (n, old) = match c.free.pop() {
            Some(n) => (usize::from(n), true),
            None => {
                c.carved += 1;
                (c.carved - 1, !c.fresh)
            }
        };
        if c.free.is_empty() && c.carved == blocks_of(bytes) {
            // It is the last of the list.
            self.partial[class].pop();
        }
        Some((pointer(base + n * bytes), old))
    }

    fn add(&mut self, class: usize, source: &ChunkSource) -> Option<usize> {
        let (base, fresh) = match self.reserve.pop() {
            Some(base) => {
                self.idle = self.idle.min(self.reserve.len());
                (base, false)
            }
            None => ((source.map)()?.as_ptr().expose_provenance(), true),
        };
        assert!(base.is_multiple_of(CHUNK), "chunks are aligned");
        let at = self.partial[class].len();
        self.partial[class].push(base);
        self.chunks.insert(base, Chunk { class, live: 0, free: Vec::new(), carved: 0, fresh, at });
        Some(base)
    }

    /// False if the block is not one of ours.
    fn give(&mut self, addr: usize, bytes: usize, source: &ChunkSource) -> bool {
        let base = addr & !(CHUNK - 1);
        let Some(c) = self.chunks.get_mut(&base) else { return false };
        let n = (addr - base) / bytes;
        let known = n < c.carved && c.live > 0 && (addr - base).is_multiple_of(bytes);
        assert!(known, "a block is given back once, with its size");
        let was_full = c.free.is_empty() && c.carved == blocks_of(bytes);
        c.live -= 1;
        c.free.push(n as u16);
        self.live -= bytes;
        let (class, at, empty) = (c.class, c.at, c.live == 0);
        if !empty {
            if was_full {
                c.at = self.partial[class].len();
                self.partial[class].push(base);
            }
            return true;
        }
        if !was_full {
            let list = &mut self.partial[class];
            list.swap_remove(at);
            if let Some(&moved) = list.get(at) {
                self.chunks.get_mut(&moved).expect("listed chunks exist").at = at;
            }
        }
        self.chunks.remove(&base);
        self.reserve.push(base);
        if self.reserve.len() - self.idle > RESERVE {
            // SAFETY: the chunk came from the one source that there is, and its last block was
            // given back.
            unsafe { (source.idle)(pointer(self.reserve[self.idle])) };
            self.idle += 1;
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::alloc::{Layout, alloc_zeroed};

    fn map() -> Option<NonNull<u8>> {
        let layout = Layout::from_size_align(CHUNK, CHUNK).expect("a power of two");
        // SAFETY: the layout is not empty. (It is never freed, as chunks are not.)
        NonNull::new(unsafe { alloc_zeroed(layout) })
    }
    unsafe fn idle(p: NonNull<u8>) {
        // SAFETY: a chunk from `map`.
        unsafe { p.as_ptr().write_bytes(0, CHUNK) }
    }

    #[test]
    fn blocks_are_disjoint_and_chunks_return() {
        let source = ChunkSource { map, idle };
        let mut a = Arena::default();
        let sizes = [4096usize, 8192, 12288, 131_072, 1 << 20];
        let (mut live, mut most) = (BTreeMap::<usize, usize>::new(), 0);
        let mut x = 7u64;
        let mut rnd = |n: u64| {
            x = x.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (x >> 33) % n
        };
        for round in 0..6000u64 {
            if rnd(1000) < if round / 1000 % 2 == 0 { 700 } else { 350 } {
                let class = rnd(5) as usize;
                let (p, old) = a.take(class, sizes[class], &source).expect("memory");
                let addr = p.as_ptr().addr();
                // SAFETY: the block is ours and of that size, and initialised.
                let bytes = unsafe { std::slice::from_raw_parts_mut(p.as_ptr(), sizes[class]) };
                assert!(old || bytes.iter().all(|&b| b == 0), "new blocks are zero");
                bytes[..8].fill(0xff);
                assert!(addr.is_multiple_of(4096));
                let before = live.range(..addr + sizes[class]).next_back();
                assert!(before.is_none_or(|(&s, &c)| s + sizes[c] <= addr), "blocks are disjoint");
                live.insert(addr, class);
            } else if !live.is_empty() {
                let i = rnd(live.len() as u64) as usize;
                let (&addr, &class) = live.iter().nth(i).expect("below the length");
                live.remove(&addr);
                assert!(a.give(addr, sizes[class], &source), "one of ours");
            }
            let used: usize = a.chunks.values().map(|c| c.live).sum();
            assert_eq!(used, live.len());
            assert_eq!(a.live, live.values().map(|&c| sizes[c]).sum::<usize>());
            most = most.max(a.chunks.len());
            assert_eq!(a.chunks.len() + a.reserve.len(), most, "no chunk is asked for while one is empty");
            assert_eq!(a.idle, a.idle.max(a.reserve.len().saturating_sub(RESERVE)));
        }
        for (addr, class) in live {
            assert!(a.give(addr, sizes[class], &source), "one of ours");
        }
        assert!(a.chunks.is_empty() && a.partial.iter().all(Vec::is_empty) && a.reserve.len() == most);
        assert!(!a.give(4096, 4096, &source), "others' memory is not taken");
    }
}
