//! Writing a block of a file before its txg syncs, for an intent log that names the block instead
//! of holding a copy of its bytes (`WR_INDIRECT`).
//!
//! The block is stored by the rules that hold for blocks of its object, but does not become part of
//! the object: the sync of its txg stores the content of that moment as if nothing had been. So the
//! block is given up in the txg in which it was allocated. Its place is not given to anybody else
//! before that txg is on disk, and then nobody reads the log record that names it any more.

use base::{Error, ErrorKind, Result};
use bdev::Bytes;
use ondisk::blkptr::Blkptr;
use txg::TxgHold;
use zio::{Prio, WriteDone};

use crate::dnode::Dnode;
use crate::policy::BlockKind;

impl Dnode {
    /// Stores `data` as block `blkid` of the object would be stored, in the txg of `hold`, and
    /// gives the place up in the same txg. That txg is held until the write is over, and no longer:
    /// whoever waits for a txg may have asked for this.
    pub async fn store_early(&self, blkid: u64, data: Bytes, hold: TxgHold) -> Result<(Blkptr, WriteDone)> {
        let (ctx, txg) = (&self.os.ctx, hold.txg);
        let kind = {
            let st = self.n.st.borrow();
            let own = (st.phys.compress, st.phys.checksum);
            BlockKind { own, ..BlockKind::new(st.otype, 0) }
        };
        let mut req = self.os.policy(kind, 1).request(&self.os, data, (self.n.obj, blkid), txg);
        // It is given up at once: no table of shared blocks hears of it, and its pointer names a
        // place.
        (req.embed, req.dedup, req.prio) = (false, None, Prio::SyncWrite);
        // The sync stores it again, elsewhere: this place is taken besides that one.
        if !self.os.take_log_block(self.os.cost().data(req.data.len() as u64), txg) {
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
        ctx.zio().free(&out.bp, txg)?;
        let written = out.done.clone();
        let txg_held = async move {
            // Who waits for the write hears of an error.
            let _ = written.await;
            drop(hold);
        };
        ctx.rt().spawn("early write", txg_held);
        Ok((out.bp, out.done))
    }
}
