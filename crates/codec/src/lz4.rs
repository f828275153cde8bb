//! LZ4 as ZFS stores it: the length of the stream as a big-endian u32, then a raw LZ4 block (format
//! page 02, section 4).

use base::Result;
use lz4::block::{compress_to_buffer, decompress_to_buffer};

use crate::compress::corrupt;

const HEADER: usize = 4;

/// The stream's length, `None` if it is above `limit`.
pub fn compress(src: &[u8], dst: &mut [u8], limit: usize) -> Option<usize> {
    // The library gives up as soon as it meets the end of its room.
    let (header, room) = dst.get_mut(..limit)?.split_first_chunk_mut::<HEADER>()?;
    let n = compress_to_buffer(src, None, false, room).ok()?;
    *header = u32::try_from(n).ok()?.to_be_bytes();
    Some(HEADER + n)
}

/// Fills `dst` from the stream `src`.
pub fn decompress(src: &[u8], dst: &mut [u8]) -> Result<()> {
    let stream = sized_stream("lz4", src, HEADER)?;
    let size = i32::try_from(dst.len()).map_err(|_| corrupt("lz4", "no block is that large"))?;
    match decompress_to_buffer(stream, Some(size), dst) {
        Ok(n) if n == dst.len() => Ok(()),
        Ok(n) => Err(corrupt("lz4", format_args!("it makes {n} bytes of {}", dst.len()))),
        Err(e) => Err(corrupt("lz4", e)),
    }
}

/// The stream behind a header of `header` bytes that begins with the stream's length as a
/// big-endian u32.
pub fn sized_stream<'a>(algo: &str, src: &'a [u8], header: usize) -> Result<&'a [u8]> {
    let (len, _) = src.split_first_chunk::<4>().ok_or_else(|| corrupt(algo, "it has no header"))?;
    let len = u32::from_be_bytes(*len);
    let body = src.get(header..).ok_or_else(|| corrupt(algo, "it has no header"))?;
    body.get(..len as usize)
        .ok_or_else(|| corrupt(algo, format_args!("its header says {len} bytes, {} are there", body.len())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_made_by_hand() {
        // Token: 1 literal, match of 4 + 3; distance 1; then 5 literals.
        let src = [0, 0, 0, 10, 0x13, b'a', 1, 0, 0x50, b'1', b'2', b'3', b'4', b'5', 0, 0, 0];
        let mut out = [0u8; 13];
        decompress(&src, &mut out).unwrap();
        assert_eq!(&out, b"aaaaaaaa12345");
        assert!(decompress(&src, &mut [0; 12]).is_err());
        assert!(decompress(&src, &mut [0; 14]).is_err());
        assert!(decompress(&src[..13], &mut out).is_err());
        for len in 0..4 {
            assert!(decompress(&src[..len], &mut out).is_err());
        }
    }

    #[test]
    fn the_room_that_a_stream_may_take_is_kept_to() {
        for len in [100, 4096, 65534, 65535, 65536, 131072, 2 << 20] {
            let src: Vec<u8> = (0..len).map(|i| (i / 7 % 251) as u8).collect();
            let mut tight = vec![0u8; len - len / 8];
            let mut wide = vec![0u8; len * 2 + 64];
            let limit = tight.len();
            let a = compress(&src, &mut tight, limit).unwrap();
            let b = compress(&src, &mut wide, limit).unwrap();
            assert_eq!(tight[..a], wide[..b]);
            assert_eq!(tight[..4], (a as u32 - 4).to_be_bytes());
            assert!(compress(&src, &mut wide, a).is_some());
            assert_eq!(compress(&src, &mut wide, a - 1), None);
            assert_eq!(compress(&src, &mut tight[..3], 3), None);
        }
    }
}
