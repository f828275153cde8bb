//! ZAPs against a model, over txgs and reopenings; their blocks checked with the kernels of
//! `ondisk`.

use std::collections::{BTreeMap, BTreeSet};

use crate::common::*;
use base::{ErrorKind, Nanos, ObjectId};
use bdev::Bytes;
use dmu::zap::{self, Cursor, Match, ZapValue};
use dmu::*;
use ondisk::object_type::ObjectType;
use ondisk::objset::ObjsetType;
use ondisk::zap::{Header, Leaf, MICRO_MAX_SIZE, MicroIndex, MicroZap, NORM_D, NORM_TOUPPER, ZapKind, table_range};
use sim::Rng;

type Model = BTreeMap<Vec<u8>, ZapValue>;

/// Checks the rules of the format for a ZAP's blocks; returns whether it is fat.
async fn verify(dn: &Dnode) -> bool {
    let block = dn.read_block(0).await.unwrap();
    if ondisk::zap::kind(&block).unwrap() == ZapKind::Micro {
        let mz = MicroZap::open(&block[..]).unwrap();
        assert_eq!(MicroIndex::build(&mz).unwrap().len() as u64, zap::count(dn).await.unwrap());
        assert_eq!(dn.max_blkid(), 0);
        return false;
    }
    let h = Header::parse(&block).unwrap();
    assert_eq!(dn.max_blkid() + 1, h.freeblk);
    let (mut leaves, mut entries, mut index) = (BTreeSet::new(), 0, 0);
    while index < h.table_len() {
        let slot = h.slot(index);
        let table = dn.read_block(slot.blk).await.unwrap();
        let blk = h.load(&table, slot).unwrap();
        let bytes = dn.read_block(blk).await.unwrap();
        let leaf = Leaf::open(&bytes[..], h.params.key_kind()).unwrap();
        leaf.check().unwrap();
        assert!(leaves.insert(blk), "leaf {blk} is in two places");
        let (first, n) = table_range(leaf.prefix(), leaf.prefix_len(), h.table_shift).unwrap();
        assert_eq!(first, index);
        for i in first..first + n {
            let slot = h.slot(i);
            assert_eq!(h.load(&dn.read_block(slot.blk).await.unwrap(), slot).unwrap(), blk);
        }
        for e in leaf.entries().unwrap() {
            assert_eq!(h.params.hash(&leaf.key(&e).unwrap()), e.hash);
            entries += 1;
        }
        index = first + n;
    }
    assert_eq!(entries, h.num_entries);
    assert_eq!(leaves.len() as u64, h.num_leafs);
    true
}

async fn compare(dn: &Dnode, m: &Model) -> bool {
    let list = zap::list(dn).await.unwrap();
    let got: Model = list.iter().map(|e| (e.name.clone(), e.value.clone())).collect();
    assert_eq!(got.len(), list.len(), "an entry was listed twice");
    assert_eq!(&got, m);
    assert_eq!(zap::count(dn).await.unwrap(), m.len() as u64);
    for (k, v) in m {
        assert_eq!(zap::lookup(dn, k).await.unwrap().as_ref(), Some(v));
    }
    verify(dn).await
}

fn name(r: &mut Rng, keys: u64, long: bool) -> Vec<u8> {
    let k = r.below(keys);
    let mut n = format!("name-{k:x}").into_bytes();
    if long && k.is_multiple_of(17) {
        n.resize(50 + (k % 200) as usize, b'x');
    }
    n
}

fn value(r: &mut Rng, wild: bool) -> ZapValue {
    match r.below(if wild { 12 } else { 1 }) {
        1 => ZapValue::from_str_nul("text"),
        2 => ZapValue::from_u16s(&[1, 2, 3]),
        3 => ZapValue::from_u64s(&(0..r.below(1000)).collect::<Vec<_>>()),
        4 => ZapValue::from_bytes(&vec![7; r.below(8000) as usize]),
        _ => ZapValue::from_u64(r.below(1000)),
    }
}

