//! Streams whose blocks are compressed anew: a stream for a slow line, or for a receiver whose
//! dataset keeps blocks as they come.
//!
//! For each WRITE: blocks of metadata and encrypted blocks stay, since a receiver expects the first
//! without compression and nothing can compress the second; a block that is compressed that way
//! already stays; everything else is decompressed, and compressed with the wanted algorithm unless
//! that saves nothing. BEGIN names the features that the new blocks need.

use std::io::{Read, Write as Output};

use base::{Error, Result};
use codec::compress::{CompressAlgo, Compression, compress, decompress};
use ondisk::object_type::ObjectType;
use ondisk::stream::record::{Begin, Crypt, Write};
use ondisk::stream::{PAYLOAD_MAX, Record, features};

use crate::edit::{Fate, refuse_dedup, rewrite};

/// Blocks are whole sectors (`SPA_MINBLOCKSIZE`, format page 02).
const SECTOR: usize = 512;

/// Copies the stream `from` to `out` with its blocks compressed by `to`, or not at all with `off`.
/// Gives what is missing if the input ends within the stream. Errors: as of any stream that is
/// read; `Corrupt` if a block does not decompress.
pub fn recompress(from: &mut dyn Read, out: &mut dyn Output, to: Compression) -> Result<Option<Error>> {
    rewrite(from, out, |frame, payload, _| match &frame.record {
        Record::Begin(begin) => {
            refuse_dedup(begin)?;
            if begin.header_type() != Begin::SUBSTREAM {
                return Ok(Fate::Same);
            }
            let begin = begin.clone();
            let needed = features_for(begin.features(), to.algo);
            Ok(Fate::Header(Record::Begin(begin.with_features(needed))))
        }
        Record::Write(write) if changes(write, payload, to) => {
            let place = |e: Error| e.at(format_args!("object {} at {}", write.object, write.offset));
            let (write, payload) = pack(*write, unpack(write, payload).map_err(place)?, to);
            Ok(Fate::Other(Record::Write(write), payload))
        }
        _ => Ok(Fate::Same),
    })
}

/// The features of a sub-stream that had `features`, once its blocks are compressed with `to`.
/// Embedded and raw blocks stay what they are, and with them what they need.
fn features_for(features: u64, to: CompressAlgo) -> u64 {
    let raw = features & features::RAW != 0;
    let keeps = raw || features & features::EMBED_DATA != 0;
    match to {
        CompressAlgo::Off => {
            let mut gone = 0;
            if !raw {
                gone |= features::COMPRESSED;
            }
            if !keeps {
                gone |= features::LZ4 | features::ZSTD;
            }
            features & !gone
        }
        CompressAlgo::Zstd => features | features::COMPRESSED | features::ZSTD,
        CompressAlgo::Lz4 => features | features::COMPRESSED | features::LZ4,
        _ => features | features::COMPRESSED,
    }
}

fn uncompressed(write: &Write) -> bool {
    // 0 in streams, and the numbers of "off" and "empty" in block pointers.
    matches!(write.compression, 0 | 2 | 4)
}

/// Whether a block is to be compressed anew, or decompressed.
fn changes(write: &Write, payload: &[u8], to: Compression) -> bool {
    if ObjectType(write.object_type as u8).is_metadata() || write.crypt != Crypt::default() {
        return false;
    }
    match (uncompressed(write), to.algo) {
        (true, algo) => algo != CompressAlgo::Off,
        (false, algo) if write.compression != algo as u8 => true,
        // The level stands in the block's header: version and level, after the length.
        (false, CompressAlgo::Zstd) => payload.get(7).copied() != Some(stored_level(to)),
        (false, _) => false,
    }
}

/// The level byte that a block compressed with `to` has in its header (format page 02 section 4).
fn stored_level(to: Compression) -> u8 {
    if to.level == 0 { 3 } else { to.level }
}

/// The content of a block.
fn unpack(write: &Write, payload: &[u8]) -> Result<Vec<u8>> {
    if uncompressed(write) {
        return Ok(payload.to_vec());
    }
    let algo = CompressAlgo::from_u8(write.compression)
        .ok_or_else(|| Error::corrupt(format!("there is no compression {}", write.compression)))?;
    if write.logical_size > PAYLOAD_MAX || !write.logical_size.is_multiple_of(4) {
        return Err(Error::corrupt(format!("no block has {} bytes", write.logical_size)));
    }
    let mut content = vec![0; write.logical_size as usize];
    decompress(algo, payload, &mut content)?;
    Ok(content)
}

/// A block whose content is compressed with `to`, as far as that saves a sector.
fn pack(mut write: Write, content: Vec<u8>, to: Compression) -> (Write, Vec<u8>) {
    (write.compression, write.compressed_size) = (0, 0);
    write.logical_size = content.len() as u64;
    if to.algo == CompressAlgo::Off || content.is_empty() {
        return (write, content);
    }
    let limit = (content.len() - 1) / SECTOR * SECTOR;
    let mut packed = vec![0; limit];
    let Some(len) = compress(to, &content, &mut packed, limit) else { return (write, content) };
    let rounded = len.next_multiple_of(SECTOR);
    packed.truncate(rounded);
    packed[len..].fill(0);
    write.compression = to.algo as u8;
    write.compressed_size = rounded as u64;
    (write, packed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn begin_names_what_the_blocks_need() {
        use features::*;
        for (had, to, has) in [
            (SA_SPILL, CompressAlgo::Lz4, SA_SPILL | COMPRESSED | LZ4),
            (SA_SPILL, CompressAlgo::Gzip6, SA_SPILL | COMPRESSED),
            (COMPRESSED | LZ4, CompressAlgo::Zstd, COMPRESSED | LZ4 | ZSTD),
            (COMPRESSED | LZ4 | ZSTD, CompressAlgo::Off, 0),
            (EMBED_DATA | COMPRESSED | LZ4, CompressAlgo::Off, EMBED_DATA | LZ4),
            (RAW | COMPRESSED | LZ4, CompressAlgo::Off, RAW | COMPRESSED | LZ4),
        ] {
            assert_eq!(features_for(had, to), has, "{had:x} to {}", to.name());
        }
    }

    #[test]
    fn what_stays_as_it_is() {
        let zstd = |level| Compression { algo: CompressAlgo::Zstd, level };
        let off = Compression { algo: CompressAlgo::Off, level: 0 };
        let lz4 = Compression { algo: CompressAlgo::Lz4, level: 0 };
        let level_3 = [0, 0, 0, 9, 0, 0, 0, 3];
        let plain = Write { object_type: 19, ..Write::default() };
        let packed = |algo: CompressAlgo| Write { compression: algo as u8, ..plain };
        let encrypted = Write { crypt: Crypt { salt: [1; 8], ..Crypt::default() }, ..plain };
        let directory = Write { object_type: 20, ..plain };
        for (write, to, change) in [
            (plain, off, false),
            (plain, lz4, true),
            (packed(CompressAlgo::Lz4), lz4, false),
            (packed(CompressAlgo::Lz4), off, true),
            (packed(CompressAlgo::Lz4), zstd(3), true),
            (packed(CompressAlgo::Zstd), zstd(3), false),
            (packed(CompressAlgo::Zstd), zstd(0), false),
            (packed(CompressAlgo::Zstd), zstd(9), true),
            (encrypted, lz4, false),
            (directory, lz4, false),
        ] {
            assert_eq!(changes(&write, &level_3, to), change, "{write:?} to {to:?}");
        }
    }
}
