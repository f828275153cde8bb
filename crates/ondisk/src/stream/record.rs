//! Records as types, and the places of their fields (format page 11 section 2).
//!
//! The layout of each record is written down once, as a function that visits its fields; `Get`
//! visits to read and `Put` to write, so the two cannot differ. Bytes that no field covers are
//! ignored when read and zero when written.

use base::{Error, Guid, ObjectId, Result};
use codec::checksum::{Checksum, Endian};

use super::{LIST_MAX, MAGIC, PAYLOAD_MAX, RECORD_SIZE};

/// The longest name of a snapshot in BEGIN, in bytes, without the zero byte after it.
pub const NAME_MAX: usize = 255;
/// The length of a FREE that goes to the end of the object.
pub const TO_THE_END: u64 = u64::MAX;

/// The bits of features, once the kind of BEGIN is shifted out (format page 21 section 1).
const FEATURES: u64 = (1 << 56) - 1;

/// BEGIN: a sub-stream or a package begins.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Begin {
    /// Bytes of the list that follows; 0: none.
    pub payload_len: u32,
    /// What begins (2 bits), see [`Begin::SUBSTREAM`] and [`Begin::PACKAGE`]; and above them the
    /// features that the stream needs ([`super::features`]).
    pub version_info: u64,
    /// When the snapshot was made, in seconds since 1970.
    pub creation_time: u64,
    /// The type of the object set: 2 a file system, 3 a volume.
    pub objset_type: u32,
    /// [`super::begin_flags`].
    pub flags: u32,
    /// The snapshot that is sent.
    pub to_guid: Guid,
    /// The snapshot it starts from; 0: a full stream.
    pub from_guid: Guid,
    /// `pool/fs@snap`, at most [`NAME_MAX`] bytes, none of them zero.
    pub to_name: Vec<u8>,
}

impl Begin {
    /// What begins: a sub-stream, the content of one snapshot.
    pub const SUBSTREAM: u64 = 1;
    /// What begins: a package of several streams.
    pub const PACKAGE: u64 = 2;

    /// What begins: [`Begin::SUBSTREAM`], [`Begin::PACKAGE`], or a number that means nothing.
    pub fn header_type(&self) -> u64 {
        self.version_info & 3
    }
    /// The features that the stream needs: [`super::features`].
    pub fn features(&self) -> u64 {
        (self.version_info >> 2) & FEATURES
    }
    /// The same with other features.
    pub fn with_features(mut self, features: u64) -> Begin {
        self.version_info = (self.version_info & !(FEATURES << 2)) | (features & FEATURES) << 2;
        self
    }
}

/// OBJECT: a dnode. The payload is its bonus.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Object {
    /// Its number.
    pub object: ObjectId,
    /// The type of its content (format page 02).
    pub object_type: u32,
    /// The type of its bonus; 0: none.
    pub bonus_type: u32,
    /// The size of its blocks, in bytes.
    pub block_size: u32,
    /// The length of the bonus, in bytes.
    pub bonus_len: u32,
    /// Its checksum algorithm, as the dnode has it.
    pub checksum: u8,
    /// Its compression, as the dnode has it.
    pub compress: u8,
    /// Slots of the dnode; 0 is 1.
    pub dn_slots: u8,
    /// [`super::record_flags`].
    pub flags: u8,
    /// Raw streams: the length of the whole bonus area, in bytes; else 0.
    pub raw_bonus_len: u32,
    /// The snapshot that is sent.
    pub to_guid: Guid,
    /// Raw streams: the logarithm of the size of indirect blocks.
    pub indirect_shift: u8,
    /// Raw streams: levels of the block tree.
    pub levels: u8,
    /// Raw streams: block pointers of the dnode.
    pub block_pointers: u8,
    /// Raw streams: the number of the last block.
    pub max_block_id: u64,
}

