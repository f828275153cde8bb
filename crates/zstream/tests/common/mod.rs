//! Made-up streams.

#![allow(dead_code, clippy::unwrap_used)]

use base::Guid;
use codec::checksum::{Checksum, Endian};
use ondisk::nvlist::NvList;
use ondisk::stream::record::*;
use ondisk::stream::{Record, StreamWriter, begin_flags, features};

/// A record with its payload.
pub type Piece = (Record, Vec<u8>);

/// SplitMix64 (Steele, Lea, Flood 2014): the same numbers from the same seed.
pub struct Rng(pub u64);

impl Rng {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }
    /// A number below `n`.
    pub fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }
    /// Bytes; half of the time such that can be compressed.
    pub fn bytes(&mut self, len: usize) -> Vec<u8> {
        let mask = if self.below(2) == 0 { 0xff } else { 0x1 };
        (0..len).map(|_| self.next() as u8 & mask).collect()
    }
    fn array<const N: usize>(&mut self) -> [u8; N] {
        std::array::from_fn(|_| self.next() as u8)
    }
}

/// The bytes of a stream.
pub fn join(records: &[Piece]) -> Vec<u8> {
    join_in(records, Endian::Little)
}

/// The bytes of a stream in the given order.
pub fn join_in(records: &[Piece], order: Endian) -> Vec<u8> {
    let mut writer = StreamWriter::new(order);
    let mut out = Vec::new();
    for (record, payload) in records {
        out.extend(writer.record(record, payload));
        out.extend(payload);
    }
    out
}

/// A package with `list` and the sub-streams.
pub fn package(list: &NvList, subs: &[Vec<Piece>]) -> Vec<Piece> {
    let list = list.encode_xdr();
    let begin = Begin {
        payload_len: list.len() as u32,
        version_info: Begin::PACKAGE,
        to_name: b"pool/fs@snap".to_vec(),
        ..Begin::default()
    };
    let end = || (Record::End(End::default()), Vec::new());
    let mut out = vec![(Record::Begin(begin), list), end()];
    out.extend(subs.iter().flatten().cloned());
    out.push(end());
    out
}

/// A sub-stream of `n` random records, raw or not.
pub fn substream(rng: &mut Rng, n: usize, raw: bool) -> Vec<Piece> {
    let to_guid = Guid(rng.next());
    let begin = Begin {
        payload_len: 0,
        version_info: Begin::SUBSTREAM,
        creation_time: 1_700_000_000 + rng.below(1000),
        objset_type: 2,
        flags: begin_flags::FREERECORDS | begin_flags::SPILL_BLOCK,
        to_guid,
        from_guid: Guid(rng.below(2) * 77),
        to_name: b"tank/home@monday".to_vec(),
    };
    let begin = begin.with_features(if raw { features::RAW | features::COMPRESSED } else { features::SA_SPILL });
    let mut out = vec![(Record::Begin(begin), Vec::new())];
    for n in 0..n as u64 {
        out.push(record(rng, n, to_guid, raw));
    }
    out.push((Record::End(End { to_guid, ..End::default() }), Vec::new()));
    out
}

/// A random record but BEGIN, END and WRITE_BYREF, about object `n`.
fn record(rng: &mut Rng, n: u64, to_guid: Guid, raw: bool) -> Piece {
    let object = (n + 1).into();
    let crypt = if raw { Crypt { salt: rng.array(), iv: rng.array(), mac: rng.array() } } else { Crypt::default() };
    let range = Range { object, offset: rng.below(1 << 40) << 9, length: 512 << rng.below(10), to_guid };
    let size = 512 * (1 + rng.below(8));
    match rng.below(8) {
        0 => {
            let bonus_len = rng.below(320) as u32;
            let record = Object {
                object,
                object_type: 19 + rng.below(2) as u32,
                bonus_type: 44,
                block_size: size as u32,
                bonus_len,
                checksum: 7,
                compress: 15,
                dn_slots: 1,
                flags: rng.below(2) as u8 * 4,
                raw_bonus_len: if raw { 320 } else { 0 },
                to_guid,
                indirect_shift: 17,
                levels: 1,
                block_pointers: 1,
                max_block_id: rng.below(100),
            };
            let record = Record::Object(record);
            let payload = rng.bytes(record.payload_len() as usize);
            (record, payload)
        }
        1 => (Record::FreeObjects(FreeObjects { first: object, count: rng.below(1000), to_guid }), Vec::new()),
        2 => (Record::Free(Range { length: TO_THE_END, ..range }), Vec::new()),
        3 => (Record::Redact(range), Vec::new()),
        4 => {
            let record = Spill { object, length: size, to_guid, flags: 4, crypt, object_type: 44, ..Spill::default() };
            (Record::Spill(record), rng.bytes(size as usize))
        }
        5 if raw => {
            (Record::ObjectRange(ObjectRange { first: object, slots: 32, to_guid, crypt, flags: 2 }), Vec::new())
        }
        5 => {
            let physical_size = 1 + rng.below(112) as u32;
            let record = Record::WriteEmbedded(WriteEmbedded {
                to: range,
                compression: 15,
                embedded_type: 0,
                logical_size: 512,
                physical_size,
            });
            let payload = rng.bytes(record.payload_len() as usize);
            (record, payload)
        }
        _ => {
            let record = Write {
                object,
                object_type: 19,
                offset: range.offset,
                logical_size: size,
                to_guid,
                checksum_type: 7,
                flags: rng.below(2) as u8,
                compression: 0,
                key: Checksum([rng.next(), rng.next(), rng.next(), rng.next()]),
                key_prop: rng.next(),
                compressed_size: 0,
                crypt,
            };
            (Record::Write(record), rng.bytes(size as usize))
        }
    }
}

/// A reference to the block of `w`, for `object`.
pub fn reference(w: &Write, object: u64) -> Record {
    Record::WriteByRef(WriteByRef {
        to: Range { object: object.into(), offset: w.offset, length: w.logical_size, to_guid: w.to_guid },
        ref_guid: w.to_guid,
        ref_object: w.object,
        ref_offset: w.offset,
        checksum_type: w.checksum_type,
        flags: w.flags,
        key: w.key,
        key_prop: w.key_prop,
    })
}
