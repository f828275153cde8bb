//! The frame of a stream: running sums, and which record may follow which.
//!
//! Reading, in order: [`StreamReader::record`] with the next 312 bytes gives the record;
//! [`StreamReader::payload`] takes its payload, in one piece or several; and so on until the input
//! ends, where [`StreamReader::end`] tells whether it may end there. Writing mirrors it:
//! [`StreamWriter::record`] gives the bytes of a record, with its sums, and adds a payload that the
//! caller sends behind them.
//!
//! Invariants: the sum covers every byte since the BEGIN, so payloads must pass through here even
//! where the caller does not want them. A record is asked for only when the payload before it is
//! complete; that is the caller's duty and asserts. Anything that comes from the stream is an
//! error, with the offset of its record.
//!
//! Order: BEGIN of a sub-stream, records, END; or BEGIN of a package, END, any number of
//! sub-streams, END. After that another stream may follow, as `cat` makes them.

use base::{Error, Guid, Result};
use codec::checksum::{Checksum, Endian};
use codec::fletcher::fletcher4_update;

use super::record::{Begin, End, Record, TYPE_NAMES, store_sum, stored_sum};
use super::{RECORD_SIZE, SUM_AT};

/// Between which records a stream is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Place {
    /// Before a stream, or after one.
    Outside,
    /// After the BEGIN of a package: its END comes.
    List,
    /// In a package, between its sub-streams.
    Package,
    /// In a sub-stream, of a package or not.
    Substream { package: bool },
}

/// A record that was read.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Frame {
    /// The record.
    pub record: Record,
    /// The sum that it stores; all zero: none, as in BEGIN and around packages.
    pub sum: Checksum,
    /// Where it begins in the stream, in bytes.
    pub offset: u64,
}

/// Checks a stream as it comes.
#[derive(Debug)]
pub struct StreamReader {
    order: Option<Endian>,
    place: Place,
    sum: Checksum,
    verify: bool,
    /// Where the next byte is in the stream.
    offset: u64,
    payload_left: u64,
}

impl Default for StreamReader {
    fn default() -> Self {
        StreamReader::new()
    }
}

impl StreamReader {
    /// A reader before the first record.
    pub fn new() -> StreamReader {
        StreamReader {
            order: None,
            place: Place::Outside,
            sum: Checksum::default(),
            verify: true,
            offset: 0,
            payload_left: 0,
        }
    }

    /// A reader that looks at no sums, for streams known to be damaged.
    pub fn without_sums() -> StreamReader {
        StreamReader { verify: false, ..StreamReader::new() }
    }

    /// The byte order of the stream, once its first record was read.
    pub fn order(&self) -> Option<Endian> {
        self.order
    }

    /// Where the next byte is in the stream, from its beginning.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// Bytes of the last record's payload that have not come yet.
    pub fn payload_left(&self) -> u64 {
        self.payload_left
    }

    /// Takes the next record. Errors: `Invalid` if this is not a send stream; `Corrupt` if the
    /// record is malformed or at the wrong place; `Checksum` if a sum differs.
    ///
    /// # Panics
    /// If the payload of the record before is not complete.
    pub fn record(&mut self, bytes: &[u8; RECORD_SIZE]) -> Result<Frame> {
        assert_eq!(self.payload_left, 0, "the payload before a record has to be read");
        let offset = self.offset;
        let order = match self.order {
            Some(order) => order,
            None => *self.order.insert(Record::order_of(bytes)?),
        };
        let at = |e: Error| e.at(format_args!("record at byte {offset} of the stream"));
        let record = Record::decode(bytes, order).map_err(at)?;
        let place = follow(self.place, &record).map_err(at)?;
        let sum = if matches!(record, Record::Begin(_)) { Checksum::default() } else { stored_sum(bytes, order) };
        if self.verify {
            self.check(bytes, order, &record, sum).map_err(at)?;
        }
        self.place = place;
        self.payload_left = record.payload_len();
        self.offset += RECORD_SIZE as u64;
        Ok(Frame { record, sum, offset })
    }

