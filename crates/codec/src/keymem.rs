//! Memory for keys: kept out of swap and core files, and overwritten when a key goes.
//!
//! A [`KeyMemory`] belongs to one pool. It takes page-aligned *chunks* from the allocator, has the
//! world lock each ([`base::PageLock`]), and cuts them into *slots* of one size. A [`KeyBox`] owns
//! one slot and the value in it: a wrapping key, a master key, a passphrase on its way to PBKDF2,
//! an AES key schedule. Dropping the box drops the value, overwrites the slot and gives it back.
//! Chunks stay until the memory and all its boxes are gone, so that locked pages are few and
//! contiguous (each locked range costs the kernel a mapping).
//!
//! Slots are taken on the engine thread; boxes may be made and dropped on any ([`KeySlot`]): jobs
//! of CPU threads share ciphers, or make one of their own.
//!
//! Values that are computed before they are boxed, and the stack frames of ciphers, are overwritten
//! by [`burn_stack`] before control leaves this crate.
//!
//! A system that does not lock (`RLIMIT_MEMLOCK`) gives memory that may be swapped;
//! [`KeyMemory::is_locked`] is then false.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::cell::{Cell, RefCell};
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use base::PageLock;
use zeroize::Zeroize;

/// Bytes of a chunk: eight pages of 4 KiB, well below the 64 KiB that old systems let a user lock.
const CHUNK: usize = 32 << 10;
/// Alignment of a chunk: the page of all machines with AES-NI, and a divisor of the pages of
/// others.
const PAGE: usize = 4096;
/// Bytes of a slot: the largest cipher, AES-256 with its GHASH key, fits in.
const SLOT: usize = 1280;
/// Slots of a chunk.
const SLOTS: usize = CHUNK / SLOT;
/// Stack that is overwritten, in words of 8 bytes. Ciphers, HMAC and PBKDF2 use less than 8 KiB.
const BURN_WORDS: usize = 2048;

/// A part of the memory that is allocated and locked at once.
struct Chunk {
    at: NonNull<u8>,
    used: [AtomicBool; SLOTS],
    lock: Option<Arc<dyn PageLock>>,
}

// SAFETY: the memory is reached only through boxes, each of which owns its slot alone; the flags
// are atomic.
unsafe impl Send for Chunk {}
// SAFETY: as above.
unsafe impl Sync for Chunk {}

impl Chunk {
    fn layout() -> Layout {
        Layout::from_size_align(CHUNK, PAGE).expect("both are powers of two")
    }

    /// A new chunk, and whether it is locked.
    fn new(lock: Option<Arc<dyn PageLock>>) -> (Arc<Chunk>, bool) {
        // SAFETY: the layout has a size that is not zero.
        let at = unsafe { alloc_zeroed(Chunk::layout()) };
        let Some(at) = NonNull::new(at) else { handle_alloc_error(Chunk::layout()) };
        // SAFETY: the memory was just allocated with this size, is initialised, and has no other
        // user yet.
        let pages = unsafe { std::slice::from_raw_parts(at.as_ptr(), CHUNK) };
        let lock = lock.filter(|l| l.lock(pages));
        let locked = lock.is_some();
        (Arc::new(Chunk { at, used: std::array::from_fn(|_| AtomicBool::new(false)), lock }), locked)
    }

    /// Takes a slot, if one is free.
    fn take(&self) -> Option<usize> {
        (0..SLOTS).find(|n| self.used[*n].compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed).is_ok())
    }

    fn slot(&self, n: usize) -> NonNull<u8> {
        assert!(n < SLOTS);
        // SAFETY: the slot lies within the chunk.
        unsafe { self.at.add(n * SLOT) }
    }
}

