//! The size of a volume (`volsize`) and its changes.

use base::{Error, Result};
use dmu::{Tx, TxPlan, zap};

use crate::SIZE_KEY;
use crate::volume::Volume;

/// Largest volume in bytes: offsets are signed in the format.
pub const SIZE_MAX: u64 = i64::MAX as u64;

/// Checks a size against the block size; the sentences are those of OpenZFS.
///
/// # Errors
/// `Invalid`.
pub fn check_size(size: u64, block_size: u32) -> Result<()> {
    if !size.is_multiple_of(u64::from(block_size.max(1))) {
        let block = base::NiceNum(u64::from(block_size));
        return Err(Error::invalid(format!("'volsize' must be a multiple of volume block size ({block})")));
    }
    match size {
        0 => Err(Error::invalid("'volsize' cannot be zero")),
        1..=SIZE_MAX => Ok(()),
        _ => Err(Error::invalid("'volsize' cannot be more than 8E")),
    }
}

impl Volume {
    /// Changes the size. What is beyond a smaller one is gone; a larger one reads as zeros there.
    /// When it returns the new size is on disk.
    ///
    /// # Errors
    /// `Invalid` as of [`check_size`], `ReadOnly`, and those of a pool that takes no transactions.
    pub async fn set_size(&self, size: u64) -> Result<()> {
        let _pass = self.enter_change()?;
        check_size(size, self.block_size())?;
        let _one = self.resizing.acquire(1).await;
        let old = self.size();
        if size >= old {
            // A crash may have left blocks of an earlier, larger size.
            self.free_beyond(old).await?;
            if size > old {
                let tx = self.plan_size().assign().await?;
                self.store_size(size, &tx).await?;
                let txg = tx.txg();
                drop(tx);
                self.wait_txg(txg).await?;
                self.size.set(size);
            }
            return Ok(());
        }
        let txg = {
            let _all = self.ranges.write(0, u64::MAX).await;
            let tx = self.plan_size().assign().await?;
            self.store_size(size, &tx).await?;
            self.size.set(size);
            tx.txg()
        };
        self.wait_txg(txg).await?;
        self.free_beyond(size).await
    }

    fn plan_size(&self) -> TxPlan {
        TxPlan::new(&self.os).zap(&self.props).net_free()
    }

    async fn store_size(&self, size: u64, tx: &Tx) -> Result<()> {
        zap::update_u64(&self.props, SIZE_KEY.as_bytes(), size, tx).await
    }

    /// Frees the blocks from `size` on, which nobody else changes.
    async fn free_beyond(&self, size: u64) -> Result<()> {
        let blksz = u64::from(self.block_size());
        let end = self.data.max_blkid().saturating_add(1).saturating_mul(blksz);
        self.data
            .free_in_parts(size, end, async |pos, upto| {
                let tx = TxPlan::new(&self.os).free(&self.data).net_free().assign().await?;
                let len = if upto == end { u64::MAX } else { upto - pos };
                self.data.free_range(pos, len, &tx).await?;
                Ok(tx.txg())
            })
            .await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_multiples_of_the_block() {
        assert!(check_size(16 << 10, 16 << 10).is_ok());
        assert!(check_size(SIZE_MAX - SIZE_MAX % 512, 512).is_ok());
        for (size, block, why) in [
            (0, 512, "cannot be zero"),
            (100 << 10, 16 << 10, "multiple of volume block size (16K)"),
            (1 << 63, 512, "more than 8E"),
        ] {
            let e = check_size(size, block).unwrap_err().to_string();
            assert!(e.starts_with("'volsize' ") && e.ends_with(why), "{e}");
        }
    }
}
