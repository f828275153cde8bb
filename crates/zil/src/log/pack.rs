//! Packing: the sync list goes into log blocks, under the issuer's lock.
//!
//! Every record is appended to the open block; a block without room for it is issued and its
//! successor opened ([`super::issue`]). Commits in the list wait for the last block that has
//! records by then. After the whole list the open block is issued at once or gets a timer, as
//! [`policy::closing`] decides. A record that cannot be logged stalls the rest: its commits wait
//! for their txg.

use std::rc::Rc;

use base::{Error, ErrorKind, Result, Txg};
use bdev::Bytes;
use ondisk::blkptr::Blkptr;
use ondisk::bytes::le64;
use ondisk::zil::ZIL_CHAIN_SIZE;
use ondisk::zil_record::{Op, WRITE_SIZE, WriteData, needs_zilsaxattr};
use rt::cost::{COPY, REAP, ZIL_RECORD};
use rt::trace::{LogPhase, LogTimes};

use super::Inner;
use crate::block::BLOCK_MAX;
use crate::itx::{Data, Itx, ItxKind, Waiter, WaiterState};
use crate::lwb::Lwb;
use crate::policy::{self, Closing};

impl Inner {
    /// Packs the sync list, unless another task has packed `waiter` meanwhile.
    pub(super) async fn write_out(self: Rc<Self>, waiter: &Rc<Waiter>) -> Result<()> {
        let _issuer = self.issuer.lock().await;
        if waiter.state.get() != WaiterState::Queued {
            return Ok(());
        }
        if self.broken.get() {
            self.recover().await?;
        }
        let list = std::mem::take(&mut self.lists.borrow_mut().sync);
        let owners: Vec<Option<u64>> =
            list.iter().filter(|itx| !matches!(itx.kind, ItxKind::Commit(_))).map(|itx| itx.owner).collect();
        if !planted!(PackingIgnored) {
            self.chain.borrow_mut().packing = owners;
        }
        self.note_parallel();
        let mut stalled: Option<Vec<Rc<Waiter>>> = None;
        for itx in list.into_entries() {
            match (&itx.kind, &mut stalled) {
                (ItxKind::Commit(w), Some(waiters)) => waiters.push(w.clone()),
                (ItxKind::Commit(w), None) => self.link_waiter(w),
                (_, Some(_)) => {}
                (_, None) => {
                    if self.pack(itx).await.is_err() {
                        stalled = Some(Vec::new());
                    }
                }
            }
        }
        if let Some(waiters) = stalled {
            let result = self.stall().await;
            self.chain.borrow_mut().packing.clear();
            waiters.iter().for_each(|w| w.finish(result.is_ok()));
            return Ok(());
        }
        self.chain.borrow_mut().packing.clear();
        self.close_or_arm_timer().await
    }

    /// Updates the measure of parallel commits (`zl_parallel`).
    fn note_parallel(&self) {
        let chain = self.chain.borrow();
        let open = chain.lwbs.back().is_some_and(|l| l.is_open() && l.has_records());
        let before = chain.lwbs.len().checked_sub(2).and_then(|i| chain.lwbs.get(i));
        let busy = before.is_some_and(|l| !l.is_flush_done());
        self.parallel.set(policy::parallel_after(self.parallel.get(), open, busy));
    }

    /// After the whole list is packed: closes the open block, or starts its timer.
    async fn close_or_arm_timer(self: &Rc<Self>) -> Result<()> {
        let how = policy::closing(self.parallel.get(), self.latency.get(), &self.tunables());
        if self.parallel.get() > 0 {
            self.parallel.set(self.parallel.get() - 1);
        }
        let open = self.open_block().filter(|l| l.has_records());
        if how == Closing::Now
            && let Some(lwb) = &open
        {
            self.burst_done();
            if self.close_block(lwb, 0).await.is_err() {
                // Its waiters get the result of the stall.
                return self.stall().await;
            }
        }
        if let (Closing::After(share), Some(lwb)) = (how, open)
            && !lwb.has_timer.replace(true)
        {
            let z = self.clone();
            self.os.ctx().rt().spawn("zil timer", async move { z.close_on_timeout(lwb, share).await });
        }
        self.end_batch().await;
        Ok(())
    }

    /// Links a waiter to the last block with records: it waits for all records packed so far.
    fn link_waiter(&self, w: &Rc<Waiter>) {
        let last = self.chain.borrow().lwbs.iter().rev().find(|l| !l.is_open() || l.has_records()).cloned();
        match last {
            Some(lwb) if !planted!(UnderwayIgnored) || lwb.is_open() => lwb.link(w),
            _ => w.finish(true),
        }
    }

