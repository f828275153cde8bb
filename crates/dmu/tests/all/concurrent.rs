//! Many tasks at once: writes to parts of one block, readers during the sync, objects made and
//! freed in quick txgs.

use std::cell::{Cell, RefCell};

use crate::common::*;
use base::{Nanos, ObjectId, Txg};
use dmu::*;
use ondisk::object_type::ObjectType;
use ondisk::objset::ObjsetType;
use rt::join::join_all;
use sim::Rng;

/// A change of a large block whose content is shared, or on disk, copies it in the CPU pool: no
/// turn is too long (`sim` asserts it). Changes of other tasks meanwhile are not lost.
#[test]
fn large_shared_blocks_are_copied_in_the_pool() {
    const SIZE: u64 = 16 << 20;
    let sim = world(7);
    sim.block_on(async {
        let env = Env::new(&sim, 64 << 20, features(), ObjsetProps::default());
        let os = env.create(ObjsetType::Other);
        let task = env.run(&os, None);
        let tx = TxPlan::new(&os).create(1).write_new(SIZE).assign().await.unwrap();
        let spec = ObjSpec::new(ObjectType::PLAIN_FILE, SIZE as u32 - 512);
        let obj = os.alloc_at(ObjectId(5), spec, &tx).await.unwrap();
        obj.write(0, &vec![7; SIZE as usize - 512], &tx).await.unwrap();
        let old = obj.read_block(0).await.unwrap();
        obj.resize_block(SIZE as u32, &tx).await.unwrap();
        drop(tx);
        assert!(old.len() as u64 == SIZE - 512 && old.iter().all(|&b| b == 7));
        for on_disk in [false, true] {
            if on_disk {
                env.ctx.txg().wait_synced(Txg(0)).await.unwrap();
            }
            let before = sim.cpu_busy();
            let shared = obj.read_block(0).await.unwrap();
            let change = async |n: u64| {
                let tx = TxPlan::new(&os).write(&obj, n * 512, 512).assign().await.unwrap();
                obj.write(n * 512, &[n as u8 + u8::from(on_disk) * 100; 512], &tx).await.unwrap();
            };
            join_all((0..4).map(change).collect()).await;
            assert!(sim.cpu_busy().since(before) >= rt::cost::COPY.cost(SIZE));
            assert!(shared[4 * 512..][..512] == [7; 512] && shared[0] == if on_disk { 0 } else { 7 });
            let now = obj.read_block(0).await.unwrap();
            for n in 0..5u8 {
                let want = if n == 4 { 7 } else { n + u8::from(on_disk) * 100 };
                assert_eq!(now[usize::from(n) * 512..][..512], [want; 512]);
            }
        }
        env.stop(task).await;
    });
}

