//! Issuing log blocks: allocation, the write of a block, and its own task until its flush is done.
//!
//! A block gets its successor before its write, whose pointer it holds. Its task waits for the
//! write, flushes the vdevs (or leaves that to the next block), waits for the block before, and
//! wakes the commits that wait for it. The txg in which the successor was allocated is held until
//! then.

use std::rc::Rc;

use base::{Error, ErrorKind, Nanos, Result, Txg, VdevId};
use ondisk::blkptr::Blkptr;
use ondisk::object_type::ObjectType;
use ondisk::zil::CHECKSUM_ZILOG2;
use rt::join::join_all;
use rt::trace::{LogPhase, LogTimes};
use zio::{ClassKind, Prio, WriteAs, WriteDone};

use super::Inner;
use super::sealing::Sealing;
use crate::block::BLOCK_UNIT;
use crate::lwb::{Lwb, LwbState};
use crate::policy::{self, BlockFacts, Flush};

/// Raw number of "no compression".
const COMPRESS_OFF: u8 = 2;

impl Inner {
    fn class(&self) -> ClassKind {
        if self.avoid_slog.get() > self.synced() { ClassKind::Normal } else { ClassKind::Log }
    }
    fn pointer(&self, dva: ondisk::blkptr::Dva, size: u64, words: [u64; 4], txg: Txg) -> Blkptr {
        let mut bp = Blkptr::hole();
        bp.set_dva(0, dva);
        bp.set_lsize(size);
        bp.set_psize(size);
        bp.set_compress(COMPRESS_OFF);
        bp.set_checksum(CHECKSUM_ZILOG2);
        bp.set_otype(ObjectType::INTENT_LOG);
        bp.set_little_endian(true);
        bp.set_birth(txg, txg);
        bp.set_checksum_words(words);
        if let Some(key) = self.os.ctx().key() {
            bp.set_encrypted(true);
            let (salt, iv) = key.fresh_salt_iv(self.os.ctx().rt());
            bp.set_salt_iv(salt, iv);
        }
        bp
    }
    async fn allocate(&self, size: u64, words: [u64; 4], txg: Txg) -> Result<Blkptr> {
        let space = self.os.ctx().zio().space().clone();
        let dva = match space.try_alloc(self.class(), size, txg, &[])? {
            Some(dva) => dva,
            None => space.alloc(self.class(), size, txg, &[]).await?,
        };
        // Datasets are charged for blocks of the normal class only, from which their syncs
        // allocate.
        if space.class_of(dva)? == ClassKind::Normal {
            let bytes = self.os.ctx().zio().tree().top(dva.vdev())?.dsize(dva.asize());
            if !self.os.take_log_block(bytes, txg) {
                space.unalloc(dva, txg)?;
                return Err(Error::new(ErrorKind::NoSpace, "the rest of the pool is kept for txgs"));
            }
        }
        Ok(self.pointer(dva, size, words, txg))
    }
    fn next_size(&self, want: u64) -> u64 {
        let mut bursts: Vec<u64> = self.bursts.borrow().iter().copied().collect();
        bursts.push(self.burst.get());
        policy::block_size(&bursts, want, &self.tunables())
    }
    /// Begins a chain: its first block must be in a header on disk before a commit can rely on it.
    pub(super) async fn begin_chain(&self, want: u64) -> Result<()> {
        let txg = self.os.ctx().txg();
        let hold = txg.hold_open().await;
        let rt = self.os.ctx().rt();
        let words = [rt.rng_u64() | 1, rt.rng_u64() | 1, self.os.id(), 1];
        let bp = self.allocate(self.next_size(want), words, hold.txg).await?;
        let at = hold.txg;
        self.chain.borrow_mut().lwbs.push_back(Lwb::new(bp, at));
        self.os.touch(at);
        drop(hold);
        txg.wait_synced(at).await
    }