    /// Packs one record. An error: it cannot be logged.
    async fn pack(self: &Rc<Self>, itx: Itx) -> Result<()> {
        let txg = itx.txg;
        if txg <= self.synced() {
            self.os.ctx().rt().spend(REAP).await;
            return Ok(());
        }
        match itx.kind {
            ItxKind::Commit(_) => Ok(()),
            ItxKind::Barrier => {
                self.count(|s| s.barriers += 1);
                self.give_up_batch().await;
                self.os.ctx().txg().wait_synced(txg).await
            }
            ItxKind::Record(record) => {
                if needs_zilsaxattr(le64(&record, 0)) {
                    if self.open_block().is_none() {
                        self.begin_chain(record.len() as u64).await?;
                    }
                    // The chain is older than the feature: after this txg a new one begins.
                    if !self.os.has_log_feature() {
                        return Err(Error::unsupported("the log does not have the feature zilsaxattr yet"));
                    }
                }
                self.append(&record, &[], txg, itx.owner, |_| {}).await
            }
            ItxKind::Write { object, offset, length, data } => {
                self.pack_write(object, offset, length, data, txg, itx.owner).await
            }
        }
    }

    async fn pack_write(
        self: &Rc<Self>,
        object: u64,
        offset: u64,
        mut length: u64,
        data: Data,
        txg: Txg,
        owner: Option<u64>,
    ) -> Result<()> {
        let source = || {
            let gone = || Error::new(ErrorKind::Interrupted, "the file system is not in use any more");
            self.data.upgrade().ok_or_else(gone)
        };
        let (parts, stored) = match data {
            Data::Copied(parts) => (parts, None),
            Data::NeedCopy => match source()?.copy(object, offset, length).await? {
                None => return Ok(()),
                Some(parts) => (parts, None),
            },
            Data::Indirect => match source()?.store(object, offset, length).await? {
                None => return Ok(()),
                Some(stored) => (Vec::new(), Some(stored)),
            },
        };
        let bp = match &stored {
            Some(stored) => stored.bp,
            None => {
                length = parts.iter().map(|p| p.len() as u64).sum();
                Blkptr::hole()
            }
        };
        if length == 0 {
            return Ok(());
        }
        let record = Op::Write { object, offset, length, data: WriteData::Block(bp) }.encode()?;
        assert!(record.len() == WRITE_SIZE, "a write record without data has a fixed size");
        self.count(|s| match &stored {
            Some(_) => (s.indirect, s.indirect_bytes) = (s.indirect + 1, s.indirect_bytes + length),
            None => (s.copied, s.copied_bytes) = (s.copied + 1, s.copied_bytes + length),
        });
        self.append(&record, &parts, txg, owner, |lwb| {
            let Some(stored) = stored else { return };
            if !planted!(IndirectNotFlushed) {
                lwb.vdevs.borrow_mut().extend(stored.bp.dvas().map(|d| d.vdev()));
            }
            lwb.writes.borrow_mut().push(stored.done);
        })
        .await
    }

    async fn append(
        self: &Rc<Self>,
        fixed: &[u8],
        data: &[Bytes],
        txg: Txg,
        owner: Option<u64>,
        more: impl FnOnce(&Lwb),
    ) -> Result<()> {
        let len = (fixed.len() + data.iter().map(|d| d.len()).sum::<usize>()).next_multiple_of(8);
        self.os.ctx().rt().spend(ZIL_RECORD + COPY.cost(len as u64)).await;
        if len > BLOCK_MAX as usize - ZIL_CHAIN_SIZE {
            return Err(Error::new(ErrorKind::TooBig, format!("a log record of {len} bytes")));
        }
        let lwb = self.lwb_with_room(len).await?;
        if txg <= self.synced() {
            return Ok(());
        }
        if !lwb.has_records() {
            let rt = self.os.ctx().rt();
            lwb.opened.set(rt.now());
            lwb.trace(rt, self.os.id(), LogPhase::Opened, LogTimes::default());
        }
        self.seq.set(self.seq.get() + 1);
        self.burst.set(self.burst.get() + len as u64);
        lwb.push(fixed, data, txg, self.seq.get());
        more(&lwb);
        self.chain.borrow_mut().last_lwb.insert(owner, Rc::downgrade(&lwb));
        self.count(|s| (s.records, s.bytes) = (s.records + 1, s.bytes + len as u64));
        Ok(())
    }

    /// The open block with room for `len` bytes.
    async fn lwb_with_room(self: &Rc<Self>, len: usize) -> Result<Rc<Lwb>> {
        loop {
            match self.open_block() {
                None => self.begin_chain(len as u64).await?,
                Some(lwb) if lwb.fits(len) => return Ok(lwb),
                Some(lwb) => {
                    let full = lwb.has_records();
                    self.close_block(&lwb, len as u64).await?;
                    self.count(|s| s.full += u64::from(full));
                }
            }
        }
    }
}
