//! The cache over real block I/O: one read for all concurrent readers, current bytes, a limit that
//! holds.
#![allow(clippy::unwrap_used)]

#[path = "../../zio/tests/common/mod.rs"]
mod common;

use std::cell::Cell;
use std::rc::Rc;

use arc::{Arc, MemKind};
use base::{ErrorKind, Txg};
use bdev::Bytes;
use common::{Lab, noise, text};
use ondisk::blkptr::Blkptr;
use ondisk::object_type::ObjectType;
use vdev::Prio;
use zio::{Compression, WriteReq};

async fn put(lab: &Lab, data: Bytes) -> Blkptr {
    let req = WriteReq { compression: Compression::LZ4, ..WriteReq::new(data, ObjectType::PLAIN_FILE, 0, Txg(10)) };
    let out = lab.zio.write(req).await.unwrap();
    out.done.await.unwrap();
    out.bp
}

fn arc(lab: &Lab, limit: u64) -> Arc {
    Arc::new(lab.rt.clone(), lab.zio.clone(), limit)
}

#[test]
fn concurrent_misses_read_once() {
    let lab = Lab::new(1, 64 << 20, 12);
    let arc = arc(&lab, 16 << 20);
    lab.sim.block_on(async {
        let data = text(1, 131_072);
        let bp = put(&lab, data.clone()).await;
        let readers: Vec<_> = (0..20)
            .map(|_| {
                let arc = arc.clone();
                lab.rt.spawn("reader", async move { arc.read(&bp, Prio::SyncRead).await.unwrap() })
            })
            .collect();
        for got in rt::join::join_all(readers).await {
            assert_eq!(got, data);
        }
        assert_eq!(lab.zio.stats().reads, 1);
        let s = arc.stats();
        assert_eq!((s.misses, s.hits + s.coalesced, s.blocks), (1, 19, 1));
        assert_eq!(arc.peek(&bp).unwrap(), data);
        arc.forget(&bp);
        assert!(arc.peek(&bp).is_none());
    });
}

#[test]
fn errors_reach_all_who_wait_and_are_not_kept() {
    let lab = Lab::new(1, 64 << 20, 12);
    let arc = arc(&lab, 16 << 20);
    lab.sim.block_on(async {
        let data = noise(1, 8192);
        let bp = put(&lab, data.clone()).await;
        lab.spoil(bp.dva(0), 9);
        let readers: Vec<_> = (0..3)
            .map(|_| {
                let arc = arc.clone();
                lab.rt.spawn("reader", async move { arc.read(&bp, Prio::SyncRead).await })
            })
            .collect();
        for got in rt::join::join_all(readers).await {
            assert_eq!(got.unwrap_err().kind(), ErrorKind::Checksum);
        }
        lab.spoil(bp.dva(0), 9);
        assert_eq!(arc.read(&bp, Prio::SyncRead).await.unwrap(), data, "the disk is whole again");
    });
}

#[test]
fn a_reader_that_goes_away_leaves_nobody_waiting() {
    let lab = Lab::new(1, 64 << 20, 12);
    let arc = arc(&lab, 16 << 20);
    lab.sim.block_on(async {
        let data = noise(1, 8192);
        let bp = put(&lab, data.clone()).await;
        let mut leader = Box::pin(arc.read(&bp, Prio::SyncRead));
        let second = {
            let arc = arc.clone();
            lab.rt.spawn("second", async move { arc.read(&bp, Prio::SyncRead).await })
        };
        // The leader gets as far as the device, then is dropped.
        std::future::poll_fn(|cx| {
            assert!(leader.as_mut().poll(cx).is_pending());
            std::task::Poll::Ready(())
        })
        .await;
        lab.rt.yield_now().await;
        drop(leader);
        assert_eq!(second.await.unwrap(), data);
    });
}