/// FREEOBJECTS: object numbers that are not in use.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct FreeObjects {
    /// The first number.
    pub first: ObjectId,
    /// How many.
    pub count: u64,
    /// The snapshot that is sent.
    pub to_guid: Guid,
}

/// What a block that is sent raw needs to be decrypted; all zero in other streams.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Crypt {
    /// The salt of its key.
    pub salt: [u8; 8],
    /// The initialization vector.
    pub iv: [u8; 12],
    /// The authentication code.
    pub mac: [u8; 16],
}

/// WRITE: one block. The payload is its content.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Write {
    /// The object.
    pub object: ObjectId,
    /// The type of its content.
    pub object_type: u32,
    /// Where the block begins in the object, in bytes.
    pub offset: u64,
    /// The length of the block, in bytes.
    pub logical_size: u64,
    /// The snapshot that is sent.
    pub to_guid: Guid,
    /// The algorithm of `key`; 2 (off): the sender had no checksum of these bytes.
    pub checksum_type: u8,
    /// [`super::record_flags`].
    pub flags: u8,
    /// How the payload is compressed; 0: not at all.
    pub compression: u8,
    /// The block's checksum in the sender's pool.
    pub key: Checksum,
    /// Sizes and compression as dedup tables write them.
    pub key_prop: u64,
    /// The length of a payload that is compressed, in bytes; else 0.
    pub compressed_size: u64,
    /// Of a raw stream.
    pub crypt: Crypt,
}

/// FREE and REDACT: a part of an object.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Range {
    /// The object.
    pub object: ObjectId,
    /// Where the part begins, in bytes.
    pub offset: u64,
    /// Its length in bytes, or [`TO_THE_END`].
    pub length: u64,
    /// The snapshot that is sent.
    pub to_guid: Guid,
}

/// END: the sub-stream, the list of a package, or the package is complete.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct End {
    /// The running sum before this record; [`super::StreamWriter`] fills it in.
    pub checksum: Checksum,
    /// The snapshot that was sent.
    pub to_guid: Guid,
}

/// WRITE_BYREF: a block that another WRITE of the stream has.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct WriteByRef {
    /// Which part of which object gets the block.
    pub to: Range,
    /// The snapshot of the other WRITE.
    pub ref_guid: Guid,
    /// Its object.
    pub ref_object: ObjectId,
    /// Its offset, in bytes.
    pub ref_offset: u64,
    /// The algorithm of `key`.
    pub checksum_type: u8,
    /// [`super::record_flags`].
    pub flags: u8,
    /// The block's checksum.
    pub key: Checksum,
    /// Sizes and compression as dedup tables write them.
    pub key_prop: u64,
}

/// SPILL: the spill block of an object. The payload is its content.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Spill {
    /// The object.
    pub object: ObjectId,
    /// The length of the block, in bytes.
    pub length: u64,
    /// The snapshot that is sent.
    pub to_guid: Guid,
    /// [`super::record_flags`].
    pub flags: u8,
    /// How the payload is compressed; 0: not at all.
    pub compression: u8,
    /// The length of a payload that is compressed, in bytes; else 0.
    pub compressed_size: u64,
    /// Of a raw stream.
    pub crypt: Crypt,
    /// The type of the content.
    pub object_type: u32,
}

/// WRITE_EMBEDDED: a block that lies in its block pointer. The payload is what lies there.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct WriteEmbedded {
    /// Which part of which object gets the block.
    pub to: Range,
    /// How the payload is compressed.
    pub compression: u8,
    /// The kind of embedded block: 0 is data.
    pub embedded_type: u8,
    /// The length of the content, in bytes.
    pub logical_size: u32,
    /// The length of the payload before it is rounded up to 8, in bytes.
    pub physical_size: u32,
}

/// OBJECT_RANGE: of a raw stream, a block of dnodes.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct ObjectRange {
    /// The number of the first dnode.
    pub first: ObjectId,
    /// Slots of the block.
    pub slots: u64,
    /// The snapshot that is sent.
    pub to_guid: Guid,
    /// How the block is encrypted.
    pub crypt: Crypt,
    /// [`super::record_flags`].
    pub flags: u8,
}

