//! Commits of the log of an object set, without the file system above it.
#![allow(clippy::unwrap_used)]

#[path = "../../spa/tests/all/common/mod.rs"]
mod common;

use std::cell::Cell;
use std::rc::Rc;

use common::{POOL, World};
use rt::LocalBoxFuture;
use zil::{GetData, StoredBlock, Zilog};

/// A file whose data becomes available only on a signal.
#[derive(Default)]
struct Slow {
    asked: Cell<bool>,
    go: rt::sync::Notify,
}

impl GetData for Slow {
    fn copy(&self, _: u64, _: u64, length: u64) -> LocalBoxFuture<'_, base::Result<Option<Vec<bdev::Bytes>>>> {
        Box::pin(async move {
            self.asked.set(true);
            self.go.notified().await;
            Ok(Some(vec![bdev::Bytes::zeroed(length as usize)]))
        })
    }
    fn store(&self, _: u64, _: u64, _: u64) -> LocalBoxFuture<'_, base::Result<Option<StoredBlock>>> {
        Box::pin(async { Ok(None) })
    }
}

/// Records that another commit has taken and not yet put into a block are not durable, though no
/// list has them and no block is under way.
#[test]
fn a_commit_waits_for_records_that_are_being_packed() {
    let world = World::new(4500, 1);
    world.sim.block_on(async {
        let rt = world.sim.rt();
        let pool = world.create().await;
        let os = pool.dsl().find(POOL).unwrap().objset().await.unwrap();
        let slow = Rc::new(Slow::default());
        let data: Rc<dyn GetData> = slow.clone();
        let log = Zilog::new(&os, Rc::downgrade(&data), pool.dsl().intent_logs().clone());
        // The first commit makes the chain.
        log.record(vec![0; 64], None, pool.txg().open_txg());
        log.commit(None).await.unwrap();
        let txg = pool.txg().open_txg();
        let file = base::ObjectId(5);
        log.write(file, 0, &[bdev::Bytes::zeroed(8192)], 8192, false, false, txg);
        log.async_to_sync(file);
        log.record(vec![0; 64], None, txg);
        let commit = |object: u64| {
            let log = log.clone();
            rt.spawn("commit", async move { log.commit(Some(base::ObjectId(object))).await })
        };
        let first = commit(7);
        while !slow.asked.get() {
            rt.yield_now().await;
        }
        let blocks = log.stats().blocks;
        let done = Rc::new(Cell::new(false));
        let (second, flag) = (commit(9), done.clone());
        let second = rt.spawn("second", async move {
            let result = second.await;
            flag.set(true);
            result
        });
        rt.sleep(base::Nanos::from_secs(10)).await;
        assert!(!done.get() && log.stats().blocks == blocks, "it ended before anything was written");
        slow.go.notify_all();
        first.await.unwrap();
        second.await.unwrap();
        assert!(log.stats().blocks > blocks);
        // Everything is acknowledged by now: a commit packs nothing.
        let before = log.stats();
        log.commit(Some(base::ObjectId(9))).await.unwrap();
        assert_eq!((log.stats().blocks, log.stats().commits), (before.blocks, before.commits));
        log.close().await.unwrap();
        // The counters of the pool's logs outlive the log.
        let (own, total) = (log.stats(), pool.dsl().intent_logs().total());
        assert_eq!((total, own.copied, own.copied_bytes, own.slog_blocks), (own, 1, 8192, 0));
        assert!(own.used_bytes > 8192 && own.used_bytes <= own.block_bytes, "{own:?}");
        drop(log);
        pool.export().await.unwrap();
    });
}
