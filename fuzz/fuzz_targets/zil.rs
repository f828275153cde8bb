//! The intent log from hostile bytes: headers, the chain part of blocks, records and their
//! operations.
//!
//! Input: the kind of test (1 byte), bytes in use (2 bytes), then the block or the records. A magic
//! and a length that fit are written over blocks, so that the code behind them is reached.
#![no_main]

use libfuzzer_sys::fuzz_target;
use ondisk::blkptr::{BLKPTR_SIZE, Blkptr};
use ondisk::object_type::ObjectType;
use ondisk::zil::{
    CHECKSUM_ZILOG, CHECKSUM_ZILOG2, ECK_MAGIC, ZIL_CHAIN_SIZE, ZIL_HEADER_SIZE, ZilChain, ZilHeader, records,
};
use ondisk::zil_record::{
    ClonedBlocks, Create, LrAttr, LrSetattr, Make, Op, WriteData, encrypted_parts, pointer_part,
};
use weir_fuzz::{after, pointer, seeds};

fn make_seeds() -> Vec<Vec<u8>> {
    let body = Create { dir: 34, object: 130, slots: 2, mode: 0o100_644, generation: 7, ..Create::default() };
    let attr = LrAttr { named: 0x40040, set: 0x40, crtime: [0, 0], projid: 5 };
    let create = |make, attr, target| Op::Create { make, body, attr, acl: None, name: b"name", target };
    let set = LrSetattr { mask: 1, mode: 0o600, ..LrSetattr::default() };
    let mut blocks = [0; 2 * BLKPTR_SIZE];
    pointer(ObjectType::PLAIN_FILE).write_to(&mut blocks[..BLKPTR_SIZE]);
    let blocks = ClonedBlocks::new(&blocks);
    let ops = [
        Op::CloneRange { object: 2, offset: 0, length: 5000, block_size: 4096, blocks },
        create(Make::File, None, b""),
        create(Make::File, Some(attr), b""),
        create(Make::Dir, None, b""),
        create(Make::Symlink, None, b"to/there"),
        Op::Remove { dir: 34, name: b"x", is_dir: false },
        Op::Link { dir: 34, object: 2, name: b"x" },
        Op::Rename { from: 34, to: 35, name: b"x", new_name: b"yy" },
        Op::Write { object: 2, offset: 3, length: 5, data: WriteData::Here(b"12345") },
        Op::Write { object: 2, offset: 0, length: 4096, data: WriteData::Block(pointer(ObjectType::PLAIN_FILE)) },
        Op::Write2 { object: 2, offset: 3, length: 5 },
        Op::Truncate { object: 2, offset: 3, length: 0 },
        Op::Setattr { object: 2, set, attr: None },
        Op::Setattr { object: 2, set, attr: Some(attr) },
    ];
    let encoded: Vec<Vec<u8>> = ops.iter().filter_map(|op| op.encode().ok()).collect();
    let all = encoded.concat();
    let mut out: Vec<Vec<u8>> = encoded.iter().map(|b| after(&[0, 0, 0], b)).collect();
    out.push(after(&[0, 0, 0], &all));
    let used = (ZIL_CHAIN_SIZE + all.len()) as u16;
    let mut slim = after(&[0; ZIL_CHAIN_SIZE], &all);
    slim.resize(4096, 0);
    out.push(after(&[1, used as u8, (used >> 8) as u8], &slim));
    let mut fat = all.clone();
    fat.resize(4096, 0);
    out.push(after(&[2, all.len() as u8, (all.len() >> 8) as u8], &fat));
    let mut header = [0; ZIL_HEADER_SIZE];
    let log = pointer(ObjectType::INTENT_LOG);
    ZilHeader { replay_seq: 5, log, claim_blk_seq: 6, flags: 3, claim_lr_seq: 7, ..ZilHeader::default() }
        .write_to(&mut header);
    out.push(after(&[3, 0, 0], &header));
    out
}

fn look(block: &[u8], range: (usize, usize)) {
    for record in records(block, range) {
        let Ok(record) = record else { return };
        let len = record.bytes.len();
        for (from, to) in encrypted_parts(record.txtype, len) {
            assert!(from <= to && to <= len || from == to, "parts {from} to {to} of {len}");
        }
        let Ok(op) = Op::parse(&record) else { continue };
        let names_blocks = matches!(op, Op::Write { data: WriteData::Block(_), .. } | Op::CloneRange { .. });
        assert!(!names_blocks || pointer_part(record.txtype, len).is_some());
        let _ = (op.void_without(), format!("{op:?}"));
        // A record that can be encoded decodes to the same. Ours have no ids of foreign domains,
        // whose names would be lost, and no writes of nothing.
        let ours = match op {
            Op::Create { body, .. } => (body.uid | body.gid) >> 32 == 0,
            Op::Write { data: WriteData::Here(data), .. } => !data.is_empty(),
            _ => true,
        };
        if let Some(bytes) = op.encode().ok().filter(|_| ours) {
            let again = records(&bytes, (0, bytes.len())).next().expect("a record").expect("of ours");
            let again = Op::parse(&again).expect("what we wrote");
            assert_eq!(again.encode().expect("as before"), bytes);
        }
    }
}

fuzz_target!(init: seeds(make_seeds), |input: &[u8]| {
    let Some((&[what, low, high], data)) = input.split_first_chunk() else { return };
    let used = u64::from(u16::from_le_bytes([low, high]));
    match what % 4 {
        0 => look(data, (0, data.len())),
        3 => {
            let Ok(h) = ZilHeader::parse(data) else { return };
            let mut out = [0; ZIL_HEADER_SIZE];
            h.write_to(&mut out);
            assert_eq!(ZilHeader::parse(&out).expect("what we wrote"), h);
            let _ = h.is_empty();
        }
        form => {
            let slim = form == 1;
            let mut bp = Blkptr::hole();
            bp.set_checksum(if slim { CHECKSUM_ZILOG2 } else { CHECKSUM_ZILOG });
            let mut block = data.to_vec();
            if block.len() >= ZIL_CHAIN_SIZE {
                let at = if slim { 0 } else { block.len() - ZIL_CHAIN_SIZE };
                block[at + 136..at + 144].copy_from_slice(&used.to_le_bytes());
                block[at + 144..at + 152].copy_from_slice(&ECK_MAGIC.to_le_bytes());
            }
            let Ok(chain) = ZilChain::parse(&block, &bp) else { return };
            assert!(chain.verified <= block.len() && chain.cksum_at + 32 <= block.len());
            assert!(chain.records.0 <= chain.records.1 && chain.records.1 <= block.len());
            look(&block, chain.records);
        }
    }
});
