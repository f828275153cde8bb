//! A fat ZAP over a map of blocks, driven by the kernels exactly as a layer with real blocks drives
//! them, against a `BTreeMap`.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;

use base::{ErrorKind, Result};
use ondisk::zap::{
    FLAG_HASH64, FLAG_UINT64_KEY, Header, KeyKind, Leaf, LeafInsert, Match, NORM_TOUPPER, ZapParams, ZapValue,
    init_fat, init_table_block, split_range,
};
use proptest::prelude::*;

struct FatZap {
    h: Header,
    blocks: BTreeMap<u64, Vec<u8>>,
}

impl FatZap {
    fn new(block_size: usize, params: ZapParams) -> FatZap {
        let (mut b0, mut b1) = (vec![0; block_size], vec![0; block_size]);
        let h = init_fat(&mut b0, &mut b1, params);
        FatZap { h, blocks: BTreeMap::from([(0, b0), (1, b1)]) }
    }
    fn leaf_blk(&self, hash: u64) -> u64 {
        let slot = self.h.locate(hash);
        self.h.load(&self.blocks[&slot.blk], slot).unwrap()
    }
    fn leaf(&self, blk: u64) -> Leaf<&[u8]> {
        Leaf::open(self.blocks[&blk].as_slice(), self.h.params.key_kind()).unwrap()
    }
    fn find(&self, key: &[u8], how: Match) -> Option<(Vec<u8>, ZapValue)> {
        let hash = self.h.params.hash(key);
        let leaf = self.leaf(self.leaf_blk(hash));
        let e = match how {
            Match::Exact => leaf.find(hash, key).unwrap(),
            how => leaf.find_by(hash, |k| self.h.params.matches(k, key, how)).unwrap(),
        }?;
        Some((leaf.key(&e).unwrap(), leaf.value(&e).unwrap()))
    }
    fn put(&mut self, key: &[u8], value: &ZapValue) -> Result<()> {
        let hash = self.h.params.hash(key);
        loop {
            let blk = self.leaf_blk(hash);
            let kind = self.h.params.key_kind();
            let mut leaf = Leaf::open(self.blocks.get_mut(&blk).unwrap().as_mut_slice(), kind).unwrap();
            let (done, new) = match leaf.find(hash, key)? {
                Some(e) => (leaf.update(&e, value)?, false),
                None => (leaf.insert(key, hash, None, value)?, true),
            };
            if done != LeafInsert::NeedSplit {
                self.h.num_entries += u64::from(new);
                return Ok(());
            }
            if leaf.prefix_len() == self.h.table_shift {
                self.grow()?;
                continue;
            }
            let new_blk = self.h.alloc_blk();
            let high = leaf.split(vec![0; 1 << self.h.block_shift])?;
            let (first, count) = split_range(high.prefix(), high.prefix_len(), self.h.table_shift).unwrap();
            self.blocks.insert(new_blk, high.into_inner());
            self.h.num_leafs += 1;
            for i in first..first + count {
                let slot = self.h.slot(i);
                Header::store(self.blocks.get_mut(&slot.blk).unwrap(), slot, new_blk);
            }
        }
    }
    fn grow(&mut self) -> Result<()> {
        let g = self.h.grow_table()?;
        let old: Vec<u8> = if g.old_blk == 0 {
            Header::embedded_table(&self.blocks[&0]).to_vec()
        } else {
            (g.old_blk..g.old_blk + g.old_numblks).flat_map(|b| self.blocks.remove(&b).unwrap()).collect()
        };
        let half = 1 << (self.h.block_shift - 1);
        assert_eq!(old.len() / half, g.new_numblks as usize);
        for (i, o) in old.chunks(half).enumerate() {
            let mut b = vec![0; 2 * half];
            init_table_block(&mut b, o);
            self.blocks.insert(g.new_blk + i as u64, b);
        }
        Ok(())
    }
    fn remove(&mut self, key: &[u8]) -> bool {
        let hash = self.h.params.hash(key);
        let blk = self.leaf_blk(hash);
        let kind = self.h.params.key_kind();
        let mut leaf = Leaf::open(self.blocks.get_mut(&blk).unwrap().as_mut_slice(), kind).unwrap();
        let Some(e) = leaf.find(hash, key).unwrap() else { return false };
        leaf.remove(&e).unwrap();
        self.h.num_entries -= 1;
        true
    }
    /// Every entry, by cursor.
    fn walk(&self) -> Vec<(u64, u32, Vec<u8>, ZapValue)> {
        let (mut hash, mut cd) = (0u64, 0u32);
        let mut out = Vec::new();
        loop {
            let leaf = self.leaf(self.leaf_blk(hash));
            match leaf.next_from(hash, cd).unwrap() {
                Some(e) => {
                    out.push((e.hash, e.cd, leaf.key(&e).unwrap(), leaf.value(&e).unwrap()));
                    (hash, cd) = (e.hash, e.cd + 1);
                }
                None => match leaf.next_hash() {
                    Some(h) => (hash, cd) = (h, 0),
                    None => return out,
                },
            }
        }
    }
    fn check(&mut self, model: &BTreeMap<Vec<u8>, ZapValue>) {
        self.h.write_to(self.blocks.get_mut(&0).unwrap());
        assert_eq!(Header::parse(&self.blocks[&0]).unwrap(), self.h);
        assert_eq!(self.h.num_entries, model.len() as u64);
        let walked = self.walk();
        assert!(walked.windows(2).all(|w| (w[0].0, w[0].1) < (w[1].0, w[1].1)), "cursor order");
        let got: BTreeMap<Vec<u8>, ZapValue> = walked.into_iter().map(|(_, _, k, v)| (k, v)).collect();
        assert_eq!(&got, model);
        for (k, v) in model {
            assert_eq!(self.find(k, Match::Exact), Some((k.clone(), v.clone())));
        }
        let mut leaves = 0;
        let mut last = 0;
        for i in 0..self.h.table_len() {
            let blk = self.h.load(&self.blocks[&self.h.slot(i).blk], self.h.slot(i)).unwrap();
            let leaf = self.leaf(blk);
            assert_eq!(i >> (self.h.table_shift - leaf.prefix_len()), leaf.prefix(), "table entry {i}");
            if blk != last {
                leaf.check().unwrap();
                assert_eq!(leaf.entries().unwrap().len(), usize::from(leaf.nentries()));
                leaves += 1;
                last = blk;
            }
        }
        assert_eq!(leaves, self.h.num_leafs);
    }
}

