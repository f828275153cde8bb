//! Early writes of blocks: the content on disk, and the use of their DVAs.

use crate::common::*;
use bdev::{Buf, Bytes};
use codec::ChecksumAlgo;
use dmu::*;
use ondisk::blkptr::Blkptr;
use ondisk::object_type::ObjectType;
use ondisk::objset::ObjsetType;
use rt::LocalBoxFuture;
use sim::{OpKind, Rng};
use zio::{DedupMode, Prio, WriteDone, ZioOpts};

const SIZE: u32 = 64 << 10;
const LEN: usize = SIZE as usize;

fn noise(seed: u64, len: usize) -> Bytes {
    let mut buf = Buf::for_overwrite(len);
    Rng::new(seed).fill(&mut buf);
    buf.freeze()
}

struct Case {
    env: Env,
    os: Objset,
    dn: Dnode,
    task: Option<rt::JoinHandle<()>>,
}

impl Case {
    /// A pool with one object of four blocks, on disk.
    async fn new(sim: &sim::Sim, props: ObjsetProps) -> Case {
        let env = Env::new(sim, 64 << 20, features(), props);
        let os = env.create(ObjsetType::Other);
        let task = Some(env.run(&os, None));
        let tx = TxPlan::new(&os).create(1).write_new(4 * u64::from(SIZE)).assign().await.unwrap();
        let dn = os.alloc(ObjSpec::new(ObjectType::PLAIN_FILE, SIZE), &tx).await.unwrap();
        dn.write(0, &noise(1, 4 * LEN), &tx).await.unwrap();
        drop(tx);
        env.ctx.txg().wait_synced(base::Txg(0)).await.unwrap();
        Case { env, os, dn, task }
    }
    async fn write(&self, blkid: u64, data: &[u8]) {
        let tx = TxPlan::new(&self.os).write(&self.dn, blkid * u64::from(SIZE), u64::from(SIZE)).assign().await;
        self.dn.write(blkid * u64::from(SIZE), data, &tx.unwrap()).await.unwrap();
    }
    async fn store(&self, blkid: u64) -> (Blkptr, WriteDone) {
        let data = self.dn.read_block(blkid).await.unwrap();
        self.dn.store_early(blkid, data, self.env.ctx.txg().hold()).await.unwrap()
    }
    /// Syncs all changes and compares the DVAs with the allocated ones. Returns the pointers of the
    /// object's blocks.
    async fn end(&mut self) -> Vec<Blkptr> {
        self.env.stop(self.task.take().unwrap()).await;
        check(&self.env, &self.os).await;
        let phys = self.dn.committed();
        let mut all: Vec<Blkptr> = phys.bps().to_vec();
        for _ in 1..phys.nlevels {
            let mut below = Vec::new();
            for bp in all.into_iter().filter(|bp| !bp.is_hole()) {
                let block = self.env.zio.read(&bp, Prio::SyncRead).await.unwrap();
                below.extend(Blkptr::iter_block(&block));
            }
            all = below;
        }
        all
    }
}

#[test]
fn what_was_stored_is_not_written_again() {
    let sim = world(1);
    sim.block_on(async {
        let mut c = Case::new(&sim, ObjsetProps::default()).await;
        let before = c.env.disk.counters().write_bytes;
        let mut stored = Vec::new();
        for blkid in 0..32 {
            c.write(blkid, &noise(50 + blkid, LEN)).await;
            let (bp, done) = c.store(blkid).await;
            done.await.unwrap();
            // Once more for another record: the same place.
            assert_eq!(c.store(blkid).await.0, bp);
            stored.push(bp);
        }
        assert_eq!(c.end().await[..32], stored[..]);
        let written = c.env.disk.counters().write_bytes - before;
        let data = 32 * u64::from(SIZE);
        assert!(written < data + data / 4, "{written} bytes for {data}");
        for blkid in 0..32 {
            assert!(c.dn.read_block(blkid).await.unwrap() == noise(50 + blkid, LEN));
        }
    });
}

