//! LZJB, the compressor of pools without LZ4 (format page 02, section 4).
//!
//! A stream is groups of a map byte and up to eight items; bit k of the map, lowest first, is the
//! kind of item k: 0 a literal byte, 1 a copy of two bytes `b0 b1`, length `(b0 >> 2) + 3` (3..=66)
//! from `((b0 & 3) << 8) | b1` (1..=1023) bytes back. The stream ends where lsize bytes are
//! produced. A copy may overlap its own output, which repeats a pattern.

use base::Result;

use crate::compress::corrupt;

const MIN_MATCH: usize = 3;
const MAX_MATCH: usize = 66;
const MAX_DISTANCE: usize = 1023;
const HASH_BITS: u32 = 12;

/// The stream's length, `None` if it does not fit into `dst`.
pub fn compress(src: &[u8], dst: &mut [u8]) -> Option<usize> {
    // The latest place of each hash of three bytes; whether the bytes are the same is checked at
    // the place.
    let mut places = [0u32; 1 << HASH_BITS];
    let (mut at, mut out, mut map_at, mut bit) = (0, 0, 0, 8);
    while at < src.len() {
        if bit == 8 {
            bit = 0;
            map_at = out;
            *dst.get_mut(out)? = 0;
            out += 1;
        }
        match find(src, at, &mut places) {
            Some((distance, len)) => {
                let [b0, b1] = dst.get_mut(out..out + 2)? else { unreachable!("the slice is two bytes long") };
                *b0 = ((len - MIN_MATCH) << 2 | distance >> 8) as u8;
                *b1 = distance as u8;
                dst[map_at] |= 1 << bit;
                out += 2;
                at += len;
            }
            None => {
                *dst.get_mut(out)? = src[at];
                out += 1;
                at += 1;
            }
        }
        bit += 1;
    }
    Some(out)
}

/// The distance and length of an earlier occurrence of the bytes at `at`.
#[inline]
fn find(src: &[u8], at: usize, places: &mut [u32; 1 << HASH_BITS]) -> Option<(usize, usize)> {
    let here: &[u8; 3] = src[at..].first_chunk()?;
    let key = u32::from_le_bytes([here[0], here[1], here[2], 0]);
    let slot = (key.wrapping_mul(0x9e37_79b1) >> (32 - HASH_BITS)) as usize;
    let before = std::mem::replace(&mut places[slot], at as u32) as usize;
    let distance = at - before;
    // An empty slot reads as place 0, which is right or fails the comparison like any other place.
    if distance == 0 || distance > MAX_DISTANCE || src[before..before + MIN_MATCH] != *here {
        return None;
    }
    let most = (src.len() - at).min(MAX_MATCH);
    let len = (MIN_MATCH..most).find(|&i| src[before + i] != src[at + i]).unwrap_or(most);
    Some((distance, len))
}

/// Fills `dst` from the stream `src`.
pub fn decompress(src: &[u8], dst: &mut [u8]) -> Result<()> {
    let (mut at, mut out) = (0, 0);
    let short = || corrupt("lzjb", "it ends too early");
    while out < dst.len() {
        let mut map = *src.get(at).ok_or_else(short)?;
        at += 1;
        for _ in 0..8 {
            if out == dst.len() {
                break;
            }
            if map & 1 == 0 {
                dst[out] = *src.get(at).ok_or_else(short)?;
                at += 1;
                out += 1;
            } else {
                let &[b0, b1] = src.get(at..).and_then(<[u8]>::first_chunk).ok_or_else(short)?;
                at += 2;
                let distance = usize::from(b0 & 3) << 8 | usize::from(b1);
                // Like the reference, the last copy may be longer than the rest of the block.
                let len = (usize::from(b0 >> 2) + MIN_MATCH).min(dst.len() - out);
                if distance == 0 || distance > out {
                    return Err(corrupt("lzjb", format_args!("a copy from {distance} bytes back at byte {out}")));
                }
                if distance >= len {
                    dst.copy_within(out - distance..out - distance + len, out);
                } else {
                    for i in out..out + len {
                        dst[i] = dst[i - distance];
                    }
                }
                out += len;
            }
            map >>= 1;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_made_by_hand() {
        // Three literals; a copy of 3 from 3 back; a literal.
        let mut out = [0u8; 7];
        decompress(&[0b0000_1000, b'a', b'b', b'c', 0, 3, b'!', 0, 0, 0], &mut out).unwrap();
        assert_eq!(&out, b"abcabc!");
        // A literal and an overlapping copy of 66 from 1 back.
        let mut out = [0u8; 67];
        decompress(&[0b10, b'x', 63 << 2, 1], &mut out).unwrap();
        assert_eq!(out, [b'x'; 67]);
        // Ten bits of distance.
        let mut src = Vec::new();
        for group in 0..128u32 {
            src.push(0);
            src.extend((0..8).map(|i| (group * 8 + i) as u8 ^ (group / 32) as u8));
        }
        src.extend([1, 3, 0xff]);
        let mut out = vec![0u8; 1027];
        decompress(&src, &mut out).unwrap();
        assert_eq!(out[1024..], out[1..4]);
        // A last copy that reaches beyond the block is cut.
        let mut out = [0u8; 3];
        decompress(&[0b10, b'x', 63 << 2, 1], &mut out).unwrap();
        assert_eq!(&out, b"xxx");
    }

    #[test]
    fn damaged_streams_are_errors() {
        let mut out = [0u8; 16];
        for bad in [&[][..], &[0], &[0, 1, 2], &[1, 0, 0], &[1, 0, 1], &[2, 7, 0, 2], &[2, 7, 0], &[2, 7]] {
            assert_eq!(decompress(bad, &mut out).unwrap_err().kind(), base::ErrorKind::Corrupt, "{bad:?}");
        }
        decompress(&[], &mut []).unwrap();
    }

    #[test]
    fn compressor_finds_repeats_and_obeys_the_limit() {
        let src: Vec<u8> = b"the quick brown fox ".iter().copied().cycle().take(4096).collect();
        let mut dst = vec![0u8; 4096];
        let n = compress(&src, &mut dst).unwrap();
        assert!(n < 200, "{n}");
        assert!(compress(&src, &mut dst[..n]).is_some());
        for limit in 0..n {
            assert_eq!(compress(&src, &mut dst[..limit]), None);
        }
    }
}