fn value(n: u64) -> ZapValue {
    match n % 5 {
        0 => ZapValue::from_u64(n),
        1 => ZapValue::from_bytes(&vec![n as u8; (n % 300) as usize]),
        2 => ZapValue::from_u16s(&[n as u16; 3]),
        3 => ZapValue::from_str_nul("a string"),
        _ => ZapValue::from_u64s(&vec![n; (n % 12) as usize]),
    }
}

#[test]
fn grows_from_one_leaf_to_an_external_table() {
    let mut z = FatZap::new(1024, ZapParams { salt: 0x1357_9bdf, normflags: 0, flags: 0 });
    let mut model = BTreeMap::new();
    for i in 0..6000u64 {
        let key = format!("file number {i}").into_bytes();
        let v = ZapValue::from_u64(i);
        z.put(&key, &v).unwrap();
        model.insert(key, v);
    }
    assert!(z.h.table_numblks > 1, "the table must have left the header");
    z.check(&model);
    for i in 0..6000u64 {
        if i % 7 != 0 {
            let key = format!("file number {i}").into_bytes();
            assert!(z.remove(&key));
            model.remove(&key);
        }
    }
    z.check(&model);
}

#[test]
fn word_keys_and_64_bit_hashes() {
    let mut z = FatZap::new(4096, ZapParams { salt: 9, normflags: 0, flags: FLAG_HASH64 | FLAG_UINT64_KEY });
    let mut model = BTreeMap::new();
    for i in 0..1500u64 {
        let key: Vec<u8> = [i, i * i, !i, 0, 7].iter().flat_map(|w| w.to_be_bytes()).collect();
        let v = ZapValue::from_bytes(&i.to_le_bytes());
        z.put(&key, &v).unwrap();
        model.insert(key, v);
    }
    z.check(&model);
    assert!(z.put(b"short", &ZapValue::from_u64(1)).is_err());
}

#[test]
fn same_hash_means_rising_cd() {
    let mut z = FatZap::new(4096, ZapParams { salt: 3, normflags: NORM_TOUPPER, flags: 0 });
    let mut model = BTreeMap::new();
    for (i, name) in ["Name", "nAME", "NAME", "name"].iter().enumerate() {
        z.put(name.as_bytes(), &ZapValue::from_u64(i as u64)).unwrap();
        model.insert(name.as_bytes().to_vec(), ZapValue::from_u64(i as u64));
    }
    z.check(&model);
    assert_eq!(z.walk().iter().map(|e| e.1).collect::<Vec<_>>(), [0, 1, 2, 3]);
    assert_eq!(z.find(b"naMe", Match::Folded).unwrap().0, b"Name");
    assert!(z.remove(b"Name"));
    assert_eq!(z.find(b"naMe", Match::Folded).unwrap().0, b"nAME");
    z.put(b"NaMe", &ZapValue::from_u64(9)).unwrap();
    assert_eq!(z.find(b"name", Match::Folded).unwrap().0, b"NaMe", "the free cd 0 was taken");
}

