//! ZAP blocks from hostile bytes: header, leaf and micro; operations on them either do their work
//! or change nothing.
//!
//! Input: the kind of test (1 byte), a small number for names and hashes (1 byte), then bytes laid
//! over a good block, as (offset u16, byte) triples, or the block itself.
#![no_main]

use libfuzzer_sys::fuzz_target;
use ondisk::byteswap::swap_block;
use ondisk::object_type::ObjectType;
use ondisk::zap::{Header, KeyKind, Leaf, Match, MicroIndex, MicroZap, ZapParams, ZapValue, init_fat};
use weir_fuzz::{after, seeds};

fn overlay(block: &mut [u8], data: &[u8]) {
    for t in data.chunks_exact(3) {
        let at = usize::from(u16::from_le_bytes([t[0], t[1]])) % block.len();
        block[at] = t[2];
    }
}

fn leaf(b: Vec<u8>, n: u8) {
    let kind = if n & 1 == 0 { KeyKind::String } else { KeyKind::U64 };
    let Ok(mut leaf) = Leaf::open(b, kind) else { return };
    let good = leaf.check().is_ok();
    let entries = leaf.entries().unwrap_or_default();
    for e in &entries {
        if let (Ok(key), Ok(_)) = (leaf.key(e), leaf.value(e)) {
            let found = leaf.find(e.hash, &key);
            assert!(!good || found.expect("a good leaf").is_some());
        }
        let _ = leaf.next_from(e.hash, e.cd);
    }
    let mut other = leaf.clone();
    if let Ok(high) = other.split(vec![0; leaf.bytes().len()]) {
        high.check().expect("a half");
        other.check().expect("a half");
    } else {
        assert_eq!(other.bytes(), leaf.bytes());
    }
    for e in entries.iter().take(4) {
        let before = leaf.bytes().to_vec();
        if leaf.update(e, &ZapValue::from_bytes(&vec![n; usize::from(n)])).is_err() {
            assert_eq!(leaf.bytes(), before);
        }
        let key = [n + 1; 8];
        let before = leaf.bytes().to_vec();
        if leaf.insert(&key, e.hash, None, &ZapValue::from_u64(1)).is_err() {
            assert_eq!(leaf.bytes(), before);
        }
    }
    assert!(!good || leaf.check().is_ok());
    if let Some(e) = leaf.entries().unwrap_or_default().first() {
        let before = leaf.bytes().to_vec();
        if leaf.remove(e).is_err() {
            assert_eq!(leaf.bytes(), before);
        }
    }
}

fn make_seeds() -> Vec<Vec<u8>> {
    let mut mz = MicroZap::init(vec![0; 512], 1, 0);
    mz.insert(b"name", 1, 0);
    let mut leaf = Leaf::init(vec![0; 1024], KeyKind::String, 0, 0, true);
    let _ = leaf.insert(b"name", 5 << 60, None, &ZapValue::from_u64(7));
    let overlay = [0, 0, 1, 40, 0, 255];
    let mut out = vec![after(&[0, 2], leaf.bytes()), after(&[3, 2], mz.bytes()), after(&[5, 0], mz.bytes())];
    out.extend([1, 2, 4].map(|what| after(&[what, 9], &overlay)));
    out
}

fuzz_target!(init: seeds(make_seeds), |input: &[u8]| {
    let Some((&[what, n], data)) = input.split_first_chunk() else { return };
    let n = n % 200;
    match what % 6 {
        0 => leaf(data.to_vec(), n),
        1 => {
            let mut l = Leaf::init(vec![0; 1024], KeyKind::String, 0, 0, n & 2 != 0);
            for i in 0..n % 16 {
                let _ = l.insert(format!("name{i}").as_bytes(), u64::from(i) << 60, None, &ZapValue::from_u64(7));
            }
            let mut b = l.into_inner();
            overlay(&mut b, data);
            leaf(b, n & !1);
        }
        2 => {
            let (mut head, mut first) = (vec![0; 1024], vec![0; 1024]);
            init_fat(&mut head, &mut first, ZapParams { salt: 1, normflags: 0, flags: u64::from(n & 7) });
            overlay(&mut head, data);
            if let Ok(h) = Header::parse(&head) {
                let slot = h.locate(u64::from(n) << 56);
                let _ = h.load(&head, slot);
                let _ = h.also_store(h.index(u64::from(n) << 56));
            }
        }
        3 | 4 => {
            let b = if what % 6 == 3 {
                data.to_vec()
            } else {
                let mut mz = MicroZap::init(vec![0; 512], 1, u64::from(n & 2));
                for i in 0..n % 8 {
                    mz.insert(format!("name{i}").as_bytes(), 1, 0);
                }
                let mut b = mz.into_inner();
                overlay(&mut b, data);
                b
            };
            if let Ok(mz) = MicroZap::open(&b) {
                let _ = mz.find(b"NAME1", Match::Folded);
                if let Ok(ix) = MicroIndex::build(&mz) {
                    for e in mz.entries() {
                        let e = e.expect("the index was built");
                        assert_eq!(ix.find(&mz, e.name, Match::Exact).expect("indexed"), Some(e.slot));
                    }
                }
            }
        }
        _ => swap_block(ObjectType::DIRECTORY, 0, &mut data.to_vec()),
    }
});
