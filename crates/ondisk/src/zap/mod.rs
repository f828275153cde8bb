//! ZAP objects: named values, the format's dictionaries and directories (format page 04).
//!
//! A *micro* ZAP is one block of 64-byte entries, each a name of up to 49 bytes and one u64. An
//! entry that it cannot hold makes it *fat*: an extensible hash table whose block 0 is a [`Header`]
//! with a pointer table that maps the top bits of a name's hash to a [`Leaf`] block; a full leaf
//! splits in two by the next hash bit, and when the table has no bit left for that it doubles,
//! first from the header's second half to a block of its own, then to twice the blocks.
//!
//! This module holds kernels over single blocks, in memory and synchronous. Which block to read,
//! dirty or allocate is decided above. To look up: hash the name with [`ZapParams::hash`]; find the
//! leaf by [`Header::locate`] and the table word there; [`Leaf::find`]. To insert:
//! [`Leaf::insert`]; on [`LeafInsert::NeedSplit`] grow the table if [`Leaf::prefix_len`] has
//! reached its shift, then [`Leaf::split`], point the upper half of the table range
//! ([`split_range`]) at the new leaf, and try again.
//!
//! A *collision differentiator* `cd` distinguishes entries with equal hashes: the lowest number
//! free among them. All walks are in order of (hash, cd), micro and fat alike, so a cursor survives
//! insertions, removals and the change from micro to fat.

mod fat_header;
mod fat_leaf;
mod hash;
mod micro;

pub use fat_header::{Growth, Header, TableSlot, init_fat, init_table_block};
pub use fat_leaf::{Leaf, LeafEntry, LeafInsert, chunks_needed};
pub use hash::{crc64, hash_bytes, hash_words, normalise};
pub use micro::{MicroEntry, MicroIndex, MicroInsert, MicroZap};

use base::{Error, Result};

use crate::bytes::try_le64;

/// First word of a micro ZAP.
pub const BLOCK_MICRO: u64 = 0x8000_0000_0000_0003;
/// First word of a fat ZAP's block 0.
pub const BLOCK_HEADER: u64 = 0x8000_0000_0000_0001;
/// First word of a fat ZAP's leaf.
pub const BLOCK_LEAF: u64 = 0x8000_0000_0000_0000;
/// Block size of fat ZAPs that began as micro (log2).
pub const FAT_BLOCK_SHIFT: u32 = 14;
/// Largest micro ZAP in bytes, by default (`zap_micro_max_size`).
pub const MICRO_MAX_SIZE: usize = 128 << 10;
/// The same where a dataset may have the feature `large_microzap` (format page 17 section 7).
pub const MICRO_MAX_LARGE: usize = 1 << 20;
/// Longest name in a micro ZAP, in bytes without the NUL.
pub const MICRO_MAX_NAME: usize = 49;
/// Longest name of an entry, in bytes without the NUL (`ZAP_MAXNAMELEN`).
pub const MAX_NAME: usize = 255;
/// The same for an entry of a directory in a file system with the feature `longname`
/// (`ZAP_MAXNAMELEN_NEW`, format page 17 section 7).
pub const MAX_LONG_NAME: usize = 1023;
/// Most bytes in a value (`ZAP_MAXVALUELEN`).
pub const MAX_VALUE: usize = 8 << 10;

/// Fat ZAP flag: 48 bits of hash count instead of 28.
pub const FLAG_HASH64: u64 = 1;
/// Fat ZAP flag: keys are arrays of u64.
pub const FLAG_UINT64_KEY: u64 = 2;
/// Fat ZAP flag: the first word of the key is the hash.
pub const FLAG_PRE_HASHED_KEY: u64 = 4;

/// Normalisation flag: fold to upper case.
pub const NORM_TOUPPER: u64 = 0x2;
/// Normalisation form D.
pub const NORM_D: u64 = 0x10;
/// Normalisation form KD.
pub const NORM_KD: u64 = 0x20;
/// Normalisation form C.
pub const NORM_C: u64 = 0x50;
/// Normalisation form KC.
pub const NORM_KC: u64 = 0x60;

/// The kind of a ZAP's keys.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum KeyKind {
    /// Names: bytes without NUL (a NUL ends them on disk).
    String,
    /// Arrays of u64, here as their big-endian bytes, the form in which leaves hold them.
    U64,
}

impl KeyKind {
    /// Bytes of one integer of a key.
    pub fn int_len(self) -> usize {
        match self {
            KeyKind::String => 1,
            KeyKind::U64 => 8,
        }
    }
}