/// A record.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Record {
    /// Type 0.
    Begin(Begin),
    /// Type 1.
    Object(Object),
    /// Type 2.
    FreeObjects(FreeObjects),
    /// Type 3.
    Write(Write),
    /// Type 4.
    Free(Range),
    /// Type 5.
    End(End),
    /// Type 6.
    WriteByRef(WriteByRef),
    /// Type 7.
    Spill(Spill),
    /// Type 8.
    WriteEmbedded(WriteEmbedded),
    /// Type 9.
    ObjectRange(ObjectRange),
    /// Type 10.
    Redact(Range),
}

/// The names of the types by number, as OpenZFS's tools print them behind `DRR_`.
pub const TYPE_NAMES: [&str; 11] = [
    "BEGIN",
    "OBJECT",
    "FREEOBJECTS",
    "WRITE",
    "FREE",
    "END",
    "WRITE_BYREF",
    "SPILL",
    "WRITE_EMBEDDED",
    "OBJECT_RANGE",
    "REDACT",
];

impl Record {
    /// The number of the type: 0 to 10.
    pub fn type_id(&self) -> u32 {
        match self {
            Record::Begin(_) => 0,
            Record::Object(_) => 1,
            Record::FreeObjects(_) => 2,
            Record::Write(_) => 3,
            Record::Free(_) => 4,
            Record::End(_) => 5,
            Record::WriteByRef(_) => 6,
            Record::Spill(_) => 7,
            Record::WriteEmbedded(_) => 8,
            Record::ObjectRange(_) => 9,
            Record::Redact(_) => 10,
        }
    }

    /// An empty record of type `id`, or `None` if there is no such type.
    fn empty(id: u32) -> Option<Record> {
        Some(match id {
            0 => Record::Begin(Begin::default()),
            1 => Record::Object(Object::default()),
            2 => Record::FreeObjects(FreeObjects::default()),
            3 => Record::Write(Write::default()),
            4 => Record::Free(Range::default()),
            5 => Record::End(End::default()),
            6 => Record::WriteByRef(WriteByRef::default()),
            7 => Record::Spill(Spill::default()),
            8 => Record::WriteEmbedded(WriteEmbedded::default()),
            9 => Record::ObjectRange(ObjectRange::default()),
            10 => Record::Redact(Range::default()),
            _ => return None,
        })
    }

    /// The byte order in which the stream that begins with `bytes` was written. Error: `Invalid` if
    /// it does not begin as a stream does.
    pub fn order_of(bytes: &[u8; RECORD_SIZE]) -> Result<Endian> {
        for order in [Endian::Little, Endian::Big] {
            let get = Get { bytes, order };
            if get.load::<8>(8) == MAGIC && get.load::<4>(0) == 0 {
                return Ok(order);
            }
        }
        Err(Error::invalid("the input is not a send stream: it does not begin with a BEGIN record and its magic"))
    }

    /// The record in `bytes`. Errors: `Corrupt` for an unknown type, a BEGIN with the wrong magic
    /// or a name without end, and a payload that is too long or no multiple of 4.
    pub fn decode(bytes: &[u8; RECORD_SIZE], order: Endian) -> Result<Record> {
        let mut get = Get { bytes, order };
        let id = get.load::<4>(0) as u32;
        let mut record = Record::empty(id).ok_or_else(|| Error::corrupt(format!("there is no record type {id}")))?;
        record.layout(&mut get);
        if let Record::Begin(begin) = &mut record {
            if get.load::<8>(8) != MAGIC {
                return Err(Error::corrupt("BEGIN has a wrong magic number"));
            }
            begin.to_name = name(&bytes[56..]).ok_or_else(|| Error::corrupt("the name in BEGIN does not end"))?;
        }
        let (len, most) =
            (record.payload_len(), if matches!(record, Record::Begin(_)) { LIST_MAX } else { PAYLOAD_MAX });
        if len > most || len % 4 != 0 {
            let name = TYPE_NAMES[id as usize];
            return Err(Error::corrupt(format!(
                "{name} has a payload of {len} bytes, which is not a multiple of 4 of at most {most}"
            )));
        }
        Ok(record)
    }

