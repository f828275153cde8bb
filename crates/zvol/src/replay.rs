//! Replay of a volume's intent log: writes and discards (format page 07 section 5).

use base::{Error, ErrorKind, Result};
use bdev::Bytes;
use dmu::{Dnode, Objset, TxPlan};
use ondisk::zil::Record;
use ondisk::zil_record::{Op, WriteData};
use rt::LocalBoxFuture;
use zio::Prio;

/// The data of a volume that is being opened.
pub(crate) struct Target<'a> {
    pub os: &'a Objset,
    pub data: &'a Dnode,
    pub size: u64,
}

impl zil::replay::Replay for Target<'_> {
    fn apply<'a>(&'a self, record: &'a Record<'a>, op: &'a Op<'a>) -> LocalBoxFuture<'a, Result<()>> {
        Box::pin(async move {
            match *op {
                Op::Write { offset, data: WriteData::Here(d), .. } => {
                    self.write(offset, Bytes::copy_from(d), record.seq).await
                }
                Op::Write { offset, length, data: WriteData::Block(bp), .. } if bp.is_hole() => {
                    self.free(offset, length, record.seq).await
                }
                Op::Write { offset, length, data: WriteData::Block(bp), .. } => {
                    let ctx = self.os.ctx();
                    let block = ctx.zio().read_with(&bp, ctx.key().map(|k| &**k), Prio::SyncRead).await?;
                    let base = if length < bp.lsize() { offset - offset % bp.lsize() } else { offset };
                    self.write(base, block, record.seq).await
                }
                Op::Truncate { offset, length, .. } => self.free(offset, length, record.seq).await,
                _ => Err(Error::unsupported("the intent log of a volume says something of files")),
            }
        })
    }
}

impl Target<'_> {
    fn check(&self, offset: u64, len: u64) -> Result<()> {
        match offset.checked_add(len) {
            Some(end) if end <= self.size => Ok(()),
            _ => Err(Error::new(
                ErrorKind::Corrupt,
                format!("the intent log writes {len} bytes at {offset} of a volume of {}", self.size),
            )),
        }
    }

    async fn write(&self, offset: u64, data: Bytes, seq: u64) -> Result<()> {
        let len = data.len() as u64;
        self.check(offset, len)?;
        let tx = TxPlan::new(self.os).write(self.data, offset, len).replayed().assign().await?;
        self.data.write_bytes(offset, data, &tx).await?;
        zil::replay::mark(self.os, seq, &tx);
        Ok(())
    }

    async fn free(&self, offset: u64, len: u64, seq: u64) -> Result<()> {
        self.check(offset, len)?;
        let last = offset.saturating_add(len.max(1) - 1);
        let plan = TxPlan::new(self.os).write(self.data, offset, 1).write(self.data, last, 1).free(self.data);
        let plan = plan.replayed();
        let tx = plan.assign().await?;
        self.data.free_range(offset, len, &tx).await?;
        zil::replay::mark(self.os, seq, &tx);
        Ok(())
    }
}
