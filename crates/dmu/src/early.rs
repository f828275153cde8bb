//! Writing a block of a file before its txg syncs, for an intent log that names the block instead
//! of holding a copy of its bytes (`WR_INDIRECT`; `dmu_sync` of OpenZFS), and for direct I/O, whose
//! writer waits for the device instead of the throttle (`dmu_write_direct`).
//!
//! The block is stored by the policy of its object. If it is dirty in the open txg, and unchanged
//! when its DVA is allocated, the sync of that txg uses the pointer instead of writing the block
//! again: it is *overridden* (module `dirty`). Else the DVA is given up in the txg in which it was
//! allocated (`dmu_sync_late_arrival`), and the sync writes the content of that time. The DVA is
//! not allocated again before that txg is on disk, and then the log record that names it is not
//! needed any more. Also given up are
//!
//! * blocks of datasets with deduplication: only the sync looks up the deduplication table;
//! * gang blocks, whose pieces are named only in their headers on the device.
//!
//! A block that is overridden already and has not changed since is not stored again: the next
//! record names the same DVA, which claim and replay handle once.
//!
//! Space: a dirty block is charged for one write. An early write may be given up, so it is charged
//! in addition until its txg has synced.

use arc::Keep;
use base::{Error, ErrorKind, Result, Txg};
use bdev::Bytes;
use ondisk::blkptr::Blkptr;
use txg::TxgHold;
use zio::{Prio, WriteDone};

use crate::dirty::Stored;
use crate::dnode::{DirtyTxg, Dnode};
use crate::dnode_io::Overlay;
use crate::policy::BlockKind;
use crate::tx::Tx;

impl Dnode {
    /// Stores `data`, which is or was the content of block `blkid` of the object, in the txg of
    /// `hold`. That txg is held until the write ends, and no longer: the caller may wait for a txg
    /// afterwards.
    ///
    /// # Errors
    /// `NoSpace` if the rest of the pool is reserved for txgs, or the error of the write.
    pub async fn store_early(&self, blkid: u64, data: Bytes, hold: TxgHold) -> Result<(Blkptr, WriteDone)> {
        self.store_early_as(blkid, data, hold, Keep::Cached).await
    }

    /// Stores block `blkid`, which the transaction `tx` has just written, now, and does not keep it
    /// in the cache (direct I/O). The returned write is that of the device. None if the block has
    /// no content, is to be deduplicated, or could not be stored: the sync of the txg writes it
    /// then, as it does after a failed write.
    pub async fn store_direct(&self, blkid: u64, tx: &Tx) -> Option<WriteDone> {
        if self.os.props.get().dedup.is_some() {
            return None;
        }
        let Overlay::Data(data) = self.overlay(blkid) else { return None };
        let hold = tx.hold()?;
        Some(self.store_early_as(blkid, data, hold, Keep::Uncached).await.ok()?.1)
    }

    async fn store_early_as(&self, blkid: u64, data: Bytes, hold: TxgHold, keep: Keep) -> Result<(Blkptr, WriteDone)> {
        if let Some(stored) = self.stored_early(blkid, &data) {
            return Ok((stored.bp, stored.done));
        }
        let (ctx, txg) = (&self.os.ctx, hold.txg);
        let kind = {
            let st = self.n.st.borrow();
            let own = (st.phys.compress, st.phys.checksum);
            BlockKind { own, ..BlockKind::new(st.otype, 0) }
        };
        let policy = self.os.policy(kind, 1);
        let mut req = policy.request(&self.os, data.clone(), (self.n.obj, blkid), txg);
        (req.dedup, req.prio) = (None, Prio::SyncWrite);
        // A block that the sync will leave where it is needs no other place. It must be on disk
        // with its txg: the log's flush does not wait for another write.
        let prepared = match policy.nopwrite && self.is_changed_in_only(blkid, txg) {
            true => {
                let old = self.lookup(blkid).await.unwrap_or_else(|_| Blkptr::hole());
                let prepared = ctx.zio().prepare(req).await?;
                if old.birth() <= ctx.txg().last_synced() && ctx.zio().stays(&prepared, &old)? {
                    return Ok((old, WriteDone::ready(Ok(()))));
                }
                prepared
            }
            false => ctx.zio().prepare(req).await?,
        };
        if !self.os.take_log_block(self.os.cost().data(data.len() as u64), txg) {
            return Err(Error::new(ErrorKind::NoSpace, "the rest of the pool is kept for txgs"));
        }
        let out = ctx.zio().issue(prepared).await?;
        if out.bp.is_gang() {
            // Its pieces are named only in its header, which must be written before the block can
            // be freed, in the txg that is still held.
            out.done.clone().await?;
            ctx.zio().free_gang(&out.bp, txg).await?;
            drop(hold);
            return Ok((out.bp, out.done));
        }
        let stored = Stored { bp: out.bp, done: out.done.clone(), keep };
        if policy.dedup.is_some() || !self.override_block(blkid, &data, stored, txg) {
            ctx.zio().free(&out.bp, txg)?;
        }
        let written = out.done.clone();
        let txg_held = async move {
            // The waiters of the write get its error.
            let _ = written.await;
            drop(hold);
        };
        ctx.rt().spawn("early write", txg_held);
        Ok((out.bp, out.done))
    }

    /// Whether no other txg than this one has a change of a block that is not on disk.
    fn is_changed_in_only(&self, blkid: u64, txg: Txg) -> bool {
        let st = self.n.st.borrow();
        let changes = |d: &DirtyTxg| d.free || d.blocks.contains(blkid) || d.freed.contains(blkid);
        !st.dirty.iter().flatten().any(|d| d.txg != txg && changes(d))
    }

    /// The early write of `data`, if that is the block's content in the newest txg.
    fn stored_early(&self, blkid: u64, data: &Bytes) -> Option<Stored> {
        let st = self.n.st.borrow();
        st.newest_first().find(|d| d.blocks.contains(blkid))?.blocks.stored(blkid, data)
    }

    /// Makes the sync of `txg`, which is held, use `stored`. False if `data` is not the block's
    /// content in that txg.
    fn override_block(&self, blkid: u64, data: &Bytes, stored: Stored, txg: Txg) -> bool {
        let mut st = self.n.st.borrow_mut();
        let slot = st.dirty[txg.slot()].as_mut().filter(|d| d.txg == txg);
        slot.is_some_and(|d| d.blocks.override_with(blkid, data, stored))
    }
}