async fn edit(os: &Objset, dn: &Dnode, m: &mut Model, r: &mut Rng, keys: u64, wild: bool) {
    let key = name(r, keys, wild);
    let tx = TxPlan::new(os).zap(dn).assign().await.unwrap();
    match r.below(10) {
        0..4 => {
            let v = value(r, wild);
            match zap::add(dn, &key, &v, &tx).await {
                Ok(()) => assert!(m.insert(key, v).is_none()),
                Err(e) => assert!(e.kind() == ErrorKind::Exists && m.contains_key(&key), "{e}"),
            }
        }
        4..6 => {
            let v = value(r, wild);
            zap::update(dn, &key, &v, &tx).await.unwrap();
            m.insert(key, v);
        }
        6..8 => match zap::remove(dn, &key, &tx).await {
            Ok(()) => drop(m.remove(&key).unwrap()),
            Err(e) => assert!(e.kind() == ErrorKind::NotFound && !m.contains_key(&key), "{e}"),
        },
        8 => {
            let old = m.get(&key).map_or(Some(0), ZapValue::as_u64);
            let delta = r.below(5) as i64 - 2;
            let delta = if r.below(3) == 0 { -(old.unwrap_or(0) as i64) } else { delta };
            match (zap::increment(dn, &key, delta, &tx).await, old) {
                (Ok(()), None) => assert_eq!(delta, 0),
                (Err(e), None) => assert_eq!(e.kind(), ErrorKind::Corrupt),
                (r, Some(old)) => {
                    r.unwrap();
                    match old.wrapping_add_signed(delta) {
                        _ if delta == 0 => {}
                        0 => drop(m.remove(&key)),
                        n => drop(m.insert(key, ZapValue::from_u64(n))),
                    }
                }
            }
        }
        _ => assert_eq!(zap::lookup(dn, &key).await.unwrap(), m.get(&key).cloned()),
    }
}

#[test]
fn behaves_like_a_map() {
    for (seed, keys, wild, steps) in [(1, 40, false, 1500), (2, 30_000, false, 9000), (3, 900, true, 3000)] {
        let sim = world(seed);
        sim.block_on(async {
            let mut r = Rng::new(seed);
            let mut env = Env::new(&sim, 32 << 20, features(), ObjsetProps::default());
            let mut os = env.create(ObjsetType::Other);
            let mut task = env.run(&os, None);
            let tx = TxPlan::new(&os).create(1).assign().await.unwrap();
            let obj = zap::create(&os, ObjectType::OTHER_ZAP, 0, &tx).await.unwrap().object();
            drop(tx);
            let mut m = Model::new();
            let mut dn = os.hold(obj).await.unwrap();
            for step in 0..steps {
                edit(&os, &dn, &mut m, &mut r, keys, wild).await;
                if r.below(60) == 0 {
                    env.ctx.txg().kick();
                }
                if step % (steps / 5) == steps / 5 - 1 {
                    compare(&dn, &m).await;
                    drop(dn);
                    env.stop(task).await;
                    check(&env, &os).await;
                    os = env.reopen(os).await;
                    task = env.run(&os, None);
                    dn = os.hold(obj).await.unwrap();
                    compare(&dn, &m).await;
                }
            }
            assert_eq!(compare(&dn, &m).await, keys != 40);
            env.stop(task).await;
        });
    }
}

#[test]
fn grows_as_the_format_says() {
    let sim = world(5);
    sim.block_on(async {
        let env = Env::new(&sim, 32 << 20, features(), ObjsetProps::default());
        let os = env.create(ObjsetType::Other);
        let task = env.run(&os, None);
        let tx = TxPlan::new(&os).create(1).assign().await.unwrap();
        let dn = zap::create(&os, ObjectType::DIRECTORY, 0, &tx).await.unwrap();
        for i in 0..2047u64 {
            zap::add_int(&dn, i, i, &tx).await.unwrap();
            assert_eq!(u64::from(dn.block_size()), ((i + 2) * 64).next_multiple_of(512));
        }
        assert!(!zap::is_fat(&dn).await.unwrap());
        assert!(env.ctx.arc().charged(arc::MemKind::ZapIndex) > 2047 * 32);
        zap::remove_int(&dn, 7, &tx).await.unwrap();
        zap::add_int(&dn, 7, 8, &tx).await.unwrap();
        assert!(!verify(&dn).await, "a free slot is used again");
        let before: Vec<u64> = cookies(&dn).await;
        zap::add_int(&dn, 2047, 1, &tx).await.unwrap();
        assert!(verify(&dn).await);
        assert_eq!(dn.block_size(), 16384);
        assert_eq!(env.ctx.arc().charged(arc::MemKind::ZapIndex), 0);
        let after: Vec<u64> = cookies(&dn).await;
        assert_eq!(after.len(), 2048);
        let same: BTreeSet<u64> = before.iter().copied().collect();
        assert_eq!(after.iter().filter(|c| same.contains(c)).count(), 2047, "places survive the change to fat");
        assert_eq!(zap::lookup_int(&dn, 7).await.unwrap(), Some(8));
        assert_eq!(zap::lookup_int(&dn, 5000).await.unwrap(), None);
        // Names and values that no micro ZAP holds.
        for (name, v) in [(vec![b'n'; 50], ZapValue::from_u64(1)), (b"t".to_vec(), ZapValue::from_str_nul("x"))] {
            let dn = zap::create(&os, ObjectType::OTHER_ZAP, 0, &tx).await.unwrap();
            zap::add_u64(&dn, b"first", 1, &tx).await.unwrap();
            zap::add(&dn, &name, &v, &tx).await.unwrap();
            assert!(verify(&dn).await);
            assert_eq!(zap::list(&dn).await.unwrap().len(), 2);
        }
        for (name, kind) in
            [(&b""[..], ErrorKind::Invalid), (b"a\0b", ErrorKind::Invalid), (&[b'x'; 1024], ErrorKind::NameTooLong)]
        {
            assert_eq!(zap::add_u64(&dn, name, 1, &tx).await.unwrap_err().kind(), kind);
        }
        assert_eq!(zap::update_bytes(&dn, b"x", &[0; 8193], &tx).await.unwrap_err().kind(), ErrorKind::TooBig);
        drop(tx);
        env.stop(task).await;
        check(&env, &os).await;
    });
}

