//! Hashes of ZAP keys and the normalisation of names before hashing (format pages 04 section 2 and
//! 16 section 6).

use std::borrow::Cow;

use unicode_normalization::UnicodeNormalization;

use super::{NORM_C, NORM_D, NORM_KC, NORM_KD, NORM_TOUPPER};

/// Reflected polynomial of the CRC.
const POLY: u64 = 0xC96C_5795_D787_0F42;

const TABLE: [u64; 256] = {
    let mut t = [0u64; 256];
    let mut i = 0;
    while i < 256 {
        let mut c = i as u64;
        let mut bit = 0;
        while bit < 8 {
            c = (c >> 1) ^ (if c & 1 != 0 { POLY } else { 0 });
            bit += 1;
        }
        t[i] = c;
        i += 1;
    }
    t
};

/// One byte of the CRC.
#[inline]
pub fn crc64(h: u64, byte: u8) -> u64 {
    (h >> 8) ^ TABLE[usize::from((h as u8) ^ byte)]
}

/// The full 64-bit hash of bytes.
pub fn hash_bytes(salt: u64, bytes: &[u8]) -> u64 {
    bytes.iter().fold(salt, |h, &b| crc64(h, b))
}

/// The full 64-bit hash of u64s given as big-endian bytes: each is hashed low byte first.
pub fn hash_words(salt: u64, big_endian: &[u8]) -> u64 {
    big_endian.chunks(8).fold(salt, |h, w| w.iter().rev().fold(h, |h, &b| crc64(h, b)))
}

/// The form of a name that hashes and compares equal under `normflags`. Bytes that are not UTF-8
/// stay as they are.
pub fn normalise(name: &[u8], normflags: u64) -> Cow<'_, [u8]> {
    if normflags == 0 {
        return Cow::Borrowed(name);
    }
    let fold = normflags & NORM_TOUPPER != 0;
    if name.is_ascii() {
        // Every normal form of ASCII is itself.
        return if fold && name.iter().any(u8::is_ascii_lowercase) {
            Cow::Owned(name.to_ascii_uppercase())
        } else {
            Cow::Borrowed(name)
        };
    }
    // Bytes that are not UTF-8 stay as they are and end a run of text; the text around them is
    // normalised.
    let mut out = Vec::with_capacity(name.len());
    for chunk in name.utf8_chunks() {
        let text = chunk.valid();
        let normal: Cow<'_, str> = match normflags & 0x70 {
            NORM_D => text.nfd().collect::<String>().into(),
            NORM_C => text.nfc().collect::<String>().into(),
            NORM_KD => text.nfkd().collect::<String>().into(),
            NORM_KC => text.nfkc().collect::<String>().into(),
            _ => text.into(),
        };
        if fold {
            let mut buf = [0; 4];
            for c in normal.chars() {
                out.extend_from_slice(simple_upper(c).encode_utf8(&mut buf).as_bytes());
            }
        } else {
            out.extend_from_slice(normal.as_bytes());
        }
        out.extend_from_slice(chunk.invalid());
    }
    Cow::Owned(out)
}

/// The simple upper-case mapping: one code point to one. Where the full mapping is longer there is
/// mostly no simple one (sharp s stays); the Greek letters with iota below map to their title-case
/// forms.
fn simple_upper(c: char) -> char {
    let up = match c {
        '\u{1f80}'..='\u{1f87}' | '\u{1f90}'..='\u{1f97}' | '\u{1fa0}'..='\u{1fa7}' => u32::from(c) + 8,
        '\u{1fb3}' | '\u{1fc3}' | '\u{1ff3}' => u32::from(c) + 9,
        _ => {
            let mut full = c.to_uppercase();
            return match (full.next(), full.next()) {
                (Some(u), None) => u,
                _ => c,
            };
        }
    };
    char::from_u32(up).unwrap_or(c)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn crc_check_value() {
        // CRC-64/XZ of "123456789" is the same polynomial with all-ones start and final inversion.
        assert_eq!(!hash_bytes(u64::MAX, b"123456789"), 0x995D_C9BB_DF19_39FA);
        assert_eq!(hash_words(7, &0x0102_0304_0506_0708u64.to_be_bytes()), hash_bytes(7, &[8, 7, 6, 5, 4, 3, 2, 1]));
    }

    #[test]
    fn normal_forms() {
        assert_eq!(&*normalise(b"MiXed", NORM_TOUPPER), b"MIXED");
        assert_eq!(&*normalise(b"MiXed", NORM_D), b"MiXed");
        assert_eq!(&*normalise("\u{e9}".as_bytes(), NORM_D), "e\u{301}".as_bytes());
        assert_eq!(&*normalise("e\u{301}".as_bytes(), NORM_C), "\u{e9}".as_bytes());
        assert_eq!(&*normalise("\u{fb01}".as_bytes(), NORM_KC), b"fi");
        assert_eq!(&*normalise("stra\u{df}e".as_bytes(), NORM_TOUPPER), "STRA\u{df}E".as_bytes());
        assert_eq!(&*normalise("\u{e9}".as_bytes(), NORM_D | NORM_TOUPPER), "E\u{301}".as_bytes());
        assert_eq!(&*normalise(b"latin1-\xe9", NORM_TOUPPER), b"LATIN1-\xe9");
        assert_eq!(&*normalise(b"\xff\xfea", NORM_D | NORM_TOUPPER), b"\xff\xfeA");
        assert_eq!(simple_upper('\u{1fb3}'), '\u{1fbc}');
    }
}
