//! Storing one block of an object set while a txg syncs: the new block takes the place of the old
//! one, and both are accounted ([`SyncCx::put`]).
//!
//! Order for one block: prepare (compress, sum up), issue, account the death of the old block and
//! the birth of the new one, then keep the content in the cache and in the list of writes in
//! flight. A block of an earlier pass of the same txg is overwritten in place if the new one fits:
//! it is the same block then, and the accounts do not change.

use std::cell::RefCell;

use arc::Keep;
use base::{Nanos, ObjectId, Result, SYNC_PASS_REWRITE, Txg};
use bdev::Bytes;
use codec::{ChecksumAlgo, CompressAlgo};
use ondisk::blkptr::Blkptr;
use ondisk::object_type::ObjectType;
use zio::{Prepared, WriteDone, WriteReq};

use crate::objset::Objset;
use crate::policy::Policy;

/// Shared state of the syncs of all objects in one call.
pub(crate) struct SyncCx<'a> {
    pub os: &'a Objset,
    pub txg: Txg,
    pub pass: u32,
    pub done: RefCell<Vec<WriteDone>>,
}

impl<'a> SyncCx<'a> {
    pub fn new(os: &'a Objset, txg: Txg, pass: u32) -> SyncCx<'a> {
        SyncCx { os, txg, pass, done: RefCell::default() }
    }
    /// Charges `cost` before the work, beside the cost that [`zio`] charges for the block.
    pub fn spend(&self, cost: Nanos) -> rt::Spend<'_> {
        self.os.ctx().rt().spend(cost)
    }
    pub fn hole_birth(&self) -> bool {
        self.os.ctx().features().hole_birth
    }
    /// The pointer in place of `old` if no data is stored (format page 02 section 1): a hole with a
    /// birth txg if `old` had one.
    pub fn hole_in_place_of(&self, old: &Blkptr, lsize: u64, otype: ObjectType, level: u8) -> Blkptr {
        if self.hole_birth() && old.logical_birth().0 != 0 {
            // An embedded pointer of a damaged pool may have any size, and freed pointers are not
            // validated.
            let lsize = lsize.next_multiple_of(base::SECTOR).max(base::SECTOR);
            Blkptr::punched_hole(lsize, otype, level, self.txg)
        } else {
            Blkptr::hole()
        }
    }
    /// The block is freed: accounts for it and drops it from the cache.
    pub fn kill(&self, bp: &Blkptr) {
        self.os.0.acct.kill(bp, self.txg);
        self.os.ctx().forget(bp);
    }
    fn born(&self, bp: &Blkptr) {
        self.os.0.acct.born(bp, self.txg);
        let Some(feat) = &self.os.0.feat else { return };
        if bp.lsize() > base::OLD_MAX_BLOCK {
            feat.activate("org.open-zfs:large_blocks", self.txg);
            // Blocks of fat ZAPs have 16 KiB, or 128 KiB at most.
            if bp.level() == 0 && bp.otype().is_zap() {
                feat.activate("com.klarasystems:large_microzap", self.txg);
            }
        }
        if bp.is_rewritten() {
            feat.activate("com.truenas:physical_rewrite", self.txg);
        }
        if bp.compress_raw() == CompressAlgo::Zstd as u8 {
            feat.activate("org.freebsd:zstd_compress", self.txg);
        }
        let guid = match ChecksumAlgo::from_u8(bp.checksum_raw()) {
            Some(ChecksumAlgo::Sha512) => "org.illumos:sha512",
            Some(ChecksumAlgo::Skein) => "org.illumos:skein",
            Some(ChecksumAlgo::Edonr) => "org.illumos:edonr",
            Some(ChecksumAlgo::Blake3) => "org.openzfs:blake3",
            _ => return,
        };
        feat.activate(guid, self.txg);
    }

    pub fn request(&self, data: Bytes, p: &Policy, place: (ObjectId, u64)) -> WriteReq {
        p.request(&self.os.0, data, place, self.txg)
    }

    /// Whether `old` was written by an earlier pass of this txg, so that it may be overwritten in
    /// place. A clone was not: others have its block.
    pub fn is_rewrite(&self, old: &Blkptr) -> bool {
        let is_stored = !old.is_hole() && !old.is_embedded();
        self.pass >= SYNC_PASS_REWRITE && is_stored && old.logical_birth() == self.txg && old.phys_birth() == self.txg
    }

    /// As [`SyncCx::put`] for the clone `bp` of a block, born in this txg.
    pub fn put_clone(&self, bp: Blkptr, old: &Blkptr) -> Blkptr {
        if !old.is_hole() {
            self.kill(old);
        }
        self.born(&bp);
        bp
    }

    /// As [`SyncCx::put`] for `data` that an early write has stored at `bp`, and which stay in the
    /// cache or not.
    pub fn put_stored(
        &self,
        bp: Blkptr,
        data: Bytes,
        old: &Blkptr,
        (otype, level): (ObjectType, u8),
        (metadata, keep): (bool, Keep),
        dirty: u64,
    ) -> Blkptr {
        let ctx = self.os.ctx();
        let bp = if bp.is_hole() { self.hole_in_place_of(old, data.len() as u64, otype, level) } else { bp };
        if !old.is_hole() {
            self.kill(old);
        }
        if !bp.is_hole() {
            self.born(&bp);
            ctx.track_write(&bp, (data, None), &WriteDone::ready(Ok(())), metadata, keep);
        }
        ctx.dirty_done(self.txg, dirty);
        bp
    }

    /// Stores a block in place of `old` and accounts for both, unless `old` stays. `dirty` bytes
    /// stop being dirty when the write ends. A `prepared` request has its `rewrite` set already.
    pub async fn put(
        &self,
        req: WriteReq,
        prepared: Option<Prepared>,
        old: &Blkptr,
        metadata: bool,
        dirty: u64,
    ) -> Result<Blkptr> {
        let ctx = self.os.ctx();
        let data = req.data.clone();
        let (otype, level) = (req.otype, req.level);
        let again = self.is_rewrite(old);
        let prepared = match prepared {
            Some(p) => p,
            None => {
                let mut req = req;
                req.rewrite = again.then_some(*old);
                ctx.zio().prepare(req).await?
            }
        };
        if again {
            // It may be overwritten in place: two writes to one DVA must not be in flight at once.
            ctx.wait_written(old).await?;
        }
        let mut out = ctx.zio().issue_over(prepared, old).await?;
        let mut bp = out.bp;
        if bp.is_hole() {
            bp = self.hole_in_place_of(old, data.len() as u64, otype, level);
        }
        if !out.rewritten_in_place {
            if !old.is_hole() {
                self.kill(old);
            }
            if !bp.is_hole() {
                self.born(&bp);
            }
        }
        if !bp.is_hole() {
            let stored = out.stored.take();
            ctx.track_write(&bp, (data, stored), &out.done, metadata, self.os.0.keep(metadata));
        }
        if dirty > 0 {
            ctx.dirty_done_on_write(self.txg, dirty, &out.done);
        }
        match out.done.result() {
            Some(r) => r?,
            None => self.done.borrow_mut().push(out.done),
        }
        Ok(bp)
    }
}