/// Tasks own every eighth piece of 512 bytes of a file of 16 KiB blocks: all changes are
/// read-modify-writes of shared blocks, most of them of blocks on disk.
#[test]
fn pieces_of_shared_blocks() {
    for seed in 1..5u64 {
        let sim = world(seed);
        sim.block_on(async {
            let mut env = Env::new(&sim, 300 << 10, features(), ObjsetProps::default());
            let mut os = env.create(ObjsetType::Other);
            let mut want = vec![0u8; 1 << 20];
            for round in 0..4 {
                let task = env.run(&os, None);
                {
                    let obj = if round == 0 {
                        let tx = TxPlan::new(&os).create(1).assign().await.unwrap();
                        os.alloc_at(ObjectId(5), ObjSpec::new(ObjectType::PLAIN_FILE, 16384).indblkshift(12), &tx)
                            .await
                            .unwrap()
                    } else {
                        os.hold(ObjectId(5)).await.unwrap()
                    };
                    let shared = RefCell::new(&mut want);
                    let (os, env, obj, shared) = (&os, &env, &obj, &shared);
                    let stop = Cell::new(false);
                    let stop = &stop;
                    let writers = (0..8u64).map(async |w| {
                        let mut r = Rng::stream(seed, w + 100 * round);
                        for _ in 0..60 {
                            let off = (r.below((1 << 20) / 4096) * 8 + w) * 512;
                            let mut data = [0; 512];
                            r.fill(&mut data);
                            let len = 1 + r.below(512) as usize;
                            if r.below(10) == 0 {
                                let tx = TxPlan::new(os).free(obj).assign().await.unwrap();
                                obj.free_range(off, 512, &tx).await.unwrap();
                                shared.borrow_mut()[off as usize..][..512].fill(0);
                            } else {
                                let tx = TxPlan::new(os).write(obj, off, len as u64).assign().await.unwrap();
                                obj.write(off, &data[..len], &tx).await.unwrap();
                                shared.borrow_mut()[off as usize..][..len].copy_from_slice(&data[..len]);
                            }
                            if r.below(6) == 0 {
                                env.ctx.txg().kick();
                            }
                            if r.below(3) == 0 {
                                env.rt.sleep(Nanos::from_us(r.below(900))).await;
                            }
                            let mut buf = vec![0; 512];
                            obj.read(off, &mut buf).await.unwrap();
                            assert_eq!(
                                buf,
                                shared.borrow()[off as usize..][..512],
                                "writer {w} reads what it wrote at {off}"
                            );
                        }
                    });
                    let all = async {
                        join_all(writers.collect()).await;
                        stop.set(true);
                    };
                    let reader = async {
                        while !stop.get() {
                            let parts = obj.read_range(0, 1 << 20).await.unwrap();
                            assert_eq!(parts.iter().map(|p| p.len()).sum::<usize>(), 1 << 20);
                            env.rt.sleep(Nanos::from_us(300)).await;
                        }
                    };
                    rt::join::join2(all, reader).await;
                    env.stop(task).await;
                    assert_eq!(env.ctx.txg().dirty(), 0);
                    check(env, os).await;
                    let got: Vec<u8> =
                        obj.read_range(0, 1 << 20).await.unwrap().iter().flat_map(|b| b.to_vec()).collect();
                    assert!(got == **shared.borrow());
                    let os2 =
                        Objset::open(env.ctx.clone(), 0, os.root_bp(), env.props, env.hooks(), false).await.unwrap();
                    let dn = os2.hold(ObjectId(5)).await.unwrap();
                    let got: Vec<u8> =
                        dn.read_range(0, 1 << 20).await.unwrap().iter().flat_map(|b| b.to_vec()).collect();
                    assert!(got == **shared.borrow());
                    assert!(dn.write(0, b"x", &Tx::syncing(Txg(9))).await.is_err(), "opened read-only");
                }
                os = env.reopen(os).await;
            }
        });
    }
}

/// Many tasks make and free objects; numbers are never allocated twice, and freed ones are used
/// again.
#[test]
fn object_numbers() {
    let sim = world(9);
    sim.block_on(async {
        let env = Env::new(&sim, 8 << 20, features(), ObjsetProps::default());
        let os = env.create(ObjsetType::Other);
        let task = env.run(&os, None);
        let live: RefCell<std::collections::BTreeSet<u64>> = RefCell::default();
        let (os, env2, live) = (&os, &env, &live);
        let tasks = (0..6u64).map(async |w| {
            let mut r = Rng::stream(9, w);
            let mut mine = Vec::new();
            for _ in 0..400 {
                if r.below(5) < 3 {
                    let tx = TxPlan::new(os).create(1).assign().await.unwrap();
                    let spec = ObjSpec::new(ObjectType::PLAIN_FILE, 512).dnodesize(512 << r.below(3));
                    let dn = os.alloc(spec, &tx).await.unwrap();
                    assert!(live.borrow_mut().insert(dn.object().0), "{dn:?} is in use");
                    dn.write(0, b"something", &tx).await.unwrap();
                    mine.push(dn.object());
                } else if !mine.is_empty() {
                    let obj: ObjectId = mine.swap_remove(r.below(mine.len() as u64) as usize);
                    let dn = os.hold(obj).await.unwrap();
                    let tx = TxPlan::new(os).free(&dn).assign().await.unwrap();
                    os.free(obj, &tx).await.unwrap();
                    live.borrow_mut().remove(&obj.0);
                }
                if r.below(20) == 0 {
                    env2.ctx.txg().kick();
                    env2.rt.sleep(Nanos::from_ms(r.below(20))).await;
                }
            }
        });
        join_all(tasks.collect()).await;
        env.stop(task).await;
        let w = check(&env, os).await;
        assert_eq!(w.objects, live.borrow().len() as u64);
        assert_eq!(os.used_objects(), w.objects);
        let top = *live.borrow().last().unwrap();
        assert!(top < 4 * 6 * 400, "numbers stay dense: {top}");
    });
}

