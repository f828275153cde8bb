//! Transactions: waiting for objects and space, changes out of order, features noted.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::rc::Rc;

use crate::common::*;
use base::{Error, ErrorKind, Nanos, ObjectId, Result, Txg};
use dmu::*;
use ondisk::object_type::ObjectType;
use ondisk::objset::ObjsetType;
use sim::Rng;

/// Transactions of two txgs change the same object alternately, which plans that do not name it
/// permit: the newest state follows the order of calls, and so does the disk.
#[test]
fn changes_out_of_order() {
    for seed in 1..25u64 {
        let sim = world(seed);
        sim.block_on(async {
            let mut r = Rng::new(seed);
            let env = Env::new(&sim, 1 << 20, features(), ObjsetProps::default());
            let os = env.create(ObjsetType::Other);
            let task = env.run(&os, None);
            let tx = TxPlan::new(&os).create(1).assign().await.unwrap();
            let dn = os.alloc(ObjSpec::new(ObjectType::PLAIN_FILE, 1024).indblkshift(12), &tx).await.unwrap();
            drop(tx);
            let mut want = vec![0u8; 16 << 10];
            let mut bonus = vec![];
            for _ in 0..12 {
                let old = TxPlan::new(&os).create(1).assign().await.unwrap();
                env.ctx.txg().kick();
                env.ctx.txg().wait_open(old.txg().next()).await.unwrap();
                let new = TxPlan::new(&os).create(1).assign().await.unwrap();
                assert!(new.txg() > old.txg());
                let mut old = Some(old);
                for _ in 0..14 {
                    let tx = if r.below(2) == 0 { old.as_ref().unwrap_or(&new) } else { &new };
                    let off = r.below(want.len() as u64) as usize;
                    let n = (1 + r.below(3000) as usize).min(want.len() - off);
                    match r.below(8) {
                        0..4 => {
                            let mut data = vec![0; n];
                            r.fill(&mut data);
                            dn.write(off as u64, &data, tx).await.unwrap();
                            want[off..off + n].copy_from_slice(&data);
                        }
                        4 => {
                            let blk = off / dn.block_size() as usize;
                            let size = dn.block_size() as usize;
                            dn.update_block(blk as u64, tx, |b| {
                                assert!(*b == want[blk * size..][..size]);
                                b.iter_mut().for_each(|x| *x ^= 0x5a);
                            })
                            .await
                            .unwrap();
                            want[blk * size..][..size].iter_mut().for_each(|x| *x ^= 0x5a);
                        }
                        5 => {
                            dn.free_range(off as u64, n as u64, tx).await.unwrap();
                            want[off..off + n].fill(0);
                        }
                        6 => {
                            bonus = vec![r.below(256) as u8; r.below(60) as usize];
                            dn.set_bonus(&bonus, tx).unwrap();
                        }
                        _ => {
                            dn.free_range(off as u64, u64::MAX, tx).await.unwrap();
                            want[off..].fill(0);
                            if dn.max_blkid() == 0 && off < 1024 {
                                dn.set_block_size(1024 << r.below(3), tx).unwrap();
                            }
                        }
                    }
                    if r.below(9) == 0 {
                        old = None;
                    }
                    let mut got = vec![1; want.len()];
                    dn.read(0, &mut got).await.unwrap();
                    assert!(got == want, "seed {seed}");
                    assert_eq!(dn.bonus()[..], bonus[..]);
                }
                drop(old);
                drop(new);
                if r.below(2) == 0 {
                    env.ctx.txg().wait_synced(Txg(0)).await.unwrap();
                }
            }
            env.stop(task).await;
            assert_eq!(env.ctx.txg().dirty(), 0);
            check(&env, &os).await;
            let again = Objset::open(env.ctx.clone(), 0, os.root_bp(), env.props, env.hooks(), false).await.unwrap();
            let dn = again.hold(dn.object()).await.unwrap();
            let mut got = vec![1; want.len()];
            dn.read(0, &mut got).await.unwrap();
            assert!(got == want, "seed {seed}");
            assert_eq!(dn.bonus()[..], bonus[..]);
        });
    }
}