    /// The bytes of the record, with zeros for the sum that records other than BEGIN store.
    ///
    /// # Panics
    /// If the name of a BEGIN is longer than [`NAME_MAX`] or has a zero byte.
    pub fn encode(&self, order: Endian) -> [u8; RECORD_SIZE] {
        let mut bytes = [0; RECORD_SIZE];
        let mut put = Put { bytes: &mut bytes, order };
        put.u32(0, &mut self.type_id());
        if let Record::Begin(begin) = self {
            let name = &begin.to_name;
            assert!(name.len() <= NAME_MAX && !name.contains(&0), "{name:?} is not a name for BEGIN");
            put.u64(8, &mut { MAGIC });
            put.bytes[56..56 + name.len()].copy_from_slice(name);
        }
        self.clone().layout(&mut put);
        bytes
    }

    /// Bytes of payload after the record (format page 11 section 2).
    pub fn payload_len(&self) -> u64 {
        match self {
            Record::Begin(r) => u64::from(r.payload_len),
            Record::Object(r) if r.raw_bonus_len != 0 => u64::from(r.raw_bonus_len),
            Record::Object(r) => u64::from(r.bonus_len).next_multiple_of(8),
            Record::Write(r) if r.compression != 0 => r.compressed_size,
            Record::Write(r) => r.logical_size,
            Record::Spill(r) if r.compression != 0 => r.compressed_size,
            Record::Spill(r) => r.length,
            Record::WriteEmbedded(r) => u64::from(r.physical_size).next_multiple_of(8),
            Record::FreeObjects(_)
            | Record::Free(_)
            | Record::End(_)
            | Record::WriteByRef(_)
            | Record::ObjectRange(_)
            | Record::Redact(_) => 0,
        }
    }

    /// Visits each field with its offset.
    fn layout(&mut self, io: &mut impl Fields) {
        match self {
            Record::Begin(r) => {
                io.u32(4, &mut r.payload_len);
                io.u64(16, &mut r.version_info);
                io.u64(24, &mut r.creation_time);
                io.u32(32, &mut r.objset_type);
                io.u32(36, &mut r.flags);
                io.u64(40, &mut r.to_guid.0);
                io.u64(48, &mut r.from_guid.0);
            }
            Record::Object(r) => {
                io.u64(8, &mut r.object.0);
                io.u32(16, &mut r.object_type);
                io.u32(20, &mut r.bonus_type);
                io.u32(24, &mut r.block_size);
                io.u32(28, &mut r.bonus_len);
                io.bytes(32, [&mut r.checksum, &mut r.compress, &mut r.dn_slots, &mut r.flags]);
                io.u32(36, &mut r.raw_bonus_len);
                io.u64(40, &mut r.to_guid.0);
                io.bytes(48, [&mut r.indirect_shift, &mut r.levels, &mut r.block_pointers]);
                io.u64(56, &mut r.max_block_id);
            }
            Record::FreeObjects(r) => {
                io.u64(8, &mut r.first.0);
                io.u64(16, &mut r.count);
                io.u64(24, &mut r.to_guid.0);
            }
            Record::Write(r) => {
                io.u64(8, &mut r.object.0);
                io.u32(16, &mut r.object_type);
                io.u64(24, &mut r.offset);
                io.u64(32, &mut r.logical_size);
                io.u64(40, &mut r.to_guid.0);
                io.bytes(48, [&mut r.checksum_type, &mut r.flags, &mut r.compression]);
                io.key(56, &mut r.key, &mut r.key_prop);
                io.u64(96, &mut r.compressed_size);
                io.crypt(104, &mut r.crypt);
            }
            Record::Free(r) | Record::Redact(r) => io.range(r),
            Record::End(r) => {
                io.checksum(8, &mut r.checksum);
                io.u64(40, &mut r.to_guid.0);
            }
            Record::WriteByRef(r) => {
                io.range(&mut r.to);
                io.u64(40, &mut r.ref_guid.0);
                io.u64(48, &mut r.ref_object.0);
                io.u64(56, &mut r.ref_offset);
                io.bytes(64, [&mut r.checksum_type, &mut r.flags]);
                io.key(72, &mut r.key, &mut r.key_prop);
            }
            Record::Spill(r) => {
                io.u64(8, &mut r.object.0);
                io.u64(16, &mut r.length);
                io.u64(24, &mut r.to_guid.0);
                io.bytes(32, [&mut r.flags, &mut r.compression]);
                io.u64(40, &mut r.compressed_size);
                io.crypt(48, &mut r.crypt);
                io.u32(84, &mut r.object_type);
            }
            Record::WriteEmbedded(r) => {
                io.range(&mut r.to);
                io.bytes(40, [&mut r.compression, &mut r.embedded_type]);
                io.u32(48, &mut r.logical_size);
                io.u32(52, &mut r.physical_size);
            }
            Record::ObjectRange(r) => {
                io.u64(8, &mut r.first.0);
                io.u64(16, &mut r.slots);
                io.u64(24, &mut r.to_guid.0);
                io.crypt(32, &mut r.crypt);
                io.bytes(68, [&mut r.flags]);
            }
        }
    }
}

