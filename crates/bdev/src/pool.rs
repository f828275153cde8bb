//! Recycling of buffer memory, per thread and by size class.
//!
//! First touch of fresh pages costs several times as much as the copy into them (0.3 GB/s was
//! measured on a machine whose hypervisor has to supply the page), and the C library gives large
//! allocations back to the kernel as soon as they are freed. So dropped memory waits here for its
//! next use. The list is bounded in bytes per thread; memory beyond the bound is freed. Memory in
//! the list is initialised: it holds its last owner's content.
//!
//! Where the world has set up the arena (`arena`), it serves most sizes instead: buffers kept here
//! would keep its chunks from becoming empty.
//!
//! Classes: every whole number of pages up to 16, then four steps per power of two up to 16 MiB and
//! its neighbourhood. Larger requests are rounded to pages and never kept.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::cell::RefCell;
use std::ptr::NonNull;

use crate::{PAGE, arena};

/// Classes of one page to 16 pages, one per page.
const SMALL: usize = 16;
/// Most pages that a kept allocation may have: one step above 16 MiB, so that a largest block with
/// a header still fits.
const MAX_PAGES: usize = 5120;
/// One past the largest class index.
const CLASSES: usize = 64;
/// Bytes that a thread keeps by default.
const DEFAULT_LIMIT: usize = 64 << 20;

struct Lists {
    free: Vec<Vec<NonNull<u8>>>,
    held: usize,
    limit: usize,
}

impl Lists {
    fn trim_to(&mut self, limit: usize) {
        for class in (0..self.free.len()).rev() {
            while self.held > limit
                && let Some(p) = self.free[class].pop()
            {
                let cap = class_bytes(class);
                self.held -= cap;
                free_now(p, cap);
            }
        }
    }
}

impl Drop for Lists {
    fn drop(&mut self) {
        self.trim_to(0);
    }
}

thread_local! {
    static LISTS: RefCell<Lists> =
        RefCell::new(Lists { free: (0..CLASSES).map(|_| Vec::new()).collect(), held: 0, limit: DEFAULT_LIMIT });
}

/// Sets how many bytes of dropped buffers the calling thread keeps for reuse, and frees the excess.
pub fn set_thread_limit(bytes: usize) {
    let _ = LISTS.try_with(|l| {
        let mut l = l.borrow_mut();
        l.limit = bytes;
        l.trim_to(bytes);
    });
}

/// Bytes of dropped buffers that the calling thread keeps for reuse now.
pub fn thread_pooled() -> usize {
    LISTS.try_with(|l| l.borrow().held).unwrap_or(0)
}

/// The class of a request of `pages` pages and the pages that the class holds; no class for
/// requests that are never pooled.
fn class_of(pages: usize) -> (Option<usize>, usize) {
    if pages <= SMALL {
        return (Some(pages - 1), pages);
    }
    if pages > MAX_PAGES {
        return (None, pages);
    }
    let k = (pages - 1).ilog2() as usize;
    let step = 1usize << (k - 2);
    let rounded = pages.next_multiple_of(step);
    let class = SMALL + (k - 4) * 4 + (rounded - (1 << k)) / step - 1;
    (Some(class), rounded)
}

/// Bytes of an allocation in `class`; the inverse of [`class_of`].
fn class_bytes(class: usize) -> usize {
    if class < SMALL {
        return (class + 1) * PAGE;
    }
    let (k, quarter) = ((class - SMALL) / 4 + 4, (class - SMALL) % 4 + 1);
    ((1 << k) + quarter * (1 << (k - 2))) * PAGE
}

/// Bytes that an allocation for `len` bytes (not 0) really has.
fn capacity_for(len: usize) -> (Option<usize>, usize) {
    let (class, pages) = class_of(len.div_ceil(PAGE));
    (class, pages.checked_mul(PAGE).expect("a buffer length near the address space's end is a caller's bug"))
}

/// Initialised memory of at least `len` bytes, `len` not 0: where it starts, its capacity, and
/// whether it was recycled (then it holds old bytes; otherwise zeros).
pub(crate) fn take(len: usize) -> (NonNull<u8>, usize, bool) {
    let (class, cap) = capacity_for(len);
    if let Some(class) = class {
        if let Some((p, old)) = arena::take(class, cap) {
            return (p, cap, old);
        }
        let hit = LISTS.try_with(|l| {
            let mut l = l.borrow_mut();
            let p = l.free[class].pop();
            if p.is_some() {
                l.held -= cap;
            }
            p
        });
        if let Ok(Some(p)) = hit {
            return (p, cap, true);
        }
    }
    let layout = Layout::from_size_align(cap, PAGE).expect("a page-rounded capacity makes a layout");
    // SAFETY: the layout has a size above 0 since `len` is.
    let p = unsafe { alloc_zeroed(layout) };
    match NonNull::new(p) {
        Some(p) => (p, cap, false),
        None => handle_alloc_error(layout),
    }
}

/// Takes back memory that [`take`] gave with capacity `cap`.
pub(crate) fn give(p: NonNull<u8>, cap: usize) {
    if let (Some(class), rounded) = class_of(cap / PAGE) {
        debug_assert_eq!(rounded * PAGE, cap);
        if arena::give(p, cap) {
            return;
        }
        let kept = LISTS.try_with(|l| {
            let mut l = l.borrow_mut();
            let fits = l.held + cap <= l.limit;
            if fits {
                l.held += cap;
                l.free[class].push(p);
            }
            fits
        });
        if kept.unwrap_or(false) {
            return;
        }
    }
    free_now(p, cap);
}

fn free_now(p: NonNull<u8>, cap: usize) {
    let layout = Layout::from_size_align(cap, PAGE).expect("the same layout was made when this was allocated");
    // SAFETY: `p` did not come from the arena, so from `alloc_zeroed` with this very layout; its
    // owner has just given it up.
    unsafe { dealloc(p.as_ptr(), layout) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_cover_every_size_and_invert() {
        let mut last = None;
        for pages in 1..=MAX_PAGES {
            let (class, rounded) = class_of(pages);
            let class = class.expect("below the bound");
            assert!(class < CLASSES);
            assert!(rounded >= pages && rounded * 4 <= pages * 5 + 4, "{pages} -> {rounded}");
            assert_eq!(class_bytes(class), rounded * PAGE);
            assert_eq!(class_of(rounded), (Some(class), rounded), "capacity maps to its own class");
            assert!(last <= Some(class));
            last = Some(class);
        }
        assert_eq!(class_of(MAX_PAGES + 1), (None, MAX_PAGES + 1));
        for bytes in [4096usize, 8192, 65536, 128 << 10, 1 << 20, 16 << 20] {
            assert_eq!(capacity_for(bytes).1, bytes, "common block sizes waste nothing");
        }
    }

    #[test]
    fn memory_returns_and_the_bound_holds() {
        set_thread_limit(0);
        set_thread_limit(256 << 10);
        let (p, cap, recycled) = take(100_000);
        assert!(!recycled);
        give(p, cap);
        assert_eq!(thread_pooled(), cap);
        let (q, cap2, recycled) = take(100_001);
        assert!(recycled);
        assert_eq!((p, cap), (q, cap2));
        give(q, cap2);
        let many: Vec<_> = (0..8).map(|_| take(128 << 10)).collect();
        for (p, cap, _) in many {
            give(p, cap);
        }
        assert!(thread_pooled() <= 256 << 10);
        set_thread_limit(0);
        assert_eq!(thread_pooled(), 0);
    }
}