/// A plan that names an object waits for transactions of older txgs that named it; others do not.
#[test]
fn an_object_belongs_to_one_txg_at_a_time() {
    let sim = world(3);
    sim.block_on(async {
        let env = Env::new(&sim, 1 << 20, features(), ObjsetProps::default());
        let os = env.create(ObjsetType::Other);
        let task = env.run(&os, None);
        let tx = TxPlan::new(&os).create(2).assign().await.unwrap();
        let (a, b) = (
            os.alloc(ObjSpec::new(ObjectType::PLAIN_FILE, 512), &tx).await.unwrap(),
            os.alloc(ObjSpec::new(ObjectType::PLAIN_FILE, 512), &tx).await.unwrap(),
        );
        drop(tx);
        let first = TxPlan::new(&os).write(&a, 0, 1).assign().await.unwrap();
        let same = TxPlan::new(&os).write(&a, 0, 1).assign().await.unwrap();
        assert_eq!(first.txg(), same.txg());
        env.ctx.txg().kick();
        env.ctx.txg().wait_open(first.txg().next()).await.unwrap();
        let other = TxPlan::new(&os).write(&b, 0, 1).assign().await.unwrap();
        assert!(other.txg() > first.txg());
        let ended = Rc::new(Cell::new(false));
        let (e, a2, os2) = (ended.clone(), a.clone(), os.clone());
        let waiter = env.rt.spawn("waiter", async move {
            let tx = TxPlan::new(&os2).bonus(&a2).assign().await.unwrap();
            e.set(true);
            tx.txg()
        });
        env.rt.sleep(Nanos::from_ms(50)).await;
        drop(first);
        env.rt.sleep(Nanos::from_ms(50)).await;
        assert!(!ended.get(), "one transaction of the older txg is left");
        drop(same);
        assert_eq!(waiter.await, other.txg());
        drop(other);
        env.stop(task).await;
    });
}

struct Gate {
    answers: RefCell<Vec<Option<ErrorKind>>>,
    asked: RefCell<Vec<(u64, TxSpace, Txg)>>,
    ended: Rc<Cell<u32>>,
    used: RefCell<Vec<(u64, Txg)>>,
    killed: RefCell<Vec<(u64, Txg)>>,
}
impl SpaceGate for Gate {
    fn reserve(&self, bytes: u64, kind: TxSpace, txg: Txg) -> Result<Reservation> {
        self.asked.borrow_mut().push((bytes, kind, txg));
        match self.answers.borrow_mut().pop().flatten() {
            Some(kind) => Err(Error::from(kind)),
            None => {
                let ended = self.ended.clone();
                Ok(Reservation(Some(Box::new(move || ended.set(ended.get() + 1)))))
            }
        }
    }
    fn will_use(&self, bytes: u64, txg: Txg) {
        self.used.borrow_mut().push((bytes, txg));
    }
    fn will_kill(&self, bytes: u64, txg: Txg) {
        self.killed.borrow_mut().push((bytes, txg));
    }
    fn take_log_block(&self, _bytes: u64, _txg: Txg) -> bool {
        true
    }
}