async fn cookies(dn: &Dnode) -> Vec<u64> {
    let mut c = Cursor::new(dn);
    let mut out = Vec::new();
    while let Some((_, at)) = c.next().await.unwrap() {
        out.push(at);
    }
    assert!(c.next().await.unwrap().is_none());
    out
}

/// The largest micro ZAP is indexed, and becomes fat, in turns: the world ends with a poll that was
/// charged with more than the bound.
#[test]
fn a_large_micro_zap_keeps_its_thread_for_a_turn_at_most() {
    let sim = world(9);
    sim.block_on(async {
        let mut env = Env::new(&sim, 32 << 20, features(), ObjsetProps::default());
        let os = env.create(ObjsetType::Other);
        let task = env.run(&os, None);
        let tx = TxPlan::new(&os).create(1).assign().await.unwrap();
        let dn = zap::create(&os, ObjectType::OTHER_ZAP, 0, &tx).await.unwrap();
        let most = (MICRO_MAX_SIZE / 64 - 1) as u64;
        for i in 0..most {
            zap::add_int(&dn, i, i, &tx).await.unwrap();
        }
        let obj = dn.object();
        drop((dn, tx));
        env.stop(task).await;
        let os = env.reopen(os).await;
        let dn = os.hold(obj).await.unwrap();
        let least = |each: Nanos| Nanos(each.0 * most);
        let begun = sim.engine_busy();
        assert_eq!(zap::count(&dn).await.unwrap(), most);
        let indexed = sim.engine_busy();
        assert!(indexed.since(begun) >= least(rt::cost::ZAP_INDEX));
        let tx = TxPlan::new(&os).create(1).assign().await.unwrap();
        assert!(!zap::is_fat(&dn).await.unwrap());
        zap::add_int(&dn, most, most, &tx).await.unwrap();
        assert!(sim.engine_busy().since(indexed) >= least(rt::cost::ZAP_MOVE));
        assert!(zap::is_fat(&dn).await.unwrap() && verify(&dn).await);
    });
}

