//! Zstandard as ZFS stores it (format page 02, section 4): a header of two big-endian words, the
//! length of the frame and `level << 24 | version of the library`, then a frame without magic,
//! content size and checksum.

use std::cell::RefCell;

use base::Result;
use zstd::bulk::{Compressor, Decompressor};
use zstd::zstd_safe::{CParameter, DParameter, FrameFormat};

use crate::compress::corrupt;
use crate::lz4::sized_stream;

const HEADER: usize = 8;

thread_local! {
    static ENCODER: RefCell<Option<Encoder>> = const { RefCell::new(None) };
    static DECODER: RefCell<Option<Decompressor<'static>>> = const { RefCell::new(None) };
}

struct Encoder {
    context: Compressor<'static>,
    level: i32,
}

impl Encoder {
    fn new(level: i32) -> std::io::Result<Encoder> {
        let mut context = Compressor::new(level)?;
        context.set_parameter(CParameter::Format(FrameFormat::Magicless))?;
        context.set_parameter(CParameter::ContentSizeFlag(false))?;
        context.set_parameter(CParameter::ChecksumFlag(false))?;
        Ok(Encoder { context, level })
    }
}

/// The stream's length, `None` if it does not fit into `dst`. `level` as the library counts, `byte`
/// as the header has it.
pub fn compress(level: i32, byte: u8, src: &[u8], dst: &mut [u8]) -> Option<usize> {
    if dst.len() <= HEADER {
        return None;
    }
    let (header, body) = dst.split_at_mut(HEADER);
    let n = ENCODER.with_borrow_mut(|slot| {
        // Failing to make a context means there is no memory for it; then the block is stored
        // uncompressed.
        let mut encoder = match slot.take() {
            Some(encoder) => encoder,
            None => Encoder::new(level).ok()?,
        };
        if encoder.level != level {
            encoder.context.set_parameter(CParameter::CompressionLevel(level)).ok()?;
            encoder.level = level;
        }
        let n = encoder.context.compress_to_buffer(src, body).ok();
        *slot = Some(encoder);
        n
    })?;
    header[..4].copy_from_slice(&u32::try_from(n).ok()?.to_be_bytes());
    let version = zstd::zstd_safe::version_number() & 0xff_ffff;
    header[4..].copy_from_slice(&(u32::from(byte) << 24 | version).to_be_bytes());
    Some(HEADER + n)
}

/// Fills `dst` from the stream `src`.
pub fn decompress(src: &[u8], dst: &mut [u8]) -> Result<()> {
    let frame = sized_stream("zstd", src, HEADER)?;
    let made = DECODER.with_borrow_mut(|slot| {
        let mut decoder = match slot.take() {
            Some(decoder) => decoder,
            None => {
                let mut decoder = Decompressor::new()?;
                decoder.set_parameter(DParameter::Format(FrameFormat::Magicless))?;
                decoder
            }
        };
        let made = decoder.decompress_to_buffer(frame, dst);
        *slot = Some(decoder);
        made
    });
    match made {
        Ok(n) if n == dst.len() => Ok(()),
        Ok(n) => Err(corrupt("zstd", format_args!("it makes {n} bytes of {}", dst.len()))),
        Err(e) => Err(corrupt("zstd", e)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_made_by_hand() {
        // Frame header descriptor 0 (no single segment, no size, no checksum), window 1 KiB (0),
        // then a raw block, last: 3 bytes little-endian `size << 3 | type 0 << 1 | last 1`. By
        // RFC 8878.
        let src = [0, 0, 0, 8, 3, 0, 0x28, 0xa5, 0, 0, 3 << 3 | 1, 0, 0, b'a', b'b', b'c', 0, 0];
        let mut out = [0u8; 3];
        decompress(&src, &mut out).unwrap();
        assert_eq!(&out, b"abc");
        assert!(decompress(&src, &mut [0; 2]).is_err());
        assert!(decompress(&src, &mut [0; 4]).is_err());
        for len in 0..16 {
            assert!(decompress(&src[..len], &mut out).is_err(), "{len}");
        }
    }

    #[test]
    fn header_and_frame_are_as_on_disk() {
        let src = b"weir ".repeat(1000);
        let mut dst = vec![0u8; src.len()];
        for (level, byte) in [(3, 3), (-1000, 123), (19, 19), (1, 1), (3, 3)] {
            let n = compress(level, byte, &src, &mut dst).unwrap();
            assert_eq!(dst[..4], (n as u32 - 8).to_be_bytes());
            assert_eq!(dst[4], byte);
            assert_eq!(dst[5..8], [0, 0x29, 0x0b], "the version, 1.5.7 as 10507");
            // Descriptor: size flag 0, no single segment, no checksum, no dictionary; so no magic
            // either.
            assert_eq!(dst[8], 0);
        }
    }

    #[test]
    fn a_level_gives_the_same_stream_whatever_came_before() {
        let src: Vec<u8> = (0..100_000u32).flat_map(|i| (i * (i & 31) / 77).to_le_bytes()).take(131072).collect();
        let run = |level| {
            let mut dst = vec![0u8; 131072];
            let n = compress(level, 0, &src, &mut dst).unwrap();
            dst.truncate(n);
            dst
        };
        let first = run(3);
        compress(9, 9, &src, &mut [0; 100]); // fails in the middle of a frame
        run(-10);
        assert_eq!(run(3), first);
    }
}