#[derive(Default, Debug)]
struct Features(RefCell<BTreeSet<&'static str>>);
impl FeatureUse for Features {
    fn activate(&self, guid: &'static str, _txg: Txg) {
        self.0.borrow_mut().insert(guid);
    }
    fn deactivate(&self, guid: &'static str, _txg: Txg) {
        self.0.borrow_mut().remove(guid);
    }
}

#[test]
fn space_and_features() {
    let sim = world(4);
    sim.block_on(async {
        let props = ObjsetProps {
            compression: codec::Compression { algo: codec::CompressAlgo::Zstd, level: 0 },
            checksum: codec::ChecksumAlgo::Sha512,
            ..ObjsetProps::default()
        };
        let env = Env::new(&sim, 1 << 20, features(), props);
        let gate = Rc::new(Gate {
            answers: RefCell::default(),
            asked: RefCell::default(),
            ended: Rc::default(),
            used: RefCell::default(),
            killed: RefCell::default(),
        });
        let used = Rc::new(Features::default());
        let hooks = ObjsetHooks { acct: env.acct.clone(), gate: Some(gate.clone()), feat: Some(used.clone()) };
        let os = Objset::create(env.ctx.clone(), 7, ObjsetType::Zfs, props, hooks, env.ctx.txg().open_txg());
        let task = env.run(&os, None);
        *gate.answers.borrow_mut() = vec![None, Some(ErrorKind::Restart)];
        let before = env.ctx.txg().open_txg();
        let tx = TxPlan::new(&os).create(1).write_new(10_000).assign().await.unwrap();
        assert_eq!(tx.txg(), before.next(), "the next txg was waited for");
        assert_eq!(gate.asked.borrow().len(), 2);
        let worst = |size, copies| env.zio.tree().worst_dsize(size, copies);
        // With 384 bytes for the entry of the block before in a deadlist.
        let (dnodes, data) = (worst(16384, 2), |size| worst(size, 1) + 384);
        assert_eq!(gate.asked.borrow()[1], (dnodes + data(10_000), TxSpace::Normal, tx.txg()));
        let spec = ObjSpec::new(ObjectType::PLAIN_FILE, 1 << 20).dnodesize(1024);
        let dn = os.alloc(spec, &tx).await.unwrap();
        dn.write(0, &vec![3; 200_000], &tx).await.unwrap();
        dn.write(77, &[4; 10], &tx).await.unwrap();
        dn.write(77, &[3; 10], &tx).await.unwrap();
        let txg = tx.txg();
        drop(tx);
        assert_eq!(gate.ended.get(), 1);
        let charged = gate.used.borrow().iter().filter(|(_, t)| *t == txg).map(|(b, _)| *b).collect::<Vec<_>>();
        let objset = worst(4096, 2) + 3 * worst(16384, 2) + 5 * worst(1024, 2) + 2 * worst(16384, 3);
        assert_eq!(
            charged,
            [objset, dnodes, data(1 << 20)],
            "the object set, a block of dnodes, one of data, each once"
        );
        for kind in [ErrorKind::NoSpace, ErrorKind::Quota] {
            *gate.answers.borrow_mut() = vec![Some(kind)];
            assert_eq!(TxPlan::new(&os).write(&dn, 0, 1).assign().await.err().unwrap().kind(), kind);
        }
        let tx = TxPlan::new(&os).free(&dn).net_free().assign().await.unwrap();
        assert_eq!(gate.asked.borrow().last().unwrap().1, TxSpace::NetFree);
        dn.free_range(0, u64::MAX, &tx).await.unwrap();
        assert_eq!(*gate.killed.borrow(), [(384, tx.txg())]);
        dn.write(0, &vec![3; 200_000], &tx).await.unwrap();
        drop(tx);
        env.stop(task).await;
        check(&env, &os).await;
        let want = [
            "org.freebsd:zstd_compress",
            "org.illumos:sha512",
            "org.open-zfs:large_blocks",
            "org.zfsonlinux:large_dnode",
        ];
        assert_eq!(*used.0.borrow(), BTreeSet::from(want));
        let os = Objset::open(env.ctx.clone(), 7, os.root_bp(), props, env.hooks(), true).await.unwrap();
        let dn = os.hold(dn.object()).await.unwrap();
        assert_eq!((dn.dnode_size(), dn.block_size()), (1024, 1 << 20));
        assert!(dn.read_block(0).await.unwrap()[..200_000].iter().all(|&b| b == 3));
        assert!(os.hold(ObjectId(dn.object().0 + 1)).await.is_err(), "inside a large dnode");
    });
}

/// A name of more than 255 bytes is for directories, and the dataset has the feature with the txg
/// of the first one.
#[test]
fn long_names_need_a_feature() {
    let sim = world(8);
    sim.block_on(async {
        let env = Env::new(&sim, 1 << 20, features(), ObjsetProps::default());
        let used = Rc::new(Features::default());
        let hooks = ObjsetHooks { acct: env.acct.clone(), gate: None, feat: Some(used.clone()) };
        let os = Objset::create(env.ctx.clone(), 7, ObjsetType::Zfs, env.props, hooks, env.ctx.txg().open_txg());
        let task = env.run(&os, None);
        let tx = TxPlan::new(&os).create(2).assign().await.unwrap();
        let dir = zap::create(&os, ObjectType::DIRECTORY, 0, &tx).await.unwrap();
        let other = zap::create(&os, ObjectType::OTHER_ZAP, 0, &tx).await.unwrap();
        zap::add_u64(&dir, &[b'x'; 255], 1, &tx).await.unwrap();
        for (dn, len) in [(&dir, 1024), (&other, 256), (&other, 1023)] {
            let e = zap::add_u64(dn, &vec![b'x'; len], 1, &tx).await.unwrap_err();
            assert_eq!(e.kind(), ErrorKind::NameTooLong);
        }
        drop(tx);
        env.ctx.txg().wait_synced(Txg(0)).await.unwrap();
        assert!(used.0.borrow().is_empty(), "{used:?}");
        let tx = TxPlan::new(&os).zap(&dir).assign().await.unwrap();
        zap::add_u64(&dir, &[b'x'; 256], 2, &tx).await.unwrap();
        zap::add_u64(&dir, &[b'x'; 1023], 3, &tx).await.unwrap();
        assert!(used.0.borrow().is_empty(), "the txg is open");
        drop(tx);
        env.ctx.txg().wait_synced(Txg(0)).await.unwrap();
        assert_eq!(*used.0.borrow(), BTreeSet::from(["org.zfsonlinux:longname"]));
        for (len, want) in [(255, Some(1)), (256, Some(2)), (1023, Some(3)), (1022, None)] {
            assert_eq!(zap::lookup_u64(&dir, &vec![b'x'; len]).await.unwrap(), want);
        }
        env.stop(task).await;
    });
}

/// With the tunable and the feature a micro ZAP of a dataset grows to 1 MiB, and the dataset has
/// the feature once a block has more than 128 KiB.
#[test]
fn large_micro_zaps_need_a_feature() {
    let sim = world(10);
    sim.block_on(async {
        for (large_microzap, dataset, tunable, most) in [
            (true, true, 1 << 20, 16_383),
            (true, true, 256 << 10, 4095),
            (true, true, 128 << 10, 2047),
            (false, true, 1 << 20, 2047),
            (true, false, 1 << 20, 2047),
            (true, true, 4096, 63),
        ] {
            let features = DmuFeatures { large_microzap, ..features() };
            let env = Env::new(&sim, 8 << 20, features, ObjsetProps::default());
            env.ctx.set_tunables(DmuTunables { zap_micro_max: tunable, ..env.ctx.tunables() });
            let used = Rc::new(Features::default());
            let feat = dataset.then(|| used.clone() as Rc<dyn FeatureUse>);
            let hooks = ObjsetHooks { acct: env.acct.clone(), gate: None, feat };
            let os = Objset::create(env.ctx.clone(), 7, ObjsetType::Zfs, env.props, hooks, env.ctx.txg().open_txg());
            let task = env.run(&os, None);
            let tx = TxPlan::new(&os).create(1).assign().await.unwrap();
            let dir = zap::create(&os, ObjectType::DIRECTORY, 0, &tx).await.unwrap();
            for i in 0..2047.min(most) {
                zap::add_int(&dir, i, i, &tx).await.unwrap();
            }
            drop(tx);
            env.ctx.txg().wait_synced(Txg(0)).await.unwrap();
            assert!(used.0.borrow().is_empty(), "{used:?}");
            let tx = TxPlan::new(&os).zap(&dir).assign().await.unwrap();
            for i in 2047.min(most)..most {
                zap::add_int(&dir, i, i, &tx).await.unwrap();
            }
            drop(tx);
            env.ctx.txg().wait_synced(Txg(0)).await.unwrap();
            assert!(!zap::is_fat(&dir).await.unwrap(), "{most}");
            assert_eq!(u64::from(dir.block_size()), (most + 1) * 64);
            let want: &[&str] = match most > 2047 {
                true => &["com.klarasystems:large_microzap", "org.open-zfs:large_blocks"],
                false => &[],
            };
            assert!(used.0.borrow().iter().eq(want), "{used:?}");
            let tx = TxPlan::new(&os).zap(&dir).assign().await.unwrap();
            zap::add_int(&dir, most, most, &tx).await.unwrap();
            drop(tx);
            assert!(zap::is_fat(&dir).await.unwrap());
            for i in (0..=most).step_by(17) {
                assert_eq!(zap::lookup_int(&dir, i).await.unwrap(), Some(i));
            }
            env.stop(task).await;
        }
    });
}
