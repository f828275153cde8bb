//! Writing a block of a file before its txg syncs, for an intent log that names the block instead
//! of holding a copy of its bytes (`WR_INDIRECT`; `dmu_sync` of OpenZFS).
//!
//! The block is stored by the rules that hold for blocks of its object. If it is dirty in the txg
//! that is open, and nothing has changed it by the time that its place is known, the sync of that
//! txg uses the pointer instead of writing the block again: it is *overridden* (module `dirty`).
//! Else the place is given up in the txg in which it was allocated (`dmu_sync_late_arrival`), and
//! the sync stores the content of its own moment. It is not given out again before that txg is on
//! disk, and then nobody reads the log record that names it any more. Given up are also
//!
//! * blocks of datasets with deduplication: only the sync asks the table of shared blocks;
//! * gang blocks, whose pieces are named in their headers on the device.
//!
//! A block that is overridden already and has not changed since is not stored again: the next
//! record names the same place, which claims and replays take once.
//!
//! Space: what is dirty is charged for one place. An early write may be given up, so it is charged
//! besides, as long as its txg has not synced.

use base::{Error, ErrorKind, Result, Txg};
use bdev::Bytes;
use ondisk::blkptr::Blkptr;
use txg::TxgHold;
use zio::{Prio, WriteDone};

use crate::dirty::Stored;
use crate::dnode::Dnode;
use crate::policy::BlockKind;

impl Dnode {
    /// Stores `data`, which is or was the content of block `blkid` of the object, in the txg of
    /// `hold`. That txg is held until the write is over, and no longer: whoever waits for a txg may
    /// have asked for this.
    ///
    /// # Errors
    /// `NoSpace` where the rest of the pool is kept for txgs, or why the block cannot be stored.
    pub async fn store_early(&self, blkid: u64, data: Bytes, hold: TxgHold) -> Result<(Blkptr, WriteDone)> {
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
        if !self.os.take_log_block(self.os.cost().data(data.len() as u64), txg) {
            return Err(Error::new(ErrorKind::NoSpace, "the rest of the pool is kept for txgs"));
        }
        let out = ctx.zio().write(req).await?;
        if out.bp.is_gang() {
            // Names of its pieces are only in its header, which must be there before the block can
            // be given up: in the txg that is still held.
            out.done.clone().await?;
            ctx.zio().free_gang(&out.bp, txg).await?;
            drop(hold);
            return Ok((out.bp, out.done));
        }
        let stored = Stored { bp: out.bp, done: out.done.clone() };
        if policy.dedup.is_some() || !self.override_block(blkid, &data, stored, txg) {
            ctx.zio().free(&out.bp, txg)?;
        }
        let written = out.done.clone();
        let txg_held = async move {
            // Who waits for the write hears of an error.
            let _ = written.await;
            drop(hold);
        };
        ctx.rt().spawn("early write", txg_held);
        Ok((out.bp, out.done))
    }

    /// Where `data` is stored, if it is what the newest txg has as the block's content.
    fn stored_early(&self, blkid: u64, data: &Bytes) -> Option<Stored> {
        let st = self.n.st.borrow();
        st.newest_first().find(|d| d.blocks.contains(blkid))?.blocks.stored(blkid, data)
    }

    /// Has the sync of `txg`, which is held, use what is stored. False if that is not the block's
    /// content in that txg.
    fn override_block(&self, blkid: u64, data: &Bytes, stored: Stored, txg: Txg) -> bool {
        let mut st = self.n.st.borrow_mut();
        let slot = st.dirty[txg.slot()].as_mut().filter(|d| d.txg == txg);
        slot.is_some_and(|d| d.blocks.override_with(blkid, data, stored))
    }
}
