//! Send streams and resume tokens from hostile bytes.
//!
//! Input: the kind of test (1 byte), then a stream or the text of a token. Streams are read without
//! looking at sums, so that the code behind them is reached; what was read is written again, and
//! has to be read as the same with all sums.
#![no_main]

use codec::checksum::Endian;
use libfuzzer_sys::fuzz_target;
use ondisk::nvlist::NvList;
use ondisk::stream::record::{Begin, End, Object, Range, Spill, Write, WriteEmbedded};
use ondisk::stream::{RECORD_SIZE, Record, StreamReader, StreamWriter, Token};
use weir_fuzz::{after, seeds};

fn stream(records: &[(Record, Vec<u8>)], order: Endian) -> Vec<u8> {
    let mut writer = StreamWriter::new(order);
    let pieces = records.iter().flat_map(|(record, payload)| {
        let mut bytes = writer.record(record, payload).to_vec();
        bytes.extend(payload);
        bytes
    });
    pieces.collect()
}

fn make_seeds() -> Vec<Vec<u8>> {
    let begin = |kind, list: &[u8]| {
        let begin = Begin { payload_len: list.len() as u32, version_info: kind, ..Begin::default() };
        (Record::Begin(Begin { to_name: b"pool/fs@snap".to_vec(), ..begin }), list.to_vec())
    };
    let end = || (Record::End(End::default()), Vec::new());
    let range = Range { object: 3.into(), offset: 512, length: u64::MAX, to_guid: 7.into() };
    let list = NvList::new().with_str("tosnap", "snap").encode_xdr();
    let sub = [
        begin(Begin::SUBSTREAM, &[]),
        (Record::Object(Object { object: 3.into(), bonus_len: 44, ..Object::default() }), vec![1; 48]),
        (Record::Free(range), Vec::new()),
        (Record::Write(Write { logical_size: 512, ..Write::default() }), vec![2; 512]),
        (Record::Spill(Spill { length: 512, ..Spill::default() }), vec![3; 512]),
        (Record::WriteEmbedded(WriteEmbedded { to: range, physical_size: 17, ..WriteEmbedded::default() }), vec![4; 24]),
        end(),
    ];
    let package: Vec<(Record, Vec<u8>)> =
        [begin(Begin::PACKAGE, &list), end()].into_iter().chain(sub.clone()).chain([end()]).collect();
    let token = Token { to_name: "pool/fs@snap".to_string(), embed_ok: true, ..Token::default() };
    vec![
        after(&[0], &stream(&sub, Endian::Little)),
        after(&[0], &stream(&sub, Endian::Big)),
        after(&[0], &stream(&package, Endian::Little)),
        after(&[1], token.encode().as_bytes()),
    ]
}

/// The records of a stream as far as it can be read, with their payloads.
fn read(mut bytes: &[u8], mut reader: StreamReader) -> (Vec<(Record, Vec<u8>)>, Option<Endian>) {
    let mut out = Vec::new();
    while let Some((head, rest)) = bytes.split_first_chunk::<RECORD_SIZE>() {
        let Ok(frame) = reader.record(head) else { break };
        let Some((payload, rest)) = rest.split_at_checked(reader.payload_left() as usize) else { break };
        reader.payload(payload);
        out.push((frame.record, payload.to_vec()));
        bytes = rest;
    }
    (out, reader.order())
}

fuzz_target!(init: seeds(make_seeds), |input: &[u8]| {
    let Some((&what, data)) = input.split_first() else { return };
    if what % 2 == 1 {
        let Ok(text) = std::str::from_utf8(data) else { return };
        let Ok(token) = Token::parse(text) else { return };
        assert_eq!(Token::parse(&token.encode()).expect("what we wrote"), token);
        return;
    }
    let (records, order) = read(data, StreamReader::without_sums());
    let Some(order) = order else { return };
    let again = read(&stream(&records, order), StreamReader::new()).0;
    assert_eq!(again.len(), records.len());
    for ((a, payload), (b, other)) in again.iter().zip(&records) {
        assert_eq!(payload, other);
        match (a, b) {
            (Record::End(a), Record::End(b)) => assert_eq!(a.to_guid, b.to_guid),
            _ => assert_eq!(a, b),
        }
    }
});