#[test]
fn many_entries() {
    const N: u64 = 200_000;
    let sim = world(9);
    sim.block_on(async {
        let mut env = Env::new(&sim, 64 << 20, features(), ObjsetProps::default());
        let mut os = env.create(ObjsetType::Other);
        let mut task = env.run(&os, None);
        let tx = TxPlan::new(&os).create(1).assign().await.unwrap();
        let mut dn = zap::create(&os, ObjectType::DIRECTORY, 0, &tx).await.unwrap();
        let obj = dn.object();
        drop(tx);
        let began = std::time::Instant::now();
        for i in 0..N / 1000 {
            let tx = TxPlan::new(&os).zap(&dn).assign().await.unwrap();
            for j in 0..1000 {
                zap::add_u64(&dn, format!("file-number-{:012}", i * 1000 + j).as_bytes(), i * 1000 + j, &tx)
                    .await
                    .unwrap();
            }
        }
        println!("{} ns per insertion", began.elapsed().as_nanos() / u128::from(N));
        drop(dn);
        env.stop(task).await;
        os = env.reopen(os).await;
        task = env.run(&os, None);
        dn = os.hold(obj).await.unwrap();
        let h = Header::parse(&dn.read_block(0).await.unwrap()).unwrap();
        assert!(h.table_numblks >= 1 && h.num_entries == N, "{h:?}");
        let began = std::time::Instant::now();
        for i in (0..N).step_by(7) {
            assert_eq!(zap::lookup_u64(&dn, format!("file-number-{i:012}").as_bytes()).await.unwrap(), Some(i));
        }
        println!("{} ns per lookup from disk", began.elapsed().as_nanos() / u128::from(N / 7));
        let began = std::time::Instant::now();
        for i in (0..N).step_by(7) {
            assert_eq!(zap::lookup_u64(&dn, format!("file-number-{i:012}").as_bytes()).await.unwrap(), Some(i));
        }
        println!("{} ns per lookup", began.elapsed().as_nanos() / u128::from(N / 7));
        let began = std::time::Instant::now();
        let mut c = Cursor::new(&dn);
        let mut seen = vec![false; N as usize];
        while let Some((e, _)) = c.next().await.unwrap() {
            let i = e.value.as_u64().unwrap() as usize;
            assert!(!std::mem::replace(&mut seen[i], true));
        }
        assert!(seen.iter().all(|&s| s));
        println!("{} ns per entry of a walk", began.elapsed().as_nanos() / u128::from(N));
        let began = std::time::Instant::now();
        let tx = TxPlan::new(&os).zap(&dn).assign().await.unwrap();
        for i in (0..N).step_by(10) {
            zap::remove(&dn, format!("file-number-{i:012}").as_bytes(), &tx).await.unwrap();
        }
        println!("{} ns per removal", began.elapsed().as_nanos() / u128::from(N / 10));
        drop(tx);
        assert_eq!(zap::count(&dn).await.unwrap(), N - N / 10);
        env.stop(task).await;
        assert!(verify(&dn).await);
    });
}

#[test]
fn cursors_survive_changes() {
    for (seed, keep) in [(1, 30), (2, 900), (3, 2500)] {
        let sim = world(seed);
        sim.block_on(async {
            let mut r = Rng::new(seed);
            let env = Env::new(&sim, 32 << 20, features(), ObjsetProps::default());
            let os = env.create(ObjsetType::Other);
            let tx = TxPlan::new(&os).create(1).assign().await.unwrap();
            let dn = zap::create(&os, ObjectType::DIRECTORY, 0, &tx).await.unwrap();
            for i in 0..keep {
                zap::add_int(&dn, i, 1, &tx).await.unwrap();
            }
            let mut seen = BTreeMap::new();
            let mut c = Cursor::new(&dn);
            let mut others = 0u64;
            loop {
                let Some((e, cookie)) = c.next().await.unwrap() else { break };
                if e.value.as_u64() == Some(1) {
                    let n = seen.entry(e.name.clone()).or_insert(0);
                    *n += 1;
                }
                if r.below(3) == 0 {
                    c = Cursor::at(&dn, cookie);
                }
                for _ in 0..r.below(6) {
                    let key = keep + r.below(3000);
                    match zap::lookup_int(&dn, key).await.unwrap() {
                        None => zap::add_int(&dn, key, 2, &tx).await.unwrap(),
                        Some(_) => zap::remove_int(&dn, key, &tx).await.unwrap(),
                    }
                    others += 1;
                }
            }
            assert!(others > 0);
            assert_eq!(seen.len() as u64, keep, "entries that were there all the time");
            assert!(seen.values().all(|&n| n == 1));
            // A walk that removes the entries that it returns.
            let mut c = Cursor::new(&dn);
            while let Some((e, _)) = c.next().await.unwrap() {
                zap::remove(&dn, &e.name, &tx).await.unwrap();
            }
            assert_eq!(zap::count(&dn).await.unwrap(), 0);
            assert!(Cursor::at(&dn, u64::MAX).next().await.unwrap().is_none());
            verify(&dn).await;
        });
    }
}

