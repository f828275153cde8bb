//! Lists of block pointers against a model: totals, nesting, draining in pieces.

use std::collections::BTreeSet;

use crate::common::*;
use base::{ObjectId, Txg, VdevId};
use dmu::bpobj::{self, Bpobj, BpobjSpace};
use dmu::*;
use ondisk::blkptr::{Blkptr, Dva};
use ondisk::bpobj::{BPOBJ_BLKSZ, SYNC_BPLIST_BLKSZ};
use ondisk::object_type::ObjectType;
use ondisk::objset::ObjsetType;
use sim::Rng;

fn bp(n: u64) -> Blkptr {
    let mut bp = Blkptr::hole();
    bp.set_dva(0, Dva::new(VdevId(0), n << 12, 4096, false));
    bp.set_lsize(8192);
    bp.set_psize(4096);
    bp.set_otype(ObjectType::PLAIN_FILE);
    bp.set_birth(Txg(n % 50 + 1), Txg(n % 50 + 1));
    bp.set_checksum_words([1, 2, 3, 4]);
    bp.set_fill(1);
    bp
}

fn dsize(bp: &Blkptr) -> u64 {
    bp.psize() + 1
}

fn space(n: u64) -> BpobjSpace {
    BpobjSpace { bytes: n * 4097, comp: n * 4096, uncomp: n * 8192 }
}

async fn members(list: &Bpobj) -> BTreeSet<u64> {
    let mut out = BTreeSet::new();
    list.iterate(&mut |bp| {
        assert_eq!((bp.checksum_words(), bp.fill()), ([0; 4], 0));
        assert!(out.insert(bp.dva(0).offset() >> 12), "twice in the list");
        Ok(())
    })
    .await
    .unwrap();
    out
}

#[test]
fn fill_nest_and_drain() {
    for seed in 1..4 {
        let sim = world(seed);
        sim.block_on(async {
            let mut r = Rng::new(seed);
            let mut env = Env::new(&sim, 32 << 20, features(), ObjsetProps::mos());
            let mut os = env.create(ObjsetType::Meta);
            let tx = Tx::syncing(env.ctx.txg().open_txg());
            // Other objects, so that the object set is not empty at the end.
            zap::create(&os, ObjectType::OBJECT_DIRECTORY, 0, &tx).await.unwrap();
            let blksz = if seed == 1 { SYNC_BPLIST_BLKSZ } else { BPOBJ_BLKSZ };
            let top = bpobj::create(&os, blksz, &tx).await.unwrap();
            let mut model = BTreeSet::new();
            let mut next = 1u64;
            let mut fresh = |n: u64| -> Vec<(Blkptr, u64)> {
                next += n;
                (next - n..next).map(|i| (bp(i), dsize(&bp(i)))).collect()
            };
            let list = Bpobj::open(&os, top).await.unwrap();
            let mut subs: Vec<(ObjectId, u64)> = Vec::new();
            for step in 0..60 {
                match r.below(4) {
                    0 => {
                        let mut bps = fresh(r.below(700));
                        model.extend(bps.iter().map(|b| b.0.dva(0).offset() >> 12));
                        bps.push((Blkptr::hole(), 0));
                        list.enqueue(&bps, &tx).await.unwrap();
                    }
                    1 | 2 => {
                        let obj = bpobj::create(&os, blksz, &tx).await.unwrap();
                        let sub = Bpobj::open(&os, obj).await.unwrap();
                        let mut n = [0, 3, 200, 2000][r.below(4) as usize];
                        let bps = fresh(n);
                        model.extend(bps.iter().map(|b| b.0.dva(0).offset() >> 12));
                        sub.enqueue(&bps, &tx).await.unwrap();
                        if r.below(2) == 0
                            && let Some((inner, m)) = subs.pop()
                        {
                            sub.enqueue_subobj(inner, &tx).await.unwrap();
                            n += m;
                        }
                        assert_eq!(sub.space().unwrap(), space(n));
                        subs.push((obj, n));
                    }
                    _ => {
                        if let Some((obj, _)) = subs.pop() {
                            list.enqueue_subobj(obj, &tx).await.unwrap();
                        }
                    }
                }
                if step == 59 {
                    for (obj, _) in subs.drain(..) {
                        list.enqueue_subobj(obj, &tx).await.unwrap();
                    }
                }
            }
            assert_eq!(list.space().unwrap(), space(model.len() as u64));
            assert_eq!(members(&list).await, model);
            let young = model.iter().filter(|&&n| (11..=30).contains(&(n % 50 + 1))).count();
            assert_eq!(list.space_born(Txg(10), Txg(30), &dsize).await.unwrap(), space(young as u64));
            drop(list);
            let task = env.run(&os, None);
            env.stop(task).await;
            check(&env, &os).await;
            os = env.reopen(os).await;

            let list = Bpobj::open(&os, top).await.unwrap();
            assert_eq!(members(&list).await, model);
            let mut rounds = 0;
            while !list.is_empty().unwrap() {
                let tx = Tx::syncing(env.ctx.txg().open_txg());
                let max = 1 + r.below(900) as usize;
                let got = list.drain(max, &tx, &dsize).await.unwrap();
                assert!(got.len() <= max && (got.len() == max || list.is_empty().unwrap()));
                for bp in &got {
                    assert!(model.remove(&(bp.dva(0).offset() >> 12)), "drained twice");
                }
                assert_eq!(list.space().unwrap(), space(model.len() as u64));
                rounds += 1;
                if rounds % 7 == 0 {
                    assert_eq!(members(&list).await, model);
                }
            }
            assert!(model.is_empty());
            assert!(list.drain(5, &tx, &dsize).await.unwrap().is_empty());
            let tx = Tx::syncing(env.ctx.txg().open_txg());
            drop(list);
            bpobj::free(&os, top, &tx).await.unwrap();
            assert_eq!(objects(&os).await, 1, "all lists are freed");
            let task = env.run(&os, None);
            env.stop(task).await;
            check(&env, &os).await;
        });
    }
}