/// How a name is compared with the stored ones (format page 16 section 6).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Match {
    /// Byte for byte.
    #[default]
    Exact,
    /// Equal after Unicode normalisation, case kept.
    Normalised,
    /// Equal after the normalisation and folding of the ZAP's flags.
    Folded,
}

/// The parameters of the hash of a key in a ZAP.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ZapParams {
    /// Start of every hash; not 0.
    pub salt: u64,
    /// `NORM_*` flags.
    pub normflags: u64,
    /// `FLAG_*` flags; 0 for micro ZAPs.
    pub flags: u64,
}

impl ZapParams {
    /// How many top bits of a hash count.
    pub fn hash_bits(&self) -> u32 {
        if self.flags & FLAG_HASH64 != 0 { 48 } else { 28 }
    }
    /// The kind of the keys.
    pub fn key_kind(&self) -> KeyKind {
        if self.flags & FLAG_UINT64_KEY != 0 { KeyKind::U64 } else { KeyKind::String }
    }
    /// The hash of a key in the form that [`KeyKind`] describes. Bits that do not count are zero.
    pub fn hash(&self, key: &[u8]) -> u64 {
        let h = if self.flags & FLAG_PRE_HASHED_KEY != 0 {
            let mut first = [0u8; 8];
            let n = key.len().min(8);
            first[..n].copy_from_slice(&key[..n]);
            u64::from_be_bytes(first)
        } else if self.flags & FLAG_UINT64_KEY != 0 {
            hash_words(self.salt, key)
        } else {
            hash_bytes(self.salt, &normalise(key, self.normflags))
        };
        h & !(u64::MAX >> self.hash_bits())
    }
    /// Whether the stored key matches `wanted`.
    pub fn matches(&self, stored: &[u8], wanted: &[u8], how: Match) -> bool {
        if stored == wanted {
            return true;
        }
        let flags = match how {
            Match::Exact => return false,
            Match::Normalised => self.normflags & !NORM_TOUPPER,
            Match::Folded => self.normflags,
        };
        flags != 0 && self.key_kind() == KeyKind::String && normalise(stored, flags) == normalise(wanted, flags)
    }
}

/// The value of an entry: integers of one size.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct ZapValue {
    /// Bytes of one integer: 1, 2, 4 or 8.
    pub int_size: u8,
    /// The integers, big-endian, one after the other: the form in which leaves hold them.
    pub bytes: Vec<u8>,
}

impl ZapValue {
    /// One u64, the only value that a micro ZAP can hold.
    pub fn from_u64(v: u64) -> ZapValue {
        ZapValue { int_size: 8, bytes: v.to_be_bytes().to_vec() }
    }
    /// An array of u64.
    pub fn from_u64s(v: &[u64]) -> ZapValue {
        ZapValue { int_size: 8, bytes: v.iter().flat_map(|x| x.to_be_bytes()).collect() }
    }
    /// An array of u16.
    pub fn from_u16s(v: &[u16]) -> ZapValue {
        ZapValue { int_size: 2, bytes: v.iter().flat_map(|x| x.to_be_bytes()).collect() }
    }
    /// Bytes as they are.
    pub fn from_bytes(v: &[u8]) -> ZapValue {
        ZapValue { int_size: 1, bytes: v.to_vec() }
    }
    /// A string with the NUL that ends it on disk.
    pub fn from_str_nul(v: &str) -> ZapValue {
        let mut bytes = v.as_bytes().to_vec();
        bytes.push(0);
        ZapValue { int_size: 1, bytes }
    }
    /// How many integers there are.
    pub fn num_ints(&self) -> usize {
        self.bytes.len() / usize::from(self.int_size.max(1))
    }
    /// The integers, widened.
    pub fn ints(&self) -> impl Iterator<Item = u64> + '_ {
        self.bytes
            .chunks_exact(usize::from(self.int_size.max(1)))
            .map(|c| c.iter().fold(0, |v, &b| v << 8 | u64::from(b)))
    }
    /// The value when it is exactly one u64.
    pub fn as_u64(&self) -> Option<u64> {
        (self.int_size == 8 && self.bytes.len() == 8).then(|| self.ints().next()).flatten()
    }
    /// The value as u64s; of another integer size none.
    pub fn as_u64s(&self) -> Option<Vec<u64>> {
        (self.int_size == 8).then(|| self.ints().collect())
    }
    /// The bytes up to the first NUL, when the integers are bytes.
    pub fn as_cstr(&self) -> Option<&[u8]> {
        (self.int_size == 1).then(|| self.bytes.split(|&b| b == 0).next().unwrap_or(&[]))
    }
    /// The bytes as they are, when the integers are bytes.
    pub fn as_bytes(&self) -> Option<&[u8]> {
        (self.int_size == 1).then_some(self.bytes.as_slice())
    }
    /// As text without its NUL, when the integers are bytes; bytes that are not UTF-8 are replaced.
    pub fn as_text(&self) -> Option<String> {
        self.as_cstr().map(|s| String::from_utf8_lossy(s).into_owned())
    }
    /// Bytes of one integer: 1, 2, 4 or 8.
    pub fn int_size(&self) -> u8 {
        self.int_size
    }
    /// Fails unless the integer size is one of the four and the bytes are whole integers within the
    /// format's limit.
    pub fn check(&self) -> Result<()> {
        if !matches!(self.int_size, 1 | 2 | 4 | 8) || !self.bytes.len().is_multiple_of(usize::from(self.int_size)) {
            return Err(Error::invalid(format!(
                "ZAP value of {} bytes in integers of {}",
                self.bytes.len(),
                self.int_size
            )));
        }
        if self.bytes.len() > MAX_VALUE {
            return Err(Error::new(base::ErrorKind::TooBig, format!("ZAP value of {} bytes", self.bytes.len())));
        }
        Ok(())
    }
}