    /// Compares the sums that `record` stores, and adds it.
    fn check(&mut self, bytes: &[u8; RECORD_SIZE], order: Endian, record: &Record, stored: Checksum) -> Result<()> {
        let differs = |what: &str, stored: Checksum, sum: Checksum| {
            Err(Error::new(
                base::ErrorKind::Checksum,
                format!("the sum {what} is {}, the bytes sum up to {}", words(stored), words(sum)),
            ))
        };
        match record {
            Record::Begin(_) => self.sum = Checksum::default(),
            Record::End(end) if end.checksum != self.sum => {
                return differs("that END states for its sub-stream", end.checksum, self.sum);
            }
            _ => {}
        }
        fletcher4_update(&mut self.sum, &bytes[..SUM_AT], order == Endian::Big);
        if stored != Checksum::default() && stored != self.sum {
            return differs("of the record", stored, self.sum);
        }
        fletcher4_update(&mut self.sum, &bytes[SUM_AT..], order == Endian::Big);
        if matches!(record, Record::End(_)) {
            self.sum = Checksum::default();
        }
        Ok(())
    }

    /// Takes the next bytes of the payload.
    ///
    /// # Panics
    /// If there are more than [`Self::payload_left`], or, before the last piece, not a multiple of
    /// four.
    pub fn payload(&mut self, bytes: &[u8]) {
        let len = bytes.len() as u64;
        assert!(len <= self.payload_left, "{len} bytes are more than the payload's {}", self.payload_left);
        assert!(len.is_multiple_of(4), "a piece of {len} bytes splits a word");
        if self.verify {
            fletcher4_update(&mut self.sum, bytes, self.order == Some(Endian::Big));
        }
        self.payload_left -= len;
        self.offset += len;
    }

    /// Whether the record was the last one of a stream: what follows is none of its own.
    pub fn is_complete(&self) -> bool {
        self.place == Place::Outside && self.order.is_some() && self.payload_left == 0
    }

    /// The input has ended. Error: `Corrupt` if the stream has not: the sender was interrupted, or
    /// sent a snapshot that it had received in part.
    pub fn end(&self) -> Result<()> {
        match self.is_complete() {
            true => Ok(()),
            false => Err(Error::corrupt(format!("the stream is incomplete: it stops after {} bytes", self.offset))),
        }
    }
}

/// The place after `record`, which comes at `place`. Error: `Corrupt` if it cannot come there.
fn follow(place: Place, record: &Record) -> Result<Place> {
    let next = match (place, record) {
        (Place::Outside | Place::Package, Record::Begin(begin)) => match (begin.header_type(), place) {
            (Begin::SUBSTREAM, _) => Some(Place::Substream { package: place == Place::Package }),
            (Begin::PACKAGE, Place::Outside) => Some(Place::List),
            (kind, _) => return Err(Error::corrupt(format!("BEGIN of kind {kind} cannot come here"))),
        },
        (Place::List | Place::Substream { package: true }, Record::End(_)) => Some(Place::Package),
        (Place::Substream { package: false } | Place::Package, Record::End(_)) => Some(Place::Outside),
        (_, Record::Begin(_) | Record::End(_)) => None,
        (Place::Substream { .. }, _) => Some(place),
        _ => None,
    };
    next.ok_or_else(|| {
        let where_ = match place {
            Place::Outside => "outside of a stream",
            Place::List => "after the list of a package",
            Place::Package => "between the sub-streams of a package",
            Place::Substream { .. } => "within a sub-stream",
        };
        Error::corrupt(format!("{} cannot come {where_}", TYPE_NAMES[record.type_id() as usize]))
    })
}

/// A sum as OpenZFS prints it: four hexadecimal numbers.
pub fn words(sum: Checksum) -> String {
    let [a, b, c, d] = sum.0;
    format!("{a:x}/{b:x}/{c:x}/{d:x}")
}

/// What a stream has so far.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Sent {
    /// Records.
    pub records: u64,
    /// Bytes, payloads included.
    pub bytes: u64,
}

/// Makes the bytes of a stream.
#[derive(Debug)]
pub struct StreamWriter {
    order: Endian,
    place: Place,
    sum: Checksum,
    sent: Sent,
}

impl StreamWriter {
    /// A writer before its first record. `order` is that of the payloads: weir's own are
    /// little-endian, a stream that is changed on its way keeps its order.
    pub fn new(order: Endian) -> StreamWriter {
        StreamWriter { order, place: Place::Outside, sum: Checksum::default(), sent: Sent::default() }
    }

    /// What there is so far.
    pub fn sent(&self) -> Sent {
        self.sent
    }