/// A file of many terabytes with a few blocks is freed without visiting its holes, and one with
/// many blocks without holding them in memory.
#[test]
fn freeing_what_is_huge() {
    let sim = world(11);
    sim.block_on(async {
        let env = Env::new(&sim, 4 << 20, features(), ObjsetProps::default());
        let os = env.create(ObjsetType::Other);
        let task = env.run(&os, None);
        let tx = TxPlan::new(&os).create(2).assign().await.unwrap();
        let sparse = os.alloc(ObjSpec::new(ObjectType::PLAIN_FILE, 512).indblkshift(12), &tx).await.unwrap();
        let dense = os.alloc(ObjSpec::new(ObjectType::PLAIN_FILE, 512).indblkshift(12), &tx).await.unwrap();
        for i in 0..50u64 {
            sparse.write((i * i) << 46, b"far out", &tx).await.unwrap();
        }
        dense.write(0, &vec![0xa5; 2 << 20], &tx).await.unwrap();
        drop(tx);
        env.ctx.txg().wait_synced(Txg(0)).await.unwrap();
        let w = check(&env, &os).await;
        assert!(w.max_level >= 9, "{}", w.max_level);
        let tx = TxPlan::new(&os).free(&sparse).free(&dense).assign().await.unwrap();
        assert_eq!(sparse.next_data(1 << 46).await.unwrap(), Some(1 << 46));
        assert_eq!(sparse.next_data((1 << 46) + 512).await.unwrap(), Some(4 << 46));
        sparse.free_range(1 << 46, 2000 << 46, &tx).await.unwrap();
        assert_eq!(sparse.next_data(512).await.unwrap(), Some((45 * 45) << 46));
        dense.free_range(700, (2 << 20) - 1400, &tx).await.unwrap();
        drop(tx);
        env.ctx.txg().wait_synced(Txg(0)).await.unwrap();
        check(&env, &os).await;
        assert_eq!(sparse.next_data(512).await.unwrap(), Some((45 * 45) << 46));
        let tx = TxPlan::new(&os).free(&sparse).free(&dense).assign().await.unwrap();
        os.free(dense.object(), &tx).await.unwrap();
        sparse.free_range(0, u64::MAX, &tx).await.unwrap();
        drop(tx);
        env.stop(task).await;
        let w = check(&env, &os).await;
        assert_eq!(w.objects, 1);
        assert_eq!((sparse.used(), sparse.max_blkid()), (0, 0));
    });
}