/// The name that ends at the first zero byte of `bytes`; `None` if there is none.
fn name(bytes: &[u8]) -> Option<Vec<u8>> {
    let end = bytes.iter().position(|&b| b == 0)?;
    Some(bytes[..end].to_vec())
}

/// Visits fields, to read or to write them.
trait Fields {
    fn u32(&mut self, at: usize, value: &mut u32);
    fn u64(&mut self, at: usize, value: &mut u64);
    /// Consecutive fields of one byte.
    fn bytes<const N: usize>(&mut self, at: usize, values: [&mut u8; N]);

    fn range(&mut self, range: &mut Range) {
        self.u64(8, &mut range.object.0);
        self.u64(16, &mut range.offset);
        self.u64(24, &mut range.length);
        self.u64(32, &mut range.to_guid.0);
    }
    fn checksum(&mut self, at: usize, checksum: &mut Checksum) {
        for (i, word) in checksum.0.iter_mut().enumerate() {
            self.u64(at + 8 * i, word);
        }
    }
    fn key(&mut self, at: usize, key: &mut Checksum, prop: &mut u64) {
        self.checksum(at, key);
        self.u64(at + 32, prop);
    }
    fn crypt(&mut self, at: usize, crypt: &mut Crypt) {
        self.bytes(at, crypt.salt.each_mut());
        self.bytes(at + 8, crypt.iv.each_mut());
        self.bytes(at + 20, crypt.mac.each_mut());
    }
}

struct Get<'a> {
    bytes: &'a [u8; RECORD_SIZE],
    order: Endian,
}

impl Get<'_> {
    /// The number in the `N` bytes at `at`.
    fn load<const N: usize>(&self, at: usize) -> u64 {
        let add = |sum: u64, byte: &u8| sum << 8 | u64::from(*byte);
        let bytes = &self.bytes[at..at + N];
        match self.order {
            Endian::Little => bytes.iter().rev().fold(0, add),
            Endian::Big => bytes.iter().fold(0, add),
        }
    }
}