#[test]
fn names_by_the_rule_of_the_directory() {
    let sim = world(4);
    sim.block_on(async {
        let env = Env::new(&sim, 32 << 20, features(), ObjsetProps::default());
        let os = env.create(ObjsetType::Other);
        let tx = TxPlan::new(&os).create(1).assign().await.unwrap();
        for many in [0u64, 3000] {
            let dn = zap::create(&os, ObjectType::DIRECTORY, NORM_D | NORM_TOUPPER, &tx).await.unwrap();
            for i in 0..many {
                zap::add_u64(&dn, format!("File {i}").as_bytes(), i, &tx).await.unwrap();
            }
            zap::add_u64(&dn, b"ReadMe", 1, &tx).await.unwrap();
            zap::add_u64(&dn, b"README", 2, &tx).await.unwrap();
            zap::add_u64(&dn, "caf\u{e9}".as_bytes(), 3, &tx).await.unwrap();
            let find = async |name: &str, how| {
                zap::lookup_norm(&dn, name.as_bytes(), how)
                    .await
                    .unwrap()
                    .map(|e| (String::from_utf8(e.name).unwrap(), e.value.as_u64().unwrap()))
            };
            assert_eq!(find("readme", Match::Folded).await, Some(("ReadMe".into(), 1)), "the lowest cd");
            assert_eq!(find("README", Match::Exact).await, Some(("README".into(), 2)));
            assert_eq!(find("README", Match::Normalised).await, Some(("README".into(), 2)));
            assert_eq!(find("readme", Match::Normalised).await, None);
            assert_eq!(find("cafe\u{301}", Match::Normalised).await, Some(("caf\u{e9}".into(), 3)));
            assert_eq!(find("CAFE\u{301}", Match::Folded).await.map(|e| e.1), Some(3));
            assert_eq!(find("CAFE\u{301}", Match::Normalised).await, None);
            zap::remove(&dn, b"ReadMe", &tx).await.unwrap();
            assert_eq!(find("readme", Match::Folded).await.map(|e| e.1), Some(2));
            if many > 0 {
                assert_eq!(find("fILE 2999", Match::Folded).await.map(|e| e.1), Some(2999));
            }
            assert_eq!(verify(&dn).await, many > 0);
        }
    });
}

#[test]
fn tasks_side_by_side() {
    let sim = world(6);
    sim.block_on(async {
        let env = Env::new(&sim, 1 << 20, features(), ObjsetProps::default());
        let os = env.create(ObjsetType::Other);
        let task = env.run(&os, None);
        let tx = TxPlan::new(&os).create(1).assign().await.unwrap();
        let dn = zap::create(&os, ObjectType::DIRECTORY, 0, &tx).await.unwrap();
        drop(tx);
        let mut tasks = Vec::new();
        for t in 0..6u64 {
            let (os, dn) = (os.clone(), dn.clone());
            tasks.push(env.rt.spawn("zap user", async move {
                let mut r = Rng::new(100 + t);
                let mut mine = BTreeMap::new();
                for i in 0..1200u64 {
                    let key = r.below(900) * 6 + t;
                    let tx = TxPlan::new(&os).zap(&dn).assign().await.unwrap();
                    if mine.remove(&key).is_some() {
                        zap::remove_int(&dn, key, &tx).await.unwrap();
                    } else {
                        zap::add_int(&dn, key, i, &tx).await.unwrap();
                        mine.insert(key, i);
                    }
                    drop(tx);
                    let key = r.below(900) * 6 + t;
                    assert_eq!(zap::lookup_int(&dn, key).await.unwrap(), mine.get(&key).copied());
                }
                mine
            }));
        }
        let mut m = Model::new();
        for t in tasks {
            m.extend(t.await.into_iter().map(|(k, v)| (zap::int_key(k), ZapValue::from_u64(v))));
        }
        compare(&dn, &m).await;
        env.stop(task).await;
        check(&env, &os).await;
    });
}