/// Which form of ZAP block 0 is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ZapKind {
    /// The whole ZAP.
    Micro,
    /// The header of a fat one.
    Fat,
}

/// The form of a ZAP, from its block 0.
pub fn kind(block0: &[u8]) -> Result<ZapKind> {
    match try_le64(block0, 0) {
        Some(BLOCK_MICRO) => Ok(ZapKind::Micro),
        Some(BLOCK_HEADER) => Ok(ZapKind::Fat),
        Some(w) => Err(Error::corrupt(format!("block 0 of a ZAP begins with {w:#x}"))),
        None => Err(Error::corrupt("block 0 of a ZAP is shorter than a word")),
    }
}

/// The key of an integer-keyed entry: lower-case hexadecimal (format page 04 section 6).
pub fn int_key(v: u64) -> String {
    format!("{v:x}")
}

/// The integer of a key that [`int_key`] made.
pub fn parse_int_key(key: &[u8]) -> Option<u64> {
    let s = std::str::from_utf8(key).ok()?;
    if s.starts_with('+') {
        return None;
    }
    u64::from_str_radix(s, 16).ok()
}

/// A place in the (hash, cd) order as one number (format page 04 section 7). `u64::MAX` is the end.
pub fn cookie(hash: u64, cd: u32, hash_bits: u32) -> u64 {
    hash >> (64 - hash_bits) | u64::from(cd) << hash_bits
}

/// The place of a cookie: the first entry at or after it is next. `None` at the end.
pub fn from_cookie(cookie: u64, hash_bits: u32) -> Option<(u64, u32)> {
    if cookie == u64::MAX {
        return None;
    }
    let cd = cookie >> hash_bits;
    Some((cookie << (64 - hash_bits), cd.min(u64::from(u32::MAX)) as u32))
}

/// Which entries of a table of `1 << shift` belong to the leaf with this prefix: first index and
/// count.
pub fn table_range(prefix: u64, prefix_len: u32, shift: u32) -> Option<(u64, u64)> {
    let span = shift.checked_sub(prefix_len)?;
    Some((prefix.checked_shl(span)?, 1u64.checked_shl(span)?))
}

/// After a split: which entries of a table of `1 << shift` must now point at the new leaf.
pub fn split_range(new_prefix: u64, new_prefix_len: u32, shift: u32) -> Option<(u64, u64)> {
    table_range(new_prefix, new_prefix_len, shift)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values() {
        assert_eq!(ZapValue::from_u64(7).as_u64(), Some(7));
        assert_eq!(ZapValue::from_u64s(&[1, 2]).as_u64(), None);
        assert_eq!(ZapValue::from_u16s(&[5, 0x1234]).ints().collect::<Vec<_>>(), [5, 0x1234]);
        assert_eq!(ZapValue::from_str_nul("ab").as_cstr(), Some(&b"ab"[..]));
        assert!(ZapValue { int_size: 4, bytes: vec![0; 6] }.check().is_err());
    }

    #[test]
    fn cookies() {
        let h = 0xabcd_ef10_0000_0000 & !(u64::MAX >> 28);
        assert_eq!(from_cookie(cookie(h, 3, 28), 28), Some((h, 3)));
        assert_eq!(from_cookie(u64::MAX, 28), None);
        assert_eq!(parse_int_key(int_key(0xdead).as_bytes()), Some(0xdead));
        assert_eq!(parse_int_key(b"+1"), None);
        assert_eq!(table_range(5, 3, 10), Some((5 << 7, 128)));
        assert_eq!(table_range(5, 11, 10), None);
    }
}
