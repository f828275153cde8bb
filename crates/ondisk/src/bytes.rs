//! Loads and stores of fixed-width integers in byte slices.
//!
//! Two families. The plain ones (`le64`, `put_le64`, `be64` ...) index the slice and are for
//! offsets that the caller has already proved to be inside: fixed structures whose length was
//! checked once on entry. The `try_` ones check and give `None`: for offsets that come from the
//! disk. `get` is the checked form of slicing: it cannot overflow, whatever the offset and length.

/// `len` bytes of `b` from `off`, or `None` when they are not all inside.
pub fn get(b: &[u8], off: usize, len: usize) -> Option<&[u8]> {
    b.get(off..off.checked_add(len)?)
}

/// As [`get`], mutable.
pub fn get_mut(b: &mut [u8], off: usize, len: usize) -> Option<&mut [u8]> {
    b.get_mut(off..off.checked_add(len)?)
}

macro_rules! loads {
    ($($load:ident $store:ident $try_load:ident $int:ident $from:ident $to:ident $n:literal $what:literal;)*) => {$(
        #[doc = concat!("Loads the ", $what, " at `off`. Panics when it is not inside `b`: for offsets already checked.")]
        #[inline]
        pub fn $load(b: &[u8], off: usize) -> $int {
            let mut a = [0u8; $n];
            a.copy_from_slice(&b[off..off + $n]);
            $int::$from(a)
        }
        #[doc = concat!("Stores the ", $what, " `v` at `off`. Panics when it is not inside `b`.")]
        #[inline]
        pub fn $store(b: &mut [u8], off: usize, v: $int) {
            b[off..off + $n].copy_from_slice(&v.$to());
        }
        #[doc = concat!("Loads the ", $what, " at `off`, or `None` when it is not inside `b`.")]
        #[inline]
        pub fn $try_load(b: &[u8], off: usize) -> Option<$int> {
            let s = get(b, off, $n)?;
            let mut a = [0u8; $n];
            a.copy_from_slice(s);
            Some($int::$from(a))
        }
    )*};
}

loads! {
    le16 put_le16 try_le16 u16 from_le_bytes to_le_bytes 2 "little-endian u16";
    le32 put_le32 try_le32 u32 from_le_bytes to_le_bytes 4 "little-endian u32";
    le64 put_le64 try_le64 u64 from_le_bytes to_le_bytes 8 "little-endian u64";
    be16 put_be16 try_be16 u16 from_be_bytes to_be_bytes 2 "big-endian u16";
    be32 put_be32 try_be32 u32 from_be_bytes to_be_bytes 4 "big-endian u32";
    be64 put_be64 try_be64 u64 from_be_bytes to_be_bytes 8 "big-endian u64";
}

/// `N` little-endian u64 words from the start of `b`. Panics when `b` is shorter than `8 * N`.
#[inline]
pub fn le64_words<const N: usize>(b: &[u8]) -> [u64; N] {
    // One check for all of them: block pointers are loaded by the thousand.
    let (words, _) = b[..8 * N].as_chunks::<8>();
    let mut w = [0u64; N];
    for (x, bytes) in w.iter_mut().zip(words) {
        *x = u64::from_le_bytes(*bytes);
    }
    w
}

/// Stores `words` little-endian from the start of `b`. Panics when `b` is shorter than they are.
#[inline]
pub fn put_le64_words(b: &mut [u8], words: &[u64]) {
    let (to, _) = b[..8 * words.len()].as_chunks_mut::<8>();
    for (bytes, x) in to.iter_mut().zip(words) {
        *bytes = x.to_le_bytes();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loads_and_stores() {
        let mut b = [0u8; 16];
        put_le64(&mut b, 3, 0x0102_0304_0506_0708);
        assert_eq!(le64(&b, 3), 0x0102_0304_0506_0708);
        assert_eq!(be64(&b, 3), 0x0807_0605_0403_0201);
        assert_eq!(try_le64(&b, 8), Some(le64(&b, 8)));
        assert_eq!(try_le64(&b, 9), None);
        assert_eq!(try_be32(&b, usize::MAX), None);
        assert_eq!(get(&b, usize::MAX, 2), None);
        put_le64_words(&mut b, &[1, 2]);
        assert_eq!(le64_words::<2>(&b), [1, 2]);
    }
}
