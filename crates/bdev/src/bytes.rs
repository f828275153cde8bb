//! The immutable half: frozen memory with a count of its readers.

use std::cell::UnsafeCell;
use std::fmt;
use std::ops::{Bound, Deref, RangeBounds};
use std::sync::Arc;

use crate::{Buf, PAGE};

/// Length of the zeros that [`Bytes::zeroed`] shares: the largest block (16 MiB). They live in
/// zero-filled program memory that is never written, so the kernel backs all of it by one page.
const ZEROS: usize = 16 << 20;

#[repr(C, align(4096))]
struct ZeroPages(UnsafeCell<[u8; ZEROS]>);
// SAFETY: the cell is never written; it only keeps the linker from storing 16 MiB of zeros in the
// file.
unsafe impl Sync for ZeroPages {}
static ZERO_PAGES: ZeroPages = ZeroPages(UnsafeCell::new([0; ZEROS]));

/// Whose memory a [`Bytes`] shows.
enum Owner {
    Buf(Buf),
    Vec(Vec<u8>),
}

/// Frozen bytes, shared by count. Cloning and slicing cost a count, never a copy.
#[derive(Clone)]
pub struct Bytes {
    /// None for memory that lives as long as the program.
    owner: Option<Arc<Owner>>,
    ptr: *const u8,
    len: usize,
}

// SAFETY: the memory is immutable for as long as `owner` lives, and the owner is Send + Sync (Buf
// and Vec are).
unsafe impl Send for Bytes {}
// SAFETY: as above.
unsafe impl Sync for Bytes {}

impl Bytes {
    /// No bytes.
    pub const fn empty() -> Bytes {
        Bytes::from_static(&[])
    }

    /// Bytes that live as long as the program.
    pub const fn from_static(data: &'static [u8]) -> Bytes {
        Bytes { owner: None, ptr: data.as_ptr(), len: data.len() }
    }

    /// `len` zeros, page-aligned; up to 16 MiB they take no memory of their own.
    pub fn zeroed(len: usize) -> Bytes {
        if len > ZEROS {
            return Buf::zeroed(len).freeze();
        }
        Bytes { owner: None, ptr: ZERO_PAGES.0.get().cast::<u8>().cast_const(), len }
    }

    /// A copy of `data` in page-aligned memory.
    pub fn copy_from(data: &[u8]) -> Bytes {
        Buf::copy_from(data).freeze()
    }

    /// The part of these bytes in `range`; the memory is shared, all of it stays while the part
    /// lives.
    ///
    /// # Panics
    /// If the range is not within the bytes.
    #[must_use]
    pub fn slice(&self, range: impl RangeBounds<usize>) -> Bytes {
        let start = match range.start_bound() {
            Bound::Included(&s) => s,
            Bound::Excluded(&s) => s + 1,
            Bound::Unbounded => 0,
        };
        let end = match range.end_bound() {
            Bound::Included(&e) => e + 1,
            Bound::Excluded(&e) => e,
            Bound::Unbounded => self.len,
        };
        let part = &self[start..end];
        let (ptr, len) = (part.as_ptr(), part.len());
        if len == 0 {
            return Bytes::empty();
        }
        Bytes { owner: self.owner.clone(), ptr, len }
    }

    /// The memory as a mutable buffer, if this is the only handle and covers the whole of a buffer:
    /// no copy is made. Otherwise the bytes come back unchanged.
    pub fn try_unique(self) -> Result<Buf, Bytes> {
        let whole = match self.owner.as_deref() {
            Some(Owner::Buf(b)) => b.raw() == self.ptr && b.len() == self.len,
            _ => false,
        };
        if !whole {
            return Err(self);
        }
        let Bytes { owner, ptr, len } = self;
        match owner.map(Arc::try_unwrap) {
            Some(Ok(Owner::Buf(b))) => Ok(b),
            Some(Err(owner)) => Err(Bytes { owner: Some(owner), ptr, len }),
            _ => unreachable!("just seen to be a buffer"),
        }
    }

    /// A buffer with these bytes: the memory itself if [`Bytes::try_unique`] may give it, else a
    /// copy.
    pub fn into_buf(self) -> Buf {
        self.try_unique().unwrap_or_else(|shared| Buf::copy_from(&shared))
    }

    /// Bytes of memory that are held because these are: the whole allocation, even if this is a
    /// small part of it or one of many owners. 0 for the shared zeros and other static bytes.
    pub fn footprint(&self) -> usize {
        match self.owner.as_deref() {
            None => 0,
            Some(Owner::Buf(b)) => b.footprint(),
            Some(Owner::Vec(v)) => v.capacity(),
        }
    }