impl Drop for Chunk {
    fn drop(&mut self) {
        if let Some(lock) = &self.lock {
            // SAFETY: the memory is ours until the next statement, and no box is left.
            lock.unlock(unsafe { std::slice::from_raw_parts(self.at.as_ptr(), CHUNK) });
        }
        // SAFETY: allocated with this layout; every box holds the chunk, so none is left.
        unsafe { dealloc(self.at.as_ptr(), Chunk::layout()) };
    }
}

/// The memory for the keys of a pool.
pub struct KeyMemory {
    lock: Option<Arc<dyn PageLock>>,
    chunks: RefCell<Vec<Arc<Chunk>>>,
    locked: Cell<bool>,
}

impl std::fmt::Debug for KeyMemory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "KeyMemory({} chunks)", self.chunks.borrow().len())
    }
}

impl KeyMemory {
    /// Memory that `lock` locks; with none it is only overwritten.
    pub fn new(lock: Option<Arc<dyn PageLock>>) -> KeyMemory {
        KeyMemory { lock, chunks: RefCell::default(), locked: Cell::new(true) }
    }

    /// False once the system refused to lock a part of it.
    pub fn is_locked(&self) -> bool {
        self.locked.get()
    }

    /// A free slot.
    pub fn slot(&self) -> KeySlot {
        let mut chunks = self.chunks.borrow_mut();
        if let Some(found) = chunks.iter().find_map(|c| c.take().map(|n| KeySlot { chunk: c.clone(), n })) {
            return found;
        }
        let (chunk, locked) = Chunk::new(self.lock.clone());
        self.locked.set(self.locked.get() && locked);
        let n = chunk.take().expect("a new chunk has free slots");
        chunks.push(chunk.clone());
        KeySlot { chunk, n }
    }
}

/// A slot of a [`KeyMemory`] for one [`KeyBox`], which any thread may make. Dropped with its box or
/// unused it is overwritten and free again.
pub struct KeySlot {
    chunk: Arc<Chunk>,
    n: usize,
}

impl std::fmt::Debug for KeySlot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "KeySlot({})", self.n)
    }
}

impl KeySlot {
    fn place(&self) -> NonNull<u8> {
        self.chunk.slot(self.n)
    }
}

impl Drop for KeySlot {
    fn drop(&mut self) {
        // SAFETY: the slot is owned alone, and its value is gone: it is bytes without other
        // references. The memory of a chunk is initialised.
        let bytes = unsafe { std::slice::from_raw_parts_mut(self.place().as_ptr(), SLOT) };
        bytes.zeroize();
        self.chunk.used[self.n].store(false, Ordering::Release);
    }
}

/// A value in a slot of a [`KeyMemory`]; overwritten when it is dropped.
pub struct KeyBox<T> {
    slot: KeySlot,
    value: PhantomData<T>,
}

// SAFETY: the box owns its value alone, as `Box` does.
unsafe impl<T: Send> Send for KeyBox<T> {}
// SAFETY: a shared box gives shared references only.
unsafe impl<T: Sync> Sync for KeyBox<T> {}

impl<T> std::fmt::Debug for KeyBox<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("KeyBox")
    }
}

impl<T> KeyBox<T> {
    /// Puts a value into a slot. Copies of it on the stack are the caller's ([`burn_stack`]).
    pub fn new(memory: &KeyMemory, value: T) -> KeyBox<T> {
        KeyBox::within(memory.slot(), value)
    }

    /// As [`KeyBox::new`] in a slot that was taken before.
    pub fn within(slot: KeySlot, value: T) -> KeyBox<T> {
        const {
            assert!(size_of::<T>() <= SLOT && align_of::<T>() <= 256 && SLOT.is_multiple_of(256));
        }
        // SAFETY: the slot is large enough and aligned (checked above), and not shared.
        unsafe { slot.place().cast::<T>().write(value) };
        KeyBox { slot, value: PhantomData }
    }

    fn place(&self) -> NonNull<T> {
        self.slot.place().cast()
    }
}

