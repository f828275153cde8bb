//! gzip-1 to gzip-9: one zlib stream (RFC 1950) for each block, in spite of the name (format page
//! 02, section 4).

use std::cell::RefCell;

use base::Result;
use flate2::{Compress, Compression, Decompress, FlushCompress, FlushDecompress, Status};

use crate::compress::corrupt;

thread_local! {
    // The level and its encoder; levels seldom change.
    static ENCODER: RefCell<Option<(u8, Compress)>> = const { RefCell::new(None) };
    static DECODER: RefCell<Option<Decompress>> = const { RefCell::new(None) };
}

/// The stream's length, `None` if it does not fit into `dst`. `level`: 1..=9.
pub fn compress(level: u8, src: &[u8], dst: &mut [u8]) -> Option<usize> {
    ENCODER.with_borrow_mut(|slot| {
        let encoder = match slot {
            Some((l, encoder)) if *l == level => {
                encoder.reset();
                encoder
            }
            _ => &mut slot.insert((level, Compress::new(Compression::new(u32::from(level)), true))).1,
        };
        match encoder.compress(src, dst, FlushCompress::Finish) {
            Ok(Status::StreamEnd) => Some(encoder.total_out() as usize),
            _ => {
                // An encoder that was stopped half-way keeps bits of its output over a reset
                // (zlib-rs, level 1): the next stream would be damaged.
                *slot = None;
                None
            }
        }
    })
}

/// Fills `dst` from the stream `src`.
pub fn decompress(src: &[u8], dst: &mut [u8]) -> Result<()> {
    DECODER.with_borrow_mut(|slot| {
        let decoder = match slot {
            Some(decoder) => {
                decoder.reset(true);
                decoder
            }
            None => slot.insert(Decompress::new(true)),
        };
        match decoder.decompress(src, dst, FlushDecompress::Finish) {
            Ok(Status::StreamEnd) if decoder.total_out() == dst.len() as u64 => Ok(()),
            Ok(Status::StreamEnd) => {
                Err(corrupt("gzip", format_args!("it makes {} bytes of {}", decoder.total_out(), dst.len())))
            }
            Ok(_) => Err(corrupt("gzip", format_args!("it does not end within {} bytes", dst.len()))),
            Err(e) => Err(corrupt("gzip", e)),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_made_by_hand() {
        // zlib header, one stored block of "abc", adler32.
        let src = [0x78, 0x01, 0x01, 3, 0, 0xfc, 0xff, b'a', b'b', b'c', 0x02, 0x4d, 0x01, 0x27, 0, 0, 0];
        let mut out = [0u8; 3];
        decompress(&src, &mut out).unwrap();
        assert_eq!(&out, b"abc");
        assert!(decompress(&src, &mut [0; 2]).is_err());
        assert!(decompress(&src, &mut [0; 4]).is_err());
        for len in 0..14 {
            assert!(decompress(&src[..len], &mut out).is_err(), "{len}");
        }
        let mut bad = src;
        bad[13] ^= 1;
        assert!(decompress(&bad, &mut out).is_err());
        decompress(&src, &mut out).unwrap();
    }

    #[test]
    fn a_stream_that_did_not_fit_leaves_nothing_behind() {
        let mut x = 1u32;
        let noise: Vec<u8> = std::iter::repeat_with(|| {
            x = x.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (x >> 24) as u8
        })
        .take(131_072)
        .collect();
        let text: Vec<u8> = noise.iter().flat_map(|b| [*b, 1, 2, 3, 4, 5]).take(512).collect();
        for level in 1..=9 {
            for limit in [100, 448, 4096, 50_000, 114_688] {
                assert_eq!(compress(level, &noise, &mut vec![0; limit]), None);
                let mut dst = vec![0; 512];
                let n = compress(level, &text, &mut dst).unwrap();
                let mut out = vec![0; 512];
                decompress(&dst[..n], &mut out).unwrap();
                assert_eq!(out, text, "level {level} after {limit}");
            }
        }
    }

    #[test]
    fn levels_do_not_disturb_each_other() {
        let src: Vec<u8> = (0..131072u32).map(|i| (i.wrapping_mul(i) >> 9) as u8).collect();
        let run = |level| {
            let mut dst = vec![0u8; 131072];
            let n = compress(level, &src, &mut dst).unwrap();
            dst.truncate(n);
            dst
        };
        let (six, nine) = (run(6), run(9));
        assert_eq!(compress(6, &src, &mut [0; 100]), None);
        assert_eq!(run(6), six);
        assert_eq!(run(6), six);
        assert_eq!(run(9), nine);
        assert_eq!(six[0], 0x78);
    }
}
