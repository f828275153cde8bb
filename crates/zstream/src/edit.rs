//! Streams that are changed record by record, and the small changes: blocks are decompressed, or
//! their records dropped.
//!
//! [`rewrite`] reads each record, lets a function change it or its payload, and writes it with new
//! sums, in the byte order that the stream has. Records that are not changed come out as they went
//! in, so a change that does nothing copies the stream bit by bit.

use std::collections::BTreeMap;
use std::io::{Read, Write};

use base::{Error, Result};
use codec::checksum::Endian;
use codec::compress::{CompressAlgo, decompress as unpack};
use ondisk::stream::record::Begin;
use ondisk::stream::{Frame, PAYLOAD_MAX, Record, StreamWriter, features};

use crate::dump::unwritable;
use crate::input::Input;

/// What becomes of a record.
pub(crate) enum Fate {
    /// It stays as it is.
    Same,
    /// It is written so, with its old payload.
    Header(Record),
    /// It is written so, with that payload.
    Other(Record, Vec<u8>),
    /// It is left out.
    Dropped,
}

/// Copies the stream `from` to `out` and lets `change` decide about each record, by its payload and
/// the byte order of the stream. Gives what is
/// missing if the input ends within the stream. Errors: those of [`Input::record`] and of `change`;
/// `Io` if `out` cannot be written.
pub(crate) fn rewrite(
    from: &mut dyn Read,
    out: &mut dyn Write,
    mut change: impl FnMut(&Frame, &[u8], Endian) -> Result<Fate>,
) -> Result<Option<Error>> {
    let mut input = Input::new(from);
    let mut writer = None;
    while let Some(frame) = input.record()? {
        let (payload, order) = (input.payload(), input.order());
        let fate = change(&frame, payload, order)?;
        let (record, payload) = match &fate {
            Fate::Same => (&frame.record, payload),
            Fate::Header(record) => (record, payload),
            Fate::Other(record, payload) => (record, &payload[..]),
            Fate::Dropped => continue,
        };
        let bytes = writer.get_or_insert_with(|| StreamWriter::new(order)).record(record, payload);
        out.write_all(&bytes).and_then(|()| out.write_all(payload)).map_err(unwritable)?;
    }
    out.flush().map_err(unwritable)?;
    Ok(input.incomplete().cloned())
}

/// Error: `Unsupported` if the stream is deduplicated, which only [`crate::redup()`] takes.
pub(crate) fn refuse_dedup(begin: &Begin) -> Result<()> {
    if begin.features() & (features::DEDUP | features::DEDUPPROPS) == 0 {
        return Ok(());
    }
    Err(Error::unsupported("the stream is deduplicated: expand it with 'zstream redup' first"))
}

/// A block of an object.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Block {
    /// The object's number.
    pub object: u64,
    /// Where the block begins, in bytes.
    pub offset: u64,
}

/// Decompresses the named blocks of the stream `from`: for those whose compression a sender got
/// wrong. The algorithm is that of the record, or the one given; `off` declares that the block was
/// not compressed at all. `note` is told what became of each block. Errors as [`rewrite`].
pub fn decompress(
    from: &mut dyn Read,
    out: &mut dyn Write,
    blocks: &BTreeMap<Block, Option<CompressAlgo>>,
    note: &mut dyn FnMut(Block, &str),
) -> Result<Option<Error>> {
    rewrite(from, out, |frame, payload, _| {
        let write = match &frame.record {
            Record::Begin(begin) => return refuse_dedup(begin).map(|()| Fate::Same),
            Record::Write(write) => *write,
            _ => return Ok(Fate::Same),
        };
        let block = Block { object: write.object.0, offset: write.offset };
        let Some(given) = blocks.get(&block) else { return Ok(Fate::Same) };
        let algo = given.or(CompressAlgo::from_u8(write.compression));
        let mut plain = write;
        (plain.compression, plain.compressed_size) = (0, 0);
        match algo {
            Some(CompressAlgo::Off | CompressAlgo::Inherit) if write.compression == 0 => {
                note(block, "is not compressed");
                Ok(Fate::Same)
            }
            Some(CompressAlgo::Off) => {
                plain.logical_size = payload.len() as u64;
                note(block, "is declared as not compressed");
                Ok(Fate::Header(Record::Write(plain)))
            }
            // A raw record may have any logical size, whatever the length of its payload.
            Some(algo) if write.logical_size <= PAYLOAD_MAX && write.logical_size.is_multiple_of(4) => {
                let mut content = vec![0; write.logical_size as usize];
                if let Err(e) = unpack(algo, payload, &mut content) {
                    note(block, &format!("stays as it is: {e}"));
                    return Ok(Fate::Same);
                }
                note(block, &format!("was decompressed with {}", algo.name()));
                Ok(Fate::Other(Record::Write(plain), content))
            }
            _ => {
                note(block, "stays as it is: its algorithm or size is unknown");
                Ok(Fate::Same)
            }
        }
    })
}

/// Leaves the records of the named blocks out of the stream `from`. `note` is told of each. Errors
/// as [`rewrite`].
pub fn drop_record(
    from: &mut dyn Read,
    out: &mut dyn Write,
    blocks: &[Block],
    note: &mut dyn FnMut(Block, &str),
) -> Result<Option<Error>> {
    rewrite(from, out, |frame, _, _| {
        let (object, offset) = match &frame.record {
            Record::Begin(begin) => return refuse_dedup(begin).map(|()| Fate::Same),
            Record::Write(r) => (r.object, r.offset),
            Record::WriteEmbedded(r) => (r.to.object, r.to.offset),
            _ => return Ok(Fate::Same),
        };
        let block = Block { object: object.0, offset };
        if !blocks.contains(&block) {
            return Ok(Fate::Same);
        }
        note(block, "is dropped");
        Ok(Fate::Dropped)
    })
}