    /// The bytes of `record`, to be followed by `payload`. An END gets the running sum, whatever it
    /// has.
    ///
    /// # Panics
    /// If the record cannot come here, or its payload has another length.
    pub fn record(&mut self, record: &Record, payload: &[u8]) -> [u8; RECORD_SIZE] {
        let next = follow(self.place, record).unwrap_or_else(|e| panic!("a stream that is written: {e}"));
        assert_eq!(payload.len() as u64, record.payload_len(), "the payload of {record:?}");
        let big = self.order == Endian::Big;
        // The ENDs of a package's list and of the package itself store no sum of their own.
        let framing = matches!(self.place, Place::List | Place::Package);
        let bytes = match record {
            Record::Begin(_) => {
                self.sum = Checksum::default();
                let bytes = record.encode(self.order);
                fletcher4_update(&mut self.sum, &bytes, big);
                bytes
            }
            _ => {
                let mut bytes = match record {
                    Record::End(end) => Record::End(End { checksum: self.sum, ..*end }).encode(self.order),
                    _ => record.encode(self.order),
                };
                fletcher4_update(&mut self.sum, &bytes[..SUM_AT], big);
                if !framing || !matches!(record, Record::End(_)) {
                    store_sum(&mut bytes, self.order, self.sum);
                }
                fletcher4_update(&mut self.sum, &bytes[SUM_AT..], big);
                bytes
            }
        };
        fletcher4_update(&mut self.sum, payload, big);
        if matches!(record, Record::End(_)) {
            self.sum = Checksum::default();
        }
        self.place = next;
        self.sent.records += 1;
        self.sent.bytes += (RECORD_SIZE + payload.len()) as u64;
        bytes
    }

    /// The bytes of an END.
    ///
    /// # Panics
    /// If a stream cannot end here.
    pub fn end(&mut self, to_guid: Guid) -> [u8; RECORD_SIZE] {
        self.record(&Record::End(End { to_guid, ..End::default() }), &[])
    }
}

#[cfg(test)]
mod tests {
    use super::super::record::{Object, Range, Write};
    use super::*;

    fn begin(kind: u64, payload_len: u32) -> Record {
        Record::Begin(Begin {
            payload_len,
            version_info: kind,
            objset_type: 2,
            to_guid: Guid(7),
            to_name: b"pool/fs@snap".to_vec(),
            ..Begin::default()
        })
    }
    fn free() -> Record {
        Record::Free(Range { object: 3.into(), offset: 512, length: 512, to_guid: Guid(7) })
    }
    fn write(payload: &[u8]) -> (Record, Vec<u8>) {
        (Record::Write(Write { logical_size: payload.len() as u64, ..Write::default() }), payload.to_vec())
    }

    /// All records of a package with one sub-stream, each with its payload.
    fn package() -> Vec<(Record, Vec<u8>)> {
        let bonus = Record::Object(Object { object: 2.into(), bonus_len: 44, bonus_type: 44, ..Object::default() });
        vec![
            (begin(Begin::PACKAGE, 32), vec![9; 32]),
            (Record::End(End::default()), vec![]),
            (begin(Begin::SUBSTREAM, 0), vec![]),
            (bonus, vec![5; 48]),
            write(&[7; 1024]),
            (free(), vec![]),
            (Record::End(End { to_guid: Guid(7), ..End::default() }), vec![]),
            (Record::End(End::default()), vec![]),
        ]
    }
    fn bytes_of(records: &[(Record, Vec<u8>)], order: Endian) -> Vec<u8> {
        let mut writer = StreamWriter::new(order);
        let mut out = Vec::new();
        for (record, payload) in records {
            out.extend(writer.record(record, payload));
            out.extend(payload);
        }
        assert_eq!(writer.sent(), Sent { records: records.len() as u64, bytes: out.len() as u64 });
        out
    }
    /// Reads `bytes` to the end, payloads in pieces of `piece`.
    fn read(bytes: &[u8], piece: usize) -> Result<Vec<(Record, Vec<u8>)>> {
        let (mut reader, mut rest, mut out) = (StreamReader::new(), bytes, Vec::new());
        while let Some((head, tail)) = rest.split_first_chunk::<RECORD_SIZE>() {
            let frame = reader.record(head)?;
            let len = reader.payload_left() as usize;
            let Some((payload, tail)) = tail.split_at_checked(len) else {
                return Err(Error::corrupt("cut off"));
            };
            payload.chunks(piece).for_each(|p| reader.payload(p));
            out.push((frame.record, payload.to_vec()));
            rest = tail;
        }
        if !rest.is_empty() {
            return Err(Error::corrupt("cut off"));
        }
        reader.end()?;
        Ok(out)
    }

