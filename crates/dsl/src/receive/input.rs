//! The stream as it comes in: records with their payloads, checked, a bounded part of it in memory.
//!
//! Lengths are bounded before anything is read by them (`ondisk::stream`). Sums of large payloads
//! are a job for another thread.

use base::{Error, ErrorKind, Result};
use bdev::Bytes;
use codec::checksum::Endian;
use ondisk::nvlist::NvList;
use ondisk::stream::record::Begin;
use ondisk::stream::{RECORD_SIZE, Record, StreamReader};
use rt::{LocalBoxFuture, Rt};

/// Gives the bytes of a stream in order.
pub trait Source {
    /// The next `len` bytes; fewer only at the end of the stream, after which there are none.
    fn take(&mut self, len: usize) -> LocalBoxFuture<'_, Result<Bytes>>;
}

/// A BEGIN and its list, which says what comes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Head {
    /// The record.
    pub begin: Begin,
    /// The list after it; empty without one.
    pub list: NvList,
}

impl Head {
    /// Whether a package begins, not a snapshot.
    pub fn is_package(&self) -> bool {
        self.begin.header_type() == Begin::PACKAGE
    }
}

/// A record with what came behind it.
pub(super) struct Incoming {
    pub record: Record,
    pub payload: Bytes,
    /// Where the record begins in the stream, for messages.
    pub offset: u64,
}

/// A stream that is being read.
pub struct Input<'a> {
    rt: Rt,
    reader: StreamReader,
    source: &'a mut dyn Source,
}

impl<'a> Input<'a> {
    /// The stream that `source` gives, from its beginning.
    pub fn new(rt: Rt, source: &'a mut dyn Source) -> Input<'a> {
        Input { rt, reader: StreamReader::new(), source }
    }

    /// The byte order of the stream; little-endian before its first record.
    pub(super) fn order(&self) -> Endian {
        self.reader.order().unwrap_or(Endian::Little)
    }

    /// Bytes that were read so far.
    pub fn offset(&self) -> u64 {
        self.reader.offset()
    }

    /// The next record; none at the end of the stream. Errors: `Invalid` if this is no send stream;
    /// `Checksum` if a sum differs; `Corrupt` if a record is malformed, at the wrong place, or cut
    /// off; those of the source.
    pub(super) async fn next(&mut self) -> Result<Option<Incoming>> {
        let bytes = self.source.take(RECORD_SIZE).await?;
        if bytes.is_empty() {
            self.reader.end()?;
            return Ok(None);
        }
        let head: &[u8; RECORD_SIZE] = bytes.first_chunk().ok_or_else(|| self.cut_off())?;
        let cost = rt::cost::FLETCHER.cost(RECORD_SIZE as u64);
        self.rt.spend(cost).await;
        let frame = self.reader.record(head)?;
        let payload = self.payload().await?;
        Ok(Some(Incoming { record: frame.record, payload, offset: frame.offset }))
    }

    async fn payload(&mut self) -> Result<Bytes> {
        let len = self.reader.payload_left() as usize;
        if len == 0 {
            return Ok(Bytes::empty());
        }
        let payload = self.source.take(len).await?;
        if payload.len() != len {
            return Err(self.cut_off());
        }
        let mut reader = std::mem::take(&mut self.reader);
        let sum = move || {
            reader.payload(&payload);
            (reader, payload)
        };
        let (reader, payload) = self.rt.cpu(rt::cost::FLETCHER.cost(len as u64), sum).await;
        self.reader = reader;
        Ok(payload)
    }

    pub(super) fn cut_off(&self) -> Error {
        let at = self.reader.offset();
        Error::corrupt(format!("the stream is incomplete: it stops within the record at byte {at}"))
    }

    /// The next BEGIN; none at the end of the stream, or of a package: what follows that is not
    /// read, as in OpenZFS. The ENDs around the parts of a package are passed over. Errors: as of
    /// reading records; `Corrupt` for any other record.
    pub async fn begin(&mut self) -> Result<Option<Head>> {
        loop {
            let Some(Incoming { record, payload, offset }) = self.next().await? else { return Ok(None) };
            match record {
                Record::End(_) if self.reader.is_complete() => return Ok(None),
                Record::End(_) => {}
                Record::Begin(begin) => {
                    let list = if payload.is_empty() {
                        NvList::new()
                    } else {
                        let cost = rt::cost::COPY.cost(payload.len() as u64 * 8);
                        let (list, _payload) = self.rt.cpu(cost, move || (NvList::decode(&payload), payload)).await;
                        list.map_err(|e| e.at(format_args!("the list at byte {offset} of the stream")))?
                    };
                    return Ok(Some(Head { begin, list }));
                }
                other => {
                    let text = format!("a record of type {} stands where a part begins", other.type_id());
                    return Err(Error::new(ErrorKind::Corrupt, text).at(format_args!("byte {offset} of the stream")));
                }
            }
        }
    }

    /// Passes over the rest of a part whose BEGIN was read.
    pub async fn skip(&mut self) -> Result<()> {
        while let Some(incoming) = self.next().await? {
            if matches!(incoming.record, Record::End(_)) {
                return Ok(());
            }
        }
        Err(self.cut_off())
    }
}
