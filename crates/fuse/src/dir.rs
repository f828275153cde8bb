//! The reply to a listing: entries one behind the other until the caller's buffer is full.

use std::rc::Rc;

use crate::handler::Entry;
use crate::proto::{OUT_HEADER, put_entry};
use crate::wire::Put;

/// Bytes of an entry before its name.
const DIRENT: usize = 24;
/// Bytes before that when attributes come with it.
const ENTRY: usize = 128;

/// The kernel's view of a listing's entries: a session of several file systems translates the
/// numbers.
pub(crate) trait DirView {
    /// An inode number.
    fn ino(&self, ino: u64) -> u64;
    /// The object of a name, which then has one more reference; None if the kernel is to look it up
    /// by itself.
    fn reference(&self, entry: &Entry) -> Option<Entry>;
}

/// Takes the entries of a listing.
pub struct DirOut {
    /// Room for the header, then entries.
    buf: Vec<u8>,
    limit: usize,
    plus: bool,
    view: Option<Rc<dyn DirView>>,
}

impl DirOut {
    /// Room for `size` bytes; `plus`: entries come with attributes.
    pub(crate) fn new(size: usize, plus: bool) -> DirOut {
        let mut buf = Vec::with_capacity(OUT_HEADER + size.min(64 << 10));
        buf.resize(OUT_HEADER, 0);
        DirOut { buf, limit: OUT_HEADER + size, plus, view: None }
    }

    /// Entries from now on are translated.
    pub(crate) fn set_view(&mut self, view: Rc<dyn DirView>) {
        self.view = Some(view);
    }

    /// Whether entries should come with attributes.
    pub fn plus(&self) -> bool {
        self.plus
    }

    /// How many more entries with names of `name_len` bytes fit.
    pub fn room(&self, name_len: usize) -> usize {
        (self.limit - self.buf.len()) / self.bytes_of(name_len)
    }

    fn bytes_of(&self, name_len: usize) -> usize {
        (DIRENT + name_len).next_multiple_of(8) + if self.plus { ENTRY } else { 0 }
    }

    /// Adds an entry: its inode number, `d_type`, and the offset that resumes the listing behind
    /// it. `entry` is its object, if wanted and known; the kernel then holds one more reference to
    /// it. False if it does not fit: then nothing was added.
    pub fn push(&mut self, name: &[u8], ino: u64, dtype: u8, next: u64, entry: Option<&Entry>) -> bool {
        if self.buf.len() + self.bytes_of(name.len()) > self.limit {
            return false;
        }
        let (ino, entry) = match &self.view {
            Some(view) => (view.ino(ino), entry.filter(|_| self.plus).and_then(|e| view.reference(e))),
            None => (ino, entry.copied()),
        };
        if self.plus {
            // Without attributes the node id is 0: the kernel takes the name only.
            put_entry(&mut self.buf, &entry.unwrap_or_default());
        }
        self.buf.u64(ino);
        self.buf.u64(next);
        self.buf.u32(u32::try_from(name.len()).unwrap_or(u32::MAX));
        self.buf.u32(dtype.into());
        self.buf.raw(name);
        self.buf.resize(self.buf.len().next_multiple_of(8), 0);
        true
    }

    /// The whole reply, its header still empty.
    pub(crate) fn into_reply(self) -> Vec<u8> {
        self.buf
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_laid_out_as_the_kernel_reads_them() {
        let mut out = DirOut::new(64, false);
        assert!(out.push(b"ab", 34, 4, 7, None));
        assert!(!out.push(&[b'x'; 32], 1, 8, 8, None), "does not fit");
        assert!(out.push(b"12345678", 35, 8, 9, None));
        assert!(!out.push(b"", 1, 8, 8, None));
        let bytes = out.into_reply();
        assert_eq!(bytes.len(), 16 + 32 + 32);
        let mut want = vec![0; 16];
        want.extend([34u64.to_ne_bytes(), 7u64.to_ne_bytes()].concat());
        want.extend([2u32.to_ne_bytes(), 4u32.to_ne_bytes()].concat());
        want.extend(b"ab\0\0\0\0\0\0");
        want.extend([35u64.to_ne_bytes(), 9u64.to_ne_bytes()].concat());
        want.extend([8u32.to_ne_bytes(), 8u32.to_ne_bytes()].concat());
        want.extend(b"12345678");
        assert_eq!(bytes, want);
    }

    #[test]
    fn entries_with_attributes() {
        let mut out = DirOut::new(1000, true);
        assert_eq!(out.room(3), 6);
        let e = Entry { node: 77, generation: 5, ..Entry::default() };
        assert!(out.push(b"abc", 77, 8, 3, Some(&e)));
        assert!(out.push(b".", 34, 4, 3, None));
        let bytes = out.into_reply();
        assert_eq!(bytes.len(), 16 + 2 * (128 + 32));
        assert_eq!(bytes[16..24], 77u64.to_ne_bytes());
        assert_eq!(bytes[16 + 128..][..8], 77u64.to_ne_bytes());
        assert_eq!(bytes[16 + 160..][..8], 0u64.to_ne_bytes(), "no reference");
    }
}
