//! Deduplicated streams are expanded: receivers no longer take them.
//!
//! Such a stream has each block once, as WRITE, and refers to it later by WRITE_BYREF. The stream
//! is read from a file, so that a block can be looked up where it was: a table has the place of
//! each WRITE, by snapshot, object and offset.

use std::collections::BTreeMap;
use std::io::{Read, Seek, SeekFrom, Write};

use base::{Error, ErrorKind, Guid, ObjectId, Result};
use ondisk::stream::{RECORD_SIZE, Record, features};

use crate::edit::{Fate, rewrite};
use crate::input::unreadable;

/// What was expanded.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Expanded {
    /// Records in all.
    pub records: u64,
    /// Those that referred to others.
    pub references: u64,
}

/// Copies the stream in `file` to `out` with every WRITE_BYREF replaced by the WRITE it means.
/// `again` is the same file, opened a second time. Gives what is missing if the input ends within
/// the stream. Errors: as of any stream that is read; `Corrupt` if a reference leads nowhere.
pub fn redup(
    file: &mut dyn Read,
    again: &mut (impl Read + Seek),
    out: &mut dyn Write,
) -> Result<(Expanded, Option<Error>)> {
    let mut places: BTreeMap<(Guid, ObjectId, u64), (u64, u64)> = BTreeMap::new();
    let mut expanded = Expanded::default();
    let incomplete = rewrite(file, out, |frame, payload, order| {
        expanded.records += 1;
        match &frame.record {
            Record::Begin(begin) => {
                let plain = begin.features() & !(features::DEDUP | features::DEDUPPROPS);
                Ok(Fate::Header(Record::Begin(begin.clone().with_features(plain))))
            }
            Record::Write(write) => {
                let place = (frame.offset, payload.len() as u64);
                places.insert((write.to_guid, write.object, write.offset), place);
                Ok(Fate::Same)
            }
            Record::WriteByRef(r) => {
                expanded.references += 1;
                let at = |e: Error| e.at(format_args!("record at byte {} of the stream", frame.offset));
                let Some((offset, len)) = places.get(&(r.ref_guid, r.ref_object, r.ref_offset)) else {
                    return Err(at(Error::corrupt(format!(
                        "WRITE_BYREF refers to object {} at {} of snapshot {:x}, which the stream does not have",
                        r.ref_object, r.ref_offset, r.ref_guid.0
                    ))));
                };
                let (record, payload) = read_back(again, *offset, *len)?;
                let Record::Write(mut write) = Record::decode(&record, order).map_err(at)? else {
                    return Err(changed());
                };
                (write.object, write.offset, write.to_guid) = (r.to.object, r.to.offset, r.to.to_guid);
                if write.logical_size != r.to.length || Record::Write(write).payload_len() != *len {
                    return Err(at(Error::corrupt(format!(
                        "WRITE_BYREF of {} bytes refers to a block of {}",
                        r.to.length, write.logical_size
                    ))));
                }
                Ok(Fate::Other(Record::Write(write), payload))
            }
            _ => Ok(Fate::Same),
        }
    })?;
    Ok((expanded, incomplete))
}

/// The record at `offset` and its payload of `len` bytes.
fn read_back(again: &mut (impl Read + Seek), offset: u64, len: u64) -> Result<([u8; RECORD_SIZE], Vec<u8>)> {
    again.seek(SeekFrom::Start(offset)).map_err(unreadable)?;
    let mut record = [0; RECORD_SIZE];
    again.read_exact(&mut record).map_err(unreadable)?;
    let mut payload = Vec::new();
    if again.take(len).read_to_end(&mut payload).map_err(unreadable)? as u64 != len {
        return Err(changed());
    }
    Ok((record, payload))
}

fn changed() -> Error {
    Error::new(ErrorKind::Io, "the file with the stream was changed while it was read")
}