impl<T> Deref for KeyBox<T> {
    type Target = T;
    fn deref(&self) -> &T {
        // SAFETY: the slot has a value of this type for as long as the box lives.
        unsafe { self.place().as_ref() }
    }
}

impl<T> DerefMut for KeyBox<T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as for shared references, and the box is borrowed alone.
        unsafe { self.place().as_mut() }
    }
}

impl<T> Drop for KeyBox<T> {
    fn drop(&mut self) {
        // SAFETY: the value is dropped once, here; then the slot goes.
        unsafe { self.place().drop_in_place() };
    }
}

/// Overwrites the stack below the caller, where functions that it has called left keys. The
/// caller's own variables are not reached: work with keys is in functions that are not inlined.
#[inline(never)]
pub(crate) fn burn_stack() {
    let mut area = [0u64; BURN_WORDS];
    area.zeroize();
    std::hint::black_box(&mut area);
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use super::*;

    /// Counts locked bytes; refuses beyond a limit.
    struct Meter {
        bytes: AtomicUsize,
        limit: usize,
    }

    impl PageLock for Meter {
        fn lock(&self, pages: &[u8]) -> bool {
            assert!(pages.as_ptr().addr().is_multiple_of(PAGE) && pages.len().is_multiple_of(PAGE));
            let fits = self.bytes.load(Ordering::Relaxed) + pages.len() <= self.limit;
            if fits {
                self.bytes.fetch_add(pages.len(), Ordering::Relaxed);
            }
            fits
        }
        fn unlock(&self, pages: &[u8]) {
            self.bytes.fetch_sub(pages.len(), Ordering::Relaxed);
        }
    }

    #[test]
    fn slots_are_overwritten_and_used_again() {
        let memory = KeyMemory::new(None);
        let first = KeyBox::new(&memory, [0xa5u8; 64]);
        let (_held, at) = (first.slot.chunk.clone(), first.slot.place());
        // SAFETY: the chunk is held, and its memory is always initialised.
        let look = || unsafe { std::slice::from_raw_parts(at.as_ptr(), SLOT) }.to_vec();
        assert_eq!(look()[..64], [0xa5; 64]);
        drop(first);
        assert_eq!(look(), vec![0; SLOT]);
        let again = KeyBox::new(&memory, 7u64);
        assert_eq!((again.place().cast(), *again), (at, 7));
        drop(again);
        // A slot goes to another thread, and comes back unused or with a box.
        let made = std::thread::spawn({
            let slot = memory.slot();
            move || KeyBox::within(slot, 9u64)
        });
        let made = made.join().unwrap();
        assert_eq!((made.place().cast(), *made), (at, 9));
        drop(made);
        assert_eq!(look(), vec![0; SLOT]);
        drop(memory.slot());
        assert_eq!(memory.slot().place(), at);
    }

    #[test]
    fn chunks_are_locked_until_the_last_box_goes() {
        let meter = Arc::new(Meter { bytes: AtomicUsize::new(0), limit: 2 * CHUNK });
        let memory = KeyMemory::new(Some(meter.clone()));
        let mut boxes: Vec<KeyBox<u64>> = (0..=SLOTS as u64).map(|n| KeyBox::new(&memory, n)).collect();
        assert_eq!((meter.bytes.load(Ordering::Relaxed), memory.is_locked()), (2 * CHUNK, true));
        boxes.extend((0..SLOTS as u64).map(|n| KeyBox::new(&memory, n)));
        // The third chunk was not locked: it works, and `is_locked` is false.
        assert_eq!((meter.bytes.load(Ordering::Relaxed), memory.is_locked()), (2 * CHUNK, false));
        assert!(boxes.iter().zip((0..=SLOTS as u64).chain(0..)).all(|(b, n)| **b == n));
        drop(memory);
        std::thread::spawn(move || drop(boxes)).join().unwrap();
        assert_eq!(meter.bytes.load(Ordering::Relaxed), 0);
    }
}
