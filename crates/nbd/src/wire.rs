//! Fields of messages: big-endian numbers one after the other, without padding.

/// Takes fields from the front of a message. `None`: there are not enough bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    /// The fields of `bytes`.
    pub(crate) fn new(bytes: &'a [u8]) -> Fields<'a> {
        Fields(bytes)
    }
    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (head, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*head)
    }
    /// A 16-bit field.
    pub(crate) fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_be_bytes)
    }
    /// A 32-bit field.
    pub(crate) fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_be_bytes)
    }
    /// A 64-bit field.
    pub(crate) fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_be_bytes)
    }
    /// `n` bytes.
    pub(crate) fn bytes(&mut self, n: u32) -> Option<&'a [u8]> {
        let (head, rest) = self.0.split_at_checked(usize::try_from(n).ok()?)?;
        self.0 = rest;
        Some(head)
    }
    /// Bytes that are left.
    pub(crate) fn left(&self) -> usize {
        self.0.len()
    }
}

/// Where fields are put.
pub(crate) trait Put {
    /// Adds bytes.
    fn raw(&mut self, bytes: &[u8]);
    /// Adds a 16-bit field.
    fn u16(&mut self, v: u16) {
        self.raw(&v.to_be_bytes());
    }
    /// Adds a 32-bit field.
    fn u32(&mut self, v: u32) {
        self.raw(&v.to_be_bytes());
    }
    /// Adds a 64-bit field.
    fn u64(&mut self, v: u64) {
        self.raw(&v.to_be_bytes());
    }
}

impl Put for Vec<u8> {
    fn raw(&mut self, bytes: &[u8]) {
        self.extend_from_slice(bytes);
    }
}

/// The start of `text` that fits into `max` bytes, cut between characters.
pub(crate) fn cut(text: &str, max: usize) -> &str {
    let mut end = text.len().min(max);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_put_is_taken() {
        let mut out = Vec::new();
        out.u16(0x0102);
        out.u32(0x0304_0506);
        out.u64(7);
        out.raw(b"abc");
        assert_eq!(out, [&[1, 2, 3, 4, 5, 6, 0, 0, 0, 0, 0, 0, 0, 7][..], b"abc"].concat());
        let mut f = Fields::new(&out);
        assert_eq!(
            (f.u16(), f.u32(), f.u64(), f.bytes(3)),
            (Some(0x102), Some(0x304_0506), Some(7), Some(&b"abc"[..]))
        );
        assert_eq!((f.u16(), f.bytes(1), f.bytes(0), f.left()), (None, None, Some(&b""[..]), 0));
    }

    #[test]
    fn a_text_is_cut_between_characters() {
        for (text, max, want) in
            [("abc", 9, "abc"), ("abc", 2, "ab"), ("a\u{e4}b", 2, "a"), ("\u{e4}", 1, ""), ("", 0, "")]
        {
            assert_eq!(cut(text, max), want, "{text} {max}");
        }
    }
}
