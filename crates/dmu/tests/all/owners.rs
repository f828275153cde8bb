//! Space and objects by owner against a recount of every committed dnode.

use std::collections::BTreeMap;

use crate::common::*;
use base::{ObjectId, Txg};
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
                    match r.below(10) {
                        0..3 => {
                            let tx = TxPlan::new(&os).create(1).assign().await.unwrap();
                            let spec = ObjSpec::new(ObjectType::PLAIN_FILE, 4096).bonus(ObjectType::SA, 0);
                            let dn = os.alloc(spec, &tx).await.unwrap();
                            if r.below(4) > 0 {
                                dn.set_bonus(&attributes(r.below(4), r.below(1 << 40), Some(r.below(3))), &tx).unwrap();
                            }
                            objects.push(dn.object());
                        }
                        3..6 if !objects.is_empty() => {
                            let obj = objects[r.below(objects.len() as u64) as usize];
                            let dn = os.hold(obj).await.unwrap();
                            let (off, len) = (r.below(200_000), r.below(30_000) as usize);
                            let tx = TxPlan::new(&os).write(&dn, off, len as u64).assign().await.unwrap();
                            let mut data = vec![0; len];
                            r.fill(&mut data);
                            dn.write(off, &data, &tx).await.unwrap();
                        }
                        6..8 if !objects.is_empty() => {
                            let obj = objects[r.below(objects.len() as u64) as usize];
                            let dn = os.hold(obj).await.unwrap();
                            let tx = TxPlan::new(&os).bonus(&dn).assign().await.unwrap();
                            dn.set_bonus(&attributes(r.below(4), r.below(5), Some(r.below(3))), &tx).unwrap();
                        }
                        8 if !objects.is_empty() => {
                            let obj = objects.swap_remove(r.below(objects.len() as u64) as usize);
                            let dn = os.hold(obj).await.unwrap();
                            let tx = TxPlan::new(&os).free(&dn).assign().await.unwrap();
                            drop(dn);
                            os.free(obj, &tx).await.unwrap();
                        }
                        _ => env.rt.sleep(base::Nanos::from_ms(r.below(3000))).await,
                    }
                }
                env.stop(task).await;
                assert_eq!(env.ctx.txg().dirty(), 0);
                check(&env, &os).await;
                os = env.reopen(os).await;
                let want = recount(&os).await;
                for (i, want) in want.into_iter().enumerate() {
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
        });
    }
}

const _: Txg = Txg(0);
