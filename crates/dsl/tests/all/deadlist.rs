//! Deadlists against a plain map from key to pointers.

use std::collections::BTreeMap;
use std::rc::Rc;

use crate::common::World;
use base::{Txg, VdevId};
use dmu::Tx;
use dmu::bpobj::{self, Bpobj};
use dsl::DslPool;
use dsl::core::Space;
use dsl::deadlist::Deadlist;
use ondisk::blkptr::{Blkptr, Dva};
use ondisk::object_type::ObjectType;
use sim::Rng;

/// The pointers under each key.
type Model = BTreeMap<u64, Vec<Blkptr>>;

/// The pointer of a block born in `txg`; the block itself does not exist.
fn block(rng: &mut Rng, txg: u64) -> Blkptr {
    let (size, place) = (4096 * (1 + rng.below(8)), rng.below(10_000));
    let mut bp = Blkptr::hole();
    bp.set_dva(0, Dva::new(VdevId(0), place * 4096, size, false));
    bp.set_lsize(2 * size);
    bp.set_psize(size);
    bp.set_otype(ObjectType::PLAIN_FILE);
    bp.set_little_endian(true);
    match rng.below(3) {
        // Rewritten: its content is older than its place, which alone tells who refers to it.
        0 => bp.set_rewritten(Txg(1 + rng.below(txg)), Txg(txg)),
        _ => bp.set_birth(Txg(txg), Txg(txg)),
    }
    bp
}

fn space<'a>(bps: impl IntoIterator<Item = &'a Blkptr>, pool: &DslPool) -> Space {
    let mut sum = Space::default();
    bps.into_iter().for_each(|bp| sum.add(Space::of(bp, &pool.core().zio)));
    sum
}

fn put(model: &mut Model, bp: Blkptr) {
    let (_, list) = model.range_mut(..bp.birth().0).next_back().unwrap();
    list.push(bp);
}

async fn compare(list: &Deadlist, model: &Model, pool: &DslPool, rng: &mut Rng) {
    assert_eq!(list.keys().collect::<Vec<_>>(), model.keys().copied().collect::<Vec<_>>());
    assert_eq!(list.space().await.unwrap(), space(model.values().flatten(), pool));
    let (a, b) = (rng.below(60), rng.below(60));
    let want: Vec<&Blkptr> = if a < b { model.range(a..b).flat_map(|(_, l)| l).collect() } else { Vec::new() };
    assert_eq!(list.space_range(pool, a, b).await.unwrap(), space(want, pool), "{a}..{b}");
}

/// One txg of changes.
async fn change(
    pool: Rc<DslPool>,
    tx: Rc<Tx>,
    object: Option<base::ObjectId>,
    mut model: Model,
    seed: u64,
) -> (base::ObjectId, Model) {
    let mut rng = Rng::new(seed);
    let mut list = match object {
        Some(object) => Deadlist::open(pool.mos(), object).await.unwrap(),
        None => Deadlist::create(&pool, model.keys().copied(), &tx).await.unwrap(),
    };
    compare(&list, &model, &pool, &mut rng).await;
    for _ in 0..6 {
        match rng.below(6) {
            0 | 1 => {
                let bps: Vec<Blkptr> = (0..rng.below(5))
                    .map(|_| {
                        let txg = 1 + rng.below(60);
                        block(&mut rng, txg)
                    })
                    .collect();
                list.insert(&pool, &bps, &tx).await.unwrap();
                bps.into_iter().for_each(|bp| put(&mut model, bp));
            }
            2 => {
                let key = rng.below(60);
                list.add_key(&pool, key, &tx).await.unwrap();
                model.entry(key).or_default();
            }
            3 => {
                // The first key stays: nothing could take its pointers.
                let key = rng.below(60);
                list.remove_key(&pool, key, &tx).await.unwrap();
                if model.range(..key).next().is_some()
                    && let Some(bps) = model.remove(&key)
                {
                    model.range_mut(..key).next_back().unwrap().1.extend(bps);
                }
            }
            4 => {
                let keys = [0, 1 + rng.below(59)];
                let mut other = Deadlist::create(&pool, keys, &tx).await.unwrap();
                let bps: Vec<Blkptr> = [1 + rng.below(60), 1 + rng.below(60)].map(|txg| block(&mut rng, txg)).to_vec();
                other.insert(&pool, &bps, &tx).await.unwrap();
                list.merge(&pool, other, &tx).await.unwrap();
                // A list moves as a whole, to the largest key that is not above its own.
                for bp in bps {
                    let key = *keys.iter().filter(|k| **k < bp.birth().0).max().unwrap();
                    model.range_mut(..=key).next_back().unwrap().1.push(bp);
                }
            }
            _ => {
                let min = 1 + rng.below(80);
                let to = bpobj::create(pool.mos(), ondisk::bpobj::BPOBJ_BLKSZ, &tx).await.unwrap();
                let freed = Bpobj::open(pool.mos(), to).await.unwrap();
                let moved = list.move_to(&pool, &freed, min, &tx).await.unwrap();
                let gone: Vec<Blkptr> = model.split_off(&min).into_values().flatten().collect();
                assert_eq!(moved, space(&gone, &pool));
                assert_eq!(Space::of_list(freed.space().unwrap()), moved);
                drop(freed);
                bpobj::free(pool.mos(), to, &tx).await.unwrap();
            }
        }
        compare(&list, &model, &pool, &mut rng).await;
    }
    (list.object, model)
}

/// Every change of a list, over several txgs and with a new handle in each.
#[test]
fn lists_hold_what_a_map_holds() {
    for seed in 0..6 {
        let world = World::new(seed, 1);
        world.sim.block_on(async {
            let pool = world.create().await;
            let mut object = None;
            let mut model: Model = [(0, Vec::new()), (10, Vec::new()), (30, Vec::new())].into();
            for round in 0..12 {
                let before = model.clone();
                let run = move |dsl: Rc<DslPool>,
                                tx: Rc<Tx>|
                      -> rt::LocalBoxFuture<'static, base::Result<(base::ObjectId, Model)>> {
                    Box::pin(async move { Ok(change(dsl, tx, object, before, seed * 100 + round).await) })
                };
                let (new, after) = pool.dsl().sync_task(run).await.unwrap();
                (object, model) = (Some(new), after);
            }
            let object = object.unwrap();
            let free = move |dsl: Rc<DslPool>, tx: Rc<Tx>| -> rt::LocalBoxFuture<'static, base::Result<()>> {
                Box::pin(async move { Deadlist::open(dsl.mos(), object).await?.free(&dsl, &tx).await })
            };
            pool.dsl().sync_task(free).await.unwrap();
            assert!(pool.dsl().mos().hold(object).await.is_err(), "the list is gone");
            pool.export().await.unwrap();
        });
    }
}

#[test]
fn a_block_older_than_every_key_is_damage() {
    let world = World::new(1, 1);
    world.sim.block_on(async {
        let pool = world.create().await;
        let task = |dsl: Rc<DslPool>, tx: Rc<Tx>| -> rt::LocalBoxFuture<'static, base::Result<()>> {
            Box::pin(async move {
                let mut rng = Rng::new(1);
                let mut list = Deadlist::create(&dsl, [10, 20], &tx).await?;
                list.insert(&dsl, &[block(&mut rng, 11)], &tx).await?;
                assert!(list.insert(&dsl, &[block(&mut rng, 10)], &tx).await.is_err());
                list.free(&dsl, &tx).await
            })
        };
        pool.dsl().sync_task(task).await.unwrap();
        pool.export().await.unwrap();
    });
}