impl Fields for Get<'_> {
    fn u32(&mut self, at: usize, value: &mut u32) {
        *value = self.load::<4>(at) as u32;
    }
    fn u64(&mut self, at: usize, value: &mut u64) {
        *value = self.load::<8>(at);
    }
    fn bytes<const N: usize>(&mut self, at: usize, values: [&mut u8; N]) {
        for (value, byte) in values.into_iter().zip(&self.bytes[at..]) {
            *value = *byte;
        }
    }
}

struct Put<'a> {
    bytes: &'a mut [u8; RECORD_SIZE],
    order: Endian,
}

impl Fields for Put<'_> {
    fn u32(&mut self, at: usize, value: &mut u32) {
        let bytes = match self.order {
            Endian::Little => value.to_le_bytes(),
            Endian::Big => value.to_be_bytes(),
        };
        self.bytes[at..at + 4].copy_from_slice(&bytes);
    }
    fn u64(&mut self, at: usize, value: &mut u64) {
        let bytes = match self.order {
            Endian::Little => value.to_le_bytes(),
            Endian::Big => value.to_be_bytes(),
        };
        self.bytes[at..at + 8].copy_from_slice(&bytes);
    }
    fn bytes<const N: usize>(&mut self, at: usize, values: [&mut u8; N]) {
        for (value, byte) in values.into_iter().zip(&mut self.bytes[at..]) {
            *byte = *value;
        }
    }
}

/// The sum that a record stores at [`super::SUM_AT`]; all zero: none.
pub(super) fn stored_sum(bytes: &[u8; RECORD_SIZE], order: Endian) -> Checksum {
    let mut sum = Checksum::default();
    Get { bytes, order }.checksum(super::SUM_AT, &mut sum);
    sum
}