#[test]
fn a_block_that_changes_after_it_was_stored_is_written_by_the_sync() {
    type Change = for<'a> fn(&'a Case) -> LocalBoxFuture<'a, ()>;
    let changes: [(&str, Change); 6] = [
        ("overwritten", |c| Box::pin(async { c.write(2, &noise(9, LEN)).await })),
        ("changed in part", |c| Box::pin(async { c.write(2, b"abc").await })),
        ("punched", |c| {
            Box::pin(async {
                let tx = TxPlan::new(&c.os).free(&c.dn).assign().await.unwrap();
                c.dn.free_range(2 * u64::from(SIZE), u64::from(SIZE), &tx).await.unwrap();
            })
        }),
        ("cut", |c| {
            Box::pin(async {
                let tx = TxPlan::new(&c.os).free(&c.dn).assign().await.unwrap();
                c.dn.free_range(2 * u64::from(SIZE) + 100, u64::MAX, &tx).await.unwrap();
            })
        }),
        ("cut and written", |c| {
            Box::pin(async {
                let tx = TxPlan::new(&c.os).free(&c.dn).assign().await.unwrap();
                c.dn.free_range(0, u64::MAX, &tx).await.unwrap();
                drop(tx);
                c.write(2, &noise(10, LEN)).await;
            })
        }),
        ("freed", |c| {
            Box::pin(async {
                let tx = TxPlan::new(&c.os).free(&c.dn).assign().await.unwrap();
                c.os.free(c.dn.object(), &tx).await.unwrap();
            })
        }),
    ];
    for (what, change) in changes {
        for early in [true, false] {
            let sim = world(2);
            sim.block_on(async {
                let mut c = Case::new(&sim, ObjsetProps::default()).await;
                let data = noise(8, LEN);
                c.write(2, &data).await;
                // The change comes after the block has its place, or while it is stored.
                let content = c.dn.read_block(2).await.unwrap();
                let (dn, hold) = (c.dn.clone(), c.env.ctx.txg().hold());
                let task = c.env.rt.spawn("early", async move { dn.store_early(2, content, hold).await.unwrap() });
                let stored = if early {
                    let out = task.await;
                    change(&c).await;
                    out
                } else {
                    change(&c).await;
                    task.await
                };
                stored.1.await.unwrap();
                // A log record that names it counts until the txg is on disk.
                assert!(c.env.zio.read(&stored.0, Prio::SyncRead).await.unwrap() == data, "{what}");
                assert!(c.env.ctx.txg().last_synced() < stored.0.birth());
                if what == "freed" {
                    c.env.stop(c.task.take().unwrap()).await;
                    check(&c.env, &c.os).await;
                    return;
                }
                let bps = c.end().await;
                assert!(!bps.contains(&stored.0), "{what}");
            });
        }
    }
}

#[test]
fn the_version_of_each_txg_has_its_own_place() {
    let sim = world(3);
    sim.block_on(async {
        let mut c = Case::new(&sim, ObjsetProps::default()).await;
        c.write(1, &noise(20, LEN)).await;
        let (first, done) = c.store(1).await;
        done.await.unwrap();
        // The txg closes, but cannot sync: the block is written in the next one meanwhile.
        let held = c.env.ctx.txg().hold();
        c.env.ctx.txg().kick();
        c.env.ctx.txg().wait_open(held.txg.next()).await.unwrap();
        // Stored already, whatever txg is open now.
        assert_eq!(c.store(1).await.0, first);
        c.write(1, &noise(21, LEN)).await;
        let (second, done) = c.store(1).await;
        done.await.unwrap();
        assert!(second.birth() == first.birth().next() && first.birth() == held.txg);
        let txg = held.txg;
        drop(held);
        c.env.ctx.txg().wait_synced(txg).await.unwrap();
        assert_eq!(c.end().await[1], second);
        assert!(c.dn.read_block(1).await.unwrap() == noise(21, LEN));
    });
}

#[test]
fn an_object_that_an_older_txg_frees_keeps_nothing() {
    let sim = world(4);
    sim.block_on(async {
        let c = Case::new(&sim, ObjsetProps::default()).await;
        let old = TxPlan::new(&c.os).create(1).assign().await.unwrap();
        c.env.ctx.txg().kick();
        c.env.ctx.txg().wait_open(old.txg().next()).await.unwrap();
        c.write(0, &noise(30, LEN)).await;
        let (bp, done) = c.store(0).await;
        done.await.unwrap();
        assert_eq!(bp.birth(), old.txg().next());
        c.os.free(c.dn.object(), &old).await.unwrap();
        drop(old);
        c.env.stop(c.task.unwrap()).await;
        check(&c.env, &c.os).await;
    });
}

#[test]
fn what_no_device_took_is_written_by_the_sync() {
    let sim = world(5);
    sim.block_on(async {
        let mut c = Case::new(&sim, ObjsetProps::default()).await;
        c.write(3, &noise(40, LEN)).await;
        c.env.disk.fail_nth(Some(OpKind::Write), 0);
        let (bp, done) = c.store(3).await;
        assert!(done.await.is_err());
        // The next record does not name it.
        let (again, done) = c.store(3).await;
        assert!(again != bp);
        done.await.unwrap();
        let bps = c.end().await;
        assert!(bps[3] != bp);
        assert!(c.env.zio.read(&bps[3], Prio::SyncRead).await.unwrap() == noise(40, LEN));
    });
}

