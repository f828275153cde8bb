//! ZLE, which compresses runs of zeros and nothing else (format page 02, section 4).
//!
//! A stream is tokens: a byte b below 64 is followed by b + 1 literal bytes; a byte b from 64 on
//! stands for b - 63 zeros (1..=192). It ends where lsize bytes are produced.

use base::Result;

use crate::compress::corrupt;

const LITERALS: usize = 64;
const MAX_ZEROS: usize = 256 - LITERALS;

/// The stream's length, `None` if it does not fit into `dst`.
pub fn compress(src: &[u8], dst: &mut [u8]) -> Option<usize> {
    let (mut at, mut out) = (0, 0);
    while at < src.len() {
        let rest = &src[at..];
        if rest[0] == 0 {
            let n = rest.iter().take(MAX_ZEROS).take_while(|b| **b == 0).count();
            *dst.get_mut(out)? = (n + LITERALS - 1) as u8;
            out += 1;
            at += n;
        } else {
            // A lone zero is cheaper as a literal than as a token of its own that also ends the
            // literals.
            let most = rest.len().min(LITERALS);
            let n = (1..most).find(|&i| rest[i] == 0 && rest.get(i + 1) == Some(&0)).unwrap_or(most);
            dst.get_mut(out..out + 1 + n)?[1..].copy_from_slice(&rest[..n]);
            dst[out] = (n - 1) as u8;
            out += 1 + n;
            at += n;
        }
    }
    Some(out)
}

/// Fills `dst` from the stream `src`. Like the reference, the last token may be longer than the
/// rest of the block.
pub fn decompress(src: &[u8], dst: &mut [u8]) -> Result<()> {
    let (mut at, mut out) = (0, 0);
    let short = || corrupt("zle", "it ends too early");
    while out < dst.len() {
        let token = usize::from(*src.get(at).ok_or_else(short)?);
        at += 1;
        if token < LITERALS {
            let n = (token + 1).min(dst.len() - out);
            dst[out..out + n].copy_from_slice(src.get(at..at + n).ok_or_else(short)?);
            at += n;
            out += n;
        } else {
            let n = (token - LITERALS + 1).min(dst.len() - out);
            dst[out..out + n].fill(0);
            out += n;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_made_by_hand() {
        let mut out = [9u8; 8];
        decompress(&[2, b'a', b'b', b'c', 66, 1, b'd', b'e', 0xff], &mut out).unwrap();
        assert_eq!(&out, b"abc\0\0\0de");
        let mut out = [9u8; 192 + 64];
        let mut src = vec![255, 63];
        src.extend(1..=64);
        decompress(&src, &mut out).unwrap();
        assert!(out[..192].iter().all(|b| *b == 0));
        assert!(out[192..].iter().copied().eq(1..=64));
    }

    #[test]
    fn compressor_makes_the_expected_tokens() {
        let mut dst = [0u8; 64];
        let n = compress(b"a\0b\0\0\0c", &mut dst).unwrap();
        assert_eq!(dst[..n], [2, b'a', 0, b'b', 66, 0, b'c']);
        let n = compress(&[0; 200], &mut dst).unwrap();
        assert_eq!(dst[..n], [255, 64 + 7]);
        assert_eq!(compress(&[0; 200], &mut dst[..1]), None);
        assert_eq!(compress(b"abc", &mut dst[..3]), None);
        assert_eq!(compress(b"abc", &mut dst[..4]), Some(4));
    }

    #[test]
    fn damaged_streams_are_errors() {
        let mut out = [0u8; 16];
        for bad in [&[][..], &[0], &[15, 1, 2], &[70]] {
            assert_eq!(decompress(bad, &mut out).unwrap_err().kind(), base::ErrorKind::Corrupt, "{bad:?}");
        }
    }
}
