//! Space and objects by owner against a recount of every committed dnode.

use std::collections::BTreeMap;

use crate::common::*;
use base::{ErrorKind, ObjectId, Txg};
use dmu::*;
use ondisk::object_type::ObjectType;
use ondisk::objset::ObjsetType;
use sim::Rng;

/// An attribute buffer as files have it: header of 8 bytes, then attributes at their fixed places.
fn attributes(uid: u64, gid: u64, project: Option<u64>) -> Vec<u8> {
    let mut b = vec![0u8; 8 + 136];
    b[..4].copy_from_slice(&0x002F_505Au32.to_le_bytes());
    b[4..6].copy_from_slice(&(2u16 | 1 << 10).to_le_bytes());
    let mut put = |at: usize, v: u64| b[8 + at..][..8].copy_from_slice(&v.to_le_bytes());
    put(24, uid);
    put(32, gid);
    if let Some(p) = project {
        put(48, 0x8000 << 32);
        put(128, p);
    }
    b
}

type Sums = BTreeMap<Vec<u8>, u64>;

async fn recount(os: &Objset) -> [Sums; 3] {
    let mut sums = [Sums::new(), Sums::new(), Sums::new()];
    let mut at = ObjectId(0);
    while let Some(obj) = os.objects(at).await.unwrap() {
        at = ObjectId(obj.0 + 1);
        let p = os.hold(obj).await.unwrap().committed();
        assert_eq!(p.flags & 0xa, 0xa);
        if p.bonustype != ObjectType::SA {
            continue;
        }
        let b = p.bonus();
        let word = |at: usize| if b.len() > 8 { u64::from_le_bytes(b[8 + at..][..8].try_into().unwrap()) } else { 0 };
        for (kind, id) in [word(24), word(32), word(128)].into_iter().enumerate() {
            *sums[kind].entry(format!("{id:x}").into_bytes()).or_default() += 512 + p.used_bytes();
            *sums[kind].entry(format!("obj-{id:x}").into_bytes()).or_default() += 1;
        }
    }
    sums
}

async fn new_object(os: &Objset, objects: &mut Vec<ObjectId>, r: &mut Rng) {
    let tx = TxPlan::new(os).create(1).assign().await.unwrap();
    objects.push(new_object_in(os, &tx, r).await);
}

async fn new_object_in(os: &Objset, tx: &Tx, r: &mut Rng) -> ObjectId {
    let spec = ObjSpec::new(ObjectType::PLAIN_FILE, 4096).bonus(ObjectType::SA, 0);
    let dn = os.alloc(spec, tx).await.unwrap();
    if r.below(4) > 0 {
        dn.set_bonus(&attributes(r.below(4), r.below(1 << 40), Some(r.below(3))), tx).unwrap();
    }
    dn.object()
}

/// Makes and frees objects of its own in transactions that are open for long.
async fn act_slowly(rt: rt::Rt, os: Objset, mut r: Rng) {
    let mut objects: Vec<ObjectId> = Vec::new();
    for _ in 0..16 {
        let wait = base::Nanos::from_ms(r.below(3000));
        if r.below(3) > 0 || objects.is_empty() {
            let tx = TxPlan::new(&os).create(1).assign().await.unwrap();
            rt.sleep(wait).await;
            objects.push(new_object_in(&os, &tx, &mut r).await);
        } else {
            let dn = os.hold(objects.swap_remove(r.below(objects.len() as u64) as usize)).await.unwrap();
            let tx = TxPlan::new(&os).free(&dn).create(1).assign().await.unwrap();
            rt.sleep(wait).await;
            let object = dn.object();
            drop(dn);
            os.free(object, &tx).await.unwrap();
        }
    }
}