    /// Gives the open block a successor that can take `want` bytes, and issues it.
    pub(super) async fn close_block(self: &Rc<Self>, lwb: &Rc<Lwb>, want: u64) -> Result<()> {
        let ctx = self.os.ctx();
        let sealing = Sealing::of(lwb, ctx.key());
        // Before any change: there is no wait from the allocation of the next block on.
        ctx.rt().spend(sealing.cost_here()).await;
        let hold = ctx.txg().hold_open().await;
        let mut words = lwb.bp.checksum_words();
        words[3] = words[3].wrapping_add(1);
        let next_bp = match self.allocate(self.next_size(want), words, hold.txg).await {
            Ok(bp) => bp,
            Err(e) => {
                self.broken.set(true);
                return Err(e);
            }
        };
        let next = Lwb::new(next_bp, hold.txg);
        self.os.touch(hold.txg);
        let before = {
            let mut chain = self.chain.borrow_mut();
            let at = chain.lwbs.len();
            chain.lwbs.push_back(next);
            at.checked_sub(2).map(|i| chain.lwbs[i].clone())
        };
        lwb.holds.borrow_mut().push(hold);
        let nused = lwb.used.get();
        let dva = lwb.bp.dva(0);
        // With parity beside the data the whole block is written, as it is read as a whole.
        let spread = dva.asize() > lwb.bp.psize();
        let written = if spread { lwb.bp.psize() as usize } else { nused.next_multiple_of(BLOCK_UNIT) };
        let bytes = lwb.take_bytes(written.min(lwb.bp.psize() as usize));
        lwb.issued.set(ctx.rt().now());
        let queue = lwb.issued.get().since(lwb.opened.get());
        lwb.trace(ctx.rt(), self.os.id(), LogPhase::Issued, LogTimes { queue, ..LogTimes::default() });
        let top = ctx.zio().tree().top(dva.vdev())?;
        let bulk = policy::is_bulk(top.is_log, self.burst.get(), &self.tunables());
        let prio = if bulk { Prio::AsyncWrite } else { Prio::SyncWrite };
        let before = before.filter(|b| b.state.get() == LwbState::Issued && b.waiters.borrow().is_empty());
        let facts = BlockFacts {
            before_unawaited: before.is_some(),
            own_write_only: lwb.needs_own_flush_only(),
            writes_durably: top.writes_durably() && !planted!(NoFlush),
        };
        match (policy::flush_of(self.tunables().policy, &facts), before) {
            (Flush::Batch, _) => {
                lwb.flush_deferred.set(true);
                lwb.in_batch.set(true);
            }
            (Flush::TakesOver, Some(b)) => {
                b.flush_deferred.set(true);
                lwb.vdevs.borrow_mut().extend(b.vdevs.borrow().iter().copied());
                self.count(|s| s.deferred += 1);
            }
            (Flush::Durable, _) => lwb.vdevs.borrow_mut().clear(),
            (Flush::Own | Flush::TakesOver, _) => {}
        }
        let durable = lwb.vdevs.borrow().is_empty();
        let how = WriteAs { prio, durable };
        let done = sealing.write(ctx.rt(), &top, how, bytes, next_bp, nused);
        lwb.set_state(LwbState::Issued);
        let (written, used, is_log) = (written as u64, nused as u64, top.is_log);
        self.count(|s| {
            (s.blocks, s.block_bytes, s.used_bytes) = (s.blocks + 1, s.block_bytes + written, s.used_bytes + used);
            if is_log {
                s.slog_blocks += 1;
                s.slog_block_bytes += written;
                s.slog_used_bytes += used;
            }
        });
        let (z, chained, lwb) = (self.clone(), self.lwbs_before(lwb), lwb.clone());
        ctx.rt().spawn("zil block", async move { z.run_lwb(lwb, chained, done).await });
        Ok(())
    }

    /// The blocks before one that are not FLUSH_DONE, nearest first.
    fn lwbs_before(&self, lwb: &Rc<Lwb>) -> Vec<Rc<Lwb>> {
        let chain = self.chain.borrow();
        chain.live().skip_while(|l| !Rc::ptr_eq(l, lwb)).skip(1).cloned().collect()
    }