#[test]
fn a_block_rewritten_in_place_is_never_seen_old() {
    let lab = Lab::new(1, 64 << 20, 12);
    let arc = arc(&lab, 16 << 20);
    lab.sim.block_on(async {
        let old = put(&lab, noise(1, 8192)).await;
        let reader = {
            let arc = arc.clone();
            lab.rt.spawn("reader", async move { arc.read(&old, Prio::SyncRead).await })
        };
        lab.rt.yield_now().await;
        // While the old bytes are being read, the same place gets new ones.
        let new = noise(2, 8192);
        let req =
            WriteReq { pass: 2, rewrite: Some(old), ..WriteReq::new(new.clone(), ObjectType::PLAIN_FILE, 0, Txg(10)) };
        let out = lab.zio.write(req).await.unwrap();
        assert!(out.rewritten_in_place);
        arc.insert(&out.bp, new.clone(), false);
        let _ = reader.await;
        out.done.await.unwrap();
        assert_eq!(arc.peek(&out.bp).unwrap(), new);
        assert_eq!(arc.read(&out.bp, Prio::SyncRead).await.unwrap(), new);
    });
}

#[test]
fn holes_and_embedded_blocks_take_no_room() {
    let lab = Lab::new(1, 64 << 20, 12);
    let arc = arc(&lab, 16 << 20);
    lab.sim.block_on(async {
        let before = arc.size();
        let hole = Blkptr::punched_hole(131_072, ObjectType::PLAIN_FILE, 0, Txg(5));
        assert_eq!(arc.read(&hole, Prio::SyncRead).await.unwrap().len(), 131_072);
        let tiny = Blkptr::embedded(&[7; 60], 60, 2, ObjectType::PLAIN_FILE, 0, Txg(5));
        assert_eq!(&arc.read(&tiny, Prio::SyncRead).await.unwrap()[..], &[7; 60]);
        arc.insert(&hole, Bytes::zeroed(131_072), false);
        assert!(arc.peek(&hole).is_none());
        assert_eq!(arc.size(), before);
    });
}

#[test]
fn the_limit_holds_under_many_readers() {
    let lab = Lab::new(2, 256 << 20, 12);
    let limit = 4 << 20;
    let arc = arc(&lab, limit);
    lab.sim.block_on(async {
        let mut bps = Vec::new();
        for n in 0..400u64 {
            let len = [4096, 16384, 131_072, 65536][n as usize % 4];
            bps.push((n, len, put(&lab, text(n, len)).await));
        }
        let bps = Rc::new(bps);
        let worst = Rc::new(Cell::new(0));
        let readers: Vec<_> = (0..16)
            .map(|_| {
                let (arc, bps, rt, worst) = (arc.clone(), bps.clone(), lab.rt.clone(), worst.clone());
                lab.rt.spawn("reader", async move {
                    for _ in 0..60 {
                        // Some blocks are asked for more often than others.
                        let n = rt.rng_below(400).min(rt.rng_below(400)) as usize;
                        let (seed, len, bp) = &bps[n];
                        assert_eq!(arc.read(bp, Prio::SyncRead).await.unwrap(), text(*seed, *len));
                        worst.set(worst.get().max(arc.size()));
                        arc.charge(MemKind::Dnode, 1000);
                    }
                })
            })
            .collect();
        rt::join::join_all(readers).await;
        assert!(worst.get() <= limit, "{} of {limit}", worst.get());
        let s = arc.stats();
        assert!(s.hits > 0 && s.evicted > 0 && s.charged == 960_000, "{s:?}");
        assert_eq!(arc.charged(MemKind::Dnode), 960_000);
        assert!(arc.demand().size == arc.size());
        arc.charge(MemKind::Dnode, -960_000);
        arc.set_limit(1 << 20);
        assert!(arc.size() <= 1 << 20);
    });
}

#[test]
fn prefetched_blocks_are_there_when_they_are_wanted() {
    let lab = Lab::new(1, 64 << 20, 12);
    let arc = arc(&lab, 16 << 20);
    lab.sim.block_on(async {
        let bp = put(&lab, noise(4, 65536)).await;
        arc.prefetch(&bp, Prio::AsyncRead);
        arc.prefetch(&bp, Prio::AsyncRead);
        assert_eq!(arc.read(&bp, Prio::SyncRead).await.unwrap(), noise(4, 65536));
        arc.prefetch(&bp, Prio::AsyncRead);
        lab.sim.handle().rt().sleep(base::Nanos::from_ms(1)).await;
        assert_eq!((lab.zio.stats().reads, arc.stats().misses), (1, 1));
    });
}