/// One random operation on the objects, or a pause.
async fn act(env: &Env, os: &Objset, objects: &mut Vec<ObjectId>, r: &mut Rng) {
    match r.below(10) {
        0..3 => new_object(os, objects, r).await,
        3..6 if !objects.is_empty() => {
            let obj = objects[r.below(objects.len() as u64) as usize];
            let dn = os.hold(obj).await.unwrap();
            let (off, len) = (r.below(200_000), r.below(30_000) as usize);
            let tx = TxPlan::new(os).write(&dn, off, len as u64).assign().await.unwrap();
            let mut data = vec![0; len];
            r.fill(&mut data);
            dn.write(off, &data, &tx).await.unwrap();
        }
        6..8 if !objects.is_empty() => {
            let obj = objects[r.below(objects.len() as u64) as usize];
            let dn = os.hold(obj).await.unwrap();
            let tx = TxPlan::new(os).bonus(&dn).assign().await.unwrap();
            dn.set_bonus(&attributes(r.below(4), r.below(5), Some(r.below(3))), &tx).unwrap();
        }
        8 if !objects.is_empty() => {
            let obj = objects.swap_remove(r.below(objects.len() as u64) as usize);
            let dn = os.hold(obj).await.unwrap();
            let tx = TxPlan::new(os).free(&dn).assign().await.unwrap();
            drop(dn);
            os.free(obj, &tx).await.unwrap();
        }
        _ => env.rt.sleep(base::Nanos::from_ms(r.below(3000))).await,
    }
}

/// Compares the sums with a recount.
async fn check_sums(os: &Objset) {
    for (i, want) in recount(os).await.into_iter().enumerate() {
        let got: Sums = match os.accounting(ObjectId(u64::MAX - i as u64)) {
            None => Sums::new(),
            Some(dn) => {
                let list = zap::list(&dn).await.unwrap();
                list.into_iter().map(|e| (e.name.to_vec(), e.value.as_u64().unwrap())).collect()
            }
        };
        assert_eq!(got, want, "object -{}", i + 1);
    }
}

#[test]
fn owners_add_up() {
    for seed in 1..3 {
        let sim = world(seed);
        sim.block_on(async {
            let mut r = Rng::new(seed);
            let mut env = Env::new(&sim, 64 << 20, features(), ObjsetProps::default());
            let mut os = env.create(ObjsetType::Zfs);
            os.set_flags(7, &Tx::syncing(env.ctx.txg().open_txg()));
            let mut objects = Vec::new();
            for _round in 0..12 {
                let task = env.run(&os, None);
                for _ in 0..60 {
                    act(&env, &os, &mut objects, &mut r).await;
                }
                env.stop(task).await;
                assert_eq!(env.ctx.txg().dirty(), 0);
                check(&env, &os).await;
                os = env.reopen(os).await;
                check_sums(&os).await;
            }
        });
    }
}

/// Counting begins when there are objects, beside operations, is broken off, and begins anew.
#[test]
fn what_is_there_is_counted_later() {
    let (mut ended, mut broken) = (0, 0);
    for seed in 0..24 {
        let sim = world(seed);
        sim.block_on(async {
            let mut r = Rng::new(seed);
            let mut env = Env::new(&sim, 64 << 20, features(), ObjsetProps::default());
            let mut os = env.create(ObjsetType::Zfs);
            // Nothing, space, or space and objects are counted before.
            os.set_flags([0, 1, 5][seed as usize % 3], &Tx::syncing(env.ctx.txg().open_txg()));
            let mut objects = Vec::new();
            for round in 0..8 {
                let task = env.run(&os, None);
                for _ in 0..40 {
                    new_object(&os, &mut objects, &mut r).await;
                }
                let mut count = None;
                let slow = Rng::new(r.below(1 << 40));
                let slow = env.rt.spawn("slow", act_slowly(env.rt.clone(), os.clone(), slow));
                for step in 0..80 {
                    if round > 1 && step == 20 {
                        let (os, mut left, rt) = (os.clone(), r.below(24), env.rt.clone());
                        let mut r = Rng::new(r.below(1 << 40));
                        count = Some(env.rt.spawn("count", async move {
                            os.count_owners(async || {
                                rt.sleep(base::Nanos::from_ms(r.below(4000))).await;
                                left = left.checked_sub(1).ok_or_else(|| base::Error::from(ErrorKind::Interrupted))?;
                                Ok(())
                            })
                            .await
                        }));
                    }
                    act(&env, &os, &mut objects, &mut r).await;
                }
                slow.await;
                if let Some(count) = count {
                    match count.await {
                        Ok(()) => assert_eq!(os.uncounted(), 0),
                        Err(_) => broken += 1,
                    }
                }
                env.stop(task).await;
                check(&env, &os).await;
                os = env.reopen(os).await;
                if os.uncounted() == 0 {
                    ended += 1;
                    check_sums(&os).await;
                }
            }
        });
    }
    assert!(ended > 40 && broken > 10, "{ended} rounds with counts, {broken} counts broken off");
}

const _: Txg = Txg(0);
