//! Replies: the bytes before a payload, or all bytes of an answer without one.
//!
//! **Head**: the fixed part of a reply, small enough to be made without allocating. Layouts: NBD
//! protocol document, sections "Simple reply message", "Structured reply chunk message" and
//! "Structured reply types".
//!
//! Success without data is a simple reply in any case, which the document allows. Errors are
//! chunks with a text if the client agreed to structured replies.

use crate::code::Code;
use crate::proto::{CHUNK_DONE, CHUNK_MAGIC, SIMPLE_REPLY_MAGIC, STRING_MAX, chunk};
use crate::request::{Refusal, Span};
use crate::terms::Terms;
use crate::wire::{Put, cut};

/// Longest head: a chunk for a hole.
const HEAD_MAX: usize = 32;

/// The fixed part of a reply.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Head {
    bytes: [u8; HEAD_MAX],
    len: usize,
}

impl Head {
    /// The bytes to send.
    pub fn as_slice(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
    fn new() -> Head {
        Head { bytes: [0; HEAD_MAX], len: 0 }
    }
    /// A simple reply.
    fn simple(cookie: u64, error: u32) -> Head {
        let mut head = Head::new();
        head.u32(SIMPLE_REPLY_MAGIC);
        head.u32(error);
        head.u64(cookie);
        head
    }
    /// What precedes the payload of a read in simple replies.
    pub(crate) fn simple_data(cookie: u64) -> Head {
        Head::simple(cookie, 0)
    }
    /// What precedes the data of a chunk; `done`: it is the last one.
    pub(crate) fn data(cookie: u64, span: Span, done: bool) -> Head {
        let mut head = Head::new();
        // Payloads are much shorter than 2^32 - 8.
        put_chunk(&mut head, chunk::OFFSET_DATA, cookie, span.length + 8, done);
        head.u64(span.offset);
        head
    }
    /// A chunk that says that a range reads as zeros.
    pub(crate) fn hole(cookie: u64, span: Span, done: bool) -> Head {
        let mut head = Head::new();
        put_chunk(&mut head, chunk::OFFSET_HOLE, cookie, 12, done);
        head.u64(span.offset);
        head.u32(span.length);
        head
    }
}

impl Put for Head {
    fn raw(&mut self, bytes: &[u8]) {
        let end = self.len + bytes.len();
        assert!(end <= HEAD_MAX, "a head is short");
        self.bytes[self.len..end].copy_from_slice(bytes);
        self.len = end;
    }
}

/// The header of a chunk with `length` bytes of payload.
pub(crate) fn put_chunk(out: &mut impl Put, kind: u16, cookie: u64, length: u32, done: bool) {
    out.u32(CHUNK_MAGIC);
    out.u16(if done { CHUNK_DONE } else { 0 });
    out.u16(kind);
    out.u64(cookie);
    out.u32(length);
}

impl Terms {
    /// The answer to a request that was carried out and has no data: any but a read or a block
    /// status.
    pub fn done(&self, cookie: u64) -> Head {
        Head::simple(cookie, 0)
    }

    /// The answer to a request that failed. `why` is a sentence for the client's user; `at` the
    /// first byte of the export that failed, if it is known and lies within the request. Not for
    /// flushes: `at` must be `None` there.
    ///
    /// It may also follow chunks of a read's answer of which none was marked as the last one. An
    /// answer that began as a simple reply cannot fail any more: then close the connection.
    pub fn error(&self, cookie: u64, code: Code, why: &str, at: Option<u64>) -> Vec<u8> {
        if !self.structured {
            return Head::simple(cookie, code.number()).as_slice().to_vec();
        }
        let why = cut(why, STRING_MAX);
        let kind = if at.is_some() { chunk::ERROR_OFFSET } else { chunk::ERROR };
        // At most 4096 bytes, and 14 more.
        let length = why.len() as u16;
        let mut out = Vec::new();
        put_chunk(&mut out, kind, cookie, u32::from(length) + if at.is_some() { 14 } else { 6 }, true);
        out.u32(code.number());
        out.u16(length);
        out.raw(why.as_bytes());
        if let Some(offset) = at {
            out.u64(offset);
        }
        out
    }

    /// The answer to a request that is refused.
    pub fn refuse(&self, refusal: &Refusal) -> Vec<u8> {
        self.error(refusal.cookie, refusal.code, refusal.why, None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::export::Export;

    fn terms(structured: bool) -> Terms {
        Terms { export: Export::new("v", 1 << 20), structured, block_status: false }
    }

    #[test]
    fn success_is_simple() {
        for structured in [false, true] {
            let head = terms(structured).done(0x0102_0304_0506_0708);
            assert_eq!(head.as_slice(), [0x67, 0x44, 0x66, 0x98, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8]);
        }
    }

    #[test]
    fn errors_have_a_text_where_chunks_were_agreed_on() {
        let (code, cookie) = (Code::NoSpace, 5);
        let simple = [0x67, 0x44, 0x66, 0x98, 0, 0, 0, 28, 0, 0, 0, 0, 0, 0, 0, 5];
        assert_eq!(terms(false).error(cookie, code, "full", Some(7)), simple);
        let chunk = [0x66, 0x8e, 0x33, 0xef, 0, 1, 0x80, 1, 0, 0, 0, 0, 0, 0, 0, 5, 0, 0, 0, 10, 0, 0, 0, 28, 0, 4];
        assert_eq!(terms(true).error(cookie, code, "full", None), [&chunk[..], b"full"].concat());
        let with_offset = terms(true).error(cookie, code, "full", Some(7));
        assert_eq!((with_offset[7], with_offset[19]), (2, 18));
        assert_eq!(&with_offset[24..], b"\0\x04full\0\0\0\0\0\0\0\x07");
        assert_eq!(terms(true).error(cookie, code, &"x".repeat(9000), None).len(), 26 + 4096);
    }

    #[test]
    fn heads_have_their_layout() {
        let span = Span { offset: 0x1000, length: 0x200 };
        let data = Head::data(1, span, false);
        let want = [0x66, 0x8e, 0x33, 0xef, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 2, 8, 0, 0, 0, 0, 0, 0, 16, 0];
        assert_eq!(data.as_slice(), want);
        let hole = Head::hole(1, span, true);
        assert_eq!(hole.as_slice()[4..8], [0, 1, 0, 2]);
        assert_eq!(hole.as_slice()[16..], [0, 0, 0, 12, 0, 0, 0, 0, 0, 0, 16, 0, 0, 0, 2, 0]);
        assert_eq!(Head::simple_data(1).as_slice().len(), 16);
    }
}