/// Stores `sum` at [`super::SUM_AT`].
pub(super) fn store_sum(bytes: &mut [u8; RECORD_SIZE], order: Endian, mut sum: Checksum) {
    Put { bytes, order }.checksum(super::SUM_AT, &mut sum);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A record of type `id` whose bytes below the sum count upwards, for tests of places.
    fn counting(id: u32, order: Endian) -> [u8; RECORD_SIZE] {
        let mut bytes: [u8; RECORD_SIZE] = std::array::from_fn(|i| (i % 251) as u8);
        Put { bytes: &mut bytes, order }.u32(0, &mut { id });
        bytes
    }

    #[test]
    fn fields_are_where_the_format_page_says() {
        let Record::Write(w) = Record::decode(&bounded(3), Endian::Little).unwrap() else { panic!("not a WRITE") };
        assert_eq!(w.object.0, u64::from_le_bytes([8, 9, 10, 11, 12, 13, 14, 15]));
        assert_eq!(w.offset, u64::from_le_bytes([24, 25, 26, 27, 28, 29, 30, 31]));
        assert_eq!((w.checksum_type, w.flags, w.compression), (48, 49, 50));
        assert_eq!(w.key.0[0], u64::from_le_bytes([56, 57, 58, 59, 60, 61, 62, 63]));
        assert_eq!(w.key_prop, u64::from_le_bytes([88, 89, 90, 91, 92, 93, 94, 95]));
        assert_eq!((w.crypt.salt[0], w.crypt.iv[0], w.crypt.mac[0], w.crypt.mac[15]), (104, 112, 124, 139));
        let Record::Spill(s) = Record::decode(&bounded(7), Endian::Little).unwrap() else { panic!("not a SPILL") };
        assert_eq!((s.flags, s.compression, s.crypt.salt[0], s.crypt.mac[15]), (32, 33, 48, 83));
        assert_eq!(s.object_type, u32::from_le_bytes([84, 85, 86, 87]));
        let Record::ObjectRange(r) = Record::decode(&bounded(9), Endian::Little).unwrap() else {
            panic!("not a range")
        };
        assert_eq!((r.crypt.salt[0], r.crypt.iv[0], r.crypt.mac[0], r.flags), (32, 40, 52, 68));
    }

    /// [`counting`] with lengths of payloads that are allowed.
    fn bounded(id: u32) -> [u8; RECORD_SIZE] {
        let mut bytes = counting(id, Endian::Little);
        let mut put = Put { bytes: &mut bytes, order: Endian::Little };
        match id {
            1 => put.u32(36, &mut 64),
            3 => put.u64(96, &mut 512),
            7 => put.u64(40, &mut 512),
            8 => put.u32(52, &mut 17),
            _ => {}
        }
        bytes
    }

    #[test]
    fn what_was_decoded_encodes_to_the_same_fields_in_both_orders() {
        for id in 1..=10 {
            let record = Record::decode(&bounded(id), Endian::Little).unwrap();
            assert_eq!(record.type_id(), id);
            for order in [Endian::Little, Endian::Big] {
                let bytes = record.encode(order);
                assert_eq!(Record::decode(&bytes, order).unwrap(), record, "{id} {order:?}");
                // What no field covers is zero; everything else is what it was.
                if order == Endian::Little {
                    let same = bytes.iter().zip(&bounded(id)).filter(|(a, b)| a == b).count();
                    let zero = bytes.iter().filter(|b| **b == 0).count();
                    assert!(same + zero >= RECORD_SIZE, "{id}: {same} bytes alike, {zero} are zero");
                }
            }
        }
    }

    #[test]
    fn begin_keeps_its_name_and_tells_its_order() {
        let begin = Begin {
            payload_len: 1028,
            version_info: Begin::SUBSTREAM,
            creation_time: 1_700_000_000,
            objset_type: 2,
            flags: 0xc,
            to_guid: Guid(1),
            from_guid: Guid(2),
            to_name: b"pool/fs@snap".to_vec(),
        }
        .with_features(super::super::features::RAW | super::super::features::SA_SPILL);
        assert_eq!((begin.header_type(), begin.features()), (Begin::SUBSTREAM, 0x100_0004));
        let record = Record::Begin(begin);
        for order in [Endian::Little, Endian::Big] {
            let bytes = record.encode(order);
            assert_eq!(Record::order_of(&bytes).unwrap(), order);
            assert_eq!(Record::decode(&bytes, order).unwrap(), record);
            let mut unended = bytes;
            unended[56..].fill(b'x');
            assert!(Record::decode(&unended, order).is_err());
        }
        assert!(Record::order_of(&[0; RECORD_SIZE]).is_err());
    }

    #[test]
    fn lengths_of_payloads_are_bounded() {
        let write = |logical_size, compression, compressed_size| {
            let write = Write { logical_size, compression, compressed_size, ..Write::default() };
            let bytes = Record::Write(write).encode(Endian::Little);
            Record::decode(&bytes, Endian::Little).map(|r| r.payload_len())
        };
        assert_eq!(write(PAYLOAD_MAX, 0, 0).unwrap(), PAYLOAD_MAX);
        assert_eq!(write(u64::MAX, 15, 512).unwrap(), 512);
        for (logical, compression, compressed) in
            [(PAYLOAD_MAX + 4, 0, 0), (u64::MAX, 0, 0), (513, 0, 0), (512, 15, u64::MAX), (512, 2, 514)]
        {
            assert!(write(logical, compression, compressed).is_err(), "{logical} {compression} {compressed}");
        }
        let bonus = |bonus_len, raw_bonus_len| {
            let object = Object { bonus_len, raw_bonus_len, ..Object::default() };
            let bytes = Record::Object(object).encode(Endian::Little);
            Record::decode(&bytes, Endian::Little).map(|r| r.payload_len())
        };
        assert_eq!((bonus(0, 0).unwrap(), bonus(44, 0).unwrap(), bonus(44, 320).unwrap()), (0, 48, 320));
        assert!(bonus(u32::MAX, 0).is_err() && bonus(8, u32::MAX).is_err());
        let unknown = counting(11, Endian::Little);
        assert!(Record::decode(&unknown, Endian::Little).is_err());
    }
}