#[test]
fn limits() {
    let mut z = FatZap::new(16384, ZapParams { salt: 3, normflags: 0, flags: 0 });
    assert_eq!(z.put(&[b'x'; 1024], &ZapValue::from_u64(1)).unwrap_err().kind(), ErrorKind::NameTooLong);
    z.put(&[b'x'; 1023], &ZapValue::from_u64(1)).unwrap();
    assert_eq!(z.find(&[b'x'; 1023], Match::Exact).unwrap().1.as_u64(), Some(1));
    assert_eq!(z.put(b"x", &ZapValue::from_bytes(&[0; 8193])).unwrap_err().kind(), ErrorKind::TooBig);
    z.put(&[b'x'; 255], &ZapValue::from_bytes(&[1; 8192])).unwrap();
    z.put(b"empty", &ZapValue::from_bytes(&[])).unwrap();
    assert_eq!(z.find(b"empty", Match::Exact).unwrap().1.num_ints(), 0);
    let mut small = FatZap::new(1024, ZapParams { salt: 3, normflags: 0, flags: 0 });
    assert_eq!(small.put(b"x", &ZapValue::from_bytes(&[0; 1000])).unwrap_err().kind(), ErrorKind::TooBig);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn behaves_like_a_map(ops in proptest::collection::vec((0u32..400, 0u64..1000, 0u8..4), 1..700), shift in 0u32..3, salt in 1u64.., long in any::<bool>()) {
        // Directories may have names that fill most of a small leaf.
        let widest = if long { 1023 } else { 60 };
        let mut z = FatZap::new(2048 << shift, ZapParams { salt, normflags: 0, flags: 0 });
        let mut model: BTreeMap<Vec<u8>, ZapValue> = BTreeMap::new();
        for (k, v, op) in ops {
            let key = format!("{k:0width$}", width = 1 + (k as usize * 7) % widest).into_bytes();
            if op == 0 {
                prop_assert_eq!(z.remove(&key), model.remove(&key).is_some());
            } else {
                z.put(&key, &value(v)).unwrap();
                model.insert(key, value(v));
            }
        }
        z.check(&model);
    }

    /// Bytes of a good leaf are spoiled; nothing panics or hangs, and an operation that fails
    /// changes nothing.
    #[test]
    fn damaged_leaves_are_survived(seed in any::<u64>(), spoil in proptest::collection::vec((0usize..2048, any::<u8>()), 1..12), name in 0u64..40) {
        let mut leaf = Leaf::init(vec![0; 2048], KeyKind::String, 0, 0, seed & 1 != 0);
        for i in 0..20u64 {
            let _ = leaf.insert(format!("n{i}").as_bytes(), (i ^ seed) << 40, None, &value(i + seed % 100));
        }
        let mut b = leaf.into_inner();
        for (at, v) in spoil {
            b[at] = v;
        }
        if let Ok(mut leaf) = Leaf::open(b, KeyKind::String) {
            let _ = leaf.check();
            let key = format!("n{name}").into_bytes();
            let hash = (name ^ seed) << 40;
            for e in leaf.entries().unwrap_or_default() {
                let _ = (leaf.key(&e), leaf.value(&e));
            }
            let _ = leaf.next_from(hash, 0);
            let found = leaf.find(hash, &key);
            let _ = leaf.find_by(hash, |k| k == key);
            let before = leaf.bytes().to_vec();
            if let Ok(Some(e)) = found {
                if leaf.update(&e, &ZapValue::from_bytes(&[1; 100])).is_err() {
                    prop_assert_eq!(leaf.bytes(), &before[..]);
                }
                let before = leaf.bytes().to_vec();
                if leaf.find(hash, &key).is_ok_and(|f| f.is_some()) && leaf.remove(&e).is_err() {
                    prop_assert_eq!(leaf.bytes(), &before[..]);
                }
            }
            let before = leaf.bytes().to_vec();
            if leaf.insert(b"another", hash, None, &ZapValue::from_u64(1)).is_err() {
                prop_assert_eq!(leaf.bytes(), &before[..]);
            }
            let before = leaf.bytes().to_vec();
            if leaf.split(vec![0; 2048]).is_err() {
                prop_assert_eq!(leaf.bytes(), &before[..]);
            }
        }
    }
}