    #[test]
    fn what_was_written_is_read_in_both_orders_and_any_pieces() {
        for order in [Endian::Little, Endian::Big] {
            let bytes = bytes_of(&package(), order);
            for piece in [4, 20, 4096] {
                let read = read(&bytes, piece).unwrap();
                assert_eq!(read.len(), package().len());
                for ((got, payload), (want, want_payload)) in read.iter().zip(&package()) {
                    assert_eq!(payload, want_payload);
                    match (got, want) {
                        (Record::End(a), Record::End(b)) => assert_eq!(a.to_guid, b.to_guid),
                        _ => assert_eq!(got, want),
                    }
                }
            }
        }
    }

    #[test]
    fn a_flipped_bit_or_a_cut_anywhere_is_an_error() {
        let bytes = bytes_of(&package(), Endian::Little);
        // No sum covers the two ENDs that frame a package: of the first, the unused payload length
        // and what lies between its two sums may be anything.
        let list_end = RECORD_SIZE + 32;
        let free =
            |at: usize| (list_end + 4..list_end + 8).contains(&at) || (list_end + 40..list_end + SUM_AT).contains(&at);
        let last = bytes.len() - RECORD_SIZE;
        for at in 0..last {
            let mut bad = bytes.clone();
            bad[at] ^= 1 << (at % 8);
            assert_eq!(read(&bad, 4096).is_ok(), free(at), "byte {at} of {last}");
        }
        for len in 0..bytes.len() {
            assert!(read(&bytes[..len], 4096).is_err(), "cut to {len} bytes");
        }
    }

    #[test]
    fn records_come_in_order() {
        let read = |records: &[Record]| -> Result<()> {
            let mut reader = StreamReader::without_sums();
            for record in records {
                reader.record(&record.encode(Endian::Little))?;
            }
            reader.end()
        };
        let (sub, pack, end) = (begin(Begin::SUBSTREAM, 0), begin(Begin::PACKAGE, 0), Record::End(End::default()));
        for (records, good) in [
            (vec![&sub, &end], true),
            (vec![&sub, &free(), &end, &sub, &end], true),
            (vec![&pack, &end, &end], true),
            (vec![&pack, &end, &sub, &free(), &end, &sub, &end, &end, &sub, &end], true),
            (vec![], false),
            (vec![&free()], false),
            (vec![&end], false),
            (vec![&sub, &free()], false),
            (vec![&sub, &sub, &end], false),
            (vec![&sub, &pack, &end], false),
            (vec![&sub, &end, &free()], false),
            (vec![&pack, &free(), &end], false),
            (vec![&pack, &sub, &end, &end], false),
            (vec![&pack, &end, &free(), &end], false),
            (vec![&pack, &end, &pack, &end], false),
            (vec![&pack, &end, &sub, &end], false),
            (vec![&begin(0, 0), &end], false),
            (vec![&begin(3, 0), &end], false),
        ] {
            let records: Vec<Record> = records.into_iter().cloned().collect();
            assert_eq!(read(&records).is_ok(), good, "{records:?}");
        }
    }

    #[test]
    fn damaged_streams_can_be_read_without_sums() {
        let mut bytes = bytes_of(&package(), Endian::Little);
        let in_write = 4 * RECORD_SIZE + 32 + 48 + RECORD_SIZE + 100;
        bytes[in_write] ^= 1;
        let error = read(&bytes, 4096).unwrap_err();
        assert_eq!(error.kind(), base::ErrorKind::Checksum);
        assert!(error.to_string().contains("record at byte 2664"), "{error}");
        let mut reader = StreamReader::without_sums();
        let mut rest = &bytes[..];
        while let Some((head, tail)) = rest.split_first_chunk::<RECORD_SIZE>() {
            reader.record(head).unwrap();
            let (payload, tail) = tail.split_at(reader.payload_left() as usize);
            reader.payload(payload);
            rest = tail;
        }
        reader.end().unwrap();
    }
}
