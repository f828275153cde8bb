//! Fields of requests and replies: little more than "the next four bytes", in the byte order of the
//! machine.

use crate::errno::{Errno, INVALID};

/// Takes fields from the front of a message. Running out of bytes is `EINVAL`.
#[derive(Clone, Copy, Debug)]
pub struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    /// The fields of `bytes`.
    pub fn new(bytes: &'a [u8]) -> Fields<'a> {
        Fields(bytes)
    }
    fn array<const N: usize>(&mut self) -> Result<[u8; N], Errno> {
        let (head, rest) = self.0.split_first_chunk::<N>().ok_or(INVALID)?;
        self.0 = rest;
        Ok(*head)
    }
    /// A 16-bit field.
    pub fn u16(&mut self) -> Result<u16, Errno> {
        Ok(u16::from_ne_bytes(self.array()?))
    }
    /// A 32-bit field.
    pub fn u32(&mut self) -> Result<u32, Errno> {
        Ok(u32::from_ne_bytes(self.array()?))
    }
    /// A 64-bit field.
    pub fn u64(&mut self) -> Result<u64, Errno> {
        Ok(u64::from_ne_bytes(self.array()?))
    }
    /// A signed 64-bit field.
    pub fn i64(&mut self) -> Result<i64, Errno> {
        Ok(i64::from_ne_bytes(self.array()?))
    }
    /// `n` bytes.
    pub fn bytes(&mut self, n: usize) -> Result<&'a [u8], Errno> {
        let (head, rest) = self.0.split_at_checked(n).ok_or(INVALID)?;
        self.0 = rest;
        Ok(head)
    }
    /// Skips unused bytes.
    pub fn skip(&mut self, n: usize) -> Result<(), Errno> {
        self.bytes(n).map(drop)
    }
    /// Bytes up to a NUL, which goes too. No NUL is an error.
    pub fn string(&mut self) -> Result<&'a [u8], Errno> {
        let n = self.0.iter().position(|&b| b == 0).ok_or(INVALID)?;
        let s = self.bytes(n)?;
        self.skip(1)?;
        Ok(s)
    }
    /// The name of a directory entry: not empty, without a slash.
    pub fn name(&mut self) -> Result<&'a [u8], Errno> {
        let name = self.string()?;
        if name.is_empty() || name.contains(&b'/') { Err(INVALID) } else { Ok(name) }
    }
    /// Bytes that are left.
    pub fn left(&self) -> usize {
        self.0.len()
    }
    /// All that is left.
    pub fn rest(self) -> &'a [u8] {
        self.0
    }
}

/// Longest reply that is put together in place: the header and a `statx` answer.
const SMALL_MAX: usize = 320;

/// A short reply, put together without allocating.
#[derive(Clone, Copy)]
pub struct Small {
    bytes: [u8; SMALL_MAX],
    len: usize,
}

impl Default for Small {
    fn default() -> Small {
        Small { bytes: [0; SMALL_MAX], len: 0 }
    }
}

impl Small {
    /// Nothing yet.
    pub fn new() -> Small {
        Small::default()
    }
    /// The bytes so far.
    pub fn as_slice(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

/// Where fields are put.
pub trait Put {
    /// Adds bytes.
    fn raw(&mut self, bytes: &[u8]);
    /// Adds a 16-bit field.
    fn u16(&mut self, v: u16) {
        self.raw(&v.to_ne_bytes());
    }
    /// Adds a 32-bit field.
    fn u32(&mut self, v: u32) {
        self.raw(&v.to_ne_bytes());
    }
    /// Adds a 64-bit field.
    fn u64(&mut self, v: u64) {
        self.raw(&v.to_ne_bytes());
    }
    /// Adds a signed 64-bit field.
    fn i64(&mut self, v: i64) {
        self.raw(&v.to_ne_bytes());
    }
    /// Adds zeros.
    fn zeros(&mut self, n: usize) {
        for _ in 0..n {
            self.raw(&[0]);
        }
    }
}

impl Put for Small {
    fn raw(&mut self, bytes: &[u8]) {
        let end = self.len + bytes.len();
        assert!(end <= SMALL_MAX, "a short reply is short");
        self.bytes[self.len..end].copy_from_slice(bytes);
        self.len = end;
    }
}

impl Put for Vec<u8> {
    fn raw(&mut self, bytes: &[u8]) {
        self.extend_from_slice(bytes);
    }
}