async fn objects(os: &Objset) -> usize {
    let (mut n, mut at) = (0, ObjectId(0));
    while let Some(o) = os.objects(at).await.unwrap() {
        n += 1;
        at = ObjectId(o.0 + 1);
    }
    n
}

#[test]
fn freeing_a_tree_of_lists() {
    let sim = world(9);
    sim.block_on(async {
        let env = Env::new(&sim, 32 << 20, features(), ObjsetProps::mos());
        let os = env.create(ObjsetType::Meta);
        let tx = Tx::syncing(env.ctx.txg().open_txg());
        let mut inner = None;
        for depth in 0..5u64 {
            let obj = bpobj::create(&os, SYNC_BPLIST_BLKSZ, &tx).await.unwrap();
            let list = Bpobj::open(&os, obj).await.unwrap();
            if let Some(inner) = inner {
                list.enqueue_subobj(inner, &tx).await.unwrap();
            }
            let bps: Vec<(Blkptr, u64)> = (0..300).map(|i| (bp(depth * 1000 + i + 1), 1)).collect();
            list.enqueue(&bps, &tx).await.unwrap();
            inner = Some(obj);
        }
        assert!(objects(&os).await > 5);
        let list = Bpobj::open(&os, inner.unwrap()).await.unwrap();
        assert_eq!(list.space().unwrap().comp, 1500 * 4096);
        drop(list);
        bpobj::free(&os, inner.unwrap(), &tx).await.unwrap();
        assert_eq!(objects(&os).await, 0);
        // A list that contains itself is damage: an error, not an endless walk.
        let obj = bpobj::create(&os, SYNC_BPLIST_BLKSZ, &tx).await.unwrap();
        let list = Bpobj::open(&os, obj).await.unwrap();
        assert!(list.enqueue_subobj(obj, &tx).await.is_err());
        let array = os.alloc(ObjSpec::new(ObjectType::BPOBJ_SUBOBJ, BPOBJ_BLKSZ), &tx).await.unwrap();
        array.write(0, &obj.0.to_le_bytes(), &tx).await.unwrap();
        let dn = os.hold(obj).await.unwrap();
        let mut b = dn.bonus().to_vec();
        b[32..40].copy_from_slice(&array.object().0.to_le_bytes());
        b[40] = 1;
        dn.set_bonus(&b, &tx).unwrap();
        assert!(list.iterate(&mut |_| Ok(())).await.is_err());
        b[0] = 200;
        dn.set_bonus(&b, &tx).unwrap();
        assert!(Bpobj::open(&os, obj).await.is_err(), "more pointers than blocks");
    });
}