#[test]
fn holes_and_tiny_blocks_are_stored_in_their_pointers() {
    let sim = world(6);
    sim.block_on(async {
        let compression = codec::Compression { algo: codec::CompressAlgo::Zstd, level: 3 };
        let mut c = Case::new(&sim, ObjsetProps { compression, ..ObjsetProps::default() }).await;
        c.write(0, &vec![0; LEN]).await;
        c.write(1, &vec![7; LEN / 2]).await;
        c.write(2, &vec![7; LEN]).await;
        assert!(c.store(0).await.0.is_hole());
        let part = c.store(1).await.0;
        let tiny = c.store(2).await.0;
        assert!(tiny.is_embedded() && !part.is_embedded());
        let bps = c.end().await;
        assert!(bps[0].is_hole() && bps[0].birth() == tiny.birth(), "a hole that knows when it was made");
        assert_eq!((bps[1], bps[2]), (part, tiny));
    });
}

#[test]
fn blocks_that_may_be_shared_and_gang_blocks_are_written_by_the_sync() {
    for gang in [false, true] {
        let sim = world(7);
        sim.block_on(async {
            let dedup = (!gang).then_some((ChecksumAlgo::Sha256, DedupMode::Checksum));
            let mut c = Case::new(&sim, ObjsetProps { dedup, ..ObjsetProps::default() }).await;
            if gang {
                c.env.zio.set_opts(ZioOpts { gang_above: 16 << 10, ..ZioOpts::default() });
            }
            c.write(0, &noise(60, LEN)).await;
            let (bp, done) = c.store(0).await;
            done.await.unwrap();
            assert_eq!(bp.is_gang(), gang);
            c.env.zio.set_opts(ZioOpts::default());
            let bps = c.end().await;
            assert!(bps[0] != bp && !bps[0].is_hole());
        });
    }
}

#[test]
fn clean_blocks_are_stored_apart() {
    let sim = world(8);
    sim.block_on(async {
        let mut c = Case::new(&sim, ObjsetProps::default()).await;
        let (bp, done) = c.store(1).await;
        done.await.unwrap();
        assert!(c.env.zio.read(&bp, Prio::SyncRead).await.unwrap() == c.dn.read_block(1).await.unwrap());
        assert!(!c.end().await.contains(&bp));
    });
}

/// With a strong checksum and compression a block that is the same stays where it is, whoever
/// writes it: the sync, or an early write. One that is rewritten on purpose moves.
#[test]
fn an_equal_block_stays_where_it_is() {
    let lz4 = codec::Compression { algo: codec::CompressAlgo::Lz4, level: 0 };
    let strong = ObjsetProps { checksum: ChecksumAlgo::Sha256, compression: lz4, ..ObjsetProps::default() };
    let off = codec::Compression::OFF;
    let cases = [
        ("equal", strong, true),
        ("a weak checksum", ObjsetProps { checksum: ChecksumAlgo::Fletcher4, ..strong }, false),
        ("no compression", ObjsetProps { compression: off, ..strong }, false),
    ];
    for (what, props, stays) in cases {
        let sim = world(7);
        sim.block_on(async {
            let mut c = Case::new(&sim, props).await;
            let at = async |c: &Case, blkid| c.dn.block_pointer(blkid).await.unwrap();
            let (mut was, first) = (Vec::new(), noise(1, 4 * LEN));
            for blkid in 0..4 {
                was.push(at(&c, blkid).await);
            }
            let part = |blkid: usize| &first[blkid * LEN..(blkid + 1) * LEN];
            // Equal by the sync, equal by an early write, another content, rewritten.
            c.write(0, part(0)).await;
            c.write(1, part(1)).await;
            let (early, done) = c.store(1).await;
            done.await.unwrap();
            assert_eq!(early == was[1], stays, "{what}");
            c.write(2, &noise(5, LEN)).await;
            let tx = TxPlan::new(&c.os).write(&c.dn, 3 * u64::from(SIZE), u64::from(SIZE)).assign().await.unwrap();
            c.dn.rewrite_blocks(3..4, false, &tx).await.unwrap();
            drop(tx);
            let now = c.end().await;
            let kept: Vec<bool> = (0..4).map(|n| now[n] == was[n]).collect();
            assert_eq!(kept, [stays, stays, false, false], "{what}");
            for blkid in [0, 1, 3] {
                assert!(c.dn.read_block(blkid as u64).await.unwrap()[..] == *part(blkid), "{what}");
            }
            assert!(c.dn.read_block(2).await.unwrap() == noise(5, LEN), "{what}");
        });
    }
}