    /// Names the memory behind these bytes: equal for two handles on one allocation, 0 for static
    /// bytes. Valid while a handle is alive.
    pub fn memory_id(&self) -> usize {
        self.owner.as_ref().map_or(0, |o| Arc::as_ptr(o).addr())
    }

    /// Whether this is the only handle on its memory (never for static bytes).
    pub fn is_unique(&self) -> bool {
        self.owner.as_ref().is_some_and(|o| Arc::strong_count(o) == 1)
    }

    /// Whether the bytes start at a multiple of [`PAGE`].
    pub fn is_page_aligned(&self) -> bool {
        self.ptr.addr().is_multiple_of(PAGE)
    }
}

impl Deref for Bytes {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        // SAFETY: `ptr..ptr+len` lies within the owner's memory (or static memory), initialised,
        // and never written while any handle exists: the owner sits in an Arc and is only taken out
        // by its last handle.
        unsafe { std::slice::from_raw_parts(self.ptr, self.len) }
    }
}

impl AsRef<[u8]> for Bytes {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl Default for Bytes {
    fn default() -> Bytes {
        Bytes::empty()
    }
}

impl From<Buf> for Bytes {
    fn from(b: Buf) -> Bytes {
        if b.is_empty() {
            return Bytes::empty();
        }
        let (ptr, len) = (b.raw(), b.len());
        Bytes { owner: Some(Arc::new(Owner::Buf(b))), ptr, len }
    }
}

impl From<Vec<u8>> for Bytes {
    fn from(v: Vec<u8>) -> Bytes {
        if v.is_empty() {
            return Bytes::empty();
        }
        let owner = Arc::new(Owner::Vec(v));
        let (ptr, len) = match &*owner {
            Owner::Vec(v) => (v.as_ptr(), v.len()),
            Owner::Buf(_) => unreachable!("just made from a vector"),
        };
        Bytes { owner: Some(owner), ptr, len }
    }
}

impl PartialEq for Bytes {
    fn eq(&self, other: &Bytes) -> bool {
        **self == **other
    }
}
impl Eq for Bytes {}

impl PartialEq<[u8]> for Bytes {
    fn eq(&self, other: &[u8]) -> bool {
        **self == *other
    }
}

impl fmt::Debug for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Bytes({} bytes)", self.len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slices_share_and_count() {
        let b = Buf::copy_from(&(0..=255).collect::<Vec<u8>>()).freeze();
        let s = b.slice(10..20);
        let t = s.slice(2..=4);
        assert_eq!(&t[..], &[12, 13, 14]);
        assert_eq!(t.footprint(), PAGE);
        assert!(!b.is_unique());
        let b = b.try_unique().expect_err("slices are alive");
        drop(s);
        drop(t);
        assert!(b.is_unique());
        let mut buf = b.try_unique().expect("the only handle");
        buf[0] = 99;
        assert_eq!(buf.freeze()[0], 99);
    }

    #[test]
    fn a_part_is_not_unique_memory() {
        let part = Buf::zeroed(8192).freeze().slice(..4096);
        let part = part.try_unique().expect_err("only half of the buffer");
        assert_eq!(part.into_buf().len(), 4096);
        assert!(Bytes::from(vec![1, 2, 3]).try_unique().is_err(), "a vector is not aligned memory");
    }

    #[test]
    fn vectors_and_zeros() {
        let v = Bytes::from(vec![1u8, 2, 3]);
        assert_eq!(&v.slice(1..)[..], &[2, 3]);
        assert_eq!(Bytes::zeroed(5000).footprint(), 0);
        assert!(Bytes::zeroed(5000).iter().all(|&b| b == 0));
        assert!(Bytes::zeroed(100).is_page_aligned());
        assert_eq!(Bytes::empty().len(), 0);
        assert_eq!(Bytes::zeroed(8), Bytes::from(vec![0; 8]));
        assert_eq!(v.slice(3..), Bytes::empty());
    }

    #[test]
    fn read_from_other_threads() {
        let b = Bytes::copy_from(&[5; 10_000]);
        let c = b.slice(1000..2000);
        let sum = std::thread::spawn(move || c.iter().map(|&x| x as u32).sum::<u32>()).join();
        assert_eq!(sum.expect("the thread does not panic"), 5000);
        assert!(b.is_unique());
    }

    #[test]
    #[should_panic(expected = "range end index")]
    fn a_slice_outside_panics() {
        let _ = Bytes::copy_from(&[1, 2, 3]).slice(..4);
    }
}
