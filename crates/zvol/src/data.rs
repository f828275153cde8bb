//! Reads, writes, discards and zeroes.
//!
//! A write is divided into transactions at block boundaries. A discard frees whole blocks and
//! zeroes the rest of its range; a large one takes several txgs, and locks a part of its range at a
//! time.

use base::{Error, Result, ResultExt};
use bdev::Bytes;
use dmu::{Pieces, Tx, TxPlan, write_per_tx};
use zil::SyncMode;

use crate::volume::Volume;

impl Volume {
    /// The end of a range for a change, which must be within the volume.
    pub(crate) fn end_of(&self, off: u64, len: u64) -> Result<u64> {
        off.checked_add(len).filter(|&end| end <= self.size()).ok_or_else(|| {
            let (name, size) = (self.name(), self.size());
            Error::invalid(format!("{len} bytes at {off} are not within volume '{name}' of {size} bytes"))
        })
    }

    /// Waits as the I/O limits of the dataset and of those above it say.
    async fn limit(&self, write: bool, len: u64) {
        let dir = self.dataset().dir();
        if len > 0 && dir.has_io_limit() {
            dir.io_limit(&self.rt, write, len).await;
        }
    }

    /// Up to `len` bytes from `off`, fewer at the end of the volume, as slices of blocks.
    pub async fn read(&self, off: u64, len: u64) -> Result<Vec<Bytes>> {
        let within = |len: u64| len.min(self.size().saturating_sub(off));
        self.limit(false, within(len)).await;
        let _pass = self.enter()?;
        self.rt.spend(rt::cost::ZVOL_OP).await;
        let _range = self.ranges.read(off, within(len)).await;
        let len = within(len);
        if len == 0 {
            return Ok(Vec::new());
        }
        let out = self.data.read_range(off, len).await.at(|| format!("volume '{}'", self.name()))?;
        self.count_io(false, len);
        Ok(out)
    }

    /// The first offset at or after `off` with data; none if only holes follow.
    pub async fn next_data(&self, off: u64) -> Result<Option<u64>> {
        let _pass = self.enter()?;
        Ok(self.data.next_data(off).await?.filter(|&at| at < self.size()))
    }
    /// The first offset at or after `off` in a hole, at most the end of the volume.
    pub async fn next_hole(&self, off: u64) -> Result<u64> {
        let _pass = self.enter()?;
        Ok(self.data.next_hole(off).await?.min(self.size()))
    }

    /// Writes `data`, one slice after the other, at `off`. Whole aligned blocks within one slice
    /// are not copied.
    ///
    /// # Errors
    /// `Invalid` if the range is not within the volume, `ReadOnly`, `NoSpace`, `Quota`; after an
    /// error a part may be written.
    pub async fn write(&self, off: u64, data: Vec<Bytes>) -> Result<()> {
        self.write_as(off, data, false).await
    }

    /// As [`Volume::write`], and makes the data durable unless `sync=disabled` (FUA).
    pub async fn write_sync(&self, off: u64, data: Vec<Bytes>) -> Result<()> {
        self.write_as(off, data, true).await?;
        // `write_as` commits with `sync=always`.
        if self.opts().sync == SyncMode::Standard { self.flush().await } else { Ok(()) }
    }

    async fn write_as(&self, off: u64, data: Vec<Bytes>, commit: bool) -> Result<()> {
        let len: u64 = data.iter().map(|b| b.len() as u64).sum();
        let commit = commit || self.opts().sync == SyncMode::Always;
        let mut pieces = Pieces::new(data);
        self.change(off, len, async |at, some, tx| {
            let logged = pieces.peek(some as usize);
            self.data.write_pieces(at, some, &mut pieces, tx).await?;
            self.log_write(at, &logged, commit, tx);
            Ok(())
        })
        .await
    }

    /// Writes a range in transactions: `write` writes the part of one of them.
    async fn change(&self, off: u64, len: u64, mut write: impl AsyncFnMut(u64, u64, &Tx) -> Result<()>) -> Result<()> {
        self.limit(true, len).await;
        let _pass = self.enter_change()?;
        self.rt.spend(rt::cost::ZVOL_OP).await;
        self.end_of(off, len)?;
        let _range = self.ranges.write(off, len).await;
        // It may have become smaller.
        let end = self.end_of(off, len)?;
        let blksz = u64::from(self.block_size());
        let per_tx = write_per_tx(blksz, self.os.charge_of_block(blksz));
        let mut at = off;
        while at < end {
            let some = (end - at).min(per_tx - at % blksz);
            self.data.check_path(at, some).await?;
            let tx = TxPlan::new(&self.os).write(&self.data, at, some).assign().await?;
            write(at, some, &tx).await?;
            at += some;
        }
        drop(_range);
        self.count_io(true, len);
        self.commit_if_always().await
    }

    /// Makes a range read as zeros and frees its whole blocks.
    ///
    /// # Errors
    /// As of [`Volume::write`].
    pub async fn discard(&self, off: u64, len: u64) -> Result<()> {
        self.limit(true, len).await;
        let _pass = self.enter_change()?;
        self.rt.spend(rt::cost::ZVOL_OP).await;
        let end = self.end_of(off, len)?;
        let blksz = u64::from(self.block_size());
        self.data
            .free_in_parts(off, end, async |pos, upto| {
                let _range = self.ranges.write(pos, upto - pos).await;
                // It may have become smaller.
                let upto = upto.min(self.size());
                let mut plan = TxPlan::new(&self.os).free(&self.data).net_free();
                for edge in [pos, upto] {
                    if !edge.is_multiple_of(blksz) {
                        plan = plan.write(&self.data, edge, 1);
                    }
                }
                let tx = plan.assign().await?;
                if pos < upto {
                    self.data.free_range(pos, upto - pos, &tx).await?;
                    self.log_free(pos, upto - pos, &tx);
                }
                Ok(tx.txg())
            })
            .await?;
        self.commit_if_always().await
    }

    /// Makes a range read as zeros: by [`Volume::discard`] if `punch`, else by writing zeros, which
    /// take space where `compression=off`.
    ///
    /// # Errors
    /// As of [`Volume::write`].
    pub async fn write_zeroes(&self, off: u64, len: u64, punch: bool) -> Result<()> {
        if punch {
            return self.discard(off, len).await;
        }
        self.change(off, len, async |at, some, tx| {
            self.data.write_bytes(at, Bytes::zeroed(some as usize), tx).await?;
            // Shorter than zeros, and they read the same.
            self.log_free(at, some, tx);
            Ok(())
        })
        .await
    }
}