/// A client faster than the disk is slowed down and the limit holds; big blocks go through the
/// costly path.
#[test]
fn the_dirty_limit_holds() {
    let sim = world(12);
    sim.block_on(async {
        let props = ObjsetProps {
            compression: codec::Compression { algo: codec::CompressAlgo::Gzip6, level: 0 },
            checksum: codec::ChecksumAlgo::Sha256,
            ..ObjsetProps::default()
        };
        let env = Env::new(&sim, 16 << 20, features(), props);
        let os = env.create(ObjsetType::Other);
        let tunables = txg::TxgTunables { dirty_data_max: 4 << 20, ..txg::TxgTunables::for_memory(1 << 30) };
        env.ctx.txg().set_tunables(tunables);
        let task = env.run(&os, None);
        let tx = TxPlan::new(&os).create(1).assign().await.unwrap();
        let dn = os.alloc(ObjSpec::new(ObjectType::PLAIN_FILE, 128 << 10), &tx).await.unwrap();
        drop(tx);
        let mut r = Rng::new(5);
        for i in 0..160u64 {
            let mut data = vec![0; 128 << 10];
            r.fill(&mut data[..64 << 10]);
            data[..8].copy_from_slice(&i.to_le_bytes());
            let tx = TxPlan::new(&os).write(&dn, i << 17, 128 << 10).assign().await.unwrap();
            dn.write(i << 17, &data, &tx).await.unwrap();
            assert!(env.ctx.txg().dirty() <= (4 << 20) + (128 << 10));
        }
        env.stop(task).await;
        assert_eq!(env.ctx.txg().dirty(), 0);
        check(&env, &os).await;
        for i in 0..160u64 {
            assert_eq!(dn.read_block(i).await.unwrap()[..8], i.to_le_bytes());
        }
    });
}

/// Sequential readers have their next blocks read ahead: data, the blocks of pointers, or nothing.
#[test]
fn what_is_read_ahead_of_a_sequential_reader() {
    // 32 pointers in a block: the reader comes near the end of those of the first one.
    const BLOCK: u64 = 4096;
    for prefetch in [Prefetch::None, Prefetch::Metadata, Prefetch::All] {
        let sim = world(3);
        sim.block_on(async {
            let mut env = Env::new(&sim, 64 << 20, features(), ObjsetProps { prefetch, ..ObjsetProps::default() });
            let os = env.create(ObjsetType::Other);
            let task = env.run(&os, None);
            let mut data = vec![0; 96 * BLOCK as usize];
            Rng::new(1).fill(&mut data);
            let tx = TxPlan::new(&os).create(1).write_new(data.len() as u64).assign().await.unwrap();
            let spec = ObjSpec::new(ObjectType::PLAIN_FILE, BLOCK as u32).indblkshift(12);
            os.alloc_at(ObjectId(5), spec, &tx).await.unwrap().write(0, &data, &tx).await.unwrap();
            drop(tx);
            env.stop(task).await;
            let os = env.reopen(os).await;
            let obj = os.hold(ObjectId(5)).await.unwrap();
            env.disk.watch_reads();
            for n in 24..30 {
                let read = obj.read_range(n * BLOCK, BLOCK).await.unwrap();
                assert_eq!(read[0][..], data[(n * BLOCK) as usize..][..BLOCK as usize]);
                env.rt.sleep(Nanos::from_ms(100)).await;
            }
            let stats = os.ctx().read_ahead_stats();
            assert_eq!(
                (stats.hits + stats.misses, stats.misses <= 1),
                if prefetch == Prefetch::None { (0, true) } else { (6, true) }
            );
            assert_eq!(stats.issued > 0, prefetch != Prefetch::None, "{stats:?}");
            let reads = env.disk.take_reads();
            let was_read = |bp: ondisk::blkptr::Blkptr| {
                let mut places = bp.dvas().map(|d| d.offset() + (4 << 20));
                places.any(|at| reads.iter().any(|&(off, len)| off <= at && at < off + len))
            };
            assert!(was_read(obj.block_pointer(24).await.unwrap()), "{reads:?}");
            let ahead = (was_read(obj.pointer_at(1, 1).await.unwrap()), was_read(obj.block_pointer(40).await.unwrap()));
            let want = (prefetch != Prefetch::None, prefetch == Prefetch::All);
            assert_eq!(ahead, want, "{prefetch:?}: pointers and data");
        });
    }
}