/// A pointer table that another implementation grows block by block, at every stage.
#[test]
fn half_grown_table() {
    for copied in 0..=2u64 {
        let sim = world(7);
        sim.block_on(async {
            let mut env = Env::new(&sim, 32 << 20, features(), ObjsetProps::default());
            let mut os = env.create(ObjsetType::Other);
            let task = env.run(&os, None);
            let tx = TxPlan::new(&os).create(1).assign().await.unwrap();
            let dn = zap::create(&os, ObjectType::DIRECTORY, 0, &tx).await.unwrap();
            let obj = dn.object();
            let big = vec![1u64; 900];
            let mut i = 0;
            let mut h;
            loop {
                // Entries of 350 chunks: one fits a leaf, so the table grows fast.
                zap::add(&dn, &zap::int_key(i), &ZapValue::from_u64s(&big), &tx).await.unwrap();
                i += 1;
                h = Header::parse(&dn.read_block(0).await.unwrap()).unwrap();
                if h.table_numblks == 2 {
                    break;
                }
            }
            // By hand: begin to double the table, copy some.
            h.table_nextblk = h.freeblk;
            h.table_blks_copied = copied;
            h.freeblk += 4;
            for b in 0..copied {
                let old = dn.read_block(h.table_blk + b).await.unwrap();
                for (k, half) in old.chunks(8192).enumerate() {
                    let mut new = vec![0; 16384];
                    ondisk::zap::init_table_block(&mut new, half);
                    let at = (h.table_nextblk + 2 * b + k as u64) << 14;
                    dn.write_bytes(at, Bytes::from(new), &tx).await.unwrap();
                }
            }
            dn.update_block(0, &tx, |b| h.write_to(b)).await.unwrap();
            drop((tx, dn));
            env.stop(task).await;
            os = env.reopen(os).await;
            let task = env.run(&os, None);
            let dn = os.hold(obj).await.unwrap();
            let tx = TxPlan::new(&os).zap(&dn).assign().await.unwrap();
            for k in 0..i {
                assert_eq!(zap::lookup(&dn, &zap::int_key(k)).await.unwrap(), Some(ZapValue::from_u64s(&big)));
            }
            for k in i..i + 3 {
                zap::add(&dn, &zap::int_key(k), &ZapValue::from_u64s(&big), &tx).await.unwrap();
            }
            let h = Header::parse(&dn.read_block(0).await.unwrap()).unwrap();
            assert!(h.table_nextblk == 0 && h.table_numblks >= 4);
            assert!(verify(&dn).await);
            drop(tx);
            env.stop(task).await;
            check(&env, &os).await;
        });
    }
}

/// Damaged blocks give errors, never a panic or an endless walk.
#[test]
fn damage() {
    let sim = world(8);
    sim.block_on(async {
        let mut r = Rng::new(8);
        let env = Env::new(&sim, 32 << 20, features(), ObjsetProps::default());
        let os = env.create(ObjsetType::Other);
        let tx = TxPlan::new(&os).create(1).assign().await.unwrap();
        for fat in [false, true] {
            let dn = zap::create(&os, ObjectType::OTHER_ZAP, 0, &tx).await.unwrap();
            for i in 0..if fat { 1200 } else { 60 } {
                zap::add_int(&dn, i, i, &tx).await.unwrap();
            }
            if fat {
                zap::add_text(&dn, b"text", "value", &tx).await.unwrap();
            }
            for _ in 0..250 {
                let bad = os.alloc(ObjSpec::new(ObjectType::OTHER_ZAP, dn.block_size()), &tx).await.unwrap();
                for blk in 0..=dn.max_blkid() {
                    let mut b = dn.read_block(blk).await.unwrap().to_vec();
                    for _ in 0..r.below(4) {
                        let end = if r.below(2) == 0 { 100 } else { b.len() as u64 };
                        let at = r.below(end) as usize;
                        b[at] = if r.below(2) == 0 { r.below(256) as u8 } else { b[at] ^ (1 << r.below(8)) };
                    }
                    bad.write(blk * b.len() as u64, &b, &tx).await.unwrap();
                }
                let mut c = Cursor::new(&bad);
                for _ in 0..5000 {
                    match c.next().await {
                        Ok(Some(_)) => {}
                        Ok(None) | Err(_) => break,
                    }
                }
                for _ in 0..20 {
                    let key = zap::int_key(r.below(1500));
                    let _ = zap::lookup(&bad, &key).await;
                    let _ = zap::update(&bad, &key, &ZapValue::from_u64s(&vec![5; r.below(900) as usize]), &tx).await;
                    let _ = zap::remove(&bad, &key, &tx).await;
                    let _ = zap::add_u64(&bad, &key, 1, &tx).await;
                }
                let obj: ObjectId = bad.object();
                drop((bad, c));
                os.free(obj, &tx).await.unwrap();
            }
        }
    });
}

/// Futures of the hot path are part of many others: their waiting or rare parts are boxed.
#[test]
fn futures_are_small() {
    let sim = world(8);
    sim.block_on(async {
        let env = Env::new(&sim, 32 << 20, features(), ObjsetProps::default());
        let os = env.create(ObjsetType::Other);
        let tx = TxPlan::new(&os).create(1).assign().await.unwrap();
        let dn = zap::create(&os, ObjectType::OTHER_ZAP, 0, &tx).await.unwrap();
        assert!(size_of_val(&zap::lookup_u64(&dn, b"")) < 800);
        assert!(size_of_val(&zap::add_u64(&dn, b"", 1, &tx)) < 1600);
        assert!(size_of_val(&zap::remove(&dn, b"", &tx)) < 1600);
    });
}
