//! The mutable half: one owner, a fixed length, page alignment.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

use crate::{Bytes, pool};

/// The alignment of every [`Buf`] and the granule of its memory, in bytes: enough for direct I/O on
/// any device known.
pub const PAGE: usize = 4096;

/// Fill byte of recycled memory in debug builds, so that a use of stale bytes shows, and shows the
/// same each time.
#[cfg(debug_assertions)]
const STALE: u8 = 0xdb;

/// Owned memory, aligned to [`PAGE`], of a length that only [`Buf::truncate`] changes. Always
/// initialised.
///
/// Its memory returns to the dropping thread's free list, see [`crate::set_thread_limit`].
pub struct Buf {
    ptr: NonNull<u8>,
    len: usize,
    /// Capacity from `pool::take`; 0 exactly if nothing was taken.
    cap: usize,
}

// SAFETY: a Buf is the only owner of its memory and hands out references only through &self and
// &mut self.
unsafe impl Send for Buf {}
// SAFETY: as above; &Buf gives only &[u8].
unsafe impl Sync for Buf {}

impl Buf {
    /// `len` zero bytes.
    pub fn zeroed(len: usize) -> Buf {
        let (mut b, recycled) = Buf::take(len);
        if recycled {
            b.fill(0);
        }
        b
    }

    /// `len` bytes of unspecified content, for a caller that writes all of them. The memory is
    /// initialised, so reading it is defined, but it may hold another buffer's old content: never
    /// let it reach a disk or a client.
    pub fn for_overwrite(len: usize) -> Buf {
        #[allow(unused_mut)]
        let (mut b, _recycled) = Buf::take(len);
        #[cfg(debug_assertions)]
        if _recycled {
            b.fill(STALE);
        }
        b
    }

    /// A copy of `data`.
    pub fn copy_from(data: &[u8]) -> Buf {
        let (mut b, _) = Buf::take(data.len());
        b.copy_from_slice(data);
        b
    }

    fn take(len: usize) -> (Buf, bool) {
        if len == 0 {
            return (Buf { ptr: dangling(), len: 0, cap: 0 }, false);
        }
        let (ptr, cap, recycled) = pool::take(len);
        (Buf { ptr, len, cap }, recycled)
    }

    /// Makes the buffer shorter: `len` is at most the present length. The memory stays.
    pub fn truncate(&mut self, len: usize) {
        assert!(len <= self.len, "truncate makes a buffer shorter");
        self.len = len;
    }

    /// Bytes of memory that this buffer holds, at least its length.
    pub fn footprint(&self) -> usize {
        self.cap
    }

    /// Makes the content immutable and shareable, without a copy.
    pub fn freeze(self) -> Bytes {
        Bytes::from(self)
    }

    /// Where the bytes start; valid for writes of `len()` bytes while the buffer lives and is not
    /// borrowed elsewhere. For devices that hand the memory to a kernel.
    pub fn as_raw_mut(&mut self) -> *mut u8 {
        self.ptr.as_ptr()
    }

    pub(crate) fn raw(&self) -> *const u8 {
        self.ptr.as_ptr()
    }
}

fn dangling() -> NonNull<u8> {
    NonNull::without_provenance(std::num::NonZero::new(PAGE).expect("a page is not empty"))
}

impl Drop for Buf {
    fn drop(&mut self) {
        if self.cap != 0 {
            pool::give(self.ptr, self.cap);
        }
    }
}

impl Deref for Buf {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        // SAFETY: `ptr` is valid and initialised for `cap >= len` bytes (dangling but aligned for
        // len 0), and borrowed as long as `self` is.
        unsafe { std::slice::from_raw_parts(self.ptr.as_ptr(), self.len) }
    }
}

impl DerefMut for Buf {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`, and `&mut self` makes the borrow exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.ptr.as_ptr(), self.len) }
    }
}

impl AsRef<[u8]> for Buf {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl Default for Buf {
    fn default() -> Buf {
        Buf::zeroed(0)
    }
}

impl Clone for Buf {
    fn clone(&self) -> Buf {
        Buf::copy_from(self)
    }
}

impl PartialEq for Buf {
    fn eq(&self, other: &Buf) -> bool {
        **self == **other
    }
}
impl Eq for Buf {}

impl fmt::Debug for Buf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Buf({} bytes)", self.len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn aligned_initialised_and_zeroed_after_reuse() {
        for len in [0usize, 1, 512, 4096, 4097, 70_000] {
            let mut b = Buf::for_overwrite(len);
            assert_eq!(b.as_ptr() as usize % PAGE, 0);
            assert_eq!(b.len(), len);
            b.fill(7);
            assert!(b.iter().all(|&x| x == 7));
            drop(b);
            let z = Buf::zeroed(len);
            assert!(z.iter().all(|&x| x == 0), "recycled memory is cleared");
        }
    }

    #[test]
    fn moves_across_threads() {
        let mut b = Buf::copy_from(&[1, 2, 3]);
        b = std::thread::spawn(move || {
            b[0] = 9;
            b
        })
        .join()
        .expect("the thread does not panic");
        assert_eq!(&b[..], &[9, 2, 3]);
        b.truncate(1);
        assert_eq!(&b[..], &[9]);
        assert_eq!(b.footprint(), PAGE);
        assert_eq!(b.clone(), b);
    }
}