    /// A block's own task: waits for its write, flushes, and waits for the block before. `before`:
    /// blocks before it that were in flight when it was issued, nearest first.
    async fn run_lwb(self: Rc<Self>, lwb: Rc<Lwb>, before: Vec<Rc<Lwb>>, done: WriteDone) {
        let rt = self.os.ctx().rt();
        if planted!(WakeBeforePredecessor) {
            self.wake_early(&lwb, &done).await;
        }
        let mut good = self.wait_writes(&lwb, done).await;
        lwb.failed.set(!good);
        lwb.written.set(rt.now());
        lwb.set_state(LwbState::WriteDone);
        if planted!(WakeBeforeFlush) {
            lwb.waiters.take().iter().for_each(|w| w.finish(good));
        }
        if lwb.flush_deferred.get() {
            return;
        }
        // The blocks that defer their flush to this one must be written before it.
        let mine: Vec<Rc<Lwb>> = before.iter().take_while(|b| b.flush_deferred.get()).cloned().collect();
        for b in &mine {
            b.wait_write_done().await;
            good &= !b.failed.get();
        }
        let vdevs: Vec<VdevId> = lwb.vdevs.borrow().iter().copied().collect();
        let began = rt.now();
        good &= self.flush(&vdevs).await;
        let flush = rt.now().since(began);
        if let Some(b) = before.get(mine.len()) {
            b.wait_flush_done().await;
            good &= !b.failed.get();
        }
        // A block may have failed before this one was issued: a replay ends there.
        good &= !self.broken.get();
        if !good {
            self.note_failure(&lwb);
        }
        let took = rt.now().since(lwb.issued.get());
        self.latency.set(policy::latency_after(self.tunables().policy, self.latency.get(), took));
        for b in mine.iter().rev().chain([&lwb]) {
            self.lwb_flush_done(b, flush, good);
        }
    }

    /// A block is FLUSH_DONE: `flush` is the time of its flush.
    pub(super) fn lwb_flush_done(&self, lwb: &Lwb, flush: Nanos, good: bool) {
        let rt = self.os.ctx().rt();
        let times = lwb.times(rt.now(), flush);
        self.count(|s| s.block_done(lwb.waiters.borrow().len(), times));
        lwb.trace(rt, self.os.id(), LogPhase::Done, times);
        lwb.finish(good);
    }

    async fn wait_writes(&self, lwb: &Lwb, done: WriteDone) -> bool {
        let writes = lwb.writes.take();
        let mut good = done.await.is_ok();
        for w in writes {
            good &= w.await.is_ok();
        }
        good
    }

    /// A planted bug: waiters wait for the block's own write and flush only.
    async fn wake_early(&self, lwb: &Lwb, done: &WriteDone) {
        let good = done.clone().await.is_ok();
        let vdevs: Vec<VdevId> = lwb.vdevs.borrow().iter().copied().collect();
        let good = good && self.flush(&vdevs).await;
        lwb.waiters.take().iter().for_each(|w| w.finish(good));
    }

    /// Flushes these vdevs; whether all flushes succeeded.
    pub(super) async fn flush(&self, vdevs: &[VdevId]) -> bool {
        if planted!(NoFlush) {
            return true;
        }
        self.count(|s| s.flushes += vdevs.len() as u64);
        let tree = self.os.ctx().zio().tree();
        let flushes = vdevs.iter().map(|&v| async move { tree.top(v)?.flush().await });
        let all: Result<()> = join_all(flushes.collect()).await.into_iter().collect();
        all.is_ok() || planted!(FlushErrorIgnored)
    }

    pub(super) fn note_failure(&self, lwb: &Lwb) {
        self.broken.set(true);
        self.count(|s| s.failures += 1);
        let on_log = self.os.ctx().zio().tree().top(lwb.bp.dva(0).vdev()).is_ok_and(|t| t.is_log);
        if on_log {
            self.avoid_slog.set(Txg(self.synced().0 + 16));
        }
    }
}
